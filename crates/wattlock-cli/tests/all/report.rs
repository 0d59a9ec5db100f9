//! The calibration page in a real browser: it opens from disk, without a network, and shows what it should.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::Command;

use crate::built;

fn browser() -> Option<&'static str> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    names
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success()))
}

fn chromium(folder: &Path, arguments: &[&str]) -> std::process::Output {
    let profile = folder.join("browser");
    Command::new(browser().unwrap())
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1300,2400"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn the_report_opens_in_a_browser_from_disk() {
    if browser().is_none() {
        println!("skipped: no Chromium installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("out.html");
    let profile = folder.path().join("profile.json");
    let made = Command::new(built::program_for(&["--emulate"]))
        .args([
            "calibrate",
            "--quick",
            "--kind",
            "aes-256-gcm-seal",
            "--kind",
            "rsa-2048-private",
            "--per-point-ms",
            "1",
        ])
        .args(["--emulate", "dh8970", "--out"])
        .arg(&profile)
        .arg("--report")
        .arg(&page)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));

    let url = format!("file://{}", page.display());
    let seen = chromium(folder.path(), &["--dump-dom", &url]);
    let dom = String::from_utf8_lossy(&seen.stdout);
    for wanted in [
        "<svg",
        "throughput, one request",
        "latency, one request",
        "fastest engine",
        "aes-256-gcm-seal",
        "rsa-2048-private",
        "emulated",
    ] {
        assert!(dom.contains(wanted), "the browser shows no {wanted:?}");
    }
    // Wide and narrow, light and dark.
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/test/pages.py");
    let looked = Command::new("python3").arg(script).arg(folder.path()).arg(&page).output().unwrap();
    assert!(looked.status.success(), "{}", String::from_utf8_lossy(&looked.stdout));
    let picture = folder.path().join("out-1280-light.png");
    assert!(std::fs::metadata(&picture).unwrap().len() > 20_000, "the page is not blank");
}

/// Where one engine overtakes another, both charts have a mark with the size, and the text says it.
#[test]
fn a_crossing_is_marked_where_the_browser_shows_it() {
    if browser().is_none() {
        println!("skipped: no Chromium installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [page, profile] = ["out.html", "profile.json"].map(|name| folder.path().join(name));
    let calibrate = |arguments: &[&str]| {
        let made = Command::new(env!("CARGO_BIN_EXE_wattlock"))
            .arg("calibrate")
            .args(arguments)
            .arg("--out")
            .arg(&profile)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    calibrate(&["--quick", "--kind", "aes-256-gcm-seal", "--per-point-ms", "1"]);
    let text = std::fs::read_to_string(&profile).unwrap();
    let mut made_up: serde_json::Value = serde_json::from_str(&text).unwrap();
    for point in made_up["points"].as_array_mut().unwrap() {
        // One costs a nanosecond a byte and the other always the same: they meet at 1500 bytes.
        let ns = if point["engine"] == "software" { 1500.0 } else { point["bytes"].as_f64().unwrap() };
        point["ns"] = ns.into();
    }
    std::fs::write(&profile, made_up.to_string()).unwrap();
    calibrate(&["--report-only", "--report", &page.to_string_lossy()]);

    let seen = chromium(folder.path(), &["--dump-dom", &format!("file://{}", page.display())]);
    let dom = String::from_utf8_lossy(&seen.stdout);
    let in_charts = dom.split("<svg").skip(1).filter(|chart| {
        let chart = chart.split("</svg>").next().unwrap_or_default();
        chart.split("<text").any(|text| text.contains("1.5 KiB"))
    });
    assert_eq!(in_charts.count(), 2, "{dom}");
    let told = dom.split("class=\"cross\"").nth(1).unwrap();
    assert!(told.split("</p>").next().unwrap().contains("1.5 KiB"), "{told}");
}
