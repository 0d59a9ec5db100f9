//! Compressed responses of the same nginx with Wattlock and without, in turn: processor time for each response, the 99th
//! percentile of a small page beside large ones, and the time to a response's last byte with other cores and alone.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustls::version::TLS13;
use wattlock_core::samples;
use wattlock_shell::nginx::place::{Nginx, Parts};
use wattlock_shell::nginx::server::{Certificate, KeyType, Listener, OpenSsl, Server};
use wattlock_shell::setup::Choice;
use wattlock_shell::text;

use super::Settings;
use crate::https::client::{self, Load, Sort, Tally};
use crate::https::groups::Group;
use crate::https::offer::Offer;
use crate::https::rows::Measure;
use crate::https::{Sides, in_turn, name_peers, one_worker, stock_name};
use crate::pair::{self, cell};
use crate::record::Record;

/// Where the worker runs, and where the client does.
const CORES: [usize; 2] = [0, 1];

/// Clients that fetch large files while a small page is timed.
const BESIDE: usize = 8;

/// Server-sent events: how many a response has, how long each is, and the time between them.
const EVENTS: (usize, usize, Duration) = (100, 120, Duration::from_millis(1));

/// What is held against what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Against {
    /// Both on one core, which other cores' threads would share: the loop alone.
    Stock,
    /// nginx free to use other cores, against the stock server.
    StockFree,
    /// The same, against Wattlock without other cores.
    Alone,
}

