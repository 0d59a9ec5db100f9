//! Stored bytes that were altered, seen through a mount: EIO for what is damaged and nothing else, a log line that names
//! it, and `fs check` that finds it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write as _};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::desk::{Desk, fuse, good, has};

const CHUNK: usize = 4096;
const EIO: i32 = 5;

fn slot(at: usize) -> usize {
    96 + at * (CHUNK + 40)
}

/// Ten chunks and a bit.
fn content(salt: u8) -> Vec<u8> {
    (0..10 * CHUNK + 77).map(|at| (at / 7) as u8 ^ (at >> 8) as u8 ^ salt).collect()
}

/// What is in the volume: path and content.
fn files() -> Vec<(String, Vec<u8>)> {
    vec![
        ("f".into(), content(1)),
        ("g".into(), content(2)),
        ("d/h".into(), content(3)[..5000].to_vec()),
        (format!("d/{}", "l".repeat(200)), b"of the long name".to_vec()),
        ("e/i".into(), b"in e".to_vec()),
    ]
}

/// A volume, a copy of it as it was, and where each name is stored.
struct Volume {
    desk: Desk,
    stored: Vec<(String, PathBuf)>,
}

impl Volume {
    fn new() -> Volume {
        let desk = Desk::new(&[]);
        let mounted = desk.mount(&[]);
        fs::create_dir(mounted.join("d")).unwrap();
        fs::create_dir(mounted.join("e")).unwrap();
        for (name, content) in files() {
            fs::write(mounted.join(name), content).unwrap();
        }
        std::os::unix::fs::symlink("f", mounted.join("s")).unwrap();
        let attribute =
            rustix::fs::setxattr(mounted.join("g"), "user.colour", b"blue", rustix::fs::XattrFlags::empty());
        attribute.unwrap();
        // A mount shows the inodes of the volume's folder.
        let mut names: Vec<String> = files().into_iter().map(|(name, _)| name).collect();
        names.extend(["d", "e", "s"].map(String::from));
        let inode = |path: &Path| path.symlink_metadata().unwrap().ino();
        let mut stored = Vec::new();
        for name in names {
            let wanted = inode(&mounted.join(&name));
            let mut folders = vec![desk.at("vol")];
            while let Some(folder) = folders.pop() {
                for entry in fs::read_dir(folder).unwrap() {
                    let path = entry.unwrap().path();
                    if inode(&path) == wanted {
                        stored
                            .push((name.clone(), path.strip_prefix(desk.folder.path()).unwrap().to_owned()));
                    }
                    if path.symlink_metadata().unwrap().is_dir() {
                        folders.push(path);
                    }
                }
            }
        }
        desk.unmount();
        let volume = Volume { desk, stored };
        volume.copy("vol", "kept");
        volume
    }

    fn copy(&self, from: &str, to: &str) {
        let _ = fs::remove_dir_all(self.desk.at(to));
        let mut command = Command::new("cp");
        good(&command.args(["-a", from, to]).current_dir(self.desk.folder.path()).output().unwrap());
    }

