//! One point, by the bench: a process that measures it and answers with one JSON object, or does not.
//!
//! It believes nothing: an answer for another door, of another form, with figures that cannot be, is a failure with a
//! reason. Invariant: when a call returns, the process and all that it started have ended, whatever they did.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use wattlock_shell::INTERRUPTED;
use wattlock_shell::process::ending_with_us;
use wattlock_shell::program::{BENCH, NotInstalled};

use super::grid::{ADAPTIVE, INSTRUCTION, Point, SOFTWARE};
use super::remains;

/// How long an interrupted or overdue bench may clean up: it unmounts and ends servers.
const GRACE: Duration = Duration::from_secs(10);
/// Between two looks at it.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// More than this is no answer.
const MOST_BYTES: u64 = 1 << 20;

/// The program of benches that lies beside this one.
///
/// # Errors
/// [`NotInstalled`].
pub fn beside() -> Result<PathBuf> {
    let own =
        std::env::current_exe().and_then(|path| path.canonicalize()).context("where this program is")?;
    let program = own.with_file_name(BENCH);
    if program.is_file() { Ok(program) } else { Err(NotInstalled(BENCH).into()) }
}

/// How points are measured.
#[derive(Debug, Clone)]
pub struct Bench {
    /// The program.
    pub program: PathBuf,
    /// Of one round.
    pub seconds: f64,
    /// Rounds of a point.
    pub rounds: u32,
    /// An outside meter.
    pub meter: Option<String>,
}

/// A measured quantity.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Figure {
    /// The median of the rounds.
    pub value: f64,
    /// The lowest of them.
    pub low: f64,
    /// The highest.
    pub high: f64,
    /// The unit of all three.
    pub unit: String,
    /// How many rounds there were.
    pub rounds: u32,
}

/// Joules a byte or an operation.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Joules {
    /// Joules for one: the median of the rounds.
    pub value: f64,
    /// The lowest of them; without it there was one round.
    low: Option<f64>,
    /// The highest.
    high: Option<f64>,
    /// How many rounds there were.
    rounds: Option<u32>,
    /// `byte` or `operation`.
    pub per: String,
    /// `measured` or `modelled`.
    pub word: String,
    /// What was metered, or by which model.
    #[serde(default)]
    pub domain: String,
}

impl Joules {
    /// The lowest and the highest round.
    pub fn spread(&self) -> [f64; 2] {
        [self.low.unwrap_or(self.value), self.high.unwrap_or(self.value)]
    }

    /// Work for each joule: the round with most joules has the least.
    pub fn inverse(&self) -> Figure {
        let [low, high] = self.spread();
        let unit = format!("{}/J", self.per);
        let rounds = self.rounds.unwrap_or(1);
        Figure { value: 1.0 / self.value, low: 1.0 / high, high: 1.0 / low, unit, rounds }
    }

    /// Whether they can be.
    fn are_joules(&self) -> bool {
        let [low, high] = self.spread();
        low > 0.0 && low <= self.value && self.value <= high && high.is_finite()
    }
}

/// What the bench says of a point that it measured.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Measured {
    /// By name.
    pub figures: BTreeMap<String, Figure>,
    /// If there is a counter, a model or an outside meter.
    pub joules: Option<Joules>,
    /// What the point may have used.
    #[serde(default)]
    pub device: String,
    /// Which engine did what.
    #[serde(default)]
    pub engines: Vec<String>,
    /// The share of the machine that other processes used.
    pub busy: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Answer {
    schema: u32,
    door: String,
    given: Map<String, Json>,
    policy: String,
    cannot: Option<String>,
    #[serde(flatten)]
    rest: Json,
}

/// What became of a point.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Measured, with every key as it was used.
    Measured(Measured, String),
    /// It cannot run here; why.
    Cannot(String, String),
    /// Something broke, or the answer is none; why.
    Failed(String),
    /// The user ended the run.
    Interrupted,
}

/// Keys and their values as one text, in the order of names.
fn words(given: &Map<String, Json>) -> String {
    let word = |(key, value): (&String, &Json)| match value {
        Json::String(text) => format!("{key}={text}"),
        other => format!("{key}={other}"),
    };
    given.iter().map(word).collect::<Vec<_>>().join(" ")
}

