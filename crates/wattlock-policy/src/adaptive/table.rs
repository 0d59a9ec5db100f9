//! All that is known of one kind, and the choice.

use wattlock_core::{Kind, Nanos};

use super::inline::SLOTS;
use super::question::{Evidence, Question, Rules, Scoring, Way};
use crate::estimate::{BUCKETS, Candidate, bucket};
use crate::machine::{EngineId, MAX_ENGINES, Machine};
use crate::weather::{Choice, Outcome};

/// All that is known of one kind.
pub(super) struct Table {
    /// In the order of preference when nothing is known.
    pub(super) candidates: Vec<Candidate>,
    pub(super) has_devices: bool,
    /// A request has a level, which makes the work of each CPU engine longer or shorter alike. No request's cost tells of
    /// one of them alone.
    has_levels: bool,
    pub(super) inline_best: [EngineId; SLOTS],
    /// Candidate last chosen, by size bucket.
    favourite: [u8; BUCKETS],
    last: Option<Nanos>,
    /// When the present job began.
    pub(super) job_since: Option<Nanos>,
}

impl Table {
    pub(super) fn new(machine: &Machine, order: &[EngineId], kind: Kind, rules: &Rules) -> Table {
        let engines = order.iter().filter_map(|id| machine.engines.iter().find(|engine| engine.id == *id));
        let candidates: Vec<_> =
            engines.map(|engine| Candidate::new(engine, kind, &machine.costs, rules.tuning)).collect();
        let mut table = Table {
            has_devices: candidates.iter().any(|one| !one.on_thread()),
            has_levels: kind.levels().is_some(),
            candidates,
            inline_best: [EngineId(u8::MAX); SLOTS],
            favourite: [u8::MAX; BUCKETS],
            last: None,
            job_since: None,
        };
        table.settle_all(rules);
        table
    }

    pub(super) fn choose(&mut self, question: &Question<'_>) -> Option<Choice> {
        if self.has_devices {
            self.on_piece(question);
            self.candidates.iter_mut().for_each(Candidate::on_ask);
        }
        let best = self.cheapest(question, Evidence::Live)?;
        let of_best = self.share(best, question);
        let tried = self.experiment(best, of_best, question);
        if tried.is_none() {
            self.favourite[bucket(question.shape.bytes)] = best as u8;
        }
        let chosen = tried.unwrap_or(best);
        let mut count = tried.map_or(of_best, |tried| self.share(tried, question));
        let whole = self.whole_pass(chosen, question);
        if question.rules.explore_every > 0
            && (self.candidates[chosen].tries_whole(count, whole) || tried.is_some() && whole > count)
        {
            count = whole;
        }
        let candidate = &mut self.candidates[chosen];
        if !candidate.on_thread() {
            if let Some(alone) = candidate.ns(question.shape.bytes) {
                candidate.on_submit(alone);
            }
            candidate.take_turn();
        }
        Some(Choice { count, ..Choice::now(candidate.id) })
    }

    /// How many of those in hand an engine is given at once: a pass; one on a device, or where there is one, because with
    /// each the weather changes; else all, for an engine that is quickest with so many in hand is so with fewer.
    pub(super) fn share(&self, index: usize, question: &Question<'_>) -> u32 {
        let candidate = &self.candidates[index];
        match candidate.on_thread() && candidate.width > 1 {
            true => self.pass(candidate, question),
            false if self.has_devices => 1,
            false => question.count,
        }
    }

    /// As many of those in hand as a pass takes, for an engine that works by passes; else 0.
    fn whole_pass(&self, index: usize, question: &Question<'_>) -> u32 {
        let candidate = &self.candidates[index];
        let by_passes = candidate.on_thread() && candidate.width > 1;
        if by_passes { question.count.min(u32::from(candidate.width)) } else { 0 }
    }

