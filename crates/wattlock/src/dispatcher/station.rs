//! One engine as one dispatcher has it: its instance, its standing, and what lanes hold by kind.

use std::sync::Arc;

use wattlock_core::{Engine, Instance, Kind, KindSet, Nanos, Shape, Token};

use wattlock_policy::Choice;

use crate::health::Health;

/// One engine as one dispatcher has it.
pub(super) struct Station {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) health: Health,
    pub(super) instance: Option<Box<dyn Instance>>,
    /// When what the instance holds must go; `None` while it holds nothing.
    pub(super) flush_by: Option<Nanos>,
    pub(super) is_cpu: bool,
    /// The engine's width, and whether requests wait here for company of their own kind, to be done on this thread.
    pub(super) width: u16,
    pub(super) is_lanes: bool,
    /// Kinds the engine does through its instance.
    pub(super) queued: KindSet,
    /// Kinds the profile has no joules for, as far as anyone has asked: looking that up costs as much as counting.
    pub(super) unmetered: KindSet,
    /// What an instance of CPU lanes holds, by kind: lanes share a pass with their own kind only, and a batch that
    /// stayed thin is better done one by one. Empty for every other engine.
    pub(super) held: Vec<Gathering>,
}

/// What lanes hold of one kind.
#[derive(Clone, Copy)]
pub(super) struct Gathering {
    /// The first one's shape.
    pub(super) shape: Shape,
    /// The first one's token. Whoever came later and is not held any more has left.
    pub(super) first: Token,
    pub(super) count: u16,
    /// How long the policy said that they may be held.
    pub(super) hold_ns: Nanos,
    /// So many more of that shape may join unasked, and so many have since the policy was told.
    pub(super) alike: u16,
    pub(super) unasked: u16,
}

impl Station {
    pub(super) fn new(engine: &Arc<dyn Engine>) -> Station {
        let description = engine.description();
        let is_cpu = description.class.is_cpu();
        Station {
            engine: engine.clone(),
            health: Health::default(),
            instance: None,
            flush_by: None,
            is_cpu,
            width: description.width,
            is_lanes: is_cpu && description.width > 1,
            queued: description.queued,
            unmetered: KindSet::EMPTY,
            held: Vec::new(),
        }
    }

    /// Whether the engine may do a kind inside the call now: it is the CPU's and has proved the kind. What a device does
    /// goes through its queue only, because that is where its results are checked.
    #[inline]
    pub(super) fn works_inside(&self, kind: Kind) -> bool {
        self.is_cpu && self.health.ready(kind)
    }

    /// What lanes hold of a kind.
    pub(super) fn gathering(&self, kind: Kind) -> Option<&Gathering> {
        self.held.iter().find(|one| one.shape.kind == kind)
    }

    /// Lanes have taken in a request that the policy named them for. They do a batch by themselves once it is full.
    pub(super) fn note_held(&mut self, token: Token, shape: &Shape, choice: &Choice) {
        if !self.is_lanes {
            return;
        }
        let Choice { hold_ns, alike, .. } = *choice;
        let at = self.held.iter().position(|one| one.shape.kind == shape.kind).unwrap_or(self.held.len());
        if at == self.held.len() {
            let (shape, first) = (*shape, token);
            self.held.push(Gathering { shape, first, count: 0, hold_ns, alike, unasked: 0 });
        } else if self.held[at].shape == *shape {
            (self.held[at].hold_ns, self.held[at].alike) = (hold_ns, alike);
        }
        self.count_held(at);
    }

    /// Lanes have taken in a request that joined others unasked. Returns the batch if it is full.
    #[inline]
    pub(super) fn note_unasked(&mut self, kind: Kind) -> Option<Gathering> {
        let at = self.held.iter().position(|one| one.shape.kind == kind)?;
        self.held[at].alike = self.held[at].alike.saturating_sub(1);
        self.held[at].unasked += 1;
        self.count_held(at)
    }

    /// Counts one more in this batch, and takes it out if that makes it full: then it is done by now.
    #[inline]
    fn count_held(&mut self, at: usize) -> Option<Gathering> {
        self.held[at].count += 1;
        (self.held[at].count >= self.width).then(|| self.held.remove(at))
    }

    /// So many requests are no longer held, if they were: those of a kind that are held came after all others of it.
    pub(super) fn forget(&mut self, first: Token, kind: Kind, count: u32) {
        let held = |one: &Gathering| one.shape.kind == kind && first >= one.first;
        if let Some(at) = self.held.iter().position(held) {
            self.held[at].count = self.held[at].count.saturating_sub(count as u16);
            if self.held[at].count == 0 {
                self.held.remove(at);
            }
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.held.clear();
    }

    /// Requests held that a request of this kind would share a pass with.
    pub(super) fn held_alike(&self, kind: Kind) -> u32 {
        if self.is_lanes {
            return self.gathering(kind).map_or(0, |one| u32::from(one.count));
        }
        self.instance.as_ref().map_or(0, |instance| instance.held())
    }

    pub(super) fn flush(&mut self, now: Nanos) {
        self.flush_by = None;
        self.forget_all();
        if let Some(instance) = self.instance.as_mut().filter(|instance| instance.held() > 0) {
            instance.flush(now);
        }
    }
}
