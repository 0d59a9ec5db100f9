//! What is answered to which path. Files are read when somebody asks, and not again for a moment.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use wattlock::telemetry;

use crate::ledger::Ledger;
use crate::{metrics, report};

/// Answers within this time are those of the last reading, however many ask.
const FRESH: Duration = Duration::from_millis(200);
/// Most of the time that reading takes, as one part in so many: other users decide how much there is to read.
const SHARE: u32 = 4;

const PAGE: &str = include_str!("page/page.html");
const SCRIPT: &str = include_str!("page/page.js");

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    status: u16,
    kind: &'static str,
    pub(crate) body: Arc<Vec<u8>>,
}

const TEXT: &str = "text/plain; charset=utf-8";

impl Answer {
    fn of(kind: &'static str, body: &str) -> Answer {
        Answer { status: 200, kind, body: Arc::new(body.as_bytes().to_vec()) }
    }

    /// A refusal with a line for people.
    pub(crate) fn refusal(status: u16) -> Answer {
        let line = match status {
            400 => "400: not a request\n",
            404 => "404: /, /metrics, /api/v1/snapshot and /healthz are here\n",
            405 => "405: GET and HEAD only\n",
            421 => "421: not a name of this server; start the exporter with --host NAME\n",
            431 => "431: the request is too long\n",
            _ => "505: HTTP/1.0 and HTTP/1.1 only\n",
        };
        Answer { status, ..Answer::of(TEXT, line) }
    }

    /// The bytes before the body.
    pub(crate) fn head(&self, again: bool) -> Vec<u8> {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            421 => "Misdirected Request",
            431 => "Request Header Fields Too Large",
            _ => "HTTP Version Not Supported",
        };
        let allow = if self.status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
        let connection = if again { "keep-alive" } else { "close" };
        format!(
            "HTTP/1.1 {} {reason}\r\n\
             Content-Type: {}\r\n\
             Content-Length: {}\r\n\
             Connection: {connection}\r\n{allow}\
             Cache-Control: no-store\r\n\
             Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\n\
             Referrer-Policy: no-referrer\r\n\
             X-Content-Type-Options: nosniff\r\n\r\n",
            self.status,
            self.kind,
            self.body.len()
        )
        .into_bytes()
    }
}

/// A body that changes, shared by all that read it. At most two are alive: the one that is given out now, and one that slow
/// readers still have.
#[derive(Debug, Default)]
struct Body {
    now: Arc<Vec<u8>>,
    before: Weak<Vec<u8>>,
}

impl Body {
    /// Whether readers still have both: then they get what there is until the first has it all or is closed.
    fn is_full(&self) -> bool {
        Arc::strong_count(&self.now) > 1 && self.before.strong_count() > 0
    }

    fn replace(&mut self, make: impl FnOnce() -> String) {
        let old = std::mem::take(&mut self.now);
        if Arc::strong_count(&old) > 1 {
            self.before = Arc::downgrade(&old);
        }
        // Before there is another.
        drop(old);
        self.now = Arc::new(make().into_bytes());
    }
}

/// What there is to answer.
#[derive(Debug)]
pub struct Content {
    ledger: Ledger,
    lately: report::Lately,
    metrics: Body,
    report: Body,
    /// Before this time nothing is read again.
    fresh_until: Option<Instant>,
}

impl Content {
    /// Nothing is read yet.
    #[allow(
        clippy::new_without_default,
        reason = "a value without content is no sensible default of anything"
    )]
    pub fn new() -> Content {
        Content {
            ledger: Ledger::default(),
            lately: report::Lately::default(),
            metrics: Body::default(),
            report: Body::default(),
            fresh_until: None,
        }
    }

    /// All counters now, in Prometheus' text format.
    pub fn metrics(&mut self) -> String {
        self.read(Instant::now());
        String::from_utf8_lossy(&self.metrics.now).into_owned()
    }

    fn read(&mut self, now: Instant) {
        if self.fresh_until.is_some_and(|until| now < until)
            || self.metrics.is_full()
            || self.report.is_full()
        {
            return;
        }
        let begun = Instant::now();
        self.ledger.update(|each| telemetry::scan(each));
        let took = begun.elapsed();
        let (ledger, lately) = (&self.ledger, self.lately.update(&self.ledger, begun));
        self.metrics.replace(|| metrics::text(ledger, took));
        self.report.replace(|| report::json(ledger, lately));
        let took = begun.elapsed();
        self.fresh_until = Some(begun + took + FRESH.max(took * SHARE));
    }

    /// What is answered to a path.
    pub(crate) fn answer(&mut self, path: &str, now: Instant) -> Answer {
        match path {
            "/metrics" => {
                self.read(now);
                Answer {
                    status: 200,
                    kind: "text/plain; version=0.0.4; charset=utf-8",
                    body: self.metrics.now.clone(),
                }
            }
            "/api/v1/snapshot" => {
                self.read(now);
                Answer { status: 200, kind: "application/json", body: self.report.now.clone() }
            }
            "/" => Answer::of("text/html; charset=utf-8", PAGE),
            "/page.css" => Answer::of("text/css; charset=utf-8", telemetry::page::STYLE),
            "/page.js" => Answer::of("text/javascript; charset=utf-8", SCRIPT),
            "/healthz" => Answer::of(TEXT, "ok\n"),
            _ => Answer::refusal(404),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_readers_share_at_most_two_bodies() {
        let mut body = Body::default();
        body.replace(|| "1".to_owned());
        let mut readers = vec![body.now.clone()];
        assert!(!body.is_full());
        body.replace(|| "2".to_owned());
        assert!(!body.is_full(), "nobody has the second yet");
        readers.push(body.now.clone());
        assert!(body.is_full());
        readers.push(body.now.clone());
        let alive: std::collections::BTreeSet<_> = readers.iter().map(Arc::as_ptr).collect();
        assert_eq!(alive.len(), 2);
        // The first has it all.
        readers.remove(0);
        assert!(!body.is_full());
        body.replace(|| "3".to_owned());
        assert_eq!(*body.before.upgrade().unwrap(), b"2");
    }
}
