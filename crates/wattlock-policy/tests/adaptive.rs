//! What `adaptive` promises, on a machine in virtual time: never more than 5 % behind the best single engine, no
//! flapping, a way back after a fault, and the same answers to the same questions.

mod virtual_machine;

use virtual_machine::{Event, Load, Model, Report, machine, run, run_fixed, run_named};
use wattlock_core::{Kind, LatencyClass};
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

const MIXED: [usize; 6] = [64, 1024, 8 << 10, 16 << 10, 128 << 10, 1 << 20];

/// Name, engines, kind and sizes of the machines that stand for what adaptive meets.
fn machines() -> Vec<(&'static str, Vec<Model>, Kind, Vec<usize>)> {
    let aes = Kind::Aes256CbcEncrypt;
    let rsa = Kind::Rsa2048Private;
    vec![
        (
            "device wins for large requests",
            vec![Model::cpu(100.0, 0.3), Model::device(20_000.0, 0.05, 4)],
            aes,
            MIXED.into(),
        ),
        (
            "device wins under concurrency",
            vec![Model::cpu(30_000.0, 0.0), Model::device(100_000.0, 0.0, 12)],
            rsa,
            vec![256],
        ),
        (
            "device with slow engines, many of them",
            vec![Model::cpu(30_000.0, 0.0), Model::device(1_000_000.0, 0.0, 60)],
            rsa,
            vec![256],
        ),
        (
            "device always wins",
            vec![Model::cpu(30_000.0, 0.0), Model::device(8_000.0, 0.0, 8)],
            rsa,
            vec![256],
        ),
        (
            "device never wins",
            vec![Model::cpu(100.0, 0.05), Model::device(50_000.0, 0.3, 1)],
            aes,
            vec![64, 1024, 4096],
        ),
        ("lanes", vec![Model::cpu(100_000.0, 0.0), Model::lanes(300_000.0)], rsa, vec![256]),
        ("lanes that barely pay", vec![Model::cpu(100_000.0, 0.0), Model::lanes(700_000.0)], rsa, vec![256]),
        (
            "lanes and device",
            vec![Model::cpu(100_000.0, 0.0), Model::lanes(300_000.0), Model::device(400_000.0, 0.0, 10)],
            rsa,
            vec![256],
        ),
    ]
}

#[test]
fn closed_loop_throughput_is_within_5_percent_of_the_best_fixed_engine() {
    let mut worst = (f64::INFINITY, String::new());
    for (name, models, kind, sizes) in machines() {
        for clients in [1, 2, 3, 4, 6, 8, 16, 48] {
            let load = load(kind, &sizes, Ok(clients));
            let fixed: Vec<f64> =
                (0..models.len()).map(|e| run_fixed(e, &models, &load).throughput).collect();
            let best = fixed.iter().copied().fold(0.0, f64::max);
            let adaptive = run_named("adaptive", &models, &load, Objective::Performance);
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
    for (name, models, kind, sizes) in machines() {
        let saturated = load(kind, &sizes, Ok(48));
        let each = (0..models.len()).map(|e| run_fixed(e, &models, &saturated).throughput);
        let capacity = each.fold(0.0, f64::max);
        for share in [0.1, 0.3, 0.5, 0.7, 0.85] {
            let load = load(kind, &sizes, Err(capacity * share));
            let fixed = (0..models.len()).map(|e| run_fixed(e, &models, &load).mean_latency_ns);
            let best = fixed.fold(f64::INFINITY, f64::min);
            let adaptive = run_named("adaptive", &models, &load, Objective::Performance);
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
