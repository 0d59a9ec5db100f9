//! What is answered to which path. Files are read when somebody asks, and not again for a moment.

use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use wattlock::telemetry;

use crate::ledger::Ledger;
use crate::{metrics, report};

/// Answers within this time are those of the last reading, however many ask.
const FRESH: Duration = Duration::from_millis(200);
/// Most of the time that reading takes, as one part in so many: other users decide how much there is to read.
const SHARE: u32 = 4;

/// What the page may do: ask this server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

const PAGE: &str = include_str!("page/page.html");
const SCRIPT: &str = include_str!("page/page.js");

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    status: StatusCode,
    kind: &'static str,
    body: Bytes,
}

const TEXT: &str = "text/plain; charset=utf-8";

impl Answer {
    fn of(kind: &'static str, body: impl Into<Bytes>) -> Answer {
        Answer { status: StatusCode::OK, kind, body: body.into() }
    }

    /// A refusal with a line for people.
    pub(crate) fn refusal(status: StatusCode) -> Answer {
        let line = match status {
            StatusCode::NOT_FOUND => "404: /, /metrics, /api/v1/snapshot and /healthz are here\n",
            StatusCode::METHOD_NOT_ALLOWED => "405: GET and HEAD only\n",
            StatusCode::MISDIRECTED_REQUEST => {
                "421: not a name of this server; start the exporter with --host NAME\n"
            }
            _ => "400: not a request\n",
        };
        Answer { status, ..Answer::of(TEXT, line) }
    }

    /// With its headers.
    pub(crate) fn response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() = self.status;
        let allow = (header::ALLOW, "GET, HEAD");
        let more = (self.status == StatusCode::METHOD_NOT_ALLOWED).then_some(allow);
        let headers = [
            (header::CONTENT_TYPE, self.kind),
            (header::CACHE_CONTROL, "no-store"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        let headers = headers.into_iter().chain(more);
        let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
        response.headers_mut().extend(headers);
        response
    }
}

/// A body that changes, shared by all that read it. At most two are alive: the one that is given out now, and one that slow
/// readers still have.
#[derive(Debug, Default)]
struct Body {
    now: Bytes,
    before: Bytes,
}

/// Whether a body of ours, which none is without bytes, has readers.
fn is_read(body: &Bytes) -> bool {
    !body.is_empty() && !body.is_unique()
}

impl Body {
    /// Whether readers still have both: then they get what there is until the first has it all or is closed.
    fn is_full(&self) -> bool {
        is_read(&self.now) && is_read(&self.before)
    }

    fn replace(&mut self, make: impl FnOnce() -> String) {
        // What nobody reads goes before there is another.
        for old in [std::mem::take(&mut self.before), std::mem::take(&mut self.now)] {
            if is_read(&old) {
                self.before = old;
            }
        }
        self.now = make().into();
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
        let known = self.ledger.known();
        self.ledger.update(|each| telemetry::scan(&known, each));
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
                Answer::of("text/plain; version=0.0.4; charset=utf-8", self.metrics.now.clone())
            }
            "/api/v1/snapshot" => {
                self.read(now);
                Answer::of("application/json", self.report.now.clone())
            }
            "/" => Answer::of("text/html; charset=utf-8", PAGE),
            "/page.css" => Answer::of("text/css; charset=utf-8", telemetry::page::STYLE),
            "/page.js" => Answer::of("text/javascript; charset=utf-8", SCRIPT),
            "/healthz" => Answer::of(TEXT, "ok\n"),
            _ => Answer::refusal(StatusCode::NOT_FOUND),
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
        let alive: std::collections::BTreeSet<_> = readers.iter().map(|body| body.as_ptr()).collect();
        assert_eq!(alive.len(), 2);
        // The first has it all.
        readers.remove(0);
        assert!(!body.is_full());
        body.replace(|| "3".to_owned());
        assert_eq!(body.before, "2");
        // Nobody reads any: the oldest does not stay.
        readers.clear();
        body.replace(|| "4".to_owned());
        assert!(body.before.is_empty());
    }
}
