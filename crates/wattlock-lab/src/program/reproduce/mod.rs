//! `wattlock lab reproduce`: a paper's grid, measured point by point through the doors by the bench that lies beside this
//! program. What was published and what the lab simulates stand in the same line.
//!
//! It measures nothing itself and fills nothing in: a point that cannot run, that fails or that is not reached has a row that
//! says so. Every measured point is on disk before the next begins ([`csv`]).

mod bench;
mod csv;
mod grid;
mod page;
mod redraw;
mod remains;
mod shape;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use wattlock::profile::MachineKey;
use wattlock_door::Document;
use wattlock_lab::Error;
use wattlock_shell::setup::{self, Choice};
use wattlock_shell::{INTERRUPTED, text};

use self::bench::{Bench, Measured};
use self::csv::{Identity, Kept, Line, SCHEMA};
use self::grid::{Extent, Figure, PER_JOULE, PROFILED, Paper, Point, grid};
use self::page::Outcome;

/// A default run starts no point after this.
const DEFAULT_TIME: Duration = Duration::from_secs(9 * 60 + 30);

/// What is run, and where it goes
#[derive(Debug, Args)]
pub struct Command {
    /// eeca, qweb, lecpaes, aca-sds, eep, or all
    #[arg(value_parser = papers)]
    paper: Papers,
    /// One of its figures or tables, `table2` (--list names them)
    figure: Option<String>,
    /// Name figures and points and run nothing
    #[arg(long)]
    list: bool,
    /// The published grid. Default: a part of it, in ten minutes at most
    #[arg(long)]
    full: bool,
    /// Go on in the CSV of a run that ended early. What is in it is not run again
    #[arg(long)]
    resume: bool,
    /// Run nothing: draw the page and the pictures anew from --csv, of whatever commit, machine and grid it is
    #[arg(long, requires = "csv",
          conflicts_with_all = ["resume", "list", "json", "meter_command", "full", "no_emulate", "limit"])]
    redraw: bool,
    /// Where each point goes as soon as it is measured [default: reproduce-PAPER.csv]
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// One JSON object a line on standard output, one for each quantity of a point, in place of tables
    #[arg(long)]
    json: bool,
    /// Also write a page with the papers' plots; it opens from disk, without a network
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Also write one picture for each paper into this folder, reproduce-PAPER.svg
    #[arg(long, value_name = "FOLDER")]
    pictures: Option<PathBuf>,
    /// An outside meter: a command whose lines are `J TOTAL` or `W NOW`
    #[arg(long, value_name = "CMD")]
    meter_command: Option<String>,
    /// Without a device, emulate none: what needs one is a row that says so
    #[arg(long)]
    no_emulate: bool,
    /// Longest time of one point [default: 60, with --full 1800]
    #[arg(long, value_name = "SECONDS", value_parser = text::parse_seconds)]
    limit: Option<f64>,
    /// The program that measures [default: wattlock-bench beside this program]
    #[arg(long, value_name = "PROGRAM", hide = true)]
    bench: Option<PathBuf>,
}

#[derive(Debug, Clone)]
struct Papers(Vec<Paper>);

fn papers(name: &str) -> Result<Papers, String> {
    match name {
        "all" => Ok(Papers(Paper::value_variants().to_vec())),
        name => Paper::from_str(name, false)
            .map(|paper| Papers(vec![paper]))
            .map_err(|_| "one of eeca, qweb, lecpaes, aca-sds, eep, all".to_owned()),
    }
}

/// The device of a paper: the emulated one that stands for it, or what the machine has.
fn emulated(paper: Paper, command: &Command, choice: &Choice, gpu: bool) -> Option<String> {
    match (&choice.emulate, command.no_emulate || gpu && paper.wants_gpu()) {
        (Some(name), _) => Some(name.clone()),
        (None, true) => None,
        (None, false) => Some(paper.model().to_owned()),
    }
}

