//! Trials where several beliefs meet: lanes near break-even, counts in turns, joules, devices, noise, wrong first
//! observations. Time is the sum of what was done, and regret is measured against the best engine.

use super::*;

/// A stream of pseudorandom numbers from 0 to 1.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From `1 - noise` to `1 + noise`.
    fn around(&mut self, noise: f64) -> f64 {
        1.0 + noise * (2.0 * self.unit() - 1.0)
    }
}

/// Nanoseconds of one call by an engine for so many, and joules of each.
type Truth<'a> = &'a mut dyn FnMut(u8, u32) -> (f64, Option<u64>);

/// A door that is asked for `count` at a time (0: one by the table), until all are done.
struct Door {
    adaptive: Adaptive,
    now: Nanos,
    /// Whether engine 2 does several in one call.
    lanes: bool,
}

impl Door {
    fn new(machine: Machine) -> Door {
        let lanes = machine.engines.iter().any(|engine| engine.class == EngineClass::Lanes);
        Door { adaptive: Adaptive::new(machine, &Settings::default()), now: 0, lanes }
    }

    /// One operation. Returns what it took, and the requests that each engine did.
    fn operation(&mut self, count: u32, truth: Truth<'_>) -> (f64, [u32; 8]) {
        let class = LatencyClass::Interactive;
        let shape = Shape { kind: Kind::Sha256, bytes: 100, class, messages: 1 };
        let mut weather = weather();
        weather.engines.iter_mut().for_each(|engine| engine.available = true);
        let (mut left, mut spent, mut by) = (count.max(1), 0.0, [0; 8]);
        while left > 0 {
            let ask = if count == 0 { Ask::inline(shape) } else { Ask { count: left, ..Ask::one(shape) } };
            let choice = self.adaptive.choose(&ask, &weather, self.now);
            let (engine, done) = (choice.engine, choice.count.min(left));
            let lanes = self.lanes && engine == EngineId(2);
            let (ns, energy_nj) = truth(engine.0, if lanes { done } else { 1 });
            let all = if lanes { ns } else { ns * f64::from(done) };
            self.now += all as Nanos;
            (spent, left, by[engine.index()]) = (spent + all, left - done, by[engine.index()] + done);
            let outcome = Outcome {
                engine,
                latency_ns: ns as Nanos,
                held_ns: 0,
                batch: if lanes { done as u16 } else { 1 },
                depth: 1,
                energy_nj,
                failed: false,
            };
            self.adaptive.observe(&shape, &outcome, self.now);
        }
        (spent, by)
    }

    /// So many operations of counts in any order: what they took beyond `best`, and the requests that each engine did.
    fn operations(
        &mut self,
        many: u32,
        counts: &[u32],
        best: impl Fn(u32) -> f64,
        truth: Truth<'_>,
    ) -> (f64, [u32; 8]) {
        let mut random = Random(u64::from(many));
        let (mut spent, mut least, mut by) = (0.0, 0.0, [0; 8]);
        for _ in 0..many {
            let count = counts[(random.unit() * counts.len() as f64) as usize];
            let (ns, each) = self.operation(count, truth);
            (spent, least) = (spent + ns, least + best(count));
            by.iter_mut().zip(each).for_each(|(by, each)| *by += each);
        }
        (spent / least - 1.0, by)
    }
}

/// Engines 1, 2, ... that do one at a time in so many nanoseconds.
fn singles(ns: &[f64]) -> Machine {
    let mut machine = calibrated(&[], Objective::Performance);
    let first = machine.engines[1].clone();
    machine.engines.clear();
    for (id, ns) in (1..).map(EngineId).zip(ns) {
        let class = if id.0 == 1 { first.class } else { EngineClass::Software };
        machine.engines.push(crate::machine::EngineView { id, class, ..first.clone() });
        machine.costs.set(id, Kind::Sha256, vec![(0, *ns, None)]);
    }
    machine
}

/// [`lanes`] of other costs: one at a time, and a pass of any count.
fn lanes_of(single: f64, pass: f64) -> Machine {
    let mut machine = lanes();
    machine.costs.set(EngineId(1), Kind::Sha256, vec![(0, single, None)]);
    machine.costs.set(EngineId(2), Kind::Sha256, vec![(0, pass, None)]);
    machine
}

const STRENGTHS: [f64; 7] = [1.3, 1.5, 1.9, 2.5, 4.0, 50.0, 1000.0];
const LENGTHS: [u32; 8] = [1, 2, 3, 5, 10, 30, 100, 1000];

