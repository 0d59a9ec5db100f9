//! Addresses of a configuration: where its servers listen, and where it hands requests on to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};

use anyhow::{Context, Result, ensure};

/// Where a server listens, in one spelling: `*` is any IPv4 address, `::` any IPv6 one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Socket {
    /// Host and port.
    Tcp(String, u16),
    /// Host and port of HTTP/3.
    Udp(String, u16),
    /// Path of a socket.
    Unix(String),
}

/// The sockets that a `listen` names: one, or those of a range of ports.
///
/// # Errors
/// It names none.
pub fn sockets(address: &str, quic: bool) -> Result<Vec<Socket>> {
    if let Some(path) = address.strip_prefix("unix:") {
        return Ok(vec![Socket::Unix(path.to_owned())]);
    }
    let (host, ports) = parted(address, "80");
    let host = if host.is_empty() { "*" } else { host };
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    let (first, last) = port(first).zip(port(last)).with_context(|| format!("`{address}`: no port"))?;
    ensure!(first <= last, "`{address}`: no range of ports");
    let host = match host {
        "0.0.0.0" => "*".to_owned(),
        "localhost" => "127.0.0.1".to_owned(),
        host => host.parse::<IpAddr>().map_or_else(|_| host.to_ascii_lowercase(), |ip| ip.to_string()),
    };
    let kind = if quic { Socket::Udp } else { Socket::Tcp };
    Ok((first..=last).map(|port| kind(host.clone(), port)).collect())
}

/// Host, without brackets, and port or range of an address.
fn parted<'a>(address: &'a str, usual: &'a str) -> (&'a str, &'a str) {
    if let Some((host, rest)) = address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (host, rest.strip_prefix(':').unwrap_or(usual));
    }
    let ports =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    match address.rsplit_once(':') {
        Some(both) => both,
        None if ports(address) => ("", address),
        None => (address, usual),
    }
}

/// Where a request is handed on to.
#[derive(Debug, PartialEq, Eq)]
pub enum Peer<'a> {
    /// A named group.
    Group(&'a str),
    /// A socket of this machine, by path.
    Unix(&'a str),
    /// A loopback address.
    Loopback(IpAddr, u16),
    /// Anything else: another machine, a name, a variable.
    Elsewhere,
}

/// The parts of what `proxy_pass` and its like are given: what stands before the address, the address, what follows.
pub fn around(target: &str) -> [&str; 3] {
    let (scheme, rest) = match target.find("://") {
        Some(at) => target.split_at(at + 3),
        None => ("", target),
    };
    let end = match rest.strip_prefix("unix:") {
        // A path ends at the colon before the URI.
        Some(path) => path.find(':').map_or(rest.len(), |at| at + "unix:".len()),
        None => rest.find(['/', '?']).unwrap_or(rest.len()),
    };
    let (address, uri) = rest.split_at(end);
    [scheme, address, uri]
}

/// What an address is; `usual` is the port of one that names none.
pub fn peer<'a>(address: &'a str, usual: u16, is_group: impl Fn(&str) -> bool) -> Peer<'a> {
    if address.contains('$') {
        return Peer::Elsewhere;
    }
    if is_group(address) {
        return Peer::Group(address);
    }
    if let Some(path) = address.strip_prefix("unix:") {
        return Peer::Unix(path);
    }
    let usual = usual.to_string();
    let (host, port) = parted(address, &usual);
    let ip = match host.eq_ignore_ascii_case("localhost") {
        true => named_loopback(),
        false => host.parse().ok().filter(IpAddr::is_loopback),
    };
    match (ip, port.parse()) {
        (Some(ip), Ok(port)) => Peer::Loopback(ip, port),
        _ => Peer::Elsewhere,
    }
}

/// What this machine calls localhost, if that is nothing but loopback.
fn named_loopback() -> Option<IpAddr> {
    let found: Vec<IpAddr> = ("localhost", 0).to_socket_addrs().ok()?.map(|address| address.ip()).collect();
    found.iter().all(IpAddr::is_loopback).then(|| found.first().copied()).flatten()
}

