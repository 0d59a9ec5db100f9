//! What the rule answers to single questions.

use wattlock_core::{EngineClass, LatencyClass};

mod trials;

use super::inline::{SLOTS, slot, slot_middle};
use super::*;
use crate::clocks::ClockCost;
use crate::machine::{Costs, Widths};
use crate::ranking::tests::{server, weather};

#[test]
fn slots_hold_their_middles() {
    for at in 0..SLOTS {
        let log = at / 4;
        if log >= 2 {
            assert_eq!(slot(slot_middle(at)), at);
        }
    }
    assert_eq!(slot(0), slot(1));
    assert_eq!(slot(usize::MAX), SLOTS - 1);
}

fn calibrated(points: &[(u8, f64, f64)], objective: Objective) -> Machine {
    let mut machine = Machine { objective, ..server() };
    for (id, ns, nj) in points {
        machine.costs.set(EngineId(*id), Kind::Sha256, vec![(0, *ns, Some(*nj))]);
    }
    machine
}

fn ask(machine: Machine, class: LatencyClass) -> EngineId {
    let shape = Shape { kind: Kind::Sha256, bytes: 100, class, messages: 1 };
    Adaptive::new(machine, &Settings::default()).choose(&Ask::one(shape), &weather(), 0).engine
}

#[test]
fn joules_known_of_some_engines_only_decide_nothing() {
    let points = [(0, 90_000.0, 50.0), (1, 10_000.0, 400.0), (2, 12_000.0, 200.0)];
    for objective in [Objective::Balanced, Objective::Energy] {
        let mut machine = calibrated(&points, objective);
        machine.costs.set(EngineId(1), Kind::Sha256, vec![(0, 10_000.0, None)]);
        assert_eq!(ask(machine, LatencyClass::Bulk), EngineId(1), "{objective:?}");
    }
}

#[test]
fn a_compressors_level_does_not_make_another_cpu_engine_look_cheaper() {
    let mut machine = Machine { objective: Objective::Performance, ..server() };
    for (id, ns) in [(0, 900_000.0), (1, 300_000.0)] {
        machine.costs.set(EngineId(id), Kind::Deflate, vec![(0, ns, None)]);
    }
    let settings = Settings { adaptive_explore_every: 0, ..Settings::default() };
    let mut adaptive = Adaptive::new(machine, &settings);
    let shape = Shape { kind: Kind::Deflate, bytes: 65_536, class: LatencyClass::Bulk, messages: 1 };
    // Costs are of level 1. Level 9 takes twenty times as long, and level 1 comes again.
    for (round, latency_ns) in [[6_000_000; 200], [300_000; 200]].into_iter().flatten().enumerate() {
        let now = round as u64 * 10_000_000;
        assert_eq!(adaptive.choose(&Ask::one(shape), &weather(), now).engine, EngineId(1), "{round}");
        let outcome = Outcome {
            engine: EngineId(1),
            latency_ns,
            held_ns: 0,
            batch: 1,
            depth: 1,
            energy_nj: None,
            failed: false,
        };
        adaptive.observe(&shape, &outcome, now + latency_ns);
    }
}

#[test]
fn each_objective_takes_its_own_cheapest() {
    let points = [(0, 90_000.0, 50.0), (1, 10_000.0, 400.0), (2, 12_000.0, 200.0)];
    let with = |objective, class| ask(calibrated(&points, objective), class);
    assert_eq!(with(Objective::Performance, LatencyClass::Bulk), EngineId(1));
    assert_eq!(with(Objective::Balanced, LatencyClass::Bulk), EngineId(2));
    assert_eq!(with(Objective::Energy, LatencyClass::Bulk), EngineId(0));
    assert_eq!(with(Objective::Energy, LatencyClass::Interactive), EngineId(2), "nine times is too slow");
}

