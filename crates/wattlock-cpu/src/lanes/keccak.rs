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
            register = register << 1 ^ (register >> 7) * 0x71;
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

#[inline(always)]
fn round<V: Words>(a: &State<V>, constant: u64) -> State<V> {
    let sum = |x: usize| a[x].xor(a[x + 5]).xor(a[x + 10]).xor(a[x + 15].xor(a[x + 20]));
    let c = [sum(0), sum(1), sum(2), sum(3), sum(4)];
    let theta = |x: usize| c[(x + 4) % 5].xor(c[(x + 1) % 5].ror::<63>());
    let d = [theta(0), theta(1), theta(2), theta(3), theta(4)];
    let mut first = row!(a d: 0 of 0 by 0 6 of 1 by 44 12 of 2 by 43 18 of 3 by 21 24 of 4 by 14);
    first[0] = first[0].xor(V::splat(constant));
    let rows = [
        first,
        row!(a d: 3 of 3 by 28 9 of 4 by 20 10 of 0 by 3 16 of 1 by 45 22 of 2 by 61),
        row!(a d: 1 of 1 by 1 7 of 2 by 6 13 of 3 by 25 19 of 4 by 8 20 of 0 by 18),
        row!(a d: 4 of 4 by 27 5 of 0 by 36 11 of 1 by 10 17 of 2 by 15 23 of 3 by 56),
        row!(a d: 2 of 2 by 62 8 of 3 by 55 14 of 4 by 39 15 of 0 by 41 21 of 1 by 2),
    ];
    let mut out = *a;
    out.copy_from_slice(rows.as_flattened());
    out
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
