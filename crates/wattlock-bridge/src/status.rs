//! What was done, counted once it is committed; told on standard error, and to Prometheus if a place is set.
//!
//! Counters and names of topics are no secret of records, but no one else's business either: they are served to this
//! machine, or to this user, unless the configuration says otherwise.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use wattlock::telemetry::text::{Metrics, Sort};
use wattlock_core::sync::lock;

use anyhow::{Context, Result};

use crate::cluster::Gap;
use crate::config::{Config, Task};
use crate::say;
use crate::work::{Count, Done};

/// Lines about records that do not open, in one second; more are only counted.
const LINES: u32 = 10;
/// Gaps that are kept with their offsets.
const GAPS: usize = 100;

#[derive(Default)]
struct Inner {
    topics: HashMap<String, (Doing, Count)>,
    transactions: u64,
    aborted: u64,
    restarts: u64,
    keys: u64,
    stops: HashMap<(String, i32), i64>,
    lines: Option<(Instant, u32)>,
    gaps: VecDeque<Gap>,
    gap_counts: BTreeMap<(String, i32), (u64, u64)>,
}

/// A task's name.
type Doing = &'static str;

/// Counters that threads share.
#[derive(Clone, Default)]
pub struct Status(Arc<Mutex<Inner>>);

impl Status {
    /// Counters of a bridge's topics, all zero.
    pub fn new(config: &Config) -> Status {
        let status = Status::default();
        let name = |task| match task {
            Task::Seal => "seal",
            Task::Open => "open",
            Task::Copy => "copy",
        };
        let topics = config.topics.iter();
        let topics = topics.map(|topic| (topic.from.clone(), (name(topic.task), Count::default())));
        status.lock().topics = topics.collect();
        status
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }

    /// A transaction was committed.
    pub fn committed(&self, config: &Config, outcome: &[((usize, i32), Done)]) {
        let mut inner = self.lock();
        inner.transactions += 1;
        for ((route, partition), done) in outcome {
            let topic = &config.topics[*route].from;
            let place = (topic.clone(), *partition);
            // A partition that is tried again and stops at the same record adds nothing.
            let again = done.stopped.is_some() && inner.stops.get(&place).copied() == done.stopped;
            match done.stopped {
                Some(offset) => inner.stops.insert(place, offset),
                None => inner.stops.remove(&place),
            };
            if let (false, Some((_, count))) = (again, inner.topics.get_mut(topic)) {
                count.add(done);
            }
        }
    }

    /// A transaction was given up.
    pub fn aborted(&self) {
        self.lock().aborted += 1;
    }

    /// The member began anew.
    pub fn restarted(&self) {
        self.lock().restarts += 1;
    }

    /// Records of a source are gone, and reading goes on behind them.
    pub fn gap(&self, gap: Gap) {
        say::line(&gap.to_string());
        let mut inner = self.lock();
        let (count, offsets) = inner.gap_counts.entry((gap.topic.clone(), gap.partition)).or_default();
        *count += 1;
        *offsets += gap.offsets();
        if inner.gaps.len() == GAPS {
            inner.gaps.pop_front();
        }
        inner.gaps.push_back(gap);
    }

    /// So many keys were made.
    pub fn keys(&self, made: u64) {
        self.lock().keys = made;
    }

    /// A record did not open; its transaction is committed, so it is counted already.
    pub fn unreadable(
        &self,
        topic: &str,
        partition: i32,
        offset: i64,
        reason: &str,
        text: &str,
        stops: bool,
    ) {
        let mut inner = self.lock();
        let now = Instant::now();
        let (since, said) =
            inner.lines.filter(|(since, _)| since.elapsed() < Duration::from_secs(1)).unwrap_or((now, 0));
        inner.lines = Some((since, said + 1));
        if said < LINES {
            let then = if stops { "; the partition stops here" } else { "" };
            say::line(&format!("{topic}/{partition}@{offset}: {reason}: {text}{then}"));
        }
    }

    /// All counters as one line of JSON.
    pub fn json(&self) -> String {
        let inner = self.lock();
        let topic = |(name, (task, count)): (&String, &(Doing, Count))| {
            let (records, bytes) = (count.records, count.bytes);
            let unreadable = &count.unreadable;
            (
                name.clone(),
                serde_json::json!({ "do": task, "records": records, "bytes": bytes, "unreadable": unreadable }),
            )
        };
        let topics: serde_json::Map<_, _> = inner.topics.iter().map(topic).collect();
        let gap = |gap: &Gap| {
            let Gap { topic, partition, from, to } = gap;
            serde_json::json!({ "topic": topic, "partition": partition, "from": from, "to": to })
        };
        let gaps: Vec<_> = inner.gaps.iter().map(gap).collect();
        let Inner { transactions, aborted, restarts, keys, .. } = &*inner;
        serde_json::json!({
            "transactions": transactions, "aborted": aborted, "restarts": restarts, "keys_made": keys,
            "stopped_partitions": inner.stops.len(), "gaps": gaps, "topics": topics,
        })
        .to_string()
    }