#[test]
fn an_answer_that_lay_until_the_next_look_does_not_make_its_device_slow() {
    let machine = || calibrated(&[(1, 90_000.0, 1.0), (2, 10_000.0, 1.0)], Objective::Performance);
    let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Interactive, messages: 1 };
    let believed = |says: bool| {
        let mut adaptive = Adaptive::new(machine(), &Settings::default());
        for round in 1..200u64 {
            // Looks are 80 us apart, and what was found came at any moment between them: 50 us on average.
            let now = round * 80_000;
            if says {
                adaptive.looked(80_000);
            }
            let latency_ns = 10_000 + round % 9 * 10_000;
            let outcome = Outcome {
                engine: EngineId(2),
                latency_ns,
                held_ns: 0,
                batch: 1,
                depth: 1,
                energy_nj: None,
                failed: false,
            };
            adaptive.observe(&shape, &outcome, now + 200);
        }
        let table = adaptive.table(Kind::Sha256);
        let device = table.candidates.iter().find(|one| one.id == EngineId(2)).unwrap();
        device.ns(100).unwrap()
    };
    assert!(believed(true) < 25_000.0, "{}", believed(true));
    assert!(
        believed(false) > 40_000.0,
        "a thread that does not say when it looks is believed: {}",
        believed(false)
    );
}

#[test]
fn a_long_job_hands_over_pieces_that_take_the_device_longer_and_a_single_one_does_not() {
    let machine = calibrated(&[(1, 10_000.0, 1.0), (2, 50_000.0, 1.0)], Objective::Performance);
    let mut adaptive = Adaptive::new(machine, &Settings::default());
    let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Bulk, messages: 1 };
    let mut device_at = |now| adaptive.choose(&Ask::one(shape), &weather(), now).engine == EngineId(2);
    assert!(!device_at(0));
    let first = (1..100).find(|piece| device_at(piece * 10_000));
    assert!(first.is_some_and(|piece| (5..30).contains(&piece)), "{first:?}");
    assert!(!device_at(10_000_000), "another job");
}

/// Instructions (1) and lanes of eight (2): 600 us for one, 640 us for a pass of one.
fn lanes() -> Machine {
    let mut machine = calibrated(&[(1, 600_000.0, 1.0), (2, 640_000.0, 1.0)], Objective::Performance);
    let lanes = &mut machine.engines[2];
    (lanes.class, lanes.widths) = (EngineClass::Lanes, Widths::all(8));
    (lanes.inline, lanes.queued) = (lanes.queued, lanes.inline);
    machine.engines.remove(0);
    machine
}

/// A kind that is newer than the built-in tables: nothing is known of it, or only what instructions take.
#[test]
fn a_kind_that_lanes_were_never_measured_for_is_for_instructions_until_calibration_knows_better() {
    let none = Machine { costs: Costs::new(), ..lanes() };
    let single = || vec![(0, 600_000.0, None)];
    let mut half = none.clone();
    half.costs.set(EngineId(1), Kind::Sha256, single());
    for machine in [none, half.clone()] {
        let mut adaptive = Adaptive::new(machine, &Settings::default());
        for count in [1, 2, 8, 24] {
            assert_eq!(together(&mut adaptive, count).0, 1, "{count}");
        }
    }
    half.costs.set(EngineId(2), Kind::Sha256, vec![(0, 640_000.0, None)]);
    let mut adaptive = Adaptive::new(half, &Settings::default());
    assert_eq!((together(&mut adaptive, 1).0, together(&mut adaptive, 8)), (1, (2, 8)));
}

fn together(adaptive: &mut Adaptive, count: u32) -> (u8, u32) {
    let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Interactive, messages: 1 };
    let choice = adaptive.choose(&Ask { count, ..Ask::one(shape) }, &weather(), 0);
    (choice.engine.0, choice.count)
}

fn pass(adaptive: &mut Adaptive, batch: u16, latency_ns: Nanos) {
    let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Interactive, messages: 1 };
    let outcome = Outcome {
        engine: EngineId(2),
        latency_ns,
        held_ns: 0,
        batch,
        depth: 1,
        energy_nj: None,
        failed: false,
    };
    adaptive.observe(&shape, &outcome, 0);
}

