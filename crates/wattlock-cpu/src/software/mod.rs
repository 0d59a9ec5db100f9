//! The engine that is always there and never leaks: plain code without special instructions.
//!
//! Every kind, on every machine, in time that depends on lengths and public values only. It asks no CPU what it can
//! do, so it behaves the same wherever it runs, and it is what other engines are checked against. It refuses to be
//! fast at that price: no tables, no intrinsics, no detection. Ours are AES, GHASH, ChaCha20-Poly1305, the hashes and
//! what stands on them; SHA-3, ML-KEM, integers and curves are RustCrypto's and dalek's, zstd is the reference library's, deflate is `miniz_oxide`'s (which alone is
//! not constant time; no compression is).
//!
//! *What is wiped.* Expanded keys on drop; keystreams, hash states and results of ours when they are done with.
//! The libraries wipe the values we hold of theirs, not every temporary on their stacks.
#![forbid(unsafe_code)]

mod aead;
mod aes;
mod cbc;
mod chacha;
mod chained;
mod check;
mod ctr;
mod deflate;
mod derive;
mod gcm;
mod ghash;
pub(crate) mod hash;
mod hmac;
mod keccak;
mod ml_kem;
pub(crate) mod nist;
mod random;
mod rsa;
pub(crate) mod sha1;
pub(crate) mod sha256;
pub(crate) mod sha512;
mod siv;
mod stream;
mod x25519;
mod xts;

use p256::NistP256;
use p384::NistP384;
use wattlock_core::{
    CompressStream, Data, Description, Engine, EngineClass, Error, Key, Kind, KindSet, Material,
    OwnedRequest, Request, Stream,
};

use aead::Aead;
use aes::Aes;
use chacha::ChaCha20Poly1305;
use gcm::Gcm;
use hash::Core;
use hmac::Hmac;
use nist::{Agreer, Nist, Signer};
use rsa::{Rsa, Rsa2048, Rsa3072, Rsa4096};
use siv::Siv;
use xts::{Direction, Xts};

/// The portable constant-time engine. It has no state; one serves all threads.
#[derive(Debug, Clone)]
pub struct Software {
    description: Description,
}

impl Software {
    /// There is nothing to detect and nothing that can fail.
    pub fn new() -> Software {
        Software {
            description: Description {
                name: "software",
                class: EngineClass::Software,
                inline: KindSet::ALL,
                queued: KindSet::EMPTY,
                detail:
                    "portable Rust, constant time, no special instructions: bitsliced AES, multiplied GHASH, \
                         crypto-bigint, p256, p384, x25519-dalek, miniz_oxide; zstd in portable C"
                        .into(),
            },
        }
    }
}

impl Default for Software {
    fn default() -> Software {
        Software::new()
    }
}

impl Engine for Software {
    fn description(&self) -> &Description {
        &self.description
    }

    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        compute(request)
    }

    fn stream(&self, kind: Kind, key: &Key) -> Result<Box<dyn Stream>, Error> {
        stream::open(kind, key)
    }

    fn compress_stream(&self, kind: Kind, level: u8) -> Result<Box<dyn CompressStream>, Error> {
        match kind {
            Kind::Deflate => Ok(Box::new(deflate::Pieces::new(level)?)),
            Kind::Zstd => Ok(Box::new(crate::zstd::Pieces::new(level)?)),
            _ => Err(Error::Unsupported),
        }
    }

    fn check(&self, request: &OwnedRequest, len: usize) -> Result<(), Error> {
        check::check(request, len)
    }
}

