//! What `adaptive` can do without: each of its rules as a switch, each of its constants as a number. Production runs
//! [`Tuning::DEFAULT`] and no setting reaches it. `wattlock lab ablate` takes the rules out one at a time, halves and
//! doubles the constants, and prints what each row of the lab loses.
//!
//! A rule stays if some row loses 2 % without it; its comment names the row. Published constants, safety and faults
//! are not here. Margins are kept as what they differ from 1, or halving them would mean nothing.

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
                let mut all = Vec::new();
                $(all.push(Ablation {
                    name: stringify!($rule),
                    change: "out",
                    tuning: Tuning { $rule: false, ..default },
                });)*
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
        /// W counts those that usually wait, `u`.
        usual,
        /// A crowded device's queue is waiting like any other.
        crowded,
        /// Completions that mature on devices while the thread is busy count as waiting.
        maturing,
        /// Lanes against a device: those that share a pass are not delayed by it.
        across,
        /// A CPU that more threads want than there are cores is slower.
        dilation,
        /// A request alone goes to lanes only where a pass is quicker by calibration.
        vain,
        /// A pass more than half full is learned apart.
        fullness,
        /// Half a pass, and then the rest, where that takes less than a whole one.
        half_passes,
        /// Of lanes and devices the one of lower steady rate is left out.
        one_regime,
        /// A thread beside devices with a server for everyone only hands over.
        thread_free,
        /// It does so only where there are no more other threads than clients.
        thread_free_alone,
        /// A device that refused is sent less.
        restraint,
        /// The time that an answer lay between two polls is not the device's.
        lain,
        /// Pieces of a bulk job count by their sum.
        jobs,
        /// A job waits for room in a full window where that earns more than working meanwhile.
        job_room,
        /// The engine last chosen is left only for one that is better by the margin.
        stay,
        /// Experiments.
        explore,
        /// Nothing is tried that calibration does not favour.
        hope,
        /// Each lost experiment doubles the opportunities passed over.
        backoff,
        /// A belief too bad for an experiment is softened.
        soften,
        /// After an experiment the next observations count as if they were the first.
        refresh,
        /// Half a window of servers is hoped for until a request had to wait.
        hoped,
        /// A device's servers are learned from its waits.
        servers,
        /// The queue's mean is that of what was submitted lately, not that of this request.
        mean,
        /// Only requests that meet little of our own teach a device's time.
        shallow,
        /// An outlier counts as at most `outlier` times the belief.
        outliers,
        /// Two clocks may take turns.
        turns,
        /// A pass begins at the slow clock only if the fastest could do what comes meanwhile.
        way_out,
        /// If no clock keeps up, the cheapest of the nearly fastest.
        near_enough,
        /// Messages wait for company where that saves watts.
        company,
        /// The last few messages count where they are a surge.
        surges,
    }
    constants {
        /// D: what a nanosecond of somebody else's delay weighs against one's own.
        delay_weight: f32 = 2.0,
        /// Requests over which `u` is the mean.
        usual_over: f32 = 32.0,
        /// How much more a device alone must promise before the thread only hands over.
        promise: f32 = 0.06,
        /// What a piece's own time on a device counts less for each unit of the time that the job has lasted.
        job_lasts: f32 = 2.0,
        /// An engine believed to be this many times dearer than the best is not explored.
        hopeless: f32 = 4.0,
        /// Nanoseconds after which a hopeless belief is softened.
        soften_ns: u64 = 250_000_000,
        /// Most opportunities passed over between two explorations of one engine.
        backoff_most: u32 = 1024,
        /// An experiment that lost counts as better if the belief fell by this share.
        improved: f32 = 0.1,
        /// Least weight of an observation.
        settled: f32 = 1.0 / 32.0,
        /// A calibrated value counts as so many observations.
        calibrated: u8 = 3,
        /// Most times the belief that one observation counts as.
        outlier: f32 = 4.0,
        /// What more than the noise of a calibration is.
        slow: f32 = 0.1,
        /// How far a request that a device does lowers the restraint (a logarithm to base 2).
        taken: f32 = 0.25,
        /// How far a refusal raises it at most.
        refused: f32 = 2.0,
        /// The most there is.
        restraint_most: f32 = 10.0,
        /// Requests over which the mean time of submissions is taken.
        mean_over: f32 = 16.0,
        /// Passes over which a full pass's cost is learned.
        full_over: f32 = 8.0,
        /// Share of the mean time that a wait must exceed to count as one.
        waited: f32 = 0.25,
        /// Outcomes over which servers are learned.
        servers_over: f32 = 8.0,
        /// Share of the window that is hoped for as servers.
        hoped_share: f32 = 0.5,
        /// Share of the servers up to which a request met little of our own.
        shallow_share: f32 = 0.5,
        /// Share of the window that a pass at the slow clock leaves. This and the next two are tuned in the lab, on
        /// LECPAES's machine: its rule's retransmissions, with the fewest joules.
        room: f64 = 0.03,
        /// What faster clocks, except the fastest, may need beyond the window.
        hard: f64 = 0.5,
        /// Share of the window that a pass leaves before a raised clock comes down.
        calm: f64 = 0.2,
        /// How much faster than the last few dozen the last few messages must be to count.
        surge: f64 = 0.3,
        /// Share of the window that passes hold when there is always work.
        pass: f64 = 0.75,
        /// How near the fastest a clock must be that is enough where none keeps up.
        near: f64 = 0.07,
        /// While at least this share of the window is free.
        brim: f64 = 0.04,
        /// A plan is left for one that costs so much less.
        better: f64 = 0.03,
        /// Reserve of a clock that keeps up.
        spare: f64 = 0.07,
        /// Share of the watts that waiting for company must save.
        worth: f64 = 0.02,
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
