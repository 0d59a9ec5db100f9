//! Eighteen of ChaCha20's rounds on eight blocks, and Poly1305 of 32 blocks beside them, instruction by instruction.
//!
//! What the compiler makes of the same is 2,660 instructions a step; with these it is 2,470. Beside a neighbour on the same core that is
//! what counts. Three things are done that it does not do:
//!
//! - Two quarter rounds at a time, so that only two of the four words that are added to last have registers; two others wait in
//!   memory, and come back as an operand of their first addition: four moves in two rounds.
//! - The hash is [`step`] in 27 instructions, of which one or two follow each two of a round's. A sum waits for itself, so there are two,
//!   one of the first 21 blocks and one of the last 11, joined at the end: `first r^11 + second`.
//! - Nothing is copied but into `rdx`, from where a product takes it: a word of the sum is free from then on.
#![allow(unsafe_code, reason = "instructions, on registers and on the memory that the caller vouches for")]

use std::arch::asm;
use std::arch::x86_64::*;

use zeroize::Zeroize;

use super::poly64::{BLOCK, Hash, step};
use super::stream256::op;

/// Blocks of the hash that go with a step: three with each pair of rounds, and two.
pub(super) const HASHED: usize = 3 * PAIRS + 2;

/// How many of them the second sum takes.
pub(super) const BEHIND: usize = PAIRS + 1;

/// Pairs of rounds, the first of which is [`stream256`](super::stream256)'s.
const PAIRS: usize = 10;

/// What the instructions find at one address.
#[repr(C, align(32))]
#[derive(Zeroize)]
pub(super) struct Beside {
    /// `r0`, `r1` and `s` of [`step`].
    pub(super) factor: [u64; 3],
    /// So that registers that wait are aligned.
    unused: u64,
    /// Words 10, 11, 8 and 9 of the blocks, whenever two others have the registers.
    waiting: [[u32; 8]; 4],
}

impl Beside {
    pub(super) fn new(factor: [u64; 3]) -> Beside {
        Beside { factor, unused: 0, waiting: [[0; 8]; 4] }
    }
}

/// Part `$n` of [`step`]: an instruction, or two that share a carry. `$h0` to `$h2` have the sum, `$at` is the block's address, `rdi` the
/// factor's. Instructions on vectors, which leave carries alone, may follow each; no other addition may.
macro_rules! hash {
    (0, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("add ", $h0, ", [", $at, "]\nadc ", $h1, ", [", $at, " + 8]\n")
    };
    (1, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("adc ", $h2, ", 1\nmov rdx, ", $h0, "\n")
    };
    // h0 r0
    (2, $h0:literal $h1:literal $h2:literal $at:literal) => {
        "mulx rax, rcx, [rdi]\n"
    };
    (3, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("mov rdx, ", $h1, "\n")
    };
    // h1 s
    (4, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("mulx rsi, ", $h1, ", [rdi + 16]\n")
    };
    // d0 in rax and rcx
    (5, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("add rcx, ", $h1, "\nadc rax, rsi\n")
    };
    // h1 r0
    (6, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("mulx rsi, ", $h1, ", [rdi]\n")
    };
    (7, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("mov rdx, ", $h0, "\n")
    };
    // h0 r1
    (8, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("mulx rdx, ", $h0, ", [rdi + 8]\n")
    };
    (9, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("add ", $h1, ", ", $h0, "\nadc rsi, rdx\n")
    };
    (10, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("mov rdx, ", $h2, "\n")
    };
    // h2 s
    (11, $h0:literal $h1:literal $h2:literal $at:literal) => {
        "imul rdx, [rdi + 16]\n"
    };
    // h2 r0
    (12, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("imul ", $h2, ", [rdi]\n")
    };
    // h2 s + (d0 >> 64) < 2^63 + 2^61.2
    (13, $h0:literal $h1:literal $h2:literal $at:literal) => {
        "add rdx, rax\n"
    };
    // d1's low word in h1, t in h2
    (14, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("add ", $h1, ", rdx\nadc ", $h2, ", rsi\n")
    };
    (15, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("mov rdx, ", $h2, "\n")
    };
    (16, $h0:literal $h1:literal $h2:literal $at:literal) => {
        "shr rdx, 2\n"
    };
    (17, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("and ", $h2, ", 3\n")
    };
    // 5 (t >> 2)
    (18, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("lea ", $h0, ", [rdx + 4 * rdx]\n")
    };
    (19, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("add ", $h0, ", rcx\n")
    };
    (20, $h0:literal $h1:literal $h2:literal $at:literal) => {
        concat!("adc ", $h1, ", 0\nadc ", $h2, ", 0\n")
    };
}