#[test]
fn requests_in_hand_share_a_pass_where_that_takes_less() {
    let mut adaptive = Adaptive::new(lanes(), &Settings::default());
    assert_eq!(together(&mut adaptive, 1), (1, 1));
    for count in 2..=8 {
        assert_eq!(together(&mut adaptive, count), (2, count));
    }
    assert_eq!(together(&mut adaptive, 20), (2, 8));
}

#[test]
fn a_fuller_pass_that_costs_twice_a_thin_one_is_known_as_such() {
    let mut adaptive = Adaptive::new(lanes(), &Settings::default());
    (0..300).for_each(|_| pass(&mut adaptive, 8, 1_900_000));
    assert_eq!(together(&mut adaptive, 2), (2, 2), "a thin pass costs what it did");
    (0..300).for_each(|_| pass(&mut adaptive, 4, 1_900_000));
    assert_eq!(together(&mut adaptive, 2), (1, 2), "a thin pass costs as much as a full one");
    assert_eq!(together(&mut adaptive, 4), (2, 4));
    (0..300).for_each(|_| pass(&mut adaptive, 8, 8_000_000));
    assert_eq!(together(&mut adaptive, 8), (2, 4), "a full pass is too slow, and a thin one is not");
}

/// Instructions and lanes as RSA has them: four in a pass of one, eight in two.
fn halves() -> Machine {
    let mut machine = lanes();
    machine.costs.set(EngineId(1), Kind::Sha256, vec![(0, 400_000.0, None)]);
    let points = [(1, 640_000.0), (2, 640_000.0), (4, 640_000.0), (5, 1_280_000.0), (8, 1_280_000.0)];
    machine.costs.set_batches(EngineId(2), Kind::Sha256, points.to_vec());
    machine
}

#[test]
fn half_a_pass_goes_first_where_that_and_the_rest_take_less() {
    let mut adaptive = Adaptive::new(halves(), &Settings::default());
    for (count, pass) in [(2, 2), (3, 3), (4, 4), (5, 4), (6, 6), (7, 7), (8, 8), (12, 8)] {
        assert_eq!(together(&mut adaptive, count), (2, pass), "{count} in hand");
    }
    let mut adaptive = Adaptive::new(lanes(), &Settings::default());
    assert_eq!(together(&mut adaptive, 5), (2, 5), "a pass of five costs what one of four does");
}

#[test]
fn what_calibration_says_of_batches_is_believed_and_corrected() {
    let mut adaptive = Adaptive::new(halves(), &Settings::default());
    (0..300).for_each(|_| pass(&mut adaptive, 8, 1_280_000));
    assert_eq!(together(&mut adaptive, 5), (2, 4), "as calibrated");
    (0..300).for_each(|_| pass(&mut adaptive, 8, 640_000));
    assert_eq!(together(&mut adaptive, 5), (2, 5), "a full pass takes no more than a thin one");
    (0..300).for_each(|_| pass(&mut adaptive, 8, 9_000_000));
    assert_eq!(together(&mut adaptive, 8), (2, 4), "two thin ones take less");
}

#[test]
fn a_bad_belief_about_passes_is_tried_again() {
    let mut adaptive = Adaptive::new(lanes(), &Settings::default());
    (0..300).for_each(|_| pass(&mut adaptive, 4, 2_400_000));
    assert_eq!(together(&mut adaptive, 2), (1, 2));
    let tried = (0..200).filter(|_| together(&mut adaptive, 2).0 == 2).count();
    assert_eq!(tried, 1, "one in so many may be a trial");
}

