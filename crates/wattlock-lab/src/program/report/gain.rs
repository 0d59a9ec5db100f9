//! A comparison as a record has it, and what may be said of it.

use serde_json::Value as Json;
use wattlock_shell::text::verdict;

/// Ours against a peer's, with the interval of its rounds' ratios.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gain {
    /// How many times better ours is; none if the interval contains 1.
    pub ratio: Option<f64>,
    /// The interval.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Gain {
    /// Of a row, or of a comparison within one. None without figures that can be of a measurement.
    pub fn of(json: &Json) -> Option<Gain> {
        let figure = |key: &str| json[key].as_f64().filter(|figure| *figure > 0.0);
        let ratio = figure("ratio");
        let (low, high) = match (figure("low"), figure("high")) {
            (Some(low), Some(high)) if low <= high => (low, high),
            // Carried over from a record without rounds.
            _ if json["low"].is_null() && json["high"].is_null() => (ratio?, ratio?),
            _ => return None,
        };
        // Whatever the record says: an interval that contains 1 shows nothing.
        let known = low == high || low > 1.0 || high < 1.0;
        Some(Gain { ratio: ratio.filter(|_| known), low, high })
    }

    /// In the words of every page.
    pub fn words(&self) -> String {
        verdict(self.ratio, self.low, self.high)
    }

    /// The same of a row, or of a comparison within it. With a note on the row its rounds bound nothing by themselves: only
    /// the interval is said.
    pub fn words_of(&self, row: &Json) -> String {
        match self.ratio {
            Some(ratio) if note(row).is_some() && self.low < self.high => {
                format!("{ratio:.2} times ({:.2} to {:.2} in its rounds)", self.low, self.high)
            }
            _ => self.words(),
        }
    }
}

/// What the reader of a row's figure must know more, if there is anything.
pub fn note(row: &Json) -> Option<&str> {
    row["note"].as_str().filter(|note| !note.is_empty())
}

/// A row's gain in words; its note belongs beside them.
pub fn words(row: &Json) -> String {
    within(row, row)
}

/// That of a comparison within a row.
pub fn within(row: &Json, json: &Json) -> String {
    Gain::of(json).map_or_else(|| "-".to_owned(), |gain| gain.words_of(row))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_interval_with_1_in_it_shows_nothing_whatever_the_ratio_is() {
        assert_eq!(words(&json!({"ratio": 2.0, "low": 0.9, "high": 2.2})), "no difference (0.90 to 2.20)");
        assert_eq!(
            words(&json!({"ratio": 2.0, "low": 1.9, "high": 2.2})),
            "at least 1.90 times (median 2.00)"
        );
        assert_eq!(
            words(&json!({"ratio": 0.8, "low": 0.7, "high": 0.9})),
            "at most 0.90 times (median 0.80)"
        );
        assert_eq!(words(&json!({"ratio": 2.15, "low": null, "high": null})), "2.15 times");
    }

    #[test]
    fn a_figure_with_a_note_is_no_bound() {
        let row = |low: f64, high: f64, ratio: f64, note: &str| json!({"ratio": ratio, "low": low, "high": high, "note": note});
        let note = "an upper bound: x";
        assert_eq!(words(&row(1.9, 2.2, 2.0, note)), "2.00 times (1.90 to 2.20 in its rounds)");
        assert_eq!(words(&row(0.7, 0.9, 0.8, note)), "0.80 times (0.70 to 0.90 in its rounds)");
        assert_eq!(words(&row(2.0, 2.0, 2.0, note)), "2.00 times");
        assert_eq!(words(&row(0.9, 2.2, 2.0, note)), "no difference (0.90 to 2.20)");
        assert_eq!(words(&row(1.9, 2.2, 2.0, "")), "at least 1.90 times (median 2.00)");
        let by_rate = json!({"ratio": 3.0, "low": 2.5, "high": 3.5});
        assert_eq!(within(&row(1.9, 2.2, 2.0, note), &by_rate), "3.00 times (2.50 to 3.50 in its rounds)");
    }

    #[test]
    fn figures_of_no_measurement_are_no_gain() {
        for odd in [
            json!({}),
            json!({"ratio": -1.0}),
            json!({"ratio": 2.0, "low": 3.0, "high": 1.5}),
            json!({"ratio": 2.0, "low": 0.0, "high": 1.5}),
            json!({"ratio": "2", "low": "1", "high": "3"}),
            Json::Null,
        ] {
            assert_eq!(Gain::of(&odd), None, "{odd}");
        }
    }
}
