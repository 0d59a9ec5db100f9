//! A user's default key and recipients: used where none is given, told, and refused where others could have had a hand in
//! them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::desk::{Desk, good, skipped};

const IDENTITY: &str = "home/.config/wattlock/identity.txt";
const RECIPIENTS: &str = "home/.config/wattlock/recipients.txt";

/// A desk whose user has a home, and a file to seal.
fn desk() -> Desk {
    let desk = Desk::new(&[]);
    folders(desk.at("home"));
    fs::write(desk.at("note"), "attack at dawn").unwrap();
    desk
}

fn command(desk: &Desk, arguments: &[&str]) -> Command {
    let mut command = desk.command(arguments);
    command.env("HOME", desk.at("home")).env_remove("XDG_CONFIG_HOME");
    command
}

fn run(desk: &Desk, arguments: &[&str]) -> Output {
    command(desk, arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn mode(path: PathBuf, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Makes folders that no other user writes, whatever the umask.
fn folders(path: PathBuf) {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path).unwrap();
}

/// The exit code of a refusal, which said this and left the file sealed.
fn refused(desk: &Desk, words: &[&str], why: &str) -> i32 {
    let output = run(desk, words);
    assert!(said(&output).contains(why), "{words:?}: {}", said(&output));
    assert!(!desk.at("out").exists());
    output.status.code().unwrap()
}

const OPEN: &[&str] = &["open", "-q", "-o", "out", "note.sealed"];

#[test]
fn the_default_key_does_for_every_door_and_each_use_is_told() {
    let desk = desk();
    let made = run(&desk, &["keygen", "--default"]);
    assert!(
        good(&made).is_empty() && said(&made).contains(IDENTITY) && said(&made).contains("Public key: age1")
    );
    for (name, wanted) in [(IDENTITY, 0o600), (RECIPIENTS, 0o600), ("home/.config/wattlock", 0o700)] {
        assert_eq!(fs::metadata(desk.at(name)).unwrap().permissions().mode() & 0o777, wanted, "{name}");
    }
    let told = |words: &[&str], path: &str| {
        let output = run(&desk, words);
        good(&output);
        assert!(said(&output).contains(path), "{words:?}: {}", said(&output));
        output.stdout
    };
    told(&["seal", "-q", "note"], RECIPIENTS);
    told(OPEN, IDENTITY);
    assert_eq!(fs::read(desk.at("out")).unwrap(), b"attack at dawn");
    told(&["fs", "init", "own"], RECIPIENTS);
    told(&["fs", "cp", "--into", "own", "note", "/"], IDENTITY);
    assert_eq!(told(&["fs", "cat", "own", "note"], IDENTITY), b"attack at dawn");
    // The volume is read twice, and the use told once.
    let added = run(
        &desk,
        &["fs", "key", "add", "own", "-r", fs::read_to_string(desk.at(RECIPIENTS)).unwrap().trim()],
    );
    good(&added);
    assert_eq!(said(&added).matches("default key").count(), 1, "{}", said(&added));
    let mut seal = command(&desk, &["stream", "seal"]);
    let sealed = seal.stdin(fs::File::open(desk.at("note")).unwrap()).output().unwrap();
    assert!(said(&sealed).contains(RECIPIENTS), "{}", said(&sealed));
    fs::write(desk.at("stream"), &sealed.stdout).unwrap();
    let mut open = command(&desk, &["stream", "open"]);
    let opened = open.stdin(fs::File::open(desk.at("stream")).unwrap()).output().unwrap();
    assert_eq!((good(&opened).as_str(), said(&opened).contains(IDENTITY)), ("attack at dawn", true));
    // A second key is not made over the first, and a team's list stays.
    let again = run(&desk, &["keygen", "--default"]);
    assert_eq!(again.status.code(), Some(40), "{}", said(&again));
    fs::remove_file(desk.at(IDENTITY)).unwrap();
    let list = fs::read(desk.at(RECIPIENTS)).unwrap();
    assert!(said(&run(&desk, &["keygen", "--default"])).contains("stays as it is"));
    assert_eq!(fs::read(desk.at(RECIPIENTS)).unwrap(), list);
}

/// The command as a shell starts it that lets no file have a byte: the first one that is written kills it.
fn killed_while_it_writes(own: &Command) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 0 && exec \"$0\" \"$@\""]).arg(own.get_program()).args(own.get_args());
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(own.get_current_dir().unwrap()).output().unwrap()
}

