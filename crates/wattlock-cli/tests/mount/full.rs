//! A backing file system that fills up beneath a mount: the calls fail with ENOSPC, what was acknowledged stays, and
//! the volume opens, checks clean and takes writes again once there is room.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::desk::{Desk, fuse, good, has, python, skipped};
use crate::ledger::Ledger;

/// A small file system of its own beneath a desk.
struct Disk(PathBuf);

impl Disk {
    /// Mounts one, or says why not. The desk's volume goes into it.
    fn new(desk: &Desk, options: &str) -> Option<Disk> {
        let at = desk.at("disk");
        fs::create_dir(&at).unwrap();
        let output =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(&at).output().ok()?;
        if !output.status.success() {
            skipped("mounting a small file system takes privileges that are not here");
            return None;
        }
        let moved = Command::new("mv").arg(desk.at("vol")).arg(at.join("vol")).status().unwrap();
        assert!(moved.success());
        std::os::unix::fs::symlink("disk/vol", desk.at("vol")).unwrap();
        Some(Disk(at))
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.0).unwrap();
        stat.f_bavail * stat.f_frsize
    }

    /// Leaves so many bytes.
    fn leave(&self, bytes: u64) {
        let file = fs::File::create(self.0.join("ballast")).unwrap();
        let all = self.free().saturating_sub(bytes);
        if all > 0 {
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, all).unwrap();
        }
        assert_eq!(file.metadata().unwrap().blocks() * 512, all);
    }

    fn clear(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Mounts; a start that finds no room for what the journal holds says so, and with room it works.
fn mount(desk: &Desk, disk: &Disk) -> PathBuf {
    let output = desk.run(&["mount", "-i", "key.txt", "vol", "mnt"]);
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("No space left on device"), "{errors}");
        disk.clear();
        desk.mount(&[]);
    }
    desk.at("mnt")
}

#[test]
fn wherever_the_disk_is_full_what_was_acknowledged_stays() {
    if !fuse() || !has("python3") {
        return;
    }
    let desk = Desk::new(&[]);
    let Some(disk) = Disk::new(&desk, "size=64m") else { return };
    let mut ledger = Ledger::new(&desk.at("mnt"), 1);
    let mut full = 0;
    // So many pages are left: the room ends in the journal, in a slot, in a header, in a record.
    for (round, pages) in [40, 20, 12, 8, 5, 4, 3, 2, 1, 0].into_iter().enumerate() {
        desk.mount(&[]);
        assert_eq!(ledger.ask("room 30"), "full 0", "with room again");
        disk.leave(pages * 4096);
        let answer = ledger.ask("room 60");
        full += answer.strip_prefix("full ").unwrap_or_else(|| panic!("{answer}")).parse::<u32>().unwrap();
        // Without room it is unmounted, or dies, and is mounted again.
        match round % 2 {
            0 => drop(desk.try_unmount()),
            _ => desk.kill(desk.process()),
        }
        mount(&desk, &disk);
        ledger.verify();
        drop(desk.try_unmount());
        let _ = fs::remove_file(disk.0.join("ballast"));
        desk.mount(&[]);
        ledger.verify();
        desk.unmount();
        good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
    }
    assert!(full > 50, "{full} calls found no room");
}

/// Every call that makes something, and the errors that came.
const MAKERS: &str = r#"
import collections, ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
counts = collections.Counter()
def tried(what, work):
    try:
        work()
        counts[what, "made"] += 1
    except OSError as error:
        counts[what, errno.errorcode[error.errno]] += 1
def put(path):
    f = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(f, b"x" * 300); os.fsync(f)
    finally:
        os.close(f)
def rename2(one, two, flags):
    if libc.renameat2(-100, one.encode(), -100, two.encode(), flags) < 0:
        raise OSError(ctypes.get_errno(), "rename")
for i in range(40):
    l = f"{i:04}" + "l" * 250
    tried("file", lambda: put(f"f{i}"))
    tried("long", lambda: put(l))
    tried("folder", lambda: os.mkdir(f"d{i}"))
    tried("symlink", lambda: os.symlink("t" * 900, f"s{i}"))
    tried("link", lambda: os.link("old", f"h{i}" + "h" * 200))
    tried("fifo", lambda: os.mkfifo(f"p{i}"))
    tried("attribute", lambda: os.setxattr("old", f"user.a{i}", b"v" * 300))
    tried("to long", lambda: rename2("old", l, 1))
    tried("back", lambda: rename2(l, "old", 1))
for (what, how), n in sorted(counts.items()):
    print(what, how, n)
"#;

