//! ML-KEM-768, SHA-3 and SHAKE in lanes and by AWS-LC (`instruction`), in turn, in processor time.
//!
//! `cargo run --release -p wattlock-cpu --example lanes_kem [ROUNDS]`
//!
//! A round is 20 ms of each side. Printed are medians of microseconds a request, and the median of the rounds' ratios with its
//! quartiles. AWS-LC does one request after the other, each from the bytes of its key, as a handshake has them. The lanes
//! are those of AVX-512, if the CPU has any, then those of AVX2.

use wattlock_core::{Data, Engine, Item, Key, Kind, ML_KEM_768_PUBLIC, Request};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::lanes::{Isa, Lanes};

/// Requests in a call.
const BATCHES: [usize; 5] = [1, 2, 4, 8, 16];

fn main() {
    let rounds = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(15usize).max(1);
    let cpu = Cpu::detect();
    let Some(isa) = Isa::best(&cpu) else {
        println!("no lanes on this CPU");
        return;
    };
    let narrow = Cpu { avx512: None, vaes512: None, ..cpu };
    let library = Instruction::new();
    for cpu in [Some(cpu).filter(|cpu| cpu.avx512.is_some()), Some(narrow)].into_iter().flatten() {
        let lanes = Lanes::with(isa, cpu);
        println!("{}; medians of {rounds} rounds, us a request", lanes.description().detail);
        println!("{:26} {:>5} {:>8} {:>8} {:>6}  quartiles", "", "batch", "lanes", "AWS-LC", "ratio");
        for kind in [
            Kind::MlKem768Generate,
            Kind::MlKem768Encapsulate,
            Kind::MlKem768Decapsulate,
            Kind::Sha3_256,
            Kind::Shake256,
        ] {
            if lanes.description().inline.contains(kind) {
                BATCHES.iter().for_each(|batch| compare(&lanes, &library, kind, *batch, rounds));
            }
        }
    }
}

/// The parts of a request.
struct Parts {
    key: Option<Vec<u8>>,
    nonce: Vec<u8>,
    input: Vec<u8>,
    output: Vec<u8>,
}

fn parts(library: &Instruction, kind: Kind, number: usize) -> Parts {
    let bytes = |len: usize| (0..len).map(|at| (at * 7 + number * 31 + 1) as u8).collect::<Vec<u8>>();
    let run = |kind, nonce: &[u8], input: &[u8], room: usize| {
        let mut output = vec![0; room];
        let data = Data::Apart { from: input, to: &mut output };
        let mut request = Request { nonce, ..Request::new(kind, Key::none(), data) };
        library.execute(&mut request).expect("AWS-LC does it");
        output
    };
    let (key, input) = match kind {
        Kind::MlKem768Generate => (None, Vec::new()),
        Kind::MlKem768Encapsulate => {
            (None, run(Kind::MlKem768Generate, &bytes(64), &[], 2400)[ML_KEM_768_PUBLIC].to_vec())
        }
        Kind::MlKem768Decapsulate => {
            let key = run(Kind::MlKem768Generate, &bytes(64), &[], 2400);
            let public = &key[ML_KEM_768_PUBLIC];
            let ciphertext = run(Kind::MlKem768Encapsulate, &bytes(32), public, 1120)[..1088].to_vec();
            (Some(key), ciphertext)
        }
        _ => (None, bytes(1184)),
    };
    let nonce = match kind {
        Kind::MlKem768Generate => bytes(64),
        Kind::MlKem768Encapsulate => bytes(32),
        _ => Vec::new(),
    };
    Parts { key, nonce, input, output: vec![0; kind.info().output.unwrap_or(128)] }
}

fn compare(lanes: &Lanes, library: &Instruction, kind: Kind, batch: usize, rounds: usize) {
    let mut work: Vec<Parts> = (0..batch).map(|number| parts(library, kind, number)).collect();
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    time(lanes, kind, &mut work, 2_000_000);
    for _ in 0..rounds {
        ours.push(time(lanes, kind, &mut work, 20_000_000));
        theirs.push(time(library, kind, &mut work, 20_000_000));
        ratios.extend(theirs.last().zip(ours.last()).map(|(theirs, ours)| theirs / ours));
    }
    let [low, ratio, high] = [0.25, 0.5, 0.75].map(|part| quantile(&mut ratios, part));
    let (ours, theirs) = (quantile(&mut ours, 0.5), quantile(&mut theirs, 0.5));
    println!("{:26} {batch:>5} {ours:>8.2} {theirs:>8.2} {ratio:>6.2}  {low:.2} to {high:.2}", kind.name());
}

/// Microseconds of processor time that a request takes. A key object is new with each call, as a handshake's is.
fn time(engine: &dyn Engine, kind: Kind, work: &mut [Parts], spell_ns: u64) -> f64 {
    let (start, mut calls) = (processor_ns(), 0);
    loop {
        let keys: Vec<Option<Key>> = work
            .iter()
            .map(|parts| parts.key.as_ref().map(|key| Key::ml_kem_768(key).expect("the suite's length")))
            .collect();
        let mut items: Vec<Item<'_>> = work
            .iter_mut()
            .zip(&keys)
            .map(|(Parts { nonce, input, output, .. }, key)| {
                let data = Data::Apart { from: input, to: output };
                let key = key.as_ref().unwrap_or(Key::none());
                Item::new(Request { nonce, ..Request::new(kind, key, data) })
            })
            .collect();
        engine.execute_all(&mut items);
        assert!(items.iter().all(|item| item.result.is_ok()), "{}", kind.name());
        calls += 1;
        let spent = processor_ns() - start;
        if spent >= spell_ns {
            return spent as f64 / 1e3 / (calls * work.len()) as f64;
        }
    }
}

fn quantile(numbers: &mut [f64], part: f64) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[((numbers.len() - 1) as f64 * part).round() as usize]
}

/// Processor time of this thread.
#[allow(unsafe_code, reason = "the clock")]
fn processor_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
