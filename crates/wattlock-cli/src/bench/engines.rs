//! Every engine by kind and size, with `openssl speed` of the system beside them where it is installed.

use std::process::Command;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use wattlock::calibrate::sample;
use wattlock_core::{Engine, Family, Kind};

use super::{machine_line, pair};
use crate::energy::{Gauge, Spent};
use crate::engines::parse_kind;
use crate::setup::{self, Choice};
use crate::text;

/// What to measure.
#[derive(Debug, Args)]
pub struct Settings {
    /// Only these kinds
    #[arg(long = "kind", value_parser = parse_kind)]
    kinds: Vec<Kind>,
    /// Request sizes, for kinds that have any
    #[arg(long = "size", value_parser = text::parse_request_bytes, value_delimiter = ',', default_values_t = [1024, 16_384, 65_536])]
    sizes: Vec<usize>,
    /// Leave `openssl speed` out
    #[arg(long)]
    no_openssl: bool,
    /// Leave joules out
    #[arg(long)]
    no_joules: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { kinds: Vec::new(), sizes: vec![1024, 16_384, 65_536], no_openssl: false, no_joules: false }
    }
}

/// What a plain `wattlock bench` shows: one kind of each sort.
const DEFAULT: [Kind; 14] = [
    Kind::Aes128Ctr,
    Kind::Aes256Ctr,
    Kind::Aes256CbcEncrypt,
    Kind::Aes256XtsEncrypt,
    Kind::Aes128GcmSeal,
    Kind::Aes256GcmSeal,
    Kind::ChaCha20Poly1305Seal,
    Kind::Sha256,
    Kind::HmacSha256,
    Kind::Rsa2048Private,
    Kind::EcdsaP256Sign,
    Kind::P256Derive,
    Kind::X25519Derive,
    Kind::Deflate,
];

