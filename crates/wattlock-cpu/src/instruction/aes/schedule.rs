//! Round keys, in the order in which the AES instructions want them.

use zeroize::{Zeroize, ZeroizeOnDrop};

/// Rounds + 1 round keys; the rest is zero. Wiped on drop.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(super) struct Schedule {
    keys: [u128; 15],
    rounds: Rounds,
}

/// How many rounds: a choice of three that kernels match on, so that each is compiled with its own constant.
#[derive(Clone, Copy, PartialEq, Eq, Zeroize)]
pub(super) enum Rounds {
    Ten,
    Twelve,
    Fourteen,
}

impl Rounds {
    pub(super) const fn count(self) -> usize {
        match self {
            Rounds::Ten => 10,
            Rounds::Twelve => 12,
            Rounds::Fourteen => 14,
        }
    }
}

impl Schedule {
    pub(super) fn new(keys: [u128; 15], rounds: Rounds) -> Schedule {
        Schedule { keys, rounds }
    }

    /// All zero, to be filled anew.
    pub(super) fn cleared(&mut self) -> &mut [u128; 15] {
        self.keys = [0; 15];
        &mut self.keys
    }

    /// How many rounds the keys now are for.
    pub(super) fn set_rounds(&mut self, rounds: Rounds) {
        self.rounds = rounds;
    }

    #[inline]
    pub(super) fn rounds(&self) -> Rounds {
        self.rounds
    }

    /// The first `R + 1` are round keys.
    #[inline]
    pub(super) fn keys(&self) -> &[u128; 15] {
        &self.keys
    }
}
