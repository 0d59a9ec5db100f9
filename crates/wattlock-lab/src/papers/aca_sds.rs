//! `aca-sds`: Xiao et al., "ACA-SDS: Adaptive Crypto Acceleration for Secure Data Storage in Big Data", 2018
//! (`papers/README.md` section 4, `aca-sds-table1.csv`).
//!
//! A file system encrypts page by page: a process writes (or reads) blocks for ever, each operation costs some work of
//! its own and then its pages one after the other, on the CPU or by the card. Part of a page is written as a whole one;
//! of reads of a part, only the first of each page is decrypted.
//!
//! The table's columns are baselines all (the card alone, the instructions alone). Fitted: the CPU's time for a page
//! and for an operation, on the aesni columns; the card's link on qat_write_32, which it saturates, and its latency on
//! qat_write_12, which it does not; the call on the bandwidth of four feeding cores. Cells that took no part in a fit
//! are predicted, and so is what the published system gains on large writes; reads and small writes are the CPU's by
//! the rule, so they echo its columns. The idle CPU share that was published is the card's *alone*, and is compared
//! with a simulation of the card alone.

use wattlock_core::{EngineClass, Kind, KindSet};
use wattlock_policy::{
    Costs, EngineId, Machine, Policy, Settings, Tuning, by_name, inline_engine, queued_engine,
};

use crate::Error;
use crate::options::TO;
use crate::row::{Better, Parameter, Role, Row, Study};
use crate::sim::{Card, Closed, Steady, of_one_kind};
use crate::table::{figure, interval, table};

const PAPER: &str = "aca-sds";
const CPU: EngineId = EngineId(0);
const CARD: EngineId = EngineId(1);
/// What eCryptfs encrypts at a time.
const PAGE: f64 = 4096.0;
/// Cores of the published machine, where the gain was reported; taken for the table too, which does not say.
const PUBLISHED_CORES: f64 = 8.0;
/// Processes with which the idle CPU share was published.
const IDLE_PROCESSES: usize = 16;
/// Pages of a run that are measured; half as many go before.
const PAGES: u64 = 4000;
/// Most pages of a run that are measured, unless two blocks of each process are more.
const MOST_PAGES: f64 = 200_000.0;
/// Most pages that all processes' blocks may have together: more would be simulated for minutes.
const MOST_AT_ONCE: f64 = 600_000.0;

options! {
    /// The platform and the work. The default is the paper's.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Options {
        /// Block sizes in KiB, comma-separated [default: the table's]
        block_kib: Vec<f64> [arg(long, value_delimiter = ',', value_name = "KIB")]; 0.0625..=65_536.0,
        /// Processes that write at the same time, comma-separated [default: 12 and 32, the table's]
        processes: Vec<usize> [arg(long, value_delimiter = ',', value_name = "N")]; 1..=4096,
        /// Cores
        cores: usize = 8; 1..=1024,
        /// Cores that feed the card
        feeders: u16 = 4; 1..=1024,
        /// Engines of the card
        engines: u32 = 12; 1..=4096,
        /// alpha: more processes than this may use the card [default: calibrated on the model]
        alpha: Option<u16>,
        /// beta: larger blocks than this many KiB may use the card
        beta_kib: f64 = 4.0; 0.0..=1_048_576.0,
        /// M: with more idle CPU than so many thousandths, what waits for the card is done on the CPU
        idle_permille: u16 = 30; 0..=1000,
        /// What the file system encrypts at a time, in KiB
        page_kib: f64 = 4.0; 1.0..=1024.0,
        /// A process has all pages of a write in hand, as a mount of ours has, and not one at a time, as eCryptfs
        whole_writes: bool [arg(long)] = false,
        /// Requests the card's driver takes
        window: u32 = 64; 1..=65_536,
        /// Time that a page for the card costs a core, in microseconds [default: fitted]
        call_us: Option<f64>; 0.0..=1e6,
        /// The CPU's speed against the published one
        cpu_speed: f64 = 1.0; 0.001..=1000.0,
        /// How much CPU times vary, in thousandths, so that nothing runs in lockstep
        jitter_permille: u32 = 50; 0..=500,
        /// Seed of that variation
        seed: u64 = 1,
        /// Rules and constants of `adaptive`
        tuning: &'static Tuning [arg(skip)] = &Tuning::DEFAULT,
    }
}

impl Options {
    fn check(&self) -> Result<(), Error> {
        self.check_bounds(TO)?;
        let largest = self.blocks().into_iter().fold(0.0, f64::max);
        let processes = self.writers().into_iter().max().unwrap_or(1);
        if (largest / self.page_kib).ceil() * processes as f64 <= MOST_AT_ONCE {
            return Ok(());
        }
        let bounds = format!(
            "such that all processes write at most {MOST_AT_ONCE} pages at a time (--page-kib, --processes)"
        );
        Err(Error::option("--block-kib", bounds))
    }

    /// Whether this is the published platform, so that published figures can stand beside it.
    fn is_published(&self) -> bool {
        let default = Options::default();
        let alike = Options {
            block_kib: Vec::new(),
            processes: Vec::new(),
            seed: default.seed,
            jitter_permille: default.jitter_permille,
            ..self.clone()
        };
        alike == default
    }

