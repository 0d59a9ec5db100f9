//! What an accelerator is like, as pure data: how many servers, how long each kind takes, how much may wait, how many
//! watts. Knows no time and computes no result.
//!
//! A model can be written to text and read back, so that a command line can load one from a file:
//!
//! ```text
//! name dh8970
//! window 256 requests 16777216 bytes
//! width 1
//! power 15000 idle 25000 active milliwatts
//! pool public-key 75 servers
//! table rsa-2048-private 256:745000
//! table p256-derive,p256-generate 0:565000
//! ```
//!
//! A `table` belongs to the `pool` above it: kinds, then points `bytes:nanoseconds`. `#` starts a comment.
//!
//! A GPU has one pool with one server, whose tables are its kernels at the reference clock (the first is 0), and:
//!
//! ```text
//! gpu 8000 setup-ns 50000000000 copy-bytes-per-s 4 streams 141000000000 memory-bytes
//! clocks 0 reference 590 dynamic-w 3 exponent 0 set-ns
//! clock 1980 mhz 1 speed 110 static-w
//! parts 132 multiprocessors 32 warp
//! ```
//!
//! Without `parts` it says nothing of them.

use std::fmt;

use wattlock_core::{Kind, KindSet, Nanos, Window};

use crate::fault::Fault;
use crate::gpu::{GpuModel, Parts, Step};

/// Longest model file, in bytes.
pub const FILE_MAX: usize = 64 << 10;
const SERVERS_MAX: u32 = 4096;
const FAULTS_MAX: usize = 64;
const POINTS_MAX: usize = 64;
const PARTS_MAX: u32 = 10_000;
const WINDOW_MAX: u32 = 1 << 16;
const WINDOW_BYTES_MAX: u64 = 1 << 32;
/// An hour: longer latencies are mistakes.
const NS_MAX: u64 = 3_600_000_000_000;

/// An accelerator's properties.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Its name, for people; never printed without "emulated".
    pub name: String,
    /// Servers and what they do. A kind is in one pool at most.
    pub pools: Vec<Pool>,
    /// How much may be in flight in one instance.
    pub window: Window,
    /// Requests of one kind that one server does together in the time of the longest, if they share a doorbell.
    pub width: u16,
    /// Watts, if known.
    pub power: Option<Power>,
    /// Faults to come.
    pub faults: Vec<Fault>,
    /// If it is a GPU: copies, streams and clocks. The tables are then what its kernels take.
    pub gpu: Option<GpuModel>,
    /// A GPU's memory, in bytes, at least as large as the window; 0 for what is no GPU.
    pub memory_bytes: u64,
}

/// Like servers that share one queue, as a card's public-key units do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// For people.
    pub name: String,
    /// How many requests (or batches) it works on at once.
    pub servers: u32,
    /// How long it takes.
    pub tables: Vec<Table>,
}

/// How long one server takes for some kinds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Which kinds.
    pub kinds: KindSet,
    /// Input bytes (for key derivation: output bytes) and nanoseconds, ascending in bytes, at least one.
    pub points: Vec<(u64, Nanos)>,
}

/// Electric power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Power {
    /// With no server busy, in milliwatts.
    pub idle_mw: u32,
    /// With every server busy, in milliwatts; linear in between.
    pub active_mw: u32,
}

/// Why a text or a set of data is no model. The line number counts from 1; 0 means the whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("emulated accelerator model, line {line}: {what}")]
pub struct ModelError {
    /// Where.
    pub line: usize,
    /// What is wrong.
    pub what: &'static str,
}

impl Model {
    /// The kinds it does.
    pub fn kinds(&self) -> KindSet {
        let tables = self.pools.iter().flat_map(|pool| &pool.tables);
        tables.fold(KindSet::EMPTY, |set, table| set.union(table.kinds))
    }

    /// Which pool does a kind, by its place in [`Model::pools`].
    pub fn pool_of(&self, kind: Kind) -> Option<usize> {
        self.pools.iter().position(|pool| pool.tables.iter().any(|table| table.kinds.contains(kind)))
    }

