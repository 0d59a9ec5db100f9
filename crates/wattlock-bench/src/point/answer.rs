//! A point's answer: one line of JSON, schema 1. It judges nothing: the program that asked knows what the
//! point is for.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use super::given::Given;
use crate::pair::median;

const SCHEMA: u32 = 1;

/// Why a point cannot be measured here: an answer, and no failure.
#[derive(Debug)]
pub struct Cannot(pub String);

impl fmt::Display for Cannot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Cannot {}

/// A [`Cannot`] as an error.
pub fn cannot(why: impl Into<String>) -> anyhow::Error {
    Cannot(why.into()).into()
}

/// One figure of each round.
#[derive(Debug, Clone)]
pub struct Figure {
    unit: &'static str,
    rounds: Vec<f64>,
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Told {
            value: f64,
            low: f64,
            high: f64,
            unit: &'static str,
            rounds: usize,
        }
        let over = |start, of: fn(f64, f64) -> f64| self.rounds.iter().copied().fold(start, of);
        Told {
            value: median(self.rounds.clone()),
            low: over(f64::INFINITY, f64::min),
            high: over(f64::NEG_INFINITY, f64::max),
            unit: self.unit,
            rounds: self.rounds.len(),
        }
        .serialize(serializer)
    }
}

/// Figures by name. One without a round does not exist.
#[derive(Debug, Default, Serialize)]
pub struct Figures(BTreeMap<&'static str, Figure>);

impl Figures {
    /// Adds a round's figure. What is no number is left out.
    pub fn add(&mut self, name: &'static str, unit: &'static str, value: f64) {
        if value.is_finite() {
            self.0.entry(name).or_insert(Figure { unit, rounds: Vec::new() }).rounds.push(value);
        }
    }
}

/// Joules of a unit of work: of all rounds together, and of the round with the least and the most.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Joules {
    pub value: f64,
    pub low: f64,
    pub high: f64,
    pub rounds: usize,
    pub per: Per,
    pub word: &'static str,
    pub domain: String,
}

/// What a door's joules are divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    Byte,
    Operation,
}

/// What a door has measured.
#[derive(Debug, Default)]
pub struct Measured {
    pub figures: Figures,
    /// Which engine did what.
    pub engines: Vec<String>,
    /// What the point may have used beside the CPU.
    pub device: String,
    pub joules: Option<Joules>,
    /// Share of the machine's processor time that others used.
    pub busy: Option<f64>,
}

/// What all answers have.
#[derive(Debug, Serialize)]
pub struct Head<'a> {
    schema: u32,
    door: &'a str,
    given: &'a Given,
    policy: &'a str,
    seconds: f64,
    rounds: u32,
}

impl<'a> Head<'a> {
    pub fn new(door: &'a str, given: &'a Given, policy: &'a str, seconds: f64, rounds: u32) -> Head<'a> {
        Head { schema: SCHEMA, door, given, policy, seconds, rounds }
    }
}

/// An answer.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Answer<'a> {
    Measured {
        #[serde(flatten)]
        head: Head<'a>,
        figures: &'a Figures,
        joules: Option<Joules>,
        device: &'a str,
        engines: &'a [String],
        busy: Option<f64>,
    },
    Cannot {
        #[serde(flatten)]
        head: Head<'a>,
        cannot: &'a str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(answer: &Answer<'_>) -> String {
        serde_json::to_string(answer).unwrap()
    }

    #[test]
    fn an_answer_is_one_line_of_the_form_that_is_agreed() {
        let given = Given::read("cipher", &[("bytes", "16384")], &[]).unwrap();
        let head = || Head::new("cipher", &given, "qweb", 0.5, 3);
        let mut figures = Figures::default();
        for rate in [3.0, 1.0, 2.0] {
            figures.add("rate", "1/s", rate);
            figures.add("ratio", "1", f64::NAN);
        }
        let joules = Joules {
            value: 0.5,
            low: 0.25,
            high: 1.0,
            rounds: 3,
            per: Per::Byte,
            word: "measured",
            domain: "package-0".into(),
        };
        let answer = Answer::Measured {
            head: head(),
            figures: &figures,
            joules: Some(joules),
            device: "emulated dh8970",
            engines: &["emulated aes-128-cbc-encrypt 14416 in batches of 4.0".into()],
            busy: Some(0.25),
        };
        assert_eq!(
            line(&answer),
            concat!(
                r#"{"schema":1,"door":"cipher","given":{"bytes":"16384"},"policy":"qweb","seconds":0.5,"rounds":3,"#,
                r#""figures":{"rate":{"value":2.0,"low":1.0,"high":3.0,"unit":"1/s","rounds":3}},"#,
                r#""joules":{"value":0.5,"low":0.25,"high":1.0,"rounds":3,"per":"byte","word":"measured","domain":"package-0"},"#,
                r#""device":"emulated dh8970","#,
                r#""engines":["emulated aes-128-cbc-encrypt 14416 in batches of 4.0"],"busy":0.25}"#
            )
        );
        let answer = Answer::Cannot { head: head(), cannot: "OpenSSL 3.0.19 has no curve \"x\"" };
        assert_eq!(
            line(&answer),
            concat!(
                r#"{"schema":1,"door":"cipher","given":{"bytes":"16384"},"policy":"qweb","seconds":0.5,"rounds":3,"#,
                r#""cannot":"OpenSSL 3.0.19 has no curve \"x\""}"#
            )
        );
    }

    #[test]
    fn without_a_source_joules_are_null() {
        let given = Given::read("file", &[], &[]).unwrap();
        let answer = Answer::Measured {
            head: Head::new("file", &given, "adaptive", 1.0, 1),
            figures: &Figures::default(),
            joules: None,
            device: "none",
            engines: &[],
            busy: None,
        };
        assert!(
            line(&answer)
                .ends_with(r#""figures":{},"joules":null,"device":"none","engines":[],"busy":null}"#)
        );
    }
}
