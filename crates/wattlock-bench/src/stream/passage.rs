//! A stream on its way through a real window: this thread is the producer, another encrypts.
//!
//! The rules are those of the lab's model (`wattlock_lab::sim::stream`), so that the two can be compared. A message
//! enters if it finds room; else it is refused, counted, and comes again. The policy is asked about each message that
//! enters; the fill it sees is the window's. The encryptor takes all that waits, at the clock last named, encrypts it
//! with AES-128-CTR through the runtime, and takes as long as the model's device would (longer if this CPU is slower,
//! which is counted). Room is free again when the device would have copied the bytes in.
//!
//! On this machine ([`run_here`]) nothing is stretched: a pass takes what it takes, and room is free again when it is over.
//! The clock that the policy names is set if there is a governor, and else counted. What stands for the model's GPU is this
//! machine's, or all CPU threads.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use wattlock::{Dispatcher, Runtime, Submitted};
use wattlock_clock::{Governor, Named};
use wattlock_core::sync::lock;
use wattlock_core::{
    Algorithm, Completion, Data, Error as CoreError, Item, Key, Kind, LatencyClass, Nanos, OwnedRequest,
    Request, Shape,
};
use wattlock_lab::sim::answered;
use wattlock_lab::sim::stream::{CPU, GPU, Message, Station};
use wattlock_policy::{Ask, EngineId, Outcome, Policy, Weather};

use wattlock_shell::INTERRUPTED;

/// How long a GPU may take to come up.
const UP_WITHIN: Duration = Duration::from_secs(30);
/// Between two looks at a GPU that is at work.
const LOOK_EVERY: Duration = Duration::from_micros(20);
/// A device idle for so long may rest, as in the lab.
const REST: Duration = Duration::from_millis(5);

/// What became of a stream.
#[derive(Debug, Clone, Default)]
pub struct Passed {
    pub seconds: f64,
    pub bytes: u64,
    pub messages: u64,
    pub retransmissions: u64,
    /// Modelled.
    pub joules: f64,
    pub clock_changes: u64,
    pub p99_ns: Nanos,
    /// Messages that a GPU of this machine did.
    pub by_gpu: u64,
    /// Time that real work and wake-ups took beyond the model's, and the model's.
    late_ns: u64,
    due_ns: u64,
}

impl Passed {
    pub fn throughput(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds.max(1e-9)
    }

    /// How much longer the device took than its model says.
    pub fn late_share(&self) -> f64 {
        self.late_ns as f64 / self.due_ns.max(1) as f64
    }
}

struct Waiting {
    content: Vec<u8>,
    entered: Nanos,
    depth: u32,
    engine: EngineId,
}

struct State {
    policy: Box<dyn Policy>,
    fill: u64,
    ring: Vec<Waiting>,
    in_device: u32,
    clock: Option<usize>,
    ended: bool,
    latencies: Vec<Nanos>,
    passed: Passed,
}

struct Window<'a> {
    station: &'a Station,
    began: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

/// This machine: its GPU if one is to work, CPU threads, and the clocks if they are set.
pub struct Here<'a> {
    /// The GPU's number in the runtime.
    pub engine: Option<usize>,
    /// CPU threads of the program.
    pub threads: Threads,
    /// What carries out the steps that the policy names.
    pub clock: Option<&'a mut dyn Governor>,
}

/// The clock: the steps that were named, and what sets them.
struct Clock<'a> {
    named: Named,
    governor: Option<&'a mut dyn Governor>,
}

impl Clock<'_> {
    fn present(&self) -> usize {
        self.named.present()
    }

    fn set(&mut self, step: usize) -> Result<(), CoreError> {
        self.named.set(step).map_err(|_| CoreError::Invalid("clock step"))?;
        match &mut self.governor {
            Some(governor) => governor.set(step).map_err(|_| CoreError::Invalid("clock: it cannot be set")),
            None => Ok(()),
        }
    }
}

/// A message's part on its way to a thread and back.
struct Piece {
    message: usize,
    from: usize,
    nonce: [u8; 16],
    content: Vec<u8>,
    failed: Option<CoreError>,
}

/// Threads that share each message's blocks evenly, as the published parallel program does; one is the serial one.
pub struct Threads {
    orders: Vec<Sender<Piece>>,
    done: Receiver<Piece>,
}

