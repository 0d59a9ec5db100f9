//! `wattlock fs` as a person or a script meets it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A folder with a key pair, and the program with its counters in it.
struct Desk {
    folder: tempfile::TempDir,
    recipient: String,
}

const CHEAP: [&str; 2] = ["--work-factor", "1"];

impl Desk {
    fn new() -> Desk {
        let mut desk = Desk { folder: tempfile::tempdir().unwrap(), recipient: String::new() };
        desk.recipient = desk.key("key.txt");
        desk
    }

    fn key(&self, name: &str) -> String {
        good(&self.run(&["keygen", "-o", name]));
        let text = fs::read_to_string(self.at(name)).unwrap();
        text.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap().to_owned()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wattlock"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("WATTLOCK_PROFILE", self.at("profile.json"))
            .env("WATTLOCK_TELEMETRY_DIR", self.at("telemetry"))
            .env("WATTLOCK_STATE_DIR", self.at("state"))
            .stdin(Stdio::null());
        command.output().unwrap()
    }

    /// With the first key.
    fn fs(&self, arguments: &[&str]) -> Output {
        let (words, rest): (Vec<_>, Vec<_>) = match arguments[0] {
            "key" => (arguments[..2].to_vec(), arguments[2..].to_vec()),
            _ => (arguments[..1].to_vec(), arguments[1..].to_vec()),
        };
        self.run(&[&["fs"][..], &words, &["-i", "key.txt"], &rest].concat())
    }

    fn init(&self, more: &[&str]) {
        good(&self.run(&[&["fs", "init", "-r", &self.recipient], more, &["vol"]].concat()));
    }

    fn with_files(&self) {
        self.init(&[]);
        fs::create_dir_all(self.at("in/letters/empty")).unwrap();
        fs::write(self.at("in/a.txt"), "attack at dawn\n").unwrap();
        fs::write(self.at("in/letters/big"), long()).unwrap();
        fs::write(self.at(&format!("in/letters/{}", "n".repeat(255))), "").unwrap();
        std::os::unix::fs::symlink("../a.txt", self.at("in/letters/link")).unwrap();
        good(&self.fs(&["cp", "--into", "-r", "vol", "in", "/"]));
    }
}

fn long() -> Vec<u8> {
    (0..3_000_000_u32).map(|n| (n >> 3) as u8).collect()
}

