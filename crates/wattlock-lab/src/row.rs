//! What a study says: rows, and the parameters they rest on. Prints nothing.

use serde::Serialize;

/// Which way a quantity is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Throughput.
    More,
    /// Latency, joules.
    Less,
    /// Neither: a share, a turning point.
    Neither,
}

/// One quantity of one row of a published table, or of a row that no table has. Serialises to one JSON object.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// `eeca`, `qweb`, `lecpaes`, `aca-sds`, `eep`.
    pub paper: &'static str,
    /// Which table or experiment, for systems with several: `cipher`, `https`.
    pub experiment: &'static str,
    /// What tells the row from others, as the CSV has it: `block_kib=16`.
    pub row: String,
    /// `throughput`, `power_w`, `ppw`, `energy_j`, `retransmission_rate`, `handshakes_per_s`, `latency_us` …
    pub quantity: &'static str,
    /// As in the CSV.
    pub unit: &'static str,
    /// The published system's own figure; `None` where no table has it.
    pub published: Option<f64>,
    /// Published as an interval ("about twice", "15 to 25 %").
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published_interval: Option<(f64, f64)>,
    /// The published rule on the modelled machine. Simulated.
    pub simulated: f64,
    /// The same machine and work under `adaptive`. Simulated. `None` where the quantity has no meaning under it.
    pub adaptive: Option<f64>,
    /// Which way it is better.
    pub better: Better,
    /// Whether this is the quantity that the row is about, the one `adaptive` must not lose in.
    pub own: bool,
}

impl Row {
    /// Simulated against published, as a share: 0.05 is 5 % above.
    pub fn deviation(&self) -> Option<f64> {
        self.published.filter(|published| *published != 0.0).map(|published| self.simulated / published - 1.0)
    }

    /// How much better `adaptive` is than the published rule, as a share of the latter's size; negative where it is
    /// worse. `None` where the rule's own figure is 0 and no share of it says anything.
    pub fn gain(&self) -> Option<f64> {
        let adaptive = self.adaptive?;
        match self.better {
            Better::Neither => None,
            _ if adaptive == self.simulated => Some(0.0),
            _ if self.simulated == 0.0 => None,
            Better::More => Some((adaptive - self.simulated) / self.simulated.abs()),
            Better::Less => Some((self.simulated - adaptive) / self.simulated.abs()),
        }
    }
}

/// A number the model needs and the platform's description does not give.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Parameter {
    /// Its name, as in the study's documentation.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// What it was fitted on, or why nothing published determines it.
    pub source: &'static str,
    /// Whether published baselines determine it.
    pub determined: bool,
    /// For one that is not determined: what it was varied between, and how far the prediction moved, as a share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sensitivity: Option<(f64, f64, f64)>,
}

impl Parameter {
    /// One that published baselines determine.
    pub(crate) fn determined(
        name: &'static str,
        value: f64,
        unit: &'static str,
        source: &'static str,
    ) -> Parameter {
        Parameter { name, value, unit, source, determined: true, sensitivity: None }
    }
}

/// A study's whole outcome.
#[derive(Debug, Clone, Default)]
pub struct Study {
    /// In the order of the tables.
    pub rows: Vec<Row>,
    /// What the model rests on.
    pub parameters: Vec<Parameter>,
    /// Contradictions in what was published, with the arithmetic, and what the data do not determine.
    pub remarks: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_negative_and_rises_is_a_gain() {
        let row = |simulated, adaptive, better| Row {
            paper: "aca-sds",
            experiment: "storage",
            row: String::new(),
            quantity: "write_gain",
            unit: "%",
            published: None,
            published_interval: None,
            simulated,
            adaptive: Some(adaptive),
            better,
            own: false,
        };
        assert_eq!(row(-30.0, 0.0, Better::More).gain(), Some(1.0));
        assert_eq!(row(-30.0, -60.0, Better::More).gain(), Some(-1.0));
        assert_eq!(row(100.0, 90.0, Better::Less).gain(), Some(0.1));
        assert_eq!(row(0.0, 0.0, Better::Less).gain(), Some(0.0));
        assert_eq!(row(0.0, 0.1, Better::Less).gain(), None);
    }
}
