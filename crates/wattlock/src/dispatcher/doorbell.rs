//! Doorbells: when what instances hold goes.

use wattlock_core::Kind;
use wattlock_policy::EngineId;

use super::Dispatcher;

impl Dispatcher {
    /// Rings every doorbell that has requests waiting.
    pub fn flush(&mut self) {
        self.keep_up();
        if self.in_flight.len() == 0 {
            return;
        }
        self.now = self.runtime.clock().now();
        self.ring_all();
    }

    /// Whether an instance holds something: until a batch is full, [`Dispatcher::flush`], or a look for answers.
    pub fn holds(&self) -> bool {
        self.weather.engines.iter().any(|engine| engine.held > 0)
    }

    pub(super) fn ring_all(&mut self) {
        for index in 0..self.stations.len() {
            self.ring(EngineId(index as u8));
        }
    }

    /// After a submission: a batch that is full goes. Anything else goes with the doorbell of its submitter, at the latest
    /// when it looks for answers.
    pub(super) fn note_held(&mut self, id: EngineId, kind: Kind) {
        self.count_in_flight(id);
        let width = self.stations[id.index()].engine.width(kind);
        if width > 1 && self.weather.engines[id.index()].held >= u32::from(width) {
            self.ring(id);
        }
    }

    pub(super) fn ring(&mut self, id: EngineId) {
        if self.weather.engines.get(id.index()).is_some_and(|engine| engine.held > 0) {
            self.stations[id.index()].flush(self.now);
            self.count_in_flight(id);
        }
    }
}