fn good(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

/// The exit code, after a check that exactly one line was said and nothing was printed.
fn refused(output: &Output) -> i32 {
    let said = String::from_utf8_lossy(&output.stderr);
    let own: Vec<&str> = said.lines().filter(|line| !line.starts_with("Try '")).collect();
    assert_eq!(own.len(), 1, "{said}");
    assert!(own[0].starts_with("wattlock: "), "{said}");
    assert!(output.stdout.is_empty());
    code(output)
}

fn text(output: &Output) -> String {
    good(output);
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Every file below a folder with its content.
fn tree(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.symlink_metadata().unwrap() {
            meta if meta.is_dir() => {
                all.extend(tree(&path));
                all.push((path, Vec::new()));
            }
            meta if meta.is_symlink() => {
                let target = fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes();
                all.push((path, target));
            }
            _ => {
                let content = fs::read(&path).unwrap();
                all.push((path, content));
            }
        }
    }
    all.sort();
    all
}

fn below(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let strip =
        |(path, content): (PathBuf, Vec<u8>)| (path.strip_prefix(folder).unwrap().to_owned(), content);
    tree(folder).into_iter().map(strip).collect()
}

#[test]
fn files_go_in_are_listed_and_come_back() {
    for names in ["folder", "deterministic", "plain"] {
        for chunk in ["4K", "256K"] {
            let desk = Desk::new();
            desk.init(&["--names", names, "--chunk", chunk]);
            fs::create_dir_all(desk.at("in/letters/empty")).unwrap();
            fs::write(desk.at("in/a.txt"), "attack at dawn\n").unwrap();
            fs::write(desk.at("in/letters/big"), long()).unwrap();
            fs::write(desk.at(&format!("in/{}", "n".repeat(255))), "").unwrap();
            std::os::unix::fs::symlink("../a.txt", desk.at("in/letters/link")).unwrap();
            good(&desk.fs(&["cp", "--into", "-r", "vol", "in", "/"]));
            assert_eq!(text(&desk.fs(&["ls", "vol"])), "in\n");
            assert_eq!(text(&desk.fs(&["ls", "vol", "in/letters"])), "big\nempty\nlink\n");
            let listed = text(&desk.fs(&["ls", "-l", "vol", "in/letters"]));
            assert!(
                listed.contains(" 3000000 big\n") && listed.contains(" 8 link -> ../a.txt\n"),
                "{listed}"
            );
            assert_eq!(text(&desk.fs(&["cat", "vol", "in/a.txt"])), "attack at dawn\n");
            good(&desk.fs(&["cp", "-r", "vol", "in", "out"]));
            assert_eq!(below(&desk.at("out")), below(&desk.at("in")));
            let stored = tree(&desk.at("vol"));
            let plain = stored.iter().any(|(path, _)| path.to_string_lossy().contains("letters"));
            assert_eq!(plain, names == "plain");
            assert!(!stored.iter().any(|(_, content)| content.windows(6).any(|part| part == b"attack")));
            let said = text(&desk.fs(&["check", "vol"]));
            assert!(said.ends_with("4 folders, 3 files, 2.9 MiB: 0 damaged, 0 repaired\n"), "{said}");
        }
    }
}

#[test]
fn what_is_wrong_has_one_line_its_own_code_and_changes_nothing() {
    let desk = Desk::new();
    assert_eq!(refused(&desk.run(&["fs", "init", "vol"])), 2);
    assert_eq!(refused(&desk.run(&["fs", "init", "-r", "hello", "vol"])), 10);
    assert!(!desk.at("vol").exists());
    assert_eq!(refused(&desk.fs(&["ls", "vol"])), 80);
    fs::create_dir(desk.at("vol")).unwrap();
    assert_eq!(refused(&desk.fs(&["ls", "vol"])), 80);
    fs::write(desk.at("vol/mine"), "x").unwrap();
    assert_eq!(refused(&desk.run(&["fs", "init", "-r", &desk.recipient, "vol"])), 85);
    assert_eq!(below(&desk.at("vol")), [("mine".into(), b"x".to_vec())]);
    fs::remove_file(desk.at("vol/mine")).unwrap();
    desk.init(&[]);
    let before = tree(&desk.at("vol"));
    assert_eq!(refused(&desk.run(&["fs", "init", "-r", &desk.recipient, "vol"])), 85);
    desk.key("other.txt");
    for words in [
        &["ls", "vol"][..],
        &["cat", "vol", "x"],
        &["check", "vol"],
        &["key", "list", "vol"],
        &["key", "remove", "vol", "key1"],
    ] {
        let at = if words[0] == "key" { 2 } else { 1 };
        let all = [&["fs"], &words[..at], &["-i", "other.txt"], &words[at..]].concat();
        assert_eq!(refused(&desk.run(&all)), 12, "{words:?}");
    }
    assert_eq!(refused(&desk.run(&["fs", "ls", "vol"])), 2, "it has no passphrase");
    assert_eq!(refused(&desk.fs(&["ls", "vol", "nothing"])), 42);
    assert_eq!(refused(&desk.fs(&["key", "remove", "vol", "key1"])), 2, "the only key");
    assert_eq!(tree(&desk.at("vol")), before);
    let file = desk.at("vol/wattlock.fs");
    let newer = b"wattlock volume 2\n";
    let sealed = desk.at("newer");
    fs::write(&sealed, newer).unwrap();
    good(&desk.run(&["seal", "-q", "-r", &desk.recipient, "-o", "vol/wattlock.fs", "-f", "newer"]));
    assert_eq!(refused(&desk.fs(&["ls", "vol"])), 81);
    for (line, code) in [("chunk 7", 81), ("chunk x", 82), ("sparse 1", 81), ("id 00", 82)] {
        fs::write(&sealed, format!("wattlock volume 1\n{line}\n")).unwrap();
        good(&desk.run(&["seal", "-q", "-r", &desk.recipient, "-o", "vol/wattlock.fs", "-f", "newer"]));
        assert_eq!(refused(&desk.fs(&["ls", "vol"])), code, "{line}");
    }
    fs::write(&file, "hello").unwrap();
    assert_eq!(refused(&desk.fs(&["ls", "vol"])), 21);
}

#[test]
fn the_volumes_own_file_is_an_ordinary_sealed_file() {
    let desk = Desk::new();
    desk.init(&[]);
    let said = text(&desk.run(&["open", "-q", "-i", "key.txt", "-o", "-", "vol/wattlock.fs"]));
    assert!(said.starts_with("wattlock volume 1\nid "), "{said}");
    assert!(said.contains("\nchunk 4096\nnames folder\nrevision 1\nopener key1 age1"), "{said}");
}

#[test]
fn keys_and_passphrases_are_added_listed_changed_and_removed() {
    let desk = Desk::new();
    fs::write(desk.at("one"), "correct horse\n").unwrap();
    fs::write(desk.at("two"), "battery staple\n").unwrap();
    good(&desk.run(&[&["fs", "init", "--passphrase-file", "one"][..], &CHEAP, &["vol"]].concat()));
    let by = |file: &str| desk.run(&["fs", "ls", "--passphrase-file", file, "vol"]);
    good(&by("one"));
    assert_eq!(refused(&by("two")), 14);
    let add = |more: &[&str]| {
        desk.run(&[&["fs", "key", "add", "--passphrase-file", "one"][..], more, &CHEAP, &["vol"]].concat())
    };
    good(&add(&["-r", &desk.recipient, "--name", "laptop"]));
    good(&add(&["--new-passphrase-file", "two", "--name", "second"]));
    assert_eq!(refused(&add(&["-r", &desk.recipient, "--name", "laptop"])), 2);
    // What a change of a passphrase removes when it ends is nobody's by another way.
    assert_eq!(refused(&add(&["--new-passphrase-file", "two", "--name", "passphrase.before-1"])), 2);
    good(&add(&["--new-passphrase-file", "two", "--name", "passphrase.before-lunch"]));
    good(&desk.fs(&["key", "remove", "vol", "passphrase.before-lunch"]));
    good(&by("two"));
    let listed = text(&desk.fs(&["key", "list", "vol"]));
    let rows = listed.lines().skip(1).take_while(|line| !line.is_empty());
    let names: Vec<&str> = rows.map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["passphrase", "laptop", "second"]);
    // The locked identity and the volume's file are age's and ours: the program opens one with the other.
    fs::write(desk.at("three"), "new words\n").unwrap();
    let passwd = ["fs", "passwd", "--passphrase-file", "one", "--new-passphrase-file", "three"];
    assert_eq!(refused(&desk.run(&[&passwd[..], &CHEAP, &["vol"]].concat())), 2, "which of the two?");
    good(&desk.run(&[&passwd[..], &CHEAP, &["--name", "passphrase", "vol"]].concat()));
    assert_eq!(refused(&by("one")), 14);
    good(&by("three"));
    good(&by("two"));
    let removed = desk.fs(&["key", "remove", "vol", "second"]);
    good(&removed);
    assert_eq!(refused(&by("two")), 14);
    assert!(!desk.at("vol/wattlock.keys/second").exists());
    good(&by("three"));
    let listed = text(&desk.fs(&["key", "list", "vol"]));
    assert_eq!(listed.lines().take_while(|line| !line.is_empty()).count(), 3, "{listed}");
}

