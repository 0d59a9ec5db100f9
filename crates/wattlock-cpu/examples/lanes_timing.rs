//! Does a pass take longer for some secrets than for others? A statistical test of every kind of lanes.
//!
//! `cargo run --release -p wattlock-cpu --example lanes_timing [--seconds N] [KIND]...`
//!
//! After dudect (Reparaz, Balasch, Verbauwhede, "Dude, is my code constant time?", 2017). A measurement is one full batch.
//! Its class is drawn at random: in the *fixed* class all eight lanes have one secret, always the same; in the *random*
//! class each has another. Welch's t-test compares the two classes' times, raw and cropped at percentiles of both
//! together (what an interrupt does to a time is of no interest, and a leak may hide below it). |t| above 4.5 is
//! worth a second look, above 10 it is a leak. Both classes have equally many keys, each a memory of its own, used
//! equally often, and the same inputs, so that only the secrets differ. Where that memory lies makes a pass some 0.02 %
//! faster or slower, which a long enough test finds: so all of it is laid out anew several times, the classes in turns.
//!
//! *Control.* A function that leaks on purpose is measured first, the same way. If it goes unnoticed, this machine is too
//! noisy or the test is broken, and nothing else it says counts: the program fails. So does it for a leak.
//!
//! *Key generation* draws its secrets inside the pass. There the pass is run with scalars that are given instead. What it
//! cannot show is the drawing itself: how often a scalar is not in range and thrown away, which says nothing of the one kept.

use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use wattlock_core::dev::Random;
use wattlock_core::{
    Algorithm, Curve, Data, EcKey, Engine, Error, Family, Key, Kind, NonceLen, OwnedRequest, Request, RsaKey,
};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::lanes::dev::{nist_publics, x25519_publics};
use wattlock_cpu::lanes::{Isa, Item, Lanes, WIDTH};
use wattlock_cpu::software::Software;

/// Batches that a class goes round.
const BATCHES: usize = 8;

/// Times that keys and requests are laid out in memory.
const LAYOUTS: u32 = 16;

/// Different keys in the random class of RSA, for which making keys takes long.
const RSA_KEYS: usize = 16;

/// Bytes of a message under a symmetric key.
const BULK: usize = 512;

/// From here on it is a leak.
const LEAK: f64 = 10.0;

/// From here on it is worth a second look.
const SUSPECT: f64 = 4.5;

/// Upper percentiles to crop at.
const CROPS: [f64; 6] = [1.0, 0.99, 0.9, 0.75, 0.5, 0.25];

/// Measurements of a class in one layout, at least.
const LEAST: usize = 20;

fn main() -> ExitCode {
    let Some(isa) = Isa::best(&Cpu::detect()) else {
        println!("neither AVX-512 IFMA nor AVX2 with FMA here: no lanes to time");
        return ExitCode::SUCCESS;
    };
    println!("{}", isa.name());
    let (mut seconds, mut kinds) = (10u64, Vec::new());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seconds" => match words.next().and_then(|word| word.parse().ok()) {
                Some(number) => seconds = number,
                None => return usage("--seconds takes a number"),
            },
            word => match Kind::from_name(word) {
                Some(kind) => kinds.push(kind),
                None => return usage(&format!("{word} is no kind")),
            },
        }
    }
    let (lanes, spell) = (Lanes::new(isa), Duration::from_secs(seconds));
    if kinds.is_empty() {
        kinds = lanes.description().inline.iter().collect();
    }
    println!(
        "{seconds} s each; fixed against random secrets; |t| above {SUSPECT} is suspect, above {LEAK} a leak"
    );
    println!("{:20} {:>8} {:>8} {:>8} {:>6}", "", "passes", "t raw", "t worst", "up to");
    let random = Random::new(seed());
    if !control(&random, spell) {
        println!("the control went unnoticed: this run says nothing");
        return ExitCode::FAILURE;
    }
    let mut leaks = 0;
    for kind in kinds {
        if !lanes.description().inline.contains(kind) {
            println!("{:20} not timed: these lanes do not do it", kind.name());
            continue;
        }
        if let Some(curve) = generated(kind) {
            leaks += u32::from(measure_generate(&lanes, kind, curve, &random, spell));
            continue;
        }
        match material(kind, &random) {
            Ok((keys, inputs)) => {
                leaks += u32::from(measure_kind(&lanes, kind, &keys, &inputs, &random, spell))
            }
            Err(why) => println!("{:20} not timed: {why}", kind.name()),
        }
    }
    if leaks == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage(why: &str) -> ExitCode {
    println!("{why}\nlanes_timing [--seconds N] [KIND]...");
    ExitCode::FAILURE
}

