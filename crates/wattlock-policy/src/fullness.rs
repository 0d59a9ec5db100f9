//! When a device is fully used, for the published rules that ask it: EECA and ACA-SDS.

use crate::machine::{EngineId, Machine};
use crate::ranking::DEVICES;
use crate::weather::{Rest, Weather};

/// How many requests make each of the machine's devices fully used.
pub(crate) struct Fullness {
    full: Vec<(EngineId, u32)>,
}

impl Fullness {
    /// A device counts as fully used when that share of its window, in thousandths, has been handed to it.
    pub(crate) fn new(machine: &Machine, busy_permille: Option<u16>) -> Fullness {
        let devices = machine.engines.iter().filter(|engine| DEVICES.contains(&engine.class));
        let count = |window: u32| match window {
            0 => u32::MAX,
            window => (u64::from(window) * u64::from(busy_permille.unwrap_or(1000)) / 1000).max(1) as u32,
        };
        Fullness { full: devices.map(|engine| (engine.id, count(engine.window))).collect() }
    }

    /// How many more pieces make the device fully used: it has so many requests, or all the bytes it has room for.
    pub(crate) fn room(&self, rest: &Rest, weather: &Weather) -> u32 {
        let full = self.full.iter().find(|(device, _)| *device == rest.device);
        if !weather.engines[rest.device.index()].has_room(rest.bytes) {
            return 0;
        }
        full.map_or(u32::MAX, |(_, full)| *full).saturating_sub(handed(rest.device, weather))
    }

    /// How many more pieces make so many.
    pub(crate) fn room_of(&self, most: u32, rest: &Rest, weather: &Weather) -> u32 {
        most.saturating_sub(handed(rest.device, weather))
    }

    /// Whether an engine is one of the devices.
    pub(crate) fn is_device(&self, engine: EngineId) -> bool {
        self.full.iter().any(|(device, _)| *device == engine)
    }
}

/// Requests the machine itself has: in flight but not held.
fn handed(id: EngineId, weather: &Weather) -> u32 {
    let state = &weather.engines[id.index()];
    state.in_flight.saturating_sub(state.held)
}
