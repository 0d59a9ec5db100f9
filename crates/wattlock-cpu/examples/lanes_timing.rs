//! Does a pass take longer for some secrets than for others? A statistical test of every kind of lanes that has a secret.
//!
//! `cargo run --release -p wattlock-cpu --example lanes_timing [--seconds N] [--processes N] [--json FILE] [KIND]...`
//!
//! After dudect (Reparaz, Balasch, Verbauwhede, "Dude, is my code constant time?", 2017), with another unit of statistics.
//! Where keys and buffers lie makes a pass up to 0.01 % faster or slower for as long as a process lives, whatever the secrets
//! are. So many passes of one process are one observation, and a kind is timed in many processes, each with an address space of
//! its own.
//!
//! *In a process* there are three classes of batches: `fixed`, all lanes of which have one secret; `twin`, the same secret
//! once more in memory of its own; and `random`, each lane of which has another secret. Inputs are the same in all. A round is
//! a pass of each, in random order, on batches of the same number. It gives two differences, of `random` and of `twin`, both
//! against `fixed`. Rounds in which another thread took the core are left out. The mean of the middle half of each, averaged over several layouts of keys and buffers, is what the
//! process reports. (An interrupt does not move that. Nor does a secret that is slow in fewer than one pass of four.)
//!
//! *A verdict* compares the processes' differences. What cannot depend on a secret, `twin` against `fixed`, is measured in the
//! same processes and in the same way, and says how far two classes differ by chance. The limit is six times that spread,
//! divided by the root of the number of processes, and no less than [`FLOOR`] cycles or [`SHARE`] of a pass. A median of
//! `random` against `fixed` beyond the limit is found again with as many fresh processes, with the same sign, or it is none.
//! The verdict "none seen above N cycles" states the limit: a smaller difference is not excluded.
//!
//! *Controls*, measured first and in the same way: a comparison that stops at the first byte that differs, and a pass of
//! HMAC-SHA-256 with one load more, the address of which depends on two secret bytes: an entry of a table of 4 MiB, which the
//! cache holds if the secret is always the same. Both must be found, or nothing else that the run says counts, and it fails.
//! So it does for a kind that is found. (A load from a table that fits the first cache costs too little to be seen.)
//!
//! *Key generation* draws its secrets inside the pass. There the pass is run with scalars that are given instead. What it
//! cannot show is the drawing itself: how often a scalar is not in range and thrown away, which says nothing of the one kept.
//!
//! Cycles are those of the time-stamp counter, which run at one rate whatever the clock of the core is.

use std::fmt::Write as _;
use std::hint::black_box;
use std::io::{Read, Write as _};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use wattlock_core::dev::Random;
use wattlock_core::{
    Algorithm, Curve, Data, EcKey, Engine, Error, Family, Group, Key, Kind, ML_KEM_768_PUBLIC, NonceLen,
    OwnedRequest, Request, RsaKey,
};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::lanes::dev::{nist_publics, x25519_publics};
use wattlock_cpu::lanes::{Isa, Item, Lanes, WIDTH};
use wattlock_cpu::software::Software;

/// Batches that a class cycles through. Many, or what depends on a secret is in the cache for each of them.
const BATCHES: usize = 32;

/// The same for public keys, which take long to make and whose passes reach into tables many times.
const FEW_BATCHES: usize = 8;

/// Different keys in the random class of RSA, for which making keys takes long.
const RSA_KEYS: usize = 16;

/// Times that a process lays out keys and requests anew, each of them in other places.
const LAYOUTS: u32 = 8;

/// Bytes of a message under a symmetric key.
const BULK: usize = 512;

/// A difference below so many cycles is none.
const FLOOR: f64 = 10.0;

/// A difference below this share of a pass is none.
const SHARE: f64 = 2e-5;

/// The limit in spreads of a mean of processes.
const SPREADS: f64 = 6.0;

/// Rounds of a layout, at least.
const LEAST: usize = 12;

/// Processes of a kind, at least.
const PROCESSES: usize = 8;

/// The kind whose pass gets a load that depends on a secret.
const LOADED: Kind = Kind::HmacSha256;

/// Bytes between two of the 65,536 entries of that load's table: a line of the cache.
const STRIDE: usize = 64;