/// Passes of the eight in hand, each observed as it was asked for; `slow` says how many times as long a whole one takes.
/// Returns how many of them were whole, and what all cost beyond the best.
fn passes(adaptive: &mut Adaptive, count: usize, times: [u64; 2], slow: u64) -> (usize, f64) {
    let (mut wholes, mut spent, mut best) = (0, 0.0, 0.0);
    for _ in 0..count {
        let (engine, together) = together(adaptive, 8);
        if engine == 1 {
            // A trial of what does one at a time.
            continue;
        }
        let ns = times[usize::from(together > 4)] * if together > 4 { slow } else { 1 };
        (wholes, spent) = (wholes + usize::from(together > 4), spent + ns as f64);
        best += (2 * times[0]).min(times[1]) as f64 * together as f64 / 8.0;
        pass(adaptive, together as u16, ns);
        if together <= 4 {
            // The door asks about the rest, too.
            self::together(adaptive, 8 - together);
        }
    }
    (wholes, spent / best - 1.0)
}

#[test]
fn whole_passes_that_were_slow_for_a_while_are_whole_again() {
    for (machine, times) in [(halves(), [640_000, 1_280_000]), (lanes(), [1_000_000, 1_000_000])] {
        for slow in [2, 4, 50, 1000] {
            for burst in [1, 2, 3, 10, 100, 1000, 10_000] {
                let mut adaptive = Adaptive::new(machine.clone(), &Settings::default());
                passes(&mut adaptive, 300, times, 1);
                // Of any length, and only while a whole pass runs.
                passes(&mut adaptive, burst, times, slow);
                passes(&mut adaptive, 200, times, 1);
                let (wholes, _) = passes(&mut adaptive, 100, times, 1);
                assert!(wholes >= 99, "{burst} passes {slow} times as slow");
            }
        }
    }
}

#[test]
fn passes_that_were_slow_while_they_were_calibrated_are_whole_in_the_end() {
    for slow in [2.0, 3.0, 10.0] {
        for which in 0..5 {
            let mut machine = lanes();
            let mut points = [(1, 1e6), (2, 1e6), (4, 1e6), (5, 1e6), (8, 1e6)];
            points[which].1 *= slow;
            machine.costs.set(EngineId(2), Kind::Sha256, vec![(0, points[0].1, None)]);
            machine.costs.set_batches(EngineId(2), Kind::Sha256, points.to_vec());
            let mut adaptive = Adaptive::new(machine, &Settings::default());
            passes(&mut adaptive, 400, [1_000_000, 1_000_000], 1);
            let (wholes, _) = passes(&mut adaptive, 100, [1_000_000, 1_000_000], 1);
            assert!(wholes >= 99, "{points:?}: {wholes}");
        }
    }
}

#[test]
fn whole_passes_that_are_dearer_for_good_are_tried_at_a_bounded_price() {
    // As a kernel may be that has no room for a whole pass: up to what two halves take twice.
    for dearer in [110, 130, 150, 175, 199] {
        let times = [640_000, 1_280_000 * dearer / 100];
        let mut adaptive = Adaptive::new(halves(), &Settings::default());
        passes(&mut adaptive, 1000, times, 1);
        let (wholes, regret) = passes(&mut adaptive, 10_000, times, 1);
        assert!(wholes > 0 && regret < 0.02, "{dearer}: {wholes} whole ones, regret {regret}");
    }
}

#[test]
fn only_a_question_that_time_followed_can_have_been_refused() {
    let machine = calibrated(&[(1, 90_000.0, 1.0), (2, 80_000.0, 1.0)], Objective::Performance);
    let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Interactive, messages: 1 };
    let sent = |step: u64| {
        let mut adaptive = Adaptive::new(machine.clone(), &Settings::default());
        // Nothing is ever in flight: the device never took what was named for it.
        let asked = (0..100)
            .filter(|n| adaptive.choose(&Ask::one(shape), &weather(), n * step).engine == EngineId(2));
        asked.count()
    };
    assert_eq!(sent(0), 100, "somebody only asks");
    assert!(sent(100_000) < 100, "refused");
}

