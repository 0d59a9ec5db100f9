//! Keys for our own kernels, and the one place that picks the instruction set.
//!
//! A key holds the witness it was made with; calling its kernel is therefore sound wherever the key goes.

use wattlock_core::Error;

use super::super::span::Span;
use super::generic::FEW;
use super::schedule::Schedule;
use super::{Block, aes_ni, vaes256, vaes512};
use crate::detect::{AesNi, Cpu, Vaes256, Vaes512};

/// The instruction sets we have kernels for, each with its witness.
#[derive(Clone, Copy)]
pub(super) enum Isa {
    Vaes512(Vaes512, AesNi),
    Vaes256(Vaes256, AesNi),
    AesNi(AesNi),
}

impl Isa {
    /// The widest this CPU has.
    pub(super) fn best(cpu: &Cpu) -> Option<Isa> {
        let narrow = cpu.aes_ni?;
        Some(match (cpu.vaes512, cpu.vaes256) {
            (Some(wide), _) => Isa::Vaes512(wide, narrow),
            (None, Some(wide)) => Isa::Vaes256(wide, narrow),
            (None, None) => Isa::AesNi(narrow),
        })
    }

    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Isa::Vaes512(..) => "512-bit VAES (vaes, vpclmulqdq, avx512f, avx512bw, avx512vl)",
            Isa::Vaes256(..) => "256-bit VAES (vaes, vpclmulqdq, avx2)",
            Isa::AesNi(_) => "AES-NI (aes, pclmulqdq, ssse3, sse4.1)",
        }
    }

    fn narrow(self) -> AesNi {
        match self {
            Isa::Vaes512(_, narrow) | Isa::Vaes256(_, narrow) | Isa::AesNi(narrow) => narrow,
        }
    }
}

/// AES-CTR.
pub(in super::super) struct CtrKey {
    isa: Isa,
    keys: Schedule,
}

impl CtrKey {
    pub(super) fn new(isa: Isa, key: &[u8]) -> Result<CtrKey, Error> {
        Ok(CtrKey { isa, keys: aes_ni::expand(isa.narrow(), key)? })
    }

    #[inline]
    pub(super) fn apply(&self, counter: u128, data: Span<'_>) {
        match self.isa {
            Isa::Vaes512(proof, _) => vaes512::ctr(proof, &self.keys, counter, data),
            Isa::Vaes256(proof, _) => vaes256::ctr(proof, &self.keys, counter, data),
            Isa::AesNi(proof) => aes_ni::ctr(proof, &self.keys, counter, data),
        }
    }
}

/// AES-CBC.
pub(in super::super) struct CbcKey {
    isa: Isa,
    encrypt: Schedule,
    decrypt: Schedule,
}

impl CbcKey {
    pub(super) fn new(isa: Isa, key: &[u8]) -> Result<CbcKey, Error> {
        let encrypt = aes_ni::expand(isa.narrow(), key)?;
        Ok(CbcKey { isa, decrypt: aes_ni::invert(isa.narrow(), &encrypt), encrypt })
    }

    /// A chain, that no width helps.
    #[inline(always)]
    pub(super) fn encrypt(&self, chain: &mut Block, data: Span<'_>) {
        aes_ni::cbc_encrypt(self.isa.narrow(), &self.encrypt, chain, data);
    }

    #[inline(always)]
    pub(super) fn decrypt(&self, chain: &mut Block, data: Span<'_>) {
        if data.len() <= FEW {
            return aes_ni::cbc_decrypt_few(self.isa.narrow(), &self.decrypt, chain, data);
        }
        match self.isa {
            Isa::Vaes512(proof, _) => vaes512::cbc_decrypt(proof, &self.decrypt, chain, data),
            Isa::Vaes256(proof, _) => vaes256::cbc_decrypt(proof, &self.decrypt, chain, data),
            Isa::AesNi(proof) => aes_ni::cbc_decrypt(proof, &self.decrypt, chain, data),
        }
    }
}

/// AES-XTS.
pub(in super::super) struct XtsKey {
    isa: Isa,
    tweak: Schedule,
    encrypt: Schedule,
    decrypt: Schedule,
}

impl XtsKey {
    pub(super) fn new(isa: Isa, data: &[u8], tweak: &[u8]) -> Result<XtsKey, Error> {
        let encrypt = aes_ni::expand(isa.narrow(), data)?;
        let decrypt = aes_ni::invert(isa.narrow(), &encrypt);
        Ok(XtsKey { isa, tweak: aes_ni::expand(isa.narrow(), tweak)?, encrypt, decrypt })
    }

    pub(super) fn apply(&self, tweak: &Block, data: Span<'_>, encrypt: bool) {
        let keys = if encrypt { &self.encrypt } else { &self.decrypt };
        match self.isa {
            Isa::Vaes512(proof, _) => vaes512::xts(proof, &self.tweak, keys, encrypt, tweak, data),
            Isa::Vaes256(proof, _) => vaes256::xts(proof, &self.tweak, keys, encrypt, tweak, data),
            Isa::AesNi(proof) => aes_ni::xts(proof, &self.tweak, keys, encrypt, tweak, data),
        }
    }
}
