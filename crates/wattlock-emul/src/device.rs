//! The machine in virtual time: pools of servers, each with one first-in-first-out queue. It knows when work ends, not
//! its result. It computes nothing and reads no clock.
//!
//! Invariants: time never goes back; no pool has more batches in service than servers; a batch waits only while every
//! server of its pool is busy; every accepted piece of work is reported finished exactly once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use wattlock_core::{Kind, Nanos};

use crate::gpu::Gpu;
use crate::model::Model;

/// A piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// The owner's name for it.
    pub id: u64,
    /// The kind of request.
    pub kind: Kind,
    /// Bytes that its time depends on: input bytes (for key derivation, output bytes).
    pub bytes: u64,
    /// How much slower than the model, in thousandths; 1000 is the model's speed.
    pub stretch_permille: u32,
}

impl Work {
    /// Work at the model's speed.
    pub fn new(id: u64, kind: Kind, bytes: u64) -> Work {
        Work { id, kind, bytes, stretch_permille: 1000 }
    }
}

/// A piece of work that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// The owner's name for it.
    pub id: u64,
    /// When a server took it.
    pub started: Nanos,
    /// When it was done.
    pub at: Nanos,
    /// Its share of what the machine took above idle, in nanojoules; modelled. `None` if the model has no watts.
    pub energy_nj: Option<u64>,
}

/// The machine.
#[derive(Debug)]
pub struct Device {
    model: Model,
    now: Nanos,
    pools: Vec<Servers>,
    /// Of a GPU, in the pools' place: what is submitted has its whole way at once.
    gpu: Option<Gpu>,
    /// Batches in service by end; the sequence number makes ties come in the order of their start.
    serving: BinaryHeap<Reverse<(Nanos, u64)>>,
    batches: BTreeMap<u64, Serving>,
    sequence: u64,
    /// What has ended but was not asked for yet.
    done: Vec<Finished>,
    /// Picojoules (milliwatts times nanoseconds), idle and all.
    energy_pj: u128,
}

#[derive(Debug)]
struct Servers {
    free: u32,
    waiting: VecDeque<Batch>,
}

#[derive(Debug)]
struct Batch {
    ids: Vec<u64>,
    service_ns: Nanos,
}

#[derive(Debug)]
struct Serving {
    pool: usize,
    started: Nanos,
    batch: Batch,
    /// A GPU's joules for it.
    gpu_nj: Option<u64>,
}

impl Device {
    /// An idle machine.
    pub fn new(model: Model, now: Nanos) -> Device {
        let servers = |servers| Servers { free: servers, waiting: VecDeque::new() };
        let pools = model.pools.iter().map(|pool| servers(pool.servers)).collect();
        Device {
            gpu: model.gpu.clone().map(Gpu::new),
            model,
            now,
            pools,
            serving: BinaryHeap::new(),
            batches: BTreeMap::new(),
            sequence: 0,
            done: Vec::new(),
            energy_pj: 0,
        }
    }

    /// What it is like.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// One doorbell: takes all of `work`. Neighbours of one kind share a server up to the model's width. A `now`
    /// before the latest time seen counts as that.
    ///
    /// # Errors
    /// Gives back the first piece whose kind the model does not do; none is taken then.
    pub fn accept(&mut self, now: Nanos, work: &[Work]) -> Result<(), Work> {
        if let Some(stranger) = work.iter().find(|work| self.model.pool_of(work.kind).is_none()) {
            return Err(*stranger);
        }
        self.settle(now);
        if self.gpu.is_some() {
            work.iter().for_each(|work| self.launch(work));
            return Ok(());
        }
        let mut rest = work;
        while let Some(first) = rest.first() {
            let alike =
                rest.iter().take(usize::from(self.model.width)).take_while(|work| work.kind == first.kind);
            let (batch, after) = rest.split_at(alike.count().max(1));
            rest = after;
            let Some(pool) = self.model.pool_of(first.kind) else { continue };
            let service_ns = batch.iter().map(|work| self.service_ns(work)).max().unwrap_or(0);
            let batch = Batch { ids: batch.iter().map(|work| work.id).collect(), service_ns };
            self.pools[pool].waiting.push_back(batch);
            self.start(pool, self.now);
        }
        Ok(())
    }

    /// One piece for the GPU: copy-in, kernel, copy-out.
    fn launch(&mut self, work: &Work) {
        let kernel_ns = self.service_ns(work) as f64;
        let Some(gpu) = &mut self.gpu else { return };
        let piece = gpu.submit_kernel(self.now, work.bytes as f64, kernel_ns);
        let batch = Batch { ids: vec![work.id], service_ns: piece.done - piece.began };
        let gpu_nj = Some(piece.dynamic_nj as u64);
        self.serving.push(Reverse((piece.done, self.sequence)));
        self.batches.insert(self.sequence, Serving { pool: 0, started: piece.began, batch, gpu_nj });
        self.sequence += 1;
    }

    /// When the next batch ends, if one is in service. Nothing happens before.
    pub fn next_event(&self) -> Option<Nanos> {
        self.serving.peek().map(|Reverse((at, _))| *at)
    }