    /// All counters as Prometheus's text format 0.0.4.
    pub fn prometheus(&self) -> String {
        let inner = self.lock();
        let mut out = Metrics::new("wattlock_bridge");
        let mut plain = |name: &str, sort: Sort, help: &str, value: u64| {
            out.family(name, sort, help);
            out.sample([], value);
        };
        plain("transactions_total", Sort::Counter, "Transactions committed.", inner.transactions);
        plain("transactions_aborted_total", Sort::Counter, "Transactions aborted.", inner.aborted);
        plain("restarts_total", Sort::Counter, "Starts anew after an error.", inner.restarts);
        plain("keys_made_total", Sort::Counter, "Key entries made.", inner.keys);
        let stopped = inner.stops.len() as u64;
        plain("stopped_partitions", Sort::Gauge, "Partitions that stopped at a record.", stopped);
        let mut topics: Vec<_> = inner.topics.iter().collect();
        topics.sort_by_key(|(name, _)| *name);
        for (name, help, of) in
            [("records_total", "Records done.", 0), ("bytes_total", "Bytes of records done.", 1)]
        {
            out.family(name, Sort::Counter, help);
            for (topic, (task, count)) in &topics {
                let value = if of == 0 { count.records } else { count.bytes };
                out.sample([("topic", &***topic), ("do", &*task.to_string())], value);
            }
        }
        out.family("unreadable_total", Sort::Counter, "Records that were not opened.");
        for (topic, (_, count)) in &topics {
            for (reason, value) in &count.unreadable {
                out.sample([("topic", &***topic), ("reason", reason)], value);
            }
        }
        for (name, help, of) in [
            ("gaps_total", "Gaps in a partition's offsets.", 0),
            ("gap_offsets_total", "Offsets in these gaps.", 1),
        ] {
            out.family(name, Sort::Counter, help);
            for ((topic, partition), counts) in &inner.gap_counts {
                let value = if of == 0 { counts.0 } else { counts.1 };
                out.sample([("topic", &**topic), ("partition", &*partition.to_string())], value);
            }
        }
        out.into_text()
    }

    /// Answers at this place, one request at a time, with Prometheus's text, in a thread of its own.
    ///
    /// # Errors
    /// A thread that the system refuses.
    pub fn serve(&self, door: Door) -> Result<()> {
        let status = self.clone();
        std::thread::Builder::new().name("status".into()).spawn(move || {
            loop {
                // A client that disconnects harms no other.
                let answered = match &door.listener {
                    Listener::Tcp(listener) => {
                        listener.accept().map(|(stream, _)| drop(status.tcp(stream, door.public)))
                    }
                    Listener::Unix(listener) => {
                        listener.accept().map(|(stream, _)| drop(status.unix(stream)))
                    }
                };
                if answered.is_err() {
                    // Without a free descriptor the error comes at once, again and again.
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        })?;
        Ok(())
    }

    fn tcp(&self, stream: TcpStream, public: bool) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        self.answer(&stream, &stream, !public)
    }

    fn unix(&self, stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        self.answer(&stream, &stream, false)
    }

    /// Reads a request's head, which is bounded in bytes and in time, and answers it.
    fn answer(&self, mut from: impl Read, mut to: impl io::Write, local: bool) -> io::Result<()> {
        let (until, mut head, mut piece) = (Instant::now() + PATIENCE, Vec::new(), [0; 1024]);
        while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < HEAD_MAX {
            let len = from.read(&mut piece)?;
            if len == 0 || Instant::now() > until {
                break;
            }
            head.extend_from_slice(&piece[..len]);
        }
        let (line, body) = match head {
            head if local && !is_own_host(&head) => {
                ("403 Forbidden", "this host's address or localhost\n".to_owned())
            }
            head if head.starts_with(b"GET /metrics ") => ("200 OK", self.prometheus()),
            _ => ("404 Not Found", "GET /metrics\n".to_owned()),
        };
        let len = body.len();
        let head = format!(
            "HTTP/1.1 {line}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
        );
        to.write_all(head.as_bytes())?;
        to.write_all(body.as_bytes())
    }
}

/// How long a client may take for its request.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a request's head, at most.
const HEAD_MAX: usize = 8 << 10;

/// Whether a request's `Host` is an address or `localhost`. A page in a browser whose name was made to point at this
/// machine (DNS rebinding) has that name there. A client without the header is no browser.
fn is_own_host(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head);
    let mut hosts = head.lines().skip(1).filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("host").then(|| value.trim())
    });
    hosts.all(|host| {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
            _ => host,
        };
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
    })
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Where counters are served.
pub struct Door {
    listener: Listener,
    public: bool,
}

