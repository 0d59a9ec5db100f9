//! The ends of a stream: standard streams, sockets, and the bell that an interrupt rings.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use wattlock_files::Error;

use wattlock_shell::INTERRUPTED;

static BELL: OnceLock<OwnedFd> = OnceLock::new();

/// What [`ring`] makes readable.
///
/// # Errors
/// [`Error::Io`].
pub fn bell() -> Result<BorrowedFd<'static>, Error> {
    if BELL.get().is_none() {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let _ = BELL.set(made.map_err(|error| failed("making an eventfd", error.into()))?);
    }
    // The interrupt may have come before there was a bell.
    if INTERRUPTED.load(std::sync::atomic::Ordering::SeqCst) {
        ring();
    }
    BELL.get().map(AsFd::as_fd).ok_or(Error::Interrupted)
}

/// An interrupt came.
pub fn ring() {
    if let Some(bell) = BELL.get() {
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    }
}

fn failed(what: impl Into<std::borrow::Cow<'static, str>>, source: io::Error) -> Error {
    Error::Io { what: what.into(), source }
}

/// Standard input, without a buffer of this program's.
pub fn standard_input() -> Result<OwnedFd, Error> {
    io::stdin().as_fd().try_clone_to_owned().map_err(|error| failed("standard input", error))
}

/// Standard output, without a buffer of this program's.
pub fn standard_output() -> Result<OwnedFd, Error> {
    io::stdout().as_fd().try_clone_to_owned().map_err(|error| failed("standard output", error))
}

/// Where a socket is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `HOST:PORT`.
    Tcp(String),
    /// A path: anything with a slash.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        if text.contains('/') {
            return Ok(Address::Unix(text.into()));
        }
        match text.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())) {
            Some((host, Ok(_))) if !host.is_empty() => Ok(Address::Tcp(text.to_owned())),
            _ => Err("HOST:PORT, or a path with a slash in it".into()),
        }
    }
}

impl Address {
    fn about(&self, what: &str, source: io::Error) -> Error {
        let name = match self {
            Address::Tcp(name) => name.clone(),
            Address::Unix(path) => wattlock_files::one_line(path),
        };
        // An interrupt travelled through the system's error.
        match source.downcast::<Error>() {
            Ok(ours) => ours,
            Err(source) => failed(format!("{what} {name}"), source),
        }
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn connect(&self) -> Result<OwnedFd, Error> {
        let connected = match self {
            Address::Tcp(name) => TcpStream::connect(name).and_then(|socket| {
                // Frames have their own time to wait.
                socket.set_nodelay(true)?;
                Ok(OwnedFd::from(socket))
            }),
            Address::Unix(path) => UnixStream::connect(path).map(OwnedFd::from),
        };
        connected.map_err(|error| self.about("connecting to", error))
    }

    /// Waits for one connection, or for the bell.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Interrupted`].
    pub fn accept(&self, stop: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
        let failed = |error| self.about("listening on", error);
        match self {
            Address::Tcp(name) => {
                let listener = TcpListener::bind(name).map_err(failed)?;
                if let Ok(address) = listener.local_addr() {
                    eprintln!("wattlock: listening on {address}");
                }
                wait(&listener, stop).map_err(failed)?;
                let (socket, _) = listener.accept().map_err(failed)?;
                socket.set_nodelay(true).map_err(failed)?;
                Ok(socket.into())
            }
            Address::Unix(path) => {
                let listener = UnixListener::bind(path).map_err(failed)?;
                let socket = wait(&listener, stop).and_then(|()| listener.accept());
                let _ = std::fs::remove_file(path);
                Ok(socket.map_err(failed)?.0.into())
            }
        }
    }
}

fn wait(listener: &impl AsFd, stop: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        let mut all = [PollFd::new(listener, PollFlags::IN), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        match poll(&mut all, None) {
            Ok(_) if !all[1].revents().is_empty() => return Err(Error::Interrupted.into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_with_a_port_or_a_path() {
        assert_eq!("h:1".parse(), Ok(Address::Tcp("h:1".into())));
        assert_eq!("[::1]:7000".parse(), Ok(Address::Tcp("[::1]:7000".into())));
        assert_eq!("./s".parse(), Ok(Address::Unix("./s".into())));
        for wrong in ["", "host", ":7000", "host:", "host:70000", "host:x"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}
