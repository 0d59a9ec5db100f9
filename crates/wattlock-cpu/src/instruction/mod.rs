//! The `instruction` engine: every kind, one request at a time, inside the call, at the speed of the CPU's
//! instructions.
//!
//! AWS-LC does hashes, RSA, elliptic curves and ML-KEM. Our own kernels do AES-CTR, XTS and CBC on the widest AES instructions of
//! the CPU, AES-GCM if these are 256 or 512 bits wide (VAES), and ChaCha20-Poly1305 on AVX-512 with 52-bit multiply-add; on
//! other CPUs AWS-LC does these, too. Deflate is igzip's, if the machine has ISA-L, and zlib-rs's; zstd is the reference
//! library's. The engine refuses to queue, to hold a request, to start a
//! thread, or to choose by anything but what the CPU can do.
//!
//! Allocation: none of Rust's per request once a key is expanded, except for a compressor's first use on a thread. AWS-LC
//! allocates inside public-key operations (its big numbers and key objects) and for SHA-3 (its states), and nowhere else.

pub(crate) mod aes;
mod chacha;
mod check;
mod deflate;
pub(crate) mod expand;
mod mac;
mod siv;
mod span;
mod stream;
pub(crate) mod sys;

use wattlock_core::{
    CompressStream, Curve, Data, Description, Engine, EngineClass, Error, Key, Kind, KindSet, OwnedRequest,
    Request, Stream,
};

use crate::detect::Cpu;
use crate::zstd;
use span::Span;
use sys::ec;
use sys::hash::{Hash, Sha1, Sha256, Sha384, Sha512};
use sys::isal::{self, Isal};
use sys::ml_kem;
use sys::sha3::Sha3;
use sys::x25519;
use zeroize::Zeroizing;

/// The engine. Cheap to make, shared by all threads, without state of its own.
pub struct Instruction {
    cpu: Cpu,
    isal: Option<&'static Isal>,
    description: Description,
}

/// Has AWS-LC's random generator get its memory now, and not when it is first used: a program may have confined itself by
/// then.
pub fn prepare() {
    sys::prepare();
}

impl Default for Instruction {
    fn default() -> Instruction {
        Instruction::new()
    }
}

impl Instruction {
    /// With everything this CPU has.
    pub fn new() -> Instruction {
        Instruction::with(Cpu::detect())
    }

    /// With no more than `cpu` has: for tests and benchmarks of the narrower kernels. A key keeps the kernels of the
    /// engine that expanded it first; they all give the same result.
    pub fn with(cpu: Cpu) -> Instruction {
        Instruction::made(cpu, isal::library())
    }

    /// With everything this CPU has, and without the libraries that are loaded at run time: what a machine without ISA-L
    /// gets.
    pub fn without_libraries() -> Instruction {
        Instruction::made(Cpu::detect(), None)
    }

    /// Whether deflate's fast levels are igzip's.
    pub fn has_igzip(&self) -> bool {
        self.isal.is_some()
    }

    fn made(cpu: Cpu, isal: Option<&'static Isal>) -> Instruction {
        let deflate = match isal {
            Some(library) => format!("igzip ({}) and zlib-rs", library.name()),
            None => "zlib-rs".into(),
        };
        let [gcm, other_modes] = aes::kernel_names(&cpu);
        let description = Description {
            name: "instruction",
            class: EngineClass::Instruction,
            inline: KindSet::ALL,
            queued: KindSet::EMPTY,
            detail: format!(
                "AWS-LC {}; AES-GCM by {gcm}; AES-CTR, XTS and CBC decryption by {other_modes}; ChaCha20-Poly1305 by {}; deflate by {deflate}; zstd {}",
                sys::version(),
                chacha::kernel_name(&cpu),
                zstd::version()
            ),
        };
        Instruction { cpu, isal, description }
    }

    #[inline]
    fn run(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        use Kind::*;
        let kind = request.kind;
        request.key.fits(kind)?;
        match kind {
            Aes128GcmSeal | Aes192GcmSeal | Aes256GcmSeal => self.galois(request, true),
            Aes128GcmOpen | Aes192GcmOpen | Aes256GcmOpen => self.galois(request, false),
            ChaCha20Poly1305Seal => self.chacha(request, true),
            ChaCha20Poly1305Open => self.chacha(request, false),
            Aes256SivSeal => {
                let tag = (&mut *request.tag).try_into().map_err(|_| Error::Invalid("tag length"))?;
                let key = expand::siv(&self.cpu, request.key)?;
                key.seal((request.aad, request.nonce), &mut request.data, tag)
            }
            Aes256SivOpen => {
                let tag = (&*request.tag).try_into().map_err(|_| Error::Invalid("tag length"))?;
                let key = expand::siv(&self.cpu, request.key)?;
                key.open((request.aad, request.nonce), &mut request.data, tag)
            }
            _ => cipher(&self.cpu, request).unwrap_or_else(|| apart(self.isal, request)),
        }
    }