#[test]
fn lanes_near_break_even_are_the_choice_again_after_a_burst() {
    // Nanoseconds of one at a time, and what counts are asked for in turn. A pass takes 640,000.
    for (single, counts) in [
        (100_000.0, &[8][..]),
        (120_000.0, &[8]),
        (180_000.0, &[4, 8]),
        (100_000.0, &[1, 8]),
        (90_000.0, &[3, 8, 1]),
        (180_000.0, &[4, 5, 8, 1, 2]),
    ] {
        for slow in STRENGTHS {
            for burst in LENGTHS {
                for (one, lanes) in [(1.0, slow), (slow, slow)] {
                    let mut door = Door::new(lanes_of(single, 640_000.0));
                    let best = |count| (f64::from(count) * single).min(640_000.0);
                    let calm: Truth<'_> =
                        &mut |engine, _| (if engine == 1 { single } else { 640_000.0 }, None);
                    door.operations(600, counts, best, calm);
                    door.operations(burst, counts, best, &mut |engine, _| {
                        (if engine == 1 { single * one } else { 640_000.0 * lanes }, None)
                    });
                    // 200 of each count and their batch-mates.
                    door.operations(200 * counts.len() as u32, counts, best, calm);
                    let (regret, by) = door.operations(1000, counts, best, calm);
                    assert!(
                        regret < 0.02,
                        "{single} {counts:?}, {one} and {lanes} times for {burst}: {regret}, {by:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_whole_pass_that_was_slow_when_calibrated_is_found_out_among_others() {
    for wrong in [2.5, 4.0, 10.0] {
        for counts in [&[8][..], &[5, 8], &[5, 8, 8, 8, 8], &[6, 8, 7]] {
            let mut machine = lanes_of(600_000.0, 1e6);
            let points = [(1, 1e6), (4, 1e6), (5, 1e6), (6, 1e6), (7, 1e6), (8, 1e6 * wrong)];
            machine.costs.set_batches(EngineId(2), Kind::Sha256, points.to_vec());
            let mut door = Door::new(machine);
            let truth: Truth<'_> = &mut |engine, _| (if engine == 1 { 600_000.0 } else { 1e6 }, None);
            door.operations(3000, counts, |_| 1e6, truth);
            let (regret, _) = door.operations(10_000, counts, |_| 1e6, truth);
            assert!(regret < 0.02, "{wrong} times as slow, {counts:?} in hand: {regret}");
        }
    }
}

#[test]
fn joules_that_were_high_for_a_while_are_low_again() {
    for (device, within) in [(false, 200), (true, 600)] {
        for slow in STRENGTHS {
            for burst in LENGTHS {
                let mut machine = calibrated(&[(1, 10_000.0, 100.0), (2, 10_000.0, 80.0)], Objective::Energy);
                if !device {
                    let second = &mut machine.engines[2];
                    (second.class, second.inline) = (EngineClass::Software, second.queued);
                }
                machine.engines.remove(0);
                let mut door = Door::new(machine);
                let mut go = |many, slow: f64| {
                    let truth: Truth<'_> = &mut |engine, _| {
                        (10_000.0, Some(if engine == 1 { 100 } else { (80.0 * slow) as u64 }))
                    };
                    door.operations(many, &[1], |_| 10_000.0, truth).1
                };
                go(300, 1.0);
                go(burst, slow);
                go(within, 1.0);
                let by = go(1000, 1.0);
                assert!(by[2] >= 980, "device: {device}, {slow} times for {burst}: {by:?}");
            }
        }
    }
}

#[test]
fn an_observation_that_is_quicker_than_the_truth_is_not_believed_alone() {
    for count in [0, 1] {
        for times in [1.2, 1.5, 3.0] {
            for quick in [0.3, 0.1, 0.01, 0.0] {
                let calm = |engine: u8| if engine == 2 { 1000.0 * times } else { 1000.0 };
                let mut door = Door::new(singles(&[1000.0, 1000.0 * times]));
                let mut left = 1;
                let (_, by) = door.operations(3000, &[count], |_| 1000.0, &mut |engine, _| {
                    let hit = engine == 2 && left > 0;
                    left -= i32::from(hit);
                    (calm(engine) * if hit { quick } else { 1.0 }, None)
                });
                assert!((1..=30).contains(&by[2]), "one {quick} times as long, {times}: {by:?}");
                let mut door = Door::new(singles(&[1000.0, 1000.0 * times]));
                let mut random = Random(5);
                let (regret, by) = door.operations(50_000, &[count], |_| 1000.0, &mut |engine, _| {
                    let hit = engine == 2 && random.unit() < 0.05;
                    (calm(engine) * if hit { quick } else { 1.0 }, None)
                });
                assert!(regret < 0.04, "one in 20 {quick} times as long, {times}: {by:?}, regret {regret}");
            }
        }
    }
}

#[test]
fn a_wrong_first_observation_of_what_nobody_calibrated_is_unlearned() {
    for first in [0.0, 1.0, 1e6, 1e7, 1e8, 1e10] {
        for count in [0, 1] {
            let mut machine = singles(&[1000.0, 1000.0]);
            machine.costs.set(EngineId(2), Kind::Sha256, vec![]);
            let truth = if first <= 1.0 { 5000.0 } else { 500.0 };
            let mut door = Door::new(machine);
            let mut left = 1;
            let mut go = |many| {
                door.operations(many, &[count], |_| f64::min(1000.0, truth), &mut |engine, _| {
                    let hit = engine == 2 && left > 0;
                    left -= i32::from(hit);
                    (if hit { first } else { [1000.0, truth][usize::from(engine) - 1] }, None)
                })
            };
            go(500);
            let (regret, by) = go(5000);
            assert!(regret < 0.02, "first {first}, in truth {truth}: {by:?}, regret {regret}");
        }
    }
}

#[test]
fn engines_that_are_nearly_alike_cost_no_more_than_the_margin() {
    for times in [1.01, 1.03, 1.039, 1.045, 1.06, 1.08] {
        for count in [0, 1] {
            for slow in STRENGTHS {
                for burst in [0, 10, 100, 1000] {
                    let mut door = Door::new(singles(&[1000.0, 1000.0 * times]));
                    let mut go = |many, slow: f64| {
                        door.operations(many, &[count], |_| 1000.0, &mut |engine, _| {
                            (if engine == 1 { 1000.0 * slow } else { 1000.0 * times }, None)
                        })
                    };
                    go(300, 1.0);
                    go(burst, slow);
                    go(200, 1.0);
                    let (regret, by) = go(5000, 1.0);
                    assert!(regret < 0.02, "{times} times, {slow} for {burst}: {by:?}, regret {regret}");
                }
            }
        }
    }
}

#[test]
fn several_engines_cost_no_more_than_two() {
    for ns in [
        &[1000.0, 1500.0, 2000.0][..],
        &[1000.0, 1640.0, 1640.0, 1640.0, 1640.0, 1640.0, 1640.0],
        &[1000.0, 1100.0, 1200.0],
        &[3000.0, 1000.0, 1200.0, 8000.0],
    ] {
        let least = ns.iter().copied().fold(f64::MAX, f64::min);
        let squared: Vec<f64> = ns.iter().map(|one| one * one / 1000.0).collect();
        for calibrated in [ns, &squared] {
            for counts in [&[0][..], &[1], &[0, 1]] {
                let mut door = Door::new(singles(calibrated));
                let truth: Truth<'_> = &mut |engine, _| (ns[usize::from(engine) - 1], None);
                let (regret, by) = door.operations(50_000, counts, |_| least, truth);
                assert!(regret < 0.02, "{ns:?} {calibrated:?} {counts:?}: {by:?}, regret {regret}");
            }
        }
    }
}

#[test]
fn a_device_is_the_choice_again_after_a_burst() {
    for (cpu, device) in [(10_000.0, 15_000.0), (15_000.0, 10_000.0), (30_000.0, 10_000.0)] {
        for objective in [Objective::Performance, Objective::Balanced] {
            for hit in [[1, 0], [0, 1], [1, 1]] {
                for slow in [3.0, 50.0, 1000.0] {
                    for burst in [3, 30, 300, 3000] {
                        let mut machine = calibrated(&[(1, cpu, 1.0), (2, device, 1.0)], objective);
                        machine.engines.remove(0);
                        let mut door = Door::new(machine);
                        let mut go = |many, slow: f64| {
                            door.operations(many, &[1], |_| f64::min(cpu, device), &mut |engine, _| {
                                let index = usize::from(engine) - 1;
                                ([cpu, device][index] * if hit[index] == 1 { slow } else { 1.0 }, None)
                            })
                        };
                        go(1000, 1.0);
                        go(burst, slow);
                        go(1100, 1.0);
                        let (regret, by) = go(1000, 1.0);
                        assert!(
                            regret < 0.05,
                            "{cpu} {device} {hit:?}, {slow} for {burst}: {by:?}, {regret}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn noise_costs_little() {
    for (noise, most) in [(0.05, 0.02), (0.1, 0.02), (0.2, 0.04)] {
        let mut random = Random(11);
        // Five in hand: four in half a pass and one alone, or a whole pass of twice the time.
        let mut door = Door::new(halves());
        let (regret, _) = door.operations(20_000, &[5], |_| 1_040_000.0, &mut |engine, batch| {
            let ns = if engine == 1 { 400_000.0 } else { [640_000.0, 1_280_000.0][usize::from(batch > 4)] };
            (ns * random.around(noise), None)
        });
        assert!(regret < most, "half passes, noise {noise}: {regret}");
        for (calibrated, pass) in [(1.0, 1.05), (1.0, 1.2), (0.95, 1.05), (0.95, 1.12), (1.05, 0.95)] {
            let (single, whole) = (80_000.0, 640_000.0);
            let mut door = Door::new(lanes_of(single, whole * calibrated));
            let best = f64::min(1.0, pass) * whole;
            let (regret, by) = door.operations(20_000, &[8], |_| best, &mut |engine, _| {
                (random.around(noise) * if engine == 1 { single } else { whole * pass }, None)
            });
            assert!(
                regret < most,
                "noise {noise}, calibrated {calibrated}, in truth {pass}: {by:?}, {regret}"
            );
        }
    }
}
