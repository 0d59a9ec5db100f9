//! Power from utilisation, for machines without a counter: `idle + table(utilisation)`.
//!
//! Uncalibrated, the table is a processor family's thermal design power, divided by its threads, along the curve that
//! Teads measured on Intel servers (12 % of it idle, 32 % at a tenth of the load, 75 % at half, 102 % at full; as the
//! Green Software Foundation's Impact Framework gives it, with the warning that it does not generalise well). So its
//! band is wide: half up or down for a known family, more for an unknown one. Calibrated against a counter
//! ([`Model::fit`]), the table is this machine's own, and its band is the largest deviation that was seen.
//!
//! No such model knows which instructions run, at which clock, or what other guests of a shared machine do.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Nanos;
use crate::figure::{Boundary, Figure, Modelled, Range, Value, Window};
use crate::tree::Tree;

/// Layout of a model's file.
const FORMAT: u32 = 1;
/// Version of the built-in numbers; a new one whenever one of them changes.
const BUILT_IN: &str = "built-in 1";
/// Fractions of thermal design power at these utilisations.
const CURVE: [(f64, f64); 4] = [(0.0, 0.12), (0.1, 0.32), (0.5, 0.75), (1.0, 1.02)];
const KNOWN_BAND: f64 = 0.5;
const UNKNOWN_BAND: f64 = 0.7;
/// A fit is never believed more closely than this: the counter has an error of its own.
const LEAST_BAND: f64 = 0.05;
/// `/proc/stat` counts in hundredths of a second on every Linux (`USER_HZ`).
const TICK_SECONDS: f64 = 0.01;
/// Utilisation over less than this is mostly rounding.
const SHORTEST_STEP_NS: Nanos = 90_000_000;

/// Watts a thread at full load: thermal design power of a family's largest part, divided by its threads.
/// Vendor, CPU family, models, name, watts, from which part.
const FAMILIES: [(&str, u32, &[u32], &str, f64); 14] = [
    ("GenuineIntel", 6, &[85], "Skylake and Cascade Lake server", 3.66), // 8280: 205 W, 56 threads
    ("GenuineIntel", 6, &[106, 108], "Ice Lake server", 3.38),           // 8380: 270 W, 80
    ("GenuineIntel", 6, &[143], "Sapphire Rapids", 2.92),                // 8490H: 350 W, 120
    ("GenuineIntel", 6, &[207], "Emerald Rapids", 2.73),                 // 8592+: 350 W, 128
    ("GenuineIntel", 6, &[173, 174], "Granite Rapids", 1.95),            // 6980P: 500 W, 256
    ("GenuineIntel", 6, &[175], "Sierra Forest", 2.29),                  // 6780E: 330 W, 144
    ("AuthenticAMD", 23, &[1], "Zen server", 2.81),                      // 7601: 180 W, 64
    ("AuthenticAMD", 23, &[49], "Zen 2 server", 1.76),                   // 7742: 225 W, 128
    ("AuthenticAMD", 25, &[1], "Zen 3 server", 2.19),                    // 7763: 280 W, 128
    ("AuthenticAMD", 25, &[17], "Zen 4 server", 1.88),                   // 9654: 360 W, 192
    ("AuthenticAMD", 25, &[160], "Zen 4c server", 1.41),                 // 9754: 360 W, 256
    ("AuthenticAMD", 26, &[2], "Zen 5 server", 1.95),                    // 9755: 500 W, 256
    ("AuthenticAMD", 26, &[17], "Zen 5c server", 1.30),                  // 9965: 500 W, 384
    ("", 0, &[], "unknown family", 3.0),
];

/// A model of the processors' power.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Layout version.
    pub format: u32,
    /// Version printed with its figures; every set of numbers has its own.
    pub version: String,
    /// Model name of the CPU it is for.
    pub cpu: String,
    /// How many CPUs (threads) it is for.
    pub cpus: u32,
    /// The boundary of its figures.
    pub boundary: Boundary,
    /// Its basis, in a sentence.
    pub origin: String,
    /// Watts of the idle machine.
    pub idle_w: f64,
    /// Utilisation (0 to 1) and watts above idle, ascending in both, from 0 to 1.
    pub table: Vec<(f64, f64)>,
    /// Relative half-width of the error band.
    pub band: f64,
}

