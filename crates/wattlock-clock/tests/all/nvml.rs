//! A GPU's clocks, by a library that is not NVIDIA's and keeps its state in files, as a board does beyond a process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::fake;

use std::fs;
use std::path::PathBuf;

use fake::Fake;
use wattlock_clock::{Error, Governor, Locked, Pair, Places, Recovered, boards, recover};
use wattlock_core::{EngineClass, Kind, KindSet, Shape};
use wattlock_policy::{
    self as policy, Ask, EngineId, Hardware, Settings, Weather, by_name, inline_engine, queued_engine,
};

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

    fn open(&self) -> Result<Locked, Error> {
        Locked::open(&self.places(), BUS)
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
    let mut clock = machine.open().unwrap();
    assert_eq!(
        (clock.steps(), machine.fake.clocks(), machine.record().exists()),
        (110, String::new(), false)
    );
    assert_eq!((clock.clocks_khz()[0], clock.clocks_khz()[34]), (345_000, 855_000));
    clock.set(109).unwrap();
    clock.set(109).unwrap();
    assert_eq!(machine.fake.clocks(), "lock 1 1980 1980\n");
    assert!(machine.record().exists());
    clock.set(34).unwrap();
    assert!(matches!(clock.set(110), Err(Error::NoStep(110))));
    assert_eq!(clock.changes(), 2);
    drop(clock);
    assert_eq!(machine.fake.clocks(), "lock 1 1980 1980\nlock 1 855 855\nreset 1\n");
    assert!(!machine.record().exists());
    // One that locked nothing resets nothing: there may be a lock of another program's.
    drop(machine.open().unwrap());
    assert_eq!(machine.fake.clocks().lines().count(), 3);
}

#[test]
fn a_lock_that_a_killed_process_left_ends_at_the_next_start() {
    let machine = Machine::new();
    for by_command in [true, false] {
        fs::remove_file(machine.fake.path("boards.clocks")).ok();
        let mut clock = machine.open().unwrap();
        clock.set(109).unwrap();
        assert_eq!(recover(&machine.places()).unwrap(), Recovered::Held(std::process::id()));
        assert!(matches!(machine.open(), Err(Error::Held(_))), "one process at a time");
        machine.kill(clock);
        assert_eq!(machine.fake.clocks(), "lock 1 1980 1980\n");
        match by_command {
            true => {
                let recovered = recover(&machine.places()).unwrap();
                assert_eq!(recovered, Recovered::PutBack { limits: 0, gpus: 1 });
            }
            false => drop(machine.open().unwrap()),
        }
        assert_eq!(machine.fake.clocks(), "lock 1 1980 1980\nreset 1\n");
        assert!(!machine.record().exists());
    }
}

/// The six pairs of LECPAES's Tesla K20M.
const K20M: &str = "2600 758\n2600 705\n2600 666\n2600 640\n2600 614\n324 324\n";

#[test]
fn the_memory_s_clock_is_the_pair_s_and_is_reset_with_the_core_s() {
    let machine = Machine::new();
    machine.fake.tell("pairs", K20M);
    let mut clock = machine.open().unwrap();
    assert_eq!(clock.clocks_khz(), [324_000, 614_000, 640_000, 666_000, 705_000, 758_000]);
    for step in [0, 5, 1] {
        clock.set(step).unwrap();
    }
    let locks = "lock 1 324 324\nmemory 1 324 324\nlock 1 758 758\nmemory 1 2600 2600\nlock 1 614 614\n";
    assert_eq!(machine.fake.clocks(), locks);
    machine.kill(clock);
    assert_eq!(recover(&machine.places()).unwrap(), Recovered::PutBack { limits: 0, gpus: 1 });
    assert_eq!(machine.fake.clocks(), format!("{locks}reset 1\nreset-memory 1\n"));
}