#[test]
fn without_inodes_nothing_half_made_stays() {
    if !fuse() || !has("python3") {
        return;
    }
    for options in ["size=64m,nr_inodes=60", "size=1m"] {
        let desk = Desk::new(&[]);
        let Some(disk) = Disk::new(&desk, options) else { return };
        let mounted = desk.mount(&[]);
        fs::write(mounted.join("old"), "the old content").unwrap();
        fs::File::open(mounted.join("old")).unwrap().sync_all().unwrap();
        if options == "size=1m" {
            disk.leave(16 * 4096);
        }
        let said = python(MAKERS, &mounted);
        let errors: Vec<_> = said.lines().filter(|line| !line.contains(" made ")).collect();
        let known = |line: &str| {
            let absent = line.contains("ENOENT") || line.contains("EEXIST");
            line.contains("ENOSPC") || absent && (line.starts_with("back") || line.starts_with("to long"))
        };
        assert!(errors.iter().all(|line| known(line)), "{said}");
        assert!(said.contains("file ENOSPC") && said.contains("folder ENOSPC"), "{said}");
        let list = |folder: &Path| {
            let entries = fs::read_dir(folder).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let (names, inode) = (list(&mounted), fs::metadata(mounted.join("old")).unwrap().ino());
        assert_eq!(fs::read_to_string(mounted.join("old")).unwrap(), "the old content");
        desk.unmount();
        let mounted = desk.mount(&[]);
        assert_eq!(list(&mounted), names, "{options}");
        assert_eq!(fs::metadata(mounted.join("old")).unwrap().ino(), inode);
        assert_eq!(fs::read_to_string(mounted.join("old")).unwrap(), "the old content");
        // What is freed can be used again.
        let _ = fs::remove_file(disk.0.join("ballast"));
        for name in names.iter().filter(|name| *name != "old") {
            let path = mounted.join(name);
            if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) }.unwrap();
        }
        fs::create_dir(mounted.join("new")).unwrap();
        fs::write(mounted.join("new").join("n".repeat(255)), vec![1; 100_000]).unwrap();
        desk.unmount();
        good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
    }
}

/// Writes more than there is room for, and looks at once at what came of it.
const TOO_MUCH: &str = r#"
import errno, os, random, sys
data = random.Random(1).randbytes(30_000_000)
f = os.open("f", os.O_RDWR | os.O_CREAT)
failed, closing = None, False
try:
    at = 0
    while at < len(data):
        at += os.write(f, data[at:at + (1 << 20)])
    if sys.argv[1:] == ["sync"]:
        os.fsync(f)
except OSError as error:
    failed = error.errno
if sys.argv[1:] == ["sync"]:
    # Somebody looks while it is open.
    os.stat("f")
try:
    os.close(f)
except OSError as error:
    failed = failed or error.errno
    closing = True
size = os.stat("f").st_size
with open("f", "rb") as f:
    there = f.read()
assert failed == errno.ENOSPC, failed
assert 0 < size < len(data) and len(there) == size, (size, len(there))
wrong = [at for at in range(0, size, 4096) if there[at:at + 4096] != data[at:min(at + 4096, size)]]
assert not wrong, ("not what was written", size, len(wrong), wrong[0], wrong[-1], there[wrong[0]:wrong[0] + 16])
if sys.argv[1:] == ["close"] and closing:
    # A program that does not look at what closing returns is told by the next sync, once.
    f = os.open("f", os.O_RDWR)
    for wanted in (errno.ENOSPC, 0):
        try:
            os.fsync(f)
            told = 0
        except OSError as error:
            told = error.errno
        assert told == wanted, (told, wanted)
print(size)
"#;

#[test]
fn what_found_no_room_is_shown_as_it_is_stored() {
    if !fuse() || !has("python3") {
        return;
    }
    for mount in [&["--threads", "4"][..], &["--threads", "1"], &["--shared"]] {
        for how in ["close", "sync"] {
            let desk = Desk::new(&[]);
            let Some(_disk) = Disk::new(&desk, "size=20m") else { return };
            let mounted = desk.mount(mount);
            let mut command = Command::new("python3");
            command.args(["-c", TOO_MUCH, how]).current_dir(&mounted);
            let size: u64 = good(&command.output().unwrap()).trim().parse().unwrap();
            assert_eq!(fs::metadata(mounted.join("f")).unwrap().size(), size, "{mount:?}, {how}");
            // A file that is written anew has nothing of it.
            let _ = fs::remove_file(mounted.join("f"));
            drop(desk.try_unmount());
        }
    }
}