/// What is measured.
#[derive(Clone, Copy, PartialEq)]
enum Subject {
    /// A kind of lanes.
    Kind(Kind),
    /// The control with a load that depends on a key.
    Load,
    /// The control that compares until bytes differ.
    Compare,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Subject::Kind(kind) => kind.name(),
            Subject::Load => "control: one load",
            Subject::Compare => "control: compare",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Subject::Kind(kind) => kind.name(),
            Subject::Load => "load",
            Subject::Compare => "compare",
        }
    }

    fn from_word(word: &str) -> Option<Subject> {
        match word {
            "load" => Some(Subject::Load),
            "compare" => Some(Subject::Compare),
            word => Kind::from_name(word).map(Subject::Kind),
        }
    }

    fn batches(self) -> usize {
        match self {
            Subject::Kind(kind) if !matches!(kind.info().family, Family::Mac | Family::Cipher) => FEW_BATCHES,
            _ => BATCHES,
        }
    }

    fn kind(self) -> Option<Kind> {
        match self {
            Subject::Kind(kind) => Some(kind),
            Subject::Load => Some(LOADED),
            Subject::Compare => None,
        }
    }
}

fn main() -> ExitCode {
    let Some(isa) = Isa::best(&Cpu::detect()) else {
        println!("neither AVX-512 IFMA nor AVX2 with FMA here: no lanes to time");
        return ExitCode::SUCCESS;
    };
    let lanes = Lanes::new(isa);
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [mark, subject, millis] = &words[..]
        && mark == "--process"
    {
        return match process(&lanes, subject, millis) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => usage(&why),
        };
    }
    match Plan::read(&lanes, &words) {
        Ok(plan) => plan.run(isa, &lanes),
        Err(why) => usage(&why),
    }
}

fn usage(why: &str) -> ExitCode {
    eprintln!("{why}\nlanes_timing [--seconds N] [--processes N] [--json FILE] [KIND]...");
    ExitCode::FAILURE
}

fn seed() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system has randomness");
    u64::from_ne_bytes(bytes)
}

/// What a run is asked for.
struct Plan {
    seconds: f64,
    processes: usize,
    json: Option<String>,
    kinds: Vec<Kind>,
}

