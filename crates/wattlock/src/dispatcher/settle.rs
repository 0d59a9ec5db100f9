//! Whether an engine's answer is believed, and what of it is counted and learned.

use wattlock_core::{Completion, Cost, Error, Family, Fault, Item, Nanos, OwnedRequest, Request, Shape};
use wattlock_policy::{EngineId, Outcome};

use super::Dispatcher;
use crate::health::Reason;
use crate::inflight::{Entry, Purpose};
use crate::telemetry::{Counter, EngineCounter};

impl Dispatcher {
    /// What to make of an instance's answer: believe it, check it, or have the CPU do the request.
    pub(super) fn settle(&mut self, id: EngineId, completion: Completion, now: Nanos) {
        let Completion { token, mut request, result, cost } = completion;
        let Some(entry) = self.leave(token) else {
            tracing::error!(
                engine = self.name(id),
                "an instance answered twice; the second answer is dropped"
            );
            return;
        };
        if let Purpose::Test(expected) = &entry.purpose {
            let checker = self.checker(id, entry.shape.kind);
            let good = expected.verdict(&request, &result, &*checker).is_ok();
            let fault = result.err().filter(|error| matches!(error, Error::Device(_)));
            self.test_came_back(id, entry.shape.kind, good, fault.is_some(), now);
            match fault {
                Some(error) => self.failed(id, Reason::of(&error), now),
                None if !good => self.failed(id, Reason::WrongResult, now),
                None => {}
            }
            return;
        }
        let verdict = match result {
            Ok(len) => self.verify(id, &request, len).map(|()| len),
            Err(error) => Err(error),
        };
        let result = match verdict {
            Ok(len) => {
                if self.stations[id.index()].instance.is_some() {
                    self.stations[id.index()].health.succeeded();
                }
                self.count_done(id, &entry, &cost, now);
                self.note_place(id, entry.shape.kind, entry.shape.messages);
                Ok(len)
            }
            Err(error) => {
                let reason = Reason::of(&error);
                let held_ns = entry.held_before_ns + cost.held_ns;
                let result =
                    self.after_holding(held_ns, |this| this.fall_back(id, reason, &mut request.view()));
                // What there is no right result for is the request's fault: an RSA key whose parts do not fit together must not
                // keep everybody else's keys from an engine, nor must forged records make it look as if it failed.
                let rejects = |error: &Error| matches!(error, Error::Invalid(_)) || error.is_forgery();
                let no_right_one = result.is_err_and(|error| rejects(&error));
                let said_so = matches!(error, Error::Device(Fault::WrongResult)) || rejects(&error);
                if !(no_right_one && said_so) {
                    if matches!(error, Error::Device(_)) {
                        self.failed(id, reason, now);
                    }
                    self.policy.observe(&entry.shape, &outcome(&entry, &cost, now, true), now);
                }
                result
            }
        };
        self.finish(token, &entry, request, result, cost, now);
    }

    /// Checks every private-key result of devices (RSA's and ECDSA's), every key pair, and a share of their others.
    fn verify(&mut self, id: EngineId, request: &OwnedRequest, len: usize) -> Result<(), Error> {
        let info = request.kind.info();
        // A shorter one would leave old bytes of the output behind it, or zeros where a secret is to be.
        let whole = match info.family {
            Family::Cipher | Family::Seal | Family::Open => Some(request.input.len()),
            Family::Derive => Some(request.output.len()),
            _ => info.output,
        };
        if len > request.output.len() || whole.is_some_and(|whole| len != whole) {
            return Err(Error::Device(Fault::WrongResult));
        }
        if request.run.is_some() {
            return self.verify_run(id, request);
        }
        let always = request.kind.wrong_result_tells_key() || info.family == Family::Generate;
        if !always && !self.sampled() {
            return Ok(());
        }
        match self.check(id, request, len) {
            Err(Error::Unsupported) if !always => Ok(()),
            verdict => verdict,
        }
    }

    /// Has the fastest CPU engine that can tell check an engine's result.
    fn check(&mut self, id: EngineId, request: &OwnedRequest, len: usize) -> Result<(), Error> {
        self.row.add_engine(id, EngineCounter::Verified, 1);
        for checker in self.runtime.cpu_engines(request.kind) {
            match self.stations[checker.index()].engine.check(request, len) {
                Err(Error::Unsupported) => {}
                Err(_) => return Err(Error::Device(Fault::WrongResult)),
                Ok(()) => return Ok(()),
            }
        }
        Err(Error::Unsupported)
    }

    /// What to make of a CPU engine's result: a signature is verified if the runtime was told so.
    #[inline]
    pub(super) fn believed(
        &mut self,
        id: EngineId,
        request: &mut Request<'_>,
        result: Result<usize, Error>,
    ) -> Result<usize, Error> {
        match result {
            Ok(len) if self.verified.contains(request.kind) => self.verify_own(id, request, len),
            _ => result,
        }
    }

