//! Where a copy listens: for each address of the site a free port of loopback, or a socket in a folder of ours.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::listen::{self, Reach, Socket};

/// Sockets of one configuration. Each takes a descriptor here, until nginx has it.
const MOST: usize = 256;

/// Where the sockets of paths lie, below what workers write: nginx lets every user write to a socket, so the folder
/// decides who reaches one.
pub fn folder(spool: &Path) -> PathBuf {
    spool.join("sockets")
}

/// Free ports of 127.0.0.1, each held until the value is dropped: none is given twice.
#[derive(Debug, Default)]
pub struct Ports {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
}

impl Ports {
    /// One for TCP.
    ///
    /// # Errors
    /// None is free.
    pub fn tcp(&mut self) -> Result<SocketAddr> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a port of 127.0.0.1")?;
        let address = free.local_addr()?;
        self.tcp.push(free);
        Ok(address)
    }

    fn udp(&mut self) -> Result<u16> {
        let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("a port of 127.0.0.1")?;
        let port = free.local_addr()?.port();
        self.udp.push(free);
        Ok(port)
    }
}

/// What a socket of the site is in the copy.
#[derive(Debug, Clone)]
pub enum Mapped {
    Tcp(u16),
    Udp(u16),
    Unix(String),
}

impl Mapped {
    /// As a `listen` names it.
    pub fn words(&self) -> String {
        match self {
            Mapped::Tcp(port) | Mapped::Udp(port) => format!("127.0.0.1:{port}"),
            Mapped::Unix(path) => format!("unix:{path}"),
        }
    }
}

/// The site's sockets, and what they are in the copy.
#[derive(Debug, Default)]
pub struct Sockets {
    /// The ports.
    pub ports: Ports,
    mapped: BTreeMap<Socket, Mapped>,
    /// Those that take IPv4, too (`ipv6only=off`).
    dual: BTreeSet<Socket>,
    /// Those of the site that the copy has not.
    missing: BTreeSet<Socket>,
    /// Ports at which the site listens by a name; at which address is not known.
    named: BTreeSet<u16>,
}

/// What of the site a request on this machine reaches.
#[derive(Debug)]
pub enum Reached<'a> {
    /// A server that the copy has, too.
    Own(&'a Mapped),
    /// Perhaps the site: the request must not be made.
    Unclear,
    /// Nothing of the site.
    Other,
}

impl Sockets {
    /// Takes a socket in; one of a path lies in this folder.
    ///
    /// # Errors
    /// There are too many, or no port is free.
    pub fn give(&mut self, socket: Socket, folder: &Path) -> Result<()> {
        if self.mapped.contains_key(&socket) {
            return Ok(());
        }
        ensure!(self.mapped.len() < MOST, "more than {MOST} addresses to listen on");
        let mapped = match socket {
            Socket::Tcp(..) => Mapped::Tcp(self.ports.tcp()?.port()),
            Socket::Udp(..) => Mapped::Udp(self.ports.udp()?),
            Socket::Unix(_) => {
                let name = format!("socket-{}", self.mapped.len());
                Mapped::Unix(folder.join(name).display().to_string())
            }
        };
        self.mapped.insert(socket, mapped);
        Ok(())
    }

    /// What one is.
    pub fn get(&self, socket: &Socket) -> Option<&Mapped> {
        self.mapped.get(socket)
    }

    /// Remembers more of a socket: whether it takes IPv4, too, and whether its host is a name.
    pub fn describe(&mut self, socket: &Socket, dual: bool, named: bool) {
        if dual {
            self.dual.insert(socket.clone());
        }
        if let (true, Socket::Tcp(_, port)) = (named, socket) {
            self.named.insert(*port);
        }
    }

    /// Takes a socket in that the site has and the copy has not.
    pub fn miss(&mut self, socket: Socket) {
        self.missing.insert(socket);
    }

