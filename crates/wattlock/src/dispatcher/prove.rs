//! Instances are opened, and prove their kinds, when a policy first names them.

use wattlock_core::{Error, Fault, Kind, KnownAnswer, Nanos, Refused, known_answers};
use wattlock_policy::EngineId;

use super::Dispatcher;
use crate::device::Handle;
use crate::health::Reason;
use crate::inflight::{Entry, Purpose};
use crate::telemetry::EngineCounter;

/// A kind's known-answer tests under way on an instance.
pub(super) struct Testing {
    pub(super) engine: EngineId,
    pub(super) kind: Kind,
    /// Not submitted yet: the window had no room.
    pub(super) waiting: Vec<KnownAnswer>,
    pub(super) in_flight: u32,
    pub(super) good: bool,
    /// The engine failed during a test: that says nothing about the kind, which will be tested again.
    pub(super) aborted: bool,
}

impl Dispatcher {
    /// Whether an engine's instance is open and has proved a kind. If the proof is missing it is started, and this
    /// request is done by another engine.
    pub(super) fn prove_queued(&mut self, id: EngineId, kind: Kind, now: Nanos) -> bool {
        let station = &self.stations[id.index()];
        let is_there = |instance: &Handle| !instance.is_over_and_empty();
        if station.instance.as_ref().is_some_and(is_there) && station.health.ready(kind) {
            return true;
        }
        if !self.open(id, now) {
            return false;
        }
        if self.stations[id.index()].health.ready(kind) {
            return true;
        }
        if self.stations[id.index()].health.wants_test(kind) {
            self.start_test(id, kind, now);
        }
        self.stations[id.index()].health.ready(kind)
    }

    fn open(&mut self, id: EngineId, now: Nanos) -> bool {
        let station = &mut self.stations[id.index()];
        if station.instance.as_ref().is_some_and(Handle::is_over_and_empty) {
            // Another thread gave the device up, and this one has nothing there: it begins anew.
            station.instance = None;
            station.health.begins_anew();
        }
        let station = &self.stations[id.index()];
        if station.instance.is_some() {
            return true;
        }
        if station.health.quarantined() {
            return false;
        }
        match self.runtime.open(id, now) {
            Ok(instance) => {
                let weather = &mut self.weather.engines[id.index()];
                (weather.window, weather.window_bytes) =
                    (instance.window().requests, instance.window().bytes);
                self.stations[id.index()].instance = Some(instance);
                true
            }
            Err(error) => {
                tracing::warn!(engine = self.name(id), %error, "instance could not be opened");
                self.failed(id, Reason::Lost, now);
                false
            }
        }
    }

    fn start_test(&mut self, id: EngineId, kind: Kind, now: Nanos) {
        let instance = self.stations[id.index()].instance.as_ref();
        if instance.is_none_or(|instance| instance.in_flight() >= instance.window().requests) {
            return; // No room now; the next request of this kind tries again.
        }
        self.stations[id.index()].health.test_started(kind);
        let waiting = known_answers(kind);
        self.continue_test(
            Testing { engine: id, kind, waiting, in_flight: 0, good: true, aborted: false },
            now,
        );
    }

    /// Submits as many of a test's known answers as there is room for, and ends the test when nothing is left of it.
    fn continue_test(&mut self, mut test: Testing, now: Nanos) {
        let (id, mut fault) = (test.engine, None);
        while test.good && !test.aborted {
            let Some(KnownAnswer { request, expected, source }) = test.waiting.pop() else { break };
            let shape = request.shape();
            let give_up_ns = self.expect(id, &shape, now);
            let token = self.in_flight.enter_test(id, &shape, expected, (now, give_up_ns));
            let instance = self.stations[id.index()].instance.as_mut();
            let lost = Error::Device(Fault::Lost);
            let submitted = match instance {
                Some(instance) => instance.submit(token, request, None, now).map(drop),
                None => Err(Refused { error: lost, request }),
            };
            let Err(Refused { error, request }) = submitted else {
                test.in_flight += 1;
                self.row.add_engine(id, EngineCounter::Tests, 1);
                continue;
            };
            let entry = self.leave(token);
            match error {
                Error::Full if test.in_flight > 0 => {
                    if let Some(Entry { purpose: Purpose::Test(expected), .. }) = entry {
                        test.waiting.push(KnownAnswer { request, expected: *expected, source });
                    }
                    break;
                }
                Error::Full => test.aborted = true,
                Error::Device(_) => (test.aborted, fault) = (true, Some(error)),
                // It claims the kind and declines a request of it.
                _ => test.good = false,
            }
        }
        self.stations[id.index()].flush(now);
        if test.in_flight > 0 {
            self.testing.push(test);
        } else {
            self.end_test(&test);
        }
        self.count_in_flight(id);
        if let Some(error) = fault {
            self.failed(id, Reason::of(&error), now);
        }
    }

    fn end_test(&mut self, test: &Testing) {
        let Testing { engine, kind, good, aborted, .. } = *test;
        let health = &mut self.stations[engine.index()].health;
        if aborted {
            health.test_aborted(kind);
            return;
        }
        health.test_ended(kind, good);
        if !good {
            tracing::error!(engine = self.name(engine), kind = kind.name(), "known-answer test failed");
        }
    }

    pub(super) fn test_came_back(&mut self, id: EngineId, kind: Kind, good: bool, aborted: bool, now: Nanos) {
        let Some(at) = self.testing.iter().position(|test| test.engine == id && test.kind == kind) else {
            return;
        };
        let mut test = self.testing.swap_remove(at);
        test.in_flight -= 1;
        test.good &= good;
        test.aborted |= aborted;
        self.continue_test(test, now);
    }
}