impl Plan {
    fn read(lanes: &Lanes, words: &[String]) -> Result<Plan, String> {
        let mut plan = Plan { seconds: 20.0, processes: 24, json: None, kinds: Vec::new() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} takes a value"));
            match word.as_str() {
                "--seconds" => plan.seconds = value()?.parse().map_err(|_| "--seconds takes a number")?,
                "--processes" => {
                    plan.processes = value()?.parse().map_err(|_| "--processes takes a number")?
                }
                "--json" => plan.json = Some(value()?.clone()),
                word => plan.kinds.push(Kind::from_name(word).ok_or(format!("{word} is no kind"))?),
            }
        }
        if plan.processes < PROCESSES {
            return Err(format!("fewer than {PROCESSES} processes say nothing"));
        }
        if plan.kinds.is_empty() {
            plan.kinds = lanes.description().inline.iter().collect();
        }
        Ok(plan)
    }

    fn run(&self, isa: Isa, lanes: &Lanes) -> ExitCode {
        println!("{}", lanes.description().detail);
        println!(
            "{} processes a kind, {} s in all; cycles of the time-stamp counter; a difference counts from {FLOOR} cycles \
             and {SHARE:e} of a pass on, beyond {SPREADS} spreads",
            self.processes, self.seconds
        );
        println!(
            "{:21} {:>10} {:>8} {:>9} {:>9} {:>9} {:>9}",
            "", "a pass", "passes", "spread", "itself", "seen", "limit"
        );
        let random = Random::new(seed());
        let mut rows = Vec::new();
        for control in [Subject::Compare, Subject::Load] {
            match self.measure(control, &random) {
                Ok(found) if found.leaks => rows.push((control, found)),
                Ok(_) => {
                    println!("a control went unnoticed: this run says nothing");
                    return ExitCode::FAILURE;
                }
                Err(why) => return usage(&why),
            }
        }
        let mut leaks = 0;
        for kind in &self.kinds {
            if !lanes.description().inline.contains(*kind) {
                println!("{:21} not run here: this CPU has no lanes for it", kind.name());
            } else if let Some(why) = not_timed(*kind) {
                println!("{:21} not timed: {why}", kind.name());
            } else {
                match self.measure(Subject::Kind(*kind), &random) {
                    Ok(found) => {
                        leaks += usize::from(found.leaks);
                        rows.push((Subject::Kind(*kind), found));
                    }
                    Err(why) => return usage(&format!("{}: {why}", kind.name())),
                }
            }
        }
        if let Some(path) = &self.json
            && let Err(why) = std::fs::write(path, self.text(isa, &rows))
        {
            return usage(&format!("{path}: {why}"));
        }
        if leaks == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// A subject's verdict, which is printed, too.
    fn measure(&self, subject: Subject, random: &Random) -> Result<Found, String> {
        let material = Material::new(subject, random)?.text();
        let mut found = Found::of(&self.sitting(subject, &material)?);
        if found.leaks {
            // By chance once, perhaps; not twice to the same side.
            let again = Found::of(&self.sitting(subject, &material)?);
            found.leaks = again.leaks && (again.seen > 0.0) == (found.seen > 0.0);
            found.limit = if found.leaks { found.limit } else { again.limit.max(found.seen.abs()) };
        }
        let verdict = match found.leaks {
            true => "LEAK".into(),
            false => format!("none seen above {:.0} cycles", found.limit.ceil()),
        };
        println!(
            "{:21} {:>10.0} {:>8} {:>9.1} {:>9.1} {:>9.1} {:>9.1}  {verdict}",
            subject.name(),
            found.pass,
            found.passes,
            found.spread,
            found.itself,
            found.seen,
            found.limit
        );
        Ok(found)
    }

    /// What so many processes report, one after the other.
    fn sitting(&self, subject: Subject, material: &str) -> Result<Vec<Report>, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let millis = (self.seconds * 1e3 / self.processes as f64).ceil().max(1.0).to_string();
        let one = |_| {
            let mut child = Command::new(&program)
                .args(["--process", subject.word(), &millis])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|error| error.to_string())?;
            let mut input = child.stdin.take().ok_or("no pipe")?;
            input.write_all(material.as_bytes()).map_err(|error| error.to_string())?;
            drop(input);
            let output = child.wait_with_output().map_err(|error| error.to_string())?;
            Report::read(&String::from_utf8_lossy(&output.stdout)).ok_or("a process failed".into())
        };
        (0..self.processes).map(one).collect()
    }

    /// The run as JSON.
    fn text(&self, isa: Isa, rows: &[(Subject, Found)]) -> String {
        let mut text = format!(
            "{{\"check\": \"timing\", \"instructions\": \"{}\", \"processes\": {}, \"seconds\": {}, \"rows\": [",
            isa.name(),
            self.processes,
            self.seconds
        );
        for (at, (subject, found)) in rows.iter().enumerate() {
            let _ = write!(
                text,
                "{}\n  {{\"name\": \"{}\", \"leak\": {}, \"pass_cycles\": {:.0}, \"passes\": {}, \"spread_cycles\": {:.1}, \
                 \"itself_cycles\": {:.1}, \"seen_cycles\": {:.1}, \"limit_cycles\": {:.1}}}",
                if at == 0 { "" } else { "," },
                subject.name(),
                found.leaks,
                found.pass,
                found.passes,
                found.spread,
                found.itself,
                found.seen,
                found.limit
            );
        }
        text + "\n]}\n"
    }
}

/// What one process says: cycles of a pass, rounds, and cycles by which `random` and `twin` differ from `fixed`.
struct Report {
    pass: f64,
    rounds: usize,
    random: f64,
    twin: f64,
}

impl Report {
    fn read(line: &str) -> Option<Report> {
        let mut words = line.split_whitespace();
        let mut number = || words.next()?.parse::<f64>().ok();
        Some(Report { pass: number()?, rounds: number()? as usize, random: number()?, twin: number()? })
    }
}

/// A verdict, in cycles.
struct Found {
    pass: f64,
    passes: usize,
    /// Of processes' differences: the larger one of both classes'.
    spread: f64,
    /// The median of processes' differences between the fixed secret and itself.
    itself: f64,
    /// The median of processes' differences between random secrets and a fixed one.
    seen: f64,
    /// Beyond it a difference counts.
    limit: f64,
    leaks: bool,
}

