//! `wattlock report`: one page that a stranger can read, from what benches, `serve --compare`, `energy` and a
//! calibration wrote. It measures nothing; every figure on it is in one of those files.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value as Json;
use wattlock::Profile;
use wattlock::telemetry::text::html;
use wattlock_core::Kind;
use wattlock_door::{Document, one_line};

use wattlock_shell::calibration::{self, operations, overview, section, sized, summary};
use wattlock_shell::svg::{self, Anchor};
use wattlock_shell::text::{self, verdict};

/// Draw one page with pictures from the JSON of other commands: benches, comparisons, joules, a calibration
#[derive(Debug, Args)]
pub struct Command {
    /// The page: one file that opens from disk, without a network
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The calibration (default: the profile that every command uses)
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// A line to say above the figures; may be repeated
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
    let page = page(
        &records,
        profile.as_ref(),
        &[command.notes.iter().map(|note| html(note)).collect(), links(&command.see)].concat(),
    )?;
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

/// A bar: what it is, how long, and the words at its end.
#[derive(Debug, PartialEq)]
struct Bar {
    label: String,
    value: f64,
    words: String,
    ours: bool,
}

const OURS: &str = calibration::COLOURS[0];
const THEIRS: &str = "#969ea8";

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
        other => other,
    }
}

/// The page in three figures at most, for a terminal: what a server gains, and what files gain beside their usual tool.
fn lines(records: &[Record]) -> Vec<String> {
    let (files, served_rows) = (rows_of(records, "files"), rows_of(records, "serve"));
    let mut lines = Vec::new();
    let handshakes = ["tls13-handshakes", "tls12-handshakes"];
    let handshakes = handshakes.iter().find_map(|name| served_rows.iter().find(|row| row["row"] == **name));
    if let Some(row) = handshakes
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

/// A path as an address relative to this page: never a scheme's.
fn address(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte);
    let encoded = path.bytes().map(|byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    encoded.collect()
}

/// `notes` are lines of HTML.
fn page(records: &[Record], profile: Option<&Profile>, notes: &[String]) -> Result<String> {
    let rows = |bench: &str| rows_of(records, bench);
    let mut body = format!("<h1>What Wattlock does on this machine</h1>{}", machine(records));
    if !notes.is_empty() {
        let lines: String = notes.iter().map(|note| format!("<li>{note}</li>")).collect();
        write!(body, "<ul class=\"notes\">{lines}</ul>")?;
    }
    let key = |colour: &str, name: &str| {
        format!("<span class=\"key\"><i style=\"background:{colour}\"></i>{name}</span>")
    };
    write!(body, "<p>{}{}</p>", key(OURS, "Wattlock"), key(THEIRS, "what it is compared with"))?;
    body += &files(&rows("files"))?;
    body += &https(&rows("serve"))?;
    body += &joules(records);
    if let Some(profile) = profile {
        body += &chosen(profile);
    }
    body += &sources(records);
    Ok(calibration::document("Wattlock on this machine", &body))
}

fn text_of<'a>(json: &'a Json, key: &str) -> &'a str {
    json[key].as_str().unwrap_or_default()
}

fn machine(records: &[Record]) -> String {
    let Some(json) = records.iter().find_map(|record| match record {
        Record::Rows(json) => Some(json),
        Record::Joules(_) => None,
    }) else {
        return String::new();
    };
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
        "<p>{}{name}, {} cores, Linux {}: {kernels}. Measured on {} with Wattlock at commit <code>{}</code>. Both sides \
         of each comparison ran in turn on this machine, which may have had other work.</p>",
        html(text_of(cpu, "model")),
        cpu["cores"],
        html(text_of(json, "kernel")),
        html(text_of(json, "date")),
        html(text_of(json, "commit"))
    )
}

/// A row's gain in words.
fn gain(row: &Json) -> String {
    let figure = |key: &str| row[key].as_f64();
    match (figure("ratio"), figure("low"), figure("high")) {
        (ratio, Some(low), Some(high)) => verdict(ratio, low, high),
        (Some(ratio), _, _) => format!("{ratio:.2} times"),
        _ => "-".to_owned(),
    }
}