impl Bench {
    /// Measures a point within so much time.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn measure(&self, point: &Point, emulate: Option<&str>, within: Duration) -> Result<Outcome> {
        let mut command = Command::new(&self.program);
        command.args(["point", point.door]).args(point.asked().map(|(key, value)| format!("{key}={value}")));
        command.args(["--seconds", &self.seconds.to_string(), "--rounds", &self.rounds.to_string()]);
        command.args(point.policy.iter().flat_map(|policy| ["--policy", policy]));
        command.args(point.settings.iter().flat_map(|setting| ["--set", setting]));
        command.args(emulate.iter().flat_map(|name| ["--emulate", name]));
        command.args(self.meter.iter().flat_map(|meter| ["--meter-command", meter]));
        // A group of its own: an interrupt at the terminal reaches it once, from here.
        let mut command = ending_with_us(&command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = command.spawn().with_context(|| self.program.display().to_string())?;
        Ok(Running::of(started)?.outcome(point, emulate, within))
    }
}

/// A bench at work.
struct Running {
    child: Child,
    group: Option<Pid>,
    said: Receiver<Vec<u8>>,
    complained: Receiver<Vec<u8>>,
}

/// All that comes, up to [`MOST_BYTES`], in a thread of its own: a pipe that is not read stops its writer.
fn read(mut from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.by_ref().take(MOST_BYTES).read_to_end(&mut bytes);
        let _ = sender.send(bytes);
        let _ = std::io::copy(&mut from, &mut std::io::sink());
    });
    receiver
}

/// How it ended.
enum End {
    By(ExitStatus),
    Overdue,
    Interrupted,
    Lost(std::io::Error),
}

impl Running {
    fn of(mut child: Child) -> Result<Running> {
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let said = read(child.stdout.take().context("no standard output")?);
        let complained = read(child.stderr.take().context("no standard error")?);
        Ok(Running { child, group, said, complained })
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, signal);
        }
    }

    /// Waits for its end until then; `None` if it goes on.
    fn wait(&mut self, until: Instant, heed: bool) -> Option<End> {
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(End::By(status)),
                Ok(None) => {}
                Err(error) => return Some(End::Lost(error)),
            }
            if heed && INTERRUPTED.load(Ordering::SeqCst) {
                return Some(End::Interrupted);
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn outcome(mut self, point: &Point, emulate: Option<&str>, within: Duration) -> Outcome {
        let end = self.wait(Instant::now() + within, true).unwrap_or(End::Overdue);
        if matches!(end, End::Interrupted | End::Overdue) {
            self.signal(Signal::TERM);
            if self.wait(Instant::now() + GRACE, false).is_none() {
                self.signal(Signal::KILL);
            }
        }
        let _ = self.child.wait();
        // Before its outputs are read to their end: a server that it forgot holds them.
        for what in remains::take_away(self.child.id()) {
            eprintln!("wattlock: the bench left {what}");
        }
        let output = self.said.recv_timeout(GRACE).unwrap_or_default();
        let complaint = self.complained.recv_timeout(GRACE).unwrap_or_default();
        let complaint = String::from_utf8_lossy(&complaint).into_owned();
        // The hint below a usage error says nothing of why.
        let says = |line: &&str| !line.trim().is_empty() && !line.starts_with("Try '");
        let last = complaint.lines().rev().find(says).unwrap_or_default();
        let last = last.trim().strip_prefix("wattlock: ").unwrap_or(last.trim());
        match end {
            End::Interrupted => Outcome::Interrupted,
            End::Overdue => Outcome::Failed(format!("no answer within {:.0} s", within.as_secs_f64())),
            End::Lost(error) => Outcome::Failed(format!("lost sight of the bench: {error}")),
            End::By(_) if INTERRUPTED.load(Ordering::SeqCst) => Outcome::Interrupted,
            End::By(status) if status.success() => {
                answer(&output, point, emulate).unwrap_or_else(Outcome::Failed)
            }
            End::By(status) => Outcome::Failed(match (last, status.signal()) {
                ("", Some(signal)) => format!("the bench was killed by signal {signal}"),
                ("", None) => {
                    format!("the bench ended with {} and said nothing", status.code().unwrap_or(-1))
                }
                (said, Some(signal)) => format!("{said} (killed by signal {signal})"),
                (said, None) => said.to_owned(),
            }),
        }
    }
}

/// That the answer is of this point: its door, every key with its value, its policy.
fn same(answer: &Answer, point: &Point) -> Result<(), String> {
    if answer.schema != 1 {
        return Err(format!("the answer's form is {}, not 1", answer.schema));
    }
    if answer.door != point.door {
        return Err(format!("the answer is of door {}, not {}", answer.door, point.door));
    }
    for (key, asked) in point.asked() {
        let used = answer.given.get(key).ok_or_else(|| format!("the answer does not say {key}="))?;
        let used = used.as_str().map_or_else(|| used.to_string(), str::to_owned);
        let number = |text: &str| text.parse::<f64>().ok();
        let alike = number(&used).zip(number(asked)).is_some_and(|(one, other)| one == other);
        if used != asked && !alike {
            return Err(format!("the answer is of {key}={used}, not {asked}"));
        }
    }
    let policy = point.policy.unwrap_or(ADAPTIVE);
    if answer.policy != policy {
        return Err(format!("the answer is of policy {}, not {policy}", answer.policy));
    }
    Ok(())
}

