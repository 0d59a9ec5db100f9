//! `wattlock serve --compare --config`: what a site gains. Its own configuration runs twice on loopback, without
//! Wattlock and with it, and visitors come to both in turn. What is compared is nginx's processor time for each request.
//!
//! The site's files and its nginx are not touched: [`copy`] makes the copies, [`policy`] says of what.

mod copy;
mod frame;
mod listen;
mod policy;
mod sockets;
mod tree;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use wattlock_shell::joules::Gauge;
use wattlock_shell::nginx::page;
use wattlock_shell::nginx::place::{Nginx, Parts};
use wattlock_shell::nginx::server::{OpenSsl, Server};
use wattlock_shell::nginx::site::{Command, cores};
use wattlock_shell::setup::Choice;

use self::copy::{Plan, Target, Twin};
use self::tree::Tree;
use crate::https::client::{self, Load, Sort, TLS13, Tally, Visit};
use crate::https::groups::Group;
use crate::https::offer::Offer;
use crate::https::rows::Measure;
use crate::https::{Sides, done_of, groups, has_hybrid, in_turn, name_peers, pin, status, stock_name};
use crate::machine_line;
use crate::pair::{Better, Gain, LEGEND};
use crate::record::Record;
use crate::tally::{Done, between, engines};

/// Servers that are measured if none is named: each takes its seconds.
const MOST_SERVERS: usize = 8;
/// Places that are told of one thing that differs.
const MOST_PLACES: usize = 3;
/// From which difference of their refusals on two sides did not do the same.
const ALIKE: f64 = 0.01;

/// What a browser says besides.
const HEAD: &str = "User-Agent: wattlock\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n";