/// Whenever a change of a passphrase is interrupted, the next one ends it: no older passphrase opens the volume then.
#[test]
fn an_interrupted_change_of_a_passphrase_is_ended_by_the_next_one() {
    for kept in [false, true] {
        let desk = Desk::new();
        for (name, words) in [("one", "correct horse"), ("two", "battery staple"), ("three", "new words")] {
            fs::write(desk.at(name), format!("{words}\n")).unwrap();
        }
        good(&desk.run(&[&["fs", "init", "--passphrase-file", "one"][..], &CHEAP, &["vol"]].concat()));
        let passwd = |by: &str, to: &str| {
            let words = ["fs", "passwd", "--passphrase-file", by, "--new-passphrase-file", to];
            desk.run(&[&words[..], &CHEAP, &["vol"]].concat())
        };
        let by = |file: &str| desk.run(&["fs", "ls", "--passphrase-file", file, "vol"]);
        good(
            &desk.run(
                &[
                    &[
                        "fs",
                        "key",
                        "add",
                        "--passphrase-file",
                        "one",
                        "-r",
                        &desk.recipient,
                        "--name",
                        "laptop",
                    ][..],
                    &["vol"],
                ]
                .concat(),
            ),
        );
        let settings = || text(&desk.run(&["open", "-q", "-i", "key.txt", "-o", "-", "vol/wattlock.fs"]));
        let line = |settings: &str| {
            let line = settings.lines().find(|line| line.starts_with("opener passphrase passphrase "));
            line.unwrap().rsplit(' ').next().unwrap().to_owned()
        };
        let (old, locked) = (line(&settings()), fs::read(desk.at("vol/wattlock.keys/passphrase")).unwrap());
        good(&passwd("one", "two"));
        // As it was before the last step; and before the locked identity was replaced, too.
        let after = settings();
        let revision = after.lines().find_map(|line| line.strip_prefix("revision ")).unwrap();
        let next = format!("revision {}", revision.parse::<u64>().unwrap() + 1);
        let half = after.replace(&format!("revision {revision}"), &next);
        let half =
            half.replace("\nsecret ", &format!("\nopener passphrase.before-1 passphrase {old}\nsecret "));
        fs::write(desk.at("half"), half).unwrap();
        let (new, own) = (line(&after), &desk.recipient);
        good(&desk.run(&[
            "seal",
            "-q",
            "-f",
            "-r",
            own,
            "-r",
            &new,
            "-r",
            &old,
            "-o",
            "vol/wattlock.fs",
            "half",
        ]));
        fs::write(desk.at("vol/wattlock.keys/passphrase.before-1"), &locked).unwrap();
        if !kept {
            fs::write(desk.at("vol/wattlock.keys/passphrase"), &locked).unwrap();
        }
        good(&by("one"));
        let rotated = desk.fs(&["key", "rotate", "vol"]);
        good(&rotated);
        assert!(String::from_utf8_lossy(&rotated.stderr).contains("whose change was interrupted"));
        good(&by("one"));
        good(&passwd(if kept { "two" } else { "one" }, "three"));
        for gone in ["one", "two"] {
            assert_eq!(refused(&by(gone)), 14, "{gone}");
        }
        good(&by("three"));
        assert_eq!(fs::read_dir(desk.at("vol/wattlock.keys")).unwrap().count(), 1);
    }
}

