//! One large job on the CPU and a device at the same time: which side claims which chunks next.
//!
//! The CPU claims from the front, the device from the back. A *border* (`eep`, `lecpaes`, `offload`) fixes each side's
//! part in advance, exact to one chunk. Sides that *meet* (`adaptive`) claim pieces that shrink towards the end, by the
//! rates seen so far, so that both end at about the same time whatever the rates are. Pure: time is an argument, and
//! what the pieces do is not known here.
//!
//! Invariants: every chunk is claimed once, or once more for each time it was given back; with a border the device never
//! claims a chunk before it, and the CPU one behind it only when the device is gone.

use std::collections::VecDeque;
use std::ops::Range;

use wattlock_core::{Kind, Nanos};

use crate::machine::{EngineId, Machine};

/// A job that might be split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// What is done with each chunk.
    pub kind: Kind,
    /// Chunks in all.
    pub chunks: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: usize,
    /// Available devices that take many chunks as one request.
    pub devices: Vec<EngineId>,
    /// Threads that will work on the CPU's side.
    pub threads: u32,
}

/// The claiming side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// A thread of the CPU.
    Cpu,
    /// The device.
    Device,
}

/// Bytes of the device's largest piece: a tenth of a millisecond on a fast link, and eight chunks for each of its
/// multiprocessors. Larger ones gained nothing in virtual time and cost memory for each piece in flight.
const DEVICE_MOST: u64 = 8 << 20;
/// Bytes of its smallest: smaller ones are mostly launch and doorbell.
const DEVICE_LEAST: u64 = 256 << 10;
/// Bytes of the largest piece of a thread: the segment of sealed files.
const CPU_MOST: u64 = 1 << 20;
/// Bytes of its smallest.
const CPU_LEAST: u64 = 64 << 10;
/// Pieces a device has in flight: one in each of copy-in, kernel and copy-out, and one waiting.
pub const DEVICE_PIECES: usize = 4;

/// A piece in flight on the device.
#[derive(Debug, Clone)]
struct Piece {
    range: Range<u64>,
    claimed: Nanos,
}

/// A side's rate, in chunks a nanosecond: believed at first, then seen.
#[derive(Debug, Clone, Copy)]
struct Rate {
    now: f64,
    seen: bool,
}

impl Rate {
    fn learn(&mut self, chunks: f64, ns: Nanos) {
        let sample = chunks / (ns.max(1) as f64);
        // A calibration on another day weighs nothing against the first piece seen.
        self.now = if self.seen { (self.now + sample) / 2.0 } else { sample };
        self.seen = true;
    }
}

/// How a job is shared out.
#[derive(Debug, Clone)]
pub struct Split {
    device: EngineId,
    /// First chunk of the device's part, if that is fixed.
    border: Option<u64>,
    /// Not claimed yet.
    free: Range<u64>,
    /// Claimed by the device, and given back.
    returned: Vec<Range<u64>>,
    gone: bool,
    chunk_bytes: u64,
    /// One thread's rate.
    thread: Rate,
    threads: f64,
    rate: Rate,
    /// Of the CPU, claimed and not done.
    cpu_out: u64,
    pieces: VecDeque<Piece>,
    last_done: Nanos,
    claims: [u64; 2],
}

impl Split {
    /// A fixed border: the device has `share` of all chunks, to the nearest chunk, at the end of the job.
    pub fn at_border(job: &Job, device: EngineId, share: f64) -> Split {
        let part = (job.chunks as f64 * share.clamp(0.0, 1.0)).round() as u64;
        Split { border: Some(job.chunks - part.min(job.chunks)), ..Split::meeting(job, device, 1.0, 1.0) }
    }

    /// Sides that meet where their rates have them meet. Rates are beliefs, in bytes a nanosecond: of one thread, and of
    /// the device.
    pub fn meeting(job: &Job, device: EngineId, thread: f64, rate: f64) -> Split {
        let bytes = job.chunk_bytes.max(1) as f64;
        let believed = |rate: f64| Rate { now: (rate / bytes).max(1e-12), seen: false };
        Split {
            device,
            border: None,
            free: 0..job.chunks,
            returned: Vec::new(),
            gone: false,
            chunk_bytes: job.chunk_bytes.max(1) as u64,
            thread: believed(thread),
            threads: f64::from(job.threads.max(1)),
            rate: believed(rate),
            cpu_out: 0,
            pieces: VecDeque::new(),
            last_done: 0,
            claims: [0; 2],
        }
    }

