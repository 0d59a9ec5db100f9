//! One large file on CPU and GPU at the same time, with an emulated GPU, and what `wattlock engines` says of a driver.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::{fake, standin};

use crate::built;
use crate::counting::Counting;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fake::Fake;
use standin::{Bundle, phase};

/// A folder with a key, and a file of some MiB that ends in the middle of a chunk.
struct Desk {
    folder: tempfile::TempDir,
    recipient: String,
}

/// Chunks of 16 KiB before the last one.
const CHUNKS: u64 = 2563;

impl Desk {
    fn new() -> Desk {
        let folder = tempfile::tempdir().unwrap();
        let content: Vec<u8> =
            (0..CHUNKS * 16_384 + 77).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
        std::fs::write(folder.path().join("in"), content).unwrap();
        let mut desk = Desk { folder, recipient: String::new() };
        let key = desk.run(&["keygen", "-o", "key.txt"]);
        assert!(key.status.success(), "{key:?}");
        let text = std::fs::read_to_string(desk.path("key.txt")).unwrap();
        let found = text.split_whitespace().find(|word| word.starts_with("age1")).unwrap();
        desk.recipient = found.to_owned();
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(built::program_for(arguments));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("WATTLOCK_TELEMETRY_DIR", self.path("telemetry"))
            .env("WATTLOCK_CUDA_DRIVER", "/nonexistent/libcuda.so.1");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// With the stand-in for a driver, and this library for NVML.
    fn command_on_stand_in(&self, arguments: &[&str], nvml: &Path) -> Command {
        std::fs::write(self.path("wattlock.sm_90.cubin"), "stand-in").unwrap();
        let mut command = self.command(arguments);
        command
            .env("WATTLOCK_CUDA_DRIVER", standin::library())
            .env("WATTLOCK_GPU_IMAGES", self.folder.path())
            .env("WATTLOCK_NVML", nvml);
        command
    }

    fn on_stand_in(&self, arguments: &[&str]) -> String {
        self.with_nvml(arguments, Path::new("/nonexistent/libnvidia-ml.so.1"))
    }

    fn with_nvml(&self, arguments: &[&str], nvml: &Path) -> String {
        let output = self.command_on_stand_in(arguments, nvml).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Seals "in" as "x".
    fn seal(&self, more: &[&str]) -> Output {
        let first = ["seal", "-f", "-q", "-r", &self.recipient, "-o", "x"];
        self.run(&[&first[..], more, &["in"]].concat())
    }

    /// Opens "x" as "out".
    fn open(&self, more: &[&str]) -> Output {
        let first = ["open", "-f", "-q", "-i", "key.txt", "-o", "out"];
        self.run(&[&first[..], more, &["x"]].concat())
    }

    fn is_the_same(&self, name: &str) -> bool {
        std::fs::read(self.path("in")).unwrap() == std::fs::read(self.path(name)).unwrap()
    }
}

/// Requests that the emulated engine did, by `--stats`.
fn emulated(output: &Output, kind: &str) -> u64 {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = text.lines().find(|line| line.starts_with(&format!("{kind} on emulated")));
    let number = line.and_then(|line| line.split(": ").nth(1)?.split(' ').next()?.parse().ok());
    number.unwrap_or(0)
}

#[test]
fn eep_splits_a_file_by_the_gpu_s_and_the_cpu_s_own_attributes_to_one_chunk() {
    let desk = Desk::new();
    let seal = "aes-256-gcm-seal";
    // The clock is given: on a virtual machine it may change between two looks.
    let threads = std::thread::available_parallelism().unwrap().get() as f64;
    let siblings = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list");
    let worth = if siblings.unwrap_or_default().trim().contains([',', '-']) { 0.7 } else { 1.0 };
    let own = |mhz: f64| mhz * (threads - 1.0).max(1.0) * worth;
    let theirs = ["cpu_mhz=2000", "cores=16", "alpha=2", "beta=0.7", "threads=29"];
    let (fast, authors) = (vec!["cpu_mhz=20000"], theirs.to_vec());
    for (model, gpu) in [("h200", 1980.0 * 132.0 * 32.0), ("k20m", 758.0 * 13.0 * 32.0)] {
        for (given, cpu) in [(&fast, own(20_000.0)), (&authors, 2000.0 * 29.0 * 0.7)] {
            let given: Vec<String> = given.iter().map(|pair| format!("eep.{pair}")).collect();
            let given: Vec<&str> = given.iter().flat_map(|pair| ["--set", pair]).collect();
            let sealed =
                desk.seal(&[&["--emulate", model, "--policy", "eep", "--stats"], &given[..]].concat());
            assert!(sealed.status.success(), "{sealed:?}");
            let exact = CHUNKS as f64 * gpu / (gpu + cpu);
            let done = emulated(&sealed, seal);
            assert!(
                (done as f64 - exact).abs() <= 1.0,
                "{model}: {done} chunks, the formula says {exact}: {sealed:?}"
            );
        }
    }
    let opened = desk.open(&["--policy", "instruction"]);
    assert!(opened.status.success() && desk.is_the_same("out"), "{opened:?}");
}

#[test]
fn every_policy_that_splits_opens_what_the_cpu_sealed_in_both_formats() {
    let desk = Desk::new();
    for (format, kind) in [("sealed", "aes-256-gcm-open"), ("age", "chacha20-poly1305-open")] {
        let sealed = desk.seal(&["--policy", "instruction", "--format", format]);
        assert!(sealed.status.success(), "{sealed:?}");
        for policy in ["eep", "adaptive", "lecpaes", "offload"] {
            let opened = desk.open(&["--emulate", "h200", "--policy", policy, "--stats"]);
            assert!(opened.status.success() && desk.is_the_same("out"), "{policy}: {opened:?}");
            if policy != "adaptive" {
                assert!(emulated(&opened, kind) > 0, "{policy}: {opened:?}");
            }
        }
    }
}

#[test]
fn an_altered_chunk_of_either_side_is_named_and_nothing_is_left() {
    use std::os::unix::fs::FileExt;
    let desk = Desk::new();
    let sealed = desk.seal(&[]);
    assert!(sealed.status.success(), "{sealed:?}");
    let file = std::fs::File::options().read(true).write(true).open(desk.path("x")).unwrap();
    let base = file.metadata().unwrap().len() - (CHUNKS * 16_400 + 77 + 16);
    // From the back, so that each new one is the first; both together name the earlier.
    for chunk in [2000, 1500, 20] {
        let at = base + chunk * 16_400 + 5;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        for policy in ["eep", "adaptive", "offload"] {
            let opened = desk.open(&["--emulate", "h200", "--policy", policy]);
            let said = String::from_utf8_lossy(&opened.stderr).into_owned();
            assert_eq!(opened.status.code(), Some(32), "{policy}: {said}");
            assert!(said.contains(&format!("chunk {chunk} ")), "{policy}: {said}");
            assert!(!desk.path("out").exists());
        }
    }
}

#[test]
fn a_gpu_that_is_lost_midway_costs_time_only() {
    let desk = Desk::new();
    let model = wattlock_emul::Model::h200();
    // Known answers first; then, in the middle of the job, gone for good.
    std::fs::write(desk.path("model"), format!("{model}fault lost 3600000000000 requests 9 9\n")).unwrap();
    for policy in ["eep", "adaptive", "offload"] {
        let sealed = desk.seal(&["--emulate", "model", "--policy", policy]);
        assert!(sealed.status.success(), "{policy}: {sealed:?}");
        let opened = desk.open(&["--policy", "instruction"]);
        assert!(opened.status.success() && desk.is_the_same("out"), "{policy}: {opened:?}");
    }
}

#[test]
fn engines_says_in_one_line_why_there_is_no_gpu() {
    let desk = Desk::new();
    let engines = desk.run(&["engines"]);
    let said = String::from_utf8_lossy(&engines.stdout).into_owned();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("Not here: cuda")).collect();
    assert_eq!(lines, ["Not here: cuda: no NVIDIA driver (/nonexistent/libcuda.so.1 does not load)"]);
    let emulated = desk.run(&["engines", "--emulate", "h200"]);
    let said = String::from_utf8_lossy(&emulated.stdout).into_owned();
    assert!(said.contains("emulated, not hardware: model h200, GPU with 4 streams"), "{said}");
}

#[test]
fn engines_names_the_gpu_and_rates_for_data_on_both_sides() {
    let said = Desk::new().on_stand_in(&["engines"]);
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    let about = lines.iter().find(|line| line.starts_with("stand-in, not hardware")).unwrap();
    assert!(about.contains("16.0 GiB") && about.contains("driver for CUDA 13.0"), "{about}");
    for kind in ["aes-256-gcm-seal", "chacha20-poly1305-seal"] {
        let of = |place: &str| {
            let start = format!("data on the {place}: {kind} by ");
            lines
                .iter()
                .find(|line| line.starts_with(&start))
                .unwrap_or_else(|| panic!("{start}: {said}"))
                .to_string()
        };
        assert!(of("host").contains("instruction"), "{said}");
        let rate = of("GPU");
        let number = rate.split('(').nth(1).and_then(|rest| rest.split(" GB/s").next()?.parse::<f64>().ok());
        assert!(rate.contains("by cuda") && number.is_some(), "{rate}");
    }
}

#[test]
fn bench_gpu_has_a_row_for_each_work_and_names_the_stand_in() {
    let desk = Desk::new();
    let said =
        desk.on_stand_in(&["bench", "gpu", "--size", "2M", "--rounds", "1", "--dir", ".", "--json", "-"]);
    let sheet: serde_json::Value = serde_json::from_str(&said).unwrap();
    let rows = sheet["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["row"].as_str().unwrap()).collect();
    for wanted in [
        "copy-to-device",
        "copy-to-host",
        "aes-128-ctr",
        "aes-256-gcm-open",
        "aes-256-cbc-decrypt",
        "chacha20-poly1305-seal",
        "file-cpu",
        "file-gpu",
        "file-both",
        "file-to-device",
    ] {
        assert!(names.contains(&wanted), "{wanted}: {names:?}");
    }
    for row in rows {
        assert!(row["ours"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["detail"]["device"].as_str().unwrap().contains("stand-in, not hardware"), "{row}");
    }
    let mut nowhere = desk.command(&["bench", "gpu"]);
    let refused = nowhere.output().unwrap();
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("no GPU: no NVIDIA driver"), "{words}");
}

#[test]
fn bench_stream_does_gp_and_lecpaes_on_the_gpu_of_this_machine() {
    let desk = Desk::new();
    let bench = |more: &[&str]| -> Vec<serde_json::Value> {
        let first = ["bench", "stream", "--messages", "40", "--velocity", "500us", "--json", "-", "--policy"];
        let said = desk.on_stand_in(&[&first[..], more].concat());
        serde_json::from_str::<serde_json::Value>(&said).unwrap()["rows"].as_array().unwrap().clone()
    };
    let rows = bench(&["gp,lecpaes"]);
    assert_eq!(rows.len(), 2);
    for (row, policy) in rows.iter().zip(["gp", "lecpaes"]) {
        let detail = &row["detail"];
        assert_eq!((&row["bench"], &row["params"]["policy"]), (&"stream-gpu".into(), &policy.into()));
        assert_eq!((&detail["messages"], &detail["messages_by_gpu"]), (&40.into(), &40.into()), "{row}");
        assert!(detail["device"].as_str().unwrap().contains("stand-in, not hardware"), "{row}");
    }
    // The fill named clocks, and no program set them: there is no NVML here.
    assert!(rows[1]["detail"]["clock_changes_named"].as_u64() > Some(0), "{}", rows[1]);
    for emulated in [&["gp,cp"][..], &["gp", "--machine", "k20m"]] {
        let rows = bench(emulated);
        assert!(rows.iter().all(|row| row["params"]["machine"] == "k20m, emulated"), "{rows:?}");
    }
    let nowhere = desk.run(&["bench", "stream", "--policy", "gp", "--machine", "gpu"]);
    let words = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(!nowhere.status.success() && words.contains("no GPU: no NVIDIA driver"), "{words}");
    let other = desk.run(&["bench", "stream", "--policy", "adaptive", "--machine", "gpu"]);
    assert_eq!(other.status.code(), Some(2));
}

#[test]
fn bench_stream_does_the_published_programs_here_and_sets_the_clocks_that_lecpaes_names() {
    let (desk, fake) = (Desk::new(), Fake::new(&[(1, 1)]));
    fake.tell("pairs", "2600 758\n2600 705\n2600 666\n2600 640\n2600 614\n324 324\n");
    let first =
        ["bench", "stream", "--messages", "40", "--velocity", "500us", "--machine", "gpu", "--json", "-"];
    let rules = ["--policy", "cs,cp,gp,lecpaes,adaptive", "--clocks", "--clocks-record", "clocks"];
    // Ten watts, in mJ.
    let counting = Counting::in_file(&fake.path("boards"), |ms| format!("{} 10000\n", ms * 10));
    let said = desk.with_nvml(&[&first[..], &rules].concat(), &fake.library());
    drop(counting);
    let sheet: serde_json::Value = serde_json::from_str(&said).unwrap();
    let rows = sheet["rows"].as_array().unwrap();
    let by_gpu: Vec<_> = rows.iter().map(|row| row["detail"]["messages_by_gpu"].as_u64().unwrap()).collect();
    assert_eq!(by_gpu[..4], [0, 0, 40, 40]);
    // `adaptive` divides them as it finds both.
    assert!(by_gpu.len() == 5 && by_gpu[4] <= 40, "{said}");
    // Each clock is measured for `adaptive`, which may find that none is cheaper; then `lecpaes` names its own.
    let calls = fake.clocks();
    let mut runs = calls.split("reset 0\nreset-memory 0\n");
    let mut locks = || runs.next().unwrap().lines().filter(|line| line.starts_with("lock 0 ")).count();
    assert_eq!(locks(), 6, "{calls}");
    assert_eq!(rows[3]["detail"]["clock_changes_named"], locks(), "{calls}");
    assert!(calls.ends_with("reset 0\nreset-memory 0\n"), "{calls}");
    assert!(!desk.path("clocks").exists());
    let emulated = desk.run(&["bench", "stream", "--machine", "k20m", "--clocks"]);
    assert_eq!(emulated.status.code(), Some(2));
}

#[test]
fn a_bundle_with_the_program_measures_streams_and_files_and_changes_no_setting() {
    let (bundle, fake) = (Bundle::new(), Fake::new(&[(1, 1)]));
    std::os::unix::fs::symlink(built::program_for(&["bench"]), bundle.path("wattlock")).unwrap();
    let output = bundle.run(standin::library(), &fake.library());
    assert!(output.status.success(), "{output:?}");
    let report = bundle.report();
    let streams = phase(&report, "streams");
    for policy in ["gp", "lecpaes"] {
        assert_eq!(streams.matches(&format!("\"policy\": \"{policy}\"")).count(), 3, "{streams}");
    }
    assert_eq!(streams.matches("\"messages_by_gpu\": 100").count(), 6, "{streams}");
    assert!(phase(&report, "program").contains("file-to-device"), "{report}");
    assert_eq!(fake.clocks(), "");
}

#[test]
fn engines_says_in_one_line_that_confidential_computing_makes_copies_block() {
    let desk = Desk::new();
    let lines = |fake: &Fake| -> Vec<String> {
        let said = desk.with_nvml(&["engines"], &fake.library());
        said.lines().filter(|line| line.contains("confidential")).map(str::to_owned).collect()
    };
    let fake = Fake::new(&[(1, 1)]);
    assert_eq!(lines(&fake), [""; 0]);
    for (feature, several) in [(1, 0), (0, 1)] {
        fake.tell("confidential", &format!("{feature} {several}"));
        let found = lines(&fake);
        assert!(found.len() == 1 && found[0].contains("block"), "{found:?}");
    }
    // A library that does not know, and none.
    let old = Fake::old();
    old.tell("confidential", "1 1");
    assert_eq!(lines(&old), [""; 0]);
    assert!(!desk.on_stand_in(&["engines"]).contains("confidential"));
}

/// What `--clocks` is given here.
const CLOCKS: [&str; 5] = ["--clocks", "--clocks-record", "clocks", "--clocks-tree", "nowhere"];

impl Desk {
    /// Seals "in" as "x", or opens that as "out", with the GPU's clocks locked.
    fn with_clocks(&self, what: &str, policy: &str, fake: &Fake) -> Output {
        let (key, to, from) = if what == "seal" { ("-r", "x", "in") } else { ("-i", "out", "x") };
        let key = [key, if what == "seal" { &self.recipient } else { "key.txt" }];
        let first = [what, "-f", "-q", "--policy", policy, "-o", to];
        let arguments = [&first[..], &key, &CLOCKS, &[from]].concat();
        self.command_on_stand_in(&arguments, &fake.library()).output().unwrap()
    }

    fn clocks(&self, more: &[&str], fake: &Fake) -> String {
        let all = [&["clocks", "--tree", "nowhere", "--record", "clocks"], more].concat();
        self.with_nvml(&all, &fake.library())
    }

    /// A stream whose producer is silent, after its first frame, with its clocks set.
    fn stream(&self, fake: &Fake) -> std::process::Child {
        let first = ["stream", "seal", "-r", &self.recipient, "--policy", "lecpaes"];
        let mut command = self.command_on_stand_in(&[&first[..], &CLOCKS].concat(), &fake.library());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(b"slow").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 16 + 232 + 56 + 24]).unwrap();
        child
    }
}

