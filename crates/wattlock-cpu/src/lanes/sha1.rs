//! SHA-1 (FIPS 180-4 section 6.1.2) of several messages side by side: the compression, one word to a lane.

use super::sha2::Block;
use super::words::Words;

/// A state: five words.
pub type State<V> = [V; 5];

/// Constants of the four phases, in both halves of 64 bits.
const K: [u64; 4] = [0x5a82_7999, 0x6ed9_eba1, 0x8f1b_bcdc, 0xca62_c1d6];

/// One round. The variables do not move: the round number says which of them is `a`.
#[inline(always)]
fn round<V: Words, const PHASE: usize, const AT: usize>(s: &mut State<V>, w: V, k: V) {
    let [a, b, c, d, e] =
        const { [(5 - AT % 5) % 5, (6 - AT % 5) % 5, (7 - AT % 5) % 5, (8 - AT % 5) % 5, (9 - AT % 5) % 5] };
    let mixed = match PHASE {
        0 => s[b].and(s[c]).xor(s[b].andnot(s[d])),
        2 => s[b].and(s[c]).or(s[d].and(s[b].or(s[c]))),
        _ => s[b].xor(s[c]).xor(s[d]),
    };
    s[e] = s[e].add32(w).add32(k).add32(mixed).add32(s[a].ror32::<27>());
    s[b] = s[b].ror32::<2>();
}

/// The word of a round: from the block, or made of those before.
#[inline(always)]
fn word<V: Words, const PHASE: usize, const AT: usize>(w: &mut Block<V>) -> V {
    let [new, two, eight, thirteen] = const {
        let at = 20 * PHASE + AT;
        [at % 16, (at + 2) % 16, (at + 8) % 16, (at + 13) % 16]
    };
    if PHASE > 0 || AT >= 16 {
        w[new] = w[new].xor(w[two]).xor(w[eight].xor(w[thirteen])).ror32::<31>();
    }
    w[new]
}

#[inline(always)]
fn phase<V: Words, const PHASE: usize>(s: &mut State<V>, w: &mut Block<V>) {
    let k = V::splat(K[PHASE] * 0x1_0000_0001);
    macro_rules! rounds {
        ($($at:literal)*) => {$(
            let next = word::<V, PHASE, $at>(w);
            round::<V, PHASE, $at>(s, next, k);
        )*};
    }
    rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
}

/// Takes a block into the state.
#[inline(always)]
pub fn compress<V: Words>(state: &mut State<V>, block: &Block<V>) {
    let (mut s, mut w) = (*state, *block);
    phase::<V, 0>(&mut s, &mut w);
    phase::<V, 1>(&mut s, &mut w);
    phase::<V, 2>(&mut s, &mut w);
    phase::<V, 3>(&mut s, &mut w);
    for (old, new) in state.iter_mut().zip(s) {
        *old = old.add32(new);
    }
}
