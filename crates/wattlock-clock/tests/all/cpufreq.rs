//! Clocks of fixtures: trees as the kernel shows them for an Intel laptop, an ARM board with two clusters, a virtual
//! machine.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::PathBuf;

use wattlock_clock::{Cpufreq, Error, Governor, Places, Recovered, recover, survey};

struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    /// `policy: [(file, text)]` for each clock.
    fn new(policies: &[(&str, &[(&str, &str)])]) -> Machine {
        let machine = Machine { folder: tempfile::tempdir().unwrap() };
        for (name, files) in policies {
            let folder = machine.tree().join(name);
            fs::create_dir_all(&folder).unwrap();
            files.iter().for_each(|(file, text)| fs::write(folder.join(file), format!("{text}\n")).unwrap());
        }
        machine
    }

    /// intel_pstate names no steps.
    fn laptop() -> Machine {
        let files = [
            ("affected_cpus", "0 1"),
            ("cpuinfo_max_freq", "4000000"),
            ("cpuinfo_min_freq", "400000"),
            ("scaling_driver", "intel_pstate"),
            ("scaling_governor", "powersave"),
            ("scaling_max_freq", "3600000"),
            ("scaling_min_freq", "400000"),
        ];
        Machine::new(&[("policy0", &files)])
    }

    fn board() -> Machine {
        let cluster = |cpus, steps, most| {
            [
                ("affected_cpus", cpus),
                ("cpuinfo_max_freq", most),
                ("cpuinfo_min_freq", "408000"),
                ("scaling_available_frequencies", steps),
                ("scaling_driver", "cpufreq-dt"),
                ("scaling_governor", "schedutil"),
                ("scaling_max_freq", most),
                ("scaling_min_freq", "408000"),
            ]
        };
        let little = cluster("0 1 2 3", "408000 816000 1416000 ", "1416000");
        let big = cluster("4 5", "408000 816000 1200000 1800000 ", "1800000");
        Machine::new(&[("policy0", &little), ("policy4", &big), ("boost", &[])])
    }

    fn tree(&self) -> PathBuf {
        self.folder.path().join("cpufreq")
    }

    fn record(&self) -> PathBuf {
        self.folder.path().join("run/clocks")
    }

    fn places(&self) -> Places {
        Places { tree: self.tree(), nvml: None, record: self.record() }
    }

    fn open(&self) -> Result<Cpufreq, Error> {
        Cpufreq::open(&self.places())
    }

    fn limit(&self, policy: &str) -> String {
        fs::read_to_string(self.tree().join(policy).join("scaling_max_freq")).unwrap().trim().to_owned()
    }

    /// What a killed process leaves: the record of a process that is not there.
    fn kill(&self, clock: Cpufreq) {
        std::mem::forget(clock);
        let text = fs::read_to_string(self.record()).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        let own = lines[1].to_owned();
        let other = format!("{} 1", own.split(' ').next().unwrap());
        lines[1] = &other;
        fs::write(self.record(), lines.join("\n")).unwrap();
    }
}

#[test]
fn any_number_in_a_tree_is_a_limit_with_even_steps() {
    let most = u64::MAX.to_string();
    let files = [
        ("cpuinfo_max_freq", &most[..]),
        ("cpuinfo_min_freq", "0"),
        ("scaling_max_freq", &most[..]),
        ("scaling_min_freq", "3"),
    ];
    let machine = Machine::new(&[("policy0", &files)]);
    let steps = &survey(&machine.tree()).domains[0].steps_khz;
    assert_eq!(steps.len(), 5);
    assert_eq!((steps[0], steps[4]), (3, u64::MAX));
    assert!(steps.windows(2).all(|two| (1 << 62) - 3 <= two[1] - two[0] && two[1] - two[0] <= 1 << 62));
}

#[test]
fn a_driver_without_steps_has_even_ones_up_to_its_limit() {
    let machine = Machine::laptop();
    let found = survey(&machine.tree());
    assert_eq!((found.why_not(), found.domains.len()), (None, 1));
    let domain = &found.domains[0];
    assert_eq!(
        domain.steps_khz,
        [400_000, 1_200_000, 2_000_000, 2_800_000, 3_600_000],
        "not above the limit"
    );
    assert_eq!((&domain.cpus[..], &domain.driver[..]), ("0 1", "intel_pstate"));
}