/// That the answer's device is the one that was asked for. A device that is emulated may have had nothing to do.
fn right_device(device: &str, point: &Point, emulate: Option<&str>) -> Result<(), String> {
    let own = point.asked().find(|(key, _)| *key == "machine").map(|(_, machine)| machine);
    let on_cpu = point.policy.is_some_and(|policy| [SOFTWARE, INSTRUCTION].contains(&policy));
    // Without `--emulate` a point may use what the machine has, and that is no model.
    let (wanted, right) = match emulate.or(own.filter(|own| *own == "k20m")) {
        _ if on_cpu || own == Some("cpu") => ("none".to_owned(), device == "none"),
        Some(model) => {
            let wanted = format!("emulated {model}");
            let right = device.strip_suffix(", idle").unwrap_or(device) == wanted;
            (wanted, right)
        }
        None => ("one of this machine".to_owned(), !device.starts_with("emulated ")),
    };
    match right {
        true => Ok(()),
        false => Err(format!("the device was lost or never there: it is \"{device}\", not {wanted}")),
    }
}

/// What the bench says of the point, checked.
fn answer(output: &[u8], point: &Point, emulate: Option<&str>) -> Result<Outcome, String> {
    let text = std::str::from_utf8(output).map_err(|_| "the answer is no text".to_owned())?;
    if text.trim().is_empty() {
        return Err("no answer".to_owned());
    }
    let answer: Answer =
        serde_json::from_str(text).map_err(|error| format!("the answer is no answer: {error}"))?;
    same(&answer, point)?;
    let given = words(&answer.given);
    if let Some(why) = answer.cannot {
        return Ok(Outcome::Cannot(why, given));
    }
    let mut measured =
        Measured::deserialize(answer.rest).map_err(|error| format!("the answer lacks figures: {error}"))?;
    if measured.figures.is_empty() {
        return Err("the answer has no figure".to_owned());
    }
    right_device(&measured.device, point, emulate)?;
    for (name, figure) in &measured.figures {
        let Figure { value, low, high, .. } = *figure;
        if !(value.is_finite() && value >= 0.0 && low <= value && value <= high && high.is_finite()) {
            return Err(format!("{name} cannot be {value} between {low} and {high}"));
        }
    }
    // A coarse counter may have stood still for a round: then there is no work for a joule to be told.
    measured.joules = measured.joules.filter(|joules| joules.low != Some(0.0) || joules.value <= 0.0);
    if measured.joules.as_ref().is_some_and(|joules| !joules.are_joules()) {
        return Err("the joules are no joules".to_owned());
    }
    if measured.busy.is_some_and(|busy| !(0.0..=1.0).contains(&busy)) {
        return Err("busy is no share".to_owned());
    }
    Ok(Outcome::Measured(measured, given))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn point() -> Point {
        Point {
            door: "cipher",
            keys: vec![("bytes", "1024".into()), ("cipher", "aes-256-cbc".into())],
            ..Point::default()
        }
    }

    fn of(change: impl Fn(&mut Json)) -> Result<Outcome, String> {
        let mut text = json!({
            "schema": 1, "door": "cipher", "given": {"bytes": 1024, "cipher": "aes-256-cbc", "processes": 1},
            "policy": "adaptive",
            "figures": {"throughput": {"value": 2.0, "low": 1.0, "high": 3.0, "unit": "kB/s", "rounds": 2}},
            "joules": null, "device": "none", "engines": [], "busy": 0.1});
        change(&mut text);
        answer(format!("{text}\n").as_bytes(), &point(), None)
    }

    #[test]
    fn an_answer_is_taken_as_it_stands() {
        let Ok(Outcome::Measured(measured, given)) = of(|_| {}) else { panic!() };
        assert_eq!(measured.figures["throughput"].value, 2.0);
        assert_eq!((measured.busy, measured.device.as_str()), (Some(0.1), "none"));
        assert_eq!(given, "bytes=1024 cipher=aes-256-cbc processes=1");
        let cannot = of(|text| (text["figures"], text["cannot"]) = (Json::Null, json!("no cipher")));
        let given = "bytes=1024 cipher=aes-256-cbc processes=1".to_owned();
        assert_eq!(cannot, Ok(Outcome::Cannot("no cipher".into(), given)));
    }

    #[test]
    fn an_answer_that_cannot_be_is_a_failure_with_a_reason() {
        type Lie = (fn(&mut Json), &'static str);
        let stood = of(|text| {
            text["joules"] = json!({"value": 2.0, "low": 0.0, "high": 3.0, "per": "byte", "word": "measured"})
        });
        assert!(matches!(stood, Ok(Outcome::Measured(Measured { joules: None, .. }, _))), "{stood:?}");
        let lies: [Lie; 16] = [
            (|text| text["schema"] = json!(2), "form is 2"),
            (|text| text["door"] = json!("https"), "of door https"),
            (|text| text["given"]["bytes"] = json!("2048"), "bytes=2048, not 1024"),
            (|text| text["given"] = json!({"bytes": 1024}), "does not say cipher="),
            (|text| text["given"]["cipher"] = json!("aes-128-cbc"), "cipher=aes-128-cbc, not aes-256-cbc"),
            (|text| text["policy"] = json!("qweb"), "of policy qweb, not adaptive"),
            (|text| text["device"] = json!("emulated dh8970"), "not one of this machine"),
            (|text| text["figures"] = json!({}), "no figure"),
            (|text| text["figures"] = json!("fast"), "lacks figures"),
            (|text| text["figures"]["throughput"]["value"] = json!(-1.0), "cannot be -1"),
            (|text| text["figures"]["throughput"]["low"] = json!(2.5), "cannot be 2"),
            (|text| text["figures"]["throughput"]["value"] = Json::Null, "lacks figures"),
            (|text| text["joules"] = json!({"value": 0.0, "per": "byte", "word": "measured"}), "no joules"),
            (
                |text| {
                    text["joules"] =
                        json!({"value": 2.0, "low": 2.5, "high": 3.0, "per": "byte", "word": "measured"})
                },
                "no joules",
            ),
            (|text| text["busy"] = json!(1.5), "no share"),
            (|text| *text = json!([1]), "no answer"),
        ];
        for (lie, said) in lies {
            let why = of(lie).unwrap_err();
            assert!(why.contains(said), "{why}: {said}");
        }
        assert!(
            answer(b"\n", &point(), None).is_err()
                && answer(b"{} {}", &point(), None).is_err()
                && answer(b"\xff", &point(), None).is_err()
        );
    }

    #[test]
    fn the_round_with_most_joules_has_least_work_for_each() {
        let joules = |spread: Json| {
            let mut all = json!({"value": 0.5, "per": "byte", "word": "measured", "domain": "package"});
            all.as_object_mut().unwrap().extend(spread.as_object().unwrap().clone());
            Joules::deserialize(all).unwrap()
        };
        let figure = joules(json!({"low": 0.25, "high": 1.0, "rounds": 3})).inverse();
        assert_eq!((figure.value, figure.low, figure.high, figure.rounds), (2.0, 1.0, 4.0, 3));
        assert_eq!(figure.unit, "byte/J");
        let old = joules(json!({})).inverse();
        assert_eq!((old.value, old.low, old.high, old.rounds), (2.0, 2.0, 2.0, 1));
    }

    #[test]
    fn a_device_is_the_one_that_was_asked_for() {
        let by = |policy| Point { policy: Some(policy), ..point() };
        let stream = |machine: &str| Point {
            door: "stream",
            keys: vec![("machine", machine.to_owned())],
            ..Point::default()
        };
        let right = |device: &str, point: &Point, emulate| right_device(device, point, emulate).is_ok();
        for (device, emulate, fits) in [
            ("emulated k20m", Some("k20m"), true),
            ("emulated k20m, idle", Some("k20m"), true),
            ("emulated k20m2", Some("k20m"), false),
            ("emulated h200", Some("k20m"), false),
            ("NVIDIA H200", Some("k20m"), false),
            ("none", Some("k20m"), false),
            ("", Some("k20m"), false),
            ("NVIDIA H200", None, true),
            ("none", None, true),
            ("emulated k20m", None, false),
        ] {
            assert_eq!(right(device, &by("offload"), emulate), fits, "{device} {emulate:?}");
        }
        assert!(
            right("none", &by(SOFTWARE), Some("k20m"))
                && !right("emulated k20m", &by(SOFTWARE), Some("k20m"))
        );
        assert!(right("emulated k20m", &stream("k20m"), None) && !right("none", &stream("k20m"), None));
        assert!(right("none", &stream("cpu"), None) && !right("NVIDIA H200", &stream("cpu"), None));
        assert!(right("NVIDIA H200", &stream("gpu"), None) && !right("emulated k20m", &stream("gpu"), None));
    }
}
