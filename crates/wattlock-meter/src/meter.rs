//! All sources of a machine, read together.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use crate::Nanos;
use crate::account::{Account, longest_gap_ns};
use crate::figure::{Boundary, Figure, Window};
use crate::model::{Estimate, Model};
use crate::perf::{self, Events, Kernel};
use crate::reading::Reading;
use crate::sensor::{About, Sensor};
use crate::tree::{Folder, Tree};
use crate::{hwmon, powercap};

/// Sensors are read at most this often between the ends of a window: ten times a second.
pub const EVERY_NS: Nanos = 100_000_000;

/// Finds boards through the library of that name, or says why they cannot be read.
pub type FindBoards = fn(Option<&OsStr>) -> Result<Vec<Box<dyn Sensor>>, String>;

/// Where to look for sources.
pub struct Places {
    /// The files: `/`, or a fixture.
    pub tree: Arc<dyn Tree>,
    /// Opens performance events; `None`: none are opened.
    pub events: Option<Box<dyn Events>>,
    /// The NVML library; `None`: the one that the driver installs.
    pub nvml: Option<OsString>,
    /// What finds NVIDIA boards, `wattlock_meter::boards`; `None`: none are looked for. A program that does not name
    /// it does not have it, whatever features other programs of its build ask for.
    pub boards: Option<FindBoards>,
    /// A calibrated model, if there is one on disk.
    pub model: Option<PathBuf>,
}

impl Places {
    /// This machine, without boards.
    pub fn here() -> Places {
        let tree = Arc::new(Folder(PathBuf::from("/")));
        Places { tree, events: Some(Box::new(Kernel)), nvml: None, boards: None, model: None }
    }

    /// A fixture: its files only.
    pub fn recorded(root: impl Into<PathBuf>) -> Places {
        Places { tree: Arc::new(Folder(root.into())), events: None, nvml: None, boards: None, model: None }
    }
}

struct Slot {
    sensor: Box<dyn Sensor>,
    account: Account,
}

/// A machine's sources of joules. One window at a time; reading takes a few system calls for each source.
pub struct Meter {
    slots: Vec<Slot>,
    unused: Vec<(About, String)>,
    notices: Vec<String>,
    estimate: Option<Estimate>,
    window: Window,
    polled_ns: Nanos,
}

impl Meter {
    /// Looks for every source. Never fails: [`Meter::notices`] reports sources that exist and cannot be used.
    /// Loads the NVML library if there is one, which may take a while.
    pub fn discover(places: &Places) -> Meter {
        let mut notices = Vec::new();
        let mut sensors = powercap::find(&places.tree);
        if let Some(events) = &places.events {
            sensors.extend(perf::find(&places.tree, &**events));
        }
        sensors.extend(hwmon::find(&places.tree));
        sensors.extend(boards(places, &mut notices));
        let model = model(places, &mut notices);
        let mut meter = Meter::of(Vec::new());
        meter.estimate = Some(Estimate::new(model, places.tree.clone()));
        meter.notices = notices;
        meter.choose(sensors);
        meter
    }

    /// A meter of these sensors and no model.
    pub fn of(sensors: Vec<Box<dyn Sensor>>) -> Meter {
        let slots = sensors.into_iter().map(|sensor| Slot { sensor, account: Account::default() }).collect();
        Meter {
            slots,
            unused: Vec::new(),
            notices: Vec::new(),
            estimate: None,
            window: Window::default(),
            polled_ns: 0,
        }
    }

    /// Keeps the readable sensors, and one of several that count the same joules.
    fn choose(&mut self, mut sensors: Vec<Box<dyn Sensor>>) {
        let state: Vec<(About, Option<String>)> =
            sensors.iter_mut().map(|s| (s.about().clone(), s.read().err().map(|gone| gone.0))).collect();
        let readable = |source: &str, about: &About| {
            state
                .iter()
                .any(|(other, error)| error.is_none() && other.source == source && same_joules(other, about))
        };
        let preferred =
            |about: &About| ["powercap", "perf", "hwmon"].into_iter().find(|source| readable(source, about));
        for (sensor, (about, error)) in sensors.into_iter().zip(&state) {
            let why = match preferred(about) {
                Some(source) if source != about.source && about.source != "nvml" => {
                    Some(format!("{source} counts the same"))
                }
                // One of several sockets that cannot be read: kept, so that a total knows what it lacks.
                Some(_) => None,
                None => error.clone(),
            };
            match why {
                Some(why) => self.unused.push((about.clone(), why)),
                None => self.slots.push(Slot { sensor, account: Account::default() }),
            }
        }
        for source in ["powercap", "perf", "hwmon"] {
            let failed =
                |(about, error): &&(About, Option<String>)| about.source == source && error.is_some();
            let count = state.iter().filter(failed).count();
            let some = state.iter().find(failed).and_then(|(_, error)| error.as_deref());
            if let Some(why) = some {
                let hint = match source {
                    // Advice about rights is for users without them.
                    _ if !why.contains("ermi") => "",
                    "powercap" => "; root may, or whoever is given read permission on energy_uj",
                    "perf" => "; CAP_PERFMON or kernel.perf_event_paranoid=0 allows it",
                    _ => "",
                };
                self.notices.push(format!("{source}: {count} of its counters cannot be read ({why}){hint}"));
            }
        }
    }

