//! HTTPS with Wattlock and without: the same nginx, one worker on one core, the client on another, in turn in the same
//! run. What is compared is in [`rows`].

mod cbc;
pub mod client;
pub mod groups;
pub mod offer;
pub mod rows;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::json;
use wattlock_shell::nginx::page;
use wattlock_shell::nginx::place::{Nginx, Places};
use wattlock_shell::nginx::server::{Certificate, KeyType, Listener, OpenSsl, Plan, Server};
use wattlock_shell::setup::Choice;
use wattlock_shell::text;

use self::client::{Load, Tally};
use self::groups::Group;
use self::rows::{Measure, ROWS, Row};
use super::machine_line;
use super::pair::{self, Gain};
use super::record::{By, Record, Row as Line};
use super::tally::{Did, Done, between, engines};

/// Below this share of its core the worker was not what limited the rate.
const FULL: f64 = 0.95;

/// What a reader of a row with the hybrid must know where the stock server has none.
const WITHOUT: &str = "the stock server's OpenSSL has no X25519MLKEM768: it takes X25519 of the same clients";

/// What to measure.
#[derive(Debug, Args)]
pub struct Settings {
    /// Only the row of this name or, if none has it, rows whose name contains this; may be repeated
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
    let rows = wanted(&settings.rows)?;
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
    let (mut table, mut failures, mut strays, mut without) = (Vec::new(), Vec::new(), Vec::new(), false);
    for row in rows {
        record.remark(row.name);
        let before = pair.done(row)?;
        let result = pair.measure(row, settings)?;
        let engines = engines(&[between(&before, &pair.done(row)?)]);
        if settings.engines && record.shows() {
            eprintln!("    {}", engines.join("; "));
        }
        failures.extend(result.failures(row.name, ["stock", "ours"]));
        let groups = pair.hybrid.map(|has| row.group(has));
        strays.extend(result.strays(row.name, groups));
        if let Some(line) = result.line(row) {
            let params =
                |line: Line| line.param("connections", row.connections).against(pair.against.as_str());
            without |= groups[0] != groups[1];
            let note = if groups[0] == groups[1] { "" } else { WITHOUT };
            record.add(params(line).note(note).detail("server", &pair.words).detail("engines", &engines));
            table.push(result.cells(row));
        }
    }
    name_peers(&pair.against, &mut record);
    if record.shows() {
        show(&table, without)?;
    }
    record.finish()?;
    ensure!(failures.is_empty(), "connections failed: {}", failures.join("; "));
    ensure!(strays.is_empty(), "another group was agreed on than the row's: {}", strays.join("; "));
    Ok(())
}

/// Shows the table and how to read it; `without`: the stock server has no hybrid.
fn show(table: &[Vec<String>], without: bool) -> Result<()> {
    put!("{}", text::table(&HEADER, table));
    say!(
        "each figure stands beside the other of its round, the one with the median gain; by CPU: the same of"
    );
    say!(
        "handshakes or responses by each second of the worker's processor time; worker: its share of the core:"
    );
    say!("below {:.0} % the client or another process was the limit, and `by CPU` says more", FULL * 100.0);
    say!("{}", pair::LEGEND);
    if without {
        say!("x25519mlkem768: {WITHOUT}");
    }
    Ok(())
}

/// The rows of these names, or whose names contain them; all, if there are none.
fn wanted(parts: &[String]) -> Result<Vec<&'static Row>> {
    let known = |part: &str| ROWS.iter().any(|row| row.name == part);
    let is = |row: &Row, part: &str| if known(part) { row.name == part } else { row.name.contains(part) };
    if let Some(part) = parts.iter().find(|part| !ROWS.iter().any(|row| is(row, part))) {
        bail!("no row's name contains {part}");
    }
    let rows = ROWS.iter().filter(|row| parts.is_empty() || parts.iter().any(|part| is(row, part)));
    Ok(rows.collect())
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
    /// Which listener has which keys, groups and buffers.
    listeners: HashMap<Place, usize>,
    /// Whether each side, the stock one first, has X25519MLKEM768.
    hybrid: [bool; 2],
    words: String,
    /// The stock server and its OpenSSL, with versions.
    against: String,
    _folder: tempfile::TempDir,
}

/// What listeners differ in.
type Place = (&'static [KeyType], bool, [Option<&'static str>; 2]);

fn place(row: &Row) -> Place {
    (row.keys, row.groups.contains(&Group::Hybrid), row.buffers)
}

/// The groups of a server that has the hybrid; without, they are those of [`Server`].
pub const GROUPS: &str = "ssl_ecdh_curve X25519MLKEM768:X25519:prime256v1:secp384r1;";

/// Whether an OpenSSL has X25519MLKEM768 without Wattlock, by what [`stock_name`] calls it: 3.5 and later do.
pub fn has_hybrid(stock: &str) -> bool {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u32>().ok());
    let mut numbers = stock.rsplit(' ').next().unwrap_or_default().split('.');
    (number(numbers.next()), number(numbers.next())) >= (Some(3), Some(5))
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
        let against = stock_name(&nginx);
        let hybrid = [has_hybrid(&against), true];
        let (mut listeners, mut places) = ([Vec::new(), Vec::new()], HashMap::new());
        for row in rows {
            if let Entry::Vacant(free) = places.entry(place(row)) {
                free.insert(listeners[0].len());
                let certificates: Vec<Certificate> = row
                    .keys
                    .iter()
                    .map(|key| Certificate::self_signed(*key, folder.path()))
                    .collect::<Result<_>>()?;
                for (at, side) in listeners.iter_mut().enumerate() {
                    side.push(listener(&certificates, place(row).1 && hybrid[at], row.buffers[at])?);
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
        Ok(Pair { stock, ours, listeners: places, hybrid, words, against, _folder: folder })
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
            let sorts = row.sorts()?;
            let load = Load {
                address: server.addresses[at],
                sorts: &sorts,
                connections: row.connections,
                paths: &paths,
                stays: true,
                head: "",
                time: std::time::Duration::from_secs_f64(settings.seconds),
                visit: None,
            };
            client::drive(&load, &|| server.cpu()).with_context(|| row.name)
        };
        in_turn(settings.rounds, || once(&self.stock), || once(&self.ours))
    }
}

