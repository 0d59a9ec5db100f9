//! A program that is watched while it works: its lines come with the time at which they came, and it ends when this value
//! does, with all that it started in its process group.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use wattlock_door::Error;
use wattlock_shell::INTERRUPTED;
use wattlock_shell::process::ending_with_us;

/// Longest line; the rest of a longer one is left out.
const LONGEST: u64 = 4096;
/// Lines that wait to be taken, some ten megabytes of short ones. A program that writes more waits, too.
const WAITING: usize = 1 << 17;
/// Between two looks whether the user interrupts.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a program may take to end once it was told to.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Output,
    Error,
}

/// One line, without its end.
#[derive(Debug)]
pub struct Line {
    pub from: Stream,
    pub at: Instant,
    pub text: String,
}

/// The program.
pub struct Tended {
    child: Child,
    lines: Receiver<Line>,
    overflowed: Arc<AtomicBool>,
    name: String,
}

/// What [`Tended::next`] has.
pub enum Next {
    Line(Line),
    /// Nothing came in the time that was given.
    Quiet,
    /// Both its outputs are closed.
    End,
}

impl Tended {
    /// Starts it, without input.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &Command) -> Result<Tended> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut command = ending_with_us(command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| name.clone())?;
        let (to, lines) = sync_channel(WAITING);
        let overflowed = Arc::new(AtomicBool::new(false));
        if let Some(output) = child.stdout.take() {
            read(Stream::Output, output, to.clone(), overflowed.clone());
        }
        if let Some(output) = child.stderr.take() {
            read(Stream::Error, output, to, overflowed.clone());
        }
        Ok(Tended { child, lines, overflowed, name })
    }

    /// Runs one to its end, and hands its lines on.
    ///
    /// # Errors
    /// It cannot be started or does not end in so long, or the user interrupts.
    pub fn to_end(command: &Command, within: Duration, mut take: impl FnMut(Line)) -> Result<ExitStatus> {
        let (mut program, begun) = (Tended::start(command)?, Instant::now());
        loop {
            match program.next(LOOK_EVERY)? {
                Next::Line(line) => take(line),
                Next::Quiet => {}
                Next::End => return program.wait(),
            }
            ensure!(begun.elapsed() < within, "{} does not end in {within:?}", program.name);
        }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its next line, waited for so long at most.
    ///
    /// # Errors
    /// The user interrupts.
    pub fn next(&self, within: Duration) -> Result<Next> {
        ensure!(!INTERRUPTED.load(Ordering::SeqCst), Error::Interrupted);
        Ok(match self.lines.recv_timeout(within) {
            Ok(line) => Next::Line(line),
            Err(RecvTimeoutError::Timeout) => Next::Quiet,
            Err(RecvTimeoutError::Disconnected) => Next::End,
        })
    }

    /// Whether so many lines waited that some were read later than they were written: then their times are wrong.
    pub fn overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Its end, once its outputs are closed.
    ///
    /// # Errors
    /// It does not end in ten seconds.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(1));
        }
        bail!("{} does not end", self.name)
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// The system's.
    pub fn runs(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }
}

impl Drop for Tended {
    fn drop(&mut self) {
        // The group may live on where the program does not: a number that was waited for is another's only once the
        // group is gone, too.
        let group = Pid::from_child(&self.child);
        let _ = kill_process_group(group, Signal::TERM);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > PATIENCE {
                let _ = kill_process_group(group, Signal::KILL);
                let _ = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Reads lines in a thread that ends when the output is closed, or when its lines are asked for no more.
fn read(from: Stream, output: impl Read + Send + 'static, to: SyncSender<Line>, overflowed: Arc<AtomicBool>) {
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        while let Some(text) = line(&mut output) {
            let sent = match to.try_send(Line { from, at: Instant::now(), text }) {
                Err(TrySendError::Full(line)) => {
                    overflowed.store(true, Ordering::Relaxed);
                    to.send(line).is_ok()
                }
                other => other.is_ok(),
            };
            if !sent {
                return;
            }
        }
    });
}

fn line(output: &mut impl BufRead) -> Option<String> {
    let mut bytes = Vec::new();
    let read = output.by_ref().take(LONGEST).read_until(b'\n', &mut bytes).ok()?;
    if read as u64 == LONGEST && bytes.last() != Some(&b'\n') {
        output.skip_until(b'\n').ok()?;
    }
    (read > 0).then(|| String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Tended {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Tended::start(&command).unwrap()
    }

    fn whole(program: &Tended) -> Vec<(Stream, String)> {
        let mut all = Vec::new();
        loop {
            match program.next(Duration::from_secs(60)).unwrap() {
                Next::Line(line) => all.push((line.from, line.text)),
                Next::Quiet => panic!("it neither speaks nor ends"),
                Next::End => return all,
            }
        }
    }

    #[test]
    fn lines_of_both_outputs_and_the_end_are_heard() {
        let mut program = shell("echo one; echo two >&2; exit 7");
        let mut all = whole(&program);
        all.sort_by_key(|(from, _)| *from == Stream::Error);
        assert_eq!(all, [(Stream::Output, "one".to_owned()), (Stream::Error, "two".to_owned())]);
        assert_eq!(program.wait().unwrap().code(), Some(7));
        assert!(!program.runs().unwrap());
    }

    #[test]
    fn a_line_without_end_is_cut_and_the_next_one_is_whole() {
        let mut text = vec![b'x'; 3 * LONGEST as usize];
        text.extend(b"\nnext\nlast");
        let mut output = &text[..];
        let lines: Vec<String> = std::iter::from_fn(|| line(&mut output)).collect();
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [LONGEST as usize, 4, 4]);
    }

    #[test]
    fn a_program_that_does_not_end_in_time_is_an_error_and_gone() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$; exec sleep 1000"]);
        let mut number = String::new();
        let late = Tended::to_end(&command, Duration::from_millis(300), |line| number = line.text);
        assert!(late.unwrap_err().to_string().starts_with("sh does not end in "));
        assert!(!number.is_empty() && !std::path::Path::new(&format!("/proc/{number}")).exists());
        command = Command::new("sh");
        command.args(["-c", "exit 3"]);
        let end = Tended::to_end(&command, Duration::from_secs(60), |_| {}).unwrap();
        assert_eq!(end.code(), Some(3));
    }

    #[test]
    fn a_program_that_writes_without_pause_waits_for_its_lines_to_be_taken() {
        let program = shell("exec yes");
        while !program.overflowed() {
            thread::sleep(Duration::from_millis(1));
        }
        let Next::Line(line) = program.next(Duration::ZERO).unwrap() else { panic!("no line") };
        assert_eq!(line.text, "y");
    }

    #[test]
    fn what_it_started_ends_with_it() {
        let program = shell("sleep 1000 & echo $!; wait");
        let Next::Line(line) = program.next(Duration::from_secs(60)).unwrap() else { panic!("no line") };
        let started = format!("/proc/{}", line.text);
        assert!(std::path::Path::new(&started).exists());
        drop(program);
        // It is a zombie until its new parent has waited for it.
        let is_gone =
            || std::fs::read_to_string(format!("{started}/stat")).map_or(true, |stat| stat.contains(") Z "));
        while !is_gone() {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
