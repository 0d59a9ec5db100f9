//! LECPAES: Fei et al. 2017 (`papers/README.md` section 2). Users submit messages into a sliding window; a GPU
//! encrypts what the window holds, at the clock that the fill level names.
//!
//! Fitted on: the columns of `gpu_fixed` and its throughputs, the saturated rows (100 us) of `cpu_parallel` and
//! `cpu_serial`. Predicted: the `lecpaes` columns and LECPAES's throughput, the CPU programs' other rows, and the mean
//! savings. One figure of LECPAES's own is used: no baseline ever ran at the lowest clock, so the row at 3000 us fixes
//! the power there, and that row's energy is called fitted.
//!
//! Retransmissions of the plain GPU at 500 and 1500 us are far more than queueing explains (one message takes less than
//! the gap), and there are none at 2500: so now and then the window is not emptied for a while, longer than 1.5 ms for
//! each message that it holds and shorter than 2.5. The model calls that a *stall*; its length and frequency are fitted
//! on that column. LECPAES's retransmissions then follow from its own fill levels.

use wattlock_policy::{Policy, Tuning};

use crate::Error;
use crate::options::{TO, within};
use crate::papers::k20m::{self, Fitted, StreamPlatform};
use crate::row::{Better, Parameter, Role, Row, Study};
use crate::sim::Random;
use crate::sim::stream::{Message, Passage, Station, pass};
use crate::table;
use crate::table::figure;

const PAPER: &str = "lecpaes";

options! {
    /// Platform and workload. The default is the paper's.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Options {
        /// Gaps between two users in microseconds, comma-separated [default: the tables']
        latency_us: Vec<f64> [arg(long, value_delimiter = ',', value_name = "US")]; 1.0..=1e6,
        /// Users, one message each.
        users: u32 = 12_000; 1..=1_000_000,
        /// Shortest message, in KB.
        shortest_kb: f64 = 35.0; 0.001..=1e6,
        /// Longest message, in KB.
        longest_kb: f64 = 150.0,
        /// The machine.
        platform: StreamPlatform [command(flatten)],
        /// Seed of the random numbers.
        seed: u64 = 1,
        /// Runs with consecutive seeds whose mean is reported.
        runs: u32 = 8; 1..=100,
        /// Rules and constants of `adaptive`
        tuning: &'static Tuning [arg(skip)] = &Tuning::DEFAULT,
    }
}

impl Options {
    fn check(&self) -> Result<(), Error> {
        self.check_bounds(TO)?;
        within("longest_kb", &self.longest_kb, self.shortest_kb..=1e6, TO)?;
        self.platform.check(self.longest_kb * 1000.0)?;
        let mean = (self.shortest_kb + self.longest_kb) * 500.0;
        let messages = f64::from(self.users) * f64::from(self.runs);
        let waits = self.latencies().into_iter().map(|latency| 2.0 * latency);
        waits.into_iter().try_for_each(|wait_us| self.platform.check_tries(messages, mean, wait_us))
    }

    /// Whether this is the published platform and workload, so that published figures can stand beside it.
    fn is_published(&self) -> bool {
        let default = Options::default();
        let alike =
            Options { latency_us: Vec::new(), seed: default.seed, runs: default.runs, ..self.clone() };
        alike == default
    }

    fn latencies(&self) -> Vec<f64> {
        if self.latency_us.is_empty() { published_latencies() } else { self.latency_us.clone() }
    }

    /// What the users submit, the same for every rule.
    pub fn messages(&self, latency_us: f64, seed: u64) -> Vec<Message> {
        let mut random = Random::new(seed);
        let one = |_| Message {
            bytes: (random.between(self.shortest_kb, self.longest_kb) * 1000.0) as u64,
            gap_ns: latency_us * 1e3,
            wait_ns: 2.0 * latency_us * 1e3,
        };
        (0..self.users).map(one).collect()
    }
}

/// The rows of the published tables.
fn published_latencies() -> Vec<f64> {
    table("lecpaes-energy").column("latency_us")
}

/// A program's published joules at a gap, if the table has it.
fn joules(program: &str, latency_us: f64) -> Option<f64> {
    table("lecpaes-energy").cell(("latency_us", latency_us), &format!("{program}_J"))
}

/// The same of its retransmissions a message.
fn rate(program: &str, latency_us: f64) -> Option<f64> {
    table("lecpaes-retransmission").cell(("latency_us", latency_us), program)
}

