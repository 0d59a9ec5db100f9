//! The thread that has the context: it alone calls the driver once the engine is found. Instances hand it tasks; it packs
//! them into slots, several requests under one key together, and gives results back.
//!
//! A slot is pinned memory, device memory, a stream and an event. Its stream copies in, launches a plan's kernels, copies
//! out, and wipes the device memory. There are as many as streams are set. With several slots the three overlap. A request larger than a slot goes in parts.
//!
//! | slot    | host memory                 | device memory             |
//! |---------|-----------------------------|---------------------------|
//! | free    | zero                        | zero, by the stream       |
//! | busy    | the driver's                | the stream's              |
//! | done    | read here, then wiped       | wiped before the event    |
//! | lost    | overwritten, given back     | given back                |
//!
//! Rules: a request's buffers are touched only under its cell's lock, so that it can be taken back at any time; the driver
//! never sees them. After a failure that is the context's (anything but a refused argument or a lack of memory) every task
//! is answered with [`Fault::Lost`]; the driver is then called to give things back, and for nothing else.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use wattlock_core::sync::lock;
use wattlock_core::{Error, Expected, Family, Fault, Kind, OwnedRequest, Span, Token, known_answers};
use zeroize::Zeroize;

use crate::device::Device;
use crate::kernels::Kernels;
use crate::plan::{self, BLOCK, Layout, Part};
use crate::sys::{Address, Driver, Failure, Lane, bytes_of};

/// Message bytes of a slot, if there is memory; halved until there is, down to the least.
const SLOT_MOST: usize = 8 << 20;
const SLOT_LEAST: usize = 256 << 10;
/// Messages of a slot.
const MESSAGES_MOST: usize = 4096;
/// Between two looks at what is under way.
const LOOK_EVERY: Duration = Duration::from_micros(20);
/// How long a device may take for its known answers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Errors that leave the context as it was: a refused argument, no memory, no room for a launch.
const HARMLESS: [i32; 3] = [1, 2, 701];

/// A request that an instance has, and that is taken out when it is withdrawn or done.
pub(crate) struct Cell(Mutex<Option<OwnedRequest>>);

impl Cell {
    pub(crate) fn new(request: OwnedRequest) -> Arc<Cell> {
        Arc::new(Cell(Mutex::new(Some(request))))
    }

    fn locked(&self) -> MutexGuard<'_, Option<OwnedRequest>> {
        lock(&self.0)
    }

    pub(crate) fn take(&self) -> Option<OwnedRequest> {
        self.locked().take()
    }
}

/// A request on its way to the owner.
pub(crate) struct Task {
    pub(crate) token: Token,
    pub(crate) kind: Kind,
    pub(crate) key: u64,
    pub(crate) messages: usize,
    pub(crate) cell: Arc<Cell>,
    pub(crate) answers: Sender<Answer>,
}

/// What became of it.
pub(crate) struct Answer {
    pub(crate) token: Token,
    pub(crate) result: Result<usize, Error>,
    /// Requests that shared a launch with its first part.
    pub(crate) batch: u16,
}

/// How the owner is.
#[derive(Debug, Default)]
pub(crate) struct State(AtomicU8);

impl State {
    const UP: u8 = 1;
    const DEAD: u8 = 2;

    pub(crate) fn is_up(&self) -> bool {
        self.0.load(Ordering::Acquire) == State::UP
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.0.load(Ordering::Acquire) == State::DEAD
    }
}

/// However the thread ends, no caller may wait for it.
struct LastWill(Arc<State>);

impl Drop for LastWill {
    fn drop(&mut self) {
        self.0.0.store(State::DEAD, Ordering::Release);
    }
}

/// A number that a key's clones share: batches are of one key.
pub(crate) struct Identity(pub(crate) u64);

