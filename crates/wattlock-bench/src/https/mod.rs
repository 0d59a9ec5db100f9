//! HTTPS with Wattlock and without: the same nginx, one worker on one core, the client on another, in turn in the same
//! run. What is compared is in [`rows`].

mod cbc;
pub mod client;
pub mod groups;
pub mod rows;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustls::CipherSuite;
use serde_json::json;
use wattlock_shell::nginx::page;
use wattlock_shell::nginx::place::{Nginx, Places};
use wattlock_shell::nginx::server::{Certificate, KeyType, Listener, OpenSsl, Plan, Server};
use wattlock_shell::setup::Choice;
use wattlock_shell::text;

use self::client::{Load, Tally};
use self::rows::{Measure, ROWS, Row};
use super::machine_line;
use super::pair::{self, Gain};
use super::record::{By, Record, Row as Line};
use super::tally::{Did, Done, between, engines};

/// The suite of rows with CBC.
const CBC: CipherSuite = CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA;

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
pub fn run(settings: &Settings, choice: &Choice, mut record: Record) -> Result<()> {
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
    if record.shows() {
        say!("{machine}");
        say!("{}; worker on core {server_core}, client on core {client_core}", pair.words);
    }
    let (mut table, mut failures) = (Vec::new(), Vec::new());
    for row in rows {
        record.remark(row.name);
        let before = pair.done(row)?;
        let result = pair.measure(row, settings)?;
        let engines = engines(&[between(&before, &pair.done(row)?)]);
        if settings.engines && record.shows() {
            eprintln!("    {}", engines.join("; "));
        }
        failures.extend(result.failures(row.name, ["stock", "ours"]));
        if let Some(line) = result.line(row) {
            let params =
                |line: Line| line.param("connections", row.connections).against(pair.against.as_str());
            record.add(params(line).detail("server", &pair.words).detail("engines", &engines));
            table.push(result.cells(row));
        }
    }
    name_peers(&pair.against, &mut record);
    if record.shows() {
        put!("{}", text::table(&HEADER, &table));
        say!(
            "each figure stands beside the other of its round, the one with the median gain; by CPU: the same of"
        );
        say!(
            "handshakes or responses by each second of the worker's processor time; worker: its share of the core:"
        );
        say!(
            "below {:.0} % the client or another process was the limit, and `by CPU` says more",
            FULL * 100.0
        );
        say!("{}", pair::LEGEND);
    }
    record.finish()?;
    ensure!(failures.is_empty(), "connections failed: {}", failures.join("; "));
    Ok(())
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
        // The first side changes, so that a machine that grows slower favours neither side.
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
    /// Which listener has which key and buffers.
    listeners: HashMap<Place, usize>,
    words: String,
    /// The stock server and its OpenSSL, with versions.
    against: String,
    _folder: tempfile::TempDir,
}

