//! Plans of a file's ledger against a model of the disk: what a sync acknowledged is there wherever power is lost.
#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use wattlock_fs::dev::plans;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn power_that_is_lost_behind_any_step_loses_nothing_that_was_acknowledged(seed: u64) {
        let mut random = seed | 1;
        plans::run(40, &mut |below| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % below
        });
    }
}

/// Found by chance: a cut whose last step was refused left the file longer than its content, and the next growth kept it so.
#[test]
fn a_file_that_a_refused_cut_left_too_long_is_acknowledged_by_the_journal() {
    let mut random = 8_064_044_785_816_923_200_u64 | 1;
    plans::run(40, &mut |below| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % below
    });
}
