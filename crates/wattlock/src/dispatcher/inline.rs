//! Work inside the call, and the one place where a request goes to another engine than the policy named.

use std::sync::Arc;

use wattlock_core::{Data, Engine, Error, Item, Kind, KnownAnswer, Nanos, Request, Shape, known_answers};
use wattlock_policy::{Ask, EngineId, Outcome};

use super::Dispatcher;
use crate::health::Reason;
use crate::telemetry::{Counter, EngineCounter};

/// One inline request in this many is timed, for telemetry and for the policy. Reading the clock twice costs about as
/// much as everything else on the inline path together.
const TIMED_ONE_IN: u32 = 64;

impl Dispatcher {
    /// Does a request inside the call, on the engine the policy names, and returns the output's length. No queue, no
    /// lock, and no allocation but for a key's first expansion (and deflate's own). Does not block.
    ///
    /// # Errors
    /// [`Error::Invalid`] or [`Error::Authentication`]; [`Error::Unsupported`] if no engine here does the kind.
    #[inline]
    pub fn run(&mut self, request: &mut Request<'_>) -> Result<usize, Error> {
        request.validate()?;
        self.keep_up();
        let shape = request.shape();
        let chosen = self.policy.choose(&Ask::inline(shape), &self.weather, self.now).engine;
        self.ticks = self.ticks.wrapping_add(1);
        let Some(station) = self.stations.get(chosen.index()) else { return Err(Error::Unsupported) };
        if !station.works_inside(shape.kind) || self.ticks.is_multiple_of(TIMED_ONE_IN) {
            return self.run_with_care(chosen, &shape, request);
        }
        match station.engine.execute(request) {
            Ok(len) => {
                self.row.done(chosen, shape.kind, shape.bytes);
                Ok(len)
            }
            Err(error) => self.run_failed(chosen, &shape, error, request),
        }
    }

    /// The inline path when something besides the work is to be done: a test before the first use, or taking the time.
    #[cold]
    pub(super) fn run_with_care(
        &mut self,
        chosen: EngineId,
        shape: &Shape,
        request: &mut Request<'_>,
    ) -> Result<usize, Error> {
        if !self.prove_inline(chosen, shape.kind) {
            let reason = self.why_not_inside(chosen, shape.kind);
            return self.fall_back(chosen, reason, request);
        }
        let start = self.runtime.clock().now();
        self.run_timed(chosen, shape, start, request)
    }

    /// Does a request inside the call on an engine that has proved the kind, and takes the time: it began at `start`, and
    /// ended at `self.now`.
    pub(super) fn run_timed(
        &mut self,
        chosen: EngineId,
        shape: &Shape,
        start: Nanos,
        request: &mut Request<'_>,
    ) -> Result<usize, Error> {
        let result = self.stations[chosen.index()].engine.execute(request);
        self.now = self.runtime.clock().now();
        match result {
            Ok(len) => {
                let latency_ns = self.now.saturating_sub(start);
                self.row.done(chosen, shape.kind, shape.bytes);
                self.count_held_before(chosen, shape.kind);
                self.row.add(chosen, shape.kind, Counter::Timed, 1);
                self.row.add(chosen, shape.kind, Counter::TimedNs, latency_ns);
                self.count_energy(chosen, shape, 1, None);
                let outcome = Outcome {
                    engine: chosen,
                    latency_ns,
                    held_ns: 0,
                    batch: 1,
                    depth: 1,
                    energy_nj: None,
                    failed: false,
                };
                self.policy.observe(shape, &outcome, self.now);
                Ok(len)
            }
            Err(error) => self.run_failed(chosen, shape, error, request),
        }
    }

    #[cold]
    pub(super) fn run_failed(
        &mut self,
        chosen: EngineId,
        shape: &Shape,
        error: Error,
        request: &mut Request<'_>,
    ) -> Result<usize, Error> {
        if may_repeat(&error, request) {
            return self.fall_back(chosen, Reason::of(&error), request);
        }
        self.row.add(chosen, shape.kind, Counter::Errors, 1);
        Err(error)
    }

