//! `wattlock energy` on recorded machines: what it prints, what it leaves alone, how it ends.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::built;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

const STAT: &str = "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 50 0 50 400\ncpu1 50 0 50 400\n";

/// A recorded machine, and the program that takes it for its own.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    /// Without any counter.
    fn bare() -> Machine {
        let machine = Machine { folder: tempfile::tempdir().unwrap() };
        machine.set("proc/stat", STAT);
        machine.set(
            "proc/cpuinfo",
            "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: EPYC\n",
        );
        machine
    }

    /// With two packages, the first of which has a core domain.
    fn metered() -> Machine {
        let machine = Machine::bare();
        for (zone, name) in
            [("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core"), ("intel-rapl:1", "package-1")]
        {
            machine.set(&format!("sys/class/powercap/{zone}/name"), name);
            machine.set(&format!("sys/class/powercap/{zone}/max_energy_range_uj"), "65532610987");
            machine.set(&format!("sys/class/powercap/{zone}/energy_uj"), "1000000");
        }
        machine
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn set(&self, path: &str, content: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), content).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.program();
        command.arg("energy").args(arguments);
        command
    }

    fn program(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wattlock"));
        command.current_dir(self.folder.path());
        command
            .env("WATTLOCK_METER_ROOT", self.folder.path())
            .env("WATTLOCK_PROFILE", self.at("cache/profile.json"));
        command.env_remove("WATTLOCK_NVML").stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&said(output)).unwrap_or_else(|error| panic!("{error}: {}", said(output)))
}

/// A command that uses 29 J of one package and 9 J of the other, 20 J of them in the cores.
const USES: &str = "echo 30000000 > sys/class/powercap/intel-rapl:0/energy_uj; \
    echo 21000000 > sys/class/powercap/intel-rapl:0:0/energy_uj; \
    echo 10000000 > sys/class/powercap/intel-rapl:1/energy_uj; echo out";

#[test]
fn measured_joules_are_listed_by_domain_and_added_once() {
    let machine = Machine::metered();
    let arguments =
        ["--idle-ms", "0", "--bytes", "76000000", "--ops", "19", "--json", "--", "sh", "-c", USES];
    let output = machine.run(&arguments);
    assert_eq!(output.stdout, b"out\n", "standard output is the command's own");
    let report = json(&output);
    let total = &report["total"];
    assert!((total["joules"].as_f64().unwrap() - 38.0).abs() < 1e-6);
    assert_eq!((&total["quality"], &total["at_least"]), (&"measured".into(), &Value::Null));
    assert!((total["work"]["mb_per_joule"].as_f64().unwrap() - 2.0).abs() < 1e-6);
    assert!((total["work"]["joules_per_op"].as_f64().unwrap() - 2.0).abs() < 1e-6);
    assert_eq!(total["above_idle"], Value::Null, "idle power was not measured");
    assert_eq!(report["modelled"], Value::Null);
    let figures = report["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 3);
    for figure in figures {
        for field in ["source", "boundary", "part", "quality", "joules", "from_s", "to_s"] {
            assert!(!figure[field].is_null(), "{field}: {figure}");
        }
    }
    machine.set("sys/class/powercap/intel-rapl:0/energy_uj", "1000000");
    let people = said(&machine.run(&["--", "sh", "-c", USES]));
    for wanted in ["package-0", "package-0 core", "measured", "elapsed", "CPU time"] {
        assert!(people.contains(wanted), "{wanted}: {people}");
    }
    assert!(!people.contains("MB/J"), "nobody said how many bytes");
}

#[test]
fn every_modelled_figure_has_the_word_and_a_band() {
    let machine = Machine::bare();
    let busy = "echo 'cpu  150 0 150 850 0 0 0 0 0 0' > proc/stat";
    let arguments = ["--idle-ms", "0", "--bytes", "1M", "--ops", "10", "--", "sh", "-c", busy];
    let people = said(&machine.run(&arguments));
    let mut figures = 0;
    for line in people.lines() {
        if ["J ", "MB/J", "J/op"].iter().any(|unit| line.contains(unit)) {
            assert!(line.contains("modelled (") && line.contains(" to "), "{line}");
            figures += 1;
        }
    }
    assert_eq!(figures, 6, "{people}");
    machine.set("proc/stat", STAT);
    let output = machine.run(&["--idle-ms", "0", "--json", "--", "sh", "-c", busy]);
    let report = json(&output);
    assert_eq!(report["total"], Value::Null);
    assert_eq!(report["modelled"]["quality"], "modelled");
    assert!(report["modelled"]["model"].as_str().unwrap().contains("Zen 3"));
    let figure = &report["figures"][0];
    assert!(figure["joules"].is_null() && figure["modelled"]["high"].as_f64().unwrap() > 0.0, "{figure}");
}

#[test]
fn the_exit_code_is_the_commands() {
    let machine = Machine::bare();
    let code = |command: &[&str]| machine.run(&[&["--idle-ms", "0", "--"], command].concat()).status.code();
    assert_eq!(code(&["true"]), Some(0));
    assert_eq!(code(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["sh", "-c", "kill -KILL $$"]), Some(137));
    assert_eq!(code(&["./no-such-program"]), Some(127));
    assert_eq!(code(&["proc/stat"]), Some(126));
    assert_eq!(machine.run(&[]).status.code(), Some(2));
}

#[test]
fn signals_reach_the_command_and_the_report_still_comes() {
    let machine = Machine::bare();
    let script = "trap 'exit 9' TERM; trap 'echo usr1' USR1; echo ready; while :; do sleep 0.05; done";
    let mut child = machine
        .command(&["--idle-ms", "0", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        line
    };
    assert_eq!(line(), "ready\n");
    let pid = child.id().to_string();
    let send = |signal: &str| assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    send("-USR1");
    assert_eq!(line(), "usr1\n");
    send("-TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(9));
    assert!(said(&output).contains("elapsed"));
}

#[test]
fn a_signal_that_was_ignored_stays_ignored_for_the_command() {
    let machine = Machine::bare();
    let script = "trap '' HUP; \"$0\" energy --idle-ms 0 -- sh -c 'kill -HUP $$; echo alive'";
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script, env!("CARGO_BIN_EXE_wattlock")])
        .env("WATTLOCK_METER_ROOT", machine.folder.path());
    let output = shell.output().unwrap();
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), b"alive\n".as_slice()),
        "{}",
        said(&output)
    );
}