impl Threads {
    /// They end with this value.
    pub fn new(runtime: &Runtime, key: &Arc<Key>, count: usize) -> Threads {
        let (finish, done) = channel();
        let start = |_| {
            let (order, ordered) = channel::<Piece>();
            let (mut dispatcher, key, finish) = (runtime.dispatcher(), key.clone(), finish.clone());
            std::thread::spawn(move || {
                for mut piece in ordered {
                    let request = Request::new(Kind::Aes128Ctr, &key, Data::InPlace(&mut piece.content));
                    let request = Request { nonce: &piece.nonce, class: LatencyClass::Bulk, ..request };
                    let mut items = [Item::new(request)];
                    dispatcher.run_all(&mut items);
                    let [item] = items;
                    piece.failed = item.result.err();
                    if finish.send(piece).is_err() {
                        return;
                    }
                }
            });
            order
        };
        Threads { orders: (0..count.max(1)).map(start).collect(), done }
    }

    /// Has the contents encrypted, each shared by all threads, in place of the contents given.
    pub fn cipher(&self, number: &mut u64, mut contents: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, CoreError> {
        let lost = || CoreError::Invalid("a thread that ended");
        let mut out = 0;
        for (message, content) in contents.iter().enumerate() {
            let share = content.len().div_ceil(16).div_ceil(self.orders.len()).max(1) * 16;
            for (order, (nth, part)) in self.orders.iter().zip(content.chunks(share).enumerate()) {
                let (mut nonce, from) = (nonce(*number), nth * share);
                nonce[8..].copy_from_slice(&(from as u64 / 16).to_be_bytes());
                let piece = Piece { message, from, nonce, content: part.to_vec(), failed: None };
                order.send(piece).map_err(|_| lost())?;
                out += 1;
            }
            *number += 1;
        }
        for _ in 0..out {
            let piece = self.done.recv().map_err(|_| lost())?;
            if let Some(error) = piece.failed {
                return Err(error);
            }
            let content = &mut contents[piece.message];
            content[piece.from..piece.from + piece.content.len()].copy_from_slice(&piece.content);
        }
        Ok(contents)
    }
}

/// The key of the experiment.
pub fn key() -> Result<Arc<Key>, CoreError> {
    Ok(Arc::new(Key::symmetric(Algorithm::Aes128Ctr, &[0x42; 16])?))
}

/// Integrates the model's watts over real time.
struct Power<'a> {
    station: &'a Station,
    until: Nanos,
    joules: f64,
}

impl Power<'_> {
    /// The static part up to now, at that step.
    fn rest(&mut self, now: Nanos, step: usize) {
        // A step of this machine's clocks is none of the model's.
        let watts = self.station.gpu.steps.get(step).map_or(0.0, |step| step.static_w);
        self.joules += watts * now.saturating_sub(self.until) as f64 / 1e9;
        self.until = self.until.max(now);
    }

    fn work(&mut self, ns: Nanos, watts: f64) {
        self.joules += watts * ns as f64 / 1e9;
    }
}

/// Sends the messages through the emulated machine.
pub fn run(
    station: &Station,
    messages: &[Message],
    policy: Box<dyn Policy>,
    runtime: &Runtime,
) -> Result<Passed> {
    pass(station, messages, policy, &mut runtime.dispatcher(), None)
}

/// Sends the messages through this machine: what the policy gives to the device is its GPU's, to which the runtime's policy
/// sends what it can. The station's window and slack count, and nothing else of it.
pub fn run_here(
    station: &Station,
    messages: &[Message],
    policy: Box<dyn Policy>,
    runtime: &Runtime,
    here: Here<'_>,
) -> Result<Passed> {
    let (mut dispatcher, engine) = (runtime.dispatcher(), here.engine);
    let by_gpu = |dispatcher: &Dispatcher| engine.map_or(0, |one| dispatcher.done_by(one, Kind::Aes128Ctr));
    if engine.is_some() {
        come_up(&mut dispatcher, by_gpu)?;
    }
    let before = by_gpu(&dispatcher);
    let mut passed = pass(station, messages, policy, &mut dispatcher, Some(here))?;
    passed.by_gpu = by_gpu(&dispatcher) - before;
    Ok(passed)
}

