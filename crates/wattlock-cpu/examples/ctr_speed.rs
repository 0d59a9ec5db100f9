//! AES-CTR of this engine beside the system's OpenSSL, in one run: `cargo run --release --example ctr_speed`.
//!
//! Prints gigabytes (10^9) a second on one core and the ratio, for each key length. Each figure is the
//! best of three spells of about a second of processor time, ours and OpenSSL's by turns, so that both see the same
//! machine. Buffers are transformed in place, as OpenSSL's are.

use std::hint::black_box;
use std::process::Command;

use wattlock_core::{Algorithm, Data, Engine, Key, Kind, Request};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;

const ROUNDS: usize = 3;
const SPELL_NS: u64 = 700_000_000;

fn main() {
    let bytes = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(65_536);
    let engine = Instruction::new();
    println!("{}", engine.description().detail);
    println!("{bytes} bytes, in place, one thread, GB/s");
    let narrow = Instruction::with(Cpu { vaes512: None, ..Cpu::detect() });
    let library = Instruction::with(Cpu::PLAIN);
    let kinds = [
        (Kind::Aes128Ctr, Algorithm::Aes128Ctr),
        (Kind::Aes192Ctr, Algorithm::Aes192Ctr),
        (Kind::Aes256Ctr, Algorithm::Aes256Ctr),
    ];
    for (kind, algorithm) in kinds {
        let (mut ours, mut theirs, mut ymm, mut aws) = (0f64, 0f64, 0f64, 0f64);
        for _ in 0..ROUNDS {
            ours = ours.max(speed(&engine, kind, algorithm, bytes));
            theirs = theirs.max(openssl(kind.name(), bytes).unwrap_or(f64::NAN));
            ymm = ymm.max(speed(&narrow, kind, algorithm, bytes));
            aws = aws.max(speed(&library, kind, algorithm, bytes));
        }
        println!(
            "{}: wattlock {ours:.2}, openssl {theirs:.2}, ratio {:.2} (256-bit kernel {ymm:.2}, AWS-LC {aws:.2})",
            kind.name(),
            ours / theirs
        );
    }
}

/// Bytes a nanosecond of processor time over about `SPELL_NS`: what `openssl speed` measures too.
fn speed(engine: &Instruction, kind: Kind, algorithm: Algorithm, bytes: usize) -> f64 {
    let key =
        Key::symmetric(algorithm, &[7; 32][..algorithm.key_len().unwrap_or(0)]).expect("the length is right");
    let mut buffer = vec![0u8; bytes];
    let mut iv = [0u8; 16];
    let (start, mut calls) = (processor_ns(), 0usize);
    loop {
        for _ in 0..200 {
            iv[0] = iv[0].wrapping_add(1);
            let data = Data::InPlace(&mut buffer);
            let mut request = Request { nonce: &iv, ..Request::new(kind, &key, data) };
            black_box(engine.execute(&mut request)).expect("the request is valid");
        }
        calls += 200;
        let spent = processor_ns() - start;
        if spent > SPELL_NS {
            return (calls * bytes) as f64 / spent as f64;
        }
    }
}

/// Processor time of this thread in nanoseconds (`proc_pid_schedstat`: time spent on the CPU).
fn processor_ns() -> u64 {
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse().ok())
        .expect("the kernel counts processor time")
}

/// What `openssl speed` says of the same work.
fn openssl(name: &str, bytes: usize) -> Option<f64> {
    let size = bytes.to_string();
    let output = Command::new("openssl")
        .args(["speed", "-mr", "-evp", name, "-bytes", &size, "-seconds", "1"])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let last = text.lines().rfind(|line| line.starts_with("+F:"))?;
    let speed: f64 = last.rsplit(':').next()?.trim().parse().ok()?;
    Some(speed / 1e9)
}