/// One step of a load ladder: the share of busy CPUs, and a counter's power.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rung {
    /// Utilisation, 0 to 1.
    pub utilisation: f64,
    /// Watts.
    pub watts: f64,
}

/// Why there is no model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What is in it.
    #[error("{path}: not a model: {why}")]
    Malformed {
        /// Which.
        path: PathBuf,
        /// Where it is wrong.
        why: String,
    },
    /// It is for another machine.
    #[error("{path}: for {there}, this is {here}")]
    Stale {
        /// Which.
        path: PathBuf,
        /// The machine it is for.
        there: String,
        /// This machine.
        here: String,
    },
    /// The ladder does not determine one.
    #[error("no model fits: {0}")]
    NoFit(&'static str),
}

impl Model {
    /// The built-in model for the machine of a tree.
    pub fn built_in(tree: &dyn Tree) -> Model {
        let machine = Machine::of(tree);
        let of_family = |row: &&(&str, u32, &[u32], &str, f64)| {
            row.0 == machine.vendor && row.1 == machine.family && row.2.contains(&machine.model)
        };
        let known = FAMILIES.iter().find(of_family);
        let (.., name, watts) = *known.unwrap_or(&FAMILIES[FAMILIES.len() - 1]);
        let full = watts * f64::from(machine.cpus);
        let idle = CURVE[0].1;
        Model {
            format: FORMAT,
            version: format!("{BUILT_IN}, {name}"),
            cpu: machine.name,
            cpus: machine.cpus,
            boundary: Boundary::Package,
            origin: format!(
                "thermal design power a thread ({watts} W, {name}) along a curve measured elsewhere; not calibrated here"
            ),
            idle_w: full * idle,
            table: CURVE.iter().map(|(utilisation, share)| (*utilisation, full * (share - idle))).collect(),
            band: if known.is_some() { KNOWN_BAND } else { UNKNOWN_BAND },
        }
    }

    /// Fits idle power and the table to a ladder of loads. The band is the largest relative deviation of any rung from
    /// the table, but no less than 5 %. `now` is in seconds since 1970, for the version; `source` names the counter.
    ///
    /// # Errors
    /// [`ModelError::NoFit`] if the ladder has no idle and no full load, or power does not rise with load.
    pub fn fit(
        tree: &dyn Tree,
        rungs: &[Rung],
        source: &str,
        boundary: Boundary,
        now: u64,
    ) -> Result<Model, ModelError> {
        let mut sorted: Vec<Rung> =
            rungs.iter().copied().filter(|r| r.watts.is_finite() && r.watts > 0.0).collect();
        sorted.sort_by(|a, b| a.utilisation.total_cmp(&b.utilisation));
        let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else {
            return Err(ModelError::NoFit("no rung has watts"));
        };
        if first.utilisation > 0.25 || last.utilisation < 0.75 {
            return Err(ModelError::NoFit("the machine was never idle, or never busy"));
        }
        let steps = means(&sorted);
        let idle_w = steps[0].watts;
        let mut table = vec![(0.0, 0.0)];
        for step in &steps[1..] {
            let (utilisation, watts) = table[table.len() - 1];
            table.push((step.utilisation.max(utilisation), (step.watts - idle_w).max(watts)));
        }
        let end = table[table.len() - 1].1;
        if end <= 0.0 {
            return Err(ModelError::NoFit("power did not rise with load"));
        }
        table.push((1.0, end));
        let machine = Machine::of(tree);
        let mut model = Model {
            format: FORMAT,
            version: format!("calibrated {now}"),
            cpu: machine.name,
            cpus: machine.cpus,
            boundary,
            origin: format!("fitted to {} rungs of load against {source}", rungs.len()),
            idle_w,
            table,
            band: 0.0,
        };
        let deviation = |r: &Rung| ((idle_w + model.above_idle_w(r.utilisation)) / r.watts - 1.0).abs();
        let band = sorted.iter().map(deviation).fold(LEAST_BAND, f64::max);
        if band >= 1.0 {
            return Err(ModelError::NoFit("the same load gave very different watts"));
        }
        model.band = band;
        Ok(model)
    }