    /// Why existing sources cannot be used: one line each, for people. None of it is an error.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Sources in use.
    pub fn sources(&self) -> impl Iterator<Item = &About> {
        self.slots.iter().map(|slot| slot.sensor.about())
    }

    /// Existing sources that are not used, with the reason.
    pub fn unused(&self) -> &[(About, String)] {
        &self.unused
    }

    /// The model for a boundary that no counter covers.
    pub fn model(&self) -> Option<&Model> {
        self.estimate.as_ref().map(|estimate| &estimate.model)
    }

    /// Longest time between two readings in which no counter can wrap unseen; `None` if no counter wraps.
    /// A caller polls at least that often, and gains nothing from polling more often than [`EVERY_NS`].
    pub fn longest_gap_ns(&self) -> Option<Nanos> {
        self.sources().filter_map(longest_gap_ns).min()
    }

    /// Begins a window, reading everything once.
    pub fn start(&mut self, now: Nanos) {
        self.window = Window { from_ns: now, to_ns: now };
        for slot in &mut self.slots {
            slot.account = Account::default();
        }
        if let Some(estimate) = &mut self.estimate {
            estimate.start(now);
        }
        self.read(now, false);
    }

    /// Reads everything, if the last reading is old enough. For windows in which a counter can wrap, and for
    /// power, which has to be integrated.
    pub fn poll(&mut self, now: Nanos) {
        if now.saturating_sub(self.polled_ns) >= EVERY_NS {
            self.read(now, false);
        }
    }

    /// Reads everything and returns the window's figures. The window stays open: a later call covers it from its start.
    pub fn finish(&mut self, now: Nanos) -> Reading {
        self.read(now, true);
        self.window.to_ns = now;
        let mut figures: Vec<Figure> = self.slots.iter().map(Slot::figure).collect();
        let reading = Reading { window: self.window, figures: Vec::new() };
        let metered = Reading { figures: figures.clone(), ..reading.clone() };
        if let Some(estimate) = self.estimate.as_ref().filter(|_| !metered.has_processor()) {
            figures.push(estimate.figure(now));
        }
        Reading { figures, ..reading }
    }

    fn read(&mut self, now: Nanos, end: bool) {
        self.polled_ns = now;
        for slot in &mut self.slots {
            let reading = slot.sensor.read();
            slot.account.note(slot.sensor.about(), now, reading);
        }
        let Some(estimate) = &mut self.estimate else { return };
        // /proc/stat is the costliest file here on a machine of many CPUs: in between it is read only if it matters.
        let matters = !self.slots.iter().any(|slot| slot.is_processor() && slot.figure().metered().is_some());
        if end || matters {
            estimate.note(now, end);
        }
    }
}

impl Slot {
    fn figure(&self) -> Figure {
        let about = self.sensor.about();
        let (window, value, note) = self.account.value(about);
        Figure {
            source: about.source,
            boundary: about.boundary,
            part: about.part.clone(),
            window,
            value,
            note,
        }
    }

    fn is_processor(&self) -> bool {
        matches!(self.sensor.about().boundary, Boundary::Package | Boundary::Node)
    }
}

/// Whether two sensors of different sources count the same joules. A node may have several views (its platform
/// counter, its power supplies): only the same view twice counts as the same.
fn same_joules(a: &About, b: &About) -> bool {
    match a.boundary {
        _ if a.boundary != b.boundary => false,
        Boundary::Core | Boundary::Uncore | Boundary::Package | Boundary::Dram => true,
        Boundary::Node | Boundary::Board | Boundary::Rail => a.part == b.part,
    }
}

fn model(places: &Places, notices: &mut Vec<String>) -> Model {
    let on_disk = places.model.as_ref().filter(|path| path.exists());
    match on_disk.map(|path| Model::load(path, &*places.tree)) {
        Some(Ok(model)) => model,
        Some(Err(error)) => {
            notices.push(format!("model: {error}; the built-in one is used"));
            Model::built_in(&*places.tree)
        }
        None => Model::built_in(&*places.tree),
    }
}

fn boards(places: &Places, notices: &mut Vec<String>) -> Vec<Box<dyn Sensor>> {
    let Some(find) = places.boards else { return Vec::new() };
    find(places.nvml.as_deref()).unwrap_or_else(|why| {
        notices.push(format!("nvml: {why}"));
        Vec::new()
    })
}
