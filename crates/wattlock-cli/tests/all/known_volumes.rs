//! What this machine knows of volumes, against a storage that exchanges them and rolls them back.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::desk::{Desk, fuse, good, has, refused};
use crate::folder_commands::{is_root, said};

/// A command with the key behind its words, also of `fs key`.
fn with_key(desk: &Desk, words: &[&str]) -> Output {
    by(desk, "key.txt", words)
}

fn by(desk: &Desk, key: &str, words: &[&str]) -> Output {
    desk.run(&with(key, words))
}

fn with<'a>(key: &'a str, words: &[&'a str]) -> Vec<&'a str> {
    let at = if words[0] == "key" { 2 } else { 1 };
    [&["fs"], &words[..at], &["-i", key], &words[at..]].concat()
}

/// A command on another machine, which has the same folders and remembers on its own.
fn elsewhere(desk: &Desk, words: &[&str]) -> Output {
    let mut command = desk.command(&with("key.txt", words));
    command.env("WATTLOCK_STATE_DIR", desk.at("state elsewhere")).output().unwrap()
}

fn recipient(desk: &Desk, key: &str) -> String {
    if !desk.at(key).exists() {
        good(&desk.run(&["keygen", "-o", key]));
    }
    let text = fs::read_to_string(desk.at(key)).unwrap();
    text.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap().to_owned()
}

fn fingerprint(listed: &Output) -> String {
    good(listed).lines().find_map(|line| line.strip_prefix("fingerprint ")).unwrap().to_owned()
}

/// Copies a folder over another one, as a synchroniser or an attacker does.
fn put(desk: &Desk, from: &str, to: &str) {
    let _ = fs::remove_dir_all(desk.at(to));
    good(&Command::new("cp").arg("-a").args([desk.at(from), desk.at(to)]).output().unwrap());
}

/// The commands that only read, and those that write.
const READ: [&[&str]; 3] = [&["ls", "vol"], &["check", "vol"], &["key", "list", "vol"]];
const WRITE: [&[&str]; 4] = [
    &["cp", "--into", "vol", "in", "/"],
    &["rm", "--yes", "vol", "in"],
    &["key", "rotate", "vol"],
    &["check", "--repair", "vol"],
];

fn every_write_is_refused(desk: &Desk, code: i32, says: &str) {
    for words in WRITE {
        refused(&with_key(desk, words), code, says);
    }
    if fuse() {
        refused(&desk.run(&["mount", "-i", "key.txt", "vol", "mnt"]), code, says);
    }
}

/// Reading warns in one line, and what is known stays as it was.
fn every_read_warns(desk: &Desk, says: &str) {
    let before = fs::read(desk.at("state/volumes")).unwrap();
    for words in READ {
        let output = with_key(desk, words);
        good(&output);
        assert!(said(&output).contains(says), "{words:?}: {}", said(&output));
    }
    if fuse() {
        let output = desk.run(&["mount", "-i", "key.txt", "-o", "ro", "vol", "mnt"]);
        good(&output);
        desk.unmount();
        assert!(said(&output).contains(says), "{}", said(&output));
    }
    assert_eq!(fs::read(desk.at("state/volumes")).unwrap(), before);
}

fn with_a_file() -> Desk {
    let desk = Desk::new(&[]);
    fs::write(desk.at("in"), "content").unwrap();
    good(&with_key(&desk, &["cp", "--into", "vol", "in", "/"]));
    desk
}

#[test]
fn a_volume_made_for_a_public_recipient_does_not_take_the_place_of_the_own_one() {
    let desk = with_a_file();
    let own = fingerprint(&with_key(&desk, &["key", "list", "vol"]));
    let (victim, mallory) = (recipient(&desk, "key.txt"), recipient(&desk, "mallory.txt"));
    // On the attacker's machine.
    let init = ["fs", "init", "-r", &victim, "-r", &mallory, "evil"];
    good(&desk.command(&init).env("WATTLOCK_STATE_DIR", desk.at("mallory")).output().unwrap());
    put(&desk, "vol", "mine");
    put(&desk, "evil", "vol");
    every_write_is_refused(&desk, 91, "another volume is in its place");
    for words in READ {
        refused(&with_key(&desk, words), 91, &own);
    }
    // A link in its place leads to a path that nothing is known of.
    fs::remove_dir_all(desk.at("vol")).unwrap();
    std::os::unix::fs::symlink("evil", desk.at("vol")).unwrap();
    every_write_is_refused(&desk, 91, "another volume is in its place");
    fs::remove_file(desk.at("vol")).unwrap();
    put(&desk, "evil", "vol");
    // A machine that knows nothing is told by the fingerprint.
    let expect = ["ls", "--expect", &own, "vol"];
    refused(&elsewhere(&desk, &expect), 91, &own);
    if fuse() {
        let mut mount =
            desk.command(&["mount", "-i", "key.txt", "-o", &format!("expect={own}"), "vol", "mnt"]);
        refused(&mount.env("WATTLOCK_STATE_DIR", desk.at("fresh")).output().unwrap(), 91, &own);
    }
    put(&desk, "mine", "vol");
    assert_eq!(good(&elsewhere(&desk, &["ls", "--expect", &own.to_uppercase(), "vol"])), "in\n");
    assert_eq!(desk.run(&["fs", "ls", "--expect", "x", "vol"]).status.code(), Some(2));
    // The user who exchanged them says so, once.
    put(&desk, "evil", "vol");
    good(&with_key(&desk, &["ls", "--accept-changed", "vol"]));
    good(&with_key(&desk, &["cp", "--into", "vol", "in", "/"]));
    put(&desk, "mine", "vol");
    refused(&with_key(&desk, &["ls", "vol"]), 91, &own);
}

#[test]
fn an_older_wattlock_fs_put_back_after_remove_and_rotate_is_refused() {
    let desk = with_a_file();
    let mallory = recipient(&desk, "mallory.txt");
    good(&with_key(&desk, &["key", "add", "-r", &mallory, "--name", "mallory", "vol"]));
    put(&desk, "vol", "before");
    let rotated = with_key(&desk, &["key", "rotate", "--remove", "mallory", "vol"]);
    good(&rotated);
    let shown = said(&rotated);
    assert!(shown.contains("key1") && !shown.contains("mallory"), "{shown}");
    assert_eq!(by(&desk, "mallory.txt", &["ls", "vol"]).status.code(), Some(12));
    put(&desk, "vol", "after");
    put(&desk, "before", "vol");
    every_write_is_refused(&desk, 92, "an older copy of the volume");
    every_read_warns(&desk, "an older copy of the volume");
    assert!(!good(&with_key(&desk, &["key", "list", "vol"])).is_empty());
    // A copy at another path, too: what is known is the volume's.
    put(&desk, "before", "copy");
    refused(&with_key(&desk, &["cp", "--into", "copy", "in", "/in2"]), 92, "an older copy");
    let output = with_key(&desk, &["ls", "copy"]);
    assert!(good(&output) == "in\n" && said(&output).contains("nothing is recorded"));
    // Restored for good.
    good(&with_key(&desk, &["cp", "--into", "--accept-changed", "vol", "in", "/in2"]));
    let again = with_key(&desk, &["cp", "--into", "vol", "in", "/in3"]);
    good(&again);
    assert_eq!(said(&again), "");
    put(&desk, "after", "vol");
    assert_eq!(said(&with_key(&desk, &["ls", "vol"])).lines().count(), 1, "the removed key is named");
    good(&with_key(&desk, &["cp", "--into", "vol", "in", "/in2"]));
}

#[test]
fn a_removed_opener_put_back_between_remove_and_rotate_is_refused() {
    let desk = with_a_file();
    let mallory = recipient(&desk, "mallory.txt");
    good(&with_key(&desk, &["key", "add", "-r", &mallory, "--name", "mallory", "vol"]));
    fs::copy(desk.at("vol/wattlock.fs"), desk.at("before")).unwrap();
    good(&with_key(&desk, &["key", "remove", "vol", "mallory"]));
    fs::copy(desk.at("before"), desk.at("vol/wattlock.fs")).unwrap();
    every_write_is_refused(&desk, 93, "removed keys are back in older settings: mallory");
    every_read_warns(&desk, "removed keys are back in older settings: mallory");
}

#[test]
fn keys_that_a_removed_opener_made_up_are_refused() {
    let desk = with_a_file();
    let mallory = recipient(&desk, "mallory.txt");
    good(&with_key(&desk, &["key", "add", "-r", &mallory, "--name", "mallory", "vol"]));
    put(&desk, "vol", "before");
    good(&with_key(&desk, &["key", "rotate", "--remove", "mallory", "vol"]));
    // It still has the old keys and the secret, and rotates the old copy as often as it likes.
    for _ in 0..3 {
        let rotate = with("mallory.txt", &["key", "rotate", "before"]);
        good(&desk.command(&rotate).env("WATTLOCK_STATE_DIR", desk.at("mallory")).output().unwrap());
    }
    put(&desk, "before", "vol");
    every_write_is_refused(&desk, 93, "that no holder of its keys has made");
    every_read_warns(&desk, "that no holder of its keys has made");
}

#[test]
fn what_another_machine_changed_is_never_refused() {
    let desk = with_a_file();
    good(&elsewhere(&desk, &["ls", "vol"]));
    let other = recipient(&desk, "other.txt");
    // There, here and there again, in turn; whoever comes next is told which keys came and went.
    good(&elsewhere(&desk, &["key", "add", "-r", &other, "--name", "phone", "vol"]));
    let here = with_key(&desk, &["ls", "vol"]);
    assert!(good(&here) == "in\n" && said(&here).contains("key phone, age1"), "{}", said(&here));
    assert_eq!(said(&with_key(&desk, &["ls", "vol"])), "", "once");
    good(&with_key(&desk, &["key", "remove", "vol", "phone"]));
    let there = elsewhere(&desk, &["cp", "--into", "vol", "in", "/in2"]);
    good(&there);
    assert!(said(&there).contains("removed since it was last opened here: key phone"), "{}", said(&there));
    // The same key again, in newer settings.
    good(&elsewhere(&desk, &["key", "add", "-r", &other, "--name", "phone", "vol"]));
    good(&with_key(&desk, &["cp", "--into", "vol", "in", "/in3"]));
    for _ in 0..3 {
        good(&elsewhere(&desk, &["key", "rotate", "vol"]));
    }
    good(&with_key(&desk, &["key", "rotate", "--remove", "phone", "vol"]));
    good(&elsewhere(&desk, &["rm", "--yes", "vol", "in3"]));
    // Both at the same time: the synchroniser keeps either.
    put(&desk, "vol", "theirs");
    for name in ["tablet", "desk"] {
        good(&with_key(&desk, &["key", "add", "-r", &recipient(&desk, name), "--name", name, "vol"]));
    }
    good(&elsewhere(&desk, &["key", "add", "-r", &other, "--name", "watch", "theirs"]));
    put(&desk, "theirs", "vol");
    good(&with_key(&desk, &["cp", "--into", "vol", "in", "/in4"]));
    good(&elsewhere(&desk, &["check", "vol"]));
}

#[test]
fn copies_and_moved_volumes_are_taken_and_new_ones_take_the_place_of_old_ones() {
    let desk = with_a_file();
    let known = |desk: &Desk| fs::read_to_string(desk.at("state/volumes")).unwrap().lines().count() - 1;
    put(&desk, "vol", "a copy");
    good(&with_key(&desk, &["ls", "a copy"]));
    assert_eq!(known(&desk), 1, "a copy that is only read is not recorded");
    good(&with_key(&desk, &["rm", "--yes", "a copy", "in"]));
    assert_eq!(known(&desk), 2);
    good(&with_key(&desk, &["ls", "a copy"]));
    fs::rename(desk.at("vol"), desk.at("moved")).unwrap();
    good(&with_key(&desk, &["cp", "--into", "moved", "in", "/in2"]));
    good(&desk.run(&["fs", "init", "-r", &recipient(&desk, "key.txt"), "vol"]));
    assert_eq!(good(&with_key(&desk, &["ls", "vol"])), "");
    assert_eq!(known(&desk), 3);
}

#[test]
fn a_state_that_cannot_be_kept_is_one_line_and_no_failure() {
    let desk = Desk::new(&[]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&desk.at("state")), mode(&desk.at("state/volumes"))), (0o700, 0o600));
    let fingerprint = fingerprint(&with_key(&desk, &["key", "list", "vol"]));
    let ls = |state: &Path, more: &[&str]| {
        let words = [&["fs", "ls", "-i", "key.txt"], more, &["vol"]].concat();
        let output = desk.command(&words).env("WATTLOCK_STATE_DIR", state).output().unwrap();
        good(&output);
        said(&output)
    };
    // A file in the folder's place, for root, too.
    fs::write(desk.at("file"), "").unwrap();
    fs::create_dir(desk.at("damaged")).unwrap();
    fs::write(desk.at("damaged/volumes"), "wattlock known volumes 1\nx\n").unwrap();
    fs::create_dir(desk.at("open")).unwrap();
    fs::write(desk.at("open/volumes"), "").unwrap();
    fs::set_permissions(desk.at("open/volumes"), fs::Permissions::from_mode(0o666)).unwrap();
    for (state, why) in
        [("file", "directory"), ("damaged", "line 2 is damaged"), ("open", "only this user may write")]
    {
        let said = ls(&desk.at(state), &[]);
        assert!(said.lines().count() == 1 && said.contains(why), "{state}: {said}");
        assert_eq!(ls(&desk.at(state), &["--expect", &fingerprint]), "", "{state}");
    }
    assert_eq!(fs::read(desk.at("damaged/volumes")).unwrap(), b"wattlock known volumes 1\nx\n");
}

