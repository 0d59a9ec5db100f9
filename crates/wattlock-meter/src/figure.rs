//! A figure: joules with their source, boundary, window and quality.
//!
//! [`Metered`] and [`Modelled`] joules are two types without a conversion, and each adds to its own kind only.
//! `Modelled` cannot be printed without the word and its band.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Nanos;

/// The part of the machine whose joules are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Boundary {
    /// The cores of a package; inside [`Boundary::Package`].
    Core,
    /// The part of a package outside its cores that has a counter, usually the integrated GPU; inside
    /// [`Boundary::Package`].
    Uncore,
    /// A processor package: cores, caches, memory controllers. Not the memory.
    Package,
    /// The memory behind a package.
    Dram,
    /// An accelerator's board.
    Board,
    /// The whole machine, or as much of it as its vendor calls the platform; contains all of the above.
    Node,
    /// A supply rail or sensor whose consumers are unknown. Shown, never added to anything.
    Rail,
}

impl Boundary {
    /// Stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Boundary::Core => "core",
            Boundary::Uncore => "uncore",
            Boundary::Package => "package",
            Boundary::Dram => "dram",
            Boundary::Board => "board",
            Boundary::Node => "node",
            Boundary::Rail => "rail",
        }
    }

    /// More than anything inside this boundary can draw. Used to tell a wrap-around from a counter that went back, and
    /// to bound the time in which a counter can wrap unseen. The largest package on the market draws 500 W, the
    /// largest board 1400 W, a node of eight such boards 15 kW.
    pub const fn most_watts(self) -> f64 {
        match self {
            Boundary::Core | Boundary::Uncore | Boundary::Package | Boundary::Dram => 2_000.0,
            Boundary::Board | Boundary::Rail => 5_000.0,
            Boundary::Node => 20_000.0,
        }
    }
}

impl fmt::Display for Boundary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a figure was obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quality {
    /// The difference of two readings of an energy counter.
    Measured,
    /// Computed from readings: power samples integrated over time, idle power subtracted.
    Derived,
    /// Computed from utilisation by a model; no instrument measured joules.
    Modelled,
}

impl Quality {
    /// Stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Quality::Measured => "measured",
            Quality::Derived => "derived",
            Quality::Modelled => "modelled",
        }
    }
}

impl fmt::Display for Quality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Start and end, on the caller's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// Start.
    pub from_ns: Nanos,
    /// End.
    pub to_ns: Nanos,
}

impl Window {
    /// Length in seconds.
    pub fn seconds(self) -> f64 {
        self.to_ns.saturating_sub(self.from_ns) as f64 / 1e9
    }
}

/// Joules from an instrument.
#[derive(Debug, Clone, PartialEq)]
pub struct Metered {
    joules: f64,
    derived: bool,
    at_least: Option<String>,
}

impl Metered {
    pub(crate) fn new(joules: f64, derived: bool, at_least: Option<String>) -> Metered {
        Metered { joules, derived, at_least }
    }

    /// The joules.
    pub fn joules(&self) -> f64 {
        self.joules
    }

    /// `Measured` or `Derived`.
    pub fn quality(&self) -> Quality {
        if self.derived { Quality::Derived } else { Quality::Measured }
    }

    /// Why the true figure may be larger; `None` if the figure is whole.
    pub fn at_least(&self) -> Option<&str> {
        self.at_least.as_deref()
    }

    /// Both together. Derived if either is, a lower bound if either is.
    #[must_use]
    pub fn plus(&self, other: &Metered) -> Metered {
        let reasons: Vec<&str> = self.at_least().into_iter().chain(other.at_least()).collect();
        Metered {
            joules: self.joules + other.joules,
            derived: self.derived || other.derived,
            at_least: (!reasons.is_empty()).then(|| reasons.join("; ")),
        }
    }

    /// The joules above idle power over the whole window; derived. Negative if the window was calmer than the idle
    /// one.
    #[must_use]
    pub fn above(&self, idle_watts: f64, window: Window) -> Metered {
        let joules = self.joules - idle_watts * window.seconds();
        Metered { joules, derived: true, at_least: self.at_least.clone() }
    }

    pub(crate) fn or_more(mut self, why: &str) -> Metered {
        self.at_least = Some(match self.at_least {
            Some(before) => format!("{before}; {why}"),
            None => why.to_owned(),
        });
        self
    }
}

impl fmt::Display for Metered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = if self.at_least.is_some() { "at least " } else { "" };
        write!(f, "{bound}{} {}", joules(self.joules), self.quality())
    }
}

/// A model's answer: an expectation and its band.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Range {
    /// Lower end of the band.
    pub low: f64,
    /// The expectation.
    pub expected: f64,
    /// Upper end of the band.
    pub high: f64,
}

impl Range {
    pub(crate) fn plus(self, other: Range) -> Range {
        Range {
            low: self.low + other.low,
            expected: self.expected + other.expected,
            high: self.high + other.high,
        }
    }

    /// Each end multiplied.
    #[must_use]
    pub fn times(self, factor: f64) -> Range {
        Range { low: self.low * factor, expected: self.expected * factor, high: self.high * factor }
    }

    /// Work per joule, for `work` done by all joules: the ends change places.
    #[must_use]
    pub fn into_per_joule(self, work: f64) -> Range {
        let per = |joules: f64| if joules > 0.0 { work / joules } else { f64::INFINITY };
        Range { low: per(self.high), expected: per(self.expected), high: per(self.low) }
    }
}

