//! Kernels with 512-bit AES instructions.
#![allow(unsafe_code, reason = "intrinsics; every entry demands the witness that its features were detected")]

use std::arch::x86_64::*;

use super::aes_ni::reverse;
use super::generic::{Vector, ctr as generic_ctr, kernels};
use crate::detect::Vaes512;

kernels!(Vaes512, Zmm, "vaes,vpclmulqdq,avx512f,avx512bw,avx512vl,avx512vbmi,avx2,aes,pclmulqdq", ctr: generic_ctr);

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
    unsafe fn preceded_by(self, before: __m128i) -> Zmm {
        // SAFETY: instructions are the caller's.
        unsafe { Zmm(_mm512_alignr_epi64::<6>(self.0, _mm512_broadcast_i32x4(before))) }
    }

    #[inline(always)]
    unsafe fn last(self) -> __m128i {
        // SAFETY: instructions are the caller's.
        unsafe { _mm512_extracti32x4_epi32::<3>(self.0) }
    }
}