    /// Lets time pass up to `now`, and reports what finished, in the order of time.
    pub fn advance(&mut self, now: Nanos, done: &mut dyn FnMut(Finished)) {
        self.settle(now);
        self.done.drain(..).for_each(done);
    }

    /// Lets time pass up to `now`, event by event.
    fn settle(&mut self, now: Nanos) {
        while let Some(Reverse((at, sequence))) =
            self.serving.peek().copied().filter(|Reverse((at, _))| *at <= now)
        {
            self.pass(at);
            self.serving.pop();
            let Some(serving) = self.batches.remove(&sequence) else { continue };
            if self.gpu.is_none() {
                self.pools[serving.pool].free += 1;
                self.start(serving.pool, at);
            }
            let energy_nj = serving.gpu_nj.or_else(|| self.share_nj(&serving.batch));
            for id in serving.batch.ids {
                self.done.push(Finished { id, started: serving.started, at, energy_nj });
            }
        }
        self.pass(now);
    }

    /// Servers at work; of a GPU, pieces under way.
    pub fn busy(&self) -> u32 {
        self.batches.len() as u32
    }

    /// Batches waiting for a server.
    pub fn waiting(&self) -> usize {
        self.pools.iter().map(|pool| pool.waiting.len()).sum()
    }

    /// What the machine has taken since it was made, idle and all, in nanojoules; modelled.
    pub fn energy_nj(&self) -> Option<u64> {
        if let Some(gpu) = &self.gpu {
            return Some((gpu.clone().energy_j(self.now) * 1e9) as u64);
        }
        self.model.power.map(|_| u64::try_from(self.energy_pj / 1000).unwrap_or(u64::MAX))
    }

    fn service_ns(&self, work: &Work) -> Nanos {
        let ns = self.model.service_ns(work.kind, work.bytes).unwrap_or(0);
        u64::try_from(u128::from(ns) * u128::from(work.stretch_permille) / 1000).unwrap_or(u64::MAX / 4)
    }

    /// Puts waiting batches on free servers.
    fn start(&mut self, pool: usize, at: Nanos) {
        let servers = &mut self.pools[pool];
        while servers.free > 0 {
            let Some(batch) = servers.waiting.pop_front() else { return };
            servers.free -= 1;
            self.serving.push(Reverse((at.saturating_add(batch.service_ns), self.sequence)));
            self.batches.insert(self.sequence, Serving { pool, started: at, batch, gpu_nj: None });
            self.sequence += 1;
        }
    }

    /// Moves time on and counts the energy of the interval, in which nothing started or ended.
    fn pass(&mut self, now: Nanos) {
        let ns = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        if let Some(power) = self.model.power {
            let above = u128::from(power.active_mw - power.idle_mw) * u128::from(self.busy());
            let mw = u128::from(power.idle_mw) * u128::from(self.model.servers()) + above;
            self.energy_pj += mw * u128::from(ns) / u128::from(self.model.servers());
        }
    }

