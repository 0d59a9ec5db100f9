//! A site's configuration, changed so that a copy of it runs beside the site and touches nothing of it: every address
//! is a free port of loopback, every file that nginx writes lies in folders of ours, and no request leaves this
//! machine or reaches the site.
//!
//! [`policy`] says what becomes of which directive; this carries it out. It opens no file but keys and
//! certificates, to see whether they can be read.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use wattlock_shell::nginx::conf::{self, Directive};
use wattlock_shell::nginx::place::Nginx;
use wattlock_shell::nginx::server::HYBRID;
use wattlock_shell::parts::MODULE;

use super::frame::{self, has};
use super::listen::{self, Peer, Socket};
use super::policy::{self, Fate, SETTINGS_LEFT_OUT};
use super::servers::{Answered, Servers, Target};
use super::sockets::{self, Mapped, Ports, Reached, Sockets};
use super::tree::Tree;
use super::trust;

/// How a copy is made.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Which nginx.
    pub nginx: &'a Nginx,
    /// The folder to which its own relative names belong.
    pub prefix: &'a Path,
    /// The configuration's folder.
    pub config: &'a Path,
    /// A folder that nobody else reads: logs.
    pub folder: &'a Path,
    /// A folder in which nginx's workers may write: bodies and caches. In [`sockets::folder`] of it are the sockets.
    pub spool: &'a Path,
    /// Wattlock's module; none: the stock side.
    pub module: Option<&'a Path>,
    /// Whether this side's OpenSSL has X25519MLKEM768.
    pub hybrid: bool,
    /// Whether upstreams on this machine get requests.
    pub with_upstreams: bool,
    /// Worker processes.
    pub workers: usize,
    /// The core to which workers are pinned.
    pub core: Option<usize>,
    /// Connections that clients make at once.
    pub connections: usize,
}

/// A copy.
#[derive(Debug)]
pub struct Twin {
    /// What nginx reads.
    pub text: String,
    /// For each of its lines where it came from; empty: from nowhere.
    origins: Vec<String>,
    /// Where it listens with TCP.
    pub addresses: Vec<SocketAddr>,
    /// Its servers that speak TLS.
    pub targets: Vec<Target>,
    /// What differs from the site, in words, and where.
    pub notes: BTreeMap<String, Vec<String>>,
    /// Where the status page is, on the side with Wattlock.
    pub status: Option<SocketAddr>,
    /// They hold the ports until nginx is to have them.
    pub ports: Ports,
}

impl Twin {
    /// Makes a copy.
    ///
    /// # Errors
    /// A directive that is not known, an address or a file that cannot be copied; with file and line.
    pub fn make(tree: &Tree, plan: &Plan<'_>) -> Result<Twin> {
        let mut maker = Maker {
            tree,
            plan,
            sockets: Sockets::default(),
            groups: BTreeMap::new(),
            logs: Vec::new(),
            caches: 0,
            servers: Servers::default(),
            answered: Vec::new(),
            compresses: false,
            notes: BTreeMap::new(),
            connections: None,
        };
        maker.survey(&tree.directives)?;
        let body = maker.block("", &tree.directives)?;
        maker.check_connections()?;
        let status = plan.module.map(|_| maker.sockets.ports.tcp()).transpose()?;
        let (mut text, mut origins) = (String::new(), Vec::new());
        let mut place =
            |one: &Directive| origins.push(if one.line == 0 { String::new() } else { tree.place(one) });
        frame::head(plan, &body).iter().for_each(|one| conf::write(&mut text, one, &mut place));
        for mut one in body {
            if one.name() == "http" {
                let tail = frame::http_tail(plan, one.block.as_deref().unwrap_or_default(), status);
                one.block.get_or_insert_default().extend(tail);
            }
            conf::write(&mut text, &one, &mut place);
        }
        let targets = maker.targets();
        let addresses = maker.sockets.addresses().chain(status).collect();
        let Maker { sockets: Sockets { ports, .. }, notes, .. } = maker;
        Ok(Twin { text, origins, addresses, targets, notes, status, ports })
    }