/// Programs that synchronise keep older files and records of the volume under their own names, in folders of their own.
#[test]
fn older_files_that_another_program_keeps_are_not_the_volumes() {
    let desk = Desk::new();
    desk.with_files();
    let versions = desk.at("vol/.stversions");
    good(
        &std::process::Command::new("cp").arg("-a").args([desk.at("vol"), desk.at("kept")]).output().unwrap(),
    );
    fs::rename(desk.at("kept"), &versions).unwrap();
    let kept = tree(&versions);
    good(&desk.fs(&["check", "vol"]));
    let repaired = desk.fs(&["check", "--repair", "vol"]);
    good(&repaired);
    assert!(text(&repaired).contains("[.stversions]: another program's"), "{}", text(&repaired));
    good(&desk.fs(&["key", "rotate", "vol"]));
    good(&desk.fs(&["check", "vol"]));
    assert!(tree(&versions) == kept);
}

#[test]
fn a_file_of_an_unknown_key_is_named_by_a_rotation_that_ends() {
    let desk = Desk::new();
    desk.with_files();
    let volume = || text(&desk.run(&["open", "-q", "-i", "key.txt", "-o", "-", "vol/wattlock.fs"]));
    let headers = tree(&desk.at("vol")).into_iter().filter(|(_, bytes)| bytes.starts_with(b"wattlofs"));
    let (path, mut bytes) = headers.max_by_key(|(_, bytes)| bytes.len()).unwrap();
    // As one that another machine made before a rotation, and that comes later.
    bytes[14] = 9;
    fs::write(desk.at("vol").join(path), bytes).unwrap();
    let rotated = desk.fs(&["key", "rotate", "vol"]);
    assert_eq!(code(&rotated), 83);
    assert!(String::from_utf8_lossy(&rotated.stderr).contains("letters/big: "), "{rotated:?}");
    assert!(volume().matches("\nkey ").count() == 1, "the old key is gone all the same");
}

#[test]
fn rotation_seals_every_header_anew_and_a_second_one_goes_on() {
    let desk = Desk::new();
    desk.with_files();
    let volume = || text(&desk.run(&["open", "-q", "-i", "key.txt", "-o", "-", "vol/wattlock.fs"]));
    let (before, files) = (volume(), tree(&desk.at("vol")));
    good(&desk.fs(&["key", "rotate", "vol"]));
    let after = volume();
    assert!(before.contains("\nkey 1 ") && after.contains("\nkey 2 ") && !after.contains("\nkey 1 "));
    let mut changed = 0;
    for ((path, old), (same, new)) in files.iter().zip(tree(&desk.at("vol"))) {
        assert_eq!(*path, same);
        let name = path.file_name().unwrap().to_string_lossy();
        let header = if name == "wattlock.dir" { 128 } else { 96 };
        if old.len() < 96 || name.ends_with(".name") || name == "wattlock.fs" || name == "wattlock.journal" {
            continue;
        }
        assert_eq!(old[header..], new[header..], "{name}: no content is written");
        assert_eq!((old[15], new[15]), (1, 2), "{name}");
        assert_ne!(old[24..96], new[24..96]);
        changed += 1;
    }
    assert_eq!(changed, 4 + 3, "records and files");
    good(&desk.fs(&["cp", "-r", "vol", "in", "out"]));
    assert_eq!(below(&desk.at("out")), below(&desk.at("in")));
    // One that was cut off: both keys, some headers of each.
    fs::copy(&files[0].0, desk.at("kept")).ok();
    let half = format!("{}{}", before, after.lines().find(|line| line.starts_with("key ")).unwrap()) + "\n";
    fs::write(desk.at("half"), half).unwrap();
    good(&desk.run(&["seal", "-q", "-r", &desk.recipient, "-o", "vol/wattlock.fs", "-f", "half"]));
    for (path, content) in files.iter().filter(|(path, _)| path.is_file()).skip(2).take(3) {
        if path.file_name().unwrap() != "wattlock.fs" && path.file_name().unwrap() != "wattlock.journal" {
            fs::write(path, content).unwrap();
        }
    }
    good(&desk.fs(&["cp", "-r", "vol", "in", "half-done"]));
    good(&desk.fs(&["key", "rotate", "vol"]));
    assert!(!volume().contains("\nkey 1 "));
    good(&desk.fs(&["check", "vol"]));
}

