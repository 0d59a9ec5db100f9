//! Poly1305 over many blocks with 512-bit multiply-add on 52-bit integers (AVX-512 IFMA): eight blocks to a vector, up
//! to eight vectors to a reduction.
//!
//! Eight sums run side by side, each over every eighth block, and each step multiplies them by r^(8 N) while the blocks
//! that arrive with it are multiplied by what power they still lack. The last group of eight gets r^8 to r^1, lane by
//! lane, and the eight sums become one. Head (associated data) and tail are [`Poly1305`]'s.
//!
//! # Why no carry is lost
//! `vpmadd52luq` and `vpmadd52huq` multiply the low 52 bits of each operand and add the low or high 52 bits of the
//! product to 64 bits. So operands must stay below 2^52 (or mean only their low 52 bits) and sums below 2^64.
//!
//! - Powers are near (see [`poly1305`](crate::poly1305)): r0 < 2^44, r1 < 2^44 + 2^12, r2 < 2^42; times 20 they stay
//!   below 2^48.4.
//! - A step's sums enter with l0 < 2^44, l1 < 2^44 + 2^16, l2 < 2^42 and leave so. With the limbs of a block, which are
//!   below 2^44, 2^44 and 2^41 ([`whole_limbs`]), they stay below 2^45, 2^45 + 2^16 and 2^43.
//! - Blocks that meet no sum come with limb 0 as the low 52 bits of 64, whose upper 12 the instruction ignores, and
//!   limb 1 with its lowest 8 bits, which limb 0 holds already, cleared ([`long_limbs`]): below 2^52, 2^44, 2^41.
//! - Each of three pairs of sums takes at most 8 * 3 products a step. Low parts: 24 * 2^52 < 2^56.6. High parts: a
//!   product is below 2^52 * (2^44 + 2^12) (limb 0) or 2^45.1 * 2^48.4 (the others), thus its high part below 2^44.1,
//!   24 of them below 2^48.7.
//! - Carrying: a high part weighs 2^52, which is 2^8 in the next limb's 2^44: below 2^56.7. d1 = lo1 + (hi0 << 8) +
//!   (lo0 >> 44) < 2^57.7, and d2 likewise. What leaves limb 2 weighs 2^130 = 5: d2 >> 42 below 2^16, and hi2 << 10 (for
//!   88 + 52 = 130 + 10), where hi2 is 24 high parts of products with r2 < 2^42 or with narrower limbs, below 2^42.1
//!   each: below 2^56.7. Five times their sum and 44 bits of lo0 stay below 2^59.2, of which less than 2^15.2 goes to
//!   limb 1, within the 2^16 with which we came in.
#![allow(unsafe_code, reason = "loads through raw pointers, of exactly the bytes the callers vouch for")]

use std::arch::x86_64::*;

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::poly1305::{ABOVE, Limbs, M42, M44, Poly1305, times};

/// Bytes of a group: a block in each lane.
const GROUP: usize = 128;
/// Groups to a reduction.
const GROUPS: usize = 8;

/// What a block in each lane becomes when its words are unpacked: lane 1 holds block 4, and so on.
const ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A multiplier: its limbs, and limbs 1 and 2 times 20.
type Factor<T> = [T; 5];

/// A hash over associated data and a message that may still be growing. Wipes itself.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(super) struct Hash {
    plain: Poly1305,
    sum: [[u64; 8]; 3],
    /// r^8, r^16 and so on to r^64.
    powers: [Factor<u64>; GROUPS],
    /// For each lane of the last group the power that its block lacks.
    last: Factor<[u64; 8]>,
}

fn factor(power: &Limbs) -> Factor<u64> {
    let [r0, r1, r2] = *power;
    [r0, r1, r2, 20 * r1, 20 * r2]
}

impl Hash {
    /// Of a message of `len` bytes, the associated data already in it.
    pub(super) fn new(key: &[u8; 32], aad: &[u8], len: usize) -> Hash {
        let mut plain = Poly1305::new(key);
        plain.absorb(aad);
        let mut hash = Hash { plain, sum: [[0; 8]; 3], powers: [[0; 5]; GROUPS], last: [[0; 8]; 5] };
        if len >= GROUP {
            hash.widen(len);
        }
        hash
    }