impl Found {
    fn of(reports: &[Report]) -> Found {
        let of = |what: fn(&Report) -> f64| reports.iter().map(what).collect::<Vec<_>>();
        let (different, same) = (of(|report| report.random), of(|report| report.twin));
        let pass = median(of(|report| report.pass));
        let (seen, itself) = (median(different.clone()), median(same.clone()));
        // Two classes with one secret differ by nothing but chance: around nought.
        let spread = deviation(&same, 0.0).max(deviation(&different, seen));
        let limit = (SPREADS * spread / (reports.len() as f64).sqrt()).max(FLOOR).max(SHARE * pass);
        let passes = reports.iter().map(|report| 3 * report.rounds).sum();
        Found { pass, passes, spread, itself, seen, limit, leaks: seen.abs() > limit }
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_unstable_by(f64::total_cmp);
    let middle = of.len() / 2;
    if of.len() % 2 == 1 { of[middle] } else { (of[middle - 1] + of[middle]) / 2.0 }
}

/// The median distance from a centre, scaled to be the standard deviation of what is normally distributed.
fn deviation(of: &[f64], centre: f64) -> f64 {
    1.4826 * median(of.iter().map(|value| (value - centre).abs()).collect())
}

/// The mean of the middle half.
fn midmean(mut of: Vec<f64>) -> f64 {
    of.sort_unstable_by(f64::total_cmp);
    let middle = &of[of.len() / 4..of.len() - of.len() / 4];
    middle.iter().sum::<f64>() / middle.len() as f64
}

/// Secrets, the fixed one first, and inputs, the same for all classes.
struct Material {
    secrets: Vec<Vec<Vec<u8>>>,
    inputs: Vec<Vec<u8>>,
}

impl Material {
    fn new(subject: Subject, random: &Random) -> Result<Material, String> {
        let most = subject.batches() * WIDTH;
        let many = |one: &dyn Fn() -> Result<Vec<Vec<u8>>, String>| (0..=most).map(|_| one()).collect();
        let Some(kind) = subject.kind() else {
            let secrets: Result<_, String> = many(&|| Ok(vec![random.bytes(32)]));
            return Ok(Material { secrets: secrets?, inputs: Vec::new() });
        };
        if let Some(curve) = generated(kind) {
            let secrets: Result<_, String> = many(&|| Ok(vec![scalar(curve, random)]));
            return Ok(Material { secrets: secrets?, inputs: Vec::new() });
        }
        let info = kind.info();
        let secrets: Result<Vec<_>, String> = match (info.family, info.algorithm.curve()) {
            _ if kind == Kind::MlKem768Encapsulate => many(&|| Ok(vec![random.bytes(32)])),
            _ if kind == Kind::MlKem768Decapsulate => {
                let right = Ok(vec![ml_kem_key()]);
                std::iter::once(right).chain((0..most).map(|_| Ok(vec![other_ml_kem_key(random)]))).collect()
            }
            (Family::Sign | Family::Agree, Some(curve)) => many(&|| pair(curve).map(|(a, b)| vec![a, b])),
            (Family::Sign, None) => {
                let bits = 8 * info.output.unwrap_or(0);
                let one = |_| rsa(bits).map(Vec::from).ok_or("no RSA keys from openssl".into());
                (0..=RSA_KEYS).map(one).collect()
            }
            _ => many(&|| Ok(vec![random.bytes(info.algorithm.key_len().unwrap_or(32))])),
        };
        let inputs = (0..most).map(|_| input(kind, random)).collect::<Result<_, _>>()?;
        Ok(Material { secrets: secrets?, inputs })
    }

    /// A line for each secret and each input, for a process to read.
    fn text(&self) -> String {
        let hex = |bytes: &Vec<u8>| {
            bytes.iter().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
        };
        let secret =
            |parts: &Vec<Vec<u8>>| format!("s {}\n", parts.iter().map(hex).collect::<Vec<_>>().join(" "));
        let secrets: String = self.secrets.iter().map(secret).collect();
        secrets + &self.inputs.iter().map(|input| format!("i {}\n", hex(input))).collect::<String>()
    }

