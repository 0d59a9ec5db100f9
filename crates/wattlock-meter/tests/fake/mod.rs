//! NVML that is not NVIDIA's: built here with the C compiler, loaded by its path. Other crates' tests have it, too.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// The fake library, and the files it takes its numbers from.
pub struct Fake {
    folder: tempfile::TempDir,
}

impl Fake {
    /// With these boards: energy in mJ and power in mW of each.
    pub fn new(boards: &[(i64, i64)]) -> Fake {
        Fake::with(boards, &[])
    }

    /// One that does not know confidential computing.
    pub fn old() -> Fake {
        Fake::with(&[(1, 1)], &["-DWITHOUT_CONFIDENTIAL"])
    }

    fn with(boards: &[(i64, i64)], options: &[&str]) -> Fake {
        let fake = Fake { folder: tempfile::tempdir().unwrap() };
        fake.set(boards);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../wattlock-meter/tests/fake/nvml.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
            .arg(fake.library())
            .arg(format!("-DSTATE=\"{}\"", fake.path("boards").display()))
            .args(options)
            .arg(source)
            .status()
            .unwrap();
        assert!(built.success());
        fake
    }

    /// A file in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn library(&self) -> PathBuf {
        self.path("libfake-ml.so")
    }

    pub fn set(&self, boards: &[(i64, i64)]) {
        let lines: Vec<String> = boards.iter().map(|(energy, power)| format!("{energy} {power}\n")).collect();
        fs::write(self.path("boards"), lines.concat()).unwrap();
    }

    /// What the library is to do from now on: nvml.c says which names there are.
    pub fn tell(&self, name: &str, text: &str) {
        fs::write(self.path(&format!("boards.{name}")), text).unwrap();
    }

    /// The calls that changed a clock so far.
    pub fn clocks(&self) -> String {
        fs::read_to_string(self.path("boards.clocks")).unwrap_or_default()
    }
}
