//! One engine as one dispatcher has it: its instance and its standing.

use std::sync::Arc;

use wattlock_core::{Engine, Kind, KindSet, Nanos};

use crate::device::Handle;
use crate::health::Health;

/// One engine as one dispatcher has it.
pub(super) struct Station {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) health: Health,
    pub(super) instance: Option<Handle>,
    pub(super) is_cpu: bool,
    /// Kinds the engine does through its instance.
    pub(super) queued: KindSet,
    /// Kinds the profile has no joules for, as far as anyone has asked: looking that up costs as much as counting.
    pub(super) unmetered: KindSet,
}

impl Station {
    pub(super) fn new(engine: &Arc<dyn Engine>) -> Station {
        let description = engine.description();
        Station {
            engine: engine.clone(),
            health: Health::default(),
            instance: None,
            is_cpu: description.class.is_cpu(),
            queued: description.queued,
            unmetered: KindSet::EMPTY,
        }
    }

    /// Whether the engine may do a kind inside the call now: it is the CPU's and has proved the kind. What a device does
    /// goes through its queue only, because that is where its results are checked.
    #[inline]
    pub(super) fn works_inside(&self, kind: Kind) -> bool {
        self.is_cpu && self.health.ready(kind)
    }

    pub(super) fn flush(&mut self, now: Nanos) {
        if let Some(instance) = self.instance.as_mut().filter(|instance| instance.held() > 0) {
            instance.flush(now);
        }
    }
}
