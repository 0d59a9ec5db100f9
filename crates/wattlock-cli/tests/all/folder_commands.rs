//! `wattlock fs cp`, `rm` and `check --repair`, by what is there afterwards.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::desk::{Desk, fuse, good, has, refused, skipped};

const NAMES: [&str; 3] = ["folder", "deterministic", "plain"];
const EVERYTHING: &str = include_str!("everything.py");
const NOBODY: u32 = 65534;

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A command of this program, as it is typed, with the key behind the words of the command.
pub fn fs_command(desk: &Desk, words: &[&str]) -> Output {
    desk.run(&[&["fs", words[0], "-i", "key.txt"], &words[1..]].concat())
}

/// As another user if `user` says so.
fn run(desk: &Desk, user: bool, program: &str, words: &[&str]) -> Output {
    let id = NOBODY.to_string();
    // A version manager's may be closed to others.
    let program = if program == "python3" && Path::new("/usr/bin/python3").exists() {
        "/usr/bin/python3"
    } else {
        program
    };
    let mut command = match user {
        true => Command::new("setpriv"),
        false => Command::new(program),
    };
    if user {
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--", program]);
    }
    command.args(words).current_dir(desk.folder.path()).stdin(Stdio::null());
    command.env("WATTLOCK_PROFILE", desk.at("profile.json")).env("WATTLOCK_TELEMETRY_DIR", desk.at("t"));
    command.env("WATTLOCK_STATE_DIR", desk.at(if user { "state of a user" } else { "state" }));
    command.output().unwrap()
}

