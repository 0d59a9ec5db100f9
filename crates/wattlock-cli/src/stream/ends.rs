//! The ends of a stream: standard streams, sockets, and the bell that an interrupt rings.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with, sockopt,
};
use wattlock_files::Error;

use crate::wrong::system;
use wattlock_shell::INTERRUPTED;

static BELL: OnceLock<OwnedFd> = OnceLock::new();

/// What [`ring`] makes readable.
///
/// # Errors
/// [`wattlock_door::Error::Io`].
pub fn bell() -> Result<BorrowedFd<'static>, Error> {
    if BELL.get().is_none() {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let _ = BELL.set(made.map_err(|error| failed("making an eventfd", error.into()))?);
    }
    // The interrupt may have come before there was a bell.
    if INTERRUPTED.load(std::sync::atomic::Ordering::SeqCst) {
        ring();
    }
    BELL.get().map(AsFd::as_fd).ok_or(Error::Door(wattlock_door::Error::Interrupted))
}

/// An interrupt came.
pub fn ring() {
    if let Some(bell) = BELL.get() {
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    }
}

fn failed(what: impl Into<std::borrow::Cow<'static, str>>, source: io::Error) -> Error {
    system(what, source)
}

/// A connection whose descriptor cannot be doubled.
pub fn no_copy(source: io::Error) -> Error {
    failed("keeping the connection", source)
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
            Address::Unix(path) => wattlock_door::one_line(path),
        };
        // An interrupt travelled through the system's error.
        match source.downcast::<Error>() {
            Ok(ours) => ours,
            Err(source) => failed(format!("{what} {name}"), source),
        }
    }

    /// Connects, or obeys the bell.
    ///
    /// # Errors
    /// [`wattlock_door::Error::Io`], [`wattlock_door::Error::Interrupted`].
    pub fn connect(&self, stop: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
        let connected = match self {
            Address::Tcp(name) => resolve(name, stop).and_then(|all| {
                let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
                for address in all {
                    match connect_tcp(&address, stop) {
                        Ok(socket) => return Ok(socket),
                        Err(error) if error.get_ref().is_some_and(|inner| inner.is::<Error>()) => {
                            return Err(error);
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }),
            Address::Unix(path) => connect_unix(path, stop),
        };
        connected.map_err(|error| self.about("connecting to", error))
    }

    /// Waits for one connection, or for the bell. If the connection is to begin with certain bytes, others are closed
    /// meanwhile: a probe must not end a receiver.
    ///
    /// # Errors
    /// [`wattlock_door::Error::Io`], [`wattlock_door::Error::Interrupted`].
    pub fn accept(&self, begins: &[u8], stop: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
        let failed = |error| self.about("listening on", error);
        match self {
            Address::Tcp(name) => {
                let listener = TcpListener::bind(name).map_err(failed)?;
                if let Ok(address) = listener.local_addr() {
                    eprintln!("wattlock: listening on {address}");
                }
                listener.set_nonblocking(true).map_err(failed)?;
                let accept = || listener.accept().map(|(socket, _)| OwnedFd::from(socket));
                let socket = first(&listener, accept, begins, stop).map_err(failed)?;
                settle(&socket);
                Ok(socket)
            }
            Address::Unix(path) => {
                let listener = UnixListener::bind(path).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                let accept = || listener.accept().map(|(socket, _)| OwnedFd::from(socket));
                let socket = first(&listener, accept, begins, stop);
                let _ = std::fs::remove_file(path);
                socket.map_err(failed)
            }
        }
    }
}

/// Frames have their own time to wait, and a host that is gone without a word is noticed within two minutes. What cannot
/// be set is only slower.
fn settle(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(60));
    let _ = sockopt::set_tcp_keepintvl(socket, Duration::from_secs(15));
    let _ = sockopt::set_tcp_keepcnt(socket, 4);
}

/// Makes a connection's end a reset: the other side then knows that not all is well here. Nothing on a Unix socket.
pub fn reset_when_closed(socket: &OwnedFd) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// The addresses of a name. Asking for them cannot be interrupted, so a thread does, which is left behind if need be.
fn resolve(name: &str, stop: BorrowedFd<'_>) -> io::Result<Vec<SocketAddr>> {
    let ready = std::sync::Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
    let (found, answer) = mpsc::channel();
    let (name, ring) = (name.to_owned(), ready.clone());
    std::thread::Builder::new().spawn(move || {
        let _ = found.send(name.to_socket_addrs().map(Iterator::collect));
        let _ = rustix::io::write(&*ring, &1u64.to_ne_bytes());
    })?;
    wait(&ready, PollFlags::IN, stop)?;
    answer.recv().map_err(io::Error::other)?
}

fn connect_tcp(address: &SocketAddr, stop: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            wait(&socket, PollFlags::OUT, stop)?;
            sockopt::socket_error(&socket)??;
        }
        Err(error) => return Err(error.into()),
    }
    rustix::io::ioctl_fionbio(&socket, false)?;
    settle(&socket);
    Ok(socket)
}

