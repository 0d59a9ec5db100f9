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

/// # Safety
/// The CPU must have the instruction.
unsafe fn ifma_from_registers(turns: u64) {
    // SAFETY: the caller's; registers named as clobbered; no memory.
    unsafe {
        asm!(
            "2:",
            "vpmadd52luq zmm0, zmm15, zmm14",
            "vpmadd52luq zmm1, zmm15, zmm14",
            "vpmadd52luq zmm2, zmm15, zmm14",
            "vpmadd52luq zmm3, zmm15, zmm14",
            "vpmadd52luq zmm4, zmm15, zmm14",
            "vpmadd52luq zmm5, zmm15, zmm14",
            "vpmadd52luq zmm6, zmm15, zmm14",
            "vpmadd52luq zmm7, zmm15, zmm14",
            "vpmadd52luq zmm8, zmm15, zmm14",
            "vpmadd52luq zmm9, zmm15, zmm14",
            "vpmadd52luq zmm10, zmm15, zmm14",
            "vpmadd52luq zmm11, zmm15, zmm14",
            "dec {turns}", "jnz 2b",
            turns = inout(reg) turns => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            options(nomem, nostack),
        );
    }
}

/// # Safety
/// The CPU must have the instruction.
unsafe fn ifma_with_loads(turns: u64) {
    #[repr(align(64))]
    struct Lines([u64; 8 * TURN as usize]);
    let lines = Lines([1; 8 * TURN as usize]);
    // SAFETY: the caller's; registers named as clobbered; reads twelve lines of 64 bytes that are there.
    unsafe {
        asm!(
            "2:",
            "vpmadd52luq zmm0, zmm15, [{at} + 0]",
            "vpmadd52luq zmm1, zmm15, [{at} + 64]",
            "vpmadd52luq zmm2, zmm15, [{at} + 128]",
            "vpmadd52luq zmm3, zmm15, [{at} + 192]",
            "vpmadd52luq zmm4, zmm15, [{at} + 256]",
            "vpmadd52luq zmm5, zmm15, [{at} + 320]",
            "vpmadd52luq zmm6, zmm15, [{at} + 384]",
            "vpmadd52luq zmm7, zmm15, [{at} + 448]",
            "vpmadd52luq zmm8, zmm15, [{at} + 512]",
            "vpmadd52luq zmm9, zmm15, [{at} + 576]",
            "vpmadd52luq zmm10, zmm15, [{at} + 640]",
            "vpmadd52luq zmm11, zmm15, [{at} + 704]",
            "dec {turns}", "jnz 2b",
            turns = inout(reg) turns => _, at = in(reg) lines.0.as_ptr(),
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            options(readonly, nostack),
        );
    }
}

/// # Safety
/// The CPU must have the instruction.
unsafe fn fma_from_registers(turns: u64) {
    // SAFETY: the caller's; registers named as clobbered; no memory.
    unsafe {
        asm!(
            "2:",
            "vfmadd231pd ymm0, ymm15, ymm14",
            "vfmadd231pd ymm1, ymm15, ymm14",
            "vfmadd231pd ymm2, ymm15, ymm14",
            "vfmadd231pd ymm3, ymm15, ymm14",
            "vfmadd231pd ymm4, ymm15, ymm14",
            "vfmadd231pd ymm5, ymm15, ymm14",
            "vfmadd231pd ymm6, ymm15, ymm14",
            "vfmadd231pd ymm7, ymm15, ymm14",
            "vfmadd231pd ymm8, ymm15, ymm14",
            "vfmadd231pd ymm9, ymm15, ymm14",
            "vfmadd231pd ymm10, ymm15, ymm14",
            "vfmadd231pd ymm11, ymm15, ymm14",
            "dec {turns}", "jnz 2b",
            turns = inout(reg) turns => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            options(nomem, nostack),
        );
    }
}

/// # Safety
/// The CPU must have the instruction.
unsafe fn fma_with_loads(turns: u64) {
    #[repr(align(64))]
    struct Lines([u64; 8 * TURN as usize]);
    let lines = Lines([1; 8 * TURN as usize]);
    // SAFETY: the caller's; registers named as clobbered; reads twelve lines of 64 bytes that are there.
    unsafe {
        asm!(
            "2:",
            "vfmadd231pd ymm0, ymm15, [{at} + 0]",
            "vfmadd231pd ymm1, ymm15, [{at} + 64]",
            "vfmadd231pd ymm2, ymm15, [{at} + 128]",
            "vfmadd231pd ymm3, ymm15, [{at} + 192]",
            "vfmadd231pd ymm4, ymm15, [{at} + 256]",
            "vfmadd231pd ymm5, ymm15, [{at} + 320]",
            "vfmadd231pd ymm6, ymm15, [{at} + 384]",
            "vfmadd231pd ymm7, ymm15, [{at} + 448]",
            "vfmadd231pd ymm8, ymm15, [{at} + 512]",
            "vfmadd231pd ymm9, ymm15, [{at} + 576]",
            "vfmadd231pd ymm10, ymm15, [{at} + 640]",
            "vfmadd231pd ymm11, ymm15, [{at} + 704]",
            "dec {turns}", "jnz 2b",
            turns = inout(reg) turns => _, at = in(reg) lines.0.as_ptr(),
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            options(readonly, nostack),
        );
    }
}
