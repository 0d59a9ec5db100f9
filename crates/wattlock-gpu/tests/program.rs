//! A C program with data on a GPU (`program.c`) on the stand-in driver: every algorithm, every refusal, files that are whole
//! and files that are not, and a device that fails.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../wattlock-cuda/tests/standin/mod.rs"]
mod standin;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use wattlock::Runtime;
use wattlock_files::{Format, Input, Progress, Sealer, age};

/// The library that this package builds.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let here = |folder: &Path| folder.join("libwattlock_gpu.so");
    [here(folder), here(folder.parent().unwrap())].into_iter().find(|path| path.exists()).unwrap()
}

fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gpu-program.{}", std::process::id()));
        // The address sanitizer puts a `cc` of its own in front (scripts/test/sanitize.sh).
        let built = Command::new("cc")
            .args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program)
            .arg(source.join("tests/program.c"))
            .arg("-I")
            .arg(source.join("include"))
            .arg(library())
            .arg("-ldl")
            .status()
            .unwrap();
        assert!(built.success());
        program
    })
}

/// A folder with kernels for the stand-in, a key, and what is asked for.
struct Desk {
    folder: tempfile::TempDir,
    identity: age::x25519::Identity,
}

impl Desk {
    fn new() -> Desk {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("wattlock.sm_90.cubin"), "stand-in").unwrap();
        let identity = age::x25519::Identity::generate();
        let text = age::secrecy::ExposeSecret::expose_secret(&identity.to_string()).to_owned() + "\n";
        std::fs::write(folder.path().join("key.txt"), text).unwrap();
        Desk { folder, identity }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `plain` and `sealed`; returns the sealed bytes.
    fn seal(&self, len: usize, format: Format) -> Vec<u8> {
        let plain: Vec<u8> = (0..len).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        std::fs::write(self.path("plain"), plain).unwrap();
        self.seal_file("plain", "sealed", format)
    }

    fn seal_file(&self, from: &str, to: &str, format: Format) -> Vec<u8> {
        let runtime = Runtime::builder().telemetry(false).build().unwrap();
        let sealer = Sealer::new(vec![Box::new(self.identity.to_public())]).unwrap().format(format);
        let never = std::sync::atomic::AtomicBool::new(false);
        let output = wattlock_door::Output::Path { path: self.path(to), force: true };
        sealer.seal(Input::Path(self.path(from)), output, &runtime, Progress::new(&never)).unwrap();
        std::fs::read(self.path(to)).unwrap()
    }

    fn run(&self, told: &str, arguments: &[&str]) -> Output {
        Command::new(program())
            .args(arguments)
            .current_dir(self.folder.path())
            .env("LD_LIBRARY_PATH", library().parent().unwrap())
            .env("WATTLOCK_CUDA_DRIVER", standin::library())
            .env("WATTLOCK_GPU_IMAGES", self.folder.path())
            .env("WATTLOCK_STANDIN", told)
            .output()
            .unwrap()
    }

    /// The program's lines, if it ended well.
    fn lines(&self, told: &str, arguments: &[&str]) -> Vec<String> {
        let output = self.run(told, arguments);
        assert!(output.status.success(), "{told}: {output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    fn load(&self, told: &str) -> Vec<String> {
        let mut lines = self.lines(told, &["load", "sealed", "key.txt", "plain"]);
        // What the program refuses on the way.
        lines.retain(|line| !line.starts_with("room ") && !line.starts_with("to "));
        lines
    }
}

#[test]
fn messages_come_back_and_a_forged_one_is_found_and_never_written() {
    let lines = Desk::new().lines("", &["messages"]);
    assert_eq!(lines.len(), 10, "{lines:?}");
    assert_eq!(lines.last().map(String::as_str), Some("clean"));
}

#[test]
fn if_the_device_declines_the_cpu_does_the_messages() {
    // No launch from the first on, or from somewhere in the middle.
    for told in ["launch_error=701", "launch_error=701,after=40", "launch_error=2,after=90"] {
        let lines = Desk::new().lines(told, &["messages"]);
        assert_eq!(lines.last().map(String::as_str), Some("clean"), "{told}");
    }
}

#[test]
fn where_clmad_is_wrong_ghash_is_done_by_integers_or_else_by_the_cpu() {
    let desk = Desk::new();
    let ends = |lines: &[String]| lines[lines.len() - 2..].join(", ");
    assert_eq!(ends(&desk.lines("clmad=1", &["messages"])), "aes-256-cbc, clean");
    std::fs::write(desk.path("wattlock_i.sm_90.cubin"), "stand-in").unwrap();
    assert_eq!(ends(&desk.lines("clmad=1", &["messages"])), "without clmad, clean");
    assert_eq!(ends(&desk.lines("", &["messages"])), "aes-256-cbc, clean");
}

#[test]
fn every_argument_that_makes_no_sense_is_refused_by_name_and_nothing_is_touched() {
    let lines = Desk::new().lines("devices=2", &["refused"]);
    for expected in [
        "input is null",
        "output is not in a GPU's memory",
        "nonces is in the memory of GPU 1",
        "results is not a multiple of 4",
        "output overlaps input",
        "input_stride is below the length",
        "nonces are too few for these messages",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected}: {lines:?}");
    }
    assert_eq!(lines.last().map(String::as_str), Some("clean"));
}

