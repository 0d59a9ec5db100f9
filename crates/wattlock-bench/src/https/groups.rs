//! Key exchange for a client that must cost little: every exchange uses the same private key.
//!
//! For the NIST curves that key is 1. Then the public key is the curve's generator and the shared secret is the x
//! coordinate of the server's public key: nothing is computed. What the server does is the same as for any other key.
//! X25519 clamps private keys (RFC 7748, section 5), so there one multiplication remains. X25519MLKEM768
//! (draft-ietf-tls-ecdhe-mlkem) adds a decapsulation to it.
//!
//! Such a client keeps nothing secret. It is for measuring servers on loopback and for nothing else.

use std::sync::LazyLock;

use aws_lc_rs::agreement::{Algorithm, ECDH_P256, ECDH_P384, PrivateKey, UnparsedPublicKey, X25519, agree};
use aws_lc_rs::kem::{AlgorithmId, DecapsulationKey, ML_KEM_768};
use clap::ValueEnum;
use rustls::crypto::{ActiveKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::{Error, NamedGroup, PeerMisbehaved, ProtocolVersion};

/// A group to offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// Curve25519
    X25519,
    /// secp256r1
    P256,
    /// secp384r1
    P384,
    /// ML-KEM-768 and Curve25519, of TLS 1.3
    #[value(name = "x25519mlkem768")]
    Hybrid,
}

impl Group {
    /// The group with its fixed key.
    pub fn fixed(self) -> &'static dyn SupportedKxGroup {
        match self {
            Group::X25519 => &*FIXED_X25519,
            Group::P256 => &*FIXED_P256,
            Group::P384 => &*FIXED_P384,
            Group::Hybrid => &*FIXED_HYBRID,
        }
    }
}

static FIXED_X25519: LazyLock<Fixed> =
    LazyLock::new(|| Fixed::new(NamedGroup::X25519, &X25519, &[0x55; 32], None));
static FIXED_P256: LazyLock<Fixed> =
    LazyLock::new(|| Fixed::new(NamedGroup::secp256r1, &ECDH_P256, &one::<32>(), Some(32)));
static FIXED_P384: LazyLock<Fixed> =
    LazyLock::new(|| Fixed::new(NamedGroup::secp384r1, &ECDH_P384, &one::<48>(), Some(48)));
static FIXED_HYBRID: LazyLock<Hybrid> = LazyLock::new(Hybrid::new);

const fn one<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    bytes[N - 1] = 1;
    bytes
}

/// A group, its private key and its public key.
#[derive(Debug)]
struct Fixed {
    name: NamedGroup,
    algorithm: &'static Algorithm,
    private: PrivateKey,
    public: Vec<u8>,
    /// Bytes of a coordinate, where the private key is 1.
    coordinate: Option<usize>,
}

impl Fixed {
    fn new(
        name: NamedGroup,
        algorithm: &'static Algorithm,
        private: &[u8],
        coordinate: Option<usize>,
    ) -> Fixed {
        let private =
            PrivateKey::from_private_key(algorithm, private).expect("a constant in range is a private key");
        let public = private.compute_public_key().expect("a private key has a public key").as_ref().to_vec();
        Fixed { name, algorithm, private, public, coordinate }
    }

    fn secret(&self, peer: &[u8]) -> Result<SharedSecret, Error> {
        let wrong = || Error::from(PeerMisbehaved::InvalidKeyShare);
        match self.coordinate {
            Some(bytes) if peer.len() == 1 + 2 * bytes && peer[0] == 4 => {
                Ok(SharedSecret::from(&peer[1..=bytes]))
            }
            Some(_) => Err(wrong()),
            None => {
                let peer = UnparsedPublicKey::new(self.algorithm, peer);
                agree(&self.private, peer, wrong(), |secret| Ok(SharedSecret::from(secret)))
            }
        }
    }
}

impl SupportedKxGroup for Fixed {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let started: &'static Fixed = match self.name {
            NamedGroup::secp256r1 => &FIXED_P256,
            NamedGroup::secp384r1 => &FIXED_P384,
            _ => &FIXED_X25519,
        };
        Ok(Box::new(Started(started)))
    }

    fn name(&self) -> NamedGroup {
        self.name
    }
}

struct Started(&'static Fixed);

impl ActiveKeyExchange for Started {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        self.0.secret(peer)
    }

    fn pub_key(&self) -> &[u8] {
        &self.0.public
    }

    fn group(&self) -> NamedGroup {
        self.0.name
    }
}

