//! AES in the modes that our own kernels do: GCM, CTR, XTS and CBC, by the widest AES instructions there are.
//!
//! One algorithm per mode ([`generic`], and for GCM [`gcm`] and [`ghash`]), thin files per instruction set ([`vaes512`],
//! [`vaes256`], and [`aes_ni`] for all modes but GCM), and AWS-LC where the CPU has none of them. CBC encryption is a serial
//! chain that no width helps: `aes_ni` does it, and [`chains`] several messages side by side for the engine `lanes`.
//! Nothing here knows a request; lengths are checked by the code that builds the [`Span`].
//!
//! Constant time: round keys come from the AES instructions themselves, addresses depend on lengths and on the
//! counter (which travels in the clear), never on key or data.

#[cfg(target_arch = "x86_64")]
mod aes_ni;
#[cfg(target_arch = "x86_64")]
pub(crate) mod chains;
#[cfg(target_arch = "x86_64")]
mod gcm;
#[cfg(target_arch = "x86_64")]
mod generic;
#[cfg(target_arch = "x86_64")]
mod ghash;
#[cfg(target_arch = "x86_64")]
mod pages;
#[cfg(target_arch = "x86_64")]
mod schedule;
#[cfg(target_arch = "x86_64")]
mod vaes256;
#[cfg(target_arch = "x86_64")]
mod vaes512;
#[cfg(target_arch = "x86_64")]
#[path = "wide.rs"]
mod wide;
#[cfg(not(target_arch = "x86_64"))]
#[path = "wide_absent.rs"]
mod wide;

use std::sync::Arc;

use subtle::ConstantTimeEq;
use wattlock_core::Error;
use zeroize::{Zeroize, Zeroizing};

use super::span::Span;
use super::sys::aead::{AeadKey, Cipher};
use super::sys::aes::{DecryptKey, EncryptKey};
use super::sys::cipher::GcmState;
use crate::detect::Cpu;

/// A block of nonce: counter block, initialisation vector or tweak.
pub(super) type Block = [u8; 16];

/// What the kernels of this CPU are called, for people: those of GCM, and those of the other modes.
pub(super) fn kernel_names(cpu: &Cpu) -> [&'static str; 2] {
    const LIBRARY: &str = "AWS-LC";
    let gcm = wide::GcmIsa::best(cpu).map_or(LIBRARY, |isa| isa.name());
    [gcm, wide::Isa::best(cpu).map_or(LIBRARY, |isa| isa.name())]
}

/// An expanded AES-CTR key.
pub(super) enum CtrKey {
    Wide(wide::CtrKey),
    Library(EncryptKey),
}

impl CtrKey {
    pub(super) fn new(cpu: &Cpu, key: &[u8]) -> Result<CtrKey, Error> {
        match wide::Isa::best(cpu) {
            Some(isa) => wide::CtrKey::new(isa, key).map(CtrKey::Wide),
            None => EncryptKey::new(key).map(CtrKey::Library),
        }
    }

    /// Goes over to another key.
    ///
    /// # Errors
    /// As [`CtrKey::new`]; nothing has changed.
    pub(super) fn rekey(&mut self, key: &[u8]) -> Result<(), Error> {
        match self {
            CtrKey::Wide(wide) => wide.rekey(key),
            CtrKey::Library(library) => {
                *library = EncryptKey::new(key)?;
                Ok(())
            }
        }
    }

    /// Encrypts or decrypts. The counter is that of the first block and wraps at 2^128.
    #[inline(always)]
    pub(super) fn apply(&self, counter: u128, data: Span<'_>) {
        match self {
            CtrKey::Wide(key) => key.apply(counter, data),
            CtrKey::Library(key) => key.ctr(&counter.to_be_bytes(), data),
        }
    }
}

/// An expanded AES-CBC key.
///
/// Down to the kernels everything is inlined, here as for the other keys: a [`Span`] handed on by address is written word by word and read two words
/// at once, and such a read waits until the writes have left the core. Where pieces wait for each other, that is when
/// the piece before is done; a piece of one block then took twice as long.
pub(super) enum CbcKey {
    Wide(wide::CbcKey),
    Library { encrypt: EncryptKey, decrypt: DecryptKey },
}

