//! Kernels with 512-bit AES instructions.
#![allow(unsafe_code, reason = "intrinsics; every entry demands the witness that its features were detected")]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::aes_ni::reverse;
use super::gcm::gcm_kernels;
use super::generic::{Vector, WIDTH, held, kernels};
use crate::detect::Vaes512;

kernels!(Vaes512, Zmm, "vaes,vpclmulqdq,avx512f,avx512bw,avx512vl,avx2,aes,pclmulqdq", ctr: ctr_cached);
gcm_kernels!(Vaes512, Zmm, "vaes,vpclmulqdq,avx512f,avx512bw,avx512vl,avx2,aes,pclmulqdq");

/// From this many bytes on the cache of [`ctr_cached`] is worth making.
const LONG: usize = 8 * 1024;

/// Counters in one page: those that differ in their lowest byte only.
const PAGE: usize = 256;

/// Counters and bytes that one step takes.
const STEP: usize = 4 * WIDTH;
const STEP_BYTES: usize = 16 * STEP;

/// The part of the state after two rounds that depends on the counter's lowest byte, for all of its values.
#[repr(C, align(64))]
struct Cache([MaybeUninit<u128>; PAGE]);

/// Bytes 0, 5 and 10 of the counter block: on these the cache depends, besides the key.
const CACHED_FOR: u128 = 0xff00_0000_00ff_0000_0000_ff00_0000_0000;

/// The byte that the S-box maps to zero: in its place a byte adds nothing to what MixColumns makes of the others.
const NOTHING: i8 = 0x52;

/// The dword of every block that is its first column.
const FIRST_COLUMN: u16 = 0x1111;

/// AES-CTR with the first two rounds done once for 256 counters (after Bernstein and Schwabe, "New AES software speed
/// records", section 4: counter-mode caching; theirs saves table lookups, ours whole rounds).
///
/// Within a page only byte 15 changes. It alone moves the first column of the state after round 1, together with bytes
/// 0, 5 and 10, which stay the same for 2^40 counters; the other columns stay the same through the page. MixColumns is
/// linear: the state after round 2 is what the first column adds ([`Cache`], made once a request) xor what the other
/// columns and the round key add ([`rest_of_state`], made once a page). Of ten rounds on the AES unit eight remain,
/// which matters because that unit starts one 512-bit round a cycle and is all this mode waits for: at 64 KiB the limit
/// rises from 6.4 to 7.9 bytes a cycle with AES-128, of which about 7.6 are reached on Emerald Rapids. The last round
/// as register lookups (`vpermi2b`) beside the AES unit was tried too, and was slower.
///
/// # Safety
/// As [`generic::ctr`] with `V` = [`Zmm`].
#[inline(always)]
unsafe fn ctr_cached<V: Vector, const R: usize>(keys: &Schedule, mut counter: u128, mut at: Cursor) {
    if at.len < LONG {
        // SAFETY: the caller's.
        return unsafe { direct::<R>(keys, counter, at) };
    }
    // SAFETY: instructions are the caller's; each part is no longer than what is left, and no step leaves its page.
    unsafe {
        let head = (counter as usize).wrapping_neg() % STEP;
        if head > 0 {
            direct::<R>(keys, counter, Cursor { len: 16 * head, ..at });
            counter = counter.wrapping_add(head as u128);
            at.advance(16 * head);
        }
        let k = generic::splat_keys::<Zmm, R>(keys);
        let mut cache = Cache([const { MaybeUninit::uninit() }; PAGE]);
        let mut made_for = !counter;
        while at.len >= STEP_BYTES {
            if (made_for ^ counter) & CACHED_FOR != 0 {
                fill(&mut cache, &k, counter);
                made_for = counter;
            }
            let page = rest_of_state(&k, counter);
            let first = counter as usize % PAGE;
            let steps = ((PAGE - first) / STEP).min(at.len / STEP_BYTES);
            for n in 0..steps {
                step::<R>(&k, page, cache.0.as_ptr().add(first + STEP * n).cast(), at);
                at.advance(STEP_BYTES);
            }
            counter = counter.wrapping_add((STEP * steps) as u128);
        }
        wipe(&mut cache);
        if at.len > 0 {
            direct::<R>(keys, counter, at);
        }
    }
}

