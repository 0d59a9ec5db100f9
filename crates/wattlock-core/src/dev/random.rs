//! Pseudo-random test inputs: SplitMix64 (Steele, Lea, Flood 2014). Small, seeded, the same everywhere; no use for
//! anything secret.

use std::cell::Cell;

/// A seeded stream of test inputs.
#[derive(Debug, Clone)]
pub struct Random(Cell<u64>);

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(Cell::new(seed))
    }

    /// The next 64 bits.
    pub fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let z = self.0.get();
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `end`, which must not be 0. Slightly biased, which no test minds.
    pub fn below(&self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// One of `items`.
    pub fn pick<'a, T>(&self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// `len` bytes.
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
        bytes
    }

    /// Puts `items` in another order.
    pub fn shuffle<T>(&self, items: &mut [T]) {
        for end in (2..=items.len()).rev() {
            items.swap(end - 1, self.below(end));
        }
    }
}