/// Gives points that lack a device their reason.
fn withhold(figure: &mut Figure, emulated: Option<&str>, gpu: bool) {
    let (own, nothing) = (figure.paper.name(), emulated.is_none() && !gpu);
    for point in figure.points.iter_mut().filter(|point| point.cannot.is_none()) {
        let needs = point.policy.is_some_and(|policy| policy == "offload" || policy == own)
            || matches!(point.by, Some(("rule", "gp" | "lecpaes")));
        let clocked = point.asked().any(|(key, _)| key == "clock");
        point.cannot = if nothing && needs {
            Some("no accelerator on this machine, and none is emulated".to_owned())
        } else if clocked && emulated != Some(Paper::Eep.model()) {
            Some("these clocks are the emulated k20m's; no door sets a real GPU's".to_owned())
        } else {
            None
        };
    }
}

/// Runs the command.
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    if command.redraw {
        return redraw::run(command, choice);
    }
    if command.no_emulate && choice.emulate.is_some() {
        return Err(
            wattlock_door::Error::Usage("--emulate and --no-emulate exclude each other".into()).into()
        );
    }
    if choice.emulate.is_some() {
        // Before anything starts, as the bench says it of a point.
        setup::engines(choice).map_err(|error| wattlock_door::Error::Usage(format!("--emulate: {error}")))?;
    }
    let gpu = setup::gpu().is_ok();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let device = |paper| emulated(paper, command, choice, gpu);
    let mut figures = Vec::new();
    for paper in &command.paper.0 {
        let machine = match (device(*paper), gpu) {
            (Some(_), _) => "k20m",
            (None, true) => "gpu",
            (None, false) => "cpu",
        };
        figures.extend(grid(*paper, Extent { full: command.full, threads, machine })?);
    }
    retain(&mut figures, command.figure.as_deref())?;
    for figure in &mut figures {
        let emulated = device(figure.paper);
        withhold(figure, emulated.as_deref(), gpu);
    }
    if command.list {
        return list(&figures);
    }
    measure(command, &figures, &device)
}

/// Keeps the figure that was asked for, if one was.
fn retain(figures: &mut Vec<Figure>, asked: Option<&str>) -> Result<()> {
    let Some(name) = asked else { return Ok(()) };
    let known = figures.iter().flat_map(|figure| figure.names).copied().collect::<Vec<_>>().join(", ");
    figures.retain(|figure| figure.names.contains(&name));
    if figures.is_empty() {
        return Err(Error::option("FIGURE", format!("among {known}")).into());
    }
    Ok(())
}

/// All points of a grid.
fn keys(figures: &[Figure]) -> BTreeSet<[String; 5]> {
    let points = figures.iter().flat_map(|figure| figure.points.iter().map(move |point| (figure, point)));
    points.map(|(figure, point)| page::key(figure, point)).collect()
}

/// What the grid is, without running it.
fn list(figures: &[Figure]) -> Result<()> {
    let row = |figure: &Figure| {
        let cannot = figure.points.iter().filter(|point| point.cannot.is_some()).count();
        let cells = figure.points.iter().flat_map(|point| &point.cells);
        vec![
            figure.paper.name().to_owned(),
            figure.names.join(" "),
            figure.points.len().to_string(),
            cannot.to_string(),
            cells.filter(|cell| cell.published.is_some()).count().to_string(),
            figure.title.to_owned(),
        ]
    };
    let header = ["paper", "figures", "points", "cannot run here", "published cells", "about"];
    put!("{}", text::table(&header, &figures.iter().map(row).collect::<Vec<_>>()));
    say!("");
    for figure in figures {
        for point in &figure.points {
            let why = point.cannot.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            say!(
                "{} {} {} {} {}{why}",
                figure.paper.name(),
                figure.id(),
                point.door,
                point.name(),
                point.method
            );
        }
    }
    Ok(())
}

/// How a run ended.
enum End {
    Whole,
    Interrupted,
    /// The time of a default run is over; so many points are left.
    Over(usize),
    Failed(anyhow::Error),
}

