//! `wattlock report`: one page that a stranger can read, from what benches, `serve --compare`, `energy` and a
//! calibration wrote. It measures nothing; every figure on it is in one of those files.

mod gain;
mod machine;
mod pairs;
mod tiles;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value as Json;
use wattlock::Profile;
use wattlock::telemetry::page::document;
use wattlock::telemetry::text::grouped;
use wattlock::telemetry::text::html;
use wattlock_core::Kind;
use wattlock_door::{Document, one_line};

use wattlock_shell::calibration::{self, operations, overview, section, sized, summary};
use wattlock_shell::text;

use self::gain::{Gain, note, within, words as gain};
use self::machine::{heading, machine};
use self::pairs::Pair;

/// Draw one page with pictures from the JSON of other commands: benches, comparisons, joules, a calibration
#[derive(Debug, Args)]
pub struct Command {
    /// The page: one file that opens from disk, without a network
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The calibration (default: the profile that every command uses)
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// A line to say below the figures (above, if it begins with FAILED); may be repeated
    #[arg(long = "note", value_name = "TEXT")]
    notes: Vec<String>,
    /// A line that links to another page, by its path from this one; may be repeated
    #[arg(long = "see", num_args = 2, value_names = ["TEXT", "PAGE"])]
    see: Vec<String>,
    /// Files that `--json` of `bench`, `serve --compare` and `energy` wrote
    #[arg(value_name = "JSON", required = true)]
    records: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<()> {
    let path = command.profile.clone().or_else(Profile::path);
    let profile = match path.filter(|path| path.exists()) {
        Some(path) => Some(Profile::load(&path)?),
        None => None,
    };
    let records: Vec<Record> =
        command.records.iter().map(|path| Record::read(path)).collect::<Result<_>>()?;
    let page = page(&records, profile.as_ref(), &command.notes, &links(&command.see));
    let shown = || one_line(&command.output);
    let output = Document::begin(&command.output, true).with_context(shown)?;
    output.write(page.as_bytes()).with_context(shown)?;
    for line in lines(&records) {
        say!("{line}");
    }
    say!("page: {}", command.output.display());
    Ok(())
}

/// What one command wrote.
#[derive(Debug)]
enum Record {
    /// Rows of a bench or a comparison.
    Rows(Json),
    /// What a command took in joules.
    Joules(Json),
}

impl Record {
    fn read(path: &Path) -> Result<Record> {
        let shown = || path.display().to_string();
        let bytes = std::fs::read(path).with_context(shown)?;
        // What is no JSON has no schema either.
        let json: Json = serde_json::from_slice(&bytes).unwrap_or(Json::Null);
        if json["schema"] == 1 && json["rows"].is_array() {
            return Ok(Record::Rows(json));
        }
        let joules = json["figures"].is_array() && json["seconds"].is_number();
        ensure!(joules, "{}: written by neither a bench nor `wattlock energy --json`", path.display());
        Ok(Record::Joules(json))
    }
}

/// All rows of a bench.
fn rows_of<'a>(records: &'a [Record], bench: &str) -> Vec<&'a Json> {
    let all = records.iter().filter_map(|record| match record {
        Record::Rows(json) => json["rows"].as_array(),
        Record::Joules(_) => None,
    });
    all.flatten().filter(|row| row["bench"] == bench).collect()
}

/// What a server's row is called.
fn served(row: &Json) -> &str {
    match text_of(row, "row") {
        "tls12-handshakes" => "handshakes, TLS 1.2",
        "tls13-handshakes" => "handshakes, TLS 1.3",
        "tls13-responses" => "responses, TLS 1.3",
        other => Some(text_of(&row["params"], "server")).filter(|name| !name.is_empty()).unwrap_or(other),
    }
}

