//! What SHA-1 and the SHA-2 family share (FIPS 180-4 sections 5 and 6): blocks, padding, a running state.
//!
//! Running states wipe themselves: HMAC feeds them keys.

use zeroize::Zeroize;

/// Longest block of any of them, in bytes.
pub const BLOCK_MAX: usize = 128;
/// Longest digest.
pub const OUT_MAX: usize = 64;

/// A compression function and its state.
pub trait Core: Copy + Zeroize {
    /// Bytes of a block.
    const BLOCK: usize;
    /// Bytes of a digest.
    const OUT: usize;
    /// Bytes of the message length at the end of the padding.
    const LENGTH: usize;
    /// The state before any block.
    const INITIAL: Self;

    /// Takes one block of exactly [`Core::BLOCK`] bytes.
    fn compress(&mut self, block: &[u8]);
    /// Writes the state, big-endian, to as many bytes as `out` has.
    fn write(&self, out: &mut [u8]);
}

/// A running hash.
#[derive(Clone)]
pub struct Hasher<C: Core> {
    core: C,
    buffer: [u8; BLOCK_MAX],
    buffered: usize,
    bytes: u128,
}

impl<C: Core> Drop for Hasher<C> {
    fn drop(&mut self) {
        self.core.zeroize();
        self.buffer.zeroize();
    }
}

impl<C: Core> Hasher<C> {
    /// Of nothing yet.
    pub fn new() -> Hasher<C> {
        Hasher { core: C::INITIAL, buffer: [0; BLOCK_MAX], buffered: 0, bytes: 0 }
    }

    /// Takes more of the message.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len() as u128;
        if self.buffered > 0 {
            let (fill, rest) = bytes.split_at(bytes.len().min(C::BLOCK - self.buffered));
            self.buffer[self.buffered..self.buffered + fill.len()].copy_from_slice(fill);
            self.buffered += fill.len();
            bytes = rest;
            if self.buffered < C::BLOCK {
                return;
            }
            self.core.compress(&self.buffer[..C::BLOCK]);
        }
        let blocks = bytes.chunks_exact(C::BLOCK);
        let tail = blocks.remainder();
        blocks.for_each(|block| self.core.compress(block));
        self.buffer[..tail.len()].copy_from_slice(tail);
        self.buffered = tail.len();
    }

    /// Pads, and writes the digest to `out`, which has at most [`Core::OUT`] bytes; what does not fit is cut off.
    pub fn finish(mut self, out: &mut [u8]) {
        let bits = self.bytes * 8;
        self.buffer[self.buffered] = 0x80;
        self.buffer[self.buffered + 1..C::BLOCK].fill(0);
        if self.buffered + 1 + C::LENGTH > C::BLOCK {
            self.core.compress(&self.buffer[..C::BLOCK]);
            self.buffer.fill(0);
        }
        self.buffer[C::BLOCK - C::LENGTH..C::BLOCK].copy_from_slice(&bits.to_be_bytes()[16 - C::LENGTH..]);
        self.core.compress(&self.buffer[..C::BLOCK]);
        self.core.write(out);
    }
}

/// Hashes `bytes` into `out`.
pub fn digest<C: Core>(bytes: &[u8], out: &mut [u8]) {
    let mut hasher = Hasher::<C>::new();
    hasher.update(bytes);
    hasher.finish(out);
}