    fn read(text: &str) -> Option<Material> {
        let bytes = |hex: &str| {
            let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
            (0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()
        };
        let mut material = Material { secrets: Vec::new(), inputs: Vec::new() };
        for line in text.lines() {
            let (mark, rest) = line.split_at_checked(2)?;
            match mark {
                "s " => material.secrets.push(rest.split(' ').map(bytes).collect::<Option<_>>()?),
                _ => material.inputs.push(bytes(rest)?),
            }
        }
        (material.secrets.len() > 1).then_some(material)
    }

    /// The secret of a class in this slot.
    fn secret(&self, class: usize, slot: usize) -> &[Vec<u8>] {
        let at = if class == RANDOM { 1 + slot % (self.secrets.len() - 1) } else { 0 };
        &self.secrets[at]
    }
}

/// Classes of a process.
const CLASSES: usize = 3;
const FIXED: usize = 0;
const TWIN: usize = 1;
const RANDOM: usize = 2;

/// One process: reads its material, prints a [`Report`].
fn process(lanes: &Lanes, subject: &str, millis: &str) -> Result<(), String> {
    let subject = Subject::from_word(subject).ok_or("no such subject")?;
    let spell = Duration::from_millis(millis.parse().map_err(|_| "no number")?);
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|error| error.to_string())?;
    let material = Material::read(&text).ok_or("no material")?;
    let random = Random::new(seed());
    // Written, for pages that never were are all the same one.
    let table = vec![1u8; if subject == Subject::Load { STRIDE << 16 } else { 0 }];
    let layout = || match subject {
        Subject::Compare => compare(&material, &random, spell / LAYOUTS),
        Subject::Kind(kind) if generated(kind).is_some() => {
            generate(lanes, kind, &material, &random, spell / LAYOUTS)
        }
        Subject::Kind(kind) => requests(lanes, kind, &[], &material, &random, spell / LAYOUTS),
        Subject::Load => requests(lanes, LOADED, &table, &material, &random, spell / LAYOUTS),
    };
    let (mut layouts, mut between) = (Vec::new(), Vec::new());
    for _ in 0..LAYOUTS {
        layouts.push(layout());
        between.push(vec![1u8; (random.next() >> 51) as usize]);
    }
    let of = |what: fn(&Report) -> f64| layouts.iter().map(what).sum::<f64>() / layouts.len() as f64;
    let rounds: usize = layouts.iter().map(|layout| layout.rounds).sum();
    println!("{} {rounds} {} {}", of(|one| one.pass), of(|one| one.random), of(|one| one.twin));
    Ok(())
}

/// One of each class for every batch, made class by class in random order, so that none has the better places.
fn laid_out<T>(
    random: &Random,
    batches: usize,
    mut make: impl FnMut(usize, usize) -> T,
) -> [Vec<T>; CLASSES] {
    let mut classes = [const { Vec::new() }; CLASSES];
    for batch in 0..batches {
        for class in order(random) {
            classes[class].push(make(class, batch));
        }
    }
    classes
}

/// The classes in random order.
fn order(random: &Random) -> [usize; CLASSES] {
    // High bits: a generator's low bits may be poor.
    let draw = |below: u64| (((random.next() >> 32) * below) >> 32) as usize;
    let mut order = [FIXED, TWIN, RANDOM];
    order.swap(2, draw(3));
    order.swap(1, draw(2));
    order
}

/// Times rounds for so long.
fn measure(random: &Random, batches: usize, spell: Duration, mut run: impl FnMut(usize, usize)) -> Report {
    // Keys are expanded, and tables made, at first use. In random order: the expansions' places are part of the layout.
    for at in 0..batches {
        order(random).into_iter().for_each(|class| run(class, at));
    }
    let (start, mut rounds, mut quiet) = (Instant::now(), Vec::new(), 0);
    while (quiet < LEAST && start.elapsed() < 3 * spell) || rounds.len() < LEAST || start.elapsed() < spell {
        let (at, mut times, switches) = (rounds.len() % batches, [0.0; CLASSES], switches());
        for class in order(random) {
            let before = cycles();
            run(class, at);
            times[class] = cycles().wrapping_sub(before) as f64;
        }
        let kept = switches == self::switches();
        quiet += usize::from(kept);
        rounds.push((kept, times));
    }
    // Another thread on the core makes a pass of milliseconds twice as long. On a machine that has nothing but such rounds,
    // they must do, and the limit tells.
    if quiet >= LEAST {
        rounds.retain(|(kept, _)| *kept);
    }
    let of =
        |what: fn(&[f64; CLASSES]) -> f64| rounds.iter().map(|(_, times)| what(times)).collect::<Vec<_>>();
    Report {
        pass: median(of(|times| times[FIXED])),
        rounds: rounds.len(),
        random: midmean(of(|times| times[RANDOM] - times[FIXED])),
        twin: midmean(of(|times| times[TWIN] - times[FIXED])),
    }
}

/// How often another thread took this one's place on its core so far.
fn switches() -> i64 {
    // SAFETY: the call writes one structure of this type, for which nought is a value.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nivcsw + usage.ru_nvcsw
    }
}

