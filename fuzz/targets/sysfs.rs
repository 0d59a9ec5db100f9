//! Trees of the kernel as a strange machine may show them, in files `=PATH` and content: clocks, which are set in a copy
//! and put back; counters of energy and power, twice, with any numbers in between; and the record of clocks that a killed
//! process left.
#![no_main]

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use wattlock_clock::{Cpufreq, Governor, survey};
use wattlock_meter::{Meter, Model, Places, Tree};

/// Files in memory; all that begin with the path of a folder are below it.
#[derive(Clone, Default)]
struct Files(BTreeMap<String, String>);

impl Tree for Files {
    fn text(&self, path: &str) -> io::Result<String> {
        self.0.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let below = self.0.keys().filter_map(|name| name.strip_prefix(path)?.strip_prefix('/'));
        let mut names: Vec<String> =
            below.map(|rest| rest.split('/').next().unwrap_or_default().to_owned()).collect();
        names.dedup();
        if names.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(names) }
    }
}

/// The files of a text, and the same files later, where it has some twice.
fn files(text: &str) -> [Files; 2] {
    let (mut first, mut later) = (Files::default(), Files::default());
    for part in text.split("\n=").map(|part| part.strip_prefix('=').unwrap_or(part)) {
        let (path, content) = part.split_once('\n').unwrap_or((part, ""));
        later.0.insert(path.to_owned(), content.to_owned());
        first.0.entry(path.to_owned()).or_insert_with(|| content.to_owned());
    }
    [first, later]
}

/// A tree whose content changes once.
struct Changing([Files; 2], std::sync::atomic::AtomicBool);

impl Tree for Changing {
    fn text(&self, path: &str) -> io::Result<String> {
        self.0[usize::from(self.1.load(std::sync::atomic::Ordering::Relaxed))].text(path)
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        self.0[0].names(path)
    }
}

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let files = files(&text);
    clocks(&files[0]);
    let tree = Arc::new(Changing(files, Default::default()));
    let _ = Model::built_in(&*tree);
    let places = Places { tree: tree.clone(), events: None, nvml: None, boards: None, model: None };
    let mut meter = Meter::discover(&places);
    assert!(meter.notices().iter().all(|line| !line.contains('\n')));
    for end in [2_000_000_000, 0, u64::MAX] {
        meter.start(1_000_000_000);
        tree.1.store(true, std::sync::atomic::Ordering::Relaxed);
        meter.poll(1_500_000_000);
        let reading = meter.finish(end);
        if let Some(total) = reading.total() {
            let _ = format!("{total:?}");
        }
    }
});

fn clocks(files: &Files) {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| wattlock_fuzz::folder("sysfs"));
    let (tree, record) = (folder.join("cpufreq"), folder.join("run/clocks"));
    let _ = std::fs::remove_dir_all(&tree);
    let _ = std::fs::remove_dir_all(folder.join("run"));
    let mut there = false;
    for (path, content) in files.0.iter().take(24) {
        if path == "record" {
            std::fs::create_dir_all(folder.join("run")).expect("our folder");
            // A record names files of its tree only: ours is where the tree is.
            let content = content.replace("TREE", tree.to_str().expect("a plain path"));
            std::fs::write(&record, content).expect("our folder");
            continue;
        }
        let Some((policy, name)) = path.strip_prefix("cpufreq/").and_then(|rest| rest.split_once('/')) else {
            continue;
        };
        let plain = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        if plain(policy) && plain(name) && std::fs::create_dir_all(tree.join(policy)).is_ok() {
            there |= std::fs::write(tree.join(policy).join(name), content).is_ok();
        }
    }
    if !there && !record.exists() {
        return;
    }
    let found = survey(&tree);
    for domain in &found.domains {
        assert!(domain.steps_khz.is_sorted_by(|a, b| a < b));
        assert!(domain.steps_khz.iter().all(|step| *step <= domain.limit_khz));
    }
    let before: Vec<_> = found.domains.iter().map(|one| one.limit_khz).collect();
    let had_record = record.exists();
    // No library of that name: boards that a record names cannot be reset, which is an error.
    let nvml = Some(folder.join("no-nvml.so").into());
    let places = wattlock_clock::Places { tree: tree.clone(), nvml, record: record.clone() };
    let Ok(mut clock) = Cpufreq::open(&places) else { return };
    let steps = clock.steps();
    for step in [0, steps / 2, steps - 1] {
        let _ = clock.set(step);
    }
    assert!(clock.set(steps).is_err());
    drop(clock);
    if !had_record {
        let after: Vec<_> = survey(&tree).domains.iter().map(|one| one.limit_khz).collect();
        assert_eq!(before, after, "a limit was not put back");
    }
}