#[test]
fn a_refusal_that_cost_little_of_what_a_device_gains_changes_little() {
    let sent = |cpu_ns| {
        let mut machine = calibrated(&[(1, cpu_ns, 1.0), (2, 1_000_000.0, 1.0)], Objective::Performance);
        machine.costs.set_submit(EngineId(2), 10_000.0);
        let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Interactive, messages: 1 };
        let mut adaptive = Adaptive::new(machine, &Settings::default());
        let asked = (0..100u64)
            .filter(|n| adaptive.choose(&Ask::one(shape), &weather(), n * 100_000).engine == EngineId(2));
        asked.count()
    };
    let (much, little) = (sent(10_000_000.0), sent(1_030_000.0));
    assert!(much > 80 && little < 50, "gains of 9 ms: {much}, of 30 us: {little}");
}

#[test]
fn a_choice_has_a_clock_of_the_engine_that_was_chosen() {
    let step = |mb_s: f64, idle_w: f64| ClockCost {
        setup_ns: 1000.0,
        bytes_per_s: mb_s * 1e6,
        idle_w,
        busy_w: 2.0 * idle_w,
    };
    for objective in [Objective::Performance, Objective::Energy] {
        let mut machine = calibrated(&[(1, 90_000.0, 9.0), (2, 10_000.0, 1.0)], objective);
        machine.costs.set_clocks(EngineId(2), vec![step(100.0, 10.0), step(200.0, 20.0), step(300.0, 40.0)]);
        let mut adaptive = Adaptive::new(machine, &Settings::default());
        let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Bulk, messages: 1 };
        let choice = adaptive.choose(&Ask::one(shape), &weather(), 0);
        assert_eq!(
            (choice.engine, choice.clock),
            (EngineId(2), Some(ClockStep(2))),
            "no window: the fastest"
        );
        let rest = (objective == Objective::Energy).then_some(ClockStep(0));
        assert_eq!((adaptive.rest(EngineId(2)), adaptive.rest(EngineId(1))), (rest, None));
    }
}

#[test]
fn without_calibration_instructions_are_the_choice() {
    assert_eq!(ask(server(), LatencyClass::Interactive), EngineId(1));
}

#[test]
fn inline_choice_follows_calibration_and_availability() {
    let machine = calibrated(&[(0, 1000.0, 1.0), (1, 2000.0, 1.0)], Objective::Performance);
    let mut adaptive = Adaptive::new(machine, &Settings::default());
    let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Bulk, messages: 1 };
    let mut weather = weather();
    assert_eq!(adaptive.choose(&Ask::inline(shape), &weather, 0).engine, EngineId(0));
    weather.engines[0].available = false;
    assert_eq!(adaptive.choose(&Ask::inline(shape), &weather, 0).engine, EngineId(1));
}

/// With a device each question is about one request on it; lanes still take a pass.
#[test]
fn beside_a_device_lanes_take_passes_and_the_device_one_at_a_time() {
    let mut machine = lanes();
    let device = EngineId(0);
    let mut view = server().engines[2].clone();
    view.id = device;
    machine.engines.insert(0, view);
    machine.costs.set(device, Kind::Sha256, vec![(0, 100_000_000.0, None)]);
    let mut adaptive = Adaptive::new(machine.clone(), &Settings::default());
    assert_eq!(together(&mut adaptive, 12), (2, 8), "a device that takes for ever");
    machine.costs.set(device, Kind::Sha256, vec![(0, 1_000.0, None)]);
    let mut adaptive = Adaptive::new(machine, &Settings::default());
    assert_eq!(together(&mut adaptive, 12), (0, 1), "a device that takes no time");
}

/// How often the policy is asked and what happens then: the best and the worse engine's true nanoseconds for what is in
/// hand.
#[derive(Debug, Clone, Copy)]
struct Duel {
    /// Requests in hand; 0 for one by the table.
    count: u32,
    bytes: usize,
    lanes: bool,
    /// True nanoseconds of an engine with so many in hand.
    ns: [f64; 2],
}

