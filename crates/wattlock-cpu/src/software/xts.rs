//! XTS (IEEE 1619-2018) with ciphertext stealing, in place. Data of less than one block, which a validated request
//! never has, is left as it is.

use wattlock_core::Error;
use zeroize::Zeroize;

use super::aes::{Aes, BLOCK, WIDE_BYTES};
use super::ctr::add;

/// The two keys of one XTS key. They wipe themselves.
pub struct Xts {
    data: Aes,
    tweak: Aes,
}

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Plaintext to ciphertext.
    Encrypt,
    /// Ciphertext to plaintext.
    Decrypt,
}

/// Next tweak: times x in GF(2^128), least significant byte first (section 5.2).
fn next(tweak: u128) -> u128 {
    (tweak << 1) ^ ((tweak >> 127) * 0x87)
}

impl Xts {
    /// Expands a double key, data key first.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the halves are no AES keys.
    pub fn new(key: &[u8]) -> Result<Xts, Error> {
        let (data, tweak) = key.split_at(key.len() / 2);
        Ok(Xts { data: Aes::new(data)?, tweak: Aes::new(tweak)? })
    }

    /// Encrypts or decrypts one data unit.
    pub fn apply(&self, direction: Direction, tweak: &[u8; BLOCK], data: &mut [u8]) {
        let mut first = *tweak;
        self.tweak.encrypt_block(&mut first);
        let mut tweak = u128::from_le_bytes(first);
        let tail = data.len() % BLOCK;
        let whole = data.len() / BLOCK;
        // With a tail, the last whole block waits for it.
        let plain_run = if tail == 0 { whole } else { whole.saturating_sub(1) };
        let (run, rest) = data.split_at_mut(plain_run * BLOCK);
        for chunk in run.chunks_mut(WIDE_BYTES) {
            tweak = self.apply_run(direction, tweak, chunk);
        }
        if rest.len() > BLOCK {
            self.steal(direction, tweak, rest);
        }
        first.zeroize();
    }

    /// Whole blocks, as many as fit side by side; returns the tweak after theirs.
    fn apply_run(&self, direction: Direction, mut tweak: u128, chunk: &mut [u8]) -> u128 {
        let mut tweaks = [0; WIDE_BYTES];
        for block in tweaks.chunks_exact_mut(BLOCK).take(chunk.len() / BLOCK) {
            block.copy_from_slice(&tweak.to_le_bytes());
            tweak = next(tweak);
        }
        let mut wide = tweaks;
        add(&mut wide, chunk);
        match direction {
            Direction::Encrypt => self.data.encrypt_wide(&mut wide),
            Direction::Decrypt => self.data.decrypt_wide(&mut wide),
        }
        add(&mut wide, &tweaks);
        chunk.copy_from_slice(&wide[..chunk.len()]);
        wide.zeroize();
        tweaks.zeroize();
        tweak
    }

    /// The last whole block and the tail after it (section 5.3.2). Decryption meets the two tweaks in the opposite
    /// order, because the stolen bytes sit under the later one.
    fn steal(&self, direction: Direction, tweak: u128, rest: &mut [u8]) {
        let (block, tail) = rest.split_at_mut(BLOCK);
        let (earlier, later) = match direction {
            Direction::Encrypt => (tweak, next(tweak)),
            Direction::Decrypt => (next(tweak), tweak),
        };
        self.apply_run(direction, earlier, block);
        for (lent, byte) in block.iter_mut().zip(tail) {
            std::mem::swap(lent, byte);
        }
        self.apply_run(direction, later, block);
    }
}