/// Runs the benchmark.
pub fn run(settings: &Settings, choice: &Choice, json: bool) -> Result<()> {
    let engines = setup::engines(choice)?;
    let inline: Vec<&Arc<dyn Engine>> =
        engines.iter().filter(|engine| !engine.description().inline.is_empty()).collect();
    let kinds = if settings.kinds.is_empty() { DEFAULT.to_vec() } else { settings.kinds.clone() };
    let names: Vec<&str> = inline.iter().map(|engine| engine.description().name).collect();
    let mut gauge = (!settings.no_joules).then(Gauge::new);
    if !json {
        say!("{}", machine_line());
        say!(
            "One core. Ratio: the fastest engine here against `openssl speed` of the system, in the same run."
        );
        if let Some(gauge) = &gauge {
            say!("{}", gauge.line());
        }
    }
    let mut rows = Vec::new();
    for kind in kinds {
        for size in sizes(kind, &settings.sizes) {
            let timed: Vec<Option<Timed>> =
                inline.iter().map(|engine| time(engine.as_ref(), kind, size, gauge.as_mut())).collect();
            let ns: Vec<Option<f64>> =
                timed.iter().map(|timed| timed.as_ref().map(|timed| timed.ns)).collect();
            let bytes = size.unwrap_or(0);
            // What each joule is divided into: megabytes, or operations where there are no sizes.
            let (work, unit) = size.map_or((1.0, "op/J"), |size| (size as f64 / 1e6, "MB/J"));
            let theirs = if settings.no_openssl { None } else { openssl(kind, size) };
            let best = ns.iter().flatten().copied().fold(f64::MAX, f64::min);
            let ratio = theirs.map(|theirs| theirs / best);
            if json {
                let by_engine: serde_json::Map<String, serde_json::Value> =
                    names.iter().zip(&ns).map(|(name, ns)| ((*name).to_owned(), json!(ns))).collect();
                let spent =
                    |timed: &Option<Timed>| timed.as_ref().map(|timed| timed.spent.json(work * timed.calls));
                let energy: serde_json::Map<String, serde_json::Value> = names
                    .iter()
                    .zip(&timed)
                    .map(|(name, timed)| ((*name).to_owned(), json!(spent(timed))))
                    .collect();
                let row = json!({"bench": "engines", "kind": kind.name(), "bytes": bytes, "ns": by_engine, "energy": energy, "energy_unit": unit,
                    "openssl_ns": theirs, "ratio": ratio, "machine": machine_line()});
                say!("{row}");
            }
            let shown = |ns: f64| {
                if size.is_some() { text::rate(bytes as f64 / ns * 1e9) } else { text::per_second(ns) }
            };
            let mut row = vec![
                kind.name().to_owned(),
                size.map_or_else(|| "-".into(), |size| text::bytes(size as u64)),
            ];
            row.extend(ns.iter().map(|ns| ns.map_or_else(|| "-".into(), shown)));
            row.push(theirs.map_or_else(|| "-".into(), shown));
            row.push(ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")));
            if gauge.is_some() {
                let spent = |timed: &Timed| timed.spent.per_joule(work * timed.calls, unit);
                row.extend(timed.iter().map(|timed| timed.as_ref().map_or_else(|| "-".into(), spent)));
            }
            rows.push(row);
        }
    }
    if !json {
        let joules: Vec<String> =
            names.iter().filter(|_| gauge.is_some()).map(|name| format!("{name}, a joule")).collect();
        let header = ["kind", "size"].into_iter().chain(names).chain(["openssl", "ratio"]);
        let header: Vec<&str> = header.chain(joules.iter().map(String::as_str)).collect();
        put!("{}", text::table(&header, &rows));
    }
    Ok(())
}

fn sizes(kind: Kind, wanted: &[usize]) -> Vec<Option<usize>> {
    use Family::{Cipher, Compress, Digest, Mac, Open, Seal};
    match kind.info().family {
        Cipher | Seal | Open | Digest | Mac | Compress => wanted.iter().copied().map(Some).collect(),
        _ => vec![None],
    }
}

/// One engine's time and joules for one kind and size.
struct Timed {
    /// Nanoseconds a request, the median of several rounds.
    ns: f64,
    /// Joules of all calls.
    spent: Spent,
    /// How many those were.
    calls: f64,
}

/// Rounds that are counted; one more warms up.
const ROUNDS: u32 = 9;

/// `None` if the engine does not do it.
fn time(engine: &dyn Engine, kind: Kind, size: Option<usize>, gauge: Option<&mut Gauge>) -> Option<Timed> {
    let mut request = sample(engine, kind, size)?;
    engine.execute(&mut request.view()).ok()?;
    let mut call = || {
        std::hint::black_box(engine.execute(&mut request.view()).is_ok());
    };
    let calls = pair::calls_for(10e6, &mut call);
    let mut rounds = || pair::in_turn(&mut [&mut call], calls, ROUNDS).pop();
    let (times, spent) = match gauge {
        Some(gauge) => gauge.around(rounds),
        None => (rounds(), Spent::Unknown),
    };
    let ns = times.map(pair::median)?;
    Some(Timed { ns, spent, calls: f64::from(calls) * f64::from(ROUNDS + 1) })
}

/// What `openssl speed` says of the same kind and size, in nanoseconds a request.
fn openssl(kind: Kind, size: Option<usize>) -> Option<f64> {
    let arguments = openssl_arguments(kind)?;
    let mut command = Command::new("openssl");
    command.arg("speed").args(["-mr", "-seconds", "1"]).args(arguments);
    if let Some(size) = size {
        command.args(["-bytes", &size.to_string()]);
    }
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match size {
        // +F:22:aes-128-ctr:8463581180.00   bytes a second
        Some(size) => {
            let line = text.lines().rev().find(|line| line.starts_with("+F:"))?;
            let rate: f64 = line.rsplit(':').next()?.parse().ok()?;
            Some(size as f64 / rate * 1e9)
        }
        // +F2:2:2048:4213.0:142857.1   bits, private operations a second, public ones
        None => {
            let line = text.lines().rev().find(|line| line.starts_with("+F") && !line.starts_with("+F:"))?;
            let per_second: f64 = line.split(':').nth(3)?.parse().ok()?;
            Some(1e9 / per_second)
        }
    }
}

/// Arguments of `openssl speed` for a kind.
fn openssl_arguments(kind: Kind) -> Option<Vec<&'static str>> {
    let bulk = |name: &'static str| Some(vec!["-evp", name]);
    match kind {
        Kind::Aes128Ctr => bulk("aes-128-ctr"),
        Kind::Aes192Ctr => bulk("aes-192-ctr"),
        Kind::Aes256Ctr => bulk("aes-256-ctr"),
        Kind::Aes128CbcEncrypt => bulk("aes-128-cbc"),
        Kind::Aes192CbcEncrypt => bulk("aes-192-cbc"),
        Kind::Aes256CbcEncrypt => bulk("aes-256-cbc"),
        Kind::Aes128XtsEncrypt => bulk("aes-128-xts"),
        Kind::Aes256XtsEncrypt => bulk("aes-256-xts"),
        Kind::Aes128GcmSeal => bulk("aes-128-gcm"),
        Kind::Aes192GcmSeal => bulk("aes-192-gcm"),
        Kind::Aes256GcmSeal => bulk("aes-256-gcm"),
        Kind::ChaCha20Poly1305Seal => bulk("chacha20-poly1305"),
        Kind::Sha1 => bulk("sha1"),
        Kind::Sha256 => bulk("sha256"),
        Kind::Sha384 => bulk("sha384"),
        Kind::Sha512 => bulk("sha512"),
        Kind::HmacSha1 => Some(vec!["-hmac", "sha1"]),
        Kind::HmacSha256 => Some(vec!["-hmac", "sha256"]),
        Kind::HmacSha384 => Some(vec!["-hmac", "sha384"]),
        Kind::HmacSha512 => Some(vec!["-hmac", "sha512"]),
        Kind::Rsa2048Private => Some(vec!["rsa2048"]),
        Kind::Rsa3072Private => Some(vec!["rsa3072"]),
        Kind::Rsa4096Private => Some(vec!["rsa4096"]),
        Kind::EcdsaP256Sign => Some(vec!["ecdsap256"]),
        Kind::EcdsaP384Sign => Some(vec!["ecdsap384"]),
        Kind::P256Derive => Some(vec!["ecdhp256"]),
        Kind::P384Derive => Some(vec!["ecdhp384"]),
        Kind::X25519Derive => Some(vec!["ecdhx25519"]),
        _ => None,
    }
}