    fn blocks(&self) -> Vec<f64> {
        match self.block_kib.is_empty() {
            true => table("aca-sds-table1").column("block_kib"),
            false => self.block_kib.clone(),
        }
    }

    fn writers(&self) -> Vec<usize> {
        if self.processes.is_empty() { vec![12, 32] } else { self.processes.clone() }
    }
}

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Operation {
    Read,
    Write,
}

impl Operation {
    fn name(self) -> &'static str {
        if self == Operation::Read { "read" } else { "write" }
    }

    fn kind(self) -> Kind {
        // What a volume does. The published one is AES-128-CBC, whose times these kinds are given.
        if self == Operation::Read { Kind::Aes256GcmOpen } else { Kind::Aes256GcmSeal }
    }
}

/// Times of the machine, all in nanoseconds; for a page of 4 KiB.
#[derive(Debug, Clone, Copy)]
struct Platform {
    own_ns: f64,
    read_ns: f64,
    write_ns: f64,
    call_ns: f64,
    /// On the link, for a page and once for each operation.
    link_ns: f64,
    link_own_ns: f64,
    engine_ns: f64,
    /// What a write of part of a page takes longer on the card.
    partial_ns: f64,
    /// More processes than this may use the card.
    alpha: u16,
}

fn cell(column: &str, block_kib: f64) -> f64 {
    table("aca-sds-table1").cell(("block_kib", block_kib), column).unwrap_or(f64::NAN)
}

/// Cores that feed the card where each brings the most, as published.
fn feeding_cores() -> usize {
    figure(PAPER, "feeding cores") as usize
}

/// Published bandwidth of each feeding core, in MB/s, if it is published for so many.
fn per_feeder(cores: usize) -> Option<f64> {
    table("aca-sds-feeders").cell(("feeding_cores", cores as f64), "throughput_MB")
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value.ln(), count + 1.0));
    (sum / count).exp()
}

const WHOLE_PAGES: [f64; 4] = [4.0, 8.0, 16.0, 64.0];

impl Platform {
    /// Fitted on the baseline columns.
    fn fitted() -> Result<Platform, Error> {
        // Reads by the instructions: cores saturated by 12 processes, a line through the smallest and the largest block.
        let share = 12.0 / PUBLISHED_CORES;
        let (small, large) = (cell("aesni_read_12", 1.0) / share, cell("aesni_read_12", 64.0) / share);
        let read_us = (large - small) / (16.0 - 0.25);
        let own_us = small - read_us / 4.0;
        let by_column =
            [("aesni_write_12", 12.0), ("aesni_write_32", 32.0)].into_iter().flat_map(|(column, n)| {
                let pages = |kib: f64| (kib / 4.0).max(1.0);
                let blocks = [1.0, 4.0, 8.0, 16.0, 64.0].into_iter();
                blocks.map(move |kib| (cell(column, kib) * PUBLISHED_CORES / n - own_us) / pages(kib))
            });
        let write_us = geometric_mean(by_column);
        // The card saturated: by Little's law that is the link's time for an operation, whatever else happens. A line
        // through the smallest and the largest block of whole pages.
        let (one, sixteen) = (cell("qat_write_32", 4.0) / 32.0, cell("qat_write_32", 64.0) / 32.0);
        let link_us = (sixteen - one) / 15.0;
        let call_us = PAGE / per_feeder(feeding_cores()).unwrap_or(f64::NAN);
        let mut platform = Platform {
            own_ns: own_us * 1e3,
            read_ns: read_us * 1e3,
            write_ns: write_us * 1e3,
            call_ns: call_us * 1e3,
            link_ns: link_us * 1e3,
            link_own_ns: (one - link_us) * 1e3,
            engine_ns: 10_000.0,
            partial_ns: 0.0,
            alpha: 0,
        };
        let page_us =
            geometric_mean(WHOLE_PAGES.into_iter().map(|kib| cell("qat_write_12", kib) / (kib / 4.0)));
        let options = Options::default();
        let latency = |platform: Platform, kib| {
            let setting = Setting::new(&options, platform, "offload", Operation::Write, kib, 12);
            Ok::<f64, Error>(setting.run()?.latency_ns)
        };
        for _ in 0..4 {
            let missing = page_us * 1e3 * 4.0 - latency(platform, 16.0)?;
            platform.engine_ns = (platform.engine_ns + missing / 4.0).max(0.0);
        }
        for _ in 0..3 {
            let missing = cell("qat_write_12", 1.0) * 1e3 - latency(platform, 1.0)?;
            platform.partial_ns = (platform.partial_ns + missing).max(0.0);
        }
        Ok(platform)
    }

    /// The same under these options, but for alpha.
    fn uncalibrated(options: &Options) -> Result<Platform, Error> {
        let fitted = Platform::fitted()?;
        Ok(Platform { call_ns: options.call_us.map_or(fitted.call_ns, |us| us * 1e3), ..fitted })
    }

