//! The servers of a site as nginx tells them apart: by address, then by the name that a client asks for
//! (`ngx_http_find_virtual_server`). From that follows which of them can be measured, and by which name.
//!
//! It evaluates no regular expression: a server that is one's to choose is not measured.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use wattlock_shell::nginx::conf::Directive;

use super::listen::Socket;

/// A server that speaks TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The name by which clients ask for it.
    pub name: String,
    /// What it is called: its name, with the site's port or address if others have the name, too.
    pub label: String,
    /// Where the configuration has it.
    pub place: String,
    /// Where the site's own listens.
    pub socket: Socket,
    /// Where its copy listens.
    pub address: SocketAddr,
    /// Whether it expects a line of the PROXY protocol first.
    pub proxied: bool,
    /// Its directives that hand requests on and answer with 204 instead.
    pub answered: Answered,
}

/// What of a server's work a copy leaves out: directives that answer with 204 instead of handing requests on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answered {
    /// How many.
    pub count: usize,
    /// Whether the work behind one of them is such as Wattlock does another way than nginx: answers that `gzip`
    /// compresses, TLS to the upstream. If not, both sides would do the same work besides.
    pub differs: bool,
}

impl Target {
    /// Whether a user means it by this word: a name, `NAME:PORT` or what it is called.
    pub fn is_called(&self, word: &str) -> bool {
        let with_port = match &self.socket {
            Socket::Tcp(_, port) => format!("{}:{port}", self.name),
            _ => String::new(),
        };
        [&self.name, &self.label, &with_port].into_iter().any(|own| own.eq_ignore_ascii_case(word))
    }
}

/// One server.
#[derive(Debug, Default)]
struct One {
    place: String,
    /// In small letters.
    names: Vec<String>,
    at: Vec<Socket>,
    rejects: bool,
    /// `ssl on`, which nginx had up to 1.25.
    tls: bool,
}

/// What the servers of one address have in common; nginx keeps the flags of a `listen` for the address.
#[derive(Debug, Default)]
struct Address {
    servers: Vec<usize>,
    /// The one that is told to be it.
    default: Option<usize>,
    tls: bool,
    proxied: bool,
}

/// All servers, in order.
#[derive(Debug, Default)]
pub struct Servers {
    all: Vec<One>,
    addresses: BTreeMap<Socket, Address>,
}

/// Whether a switch is on in a server, or in `http` if the server does not say.
fn on(name: &str, server: &[Directive], http: &[Directive]) -> bool {
    let said = |block: &[Directive]| {
        let one = block.iter().rev().find(|one| one.name() == name)?;
        Some(one.argument(1).is_some_and(|word| word.eq_ignore_ascii_case("on")))
    };
    said(server).or_else(|| said(http)).unwrap_or(false)
}

impl Servers {
    /// Takes a server in, with its listens and what each names.
    pub fn add(
        &mut self,
        place: String,
        server: &[Directive],
        http: &[Directive],
        listens: Vec<(&[String], Vec<Socket>)>,
    ) {
        let number = self.all.len();
        let named = server.iter().filter(|one| one.name() == "server_name").flat_map(|one| &one.words[1..]);
        let names = named.map(|name| match name.eq_ignore_ascii_case("$hostname") {
            true => hostname(),
            false => name.to_ascii_lowercase(),
        });
        let mut one = One {
            place,
            names: names.collect(),
            at: Vec::new(),
            rejects: on("ssl_reject_handshake", server, http),
            tls: on("ssl", server, http),
        };
        for (words, sockets) in listens {
            let flag = |wanted: &[&str]| words.iter().any(|word| wanted.contains(&word.as_str()));
            for socket in sockets {
                let address = self.addresses.entry(socket.clone()).or_default();
                address.tls |= flag(&["ssl"]);
                address.proxied |= flag(&["proxy_protocol"]);
                if flag(&["default_server", "default"]) {
                    address.default.get_or_insert(number);
                }
                if !address.servers.contains(&number) {
                    address.servers.push(number);
                    one.at.push(socket);
                }
            }
        }
        self.all.push(one);
    }

