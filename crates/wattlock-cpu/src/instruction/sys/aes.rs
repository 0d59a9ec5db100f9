//! AES keys in AWS-LC's own form, which depends on what it finds in the CPU: never mix them with ours.

use std::ffi::c_uint;

use wattlock_core::Error;

use super::super::aes::Block;
use super::super::span::Span;
use super::raw;

/// The one flag that both directions share.
const ENCRYPT: i32 = 1;
const DECRYPT: i32 = 0;

/// Round keys for encryption. Wiped on drop.
pub(in super::super) struct EncryptKey(raw::AES_KEY);

/// Round keys for decryption. Wiped on drop.
pub(in super::super) struct DecryptKey(raw::AES_KEY);

impl EncryptKey {
    /// # Errors
    /// [`Error::Invalid`] if the key is not 16, 24 or 32 bytes.
    pub(in super::super) fn new(key: &[u8]) -> Result<EncryptKey, Error> {
        let mut keys = EncryptKey(raw::AES_KEY::default());
        let bits = bits(key)?;
        // SAFETY: reads `bits` / 8 bytes, which the slice has, and fills the structure.
        let code = unsafe { raw::AES_set_encrypt_key(key.as_ptr(), bits, &raw mut keys.0) };
        if code == 0 { Ok(keys) } else { Err(Error::Invalid("key length")) }
    }

    /// CTR with a 128-bit big-endian counter.
    pub(in super::super) fn ctr(&self, first: &Block, data: Span<'_>) {
        let (mut counter, mut unused, mut used) = (*first, [0u8; 16], 0 as c_uint);
        // SAFETY: the span's sides are valid for its length and equal or disjoint; the key was filled by `new` and is
        // only read; the other three are our own.
        unsafe {
            raw::AES_ctr128_encrypt(
                data.from(),
                data.to(),
                data.len(),
                &raw const self.0,
                counter.as_mut_ptr(),
                unused.as_mut_ptr(),
                &raw mut used,
            );
        }
        zeroize::Zeroize::zeroize(&mut unused);
    }

    /// CBC encryption; bytes after the last whole block are left alone. `chain` is the block before the first and becomes
    /// the last ciphertext.
    pub(in super::super) fn cbc(&self, chain: &mut Block, data: Span<'_>) {
        cbc(&self.0, chain, &data, ENCRYPT);
    }

    /// One block.
    pub(in super::super) fn block(&self, block: Block) -> Block {
        let mut out = [0; 16];
        // SAFETY: both are 16 bytes; the key was filled by `new`.
        unsafe { raw::AES_encrypt(block.as_ptr(), out.as_mut_ptr(), &raw const self.0) };
        out
    }
}

impl DecryptKey {
    /// # Errors
    /// [`Error::Invalid`] if the key is not 16, 24 or 32 bytes.
    pub(in super::super) fn new(key: &[u8]) -> Result<DecryptKey, Error> {
        let mut keys = DecryptKey(raw::AES_KEY::default());
        let bits = bits(key)?;
        // SAFETY: as for encryption.
        let code = unsafe { raw::AES_set_decrypt_key(key.as_ptr(), bits, &raw mut keys.0) };
        if code == 0 { Ok(keys) } else { Err(Error::Invalid("key length")) }
    }

    /// CBC decryption; bytes after the last whole block are left alone. `chain` is as for encryption.
    pub(in super::super) fn cbc(&self, chain: &mut Block, data: Span<'_>) {
        cbc(&self.0, chain, &data, DECRYPT);
    }

    /// One block.
    pub(in super::super) fn block(&self, block: Block) -> Block {
        let mut out = [0; 16];
        // SAFETY: both are 16 bytes; the key was filled by `new`.
        unsafe { raw::AES_decrypt(block.as_ptr(), out.as_mut_ptr(), &raw const self.0) };
        out
    }
}

fn cbc(key: &raw::AES_KEY, chain: &mut Block, data: &Span<'_>, direction: i32) {
    let whole = data.len() & !15;
    if whole == 0 {
        return;
    }
    // SAFETY: the span's sides are valid for its length, here cut to whole blocks, and equal or disjoint; the key was
    // filled for this direction and is only read.
    unsafe { raw::AES_cbc_encrypt(data.from(), data.to(), whole, key, chain.as_mut_ptr(), direction) }
}

fn bits(key: &[u8]) -> Result<c_uint, Error> {
    match key.len() {
        16 => Ok(128),
        24 => Ok(192),
        32 => Ok(256),
        _ => Err(Error::Invalid("key length")),
    }
}

macro_rules! wiped {
    ($($key:ident)*) => {$(
        impl Drop for $key {
            fn drop(&mut self) {
                // SAFETY: writes over exactly this plain structure, which has no destructor of its own.
                unsafe { raw::OPENSSL_cleanse((&raw mut self.0).cast(), size_of::<raw::AES_KEY>()) }
            }
        }
    )*};
}
wiped!(EncryptKey DecryptKey);
