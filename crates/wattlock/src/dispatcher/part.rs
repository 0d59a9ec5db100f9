//! Requests that are a part of a larger operation, and steps that follow one another on the same data.
//!
//! A step that follows another is done where that one was: by the device that did it, on the same queue pair, or by the
//! CPU if the policy had the choice and left that step to the CPU. Where the engine of the first step does not do the
//! second, or is away, the policy is asked as about any request.

use std::mem;

use wattlock_core::{Error, Item, Kind, Part, Place, Request};
use wattlock_policy::EngineId;

use super::Dispatcher;
use crate::telemetry::EngineCounter;

/// Where all that one call asked for was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Did {
    #[default]
    Nothing,
    All(Place),
    /// In several places, or by an engine that stood in for another.
    Anywhere,
}

impl Did {
    pub(super) fn add(&mut self, place: Place) {
        *self = match *self {
            Did::Nothing => Did::All(place),
            Did::All(before) if before == place => Did::All(before),
            _ => Did::Anywhere,
        };
    }
}

/// Whom a step is for without a question to the policy.
pub(super) enum Next {
    Anyone,
    Cpu,
    Device(EngineId),
}

impl Dispatcher {
    /// As [`Dispatcher::run_all`], for requests that are a part of something larger. Says where they were done, if it was
    /// one place for all.
    pub fn run_all_of(&mut self, items: &mut [Item<'_>], part: Part) -> Option<Place> {
        self.within(part, |this| this.run_all(items))
    }

    /// As [`Dispatcher::run`], for a request that is a part of something larger.
    ///
    /// # Errors
    /// As [`Dispatcher::run`].
    pub fn run_of(&mut self, request: &mut Request<'_>, part: Part) -> Result<usize, Error> {
        let mut result = Err(Error::Unsupported);
        self.within(part, |this| result = this.run(request));
        result
    }

    fn within(&mut self, part: Part, work: impl FnOnce(&mut Dispatcher)) -> Option<Place> {
        let before = mem::replace(&mut self.part, part);
        self.did = Did::Nothing;
        work(self);
        self.part = before;
        match mem::take(&mut self.did) {
            Did::All(place) => Some(place),
            _ => None,
        }
    }

    /// Whom requests of this kind are for, by where the step before them was done.
    pub(super) fn next(&self, kind: Kind) -> Next {
        let Some(after) = self.part.after else { return Next::Anyone };
        let Some(station) = self.stations.get(usize::from(after.engine)) else { return Next::Anyone };
        let there = |index: usize| self.weather.engines[index].available;
        if !station.is_cpu {
            let id = EngineId(after.engine);
            let can = station.queued.contains(kind) && there(id.index());
            return if can { Next::Device(id) } else { Next::Anyone };
        }
        let mut devices = self
            .stations
            .iter()
            .enumerate()
            .filter(|(index, one)| one.queued.contains(kind) && there(*index));
        // A device that cannot do the first step was no choice for it.
        if devices.all(|(_, one)| one.queued.contains(after.kind)) { Next::Cpu } else { Next::Anyone }
    }

    /// The queue pair of this device that the step before used.
    pub(super) fn pair_before(&self, device: EngineId) -> Option<usize> {
        self.part.after.filter(|after| after.engine == device.0)?.pair.map(usize::from)
    }

    /// An engine that was named did so many requests.
    pub(super) fn note_place(&mut self, id: EngineId, kind: Kind, count: u32) {
        let is_cpu = |id: u8| self.stations.get(usize::from(id)).is_some_and(|station| station.is_cpu);
        let same = |after: Place| after.engine == id.0 || (is_cpu(after.engine) && is_cpu(id.0));
        if self.part.after.is_some_and(same) {
            self.row.add_engine(id, EngineCounter::Chained, u64::from(count));
        }
        let pair = (!is_cpu(id.0)).then_some(self.last_pair);
        self.did.add(Place { engine: id.0, pair, kind });
    }
}