impl Door {
    /// Listens at a path, for this user alone, or at an address of this machine's own.
    ///
    /// # Errors
    /// An address that is in use, is none, or that others reach although `status_public` is not set.
    pub fn open(config: &Config) -> Result<Option<Door>> {
        let Some(place) = &config.status else { return Ok(None) };
        let listener = match place.contains('/') {
            true => socket(Path::new(place)).map(Listener::Unix),
            false => address(place, config.status_public).map(Listener::Tcp),
        };
        let listener = listener.with_context(|| format!("status = \"{place}\""))?;
        Ok(Some(Door { listener, public: config.status_public }))
    }
}

fn address(address: &str, public: bool) -> Result<TcpListener> {
    let all: Vec<SocketAddr> =
        address.to_socket_addrs().context("HOST:PORT or a path is expected")?.collect();
    if let Some(other) = all.iter().find(|one| !one.ip().is_loopback() && !public) {
        anyhow::bail!(
            "other machines may reach {}: use 127.0.0.1 or a path, or set status_public = true",
            other.ip()
        );
    }
    Ok(TcpListener::bind(&all[..])?)
}

/// A socket that this user alone may connect to. One that a predecessor left is replaced, one in use is not.
fn socket(path: &Path) -> Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => anyhow::bail!("there is a file that is no socket"),
        Ok(_) if UnixStream::connect(path).is_ok() => {
            return Err(io::Error::from(io::ErrorKind::AddrInUse).into());
        }
        Ok(_) => fs::remove_file(path)?,
        Err(_) => {}
    }
    // Nobody may connect between its making and its mode: it gets its name when it has both.
    let made = path.with_extension(format!("{}.new", std::process::id()));
    let listener = UnixListener::bind(&made)?;
    let named =
        fs::set_permissions(&made, fs::Permissions::from_mode(0o600)).and_then(|()| fs::rename(&made, path));
    if let Err(error) = named {
        let _ = fs::remove_file(&made);
        return Err(error.into());
    }
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(request: &str, local: bool) -> String {
        let mut answer = Vec::new();
        Status::default().answer(request.as_bytes(), &mut answer, local).expect("it is written");
        String::from_utf8(answer).expect("text")
    }

    #[test]
    fn a_page_that_rebinds_its_name_gets_no_counters() {
        for (host, code) in [
            ("127.0.0.1:9193", 200),
            ("localhost:9193", 200),
            ("LOCALHOST", 200),
            ("[::1]:9193", 200),
            ("evil.example:9193", 403),
            ("127.0.0.1.evil.example", 403),
            ("localhost.evil.example:9193", 403),
            ("127.0.0.1\r\nhost: evil.example", 403),
            ("", 403),
        ] {
            let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert!(asked(&request, true).starts_with(&format!("HTTP/1.1 {code} ")), "{host}");
            assert!(asked(&request, false).starts_with("HTTP/1.1 200 "), "{host}");
        }
        assert!(asked("GET /metrics HTTP/1.0\r\n\r\n", true).starts_with("HTTP/1.1 200 "));
        assert!(asked("POST /metrics HTTP/1.0\r\n\r\n", true).starts_with("HTTP/1.1 404 "));
    }

    #[test]
    fn a_request_has_a_bound() {
        // More is not read, and what has no end is not waited for.
        let endless = io::repeat(b'a');
        let mut answer = Vec::new();
        Status::default().answer(endless, &mut answer, true).expect("it is written");
        assert!(answer.starts_with(b"HTTP/1.1 404 "));
    }

    #[test]
    fn counters_are_for_this_machine_unless_the_configuration_says_otherwise() {
        assert!(address("127.0.0.1:0", false).is_ok() && address("0.0.0.0:0", true).is_ok());
        for wrong in ["0.0.0.0:0", "[::]:0"] {
            let said = format!("{:#}", address(wrong, false).expect_err(wrong));
            assert!(said.contains("status_public"), "{said}");
        }
        for wrong in ["here", "", "127.0.0.1", "127.0.0.1:99999"] {
            let said = format!("{:#}", address(wrong, false).expect_err(wrong));
            assert!(said.contains("HOST:PORT"), "{said}");
        }
    }

    #[test]
    fn a_socket_is_this_users_and_a_predecessors_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("status");
        let first = socket(&path).expect("it is free");
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(socket(&path).is_err(), "it is in use");
        drop(first);
        assert!(socket(&path).is_ok());
        fs::write(folder.path().join("file"), "precious").expect("it is written");
        assert!(socket(&folder.path().join("file")).is_err());
    }
}
