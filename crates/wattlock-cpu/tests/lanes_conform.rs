//! The lanes engine against the standards' known answers and the conformance suite.

use std::sync::Arc;

use wattlock_core::dev::{Harness, conform};
use wattlock_core::{Engine, Kind, KindSet};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::lanes::dev::{Passes, lanes_here, one_by_one};
use wattlock_cpu::software::Software;

/// Who answers beside them: the portable engine, or on an emulated CPU the quicker one, since there the difference is
/// half an hour.
fn reference() -> Box<dyn Engine> {
    match std::env::var_os("WATTLOCK_EMULATED_CPU") {
        None => Box::new(Software::new()),
        Some(_) => Box::new(Instruction::new()),
    }
}

#[test]
fn lanes_conform() {
    for lanes in lanes_here() {
        let summary = conform(&lanes, &*reference(), &Harness::default());
        println!("{}: {summary:?}", lanes.description().detail);
    }
}

#[test]
fn the_queue_of_lanes_conforms_whoever_makes_the_passes() {
    let kinds = KindSet::of(&[Kind::X25519Derive, Kind::P256Derive]);
    let lanes = Passes::new(kinds, one_by_one(Arc::new(Instruction::new())));
    let summary = conform(&lanes, &Software::new(), &Harness::default());
    println!("{summary:?}");
}
