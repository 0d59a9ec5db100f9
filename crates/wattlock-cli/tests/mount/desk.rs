//! A folder with a key, a volume, and where it is mounted; and whether this machine can mount at all.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::built;

/// Says why a test does nothing. Past the test harness, which hides what a passed test prints.
pub fn skipped(why: &str) {
    let test = std::thread::current();
    let line = format!("skipped: {}: {why}\n", test.name().unwrap_or("a test"));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Whether there is FUSE; says why not.
pub fn fuse_device() -> bool {
    let there = fs::metadata("/dev/fuse");
    if let Err(error) = &there {
        skipped(&format!("/dev/fuse: {error}"));
    }
    there.is_ok()
}

/// Whether this test can run; says why not.
pub fn fuse() -> bool {
    let opened = fs::File::options().read(true).write(true).open("/dev/fuse");
    if let Err(error) = &opened {
        skipped(&format!("/dev/fuse: {error}"));
    }
    opened.is_ok()
}

/// Whether a program is there; says that the test is skipped otherwise.
pub fn has(program: &str) -> bool {
    let there = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if there.is_err() {
        skipped(&format!("no {program}"));
    }
    there.is_ok()
}

/// A folder with a key, a volume, and where it is mounted.
pub struct Desk {
    pub folder: tempfile::TempDir,
}

impl Drop for Desk {
    fn drop(&mut self) {
        // What a failed test left mounted.
        let _ = Command::new("umount").arg("-l").arg(self.at("mnt")).stderr(Stdio::null()).status();
    }
}

impl Desk {
    pub fn new(more: &[&str]) -> Desk {
        let desk = Desk { folder: tempfile::tempdir().unwrap() };
        good(&desk.run(&["keygen", "-o", "key.txt"]));
        let text = fs::read_to_string(desk.at("key.txt")).unwrap();
        let recipient = text.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
        good(&desk.run(&[&["fs", "init", "-r", recipient], more, &["vol"]].concat()));
        fs::create_dir(desk.at("mnt")).unwrap();
        desk
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(built::program_for(arguments));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("WATTLOCK_PROFILE", self.at("profile.json"))
            .env("WATTLOCK_TELEMETRY_DIR", self.at("telemetry"))
            .env("WATTLOCK_STATE_DIR", self.at("state"))
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub fn mount(&self, more: &[&str]) -> PathBuf {
        good(&self.run(&[&["mount", "-i", "key.txt"], more, &["vol", "mnt"]].concat()));
        self.at("mnt")
    }

    pub fn unmount(&self) {
        good(&self.try_unmount());
    }

    /// Unmounts; what it says may be an error of the volume.
    pub fn try_unmount(&self) -> Output {
        let begun = Instant::now();
        loop {
            let output = self.run(&["umount", "mnt"]);
            // A program that another test starts holds the files that this process has open until it is executed.
            let busy = String::from_utf8_lossy(&output.stderr).contains("in use");
            if !busy || begun.elapsed() > Duration::from_secs(20) {
                return output;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The process that serves the mount.
    pub fn process(&self) -> i32 {
        let status = good(&self.run(&["fs", "status", "mnt"]));
        let line = status.lines().find_map(|line| line.strip_prefix("process ")).unwrap();
        line.split(',').next().unwrap().parse().unwrap()
    }

    /// Kills the process that serves the mount and takes the dead mount away.
    pub fn kill(&self, process: i32) {
        let process = rustix::process::Pid::from_raw(process).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        self.bury();
    }

    /// Takes a dead mount away and waits until its process is no more.
    pub fn bury(&self) {
        let begun = Instant::now();
        while !Command::new("umount").arg("-l").arg(self.at("mnt")).output().unwrap().status.success() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the dead mount stays");
        }
        // The lock goes with the last of the process's threads.
        let journal = fs::File::open(self.at("vol/wattlock.journal")).unwrap();
        rustix::fs::flock(&journal, rustix::fs::FlockOperation::LockExclusive).unwrap();
    }
}

pub fn good(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}{errors}", output.status);
    text
}

pub fn refused(output: &Output, code: i32, said: &str) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{errors}");
    let lines: Vec<&str> = errors.lines().filter(|line| !line.starts_with("Try ")).collect();
    assert!(lines.len() == 1 && lines[0].contains(said), "{errors}");
}

pub fn python(script: &str, folder: &Path) -> String {
    let output = Command::new("python3").args(["-c", script]).current_dir(folder).output().unwrap();
    good(&output)
}
