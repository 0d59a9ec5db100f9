//! What was done, counted once it is committed; told on standard error, and to Prometheus if an address is set.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::config::{Config, Task};
use crate::work::{Count, Done};

/// Lines about records that do not open, in one second; more are only counted.
const LINES: u32 = 10;

#[derive(Default)]
struct Inner {
    topics: HashMap<String, (Doing, Count)>,
    transactions: u64,
    aborted: u64,
    restarts: u64,
    keys: u64,
    stops: HashMap<(String, i32), i64>,
    lines: Option<(Instant, u32)>,
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
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
            eprintln!("wattlock-bridge: {topic}/{partition}@{offset}: {reason}: {text}{then}");
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
        let Inner { transactions, aborted, restarts, keys, .. } = &*inner;
        serde_json::json!({
            "transactions": transactions, "aborted": aborted, "restarts": restarts, "keys_made": keys,
            "stopped_partitions": inner.stops.len(), "topics": topics,
        })
        .to_string()
    }

    /// All counters as Prometheus's text format 0.0.4.
    pub fn prometheus(&self) -> String {
        let inner = self.lock();
        let mut text = String::new();
        let mut plain = |name: &str, kind: &str, value: u64| {
            let _ = writeln!(text, "# TYPE wattlock_bridge_{name} {kind}\nwattlock_bridge_{name} {value}");
        };
        plain("transactions_total", "counter", inner.transactions);
        plain("transactions_aborted_total", "counter", inner.aborted);
        plain("restarts_total", "counter", inner.restarts);
        plain("keys_made_total", "counter", inner.keys);
        plain("stopped_partitions", "gauge", inner.stops.len() as u64);
        let mut topics: Vec<_> = inner.topics.iter().collect();
        topics.sort_by_key(|(name, _)| *name);
        for (name, of) in [("records_total", 0), ("bytes_total", 1)] {
            let _ = writeln!(text, "# TYPE wattlock_bridge_{name} counter");
            for (topic, (task, count)) in &topics {
                let value = if of == 0 { count.records } else { count.bytes };
                let _ = writeln!(text, "wattlock_bridge_{name}{{topic=\"{topic}\",do=\"{task}\"}} {value}");
            }
        }
        let _ = writeln!(text, "# TYPE wattlock_bridge_unreadable_total counter");
        for (topic, (_, count)) in &topics {
            for (reason, value) in &count.unreadable {
                let labels = format!("topic=\"{topic}\",reason=\"{reason}\"");
                let _ = writeln!(text, "wattlock_bridge_unreadable_total{{{labels}}} {value}");
            }
        }
        text
    }

    /// Answers whoever asks at this address, one at a time, with Prometheus's text, in a thread of its own.
    ///
    /// # Errors
    /// An address that cannot be listened at.
    pub fn serve(&self, address: &str) -> Result<()> {
        let listener = TcpListener::bind(address).with_context(|| format!("status = \"{address}\""))?;
        let status = self.clone();
        std::thread::Builder::new().name("status".into()).spawn(move || {
            for stream in listener.incoming() {
                match stream {
                    // A client that goes away harms nobody.
                    Ok(stream) => _ = status.answer(stream),
                    // Without a free descriptor the error comes at once, again and again.
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        })?;
        Ok(())
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let patience = Some(Duration::from_secs(1));
        stream.set_read_timeout(patience)?;
        stream.set_write_timeout(patience)?;
        let mut asked = [0; 4096];
        let len = stream.read(&mut asked)?;
        let (line, body) = match asked[..len].starts_with(b"GET /metrics ") {
            true => ("200 OK", self.prometheus()),
            false => ("404 Not Found", "GET /metrics\n".to_owned()),
        };
        let len = body.len();
        let head = format!(
            "HTTP/1.1 {line}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())
    }
}
