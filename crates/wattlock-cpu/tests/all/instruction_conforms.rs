//! The instruction engine against the standards' known answers and the conformance suite, with every instruction set
//! this machine has, and with none.

use wattlock_core::dev::{Harness, conform};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

/// The engines this machine allows, widest first.
fn engines() -> Vec<Instruction> {
    let whole = Cpu::detect();
    let ymm = Cpu { vaes512: None, ifma512: None, ..whole };
    let xmm = Cpu { vaes256: None, ..ymm };
    [whole, ymm, xmm, Cpu::PLAIN].map(Instruction::with).into()
}

#[test]
fn instruction_conforms_with_every_instruction_set() {
    let reference = Software::new();
    for engine in engines() {
        let summary = conform(&engine, &reference, &Harness::default());
        println!("{}: {summary:?}", wattlock_core::Engine::description(&engine).detail);
        assert_eq!(summary.kinds, wattlock_core::Kind::COUNT);
    }
}