    /// The same with alpha.
    fn of(options: &Options) -> Result<Platform, Error> {
        let platform = Platform::uncalibrated(options)?;
        let alpha = match options.alpha {
            Some(alpha) => alpha,
            None => calibrated_alpha(&platform.storage(options)?),
        };
        Ok(Platform { alpha, ..platform })
    }

    /// Writes above beta by the CPU alone and by the card alone: what calibration measures.
    fn storage(&self, options: &Options) -> Result<Vec<Written>, Error> {
        let mut all = Vec::new();
        for block_kib in LARGE_KIB.into_iter().filter(|kib| *kib > options.beta_kib) {
            for files in CALIBRATED_FILES {
                let bandwidth = |policy| {
                    let setting =
                        Setting::new(options, *self, policy, Operation::Write, block_kib, files.into());
                    Ok::<f64, Error>(setting.bandwidth(&setting.run()?))
                };
                let (cpu, card) = (bandwidth("instruction")?, bandwidth("offload")?);
                all.push(Written { block_kib, files, cpu, card });
            }
        }
        Ok(all)
    }

    fn cpu_ns(&self, operation: Operation) -> f64 {
        if operation == Operation::Read { self.read_ns } else { self.write_ns }
    }

    fn card(&self, options: &Options, operation: Operation, partial: bool) -> Card {
        let pages = options.page_kib * 1024.0 / PAGE;
        let extra = if partial && operation == Operation::Write { self.partial_ns } else { 0.0 };
        let points = vec![(0, (self.engine_ns * pages + extra) as u64)];
        let model = of_one_kind("aca-sds-qat", options.engines, operation.kind(), points, options.window);
        Card::new(model, self.call_ns / options.cpu_speed, Some(PAGE * 1e9 / self.link_ns))
    }
}

/// Files that write at the same time, as `wattlock calibrate --storage` tries them, and the table's most.
const CALIBRATED_FILES: [u16; 9] = [1, 2, 3, 4, 6, 8, 12, 16, 32];
/// Blocks above the turning point.
const LARGE_KIB: [f64; 3] = [8.0, 16.0, 64.0];

/// Bandwidth of writes of one size by so many files.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// Size of a write.
    pub block_kib: f64,
    /// Files that are written at the same time.
    pub files: u16,
    /// By the CPU alone, in MB/s.
    pub cpu: f64,
    /// By the card alone, in MB/s.
    pub card: f64,
}

/// Alpha as calibration finds it where beta is given: the number of files from which the card is to have writes, so that the
/// measured ones lose least, less one. Where several lose as little, the one that sends least.
fn calibrated_alpha(written: &[Written]) -> u16 {
    let loss = |alpha: u16| -> f64 {
        let of = |one: &Written| {
            let used = if one.files > alpha { one.card } else { one.cpu };
            (one.cpu.max(one.card) / used).ln()
        };
        written.iter().map(of).sum()
    };
    let alphas = written.iter().map(|one| one.files - 1).chain([u16::MAX]);
    let all = alphas.map(|alpha| (loss(alpha), alpha));
    let least = all.clone().map(|one| one.0).fold(f64::INFINITY, f64::min);
    all.filter(|one| one.0 < least + 1e-9).map(|one| one.1).max().unwrap_or(u16::MAX)
}

/// What alpha is calibrated from under these options, and what comes of it.
///
/// # Errors
/// [`Error::Option`] names the first option out of its bounds.
pub fn calibration(options: &Options) -> Result<(Vec<Written>, u16), Error> {
    options.check()?;
    let platform = Platform::of(options)?;
    Ok((platform.storage(options)?, platform.alpha))
}

/// One run.
#[derive(Clone, Copy)]
struct Setting<'a> {
    options: &'a Options,
    platform: Platform,
    policy: &'a str,
    operation: Operation,
    block_kib: f64,
    processes: usize,
    /// Cores that processes run on; all of them, but where feeding cores are counted.
    cores: usize,
}