    /// How long one server takes for one request, alone; `None` for a kind it does not do.
    pub fn service_ns(&self, kind: Kind, bytes: u64) -> Option<Nanos> {
        let mut tables = self.pools.iter().flat_map(|pool| &pool.tables);
        Some(interpolate(&tables.find(|table| table.kinds.contains(kind))?.points, bytes))
    }

    /// All servers of all pools.
    pub fn servers(&self) -> u32 {
        self.pools.iter().map(|pool| pool.servers).sum()
    }

    /// Whether the data makes sense and is within bounds.
    ///
    /// # Errors
    /// Says what does not.
    pub fn validate(&self) -> Result<(), ModelError> {
        let wrong = |what| Err(ModelError { line: 0, what });
        let word = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c == '#');
        if !word(&self.name) || !self.pools.iter().all(|pool| word(&pool.name)) {
            return wrong("a name is one word");
        }
        if !(1..=WINDOW_MAX).contains(&self.window.requests)
            || !(1..=WINDOW_BYTES_MAX).contains(&self.window.bytes)
        {
            return wrong("window out of bounds");
        }
        if self.width == 0 || u32::from(self.width) > self.window.requests {
            return wrong("width must be at least 1 and at most the window");
        }
        if self.power.is_some_and(|power| power.active_mw < power.idle_mw) {
            return wrong("active power is below idle power");
        }
        if self.kinds().is_empty() {
            return wrong("it does nothing");
        }
        let tables: usize =
            self.pools.iter().flat_map(|pool| &pool.tables).map(|table| table.kinds.iter().count()).sum();
        if tables != self.kinds().iter().count() {
            return wrong("a kind has two tables");
        }
        if let Some(gpu) = &self.gpu {
            let one_server = self.pools.len() == 1 && self.pools[0].servers == 1 && self.width == 1;
            let positive = |x: f64| x.is_finite() && x > 0.0;
            let not_negative = |x: f64| x.is_finite() && x >= 0.0;
            let steps = &gpu.steps;
            if !one_server || self.power.is_some() {
                return wrong("a GPU has one pool of one server, width 1, and its watts with its clocks");
            }
            if !positive(gpu.copy_bytes_per_s) || !(1..=256).contains(&gpu.streams) {
                return wrong("copy rate or streams out of bounds");
            }
            if !(not_negative(gpu.setup_ns)
                && gpu.setup_ns <= NS_MAX as f64
                && not_negative(gpu.set_clock_ns))
            {
                return wrong("setup times out of bounds");
            }
            let sound =
                |step: &Step| positive(step.core_mhz) && positive(step.speed) && not_negative(step.static_w);
            if steps.is_empty()
                || steps.len() > 16
                || gpu.reference >= steps.len()
                || !steps.iter().all(sound)
            {
                return wrong("1 to 16 clocks, one of them the reference");
            }
            if !not_negative(gpu.dynamic_w) || !not_negative(gpu.alpha) || !positive(gpu.kernel_bytes_per_s) {
                return wrong("watts out of bounds");
            }
            let within = |parts: Parts| {
                (1..=PARTS_MAX).contains(&parts.multiprocessors) && (1..=PARTS_MAX).contains(&parts.warp)
            };
            if !gpu.parts.is_none_or(within) {
                return wrong("parts out of bounds");
            }
            if self.memory_bytes < self.window.bytes {
                return wrong("its memory is smaller than its window");
            }
        }
        if self.pools.iter().any(|pool| !(1..=SERVERS_MAX).contains(&pool.servers)) {
            return wrong("servers out of bounds");
        }
        if self.pools.iter().flat_map(|pool| &pool.tables).any(|table| !sound(&table.points)) {
            return wrong("points must ascend in bytes, 1 to 64 of them, each at most an hour");
        }
        Ok(())
    }

    /// Reads a model from text.
    ///
    /// # Errors
    /// Names the first line that is wrong.
    pub fn parse(text: &str) -> Result<Model, ModelError> {
        if text.len() > FILE_MAX {
            return Err(ModelError { line: 0, what: "longer than 64 KiB" });
        }
        let mut model = Model {
            name: String::new(),
            pools: Vec::new(),
            window: Window { requests: 0, bytes: 0 },
            width: 1,
            power: None,
            faults: Vec::new(),
            gpu: None,
            memory_bytes: 0,
        };
        for (index, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
            model.take(&words).map_err(|what| ModelError { line: index + 1, what })?;
        }
        model.validate()?;
        Ok(model)
    }

    fn take(&mut self, words: &[&str]) -> Result<(), &'static str> {
        match words {
            [] => {}
            ["name", name] => self.name = (*name).to_owned(),
            ["window", requests, "requests", bytes, "bytes"] => {
                self.window = Window { requests: number(requests)?, bytes: number(bytes)? };
            }
            ["width", width] => self.width = number(width)?,
            ["power", idle, "idle", active, "active", "milliwatts"] => {
                self.power = Some(Power { idle_mw: number(idle)?, active_mw: number(active)? });
            }
            ["pool", name, servers, "servers"] => {
                self.pools.push(Pool {
                    name: (*name).to_owned(),
                    servers: number(servers)?,
                    tables: Vec::new(),
                });
            }
            ["table", kinds, points @ ..] => {
                let table = Table { kinds: kinds_of(kinds)?, points: points_of(points)? };
                self.pools.last_mut().ok_or("a table before any pool")?.tables.push(table);
            }
            [
                "gpu",
                setup,
                "setup-ns",
                copy,
                "copy-bytes-per-s",
                streams,
                "streams",
                memory,
                "memory-bytes",
            ] => {
                self.memory_bytes = number(memory)?;
                self.gpu = Some(GpuModel {
                    setup_ns: number(setup)?,
                    copy_bytes_per_s: number(copy)?,
                    // The tables have the kernels.
                    kernel_bytes_per_s: 1e9,
                    streams: number(streams)?,
                    steps: Vec::new(),
                    reference: 0,
                    dynamic_w: 0.0,
                    alpha: 0.0,
                    set_clock_ns: 0.0,
                    parts: None,
                });
            }
            ["clocks", reference, "reference", watts, "dynamic-w", alpha, "exponent", set, "set-ns"] => {
                let gpu = self.gpu.as_mut().ok_or("clocks of what is no GPU")?;
                gpu.reference = number(reference)?;
                (gpu.dynamic_w, gpu.alpha, gpu.set_clock_ns) = (number(watts)?, number(alpha)?, number(set)?);
            }
            ["clock", mhz, "mhz", speed, "speed", watts, "static-w"] => {
                let gpu = self.gpu.as_mut().ok_or("a clock of what is no GPU")?;
                gpu.steps.push(Step {
                    core_mhz: number(mhz)?,
                    speed: number(speed)?,
                    static_w: number(watts)?,
                });
            }
            ["parts", multiprocessors, "multiprocessors", warp, "warp"] => {
                let gpu = self.gpu.as_mut().ok_or("parts of what is no GPU")?;
                gpu.parts = Some(Parts { multiprocessors: number(multiprocessors)?, warp: number(warp)? });
            }
            ["fault", fault @ ..] => {
                if self.faults.len() == FAULTS_MAX {
                    return Err("at most 64 faults");
                }
                self.faults.push(Fault::parse(fault)?);
            }
            _ => return Err("not understood"),
        }
        Ok(())
    }
}