    /// The device.
    pub fn device(&self) -> EngineId {
        self.device
    }

    /// Chunks that each side has claimed and not given back: the CPU's, the device's.
    pub fn shares(&self) -> (u64, u64) {
        (self.claims[0], self.claims[1])
    }

    /// The next chunks for a side; `None` if there is nothing for it now. The CPU may find something again after
    /// [`Split::give_back`].
    pub fn claim(&mut self, side: Side, now: Nanos) -> Option<Range<u64>> {
        let range = match side {
            Side::Cpu => self.claim_cpu(now)?,
            Side::Device => self.claim_device(now)?,
        };
        let chunks = range.end - range.start;
        match side {
            Side::Cpu => {
                self.cpu_out += chunks;
                self.claims[0] += chunks;
            }
            Side::Device => {
                self.claims[1] += chunks;
                self.pieces.push_back(Piece { range: range.clone(), claimed: now });
            }
        }
        Some(range)
    }

    fn claim_cpu(&mut self, now: Nanos) -> Option<Range<u64>> {
        let most = self.chunks_of(CPU_MOST);
        let end = self.border.filter(|_| !self.gone).unwrap_or(self.free.end).min(self.free.end);
        let size = match self.border {
            Some(_) => most,
            None => {
                let fair = self.thread.now * self.ends_in(now) / 2.0;
                (fair as u64).clamp(self.chunks_of(CPU_LEAST).min(most), most)
            }
        };
        if self.free.start < end {
            let start = self.free.start;
            self.free.start = (start + size).min(end);
            return Some(start..self.free.start);
        }
        let mut back = self.returned.pop()?;
        if back.end - back.start > size {
            self.returned.push(back.start + size..back.end);
            back.end = back.start + size;
        }
        Some(back)
    }

    fn claim_device(&mut self, now: Nanos) -> Option<Range<u64>> {
        if self.gone || self.pieces.len() >= DEVICE_PIECES {
            return None;
        }
        let start = self.border.map_or(self.free.start, |border| border.max(self.free.start));
        let left = self.free.end.saturating_sub(start);
        let most = self.chunks_of(DEVICE_MOST);
        let size = match self.border {
            Some(_) => most,
            None => {
                // What is fair for the device by the end, less what it has. Half of that, so that the next pieces can
                // mend what this one's rate got wrong.
                let (rate, waits) = self.device_rate(now);
                let fair = rate * self.ends_in(now) - waits as f64;
                let size = (fair / 2.0) as u64;
                if size < self.chunks_of(DEVICE_LEAST) && waits > 0 {
                    return None;
                }
                if fair < 1.0 {
                    return None;
                }
                size.clamp(1.max(self.chunks_of(DEVICE_LEAST).min(fair as u64)), most)
            }
        };
        if left == 0 {
            return None;
        }
        let end = self.free.end;
        self.free.end = end - size.min(left);
        Some(self.free.end..end)
    }

    /// A claimed piece is done.
    pub fn done(&mut self, side: Side, range: &Range<u64>, claimed: Nanos, now: Nanos) {
        let chunks = range.end - range.start;
        match side {
            Side::Cpu => {
                self.cpu_out -= chunks.min(self.cpu_out);
                self.thread.learn(chunks as f64, now.saturating_sub(claimed));
            }
            Side::Device => {
                if let Some(at) = self.pieces.iter().position(|piece| piece.range == *range) {
                    self.pieces.remove(at);
                    // Pieces overlap in the device: each takes as long as it ends after the last one.
                    self.rate.learn(chunks as f64, now.saturating_sub(claimed.max(self.last_done)));
                    self.last_done = now;
                }
            }
        }
    }

    /// A piece that the device has and that the CPU, which has nothing else to claim than what came back, would do much
    /// sooner: the device has slowed down, or does not answer. The owner takes it out of the device and calls
    /// [`Split::give_back`]. There may be another one at once.
    pub fn overdue(&self, now: Nanos) -> Option<Range<u64>> {
        if self.border.is_some() || !self.free.is_empty() {
            return None;
        }
        // The one that the device would end last.
        let piece = self.pieces.back()?;
        let (rate, waits) = self.device_rate(now);
        let chunks = (piece.range.end - piece.range.start) as f64;
        let device = waits as f64 / rate;
        // It would be done last, after what was taken back before.
        let before = self.cpu_out + self.waits_for_cpu();
        let cpu = (chunks + before as f64) / (self.thread.now * self.threads);
        // Twice: taking it back costs what the device has done of it.
        (device > 2.0 * cpu).then(|| piece.range.clone())
    }

