//! The terminal that `top` draws on, which is as it was again whatever ends the program, but SIGKILL and a fault of the
//! program's own (SIGSEGV, SIGBUS, SIGILL, SIGFPE): of those nothing can be told safely.
//!
//! - It is opened anew, so that reads and writes that do not wait are ours alone: a terminal that takes nothing more
//!   (its window hangs) keeps no signal from ending the program.
//! - A terminal that has gone away is an end: a read of no bytes, an error, or a hang-up.
//! - The program stops itself at SIGTSTP after it has put the terminal back, and begins again at SIGCONT.
//! - In the background it touches no terminal, which would stop it (SIGTTIN, SIGTTOU) each time that it goes on: it waits
//!   to be in the foreground, or to end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr, ttyname};
use signal_hook::consts::{SIGCONT, SIGTSTP, SIGWINCH};
use wattlock_core::sync::lock;

use super::keys::{Key, keys};

/// The other screen of xterm and its like, without a cursor.
const BEGIN: &[u8] = b"\x1b[?1049h\x1b[?25l";
/// Plain characters, the cursor, the first screen.
const END: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// How long a terminal that takes nothing is waited for before the signals are looked at.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How often a program in the background looks whether it still is.
const BACKGROUND: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// No screen has more; a terminal may say anything, and each place takes memory.
const WIDEST: u16 = 1000;
const HIGHEST: u16 = 500;

/// Every signal that ends a program by default and can be heeded (signal(7)): not SIGKILL; nor what tells a fault, since
/// the instruction at fault would be tried again for ever.
fn ending() -> impl Iterator<Item = i32> {
    const ENDING: [i32; 18] = [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGPIPE,
        libc::SIGALRM,
        libc::SIGTERM,
        libc::SIGSTKFLT,
        libc::SIGXCPU,
        libc::SIGXFSZ,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGPWR,
        libc::SIGSYS,
    ];
    ENDING.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// What the terminal was, while it is ours.
static BEFORE: Mutex<Option<(File, Termios)>> = Mutex::new(None);

/// The terminal, ours until it is dropped.
pub struct Terminal {
    tty: File,
    signals: Signals,
    /// Another thread writes a byte when it has something.
    woken: UnixStream,
    /// Whether it shows what we draw.
    held: bool,
}

/// Why waiting ended.
pub enum Event {
    Keys(Vec<Key>),
    /// It has another size, or what it shows is no longer ours: everything is drawn anew.
    Redraw,
    /// Another thread has something.
    Woken,
}

/// Which signals came.
#[derive(Clone)]
struct Signals {
    end: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    go_on: Arc<AtomicBool>,
    redraw: Arc<AtomicBool>,
}

impl Terminal {
    /// Opens the terminal that standard output is, and what wakes it. It is ours when [`Terminal::wait`] first returns.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn take() -> io::Result<(Terminal, UnixStream)> {
        let tty = open()?;
        let (woken, wakes) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wakes.set_nonblocking(true)?;
        let signals = Signals::heard(&wakes)?;
        restore_at_panics();
        Ok((Terminal { tty, signals, woken, held: false }, wakes))
    }

    /// Has it send each key, and show the other screen. What it was before is kept once: after a stop from outside it
    /// is still as we set it, or as the shell did.
    fn begin(&self) -> io::Result<()> {
        let mut raw = {
            let mut kept = lock(&BEFORE);
            if kept.is_none() {
                *kept = Some((self.tty.try_clone()?, tcgetattr(&self.tty)?));
            }
            kept.as_ref().map(|(_, before)| before.clone()).ok_or(io::ErrorKind::NotFound)?
        };
        raw.make_raw();
        tcsetattr(&self.tty, OptionalActions::Now, &raw)?;
        let mut pen = self.pen()?;
        pen.write_all(BEGIN)?;
        pen.flush()
    }

    /// What draws on it.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn pen(&self) -> io::Result<Pen> {
        let (tty, signals) = (self.tty.try_clone()?, self.signals.clone());
        Ok(Pen { tty, signals, drawn: Vec::new() })
    }

    /// Columns and rows.
    ///
    /// # Errors
    /// It has gone away.
    pub fn size(&self) -> io::Result<(u16, u16)> {
        let size = tcgetwinsize(&self.tty)?;
        // A terminal without a size is a serial line: as large as terminals were.
        if size.ws_col == 0 || size.ws_row == 0 {
            return Ok((80, 24));
        }
        Ok((size.ws_col.min(WIDEST), size.ws_row.min(HIGHEST)))
    }

    /// Waits for something to do.
    ///
    /// # Errors
    /// [`io::ErrorKind::Interrupted`] if a signal or the terminal's end is the program's end.
    pub fn wait(&mut self) -> io::Result<Event> {
        loop {
            if self.signals.end.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if self.signals.stop.swap(false, Ordering::SeqCst) {
                self.stop()?;
            }
            // It may go on in the background.
            self.held &= !self.signals.go_on.swap(false, Ordering::SeqCst);
            if !self.held && is_foreground(&self.tty) {
                self.begin()?;
                self.held = true;
                self.signals.redraw.store(true, Ordering::SeqCst);
            }
            if self.signals.redraw.swap(false, Ordering::SeqCst) && self.held {
                return Ok(Event::Redraw);
            }
            // A shell that puts it into the foreground again may tell it nothing.
            let (asked, until) =
                if self.held { (PollFlags::IN, None) } else { (PollFlags::empty(), Some(&BACKGROUND)) };
            let mut ready = [PollFd::new(&self.tty, asked), PollFd::new(&self.woken, PollFlags::IN)];
            match poll(&mut ready, until) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [typed, woken] = ready.map(|one| one.revents());
            if !woken.is_empty() {
                let mut bytes = [0; 64];
                while matches!((&self.woken).read(&mut bytes), Ok(64)) {}
            }
            // A signal comes first: it may have gone on in the background.
            if self.signals.came() {
                continue;
            }
            if !typed.is_empty() {
                // Nothing was asked of it in the background: it has gone away.
                return if self.held {
                    self.read().map(Event::Keys)
                } else {
                    Err(io::ErrorKind::Interrupted.into())
                };
            }
            if !woken.is_empty() && self.held {
                return Ok(Event::Woken);
            }
        }
    }

    /// What was typed.
    fn read(&mut self) -> io::Result<Vec<Key>> {
        let mut bytes = [0; 1024];
        match self.tty.read(&mut bytes) {
            Ok(0) => Err(io::ErrorKind::Interrupted.into()),
            Ok(read) => Ok(keys(&bytes[..read])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Vec::new()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Vec::new()),
            Err(_) => Err(io::ErrorKind::Interrupted.into()),
        }
    }

    /// Puts the terminal back and stops the process. When it goes on, [`Terminal::wait`] takes the terminal again.
    ///
    /// # Errors
    /// It cannot stop.
    pub fn stop(&mut self) -> io::Result<()> {
        restore();
        self.held = false;
        signal_hook::low_level::emulate_default_handler(SIGTSTP)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// The terminal by a descriptor that nobody shares. In a container the name may lead nowhere; the controlling
/// terminal's name always leads to it.
fn open() -> io::Result<File> {
    let name = ttyname(io::stdout().as_fd(), Vec::new())?;
    let name = PathBuf::from(std::ffi::OsStr::from_bytes(name.as_bytes()));
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let open = |path: PathBuf| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    open(name).or_else(|_| open("/dev/tty".into()))
}

/// Whether this process may set the terminal and read from it without being stopped: it is in its foreground, or the
/// terminal is none that stops processes.
fn is_foreground(tty: &File) -> bool {
    tcgetpgrp(tty).map_or(true, |foreground| foreground == getpgrp())
}

/// Makes the terminal what it was, if it is ours. It may have gone away, or be another program's.
fn restore() {
    let Some((mut tty, before)) = lock(&BEFORE).take_if(|(tty, _)| is_foreground(tty)) else { return };
    // As much as it takes at once: it may take nothing more.
    let _ = tty.write(END);
    let _ = tcsetattr(&tty, OptionalActions::Now, &before);
}

/// A panic's line is for the first screen.
fn restore_at_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        tell(panic);
    }));
}

