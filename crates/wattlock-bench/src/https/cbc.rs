//! A cipher suite of TLS 1.2 with CBC, MAC before encryption, for the client: rustls has none, and a server's records
//! under such a suite are what is to be measured.
//!
//! The client decrypts what it gets and checks its padding and length only: it is light, and it trusts everybody. What
//! it sends has a MAC. Not for anything but measuring servers on loopback.

use std::sync::LazyLock;

use rustls::crypto::KeyExchangeAlgorithm;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, InboundPlainMessage, KeyBlockShape, MessageDecrypter, MessageEncrypter,
    OutboundOpaqueMessage, OutboundPlainMessage, PrefixedPayload, Tls12AeadAlgorithm,
    UnsupportedOperationError,
};
use rustls::{
    CipherSuite, CipherSuiteCommon, ConnectionTrafficSecrets, Error, SupportedCipherSuite, Tls12CipherSuite,
};
use wattlock_core::{Algorithm, Data, Engine, Key, Kind, Request};
use wattlock_cpu::instruction::Instruction;

const BLOCK: usize = 16;
const MAC: usize = 20;

/// ECDHE-RSA-AES128-SHA.
pub fn suite() -> Option<SupportedCipherSuite> {
    static SUITE: LazyLock<Option<Tls12CipherSuite>> = LazyLock::new(|| {
        let SupportedCipherSuite::Tls12(like) = TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 else { return None };
        Some(Tls12CipherSuite {
            common: CipherSuiteCommon {
                suite: CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA,
                hash_provider: like.common.hash_provider,
                confidentiality_limit: u64::MAX,
            },
            prf_provider: like.prf_provider,
            kx: KeyExchangeAlgorithm::ECDHE,
            sign: like.sign,
            aead_alg: &CbcSha1,
        })
    });
    SUITE.as_ref().map(SupportedCipherSuite::Tls12)
}

static ENGINE: LazyLock<Instruction> = LazyLock::new(Instruction::new);

/// RFC 5246 section 6.3: MAC keys come first, then those of the cipher, which rustls takes for fixed vectors.
struct CbcSha1;

impl Tls12AeadAlgorithm for CbcSha1 {
    fn encrypter(&self, mac: AeadKey, key: &[u8], _: &[u8]) -> Box<dyn MessageEncrypter> {
        Box::new(Records { mac: Key::symmetric(Algorithm::Secret, mac.as_ref()), ..Records::new(key) })
    }

    fn decrypter(&self, _: AeadKey, key: &[u8]) -> Box<dyn MessageDecrypter> {
        Box::new(Records::new(key))
    }

    fn key_block_shape(&self) -> KeyBlockShape {
        KeyBlockShape { enc_key_len: MAC, fixed_iv_len: BLOCK, explicit_nonce_len: 0 }
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

struct Records {
    key: Result<Key, wattlock_core::Error>,
    mac: Result<Key, wattlock_core::Error>,
}

impl Records {
    fn new(key: &[u8]) -> Records {
        Records {
            key: Key::symmetric(Algorithm::Aes128Cbc, key),
            mac: Err(wattlock_core::Error::Invalid("no key")),
        }
    }

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
        if payload.len() < 3 * BLOCK || !payload.len().is_multiple_of(BLOCK) {
            return Err(Error::DecryptError);
        }
        let (vector, body) = payload.split_at_mut(BLOCK);
        self.apply(Kind::Aes128CbcDecrypt, vector, body).ok_or(Error::DecryptError)?;
        let padding = usize::from(body[body.len() - 1]);
        let end = payload.len().checked_sub(padding + 1 + MAC).filter(|end| *end >= BLOCK);
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
        let mut mac = [0; MAC];
        let data = Data::Apart { from: &covered, to: &mut mac };
        let mac_key = self.mac.as_ref().map_err(|_| failed())?;
        ENGINE.execute(&mut Request::new(Kind::HmacSha1, mac_key, data)).map_err(|_| failed())?;
        // The vector need only vary: no attacker chooses what this client sends.
        let mut body = mac[..BLOCK].to_vec();
        body.extend(&covered[13..]);
        body.extend(mac);
        let padding = BLOCK - body.len() % BLOCK;
        body.resize(body.len() + padding, (padding - 1) as u8);
        let (vector, text) = body.split_at_mut(BLOCK);
        self.apply(Kind::Aes128CbcEncrypt, vector, text).ok_or_else(failed)?;
        let mut payload = PrefixedPayload::with_capacity(body.len());
        payload.extend_from_slice(&body);
        Ok(OutboundOpaqueMessage::new(message.typ, message.version, payload))
    }

    fn encrypted_payload_len(&self, len: usize) -> usize {
        BLOCK + (len + MAC + BLOCK) / BLOCK * BLOCK
    }
}