#[test]
fn a_damaged_header_keeps_the_old_key() {
    let desk = Desk::new();
    desk.with_files();
    let file = tree(&desk.at("vol")).into_iter().find(|(_, content)| content.len() > 3_000_000).unwrap().0;
    let mut content = fs::read(&file).unwrap();
    content[60] ^= 1;
    fs::write(&file, &content).unwrap();
    assert_eq!(code(&desk.fs(&["key", "rotate", "vol"])), 83);
    let volume = text(&desk.run(&["open", "-q", "-i", "key.txt", "-o", "-", "vol/wattlock.fs"]));
    assert!(volume.contains("\nkey 1 ") && volume.contains("\nkey 2 "));
    content[60] ^= 1;
    fs::write(&file, &content).unwrap();
    good(&desk.fs(&["key", "rotate", "vol"]));
    good(&desk.fs(&["check", "vol"]));
}

#[test]
fn a_check_finds_every_damage_and_its_repair_gives_names_and_deletes_nothing() {
    let desk = Desk::new();
    desk.with_files();
    good(&desk.fs(&["check", "vol"]));
    let stored = tree(&desk.at("vol"));
    let big = stored.iter().find(|(_, content)| content.len() > 3_000_000).unwrap();
    let mut content = big.1.clone();
    // Chunks 3 and 4, and 700.
    for chunk in [3, 4, 700] {
        content[96 + chunk * 4136 + 100] ^= 1;
    }
    fs::write(&big.0, &content).unwrap();
    let short = stored.iter().find(|(_, content)| content.len() == 96 + 15 + 40).unwrap();
    fs::write(&short.0, [&short.1[..50], &[short.1[50] ^ 1], &short.1[51..]].concat()).unwrap();
    let checked = desk.fs(&["check", "vol"]);
    assert_eq!(code(&checked), 83);
    let said = String::from_utf8(checked.stdout).unwrap();
    let damaged: Vec<&str> = said.lines().filter(|line| line.starts_with("damaged: ")).collect();
    assert_eq!(damaged.len(), 3, "{said}");
    assert!(damaged[0].starts_with("damaged: in/a.txt: damaged: "), "{said}");
    assert_eq!(damaged[1], "damaged: in/letters/big: chunk 700 does not authenticate");
    assert_eq!(damaged[2], "damaged: in/letters/big: chunks 3 to 4 do not authenticate");
    assert_eq!(refused(&desk.fs(&["cat", "vol", "in/a.txt"])), 83);
    fs::write(&short.0, &short.1).unwrap();
    fs::write(&big.0, &big.1).unwrap();
    good(&desk.fs(&["check", "vol"]));

    // A name, and a folder's record.
    let lost = short.0.with_file_name("AAAA");
    fs::rename(&short.0, &lost).unwrap();
    let record = big.0.with_file_name("wattlock.dir");
    let mut bytes = fs::read(&record).unwrap();
    bytes[100] ^= 1;
    fs::write(&record, &bytes).unwrap();
    assert_eq!(code(&desk.fs(&["check", "vol"])), 83);
    let files = |desk: &Desk| tree(&desk.at("vol")).into_iter().filter(|(path, _)| path.is_file()).count();
    let before = files(&desk);
    let repaired = desk.fs(&["check", "--repair", "vol"]);
    let said = String::from_utf8_lossy(&repaired.stdout).into_owned();
    assert_eq!(code(&repaired), 86, "{said}");
    assert_eq!(files(&desk), before + 1, "the damaged record is kept, and nothing is gone");
    good(&desk.fs(&["check", "vol"]));
    let names = text(&desk.fs(&["ls", "vol", "in"]));
    let name = names.lines().find(|name| name.starts_with("lost-")).unwrap();
    assert_eq!(text(&desk.fs(&["cat", "vol", &format!("in/{name}")])), "attack at dawn\n");
    let names = text(&desk.fs(&["ls", "vol", "in/letters"]));
    assert!(names.lines().all(|name| name.starts_with("lost-")) && names.lines().count() == 4, "{names}");
}