impl fmt::Display for Model {
    /// The text that [`Model::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# emulated, not hardware")?;
        writeln!(f, "name {}", self.name)?;
        writeln!(f, "window {} requests {} bytes", self.window.requests, self.window.bytes)?;
        writeln!(f, "width {}", self.width)?;
        if let Some(power) = self.power {
            writeln!(f, "power {} idle {} active milliwatts", power.idle_mw, power.active_mw)?;
        }
        if let Some(gpu) = &self.gpu {
            let (setup, copy, memory) = (gpu.setup_ns, gpu.copy_bytes_per_s, self.memory_bytes);
            let streams = gpu.streams;
            writeln!(
                f,
                "gpu {setup} setup-ns {copy} copy-bytes-per-s {streams} streams {memory} memory-bytes"
            )?;
            let (reference, watts) = (gpu.reference, gpu.dynamic_w);
            let (alpha, set) = (gpu.alpha, gpu.set_clock_ns);
            writeln!(f, "clocks {reference} reference {watts} dynamic-w {alpha} exponent {set} set-ns")?;
            for Step { core_mhz, speed, static_w } in &gpu.steps {
                writeln!(f, "clock {core_mhz} mhz {speed} speed {static_w} static-w")?;
            }
            if let Some(Parts { multiprocessors, warp }) = gpu.parts {
                writeln!(f, "parts {multiprocessors} multiprocessors {warp} warp")?;
            }
        }
        for pool in &self.pools {
            writeln!(f, "pool {} {} servers", pool.name, pool.servers)?;
            for table in &pool.tables {
                let kinds: Vec<&str> = table.kinds.iter().map(Kind::name).collect();
                write!(f, "table {}", kinds.join(","))?;
                for (bytes, ns) in &table.points {
                    write!(f, " {bytes}:{ns}")?;
                }
                writeln!(f)?;
            }
        }
        for fault in &self.faults {
            writeln!(f, "fault {fault}")?;
        }
        Ok(())
    }
}

