//! AES in the modes that our own kernels do: CTR, XTS and CBC, by the widest AES instructions there are.
//!
//! One algorithm per mode ([`generic`]), thin files per instruction set ([`vaes512`], [`vaes256`], [`aes_ni`]), and
//! AWS-LC where the CPU has none of them. CBC encryption is a serial chain that no width helps: `aes_ni` does it.
//! Nothing here knows a request; lengths are checked by whoever builds the [`Span`].
//!
//! Constant time: round keys come from the AES instructions themselves, addresses depend on lengths and on the
//! counter (which travels in the clear), never on key or data.

#[cfg(target_arch = "x86_64")]
mod aes_ni;
#[cfg(target_arch = "x86_64")]
mod generic;
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

use wattlock_core::Error;

use super::span::Span;
use super::sys::aes::{DecryptKey, EncryptKey};
use crate::detect::Cpu;

/// A block of nonce: counter block, initialisation vector or tweak.
pub(super) type Block = [u8; 16];

/// What the kernels of this CPU are called, for people.
pub(super) fn kernel_name(cpu: &Cpu) -> &'static str {
    wide::Isa::best(cpu).map_or("AWS-LC", |isa| isa.name())
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

    /// Encrypts or decrypts; the counter is all 128 bits of `first`, big-endian, and wraps at 2^128.
    #[inline]
    pub(super) fn apply(&self, first: &Block, data: Span<'_>) {
        match self {
            CtrKey::Wide(key) => key.apply(u128::from_be_bytes(*first), data),
            CtrKey::Library(key) => key.ctr(first, data),
        }
    }
}

/// An expanded AES-CBC key.
///
/// Down to the kernels everything is inlined: a [`Span`] handed on by address is written word by word and read two words
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

    /// One data unit of at least one block.
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

mod narrow_xts;