/// Sealing and opening, in rates.
fn files(rows: &[&Json]) -> Result<String> {
    let find = |name: &str| rows.iter().find(|row| row["row"] == name);
    let Some(bytes) = rows.first().and_then(|row| row["params"]["bytes"].as_f64()) else {
        return Ok(String::new());
    };
    let mut bars = Vec::new();
    for (name, label, ours) in [
        ("cp", "cp to a file", false),
        ("seal-file", "seal to a file", true),
        ("open-file", "open to a file", true),
        ("age", "age, encrypt", false),
        ("seal", "seal", true),
        ("seal-age", "seal, age's own format", true),
        ("age-d", "age, decrypt", false),
        ("open", "open", true),
        ("open-age", "open, age's own format", true),
    ] {
        let seconds = find(name).and_then(|row| row["ours"].as_f64()).filter(|seconds| *seconds > 0.0);
        let Some(value) = seconds.map(|seconds| bytes / seconds) else { continue };
        bars.push(Bar { label: label.to_owned(), value, words: text::rate(value), ours });
    }
    let told = [
        ("seal-file", "sealing to a file, against <code>cp</code>"),
        ("open-file", "opening to a file, against <code>cp</code>"),
        ("seal", "sealing, against <code>age</code>"),
        ("open", "opening, against <code>age -d</code>"),
        ("seal-age", "sealing in age's own format, against <code>age</code>"),
        ("open-age", "opening age's own format, against <code>age -d</code>"),
    ];
    let line = |(name, what): (&str, &str)| {
        let row = find(name).filter(|row| row["theirs"].is_number())?;
        let cpu = gain(&row["detail"]["cpu"]);
        Some(format!("<tr><td>{what}</td><td>{}</td><td>{cpu}</td></tr>", gain(row)))
    };
    let lines: String = told.into_iter().filter_map(line).collect();
    Ok(format!(
        "<h2 id=\"files\">A file of {}, sealed and opened</h2><p>Bytes a second of the whole program; those without \
         \"to a file\" write to <code>/dev/null</code>.</p>{}<table class=\"words\"><tr><th>what</th><th>speed</th>\
         <th>work a second of processor time</th></tr>{lines}</table>",
        text::bytes(bytes as u64),
        picture(&bars)
    ))
}

/// The site over HTTPS.
fn https(rows: &[&Json]) -> Result<String> {
    let Some(first) = rows.first() else { return Ok(String::new()) };
    let (mut bars, mut lines, mut work) = (Vec::new(), String::new(), String::new());
    for row in rows {
        let what = served(row);
        let unit = text_of(row, "unit").trim_end_matches("/s");
        for (key, server, ours) in [("theirs", "stock", false), ("ours", "with Wattlock", true)] {
            let Some(value) = row[key].as_f64() else { continue };
            bars.push(Bar { label: format!("{what}: {server}"), value, words: format!("{value:.0}"), ours });
        }
        write!(
            lines,
            "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
            html(what),
            gain(row),
            gain(&row["detail"]["by_rate"])
        )?;
        let engines = row["detail"]["engines"].as_array().map(Vec::as_slice).unwrap_or_default();
        let engines: Vec<&str> = engines.iter().filter_map(Json::as_str).collect();
        if !engines.is_empty() {
            let engines = html(&engines.join("; "));
            write!(work, "<li>{}, {unit}: {engines}</li>", html(what))?;
        }
    }
    Ok(format!(
        "<h2 id=\"https\">The site over HTTPS, by the same nginx without Wattlock and with it</h2><p>{} connections at \
         once, certificate {}, one worker; against {}. Bars: what a second of the worker's processor time does.</p>{}\
         <table class=\"words\"><tr><th>what</th><th>a second of processor time</th><th>a second of the \
         clock</th></tr>{lines}</table><details><summary>Which engine did what, by nginx's own status page</summary>\
         <ul>{work}</ul></details>",
        first["params"]["connections"],
        html(text_of(&first["params"], "certificate")),
        html(text_of(first, "against")),
        picture(&bars)
    ))
}

