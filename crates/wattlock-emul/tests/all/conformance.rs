//! The emulated accelerator passes the conformance suite, in virtual and in real time.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use wattlock_core::dev::{Harness, conform};
use wattlock_core::{Engine, Kind};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;
use wattlock_emul::{Emulated, Model, Pace};

fn emulated(model: Model, pace: Pace) -> Emulated {
    Emulated::new(model, Arc::new(Instruction::new()), pace).unwrap()
}

#[test]
fn stepped_card_conforms() {
    let card = emulated(Model::qat_dh8970(), Pace::Stepped);
    let summary = conform(&card, &Software::new(), &Harness::default());
    assert_eq!(summary.kinds, Kind::COUNT);
}

#[test]
fn stepped_card_with_wide_batches_and_a_narrow_window_conforms() {
    let mut model = Model::eeca_soc();
    (model.width, model.window.requests, model.window.bytes) = (4, 6, 2 << 20);
    let summary = conform(&emulated(model, Pace::Stepped), &Software::new(), &Harness::default());
    assert!(summary.kinds > 10);
}

#[test]
fn threaded_card_conforms() {
    let card = emulated(Model::qat_dh8970(), Pace::RealTime);
    let start = Instant::now();
    let clock = || {
        std::thread::sleep(Duration::from_micros(5));
        start.elapsed().as_nanos() as u64
    };
    let harness = Harness { clock: &clock, longest: 65536, ..Harness::default() };
    assert_eq!(conform(&card, &Instruction::new(), &harness).kinds, Kind::COUNT);
}

#[test]
fn it_says_that_it_is_emulated() {
    let card = emulated(Model::qat_dh8970(), Pace::Stepped);
    let description = card.description();
    assert_eq!(description.name, "emulated");
    assert!(description.detail.starts_with("emulated, not hardware"));
    assert!(description.inline.is_empty());
}
