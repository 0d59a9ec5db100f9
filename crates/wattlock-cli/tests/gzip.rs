//! `wattlock gzip` as a person or a script meets it: names, what stays and what goes, exit codes; and a card that fails.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use wattlock_core::samples;

struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Desk {
        Desk(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.0.path())
            .env("WATTLOCK_PROFILE", self.at("profile.json"))
            .env("WATTLOCK_TELEMETRY_DIR", self.at("telemetry"))
            .stdin(Stdio::null());
        command
    }

    fn gzip(&self, arguments: &[&str]) -> Output {
        self.command(env!("CARGO_BIN_EXE_wattlock"), &[&["gzip"], arguments].concat()).output().unwrap()
    }

    fn code(&self, arguments: &[&str]) -> i32 {
        let output = self.gzip(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines = said.lines().filter(|line| line.starts_with("wattlock: ")).count();
        let code = output.status.code().unwrap();
        assert!((code == 0) == said.is_empty() && lines <= 1, "{arguments:?}: {code}: {said}");
        code
    }

    fn gunzip(&self, name: &str) -> Vec<u8> {
        let output = self.command("gunzip", &["-c", name]).output().unwrap();
        assert!(output.status.success(), "{name}");
        output.stdout
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "telemetry" && name != "profile.json")
            .collect();
        names.sort();
        names
    }
}

#[test]
fn a_refusal_names_its_file_once() {
    let desk = Desk::new();
    for name in ["ok", "done.gz", "two"] {
        fs::write(desk.at(name), name).unwrap();
    }
    fs::hard_link(desk.at("two"), desk.at("three")).unwrap();
    std::os::unix::fs::symlink("ok", desk.at("alias")).unwrap();
    for (arguments, name) in
        [(&["-d", "ok"][..], "ok"), (&["done.gz"], "done.gz"), (&["two"], "two"), (&["alias"], "alias")]
    {
        let output = desk.gzip(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with(&format!("wattlock: {name}: ")), "{said}");
        assert_eq!(said.matches(&format!("{name}: ")).count(), 1, "{said}");
        assert!(!said.contains(&format!("{name} ")), "{said}");
    }
    assert_eq!(desk.names(), ["alias", "done.gz", "ok", "three", "two"]);
}

#[test]
fn the_result_takes_the_files_place_and_gives_it_back() {
    let (desk, content) = (Desk::new(), samples::html(1, 700_000));
    fs::write(desk.at("page"), &content).unwrap();
    for level in 1..=9 {
        assert_eq!(desk.code(&[&format!("-{level}"), "page"]), 0);
        assert_eq!(desk.names(), ["page.gz"]);
        assert!(desk.gunzip("page.gz") == content, "{level}");
        assert_eq!(desk.code(&["-d", "page.gz"]), 0);
        assert!(fs::read(desk.at("page")).unwrap() == content);
    }
    assert_eq!(desk.code(&["-k", "page"]), 0);
    assert_eq!(desk.code(&["-k", "page"]), 40, "it exists");
    assert_eq!(desk.code(&["-kf", "page"]), 0);
    assert_eq!(desk.code(&["page.gz"]), 2, "twice");
    assert_eq!(desk.code(&["-d", "page"]), 2, "no suffix");
    assert_eq!(desk.code(&["-d", "missing.gz"]), 42);
    fs::rename(desk.at("page.gz"), desk.at("page.tgz")).unwrap();
    assert_eq!(desk.code(&["-d", "page.tgz"]), 0);
    assert_eq!(desk.names(), ["page", "page.tar"]);
}

#[test]
fn nothing_is_lost_where_something_is_wrong() {
    let (desk, content) = (Desk::new(), samples::text(2, 5000));
    fs::write(desk.at("one"), &content).unwrap();
    std::os::unix::fs::symlink("one", desk.at("link")).unwrap();
    assert_eq!(desk.code(&["link"]), 2);
    fs::hard_link(desk.at("one"), desk.at("other")).unwrap();
    assert_eq!(desk.code(&["one"]), 2);
    assert_eq!(desk.code(&["-c", "link"]), 0);
    fs::remove_file(desk.at("other")).unwrap();
    assert_eq!(desk.code(&["one"]), 0);
    let packed = fs::read(desk.at("one.gz")).unwrap();
    for (name, bytes, code) in [
        ("cut", packed[..packed.len() - 3].to_vec(), 30),
        (
            "altered",
            {
                let mut bytes = packed.clone();
                bytes[packed.len() - 6] ^= 4;
                bytes
            },
            32,
        ),
        ("followed", [&packed[..], b"more"].concat(), 34),
        ("other", content.clone(), 21),
        ("empty", Vec::new(), 30),
    ] {
        fs::write(desk.at(&format!("{name}.gz")), bytes).unwrap();
        assert_eq!(desk.code(&["-d", &format!("{name}.gz")]), code, "{name}");
        assert!(!desk.at(name).exists() && desk.at(&format!("{name}.gz")).exists(), "{name}");
    }
    // The others are done although one fails; its code is the result's.
    assert_eq!(desk.code(&["-d", "cut.gz", "one.gz"]), 30);
    assert!(fs::read(desk.at("one")).unwrap() == content);
}

#[test]
fn standard_input_goes_to_standard_output() {
    let (desk, content) = (Desk::new(), samples::json(3, 1 << 20));
    let through = |arguments: &[&str], input: &[u8]| {
        let mut command = desk.command(env!("CARGO_BIN_EXE_wattlock"), arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        assert!(output.status.success());
        output.stdout
    };
    let packed = through(&["gzip", "-1"], &content);
    assert!(packed.len() < content.len() / 3 && packed[3] == 0, "no name");
    assert!(through(&["gzip", "-d"], &packed) == content);
    assert!(through(&["gzip", "-dc", "-"], &packed) == content);
}

#[test]
fn a_card_that_fails_is_not_seen_in_the_result() {
    let (desk, content) = (Desk::new(), samples::html(4, 6 << 20));
    fs::write(desk.at("page"), &content).unwrap();
    let card = "name card\nwindow 64 requests 16777216 bytes\npool compression 4 servers\ntable deflate,zstd 0:20000\n";
    for fault in [
        "",
        "fault error every 3\n",
        "fault silence requests 5 6\n",
        "fault lost after 1000000 until 9000000000\n",
        "fault wrong-result every 3\n",
    ] {
        fs::write(desk.at("card"), format!("{card}{fault}")).unwrap();
        let arguments = ["--emulate", "card", "--policy", "qweb", "-kf", "-1", "page"];
        let output = desk.gzip(&arguments);
        assert!(output.status.success(), "{fault}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(desk.gunzip("page.gz") == content, "{fault}");
    }
    // The card does the work, or its faults would show nothing.
    fs::write(desk.at("card"), card).unwrap();
    let wattlock =
        |arguments: &[&str]| desk.command(env!("CARGO_BIN_EXE_wattlock"), arguments).output().unwrap();
    let key = wattlock(&["keygen", "-o", "key.txt"]);
    let recipient = String::from_utf8_lossy(&key.stderr).trim().rsplit(' ').next().unwrap().to_owned();
    let card = ["--emulate", "card", "--policy", "qweb"];
    let sealing = ["seal", "-q", "--stats", "--gzip", "-r", &recipient, "page"];
    let sealed = wattlock(&[&card[..], &sealing].concat());
    let said = String::from_utf8_lossy(&sealed.stderr).into_owned();
    assert!(sealed.status.success() && said.contains("emulated"), "{said}");
}
