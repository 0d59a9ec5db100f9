//! A stream on its way through a sliding window: one producer puts messages into a ring of bytes, one encryptor takes
//! all there is and gives it to a GPU, and the production policy is asked for every message. Knows no paper.
//!
//! - A message enters if it finds room; else the producer waits and submits it again (a *retransmission*). Then the
//!   next gap begins. Sleeping takes `slack_ns` longer than asked, as timers do.
//! - A message is asked about when it has entered: the weather's fill level is the ring's, this message included. What
//!   is given to the CPU is done there, one message at a time with all cores, and keeps its place in the ring meanwhile.
//! - An encryptor with a stream to spare takes everything that waits for the GPU as soon as one of the messages may not be held longer,
//!   at the clock last named; one idle for 5 ms, from the start too, asks which clock to rest at. Ring space is free again when the GPU has copied it in.
//! - Now and then the process *stalls* (the operating system had other plans): neither the encryptor nor the CPU begins
//!   anything for `stall_ns`.

use std::collections::VecDeque;

use wattlock_core::{Kind, LatencyClass, Nanos, Shape};
use wattlock_policy::{Ask, EngineId, Outcome, Policy, Weather};

use super::{Events, Gpu, GpuModel, Random, answered};

/// A GPU idle for so long may rest.
const REST_NS: Nanos = 5_000_000;

/// The CPU's place in the machine's description.
pub const CPU: EngineId = EngineId(0);
/// The GPU's.
pub const GPU: EngineId = EngineId(1);

/// One message, and the gap after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Message {
    /// Its length.
    pub bytes: u64,
    /// Time between its entering and the next message's first try.
    pub gap_ns: f64,
    /// Time between two tries.
    pub wait_ns: f64,
}

/// What the stream runs on.
#[derive(Debug, Clone)]
pub struct Station {
    /// The GPU. Its static watts are those of the whole machine.
    pub gpu: GpuModel,
    /// What all of the CPU's threads encrypt together, in bytes a second.
    pub cpu_bytes_per_s: f64,
    /// What that adds in watts.
    pub cpu_w: f64,
    /// Size of the ring.
    pub window_bytes: u64,
    /// What a timer adds to a sleep.
    pub slack_ns: f64,
    /// Length of a stall.
    pub stall_ns: f64,
    /// Stalls a second, as a Poisson process; 0 for none.
    pub stalls_per_s: f64,
}

/// The state of things at one moment, for a picture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Seconds since the beginning.
    pub at_s: f64,
    /// What the producer submits, in MB/s, since the last sample.
    pub velocity: f64,
    /// Fill of the ring as a share: highest since the last sample.
    pub fill: f64,
    /// Clock step: mean of those the windows since the last sample ran at.
    pub clock: f64,
    /// Watts, mean since the last sample.
    pub watts: f64,
}

/// What became of a stream.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Passage {
    /// When the last byte was encrypted.
    pub seconds: f64,
    /// Bytes encrypted.
    pub bytes: f64,
    /// Messages submitted.
    pub messages: u64,
    /// Tries that found no room.
    pub retransmissions: u64,
    /// Joules of the whole machine.
    pub joules: f64,
    /// Bytes the CPU encrypted.
    pub cpu_bytes: f64,
    /// Changes of the clock.
    pub clock_changes: u64,
    /// Windows encrypted at each clock.
    pub windows: Vec<u64>,
    /// Mean time from a message's entering to its result, in nanoseconds.
    pub latency_ns: f64,
    /// Samples, if they were asked for.
    pub samples: Vec<Sample>,
}

impl Passage {
    /// Retransmissions per message.
    pub fn retransmission_rate(&self) -> f64 {
        self.retransmissions as f64 / self.messages.max(1) as f64
    }

    /// MB/s over the whole run.
    pub fn throughput(&self) -> f64 {
        self.bytes / 1e6 / self.seconds.max(1e-12)
    }
}

enum Event {
    Try,
    Look,
    CopiedIn(u64),
    WindowDone,
    Rest(u64),
    CpuMay,
    CpuDone,
    Sample,
}

struct Waiting {
    bytes: u64,
    entered: Nanos,
    depth: u32,
}

struct Run<'a> {
    station: &'a Station,
    policy: &'a mut dyn Policy,
    messages: &'a [Message],
    events: Events<Event>,
    gpu: Gpu,
    next: usize,
    fill: u64,
    ring: Vec<Waiting>,
    windows: VecDeque<Vec<Waiting>>,
    cpu: VecDeque<Waiting>,
    clock: Option<usize>,
    stall: (Nanos, Nanos),
    stalls: Random,
    cpu_busy_ns: f64,
    passage: Passage,
    finished: Nanos,
    latency_sum: f64,
    sampling: Option<Sampling>,
}

struct Sampling {
    every: Nanos,
    bytes: u64,
    fill: u64,
    clock: (f64, f64),
    joules: f64,
}