    fn stored(&self, name: &str) -> PathBuf {
        let (_, path) = self.stored.iter().find(|(known, _)| known == name).unwrap();
        self.desk.folder.path().join(path)
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.stored(name)).unwrap()
    }

    /// Damages a fresh copy, looks at all of it through a mount, and compares what is not as it was with what is
    /// expected. A line of the log has `logged` and the stored name of `damaged`: the log shows no name in clear.
    /// The check says as many lines, each with one of `checked`, and no others: of damage, or of a newer program's work.
    fn case(
        &self,
        what: &str,
        damage: impl FnOnce(&Volume),
        wanted: &[&str],
        logged: [&str; 2],
        checked: &[&str],
    ) {
        self.copy("kept", "vol");
        damage(self);
        let log = self.desk.at("log");
        let mut server = self.desk.command(&["mount", "--foreground", "-i", "key.txt", "vol", "mnt"]);
        let mut server = server.stderr(Stdio::from(fs::File::create(&log).unwrap())).spawn().unwrap();
        let begun = Instant::now();
        while !self.desk.run(&["fs", "status", "mnt"]).status.success() {
            let said = fs::read_to_string(&log).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {said}");
            assert!(server.try_wait().unwrap().is_none(), "{what}: {said}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let found = self.look();
        self.desk.unmount();
        assert!(server.wait().unwrap().success());
        let mut said = String::new();
        fs::File::open(&log).unwrap().read_to_string(&mut said).unwrap();
        let wanted: BTreeSet<String> = wanted.iter().map(|one| one.to_string()).collect();
        assert_eq!(found, wanted, "{what}: {said}");
        let [file, part] = logged;
        let path = if file.is_empty() { PathBuf::from(".") } else { self.stored(file) };
        let stored = path.file_name().map_or("", |name| name.to_str().unwrap());
        let named = |line: &&str| line.contains(part) && line.contains(stored);
        assert_eq!(said.lines().filter(named).count(), 1, "{what}: {stored}, {part:?}: {said}");
        let checking = self.desk.run(&["fs", "check", "-i", "key.txt", "vol"]);
        let report = String::from_utf8_lossy(&checking.stdout).into_owned();
        let (code, begins) = if part == "unknown version" { (81, "newer: ") } else { (83, "damaged: ") };
        assert_eq!(checking.status.code(), Some(code), "{what}: {report}");
        let lines: Vec<&str> = report.lines().filter(|line| line.starts_with(begins)).collect();
        assert_eq!(lines.len(), checked.len(), "{what}: {report}");
        for one in checked {
            assert!(lines.iter().any(|line| line.contains(one)), "{what}: {report}");
        }
    }

    /// Everything that is not as it was: `NAME?`: is not listed, `NAME`: absent, `NAME!`: does
    /// not open or list, `NAME:3`: chunk 3 does not
    /// read, `NAME=`: other bytes. The last must never be.
    fn look(&self) -> BTreeSet<String> {
        let mounted = self.desk.at("mnt");
        let mut found = BTreeSet::new();
        let mut listed = BTreeSet::new();
        for folder in ["", "d", "e"] {
            let inside = |name: String| if folder.is_empty() { name } else { format!("{folder}/{name}") };
            let list = || fs::read_dir(mounted.join(folder))?.collect::<std::io::Result<Vec<_>>>();
            match list() {
                Ok(entries) => {
                    let names = entries.iter().map(|entry| entry.file_name().into_string().unwrap());
                    listed.extend(names.map(inside));
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(EIO), "{folder}: {error}");
                    found.insert(format!("{folder}!"));
                }
            }
        }
        for (name, wanted) in files() {
            let shown = name.replace(&"l".repeat(200), "long");
            if !listed.contains(&name) {
                found.insert(format!("{shown}?"));
            }
            let file = match fs::File::open(mounted.join(&name)) {
                Ok(file) => file,
                Err(error) => {
                    let absent = error.kind() == std::io::ErrorKind::NotFound;
                    assert!(absent || error.raw_os_error() == Some(EIO), "{shown}: {error}");
                    found.insert(shown + if absent { "" } else { "!" });
                    continue;
                }
            };
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
            for (at, chunk) in wanted.chunks(CHUNK).enumerate() {
                let mut got = vec![0; chunk.len()];
                match file.read_exact_at(&mut got, (at * CHUNK) as u64) {
                    Ok(()) if got == chunk => {}
                    Ok(()) => drop(found.insert(format!("{shown}="))),
                    Err(error) => {
                        let cut = error.kind() == std::io::ErrorKind::UnexpectedEof;
                        assert!(cut || error.raw_os_error() == Some(EIO), "{shown}: {error}");
                        found.insert(format!("{shown}:{at}{}", if cut { " cut" } else { "" }));
                    }
                }
            }
        }
        match fs::read_link(mounted.join("s")) {
            Ok(target) => assert_eq!(target, Path::new("f")),
            Err(error) => drop(found.insert(format!("s {}", error.raw_os_error().unwrap()))),
        }
        let mut value = [0; 100];
        match rustix::fs::getxattr(mounted.join("g"), "user.colour", &mut value) {
            Ok(len) => assert_eq!(&value[..len], b"blue"),
            Err(_) if found.contains("g!") || found.contains("g") => {}
            Err(error) => drop(found.insert(format!("g's colour {}", error.raw_os_error()))),
        }
        found
    }
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x20;
    fs::write(path, bytes).unwrap();
}