    /// Makes the powers that a message of `len` bytes needs.
    fn widen(&mut self, len: usize) {
        let r1 = self.plain.r;
        let r2 = times(&r1, &r1);
        let (r3, r4) = (times(&r2, &r1), times(&r2, &r2));
        let mut powers = [r1, r2, r3, r4, times(&r4, &r1), times(&r4, &r2), times(&r4, &r3), times(&r4, &r4)];
        for (lane, block) in ORDER.into_iter().enumerate() {
            for (limb, value) in self.last.iter_mut().zip(factor(&powers[7 - block])) {
                limb[lane] = value;
            }
        }
        if len >= 2 * GROUP {
            let e1 = powers[7];
            let e2 = times(&e1, &e1);
            let (e3, e4) = (times(&e2, &e1), times(&e2, &e2));
            powers = [e1, e2, e3, e4, [0; 3], [0; 3], [0; 3], [0; 3]];
            // The longest step is over all groups but the last.
            if len >= 6 * GROUP {
                for k in 0..4 {
                    powers[4 + k] = times(&e4, &powers[k]);
                }
            }
            for (place, power) in self.powers.iter_mut().zip(&powers) {
                *place = factor(power);
            }
        }
        powers.zeroize();
        for (lanes, limb) in self.sum.iter_mut().zip(self.plain.sum) {
            lanes[0] = limb;
        }
    }

    /// Takes as much as it can of a message that is complete up to `ready`, of which `done` bytes were taken before;
    /// returns what is done now. Leaves the last whole group and what follows it.
    ///
    /// # Safety
    /// `ready` bytes must be readable at `message`; `ready` must not exceed `len`, the one given to [`Hash::new`].
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    pub(super) unsafe fn take(
        &mut self,
        message: *const u8,
        mut done: usize,
        ready: usize,
        len: usize,
    ) -> usize {
        let end = ready.min((len / GROUP).saturating_sub(1) * GROUP);
        let mut sum = self.sums();
        while done + GROUPS * GROUP <= end {
            // SAFETY: the bytes lie before `end`.
            sum = unsafe { Hash::step::<GROUPS>(std::hint::black_box(&*self), sum, message.add(done)) };
            done += GROUPS * GROUP;
        }
        self.sum = [words(sum[0]), words(sum[1]), words(sum[2])];
        done
    }

    /// Takes the rest of the message and the lengths, and gives the tag.
    ///
    /// # Safety
    /// As [`Hash::take`], with `ready` = `len`.
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    pub(super) unsafe fn finish(
        &mut self,
        message: *const u8,
        done: usize,
        len: usize,
        aad_len: usize,
    ) -> [u8; 16] {
        let whole = len / GROUP * GROUP;
        if whole > 0 {
            // SAFETY: the bytes are the caller's; steps and last group end at `whole`.
            unsafe {
                let mut at = self.take(message, done, len, len);
                let sum = self.sums();
                let left = (whole - at) / GROUP - 1;
                let from = message.add(at);
                let sum = match left {
                    0 => sum,
                    1 => self.step::<1>(sum, from),
                    2 => self.step::<2>(sum, from),
                    3 => self.step::<3>(sum, from),
                    4 => self.step::<4>(sum, from),
                    5 => self.step::<5>(sum, from),
                    6 => self.step::<6>(sum, from),
                    _ => self.step::<7>(sum, from),
                };
                at += left * GROUP;
                self.join(sum, message.add(at));
            }
        }
        // SAFETY: the bytes behind the groups are the caller's.
        self.plain.absorb(unsafe { std::slice::from_raw_parts(message.add(whole), len - whole) });
        self.plain.block(aad_len as u128 | (len as u128) << 64);
        self.plain.finish()
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn sums(&self) -> [__m512i; 3] {
        [vector(&self.sum[0]), vector(&self.sum[1]), vector(&self.sum[2])]
    }

    /// N groups: `sum = (sum + group 0) * r^(8 N) + group 1 * r^(8 (N - 1)) + ...`, carried.
    ///
    /// # Safety
    /// N groups must be readable at `from`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    unsafe fn step<const N: usize>(&self, sum: [__m512i; 3], from: *const u8) -> [__m512i; 3] {
        // Two, by turns: every product of one waits four cycles for the one before.
        let (mut odd, mut even) = (Product::zero(), Product::zero());
        // Group 0 waits for the step before; the others need not.
        let mut k = 1;
        while k < N {
            // SAFETY: group k of N.
            let group = unsafe { long_limbs(from.add(k * GROUP)) };
            odd.add(group, broadcast(&self.powers[N - 1 - k]));
            if k + 1 < N {
                // SAFETY: group k + 1 of N.
                let group = unsafe { long_limbs(from.add((k + 1) * GROUP)) };
                even.add(group, broadcast(&self.powers[N - 2 - k]));
            }
            k += 2;
        }
        // SAFETY: group 0 of N.
        let group = unsafe { whole_limbs(from) };
        even.add(plus(sum, group), broadcast(&self.powers[N - 1]));
        Product { low: plus(odd.low, even.low), high: plus(odd.high, even.high) }.carried()
    }

