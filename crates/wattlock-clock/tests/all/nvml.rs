//! A GPU's clocks, by a library that is not NVIDIA's and keeps its state in files, as a board does beyond a process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::fake;

use std::fs;
use std::path::PathBuf;

use fake::Fake;
use wattlock_clock::{Error, Governor, Locked, Places, Recovered, boards, recover};

/// `NVML_ERROR_NO_PERMISSION`, and one that says nothing of what was done.
const NO_PERMISSION: &str = "4";
const UNKNOWN: &str = "999";
/// The second board.
const BUS: &str = "0000:11:00.0";

struct Machine {
    fake: Fake,
}

impl Machine {
    fn new() -> Machine {
        Machine { fake: Fake::new(&[(1, 1), (1, 1)]) }
    }

    fn record(&self) -> PathBuf {
        self.fake.path("run/clocks")
    }

    fn places(&self) -> Places {
        let (tree, nvml) = (self.fake.path("cpufreq"), Some(self.fake.library().into()));
        Places { tree, nvml, record: self.record() }
    }

    fn open(&self, shares: &[u16]) -> Result<Locked, Error> {
        Locked::open(&self.places(), BUS, shares)
    }

    /// What a killed process leaves: its locks, and the record of a process that is not there.
    fn kill(&self, clock: Locked) {
        std::mem::forget(clock);
        let text = fs::read_to_string(self.record()).unwrap();
        fs::write(self.record(), text.replace(&format!("{} ", std::process::id()), "0 ")).unwrap();
    }
}

#[test]
fn a_step_locks_the_clock_and_dropping_resets_it() {
    let machine = Machine::new();
    let mut clock = machine.open(&[430, 810]).unwrap();
    assert_eq!((clock.steps(), machine.fake.clocks(), machine.record().exists()), (3, String::new(), false));
    clock.set(2).unwrap();
    clock.set(2).unwrap();
    assert_eq!(machine.fake.clocks(), "lock 1 1980 1980\n");
    assert!(machine.record().exists());
    clock.set(0).unwrap();
    assert!(matches!(clock.set(3), Err(Error::NoStep(3))));
    assert_eq!(clock.changes(), 2);
    drop(clock);
    assert_eq!(machine.fake.clocks(), "lock 1 1980 1980\nlock 1 855 855\nreset 1\n");
    assert!(!machine.record().exists());
    // One that locked nothing resets nothing: there may be a lock of another program's.
    drop(machine.open(&[]).unwrap());
    assert_eq!(machine.fake.clocks().lines().count(), 3);
}

#[test]
fn a_lock_that_a_killed_process_left_ends_at_the_next_start() {
    let machine = Machine::new();
    for by_command in [true, false] {
        fs::remove_file(machine.fake.path("boards.clocks")).ok();
        let mut clock = machine.open(&[]).unwrap();
        clock.set(0).unwrap();
        assert_eq!(recover(&machine.places()).unwrap(), Recovered::Held(std::process::id()));
        assert!(matches!(machine.open(&[]), Err(Error::Held(_))), "one process at a time");
        machine.kill(clock);
        assert_eq!(machine.fake.clocks(), "lock 1 1980 1980\n");
        match by_command {
            true => {
                let recovered = recover(&machine.places()).unwrap();
                assert_eq!(recovered, Recovered::PutBack { limits: 0, gpus: 1 });
            }
            false => drop(machine.open(&[]).unwrap()),
        }
        assert_eq!(machine.fake.clocks(), "lock 1 1980 1980\nreset 1\n");
        assert!(!machine.record().exists());
    }
}

#[test]
fn without_permission_nothing_is_changed_or_noted() {
    let machine = Machine::new();
    machine.fake.tell("refuse", NO_PERMISSION);
    let mut clock = machine.open(&[]).unwrap();
    let refused = clock.set(0).unwrap_err().to_string();
    assert_eq!(refused, "the GPU's clocks: only root may lock them");
    assert_eq!((clock.changes(), machine.record().exists()), (0, false));
    machine.fake.tell("refuse", "0");
    drop(clock);
    assert_eq!(machine.fake.clocks(), "", "what was not locked is not reset");
}

#[test]
fn a_call_that_failed_and_yet_was_done_is_undone() {
    let machine = Machine::new();
    machine.fake.tell("lost", UNKNOWN);
    let mut clock = machine.open(&[]).unwrap();
    assert!(matches!(clock.set(0), Err(Error::Gpu(_))));
    assert!(machine.record().exists());
    // The reset fails, too: the record stays for the next start.
    assert!(clock.restore().is_err() && machine.record().exists());
    machine.fake.tell("lost", "0");
    drop(clock);
    assert_eq!(machine.fake.clocks(), "lock 1 1980 1980\nreset 1\nreset 1\n");
    assert!(!machine.record().exists());
}

#[test]
fn a_record_that_cannot_be_kept_locks_nothing() {
    let machine = Machine::new();
    let mut clock = machine.open(&[]).unwrap();
    fs::write(machine.fake.path("run"), "a file where a folder should be").unwrap();
    assert!(matches!(clock.set(0), Err(Error::Io { .. })));
    assert_eq!(machine.fake.clocks(), "");
}

#[test]
fn a_record_is_believed_as_far_as_it_names_gpus() {
    let machine = Machine::new();
    fs::create_dir_all(machine.fake.path("run")).unwrap();
    for bus in ["", "../../x", "0000:10:00.0 0000:11:00.0", "00000000:11:00.01", "0"] {
        fs::write(machine.record(), format!("wattlock clocks 1\n0 1\ngpu {bus}\n")).unwrap();
        assert!(recover(&machine.places()).is_err(), "{bus}");
        assert_eq!((machine.fake.clocks().as_str(), machine.record().exists()), ("", true), "{bus}");
    }
    // All that can be put back is, also after one that cannot.
    fs::write(machine.record(), "wattlock clocks 1\n0 1\ngpu 0000:1F:00.0\ngpu 0000:10:00.0\n").unwrap();
    assert!(matches!(recover(&machine.places()), Err(Error::Gpu(_))));
    assert_eq!((machine.fake.clocks().as_str(), machine.record().exists()), ("reset 0\n", true));
}

#[test]
fn boards_and_their_clocks_are_listed_and_no_library_is_no_board() {
    let machine = Machine::new();
    let found = boards(machine.places().nvml.as_deref()).unwrap();
    let second = &found[1];
    assert_eq!((found.len(), &second.bus[..], &second.name[..]), (2, "00000000:11:00.0", "Fake H000"));
    let clocks = &second.clocks_mhz;
    assert_eq!((clocks.len(), clocks.first(), clocks.last()), (110, Some(&345), Some(&1980)));
    assert_eq!(boards(Some("/nonexistent/libnvidia-ml.so.1".as_ref())).unwrap(), []);
    fs::remove_file(machine.fake.path("boards")).unwrap();
    assert!(matches!(boards(machine.places().nvml.as_deref()), Err(Error::Gpu(_))), "no driver behind it");
}
