//! What could not be read, and what a newer program wrote, is neither damage nor gone: commands say so, go on with the
//! rest, and end with a code of their own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Output;

use crate::desk::{Desk, good, refused};
use crate::folder_commands::{fs_command, said, stored};

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

/// `wattlock fs key`, with the volume's key.
fn key_command(desk: &Desk, words: &[&str]) -> Output {
    let (what, more) = words.split_first().unwrap();
    desk.run(&[&["fs", "key", what, "-i", "key.txt"], more].concat())
}

/// A volume with a folder in which are a file, one of a long name, and a link.
fn filled() -> Desk {
    let desk = Desk::new(&[]);
    fs::create_dir_all(desk.at("in")).unwrap();
    fs::write(desk.at("in/f"), "x".repeat(100)).unwrap();
    fs::write(desk.at(&format!("in/{}", "n".repeat(200))), "y".repeat(50)).unwrap();
    symlink("f", desk.at("in/link")).unwrap();
    good(&fs_command(&desk, &["cp", "-r", "--into", "vol", "in", "/"]));
    desk
}

/// The backing file with so many bytes of content.
fn backing(desk: &Desk, len: u64) -> PathBuf {
    let is_it = |path: &PathBuf| path.symlink_metadata().is_ok_and(|meta| meta.len() == 96 + len + 40);
    stored(&desk.at("vol")).into_iter().find(is_it).unwrap()
}

/// A header or a record as a newer program seals it: another version byte, and what does not open with ours.
fn of_version_2(bytes: &[u8]) -> Vec<u8> {
    let mut newer = bytes.to_vec();
    (newer[8], newer[95]) = (2, newer[95] ^ 1);
    newer
}

#[test]
fn a_repair_writes_each_altered_version_byte_back_and_changes_nothing_else() {
    let desk = filled();
    let record = backing(&desk, 100).with_file_name("wattlock.dir");
    fs::copy(&record, record.with_file_name("wattlock (conflict).dir")).unwrap();
    let bytes_of = |path: &PathBuf| fs::read(path).unwrap_or_default();
    let all = || -> Vec<(PathBuf, Vec<u8>)> {
        let paths = stored(&desk.at("vol")).into_iter();
        let same = |path: &PathBuf| !path.is_symlink() && !path.ends_with("wattlock.journal");
        paths.filter(same).map(|path| (path.clone(), bytes_of(&path))).collect()
    };
    let before = all();
    let versioned = |(_, bytes): &&(PathBuf, Vec<u8>)| {
        [&b"wattlofs"[..], b"wlfolder"].iter().any(|magic| bytes.starts_with(magic))
    };
    let mut tried = 0;
    for (path, good) in before.iter().filter(versioned) {
        let mut altered = good.clone();
        altered[8] = [0, 2, 255][tried % 3];
        fs::write(path, &altered).unwrap();
        let checked = fs_command(&desk, &["check", "vol"]);
        let printed = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert_eq!((code(&checked), bytes_of(path)), (83, altered), "{}: {printed}", path.display());
        assert!(printed.matches("version byte was altered").count() == 1, "{printed}");
        let repaired = fs_command(&desk, &["check", "--repair", "vol"]);
        assert_eq!(code(&repaired), 86, "{}: {}", path.display(), said(&repaired));
        let differ = before.iter().zip(all()).find(|(was, is)| *was != is);
        let differ = differ.map(|(was, _)| was.0.display());
        assert!(differ.is_none() && all().len() == before.len(), "{differ:?}");
        tried += 1;
    }
    // Two files, the records of two folders, and the copy of one.
    assert!(tried >= 5, "{tried}");
    good(&fs_command(&desk, &["check", "vol"]));
}

