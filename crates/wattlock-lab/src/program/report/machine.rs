//! On which machine the figures of a page were measured, when, and with what. Records of several runs are not one: then
//! each section's are named.

use serde_json::Value as Json;
use wattlock::Profile;
use wattlock::telemetry::text::html;

use super::{Record, text_of};

/// Where figures come from, and the sections that they are in. HTML.
type Run = (String, Vec<String>);

/// The title's last words: only if all is one machine's.
pub fn heading(records: &[Record], profile: Option<&Profile>) -> &'static str {
    let mut all = rows(records).map(|json| text_of(&json["cpu"], "model").to_owned()).collect::<Vec<_>>();
    all.extend(profile.and_then(measured_on));
    all.dedup();
    if all.len() > 1 { "What Wattlock does" } else { "What Wattlock does on this machine" }
}

/// A paragraph if all figures are of one run's machine and day, else a list.
pub fn machine(records: &[Record], profile: Option<&Profile>) -> String {
    let runs = runs(records, profile);
    match &runs[..] {
        [] => String::new(),
        [(run, _)] => format!(
            "<p>{run}. Both sides of each comparison ran in turn on this machine, which may have had other work.</p>"
        ),
        several => {
            let line = |(run, sections): &Run| format!("<li>{}: {run}.</li>", sections.join(", "));
            format!(
                "<p>Figures of several runs. Both sides of each comparison ran in turn on one machine, which may have had \
                 other work.</p><ul>{}</ul>",
                several.iter().map(line).collect::<String>()
            )
        }
    }
}

fn rows(records: &[Record]) -> impl Iterator<Item = &Json> {
    records.iter().filter_map(|record| match record {
        Record::Rows(json) => Some(json),
        Record::Joules(_) => None,
    })
}

/// The machine of a profile, which the built-in one does not say.
fn measured_on(profile: &Profile) -> Option<String> {
    Some(profile.machine.cpu.clone()).filter(|cpu| !cpu.is_empty())
}

/// What differs in machine, day or commit, in the order of the records.
fn runs(records: &[Record], profile: Option<&Profile>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut add = |run: String, section: String| {
        let at = runs.iter().position(|(known, _)| *known == run).unwrap_or_else(|| {
            runs.push((run, Vec::new()));
            runs.len() - 1
        });
        if !runs[at].1.contains(&section) {
            runs[at].1.push(section);
        }
    };
    for json in rows(records) {
        for row in json["rows"].as_array().into_iter().flatten() {
            add(told(json), section(text_of(row, "bench")));
        }
    }
    // A calibration of the same machine needs no line.
    let others = rows(records)
        .any(|json| text_of(&json["cpu"], "model") != profile.map_or("", |one| one.machine.cpu.as_str()));
    if let Some(cpu) = profile.and_then(measured_on).filter(|_| others) {
        add(html(&cpu), "What was chosen, and why".to_owned());
    }
    runs
}

/// What a bench's section is called on the page.
fn section(bench: &str) -> String {
    match bench {
        "files" => "Files".to_owned(),
        "serve" => "HTTPS".to_owned(),
        other => html(other),
    }
}

/// Machine, day and commit of a record.
fn told(json: &Json) -> String {
    let cpu = &json["cpu"];
    let name = match text_of(cpu, "name") {
        "" => String::new(),
        name => format!(" ({})", html(name)),
    };
    let kernels = match text_of(cpu, "class") {
        "avx512-intel" | "avx512-amd" => "kernels for AVX-512",
        "avx2" => "kernels for AVX2",
        _ => "no kernels of its own",
    };
    format!(
        "{}{name}, {} cores, Linux {}: {kernels}. Measured on {} with Wattlock at commit <code>{}</code>",
        html(text_of(cpu, "model")),
        html(&cpu["cores"].to_string()),
        html(text_of(json, "kernel")),
        html(text_of(json, "date")),
        html(text_of(json, "commit"))
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(bench: &str, model: &str, date: &str) -> Record {
        Record::Rows(json!({"schema": 1, "commit": "abc", "date": date, "kernel": "6.1", "peers": {},
            "cpu": {"model": model, "name": "", "class": "avx2", "cores": 2},
            "rows": [{"bench": bench}, {"bench": bench}]}))
    }

    #[test]
    fn figures_of_several_runs_say_whose_each_section_is() {
        let one = [record("files", "M", "2026-11-24"), record("serve", "M", "2026-11-24")];
        let told = machine(&one, None);
        assert!(
            told.starts_with("<p>M, 2 cores") && told.contains("on this machine") && !told.contains("<li>")
        );
        assert!(heading(&one, None).ends_with("on this machine"));
        for (other, one_machine) in
            [(record("serve", "M", "2026-11-27"), true), (record("serve", "<N>", "2026-11-24"), false)]
        {
            let both = [record("files", "M", "2026-11-24"), other];
            let told = machine(&both, None);
            assert!(
                told.contains("<li>Files: M, 2 cores") && told.contains("Measured on 2026-11-24"),
                "{told}"
            );
            assert_eq!(told.matches("<li>").count(), 2, "{told}");
            assert!(told.contains("<li>HTTPS: ") && !told.contains("<N>"), "{told}");
            assert_eq!(heading(&both, None).ends_with("on this machine"), one_machine);
        }
        let mut profile = Profile::built_in();
        profile.machine.cpu = "P".to_owned();
        let told = machine(&one, Some(&profile));
        assert!(
            told.contains("<li>Files, HTTPS: M") && told.contains("<li>What was chosen, and why: P."),
            "{told}"
        );
        assert!(!heading(&one, Some(&profile)).contains("this machine"));
        profile.machine.cpu = "M".to_owned();
        assert!(
            machine(&one, Some(&profile)).starts_with("<p>M")
                && heading(&one, Some(&profile)).contains("this machine")
        );
        assert_eq!(machine(&[], None), "");
    }
}
