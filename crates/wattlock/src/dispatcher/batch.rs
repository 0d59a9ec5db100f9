//! Borrowed requests that are in the caller's hands, several in one call.
//!
//! What the policy gives to a CPU engine is done together, in place: no copy, no allocation, no token. What it gives to an
//! engine that answers later goes there as a copy, and the call waits for it.

use std::collections::VecDeque;

use wattlock_core::{Error, Item, Kind, Nanos, Shape};
use wattlock_policy::{Ask, Choice, EngineId, Outcome};

use super::Dispatcher;
use super::operation::Operations;
use super::part::Next;
use crate::health::Reason;
use crate::sys::fork;
use crate::telemetry::Counter;

/// So many requests of one kind are no longer few, whatever their length.
const FEW: usize = 4;
/// Bytes of a few requests together that are little work: lanes would take longer than one after the other.
const LITTLE: usize = 2048;
/// Of pairs of kinds that an engine does in one call, one in so many is done apart, on average: what each takes is known
/// from those only.
const APART_ONE_IN: u32 = 64;

impl Dispatcher {
    /// Does all of these requests, which are one operation to a policy, and returns when all are done, each with its
    /// [`Item::result`]. Requests of one kind that stand beside each other are asked about together: those about as
    /// long, and where lanes do the kind, of any length. What the policy gives to an engine that answers later works there
    /// on copies while this thread does the rest, and takes part in that where the policy has it so. Blocks the calling thread
    /// only for those (sleeping, not spinning, once waits get long): for as long as a device answers, and for the runtime's
    /// time-out where it does not. What a silent device still holds back then is the CPU's.
    pub fn run_all(&mut self, items: &mut [Item<'_>]) {
        self.run_or_do(items, true);
    }

    /// The same by engines of the CPU alone. Does not block.
    pub fn do_all(&mut self, items: &mut [Item<'_>]) {
        self.run_or_do(items, false);
    }

    fn run_or_do(&mut self, items: &mut [Item<'_>], may_wait: bool) {
        self.keep_up();
        let generation = fork::generation();
        let mut strangers = VecDeque::new();
        if self.in_flight.len() > 0 {
            // A caller that uses nothing but this would otherwise never hear of the tests its first call started.
            self.poll(&mut |completion| strangers.push_back(completion));
        }
        let mut operations = Operations::default();
        let bytes = items.iter().map(|item| item.request.data.len()).sum();
        let mut at = 0;
        while let Some(first) = items.get(at) {
            if let Err(error) = first.request.validate() {
                items[at].result = Err(error);
                at += 1;
                continue;
            }
            if first.request.run.is_some() {
                items[at].result = self.do_run(&mut items[at].request, !may_wait);
                at += 1;
                continue;
            }
            let shape = first.request.shape();
            let (shape, count) = self.question(shape, &items[at..]);
            if self.too_few(&shape, count) {
                for item in &mut items[at..at + count] {
                    item.result = self.run(&mut item.request);
                    if let Some(cpu) =
                        self.runtime.cpu_engines(shape.kind).next().filter(|_| item.result.is_ok())
                    {
                        self.note_place(cpu, shape.kind, 1);
                    }
                }
                at += count;
                continue;
            }
            let now = self.look();
            if !operations.is_over() && generation == fork::generation() {
                // What has been answered makes room for the next piece.
                self.take_in(&mut operations, items, &mut strangers);
            }
            let choice = self.ask(&shape, count, bytes, may_wait);
            let mut end = at + self.whole_passes(&choice, shape.kind, count);
            match self.stations.get(choice.engine.index()) {
                None => items[at..end].iter_mut().for_each(|item| item.result = Err(Error::Unsupported)),
                Some(station) if may_wait && station.queued.contains(shape.kind) => {
                    operations.begin((choice.engine, shape.kind), at..end, now);
                    self.feed(&mut operations, items);
                }
                Some(_) => {
                    let whole = end == at + count;
                    let second = if whole {
                        self.joined(choice.engine, shape.kind, &items[end..], may_wait)
                    } else {
                        0
                    };
                    let (first, rest) = items[at..].split_at_mut(end - at);
                    match second {
                        0 => _ = self.do_together(choice.engine, first),
                        _ if self.draw(APART_ONE_IN) == 0 => {
                            self.do_together(choice.engine, first);
                            self.do_together(choice.engine, &mut rest[..second]);
                        }
                        _ => self.do_both(choice.engine, first, &mut rest[..second]),
                    }
                    end += second;
                }
            }
            at = end;
        }
        self.finish_all(&mut operations, items, &mut strangers, generation);
        if !strangers.is_empty() {
            // Other callers' completions that came out meanwhile are still theirs.
            strangers.append(&mut self.ready);
            self.ready = strangers;
        }
    }

    /// The requests at the front that are one question to the policy, and their shape. Lanes take messages of any length
    /// together: then it is the mean.
    fn question(&self, first: Shape, items: &[Item<'_>]) -> (Shape, usize) {
        let together = self.stations.iter().any(|one| one.is_cpu && one.engine.width(first.kind) > 1);
        let joins = |shape: &Shape| match together {
            true => (first.kind, first.class) == (shape.kind, shape.class),
            false => is_alike(&first, shape),
        };
        // A run is a request of its own, and never a part of others.
        let plain = items.iter().take_while(|item| item.request.run.is_none());
        let alike = plain.map(|item| item.request.shape()).take_while(joins);
        let (count, bytes) = alike.fold((0, 0_usize), |(n, sum), one| (n + 1, sum.saturating_add(one.bytes)));
        let bytes = if together { bytes / count.max(1) } else { first.bytes };
        (Shape { bytes, ..first }, count)
    }

    /// Whether so many requests are too little work for a question and two readings of the clock, which take as long as
    /// hashing 400 bytes: no device could do them, and lanes gain nothing.
    fn too_few(&self, shape: &Shape, count: usize) -> bool {
        let little = count == 1 || (count < FEW && count.saturating_mul(shape.bytes) <= LITTLE);
        little
            && !shape.kind.is_asymmetric()
            && !self.stations.iter().any(|one| one.queued.contains(shape.kind))
    }

    /// How many requests that stand behind those of another kind an engine does together with them: all of a kind that
    /// the policy gives to it, too, or none.
    fn joined(&mut self, id: EngineId, kind: Kind, behind: &[Item<'_>], may_wait: bool) -> usize {
        let Some(first) = behind.first() else { return 0 };
        let second = first.request.kind;
        if !self.stations[id.index()].engine.joins(kind, second) || first.request.run.is_some() {
            return 0;
        }
        let (shape, count) = self.question(first.request.shape(), behind);
        let bytes = behind[..count].iter().map(|item| item.request.data.len()).sum();
        let choice = self.ask(&shape, count, bytes, may_wait);
        let all = self.whole_passes(&choice, second, count) == count;
        let valid = || behind[..count].iter().all(|item| item.request.validate().is_ok());
        if choice.engine == id && all && valid() { count } else { 0 }
    }

    /// Has a CPU engine do requests of two kinds in one call. What of its time went to which kind is unknown, so the
    /// policy learns from those that are done apart ([`APART_ONE_IN`]).
    fn do_both<'a>(&mut self, id: EngineId, first: &mut [Item<'a>], second: &mut [Item<'a>]) {
        let kinds = [&*first, &*second].map(|items| items[0].request.kind);
        let valid = first.iter().all(|item| item.request.validate().is_ok());
        if !valid || kinds.iter().any(|kind| !self.prove_inline(id, *kind)) {
            self.do_together(id, first);
            self.do_together(id, second);
            return;
        }
        first.iter_mut().chain(&mut *second).for_each(|item| item.result = Err(Error::Unsupported));
        self.stations[id.index()].engine.execute_both(first, second);
        self.now = self.runtime.clock().now();
        for (kind, items) in kinds.into_iter().zip([first, second]) {
            self.believe_all(id, items);
            self.account(id, kind, items, None);
        }
    }

    /// How many of so many requests go where the policy said. It speaks of one pass; if that is a full one, the passes
    /// after it would go the same way, and an engine that has all of them at once fills a lane as soon as it is done.
    /// (Public-key operations are done at the same time and leave none to fill.) Where a device does the kind, too, each pass is asked about for itself.
    fn whole_passes(&self, choice: &Choice, kind: Kind, count: usize) -> usize {
        let chosen = (choice.count as usize).clamp(1, count);
        let Some(station) = self.stations.get(choice.engine.index()) else { return chosen };
        let width = usize::from(station.engine.width(kind));
        let device = self.stations.iter().any(|one| one.queued.contains(kind));
        if !kind.is_asymmetric() && width > 1 && chosen == width && !device {
            count - count % width
        } else {
            chosen
        }
    }

    /// Asks the policy about so many requests like this one, of an operation of so many bytes, which may wait or not,
    /// unless they follow a step that says where they are done.
    pub(super) fn ask(&mut self, shape: &Shape, count: usize, bytes: usize, may_wait: bool) -> Choice {
        let ask = Ask { count: count as u32, bytes: self.whole(bytes), may_wait, ..Ask::one(*shape) };
        match self.next(shape.kind) {
            Next::Device(device) if may_wait => Choice::all(device, &ask),
            Next::Cpu => self.policy.choose(&Ask { may_wait: false, ..ask }, &self.weather, self.now),
            _ => self.policy.choose(&ask, &self.weather, self.now),
        }
    }

    /// Bytes of the whole operation, if so many are in hand.
    pub(super) fn whole(&self, bytes: usize) -> usize {
        bytes.max(usize::try_from(self.part.whole).unwrap_or(usize::MAX))
    }

    /// Has a CPU engine do requests of one kind inside the call, and says how many the fullest pass had (1 without one):
    /// all that are valid in one call, so that messages of unlike length keep every lane busy. A request that is invalid, or that the engine fails, harms none of the others.
    pub(super) fn do_together(&mut self, id: EngineId, items: &mut [Item<'_>]) -> u16 {
        let Some(kind) = items.first().map(|item| item.request.kind) else { return 1 };
        if items.iter().any(|item| item.request.run.is_some()) {
            for item in items {
                item.result = item.request.validate().and_then(|()| self.do_run_on(id, &mut item.request));
            }
            return 1;
        }
        items.iter_mut().for_each(|item| item.result = item.request.validate().map(|()| 0));
        let mut fullest = 1;
        for valid in items.chunk_by_mut(|a, b| a.result.is_ok() == b.result.is_ok()) {
            if valid[0].result.is_err() {
                continue;
            }
            // Whatever an engine leaves out must not pass for done.
            valid.iter_mut().for_each(|item| item.result = Err(Error::Unsupported));
            fullest = fullest.max(self.do_valid(id, kind, valid));
        }
        fullest
    }

    /// The same for requests that are valid.
    fn do_valid(&mut self, id: EngineId, kind: Kind, items: &mut [Item<'_>]) -> u16 {
        if !self.prove_inline(id, kind) {
            let reason = self.why_not_inside(id, kind);
            items.iter_mut().for_each(|item| item.result = self.fall_back(id, reason, &mut item.request));
            self.now = self.runtime.clock().now();
            return 1;
        }
        let start = self.runtime.clock().now();
        self.stations[id.index()].engine.execute_all(items);
        self.now = self.runtime.clock().now();
        // What verifying takes is no property of the engine that signed.
        let took_ns = self.now.saturating_sub(start);
        if self.verified.contains(kind) {
            self.believe_all(id, items);
            self.now = self.runtime.clock().now();
        }
        self.account(id, kind, items, Some(took_ns))
    }

    /// Counts requests that a CPU engine has done together, in so much time if it was theirs alone, and repeats those that
    /// failed. Returns how many the fullest pass had.
    fn account(&mut self, id: EngineId, kind: Kind, items: &mut [Item<'_>], took_ns: Option<Nanos>) -> u16 {
        let width = usize::from(self.stations[id.index()].engine.width(kind));
        let wide = width > 1;
        // A batch of several passes: what one of them took.
        let passes = if wide { items.len().div_ceil(width) } else { 1 };
        let took_ns = took_ns.map(|all| all / passes as Nanos);
        let (mut done, mut bytes, mut failed) = (0_u32, 0_usize, None);
        for item in &mut *items {
            match item.result {
                Ok(_) => (done, bytes) = (done + 1, bytes + item.request.data.len()),
                Err(error) => {
                    let shape = item.request.shape();
                    item.result = self.run_failed(id, &shape, error, &mut item.request);
                    self.now = self.runtime.clock().now();
                    // What there is no right result for is the request's fault and not the engine's.
                    let at_fault = matches!(error, Error::Device(_)) && item.result.is_ok();
                    failed = failed.or(at_fault.then_some((shape, Reason::of(&error))));
                }
            }
        }
        let count = items.len();
        let batch = if wide { count.min(width) as u16 } else { 1 };
        if done > 0 {
            let shape = Shape { bytes: bytes / done as usize, ..items[0].request.shape() };
            // A pass takes all of them as long; one after the other each has its share.
            let latency_ns = took_ns.map(|took| if wide { took } else { took / count as Nanos });
            self.count_together(id, &shape, (done, bytes), latency_ns, batch);
        }
        match failed {
            Some((shape, reason)) => {
                if wide {
                    self.failed(id, reason, self.now);
                }
                let outcome = Outcome { failed: true, ..outcome(id, took_ns.unwrap_or(0), 1) };
                self.policy.observe(&shape, &outcome, self.now);
            }
            None if wide => self.stations[id.index()].health.succeeded(),
            None => {}
        }
        batch
    }

    /// Counts requests that a CPU engine has done together, so many bytes in all, and tells the policy how long each took,
    /// if that is known.
    pub(super) fn count_together(
        &mut self,
        id: EngineId,
        shape: &Shape,
        (done, bytes): (u32, usize),
        latency_ns: Option<Nanos>,
        batch: u16,
    ) {
        let each = u64::from(done);
        self.note_place(id, shape.kind, done);
        self.row.done_together(id, shape.kind, done, bytes as u64);
        if let Some(latency_ns) = latency_ns {
            self.row.add(id, shape.kind, Counter::Timed, each);
            self.row.add(id, shape.kind, Counter::TimedNs, each * latency_ns);
        }
        self.row.add(id, shape.kind, Counter::HeldNs, each * self.held_before_ns);
        let width = u64::from(self.stations[id.index()].engine.width(shape.kind));
        if width > 1 && each > width {
            // Of several passes the mean: with it a reader knows what work of these passes took.
            self.row.add(id, shape.kind, Counter::BatchSum, each * each / each.div_ceil(width));
        } else if batch > 1 || width > 1 {
            self.row.add(id, shape.kind, Counter::BatchSum, each * u64::from(batch));
        }
        self.count_energy(id, shape, (done, batch), None);
        if let Some(latency_ns) = latency_ns {
            self.policy.observe(shape, &outcome(id, latency_ns, batch), self.now);
        }
    }
}

/// Whether requests can be one question to a policy: of one kind and urgency, and about as long.
pub(super) fn is_alike(a: &Shape, b: &Shape) -> bool {
    (a.kind, a.class, a.messages) == (b.kind, b.class, b.messages)
        && (a.bytes | 1).ilog2() == (b.bytes | 1).ilog2()
}

/// What a policy learns of requests that a CPU engine has done.
fn outcome(engine: EngineId, latency_ns: Nanos, batch: u16) -> Outcome {
    Outcome { engine, latency_ns, held_ns: 0, batch, depth: 1, energy_nj: None, failed: false }
}
