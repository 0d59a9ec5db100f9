//! Kernels with 256-bit AES instructions.
#![allow(unsafe_code, reason = "intrinsics; every entry demands the witness that its features were detected")]

use std::arch::x86_64::*;

use super::aes_ni::{from_u128, reverse, to_u128};
use super::gcm::gcm_kernels;
use super::generic::{Vector, WIDTH, held, kernels, load_block_part, mask_of, store_block_part};
use crate::detect::Vaes256;

kernels!(Vaes256, Ymm, "vaes,vpclmulqdq,avx2,aes,pclmulqdq");
gcm_kernels!(Vaes256, Ymm, "vaes,vpclmulqdq,avx2,aes,pclmulqdq");

#[derive(Clone, Copy)]
pub(crate) struct Ymm(__m256i);

// SAFETY: two blocks in a 32-byte register; unaligned loads and stores of exactly that.
unsafe impl Vector for Ymm {
    const LANES: usize = 2;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Ymm {
        // SAFETY: pointer and instructions are the caller's.
        Ymm(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: pointer and instructions are the caller's.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn gather(from: *const *const u8, at: usize) -> Ymm {
        // SAFETY: pointers and instructions are the caller's.
        unsafe {
            let block = |lane: usize| _mm_loadu_si128((*from.add(lane)).add(at).cast());
            Ymm(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(block(0)), block(1)))
        }
    }

    #[inline(always)]
    unsafe fn scatter(self, to: *const *mut u8, at: usize) {
        // SAFETY: pointers and instructions are the caller's.
        unsafe {
            _mm_storeu_si128((*to).add(at).cast(), _mm256_castsi256_si128(self.0));
            _mm_storeu_si128((*to.add(1)).add(at).cast(), _mm256_extracti128_si256::<1>(self.0));
        }
    }

    #[inline(always)]
    unsafe fn splat(block: __m128i) -> Ymm {
        // SAFETY: instructions are the caller's.
        Ymm(unsafe { _mm256_broadcastsi128_si256(block) })
    }