pub(crate) fn number<T: std::str::FromStr>(word: &str) -> Result<T, &'static str> {
    word.parse().map_err(|_| "not a number, or out of range")
}

fn kinds_of(names: &str) -> Result<KindSet, &'static str> {
    names.split(',').map(|name| Kind::from_name(name).ok_or("no such kind")).collect()
}

fn points_of(words: &[&str]) -> Result<Vec<(u64, Nanos)>, &'static str> {
    let point = |word: &&str| {
        let (bytes, ns) = word.split_once(':').ok_or("a point is bytes:nanoseconds")?;
        Ok((number(bytes)?, number(ns)?))
    };
    words.iter().map(point).collect()
}

fn sound(points: &[(u64, Nanos)]) -> bool {
    (1..=POINTS_MAX).contains(&points.len())
        && points.windows(2).all(|pair| pair[0].0 < pair[1].0)
        && points.iter().all(|(bytes, ns)| *ns <= NS_MAX && *bytes <= WINDOW_BYTES_MAX)
}

/// Linear between points, level below the first, with the last two points' slope (never falling) beyond the last.
fn interpolate(points: &[(u64, Nanos)], bytes: u64) -> Nanos {
    let above = points.iter().position(|point| point.0 >= bytes);
    let (a, b) = match (above, points) {
        (_, []) => return 0,
        (Some(0), [first, ..]) | (None, [first]) => return first.1,
        (Some(index), _) => (points[index - 1], points[index]),
        (None, [.., a, b]) => (*a, (b.0, b.1.max(a.1))),
    };
    let (run, rise) = (i128::from(b.0 - a.0), i128::from(b.1) - i128::from(a.1));
    let ns = i128::from(a.1) + rise * i128::from(bytes - a.0) / run;
    ns.clamp(0, i128::from(u64::MAX / 4)) as Nanos
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn latency_is_linear_between_points_and_level_below_them() {
        let points = [(1024, 8000), (2048, 10_000), (4096, 13_000)];
        let at = |bytes| interpolate(&points, bytes);
        assert_eq!([at(0), at(1024), at(1536), at(2048)], [8000, 8000, 9000, 10_000]);
        assert_eq!([at(3072), at(4096), at(6144)], [11_500, 13_000, 16_000]);
        assert_eq!(interpolate(&[(256, 745_000)], 1 << 30), 745_000);
    }

    #[test]
    fn latency_beyond_the_table_never_falls() {
        assert_eq!(interpolate(&[(1, 50), (2, 40)], 100), 50);
    }

    #[test]
    fn every_preset_is_valid_and_survives_print_and_parse() {
        for model in Model::presets() {
            model.validate().unwrap();
            let mut back = Model::parse(&model.to_string()).unwrap();
            // A GPU's rate without tables is for simulations of one kind of kernel; a text has tables.
            if let (Some(back), Some(gpu)) = (&mut back.gpu, &model.gpu) {
                back.kernel_bytes_per_s = gpu.kernel_bytes_per_s;
            }
            assert_eq!(back, model);
            assert!(model.to_string().contains("emulated"));
        }
    }

    #[test]
    fn wrong_line_is_named() {
        let good = Model::qat_dh8970().to_string();
        let lines = good.lines().count();
        for (extra, what) in [
            ("clock 1 mhz 1 speed 1 static-w", "a clock of what is no GPU"),
            ("table sha-3 1:2", "no such kind"),
            ("table sha-1 1", "a point is bytes:nanoseconds"),
            ("width 70000", "not a number, or out of range"),
            ("colour blue", "not understood"),
            ("fault error", "when is missing: every N, requests A B, or after A until B"),
            ("fault smoke every 3", "no such fault"),
            ("fault slow every 3", "no such fault"),
        ] {
            let error = Model::parse(&format!("{good}{extra}\n")).unwrap_err();
            assert_eq!((error.line, error.what), (lines + 1, what));
        }
        assert_eq!(Model::parse("table sha-1 1:2").unwrap_err().what, "a table before any pool");
    }

    #[test]
    fn faults_survive_print_and_parse() {
        let faults = "fault error every 10\nfault silence requests 5 5\nfault wrong-result after 10 until 20\n\
                      fault slow 3000 every 2\nfault lost after 1000 until 2000\nfault lost 500 requests 7 7\n";
        let text = format!("{}{faults}", Model::qat_dh8970());
        let model = Model::parse(&text).unwrap();
        assert_eq!(model.faults.len(), 6);
        assert!(model.to_string().ends_with(faults));
        assert_eq!(Model::parse(&model.to_string()).unwrap(), model);
    }

    #[test]
    fn absurd_gpus_are_refused() {
        let change = |change: fn(&mut Model, &mut GpuModel)| {
            let mut model = Model::h200();
            let mut gpu = model.gpu.take().unwrap();
            change(&mut model, &mut gpu);
            Model { gpu: Some(gpu), ..model }.validate().is_err()
        };
        assert!(!change(|_, _| {}));
        assert!(change(|_, gpu| gpu.copy_bytes_per_s = 0.0));
        assert!(change(|_, gpu| gpu.copy_bytes_per_s = f64::NAN));
        assert!(change(|_, gpu| gpu.streams = 0));
        assert!(change(|_, gpu| gpu.steps.clear()));
        assert!(change(|_, gpu| gpu.reference = 9));
        assert!(change(|_, gpu| gpu.steps[0].speed = -1.0));
        assert!(change(|_, gpu| gpu.parts = Some(Parts { multiprocessors: 0, warp: 32 })));
        assert!(change(|_, gpu| gpu.parts = Some(Parts { multiprocessors: 132, warp: 1 << 20 })));
        assert!(change(|model, _| model.memory_bytes = model.window.bytes - 1));
        assert!(change(|model, _| model.pools[0].servers = 2));
        assert!(change(|model, _| model.width = 2));
    }

    #[test]
    fn absurd_models_are_refused() {
        let change = |change: fn(&mut Model)| {
            let mut model = Model::qat_dh8970();
            change(&mut model);
            model.validate().is_err()
        };
        assert!(change(|model| model.name = "two words".into()));
        assert!(change(|model| model.window.requests = 0));
        assert!(change(|model| model.width = 0));
        assert!(change(|model| model.width = 9999));
        assert!(change(|model| model.pools.clear()));
        assert!(change(|model| model.pools[0].servers = 0));
        assert!(change(|model| model.pools[0].tables[0].points.clear()));
        assert!(change(|model| model.pools[0].tables[0].points = vec![(2, 1), (1, 1)]));
        assert!(change(|model| model.pools[1].tables = model.pools[0].tables.clone()));
        assert!(change(|model| model.power = Some(Power { idle_mw: 2, active_mw: 1 })));
        assert!(Model::parse(&"#".repeat(FILE_MAX + 1)).is_err());
        assert!(Model::parse("").is_err());
    }
}