    /// Takes note of a job's piece: how long the job has lasted says how long it will last. A new one begins where
    /// nothing is in flight and nothing came for longer than two pieces take.
    fn on_piece(&mut self, question: &Question<'_>) {
        let gap = self.last.replace(question.now).map(|last| question.now.saturating_sub(last));
        let gap = gap.unwrap_or(Nanos::MAX);
        let pause = self.inline_ns(question.shape.bytes).is_none_or(|one| gap as f32 > 2.0 * one);
        if !question.is_job() || pause && question.weather.in_flight() == 0 {
            self.job_since = None;
        }
        if question.is_job() {
            self.job_since.get_or_insert(question.now);
        }
    }

    /// The candidate with the lowest score; `None` if none is available and has room. While the cost of the first in
    /// the order of preference is not known, that one.
    pub(super) fn cheapest(&self, question: &Question<'_>, evidence: Evidence) -> Option<usize> {
        let usable = |index: &usize| question.is_usable(&self.candidates[*index]);
        let first = (0..self.candidates.len()).find(usable)?;
        let mut ways = [None; MAX_ENGINES];
        for index in (first..self.candidates.len()).filter(usable) {
            ways[index] = self.way(&self.candidates[index], question, evidence);
        }
        if ways[first].is_none() {
            return Some(first);
        }
        for (index, way) in ways.iter_mut().enumerate() {
            *way = way.filter(|_| !self.is_vain(index, question) && !self.must_pass(index));
        }
        if self.has_devices {
            self.keep_one_regime(&mut ways, question);
        }
        Some(self.least(&ways, question).unwrap_or(first))
    }

    /// The best way on this thread, then the best of that and the devices.
    fn least(&self, ways: &[Option<Way>; MAX_ENGINES], question: &Question<'_>) -> Option<usize> {
        let scoring = Scoring::new(ways, question);
        let incumbent = usize::from(self.favourite[bucket(question.shape.bytes)]);
        let weigh = |index: usize, across: bool| {
            let score = ways[index].and_then(|way| scoring.of(&way, across))?;
            Some(if index == incumbent { score * question.rules.stay } else { score })
        };
        let least = |indices: &mut dyn Iterator<Item = usize>, across: bool| {
            let scored = indices.filter_map(|index| Some((index, weigh(index, across)?)));
            scored.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(index, _)| index)
        };
        let is_cpu = |index: &usize| self.candidates[*index].on_thread();
        let thread = least(&mut (0..self.candidates.len()).filter(is_cpu), false);
        if !self.has_devices {
            return thread;
        }
        let devices = (0..self.candidates.len()).filter(|index| !is_cpu(index));
        least(&mut thread.into_iter().chain(devices), true)
    }

    pub(super) fn observe(&mut self, bytes: usize, outcome: &Outcome, lain_ns: f32, rules: &Rules) {
        let Some(candidate) = self.candidates.iter_mut().find(|one| one.id == outcome.engine) else { return };
        let seen = outcome.latency_ns.saturating_sub(outcome.held_ns) as f32;
        let service = match candidate.calibrated_ns(bytes) {
            Some(alone) if !candidate.on_thread() => (seen - lain_ns).max(alone.min(seen)),
            _ => seen,
        };
        let before = candidate.ns(bytes);
        candidate.on_outcome(bytes, service, outcome.batch, outcome.depth, outcome.energy_nj);
        if self.has_levels && candidate.on_thread() {
            let (id, after) = (candidate.id, candidate.ns(bytes));
            if let (Some(before), Some(after)) = (before, after) {
                let others = self.candidates.iter_mut().filter(|one| one.on_thread() && one.id != id);
                others.for_each(|one| one.scale(bytes, after / before.max(1.0)));
            }
            self.settle_bucket(bytes, rules);
            return;
        }
        if candidate.inline && candidate.width == 1 {
            self.settle_bucket(bytes, rules);
            self.try_in_table(bytes, rules);
        }
    }
}