#[test]
fn a_step_limits_every_clock_and_dropping_puts_it_back() {
    let machine = Machine::board();
    let mut clock = machine.open().unwrap();
    assert_eq!(clock.clocks_khz(), [408_000, 816_000, 1_200_000, 1_800_000]);
    assert!(!machine.record().exists(), "nothing was changed yet");
    // 816 MHz are 0.45 of the big cluster's highest, and 0.58 of the little one's: its lowest with that share or more.
    for (step, little, big) in
        [(0, 408_000, 408_000), (1, 816_000, 816_000), (2, 1_416_000, 1_200_000), (3, 1_416_000, 1_800_000)]
    {
        clock.set(step).unwrap();
        assert!(machine.record().exists());
        assert_eq!(
            (machine.limit("policy0"), machine.limit("policy4")),
            (little.to_string(), big.to_string())
        );
    }
    clock.set(3).unwrap();
    assert!(matches!(clock.set(4), Err(Error::NoStep(4))));
    assert_eq!(clock.changes(), 4);
    clock.set(1).unwrap();
    drop(clock);
    assert_eq!((machine.limit("policy0"), machine.limit("policy4")), ("1416000".into(), "1800000".into()));
    assert!(!machine.record().exists());
}

#[test]
fn what_a_killed_process_left_is_put_back_at_the_next_start() {
    let machine = Machine::laptop();
    let mut clock = machine.open().unwrap();
    clock.set(0).unwrap();
    assert_eq!(recover(&machine.places()).unwrap(), Recovered::Held(std::process::id()));
    assert!(matches!(machine.open(), Err(Error::Held(_))), "one process at a time");
    machine.kill(clock);
    assert_eq!(machine.limit("policy0"), "400000");
    let clock = machine.open().unwrap();
    assert_eq!(clock.steps(), 5, "the steps are those under the owner's limit");
    assert_eq!(machine.limit("policy0"), "3600000");
    assert!(!machine.record().exists());
    assert_eq!(recover(&machine.places()).unwrap(), Recovered::Nothing);
}

#[test]
fn a_record_that_names_anything_else_is_not_believed() {
    let machine = Machine::laptop();
    let other = machine.folder.path().join("other");
    fs::write(&other, "1").unwrap();
    fs::create_dir_all(machine.record().parent().unwrap()).unwrap();
    let limit = machine.tree().join("policy0/scaling_max_freq");
    for line in [
        format!("1 {}", other.display()),
        format!("1 {}", limit.display()),
        format!("9000000 {}", limit.display()),
        format!("400000 {}", machine.tree().join("policy0/scaling_min_freq").display()),
        format!("400000 {}", machine.tree().join("../scaling_max_freq").display()),
        format!("400000 {}", machine.tree().join("policy0/../../other/scaling_max_freq").display()),
        "400000".to_owned(),
        "fast".to_owned(),
    ] {
        fs::write(machine.record(), format!("wattlock clocks 1\n0 1\n{line}\n")).unwrap();
        assert!(matches!(machine.open(), Err(Error::BadRecord { .. })), "{line}");
        assert_eq!(
            (fs::read_to_string(&other).unwrap(), machine.limit("policy0")),
            ("1".into(), "3600000".into())
        );
    }
    for whole in ["", "wattlock clocks 2\n", "wattlock clocks 1\nx y\n"] {
        fs::write(machine.record(), whole).unwrap();
        assert!(matches!(machine.open(), Err(Error::BadRecord { .. })), "{whole:?}");
    }
}

#[test]
fn what_stands_in_the_way_is_named() {
    let why = |machine: &Machine| survey(&machine.tree()).why_not().unwrap();
    let none = Machine::new(&[]);
    assert!(why(&none).contains("virtual machine"), "{}", why(&none));
    assert!(matches!(none.open(), Err(Error::Nothing(_))));
    let one_step = Machine::laptop();
    fs::write(one_step.tree().join("policy0/scaling_min_freq"), "3600000").unwrap();
    assert_eq!(why(&one_step), "fewer than two steps");
    let broken = Machine::laptop();
    fs::write(broken.tree().join("policy0/scaling_max_freq"), "<unsupported>").unwrap();
    assert!(why(&broken).contains("no number"));
    let missing = Machine::laptop();
    fs::remove_file(missing.tree().join("policy0/scaling_max_freq")).unwrap();
    fs::create_dir(missing.tree().join("policy0/scaling_max_freq")).unwrap();
    assert!(why(&missing).contains("scaling_max_freq"));
}

#[test]
fn a_record_that_cannot_be_kept_changes_nothing() {
    let machine = Machine::laptop();
    fs::write(machine.folder.path().join("run"), "a file where a folder should be").unwrap();
    assert!(matches!(machine.open(), Err(Error::Io { .. })));
    assert_eq!(machine.limit("policy0"), "3600000");
    let folder = machine.folder.path().join("a/folder");
    fs::create_dir_all(folder.join("clocks")).unwrap();
    let mut clock = Cpufreq::open(&Places { record: folder.join("record"), ..machine.places() }).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "").unwrap();
    assert!(clock.set(0).is_err());
    assert_eq!(machine.limit("policy0"), "3600000");
}
