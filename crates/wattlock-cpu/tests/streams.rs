//! Messages in pieces: which kinds come that way and what a message costs. That the pieces are right, the conformance
//! suite shows.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Instant;

use wattlock_core::{Data, Engine, Error, Key, Kind, Request, Stream, stream_known_answers};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

#[test]
fn every_aes_kind_comes_in_pieces_and_no_other() {
    let engines: [&dyn Engine; 3] = [&Instruction::new(), &Instruction::with(Cpu::PLAIN), &Software::new()];
    for engine in engines {
        for kind in Kind::ALL {
            let tried = stream_known_answers(engine, *kind);
            match kind.name().starts_with("aes-") {
                true => assert!(tried.is_ok_and(|answers| answers > 0), "{}: {tried:?}", kind.name()),
                false => assert_eq!(tried, Err(Error::Unsupported), "{}", kind.name()),
            }
        }
    }
}

#[test]
fn a_stream_shows_no_secrets() {
    let engines: [&dyn Engine; 2] = [&Instruction::new(), &Software::new()];
    for engine in engines {
        for kind in [Kind::Aes128GcmSeal, Kind::Aes128Ctr] {
            let key = Key::symmetric(kind.info().algorithm, &[0xa7; 16]).unwrap();
            let text = format!("{:?}", engine.stream(kind, &key).unwrap());
            assert!(!text.contains("a7") && !text.contains("167"), "{text}");
        }
    }
}

/// Nanoseconds a call of `work`, the best of several runs.
fn best(bytes: usize, mut work: impl FnMut()) -> f64 {
    let rounds = (40_000_000 / (bytes + 500)) as u32;
    let run = |_| {
        let begun = Instant::now();
        (0..rounds).for_each(|_| work());
        begun.elapsed().as_nanos() as f64 / f64::from(rounds)
    };
    (0..9).map(run).fold(f64::MAX, f64::min)
}

fn message(stream: &mut dyn Stream, nonce: &[u8], aad: &[u8], data: &mut [u8], tag: &mut [u8]) {
    stream.start(nonce).unwrap();
    if !aad.is_empty() {
        stream.aad(aad).unwrap();
    }
    stream.update(Data::InPlace(data)).unwrap();
    stream.finish(tag).unwrap();
}

#[test]
#[ignore = "a measurement, to be run alone: prints nanoseconds a message, whole and in pieces"]
fn cost_of_a_message() {
    let engine = Instruction::new();
    let kinds = [Kind::Aes256GcmSeal, Kind::Aes128Ctr, Kind::Aes256CbcDecrypt, Kind::Aes256XtsEncrypt];
    for kind in kinds {
        let info = kind.info();
        let bytes: Vec<u8> = (0..info.algorithm.key_len().unwrap() as u8).collect();
        let key = Key::symmetric(info.algorithm, &bytes).unwrap();
        let (nonce, aad): (&[u8], &[u8]) = if info.tag > 0 { (&[1; 12], &[2; 13]) } else { (&[3; 16], &[]) };
        let mut stream = engine.stream(kind, &key).unwrap();
        for len in [64, 1024, 16384, 65536] {
            let (mut data, mut tag) = (vec![0u8; len], vec![0u8; info.tag]);
            let pieces = best(len, || message(&mut *stream, nonce, aad, &mut data, &mut tag));
            let whole = best(len, || {
                let request = Request::new(kind, &key, Data::InPlace(&mut data));
                engine.execute(&mut Request { nonce, aad, tag: &mut tag, ..request }).unwrap();
            });
            stream.start(nonce).unwrap();
            let more = best(len, || {
                stream.update(Data::InPlace(&mut data)).unwrap();
            });
            println!(
                "{} {len} bytes: whole {whole:.1} ns, in pieces {pieces:.1} ns ({:.2} GB/s, {:.3} of whole), \
                 one more piece {more:.1} ns",
                kind.name(),
                len as f64 / pieces,
                whole / pieces
            );
        }
    }
}