/// Waits for a GPU's context and its known answers.
fn come_up(dispatcher: &mut Dispatcher, by_gpu: impl Fn(&Dispatcher) -> u64) -> Result<()> {
    let (key, start, done) = (key()?, Instant::now(), by_gpu(dispatcher));
    while by_gpu(dispatcher) == done {
        ensure!(start.elapsed() < UP_WITHIN, "the GPU does not come up");
        on_gpu(&key, &mut 0, vec![vec![0; 4096]], dispatcher)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// What does one pass over so many bytes, and again: the GPU of that number in the runtime, or the threads.
pub fn passes<'a>(
    runtime: &Runtime,
    engine: Option<usize>,
    threads: &'a Threads,
) -> Result<impl FnMut(usize) -> Result<()> + use<'a>> {
    let (mut dispatcher, key, mut number) = (runtime.dispatcher(), key()?, 0);
    if let Some(engine) = engine {
        come_up(&mut dispatcher, |dispatcher| dispatcher.done_by(engine, Kind::Aes128Ctr))?;
    }
    Ok(move |bytes| {
        let content = vec![vec![0; bytes]];
        match engine {
            Some(_) => on_gpu(&key, &mut number, content, &mut dispatcher).map(drop)?,
            None => threads.cipher(&mut number, content).map(drop)?,
        }
        Ok(())
    })
}

