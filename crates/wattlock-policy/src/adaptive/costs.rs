//! What ways of doing a request cost: the formulas of the module's header.

use super::question::{Evidence, Question, Way};
use super::table::Table;
use crate::estimate::Candidate;

impl Table {
    /// What this candidate would cost; `None` while it is unknown.
    pub(super) fn way(
        &self,
        candidate: &Candidate,
        question: &Question<'_>,
        evidence: Evidence,
    ) -> Option<Way> {
        let bytes = question.shape.bytes;
        let (alone, batch) =
            (evidence.ns(candidate, bytes)?.max(1.0), self.pass(candidate, question, evidence) as f32);
        let (ns, across_ns) = match candidate.on_thread() {
            true => {
                let pass = alone * evidence.passes(candidate, batch);
                self.on_this_thread(candidate, pass, batch, question)
            }
            false => {
                let ns = self.on_device(candidate, alone, question, evidence);
                (ns, ns)
            }
        };
        let distrust = match evidence {
            Evidence::Live => {
                question.distrust[candidate.id.index()].factor(question.now, question.rules.half_life_ns)
            }
            Evidence::Calibrated => 1.0,
        };
        // Distrust weighs on joules too, or an engine that fails would stay the most frugal one.
        let nj = evidence.nj(candidate, bytes).map(|nj| nj / batch * distrust);
        Some(Way { ns: ns * distrust, across_ns: across_ns * distrust, nj })
    }

    /// How many of those in hand share this engine's next pass: as many as it takes, or half a pass where that and then
    /// the rest take less. (RSA does four in half the time of eight: of five, four together and one alone.)
    pub(super) fn pass(&self, one: &Candidate, question: &Question<'_>, evidence: Evidence) -> u32 {
        if !one.on_thread() {
            return 1;
        }
        let (whole, half) = (question.count.min(u32::from(one.width)), u32::from(one.width / 2));
        let bytes = question.shape.bytes;
        let Some(alone) =
            evidence.ns(one, bytes).filter(|_| whole > half && half > 0 && question.rules.tuning.half_passes)
        else {
            return whole;
        };
        let (passes, rest) = (|count: u32| alone * evidence.passes(one, count as f32), whole - half);
        let singly = self.inline_ns(bytes, evidence).map_or(f32::INFINITY, |ns| ns * rest as f32);
        match passes(half) + passes(rest).min(singly) < question.rules.stay * passes(whole) {
            true => half,
            false => whole,
        }
    }

    /// Against other ways on this thread, and against devices.
    fn on_this_thread(&self, one: &Candidate, pass: f32, batch: f32, question: &Question<'_>) -> (f32, f32) {
        let pressure = 1.0 + question.delay(question.waiting(), question.usual);
        let maturing = if self.has_devices { self.maturing(pass, question) } else { 0.0 };
        let left_out = (question.waiting() + 1.0 - batch).max(0.0);
        let usual = if one.width == 1 { question.usual } else { question.usual.min(left_out) };
        let mine = pass / batch;
        let ns = mine * (pressure + maturing);
        match question.rules.tuning.across {
            true => (ns, pass + mine * (question.delay(left_out, usual) + maturing)),
            false => (ns, ns),
        }
    }

    fn on_device(&self, one: &Candidate, alone: f32, question: &Question<'_>, evidence: Evidence) -> f32 {
        let queued = match evidence {
            Evidence::Live if question.is_job() => self.job_ns(one, alone, question),
            Evidence::Live => {
                let calibrated = one.calibrated_ns(question.shape.bytes).filter(|_| question.is_crowded(one));
                let free = calibrated.unwrap_or(alone);
                let in_flight = question.weather.engines[one.id.index()].in_flight as f32;
                free + question.rules.tuning.delay_weight * (one.queue_ns(alone, in_flight) - free)
            }
            Evidence::Calibrated => alone,
        };
        let submit = one.submit(question.rules.submit_ns);
        let pressure = 1.0 + question.delay(question.waiting(), question.usual);
        (queued - submit.within()).max(0.0) + submit.ns * pressure
    }

    /// What a piece of a job costs on a device: "Jobs" in the header. The 2 says that work is handed over a little before
    /// it is even: what a device does not do while it is not tried is lost as well.
    fn job_ns(&self, device: &Candidate, alone: f32, question: &Question<'_>) -> f32 {
        let lasted = self.job_since.map_or(0.0, |since| question.now.saturating_sub(since) as f32);
        let state = &question.weather.engines[device.id.index()];
        let in_flight = state.in_flight as f32;
        let tuning = question.rules.tuning;
        if tuning.job_room
            && state.window_bytes > 0
            && state.in_flight_bytes + question.shape.bytes as u64 > state.window_bytes
        {
            return (in_flight + 1.0) * device.mean_ns() / device.servers();
        }
        let backlog = device.queue_ns(alone, in_flight - 1.0) - alone;
        alone * alone / (alone + tuning.job_lasts * lasted) + backlog
    }

    /// Completions that will come from devices while the thread is busy for so long, times the share of that time they
    /// lie there and the weight of delaying other requests.
    fn maturing(&self, busy_ns: f32, question: &Question<'_>) -> f32 {
        if question.is_job() || !question.rules.tuning.maturing {
            return 0.0;
        }
        let devices = self.candidates.iter().filter(|one| !one.on_thread());
        let each = devices.map(|device| {
            let in_flight = question.weather.engines[device.id.index()].in_flight as f32;
            let rounds = busy_ns / device.mean_ns();
            let late = if rounds <= 1.0 { 0.5 } else { 1.0 - 0.5 / rounds };
            // A device with requests queued works on while no thread collects, whatever thread they are of.
            let queued = in_flight > device.servers() || question.is_crowded(device);
            let weight = if queued { 1.0 } else { question.rules.tuning.delay_weight };
            weight * late * (in_flight.min(device.servers()) * rounds).min(in_flight)
        });
        each.sum()
    }

    /// Whether a pass would be made for one request alone that takes no less than an engine does that does one at a time. Of
    /// that one a few observations have no say: one slow moment of the thread must not cost the next request several times
    /// its time.
    pub(super) fn is_vain(&self, index: usize, question: &Question<'_>) -> bool {
        let lanes = self.candidates.get(index).filter(|one| one.on_thread() && one.width > 1);
        let Some(lanes) = lanes.filter(|_| question.count == 1 && question.rules.tuning.vain) else {
            return false;
        };
        let bytes = question.shape.bytes;
        let others =
            self.candidates.iter().filter(|one| one.inline && one.width == 1 && question.is_usable(one));
        let quickest = others.filter_map(|one| one.settled_ns(bytes)).min_by(f32::total_cmp);
        lanes.ns(bytes).zip(quickest).is_some_and(|(pass, one)| one <= pass)
    }

    /// Nanoseconds of one request alone, at least one, and more after a fault.
    pub(super) fn trusted_ns(&self, one: &Candidate, question: &Question<'_>) -> Option<f32> {
        let distrust = question.distrust[one.id.index()].factor(question.now, question.rules.half_life_ns);
        Some(one.ns(question.shape.bytes)?.max(1.0) * distrust)
    }
}