/// Bytes of a ciphertext of ML-KEM-768 (FIPS 203, table 3).
const CIPHERTEXT: usize = 1088;

/// X25519MLKEM768: the encapsulation key stands before the public key of X25519, and so do the two secrets.
#[derive(Debug)]
struct Hybrid {
    private: DecapsulationKey<AlgorithmId>,
    public: Vec<u8>,
}

impl Hybrid {
    fn new() -> Hybrid {
        let private = DecapsulationKey::generate(&ML_KEM_768).expect("a key needs randomness alone");
        let public = private.encapsulation_key().and_then(|key| key.key_bytes());
        let public = public.expect("a decapsulation key has an encapsulation key");
        Hybrid { private, public: [public.as_ref(), &FIXED_X25519.public].concat() }
    }

    fn secret(&self, peer: &[u8]) -> Result<SharedSecret, Error> {
        let wrong = || Error::from(PeerMisbehaved::InvalidKeyShare);
        let (ciphertext, point) = peer.split_at_checked(CIPHERTEXT).ok_or_else(wrong)?;
        let first = self.private.decapsulate(ciphertext.into()).map_err(|_| wrong())?;
        let second = FIXED_X25519.secret(point)?;
        Ok(SharedSecret::from([first.as_ref(), second.secret_bytes()].concat()))
    }
}

impl SupportedKxGroup for Hybrid {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        Ok(Box::new(StartedHybrid))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        version == ProtocolVersion::TLSv1_3
    }
}

struct StartedHybrid;

impl ActiveKeyExchange for StartedHybrid {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        FIXED_HYBRID.secret(peer)
    }

    /// As browsers do: a server without the hybrid takes this share, and nobody asks twice.
    fn hybrid_component(&self) -> Option<(NamedGroup, &[u8])> {
        Some((NamedGroup::X25519, &FIXED_X25519.public))
    }

    fn complete_hybrid_component(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        FIXED_X25519.secret(peer)
    }

    fn pub_key(&self) -> &[u8] {
        &FIXED_HYBRID.public
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hybrids_halves_are_those_of_its_peer() {
        let theirs = rustls::crypto::aws_lc_rs::kx_group::X25519MLKEM768;
        let server = theirs.start_and_complete(&FIXED_HYBRID.public).unwrap();
        let started = FIXED_HYBRID.start().unwrap();
        assert_eq!((started.group(), started.pub_key()), (theirs.name(), &*FIXED_HYBRID.public));
        let ours = started.complete(&server.pub_key).unwrap();
        assert_eq!(ours.secret_bytes(), server.secret.secret_bytes());
    }

    #[test]
    fn the_hybrids_component_is_x25519_alone() {
        let started = FIXED_HYBRID.start().unwrap();
        let (group, share) = started.hybrid_component().unwrap();
        assert_eq!(group, NamedGroup::X25519);
        let server = rustls::crypto::aws_lc_rs::kx_group::X25519.start_and_complete(share).unwrap();
        let ours = started.complete_hybrid_component(&server.pub_key).unwrap();
        assert_eq!(ours.secret_bytes(), server.secret.secret_bytes());
    }

    #[test]
    fn both_sides_get_the_same_secret() {
        for fixed in [&*FIXED_X25519, &*FIXED_P256, &*FIXED_P384] {
            let theirs = PrivateKey::generate(fixed.algorithm).unwrap();
            let their_public = theirs.compute_public_key().unwrap();
            let ours = fixed.secret(their_public.as_ref()).unwrap();
            let peer = UnparsedPublicKey::new(fixed.algorithm, &fixed.public);
            let secret = agree(&theirs, peer, (), |secret| Ok(secret.to_vec())).unwrap();
            assert_eq!(ours.secret_bytes(), secret, "{:?}", fixed.name);
        }
    }

    #[test]
    fn a_share_of_another_form_is_refused() {
        assert!(FIXED_P256.secret(&[4; 64]).is_err() && FIXED_P256.secret(&[2; 65]).is_err());
        assert!(FIXED_X25519.secret(&[1; 31]).is_err());
        for length in [0, 31, CIPHERTEXT, CIPHERTEXT + 31, CIPHERTEXT + 33] {
            assert!(FIXED_HYBRID.secret(&vec![1; length]).is_err(), "{length}");
        }
    }
}
