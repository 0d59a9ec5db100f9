//! Cryptography for the fuzz targets: portable, small to build, and instrumented like everything else.

use aes_gcm::aead::AeadInPlace;
use aes_gcm::aes::Aes256;
use aes_gcm::aes::cipher::{BlockEncrypt, generic_array::GenericArray};
use aes_gcm::{Aes256Gcm, KeyInit};
use chacha20poly1305::ChaCha20Poly1305;
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256, Sha512};
use wattlock_core::{Error, Item, Kind, Request};
use wattlock_door::{Crypto, CryptoSource};

/// Does just the kinds that files need.
pub struct Portable;

impl CryptoSource for Portable {
    fn here<T>(&self, work: impl FnOnce(&mut dyn Crypto) -> T) -> T {
        work(&mut Portable)
    }
}

impl Crypto for Portable {
    fn run(&mut self, request: &mut Request<'_>) -> Result<usize, Error> {
        request.validate()?;
        let key = request.key.bytes();
        match request.kind {
            Kind::Aes256GcmSeal => seal::<Aes256Gcm>(request),
            Kind::Aes256GcmOpen => open::<Aes256Gcm>(request),
            Kind::ChaCha20Poly1305Seal => seal::<ChaCha20Poly1305>(request),
            Kind::ChaCha20Poly1305Open => open::<ChaCha20Poly1305>(request),
            Kind::Aes256CbcEncrypt => {
                let aes = Aes256::new_from_slice(key).map_err(|_| Error::Invalid("key"))?;
                let mut before: [u8; 16] = request.nonce.try_into().map_err(|_| Error::Invalid("nonce"))?;
                let text = request.data.gathered();
                for block in text.chunks_exact_mut(16) {
                    before.iter_mut().zip(&*block).for_each(|(byte, plain)| *byte ^= plain);
                    aes.encrypt_block(GenericArray::from_mut_slice(&mut before));
                    block.copy_from_slice(&before);
                }
                Ok(text.len())
            }
            Kind::Aes256SivSeal | Kind::Aes256SivOpen => siv(request),
            Kind::Sha256 => {
                let digest = Sha256::digest(request.data.input());
                Ok(give(request, &digest))
            }
            Kind::HkdfExpandSha256 => {
                let key = Hkdf::<Sha256>::from_prk(key).map_err(|_| Error::Invalid("key"))?;
                let info = request.aad;
                let to = request.data.output();
                key.expand(info, to).map_err(|_| Error::Invalid("length"))?;
                Ok(to.len())
            }
            Kind::Sha512 => {
                let digest = Sha512::digest(request.data.input());
                Ok(give(request, &digest))
            }
            Kind::HmacSha256 => {
                let mac = <Hmac<Sha256> as Mac>::new_from_slice(key).map_err(|_| Error::Invalid("key"))?;
                let mac =
                    mac.chain_update(request.aad).chain_update(request.data.input()).finalize().into_bytes();
                Ok(give(request, &mac))
            }
            Kind::HkdfSha256 => {
                let derived = Hkdf::<Sha256>::new(Some(request.nonce), key);
                let info = request.aad;
                let to = request.data.output();
                derived.expand(info, to).map_err(|_| Error::Invalid("length"))?;
                Ok(to.len())
            }
            Kind::HkdfExpandSha512 => {
                // A pseudorandom key shorter than the hash is what Cobblestone uses, and what the type refuses: RFC
                // 5869's expansion, written out.
                let info = request.aad;
                let to = request.data.output();
                let mut block = Vec::new();
                for (count, part) in to.chunks_mut(64).enumerate() {
                    let mac =
                        <Hmac<Sha512> as Mac>::new_from_slice(key).map_err(|_| Error::Invalid("key"))?;
                    let mac = mac.chain_update(&block).chain_update(info).chain_update([count as u8 + 1]);
                    block = mac.finalize().into_bytes().to_vec();
                    part.copy_from_slice(&block[..part.len()]);
                }
                Ok(to.len())
            }
            _ => Err(Error::Unsupported),
        }
    }