    #[inline(always)]
    unsafe fn xor(self, other: Ymm) -> Ymm {
        // SAFETY: instructions are the caller's.
        Ymm(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn encrypt(self, key: Ymm) -> Ymm {
        // SAFETY: instructions are the caller's.
        Ymm(unsafe { _mm256_aesenc_epi128(self.0, key.0) })
    }

    #[inline(always)]
    unsafe fn encrypt_last(self, key: Ymm) -> Ymm {
        // SAFETY: instructions are the caller's.
        Ymm(unsafe { _mm256_aesenclast_epi128(self.0, key.0) })
    }

    #[inline(always)]
    unsafe fn decrypt(self, key: Ymm) -> Ymm {
        // SAFETY: instructions are the caller's.
        Ymm(unsafe { _mm256_aesdec_epi128(self.0, key.0) })
    }

    #[inline(always)]
    unsafe fn decrypt_last(self, key: Ymm) -> Ymm {
        // SAFETY: instructions are the caller's.
        Ymm(unsafe { _mm256_aesdeclast_epi128(self.0, key.0) })
    }

    #[inline(always)]
    unsafe fn add64(self, other: Ymm) -> Ymm {
        // SAFETY: instructions are the caller's.
        Ymm(unsafe { _mm256_add_epi64(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn reversed(self) -> Ymm {
        // SAFETY: instructions are the caller's.
        unsafe { Ymm(_mm256_shuffle_epi8(self.0, _mm256_broadcastsi128_si256(reverse()))) }
    }

    #[inline(always)]
    unsafe fn times_stride(self) -> Ymm {
        // SAFETY: instructions are the caller's. 16 blocks are x^16: two bytes move out and come back times 0x87.
        unsafe {
            let out = _mm256_bsrli_epi128::<14>(self.0);
            let back = _mm256_clmulepi64_epi128::<0>(out, _mm256_set1_epi64x(0x87));
            Ymm(_mm256_xor_si256(_mm256_bslli_epi128::<2>(self.0), back))
        }
    }

    #[inline(always)]
    unsafe fn times(self, power: usize) -> Ymm {
        // SAFETY: instructions are the caller's. What leaves the lower half comes into the upper one; what leaves that comes
        // back times 0x87.
        unsafe {
            let over = _mm256_srl_epi64(self.0, _mm_cvtsi32_si128(64 - power as i32));
            let back = _mm256_clmulepi64_epi128::<1>(over, _mm256_set1_epi64x(0x87));
            let shifted = _mm256_sll_epi64(self.0, _mm_cvtsi32_si128(power as i32));
            Ymm(_mm256_xor_si256(_mm256_xor_si256(shifted, _mm256_bslli_epi128::<8>(over)), back))
        }
    }

    #[inline(always)]
    unsafe fn powers(block: __m128i) -> Ymm {
        // SAFETY: instructions are the caller's.
        unsafe {
            let all = Ymm::splat(block);
            Ymm(_mm256_blend_epi32::<0xf0>(all.0, all.times(1).0))
        }
    }

    #[inline(always)]
    unsafe fn lowest(self) -> __m128i {
        // SAFETY: instructions are the caller's.
        unsafe { _mm256_castsi256_si128(self.0) }
    }

    #[inline(always)]
    unsafe fn preceded_by(self, before: __m128i) -> Ymm {
        // SAFETY: instructions are the caller's.
        unsafe { Ymm(_mm256_permute2x128_si256::<0x20>(_mm256_castsi128_si256(before), self.0)) }
    }

    #[inline(always)]
    unsafe fn last(self) -> __m128i {
        // SAFETY: instructions are the caller's.
        unsafe { _mm256_extracti128_si256::<1>(self.0) }
    }

    /// A multiplication is four operations on AMD's Zen 3, and they compete with everything else.
    const KARATSUBA: bool = true;

    #[inline(always)]
    unsafe fn zero() -> Ymm {
        // SAFETY: instructions are the caller's.
        Ymm(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn lone(block: __m128i) -> Ymm {
        // SAFETY: instructions are the caller's.
        Ymm(unsafe { _mm256_zextsi128_si256(block) })
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Ymm {
        // SAFETY: pointer and instructions are the caller's; of 16 bytes or more the first block is whole.
        unsafe {
            if len < 16 {
                return Ymm::lone(from_u128(load_block_part(from, len)));
            }
            let second = from_u128(load_block_part(from.add(16), len - 16));
            Ymm(_mm256_inserti128_si256::<1>(Ymm::lone(_mm_loadu_si128(from.cast())).0, second))
        }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        // SAFETY: pointer and instructions are the caller's; of 16 bytes or more the first block is whole.
        unsafe {
            let first = _mm256_castsi256_si128(self.0);
            if len < 16 {
                return store_block_part(to_u128(first), to, len);
            }
            _mm_storeu_si128(to.cast(), first);
            store_block_part(to_u128(self.last()), to.add(16), len - 16);
        }
    }

    #[inline(always)]
    unsafe fn cut(self, len: usize) -> Ymm {
        // SAFETY: instructions are the caller's; `len` is less than a vector.
        Ymm(unsafe { _mm256_and_si256(self.0, _mm256_loadu_si256(mask_of(len).cast())) })
    }

    #[inline(always)]
    unsafe fn add32(self, other: Ymm) -> Ymm {
        // SAFETY: instructions are the caller's.
        Ymm(unsafe { _mm256_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn multiply<const HALVES: i32>(self, other: Ymm) -> Ymm {
        // SAFETY: instructions are the caller's.
        Ymm(unsafe { _mm256_clmulepi64_epi128::<HALVES>(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn halves_swapped(self) -> Ymm {
        // SAFETY: instructions are the caller's.
        Ymm(unsafe { _mm256_shuffle_epi32::<0x4e>(self.0) })
    }

    #[inline(always)]
    unsafe fn first_column(self, others: Ymm) -> Ymm {
        // SAFETY: instructions are the caller's.
        Ymm(unsafe { _mm256_blend_epi32::<0x11>(others.0, self.0) })
    }

    #[inline(always)]
    unsafe fn folded(self) -> __m128i {
        // SAFETY: instructions are the caller's.
        unsafe { _mm_xor_si128(_mm256_castsi256_si128(self.0), self.last()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn stay(&mut self) {
        // SAFETY: there is no instruction in it.
        unsafe {
            held!(ymm_reg, nomem: self);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn hold(states: &mut [Ymm; WIDTH]) {
        let [a0, a1, a2, a3, a4, a5, a6, a7] = states;
        // SAFETY: there is no instruction in it.
        unsafe {
            held!(ymm_reg, nomem: a0 a1 a2 a3 a4 a5 a6 a7);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn fence(states: &mut [Ymm; WIDTH], sums: &mut [Ymm; 3]) {
        let [a0, a1, a2, a3, a4, a5, a6, a7] = states;
        let [low, middle, high] = sums;
        // SAFETY: there is no instruction in it.
        unsafe {
            held!(ymm_reg: a0 a1 a2 a3 a4 a5 a6 a7 low middle high);
        }
    }
}