fn seed() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system has randomness");
    u64::from_ne_bytes(bytes)
}

/// A comparison of eight keys that stops at the first byte that differs: the mistake that this test is for, at its
/// smallest. Whether the test sees it.
fn control(random: &Random, spell: Duration) -> bool {
    let stored = [0u8; 32];
    let keys: Vec<[u8; 32]> = (0..BATCHES).map(|_| random.bytes(32).try_into().expect("32 bytes")).collect();
    let (fixed, varied) = (vec![stored; BATCHES], keys);
    let times = measure(random, spell, |class, at| {
        let key = if class == 0 { &fixed[at] } else { &varied[at] };
        // As long as a pass of the fastest kernel would be out of reach for so small a leak: a few comparisons.
        for _ in 0..WIDTH {
            black_box(black_box(key).iter().zip(black_box(&stored)).all(|(a, b)| a == b));
        }
    });
    report("leaky control", &times) >= LEAK
}

/// The two classes' batches.
type Classes = [Vec<Vec<OwnedRequest>>; 2];

/// Requests with these inputs, the same in both classes, laid out in memory batch by batch, whichever class comes first.
fn classes(kind: Kind, keys: &[Secret], inputs: &[Vec<u8>], random: &Random) -> Classes {
    let room = kind.info().output.unwrap_or(inputs[0].len());
    let nonce = if kind.info().nonce == NonceLen::Exactly(16) { 16 } else { 0 };
    let request = |class: usize, slot: usize| {
        let at = if class == 1 { 1 + slot % (keys.len() - 1) } else { 0 };
        // A key of its own even if the secret is not.
        let mut request = OwnedRequest::new(kind, Arc::new(keys[at].key()), inputs[slot].clone(), room);
        request.nonce = vec![slot as u8; nonce];
        request
    };
    let mut classes: Classes = [Vec::new(), Vec::new()];
    for batch in 0..BATCHES {
        let first = (random.next() >> 63) as usize;
        for class in [first, 1 - first] {
            classes[class].push((0..WIDTH).map(|lane| request(class, batch * WIDTH + lane)).collect());
        }
    }
    classes
}

/// A secret from which keys are made.
enum Secret {
    Ec(Curve, Vec<u8>, Vec<u8>),
    Rsa([Vec<u8>; 8]),
    Bytes(Algorithm, Vec<u8>),
}

impl Secret {
    fn key(&self) -> Key {
        match self {
            Secret::Ec(curve, scalar, public) => {
                Key::ec(*curve, EcKey { scalar: scalar.clone(), public: public.clone() })
            }
            Secret::Rsa(parts) => {
                let [n, e, d, p, q, dp, dq, qinv] = parts.clone();
                Key::rsa(RsaKey { n, e, d, p, q, dp, dq, qinv })
            }
            Secret::Bytes(algorithm, bytes) => Key::symmetric(*algorithm, bytes),
        }
        .expect("the parts belong together")
    }
}

/// The fixed secret first, then the random ones.
fn keys(kind: Kind, random: &Random) -> Result<Vec<Secret>, String> {
    let info = kind.info();
    match (info.family, info.algorithm.curve()) {
        (Family::Sign | Family::Agree, Some(curve)) => (0..=BATCHES * WIDTH)
            .map(|_| pair(curve).map(|(scalar, public)| Secret::Ec(curve, scalar, public)))
            .collect(),
        (Family::Sign, None) => {
            let bits = 8 * info.output.unwrap_or(0);
            (0..=RSA_KEYS)
                .map(|_| rsa(bits).map(Secret::Rsa).ok_or("no RSA keys from openssl".into()))
                .collect()
        }
        (Family::Mac | Family::Cipher, _) => {
            let len = info.algorithm.key_len().unwrap_or(32);
            Ok((0..=BATCHES * WIDTH).map(|_| Secret::Bytes(info.algorithm, random.bytes(len))).collect())
        }
        _ => Err("it has no key".into()),
    }
}

/// Secrets, the fixed one first, and inputs.
fn material(kind: Kind, random: &Random) -> Result<(Vec<Secret>, Vec<Vec<u8>>), String> {
    let inputs = (0..BATCHES * WIDTH).map(|_| input(kind, random)).collect::<Result<_, _>>()?;
    Ok((keys(kind, random)?, inputs))
}

/// The kinds that make pairs.
const GENERATE: [(Kind, Curve); 3] = [
    (Kind::P256Generate, Curve::P256),
    (Kind::P384Generate, Curve::P384),
    (Kind::X25519Generate, Curve::X25519),
];