/// The row that speaks for a server's handshakes: that of the newest protocol.
fn handshakes<'a>(rows: &[&'a Json]) -> Option<&'a Json> {
    let names = ["tls13-handshakes", "tls12-handshakes"];
    names.iter().find_map(|name| rows.iter().find(|row| row["row"] == **name)).copied()
}

/// The page in three figures at most, for a terminal: what a server gains, and what files gain beside their usual tool.
fn lines(records: &[Record]) -> Vec<String> {
    let (files, served_rows) = (rows_of(records, "files"), rows_of(records, "serve"));
    let mut lines = Vec::new();
    let gain = |row: &Json| {
        let more = note(row).map(|note| format!("; {}", note.escape_debug()));
        gain(row) + &more.unwrap_or_default()
    };
    if let Some(row) = handshakes(&served_rows)
        && let (Some(ours), Some(theirs)) = (row["ours"].as_f64(), row["theirs"].as_f64())
    {
        let what = served(row);
        lines.push(format!(
            "nginx, {what}: {ours:.0} a second of processor time, {theirs:.0} without Wattlock: {}",
            gain(row)
        ));
    }
    for (name, what, peer) in [
        ("seal", "sealing", "age"),
        ("open", "opening", "age -d"),
        ("seal-file", "sealing to a file", "cp"),
        ("open-file", "opening to a file", "cp"),
    ] {
        let Some(row) = files.iter().find(|row| row["row"] == name && row["theirs"].is_number()) else {
            continue;
        };
        let rate = |key: &str| row["params"]["bytes"].as_f64().zip(row[key].as_f64());
        let rate = |key: &str| rate(key).map(|(bytes, seconds)| text::rate(bytes / seconds));
        let (Some(ours), Some(theirs)) = (rate("ours"), rate("theirs")) else { continue };
        lines.push(format!("files, {what}: {ours}, {peer} {theirs}: {}", gain(row)));
    }
    lines.truncate(3);
    lines
}

/// Text and path in turn, as links.
fn links(see: &[String]) -> Vec<String> {
    let link = |pair: &[String]| match pair {
        [text, page] => Some(format!("<a href=\"{}\">{}</a>", address(page), html(text))),
        _ => None,
    };
    see.chunks(2).filter_map(link).collect()
}

/// A path as an address relative to this page: never a scheme's, never another host's.
fn address(path: &str) -> String {
    let rest = path.trim_start_matches('/');
    // Two slashes would begin a host's name.
    let path = &path[(path.len() - rest.len()).saturating_sub(1)..];
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte);
    let encoded = path.bytes().map(|byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    encoded.collect()
}

/// The page. What failed stands above everything; what else was tried, below the figures. `links` are lines of HTML.
fn page(records: &[Record], profile: Option<&Profile>, notes: &[String], links: &[String]) -> String {
    let (files_rows, served_rows) = (rows_of(records, "files"), rows_of(records, "serve"));
    let (failed, tried): (Vec<&String>, Vec<&String>) =
        notes.iter().partition(|note| note.starts_with("FAILED"));
    let mut body = format!("<h1>{}</h1>{}", heading(records, profile), machine(records, profile));
    for note in failed {
        body += &format!("<p class=\"verdict alarm\">{}</p>", html(note));
    }
    body += &tiles::tiles(&files_rows, &served_rows);
    body += "<p><span class=\"key\"><i class=\"ours\"></i>Wattlock</span> <span class=\"key\"><i class=\"theirs\"></i>what it \
             is compared with</span> <span>\u{251c}\u{2500}\u{2524} the interval of the rounds: a gain lies \
             wholly to the right of the other bar's end</span></p>";
    body += &https(&served_rows);
    body += &files(&files_rows);
    body += &joules(records);
    body += &profile.map(chosen).unwrap_or_default();
    body += &list("checked", "What else was tried", tried.into_iter().map(|note| html(note)));
    body += &sources(records);
    body += &list("more", "Read on", links.iter().cloned());
    document("What Wattlock does", None, &body)
}