/// The plain way, out of line: it is wanted in three places.
#[target_feature(enable = "vaes,vpclmulqdq,avx512f,avx512bw,avx512vl,avx2,aes,pclmulqdq")]
unsafe fn direct<const R: usize>(keys: &Schedule, counter: u128, at: Cursor) {
    // SAFETY: this function enables the instructions; the rest is the caller's.
    unsafe { generic::ctr::<Zmm, R>(keys, counter, at) }
}

/// A counter block in every lane, its lowest byte zero.
///
/// # Safety
/// The instructions must be there.
#[inline(always)]
unsafe fn page_block(counter: u128) -> Zmm {
    let (high, low) = ((counter >> 64) as u64, counter as u64 & !(PAGE as u64 - 1));
    // SAFETY: instructions are the caller's.
    unsafe { Zmm::splat(_mm_set_epi64x(low.swap_bytes().cast_signed(), high.swap_bytes().cast_signed())) }
}

/// # Safety
/// The instructions must be there.
#[inline(always)]
unsafe fn fill(cache: &mut Cache, k: &[Zmm; 15], counter: u128) {
    // SAFETY: instructions are the caller's; the cache holds PAGE / 4 vectors.
    unsafe {
        // Byte 15 is the highest byte of the upper qword: adding there carries into nothing.
        let lanes = _mm512_set_epi64(3 << 56, 0, 2 << 56, 0, 1 << 56, 0, 0, 0);
        let four = _mm512_set_epi64(4 << 56, 0, 4 << 56, 0, 4 << 56, 0, 4 << 56, 0);
        let mut next = page_block(counter).add64(Zmm(lanes));
        for vector in cache.0.chunks_exact_mut(4) {
            let first = next.xor(k[0]).encrypt(k[1]);
            let column = _mm512_mask_mov_epi32(_mm512_set1_epi8(NOTHING), FIRST_COLUMN, first.0);
            Zmm(column).encrypt(Zmm(_mm512_setzero_si512())).store(vector.as_mut_ptr().cast());
            next = next.add64(Zmm(four));
        }
    }
}

/// # Safety
/// The instructions must be there.
#[inline(always)]
unsafe fn rest_of_state(k: &[Zmm; 15], counter: u128) -> Zmm {
    // SAFETY: instructions are the caller's.
    unsafe {
        let first = page_block(counter).xor(k[0]).encrypt(k[1]);
        let rest = _mm512_mask_mov_epi32(first.0, FIRST_COLUMN, _mm512_set1_epi8(NOTHING));
        Zmm(rest).encrypt(k[2])
    }
}

/// # Safety
/// The instructions must be there; `cached` must have STEP filled entries, `at` STEP_BYTES bytes.
#[inline(always)]
unsafe fn step<const R: usize>(k: &[Zmm; 15], page: Zmm, cached: *const u8, at: Cursor) {
    // SAFETY: instructions and pointers are the caller's.
    unsafe {
        let mut x = [page; WIDTH];
        for (i, v) in x.iter_mut().enumerate() {
            *v = page.xor(Zmm::load(cached.add(64 * i)));
        }
        for key in &k[3..R] {
            for v in &mut x {
                *v = v.encrypt(*key);
            }
        }
        for (i, v) in x.into_iter().enumerate() {
            let key = k[R].xor(Zmm::load(at.from.add(64 * i)));
            v.encrypt_last(key).store(at.to.add(64 * i));
        }
    }
}