impl<'a> Setting<'a> {
    fn new(
        options: &'a Options,
        platform: Platform,
        policy: &'a str,
        operation: Operation,
        block_kib: f64,
        processes: usize,
    ) -> Setting<'a> {
        Setting { options, platform, policy, operation, block_kib, processes, cores: options.cores }
    }

    fn page_bytes(&self) -> usize {
        (self.options.page_kib * 1024.0) as usize
    }

    /// The pages each operation of a process asks for: of reads of parts of a page, the first asks for it. An
    /// operation's own share of the link is so many bytes more of its first page.
    fn rounds(&self) -> Vec<Vec<usize>> {
        let share = self.block_kib / self.options.page_kib;
        let own_bytes = match self.platform.link_ns > 0.0 {
            true => PAGE * self.platform.link_own_ns / self.platform.link_ns,
            false => 0.0,
        };
        let mut pages = vec![self.page_bytes(); share.ceil().max(1.0) as usize];
        pages[0] += own_bytes as usize;
        let mut rounds = vec![pages];
        if share < 1.0 && self.operation == Operation::Read {
            rounds.resize((1.0 / share).round() as usize, Vec::new());
        }
        rounds
    }

    fn run(&self) -> Result<Steady, Error> {
        self.system(|closed| closed.run())
    }

    /// Builds the system and hands it over.
    fn system<R>(&self, run: impl FnOnce(Closed<'_>) -> R) -> Result<R, Error> {
        let (options, platform) = (self.options, self.platform);
        let pages = options.page_kib * 1024.0 / PAGE;
        let inline_ns = |_: usize| platform.cpu_ns(self.operation) * pages / options.cpu_speed;
        let partial = self.block_kib < options.page_kib;
        let machine = self.machine(inline_ns(0));
        let clients: Vec<usize> = (0..self.processes).map(|process| process % self.cores).collect();
        let policies: Result<Vec<Box<dyn Policy>>, _> = clients
            .iter()
            .map(|core| by_name(self.policy, machine.clone(), &settings(options, platform.alpha, *core)))
            .collect();
        let rounds = self.rounds();
        let each = rounds.iter().map(Vec::len).sum::<usize>() as f64 / rounds.len() as f64;
        let processes = self.processes as u64;
        let most = ((MOST_PAGES / each) as u64).max(2 * processes);
        let measured = ((PAGES as f64 / each) as u64).max(40 * processes).min(most);
        let system = Closed {
            cores: self.cores,
            clients,
            policies: policies?,
            kind: self.operation.kind(),
            own_ns: platform.own_ns / options.cpu_speed,
            rounds,
            // The published rule goes by the block; a page is all that anybody encrypts.
            in_hand: if self.options.whole_writes { usize::MAX } else { 1 },
            told_bytes: (self.policy == "aca-sds").then_some((self.block_kib * 1024.0) as usize),
            inline: vec![(CPU, &inline_ns)],
            card: (CARD, platform.card(options, self.operation, partial)),
            jitter: f64::from(options.jitter_permille) / 1000.0,
            seed: options.seed,
            watts: (0.0, [0.0; 4]),
            warm: measured / 2,
            measured,
        };
        Ok(run(system))
    }

    fn machine(&self, inline_ns: f64) -> Machine {
        let platform = self.platform;
        let kind = self.operation.kind();
        let pages = self.options.page_kib * 1024.0 / PAGE;
        let alone =
            platform.call_ns / self.options.cpu_speed + (platform.link_ns + platform.engine_ns) * pages;
        let mut costs = Costs::new();
        costs.set(CPU, kind, vec![(0, inline_ns, None)]);
        costs.set(CARD, kind, vec![(0, alone, None)]);
        costs.set_submit(CARD, platform.call_ns / self.options.cpu_speed);
        let kinds = KindSet::of(&[kind]);
        Machine {
            engines: vec![
                inline_engine(CPU, EngineClass::Instruction, kinds),
                queued_engine(CARD, EngineClass::Accelerator, kinds, self.options.window),
            ],
            costs,
            cores: self.cores as u16,
            ..Machine::default()
        }
    }

    /// MB/s of a run.
    fn bandwidth(&self, steady: &Steady) -> f64 {
        steady.rounds_per_s * self.block_kib * 1024.0 / 1e6
    }
}

fn settings(options: &Options, alpha: u16, core: usize) -> Settings {
    // The card counts as fully used with a request for each of its engines.
    let share = (1000 * u64::from(options.engines)).div_ceil(u64::from(options.window)).clamp(1, 1000);
    Settings {
        aca_sds_alpha: Some(alpha),
        aca_sds_beta_bytes: Some((options.beta_kib * 1024.0) as usize),
        aca_sds_idle_permille: options.idle_permille,
        aca_sds_feeders: Some(options.feeders),
        aca_sds_thread: Some(core as u16),
        busy_permille: Some(share as u16),
        adaptive_tuning: options.tuning,
        ..Settings::default()
    }
}

