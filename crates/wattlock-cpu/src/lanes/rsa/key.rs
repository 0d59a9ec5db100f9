//! An RSA key as the lanes want it: everything in 52-bit limbs, with the constants of Montgomery's reduction.
//!
//! The constants are computed by `crypto-bigint` in constant time, once for each key. What the kernel relies on for its
//! bounds is checked here: the primes make the modulus, so each has exactly half its bits.

use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{Odd, U1024, U1536, U2048, U3072, U4096, Uint};
use wattlock_core::{Error, Material, RsaKey};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::mont::T;
use crate::lanes::vector::MASK52;

/// Bits of an exponent that one multiplication takes up.
pub(super) const DIGIT: u32 = 4;

/// Digits in a word of an exponent, which stand at its upper end.
pub(super) const DIGITS: usize = 16;

const BAD_KEY: Error = Error::Invalid("RSA key");

/// A modulus; see [`super::mont`] for the meaning of the parts.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(in crate::lanes) struct KeyModulus {
    pub number: Vec<u64>,
    pub friendly: Vec<u64>,
    pub factor: u64,
    /// R^2 modulo the number.
    pub square: Vec<u64>,
}

/// A prime and what belongs to it.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(in crate::lanes) struct KeyPrime {
    pub modulus: KeyModulus,
    /// R modulo the prime.
    pub one: Vec<u64>,
    /// R^3 modulo the prime.
    pub cube: Vec<u64>,
    /// The private exponent in digits, highest first; see [`digits`].
    pub exponent: Vec<u64>,
}

/// An expanded private key. Wipes itself.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(in crate::lanes) struct Expanded {
    pub n: KeyModulus,
    pub e: u64,
    pub p: KeyPrime,
    pub q: KeyPrime,
    /// R / q modulo p.
    pub q_inverse: Vec<u64>,
}

impl Expanded {
    /// Expands a key of any size we do.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no RSA key or its primes do not make its modulus.
    pub(super) fn new(material: &Material) -> Result<Expanded, Error> {
        let Material::Rsa(key) = material else { return Err(BAD_KEY) };
        match key.n.len() {
            256 => expand::<{ U1024::LIMBS }, { U2048::LIMBS }>(key),
            384 => expand::<{ U1536::LIMBS }, { U3072::LIMBS }>(key),
            512 => expand::<{ U2048::LIMBS }, { U4096::LIMBS }>(key),
            _ => Err(BAD_KEY),
        }
    }
}

fn expand<const HALF: usize, const FULL: usize>(key: &RsaKey) -> Result<Expanded, Error> {
    let n = Modular::<FULL>::new(&key.n)?;
    let p = Modular::<HALF>::new(&key.p)?;
    let q = Modular::<HALF>::new(&key.q)?;
    let (low, high) = p.number().widening_mul(q.number());
    if low.concat_resize::<HALF, FULL>(&high) != *n.number() {
        return Err(BAD_KEY);
    }
    let inverse = FixedMontyForm::new(&integer(&key.qinv)?, &p.params);
    let mut q_inverse = inverse.mul(&p.power_of_r(1)).retrieve();
    let e = key.e.iter().fold(0, |e, byte| e << 8 | u64::from(*byte));
    if e < 3 {
        return Err(BAD_KEY);
    }
    let expanded = Expanded {
        n: n.modulus(),
        e,
        p: p.prime(&key.dp),
        q: q.prime(&key.dq),
        q_inverse: limbs_of(&q_inverse),
    };
    q_inverse.zeroize();
    Ok(expanded)
}

/// A modulus under `crypto-bigint`.
struct Modular<const WORDS: usize> {
    params: FixedMontyParams<WORDS>,
}

impl<const WORDS: usize> Drop for Modular<WORDS> {
    fn drop(&mut self) {
        self.params.zeroize();
    }
}

impl<const WORDS: usize> Modular<WORDS> {
    fn new(bytes: &[u8]) -> Result<Modular<WORDS>, Error> {
        let odd: Odd<Uint<WORDS>> = Option::from(integer(bytes)?.to_odd()).ok_or(BAD_KEY)?;
        Ok(Modular { params: FixedMontyParams::new(odd) })
    }

    fn number(&self) -> &Uint<WORDS> {
        self.params.modulus().as_ref()
    }

    /// Our R, to a small power.
    fn power_of_r(&self, power: u32) -> FixedMontyForm<WORDS> {
        let bits = 52 * limbs(WORDS * 8) as u32 * power;
        FixedMontyForm::new(&Uint::from(2u32), &self.params).pow_vartime(&Uint::<1>::from(bits))
    }

    fn power_of_r_limbs(&self, power: u32) -> Vec<u64> {
        let mut number = self.power_of_r(power).retrieve();
        let limbs = limbs_of(&number);
        number.zeroize();
        limbs
    }

    fn modulus(&self) -> KeyModulus {
        let number = limbs_of(self.number());
        let factor = negative_inverse(number[0]);
        KeyModulus { friendly: friendly(&number, factor), factor, square: self.power_of_r_limbs(2), number }
    }

    fn prime(&self, exponent: &[u8]) -> KeyPrime {
        KeyPrime {
            modulus: self.modulus(),
            one: self.power_of_r_limbs(1),
            cube: self.power_of_r_limbs(3),
            exponent: digits(exponent, WORDS * 64),
        }
    }
}

/// Limbs of a number of so many bytes: whole blocks. 128, 192, 256, 384, 512 bytes take 20, 30, 40, 60, 80.
pub(super) const fn limbs(bytes: usize) -> usize {
    (bytes * 8).div_ceil(52 * T) * T
}