/// The same of its throughput.
fn mb_s(program: &str, latency_us: f64) -> Option<f64> {
    table("lecpaes-throughput").cell(("latency_us", latency_us), program)
}

/// Means over the runs.
#[derive(Debug, Clone, Copy, Default)]
struct Means {
    joules: f64,
    rate: f64,
    throughput: f64,
}

fn one(
    name: &str,
    options: &Options,
    station: &Station,
    latency_us: f64,
    seed: u64,
) -> Result<Passage, Error> {
    let mut policy = k20m::policy(name, station, options.longest_kb * 1000.0, options.tuning)?;
    Ok(pass(station, &options.messages(latency_us, seed), policy.as_mut(), seed, None))
}

/// One stream at one gap under one policy, for a runner of the caller's: [`pass`], or the production runtime.
///
/// # Errors
/// [`Error::Option`] for an option out of its bounds.
pub fn scene<R>(
    options: &Options,
    latency_us: f64,
    policy: &str,
    run: impl FnOnce(&Station, &[Message], Box<dyn Policy>) -> R,
) -> Result<R, Error> {
    options.check()?;
    let station = options.platform.station();
    let policy = k20m::policy(policy, &station, options.longest_kb * 1000.0, options.tuning)?;
    Ok(run(&station, &options.messages(latency_us, options.seed), policy))
}

fn run(name: &str, options: &Options, station: &Station, latency_us: f64) -> Result<Means, Error> {
    let mut means = Means::default();
    let share = 1.0 / f64::from(options.runs);
    for nth in 0..u64::from(options.runs) {
        let passage = one(name, options, station, latency_us, options.seed.wrapping_add(nth))?;
        means.joules += passage.joules * share;
        means.rate += passage.retransmission_rate() * share;
        means.throughput += passage.throughput() * share;
    }
    Ok(means)
}

/// Published, simulated, and the same under `adaptive`; then the programs that LECPAES was compared with.
///
/// # Errors
/// [`Error::Option`] for an option out of its bounds.
pub fn study(options: &Options) -> Result<Study, Error> {
    options.check()?;
    let station = options.platform.station();
    let (mut rows, mut outcomes) = (Vec::new(), Vec::new());
    for latency in options.latencies() {
        let rule = run("lecpaes", options, &station, latency)?;
        let ours = run("adaptive", options, &station, latency)?;
        type Published = fn(&str, f64) -> Option<f64>;
        let known = |of: Published, program| of(program, latency).filter(|_| options.is_published());
        // Naive: the plain GPU's row, unchanged. The row at 3000 us gave the power at the lowest clock.
        let row = |quantity, simulated, adaptive, better| Row {
            simulated,
            adaptive: Some(adaptive),
            better,
            ..Row::new(PAPER, "stream", format!("latency_us={latency}"), quantity)
        };
        let fitted = latency == LOWEST_CLOCK_US;
        rows.push(Row {
            role: if fitted { Role::Fitted } else { Role::Predicted },
            published: known(joules, "lecpaes"),
            naive: known(joules, "gpu_fixed").filter(|_| !fitted),
            own: true,
            ..row(ENERGY, rule.joules, ours.joules, Better::Less)
        });
        rows.push(Row {
            published: known(rate, "lecpaes"),
            naive: known(rate, "gpu_fixed"),
            ..row(RETRANSMISSIONS, rule.rate, ours.rate, Better::Less)
        });
        rows.push(Row {
            published: known(mb_s, "lecpaes"),
            naive: known(mb_s, "gpu_fixed"),
            ..row(RATE, rule.throughput, ours.throughput, Better::More)
        });
        outcomes.push((latency, rule.joules, ours.joules));
    }
    if options.is_published() {
        rows.extend(compared(options, &station, &outcomes)?);
    }
    Ok(Study { rows, parameters: parameters(options, &k20m::FITTED)?, remarks: remarks() })
}

const ENERGY: (&str, &str) = ("energy_j", "J");
const RETRANSMISSIONS: (&str, &str) = ("retransmission_rate", "1/submission");
const RATE: (&str, &str) = ("throughput", "MB/s");
/// LECPAES's own row that fixes the power at the lowest clock.
const LOWEST_CLOCK_US: f64 = 3000.0;

/// A program that LECPAES was compared with.
struct Program {
    /// As in the rows.
    name: &'static str,
    /// Its column in the tables.
    column: &'static str,
    policy: &'static str,
    /// Whose retransmissions, times how much slower it is, are the naive predictor.
    nearest: &'static str,
}