/// Runs the comparison.
pub fn run(command: &Command, config: &Path, choice: &Choice, mut record: Record) -> Result<()> {
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
    let mut failures = Vec::new();
    for at in wanted {
        let target = &ours.twin.targets[at];
        eprintln!("wattlock: {} ({})", target.name, target.place);
        let (before, joules) = (ours.counted()?, RefCell::new([Vec::new(), Vec::new()]));
        let visit = |side: &Side, number: usize| -> Result<Tally> {
            let load = || visited(command, &side.twin.targets[at], &sorts(offered, resumed)?, &side.server);
            let mut gauge = gauge.borrow_mut();
            let Some(gauge) = gauge.as_mut() else { return load() };
            let (tally, joule) = gauge.around(load);
            let tally = tally?;
            let each = joule.map_or(0.0, |joule| joule.joules() / tally.done.max(1) as f64);
            joules.borrow_mut()[number].push(each);
            Ok(tally)
        };
        let sides = in_turn(command.rounds, || visit(&stock, 0), || visit(&ours, 1))?;
        let [theirs, own] = joules.into_inner();
        let found = Found {
            sides,
            did: ours.counted()?.since(&before),
            joules: Gain::of(&own, &theirs, Better::Less),
        };
        found.tell(target)?;
        if let Some(row) = found.sides.row("serve", "site", Measure::Cpu, true) {
            let row = row.param("server", target.name.as_str()).param("connections", connections);
            record.add(found.detail(row.param("resumed_percent", resumed).against(&*against)));
        }
        failures.extend(found.sides.failures(&target.name, ["stock", "with Wattlock"]));
    }
    say!("{LEGEND}");
    name_peers(&against, &mut record);
    record.finish()?;
    ensure!(failures.is_empty(), "connections failed: {}", failures.join("; "));
    Ok(())
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
    client::drive(&load, &|| server.cpu()).with_context(|| format!("{} ({})", target.name, target.place))
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
    let known = || targets.iter().map(|target| target.name.as_str()).collect::<Vec<_>>().join(", ");
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
    let number = |name: &String| {
        let is = |target: &Target| target.name.eq_ignore_ascii_case(name);
        targets.iter().position(is).ok_or_else(|| {
            wattlock_door::Error::Usage(format!("no server `{}`; there are {}", name.escape_debug(), known()))
                .into()
        })
    };
    names.iter().map(number).collect()
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
        let config = std::path::absolute(self.config)?;
        let mut twin = Twin::make(
            self.tree,
            &Plan {
                nginx: self.nginx,
                prefix: &self.command.prefix(self.nginx)?,
                config: config.parent().context("a configuration is a file")?,
                folder: folder.path(),
                spool: outside.as_ref().map_or(&*inside, TempDir::path),
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

/// What the module and its engines did, by the status page.
#[derive(Debug, Default)]
struct Counted {
    handshakes: u64,
    paused: u64,
    done: Done,
    fallbacks: BTreeMap<String, u64>,
}

impl Side {
    fn counted(&self) -> Result<Counted> {
        let Some(address) = self.twin.status else { return Ok(Counted::default()) };
        Counted::of(&status(&page::fetch_plain(address, "/wattlock_status")?)?)
    }
}

impl Counted {
    fn of(status: &Value) -> Result<Counted> {
        let count = |key: &str| status[key].as_u64().unwrap_or(0);
        let mut fallbacks = BTreeMap::new();
        for engine in status["runtime"]["engines"].as_array().into_iter().flatten() {
            for (reason, count) in engine["fallbacks"].as_object().into_iter().flatten() {
                *fallbacks.entry(reason.clone()).or_insert(0) += count.as_u64().unwrap_or(0);
            }
        }
        Ok(Counted {
            handshakes: count("handshakes"),
            paused: count("paused"),
            done: done_of(status)?,
            fallbacks,
        })
    }

    fn since(self, before: &Counted) -> Counted {
        let fallbacks = self.fallbacks.into_iter().map(|(reason, count)| {
            let then = before.fallbacks.get(&reason).copied().unwrap_or(0);
            (reason, count.saturating_sub(then))
        });
        Counted {
            handshakes: self.handshakes.saturating_sub(before.handshakes),
            paused: self.paused.saturating_sub(before.paused),
            done: between(&before.done, &self.done),
            fallbacks: fallbacks.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// Mean size of the batches of what was in one.
    fn batch(&self) -> Option<f64> {
        let batched = self.done.values().filter(|did| did.batches > 0);
        let (sizes, requests) = batched.fold((0, 0), |sum, did| (sum.0 + did.batches, sum.1 + did.requests));
        (requests > 0).then(|| sizes as f64 / requests as f64)
    }
}

/// What came of a server's rounds.
struct Found {
    sides: Sides,
    did: Counted,
    joules: Option<Gain>,
}

impl Found {
    /// Why there is no figure, if there is none.
    fn obstacle(&self) -> Option<String> {
        if self.did.handshakes == 0 {
            return Some(
                "no handshake came to Wattlock: is `wattlock off` in force for its address?".to_owned(),
            );
        }
        if self.did.done.is_empty() {
            return Some("nothing of its handshakes is of a kind that Wattlock computes".to_owned());
        }
        let [stock, ours] = [&self.sides.stock, &self.sides.ours].map(|side| refusals(side));
        ((stock - ours).abs() > ALIKE).then(|| {
            format!(
                "the two did not answer alike: {:.0} % refused without Wattlock, {:.0} % with it; a limit counts \
                 (`limit_req`, `limit_conn`)",
                stock * 100.0,
                ours * 100.0
            )
        })
    }

    fn gain(&self) -> Option<Gain> {
        self.sides.gain(Measure::Cpu).filter(|_| self.obstacle().is_none())
    }

    fn tell(&self, target: &Target) -> Result<()> {
        let words = match (self.obstacle(), self.gain()) {
            (Some(why), _) => format!("no figure: {why}"),
            (None, Some(gain)) => saving(gain, "nginx's processor time"),
            (None, None) => "no figure: no round has one".to_owned(),
        };
        say!("{} ({}): {words}", target.name, target.place);
        if let Some(gain) = self.gain() {
            let cpu = Measure::Cpu;
            let visits: u64 = self.rounds().map(|tally| tally.visits).sum();
            let resumed: u64 = self.rounds().map(|tally| tally.resumed).sum();
            say!(
                "  a request, with its part of a handshake: {} without Wattlock, {} with it; {resumed} of {visits} \
                 handshakes resumed",
                cpu.show(gain.theirs),
                cpu.show(gain.ours)
            );
        }
        if let Some(joules) = self.joules {
            say!(
                "  {} (counters of the whole machine, the client in it)",
                saving(joules, "the machine's joules")
            );
        }
        let shares: Vec<String> =
            groups(&self.sides.ours).into_iter().map(|(name, n)| format!("{name} {n}")).collect();
        say!(
            "  with Wattlock: {}; by {}",
            self.batches(),
            if shares.is_empty() { "no group".to_owned() } else { shares.join(", ") }
        );
        let statuses = self.statuses();
        let all: Vec<String> =
            statuses.iter().map(|(status, count)| format!("{count} of {status}")).collect();
        say!("  answers: {}", all.join(", "));
        for (status, _) in statuses.iter().filter(|(status, _)| **status >= 400) {
            say!("  {status}: {}", reason(*status));
        }
        Ok(())
    }

    fn rounds(&self) -> impl Iterator<Item = &Tally> {
        self.sides.stock.iter().chain(&self.sides.ours)
    }

    fn statuses(&self) -> BTreeMap<u16, u64> {
        let mut all = BTreeMap::new();
        for (status, count) in self.rounds().flat_map(|tally| &tally.statuses) {
            *all.entry(*status).or_insert(0) += count;
        }
        all
    }

    fn batches(&self) -> String {
        let share = 100.0 * self.did.paused as f64 / self.did.handshakes.max(1) as f64;
        let batch = self.did.batch().map_or(String::new(), |batch| format!(", in batches of {batch:.1}"));
        let fallbacks: Vec<String> =
            self.did.fallbacks.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        let fallbacks = if fallbacks.is_empty() { "no fallback".to_owned() } else { fallbacks.join(", ") };
        format!("{share:.0} % of handshakes waited for others{batch}; {fallbacks}")
    }

    fn detail(&self, row: crate::record::Row) -> crate::record::Row {
        let percent = |gain: Gain| {
            let of = |ratio: f64| 100.0 * (1.0 - 1.0 / ratio);
            json!({"low": of(gain.low), "median": gain.known().map(of), "high": of(gain.high)})
        };
        row.detail("saving_percent", self.gain().map(percent))
            .detail("joules_saving_percent", self.joules.map(percent))
            .detail("no_figure", self.obstacle())
            .detail("statuses", self.statuses())
            .detail("handshakes", self.did.handshakes)
            .detail("waited", self.did.paused)
            .detail("mean_batch", self.did.batch())
            .detail("fallbacks", &self.did.fallbacks)
            .detail("engines", engines(std::slice::from_ref(&self.did.done)))
    }
}

/// Share of the answers that refuse.
fn refusals(side: &[Tally]) -> f64 {
    let count = |least: u16| -> u64 {
        let all = side.iter().flat_map(|tally| &tally.statuses);
        all.filter(|(status, _)| **status >= least).map(|(_, count)| *count).sum()
    };
    count(400) as f64 / count(0).max(1) as f64
}

/// What a gain is in per cent of what the peer took.
fn saving(gain: Gain, of: &str) -> String {
    let saved = |ratio: f64| 100.0 * (1.0 - 1.0 / ratio);
    let cost = |ratio: f64| 100.0 * (1.0 / ratio - 1.0);
    let Gain { ratio, low, high, rounds, .. } = gain;
    match gain.known() {
        Some(_) if rounds == 1 && ratio >= 1.0 => format!("saves {:.0} % of {of} (one round)", saved(ratio)),
        Some(_) if rounds == 1 => format!("takes {:.0} % more of {of} (one round)", cost(ratio)),
        Some(_) if low > 1.0 => format!(
            "saves at least {:.0} % (median {:.0} %, at most {:.0} %) of {of}",
            saved(low),
            saved(ratio),
            saved(high)
        ),
        Some(_) => format!(
            "takes at least {:.0} % (median {:.0} %, at most {:.0} %) more of {of}",
            cost(high),
            cost(ratio),
            cost(low)
        ),
        None => format!("no difference in {of} ({:.0} % to {:.0} % saved)", saved(low), saved(high)),
    }
}

/// What may have refused a request.
fn reason(status: u16) -> &'static str {
    match status {
        400 => "the request was refused; perhaps it wants a client's certificate (`ssl_verify_client`)",
        401 => "a password is wanted (`auth_basic`, `auth_request`)",
        403 => "access is denied to 127.0.0.1 (`deny`, `auth_request`), or the folder has no index: --path",
        404 => "there is no such page: --path",
        421 => "the server is not for this name",
        429 | 503 => "a limit refuses (`limit_req`, `limit_conn`), or an upstream is down",
        502 | 504 => "an upstream is down",
        _ => "an error's page was measured",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(statuses: &[(u16, u64)]) -> Tally {
        let done = statuses.iter().map(|(_, count)| count).sum();
        Tally {
            done,
            wall: Duration::from_secs(1),
            cpu: Duration::from_millis(10),
            statuses: statuses.iter().copied().collect(),
            ..Tally::default()
        }
    }

    #[test]
    fn a_gain_is_told_in_per_cent_of_what_the_peer_took() {
        let told =
            |ratios: &[f64]| saving(Gain::of(ratios, &vec![1.0; ratios.len()], Better::More).unwrap(), "it");
        assert_eq!(told(&[2.0, 4.0, 1.25]), "saves at least 20 % (median 50 %, at most 75 %) of it");
        assert_eq!(told(&[0.5, 0.8, 0.4]), "takes at least 25 % (median 100 %, at most 150 %) more of it");
        assert_eq!(told(&[0.5, 1.25, 1.0]), "no difference in it (-100 % to 20 % saved)");
        assert_eq!(told(&[2.0]), "saves 50 % of it (one round)");
        assert_eq!(told(&[0.5]), "takes 100 % more of it (one round)");
    }

    #[test]
    fn sides_that_do_not_answer_alike_have_no_figure() {
        let did = || Counted {
            handshakes: 1,
            done: Done::from([(("lanes".to_owned(), "k".to_owned()), crate::tally::Did::default())]),
            ..Counted::default()
        };
        let found = |stock: &[(u16, u64)], ours: &[(u16, u64)], did: Counted| Found {
            sides: Sides { stock: vec![tally(stock)], ours: vec![tally(ours)] },
            did,
            joules: None,
        };
        let limited = found(&[(200, 50), (503, 50)], &[(200, 20), (503, 80)], did());
        assert!(limited.obstacle().unwrap().contains("50 % refused without Wattlock, 80 % with it"));
        assert!(limited.gain().is_none());
        assert_eq!(found(&[(404, 9)], &[(404, 7)], did()).obstacle(), None);
        let off = found(&[(200, 1)], &[(200, 1)], Counted { handshakes: 0, ..did() });
        assert!(off.obstacle().unwrap().contains("`wattlock off`"));
        let row = off.detail(off.sides.row("serve", "site", Measure::Cpu, true).unwrap());
        let row = serde_json::to_value(row).unwrap();
        assert!(row["detail"]["saving_percent"].is_null() && row["detail"]["no_figure"].is_string(), "{row}");
    }

    #[test]
    fn counters_are_those_between_two_looks() {
        let page = |handshakes: u64, silent: u64| {
            json!({"handshakes": handshakes, "paused": 2, "runtime": {"cells": [
                {"engine": "lanes", "kind": "k", "requests": handshakes, "batch_sum": 3 * handshakes}
            ], "engines": [{"fallbacks": {"silent": silent}}]}})
        };
        let (before, after) = (Counted::of(&page(4, 1)).unwrap(), Counted::of(&page(10, 1)).unwrap());
        let since = after.since(&before);
        assert_eq!((since.handshakes, since.paused, since.batch()), (6, 0, Some(3.0)));
        assert!(since.fallbacks.is_empty());
    }

    #[test]
    fn servers_are_picked_by_name() {
        let target = |name: &str| Target {
            name: name.to_owned(),
            place: String::new(),
            address: ([127, 0, 0, 1], 1).into(),
            proxied: false,
        };
        let targets = [target("a.example"), target("b.example")];
        assert_eq!(wanted(&targets, &[]).unwrap(), [0, 1]);
        assert_eq!(wanted(&targets, &["B.example".to_owned()]).unwrap(), [1]);
        assert!(
            wanted(&targets, &["c".to_owned()]).unwrap_err().to_string().contains("a.example, b.example")
        );
        assert!(wanted(&[], &[]).is_err());
        assert_eq!(wanted(&vec![target("x"); 20], &[]).unwrap().len(), MOST_SERVERS);
    }
}