impl Identity {
    pub(crate) fn next() -> Identity {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Identity(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The longest message that fits a slot, whatever memory there is.
pub(crate) const MESSAGE_MOST: usize = SLOT_LEAST;

/// A request that is being done.
struct Work {
    task: Task,
    /// Messages handed to slots so far, and those that came back.
    handed: usize,
    back: usize,
    /// The first message that was not verified.
    forged: Option<usize>,
    failed: Option<Error>,
    batch: u16,
}

/// Some messages of a request, in a slot.
struct Load {
    work: u64,
    first: usize,
    count: usize,
}

struct Slot {
    lane: Lane,
    device: Address,
    busy: Option<(Layout, Vec<Load>)>,
}

/// Messages that fit a slot: their kind, the length of their nonces, their lengths, and whose they are.
struct Batch {
    kind: Kind,
    nonce_len: usize,
    parts: Vec<Part>,
    loads: Vec<Load>,
}

struct Owner {
    driver: Arc<Driver>,
    kernels: Kernels,
    slots: Vec<Slot>,
    /// Message bytes of a slot.
    room: usize,
    works: HashMap<u64, Work>,
    queue: VecDeque<u64>,
    next: u64,
}

/// Works until every sender of tasks is gone, or the device is.
pub(crate) fn run(
    driver: &Arc<Driver>,
    device: &Device,
    streams: usize,
    tasks: &Receiver<Task>,
    state: Arc<State>,
) {
    let will = LastWill(state);
    let opened = driver.context(device.ordinal).and_then(|()| {
        // What is not opened here has no share of the context to give back.
        let owner = Owner::new(driver, device, streams);
        if owner.is_err() {
            _ = driver.release(device.ordinal);
        }
        owner
    });
    let mut owner = match opened {
        Ok(owner) => owner,
        Err(failure) => {
            tracing::warn!(code = failure.0, "the GPU could not be opened");
            return;
        }
    };
    let outcome = owner.settle_ghash(device).and_then(|()| {
        will.0.0.store(State::UP, Ordering::Release);
        owner.work(tasks)
    });
    // Nothing is accepted from here on.
    will.0.0.store(State::DEAD, Ordering::Release);
    match outcome {
        Ok(()) => {
            let closed = owner.close().and_then(|()| driver.release(device.ordinal));
            if let Err(failure) = closed {
                tracing::warn!(code = failure.0, "the GPU could not be closed");
            }
        }
        Err(failure) => {
            tracing::warn!(code = failure.0, "the GPU is lost");
            owner.abandon(tasks);
            _ = driver.release(device.ordinal);
        }
    }
}

impl Owner {
    fn new(driver: &Arc<Driver>, device: &Device, streams: usize) -> Result<Owner, Failure> {
        let kernels = Kernels::load(driver, device)?;
        let mut room = SLOT_MOST;
        let slots = loop {
            match Owner::slots(driver, room, streams) {
                Err(Failure::OUT_OF_MEMORY) if room > SLOT_LEAST => room /= 2,
                Err(failure) => return kernels.unload(driver).and(Err(failure)),
                Ok(slots) => break slots,
            }
        };
        let (works, queue) = (HashMap::new(), VecDeque::new());
        Ok(Owner { driver: driver.clone(), kernels, slots, room, works, queue, next: 0 })
    }

    fn slots(driver: &Driver, room: usize, streams: usize) -> Result<Vec<Slot>, Failure> {
        let mut slots = Vec::new();
        for _ in 0..streams {
            match Slot::new(driver, room) {
                Ok(slot) => slots.push(slot),
                Err(failure) => {
                    slots.into_iter().try_for_each(|slot: Slot| slot.close(driver))?;
                    return Err(failure);
                }
            }
        }
        Ok(slots)
    }

    /// Gives the known answers of GCM a try. If they are wrong, its kernels without `clmad` take over; whether those are
    /// right is seen like any kind's, by each dispatcher before it uses one.
    fn settle_ghash(&mut self, device: &Device) -> Result<(), Failure> {
        if device.integers.is_none() || self.ghash_is_right()? != Some(false) {
            return Ok(());
        }
        match self.kernels.use_integers(&self.driver, device) {
            Ok(_) => tracing::info!("clmad gives wrong results on this GPU: GHASH is done without"),
            Err(Failure(code)) => tracing::warn!(code, "the kernels without clmad do not load"),
        }
        Ok(())
    }

    /// `None`: the device has not answered, which the first requests will find out, too.
    fn ghash_is_right(&mut self) -> Result<Option<bool>, Failure> {
        let (sending, answers) = channel();
        let mut asked = HashMap::new();
        for kind in [Kind::Aes256GcmSeal, Kind::Aes256GcmOpen] {
            for (answer, at) in known_answers(kind).into_iter().zip(asked.len() as u64..) {
                let (messages, cell) = (answer.request.messages(), Cell::new(answer.request));
                asked.insert(Token(at), (cell.clone(), answer.expected));
                let (key, answers) = (Identity::next().0, sending.clone());
                self.enter(Task { token: Token(at), kind, key, messages, cell, answers });
            }
        }
        let since = Instant::now();
        let mut right = true;
        while !asked.is_empty() {
            if !(self.start()? | self.finish()?) {
                std::thread::sleep(LOOK_EVERY);
            }
            while let Ok(Answer { token, result, .. }) = answers.try_recv() {
                let Some((cell, expected)) = asked.remove(&token) else { continue };
                right &= cell.take().is_some_and(|request| is_expected(&expected, &request, result));
            }
            if since.elapsed() > ANSWERS_WITHIN {
                return Ok(None);
            }
        }
        Ok(Some(right))
    }

    fn work(&mut self, tasks: &Receiver<Task>) -> Result<(), Failure> {
        let (mut open, mut quiet) = (true, 0_u32);
        loop {
            let idle = self.works.is_empty() && self.slots.iter().all(|slot| slot.busy.is_none());
            if idle && !open {
                return Ok(());
            }
            if idle {
                match tasks.recv() {
                    Ok(task) => self.enter(task),
                    Err(_) => open = false,
                }
            }
            while let Ok(task) = tasks.try_recv() {
                self.enter(task);
            }
            let moved = self.start()? | self.finish()?;
            if moved || idle {
                quiet = 0;
                continue;
            }
            // A device that has not answered for long is looked at less often, once a millisecond at last.
            quiet = quiet.saturating_add(1);
            let pause = LOOK_EVERY * (1 + quiet / 50).min(50);
            if !open {
                std::thread::sleep(pause);
                continue;
            }
            match tasks.recv_timeout(pause) {
                Ok(task) => self.enter(task),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => open = false,
            }
        }
    }

    fn enter(&mut self, task: Task) {
        let id = self.next;
        self.next += 1;
        let nothing = task.messages == 0;
        let work = Work { task, handed: 0, back: 0, forged: None, failed: None, batch: 0 };
        self.works.insert(id, work);
        if nothing {
            self.conclude(id);
        } else {
            self.queue.push_back(id);
        }
    }

    /// Fills free slots. Says whether there was anything to do.
    fn start(&mut self) -> Result<bool, Failure> {
        let mut moved = false;
        while let Some(slot) = self.slots.iter().position(|slot| slot.busy.is_none()) {
            let Some(batch) = self.gather() else { return Ok(moved) };
            moved = true;
            self.begin(slot, batch)?;
        }
        Ok(moved)
    }

    /// Fills a free slot and has its stream do it.
    fn begin(&mut self, slot: usize, batch: Batch) -> Result<(), Failure> {
        let Batch { kind, nonce_len, parts, loads } = batch;
        if loads.is_empty() {
            return Ok(());
        }
        let layout = Layout::new(kind, nonce_len, &parts);
        let Some(key_len) = self.fill(slot, &layout, &loads) else {
            // All were withdrawn since they were gathered: there is no key, and no caller that asks.
            self.came_back(slot, &layout, &loads);
            return Ok(());
        };
        let mut launched = self.launch(slot, &layout, key_len);
        let Slot { lane, device, .. } = &mut self.slots[slot];
        if launched.is_err_and(|failure| HARMLESS.contains(&failure.0)) {
            // What was copied in before it was refused must not stay.
            launched = self.driver.wipe(*device, layout.device, lane.stream()).and(launched);
        }
        let recorded = self.driver.record(lane);
        self.slots[slot].busy = Some((layout, loads));
        recorded?;
        match launched {
            Err(failure) if HARMLESS.contains(&failure.0) => self.fail(slot),
            launched => launched?,
        }
        Ok(())
    }

    /// The next messages that fit a slot: of the oldest request, and of others of its kind and key. `None`: there are no
    /// requests; no loads: the oldest was withdrawn.
    fn gather(&mut self) -> Option<Batch> {
        let oldest = self.queue.front().and_then(|id| self.works.get(id))?;
        let (kind, key) = (oldest.task.kind, oldest.task.key);
        let (mut parts, mut loads, mut bytes, mut nonce_len) = (Vec::new(), Vec::new(), 0, 0);
        let mut rest = VecDeque::new();
        let mut full = false;
        while let Some(id) = self.queue.pop_front() {
            let Some(work) = self.works.get_mut(&id) else { continue };
            if full || work.task.kind != kind || work.task.key != key {
                rest.push_back(id);
                continue;
            }
            let cell = work.task.cell.clone();
            let mut request = cell.locked();
            let Some(request) = request.as_mut() else {
                drop(request);
                // Withdrawn: it ends with what is under way of it.
                work.task.messages = work.handed;
                if work.back == work.handed {
                    self.conclude(id);
                }
                continue;
            };
            let first = work.handed;
            while work.handed < work.task.messages {
                let span = span(request, work.handed);
                let more = span.len.next_multiple_of(16) + span.aad_len;
                if parts.len() == MESSAGES_MOST || (bytes + more > self.room && !parts.is_empty()) {
                    full = true;
                    break;
                }
                bytes += more;
                parts.push(Part { len: span.len, aad_len: span.aad_len });
                work.handed += 1;
            }
            nonce_len = request.nonce.len() / work.task.messages.max(1);
            if work.handed > first {
                loads.push(Load { work: id, first, count: work.handed - first });
            }
            if work.handed < work.task.messages {
                rest.push_back(id);
            }
        }
        self.queue = rest;
        let sharing = loads.len() as u16;
        for load in &loads {
            if let Some(work) = self.works.get_mut(&load.work) {
                work.batch = work.batch.max(sharing);
            }
        }
        Some(Batch { kind, nonce_len, parts, loads })
    }

    /// Copies keys, tables, nonces and messages into a slot's host memory. Returns the key's length; `None` if no request
    /// is left.
    fn fill(&mut self, slot: usize, layout: &Layout, loads: &[Load]) -> Option<usize> {
        let host = self.slots[slot].lane.bytes_mut();
        let (at, table) = layout.table();
        let table = bytes_of(table);
        host[at..at + table.len()].copy_from_slice(table);
        let (mut index, mut key_len) = (0, None);
        for load in loads {
            let Some(work) = self.works.get(&load.work) else { continue };
            let request = work.task.cell.locked();
            // Withdrawn since it was gathered: its place stays zero, and its result is not asked for.
            let Some(request) = request.as_ref() else {
                index += load.count;
                continue;
            };
            let key = request.key.bytes();
            key_len = Some(key.len());
            host[..key.len()].copy_from_slice(key);
            for message in load.first..load.first + load.count {
                let span = span(request, message);
                let put = |host: &mut [u8], at: usize, bytes: &[u8]| {
                    host[at..at + bytes.len()].copy_from_slice(bytes);
                };
                put(host, layout.at(index), &request.input[span.at..][..span.len]);
                put(host, layout.aad_at(index), &request.aad[span.aad_at..][..span.aad_len]);
                let nonce = &request.nonce[message * layout.nonce_len..][..layout.nonce_len];
                put(host, layout.nonces + index * layout.nonce_len, nonce);
                if request.kind.info().family == Family::Open {
                    put(host, layout.tags + 16 * index, tag_of(request, &span));
                }
                index += 1;
            }
        }
        key_len
    }

    /// Copy-in, kernels, copy-out, wiping.
    fn launch(&mut self, slot: usize, layout: &Layout, key_len: usize) -> Result<(), Failure> {
        let Owner { driver, slots, kernels, .. } = self;
        let Slot { lane, device: base, .. } = &mut slots[slot];
        let base = *base;
        let at = |offset: usize| base + offset as u64;
        let (table, _) = layout.table();
        driver.copy_in(at(layout.key_area()), lane, 0, key_len)?;
        driver.copy_in(at(table), lane, table, layout.shared - table)?;
        let run = layout.run(base, key_len);
        for step in plan::steps(layout.kind()).unwrap_or_default() {
            let blocks = layout.blocks(step);
            if blocks > 0 {
                driver.launch(kernels.function(step.kernel), blocks, BLOCK, lane.stream(), &run)?;
            }
        }
        driver.copy_out(lane, layout.tags, at(layout.tags), layout.shared - layout.tags)?;
        driver.wipe(base, layout.device, lane.stream())
    }

    /// A batch that was not launched: its messages count as failed when its stream is done with what was.
    fn fail(&mut self, slot: usize) {
        let Some((_, loads)) = &self.slots[slot].busy else { return };
        for load in loads {
            if let Some(work) = self.works.get_mut(&load.work) {
                work.failed = Some(Error::Device(Fault::Reported));
            }
        }
    }

    /// Takes results of slots that are done.
    fn finish(&mut self) -> Result<bool, Failure> {
        let mut moved = false;
        for slot in 0..self.slots.len() {
            let Slot { lane, busy, .. } = &mut self.slots[slot];
            if busy.is_none() || !self.driver.is_done(lane)? {
                continue;
            }
            let Some((layout, loads)) = busy.take() else { continue };
            moved = true;
            self.deliver(slot, &layout, &loads);
            self.came_back(slot, &layout, &loads);
        }
        Ok(moved)
    }

    /// Wipes a slot's host memory, and ends the requests all of whose messages have come back.
    fn came_back(&mut self, slot: usize, layout: &Layout, loads: &[Load]) {
        self.slots[slot].lane.bytes_mut()[..layout.shared].zeroize();
        for load in loads {
            let Some(work) = self.works.get_mut(&load.work) else { continue };
            work.back += load.count;
            if work.back == work.task.messages {
                self.conclude(load.work);
            }
        }
    }

    fn deliver(&mut self, slot: usize, layout: &Layout, loads: &[Load]) {
        let host = self.slots[slot].lane.bytes();
        let mut index = 0;
        for load in loads {
            let at = index;
            index += load.count;
            let Some(work) = self.works.get_mut(&load.work).filter(|work| work.failed.is_none()) else {
                continue;
            };
            let mut request = work.task.cell.locked();
            let Some(request) = request.as_mut() else { continue };
            let family = request.kind.info().family;
            for (index, message) in (at..).zip(load.first..load.first + load.count) {
                let span = span(request, message);
                let result = &host[layout.results + 4 * index..][..4];
                if family == Family::Open && result != 1_u32.to_ne_bytes() {
                    work.forged = Some(work.forged.map_or(message, |first| first.min(message)));
                    continue;
                }
                request.output[span.at..][..span.len].copy_from_slice(&host[layout.at(index)..][..span.len]);
                if family == Family::Seal {
                    let tag = &host[layout.tags + 16 * index..][..16];
                    match request.run {
                        None => request.tag.copy_from_slice(tag),
                        Some(_) => request.output[span.at + span.len..][..16].copy_from_slice(tag),
                    }
                }
            }
        }
    }

    /// All of a request has come back.
    fn conclude(&mut self, id: u64) {
        let Some(work) = self.works.remove(&id) else { return };
        let mut request = work.task.cell.locked();
        let result = match (request.as_mut(), work.failed, work.forged) {
            (None, ..) => Err(Error::Withdrawn),
            (Some(request), Some(error), _) => {
                request.output[..].zeroize();
                Err(error)
            }
            (Some(request), None, Some(message)) => {
                request.output[..].zeroize();
                let is_run = request.run.is_some();
                Err(if is_run { Error::ForgedMessage(message as u32) } else { Error::Authentication })
            }
            (Some(request), None, None) => Ok(request.input.len()),
        };
        drop(request);
        let answer = Answer { token: work.task.token, result, batch: work.batch.max(1) };
        // An instance that is gone does not want it.
        _ = work.task.answers.send(answer);
    }

    /// The device is lost: whatever is here, or still comes, is answered so. Host memory is wiped, whatever the device was
    /// doing with it: a context that failed copies no more. Everything is offered back to the driver; what it refuses goes
    /// with the context.
    fn abandon(mut self, tasks: &Receiver<Task>) {
        while let Ok(task) = tasks.try_recv() {
            self.enter(task);
        }
        let ids: Vec<u64> = self.works.keys().copied().collect();
        for id in ids {
            if let Some(work) = self.works.get_mut(&id) {
                work.failed = Some(Error::Device(Fault::Lost));
            }
            self.conclude(id);
        }
        let (driver, slots) = (&self.driver, self.slots);
        slots.into_iter().for_each(|slot| _ = slot.close(driver));
        _ = self.kernels.unload(driver);
    }

    fn close(self) -> Result<(), Failure> {
        let driver = &self.driver;
        self.slots.into_iter().try_for_each(|slot| slot.close(driver))?;
        self.kernels.unload(driver)
    }
}

impl Slot {
    /// Everything that a slot needs, or nothing.
    fn new(driver: &Driver, room: usize) -> Result<Slot, Failure> {
        let lane = driver.lane(plan::shared_bytes(room, MESSAGES_MOST))?;
        match driver.allocate(plan::device_bytes(room, MESSAGES_MOST)) {
            Ok(device) => Ok(Slot { lane, device, busy: None }),
            Err(failure) => driver.close_lane(lane).and(Err(failure)),
        }
    }

    fn close(self, driver: &Driver) -> Result<(), Failure> {
        let lane = driver.close_lane(self.lane);
        driver.free(self.device).and(lane)
    }
}

/// Where message `index` of a request lies; the request itself if it is no run.
fn span(request: &OwnedRequest, index: usize) -> Span {
    match &request.run {
        Some(run) => run.span(request.kind, index, request.input.len(), request.aad.len()),
        None => Span { at: 0, len: request.input.len(), aad_at: 0, aad_len: request.aad.len() },
    }
}

/// Whether a known answer was given. That a forged message was refused, or a launch, says nothing of the hash.
fn is_expected(expected: &Expected, request: &OwnedRequest, result: Result<usize, Error>) -> bool {
    match (expected, result) {
        (_, Err(Error::Device(_))) => true,
        (Expected::Bytes { output, tag }, result) => {
            result == Ok(output.len())
                && request.output.get(..output.len()) == Some(output)
                && request.tag[..tag.len()] == tag[..]
        }
        _ => true,
    }
}

/// The tag that a message is to be opened with.
fn tag_of<'a>(request: &'a OwnedRequest, span: &Span) -> &'a [u8] {
    match request.run {
        Some(_) => &request.input[span.at + span.len..][..16],
        None => &request.tag,
    }
}

#[cfg(test)]
mod tests {
    use wattlock_core::{Algorithm, Key};