#[test]
fn damaged_contents_are_errors_where_they_are_damaged() {
    if !fuse() {
        return;
    }
    let volume = Volume::new();
    let with = |change: fn(&mut Vec<u8>, &[u8])| {
        move |volume: &Volume| {
            let mut bytes = volume.bytes("f");
            change(&mut bytes, &volume.bytes("g"));
            fs::write(volume.stored("f"), bytes).unwrap();
        }
    };
    volume.case("flipped", with(|f, _| f[slot(3) + 1000] ^= 1), &["f:3"], ["f", "chunk 3"], &["f: chunk 3"]);
    volume.case(
        "zeroed",
        with(|f, _| f[slot(3)..slot(4)].fill(0)),
        &["f:3"],
        ["f", "chunk 3"],
        &["f: chunk 3"],
    );
    let repeat = with(|f, _| f.copy_within(slot(2)..slot(3), slot(5)));
    volume.case("repeated", repeat, &["f:5"], ["f", "chunk 5"], &["f: chunk 5"]);
    let swap = with(|f, _| {
        let kept = f[slot(2)..slot(3)].to_vec();
        f.copy_within(slot(5)..slot(6), slot(2));
        f[slot(5)..slot(6)].copy_from_slice(&kept);
    });
    volume.case("swapped", swap, &["f:2", "f:5"], ["f", "chunk 5"], &["f: chunk 2", "f: chunk 5"]);
    let foreign = with(|f, g| f[slot(4)..slot(5)].copy_from_slice(&g[slot(4)..slot(5)]));
    volume.case("foreign", foreign, &["f:4"], ["f", "chunk 4"], &["f: chunk 4"]);
    let gone = |from: usize| -> Vec<String> { (from..=10).map(|at| format!("f:{at} cut")).collect() };
    let cut = gone(8);
    let mut cut: Vec<&str> = cut.iter().map(String::as_str).collect();
    cut.push("f:7");
    volume.case("cut", with(|f, _| f.truncate(slot(7) + 1000)), &cut, ["f", "chunk 7"], &["f: chunk 7"]);
    let rubbish = with(|f, _| f.extend([7; 500]));
    volume.case("longer", rubbish, &["f:10"], ["f", "chunk 10"], &["f: chunk 10"]);
    for (what, change) in [
        ("header flipped", with(|f, _| f[50] ^= 1)),
        ("header zeroed", with(|f, _| f[..96].fill(0))),
        ("header cut", with(|f, _| f.truncate(50))),
        ("version byte altered", with(|f, _| f[8] = 2)),
        ("cut between chunks", with(|f, _| f.truncate(slot(7)))),
    ] {
        volume.case(what, change, &["f!"], ["f", "damaged"], &["f: "]);
    }
    // With the tag that a newer program's header has: with the one that is there it is ours, and a byte altered.
    let newer = with(|f, _| (f[8], f[95]) = (2, f[95] ^ 1));
    volume.case("another version", newer, &["f!"], ["f", "unknown version"], &["f: "]);
    let all: Vec<String> = (0..=10).map(|at| format!("f:{at}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let header = with(|f, g| f[..96].copy_from_slice(&g[..96]));
    volume.case("foreign header", header, &all, ["f", "chunk 0"], &["f: chunks 0 to 10"]);
}

#[test]
fn damaged_names_links_and_attributes_cost_themselves_and_nothing_else() {
    if !fuse() {
        return;
    }
    let volume = Volume::new();
    let renamed = |volume: &Volume| {
        let path = volume.stored("f");
        let mut name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let other = if name.ends_with('A') { "Q" } else { "A" };
        name.replace_range(3..4, if &name[3..4] == other { "Z" } else { other });
        fs::rename(&path, path.with_file_name(name)).unwrap();
    };
    volume.case("name flipped", renamed, &["f", "f?"], ["", "name"], &["name"]);
    let moved = |volume: &Volume| {
        let (from, to) = (volume.stored("f"), volume.stored("d"));
        fs::rename(&from, to.join(from.file_name().unwrap())).unwrap();
    };
    volume.case("foreign name", moved, &["f", "f?"], ["", "name"], &["name"]);
    let long = format!("d/{}", "l".repeat(200));
    let sidecar = |volume: &Volume| {
        let entry = volume.stored(&format!("d/{}", "l".repeat(200)));
        entry.with_file_name(format!("{}.name", entry.file_name().unwrap().to_str().unwrap()))
    };
    assert!(volume.stored(&long).to_str().unwrap().contains("wattlock.long."));
    volume.case(
        "long name flipped",
        |volume| flip(&sidecar(volume), 30),
        &["d/long?"],
        ["", "name"],
        &["name"],
    );
    let removed = |volume: &Volume| fs::remove_file(sidecar(volume)).unwrap();
    volume.case("long name gone", removed, &["d/long?"], ["", "name"], &["name"]);
    let record = |volume: &Volume, name: &str| volume.stored(name).join("wattlock.dir");
    let all = ["d!", "d/h!", "d/h?", "d/long!", "d/long?"];
    volume.case("record flipped", |volume| flip(&record(volume, "d"), 60), &all, ["d", "damaged"], &["d: "]);
    let cut = |volume: &Volume| {
        let path = record(volume, "d");
        fs::write(&path, &fs::read(&path).unwrap()[..100]).unwrap();
    };
    volume.case("record cut", cut, &all, ["d", "damaged"], &["d: "]);
    let removed = |volume: &Volume| fs::remove_file(record(volume, "d")).unwrap();
    volume.case("record gone", removed, &all, ["d", "damaged"], &["d: "]);
    // Only a crash leaves a record without bytes, and none was here.
    let zeroed = |volume: &Volume| fs::write(record(volume, "d"), [0; 128]).unwrap();
    volume.case("record zeroed", zeroed, &all, ["d", "damaged"], &["d: "]);
    // Another folder's record opens: names do not.
    let nameless = ["d/h", "d/h?", "d/long", "d/long?"];
    let foreign = |volume: &Volume| {
        fs::copy(record(volume, "e"), record(volume, "d")).unwrap();
    };
    volume.case("record foreign", foreign, &nameless, ["d/h", "name"], &["name", "name"]);
    let target = |volume: &Volume| {
        let path = volume.stored("s");
        let mut target = fs::read_link(&path).unwrap().into_os_string().into_string().unwrap();
        target.replace_range(5..6, if &target[5..6] == "A" { "B" } else { "A" });
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(target, &path).unwrap();
    };
    volume.case("link flipped", target, &["s 5"], ["s", "damaged"], &["s: "]);
    let attribute = |volume: &Volume| {
        let path = volume.stored("g");
        let mut list = vec![0; 1000];
        let len = rustix::fs::listxattr(&path, &mut list).unwrap();
        let name = String::from_utf8(list[..len - 1].to_vec()).unwrap();
        let mut value = vec![0; 1000];
        let len = rustix::fs::getxattr(&path, name.as_str(), &mut value).unwrap();
        value.truncate(len);
        value[20] ^= 1;
        rustix::fs::setxattr(&path, name.as_str(), &value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    volume.case("attribute flipped", attribute, &["g's colour 5"], ["g", "damaged"], &["g: "]);
}

/// Whatever became of a file's header, the file may be emptied: by opening it, by its path and by an open descriptor. Until
/// then it is EIO, and nothing of it is changed.
#[test]
fn a_file_of_which_nothing_opens_may_be_emptied_and_replaced() {
    if !fuse() || !has("python3") {
        return;
    }
    let volume = Volume::new();
    let headers: [&[u8]; 5] = [b"", b"<placeholder>", &[0; 4096], &[0xff; 96], &[b'w'; 9000]];
    for shared in [&[][..], &["--shared"]] {
        for header in headers {
            volume.copy("kept", "vol");
            let backing = volume.stored("f");
            fs::write(&backing, header).unwrap();
            let mounted = volume.desk.mount(shared);
            let path = mounted.join("f");
            assert_eq!(fs::read(&path).unwrap_err().raw_os_error(), Some(EIO), "{header:?}");
            let write = fs::OpenOptions::new().write(true).open(&path).unwrap_err();
            assert_eq!(write.raw_os_error(), Some(EIO));
            assert_eq!(fs::read(&backing).unwrap(), header, "nothing is changed");
            match header.len() % 2 {
                0 => fs::write(&path, "new").unwrap(),
                _ => {
                    let mut truncated = Command::new("python3");
                    truncated.args(["-c", "import os; os.truncate('mnt/f', 0)"]);
                    assert!(truncated.current_dir(volume.desk.folder.path()).status().unwrap().success());
                    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"new").unwrap();
                }
            }
            assert_eq!(fs::read(&path).unwrap(), b"new");
            assert_eq!(fs::read(mounted.join("g")).unwrap(), content(2));
            volume.desk.unmount();
            let mounted = volume.desk.mount(shared);
            assert_eq!(fs::read(mounted.join("f")).unwrap(), b"new");
            volume.desk.unmount();
            good(&volume.desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
        }
    }
}

#[test]
fn audit_13_what_commands_show_or_keep_only_in_part_they_print() {
    if !fuse() {
        return;
    }
    for command in
        [&["cat", "-i", "key.txt", "vol", "torn"][..], &["cp", "-i", "key.txt", "vol", "torn", "out"]]
    {
        let desk = Desk::new(&[]);
        let mounted = desk.mount(&[]);
        fs::write(mounted.join("torn"), content(1)).unwrap();
        let inode = fs::metadata(mounted.join("torn")).unwrap().ino();
        desk.kill(desk.process());
        // As a crash leaves what was never synced.
        let mut entries = fs::read_dir(desk.at("vol")).unwrap().map(|entry| entry.unwrap().path());
        let stored = entries.find(|path| fs::metadata(path).unwrap().ino() == inode).unwrap();
        let file = fs::File::options().write(true).open(stored).unwrap();
        file.set_len(slot(2) as u64 + 100).unwrap();
        let output = desk.run(&[&["fs"], command].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("/torn: 8192 bytes are shown; what followed had not been synced"), "{said}");
        assert!(output.status.success(), "{said}");
        let shown = if command[0] == "cat" { output.stdout } else { fs::read(desk.at("out")).unwrap() };
        assert!(shown == content(1)[..2 * CHUNK], "{} bytes", shown.len());
    }
}