impl End {
    /// Why it ended before its grid, if it did.
    fn remark(&self) -> Option<String> {
        match self {
            End::Whole => None,
            End::Interrupted => Some("The run was interrupted: --resume goes on.".to_owned()),
            End::Over(left) => Some(format!(
                "A default run ends within ten minutes: {left} points are left, --resume goes on."
            )),
            End::Failed(error) => Some(format!("The run ended early: {error:#}")),
        }
    }
}

fn measure(command: &Command, figures: &[Figure], device: &dyn Fn(Paper) -> Option<String>) -> Result<()> {
    let bench = Bench {
        program: command.bench.clone().map_or_else(bench::beside, Ok)?,
        seconds: if command.full { 3.0 } else { 1.0 },
        rounds: if command.full { 5 } else { 2 },
        meter: command.meter_command.clone(),
    };
    let identity = identity(command, device);
    let path =
        command.csv.clone().unwrap_or_else(|| format!("reproduce-{}.csv", name(&command.paper.0)).into());
    let places = Places::begin(command)?;
    remains::adopt()?;
    let (kept, lines) = Kept::open(&path, command.resume, &identity)?;
    gone_on(&path, &kept, &lines, figures)?;
    let mut run =
        Run { command, bench, identity, kept, lines, begun: Instant::now(), spent: Duration::ZERO, ran: 0 };
    let end = run.all(figures, device);
    let Run { lines, identity, .. } = run;
    let outcome = Outcome { figures, lines: &lines, commit: &identity.commit, machine: &identity.machine };
    let tally = figures.iter().map(|figure| outcome.tally(figure)).fold([0; 4], |mut sum, one| {
        sum.iter_mut().zip(one).for_each(|(sum, one)| *sum += one);
        sum
    });
    let remark = end.remark();
    // A page that has no room must not hide why the run ended.
    let written = places.write(&outcome, remark.as_deref());
    let shown = if command.json { json(&lines) } else { tables(&outcome) };
    if let Some(calm) = outcome.calm() {
        eprintln!("wattlock: {calm}");
    }
    match (end, remark) {
        (End::Failed(error), _) => return Err(error),
        (End::Interrupted, _) => return Err(wattlock_door::Error::Interrupted.into()),
        (End::Whole | End::Over(_), Some(remark)) => eprintln!("wattlock: {remark}"),
        (End::Whole | End::Over(_), None) => {}
    }
    written.and(shown)?;
    if !command.json {
        let page =
            command.report.as_ref().map_or_else(String::new, |path| format!(", page: {}", path.display()));
        say!("lines: {}{page}", path.display());
    }
    let [measured, cannot, failed, _] = tally;
    let all = measured + cannot + failed;
    ensure!(
        failed == 0,
        "{failed} of {all} points failed: the column `failed` of {} says why",
        path.display()
    );
    Ok(())
}

/// Refuses a file with points that this grid has not, and says what of it was cut.
fn gone_on(path: &Path, kept: &Kept, lines: &[Line], figures: &[Figure]) -> Result<()> {
    let (known, shown) = (keys(figures), wattlock_door::one_line(path));
    if let Some(line) = lines.iter().find(|line| !known.contains(&line.key().map(str::to_owned))) {
        let [paper, figure, _, point, method] = line.key();
        let text = format!("{shown}: {paper} {figure} {point} {method} is no point of this grid");
        return Err(wattlock_door::Error::Usage(text).into());
    }
    if let Some(number) = kept.cut() {
        eprintln!("wattlock: {shown}: what begins in line {number} was cut; its point is measured again");
    }
    Ok(())
}

/// `qweb`, or `all`.
fn name(papers: &[Paper]) -> &'static str {
    match papers {
        [one] => one.name(),
        _ => "all",
    }
}

fn identity(command: &Command, device: &dyn Fn(Paper) -> Option<String>) -> Identity {
    let key = MachineKey::here(&[]);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let devices: Vec<String> =
        command.paper.0.iter().map(|paper| device(*paper).unwrap_or_else(|| "none".into())).collect();
    let grid = format!(
        "{} {} {}, emulated {}{}",
        name(&command.paper.0),
        command.figure.as_deref().unwrap_or("all figures"),
        if command.full { "full" } else { "default" },
        devices.join(" "),
        if command.meter_command.is_some() { ", outside meter" } else { "" }
    );
    Identity {
        commit: env!("WATTLOCK_COMMIT").to_owned(),
        machine: format!("{}, microcode {}, {threads} hardware threads", key.cpu, key.microcode),
        grid,
    }
}