    /// Takes the last group, and makes one sum of eight.
    ///
    /// # Safety
    /// A group must be readable at `from`.
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    unsafe fn join(&mut self, sum: [__m512i; 3], from: *const u8) {
        let mut product = Product::zero();
        // SAFETY: the bytes are the caller's.
        let group = unsafe { whole_limbs(from) };
        let [r0, r1, r2, back1, back2] = &self.last;
        let last = [vector(r0), vector(r1), vector(r2), vector(back1), vector(back2)];
        product.add(plus(sum, group), last);
        // Eight times less than 2^44 + 2^16: far below the 2^49 that `times` takes.
        let [l0, l1, l2] = product.carried();
        self.plain.sum = [total(l0), total(l1), total(l2)];
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn vector(words: &[u64; 8]) -> __m512i {
    // SAFETY: eight words are 64 readable bytes.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn words(vector: __m512i) -> [u64; 8] {
    let mut words = [0; 8];
    // SAFETY: eight words are 64 writable bytes.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), vector) };
    words
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn broadcast(factor: &Factor<u64>) -> Factor<__m512i> {
    let [r0, r1, r2, back1, back2] = *factor;
    [everywhere(r0), everywhere(r1), everywhere(r2), everywhere(back1), everywhere(back2)]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn everywhere(word: u64) -> __m512i {
    _mm512_set1_epi64(word.cast_signed())
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn total(lanes: __m512i) -> u64 {
    _mm512_reduce_add_epi64(lanes).cast_unsigned()
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn plus(a: [__m512i; 3], b: [__m512i; 3]) -> [__m512i; 3] {
    [_mm512_add_epi64(a[0], b[0]), _mm512_add_epi64(a[1], b[1]), _mm512_add_epi64(a[2], b[2])]
}

/// Lower and upper words of eight blocks, in [`ORDER`].
///
/// # Safety
/// A group must be readable at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
unsafe fn halves(from: *const u8) -> (__m512i, __m512i) {
    // SAFETY: the bytes are the caller's.
    let (a, b) = unsafe { (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(64).cast())) };
    (_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
}

/// Bits 44 to 127 of eight blocks as limbs 1 and 2, limb 1 under `mask`, the bit above the block set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn upper_limbs(low: __m512i, high: __m512i, mask: u64) -> (__m512i, __m512i) {
    // 0xa8: (a | b) & c.
    let middle = _mm512_ternarylogic_epi64::<0xa8>(
        _mm512_srli_epi64::<44>(low),
        _mm512_slli_epi64::<20>(high),
        everywhere(mask),
    );
    let above = everywhere(ABOVE);
    (middle, _mm512_or_si512(_mm512_srli_epi64::<24>(high), above))
}

/// Eight blocks, in limbs that sums may be added to.
///
/// # Safety
/// A group must be readable at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
unsafe fn whole_limbs(from: *const u8) -> [__m512i; 3] {
    // SAFETY: the bytes are the caller's.
    let (low, high) = unsafe { halves(from) };
    let (middle, top) = upper_limbs(low, high, M44);
    [_mm512_and_si512(low, everywhere(M44)), middle, top]
}

/// Eight blocks, in limbs for multiplication only: it reads no more than 52 bits of limb 0.
///
/// # Safety
/// A group must be readable at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
unsafe fn long_limbs(from: *const u8) -> [__m512i; 3] {
    // SAFETY: the bytes are the caller's.
    let (low, high) = unsafe { halves(from) };
    let (middle, top) = upper_limbs(low, high, M44 & !0xff);
    [low, middle, top]
}

/// Sums of products, their low and high 52 bits apart.
struct Product {
    low: [__m512i; 3],
    high: [__m512i; 3],
}

impl Product {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn zero() -> Product {
        Product { low: [_mm512_setzero_si512(); 3], high: [_mm512_setzero_si512(); 3] }
    }

    /// Adds `a * b`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn add(&mut self, a: [__m512i; 3], [b0, b1, b2, back1, back2]: Factor<__m512i>) {
        self.term(0, a[0], b0);
        self.term(1, a[0], b1);
        self.term(2, a[0], b2);
        self.term(0, a[1], back2);
        self.term(1, a[1], b0);
        self.term(2, a[1], b1);
        self.term(0, a[2], back1);
        self.term(1, a[2], back2);
        self.term(2, a[2], b0);
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn term(&mut self, limb: usize, a: __m512i, b: __m512i) {
        self.low[limb] = _mm512_madd52lo_epu64(self.low[limb], a, b);
        self.high[limb] = _mm512_madd52hi_epu64(self.high[limb], a, b);
    }

    /// As limbs again: below 2^44, 2^44 + 2^16, 2^42.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn carried(self) -> [__m512i; 3] {
        let (m44, m42) = (everywhere(M44), everywhere(M42));
        let [d0, d1, d2] = self.low;
        let [h0, h1, h2] = self.high;
        let (h0, h1) = (_mm512_slli_epi64::<8>(h0), _mm512_slli_epi64::<8>(h1));
        let d1 = _mm512_add_epi64(_mm512_add_epi64(d1, h0), _mm512_srli_epi64::<44>(d0));
        let d2 = _mm512_add_epi64(_mm512_add_epi64(d2, h1), _mm512_srli_epi64::<44>(d1));
        let over = _mm512_add_epi64(_mm512_slli_epi64::<10>(h2), _mm512_srli_epi64::<42>(d2));
        let five = _mm512_add_epi64(over, _mm512_slli_epi64::<2>(over));
        let d0 = _mm512_add_epi64(_mm512_and_si512(d0, m44), five);
        let d1 = _mm512_add_epi64(_mm512_and_si512(d1, m44), _mm512_srli_epi64::<44>(d0));
        [_mm512_and_si512(d0, m44), d1, _mm512_and_si512(d2, m42)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::Cpu;
    use crate::poly1305::model::{BLOCKS, MULTIPLIERS, key, model};

    /// The hash of a message that becomes readable `cut` bytes at a time, as sealing has it.
    fn hashed(key: &[u8; 32], aad: &[u8], message: &[u8], cut: usize) -> [u8; 16] {
        let mut hash = Hash::new(key, aad, message.len());
        let (mut done, mut ready) = (0, 0);
        // SAFETY: the callers found the instructions; the message is all readable.
        unsafe {
            while ready < message.len() {
                ready = message.len().min(ready + cut);
                done = hash.take(message.as_ptr(), done, ready, message.len());
            }
            hash.finish(message.as_ptr(), done, message.len(), aad.len())
        }
    }

    fn available() -> bool {
        let there = Cpu::detect().ifma512.is_some();
        if !there {
            println!("not tested: this CPU has no 52-bit multiply-add");
        }
        there
    }

    #[test]
    fn extreme_limbs_lose_no_carry() {
        if !available() {
            return;
        }
        let lengths = [0, 16, 127, 128, 129, 256, 1024, 1152, 1280, 2048, 2176, 4096 + 15, 9 * 1024 + 896];
        for r in MULTIPLIERS {
            for block in BLOCKS {
                let message = block.to_le_bytes().repeat(640);
                for len in lengths {
                    for mask in [0, u128::MAX] {
                        let (key, message) = (key(r, mask), &message[..len]);
                        let wanted = model(&key, b"", message);
                        assert_eq!(hashed(&key, b"", message, 1024), wanted, "r {r:#x} {block:#x} {len}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_length_and_every_cut_hashes_alike() {
        if !available() {
            return;
        }
        let key = key(MULTIPLIERS[8], 0x1234_5678_9abc_def0_0fed_cba9_8765_4321);
        let message: Vec<u8> = (0..3400u32).map(|i| (i * 167 + i / 253) as u8).collect();
        for len in (0..=1300).chain([2047, 2048, 2176, 3071, 3072, 3073, 3400]) {
            let aad = &message[7..7 + len % 40];
            let wanted = model(&key, aad, &message[..len]);
            for cut in [960, 1024, 333, 4096] {
                assert_eq!(hashed(&key, aad, &message[..len], cut), wanted, "{len} by {cut}");
            }
        }
    }
}
