//! Trials: no belief keeps itself alive. An engine that is not chosen is tried again, at a bounded price.

use super::question::{Evidence, Question, Rules, Scoring};
use super::table::Table;

/// What one request in so many depends on.
struct Trial {
    /// What an engine is believed to take, in units of what the best one takes.
    live: f32,
    /// Whether calibration says that it should win; `None` if nobody calibrated.
    favoured: Option<bool>,
    /// Whether its work occupies this thread, and whether that is not so of the best one's, or the other way round.
    on_thread: bool,
    across: bool,
    /// By how much trials in vain have made the next ones rarer.
    backoff: f32,
}

impl Trial {
    /// One request in how many is a trial. One that takes `live` times as long wastes `live - 1`, and `paid_by` of the best
    /// one's pay for it. An engine on this thread that calibration favours does not wait for that long: what made it slow was
    /// a neighbour on the machine, as a rule, and is over, and no kernel is several times slower than its calibration for
    /// good. What calibration does not favour waits longest where a device is compared with this thread: the one costs a call
    /// and a place in a queue, the other keeps the device idle meanwhile.
    fn one_in(&self, rules: &Rules) -> f32 {
        let (tuning, every) = (rules.tuning, rules.explore_every as f32);
        let paid = tuning.paid_by * (self.live - 1.0);
        let backoff = if self.across { self.backoff.max(tuning.across_backoff) } else { self.backoff };
        match self.favoured {
            Some(true) if self.on_thread => paid.min(tuning.favoured).max(every),
            Some(false) if self.across => paid.max(tuning.unfavoured).max(every),
            _ => paid.max(every * backoff),
        }
    }
}

impl Table {
    /// Another candidate to try these on, if one is due. The best one would be given so many of them.
    pub(super) fn experiment(
        &mut self,
        best: usize,
        requests: u32,
        question: &Question<'_>,
    ) -> Option<usize> {
        let (every, bytes) = (question.rules.explore_every, question.shape.bytes);
        if every == 0 {
            return None;
        }
        self.candidates[best].asked(bytes).end();
        let mut found = None;
        for index in 0..self.candidates.len() {
            if index != best
                && question.is_usable(&self.candidates[index])
                && self.candidates[index].asked(bytes).pass(requests, every)
                && found.is_none()
                && self.is_due(index, best, question)
            {
                found = Some(index);
            }
        }
        let tried = &mut self.candidates[found?];
        tried.asked(bytes).begin();
        if question.rules.tuning.refresh {
            tried.refresh(bytes);
        }
        found
    }

    fn is_due(&mut self, index: usize, best: usize, question: &Question<'_>) -> bool {
        let [one, best] = [&self.candidates[index], &self.candidates[best]];
        let (Some(live), Some(least)) =
            (self.way(one, question, Evidence::Live), self.way(best, question, Evidence::Live))
        else {
            return true;
        };
        let across = one.on_thread() != best.on_thread();
        let scoring = Scoring::new(&[Some(live), Some(least)], question);
        let times = |way| Some(scoring.of(&way, across)? / scoring.of(&least, across)?);
        let calibrated = |one| self.way(one, question, Evidence::Calibrated).and_then(times);
        let favoured = calibrated(one).map(|times| {
            // On this thread both may take longer, or less long, than calibrated.
            let best = calibrated(best).filter(|_| one.on_thread());
            times < best.map_or(1.0, |best| best.max(1.0))
        });
        let (requests, on_thread) = (self.share(index, question), one.on_thread());
        let live = times(live).unwrap_or(live.across_ns / least.across_ns);
        let turns = self.candidates[index].asked(question.shape.bytes);
        let backoff = turns.backoff(question.rules.tuning.backoff);
        let trial = Trial { live, favoured, on_thread, across, backoff };
        turns.is_due(trial.one_in(question.rules) * requests as f32)
    }

    /// The same for requests that are done by the table: an engine that is due does those of that size until one of
    /// them is observed.
    pub(super) fn try_in_table(&mut self, bytes: usize, rules: &Rules) {
        let every = rules.explore_every;
        let best = self.inline_best(bytes);
        let Some(least) = self.tabled_score(best, bytes, rules).filter(|_| every > 0) else { return };
        let of_best = self.candidates.iter().find(|one| one.id == best);
        let calibrated = of_best.and_then(|one| one.calibrated_ns(bytes)).unwrap_or(0.0);
        let least_calibrated = of_best.and_then(|one| one.ns(bytes)).unwrap_or(0.0).max(calibrated);
        let mut due = None;
        for index in 0..self.candidates.len() {
            let one = &mut self.candidates[index];
            if one.id == best {
                one.tabled(bytes).end();
                continue;
            }
            if !one.inline || one.width > 1 || !one.tabled(bytes).pass(1, every) || due.is_some() {
                continue;
            }
            let (id, calibrated) = (one.id, one.calibrated_ns(bytes));
            let backoff = one.tabled(bytes).backoff(rules.tuning.backoff);
            let live = self.tabled_score(id, bytes, rules).map_or(0.0, |score| score / least);
            let favoured = calibrated.map(|one| one < least_calibrated);
            let trial = Trial { live, favoured, on_thread: true, across: false, backoff };
            let one = &mut self.candidates[index];
            if one.tabled(bytes).is_due(trial.one_in(rules)) {
                one.tabled(bytes).begin();
                one.refresh(bytes);
                due = Some(id);
            }
        }
        if let Some(id) = due {
            self.name_in_table(bytes, id);
        }
    }
}
