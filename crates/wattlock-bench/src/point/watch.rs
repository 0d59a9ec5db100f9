//! What else is known of a round: joules, by the machine's counters or an outside meter, and which processes used the
//! processors.
//!
//! A door says when its counted time begins and ends ([`Watch::begin`], [`Watch::end`]) and what it did in it
//! ([`Watch::worked`]). Joules are of those spells only.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use wattlock_core::sync::lock;
use wattlock_meter::{Folder, Meter, Outside, Reading, Ticks, Total};
use wattlock_shell::joules::{now_ns, places};
use wattlock_shell::nginx::site::cores;
use wattlock_shell::process::tree_cpu;

use super::answer::{Joules, Per};
use crate::tended::{Next, Stream, Tended};

/// Between two looks at counters that may wrap around, and at power.
const EVERY: Duration = Duration::from_millis(100);
/// How long an outside meter may say nothing: at its start, and at the end of a spell.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a spell was, and which processes used the processors in it.
#[derive(Debug, Clone, Copy)]
pub struct Spell {
    pub wall: Duration,
    /// Processor time of what this program started, and not its own.
    pub door: Duration,
    cores: usize,
    /// Share of the machine's processor time that others used.
    busy: Option<f64>,
}

impl Spell {
    /// The door's share of the machine's processor time.
    pub fn cpu_share(&self) -> f64 {
        self.door.as_secs_f64() / (self.wall.as_secs_f64() * self.cores as f64)
    }
}

/// Joules of a spell, and where they are from.
#[derive(Debug, Clone, PartialEq)]
struct Spent {
    joules: f64,
    word: &'static str,
    domain: String,
}

/// Joules of a spell if no board of this machine had a part in the work, and if one had: which is known when it is done.
type ByBoard = [Option<Spent>; 2];

enum Source {
    Counters(Counters),
    Outside(Box<Instrument>),
    /// An outside meter that failed: it has said so.
    Lost,
}

struct Begun {
    at: Instant,
    cpu: [Duration; 2],
    ticks: Option<Ticks>,
}

/// Joules and processor time of spells.
pub struct Watch {
    source: Source,
    cores: usize,
    per: Per,
    begun: Option<Begun>,
    spells: Vec<Spell>,
    spent: Vec<ByBoard>,
    /// What was done in each spell.
    work: Vec<f64>,
}

impl Watch {
    /// With the machine's counters, or with the meter that a command is.
    ///
    /// # Errors
    /// The command cannot be started, or the user interrupts.
    pub fn new(meter: Option<&str>) -> Result<Watch> {
        let source = match meter {
            None => Source::Counters(Counters::start()),
            Some(command) => match Instrument::start(command)? {
                Ok(instrument) => Source::Outside(Box::new(instrument)),
                Err(why) => lost(&why),
            },
        };
        Ok(Watch {
            source,
            // All of them, whatever this thread is pinned to later.
            cores: cores(),
            per: Per::Operation,
            begun: None,
            spells: Vec::new(),
            spent: Vec::new(),
            work: Vec::new(),
        })
    }

    /// What joules are divided by.
    pub fn per(&mut self, per: Per) {
        self.per = per;
    }

    /// The number of an outside meter's process: it is no part of the door.
    fn instrument(&self) -> Option<u32> {
        match &self.source {
            Source::Outside(instrument) => Some(instrument.program.id()),
            Source::Counters(_) | Source::Lost => None,
        }
    }

    /// A spell begins.
    pub fn begin(&mut self) {
        let ticks = Ticks::read(&Folder("/".into()));
        self.begun = Some(Begun { at: Instant::now(), cpu: tree_cpu(self.instrument()), ticks });
        match &mut self.source {
            Source::Counters(counters) => counters.begin(),
            Source::Outside(instrument) => instrument.begin(),
            Source::Lost => {}
        }
    }

    /// The spell ends.
    ///
    /// # Errors
    /// None has begun, or the user interrupts while an outside meter is waited for.
    pub fn end(&mut self) -> Result<Spell> {
        let begun = self.begun.take().context("what ends has not begun")?;
        let spent = match &mut self.source {
            Source::Counters(counters) => counters.end(),
            Source::Outside(_) | Source::Lost => [None, None],
        };
        let (wall, cpu) = (begun.at.elapsed(), tree_cpu(self.instrument()));
        let [own, door] = [0, 1].map(|at: usize| cpu[at].saturating_sub(begun.cpu[at]));
        let ticks = begun.ticks.zip(Ticks::read(&Folder("/".into())));
        let busy = ticks.and_then(|(then, now)| now.others_since(then, (own + door).as_secs_f64()));
        let spell = Spell { wall, door, cores: self.cores, busy };
        let spent = match &mut self.source {
            Source::Outside(instrument) => match instrument.end(begun.at, begun.at + wall)? {
                Ok(spent) => [Some(spent.clone()), Some(spent)],
                Err(why) => {
                    self.source = lost(&why);
                    [None, None]
                }
            },
            _ => spent,
        };
        self.spells.push(spell);
        self.spent.push(spent);
        self.work.push(0.0);
        Ok(spell)
    }

