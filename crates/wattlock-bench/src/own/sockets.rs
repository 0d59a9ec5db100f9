//! Where a copy listens: for each address of the site a free port of loopback, or a socket in a folder of ours.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::listen::{self, Socket};

/// Sockets of one configuration. Each takes a descriptor here, until nginx has it.
const MOST: usize = 256;

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

    /// The one that a request to a loopback address reaches.
    pub fn at(&self, ip: IpAddr, port: u16) -> Option<&Mapped> {
        self.mapped.iter().find(|(socket, _)| listen::reaches(socket, ip, port)).map(|(_, mapped)| mapped)
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