    /// What a request reaches that goes to one of these loopback addresses, and to which is nginx's choice.
    pub fn at(&self, ips: &[IpAddr], port: u16) -> Reached<'_> {
        let ways = ips
            .iter()
            .map(|ip| move |socket: &Socket| listen::reaches(socket, self.dual.contains(socket), *ip, port));
        self.reached(self.named.contains(&port), ways)
    }

    /// What a request to a socket of this path reaches.
    pub fn at_path(&self, path: &str) -> Reached<'_> {
        let way = |socket: &Socket| match socket {
            Socket::Unix(own) => listen::reaches_path(own, path),
            _ => None,
        };
        self.reached(false, std::iter::once(way))
    }

    /// Each way is an address to which the request may go; `named`: the site may listen there besides.
    fn reached<Way: Fn(&Socket) -> Option<Reach>>(
        &self,
        named: bool,
        ways: impl Iterator<Item = Way>,
    ) -> Reached<'_> {
        let (mut sure, mut perhaps) = (BTreeSet::new(), BTreeSet::new());
        for way in ways {
            if self.missing.iter().any(|socket| way(socket).is_some()) {
                return Reached::Unclear;
            }
            let found = self.mapped.keys().filter_map(|socket| Some((way(socket)?, socket)));
            if let Some((reach, socket)) = found.min() {
                if reach == Reach::Perhaps { &mut perhaps } else { &mut sure }.insert(socket);
            }
        }
        let one = sure.first().filter(|_| sure.len() == 1 && perhaps.is_subset(&sure));
        match one.and_then(|socket| self.mapped.get(*socket)) {
            Some(mapped) => Reached::Own(mapped),
            None if sure.is_empty() && perhaps.is_empty() && !named => Reached::Other,
            None => Reached::Unclear,
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.mapped.len()
    }

    /// Those of TCP.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.mapped.values().filter_map(|mapped| match mapped {
            Mapped::Tcp(port) => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, *port))),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sockets of some `listen`s, and those of `stream`.
    fn site(listens: &[&str], missing: &[&str]) -> Sockets {
        let mut sockets = Sockets::default();
        let one = |text: &str| listen::sockets(text, false).unwrap().remove(0);
        for text in listens {
            let address = text.trim_end_matches(" dual");
            let socket = one(address);
            sockets.describe(&socket, *text != address, listen::is_named(address));
            sockets.give(socket, Path::new("/own")).unwrap();
        }
        missing.iter().for_each(|text| sockets.miss(one(text)));
        sockets
    }

    #[test]
    fn a_request_never_reaches_the_site_by_another_spelling() {
        let (own, unclear, other) = ("own", "unclear", "other");
        for (listens, missing, ips, wanted) in [
            (&["80"][..], &[][..], &["127.0.0.1"][..], own),
            (&["80"], &[], &["127.0.0.1", "::1"], own),
            (&["[::]:80"], &[], &["127.0.0.1"], other),
            (&["[::]:80"], &[], &["127.0.0.1", "::1"], own),
            (&["[::]:80 dual"], &[], &["127.0.0.1", "::1"], own),
            (&["80", "[::]:80"], &[], &["127.0.0.1", "::1"], unclear),
            (&["80", "[::]:80 dual"], &[], &["127.0.0.1"], own),
            (&["127.0.0.1:80", "80"], &[], &["127.0.0.1"], own),
            (&["localhost:80"], &[], &["::1", "127.0.0.1"], own),
            (&["localhost:80"], &[], &["::1"], unclear),
            (&["localhost:80"], &[], &["127.0.1.1"], unclear),
            (&["box.example:80"], &[], &["127.0.0.1"], unclear),
            (&["81"], &["80"], &["127.0.0.1"], unclear),
            (&["81"], &["80"], &["::1"], other),
            (&["80"], &["[::1]:80"], &["127.0.0.1", "::1"], unclear),
            (&["81", "10.0.0.1:80", "unix:/x"], &[], &["127.0.0.1", "::1"], other),
        ] {
            let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
            let sockets = site(listens, missing);
            let found = match sockets.at(&ips, 80) {
                Reached::Own(_) => own,
                Reached::Unclear => unclear,
                Reached::Other => other,
            };
            assert_eq!(found, wanted, "{listens:?} {missing:?} {ips:?}");
        }
        let sockets = site(&["unix:/nowhere/own.sock"], &["unix:/nowhere/mail.sock"]);
        assert!(matches!(sockets.at_path("/nowhere/a/../own.sock"), Reached::Own(Mapped::Unix(_))));
        assert!(matches!(sockets.at_path("//nowhere/mail.sock"), Reached::Unclear));
        assert!(matches!(sockets.at_path("own.sock"), Reached::Unclear));
        assert!(matches!(sockets.at_path("/nowhere/php.sock"), Reached::Other));
    }
}
