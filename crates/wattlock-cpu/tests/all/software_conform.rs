//! The suite that every engine must pass, with the instruction engine across the table: AWS-LC shares no code with
//! the software engine, so each judges the other's signatures, key pairs and compressed streams too.

use wattlock_core::dev::{Harness, conform};
use wattlock_core::{Engine, Kind};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

#[test]
fn software_keeps_the_contract_for_every_kind_and_agrees_with_instruction() {
    let summary = conform(&Software::new(), &Instruction::new(), &Harness::default());
    assert_eq!(summary.kinds, Kind::COUNT);
}

#[test]
fn instruction_agrees_with_software_and_passes_its_checks() {
    let engine = Instruction::new();
    let summary = conform(&engine, &Software::new(), &Harness::default());
    assert_eq!(summary.kinds, engine.description().kinds().iter().count());
}