/// A big-endian integer of at most `WORDS` words, zeros in front supplied.
fn integer<const WORDS: usize>(bytes: &[u8]) -> Result<Uint<WORDS>, Error> {
    if bytes.len() > WORDS * 8 {
        return Err(BAD_KEY);
    }
    let mut padded = zeroize::Zeroizing::new(vec![0; WORDS * 8]);
    padded[WORDS * 8 - bytes.len()..].copy_from_slice(bytes);
    Ok(Uint::from_be_slice(&padded))
}

fn limbs_of<const WORDS: usize>(number: &Uint<WORDS>) -> Vec<u64> {
    let mut limbs = vec![0; limbs(WORDS * 8)];
    let words = number.as_words();
    for (index, limb) in limbs.iter_mut().enumerate() {
        let (word, bit) = (52 * index / 64, 52 * index % 64);
        let at = |word: usize| words.get(word).copied().unwrap_or(0);
        *limb = (((u128::from(at(word + 1)) << 64 | u128::from(at(word))) >> bit) as u64) & MASK52;
    }
    limbs
}

/// Bytes of two limbs.
const PAIR: usize = 13;

/// A big-endian integer in 52-bit limbs.
pub(super) fn limbs_of_bytes(bytes: &[u8], limbs: &mut [u64]) {
    limbs.fill(0);
    for (pair, bytes) in limbs.chunks_exact_mut(2).zip(bytes.rchunks(PAIR)) {
        let mut padded = [0; 16];
        padded[16 - bytes.len()..].copy_from_slice(bytes);
        let both = u128::from_be_bytes(padded);
        (pair[0], pair[1]) = (both as u64 & MASK52, (both >> 52) as u64);
    }
}

/// The reverse; the limbs are below 2^52.
pub(super) fn bytes_of_limbs(limbs: &[u64], bytes: &mut [u8]) {
    for (pair, bytes) in limbs.chunks_exact(2).zip(bytes.rchunks_mut(PAIR)) {
        let both = u128::from(pair[1]) << 52 | u128::from(pair[0]);
        bytes.copy_from_slice(&both.to_be_bytes()[16 - bytes.len()..]);
    }
}

/// `-1 / number` modulo 2^52, for an odd number. Newton: an inverse right in `b` bits becomes right in `2 b`; an odd
/// number is its own inverse in 3 bits.
fn negative_inverse(number: u64) -> u64 {
    let step = |x: u64, _| x.wrapping_mul(2u64.wrapping_sub(number.wrapping_mul(x)));
    let inverse = (0..5).fold(number, step);
    inverse.wrapping_neg() & MASK52
}

/// `(factor number + 1) / 2^52`.
fn friendly(number: &[u64], factor: u64) -> Vec<u64> {
    let mut carry = 1u128;
    let mut limbs = Vec::with_capacity(number.len() + 1);
    for limb in number {
        carry += u128::from(*limb) * u128::from(factor);
        limbs.push(carry as u64 & MASK52);
        carry >>= 52;
    }
    limbs.push(carry as u64);
    limbs.remove(0);
    limbs
}

/// How many digits an exponent of so many bits has.
pub(super) const fn digit_count(bits: usize) -> usize {
    bits.div_ceil(DIGIT as usize)
}

/// An exponent in digits, the highest first, [`DIGITS`] to a word from its upper end. The first word may have fewer.
/// Which bits are read depends on the length only.
fn digits(exponent: &[u8], bits: usize) -> Vec<u64> {
    let count = digit_count(bits);
    let bit = |at: usize| {
        let byte = exponent.len().checked_sub(1 + at / 8).map_or(0, |index| exponent[index]);
        u64::from(byte >> (at % 8) & 1)
    };
    let mut words = vec![0; count.div_ceil(DIGITS)];
    for digit in 0..count {
        let value =
            (0..DIGIT as usize).rev().fold(0, |value, low| value << 1 | bit(digit * DIGIT as usize + low));
        let (word, place) = (digit / DIGITS, digit % DIGITS);
        let last = words.len() - 1;
        // A full word has its lowest digit `DIGITS - 1` places below its highest; a short one fewer.
        let in_word = if word == last { count - word * DIGITS } else { DIGITS };
        words[last - word] |= value << (64 - DIGIT as usize * (in_word - place));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_limbs() {
        for len in [128, 192, 256, 384, 512] {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 151 + 200) as u8).collect();
            let mut number = vec![0; limbs(len)];
            limbs_of_bytes(&bytes, &mut number);
            assert!(number.iter().all(|limb| *limb <= MASK52));
            let mut back = vec![0; len];
            bytes_of_limbs(&number, &mut back);
            assert_eq!(back, bytes);
        }
    }

    #[test]
    fn digits_make_the_exponent() {
        let exponent: Vec<u8> = (0..128u32).map(|at| (at * 91 + 255) as u8).collect();
        let words = digits(&exponent, 1024);
        let first = (digit_count(1024) - 1) % DIGITS + 1;
        let mut bits = Vec::new();
        for (index, word) in words.iter().enumerate() {
            for digit in 0..if index == 0 { first } else { DIGITS } {
                let value = word << (DIGIT as usize * digit) >> (64 - DIGIT);
                bits.extend((0..DIGIT).rev().map(|bit| value >> bit & 1));
            }
        }
        let expected = (0..1024).map(|bit| u64::from(exponent[bit / 8] >> (7 - bit % 8) & 1));
        assert_eq!(bits.split_off(bits.len() - 1024), expected.collect::<Vec<_>>());
        assert!(bits.iter().all(|bit| *bit == 0));
    }

    #[test]
    fn negative_inverse_is_one() {
        for number in [1, 3, MASK52, 0x9_1f3d_5b77_0001] {
            assert_eq!(number.wrapping_mul(negative_inverse(number)).wrapping_add(1) & MASK52, 0);
        }
    }
}
