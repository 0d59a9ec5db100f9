//! How near a study comes: predicted rows only, the model beside the naive predictor. What the model was given, what
//! it was fitted on and what only echoes an input are left out, because they say nothing about the model.

use crate::row::{Role, Row};

/// Deviations of one predictor: median of their sizes, and the largest with its sign. In points where the quantity is
/// a percentage, as shares otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Miss {
    /// The median of the deviations' sizes.
    pub median: f64,
    /// The largest deviation, with its sign.
    pub worst: f64,
}

impl Miss {
    fn of(mut off: Vec<f64>) -> Option<Miss> {
        off.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
        let (upper, lower) = (off.get(off.len() / 2)?, off.get((off.len() - 1) / 2)?);
        Some(Miss { median: (upper.abs() + lower.abs()) / 2.0, worst: *off.last()? })
    }
}

/// One experiment and quantity.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// As in the rows.
    pub experiment: &'static str,
    /// As in the rows.
    pub quantity: &'static str,
    /// As in the rows.
    pub unit: &'static str,
    /// Predicted rows that a published figure stands beside.
    pub predicted: usize,
    /// How far the model is from those figures.
    pub model: Option<Miss>,
    /// How far the naive predictor is from them.
    pub naive: Option<Miss>,
    /// What `adaptive` gains over the published rule in the predicted rows, published or not: least and mean.
    pub gain: Option<(f64, f64)>,
}

impl Summary {
    /// What [`Summary::cells`] are called.
    pub const COLUMNS: [&'static str; 9] = [
        "experiment",
        "quantity",
        "predicted",
        "model, median off",
        "worst",
        "naive, median off",
        "worst",
        "adaptive's least gain",
        "mean gain",
    ];

    /// The line in words, as it is printed and as docs/research/tables/lab.md has it.
    pub fn cells(&self) -> [String; 9] {
        let miss = |miss: Option<Miss>| {
            let median = distance(miss.map(|miss| miss.median), self.unit);
            [median.trim_start_matches('+').to_owned(), distance(miss.map(|miss| miss.worst), self.unit)]
        };
        let ([median, worst], [naive_median, naive_worst]) = (miss(self.model), miss(self.naive));
        [
            self.experiment.to_owned(),
            self.quantity.to_owned(),
            self.predicted.to_string(),
            median,
            worst,
            naive_median,
            naive_worst,
            percent(self.gain.map(|gain| gain.0)),
            percent(self.gain.map(|gain| gain.1)),
        ]
    }
}

/// A deviation in words: a share, or points where the quantity is a percentage itself.
pub fn distance(apart: Option<f64>, unit: &str) -> String {
    match apart {
        Some(points) if unit == "%" => format!("{points:+.1} points"),
        share => percent(share),
    }
}

/// A share in words.
pub fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| format!("{:+.1} %", share * 100.0))
}

/// Each experiment and quantity that has a predicted row which stands beside a published figure or `adaptive`'s, in the order
/// of the rows.
pub fn summary(rows: &[Row]) -> Vec<Summary> {
    let predicted = || rows.iter().filter(|row| row.role == Role::Predicted);
    let mut keys: Vec<(&str, &str, &str)> = Vec::new();
    for key in predicted().map(|row| (row.experiment, row.quantity, row.unit)) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let line = |(experiment, quantity, unit): (&'static str, &'static str, &'static str)| {
        let mine = || predicted().filter(move |row| (row.experiment, row.quantity) == (experiment, quantity));
        let gains: Vec<f64> = mine().filter_map(Row::gain).collect();
        let least = gains.iter().copied().min_by(f64::total_cmp);
        Summary {
            experiment,
            quantity,
            unit,
            predicted: mine().filter(|row| row.is_prediction()).count(),
            model: Miss::of(mine().filter_map(Row::deviation).collect()),
            naive: Miss::of(mine().filter_map(Row::naive_deviation).collect()),
            gain: least.map(|least| (least, gains.iter().sum::<f64>() / gains.len() as f64)),
        }
    };
    keys.into_iter().map(line).filter(|line| line.predicted > 0 || line.gain.is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Better;

    #[test]
    fn only_predicted_rows_count_and_the_naive_predictor_stands_beside_the_model() {
        let row = |role, simulated, published, naive, adaptive| Row {
            role,
            published,
            simulated,
            naive,
            adaptive: Some(adaptive),
            better: Better::More,
            ..Row::new("eeca", "cipher", "", ("ppw", "kBps/W"))
        };
        let rows = [
            row(Role::Predicted, 110.0, Some(100.0), Some(130.0), 110.0),
            row(Role::Predicted, 98.0, Some(100.0), Some(80.0), 98.0),
            row(Role::Predicted, 101.0, Some(100.0), Some(100.0), 111.1),
            row(Role::Predicted, 104.0, Some(100.0), Some(110.0), 52.0),
            row(Role::Predicted, 7.0, None, None, 7.0),
            row(Role::Fitted, 100.0, Some(100.0), None, 1.0),
            row(Role::Echoed, 100.0, Some(100.0), None, 1.0),
            row(Role::Input, 100.0, Some(100.0), None, 1.0),
        ];
        let lines = summary(&rows);
        let [line] = &lines[..] else { panic!("{lines:?}") };
        let near = |found: f64, by_hand: f64| assert!((found - by_hand).abs() < 1e-9, "{found} {by_hand}");
        let (model, naive) = (line.model.expect("rows"), line.naive.expect("rows"));
        assert_eq!(line.predicted, 4);
        near(model.median, 0.03);
        near(model.worst, 0.10);
        near(naive.median, 0.15);
        near(naive.worst, 0.30);
        let (least, mean) = line.gain.expect("directions");
        near(least, -0.5);
        near(mean, (0.0 + 0.0 + 0.1 - 0.5 + 0.0) / 5.0);
        assert!(summary(&rows[5..]).is_empty(), "nothing predicted, nothing to say");
    }

    #[test]
    fn percentages_differ_by_points() {
        assert_eq!(distance(Some(4.58), "%"), "+4.6 points");
        assert_eq!(distance(Some(-0.05), "x"), "-5.0 %");
        assert_eq!(distance(None, "%"), "-");
    }
}