#[test]
fn a_key_that_was_not_written_whole_is_none_and_in_nobodys_way() {
    let desk = desk();
    for (words, name) in [
        (&["keygen", "--default"][..], IDENTITY),
        (&["keygen", "-o", "new"], "new"),
        (&["keygen", "-f", "-o", "new"], "new"),
    ] {
        let before = fs::read(desk.at(name)).ok();
        let killed = killed_while_it_writes(&command(&desk, words));
        assert!(!killed.status.success(), "{words:?}");
        assert_eq!(fs::read(desk.at(name)).ok(), before, "{words:?}");
        good(&run(&desk, words));
        let text = fs::read_to_string(desk.at(name)).unwrap();
        assert!(text.contains("AGE-SECRET-KEY-1") && before.is_none_or(|before| before != text.as_bytes()));
        assert_eq!(fs::metadata(desk.at(name)).unwrap().permissions().mode() & 0o777, 0o600, "{words:?}");
    }
    good(&run(&desk, &["seal", "-q", "note"]));
    good(&run(&desk, OPEN));
}

#[test]
fn recipients_that_are_missing_are_those_of_the_key_that_is_there() {
    let desk = desk();
    let made = run(&desk, &["keygen", "--default"]);
    good(&made);
    let (key, list) = (fs::read(desk.at(IDENTITY)).unwrap(), fs::read(desk.at(RECIPIENTS)).unwrap());
    fs::remove_file(desk.at(RECIPIENTS)).unwrap();
    // As after an end between the two.
    let again = run(&desk, &["keygen", "--default"]);
    good(&again);
    let public = |output: &Output| said(output).lines().last().unwrap().to_owned();
    assert!(public(&made).starts_with("Public key: age1"), "{}", said(&made));
    assert_eq!(public(&again), public(&made));
    assert_eq!((fs::read(desk.at(IDENTITY)).unwrap(), fs::read(desk.at(RECIPIENTS)).unwrap()), (key, list));
    assert_eq!(fs::metadata(desk.at(RECIPIENTS)).unwrap().permissions().mode() & 0o777, 0o600);
    good(&run(&desk, &["seal", "-q", "note"]));
    good(&run(&desk, OPEN));
    // A key that does not say its recipient, or that others could have read, is left alone.
    for (text, bits, code) in [("nonsense", 0o600, 40), ("", 0o600, 40), ("nonsense", 0o644, 46)] {
        let _ = fs::remove_file(desk.at(RECIPIENTS));
        fs::write(desk.at(IDENTITY), text).unwrap();
        mode(desk.at(IDENTITY), bits);
        let refused = run(&desk, &["keygen", "--default"]);
        assert_eq!(refused.status.code(), Some(code), "{text} {bits:o}: {}", said(&refused));
        assert!(!desk.at(RECIPIENTS).exists());
        assert_eq!(fs::read_to_string(desk.at(IDENTITY)).unwrap(), text);
    }
}

#[test]
fn a_key_that_is_given_is_the_only_one() {
    let desk = desk();
    good(&run(&desk, &["keygen", "--default"]));
    good(&run(&desk, &["keygen", "-o", "other.txt"]));
    // A broken default shows whether it is looked at.
    fs::write(desk.at(IDENTITY), "nonsense").unwrap();
    fs::write(desk.at(RECIPIENTS), "nonsense").unwrap();
    fs::write(desk.at("words"), "correct horse\n").unwrap();
    let quiet = |words: &[&str]| {
        let output = run(&desk, words);
        good(&output);
        assert!(!said(&output).contains("default"), "{words:?}: {}", said(&output));
    };
    quiet(&["seal", "-q", "-i", "key.txt", "note"]);
    quiet(&["open", "-q", "-i", "key.txt", "-o", "out", "note.sealed"]);
    fs::remove_file(desk.at("out")).unwrap();
    quiet(&["fs", "ls", "-i", "key.txt", "vol"]);
    quiet(&["fs", "init", "--passphrase-file", "words", "--work-factor", "4", "locked"]);
    quiet(&["fs", "ls", "--passphrase-file", "words", "locked"]);
    quiet(&["seal", "-q", "-f", "--format", "age", "--passphrase-file", "words", "note"]);
    quiet(&["open", "-q", "--passphrase-file", "words", "-o", "out", "note.age"]);
    fs::remove_file(desk.at("out")).unwrap();
    // Without one they are errors that name the file, not passed over.
    assert_eq!(refused(&desk, OPEN, IDENTITY), 11);
    assert_eq!(refused(&desk, &["seal", "-q", "-o", "out", "note"], RECIPIENTS), 10);
    fs::write(desk.at(IDENTITY), "").unwrap();
    fs::write(desk.at(RECIPIENTS), "# nobody\n").unwrap();
    assert_eq!(refused(&desk, OPEN, "no identity in the file"), 11);
    assert_eq!(refused(&desk, &["seal", "-q", "-o", "out", "note"], "names no recipient"), 10);
    assert_eq!(refused(&desk, &["fs", "init", "out"], "names no recipient"), 10);
    // Folders and pipes are neither waited for nor read.
    fs::remove_file(desk.at(IDENTITY)).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, desk.at(IDENTITY), rustix::fs::Mode::RUSR).unwrap();
    assert_eq!(refused(&desk, OPEN, "not a regular file"), 41);
    fs::remove_file(desk.at(IDENTITY)).unwrap();
    symlink("nowhere", desk.at(IDENTITY)).unwrap();
    assert_eq!(refused(&desk, OPEN, IDENTITY), 46);
}

