//! What instances hold: when it goes, and what is moved out of it first.

use wattlock_core::{Cost, Kind, Nanos, Shape, Token};
use wattlock_policy::{EngineId, Migration};

use super::Dispatcher;
use crate::health::Reason;

impl Dispatcher {
    /// Ends holding: rings every doorbell that has requests waiting.
    pub fn flush(&mut self) {
        if self.in_flight.len() == 0 {
            return;
        }
        self.now = self.runtime.clock().now();
        self.stations.iter_mut().for_each(|station| station.flush(self.now));
    }

    /// After a submission: the deadline counts from the oldest request held; a batch that is full or may not wait goes.
    pub(super) fn note_held(&mut self, id: EngineId, kind: Kind, flush_by: Nanos, now: Nanos) {
        self.count_in_flight(id);
        let station = &mut self.stations[id.index()];
        let held = self.weather.engines[id.index()].held;
        if held > 0 {
            station.flush_by = Some(station.flush_by.map_or(flush_by, |by| by.min(flush_by)));
        }
        let width = station.engine.width(kind);
        let full = width > 1 && held >= u32::from(width);
        if full || station.flush_by.is_some_and(|by| by <= now) {
            station.flush(now);
            self.count_in_flight(id);
        }
    }

    pub(super) fn flush_due(&mut self, now: Nanos) {
        for index in 0..self.stations.len() {
            // Nobody held, nothing due: `flush_by` goes with the last one held.
            let holds = self.weather.engines[index].held > 0;
            if holds && self.stations[index].flush_by.is_some_and(|by| by <= now) {
                self.stations[index].flush(now);
            }
        }
    }

    /// Has a held request done inside the call by another engine.
    fn move_to(&mut self, token: Token, to: EngineId, now: Nanos) {
        let Some(from) = self.in_flight.get(token).filter(|entry| entry.is_door()).map(|entry| entry.engine)
        else {
            return;
        };
        let instance = self.stations[from.index()].instance.as_mut();
        let Some(mut request) = instance.and_then(|instance| instance.withdraw(token, now)) else { return };
        let Some(entry) = self.leave(token) else { return };
        self.count_in_flight(from);
        let held_ns = now.saturating_sub(entry.submitted_ns);
        let result = self.after_holding(entry.held_before_ns + held_ns, |this| {
            if to.index() < this.stations.len() && this.prove_inline(to, entry.shape.kind) {
                this.row.fell_back(from, Reason::Migrated);
                let mut request = request.view();
                match request.run {
                    Some(_) => this.do_run_on(to, &mut request),
                    None => this.run_with_care(to, &entry.shape, &mut request),
                }
            } else {
                this.fall_back(from, Reason::Migrated, &mut request.view())
            }
        });
        self.finish(token, &entry, request, result, Cost { batch: 1, held_ns, ..Cost::default() }, self.now);
    }

    /// Moves held requests for as long as the policy asks for it.
    pub(super) fn migrate(&mut self, now: Nanos) {
        let most = self.in_flight.len();
        for _ in 0..most {
            let Some(Migration { from, to }) = self.policy.migrate(&self.weather, now) else { return };
            if !self.migrate_one(&Migration { from, to }, now) {
                return;
            }
        }
    }

    /// Moves one held request that may move, the youngest, to another engine. What an engine has begun cannot be moved.
    fn migrate_one(&mut self, migration: &Migration, now: Nanos) -> bool {
        let Migration { from, to } = *migration;
        if to.index() >= self.stations.len() {
            return false;
        }
        let Some(station) = self.stations.get_mut(from.index()) else { return false };
        let Some(instance) = station.instance.as_mut() else { return false };
        // Held requests are the youngest: an instance hands everything older to the machine with each doorbell.
        let mut waiting: Vec<(Token, Shape)> = self
            .in_flight
            .iter()
            .filter(|(_, entry)| entry.engine == from && entry.is_door())
            .map(|(token, entry)| (token, entry.shape))
            .collect();
        waiting.sort_by_key(|(token, _)| std::cmp::Reverse(*token));
        waiting.truncate(instance.held() as usize);
        let mut movable = waiting.iter().filter(|(_, shape)| self.policy.may_move(shape, migration));
        let Some(token) = movable.next().map(|(token, _)| *token) else { return false };
        let before = self.in_flight.len();
        self.move_to(token, to, now);
        self.in_flight.len() < before
    }
}
