//! This process's counters as text: JSON, Prometheus' exposition format, or a page; with joules of the machine since the
//! process was first asked.

use std::ffi::c_int;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use wattlock::meter::{EVERY_NS, Figure, Meter, Places, Quality, Reading, Record};
use wattlock::telemetry::{Cell, Snapshot};

use crate::provider::Provider;

/// The counters in a form: 0 JSON, 1 Prometheus (text format 0.0.4), 2 HTML. Empty for any other.
pub fn text(provider: &Provider, form: c_int) -> String {
    let runtime = provider.current().runtime;
    let mut snapshot = runtime.snapshot();
    snapshot.energy = provider.energy.records(runtime.clock().now());
    match form {
        0 => serde_json::to_string(&snapshot).unwrap_or_default(),
        1 => prometheus(&snapshot),
        2 => html(&snapshot),
        _ => String::new(),
    }
}

/// The machine's joules. Sources are looked for when somebody first asks, so that a program nobody asks pays nothing; from
/// then on they are read when asked, ten times a second at most. No thread.
#[derive(Default)]
pub struct Energy(Mutex<Option<Metering>>);

struct Metering {
    /// A child after a fork begins anew: the window is its parent's.
    forks: u32,
    meter: Meter,
    at: u64,
    last: Option<Reading>,
}

impl Energy {
    fn records(&self, now: u64) -> Vec<Record> {
        // Not waited for: a thread that a fork did not bring along may have held it.
        let mut place = match self.0.try_lock() {
            Ok(place) => place,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(std::sync::TryLockError::WouldBlock) => return Vec::new(),
        };
        let forks = wattlock::forks();
        let metering = match &mut *place {
            Some(metering) if metering.forks == forks => metering,
            place => {
                let mut meter = Meter::discover(&Places::here());
                meter.start(now);
                place.insert(Metering { forks, meter, at: now, last: None })
            }
        };
        if metering.last.is_none() || now.saturating_sub(metering.at) >= EVERY_NS {
            metering.last = Some(metering.meter.finish(now));
            metering.at = now;
        }
        metering.last.iter().flat_map(|reading| reading.figures.iter().map(Figure::record)).collect()
    }
}

/// A family of samples: name, sort, words, and for each its labels and value.
fn family(text: &mut Text, name: &str, sort: &str, help: &str, rows: &[(String, f64)]) {
    let Text { out, worker } = text;
    let _ = writeln!(out, "# HELP wattlock_{name} {help}\n# TYPE wattlock_{name} {sort}");
    for (labels, value) in rows {
        let _ = writeln!(out, "wattlock_{name}{{worker=\"{worker}\",{labels}}} {value}");
    }
}

/// Prometheus' text, and whose it is. Each of a program's processes has counters of its own and any of them may answer:
/// without its number in every label one series would jump between them.
struct Text {
    out: String,
    /// Process id.
    worker: u32,
}

fn prometheus(snapshot: &Snapshot) -> String {
    type Value = fn(&Cell) -> f64;
    const BY_KIND: [(&str, &str, Value); 7] = [
        ("requests_total", "Requests done.", |cell| cell.requests as f64),
        ("bytes_total", "Input bytes of requests done.", |cell| cell.bytes as f64),
        ("errors_total", "Requests that ended in an error.", |cell| cell.errors as f64),
        ("held_seconds_total", "Time that requests were held.", |cell| cell.held_ns as f64 / 1e9),
        ("batch_sum_total", "Sizes of batches, over queued requests.", |cell| cell.batch_sum as f64),
        ("batch_count_total", "Queued requests in batch_sum.", |cell| cell.queued() as f64),
        ("joules_total", "Joules of timed requests; the JSON form says what they are worth.", |cell| {
            cell.energy_nj as f64 / 1e9
        }),
    ];
    let mut out = Text { out: String::new(), worker: snapshot.header.pid };
    for (name, help, value) in BY_KIND {
        let rows: Vec<(String, f64)> = snapshot
            .cells
            .iter()
            .map(|cell| (format!("engine=\"{}\",kind=\"{}\"", cell.engine, cell.kind), value(cell)))
            .collect();
        family(&mut out, name, "counter", help, &rows);
    }
    let mut fallbacks = Vec::new();
    for engine in &snapshot.engines {
        for (reason, count) in &engine.fallbacks {
            fallbacks.push((format!("engine=\"{}\",reason=\"{reason}\"", engine.engine), *count as f64));
        }
    }
    family(&mut out, "fallbacks_total", "counter", "Requests that went to another engine.", &fallbacks);
    let in_flight: Vec<(String, f64)> = snapshot
        .engines
        .iter()
        .map(|engine| (format!("engine=\"{}\"", engine.engine), engine.in_flight as f64))
        .collect();
    let joules = |value: Joules| -> Vec<(String, f64)> {
        let rows = snapshot.energy.iter().filter_map(|record| {
            let worth = worth(record).replace(['"', '\\', '\n'], " ");
            let labels = format!("source=\"{}\",part=\"{}\",worth=\"{worth}\"", record.source, record.part);
            Some((labels, value(record)?))
        });
        rows.collect()
    };
    let help = "Joules by counters since this process was first asked.";
    family(&mut out, "machine_joules_total", "counter", help, &joules(|record| record.joules));
    let bands: [(&str, &str, Joules); 3] = [
        ("machine_modelled_joules_total", "Modelled joules since this process was first asked.", |record| {
            record.modelled.as_ref().map(|range| range.expected)
        }),
        ("machine_modelled_joules_low_total", "Lower end of the modelled joules' error band.", |record| {
            record.modelled.as_ref().map(|range| range.low)
        }),
        ("machine_modelled_joules_high_total", "Upper end of the modelled joules' error band.", |record| {
            record.modelled.as_ref().map(|range| range.high)
        }),
    ];
    for (name, help, value) in bands {
        family(&mut out, name, "counter", help, &joules(value));
    }
    family(&mut out, "in_flight", "gauge", "Requests in flight.", &in_flight);
    out.out
}