#[test]
fn what_others_could_have_read_or_written_is_refused_with_what_to_do() {
    let desk = desk();
    good(&run(&desk, &["keygen", "--default"]));
    good(&run(&desk, &["seal", "-q", "note"]));
    let seal: &[&str] = &["seal", "-q", "-o", "out", "note"];
    // Whatever others may do, what is said to be typed mends it.
    for wrong in [0o644, 0o640, 0o604, 0o620, 0o602, 0o601, 0o610, 0o611, 0o711, 0o777] {
        mode(desk.at(IDENTITY), wrong);
        let why = format!("`chmod go= {}`", desk.at(IDENTITY).display());
        assert_eq!(refused(&desk, OPEN, &why), 46, "{wrong:o}");
        assert_eq!(refused(&desk, &["fs", "ls", "vol"], &why), 46, "{wrong:o}");
        good(&Command::new("chmod").arg("go=").arg(desk.at(IDENTITY)).output().unwrap());
        good(&run(&desk, OPEN));
        fs::remove_file(desk.at("out")).unwrap();
    }
    mode(desk.at(IDENTITY), 0o400);
    good(&run(&desk, OPEN));
    fs::remove_file(desk.at("out")).unwrap();
    for wrong in [0o664, 0o646] {
        mode(desk.at(RECIPIENTS), wrong);
        assert_eq!(refused(&desk, seal, "chmod go-w "), 46);
    }
    mode(desk.at(RECIPIENTS), 0o644);
    // Who writes any folder on the way puts another in the place of the next one.
    for folder in ["home/.config/wattlock", "home/.config", "home"] {
        for wrong in [0o777, 0o775, 0o757, 0o1777] {
            mode(desk.at(folder), wrong);
            let why = format!("{}: others may write it: `chmod go-w ", desk.at(folder).display());
            assert_eq!(refused(&desk, OPEN, &why), 46, "{folder} {wrong:o}");
            assert_eq!(refused(&desk, seal, &why), 46, "{folder} {wrong:o}");
            assert_eq!(refused(&desk, &["keygen", "--default"], &why), 46, "{folder} {wrong:o}");
        }
        mode(desk.at(folder), 0o755);
    }
    // A link is what it leads to.
    fs::rename(desk.at(IDENTITY), desk.at("home/secret")).unwrap();
    symlink(desk.at("home/secret"), desk.at(IDENTITY)).unwrap();
    mode(desk.at("home/secret"), 0o600);
    good(&run(&desk, OPEN));
    fs::remove_file(desk.at("out")).unwrap();
    mode(desk.at("home/secret"), 0o644);
    assert_eq!(refused(&desk, OPEN, "chmod go= "), 46);
}