/// Writes of one block size by so many processes under one policy, for a runner of the caller's: [`Closed::run`], or the
/// production runtime.
///
/// # Errors
/// [`Error::Option`] names the first option out of its bounds.
pub fn scene<R>(
    options: &Options,
    block_kib: f64,
    processes: usize,
    policy: &str,
    run: impl FnOnce(Closed<'_>) -> R,
) -> Result<R, Error> {
    options.check()?;
    let platform = match policy {
        "aca-sds" => Platform::of(options)?,
        _ => Platform::uncalibrated(options)?,
    };
    Setting::new(options, platform, policy, Operation::Write, block_kib, processes).system(run)
}

/// Baselines against the table, the published system and `adaptive` at the table's blocks or those asked for.
///
/// # Errors
/// [`Error::Option`] names the first option out of its bounds.
pub fn study(options: &Options) -> Result<Study, Error> {
    options.check()?;
    let platform = Platform::of(options)?;
    let mut study = Study { parameters: parameters(options, platform)?, ..Study::default() };
    if options.block_kib.is_empty() && options.is_published() {
        study.rows.extend(baseline_rows(options, platform)?);
        study.rows.extend(turning_point(options, platform)?);
    }
    if options.block_kib.is_empty() {
        study.rows.extend(feeder_rows(options, platform)?);
        study.rows.extend(idle_rows(options, platform)?);
    }
    let mut cases: Vec<(Operation, usize)> = Vec::new();
    cases.extend(options.writers().into_iter().take(1).map(|processes| (Operation::Read, processes)));
    cases.extend(options.writers().into_iter().map(|processes| (Operation::Write, processes)));
    for (operation, processes) in cases {
        for block_kib in options.blocks() {
            study.rows.extend(system_rows(options, platform, operation, processes, block_kib)?);
        }
    }
    if options.block_kib.is_empty() && options.is_published() {
        study.rows.extend(process_rows(options, platform)?);
        study.rows.extend(four_core_rows(options)?);
        study.rows.extend(whole_write_rows(options)?);
    }
    study.remarks = remarks(&study, platform);
    Ok(study)
}

/// The fit itself: from the baseline columns only. Empty if the options make no sense.
pub fn fit(options: &Options) -> Vec<Parameter> {
    let fitted = || {
        options.check()?;
        parameters(options, Platform::of(options)?)
    };
    fitted().unwrap_or_default()
}

/// A row of this paper.
fn row(experiment: &'static str, name: String, quantity: &'static str, unit: &'static str) -> Row {
    Row::new(PAPER, experiment, name, (quantity, unit))
}

/// What a cell of the table is to the model, and what the naive predictor says of those it was not fitted on. Fitted:
/// `aesni_read_12` at both ends, both `aesni_write` columns, `qat_write_12`, `qat_write_32` where the line was drawn.
/// The rest follows. Naive: the same column's other end in proportion to the block; the other number of processes in
/// proportion to that; for reads by the card, its writes.
fn role_of(column: &str, block_kib: f64) -> (Role, Option<f64>) {
    match (column, block_kib) {
        ("qat_read_12", _) => (Role::Predicted, Some(cell("qat_write_12", block_kib))),
        ("aesni_read_12", 4.0 | 8.0 | 16.0) => (Role::Predicted, Some(cell(column, 64.0) * block_kib / 64.0)),
        ("qat_write_32", 1.0 | 8.0 | 16.0) => {
            (Role::Predicted, Some(cell("qat_write_12", block_kib) * 32.0 / 12.0))
        }
        _ => (Role::Fitted, None),
    }
}

/// Every cell of the table.
fn baseline_rows(options: &Options, platform: Platform) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for (column, policy, engine, operation, processes) in [
        ("qat_read_12", "offload", "qat", Operation::Read, 12),
        ("aesni_read_12", "instruction", "aesni", Operation::Read, 12),
        ("qat_write_12", "offload", "qat", Operation::Write, 12),
        ("aesni_write_12", "instruction", "aesni", Operation::Write, 12),
        ("qat_write_32", "offload", "qat", Operation::Write, 32),
        ("aesni_write_32", "instruction", "aesni", Operation::Write, 32),
    ] {
        for block_kib in options.blocks() {
            let setting = Setting::new(options, platform, policy, operation, block_kib, processes);
            let name = format!(
                "block_kib={block_kib} operation={} processes={processes} engine={engine}",
                operation.name()
            );
            let (role, naive) = role_of(column, block_kib);
            rows.push(Row {
                role,
                published: Some(cell(column, block_kib)),
                simulated: setting.run()?.latency_ns / 1e3,
                naive,
                better: Better::Less,
                ..row("baseline", name, "latency_us", "us")
            });
        }
    }
    Ok(rows)
}

/// The smallest of the table's blocks that 12 processes write faster by the card alone, if there is one.
fn turning_point(options: &Options, platform: Platform) -> Result<Option<Row>, Error> {
    let mut found = f64::INFINITY;
    for block_kib in options.blocks() {
        let of = |policy| {
            let setting = Setting::new(options, platform, policy, Operation::Write, block_kib, 12);
            Ok::<f64, Error>(setting.run()?.latency_ns)
        };
        if of("offload")? < of("instruction")? {
            found = found.min(block_kib);
        }
    }
    Ok(found.is_finite().then(|| Row {
        // It can be read off the columns that the model was fitted on.
        role: Role::Echoed,
        published: Some(figure(PAPER, "turning point")),
        simulated: found,
        ..row("turning point", "processes=12".into(), "turning_point_kib", "KiB")
    }))
}

/// What the feeding cores were found with: sequential writes of 32 KiB blocks by 32 threads.
const FEEDING_KIB: f64 = 32.0;
const FEEDING_THREADS: usize = 32;