    /// The device will not do a piece; the CPU may claim it.
    pub fn give_back(&mut self, range: Range<u64>) {
        if let Some(at) = self.pieces.iter().position(|piece| piece.range == range) {
            self.pieces.remove(at);
            self.claims[1] -= range.end - range.start;
            self.returned.push(range);
        }
    }

    /// The device will do nothing of what it has.
    pub fn give_back_all(&mut self) {
        while let Some(piece) = self.pieces.front() {
            self.give_back(piece.range.clone());
        }
    }

    /// The device claims nothing more, and the CPU may claim everything. Pieces in flight are given back or done as
    /// before.
    pub fn device_gone(&mut self) {
        self.gone = true;
    }

    /// Whether there is nothing left to claim for either side now. What the device has may still come back.
    pub fn is_empty(&self) -> bool {
        self.free.is_empty() && self.returned.is_empty()
    }

    /// Whether there will never be anything to claim any more: nothing is left, and the device has nothing.
    pub fn is_over(&self) -> bool {
        self.is_empty() && self.pieces.is_empty()
    }

    /// Chunks that came back and that were not claimed since.
    fn waits_for_cpu(&self) -> u64 {
        self.returned.iter().map(|range| range.end - range.start).sum()
    }

    /// Nanoseconds until everything is done if both sides work at their rates to the end.
    fn ends_in(&self, now: Nanos) -> f64 {
        let (rate, waits) = self.device_rate(now);
        let left = (self.free.end - self.free.start) + self.waits_for_cpu() + self.cpu_out + waits;
        let device = if self.gone { 0.0 } else { rate };
        left as f64 / (self.thread.now * self.threads + device)
    }

    /// The device's rate as it must look now, an answer that is late taken into account, and the chunks it has.
    fn device_rate(&self, now: Nanos) -> (f64, u64) {
        let waits = self.pieces.iter().map(|piece| piece.range.end - piece.range.start).sum();
        let Some(first) = self.pieces.front() else { return (self.rate.now, 0) };
        let chunks = (first.range.end - first.range.start) as f64;
        let silent = now.saturating_sub(first.claimed.max(self.last_done)).max(1) as f64;
        (self.rate.now.min(DEVICE_PIECES as f64 * chunks / silent), waits)
    }

    fn chunks_of(&self, bytes: u64) -> u64 {
        (bytes / self.chunk_bytes).max(1)
    }
}

