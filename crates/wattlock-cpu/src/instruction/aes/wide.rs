//! Keys for our own kernels, and the one place that picks the instruction set.
//!
//! A key holds the witness it was made with; calling its kernel is therefore sound wherever the key goes.

use wattlock_core::Error;

use super::super::span::Span;
use super::gcm::{self, Message};
use super::generic::FEW;
use super::ghash::Table;
use super::schedule::Schedule;
use super::{Block, aes_ni, vaes256, vaes512};
use crate::detect::{AesNi, Cpu, Vaes256, Vaes512};

/// The instruction sets we have kernels for, each with its witness.
#[derive(Clone, Copy)]
pub(crate) enum Isa {
    Vaes512(Vaes512, AesNi),
    Vaes256(Vaes256, AesNi),
    AesNi(AesNi),
}

impl Isa {
    /// The widest this CPU has.
    pub(super) fn best(cpu: &Cpu) -> Option<Isa> {
        let aes_ni = cpu.aes_ni?;
        Some(match (cpu.vaes512, cpu.vaes256) {
            (Some(wide), _) => Isa::Vaes512(wide, aes_ni),
            (None, Some(wide)) => Isa::Vaes256(wide, aes_ni),
            (None, None) => Isa::AesNi(aes_ni),
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

    fn aes_ni(self) -> AesNi {
        match self {
            Isa::Vaes512(_, aes_ni) | Isa::Vaes256(_, aes_ni) | Isa::AesNi(aes_ni) => aes_ni,
        }
    }
}

/// The instruction sets we have kernels for GCM with. With plain AES instructions AWS-LC does it.
#[derive(Clone, Copy)]
pub(super) enum GcmIsa {
    Vaes512(Vaes512, AesNi),
    Vaes256(Vaes256, AesNi),
}

impl GcmIsa {
    /// The widest this CPU has.
    pub(super) fn best(cpu: &Cpu) -> Option<GcmIsa> {
        match Isa::best(cpu)? {
            Isa::Vaes512(wide, aes_ni) => Some(GcmIsa::Vaes512(wide, aes_ni)),
            Isa::Vaes256(wide, aes_ni) => Some(GcmIsa::Vaes256(wide, aes_ni)),
            Isa::AesNi(_) => None,
        }
    }

    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            GcmIsa::Vaes512(wide, aes_ni) => Isa::Vaes512(wide, aes_ni).name(),
            GcmIsa::Vaes256(wide, aes_ni) => Isa::Vaes256(wide, aes_ni).name(),
        }
    }

    fn aes_ni(self) -> AesNi {
        match self {
            GcmIsa::Vaes512(_, aes_ni) | GcmIsa::Vaes256(_, aes_ni) => aes_ni,
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
        Ok(CtrKey { isa, keys: aes_ni::expand(isa.aes_ni(), key)? })
    }

    pub(super) fn rekey(&mut self, key: &[u8]) -> Result<(), Error> {
        aes_ni::expand_into(self.isa.aes_ni(), key, &mut self.keys)
    }

    #[inline(always)]
    pub(super) fn apply(&self, counter: u128, data: Span<'_>) {
        if data.len() <= FEW && counter as u64 <= u64::MAX - 4 {
            return aes_ni::ctr_few(self.isa.aes_ni(), &self.keys, counter, data);
        }
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
        let encrypt = aes_ni::expand(isa.aes_ni(), key)?;
        Ok(CbcKey { isa, decrypt: aes_ni::invert(isa.aes_ni(), &encrypt), encrypt })
    }

    /// Round keys of encryption.
    pub(super) fn encryption(&self) -> &Schedule {
        &self.encrypt
    }

    /// A chain, that no width helps.
    #[inline(always)]
    pub(super) fn encrypt(&self, chain: &mut Block, data: Span<'_>) {
        aes_ni::cbc_encrypt(self.isa.aes_ni(), &self.encrypt, chain, data);
    }

    #[inline(always)]
    pub(super) fn decrypt(&self, chain: &mut Block, data: Span<'_>) {
        if data.len() <= FEW {
            return aes_ni::cbc_decrypt_few(self.isa.aes_ni(), &self.decrypt, chain, data);
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
        let encrypt = aes_ni::expand(isa.aes_ni(), data)?;
        let decrypt = aes_ni::invert(isa.aes_ni(), &encrypt);
        Ok(XtsKey { isa, tweak: aes_ni::expand(isa.aes_ni(), tweak)?, encrypt, decrypt })
    }

    /// Makes the first tweak.
    #[inline(always)]
    pub(super) fn begin(&self, nonce: &Block, tweak: &mut Block) {
        aes_ni::encrypt_block(self.isa.aes_ni(), &self.tweak, nonce, tweak);
    }

    #[inline(always)]
    pub(super) fn apply(&self, tweak: &Block, data: Span<'_>, encrypt: bool) {
        let keys = if encrypt { &self.encrypt } else { &self.decrypt };
        if data.len() <= FEW {
            return aes_ni::xts_few(self.isa.aes_ni(), keys, encrypt, tweak, data);
        }
        match self.isa {
            Isa::Vaes512(proof, _) => vaes512::xts(proof, keys, encrypt, tweak, data),
            Isa::Vaes256(proof, _) => vaes256::xts(proof, keys, encrypt, tweak, data),
            Isa::AesNi(proof) => aes_ni::xts(proof, keys, encrypt, tweak, data),
        }
    }
}

/// AES-GCM.
pub(in super::super) struct GcmKey {
    isa: GcmIsa,
    keys: Schedule,
    table: Table,
}

impl GcmKey {
    pub(super) fn new(isa: GcmIsa, key: &[u8]) -> Result<GcmKey, Error> {
        let keys = aes_ni::expand(isa.aes_ni(), key)?;
        let table = match isa {
            GcmIsa::Vaes512(proof, _) => vaes512::gcm_table(proof, &keys),
            GcmIsa::Vaes256(proof, _) => vaes256::gcm_table(proof, &keys),
        };
        Ok(GcmKey { isa, keys, table })
    }

    /// Encrypts or decrypts a whole message and returns its tag.
    #[inline]
    pub(super) fn apply(&self, seal: bool, nonce: &[u8; 12], aad: &[u8], data: &Span<'_>) -> Block {
        let (keys, table) = (&self.keys, &self.table);
        let tag = match self.isa {
            GcmIsa::Vaes512(proof, _) => vaes512::gcm(proof, keys, table, seal, nonce, aad, data),
            GcmIsa::Vaes256(proof, _) => vaes256::gcm(proof, keys, table, seal, nonce, aad, data),
        };
        tag.to_be_bytes()
    }
}

/// An AES-GCM message in pieces. The caller keeps the order of the calls; another order gives wrong tags, nothing worse.
#[derive(Clone, Default)]
pub(in super::super) struct GcmMessage {
    state: Message,
    /// Bytes of associated data and of data.
    lengths: (u64, u64),
}

impl GcmMessage {
    /// Begins a message; `nonce` must not be empty.
    #[inline]
    pub(super) fn start(&mut self, key: &GcmKey, nonce: &[u8]) {
        let proof = key.isa.aes_ni();
        let (state, mut block) = (&mut self.state, [0; 16]);
        (state.sum, state.used, self.lengths) = (0, 0, (0, 0));
        if let Ok(nonce) = <&[u8; 12]>::try_from(nonce) {
            block[..12].copy_from_slice(nonce);
            state.counter = u128::from_be_bytes(block) | 1;
        } else {
            // SP 800-38D section 7.1 step 2.
            GcmMessage::hash(key, state, nonce);
            state.counter = aes_ni::gcm_ended(proof, &key.table, state, gcm::lengths(0, nonce.len() as u64));
            (state.sum, state.used) = (0, 0);
        }
        state.mask = aes_ni::encrypted(proof, &key.keys, state.counter);
        state.counter = gcm::advanced(state.counter, 1);
    }

    /// Takes associated data.
    #[inline]
    pub(super) fn aad(&mut self, key: &GcmKey, bytes: &[u8]) {
        self.lengths.0 += bytes.len() as u64;
        GcmMessage::hash(key, &mut self.state, bytes);
    }

    #[inline]
    fn hash(key: &GcmKey, state: &mut Message, bytes: &[u8]) {
        match key.isa {
            GcmIsa::Vaes512(proof, _) => vaes512::gcm_associated(proof, &key.table, state, bytes),
            GcmIsa::Vaes256(proof, _) => vaes256::gcm_associated(proof, &key.table, state, bytes),
        }
    }

    /// Encrypts or decrypts, and takes the ciphertext into the tag.
    #[inline]
    pub(super) fn update(&mut self, key: &GcmKey, seal: bool, data: Span<'_>) {
        let (keys, table, state) = (&key.keys, &key.table, &mut self.state);
        if data.len() == 0 {
            return;
        }
        if self.lengths.1 == 0 {
            aes_ni::gcm_pad(key.isa.aes_ni(), table, state);
        }
        self.lengths.1 += data.len() as u64;
        match key.isa {
            GcmIsa::Vaes512(proof, _) => vaes512::gcm_more(proof, keys, table, seal, state, data),
            GcmIsa::Vaes256(proof, _) => vaes256::gcm_more(proof, keys, table, seal, state, data),
        }
    }

    /// The tag.
    #[inline]
    pub(super) fn tag(&self, key: &GcmKey) -> Block {
        let last = gcm::lengths(self.lengths.0, self.lengths.1);
        let sum = aes_ni::gcm_ended(key.isa.aes_ni(), &key.table, &self.state, last);
        (sum ^ self.state.mask).to_be_bytes()
    }
}