const PROGRAMS: [Program; 3] = [
    Program { name: "gpu", column: "gpu_fixed", policy: "offload", nearest: "gpu_fixed" },
    Program { name: "cpu-parallel", column: "cpu_parallel", policy: "software", nearest: "gpu_fixed" },
    Program { name: "cpu-serial", column: "cpu_serial", policy: "software", nearest: "cpu_parallel" },
];

impl Program {
    /// The machine it runs on. No GPU clock is set while the CPU encrypts; the GPU rests at its lowest.
    fn station(&self, station: &Station) -> Station {
        let mut own = station.clone();
        if self.policy == "offload" {
            return own;
        }
        let lowest_w = own.gpu.steps[0].static_w;
        own.gpu.steps.iter_mut().for_each(|step| step.static_w = lowest_w);
        if self.name == "cpu-serial" {
            let mb_s = k20m::published_mb_s(self.column, 100.0);
            let joules = joules(self.column, 100.0).unwrap_or(0.0);
            let watts = joules / (k20m::USERS * k20m::MEAN_BYTES / 1e6 / mb_s);
            own.cpu_bytes_per_s = mb_s * 1e6;
            own.cpu_w = (watts - lowest_w).max(0.0);
        }
        own
    }

    /// Which of its rows took part in a fit. All of the plain GPU's; of the others' the saturated row at 100 us, whose
    /// throughput and joules gave speed and watts.
    fn role(&self, quantity: &str, latency_us: f64) -> Role {
        match (self.policy, quantity) {
            ("offload", _) => Role::Fitted,
            (_, "throughput") if latency_us == 100.0 || self.name == "cpu-serial" => Role::Echoed,
            (_, "energy_j") if latency_us == 100.0 => Role::Fitted,
            _ => Role::Predicted,
        }
    }
}

/// The machine of a program by the paper's short name (`gp`, `cp`, `cs`), and the policy that stands for it.
pub fn program(name: &str, station: &Station) -> Option<(&'static str, Station)> {
    let long = ["gp", "cp", "cs"].iter().position(|short| *short == name)?;
    let program = &PROGRAMS[long];
    Some((program.policy, program.station(station)))
}

/// Published joules of a rule (`gp`, `cp`, `cs`, `lecpaes`) for its 12,000 users, and retransmissions a message.
pub fn published_figures(name: &str, latency_us: f64) -> Option<(f64, f64)> {
    let column = match name {
        "lecpaes" => "lecpaes",
        "gp" => PROGRAMS[0].column,
        "cp" => PROGRAMS[1].column,
        "cs" => PROGRAMS[2].column,
        _ => return None,
    };
    Some((joules(column, latency_us)?, rate(column, latency_us)?))
}

/// The programs LECPAES was compared with (GP, CP and CS in the paper), and its mean savings over each. A row is
/// compared with the same program's row at 100 us as the naive predictor of joules and throughput.
fn compared(options: &Options, station: &Station, lecpaes: &[(f64, f64, f64)]) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    let mut savings = Vec::new();
    // The CPU programs have no chance in them but the messages' sizes.
    let few = Options { runs: options.runs.min(2), ..options.clone() };
    for program in &PROGRAMS {
        let station = program.station(station);
        let options = if program.policy == "offload" { options } else { &few };
        let mut shares: Vec<(f64, f64, f64)> = Vec::new();
        for (latency, rule, ours) in lecpaes.iter().copied() {
            if !published_latencies().contains(&latency) {
                continue;
            }
            let means = run(program.policy, options, &station, latency)?;
            let row =
                |quantity: (&'static str, &'static str), published, simulated, naive: Option<f64>, better| {
                    let role = program.role(quantity.0, latency);
                    let label = format!("by={} latency_us={latency}", program.name);
                    let naive = naive.filter(|_| role == Role::Predicted);
                    let row = Row::new(PAPER, "comparison", label, quantity);
                    Row { role, published, simulated, naive, better, ..row }
                };
            let own = joules(program.column, latency);
            rows.push(row(ENERGY, own, means.joules, joules(program.column, 100.0), Better::Less));
            let saturated = mb_s(program.column, 100.0);
            let slower = mb_s(program.nearest, 100.0).zip(saturated).map(|(nearest, own)| nearest / own);
            let nearest = rate(program.nearest, latency).zip(slower).map(|(rate, slower)| rate * slower);
            let again = rate(program.column, latency);
            rows.push(row(RETRANSMISSIONS, again, means.rate, nearest, Better::Less));
            if let Some(known) = mb_s(program.column, latency) {
                rows.push(row(RATE, Some(known), means.throughput, saturated, Better::More));
            }
            let copied = joules("gpu_fixed", latency).zip(own).map_or(0.0, |(gpu, own)| gpu / own);
            shares.push((rule / means.joules, ours / means.joules, copied));
        }
        if shares.len() == published_latencies().len() {
            let mean = |of: fn(&(f64, f64, f64)) -> f64| {
                100.0 * (1.0 - shares.iter().map(of).sum::<f64>() / shares.len() as f64)
            };
            savings.push(Row {
                published: Some(figure(PAPER, &format!("saving over {}", program.name))),
                simulated: mean(|share| share.0),
                // LECPAES as if it needed what the plain GPU needs.
                naive: Some(mean(|share| share.2)),
                adaptive: Some(mean(|share| share.1)),
                better: Better::More,
                ..Row::new(PAPER, "saving", format!("over={}", program.name), ("mean_saving", "%"))
            });
        }
    }
    rows.extend(savings);
    Ok(rows)
}