#[test]
fn clocks_are_locked_once_for_files_and_reset_after_success_and_failure() {
    let (desk, fake) = (Desk::new(), Fake::new(&[(1, 1)]));
    // EEP: the highest for the GPU's and for shared work, the lowest while the CPU works alone.
    for (what, policy, mhz) in [
        ("seal", "eep", 1980),
        ("open", "eep", 1980),
        ("seal", "lecpaes", 1980),
        ("seal", "software", 345),
        ("seal", "instruction", 345),
    ] {
        std::fs::remove_file(fake.path("boards.clocks")).ok();
        let done = desk.with_clocks(what, policy, &fake);
        assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
        assert_eq!(fake.clocks(), format!("lock 0 {mhz} {mhz}\nreset 0\n"), "{what} {policy}");
        assert!(!desk.path("clocks").exists());
    }
    assert!(desk.is_the_same("out"));
    let mut altered = std::fs::read(desk.path("x")).unwrap();
    let middle = altered.len() / 2;
    altered[middle] ^= 1;
    std::fs::write(desk.path("x"), altered).unwrap();
    std::fs::remove_file(fake.path("boards.clocks")).unwrap();
    assert_eq!(desk.with_clocks("open", "eep", &fake).status.code(), Some(32));
    assert_eq!(
        (fake.clocks().as_str(), desk.path("clocks").exists()),
        ("lock 0 1980 1980\nreset 0\n", false)
    );
    let other = desk.with_clocks("seal", "adaptive", &fake);
    assert_eq!((other.status.code(), fake.clocks().lines().count()), (Some(2), 2));
}

