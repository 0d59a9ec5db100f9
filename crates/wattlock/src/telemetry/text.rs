//! Counters as text for other programs: Prometheus' exposition format, and text inside a page. Figures for people.

use std::fmt::{Display, Write};

/// Families of samples in Prometheus' text format 0.0.4. Every name begins with the same prefix.
#[derive(Debug)]
pub struct Metrics {
    prefix: &'static str,
    family: String,
    text: String,
}

/// How a family's values change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// They never fall.
    Counter,
    /// They rise and fall.
    Gauge,
}

impl Metrics {
    /// None yet. `prefix` is without the underscore behind it.
    pub fn new(prefix: &'static str) -> Metrics {
        Metrics { prefix, family: String::new(), text: String::new() }
    }

    /// Begins a family: the samples that follow are its.
    pub fn family(&mut self, name: &str, sort: Sort, help: &str) {
        self.family = format!("{}_{name}", self.prefix);
        let sort = match sort {
            Sort::Counter => "counter",
            Sort::Gauge => "gauge",
        };
        let _ = writeln!(self.text, "# HELP {0} {help}\n# TYPE {0} {sort}", self.family);
    }

    /// A sample with its labels.
    pub fn sample<'a>(&mut self, labels: impl IntoIterator<Item = (&'a str, &'a str)>, value: impl Display) {
        self.text.push_str(&self.family);
        let mut open = '{';
        for (name, label) in labels {
            let label = label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{open}{name}=\"{label}\"");
            open = ',';
        }
        let close = if open == ',' { "}" } else { "" };
        let _ = writeln!(self.text, "{close} {value}");
    }

    /// All of them.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// Text that a page shows as it is, in an element or an attribute.
pub fn html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Bytes with a binary prefix: `64 B`, `16 KiB`, `2.5 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 || unit == 0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// A rate in bytes a second with a decimal prefix: `8.46 GB/s`.
pub fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second {
        r if r >= 1e9 => format!("{:.2} GB/s", r / 1e9),
        r if r >= 1e6 => format!("{:.1} MB/s", r / 1e6),
        r => format!("{:.1} kB/s", r / 1e3),
    }
}

/// Thousands by commas.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_families_are_named_once() {
        let mut metrics = Metrics::new("wattlock");
        metrics.family("requests_total", Sort::Counter, "Requests done.");
        metrics.sample([("engine", "a\"b\\c\nd"), ("kind", "x")], 7);
        metrics.family("in_flight", Sort::Gauge, "Requests in flight.");
        metrics.sample([], 0.5);
        let expected = "# HELP wattlock_requests_total Requests done.\n# TYPE wattlock_requests_total counter\n\
                        wattlock_requests_total{engine=\"a\\\"b\\\\c\\nd\",kind=\"x\"} 7\n\
                        # HELP wattlock_in_flight Requests in flight.\n# TYPE wattlock_in_flight gauge\n\
                        wattlock_in_flight 0.5\n";
        assert_eq!(metrics.into_text(), expected);
    }

    #[test]
    fn a_page_shows_text_as_it_is() {
        assert_eq!(html("<a href=\"?x&y\">"), "&lt;a href=&quot;?x&amp;y&quot;&gt;");
    }

    #[test]
    fn thousands_are_told_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
