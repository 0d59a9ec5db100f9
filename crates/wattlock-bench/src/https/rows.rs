//! What is measured, as data: one row each.

use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};
use wattlock_shell::nginx::server::KeyType;

use super::client::Tally;
use super::groups::Group::{self, P256, P384, X25519};
use crate::pair::Better;

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
    /// The figure that it is compared by, and which is better.
    pub fn figure(self) -> (fn(&Tally) -> f64, Better) {
        match self {
            Measure::Rate => (Tally::rate, Better::More),
            Measure::P50 => (|tally| tally.latency_us(0.5), Better::Less),
            Measure::P99 => (|tally| tally.latency_us(0.99), Better::Less),
            Measure::Cpu => (Tally::cpu_us, Better::Less),
        }
    }

    /// The figure for people.
    pub fn show(self, figure: f64) -> String {
        match self {
            Measure::Rate => format!("{figure:.0} /s"),
            Measure::P50 | Measure::P99 => format!("{figure:.0} us"),
            Measure::Cpu => format!("{figure:.1} us"),
        }
    }
}

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
    /// AES-128-CBC with HMAC-SHA-1 and MACs before encryption, instead of AES-256-GCM.
    pub cbc: bool,
    /// `ssl_buffer_size` of the stock server and of the one with Wattlock; none: nginx's default, 16k.
    pub buffers: [Option<&'static str>; 2],
    /// What is compared.
    pub measure: Measure,
}

const BASE: Row = Row {
    name: "",
    version: &TLS12,
    key: KeyType::Rsa2048,
    groups: &[X25519],
    connections: 64,
    resumed: false,
    path: None,
    cbc: false,
    buffers: [None; 2],
    measure: Measure::Rate,
};

const CBC: Row = Row { connections: 16, path: Some("/1m"), cbc: true, measure: Measure::Cpu, ..BASE };

/// All rows.
pub const ROWS: &[Row] = &[
    Row { name: "tls12-rsa2048-x25519", ..BASE },
    Row { name: "tls12-rsa2048-p256", groups: &[P256], ..BASE },
    Row { name: "tls13-rsa2048-x25519", version: &TLS13, ..BASE },
    Row { name: "tls13-rsa2048-p256", version: &TLS13, groups: &[P256], ..BASE },
    Row { name: "tls12-ecdsa256-x25519", key: KeyType::P256, groups: &[X25519, P256], ..BASE },
    Row { name: "tls13-ecdsa256-x25519", version: &TLS13, key: KeyType::P256, ..BASE },
    Row { name: "tls12-rsa3072-p256", key: KeyType::Rsa3072, groups: &[P256], ..BASE },
    Row { name: "tls12-rsa4096-p256", key: KeyType::Rsa4096, groups: &[P256], ..BASE },
    Row { name: "tls13-ecdsa384-x25519", version: &TLS13, key: KeyType::P384, ..BASE },
    Row { name: "tls13-ecdsa384-p384", version: &TLS13, key: KeyType::P384, groups: &[P384], ..BASE },
    Row { name: "tls12-rsa2048-x25519-resumed", resumed: true, ..BASE },
    Row { name: "tls12-rsa2048-x25519-1", connections: 1, ..BASE },
    Row { name: "tls12-rsa2048-x25519-2", connections: 2, ..BASE },
    Row { name: "tls12-rsa2048-x25519-4", connections: 4, ..BASE },
    Row { name: "tls12-rsa2048-x25519-8", connections: 8, ..BASE },
    Row { name: "tls12-rsa2048-x25519-p99", measure: Measure::P99, ..BASE },
    Row { name: "tls13-rsa2048-x25519-p99", version: &TLS13, measure: Measure::P99, ..BASE },
    Row {
        name: "response-64k",
        version: &TLS13,
        connections: 16,
        path: Some("/64k"),
        measure: Measure::Cpu,
        ..BASE
    },
    Row {
        name: "response-1m",
        version: &TLS13,
        connections: 16,
        path: Some("/1m"),
        measure: Measure::Cpu,
        ..BASE
    },
    // A write of nginx must have several fragments for several records to be made at once.
    Row { name: "response-cbc-1m", buffers: [None, Some("128k")], ..CBC },
    Row { name: "response-cbc-1m-128k", buffers: [Some("128k"); 2], ..CBC },
    Row { name: "response-cbc-64k", path: Some("/64k"), buffers: [None, Some("128k")], ..CBC },
    Row { name: "response-cbc-1m-16k", ..CBC },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::Gain;

    #[test]
    fn names_are_unique_and_responses_are_held_by_processor_time() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(!ROWS[..at].iter().any(|other| other.name == row.name), "{}", row.name);
            assert!(row.path.is_some() == (row.measure == Measure::Cpu), "{}", row.name);
        }
    }

    #[test]
    fn less_time_is_the_better_time() {
        for measure in [Measure::Cpu, Measure::P50, Measure::P99] {
            let (figure, better) = measure.figure();
            let with = |us: u64| Tally {
                done: 1,
                cpu: std::time::Duration::from_micros(us),
                latencies: vec![us * 1000],
                ..Tally::default()
            };
            let gain = Gain::of(&[figure(&with(10))], &[figure(&with(20))], better).unwrap();
            assert!((gain.ratio - 2.0).abs() < 1e-9, "{measure:?}");
        }
    }
}
