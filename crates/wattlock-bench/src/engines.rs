//! Every engine by kind and size, with OpenSSL's libcrypto beside them: each in turn, many short rounds, by processor
//! time.

use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use serde_json::{Map, json};
use wattlock::calibrate::sample;
use wattlock_core::{Engine, Family, Kind, OwnedRequest};
use wattlock_shell::joules::Gauge;
use wattlock_shell::setup::parse_kind;
use wattlock_shell::setup::{self, Choice};
use wattlock_shell::text;

use super::batch;
use super::libcrypto::{self, Libcrypto};
use super::machine_line;
use super::pair::{self, Better, Gain};
use super::record::{By, Record, Row};

/// What to measure.
#[derive(Debug, Args)]
pub struct Settings {
    /// Only these kinds; may be repeated (`wattlock engines` lists them)
    #[arg(long = "kind", value_parser = parse_kind)]
    kinds: Vec<Kind>,
    /// Request sizes, for kinds that have any
    #[arg(long = "size", value_parser = text::parse_request_bytes, value_delimiter = ',', default_values_t = SIZES)]
    sizes: Vec<usize>,
    /// Rounds of each, in turn, of some milliseconds
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Batches of hashes, MACs and AES-CBC encryption in lanes instead, beside OpenSSL one by one
    #[arg(long)]
    batch: bool,
    /// Leave OpenSSL out
    #[arg(long)]
    no_openssl: bool,
    /// Leave joules out (they are printed if a counter measures them)
    #[arg(long)]
    no_joules: bool,
}

const SIZES: [usize; 3] = [1024, 16_384, 65_536];
const ROUNDS: u32 = 15;
/// What one engine's share of a round should take.
const TURN_NS: f64 = 5e6;
/// Rounds in a window of joules: counters are read some hundred times a second at best.
const WINDOW: u32 = 20;