fn connect_unix(path: &std::path::Path, stop: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => break,
            // Its queue is full, and nothing tells when it is not.
            Err(Errno::AGAIN) => {
                let mut bell = [PollFd::from_borrowed_fd(stop, PollFlags::IN)];
                if poll(&mut bell, Some(&AGAIN)).is_ok_and(|ready| ready > 0) {
                    return Err(Error::Door(wattlock_door::Error::Interrupted).into());
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// Waits for a descriptor, or for the bell.
fn wait(fd: &impl AsFd, what: PollFlags, stop: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        let mut all = [PollFd::new(fd, what), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        match poll(&mut all, None) {
            Ok(_) if !all[1].revents().is_empty() => {
                return Err(Error::Door(wattlock_door::Error::Interrupted).into());
            }
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Connections that have not begun; the oldest goes when another comes.
const UNDECIDED_MOST: usize = 16;
/// How often to look at a connection that has sent a part of what it is to begin with.
const PART: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The first connection that begins with these bytes. Nothing of it is consumed.
fn first(
    listener: &impl AsFd,
    accept: impl Fn() -> io::Result<OwnedFd>,
    begins: &[u8],
    stop: BorrowedFd<'_>,
) -> io::Result<OwnedFd> {
    let mut undecided: Vec<OwnedFd> = Vec::new();
    let mut part = false;
    loop {
        let mut all =
            vec![PollFd::from_borrowed_fd(stop, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        // One that has sent a part is readable already.
        all.extend(undecided.iter().filter(|_| !part).map(|one| PollFd::new(one, PollFlags::IN)));
        match poll(&mut all, part.then_some(&PART)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !all[0].revents().is_empty() {
            return Err(Error::Door(wattlock_door::Error::Interrupted).into());
        }
        if !all[1].revents().is_empty() {
            match accept() {
                Ok(socket) if begins.is_empty() => return Ok(socket),
                Ok(socket) => {
                    if undecided.len() == UNDECIDED_MOST {
                        undecided.remove(0);
                    }
                    undecided.push(socket);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
        }
        part = false;
        let mut at = 0;
        while at < undecided.len() {
            let mut start = vec![0; begins.len()];
            match recv(&undecided[at], &mut start[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN | Errno::INTR) => at += 1,
                Ok((_, len)) if len == begins.len() && start == begins => {
                    return Ok(undecided.swap_remove(at));
                }
                Ok((_, len)) if len > 0 && len < begins.len() && start[..len] == begins[..len] => {
                    (part, at) = (true, at + 1);
                }
                other => {
                    if other.is_ok_and(|(_, len)| len > 0) {
                        eprintln!("wattlock: a connection that is no sealed stream was closed");
                    }
                    undecided.remove(at);
                }
            }
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
