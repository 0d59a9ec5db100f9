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

/// What a row can say about the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "program", derive(clap::ValueEnum))]
pub enum Role {
    /// A published figure that the model is given.
    Input,
    /// A published figure on which a parameter was fitted; its deviation is what the fit leaves.
    Fitted,
    /// Follows from an input by definition, whatever the simulation does.
    Echoed,
    /// None of the above: the model could have missed it.
    Predicted,
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
    /// What the row can say about the model. A row without a published figure is predicted and compared with nothing.
    pub role: Role,
    /// The published figure, the system's own or a baseline's; `None` where no table has it.
    pub published: Option<f64>,
    /// Published as an interval ("about twice", "15 to 25 %").
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published_interval: Option<(f64, f64)>,
    /// The published rule on the modelled machine. Simulated.
    pub simulated: f64,
    /// The naive predictor: the nearest published baseline, scaled, without any model. Only beside a predicted row that
    /// has a published figure.
    pub naive: Option<f64>,
    /// The same machine and work under `adaptive`. Simulated. `None` where the quantity has no meaning under it.
    pub adaptive: Option<f64>,
    /// Which way it is better.
    pub better: Better,
    /// Whether this is the quantity that the row is about, the one `adaptive` must not lose in.
    pub own: bool,
}

impl Row {
    /// A row that nothing was published for, to be completed by its study.
    pub(crate) fn new(
        paper: &'static str,
        experiment: &'static str,
        row: impl Into<String>,
        (quantity, unit): (&'static str, &'static str),
    ) -> Row {
        Row {
            paper,
            experiment,
            row: row.into(),
            quantity,
            unit,
            role: Role::Predicted,
            published: None,
            published_interval: None,
            simulated: f64::NAN,
            naive: None,
            adaptive: None,
            better: Better::Neither,
            own: false,
        }
    }

    /// Whether a published figure stands beside it that the model could have missed.
    pub fn is_prediction(&self) -> bool {
        self.role == Role::Predicted && (self.published.is_some() || self.published_interval.is_some())
    }

    /// The simulated value against the published one; see [`Row::apart`].
    pub fn deviation(&self) -> Option<f64> {
        self.apart(self.simulated)
    }

    /// The naive predictor's value against the published one; see [`Row::apart`].
    pub fn naive_deviation(&self) -> Option<f64> {
        self.apart(self.naive?)
    }

    /// How far a value is from what was published: as a share of it (0.05 is 5 % above), or in points where the
    /// quantity is a percentage itself. From an interval: from its nearer end, and 0 within. `None` where nothing was
    /// published or no share of it says anything.
    pub fn apart(&self, value: f64) -> Option<f64> {
        let published = match (self.published, self.published_interval) {
            (Some(published), _) => published,
            (None, Some((low, high))) => value.clamp(low, high),
            (None, None) => return None,
        };
        match self.unit {
            "%" => Some(value - published),
            _ => (published != 0.0).then(|| value / published - 1.0),
        }
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

/// Takes away what is only said beside a published figure: everything on a platform that is not the published one, and
/// the naive predictor beside rows that predict nothing.
pub(crate) fn beside_published(rows: &mut [Row], is_published: bool) {
    for row in rows {
        if !is_published {
            (row.published, row.published_interval, row.naive) = (None, None, None);
        } else if !row.is_prediction() {
            row.naive = None;
        }
    }
}

/// Where a parameter's value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Published as it stands.
    Input,
    /// Fitted on published figures, or derived from them; the source says which.
    Fitted,
    /// Nothing published determines it: a guess of ours, or a figure measured on another machine.
    Guess,
}

impl Origin {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Input => "input",
            Origin::Fitted => "fitted",
            Origin::Guess => "guess, not determined",
        }
    }
}

/// A number the model needs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Parameter {
    /// Its name, as in the study's documentation.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Input, fitted or guess.
    pub origin: Origin,
    /// What it was fitted on, or why nothing published determines it.
    pub source: &'static str,
    /// What it was varied between, and how far the predictions moved at most, as a share. Every guess has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sensitivity: Option<(f64, f64, f64)>,
}

/// What each is called and where it comes from.
const PARAMETERS: &str = include_str!("papers/parameters.txt");

