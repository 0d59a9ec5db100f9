//! Profiles that a user edited, or a disk spoiled: what is no profile is refused with the file's name, and with
//! whatever is one a runtime comes up, chooses, and gives right results. Mutations are random, with a fixed seed (or
//! that of `make soak`); no coverage guides them, because a fuzzer's build would have to have every engine in it.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;

use wattlock::policy::{NAMES, Settings};
use wattlock::profile::Fit;
use wattlock::{Profile, Runtime};
use wattlock_core::dev::Random;
use wattlock_core::{Data, Key, Kind, Request};

const KINDS: [Kind; 2] = [Kind::Sha256, Kind::Sha512];

/// In place of a number: the edges of what the fields hold, and beyond.
const NUMBERS: [&str; 14] = [
    "0",
    "-0.0",
    "-1",
    "1",
    "5e-324",
    "1.7976931348623157e308",
    "-1e308",
    "1e999",
    "0.1",
    "65535",
    "65536",
    "18446744073709551615",
    "18446744073709551616",
    "null",
];

/// The built-in table's part about a few kinds, as it would lie on disk.
fn right() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("right.json");
    let mut profile = Profile::built_in();
    let ours = |kind: &str| KINDS.iter().any(|one| one.name() == kind);
    profile.points.retain(|point| ours(&point.kind));
    for engine in ["software", "instruction"] {
        let kind = KINDS[0].name().to_owned();
        let bytes_per_second = (engine == "software").then_some(1.5e9);
        profile.fits.push(Fit { engine: engine.into(), kind, setup_ns: 10.5, bytes_per_second, error: 0.1 });
    }
    profile.save(&path).unwrap();
    fs::read(&path).unwrap()
}

/// Where a number stands, at or behind `from`.
fn number(text: &[u8], from: usize) -> Option<std::ops::Range<usize>> {
    let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    let start = from + text[from..].iter().position(u8::is_ascii_digit)?;
    let len = text[start..].iter().position(|byte| !is_part(byte))?;
    Some(start..start + len)
}

fn mutate(text: &mut Vec<u8>, random: &Random) {
    if text.is_empty() {
        return;
    }
    let at = random.below(text.len());
    match random.below(10) {
        0 => text[at] ^= 1 << random.below(8),
        1 => text.truncate(at),
        2 => {
            let end = (at + random.below(200)).min(text.len());
            drop(text.drain(at..end));
        }
        3 => {
            let end = (at + random.below(200)).min(text.len());
            let again = text[at..end].to_vec();
            drop(text.splice(at..at, again));
        }
        _ => {
            if let Some(range) = number(text, at) {
                drop(text.splice(range, random.pick(&NUMBERS).bytes()));
            }
        }
    }
}

/// Digests of a few lengths, inline, as the profile has them chosen.
fn works(runtime: &Runtime) {
    let mut dispatcher = runtime.dispatcher();
    for kind in KINDS {
        for len in [0, 64, 5000] {
            let (from, mut to) = (vec![7; len], [0; 64]);
            let data = Data::Apart { from: &from, to: &mut to };
            let written = dispatcher.run(&mut Request::new(kind, Key::none(), data)).unwrap();
            let mut expected = [0; 64];
            let data = Data::Apart { from: &from, to: &mut expected };
            let software = wattlock_cpu::software::Software::new();
            wattlock_core::Engine::execute(&software, &mut Request::new(kind, Key::none(), data)).unwrap();
            assert_eq!(to[..written], expected[..written], "{}", kind.name());
        }
    }
}

#[test]
fn no_text_of_a_profile_keeps_a_runtime_from_working() {
    let seed = std::env::var("WATTLOCK_SOAK_SEED").ok().and_then(|text| text.parse().ok());
    let random = Random::new(seed.unwrap_or(0x70_726f_6669_6c65));
    let (folder, right) = (tempfile::tempdir().unwrap(), right());
    let path = folder.path().join("profile.json");
    let (mut read, mut refused) = (0, 0);
    for round in 0..600 {
        let mut text = right.clone();
        (0..=random.below(4)).for_each(|_| mutate(&mut text, &random));
        fs::write(&path, &text).unwrap();
        match Profile::load(&path) {
            Err(error) => {
                refused += 1;
                let error = error.to_string();
                assert!(error.contains("profile.json") && !error.contains('\n'), "{error}");
            }
            Ok(profile) => {
                read += 1;
                let policy = NAMES[round % NAMES.len()];
                let builder = Runtime::builder().telemetry(false).policy(policy, Settings::default());
                works(&builder.profile(profile).build().unwrap());
            }
        }
    }
    assert!(read > 100 && refused > 100, "{read} read, {refused} refused");
}
