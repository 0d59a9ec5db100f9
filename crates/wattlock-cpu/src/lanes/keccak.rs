//! Keccak-f\[1600\] (FIPS 202 section 3) of several states side by side: the permutation, a word of a state to a lane.
//! Padding, absorbing and squeezing are the caller's.
//!
//! Word `x + 5 * y` of a state is the standard's lane `(x, y)`. Rotations and the three-operand logic of theta and chi
//! are single instructions with AVX-512.

use super::words::Words;

/// Words of a state.
pub const WORDS: usize = 25;

/// A state.
pub type State<V> = [V; WORDS];

/// The constants of iota (FIPS 202 algorithm 5), by round.
const ROUNDS: [u64; 24] = constants();

/// Bit `2^j - 1` of a round's constant is what the shift register of FIPS 202 algorithm 5 gives out at `7 * round + j`.
const fn constants() -> [u64; 24] {
    let (mut out, mut register, mut round) = ([0; 24], 1u8, 0);
    while round < 24 {
        let mut j = 0;
        while j < 7 {
            out[round] |= ((register & 1) as u64) << ((1 << j) - 1);
            register = (register << 1) ^ ((register >> 7) * 0x71);
            j += 1;
        }
        round += 1;
    }
    out
}

/// A row after rho, pi and chi (FIPS 202 sections 3.2.2 to 3.2.4): of each of its five words, which word before these
/// steps comes here, the column that it was in, and how far rho rotates it.
macro_rules! row {
    ($a:ident $d:ident: $($from:literal of $column:literal by $by:literal)*) => {{
        let b = [$($a[$from].xor($d[$column]).ror::<{ (64 - $by) % 64 }>()),*];
        [
            b[1].andnot(b[2]).xor(b[0]),
            b[2].andnot(b[3]).xor(b[1]),
            b[3].andnot(b[4]).xor(b[2]),
            b[4].andnot(b[0]).xor(b[3]),
            b[0].andnot(b[1]).xor(b[4]),
        ]
    }};
}

/// The sum of a column.
#[inline(always)]
fn sum<V: Words>(a: &State<V>, x: usize) -> V {
    a[x].xor(a[x + 5]).xor(a[x + 10]).xor(a[x + 15].xor(a[x + 20]))
}

/// What theta (FIPS 202 section 3.2.1) adds to a column.
#[inline(always)]
fn theta<V: Words>(c: &[V; 5], x: usize) -> V {
    c[(x + 4) % 5].xor(c[(x + 1) % 5].ror::<63>())
}

#[inline(always)]
fn round<V: Words>(a: &State<V>, constant: u64) -> State<V> {
    let c = [sum(a, 0), sum(a, 1), sum(a, 2), sum(a, 3), sum(a, 4)];
    let d = [theta(&c, 0), theta(&c, 1), theta(&c, 2), theta(&c, 3), theta(&c, 4)];
    let [a0, a1, a2, a3, a4] = row!(a d: 0 of 0 by 0 6 of 1 by 44 12 of 2 by 43 18 of 3 by 21 24 of 4 by 14);
    let [b0, b1, b2, b3, b4] = row!(a d: 3 of 3 by 28 9 of 4 by 20 10 of 0 by 3 16 of 1 by 45 22 of 2 by 61);
    let [c0, c1, c2, c3, c4] = row!(a d: 1 of 1 by 1 7 of 2 by 6 13 of 3 by 25 19 of 4 by 8 20 of 0 by 18);
    let [d0, d1, d2, d3, d4] = row!(a d: 4 of 4 by 27 5 of 0 by 36 11 of 1 by 10 17 of 2 by 15 23 of 3 by 56);
    let [e0, e1, e2, e3, e4] = row!(a d: 2 of 2 by 62 8 of 3 by 55 14 of 4 by 39 15 of 0 by 41 21 of 1 by 2);
    let a0 = a0.xor(V::splat(constant));
    [a0, a1, a2, a3, a4, b0, b1, b2, b3, b4, c0, c1, c2, c3, c4, d0, d1, d2, d3, d4, e0, e1, e2, e3, e4]
}

/// The permutation.
#[inline(always)]
pub fn permute<V: Words>(state: &mut State<V>) {
    let mut a = *state;
    for pair in ROUNDS.as_chunks::<2>().0 {
        a = round(&round(&a, pair[0]), pair[1]);
    }
    *state = a;
}