    /// Watts above idle at a utilisation: linear between the table's points.
    pub fn above_idle_w(&self, utilisation: f64) -> f64 {
        let after = self.table.partition_point(|(at, _)| *at < utilisation);
        match (after.checked_sub(1).and_then(|before| self.table.get(before)), self.table.get(after)) {
            (Some((x0, y0)), Some((x1, y1))) if x1 > x0 => y0 + (y1 - y0) * (utilisation - x0) / (x1 - x0),
            (_, Some((_, watts))) | (Some((_, watts)), None) => *watts,
            (None, None) => 0.0,
        }
    }

    /// Reads a model and checks that it can be used on the machine of a tree.
    ///
    /// # Errors
    /// [`ModelError`] naming the file.
    pub fn load(path: &Path, tree: &dyn Tree) -> Result<Model, ModelError> {
        let text = std::fs::read(path).map_err(|source| ModelError::Io { path: path.to_owned(), source })?;
        let malformed = |why: String| ModelError::Malformed { path: path.to_owned(), why };
        let model: Model = serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
        model.check().map_err(|why| malformed(why.to_owned()))?;
        let machine = Machine::of(tree);
        if (&model.cpu, model.cpus) != (&machine.name, machine.cpus) {
            let of = |cpu: &str, cpus: u32| format!("{cpus} CPUs of {cpu}");
            let (there, here) = (of(&model.cpu, model.cpus), of(&machine.name, machine.cpus));
            return Err(ModelError::Stale { path: path.to_owned(), there, here });
        }
        Ok(model)
    }

    /// Writes the model so that a reader sees the old file or the new one.
    ///
    /// # Errors
    /// [`ModelError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), ModelError> {
        let failed = |source| ModelError::Io { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{}", std::process::id()));
        let text = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        // What is there is a former process's of the same number, or a link that another user planted.
        let _ = std::fs::remove_file(&partial);
        let written = std::fs::File::create_new(&partial)
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| std::fs::rename(&partial, path));
        written.map_err(|source| {
            let _ = std::fs::remove_file(&partial);
            failed(source)
        })
    }

    fn check(&self) -> Result<(), &'static str> {
        let numbers =
            || [self.idle_w, self.band].into_iter().chain(self.table.iter().flat_map(|(x, y)| [*x, *y]));
        if self.format != FORMAT {
            return Err("another layout");
        }
        if numbers().any(|number| !number.is_finite() || number < 0.0) || self.band >= 1.0 {
            return Err("a number out of range");
        }
        if self.table.is_empty()
            || self.table.windows(2).any(|two| two[1].0 < two[0].0 || two[1].1 < two[0].1)
        {
            return Err("the table does not rise");
        }
        if self.version.is_empty() || self.version.chars().any(char::is_control) {
            return Err("no version");
        }
        Ok(())
    }
}

/// Rungs of about the same utilisation (within 4 %) become one.
fn means(sorted: &[Rung]) -> Vec<Rung> {
    let mut groups: Vec<(Rung, f64)> = Vec::new();
    for rung in sorted {
        match groups.last_mut() {
            Some((mean, count)) if rung.utilisation - mean.utilisation < 0.04 => {
                *count += 1.0;
                mean.utilisation += (rung.utilisation - mean.utilisation) / *count;
                mean.watts += (rung.watts - mean.watts) / *count;
            }
            _ => groups.push((*rung, 1.0)),
        }
    }
    groups.into_iter().map(|(mean, _)| mean).collect()
}

/// The processors, as `/proc` describes them.
struct Machine {
    name: String,
    vendor: String,
    family: u32,
    model: u32,
    cpus: u32,
}

