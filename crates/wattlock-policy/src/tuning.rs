//! What `adaptive` can do without: each of its rules as a switch, each of its constants as a number. Production runs
//! [`Tuning::DEFAULT`] and no setting reaches it. `wattlock lab ablate` takes the rules out one at a time, halves and
//! doubles the constants, and prints what each row of the lab loses.
//!
//! A rule stays if some row loses 2 % without it; its comment names the row that loses most, and how much. Published
//! constants, safety and faults are not here. Margins are kept as what they differ from 1, or halving them would mean
//! nothing. Most constants may be half or twice what they are before any row loses 2 %: their comments do not defend
//! the value. Those that are not, say so.

/// One of [`Tuning`]'s rules taken out, or one of its constants changed.
#[derive(Debug, Clone, Copy)]
pub struct Ablation {
    /// The field.
    pub name: &'static str,
    /// `out`, `halved` or `doubled`.
    pub change: &'static str,
    /// [`Tuning::DEFAULT`] with this change.
    pub tuning: Tuning,
}

macro_rules! tuning {
    (
        rules { $($(#[$about_rule:meta])* $rule:ident,)* }
        constants { $($(#[$about:meta])* $constant:ident: $type:ty = $value:expr,)* }
    ) => {
        /// The rules and constants of `adaptive`.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct Tuning {
            $($(#[$about_rule])* pub $rule: bool,)*
            $($(#[$about])* pub $constant: $type,)*
        }

        impl Tuning {
            /// What production runs.
            pub const DEFAULT: Tuning = Tuning { $($rule: true,)* $($constant: $value,)* };

            /// Every rule taken out, every constant halved and doubled, in the order of the fields.
            pub fn ablations() -> Vec<Ablation> {
                let default = Tuning::DEFAULT;
                let mut all = vec![$(Ablation {
                    name: stringify!($rule),
                    change: "out",
                    tuning: Tuning { $rule: false, ..default },
                }),*];
                $(for (change, factor) in [("halved", 0.5), ("doubled", 2.0)] {
                    let $constant = (default.$constant as f64 * factor) as $type;
                    all.push(Ablation {
                        name: stringify!($constant),
                        change,
                        tuning: Tuning { $constant, ..default },
                    });
                })*
                all
            }
        }
    };
}

tuning! {
    rules {
        /// W counts those that usually wait, `u`. Row: typical machine, "device with slow engines", 0.7 of capacity: 75
        /// %.
        usual,
        /// A crowded device's queue is waiting like any other. Row: eeca, `blocks_in_hand=1 block_kib=256`: 37 %.
        crowded,
        /// Completions that mature on devices while the thread is busy count as waiting. Row: aca-sds, writes of 1 KiB
        /// by 12 processes: 7 %.
        maturing,
        /// Lanes against a device: those that share a pass are not delayed by it. Row: random machine, seed 4, 19: 38
        /// %.
        across,
        /// A request alone goes to lanes only where a pass is quicker by calibration. Row: typical machine, "lanes and
        /// device", 4 clients: 5 %.
        vain,
        /// A pass more than half full is learned apart. Row: thin passes, unknown batches, 5 clients: 37 %.
        fullness,
        /// Half a pass, and then the rest, where that takes less than a whole one. Row: thin passes, calibrated
        /// batches, 5 clients: 37 %.
        half_passes,
        /// Of lanes and devices the one of lower steady rate is left out. Row: typical machine, "lanes and device", 4
        /// clients: 20 %.
        one_regime,
        /// A device that refused is sent less. Row: aca-sds, `window=2 processes=64`: 25 %.
        restraint,
        /// The time that an answer lay between two polls is not the device's. Row: qweb, transfers to 32 clients that
        /// answer at once: 47 %.
        lain,
        /// Pieces of a bulk job count by their sum. Row: eep, `setup_us=4000`: seven times the time.
        jobs,
        /// A job waits for room in a full window where that earns more than working meanwhile. Row: eep,
        /// `streams=4`: 13 %.
        job_room,
        /// The engine last chosen is left only for one that is better by the margin. Row: typical machine, "lanes and
        /// device", 4 clients: 6 %.
        stay,
        /// Experiments. Row: wrong calibration, a device without calibration, 16 clients: 92 %.
        explore,
        /// After an experiment the next observations count as if they were the first. Row: slow device, 20 times for
        /// 300 ms, 1 client: 18 %.
        refresh,
        /// Half a window of servers is hoped for until a request had to wait. Row: random machine, seed 1005, 19: 27 %.
        hoped,
        /// A device's servers are learned from its waits. Row: random machine, seed 1000, 17: 82 %.
        servers,
        /// The queue's mean is that of what was submitted lately, not that of this request. Row: typical machine,
        /// "device wins for large requests", 16 clients: 3 %.
        mean,
        /// Only requests that meet little of our own teach a device's time. Row: random machine, seed 4, 19: 37 %.
        shallow,
        /// Two clocks may take turns. Row: lecpaes, 500 us: 25 % of the joules.
        turns,
        /// A pass begins at the slow clock only if the fastest could do what comes meanwhile.
        way_out,
        /// If no clock keeps up, the cheapest of the nearly fastest. Row: lecpaes, 100 us: 3 % of the joules.
        near_enough,
        /// The last few messages count where they are a surge.
        surges,
    }
    constants {
        /// D: what a nanosecond of another request's delay weighs against one's own. Halved, random machine, seed 1006,
        /// 4, loses 35 %; doubled, typical machine, "device wins under concurrency", 4 clients, 27 %.
        delay_weight: f32 = 2.0,
        /// Requests over which `u` is the mean. Doubled, typical machine, "lanes and device", 4 clients, loses 20 %.
        usual_over: f32 = 32.0,
        /// What a piece's own time on a device counts less for each unit of the time that the job has lasted.
        job_lasts: f32 = 2.0,
        /// Requests of the best engine, in units of its time, that pay for what one request of a trial wastes.
        paid_by: f32 = 200.0,
        /// Requests after which an engine on the thread is tried that calibration favours, whatever that costs.
        favoured: f32 = 160.0,
        /// What pays for a trial of a device that calibration favours, in what pays for others' trials.
        favoured_device: f32 = 0.25,
        /// A trial that lowered what is believed by this share is followed by the next one at once.
        improved: f32 = 0.05,
        /// Requests after which a device, or this thread beside one, is tried that calibration does not favour.
        unfavoured: f32 = 65_536.0,
        /// How much rarer trials in vain may make the next ones.
        backoff: f32 = 8.0,
        /// How much rarer they are from the start between a device and this thread: all threads try at the same time. Row:
        /// eeca, `blocks_in_hand=1`: 7 %.
        across_backoff: f32 = 2.0,
        /// Least weight of an observation.
        settled: f32 = 1.0 / 32.0,
        /// A calibrated value counts as so many observations. Halved, aca-sds, writes of 1 KiB by 12, loses 4 %;
        /// doubled, typical machine, "lanes and device", 4 clients, 2 %.
        calibrated: u8 = 3,
        /// What more than the noise of a calibration is. Halved, aca-sds, writes of 1 KiB by 12, loses 6 %; doubled,
        /// qweb, 88 workers, 3 %.
        slow: f32 = 0.1,
        /// How far a request that a device does lowers the restraint (a logarithm to base 2).
        taken: f32 = 0.25,
        /// How far a refusal raises it at most.
        refused: f32 = 2.0,
        /// The most there is.
        restraint_most: f32 = 7.0,
        /// Requests over which the mean time of submissions is taken.
        mean_over: f32 = 16.0,
        /// Passes over which a full pass's cost is learned. Halved, random machine, seed 7, 22, loses 4 %.
        full_over: f32 = 8.0,
        /// Share of the mean time that a wait must exceed to count as one. Halved, aca-sds, writes of 1 KiB by 12,
        /// loses 7 %; doubled, random machine, seed 2024, 17, 11 %.
        waited: f32 = 0.25,
        /// Outcomes over which servers are learned. Either way a random machine loses 2 %.
        servers_over: f32 = 8.0,
        /// Share of the window that is hoped for as servers. Halved, random machine, seed 1005, 19, loses 27 %;
        /// doubled, seed 1000, 7, 3 %.
        hoped_share: f32 = 0.5,
        /// Share of the servers up to which a request met little of our own. Doubled, typical machine, "lanes and
        /// device", 4 clients, loses 9 %.
        shallow_share: f32 = 0.5,
        /// Share of the window that a pass at the slow clock leaves. This and the next two are tuned in the lab, on
        /// LECPAES's machine: its rule's retransmissions, with the fewest joules.
        room: f64 = 0.03,
        /// What faster clocks, except the fastest, may need beyond the window.
        hard: f64 = 0.5,
        /// Share of the window that a pass leaves before a raised clock comes down. Doubled, lecpaes, 500 us, loses 4 %
        /// of the joules.
        calm: f64 = 0.2,
        /// How much faster than the last few dozen the last few messages must be to count.
        surge: f64 = 0.3,
        /// Share of the window that passes hold when there is always work. Doubled, lecpaes, 100 us, loses 2 % of the
        /// joules.
        pass: f64 = 0.75,
        /// How near the fastest a clock must be that is enough where none keeps up. Halved, lecpaes, 100 us, loses 3 %
        /// of the joules; doubled, 3 points of retransmissions.
        near: f64 = 0.07,
        /// While at least this share of the window is free.
        brim: f64 = 0.04,
        /// A plan is left for one that costs so much less.
        better: f64 = 0.03,
        /// Reserve of a clock that keeps up.
        spare: f64 = 0.07,
        /// A gap counts as at most so many usual ones.
        pause: f64 = 4.0,
        /// Change of velocity that makes a new plan.
        replan: f64 = 0.05,
        /// Messages over which the long mean of the velocity is taken.
        long_over: f64 = 32.0,
        /// Messages over which the short one is.
        short_over: f64 = 4.0,
    }
}

impl Default for &'static Tuning {
    fn default() -> &'static Tuning {
        &Tuning::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ablation_changes_one_field() {
        let all = Tuning::ablations();
        for one in &all {
            assert_ne!(one.tuning, Tuning::DEFAULT, "{} {}", one.name, one.change);
            let text =
                |tuning: &Tuning| format!("{tuning:?}").split(", ").map(str::to_owned).collect::<Vec<_>>();
            let (changed, default) = (text(&one.tuning), text(&Tuning::DEFAULT));
            assert_eq!(changed.iter().zip(&default).filter(|(a, b)| a != b).count(), 1, "{}", one.name);
        }
        let mut names: Vec<_> = all.iter().map(|one| (one.name, one.change)).collect();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }
}
