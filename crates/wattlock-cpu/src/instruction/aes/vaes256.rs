//! Kernels with 256-bit AES instructions.
#![allow(unsafe_code, reason = "intrinsics; every entry demands the witness that its features were detected")]

use std::arch::x86_64::*;

use super::aes_ni::reverse;
use super::generic::{Vector, ctr as generic_ctr, kernels};
use crate::detect::Vaes256;

kernels!(Vaes256, Ymm, "vaes,vpclmulqdq,avx2,aes,pclmulqdq", ctr: generic_ctr);

#[derive(Clone, Copy)]
pub(super) struct Ymm(__m256i);

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
    unsafe fn preceded_by(self, before: __m128i) -> Ymm {
        // SAFETY: instructions are the caller's.
        unsafe { Ymm(_mm256_permute2x128_si256::<0x20>(_mm256_castsi128_si256(before), self.0)) }
    }

    #[inline(always)]
    unsafe fn last(self) -> __m128i {
        // SAFETY: instructions are the caller's.
        unsafe { _mm256_extracti128_si256::<1>(self.0) }
    }
}