    /// An error of nginx about this copy, told of the site's own files.
    pub fn blame(&self, said: &str, folder: &Path) -> String {
        let file = format!("{}:", folder.join("nginx.conf").display());
        let Some((before, rest)) = said.split_once(&file) else { return said.to_owned() };
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let line =
            rest[..digits].parse::<usize>().ok().and_then(|line| self.origins.get(line.checked_sub(1)?));
        match line.filter(|origin| !origin.is_empty()) {
            Some(origin) => format!("{before}{origin}{}", &rest[digits..]),
            None => said.to_owned(),
        }
    }
}

struct Maker<'a> {
    tree: &'a Tree,
    plan: &'a Plan<'a>,
    sockets: Sockets,
    /// Named groups of servers, in small letters as nginx compares them, and whether the copy may ask all of each.
    groups: BTreeMap<String, bool>,
    /// Names of logs; a copy's is its place in this list.
    logs: Vec<String>,
    caches: usize,
    servers: Servers,
    /// What of each server answers with 204.
    answered: Vec<Answered>,
    /// Whether nginx may compress answers of the block that is being copied.
    compresses: bool,
    notes: BTreeMap<String, Vec<String>>,
    /// `worker_connections`.
    connections: Option<(usize, String)>,
}

impl Maker<'_> {
    fn note(&mut self, what: String, one: &Directive) {
        self.note_at(what, self.tree.place(one));
    }

    fn note_at(&mut self, what: String, place: String) {
        let places = self.notes.entry(what).or_default();
        if !places.contains(&place) {
            places.push(place);
        }
    }

    /// Finds the sockets, the servers and the groups, wherever they stand: what comes first may name what comes last.
    fn survey(&mut self, directives: &[Directive]) -> Result<()> {
        for other in directives.iter().filter(|one| ["stream", "mail"].contains(&one.name())) {
            self.miss(other.block.as_deref().unwrap_or_default())?;
        }
        let blocks = || directives.iter().filter(|one| one.name() == "http");
        for http in blocks().map(|http| http.block.as_deref().unwrap_or_default()) {
            for server in http.iter().filter(|one| one.name() == "server") {
                self.serves(server, http)?;
            }
        }
        for http in blocks().map(|http| http.block.as_deref().unwrap_or_default()) {
            for group in http.iter().filter(|one| one.name() == "upstream") {
                let mut members =
                    group.block.iter().flatten().filter(|one| one.name() == "server").peekable();
                let local = members.peek().is_some() && members.all(|one| self.member(one).is_some());
                self.groups.insert(group.argument(1).unwrap_or_default().to_ascii_lowercase(), local);
            }
        }
        Ok(())
    }

    /// Remembers where the site listens and its copy does not.
    fn miss(&mut self, block: &[Directive]) -> Result<()> {
        for one in block {
            if one.name() == "listen" {
                let is_named = listen::is_named(one.argument(1).unwrap_or_default());
                for socket in self.listened(one)? {
                    self.sockets.describe(&socket, is_dual(one), is_named);
                    self.sockets.miss(socket);
                }
            }
            self.miss(one.block.as_deref().unwrap_or_default())?;
        }
        Ok(())
    }

    /// Takes in a server and where it listens.
    fn serves(&mut self, server: &Directive, http: &[Directive]) -> Result<()> {
        let block = server.block.as_deref().unwrap_or_default();
        let folder = sockets::folder(self.plan.spool);
        let mut listens: Vec<(&[String], Vec<Socket>)> = Vec::new();
        for one in block.iter().filter(|one| one.name() == "listen") {
            let sockets = self.listened(one)?;
            let is_named = listen::is_named(one.argument(1).unwrap_or_default());
            for socket in &sockets {
                self.sockets.describe(socket, is_dual(one), is_named);
                self.sockets.give(socket.clone(), &folder).with_context(|| self.tree.place(one))?;
            }
            listens.push((one.words.get(2..).unwrap_or_default(), sockets));
        }
        if listens.is_empty() {
            self.sockets.give(silent(), &folder)?;
            listens.push((&[][..], vec![silent()]));
        }
        self.servers.add(self.tree.place(server), block, http, listens);
        Ok(())
    }

    fn listened(&self, one: &Directive) -> Result<Vec<Socket>> {
        let address = one.argument(1).unwrap_or_default();
        let quic = one.words.iter().any(|word| word == "quic");
        listen::sockets(address, quic).with_context(|| self.tree.place(one))
    }

    fn block(&mut self, inside: &str, directives: &[Directive]) -> Result<Vec<Directive>> {
        let (mut out, mut answered) = (Vec::new(), false);
        let outside = self.compresses;
        self.compresses = compresses(directives, outside);
        for one in directives {
            let before = out.len();
            self.one(inside, one, &mut out)?;
            let is_pass = policy::fate(one.name()) == Some(Fate::Pass);
            answered |=
                is_pass && !out[before..].iter().any(|copied: &Directive| copied.name() == one.name());
        }
        self.compresses = outside;
        if answered {
            // `proxy_redirect default` must stand behind a `proxy_pass`.
            out.retain(|one| one.name() != "proxy_redirect");
        }
        Ok(out)
    }

    fn one(&mut self, inside: &str, one: &Directive, out: &mut Vec<Directive>) -> Result<()> {
        let (name, place) = (one.name(), self.tree.place(one));
        if inside == "upstream" && name == "server" {
            out.extend(self.member(one));
            return Ok(());
        }
        let Some(fate) = policy::fate(name) else {
            bail!(
                "{place}: `{}` is not in the list of directives that are safe to run twice: take it out of a copy of \
                 the configuration, and name that copy",
                name.escape_debug()
            );
        };
        match fate {
            Fate::Replaced => {}
            Fate::LeftOut(why) => {
                if one.argument(1) != Some("off") {
                    self.note(format!("left out, {why}: `{name}`"), one);
                }
            }
            Fate::Log => out.extend(self.log(one)),
            Fate::Cache => {
                self.caches += 1;
                let mut words = one.words.clone();
                if let Some(path) = words.get_mut(1) {
                    *path = self.plan.spool.join(format!("cache-{}", self.caches)).display().to_string();
                }
                out.push(Directive { words, ..one.clone() });
            }
            Fate::Pass => out.extend(self.pass(inside, one)),
            Fate::Listens => {
                for socket in self.listened(one)? {
                    out.push(self.listens(one, &socket));
                }
            }
            Fate::Module => out.extend(self.module(one)?),
            Fate::Environment => {
                let variable = one.argument(1).unwrap_or_default();
                if !["OPENSSL", "WATTLOCK", "LD_", "NGINX"].iter().any(|start| variable.starts_with(start)) {
                    out.push(one.clone());
                }
            }
            Fate::Upstream => {
                let name = one.argument(1).unwrap_or_default().to_ascii_lowercase();
                let local = self.groups.get(&name).copied().unwrap_or(false);
                if self.plan.with_upstreams && local {
                    self.nested(one, out)?;
                }
            }
            Fate::Wattlock => {
                let setting = one.argument(1).filter(|_| name == "wattlock_set").unwrap_or_default();
                if self.plan.module.is_some() && !SETTINGS_LEFT_OUT.contains(&setting) {
                    out.push(one.clone());
                }
            }
            Fate::Rows => out.push(self.plain(one)),
            Fate::Block => self.nested(one, out)?,
            Fate::FileOfConfig => out.push(self.file(one)?),
            Fate::FileOfPrefix => {
                let path = one.argument(1).unwrap_or_default();
                let whole =
                    if path.starts_with('$') { path.to_owned() } else { self.within(self.plan.prefix, path) };
                out.push(self.plain(&with_word(one, 1, whole)));
            }
            Fate::Stays => out.extend(self.stays(one)),
        }
        Ok(())
    }

    fn nested(&mut self, one: &Directive, out: &mut Vec<Directive>) -> Result<()> {
        let name = one.name();
        if name == "server" {
            self.answered.push(Answered::default());
        }
        let mut block = self.block(name, one.block.as_deref().unwrap_or_default())?;
        if name == "server" && !has(&block, "listen") {
            let listen = Directive { block: None, ..with_word(one, 0, "listen".to_owned()) };
            block.push(self.listens(&listen, &silent()));
        }
        out.push(self.plain(&Directive { block: Some(block), ..one.clone() }));
        Ok(())
    }

    fn module(&mut self, one: &Directive) -> Result<Option<Directive>> {
        let path = self.plan.prefix.join(one.argument(1).unwrap_or_default());
        let file = path.file_name().unwrap_or_default();
        if file == MODULE {
            return Ok(None);
        }
        let place = || self.tree.place(one);
        let is_known = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str());
            ensure!(
                name.is_some_and(policy::loads),
                "{}: `load_module` of {}, which is none of the known modules: loading it runs what is in it; take it \
                 out of a copy of the configuration, and name that copy",
                place(),
                wattlock_door::one_line(path)
            );
            Ok(())
        };
        is_known(&path)?;
        let real = trust::whole_path(&path).with_context(place)?;
        // A link's name says nothing of what it leads to.
        is_known(&real)?;
        let real = real.to_str().with_context(|| format!("{}: no printable path", place()))?.to_owned();
        self.note("loaded into the copies, too: `load_module`".to_owned(), one);
        Ok(Some(with_word(one, 1, real)))
    }

    fn stays(&mut self, one: &Directive) -> Option<Directive> {
        match one.name() {
            // nginx of another user than root cannot be another's.
            "user" if !rustix::process::geteuid().is_root() => return None,
            // A name, for which nginx would ask another machine.
            "set_real_ip_from" if !is_network(one.argument(1).unwrap_or_default()) => {
                self.note("left out, it asks another machine: `set_real_ip_from` of a name".to_owned(), one);
                return None;
            }
            "worker_connections" => {
                let count = one.argument(1).and_then(|count| count.parse().ok());
                self.connections = count.map(|count| (count, self.tree.place(one)));
            }
            "ssl_ecdh_curve" if !self.plan.hybrid => {
                let groups = one.argument(1).unwrap_or_default();
                let is_hybrid =
                    |group: &&str| group.trim_start_matches(['?', '*', '-']).eq_ignore_ascii_case(HYBRID);
                if groups.split([':', '/']).any(|group| is_hybrid(&group)) {
                    self.note(format!("{HYBRID} is left out: this OpenSSL has none without Wattlock"), one);
                    let left: Vec<&str> =
                        groups.split([':', '/']).filter(|group| !is_hybrid(group)).collect();
                    let left = if left.is_empty() { "X25519".to_owned() } else { left.join(":") };
                    return Some(with_word(one, 1, left));
                }
            }
            _ => {}
        }
        Some(self.plain(one))
    }

    /// A directive without variables of Wattlock on the stock side, whose nginx has none.
    fn plain(&self, one: &Directive) -> Directive {
        if self.plan.module.is_some() {
            return one.clone();
        }
        let block = one.block.as_ref().map(|block| block.iter().map(|one| self.plain(one)).collect());
        Directive { words: one.words.iter().map(|word| without_ours(word)).collect(), block, ..one.clone() }
    }

    fn within(&self, folder: &Path, path: &str) -> String {
        folder.join(path).display().to_string()
    }

    fn file(&mut self, one: &Directive) -> Result<Directive> {
        let path = one.argument(1).unwrap_or_default();
        let not_a_path = ["$", "data:", "engine:", "store:"].iter().any(|start| path.starts_with(start));
        if not_a_path || path.is_empty() {
            return Ok(one.clone());
        }
        let whole = self.plan.config.join(path);
        let of_tls = ["ssl_certificate", "ssl_certificate_key", "ssl_password_file", "ssl_dhparam"];
        if of_tls.contains(&one.name()) && !path.contains('$') {
            readable(&whole).with_context(|| self.tree.place(one))?;
        }
        Ok(with_word(one, 1, whole.display().to_string()))
    }

    fn log(&mut self, one: &Directive) -> Option<Directive> {
        let name = one.argument(1)?;
        if name == "off" {
            return Some(one.clone());
        }
        let number = self.logs.iter().position(|known| known == name).unwrap_or_else(|| {
            self.logs.push(name.to_owned());
            self.logs.len() - 1
        });
        let path = self.plan.folder.join(format!("access-{number}.log"));
        Some(self.plain(&with_word(one, 1, path.display().to_string())))
    }

    fn pass(&mut self, inside: &str, one: &Directive) -> Option<Directive> {
        let target = one.argument(1).unwrap_or_default();
        let [scheme, address, uri] = listen::around(target);
        if let Some(address) = self.here(scheme, address).filter(|_| self.plan.with_upstreams) {
            return Some(with_word(one, 1, format!("{scheme}{address}{uri}")));
        }
        let local = self.here(scheme, address).is_some();
        let why = match listen::peer(address, 80, |_| false) {
            _ if local => "without --with-upstreams",
            Peer::Elsewhere => "not on this machine",
            _ => "it may be the site itself",
        };
        self.note(format!("answered with 204, {why}: `{} {}`", one.name(), target.escape_debug()), one);
        if let Some(answered) = self.answered.last_mut() {
            answered.count += 1;
            answered.differs |= self.compresses || may_speak_tls(target);
        }
        let answer = Directive { words: vec!["return".to_owned(), "204".to_owned()], ..one.clone() };
        (inside != "limit_except").then_some(answer)
    }

    /// An address on this machine, as the copy is to have it: none that is, or could be, the site's own.
    fn here(&self, scheme: &str, address: &str) -> Option<String> {
        let usual = if scheme.to_ascii_lowercase().ends_with("s://") { 443 } else { 80 };
        match listen::peer(address, usual, |name| self.groups.contains_key(&name.to_ascii_lowercase())) {
            Peer::Group(name) => self.groups[&name.to_ascii_lowercase()].then(|| name.to_owned()),
            peer => self.copied(peer, address),
        }
    }

    fn copied(&self, peer: Peer<'_>, address: &str) -> Option<String> {
        let reached = match peer {
            Peer::Elsewhere | Peer::Group(_) => return None,
            Peer::Unix(path) => self.sockets.at_path(path),
            Peer::Loopback(ips, port) => self.sockets.at(&ips, port),
        };
        match reached {
            Reached::Own(mapped) => Some(mapped.words()),
            Reached::Other => Some(address.to_owned()),
            Reached::Unclear => None,
        }
    }

    /// A server of a group.
    fn member(&self, one: &Directive) -> Option<Directive> {
        let address = one.argument(1)?;
        Some(with_word(one, 1, self.copied(listen::peer(address, 80, |_| false), address)?))
    }

    fn listens(&self, one: &Directive, socket: &Socket) -> Directive {
        let mapped = self.sockets.get(socket).map_or_else(String::new, Mapped::words);
        // These say something of the other address.
        let about_it = |word: &&String| word.starts_with("ipv6only=") || word.starts_with("setfib=");
        let more = one.words.iter().skip(2).filter(|word| !about_it(word)).cloned();
        Directive { words: ["listen".to_owned(), mapped].into_iter().chain(more).collect(), ..one.clone() }
    }

    /// The servers to measure.
    fn targets(&mut self) -> Vec<Target> {
        let port = |socket: &Socket| match self.sockets.get(socket)? {
            Mapped::Tcp(port) => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, *port))),
            _ => None,
        };
        let (targets, notes) = self.servers.targets(port, &self.answered);
        notes.into_iter().for_each(|(what, place)| self.note_at(what.to_owned(), place));
        targets
    }

    /// More connections than a worker has make an nginx that answers nobody.
    fn check_connections(&self) -> Result<()> {
        let (count, place) = match &self.connections {
            Some((count, place)) => (*count, place.clone()),
            None => (512, "nginx's default".to_owned()),
        };
        // Each listening socket is one, a request that is handed on takes two, and nginx keeps some for itself.
        let each = if self.plan.with_upstreams { 2 } else { 1 };
        let left = count.saturating_mul(self.plan.workers).saturating_sub(self.sockets.len() + 16) / each;
        ensure!(
            self.plan.connections <= left,
            wattlock_door::Error::Usage(format!(
                "{} connections, and `worker_connections {count}` has room for {left} ({place}): say --connections \
                 {left}",
                self.plan.connections
            ))
        );
        Ok(())
    }
}