/// Bandwidth per feeding core, and the most cores that keep it within 2 % of the highest. The call was fitted on the
/// figure for four cores, and a line that falls from where the card is full makes four the best: both come back.
/// Naive for five: what four bring, shared by five.
fn feeder_rows(options: &Options, platform: Platform) -> Result<Vec<Row>, Error> {
    let mut per_core = Vec::new();
    for cores in 1..=options.cores.min(16) {
        let all = Setting::new(options, platform, "offload", Operation::Write, FEEDING_KIB, FEEDING_THREADS);
        let setting = Setting { cores, ..all };
        per_core.push(setting.bandwidth(&setting.run()?) / cores as f64);
    }
    let most = per_core.iter().copied().fold(0.0, f64::max);
    let best = per_core.iter().rposition(|one| *one > 0.98 * most).map_or(0, |index| index + 1);
    let fitted = feeding_cores();
    let brought = per_feeder(fitted).map(|mb_s| mb_s * fitted as f64);
    let mut rows: Vec<Row> = Vec::new();
    for (cores, simulated) in (1..).zip(per_core) {
        let published = per_feeder(cores).filter(|_| options.is_published());
        let predicted = published.filter(|_| cores != fitted);
        rows.push(Row {
            role: if cores == fitted { Role::Fitted } else { Role::Predicted },
            published,
            simulated,
            naive: predicted.and(brought).map(|mb_s| mb_s / cores as f64),
            better: Better::More,
            ..row("feeders", format!("feeding_cores={cores}"), "throughput_per_feeder", "MB/s")
        });
    }
    rows.push(Row {
        role: Role::Echoed,
        published: options.is_published().then_some(fitted as f64),
        simulated: best as f64,
        ..row("feeders", "best".into(), "feeding_cores", "cores")
    });
    Ok(rows)
}

/// The CPU that is idle while the card *alone* encrypts for 16 processes, which is what was published: 3 to 12 % when
/// writing, nothing when reading, nothing with the instructions alone. Naive: nothing, as with the instructions.
fn idle_rows(options: &Options, platform: Platform) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for (operation, policy, engine) in [
        (Operation::Write, "offload", "qat"),
        (Operation::Read, "offload", "qat"),
        (Operation::Write, "instruction", "aesni"),
    ] {
        let published = interval(PAPER, &format!("idle {engine} {}", operation.name()));
        for block_kib in options.blocks() {
            let setting = Setting::new(options, platform, policy, operation, block_kib, IDLE_PROCESSES);
            let name = format!(
                "block_kib={block_kib} operation={} processes={IDLE_PROCESSES} engine={engine}",
                operation.name()
            );
            // With more processes than cores that never wait, nothing is idle by definition.
            let role = if policy == "instruction" { Role::Echoed } else { Role::Predicted };
            let known = options.is_published();
            rows.push(Row {
                role,
                published_interval: known.then_some(published),
                simulated: 100.0 * setting.run()?.idle(),
                naive: (known && role == Role::Predicted).then_some(0.0),
                ..row("idle", name, "idle_cpu", "%")
            });
        }
    }
    Ok(rows)
}

/// The published system and `adaptive`: bandwidth, latency, idle CPU, and what is gained on the better of card and CPU.
fn system_rows(
    options: &Options,
    platform: Platform,
    operation: Operation,
    processes: usize,
    block_kib: f64,
) -> Result<Vec<Row>, Error> {
    let run = |policy| {
        let setting = Setting::new(options, platform, policy, operation, block_kib, processes);
        let steady = setting.run()?;
        Ok::<(f64, Steady), Error>((setting.bandwidth(&steady), steady))
    };
    let (aca, adaptive) = (run("aca-sds")?, run("adaptive")?);
    let name = format!("block_kib={block_kib} operation={} processes={processes}", operation.name());
    // Reads and small blocks are published to be the CPU's own.
    let large = operation == Operation::Write && block_kib > options.beta_kib;
    let column = format!("aesni_{}_{processes}", operation.name());
    let tabled = table("aca-sds-table1").columns().contains(&column.as_str());
    let published = (!large && tabled && options.is_published())
        .then(|| cell(&column, block_kib))
        .filter(|us| us.is_finite());
    // The rule leaves them to the CPU, whose columns the model was fitted on.
    let role = if large { Role::Predicted } else { Role::Echoed };
    let mut rows = vec![
        Row {
            role,
            published: published.map(|us| block_kib * 1024.0 * processes as f64 / us),
            simulated: aca.0,
            adaptive: Some(adaptive.0),
            better: Better::More,
            own: true,
            ..row("storage", name.clone(), "throughput", "MB/s")
        },
        Row {
            role,
            published,
            simulated: aca.1.latency_ns / 1e3,
            adaptive: Some(adaptive.1.latency_ns / 1e3),
            better: Better::Less,
            ..row("storage", name.clone(), "latency_us", "us")
        },
    ];
    if large {
        let (card, cpu) = (run("offload")?.0, run("instruction")?.0);
        let gain = |bandwidth: f64| 100.0 * (bandwidth / card.max(cpu) - 1.0);
        let is_published = options.is_published() && block_kib >= 16.0;
        rows.push(Row {
            published_interval: is_published.then(|| interval(PAPER, "write gain")),
            simulated: gain(aca.0),
            naive: is_published.then(|| naive_gain(options, processes, block_kib)).flatten(),
            adaptive: Some(gain(adaptive.0)),
            better: Better::More,
            ..row("storage", name.clone(), "write_gain", "%")
        });
        // Nothing was published of what the scheme itself leaves idle.
        rows.push(Row {
            simulated: 100.0 * aca.1.idle(),
            adaptive: Some(100.0 * adaptive.1.idle()),
            ..row("storage", name, "idle_cpu", "%")
        });
    }
    Ok(rows)
}