/// Does a request. It is validated again, because everything below indexes by the lengths that validation promises,
/// and because next to this engine's work that costs nothing.
fn compute(request: &mut Request<'_>) -> Result<usize, Error> {
    use Kind::*;
    request.validate()?;
    match request.kind {
        Aes128Ctr | Aes192Ctr | Aes256Ctr => {
            cipher(request, Aes::new, |aes, iv, data| ctr::apply(aes, u128::from_be_bytes(*iv), data))
        }
        Aes128CbcEncrypt | Aes192CbcEncrypt | Aes256CbcEncrypt => cipher(request, Aes::new, cbc::encrypt),
        Aes128CbcDecrypt | Aes192CbcDecrypt | Aes256CbcDecrypt => cipher(request, Aes::new, cbc::decrypt),
        Aes128XtsEncrypt | Aes256XtsEncrypt => {
            cipher(request, Xts::new, |xts, tweak, data| xts.apply(Direction::Encrypt, tweak, data))
        }
        Aes128XtsDecrypt | Aes256XtsDecrypt => {
            cipher(request, Xts::new, |xts, tweak, data| xts.apply(Direction::Decrypt, tweak, data))
        }
        Aes128GcmSeal | Aes192GcmSeal | Aes256GcmSeal => seal(request, Gcm::new),
        Aes128GcmOpen | Aes192GcmOpen | Aes256GcmOpen => open(request, Gcm::new),
        ChaCha20Poly1305Seal => seal(request, ChaCha20Poly1305::new),
        ChaCha20Poly1305Open => open(request, ChaCha20Poly1305::new),
        Aes256SivSeal => siv_seal(request),
        Aes256SivOpen => siv_open(request),
        Kind::Sha1 => digest::<sha1::Sha1>(request),
        Kind::Sha256 => digest::<sha256::Sha256>(request),
        Kind::Sha384 => digest::<sha512::Sha384>(request),
        Kind::Sha512 => digest::<sha512::Sha512>(request),
        Sha3_256 => through(request, keccak::digest::<sha3::Sha3_256>),
        Sha3_512 => through(request, keccak::digest::<sha3::Sha3_512>),
        Shake128 => through(request, keccak::extend::<sha3::Shake128>),
        Shake256 => through(request, keccak::extend::<sha3::Shake256>),
        HmacSha1 => mac::<sha1::Sha1>(request),
        HmacSha256 => mac::<sha256::Sha256>(request),
        HmacSha384 => mac::<sha512::Sha384>(request),
        HmacSha512 => mac::<sha512::Sha512>(request),
        Rsa2048Private => private(request, Rsa2048::new),
        Rsa3072Private => private(request, Rsa3072::new),
        Rsa4096Private => private(request, Rsa4096::new),
        EcdsaP256Sign => sign::<NistP256>(request),
        EcdsaP384Sign => sign::<NistP384>(request),
        P256Derive => agree::<NistP256>(request),
        P384Derive => agree::<NistP384>(request),
        X25519Derive => {
            let material = request.key.material();
            let (peer, out) = apart(request);
            x25519::derive(material, peer, out)
        }
        P256Generate => nist::generate::<NistP256>(request.data.output()),
        P384Generate => nist::generate::<NistP384>(request.data.output()),
        X25519Generate => x25519::generate(request.data.output()),
        MlKem768Generate => ml_kem::generate(request.nonce, request.data.output()),
        MlKem768Encapsulate => {
            let m = request.nonce;
            through(request, |peer, out| ml_kem::encapsulate(peer, m, out))
        }
        MlKem768Decapsulate => {
            let key = request.key;
            through(request, |ciphertext, out| ml_kem::decapsulate(key, ciphertext, out))
        }
        Tls12PrfSha256 => prf::<sha256::Sha256>(request),
        Tls12PrfSha384 => prf::<sha512::Sha384>(request),
        HkdfSha256 => hkdf::<sha256::Sha256>(request),
        HkdfSha384 => hkdf::<sha512::Sha384>(request),
        HkdfSha512 => hkdf::<sha512::Sha512>(request),
        HkdfExpandSha256 => expand::<sha256::Sha256>(request),
        HkdfExpandSha384 => expand::<sha512::Sha384>(request),
        HkdfExpandSha512 => expand::<sha512::Sha512>(request),
        Deflate => {
            let (options, dictionary) = (request.options, request.aad);
            let (input, out) = apart(request);
            deflate::compress(dictionary, input, out, options)
        }
        Zstd => {
            let (level, dictionary) = (request.options.level, request.aad);
            let (input, out) = apart(request);
            crate::zstd::compress(dictionary, input, out, level)
        }
        _ => Err(Error::Unsupported),
    }
}

/// A kind whose result is a function of its input, written to the output.
fn through(
    request: &mut Request<'_>,
    function: impl FnOnce(&[u8], &mut [u8]) -> Result<usize, Error>,
) -> Result<usize, Error> {
    let (input, out) = apart(request);
    function(input, out)
}

/// Input and output of a kind that never works in place; validation has seen to that.
fn apart<'r>(request: &'r mut Request<'_>) -> (&'r [u8], &'r mut [u8]) {
    match &mut request.data {
        Data::Apart { from, to } => (from, to),
        Data::InPlace(buffer) => (&[], buffer),
    }
}

fn expanded<T: Send + Sync + 'static>(
    key: &Key,
    expand: impl FnOnce(&[u8]) -> Result<T, Error>,
) -> Result<&T, Error> {
    key.expanded(|material| match material {
        Material::Bytes(bytes) => expand(bytes),
        _ => Err(Error::Invalid("key algorithm")),
    })
}

fn fixed<const LEN: usize>(nonce: &[u8]) -> Result<&[u8; LEN], Error> {
    nonce.try_into().map_err(|_| Error::Invalid("nonce length"))
}