#[test]
fn the_window_s_fill_sets_the_clock_of_the_gpu_and_a_signal_resets_it() {
    let (desk, fake) = (Desk::new(), Fake::new(&[(1, 1)]));
    let mut child = desk.stream(&fake);
    let input = child.stdin.take();
    // An empty window: the lowest of the GPU's own clocks.
    assert_eq!(fake.clocks(), "lock 0 345 345\n");
    assert!(desk.clocks(&["restore"], &fake).contains("puts them back when it ends"));
    let ended = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(ended.success() && child.wait().unwrap().code() == Some(130));
    drop(input);
    assert_eq!((fake.clocks().as_str(), desk.path("clocks").exists()), ("lock 0 345 345\nreset 0\n", false));
}

#[test]
fn a_lock_that_a_kill_left_ends_at_the_next_start_or_by_the_command() {
    let desk = Desk::new();
    for by_command in [true, false] {
        let fake = Fake::new(&[(1, 1)]);
        let mut child = desk.stream(&fake);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((fake.clocks().as_str(), desk.path("clocks").exists()), ("lock 0 345 345\n", true));
        if by_command {
            assert_eq!(desk.clocks(&["restore"], &fake), "the clocks of 1 GPU were reset\n");
        } else {
            assert!(desk.with_clocks("seal", "eep", &fake).status.success());
        }
        assert!(fake.clocks().starts_with("lock 0 345 345\nreset 0\n"), "{}", fake.clocks());
        assert!(fake.clocks().ends_with("reset 0\n") && !desk.path("clocks").exists());
    }
}

