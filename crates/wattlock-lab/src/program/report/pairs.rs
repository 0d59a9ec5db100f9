//! Pictures of the run page, in the page's own boxes so that their text keeps its size on any screen: pairs of bars with
//! the interval as a whisker, and batches.

use serde_json::Value as Json;
use wattlock::telemetry::text::grouped;
use wattlock::telemetry::text::html;
use wattlock_core::Kind;

use super::gain::Gain;

/// Like with like: one piece of work, done by the peer and by us.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// The work.
    pub title: String,
    /// The peer's name, how much it does, and that in words.
    pub theirs: (String, f64, String),
    /// Ours.
    pub ours: (String, f64, String),
    /// The interval of ratios.
    pub gain: Gain,
    /// What is said below.
    pub told: String,
}

/// A length as a share of the longest, in percent.
fn share(value: f64, most: f64) -> f64 {
    (100.0 * value / most).clamp(0.0, 100.0)
}

/// Pairs on one scale. The whisker on our bar is the peer's times the interval: where it ends before the peer's bar does,
/// or reaches it, the picture shows no gain.
pub fn picture(pairs: &[Pair]) -> String {
    let most = pairs.iter().flat_map(|pair| [pair.theirs.1, pair.ours.1, pair.theirs.1 * pair.gain.high]);
    let most = most.fold(f64::MIN_POSITIVE, f64::max);
    let bar = |class: &str, (name, value, words): &(String, f64, String), whisker: &str| {
        format!(
            "<div class=\"bar {class}\"><span>{}</span><div class=\"track\"><i class=\"fill\" \
             style=\"width:{:.2}%\"></i>{whisker}</div><b>{}</b></div>",
            html(name),
            share(*value, most),
            html(words)
        )
    };
    let pair = |pair: &Pair| {
        let (low, high) =
            (share(pair.theirs.1 * pair.gain.low, most), share(pair.theirs.1 * pair.gain.high, most));
        let whisker = match low < high {
            true => format!("<i class=\"whisker\" style=\"left:{low:.2}%;width:{:.2}%\"></i>", high - low),
            false => String::new(),
        };
        format!(
            "<div class=\"bars\"><h4>{}</h4>{}{}<p>{}</p></div>",
            html(&pair.title),
            bar("theirs", &pair.theirs, ""),
            bar("ours", &pair.ours, &whisker),
            html(&pair.told)
        )
    };
    pairs.iter().map(pair).collect()
}

/// What an engine did of one kind, as `bench` and `serve --compare` say it: `lanes rsa-2048-private 16 in batches of 8.0`.
#[derive(Debug, PartialEq)]
struct Did<'a> {
    engine: &'a str,
    kind: &'a str,
    count: u64,
    batch: f64,
}

impl<'a> Did<'a> {
    fn read(words: &'a str) -> Option<Did<'a>> {
        let (did, batch) = match words.split_once(" in batches of ") {
            Some((did, batch)) => (did, batch.parse().ok().filter(|batch| (1.0..1e6).contains(batch))?),
            None => (words, 1.0),
        };
        let mut words = did.split(' ').rev();
        let (count, kind) = (words.next()?.parse().ok()?, words.next()?);
        let engine = did.split(' ').next().filter(|engine| *engine != kind)?;
        Some(Did { engine, kind, count, batch })
    }
}

/// How many places a batch has on the lanes of every CPU.
const LANES: f64 = 8.0;

/// How many public-key operations of a row's handshakes were computed together, if the row says it.
pub fn batches(title: &str, row: &Json) -> String {
    let engines = row["detail"]["engines"].as_array().map(Vec::as_slice).unwrap_or_default();
    let did = engines.iter().filter_map(Json::as_str).filter_map(Did::read);
    let asymmetric = |did: &Did<'_>| Kind::from_name(did.kind).is_some_and(Kind::is_asymmetric);
    let mut did: Vec<Did<'_>> = did.filter(asymmetric).collect();
    // Self-tests and first requests are single ones of many thousands.
    let all: u128 = did.iter().map(|did| u128::from(did.count)).sum();
    did.retain(|did| did.count > 0 && 100 * u128::from(did.count) >= all);
    did.sort_by_key(|did| std::cmp::Reverse(did.count));
    if did.is_empty() {
        return String::new();
    }
    let places = did.iter().map(|did| did.batch).fold(LANES, f64::max).ceil();
    let bar = |did: &Did<'_>| {
        let look = if did.batch > 1.0 { "ours" } else { "theirs" };
        let words =
            if did.batch > 1.0 { format!("{:.1} at a time", did.batch) } else { "one by one".to_owned() };
        format!(
            "<div class=\"bar {look}\"><span>{}<br><small>{} by {}</small></span><div class=\"track slots\" \
             style=\"--n:{}\"><i class=\"fill\" style=\"width:{:.2}%\"></i></div><b>{words}</b></div>",
            html(did.kind),
            grouped(did.count),
            html(did.engine),
            places.min(64.0),
            share(did.batch, places)
        )
    };
    let bars: String = did.iter().map(bar).collect();
    format!("<div class=\"bars\"><h4>{}</h4>{bars}</div>", html(title))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pair(theirs: f64, ours: f64, gain: Gain) -> Pair {
        let side = |name: &str, value: f64| (name.to_owned(), value, format!("{value} GB/s"));
        Pair {
            title: "<w>".into(),
            theirs: side("age", theirs),
            ours: side("ours", ours),
            gain,
            told: "t".into(),
        }
    }

