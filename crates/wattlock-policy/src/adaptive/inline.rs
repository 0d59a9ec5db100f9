//! Which engine does a request inside the call: a table by size, so that the quickest requests cost a look-up.

use super::question::{Evidence, Rules};
use super::table::Table;
use crate::estimate::{BUCKETS, Candidate, bucket};
use crate::machine::{EngineId, Objective};

/// Slots of the inline table: quarters of a size bucket.
pub(super) const SLOTS: usize = 4 * BUCKETS;

/// Quarter-octave of a size.
#[inline]
pub(super) const fn slot(bytes: usize) -> usize {
    let log = (bytes | 1).ilog2() as usize;
    if log >= BUCKETS {
        return SLOTS - 1;
    }
    let quarter = if log < 2 { 0 } else { (bytes >> (log - 2)) & 3 };
    4 * log + quarter
}

/// A size in the middle of a slot.
pub(super) const fn slot_middle(slot: usize) -> usize {
    let (log, quarter) = (slot / 4, slot % 4);
    (1 << log) + (((2 * quarter + 1) << log) >> 3)
}

/// What counts of a request inside the call; joules only if they are known of all.
fn score(one: &Candidate, bytes: usize, objective: Objective, metered: bool) -> Option<f32> {
    let ns = one.ns(bytes)?;
    Some(match (objective, one.nj(bytes).filter(|_| metered)) {
        (Objective::Energy, Some(nj)) => nj,
        (Objective::Balanced, Some(nj)) => nj * ns,
        _ => ns,
    })
}

impl Table {
    /// Which engine does one request of that size inside the call, by the table.
    #[inline]
    pub(super) fn inline_best(&self, bytes: usize) -> EngineId {
        self.inline_best[slot(bytes)]
    }

    /// Writes every slot.
    pub(super) fn settle_all(&mut self, rules: &Rules) {
        (0..SLOTS).for_each(|slot| self.settle(slot, rules));
    }

    /// Writes the slots of a size's bucket.
    pub(super) fn settle_bucket(&mut self, bytes: usize, rules: &Rules) {
        let first = 4 * bucket(bytes);
        (first..first + 4).for_each(|slot| self.settle(slot, rules));
    }

    fn settle(&mut self, slot: usize, rules: &Rules) {
        let incumbent = Some(self.settled[slot]);
        if let Some(id) = self.inline_winner(slot_middle(slot), rules, incumbent, |_| true) {
            (self.inline_best[slot], self.settled[slot]) = (id, id);
        }
    }

    /// The cheapest of the engines that do the kind inside the call and pass `usable`; lanes only if nothing does one at a
    /// time: a slow moment of the thread must not send single requests to passes for good. Where costs are not known, the
    /// first in the order of preference.
    pub(super) fn inline_winner(
        &self,
        bytes: usize,
        rules: &Rules,
        incumbent: Option<EngineId>,
        usable: impl Fn(EngineId) -> bool,
    ) -> Option<EngineId> {
        let alone = self.candidates.iter().any(|one| one.inline && one.width == 1 && usable(one.id));
        let inline = || {
            let usable = self.candidates.iter().filter(|one| one.inline && usable(one.id));
            usable.filter(move |one| one.width == 1 || !alone)
        };
        let first = inline().next()?;
        let metered = inline().all(|one| one.nj(bytes).is_some());
        let score = |one: &Candidate| {
            let score = score(one, bytes, rules.objective, metered)?;
            Some(if Some(one.id) == incumbent { score * rules.stay } else { score })
        };
        if first.ns(bytes).is_none() {
            return Some(first.id);
        }
        let scored = inline().filter_map(|one| Some((one.id, score(one)?)));
        scored.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(id, _)| id)
    }

    /// Names an engine in all slots of a size's bucket, until they are written again: a trial makes no engine the
    /// incumbent.
    pub(super) fn name_in_table(&mut self, bytes: usize, id: EngineId) {
        let first = 4 * bucket(bytes);
        self.inline_best[first..first + 4].fill(id);
    }

    /// What counts of a request of that size on an engine that does one at a time; lower is better.
    pub(super) fn tabled_score(&self, id: EngineId, bytes: usize, rules: &Rules) -> Option<f32> {
        let mut inline = self.candidates.iter().filter(|one| one.inline && one.width == 1);
        let metered = inline.clone().all(|one| one.nj(bytes).is_some());
        score(inline.find(|one| one.id == id)?, bytes, rules.objective, metered)
    }

    /// What one request takes inside the call, at best.
    pub(super) fn inline_ns(&self, bytes: usize, evidence: Evidence) -> Option<f32> {
        let inline = self.candidates.iter().filter(|candidate| candidate.inline && candidate.width == 1);
        inline.filter_map(|candidate| evidence.ns(candidate, bytes)).min_by(f32::total_cmp)
    }
}
