//! The lanes engine against the standards' known answers and the conformance suite.

use std::sync::Arc;

use wattlock_core::dev::{Harness, conform};
use wattlock_core::{Kind, KindSet};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::lanes::dev::{Passes, one_by_one};
use wattlock_cpu::lanes::{Isa, Lanes};
use wattlock_cpu::software::Software;

#[test]
fn lanes_conform() {
    for isa in Isa::all(&Cpu::detect()) {
        let summary = conform(&Lanes::new(isa), &Software::new(), &Harness::default());
        println!("{}: {summary:?}", isa.name());
    }
}

#[test]
fn the_queue_of_lanes_conforms_whoever_makes_the_passes() {
    let kinds = KindSet::of(&[Kind::X25519Derive, Kind::P256Derive]);
    let lanes = Passes::new(kinds, one_by_one(Arc::new(Instruction::new())));
    let summary = conform(&lanes, &Software::new(), &Harness::default());
    println!("{summary:?}");
}