    fn percents(text: &str, of: &str) -> Vec<f64> {
        let parts = text.split(of).skip(1).filter_map(|rest| rest.split('%').next());
        parts.map(|part| part.parse().unwrap()).collect()
    }

    #[test]
    fn a_whisker_is_the_interval_on_the_scale_of_the_bars() {
        let gain = Gain { ratio: Some(3.0), low: 2.0, high: 5.0 };
        let drawn =
            picture(&[pair(1.0, 3.0, gain), pair(2.0, 2.0, Gain { ratio: None, low: 0.8, high: 1.3 })]);
        let widths = percents(&drawn, "class=\"fill\" style=\"width:");
        assert_eq!(widths, [20.0, 60.0, 40.0, 40.0], "{drawn}");
        // From twice to five times 20 %, and from 0.8 to 1.3 times 40 %.
        assert_eq!(percents(&drawn, "style=\"left:"), [40.0, 32.0]);
        let lengths: Vec<f64> = drawn
            .split("style=\"left:")
            .skip(1)
            .map(|rest| rest.split("width:").nth(1).unwrap().split('%').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(lengths, [60.0, 20.0]);
        assert!(drawn.contains("<h4>&lt;w&gt;</h4>"), "{drawn}");
        let one = picture(&[pair(1.0, 3.0, Gain { ratio: Some(3.0), low: 3.0, high: 3.0 })]);
        assert!(!one.contains("whisker"), "one round has no interval: {one}");
    }

    #[test]
    fn batches_are_drawn_as_the_record_says_and_hostile_words_are_not() {
        let row = json!({"detail": {"engines": [
            "lanes rsa-2048-private 1600 in batches of 6.0",
            "instruction ecdsa-p256-sign 120",
            "emulated x25519-derive 80 in batches of 16.0",
            // What follows is symmetric, less than a hundredth, or not what a bench says.
            "instruction aes-256-gcm-seal 99",
            "software x25519-derive 3",
            "lanes <b>x</b> 8 in batches of 8.0",
            "lanes rsa-2048-private 900 in batches of NaN",
            "",
            "7",
            "in batches of 8",
        ]}});
        let drawn = batches("TLS <1.3>", &row);
        assert_eq!(drawn.matches("class=\"bar").count() - 1, 3, "{drawn}");
        assert_eq!(percents(&drawn, "class=\"fill\" style=\"width:"), [37.5, 6.25, 100.0], "{drawn}");
        for wanted in ["TLS &lt;1.3&gt;", "6.0 at a time", "one by one", "1,600 by lanes", "--n:16"] {
            assert!(drawn.contains(wanted), "{wanted}: {drawn}");
        }
        assert!(!drawn.contains("<b>x</b>"));
        assert_eq!(batches("x", &json!({})), "");
        assert_eq!(batches("x", &json!({"detail": {"engines": "lanes"}})), "");
    }
}