struct Run<'a> {
    command: &'a Command,
    bench: Bench,
    identity: Identity,
    kept: Kept,
    lines: Vec<Line>,
    begun: Instant,
    /// What points took that ran now, and how many they are.
    spent: Duration,
    ran: u32,
}

impl Run<'_> {
    /// Every point that is not in the file yet.
    fn all(&mut self, figures: &[Figure], device: &dyn Fn(Paper) -> Option<String>) -> End {
        let all = || figures.iter().flat_map(|figure| figure.points.iter().map(move |point| (figure, point)));
        let done: BTreeSet<[String; 5]> =
            self.lines.iter().map(|line| line.key().map(str::to_owned)).collect();
        let left: Vec<(&Figure, &Point)> =
            all().filter(|(figure, point)| !done.contains(&page::key(figure, point))).collect();
        let total = all().count();
        for (at, (figure, point)) in left.iter().enumerate() {
            if INTERRUPTED.load(Ordering::SeqCst) {
                return End::Interrupted;
            }
            let rest = DEFAULT_TIME.saturating_sub(self.begun.elapsed());
            if !self.command.full && rest.is_zero() {
                return End::Over(left.len() - at);
            }
            let outcome = match &point.cannot {
                Some(why) => bench::Outcome::Cannot(why.clone(), String::new()),
                None => {
                    let run = left[at..].iter().filter(|(_, point)| point.cannot.is_none()).count();
                    eprintln!(
                        "wattlock: {} of {total}, {} {} {} {}; {}",
                        total - left.len() + at + 1,
                        figure.paper.name(),
                        figure.id(),
                        point.name(),
                        point.method,
                        self.time_left(run)
                    );
                    match self.one(point, device(figure.paper), rest) {
                        Ok(Some(outcome)) => outcome,
                        Ok(None) => return End::Over(left.len() - at),
                        Err(error) => return End::Failed(error),
                    }
                }
            };
            let lines = match outcome {
                bench::Outcome::Interrupted => return End::Interrupted,
                outcome => self.lines_of(figure, point, outcome),
            };
            if let Some(why) = lines.iter().map(|line| &line.failed).find(|why| !why.is_empty()) {
                eprintln!("wattlock: failed: {why}");
            }
            if let Err(error) = self.kept.add(&lines) {
                return End::Failed(error);
            }
            self.lines.extend(lines);
        }
        End::Whole
    }

    /// A point. None if the time of a default run ended it, which says nothing of the point.
    fn one(
        &mut self,
        point: &Point,
        device: Option<String>,
        rest: Duration,
    ) -> Result<Option<bench::Outcome>> {
        let limit = Duration::from_secs_f64(self.command.limit.unwrap_or(if self.command.full {
            1800.0
        } else {
            60.0
        }));
        // The stream's door has machines of its own.
        let device = device.filter(|_| point.uses_device && point.door != "stream");
        let begun = Instant::now();
        let within = if self.command.full { limit } else { limit.min(rest) };
        let outcome = self.bench.measure(point, device.as_deref(), within)?;
        if within < limit && begun.elapsed() >= within && matches!(outcome, bench::Outcome::Failed(_)) {
            return Ok(None);
        }
        self.spent += begun.elapsed();
        self.ran += 1;
        Ok(Some(outcome))
    }

    /// In words, by what points took so far.
    fn time_left(&self, points: usize) -> String {
        if self.ran == 0 {
            return format!("{points} points left");
        }
        let seconds = self.spent.as_secs_f64() / f64::from(self.ran) * points as f64;
        match (seconds / 60.0).ceil() {
            minutes if minutes > 1.0 => format!("about {minutes:.0} minutes left"),
            _ => "about a minute left".to_owned(),
        }
    }

    /// The device that an earlier point of the same door had and this one has not.
    fn lost(&self, point: &Point, measured: &Measured) -> Option<String> {
        let none = |device: &str| matches!(device, "" | "none");
        if !point.uses_device || !none(&measured.device) {
            return None;
        }
        let before = self.lines.iter().rev().find(|line| {
            line.door == point.door
                && line.method == point.method
                && line.value.is_some()
                && !none(&line.device)
        })?;
        Some(format!("the device is lost: points before this one had {}", before.device))
    }

    fn lines_of(&self, figure: &Figure, point: &Point, outcome: bench::Outcome) -> Vec<Line> {
        let [paper, id, door, name, method] = page::key(figure, point);
        let Identity { commit, machine, grid } = self.identity.clone();
        let empty = Line {
            schema: SCHEMA,
            commit,
            machine,
            grid,
            paper,
            figure: id,
            door,
            point: name,
            method,
            ..Line::default()
        };
        let lost = match &outcome {
            bench::Outcome::Measured(measured, _) => self.lost(point, measured),
            _ => None,
        };
        let outcome = lost.map_or(outcome, bench::Outcome::Failed);
        let mut lines = match outcome {
            bench::Outcome::Measured(measured, given) => {
                measured_lines(figure, point, &empty, &measured, &given)
            }
            bench::Outcome::Cannot(cannot, given) => reasons(figure, point, &Line { cannot, given, ..empty }),
            bench::Outcome::Failed(failed) => reasons(figure, point, &Line { failed, ..empty }),
            bench::Outcome::Interrupted => Vec::new(),
        };
        let count = lines.len() as u32;
        lines.iter_mut().for_each(|line| line.lines = count);
        lines
    }
}

