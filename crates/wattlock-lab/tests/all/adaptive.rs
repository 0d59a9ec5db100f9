//! What `adaptive` promises, on a machine in virtual time: never more than 5 % behind the best single engine, no
//! flapping, a way back after a fault, and the same answers to the same questions.

use wattlock_core::{Kind, LatencyClass};
use wattlock_lab::machines::{Case, random, seeds, typical};
use wattlock_lab::sim::thread::{Event, Load, Model, Report, machine, run, run_fixed};
use wattlock_policy::{Adaptive, Objective, Settings};

const REQUESTS: usize = 20_000;

fn load(kind: Kind, sizes: &[usize], arrivals: Result<u32, f64>) -> Load {
    Load {
        kind,
        class: LatencyClass::Interactive,
        sizes: sizes.to_vec(),
        arrivals,
        says_active: true,
        requests: REQUESTS,
    }
}

#[test]
fn closed_loop_throughput_is_within_5_percent_of_the_best_fixed_engine() {
    let mut worst = (f64::INFINITY, String::new());
    for Case { name, models, kind, sizes, .. } in typical() {
        for clients in [1, 2, 3, 4, 6, 8, 16, 48] {
            let load = load(kind, &sizes, Ok(clients));
            let fixed: Vec<f64> =
                (0..models.len()).map(|e| run_fixed(e, &models, &load).throughput).collect();
            let best = fixed.iter().copied().fold(0.0, f64::max);
            let adaptive = adaptive(&models, &load, &[]);
            let ratio = adaptive.throughput / best;
            println!("{name}, {clients} clients: {ratio:.3} of the best, by engine {:?}", adaptive.by_engine);
            if ratio < worst.0 {
                worst = (ratio, format!("{name}, {clients} clients"));
            }
        }
    }
    println!("worst: {worst:?}");
    assert!(worst.0 >= 0.95, "{worst:?}");
}

#[test]
fn open_loop_latency_is_within_5_percent_of_the_best_fixed_engine() {
    let mut worst = (0.0, String::new());
    for Case { name, models, kind, sizes, .. } in typical() {
        let saturated = load(kind, &sizes, Ok(48));
        let each = (0..models.len()).map(|e| run_fixed(e, &models, &saturated).throughput);
        let capacity = each.fold(0.0, f64::max);
        for share in [0.1, 0.3, 0.5, 0.7, 0.85] {
            let load = load(kind, &sizes, Err(capacity * share));
            let fixed = (0..models.len()).map(|e| run_fixed(e, &models, &load).mean_latency_ns);
            let best = fixed.fold(f64::INFINITY, f64::min);
            let adaptive = adaptive(&models, &load, &[]);
            let ratio = adaptive.mean_latency_ns / best;
            println!(
                "{name}, {share} of capacity: {ratio:.3} of the best, by engine {:?}",
                adaptive.by_engine
            );
            if ratio > worst.0 {
                worst = (ratio, format!("{name}, {share} of capacity"));
            }
        }
    }
    println!("worst: {worst:?}");
    assert!(worst.0 <= 1.05, "{worst:?}");
}

fn adaptive(models: &[Model], load: &Load, events: &[(u64, Event)]) -> Report {
    adaptive_for(Objective::Performance, models, load, events)
}

fn adaptive_for(objective: Objective, models: &[Model], load: &Load, events: &[(u64, Event)]) -> Report {
    let mut policy = Adaptive::new(machine(models, load.kind, objective), &Settings::default());
    run(models, load, &mut policy, events)
}

fn best_throughput(models: &[Model], load: &Load) -> f64 {
    (0..models.len()).map(|engine| run_fixed(engine, models, load).throughput).fold(0.0, f64::max)
}

/// A machine whose device is worth it with 4 and more clients.
fn server() -> Vec<Model> {
    vec![Model::cpu(30_000.0, 0.0), Model::device(60_000.0, 0.0, 12)]
}

fn rsa(clients: u32) -> Load {
    load(Kind::Rsa2048Private, &[256], Ok(clients))
}

