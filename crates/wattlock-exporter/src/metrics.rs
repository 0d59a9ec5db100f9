//! The ledger in Prometheus' text format 0.0.4, in base units: seconds, bytes, joules.

use std::time::Duration;

use wattlock::telemetry::text::{Metrics, Sort};

use crate::ledger::{Ledger, Sample};

/// A family with labels user, program, engine and kind: name, words, counter, and how many of the counter's units are one
/// of the family's.
const BY_KIND: [(&str, &str, &str, u64); 11] = [
    ("requests_total", "Requests done.", "requests", 1),
    ("bytes_total", "Input bytes of requests done.", "bytes", 1),
    ("errors_total", "Requests that failed, and the program was told.", "errors", 1),
    (
        "refused_total",
        "Requests to open what does not authenticate: damaged or forged data, or a wrong key.",
        "refused",
        1,
    ),
    ("held_seconds_total", "Time that requests waited for others of their batch.", "held_ns", NANO),
    ("batched_requests_total", "Requests that were done in batches.", "batch_count", 1),
    ("batch_sizes_total", "Sizes of their batches, one for each request.", "batch_sum", 1),
    ("timed_requests_total", "Requests whose time was taken: those in batches, and a sample.", "timed", 1),
    ("timed_seconds_total", "Time of those requests, from submission to completion.", "timed_ns", NANO),
    ("submit_seconds_total", "Time that programs took to hand queued requests over.", "submit_ns", NANO),
    ("ended_total", "Runtimes of programs that have ended.", "ended", 1),
];

/// The same without a kind.
const BY_ENGINE: [(&str, &str, &str); 5] = [
    ("quarantines_total", "Times that an engine was put into quarantine.", "quarantines"),
    ("verified_total", "Results that were checked on the CPU.", "verified"),
    ("tests_total", "Known-answer tests that were run.", "tests"),
    ("returned_total", "Pieces of operations that an engine took after the CPU had begun.", "returned"),
    ("chained_total", "Requests that followed a step of the same engine or core.", "chained"),
];

const JOULES: [(&str, &str); 3] = [
    ("measured", "energy_nj measured"),
    ("derived", "energy_nj derived"),
    ("modelled", "energy_nj modelled"),
];

const NANO: u64 = 1_000_000_000;

/// All families.
pub(crate) fn text(ledger: &Ledger, scan_time: Duration) -> String {
    let mut out = Metrics::new("wattlock");
    for (name, help, counter, units) in BY_KIND {
        let labels: &[&str] = if counter == "ended" { &["uid", "program"] } else { &KIND };
        family(&mut out, (name, Sort::Counter, help), ledger.samples(counter), labels, units);
    }
    for (name, help, counter) in BY_ENGINE {
        family(&mut out, (name, Sort::Counter, help), ledger.samples(counter), &KIND[..3], 1);
    }
    let reasons = ["uid", "program", "engine", "reason"];
    let help = "Requests that went to another engine, by the reason.";
    family(&mut out, ("fallbacks_total", Sort::Counter, help), ledger.samples("fallback"), &reasons, 1);
    out.family("joules_total", Sort::Counter, "Joules of timed requests, by what the figure is worth.");
    for (worth, counter) in JOULES {
        for one in ledger.samples(counter) {
            let labels = labels_of(&one, &KIND);
            let labels = labels.iter().map(|(name, label)| (*name, &**label)).chain([("worth", worth)]);
            out.sample(labels, one.value as f64 / NANO as f64);
        }
    }
    family(&mut out, ("in_flight", Sort::Gauge, "Requests in flight."), ledger.in_flight(), &KIND[..3], 1);
    let help = "Processes that run with Wattlock; one may have several runtimes.";
    family(&mut out, ("programs", Sort::Gauge, help), ledger.running(), &KIND[..2], 1);
    of_the_exporter(&mut out, ledger, scan_time);
    out.into_text()
}

const KIND: [&str; 4] = ["uid", "program", "engine", "kind"];

fn labels_of<'a>(one: &Sample<'a>, names: &[&'static str]) -> Vec<(&'static str, std::borrow::Cow<'a, str>)> {
    let values = [one.uid.to_string().into(), one.program.into(), one.engine.into(), one.kind.into()];
    names.iter().copied().zip(values).collect()
}

fn family<'a>(
    out: &mut Metrics,
    (name, sort, help): (&str, Sort, &str),
    samples: impl Iterator<Item = Sample<'a>>,
    labels: &[&'static str],
    units: u64,
) {
    out.family(name, sort, help);
    for one in samples {
        let labels = labels_of(&one, labels);
        let labels = labels.iter().map(|(name, label)| (*name, &**label));
        match units {
            1 => out.sample(labels, one.value),
            units => out.sample(labels, one.value as f64 / units as f64),
        }
    }
}

