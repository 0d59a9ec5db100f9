//! `wattlock doctor`: a line a fact, and an exit code that says whether anything stands in the way.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::process::Output;

use serde_json::Value;

use crate::desk::{Desk, good};

fn doctor(desk: &Desk, words: &[&str]) -> Output {
    let mut command = desk.command(&[&["doctor"], words].concat());
    let command =
        command.env("OPENSSL_CONF", desk.at("openssl.cnf")).env("WATTLOCK_PROFILE", desk.at("profile.json"));
    command.output().unwrap()
}

fn facts(output: &Output) -> (Vec<Value>, u64) {
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    (told["facts"].as_array().unwrap().clone(), told["problems"].as_u64().unwrap())
}

fn of<'a>(facts: &'a [Value], what: &str) -> Vec<&'a Value> {
    facts.iter().filter(|fact| fact["what"] == what).collect()
}

#[test]
fn what_is_not_in_use_is_a_note_and_what_is_broken_a_problem_with_what_to_do() {
    let desk = Desk::new(&[]);
    fs::write(desk.at("openssl.cnf"), "").unwrap();
    let healthy = doctor(&desk, &["--json"]);
    let (before, problems) = facts(&healthy);
    // Programs of another version may run on this machine.
    let others = of(&before, "programs").iter().filter(|fact| fact["standing"] == "problem").count() as u64;
    assert_eq!(problems, others, "{before:?}");
    assert_eq!(healthy.status.code(), Some(if others == 0 { 0 } else { 70 }));
    for what in ["program", "CPU", "engines", "cgroup", "locked memory", "job stacks", "mount", "joules"] {
        assert_eq!(of(&before, what).len(), 1, "{what}: {before:?}");
    }
    let profile = of(&before, "profile")[0];
    if profile["standing"] == "note" {
        assert_eq!(profile["next"], "wattlock calibrate");
    }
    assert_eq!(of(&before, "OpenSSL")[0]["standing"], "note");

    good(&desk.run(&["calibrate", "--quick", "--kind", "sha-256", "--out", "profile.json"]));
    let (after, _) = facts(&doctor(&desk, &["--json"]));
    assert_eq!(of(&after, "profile")[0]["standing"], "good", "{after:?}");

    let stale = fs::read_to_string(desk.at("profile.json")).unwrap().replacen(
        "\"version\": \"",
        "\"version\": \"9",
        1,
    );
    fs::write(desk.at("profile.json"), stale).unwrap();
    let missing = "openssl_conf = c\n[c]\nproviders = p\n[p]\nwattlock = w\ndefault = d\n[w]\nactivate = 1\nmodule = \
                   /nowhere/wattlock.so\n[d]\nactivate = 1\n";
    fs::write(desk.at("openssl.cnf"), missing).unwrap();
    let sick = doctor(&desk, &["--json"]);
    assert_eq!(sick.status.code(), Some(70));
    let (facts, problems) = facts(&sick);
    let profile = of(&facts, "profile")[0];
    assert_eq!((&profile["standing"], &profile["next"]), (&"problem".into(), &"wattlock calibrate".into()));
    let openssl = of(&facts, "OpenSSL");
    assert!(openssl.iter().all(|fact| fact["standing"] == "problem"), "{openssl:?}");
    assert!(openssl.iter().any(|fact| fact["words"].as_str().unwrap().contains("the module is not there")));
    let told = facts.iter().filter(|fact| fact["standing"] == "problem").count() as u64;
    assert!(problems == told && problems > others + 1, "{facts:?}");

    let lines = String::from_utf8(doctor(&desk, &[]).stdout).unwrap();
    let starts = ["ok      ", "note    ", "PROBLEM ", "        next: "];
    assert!(lines.lines().all(|line| starts.iter().any(|start| line.starts_with(start))), "{lines}");
    assert!(lines.contains("PROBLEM profile: ") && lines.contains("        next: wattlock calibrate\n"));
}
