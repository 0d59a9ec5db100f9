//! RSA in lanes and in the system's OpenSSL, in turn: what each instruction set of this CPU is worth, the narrower ones, too.
//!
//! `cargo run --release -p wattlock-cpu --example lanes_pairs [ROUNDS]`
//!
//! A round is `openssl speed` for a second and full batches of eight for a third of one, both in processor time. Printed are
//! medians, and the median of the rounds' ratios with its quartiles. Beside lanes on AVX2 OpenSSL is told to leave AVX-512
//! unused, too (OPENSSL_ia32cap), as it would on a CPU that has none.

use std::process::{Command, ExitCode};

use wattlock_core::{Engine, Error, Kind, OwnedRequest, known_answers};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::lanes::{Isa, Item, Lanes, WIDTH};

const ROWS: [(Kind, &str); 3] =
    [(Kind::Rsa2048Private, "rsa2048"), (Kind::Rsa3072Private, "rsa3072"), (Kind::Rsa4096Private, "rsa4096")];

/// Seconds of ours in a round.
const SPELL: f64 = 0.33;

/// CPUID leaf 7, EBX: AVX-512 F, DQ, IFMA, CD, BW and VL.
const WITHOUT_AVX512: &str = ":~0xd0230000";

fn main() -> ExitCode {
    let rounds = std::env::args().nth(1).map_or(Ok(9), |word| word.parse::<usize>());
    let Ok(rounds @ 1..) = rounds else {
        println!("lanes_pairs [ROUNDS]");
        return ExitCode::from(2);
    };
    for isa in Isa::all(&Cpu::detect()) {
        let lanes = Lanes::new(isa);
        println!("{}; signatures a second, medians of {rounds} rounds", isa.name());
        println!("{:18} {:>8} {:>8} {:>6}  quartiles", "", "lanes", "openssl", "ratio");
        for (kind, name) in ROWS {
            let mut batch = batch(kind);
            pass(&lanes, kind, &mut batch);
            let hidden = if matches!(isa, Isa::Fma256(_)) { WITHOUT_AVX512 } else { "" };
            let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..rounds {
                let Some(rate) = openssl(name, hidden) else {
                    println!("openssl speed {name} gave no figure");
                    return ExitCode::FAILURE;
                };
                theirs.push(rate);
                ours.push(rate_of(&lanes, kind, &mut batch));
                ratios.extend(ours.last().map(|ours| ours / rate));
            }
            let [low, ratio, high] = [0.25, 0.5, 0.75].map(|part| quantile(&mut ratios, part));
            let (ours, theirs) = (quantile(&mut ours, 0.5), quantile(&mut theirs, 0.5));
            println!("{:18} {ours:>8.0} {theirs:>8.0} {ratio:>6.2}  {low:.2} to {high:.2}", kind.name());
        }
    }
    ExitCode::SUCCESS
}

fn batch(kind: Kind) -> Vec<OwnedRequest> {
    let count = known_answers(kind).len();
    (0..WIDTH).map(|lane| known_answers(kind).swap_remove(lane % count).request).collect()
}

fn pass(lanes: &Lanes, kind: Kind, batch: &mut [OwnedRequest]) {
    let item = |request| Item { request, result: Err(Error::Unsupported) };
    let mut items: Vec<Item<'_>> = batch.iter_mut().map(|request| item(request.view())).collect();
    lanes.execute_all(&mut items);
    assert!(
        items.iter().all(|item| item.result.is_ok()),
        "{} failed on {}",
        kind.name(),
        lanes.description().detail
    );
}

/// Operations a second.
fn rate_of(lanes: &Lanes, kind: Kind, batch: &mut [OwnedRequest]) -> f64 {
    let (start, mut done) = (processor_seconds(), 0);
    loop {
        pass(lanes, kind, batch);
        done += WIDTH;
        let passed = processor_seconds() - start;
        if passed > SPELL {
            return done as f64 / passed;
        }
    }
}

fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the structure that it is given; a thread always has that clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// `+F2:2:2048:4213.0:142857.1`: bits, private operations a second, public ones.
fn openssl(name: &str, hidden: &str) -> Option<f64> {
    let mut command = Command::new("openssl");
    command.args(["speed", "-mr", "-seconds", "1", name]);
    if !hidden.is_empty() {
        command.env("OPENSSL_ia32cap", hidden);
    }
    let text = String::from_utf8(command.output().ok()?.stdout).ok()?;
    text.lines().rev().find(|line| line.starts_with("+F"))?.split(':').nth(3)?.parse().ok()
}

fn quantile(sample: &mut [f64], part: f64) -> f64 {
    sample.sort_unstable_by(f64::total_cmp);
    sample[((sample.len() - 1) as f64 * part).round() as usize]
}