#[test]
fn a_link_on_the_way_is_judged_by_every_folder_that_it_leads_through_and_the_real_path_is_told() {
    let desk = desk();
    good(&run(&desk, &["keygen", "--default"]));
    good(&run(&desk, &["seal", "-q", "note"]));
    let opened = |real: &str| {
        let output = run(&desk, OPEN);
        good(&output);
        let told = format!("default key {}\n", desk.at(real).display());
        assert!(said(&output).contains(&told), "{told}{}", said(&output));
        fs::remove_file(desk.at("out")).unwrap();
    };
    let folder = "home/.config/wattlock";
    opened(IDENTITY);
    // Dotfiles in the home, and outside of it; by absolute links and by relative ones.
    folders(desk.at("home/dots/deep"));
    fs::rename(desk.at(folder), desk.at("home/dots/deep/wattlock")).unwrap();
    symlink("../dots/deep/wattlock", desk.at(folder)).unwrap();
    opened("home/dots/deep/wattlock/identity.txt");
    for (wrong, name) in
        [(0o777, "home/dots/deep/wattlock"), (0o775, "home/dots/deep"), (0o1777, "home/dots")]
    {
        mode(desk.at(name), wrong);
        let why = format!("{}: others may write it", desk.at(name).display());
        assert_eq!(refused(&desk, OPEN, &why), 46);
        mode(desk.at(name), 0o755);
    }
    // The folder that the link is in is on the way as well.
    mode(desk.at("home/.config"), 0o777);
    assert_eq!(refused(&desk, OPEN, "others may write it"), 46);
    mode(desk.at("home/.config"), 0o755);
    folders(desk.at("out-there/deep"));
    fs::rename(desk.at("home/dots/deep/wattlock"), desk.at("out-there/deep/wattlock")).unwrap();
    for target in [PathBuf::from("../../out-there/deep/wattlock"), desk.at("out-there/deep/wattlock")] {
        fs::remove_file(desk.at(folder)).unwrap();
        symlink(target, desk.at(folder)).unwrap();
        opened("out-there/deep/wattlock/identity.txt");
        mode(desk.at("out-there"), 0o777);
        let why = format!("{}: others may write it", desk.at("out-there").display());
        assert_eq!(refused(&desk, OPEN, &why), 46);
        mode(desk.at("out-there"), 0o755);
    }
    // In a sticky one others take nothing away.
    mode(desk.at("out-there"), 0o1777);
    opened("out-there/deep/wattlock/identity.txt");
    // `keygen --default` writes there, too, through what was judged.
    fs::remove_file(desk.at("out-there/deep/wattlock/identity.txt")).unwrap();
    let made = run(&desk, &["keygen", "--default"]);
    good(&made);
    assert!(said(&made).contains(&*desk.at("out-there/deep/wattlock/identity.txt").to_string_lossy()));
    // A link of another user's leads where that user wants.
    let link = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    let user = Some(rustix::fs::Uid::from_raw(12_345));
    if rustix::fs::chownat(rustix::fs::CWD, desk.at(folder), user, None, link).is_err() {
        return skipped("only root gives links away");
    }
    assert_eq!(refused(&desk, OPEN, "user 12345 owns it"), 46);
    fs::remove_file(desk.at(folder)).unwrap();
    symlink("../dots/deep", desk.at(folder)).unwrap();
    chown(desk.at("home/dots"), Some(12_345), None).unwrap();
    assert_eq!(refused(&desk, &["keygen", "--default"], "user 12345 owns it"), 46);
    assert!(!desk.at("home/dots/deep/identity.txt").exists());
}

#[test]
fn a_link_that_leads_nowhere_is_told_wherever_it_is_and_what_is_absent_is_passed_over() {
    for (name, target) in [
        ("home/.config", "nowhere"),
        ("home/.config/wattlock", "nowhere"),
        ("home/.config/wattlock", "/no/such/folder"),
        ("home/.config/wattlock", "wattlock"),
        (IDENTITY, "nowhere"),
    ] {
        let desk = desk();
        good(&run(&desk, &["seal", "-q", "-i", "key.txt", "note"]));
        folders(desk.at(name).parent().unwrap().to_owned());
        symlink(target, desk.at(name)).unwrap();
        let why = desk.at(name).display().to_string();
        assert_eq!(refused(&desk, OPEN, &why), 46, "{name} -> {target}");
        assert_ne!(run(&desk, &["keygen", "--default"]).status.code(), Some(0), "{name} -> {target}");
    }
    // What is not there is nobody's mistake, whoever may write beside it.
    let desk = desk();
    good(&run(&desk, &["seal", "-q", "-i", "key.txt", "note"]));
    folders(desk.at("home/dots"));
    symlink("dots", desk.at("home/.config")).unwrap();
    assert_eq!(refused(&desk, OPEN, "no key given"), 12);
    folders(desk.at("home/dots/wattlock"));
    mode(desk.at("home/dots/wattlock"), 0o777);
    assert_eq!(refused(&desk, OPEN, "no key given"), 12);
}

