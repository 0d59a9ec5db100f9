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
fn whatever_file_standard_output_is_no_line_is_in_a_result_or_lost_with_one() {
    let desk = Desk::new(&[]);
    fs::write(desk.at("s"), "attack").unwrap();
    fs::write(desk.at("s.gz"), "").unwrap();
    let packed = desk.run(&["gzip", "-c", "s"]);
    good(&packed);
    fs::write(desk.at("s.gz"), &packed.stdout).unwrap();
    good(&desk.run(&["seal", "-q", "-i", "key.txt", "-o", "t.sealed", "s"]));
    good(&desk.run(&["fs", "cp", "--into", "-i", "key.txt", "vol", "s", "/"]));
    for words in [
        "seal --json -i key.txt -o /dev/fd/1 s",
        "seal --json -i key.txt -o /proc/self/fd/1 s",
        "seal --json -i key.txt -o /dev/stdout s",
        "seal --json -i key.txt -f -o out s",
        "seal --json -i key.txt -f -o ./link s",
        "open --json -i key.txt -o /dev/fd/1 t.sealed",
        "open --json -i key.txt -f -o out t.sealed",
        "gzip --json -kf s",
        "gzip --json -f s",
        "gzip --json -dkf s.gz",
        "gzip --json -df s.gz",
        "fs cp --json -f -i key.txt vol s out",
        "fs cat --json -i key.txt vol s",
    ] {
        // The name that the command would give its result.
        let out = match words {
            _ if words.ends_with("-kf s") || words.ends_with("-f s") && words.starts_with("gzip") => "s.gz",
            _ if words.starts_with("gzip") => "s",
            _ => "out",
        };
        for append in [false, true] {
            fs::write(desk.at(out), if append { "before\n" } else { "" }).unwrap();
            fs::remove_file(desk.at("link")).ok();
            std::os::unix::fs::symlink("out", desk.at("link")).unwrap();
            let stdout = fs::File::options().append(append).write(true).open(desk.at(out)).unwrap();
            let command: Vec<&str> = words.split(' ').collect();
            let output = desk.command(&command).stdout(stdout).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{words}, {append}: {errors}");
            // The file has what was printed, and is still the file.
            let text = fs::read_to_string(desk.at(out)).unwrap();
            let text = text.strip_prefix(if append { "before\n" } else { "" }).expect(words);
            let line: Value = serde_json::from_str(text.lines().next().unwrap()).expect(text);
            assert_eq!(line["code"], 2, "{words}");
            fs::write(desk.at("s"), "attack").unwrap();
            fs::write(desk.at("s.gz"), &packed.stdout).unwrap();
        }
    }
    // A file that its result replaces takes what is printed into it along.
    let stdout = fs::File::options().append(true).open(desk.at("s")).unwrap();
    let output = desk.command(&["gzip", "--json", "-f", "s"]).stdout(stdout).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(desk.at("s").exists());
    // Beside a file that is standard output, results are made.
    for words in ["seal --json -q -i key.txt -f -o other s", "fs cp --json -f -i key.txt vol s other"] {
        fs::remove_file(desk.at("out")).ok();
        let stdout = fs::File::create(desk.at("out")).unwrap();
        let command: Vec<&str> = words.split(' ').collect();
        good(&desk.command(&command).stdout(stdout).output().unwrap());
        let text = fs::read_to_string(desk.at("out")).unwrap();
        let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert!(first["output"].as_str().unwrap().ends_with("other"), "{text}");
    }
}

