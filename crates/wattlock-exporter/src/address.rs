//! Where the exporter listens: a port of an address of this machine, or a socket in a folder.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A port.
    Port(SocketAddr),
    /// A socket, which its owner and its group may connect to.
    Socket(PathBuf),
}

/// Why nothing listens there.
#[derive(Debug)]
pub enum Refused {
    /// The words are no address that is taken.
    Words(String),
    /// The system says so.
    System(String, io::Error),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Words(why) => f.write_str(why),
            Refused::System(what, error) => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for Refused {}

impl Address {
    /// `127.0.0.1:19469`, `localhost:19469` or `unix:/run/wattlock.socket`. A name stands for this machine alone: another
    /// address is given as a number.
    ///
    /// # Errors
    /// [`Refused::Words`].
    pub fn parse(text: &str) -> Result<Address, Refused> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.starts_with('/') {
                true => Ok(Address::Socket(path.into())),
                false => Err(Refused::Words(format!("{text}: a socket's path begins with /"))),
            };
        }
        if let Ok(address) = text.parse() {
            return Ok(Address::Port(address));
        }
        let usage =
            || Refused::Words(format!("{text}: an address is 127.0.0.1:19469, [::1]:19469 or unix:/path"));
        let found = text.to_socket_addrs().map_err(|_| usage())?;
        let local: Vec<SocketAddr> = found.filter(|address| is_this_machine(address.ip())).collect();
        let elsewhere =
            || Refused::Words(format!("{text}: not an address of this machine alone; give a number"));
        local.first().copied().map(Address::Port).ok_or_else(elsewhere)
    }

    /// Whether others than this machine's programs may connect.
    pub fn is_open(&self) -> bool {
        matches!(self, Address::Port(address) if !is_this_machine(address.ip()))
    }

    /// Listens.
    ///
    /// # Errors
    /// [`Refused::System`]: taken, or not ours.
    pub fn listen(&self) -> Result<Listener, Refused> {
        let refused = |what: String| |error| Refused::System(what, error);
        match self {
            Address::Port(address) => {
                let taken = |error: io::Error| match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        Refused::System(format!("{address}: another program listens there (--listen)"), error)
                    }
                    _ => Refused::System(format!("listening at {address}"), error),
                };
                let listener = TcpListener::bind(address).map_err(taken)?;
                listener.set_nonblocking(true).map_err(refused(format!("listening at {address}")))?;
                Ok(Listener::Port(listener))
            }
            Address::Socket(path) => {
                let shown = path.display().to_string().replace(char::is_control, "?");
                let listener = bind(path).map_err(refused(format!("listening at {shown}")))?;
                listener.set_nonblocking(true).map_err(refused(format!("listening at {shown}")))?;
                Ok(Listener::Socket(listener, path.clone()))
            }
        }
    }
}

fn is_this_machine(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// A socket for its owner and group. One that a dead process left is replaced; a living one's, and what is no socket, stay.
fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something else is there"));
        }
        match connects(path) {
            Err(Errno::CONNREFUSED) => std::fs::remove_file(path)?,
            _ => return Err(io::Error::new(io::ErrorKind::AddrInUse, "another program listens there")),
        }
    }
    // The program has one thread.
    let before = rustix::process::umask(Mode::XUSR | Mode::XGRP | Mode::RWXO);
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    bound
}

/// Without waiting: [`Errno::AGAIN`] is of a listener that many wait for.
fn connects(path: &Path) -> rustix::io::Result<()> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

/// What listens.
#[derive(Debug)]
pub enum Listener {
    /// A port.
    Port(TcpListener),
    /// A socket.
    Socket(UnixListener, PathBuf),
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listener::Port(listener) => match listener.local_addr() {
                Ok(address) => write!(f, "http://{address}/"),
                Err(_) => f.write_str("a port"),
            },
            Listener::Socket(_, path) => {
                write!(f, "unix:{}", path.display().to_string().replace(char::is_control, "?"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_taken_as_it_is_and_a_name_if_it_is_this_machines() {
        assert_eq!(Address::parse("127.0.0.1:1").unwrap(), Address::Port(([127, 0, 0, 1], 1).into()));
        assert!(!Address::parse("[::1]:19469").unwrap().is_open());
        assert!(Address::parse("0.0.0.0:1").unwrap().is_open());
        assert!(Address::parse("[::ffff:10.0.0.1]:1").unwrap().is_open());
        assert!(!Address::parse("localhost:1").unwrap().is_open());
        assert_eq!(Address::parse("unix:/a b").unwrap(), Address::Socket("/a b".into()));
        for wrong in ["", "19469", "127.0.0.1", "unix:", "unix:relative", "127.0.0.1:65536", ":19469"] {
            assert!(matches!(Address::parse(wrong), Err(Refused::Words(_))), "{wrong}");
        }
    }

    #[test]
    fn a_dead_processes_socket_is_replaced_and_nothing_else_is() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let address = Address::Socket(path.clone());
        let first = address.listen().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o660);
        let taken = address.listen().unwrap_err().to_string();
        assert!(taken.contains("another program listens there"), "{taken}");
        drop(first);
        assert!(path.exists());
        drop(address.listen().unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert!(address.listen().is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    /// As a busy exporter's is, or one that was stopped.
    #[test]
    fn a_socket_that_many_wait_for_is_another_programs_and_nothing_waits_for_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let Listener::Socket(busy, _) = Address::Socket(path.clone()).listen().unwrap() else { panic!() };
        rustix::net::listen(&busy, 0).unwrap();
        let first = std::os::unix::net::UnixStream::connect(&path).unwrap();
        assert_eq!(connects(&path), Err(Errno::AGAIN));
        let taken = Address::Socket(path.clone()).listen().unwrap_err().to_string();
        assert!(taken.contains("another program listens there"), "{taken}");
        drop(first);
        assert!(path.exists());
    }

    #[test]
    fn a_taken_port_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Port(taken.local_addr().unwrap());
        let said = address.listen().unwrap_err().to_string();
        assert!(said.contains("another program listens there"), "{said}");
    }
}
