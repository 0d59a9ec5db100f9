//! Work inside the call, and the one place where a request goes to another engine than the policy named.

use std::sync::Arc;

use wattlock_core::{
    Data, Engine, Error, Fault, Item, Kind, KnownAnswer, Nanos, Request, Shape, execute, known_answers,
};
use wattlock_policy::{Ask, EngineId, Outcome};

use super::Dispatcher;
use super::part::Did;
use crate::health::Reason;
use crate::telemetry::{Counter, EngineCounter};

/// One inline request in this many is timed on average, for telemetry and for the policy. Reading the clock twice costs
/// about as much as everything else on the inline path together. Which ones is drawn: a count would fall into step with
/// requests that come in turns, and of some nothing would ever be learned.
const TIMED_ONE_IN: u32 = 64;

impl Dispatcher {
    /// Does a request inside the call, on the engine the policy names, and returns the output's length. No queue, no
    /// lock, and no allocation except for a key's first expansion (and deflate's own). Does not block.
    ///
    /// # Errors
    /// [`Error::Invalid`] or [`Error::Authentication`]; [`Error::Unsupported`] if no engine here does the kind.
    ///
    /// A run ([`Request::run`]) is done message by message, and reported as one. If a device does its kind, the policy is
    /// asked about its messages as [`Dispatcher::run_all`] asks about any, and the call waits for the device.
    #[inline]
    pub fn run(&mut self, request: &mut Request<'_>) -> Result<usize, Error> {
        request.validate()?;
        self.keep_up();
        if request.run.is_some() {
            return self.do_run(request, false);
        }
        let shape = request.shape();
        let chosen = self.policy.choose(&Ask::inline(shape), &self.weather, self.now).engine;
        self.until_timed = self.until_timed.saturating_sub(1);
        let Some(station) = self.stations.get(chosen.index()) else { return Err(Error::Unsupported) };
        if !station.works_inside(shape.kind) || self.until_timed == 0 {
            return self.run_with_care(chosen, &shape, request);
        }
        let result = station.engine.execute(request);
        match self.believed(chosen, request, result) {
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
        self.until_timed = TIMED_ONE_IN / 2 + self.draw(TIMED_ONE_IN);
        if !self.prove_inline(chosen, shape.kind) {
            let reason = self.why_not_inside(chosen, shape.kind);
            self.policy.left_undone(shape, chosen);
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
        match self.believed(chosen, request, result) {
            Ok(len) => {
                let latency_ns = self.now.saturating_sub(start);
                self.row.done(chosen, shape.kind, shape.bytes);
                self.count_held_before(chosen, shape.kind);
                self.row.add(chosen, shape.kind, Counter::Timed, 1);
                self.row.add(chosen, shape.kind, Counter::TimedNs, latency_ns);
                self.count_energy(chosen, shape, (1, 1), None);
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
            self.policy.left_undone(shape, chosen);
            let result = self.fall_back(chosen, Reason::of(&error), request);
            // What there is no right result for is the request's fault and not the engine's.
            let wrong = error == Error::Device(Fault::WrongResult) && self.verified.contains(shape.kind);
            if wrong && result.is_ok() {
                self.doubt(chosen, shape.kind);
            }
            return result;
        }
        self.row.add(chosen, shape.kind, Counter::of(&error), 1);
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
        let Shape { kind, bytes, messages: count, .. } = request.shape();
        let mut wrong = reason == Reason::WrongResult;
        for id in self.runtime.cpu_engines(kind) {
            if id == from || !self.prove_inline(id, kind) {
                continue;
            }
            let result = execute(&*self.stations[id.index()].engine, request);
            match self.believed(id, request, result) {
                Ok(len) => {
                    self.row.done_together(id, kind, count, bytes as u64);
                    self.count_held_before(id, kind);
                    self.did = Did::Anywhere;
                    return Ok(len);
                }
                Err(error) if may_repeat(&error, request) => {
                    if error == Error::Device(Fault::WrongResult) && self.verified.contains(kind) {
                        self.row.fell_back(id, Reason::WrongResult);
                        wrong = true;
                    }
                }
                Err(error) => {
                    self.row.add(id, kind, Counter::of(&error), 1);
                    return Err(error);
                }
            }
        }
        // A door must not take it for a request that no engine here does, and have it done unverified.
        Err(if wrong && self.verified.contains(kind) {
            Error::Device(Fault::WrongResult)
        } else {
            Error::Unsupported
        })
    }

    /// A CPU engine's signature was wrong. Lanes are left for a while, as devices are. An engine that does one at a time is
    /// what everything else falls back to, so it stays; the kind has to give its known answers again before its next use.
    fn doubt(&mut self, id: EngineId, kind: Kind) {
        if self.stations[id.index()].engine.width(kind) > 1 {
            let now = self.runtime.clock().now();
            self.failed(id, Reason::WrongResult, now);
        } else {
            tracing::warn!(engine = self.name(id), kind = kind.name(), "a wrong signature; tested again");
            self.stations[id.index()].health.doubt(kind);
        }
    }

    /// Does a run on the CPU, whatever devices there are: the CPU's part of a job that is split ([`crate::SplitJob`]).
    ///
    /// # Errors
    /// As [`Dispatcher::run`].
    pub fn run_inside(&mut self, request: &mut Request<'_>) -> Result<usize, Error> {
        request.validate()?;
        self.keep_up();
        self.do_run(request, true)
    }

    /// A run, inside the call. Where only CPU engines do its kind, it is one question to the policy and one call.
    pub(super) fn do_run(&mut self, request: &mut Request<'_>, inside: bool) -> Result<usize, Error> {
        let (kind, count) = (request.kind, request.messages());
        if count == 0 {
            return Ok(0);
        }
        if !inside && self.stations.iter().any(|station| station.queued.contains(kind)) {
            let mut items = request.items();
            self.run_all(&mut items);
            let results: Vec<_> = items.into_iter().map(|item| item.result).collect();
            return request.conclude(&results);
        }
        let bytes = request.shape().bytes;
        let shape = Shape { bytes: bytes / count, messages: 1, ..request.shape() };
        let ask = Ask { count: count as u32, bytes: self.whole(bytes), shape, may_wait: false };
        let chosen = self.policy.choose(&ask, &self.weather, self.now).engine;
        if self.stations.get(chosen.index()).is_none() {
            return Err(Error::Unsupported);
        }
        self.do_run_on(chosen, request)
    }

    /// A valid run, inside the call, on an engine that was named.
    pub(super) fn do_run_on(&mut self, chosen: EngineId, request: &mut Request<'_>) -> Result<usize, Error> {
        let (kind, count, bytes) = (request.kind, request.messages().max(1), request.shape().bytes);
        let shape = Shape { bytes: bytes / count, messages: 1, ..request.shape() };
        if !self.prove_inline(chosen, kind) {
            let reason = self.why_not_inside(chosen, kind);
            return self.fall_back(chosen, reason, request);
        }
        let start = self.runtime.clock().now();
        let result = execute(&*self.stations[chosen.index()].engine, request);
        self.now = self.runtime.clock().now();
        match result {
            Ok(len) => {
                let each_ns = self.now.saturating_sub(start) / count as Nanos;
                self.count_together(chosen, &shape, (count as u32, bytes), Some(each_ns), 1);
                Ok(len)
            }
            Err(error) => self.run_failed(chosen, &shape, error, request),
        }
    }

    /// What says whether an engine's answer to a known question is right: the engine itself if it does one request at a
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