/// Whether nginx may compress answers of a block: by its own `gzip`, by that of an `if` in it, or as outside.
fn compresses(block: &[Directive], outside: bool) -> bool {
    let own = block.iter().rfind(|one| one.name() == "gzip");
    let own = own.map(|one| !one.argument(1).is_some_and(|word| word.eq_ignore_ascii_case("off")));
    let mut ifs = block.iter().filter(|one| one.name() == "if");
    own.unwrap_or(outside) || ifs.any(|one| compresses(one.block.as_deref().unwrap_or_default(), false))
}

/// Whether requests may be handed on over TLS; of a variable that is not known.
fn may_speak_tls(target: &str) -> bool {
    let scheme = listen::around(target)[0].to_ascii_lowercase();
    target.starts_with('$')
        || scheme.contains('$')
        || ["https://", "grpcs://", "suwsgi://"].contains(&&*scheme)
}

/// Where a server without a `listen` listens.
fn silent() -> Socket {
    Socket::Tcp("*".to_owned(), if rustix::process::geteuid().is_root() { 80 } else { 8000 })
}

fn with_word(one: &Directive, at: usize, word: String) -> Directive {
    let mut copied = one.clone();
    if let Some(old) = copied.words.get_mut(at) {
        *old = word;
    }
    copied
}

