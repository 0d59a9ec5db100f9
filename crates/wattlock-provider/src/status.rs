//! This process's counters as text: JSON, Prometheus' exposition format, or a page; with joules of the machine since the
//! process was first asked.

use std::ffi::c_int;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use wattlock::meter::{EVERY_NS, Figure, Meter, Places, Reading, Record};
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

/// Mean of a sum, 0 where nothing was counted.
fn mean(sum: u64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}

/// A family of samples: name, sort, words, and for each its labels and value.
fn family(out: &mut String, name: &str, sort: &str, help: &str, rows: &[(String, f64)]) {
    let _ = writeln!(out, "# HELP wattlock_{name} {help}\n# TYPE wattlock_{name} {sort}");
    for (labels, value) in rows {
        let _ = writeln!(out, "wattlock_{name}{{{labels}}} {value}");
    }
}

fn prometheus(snapshot: &Snapshot) -> String {
    type Value = fn(&Cell) -> f64;
    const BY_KIND: [(&str, &str, Value); 6] = [
        ("requests_total", "Requests done.", |cell| cell.requests as f64),
        ("bytes_total", "Input bytes of requests done.", |cell| cell.bytes as f64),
        ("errors_total", "Requests that ended in an error.", |cell| cell.errors as f64),
        ("held_seconds_total", "Time that requests were held.", |cell| cell.held_ns as f64 / 1e9),
        ("batch_sum_total", "Sizes of batches, over queued requests.", |cell| cell.batch_sum as f64),
        ("joules_total", "Joules of timed requests; the JSON form says what they are worth.", |cell| {
            cell.energy_nj as f64 / 1e9
        }),
    ];
    let mut out = String::new();
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
    let joules = |modelled: bool| -> Vec<(String, f64)> {
        let rows = snapshot.energy.iter().filter_map(|record| {
            let value =
                if modelled { record.modelled.as_ref().map(|range| range.expected) } else { record.joules }?;
            Some((format!("source=\"{}\",part=\"{}\"", record.source, record.part), value))
        });
        rows.collect()
    };
    let help = "Joules by counters since this process was first asked.";
    family(&mut out, "machine_joules_total", "counter", help, &joules(false));
    let help = "Modelled joules since this process was first asked; the JSON form has their error band.";
    family(&mut out, "machine_modelled_joules_total", "counter", help, &joules(true));
    family(&mut out, "in_flight", "gauge", "Requests in flight.", &in_flight);
    out
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
            mean(cell.timed_ns, cell.timed) / 1e3,
            mean(cell.held_ns, cell.requests) / 1e3,
            mean(cell.batch_sum, cell.requests),
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
        let (value, worth) = match (&record.joules, &record.modelled) {
            (Some(joules), _) => (format!("{joules:.1}"), "by counter".to_owned()),
            (None, Some(range)) => {
                (format!("{:.1}", range.expected), format!("modelled, {:.1} to {:.1}", range.low, range.high))
            }
            (None, None) => continue,
        };
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{:.1}<td>{value}<td>{worth}",
            escaped(&record.source),
            escaped(&record.part),
            record.to_s - record.from_s
        );
    }
    out.push_str("</table></html>\n");
    out
}
