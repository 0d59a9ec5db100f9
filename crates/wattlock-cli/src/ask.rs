//! Asking the person at the terminal: passphrases, and whatever a key plugin wants to know.
//!
//! The terminal is asked itself, not standard input, which may be the file. No helper program pops up. Echo is off
//! while a secret is typed, and on again whatever happens; an interrupt ends the question at once.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use wattlock_core::sync::lock;

use age::Callbacks;
use age::secrecy::SecretString;
use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use wattlock_files::Error;
use wattlock_shell::INTERRUPTED;
use zeroize::Zeroizing;

use crate::wrong::{system, usage};

/// Longest answer, in bytes: what a terminal hands over as one line (`MAX_CANON` is 255, Linux takes 4095).
const ANSWER_MAX: usize = 4096;

/// How often a question looks whether it was interrupted.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Asks for a secret; `None` if there is no terminal.
///
/// # Errors
/// [`wattlock_door::Error::Interrupted`]; [`wattlock_door::Error::Io`] for a terminal that fails.
pub fn secret(question: &str) -> Result<Option<SecretString>, Error> {
    let answer = ask(question, true)?;
    Ok(answer.map(|answer| SecretString::from(String::clone(&answer))))
}

/// Asks for a new passphrase, twice.
///
/// # Errors
/// [`Error::PassphraseNeeded`] if there is no terminal, [`wattlock_door::Error::Usage`] if the two differ or are empty, and those of
/// [`secret`].
pub fn new_passphrase() -> Result<SecretString, Error> {
    let first = ask("Passphrase: ", true)?.ok_or(Error::PassphraseNeeded)?;
    if first.is_empty() {
        return Err(usage("an empty passphrase protects nothing"));
    }
    let second = ask("Confirm passphrase: ", true)?.ok_or(Error::PassphraseNeeded)?;
    if first != second {
        return Err(usage("the two passphrases differ"));
    }
    Ok(SecretString::from(String::clone(&first)))
}

/// Asks whether a file is to be changed, unless `yes` says so already.
///
/// # Errors
/// There is no user to ask.
pub fn agreed(yes: bool) -> anyhow::Result<bool> {
    confirmed("Change the file?", yes, "nothing changed").context("--dry-run only shows")
}

/// Asks whether something is to be done, unless `yes` says so already. `undone` says what came of no answer.
///
/// # Errors
/// There is no user to ask.
pub fn confirmed(question: &str, yes: bool, undone: &str) -> anyhow::Result<bool> {
    if yes {
        return Ok(true);
    }
    let answer = Terminal::default().confirm(question, "yes", Some("no"));
    answer.ok_or_else(|| anyhow::anyhow!("{undone}: nobody answered; --yes does it without asking"))
}

/// One line from the terminal, without its end. `None` if there is no terminal, or it says that nothing will come.
fn ask(question: &str, hidden: bool) -> Result<Option<Zeroizing<String>>, Error> {
    let Ok(mut terminal) = File::options().read(true).write(true).open("/dev/tty") else { return Ok(None) };
    let echo = if hidden { Some(EchoOff::new(&terminal).map_err(failed)?) } else { None };
    terminal.write_all(question.as_bytes()).map_err(failed)?;
    let line = read_line(&terminal);
    if echo.is_some() {
        // The line feed that ended the answer was not shown either.
        let _ = terminal.write_all(b"\n");
    }
    line
}

fn failed(source: io::Error) -> Error {
    system("asking at the terminal", source)
}

fn read_line(mut terminal: &File) -> Result<Option<Zeroizing<String>>, Error> {
    let mut line = Zeroizing::new(Vec::with_capacity(ANSWER_MAX));
    loop {
        if INTERRUPTED.load(Ordering::SeqCst) {
            return Err(Error::Door(wattlock_door::Error::Interrupted));
        }
        match poll(&mut [PollFd::new(&terminal, PollFlags::IN)], Some(&LOOK)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(failed(error.into())),
        }
        let mut byte = [0];
        let ended = match terminal.read(&mut byte) {
            Ok(0) if line.is_empty() => return Ok(None),
            Ok(0) => true,
            Ok(_) => byte[0] == b'\n',
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        if ended {
            let text = std::str::from_utf8(&line).map_err(|_| usage::<Error>("the answer is not text"))?;
            return Ok(Some(Zeroizing::new(text.to_owned())));
        }
        if line.len() == ANSWER_MAX {
            return Err(usage("the answer is too long"));
        }
        line.push(byte[0]);
    }
}

/// A terminal that shows nothing of what is typed, until this is dropped.
struct EchoOff {
    terminal: File,
    before: Termios,
}

impl EchoOff {
    fn new(terminal: &File) -> io::Result<EchoOff> {
        let before = tcgetattr(terminal.as_fd())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
        tcsetattr(terminal.as_fd(), OptionalActions::Flush, &silent)?;
        Ok(EchoOff { terminal: terminal.try_clone()?, before })
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal.as_fd(), OptionalActions::Now, &self.before);
    }
}

/// How keys and plugins ask. It remembers why there was no answer, which they cannot pass on.
#[derive(Clone, Default)]
pub struct Terminal(Arc<Mutex<Option<Silence>>>);

/// Why a question had no answer.
#[derive(Debug, Clone, Copy)]
enum Silence {
    NobodyThere,
    Interrupted,
}

impl Terminal {
    /// What a failure really was, if a question without an answer came before it.
    pub fn explain(&self, error: Error) -> Error {
        let silence = lock(&self.0).take();
        match (silence, error) {
            (Some(Silence::Interrupted), _) => Error::Door(wattlock_door::Error::Interrupted),
            (Some(Silence::NobodyThere), Error::NoMatchingKey | Error::WrongKey | Error::BadPassphrase) => {
                Error::PassphraseNeeded
            }
            (_, error) => error,
        }
    }

    fn remember<T>(&self, answer: Result<Option<T>, Error>) -> Option<T> {
        let silence = match answer {
            Ok(Some(answer)) => return Some(answer),
            Err(Error::Door(wattlock_door::Error::Interrupted)) => Silence::Interrupted,
            Ok(None) | Err(_) => Silence::NobodyThere,
        };
        *lock(&self.0) = Some(silence);
        None
    }
}

/// A message from a plugin or a file, fit for a terminal.
fn plain(message: &str) -> String {
    message.chars().filter(|c| !c.is_control() && !matches!(c, '\u{2068}' | '\u{2069}')).collect()
}

impl Callbacks for Terminal {
    fn display_message(&self, message: &str) {
        eprintln!("{}", plain(message));
    }

    fn confirm(&self, message: &str, yes: &str, no: Option<&str>) -> Option<bool> {
        let (yes, no) = (plain(yes), plain(no.unwrap_or("no")));
        let question = format!("{}\n1: {yes}\n2: {no}\n1 or 2: ", plain(message));
        let answer = self.remember(ask(&question, false))?;
        Some(answer.trim() == "1" || answer.trim().eq_ignore_ascii_case(&yes))
    }

    fn request_public_string(&self, description: &str) -> Option<String> {
        let answer = self.remember(ask(&format!("{}: ", plain(description)), false))?;
        Some(String::clone(&answer))
    }

    fn request_passphrase(&self, description: &str) -> Option<SecretString> {
        self.remember(secret(&format!("{}: ", plain(description))))
    }
}