#[test]
fn a_file_cut_or_extended_at_a_chunks_border_is_found() {
    let desk = Desk::new();
    desk.init(&[]);
    fs::write(desk.at("two"), vec![7; 8192]).unwrap();
    good(&desk.fs(&["cp", "--into", "vol", "two", "/"]));
    let (path, content) =
        tree(&desk.at("vol")).into_iter().find(|(_, content)| content.len() == 96 + 2 * 4136 + 40).unwrap();
    let cut = |bytes: Vec<u8>| {
        fs::write(&path, bytes).unwrap();
        let checked = code(&desk.fs(&["check", "vol"]));
        fs::write(&path, &content).unwrap();
        checked
    };
    assert_eq!(cut(content.clone()), 0);
    assert_eq!(cut(content[..96 + 2 * 4136].to_vec()), 83, "the empty last chunk is gone");
    assert_eq!(cut(content[..96 + 4136 + 40].to_vec()), 83, "a chunk is gone");
    assert_eq!(cut([&content[..96 + 2 * 4136], &[0x55; 40]].concat()), 83, "rubbish for the last chunk");
    assert_eq!(cut([&content[..96 + 4136], &content[96 + 2 * 4136..]].concat()), 83, "the end moved up");
    assert_eq!(cut([&content[..], &content[96..96 + 4136]].concat()), 83, "a chunk behind the end");
}

#[test]
fn a_volume_in_use_is_refused_and_its_names_and_keys_are_not() {
    let desk = Desk::new();
    desk.with_files();
    let before = tree(&desk.at("vol"));
    let journal = fs::File::open(desk.at("vol/wattlock.journal")).unwrap();
    journal.lock().unwrap();
    for words in [
        &["cat", "vol", "in/a.txt"][..],
        &["cp", "vol", "in/a.txt", "copy"],
        &["check", "vol"],
        &["key", "rotate", "vol"],
    ] {
        assert_eq!(refused(&desk.fs(words)), 84, "{words:?}");
    }
    assert_eq!(tree(&desk.at("vol")), before);
    assert!(!desk.at("copy").exists());
    assert_eq!(text(&desk.fs(&["ls", "vol"])), "in\n");
    good(&desk.fs(&["key", "list", "vol"]));
    drop(journal);
    good(&desk.fs(&["check", "vol"]));
}

/// What an attacker that may write the storage can lay into `wattlock.keys`, by name: none of it opens a volume.
fn hostile(desk: &Desk) -> Vec<(&'static str, Vec<u8>)> {
    let clear = fs::read(desk.at("mallory.txt")).unwrap();
    let age = |arguments: &[&str], input: &str| {
        let out = desk.at("hostile");
        let _ = fs::remove_file(&out);
        let all = [&["seal", "-q", "--format", "age", "-o", "hostile"][..], arguments, &[input]].concat();
        good(&desk.run(&all));
        fs::read(out).unwrap()
    };
    let mallory = String::from_utf8(clear.clone()).unwrap();
    let secret = mallory.lines().find(|line| line.starts_with("AGE-SECRET")).unwrap();
    fs::write(desk.at("two.txt"), format!("{secret}\n{secret}\n")).unwrap();
    fs::write(desk.at("plugin.txt"), "AGE-PLUGIN-EVIL-1QQQQQQQQQQQQQ\n").unwrap();
    let both = format!("{secret}\nAGE-PLUGIN-EVIL-1QQQQQQQQQQQQQ\n");
    fs::write(desk.at("both.txt"), both).unwrap();
    let phrase = ["--passphrase-file", "one"];
    vec![
        ("a clear identity", clear),
        ("a plugin's identity", fs::read(desk.at("plugin.txt")).unwrap()),
        ("an SSH key", fs::read(desk.at("ssh")).unwrap()),
        ("locked to a key, not a passphrase", age(&["-r", &desk.recipient], "mallory.txt")),
        ("armored", age(&["-a", phrase[0], phrase[1]], "mallory.txt")),
        ("two identities behind the passphrase", age(&phrase, "two.txt")),
        ("a plugin behind the passphrase", age(&phrase, "plugin.txt")),
        ("an identity and a plugin behind the passphrase", age(&phrase, "both.txt")),
        ("a foreign identity behind the right passphrase", age(&phrase, "mallory.txt")),
        ("nothing", Vec::new()),
        ("a large file", vec![b'a'; 1 << 20]),
    ]
}