impl Default for Settings {
    fn default() -> Settings {
        let sizes = SIZES.to_vec();
        Settings {
            kinds: Vec::new(),
            sizes,
            rounds: ROUNDS,
            batch: false,
            no_openssl: false,
            no_joules: false,
        }
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
pub fn run(settings: &Settings, choice: &Choice, mut record: Record) -> Result<()> {
    if settings.batch {
        return batch::run(&settings.kinds, settings.rounds, settings.no_openssl, record);
    }
    let engines = setup::engines(choice)?;
    let inline: Vec<&Arc<dyn Engine>> =
        engines.iter().filter(|engine| !engine.description().inline.is_empty()).collect();
    let kinds = if settings.kinds.is_empty() { DEFAULT.to_vec() } else { settings.kinds.clone() };
    let names: Vec<&str> = inline.iter().map(|engine| engine.description().name).collect();
    let mut peer = Libcrypto::beside(settings.no_openssl, &mut record);
    let mut gauge = if settings.no_joules { None } else { Gauge::counting() };
    let beside =
        peer.as_ref().map_or_else(|| "openssl".to_owned(), |peer| format!("openssl {}", peer.version));
    if record.shows() {
        say!("{}", machine_line());
        say!("One core, processor time; {} rounds of each in turn.", settings.rounds);
        if let Some(gauge) = &gauge {
            say!("{}", gauge.line());
        }
    }
    let mut rows = Vec::new();
    for kind in kinds {
        for size in sizes(kind, &settings.sizes) {
            let Some(timed) = measure(&inline, kind, size, settings.rounds, peer.as_mut(), gauge.as_mut())
            else {
                continue;
            };
            record.add(timed.row(kind, size, &names, peer.as_ref()));
            rows.push(timed.cells(kind, size, gauge.is_some()));
        }
    }
    if record.shows() {
        let joules: Vec<String> =
            names.iter().filter(|_| gauge.is_some()).map(|name| format!("{name}, a joule")).collect();
        let header = ["kind", "size"].into_iter().chain(names).chain([beside.as_str(), "gain"]);
        let header: Vec<&str> = header.chain(joules.iter().map(String::as_str)).collect();
        put!("{}", text::table(&header, &rows));
        say!("of the fastest engine, whose figure and OpenSSL's are of the round with the median gain");
        say!("{}", pair::LEGEND);
    }
    record.finish()
}

fn sizes(kind: Kind, wanted: &[usize]) -> Vec<Option<usize>> {
    use Family::{Cipher, Compress, Digest, Mac, Open, Seal};
    match kind.info().family {
        Cipher | Seal | Open | Digest | Mac | Compress => wanted.iter().copied().map(Some).collect(),
        _ => vec![None],
    }
}

/// Nanoseconds a request, the median of the rounds, and work by each joule.
type Figures = (f64, Option<f64>);

/// What came of one kind and size.
struct Timed {
    /// By engine in order; `None` where it does not do the kind.
    engines: Vec<Option<Figures>>,
    /// Which of them is the fastest.
    best: usize,
    /// Its rounds against OpenSSL's, in nanoseconds.
    gain: Option<Gain>,
    rounds: u32,
}

/// `None` if no engine does it.
fn measure(
    engines: &[&Arc<dyn Engine>],
    kind: Kind,
    size: Option<usize>,
    rounds: u32,
    peer: Option<&mut Libcrypto>,
    mut gauge: Option<&mut Gauge>,
) -> Option<Timed> {
    let ready = |engine: &&Arc<dyn Engine>| {
        let mut request = sample(engine.as_ref(), kind, size)?;
        engine.execute(&mut request.view()).ok()?;
        let calls = pair::calls_for(TURN_NS, &mut || once(engine.as_ref(), &mut request));
        Some((request, calls))
    };
    let mut samples: Vec<Option<(OwnedRequest, u32)>> = engines.iter().map(ready).collect();
    let mut peer = peer.filter(|_| libcrypto::operation(kind).is_some());
    if let (Some(open), Some(operation)) = (&mut peer, libcrypto::operation(kind))
        && !open.open(operation, size.unwrap_or(0))
    {
        peer = None;
    }
    let mut times = vec![Vec::new(); engines.len()];
    let mut theirs = Vec::new();
    for round in 0..=rounds {
        for ((engine, sample), times) in engines.iter().zip(&mut samples).zip(&mut times) {
            let Some((request, calls)) = sample else { continue };
            let ns = pair::time(*calls, &mut || once(engine.as_ref(), request));
            if round > 0 {
                times.push(ns); // The first round warms up.
            }
        }
        let rate = peer.as_mut().map_or(0.0, |peer| peer.rate(TURN_NS / 1e9));
        if round > 0 {
            theirs.push(if rate > 0.0 { 1e9 / rate } else { 0.0 });
        }
    }
    // What each joule is divided into: megabytes, or operations where there are no sizes.
    let work = size.map_or(1.0, |size| size as f64 / 1e6);
    let mut joules = |engine: &Arc<dyn Engine>, sample: &mut Option<(OwnedRequest, u32)>| {
        let ((request, calls), gauge) = (sample.as_mut()?, gauge.as_deref_mut()?);
        let calls = *calls * WINDOW;
        let ((), joules) = gauge.around(|| (0..calls).for_each(|_| once(engine.as_ref(), request)));
        joules.map(|joules| work * f64::from(calls) / joules.joules())
    };
    let spent: Vec<Option<f64>> =
        engines.iter().zip(&mut samples).map(|(engine, sample)| joules(engine, sample)).collect();
    let median = |times: &Vec<f64>| (!times.is_empty()).then(|| pair::median(times.clone()));
    let engines: Vec<Option<Figures>> =
        times.iter().map(median).zip(spent).map(|(ns, spent)| Some((ns?, spent))).collect();
    let known = engines.iter().enumerate().filter_map(|(at, timed)| Some((at, timed.as_ref()?.0)));
    let (best, _) = known.min_by(|a, b| a.1.total_cmp(&b.1))?;
    let gain = Gain::of(&times[best], &theirs, Better::Less);
    Some(Timed { engines, best, gain, rounds })
}

fn once(engine: &dyn Engine, request: &mut OwnedRequest) {
    std::hint::black_box(engine.execute(&mut request.view()).is_ok());
}

impl Timed {
    fn row(&self, kind: Kind, size: Option<usize>, names: &[&str], peer: Option<&Libcrypto>) -> Row {
        // Rates, as every bench's: of two figures the greater is the better one.
        let (unit, work) = size.map_or(("operations/s", 1e9), |size| ("MB/s", size as f64 * 1e3));
        let rates = |gain: Gain| Gain { ours: work / gain.ours, theirs: work / gain.theirs, ..gain };
        let against = (self.gain.map(rates), peer.map(Libcrypto::name).unwrap_or_default());
        let ns = self.engines[self.best].map_or(0.0, |timed| timed.0);
        let alone = (work / ns, self.rounds as usize);
        let row = Row::beside("engines", kind.name(), unit, By::Cpu, against, alone);
        let row = if let Some(bytes) = size { row.param("bytes", bytes) } else { row };
        let of = |figure: &dyn Fn(&Figures) -> Option<f64>| -> Map<_, _> {
            let each = names.iter().zip(&self.engines);
            each.filter_map(|(name, timed)| {
                Some(((*name).to_owned(), json!(timed.as_ref().and_then(figure)?)))
            })
            .collect()
        };
        let joules = of(&|timed| timed.1);
        let joules = (!joules.is_empty()).then(
            || json!({"unit": per_joule(size), "quality": "derived", "above_idle": true, "by": joules}),
        );
        row.detail("engine", names[self.best])
            .detail("median_ns", of(&|timed| Some(timed.0)))
            .detail("work_per_joule", joules)
    }

    fn cells(&self, kind: Kind, size: Option<usize>, joules: bool) -> Vec<String> {
        let rate = |ns: f64| match size {
            Some(bytes) => text::rate(bytes as f64 / ns * 1e9),
            None => text::per_second(ns),
        };
        let mut cells =
            vec![kind.name().to_owned(), size.map_or_else(|| "-".into(), |size| text::bytes(size as u64))];
        cells.extend(self.engines.iter().enumerate().map(|(at, timed)| match (timed, self.gain) {
            (Some(_), Some(gain)) if at == self.best => rate(gain.ours),
            (Some((ns, _)), _) => rate(*ns),
            (None, _) => "-".to_owned(),
        }));
        cells.push(self.gain.map_or_else(|| "-".into(), |gain| rate(gain.theirs)));
        cells.push(pair::cell(self.gain));
        if joules {
            let shown = |figure: f64| format!("{figure:.1} {}", per_joule(size));
            let spent = self.engines.iter().map(|timed| timed.and_then(|timed| timed.1));
            cells.extend(spent.map(|spent| spent.map_or_else(|| "-".into(), shown)));
        }
        cells
    }
}

fn per_joule(size: Option<usize>) -> &'static str {
    if size.is_some() { "MB/J" } else { "op/J" }
}
