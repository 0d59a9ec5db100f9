//! `wattlock lab`, done by `wattlock-lab`, as a person or a script meets it. Every figure it prints is simulated.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wattlock-lab")).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn objects(arguments: &[&str]) -> Vec<Value> {
    text(&lab(arguments)).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_line_is_an_object_with_every_field_and_each_quantity_of_a_row_comes_once() {
    let all = objects(&["all", "--json"]);
    let mut seen = BTreeSet::new();
    let mut papers = BTreeSet::new();
    for object in &all {
        let word = |key: &str| object[key].as_str().unwrap_or_else(|| panic!("{key}: {object}")).to_owned();
        word("unit");
        papers.insert(word("paper"));
        word("experiment");
        assert!(seen.insert((word("paper"), word("row"), word("quantity"))), "twice: {object}");
        assert!(object["simulated"].is_number(), "{object}");
        assert!(["input", "fitted", "echoed", "predicted"].contains(&word("role").as_str()), "{object}");
        for key in ["published", "adaptive", "deviation", "naive", "naive_deviation", "gain"] {
            assert!(
                object.get(key).is_some_and(|value| value.is_null() || value.is_number()),
                "{key}: {object}"
            );
        }
    }
    assert_eq!(papers.into_iter().collect::<Vec<_>>(), ["aca-sds", "eeca", "eep", "lecpaes", "qweb"]);
    assert!(all.iter().any(|object| object["published"].is_null()));
}

#[test]
fn the_published_figures_are_those_of_the_tables() {
    let of = |paper: &str, row: &str, quantity: &str| {
        let all = objects(&[paper, "--json"]);
        let found = all.iter().find(|object| object["row"] == row && object["quantity"] == quantity);
        found.unwrap_or_else(|| panic!("{paper} {row} {quantity}"))["published"].as_f64().unwrap()
    };
    assert_eq!(of("eeca", "block_kib=16", "throughput"), 7_113_426.0);
    assert_eq!(of("qweb", "suite=rsa-2048 workers=8", "handshakes_per_s"), 38_400.0);
}

#[test]
fn a_value_that_no_table_has_is_simulated_and_has_no_published_figure() {
    let rows = objects(&["eeca", "--json", "--block-kib", "100"]);
    let own = rows.iter().filter(|object| object["row"] == "block_kib=100").collect::<Vec<_>>();
    assert!(!own.is_empty() && own.iter().all(|object| object["published"].is_null()));
    let rows = objects(&["qweb", "--json", "--workers", "6", "--handshakes", "300"]);
    assert!(rows.iter().all(|object| object["published"].is_null()));
}

#[test]
fn the_same_seed_prints_the_same_bytes_and_another_does_not() {
    let with = |seed| text(&lab(&["qweb", "--json", "--handshakes", "300", "--seed", seed]));
    assert_eq!(with("5"), with("5"));
    assert_ne!(with("5"), with("6"));
    assert_eq!(text(&lab(&["all", "--json"])), text(&lab(&["all", "--json"])));
}

