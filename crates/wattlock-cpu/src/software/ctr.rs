//! Counter mode (SP 800-38A section 6.5): the whole block is one big-endian counter and wraps at 2^128.
//!
//! Encryption and decryption are the same. GCM uses it too: with 96-bit nonces and the lengths a request may have,
//! its 32-bit counter never reaches its end, so the two counters agree.

use zeroize::Zeroize;

use super::aes::{Aes, BLOCK, WIDE, WIDE_BYTES};

/// Encrypts `counter` and the counters after it.
#[inline]
pub fn keystream(aes: &Aes, counter: u128, out: &mut [u8; WIDE_BYTES]) {
    for (i, block) in out.chunks_exact_mut(BLOCK).enumerate() {
        block.copy_from_slice(&counter.wrapping_add(i as u128).to_be_bytes());
    }
    aes.encrypt_wide(out);
}

/// Adds the keystream that starts at `counter` to `data`.
pub fn apply(aes: &Aes, mut counter: u128, data: &mut [u8]) {
    let mut stream = [0; WIDE_BYTES];
    for chunk in data.chunks_mut(WIDE_BYTES) {
        keystream(aes, counter, &mut stream);
        add(chunk, &stream);
        counter = counter.wrapping_add(WIDE as u128);
    }
    stream.zeroize();
}

/// Adds `stream` to `data`, as far as the shorter of both goes.
#[inline]
pub fn add(data: &mut [u8], stream: &[u8]) {
    for (byte, key) in data.iter_mut().zip(stream) {
        *byte ^= key;
    }
}