/// What the exporter passes over, and itself.
fn of_the_exporter(out: &mut Metrics, ledger: &Ledger, scan_time: Duration) {
    let mut by_user = |name, help, value: fn(&crate::ledger::PassedOver) -> u64| {
        out.family(name, Sort::Gauge, help);
        for over in ledger.passed_over() {
            out.sample([("uid", &*over.uid.to_string())], value(&over));
        }
    };
    by_user("series_dropped", "Sums for which a user has no series left.", |over| over.series);
    by_user("files_left_out", "Files that were not read: more than a user may have.", |over| over.files);
    by_user("files_wrong", "Files that are not what their place and name say.", |over| over.wrong);
    out.family(
        "folders_wrong",
        Sort::Gauge,
        "Folders of another user than their names say, or open to others.",
    );
    out.sample([], ledger.wrong_folders);
    out.family("folders_unread", Sort::Gauge, "Folders that the exporter may not read.");
    out.sample([], ledger.unread_folders);
    out.family("scan_seconds", Sort::Gauge, "Time that the last reading of all files took.");
    out.sample([], scan_time.as_secs_f64());
    out.family("exporter_build_info", Sort::Gauge, "The exporter's version; always 1.");
    out.sample([("version", env!("CARGO_PKG_VERSION"))], 1);
}

#[cfg(test)]
mod tests {
    use wattlock::telemetry::{Cell, EngineCounts, Scan, Totals, User};

    use super::*;

    #[test]
    fn every_family_is_described_in_base_units_and_labels_stay_labels() {
        let mut snapshot = wattlock::Runtime::builder().telemetry(false).build().unwrap().snapshot();
        snapshot.header.program = "a\"} 1\nwattlock_up 1\\".to_owned();
        snapshot.header.engines = vec!["lanes".to_owned()];
        snapshot.header.energy = vec!["derived: by powercap".to_owned()];
        snapshot.cells = vec![Cell {
            engine: "lanes".to_owned(),
            kind: "sha-256".to_owned(),
            requests: 7,
            held_ns: 1_500_000_000,
            energy_nj: 2_500_000_000,
            timed: 7,
            batch_sum: 21,
            ..Cell::default()
        }];
        snapshot.engines = vec![EngineCounts {
            engine: "lanes".to_owned(),
            in_flight: 3,
            fallbacks: vec![("busy".to_owned(), 2)],
            ..EngineCounts::default()
        }];
        let mut ledger = Ledger::default();
        let (living, totals) = (vec![snapshot], Totals::default());
        let user = User { uid: 7, living, ended: Vec::new(), totals, left_out: 1, wrong: 2, first: true };
        ledger.update(|each| {
            each(user);
            Scan { wrong_folders: 3, unread_folders: 4, ..Scan::default() }
        });
        let text = text(&ledger, Duration::from_millis(2));
        let label = "uid=\"7\",program=\"a\\\"} 1\\nwattlock_up 1\\\\\"";
        for line in [
            format!("wattlock_requests_total{{{label},engine=\"lanes\",kind=\"sha-256\"}} 7"),
            format!("wattlock_held_seconds_total{{{label},engine=\"lanes\",kind=\"sha-256\"}} 1.5"),
            format!("wattlock_batched_requests_total{{{label},engine=\"lanes\",kind=\"sha-256\"}} 7"),
            format!("wattlock_batch_sizes_total{{{label},engine=\"lanes\",kind=\"sha-256\"}} 21"),
            format!(
                "wattlock_joules_total{{{label},engine=\"lanes\",kind=\"sha-256\",worth=\"derived\"}} 2.5"
            ),
            format!("wattlock_fallbacks_total{{{label},engine=\"lanes\",reason=\"busy\"}} 2"),
            format!("wattlock_in_flight{{{label},engine=\"lanes\"}} 3"),
            format!("wattlock_programs{{{label}}} 1"),
            "wattlock_files_left_out{uid=\"7\"} 1".to_owned(),
            "wattlock_folders_unread 4".to_owned(),
            "wattlock_scan_seconds 0.002".to_owned(),
        ] {
            assert_eq!(text.lines().filter(|known| *known == line).count(), 1, "{line}\n{text}");
        }
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let of = |what: &str| {
                text.lines().filter(|line| line.starts_with(&format!("# {what} {name} "))).count()
            };
            assert_eq!((of("HELP"), of("TYPE")), (1, 1), "{name}");
        }
    }
}