/// Wipes what depends on the key. 64 wide stores: `Zeroize` would take 256 narrow ones, a tenth of a long request.
///
/// # Safety
/// The instructions must be there.
#[inline(always)]
unsafe fn wipe(cache: &mut Cache) {
    // SAFETY: instructions are the caller's; the cache holds PAGE / 4 vectors.
    unsafe {
        for vector in cache.0.chunks_exact_mut(4) {
            Zmm(_mm512_setzero_si512()).store(vector.as_mut_ptr().cast());
        }
    }
    // The compiler must believe that somebody reads the zeros.
    std::hint::black_box(&raw const *cache);
}

#[derive(Clone, Copy)]
pub(super) struct Zmm(__m512i);

// SAFETY: four blocks in a 64-byte register; unaligned loads and stores of exactly that.
unsafe impl Vector for Zmm {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Zmm {
        // SAFETY: pointer and instructions are the caller's.
        Zmm(unsafe { _mm512_loadu_si512(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: pointer and instructions are the caller's.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn splat(block: __m128i) -> Zmm {
        // SAFETY: instructions are the caller's.
        Zmm(unsafe { _mm512_broadcast_i32x4(block) })
    }

    #[inline(always)]
    unsafe fn xor(self, other: Zmm) -> Zmm {
        // SAFETY: instructions are the caller's.
        Zmm(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn encrypt(self, key: Zmm) -> Zmm {
        // SAFETY: instructions are the caller's.
        Zmm(unsafe { _mm512_aesenc_epi128(self.0, key.0) })
    }

    #[inline(always)]
    unsafe fn encrypt_last(self, key: Zmm) -> Zmm {
        // SAFETY: instructions are the caller's.
        Zmm(unsafe { _mm512_aesenclast_epi128(self.0, key.0) })
    }

    #[inline(always)]
    unsafe fn decrypt(self, key: Zmm) -> Zmm {
        // SAFETY: instructions are the caller's.
        Zmm(unsafe { _mm512_aesdec_epi128(self.0, key.0) })
    }

    #[inline(always)]
    unsafe fn decrypt_last(self, key: Zmm) -> Zmm {
        // SAFETY: instructions are the caller's.
        Zmm(unsafe { _mm512_aesdeclast_epi128(self.0, key.0) })
    }

    #[inline(always)]
    unsafe fn add64(self, other: Zmm) -> Zmm {
        // SAFETY: instructions are the caller's.
        Zmm(unsafe { _mm512_add_epi64(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn reversed(self) -> Zmm {
        // SAFETY: instructions are the caller's.
        unsafe { Zmm(_mm512_shuffle_epi8(self.0, _mm512_broadcast_i32x4(reverse()))) }
    }

    #[inline(always)]
    unsafe fn times_stride(self) -> Zmm {
        // SAFETY: instructions are the caller's. 32 blocks are x^32: four bytes move out and come back times 0x87.
        unsafe {
            let out = _mm512_bsrli_epi128::<12>(self.0);
            let back = _mm512_clmulepi64_epi128::<0>(out, _mm512_set1_epi64(0x87));
            Zmm(_mm512_xor_si512(_mm512_bslli_epi128::<4>(self.0), back))
        }
    }

    #[inline(always)]
    unsafe fn times(self, power: usize) -> Zmm {
        // SAFETY: instructions are the caller's. What leaves the lower half comes into the upper one; what leaves that comes
        // back times 0x87.
        unsafe {
            let over = _mm512_srl_epi64(self.0, _mm_cvtsi32_si128(64 - power as i32));
            let back = _mm512_clmulepi64_epi128::<1>(over, _mm512_set1_epi64(0x87));
            let shifted = _mm512_sll_epi64(self.0, _mm_cvtsi32_si128(power as i32));
            Zmm(_mm512_xor_si512(_mm512_xor_si512(shifted, _mm512_bslli_epi128::<8>(over)), back))
        }
    }

    #[inline(always)]
    unsafe fn powers(block: __m128i) -> Zmm {
        // SAFETY: instructions are the caller's.
        unsafe {
            let all = Zmm::splat(block);
            let once = _mm512_mask_mov_epi64(all.0, 0b0000_1100, all.times(1).0);
            let twice = _mm512_mask_mov_epi64(once, 0b0011_0000, all.times(2).0);
            Zmm(_mm512_mask_mov_epi64(twice, 0b1100_0000, all.times(3).0))
        }
    }

    #[inline(always)]
    unsafe fn lowest(self) -> __m128i {
        // SAFETY: instructions are the caller's.
        unsafe { _mm512_castsi512_si128(self.0) }
    }

    #[inline(always)]
    unsafe fn preceded_by(self, before: __m128i) -> Zmm {
        // SAFETY: instructions are the caller's.
        unsafe { Zmm(_mm512_alignr_epi64::<6>(self.0, _mm512_broadcast_i32x4(before))) }
    }

    #[inline(always)]
    unsafe fn last(self) -> __m128i {
        // SAFETY: instructions are the caller's.
        unsafe { _mm512_extracti32x4_epi32::<3>(self.0) }
    }

    /// Multiplications have the second vector port nearly to themselves, and four need fewer operations in all.
    const KARATSUBA: bool = false;

    #[inline(always)]
    unsafe fn zero() -> Zmm {
        // SAFETY: instructions are the caller's.
        Zmm(unsafe { _mm512_setzero_si512() })
    }

    #[inline(always)]
    unsafe fn lone(block: __m128i) -> Zmm {
        // SAFETY: instructions are the caller's.
        Zmm(unsafe { _mm512_zextsi128_si512(block) })
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Zmm {
        // SAFETY: pointer and instructions are the caller's; masked-out bytes are not touched.
        Zmm(unsafe { _mm512_maskz_loadu_epi8(first(len), from.cast()) })
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        // SAFETY: pointer and instructions are the caller's; masked-out bytes are not touched.
        unsafe { _mm512_mask_storeu_epi8(to.cast(), first(len), self.0) }
    }

    #[inline(always)]
    unsafe fn cut(self, len: usize) -> Zmm {
        // SAFETY: instructions are the caller's.
        Zmm(unsafe { _mm512_maskz_mov_epi8(first(len), self.0) })
    }

    #[inline(always)]
    unsafe fn add32(self, other: Zmm) -> Zmm {
        // SAFETY: instructions are the caller's.
        Zmm(unsafe { _mm512_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn multiply<const HALVES: i32>(self, other: Zmm) -> Zmm {
        // SAFETY: instructions are the caller's.
        Zmm(unsafe { _mm512_clmulepi64_epi128::<HALVES>(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn halves_swapped(self) -> Zmm {
        // SAFETY: instructions are the caller's.
        Zmm(unsafe { _mm512_shuffle_epi32::<0x4e>(self.0) })
    }

    #[inline(always)]
    unsafe fn first_column(self, others: Zmm) -> Zmm {
        // SAFETY: instructions are the caller's.
        Zmm(unsafe { _mm512_mask_mov_epi32(others.0, FIRST_COLUMN, self.0) })
    }

    #[inline(always)]
    unsafe fn folded(self) -> __m128i {
        // SAFETY: instructions are the caller's.
        unsafe {
            let half =
                _mm256_xor_si256(_mm512_castsi512_si256(self.0), _mm512_extracti64x4_epi64::<1>(self.0));
            _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half))
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn fence(states: &mut [Zmm; WIDTH], sums: &mut [Zmm; 3]) {
        let [a0, a1, a2, a3, a4, a5, a6, a7] = states;
        let [low, middle, high] = sums;
        // SAFETY: there is no instruction in it.
        unsafe {
            held!(zmm_reg: a0 a1 a2 a3 a4 a5 a6 a7 low middle high);
        }
    }
}

/// The mask of the first `len` bytes, fewer than 64.
#[inline(always)]
fn first(len: usize) -> __mmask64 {
    debug_assert!(len < 64);
    (1 << len) - 1
}