    #[inline]
    fn galois(&self, request: &mut Request<'_>, seal: bool) -> Result<usize, Error> {
        let key = expand::gcm(&self.cpu, request.key)?;
        let (nonce, aad, data, tag) = sealed(request)?;
        let len = data.len();
        if seal {
            key.seal(nonce, aad, data, tag)?
        } else {
            key.open(nonce, aad, data, tag)?
        }
        Ok(len)
    }

    #[inline]
    fn chacha(&self, request: &mut Request<'_>, seal: bool) -> Result<usize, Error> {
        let key = expand::chacha(&self.cpu, request.key)?;
        let (nonce, aad, data, tag) = sealed(request)?;
        let len = data.len();
        if seal {
            key.seal(nonce, aad, data, tag)?
        } else {
            key.open(nonce, aad, data, tag)?
        }
        Ok(len)
    }
}

impl Engine for Instruction {
    fn description(&self) -> &Description {
        &self.description
    }

    #[inline]
    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        self.run(request)
    }

    fn stream(&self, kind: Kind, key: &Key) -> Result<Box<dyn Stream>, Error> {
        stream::open(&self.cpu, kind, key)
    }

    fn compress_stream(&self, kind: Kind, level: u8) -> Result<Box<dyn CompressStream>, Error> {
        match kind {
            Kind::Deflate => Ok(Box::new(deflate::Pieces::new(self.isal, level)?)),
            Kind::Zstd => Ok(Box::new(zstd::Pieces::new(level)?)),
            _ => Err(Error::Unsupported),
        }
    }

    fn check(&self, request: &OwnedRequest, len: usize) -> Result<(), Error> {
        check::check(self, request, len)
    }
}

/// Does one validated hash, MAC or CBC encryption, as the engine would: what lanes do with a message that is alone.
#[cfg(target_arch = "x86_64")]
pub(crate) fn alone(cpu: &Cpu, request: &mut Request<'_>) -> Result<usize, Error> {
    request.key.fits(request.kind)?;
    cipher(cpu, request).unwrap_or_else(|| apart(None, request))
}

/// A hash in pieces, as the engine would make it: what lanes do with SHA-3 that comes in pieces.
#[cfg(target_arch = "x86_64")]
pub(crate) fn hash_in_pieces(kind: Kind) -> Result<Box<dyn Stream>, Error> {
    stream::open(&Cpu::PLAIN, kind, Key::none())
}

/// The kinds without a tag; `None` for any other.
#[inline]
fn cipher(cpu: &Cpu, request: &mut Request<'_>) -> Option<Result<usize, Error>> {
    use Kind::*;
    Some(match request.kind {
        Aes128Ctr | Aes192Ctr | Aes256Ctr => ctr(cpu, request),
        Aes128CbcEncrypt | Aes192CbcEncrypt | Aes256CbcEncrypt => cbc(cpu, request, true),
        Aes128CbcDecrypt | Aes192CbcDecrypt | Aes256CbcDecrypt => cbc(cpu, request, false),
        Aes128XtsEncrypt | Aes256XtsEncrypt => xts(cpu, request, true),
        Aes128XtsDecrypt | Aes256XtsDecrypt => xts(cpu, request, false),
        _ => return None,
    })
}

#[inline]
fn ctr(cpu: &Cpu, request: &mut Request<'_>) -> Result<usize, Error> {
    let key = expand::ctr(cpu, request.key)?;
    let data = Span::of(&mut request.data)?;
    let len = data.len();
    key.apply(u128::from_be_bytes(*block(request.nonce)?), data);
    Ok(len)
}

fn cbc(cpu: &Cpu, request: &mut Request<'_>, encrypt: bool) -> Result<usize, Error> {
    let key = expand::cbc(cpu, request.key)?;
    let (mut chain, data) = (*block(request.nonce)?, Span::of(&mut request.data)?);
    let len = data.len();
    if encrypt {
        key.encrypt(&mut chain, data)?
    } else {
        key.decrypt(&mut chain, data)?
    }
    Ok(len)
}

fn xts(cpu: &Cpu, request: &mut Request<'_>, encrypt: bool) -> Result<usize, Error> {
    let key = expand::xts(cpu, request.key)?;
    let (nonce, data) = (block(request.nonce)?, Span::of(&mut request.data)?);
    let (len, mut tweak) = (data.len(), Zeroizing::default());
    key.begin(nonce, &mut tweak);
    key.apply(&tweak, data, encrypt)?;
    Ok(len)
}

#[inline]
fn block(nonce: &[u8]) -> Result<&aes::Block, Error> {
    nonce.try_into().map_err(|_| Error::Invalid("nonce length"))
}

/// What every AEAD takes: nonce, associated data, message, and the tag to write or to compare.
type Sealed<'a> = (&'a [u8; 12], &'a [u8], Span<'a>, &'a mut [u8; 16]);

#[inline]
fn sealed<'a>(request: &'a mut Request<'_>) -> Result<Sealed<'a>, Error> {
    let nonce = request.nonce.try_into().map_err(|_| Error::Invalid("nonce length"))?;
    let tag = (&mut *request.tag).try_into().map_err(|_| Error::Invalid("tag length"))?;
    Ok((nonce, request.aad, Span::of(&mut request.data)?, tag))
}