struct Row {
    name: &'static str,
    path: &'static str,
    listener: Listens,
    connections: usize,
    measure: Measure,
    against: Against,
    /// While [`BESIDE`] clients fetch `/10m`.
    beside: bool,
    /// zstd is taken before gzip.
    zstd: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listens {
    Level1,
    Level6,
    Tls,
}

/// Few connections, since all large responses end at about the same time.
const BASE: Row = Row {
    name: "",
    path: "/1m",
    listener: Listens::Level1,
    connections: 2,
    measure: Measure::Cpu,
    against: Against::Stock,
    beside: false,
    zstd: false,
};

const IDLE: Row = Row { connections: 1, measure: Measure::P50, against: Against::Alone, ..BASE };

const ROWS: &[Row] = &[
    Row { name: "nginx gzip 1, 1 MiB", ..BASE },
    Row { name: "nginx gzip 1, 150 KiB", path: "/150k", connections: 4, ..BASE },
    Row { name: "nginx gzip 1, 16 KiB", path: "/16k", connections: 16, ..BASE },
    Row { name: "nginx gzip 1, 5 KiB", path: "/5k", connections: 16, ..BASE },
    Row { name: "nginx gzip 1, 1 KiB", path: "/1k", connections: 16, ..BASE },
    Row { name: "nginx gzip 1, 1 MiB, TLS", listener: Listens::Tls, ..BASE },
    Row { name: "nginx gzip 6, 1 MiB", listener: Listens::Level6, ..BASE },
    Row { name: "nginx zstd 3 for gzip 6, 1 MiB", listener: Listens::Level6, zstd: true, ..BASE },
    Row { name: "nginx gzip 6, events", listener: Listens::Level6, path: "/events", connections: 32, ..BASE },
    Row {
        name: "nginx gzip 6, small page beside large ones, p99",
        listener: Listens::Level6,
        path: "/1k",
        connections: 1,
        measure: Measure::P99,
        beside: true,
        ..BASE
    },
    Row { name: "nginx gzip 1, 1 MiB, other cores, last byte", ..IDLE },
    Row { name: "nginx gzip 6, 1 MiB, other cores, last byte", listener: Listens::Level6, ..IDLE },
    Row {
        name: "nginx gzip 6, 1 MiB, other cores, processor time",
        listener: Listens::Level6,
        against: Against::StockFree,
        connections: 1,
        ..BASE
    },
];

/// All rows. Without an nginx, or without a module for it, one line says so.
pub fn run(settings: &Settings, choice: &Choice, record: &mut Record) -> Result<()> {
    let found = settings.places.nginx().and_then(|nginx| Ok((settings.places.parts(&nginx, choice)?, nginx)));
    let (parts, nginx) = match found {
        Ok(found) => found,
        Err(why) => {
            if record.shows() {
                say!("responses of nginx are not measured: {why:#}");
            }
            return Ok(());
        }
    };
    let servers = Servers::start(&nginx, &parts)?;
    // The client's core is its own: what comes before is left where it is.
    let here = rustix::thread::sched_getaffinity(None)?;
    crate::https::pin(CORES[1])?;
    let done = all(&servers, settings, record);
    rustix::thread::sched_setaffinity(None, &here)?;
    name_peers(&servers.against, record);
    done
}

fn all(servers: &Servers, settings: &Settings, record: &mut Record) -> Result<()> {
    let (mut table, mut failures) = (Vec::new(), Vec::new());
    for row in ROWS {
        record.remark(row.name);
        let sides = servers.measure(row, settings)?;
        failures.extend(sides.failures(row.name, ["theirs", "ours"]));
        let [theirs, ours] = sides.both(|tally| tally.bytes as f64 / tally.done.max(1) as f64);
        if let Some(line) = sides.row("compress", row.name, row.measure, true) {
            let line = line.param("connections", row.connections).against(servers.peer(row));
            record.add(line.detail("length", ours as u64).detail("their_length", theirs as u64));
            let gain = sides.gain(row.measure);
            let shown =
                |figure: Option<f64>| figure.map_or_else(|| "-".into(), |figure| row.measure.show(figure));
            table.push(vec![
                row.name.to_owned(),
                shown(gain.map(|gain| gain.theirs)),
                shown(gain.map(|gain| gain.ours)),
                cell(gain),
                format!("{:.0} > {:.0}", theirs, ours),
            ]);
        }
    }
    if record.shows() {
        say!(
            "{}; generated HTML; processor time of the worker's threads for each response, or latency",
            servers.words
        );
        put!("{}", text::table(&["row", "against", "ours", "gain", "bytes"], &table));
        say!("`last byte` is against Wattlock with `cores = 0`; everything else against nginx's own gzip");
        say!("{}", pair::LEGEND);
    }
    ensure!(failures.is_empty(), "connections failed: {}", failures.join("; "));
    Ok(())
}

struct Servers {
    stock: Server,
    ours: Server,
    stock_free: Server,
    free: Server,
    alone: Server,
    tls: [Sort; 1],
    words: String,
    against: String,
    _folder: tempfile::TempDir,
}

impl Servers {
    fn start(nginx: &Nginx, parts: &Parts) -> Result<Servers> {
        let folder = tempfile::Builder::new().prefix("wattlock-compress-").tempdir()?;
        let root = folder.path().join("files");
        std::fs::create_dir(&root)?;
        let sizes =
            [("1k", 1 << 10), ("5k", 5 << 10), ("16k", 16 << 10), ("150k", 150 << 10), ("1m", 1 << 20)];
        for (name, size) in sizes.into_iter().chain([("10m", 10 << 20)]) {
            std::fs::write(root.join(name), samples::html(1, size))?;
        }
        let certificate = Certificate::self_signed(KeyType::P256, folder.path())?;
        let events = events()?;
        let alone = Parts {
            settings: parts.settings.iter().cloned().chain([("cores".to_owned(), "0".to_owned())]).collect(),
            ..parts.clone()
        };
        let start = |openssl: OpenSsl<'_>, core| {
            let listeners = listeners(&certificate, events, !matches!(openssl, OpenSsl::Stock));
            one_worker(nginx, openssl, &root, listeners, core)
        };
        Ok(Servers {
            stock: start(OpenSsl::Stock, Some(CORES[0]))?,
            ours: start(OpenSsl::Wattlock(parts), Some(CORES[0]))?,
            stock_free: start(OpenSsl::Stock, None)?,
            free: start(OpenSsl::Wattlock(parts), None)?,
            alone: start(OpenSsl::Wattlock(&alone), None)?,
            tls: [(1.0, Offer::new(&TLS13, &[Group::X25519]).config()?)],
            words: crate::machine_line(),
            against: stock_name(nginx),
            _folder: folder,
        })
    }

