//! Cipher suites of TLS 1.2 with CBC, MAC before encryption, for the client: rustls has none, and a server's records
//! under such a suite are what is to be measured.
//!
//! The client decrypts what it gets and checks its padding and length only: it is light, and it trusts everybody. What
//! it sends has a MAC. Not for anything but measuring servers on loopback.

use std::sync::LazyLock;

use rustls::CipherSuite as Suite;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, InboundPlainMessage, KeyBlockShape, MessageDecrypter, MessageEncrypter,
    OutboundOpaqueMessage, OutboundPlainMessage, PrefixedPayload, Tls12AeadAlgorithm,
    UnsupportedOperationError,
};
use rustls::crypto::tls12::Prf;
use rustls::crypto::{ActiveKeyExchange, KeyExchangeAlgorithm, aws_lc_rs};
use rustls::{CipherSuiteCommon, ConnectionTrafficSecrets, Error, SupportedCipherSuite, Tls12CipherSuite};
use wattlock_core::{Algorithm, Data, Engine, Key, Kind, Request};
use wattlock_cpu::instruction::Instruction;

const BLOCK: usize = 16;

/// Each suite, the one of rustls that has its signature and its hash, its cipher and its MAC.
const SUITES: [(Suite, Suite, Cipher, Mac); 8] = {
    use Suite as S;
    let (rsa, rsa_384) = (S::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, S::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384);
    let (ecdsa, ecdsa_384) =
        (S::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, S::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384);
    [
        (S::TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, rsa, AES_128, SHA_1),
        (S::TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA, rsa, AES_256, SHA_1),
        (S::TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256, rsa, AES_128, SHA_256),
        (S::TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384, rsa_384, AES_256, SHA_384),
        (S::TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, ecdsa, AES_128, SHA_1),
        (S::TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, ecdsa, AES_256, SHA_1),
        (S::TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256, ecdsa, AES_128, SHA_256),
        (S::TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384, ecdsa_384, AES_256, SHA_384),
    ]
};

#[derive(Debug, Clone, Copy)]
struct Cipher {
    algorithm: Algorithm,
    encrypt: Kind,
    decrypt: Kind,
    key: usize,
}

const AES_128: Cipher = Cipher {
    algorithm: Algorithm::Aes128Cbc,
    encrypt: Kind::Aes128CbcEncrypt,
    decrypt: Kind::Aes128CbcDecrypt,
    key: 16,
};
const AES_256: Cipher = Cipher {
    algorithm: Algorithm::Aes256Cbc,
    encrypt: Kind::Aes256CbcEncrypt,
    decrypt: Kind::Aes256CbcDecrypt,
    key: 32,
};

#[derive(Debug, Clone, Copy)]
struct Mac {
    kind: Kind,
    len: usize,
}

const SHA_1: Mac = Mac { kind: Kind::HmacSha1, len: 20 };
const SHA_256: Mac = Mac { kind: Kind::HmacSha256, len: 32 };
const SHA_384: Mac = Mac { kind: Kind::HmacSha384, len: 48 };

/// The suite, if it is one of these.
pub fn suite(wanted: Suite) -> Option<SupportedCipherSuite> {
    static MADE: LazyLock<Vec<&'static Tls12CipherSuite>> =
        LazyLock::new(|| SUITES.into_iter().filter_map(made).collect());
    MADE.iter().find(|one| one.common.suite == wanted).copied().map(SupportedCipherSuite::Tls12)
}

/// Lives as long as the program, as rustls demands.
fn made((suite, like, cipher, mac): (Suite, Suite, Cipher, Mac)) -> Option<&'static Tls12CipherSuite> {
    let like = aws_lc_rs::ALL_CIPHER_SUITES.iter().find(|one| one.suite() == like)?;
    let SupportedCipherSuite::Tls12(like) = like else { return None };
    let cbc: &'static Cbc = Box::leak(Box::new(Cbc { cipher, mac, prf: like.prf_provider }));
    Some(Box::leak(Box::new(Tls12CipherSuite {
        common: CipherSuiteCommon {
            suite,
            hash_provider: like.common.hash_provider,
            confidentiality_limit: u64::MAX,
        },
        prf_provider: cbc,
        kx: KeyExchangeAlgorithm::ECDHE,
        sign: like.sign,
        aead_alg: cbc,
    })))
}

static ENGINE: LazyLock<Instruction> = LazyLock::new(Instruction::new);

/// RFC 5246 section 6.3: the keys of MACs come first, then those of the cipher. rustls cuts the block as AEADs need it:
/// keys first, then fixed vectors, in whose place the keys of MACs are put.
struct Cbc {
    cipher: Cipher,
    mac: Mac,
    prf: &'static dyn Prf,
}

