//! This engine beside its peers, in one run: `cargo run --release -p wattlock-cpu --example instruction_speed [BYTES [NAME]]`.
//!
//! AES-CTR, AES-256-GCM and ChaCha20-Poly1305 against the system's OpenSSL and against AWS-LC, GCM also in pieces and under
//! a new key for each message; only those whose name contains NAME. Prints gigabytes (10^9) a second on one core and the ratio. Each figure is the best of three spells of about a second of processor time, taken
//! by turns, so that both sides see the same machine. Buffers are transformed in place, as OpenSSL's are.

use std::process::Command;

use wattlock_core::{Algorithm, Data, Engine, Key, Kind, Request};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;

const ROUNDS: usize = 3;
const SPELL_NS: u64 = 700_000_000;

fn main() {
    let bytes = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(65_536);
    let name = std::env::args().nth(2).unwrap_or_default();
    let engine = Instruction::new();
    println!("{}", engine.description().detail);
    println!("in place, one thread, GB/s");
    for (kind, algorithm) in [
        (Kind::Aes128Ctr, Algorithm::Aes128Ctr),
        (Kind::Aes192Ctr, Algorithm::Aes192Ctr),
        (Kind::Aes256Ctr, Algorithm::Aes256Ctr),
    ] {
        if kind.name().contains(&name) {
            counter_mode(&engine, kind, algorithm, bytes);
        }
    }
    if "aes-256-gcm".contains(&name) {
        for bytes in [16, 64, 256, 1024, 1350, 4096, 16_384, 65_536] {
            galois(&engine, bytes);
        }
    }
    if "chacha20-poly1305".contains(&name) {
        for bytes in [256, 512, 1024, 16_384, 65_536] {
            chacha(&engine, bytes);
        }
    }
}

fn chacha(engine: &Instruction, bytes: usize) {
    let library = Instruction::with(Cpu::PLAIN);
    let (mut seal, mut open, mut theirs, mut aws) = (0f64, 0f64, 0f64, 0f64);
    for _ in 0..ROUNDS {
        seal = seal.max(chacha_seal_speed(engine, bytes));
        theirs = theirs.max(openssl("chacha20-poly1305", bytes).unwrap_or(f64::NAN));
        open = open.max(chacha_open_speed(engine, bytes));
        aws = aws.max(chacha_seal_speed(&library, bytes));
    }
    println!(
        "chacha20-poly1305 of {bytes}: seal {seal:.2}, open {open:.2}, openssl {theirs:.2}, ratio {:.2}, AWS-LC {aws:.2}, ratio {:.2}",
        seal / theirs,
        seal / aws
    );
}

fn counter_mode(engine: &Instruction, kind: Kind, algorithm: Algorithm, bytes: usize) {
    let narrow = Instruction::with(Cpu { vaes512: None, ..Cpu::detect() });
    let library = Instruction::with(Cpu::PLAIN);
    let (mut ours, mut theirs, mut ymm, mut aws) = (0f64, 0f64, 0f64, 0f64);
    for _ in 0..ROUNDS {
        ours = ours.max(ctr_speed(engine, kind, algorithm, bytes));
        theirs = theirs.max(openssl(kind.name(), bytes).unwrap_or(f64::NAN));
        ymm = ymm.max(ctr_speed(&narrow, kind, algorithm, bytes));
        aws = aws.max(ctr_speed(&library, kind, algorithm, bytes));
    }
    println!(
        "{} of {bytes}: wattlock {ours:.2}, openssl {theirs:.2}, ratio {:.2} (256-bit kernel {ymm:.2}, AWS-LC {aws:.2})",
        kind.name(),
        ours / theirs
    );
}

fn galois(engine: &Instruction, bytes: usize) {
    let library = Instruction::with(Cpu::PLAIN);
    let (mut ours, mut aws, mut theirs) = ([0f64; 4], [0f64; 4], 0f64);
    for _ in 0..ROUNDS {
        for (best, engine) in [(&mut ours, engine), (&mut aws, &library)] {
            best[0] = best[0].max(gcm_seal_speed(engine, bytes));
            best[1] = best[1].max(gcm_open_speed(engine, bytes));
            best[2] = best[2].max(gcm_pieces_speed(engine, bytes));
            best[3] = best[3].max(gcm_new_key_speed(engine, bytes));
        }
        theirs = theirs.max(openssl("aes-256-gcm", bytes).unwrap_or(f64::NAN));
    }
    let ratio = |i: usize| ours[i] / aws[i];
    println!(
        "aes-256-gcm of {bytes}: seal {:.3}, openssl {theirs:.3}, ratio {:.2}; to AWS-LC: seal {:.2}, open {:.2}, \
         in pieces {:.2}, under a new key {:.2}",
        ours[0],
        ours[0] / theirs,
        ratio(0),
        ratio(1),
        ratio(2),
        ratio(3)
    );
}

fn ctr_speed(engine: &Instruction, kind: Kind, algorithm: Algorithm, bytes: usize) -> f64 {
    let key = [7; 32];
    let key = &key[..algorithm.key_len().unwrap_or(0)];
    let key = Key::symmetric(algorithm, key).expect("the length is right");
    let (mut buffer, mut iv) = (vec![0u8; bytes], [0u8; 16]);
    spell(bytes, || {
        iv[0] = iv[0].wrapping_add(1);
        let mut request = Request { nonce: &iv, ..Request::new(kind, &key, Data::InPlace(&mut buffer)) };
        engine.execute(&mut request).expect("the request is valid");
    })
}