#[test]
fn files_of_both_formats_arrive_whole() {
    let desk = Desk::new();
    for (len, format) in [
        (0, Format::Sealed),
        (1, Format::Sealed),
        (16_384, Format::Sealed),
        (9 * (1 << 20) + 77, Format::Sealed),
        (0, Format::Age),
        (65_536, Format::Age),
        (9 * (1 << 20) + 77, Format::Age),
    ] {
        desk.seal(len, format);
        assert_eq!(desk.load(""), [format!("loaded {len}"), "clean".to_owned()], "{len}");
    }
}

#[test]
fn of_a_file_that_is_altered_the_chunk_is_named_and_the_destination_is_zero() {
    let desk = Desk::new();
    let sealed = desk.seal(9 << 20, Format::Sealed);
    let payload = sealed.len() - (9 * 64 * 16_400 + 16);
    for chunk in [0, 300, 575] {
        let mut altered = sealed.clone();
        altered[payload + chunk * 16_400 + 5] ^= 1;
        // A later one is not the first.
        altered[payload + 575 * 16_400 + 9] ^= 1;
        std::fs::write(desk.path("sealed"), altered).unwrap();
        let chunk = chunk.min(575);
        let expected =
            format!("load: code 4, exit 32, the file is altered (chunk {chunk} does not authenticate)");
        assert_eq!(desk.load("")[0], expected);
    }
    for (content, exit) in [
        (sealed[..sealed.len() - 1].to_vec(), 30),
        (sealed[..sealed.len() - 40].to_vec(), 31),
        (sealed[..payload + 16_400 * 3].to_vec(), 30),
        ([&sealed[..], b"x"].concat(), 34),
        (Vec::new(), 20),
        (b"hello".to_vec(), 21),
    ] {
        std::fs::write(desk.path("sealed"), content).unwrap();
        let line = desk.load("")[0].clone();
        assert!(line.starts_with(&format!("open: code 4, exit {exit}, ")), "{line}");
    }
}

#[test]
fn a_device_that_fails_costs_time_or_is_reported() {
    let desk = Desk::new();
    desk.seal((9 << 20) + 5, Format::Sealed);
    let whole = format!("loaded {}", (9 << 20) + 5);
    for told in
        ["launch_error=701,after=12", "launch_error=701", "flip=1,after=14", "flip=1", "memory=12000000"]
    {
        assert_eq!(desk.load(told), [whole.clone(), "clean".to_owned()], "{told}");
    }
    for told in ["lost=1,after=14", "launch_error=700,after=14"] {
        let line = desk.load(told)[0].clone();
        assert!(line.starts_with("load: code 6, exit 0, the GPU is lost"), "{told}: {line}");
    }
    assert_eq!(
        desk.load("version=12080")[0],
        "absent: the NVIDIA driver is too old: CUDA 12.8, and 13.0 is needed"
    );
}

#[test]
fn python_loads_tensors_onto_the_device_and_onto_the_cpu() {
    let desk = Desk::new();
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let run = |arguments: &[&str]| {
        let output = Command::new("python3")
            .args(arguments)
            .current_dir(python.join("tests"))
            .env("PYTHONPATH", &python)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("WATTLOCK_LIBRARY", library())
            .env("WATTLOCK_CUDA_DRIVER", standin::library())
            .env("WATTLOCK_GPU_IMAGES", desk.folder.path())
            .env("WATTLOCK_TEST_FOLDER", desk.folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["cases.py", desk.folder.path().to_str().unwrap()]);
    for entry in std::fs::read_dir(desk.folder.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".good") || name.ends_with(".bad") {
            desk.seal_file(&name, &format!("{name}.sealed"), Format::Sealed);
        }
    }
    run(&["-m", "unittest", "test_load"]);
}
