//! A program that writes and syncs (ledger.py) and remembers, outside the mount, what was acknowledged.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::desk::{Desk, fuse, good, has};

pub struct Ledger {
    process: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Ledger {
    pub fn new(mounted: &Path, seed: u64) -> Ledger {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/ledger.py");
        let mut command = Command::new("python3");
        command.arg(script).arg(mounted).arg(seed.to_string());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let asks = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Ledger { process, asks, answers }
    }

    pub fn ask(&mut self, question: &str) -> String {
        writeln!(self.asks, "{question}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// Everything acknowledged is there; how many acknowledgements there were.
    pub fn verify(&mut self) -> u64 {
        let answer = self.ask("verify");
        answer.strip_prefix("ok ").unwrap_or_else(|| panic!("{answer}")).parse().unwrap()
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn what_was_acknowledged_survives_kills_in_mid_write() {
    if !fuse() || !has("python3") {
        return;
    }
    let variable = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let rounds: u64 = variable("WATTLOCK_KILLS").unwrap_or(24);
    let desk = Desk::new(&[]);
    let mut ledger = Ledger::new(&desk.at("mnt"), variable("WATTLOCK_SOAK_SEED").unwrap_or(1));
    for round in 0..rounds {
        desk.mount(&[]);
        ledger.verify();
        let answer = ledger.ask(&format!("run {}", desk.process()));
        assert_eq!(answer, "dead", "round {round}");
        desk.bury();
    }
    desk.mount(&[]);
    assert!(ledger.verify() > rounds, "too few acknowledgements");
    desk.unmount();
    good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
}
