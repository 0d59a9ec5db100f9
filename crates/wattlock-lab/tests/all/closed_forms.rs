//! The parts of the lab against what queueing theory says of them, before any paper is looked at.

use std::collections::BTreeMap;

use wattlock_core::{Kind, Nanos};
use wattlock_emul::Model;
use wattlock_lab::sim::{Burst, Card, Cpu, Events, Power, Random, Refused};

fn within(found: f64, expected: f64, share: f64) {
    assert!((found / expected - 1.0).abs() <= share, "{found}, theory {expected}");
}

/// What an open queue did: mean wait and mean time in the system in nanoseconds, mean number in it, rate in 1/ns.
struct Open {
    wait: f64,
    sojourn: f64,
    number: f64,
    rate: f64,
    busy: f64,
}

/// Poisson arrivals at `load` of `cores` cores; `service` draws how long each takes (mean 1000 ns).
fn open(cores: usize, load: f64, mut service: impl FnMut(&mut Random) -> f64) -> Open {
    let (mut random, mut cpu) = (Random::new(7), Cpu::new(cores));
    let (mut clock, mut came) = (0.0f64, BTreeMap::new());
    let (mut waits, mut sojourns, mut count) = (0.0, 0.0, 0u64);
    let (mut area, mut last, mut inside) = (0.0, 0, 0i64);
    for id in 0..300_000u64 {
        clock += random.exponential(1000.0 / (load * cores as f64));
        let at = clock as Nanos;
        cpu.advance(at, &mut |one| {
            let since: Nanos = came.remove(&one.id).expect("it came");
            waits += (one.started - since) as f64;
            sojourns += (one.at - since) as f64;
            count += 1;
            area += inside as f64 * (one.at - last) as f64;
            (last, inside) = (one.at, inside - 1);
        });
        area += inside as f64 * (at - last) as f64;
        (last, inside) = (at, inside + 1);
        came.insert(id, at);
        cpu.start(at, Burst::new(id, service(&mut random) as Nanos));
    }
    let (count, time) = (count as f64, last as f64);
    Open {
        wait: waits / count,
        sojourn: sojourns / count,
        number: area / time,
        rate: count / time,
        busy: cpu.all_busy_ns() as f64 / time / cores as f64,
    }
}

/// M/D/1: the mean wait is rho / (2 (1 - rho)) service times (Pollaczek and Khinchine).
#[test]
fn one_core_waits_as_an_md1_queue_does() {
    for load in [0.3, 0.5, 0.7, 0.9] {
        let found = open(1, load, |_| 1000.0);
        within(found.wait, 1000.0 * load / (2.0 * (1.0 - load)), 0.05);
        within(found.busy, load, 0.02);
    }
}

/// M/M/k: the probability of having to wait is Erlang's C, the mean wait C / (k - a) service times.
#[test]
fn several_cores_wait_as_an_mmk_queue_does() {
    for (cores, load) in [(2usize, 0.6), (4, 0.8), (8, 0.9)] {
        let offered = load * cores as f64;
        let term = |n: usize| (1..=n).fold(1.0, |term, i| term * offered / i as f64);
        let tail = term(cores) / (1.0 - load);
        let erlang_c = tail / ((0..cores).map(term).sum::<f64>() + tail);
        let found = open(cores, load, |random| random.exponential(1000.0));
        within(found.wait, 1000.0 * erlang_c / (cores as f64 - offered), 0.08);
    }
}

/// Little: mean number in the system is rate times mean time in it, whatever the distributions.
#[test]
fn number_is_rate_times_time() {
    for (cores, load) in [(1, 0.5), (3, 0.8), (16, 0.95)] {
        let found = open(cores, load, |random| random.between(200.0, 1800.0));
        within(found.number, found.rate * found.sojourn, 0.01);
    }
}

fn card(servers: u32, service_ns: Nanos, link_bytes_per_s: f64) -> Card {
    let text = format!(
        "name test\nwindow 4096 requests 1000000000 bytes\npool all {servers} servers\n\
         table sha-256 0:{service_ns}\n"
    );
    Card::new(Model::parse(&text).expect("the test's own text"), 0.0, Some(link_bytes_per_s))
}