    /// The one place where a request goes to another engine than the one the policy named: the identical request, on
    /// the fastest CPU engine that does it inline and has proved itself.
    pub(super) fn fall_back(
        &mut self,
        from: EngineId,
        reason: Reason,
        request: &mut Request<'_>,
    ) -> Result<usize, Error> {
        self.row.fell_back(from, reason);
        tracing::debug!(
            engine = self.name(from),
            kind = request.kind.name(),
            reason = reason.name(),
            "fallback"
        );
        let (kind, bytes) = (request.kind, request.data.len());
        for id in self.runtime.cpu_engines(kind) {
            if id == from && reason != Reason::Migrated || !self.prove_inline(id, kind) {
                continue;
            }
            match self.stations[id.index()].engine.execute(request) {
                Ok(len) => {
                    self.row.done(id, kind, bytes);
                    self.count_held_before(id, kind);
                    return Ok(len);
                }
                Err(error) if may_repeat(&error, request) => {}
                Err(error) => {
                    self.row.add(id, kind, Counter::Errors, 1);
                    return Err(error);
                }
            }
        }
        Err(Error::Unsupported)
    }

    /// Who says whether an engine's answer to a known question is right: the engine itself if it does one request at a
    /// time on the CPU, else the fastest such engine of the kind. Lanes and devices check nothing.
    pub(super) fn checker(&self, id: EngineId, kind: Kind) -> Arc<dyn Engine> {
        let checks = |id: &EngineId| {
            let station = &self.stations[id.index()];
            station.is_cpu && station.engine.width(kind) == 1
        };
        let found = std::iter::once(id).chain(self.runtime.cpu_engines(kind)).find(checks);
        self.stations[found.unwrap_or(id).index()].engine.clone()
    }

    /// Why an engine that was named does not do a kind inside the call.
    pub(super) fn why_not_inside(&self, id: EngineId, kind: Kind) -> Reason {
        let station = &self.stations[id.index()];
        if station.is_cpu { station.health.reason(kind) } else { Reason::Unsupported }
    }

    /// Whether an engine has proved that it does a kind inline; the proof is made now if it was not before.
    pub(super) fn prove_inline(&mut self, id: EngineId, kind: Kind) -> bool {
        let station = &mut self.stations[id.index()];
        if station.works_inside(kind) {
            return true;
        }
        let inline = station.is_cpu && station.engine.description().inline.contains(kind);
        if !inline || !station.health.wants_test(kind) {
            return false;
        }
        let checker = self.checker(id, kind);
        let station = &self.stations[id.index()];
        // A pass as full as any: lanes that are wrong only then must be found out.
        let width = usize::from(station.engine.width(kind));
        let mut answers = known_answers(kind);
        while answers.len() < width {
            answers.extend(known_answers(kind));
        }
        self.row.add_engine(id, EngineCounter::Tests, answers.len() as u64);
        let mut items: Vec<Item<'_>> = answers.iter_mut().map(|one| Item::new(one.request.view())).collect();
        station.engine.execute_all(&mut items);
        let results: Vec<_> = items.into_iter().map(|item| item.result).collect();
        let good = answers.iter().zip(&results).all(|(KnownAnswer { request, expected, .. }, result)| {
            expected.verdict(request, result, &*checker).is_ok()
        });
        let station = &mut self.stations[id.index()];
        station.health.test_ended(kind, good);
        if !good {
            tracing::error!(
                engine = station.engine.description().name,
                kind = kind.name(),
                "known-answer test failed"
            );
        }
        good
    }
}

/// Whether another engine can be given the identical request: not if one that failed midway may have overwritten its
/// input. An engine that declines (no such kind, no room) has touched nothing.
fn may_repeat(error: &Error, request: &Request<'_>) -> bool {
    let midway = matches!(error, Error::Device(_)) && matches!(request.data, Data::InPlace(_));
    error.another_engine_may_help() && !midway
}