/// LECPAES's equations 7 to 9 on boards with any clocks: the step that the rule names locks the lowest core clock whose
/// share of the highest is above the fill, and the memory clock of that pair.
#[test]
fn the_clocks_at_each_fill_are_those_of_the_published_share_of_the_board_s_list() {
    let machine = Machine::new();
    let mut seed = 11u64;
    let mut dice = |below: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    for round in 0..40 {
        let mut cores: Vec<u64> = (0..2 + dice(120)).map(|_| 100 + dice(3000)).collect();
        cores.sort_unstable();
        cores.dedup();
        let slow = dice(cores.len() as u64) as usize;
        let memory = |at: usize| if at < slow { 405 } else { 9501 };
        let text: Vec<String> =
            cores.iter().enumerate().map(|(at, core)| format!("{} {core}\n", memory(at))).collect();
        machine.fake.tell("pairs", &if round == 0 { K20M.to_owned() } else { text.concat() });
        let mut clock = machine.open().unwrap();
        let list = clock.clocks_khz().to_vec();
        let mut rule = lecpaes(&list);
        for _ in 0..30 {
            let (fill, window) = (dice(1100), 1000);
            let step = rule(fill, window);
            clock.set(step).unwrap();
            let highest = list[list.len() - 1];
            let above = |khz: &&u64| **khz as f64 / highest as f64 > fill as f64 / window as f64;
            let expected = list.iter().find(above).unwrap_or(&highest) / 1000;
            let calls = machine.fake.clocks();
            let last =
                |word: &str| calls.lines().rev().find(|line| line.starts_with(word)).map(str::to_owned);
            assert_eq!(last("lock"), Some(format!("lock 1 {expected} {expected}")), "{fill}");
            if round > 0 && slow > 0 {
                let mhz = memory(cores.iter().position(|core| *core == expected).unwrap());
                assert_eq!(last("memory"), Some(format!("memory 1 {mhz} {mhz}")), "{fill}");
            }
        }
        drop(clock);
        fs::remove_file(machine.fake.path("boards.clocks")).ok();
    }
}

/// The step that the production rule names for a fill of a window, on a device with these clocks.
fn lecpaes(clocks_khz: &[u64]) -> impl FnMut(u64, u64) -> usize + use<> {
    let kind = Kind::Aes256GcmSeal;
    let (cpu, gpu) = (EngineId(0), EngineId(1));
    let machine = policy::Machine {
        engines: vec![
            inline_engine(cpu, EngineClass::Software, KindSet::of(&[kind])),
            queued_engine(gpu, EngineClass::Gpu, KindSet::of(&[kind]), 64),
        ],
        hardware: Hardware { clocks_khz: vec![(gpu, clocks_khz.to_vec())], ..Hardware::default() },
        ..policy::Machine::default()
    };
    let mut rule = by_name("lecpaes", machine, &Settings::default()).unwrap();
    move |fill, window| {
        let mut weather = Weather::default();
        weather.engines[0].available = true;
        let state = &mut weather.engines[1];
        (state.available, state.in_flight_bytes, state.window_bytes) = (true, fill, window);
        let shape = Shape { kind, bytes: 1 << 16, class: Default::default(), messages: 1 };
        usize::from(rule.choose(&Ask::one(shape), &weather, 0).clock.unwrap().0)
    }
}

#[test]
fn a_memory_clock_that_cannot_be_locked_leaves_the_core_s() {
    const NOT_SUPPORTED: &str = "3";
    let machine = Machine::new();
    machine.fake.tell("pairs", K20M);
    machine.fake.tell("fixed", NOT_SUPPORTED);
    let mut clock = machine.open().unwrap();
    clock.set(0).unwrap();
    clock.set(5).unwrap();
    drop(clock);
    assert_eq!(machine.fake.clocks(), "lock 1 324 324\nlock 1 758 758\nreset 1\n");
    assert!(!machine.record().exists());
}

#[test]
fn without_permission_nothing_is_changed_or_noted() {
    let machine = Machine::new();
    machine.fake.tell("refuse", NO_PERMISSION);
    let mut clock = machine.open().unwrap();
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
    let mut clock = machine.open().unwrap();
    assert!(matches!(clock.set(109), Err(Error::Gpu(_))));
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
    let mut clock = machine.open().unwrap();
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
    let (pairs, of) = (&second.pairs, |core| Pair { core, memory: 2619 });
    assert_eq!((pairs.len(), pairs.first(), pairs.last()), (110, Some(&of(345)), Some(&of(1980))));
    assert_eq!(boards(Some("/nonexistent/libnvidia-ml.so.1".as_ref())).unwrap(), []);
    fs::remove_file(machine.fake.path("boards")).unwrap();
    assert!(matches!(boards(machine.places().nvml.as_deref()), Err(Error::Gpu(_))), "no driver behind it");
}