/// Bandwidths of large writes, and what a policy gains on the better of card and CPU.
struct Large<'a> {
    options: &'a Options,
    platform: Platform,
    processes: usize,
    block_kib: f64,
}

impl Large<'_> {
    fn bandwidth(&self, policy: &str) -> Result<f64, Error> {
        let Large { options, platform, processes, block_kib } = *self;
        let setting = Setting::new(options, platform, policy, Operation::Write, block_kib, processes);
        Ok(setting.bandwidth(&setting.run()?))
    }

    fn gains(&self) -> Result<[f64; 2], Error> {
        let best = self.bandwidth("offload")?.max(self.bandwidth("instruction")?);
        let gain = |bandwidth: f64| 100.0 * (bandwidth / best - 1.0);
        Ok([gain(self.bandwidth("aca-sds")?), gain(self.bandwidth("adaptive")?)])
    }
}

/// Figure 9, by the number of processes: with few of them the instructions win over the card, and the rule leaves the card
/// alone. Naive: what the table has with 12.
fn process_rows(options: &Options, platform: Platform) -> Result<Vec<Row>, Error> {
    const BLOCK_KIB: f64 = 64.0;
    let mut rows = Vec::new();
    for processes in [1, 2, 4, 8, 16] {
        let large = Large { options, platform, processes, block_kib: BLOCK_KIB };
        let name = format!("block_kib={BLOCK_KIB} processes={processes}");
        let [aca, adaptive] = large.gains()?;
        let known = processes == 4;
        rows.push(Row {
            published_interval: known.then(|| interval(PAPER, "card over instructions at 4 processes")),
            simulated: 100.0 * (large.bandwidth("offload")? / large.bandwidth("instruction")? - 1.0),
            naive: known
                .then(|| 100.0 * (cell("aesni_write_12", BLOCK_KIB) / cell("qat_write_12", BLOCK_KIB) - 1.0)),
            ..row("processes", name.clone(), "card_over_instructions", "%")
        });
        rows.push(Row {
            simulated: aca,
            adaptive: Some(adaptive),
            ..row("processes", name, "write_gain", "%")
        });
    }
    Ok(rows)
}

/// Figure 10: four CPUs. It does not say how many processes wrote; those of the table are taken. Naive: as for eight.
fn four_core_rows(options: &Options) -> Result<Vec<Row>, Error> {
    let options = &Options { cores: 4, ..options.clone() };
    let platform = Platform::of(options)?;
    let mut rows = Vec::new();
    for processes in options.writers() {
        for block_kib in LARGE_KIB {
            let large = Large { options, platform, processes, block_kib };
            let [aca, adaptive] = large.gains()?;
            rows.push(Row {
                published_interval: Some(interval(PAPER, "write gain at 4 cores")),
                simulated: aca,
                naive: naive_gain(options, processes, block_kib),
                adaptive: Some(adaptive),
                ..row("four cores", format!("block_kib={block_kib} processes={processes}"), "write_gain", "%")
            });
        }
    }
    Ok(rows)
}

/// A process that has all pages of a write in hand, as a mount of ours: the card and the CPU claim pages of the same write.
/// Nothing like it was published.
fn whole_write_rows(options: &Options) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for cores in [4, options.cores] {
        let options = &Options { cores, whole_writes: true, ..options.clone() };
        let platform = Platform::of(options)?;
        for processes in [2, 4, 12] {
            let large = Large { options, platform, processes, block_kib: 64.0 };
            let [aca, adaptive] = large.gains()?;
            rows.push(Row {
                simulated: aca,
                adaptive: Some(adaptive),
                ..row("whole writes", format!("cores={cores} processes={processes}"), "write_gain", "%")
            });
        }
    }
    Ok(rows)
}

/// The naive predictor of the gain: the card's column, and the CPU's in proportion to the cores that do not feed it,
/// over the better of the two columns. `None` where the table has no such columns.
fn naive_gain(options: &Options, processes: usize, block_kib: f64) -> Option<f64> {
    let column = |engine: &str| {
        let name = format!("{engine}_write_{processes}");
        let has = table("aca-sds-table1").columns().contains(&name.as_str());
        has.then(|| 1.0 / cell(&name, block_kib)).filter(|rate| rate.is_finite())
    };
    let (card, cpu) = (column("qat")?, column("aesni")?);
    let rest = (options.cores as f64 - f64::from(options.feeders)) / options.cores as f64;
    Some(100.0 * ((card + cpu * rest) / card.max(cpu) - 1.0))
}