/// What listeners differ in.
type Place = (KeyType, [Option<&'static str>; 2]);

fn place(row: &Row) -> Place {
    (row.key, row.buffers)
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
        let (mut listeners, mut keys) = ([Vec::new(), Vec::new()], HashMap::new());
        for row in rows {
            if let Entry::Vacant(free) = keys.entry(place(row)) {
                free.insert(listeners[0].len());
                let certificate = Certificate::self_signed(row.key, folder.path())?;
                for (side, buffer) in listeners.iter_mut().zip(row.buffers) {
                    let more = buffer.map_or(String::new(), |size| format!("ssl_buffer_size {size};"));
                    side.push(Listener { port: 0, certificate: Some(certificate.clone()), more });
                }
            }
        }
        let [of_stock, of_ours] = listeners;
        let stock = one_worker(&nginx, OpenSsl::Stock, &root, of_stock, Some(core))?;
        let ours = one_worker(&nginx, OpenSsl::Wattlock(&parts), &root, of_ours, Some(core))?;
        let linked =
            nginx.built.lines().find_map(|line| line.strip_prefix("built with ")).unwrap_or("OpenSSL");
        let other = nginx
            .libraries
            .as_ref()
            .map_or(String::new(), |folder| format!(", libraries of {}", folder.display()));
        let words = format!("nginx {}, built with {linked}{other}", nginx.release());
        let against = stock_name(&nginx);
        Ok(Pair { stock, ours, listeners: keys, words, against, _folder: folder })
    }

    /// What the server with Wattlock has done so far, by its own count.
    fn done(&self, row: &Row) -> Result<Done> {
        done(self.ours.addresses[self.listeners[&place(row)]])
    }

    fn measure(&mut self, row: &Row, settings: &Settings) -> Result<Sides> {
        self.stock.check()?;
        self.ours.check()?;
        let at = self.listeners[&place(row)];
        let paths: Vec<String> = row.path.iter().map(|path| (*path).to_owned()).collect();
        let once = |server: &Server| {
            let fresh = match row.cbc {
                true => client::config_of(row.version, row.groups, false, CBC)?,
                false => client::config(row.version, row.groups, false)?,
            };
            let config =
                if row.resumed { client::config(row.version, row.groups, true)? } else { fresh.clone() };
            let load = Load {
                address: server.addresses[at],
                config: Some(config),
                other: row.resumed.then_some((0.1, fresh)),
                connections: row.connections,
                paths: &paths,
                stays: true,
                head: "",
                time: std::time::Duration::from_secs_f64(settings.seconds),
            };
            client::drive(&load, &|| server.cpu()).with_context(|| row.name)
        };
        in_turn(settings.rounds, || once(&self.stock), || once(&self.ours))
    }
}

/// What an nginx and the OpenSSL that it runs with are called: `nginx 1.22.1 + OpenSSL 3.0.19`.
pub fn stock_name(nginx: &Nginx) -> String {
    // `running with` is said where it is another than at build time.
    let said = |start: &str| {
        let rest = nginx.built.split_once(start)?.1.split_once("OpenSSL ")?.1;
        rest.split_whitespace().next().map(|version| version.trim_end_matches(')').to_owned())
    };
    let openssl = said("running with ").or_else(|| said("built with ")).unwrap_or_default();
    format!("nginx {} + OpenSSL {openssl}", nginx.release())
}

/// Adds the versions in such a name to a record.
pub fn name_peers(against: &str, record: &mut Record) {
    let mut parts = against.split(" + ").filter_map(|part| part.split_once(' '));
    if let (Some((_, nginx)), Some((_, openssl))) = (parts.next(), parts.next()) {
        record.peer("nginx", nginx);
        record.peer("openssl", openssl);
    }
}

/// What a server with Wattlock has done so far, by its own count.
///
/// # Errors
/// It has no status page.
pub fn done(address: std::net::SocketAddr) -> Result<Done> {
    let text = page::fetch(address, "/wattlock_status")?;
    let status: serde_json::Value = serde_json::from_str(&text).context("the status page is no JSON")?;
    let cells = status["runtime"]["cells"].as_array().context("the status page has no cells")?;
    let word = |cell: &serde_json::Value, key: &str| cell[key].as_str().unwrap_or_default().to_owned();
    let count = |cell: &serde_json::Value, key: &str| cell[key].as_u64().unwrap_or(0);
    let cell = |cell| {
        let [requests, bytes, batches, timed, timed_ns] =
            ["requests", "bytes", "batch_sum", "timed", "timed_ns"].map(|key| count(cell, key));
        let submit_ns = count(cell, "submit_ns");
        let did = Did { requests, bytes, batches, timed, timed_ns, submit_ns };
        ((word(cell, "engine"), word(cell, "kind")), did)
    };
    Ok(cells.iter().map(cell).collect())
}

/// An nginx with one worker, on a core if one is named.
///
/// # Errors
/// It does not start, or has Wattlock's module and the module is inactive.
pub fn one_worker(
    nginx: &Nginx,
    openssl: OpenSsl<'_>,
    root: &Path,
    listeners: Vec<Listener>,
    core: Option<usize>,
) -> Result<Server> {
    let plan = Plan { nginx, openssl, root, listeners, workers: 1, core, http2: false, more: String::new() };
    let server = Server::start(&plan)?;
    match &server.active {
        Some(Err(why)) => bail!("Wattlock's module is inactive: {why}"),
        _ => Ok(server),
    }
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
    /// Ours against stock's, round by round. `None` if nothing succeeded.
    pub fn gain(&self, measure: Measure) -> Option<Gain> {
        let (figure, better) = measure.figure();
        let [stock, ours] = self.figures(figure);
        Gain::of(&ours, &stock, better)
    }

    /// Connections that failed, in words.
    pub fn failures(&self, row: &str, sides: [&str; 2]) -> Vec<String> {
        let failed = |(side, tallies): (&str, &Vec<Tally>)| {
            let count: u64 = tallies.iter().map(|tally| tally.failed).sum();
            let first = tallies.iter().find_map(|tally| tally.failure.as_deref()).unwrap_or("unknown");
            (count > 0).then(|| format!("{row}, {side}: {count}, the first: {first}"))
        };
        sides.into_iter().zip([&self.stock, &self.ours]).filter_map(failed).collect()
    }

    fn figures(&self, figure: impl Fn(&Tally) -> f64) -> [Vec<f64>; 2] {
        [&self.stock, &self.ours].map(|side| side.iter().map(&figure).collect())
    }

    /// Median of a figure, stock's and ours.
    pub fn both(&self, figure: impl Fn(&Tally) -> f64) -> [f64; 2] {
        self.figures(figure).map(pair::median)
    }

    /// A row for programs: by processor time what is done by each second of it, else the latency.
    pub fn row(&self, bench: &'static str, name: &str, measure: Measure, responses: bool) -> Option<Line> {
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
        let unit = if responses { "responses/s" } else { "handshakes/s" };
        let (unit, by, gain) = match measure {
            Measure::Rate | Measure::Cpu => {
                let gain = self.gain(Measure::Cpu)?;
                (unit, By::Cpu, Gain { ours: 1e6 / gain.ours, theirs: 1e6 / gain.theirs, ..gain })
            }
            Measure::P50 | Measure::P99 => ("us", By::Time, self.gain(measure)?),
        };
        let line = Line::compared(bench, name, unit, by, gain)
            .detail("stock", side(&self.stock, 0))
            .detail("ours", side(&self.ours, 1));
        let others = [("by_rate", Measure::Rate), ("by_p50", Measure::P50), ("by_p99", Measure::P99)];
        Some(others.into_iter().fold(line, |line, (name, measure)| line.detail(name, self.gain(measure))))
    }
}

const HEADER: [&str; 7] = ["row", "stock", "ours", "gain", "gain by CPU", "p50 / p99, us", "worker, %"];

impl Sides {
    fn line(&self, row: &Row) -> Option<Line> {
        self.row("https", row.name, row.measure, row.path.is_some())
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let gain = self.gain(row.measure);
        let shown = |of: fn(Gain) -> f64| gain.map_or_else(|| "-".into(), |gain| row.measure.show(of(gain)));
        let [p50, p99] = [0.5, 0.99].map(|rank| self.both(|tally| tally.latency_us(rank)));
        let share = self.both(Tally::share);
        vec![
            row.name.to_owned(),
            shown(|gain| gain.theirs),
            shown(|gain| gain.ours),
            pair::cell(gain),
            pair::cell(self.gain(Measure::Cpu)),
            format!("{:.0} / {:.0} > {:.0} / {:.0}", p50[0], p99[0], p50[1], p99[1]),
            format!("{:.0} > {:.0}", share[0] * 100.0, share[1] * 100.0),
        ]
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
    fn a_rate_is_compared_by_the_clock_and_by_processor_time() {
        let lazy = Sides { stock: vec![tally(1000, 1000)], ours: vec![tally(2000, 500)] };
        assert_eq!(lazy.gain(Measure::Rate).unwrap().ratio, 2.0);
        assert!((lazy.gain(Measure::Cpu).unwrap().ratio - 4.0).abs() < 1e-9);
        let line = serde_json::to_value(lazy.line(&ROWS[0]).unwrap()).unwrap();
        assert_eq!((&line["by"], &line["unit"]), (&"cpu".into(), &"handshakes/s".into()));
        assert!((line["ours"].as_f64().unwrap() - 4000.0).abs() < 1e-6, "{line}");
        assert!((line["theirs"].as_f64().unwrap() - 1000.0).abs() < 1e-6, "{line}");
        assert_eq!(line["detail"]["by_rate"]["ratio"], 2.0);
    }

    /// The figures of a row were three medians once, which told another ratio than the one beside them.
    #[test]
    fn a_rows_figures_make_its_gain() {
        let sides = Sides {
            stock: [763, 841, 900].map(|done| tally(done, 1000)).into(),
            ours: [862, 841, 700].map(|done| tally(done, 1000)).into(),
        };
        let gain = sides.gain(Measure::Rate).unwrap();
        assert_eq!((gain.ours, gain.theirs, gain.ratio), (841.0, 841.0, 1.0));
        assert!(sides.cells(&ROWS[0])[3].starts_with("no difference"), "{:?}", sides.cells(&ROWS[0]));
    }

    #[test]
    fn a_late_row_is_told_in_microseconds() {
        let row = ROWS.iter().find(|row| row.measure == Measure::P99).unwrap();
        let late = |us: u64| Tally { latencies: vec![us * 1000], ..tally(1000, 1000) };
        let sides = Sides { stock: vec![late(100)], ours: vec![late(125)] };
        let line = serde_json::to_value(sides.line(row).unwrap()).unwrap();
        assert_eq!((&line["by"], &line["unit"], &line["ratio"]), (&"time".into(), &"us".into(), &0.8.into()));
    }

    #[test]
    fn the_stock_server_has_its_librarys_version() {
        let name = |built: &str| {
            stock_name(&wattlock_shell::nginx::place::Nginx {
                program: "nginx".into(),
                version: [1, 22, 1],
                built: built.to_owned(),
                libraries: None,
            })
        };
        let built = "built with OpenSSL 3.0.19 27 Jan 2026";
        assert_eq!(name(built), "nginx 1.22.1 + OpenSSL 3.0.19");
        let both = format!("{built} (running with OpenSSL 3.0.22 25 Aug 2026)");
        assert_eq!(name(&both), "nginx 1.22.1 + OpenSSL 3.0.22");
    }

    #[test]
    fn failures_are_told_once_with_the_first_reason() {
        let bad = Tally { failed: 2, failure: Some("reset".to_owned()), ..Tally::default() };
        let sides = Sides { stock: vec![tally(1, 1)], ours: vec![tally(1, 1), bad] };
        assert_eq!(sides.failures("r", ["stock", "ours"]), ["r, ours: 2, the first: reset"]);
    }
}
