//! A job split over CPU and GPU, in virtual time: the split that `seal` and `open` use, on the GPU model of the
//! emulator, and the preset `k20m` beside the papers' machine.

use std::ops::Range;

use wattlock_core::Kind;
use wattlock_emul::Model;
use wattlock_lab::papers::k20m::StreamPlatform;
use wattlock_lab::sim::{Events, Gpu, GpuModel, Step};
use wattlock_policy::{EngineId, Job, Side, Split};

const CHUNK: usize = 1 << 14;
/// 2 GiB.
const CHUNKS: u64 = 1 << 17;
const THREADS: u32 = 8;
/// Bytes a nanosecond of all threads together.
const CPU: f64 = 16.0;

/// What becomes of the GPU in the middle of the job.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    Same,
    TenTimesSlower,
    /// It reports the loss, and what it had is to be done again.
    Gone,
    /// It never answers again.
    Silent,
}

enum Event {
    /// A thread has done its piece.
    Thread(Range<u64>, u64),
    /// The GPU has, unless it was given back. Whether its time is the one at last.
    Gpu(Range<u64>, u64, bool),
    Middle,
    /// The device's own thread looks.
    Look,
}

/// A GPU whose slowest stage moves so many bytes a nanosecond.
fn gpu(rate: f64) -> Gpu {
    Gpu::new(GpuModel {
        setup_ns: 8000.0,
        copy_bytes_per_s: rate * 1e9,
        kernel_bytes_per_s: 4.0 * rate * 1e9,
        streams: 4,
        steps: vec![Step { core_mhz: 1000.0, speed: 1.0, static_w: 0.0 }],
        reference: 0,
        dynamic_w: 0.0,
        alpha: 0.0,
        set_clock_ns: 0.0,
        parts: None,
    })
}

/// Runs a job; each chunk must be done. Returns nanoseconds over the ideal.
fn over_ideal(rate: f64, believed: f64, then: Then) -> f64 {
    let job = Job {
        kind: Kind::Aes256GcmSeal,
        chunks: CHUNKS,
        chunk_bytes: CHUNK,
        devices: vec![EngineId(2)],
        threads: THREADS,
    };
    let each = CPU / f64::from(THREADS);
    let mut split = Split::meeting(&job, EngineId(2), each, believed);
    let total = (CHUNKS as usize * CHUNK) as f64;
    let middle = (total / (CPU + rate) / 2.0) as u64;
    let mut device = gpu(rate);
    let mut events = Events::default();
    let (mut now, mut last, mut done, mut idle, mut alive) = (0, 0, 0, THREADS, true);
    let mut flying: Vec<Range<u64>> = Vec::new();
    let mut owed: Vec<bool> = vec![true; CHUNKS as usize];
    let mut finish = |range: &Range<u64>| {
        for chunk in range.clone() {
            assert!(std::mem::take(&mut owed[chunk as usize]), "chunk {chunk} was done twice");
        }
        range.end - range.start
    };
    events.at(middle, Event::Middle);
    events.at(0, Event::Look);
    loop {
        while idle > 0 {
            let Some(range) = split.claim(Side::Cpu, now) else { break };
            let ns = ((range.end - range.start) as f64 * CHUNK as f64 / each) as u64;
            idle -= 1;
            events.at(now + ns, Event::Thread(range, now));
        }
        while let Some(range) = alive.then(|| split.claim(Side::Device, now)).flatten() {
            let piece = device.submit(now, ((range.end - range.start) as usize * CHUNK) as f64);
            flying.push(range.clone());
            events.at(piece.done, Event::Gpu(range, now, now >= middle));
        }
        if done == CHUNKS {
            break;
        }
        let event = events.take().expect("chunks are left, and nobody works on them");
        now = events.now();
        match event {
            Event::Thread(range, claimed) => {
                done += finish(&range);
                split.done(Side::Cpu, &range, claimed, now);
                (idle, last) = (idle + 1, now);
            }
            Event::Gpu(range, claimed, settled) => {
                if !settled && now > middle && then == Then::TenTimesSlower {
                    // What was in flight takes ten times as long from the middle on, too.
                    events.at(now + 9 * (now - middle), Event::Gpu(range, claimed, true));
                    continue;
                }
                let Some(at) = flying.iter().position(|one| *one == range) else { continue };
                if !alive {
                    continue;
                }
                flying.remove(at);
                done += finish(&range);
                split.done(Side::Device, &range, claimed, now);
                last = now;
            }
            Event::Look => {
                if let Some(range) = split.overdue(now) {
                    flying.retain(|one| *one != range);
                    split.give_back(range);
                }
                events.at(now + 50_000, Event::Look);
            }
            Event::Middle => match then {
                Then::Same => {}
                Then::TenTimesSlower => {
                    device = gpu(rate / 10.0);
                }
                Then::Gone => {
                    alive = false;
                    split.device_gone();
                    flying.drain(..).for_each(|range| split.give_back(range));
                }
                Then::Silent => alive = false,
            },
        }
    }
    let after = match then {
        Then::Same => rate,
        Then::TenTimesSlower => rate / 10.0,
        Then::Gone | Then::Silent => 0.0,
    };
    let ideal = middle as f64 + (total - middle as f64 * (CPU + rate)) / (CPU + after);
    last as f64 / ideal
}

const RATES: [f64; 8] = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0];

#[test]
fn sides_that_meet_need_at_most_a_twentieth_more_than_the_ideal_time() {
    for rate in RATES {
        // Calibrated right, or a third, or three times.
        for belief in [1.0, 0.33, 3.0] {
            let over = over_ideal(rate * CPU, rate * CPU * belief, Then::Same);
            println!("device {rate} of the CPU, believed {belief} times that: {over:.4} of the ideal time");
            assert!(over <= 1.05, "{rate} {belief}: {over}");
        }
    }
}

#[test]
fn a_device_that_slows_tenfold_or_goes_in_the_middle_costs_at_most_a_tenth() {
    for rate in RATES {
        for (name, then) in
            [("ten times slower", Then::TenTimesSlower), ("gone", Then::Gone), ("silent", Then::Silent)]
        {
            let over = over_ideal(rate * CPU, rate * CPU, then);
            println!("device {rate} of the CPU, {name} in the middle: {over:.4} of the ideal time");
            assert!(over <= 1.1, "{rate} {name}: {over}");
        }
    }
}

/// One model of that machine: the emulator's preset is what the lab fits to the papers' baselines.
#[test]
fn the_k20m_that_is_emulated_is_the_lab_s() {
    let (preset, fitted) = (Model::k20m().gpu.unwrap(), StreamPlatform::default().station().gpu);
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-3;
    assert_eq!(
        (preset.streams, preset.reference, preset.steps.len()),
        (fitted.streams, fitted.reference, fitted.steps.len())
    );
    for (name, ours, lab) in [
        ("setup", preset.setup_ns, fitted.setup_ns),
        ("copy", preset.copy_bytes_per_s, fitted.copy_bytes_per_s),
        ("kernel", preset.kernel_bytes_per_s, fitted.kernel_bytes_per_s),
        ("dynamic watts", preset.dynamic_w, fitted.dynamic_w),
        ("exponent", preset.alpha, fitted.alpha),
    ] {
        assert!(close(ours, lab), "{name}: {ours}, in the lab {lab}");
    }
    for (ours, lab) in preset.steps.iter().zip(&fitted.steps) {
        assert!(close(ours.core_mhz, lab.core_mhz) && close(ours.speed, lab.speed), "{ours:?} {lab:?}");
        assert!(close(ours.static_w, lab.static_w), "static watts: {ours:?}, in the lab {lab:?}");
    }
}