#[test]
fn a_report_goes_to_a_file_if_asked() {
    let machine = Machine::metered();
    let output = machine.run(&["--idle-ms", "0", "-o", "report", "--json", "--", "sh", "-c", USES]);
    assert!(output.status.success() && output.stderr.is_empty());
    let report: Value = serde_json::from_slice(&fs::read(machine.at("report")).unwrap()).unwrap();
    assert!(report["total"]["joules"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_report_without_a_place_is_refused_before_the_command_runs() {
    let machine = Machine::bare();
    let output = machine.run(&["--idle-ms", "0", "-o", "no/such/folder", "--", "echo", "ran"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(42), b"".as_slice()));
    assert!(said(&output).contains("no/such/folder"));
}

#[test]
fn an_interrupt_ends_the_command_and_not_the_report() {
    let machine = Machine::bare();
    let script = "trap 'exit 4' INT; echo ready; while :; do sleep 0.05; done";
    let asked = machine.command(&["--idle-ms", "0", "--", "sh", "-c", script]);
    // What a script starts in the background is started to ignore interrupts, and keeps to that.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(asked.get_program()).args(asked.get_args());
    command.current_dir(machine.folder.path()).stdin(Stdio::null());
    for (name, value) in asked.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code() == Some(4) && said(&output).contains("elapsed"), "{}", said(&output));
}

#[test]
fn a_socket_that_disappears_during_the_command_is_said_to() {
    let machine = Machine::metered();
    let script = format!("{USES}; sleep 1; rm -r sys/class/powercap/intel-rapl:1; sleep 0.3");
    let people = said(&machine.run(&["--idle-ms", "0", "--", "sh", "-c", &script]));
    for wanted in ["package-1: seen for ", "could not be read any more", "at least 38.00 J measured"] {
        assert!(people.contains(wanted), "{wanted}: {people}");
    }
}

#[test]
fn sources_say_what_is_read_and_what_is_not() {
    let machine = Machine::metered();
    machine.set("sys/class/hwmon/hwmon0/name", "amd_energy");
    machine.set("sys/class/hwmon/hwmon0/energy1_label", "Esocket0");
    machine.set("sys/class/hwmon/hwmon0/energy1_input", "5");
    let output = machine.run(&["sources", "--json"]);
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let unused: Vec<&Value> =
        listed["sources"].as_array().unwrap().iter().filter(|source| !source["unused"].is_null()).collect();
    assert_eq!((unused.len(), &unused[0]["unused"]), (1, &"powercap counts the same".into()));
}

#[test]
fn the_meters_own_cost_is_told() {
    let machine = Machine::metered();
    let output = machine.run(&["--self-cost", "0.3s", "--json"]);
    let cost: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(cost["sources"], 3);
    assert!(cost["polls"].as_u64().unwrap() >= 1 && cost["cpu_percent_of_one_core"].is_f64());
}

/// Drives a recorded machine: a thread that writes its clock ticks and its counter as time goes by. On a busy machine it
/// is late now and then; so tests that need figures of it try a few times.
struct Tide {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Tide {
    /// `course` says how busy the machine is (0 to 1) and what it draws (watts) at a time in seconds.
    fn on(root: &Path, course: fn(f64) -> (f64, f64)) -> Tide {
        let (root, stop) = (root.to_owned(), Arc::new(AtomicBool::new(false)));
        let seen = stop.clone();
        let write = move |path: &str, content: String| {
            // As the kernel: a reader sees one value or the next.
            fs::write(root.join("next"), content).unwrap();
            fs::rename(root.join("next"), root.join(path)).unwrap();
        };
        let thread = thread::spawn(move || {
            let (start, mut last) = (Instant::now(), 0.0);
            let (mut busy, mut all, mut joules) = (0.0, 0.0, 1.0);
            while !seen.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
                let now = start.elapsed().as_secs_f64();
                let ((load, watts), step) = (course(now), now - last);
                last = now;
                busy += load * step * 10_000.0;
                all += step * 10_000.0;
                joules += watts * step;
                write("proc/stat", format!("cpu  {busy:.0} 0 0 {:.0} 0 0 0 0\ncpu0 1\ncpu1 1\n", all - busy));
                write("sys/class/powercap/intel-rapl:0/energy_uj", format!("{:.0}\n", joules * 1e6));
            }
        });
        Tide { stop, thread: Some(thread) }
    }
}

impl Drop for Tide {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(thread::JoinHandle::join);
    }
}

/// Up and down in four seconds: 10 W idle, 30 W busy.
fn tidal(seconds: f64) -> (f64, f64) {
    let load = 1.0 - (seconds / 2.0 % 2.0 - 1.0).abs();
    (load, 10.0 + 20.0 * load)
}

/// Half busy, and more power all the time, up to far above what it began with.
fn rising(seconds: f64) -> (f64, f64) {
    (0.5, (10.0 * (seconds / 0.4).exp()).min(1500.0))
}

fn soon<T>(mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let mut why = String::new();
    for _ in 0..6 {
        match attempt() {
            Ok(done) => return done,
            Err(error) => why = error,
        }
    }
    panic!("{why}")
}

#[test]
fn a_model_is_calibrated_against_a_counter_and_used_where_there_is_none() {
    let machine = Machine::metered();
    fs::remove_dir_all(machine.at("sys/class/powercap/intel-rapl:1")).unwrap();
    let tide = Tide::on(machine.folder.path(), tidal);
    let told: Value = soon(|| {
        let output = machine.run(&["calibrate", "--rung-ms", "400", "--json"]);
        serde_json::from_slice(&output.stdout).map_err(|_| said(&output))
    });
    let model = &told["model"];
    assert_eq!(told["rungs"].as_array().unwrap().len(), 9);
    assert!(model["version"].as_str().unwrap().starts_with("calibrated "));
    assert!(model["idle_w"].as_f64().unwrap() > 0.0, "{model}");
    // With idle power measured, what is above it is derived and smaller.
    let total = soon(|| {
        let report = json(&machine.run(&["--idle-ms", "500", "--json", "--", "sleep", "0.5"]));
        let total = report["total"].clone();
        if total["above_idle"].is_null() { Err(report.to_string()) } else { Ok(total) }
    });
    assert_eq!(total["above_idle"]["quality"], "derived");
    assert!(total["above_idle"]["joules"].as_f64().unwrap() < total["joules"].as_f64().unwrap());
    drop(tide);
    fs::remove_dir_all(machine.at("sys")).unwrap();
    machine.set("proc/stat", STAT);
    let listed = machine.run(&["sources"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("calibrated "));
}

#[test]
fn a_lower_bound_stays_one_without_idle_power() {
    let machine = Machine::metered();
    let second = machine.at("sys/class/powercap/intel-rapl:1/energy_uj");
    let _tide = Tide::on(machine.folder.path(), rising);
    let above = soon(|| {
        let _ = fs::remove_file(&second);
        std::os::unix::fs::symlink("../intel-rapl:0/energy_uj", &second).unwrap();
        let script = "sleep 0.5; rm sys/class/powercap/intel-rapl:1/energy_uj; sleep 0.3";
        let report = json(&machine.run(&["--json", "--", "sh", "-c", script]));
        let above = report["total"]["above_idle"].clone();
        if above.is_null() { Err(report.to_string()) } else { Ok(above) }
    });
    assert!(above["at_least"].as_str().is_some_and(|why| why.contains("any more")), "{above}");
}

const BENCH: [&str; 7] = ["bench", "engines", "--kind", "sha-256", "--size", "1K", "--no-openssl"];

/// What is modelled belongs in `wattlock energy`, where its band has room.
#[test]
fn benches_give_work_by_the_joule_only_where_a_counter_measures() {
    built::siblings();
    let machine = Machine::metered();
    fs::remove_dir_all(machine.at("sys/class/powercap/intel-rapl:1")).unwrap();
    let spent = || -> Value {
        let output = machine.program().args(BENCH).args(["--json", "-"]).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let sheet: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(sheet["rows"][0]["row"], "sha-256");
        sheet["rows"][0]["detail"]["work_per_joule"].clone()
    };
    let counted = soon(|| {
        let _tide = Tide::on(machine.folder.path(), rising);
        let spent = spent();
        if spent["by"]["instruction"].is_f64() { Ok(spent) } else { Err(spent.to_string()) }
    });
    assert!(counted["by"]["instruction"].as_f64().unwrap() > 0.0 && counted["unit"] == "MB/J", "{counted}");
    assert_eq!(counted["quality"], "derived");
    machine.set("sys/class/powercap/intel-rapl:0/name", "of nobody knows what");
    let tide = Tide::on(machine.folder.path(), rising);
    assert!(spent().is_null());
    let people = machine.program().args(BENCH).output().unwrap();
    let table = String::from_utf8_lossy(&people.stdout).into_owned();
    assert!(table.contains("sha-256") && !table.contains("modelled") && !table.contains("/J"), "{table}");
    drop(tide);
}

#[test]
fn calibration_keeps_a_counters_joules_and_no_modelled_ones() {
    let machine = Machine::metered();
    fs::remove_dir_all(machine.at("sys/class/powercap/intel-rapl:1")).unwrap();
    let profile = || -> Value {
        let _tide = Tide::on(machine.folder.path(), rising);
        let arguments = ["calibrate", "--quick", "--kind", "sha-256", "--out", "p.json"];
        let output = machine.program().args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert!(String::from_utf8_lossy(&output.stdout).contains("Joules: "));
        serde_json::from_slice(&fs::read(machine.at("p.json")).unwrap()).unwrap()
    };
    let metered = soon(|| {
        let profile = profile();
        if profile["energy"].is_null() { Err(profile.to_string()) } else { Ok(profile) }
    });
    assert_eq!(metered["energy"]["quality"], "derived");
    assert!(metered["points"].as_array().unwrap().iter().any(|point| point["energy_nj"].is_f64()));
    machine.set("sys/class/powercap/intel-rapl:0/name", "of nobody knows what");
    let without = profile();
    assert!(without["energy"].is_null());
    assert!(without["points"].as_array().unwrap().iter().all(|point| point["energy_nj"].is_null()));
}

#[test]
fn without_a_counter_there_is_nothing_to_calibrate_against() {
    for machine in [Machine::bare(), Machine::metered()] {
        // The metered one's counters stand still, as a virtual machine's do.
        let output = machine.run(&["calibrate", "--rung-ms", "200"]);
        assert_eq!(output.status.code(), Some(51));
        assert!(said(&output).contains("nothing to calibrate against"));
        assert!(!machine.at("cache/energy-model.json").exists());
    }
}

#[test]
fn a_broken_or_foreign_model_is_told_and_not_used() {
    let machine = Machine::bare();
    machine.set("cache/energy-model.json", "{");
    let report = json(&machine.run(&["--idle-ms", "0", "--json", "--", "true"]));
    assert!(report["notices"][0].as_str().unwrap().contains("energy-model.json"));
}