fn pass(
    station: &Station,
    messages: &[Message],
    policy: Box<dyn Policy>,
    dispatcher: &mut Dispatcher,
    here: Option<Here<'_>>,
) -> Result<Passed> {
    let state = State {
        policy,
        fill: 0,
        ring: Vec::new(),
        in_device: 0,
        clock: None,
        ended: false,
        latencies: Vec::with_capacity(messages.len()),
        passed: Passed::default(),
    };
    let (state, changed) = (Mutex::new(state), Condvar::new());
    let window = Window { station, began: Instant::now(), state, changed };
    let encrypted = std::thread::scope(|scope| {
        let encryptor = scope.spawn(|| window.encrypt(dispatcher, here));
        window.produce(messages);
        window.lock().ended = true;
        window.changed.notify_all();
        encryptor.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    encrypted?;
    let mut state = window.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    state.latencies.sort_unstable();
    let p99 = state.latencies.len() * 99 / 100;
    state.passed.p99_ns = state.latencies.get(p99).copied().unwrap_or(0);
    Ok(state.passed)
}

impl Window<'_> {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn now(&self) -> Nanos {
        self.began.elapsed().as_nanos() as Nanos
    }

    fn sleep_until(&self, at: Nanos) {
        std::thread::sleep(Duration::from_nanos(at.saturating_sub(self.now())));
    }

    /// Keeps the velocity that was asked for: a sleep that was too long is made up for by the next. A timer's usual
    /// lateness is the model's.
    fn produce(&self, messages: &[Message]) {
        let mut at = 0.0;
        for (nth, message) in messages.iter().enumerate() {
            let content = vec![nth as u8; message.bytes as usize];
            while !self.has_room(message.bytes) {
                at += message.wait_ns + self.station.slack_ns;
                self.sleep_until(at as Nanos);
                if INTERRUPTED.load(std::sync::atomic::Ordering::SeqCst) {
                    return;
                }
            }
            self.enter(content);
            if INTERRUPTED.load(std::sync::atomic::Ordering::SeqCst) {
                return;
            }
            if nth + 1 < messages.len() {
                at += message.gap_ns + self.station.slack_ns;
                self.sleep_until(at as Nanos);
            }
        }
    }

    /// Only the producer takes room, so room that is there stays.
    fn has_room(&self, bytes: u64) -> bool {
        let mut state = self.lock();
        let room = state.fill + bytes <= self.station.window_bytes;
        state.passed.retransmissions += u64::from(!room);
        room
    }

    fn enter(&self, content: Vec<u8>) {
        let now = self.now();
        let mut state = self.lock();
        state.fill += content.len() as u64;
        state.passed.messages += 1;
        let weather = state.weather(self.station.window_bytes);
        let choice = state.policy.choose(&Ask::one(shape(content.len())), &weather, now);
        if let Some(step) = choice.clock {
            state.clock = Some(usize::from(step.0));
        }
        let depth = weather.engines[choice.engine.index()].in_flight + 1;
        state.ring.push(Waiting { content, entered: now, depth, engine: choice.engine });
        drop(state);
        self.changed.notify_all();
    }

    fn encrypt(&self, dispatcher: &mut Dispatcher, mut here: Option<Here<'_>>) -> Result<(), CoreError> {
        let gpu = &self.station.gpu;
        let own = here.as_ref().and_then(|here| Some(here.clock.as_ref()?.clocks_khz().to_vec()));
        let clocks =
            own.unwrap_or_else(|| gpu.steps.iter().map(|step| (step.core_mhz * 1e3) as u64).collect());
        // No clock is set yet.
        let first = if here.is_some() { usize::MAX } else { gpu.reference };
        let governor = here.as_mut().and_then(|here| here.clock.take());
        let mut clock = Clock { named: Named::new(clocks, first), governor };
        let mut power = Power { station: self.station, until: 0, joules: 0.0 };
        let key = key()?;
        let (mut number, mut free) = (0u64, 0);
        while let Some((mut taken, step)) = self.take(&mut clock, &mut power) {
            if let Some(step) = step.filter(|step| *step != clock.present()) {
                power.rest(self.now(), clock.present());
                // The model has this step.
                clock.set(step)?;
                free = free.max(self.now()) + gpu.set_clock_ns as Nanos;
            }
            // A device does not oversleep: it begins when it is free, its last message is there.
            let entered = taken.iter().map(|one| one.entered).max().unwrap_or(0);
            let began = entered.max(free);
            let bytes: u64 = taken.iter().map(|one| one.content.len() as u64).sum();
            let for_gpu = taken[0].engine == GPU;
            if let Some(here) = &here {
                let begun = self.now();
                let contents = taken.iter_mut().map(|one| std::mem::take(&mut one.content)).collect();
                let contents = match for_gpu && here.engine.is_some() {
                    true => on_gpu(&key, &mut number, contents, dispatcher)?,
                    false => here.threads.cipher(&mut number, contents)?,
                };
                taken.iter_mut().zip(contents).for_each(|(one, content)| one.content = content);
                if for_gpu {
                    self.lock().fill -= bytes;
                }
                let now = self.now();
                free = now;
                self.done(&taken, bytes, (begun, now - begun, now));
                continue;
            }
            let due = match for_gpu {
                true => gpu.alone_ns(bytes as f64, clock.present()),
                false => bytes as f64 * 1e9 / self.station.cpu_bytes_per_s,
            } as Nanos;
            if for_gpu {
                self.sleep_until(began + (gpu.setup_ns + bytes as f64 * 1e9 / gpu.copy_bytes_per_s) as Nanos);
                self.lock().fill -= bytes;
            }
            let work = self.now();
            cipher(&key, &mut number, &mut taken, dispatcher)?;
            // Work that takes longer than the device would is the device's.
            let took = due.max(self.now() - work);
            free = began + took;
            self.sleep_until(free);
            let now = self.now();
            power.rest(now, clock.present());
            let watts = if for_gpu { gpu.dynamic_at(clock.present()) } else { self.station.cpu_w };
            power.work(took, watts);
            self.done(&taken, bytes, (began, due, now));
        }
        let now = self.now();
        power.rest(now, clock.present());
        let mut state = self.lock();
        state.passed.seconds = now as f64 / 1e9;
        state.passed.joules = power.joules;
        state.passed.clock_changes = clock.named.changes();
        Ok(())
    }

    /// Waits for messages: all for the device, or one for the CPU, and the clock to work at. Nothing at the end.
    fn take(&self, clock: &mut Clock<'_>, power: &mut Power<'_>) -> Option<(Vec<Waiting>, Option<usize>)> {
        let mut state = self.lock();
        let mut rested = false;
        loop {
            let due = state.ring.first().map(|one| one.entered);
            let wait = match due {
                None if state.ended => return None,
                None => REST,
                Some(due) if due <= self.now() || state.ended => {
                    let first = state.ring[0].engine;
                    let taken = match first == CPU {
                        true => vec![state.ring.remove(0)],
                        false => {
                            let (gpu, cpu) = state.ring.drain(..).partition(|one| one.engine == first);
                            state.ring = cpu;
                            gpu
                        }
                    };
                    state.in_device = taken.len() as u32;
                    return Some((taken, state.clock.filter(|_| first != CPU)));
                }
                Some(due) => Duration::from_nanos(due - self.now().min(due)),
            };
            let (held, timeout) =
                self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner);
            state = held;
            if timeout.timed_out() && state.ring.is_empty() && !rested {
                rested = true;
                if let Some(step) = state.policy.rest(GPU) {
                    power.rest(self.now(), clock.present());
                    // A policy rests at a step of the machine it was told of.
                    let _ = clock.set(usize::from(step.0));
                }
            }
        }
    }

    fn done(&self, taken: &[Waiting], bytes: u64, (began, due, now): (Nanos, Nanos, Nanos)) {
        let mut state = self.lock();
        let state = &mut *state;
        state.in_device = 0;
        state.passed.bytes += bytes;
        state.passed.due_ns += due;
        state.passed.late_ns += (now - began).saturating_sub(due);
        for one in taken {
            if one.engine == CPU {
                state.fill -= one.content.len() as u64;
            }
            let latency_ns = now - one.entered;
            state.latencies.push(latency_ns);
            let batch = taken.len().min(usize::from(u16::MAX)) as u16;
            let outcome = Outcome { batch, ..answered(one.engine, latency_ns, one.depth) };
            state.policy.observe(&shape(one.content.len()), &outcome, now);
        }
    }
}