/// What `adaptive` makes of a job: both sides meet, if by calibration the device would do at least a sixtieth of it.
pub(crate) fn by_rates(machine: &Machine, job: &Job) -> Option<Split> {
    let per_ns = |id, bytes: usize| Some(bytes as f64 / machine.costs.latency_ns(id, job.kind, bytes)?);
    let inline = machine.engines.iter().filter(|engine| engine.inline.contains(job.kind));
    let thread = inline.filter_map(|engine| per_ns(engine.id, job.chunk_bytes)).max_by(f64::total_cmp);
    let rate = |id: &EngineId| per_ns(*id, DEVICE_MOST as usize);
    let best = job.devices.iter().max_by(|a, b| rate(a).unwrap_or(0.0).total_cmp(&rate(b).unwrap_or(0.0)))?;
    let thread = thread.unwrap_or(1.0);
    let cpu = thread * f64::from(job.threads.max(1));
    // Of a device that was not calibrated as much is believed as of the CPU; its first piece tells.
    let device = rate(best).unwrap_or(cpu);
    let bytes = job.chunks.saturating_mul(job.chunk_bytes as u64);
    (device * 60.0 > cpu && bytes >= 4 * DEVICE_MOST).then(|| Split::meeting(job, *best, thread, device))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 1 << 14;
    const DEVICE: EngineId = EngineId(1);

    fn job(chunks: u64, threads: u32) -> Job {
        let (kind, devices) = (Kind::Aes256GcmSeal, vec![DEVICE]);
        Job { kind, chunks, chunk_bytes: CHUNK, devices, threads }
    }

    /// Everything is claimed, by the device as much as it may; the CPU has done its part, and the device has not begun.
    fn hung(chunks: u64, threads: u32) -> (Split, Vec<Range<u64>>) {
        let mut split = Split::meeting(&job(chunks, threads), DEVICE, 1.0, 16.0);
        let mut flying = Vec::new();
        while let Some(piece) = split.claim(Side::Device, 0) {
            flying.push(piece);
        }
        while let Some(piece) = split.claim(Side::Cpu, 0) {
            let ns = (piece.end - piece.start) * CHUNK as u64;
            split.done(Side::Cpu, &piece, 0, ns);
        }
        (split, flying)
    }

    #[test]
    fn a_device_that_has_nothing_takes_a_small_rest() {
        let least = DEVICE_LEAST / CHUNK as u64;
        let mut split = Split::meeting(&job(least / 2, 1), DEVICE, 1.0, 4.0);
        assert!(split.claim(Side::Device, 0).is_some_and(|piece| piece.end - piece.start < least));
        assert_eq!(split.claim(Side::Device, 0), None, "it has something to do, and the rest is small");
    }

    #[test]
    fn a_job_is_split_where_the_device_is_worth_a_sixtieth_of_all_threads() {
        let mut machine = crate::ranking::tests::server();
        let (device, most) = (EngineId(2), DEVICE_MOST as f64);
        let per_byte = 1.0 / 16.0;
        machine.costs.set(EngineId(1), Kind::Aes256GcmSeal, vec![(CHUNK, CHUNK as f64 * per_byte, None)]);
        machine.costs.set(device, Kind::Aes256GcmSeal, vec![(most as usize, 20.0 * most * per_byte, None)]);
        let of = |chunks, threads| Job { devices: vec![device], ..job(chunks, threads) };
        assert!(by_rates(&machine, &of(1 << 16, 2)).is_some(), "a fortieth");
        assert!(by_rates(&machine, &of(1 << 16, 4)).is_none(), "an eightieth");
        let least = 4 * DEVICE_MOST / CHUNK as u64;
        assert!(
            by_rates(&machine, &of(least, 2)).is_some() && by_rates(&machine, &of(least - 1, 2)).is_none()
        );
    }

    #[test]
    fn a_thread_claims_half_of_its_fair_share() {
        // Both sides are as fast: 256 chunks are left for each, and a half of that.
        let mut split = Split::meeting(&job(512, 1), DEVICE, 1.0, 1.0);
        assert_eq!(split.claim(Side::Cpu, 0), Some(0..CPU_MOST.div_ceil(CHUNK as u64).min(128)));
        let mut small = Split::meeting(&job(64, 1), DEVICE, 1.0, 1.0);
        assert_eq!(small.claim(Side::Cpu, 0), Some(0..16));
    }

    #[test]
    fn what_a_device_ends_as_soon_as_the_cpu_would_is_not_overdue() {
        let mut split = Split::meeting(&job(64, 1), DEVICE, 1.0, 1.0);
        let device = split.claim(Side::Device, 0).unwrap();
        while let Some(piece) = split.claim(Side::Cpu, 0) {
            split.done(Side::Cpu, &piece, 0, (piece.end - piece.start) * CHUNK as u64);
        }
        assert_eq!(split.overdue(1), None);
        assert_eq!(split.overdue(1 << 40), Some(device), "it has answered nothing for long");
    }

    #[test]
    fn what_comes_back_is_shared_by_all_threads() {
        let (mut split, _) = hung(256, 8);
        while let Some(late) = split.overdue(10_000_000_000) {
            split.give_back(late);
        }
        let claimed: Vec<_> = (0..8).map_while(|_| split.claim(Side::Cpu, 10_000_000_000)).collect();
        assert_eq!(claimed.len(), 8, "{claimed:?}");
    }

    #[test]
    fn all_that_a_hung_device_has_comes_back_before_a_thread_has_claimed_any() {
        let (mut split, flying) = hung(1 << 12, 8);
        assert!(flying.len() > 1 && split.is_empty() && !split.is_over());
        for piece in flying.iter().rev() {
            assert_eq!(split.overdue(10_000_000_000).as_ref(), Some(piece));
            split.give_back(piece.clone());
        }
        assert!(split.overdue(20_000_000_000).is_none() && !split.is_over());
    }

    /// Steele, Lea and Flood's generator.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % bound
        }
    }

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Chunk {
        Free,
        Claimed,
        Done,
    }

    /// What a job's owner sees, in any order that may happen, with each side's promises checked.
    struct Owner {
        split: Split,
        chunks: Vec<Chunk>,
        cpu: Vec<(Range<u64>, Nanos)>,
        device: Vec<(Range<u64>, Nanos)>,
    }

    impl Owner {
        fn turn(&mut self, range: &Range<u64>, from: Chunk, to: Chunk) {
            for chunk in range.clone() {
                let here = &mut self.chunks[chunk as usize];
                assert_eq!(*here, from, "chunk {chunk} is to be {to:?}");
                *here = to;
            }
        }

        fn claim(&mut self, side: Side, now: Nanos) {
            let Some(range) = self.split.claim(side, now) else { return };
            assert!(!range.is_empty());
            self.turn(&range, Chunk::Free, Chunk::Claimed);
            let mine = if side == Side::Cpu { &mut self.cpu } else { &mut self.device };
            mine.push((range, now));
        }

        fn done(&mut self, side: Side, which: u64, now: Nanos) {
            let mine = if side == Side::Cpu { &mut self.cpu } else { &mut self.device };
            if mine.is_empty() {
                return;
            }
            let (range, claimed) = mine.swap_remove(which as usize % mine.len());
            self.split.done(side, &range, claimed, now);
            self.turn(&range, Chunk::Claimed, Chunk::Done);
        }

        fn take_back(&mut self, range: &Range<u64>) {
            let at = self.device.iter().position(|(one, _)| one == range).expect("a piece of the device's");
            self.device.remove(at);
            self.turn(range, Chunk::Claimed, Chunk::Free);
            self.split.give_back(range.clone());
        }
    }

    /// A job to its end. The device answers nothing after so many steps; a border's owner takes pieces back then, and one
    /// of sides that meet waits for [`Split::overdue`].
    fn to_the_end(seed: u64) -> (u64, u64) {
        let mut random = Random(seed);
        let chunks = 1 + random.below(6000);
        let (job, threads) = (job(chunks, 1 + random.below(8) as u32), 1 + random.below(8));
        let border = seed.is_multiple_of(3).then(|| random.below(1001) as f64 / 1000.0);
        let split = match border {
            Some(share) => Split::at_border(&job, DEVICE, share),
            None => Split::meeting(&job, DEVICE, 1.0, (1 + random.below(300)) as f64 / 10.0),
        };
        let (hangs, mut now) = (random.below(400), 0);
        let mut owner =
            Owner { split, chunks: vec![Chunk::Free; chunks as usize], cpu: Vec::new(), device: Vec::new() };
        for step in 0.. {
            assert!(step < 1_000_000, "seed {seed}: it does not end");
            now += random.below(300_000);
            let which = random.below(1 << 20);
            match random.below(6) {
                0 | 1 if (owner.cpu.len() as u64) < threads => owner.claim(Side::Cpu, now),
                2 => owner.claim(Side::Device, now),
                3 => owner.done(Side::Cpu, which, now),
                4 if step < hangs => owner.done(Side::Device, which, now),
                5 if border.is_none() => {
                    let late = owner.split.overdue(now);
                    late.into_iter().for_each(|range| owner.take_back(&range));
                }
                5 if step > hangs + 50 => {
                    owner.split.device_gone();
                    let mine: Vec<_> = owner.device.iter().map(|(range, _)| range.clone()).collect();
                    mine.iter().for_each(|range| owner.take_back(range));
                }
                _ => {}
            }
            let (cpu, device) = owner.split.shares();
            let of = |state| owner.chunks.iter().filter(|chunk| **chunk == state).count() as u64;
            if step % 64 == 0 {
                assert_eq!(cpu + device, of(Chunk::Claimed) + of(Chunk::Done), "seed {seed}");
            }
            if owner.split.is_over() {
                assert_eq!(of(Chunk::Free), 0, "seed {seed}");
                assert!(owner.device.is_empty());
                while !owner.cpu.is_empty() {
                    owner.done(Side::Cpu, which, now);
                }
                break;
            }
        }
        assert!(owner.chunks.iter().all(|chunk| *chunk == Chunk::Done), "seed {seed}");
        owner.split.shares()
    }

    #[test]
    fn every_chunk_is_done_exactly_once_in_any_order_whoever_hangs() {
        let shares: Vec<_> = (0..600).map(to_the_end).collect();
        assert!(shares.iter().filter(|(cpu, device)| *cpu > 0 && *device > 0).count() > 100);
    }
}
