//! `--json` of commands that work on files: one object a line, nothing else on standard output, no name lost.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Output;

use serde_json::{Value, json};

use crate::desk::{Desk, good};

/// Every line as an object.
fn lines(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(lines.iter().all(Value::is_object), "{text}");
    lines
}

fn done(output: &Output) -> Vec<Value> {
    good(output);
    lines(output)
}

#[test]
fn sealing_and_opening_say_what_became_of_each_file() {
    let desk = Desk::new(&[]);
    fs::write(desk.at("a"), "attack").unwrap();
    let seal = ["seal", "--json", "-q", "-i", "key.txt"];
    assert_eq!(
        done(&desk.run(&[&seal[..], &["a"]].concat())),
        [json!({"file": "a", "output": "a.sealed", "bytes": 6})]
    );
    fs::write(desk.at("b.sealed"), "no such format").unwrap();
    let mixed =
        desk.run(&["open", "--json", "-q", "-f", "-i", "key.txt", "b.sealed", "a.sealed", "c.sealed"]);
    assert_eq!(mixed.status.code(), Some(21));
    let said = lines(&mixed);
    let codes: Vec<_> =
        said.iter().map(|line| (line["file"].as_str().unwrap(), line["code"].as_u64())).collect();
    assert_eq!(codes, [("b.sealed", Some(21)), ("c.sealed", Some(42)), ("a.sealed", None)]);
    assert!(said[0]["error"].as_str().unwrap().contains("not a sealed file"));
    assert_eq!(said[2]["output"], "a");
    // What ends the command before a file is looked at is an object, too.
    let early = desk.run(&["seal", "--json", "-r", "nonsense", "a"]);
    assert_eq!((early.status.code(), &lines(&early)[0]["code"]), (Some(10), &json!(10)));
}

#[test]
fn a_name_that_is_no_text_keeps_its_bytes() {
    let desk = Desk::new(&[]);
    let name = OsStr::from_bytes(b"caf\xe9\n");
    fs::write(desk.folder.path().join(name), "x").unwrap();
    let run = |words: &[&str]| {
        let mut command = desk.command(words);
        done(&command.arg(name).output().unwrap())
    };
    let shown = "caf\u{fffd}\n";
    let sealed = run(&["seal", "--json", "-q", "-i", "key.txt"]);
    assert_eq!((&sealed[0]["file"], &sealed[0]["file_hex"]), (&json!(shown), &json!("636166e90a")));
    assert_eq!(sealed[0]["output_hex"], "636166e90a2e7365616c6564");
    assert_eq!(run(&["sum", "--json"])[0]["file_hex"], "636166e90a");
    assert_eq!(run(&["gzip", "-k", "--json"])[0]["output_hex"], "636166e90a2e677a");
    let mut into = desk.command(&["fs", "cp", "--json", "--into", "-i", "key.txt", "vol"]);
    let copied = done(&into.arg(name).arg("/").output().unwrap());
    assert_eq!(copied[0]["file_hex"], "636166e90a");
    let listed = done(&desk.run(&["fs", "ls", "--json", "-i", "key.txt", "vol"]));
    assert_eq!((&listed[0]["file_hex"], &listed[0]["kind"]), (&json!("636166e90a"), &json!("file")));
}

#[test]
fn lines_never_mix_with_a_result() {
    let desk = Desk::new(&[]);
    fs::write(desk.at("a"), "attack").unwrap();
    good(&desk.run(&["seal", "-q", "-i", "key.txt", "a"]));
    for words in [
        &["seal", "--json", "-i", "key.txt", "-o", "-", "a"][..],
        &["seal", "--json", "-i", "key.txt"],
        &["seal", "--json", "-i", "key.txt", "-o", "/dev/fd/1", "a"],
        &["open", "--json", "-i", "key.txt", "-o", "/dev/stdout", "a.sealed"],
        &["open", "--json", "-i", "key.txt", "-o", "/proc/self/fd/1", "a.sealed"],
        &["gzip", "--json"],
        &["gzip", "--json", "-c", "a"],
        &["sum", "--json", "--tag", "a"],
        &["fs", "cat", "--json", "-i", "key.txt", "vol", "a"],
        &["fs", "init", "--json", "-r", "age1x", "--recovery", "new"],
    ] {
        let output = desk.run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(lines(&output).iter().all(|line| line["code"] == 2), "{words:?}");
    }
    // A result that goes to another place may.
    let other = desk.run(&["seal", "--json", "-q", "-i", "key.txt", "-o", "/dev/null", "a"]);
    assert_eq!(done(&other)[0]["output"], "/dev/null");
}