/// The fit, on baseline columns only: the closed form of [`k20m::baseline`], and a search over windows and stalls.
pub fn fit(options: &Options) -> Vec<Parameter> {
    parameters(options, &search()).unwrap_or_default()
}

/// Misfit that the published counts' own scatter explains: 43 retransmissions at 1500 us come in a dozen stalls.
const SCATTER: f64 = 0.1;

/// The smallest window whose simulated plain GPU retransmits as the published one did, with the set-up time that gives
/// its throughput at 100 us and the stalls that fit best.
fn search() -> Fitted {
    let mut best: Option<(f64, Fitted)> = None;
    for window_kib in [192.0, 256.0, 320.0, 384.0, 448.0, 512.0, 640.0, 768.0, 1024.0] {
        let messages = window_kib * 1024.0 / k20m::MEAN_BYTES;
        for stall_per_message in [1.4, 1.6, 1.8, 2.0, 2.2] {
            let stall_ms = stall_per_message * messages;
            let found =
                fit_stalls(Fitted { window_kib, setup_us: 200.0, stall_ms, stalls_per_s: 20.0 / messages });
            if best.is_none_or(|best| found.0 < best.0) {
                best = Some(found);
            }
        }
        if best.is_some_and(|best| best.0 <= SCATTER) {
            break;
        }
    }
    best.map_or(k20m::FITTED, |best| best.1)
}

/// Set-up time and frequency of stalls for a window and a length of stalls, and the misfit.
fn fit_stalls(mut fitted: Fitted) -> (f64, Fitted) {
    for _ in 0..3 {
        fitted.setup_us = fit_setup(fitted);
        let ratio = |latency| (PLAIN_FLOOR + plain(latency)) / (PLAIN_FLOOR + plain_gpu(fitted, latency, 2));
        fitted.stalls_per_s *= (ratio(500.0) * ratio(1500.0)).sqrt().clamp(0.25, 4.0);
    }
    let miss =
        |latency| ((PLAIN_FLOOR + plain_gpu(fitted, latency, 6)) / (PLAIN_FLOOR + plain(latency))).ln();
    (published_latencies().into_iter().map(|latency| miss(latency).powi(2)).sum(), fitted)
}

/// Six retransmissions in a run: fewer are not told apart.
const PLAIN_FLOOR: f64 = 0.0005;

fn plain(latency_us: f64) -> f64 {
    rate("gpu_fixed", latency_us).unwrap_or(0.0)
}

/// The options under which a fit is tried. The kernel takes what the set-up leaves of a lone message's time.
fn trial(fitted: Fitted, runs: u32) -> Options {
    let copy_mb_s = StreamPlatform::default().copy_mb_s;
    let platform = StreamPlatform {
        window_kib: fitted.window_kib,
        setup_us: fitted.setup_us,
        kernel_mb_s: Some(k20m::kernel_mb_s(k20m::baseline().alone_us, fitted.setup_us, copy_mb_s)),
        stall_ms: fitted.stall_ms,
        stalls_per_s: fitted.stalls_per_s,
        ..StreamPlatform::default()
    };
    Options { platform, runs, ..Options::default() }
}

fn plain_gpu(fitted: Fitted, latency_us: f64, runs: u32) -> f64 {
    let options = trial(fitted, runs);
    run("offload", &options, &options.platform.station(), latency_us).map_or(f64::NAN, |means| means.rate)
}