/// A folder that an ordinary user may use, with the program in it.
fn opened(desk: &Desk) {
    fs::set_permissions(desk.folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(desk.at("key.txt"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_wattlock"), desk.at("wattlock")).unwrap();
    fs::write(desk.at("everything.py"), EVERYTHING).unwrap();
}

/// Every backing entry below a folder.
pub fn stored(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // What a command that runs has renamed meanwhile is passed over.
        let Ok(about) = path.symlink_metadata() else { continue };
        if about.is_dir() {
            all.extend(stored(&path));
        }
        all.push(path);
    }
    all.sort();
    all
}

/// The backing file of the only file with so many bytes of content; copies in conflict do not count.
fn backing(desk: &Desk, len: u64) -> PathBuf {
    let chunks = len / 4096 + 1;
    let wanted = 96 + len + chunks * 40;
    let is_it = |path: &PathBuf| {
        !path.to_string_lossy().contains(' ')
            && path.symlink_metadata().is_ok_and(|meta| meta.len() == wanted)
    };
    let found: Vec<PathBuf> = stored(&desk.at("vol")).into_iter().filter(is_it).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

/// Everything goes in and comes out, and nothing is copied twice.
fn both_ways(names: &str, user: bool) {
    let desk = Desk::new(&[]);
    opened(&desk);
    let run = |program: &str, words: &[&str]| run(&desk, user, program, words);
    let key = fs::read_to_string(desk.at("key.txt")).unwrap();
    let recipient = key.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
    good(&run("./wattlock", &["fs", "init", "--names", names, "-r", recipient, "v"]));
    good(&run("mkdir", &["in"]));
    let made = run("python3", &["everything.py", "make", "in"]);
    good(&made);
    let walk = |folder: &str, more: &[&str]| {
        good(&run("python3", &[&["everything.py", "walk", folder], more].concat()))
    };
    let original = walk("in", &["atime"]);
    assert!(original.lines().count() > 20, "{original}");
    let copy =
        |words: &[&str]| run("./wattlock", &[&["fs", "cp", "-r", "-T", "-i", "key.txt"], words].concat());
    let count = |output: &Output| good(output).trim().to_owned();
    let files = original.lines().filter(|line| !line.contains(" 0o4")).count();
    assert_eq!(count(&copy(&["--into", "v", "in", "/in"])), format!("{files} copied, 0 skipped, 0 refused"));
    assert_eq!(count(&copy(&["v", "in", "out"])), format!("{files} copied, 0 skipped, 0 refused"));
    assert_eq!(walk("out", &["atime"]), original, "{names}, user {user}: {}", said(&made));
    for again in [&["--into", "v", "in", "/in"][..], &["v", "in", "out"]] {
        assert_eq!(count(&copy(again)), format!("0 copied, {files} skipped, 0 refused"));
    }
    good(&run("./wattlock", &["fs", "check", "-i", "key.txt", "v"]));
    // `cp -a` agrees, and so does a mount.
    good(&run("cp", &["-a", "in", "reference"]));
    assert_eq!(walk("reference", &[]), walk("out", &[]));
    if !user && fuse() {
        good(&run("./wattlock", &["mount", "-i", "key.txt", "v", "mnt"]));
        let mounted = walk("mnt/in", &[]);
        good(&run("cp", &["-a", "mnt/in", "from-mount"]));
        good(&run("./wattlock", &["umount", "mnt"]));
        assert_eq!(mounted, walk("out", &[]), "{names}");
        assert_eq!(walk("from-mount", &[]), mounted);
    }
}

#[test]
fn a_copy_in_and_out_keeps_what_cp_keeps() {
    if !has("python3") {
        return;
    }
    for names in NAMES {
        both_ways(names, false);
    }
}

#[test]
fn an_ordinary_users_copy_keeps_what_cp_keeps() {
    if !is_root() || !has("setpriv") || !has("python3") {
        return skipped("becoming an ordinary user takes root, setpriv and python3");
    }
    for names in NAMES {
        both_ways(names, true);
    }
}

#[test]
fn what_an_ordinary_user_may_not_keep_is_told_and_no_program_changes_its_owner() {
    if !is_root() || !has("setpriv") || !has("python3") {
        return skipped("becoming an ordinary user takes root, setpriv and python3");
    }
    let desk = Desk::new(&[]);
    opened(&desk);
    fs::create_dir(desk.at("in")).unwrap();
    fs::write(desk.at("in/setid"), "x").unwrap();
    fs::set_permissions(desk.at("in/setid"), fs::Permissions::from_mode(0o4755)).unwrap();
    let null = Command::new("mknod").arg(desk.at("in/null")).args(["c", "1", "3"]).output().unwrap();
    if !null.status.success() {
        return skipped("needs the right to make devices");
    }
    good(&fs_command(&desk, &["cp", "--into", "-r", "vol", "in", "/"]));
    Command::new("chown")
        .args(["-R", "65534:65534", "vol"])
        .current_dir(desk.folder.path())
        .status()
        .unwrap();
    // The backing file is root's, as what root put into it was.
    std::os::unix::fs::chown(backing(&desk, 1), Some(0), Some(0)).unwrap();
    let output = run(&desk, true, "./wattlock", &["fs", "cp", "-r", "-i", "key.txt", "vol", "in", "out"]);
    let lines = said(&output);
    assert_eq!(code(&output), 46, "{lines}");
    assert!(lines.contains("out/null: making a device, pipe or socket: this user may not"), "{lines}");
    assert!(lines.contains("owner not kept (1 in all)"), "{lines}");
    let meta = fs::metadata(desk.at("out/setid")).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (NOBODY, 0o755));
}

/// Copies until the second file is being written, then sends a signal.
fn interrupted(
    desk: &Desk,
    words: &[&str],
    signal: rustix::process::Signal,
    begun: &dyn Fn() -> bool,
) -> i32 {
    let mut command = desk.command(&[&["fs", "cp", "-r", "-T", "-i", "key.txt"], words].concat());
    let mut copying = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let (start, pid) = (Instant::now(), rustix::process::Pid::from_raw(copying.id().cast_signed()).unwrap());
    while !begun() {
        assert!(start.elapsed() < Duration::from_secs(60) && copying.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    rustix::process::kill_process(pid, signal).unwrap();
    copying.wait().unwrap().code().unwrap_or(-1)
}

const FIVE: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Five files of 60 million bytes.
fn five_files(desk: &Desk) -> Vec<u8> {
    let content: Vec<u8> = (0..60_000_000_u32).map(|n| (n >> 5) as u8).collect();
    fs::create_dir(desk.at("in")).unwrap();
    for name in FIVE {
        fs::write(desk.at("in").join(name), &content).unwrap();
    }
    content
}

const SIGNALS: [(rustix::process::Signal, i32); 2] =
    [(rustix::process::Signal::INT, 130), (rustix::process::Signal::KILL, -1)];

#[test]
fn a_copy_into_a_volume_that_was_interrupted_goes_on_and_nothing_unfinished_looks_complete() {
    let desk = Desk::new(&[]);
    five_files(&desk);
    for (signal, ends) in SIGNALS {
        let volume = format!("v{ends}");
        let copied = Command::new("cp").args(["-a", "vol", &volume]).current_dir(desk.folder.path()).status();
        assert!(copied.unwrap().success());
        // The first file has its name, another one is being written.
        let second = || {
            let large =
                |path: &&PathBuf| path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() > 1 << 20);
            stored(&desk.at(&volume)).iter().filter(large).count() >= 2
        };
        assert_eq!(interrupted(&desk, &["--into", &volume, "in", "/in"], signal, &second), ends);
        let listed = good(&fs_command(&desk, &["ls", "-l", &volume, "/in"]));
        let whole = |line: &str| line.contains(".wattlock-") || line.contains(" 60000000 ");
        assert!(listed.lines().all(whole), "{listed}");
        if signal == rustix::process::Signal::INT {
            assert!(!listed.contains(".wattlock-"), "{listed}");
        }
        let again = good(&fs_command(&desk, &["cp", "--into", "-r", "-T", &volume, "in", "/in"]));
        assert!(!again.starts_with("5 ") && again.ends_with("0 refused\n"), "{again}");
        assert_eq!(good(&fs_command(&desk, &["ls", &volume, "/in"])), "a\nb\nc\nd\ne\n");
        good(&fs_command(&desk, &["check", &volume]));
        fs::remove_dir_all(desk.at(&volume)).unwrap();
    }
}

#[test]
fn a_copy_out_of_a_volume_that_was_interrupted_goes_on_and_nothing_unfinished_looks_complete() {
    let desk = Desk::new(&[]);
    let content = five_files(&desk);
    good(&fs_command(&desk, &["cp", "--into", "-r", "vol", "in", "/"]));
    for (signal, ends) in SIGNALS {
        let out = format!("out{ends}");
        let folder = desk.at(&out);
        let hidden = || {
            let names = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
            names.into_iter().any(|name| name.to_string_lossy().starts_with(".wattlock-"))
        };
        let second = || folder.join("a").exists() && hidden();
        assert_eq!(interrupted(&desk, &["vol", "in", &out], signal, &second), ends);
        assert_eq!(hidden(), signal == rustix::process::Signal::KILL);
        for name in FIVE {
            let len = fs::metadata(folder.join(name)).map(|meta| meta.len());
            assert!(len.is_err() || len.is_ok_and(|len| len == content.len() as u64), "{name}");
        }
        let again = good(&fs_command(&desk, &["cp", "-r", "-T", "vol", "in", &out]));
        assert!(!again.starts_with("5 ") && again.ends_with("0 refused\n"), "{again}");
        assert!(!hidden());
        for name in FIVE {
            assert!(fs::read(folder.join(name)).unwrap() == content, "{name}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn one_bad_file_stops_no_other_and_a_second_run_takes_nothing_that_is_another() {
    let desk = Desk::new(&[]);
    fs::create_dir_all(desk.at("in/d")).unwrap();
    for (name, len) in [("a", 100), ("bad", 200), ("d/z", 300)] {
        fs::write(desk.at("in").join(name), vec![b'x'; len]).unwrap();
    }
    good(&fs_command(&desk, &["cp", "--into", "-r", "vol", "in", "/"]));
    fs::OpenOptions::new().write(true).open(backing(&desk, 200)).unwrap().set_len(50).unwrap();
    let output = fs_command(&desk, &["cp", "-r", "-T", "vol", "in", "out"]);
    assert_eq!(code(&output), 83, "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2 copied, 0 skipped, 1 refused\n");
    assert!(said(&output).starts_with("wattlock: in/bad: damaged: "), "{}", said(&output));
    assert!(!desk.at("out/bad").exists() && desk.at("out/d/z").exists());
    // What has changed since, or is another kind of thing, is not replaced.
    fs::write(desk.at("out/a"), "mine").unwrap();
    fs::create_dir(desk.at("out/bad")).unwrap();
    let output = fs_command(&desk, &["cp", "-r", "-T", "vol", "in", "out"]);
    assert_eq!(code(&output), 40, "{}", said(&output));
    assert!(said(&output).contains("out/a exists (replacing it needs --force)"), "{}", said(&output));
    assert_eq!(fs::read(desk.at("out/a")).unwrap(), b"mine");
    // With --force, and then a folder stays a folder.
    let output = fs_command(&desk, &["cp", "-r", "-f", "-T", "vol", "in", "out"]);
    assert_eq!(code(&output), 41, "{}", said(&output));
    assert!(said(&output).contains("out/bad is a folder"), "{}", said(&output));
    assert_eq!(fs::read(desk.at("out/a")).unwrap(), [b'x'; 100]);
    assert!(desk.at("out/bad").is_dir());
    // A damaged file is replaced by the command, even one whose size and time look right.
    let healthy = fs::read(backing(&desk, 300)).unwrap();
    fs::write(backing(&desk, 300), [&healthy[..60], &[healthy[60] ^ 1], &healthy[61..]].concat()).unwrap();
    assert_eq!(code(&fs_command(&desk, &["cp", "--into", "vol", "in/bad", "in"])), 40);
    good(&fs_command(&desk, &["cp", "--into", "-f", "vol", "in/bad", "in"]));
    good(&fs_command(&desk, &["cp", "--into", "-f", "vol", "in/d/z", "in/d"]));
    good(&fs_command(&desk, &["check", "vol"]));
    assert_eq!(good(&fs_command(&desk, &["cat", "vol", "in/bad"])), "x".repeat(200));
}

#[test]
fn a_folder_with_anything_else_in_it_keeps_its_own_mode() {
    let desk = Desk::new(&[]);
    fs::write(desk.at("f"), "x").unwrap();
    good(&fs_command(&desk, &["cp", "--into", "vol", "f", "/"]));
    let mode = |name: &str| fs::metadata(desk.at(name)).unwrap().mode() & 0o7777;
    for (name, foreign, wanted) in [("mixed", true, 0o1777), ("own", false, 0o700)] {
        fs::create_dir(desk.at(name)).unwrap();
        fs::set_permissions(desk.at(name), fs::Permissions::from_mode(0o1777)).unwrap();
        if foreign {
            fs::write(desk.at(name).join("other"), "").unwrap();
        }
        good(&fs_command(&desk, &["cp", "-r", "vol", "/", name]));
        assert_eq!(mode(name), wanted, "{name}");
    }
    good(&fs_command(&desk, &["cp", "-r", "vol", "/", "new"]));
    assert_eq!(mode("new"), 0o700);
}

#[test]
fn a_volume_is_copied_neither_into_itself_nor_over_itself() {
    let desk = Desk::new(&[]);
    fs::create_dir(desk.at("in")).unwrap();
    fs::write(desk.at("in/f"), "x").unwrap();
    fs::rename(desk.at("vol"), desk.at("in/vol")).unwrap();
    symlink("in/vol", desk.at("vol")).unwrap();
    let output = fs_command(&desk, &["cp", "--into", "-r", "vol", "in", "/"]);
    assert_eq!(code(&output), 2, "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1 copied, 0 skipped, 1 refused\n");
    let before = stored(&desk.at("in/vol"));
    for to in ["vol", "in/vol/new", "vol/in"] {
        refused(&fs_command(&desk, &["cp", "-r", "vol", "in", to]), 2, "in clear do not belong there");
    }
    assert_eq!(stored(&desk.at("in/vol")), before);
    // Nor into another volume's folder, which is not that volume.
    let key = fs::read_to_string(desk.at("key.txt")).unwrap();
    let recipient = key.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
    good(&desk.run(&["fs", "init", "-r", recipient, "other"]));
    refused(&fs_command(&desk, &["cp", "-r", "vol", "/", "other"]), 2, "in clear do not belong there");
}

/// A volume with files, links and folders, one conflicting copy, and names that are none of its own.
fn crowded(names: &str) -> Desk {
    let desk = Desk::new(&["--names", names]);
    fs::create_dir_all(desk.at("in/d/e")).unwrap();
    fs::create_dir(desk.at("outside")).unwrap();
    fs::write(desk.at("outside/precious"), "precious").unwrap();
    for (name, len) in [("f", 100), ("d/g", 200), ("d/e/h", 300)] {
        fs::write(desk.at("in").join(name), vec![b'x'; len]).unwrap();
    }
    fs::write(desk.at("in/d").join("n".repeat(250)), "long").unwrap();
    symlink(desk.at("outside"), desk.at("in/link")).unwrap();
    good(&fs_command(&desk, &["cp", "--into", "-r", "vol", "in", "/"]));
    let file = backing(&desk, 100);
    let copy = format!("{} (conflicted copy)", file.file_name().unwrap().to_str().unwrap());
    fs::copy(&file, file.with_file_name(copy)).unwrap();
    desk
}

#[test]
fn files_are_removed_by_the_names_that_a_listing_shows() {
    for names in NAMES {
        let desk = crowded(names);
        let rm = |words: &[&str]| fs_command(&desk, &[&["rm"], words].concat());
        let ls = |path: &str| good(&fs_command(&desk, &["ls", "vol", path]));
        // In a volume of plain names the storage chooses all of them.
        let copy = if names == "plain" { "f (conflicted copy)" } else { "f [conflict (conflicted copy)]" };
        assert_eq!(ls("in"), format!("d\nf\n{copy}\nlink\n"), "{names}");
        // What is not agreed to, not there, or a folder, stays.
        let unasked = run(
            &desk,
            false,
            "setsid",
            &["-w", env!("CARGO_BIN_EXE_wattlock"), "fs", "rm", "-i", "key.txt", "vol", "in/f"],
        );
        assert!(said(&unasked).contains("nothing removed: nobody answered; --yes"), "{}", said(&unasked));
        refused(&rm(&["-y", "vol", "in/none"]), 42, "in/none does not exist");
        refused(&rm(&["-y", "vol", "in/d"]), 2, "is a folder: give -r");
        refused(&rm(&["-y", "-r", "vol", "/"]), 2, "own folder");
        refused(&rm(&["-y", "-r", "vol", "in/../in"]), 2, "no ..");
        assert_eq!(ls("in").lines().count(), 4);
        // A copy in conflict, by the name that is shown, and not the file beside it; one bad path stops no other.
        good(&rm(&["-y", "vol", &format!("in/{copy}")]));
        assert_eq!(code(&rm(&["-y", "vol", "in/none", "in/link"])), 42);
        assert_eq!(ls("in"), "d\nf\n", "{names}");
        assert!(desk.at("outside/precious").exists());
        // A damaged file.
        fs::write(backing(&desk, 100), "rubbish").unwrap();
        good(&rm(&["-y", "vol", "in/f"]));
        good(&fs_command(&desk, &["check", "vol"]));
        // A folder, with a link in it that leads out, and long names.
        let folder = backing(&desk, 300);
        symlink(desk.at("outside"), folder.with_file_name("planted")).unwrap();
        good(&rm(&["-y", "-r", "vol", "in/d"]));
        assert_eq!(ls("in"), "", "{names}");
        assert!(desk.at("outside/precious").exists());
        good(&fs_command(&desk, &["check", "vol"]));
        let left = stored(&desk.at("vol"));
        let ours = |path: &&PathBuf| !path.file_name().unwrap().to_string_lossy().starts_with("wattlock.");
        assert_eq!(left.iter().filter(ours).count(), 1, "{left:?}");
    }
}

#[test]
fn audit_10_a_suffix_of_the_storages_is_marked_in_every_command() {
    let desk = crowded("folder");
    let file = backing(&desk, 100);
    fs::copy(&file, format!("{} .desktop", file.to_str().unwrap())).unwrap();
    const SHOWN: &str = "in/f [conflict .desktop]";
    let ls = || good(&fs_command(&desk, &["ls", "vol", "in"]));
    assert_eq!(ls(), "d\nf\nf [conflict (conflicted copy)]\nf [conflict .desktop]\nlink\n");
    assert_eq!(good(&fs_command(&desk, &["cat", "vol", SHOWN])), "x".repeat(100));
    assert_eq!(code(&fs_command(&desk, &["cat", "vol", "in/f .desktop"])), 42);
    good(&fs_command(&desk, &["cp", "-r", "vol", "in", "out"]));
    assert!(desk.at("out").join(&SHOWN[3..]).exists() || desk.at("out").join(SHOWN).exists());
    fs::write(format!("{} .desktop", file.to_str().unwrap()), "rubbish").unwrap();
    let checked = fs_command(&desk, &["check", "vol"]);
    assert!(String::from_utf8_lossy(&checked.stdout).contains(&format!("damaged: {SHOWN}: ")));
    good(&fs_command(&desk, &["rm", "-y", "vol", SHOWN]));
    assert_eq!(ls().lines().count(), 4);
    good(&fs_command(&desk, &["check", "vol"]));
}

/// A folder that two machines made while apart, as a synchronising program merges it: one record has a copy's name.
fn merged(desk: &Desk, record: &str) -> PathBuf {
    let mut copied = Command::new("cp");
    assert!(copied.arg("-a").args([desk.at("vol"), desk.at("away")]).status().unwrap().success());
    for (volume, own) in [("vol", "ours"), ("away", "theirs")] {
        let folder = desk.at(volume).with_extension("in");
        fs::create_dir_all(folder.join("Example")).unwrap();
        for name in [own, "common"] {
            fs::write(folder.join("Example").join(name), format!("{name} of {volume}")).unwrap();
        }
        let folder = folder.join("Example");
        good(&fs_command(desk, &["cp", "--into", "-r", volume, folder.to_str().unwrap(), "/"]));
    }
    let inside = |volume: &str| {
        let records = stored(&desk.at(volume)).into_iter().filter(|path| path.ends_with("wattlock.dir"));
        records.map(|path| path.parent().unwrap().to_owned()).find(|path| *path != desk.at(volume)).unwrap()
    };
    let (here, there) = (inside("vol"), inside("away"));
    assert_eq!(here.file_name(), there.file_name(), "the folder has one name");
    for path in stored(&there) {
        let name = path.file_name().unwrap().to_str().unwrap();
        fs::rename(&path, here.join(if name == "wattlock.dir" { record } else { name })).unwrap();
    }
    here
}

#[test]
fn b7_what_two_machines_put_into_one_folder_is_listed_read_checked_and_removed() {
    let desk = Desk::new(&[]);
    let inside = merged(&desk, "wattlock.sync-conflict-20261127-010203-ABCDEFG.dir");
    const OTHER: &str = "common [conflict .sync-conflict-20261127-010203-ABCDEFG]";
    let cat = |name: &str| good(&fs_command(&desk, &["cat", "vol", &format!("Example/{name}")]));
    let ls = || good(&fs_command(&desk, &["ls", "vol", "Example"]));
    let check = |words: &[&str]| fs_command(&desk, &[&["check"], words].concat());
    let contents = || {
        assert_eq!(ls(), format!("common\n{OTHER}\nours\ntheirs\n"));
        assert_eq!([cat("common"), cat(OTHER)], ["common of vol", "common of away"]);
        assert_eq!([cat("ours"), cat("theirs")], ["ours of vol", "theirs of away"]);
    };
    contents();
    for words in [&["vol"][..], &["--repair", "vol"]] {
        let said = good(&check(words));
        assert!(said.contains("two machines made this folder; 2 names open by this record only"), "{said}");
    }
    contents();
    good(&desk.run(&["fs", "key", "rotate", "-i", "key.txt", "vol"]));
    contents();
    // The record is lost: the copy is read, said to be, and put in its place.
    for lost in [Some("<placeholder>"), Some(""), None] {
        let record = inside.join("wattlock.dir");
        fs::copy(&record, inside.join("wattlock.dir.mine")).unwrap();
        match lost {
            Some(lost) => fs::write(&record, lost).unwrap(),
            None => fs::remove_file(&record).unwrap(),
        }
        assert_eq!(ls().lines().count(), 4);
        let said = check(&["vol"]);
        assert_eq!(code(&said), 83);
        assert!(String::from_utf8_lossy(&said.stdout).contains("Example: folder record: "));
        assert_eq!(code(&check(&["--repair", "vol"])), 86);
        good(&check(&["vol"]));
        assert_eq!(ls().lines().count(), 4);
    }
    let names = ls();
    let names: Vec<&str> = names.lines().collect();
    for name in &names[1..] {
        good(&fs_command(&desk, &["rm", "-y", "vol", &format!("Example/{name}")]));
    }
    assert_eq!(ls().lines().collect::<Vec<_>>(), [names[0]]);
    good(&fs_command(&desk, &["rm", "-y", "-r", "vol", "Example"]));
    assert!(!inside.exists());
    good(&check(&["vol"]));
}

#[test]
fn b7_the_volumes_own_folder_is_read_by_a_copy_of_its_record() {
    let desk = crowded("folder");
    let record = desk.at("vol/wattlock.dir");
    fs::copy(&record, desk.at("vol/wattlock (conflicted copy).dir")).unwrap();
    fs::write(&record, "").unwrap();
    assert_eq!(good(&fs_command(&desk, &["ls", "vol"])), "in\n");
    let said = fs_command(&desk, &["check", "vol"]);
    assert_eq!(code(&said), 83);
    assert!(String::from_utf8_lossy(&said.stdout).contains("the volume's folder: folder record: "));
    assert_eq!(code(&fs_command(&desk, &["check", "--repair", "vol"])), 86);
    assert_eq!(fs::read(&record).unwrap(), fs::read(desk.at("vol/wattlock (conflicted copy).dir")).unwrap());
    good(&fs_command(&desk, &["check", "vol"]));
}

#[test]
fn what_has_lost_its_name_or_its_record_is_removed() {
    let desk = crowded("folder");
    let rm = |words: &[&str]| fs_command(&desk, &[&["rm", "-y"], words].concat());
    // A name that no key opens: by what the listing says of it.
    let file = backing(&desk, 100);
    fs::rename(&file, file.with_file_name("AAAA")).unwrap();
    let listed = fs_command(&desk, &["ls", "vol", "in"]);
    assert!(said(&listed).contains("AAAA"), "{}", said(&listed));
    good(&rm(&["vol", "in/AAAA"]));
    assert!(!said(&fs_command(&desk, &["ls", "vol", "in"])).contains("AAAA"));
    // A folder whose record is gone, and one whose record is rubbish that is too long.
    let inner = backing(&desk, 300).with_file_name("wattlock.dir");
    fs::remove_file(&inner).unwrap();
    good(&rm(&["-r", "vol", "in/d/e"]));
    let record = backing(&desk, 200).with_file_name("wattlock.dir");
    fs::write(&record, vec![7; 10_000]).unwrap();
    good(&rm(&["-r", "vol", "in/d"]));
    good(&fs_command(&desk, &["check", "vol"]));
}

#[test]
fn a_mounted_volumes_files_are_removed_through_the_mount_only() {
    if !fuse() {
        return;
    }
    let desk = crowded("folder");
    desk.mount(&[]);
    refused(&fs_command(&desk, &["rm", "-y", "vol", "in/f"]), 84, "in use");
    assert!(desk.at("mnt/in/f").exists());
    desk.unmount();
}

/// Runs a shell script in a mount namespace of its own; says whether there is such a thing.
pub fn apart(desk: &Desk, script: &str) -> Option<Output> {
    if !is_root() || !has("unshare") {
        skipped("mounting takes root and unshare");
        return None;
    }
    let mut command = Command::new("unshare");
    let line = format!("set -e; mount --make-rprivate /; {script}");
    command.args(["--mount", "sh", "-c", &line]).current_dir(desk.folder.path()).stdin(Stdio::null());
    command.env("W", env!("CARGO_BIN_EXE_wattlock")).env("WATTLOCK_PROFILE", desk.at("profile.json"));
    command.env("WATTLOCK_STATE_DIR", desk.at("state"));
    Some(command.env("WATTLOCK_TELEMETRY_DIR", desk.at("telemetry")).output().unwrap())
}

#[test]
fn files_are_removed_on_a_full_disk_and_a_copy_goes_on_when_there_is_room() {
    let desk = Desk::new(&[]);
    fs::write(desk.at("big"), vec![b'b'; 12 << 20]).unwrap();
    fs::create_dir(desk.at("in")).unwrap();
    fs::write(desk.at("in/a"), "a").unwrap();
    fs::write(desk.at("in/b"), vec![b'c'; 12 << 20]).unwrap();
    let script = r#"
        mkdir disk; mount -t tmpfs -o size=16M none disk; cp -a vol disk/v
        $W fs cp --into -i key.txt disk/v big / 2>&1
        dd if=/dev/zero of=disk/fill bs=4k 2>/dev/null || true
        test $(df --output=avail disk | tail -1) = 0
        $W fs rm -y -i key.txt disk/v big
        test $(df --output=avail disk | tail -1) -gt 11000
        $W fs cp -r --into -i key.txt disk/v in / 2>&1 || test $? = 43
        rm disk/fill
        $W fs cp -r --into -i key.txt disk/v in /
        $W fs check -i key.txt disk/v
    "#;
    let Some(output) = apart(&desk, script) else { return };
    let text = good(&output);
    assert!(text.contains("0 damaged"), "{text}");
    assert!(
        text.contains("1 copied, 1 skipped, 0 refused") || text.contains("2 copied, 0 skipped, 0 refused"),
        "{text}"
    );
}

#[test]
fn the_top_folders_record_is_renewed_if_the_keys_are_the_folders() {
    let desk = crowded("folder");
    let record = desk.at("vol/wattlock.dir");
    let repair = || fs_command(&desk, &["check", "--repair", "vol"]);
    for lost in [None, Some(Vec::new()), Some(vec![7; 5000])] {
        let whole = fs::read(&record).unwrap();
        match &lost {
            Some(bytes) => fs::write(&record, bytes).unwrap(),
            None => fs::remove_file(&record).unwrap(),
        }
        for words in [&["ls", "vol"][..], &["cp", "-r", "vol", "/", "out"], &["check", "vol"]] {
            refused(&fs_command(&desk, words), 83, "the volume's own folder: ");
        }
        let mount = desk.run(&["mount", "-i", "key.txt", "vol", "mnt"]);
        if fuse() {
            refused(&mount, 83, "`wattlock fs check --repair` gives it a new one");
        }
        // The keys of another volume open nothing here.
        let key = fs::read_to_string(desk.at("key.txt")).unwrap();
        let recipient = key.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
        good(&desk.run(&["fs", "init", "-r", recipient, "other"]));
        let own = fs::read(desk.at("vol/wattlock.fs")).unwrap();
        let journal = fs::read(desk.at("vol/wattlock.journal")).unwrap();
        fs::remove_file(desk.at("vol/wattlock.journal")).unwrap();
        fs::copy(desk.at("other/wattlock.fs"), desk.at("vol/wattlock.fs")).unwrap();
        let before = stored(&desk.at("vol"));
        refused(&repair(), 91, "another volume is in its place");
        // Nor on a machine that does not know better.
        let mut fresh = desk.command(&["fs", "check", "--repair", "-i", "key.txt", "vol"]);
        let fresh = fresh.env("WATTLOCK_STATE_DIR", desk.at("fresh"));
        refused(&fresh.output().unwrap(), 83, "wattlock.fs may be another volume's");
        fs::remove_dir_all(desk.at("fresh")).unwrap();
        let after: Vec<PathBuf> = stored(&desk.at("vol"));
        assert!(before.iter().all(|path| after.contains(path)));
        fs::write(desk.at("vol/wattlock.fs"), own).unwrap();
        fs::write(desk.at("vol/wattlock.journal"), journal).unwrap();
        fs::remove_dir_all(desk.at("other")).unwrap();
        let repaired = repair();
        assert_eq!(code(&repaired), 86, "{}{}", String::from_utf8_lossy(&repaired.stdout), said(&repaired));
        good(&fs_command(&desk, &["check", "vol"]));
        let name = good(&fs_command(&desk, &["ls", "vol"]));
        assert!(name.starts_with("lost-") && name.lines().count() == 1, "{name}");
        assert_eq!(good(&fs_command(&desk, &["cat", "vol", &format!("{}/f", name.trim())])), "x".repeat(100));
        assert_ne!(fs::read(&record).unwrap(), whole);
    }
}

#[test]
fn an_error_of_the_system_says_what_it_is_about_and_what_it_means() {
    if !is_root() || !has("setpriv") {
        return skipped("becoming an ordinary user takes root and setpriv");
    }
    let desk = Desk::new(&[]);
    opened(&desk);
    let user = |words: &[&str]| run(&desk, true, "./wattlock", words);
    for words in [
        &["fs", "ls", "-i", "key.txt", "vol"][..],
        &["fs", "cat", "-i", "key.txt", "vol", "f"],
        &["fs", "check", "-i", "key.txt", "vol"],
        &["fs", "rm", "-y", "-i", "key.txt", "vol", "f"],
        &["fs", "key", "list", "-i", "key.txt", "vol"],
    ] {
        refused(&user(words), 46, "vol: opening the volume's folder: this user may not (permission denied)");
    }
    fs::write(desk.at("f"), "x").unwrap();
    good(&fs_command(&desk, &["cp", "--into", "vol", "f", "/"]));
    fs::set_permissions(desk.at("vol"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(desk.at("vol/wattlock.fs"), fs::Permissions::from_mode(0o644)).unwrap();
    refused(
        &user(&["fs", "rm", "-y", "-i", "key.txt", "vol", "f"]),
        46,
        "vol: locking the volume: this user may not",
    );
    Command::new("chown").args(["-R", "65534", "vol"]).current_dir(desk.folder.path()).status().unwrap();
    fs::create_dir(desk.at("closed")).unwrap();
    let output = user(&["fs", "cp", "-i", "key.txt", "vol", "f", "closed"]);
    refused(&output, 46, "closed/f: making a file: this user may not (permission denied)");
}

/// Another user owns the folder that is copied to, and puts their own files where the hidden names are.
#[test]
fn a_copy_out_gives_nothing_of_another_users_an_owner_or_a_mode() {
    if !is_root() || !has("setpriv") || !has("python3") {
        return skipped("becoming an ordinary user takes root, setpriv and python3");
    }
    let desk = Desk::new(&[]);
    opened(&desk);
    fs::create_dir(desk.at("in")).unwrap();
    for n in 0..200 {
        let path = desk.at(&format!("in/{n}"));
        match n % 4 {
            0 => fs::create_dir(&path).unwrap(),
            1 => drop(Command::new("mkfifo").arg(&path).status().unwrap()),
            _ => fs::write(&path, "root's").unwrap(),
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    }
    good(&fs_command(&desk, &["cp", "--into", "-r", "vol", "in", "/"]));
    fs::create_dir(desk.at("out")).unwrap();
    fs::create_dir(desk.at("out/in")).unwrap();
    for folder in ["out", "out/in"] {
        std::os::unix::fs::chown(desk.at(folder), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    fs::write(desk.at("attack.py"), ATTACK).unwrap();
    let mut attack = Command::new("setpriv");
    let id = NOBODY.to_string();
    attack.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--", "/usr/bin/python3", "attack.py"]);
    let mut attack = attack.current_dir(desk.folder.path()).spawn().unwrap();
    let output = fs_command(&desk, &["cp", "-r", "-T", "vol", "in", "out/in"]);
    fs::write(desk.at("stop"), "").unwrap();
    attack.wait().unwrap();
    assert!(matches!(code(&output), 0 | 40..=46), "{}", said(&output));
    for path in stored(&desk.at("out")) {
        let meta = path.symlink_metadata().unwrap();
        if meta.is_file() && meta.mode() & 0o6000 != 0 {
            assert_eq!((meta.uid(), fs::read(&path).unwrap()), (0, b"root's".to_vec()), "{path:?}");
        }
    }
}

const ATTACK: &str = r#"
import os
os.chdir("out/in")
for n in range(3000000):
    if n % 50 == 0 and os.path.exists("../../stop"): break
    for name in os.listdir("."):
        if not name.startswith(".wattlock-"): continue
        try:
            with open("mine", "w") as f: f.write("theirs")
            os.rename("mine", name)
        except OSError: pass
"#;

/// Modes, owners, times and contents of all that is in a folder, and its own.
fn snapshot(folder: &Path) -> Vec<String> {
    let mut paths = stored(folder);
    paths.push(folder.to_owned());
    let line = |path: &PathBuf| {
        let meta = path.symlink_metadata().unwrap();
        let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
        let content = if meta.is_file() { fs::read(path).unwrap() } else { Vec::new() };
        format!("{path:?} {:o} {} {times:?} {content:?}", meta.mode(), meta.uid())
    };
    paths.iter().map(line).collect()
}

#[test]
fn commands_that_read_change_nothing_in_a_volumes_folder() {
    if !fuse() {
        return;
    }
    let desk = crowded("folder");
    let mounted = desk.mount(&[]);
    fs::write(mounted.join("in/f"), vec![b'y'; 5000]).unwrap();
    fs::File::open(mounted.join("in/f")).unwrap().sync_all().unwrap();
    desk.kill(desk.process());
    let folder = backing(&desk, 200).parent().unwrap().to_owned();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o500)).unwrap();
    let before = snapshot(&desk.at("vol"));
    for words in [&["check"][..], &["ls", "-l"], &["cat"], &["cp", "-r", "-T"]] {
        let more: &[&str] = match words[0] {
            "check" => &["vol"],
            "ls" => &["vol", "in"],
            "cat" => &["vol", "in/f"],
            _ => &["vol", "in", "out"],
        };
        good(&fs_command(&desk, &[words, more].concat()));
        assert_eq!(snapshot(&desk.at("vol")), before, "{words:?}");
    }
    assert_eq!(fs::read(desk.at("out/f")).unwrap(), vec![b'y'; 5000]);
    let script = r#"
        mkdir ro; mount --bind vol ro; mount -o remount,bind,ro ro
        $W fs check -i key.txt ro; $W fs ls -i key.txt ro in; $W fs cp -r -T -i key.txt ro in out-ro
        for more in "-o ro" ""; do
            $W mount $more -i key.txt ro mnt; cmp mnt/in/f out/f; ! touch mnt/x 2>/dev/null; $W umount mnt
        done
    "#;
    if let Some(output) = apart(&desk, script) {
        good(&output);
        assert!(said(&output).contains("mounted read-only"), "{}", said(&output));
    }
    assert_eq!(snapshot(&desk.at("vol")), before);
}