#[test]
fn a_program_with_more_rights_than_its_caller_believes_no_variable() {
    if !is_root() || !has("setpriv") {
        return;
    }
    let desk = with_a_file();
    fs::set_permissions(desk.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_wattlock"), desk.at("wattlock")).unwrap();
    std::os::unix::fs::chown(desk.at("wattlock"), Some(1), None).unwrap();
    fs::set_permissions(desk.at("wattlock"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(desk.at("key.txt"), fs::Permissions::from_mode(0o644)).unwrap();
    good(&Command::new("chmod").args(["-R", "a+rX"]).arg(desk.at("vol")).output().unwrap());
    fs::create_dir(desk.at("planted")).unwrap();
    fs::set_permissions(desk.at("planted"), fs::Permissions::from_mode(0o777)).unwrap();
    let planted = desk.at("planted");
    let mut ls = Command::new("setpriv");
    ls.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).arg(desk.at("wattlock"));
    ls.args(["fs", "ls", "-i", "key.txt", "vol"]).current_dir(desk.folder.path());
    ls.env("WATTLOCK_STATE_DIR", &planted).env("XDG_STATE_HOME", &planted).env("HOME", &planted);
    let output = ls.output().unwrap();
    assert_eq!(good(&output), "in\n");
    assert!(said(&output).contains("more rights than its caller"), "{}", said(&output));
    assert_eq!(fs::read_dir(&planted).unwrap().count(), 0);
}

#[test]
fn init_says_what_to_do_next_and_makes_a_key_for_paper() {
    let desk = Desk::new(&[]);
    let own = recipient(&desk, "key.txt");
    let made = desk.run(&["fs", "init", "-r", &own, "--recovery", "new"]);
    let paper = good(&made);
    let folder = desk.at("new").canonicalize().unwrap();
    for word in ["wattlock mount -i KEY.txt", "key1, recovery", "lost", folder.to_str().unwrap()] {
        assert!(said(&made).contains(word), "{word}: {}", said(&made));
    }
    let print = fingerprint(&with_key(&desk, &["key", "list", "new"]));
    assert!(said(&made).contains(&print) && paper.contains(&print));
    // What is on paper opens the volume alone.
    let typed: String = paper.lines().filter(|line| line.starts_with("AGE-SECRET-KEY-1")).collect();
    fs::write(desk.at("typed"), typed).unwrap();
    good(&by(&desk, "typed", &["ls", "new"]));
    fs::write(desk.at("whole"), &paper).unwrap();
    good(&by(&desk, "whole", &["check", "new"]));
    // Into a file: private, never over another one, never beside what it opens.
    good(&desk.run(&["fs", "init", "-r", &own, "--recovery=paper", "second"]));
    assert_eq!(fs::metadata(desk.at("paper")).unwrap().permissions().mode() & 0o777, 0o600);
    good(&by(&desk, "paper", &["ls", "second"]));
    refused(&desk.run(&["fs", "init", "-r", &own, "--recovery=paper", "third"]), 40, "exists");
    refused(&desk.run(&["fs", "init", "-r", &own, "--recovery=third/paper", "third"]), 2, "own folder");
    assert!(!desk.at("third").exists());
    good(&by(&desk, "paper", &["ls", "second"]));
    refused(&desk.run(&["fs", "init", "--recovery", "third"]), 2, "to whom?");
}

#[test]
fn a_key_removed_while_a_rotation_is_interrupted_does_not_know_the_new_key() {
    let desk = with_a_file();
    let mallory = recipient(&desk, "mallory.txt");
    good(&with_key(&desk, &["key", "add", "-r", &mallory, "--name", "mallory", "vol"]));
    let settings = || good(&desk.run(&["open", "-q", "-i", "key.txt", "-o", "-", "vol/wattlock.fs"]));
    let before = settings();
    good(&with_key(&desk, &["key", "rotate", "vol"]));
    let after = settings();
    // As the interrupted one left it: the old key is there, too.
    let old = before.lines().find(|line| line.starts_with("key 1 ")).unwrap();
    fs::write(desk.at("half"), after.replace("\nkey 2 ", &format!("\n{old}\nkey 2 "))).unwrap();
    let own = recipient(&desk, "key.txt");
    good(&desk.run(&["seal", "-q", "-r", &own, "-r", &mallory, "-f", "-o", "vol/wattlock.fs", "half"]));
    good(&with_key(&desk, &["key", "remove", "vol", "mallory"]));
    assert!(settings().contains("\nkey 3 "), "the one that mallory has seals nothing new");
    good(&with_key(&desk, &["key", "rotate", "vol"]));
    let done = settings();
    assert!(done.matches("\nkey ").count() == 1 && done.contains("\nkey 3 "));
    assert_eq!(good(&with_key(&desk, &["cat", "vol", "in"])), "content");
}

#[test]
fn rotate_with_remove_is_one_step_that_refuses_what_it_cannot_do() {
    let desk = with_a_file();
    let before = fs::read(desk.at("vol/wattlock.fs")).unwrap();
    refused(&with_key(&desk, &["key", "rotate", "--remove", "nobody", "vol"]), 2, "no key is called nobody");
    refused(&with_key(&desk, &["key", "rotate", "--remove", "key1", "vol"]), 2, "the only key");
    assert_eq!(fs::read(desk.at("vol/wattlock.fs")).unwrap(), before);
    // A passphrase goes with its locked identity.
    fs::write(desk.at("words"), "correct horse\n").unwrap();
    let add = ["key", "add", "--new-passphrase-file", "words", "--work-factor", "1", "vol"];
    good(&with_key(&desk, &add));
    assert!(desk.at("vol/wattlock.keys/passphrase").exists());
    let rotated = with_key(&desk, &["key", "rotate", "--remove", "passphrase", "vol"]);
    good(&rotated);
    assert!(!desk.at("vol/wattlock.keys/passphrase").exists());
    assert!(said(&rotated).contains(&recipient(&desk, "key.txt")), "{}", said(&rotated));
    good(&with_key(&desk, &["check", "vol"]));
}

/// A volume of which a killed mount left a journal with records, and that journal.
fn with_records() -> Option<(Desk, Vec<u8>)> {
    if !fuse() {
        return None;
    }
    let desk = with_a_file();
    let mounted = desk.mount(&[]);
    let file = fs::File::options().write(true).open(mounted.join("in")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"CON", 0).unwrap();
    file.sync_all().unwrap();
    let journal = fs::read(desk.at("vol/wattlock.journal")).unwrap();
    drop(file);
    desk.kill(desk.process());
    Some((desk, journal))
}

#[test]
fn audit_4_an_older_journal_that_would_change_files_is_refused_where_it_is_known() {
    let Some((desk, older)) = with_records() else { return };
    let content = || good(&with_key(&desk, &["cat", "vol", "/in"]));
    assert_eq!(content(), "CONtent");
    fs::write(desk.at("in"), "another").unwrap();
    good(&with_key(&desk, &["cp", "--into", "--force", "vol", "in", "/"]));
    let journal = desk.at("vol/wattlock.journal");
    let newest = fs::read(&journal).unwrap();
    fs::write(&journal, &older).unwrap();
    fs::write(desk.at("in"), "a third one").unwrap();
    let refuses = "an older wattlock.journal";
    refused(&with_key(&desk, &["cp", "--into", "--force", "vol", "in", "/"]), 94, refuses);
    // Removing starts no journal.
    for words in &WRITE[2..] {
        refused(&with_key(&desk, words), 94, refuses);
    }
    refused(&desk.run(&["mount", "-i", "key.txt", "vol", "mnt"]), 94, refuses);
    for words in [&["check", "vol"][..], &["cat", "vol", "/in"]] {
        let output = with_key(&desk, words);
        assert!(said(&output).contains("an older wattlock.journal"), "{words:?}: {}", said(&output));
    }
    assert_eq!(fs::read(&journal).unwrap(), older, "nothing has changed it");
    // Another machine has no memory of it, and this one takes what its user accepts.
    put(&desk, "vol", "kept");
    good(&elsewhere(&desk, &["check", "--repair", "vol"]));
    put(&desk, "kept", "vol");
    good(&with_key(&desk, &["check", "--repair", "--accept-changed", "vol"]));
    good(&with_key(&desk, &["check", "--repair", "vol"]));
    // From then on the other one is the older.
    assert_ne!(fs::read(&journal).unwrap(), newest);
}

#[test]
fn an_older_journal_that_changes_nothing_is_taken_with_a_line() {
    let desk = with_a_file();
    let journal = desk.at("vol/wattlock.journal");
    let older = fs::read(&journal).unwrap();
    for name in ["a", "b"] {
        fs::write(desk.at(name), name).unwrap();
        good(&with_key(&desk, &["cp", "--into", "vol", name, "/"]));
    }
    fs::write(&journal, &older).unwrap();
    let taken = with_key(&desk, &["check", "--repair", "vol"]);
    good(&taken);
    assert!(said(&taken).contains("it changes nothing"), "{}", said(&taken));
    let next = with_key(&desk, &["check", "--repair", "vol"]);
    good(&next);
    assert!(!said(&next).contains("older"), "{}", said(&next));
}

#[test]
fn journals_of_two_machines_are_never_taken_for_older_ones() {
    let Some((desk, _)) = with_records() else { return };
    let journal = desk.at("vol/wattlock.journal");
    let (mut here, mut there) = (fs::read(&journal).unwrap(), Vec::new());
    // A synchroniser brings either machine's journal, also one that is behind.
    for round in 0..6 {
        fs::write(desk.at("in"), format!("round {round}")).unwrap();
        let words: &[&str] = &["cp", "--into", "--force", "vol", "in", "/"];
        let output = if round % 2 == 0 { with_key(&desk, words) } else { elsewhere(&desk, words) };
        good(&output);
        assert!(!said(&output).contains("older"), "{round}: {}", said(&output));
        let now = fs::read(&journal).unwrap();
        let before = std::mem::replace(if round % 2 == 0 { &mut here } else { &mut there }, now);
        // Each finds what the other left, or what it left itself.
        let brought = if round % 3 == 0 || before.is_empty() { None } else { Some(before) };
        if let Some(brought) = brought.filter(|_| round % 2 == 1) {
            fs::write(&journal, brought).unwrap();
        }
    }
}