/// What is selected is printed, in every form; the summary stays that of all predicted rows.
#[test]
fn roles_select_rows() {
    let roles = |arguments: &[&str]| -> BTreeSet<String> {
        let rows = objects(&[&["qweb", "--json", "--handshakes", "300"], arguments].concat());
        rows.iter().map(|row| row["role"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(roles(&["--role", "echoed"]), BTreeSet::from(["echoed".to_owned()]));
    let two = BTreeSet::from(["fitted".to_owned(), "predicted".to_owned()]);
    assert_eq!(roles(&["--role", "predicted,fitted"]), two);
    assert_eq!(roles(&["--role", "predicted", "--role", "fitted"]), two);
    assert!(roles(&[]).len() >= 3);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.html");
    let table = text(&lab(&["eep", "--role", "input", "--report", path.to_str().unwrap()]));
    let page = std::fs::read_to_string(&path).unwrap();
    for shown in [&table, &page] {
        assert!(shown.contains("gpu_only step=6") && !shown.contains("plaintext_MB=400"), "{shown}");
        assert!(shown.contains("saving_over_gpu"), "the summary");
    }
}

#[test]
fn the_table_says_that_it_is_simulated_and_shows_both_columns() {
    let table = text(&lab(&["qweb", "--handshakes", "300"]));
    assert!(table.lines().next().unwrap().contains("simulated"), "{table}");
    let header = table.lines().find(|line| line.starts_with("row ")).unwrap();
    for column in ["role", "published", "simulated", "deviation", "naive", "adaptive, simulated", "gain"] {
        assert!(header.contains(column), "{column}: {header}");
    }
    assert!(table.contains("not determined"), "the parameters say what the data leave open");
}

#[test]
fn fit_names_the_parameters_and_what_they_rest_on() {
    for paper in ["eeca", "qweb", "lecpaes", "aca-sds", "eep", "velocity"] {
        let parameters = objects(&["fit", paper, "--json"]);
        assert!(!parameters.is_empty(), "{paper}");
        for parameter in &parameters {
            assert!(!parameter["name"].as_str().unwrap().is_empty());
            assert!(!parameter["source"].as_str().unwrap().is_empty());
            assert!(parameter["value"].is_number(), "{parameter}");
            let origin = parameter["origin"].as_str().unwrap();
            assert!(["input", "fitted", "guess"].contains(&origin), "{parameter}");
        }
    }
}

#[test]
fn nonsense_is_one_line_and_an_exit_code_of_its_own() {
    for arguments in [
        &["qweb", "--workers", "0"][..],
        &["qweb", "--timer-us", "nan"],
        &["qweb", "--set", "qweb.colour=blue"],
        &["eeca", "--block-kib", "0"],
        &["eeca", "--set", "busy_permille=1"],
        &["eep", "--megabytes", "0"],
        &["lecpaes", "--latency-us", "-1"],
        &["qweb", "--cores", "-1"],
        &["qweb", "--straight", "many"],
        &["fit", "nobody"],
        &["aca-sds", "--cores", "0"],
        &["velocity", "--seconds", "0"],
        &["eeca", "--role", "guessed"],
        &["eeca", "--policy", "software"],
        &["all", "--policy=adaptive"],
        &["fit", "qweb", "--policy", "qweb"],
        &["qweb", "--objective", "energy"],
        &["eep", "--emulate", "dh8970"],
        &["fit", "qweb", "--set", "busy_permille=1"],
    ] {
        let output = lab(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(60), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.starts_with("wattlock: ") && output.stdout.is_empty(), "{said}");
    }
}

#[test]
fn a_policys_settings_reach_it() {
    let rate = |set: &str| {
        let rows = objects(&["qweb", "--json", "--handshakes", "300", "--concurrency", "32", "--set", set]);
        let row = rows
            .iter()
            .find(|row| row["row"] == "suite=rsa-2048 workers=8" && row["quantity"] == "latency_us");
        row.unwrap()["simulated"].as_f64().unwrap()
    };
    assert!(rate("qweb.timer_ns=5000") < rate("qweb.timer_ns=1000000"));
}

#[test]
fn every_paper_has_help_with_an_example() {
    for what in ["eeca", "qweb", "lecpaes", "aca-sds", "eep", "velocity", "all", "fit"] {
        let help = text(&lab(&[what, "--help"]));
        assert!(help.contains(&format!("wattlock lab {what}")), "{what}");
    }
}

/// The page of everything, in a folder of its own.
fn page() -> (tempfile::TempDir, std::path::PathBuf, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.html");
    text(&lab(&["all", "--report", path.to_str().unwrap()]));
    let content = std::fs::read_to_string(&path).unwrap();
    (folder, path, content)
}

#[test]
fn the_page_fetches_nothing_and_says_simulated_on_every_figure() {
    let (folder, _, page) = page();
    for forbidden in ["src=", "href=\"http", "url(", "<script", "@import", "stylesheet"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    let figures: Vec<&str> =
        page.split("<svg").skip(1).map(|rest| rest.split("</svg>").next().unwrap()).collect();
    assert!(figures.len() > 30, "{}", figures.len());
    assert!(figures.iter().all(|figure| figure.contains("simulated</text>")));
    assert!(page.contains("prefers-color-scheme:dark"));
    for paper in ["EECA", "QWEB", "LECPAES", "ACA-SDS", "EEP", "bursts: power", "heavy-tail: clock step"] {
        assert!(page.contains(paper), "{paper}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf\""));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no partial file is left");
}

#[test]
fn a_page_that_cannot_be_written_leaves_nothing_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("no-such-folder").join("out.html");
    let output = lab(&["qweb", "--handshakes", "300", "--report", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(42));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no-such-folder") && said.lines().count() == 1, "{said}");
}

fn browser() -> Option<&'static str> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    names
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success()))
}

fn chromium(browser: &str, folder: &Path, arguments: &[&str]) -> Output {
    Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1300,4000"])
        .arg(format!("--user-data-dir={}", folder.join("browser").display()))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn the_page_opens_in_a_browser_from_disk() {
    let Some(browser) = browser() else {
        println!("skipped: no Chromium installed");
        return;
    };
    let (folder, path, _) = page();
    let url = format!("file://{}", path.display());
    let seen = chromium(browser, folder.path(), &["--dump-dom", &url]);
    let dom = String::from_utf8_lossy(&seen.stdout);
    for wanted in ["<svg", "published", "adaptive, simulated", "suite=ecdhe-rsa", "block size, KiB"] {
        assert!(dom.contains(wanted), "the browser shows no {wanted:?}");
    }
    let report = folder.path().join("report.html");
    let records = records(folder.path());
    text(&lab(
        &[&["report", "-o", report.to_str().unwrap()], &records.each_ref().map(String::as_str)[..]].concat()
    ));
    // Wide and narrow, light and dark.
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/test/pages.py");
    let looked =
        Command::new("python3").arg(script).arg(folder.path()).args([&path, &report]).output().unwrap();
    assert!(looked.status.success(), "{}", String::from_utf8_lossy(&looked.stdout));
    let picture = folder.path().join(path.file_stem().unwrap()).display().to_string() + "-1280-light.png";
    assert!(std::fs::metadata(&picture).unwrap().len() > 60_000, "the page is not blank");
}

/// What `bench files` and `serve --compare` write, with text of a stranger's in it.
fn records(folder: &Path) -> [String; 2] {
    let row = |bench: &str, name: &str, unit: &str, ours: f64, theirs: f64| {
        serde_json::json!({"bench": bench, "row": name, "unit": unit, "ours": ours, "theirs": theirs, "rounds": 3,
            "ratio": ours / theirs, "low": 0.9 * ours / theirs, "high": 1.3 * ours / theirs, "by": "cpu",
            "params": {"bytes": 1 << 28, "connections": 64, "certificate": "rsa2048"},
            "against": "</style><script>console.error('hostile')</script><img src=http://192.0.2.1/x>",
            "detail": {"engines": ["lanes rsa-2048-private 5000 in batches of 7.4", "instruction x25519-derive 5000"]}})
    };
    let served = vec![
        row("serve", "tls13-handshakes", "handshakes/s", 2200.0, 1000.0),
        row("serve", "tls13-responses", "responses/s", 9000.0, 8800.0),
    ];
    let files = vec![row("files", "seal", "s", 0.5, 0.25), row("files", "open-file", "s", 0.5, 0.45)];
    [("serve", served), ("files", files)].map(|(name, rows)| {
        let path = folder.join(name).with_extension("json");
        let record = serde_json::json!({"schema": 1, "command": "a <b>", "commit": "c", "date": "2026-11-27",
            "cpu": {"model": "m", "name": "", "class": "avx2", "cores": 2}, "kernel": "6", "peers": {}, "rows": rows});
        std::fs::write(&path, record.to_string()).unwrap();
        path.display().to_string()
    })
}

#[test]
fn ablate_knows_its_rules_and_refuses_others() {
    let refused = lab(&["ablate", "--only", "usual,nonsense"]);
    assert_eq!(refused.status.code(), Some(60));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("--only must be") && said.contains("half_passes"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}