impl CbcKey {
    pub(super) fn new(cpu: &Cpu, key: &[u8]) -> Result<CbcKey, Error> {
        match wide::Isa::best(cpu) {
            Some(isa) => wide::CbcKey::new(isa, key).map(CbcKey::Wide),
            None => Ok(CbcKey::Library { encrypt: EncryptKey::new(key)?, decrypt: DecryptKey::new(key)? }),
        }
    }

    /// Encrypts whole blocks. `chain` is the block before the first and becomes the last ciphertext.
    #[inline(always)]
    pub(super) fn encrypt(&self, chain: &mut Block, data: Span<'_>) -> Result<(), Error> {
        whole_blocks(&data)?;
        match self {
            CbcKey::Wide(key) => key.encrypt(chain, data),
            CbcKey::Library { encrypt, .. } => encrypt.cbc(chain, data),
        }
        Ok(())
    }

    /// Decrypts whole blocks. `chain` is as for encryption.
    #[inline(always)]
    pub(super) fn decrypt(&self, chain: &mut Block, data: Span<'_>) -> Result<(), Error> {
        whole_blocks(&data)?;
        match self {
            CbcKey::Wide(key) => key.decrypt(chain, data),
            CbcKey::Library { decrypt, .. } => decrypt.cbc(chain, data),
        }
        Ok(())
    }
}

#[inline]
fn whole_blocks(data: &Span<'_>) -> Result<(), Error> {
    if data.len().is_multiple_of(16) { Ok(()) } else { Err(Error::Invalid("input length")) }
}

/// An expanded XTS key pair.
pub(super) enum XtsKey {
    Wide(Box<wide::XtsKey>),
    Library(Box<narrow_xts::Key>),
}

impl XtsKey {
    /// `key` is the data key followed by the tweak key.
    pub(super) fn new(cpu: &Cpu, key: &[u8]) -> Result<XtsKey, Error> {
        let (data, tweak) = key.split_at(key.len() / 2);
        match wide::Isa::best(cpu) {
            Some(isa) => Ok(XtsKey::Wide(Box::new(wide::XtsKey::new(isa, data, tweak)?))),
            None => Ok(XtsKey::Library(Box::new(narrow_xts::Key::new(data, tweak)?))),
        }
    }

    /// Makes the first tweak of a data unit, which is secret.
    #[inline(always)]
    pub(super) fn begin(&self, nonce: &Block, tweak: &mut Block) {
        match self {
            XtsKey::Wide(key) => key.begin(nonce, tweak),
            XtsKey::Library(key) => key.begin(nonce, tweak),
        }
    }

    /// One data unit of at least one block, from its first tweak.
    #[inline(always)]
    pub(super) fn apply(&self, tweak: &Block, data: Span<'_>, encrypt: bool) -> Result<(), Error> {
        if data.len() < 16 {
            return Err(Error::Invalid("input length"));
        }
        match self {
            XtsKey::Wide(key) => key.apply(tweak, data, encrypt),
            XtsKey::Library(key) => key.apply(tweak, data, encrypt),
        }
        Ok(())
    }
}

/// Bytes of a GCM nonce that comes with a whole message, and of a tag.
const NONCE: usize = 12;
const TAG: usize = 16;

/// AES-GCM in AWS-LC, by the length of the key.
fn library_gcm(key: &[u8]) -> Result<Cipher, Error> {
    match key.len() {
        16 => Ok(Cipher::Aes128Gcm),
        24 => Ok(Cipher::Aes192Gcm),
        32 => Ok(Cipher::Aes256Gcm),
        _ => Err(Error::Invalid("key length")),
    }
}

/// An expanded AES-GCM key.
#[allow(clippy::large_enum_variant, reason = "it lies in a key's slot, which is a box already")]
pub(super) enum GcmKey {
    Wide(wide::GcmKey),
    Library(AeadKey),
}

impl GcmKey {
    pub(super) fn new(cpu: &Cpu, key: &[u8]) -> Result<GcmKey, Error> {
        match wide::GcmIsa::best(cpu) {
            Some(isa) => wide::GcmKey::new(isa, key).map(GcmKey::Wide),
            None => AeadKey::new(library_gcm(key)?, key).map(GcmKey::Library),
        }
    }

