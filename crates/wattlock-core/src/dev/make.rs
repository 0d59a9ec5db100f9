//! Makes keys and requests. Symmetric inputs come from the suite's seed; elliptic-curve and ML-KEM key pairs come from
//! the reference's generator, because this crate has no arithmetic.

use std::ops::DerefMut;
use std::sync::Arc;

use super::case::{CANARY, Suite};
use crate::error::Error;
use crate::kat::{Expected, known_answers};
use crate::key::{Algorithm, Curve, EcKey, Key, ML_KEM_768_PUBLIC, Material, RsaKey};
use crate::kind::{Family, Group, Kind, NonceLen};
use crate::request::OwnedRequest;

/// Bytes beyond the result that a request's output buffer has, so that stray writes show.
const SLACK: usize = 9;

/// Key lengths for HMAC, PRF and HKDF: about every hash's block and output.
const SECRETS: &[usize] = &[0, 1, 16, 20, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129, 131, 200, 1000];

impl Suite<'_> {
    /// A key of `algorithm`.
    pub(super) fn key(&self, algorithm: Algorithm) -> Arc<Key> {
        if algorithm == Algorithm::None {
            return Arc::new(Key::none_owned());
        }
        if let Some(curve) = algorithm.curve() {
            return Arc::new(ec_key(curve, self.pair(curve)));
        }
        if algorithm == Algorithm::MlKem768 {
            return Arc::new(ml_kem_key(&self.ml_kem()));
        }
        if algorithm.modulus_len().is_some() {
            let signer = |kind: &&Kind| kind.info().algorithm == algorithm;
            let kind = Kind::ALL.iter().find(signer).copied().unwrap_or(Kind::Rsa2048Private);
            return known_answers(kind).swap_remove(0).request.key.clone();
        }
        let len = algorithm.key_len().unwrap_or_else(|| *self.random.pick(SECRETS));
        self.symmetric(algorithm, &self.random.bytes(len))
    }

    pub(super) fn symmetric(&self, algorithm: Algorithm, bytes: &[u8]) -> Arc<Key> {
        Arc::new(Key::symmetric(algorithm, bytes).expect("the suite chooses lengths that the algorithm has"))
    }

    /// A fresh pair of a curve.
    pub(super) fn pair(&self, curve: Curve) -> EcKey {
        if curve == Curve::X25519 {
            return self.x25519(self.random.bytes(32));
        }
        let kind = if curve == Curve::P256 { Kind::P256Generate } else { Kind::P384Generate };
        let room = curve.scalar_len() + curve.public_len();
        let request = OwnedRequest::new(kind, Arc::new(Key::none_owned()), Vec::new(), room);
        let mut scalar = self.reference_bytes(&request);
        let public = scalar.split_off(curve.scalar_len());
        EcKey { scalar, public }
    }

    /// A fresh ML-KEM-768 decapsulation key, as bytes.
    pub(super) fn ml_kem(&self) -> Vec<u8> {
        let none = Arc::new(Key::none_owned());
        let mut request = OwnedRequest::new(Kind::MlKem768Generate, none, Vec::new(), 2400);
        request.nonce = self.random.bytes(64);
        self.reference_bytes(&request)
    }

    /// What the reference encapsulates to a decapsulation key's other half: the ciphertext.
    pub(super) fn encapsulated(&self, key: &[u8]) -> Vec<u8> {
        let none = Arc::new(Key::none_owned());
        let peer = key[ML_KEM_768_PUBLIC].to_vec();
        let mut request = OwnedRequest::new(Kind::MlKem768Encapsulate, none, peer, 1120);
        request.nonce = self.random.bytes(32);
        let mut ciphertext = self.reference_bytes(&request);
        ciphertext.truncate(1088);
        ciphertext
    }

    /// The X25519 pair of a scalar: its public key is the product with the base point 9 (RFC 7748 section 6.1).
    pub(super) fn x25519(&self, scalar: Vec<u8>) -> EcKey {
        let mut base = vec![0; 32];
        base[0] = 9;
        let key = ec_key(Curve::X25519, EcKey { scalar: scalar.clone(), public: base.clone() });
        let request = OwnedRequest::new(Kind::X25519Derive, Arc::new(key), base, 32);
        EcKey { scalar, public: self.reference_bytes(&request) }
    }

    /// A request with `input`, everything else random, and an output buffer with some slack where the kind knows how
    /// long its output is.
    pub(super) fn request(&self, kind: Kind, key: Arc<Key>, input: Vec<u8>) -> OwnedRequest {
        let info = kind.info();
        let room = match info.family {
            Family::Cipher | Family::Seal | Family::Open => input.len() + SLACK,
            Family::Derive => 1 + self.random.below(200),
            Family::Compress => kind.output_bound(input.len()).unwrap_or(0),
            _ => info.output.unwrap_or(0) + SLACK,
        };
        let mut request = OwnedRequest::new(kind, key, input, room);
        request.output.fill(CANARY);
        request.nonce = match info.nonce {
            NonceLen::Exactly(len) => self.random.bytes(len),
            NonceLen::Any => self.random.bytes(*self.random.pick(SECRETS)),
        };
        if info.group == Group::Hkdf {
            request.input.clear();
            request.aad = self.random.bytes(self.random.below(300));
        }
        request.mark = self.random.next();
        request
    }

    /// `bytes` at the end of one of the arena's buffers, behind `at` canaries.
    pub(super) fn placed(&self, at: usize, bytes: &[u8]) -> Box<dyn DerefMut<Target = [u8]>> {
        let mut buffer = self.harness.arena.buffer(at + bytes.len());
        buffer[..at].fill(CANARY);
        buffer[at..].copy_from_slice(bytes);
        buffer
    }

    /// `request`, a seal, turned into the open of what the reference sealed, with the plaintext.
    pub(super) fn opened(&self, open: Kind, request: &OwnedRequest) -> (OwnedRequest, Vec<u8>) {
        let Expected::Bytes { output, tag } = self.reference_answer(request) else {
            self.fail(open, "seal", "the reference does not seal")
        };
        let mut opened = OwnedRequest::new(open, request.key.clone(), output, request.input.len() + SLACK);
        opened.output.fill(CANARY);
        opened.nonce = request.nonce.clone();
        opened.aad = request.aad.clone();
        opened.tag.copy_from_slice(&tag);
        (opened, request.input.clone())
    }
}

/// The kind that seals what `open` opens.
pub(super) fn sealing(open: Kind) -> Kind {
    open.info().undoes.expect("every open kind has its seal kind")
}

/// An elliptic-curve key whose parts have the right lengths.
pub(super) fn ec_key(curve: Curve, key: EcKey) -> Key {
    Key::ec(curve, key).expect("the suite chooses lengths that the curve has")
}

/// A decapsulation key of the right length.
pub(super) fn ml_kem_key(bytes: &[u8]) -> Key {
    Key::ml_kem_768(bytes).expect("the suite's keys have 2,400 bytes")
}

/// The parts of an RSA key.
pub(super) fn rsa_parts(key: &Key) -> Option<RsaKey> {
    match key.material() {
        Material::Rsa(parts) => Some((**parts).clone()),
        _ => None,
    }
}

/// Whether `result` says that the engine does not do this kind.
pub(super) fn unsupported<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Unsupported))
}
