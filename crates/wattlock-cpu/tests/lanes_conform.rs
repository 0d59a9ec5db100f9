//! The lanes engine against the standards' known answers and the conformance suite.

use wattlock_core::dev::{Harness, conform};
use wattlock_core::{Description, Engine, EngineClass, Error, Instance, Kind, KindSet, Nanos, Window};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::lanes::queue::{self, Kernels};
use wattlock_cpu::lanes::{Item, Lanes, WIDTH};
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

/// The lanes' queue with passes that any CPU can make.
struct OneByOne(Description);

struct Pass(Instruction);

impl Kernels for Pass {
    fn kinds(&self) -> KindSet {
        KindSet::of(&[Kind::X25519Derive, Kind::P256Derive])
    }

    fn pass(&mut self, _: Kind, items: &mut [Item<'_>]) {
        assert!((1..=WIDTH).contains(&items.len()));
        items.iter_mut().for_each(|item| item.result = self.0.execute(&mut item.request));
    }
}

impl Engine for OneByOne {
    fn description(&self) -> &Description {
        &self.0
    }

    fn window(&self) -> Window {
        queue::WINDOW
    }

    fn open(&self, _: Nanos) -> Result<Box<dyn Instance>, Error> {
        Ok(queue::open(Pass(Instruction::new())))
    }
}

#[test]
fn the_queue_of_lanes_conforms_whoever_makes_the_passes() {
    let description = Description {
        name: "one by one",
        class: EngineClass::Lanes,
        inline: KindSet::EMPTY,
        queued: Pass(Instruction::new()).kinds(),
        width: WIDTH as u16,
        detail: String::new(),
    };
    let summary = conform(&OneByOne(description), &Software::new(), &Harness::default());
    println!("{summary:?}");
}
