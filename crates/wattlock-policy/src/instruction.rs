//! `instruction`: everything with the CPU's cryptographic instructions, one request at a time. The "instruction set"
//! column of EECA and the AES-NI side of ACA-SDS: on most machines the engine to beat.
//!
//! Published: the rule. Ours: what happens to kinds it cannot do (plain code, then the rest).

use wattlock_core::{EngineClass, Nanos};

use crate::machine::Machine;
use crate::ranking::Sides;
use crate::weather::{Ask, Choice, Policy, Weather};

/// The CPU's instructions for everything they can do.
pub struct Instruction(Sides);

impl Instruction {
    /// The rule on this machine.
    pub fn new(machine: &Machine) -> Instruction {
        Instruction(Sides::new(machine, &[EngineClass::Instruction]))
    }
}

impl Policy for Instruction {
    fn name(&self) -> &'static str {
        "instruction"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, _now: Nanos) -> Choice {
        self.0.answer(ask, weather)
    }
}
