//! Other programs open what we write, and we open what they write: the `age` binary, and a reader in Python that was
//! written from docs/formats/file.md alone. A program that is not installed is skipped, and said so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use common::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use wattlock_door::Output;
use wattlock_files::{Format, Input, Opener, age, keys};

const LENGTHS: [usize; 7] = [0, 1, 65_535, 65_536, 65_537, 131_072, (5 << 20) + 3];

fn installed(program: &str) -> bool {
    let found =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/examples").join(name)
}

/// Both directions with the age binary, with `recipient` and the identity in `identity_file`.
fn exchange_with_age(recipient: &str, identity_file: &Path) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let key = fs::read(identity_file).unwrap();
    for (len, armor) in LENGTHS.into_iter().flat_map(|len| [(len, false), (len, true)]) {
        fs::write(path("plain"), content(len)).unwrap();
        let ours = Output::Path { path: path("ours"), force: true };
        let sealer = sealer(recipient).format(Format::Age).armor(armor);
        sealer.seal(Input::Path(path("plain")), ours, &Double, progress()).unwrap();
        let _ = fs::remove_file(path("opened"));
        run(Command::new("age")
            .args(["-d", "-i"])
            .arg(identity_file)
            .arg("-o")
            .args([path("opened"), path("ours")]));
        // age writes no output file for an empty content.
        assert!(fs::read(path("opened")).unwrap_or_default() == content(len), "{len}");

        let mut command = Command::new("age");
        let command = command.args(if armor { &["-a"][..] } else { &[] });
        run(command.args(["-r", recipient, "-o"]).args([path("theirs"), path("plain")]));
        let opener = Opener::new(keys::identities(&key, age::NoCallbacks).unwrap());
        assert!(open(&opener, &fs::read(path("theirs")).unwrap()).unwrap() == content(len), "{len}");
    }
}

#[test]
fn age_and_we_open_each_other_s_x25519_files() {
    if installed("age") {
        let (pair, directory) = (Pair::new(), tempfile::tempdir().unwrap());
        exchange_with_age(&pair.recipient(), &pair.write_identity(directory.path()));
    }
}

#[test]
fn age_and_we_open_each_other_s_ssh_files() {
    if installed("age") {
        for kind in ["ed25519", "rsa"] {
            let public = fs::read_to_string(example(&format!("id_{kind}.pub"))).unwrap();
            exchange_with_age(public.trim(), &example(&format!("id_{kind}")));
        }
    }
}

/// age asks for passphrases on a terminal only, so `script` gives it one.
#[test]
fn age_opens_our_passphrase_file() {
    if !installed("age") || !installed("script") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (ours, opened) = (directory.path().join("ours"), directory.path().join("opened"));
    let recipient = keys::passphrase_recipient("correct horse".to_owned().into(), 10).unwrap();
    let sealer = wattlock_files::Sealer::new(vec![recipient]).unwrap().format(Format::Age);
    sealer.seal(stream(&content(100_000)), to_file(&ours), &Double, progress()).unwrap();
    let command = format!("age -d -o {} {}", opened.display(), ours.display());
    let mut child = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"correct horse\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read(opened).unwrap(), content(100_000));
}

/// `tests/examples/passphrase.age` was written by age 1.1.1.
#[test]
fn we_open_age_s_passphrase_file() {
    let opener = Opener::new(vec![]).passphrase(Box::new(|| Some("correct horse".to_owned().into())));
    let plain = open(&opener, &fs::read(example("passphrase.age")).unwrap()).unwrap();
    assert_eq!(plain, b"locked by age 1.1.1 with a passphrase\n");
}

/// The key inside a sealed file is an age file, so age itself can get at it.
#[test]
fn age_opens_the_key_in_a_sealed_file() {
    if installed("age") {
        let (pair, directory) = (Pair::new(), tempfile::tempdir().unwrap());
        let sealed = seal(&pair.sealer(), b"hello");
        let key_file = directory.path().join("key.age");
        fs::write(&key_file, wattlock_files::format::header::parse(&sealed).unwrap()).unwrap();
        let identity = pair.write_identity(directory.path());
        let output = Command::new("age").args(["-d", "-i"]).args([identity, key_file]).output().unwrap();
        assert_eq!(output.stdout.len(), 32, "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The repository's own environment if there is one, else whatever the machine calls Python.
fn interpreter() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python3");
    if own.exists() { own } else { "python3".into() }
}

fn python() -> bool {
    let has_cryptography =
        Command::new(interpreter()).args(["-c", "import cryptography"]).stderr(Stdio::null()).status();
    let found = has_cryptography.is_ok_and(|status| status.success());
    if !found {
        println!("skipped: python3 with its package cryptography is not installed");
    }
    found
}

fn read_with_python(identity: &Path, sealed: &Path) -> std::process::Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/read_sealed.py");
    Command::new(interpreter()).arg(script).args([identity, sealed]).output().unwrap()
}

#[test]
fn independent_reader_opens_sealed_files_of_every_boundary_length() {
    if !python() {
        return;
    }
    let (pair, directory) = (Pair::new(), tempfile::tempdir().unwrap());
    let identity = pair.write_identity(directory.path());
    let sealed = directory.path().join("sealed");
    for len in [0, 1, 16_383, 16_384, 16_385, 32_768, 1 << 20, (1 << 20) + 1, (3 << 20) + 77] {
        fs::write(&sealed, seal(&pair.sealer(), &content(len))).unwrap();
        let output = read_with_python(&identity, &sealed);
        assert!(output.status.success(), "{len}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout == content(len), "{len}");
    }
}

#[test]
fn independent_reader_refuses_what_we_refuse() {
    if !python() {
        return;
    }
    let (pair, directory) = (Pair::new(), tempfile::tempdir().unwrap());
    let identity = pair.write_identity(directory.path());
    let path = directory.path().join("sealed");
    let sealed = seal(&pair.sealer(), &content(40_000));
    for at in [0, 11, 60, sealed.len() - 40_100, sealed.len() - 40_060, sealed.len() - 1] {
        let mut altered = sealed.clone();
        altered[at] ^= 1;
        fs::write(&path, &altered).unwrap();
        assert!(!read_with_python(&identity, &path).status.success(), "byte {at}");
        assert!(open(&pair.opener(), &altered).is_err(), "byte {at}");
    }
}

/// Files of released formats stay readable for ever; these are never written again.
#[test]
fn files_of_format_1_stay_readable() {
    let opener = || {
        let key = fs::read(example("key.txt")).unwrap();
        Opener::new(keys::identities(&key, age::NoCallbacks).unwrap())
    };
    for (name, len) in [("v1-empty.sealed", 0), ("v1-20k.sealed", 20_480)] {
        let sealed = fs::read(example(name)).unwrap();
        assert_eq!(open(&opener(), &sealed).unwrap(), content(len), "{name}");
        if python() {
            let output = read_with_python(&example("key.txt"), &example(name));
            assert_eq!(output.stdout, content(len), "{name}");
        }
    }
    let armored = fs::read(example("v1-hello.sealed.asc")).unwrap();
    assert_eq!(open(&opener(), &armored).unwrap(), b"hello, world\n");
    let by_phrase = Opener::new(vec![]).passphrase(Box::new(|| Some("correct horse".to_owned().into())));
    let sealed = fs::read(example("v1-passphrase.sealed")).unwrap();
    assert_eq!(open(&by_phrase, &sealed).unwrap(), b"hello, world\n");
}
