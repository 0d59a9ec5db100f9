//! This process's counters as text: JSON, Prometheus' exposition format, or a page.

use std::ffi::c_int;
use std::fmt::Write;

use wattlock::telemetry::{Cell, Snapshot};

use crate::provider::Provider;

/// The counters in a form: 0 JSON, 1 Prometheus (text format 0.0.4), 2 HTML. Empty for any other.
pub fn text(provider: &Provider, form: c_int) -> String {
    let snapshot = provider.current().runtime.snapshot();
    match form {
        0 => serde_json::to_string(&snapshot).unwrap_or_default(),
        1 => prometheus(&snapshot),
        2 => html(&snapshot),
        _ => String::new(),
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
    out.push_str("</table></html>\n");
    out
}
