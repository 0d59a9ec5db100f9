//! Keys of ML-KEM-768 as they are read: PKCS#8 with a seed, with an expanded key, or with both, which must agree
//! (RFC 9935), and `SubjectPublicKeyInfo`. Lengths must be DER's own, and nothing may be left over.

use std::ffi::c_int;

use super::encode::{ALGORITHM, BIT_STRING, INTEGER, JUST_SEED, OCTET_STRING, SEQUENCE};
use super::key::{Held, Parts};
use super::{Form, Plain};
use crate::arg::Callback;
use crate::entries::codec::{self, Decoder};
use crate::error::{Reason, raise};
use crate::params::Table;
use crate::provider::Provider;
use crate::sys::{OSSL_DISPATCH, id};

/// Values in DER, one behind the other.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The content of the next value, if it has this tag and the shortest form of its length.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (len, rest) = match self.0.strip_prefix(&[tag])? {
            [len @ 0..=0x7f, rest @ ..] => (usize::from(*len), rest),
            [0x81, len @ 0x80..=0xff, rest @ ..] => (usize::from(*len), rest),
            [0x82, high @ 1..=0xff, low, rest @ ..] => (usize::from(u16::from_be_bytes([*high, *low])), rest),
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some(content)
    }

    /// The content of a value that is all there is.
    fn only(mut self, tag: u8) -> Option<&'a [u8]> {
        let content = self.take(tag)?;
        self.0.is_empty().then_some(content)
    }
}

/// What of PKCS#8 is the key's, if it is one of ours: `version`, `AlgorithmIdentifier`, key; attributes and, in version 1,
/// the public key may follow (RFC 5958), which say nothing that the key does not.
fn private_key(der: &[u8]) -> Option<&[u8]> {
    const ATTRIBUTES: u8 = 0xa0;
    const PUBLIC_KEY: u8 = 0x81;
    const OBJECT: u8 = 0x06;
    const SET: u8 = 0x31;
    let mut all = Der(Der(der).only(SEQUENCE)?);
    let version = all.take(INTEGER)?;
    all.0 = all.0.strip_prefix(ALGORITHM)?;
    let key = all.take(OCTET_STRING)?;
    let mut attributes = Der(all.take(ATTRIBUTES).unwrap_or(&[]));
    while !attributes.0.is_empty() {
        let mut one = Der(attributes.take(SEQUENCE)?);
        one.take(OBJECT)?;
        one.only(SET)?;
    }
    if version == [1] {
        let _ = all.take(PUBLIC_KEY);
    }
    (all.0.is_empty() && matches!(version, [0 | 1])).then_some(key)
}

/// The choice `ML-KEM-768-PrivateKey`.
fn chosen(provider: &Provider, key: &[u8]) -> Option<Parts> {
    match *key.first()? {
        JUST_SEED => Parts::of_given_seed(provider, Der(key).only(JUST_SEED)?),
        OCTET_STRING => Parts::of_private::<Plain>(provider, Der(key).only(OCTET_STRING)?),
        _ => {
            let mut both = Der(Der(key).only(SEQUENCE)?);
            let (seed, expanded) = (both.take(OCTET_STRING)?, both.only(OCTET_STRING)?);
            let parts = Parts::of_given_seed(provider, seed)?;
            parts.is_private(expanded).then_some(parts)
        }
    }
}

/// A private key.
pub struct Private;

impl Decoder for Private {
    type Key = Held<Plain>;
    const NAME: &'static std::ffi::CStr = Plain::NAME;
    const SELECTION: c_int = id::SELECT_PRIVATE_KEY;

    fn decode(provider: &'static Provider, der: &[u8]) -> Option<Held<Plain>> {
        let key = private_key(der)?;
        let parts = chosen(provider, key);
        if parts.is_none() {
            raise(Reason::InvalidKey);
        }
        Some(Held::with(provider, Some(parts?)))
    }

    fn export(key: &Held<Plain>, callback: &Callback) -> c_int {
        key.tell(id::SELECT_KEYPAIR, callback)
    }
}

/// A public key.
pub struct Public;

impl Decoder for Public {
    type Key = Held<Plain>;
    const NAME: &'static std::ffi::CStr = Plain::NAME;
    const SELECTION: c_int = id::SELECT_PUBLIC_KEY;

    fn decode(provider: &'static Provider, der: &[u8]) -> Option<Held<Plain>> {
        let bits = Der(Der(der).only(SEQUENCE)?.strip_prefix(ALGORITHM)?).only(BIT_STRING)?;
        let parts = Parts::of_public::<Plain>(bits.strip_prefix(&[0])?)?;
        Some(Held::with(provider, Some(parts)))
    }

    fn export(key: &Held<Plain>, callback: &Callback) -> c_int {
        key.tell(id::SELECT_KEYPAIR, callback)
    }
}

/// The tables of [`super::ALGORITHMS`].
pub static PRIVATE: Table<OSSL_DISPATCH, 6> = codec::decoder::<Private>();
pub static PUBLIC: Table<OSSL_DISPATCH, 6> = codec::decoder::<Public>();
