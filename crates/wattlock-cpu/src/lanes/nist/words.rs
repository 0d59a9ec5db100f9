//! Between bytes and limbs, one number at a time, in time that depends on lengths only; and between numbers and lanes.

use zeroize::Zeroize;

use super::super::vector::{LANES, MASK52, Vector};
use super::field::Limbs;

/// Longest number, in 64-bit words: 384 bits; and one word below and two above, that any limb may be read.
const WORDS: usize = 9;

/// A big-endian number times `2^shift` (below `2^64`) as limbs. What does not fit is cut off.
pub fn limbs_of<const N: usize>(bytes: &[u8], shift: usize) -> Limbs<N> {
    let mut words = [0u64; WORDS];
    for (word, chunk) in words[1..].iter_mut().zip(bytes.rchunks(8)) {
        *word = match chunk.try_into() {
            Ok(whole) => u64::from_be_bytes(whole),
            Err(_) => chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
    }
    let mut out = [0; N];
    for (at, limb) in out.iter_mut().enumerate() {
        let bit = 64 + 52 * at - shift;
        let pair = u128::from(words[bit / 64]) | u128::from(words[bit / 64 + 1]) << 64;
        *limb = (pair >> (bit % 64)) as u64 & MASK52;
    }
    words.zeroize();
    out
}

/// Limbs as a big-endian number of as many bytes as `out` has, a multiple of eight.
pub fn write<const N: usize>(limbs: &Limbs<N>, out: &mut [u8]) {
    let (mut bits, mut held, mut limbs) = (0u128, 0, limbs.iter());
    for word in out.rchunks_exact_mut(8) {
        while held < 64 {
            bits |= u128::from(limbs.next().copied().unwrap_or(0)) << held;
            held += 52;
        }
        word.copy_from_slice(&(bits as u64).to_be_bytes());
        bits >>= 64;
        held -= 64;
    }
}

/// Whether `a < b`, as 0 or 1, without a branch.
pub fn is_less<const N: usize>(a: &Limbs<N>, b: &Limbs<N>) -> u64 {
    let mut borrow = 0;
    for at in 0..N {
        borrow = a[at].wrapping_sub(b[at]).wrapping_sub(borrow) >> 63;
    }
    borrow
}

/// Whether any bit is set, as 0 or 1, without a branch.
pub fn is_nonzero<const N: usize>(a: &Limbs<N>) -> u64 {
    let any = a.iter().fold(0, |any, limb| any | limb);
    (any | any.wrapping_neg()) >> 63
}

/// One number for each lane.
#[inline(always)]
pub fn gather<V: Vector, const N: usize>(lanes: &[Limbs<N>; LANES]) -> [V; N] {
    let mut out = [V::splat(0); N];
    for at in 0..N {
        let mut numbers = [0; LANES];
        for lane in 0..LANES {
            numbers[lane] = lanes[lane][at];
        }
        out[at] = V::new(&numbers);
    }
    out
}

/// The numbers of all lanes.
#[inline(always)]
pub fn scatter<V: Vector, const N: usize>(vectors: [V; N]) -> [Limbs<N>; LANES] {
    let mut out = [[0; N]; LANES];
    for at in 0..N {
        let numbers = vectors[at].reveal();
        for lane in 0..LANES {
            out[lane][at] = numbers[lane];
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        let bytes: Vec<u8> = (0..48).map(|at| (at * 37 + 11) as u8).collect();
        for len in [32, 48] {
            let mut out = vec![0; len];
            write(&limbs_of::<8>(&bytes[..len], 0), &mut out);
            assert_eq!(out, bytes[..len]);
        }
        let mut out = [0; 32];
        write(&limbs_of::<5>(&bytes[..32], 0), &mut out);
        assert_eq!(out, bytes[..32]);
    }

    #[test]
    fn a_shift_doubles_as_often() {
        let (once, shifted) = (limbs_of::<8>(&[0x81, 0xff], 0), limbs_of::<8>(&[0x81, 0xff], 44));
        assert_eq!((once[0], shifted[0], shifted[1]), (0x81ff, 0xff << 44, 0x81));
    }

    #[test]
    fn comparisons_are_those_of_numbers() {
        let (small, large) = ([5, 7, 0], [4, 8, 0]);
        assert_eq!((is_less(&small, &large), is_less(&large, &small), is_less(&small, &small)), (1, 0, 0));
        assert_eq!((is_nonzero(&[0, 0]), is_nonzero(&[0, 1 << 51]), is_nonzero(&[1, 0])), (0, 1, 1));
    }
}