/// Questions on a clock of their own; `slow` says how many times as long each engine takes. Returns how many went to each,
/// and what all took beyond the best.
fn duel(
    adaptive: &mut Adaptive,
    duel: &Duel,
    now: &mut Nanos,
    passes: usize,
    mut slow: impl FnMut(usize, usize) -> f64,
) -> ([usize; 2], f64) {
    let class = LatencyClass::Interactive;
    let shape = Shape { kind: Kind::Sha256, bytes: duel.bytes, class, messages: 1 };
    let (mut by, mut spent) = ([0, 0], 0.0);
    for pass in 0..passes {
        let ask = match duel.count {
            0 => Ask::inline(shape),
            count => Ask { count, ..Ask::one(shape) },
        };
        let choice = adaptive.choose(&ask, &weather(), *now);
        let one = usize::from(choice.engine.0) - 1;
        let ns = duel.ns[one] * slow(one, pass);
        let lanes = one == 1 && duel.lanes;
        let done = if lanes { choice.count } else { duel.count.max(1) };
        let outcome = Outcome {
            engine: choice.engine,
            latency_ns: if lanes { ns } else { ns / f64::from(done) } as Nanos,
            held_ns: 0,
            batch: if lanes { done as u16 } else { 1 },
            depth: 1,
            energy_nj: None,
            failed: false,
        };
        *now += ns as Nanos;
        adaptive.observe(&shape, &outcome, *now);
        by[one] += 1;
        spent += ns;
    }
    (by, spent / (passes as f64 * duel.ns[0].min(duel.ns[1])) - 1.0)
}

/// Engines 1 and 2: two that do one at a time, or lanes of eight as the second.
fn duels() -> Vec<(Machine, Duel)> {
    let two = |first, second| calibrated(&[(1, first, 1.0), (2, second, 1.0)], Objective::Performance);
    let mut all = vec![];
    for times in [1.1, 1.5, 3.0, 20.0] {
        for count in [0, 1, 6] {
            let each = f64::from(count.max(1));
            for (one, other) in [(1000.0, 1000.0 * times), (1000.0 * times, 1000.0)] {
                let mut machine = two(one, other);
                let second = &mut machine.engines[2];
                (second.class, second.inline) = (EngineClass::Software, second.queued);
                machine.engines.remove(0);
                all.push((machine, Duel { count, bytes: 100, lanes: false, ns: [one * each, other * each] }));
            }
        }
    }
    for (count, single, pass) in
        [(8, 600_000.0, 640_000.0), (3, 400_000.0, 640_000.0), (1, 400_000.0, 640_000.0)]
    {
        let mut machine = lanes();
        machine.costs.set(EngineId(1), Kind::Sha256, vec![(0, single, None)]);
        machine.costs.set(EngineId(2), Kind::Sha256, vec![(0, pass, None)]);
        all.push((machine, Duel { count, bytes: 100, lanes: true, ns: [single * f64::from(count), pass] }));
    }
    all
}

#[test]
fn after_any_burst_the_choice_is_the_best_again_within_200_passes() {
    for (machine, case) in duels() {
        let best = usize::from(case.ns[1] < case.ns[0]);
        for hit in [[true, false], [false, true], [true, true]] {
            for slow in [2.0, 4.0, 50.0, 1000.0] {
                for burst in [1, 2, 3, 10, 100, 1000, 10_000] {
                    let mut adaptive = Adaptive::new(machine.clone(), &Settings::default());
                    let mut now = 0;
                    duel(&mut adaptive, &case, &mut now, 300, |_, _| 1.0);
                    duel(&mut adaptive, &case, &mut now, burst, |one, _| if hit[one] { slow } else { 1.0 });
                    duel(&mut adaptive, &case, &mut now, 200, |_, _| 1.0);
                    let (by, _) = duel(&mut adaptive, &case, &mut now, 1000, |_, _| 1.0);
                    assert!(by[best] >= 990, "{case:?}, {hit:?} {slow} times as slow for {burst}: {by:?}");
                }
            }
        }
    }
}