#[test]
fn an_error_says_in_its_object_what_standard_error_says() {
    let desk = Desk::new(&[]);
    fs::create_dir(desk.at("empty")).unwrap();
    for (words, code) in [
        (&["fs", "status", "--json", "empty"][..], 90),
        (&["fs", "set", "--json", "empty", "policy=adaptive"], 90),
        (&["fs", "ls", "--json", "-i", "key.txt", "empty"], 80),
        (&["seal", "--json", "s"], 2),
        (&["open", "--json", "-i", "none.txt", "-o", "t", "s"], 42),
        (&["gzip", "--json", "--rsyncable", "s"], 2),
    ] {
        let mut command = desk.command(words);
        let output = command.env("HOME", desk.at("empty")).env_remove("XDG_CONFIG_HOME").output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        said_as_on_standard_error(&output);
    }
    // A folder whose record is damaged.
    fs::create_dir_all(desk.at("in/deep")).unwrap();
    good(&desk.run(&["fs", "cp", "-r", "--into", "-i", "key.txt", "vol", "in", "/"]));
    let folders = fs::read_dir(desk.at("vol")).unwrap().map(|entry| entry.unwrap().path());
    let record = folders.map(|folder| folder.join("wattlock.dir")).find(|record| record.is_file()).unwrap();
    let mut bytes = fs::read(&record).unwrap();
    bytes[100] ^= 1;
    fs::write(&record, &bytes).unwrap();
    let repaired = desk.run(&["fs", "check", "--json", "--repair", "-i", "key.txt", "vol"]);
    assert_eq!(repaired.status.code(), Some(86), "{}", String::from_utf8_lossy(&repaired.stderr));
    said_as_on_standard_error(&repaired);
}

/// The last object has the exit code, and the words of a line on standard error.
fn said_as_on_standard_error(output: &Output) {
    let (said, errors) = (lines(output), String::from_utf8_lossy(&output.stderr));
    let last = said.last().expect("an object");
    assert_eq!(last["code"].as_i64(), output.status.code().map(i64::from), "{said:?}");
    let error = last["error"].as_str().unwrap();
    assert!(!error.contains("exit code"), "{error}");
    assert!(errors.lines().any(|line| line == format!("wattlock: {error}")), "{error}: {errors}");
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
fn a_check_that_fails_has_an_object_that_says_why() {
    let desk = Desk::new(&[]);
    fs::write(desk.at("a"), "abc").unwrap();
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let good_line = format!("{hash}  a\n");
    let wrong = good_line.replacen('b', "c", 1);
    let lists = [
        ("fine", good_line.clone()),
        ("mixed", format!("{good_line}nonsense\n")),
        ("nonsense", "nonsense\n".into()),
        ("empty", String::new()),
        ("absent", format!("{hash}  none\n")),
        ("wrong", wrong),
    ];
    for (name, text) in &lists {
        fs::write(desk.at(name), text).unwrap();
    }
    fs::create_dir(desk.at("folder")).unwrap();
    for (words, why) in [
        (&["fine"][..], None),
        (&["mixed"], None),
        (&["--strict", "fine"], None),
        (&["--strict", "mixed"], Some(("mixed", "1 line is improperly formatted"))),
        (&["--strict", "--quiet", "mixed"], Some(("mixed", "1 line is improperly formatted"))),
        (&["nonsense"], Some(("nonsense", "no properly formatted checksum lines found"))),
        (&["empty"], Some(("empty", "no properly formatted checksum lines found"))),
        (&["none"], Some(("none", "No such file or directory"))),
        (&["folder"], Some(("folder", "read error: Is a directory"))),
        (&["fine", "none", "fine"], Some(("none", "No such file or directory"))),
        (&["--ignore-missing", "absent"], Some(("absent", "no file was verified"))),
        (&["absent"], Some(("none", "No such file or directory"))),
        (&[], Some(("-", "no properly formatted checksum lines found"))),
    ] {
        let output = desk.run(&[&["sum", "--json", "-c"], words].concat());
        let said = lines(&output);
        let failed: Vec<&Value> = said.iter().filter(|line| line["code"] == 1).collect();
        assert_eq!(output.status.code(), Some(i32::from(why.is_some())), "{words:?}: {said:?}");
        let told =
            failed.first().map(|line| (line["file"].as_str().unwrap(), line["error"].as_str().unwrap()));
        assert_eq!((told, failed.len()), (why, usize::from(why.is_some())), "{words:?}");
    }
    let output = desk.run(&["sum", "--json", "-c", "wrong"]);
    assert_eq!((output.status.code(), lines(&output)), (Some(1), vec![json!({"file": "a", "ok": false})]));
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