impl Machine {
    fn of(tree: &dyn Tree) -> Machine {
        let info = tree.head("proc/cpuinfo", 2048).unwrap_or_default();
        let field = |wanted: &str| -> String {
            let pairs = info.lines().filter_map(|line| line.split_once(':'));
            let value = pairs.filter(|(key, _)| key.trim() == wanted).map(|(_, value)| value.trim()).next();
            value.unwrap_or("unknown").to_owned()
        };
        let stat = tree.text("proc/stat").unwrap_or_default();
        let is_cpu = |line: &&str| {
            line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        Machine {
            name: field("model name"),
            vendor: field("vendor_id"),
            family: field("cpu family").parse().unwrap_or(0),
            model: field("model").parse().unwrap_or(0),
            cpus: (stat.lines().filter(is_cpu).count() as u32).max(1),
        }
    }
}

/// Clock ticks of all CPUs since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    busy: u64,
    all: u64,
}

impl Ticks {
    /// The count now; `None` where `/proc/stat` cannot be read.
    pub fn read(tree: &dyn Tree) -> Option<Ticks> {
        Ticks::parse(&tree.text("proc/stat").ok()?)
    }

    /// The first line of `/proc/stat` (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal. Time that was
    /// stolen was another guest's: it is not ours and not idle.
    fn parse(text: &str) -> Option<Ticks> {
        let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
        let fields: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
        fields.get(3)?;
        let sum = |wanted: &[usize]| {
            wanted
                .iter()
                .filter_map(|at| fields.get(*at))
                .fold(0, |sum: u64, ticks| sum.saturating_add(*ticks))
        };
        Some(Ticks { busy: sum(&[0, 1, 2, 5, 6]), all: sum(&[0, 1, 2, 3, 4, 5, 6, 7]) })
    }

    /// Utilisation between two looks, 0 to 1; `None` if no tick has passed. The kernel lets idle and waiting time fall now
    /// and then (proc(5)); then busy time seems longer than all.
    pub fn since(self, before: Ticks) -> Option<f64> {
        let (busy, all) = (self.busy.saturating_sub(before.busy), self.all.saturating_sub(before.all));
        (all > 0).then(|| (busy as f64 / all as f64).min(1.0))
    }

    /// The same without so many seconds of processor time, which are the caller's own.
    pub fn others_since(self, before: Ticks, own_s: f64) -> Option<f64> {
        let all = self.all.saturating_sub(before.all) as f64 / 100.0;
        Some((self.since(before)? - own_s / all).max(0.0))
    }
}

/// A model at work: sums its power over a window.
pub(crate) struct Estimate {
    pub(crate) model: Model,
    tree: Arc<dyn Tree>,
    first_ns: Nanos,
    last: Option<(Nanos, Ticks)>,
    above_idle: f64,
    ticked: bool,
}

impl Estimate {
    pub(crate) fn new(model: Model, tree: Arc<dyn Tree>) -> Estimate {
        Estimate { model, tree, first_ns: 0, last: None, above_idle: 0.0, ticked: false }
    }

    pub(crate) fn start(&mut self, now: Nanos) {
        self.first_ns = now;
        self.last = Ticks::read(&*self.tree).map(|ticks| (now, ticks));
        (self.above_idle, self.ticked) = (0.0, false);
    }

    /// Adds the time since the last look. Too short a step waits for the next, unless it is the `end`.
    pub(crate) fn note(&mut self, now: Nanos, end: bool) {
        let Some((then, before)) = self.last else { return };
        if !end && now.saturating_sub(then) < SHORTEST_STEP_NS {
            return;
        }
        let Some(ticks) = Ticks::read(&*self.tree) else { return };
        let Some(utilisation) = ticks.since(before) else { return };
        self.above_idle += self.model.above_idle_w(utilisation) * now.saturating_sub(then) as f64 / 1e9;
        self.ticked = true;
        self.last = Some((now, ticks));
    }

