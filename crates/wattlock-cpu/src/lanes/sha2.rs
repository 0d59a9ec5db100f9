//! SHA-256 and SHA-512 (FIPS 180-4 section 6) of several messages side by side: the compression, one word to a lane. Padding
//! and chaining are the caller's.
//!
//! SHA-256's words are 32 bits: both halves of a 64-bit lane are computed with. The nonces of ECDSA lie in the lower halves;
//! what the same instructions leave in the upper ones nothing reads.

use super::words::Words;
use crate::software::sha512;

/// A state: eight words.
pub type State<V> = [V; 8];

/// A block: sixteen words.
pub type Block<V> = [V; 16];

/// One of the two families.
pub trait Sha2: 'static {
    /// Bytes of a word.
    const BYTES: usize;
    /// Rounds, a multiple of sixteen.
    const ROUNDS: usize;

    /// The constant of a round.
    fn constant(round: usize) -> u64;
    /// Sum of words.
    fn add<V: Words>(a: V, b: V) -> V;
    /// The functions of sections 4.1.2 and 4.1.3.
    fn big_sigma_0<V: Words>(a: V) -> V;
    /// Of those.
    fn big_sigma_1<V: Words>(a: V) -> V;
    /// Of those.
    fn small_sigma_0<V: Words>(a: V) -> V;
    /// Of those.
    fn small_sigma_1<V: Words>(a: V) -> V;
}

/// SHA-256.
pub struct Sha256;

/// SHA-512, and SHA-384, which is SHA-512 from another state.
pub struct Sha512;

impl Sha2 for Sha256 {
    const BYTES: usize = 4;
    const ROUNDS: usize = 64;

    /// The first 32 bits of the same cube roots as SHA-512's, in both halves.
    #[inline(always)]
    fn constant(round: usize) -> u64 {
        (sha512::K[round] >> 32) * 0x1_0000_0001
    }

    #[inline(always)]
    fn add<V: Words>(a: V, b: V) -> V {
        a.add32(b)
    }

    #[inline(always)]
    fn big_sigma_0<V: Words>(a: V) -> V {
        a.ror32::<2>().xor(a.ror32::<13>()).xor(a.ror32::<22>())
    }

    #[inline(always)]
    fn big_sigma_1<V: Words>(a: V) -> V {
        a.ror32::<6>().xor(a.ror32::<11>()).xor(a.ror32::<25>())
    }

    #[inline(always)]
    fn small_sigma_0<V: Words>(a: V) -> V {
        a.ror32::<7>().xor(a.ror32::<18>()).xor(a.shr32::<3>())
    }

    #[inline(always)]
    fn small_sigma_1<V: Words>(a: V) -> V {
        a.ror32::<17>().xor(a.ror32::<19>()).xor(a.shr32::<10>())
    }
}

impl Sha2 for Sha512 {
    const BYTES: usize = 8;
    const ROUNDS: usize = 80;

    #[inline(always)]
    fn constant(round: usize) -> u64 {
        sha512::K[round]
    }

    #[inline(always)]
    fn add<V: Words>(a: V, b: V) -> V {
        a.add(b)
    }

    #[inline(always)]
    fn big_sigma_0<V: Words>(a: V) -> V {
        a.ror::<28>().xor(a.ror::<34>()).xor(a.ror::<39>())
    }

    #[inline(always)]
    fn big_sigma_1<V: Words>(a: V) -> V {
        a.ror::<14>().xor(a.ror::<18>()).xor(a.ror::<41>())
    }

    #[inline(always)]
    fn small_sigma_0<V: Words>(a: V) -> V {
        a.ror::<1>().xor(a.ror::<8>()).xor(a.shr::<7>())
    }

    #[inline(always)]
    fn small_sigma_1<V: Words>(a: V) -> V {
        a.ror::<19>().xor(a.ror::<61>()).xor(a.shr::<6>())
    }
}

/// One round. The eight variables do not move: the round number says which of them is `a`.
#[inline(always)]
fn round<H: Sha2, V: Words>(s: &mut State<V>, w: V, k: V, at: usize) {
    let [a, b, c, d, e, f, g, h] = [0, 1, 2, 3, 4, 5, 6, 7].map(|name| (8 + name - at % 8) % 8);
    let choice = s[e].and(s[f]).xor(s[e].andnot(s[g]));
    let majority = s[a].and(s[b]).or(s[c].and(s[a].or(s[b])));
    let first = H::add(H::add(H::add(s[h], w), H::add(k, choice)), H::big_sigma_1(s[e]));
    s[d] = H::add(s[d], first);
    s[h] = H::add(first, H::add(H::big_sigma_0(s[a]), majority));
}

/// The word sixteen rounds on.
#[inline(always)]
fn next<H: Sha2, V: Words>(w: &mut Block<V>, at: usize) {
    let near = H::add(w[at], w[(at + 9) % 16]);
    let far = H::add(H::small_sigma_0(w[(at + 1) % 16]), H::small_sigma_1(w[(at + 14) % 16]));
    w[at] = H::add(near, far);
}

/// Takes a block into the state.
#[inline(always)]
pub fn compress<H: Sha2, V: Words>(state: &mut State<V>, block: &Block<V>) {
    let (mut s, mut w) = (*state, *block);
    let mut from = 0;
    while from < H::ROUNDS {
        macro_rules! rounds {
            ($($at:literal)*) => {$(
                round::<H, V>(&mut s, w[$at], V::splat(H::constant(from + $at)), $at);
            )*};
        }
        rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        from += 16;
        if from < H::ROUNDS {
            macro_rules! words {
                ($($at:literal)*) => {$( next::<H, V>(&mut w, $at); )*};
            }
            words!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        }
    }
    for at in 0..8 {
        state[at] = H::add(state[at], s[at]);
    }
}
