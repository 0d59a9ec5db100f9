//! Kernels with 512-bit AES instructions.
#![allow(unsafe_code, reason = "intrinsics; every entry demands the witness that its features were detected")]

use std::arch::x86_64::*;

use super::aes_ni::reverse;
use super::gcm::gcm_kernels;
use super::generic::{Vector, WIDTH, held, kernels};
use crate::detect::Vaes512;

kernels!(Vaes512, Zmm, "vaes,vpclmulqdq,avx512f,avx512bw,avx512vl,avx2,aes,pclmulqdq");
gcm_kernels!(Vaes512, Zmm, "vaes,vpclmulqdq,avx512f,avx512bw,avx512vl,avx2,aes,pclmulqdq");

/// The dword of every block that is its first column.
const FIRST_COLUMN: u16 = 0x1111;

#[derive(Clone, Copy)]
pub(crate) struct Zmm(__m512i);

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
    unsafe fn gather(from: *const *const u8, at: usize) -> Zmm {
        // SAFETY: pointers and instructions are the caller's.
        unsafe {
            let block = |lane: usize| _mm_loadu_si128((*from.add(lane)).add(at).cast());
            let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(block(0)), block(1));
            let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(block(2)), block(3));
            Zmm(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high))
        }
    }

    #[inline(always)]
    unsafe fn scatter(self, to: *const *mut u8, at: usize) {
        // SAFETY: pointers and instructions are the caller's.
        unsafe {
            let to = |lane: usize| (*to.add(lane)).add(at).cast();
            _mm_storeu_si128(to(0), _mm512_castsi512_si128(self.0));
            _mm_storeu_si128(to(1), _mm512_extracti32x4_epi32::<1>(self.0));
            _mm_storeu_si128(to(2), _mm512_extracti32x4_epi32::<2>(self.0));
            _mm_storeu_si128(to(3), _mm512_extracti32x4_epi32::<3>(self.0));
        }
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
