//! The maker of a key: Ed25519 signatures of key entries (RFC 8032).
//!
//! A recipient says who reads. A signature says whose key it is: what is sealed under a key that no trusted signer
//! signed is then not taken. It covers the key's name, which is derived from the key, and its description; other
//! recipients need no new signature.
//!
//! A signer's file has one line, `WATTLOCK-SIGNER-` and 64 hexadecimal digits; lines that start with `#` are skipped.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use zeroize::Zeroizing;

use crate::error::Error;
use crate::record::StreamId;

const SECRET: &str = "WATTLOCK-SIGNER-";
const PUBLIC: &str = "ed25519:";
const LABEL: &[u8] = b"wattlock record v1 signed\0";

/// Bytes of a public key and a signature behind an entry.
pub(crate) const SIGNED_LEN: usize = 32 + 64;

/// A signer, as others know it: `ed25519:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SignerName(pub [u8; 32]);

impl fmt::Display for SignerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PUBLIC}")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SignerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for SignerName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<SignerName, &'static str> {
        let digits = text.strip_prefix(PUBLIC).and_then(bytes);
        digits.map(SignerName).ok_or("a signer is ed25519: and 64 hexadecimal digits")
    }
}

fn bytes(digits: &str) -> Option<[u8; 32]> {
    if digits.len() != 64 || !digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// What is signed.
fn message(id: StreamId, described: &[u8]) -> Vec<u8> {
    [LABEL, &id.0, described].concat()
}

/// Signs entries.
pub struct Signer {
    pair: Ed25519KeyPair,
    name: SignerName,
}

impl Signer {
    /// A new signer, and the content of its file.
    ///
    /// # Errors
    /// [`Error::Files`] if the kernel has no random bytes.
    pub fn generate() -> Result<(Signer, Zeroizing<String>), Error> {
        let mut seed = Zeroizing::new([0; 32]);
        wattlock_door::random(&mut seed[..])?;
        let signer = Signer::from_seed(&seed)?;
        let digits: Zeroizing<String> =
            Zeroizing::new(seed.iter().map(|byte| format!("{byte:02x}")).collect());
        let file = Zeroizing::new(format!("# signer: {}\n{SECRET}{}\n", signer.name, digits.as_str()));
        Ok((signer, file))
    }

    /// The signer of a file.
    ///
    /// # Errors
    /// [`Error::Files`], without a word of the file.
    pub fn parse(file: &str) -> Result<Signer, Error> {
        let mut lines = file.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let seed = lines.next().and_then(|line| bytes(line.strip_prefix(SECRET)?)).map(Zeroizing::new);
        match (seed, lines.next()) {
            (Some(seed), None) => Signer::from_seed(&seed),
            _ => Err(wrong("not a signer's file")),
        }
    }

    fn from_seed(seed: &[u8; 32]) -> Result<Signer, Error> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| wrong("not a signer's key"))?;
        let name = pair.public_key().as_ref().try_into().map_err(|_| wrong("not a signer's key"))?;
        Ok(Signer { pair, name: SignerName(name) })
    }

    /// The signer's name.
    pub fn name(&self) -> SignerName {
        self.name
    }

    /// What stands behind an entry.
    pub(crate) fn sign(&self, id: StreamId, described: &[u8]) -> Vec<u8> {
        [&self.name.0, self.pair.sign(&message(id, described)).as_ref()].concat()
    }
}

fn wrong(what: &str) -> Error {
    wattlock_door::Error::Usage(what.into()).into()
}

/// The signer of an entry, if the signature is right.
pub(crate) fn verify(signed: &[u8], id: StreamId, described: &[u8]) -> Option<SignerName> {
    let (name, signature) = signed.split_first_chunk::<32>()?;
    let key = UnparsedPublicKey::new(&ED25519, name);
    key.verify(&message(id, described), signature).ok()?;
    Some(SignerName(*name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signer_s_file_reads_back_and_others_do_not() -> Result<(), Error> {
        let (signer, file) = Signer::generate()?;
        assert_eq!(Signer::parse(&file)?.name(), signer.name());
        assert_eq!(signer.name().to_string().parse(), Ok(signer.name()));
        for wrong in ["", "WATTLOCK-SIGNER-00", "ed25519:00", &format!("{}{}", file.as_str(), file.as_str())]
        {
            assert!(Signer::parse(wrong).is_err(), "{wrong}");
        }
        Ok(())
    }

    #[test]
    fn a_signature_holds_for_one_name_and_description() -> Result<(), Error> {
        let (signer, _) = Signer::generate()?;
        let (id, other) = (StreamId([1; 16]), StreamId([2; 16]));
        let signed = signer.sign(id, b"orders");
        assert_eq!(verify(&signed, id, b"orders"), Some(signer.name()));
        assert_eq!(verify(&signed, other, b"orders"), None);
        assert_eq!(verify(&signed, id, b"order"), None);
        for at in 0..signed.len() {
            let mut altered = signed.clone();
            altered[at] ^= 1;
            assert_eq!(verify(&altered, id, b"orders"), None, "{at}");
        }
        Ok(())
    }
}