/// A volume by passphrase, and one of the attacker's that its own key opens under the same name.
fn taken_over() -> Desk {
    let desk = Desk::new();
    fs::write(desk.at("one"), "correct horse\n").unwrap();
    good(&desk.run(&[&["fs", "init", "--passphrase-file", "one"][..], &CHEAP, &["vol"]].concat()));
    let mallory = desk.key("mallory.txt");
    good(&desk.run(&["fs", "init", "-r", &format!("passphrase={mallory}"), "evil"]));
    let ssh = ["-q", "-t", "ed25519", "-N", "", "-f", "ssh"];
    assert!(Command::new("ssh-keygen").args(ssh).current_dir(desk.folder.path()).status().unwrap().success());
    // It leaves a trace, if it is ever started.
    fs::create_dir(desk.at("bin")).unwrap();
    let plugin = desk.at("bin/age-plugin-evil");
    fs::write(&plugin, format!("#!/bin/sh\ntouch {}\n", desk.at("started").display())).unwrap();
    fs::set_permissions(&plugin, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    desk
}

#[test]
fn only_an_openers_own_identity_locked_by_one_passphrase_opens_a_volume() {
    let desk = taken_over();
    fs::write(desk.at("in"), "secret\n").unwrap();
    let path = format!("{}:{}", desk.at("bin").display(), std::env::var("PATH").unwrap());
    let by_phrase = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wattlock"));
        command.args(arguments).current_dir(desk.folder.path()).env("PATH", &path).stdin(Stdio::null());
        command
            .env("WATTLOCK_PROFILE", desk.at("profile.json"))
            .env("WATTLOCK_TELEMETRY_DIR", desk.at("telemetry"))
            .env("WATTLOCK_STATE_DIR", desk.at("state"));
        command.output().unwrap()
    };
    let commands: [&[&str]; 7] = [
        &["fs", "ls", "--passphrase-file", "one", "VOLUME"],
        &["fs", "ls", "--key", "passphrase", "--passphrase-file", "one", "VOLUME"],
        &["fs", "cp", "--into", "--passphrase-file", "one", "VOLUME", "in", "/in"],
        &["fs", "check", "--passphrase-file", "one", "VOLUME"],
        &["fs", "key", "list", "--passphrase-file", "one", "VOLUME"],
        &["fs", "key", "rotate", "--passphrase-file", "one", "VOLUME"],
        &["fs", "passwd", "--passphrase-file", "one", "--new-passphrase-file", "one", "VOLUME"],
    ];
    for (what, bytes) in hostile(&desk) {
        // In the place of the volume's own: `evil` would open with several of them, `vol` with none.
        for volume in ["vol", "evil"] {
            let keys = desk.at(volume).join("wattlock.keys");
            fs::create_dir_all(&keys).unwrap();
            let own = fs::read(keys.join("passphrase")).ok();
            fs::write(keys.join("passphrase"), &bytes).unwrap();
            let before = tree(&desk.at(volume));
            for command in commands {
                let command: Vec<&str> =
                    command.iter().map(|word| if *word == "VOLUME" { volume } else { word }).collect();
                let done = by_phrase(&command);
                let said = String::from_utf8_lossy(&done.stderr).into_owned();
                assert!(
                    matches!(code(&done), 83 | 14),
                    "{what}: {volume}: {command:?}: {}: {said}",
                    code(&done)
                );
            }
            assert_eq!(tree(&desk.at(volume)), before, "{what}: nothing was written to {volume}");
            match own {
                Some(own) => fs::write(keys.join("passphrase"), own).unwrap(),
                None => fs::remove_file(keys.join("passphrase")).unwrap(),
            }
        }
        // Beside the right one it keeps no user out, and is never started.
        let beside = desk.at("vol/wattlock.keys/aaa");
        fs::write(&beside, &bytes).unwrap();
        good(&by_phrase(&["fs", "ls", "--passphrase-file", "one", "vol"]));
        fs::remove_file(beside).unwrap();
    }
    assert!(!desk.at("started").exists(), "a plugin that the storage named was started");
}

