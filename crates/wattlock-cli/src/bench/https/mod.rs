//! HTTPS with Wattlock and without: the same nginx, one worker on one core, the client on another, in turn in the same
//! run. What is compared, and what the project asks of itself, is in [`rows`].

pub mod client;
pub mod groups;
mod rows;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::json;

use self::client::{Load, Tally};
use self::rows::{Measure, ROWS, Row};
use super::{machine_line, pair};
use crate::nginx::place::Places;
use crate::nginx::server::{Certificate, KeyType, Listener, OpenSsl, Plan, Server};
use crate::setup::Choice;
use crate::text;

/// Below this share of its core the worker was not what limited the rate.
const FULL: f64 = 0.95;

/// What to measure.
#[derive(Debug, Args)]
pub struct Settings {
    /// Only rows whose name contains this; may be repeated
    #[arg(long = "rows", value_name = "TEXT", value_delimiter = ',')]
    rows: Vec<String>,
    /// List the rows' names and do nothing
    #[arg(long)]
    list: bool,
    /// Seconds of a round
    #[arg(long, default_value_t = 1.0, value_parser = text::parse_seconds)]
    seconds: f64,
    /// Rounds of each side, in turn; medians count
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Core of the server's worker and core of the client
    #[arg(long, value_name = "SERVER,CLIENT", value_delimiter = ',', num_args = 1..=2, default_values_t = [0, 1])]
    cores: Vec<usize>,
    /// Say after each row which engine did what, and in batches of what size
    #[arg(long)]
    engines: bool,
    #[command(flatten)]
    places: Places,
}

/// Runs the benchmark.
pub fn run(settings: &Settings, choice: &Choice, json: bool) -> Result<()> {
    let wants = |row: &Row| {
        settings.rows.is_empty() || settings.rows.iter().any(|part| row.name.contains(part.as_str()))
    };
    let rows: Vec<&Row> = ROWS.iter().filter(|row| wants(row)).collect();
    ensure!(!rows.is_empty(), "no row's name contains {}", settings.rows.join(" or "));
    if settings.list {
        for row in rows {
            say!("{}", row.name);
        }
        return Ok(());
    }
    let &[server_core, client_core] = settings.cores.as_slice() else {
        bail!("--cores takes two: SERVER,CLIENT")
    };
    let mut pair = Pair::start(&settings.places, choice, &rows, server_core)?;
    // Before this thread is pinned: then it sees one core only.
    let machine = machine_line();
    pin(client_core)?;
    if !json {
        say!("{machine}");
        say!("{}; worker on core {server_core}, client on core {client_core}", pair.words);
    }
    let (mut table, mut failures) = (Vec::new(), Vec::new());
    for row in rows {
        if !json {
            eprintln!("wattlock: {}", row.name);
        }
        let before = pair.done(row)?;
        let result = pair.measure(row, settings)?;
        let engines = engines(&before, &pair.done(row)?);
        if settings.engines && !json {
            eprintln!("    {}", engines.join("; "));
        }
        for (side, tallies) in [("stock", &result.stock), ("ours", &result.ours)] {
            failures.extend(failures_of(row.name, side, tallies));
        }
        if json {
            say!("{}", result.json(row, &pair.words, &machine, &engines));
        } else {
            table.push(result.cells(row));
        }
    }
    if !json {
        put!("{}", text::table(&HEADER, &table));
        say!(
            "of 1, 2 and 4 connections the median and the 99th percentile of latency are held to the floor, too"
        );
        say!(
            "ratio: median over rounds; by CPU: the same of the worker's processor time for each; worker: its share of"
        );
        say!(
            "the core; where ours is below {:.0} %, the client or another process was the limit, and `by CPU` says more",
            FULL * 100.0
        );
    }
    ensure!(failures.is_empty(), "connections failed: {}", failures.join("; "));
    Ok(())
}

/// Connections that failed, in words.
pub fn failures_of(row: &str, side: &str, tallies: &[Tally]) -> Option<String> {
    let count: u64 = tallies.iter().map(|tally| tally.failed).sum();
    let first = tallies.iter().find_map(|tally| tally.failure.as_deref()).unwrap_or("unknown");
    (count > 0).then(|| format!("{row}, {side}: {count}, the first: {first}"))
}

/// Pins this thread to a core.
///
/// # Errors
/// There is no such core.
pub fn pin(core: usize) -> Result<()> {
    ensure!(core < CpuSet::MAX_CPU, "core {core}: there are not so many");
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("core {core}"))
}