/// Whether an IPv6 socket takes IPv4, too.
fn is_dual(listen: &Directive) -> bool {
    listen.words.iter().any(|word| word == "ipv6only=off")
}

/// Whether this is an address, a network or a socket, and no name.
fn is_network(text: &str) -> bool {
    let address = text.split('/').next().unwrap_or_default();
    text.starts_with("unix:") || address.parse::<IpAddr>().is_ok()
}

/// A word with `-` for each variable of Wattlock, as a log shows an empty one.
fn without_ours(word: &str) -> String {
    let mut out = word.to_owned();
    while let Some(at) = out.find("${wattlock_") {
        let end = out[at..].find('}').map_or(out.len(), |end| at + end + 1);
        out.replace_range(at..end, "-");
    }
    while let Some(at) = out.find("$wattlock_") {
        let name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = out[at + 1..].find(|c| !name(c)).map_or(out.len(), |end| at + 1 + end);
        out.replace_range(at..end, "-");
    }
    out
}

/// Whether a key or a certificate can be read.
fn readable(path: &Path) -> Result<()> {
    let named = || wattlock_door::one_line(path);
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    match OpenOptions::new().read(true).custom_flags(nonblocking).open(path) {
        Ok(file) => {
            ensure!(
                file.metadata().with_context(named)?.is_file(),
                wattlock_door::Error::NotRegular(path.to_owned())
            );
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            bail!("{}: this user may not read it: run the command as root", named())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!(wattlock_door::Error::NotFound(path.to_owned()))
        }
        Err(error) => Err(error).with_context(named),
    }
}

#[cfg(test)]
mod tests;
