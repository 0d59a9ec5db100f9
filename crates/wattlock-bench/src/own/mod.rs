//! `wattlock serve --compare --config`: what a site gains. Its own configuration runs twice on loopback, without
//! Wattlock and with it, and visitors come to both in turn. What is compared is nginx's processor time for each
//! request.
//!
//! The site's files and its nginx are not touched: [`copy`] makes the copies, [`policy`] says of what. A server that
//! cannot be measured costs its own figure and no other's.

mod copy;
mod found;
mod frame;
mod listen;
mod policy;
mod servers;
mod sockets;
mod tree;
mod trust;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use tempfile::TempDir;
use wattlock_shell::INTERRUPTED;
use wattlock_shell::joules::Gauge;
use wattlock_shell::nginx::page;
use wattlock_shell::nginx::place::{Nginx, Parts};
use wattlock_shell::nginx::server::{OpenSsl, Server};
use wattlock_shell::nginx::site::{Command, cores};
use wattlock_shell::setup::Choice;

use self::copy::{Plan, Twin};
use self::found::{Counted, Found};
use self::servers::Target;
use self::tree::Tree;
use crate::https::client::{self, Load, Sort, TLS13, Tally, Visit};
use crate::https::groups::Group;
use crate::https::offer::Offer;
use crate::https::{has_hybrid, in_turn, name_peers, pin, status, stock_name};
use crate::machine_line;
use crate::pair::{Better, Gain, LEGEND};
use crate::record::{By, Record, Row};

/// Servers that are measured if none is named: each takes its seconds.
const MOST_SERVERS: usize = 8;
/// Places that are told of one thing that differs.
const MOST_PLACES: usize = 3;

/// What a browser says besides.
const HEAD: &str = "User-Agent: wattlock\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n";

/// Runs the comparison.
pub fn run(command: &Command, config: &Path, choice: &Choice, record: Record) -> Result<()> {
    let done = compare(command, config, choice, record);
    done.map_err(|error| if is_interrupted() { wattlock_door::Error::Interrupted.into() } else { error })
}

/// What fails after an interrupt failed because of it.
fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

fn compare(command: &Command, config: &Path, choice: &Choice, mut record: Record) -> Result<()> {
    let nginx = command.places().nginx()?;
    if let Some(obstacle) = nginx.obstacle()? {
        bail!("{}: {obstacle}", nginx.program.display());
    }
    let mut parts = command.places().parts(&nginx, choice)?;
    // Without counters outside of the copy's folder. The status page has the worker's own.
    parts.settings.push(("telemetry".to_owned(), "no".to_owned()));
    let tree = Tree::read(config)?;
    let against = stock_name(&nginx);
    let hybrid = has_hybrid(&against);
    let maker = Maker { command, config, nginx: &nginx, tree: &tree };
    let stock = maker.start(&OpenSsl::Stock, None, hybrid)?;
    let ours = maker.start(&OpenSsl::Wattlock(&parts), Some(&parts), true)?;
    if let Some(Err(why)) = &ours.server.active {
        bail!("nothing to compare: Wattlock's module is inactive: {why}");
    }
    let wanted = wanted(&ours.twin.targets, &command.servers)?;
    // Before this thread is pinned: then it sees one core only.
    let machine = machine_line();
    if cores() > 1 {
        pin(1)?;
    }
    let (connections, resumed) = (command.connections, command.resumed);
    say!("{machine}; {against}; {connections} connections, {resumed} % of them resume a session");
    for (what, places) in stock.twin.notes.iter().chain(&ours.twin.notes).collect::<BTreeMap<_, _>>() {
        say!("{what} ({})", listed(places));
    }
    let offered = if hybrid { &OFFERED[..] } else { &OFFERED[1..] };
    let gauge = RefCell::new(Gauge::counting());
    if let Some(gauge) = &*gauge.borrow() {
        say!("{}", gauge.line());
    }
    let against = &*against;
    let round = Round { command, offered, gauge: &gauge, stock: &stock, ours: &ours };
    let (mut failures, mut measured) = (Vec::new(), 0);
    for at in wanted {
        let target = &ours.twin.targets[at];
        eprintln!("wattlock: {} ({})", target.label, target.place);
        let row = match round.of(at) {
            Ok(found) => {
                found.tell(target)?;
                failures.extend(found.sides.failures(&target.label, ["stock", "with Wattlock"]));
                measured += 1;
                found.row().unwrap_or_else(|| bare("no round has one"))
            }
            Err(error) if is_interrupted() => return Err(error),
            Err(error) => {
                let why = format!("{error:#}");
                say!("{} ({}): no figure: {why}", target.label, target.place);
                failures.push(format!("{}: {why}", target.label));
                bare(&why)
            }
        };
        let row = row.param("server", target.label.as_str()).param("connections", connections);
        let row = row.param("resumed_percent", resumed).param("workers", command.workers());
        record.add(row.against(against));
    }
    if measured > 0 {
        say!("{LEGEND}");
    }
    name_peers(against, &mut record);
    record.finish()?;
    ensure!(failures.is_empty(), "connections failed: {}", failures.join("; "));
    Ok(())
}