    /// Encrypts and authenticates.
    ///
    /// # Errors
    /// As [`AeadKey::seal`]; our own kernels know none.
    #[inline]
    pub(super) fn seal(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        data: Span<'_>,
        tag: &mut [u8; TAG],
    ) -> Result<(), Error> {
        match self {
            GcmKey::Wide(key) => {
                *tag = key.apply(true, nonce, aad, &data);
                Ok(())
            }
            GcmKey::Library(key) => key.seal(nonce, aad, data, tag),
        }
    }

    /// Verifies and decrypts. Both are done in one pass, and what was written is wiped if the tag is wrong: until this
    /// returns, the output is read by no other code.
    ///
    /// # Errors
    /// [`Error::Authentication`], the output wiped.
    #[inline]
    pub(super) fn open(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        data: Span<'_>,
        tag: &[u8; TAG],
    ) -> Result<(), Error> {
        match self {
            GcmKey::Wide(key) => {
                // The right tag for a wrong ciphertext is a forgery ready to use.
                let right = Zeroizing::new(key.apply(false, nonce, aad, &data));
                if bool::from(right.ct_eq(tag)) {
                    return Ok(());
                }
                data.gathered().zeroize();
                Err(Error::Authentication)
            }
            GcmKey::Library(key) => key.open(nonce, aad, data, tag),
        }
    }
}

/// An AES-GCM key in one direction, and a message in progress. The caller keeps the order of the calls; another order
/// gives errors or wrong tags, nothing worse.
pub(super) enum GcmMessage {
    Wide { key: Arc<wide::GcmKey>, seal: bool, message: wide::GcmMessage },
    Library { state: GcmState, seal: bool },
}

impl GcmMessage {
    pub(super) fn new(cpu: &Cpu, key: &[u8], seal: bool) -> Result<GcmMessage, Error> {
        Ok(match wide::GcmIsa::best(cpu) {
            Some(isa) => {
                let key = Arc::new(wide::GcmKey::new(isa, key)?);
                GcmMessage::Wide { key, seal, message: wide::GcmMessage::default() }
            }
            None => GcmMessage::Library { state: GcmState::new(library_gcm(key)?, key, seal)?, seal },
        })
    }

    /// Begins a message; `nonce` must not be empty.
    #[inline]
    pub(super) fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        match self {
            GcmMessage::Wide { key, message, .. } => {
                message.start(key, nonce);
                Ok(())
            }
            GcmMessage::Library { state, .. } => state.start(nonce),
        }
    }

    /// Takes associated data.
    #[inline]
    pub(super) fn aad(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match self {
            GcmMessage::Wide { key, message, .. } => {
                message.aad(key, bytes);
                Ok(())
            }
            GcmMessage::Library { state, .. } => state.aad(bytes),
        }
    }

    /// Encrypts or decrypts, and takes the ciphertext into the tag.
    #[inline]
    pub(super) fn update(&mut self, data: Span<'_>) -> Result<(), Error> {
        match self {
            GcmMessage::Wide { key, seal, message } => {
                message.update(key, *seal, data);
                Ok(())
            }
            GcmMessage::Library { state, .. } => state.update(data),
        }
    }

    /// Ends the message: writes the leftmost bytes of its tag, 4 to 16, or compares them in constant time.
    ///
    /// # Errors
    /// [`Error::Authentication`] if they differ.
    #[inline]
    pub(super) fn finish(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        match self {
            GcmMessage::Wide { key, seal, message } => {
                let right = Zeroizing::new(message.tag(key));
                let right = right.get(..tag.len()).ok_or(Error::Invalid("tag length"))?;
                if *seal {
                    tag.copy_from_slice(right);
                    return Ok(());
                }
                if bool::from(right.ct_eq(tag)) { Ok(()) } else { Err(Error::Authentication) }
            }
            GcmMessage::Library { state, seal: true } => state.tag(tag),
            GcmMessage::Library { state, seal: false } => state.verify(tag),
        }
    }

    /// The same key in the midst of the same message.
    pub(super) fn try_clone(&self) -> Result<GcmMessage, Error> {
        Ok(match self {
            GcmMessage::Wide { key, seal, message } => {
                GcmMessage::Wide { key: key.clone(), seal: *seal, message: message.clone() }
            }
            GcmMessage::Library { state, seal } => {
                GcmMessage::Library { state: state.try_clone()?, seal: *seal }
            }
        })
    }
}

mod narrow_xts;