    pub(crate) fn figure(&self, now: Nanos) -> Figure {
        let window = Window { from_ns: self.first_ns, to_ns: now };
        let value = match self.last {
            None => Value::Unknown("/proc/stat tells no utilisation".into()),
            Some(_) if !self.ticked => Value::Unknown("the window is shorter than a clock tick".into()),
            Some(_) => Value::Modelled(self.modelled(window)),
        };
        Figure {
            source: "model",
            boundary: self.model.boundary,
            part: "processors".into(),
            window,
            value,
            note: Some(self.model.origin.clone()),
        }
    }

    /// The band: the model's own, and one clock tick of every CPU, which utilisation is rounded to. The model's own is a
    /// share of all joules, idle ones included: that is what a counter was compared with. So what is above idle, a
    /// difference of two such figures, has as many joules of doubt and not as large a share.
    fn modelled(&self, window: Window) -> Modelled {
        let tick = self.model.above_idle_w(1.0) * TICK_SECONDS;
        let idle = self.model.idle_w * window.seconds();
        let half = (idle + self.above_idle) * self.model.band + tick;
        let around =
            |joules: f64| Range { low: (joules - half).max(0.0), expected: joules, high: joules + half };
        Modelled::new(around(idle + self.above_idle), around(self.above_idle), self.model.version.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Proc(&'static str, &'static str);

    impl Tree for Proc {
        fn text(&self, path: &str) -> io::Result<String> {
            match path {
                "proc/cpuinfo" => Ok(self.0.to_owned()),
                "proc/stat" => Ok(self.1.to_owned()),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        }

        fn names(&self, _: &str) -> io::Result<Vec<String>> {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    const MILAN: &str = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: EPYC\n";
    const TWO: &str = "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1\ncpu1 1\nintr 5\n";

    fn ladder(idle: f64, slope: f64) -> Vec<Rung> {
        (0..=4)
            .map(|n| f64::from(n) / 4.0)
            .map(|u| Rung { utilisation: u, watts: idle + slope * u })
            .collect()
    }

    #[test]
    fn the_built_in_model_scales_with_threads_and_says_what_it_is() {
        let model = Model::built_in(&Proc(MILAN, TWO));
        assert!((model.idle_w - 2.0 * 2.19 * 0.12).abs() < 1e-9);
        assert!((model.idle_w + model.above_idle_w(1.0) - 2.0 * 2.19 * 1.02).abs() < 1e-9);
        assert!(model.version.contains("Zen 3") && model.origin.contains("not calibrated"));
        assert_eq!(model.check(), Ok(()));
        let unknown = Model::built_in(&Proc("", ""));
        assert!(unknown.band > model.band && unknown.version.contains("unknown"));
    }

    #[test]
    fn the_table_is_linear_between_its_points_and_constant_beyond() {
        let model =
            Model { table: vec![(0.0, 0.0), (0.5, 10.0), (1.0, 12.0)], ..Model::built_in(&Proc("", "")) };
        for (utilisation, watts) in
            [(-1.0, 0.0), (0.0, 0.0), (0.25, 5.0), (0.75, 11.0), (1.0, 12.0), (2.0, 12.0)]
        {
            assert!((model.above_idle_w(utilisation) - watts).abs() < 1e-9, "{utilisation}");
        }
    }

    #[test]
    fn a_straight_ladder_is_recovered_with_the_least_band() {
        let tree = Proc(MILAN, TWO);
        let model = Model::fit(&tree, &ladder(40.0, 100.0), "powercap", Boundary::Package, 7).unwrap();
        assert!((model.idle_w - 40.0).abs() < 1e-9 && (model.above_idle_w(0.6) - 60.0).abs() < 1e-9);
        assert_eq!((model.band, model.version.as_str(), model.cpus), (LEAST_BAND, "calibrated 7", 2));
    }

    #[test]
    fn the_band_holds_every_rung() {
        let mut rungs = ladder(40.0, 100.0);
        rungs.extend(ladder(50.0, 130.0));
        let model = Model::fit(&Proc(MILAN, TWO), &rungs, "x", Boundary::Package, 0).unwrap();
        for rung in rungs {
            let said = model.idle_w + model.above_idle_w(rung.utilisation);
            assert!((said / rung.watts - 1.0).abs() <= model.band + 1e-12);
        }
    }

    #[test]
    fn what_is_above_idle_has_as_many_joules_of_doubt_as_all_of_it() {
        // 100 W idle and 10 W more at full load, 5 % of doubt: 110 J within 5.5 J, and so 10 J within 5.5 J.
        let tree = Arc::new(Proc(MILAN, TWO));
        let model = Model {
            idle_w: 100.0,
            table: vec![(0.0, 0.0), (1.0, 10.0)],
            band: 0.05,
            ..Model::built_in(&*tree)
        };
        let mut estimate = Estimate::new(model, tree);
        (estimate.above_idle, estimate.ticked) = (10.0, true);
        let modelled = estimate.modelled(Window { from_ns: 0, to_ns: 1_000_000_000 });
        for (range, expected) in [(modelled.range(), 110.0), (modelled.above_idle(), 10.0)] {
            assert!((range.expected - expected).abs() < 1e-9, "{range:?}");
            assert!((range.high - expected - 5.6).abs() < 1e-9 && (expected - range.low - 5.6).abs() < 1e-9);
        }
    }

    #[test]
    fn ladders_that_determine_nothing_are_refused() {
        let fit = |rungs: &[Rung]| Model::fit(&Proc(MILAN, TWO), rungs, "x", Boundary::Package, 0);
        for bad in [
            vec![],
            ladder(40.0, 0.0),
            ladder(40.0, -10.0),
            ladder(40.0, 100.0)[..2].to_vec(),
            ladder(0.0, 0.0),
        ] {
            assert!(matches!(fit(&bad), Err(ModelError::NoFit(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_model_comes_back_from_disk_and_only_to_its_own_machine() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/model.json");
        let tree = Proc(MILAN, TWO);
        let model = Model::fit(&tree, &ladder(40.0, 100.0), "x", Boundary::Package, 7).unwrap();
        model.save(&path).unwrap();
        assert_eq!(Model::load(&path, &tree).unwrap(), model);
        assert!(matches!(Model::load(&path, &Proc("", TWO)), Err(ModelError::Stale { .. })));
        let broken = [
            Model { band: 1.0, ..model.clone() },
            Model { idle_w: -1.0, ..model.clone() },
            Model { table: vec![(0.0, 5.0), (1.0, 1.0)], ..model.clone() },
            Model { version: "a\nb".into(), ..model.clone() },
            Model { format: 9, ..model.clone() },
        ];
        for broken in broken {
            broken.save(&path).unwrap();
            assert!(matches!(Model::load(&path, &tree), Err(ModelError::Malformed { .. })), "{broken:?}");
        }
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(Model::load(&path, &tree), Err(ModelError::Malformed { .. })));
    }

    #[test]
    fn waiting_and_stolen_time_is_not_busy() {
        let ticks = |text| Ticks::parse(text).unwrap();
        let (before, after) = (ticks("cpu  10 0 0 10 0 0 0 0"), ticks("cpu  20 0 0 15 5 0 0 20"));
        assert_eq!(after.since(before), Some(0.25));
        assert_eq!(before.since(before), None);
        assert_eq!(after.others_since(before, 0.0), Some(0.25));
        assert_eq!(after.others_since(before, 1e3), Some(0.0));
        let waited_less = ticks("cpu  20 0 0 10 0 0 0 0").since(ticks("cpu  10 0 0 10 5 0 0 0"));
        assert_eq!(waited_less, Some(1.0));
        let nonsense = format!("cpu  {max} {max} {max} {max} {max}", max = u64::MAX);
        assert!(Ticks::parse(&nonsense).is_some());
        assert!(Ticks::parse("cpu  1 2").is_none() && Ticks::parse("").is_none());
    }
}