/// A section of lines of HTML, if there are any.
fn list(id: &str, title: &str, lines: impl Iterator<Item = String>) -> String {
    let lines: String = lines.map(|line| format!("<li>{line}</li>")).collect();
    if lines.is_empty() { lines } else { format!("<h2 id=\"{id}\">{title}</h2><ul>{lines}</ul>") }
}

fn text_of<'a>(json: &'a Json, key: &str) -> &'a str {
    json[key].as_str().unwrap_or_default()
}

/// A row as a pair of bars: what its work is called, who did it, and how much of it that is, in a unit and in words.
fn pair(
    row: &Json,
    title: String,
    names: [&str; 2],
    amount: impl Fn(f64) -> f64,
    words: impl Fn(f64) -> String,
    mut told: String,
) -> Option<Pair> {
    let gain = Gain::of(row)?;
    if let Some(note) = note(row) {
        told += &format!(" The record notes: {note}.");
    }
    let side = |name: &str, key: &str| {
        let value = row[key].as_f64().filter(|figure| *figure > 0.0).map(&amount)?;
        Some((name.to_owned(), value, words(value)))
    };
    Some(Pair { title, theirs: side(names[0], "theirs")?, ours: side(names[1], "ours")?, gain, told })
}

/// Sealing and opening, in rates: like beside like.
fn files(rows: &[&Json]) -> String {
    let Some(bytes) = rows.first().and_then(|row| row["params"]["bytes"].as_f64()) else {
        return String::new();
    };
    let find = |name: &str| rows.iter().find(|row| row["row"] == name).copied();
    type Work = (&'static str, &'static str, [&'static str; 2]);
    const GROUPS: [(&str, &[Work]); 3] = [
        (
            "Written to a file",
            &[
                ("seal-file", "sealing to a file", ["cp", "wattlock seal"]),
                ("open-file", "opening to a file", ["cp", "wattlock open"]),
            ],
        ),
        (
            "Not written",
            &[
                ("seal", "sealing", ["age", "wattlock seal"]),
                ("open", "opening", ["age -d", "wattlock open"]),
                ("seal-age", "sealing in age's own format", ["age", "wattlock seal --format age"]),
                ("open-age", "opening age's own format", ["age -d", "wattlock open"]),
            ],
        ),
        (
            "From pipe to pipe, a second of processor time",
            &[
                ("stream-seal", "sealing a stream", ["age", "wattlock stream seal"]),
                ("stream-open", "opening a stream", ["age -d", "wattlock stream open"]),
            ],
        ),
    ];
    let drawn = |(name, title, names): &Work| {
        let row = find(name)?;
        let told = match Gain::of(&row["detail"]["cpu"]) {
            Some(cpu) if row["by"] != "cpu" => {
                format!("Speed: {}. Work a second of processor time: {}.", gain(row), cpu.words_of(row))
            }
            _ => format!("Speed: {}.", gain(row)),
        };
        pair(row, (*title).to_owned(), *names, |seconds| bytes / seconds, text::rate, told)
    };
    let group = |(title, works): &(&str, &[Work])| {
        let pairs: Vec<Pair> = works.iter().filter_map(drawn).collect();
        if pairs.is_empty() { String::new() } else { format!("<h3>{title}</h3>{}", pairs::picture(&pairs)) }
    };
    let groups: String = GROUPS.iter().map(group).collect();
    if groups.is_empty() {
        return groups;
    }
    format!(
        "<h2 id=\"files\">A file of {}, sealed and opened</h2><p>Bytes a second, of the whole program.</p>{groups}",
        text::bytes(bytes as u64)
    )
}

/// The site over HTTPS.
fn https(rows: &[&Json]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let drawn = |row: &&&Json| {
        let told = format!(
            "A second of processor time: {}. A second of the clock: {}.",
            gain(row),
            within(row, &row["detail"]["by_rate"])
        );
        let names = ["nginx without Wattlock", "nginx with Wattlock"];
        let words = |value: f64| grouped(value.round() as u64);
        pair(row, served(row).to_owned(), names, |value| value, words, told)
    };
    // A scale for each unit.
    let (mut pictures, mut units) = (String::new(), Vec::new());
    for row in rows {
        let unit = text_of(row, "unit");
        if !units.contains(&unit) {
            units.push(unit);
            let mine: Vec<Pair> = rows
                .iter()
                .filter(|row| text_of(row, "unit") == unit)
                .filter_map(|row| drawn(&row))
                .collect();
            pictures += &pairs::picture(&mine);
        }
    }
    let batches = rows.iter().filter(|row| text_of(row, "unit").starts_with("handshakes"));
    let batches: String = batches.map(|row| pairs::batches(served(row), row)).collect();
    let batches = match batches.is_empty() {
        true => batches,
        false => format!(
            "<h2 id=\"batching\">How handshakes were batched</h2><p>nginx serves other connections while one handshake's \
             operation waits for others of its kind; they are then computed together. The bar is the mean batch. Counts are \
             those of nginx's own status page; what is less than a hundredth of them is left out.</p>{batches}"
        ),
    };
    let mut work = String::new();
    for row in rows {
        let engines = row["detail"]["engines"].as_array().map(Vec::as_slice).unwrap_or_default();
        let engines: Vec<&str> = engines.iter().filter_map(Json::as_str).collect();
        if !engines.is_empty() {
            work += &format!("<li>{}: {}</li>", html(served(row)), html(&engines.join("; ")));
        }
    }
    let work = match work.is_empty() {
        true => work,
        false => {
            format!("<details><summary>Which engine did what, everything</summary><ul>{work}</ul></details>")
        }
    };
    // What the pictures do not show.
    for row in rows {
        let why = text_of(&row["detail"], "no_figure");
        if !why.is_empty() {
            pictures += &format!("<p>{}: no figure: {}</p>", html(served(row)), html(why));
        }
    }
    let mut setups: Vec<String> = rows.iter().map(|row| setup(row)).filter(|said| !said.is_empty()).collect();
    setups.dedup();
    let setups = if setups.is_empty() { String::new() } else { setups.join("; ") + ". " };
    format!(
        "<h2 id=\"https\">The site over HTTPS, by the same nginx without Wattlock and with it</h2><p>{}Bars: what a \
         second of the workers' processor time does.</p>{pictures}{batches}{work}",
        html(&setups)
    )
}

/// How a server's row was measured, as far as its record says it.
fn setup(row: &Json) -> String {
    let params = &row["params"];
    let workers = params["workers"].as_u64().map(|count| match count {
        1 => "1 worker".to_owned(),
        count => format!("{count} workers"),
    });
    let connections = &params["connections"];
    let said = [
        (!connections.is_null()).then(|| format!("{connections} connections at once")),
        Some(text_of(params, "certificate"))
            .filter(|kind| !kind.is_empty())
            .map(|kind| format!("certificate {kind}")),
        workers,
        Some(text_of(row, "against")).filter(|peer| !peer.is_empty()).map(|peer| format!("beside {peer}")),
    ];
    said.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Joules of commands: what counters said, else what the model says with its band.
fn joules(records: &[Record]) -> String {
    let (mut lines, mut metered) = (String::new(), false);
    for record in records {
        let Record::Joules(json) = record else { continue };
        metered |= json["total"]["above_idle"]["joules"].is_number();
        let words = json["command"].as_array().map(Vec::as_slice).unwrap_or_default();
        let words: Vec<&str> = words.iter().filter_map(Json::as_str).collect();
        let command = shortened(&words);
        let (figure, per_joule, from) = energy(json);
        lines += &format!(
            "<tr><td><code>{}</code></td><td>{:.2} s</td><td>{figure}</td><td>{per_joule}</td><td>{from}</td></tr>",
            html(&command),
            json["seconds"].as_f64().unwrap_or_default()
        );
    }
    if lines.is_empty() {
        return String::new();
    }
    let table = format!(
        "<table class=\"words\"><tr><th>command</th><th>time</th><th>joules</th><th>work by each joule</th><th>from</th>\
         </tr>{lines}</table>"
    );
    let shown = match metered {
        true => format!("<p>Above the machine's idle power, by counters.</p>{table}"),
        // A model's figures are not what a page should be remembered for.
        false => format!(
            "<p>No counter may be read here. What follows from processor time and the CPU family's rated power compares two \
             commands on one machine; it is no measurement, and its band says how little is known.</p><details><summary>\
             Modelled joules</summary>{table}</details>"
        ),
    };
    format!("<h2 id=\"joules\">Joules</h2>{shown}")
}

/// A command line without the folders of its files and without recipients: those say nothing to a reader.
fn shortened(words: &[&str]) -> String {
    let short = |word: &&str| match word.rsplit_once('/') {
        Some(("/dev", _)) | None if word.starts_with("age1") => "age1...".to_owned(),
        Some(("/dev", _)) | None => (*word).to_owned(),
        Some((_, name)) => name.to_owned(),
    };
    words.iter().map(short).collect::<Vec<_>>().join(" ")
}

/// Joules, work by each, and where they come from.
fn energy(json: &Json) -> (String, String, String) {
    let above = &json["total"]["above_idle"];
    if let Some(joules) = above["joules"].as_f64() {
        let work = above["work"]["mb_per_joule"].as_f64();
        let work = work.map_or_else(|| "-".to_owned(), |work| format!("{work:.1} MB/J"));
        return (format!("{joules:.2} J"), work, "metered".to_owned());
    }
    let band = |range: &Json, unit: &str, digits: usize| {
        let end = |key: &str| range[key].as_f64();
        match (end("low"), end("expected"), end("high")) {
            (Some(low), Some(expected), Some(high)) => {
                format!("{expected:.digits$} {unit} ({low:.digits$} to {high:.digits$})")
            }
            _ => "-".to_owned(),
        }
    };
    let modelled = &json["modelled"];
    if modelled.is_null() {
        return ("-".to_owned(), "-".to_owned(), "no counter and no model".to_owned());
    }
    (
        band(&modelled["modelled_joules_above_idle"], "J", 2),
        band(&modelled["modelled_work_above_idle"]["mb_per_joule"], "MB/J", 0),
        format!("modelled: {}", html(text_of(modelled, "model"))),
    )
}

/// What was chosen, and why: curves where the choice changes with the size; where it never does, a sentence.
fn chosen(profile: &Profile) -> String {
    let sized = sized(profile);
    let mut crossing: Vec<_> = sized.iter().filter(|(_, series)| calibration::crosses(series)).collect();
    // What files and TLS use most comes first.
    crossing.sort_by_key(|(kind, _)| *kind != Kind::Aes256GcmSeal);
    let what = match crossing.is_empty() {
        // What a kind's choice is at both ends ([`calibration::crosses`]); between kinds it differs.
        true => {
            "Of no kind does the choice change with the size by a tenth of the time, so there is no curve to draw."
        }
        false => "The curves cross where the choice changes.",
    };
    let mut out = format!(
        "<h2 id=\"chosen\">What was chosen, and why</h2><p>Each engine was timed; a request goes to the one that is fastest for \
         its kind and size. {what}</p>"
    );
    for (kind, series) in crossing.into_iter().take(1) {
        out += &section(profile, *kind, series);
    }
    let (summary, overview, operations) = (summary(profile), overview(&sized, false), operations(profile));
    out + &format!(
        "<details><summary>All kinds of requests</summary>{summary}{overview}{operations}</details>"
    )
}

/// The commands that printed the figures.
fn sources(records: &[Record]) -> String {
    let mut lines = String::new();
    for record in records {
        let Record::Rows(json) = record else { continue };
        let peers = json["peers"].as_object().into_iter().flatten();
        let peers: Vec<String> =
            peers.map(|(name, version)| format!("{name} {}", version.as_str().unwrap_or_default())).collect();
        let words: Vec<&str> = text_of(json, "command").split(' ').collect();
        lines += &format!(
            "<li><code>{}</code>, beside {}</li>",
            html(&shortened(&words)),
            html(&peers.join(", "))
        );
    }
    format!(
        "<h2 id=\"how\">How it was measured</h2><ul>{lines}</ul><p>Ours and theirs ran in turn, round by round. A figure \
         is that of the round with the median ratio; the interval is from the least to the greatest ratio of a round (of \
         nine rounds and more the middle half). If it contains 1, there is no difference.</p>"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(bench: &str, name: &str, ours: f64, theirs: Json, ratio: Json) -> Json {
        json!({"bench": bench, "row": name, "params": {"bytes": 1 << 20, "connections": 64, "certificate": "rsa2048"},
            "against": "age 1.1.1", "unit": "handshakes/s", "ours": ours, "theirs": theirs, "ratio": ratio,
            "low": 1.9, "high": 2.2, "by": "time", "rounds": 3, "detail": {"engines": ["lanes rsa 8 in batches of 8.0"]}})
    }

    fn rows(rows: Vec<Json>) -> Record {
        Record::Rows(
            json!({"schema": 1, "command": "wattlock bench files --dir /dev/shm/somewhere", "commit": "abc+",
            "date": "2026-11-23", "cpu": {"model": "M<1>", "name": "Zen 5", "class": "avx512-amd", "cores": 2},
            "kernel": "6.1", "peers": {"age": "1.1.1"}, "rows": rows}),
        )
    }

    #[test]
    fn the_page_shows_both_sides_and_fetches_nothing() {
        let records = [
            rows(vec![
                row("files", "seal", 0.5, 1.0.into(), 2.0.into()),
                row("files", "age", 1.0, Json::Null, Json::Null),
            ]),
            rows(vec![{
                let mut even = row("serve", "tls12-handshakes", 841.0, 763.0.into(), Json::Null);
                even["low"] = 0.9.into();
                even
            }]),
        ];
        let notes = ["a <note>".to_owned(), "FAILED: <it>".to_owned()];
        let page = page(&records, Some(&Profile::built_in()), &notes, &[]);
        for wanted in [
            "M&lt;1&gt; (Zen 5), 2 cores",
            "abc+",
            "a &lt;note&gt;",
            "at least 1.90 times (median 2.00)",
            "no difference (0.90 to 2.20)",
            "with Wattlock",
            ">841<",
            "FAILED: &lt;it&gt;",
            "lanes rsa 8",
            "aes-256-gcm-seal",
            "wattlock bench files --dir somewhere",
        ] {
            assert!(page.contains(wanted), "{wanted}: {page}");
        }
        let lines = lines(&records).join("\n");
        let nginx =
            "nginx, handshakes, TLS 1.2: 841 a second of processor time, 763 without Wattlock: no difference";
        assert!(lines.contains(nginx), "{lines}");
        assert!(
            lines.contains("files, sealing: 2.1 MB/s, age 1.0 MB/s: at least 1.90 times (median 2.00)"),
            "{lines}"
        );
        for forbidden in ["src=", "href=\"http", "url(", "<script", "@import", "/dev/shm"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what}"));
        assert!(
            at("FAILED") < at("class=\"tiles\"") && at("class=\"tiles\"") < at("<h2"),
            "tiles come first"
        );
        assert!(at("a &lt;note&gt;") > at("id=\"chosen\""), "what else was tried comes after the figures");
    }

    /// As `serve --compare --config` writes them.
    #[test]
    fn a_sites_rows_have_their_names_their_notes_and_their_own_setup() {
        let site = |server: &str, workers: u64| {
            let mut row = row("serve", "site", 2000.0, 1000.0.into(), 2.0.into());
            row["unit"] = "responses/s".into();
            row["by"] = "cpu".into();
            row["params"] =
                json!({"server": server, "connections": 32, "resumed_percent": 90, "workers": workers});
            row["against"] = "nginx 1.26".into();
            row["detail"] = json!({"by_rate": {"ratio": 1.5, "low": 1.4, "high": 1.6}});
            row
        };
        let mut noted = site("shop.example", 2);
        noted["note"] = "an upper bound: <work> is left out".into();
        let bare = json!({"bench": "serve", "row": "site", "unit": "responses/s", "ours": 0.0, "theirs": null,
            "params": {"server": "closed.example"}, "detail": {"no_figure": "closed by <it>"}});
        let page = page(&[rows(vec![noted, bare])], None, &[], &[]);
        for wanted in [
            "<h4>shop.example</h4>",
            "The record notes: an upper bound: &lt;work&gt; is left out.",
            "A second of processor time: 2.00 times (1.90 to 2.20 in its rounds).",
            "A second of the clock: 1.50 times (1.40 to 1.60 in its rounds).",
            "32 connections at once, 2 workers, beside nginx 1.26",
            "closed.example: no figure: closed by &lt;it&gt;",
        ] {
            assert!(page.contains(wanted), "{wanted}: {page}");
        }
        for wrong in ["at least", "certificate", "one worker", "null"] {
            assert!(!page.contains(wrong), "{wrong}: {page}");
        }
        let plain = https(&[&site("a.example", 1), &site("b.example", 1)]);
        assert_eq!(plain.matches("1 worker, beside").count(), 1, "{plain}");
        assert!(plain.contains("<h4>b.example</h4>") && plain.contains("at least 1.90 times"), "{plain}");
        assert!(!plain.contains("The record notes"), "{plain}");
        // A terminal, too, has the note, and nothing that moves its cursor.
        let mut handshakes = row("serve", "tls13-handshakes", 2.0, 1.0.into(), 2.0.into());
        handshakes["note"] = "a note\u{1b}[2J".into();
        let lines = lines(&[rows(vec![handshakes])]).concat();
        assert!(lines.ends_with(": 2.00 times (1.90 to 2.20 in its rounds); a note\\u{1b}[2J"), "{lines}");
    }

    #[test]
    fn without_a_curve_it_is_not_said_that_one_engine_does_everything() {
        let mut profile = Profile::built_in();
        // Of each kind one engine, and not of all the same.
        let mut engines = std::collections::BTreeMap::new();
        profile.points.retain(|point| {
            engines.entry(point.kind.clone()).or_insert_with(|| point.engine.clone()) == &point.engine
        });
        let told = chosen(&profile);
        assert!(
            told.contains("Of no kind does the choice change") && !told.contains("same engine"),
            "{told}"
        );
        // Of one kind, one engine is quickest for little and another for much.
        let mut profile = Profile::built_in();
        let of = |point: &wattlock::profile::Point, engine: &str| {
            point.kind == Kind::Aes256GcmSeal.name() && point.engine == engine
        };
        profile.points.retain(|point| {
            point.kind != Kind::Aes256GcmSeal.name() || of(point, "software") || of(point, "instruction")
        });
        let sizes = profile.points.iter().filter(|point| of(point, "software")).map(|point| point.bytes);
        let (least, most) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
        for point in &mut profile.points {
            let ends = [
                (least, "software", 1.0),
                (least, "instruction", 10.0),
                (most, "software", 1e9),
                (most, "instruction", 1e8),
            ];
            for (bytes, engine, ns) in ends {
                if point.bytes == bytes && of(point, engine) {
                    point.ns = ns;
                }
            }
        }
        let told = chosen(&profile);
        assert!(told.contains("The curves cross") && !told.contains("Of no kind"), "{told}");
    }

    /// Records are other programs' files: whatever is in them is text.
    #[test]
    fn hostile_text_in_a_record_stays_text() {
        const TEXTS: [&str; 6] = [
            "</style><script>alert(1)</script>",
            "]]><svg onload=alert(1)>",
            "\"><img src=x onerror=alert(1)>",
            "'><a href='javascript:alert(1)'>",
            "<!--",
            "</title></section><iframe srcdoc=x>",
        ];
        for text in TEXTS {
            let mut hostile = row("serve", text, 2.0, 1.0.into(), 2.0.into());
            hostile["against"] = text.into();
            hostile["unit"] = text.into();
            hostile["params"] = json!({"bytes": 1024, "connections": text, "certificate": text});
            hostile["detail"] =
                json!({"engines": [text, format!("{text} rsa-2048-private 8 in batches of 8.0")]});
            let mut files = row("files", "seal", 0.5, 1.0.into(), 2.0.into());
            files["against"] = text.into();
            let Record::Rows(mut bench) = rows(vec![hostile, files]) else { unreachable!() };
            for key in ["command", "commit", "date", "kernel"] {
                bench[key] = text.into();
            }
            bench["cpu"] = json!({"model": text, "name": text, "class": text, "cores": text});
            bench["peers"] = json!({text: text});
            let joules = json!({"command": [text], "seconds": 1.0, "figures": [], "total": null,
                "modelled": {"model": text}});
            let mut profile = Profile::built_in();
            profile.machine.cpu = text.into();
            profile.machine.microcode = text.into();
            profile.machine.engines.values_mut().for_each(|detail| *detail = text.into());
            let records = [Record::Rows(bench), Record::Joules(joules)];
            let page =
                page(&records, Some(&profile), &[text.to_owned()], &links(&[text.into(), text.into()]));
            assert!(!page.contains(text), "{text}: {page}");
            assert_eq!(page.matches("</style>").count(), 1);
            for markup in ["<script", "<img", "<iframe", "<svg onload", "<!--", "<a href='"] {
                assert!(!page.contains(markup), "{markup}: {page}");
            }
        }
    }

    #[test]
    fn another_page_is_linked_by_its_path_and_by_nothing_else() {
        let see = |text: &str, page: &str| links(&[text.to_owned(), page.to_owned()]).concat();
        assert_eq!(see("a <b>", "../docs/a page.html"), "<a href=\"../docs/a%20page.html\">a &lt;b&gt;</a>");
        assert_eq!(see("x", "javascript:alert('1')"), "<a href=\"javascript%3Aalert%28%271%27%29\">x</a>");
        assert_eq!(see("x", "//host/page"), "<a href=\"/host/page\">x</a>");
        assert_eq!(see("x", "/a//b"), "<a href=\"/a//b\">x</a>");
    }

    #[test]
    fn modelled_joules_have_the_word_and_a_band() {
        let range = json!({"low": 1.0, "expected": 2.0, "high": 3.0});
        let modelled = json!({"command": ["/target/wattlock", "seal", "-r", "age1xyz", "-o", "/dev/null", "/tmp/x"],
            "seconds": 1.5, "figures": [], "total": null, "modelled": {"model": "built-in 1",
            "modelled_joules_above_idle": range, "modelled_work_above_idle": {"mb_per_joule": range}}});
        let told = joules(&[Record::Joules(modelled)]);
        assert!(told.contains("2.00 J (1.00 to 3.00)") && told.contains("modelled: built-in 1"), "{told}");
        assert!(told.contains("<code>wattlock seal -r age1... -o /dev/null x</code>"), "{told}");
        let counted =
            json!({"command": [], "seconds": 1.0, "figures": [], "total": {"above_idle": {"joules": 4.0}}});
        assert!(joules(&[Record::Joules(counted)]).contains("<td>4.00 J</td><td>-</td><td>metered</td>"));
        assert_eq!(joules(&[]), "");
    }
}
