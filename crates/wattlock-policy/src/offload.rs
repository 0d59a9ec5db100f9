//! `offload`: everything a device can do goes to the device, whatever its size and however busy the device is. EECA's
//! "accelerator" column, QWEB's "straight offload", the GPU-only rows of LECPAES and EEP.
//!
//! Published: the rule. Ours: an accelerator before a GPU where there are both; instructions, then plain code, for
//! kinds no device can do and while none is there.

use wattlock_core::{Nanos, Shape};

use crate::machine::{EngineId, Machine};
use crate::ranking::{DEVICES, Ranking};
use crate::weather::{Choice, Policy, Weather};

/// The device for everything it can do.
pub struct Offload {
    any: Ranking,
    inline: Ranking,
}

impl Offload {
    /// The rule on this machine.
    pub fn new(machine: &Machine) -> Offload {
        Offload { any: Ranking::any(machine, &DEVICES), inline: Ranking::inline(machine, &DEVICES) }
    }
}

impl Policy for Offload {
    fn name(&self) -> &'static str {
        "offload"
    }

    fn choose(&mut self, shape: &Shape, weather: &Weather, _now: Nanos) -> Choice {
        Choice::now(self.any.pick(shape.kind, weather))
    }

    fn choose_inline(&mut self, shape: &Shape, weather: &Weather, _now: Nanos) -> EngineId {
        self.inline.pick(shape.kind, weather)
    }
}
