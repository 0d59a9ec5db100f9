//! One large file on CPU and GPU at the same time, with an emulated GPU, and what `wattlock engines` says of a driver.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../wattlock-cuda/tests/standin/mod.rs"]
mod standin;

use std::path::PathBuf;
use std::process::{Command, Output};

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
        let mut command = Command::new(env!("CARGO_BIN_EXE_wattlock"));
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

    /// With the stand-in for a driver.
    fn on_stand_in(&self, arguments: &[&str]) -> String {
        std::fs::write(self.path("wattlock.sm_90.cubin"), "stand-in").unwrap();
        let mut command = self.command(arguments);
        command
            .env("WATTLOCK_CUDA_DRIVER", standin::library())
            .env("WATTLOCK_GPU_IMAGES", self.folder.path());
        let output = command.output().unwrap();
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
fn eep_splits_a_file_at_the_published_border_to_one_chunk_and_the_cpu_opens_it() {
    let desk = Desk::new();
    let (ratio, seal) = (758.0 * 13.0 * 32.0 / (2000.0 * 29.0 * 0.7), "aes-256-gcm-seal");
    let sealed = desk.seal(&["--emulate", "h200", "--policy", "eep", "--stats"]);
    assert!(sealed.status.success(), "{sealed:?}");
    let exact = CHUNKS as f64 * ratio / (ratio + 1.0);
    let done = emulated(&sealed, seal);
    assert!((done as f64 - exact).abs() <= 1.0, "{done} chunks, the formula says {exact}: {sealed:?}");
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