    /// One request's share: one server's power above idle, for as long as it served, among its batch.
    fn share_nj(&self, batch: &Batch) -> Option<u64> {
        let power = self.model.power?;
        let pj = u128::from(power.active_mw - power.idle_mw) * u128::from(batch.service_ns);
        let share = pj / u128::from(self.model.servers()) / batch.ids.len().max(1) as u128 / 1000;
        Some(u64::try_from(share).unwrap_or(u64::MAX))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// `k` servers that take 1 us for anything.
    fn model(servers: u32, width: u16) -> Model {
        let text = format!(
            "name test\nwindow 64 requests 1000000 bytes\nwidth {width}\npower 1000 idle 3000 active milliwatts\n\
             pool all {servers} servers\ntable sha-256 0:1000 1000:2000\ntable sha-512 0:5000\n"
        );
        Model::parse(&text).expect("the test's own text")
    }

    fn all(device: &mut Device, until: Nanos) -> Vec<Finished> {
        let mut finished = Vec::new();
        device.advance(until, &mut |one| finished.push(one));
        finished
    }

    fn sha(id: u64) -> Work {
        Work::new(id, Kind::Sha256, 0)
    }

    #[test]
    fn one_server_does_one_thing_after_the_other() {
        let mut device = Device::new(model(1, 1), 100);
        device.accept(100, &[sha(1), sha(2), sha(3)]).unwrap();
        assert_eq!((device.busy(), device.waiting(), device.next_event()), (1, 2, Some(1100)));
        let times: Vec<_> =
            all(&mut device, 10_000).iter().map(|one| (one.id, one.started, one.at)).collect();
        assert_eq!(times, [(1, 100, 1100), (2, 1100, 2100), (3, 2100, 3100)]);
        assert_eq!((device.busy(), device.next_event()), (0, None));
    }

    #[test]
    fn k_servers_give_k_fold_throughput() {
        let done_by = |servers| {
            let mut device = Device::new(model(servers, 1), 0);
            let work: Vec<_> = (0..10_000).map(sha).collect();
            device.accept(0, &work).unwrap();
            all(&mut device, 1_000_000).len()
        };
        let one = done_by(1);
        assert_eq!(one, 1000);
        for servers in [2, 3, 7] {
            assert_eq!(done_by(servers), one * servers as usize);
        }
    }

    /// M/D/1: with load rho, the mean wait is rho / (2 (1 - rho)) service times (Pollaczek-Khinchine). Arrivals here are
    /// a Bernoulli trial each 10 ns, close enough to Poisson.
    #[test]
    fn mean_wait_of_one_server_is_that_of_an_md1_queue() {
        let mut device = Device::new(model(1, 1), 0);
        let (mut seed, mut now, mut waits, mut count) = (1u64, 0, 0u64, 0u64);
        let mut arrivals = BTreeMap::new();
        for id in 0..200_000u64 {
            loop {
                now += 10;
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // rho = 0.7: on average 700 ns of each 1000 are taken.
                if (seed >> 33) % 1_000_000 < 7_000 {
                    break;
                }
            }
            arrivals.insert(id, now);
            device.advance(now, &mut |one| {
                waits += one.started - arrivals.remove(&one.id).unwrap();
                count += 1;
            });
            device.accept(now, &[sha(id)]).unwrap();
        }
        let mean = waits as f64 / count as f64 / 1000.0;
        let theory = 0.7 / (2.0 * 0.3);
        assert!((mean / theory - 1.0).abs() < 0.05, "mean wait {mean}, theory {theory}");
    }

    #[test]
    fn neighbours_of_one_kind_share_a_server_up_to_the_width() {
        let mut device = Device::new(model(1, 4), 0);
        let long = Work::new(9, Kind::Sha512, 0);
        device.accept(0, &[sha(1), sha(2), sha(3), sha(4), sha(5), long]).unwrap();
        let ends: Vec<_> = all(&mut device, 100_000).iter().map(|one| (one.id, one.at)).collect();
        assert_eq!(ends, [(1, 1000), (2, 1000), (3, 1000), (4, 1000), (5, 2000), (9, 7000)]);
    }

    #[test]
    fn energy_is_idle_plus_busy_time() {
        let mut device = Device::new(model(2, 1), 0);
        device.accept(0, &[sha(1)]).unwrap();
        let finished = all(&mut device, 2000);
        // Of 2000 ns at 1 W idle, 1000 ns with one of two servers busy: plus half of the 2 W between idle and active.
        assert_eq!(device.energy_nj(), Some(2000 + 1000));
        assert_eq!(finished[0].energy_nj, Some(1000));
    }

    #[test]
    fn stretched_work_takes_longer() {
        let mut device = Device::new(model(1, 1), 0);
        device.accept(0, &[Work { stretch_permille: 2500, ..sha(1) }]).unwrap();
        assert_eq!(device.next_event(), Some(2500));
    }

    #[test]
    fn a_gpu_overlaps_copies_and_kernels_and_needs_nothing_else() {
        let ends = |streams: u32| {
            let text = format!(
                "name test\nwindow 64 requests 1000000 bytes\ngpu 100 setup-ns 1000000000 copy-bytes-per-s {streams} \
                 streams 1000000 memory-bytes\nclocks 0 reference 10 dynamic-w 3 exponent 0 set-ns\n\
                 clock 1000 mhz 1 speed 5 static-w\npool kernel 1 servers\ntable aes-128-ctr 0:0 1000:500\n"
            );
            let mut device = Device::new(Model::parse(&text).unwrap(), 0);
            let work = |id| Work::new(id, Kind::Aes128Ctr, 1000);
            device.accept(0, &[work(1), work(2)]).unwrap();
            all(&mut device, 100_000).iter().map(|one| (one.id, one.at, one.energy_nj)).collect::<Vec<_>>()
        };
        // Setup, a microsecond for each copy, half of one for the kernel; 10 W while either piece is under way.
        assert_eq!(ends(1), [(1, 2600, Some(26_000)), (2, 5200, Some(26_000))]);
        assert_eq!(ends(2), [(1, 2600, Some(26_000)), (2, 3600, Some(10_000))]);
    }

    #[test]
    fn unknown_kind_is_given_back_and_nothing_is_taken() {
        let mut device = Device::new(model(1, 1), 0);
        let stranger = Work::new(2, Kind::Deflate, 9);
        assert_eq!(device.accept(0, &[sha(1), stranger]), Err(stranger));
        assert_eq!(device.next_event(), None);
    }

    #[test]
    fn same_history_gives_the_same_future() {
        let run = || {
            let mut device = Device::new(Model::qat_dh8970(), 0);
            let mut finished = Vec::new();
            for id in 0..3000u64 {
                let kind = Kind::ALL[(id * 7 % Kind::COUNT as u64) as usize];
                device.accept(id * 777, &[Work::new(id, kind, id * 13 % 70_000)]).unwrap();
                device.advance(id * 777 + 300, &mut |one| finished.push(one));
            }
            device.advance(u64::MAX / 8, &mut |one| finished.push(one));
            finished
        };
        let first = run();
        assert_eq!(first.len(), 3000);
        assert!(first.windows(2).all(|pair| pair[0].at <= pair[1].at));
        assert_eq!(first, run());
    }
}
