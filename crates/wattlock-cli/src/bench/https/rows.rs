//! What is measured, as data: one row each, with what the project asks of itself.

use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

use super::client::Tally;
use super::groups::Group::{self, P256, P384, X25519};
use crate::nginx::server::KeyType;

/// What of a row's rounds is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Handshakes a second; more is better.
    Rate,
    /// The median latency; less is better.
    P50,
    /// The 99th percentile of latency; less is better.
    P99,
    /// The worker's processor time for each response; less is better.
    Cpu,
}

impl Measure {
    /// A figure of which more is better.
    pub fn merit(self, tally: &Tally) -> f64 {
        match self {
            Measure::Rate => tally.rate(),
            Measure::P50 => 1e6 / tally.latency_us(0.5).max(1e-3),
            Measure::P99 => 1e6 / tally.latency_us(0.99).max(1e-3),
            Measure::Cpu => 1e6 / tally.cpu_us().max(1e-3),
        }
    }

    /// The figure for people.
    pub fn show(self, tally: &Tally) -> String {
        match self {
            Measure::Rate => format!("{:.0} /s", tally.rate()),
            Measure::P50 => format!("{:.0} us", tally.latency_us(0.5)),
            Measure::P99 => format!("{:.0} us", tally.latency_us(0.99)),
            Measure::Cpu => format!("{:.1} us", tally.cpu_us()),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Measure::Rate => "rate",
            Measure::P50 => "p50",
            Measure::P99 => "p99",
            Measure::Cpu => "cpu",
        }
    }
}

/// Few connections: handshakes a second could be bought with latency.
const LATENCY: &[Measure] = &[Measure::P50, Measure::P99];

/// One row.
#[derive(Debug)]
pub struct Row {
    /// Its name, for `--rows` and scripts.
    pub name: &'static str,
    /// Protocol version.
    pub version: &'static SupportedProtocolVersion,
    /// The server's key.
    pub key: KeyType,
    /// What the client offers, the one that is taken first. (With TLS 1.2 OpenSSL takes an ECDSA certificate only if
    /// its curve is offered too.)
    pub groups: &'static [Group],
    /// Connections at once.
    pub connections: usize,
    /// Nine handshakes of ten resume a session.
    pub resumed: bool,
    /// A file to request over connections that stay; none: handshakes.
    pub path: Option<&'static str>,
    /// What is compared.
    pub measure: Measure,
    /// What is held against the same floor besides.
    pub also: &'static [Measure],
    /// The least ratio to the stock server.
    pub floor: f64,
    /// The ratio aimed at, where there is one.
    pub goal: Option<f64>,
}

const BASE: Row = Row {
    name: "",
    version: &TLS12,
    key: KeyType::Rsa2048,
    groups: &[X25519],
    connections: 64,
    resumed: false,
    path: None,
    measure: Measure::Rate,
    also: &[],
    floor: 1.0,
    goal: None,
};

/// All rows.
pub const ROWS: &[Row] = &[
    Row { name: "tls12-rsa2048-x25519", floor: 2.4, goal: Some(2.8), ..BASE },
    Row { name: "tls12-rsa2048-p256", groups: &[P256], floor: 2.0, goal: Some(2.3), ..BASE },
    Row { name: "tls13-rsa2048-x25519", version: &TLS13, floor: 2.25, goal: Some(2.6), ..BASE },
    Row { name: "tls13-rsa2048-p256", version: &TLS13, groups: &[P256], floor: 1.9, goal: Some(2.2), ..BASE },
    Row {
        name: "tls12-ecdsa256-x25519",
        key: KeyType::P256,
        groups: &[X25519, P256],
        floor: 2.0,
        goal: Some(2.2),
        ..BASE
    },
    Row {
        name: "tls13-ecdsa256-x25519",
        version: &TLS13,
        key: KeyType::P256,
        floor: 1.6,
        goal: Some(1.8),
        ..BASE
    },
    Row {
        name: "tls12-rsa3072-p256",
        key: KeyType::Rsa3072,
        groups: &[P256],
        floor: 3.8,
        goal: Some(4.3),
        ..BASE
    },
    Row {
        name: "tls12-rsa4096-p256",
        key: KeyType::Rsa4096,
        groups: &[P256],
        floor: 4.7,
        goal: Some(5.3),
        ..BASE
    },
    Row { name: "tls13-ecdsa384-x25519", version: &TLS13, key: KeyType::P384, floor: 4.0, ..BASE },
    Row {
        name: "tls13-ecdsa384-p384",
        version: &TLS13,
        key: KeyType::P384,
        groups: &[P384],
        floor: 7.0,
        ..BASE
    },
    Row { name: "tls12-rsa2048-x25519-resumed", resumed: true, floor: 1.2, ..BASE },
    Row { name: "tls12-rsa2048-x25519-1", connections: 1, also: LATENCY, floor: 0.97, ..BASE },
    Row { name: "tls12-rsa2048-x25519-2", connections: 2, also: LATENCY, floor: 0.97, ..BASE },
    Row { name: "tls12-rsa2048-x25519-4", connections: 4, also: LATENCY, floor: 0.97, ..BASE },
    Row { name: "tls12-rsa2048-x25519-8", connections: 8, floor: 1.7, ..BASE },
    Row { name: "tls12-rsa2048-x25519-p99", measure: Measure::P99, ..BASE },
    Row { name: "tls13-rsa2048-x25519-p99", version: &TLS13, measure: Measure::P99, ..BASE },
    Row {
        name: "response-64k",
        version: &TLS13,
        connections: 16,
        path: Some("/64k"),
        measure: Measure::Cpu,
        floor: 1.25,
        ..BASE
    },
    Row {
        name: "response-1m",
        version: &TLS13,
        connections: 16,
        path: Some("/1m"),
        measure: Measure::Cpu,
        floor: 1.3,
        ..BASE
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_goals_lie_above_floors() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(!ROWS[..at].iter().any(|other| other.name == row.name), "{}", row.name);
            assert!(row.goal.is_none_or(|goal| goal > row.floor), "{}", row.name);
            assert!(row.path.is_some() == (row.measure == Measure::Cpu), "{}", row.name);
        }
    }

    #[test]
    fn less_time_is_more_merit() {
        let with = |us: u64| Tally {
            done: 1,
            cpu: std::time::Duration::from_micros(us),
            latencies: vec![us * 1000],
            ..Tally::default()
        };
        for measure in [Measure::Cpu, Measure::P50, Measure::P99] {
            assert!((measure.merit(&with(10)) / measure.merit(&with(20)) - 2.0).abs() < 1e-9, "{measure:?}");
        }
    }
}