impl Parameter {
    /// The parameter of that name in the list of a paper's.
    ///
    /// # Panics
    /// If it is not there, or its origin is none: the list is part of the program, and every study takes all of its own.
    pub(crate) fn of(paper: &str, name: &str, value: f64) -> Parameter {
        let lines = PARAMETERS.lines().filter(|line| !line.starts_with('#'));
        let mut rows = lines.map(|line| line.splitn(5, '|').map(str::trim).collect::<Vec<_>>());
        let row = rows.find(|row| row[..].starts_with(&[paper, name]));
        let [_, name, unit, origin, source] = row.unwrap_or_default()[..] else {
            panic!("no {paper} {name}")
        };
        let origin = match origin {
            "input" => Origin::Input,
            "fitted" => Origin::Fitted,
            "guess" => Origin::Guess,
            _ => panic!("{paper} {name} is no {origin}"),
        };
        Parameter { name, value, unit, origin, source, sensitivity: None }
    }

    /// The same, and what varying it between two values does.
    pub(crate) fn varied(self, low: f64, high: f64, moved: impl Into<Option<f64>>) -> Parameter {
        Parameter { sensitivity: moved.into().map(|moved| (low, high, moved)), ..self }
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

impl Study {
    /// The rows of those roles; all of them where none is named.
    pub fn of_roles<'a>(&'a self, roles: &'a [Role]) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| roles.is_empty() || roles.contains(&row.role))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_negative_and_rises_is_a_gain() {
        let row = |simulated, adaptive, better| Row {
            simulated,
            adaptive: Some(adaptive),
            better,
            ..Row::new("aca-sds", "storage", "", ("write_gain", "%"))
        };
        assert_eq!(row(-30.0, 0.0, Better::More).gain(), Some(1.0));
        assert_eq!(row(-30.0, -60.0, Better::More).gain(), Some(-1.0));
        assert_eq!(row(100.0, 90.0, Better::Less).gain(), Some(0.1));
        assert_eq!(row(0.0, 0.0, Better::Less).gain(), Some(0.0));
        assert_eq!(row(0.0, 0.1, Better::Less).gain(), None);
    }

    #[test]
    fn every_listed_parameter_is_taken_by_its_study() {
        use crate::papers::{aca_sds, eeca, eep, lecpaes, qweb, velocity};
        let studies = [
            ("eeca", eeca::fit(&Default::default())),
            ("qweb", qweb::fit(&Default::default())),
            ("lecpaes", lecpaes::fit(&Default::default())),
            ("aca-sds", aca_sds::fit(&Default::default())),
            ("eep", eep::fit(&Default::default())),
            ("velocity", velocity::fit(&Default::default())),
        ];
        let taken = |(paper, all): &(&str, Vec<Parameter>)| {
            all.iter().map(|one| format!("{paper} | {} | ", one.name)).collect::<Vec<_>>()
        };
        let taken: Vec<String> = studies.iter().flat_map(taken).collect();
        let listed = PARAMETERS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let left: Vec<&str> = listed.filter(|line| !taken.iter().any(|one| line.starts_with(one))).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn a_deviation_is_a_share_or_points_and_zero_within_an_interval() {
        let of = |unit, published, interval| Row {
            published,
            published_interval: interval,
            simulated: 11.0,
            naive: Some(7.0),
            ..Row::new("qweb", "limit", "", ("rate", unit))
        };
        let row = of("x", Some(10.0), None);
        assert!((row.deviation().unwrap_or(0.0) - 0.1).abs() < 1e-12);
        assert!((row.naive_deviation().unwrap_or(0.0) + 0.3).abs() < 1e-12);
        assert_eq!(of("%", Some(10.0), None).deviation(), Some(1.0));
        assert_eq!(of("%", None, Some((8.0, 12.0))).deviation(), Some(0.0));
        assert_eq!(of("%", None, Some((8.0, 12.0))).naive_deviation(), Some(-1.0));
        assert_eq!(of("x", None, None).deviation(), None);
        assert!(row.is_prediction() && !of("x", None, None).is_prediction());
        assert!(!Row { role: Role::Echoed, ..row }.is_prediction());
    }
}