/// Sends the messages through under that policy. `sample_ns` asks for samples so far apart.
pub fn pass(
    station: &Station,
    messages: &[Message],
    policy: &mut dyn Policy,
    seed: u64,
    sample_ns: Option<Nanos>,
) -> Passage {
    let mut run = Run {
        station,
        policy,
        messages,
        events: Events::new(),
        gpu: Gpu::new(station.gpu.clone()),
        next: 0,
        fill: 0,
        ring: Vec::new(),
        windows: VecDeque::new(),
        cpu: Default::default(),
        clock: None,
        stall: (0, 0),
        stalls: Random::new(seed ^ 0x57a1_1000),
        cpu_busy_ns: 0.0,
        passage: Passage { windows: vec![0; station.gpu.steps.len()], ..Passage::default() },
        finished: 0,
        latency_sum: 0.0,
        sampling: sample_ns.map(|every| Sampling {
            every: every.max(1),
            bytes: 0,
            fill: 0,
            clock: (0.0, 0.0),
            joules: 0.0,
        }),
    };
    run.next_stall(0);
    run.events.at(0, Event::Try);
    run.events.at(REST_NS, Event::Rest(0));
    if let Some(sampling) = &run.sampling {
        run.events.at(sampling.every, Event::Sample);
    }
    while let Some(event) = run.events.take() {
        run.on(event);
    }
    run.end()
}