/// Puts the same load on both, in turn, `rounds` times.
///
/// # Errors
/// As [`client::drive`].
pub fn in_turn(
    rounds: u32,
    mut stock: impl FnMut() -> Result<Tally>,
    mut ours: impl FnMut() -> Result<Tally>,
) -> Result<Sides> {
    let mut sides = Sides::default();
    for round in 0..rounds {
        // Who begins changes, so that a machine that grows slower favours nobody.
        if round % 2 == 0 {
            sides.stock.push(stock()?);
            sides.ours.push(ours()?);
        } else {
            sides.ours.push(ours()?);
            sides.stock.push(stock()?);
        }
    }
    Ok(sides)
}

/// The stock nginx and ours.
struct Pair {
    stock: Server,
    ours: Server,
    /// Which listener has which key.
    listeners: HashMap<KeyType, usize>,
    words: String,
    _folder: tempfile::TempDir,
}

impl Pair {
    fn start(places: &Places, choice: &Choice, rows: &[&Row], core: usize) -> Result<Pair> {
        let nginx = places.nginx()?;
        let parts = places.parts(&nginx, choice)?;
        let folder = tempfile::Builder::new().prefix("wattlock-https-").tempdir()?;
        let root = folder.path().join("files");
        std::fs::create_dir(&root)?;
        for (name, bytes) in [("64k", 64 << 10), ("1m", 1 << 20)] {
            std::fs::write(root.join(name), vec![b'w'; bytes])?;
        }
        let (mut listeners, mut keys) = (Vec::new(), HashMap::new());
        for row in rows {
            if let Entry::Vacant(free) = keys.entry(row.key) {
                free.insert(listeners.len());
                let certificate = Certificate::self_signed(row.key, folder.path())?;
                listeners.push(Listener { port: 0, certificate });
            }
        }
        let start = |openssl| start_one(&nginx, openssl, &root, &listeners, core);
        let (stock, ours) = (start(OpenSsl::Stock)?, start(OpenSsl::Wattlock(&parts))?);
        if let Some(Err(why)) = &ours.active {
            bail!("Wattlock's module is inactive: {why}");
        }
        let [major, minor, patch] = nginx.version;
        let linked =
            nginx.built.lines().find_map(|line| line.strip_prefix("built with ")).unwrap_or("OpenSSL");
        let other = nginx
            .libraries
            .as_ref()
            .map_or(String::new(), |folder| format!(", libraries of {}", folder.display()));
        let words = format!("nginx {major}.{minor}.{patch}, built with {linked}{other}");
        Ok(Pair { stock, ours, listeners: keys, words, _folder: folder })
    }

    /// What the server with Wattlock has done so far, by its own count.
    fn done(&self, row: &Row) -> Result<Done> {
        let text = client::fetch(self.ours.addresses[self.listeners[&row.key]], "/wattlock_status")?;
        let status: serde_json::Value = serde_json::from_str(&text).context("the status page is no JSON")?;
        let cells = status["runtime"]["cells"].as_array().context("the status page has no cells")?;
        let word = |cell: &serde_json::Value, key: &str| cell[key].as_str().unwrap_or_default().to_owned();
        let count = |cell: &serde_json::Value, key: &str| cell[key].as_u64().unwrap_or(0);
        let cell = |cell| {
            ((word(cell, "engine"), word(cell, "kind")), (count(cell, "requests"), count(cell, "batch_sum")))
        };
        Ok(cells.iter().map(cell).collect())
    }

    fn measure(&mut self, row: &Row, settings: &Settings) -> Result<Sides> {
        self.stock.check()?;
        self.ours.check()?;
        let at = self.listeners[&row.key];
        let paths: Vec<String> = row.path.iter().map(|path| (*path).to_owned()).collect();
        let once = |server: &Server| {
            let fresh = client::config(row.version, row.groups, false)?;
            let config =
                if row.resumed { client::config(row.version, row.groups, true)? } else { fresh.clone() };
            let load = Load {
                address: server.addresses[at],
                config,
                other: row.resumed.then_some((10, fresh)),
                connections: row.connections,
                paths: &paths,
                time: std::time::Duration::from_secs_f64(settings.seconds),
            };
            client::drive(&load, &|| server.cpu()).with_context(|| row.name)
        };
        in_turn(settings.rounds, || once(&self.stock), || once(&self.ours))
    }
}