fn parameters(options: &Options, platform: Platform) -> Result<Vec<Parameter>, Error> {
    let known = |name, value| Parameter::of(PAPER, name, value);
    let mut all = vec![
        known("operation", platform.own_ns / 1e3),
        known("read page", platform.read_ns / 1e3),
        known("write page", platform.write_ns / 1e3),
        known("call", platform.call_ns / 1e3),
        known("link", platform.link_ns / 1e3),
        known("link, operation", platform.link_own_ns / 1e3),
        known("engine", platform.engine_ns / 1e3),
        known("partial page", platform.partial_ns / 1e3),
    ];
    let writes = |changed: &Options| -> Result<Vec<f64>, Error> {
        let mut all = Vec::new();
        for (processes, block_kib) in [(2, 64.0), (12, 4.0), (12, 8.0), (12, 64.0), (32, 64.0)] {
            let alpha = changed.alpha.unwrap_or(platform.alpha);
            let platform = Platform { alpha, ..platform };
            let setting = Setting::new(changed, platform, "aca-sds", Operation::Write, block_kib, processes);
            all.push(setting.bandwidth(&setting.run()?));
        }
        Ok(all)
    };
    let base = writes(options)?;
    let mut unknown = |name, value, (low, high): (f64, f64), set: fn(&mut Options, f64)| {
        let mut moved = 0.0f64;
        for end in [low, high] {
            let mut changed = options.clone();
            set(&mut changed, end);
            let ratios = writes(&changed)?.into_iter().zip(&base).map(|(new, old)| (new / old - 1.0).abs());
            moved = ratios.fold(moved, f64::max);
        }
        all.push(known(name, value).varied(low, high, moved));
        Ok::<(), Error>(())
    };
    unknown("alpha", f64::from(platform.alpha), (0.0, 16.0), |options, value| {
        options.alpha = Some(value as u16);
    })?;
    unknown("beta", options.beta_kib, (2.0, 16.0), |options, value| options.beta_kib = value)?;
    unknown("M", f64::from(options.idle_permille) / 10.0, (0.0, 50.0), |options, value| {
        options.idle_permille = (10.0 * value) as u16;
    })?;
    Ok(all)
}

fn remarks(study: &Study, platform: Platform) -> Vec<String> {
    let mut off: Vec<f64> = study
        .rows
        .iter()
        .filter(|row| row.experiment == "baseline")
        .filter_map(Row::deviation)
        .map(f64::abs)
        .collect();
    off.sort_by(f64::total_cmp);
    let mut remarks = vec![
        "alpha, beta and M have no published values; their parameters say how far write bandwidth moves between 2 and 32 processes when they change".to_owned(),
        "the table does not name its number of cores; 8 is taken, where the gain was reported".to_owned(),
        "the bandwidth per feeding core cannot have a peak in a model of a core that feeds at its own pace: it is level until the card is full (4 cores) and falls from there; the best number is the last one before it falls".to_owned(),
    ];
    // The card full, with 16 processes: what feeding takes of 8 cores, and what it would have to take.
    let (page_us, call_us) = (cell("qat_write_32", 64.0) / 32.0 / 16.0, platform.call_ns / 1e3);
    let (least, most) = interval(PAPER, "idle qat write");
    let busy_us = |idle: f64| (1.0 - idle / 100.0) * PUBLISHED_CORES * page_us;
    remarks.push(format!(
        "the idle CPU that was published, {least} to {most} %, is the card's alone. A full card takes {page_us:.2} us a page (qat_write_32), and {call_us:.1} us of a core is what {} MB/s for each feeding core leave for a call: that is {:.0} % of 8 cores. For {least} to {most} % idle a call would have to cost {:.1} to {:.1} us, and four cores could then feed at most {:.0} MB/s each. The two figures exclude each other in this model; it uses the bandwidth",
        per_feeder(feeding_cores()).unwrap_or(f64::NAN),
        100.0 * call_us / page_us / PUBLISHED_CORES,
        busy_us(most),
        busy_us(least),
        PAGE / busy_us(most),
    ));
    let on_four = study.rows.iter().filter(|row| row.experiment == "four cores").map(|row| row.simulated);
    let (low, high) =
        on_four.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), gain| (low.min(gain), high.max(gain)));
    if low <= high {
        let core = |ns: f64| PAGE * 1e3 / ns;
        remarks.push(format!(
            "figure 10 has the scheme ahead of both with 4 CPUs; the model has {low:.1} to {high:.1} %. In it a core brings {:.0} MB/s when it calls the card and {:.0} when it encrypts, and four cores that call do not fill the card, which takes {:.0}. With as many processes as the table has, a core always has one that can call, so none is idle, the card alone is the best there is, and M never lets the CPU take part. Missing is CPU that is idle while four cores feed the card: the paper has {least} to {most} % beside the card alone, more for larger blocks as its gain is, but tells neither the number of CPUs nor what they wait for, and {} MB/s for each of four cores leave none",
            core(platform.call_ns),
            core(platform.write_ns),
            core(platform.link_ns),
            per_feeder(feeding_cores()).unwrap_or(f64::NAN),
        ));
    }
    if let (Some(worst), Some(median)) = (off.last(), off.get(off.len() / 2)) {
        remarks.push(format!(
            "baseline check: the table's {} latencies deviate by {:.1} % in the median and {:.1} % at worst",
            off.len(),
            100.0 * median,
            100.0 * worst
        ));
    }
    remarks
}