/// The curve on which a kind makes pairs, if it does.
fn generated(kind: Kind) -> Option<Curve> {
    GENERATE.iter().find(|one| one.0 == kind).map(|one| one.1)
}

/// A fresh scalar and its public key.
fn pair(curve: Curve) -> Result<(Vec<u8>, Vec<u8>), String> {
    let kind = GENERATE.iter().find(|one| one.1 == curve).ok_or("no such curve")?.0;
    let mut pair = vec![0; kind.info().output.unwrap_or(0)];
    let mut request = Request::new(kind, Key::none(), Data::Apart { from: &[], to: &mut pair });
    Software::new().execute(&mut request).map_err(|error| error.to_string())?;
    let public = pair.split_off(curve.scalar_len());
    Ok((pair, public))
}

/// An input, the same for both classes: a peer's key, a digest, a number below every modulus.
fn input(kind: Kind, random: &Random) -> Result<Vec<u8>, String> {
    let info = kind.info();
    match (info.family, info.algorithm.curve()) {
        (Family::Agree, Some(curve)) => pair(curve).map(|(_, public)| public),
        (_, Some(curve)) => Ok(random.bytes(curve.scalar_len())),
        (Family::Mac | Family::Cipher, _) => Ok(random.bytes(BULK)),
        _ => {
            let mut input = random.bytes(info.output.unwrap_or(0));
            input[0] = 0;
            Ok(input)
        }
    }
}

/// n, e, d, p, q, dp, dq, qinv of a fresh key, as `openssl genrsa` writes it.
fn rsa(bits: usize) -> Option<[Vec<u8>; 8]> {
    let script =
        format!("openssl genrsa {bits} 2>/dev/null | openssl rsa -traditional -outform DER 2>/dev/null");
    let der = Command::new("sh").args(["-c", &script]).output().ok()?.stdout;
    // RSAPrivateKey (RFC 8017 appendix A.1.2): a sequence of the version and eight numbers.
    let (mut rest, _) = der_body(&der)?;
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let (body, after) = der_body(rest)?;
        parts.push(body[body.iter().take_while(|byte| **byte == 0).count()..].to_vec());
        rest = after;
    }
    let parts: [Vec<u8>; 9] = parts.try_into().ok()?;
    let [_, n, e, d, p, q, dp, dq, qinv] = parts;
    Some([n, e, d, p, q, dp, dq, qinv])
}