/// What stands beside two instructions of a round: a part of the first sum's next block, or of the one after, or of the second sum's; or
/// the way to the blocks of the next two rounds.
macro_rules! beside {
    (first, $n:tt) => {
        hash!($n, "r8" "r9" "r10" "r14 + 2 * r15")
    };
    (another, $n:tt) => {
        hash!($n, "r8" "r9" "r10" "r14 + 2 * r15 + 16")
    };
    (second, $n:tt) => {
        // 11 blocks before the end of 32, from the third at r14; the one before was the first of them.
        hash!($n, "r11" "r12" "r13" "r14 + r15 + 320")
    };
    (next, $n:tt) => {
        "add r15, 16\n"
    };
}

/// An instruction on three registers, and on three others.
macro_rules! twice {
    ($op:literal, $a:literal $b:literal $c:literal, $d:literal $e:literal $f:literal) => {
        concat!($op, " ", $a, ", ", $b, ", ", $c, "\n", $op, " ", $d, ", ", $e, ", ", $f, "\n")
    };
}

/// Two quarter rounds (RFC 8439 section 2.1) side by side, each on the registers of its four words, with one more to work with; `from` is
/// where the third word is, if `to` is not empty it is stored by that. Sixteen parts of the hash among them.
macro_rules! two_quarters {
    ([$a:literal $b:literal $c:literal $d:literal $t:literal from $from:literal to $to:literal]
     [$e:literal $f:literal $g:literal $h:literal $u:literal from $from2:literal to $to2:literal]
     $(($who:ident $($n:tt)*))*) => {
        two_quarters!(@ [$a $b $c $d $t $from $to] [$e $f $g $h $u $from2 $to2] $($([$who, $n])*)*)
    };
    (@ [$a:literal $b:literal $c:literal $d:literal $t:literal $from:literal $to:literal]
       [$e:literal $f:literal $g:literal $h:literal $u:literal $from2:literal $to2:literal]
       [$($s0:tt)*] [$($s1:tt)*] [$($s2:tt)*] [$($s3:tt)*] [$($s4:tt)*] [$($s5:tt)*] [$($s6:tt)*] [$($s7:tt)*]
       [$($s8:tt)*] [$($s9:tt)*] [$($s10:tt)*] [$($s11:tt)*] [$($s12:tt)*] [$($s13:tt)*] [$($s14:tt)*] [$($s15:tt)*]) => {
        concat!(
            twice!("vpaddd", $a $a $b, $e $e $f), beside!($($s0)*),
            twice!("vpxor", $d $d $a, $h $h $e), beside!($($s1)*),
            twice!("vpshufb", $d $d "[rip + {by_two}]", $h $h "[rip + {by_two}]"), beside!($($s2)*),
            twice!("vpaddd", $c $d $from, $g $h $from2), beside!($($s3)*),
            twice!("vpxor", $b $b $c, $f $f $g), beside!($($s4)*),
            twice!("vpslld", $t $b "12", $u $f "12"), beside!($($s5)*),
            twice!("vpsrld", $b $b "20", $f $f "20"), beside!($($s6)*),
            twice!("vpor", $b $b $t, $f $f $u), beside!($($s7)*),
            twice!("vpaddd", $a $a $b, $e $e $f), beside!($($s8)*),
            twice!("vpxor", $d $d $a, $h $h $e), beside!($($s9)*),
            twice!("vpshufb", $d $d "[rip + {by_one}]", $h $h "[rip + {by_one}]"), beside!($($s10)*),
            twice!("vpaddd", $c $c $d, $g $g $h), beside!($($s11)*),
            twice!("vpxor", $b $b $c, $f $f $g), beside!($($s12)*), $to, $to2,
            twice!("vpslld", $t $b "7", $u $f "7"), beside!($($s13)*),
            twice!("vpsrld", $b $b "25", $f $f "25"), beside!($($s14)*),
            twice!("vpor", $b $b $t, $f $f $u), beside!($($s15)*),
        )
    };
}

