//! How many multiplications of lanes this CPU makes, at the clock it has under nothing else: what a kernel is measured
//! against.

use std::arch::asm;
use std::time::{Duration, Instant};

use super::Isa;

/// Multiplications in one turn of the loops below: more than a CPU has in flight at four or five cycles each, two at a
/// time.
const TURN: u64 = 12;
/// Turns between two readings of the clock.
const TURNS: u64 = 200_000;

/// Multiplications a second on this core for a while: operands in registers, and with one operand of each loaded from
/// the first-level cache. A product of two limbs takes two of them: 512-bit multiply-adds of 52 bits in eight lanes, or
/// 256-bit fused multiply-adds of doubles in four.
pub fn multiplications_per_second(isa: Isa, window: Duration) -> (f64, f64) {
    // SAFETY: the witness says that the CPU has the instructions of the loops.
    unsafe {
        match isa {
            Isa::Ifma512(_) => (rate(window, ifma_from_registers), rate(window, ifma_with_loads)),
            Isa::Fma256(_) => (rate(window, fma_from_registers), rate(window, fma_with_loads)),
        }
    }
}

/// # Safety
/// The CPU must have the instructions of `turns`.
unsafe fn rate(window: Duration, turns: unsafe fn(u64)) -> f64 {
    // SAFETY: the caller's.
    let turns = |count| unsafe { turns(count) };
    turns(TURNS);
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < window {
        turns(TURNS);
        done += TURN * TURNS;
    }
    done as f64 / start.elapsed().as_secs_f64()
}

/// The two loops of one instruction. Both accumulate in the twelve registers that are listed.
macro_rules! loops {
    ($from_registers:ident, $with_loads:ident: $multiply:literal, $vector:literal; $($number:literal $register:tt)+) => {
        /// # Safety
        /// The CPU must have the instruction.
        unsafe fn $from_registers(turns: u64) {
            // SAFETY: the caller's; registers named as clobbered; no memory.
            unsafe {
                asm!(
                    "2:",
                    $(concat!($multiply, " ", $vector, $number, ", ", $vector, "15, ", $vector, "14"),)+
                    "dec {turns}", "jnz 2b",
                    turns = inout(reg) turns => _,
                    $(out($register) _,)+
                    options(nomem, nostack),
                );
            }
        }

        /// # Safety
        /// The CPU must have the instruction.
        unsafe fn $with_loads(turns: u64) {
            #[repr(align(64))]
            struct Lines([u64; 8 * TURN as usize]);
            let lines = Lines([1; 8 * TURN as usize]);
            // SAFETY: the caller's; registers named as clobbered; reads twelve lines of 64 bytes that are there.
            unsafe {
                asm!(
                    "2:",
                    $(concat!($multiply, " ", $vector, $number, ", ", $vector, "15, [{at} + 64 * ", $number, "]"),)+
                    "dec {turns}", "jnz 2b",
                    turns = inout(reg) turns => _, at = in(reg) lines.0.as_ptr(),
                    $(out($register) _,)+
                    options(readonly, nostack),
                );
            }
        }
    };
    ($from_registers:ident, $with_loads:ident: $multiply:literal, $vector:literal) => {
        loops! {
            $from_registers, $with_loads: $multiply, $vector;
            0 "xmm0" 1 "xmm1" 2 "xmm2" 3 "xmm3" 4 "xmm4" 5 "xmm5"
            6 "xmm6" 7 "xmm7" 8 "xmm8" 9 "xmm9" 10 "xmm10" 11 "xmm11"
        }
    };
}

loops!(ifma_from_registers, ifma_with_loads: "vpmadd52luq", "zmm");
loops!(fma_from_registers, fma_with_loads: "vfmadd231pd", "ymm");