#[test]
fn gzip_and_sum_have_their_figures() {
    let desk = Desk::new(&[]);
    fs::write(desk.at("a"), "abc").unwrap();
    let packed = done(&desk.run(&["gzip", "-k", "--json", "a"]));
    assert_eq!((&packed[0]["output"], &packed[0]["bytes"]), (&json!("a.gz"), &json!(3)));
    for option in ["-t", "-l"] {
        let told = done(&desk.run(&["gzip", option, "--json", "a.gz"]));
        let expected =
            json!({"file": "a.gz", "bytes": 3, "packed": packed[0]["packed"], "crc32": "352441c2"});
        assert_eq!(told, [expected], "{option}");
    }
    let missing = desk.run(&["gzip", "-t", "--json", "none.gz"]);
    assert_eq!(lines(&missing)[0]["code"], 42);
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let summed = done(&desk.run(&["sum", "--json", "a"]));
    assert_eq!(summed, [json!({"file": "a", "algorithm": "sha256", "hash": hash})]);
    fs::write(desk.at("list"), format!("{hash}  a\n{hash}  a.gz\n{hash}  none\n")).unwrap();
    let checked = desk.run(&["sum", "--json", "-c", "list"]);
    assert_eq!(checked.status.code(), Some(1));
    let said = lines(&checked);
    assert_eq!(said[..2], [json!({"file": "a", "ok": true}), json!({"file": "a.gz", "ok": false})]);
    assert_eq!((&said[2]["ok"], &said[2]["code"]), (&json!(false), &json!(1)));
}

#[test]
fn volumes_say_what_was_done_in_objects() {
    let desk = Desk::new(&[]);
    fs::create_dir(desk.at("in")).unwrap();
    fs::write(desk.at("in/a"), "abc").unwrap();
    std::os::unix::fs::symlink("a", desk.at("in/link")).unwrap();
    let text = fs::read_to_string(desk.at("key.txt")).unwrap();
    let recipient = text.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
    let run = |words: &[&str]| done(&desk.run(&[&["fs", "--json"], words].concat()));
    let made = run(&["init", "-r", &format!("me={recipient}"), "own"]);
    assert_eq!((&made[0]["volume"], &made[0]["keys"]), (&json!("own"), &json!(["me"])));
    let copied = run(&["cp", "-r", "--into", "-i", "key.txt", "own", "in", "/"]);
    let of_a = json!({"file": "in/a", "output": "/in/a", "bytes": 3});
    assert!(copied.contains(&of_a), "{copied:?}");
    assert_eq!(copied.last().unwrap(), &json!({"copied": 2, "skipped": 0, "refused": 0}));
    let listed = run(&["ls", "-i", "key.txt", "own", "in"]);
    assert_eq!((&listed[0]["bytes"], &listed[1]["target"]), (&json!(3), &json!("a")));
    let checked = run(&["check", "-i", "key.txt", "own"]);
    assert_eq!(checked, [json!({"folders": 2, "files": 1, "bytes": 3, "damaged": 0, "repaired": 0})]);
    good(&desk.run(&["keygen", "-o", "two.txt"]));
    let second = good(&desk.run(&["sum", "two.txt"])).len();
    assert!(second > 0);
    let text = fs::read_to_string(desk.at("two.txt")).unwrap();
    let two = text.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
    assert_eq!(run(&["key", "add", "-i", "key.txt", "own", "-r", two]), [json!({"added": "key1"})]);
    let keys = run(&["key", "list", "-i", "key.txt", "own"]);
    assert_eq!(
        (&keys[1]["name"], &keys[1]["recipient"], &keys[1]["kind"]),
        (&json!("key1"), &json!(two), &json!("key"))
    );
    assert_eq!(keys[2]["fingerprint"], made[0]["fingerprint"]);
    assert_eq!(run(&["key", "remove", "-i", "key.txt", "own", "key1"]), [json!({"removed": "key1"})]);
    let rotated = run(&["key", "rotate", "-i", "key.txt", "own"]);
    assert_eq!((&rotated[0]["lost"], &rotated[0]["removed"]), (&json!(0), &json!([])));
    fs::write(desk.at("words"), "correct horse\n").unwrap();
    let words = ["-i", "key.txt", "--new-passphrase-file", "words", "--work-factor", "4", "own"];
    assert_eq!(run(&[&["key", "add"], &words[..]].concat()), [json!({"added": "passphrase"})]);
    assert_eq!(run(&[&["passwd"], &words[..]].concat()), [json!({"changed": "passphrase"})]);
    assert_eq!(
        run(&["rm", "--yes", "-r", "-i", "key.txt", "own", "in"]),
        [json!({"file": "in", "removed": true})]
    );
    let none = desk.run(&["fs", "rm", "--json", "--yes", "-i", "key.txt", "own", "in"]);
    assert_eq!((none.status.code(), &lines(&none)[0]["code"]), (Some(42), &json!(42)));
    // A folder that is no volume.
    let none = desk.run(&["fs", "ls", "--json", "-i", "key.txt", "in"]);
    assert_eq!(lines(&none)[0]["code"].as_i64(), none.status.code().map(i64::from));
}