impl Prf for Cbc {
    fn for_key_exchange(
        &self,
        output: &mut [u8; 48],
        exchange: Box<dyn ActiveKeyExchange>,
        peer: &[u8],
        label: &[u8],
        seed: &[u8],
    ) -> Result<(), Error> {
        self.prf.for_key_exchange(output, exchange, peer, label, seed)
    }

    fn for_secret(&self, output: &mut [u8], secret: &[u8], label: &[u8], seed: &[u8]) {
        self.prf.for_secret(output, secret, label, seed);
        if label == b"key expansion" {
            output.rotate_left(2 * self.mac.len);
        }
    }
}

impl Tls12AeadAlgorithm for Cbc {
    fn encrypter(&self, key: AeadKey, mac: &[u8], _: &[u8]) -> Box<dyn MessageEncrypter> {
        Box::new(self.records(key.as_ref(), mac))
    }

    fn decrypter(&self, key: AeadKey, mac: &[u8]) -> Box<dyn MessageDecrypter> {
        Box::new(self.records(key.as_ref(), mac))
    }

    fn key_block_shape(&self) -> KeyBlockShape {
        KeyBlockShape { enc_key_len: self.cipher.key, fixed_iv_len: self.mac.len, explicit_nonce_len: 0 }
    }

    fn extract_keys(
        &self,
        _: AeadKey,
        _: &[u8],
        _: &[u8],
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        Err(UnsupportedOperationError)
    }
}

impl Cbc {
    fn records(&self, key: &[u8], mac: &[u8]) -> Records {
        Records {
            cipher: self.cipher,
            mac: self.mac,
            key: Key::symmetric(self.cipher.algorithm, key),
            mac_key: Key::symmetric(Algorithm::Secret, mac),
        }
    }
}

struct Records {
    cipher: Cipher,
    mac: Mac,
    key: Result<Key, wattlock_core::Error>,
    mac_key: Result<Key, wattlock_core::Error>,
}

impl Records {
    /// Works on whole blocks in place.
    fn apply(&self, kind: Kind, vector: &[u8], data: &mut [u8]) -> Option<()> {
        let request = Request::new(kind, self.key.as_ref().ok()?, Data::InPlace(data));
        ENGINE.execute(&mut Request { nonce: vector, ..request }).ok().map(drop)
    }
}

impl MessageDecrypter for Records {
    fn decrypt<'a>(
        &mut self,
        mut message: InboundOpaqueMessage<'a>,
        _: u64,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        let payload = &mut message.payload;
        if payload.len() < 2 * BLOCK + self.mac.len / BLOCK * BLOCK || !payload.len().is_multiple_of(BLOCK) {
            return Err(Error::DecryptError);
        }
        let (vector, body) = payload.split_at_mut(BLOCK);
        self.apply(self.cipher.decrypt, vector, body).ok_or(Error::DecryptError)?;
        let padding = usize::from(body[body.len() - 1]);
        let end = payload.len().checked_sub(padding + 1 + self.mac.len).filter(|end| *end >= BLOCK);
        Ok(message.into_plain_message_range(BLOCK..end.ok_or(Error::DecryptError)?))
    }
}

impl MessageEncrypter for Records {
    fn encrypt(
        &mut self,
        message: OutboundPlainMessage<'_>,
        number: u64,
    ) -> Result<OutboundOpaqueMessage, Error> {
        let (len, failed) = (message.payload.len(), || Error::EncryptError);
        let mut covered = number.to_be_bytes().to_vec();
        covered.extend([message.typ.into(), 3, 3]);
        covered.extend((len as u16).to_be_bytes());
        message.payload.copy_to_vec(&mut covered);
        let mut mac = vec![0; self.mac.len];
        let data = Data::Apart { from: &covered, to: &mut mac };
        let mac_key = self.mac_key.as_ref().map_err(|_| failed())?;
        ENGINE.execute(&mut Request::new(self.mac.kind, mac_key, data)).map_err(|_| failed())?;
        // The vector need only vary: no attacker chooses what this client sends.
        let mut body = mac[..BLOCK].to_vec();
        body.extend(&covered[13..]);
        body.extend(mac);
        let padding = BLOCK - body.len() % BLOCK;
        body.resize(body.len() + padding, (padding - 1) as u8);
        let (vector, text) = body.split_at_mut(BLOCK);
        self.apply(self.cipher.encrypt, vector, text).ok_or_else(failed)?;
        let mut payload = PrefixedPayload::with_capacity(body.len());
        payload.extend_from_slice(&body);
        Ok(OutboundOpaqueMessage::new(message.typ, message.version, payload))
    }

    fn encrypted_payload_len(&self, len: usize) -> usize {
        BLOCK + (len + self.mac.len + BLOCK) / BLOCK * BLOCK
    }
}