/// The rounds of eight blocks after the first two, and [`HASHED`] blocks of the hash, at `text`.
///
/// # Safety
/// So many blocks must be readable at `text`.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
pub(super) unsafe fn rounds(x: &mut [__m256i; 16], hash: &mut Hash, text: *const u8) {
    let [mut a0, mut a1, mut a2, mut a3, mut b0, mut b1, mut b2, mut b3, mut c0, mut c1, c2, c3, ..] = *x;
    let [.., mut d0, mut d1, mut d2, mut d3] = *x;
    // SAFETY: one of the caller's blocks, for every number below 32.
    let block =
        |i: usize| u128::from_le_bytes(unsafe { text.add(i * BLOCK).cast::<[u8; BLOCK]>().read_unaligned() });
    let factor = &hash.beside.factor;
    let [mut h0, mut h1, mut h2] = step(step(hash.sum, factor, block(0)), factor, block(1));
    let [mut k0, mut k1, mut k2] = step([0; 3], factor, block(HASHED - BEHIND));
    let place = &raw mut hash.beside;
    const { assert!(std::mem::offset_of!(Beside, waiting) == 32) };
    // SAFETY: `waiting` is as large as four registers, and aligned for them by the struct's alignment and its place. The instructions read the
    // factor, the caller's blocks 2 to 19 and 22 to 30 and two constants, and write registers and `waiting`.
    unsafe {
        let waiting = (&raw mut (*place).waiting).cast::<__m256i>();
        waiting.write(c2);
        waiting.add(1).write(c3);
        asm!(
            "2:",
            // Columns 0 and 1, then 2 and 3; diagonals 0 and 1, which have the third words of the latter, then 2 and 3.
            two_quarters!(
                ["ymm0" "ymm4" "ymm12" "ymm8" "ymm14" from "ymm12" to "vmovdqa [rdi + 96], ymm12\n"]
                ["ymm1" "ymm5" "ymm13" "ymm9" "ymm15" from "ymm13" to "vmovdqa [rdi + 128], ymm13\n"]
                (first 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
            ),
            two_quarters!(
                ["ymm2" "ymm6" "ymm12" "ymm10" "ymm14" from "[rdi + 32]" to ""]
                ["ymm3" "ymm7" "ymm13" "ymm11" "ymm15" from "[rdi + 64]" to ""]
                (first 16 17 18 19 20) (second 0 1 2 3 4 5 6 7 8 9 10)
            ),
            two_quarters!(
                ["ymm0" "ymm5" "ymm12" "ymm11" "ymm14" from "ymm12" to "vmovdqa [rdi + 32], ymm12\n"]
                ["ymm1" "ymm6" "ymm13" "ymm8" "ymm15" from "ymm13" to "vmovdqa [rdi + 64], ymm13\n"]
                (second 11 12 13 14 15 16 17 18 19 20) (another 0 1 2 3 4 5)
            ),
            two_quarters!(
                ["ymm2" "ymm7" "ymm12" "ymm9" "ymm14" from "[rdi + 96]" to ""]
                ["ymm3" "ymm4" "ymm13" "ymm10" "ymm15" from "[rdi + 128]" to ""]
                (another 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20) (next 0)
            ),
            "cmp r15, 144",
            "jne 2b",
            by_two = sym op::BY_TWO,
            by_one = sym op::BY_ONE,
            in("rdi") place,
            in("r14") text.add(2 * BLOCK),
            inout("r15") 0u64 => _,
            inout("r8") h0,
            inout("r9") h1,
            inout("r10") h2,
            inout("r11") k0,
            inout("r12") k1,
            inout("r13") k2,
            out("rax") _,
            out("rcx") _,
            out("rdx") _,
            out("rsi") _,
            inout("ymm0") a0,
            inout("ymm1") a1,
            inout("ymm2") a2,
            inout("ymm3") a3,
            inout("ymm4") b0,
            inout("ymm5") b1,
            inout("ymm6") b2,
            inout("ymm7") b3,
            inout("ymm8") d0,
            inout("ymm9") d1,
            inout("ymm10") d2,
            inout("ymm11") d3,
            inout("ymm12") c0,
            inout("ymm13") c1,
            out("ymm14") _,
            out("ymm15") _,
            options(nostack)
        );
        *x = [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, waiting.read(), waiting.add(1).read(), d0, d1, d2, d3];
    }
    let factor = &hash.beside.factor;
    let first = step([h0, h1, h2], factor, block(HASHED - BEHIND - 1));
    let second = step([k0, k1, k2], factor, block(HASHED - 1));
    hash.join(&first, &second);
}
