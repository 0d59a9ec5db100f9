//! What does not change from request to request: which engines there are, and what each costs by calibration.

use wattlock_core::{EngineClass, GpuAttributes, Kind, KindSet};

use crate::clocks::ClockCost;

/// Most engines one machine may have; weather is an array of this length.
pub const MAX_ENGINES: usize = 8;

/// An engine's place in the registry, 0 to [`MAX_ENGINES`] - 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineId(pub u8);

impl EngineId {
    /// As an array index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a policy knows of an engine.
#[derive(Debug, Clone)]
pub struct EngineView {
    /// Its place in the registry.
    pub id: EngineId,
    /// What sort of machine it is.
    pub class: EngineClass,
    /// Kinds it finishes inside the call.
    pub inline: KindSet,
    /// Kinds it does through a queue: none, if it is a CPU's.
    pub queued: KindSet,
    /// How many requests of each kind it does together at about the cost of one.
    pub widths: Widths,
    /// Requests that may be in flight in one instance; 0 for an engine without queues.
    pub window: u32,
}

/// How many requests an engine does together at about the cost of one, by kind; at least 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Widths(Box<[u16; Kind::COUNT]>);

impl Widths {
    /// As many of every kind.
    pub fn all(width: u16) -> Widths {
        Widths::by(|_| width)
    }

    /// As many of each kind as this says.
    pub fn by(width: impl Fn(Kind) -> u16) -> Widths {
        Widths(Box::new(std::array::from_fn(|at| width(Kind::ALL[at]).max(1))))
    }

    /// How many of this kind.
    pub fn of(&self, kind: Kind) -> u16 {
        self.0[kind.index()]
    }
}

impl EngineView {
    /// Whether it does the kind in either way.
    pub fn can(&self, kind: Kind) -> bool {
        self.inline.contains(kind) || self.queued.contains(kind)
    }
}

/// What policies know of an engine that finishes `kinds` inside the call.
pub fn inline_engine(id: EngineId, class: EngineClass, kinds: KindSet) -> EngineView {
    EngineView { id, class, inline: kinds, queued: KindSet::EMPTY, widths: Widths::all(1), window: 0 }
}

/// What policies know of an engine that does `kinds` one by one, behind a window of so many requests.
pub fn queued_engine(id: EngineId, class: EngineClass, kinds: KindSet, window: u32) -> EngineView {
    EngineView { id, class, inline: KindSet::EMPTY, queued: kinds, widths: Widths::all(1), window }
}

/// From where on a device is worth a write into an encrypted volume, as calibration found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turning {
    /// The device.
    pub device: EngineId,
    /// The least bytes of a write and the least files in operation with which it is; `None`: it never is.
    pub from: Option<(usize, u16)>,
    /// Cores that feed it best.
    pub feeders: u16,
}

/// What an operator wants least of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Objective {
    /// Time.
    #[default]
    Performance,
    /// Time and energy, as their product (the energy-delay product).
    Balanced,
    /// Energy.
    Energy,
}

/// Calibrated cost of one request, by engine, kind and size.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    curves: Vec<Curve>,
    submits: Vec<(EngineId, f64)>,
    checks: Vec<(EngineId, Kind, f64)>,
    at_once: Vec<(EngineId, Kind, u32)>,
    clocks: Vec<(EngineId, Vec<ClockCost>)>,
    batches: Vec<Batches>,
}

/// What requests of one kind take an engine together: how many, and times the time of one alone.
#[derive(Debug, Clone)]
struct Batches {
    engine: EngineId,
    kind: Kind,
    times: Vec<(f64, f64)>,
}

/// One engine's cost of one kind: points in ascending size, linear between them and beyond the last.
#[derive(Debug, Clone)]
struct Curve {
    engine: EngineId,
    kind: Kind,
    /// (bytes, nanoseconds, nanojoules).
    points: Vec<(usize, f64, Option<f64>)>,
}

impl Costs {
    /// No engine's cost is known.
    pub fn new() -> Costs {
        Costs::default()
    }

    /// Sets an engine's cost of a kind: `(bytes, nanoseconds, nanojoules)` of one request alone, ascending in bytes.
    /// An earlier curve for the same engine and kind is replaced; an empty one means "not known".
    pub fn set(&mut self, engine: EngineId, kind: Kind, mut points: Vec<(usize, f64, Option<f64>)>) {
        points.sort_by_key(|point| point.0);
        self.curves.retain(|curve| (curve.engine, curve.kind) != (engine, kind));
        if !points.is_empty() {
            self.curves.push(Curve { engine, kind, points });
        }
    }

