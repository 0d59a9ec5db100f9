//! What the runtime adds: the same request through a dispatcher and straight into the engine, in turn; and the
//! instruction engine against `aws-lc-rs` called directly.

use std::cell::{Cell, RefCell};

use anyhow::{Context, Result};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use clap::Args;
use wattlock_core::{Algorithm, Data, Engine, Key, Kind, Request};
use wattlock_cpu::instruction::Instruction;
use wattlock_shell::setup::{self, Choice};
use wattlock_shell::text;

use super::machine_line;
use super::pair::{self, Better, Gain};
use super::record::{By, Record, Row};

/// Which sizes.
#[derive(Debug, Args)]
pub struct Settings {
    /// Request sizes
    #[arg(long = "size", value_parser = text::parse_request_bytes, value_delimiter = ',',
          default_values_t = [16, 64, 256, 1024, 4096, 16_384])]
    sizes: Vec<usize>,
    /// Rounds of each, in turn
    #[arg(long, default_value_t = 41, value_parser = clap::value_parser!(u32).range(3..=1000))]
    rounds: u32,
}

const NONCE: [u8; 12] = [7; 12];

/// Runs the benchmark.
pub fn run(settings: &Settings, choice: &Choice, mut record: Record) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let mut dispatcher = runtime.dispatcher();
    let engine = Instruction::new();
    let bytes = [0x42; 32];
    let key = Key::symmetric(Algorithm::Aes256Gcm, &bytes)?;
    let peer = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).ok().context("aws-lc-rs took no key")?);
    let peer_name = concat!("aws-lc-rs ", env!("WATTLOCK_AWS_LC_RS"));
    record.peer("aws-lc-rs", env!("WATTLOCK_AWS_LC_RS"));
    let mut rows = Vec::new();
    for &size in &settings.sizes {
        // One buffer for all: where a buffer lies moves these figures by more than what is measured here.
        let buffer = RefCell::new(vec![1_u8; size]);
        let tag = RefCell::new([0; 16]);
        let failed = Cell::new(false);
        let mut direct = || {
            let result = engine.execute(&mut request(&key, &mut buffer.borrow_mut(), &mut *tag.borrow_mut()));
            failed.set(failed.get() | result.is_err());
        };
        let calls = pair::calls_for(200_000.0, &mut direct);
        let mut through = || {
            let result = dispatcher.run(&mut request(&key, &mut buffer.borrow_mut(), &mut *tag.borrow_mut()));
            failed.set(failed.get() | result.is_err());
        };
        let mut theirs = || {
            let nonce = Nonce::assume_unique_for_key(NONCE);
            let sealed = peer.seal_in_place_separate_tag(nonce, Aad::empty(), &mut buffer.borrow_mut());
            // They hand the tag out; we write it where the caller wants it. Both end with a tag in memory.
            let written = sealed.map(|sealed| tag.borrow_mut().copy_from_slice(sealed.as_ref()));
            failed.set(failed.get() | written.is_err());
        };
        let times = pair::in_turn(&mut [&mut direct, &mut through, &mut theirs], calls, settings.rounds);
        anyhow::ensure!(!failed.get(), "a request failed");
        let added = pair::difference(&times[1], &times[0]);
        let Some(gain) = Gain::of(&times[1], &times[2], Better::Less) else { continue };
        let rounds = settings.rounds as usize;
        let row = Row::compared("dispatch", "aes-256-gcm-seal", "ns", By::Cpu, gain).against(peer_name);
        record.add(row.param("bytes", size).detail("engine_alone_ns", pair::median(times[0].clone())));
        record.add(Row::alone("dispatch", "added", "ns", By::Cpu, added, rounds).param("bytes", size));
        rows.push(vec![
            text::bytes(size as u64),
            text::nanos(pair::median(times[0].clone())),
            format!("{added:.1} ns"),
            text::nanos(gain.ours),
            text::nanos(gain.theirs),
            gain.to_string(),
        ]);
    }
    if record.shows() {
        say!("aes-256-gcm-seal in place, processor time; {}", machine_line());
        let header = ["size", "engine alone", "the runtime adds", "through the runtime", peer_name, "gain"];
        put!("{}", text::table(&header, &rows));
        say!("the runtime adds: the median of its rounds' differences; the next three are of one round");
        say!("{}", pair::LEGEND);
    }
    record.finish()
}

fn request<'a>(key: &'a Key, buffer: &'a mut [u8], tag: &'a mut [u8]) -> Request<'a> {
    Request { nonce: &NONCE, tag, ..Request::new(Kind::Aes256GcmSeal, key, Data::InPlace(buffer)) }
}
