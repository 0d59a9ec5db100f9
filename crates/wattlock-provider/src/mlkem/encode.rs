//! Keys of ML-KEM-768 as they are written: PKCS#8 (`PrivateKeyInfo`) and `SubjectPublicKeyInfo` by RFC 9935, in DER and in
//! PEM, and as text for people. As OpenSSL 3.5 by default, a private key is written with its seed if that is known.

use std::ffi::c_int;
use std::fmt::Write;

use zeroize::Zeroizing;

use super::key::{Held, Parts};
use super::{PRIVATE, PUBLIC, Plain, SEED};
use crate::child::base64;
use crate::entries::codec::{self, Encoder};
use crate::params::Table;
use crate::sys::{OSSL_DISPATCH, id};

/// `AlgorithmIdentifier` of id-alg-ml-kem-768, 2.16.840.1.101.3.4.4.2, which has no parameters.
pub const ALGORITHM: &[u8] = &[0x30, 0x0b, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x04, 0x02];

/// Tags.
pub const SEQUENCE: u8 = 0x30;
pub const INTEGER: u8 = 0x02;
pub const BIT_STRING: u8 = 0x03;
pub const OCTET_STRING: u8 = 0x04;
/// `[0] IMPLICIT OCTET STRING`: the choice of a seed alone.
pub const JUST_SEED: u8 = 0x80;

/// A value of a tag around these bytes; all of ours have fewer than 65,536.
fn value(tag: u8, parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let mut all = Zeroizing::new(Vec::with_capacity(len + 4));
    all.push(tag);
    match len {
        0..0x80 => all.push(len as u8),
        0x80..0x100 => all.extend([0x81, len as u8]),
        _ => all.extend([0x82, (len >> 8) as u8, len as u8]),
    }
    parts.iter().for_each(|part| all.extend_from_slice(part));
    all
}

fn public_der(parts: &Parts) -> Zeroizing<Vec<u8>> {
    value(SEQUENCE, &[ALGORITHM, &value(BIT_STRING, &[&[0], parts.public()])])
}

fn private_der(parts: &Parts) -> Option<Zeroizing<Vec<u8>>> {
    let expanded = value(OCTET_STRING, &[&parts.private_bytes()?]);
    let key = match parts.seed() {
        Some(seed) => value(SEQUENCE, &[&value(OCTET_STRING, &[seed]), &expanded]),
        None => expanded,
    };
    Some(value(SEQUENCE, &[&value(INTEGER, &[&[0]]), ALGORITHM, &value(OCTET_STRING, &[&key])]))
}

/// PEM (RFC 7468), 64 characters in a line.
fn pem(der: &[u8], label: &str) -> Zeroizing<Vec<u8>> {
    let most = der.len().div_ceil(48) * 65 + 2 * label.len() + 40;
    let mut all = Zeroizing::new(Vec::with_capacity(most));
    all.extend(format!("-----BEGIN {label}-----\n").bytes());
    for line in der.chunks(48) {
        all.extend_from_slice(&base64(line));
        all.push(b'\n');
    }
    all.extend(format!("-----END {label}-----\n").bytes());
    all
}

/// As OpenSSL prints it: 15 bytes in a line.
fn text(parts: &Parts, private: bool) -> Option<Zeroizing<Vec<u8>>> {
    let most = 128 + (SEED + PRIVATE + PUBLIC) * 3 + (SEED + PRIVATE + PUBLIC) / 15 * 6;
    let mut all = Zeroizing::new(String::with_capacity(most));
    let expanded = if private { Some(parts.private_bytes()?) } else { None };
    let _ = writeln!(all, "ML-KEM-768 {}-Key:", if private { "Private" } else { "Public" });
    let seed = parts.seed().filter(|_| private);
    let dk = expanded.as_ref().map(|bytes| &bytes[..]);
    for (name, bytes) in [("seed", seed), ("dk", dk), ("ek", Some(parts.public()))] {
        let Some(bytes) = bytes else { continue };
        let _ = write!(all, "{name}:");
        for (at, byte) in bytes.iter().enumerate() {
            let _ = write!(all, "{}{byte:02x}", if at % 15 == 0 { "\n    " } else { "" });
            all.push_str(if at + 1 < bytes.len() { ":" } else { "\n" });
        }
    }
    Some(Zeroizing::new(std::mem::take(&mut *all).into_bytes()))
}

/// A private key, in PEM or not.
pub struct Private<const PEM: bool>;

impl<const PEM: bool> Encoder for Private<PEM> {
    type Key = Held<Plain>;
    const SELECTION: c_int = id::SELECT_PRIVATE_KEY;

    fn encode(key: &Held<Plain>, _: c_int) -> Option<Zeroizing<Vec<u8>>> {
        let der = private_der(key.parts()?)?;
        Some(if PEM { pem(&der, "PRIVATE KEY") } else { der })
    }
}

/// A public key, in PEM or not.
pub struct Public<const PEM: bool>;

impl<const PEM: bool> Encoder for Public<PEM> {
    type Key = Held<Plain>;
    const SELECTION: c_int = id::SELECT_PUBLIC_KEY;

    fn encode(key: &Held<Plain>, _: c_int) -> Option<Zeroizing<Vec<u8>>> {
        let der = public_der(key.parts()?);
        Some(if PEM { pem(&der, "PUBLIC KEY") } else { der })
    }
}

/// Text.
pub struct Text;

impl Encoder for Text {
    type Key = Held<Plain>;
    const SELECTION: c_int = id::SELECT_KEYPAIR;

    fn encode(key: &Held<Plain>, selection: c_int) -> Option<Zeroizing<Vec<u8>>> {
        text(key.parts()?, selection & id::SELECT_PRIVATE_KEY != 0)
    }
}

/// The tables of [`super::ALGORITHMS`].
pub static PRIVATE_DER: Table<OSSL_DISPATCH, 7> = codec::encoder::<Private<false>>();
pub static PRIVATE_PEM: Table<OSSL_DISPATCH, 7> = codec::encoder::<Private<true>>();
pub static PUBLIC_DER: Table<OSSL_DISPATCH, 7> = codec::encoder::<Public<false>>();
pub static PUBLIC_PEM: Table<OSSL_DISPATCH, 7> = codec::encoder::<Public<true>>();
pub static TEXT: Table<OSSL_DISPATCH, 7> = codec::encoder::<Text>();