impl Signals {
    fn heard(wakes: &UnixStream) -> io::Result<Signals> {
        let flag = Arc::<AtomicBool>::default;
        let signals = Signals { end: flag(), stop: flag(), go_on: flag(), redraw: flag() };
        let others = [(SIGTSTP, &signals.stop), (SIGCONT, &signals.go_on), (SIGWINCH, &signals.redraw)];
        for (signal, flag) in ending().map(|signal| (signal, &signals.end)).chain(others) {
            signal_hook::flag::register(signal, flag.clone())?;
            signal_hook::low_level::pipe::register(signal, wakes.try_clone()?)?;
        }
        Ok(signals)
    }

    fn came(&self) -> bool {
        [&self.end, &self.stop, &self.go_on, &self.redraw].iter().any(|flag| flag.load(Ordering::SeqCst))
    }
}

/// Draws: what is written goes to the terminal when it is flushed.
pub struct Pen {
    tty: File,
    signals: Signals,
    drawn: Vec<u8>,
}

impl Write for Pen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.drawn.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut left = &self.drawn[..];
        while !left.is_empty() {
            match self.tty.write(left) {
                Ok(taken) => left = &left[taken..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.signals.end.load(Ordering::SeqCst) {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                    let mut room = [PollFd::new(&self.tty, PollFlags::OUT)];
                    let _ = poll(&mut room, Some(&LOOK));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.drawn.clear();
        Ok(())
    }
}
