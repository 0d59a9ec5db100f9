//! XAES-256-GCM (c2sp.org/XAES-256-GCM): AES-256-GCM with nonces of 24 bytes, of which the first 12 select a derived
//! key. Deriving costs three AES blocks and the expansion of a key, so a derived key is kept and used for many nonces
//! that share their first half.

use wattlock_core::{Algorithm, Data, Error as CoreError, Key, Kind, Request};
use wattlock_door::Crypto;
use zeroize::Zeroizing;

use crate::Error;
use crate::format::{NONCE_LEN, TAG_LEN};

/// Bytes of a nonce that select the derived key.
pub const PREFIX_LEN: usize = 12;

/// A key of XAES-256-GCM.
#[derive(Debug)]
pub struct XaesKey {
    block: Key,
    /// CMAC's first subkey.
    subkey: Zeroizing<[u8; 16]>,
}

impl XaesKey {
    /// Prepares a key: one AES block.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn new(key: &[u8; 32], crypto: &mut impl Crypto) -> Result<XaesKey, Error> {
        let block = Key::symmetric(Algorithm::Aes256Cbc, key)?;
        let mut zero = Zeroizing::new([0; 16]);
        encrypt(&block, &mut zero, crypto)?;
        let doubled = u128::from_be_bytes(*zero);
        // Doubling in GF(2^128) as CMAC does it; the reduction is arithmetic, not a branch.
        let subkey = doubled << 1 ^ (0x87 & 0_u128.wrapping_sub(doubled >> 127));
        Ok(XaesKey { block, subkey: Zeroizing::new(subkey.to_be_bytes()) })
    }

    /// The key itself.
    pub(crate) fn secret(&self) -> Zeroizing<[u8; 32]> {
        let mut secret = Zeroizing::new([0; 32]);
        secret.copy_from_slice(self.block.bytes());
        secret
    }

    /// The AES-256-GCM key of all nonces that begin with `prefix`: two AES blocks.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn derive(&self, prefix: &[u8; PREFIX_LEN], crypto: &mut impl Crypto) -> Result<Key, Error> {
        let mut derived = Zeroizing::new([0; 32]);
        for (counter, half) in (1..).zip(derived.chunks_exact_mut(16)) {
            let mut block = Zeroizing::new([0; 16]);
            block[..4].copy_from_slice(&[0, counter, b'X', 0]);
            block[4..].copy_from_slice(prefix);
            block.iter_mut().zip(*self.subkey).for_each(|(byte, key)| *byte ^= key);
            encrypt(&self.block, &mut block, crypto)?;
            half.copy_from_slice(&block[..]);
        }
        Ok(Key::symmetric(Algorithm::Aes256Gcm, &derived[..])?)
    }

    /// Seals in place and returns the tag.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn seal(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
        crypto: &mut impl Crypto,
    ) -> Result<[u8; TAG_LEN], Error> {
        let (prefix, rest) = halves(nonce);
        let key = self.derive(prefix, crypto)?;
        let mut tag = [0; TAG_LEN];
        let data = Data::InPlace(text);
        let mut request =
            Request { nonce: rest, aad, tag: &mut tag, ..Request::new(Kind::Aes256GcmSeal, &key, data) };
        crypto.run(&mut request)?;
        Ok(tag)
    }

    /// Opens in place; says whether it authenticated. If not, `text` is worthless and has no plaintext.
    ///
    /// # Errors
    /// [`Error::Engine`] for anything but a wrong tag.
    pub fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
        mut tag: [u8; TAG_LEN],
        crypto: &mut impl Crypto,
    ) -> Result<bool, Error> {
        let (prefix, rest) = halves(nonce);
        let key = self.derive(prefix, crypto)?;
        let data = Data::InPlace(text);
        let mut request =
            Request { nonce: rest, aad, tag: &mut tag, ..Request::new(Kind::Aes256GcmOpen, &key, data) };
        match crypto.run(&mut request) {
            Ok(_) => Ok(true),
            Err(CoreError::Authentication) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// A nonce's half that selects the key, and the other.
fn halves(nonce: &[u8; NONCE_LEN]) -> (&[u8; PREFIX_LEN], &[u8]) {
    nonce.split_first_chunk().expect("a nonce is longer than its first half")
}

/// One block of AES-256: CBC of a single block under a zero initialisation vector.
fn encrypt(key: &Key, block: &mut [u8; 16], crypto: &mut impl Crypto) -> Result<(), Error> {
    let data = Data::InPlace(&mut block[..]);
    let mut request = Request { nonce: &[0; 16], ..Request::new(Kind::Aes256CbcEncrypt, key, data) };
    crypto.run(&mut request)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattlock::Runtime;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    /// The two worked examples of c2sp.org/XAES-256-GCM.
    #[test]
    fn published_vectors_hold() {
        let runtime = Runtime::builder().telemetry(false).build().unwrap();
        let mut crypto = runtime.dispatcher();
        let nonce = b"ABCDEFGHIJKLMNOPQRSTUVWX";
        let cases: [(u8, &[u8], &str, &str); 2] = [
            (
                1,
                b"",
                "c8612c9ed53fe43e8e005b828a1631a0bbcb6ab2f46514ec4f439fcfd0fa969b",
                "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271",
            ),
            (
                3,
                b"c2sp.org/XAES-256-GCM",
                "e9c621d4cdd9b11b00a6427ad7e559aeedd66b3857646677748f8ca796cb3fd8",
                "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d",
            ),
        ];
        for (byte, aad, derived, sealed) in cases {
            let key = XaesKey::new(&[byte; 32], &mut crypto).unwrap();
            let got = key.derive(b"ABCDEFGHIJKL", &mut crypto).unwrap();
            assert_eq!(got.bytes(), hex(derived));
            let mut text = *b"XAES-256-GCM";
            let tag = key.seal(nonce, aad, &mut text, &mut crypto).unwrap();
            assert_eq!([&text[..], &tag].concat(), hex(sealed));
            assert!(key.open(nonce, aad, &mut text, tag, &mut crypto).unwrap());
            assert_eq!(&text, b"XAES-256-GCM");
            let tag = key.seal(nonce, aad, &mut text, &mut crypto).unwrap();
            assert!(!key.open(nonce, b"other", &mut text, tag, &mut crypto).unwrap());
            assert_ne!(&text, b"XAES-256-GCM");
        }
    }
}