/// A listener with certificates, the hybrid group if the server has it, and a size of `ssl_buffer_size`.
fn listener(certificates: &[Certificate], hybrid: bool, buffer: Option<&str>) -> Result<Listener> {
    let mut more = buffer.map_or(String::new(), |size| format!("ssl_buffer_size {size};"));
    if hybrid {
        more += GROUPS;
    }
    for certificate in certificates.iter().skip(1) {
        more += &certificate.directives()?;
    }
    Ok(Listener { port: 0, certificate: certificates.first().cloned(), more })
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
    done_of(&status(&page::fetch(address, "/wattlock_status")?)?)
}

/// A status page.
///
/// # Errors
/// It is none.
pub fn status(text: &str) -> Result<serde_json::Value> {
    serde_json::from_str(text).context("the status page is no JSON")
}

/// The engines' counters of a status page.
///
/// # Errors
/// It has none.
pub fn done_of(status: &serde_json::Value) -> Result<Done> {
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

    /// Handshakes by another group than that of each side, in words.
    fn strays(&self, row: &str, wanted: [Group; 2]) -> Vec<String> {
        let stray = |((side, tallies), wanted): ((&str, &Vec<Tally>), Group)| {
            let wanted = format!("{:?}", wanted.fixed().name());
            let others = groups(tallies).into_iter().filter(|(name, _)| *name != wanted);
            let others: Vec<String> = others.map(|(name, count)| format!("{count} by {name}")).collect();
            (!others.is_empty()).then(|| format!("{row}, {side}, not by {wanted}: {}", others.join(", ")))
        };
        ["stock", "ours"].into_iter().zip([&self.stock, &self.ours]).zip(wanted).filter_map(stray).collect()
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
                "ecdsa": sum(|tally| tally.ecdsa), "groups": groups(side),
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

/// Handshakes of rounds by the name of their group.
pub fn groups(rounds: &[Tally]) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (group, count) in rounds.iter().flat_map(|tally| &tally.groups) {
        *all.entry(format!("{group:?}")).or_insert(0) += count;
    }
    all
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

    use rustls::NamedGroup;

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
    fn a_row_of_that_name_is_wanted_alone_and_an_unknown_part_is_refused() {
        let names = |parts: &[&str]| -> Result<Vec<&str>> {
            let parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
            Ok(wanted(&parts)?.iter().map(|row| row.name).collect())
        };
        assert_eq!(names(&["tls13-both-x25519"]).unwrap(), ["tls13-both-x25519"]);
        assert_eq!(names(&["tls13-both"]).unwrap().len(), 4);
        assert_eq!(names(&[]).unwrap().len(), ROWS.len());
        let error = names(&["tls13-both-x25519", "tls14"]).unwrap_err();
        assert_eq!(error.to_string(), "no row's name contains tls14");
    }

    #[test]
    fn the_hybrid_is_stock_from_3_5_on() {
        for (stock, has) in [
            ("nginx 1.22.1 + OpenSSL 3.0.19", false),
            ("nginx 1.26.3 + OpenSSL 3.4.10", false),
            ("nginx 1.26.3 + OpenSSL 3.5.0-dev", true),
            ("nginx 1.26.3 + OpenSSL 3.10.0", true),
            ("nginx 1.28.0 + OpenSSL 4.0.0", true),
            ("nginx 1.26.3 + OpenSSL ", false),
        ] {
            assert_eq!(has_hybrid(stock), has, "{stock}");
        }
    }

    #[test]
    fn a_handshake_by_another_group_is_told() {
        let row = ROWS.iter().find(|row| row.name == "tls13-both-x25519mlkem768").unwrap();
        let by = |groups: &[(NamedGroup, u64)]| vec![Tally { groups: groups.to_vec(), ..tally(9, 9) }];
        let (hybrid, plain) = ((NamedGroup::X25519MLKEM768, 9), (NamedGroup::X25519, 9));
        let wanted = |stock| [stock, true].map(|has| row.group(has));
        let older = Sides { stock: by(&[plain]), ours: by(&[hybrid]) };
        assert_eq!(older.strays(row.name, wanted(false)), [""; 0]);
        let told = older.strays(row.name, wanted(true));
        assert_eq!(told, ["tls13-both-x25519mlkem768, stock, not by X25519MLKEM768: 9 by X25519"]);
        let mixed = Sides { stock: by(&[plain]), ours: by(&[hybrid, plain]) };
        let told = mixed.strays(row.name, wanted(false));
        assert_eq!(told, ["tls13-both-x25519mlkem768, ours, not by X25519MLKEM768: 9 by X25519"]);
    }

    #[test]
    fn failures_are_told_once_with_the_first_reason() {
        let bad = Tally { failed: 2, failure: Some("reset".to_owned()), ..Tally::default() };
        let sides = Sides { stock: vec![tally(1, 1)], ours: vec![tally(1, 1), bad] };
        assert_eq!(sides.failures("r", ["stock", "ours"]), ["r, ours: 2, the first: reset"]);
    }
}