    /// What was done in the last spell: bytes or operations.
    pub fn worked(&mut self, amount: f64) {
        if let Some(last) = self.work.last_mut() {
            *last += amount;
        }
    }

    /// Joules that another source knows, of the last spell: a model of an emulated machine.
    pub fn spent(&mut self, joules: f64, word: &'static str, domain: &str) {
        if let Some(last) = self.spent.last_mut() {
            let spent = Spent { joules, word, domain: domain.to_owned() };
            *last = [Some(spent.clone()), Some(spent)];
        }
    }

    /// Joules by the unit of work: those of all spells by the work of all, and the least and the most of one spell. None
    /// unless every spell has some, all of one source, and did something. `board` says whether a board of this machine had
    /// a part in the work.
    pub fn joules(&self, board: bool) -> Option<Joules> {
        let spent: Vec<&Spent> =
            self.spent.iter().map(|spent| spent[usize::from(board)].as_ref()).collect::<Option<_>>()?;
        let first = spent.first()?;
        let same = spent.iter().all(|one| (one.word, &one.domain) == (first.word, &first.domain));
        let joules: f64 = spent.iter().map(|one| one.joules).sum();
        let each = spent.iter().zip(&self.work).map(|(one, work)| one.joules / work);
        let (low, high) =
            each.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), one| (low.min(one), high.max(one)));
        (same && self.work.iter().all(|work| *work > 0.0) && joules > 0.0).then(|| Joules {
            // The sums' quotient lies between the spells' but for rounding.
            value: (joules / self.work.iter().sum::<f64>()).clamp(low, high),
            low,
            high,
            rounds: spent.len(),
            per: self.per,
            word: first.word,
            domain: first.domain.clone(),
        })
    }

    /// Joules of the last spell.
    pub fn last_joules(&self, board: bool) -> Option<f64> {
        Some(self.spent.last()?[usize::from(board)].as_ref()?.joules)
    }

    /// Share of the machine's processor time that others used, in all spells.
    pub fn busy(&self) -> Option<f64> {
        let shares: Vec<f64> = self.spells.iter().map(|spell| spell.busy).collect::<Option<_>>()?;
        let walls: f64 = self.spells.iter().map(|spell| spell.wall.as_secs_f64()).sum();
        let weighted = shares.iter().zip(&self.spells).map(|(busy, spell)| busy * spell.wall.as_secs_f64());
        (walls > 0.0).then(|| weighted.sum::<f64>() / walls)
    }
}

fn lost(why: &str) -> Source {
    eprintln!("wattlock: --meter-command: {why}: no joules");
    Source::Lost
}

/// The machine's counters, looked at in a thread, since some wrap around and power has to be integrated.
struct Counters {
    meter: Arc<Mutex<Meter>>,
    start: Instant,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Counters {
    fn start() -> Counters {
        let meter = Arc::new(Mutex::new(Meter::discover(&places())));
        let (start, over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let (of_thread, is_over) = (meter.clone(), over.clone());
        let thread = thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                thread::park_timeout(EVERY);
                lock(&of_thread).poll(now_ns(start));
            }
        });
        Counters { meter, start, over, thread: Some(thread) }
    }

    fn begin(&self) {
        lock(&self.meter).start(now_ns(self.start));
    }

    fn end(&self) -> ByBoard {
        let reading = lock(&self.meter).finish(now_ns(self.start));
        [false, true].map(|board| spent(&reading, board))
    }
}

/// Measured joules if counters saw all of what they count, else modelled ones. Where only boards have counters, the board
/// that did the work is measured alone if it is the only one, and of work without a board the processors are modelled.
/// A board has no model: of its work nothing is said without a counter.
fn spent(reading: &Reading, board: bool) -> Option<Spent> {
    let alone = !reading.has_processor();
    let whole =
        |total: &Total| total.value.at_least().is_none() && (!alone || board && total.parts.len() == 1);
    let metered = reading.total().filter(whole);
    if let Some(total) = metered {
        let domain = total.parts.join(" + ") + if alone { ", without the processors" } else { "" };
        return Some(Spent { joules: total.value.joules(), word: "measured", domain });
    }
    let modelled = reading.modelled().filter(|_| !board)?;
    let domain = format!("processors, model {}", modelled.model());
    Some(Spent { joules: modelled.range().expected, word: "modelled", domain })
}

