//! Addresses of a configuration: where its servers listen, and where it hands requests on to.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

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
    if let Some(path) = path_of(address) {
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

/// Whether a `listen` names its host, and does not say its address.
pub fn is_named(address: &str) -> bool {
    let host = parted(address, "80").0;
    path_of(address).is_none() && !host.is_empty() && host != "*" && host.parse::<IpAddr>().is_err()
}

/// The path of an address that is one (`ngx_parse_url` takes the prefix in any case).
fn path_of(address: &str) -> Option<&str> {
    let (start, path) = address.split_at_checked("unix:".len())?;
    start.eq_ignore_ascii_case("unix:").then_some(path)
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
    /// Loopback addresses, to each of which nginx may connect, and the port.
    Loopback(Vec<IpAddr>, u16),
    /// Anything else: another machine, a name, a variable.
    Elsewhere,
}

/// The parts of what `proxy_pass` and its like are given: what stands before the address, the address, what follows.
pub fn around(target: &str) -> [&str; 3] {
    let (scheme, rest) = match target.find("://").filter(|_| path_of(target).is_none()) {
        Some(at) => target.split_at(at + 3),
        None => ("", target),
    };
    let end = match path_of(rest) {
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
    if let Some(path) = path_of(address) {
        return Peer::Unix(path);
    }
    let usual = usual.to_string();
    let (host, port) = parted(address, &usual);
    let ips = match host.eq_ignore_ascii_case("localhost") {
        true => named_loopback(),
        false => host.parse().ok().filter(IpAddr::is_loopback).map(|ip| vec![ip]),
    };
    match (ips, port.parse()) {
        (Some(ips), Ok(port)) => Peer::Loopback(ips, port),
        _ => Peer::Elsewhere,
    }
}

/// All that this machine calls localhost, if that is nothing but loopback.
fn named_loopback() -> Option<Vec<IpAddr>> {
    let mut found: Vec<IpAddr> =
        ("localhost", 0).to_socket_addrs().ok()?.map(|address| address.ip()).collect();
    found.dedup();
    (!found.is_empty() && found.iter().all(IpAddr::is_loopback)).then_some(found)
}

/// How a request reaches a socket; the first is preferred by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// By its very address.
    Exact,
    /// By one for all addresses.
    Any,
    /// Perhaps: by a name, or by an IPv4 address that is written as one of IPv6.
    Perhaps,
}

/// How a request to a loopback address reaches a server that listens there, if it does; `dual`: `ipv6only=off`.
pub fn reaches(socket: &Socket, dual: bool, ip: IpAddr, port: u16) -> Option<Reach> {
    let Socket::Tcp(host, own) = socket else { return None };
    if *own != port {
        return None;
    }
    if host == "*" {
        return ip.is_ipv4().then_some(Reach::Any);
    }
    let Ok(own) = host.parse::<IpAddr>() else { return Some(Reach::Perhaps) };
    if own == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        return (dual || ip.is_ipv6()).then_some(Reach::Any);
    }
    let plain = own.to_canonical();
    match own == ip {
        true => Some(Reach::Exact),
        false => (plain == ip || plain.is_unspecified()).then_some(Reach::Perhaps),
    }
}

/// How a path of a socket reaches one on which a server listens: links, `..` and `//` do not hide it.
pub fn reaches_path(own: &str, path: &str) -> Option<Reach> {
    let (one, other) = (Path::new(own), Path::new(path));
    let identity = |path: &Path| fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
    if own == path {
        return Some(Reach::Exact);
    }
    // To which folder a relative one belongs only the running nginx knows.
    if other.is_relative() {
        return Some(Reach::Perhaps);
    }
    let other_real = real(other);
    if one.is_relative() {
        return (one.file_name() == other_real.file_name()).then_some(Reach::Perhaps);
    }
    let same = real(one) == other_real || identity(one).is_some_and(|known| Some(known) == identity(other));
    same.then_some(Reach::Exact)
}

