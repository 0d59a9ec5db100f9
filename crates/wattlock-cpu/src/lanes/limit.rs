//! How many multiplications of lanes this CPU makes, at the clock it has under nothing else: what a kernel is measured
//! against.

use std::arch::asm;
use std::time::{Duration, Instant};

use crate::detect::Ifma512;

/// Multiply-adds in one turn of the loops below: more than a CPU has in flight at four cycles each, two at a time.
const TURN: u64 = 12;
/// Turns between two readings of the clock.
const TURNS: u64 = 200_000;

/// 512-bit multiply-adds of 52 bits a second on this core for a while: operands in registers, and with one operand of
/// each loaded from the first-level cache.
pub fn multiplications_per_second(isa: Ifma512, window: Duration) -> (f64, f64) {
    (rate(isa, window, from_registers), rate(isa, window, with_loads))
}

fn rate(isa: Ifma512, window: Duration, turns: fn(Ifma512, u64)) -> f64 {
    turns(isa, TURNS);
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < window {
        turns(isa, TURNS);
        done += TURN * TURNS;
    }
    done as f64 / start.elapsed().as_secs_f64()
}

fn from_registers(_: Ifma512, turns: u64) {
    // SAFETY: the witness says that the CPU has the instructions; registers named as clobbered; no memory.
    unsafe {
        asm!(
            "2:",
            "vpmadd52luq zmm0, zmm31, zmm30", "vpmadd52luq zmm1, zmm31, zmm30", "vpmadd52luq zmm2, zmm31, zmm30",
            "vpmadd52luq zmm3, zmm31, zmm30", "vpmadd52luq zmm4, zmm31, zmm30", "vpmadd52luq zmm5, zmm31, zmm30",
            "vpmadd52luq zmm6, zmm31, zmm30", "vpmadd52luq zmm7, zmm31, zmm30", "vpmadd52luq zmm8, zmm31, zmm30",
            "vpmadd52luq zmm9, zmm31, zmm30", "vpmadd52luq zmm10, zmm31, zmm30", "vpmadd52luq zmm11, zmm31, zmm30",
            "dec {turns}", "jnz 2b",
            turns = inout(reg) turns => _,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
            out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
            options(nomem, nostack),
        );
    }
}

fn with_loads(_: Ifma512, turns: u64) {
    #[repr(align(64))]
    struct Lines([u64; 8 * TURN as usize]);
    let lines = Lines([1; 8 * TURN as usize]);
    // SAFETY: as above; reads twelve lines of 64 bytes that are there.
    unsafe {
        asm!(
            "2:",
            "vpmadd52luq zmm0, zmm31, [{at}]", "vpmadd52luq zmm1, zmm31, [{at} + 64]",
            "vpmadd52luq zmm2, zmm31, [{at} + 128]", "vpmadd52luq zmm3, zmm31, [{at} + 192]",
            "vpmadd52luq zmm4, zmm31, [{at} + 256]", "vpmadd52luq zmm5, zmm31, [{at} + 320]",
            "vpmadd52luq zmm6, zmm31, [{at} + 384]", "vpmadd52luq zmm7, zmm31, [{at} + 448]",
            "vpmadd52luq zmm8, zmm31, [{at} + 512]", "vpmadd52luq zmm9, zmm31, [{at} + 576]",
            "vpmadd52luq zmm10, zmm31, [{at} + 640]", "vpmadd52luq zmm11, zmm31, [{at} + 704]",
            "dec {turns}", "jnz 2b",
            turns = inout(reg) turns => _, at = in(reg) lines.0.as_ptr(),
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
            out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
            options(readonly, nostack),
        );
    }
}
