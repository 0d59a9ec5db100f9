//! Each scene asks the product's rule and does what it says: another rule's claims, or another looking rule, and what comes
//! out is another thing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use wattlock_core::{Kind, LatencyClass, Nanos, Shape};
use wattlock_lab::papers::{aca_sds, eeca, qweb};
use wattlock_lab::sim::event_loop::{self, Load, Offload, Server};
use wattlock_lab::sim::thread::{self, Model};
use wattlock_lab::sim::{CARD, CRYPTO, Closed, Steady};
use wattlock_policy::{Ask, Choice, EngineId, GatherRule, Outcome, Policy, Rest, Side, Weather};

/// Pieces that were claimed: by devices, and by the CPU.
type Claimed = Arc<[AtomicU64; 2]>;

/// A policy whose claims are counted, or are those of another rule.
struct Watched {
    policy: Box<dyn Policy>,
    claimed: Claimed,
    /// Whether the CPU has all that the policy gives to a device.
    refuses: bool,
}

impl Policy for Watched {
    fn name(&self) -> &'static str {
        "watched"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, now: Nanos) -> Choice {
        self.policy.choose(ask, weather, now)
    }

    fn claim(&self, side: Side, rest: &Rest, weather: &Weather) -> u32 {
        let claims = match (self.refuses, side) {
            (false, _) => self.policy.claim(side, rest, weather),
            (true, Side::Device) => 0,
            (true, Side::Cpu) => rest.free,
        };
        self.claimed[usize::from(side == Side::Cpu)].fetch_add(claims.into(), Relaxed);
        claims
    }

    fn observe(&mut self, shape: &Shape, outcome: &Outcome, now: Nanos) {
        self.policy.observe(shape, outcome, now);
    }
}

fn watch(policy: Box<dyn Policy>, claimed: &Claimed, refuses: bool) -> Box<dyn Policy> {
    Box::new(Watched { policy, claimed: claimed.clone(), refuses })
}

/// A closed system under its own claims and under others: what was claimed, and what came of it.
fn closed(mut system: Closed<'_>, refuses: bool) -> ([u64; 2], Steady) {
    let claimed = Claimed::default();
    system.policies = system.policies.into_iter().map(|one| watch(one, &claimed, refuses)).collect();
    let steady = system.run();
    ([0, 1].map(|side: usize| claimed[side].load(Relaxed)), steady)
}

#[test]
fn clients_of_a_closed_system_share_their_operations_as_the_rule_claims_them() {
    for whole_writes in [false, true] {
        let options = aca_sds::Options { whole_writes, alpha: Some(1), ..Default::default() };
        let run =
            |refuses| aca_sds::scene(&options, 64.0, 4, "aca-sds", |system| closed(system, refuses)).unwrap();
        let ([device, cpu], steady) = run(false);
        assert!(device > 0 && steady.used[CARD] > 0.1, "{device} {steady:?}");
        // Of a write of one page the card has that page before the CPU can take it; of a whole write both have some.
        assert_eq!(cpu > 0, whole_writes, "{cpu}");
        let ([device, cpu], refused) = run(true);
        assert!(device == 0 && cpu > 0, "{device} {cpu}");
        assert_eq!(refused.used[CARD], 0.0, "{refused:?}");
        assert!(refused.used[CRYPTO] > steady.used[CRYPTO], "{refused:?} {steady:?}");
    }
    let options = eeca::Options::default();
    let run = |refuses| eeca::scene(&options, 256.0, "eeca", |system| closed(system, refuses)).unwrap();
    let ([device, cpu], steady) = run(false);
    assert!(device > 0 && cpu > 0 && steady.used[CARD] > 0.5, "{device} {cpu} {steady:?}");
    assert_eq!(run(true).1.used[CARD], 0.0);
}

#[test]
fn an_event_loop_gives_the_card_what_the_rule_claims_and_looks_when_the_rule_says() {
    let options = qweb::Options {
        workers: 2,
        cores: 1,
        curve_workers: 1,
        concurrency: 64,
        handshakes: 300,
        ..Default::default()
    };
    let run = |refuses, rule: Option<GatherRule>| {
        let claimed = Claimed::default();
        let run = |server: &Server, load: &Load, make: &mut dyn FnMut() -> Box<dyn Policy>| {
            let offload = rule.map_or(server.offload, Offload::InLoop);
            let server = Server { offload, ..server.clone() };
            event_loop::run(&server, load, &mut || watch(make(), &claimed, refuses))
        };
        let measured = qweb::scene(&options, "qweb", run).unwrap();
        ([0, 1].map(|side: usize| claimed[side].load(Relaxed)), measured)
    };
    let ([device, _], measured) = run(false, None);
    assert!(device > 0);
    let ([device, _], refused) = run(true, None);
    assert_eq!(device, 0);
    assert!(refused.per_second < 0.5 * measured.per_second, "in software: {refused:?} {measured:?}");
    // Never by count, and after 5 ms: an answer lies longer.
    let patient =
        GatherRule::Counts { asymmetric: 65_535, symmetric: 65_535, timer_ns: 5_000_000, sleeps: false };
    let (_, late) = run(false, Some(patient));
    assert!(late.latency_ns > 1.02 * measured.latency_ns, "{late:?} {measured:?}");
}

#[test]
fn a_thread_gives_a_device_what_the_rule_claims() {
    let models = [Model::cpu(10_000.0, 0.0), Model::device(30_000.0, 0.0, 16)];
    let load = thread::Load {
        kind: Kind::Sha256,
        class: LatencyClass::Stream,
        sizes: vec![4096],
        arrivals: Ok(32),
        says_active: true,
        requests: 4000,
    };
    let run = |refuses| {
        let claimed = Claimed::default();
        let mut policy = watch(Box::new(Second), &claimed, refuses);
        let report = thread::run(&models, &load, &mut *policy, &[]);
        (claimed[0].load(Relaxed), report.by_engine)
    };
    let (device, by_engine) = run(false);
    assert!(device > 0 && by_engine[0] == 0 && by_engine[1] >= 4000, "{device} {by_engine:?}");
    let (device, by_engine) = run(true);
    assert!(device == 0 && by_engine[0] >= 4000 && by_engine[1] == 0, "{device} {by_engine:?}");
}

/// The second engine for all that can wait, the first for the rest.
struct Second;

impl Policy for Second {
    fn name(&self) -> &'static str {
        "second"
    }

    fn choose(&mut self, ask: &Ask, _: &Weather, _: Nanos) -> Choice {
        Choice::all(EngineId(u8::from(ask.may_wait)), ask)
    }
}