#[test]
fn another_users_key_and_home_are_not_used() {
    let desk = desk();
    good(&run(&desk, &["keygen", "--default"]));
    good(&run(&desk, &["seal", "-q", "note"]));
    if chown(desk.at(IDENTITY), Some(12_345), None).is_err() {
        return skipped("only root gives files away");
    }
    assert_eq!(refused(&desk, OPEN, "user 12345 owns it"), 46);
    chown(desk.at(RECIPIENTS), Some(12_345), None).unwrap();
    assert_eq!(refused(&desk, &["seal", "-q", "-o", "out", "note"], "user 12345 owns it"), 46);
    // As after `sudo` with HOME kept: the owner of the home decides, not that of the file.
    chown(desk.at(IDENTITY), Some(0), None).unwrap();
    chown(desk.at("home"), Some(12_345), None).unwrap();
    assert_eq!(refused(&desk, OPEN, "is not used: "), 12);
    assert_eq!(refused(&desk, &["seal", "-q", "-o", "out", "note"], "to whom?"), 2);
    assert_eq!(refused(&desk, &["keygen", "--default"], "give -o FILE"), 2);
    // XDG_CONFIG_HOME is judged alike, and a relative one is none.
    let mut open = command(&desk, OPEN);
    let output = open.env("XDG_CONFIG_HOME", desk.at("home/.config")).output().unwrap();
    good(&output);
    fs::remove_file(desk.at("out")).unwrap();
    let mut open = command(&desk, OPEN);
    assert_eq!(open.env("XDG_CONFIG_HOME", "home/.config").output().unwrap().status.code(), Some(12));
}

#[test]
fn without_a_default_key_the_message_says_where_one_would_be() {
    let desk = desk();
    good(&run(&desk, &["seal", "-q", "-i", "key.txt", "note"]));
    assert_eq!(refused(&desk, OPEN, "no key given: -i FILE"), 12);
    assert_eq!(refused(&desk, OPEN, IDENTITY), 12);
    assert_eq!(refused(&desk, &["fs", "ls", "vol"], IDENTITY), 2);
    assert_eq!(refused(&desk, &["stream", "open"], IDENTITY), 12);
    // What a message names is an option of that command.
    for words in [OPEN, &["stream", "open"]] {
        let told = said(&run(&desk, words));
        let options = told.split([' ', ',']).filter(|word| word.starts_with('-'));
        let (command, _) = words.split_at(if words[0] == "stream" { 2 } else { 1 });
        let help = good(&run(&desk, &[command, &["--help"]].concat()));
        for option in options {
            assert!(help.split([' ', ',', '\n']).any(|word| word == option), "{command:?}: {option}: {told}");
        }
    }
    assert_eq!(refused(&desk, &["seal", "note"], "keygen --default"), 2);
    // Neither does an environment without a home have one.
    let mut open = command(&desk, OPEN);
    assert_eq!(open.env_remove("HOME").output().unwrap().status.code(), Some(12));
}

#[test]
fn a_volume_that_the_default_key_does_not_open_may_have_a_passphrase() {
    let desk = desk();
    good(&run(&desk, &["keygen", "--default"]));
    let wrong = run(&desk, &["fs", "ls", "vol"]);
    assert_eq!(wrong.status.code(), Some(12), "{}", said(&wrong));
    fs::write(desk.at("words"), "correct horse\n").unwrap();
    good(&run(&desk, &["fs", "init", "--passphrase-file", "words", "--work-factor", "4", "locked"]));
    // There is no terminal here to ask at: `setsid` has none.
    let mut ls = Command::new("setsid");
    ls.arg("-w")
        .arg(env!("CARGO_BIN_EXE_wattlock"))
        .args(["fs", "ls", "locked"])
        .current_dir(desk.folder.path());
    ls.env("HOME", desk.at("home")).env_remove("XDG_CONFIG_HOME").env("WATTLOCK_STATE_DIR", desk.at("state"));
    let asked = ls.stdin(Stdio::null()).output().unwrap();
    assert_eq!(asked.status.code(), Some(15), "{}", said(&asked));
}

#[test]
fn mount_of_fstab_never_takes_the_default_key() {
    if !crate::desk::fuse() {
        return;
    }
    let desk = desk();
    good(&run(&desk, &["keygen", "--default"]));
    good(&run(&desk, &["fs", "init", "own"]));
    symlink(env!("CARGO_BIN_EXE_wattlock"), desk.at("mount.wattlock")).unwrap();
    let mut mount = Command::new(desk.at("mount.wattlock"));
    mount.args(["own", "mnt", "-o", "rw"]).current_dir(desk.folder.path()).env("HOME", desk.at("home"));
    mount.env("WATTLOCK_STATE_DIR", desk.at("state")).env_remove("XDG_CONFIG_HOME").stdin(Stdio::null());
    let output = mount.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("no passphrase"), "{}", said(&output));
}