/// Whoever has the storage could lay one there against each rotation.
#[test]
fn a_copy_of_a_record_of_an_unknown_version_keeps_no_key_in_use() {
    let desk = filled();
    let record = desk.at("vol/wattlock.dir");
    let newer = of_version_2(&fs::read(&record).unwrap());
    let planted = desk.at("vol/wattlock (conflict).dir");
    fs::write(&planted, &newer).unwrap();
    let rotated = key_command(&desk, &["rotate", "vol"]);
    assert_eq!((code(&rotated), fs::read(&planted).unwrap()), (0, newer), "{}", said(&rotated));
    assert!(
        said(&rotated).contains("wattlock (conflict).dir") && said(&rotated).contains("unknown version 2")
    );
}

#[test]
fn a_locked_key_of_a_later_age_is_said_to_be_one() {
    let desk = filled();
    fs::write(desk.at("pass"), "words of a passphrase\n").unwrap();
    let add = ["add", "--work-factor", "10", "--new-passphrase-file", "pass", "vol"];
    let added = key_command(&desk, &add);
    assert_eq!(code(&added), 0, "{}", said(&added));
    let locked = desk.at("vol/wattlock.keys/passphrase");
    let whole = fs::read(&locked).unwrap();
    fs::write(&locked, [&b"age-encryption.org/v2\n"[..], &whole[22..]].concat()).unwrap();
    let checked = fs_command(&desk, &["check", "vol"]);
    let printed = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(printed.contains("newer: wattlock.keys/passphrase"), "{printed}");
    assert_eq!(code(&checked), 81, "{printed}");
    fs::write(&locked, [&b"Age"[..], &whole[3..]].concat()).unwrap();
    assert_eq!(code(&fs_command(&desk, &["check", "vol"])), 83);
}

#[test]
fn a_check_without_descriptors_tells_no_damage_and_renames_nothing() {
    let desk = filled();
    let before = stored(&desk.at("vol"));
    let (mut failed, mut done) = (0, 0);
    for most in (4..40).chain([256]) {
        let line = format!("ulimit -n {most}; exec \"$0\" fs check --repair -i key.txt vol");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &line, env!("CARGO_BIN_EXE_wattlock")]).current_dir(desk.folder.path());
        command.env("WATTLOCK_PROFILE", desk.at("profile.json")).env("WATTLOCK_TELEMETRY_DIR", desk.at("t"));
        let output = command.env("WATTLOCK_STATE_DIR", desk.at("state")).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(0) => done += 1,
            code => {
                failed += 1;
                assert!(!matches!(code, Some(81 | 83 | 86)), "{most}: {code:?}: {printed}{}", said(&output));
                assert!(
                    !printed.contains("damaged: ") && !printed.contains("repaired: "),
                    "{most}: {printed}"
                );
            }
        }
        assert_eq!(stored(&desk.at("vol")), before, "{most} descriptors");
    }
    assert!(failed > 0 && done > 0, "{failed} failed, {done} done");
    good(&fs_command(&desk, &["check", "vol"]));
}

#[test]
fn a_listing_and_a_copy_without_some_of_the_names_do_not_end_well() {
    let desk = filled();
    let file = backing(&desk, 100);
    let lost = file.with_file_name("AAAA");
    fs::rename(&file, &lost).unwrap();
    let listed = fs_command(&desk, &["ls", "vol", "in"]);
    assert_eq!((code(&listed), String::from_utf8_lossy(&listed.stdout).lines().count()), (83, 2));
    assert_eq!(said(&listed).matches("its name does not authenticate").count(), 1, "{}", said(&listed));
    let copied = fs_command(&desk, &["cp", "-r", "vol", "in", "out"]);
    assert_eq!(code(&copied), 83, "{}", said(&copied));
    assert_eq!(fs::read_dir(desk.at("out")).unwrap().count(), 2, "the others are copied");
    assert!(String::from_utf8_lossy(&copied.stdout).contains("1 refused"));
    fs::rename(&lost, &file).unwrap();
    // What another program put there is no fault of the volume's.
    fs::write(file.with_file_name("notes.txt"), "").unwrap();
    good(&fs_command(&desk, &["ls", "vol", "in"]));
    good(&fs_command(&desk, &["cp", "-r", "vol", "in", "again"]));
    let link = stored(&desk.at("vol")).into_iter().find(|path| path.is_symlink()).unwrap();
    fs::remove_file(&link).unwrap();
    symlink("AAAA", &link).unwrap();
    good(&fs_command(&desk, &["ls", "vol", "in"]));
    for words in
        [&["ls", "-l", "vol", "in"][..], &["ls", "--json", "vol", "in"], &["ls", "-l", "vol", "in/link"]]
    {
        assert_eq!(code(&fs_command(&desk, words)), 83, "{words:?}");
    }
}