/// A row of a server that answered nothing.
fn bare(why: &str) -> Row {
    Row::alone("serve", "site", "responses/s", By::Cpu, 0.0, 0).detail("no_figure", why)
}

/// How each server is measured.
struct Round<'a> {
    command: &'a Command,
    offered: &'a [Group],
    gauge: &'a RefCell<Option<Gauge>>,
    stock: &'a Side,
    ours: &'a Side,
}

impl Round<'_> {
    /// Measures one server, by number.
    fn of(&self, at: usize) -> Result<Found> {
        let (before, joules) = (self.ours.counted()?, RefCell::new([Vec::new(), Vec::new()]));
        let visit = |side: &Side, number: usize| -> Result<Tally> {
            let sorts = || sorts(self.offered, self.command.resumed);
            let load = || visited(self.command, &side.twin.targets[at], &sorts()?, &side.server);
            let mut gauge = self.gauge.borrow_mut();
            let Some(gauge) = gauge.as_mut() else { return load() };
            let (tally, joule) = gauge.around(load);
            let tally = tally?;
            let each = joule.map_or(0.0, |joule| joule.joules() / tally.done.max(1) as f64);
            joules.borrow_mut()[number].push(each);
            Ok(tally)
        };
        let sides = in_turn(self.command.rounds, || visit(self.stock, 0), || visit(self.ours, 1))?;
        let [theirs, own] = joules.into_inner();
        Ok(Found {
            sides,
            did: self.ours.counted()?.since(&before),
            joules: Gain::of(&own, &theirs, Better::Less),
            answered: self.ours.twin.targets[at].answered,
        })
    }
}

/// Groups as browsers offer them; the first only if both sides have it.
const OFFERED: [Group; 4] = [Group::Hybrid, Group::X25519, Group::P256, Group::P384];

/// Visitors: those that resume a session, and those that do not.
fn sorts(groups: &[Group], resumed: u32) -> Result<Vec<Sort>> {
    let share = f64::from(resumed) / 100.0;
    let sorts = [(share, true), (1.0 - share, false)].into_iter().filter(|(share, _)| *share > 0.0);
    sorts
        .map(|(share, resumes)| Ok((share, Offer { resumes, ..Offer::new(&TLS13, groups) }.browser()?)))
        .collect()
}

/// A round of visits.
fn visited(command: &Command, target: &Target, sorts: &[Sort], server: &Server) -> Result<Tally> {
    let usual = ["/".to_owned()];
    let load = Load {
        address: target.address,
        sorts,
        connections: command.connections as usize,
        paths: if command.paths.is_empty() { &usual } else { &command.paths },
        stays: false,
        head: HEAD,
        time: Duration::from_secs_f64(command.seconds / f64::from(command.rounds)),
        visit: Some(Visit { name: &target.name, proxied: target.proxied }),
    };
    client::drive(&load, &|| server.cpu())
}

/// Places, the first of them in words.
fn listed(places: &[String]) -> String {
    let mut text = places.iter().take(MOST_PLACES).cloned().collect::<Vec<_>>().join(", ");
    if places.len() > MOST_PLACES {
        text += &format!(" and {} more", places.len() - MOST_PLACES);
    }
    text
}

/// The servers to measure, by number.
fn wanted(targets: &[Target], names: &[String]) -> Result<Vec<usize>> {
    ensure!(!targets.is_empty(), "no server of it speaks TLS on a port: Wattlock has nothing to do there");
    let known = || targets.iter().map(|target| target.label.as_str()).collect::<Vec<_>>().join(", ");
    if names.is_empty() {
        if targets.len() > MOST_SERVERS {
            say!(
                "the first {MOST_SERVERS} of {} servers; --server NAME picks others: {}",
                targets.len(),
                known()
            );
        }
        return Ok((0..targets.len().min(MOST_SERVERS)).collect());
    }
    let mut picked = Vec::new();
    for name in names {
        let called = (0..targets.len()).filter(|at| targets[*at].is_called(name));
        let before = picked.len();
        picked.extend(called);
        ensure!(
            picked.len() > before,
            wattlock_door::Error::Usage(format!(
                "no server `{}`; there are {}",
                name.escape_debug(),
                known()
            ))
        );
    }
    let mut seen = BTreeSet::new();
    picked.retain(|at| seen.insert(*at));
    Ok(picked)
}