    /// Nanoseconds one request of that size takes alone on that engine; `None` if not measured.
    pub fn latency_ns(&self, engine: EngineId, kind: Kind, bytes: usize) -> Option<f64> {
        let curve = self.curve(engine, kind)?;
        Some(interpolate(curve.points.iter().map(|point| (point.0 as f64, point.1)), bytes as f64))
    }

    /// Nanojoules of one request of that size alone on that engine; `None` if not metered.
    pub fn energy_nj(&self, engine: EngineId, kind: Kind, bytes: usize) -> Option<f64> {
        let curve = self.curve(engine, kind)?;
        if curve.points.iter().any(|point| point.2.is_none()) {
            return None;
        }
        let metered = curve.points.iter().map(|point| (point.0 as f64, point.2.unwrap_or(0.0)));
        Some(interpolate(metered, bytes as f64))
    }

    /// Sets what one request through an engine's queue costs the thread that submits it, in nanoseconds: the call, the
    /// copies, taking its completion. It is part of [`Costs::latency_ns`], which counts from submission to completion;
    /// a value that is not a number, or negative, means "not known".
    pub fn set_submit(&mut self, engine: EngineId, ns: f64) {
        self.submits.retain(|(id, _)| *id != engine);
        if ns.is_finite() && ns >= 0.0 {
            self.submits.push((engine, ns));
        }
    }

    /// Nanoseconds of the submitting thread for one request through that engine's queue; `None` if not measured.
    pub fn submit_ns(&self, engine: EngineId) -> Option<f64> {
        self.submits.iter().find(|(id, _)| *id == engine).map(|(_, ns)| *ns)
    }

    /// Sets what checking one of an engine's results costs the submitting thread, in nanoseconds, where every result of
    /// the kind is checked. It is not part of [`Costs::latency_ns`]. A value that is not a number, or negative, means "not
    /// known".
    pub fn set_check(&mut self, engine: EngineId, kind: Kind, ns: f64) {
        self.checks.retain(|check| (check.0, check.1) != (engine, kind));
        if ns.is_finite() && ns >= 0.0 {
            self.checks.push((engine, kind, ns));
        }
    }

    /// Nanoseconds of the submitting thread for checking one of that engine's results; 0 where they are not all checked.
    pub fn check_ns(&self, engine: EngineId, kind: Kind) -> f64 {
        let found = self.checks.iter().find(|check| (check.0, check.1) == (engine, kind));
        found.map_or(0.0, |check| check.2)
    }

    /// Sets how many requests of a kind a device works on at a time.
    pub fn set_at_once(&mut self, engine: EngineId, kind: Kind, count: u32) {
        self.at_once.retain(|known| (known.0, known.1) != (engine, kind));
        self.at_once.push((engine, kind, count.max(1)));
    }

    /// How many requests of a kind a device works on at a time; `None` if nobody knows.
    pub fn at_once(&self, engine: EngineId, kind: Kind) -> Option<u32> {
        self.at_once.iter().find(|known| (known.0, known.1) == (engine, kind)).map(|known| known.2)
    }

    /// Sets what requests of a kind take an engine that does them together: `(requests, nanoseconds of all of them)`, one
    /// alone among them. Without that one, or with a value that is not a number above zero, it means "not known".
    pub fn set_batches(&mut self, engine: EngineId, kind: Kind, mut points: Vec<(u16, f64)>) {
        points.sort_by_key(|point| point.0);
        self.batches.retain(|known| (known.engine, known.kind) != (engine, kind));
        let Some((1, alone)) = points.first().copied() else { return };
        if points.iter().all(|(_, ns)| ns.is_finite() && *ns > 0.0) {
            let times = points.into_iter().map(|(count, ns)| (f64::from(count), ns / alone)).collect();
            self.batches.push(Batches { engine, kind, times });
        }
    }

    /// How many times the time of one request alone so many take together, on a line between the counts that were
    /// measured; `None` if not measured.
    pub fn batch_times(&self, engine: EngineId, kind: Kind, count: u16) -> Option<f64> {
        let known = self.batches.iter().find(|known| (known.engine, known.kind) == (engine, kind))?;
        Some(interpolate(known.times.iter().copied(), f64::from(count)))
    }

    /// Sets what a device costs at each of its clocks, lowest first, over all kinds; an empty list means "not known".
    pub fn set_clocks(&mut self, engine: EngineId, steps: Vec<ClockCost>) {
        self.clocks.retain(|(id, _)| *id != engine);
        if !steps.is_empty() {
            self.clocks.push((engine, steps));
        }
    }