/// Why the answer is none to what the figure is of. Joules are there or not.
fn wrong(figure: &Figure, figures: &BTreeMap<&str, bench::Figure>) -> Option<String> {
    let mut wanted = figure.quantities.iter().filter(|quantity| quantity.name != PER_JOULE).peekable();
    let lacks = wanted.peek().filter(|first| !figures.contains_key(first.name));
    if let Some(first) = lacks {
        return Some(format!("the answer has no {}", first.name));
    }
    wanted.find_map(|quantity| {
        let found = figures.get(quantity.name).filter(|found| found.unit != quantity.unit)?;
        Some(format!("{} is in {}, not {}", quantity.name, found.unit, quantity.unit))
    })
}

/// A line for each quantity: those of the figure first.
fn measured_lines(
    figure: &Figure,
    point: &Point,
    empty: &Line,
    measured: &Measured,
    given: &str,
) -> Vec<Line> {
    let mut figures: BTreeMap<&str, bench::Figure> =
        measured.figures.iter().map(|(name, figure)| (name.as_str(), figure.clone())).collect();
    if let Some(joules) = &measured.joules {
        figures.insert(PER_JOULE, joules.inverse());
    }
    if let Some(failed) = wrong(figure, &figures) {
        return reasons(figure, point, &Line { failed, given: given.to_owned(), ..empty.clone() });
    }
    let known: Vec<&str> = figure.quantities.iter().map(|quantity| quantity.name).collect();
    let rest = figures.keys().copied().filter(|name| !known.contains(name));
    let names: Vec<&str> = known.iter().copied().chain(rest).collect();
    let line = |name: &str| {
        let Some(found) = figures.get(name) else {
            return absent_line(figure, point, &Line { given: given.to_owned(), ..empty.clone() }, name);
        };
        let quantity = figure.quantities.iter().find(|quantity| quantity.name == name);
        // A figure in another unit has nothing beside it.
        let alike = quantity.is_some_and(|quantity| quantity.unit == found.unit);
        let cell = point.cell(name).filter(|_| alike);
        let joules = measured.joules.as_ref();
        let word = |of: fn(&bench::Joules) -> &String| joules.map(of).cloned().unwrap_or_default();
        Some(Line {
            quantity: name.to_owned(),
            unit: found.unit.clone(),
            published: cell.and_then(|cell| cell.published),
            simulated: cell.and_then(|cell| cell.simulated),
            value: Some(found.value),
            low: Some(found.low),
            high: Some(found.high),
            rounds: Some(f64::from(found.rounds)),
            device: measured.device.clone(),
            busy: measured.busy,
            joules: joules.map(|joules| joules.value),
            joules_low: joules.map(|joules| joules.spread()[0]),
            joules_high: joules.map(|joules| joules.spread()[1]),
            per: word(|joules| &joules.per),
            word: word(|joules| &joules.word),
            domain: word(|joules| &joules.domain),
            given: given.to_owned(),
            engines: measured.engines.join("; "),
            ..empty.clone()
        })
    };
    names.into_iter().filter_map(line).collect()
}

