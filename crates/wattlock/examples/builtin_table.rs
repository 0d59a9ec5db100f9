//! Measures one of the tables of costs that ship with Wattlock on this machine and prints it as JSON, a point a line.
//! `scripts/measure/builtin-table.sh` calls it and puts the tables in place.
//!
//! `cargo run --release -p wattlock --example builtin_table -- avx512|avx2 COMMIT [MS_PER_POINT [KIND,...]]`
//!
//! `avx512` is the whole table, and refuses a machine whose lanes do not rest on AVX-512 IFMA. `avx2` is the kinds of lanes on
//! AVX2 and FMA, by engines that know of no AVX-512; AWS-LC must be told by its environment, which the script does. With
//! kinds it is those alone; `avx512` then takes a machine without IFMA for kinds whose lanes do not multiply.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use wattlock::calibrate::{Plan, calibrate};
use wattlock_core::{Engine, Kind, KindSet};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::lanes::{Isa, Lanes};
use wattlock_cpu::software::Software;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let milliseconds = words.get(2).map_or(Ok(15), |word| word.parse());
    let (Some(table), Some(commit), Ok(milliseconds)) = (words.first(), words.get(1), milliseconds) else {
        eprintln!("builtin_table avx512|avx2 COMMIT [MS_PER_POINT [KIND,...]]");
        return ExitCode::from(2);
    };
    let only: Option<KindSet> =
        match words.get(3).map(|names| names.split(',').map(Kind::from_name).collect()) {
            None => None,
            Some(Some(kinds)) => Some(kinds),
            Some(None) => {
                eprintln!("{}: not all of these are kinds", words[3]);
                return ExitCode::from(2);
            }
        };
    let here = Cpu::detect();
    let cpu = match table.as_str() {
        "avx512" => here,
        "avx2" => Cpu { vaes512: None, ifma512: None, avx512: None, ..here },
        other => {
            eprintln!("{other} is no table: avx512 or avx2");
            return ExitCode::from(2);
        }
    };
    let lanes = match Isa::best(&cpu) {
        Some(isa) if matches!(isa, Isa::Ifma512(_)) == (table == "avx512") => Lanes::with(isa, cpu),
        Some(isa) if cpu.avx512.is_some() && only.is_some_and(without_products) => Lanes::with(isa, cpu),
        _ => {
            eprintln!("this CPU cannot measure it: the instructions of its lanes are not here");
            return ExitCode::FAILURE;
        }
    };
    let whole = if table == "avx512" { KindSet::ALL } else { lanes.description().inline };
    let kinds = only.unwrap_or(whole);
    let engines: [Arc<dyn Engine>; 3] =
        [Arc::new(Instruction::with(cpu)), Arc::new(Software::new()), Arc::new(lanes)];
    let plan =
        Plan { kinds, concurrency: vec![1], per_point: Duration::from_millis(milliseconds), ..Plan::full(1) };
    let mut profile = calibrate(&engines, &plan, &mut |progress| {
        eprintln!("{} of {}: {} on {}", progress.done, progress.of, progress.kind.name(), progress.engine);
    });
    // Four digits are more than a measurement has.
    profile.points.iter_mut().for_each(|point| point.ns = rounded(point.ns));
    for fit in &mut profile.fits {
        fit.setup_ns = rounded(fit.setup_ns);
        fit.bytes_per_second = fit.bytes_per_second.map(rounded);
        fit.error = (fit.error * 1e4).round() / 1e4;
    }
    print(&json!(profile), commit);
    ExitCode::SUCCESS
}

/// Whether the lanes of these kinds are AVX-512 on every CPU that has it, whatever those of RSA and curves rest on.
fn without_products(kinds: KindSet) -> bool {
    kinds.iter().all(|kind| !kind.is_asymmetric() || kind.name().starts_with("ml-kem"))
}

fn rounded(number: f64) -> f64 {
    format!("{number:.3e}").parse().unwrap_or(number)
}

/// The fields of a profile, with the commit that measured it, a point or a fit on each line.
fn print(profile: &Value, commit: &str) {
    let list = |name: &str| {
        let rows = profile[name].as_array().into_iter().flatten().map(Value::to_string);
        rows.collect::<Vec<_>>().join(",\n")
    };
    println!(
        "{{\"format\":{},\"machine\":{},\"commit\":{},\"measured\":{},\"cores\":{},\"quick\":false,",
        profile["format"],
        profile["machine"],
        json!(commit),
        profile["measured"],
        profile["cores"]
    );
    println!("\"points\":[\n{}\n],\n\"fits\":[\n{}\n]}}", list("points"), list("fits"));
}