    fn peer(&self, row: &Row) -> String {
        match row.against {
            Against::Stock | Against::StockFree => self.against.clone(),
            Against::Alone => "cores = 0".to_owned(),
        }
    }

    fn measure(&self, row: &Row, settings: &Settings) -> Result<Sides> {
        let (theirs, ours) = match row.against {
            Against::Stock => (&self.stock, &self.ours),
            Against::StockFree => (&self.stock_free, &self.free),
            Against::Alone => (&self.alone, &self.free),
        };
        let time = Duration::from_secs_f64(settings.seconds);
        let head = if row.zstd { "Accept-Encoding: gzip, zstd\r\n" } else { "Accept-Encoding: gzip\r\n" };
        let load = |server: &Server, path: &str, connections: usize, time| -> Result<Tally> {
            let paths = [path.to_owned()];
            let load = Load {
                address: server.addresses[row.listener as usize],
                sorts: if row.listener == Listens::Tls { &self.tls } else { &[] },
                connections,
                paths: &paths,
                stays: true,
                head,
                time,
                visit: None,
            };
            client::drive(&load, &|| server.cpu()).with_context(|| row.name)
        };
        let once = |server: &Server| {
            if !row.beside {
                return load(server, row.path, row.connections, time);
            }
            std::thread::scope(|scope| {
                // They begin before, and end after, what is timed.
                let large = scope.spawn(|| load(server, "/10m", BESIDE, time + Duration::from_millis(500)));
                let small = load(server, row.path, row.connections, time);
                large.join().map_err(|_| anyhow::anyhow!("a client's thread panicked"))??;
                small
            })
        };
        in_turn(settings.rounds.min(9), || once(theirs), || once(ours))
    }
}

/// In the order of [`Listens`].
fn listeners(certificate: &Certificate, events: SocketAddr, ours: bool) -> Vec<Listener> {
    [(1, None), (6, None), (1, Some(certificate))]
        .into_iter()
        .map(|(level, certificate): (u8, Option<&Certificate>)| {
            let zstd = if ours && level == 6 { "wattlock_zstd on;" } else { "" };
            let more = format!(
                "gzip on; gzip_min_length 0; gzip_types *; gzip_proxied any; gzip_comp_level {level}; {zstd}\n\
                 default_type text/html;\n\
                 location = /events {{ proxy_pass http://{events}; proxy_buffering off; }}"
            );
            Listener { port: 0, certificate: certificate.cloned(), more }
        })
        .collect()
}

/// A program that sends events, behind nginx; it ends with this process.
fn events() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // nginx leaves when its client does: no error of ours.
            std::thread::spawn(move || _ = send_events(&stream));
        }
    });
    Ok(address)
}

fn send_events(mut stream: &TcpStream) -> std::io::Result<()> {
    let (count, len, gap) = EVENTS;
    stream.set_nodelay(true)?;
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 2 {
        line.clear();
    }
    stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")?;
    for number in 0..count {
        let words = samples::text(number as u64, len);
        stream.write_all(&[&b"data: "[..], &words, b"\n\n"].concat())?;
        std::thread::sleep(gap);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_and_a_place_to_ask() {
        let certificate = Certificate { chain: "/c".into(), key: "/k".into() };
        let all = listeners(&certificate, SocketAddr::from(([127, 0, 0, 1], 9)), true);
        for (at, row) in ROWS.iter().enumerate() {
            assert!(!ROWS[..at].iter().any(|other| other.name == row.name), "{}", row.name);
            let listener = &all[row.listener as usize];
            assert_eq!(listener.certificate.is_some(), row.listener == Listens::Tls, "{}", row.name);
            assert_eq!(listener.more.contains("wattlock_zstd"), row.listener == Listens::Level6);
        }
    }
}