/// A value's body and what follows the value.
fn der_body(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = der.get(1..)?.split_first()?;
    let (len, rest) = match first {
        0..=127 => (usize::from(first), rest),
        _ => {
            let (len, rest) = rest.split_at_checked(usize::from(first & 127))?;
            (len.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
        }
    };
    rest.split_at_checked(len)
}

/// Whether it leaks.
fn measure_kind(
    lanes: &Lanes,
    kind: Kind,
    keys: &[Secret],
    inputs: &[Vec<u8>],
    random: &Random,
    spell: Duration,
) -> bool {
    let mut times = [Vec::new(), Vec::new()];
    // The last layout lives until the next is there, or the allocator would hand out the same places again.
    let mut last = None;
    for _ in 0..LAYOUTS {
        let mut classes = classes(kind, keys, inputs, random);
        let mut pass = |class: usize, at: usize| {
            let batch: &mut Vec<OwnedRequest> = &mut classes[class][at];
            let mut items: Vec<Item<'_>> = batch
                .iter_mut()
                .map(|request| Item { request: request.view(), result: Err(Error::Unsupported) })
                .collect();
            lanes.execute_all(&mut items);
            assert!(items.iter().all(|item| item.result.is_ok()), "{} failed", kind.name());
        };
        // Keys are expanded at first use.
        (0..BATCHES).for_each(|at| (0..2).for_each(|class| pass(class, at)));
        let [fixed, varied] = measure(random, spell / LAYOUTS, pass);
        times[0].extend(fixed);
        times[1].extend(varied);
        last.replace(classes);
    }
    report(kind.name(), &times) >= LEAK
}

/// Scalars of a batch as they are drawn: each as long as the curve's are, from the front.
type Scalars = [[u8; 48]; WIDTH];

/// Whether making keys of given scalars leaks.
fn measure_generate(lanes: &Lanes, kind: Kind, curve: Curve, random: &Random, spell: Duration) -> bool {
    let fixed = scalar(curve, random);
    let mut times = [Vec::new(), Vec::new()];
    let mut last = None;
    for _ in 0..LAYOUTS {
        let mut classes: [Vec<Box<Scalars>>; 2] = [Vec::new(), Vec::new()];
        for _ in 0..BATCHES {
            let first = (random.next() >> 63) as usize;
            for class in [first, 1 - first] {
                let lane = |_| if class == 0 { fixed } else { scalar(curve, random) };
                classes[class].push(Box::new(std::array::from_fn(lane)));
            }
        }
        let pass = |class: usize, at: usize| {
            let sound = make(lanes, curve, black_box(&classes[class][at]));
            assert!(sound, "{}: a result is not sound", kind.name());
        };
        // The table is made at first use.
        (0..BATCHES).for_each(|at| (0..2).for_each(|class| pass(class, at)));
        let [fixed, varied] = measure(random, spell / LAYOUTS, pass);
        times[0].extend(fixed);
        times[1].extend(varied);
        last.replace(classes);
    }
    report(kind.name(), &times) >= LEAK
}

/// A scalar as a request for a pair draws it. On P-256 one in 2^32 would not be in range; that one is drawn anew here, too.
fn scalar(curve: Curve, random: &Random) -> [u8; 48] {
    loop {
        let mut scalar = [0; 48];
        scalar[..curve.scalar_len()].copy_from_slice(&random.bytes(curve.scalar_len()));
        if curve == Curve::X25519 || scalar[..4] != [0xff; 4] {
            return scalar;
        }
    }
}

/// Makes a batch of keys; whether all of them are sound.
fn make(lanes: &Lanes, curve: Curve, scalars: &Scalars) -> bool {
    if curve == Curve::X25519 {
        let scalars = scalars.map(|scalar| std::array::from_fn(|at| scalar[at]));
        let publics = x25519_publics(lanes, &scalars);
        return black_box(publics).is_some_and(|publics| publics.iter().all(Option::is_some));
    }
    let publics = nist_publics(lanes, curve, scalars);
    black_box(publics).is_some_and(|publics| publics.iter().all(Option::is_some))
}

/// Nanoseconds of each measurement, by class.
fn measure(random: &Random, spell: Duration, mut run: impl FnMut(usize, usize)) -> [Vec<f64>; 2] {
    let (start, mut times) = (Instant::now(), [Vec::new(), Vec::new()]);
    let (mut next, mut enough) = ([0usize; 2], false);
    while !enough || start.elapsed() < spell {
        // High bits: a generator's low bits may be poor.
        let class = (random.next() >> 63) as usize;
        let at = next[class] % BATCHES;
        next[class] += 1;
        let before = Instant::now();
        run(class, at);
        times[class].push(before.elapsed().as_nanos() as f64);
        enough = times.iter().all(|times| times.len() >= LEAST);
    }
    times
}

/// Prints a line; returns the largest |t|.
fn report(name: &str, times: &[Vec<f64>; 2]) -> f64 {
    let mut all: Vec<f64> = times.iter().flatten().copied().collect();
    all.sort_unstable_by(f64::total_cmp);
    let (mut raw, mut worst, mut at) = (0.0, 0f64, 1.0);
    for crop in CROPS {
        let limit = all[((all.len() as f64 * crop) as usize).min(all.len() - 1)];
        let kept = times
            .each_ref()
            .map(|times| times.iter().copied().filter(|time| *time <= limit).collect::<Vec<_>>());
        if kept.iter().any(|kept| kept.len() < LEAST) {
            continue;
        }
        let t = welch(&kept[0], &kept[1]);
        if crop == 1.0 {
            raw = t;
        }
        if t.abs() > worst.abs() {
            (worst, at) = (t, crop);
        }
    }
    let verdict = match worst.abs() {
        t if t >= LEAK => "LEAK",
        t if t >= SUSPECT => "suspect",
        _ => "",
    };
    println!("{name:20} {:>8} {raw:>8.2} {worst:>8.2} {:>5.0}% {verdict}", all.len(), at * 100.0);
    worst.abs()
}

/// Welch's t: the difference of the means in units of its standard error.
fn welch(a: &[f64], b: &[f64]) -> f64 {
    let moments = |sample: &[f64]| {
        let count = sample.len() as f64;
        let mean = sample.iter().sum::<f64>() / count;
        let variance = sample.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (mean, variance / count)
    };
    let ((mean_a, error_a), (mean_b, error_b)) = (moments(a), moments(b));
    let error = (error_a + error_b).sqrt();
    if error == 0.0 { if mean_a == mean_b { 0.0 } else { f64::INFINITY } } else { (mean_a - mean_b) / error }
}