const GCM_KEY: [u8; 32] = [7; 32];

/// As TLS 1.2's.
const GCM_AAD: [u8; 13] = [5; 13];

fn gcm_once(engine: &Instruction, kind: Kind, key: &Key, data: Data<'_>, nonce: &[u8], tag: &mut [u8; 16]) {
    let request = Request::new(kind, key, data);
    let done = engine.execute(&mut Request { nonce, aad: &GCM_AAD, tag, ..request });
    done.expect("the request is valid");
}

fn gcm_seal_speed(engine: &Instruction, bytes: usize) -> f64 {
    let key = Key::symmetric(Algorithm::Aes256Gcm, &GCM_KEY).expect("the length is right");
    let (mut buffer, mut nonce, mut tag) = (vec![0u8; bytes], 0u128, [0; 16]);
    spell(bytes, || {
        nonce += 1;
        let (kind, data) = (Kind::Aes256GcmSeal, Data::InPlace(&mut buffer));
        gcm_once(engine, kind, &key, data, &nonce.to_le_bytes()[..12], &mut tag);
    })
}

/// Apart: opened in place, a message would be gone.
fn gcm_open_speed(engine: &Instruction, bytes: usize) -> f64 {
    let key = Key::symmetric(Algorithm::Aes256Gcm, &GCM_KEY).expect("the length is right");
    let (mut from, mut to, nonce, mut tag) = (vec![0u8; bytes], vec![0u8; bytes], [0; 12], [0; 16]);
    gcm_once(engine, Kind::Aes256GcmSeal, &key, Data::InPlace(&mut from), &nonce, &mut tag);
    spell(bytes, || {
        let data = Data::Apart { from: &from, to: &mut to };
        gcm_once(engine, Kind::Aes256GcmOpen, &key, data, &nonce, &mut tag);
    })
}

/// As the OpenSSL provider does a record.
fn gcm_pieces_speed(engine: &Instruction, bytes: usize) -> f64 {
    let key = Key::symmetric(Algorithm::Aes256Gcm, &GCM_KEY).expect("the length is right");
    let mut stream = engine.stream(Kind::Aes256GcmSeal, &key).expect("GCM comes in pieces");
    let (mut buffer, mut nonce, mut tag) = (vec![0u8; bytes], 0u128, [0; 16]);
    spell(bytes, || {
        nonce += 1;
        stream.start(&nonce.to_le_bytes()[..12]).expect("the nonce is valid");
        stream.aad(&GCM_AAD).expect("a message has begun");
        stream.update(Data::InPlace(&mut buffer)).expect("the length is valid");
        stream.finish(&mut tag).expect("the tag's length is valid");
    })
}

/// What a key costs that seals one message.
fn gcm_new_key_speed(engine: &Instruction, bytes: usize) -> f64 {
    let (mut buffer, mut number, mut tag) = (vec![0u8; bytes], 0u8, [0; 16]);
    spell(bytes, || {
        number = number.wrapping_add(1);
        let key = Key::symmetric(Algorithm::Aes256Gcm, &[number; 32]).expect("the length is right");
        gcm_once(engine, Kind::Aes256GcmSeal, &key, Data::InPlace(&mut buffer), &[1; 12], &mut tag);
    })
}

fn chacha_seal_speed(engine: &Instruction, bytes: usize) -> f64 {
    let key = Key::symmetric(Algorithm::ChaCha20Poly1305, &[7; 32]).expect("the length is right");
    let (mut buffer, mut nonce, mut tag) = (vec![0u8; bytes], 0u128, [0; 16]);
    spell(bytes, || {
        nonce += 1;
        let nonce = &nonce.to_le_bytes()[..12];
        let request = Request::new(Kind::ChaCha20Poly1305Seal, &key, Data::InPlace(&mut buffer));
        engine.execute(&mut Request { nonce, tag: &mut tag, ..request }).expect("the request is valid");
    })
}

/// Apart: opened in place, a message would be gone.
fn chacha_open_speed(engine: &Instruction, bytes: usize) -> f64 {
    let key = Key::symmetric(Algorithm::ChaCha20Poly1305, &[7; 32]).expect("the length is right");
    let (mut from, mut to, nonce, mut tag) = (vec![0u8; bytes], vec![0u8; bytes], [0; 12], [0; 16]);
    let request = Request::new(Kind::ChaCha20Poly1305Seal, &key, Data::InPlace(&mut from));
    engine.execute(&mut Request { nonce: &nonce, tag: &mut tag, ..request }).expect("the request is valid");
    spell(bytes, || {
        let data = Data::Apart { from: &from, to: &mut to };
        let request = Request::new(Kind::ChaCha20Poly1305Open, &key, data);
        engine.execute(&mut Request { nonce: &nonce, tag: &mut tag, ..request }).expect("the tag is right");
    })
}

/// Bytes a nanosecond of processor time, over a spell: what `openssl speed` measures too.
fn spell(bytes: usize, mut once: impl FnMut()) -> f64 {
    let (start, mut calls) = (processor_ns(), 0usize);
    loop {
        for _ in 0..(8_000_000 / bytes.max(16)).max(1) {
            once();
            calls += 1;
        }
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