#[test]
fn without_permission_one_line_says_so_and_work_goes_on() {
    let (desk, fake) = (Desk::new(), Fake::new(&[(1, 1)]));
    fake.tell("refuse", "4");
    let said = "wattlock: the GPU's clocks: only root may lock them; going on without\n";
    for policy in ["eep", "lecpaes"] {
        let sealed = desk.with_clocks("seal", policy, &fake);
        assert!(sealed.status.success(), "{sealed:?}");
        assert_eq!(String::from_utf8_lossy(&sealed.stderr), said);
    }
    let stream = desk.stream(&fake).wait_with_output().unwrap();
    assert!(stream.status.success() && fake.clocks().is_empty(), "{stream:?}");
    assert_eq!(String::from_utf8_lossy(&stream.stderr), said);
    // No library, and no GPU.
    for (driver, why) in [(Some(standin::library()), "the GPU's clocks: "), (None, "no NVIDIA driver")] {
        let nowhere = Path::new("/nonexistent/libnvidia-ml.so.1");
        let arguments = ["seal", "-f", "-q", "--policy", "eep", "-r", &desk.recipient, "-o", "x"];
        let mut command = desk.command_on_stand_in(&[&arguments[..], &CLOCKS, &["in"]].concat(), nowhere);
        if driver.is_none() {
            command.env("WATTLOCK_CUDA_DRIVER", "/nonexistent/libcuda.so.1");
        }
        let sealed = command.output().unwrap();
        let lines = String::from_utf8_lossy(&sealed.stderr).into_owned();
        assert!(sealed.status.success() && lines.lines().count() == 1 && lines.contains(why), "{lines}");
    }
}

#[test]
fn clocks_lists_gpus_and_says_what_nvml_cannot_tell() {
    let (desk, fake) = (Desk::new(), Fake::new(&[(1, 1), (1, 1)]));
    let said = desk.clocks(&[], &fake);
    let second = said.lines().find(|line| line.starts_with("GPU 00000000:11:00.0"));
    assert_eq!(second, Some("GPU 00000000:11:00.0 Fake H000: 345 to 1980 MHz, 110 clocks"), "{said}");
    let blind = said.lines().filter(|line| line.contains("does not tell whether somebody has locked"));
    assert_eq!(blind.count(), 1, "{said}");
    assert!(!desk.on_stand_in(&["clocks"]).contains("GPU"), "none is seen without the library");
}