/// One figure of a record, if it has it.
type Joules = fn(&Record) -> Option<f64>;

/// What a figure is worth, for people.
fn worth(record: &Record) -> String {
    let quality = record.quality.map_or("unknown", Quality::name);
    match (&record.at_least, &record.modelled) {
        (Some(why), _) => format!("{quality}, at least: {why}"),
        (None, Some(range)) => format!("{quality}, {:.1} to {:.1}", range.low, range.high),
        (None, None) => quality.to_owned(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;margin:1em 0}td,th{border:1px \
                     solid #ccc;padding:.3em .7em;text-align:right}td:first-child,td:nth-child(2){text-align:left}";

fn html(snapshot: &Snapshot) -> String {
    let header = &snapshot.header;
    let mut out = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Wattlock</title><style>{STYLE}</style><h1>Wattlock</h1>\
         <p>{}: policy {}, objective {}; costs from {}.",
        escaped(&header.program),
        escaped(&header.policy),
        escaped(&header.objective),
        escaped(&header.profile)
    );
    for (name, why) in &header.inactive {
        let _ = write!(out, "<p>{} is off: {}.", escaped(name), escaped(why));
    }
    out.push_str(
        "<table><tr><th>engine<th>kind<th>requests<th>MB<th>mean time, us<th>mean held, us<th>mean batch<th>errors",
    );
    for cell in &snapshot.cells {
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{:.1}<td>{:.1}<td>{:.1}<td>{:.1}<td>{}",
            escaped(&cell.engine),
            escaped(&cell.kind),
            cell.requests,
            cell.bytes as f64 / 1e6,
            cell.mean_ns().unwrap_or_default() / 1e3,
            cell.mean_held_ns().unwrap_or_default() / 1e3,
            cell.mean_batch().unwrap_or_default(),
            cell.errors
        );
    }
    out.push_str(
        "</table><table><tr><th>engine<th>what it is<th>in flight<th>quarantines<th>checked<th>fallbacks",
    );
    for engine in &snapshot.engines {
        let reasons: Vec<String> =
            engine.fallbacks.iter().map(|(why, count)| format!("{why}: {count}")).collect();
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
            escaped(&engine.engine),
            escaped(&engine.detail),
            engine.in_flight,
            engine.quarantines,
            engine.verified,
            escaped(&reasons.join(", "))
        );
    }
    out.push_str("</table><table><tr><th>joules from<th>part<th>seconds<th>joules<th>worth");
    for record in &snapshot.energy {
        let Some(value) = record.joules.or(record.modelled.as_ref().map(|range| range.expected)) else {
            continue;
        };
        let worth = escaped(&worth(record));
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{:.1}<td>{value:.1}<td>{worth}",
            escaped(&record.source),
            escaped(&record.part),
            record.to_s - record.from_s
        );
    }
    out.push_str("</table></html>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(text: &str) -> Record {
        let mut whole = serde_json::json!({"source": "a", "boundary": "package", "part": "0", "from_s": 0.0, "to_s": 1.0,
            "quality": null});
        let more: serde_json::Value = serde_json::from_str(text).unwrap();
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn joules_say_what_they_are_worth() {
        assert_eq!(worth(&record(r#"{"quality": "measured", "joules": 2.0}"#)), "measured");
        let least = r#"{"quality": "derived", "joules": 2.0, "at_least": "a sample is missing"}"#;
        assert_eq!(worth(&record(least)), "derived, at least: a sample is missing");
        let modelled = r#"{"quality": "modelled", "modelled": {"low": 1.0, "expected": 2.0, "high": 3.0}}"#;
        assert_eq!(worth(&record(modelled)), "modelled, 1.0 to 3.0");
    }

    #[test]
    fn every_sample_says_whose_it_is_and_a_mean_batch_can_be_had() {
        let mut snapshot = wattlock::Runtime::builder().telemetry(false).build().unwrap().snapshot();
        let cell = |engine: &str, batch_sum| Cell {
            engine: engine.into(),
            kind: "x25519-derive".into(),
            timed: 10,
            batch_sum,
            ..Cell::default()
        };
        snapshot.header.pid = 77;
        snapshot.cells = vec![cell("lanes", 75), cell("software", 0)];
        let text = prometheus(&snapshot);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(samples.iter().all(|line| line.contains("{worker=\"77\",")), "{text}");
        let counts: Vec<&&str> =
            samples.iter().filter(|line| line.starts_with("wattlock_batch_count_")).collect();
        assert!(counts[0].contains("lanes") && counts[0].ends_with(" 10"), "{text}");
        assert!(counts[1].contains("software") && counts[1].ends_with(" 0"), "nothing was queued: {text}");
    }

    #[test]
    fn the_page_divides_as_the_command_line_does() {
        let runtime = wattlock::Runtime::builder().telemetry(false).build().unwrap();
        let mut snapshot = runtime.snapshot();
        let lanes = Cell {
            engine: "lanes".into(),
            kind: "x25519-derive".into(),
            requests: 640,
            timed: 10,
            timed_ns: 50_000,
            held_ns: 640_000,
            batch_sum: 75,
            ..Cell::default()
        };
        snapshot.cells = vec![lanes];
        let page = html(&snapshot);
        assert!(page.contains("<td>640<td>0.0<td>5.0<td>1.0<td>7.5<td>0"), "{page}");
    }
}