    use super::*;
    use crate::sys::tests::{CALLS, pretended};

    #[test]
    fn a_batch_whose_requests_were_all_withdrawn_is_not_launched_and_leaves_a_free_slot() {
        let (driver, image) = (Arc::new(pretended()), vec![0]);
        let (name, bus, capability) = (String::new(), String::new(), (9, 0));
        let (multiprocessors, memory_bytes, driver_version) = (1, 1 << 30, 13_000);
        let device = Device {
            ordinal: 0,
            name,
            bus,
            capability,
            multiprocessors,
            clock_khz: 0,
            warp: 32,
            memory_bytes,
            driver: driver_version,
            image,
            integers: None,
        };
        let mut owner = Owner::new(&driver, &device, 16).unwrap();
        assert_eq!(owner.slots.len(), 16);
        let key = Arc::new(Key::symmetric(Algorithm::Aes256Gcm, &[3; 32]).unwrap());
        let mut request = OwnedRequest::new(Kind::Aes256GcmSeal, key, vec![1; 100], 100);
        request.nonce = vec![2; 12];
        let (cell, (answers, answered)) = (Cell::new(request), channel());
        let (kind, token) = (Kind::Aes256GcmSeal, Token(1));
        owner.enter(Task { token, kind, key: 1, messages: 1, cell: cell.clone(), answers });
        let batch = owner.gather().unwrap();
        // Between the two, since only a memory copy keeps the cell locked.
        let taken = cell.take().unwrap();
        let before = CALLS.with_borrow(Vec::len);
        owner.begin(0, batch).unwrap();
        CALLS.with_borrow(|calls| assert_eq!(calls[before..], [""; 0], "the driver was called"));
        let answer = answered.try_recv().unwrap();
        assert_eq!((answer.token, answer.result), (token, Err(Error::Withdrawn)));
        assert!(owner.works.is_empty() && owner.slots[0].busy.is_none());
        assert!(owner.slots[0].lane.bytes().iter().all(|byte| *byte == 0));
        assert_eq!(taken.input, vec![1; 100]);
    }
}