/// Joules that a model computed. They carry the model's version, and they print as modelled.
#[derive(Debug, Clone, PartialEq)]
pub struct Modelled {
    total: Range,
    above_idle: Range,
    model: String,
}

impl Modelled {
    pub(crate) fn new(total: Range, above_idle: Range, model: String) -> Modelled {
        Modelled { total, above_idle, model }
    }

    /// All joules.
    pub fn range(&self) -> Range {
        self.total
    }

    /// Without the model's idle power.
    pub fn above_idle(&self) -> Range {
        self.above_idle
    }

    /// Version of the model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Both together, if one model made both; figures of two models have no common band.
    #[must_use]
    pub fn plus(&self, other: &Modelled) -> Option<Modelled> {
        (self.model == other.model).then(|| Modelled {
            total: self.total.plus(other.total),
            above_idle: self.above_idle.plus(other.above_idle),
            model: self.model.clone(),
        })
    }
}

impl fmt::Display for Modelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { low, expected, high } = self.total;
        write!(f, "{} modelled ({} to {}, model {})", joules(expected), joules(low), joules(high), self.model)
    }
}

fn joules(joules: f64) -> String {
    match joules.abs() {
        j if j >= 1.0 || j == 0.0 => format!("{joules:.2} J"),
        j if j >= 1e-3 => format!("{:.2} mJ", joules * 1e3),
        _ => format!("{:.2} uJ", joules * 1e6),
    }
}

/// The outcome of a window for one source.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Joules from an instrument.
    Metered(Metered),
    /// Joules a model computed.
    Modelled(Modelled),
    /// No figure, with the reason. Never zero instead.
    Unknown(String),
}

/// One source's joules in one window.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The source: `powercap`, `perf`, `nvml`, `hwmon`, `model`.
    pub source: &'static str,
    /// The boundary.
    pub boundary: Boundary,
    /// The part's name: `package-0`, `package-0 dram`, a board's name.
    pub part: String,
    /// The window. Shorter than asked for if the source was missing for a part of it.
    pub window: Window,
    /// The joules.
    pub value: Value,
    /// Remarks.
    pub note: Option<String>,
}

impl Figure {
    /// Metered joules, if these are.
    pub fn metered(&self) -> Option<&Metered> {
        match &self.value {
            Value::Metered(metered) => Some(metered),
            _ => None,
        }
    }

    /// Modelled joules, if these are.
    pub fn modelled(&self) -> Option<&Modelled> {
        match &self.value {
            Value::Modelled(modelled) => Some(modelled),
            _ => None,
        }
    }

    /// The figure as flat data, for JSON.
    pub fn record(&self) -> Record {
        let mut record = Record {
            source: self.source.to_owned(),
            boundary: self.boundary,
            part: self.part.clone(),
            from_s: self.window.from_ns as f64 / 1e9,
            to_s: self.window.to_ns as f64 / 1e9,
            quality: None,
            joules: None,
            at_least: None,
            modelled: None,
            modelled_above_idle: None,
            model: None,
            unknown: None,
            note: self.note.clone(),
        };
        match &self.value {
            Value::Metered(metered) => {
                record.quality = Some(metered.quality());
                record.joules = Some(metered.joules());
                record.at_least = metered.at_least.clone();
            }
            Value::Modelled(modelled) => {
                record.quality = Some(Quality::Modelled);
                record.modelled = Some(modelled.total);
                record.modelled_above_idle = Some(modelled.above_idle);
                record.model = Some(modelled.model.clone());
            }
            Value::Unknown(why) => record.unknown = Some(why.clone()),
        }
        record
    }
}

/// A [`Figure`] as flat data. `joules` is metered; modelled joules stand under another name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The source.
    pub source: String,
    /// The boundary.
    pub boundary: Boundary,
    /// The part's name.
    pub part: String,
    /// Start in seconds on the caller's clock.
    pub from_s: f64,
    /// End in seconds on the caller's clock.
    pub to_s: f64,
    /// The quality; `None` if there is no figure.
    pub quality: Option<Quality>,
    /// Metered joules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// Why the true figure may be larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<String>,
    /// Modelled joules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled: Option<Range>,
    /// Modelled joules without the model's idle power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_above_idle: Option<Range>,
    /// The model's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Why there is no figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// Remarks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modelled_joules_print_with_the_word_the_band_and_the_version() {
        let range = Range { low: 5.0, expected: 10.0, high: 15.0 };
        let printed = Modelled::new(range, range, "v1".into()).to_string();
        assert_eq!(printed, "10.00 J modelled (5.00 J to 15.00 J, model v1)");
    }

    #[test]
    fn joules_of_two_models_have_no_sum() {
        let of = |model: &str| Modelled::new(Range::default(), Range::default(), model.into());
        assert!(of("a").plus(&of("b")).is_none() && of("a").plus(&of("a")).is_some());
    }

    #[test]
    fn a_sum_is_as_weak_as_its_weakest_part() {
        let whole = Metered::new(1.0, false, None);
        let sum = whole.plus(&Metered::new(2.0, true, Some("lost".into())));
        assert_eq!((sum.joules(), sum.quality(), sum.at_least()), (3.0, Quality::Derived, Some("lost")));
        assert_eq!(whole.plus(&whole).quality(), Quality::Measured);
    }

    #[test]
    fn work_per_joule_turns_the_band_over() {
        let per = Range { low: 5.0, expected: 10.0, high: 20.0 }.into_per_joule(100.0);
        assert_eq!(per, Range { low: 5.0, expected: 10.0, high: 20.0 });
        assert_eq!(Range::default().into_per_joule(1.0).high, f64::INFINITY);
    }
}
