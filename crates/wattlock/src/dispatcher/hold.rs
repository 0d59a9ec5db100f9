//! What instances hold: when a batch goes, and who is moved out of it first.

use std::mem;

use wattlock_core::{Cost, Kind, Nanos, Shape, Token};
use wattlock_policy::{EngineId, Migration};

use super::Dispatcher;
use super::station::Gathering;
use crate::health::Reason;
use crate::inflight::Entry;

impl Dispatcher {
    /// Ends holding: rings every doorbell that has somebody waiting.
    pub fn flush(&mut self) {
        if self.in_flight.len() == 0 {
            return;
        }
        self.now = self.runtime.clock().now();
        (0..self.stations.len()).for_each(|index| self.ring(EngineId(index as u8), self.now));
    }

    /// After a submission: the deadline counts from the oldest request held; a batch that is full or may not wait goes.
    /// (Lanes begin a full one by themselves: only they know how many are of a kind.)
    pub(super) fn note_held(&mut self, id: EngineId, flush_by: Nanos, now: Nanos) {
        self.count_in_flight(id);
        let station = &mut self.stations[id.index()];
        let held = self.weather.engines[id.index()].held;
        if held > 0 {
            station.flush_by = Some(station.flush_by.map_or(flush_by, |by| by.min(flush_by)));
        }
        let full = station.width > 1 && held >= u32::from(station.width) && !station.is_lanes;
        if full || station.flush_by.is_some_and(|by| by <= now) {
            self.ring(id, now);
            self.count_in_flight(id);
        }
        if self.everyone_waits() && self.weather.engines.iter().any(|engine| engine.held > 0) {
            self.flush();
        }
    }

    /// After a request that joined others unasked: the same, with nothing read anew that one more did not change.
    #[inline]
    pub(super) fn note_joined(&mut self, lanes: EngineId, kind: Kind) {
        match self.stations[lanes.index()].note_unasked(kind) {
            Some(Gathering { shape, unasked, .. }) => {
                self.policy.joined(&shape, unasked);
                self.count_in_flight(lanes);
            }
            None => {
                let weather = &mut self.weather.engines[lanes.index()];
                weather.in_flight += 1;
                weather.held += 1;
                self.row.in_flight(lanes, weather.in_flight);
            }
        }
        if self.everyone_waits() && self.weather.engines.iter().any(|engine| engine.held > 0) {
            self.flush();
        }
    }

    /// Tells the policy of those who joined a batch of lanes unasked, before it is asked about another.
    pub(super) fn tell_of_unasked(&mut self, kind: Kind) {
        let Some(station) = self.lanes.and_then(|lanes| self.stations.get_mut(lanes.index())) else { return };
        let gathering = station.held.iter_mut().find(|one| one.shape.kind == kind && one.unasked > 0);
        if let Some(Gathering { shape, unasked, .. }) = gathering {
            self.policy.joined(shape, mem::take(unasked));
        }
    }

    /// Whether a door says how many are active, and all of them wait for us: nobody is left who could join a batch.
    pub(super) fn everyone_waits(&self) -> bool {
        self.weather.active > 0 && self.doors_in_flight() as u32 >= self.weather.active
    }

    pub(super) fn flush_due(&mut self, now: Nanos) {
        let all = self.everyone_waits();
        for index in 0..self.stations.len() {
            // Nobody held, nothing due: `flush_by` goes with the last one held.
            let holds = self.weather.engines[index].held > 0;
            if holds && (all || self.stations[index].flush_by.is_some_and(|by| by <= now)) {
                self.ring(EngineId(index as u8), now);
            }
        }
    }

    /// Rings an engine's doorbell, unless lanes hold batches so thin that the policy would rather have them done one
    /// by one. What lanes do, they do here: time passes.
    fn ring(&mut self, id: EngineId, now: Nanos) {
        while let Some(gathering) = self.stations[id.index()].held.first().copied() {
            let Gathering { shape, count, unasked, .. } = gathering;
            self.stations[id.index()].held.remove(0);
            if unasked > 0 {
                self.policy.joined(&shape, unasked);
            }
            if let Some(to) = self.policy.take_over(&shape, id, u32::from(count), &self.weather) {
                for token in self.gathered(id, &gathering) {
                    self.take_over(token, to, now);
                }
            }
        }
        let station = &mut self.stations[id.index()];
        let works_here = station.is_lanes && station.instance.as_ref().is_some_and(|one| one.held() > 0);
        station.flush(now);
        if works_here {
            self.now = self.runtime.clock().now();
        }
    }

    /// The tokens of what an engine holds of a kind.
    fn gathered(&self, id: EngineId, gathering: &Gathering) -> Vec<Token> {
        let is_of_it = |(token, entry): &(Token, &Entry)| {
            *token >= gathering.first && entry.engine == id && entry.shape.kind == gathering.shape.kind
        };
        let mut tokens: Vec<Token> = self.in_flight.iter().filter(is_of_it).map(|(token, _)| token).collect();
        tokens.sort_unstable();
        tokens
    }

    /// Has a held request done inside the call by somebody else.
    fn take_over(&mut self, token: Token, to: EngineId, now: Nanos) {
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
                this.run_with_care(to, &entry.shape, &mut request.view())
            } else {
                this.elsewhere(from, Reason::Migrated, &mut request.view())
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
        self.take_over(token, to, now);
        self.in_flight.len() < before
    }
}