/// A closed network of deterministic stages has the throughput min(n / sum of stages, servers / slowest stage).
#[test]
fn a_pipeline_is_as_fast_as_its_slowest_stage_or_as_its_clients_are_many() {
    // One core for 1000 ns, then a link for 500 ns, then one of 4 servers for 6000 ns.
    let per_ns = |clients: u64| {
        let (mut cpu, mut card) = (Cpu::new(1), card(4, 6000, 2e9));
        (0..clients).for_each(|id| cpu.start(0, Burst::new(id, 1000)));
        let (mut now, mut done) = (0, 0u32);
        while now < 20_000_000 {
            now = cpu.next_event().into_iter().chain(card.next_event()).min().expect("a closed system");
            let mut ready = Vec::new();
            cpu.advance(now, &mut |one| ready.push(one.id));
            ready.drain(..).for_each(|id| card.submit(now, id, Kind::Sha256, 1000).expect("room"));
            card.advance(now, &mut |one| ready.push(one.id));
            done += ready.len() as u32;
            ready.drain(..).for_each(|id| cpu.start(now, Burst::new(id, 1000)));
        }
        f64::from(done) / now as f64
    };
    for clients in [1, 2, 3, 5, 6, 20] {
        let expected = (clients as f64 / 7500.0).min(4.0 / 6000.0);
        within(per_ns(clients), expected, 0.01);
    }
}

#[test]
fn a_full_window_refuses_and_a_finished_request_makes_room() {
    let text = "name test\nwindow 2 requests 100 bytes\npool all 1 servers\ntable sha-256 0:10\n";
    let mut card = Card::new(Model::parse(text).unwrap(), 0.0, None);
    assert_eq!(card.submit(0, 1, Kind::Sha256, 60), Ok(()));
    assert_eq!(card.submit(0, 2, Kind::Sha256, 60), Err(Refused::Full), "bytes");
    assert_eq!(card.submit(0, 2, Kind::Sha512, 1), Err(Refused::Unknown));
    assert_eq!(card.submit(0, 2, Kind::Sha256, 40), Ok(()));
    assert_eq!(card.submit(0, 3, Kind::Sha256, 0), Err(Refused::Full), "requests");
    let mut finished = Vec::new();
    card.advance(10, &mut |one| finished.push(one.id));
    assert_eq!((finished, card.in_flight(), card.in_flight_bytes()), (vec![1], 1, 40));
    assert_eq!(card.submit(10, 3, Kind::Sha256, 0), Ok(()));
}

/// The energy of a busy period is its integral by hand; utilisation is busy time over time.
#[test]
fn energy_is_the_integral_of_power() {
    let mut power = Power::new(10.0, &[8.0, 4.0]);
    power.used(0, 0, 0.5);
    power.used(250_000_000, 1, 1.0);
    power.used(1_000_000_000, 0, 0.0);
    // 14 W for a quarter of a second, 18 W for three, 14 W for a whole one.
    let by_hand = 14.0 / 4.0 + 18.0 * 0.75 + 14.0;
    within(power.joules(2_000_000_000), by_hand, 1e-12);
    within(power.utilisation(2_000_000_000, 0), 0.25, 1e-12);
    within(power.utilisation(2_000_000_000, 1), 0.875, 1e-12);
}

/// Mean power of an M/D/1 machine is static plus load times dynamic.
#[test]
fn mean_power_follows_the_load() {
    let (mut random, mut cpu) = (Random::new(3), Cpu::new(1));
    let mut power = Power::new(5.0, &[20.0]);
    let mut events = Events::new();
    events.at(0, ());
    let (mut now, mut arrived) = (0, 0u64);
    while arrived < 100_000 {
        match cpu.next_event().filter(|at| events.peek().is_none_or(|next| *at <= next)) {
            Some(at) => {
                now = at;
                cpu.advance(now, &mut |_| {});
            }
            None => {
                events.take().expect("an arrival is always due");
                now = events.now();
                cpu.start(now, Burst::new(arrived, 1000));
                events.after(random.exponential(2500.0) as Nanos, ());
                arrived += 1;
            }
        }
        power.used(now, 0, cpu.busy() as f64);
    }
    within(power.joules(now) / (now as f64 / 1e9), 5.0 + 0.4 * 20.0, 0.01);
}
