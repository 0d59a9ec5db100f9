//! Where a message in counter mode is when it comes in pieces, for the streams of either engine. Knows no key.

use wattlock_core::Data;

/// Bytes of a block.
const BLOCK: usize = 16;

/// The next block's counter, and how much of that block's keystream is used. Public; what is left of the block is not kept
/// between pieces, but made again.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counter {
    next: u128,
    used: usize,
}

impl Counter {
    pub(crate) fn new(nonce: [u8; BLOCK]) -> Counter {
        Counter { next: u128::from_be_bytes(nonce), used: 0 }
    }

    /// The next block's; it wraps at 2^128.
    #[inline]
    pub(crate) fn next(&self) -> u128 {
        self.next
    }

    /// Whether a part of that block is used.
    #[inline]
    pub(crate) fn is_within(&self) -> bool {
        self.used > 0
    }

    /// So many bytes of keystream more are used.
    #[inline]
    pub(crate) fn count(&mut self, bytes: usize) {
        let sum = self.used + bytes;
        self.next = self.next.wrapping_add((sum / BLOCK) as u128);
        self.used = sum % BLOCK;
    }

    /// Adds what is left of the block, whose keystream this is, to as much of `data` as it covers, and returns what is behind.
    pub(crate) fn use_up<'d>(&mut self, keystream: &[u8; BLOCK], data: Data<'d>) -> Data<'d> {
        let len = data.len().min(BLOCK - self.used);
        let left = &keystream[self.used..self.used + len];
        self.count(len);
        match data {
            Data::InPlace(buffer) => {
                let (head, rest) = buffer.split_at_mut(len);
                head.iter_mut().zip(left).for_each(|(byte, key)| *byte ^= key);
                Data::InPlace(rest)
            }
            Data::Apart { from, to } => {
                let ((head, from), (out, to)) = (from.split_at(len), to.split_at_mut(len));
                out.iter_mut().zip(head.iter().zip(left)).for_each(|(out, (byte, key))| *out = byte ^ key);
                Data::Apart { from, to }
            }
        }
    }
}