fn fit_setup(fitted: Fitted) -> f64 {
    let published = k20m::published_mb_s("gpu_fixed", 100.0);
    let (mut low, mut high) = (0.0, 390.0);
    for _ in 0..9 {
        let setup_us = (low + high) / 2.0;
        let options = trial(Fitted { setup_us, ..fitted }, 1);
        let means = run("offload", &options, &options.platform.station(), 100.0);
        // The longer the set-up, the shorter the kernel, and the more a full window saves.
        if means.is_ok_and(|means| means.throughput > published) { high = setup_us } else { low = setup_us }
    }
    (low + high) / 2.0
}

/// How far LECPAES's energy moves, as a share and at most, when one thing is changed.
fn sensitivity(
    options: &Options,
    low: f64,
    high: f64,
    set: fn(&mut StreamPlatform, f64),
) -> Result<f64, Error> {
    let mut most = 0.0f64;
    let at = |value: f64| {
        let mut changed = Options { runs: 1, ..options.clone() };
        set(&mut changed.platform, value);
        let station = changed.platform.station();
        (changed, station)
    };
    let (low, high) = (at(low), at(high));
    for latency in options.latencies() {
        let joules =
            |of: &(Options, Station)| run("lecpaes", &of.0, &of.1, latency).map(|means| means.joules);
        most = most.max((joules(&high)? / joules(&low)? - 1.0).abs());
    }
    Ok(most)
}

fn parameters(options: &Options, fitted: &Fitted) -> Result<Vec<Parameter>, Error> {
    let baseline = k20m::baseline();
    let station = trial(*fitted, 1).platform.station();
    let known = |name, value| Parameter::of(PAPER, name, value);
    let open = |name, value, (low, high): (f64, f64), set: fn(&mut StreamPlatform, f64)| {
        let moved = sensitivity(options, low, high, set)?;
        Ok::<_, Error>(known(name, value).varied(low, high, moved))
    };
    let lowest = station.gpu.steps[0].static_w;
    let windows = (320.0f64.max(options.longest_kb), 1024.0f64.max(options.longest_kb));
    Ok(vec![
        known("slack_us", baseline.slack_us),
        known("idle_w", baseline.idle_w),
        known("gpu_w", baseline.gpu_w),
        known("alone_us", baseline.alone_us),
        known("setup_us", fitted.setup_us),
        known("stall_ms", fitted.stall_ms),
        known("stalls_per_s", fitted.stalls_per_s),
        open("window_kib", fitted.window_kib, windows, |platform, value| platform.window_kib = value)?,
        open("lowest_idle_w", lowest, (0.9 * lowest, 1.1 * lowest), |platform, value| {
            platform.lowest_idle_w = Some(value);
        })?,
        open("alpha", options.platform.alpha, (1.35, 5.0), |platform, value| platform.alpha = value)?,
        open("copy_mb_s", options.platform.copy_mb_s, (2000.0, 6000.0), |platform, value| {
            platform.copy_mb_s = value;
            let alone_us = k20m::baseline().alone_us;
            platform.kernel_mb_s = Some(k20m::kernel_mb_s(alone_us, k20m::FITTED.setup_us, value));
        })?,
        open("set_clock_us", options.platform.set_clock_us, (0.0, 100.0), |platform, value| {
            platform.set_clock_us = value;
        })?,
    ])
}

/// LECPAES's mean saving over a program by the published table's own rows, in per cent.
fn mean_saving(column: &str) -> f64 {
    let energy = table("lecpaes-energy");
    let shares = energy.column("lecpaes_J").into_iter().zip(energy.column(column));
    100.0 * (1.0 - shares.map(|(own, other)| own / other).sum::<f64>() / energy.len() as f64)
}

