//! Telemetry files of other processes, whose header is JSON and whose counters are anybody's; and profiles, which are
//! JSON as well. What is read can be shown and adds up; what is a profile says for which machine and gives curves that
//! ascend.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use wattlock::core::Kind;
use wattlock::telemetry::parse;
use wattlock::{Profile, own_engines};

const HEADER: usize = 64 * 1024;

fn place() -> &'static PathBuf {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| wattlock_fuzz::folder("telemetry").join("profile.json"))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((how, bytes)) = bytes.split_first() else { return };
    if how % 2 == 0 {
        let (json, counters) =
            bytes.split_at(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
        let mut file = json.to_vec();
        file.resize(HEADER.max(json.len()), 0);
        file.extend(counters.iter().cycle().take(counters.len().min(1) * 20_000));
        let Some(snapshot) = parse(&file) else { return };
        let shown = serde_json::to_string(&snapshot).expect("it can be shown");
        assert!(!shown.contains('\u{1b}'));
        for cell in &snapshot.cells {
            let _ = (cell.mean_ns(), cell.mean_held_ns(), cell.mean_batch(), cell.queued());
        }
        return;
    }
    std::fs::write(place(), bytes).expect("our folder");
    let Ok(profile) = Profile::load(place()) else { return };
    static HERE: OnceLock<wattlock::profile::MachineKey> = OnceLock::new();
    let here = HERE.get_or_init(|| wattlock::profile::MachineKey::here(&own_engines()));
    let _ = profile.stale(here);
    for engine in ["software", "instruction", "lanes"] {
        for kind in [Kind::Sha256, Kind::Aes256GcmSeal] {
            let curve = profile.curve(engine, kind);
            assert!(curve.is_sorted_by_key(|(bytes, ..)| *bytes));
            let _ = profile.batches(engine, kind);
        }
    }
    profile.save(place()).expect("our folder");
    Profile::load(place()).expect("what was written is read");
});