#[test]
fn a_nameless_file_of_an_unknown_version_keeps_the_old_key() {
    let desk = filled();
    let file = backing(&desk, 100);
    let (lost, whole) = (file.with_file_name("AAAA"), fs::read(&file).unwrap());
    let newer = of_version_2(&whole);
    fs::write(&file, &newer).unwrap();
    fs::rename(&file, &lost).unwrap();
    let rotated = key_command(&desk, &["rotate", "vol"]);
    assert_eq!(code(&rotated), 81, "{}", said(&rotated));
    assert!(said(&rotated).contains("unknown version 2 of the header"), "{}", said(&rotated));
    assert_eq!(fs::read(&lost).unwrap(), newer);
    fs::write(&lost, &whole).unwrap();
    fs::rename(&lost, &file).unwrap();
    assert_eq!(good(&fs_command(&desk, &["cat", "vol", "in/f"])), "x".repeat(100));
    good(&key_command(&desk, &["rotate", "vol"]));
}

/// A copy of a record by a program that synchronises: what it names must not be renamed.
#[test]
fn entries_of_a_newer_record_beside_a_folders_own_keep_their_names() {
    let desk = filled();
    let file = backing(&desk, 100);
    let record = file.with_file_name("wattlock.dir");
    let newer = of_version_2(&fs::read(&record).unwrap());
    fs::write(file.with_file_name("wattlock.dir.sync-conflict-20261126-101112-ABCDEFG"), &newer).unwrap();
    fs::rename(&file, file.with_file_name("AAAA")).unwrap();
    let before = stored(&desk.at("vol"));
    let repaired = fs_command(&desk, &["check", "--repair", "vol"]);
    let printed = String::from_utf8_lossy(&repaired.stdout).into_owned();
    assert!(printed.contains("newer: ") && !printed.contains("repaired: "), "{printed}");
    assert_eq!((code(&repaired), stored(&desk.at("vol"))), (83, before), "{printed}");
    // The folder's own is damaged, and the copy is a newer program's: it must not get a new one.
    let whole = fs::read(&record).unwrap();
    fs::write(&record, vec![7; 128]).unwrap();
    let repaired = fs_command(&desk, &["check", "--repair", "vol"]);
    assert_eq!((code(&repaired), fs::read(&record).unwrap()), (81, vec![7; 128]), "{}", said(&repaired));
    fs::write(&record, whole).unwrap();
}

#[test]
fn a_line_of_recipients_that_would_lock_its_owner_out_is_an_error() {
    let desk = Desk::new(&[]);
    let key = fs::read_to_string(desk.at("key.txt")).unwrap();
    let recipient = key.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
    // The kind of key decides, and the blob says it, too.
    let blob = "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZMy7opKgwFB9nkt5YRrYMjNuG5N8\
                7uRgg6CLrbo5wAdT/y6v0mKV0U2w0WZ2YB/++Tpockg=";
    let ecdsa = format!("ecdsa-sha2-nistp256 {blob}");
    fs::write(desk.at("team"), format!("{recipient}\n{ecdsa}\n")).unwrap();
    for words in
        [&["fs", "init", "-R", "team", "new"][..], &["stream", "keys", "new", "--keys", "k", "-R", "team"]]
    {
        let output = desk.run(words);
        refused(&output, 10, "unsupported SSH key type");
        assert!(!desk.at("new").exists() && !desk.at("k").exists(), "{words:?}");
    }
    fs::write(desk.at("plain"), "x").unwrap();
    good(&desk.run(&["seal", "-R", "team", "-o", "sealed", "plain"]));
}
