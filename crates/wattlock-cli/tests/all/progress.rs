//! Bars: with per cent, on a terminal only, never on standard output, and none with `-q`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::process::Command;

use crate::desk::{Desk, good, has};

/// What a terminal shows while this runs, with standard output in `out`.
fn shown(desk: &Desk, words: &str) -> String {
    let mut script = Command::new("script");
    let line = format!("stty cols 120; '{}' {words} >out", env!("CARGO_BIN_EXE_wattlock"));
    script.args(["-qec", &line, "/dev/null"]).current_dir(desk.folder.path()).env("TERM", "xterm");
    script.env("WATTLOCK_PROFILE", desk.at("profile.json")).env("WATTLOCK_STATE_DIR", desk.at("state"));
    good(&script.stdin(std::process::Stdio::null()).output().unwrap())
}

#[test]
fn every_command_that_moves_data_shows_per_cent_and_only_on_a_terminal() {
    if !has("script") {
        return;
    }
    let desk = Desk::new(&[]);
    let content: Vec<u8> = (0..24_000_000_u32).map(|n| (n >> 5) as u8).collect();
    fs::create_dir(desk.at("in")).unwrap();
    fs::write(desk.at("in/big"), &content).unwrap();
    good(&desk.run(&["seal", "-q", "-i", "key.txt", "in/big"]));
    let cases = [
        ("seal -i key.txt -f", "in/big", "-q"),
        ("open -i key.txt -f", "in/big.sealed", "-q"),
        ("gzip -kf", "in/big", "-q"),
        ("fs cp --into -f -r -i key.txt vol", "in /", "-q"),
        ("fs check -i key.txt", "vol", "-q"),
        ("sum", "in/big", ""),
    ];
    for (command, files, quiet) in cases {
        let seen = shown(&desk, &format!("{command} {files}"));
        assert!(seen.contains(" % "), "{command}: {seen:?}");
        let out = fs::read_to_string(desk.at("out")).unwrap();
        assert!(!out.contains('%') && !out.contains('\u{1b}'), "{command}: {out:?}");
        if !quiet.is_empty() {
            assert!(
                !shown(&desk, &format!("{command} {quiet} {files}")).contains(" % "),
                "{command} {quiet}"
            );
        }
        let words: Vec<&str> = command.split(' ').chain(files.split(' ')).collect();
        let plain = desk.run(&words);
        assert!(!String::from_utf8_lossy(&plain.stderr).contains(" % "), "{command}");
    }
    // A list has no length, so its bar has no per cent. Two options ask for nothing of what is well.
    fs::write(desk.at("list"), desk.run(&["sum", "in/big"]).stdout).unwrap();
    for (quiet, is_seen) in [("", true), ("--warn", true), ("--status", false), ("--quiet", false)] {
        let seen = shown(&desk, &format!("sum -c {quiet} list"));
        assert_eq!(seen.contains("B/s"), is_seen, "{quiet}: {seen:?}");
    }
}

#[test]
fn what_a_link_leads_to_has_per_cent_and_what_has_no_length_has_none() {
    if !has("script") {
        return;
    }
    let desk = Desk::new(&[]);
    fs::write(desk.at("big"), vec![7; 24_000_000]).unwrap();
    std::os::unix::fs::symlink("big", desk.at("link")).unwrap();
    good(&desk.run(&["seal", "-q", "-i", "key.txt", "big"]));
    for command in ["seal -i key.txt -f link", "sum link", "gzip -kf link"] {
        let seen = shown(&desk, command);
        assert!(seen.contains(" % ") && seen.contains("/22.89 MiB"), "{command}: {seen:?}");
    }
    // The same content without a length. A volume's links are copied as links.
    for command in ["sum - <big", "sum <big", "sum - big <big", "seal -i key.txt -o out.sealed <big"] {
        let seen = shown(&desk, command);
        assert!(seen.contains("B/s") && !seen.contains(" % "), "{command}: {seen:?}");
    }
}

#[test]
fn verbose_names_engine_and_policy_in_each_command() {
    let desk = Desk::new(&[]);
    fs::write(desk.at("a"), vec![7; 300_000]).unwrap();
    good(&desk.run(&["seal", "-q", "-i", "key.txt", "a"]));
    for words in [
        &["seal", "-qfv", "-i", "key.txt", "a"][..],
        &["seal", "-qf", "--verbose", "-i", "key.txt", "a"],
        &["open", "-qf", "--stats", "-i", "key.txt", "a.sealed"],
        &["sum", "-v", "a"],
        &["fs", "cp", "-v", "--into", "-i", "key.txt", "vol", "a", "/"],
        &["fs", "check", "-v", "-i", "key.txt", "vol"],
    ] {
        let output = desk.run(words);
        good(&output);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("policy adaptive") && said.contains(" on "), "{words:?}: {said}");
        assert!(said.contains("293.0 KiB"), "{words:?}: {said}");
    }
}
