//! Timing things against each other: in turn, in the same run, so that a ratio holds although the machine's speed
//! drifts.

use std::time::Instant;

/// Median of some figures: of an even number the mean of the two in the middle, so that of two rounds not the better one
/// counts. 0 of none.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let (low, high) = (figures.len().saturating_sub(1) / 2, figures.len() / 2);
    match (figures.get(low), figures.get(high)) {
        (Some(low), Some(high)) => (low + high) / 2.0,
        _ => 0.0,
    }
}

/// Runs each contestant `inner` times per round, in turn, for `rounds` rounds; returns nanoseconds a call, `[round]`
/// for each contestant.
pub fn in_turn(contestants: &mut [&mut dyn FnMut()], inner: u32, rounds: u32) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); contestants.len()];
    for round in 0..=rounds {
        for (contestant, times) in contestants.iter_mut().zip(&mut times) {
            let start = Instant::now();
            (0..inner).for_each(|_| contestant());
            let ns = start.elapsed().as_nanos() as f64 / f64::from(inner);
            if round > 0 {
                times.push(ns); // The first round warms up.
            }
        }
    }
    times
}

/// Calls per round so that one takes about `ns` nanoseconds.
pub fn calls_for(ns: f64, contestant: &mut dyn FnMut()) -> u32 {
    contestant();
    let start = Instant::now();
    contestant();
    let once = start.elapsed().as_nanos().max(20) as f64;
    (ns / once).clamp(1.0, 1e6) as u32
}

/// Median over rounds of `a / b`.
pub fn ratio(a: &[f64], b: &[f64]) -> f64 {
    median(a.iter().zip(b).map(|(a, b)| a / b).collect())
}

/// Median over rounds of `a - b`.
pub fn difference(a: &[f64], b: &[f64]) -> f64 {
    median(a.iter().zip(b).map(|(a, b)| a - b).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_favours_nobody() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0]), 3.0);
        assert_eq!(median(vec![9.0, 1.0]), 5.0);
        assert_eq!(median(vec![7.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![8.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(ratio(&[2.0, 3.0], &[1.0, 1.0]), 2.5);
    }
}