impl State {
    fn weather(&self, window_bytes: u64) -> Weather {
        let mut weather = Weather { submitters: 1, idle_permille: 900, ..Weather::default() };
        for id in [CPU, GPU] {
            let (mut held, mut bytes) = (0, 0);
            for one in self.ring.iter().filter(|one| one.engine == id) {
                (held, bytes) = (held + 1, bytes + one.content.len() as u64);
            }
            let state = &mut weather.engines[id.index()];
            (state.available, state.window_bytes) = (true, window_bytes);
            (state.in_flight, state.held, state.in_flight_bytes) = (held, held, bytes);
        }
        let cpu_bytes = weather.engines[CPU.index()].in_flight_bytes;
        let gpu = &mut weather.engines[GPU.index()];
        gpu.in_flight += self.in_device;
        gpu.in_flight_bytes = self.fill.saturating_sub(cpu_bytes);
        weather
    }
}

/// Encrypts messages through an engine that has a queue, each with a counter block of its own: they share launches. The
/// CPU does what it declines.
fn on_gpu(
    key: &Arc<Key>,
    number: &mut u64,
    contents: Vec<Vec<u8>>,
    dispatcher: &mut Dispatcher,
) -> Result<Vec<Vec<u8>>, CoreError> {
    let mut done: Vec<Option<Vec<u8>>> = vec![None; contents.len()];
    let mut flying = HashMap::new();
    let result = |mut completion: Completion| {
        completion.result.map(|_| std::mem::take(&mut completion.request.output))
    };
    for (place, content) in contents.into_iter().enumerate() {
        let len = content.len();
        let mut request = OwnedRequest::new(Kind::Aes128Ctr, key.clone(), content, len);
        request.nonce = nonce(*number).to_vec();
        request.class = LatencyClass::Bulk;
        *number += 1;
        match dispatcher.submit(request) {
            Submitted::Done(completion) => done[place] = Some(result(completion)?),
            Submitted::Pending(token) => _ = flying.insert(token, place),
        }
    }
    dispatcher.flush();
    while !flying.is_empty() {
        let mut arrived = Vec::new();
        if dispatcher.poll(&mut |completion| arrived.push(completion)) == 0 {
            std::thread::sleep(LOOK_EVERY);
        }
        for completion in arrived {
            if let Some(place) = flying.remove(&completion.token) {
                done[place] = Some(result(completion)?);
            }
        }
    }
    Ok(done.into_iter().flatten().collect())
}

fn nonce(number: u64) -> [u8; 16] {
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&number.to_be_bytes());
    nonce
}

/// Encrypts all of them in one call, each with a counter block of its own.
fn cipher(
    key: &Key,
    number: &mut u64,
    taken: &mut [Waiting],
    dispatcher: &mut Dispatcher,
) -> Result<(), CoreError> {
    let nonces: Vec<[u8; 16]> = (0..taken.len() as u64).map(|nth| nonce(*number + nth)).collect();
    *number += taken.len() as u64;
    let mut items: Vec<Item<'_>> = taken
        .iter_mut()
        .zip(&nonces)
        .map(|(one, nonce)| {
            let request = Request::new(Kind::Aes128Ctr, key, Data::InPlace(&mut one.content));
            Item::new(Request { nonce, class: LatencyClass::Bulk, ..request })
        })
        .collect();
    dispatcher.run_all(&mut items);
    items.into_iter().find_map(|item| item.result.err()).map_or(Ok(()), Err)
}

fn shape(bytes: usize) -> Shape {
    Shape { kind: Kind::Aes128Ctr, bytes, class: LatencyClass::Stream, messages: 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_share_a_message_make_what_one_makes() {
        let runtime = Runtime::builder().telemetry(false).build().unwrap();
        let key = key().unwrap();
        let contents = || vec![vec![1; 100_003], vec![2; 15], vec![3; 35_000]];
        let by = |count| Threads::new(&runtime, &key, count).cipher(&mut 7, contents()).unwrap();
        let alone = by(1);
        assert_ne!(alone, contents());
        for count in [2, 3, 16] {
            assert_eq!(by(count), alone, "{count}");
        }
    }
}