#[test]
fn a_wrong_calibration_is_unlearned() {
    for (clients, truth) in [(1, 20_000.0), (4, 20_000.0), (1, 100_000.0), (4, 400_000.0), (16, 30_000.0)] {
        for (cpu, device) in [(1.0, 0.2), (3.0, 1.0), (0.5, 0.5), (1.0, 1.4), (1.0, 0.0)] {
            let mut models = vec![Model::cpu(30_000.0, 0.0), Model::device(truth, 0.0, 12)];
            (models[0].believed, models[1].believed) = (cpu, device);
            let load = rsa(clients);
            let report = adaptive(&models, &load, &[]);
            let ratio = report.throughput / best_throughput(&models, &load);
            println!("{clients} clients, device {truth} ns, believed {cpu} and {device}: {ratio:.3}");
            assert!(ratio >= 0.95, "{clients} clients, {truth} ns, believed {cpu} and {device}: {ratio}");
        }
    }
}

#[test]
fn where_offload_never_pays_nothing_is_offloaded() {
    let models = [Model::cpu(100.0, 0.05), Model::device(50_000.0, 0.3, 4)];
    for clients in [1, 16, 48] {
        let load = load(Kind::Aes128GcmSeal, &[64, 1024, 4096], Ok(clients));
        assert_eq!(adaptive(&models, &load, &[]).by_engine[1], 0, "{clients} clients");
    }
}

#[test]
fn an_engine_nobody_calibrated_is_tried_a_few_times_only() {
    let mut models = [Model::cpu(100.0, 0.05), Model::device(50_000.0, 0.3, 4)];
    models[1].believed = 0.0;
    let load = load(Kind::Aes128GcmSeal, &[1024], Ok(4));
    let tried = adaptive(&models, &load, &[]).by_engine[1];
    println!("tried {tried} of {REQUESTS}");
    assert!((1..=16).contains(&tried), "{tried} of {REQUESTS}: log2(n / 128) and as many again at most");
}

#[test]
fn noise_does_not_make_it_flap() {
    for share in [0.9, 0.97, 1.0, 1.03, 1.1] {
        let mut models = vec![Model::cpu(30_000.0, 0.0), Model::device(29_500.0 * share, 0.0, 12)];
        models.iter_mut().for_each(|model| model.noise = 0.3);
        let report = adaptive(&models, &rsa(1), &[]);
        println!("device at {share}: {} switches in {REQUESTS}", report.switches);
        assert!(report.switches <= REQUESTS / 200, "{} switches at {share}", report.switches);
    }
}

/// Share of the choices from `from` to `to` (thousandths of all) that named the engine.
fn share(report: &Report, engine: u8, from: usize, to: usize) -> f64 {
    let all = report.choices.len();
    let part = &report.choices[all * from / 1000..all * to / 1000];
    part.iter().filter(|choice| choice.engine.0 == engine).count() as f64 / part.len() as f64
}

#[test]
fn a_failing_engine_is_left_and_comes_back() {
    let (models, mut load) = (server(), rsa(8));
    load.requests = 100_000;
    let second = 1_000_000_000;
    let healthy = adaptive(&models, &load, &[]);
    let events = [(second / 5, Event::Failing(1, true)), (second / 5 * 2, Event::Failing(1, false))];
    let report = adaptive(&models, &load, &events);
    let before = share(&healthy, 1, 500, 1000);
    let failed = report.choices.len() - report.by_engine[0];
    println!("device share {before:.3} healthy, {:.3} at the end", share(&report, 1, 900, 1000));
    assert!(before > 0.3);
    assert!(share(&report, 1, 900, 1000) > 0.9 * before);
    assert!(failed < healthy.by_engine[1]);
    let unhealed = adaptive(&models, &load, &events[..1]);
    let tail = share(&unhealed, 1, 500, 1000);
    println!("device share {tail:.5} while it keeps failing");
    assert!(tail < 0.01, "{tail}");
}

#[test]
fn a_slow_engine_is_left_and_comes_back() {
    for clients in [1, 8] {
        let models = vec![Model::cpu(30_000.0, 0.0), Model::device(20_000.0, 0.0, 12)];
        let mut load = rsa(clients);
        load.requests = 200_000;
        let events = [(200_000_000, Event::Slow(1, 20.0)), (500_000_000, Event::Slow(1, 1.0))];
        let slow = adaptive(&models, &load, &events[..1]);
        let healed = adaptive(&models, &load, &events);
        let (tail, end) = (share(&slow, 1, 500, 1000), share(&healed, 1, 900, 1000));
        println!("{clients} clients: device share {tail:.4} while slow, {end:.3} at the end");
        assert!(tail < 0.3, "{tail}");
        assert!(end > 0.5, "{end}");
    }
}