/// Why a quantity is not in an answer, if something stands beside it.
fn absent_line(figure: &Figure, point: &Point, empty: &Line, name: &str) -> Option<Line> {
    let cannot = match name {
        PER_JOULE => "no joules: no counter, no model, no --meter-command",
        PROFILED => "no perf on this machine, or not for this user",
        _ => "this door has no such figure here",
    };
    let why = Line { cannot: cannot.to_owned(), ..empty.clone() };
    reasons(figure, point, &why).into_iter().find(|line| line.quantity == name)
}

/// A line for each quantity that something stands beside, with the reason in place of a figure.
fn reasons(figure: &Figure, point: &Point, why: &Line) -> Vec<Line> {
    let first = figure.quantities[0].name;
    let known = figure
        .quantities
        .iter()
        .filter(|quantity| [first, PROFILED].contains(&quantity.name) || point.cell(quantity.name).is_some());
    let line = |quantity: &grid::Quantity| {
        let cell = point.cell(quantity.name);
        Line {
            quantity: quantity.name.to_owned(),
            unit: quantity.unit.to_owned(),
            published: cell.and_then(|cell| cell.published),
            simulated: cell.and_then(|cell| cell.simulated),
            ..why.clone()
        }
    };
    known.map(line).collect()
}

fn json(lines: &[Line]) -> Result<()> {
    for line in lines {
        say!("{}", serde_json::to_string(line)?);
    }
    Ok(())
}

fn tables(outcome: &Outcome<'_>) -> Result<()> {
    for figure in outcome.figures {
        say!(
            "{} {}: {} ({})",
            figure.paper.name(),
            figure.names.join(", "),
            figure.title,
            outcome.word(figure)
        );
        put!("{}", text::table(&Outcome::HEADER, &outcome.rows(figure, false)));
        let findings = outcome.findings(figure);
        if !findings.is_empty() {
            say!("");
            put!("{}", text::table(&page::COUNTED, &page::counted(&findings)));
        }
        say!("");
    }
    Ok(())
}

/// Where the page and the pictures go: what takes minutes must not end without a place for them.
struct Places {
    page: Option<Document>,
    pictures: Vec<(Paper, Document)>,
}

impl Places {
    fn begin(command: &Command) -> Result<Places> {
        let begin = |path: &Path| Document::begin(path, true).with_context(|| wattlock_door::one_line(path));
        let page = command.report.as_deref().map(begin).transpose()?;
        let mut pictures = Vec::new();
        if let Some(folder) = &command.pictures {
            std::fs::create_dir_all(folder).with_context(|| wattlock_door::one_line(folder))?;
            for paper in &command.paper.0 {
                pictures.push((*paper, begin(&folder.join(format!("reproduce-{}.svg", paper.name())))?));
            }
        }
        Ok(Places { page, pictures })
    }

    /// Writes the page, and of each paper the first figure that has something to draw.
    fn write(self, outcome: &Outcome<'_>, remark: Option<&str>) -> Result<()> {
        let page = self.page.map(|place| place.write(page::page(outcome, remark).as_bytes()));
        for (paper, place) in self.pictures {
            let mut figures = outcome.figures.iter().filter(|figure| figure.paper == paper);
            if let Some(drawn) = figures.find_map(|figure| page::picture(outcome, figure)) {
                place.write(drawn.as_bytes())?;
            }
        }
        Ok(page.transpose().map(drop)?)
    }
}
