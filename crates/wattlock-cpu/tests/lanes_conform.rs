//! The lanes engine against the standards' known answers and the conformance suite.

use wattlock_core::dev::{Harness, conform};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::lanes::Lanes;
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
