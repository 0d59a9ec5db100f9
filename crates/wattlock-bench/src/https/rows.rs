//! What is measured, as data: one row each.

use anyhow::Result;
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, SupportedProtocolVersion};
use wattlock_shell::nginx::server::KeyType;

use super::client::{Sort, Tally};
use super::groups::Group::{self, Hybrid, P256, P384, X25519};
use super::offer::Offer;
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
    /// The keys of the server's certificates.
    pub keys: &'static [KeyType],
    /// What the client offers, the one that is taken first. (With TLS 1.2 OpenSSL takes an ECDSA certificate only if
    /// its curve is offered too.)
    pub groups: &'static [Group],
    /// Connections at once.
    pub connections: usize,
    /// Nine connections of ten resume a session.
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

/// The suite of rows with CBC.
const OF_CBC: CipherSuite = CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA;

/// Of ten connections, those that resume where a row resumes.
const RESUME: f64 = 0.9;
/// Of ten connections to a server with both certificates, those whose client knows RSA alone.
const OLD: f64 = 0.1;

impl Row {
    /// Its clients: those that resume and those that do not; with both certificates, those with ECDSA and those without.
    /// Sessions begin anew with each call.
    ///
    /// # Errors
    /// As [`Offer::config`].
    pub fn sorts(&self) -> Result<Vec<Sort>> {
        let resume = if self.resumed { RESUME } else { 0.0 };
        let old = if self.keys == BOTH { OLD } else { 0.0 };
        let mut sorts = Vec::new();
        for (of, resumes) in [(resume, true), (1.0 - resume, false)] {
            for (share, ecdsa) in [((1.0 - old) * of, true), (old * of, false)] {
                let suite = self.cbc.then_some(OF_CBC);
                let offer = Offer { suite, ecdsa, resumes, ..Offer::new(self.version, self.groups) };
                if share > 0.0 {
                    sorts.push((share, offer.config()?));
                }
            }
        }
        Ok(sorts)
    }

    /// The group that a server takes: the first that is offered, or the next where the server has no hybrid.
    pub fn group(&self, has_hybrid: bool) -> Group {
        let mut offered = self.groups.iter().copied();
        offered.find(|group| has_hybrid || *group != Hybrid).unwrap_or(X25519)
    }
}

const RSA: &[KeyType] = &[KeyType::Rsa2048];
const ECDSA: &[KeyType] = &[KeyType::P256];
const ECDSA384: &[KeyType] = &[KeyType::P384];
const BOTH: &[KeyType] = &[KeyType::P256, KeyType::Rsa2048];

/// As browsers offer it.
const HYBRID: &[Group] = &[Hybrid, X25519];

const BASE: Row = Row {
    name: "",
    version: &TLS12,
    keys: RSA,
    groups: &[X25519],
    connections: 64,
    resumed: false,
    path: None,
    cbc: false,
    buffers: [None; 2],
    measure: Measure::Rate,
};

const CBC: Row = Row { connections: 16, path: Some("/1m"), cbc: true, measure: Measure::Cpu, ..BASE };

/// As sites serve today.
const SITE: Row = Row { version: &TLS13, groups: HYBRID, ..BASE };
const SITE_X25519: Row = Row { groups: &[X25519], ..SITE };

/// All rows.
pub const ROWS: &[Row] = &[
    Row { name: "tls12-rsa2048-x25519", ..BASE },
    Row { name: "tls12-rsa2048-p256", groups: &[P256], ..BASE },
    Row { name: "tls13-rsa2048-x25519", version: &TLS13, ..BASE },
    Row { name: "tls13-rsa2048-p256", version: &TLS13, groups: &[P256], ..BASE },
    Row { name: "tls12-ecdsa256-x25519", keys: ECDSA, groups: &[X25519, P256], ..BASE },
    Row { name: "tls13-ecdsa256-x25519", version: &TLS13, keys: ECDSA, ..BASE },
    Row { name: "tls12-rsa3072-p256", keys: &[KeyType::Rsa3072], groups: &[P256], ..BASE },
    Row { name: "tls12-rsa4096-p256", keys: &[KeyType::Rsa4096], groups: &[P256], ..BASE },
    Row { name: "tls13-ecdsa384-x25519", version: &TLS13, keys: ECDSA384, ..BASE },
    Row { name: "tls13-ecdsa384-p384", version: &TLS13, keys: ECDSA384, groups: &[P384], ..BASE },
    Row { name: "tls13-ecdsa256-x25519mlkem768", keys: ECDSA, ..SITE },
    Row { name: "tls13-rsa2048-x25519mlkem768", ..SITE },
    Row { name: "tls13-both-x25519mlkem768", keys: BOTH, ..SITE },
    Row { name: "tls13-both-x25519", keys: BOTH, ..SITE_X25519 },
    Row { name: "tls13-ecdsa256-x25519mlkem768-resumed", keys: ECDSA, resumed: true, ..SITE },
    Row { name: "tls13-rsa2048-x25519mlkem768-resumed", resumed: true, ..SITE },
    Row { name: "tls13-both-x25519mlkem768-resumed", keys: BOTH, resumed: true, ..SITE },
    Row { name: "tls13-ecdsa256-x25519-resumed", keys: ECDSA, resumed: true, ..SITE_X25519 },
    Row { name: "tls13-rsa2048-x25519-resumed", resumed: true, ..SITE_X25519 },
    Row { name: "tls13-both-x25519-resumed", keys: BOTH, resumed: true, ..SITE_X25519 },
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

    /// What a name says is what its row's clients offer and its server has.
    #[test]
    fn a_name_is_made_of_what_its_row_measures() {
        for row in ROWS.iter().filter(|row| row.path.is_none()) {
            let parts: Vec<&str> = row.name.split('-').collect();
            assert_eq!(parts[0] == "tls13", *row.version == TLS13, "{}", row.name);
            let keys: &[KeyType] = match parts[1] {
                "both" => &[KeyType::P256, KeyType::Rsa2048],
                "ecdsa256" => &[KeyType::P256],
                "ecdsa384" => &[KeyType::P384],
                "rsa2048" => &[KeyType::Rsa2048],
                "rsa3072" => &[KeyType::Rsa3072],
                _ => &[KeyType::Rsa4096],
            };
            assert_eq!(row.keys, keys, "{}", row.name);
            assert_eq!(wattlock_shell::text::typed(&row.group(true)), parts[2], "{}", row.name);
            assert_eq!(row.resumed, parts.get(3) == Some(&"resumed"), "{}", row.name);
        }
    }

    #[test]
    fn the_shares_of_a_rows_clients_are_a_whole() {
        for row in ROWS {
            let sorts = row.sorts().unwrap();
            assert!((sorts.iter().map(|(share, _)| share).sum::<f64>() - 1.0).abs() < 1e-9, "{}", row.name);
            let kinds = [row.resumed, row.keys.len() > 1].into_iter().filter(|one| *one).count();
            assert_eq!(sorts.len(), 1 << kinds, "{}", row.name);
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