/// Where the publication contradicts itself, with the arithmetic.
fn remarks() -> Vec<String> {
    let baseline = k20m::baseline();
    let joules = |program, latency| joules(program, latency).unwrap_or(f64::NAN);
    let rate = |program, latency| rate(program, latency).unwrap_or(f64::NAN);
    let mb_s = k20m::published_mb_s;
    let implied = |column| {
        let us = 100.0 + baseline.slack_us + rate(column, 100.0) * (200.0 + baseline.slack_us);
        us * k20m::USERS * 1e-6
    };
    let total = k20m::USERS * k20m::MEAN_BYTES / 1e6;
    let (cpu, cpu_by_text) = (joules("cpu_parallel", 100.0), figure(PAPER, "cpu-parallel by the text"));
    let (plain, rule) = (rate("gpu_fixed", 100.0), rate("lecpaes", 100.0));
    let busy = baseline.idle_w + baseline.gpu_w;
    let (mhz, speeds) = (k20m::clocks_mhz(), k20m::speeds());
    let energy = table("eep-clocks").column("energy_cpu_over_gpu");
    let highest = mhz.len() - 1;
    let (default, default_mhz, highest_mhz) = (k20m::DEFAULT_STEP, mhz[k20m::DEFAULT_STEP], mhz[highest]);
    let (falls, faster) = (energy[default] / energy[highest], speeds[highest] / speeds[default]);
    let raised = baseline.idle_w + baseline.gpu_w * (highest_mhz / default_mhz).powi(3);
    let at_1500 = 1500.0 + baseline.slack_us;
    let at_1500 = at_1500 + rate("cpu_parallel", 1500.0) * (3000.0 + baseline.slack_us);
    vec![
        format!(
            "CPU parallel at 100 us: the text says {cpu_by_text} J, the tables imply {cpu} J; they differ by {:.2} J \
             ({:.1} %), as exchanging two digits of 1295.91 would. Used: {cpu}.",
            cpu - cpu_by_text,
            (cpu / cpu_by_text - 1.0) * 100.0
        ),
        format!(
            "Retransmissions at 100 us: one table gives {} as LECPAES's excess over the GPU, the other implies \
             {rule} - {plain} = {:.5}. Used: the latter.",
            figure(PAPER, "excess by one table"),
            rule - plain
        ),
        format!(
            "Time at 100 us: users x (gap + retransmissions x 2 gaps, a timer slack each) gives {:.2} s for the GPU \
             and {:.2} s for LECPAES; {total:.0} MB at the published throughputs take {:.2} s and {:.2} s. LECPAES's \
             retransmissions say it is the slower by {:.0} %, its throughput says {:.0} %.",
            implied("gpu_fixed"),
            implied("lecpaes"),
            total / mb_s("gpu_fixed", 100.0),
            total / mb_s("lecpaes", 100.0),
            (implied("lecpaes") / implied("gpu_fixed") - 1.0) * 100.0,
            (mb_s("gpu_fixed", 100.0) / mb_s("lecpaes", 100.0) - 1.0) * 100.0
        ),
        format!(
            "LECPAES at 3000 us retransmits nothing, yet {total:.0} MB at {} MB/s take {:.2} s where the plain GPU's \
             take {:.2} s: {:.0} us more for each message that nothing published explains. The model has none of it, \
             so its throughput there is the GPU's.",
            mb_s("lecpaes", 3000.0),
            total / mb_s("lecpaes", 3000.0),
            total / mb_s("gpu_fixed", 3000.0),
            k20m::MEAN_BYTES / mb_s("lecpaes", 3000.0) - k20m::MEAN_BYTES / mb_s("gpu_fixed", 3000.0)
        ),
        format!(
            "CPU parallel at 1500 us: {:.1} J over the {:.1} s that its retransmissions imply are {:.1} W for a CPU \
             busy nearly all the time, less than the {:.1} W of its row at 100 us and less than the idle machine at \
             the lowest GPU clock. A CPU model with static and dynamic power cannot have both; only the row at 100 us, \
             whose throughput is published, is used.",
            joules("cpu_parallel", 1500.0),
            at_1500 * k20m::USERS * 1e-6,
            joules("cpu_parallel", 1500.0) / (at_1500 * k20m::USERS * 1e-6),
            baseline.cpu_full_w
        ),
        format!(
            "Mean savings: the tables' five rows give {:.1} % over the plain GPU, {:.1} % over CPU parallel and {:.1} % over \
             CPU serial; the paper prints {}, {} and {} %, over more velocities than its tables have.",
            mean_saving("gpu_fixed_J"),
            mean_saving("cpu_parallel_J"),
            mean_saving("cpu_serial_J"),
            figure(PAPER, "saving over gpu"),
            figure(PAPER, "saving over cpu-parallel"),
            figure(PAPER, "saving over cpu-serial")
        ),
        format!(
            "The power formula (alpha of 3 or more) lets the busy machine go from {busy:.1} to at least {raised:.1} W \
             between {default_mhz} and {highest_mhz} MHz, {:.1} % more; eep-clocks.csv says energy falls by {}/{} at {faster:.3} times the \
             speed, so power rises by {:.1} %. Used: alpha 3; its sensitivity is among the parameters.",
            (raised / busy - 1.0) * 100.0,
            energy[default],
            energy[highest],
            (falls * faster - 1.0) * 100.0
        ),
    ]
}