    /// The same for requests that were done together.
    pub(super) fn believe_all(&mut self, id: EngineId, items: &mut [Item<'_>]) {
        for item in items {
            item.result = self.believed(id, &mut item.request, item.result);
        }
    }

    /// Verifies what a CPU engine signed, by the public key alone. The checker may be the engine that signed: verifying
    /// multiplies other points by other numbers, so a fault of the moment does not come twice. Nothing of a wrong
    /// signature is left.
    #[cold]
    fn verify_own(&mut self, id: EngineId, request: &mut Request<'_>, len: usize) -> Result<usize, Error> {
        let wrong = Error::Device(Fault::WrongResult);
        let Some(signature) = request.data.output().get(..len).map(<[u8]>::to_vec) else { return Err(wrong) };
        let mut claimed = OwnedRequest::copy_of(request);
        claimed.output = signature;
        match self.check(id, &claimed, len) {
            Ok(()) => Ok(len),
            // If no engine can tell, nothing leaves either.
            Err(_) => {
                for gone in [&mut claimed.output[..], request.data.output()] {
                    gone.fill(0);
                    std::hint::black_box(gone);
                }
                Err(wrong)
            }
        }
    }

    /// Checks as great a share of a run's messages as of other results, at least one, whichever they are. Where all are to
    /// be checked, that takes the CPU as long as doing them.
    fn verify_run(&mut self, id: EngineId, request: &OwnedRequest) -> Result<(), Error> {
        let (count, one_in) = (request.messages(), self.runtime.verify_one_in() as usize);
        if one_in == 0 {
            return Ok(());
        }
        for first in (0..count).step_by(one_in) {
            self.step_checks();
            let index = first + (self.checks >> 32) as usize % one_in.min(count - first);
            let wrong = Err(Error::Device(Fault::WrongResult));
            let Some(message) = request.message(index) else { return wrong };
            self.row.add_engine(id, EngineCounter::Verified, 1);
            for checker in self.runtime.cpu_engines(request.kind) {
                match self.stations[checker.index()].engine.check(&message, message.input.len()) {
                    Err(Error::Unsupported) => {}
                    Err(_) => return wrong,
                    Ok(()) => break,
                }
            }
        }
        Ok(())
    }

    /// Whether this result is one of those to be checked. Pseudo-random (the multiplier is Knuth's, for MMIX), because
    /// counting would fall into step with whatever comes in turns: a record's cipher always, its MAC never.
    fn sampled(&mut self) -> bool {
        let one_in = self.runtime.verify_one_in();
        one_in > 0 && self.draw(one_in) == 0
    }

    /// A number below `most`, pseudo-random.
    pub(super) fn draw(&mut self, most: u32) -> u32 {
        self.step_checks();
        (((self.checks >> 32) * u64::from(most)) >> 32) as u32
    }

    fn step_checks(&mut self) {
        self.checks =
            self.checks.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    }

    /// Counts a request that the engine it was queued on has done, and tells the policy.
    fn count_done(&mut self, id: EngineId, entry: &Entry, cost: &Cost, now: Nanos) {
        let kind = entry.shape.kind;
        let messages = entry.shape.messages;
        self.row.done_together(id, kind, messages, entry.shape.bytes as u64);
        self.row.add(id, kind, Counter::Timed, u64::from(messages));
        self.row.add(id, kind, Counter::TimedNs, now.saturating_sub(entry.submitted_ns));
        self.row.add(id, kind, Counter::HeldNs, entry.held_before_ns + cost.held_ns);
        self.row.add(id, kind, Counter::BatchSum, u64::from(cost.batch.max(1)));
        self.count_energy(id, &entry.shape, (1, 1), cost.energy_nj);
        self.policy.observe(&entry.shape, &outcome(entry, cost, now, false), now);
    }

    /// Counts the joules of requests: as their engine says of each, or else as the profile does, of a request alone, which
    /// has a pass for itself; `batch` shared one.
    pub(super) fn count_energy(
        &mut self,
        id: EngineId,
        shape: &Shape,
        (count, batch): (u32, u16),
        said: Option<u64>,
    ) {
        let station = &mut self.stations[id.index()];
        if said.is_none() && station.unmetered.contains(shape.kind) {
            return;
        }
        let alone = || self.runtime.energy_nj(id, shape.kind, shape.bytes) / u64::from(batch.max(1));
        let energy_nj = said.unwrap_or_else(alone);
        if energy_nj == 0 && self.runtime.energy_nj(id, shape.kind, 1 << 30) == 0 {
            station.unmetered = station.unmetered.with(shape.kind);
        }
        self.row.add(id, shape.kind, Counter::EnergyNj, u64::from(count) * energy_nj);
    }

    /// An engine failed a request. If that puts it into quarantine, its instance is stopped, and what it still had
    /// comes back through the same door as everything else.
    pub(super) fn failed(&mut self, id: EngineId, reason: Reason, now: Nanos) {
        if !self.stations[id.index()].health.failed(reason, now) {
            return;
        }
        self.weather.engines[id.index()].available = false;
        self.row.add_engine(id, EngineCounter::Quarantines, 1);
        tracing::warn!(engine = self.name(id), reason = reason.name(), "quarantined");
        self.testing.retain(|test| test.engine != id);
        let Some(mut old) = self.stations[id.index()].instance.take() else { return };
        self.stopped_one = true;
        old.stop(now);
        let mut given_back = Vec::new();
        old.poll(now, &mut |completion| given_back.push(completion));
        drop(old);
        for completion in given_back {
            self.settle(id, completion, now);
        }
        self.count_in_flight(id);
    }
}

/// What a policy learns of a request.
fn outcome(left: &Entry, cost: &Cost, now: Nanos, failed: bool) -> Outcome {
    Outcome {
        engine: left.engine,
        latency_ns: now.saturating_sub(left.submitted_ns),
        held_ns: cost.held_ns,
        batch: cost.batch.max(1),
        depth: left.depth,
        energy_nj: cost.energy_nj,
        failed,
    }
}