/// The time-stamp counter, after all that came before is done.
fn cycles() -> u64 {
    // SAFETY: both instructions are part of every x86-64 CPU, which lanes were just found on, and touch no memory of ours.
    unsafe {
        std::arch::x86_64::_mm_lfence();
        let cycles = std::arch::x86_64::_rdtsc();
        std::arch::x86_64::_mm_lfence();
        cycles
    }
}

/// A comparison of eight keys that stops at the first byte that differs: the mistake that this test is for, at its
/// plainest.
fn compare(material: &Material, random: &Random, spell: Duration) -> Report {
    let stored: Vec<u8> = material.secrets[0][0].clone();
    let keys = laid_out(random, BATCHES, |class, batch| -> Vec<Vec<u8>> {
        (0..WIDTH).map(|lane| material.secret(class, batch * WIDTH + lane)[0].clone()).collect()
    });
    measure(random, BATCHES, spell, |class, at| {
        for key in &keys[class][at] {
            black_box(black_box(key).iter().zip(black_box(&stored)).all(|(a, b)| a == b));
        }
    })
}

/// Passes of requests. With a table, the entries of which are all the same, the first lane's message depends on the entry that a
/// secret names, one and the same or another in each pass: a load more.
fn requests(
    lanes: &Lanes,
    kind: Kind,
    table: &[u8],
    material: &Material,
    random: &Random,
    spell: Duration,
) -> Report {
    let room = kind.info().output.unwrap_or(material.inputs[0].len());
    let nonce = if kind.info().nonce == NonceLen::Exactly(16) { 16 } else { 0 };
    let nonce = |slot: usize, secret: &[Vec<u8>]| match kind.nonce_is_secret()
        && kind.info().algorithm == Algorithm::None
    {
        true => secret[0].clone(),
        false => vec![slot as u8; nonce],
    };
    let request = |class: usize, slot: usize| {
        let secret = material.secret(class, slot);
        // A key of its own even if the secret is not.
        let mut request =
            OwnedRequest::new(kind, Arc::new(key(kind, secret)), material.inputs[slot].clone(), room);
        request.nonce = nonce(slot, secret);
        request
    };
    let batches = Subject::Kind(kind).batches();
    let mut classes = laid_out(random, batches, |class, batch| -> Vec<OwnedRequest> {
        (0..WIDTH).map(|lane| request(class, batch * WIDTH + lane)).collect()
    });
    let secrets: Vec<u16> = if table.is_empty() {
        Vec::new()
    } else {
        random.bytes(1 << 13).chunks(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect()
    };
    // A class has its secrets in memory of its own, walked through at the same pace.
    let secrets: [Vec<u16>; CLASSES] = std::array::from_fn(|class| match class {
        RANDOM => secrets.clone(),
        _ => vec![secrets.first().copied().unwrap_or(0); secrets.len()],
    });
    let mut walked = [0; CLASSES];
    measure(random, batches, spell, |class, at| {
        let batch = &mut classes[class][at];
        if !table.is_empty() {
            let secret = secrets[class][walked[class] % secrets[class].len()];
            walked[class] += 1;
            batch[0].input[0] ^= black_box(table)[usize::from(secret) * STRIDE] ^ 1;
        }
        let mut items: Vec<Item<'_>> = batch
            .iter_mut()
            .map(|request| Item { request: request.view(), result: Err(Error::Unsupported) })
            .collect();
        lanes.execute_all(&mut items);
        assert!(items.iter().all(|item| item.result.is_ok()), "{} failed", kind.name());
    })
}

/// Scalars of a batch as they are drawn: each as long as the curve's are, from the front.
type Scalars = [[u8; 48]; WIDTH];

/// Passes that make keys of given scalars.
fn generate(lanes: &Lanes, kind: Kind, material: &Material, random: &Random, spell: Duration) -> Report {
    let curve = generated(kind).expect("a kind that makes pairs");
    let classes = laid_out(random, FEW_BATCHES, |class, batch| -> Box<Scalars> {
        Box::new(std::array::from_fn(|lane| {
            let mut scalar = [0; 48];
            scalar[..curve.scalar_len()].copy_from_slice(&material.secret(class, batch * WIDTH + lane)[0]);
            scalar
        }))
    });
    measure(random, FEW_BATCHES, spell, |class, at| {
        let sound = make(lanes, curve, black_box(&classes[class][at]));
        assert!(sound, "{}: a result is not sound", kind.name());
    })
}

/// The key that a secret's parts make.
fn key(kind: Kind, parts: &[Vec<u8>]) -> Key {
    let algorithm: Algorithm = kind.info().algorithm;
    match (algorithm.curve(), parts) {
        (Some(curve), [scalar, public]) => {
            Key::ec(curve, EcKey { scalar: scalar.clone(), public: public.clone() })
        }
        (_, [n, e, d, p, q, dp, dq, qinv]) => {
            let [n, e, d, p, q, dp, dq, qinv] = [n, e, d, p, q, dp, dq, qinv].map(Clone::clone);
            Key::rsa(RsaKey { n, e, d, p, q, dp, dq, qinv })
        }
        _ if algorithm == Algorithm::None => Ok(Key::none_owned()),
        _ if algorithm == Algorithm::MlKem768 => Key::ml_kem_768(&parts[0]),
        _ => Key::symmetric(algorithm, &parts[0]),
    }
    .expect("the parts belong together")
}

/// Why a kind is not timed, if it is not.
fn not_timed(kind: Kind) -> Option<&'static str> {
    match kind {
        // Another seed gives another public matrix, and sampling that takes as long as it takes.
        Kind::MlKem768Generate => Some("its seed makes what is public, too"),
        _ if kind.info().family == Family::Digest || kind.info().group == Group::Sha3 => {
            Some("it has no secret key")
        }
        _ => None,
    }
}