#[test]
fn what_is_no_file_among_locked_identities_is_damage_and_is_not_waited_for() {
    let desk = taken_over();
    let own = desk.at("vol/wattlock.keys/passphrase");
    let bytes = fs::read(&own).unwrap();
    fs::write(desk.at("outside"), &bytes).unwrap();
    let by = || desk.run(&["fs", "ls", "--passphrase-file", "one", "vol"]);
    let make: [(&str, &dyn Fn()); 4] = [
        ("a link", &|| std::os::unix::fs::symlink(desk.at("outside"), &own).unwrap()),
        ("a folder", &|| fs::create_dir(&own).unwrap()),
        ("a pipe", &|| {
            assert!(Command::new("mkfifo").arg(&own).status().unwrap().success());
        }),
        ("a socket", &|| drop(std::os::unix::net::UnixListener::bind(&own).unwrap())),
    ];
    for (what, make) in make {
        fs::remove_file(&own).unwrap();
        make();
        assert_eq!(refused(&by()), 83, "{what}");
        let _ = fs::remove_file(&own).or_else(|_| fs::remove_dir(&own));
        fs::write(&own, &bytes).unwrap();
    }
    good(&by());
}

#[test]
fn the_work_that_a_volumes_storage_asks_for_is_bounded() {
    let desk = Desk::new();
    fs::write(desk.at("one"), "correct horse\n").unwrap();
    good(&desk.run(&[&["fs", "init", "--passphrase-file", "one"][..], &CHEAP, &["vol"]].concat()));
    let own = desk.at("vol/wattlock.keys/passphrase");
    let locked = fs::read(&own).unwrap();
    // The factor is the last word of the stanza's first line: " 1".
    let at = locked.windows(3).position(|part| part == b" 1\n").unwrap();
    let asking = |factor: &str| [&locked[..=at], factor.as_bytes(), &locked[at + 2..]].concat();
    let by =
        |more: &[&str]| desk.run(&[&["fs", "ls", "--passphrase-file", "one"][..], more, &["vol"]].concat());
    for factor in ["21", "22", "30", "63", "64", "255"] {
        fs::write(&own, asking(factor)).unwrap();
        let done = by(&[]);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        // No memory is taken for it: it would be two GiB and more.
        assert!(matches!(refused(&done), 16 | 83), "{factor}: {said}");
    }
    // As many as a volume may have, and one more.
    fs::write(&own, &locked).unwrap();
    for number in 0..63 {
        fs::write(desk.at(&format!("vol/wattlock.keys/n{number}")), &locked).unwrap();
    }
    good(&by(&[]));
    fs::write(desk.at("vol/wattlock.keys/one-more"), &locked).unwrap();
    assert_eq!(refused(&by(&[])), 83);
    good(&by(&["--key", "passphrase"]));
}

#[test]
fn a_check_of_a_sparse_giant_jumps_over_its_hole() {
    let desk = Desk::new();
    desk.with_files();
    let stored = tree(&desk.at("vol"))
        .into_iter()
        .map(|(path, _)| path)
        .find(|path| path.is_file() && fs::metadata(path).unwrap().len() > 3_000_000);
    let stored = stored.unwrap();
    let file = fs::File::options().write(true).open(&stored).unwrap();
    if file.set_len(15 << 40).is_err() {
        return eprintln!("skipped: needs a file system with files of 15 TiB");
    }
    drop(file);
    // The hole is one range of damage, jumped over: read, it would take hours.
    let done = desk.fs(&["check", "vol"]);
    assert_eq!(code(&done), 83, "{}", String::from_utf8_lossy(&done.stderr));
    let said = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(said.contains("chunks") && said.len() < 4096, "{said}");
}

#[test]
fn a_check_of_a_large_folder_takes_memory_by_its_entries_and_not_by_their_square() {
    let desk = Desk::new();
    desk.init(&["--names", "plain"]);
    // Names that nothing sealed: each is an entry all the same.
    for number in 0..40_000 {
        fs::write(desk.at(&format!("vol/n{number}")), "").unwrap();
    }
    let check = format!("ulimit -v 1500000; exec {} fs check -i key.txt vol", env!("CARGO_BIN_EXE_wattlock"));
    let mut shell = Command::new("bash");
    shell.args(["-c", &check]).current_dir(desk.folder.path()).stdin(Stdio::null());
    let done = shell.env("WATTLOCK_PROFILE", desk.at("profile.json")).output().unwrap();
    assert_eq!(done.status.code(), Some(83), "{:.300}", String::from_utf8_lossy(&done.stderr));
}