/// Whether a request to a loopback address reaches a server that listens there.
pub fn reaches(socket: &Socket, ip: IpAddr, port: u16) -> bool {
    let Socket::Tcp(host, own) = socket else { return false };
    let any = match ip {
        IpAddr::V4(_) => host == "*",
        IpAddr::V6(_) => *host == Ipv6Addr::UNSPECIFIED.to_string(),
    };
    let other = host.parse::<IpAddr>().is_ok_and(|host| host == ip);
    // `localhost` may be either.
    let either = host.parse() == Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)) && ip == IpAddr::V6(Ipv6Addr::LOCALHOST);
    *own == port && (any || other || either)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_socket_has_one_spelling() {
        let tcp = |host: &str, port| Socket::Tcp(host.to_owned(), port);
        for (text, wanted) in [
            ("443", tcp("*", 443)),
            ("*:443", tcp("*", 443)),
            ("0.0.0.0:443", tcp("*", 443)),
            ("[::]:443", tcp("::", 443)),
            ("[0:0::1]:443", tcp("::1", 443)),
            ("[::1]", tcp("::1", 80)),
            ("10.0.0.1", tcp("10.0.0.1", 80)),
            ("localhost:8080", tcp("127.0.0.1", 8080)),
            ("Example.org", tcp("example.org", 80)),
            ("unix:/run/x.sock", Socket::Unix("/run/x.sock".to_owned())),
        ] {
            assert_eq!(sockets(text, false).unwrap(), [wanted], "{text}");
        }
        assert_eq!(sockets("8000-8002", false).unwrap().len(), 3);
        assert_eq!(sockets("443", true).unwrap(), [Socket::Udp("*".to_owned(), 443)]);
        for wrong in ["a:b", "0", "99999", "9-8", "[::1]:x", "1-2-3", "*:"] {
            assert!(sockets(wrong, false).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_target_is_parted_and_only_loopback_is_here() {
        assert_eq!(around("http://a:1/b/c"), ["http://", "a:1", "/b/c"]);
        assert_eq!(around("http://unix:/run/a.sock:/b"), ["http://", "unix:/run/a.sock", ":/b"]);
        assert_eq!(around("unix:/run/php.sock"), ["", "unix:/run/php.sock", ""]);
        assert_eq!(around("127.0.0.1:9000"), ["", "127.0.0.1:9000", ""]);
        let group = |name: &str| name == "app";
        assert_eq!(peer("app", 80, group), Peer::Group("app"));
        assert_eq!(peer("unix:/x", 80, group), Peer::Unix("/x"));
        assert_eq!(peer("127.1.2.3", 80, group), Peer::Loopback("127.1.2.3".parse().unwrap(), 80));
        assert_eq!(peer("[::1]:81", 80, group), Peer::Loopback("::1".parse().unwrap(), 81));
        assert!(matches!(peer("LocalHost:81", 80, group), Peer::Loopback(_, 81)));
        for elsewhere in [
            "app:80",
            "10.0.0.1:80",
            "0.0.0.0",
            "example.org",
            "$host",
            "127.0.0.1:$port",
            "unix:/x$y",
            "127.0.0.1.evil",
            "127.0.0.1@evil",
            "2130706433",
            "[::ffff:127.0.0.1]:80",
            "localhost.evil",
            "",
            "127.1",
        ] {
            assert_eq!(peer(elsewhere, 80, group), Peer::Elsewhere, "{elsewhere}");
        }
    }

    #[test]
    fn a_copy_knows_its_own_servers() {
        let at = |text: &str| sockets(text, false).unwrap().remove(0);
        let (four, six) = ("127.0.0.1".parse().unwrap(), "::1".parse().unwrap());
        assert!(reaches(&at("8080"), four, 8080) && !reaches(&at("8080"), six, 8080));
        assert!(reaches(&at("[::]:8080"), six, 8080) && !reaches(&at("8080"), four, 81));
        assert!(reaches(&at("127.0.0.1:8080"), four, 8080) && reaches(&at("localhost:8080"), six, 8080));
        assert!(
            !reaches(&at("10.0.0.1:8080"), four, 8080) && !reaches(&sockets("1", true).unwrap()[0], four, 1)
        );
    }
}