#[test]
fn trials_cost_less_than_2_percent() {
    for (machine, case) in duels() {
        let mut adaptive = Adaptive::new(machine, &Settings::default());
        let (by, regret) = duel(&mut adaptive, &case, &mut 0, 100_000, |_, _| 1.0);
        assert!(by[0] > 0 && by[1] > 0, "{case:?}: {by:?}: what is not chosen is tried");
        assert!(regret < 0.02, "{case:?}: {by:?}, regret {regret}");
    }
}

#[test]
fn an_engine_that_is_dearer_for_good_is_tried_at_a_bounded_price() {
    for (machine, case) in duels() {
        for dearer in [1.2, 1.6, 2.0, 3.0, 4.0] {
            let best = usize::from(case.ns[1] < case.ns[0]);
            let mut ns = case.ns;
            ns[best] *= dearer;
            let case = Duel { ns, ..case };
            let mut adaptive = Adaptive::new(machine.clone(), &Settings::default());
            let (by, regret) = duel(&mut adaptive, &case, &mut 0, 50_000, |_, _| 1.0);
            assert!(regret < 0.02, "{case:?}, {dearer} times as dear for good: {by:?}, regret {regret}");
        }
    }
}

#[test]
fn outliers_now_and_then_cost_less_than_2_percent() {
    for (machine, case) in duels() {
        // One pass in twenty takes five times as long, on any engine.
        let (mut state, mut spent) = (1_u64, 0.0);
        let mut adaptive = Adaptive::new(machine, &Settings::default());
        let slow = |_, _| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let slow = if (state >> 33) % 20 == 0 { 5.0 } else { 1.0 };
            spent += slow;
            slow
        };
        let (by, regret) = duel(&mut adaptive, &case, &mut 0, 20_000, slow);
        let usual = spent / 20_000.0;
        let regret = (regret + 1.0) / usual - 1.0;
        assert!(regret < 0.02, "{case:?}: {by:?}, regret {regret}");
    }
}

#[test]
fn sizes_that_alternate_are_tried_alike() {
    let two = calibrated(&[(1, 1000.0, 1.0), (2, 1500.0, 1.0)], Objective::Performance);
    let mut machine = two;
    let second = &mut machine.engines[2];
    (second.class, second.inline) = (EngineClass::Software, second.queued);
    machine.engines.remove(0);
    for count in [0, 1, 6] {
        let mut adaptive = Adaptive::new(machine.clone(), &Settings::default());
        let mut now = 0;
        let case = |bytes| Duel { count, bytes, lanes: false, ns: [1000.0, 1500.0] };
        for slow in [50.0, 1.0] {
            for _ in 0..400 {
                for bytes in [100, 1000] {
                    duel(
                        &mut adaptive,
                        &case(bytes),
                        &mut now,
                        1,
                        |one, _| if one == 0 { slow } else { 1.0 },
                    );
                }
            }
        }
        for bytes in [100, 1000] {
            let (by, _) = duel(&mut adaptive, &case(bytes), &mut now, 100, |_, _| 1.0);
            assert!(by[0] >= 98, "{count} in hand, {bytes} bytes: {by:?}");
        }
    }
}

#[test]
fn a_calibration_that_was_slow_is_found_out() {
    for (machine, case) in duels() {
        let best = usize::from(case.ns[1] < case.ns[0]);
        for wrong in [1.5, 3.0, 10.0, 30.0] {
            // A neighbour slowed the best engine while the machine was calibrated.
            let mut machine = machine.clone();
            let id = EngineId(best as u8 + 1);
            let ns = machine.costs.latency_ns(id, Kind::Sha256, 100).unwrap();
            machine.costs.set(id, Kind::Sha256, vec![(0, ns * wrong, None)]);
            let mut adaptive = Adaptive::new(machine, &Settings::default());
            duel(&mut adaptive, &case, &mut 0, 10_000, |_, _| 1.0);
            let (by, _) = duel(&mut adaptive, &case, &mut 0, 1000, |_, _| 1.0);
            assert!(by[best] >= 990, "{case:?}, {wrong} times as slow when calibrated: {by:?}");
        }
    }
}

