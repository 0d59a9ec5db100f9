//! `software`: everything in plain code. The baseline of every paper in the collection (EECA's "software" column,
//! ACA-SDS's and QWEB's starting point), and the rule to fall back on when nothing else is trusted.
//!
//! Published: the rule. Ours: what happens to kinds plain code cannot do here (instructions, then the rest).

use wattlock_core::{EngineClass, Nanos};

use crate::machine::Machine;
use crate::ranking::Sides;
use crate::weather::{Ask, Choice, Policy, Weather};

/// Plain code for everything it can do.
pub struct Software(Sides);

impl Software {
    /// The rule on this machine.
    pub fn new(machine: &Machine) -> Software {
        Software(Sides::new(machine, &[EngineClass::Software]))
    }
}

impl Policy for Software {
    fn name(&self) -> &'static str {
        "software"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, _now: Nanos) -> Choice {
        self.0.answer(ask, weather)
    }
}