struct Maker<'a> {
    command: &'a Command,
    config: &'a Path,
    nginx: &'a Nginx,
    tree: &'a Tree,
}

/// One of the two.
struct Side {
    server: Server,
    twin: Twin,
    _spool: Option<TempDir>,
}

impl Maker<'_> {
    fn start(&self, openssl: &OpenSsl<'_>, parts: Option<&Parts>, hybrid: bool) -> Result<Side> {
        let folder = Server::folder()?;
        let (inside, outside) = (folder.path().join("spool"), spool()?);
        if outside.is_none() {
            std::fs::create_dir(&inside)?;
        }
        let spool = outside.as_ref().map_or(&*inside, TempDir::path);
        let sockets = sockets::folder(spool);
        DirBuilder::new().mode(0o700).create(&sockets)?;
        let config = std::path::absolute(self.config)?;
        let mut twin = Twin::make(
            self.tree,
            &Plan {
                nginx: self.nginx,
                prefix: &self.command.prefix(self.nginx)?,
                config: config.parent().context("a configuration is a file")?,
                folder: folder.path(),
                spool,
                module: parts.map(|parts| parts.module.as_path()),
                hybrid,
                with_upstreams: self.command.with_upstreams,
                workers: self.command.workers(),
                core: (self.command.workers() == 1 && cores() > 1).then_some(0),
                connections: self.command.connections as usize,
            },
        )?;
        let path = folder.path().to_owned();
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path.join("nginx.conf"))?;
        file.write_all(twin.text.as_bytes())?;
        drop(std::mem::take(&mut twin.ports));
        let server =
            Server::with(folder, self.nginx, openssl, twin.addresses.clone(), self.command.workers());
        let server = server.map_err(|error| {
            let side = if parts.is_some() { "with Wattlock" } else { "without Wattlock" };
            anyhow!("{side}: {}", twin.blame(&format!("{error:#}"), &path))
        })?;
        // The site's own sockets may be private. Workers connect to their copies only to hand a request on.
        if outside.is_some() && self.command.with_upstreams {
            std::os::unix::fs::chown(&sockets, Some(server.user()?), None)?;
        }
        Ok(Side { server, twin, _spool: outside })
    }
}

/// A folder for what workers write, if they are another user's: they pass through it, and only root writes in it. nginx
/// makes folders in it and gives those to them.
fn spool() -> Result<Option<TempDir>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let folder =
        tempfile::Builder::new().prefix(&format!("wattlock-spool-{}-", std::process::id())).tempdir()?;
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o711))?;
    Ok(Some(folder))
}

impl Side {
    fn counted(&self) -> Result<Counted> {
        let Some(address) = self.twin.status else { return Ok(Counted::default()) };
        Counted::of(&status(&page::fetch_plain(address, "/wattlock_status")?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::listen::Socket;
    use super::*;

    #[test]
    fn servers_are_picked_by_name() {
        let at = |name: &str, port: u16| Target {
            name: name.to_owned(),
            label: format!("{name}:{port}"),
            place: String::new(),
            socket: Socket::Tcp("*".to_owned(), port),
            address: ([127, 0, 0, 1], 1).into(),
            proxied: false,
            answered: servers::Answered::default(),
        };
        let target = |name: &str| Target { label: name.to_owned(), ..at(name, 443) };
        let targets = [target("a.example"), target("b.example")];
        assert_eq!(wanted(&targets, &[]).unwrap(), [0, 1]);
        assert_eq!(wanted(&targets, &["B.example".to_owned()]).unwrap(), [1]);
        assert!(
            wanted(&targets, &["c".to_owned()]).unwrap_err().to_string().contains("a.example, b.example")
        );
        assert!(wanted(&[], &[]).is_err());
        // One name at two ports.
        let twice = [at("a.example", 443), target("b.example"), at("a.example", 8443)];
        for (word, picked) in [("a.example", &[0, 2][..]), ("a.Example:8443", &[2]), ("b.example:443", &[1])]
        {
            assert_eq!(wanted(&twice, &[word.to_owned()]).unwrap(), picked, "{word}");
        }
        let both = ["a.example:8443".to_owned(), "a.example".to_owned()];
        assert_eq!(wanted(&twice, &both).unwrap(), [2, 0]);
        assert!(wanted(&twice, &["a.example:1".to_owned()]).is_err());
        assert_eq!(wanted(&vec![target("x"); 20], &[]).unwrap().len(), MOST_SERVERS);
    }
}
