//! The suite that every engine must pass. The reference is the engine itself: what this shows beyond the known
//! answers is that it keeps the contract (buffers, refusals, checks); its arithmetic is shown in `software_agree.rs`
//! against implementations that share no code with it.

use wattlock_core::Kind;
use wattlock_core::dev::{Harness, conform};
use wattlock_cpu::software::Software;

#[test]
fn software_keeps_the_contract_for_every_kind() {
    let engine = Software::new();
    let summary = conform(&engine, &engine, &Harness::default());
    assert_eq!(summary.kinds, Kind::COUNT);
}