/// Requests and the sum of their batches' sizes, by engine and kind.
type Done = BTreeMap<(String, String), (u64, u64)>;

/// What was done between two looks, in words.
fn engines(before: &Done, after: &Done) -> Vec<String> {
    let since = |(place, (requests, batches)): (&(String, String), &(u64, u64))| {
        let (old_requests, old_batches) = before.get(place).copied().unwrap_or_default();
        let (requests, batches) =
            (requests.saturating_sub(old_requests), batches.saturating_sub(old_batches));
        let (engine, kind) = place;
        // What is done inline is in no batch.
        let mean = batches as f64 / requests.max(1) as f64;
        let batch = if batches == 0 { String::new() } else { format!(" in batches of {mean:.1}") };
        (requests > 0).then(|| format!("{engine} {kind} {requests}{batch}"))
    };
    after.iter().filter_map(since).collect()
}

fn start_one(
    nginx: &crate::nginx::place::Nginx,
    openssl: OpenSsl<'_>,
    root: &Path,
    listeners: &[Listener],
    core: usize,
) -> Result<Server> {
    let listeners = listeners.to_vec();
    Server::start(&Plan { nginx, openssl, root, listeners, workers: 1, core: Some(core), http2: false })
}

/// Rounds of both.
#[derive(Debug, Default)]
pub struct Sides {
    /// Without Wattlock.
    pub stock: Vec<Tally>,
    /// With it.
    pub ours: Vec<Tally>,
}

impl Sides {
    /// Median over rounds of ours over stock, by a figure of which more is better.
    pub fn ratio(&self, merit: impl Fn(&Tally) -> f64) -> f64 {
        let [ours, stock] = [&self.ours, &self.stock].map(|side| side.iter().map(&merit).collect::<Vec<_>>());
        pair::ratio(&ours, &stock)
    }

    /// Median of a figure, stock's and ours.
    pub fn both(&self, figure: impl Fn(&Tally) -> f64) -> [f64; 2] {
        [&self.stock, &self.ours].map(|side| pair::median(side.iter().map(&figure).collect()))
    }
}

const HEADER: [&str; 11] = [
    "row",
    "stock",
    "ours",
    "ratio",
    "floor",
    "goal",
    "verdict",
    "by CPU",
    "CPU, us",
    "p50 / p99, us",
    "worker, %",
];

impl Sides {
    /// The round in the middle, by what is compared; of two in the middle the worse.
    fn middle(side: &[Tally], measure: Measure) -> Option<&Tally> {
        let mut order: Vec<&Tally> = side.iter().collect();
        order.sort_by(|a, b| measure.merit(a).total_cmp(&measure.merit(b)));
        order.get(order.len().saturating_sub(1) / 2).copied()
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let shown =
            |side| Sides::middle(side, row.measure).map_or_else(String::new, |tally| row.measure.show(tally));
        let ratio = self.ratio(|tally| row.measure.merit(tally));
        let arrow = |[stock, ours]: [f64; 2]| format!("{stock:.1} > {ours:.1}");
        let [p50, p99] = [0.5, 0.99].map(|rank| self.both(|tally| tally.latency_us(rank)));
        let share = self.both(Tally::share);
        vec![
            row.name.to_owned(),
            shown(&self.stock),
            shown(&self.ours),
            format!("{ratio:.2}"),
            format!("{:.2}", row.floor),
            row.goal.map_or_else(|| "-".to_owned(), |goal| format!("{goal:.2}")),
            self.verdict(row),
            format!("{:.2}", self.ratio(|tally| Measure::Cpu.merit(tally))),
            arrow(self.both(Tally::cpu_us)),
            format!("{:.0} / {:.0} > {:.0} / {:.0}", p50[0], p99[0], p50[1], p99[1]),
            format!("{:.0} > {:.0}", share[0] * 100.0, share[1] * 100.0),
        ]
    }

    fn verdict(&self, row: &Row) -> String {
        let ratio = self.ratio(|tally| row.measure.merit(tally));
        let share = self.both(Tally::share)[1];
        let mut ratios = row.also.iter().map(|also| (also, self.ratio(|tally| also.merit(tally))));
        match ratio {
            r if r >= row.floor
                && let Some((also, ratio)) = ratios.find(|(_, ratio)| *ratio < row.floor) =>
            {
                format!("below, {} {ratio:.2}", also.name())
            }
            r if row.goal.is_some_and(|goal| r >= goal) => "goal".to_owned(),
            r if r >= row.floor => "floor".to_owned(),
            _ if row.measure == Measure::Rate && row.connections >= 8 && share < FULL => {
                format!("below, worker at {:.0} %", share * 100.0)
            }
            _ => "below".to_owned(),
        }
    }