/// What one engine makes of a request, which it can do.
fn done(kind: Kind, nonce: &[u8], input: &[u8]) -> Vec<u8> {
    let mut output = vec![0; kind.info().output.unwrap_or(0)];
    let request = Request::new(kind, Key::none(), Data::Apart { from: input, to: &mut output });
    Software::new().execute(&mut Request { nonce, ..request }).expect("software does every kind");
    output
}

/// One ML-KEM key: all of a kind's keys have its public half, and so its matrix.
fn ml_kem_key() -> Vec<u8> {
    done(Kind::MlKem768Generate, &[7; 64], &[])
}

/// Another secret half before the same public one: ciphertexts for that are rejected, as they must be in the same time.
fn other_ml_kem_key(random: &Random) -> Vec<u8> {
    let mut key = ml_kem_key();
    for two in key[..ML_KEM_768_PUBLIC.start].as_chunks_mut::<3>().0 {
        let (a, b) = (random.below(3329), random.below(3329));
        *two = [a as u8, (a >> 8 | b << 4) as u8, (b >> 4) as u8];
    }
    let end = key.len();
    key[end - 32..].copy_from_slice(&random.bytes(32));
    key
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

/// An input, the same for all classes: a peer's key, a digest, a number below every modulus.
fn input(kind: Kind, random: &Random) -> Result<Vec<u8>, String> {
    let info = kind.info();
    match (info.family, info.algorithm.curve()) {
        _ if kind == Kind::MlKem768Encapsulate => {
            Ok(done(Kind::MlKem768Generate, &random.bytes(64), &[])[ML_KEM_768_PUBLIC].to_vec())
        }
        _ if kind == Kind::MlKem768Decapsulate => {
            let public = &ml_kem_key()[ML_KEM_768_PUBLIC];
            Ok(done(Kind::MlKem768Encapsulate, &random.bytes(32), public)[..1088].to_vec())
        }
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

/// A scalar as a request for a pair draws it. On P-256 one in 2^32 would not be in range; that one is drawn anew here, too.
fn scalar(curve: Curve, random: &Random) -> Vec<u8> {
    loop {
        let scalar = random.bytes(curve.scalar_len());
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
