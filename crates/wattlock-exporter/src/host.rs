//! Which names a request may call this server by.
//!
//! A page of another server can make a browser ask this one, under that server's name, which it lets lead here (DNS
//! rebinding). It cannot make the browser send another name. So only names count that no other server has: addresses,
//! `localhost`, and those that whoever started the exporter named.

use std::net::IpAddr;

/// The names.
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    names: Vec<String>,
    any: bool,
}

impl Hosts {
    /// Addresses, `localhost` and these names, which are without a port.
    pub fn named(names: impl IntoIterator<Item = String>) -> Hosts {
        Hosts { names: names.into_iter().map(|name| plain(&name)).collect(), any: false }
    }

    /// Every name: for a socket that no browser reaches.
    pub fn any() -> Hosts {
        Hosts { names: Vec::new(), any: true }
    }

    /// Whether a request with this `Host` is answered.
    pub(crate) fn allow(&self, host: &str) -> bool {
        if self.any {
            return true;
        }
        let Some(name) = without_port(host) else { return false };
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        if address.parse::<IpAddr>().is_ok() {
            return true;
        }
        let name = plain(name);
        name == "localhost" || !name.is_empty() && self.names.contains(&name)
    }
}

/// A name as names are compared.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// `None` if what stands behind the name is no port.
fn without_port(host: &str) -> Option<&str> {
    let behind = host.rfind(']').map_or(0, |at| at + 1);
    let Some(colon) = host[behind..].find(':') else { return Some(host) };
    let (name, port) = host.split_at(behind + colon);
    port[1..].bytes().all(|byte| byte.is_ascii_digit()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_no_other_server_has_are_answered() {
        let hosts = Hosts::named(["Box.Example.".to_owned()]);
        for host in [
            "localhost",
            "LOCALHOST:19469",
            "localhost.",
            "127.0.0.1:19469",
            "10.1.2.3",
            "[::1]",
            "[::1]:19469",
            "box.example:80",
            "BOX.example.",
        ] {
            assert!(hosts.allow(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:19469",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost:19469@evil.example",
            "evil.example:localhost",
            "",
            ".",
            ":19469",
            "[::1",
            "[::1]evil",
            "127.0.0.1 evil",
        ] {
            assert!(!hosts.allow(host), "{host}");
        }
        assert!(Hosts::any().allow("evil.example"));
        assert!(!Hosts::named([String::new()]).allow(""));
    }
}
