//! What holds for every policy on every machine and in every weather, whatever its rule.

use wattlock_core::{Kind, KindSet, LatencyClass, Shape};
use wattlock_lab::sim::Random;
use wattlock_policy::{
    Ask, EngineClass, EngineId, EngineView, MAX_ENGINES, Machine, NAMES, Objective, Outcome, Policy, Rest,
    Settings, Side, Weather, Widths, by_name,
};

const CLASSES: [EngineClass; 5] = [
    EngineClass::Software,
    EngineClass::Instruction,
    EngineClass::Lanes,
    EngineClass::Accelerator,
    EngineClass::Gpu,
];

fn kinds(dice: &mut Random) -> KindSet {
    let share = 1 + dice.below(4);
    Kind::ALL.iter().copied().filter(|_| dice.below(4) < share).collect()
}

/// A random machine that keeps its own rule: some engine does every kind inline.
fn machine(dice: &mut Random) -> Machine {
    let engines = 1 + dice.below(MAX_ENGINES as u64) as usize;
    let complete = dice.below(engines as u64) as usize;
    let mut machine = Machine {
        cores: dice.below(9) as u16,
        objective: [Objective::Performance, Objective::Balanced, Objective::Energy][dice.below(3) as usize],
        ..Machine::default()
    };
    for index in 0..engines {
        let id = EngineId(index as u8);
        machine.engines.push(EngineView {
            id,
            class: CLASSES[dice.below(5) as usize],
            inline: if index == complete { KindSet::ALL } else { kinds(dice) },
            queued: if dice.below(3) == 0 { KindSet::EMPTY } else { kinds(dice) },
            widths: Widths::all([0, 1, 8, 16][dice.below(4) as usize]),
            window: [0, 1, 64][dice.below(3) as usize],
        });
        for kind in Kind::ALL {
            if dice.below(3) > 0 {
                let energy = (dice.below(2) == 0).then(|| dice.unit() * 1e6);
                let at = [0.0, 1.0, 1e3, 1e6][dice.below(4) as usize] * dice.unit();
                machine.costs.set(id, *kind, vec![(16, at, energy), (1 << 20, at * 9.0, energy)]);
            }
        }
    }
    machine
}

fn weather(dice: &mut Random) -> Weather {
    let mut weather = Weather {
        idle_permille: dice.below(1001) as u16,
        submitters: dice.below(40) as u16,
        active: dice.below(200) as u32 * dice.below(2) as u32,
        ..Weather::default()
    };
    let there = dice.below(5);
    for state in &mut weather.engines {
        state.available = dice.below(4) < there;
        state.in_flight = dice.below(70) as u32;
        state.held = dice.below(u64::from(state.in_flight) + 1) as u32;
        state.in_flight_bytes = dice.below(1 << 20);
        state.window_bytes = [0, 1 << 20][dice.below(2) as usize];
    }
    weather
}

fn shape(dice: &mut Random) -> Shape {
    let kind = Kind::ALL[dice.below(Kind::COUNT as u64) as usize];
    let log = dice.below(37);
    let class = [LatencyClass::Interactive, LatencyClass::Stream, LatencyClass::Bulk][dice.below(3) as usize];
    Shape { kind, bytes: dice.below(1 << log) as usize, class, messages: 1 }
}

/// Asserts that `named` can do it, and is available if any engine that can is.
fn check(
    name: &str,
    machine: &Machine,
    weather: &Weather,
    named: EngineId,
    can: impl Fn(&EngineView) -> bool,
) {
    let engine = machine.engines.get(named.index()).expect("an engine of this machine");
    assert!(can(engine), "{name} named engine {named:?}, which cannot do it");
    let there = |engine: &EngineView| weather.engines[engine.id.index()].available;
    let another = machine.engines.iter().any(|engine| can(engine) && there(engine));
    assert!(there(engine) || !another, "{name} named {named:?}, which is away while another is there");
}

