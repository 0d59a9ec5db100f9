//! The program as a person or a script meets it: exit codes, one-line errors, what is left on disk.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::built;

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A folder with a key pair, and the program with its profile and counters in it.
struct Desk {
    folder: tempfile::TempDir,
    recipient: String,
}

impl Desk {
    fn new() -> Desk {
        let folder = tempfile::tempdir().unwrap();
        let mut desk = Desk { folder, recipient: String::new() };
        let made = desk.run(&["keygen", "-o", "key.txt"]);
        assert!(made.status.success());
        let text = fs::read_to_string(desk.at("key.txt")).unwrap();
        desk.recipient =
            text.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap().to_owned();
        desk
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(built::program_for(arguments));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("WATTLOCK_PROFILE", self.at("profile.json"))
            .env("WATTLOCK_TELEMETRY_DIR", self.at("telemetry"))
            .env("WATTLOCK_STATE_DIR", self.at("state"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn feed(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        output
    }

    fn seal(&self, arguments: &[&str]) -> Output {
        self.run(&[&["seal", "-q", "-r", &self.recipient], arguments].concat())
    }

    fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.at(name), content).unwrap();
    }
}

/// The exit code, after a check that exactly one line was said and nothing was printed.
fn refused(output: &Output) -> i32 {
    let said = String::from_utf8_lossy(&output.stderr);
    let own: Vec<&str> = said.lines().filter(|line| !line.starts_with("Try '")).collect();
    assert_eq!(own.len(), 1, "{said}");
    assert!(own[0].starts_with("wattlock: "), "{said}");
    assert!(output.stdout.is_empty());
    output.status.code().unwrap()
}

fn good(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !["profile.json", "telemetry", "key.txt"].contains(&name.as_str()))
        .collect();
    names.sort();
    names
}

#[test]
fn files_go_in_and_come_back_many_at_a_time() {
    let desk = Desk::new();
    let long: Vec<u8> = (0..3_000_000_u32).map(|n| (n >> 3) as u8).collect();
    desk.write("a", &long);
    desk.write("b", b"");
    good(&desk.seal(&["a", "b"]));
    assert_eq!(names(desk.folder.path()), ["a", "a.sealed", "b", "b.sealed"]);
    fs::create_dir(desk.at("out")).unwrap();
    good(&desk.run(&["open", "-q", "-i", "key.txt", "--dir", "out", "a.sealed", "b.sealed"]));
    assert_eq!(fs::read(desk.at("out/a")).unwrap(), long);
    assert_eq!(fs::read(desk.at("out/b")).unwrap(), b"");
}

#[test]
fn pipes_and_armor_work_in_both_formats() {
    let desk = Desk::new();
    for format in ["sealed", "age"] {
        let armored =
            desk.feed(&["seal", "-q", "-a", "--format", format, "-r", &desk.recipient], b"attack at dawn");
        good(&armored);
        assert!(armored.stdout.starts_with(b"-----BEGIN "));
        let opened = desk.feed(&["open", "-q", "-i", "key.txt"], &armored.stdout);
        good(&opened);
        assert_eq!(opened.stdout, b"attack at dawn");
    }
}

#[test]
fn a_passphrase_from_a_file_opens_what_it_sealed_and_nothing_else_does() {
    let desk = Desk::new();
    desk.write("right", b"correct horse\n");
    desk.write("wrong", b"battery staple\n");
    desk.write("a", b"secret");
    good(&desk.run(&["seal", "-q", "--passphrase-file", "right", "a"]));
    let opened = desk.run(&["open", "-q", "--passphrase-file", "right", "-o", "-", "a.sealed"]);
    good(&opened);
    assert_eq!(opened.stdout, b"secret");
    assert_eq!(refused(&desk.run(&["open", "-q", "--passphrase-file", "wrong", "-o", "-", "a.sealed"])), 14);
}

#[test]
fn each_mistake_has_its_own_exit_code_and_leaves_nothing_behind() {
    let desk = Desk::new();
    desk.write("a", &[7; 40_000]);
    good(&desk.seal(&["a"]));
    let sealed = fs::read(desk.at("a.sealed")).unwrap();
    let open = |name: &str| desk.run(&["open", "-q", "-i", "key.txt", "-o", "out", name]);

    assert_eq!(refused(&desk.run(&["seal", "-q", "a"])), 2, "no recipient");
    assert_eq!(refused(&desk.run(&["seal", "-q", "-r", "age1nonsense", "a"])), 10);
    assert_eq!(refused(&desk.run(&["open", "-q", "-i", "a", "a.sealed"])), 11, "no identity in that file");
    good(&desk.run(&["keygen", "-o", "other"]));
    assert_eq!(refused(&desk.run(&["open", "-q", "-i", "other", "-o", "out", "a.sealed"])), 12);
    assert_eq!(refused(&desk.run(&["keygen", "-o", "other"])), 40, "a key is never replaced");
    desk.write("empty", b"");
    assert_eq!(refused(&open("empty")), 20);
    desk.write("text", b"this is no sealed file, whatever you say");
    assert_eq!(refused(&open("text")), 21);
    desk.write("cut", &sealed[..sealed.len() - (40_000 - 2 * 16_384 + 16)]);
    assert_eq!(refused(&open("cut")), 30);
    let mut flipped = sealed.clone();
    flipped[sealed.len() - 20_000] ^= 1;
    desk.write("flipped", &flipped);
    assert_eq!(refused(&open("flipped")), 32);
    desk.write("extended", &[&sealed[..], b"more"].concat());
    assert_eq!(refused(&open("extended")), 34);
    assert_eq!(refused(&desk.seal(&["a"])), 40, "a.sealed exists");
    assert_eq!(fs::read(desk.at("a.sealed")).unwrap(), sealed, "and is what it was");
    fs::create_dir(desk.at("folder")).unwrap();
    assert_eq!(refused(&desk.seal(&["-o", "x", "folder"])), 41);
    assert_eq!(refused(&desk.seal(&["-o", "x", "nowhere"])), 42);
    assert_eq!(refused(&open("a")), 21, "plaintext is not a sealed file");
    let here = names(desk.folder.path());
    assert_eq!(here, ["a", "a.sealed", "cut", "empty", "extended", "flipped", "folder", "other", "text"]);
    good(&desk.seal(&["-f", "a"]));
}

#[test]
fn one_bad_file_among_several_does_not_stop_the_others() {
    let desk = Desk::new();
    desk.write("a", b"1");
    desk.write("c", b"3");
    let output = desk.seal(&["a", "missing", "c"]);
    assert_eq!(refused(&output), 42);
    assert_eq!(names(desk.folder.path()), ["a", "a.sealed", "c", "c.sealed"]);
}

