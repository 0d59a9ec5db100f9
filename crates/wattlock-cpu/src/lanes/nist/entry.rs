//! The thin entries: kernels compiled with AVX-512 IFMA, from and to plain numbers. What they leave in memory is wiped.

use core::arch::x86_64::{__m512i, _mm512_setzero_si512};
use std::mem::MaybeUninit;

use zeroize::Zeroizing;

use super::super::vector::{Ifma, LANES, Vector};
use super::curve::Curve;
use super::field::Limbs;
use super::kernel;
use super::multiply::empty_table;
use super::nonce::{self, SEED};
use super::point::Point;
use super::words::{gather, scatter};
use crate::detect::Ifma512;

/// One number for each lane.
type Numbers<const N: usize> = Zeroizing<[Limbs<N>; LANES]>;

/// Coordinates x or r, and y or s, for each lane.
type Pairs<const N: usize> = [Numbers<N>; 2];

macro_rules! entries {
    ($($(#[$doc:meta])* fn $name:ident / $inner:ident ($($argument:ident: $type:ty),*) -> $out:ty, scrubs $kib:expr, $body:block)*) => {$(
        $(#[$doc])*
        #[inline(never)]
        pub fn $name<C: Curve<N>, const N: usize>(_: Ifma512, $($argument: $type),*) -> $out {
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512ifma")]
            #[inline(never)]
            fn $inner<C: Curve<N>, const N: usize>($($argument: $type),*) -> $out $body

            // SAFETY: the witness proves these instructions.
            unsafe {
                let out = $inner::<C, N>($($argument),*);
                if N == 5 { scrub::<{ $kib.0 * 16 }>() } else { scrub::<{ $kib.1 * 16 }>() }
                out
            }
        }
    )*};
}

entries! {
    /// [`kernel::derive`], and in whose lanes (lane 0 lowest) the peer was on the curve and the result is sound.
    fn derive / derive_ifma (scalars: &[Limbs<N>; LANES], peers: &[[Limbs<N>; LANES]; 2]) -> (Numbers<N>, [u8; 2]), scrubs (46, 66), {
        let mut table = empty_table::<Ifma, N>();
        let peer = [gather(&peers[0]), gather(&peers[1])];
        let (x, good) = kernel::derive::<C, Ifma, N>(gather(scalars), peer, &mut table, undisturbed);
        (Zeroizing::new(scatter(x)), good.map(Ifma::reveal_mask))
    }

    /// [`kernel::sign`], and in whose lanes neither `r` nor `s` is zero and both are sound.
    fn sign / sign_ifma (nonces: &[Limbs<N>; LANES], keys: &[Limbs<N>; LANES], digests: &[Limbs<N>; LANES]) -> (Pairs<N>, [u8; 2]), scrubs (26, 38), {
        let ([r, s], good) = kernel::sign::<C, Ifma, N>(gather(nonces), gather(keys), gather(digests), undisturbed);
        ([Zeroizing::new(scatter(r)), Zeroizing::new(scatter(s))], good.map(Ifma::reveal_mask))
    }

    /// [`nonce::candidate`], word by word.
    fn nonces / nonces_ifma (seeds: &[[u64; SEED]; LANES]) -> Zeroizing<[[u64; LANES]; 8]>, scrubs (12, 12), {
        let words = nonce::candidate::<C, Ifma, N>(&gather(seeds));
        let mut out = Zeroizing::new([[0; LANES]; 8]);
        for (numbers, word) in out.iter_mut().zip(words) {
            *numbers = word.reveal();
        }
        out
    }

    /// [`kernel::generate`], and in whose lanes it is sound.
    fn generate / generate_ifma (scalars: &[Limbs<N>; LANES]) -> (Pairs<N>, u8), scrubs (22, 30), {
        let ([x, y], sound) = kernel::generate::<C, Ifma, N>(gather(scalars), undisturbed);
        ([Zeroizing::new(scatter(x)), Zeroizing::new(scatter(y))], Ifma::reveal_mask(sound))
    }
}

/// What happens to a point between windows, unless a test says otherwise.
#[inline(always)]
fn undisturbed<const N: usize>(_: usize, _: &mut Point<Ifma, N>) {}

/// Overwrites the stack that a kernel has just used, with its tables and spilled registers, as many lines of 64 bytes as it has
/// at most: a kernel's own variables could be wiped one by one, what the compiler spilled could not.
#[target_feature(enable = "avx512f")]
#[inline(never)]
fn scrub<const LINES: usize>() {
    let mut stack = MaybeUninit::<[__m512i; LINES]>::uninit();
    let line = stack.as_mut_ptr().cast::<__m512i>();
    for at in 0..LINES {
        // SAFETY: a write within our own variable, aligned as it asks; volatile, so that it is not left out.
        unsafe { line.add(at).write_volatile(_mm512_setzero_si512()) };
    }
}
