//! Experiments: at most one request in so many goes to an engine that calibration says should win, or that nobody
//! calibrated.

use super::question::{Evidence, Question, Rules, Scoring};
use super::table::Table;

impl Table {
    /// Another candidate to try these on, if one deserves it.
    pub(super) fn experiment(&mut self, best: usize, question: &Question<'_>) -> Option<usize> {
        self.judge(best, question.shape.bytes, question.rules);
        let index = (0..self.candidates.len())
            .find(|index| *index != best && self.deserves(*index, best, question))?;
        let candidate = &mut self.candidates[index];
        candidate.explored = Some(candidate.ns(question.shape.bytes).unwrap_or(f32::INFINITY));
        if question.rules.tuning.refresh {
            candidate.refresh(question.shape.bytes);
        }
        Some(index)
    }

    /// Whether what was explored since has won, is at least becoming better, or lost.
    fn judge(&mut self, best: usize, bytes: usize, rules: &Rules) {
        let tuning = rules.tuning;
        for (index, candidate) in self.candidates.iter_mut().enumerate() {
            let Some(believed) = candidate.explored.take() else { continue };
            if index == best {
                candidate.backoff = 1;
            } else if candidate.ns(bytes).is_none_or(|now| now > (1.0 - tuning.improved) * believed)
                || believed.is_infinite()
            {
                candidate.skip += candidate.backoff;
                candidate.backoff =
                    if tuning.backoff { (2 * candidate.backoff).min(tuning.backoff_most) } else { 1 };
            }
        }
    }

    fn deserves(&mut self, index: usize, best: usize, question: &Question<'_>) -> bool {
        if !question.is_usable(&self.candidates[index]) {
            return false;
        }
        if self.candidates[index].skip > 0 {
            self.candidates[index].skip -= 1;
            return false;
        }
        let Some(live) = self.way(&self.candidates[index], question, Evidence::Live) else { return true };
        if self.is_vain(index, question) {
            return false;
        }
        let hoped = self.way(&self.candidates[index], question, Evidence::Calibrated);
        let across = self.candidates[index].on_thread() != self.candidates[best].on_thread();
        let Some(best) = self.way(&self.candidates[best], question, Evidence::Live) else { return false };
        let scoring = Scoring::new(&[Some(live), Some(best)], question);
        let (Some(live), Some(best)) = (scoring.of(&live, across), scoring.of(&best, across)) else {
            return false;
        };
        let tuning = question.rules.tuning;
        if tuning.hope
            && hoped.is_some_and(|hoped| scoring.of(&hoped, across).is_none_or(|hoped| hoped >= best))
        {
            return false;
        }
        if live <= tuning.hopeless * best {
            return true;
        }
        let candidate = &mut self.candidates[index];
        if tuning.soften && question.now.saturating_sub(candidate.softened) >= tuning.soften_ns {
            candidate.softened = question.now;
            candidate.soften(question.shape.bytes);
        }
        false
    }
}
