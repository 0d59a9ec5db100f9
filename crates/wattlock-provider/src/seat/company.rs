//! Whether gathering helps a thread.
//!
//! A program may run jobs one at a time. Where gathering brought nobody whose company helped, the operations of that
//! thread are done inside the call, and gathering is tried again after a millisecond, then two, up to 16: a trial
//! costs one turn of the loop.

use wattlock::core::Nanos;

/// First and last pause between trials of gathering where nobody comes.
const TRIAL_NS: (Nanos, Nanos) = (1_000_000, 16_000_000);
/// Gatherings in vain before a thread is taken to be alone.
const IN_VAIN: u32 = 2;

#[derive(Debug)]
pub(super) struct Company {
    in_vain: u32,
    next_trial: Nanos,
    pause: Nanos,
}

impl Default for Company {
    fn default() -> Company {
        Company { in_vain: 0, next_trial: 0, pause: TRIAL_NS.0 }
    }
}

impl Company {
    pub(super) fn expected(&self, now: Nanos) -> bool {
        self.in_vain < IN_VAIN || now >= self.next_trial
    }

    pub(super) fn learned(&mut self, helped: bool, now: Nanos) {
        if helped {
            *self = Company::default();
            return;
        }
        self.in_vain = self.in_vain.saturating_add(1);
        if self.in_vain >= IN_VAIN {
            self.next_trial = now.saturating_add(self.pause);
            self.pause = (self.pause * 2).min(TRIAL_NS.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_finds_no_company_tries_again_ever_more_rarely() {
        let mut company = Company::default();
        assert!(company.expected(0));
        company.learned(false, 10);
        assert!(company.expected(10), "once is no rule");
        company.learned(false, 20);
        assert!(!company.expected(20 + TRIAL_NS.0 - 1) && company.expected(20 + TRIAL_NS.0));
        for _ in 0..20 {
            company.learned(false, 1000);
        }
        assert_eq!(company.next_trial, 1000 + TRIAL_NS.1);
        company.learned(true, 2000);
        assert!(company.expected(2000));
    }
}