    fn json(&self, row: &Row, words: &str, machine: &str, engines: &[String]) -> serde_json::Value {
        let side = |side: &[Tally], at: usize| {
            let sum = |figure: fn(&Tally) -> u64| side.iter().map(figure).sum::<u64>();
            json!({
                "rate": self.both(Tally::rate)[at], "cpu_us": self.both(Tally::cpu_us)[at],
                "worker_share": self.both(Tally::share)[at],
                "p50_us": self.both(|tally| tally.latency_us(0.5))[at],
                "p99_us": self.both(|tally| tally.latency_us(0.99))[at],
                "done": sum(|tally| tally.done), "resumed": sum(|tally| tally.resumed),
                "failed": sum(|tally| tally.failed), "bytes": sum(|tally| tally.bytes),
            })
        };
        json!({
            "bench": "https", "row": row.name, "connections": row.connections, "measure": row.measure.name(),
            "stock": side(&self.stock, 0), "ours": side(&self.ours, 1), "rounds": self.ours.len(),
            "ratio": self.ratio(|tally| row.measure.merit(tally)),
            "ratio_by_cpu": self.ratio(|tally| Measure::Cpu.merit(tally)),
            "ratio_p50": self.ratio(|tally| Measure::P50.merit(tally)),
            "ratio_p99": self.ratio(|tally| Measure::P99.merit(tally)),
            "floor": row.floor, "goal": row.goal, "verdict": self.verdict(row), "server": words,
            "engines": engines, "machine": machine,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn tally(done: u64, cpu_ms: u64) -> Tally {
        Tally { done, wall: Duration::from_secs(1), cpu: Duration::from_millis(cpu_ms), ..Tally::default() }
    }

    #[test]
    fn the_middle_ratio_counts_and_is_held_against_floor_and_goal() {
        let row = &ROWS[0];
        let sides = |ours: [u64; 3]| Sides {
            stock: vec![tally(1000, 1000), tally(1000, 1000), tally(1000, 1000)],
            ours: ours.map(|done| tally(done, 1000)).into(),
        };
        assert_eq!(sides([2900, 2800, 1]).verdict(row), "goal");
        assert_eq!(sides([2500, 9000, 1]).verdict(row), "floor");
        assert_eq!(sides([2300, 9000, 1]).verdict(row), "below");
        let few = ROWS.iter().find(|row| !row.also.is_empty()).unwrap();
        let late = |us: u64| Tally { latencies: vec![us * 1000], ..tally(1000, 1000) };
        let with = |us| Sides { stock: vec![late(100)], ours: vec![late(us)] };
        assert_eq!(
            (with(102).verdict(few), with(125).verdict(few)),
            ("floor".into(), "below, p50 0.80".into())
        );
        let lazy = Sides { stock: vec![tally(1000, 1000)], ours: vec![tally(2000, 500)] };
        assert_eq!(lazy.verdict(row), "below, worker at 50 %");
        assert!((lazy.ratio(|tally| Measure::Cpu.merit(tally)) - 4.0).abs() < 1e-9);
    }

    #[test]
    fn only_what_was_done_meanwhile_counts() {
        let done =
            |requests, batches| Done::from([(("lanes".to_owned(), "rsa".to_owned()), (requests, batches))]);
        assert_eq!(engines(&done(10, 80), &done(14, 112)), ["lanes rsa 4 in batches of 8.0"]);
        assert_eq!(engines(&done(10, 0), &done(14, 0)), ["lanes rsa 4"]);
        assert!(engines(&done(10, 80), &done(10, 80)).is_empty());
    }

    #[test]
    fn failures_are_told_once_with_the_first_reason() {
        let bad = Tally { failed: 2, failure: Some("reset".to_owned()), ..Tally::default() };
        assert_eq!(failures_of("r", "ours", &[tally(1, 1), bad]).unwrap(), "r, ours: 2, the first: reset");
        assert_eq!(failures_of("r", "ours", &[tally(1, 1)]), None);
    }
}