fn cipher<T: Send + Sync + 'static>(
    request: &mut Request<'_>,
    expand: impl FnOnce(&[u8]) -> Result<T, Error>,
    apply: impl FnOnce(&T, &[u8; aes::BLOCK], &mut [u8]),
) -> Result<usize, Error> {
    let key = expanded(request.key, expand)?;
    let data = request.data.gathered();
    apply(key, fixed(request.nonce)?, data);
    Ok(data.len())
}

fn seal<A: Aead + Send + Sync + 'static>(
    request: &mut Request<'_>,
    expand: impl FnOnce(&[u8]) -> Result<A, Error>,
) -> Result<usize, Error> {
    let aead = expanded(request.key, expand)?;
    let tag =
        <&mut [u8; aead::TAG]>::try_from(&mut *request.tag).map_err(|_| Error::Invalid("tag length"))?;
    Ok(aead::seal(aead, fixed(request.nonce)?, request.aad, &mut request.data, tag))
}

fn open<A: Aead + Send + Sync + 'static>(
    request: &mut Request<'_>,
    expand: impl FnOnce(&[u8]) -> Result<A, Error>,
) -> Result<usize, Error> {
    let aead = expanded(request.key, expand)?;
    let tag = <&[u8; aead::TAG]>::try_from(&*request.tag).map_err(|_| Error::Invalid("tag length"))?;
    aead::open(aead, fixed(request.nonce)?, request.aad, &mut request.data, tag)
}

fn siv_seal(request: &mut Request<'_>) -> Result<usize, Error> {
    let siv = expanded(request.key, Siv::new)?;
    let tag = (&mut *request.tag).try_into().map_err(|_| Error::Invalid("tag length"))?;
    crate::siv::seal(siv.parts(), &siv.keys, (request.aad, request.nonce), &mut request.data, tag)
}

fn siv_open(request: &mut Request<'_>) -> Result<usize, Error> {
    let siv = expanded(request.key, Siv::new)?;
    let tag = (&*request.tag).try_into().map_err(|_| Error::Invalid("tag length"))?;
    crate::siv::open(siv.parts(), &siv.keys, (request.aad, request.nonce), &mut request.data, tag)
}

fn digest<C: Core>(request: &mut Request<'_>) -> Result<usize, Error> {
    let (input, out) = apart(request);
    hash::digest::<C>(input, &mut out[..C::OUT]);
    Ok(C::OUT)
}

fn mac<C: Core>(request: &mut Request<'_>) -> Result<usize, Error> {
    let hmac = Hmac::<C>::new(request.key.bytes()).with(request.aad);
    let (input, out) = apart(request);
    hmac.with(input).finish(&mut out[..C::OUT]);
    Ok(C::OUT)
}

fn private<const HALF: usize, const FULL: usize>(
    request: &mut Request<'_>,
    expand: impl FnOnce(&Material) -> Result<Rsa<HALF, FULL>, Error>,
) -> Result<usize, Error> {
    let rsa = request.key.expanded(expand)?;
    let (input, out) = apart(request);
    rsa.private(input, &mut out[..input.len()])
}

fn sign<C: Nist>(request: &mut Request<'_>) -> Result<usize, Error> {
    let signer = request.key.expanded(Signer::<C>::new)?;
    let (digest, out) = apart(request);
    Ok(signer.sign(digest, out))
}

fn agree<C: Nist>(request: &mut Request<'_>) -> Result<usize, Error> {
    let agreer = request.key.expanded(Agreer::<C>::new)?;
    let (peer, out) = apart(request);
    agreer.derive(peer, out)
}

fn prf<C: Core>(request: &mut Request<'_>) -> Result<usize, Error> {
    if !request.aad.is_empty() {
        return Err(Error::Invalid("associated data"));
    }
    let secret = request.key.bytes();
    let (seed, out) = apart(request);
    derive::tls12_prf::<C>(secret, seed, out);
    Ok(out.len())
}

fn hkdf<C: Core>(request: &mut Request<'_>) -> Result<usize, Error> {
    let out = keying_output(&mut request.data)?;
    derive::hkdf::<C>(request.nonce, request.key.bytes(), request.aad, out)?;
    Ok(out.len())
}

fn expand<C: Core>(request: &mut Request<'_>) -> Result<usize, Error> {
    let out = keying_output(&mut request.data)?;
    derive::hkdf_expand::<C>(request.key.bytes(), request.aad, out)?;
    Ok(out.len())
}

/// HKDF's output buffer. It has no input: bytes there are a caller's mistake, not something to ignore.
fn keying_output<'r>(data: &'r mut Data<'_>) -> Result<&'r mut [u8], Error> {
    if !data.is_empty() {
        return Err(Error::Invalid("input length"));
    }
    Ok(data.output())
}