#[test]
fn a_trial_of_what_fails_ends_with_its_first_failure() {
    let (mut machine, _) = duels().swap_remove(0);
    for (id, ns) in [(1, 1000.0), (2, 1100.0)] {
        machine.costs.set(EngineId(id), Kind::Sha256, vec![(0, ns, None)]);
    }
    let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Interactive, messages: 1 };
    let mut adaptive = Adaptive::new(machine, &Settings::default());
    let mut tried = 0;
    for now in 0..10_000u64 {
        let engine = adaptive.choose(&Ask::inline(shape), &weather(), now).engine;
        if engine == EngineId(2) {
            adaptive.left_undone(&shape, engine);
            tried += 1;
            continue;
        }
        let outcome = Outcome {
            engine,
            latency_ns: 1000,
            held_ns: 0,
            batch: 1,
            depth: 1,
            energy_nj: None,
            failed: false,
        };
        adaptive.observe(&shape, &outcome, now);
    }
    assert!((1..=80).contains(&tried), "{tried} trials of an engine that always fails");
}

#[test]
fn the_frugal_engine_is_tried_again_after_a_burst_that_put_it_out_of_the_question() {
    for (slow, burst) in [(3.0, 100), (10.0, 100), (50.0, 1000)] {
        let points = [(1, 10_000.0, 400.0), (2, 20_000.0, 50.0)];
        let mut machine = calibrated(&points, Objective::Energy);
        let second = &mut machine.engines[2];
        (second.class, second.inline) = (EngineClass::Software, second.queued);
        machine.engines.remove(0);
        let case = Duel { count: 1, bytes: 100, lanes: false, ns: [10_000.0, 20_000.0] };
        let (mut adaptive, mut now) = (Adaptive::new(machine, &Settings::default()), 0);
        duel(&mut adaptive, &case, &mut now, 300, |_, _| 1.0);
        duel(&mut adaptive, &case, &mut now, burst, |one, _| if one == 1 { slow } else { 1.0 });
        duel(&mut adaptive, &case, &mut now, 10_000, |_, _| 1.0);
        let (by, _) = duel(&mut adaptive, &case, &mut now, 1000, |_, _| 1.0);
        assert!(by[1] >= 980, "{slow} times as slow for {burst}: {by:?}");
    }
}

#[test]
fn a_pass_of_one_that_was_a_little_slow_when_calibrated_is_found_out() {
    for slow in [1.3, 1.5, 1.9, 2.5] {
        let mut machine = lanes();
        machine.costs.set(EngineId(1), Kind::Sha256, vec![(0, 100_000.0, None)]);
        machine.costs.set(EngineId(2), Kind::Sha256, vec![(0, 640_000.0 * slow, None)]);
        let points = [(1, 640_000.0 * slow), (4, 640_000.0), (5, 640_000.0), (8, 640_000.0)];
        machine.costs.set_batches(EngineId(2), Kind::Sha256, points.to_vec());
        let case = Duel { count: 8, bytes: 100, lanes: true, ns: [800_000.0, 640_000.0] };
        let (mut adaptive, mut now) = (Adaptive::new(machine, &Settings::default()), 0);
        duel(&mut adaptive, &case, &mut now, 10_000, |_, _| 1.0);
        let (by, _) = duel(&mut adaptive, &case, &mut now, 1000, |_, _| 1.0);
        assert!(by[1] >= 980, "{slow} times as slow when calibrated: {by:?}");
    }
}
