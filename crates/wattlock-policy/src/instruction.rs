//! `instruction`: everything with the CPU's cryptographic instructions, one request at a time. The "instruction set"
//! column of EECA and the AES-NI side of ACA-SDS: on most machines the engine to beat.
//!
//! Published: the rule. Ours: what happens to kinds it cannot do (plain code, then the rest).

use wattlock_core::{EngineClass, Nanos, Shape};

use crate::machine::{EngineId, Machine};
use crate::ranking::Ranking;
use crate::weather::{Choice, Policy, Weather};

/// The CPU's instructions for everything they can do.
pub struct Instruction {
    any: Ranking,
    inline: Ranking,
}

impl Instruction {
    /// The rule on this machine.
    pub fn new(machine: &Machine) -> Instruction {
        let first = [EngineClass::Instruction];
        Instruction { any: Ranking::any(machine, &first), inline: Ranking::inline(machine, &first) }
    }
}

impl Policy for Instruction {
    fn name(&self) -> &'static str {
        "instruction"
    }

    fn choose(&mut self, shape: &Shape, weather: &Weather, _now: Nanos) -> Choice {
        Choice::now(self.any.pick(shape.kind, weather))
    }

    fn choose_inline(&mut self, shape: &Shape, weather: &Weather, _now: Nanos) -> EngineId {
        self.inline.pick(shape.kind, weather)
    }
}