fn question(policy: &mut dyn Policy, machine: &Machine, dice: &mut Random, now: u64) {
    let (shape, weather, name) = (shape(dice), weather(dice), policy.name());
    let count = 1 + dice.below(20) as u32;
    let choice = policy.choose(&Ask { count, ..Ask::one(shape) }, &weather, now);
    assert!((1..=count).contains(&choice.count), "{name}: {choice:?} of {count}");
    check(name, machine, &weather, choice.engine, |engine| engine.can(shape.kind));
    let inline = policy.choose(&Ask { count, ..Ask::inline(shape) }, &weather, now).engine;
    check(name, machine, &weather, inline, |engine| engine.inline.contains(shape.kind));
    let out = dice.below(9) as u32;
    let rest = Rest {
        device: choice.engine,
        kind: shape.kind,
        pieces: out + count,
        free: 1 + dice.below(count.into()) as u32,
        out,
        bytes: shape.bytes,
    };
    let claims = [Side::Device, Side::Cpu].map(|side| policy.claim(side, &rest, &weather));
    assert!(claims[0] <= rest.free && claims[1] <= 1, "{name}: {claims:?} of {rest:?}");
    let state = &weather.engines[choice.engine.index()];
    let waits = claims == [0, 0] && state.has_room(shape.bytes) && out == 0;
    assert!(!waits, "{name}: nobody takes anything of {rest:?}");
    policy.looked(dice.below(1 << 20));
    let outcome = Outcome {
        engine: choice.engine,
        latency_ns: dice.below(1 << 30),
        held_ns: dice.below(1 << 20),
        batch: dice.below(20) as u16,
        depth: dice.below(70) as u32,
        energy_nj: (dice.below(2) == 0).then(|| dice.below(1 << 40)),
        failed: dice.below(20) == 0,
    };
    policy.observe(&shape, &outcome, now);
}

#[test]
fn nobody_names_an_engine_that_cannot_or_is_away() {
    for seed in 0..150 {
        let mut dice = Random::new(seed);
        let machine = machine(&mut dice);
        for name in NAMES {
            let mut policy = by_name(name, machine.clone(), &Settings::default()).unwrap();
            let mut now = 0;
            for _ in 0..300 {
                let log = dice.below(30);
                now += dice.below(1 << log);
                question(policy.as_mut(), &machine, &mut dice, now);
            }
        }
    }
}

#[test]
fn every_policy_answers_the_same_twice() {
    for seed in 0..20 {
        let machine = machine(&mut Random::new(seed));
        for name in NAMES {
            let answers = || {
                let mut policy = by_name(name, machine.clone(), &Settings::default()).unwrap();
                let mut dice = Random::new(seed + 1000);
                let ask = |now| {
                    let (shape, weather) = (shape(&mut dice), weather(&mut dice));
                    policy.choose(&Ask::one(shape), &weather, now)
                };
                (0..200).map(ask).collect::<Vec<_>>()
            };
            assert_eq!(answers(), answers(), "{name}");
        }
    }
}

/// `eeca` with an idle accelerator is its threshold and nothing else, for every kind the accelerator can do.
#[test]
fn eeca_with_an_idle_accelerator_is_exactly_its_threshold() {
    let engine = |id, class, inline, queued| EngineView {
        id: EngineId(id),
        class,
        inline,
        queued,
        widths: Widths::all(1),
        window: 64,
    };
    let machine = Machine {
        engines: vec![
            engine(0, EngineClass::Instruction, KindSet::ALL, KindSet::EMPTY),
            engine(1, EngineClass::Accelerator, KindSet::EMPTY, KindSet::ALL),
        ],
        cores: 8,
        ..Machine::default()
    };
    let mut weather = Weather::default();
    (weather.engines[0].available, weather.engines[1].available) = (true, true);
    let mut dice = Random::new(11);
    for threshold in [0, 1, 4096, 8192, 65_536] {
        let settings = Settings::from_pairs([format!("eeca.threshold_bytes={threshold}").as_str()]).unwrap();
        let mut policy = by_name("eeca", machine.clone(), &settings).unwrap();
        for now in 0..2000 {
            let near = threshold + dice.below(5) as usize;
            let any = shape(&mut dice);
            for bytes in [near.saturating_sub(2), any.bytes] {
                let choice = policy.choose(&Ask::one(Shape { bytes, ..any }), &weather, now);
                assert_eq!(choice.engine.index(), usize::from(bytes > threshold), "{bytes} at {threshold}");
                let rest = Rest { device: choice.engine, kind: any.kind, pieces: 1, free: 1, out: 0, bytes };
                assert_eq!(policy.claim(Side::Cpu, &rest, &weather), 0);
            }
        }
    }
}