/// The kinds that cannot work in place.
fn apart(isal: Option<&'static Isal>, request: &mut Request<'_>) -> Result<usize, Error> {
    let (kind, key) = (request.kind, request.key);
    let Data::Apart { from, to } = &mut request.data else {
        return Err(Error::Invalid("this kind cannot work in place"));
    };
    let to = match kind.info().output {
        Some(len) => to.get_mut(..len).ok_or(Error::Invalid("output length"))?,
        None => to,
    };
    match kind {
        Kind::Sha1 => mac::digest::<Sha1>(from, to),
        Kind::Sha256 => mac::digest::<Sha256>(from, to),
        Kind::Sha384 => mac::digest::<Sha384>(from, to),
        Kind::Sha512 => mac::digest::<Sha512>(from, to),
        Kind::Sha3_256 | Kind::Sha3_512 => {
            let mut hash = Sha3::new(kind)?;
            hash.update(from)?;
            hash.finish(to)?;
        }
        Kind::Shake128 | Kind::Shake256 => {
            let mut hash = Sha3::new(kind)?;
            hash.update(from)?;
            hash.extend(to)?;
        }
        Kind::HmacSha1 => expand::hmac::<Sha1>(key)?.mac(&[request.aad, from], to),
        Kind::HmacSha256 => expand::hmac::<Sha256>(key)?.mac(&[request.aad, from], to),
        Kind::HmacSha384 => expand::hmac::<Sha384>(key)?.mac(&[request.aad, from], to),
        Kind::HmacSha512 => expand::hmac::<Sha512>(key)?.mac(&[request.aad, from], to),
        Kind::Tls12PrfSha256 => prf::<Sha256>(key, from, to)?,
        Kind::Tls12PrfSha384 => prf::<Sha384>(key, from, to)?,
        Kind::HkdfSha256 => mac::hkdf::<Sha256>(request.nonce, key.bytes(), request.aad, to)?,
        Kind::HkdfSha384 => mac::hkdf::<Sha384>(request.nonce, key.bytes(), request.aad, to)?,
        Kind::HkdfSha512 => mac::hkdf::<Sha512>(request.nonce, key.bytes(), request.aad, to)?,
        Kind::HkdfExpandSha256 => mac::hkdf_expand(expand::hmac::<Sha256>(key)?, request.aad, to)?,
        Kind::HkdfExpandSha384 => mac::hkdf_expand(expand::hmac::<Sha384>(key)?, request.aad, to)?,
        Kind::HkdfExpandSha512 => mac::hkdf_expand(expand::hmac::<Sha512>(key)?, request.aad, to)?,
        Kind::Rsa2048Private | Kind::Rsa3072Private | Kind::Rsa4096Private => {
            expand::rsa(key)?.apply(from, to)?
        }
        Kind::EcdsaP256Sign | Kind::EcdsaP384Sign => expand::signer(key)?.sign(from, to)?,
        Kind::P256Derive | Kind::P384Derive => expand::agreer(key)?.agree(from, to)?,
        Kind::X25519Derive => x25519_agree(key, from, to)?,
        Kind::P256Generate => generate(Curve::P256, to)?,
        Kind::P384Generate => generate(Curve::P384, to)?,
        Kind::X25519Generate => x25519_generate(to)?,
        Kind::MlKem768Generate => ml_kem::generate(request.nonce, to)?,
        Kind::MlKem768Encapsulate => ml_kem::encapsulate(from, request.nonce, to)?,
        Kind::MlKem768Decapsulate => expand::decapsulator(key)?.decapsulate(from, to)?,
        Kind::Deflate => return deflate::deflate(isal, request.aad, from, to, request.options),
        Kind::Zstd => return zstd::compress(request.aad, from, to, request.options.level),
        _ => return Err(Error::Unsupported),
    }
    Ok(to.len())
}

fn prf<H: Hash + Send + Sync + 'static>(key: &Key, seed: &[u8], out: &mut [u8]) -> Result<(), Error> {
    mac::tls12_prf(expand::hmac::<H>(key)?, seed, out);
    Ok(())
}

fn generate(curve: Curve, out: &mut [u8]) -> Result<(), Error> {
    let (scalar, public) = out.split_at_mut(curve.scalar_len());
    ec::generate(curve, scalar, public)
}

fn x25519_agree(key: &Key, peer: &[u8], out: &mut [u8]) -> Result<(), Error> {
    let scalar = expand::x25519(key)?;
    let peer = peer.try_into().map_err(|_| Error::Invalid("input length"))?;
    let shared = out.try_into().map_err(|_| Error::Invalid("output length"))?;
    x25519::agree(scalar, peer, shared)
}

fn x25519_generate(out: &mut [u8]) -> Result<(), Error> {
    let (scalar, public) = out.split_first_chunk_mut().ok_or(Error::Invalid("output length"))?;
    x25519::generate(scalar, public.try_into().map_err(|_| Error::Invalid("output length"))?);
    Ok(())
}