#[test]
fn the_same_questions_get_the_same_answers() {
    let (models, load) = (server(), load(Kind::Rsa2048Private, &[256], Err(1.0 / 20_000.0)));
    assert_eq!(adaptive(&models, &load, &[]).choices, adaptive(&models, &load, &[]).choices);
}

/// A door that does not say how many are active, and one request at a time: batch-mates never come.
#[test]
fn holding_for_company_that_never_comes_is_given_up() {
    let models = vec![Model::cpu(10_000.0, 0.0), Model::lanes(30_000.0)];
    for class in [LatencyClass::Interactive, LatencyClass::Stream, LatencyClass::Bulk] {
        let load = Load { class, says_active: false, ..rsa(1) };
        let report = adaptive(&models, &load, &[]);
        let ratio = report.throughput / run_fixed(0, &models, &load).throughput;
        println!("{class:?}: {ratio:.3}, by engine {:?}", report.by_engine);
        assert!(ratio >= 0.95, "{class:?}: {ratio}");
    }
}

#[test]
fn holding_for_company_that_comes_is_kept_up() {
    let models = vec![Model::cpu(10_000.0, 0.0), Model::lanes(30_000.0)];
    for class in [LatencyClass::Interactive, LatencyClass::Bulk] {
        let load = Load { class, says_active: false, ..rsa(32) };
        let report = adaptive(&models, &load, &[]);
        let ratio = report.throughput / best_throughput(&models, &load);
        println!("{class:?}: {ratio:.3}, by engine {:?}", report.by_engine);
        assert!(ratio >= 0.95, "{class:?}: {ratio}");
    }
}

#[test]
fn energy_is_within_5_percent_of_the_most_frugal_engine() {
    for (cpu, device) in [(10.0, 2.0), (2.0, 10.0), (5.0, 5.0)] {
        for clients in [1, 4, 16] {
            let mut models = server();
            (models[0].watts, models[1].watts) = (cpu, device);
            let load = Load { class: LatencyClass::Bulk, ..rsa(clients) };
            let least = (0..2).map(|e| run_fixed(e, &models, &load).energy_nj).fold(f64::INFINITY, f64::min);
            let ratio = adaptive_for(Objective::Energy, &models, &load, &[]).energy_nj / least;
            println!("{cpu} W and {device} W, {clients} clients: {ratio:.3} of the least joules");
            assert!(ratio <= 1.05, "{ratio}");
        }
    }
}

/// Random machines: any service times, servers, widths and sizes. `WATTLOCK_MORE_MACHINES=n` adds n times
/// 120 from seeds that were not looked at.
#[test]
fn on_random_machines_it_is_within_5_percent_of_the_best_fixed_engine() {
    let (mut worst, mut sum, mut below) = ((f64::INFINITY, String::new()), 0.0, 0);
    let more = std::env::var("WATTLOCK_MORE_MACHINES").ok().and_then(|text| text.parse::<u64>().ok());
    let cases: Vec<Case> = seeds(more.unwrap_or(0)).into_iter().flat_map(|seed| random(seed, 120)).collect();
    let machines = cases.len();
    for Case { name, models, kind, sizes, clients } in cases {
        let load = load(kind, &sizes, Ok(clients));
        let report = adaptive(&models, &load, &[]);
        let ratio = report.throughput / best_throughput(&models, &load);
        sum += ratio;
        below += u32::from(ratio < 0.95);
        if ratio < 0.95 {
            let alone: Vec<_> =
                (0..models.len()).map(|one| run_fixed(one, &models, &load).throughput).collect();
            println!("{name}: {ratio:.3}, {clients} clients, {models:?}, {sizes:?}");
            println!(
                "  by engine {:?}, {:.3e} per ns; each alone {alone:?}",
                report.by_engine, report.throughput
            );
        }
        if ratio < worst.0 {
            let engines: Vec<_> = models.iter().map(|one| (one.setup_ns as u64, one.servers)).collect();
            worst = (ratio, format!("{name}, {clients} clients, {engines:?}, sizes {sizes:?}"));
        }
    }
    println!("{machines} machines, {below} below 0.95, worst: {worst:?}, mean {:.3}", sum / machines as f64);
    assert!(worst.0 >= 0.95, "{worst:?}");
}