#[test]
fn an_interrupt_stops_the_work_and_leaves_nothing() {
    let desk = Desk::new();
    let mut command = desk.command(&["seal", "-q", "-r", &desk.recipient, "-o", "out"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Enough that it has begun to write, and then nothing more: it waits for input when the signal comes.
    stdin.write_all(&vec![1; 8 << 20]).unwrap();
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    assert_eq!(output.status.code(), Some(130));
    assert!(names(desk.folder.path()).is_empty(), "{:?}", names(desk.folder.path()));
}

#[test]
fn the_first_use_keeps_a_profile_and_the_second_says_nothing() {
    let desk = Desk::new();
    let seal = || desk.feed(&["seal", "-r", &desk.recipient], b"x");
    let first = seal();
    good(&first);
    assert!(String::from_utf8_lossy(&first.stderr).contains("calibrating"));
    assert!(desk.at("profile.json").exists());
    assert!(seal().stderr.is_empty());
}

#[test]
fn engines_and_status_answer_in_json() {
    let desk = Desk::new();
    let engines = desk.run(&["engines", "--json"]);
    good(&engines);
    let engines: serde_json::Value = serde_json::from_slice(&engines.stdout).unwrap();
    assert_eq!(engines["engines"][0]["name"], "instruction");
    assert_eq!(engines["choices"]["aes-256-gcm-seal"][0]["engine"], "instruction");
    let emulated = desk.run(&["engines", "--emulate", "dh8970", "--policy", "eeca", "--json"]);
    good(&emulated);
    let emulated: serde_json::Value = serde_json::from_slice(&emulated.stdout).unwrap();
    let choices = emulated["choices"]["aes-256-cbc-encrypt"].as_array().unwrap();
    let engine = |bytes: u64| &choices.iter().find(|choice| choice["bytes"] == bytes).unwrap()["engine"];
    assert_eq!(
        (engine(4096), engine(16_384)),
        (&"instruction".into(), &"emulated".into()),
        "the published threshold"
    );
    good(&desk.run(&["status"]));
    let status = desk.run(&["status", "--json"]);
    assert!(serde_json::from_slice::<serde_json::Value>(&status.stdout).unwrap().is_array());
}

#[test]
fn status_sees_a_running_program_and_what_it_did_where() {
    let desk = Desk::new();
    let mut command = desk.command(&["seal", "-q", "-r", &desk.recipient, "-o", "out"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&vec![1; 8 << 20]).unwrap();
    let mut seen = serde_json::Value::Null;
    for _ in 0..200 {
        let all: serde_json::Value = serde_json::from_slice(&desk.run(&["status", "--json"]).stdout).unwrap();
        let mine = all.as_array().unwrap().iter().find(|one| one["header"]["pid"] == child.id());
        if let Some(one) = mine.filter(|one| one["cells"].to_string().contains("aes-256-gcm-seal")) {
            seen = one.clone();
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
    let cells = seen["cells"].as_array().expect("the program was seen");
    let seals = cells.iter().find(|cell| cell["kind"] == "aes-256-gcm-seal").unwrap();
    assert_eq!(seals["engine"], "instruction");
    assert!(seals["requests"].as_u64().unwrap() > 0);
}

#[test]
fn every_policy_seals_the_same_plaintext_also_on_an_emulated_card() {
    let desk = Desk::new();
    let content: Vec<u8> = (0..700_000_u32).map(|n| (n % 251) as u8).collect();
    desk.write("a", &content);
    for policy in
        ["software", "instruction", "offload", "eeca", "aca-sds", "qweb", "lecpaes", "eep", "adaptive"]
    {
        let card = ["--policy", policy, "--emulate", "dh8970"];
        good(&desk.run(&[&["seal", "-q", "-f", "-r", &desk.recipient, "a"], &card[..]].concat()));
        let opened = desk.run(&[&["open", "-q", "-i", "key.txt", "-o", "-", "a.sealed"], &card[..]].concat());
        good(&opened);
        assert!(opened.stdout == content, "{policy}");
    }
}

#[test]
fn nonsense_settings_are_refused_with_what_is_allowed() {
    let desk = Desk::new();
    let output = desk.run(&["seal", "-q", "-r", &desk.recipient, "--set", "busy_permille=soon"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("busy_permille"));
    let output = desk.run(&["engines", "--policy", "fastest"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("adaptive"), "the known policies are named");
    let output = desk.run(&["engines", "--emulate", "nowhere"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("dh8970"), "the known models are named");
}

#[test]
fn benchmarks_write_rows_with_commit_machine_and_peers() {
    let desk = Desk::new();
    let arguments: [&[&str]; 4] = [
        &["bench", "engines", "--kind", "sha-256", "--size", "1K", "--rounds", "3"],
        &["bench", "dispatch", "--size", "1K", "--rounds", "3"],
        &["bench", "files", "--size", "2M", "--rounds", "1", "--dir", "."],
        &["bench", "start"],
    ];
    for arguments in arguments {
        let output = desk.run(&[arguments, &["--json", "-"]].concat());
        good(&output);
        let sheet: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(sheet["schema"], 1);
        assert_eq!(sheet["command"], format!("wattlock {}", arguments.join(" ")));
        let commit = sheet["commit"].as_str().unwrap();
        let name = commit.trim_end_matches('+');
        assert!(
            commit == "unknown" || name.len() >= 7 && name.chars().all(|c| c.is_ascii_hexdigit()),
            "{commit}"
        );
        assert_eq!(sheet["date"].as_str().unwrap().split('-').map(str::len).collect::<Vec<_>>(), [4, 2, 2]);
        let class = sheet["cpu"]["class"].as_str().unwrap();
        assert!(["avx512-intel", "avx512-amd", "avx2", "none"].contains(&class), "{class}");
        assert!(sheet["cpu"]["cores"].as_u64() > Some(0) && sheet["cpu"]["model"].is_string());
        assert!(sheet["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()));
        let rows = sheet["rows"].as_array().unwrap();
        assert!(!rows.is_empty(), "{sheet}");
        let mut names = std::collections::HashSet::new();
        for row in rows {
            assert_eq!(row["bench"], arguments[1]);
            assert!(
                names.insert((row["row"].to_string(), row["params"].to_string())),
                "{row} is twice there"
            );
            assert!(
                row["ours"].as_f64().is_some_and(f64::is_finite) && row["rounds"].as_u64() > Some(0),
                "{row}"
            );
            assert!(row["by"] == "cpu" || row["by"] == "time", "{row}");
            assert_eq!(row["theirs"].is_null(), row["against"] == "", "{row}");
            assert_eq!(row["theirs"].is_null(), row["low"].is_null() && row["high"].is_null(), "{row}");
            // Rates of work are better when they are more, times when they are less.
            if let (Some(ratio), Some(theirs), Some(ours)) =
                (row["ratio"].as_f64(), row["theirs"].as_f64(), row["ours"].as_f64())
            {
                let times = row["unit"] == "ns" || row["unit"] == "s";
                let expected = if times { theirs / ours } else { ours / theirs };
                assert!((ratio / expected - 1.0).abs() < 1e-6, "the figures contradict the ratio: {row}");
                assert!(row["low"].as_f64() <= Some(ratio) && Some(ratio) <= row["high"].as_f64(), "{row}");
            }
        }
    }
}

#[test]
fn a_bench_writes_its_record_beside_its_table() {
    let desk = Desk::new();
    let bench = ["bench", "dispatch", "--size", "64", "--rounds", "3", "--json"];
    let output = desk.run(&[&bench[..], &["new.json"]].concat());
    good(&output);
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("through the runtime"),
        "the table is still printed"
    );
    let text = fs::read_to_string(desk.at("new.json")).unwrap();
    assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
    // What was longer before leaves nothing behind it.
    fs::write(desk.at("new.json"), "x".repeat(100_000)).unwrap();
    good(&desk.run(&[&bench[..], &["new.json"]].concat()));
    let text = fs::read_to_string(desk.at("new.json")).unwrap();
    assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
    let output = desk.run(&[&bench[..], &["no/such/folder.json"]].concat());
    assert!(
        !output.status.success() && output.stdout.is_empty(),
        "it is found out before anything is measured"
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("no/such/folder.json"));
}

#[test]
fn a_report_of_a_bench_is_one_page_and_of_something_else_one_line() {
    let desk = Desk::new();
    let bench = ["bench", "files", "--size", "2M", "--rounds", "1", "--dir", ".", "--json", "files.json"];
    good(&desk.run(&bench));
    let note = "a damaged file: refused";
    good(&desk.run(&["report", "-o", "page.html", "--note", note, "files.json"]));
    let page = fs::read_to_string(desk.at("page.html")).unwrap();
    assert!(
        page.contains(note) && page.contains("class=\"bar") && page.contains("wattlock bench files"),
        "{page}"
    );
    fs::write(desk.at("other.json"), "{}").unwrap();
    let output = desk.run(&["report", "-o", "page.html", "other.json"]);
    assert_eq!(refused(&output), 1);
    assert!(String::from_utf8_lossy(&output.stderr).contains("other.json"));
}

#[test]
fn standard_input_cannot_be_a_file_and_a_key_at_once() {
    let desk = Desk::new();
    let recipients = format!("{}\n", desk.recipient);
    let twice = desk.feed(&["seal", "-q", "-R", "-", "-o", "out"], recipients.as_bytes());
    assert_eq!(refused(&twice), 2, "it would seal what the recipients left over: nothing");
    let twice = desk.feed(&["open", "-q", "--passphrase-file", "-", "-i", "-", "x.sealed"], b"");
    assert_eq!(refused(&twice), 2);
    assert!(names(desk.folder.path()).is_empty());
    desk.write("a", b"secret");
    good(&desk.feed(&["seal", "-q", "-R", "-", "a"], recipients.as_bytes()));
}

#[test]
fn two_inputs_never_share_an_output_even_by_force() {
    let desk = Desk::new();
    for folder in ["x", "y", "out"] {
        fs::create_dir(desk.at(folder)).unwrap();
    }
    desk.write("x/a", b"1");
    desk.write("y/a", b"2");
    assert_eq!(refused(&desk.seal(&["-f", "--dir", "out", "x/a", "y/a"])), 2);
    assert!(names(&desk.at("out")).is_empty());
}

#[test]
fn statistics_count_the_content_and_not_the_key() {
    let desk = Desk::new();
    desk.write("a", b"hello\n");
    let output = desk.seal(&["--stats", "a"]);
    good(&output);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.lines().any(|line| line.starts_with("sealed 6 B in ")), "{said}");
    assert!(said.contains("aes-256-gcm-seal on instruction: 1 request, 6 B\n"), "{said}");
}

/// A pipe without a reader.
fn abandoned() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn a_reader_of_a_listing_who_has_seen_enough_is_no_mistake_and_no_panic() {
    let desk = Desk::new();
    for arguments in [
        &["engines"][..],
        &["engines", "--json"],
        &["engines", "--models"],
        &["exit-codes"],
        &["status"],
        &["status", "--json"],
        &["keygen"],
        &["lab", "fit", "eep"],
        &["energy", "sources"],
        &["openssl", "check"],
        &["--help"],
        &["seal", "--help"],
        &["--version"],
    ] {
        let output = desk.command(arguments).stdout(abandoned()).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*said), (Some(44), ""), "{arguments:?}");
        // `2>&1 | head -1`
        let output = desk.command(arguments).stdout(abandoned()).stderr(abandoned()).output().unwrap();
        assert_eq!(output.status.code(), Some(44), "{arguments:?}");
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = desk.command(arguments).stdout(full).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(refused(&output), 43, "{arguments:?}");
    }
}

/// As a full disk: one line, 43, and nothing is left. What it starts has the signal as it was.
#[test]
fn a_file_that_would_be_larger_than_the_limit_allows_is_a_full_disk() {
    let desk = Desk::new();
    desk.write("a", &[7; 3_000_000]);
    good(&desk.seal(&["a"]));
    let limited = |arguments: &[&str]| {
        let mut words = vec!["-c", "ulimit -f 1000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_wattlock")];
        words.extend(arguments);
        let mut command = Command::new("sh");
        command.args(words).current_dir(desk.folder.path()).env("WATTLOCK_PROFILE", desk.at("profile.json"));
        command
            .env("WATTLOCK_TELEMETRY_DIR", desk.at("telemetry"))
            .env("WATTLOCK_STATE_DIR", desk.at("state"))
            .output()
            .unwrap()
    };
    // What gets no shorter.
    let mut random = vec![0; 3_000_000];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut random).unwrap();
    desk.write("b", &random);
    for arguments in [
        &["seal", "-q", "-r", &desk.recipient, "-o", "c", "a"][..],
        &["open", "-q", "-i", "key.txt", "-o", "c", "a.sealed"],
        &["gzip", "-k", "b"],
    ] {
        assert_eq!(refused(&limited(arguments)), 43, "{arguments:?}");
        assert_eq!(names(desk.folder.path()), ["a", "a.sealed", "b"], "{arguments:?}");
    }
    let child = limited(&["energy", "--", "sh", "-c", "kill -s XFSZ $$"]);
    assert_eq!(child.status.code(), Some(128 + 25), "{child:?}");
}

#[test]
fn a_profile_takes_no_device_s_place() {
    let desk = Desk::new();
    rustix::fs::mkfifoat(rustix::fs::CWD, desk.at("pipe"), rustix::fs::Mode::RUSR).unwrap();
    for place in ["pipe", "/dev/null", "."] {
        let kept = desk.run(&["calibrate", "--out", place, "--per-point-ms", "1"]);
        assert!(!kept.status.success(), "{kept:?}");
        assert!(String::from_utf8_lossy(&kept.stderr).contains("not a regular file"), "{kept:?}");
    }
    assert!(
        !fs::metadata("/dev/null").unwrap().is_file() && !fs::metadata(desk.at("pipe")).unwrap().is_file()
    );
}

#[test]
fn an_error_that_nobody_can_read_keeps_its_exit_code() {
    let desk = Desk::new();
    desk.write("a", b"1");
    for (arguments, code) in [
        (&["seal", "-q", "a"][..], 2),
        (&["seal", "-q", "-r", "age1nonsense", "a"], 10),
        (&["seal", "-q", "-r", &desk.recipient, "missing"], 42),
        (&["engines", "--emulate", "nowhere"], 1),
        (&["keygen", "--emulate", "dh8970"], 2),
        (&["seal", "--nonsense"], 2),
        (&["lab", "eep", "--megabytes", "0"], 60),
        (&["energy", "--", "/no/such/program"], 127),
        // What was asked for is the work; only a report that was asked for, too, is worth a code of its own.
        (&["seal", "-r", &desk.recipient, "-f", "a"], 0),
        (&["seal", "-r", &desk.recipient, "-f", "--stats", "a"], 44),
        (&["engines"], 0),
    ] {
        // With no profile there is a remark to make, too, and with this a warning.
        let mut command = desk.command(arguments);
        let output = command.env("WATTLOCK_LOG", "trace").stderr(abandoned()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    }
}

/// The program with a shell's redirections.
fn redirected(desk: &Desk, arguments: &[&str], redirections: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec \"$0\" \"$@\" {redirections}")]).arg(built::program_for(arguments));
    shell.args(arguments).current_dir(desk.folder.path()).env("WATTLOCK_PROFILE", desk.at("profile.json"));
    shell
        .env("WATTLOCK_TELEMETRY_DIR", desk.at("telemetry"))
        .env("WATTLOCK_STATE_DIR", desk.at("state"))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn closed_standard_streams_are_neither_empty_files_nor_places_for_results() {
    let desk = Desk::new();
    desk.write("a", b"secret");
    good(&desk.seal(&["a"]));
    let before = names(desk.folder.path());
    let seal = ["seal", "-q", "-r", &desk.recipient];
    let with = |more: &[&'static str]| [&seal[..], more].concat();
    let open = ["open", "-q", "-i", "key.txt"];
    for (arguments, redirections, stream) in [
        (with(&[]), "<&-", "standard input"),
        (with(&["-o", "b"]), "<&-", "standard input"),
        (with(&["-"]), "<&-", "standard input"),
        (vec!["seal", "-q", "-R", "-", "-o", "b", "a"], "<&-", "standard input"),
        (open.to_vec(), "<&-", "standard input"),
        ([&open[..], &["-o", "b"]].concat(), "<&-", "standard input"),
        (with(&[]), "<a >&-", "standard output"),
        (with(&["-o", "-", "a"]), ">&-", "standard output"),
        ([&open[..], &["-o", "-", "a.sealed"]].concat(), ">&-", "standard output"),
        (open.to_vec(), "<a.sealed >&-", "standard output"),
    ] {
        let output = redirected(&desk, &arguments, redirections);
        assert_eq!(refused(&output), 46, "{arguments:?} {redirections}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(&format!("{stream}: closed by the caller")), "{said}");
        assert_eq!(names(desk.folder.path()), before, "{arguments:?} {redirections}");
    }
    // What is not needed may be closed.
    good(&redirected(&desk, &with(&["-f", "a"]), "<&- >&- 2>&-"));
    good(&redirected(&desk, &[&open[..], &["-o", "c", "a.sealed"]].concat(), "<&- >&-"));
    assert_eq!(fs::read(desk.at("c")).unwrap(), b"secret");
    // An end that comes at once is an empty file, and /dev/null has such an end.
    good(&redirected(&desk, &with(&["-o", "empty.sealed"]), "</dev/null"));
    assert_eq!(redirected(&desk, &["engines"], ">&-").status.code(), Some(44));
    assert_eq!(redirected(&desk, &["keygen"], ">&-").status.code(), Some(44), "a key that nobody has");
}

#[test]
fn a_folder_as_standard_input_is_refused() {
    let desk = Desk::new();
    for arguments in [&["seal", "-q", "-r", &desk.recipient][..], &["open", "-q", "-i", "key.txt"]] {
        let output = redirected(&desk, arguments, "<.");
        assert_eq!(refused(&output), 41, "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said, "wattlock: standard input is a folder\n");
    }
    let output = redirected(&desk, &["seal", "-q", "-R", "-", "-o", "b", "key.txt"], "<.");
    assert_eq!(refused(&output), 46);
}

/// Every option about engines and policies, with a value that is good.
const CHOICE: [[&str; 2]; 4] = [
    ["--policy", "software"],
    ["--objective", "energy"],
    ["--set", "busy_permille=1"],
    ["--emulate", "dh8970"],
];

#[test]
fn options_about_engines_are_refused_where_they_do_nothing() {
    let desk = Desk::new();
    desk.write("a", b"1");
    let some = |options: &[usize]| options.iter().map(|at| CHOICE[*at]).collect::<Vec<_>>();
    let all = || some(&[0, 1, 2, 3]);
    for (command, refuses, code) in [
        (&["keygen", "-o", "new.txt"][..], all(), 2),
        (&["status"], all(), 2),
        (&["exit-codes"], all(), 2),
        (&["energy", "sources"], all(), 2),
        (&["energy", "--", "true"], some(&[0, 1]), 2),
        (&["nginx", "check"], all(), 2),
        (&["nginx", "enable", "--dry-run"], all(), 2),
        (&["nginx", "disable", "--dry-run"], all(), 2),
        (&["openssl", "check"], all(), 2),
        (&["openssl", "disable", "--dry-run"], all(), 2),
        (&["bench", "lanes"], all(), 2),
        (&["bench", "files"], all(), 2),
        (&["bench", "engines"], some(&[0, 1, 2]), 2),
        (&["calibrate"], some(&[0, 1, 2]), 2),
        (&["lab", "eeca"], all(), 60),
        (&["lab", "all"], all(), 60),
        (&["lab", "fit", "qweb"], all(), 60),
        (&["lab", "qweb"], some(&[0, 1, 3]), 60),
    ] {
        for option in refuses {
            // Anywhere on the command line; but between `energy` and what it is to do stands nothing.
            let (first, rest) = command.split_at(1);
            let mut lines = vec![[&option[..], command].concat()];
            lines.extend((first != ["energy"]).then(|| [first, &option, rest].concat()));
            for arguments in lines {
                let output = desk.run(&arguments);
                assert_eq!(refused(&output), code, "{arguments:?}");
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(said.contains(&format!("{} does nothing for `wattlock", option[0])), "{said}");
            }
        }
    }
    assert_eq!(names(desk.folder.path()), ["a"]);
}

#[test]
fn nginx_enable_and_disable_refuse_the_files_that_they_do_not_use() {
    let desk = Desk::new();
    for arguments in [
        &["nginx", "enable", "--all-programs", "--provider", "a"][..],
        &["nginx", "disable", "--dry-run", "--provider", "a"],
        &["nginx", "disable", "--dry-run", "--module", "a"],
    ] {
        let output = desk.run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains(&format!("{} does nothing", arguments[3])) && said.lines().count() == 1,
            "{said}"
        );
    }
}

#[test]
fn options_about_engines_work_anywhere_on_the_line_of_a_command_that_uses_them() {
    let desk = Desk::new();
    desk.write("a", b"1");
    let card = ["--emulate", "dh8970", "--policy", "eeca"];
    for arguments in
        [[&card[..], &["engines", "--json"]].concat(), [&["engines", "--json"], &card[..]].concat()]
    {
        let output = desk.run(&arguments);
        good(&output);
        let engines: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(engines["policy"], "eeca", "{arguments:?}");
        let names: Vec<&str> =
            engines["engines"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert!(names.contains(&"emulated"), "{names:?}");
    }
    good(&desk.run(&["--policy", "software", "seal", "-q", "-r", &desk.recipient, "a"]));
    good(&desk.run(&["open", "-q", "--set", "busy_permille=1", "-i", "key.txt", "-o", "b", "a.sealed"]));
    // The later and nearer of two is the one that counts.
    let twice = desk.run(&["--policy", "software", "engines", "--json", "--policy", "eeca"]);
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&twice.stdout).unwrap()["policy"], "eeca");
}

#[test]
fn help_shows_options_about_engines_only_where_they_work() {
    let desk = Desk::new();
    let help = |command: &[&str]| {
        let output = desk.run(&[command, &["--help"]].concat());
        good(&output);
        String::from_utf8(output.stdout).unwrap()
    };
    let options = |help: &str| CHOICE.map(|[option, _]| help.contains(&format!("      {option} <")));
    for (command, shown) in [
        (&[][..], [false; 4]),
        (&["keygen"], [false; 4]),
        (&["exit-codes"], [false; 4]),
        (&["status"], [false; 4]),
        (&["nginx", "enable"], [false; 4]),
        (&["nginx", "check"], [false; 4]),
        (&["openssl", "check"], [false; 4]),
        (&["lab"], [false; 4]),
        (&["lab", "eeca"], [false; 4]),
        (&["bench", "lanes"], [false; 4]),
        (&["lab", "qweb"], [false, false, true, false]),
        (&["calibrate"], [false, false, false, true]),
        (&["bench", "engines"], [false, false, false, true]),
        (&["bench", "dispatch"], [true; 4]),
        (&["seal"], [true; 4]),
        (&["open"], [true; 4]),
        (&["serve"], [true; 4]),
        (&["engines"], [true; 4]),
        (&["openssl", "enable"], [true; 4]),
    ] {
        let help = help(command);
        assert_eq!(options(&help), shown, "{command:?}: {help}");
        assert_eq!(help.contains("Engines and policy:"), shown.contains(&true), "{command:?}");
    }
    assert!(help(&[]).contains("wattlock seal --help"), "it says where they are");
}

#[test]
fn engines_says_which_class_of_cpu_this_is_and_what_a_server_and_files_have_of_it() {
    let desk = Desk::new();
    let output = desk.run(&["engines"]);
    good(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |start: &str| {
        text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {text}"))
    };
    let info = fs::read_to_string("/proc/cpuinfo").unwrap();
    let flag = |name: &str| info.split_whitespace().any(|flag| flag == name);
    let ifma = ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512ifma"].into_iter().all(flag);
    let wanted =
        if ifma { "AVX-512 IFMA lanes: yes on this CPU: RSA" } else { "AVX-512 IFMA lanes: no on this CPU" };
    assert!(line("Handshakes").contains(wanted), "{text}");
    assert!(line("Files").contains("AES-256-GCM by "), "{text}");
    assert_eq!(line("This CPU").contains("AVX-512"), ifma, "{text}");
    let json = desk.run(&["engines", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["cpu"]["ifma_lanes"], ifma);
}

#[test]
fn costs_that_were_not_measured_here_say_so_and_who_measures() {
    let desk = Desk::new();
    desk.write("a", b"1");
    let engines = || String::from_utf8(desk.run(&["engines"]).stdout).unwrap();
    let before = engines();
    assert!(before.contains("built-in table, measured on ") && before.contains(", not here"), "{before}");
    assert!(before.contains("wattlock calibrate"), "{before}");
    let first = desk.seal(&["--stats", "a"]);
    good(&first);
    let first = String::from_utf8(first.stderr).unwrap();
    assert!(first.contains("costs from: measured on this machine (quick calibration)"), "{first}");
    let later = desk.seal(&["-f", "--stats", "a"]);
    let later = String::from_utf8(later.stderr).unwrap();
    assert!(later.contains("profile.json (quick calibration)"), "{later}");
    assert!(!engines().contains("not here"), "{}", engines());
}

#[test]
fn nonsense_numbers_are_refused_and_nothing_panics() {
    let desk = Desk::new();
    for arguments in [
        &["status", "--watch", "nan"][..],
        &["bench", "dispatch", "--size", "9999999G"],
        &["bench", "engines", "--size", "0"],
    ] {
        assert_eq!(desk.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn names_that_are_no_plain_text_stay_on_one_line() {
    let desk = Desk::new();
    let hostile = "a\nb\u{1b}[31m.sealed";
    assert_eq!(refused(&desk.run(&["open", "-q", "-i", "key.txt", hostile])), 42);
    desk.write(hostile, b"");
    let output = desk.run(&["open", "-q", "-i", "key.txt", hostile]);
    assert_eq!(refused(&output), 20);
    assert!(!output.stderr.contains(&0x1b));
}

#[test]
fn a_failure_names_the_folder_or_file_it_is_about_once() {
    let desk = Desk::new();
    desk.write("a", b"1");
    let said = |output: &Output| String::from_utf8(output.stderr.clone()).unwrap();
    let output = desk.seal(&["--dir", "nowhere", "a"]);
    assert_eq!(refused(&output), 42);
    assert!(said(&output).contains("nowhere does not exist"), "{}", said(&output));
    let output = desk.run(&["open", "-q", "-i", ".", "a.sealed"]);
    assert_eq!(said(&output).matches("os error").count(), 1, "{}", said(&output));
    assert_eq!(said(&desk.seal(&["missing"])), "wattlock: missing does not exist\n");
}

#[test]
fn calibrating_quickly_measures_every_kind() {
    let desk = Desk::new();
    good(&desk.run(&["calibrate", "--quick"]));
    let profile: serde_json::Value =
        serde_json::from_slice(&fs::read(desk.at("profile.json")).unwrap()).unwrap();
    let points = profile["points"].as_array().unwrap();
    let measured: std::collections::BTreeSet<&str> =
        points.iter().map(|point| point["kind"].as_str().unwrap()).collect();
    for kind in wattlock_core::Kind::ALL {
        assert!(measured.contains(kind.name()), "{} is missing", kind.name());
    }
    assert_eq!(profile["quick"], true);
}

#[test]
fn calibrating_storage_keeps_what_aca_sds_goes_by_beside_what_was_measured_before() {
    let desk = Desk::new();
    let profile = || -> serde_json::Value {
        serde_json::from_slice(&fs::read(desk.at("profile.json")).unwrap()).unwrap()
    };
    let mut bare = desk.command(&["calibrate", "--storage", "--quick"]);
    let none = bare.env("WATTLOCK_CUDA_DRIVER", "/nonexistent/libcuda.so.1").output().unwrap();
    assert_eq!(refused(&none), 51);
    assert!(String::from_utf8_lossy(&none.stderr).contains("no device here"), "{none:?}");
    assert!(!desk.at("profile.json").exists(), "nothing was found, and nothing kept");

    let sums = ["calibrate", "--quick", "--kind", "sha-256", "--per-point-ms", "1", "--no-joules"];
    good(&desk.run(&sums));
    let before = profile();
    let card = ["--emulate", "dh8970"];
    let quick = ["calibrate", "--storage", "--quick", "--per-point-ms", "12"];
    let unsaid = desk.run(&[&quick[..], &card].concat());
    assert_eq!(unsaid.status.code(), Some(2), "it would push out a real card's: {unsaid:?}");
    let kept = desk.at("profile.json");
    let kept = ["--out", kept.to_str().unwrap()];
    let quick = [&quick[..], &kept].concat();
    let output = desk.run(&[&quick[..], &card].concat());
    good(&output);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for wanted in ["write", "files", "faster", "feeding", "64 KiB", "Profile: "] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let after = profile();
    let storage = after["storage"].clone();
    assert_eq!(storage["device"], "emulated");
    assert!(storage["feeders"].as_u64().unwrap() > 0);
    let written = storage["written"].as_array().unwrap();
    let large = |row: &&serde_json::Value| row["bytes"] == 1 << 20;
    assert!(written.iter().filter(large).all(|row| row["device"].as_f64().unwrap() > 0.0), "{storage}");
    let points = |profile: &serde_json::Value, engine: &str| -> Vec<serde_json::Value> {
        let all = profile["points"].as_array().unwrap().iter();
        all.filter(|point| point["engine"] == engine).cloned().collect()
    };
    assert_eq!(points(&after, "instruction"), points(&before, "instruction"), "as they were");
    assert!(!points(&after, "emulated").is_empty(), "the card is new");

    good(&desk.run(&[&quick[..], &["--emulate", "h200"]].concat()));
    let other = profile();
    assert_eq!(points(&other, "instruction"), points(&before, "instruction"), "another card, the same CPU");
    assert_ne!(points(&other, "emulated"), points(&after, "emulated"));
    good(&desk.run(&[&quick[..], &card].concat()));
    let storage = profile()["storage"].clone();

    good(&desk.run(&[&sums[..], &card].concat()));
    assert_eq!(profile()["storage"], storage, "the same card");
    good(&desk.run(&sums));
    assert_eq!(profile()["storage"], serde_json::Value::Null, "there is no such device");
    let wrong = desk.run(&["calibrate", "--storage", "--kind", "sha-256"]);
    assert_eq!(wrong.status.code(), Some(2));
}

/// The program on a terminal of its own. `answers` are typed one after the other, each when a question has come.
fn on_a_terminal(desk: &Desk, arguments: &[&str], answers: &[&str]) -> (i32, String, bool) {
    let script = r#"
import os, pty, select, sys, termios, time
command, answers = sys.argv[1].split("\x1f"), [a for a in sys.argv[2].split("\x1f") if a]
pid, terminal = pty.fork()
if pid == 0:
    os.execv(command[0], command)
said, asked, until = b"", 0, time.time() + 60
while time.time() < until:
    if select.select([terminal], [], [], 0.1)[0]:
        try:
            some = os.read(terminal, 4096)
        except OSError:
            break
        said += some
    if answers and said.count(b": ") > asked:
        asked = said.count(b": ")
        os.write(terminal, answers.pop(0).encode())
echo = termios.tcgetattr(terminal)[3] & termios.ECHO
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status), "echo" if echo else "silent")
sys.stdout.flush()
sys.stdout.buffer.write(said)
"#;
    let program = [&[env!("CARGO_BIN_EXE_wattlock")], arguments].concat().join("\x1f");
    let output = Command::new("python3")
        .args(["-c", script, &program, &answers.join("\x1f")])
        .current_dir(desk.folder.path())
        .env("WATTLOCK_PROFILE", desk.at("profile.json"))
        .env("WATTLOCK_TELEMETRY_DIR", desk.at("telemetry"))
        .env("WATTLOCK_STATE_DIR", desk.at("state"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (first, said) = text.split_once('\n').expect("the script has an answer");
    let (code, echo) = first.split_once(' ').unwrap();
    (code.parse().unwrap(), said.to_owned(), echo == "echo")
}

#[test]
fn a_passphrase_is_asked_for_twice_and_never_shown() {
    let desk = Desk::new();
    desk.write("a", b"secret");
    let seal = ["seal", "-q", "-p", "a"];
    let (code, said, echo) = on_a_terminal(&desk, &seal, &["correct horse\n", "correct horsf\n"]);
    assert_eq!((code, echo), (2, true), "{said}");
    let (code, said, echo) = on_a_terminal(&desk, &seal, &["correct horse\n", "correct horse\n"]);
    assert_eq!((code, echo), (0, true), "{said}");
    assert!(!said.contains("horse"), "{said}");
    let (code, said, _) = on_a_terminal(&desk, &["open", "-q", "-o", "b", "a.sealed"], &["correct horse\n"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(fs::read(desk.at("b")).unwrap(), b"secret");
    let (code, said, _) = on_a_terminal(&desk, &seal, &[]);
    assert_eq!(code, 40, "nobody types a passphrase for an output that is in the way: {said}");
}

#[test]
fn an_interrupt_at_a_question_is_one_and_the_terminal_shows_again_what_is_typed() {
    let desk = Desk::new();
    desk.write("a", b"secret");
    desk.write("right", b"correct horse\n");
    good(&desk.run(&["seal", "-q", "--passphrase-file", "right", "a"]));
    let (code, said, echo) = on_a_terminal(&desk, &["open", "-q", "-o", "b", "a.sealed"], &["corr\x03"]);
    assert_eq!((code, echo), (130, true), "{said}");
    assert!(!desk.at("b").exists());
}

#[test]
fn without_a_terminal_a_locked_key_says_that_a_passphrase_is_needed() {
    let desk = Desk::new();
    desk.write("a", b"secret");
    desk.write("right", b"correct horse\n");
    good(&desk.seal(&["a"]));
    good(&desk.run(&["seal", "-q", "--format", "age", "--passphrase-file", "right", "key.txt"]));
    let alone = |arguments: &[&str]| {
        let mut command = Command::new("setsid");
        command.args(["-w", env!("CARGO_BIN_EXE_wattlock")]).args(arguments).current_dir(desk.folder.path());
        command.env("WATTLOCK_PROFILE", desk.at("profile.json")).stdin(Stdio::null()).output().unwrap()
    };
    assert_eq!(refused(&alone(&["open", "-q", "-i", "key.txt.age", "-o", "-", "a.sealed"])), 15);
    assert_eq!(refused(&alone(&["seal", "-q", "-p", "-o", "b", "a"])), 15);
    assert!(!desk.at("b").exists());
}

/// The commands of this program that write a file of the user's choice, quick ones.
fn writers(desk: &Desk) -> Vec<(&'static str, Vec<String>)> {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    desk.write("plain", b"content");
    good(&desk.seal(&["-o", "made.sealed", "plain"]));
    good(&desk.run(&["calibrate", "--quick", "--kind", "sha-256", "--per-point-ms", "1", "--no-joules"]));
    desk.write("rows.json", br#"{"schema": 1, "rows": []}"#);
    vec![
        ("seal", words(&format!("seal -q -f -r {} plain -o", desk.recipient))),
        ("open", words("open -q -f -i key.txt made.sealed -o")),
        ("report", words("report rows.json -o")),
        ("calibrate", words("calibrate --report-only --report")),
        ("energy", words("energy --idle-ms 0 -o OUT -- true")),
        ("bench", words("bench dispatch --size 64 --rounds 3 --json")),
    ]
}

fn written(desk: &Desk, words: &[String], to: &str) -> Output {
    let mut words = words.to_vec();
    match words.iter_mut().find(|word| *word == "OUT") {
        Some(place) => *place = to.to_owned(),
        None => words.push(to.to_owned()),
    }
    desk.run(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn every_command_that_writes_a_file_replaces_a_link_and_never_what_it_names() {
    let desk = Desk::new();
    desk.write("precious", b"precious");
    for (name, words) in writers(&desk) {
        for target in ["precious", "nowhere"] {
            std::os::unix::fs::symlink(target, desk.at("out")).unwrap();
            let output = written(&desk, &words, "out");
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            assert!(fs::symlink_metadata(desk.at("out")).unwrap().is_file(), "{name}");
            assert!(fs::metadata(desk.at("out")).unwrap().len() > 0, "{name}");
            fs::remove_file(desk.at("out")).unwrap();
        }
        assert_eq!(fs::read(desk.at("precious")).unwrap(), b"precious", "{name}");
        assert!(!desk.at("nowhere").exists(), "{name}");
        // A folder that is not there, or is in the way, has one code each.
        assert_eq!(refused(&written(&desk, &words, "no/such/out")), 42, "{name}");
        fs::create_dir(desk.at("folder")).unwrap();
        assert_eq!(refused(&written(&desk, &words, "folder")), 41, "{name}");
        fs::remove_dir(desk.at("folder")).unwrap();
        // What the user names and is no file is written to.
        let output = written(&desk, &words, "/dev/null");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let output = written(&desk, &words, "/dev/stdout");
        assert!(output.status.success() && !output.stdout.is_empty(), "{name}");
    }
}

#[test]
fn the_system_s_names_of_descriptors_are_written_to_and_stay_however_they_are_spelt() {
    let desk = Desk::new();
    desk.write("plain", b"content");
    good(&desk.seal(&["-o", "made.sealed", "plain"]));
    // A /dev of its own: what is replaced there is missed by every program.
    let script =
        "mount -t tmpfs none /dev && ln -s /proc/self/fd/1 /dev/stdout && ln -s /proc/self/fd /dev/fd &&
        cd /dev && \"$@\" && test -L /dev/stdout || echo replaced";
    for to in ["/dev//stdout", "/dev/./stdout", "/dev/../dev/stdout", "stdout", "fd/1", "/proc/self/./fd/1"] {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_wattlock")]);
        command.args(["open", "-q", "-f", "-i"]).arg(desk.at("key.txt")).args(["-o", to]);
        command.arg(desk.at("made.sealed")).env("WATTLOCK_PROFILE", desk.at("profile.json"));
        let output = command.current_dir(desk.at(".")).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if errors.contains("unshare") || errors.contains("mount: ") {
            println!("skipped: another /dev takes privileges that are not here");
            return;
        }
        assert_eq!(String::from_utf8_lossy(&output.stdout), "content", "{to}: {errors}");
    }
}

#[test]
fn a_pipe_that_another_user_put_into_a_shared_folder_is_not_written_to() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let desk = Desk::new();
    desk.write("plain", b"content");
    fs::create_dir(desk.at("shared")).unwrap();
    assert!(Command::new("mkfifo").arg(desk.at("shared/out")).status().unwrap().success());
    if chown(desk.at("shared/out"), Some(1234), Some(1234)).is_err() {
        println!("skipped: giving a pipe away takes privileges that are not here");
        return;
    }
    fs::set_permissions(desk.at("shared"), fs::Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(refused(&desk.seal(&["-o", "shared/out", "plain"])), 41);
}

#[test]
fn sealing_and_opening_keep_owner_group_mode_and_time() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let desk = Desk::new();
    for (turn, mode) in [0o640, 0o664, 0o4755, 0o600].into_iter().enumerate() {
        desk.write("a", b"content");
        if fs::metadata("/proc/self").unwrap().uid() == 0 {
            chown(desk.at("a"), Some(1000 + turn as u32), Some(4)).unwrap();
        }
        fs::set_permissions(desk.at("a"), fs::Permissions::from_mode(mode)).unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_577_836_800, 123_456_789);
        fs::File::options().write(true).open(desk.at("a")).unwrap().set_modified(time).unwrap();
        let kept = |name: &str| {
            let meta = fs::metadata(desk.at(name)).unwrap();
            (meta.uid(), meta.gid(), meta.mode() & 0o7777, meta.mtime(), meta.mtime_nsec())
        };
        let (owner, group, _, seconds, nanos) = kept("a");
        let expected = (owner, group, mode & 0o777, seconds, nanos);
        good(&desk.seal(&["-f", "a"]));
        assert_eq!(kept("a.sealed"), expected);
        good(&desk.run(&["open", "-q", "-f", "-i", "key.txt", "-o", "b", "a.sealed"]));
        assert_eq!(kept("b"), expected);
        for name in ["a", "b"] {
            fs::remove_file(desk.at(name)).unwrap();
        }
    }
}

#[test]
fn a_mistake_is_answered_with_the_next_step() {
    let desk = Desk::new();
    desk.write("a", b"1");
    desk.write("text", b"not json");
    desk.write("profile.not", b"{\"machine\": 1}");
    fs::create_dir(desk.at("d")).unwrap();
    good(&desk.seal(&["a"]));
    let recipient = desk.recipient.clone();
    for (arguments, code, words) in [
        (&["-d", "a"][..], 2, "`wattlock open "),
        (&["-r", "age1x", "a"], 2, "`wattlock seal "),
        (&["seal", "a"], 2, "`wattlock keygen -o key.txt`"),
        (&["seal", "a"], 2, "Try 'wattlock seal --help'"),
        (&["stream", "seal"], 2, "`wattlock keygen -o key.txt`"),
        (&["stream", "seal"], 2, "Try 'wattlock stream seal --help'"),
        (&["seal", "-r", "key.txt", "a"], 10, "key.txt is a file: -R"),
        (&["seal", "a", &recipient], 2, "needs -r"),
        (&["seal", "-q", "-r", &recipient, "d"], 41, "tar c"),
        (&["open", "-q", "a.sealed"], 12, "no key given: -i FILE"),
        (&["open", "-q", "-f", "a.sealed"], 12, "no key given: -i FILE"),
        (&["seal", "-r", &recipient, "-o", "nodir/x", "a"], 42, "nodir does not exist"),
        (&["calibrate", "--report-only", "--report", "nodir/x"], 42, "nodir does not exist"),
        (&["report", "-o", "x.html", "text"], 1, "written by neither a bench nor"),
        (&["report", "-o", "x.html", "profile.not"], 1, "written by neither a bench nor"),
        (&["engines", "--kind", "aes"], 2, "like it are aes-128-ctr"),
        (&["engines", "--kind", "zzz"], 2, "`wattlock engines` lists"),
        (&["engines", "--set", "foo=1"], 1, "those of `adaptive` are adaptive."),
    ] {
        let output = desk.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    good(&desk.run(&["encrypt", "-q", "-r", &recipient, "-o", "e", "a"]));
    good(&desk.run(&["decrypt", "-q", "-i", "key.txt", "-o", "-", "e"]));
}

#[test]
fn a_recipient_that_is_named_twice_is_wrapped_for_once() {
    let desk = Desk::new();
    desk.write("a", b"1");
    let recipient = desk.recipient.clone();
    desk.write("team", format!("# us\n{recipient}\n\n {recipient}\n").as_bytes());
    good(&desk.seal(&["a"]));
    let once = fs::metadata(desk.at("a.sealed")).unwrap().len();
    for arguments in [&["-r", &recipient][..], &["-R", "team"], &["-R", "team", "-R", "team"]] {
        good(&desk.seal(&[arguments, &["-f", "a"]].concat()));
        assert_eq!(fs::metadata(desk.at("a.sealed")).unwrap().len(), once, "{arguments:?}");
    }
    good(&desk.run(&["open", "-q", "-i", "key.txt", "-o", "-", "a.sealed"]));
}

#[test]
fn benches_and_the_lab_are_programs_beside_this_one_and_missed_in_one_line() {
    let desk = Desk::new();
    let said = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let list = said(&desk.run(&["--help"]));
    for command in ["bench", "lab", "report"] {
        let help = desk.run(&[command, "--help"]);
        good(&help);
        let first = said(&help).lines().next().unwrap_or_default().to_owned();
        let told = list.lines().skip_while(|line| line.split_whitespace().next() != Some(command));
        let told: Vec<&str> = told.take(3).flat_map(str::split_whitespace).skip(1).collect();
        assert!(told.join(" ").starts_with(&first), "{first}: {list}");
        assert_eq!(said(&help), said(&desk.run(&["help", command])), "{command}");
        assert!(said(&help).contains(&format!("Usage: wattlock {command}")), "{}", said(&help));
    }
    let before =
        ["--emulate", "dh8970", "bench", "engines", "--kind", "sha-256", "--size", "1K", "--rounds", "1"];
    good(&desk.run(&before));
    let codes = said(&desk.run(&["exit-codes"]));
    assert!(codes.lines().any(|line| line.trim_start().starts_with("60  lab")), "{codes}");

    let alone = desk.at("wattlock");
    fs::copy(env!("CARGO_BIN_EXE_wattlock"), &alone).unwrap();
    for (words, name) in [
        (&["bench", "lanes"][..], "wattlock-bench"),
        (&["lab", "--help"], "wattlock-lab"),
        (&["report"], "wattlock-lab"),
        (&["serve", ".", "--compare"], "wattlock-bench"),
        (&["engines", "--emulate", "dh8970"], "wattlock-emulated"),
        (&["engines", "--models"], "wattlock-emulated"),
    ] {
        let missing = Command::new(&alone).args(words).env("PATH", "/usr/bin").output().unwrap();
        assert_eq!(refused(&missing), 127, "{words:?}");
        assert!(String::from_utf8_lossy(&missing.stderr).contains(name), "{words:?}");
        let found = Path::new(env!("CARGO_BIN_EXE_wattlock")).parent().unwrap();
        let found = Command::new(&alone).args([words[0], "--help"]).env("PATH", found).output().unwrap();
        good(&found);
    }
    assert!(codes.lines().any(|line| line.trim_start().starts_with("127  energy")), "{codes}");
}
