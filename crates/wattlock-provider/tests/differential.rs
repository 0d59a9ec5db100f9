//! OpenSSL's default provider and Wattlock's beside each other: random calls on both, compared (`beside`).
//!
//! Each kind of sequence runs from fixed seeds. `SURVEY=1 WATTLOCK_BESIDE=1000000,7 cargo test -p wattlock-provider --test
//! differential ciphers -- --nocapture` makes more and lists all differences; `COUNTS=1` lists the calls. The fuzz target
//! `differential` makes the same calls of a fuzzer's bytes.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

mod beside;

use std::sync::OnceLock;

use beside::Beside;

fn both() -> &'static Beside {
    static BOTH: OnceLock<(tempfile::TempDir, Beside)> = OnceLock::new();
    let (_, both) = BOTH.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let both = Beside::load(folder.path());
        (folder, both)
    });
    both
}

/// Sequences of a kind from a seed. `WATTLOCK_BESIDE=COUNT,SEED` makes them more or others, `WATTLOCK_BESIDE=HEX` is
/// one that a difference named; with `SURVEY=1` all differences are listed.
fn run(kind: u8, count: usize) {
    let (mut count, mut seed) = (count, 1);
    let asked = std::env::var("WATTLOCK_BESIDE").ok();
    if let Some(text) = asked.as_ref().filter(|text| text.len() > 40) {
        let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..text.len() / 2).map(|at| byte(2 * at)).collect();
        return beside::sequence(both(), &bytes);
    }
    if let Some(text) = asked {
        let mut parts = text.split(',').map(|part| part.parse().unwrap());
        count = parts.next().unwrap() as usize;
        seed = parts.next().unwrap_or(1);
    }
    if std::env::var_os("SURVEY").is_some() {
        beside::survey();
        beside::seeded(both(), seed, count, Some(kind));
        for (what, (times, example)) in beside::surveyed() {
            println!("== {times} x {what}\n  {example}");
        }
    } else {
        beside::seeded(both(), seed, count, Some(kind));
    }
    if std::env::var_os("COUNTS").is_none() {
        return;
    }
    for (call, [all, good]) in beside::COMPARED.lock().unwrap().iter() {
        println!("{call}: {all} calls, {good} good");
    }
}

#[test]
fn ciphers_do_what_the_default_providers_do_in_any_order_of_calls() {
    run(0, 100_000);
}

#[test]
fn derivations_do_what_the_default_providers_do_in_any_order_of_calls() {
    run(4, 100_000);
}

#[test]
fn keys_do_what_the_default_providers_do_in_any_order_of_calls() {
    run(5, 2_500);
}
