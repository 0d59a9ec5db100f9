//! Cipher block chaining without padding (SP 800-38A section 6.2), on whole blocks, in place.
//!
//! Encryption is a chain: each block costs as much as [`WIDE`](super::aes::WIDE) blocks of decryption. A trailing
//! partial block, which a validated request never has, is left as it is.

use zeroize::Zeroize;

use super::aes::{Aes, BLOCK, WIDE_BYTES};
use super::ctr::add;

/// Encrypts whole blocks.
pub fn encrypt(aes: &Aes, iv: &[u8; BLOCK], data: &mut [u8]) {
    // The other positions of the wide state stay whatever they became: they are not read.
    let mut wide = [0; WIDE_BYTES];
    wide[..BLOCK].copy_from_slice(iv);
    for block in data.chunks_exact_mut(BLOCK) {
        add(&mut wide[..BLOCK], block);
        aes.encrypt_wide(&mut wide);
        block.copy_from_slice(&wide[..BLOCK]);
    }
    wide.zeroize();
}

/// Decrypts whole blocks.
pub fn decrypt(aes: &Aes, iv: &[u8; BLOCK], data: &mut [u8]) {
    let whole = data.len() - data.len() % BLOCK;
    let mut previous = *iv;
    let mut plain = [0; WIDE_BYTES];
    for chunk in data[..whole].chunks_mut(WIDE_BYTES) {
        let len = chunk.len();
        plain[..len].copy_from_slice(chunk);
        aes.decrypt_wide(&mut plain);
        add(&mut plain[..BLOCK], &previous);
        add(&mut plain[BLOCK..len], &chunk[..len - BLOCK]);
        previous.copy_from_slice(&chunk[len - BLOCK..]);
        chunk.copy_from_slice(&plain[..len]);
    }
    plain.zeroize();
}