/// Joules of commands: what counters said, else what the model says with its band.
fn joules(records: &[Record]) -> String {
    let mut lines = String::new();
    for record in records {
        let Record::Joules(json) = record else { continue };
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
    format!(
        "<h2 id=\"joules\">Joules</h2><p>Above the machine's idle power. \"Modelled\" means that no counter may be read \
         here: the figure follows from processor time and the CPU family's rated power, and the band says how little is \
         known. Modelled figures compare two commands on one machine; they are no measurement.</p>\
         <table class=\"words\"><tr><th>command</th><th>time</th><th>joules</th><th>work by each joule</th><th>from</th>\
         </tr>{lines}</table>"
    )
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

/// What was chosen, and why: the kind that files use in full, the rest in short.
fn chosen(profile: &Profile) -> String {
    let sized = sized(profile);
    let mut out = "<h2 id=\"chosen\">What was chosen, and why</h2><p>Each engine was timed on this machine; a request \
                   goes to the one that takes least for its kind and size. The curves cross where the choice changes."
        .to_owned();
    out += &format!("</p>{}", summary(profile));
    for (kind, series) in &sized {
        if *kind == Kind::Aes256GcmSeal {
            out += &section(profile, *kind, series);
        }
    }
    let (overview, operations) = (overview(&sized, false), operations(profile));
    out + &format!("<details><summary>All kinds of requests</summary>{overview}{operations}</details>")
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
         is that of the round with the median ratio; in brackets stand the least and the greatest ratio of a round (of \
         nine rounds and more the middle half). Where rounds differ by more than the gain, no ratio is given.</p>"
    )
}

/// Horizontal bars, each with its words at the end.
fn picture(bars: &[Bar]) -> String {
    const ROW: f64 = 26.0;
    const LABELS: f64 = 260.0;
    const WORDS: f64 = 90.0;
    const WIDTH: f64 = 900.0;
    let most = bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
    let height = ROW * bars.len() as f64 + 8.0;
    let mut body = String::new();
    for (at, bar) in bars.iter().enumerate() {
        let top = 4.0 + ROW * at as f64 + 3.0;
        let length = (bar.value / most * (WIDTH - LABELS - WORDS)).max(1.0);
        let colour = if bar.ours { OURS } else { THEIRS };
        body += &format!(
            "<rect x=\"{LABELS}\" y=\"{top}\" width=\"{length:.1}\" height=\"{}\" fill=\"{colour}\"/>",
            ROW - 6.0
        );
        let line = top + ROW / 2.0 + 3.0;
        body += &svg::words((LABELS - 8.0, line), Anchor::End, 17, "#000", &bar.label);
        body += &svg::words((LABELS + length + 6.0, line), Anchor::Start, 17, "#000", &bar.words);
    }
    let svg =
        format!("<svg viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">{body}</svg>");
    format!("<div class=\"bars\">{svg}</div>")
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
        let page = page(&records, Some(&Profile::built_in()), &[html("a <note>").to_string()]).unwrap();
        for wanted in [
            "M&lt;1&gt; (Zen 5), 2 cores",
            "abc+",
            "a &lt;note&gt;",
            "at least 1.90 times (median 2.00)",
            "no difference (0.90 to 2.20)",
            "with Wattlock",
            ">841<",
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
        let links = page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next());
        for link in links {
            assert!(page.contains(&format!("id=\"{link}\"")), "nothing is called {link}");
        }
    }

    #[test]
    fn another_page_is_linked_by_its_path_and_by_nothing_else() {
        let see = |text: &str, page: &str| links(&[text.to_owned(), page.to_owned()]).concat();
        assert_eq!(see("a <b>", "../docs/a page.html"), "<a href=\"../docs/a%20page.html\">a &lt;b&gt;</a>");
        assert_eq!(see("x", "javascript:alert('1')"), "<a href=\"javascript%3Aalert%28%271%27%29\">x</a>");
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

    #[test]
    fn the_longest_bar_is_the_largest_value() {
        let bar = |value| Bar { label: "b".into(), value, words: format!("{value}"), ours: true };
        let drawn = picture(&[bar(50.0), bar(100.0)]);
        let widths: Vec<f64> = drawn
            .split("<rect ")
            .skip(1)
            .filter_map(|rect| rect.split("width=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(widths.len(), 2, "{drawn}");
        assert!((widths[1] / widths[0] - 2.0).abs() < 0.02, "{widths:?}");
    }
}
