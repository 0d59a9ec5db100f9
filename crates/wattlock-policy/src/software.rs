//! `software`: everything in plain code. The baseline of every paper in the collection (EECA's "software" column,
//! ACA-SDS's and QWEB's starting point), and the rule to fall back on when nothing else is trusted.
//!
//! Published: the rule. Ours: what happens to kinds plain code cannot do here (instructions, then the rest).

use wattlock_core::{EngineClass, Nanos, Shape};

use crate::machine::{EngineId, Machine};
use crate::ranking::Ranking;
use crate::weather::{Choice, Policy, Weather};

/// Plain code for everything it can do.
pub struct Software {
    any: Ranking,
    inline: Ranking,
}

impl Software {
    /// The rule on this machine.
    pub fn new(machine: &Machine) -> Software {
        let first = [EngineClass::Software];
        Software { any: Ranking::any(machine, &first), inline: Ranking::inline(machine, &first) }
    }
}

impl Policy for Software {
    fn name(&self) -> &'static str {
        "software"
    }

    fn choose(&mut self, shape: &Shape, weather: &Weather, _now: Nanos) -> Choice {
        Choice::now(self.any.pick(shape.kind, weather))
    }

    fn choose_inline(&mut self, shape: &Shape, weather: &Weather, _now: Nanos) -> EngineId {
        self.inline.pick(shape.kind, weather)
    }
}