/// A path without links; what does not exist is taken as it is written.
fn real(path: &Path) -> PathBuf {
    if let Ok(whole) = path.canonicalize() {
        return whole;
    }
    let mut plain = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::Normal(name) => plain.push(name),
            _ => {}
        }
        plain = plain.canonicalize().unwrap_or(plain);
    }
    plain
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
        assert_eq!(around("unix://run/php.sock"), ["", "unix://run/php.sock", ""]);
        assert_eq!(around("127.0.0.1:9000"), ["", "127.0.0.1:9000", ""]);
        let group = |name: &str| name == "app";
        assert_eq!(peer("app", 80, group), Peer::Group("app"));
        assert_eq!(peer("unix:/x", 80, group), Peer::Unix("/x"));
        assert_eq!(peer("127.1.2.3", 80, group), Peer::Loopback(vec!["127.1.2.3".parse().unwrap()], 80));
        assert_eq!(peer("[::1]:81", 80, group), Peer::Loopback(vec!["::1".parse().unwrap()], 81));
        assert_eq!(peer("UNIX:/x", 80, group), Peer::Unix("/x"));
        assert_eq!(around("http://Unix:/run/a.sock:/b"), ["http://", "Unix:/run/a.sock", ":/b"]);
        assert_eq!(sockets("Unix:/x", false).unwrap(), [Socket::Unix("/x".to_owned())]);
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
        let own = |text: &str, dual, ip: &str| reaches(&at(text), dual, ip.parse().unwrap(), 8080);
        for (text, dual, ip, wanted) in [
            ("8080", false, "127.0.0.1", Some(Reach::Any)),
            ("8080", false, "127.9.9.9", Some(Reach::Any)),
            ("8080", false, "::1", None),
            ("81", false, "127.0.0.1", None),
            ("[::]:8080", false, "::1", Some(Reach::Any)),
            ("[::]:8080", false, "127.0.0.1", None),
            ("[::]:8080", true, "127.0.0.1", Some(Reach::Any)),
            ("[::ffff:127.0.0.1]:8080", false, "127.0.0.1", Some(Reach::Perhaps)),
            ("[::ffff:0.0.0.0]:8080", false, "127.0.0.1", Some(Reach::Perhaps)),
            ("127.0.0.1:8080", false, "127.0.0.1", Some(Reach::Exact)),
            ("127.0.0.2:8080", false, "127.0.0.1", None),
            ("localhost:8080", false, "127.0.0.1", Some(Reach::Exact)),
            ("box.example:8080", false, "127.0.0.1", Some(Reach::Perhaps)),
            ("10.0.0.1:8080", false, "127.0.0.1", None),
        ] {
            assert_eq!(own(text, dual, ip), wanted, "{text} {ip}");
        }
        let quic = &sockets("8080", true).unwrap()[0];
        assert_eq!(reaches(quic, true, "127.0.0.1".parse().unwrap(), 8080), None);
        assert!(is_named("localhost:1") && is_named("a.example") && !is_named("*:1") && !is_named("[::1]:1"));
        assert!(!is_named("443") && !is_named("unix:/x"));
    }

    #[test]
    fn a_socket_is_known_by_any_of_its_paths() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("{}/{name}", folder.path().display());
        let _bound = std::os::unix::net::UnixListener::bind(at("own.sock")).unwrap();
        std::os::unix::fs::symlink(folder.path(), at("way")).unwrap();
        std::os::unix::fs::symlink("own.sock", at("link.sock")).unwrap();
        fs::hard_link(at("own.sock"), at("hard.sock")).unwrap();
        for same in
            ["way/own.sock", "link.sock", "hard.sock", "way/./own.sock", "a/../own.sock", "//own.sock"]
        {
            let same = at(same);
            assert_eq!(reaches_path(&at("own.sock"), &same), Some(Reach::Exact), "{same}");
        }
        assert_eq!(reaches_path(&at("own.sock"), &at("other.sock")), None);
        // A server that does not run has no socket yet.
        assert_eq!(reaches_path(&at("gone.sock"), &at("way/x/..//gone.sock")), Some(Reach::Exact));
        assert_eq!(reaches_path("run/own.sock", &at("link.sock")), Some(Reach::Perhaps));
        assert_eq!(reaches_path("run/own.sock", "/run/php.sock"), None);
        assert_eq!(reaches_path("/run/own.sock", "own.sock"), Some(Reach::Perhaps));
    }
}