impl Drop for Counters {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// A command whose lines are joules or watts.
struct Instrument {
    program: Tended,
    start: Instant,
    outside: Outside,
}

impl Instrument {
    /// Starts it and waits for its first line; or says what is wrong with it.
    fn start(command: &str) -> Result<Result<Instrument, String>> {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]);
        let program = Tended::start(&shell).context("--meter-command")?;
        let mut instrument = Instrument { program, start: Instant::now(), outside: Outside::default() };
        let heard = instrument.listen(Instant::now())?;
        Ok(heard.map(|()| instrument))
    }

    /// Forgets what came before. Lines wait until the end, each with its time.
    fn begin(&mut self) {
        self.outside.forget_before(now_ns(self.start));
    }

    fn end(&mut self, from: Instant, to: Instant) -> Result<Result<Spent, String>> {
        if let Err(why) = self.listen(to)? {
            return Ok(Err(why));
        }
        let [from, to] = [from, to].map(|at| at.saturating_duration_since(self.start).as_nanos() as u64);
        let joules = self.outside.between(from, to);
        let spent = |joules| Spent { joules, word: "measured", domain: self.outside.words().to_owned() };
        Ok(joules.map(spent).ok_or_else(|| "it said nothing before the point began".to_owned()))
    }

    /// Takes lines in until one has come that is as late as that.
    fn listen(&mut self, until: Instant) -> Result<Result<(), String>> {
        let (begun, until) = (Instant::now(), until.saturating_duration_since(self.start).as_nanos() as u64);
        let mut complaint = String::new();
        while self.outside.last_ns().is_none_or(|last| last < until) {
            if self.program.overflowed() {
                return Ok(Err("it writes faster than a point can read".to_owned()));
            }
            match self.program.next(EVERY)? {
                Next::Line(line) if line.from == Stream::Error => {
                    complaint = format!(" ({})", line.text.trim())
                }
                Next::Line(line) => {
                    let at = line.at.saturating_duration_since(self.start).as_nanos() as u64;
                    if let Err(why) = self.outside.line(&line.text, at) {
                        return Ok(Err(why.to_string()));
                    }
                }
                Next::Quiet if begun.elapsed() < PATIENCE => {}
                Next::Quiet => return Ok(Err(format!("it said nothing for {PATIENCE:?}{complaint}"))),
                Next::End => return Ok(Err(format!("it ended{complaint}"))),
            }
        }
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use wattlock_meter::{About, Boundary, Gone, Measures, Sensor};

    use super::*;

    /// The joules of two spells with a meter, and what was done in each.
    fn joules_by(meter: &str) -> Option<Joules> {
        let mut watch = Watch::new(Some(meter)).unwrap();
        watch.per(Per::Byte);
        for _ in 0..2 {
            watch.begin();
            thread::sleep(Duration::from_millis(20));
            let overflows = |source: &Source| match source {
                Source::Outside(instrument) => instrument.program.overflowed(),
                Source::Counters(_) | Source::Lost => true,
            };
            // One that writes without pause has to be so far that it shows.
            while meter.starts_with("yes ") && !overflows(&watch.source) {
                thread::sleep(Duration::from_millis(1));
            }
            let spell = watch.end().unwrap();
            assert!(spell.wall >= Duration::from_millis(20) && spell.cpu_share() >= 0.0);
            watch.worked(10.0);
        }
        assert!(watch.busy().is_some_and(|busy| (0.0..=1.0).contains(&busy)), "{:?}", watch.busy());
        watch.joules(false)
    }

    #[test]
    fn an_outside_meter_of_totals_or_watts_has_joules() {
        let totals = joules_by("n=0; while :; do echo J $n; n=$((n+1)); sleep 0.01; done").unwrap();
        assert_eq!((totals.per, totals.word, &*totals.domain), (Per::Byte, "measured", "outside meter"));
        assert!(totals.value > 0.0);
        let watts = joules_by("while :; do echo W 100; sleep 0.01; done").unwrap();
        assert_eq!(watts.domain, "outside meter, watts integrated");
        // Two spells of at least 20 ms, in each of which ten bytes were done.
        assert!(watts.value >= 100.0 * 0.04 / 20.0 * 0.999, "{watts:?}");
    }

    #[test]
    fn an_outside_meter_that_talks_nonsense_ends_or_is_not_there_has_none() {
        for meter in [
            "echo hello; sleep 100",
            "echo J 1; echo J 2; echo W 3; sleep 100",
            "echo W 5",
            "echo W 5; sleep 0.03; exit 1",
            "echo no device >&2; exit 1",
            "/no/such/meter",
            "yes W 100",
        ] {
            assert_eq!(joules_by(meter), None, "{meter}");
        }
    }

    #[test]
    fn why_an_outside_meter_failed_is_told_with_its_own_words() {
        let Err(why) = Instrument::start("echo no device >&2; exit 1").unwrap() else { panic!("it works") };
        assert_eq!(why, "it ended (no device)");
        let Err(why) = Instrument::start("echo 5 W").unwrap() else { panic!("it works") };
        assert_eq!(why, "`5 W` is neither `J TOTAL` nor `W NOW`");
    }

    #[test]
    fn the_machines_counters_or_their_model_have_joules() {
        let mut watch = Watch::new(None).unwrap();
        watch.begin();
        let begun = Instant::now();
        let mut sum = 0_u64;
        // The model goes by ticks of a hundredth of a second.
        while begun.elapsed() < Duration::from_millis(100) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        watch.end().unwrap();
        assert_eq!(watch.joules(false), None, "nothing was done");
        watch.worked(2.0);
        let joules = watch.joules(false).unwrap();
        assert_eq!((joules.low, joules.high, joules.rounds), (joules.value, joules.value, 1));
        assert!(joules.value > 0.0 && ["measured", "modelled"].contains(&joules.word), "{joules:?}");
        assert_eq!(watch.last_joules(false), Some(joules.value * 2.0));
        watch.spent(5.0, "modelled", "another");
        assert_eq!(watch.joules(false).unwrap().value, 2.5);
    }

    /// Counts so many joules a look.
    struct Counter(About, u64);

    impl Sensor for Counter {
        fn about(&self) -> &About {
            &self.0
        }

        fn read(&mut self) -> Result<u64, Gone> {
            self.1 += 7;
            Ok(self.1)
        }
    }

    #[test]
    fn a_board_is_measured_alone_only_where_it_did_the_work() {
        let counter = |boundary, part: &str| -> Box<dyn Sensor> {
            let measures = Measures::Energy { joules: 1.0, wraps_after: None };
            let (part, detail) = (part.to_owned(), String::new());
            Box::new(Counter(About { source: "test", boundary, part, detail, measures }, 0))
        };
        let read = |sensors| {
            let mut meter = Meter::of(sensors);
            meter.start(0);
            meter.finish(1_000_000_000)
        };
        let board = read(vec![counter(Boundary::Board, "gpu-0")]);
        let with = spent(&board, true).unwrap();
        assert_eq!(
            (with.joules, with.word, &*with.domain),
            (7.0, "measured", "gpu-0, without the processors")
        );
        // There is no model here either.
        assert_eq!(spent(&board, false), None);
        let two = read(vec![counter(Boundary::Board, "gpu-0"), counter(Boundary::Board, "gpu-1")]);
        assert_eq!(spent(&two, true), None, "one of them was idle");
        // Where this machine has no counter of its own.
        let mut here = Meter::discover(&places());
        here.start(0);
        let here = here.finish(1_000_000_000);
        if spent(&here, false).is_some_and(|spent| spent.word == "modelled") {
            assert_eq!(spent(&here, true), None, "a board has no model");
        }
        let both = read(vec![counter(Boundary::Package, "package-0"), counter(Boundary::Board, "gpu-0")]);
        let (with, without) = (spent(&both, true).unwrap(), spent(&both, false).unwrap());
        assert_eq!(with, without, "methods are compared within one boundary");
        assert_eq!((with.joules, &*with.domain), (14.0, "package-0 + gpu-0"));
    }

    #[test]
    fn each_spells_joules_are_by_what_was_done_in_it() {
        let mut watch = Watch::new(None).unwrap();
        for (joules, work) in [(6.0, 1.0), (2.0, 2.0), (4.0, 1.0)] {
            watch.begin();
            watch.end().unwrap();
            watch.worked(work);
            watch.spent(joules, "modelled", "a machine");
        }
        let joules = watch.joules(false).unwrap();
        assert_eq!((joules.value, joules.low, joules.high, joules.rounds), (3.0, 1.0, 6.0, 3));
        watch.begin();
        watch.end().unwrap();
        watch.spent(1.0, "modelled", "a machine");
        assert_eq!(watch.joules(false), None, "in the last nothing was done");
    }
}