    /// Those that can be measured, and for the others why not, with the place. `port` is where an address is in the
    /// copy, `answered` what of each server answers with 204.
    pub fn targets(
        &self,
        port: impl Fn(&Socket) -> Option<SocketAddr>,
        answered: &[Answered],
    ) -> (Vec<Target>, Vec<(&'static str, String)>) {
        let (mut targets, mut notes) = (Vec::new(), Vec::new());
        for (number, one) in self.all.iter().enumerate() {
            let of_tls = |socket: &&Socket| matches!(socket, Socket::Tcp(..)) && self.speaks_tls(socket);
            let sockets: Vec<&Socket> = one.at.iter().filter(of_tls).collect();
            if sockets.is_empty() {
                continue;
            }
            let asked = sockets.iter().find_map(|socket| Some((*socket, self.name_of(number, socket)?)));
            let why = match &asked {
                _ if one.rejects => "not measured, it rejects handshakes: server",
                None => "not measured, no name surely asks for it and no other: server",
                Some((socket, name)) => {
                    let Some(address) = port(socket) else { continue };
                    targets.push(Target {
                        name: name.clone(),
                        label: name.clone(),
                        place: one.place.clone(),
                        socket: (*socket).clone(),
                        address,
                        proxied: self.addresses.get(*socket).is_some_and(|at| at.proxied),
                        answered: answered.get(number).copied().unwrap_or_default(),
                    });
                    continue;
                }
            };
            notes.push((why, one.place.clone()));
        }
        label(&mut targets);
        (targets, notes)
    }

    fn speaks_tls(&self, socket: &Socket) -> bool {
        let default = |at: &Address| Some(self.all.get(at.default.or(at.servers.first().copied())?)?.tls);
        self.addresses.get(socket).is_some_and(|at| at.tls || default(at).unwrap_or(false))
    }

    /// A name that at this address asks for this server and surely for no other.
    fn name_of(&self, number: usize, socket: &Socket) -> Option<String> {
        let address = self.addresses.get(socket)?;
        let own =
            self.all[number].names.iter().flat_map(|name| ["any", "any-other"].map(|any| asked(name, any)));
        // The second is nobody's (RFC 6761, section 6.4).
        let others = ["localhost", "unnamed.invalid"].map(|name| Some(name.to_owned()));
        own.chain(others).flatten().find(|name| self.chosen(address, name) == Some(number))
    }

    /// The server that nginx chooses; none if that is for a regular expression to say.
    fn chosen(&self, address: &Address, name: &str) -> Option<usize> {
        let all = || {
            let of = |number: &usize| {
                let number = *number;
                self.all[number].names.iter().map(move |name| (number, name.as_str()))
            };
            address.servers.iter().flat_map(of)
        };
        let exact = |(_, own): &(usize, &str)| own.strip_prefix('.').unwrap_or(own) == name;
        let front = |own: &str| {
            let tail = own.strip_prefix('*').or(own.starts_with('.').then_some(own))?;
            (tail.starts_with('.') && name.len() > tail.len() && name.ends_with(tail)).then_some(tail.len())
        };
        let back = |own: &str| {
            let head = own.strip_suffix('*').filter(|head| head.ends_with('.'))?;
            (name.len() > head.len() && name.starts_with(head)).then_some(head.len())
        };
        // The longest, and of those the first.
        let longest = |length: &dyn Fn(&str) -> Option<usize>| {
            let fitting = all().filter_map(|(number, own)| Some((number, length(own)?)));
            fitting.min_by_key(|(_, length)| Reverse(*length)).map(|(number, _)| number)
        };
        let default = || address.default.or(address.servers.first().copied());
        let expressions: BTreeSet<usize> =
            all().filter(|(_, own)| own.starts_with('~')).map(|(number, _)| number).collect();
        let named = all().find(exact).map(|(number, _)| number);
        named
            .or_else(|| longest(&front))
            .or_else(|| longest(&back))
            .or_else(|| default().filter(|default| expressions.iter().all(|number| number == default)))
    }
}

/// What `$hostname` is as the name of a server.
fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_ascii_lowercase()
}