    fn run_all(&mut self, items: &mut [Item<'_>]) {
        items.iter_mut().for_each(|item| item.result = self.run(&mut item.request));
    }
}

fn give(request: &mut Request<'_>, output: &[u8]) -> usize {
    request.data.output()[..output.len()].copy_from_slice(output);
    output.len()
}

fn seal<A: KeyInit + AeadInPlace>(request: &mut Request<'_>) -> Result<usize, Error> {
    let aead = A::new_from_slice(request.key.bytes()).map_err(|_| Error::Invalid("key"))?;
    let buffer = request.data.gathered();
    let tag = aead.encrypt_in_place_detached(request.nonce.into(), request.aad, buffer);
    request.tag.copy_from_slice(&tag.map_err(|_| Error::Invalid("length"))?);
    Ok(buffer.len())
}

fn open<A: KeyInit + AeadInPlace>(request: &mut Request<'_>) -> Result<usize, Error> {
    let aead = A::new_from_slice(request.key.bytes()).map_err(|_| Error::Invalid("key"))?;
    let buffer = request.data.gathered();
    let opened =
        aead.decrypt_in_place_detached(request.nonce.into(), request.aad, buffer, (&*request.tag).into());
    if opened.is_err() {
        buffer.fill(0);
        return Err(Error::Authentication);
    }
    Ok(buffer.len())
}

/// AES-SIV (RFC 5297) with associated data and, unless it is empty, a nonce.
fn siv(request: &mut Request<'_>) -> Result<usize, Error> {
    let (macs, counts) = request.key.bytes().split_at(32);
    let aes = |key| Aes256::new_from_slice(key).map_err(|_| Error::Invalid("key"));
    let (macs, counts) = (aes(macs)?, aes(counts)?);
    let vector = |aad: &[u8], nonce: &[u8], text: &[u8]| {
        let mut sum = cmac(&macs, &[0; 16]);
        for part in [Some(aad), Some(nonce).filter(|nonce| !nonce.is_empty())].into_iter().flatten() {
            sum = doubled(sum) ^ cmac(&macs, part);
        }
        let mut last = text.to_vec();
        if text.len() < 16 {
            last.push(0x80);
            last.resize(16, 0);
            sum = doubled(sum);
        }
        let end = last.len() - 16;
        last[end..].iter_mut().zip(sum.to_be_bytes()).for_each(|(byte, sum)| *byte ^= sum);
        cmac(&macs, &last).to_be_bytes()
    };
    let counted = |vector: [u8; 16], text: &mut [u8]| {
        let mut count = u128::from_be_bytes(vector) & !(1 << 63 | 1 << 31);
        for part in text.chunks_mut(16) {
            let block = encrypted(&counts, count).to_be_bytes();
            part.iter_mut().zip(block).for_each(|(byte, block)| *byte ^= block);
            count = count.wrapping_add(1);
        }
    };
    let (seals, aad, nonce) = (request.kind == Kind::Aes256SivSeal, request.aad, request.nonce);
    let text = request.data.gathered();
    if seals {
        let made = vector(aad, nonce, text);
        counted(made, text);
        request.tag.copy_from_slice(&made);
    } else {
        let given = (&*request.tag).try_into().map_err(|_| Error::Invalid("tag"))?;
        counted(given, text);
        if vector(aad, nonce, text) != given {
            text.fill(0);
            return Err(Error::Authentication);
        }
    }
    Ok(text.len())
}

fn encrypted(aes: &Aes256, block: u128) -> u128 {
    let mut bytes = GenericArray::from(block.to_be_bytes());
    aes.encrypt_block(&mut bytes);
    u128::from_be_bytes(bytes.into())
}

fn doubled(block: u128) -> u128 {
    block << 1 ^ (block >> 127) * 0x87
}

/// RFC 4493.
fn cmac(aes: &Aes256, text: &[u8]) -> u128 {
    let mut key = doubled(encrypted(aes, 0));
    let (whole, last) = text.split_at(text.len().saturating_sub(1) / 16 * 16);
    let mut padded = [0; 16];
    padded[..last.len()].copy_from_slice(last);
    if last.len() < 16 {
        padded[last.len()] = 0x80;
        key = doubled(key);
    }
    let block = |bytes: &[u8]| u128::from_be_bytes(bytes.try_into().expect("sixteen bytes"));
    let sum = whole.chunks_exact(16).fold(0, |sum, bytes| encrypted(aes, sum ^ block(bytes)));
    encrypted(aes, sum ^ block(&padded) ^ key)
}

/// A fuzzer's bytes, taken piece by piece; zeros when there are no more.
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// Up to so many bytes.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A number of so many bytes.
    pub fn number(&mut self, len: usize) -> u64 {
        self.take(len).iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        self.number(1) as u8
    }

    /// A number below another, which is not zero.
    pub fn below(&mut self, end: usize) -> usize {
        self.number(3) as usize % end
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    /// A text of its own: two bytes of length, and what there is of it.
    pub fn part(&mut self) -> &'a [u8] {
        let len = self.number(2) as usize;
        self.take(len)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A folder of this process's own, in memory where there is such a place. Those of processes that are gone are removed.
pub fn folder(name: &str) -> std::path::PathBuf {
    let shared = std::path::Path::new("/dev/shm");
    let parent = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
    for entry in std::fs::read_dir(&parent).into_iter().flatten().flatten() {
        let gone = |name: &str| {
            let pid = name.strip_prefix("fuzzed-wattlock-")?.split('-').next()?.parse::<u32>().ok()?;
            Some(!std::path::Path::new(&format!("/proc/{pid}")).exists())
        };
        if entry.file_name().to_str().and_then(gone) == Some(true) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let folder = parent.join(format!("fuzzed-wattlock-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder of our own");
    folder
}

/// The mode of files that targets make.
pub fn mode() -> rustix::fs::Mode {
    rustix::fs::Mode::from_raw_mode(0o600)
}
