//! The lanes engine against the standards' known answers and the conformance suite.

use std::sync::Arc;

use wattlock_core::dev::{Harness, conform};
use wattlock_core::{Kind, KindSet};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::lanes::Lanes;
use wattlock_cpu::lanes::dev::{Passes, one_by_one};
use wattlock_cpu::software::Software;

#[test]
fn lanes_conform() {
    let Some(isa) = Cpu::detect().ifma512 else {
        println!("no AVX-512 IFMA here: not run");
        return;
    };
    let summary = conform(&Lanes::new(isa), &Software::new(), &Harness::default());
    println!("{summary:?}");
}

#[test]
fn the_queue_of_lanes_conforms_whoever_makes_the_passes() {
    let kinds = KindSet::of(&[Kind::X25519Derive, Kind::P256Derive]);
    let lanes = Passes::new(kinds, one_by_one(Arc::new(Instruction::new())));
    let summary = conform(&lanes, &Software::new(), &Harness::default());
    println!("{summary:?}");
}