/// Gives servers of one name labels that differ: with the port, or with the address if that is the same.
fn label(targets: &mut [Target]) {
    let more: [fn(&Target) -> String; 2] = [
        |target| match &target.socket {
            Socket::Tcp(_, port) => format!("{}:{port}", target.name),
            _ => target.name.clone(),
        },
        |target| match &target.socket {
            Socket::Tcp(host, port) if host.contains(':') => format!("{}@[{host}]:{port}", target.name),
            Socket::Tcp(host, port) => format!("{}@{host}:{port}", target.name),
            _ => target.name.clone(),
        },
    ];
    for label in more {
        let labels: Vec<String> = targets.iter().map(|target| target.label.clone()).collect();
        for (target, old) in targets.iter_mut().zip(&labels) {
            if labels.iter().filter(|other| *other == old).count() > 1 {
                target.label = label(target);
            }
        }
    }
}

/// A name with which a client asks for a server of this `server_name`; none if it is no name that can be sent. `any`
/// stands for the first star.
fn asked(name: &str, any: &str) -> Option<String> {
    let name = match name.strip_prefix('*') {
        Some(rest) => format!("{any}{rest}"),
        None => name.strip_prefix('.').unwrap_or(name).to_owned(),
    };
    let name = name.strip_suffix(".*").map_or(name.clone(), |front| format!("{front}.example"));
    let label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let number = name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    (name.len() <= 253 && name.split('.').all(label) && !number).then(|| name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_asked_for_by_a_name_that_can_be_sent() {
        for (name, wanted) in [
            ("a.Example", Some("a.example")),
            ("*.b.example", Some("any.b.example")),
            (".c.example", Some("c.example")),
            ("www.d.*", Some("www.d.example")),
            ("_", None),
            ("", None),
            ("~^www", None),
            ("$host", None),
            ("10.0.0.1", None),
            ("-a.b", None),
            ("a..b", None),
            ("a\r\nb", None),
        ] {
            assert_eq!(asked(name, "any").as_deref(), wanted, "{name}");
        }
    }

    /// Servers of one address: the names of each. With `!` in front one is the default.
    fn names(servers: &[&str]) -> Vec<Option<String>> {
        let mut all = Servers::default();
        let socket = Socket::Tcp("*".to_owned(), 443);
        for text in servers {
            let (default, text) = text.strip_prefix('!').map_or((false, *text), |rest| (true, rest));
            let words = ["server_name"].into_iter().chain(text.split(' ')).map(str::to_owned).collect();
            let name = Directive { words, file: 0, line: 0, block: None };
            let mut flags = vec!["443".to_owned(), "ssl".to_owned()];
            flags.extend(default.then(|| "default_server".to_owned()));
            all.add(String::new(), &[name], &[], vec![(&flags[..], vec![socket.clone()])]);
        }
        (0..servers.len()).map(|number| all.name_of(number, &socket)).collect()
    }

    #[test]
    fn a_name_asks_for_no_other_server_of_the_address() {
        for (servers, wanted) in [
            (&["a.example", "_"][..], &[Some("a.example"), None][..]),
            (&["_", "a.example"], &[Some("localhost"), Some("a.example")]),
            // The default need not be the first.
            (&["_", "!_"], &[None, Some("localhost")]),
            (&["_", "localhost"], &[Some("unnamed.invalid"), Some("localhost")]),
            (&["*.x.example", "any.x.example"], &[Some("any-other.x.example"), Some("any.x.example")]),
            (&["*.x.example", "*.any.x.example"], &[Some("any.x.example"), Some("any.any.x.example")]),
            (&["b.example", "b.example"], &[Some("b.example"), None]),
            (&["www.*", "www.example"], &[Some("localhost"), Some("www.example")]),
            (&["_", "www.*"], &[Some("localhost"), Some("www.example")]),
            // A regular expression may have what no name has.
            (&["_", "~^."], &[None, None]),
            (&["_ ~^.", "a.example"], &[Some("localhost"), Some("a.example")]),
            (&["_", "~^. b.example"], &[None, Some("b.example")]),
            (&["~^.", "*.c.example"], &[Some("localhost"), Some("any.c.example")]),
        ] {
            let wanted: Vec<Option<String>> = wanted.iter().map(|name| name.map(str::to_owned)).collect();
            assert_eq!(names(servers), wanted, "{servers:?}");
        }
    }
}
