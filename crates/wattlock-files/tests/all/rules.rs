//! What the published rules make of a sealed file with a card, in virtual time.
#![cfg(feature = "runtime")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use common::card::{Alone, Machine, on_card};
use common::{Pair, progress};
use wattlock::Runtime;
use wattlock_core::Kind;
use wattlock_door::Output;
use wattlock_files::Input;

/// A file of so many MiB of zeroes, which takes no room.
fn file(mib: u64) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plain");
    std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
    (folder, path)
}

/// Seals a file on one thread.
fn seal(path: &std::path::Path, runtime: &Runtime) {
    let to = Output::Stream(Box::new(std::io::sink()));
    Pair::new().sealer().seal(Input::Path(path.into()), to, &Alone(runtime), progress()).unwrap();
}

/// Virtual nanoseconds for 64 MiB by the CPU alone, by the card alone and under `eeca`, and the pieces that the card then did.
fn took(
    path: &std::path::Path,
    window: u32,
    cpu: fn(Kind, usize) -> f64,
    settings: &[&str],
) -> ([u64; 3], u64) {
    let mut pieces = 0;
    let took = ["instruction", "offload", "eeca"].map(|policy| {
        let machine = Machine { window, pretends: true, ..Machine::new(cpu) };
        let runtime = machine.runtime(policy, settings);
        // The card gives its known answers, and the rule sees times.
        seal(path, &runtime);
        let (time, before) = (machine.time.now(), on_card(&runtime, Kind::Aes256GcmSeal));
        seal(path, &runtime);
        pieces = on_card(&runtime, Kind::Aes256GcmSeal) - before;
        machine.time.now() - time
    });
    (took, pieces)
}

#[test]
fn seal_eeca_64_mib_dh8970_windows_of_8_to_256_is_at_most_5_percent_behind_the_faster_of_cpu_and_card() {
    let (_folder, path) = file(64);
    // What a CPU takes for 16 KiB: 0.7 us by the built-in table, 2.5 us, 7.5 us. One of the card's servers takes 27 us.
    let cpus: [fn(Kind, usize) -> f64; 3] = [
        |_, bytes| bytes as f64 * 0.7 / 16.384,
        |_, bytes| bytes as f64 * 2.5 / 16.384,
        |_, bytes| bytes as f64 * 7.5 / 16.384,
    ];
    for (at, cpu) in cpus.into_iter().enumerate() {
        for window in [8, 32, 64, 256] {
            let ([alone, card, eeca], pieces) = took(&path, window, cpu, &[]);
            let ratio = eeca as f64 / alone.min(card) as f64;
            println!(
                "SIMULATED cpu {at}, window {window}: {alone}, {card}, {eeca}: {ratio:.2}, card {pieces}"
            );
            assert!(ratio <= 1.05, "cpu {at}, window {window}: {ratio}");
            assert!((1..4097).contains(&pieces), "cpu {at}, window {window}: {pieces} of 4097 on the card");
        }
    }
    // A window that holds a segment is never full: the card has all of it, and the thread waits.
    let ([alone, _, eeca], pieces) = took(&path, 64, cpus[0], &["busy_permille=1000"]);
    println!("SIMULATED by the window alone: {:.2}, card {pieces}", eeca as f64 / alone as f64);
    assert!(eeca > 2 * alone && pieces >= 4096, "{eeca}, {alone}, {pieces}");
}

#[test]
fn a_cpu_as_slow_as_one_of_the_cards_servers_costs_eeca_something_where_the_window_is_smaller_than_the_servers()
 {
    let (_folder, path) = file(64);
    let ratio = |window| {
        let ([cpu, card, eeca], _) = took(&path, window, |_, bytes| bytes as f64 * 27.0 / 16.384, &[]);
        eeca as f64 / cpu.min(card) as f64
    };
    let ratios = [8, 32, 64, 256].map(ratio);
    println!("SIMULATED windows of 8, 32, 64, 256: {ratios:.2?}");
    // A window of 8 and a thread do 9 pieces at a time, and a segment has 64.
    assert!(ratios[0] < 1.2 && ratios[1..].iter().all(|ratio| *ratio <= 1.05), "{ratios:?}");
}