    /// What a device costs at each of its clocks, lowest first; empty if not measured.
    pub fn clocks(&self, engine: EngineId) -> &[ClockCost] {
        let found = self.clocks.iter().find(|(id, _)| *id == engine);
        found.map_or(&[], |(_, steps)| steps)
    }

    fn curve(&self, engine: EngineId, kind: Kind) -> Option<&Curve> {
        self.curves.iter().find(|curve| (curve.engine, curve.kind) == (engine, kind))
    }
}

/// Linear between neighbouring points; below the first point its value, beyond the last the last segment's slope
/// (not below zero). One point is a constant.
fn interpolate(points: impl Iterator<Item = (f64, f64)>, x: f64) -> f64 {
    let mut before: Option<(f64, f64)> = None;
    let mut slope = 0.0;
    for (px, py) in points {
        match before {
            None if x <= px => return py,
            None => {}
            Some((bx, by)) => {
                slope = if px > bx { (py - by) / (px - bx) } else { 0.0 };
                if x <= px {
                    return by + slope * (x - bx);
                }
            }
        }
        before = Some((px, py));
    }
    before.map_or(0.0, |(bx, by)| by + f64::max(slope, 0.0) * (x - bx))
}

/// What a CPU says of its parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuAttributes {
    /// Its highest clock in MHz.
    pub mhz: f64,
    /// Hardware threads of a core.
    pub threads_per_core: u16,
}

/// What a machine's parts say of themselves: the inputs of published formulas.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Hardware {
    /// Its CPU; `None` if that does not tell.
    pub cpu: Option<CpuAttributes>,
    /// Its GPUs that tell.
    pub gpus: Vec<(EngineId, GpuAttributes)>,
    /// Clocks that a device can be set to, in kHz, lowest first, where a governor sets them.
    pub clocks_khz: Vec<(EngineId, Vec<u64>)>,
}

impl Hardware {
    /// What that engine's GPU says.
    pub fn gpu(&self, engine: EngineId) -> Option<&GpuAttributes> {
        self.gpus.iter().find(|(id, _)| *id == engine).map(|(_, gpu)| gpu)
    }

    /// The clocks of that engine's device in kHz, lowest first; empty if it names fewer than two.
    pub fn clocks(&self, engine: EngineId) -> Vec<u64> {
        let set = self.clocks_khz.iter().find(|(id, _)| *id == engine).map(|(_, clocks)| clocks.clone());
        let own =
            || self.gpu(engine).map(|gpu| gpu.clocks_mhz.iter().map(|mhz| u64::from(*mhz) * 1000).collect());
        set.or_else(own).filter(|clocks: &Vec<u64>| clocks.len() > 1).unwrap_or_default()
    }
}

/// What a policy is told once, when it is made.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// Engines, each at the index of its id. At least one does every kind inline.
    pub engines: Vec<EngineView>,
    /// Calibrated costs.
    pub costs: Costs,
    /// Cores this process may use: hardware threads.
    pub cores: u16,
    /// What to minimise.
    pub objective: Objective,
    /// What its parts are.
    pub hardware: Hardware,
    /// From where on its device is worth a write, if calibration looked.
    pub turning: Option<Turning>,
}

impl Machine {
    /// The first engine of that class which can do the kind.
    pub fn of_class(&self, class: EngineClass, kind: Kind) -> Option<&EngineView> {
        self.engines.iter().find(|engine| engine.class == class && engine.can(kind))
    }

    /// Nanoseconds of one request of a kind alone on the fastest engine that does it inside the call, by calibration at
    /// the smallest size; `None` if not measured.
    pub fn alone_ns(&self, kind: Kind) -> Option<f64> {
        let inline = self.engines.iter().filter(|one| one.inline.contains(kind) && one.widths.of(kind) == 1);
        inline.filter_map(|engine| self.costs.latency_ns(engine.id, kind, 0)).min_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_batches_are_believed_if_all_are_numbers_above_zero_and_one_alone_is_known() {
        let (engine, kind) = (EngineId(1), Kind::Sha256);
        let times = |points: &[(u16, f64)]| {
            let mut costs = Costs::new();
            costs.set_batches(engine, kind, vec![(1, 7.0)]);
            costs.set_batches(engine, kind, points.to_vec());
            costs.batch_times(engine, kind, 3)
        };
        assert_eq!(times(&[(4, 400.0), (1, 100.0)]), Some(3.0));
        for bad in [&[(4, 400.0)][..], &[(1, 100.0), (4, 0.0)], &[(1, 100.0), (4, f64::INFINITY)]] {
            assert_eq!(times(bad), None, "{bad:?}");
        }
    }
}
