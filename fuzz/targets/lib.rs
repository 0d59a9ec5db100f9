//! Cryptography for the fuzz targets: portable, small to build, and instrumented like everything else.

use aes_gcm::aead::AeadInPlace;
use aes_gcm::{Aes256Gcm, KeyInit};
use chacha20poly1305::ChaCha20Poly1305;
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256, Sha512};
use wattlock_core::{Data, Error, Item, Kind, Request};
use wattlock_files::{Crypto, CryptoSource};

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
            Kind::Sha512 => {
                let digest = Sha512::digest(request.data.input());
                Ok(give(request, &digest))
            }
            Kind::HmacSha256 => {
                let mac = <Hmac<Sha256> as Mac>::new_from_slice(key).map_err(|_| Error::Invalid("key"))?;
                let mac = mac.chain_update(request.data.input()).finalize().into_bytes();
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
    let Data::InPlace(buffer) = &mut request.data else { return Err(Error::Unsupported) };
    let tag = aead.encrypt_in_place_detached(request.nonce.into(), request.aad, buffer);
    request.tag.copy_from_slice(&tag.map_err(|_| Error::Invalid("length"))?);
    Ok(buffer.len())
}

fn open<A: KeyInit + AeadInPlace>(request: &mut Request<'_>) -> Result<usize, Error> {
    let aead = A::new_from_slice(request.key.bytes()).map_err(|_| Error::Invalid("key"))?;
    let Data::InPlace(buffer) = &mut request.data else { return Err(Error::Unsupported) };
    let opened =
        aead.decrypt_in_place_detached(request.nonce.into(), request.aad, buffer, (&*request.tag).into());
    opened.map(|()| buffer.len()).map_err(|_| Error::Authentication)
}