impl Run<'_> {
    fn on(&mut self, event: Event) {
        match event {
            Event::Try => self.on_try(),
            Event::Look => self.take_window(),
            Event::CopiedIn(bytes) => self.fill -= bytes,
            Event::WindowDone => self.on_window_done(),
            Event::Rest(windows) => self.on_rest(windows),
            Event::CpuMay => self.start_cpu(),
            Event::CpuDone => self.on_cpu_done(),
            Event::Sample => self.on_sample(),
        }
    }

    fn on_try(&mut self) {
        let Some(message) = self.messages.get(self.next).copied() else { return };
        let now = self.events.now();
        if self.station.window_bytes - self.fill < message.bytes {
            self.passage.retransmissions += 1;
            self.events.after((message.wait_ns + self.station.slack_ns) as Nanos, Event::Try);
            return;
        }
        self.next += 1;
        self.fill += message.bytes;
        self.passage.messages += 1;
        if let Some(sampling) = &mut self.sampling {
            sampling.bytes += message.bytes;
            sampling.fill = sampling.fill.max(self.fill);
        }
        self.enter(message.bytes, now);
        if self.next < self.messages.len() {
            self.events.after((message.gap_ns + self.station.slack_ns) as Nanos, Event::Try);
        }
    }

    fn weather(&self) -> Weather {
        let mut weather = Weather { submitters: 1, idle_permille: 900, ..Weather::default() };
        let bytes = |queue: &mut dyn Iterator<Item = &Waiting>| queue.map(|one| one.bytes).sum::<u64>();
        let cpu_bytes = bytes(&mut self.cpu.iter());
        let gpu = &mut weather.engines[GPU.index()];
        gpu.in_flight = (self.ring.len() + self.windows.iter().map(Vec::len).sum::<usize>()) as u32;
        gpu.held = self.ring.len() as u32;
        gpu.in_flight_bytes = self.fill - cpu_bytes;
        let cpu = &mut weather.engines[CPU.index()];
        (cpu.in_flight, cpu.in_flight_bytes) = (self.cpu.len() as u32, cpu_bytes);
        for id in [CPU, GPU] {
            let state = &mut weather.engines[id.index()];
            (state.available, state.window_bytes) = (true, self.station.window_bytes);
        }
        weather
    }

    fn enter(&mut self, bytes: u64, now: Nanos) {
        let weather = self.weather();
        let choice = self.policy.choose(&Ask::one(shape(bytes)), &weather, now);
        let depth = weather.engines[choice.engine.index()].in_flight + 1;
        let waiting = Waiting { bytes, entered: now, depth };
        if choice.engine == CPU {
            self.cpu.push_back(waiting);
            if self.cpu.len() == 1 {
                self.start_cpu();
            }
            return;
        }
        if let Some(step) = choice.clock {
            self.clock = Some(usize::from(step.0));
        }
        self.ring.push(waiting);
        self.take_window();
    }

    /// Takes what is in the ring, if the encryptor is idle and awake.
    fn take_window(&mut self) {
        let now = self.events.now();
        if self.ring.is_empty() || self.windows.len() >= self.station.gpu.streams.max(1) {
            return;
        }
        if let Some(until) = self.stalled(now) {
            self.events.at(until, Event::Look);
            return;
        }
        if let Some(step) = self.clock {
            self.gpu.set_clock(now, step);
        }
        let window = std::mem::take(&mut self.ring);
        let bytes = window.iter().map(|one| one.bytes).sum();
        let piece = self.gpu.submit(now, bytes as f64);
        self.passage.windows[self.gpu.step()] += 1;
        if let Some(sampling) = &mut self.sampling {
            sampling.clock.0 += self.gpu.step() as f64 + 1.0;
            sampling.clock.1 += 1.0;
        }
        self.windows.push_back(window);
        self.events.at(piece.copied_in, Event::CopiedIn(bytes));
        self.events.at(piece.done, Event::WindowDone);
    }

    /// Until when nothing is begun.
    fn stalled(&mut self, now: Nanos) -> Option<Nanos> {
        while now >= self.stall.1 {
            self.next_stall(self.stall.1);
        }
        (now >= self.stall.0).then_some(self.stall.1)
    }

    fn next_stall(&mut self, after: Nanos) {
        if self.station.stalls_per_s <= 0.0 || self.station.stall_ns <= 0.0 {
            self.stall = (Nanos::MAX, Nanos::MAX);
            return;
        }
        let gap = self.stalls.exponential(1e9 / self.station.stalls_per_s);
        let from = after.saturating_add(gap as Nanos).saturating_add(1);
        self.stall = (from, from.saturating_add(self.station.stall_ns as Nanos));
    }

    fn on_window_done(&mut self) {
        let now = self.events.now();
        let window = self.windows.pop_front().unwrap_or_default();
        let batch = window.len().min(usize::from(u16::MAX)) as u16;
        for one in &window {
            self.report(GPU, one, batch, now);
        }
        self.take_window();
        if self.windows.is_empty() && self.ring.is_empty() {
            self.events.after(REST_NS, Event::Rest(self.passage.windows.iter().sum()));
        }
    }

    /// The GPU has had nothing to do since that many windows: the policy may let it rest at another clock.
    fn on_rest(&mut self, windows: u64) {
        if self.passage.windows.iter().sum::<u64>() != windows || !self.ring.is_empty() {
            return;
        }
        if let Some(step) = self.policy.rest(GPU) {
            self.gpu.set_clock(self.events.now(), usize::from(step.0));
        }
    }

    fn start_cpu(&mut self) {
        let now = self.events.now();
        let Some(first) = self.cpu.front() else { return };
        let bytes = first.bytes;
        if let Some(until) = self.stalled(now) {
            self.events.at(until, Event::CpuMay);
            return;
        }
        let length = bytes as f64 * 1e9 / self.station.cpu_bytes_per_s;
        self.cpu_busy_ns += length;
        self.events.after(length as Nanos, Event::CpuDone);
    }

    fn on_cpu_done(&mut self) {
        let now = self.events.now();
        if let Some(one) = self.cpu.pop_front() {
            self.fill -= one.bytes;
            self.passage.cpu_bytes += one.bytes as f64;
            self.report(CPU, &one, 1, now);
        }
        self.start_cpu();
    }

    fn report(&mut self, engine: EngineId, one: &Waiting, batch: u16, now: Nanos) {
        let latency_ns = now - one.entered;
        self.finished = now;
        self.passage.bytes += one.bytes as f64;
        self.latency_sum += latency_ns as f64;
        let outcome = Outcome { batch, ..answered(engine, latency_ns, one.depth) };
        self.policy.observe(&shape(one.bytes), &outcome, now);
    }

    fn on_sample(&mut self) {
        let now = self.events.now();
        let joules = self.gpu.energy_j(now) + self.cpu_busy_ns * self.station.cpu_w / 1e9;
        let last = self.passage.samples.last().map_or(0.0, |sample| sample.clock);
        let Some(sampling) = &mut self.sampling else { return };
        let seconds = sampling.every as f64 / 1e9;
        self.passage.samples.push(Sample {
            at_s: now as f64 / 1e9,
            velocity: sampling.bytes as f64 / 1e6 / seconds,
            fill: sampling.fill as f64 / self.station.window_bytes as f64,
            clock: if sampling.clock.1 > 0.0 { sampling.clock.0 / sampling.clock.1 } else { last },
            watts: (joules - sampling.joules) / seconds,
        });
        (sampling.bytes, sampling.fill, sampling.clock, sampling.joules) = (0, self.fill, (0.0, 0.0), joules);
        let idle = self.ring.is_empty() && self.windows.is_empty() && self.cpu.is_empty();
        if self.next < self.messages.len() || !idle {
            self.events.after(sampling.every, Event::Sample);
        }
    }

    fn end(mut self) -> Passage {
        let mut passage = self.passage;
        passage.seconds = self.finished as f64 / 1e9;
        passage.joules = self.gpu.energy_j(self.finished) + self.cpu_busy_ns * self.station.cpu_w / 1e9;
        passage.clock_changes = self.gpu.changes();
        passage.latency_ns = self.latency_sum / passage.messages.max(1) as f64;
        passage
    }
}

fn shape(bytes: u64) -> Shape {
    Shape { kind: Kind::Aes128Ctr, bytes: bytes as usize, class: LatencyClass::Stream, messages: 1 }
}
