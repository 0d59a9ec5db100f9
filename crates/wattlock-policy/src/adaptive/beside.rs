//! Lanes, and this thread, beside devices: where deciding one request at a time settles on a mixture that is worse than
//! either, steady rates are compared first.

use super::question::{Evidence, Question, Way, device_rates};
use super::table::Table;
use crate::machine::{EngineId, MAX_ENGINES, Objective};

impl Table {
    /// Lanes live on batch-mates and devices take them away: where there are too few requests for both, deciding one at
    /// a time settles on a mixture worse than either. So the steady rates of n clients are compared, each client with
    /// one request at a time: lanes `b / P`; a device alone, or with the thread working inline beside it
    /// ([`device_rates`]). The loser is left out.
    pub(super) fn keep_one_regime(&self, ways: &mut [Option<Way>; MAX_ENGINES], question: &Question<'_>) {
        let off = !question.rules.tuning.one_regime;
        if off || question.weather.active == 0 || question.rules.objective != Objective::Performance {
            return;
        }
        let n = question.weather.active as f32;
        let present = || self.candidates.iter().zip(ways.iter()).filter(|(_, way)| way.is_some());
        let known = present().filter_map(|(one, _)| Some((one, self.trusted_ns(one, question)?)));
        let (mut inline, mut lanes, mut enough_lanes) = (0.0f32, 0.0f32, (0.0f32, 0.0f32));
        for (one, ns) in known.clone().filter(|(one, _)| one.on_thread()) {
            let batch = n.min(f32::from(one.width));
            let ns = ns * one.fullness(batch);
            if one.width == 1 {
                inline = inline.max(1.0 / ns);
            } else if batch / ns > lanes {
                lanes = batch / ns;
                enough_lanes = (2.0 * f32::from(one.width), ns);
            }
        }
        let (mut devices, mut enough) = (0.0f32, 0.0f32);
        for (one, ns) in known.filter(|(one, _)| !one.on_thread()) {
            let (alone, both) = device_rates(
                question.rules,
                n,
                (ns, one.servers()),
                one.submit(question.rules.submit_ns),
                (inline > 0.0).then_some(1.0 / inline),
            );
            devices = devices.max(alone).max(both);
            enough = enough.max(enough_lanes.0 + one.servers() * (enough_lanes.1 / ns).max(1.0));
        }
        if lanes <= inline || devices == 0.0 || n >= enough {
            return;
        }
        let lanes_win = lanes >= devices;
        for (way, one) in ways.iter_mut().zip(&self.candidates) {
            let is_lanes = one.on_thread() && one.width > 1;
            let is_device = !one.on_thread();
            if is_device && lanes_win || is_lanes && !lanes_win {
                *way = None;
            }
        }
    }

    /// A device did not take a request of that size.
    pub(super) fn on_refusal(&mut self, engine: EngineId, bytes: usize, submit_ns: f32) {
        let inline_ns = self.inline_ns(bytes, Evidence::Live).unwrap_or(0.0);
        let device = self.candidates.iter_mut().find(|one| one.id == engine && !one.on_thread());
        if let Some(device) = device {
            let gain = inline_ns - device.calibrated_ns(bytes).unwrap_or(inline_ns);
            device.on_refusal(device.submit(submit_ns).ns / gain.max(1.0));
        }
    }

    /// Whether this request is one of those that a device which used to have no room is spared.
    pub(super) fn must_pass(&self, index: usize) -> bool {
        self.candidates.get(index).is_some_and(|one| !one.on_thread() && !one.has_turn())
    }
}
