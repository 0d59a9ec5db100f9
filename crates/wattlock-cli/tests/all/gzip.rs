//! `wattlock gzip` as a person or a script meets it: names, what stays and what goes, exit codes; and a card that fails.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use wattlock_core::samples;

use crate::built;

struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Desk {
        Desk(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, program: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
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
        self.command(built::program_for(arguments), &[&["gzip"], arguments].concat()).output().unwrap()
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
        |arguments: &[&str]| desk.command(built::program_for(arguments), arguments).output().unwrap();
    let key = wattlock(&["keygen", "-o", "key.txt"]);
    let recipient = String::from_utf8_lossy(&key.stderr).trim().rsplit(' ').next().unwrap().to_owned();
    let card = ["--emulate", "card", "--policy", "qweb"];
    let sealing = ["seal", "-q", "--stats", "--gzip", "-r", &recipient, "page"];
    let sealed = wattlock(&[&card[..], &sealing].concat());
    let said = String::from_utf8_lossy(&sealed.stderr).into_owned();
    assert!(sealed.status.success() && said.contains("emulated"), "{said}");
}

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// What gzip keeps of a file, taken from gzip itself.
#[test]
fn owner_group_mode_and_times_are_what_gzip_leaves() {
    let desk = Desk::new();
    let modes = [0o644, 0o664, 0o660, 0o640, 0o777, 0o600, 0o444, 0o1644];
    for (number, mode) in modes.into_iter().enumerate() {
        let make = |name: &str| {
            fs::write(desk.at(name), b"content\n").unwrap();
            if is_root() {
                std::os::unix::fs::chown(desk.at(name), Some(1000 + number as u32), Some(4)).unwrap();
            }
            fs::set_permissions(desk.at(name), fs::Permissions::from_mode(mode)).unwrap();
            let mut touch = Command::new("touch");
            touch.args(["-d", "2020-01-01 00:00:00.123456789"]).arg(desk.at(name));
            assert!(touch.status().unwrap().success());
        };
        let kept = |name: &str| {
            let meta = fs::metadata(desk.at(name)).unwrap();
            (meta.uid(), meta.gid(), meta.mode(), meta.mtime(), meta.mtime_nsec())
        };
        make("ours");
        make("theirs");
        assert_eq!(desk.code(&["-f", "ours"]), 0);
        assert!(desk.command("gzip", &["-f", "theirs"]).status().unwrap().success());
        assert_eq!(kept("ours.gz"), kept("theirs.gz"), "{mode:o}");
        assert_eq!(desk.code(&["-d", "ours.gz"]), 0);
        assert!(desk.command("gzip", &["-d", "theirs.gz"]).status().unwrap().success());
        assert_eq!(kept("ours"), kept("theirs"), "{mode:o}");
        for name in ["ours", "theirs"] {
            fs::remove_file(desk.at(name)).unwrap();
        }
    }
}

#[test]
fn an_access_control_list_goes_with_the_content() {
    let desk = Desk::new();
    fs::write(desk.at("a"), b"content").unwrap();
    // acl(5)'s stored form: version 2; owner rw, user 1001 r, group none, mask r, others none.
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let list = [
        2u32.to_le_bytes().to_vec(),
        entry(1, 6, none),
        entry(2, 4, 1001),
        entry(4, 0, none),
        entry(16, 4, none),
        entry(32, 0, none),
    ]
    .concat();
    let attribute = "system.posix_acl_access";
    if rustix::fs::setxattr(desk.at("a"), attribute, &list, rustix::fs::XattrFlags::empty()).is_err() {
        println!("skipped: no access control lists on this file system");
        return;
    }
    assert_eq!(desk.code(&["a"]), 0);
    let mut found = vec![0; 256];
    let len = rustix::fs::getxattr(desk.at("a.gz"), attribute, &mut found[..]).unwrap();
    assert_eq!(found[..len], list);
    assert_eq!(fs::metadata(desk.at("a.gz")).unwrap().mode() & 0o777, 0o640);
}

/// Every sort of name that is no plain file, in the place of the input and of the output, with and without `-f`.
#[test]
fn what_is_no_plain_file_is_neither_read_nor_removed_nor_written_through() {
    let desk = Desk::new();
    let make = |kind: &str, name: &str| {
        let path = desk.at(name);
        match kind {
            "pipe" => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
            "socket" => drop(std::os::unix::net::UnixListener::bind(&path).unwrap()),
            "folder" => fs::create_dir(&path).unwrap(),
            "set-id" => {
                fs::write(&path, "x").unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
            }
            _ => {
                fs::write(desk.at("precious"), "precious").unwrap();
                std::os::unix::fs::symlink("precious", &path).unwrap();
            }
        }
    };
    let identity = |name: &str| fs::symlink_metadata(desk.at(name)).map(|meta| meta.ino()).ok();
    let remove = |name: &str| {
        let _ = fs::remove_file(desk.at(name)).or_else(|_| fs::remove_dir(desk.at(name)));
    };
    for kind in ["pipe", "socket", "folder", "set-id", "link"] {
        for options in [&[][..], &["-f"], &["-k"], &["-d"], &["-d", "-f"]] {
            if kind == "link" && options.contains(&"-f") {
                continue;
            }
            let name = if options.contains(&"-d") { "in.gz" } else { "in" };
            make(kind, name);
            let before = identity(name);
            let code = desk.code(&[options, &[name]].concat());
            assert!(code == 41 || code == 2, "{kind} {options:?}: {code}");
            assert_eq!(identity(name), before, "{kind} {options:?}");
            remove(name);
            remove("precious");
        }
        if kind == "set-id" {
            continue;
        }
        for options in [&[][..], &["-f"]] {
            make(kind, "out.gz");
            fs::write(desk.at("out"), "new").unwrap();
            let code = desk.code(&[options, &["out"]].concat());
            match (kind, options.is_empty()) {
                ("link", false) => {
                    assert_eq!((code, desk.gunzip("out.gz")), (0, b"new".to_vec()));
                    assert!(fs::symlink_metadata(desk.at("out.gz")).unwrap().is_file());
                    assert_eq!(fs::read(desk.at("precious")).unwrap(), b"precious");
                }
                ("link", true) => assert_eq!(code, 40),
                _ => assert_eq!(code, 41, "{kind} {options:?}"),
            }
            let there = fs::symlink_metadata(desk.at("out.gz")).unwrap().file_type();
            assert_eq!(there.is_fifo(), kind == "pipe");
            ["out", "out.gz", "precious"].into_iter().for_each(remove);
        }
    }
    assert!(desk.names().is_empty(), "{:?}", desk.names());
}

#[test]
fn many_files_get_to_the_disk_together_and_each_result_takes_its_files_place() {
    let desk = Desk::new();
    let names: Vec<String> = (0..300).map(|number| format!("f{number}")).collect();
    for name in &names {
        fs::write(desk.at(name), name).unwrap();
    }
    // One result has no place: its file stays, and the others are done.
    fs::write(desk.at("f7.gz"), "taken").unwrap();
    let arguments: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(desk.code(&arguments), 40);
    for name in &names {
        let kept = name == "f7";
        assert_eq!(desk.at(name).exists(), kept, "{name}");
        assert!(kept || desk.gunzip(&format!("{name}.gz")) == name.as_bytes());
    }
    assert_eq!(fs::read(desk.at("f7.gz")).unwrap(), b"taken");
    // Few descriptors make smaller batches, no failure.
    let script = format!("ulimit -n 40; exec {} gzip -d *.gz", env!("CARGO_BIN_EXE_wattlock"));
    fs::remove_file(desk.at("f7.gz")).unwrap();
    let output = desk.command("sh", &["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(names.iter().all(|name| fs::read(desk.at(name)).unwrap() == name.as_bytes()));
}

#[test]
fn a_disk_with_room_for_one_result_is_enough_for_many_files() {
    let desk = Desk::new();
    let room = desk.at("room");
    fs::create_dir(&room).unwrap();
    let mut mount = desk.command("mount", &["-t", "tmpfs", "-o", "size=4m", "none", "room"]);
    if !mount.output().is_ok_and(|output| output.status.success()) {
        println!("skipped: mounting a small file system takes privileges that are not here");
        return;
    }
    // Three MiB of files that do not get smaller.
    let names: Vec<String> = (0..60).map(|number| format!("room/f{number}")).collect();
    for (seed, name) in names.iter().enumerate() {
        fs::write(desk.at(name), samples::noise(seed as u64 + 1, 50_000)).unwrap();
    }
    let output = desk.gzip(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let results = names.iter().filter(|name| desk.at(&format!("{name}.gz")).exists()).count();
    let left = names.iter().filter(|name| desk.at(name).exists()).count();
    let unmounted = desk.command("umount", &["room"]).status().unwrap().success();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((results, left, unmounted), (60, 0, true));
}

#[test]
fn a_kill_leaves_no_part_of_a_result() {
    let desk = Desk::new();
    assert!(Command::new("truncate").args(["-s", "3G"]).arg(desk.at("long")).status().unwrap().success());
    let mut child = desk.command(env!("CARGO_BIN_EXE_wattlock"), &["gzip", "-9", "long"]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(400));
    let ended = child.try_wait().unwrap().is_some();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!ended, "the file must take longer than the wait");
    let left = desk.names();
    let nameless = rustix::fs::open(
        desk.0.path(),
        rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR,
        rustix::fs::Mode::RUSR,
    );
    if nameless.is_ok() {
        assert_eq!(left, ["long"]);
    }
}

/// `-t`, `-l`, `-v`, `-r`, `-S`, `-N`: output and names are gzip's.
#[test]
fn gzips_other_options_do_what_gzip_does() {
    let (ours, theirs) = (Desk::new(), Desk::new());
    let odd = std::ffi::OsStr::from_bytes(b"n\xff");
    for desk in [&ours, &theirs] {
        fs::create_dir_all(desk.at("r/x")).unwrap();
        for name in ["a", "-x", "r/1", "r/x/2"] {
            fs::write(desk.at(name), samples::text(3, 4000)).unwrap();
        }
        fs::write(desk.0.path().join(odd), "odd").unwrap();
        fs::write(desk.at("two.gz"), "").unwrap();
        let mut two = Vec::new();
        for _ in 0..2 {
            two.extend(desk.command("gzip", &["-nc", "a"]).output().unwrap().stdout);
        }
        fs::write(desk.at("one.gz"), &two[..two.len() / 2]).unwrap();
        fs::write(desk.at("two.gz"), two).unwrap();
        fs::write(desk.at("bad.gz"), "no gzip file").unwrap();
    }
    let tree = |desk: &Desk| {
        let mut found =
            desk.command("find", &[".", "-not", "-name", "*.json", "-not", "-path", "./telemetry*"]);
        let listed = found.output().unwrap().stdout;
        let mut lines: Vec<Vec<u8>> = listed.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        lines.sort();
        lines
    };
    for arguments in [
        &["-k", "a"][..],
        &["-t", "a.gz", "two.gz"],
        &["-t", "bad.gz"],
        &["-l", "one.gz"],
        &["-ql", "one.gz", "one.gz"],
        &["--", "-x"],
        &["-r", "r"],
        &["-dr", "r"],
        &["-S", ".foo", "a"],
        &["-d", "-S", ".foo", "a.foo"],
        &["-f", "a"],
        &["-1", "-9", "-dN", "a.gz"],
        &["--best", "--fast", "-vk", "r/1"],
    ] {
        let mine = ours.gzip(arguments);
        let gzips = theirs.command("gzip", arguments).output().unwrap();
        assert_eq!(mine.status.success(), gzips.status.success(), "{arguments:?}");
        assert_eq!(
            String::from_utf8_lossy(&mine.stdout),
            String::from_utf8_lossy(&gzips.stdout),
            "{arguments:?}"
        );
        assert_eq!(tree(&ours), tree(&theirs), "{arguments:?}");
    }
    let level = |arguments: &[&str]| ours.gzip(&[&["-c"], arguments, &["a"]].concat()).stdout[8];
    assert_eq!((level(&["-1", "-9"]), level(&["-9", "-1"]), level(&["-9", "-6", "-6"])), (2, 4, 0));
    assert_eq!(ours.code(&["--rsyncable", "-k", "a"]), 2);
}

#[test]
fn a_name_in_a_file_leads_into_no_other_folder() {
    let desk = Desk::new();
    let member = |name: &[u8]| {
        let plain = desk.command("gzip", &["-nc", "empty"]).output().unwrap().stdout;
        let mut named = plain[..10].to_vec();
        named[3] = 8;
        [&named[..], name, b"\0", &plain[10..]].concat()
    };
    fs::write(desk.at("empty"), "").unwrap();
    fs::create_dir(desk.at("in")).unwrap();
    for (inside, result) in
        [(&b"../up"[..], "in/up"), (b"/etc/x", "in/x"), (b"..", "in/f"), (b"a/", "in/f"), (b"", "in/f")]
    {
        fs::write(desk.at("in/f.gz"), member(inside)).unwrap();
        assert_eq!(desk.code(&["-dN", "in/f.gz"]), 0);
        assert!(desk.at(result).is_file(), "{inside:?}");
        fs::remove_file(desk.at(result)).unwrap();
    }
    assert_eq!(fs::read_dir(desk.at("in")).unwrap().count(), 0);
}

#[test]
fn files_whose_length_is_a_guess_are_read_to_their_end() {
    let desk = Desk::new();
    let read = |file: &str| (fs::read(file), fs::metadata(file).map(|meta| meta.len()));
    for file in ["/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/profiling", "/proc/version"] {
        let (Ok(content), Ok(_)) = read(file) else { continue };
        let output = desk.gzip(&["-c", file]);
        assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
        fs::write(desk.at("r.gz"), output.stdout).unwrap();
        assert!(desk.gunzip("r.gz") == content, "{file}");
    }
}

/// Replaced by another file, or appended to, while it is compressed: the former content's result does not appear.
#[test]
fn a_file_that_changes_while_it_is_compressed_stays_alone() {
    for replaced in [true, false] {
        let desk = Desk::new();
        assert!(Command::new("truncate").args(["-s", "1G"]).arg(desk.at("long")).status().unwrap().success());
        let mut compressing = desk.command(env!("CARGO_BIN_EXE_wattlock"), &["gzip", "-9", "long"]);
        let mut child = compressing.stderr(Stdio::null()).spawn().unwrap();
        let open = || {
            let held = fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
            held.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == desk.at("long")))
        };
        while !open() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        if replaced {
            fs::write(desk.at("new"), "other").unwrap();
            fs::rename(desk.at("new"), desk.at("long")).unwrap();
        } else {
            fs::File::options().append(true).open(desk.at("long")).unwrap().write_all(b"more").unwrap();
        }
        assert_eq!(child.wait().unwrap().code(), Some(45));
        assert_eq!(desk.names(), ["long"]);
        let expected = if replaced { 5 } else { (1 << 30) + 4 };
        assert_eq!(fs::metadata(desk.at("long")).unwrap().len(), expected);
    }
}
