//! `offload`: everything a device can do goes to the device, whatever its size and however busy the device is. EECA's
//! "accelerator" column, QWEB's "straight offload", the GPU-only rows of LECPAES and EEP.
//!
//! Published: the rule. Ours: an accelerator before a GPU where there are both; instructions, then plain code, for
//! kinds no device can do and while none is there.

use wattlock_core::Nanos;

use crate::machine::Machine;
use crate::ranking::{DEVICES, Sides};
use crate::split::{Job, Side, Split};
use crate::weather::{Ask, Choice, Policy, Rest, Weather, alone};

/// The device for everything it can do.
pub struct Offload(Sides);

impl Offload {
    /// The rule on this machine.
    pub fn new(machine: &Machine) -> Offload {
        Offload(Sides::new(machine, &DEVICES))
    }
}

impl Policy for Offload {
    fn name(&self) -> &'static str {
        "offload"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, _now: Nanos) -> Choice {
        self.0.answer(ask, weather)
    }

    fn claim(&self, side: Side, rest: &Rest, _: &Weather) -> u32 {
        alone(side, rest)
    }

    fn split(&self, job: &Job) -> Option<Split> {
        Some(Split::at_border(job, *job.devices.first()?, 1.0))
    }
}
