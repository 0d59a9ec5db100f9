//! `wattlock mount` with the real kernel and real programs. Without /dev/fuse these tests say that they were skipped.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[path = "../all/built/mod.rs"]
mod built;
mod calls;
mod card;
mod damage;
mod desk;
mod full;
mod ledger;
mod limits;
mod mistakes;
mod model;
mod owners;
mod replace;
mod rotate;
mod synchronised;
mod user;

use desk::{Desk, fuse, good, has, python, refused};

/// Everything in a folder: path, type, permissions, links, length, time of change, content or target.
const TREE: &str = r#"
import os, stat, hashlib
for folder, folders, files in os.walk("."):
    folders.sort()
    for name in sorted(files + folders):
        path = os.path.join(folder, name)
        s = os.lstat(path)
        line = [path, oct(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns]
        if stat.S_ISREG(s.st_mode):
            line += [s.st_nlink, s.st_size, hashlib.sha256(open(path, "rb").read()).hexdigest()]
        if stat.S_ISLNK(s.st_mode):
            line += [s.st_size, os.readlink(path)]
        print(*line)
"#;

/// Does a great many things and prints what came of each, so that two file systems can be compared.
const THINGS: &str = r#"
import ctypes, errno, fcntl, mmap, os, random, stat, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
def told(what, work):
    try:
        print(what, work())
    except OSError as error:
        print(what, errno.errorcode[error.errno])
def put(path, data=b"", flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=0o644):
    f = os.open(path, flags, mode)
    try:
        return os.write(f, data) if data else None
    finally:
        os.close(f)
def get(path):
    with open(path, "rb") as f:
        return f.read()
def short(data):
    return len(data), hash(data) if len(data) > 64 else data
os.umask(0o022)
# Names.
told("make", lambda: put("a", b"first"))
told("exclusive", lambda: put("a", b"x", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
told("long", lambda: put("n" * 255, b"long name"))
told("too long", lambda: put("n" * 256, b"x"))
told("long again", lambda: get("n" * 255))
told("rename long", lambda: os.rename("n" * 255, "m" * 255))
told("list", lambda: sorted(os.listdir(".")))
told("rename over", lambda: (put("b", b"second"), os.rename("b", "a"), get("a")))
told("no such", lambda: get("b"))
told("folder", lambda: os.mkdir("d"))
told("again", lambda: os.mkdir("d"))
told("deep", lambda: os.makedirs("d/e/f/" + "g" * 200))
told("into itself", lambda: os.rename("d", "d/e/x"))
told("not empty", lambda: os.rmdir("d"))
told("file as folder", lambda: put("a/x"))
told("folder over file", lambda: os.rename("d", "a"))
told("file over folder", lambda: os.rename("a", "d"))
told("folder over empty folder", lambda: (os.mkdir("empty"), os.rename("d", "empty"), sorted(os.listdir("empty"))))
told("folder over full folder", lambda: (os.mkdir("d"), os.rename("d", "empty")))
told("moved folder", lambda: (os.rename("empty", "d2"), os.listdir("d2/e/f")))
for flags in (1, 2, 3):
    put("one", b"1"); put("two", b"22")
    told(f"renameat2 {flags}", lambda: (call("renameat2", -100, b"one", -100, b"two", flags), get("one"), get("two")))
told("noreplace free", lambda: (call("renameat2", -100, b"one", -100, b"three", 1), get("three")))
# Links.
told("link", lambda: (os.link("a", "d/hard"), os.stat("a").st_nlink, get("d/hard")))
told("unlink one", lambda: (os.unlink("a"), os.stat("d/hard").st_nlink, get("d/hard")))
told("symlink", lambda: (os.symlink("d/hard", "soft"), os.readlink("soft"), os.lstat("soft").st_size, get("soft")))
told("dangling", lambda: (os.symlink("none", "dangling"), get("dangling")))
told("link to folder", lambda: os.link("d", "d3"))
told("fifo", lambda: (os.mkfifo("fifo"), stat.S_ISFIFO(os.stat("fifo").st_mode)))
# Contents.
random.seed(7)
reference = bytearray()
f = os.open("content", os.O_RDWR | os.O_CREAT)
for step in range(400):
    at, size = random.randrange(0, 300_000), random.choice((1, 7, 100, 4095, 4096, 4097, 50_000))
    kind = random.randrange(8)
    if kind < 5:
        data = random.randbytes(size)
        os.pwrite(f, data, at)
        if len(reference) < at: reference.extend(bytes(at - len(reference)))
        reference[at:at + size] = data
    elif kind == 5:
        os.ftruncate(f, at)
        reference = reference[:at] + bytes(max(0, at - len(reference)))
    elif kind == 6:
        call("fallocate", f, 3, ctypes.c_long(at), ctypes.c_long(size))
        end = min(at + size, len(reference))
        if end > at: reference[at:end] = bytes(end - at)
    else:
        os.fsync(f)
    if os.fstat(f).st_size != len(reference):
        print("length", step, kind, os.fstat(f).st_size, len(reference))
        break
os.lseek(f, 0, 0)
print("random writes", os.pread(f, 1 << 20, 0) == bytes(reference))
os.close(f)
print("after closing", get("content") == bytes(reference))
def unlinked():
    f = os.open("gone", os.O_RDWR | os.O_CREAT)
    os.write(f, b"still here"); os.unlink("gone")
    os.ftruncate(f, 5); os.fchmod(f, 0o600)
    s = os.fstat(f)
    return os.pread(f, 99, 0), s.st_nlink, oct(s.st_mode)
told("unlinked", unlinked)
def replaced():
    put("target", b"old"); put("new", b"new")
    f = os.open("target", os.O_RDONLY)
    os.rename("new", "target")
    return os.read(f, 9), get("target")
told("replaced while open", replaced)
def mapped():
    put("map", bytes(10_000))
    f = os.open("map", os.O_RDWR)
    m = mmap.mmap(f, 10_000)
    m[4090:4100] = b"0123456789"; m.flush()
    seen = os.pread(f, 10, 4090)
    m[0:3] = b"end"; m.close(); os.close(f)
    return seen, short(get("map"))[0], get("map")[:3]
told("mapped", mapped)
def private():
    f = os.open("map", os.O_RDONLY)
    m = mmap.mmap(f, 10_000, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    m[0:3] = b"xxx"
    return os.pread(f, 3, 0)
told("mapped privately", private)
def direct():
    f = os.open("direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    m = mmap.mmap(-1, 65536)
    m.write(b"d" * 65536)
    os.write(f, m); os.close(f)
    f = os.open("direct", os.O_RDONLY | os.O_DIRECT)
    n = os.readv(f, [m])
    return n, m[:4], os.stat("direct").st_size
told("direct", direct)
def sparse():
    f = os.open("sparse", os.O_RDWR | os.O_CREAT)
    os.pwrite(f, b"x", 10_000_000)
    os.pwrite(f, b"y" * 4096, 0)
    data = os.lseek(f, 0, os.SEEK_DATA), os.lseek(f, 5_000_000, os.SEEK_DATA) > 9_000_000
    hole = os.lseek(f, 0, os.SEEK_HOLE) < 2_000_000
    s = os.fstat(f)
    return data, hole, s.st_size, s.st_blocks * 512 < 2_000_000, os.pread(f, 10, 5_000_000)
told("sparse", sparse)
told("seek past end", lambda: os.lseek(os.open("sparse", os.O_RDONLY), 1 << 40, os.SEEK_DATA))
def copied():
    i, o = os.open("content", os.O_RDONLY), os.open("copied", os.O_RDWR | os.O_CREAT)
    left = os.fstat(i).st_size
    while left:
        n = os.copy_file_range(i, o, left)
        if not n: break
        left -= n
    return left, get("copied") == get("content")
told("copy_file_range", copied)
append = """
import os, sys
f = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for i in range(200): os.write(f, b"%s %06d\\n" % (sys.argv[1].encode(), i))
"""
workers = [subprocess.Popen([sys.executable, "-c", append, w]) for w in "abcd"]
print("append", [w.wait() for w in workers])
lines = get("log").splitlines()
print("appended", len(lines), all([l for l in lines if l[:1] == w] == [w + b" %06d" % i for i in range(200)] for w in (b"a", b"b", b"c", b"d")))
# Attributes.
told("chmod", lambda: (os.chmod("log", 0o4711), oct(os.stat("log").st_mode)))
told("utime", lambda: (os.utime("log", ns=(1_234_567_890_123_456_789, 987_654_321_987_654_321)), os.stat("log").st_mtime_ns, os.stat("log").st_atime_ns))
told("write after utime", lambda: (put("log", b"x", os.O_WRONLY), os.stat("log").st_mtime_ns > 1_500_000_000_000_000_000))
told("xattr", lambda: (os.setxattr("log", "user.colour", b"blue"), os.getxattr("log", "user.colour"), os.listxattr("log")))
told("xattr create", lambda: os.setxattr("log", "user.colour", b"red", os.XATTR_CREATE))
told("xattr replace", lambda: (os.setxattr("log", "user.colour", b"red", os.XATTR_REPLACE), os.getxattr("log", "user.colour")))
told("xattr absent", lambda: os.getxattr("log", "user.size"))
told("xattr removed", lambda: (os.removexattr("log", "user.colour"), os.listxattr("log")))
told("xattr namespace", lambda: os.setxattr("log", "other.x", b""))
# Locks.
def locked():
    f = os.open("log", os.O_RDWR)
    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    r = subprocess.run([sys.executable, "-c", "import fcntl,os; f=os.open('log',os.O_RDWR)\ntry: fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB); print('free')\nexcept OSError: print('held')"], capture_output=True)
    g = os.open("log", os.O_RDWR); fcntl.flock(g, fcntl.LOCK_EX)
    return r.stdout
told("locked", locked)
def inherited():
    # What root, group and others get by default: rwx, rwx, nothing.
    entry = lambda tag, rights: struct.pack("<HHI", tag, rights, 0xffffffff)
    acl = struct.pack("<I", 2) + entry(1, 7) + entry(4, 7) + entry(32, 0)
    os.mkdir("acl"); os.setxattr("acl", "system.posix_acl_default", acl)
    os.mkdir("acl/d"); put("acl/f", b"x")
    return oct(os.stat("acl/d").st_mode), oct(os.stat("acl/f").st_mode), os.getxattr("acl/d", "system.posix_acl_default") == acl
told("inherited", inherited)
def granted():
    # An ACL's mask is shown as the group's rights.
    entry = lambda tag, rights, who=0xffffffff: struct.pack("<HHI", tag, rights, who)
    put("granted", b"x"); before = oct(os.stat("granted").st_mode)
    acl = struct.pack("<I", 2) + entry(1, 6) + entry(2, 7, 12345) + entry(4, 4) + entry(16, 7) + entry(32, 0)
    os.setxattr("granted", "system.posix_acl_access", acl)
    shown = oct(os.stat("granted").st_mode); os.chmod("granted", 0o640)
    return before, shown, oct(os.stat("granted").st_mode), os.getxattr("granted", "system.posix_acl_access")
told("granted", granted)
def accessible():
    put("plain", b"\x23!/bin/sh\n")
    asked = lambda path: [os.access(path, how) for how in (os.F_OK, os.X_OK, os.W_OK, os.R_OK, 7)]
    before = asked("plain"), asked("d"), asked("none")
    os.chmod("plain", 0o645); after = asked("plain")
    return before, after, subprocess.run(["./plain"]).returncode, os.chmod("plain", 0o644)
told("accessible", accessible)
told("not executable", lambda: subprocess.run(["./plain"]))
def working():
    here = os.getcwd()
    os.mkdir("gone"); os.mkdir("over"); f = os.open("over", os.O_RDONLY)
    os.chdir("gone"); os.rmdir(here + "/gone")
    os.mkdir(here + "/other"); os.rename(here + "/other", here + "/over")
    try:
        return os.stat(".").st_nlink, os.fstat(f).st_nlink
    finally:
        os.chdir(here); os.rmdir("over"); os.close(f)
told("removed folder", working)
def privileges():
    """An ordinary user's changes take the set-user bit from a file, and at once."""
    def change(work):
        put("suid", b"x" * 5000); os.chmod("suid", 0o6777)
        f = os.open("suid", os.O_RDWR)
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([]); os.setgid(65534); os.setuid(65534)
                work(f); os._exit(0)
            except OSError:
                os._exit(1)
        return os.waitpid(child, 0)[1], oct(os.stat("suid").st_mode)
    return [change(work) for work in (lambda f: os.pwrite(f, b"y", 0), lambda f: os.ftruncate(f, 3),
        lambda f: call("fallocate", f, 3, ctypes.c_long(0), ctypes.c_long(4096)),
        lambda f: os.copy_file_range(f, f, 100, 0, 2000))]
told("privileges", privileges)
told("setgid", lambda: (os.mkdir("sg"), os.chmod("sg", 0o2755), os.mkdir("sg/in"), oct(os.stat("sg/in").st_mode)))
told("many", lambda: (os.mkdir("many"), [put(f"many/{i}", b"%d" % i) for i in range(1500)][:0], len(os.listdir("many")), get("many/777")))
told("none left", lambda: ([os.unlink(f"many/{i}") for i in range(1500)][:0], os.rmdir("many")))
"#;

#[test]
fn a_mount_does_what_the_file_system_beneath_it_does() {
    if !fuse() || !has("python3") {
        return;
    }
    // Only others let in meet what root's mount does for them.
    let root = rustix::process::geteuid().is_root();
    let others: &[&str] = if root { &["-o", "allow_other"] } else { &[] };
    // By root for itself: then the kernel checks no permissions.
    let alone: &[&[&str]] = if root { &[&[]] } else { &[] };
    for mode in [&[others, &[others, &["--shared"]].concat()], alone].concat() {
        let desk = Desk::new(&[]);
        let plain = desk.at("plain");
        fs::create_dir(&plain).unwrap();
        let mounted = desk.mount(mode);
        let wanted = python(THINGS, &plain);
        let found = python(THINGS, &mounted);
        let stranger = |line: &str| root && mode.is_empty() && line.starts_with("privileges");
        for (wanted, found) in wanted.lines().zip(found.lines()) {
            assert!(wanted == found || stranger(wanted), "{mode:?}: {wanted}, not {found}");
        }
        assert_eq!(wanted.lines().count(), found.lines().count());
        // The same after the kernel forgot everything.
        // Which line of the log came first is chance.
        let without_times = |tree: String| -> Vec<String> {
            let strip = |line: &str| {
                line.split(' ').enumerate().filter(|(at, _)| *at != 4).map(|(_, word)| word).collect()
            };
            let told =
                |line: &&str| !(line.contains("log") || root && mode.is_empty() && line.contains("suid"));
            tree.lines().filter(told).map(strip).collect()
        };
        let tree = python(TREE, &mounted);
        desk.unmount();
        assert_eq!(fs::read_dir(&mounted).unwrap().count(), 0);
        desk.mount(mode);
        assert_eq!(python(TREE, &mounted), tree, "{mode:?}");
        assert_eq!(without_times(tree), without_times(python(TREE, &plain)), "{mode:?}");
        desk.unmount();
        good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
    }
}

#[test]
fn git_rsync_tar_and_sqlite_work_in_a_mount() {
    if !fuse() {
        return;
    }
    let desk = Desk::new(&[]);
    let mounted = desk.mount(&[]);
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    if has("git") && repository.join(".git").exists() {
        let git = |arguments: &[&str], folder: &Path| {
            let mut command = Command::new("git");
            command.args(["-c", "safe.directory=*"]).args(arguments).current_dir(folder);
            good(&command.output().unwrap())
        };
        git(&["clone", "--quiet", "--no-hardlinks", &repository.to_string_lossy(), "clone"], &mounted);
        let clone = mounted.join("clone");
        assert_eq!(git(&["status", "--porcelain"], &clone), "");
        git(&["fsck", "--no-progress"], &clone);
        desk.unmount();
        desk.mount(&[]);
        assert_eq!(git(&["status", "--porcelain"], &clone), "");
    }
    let source = desk.at("source");
    fs::create_dir(&source).unwrap();
    let fill = r#"
import os, random
random.seed(3)
for i in range(300):
    d = f"d{i % 17}/e{i % 5}"
    os.makedirs(d, exist_ok=True)
    open(f"{d}/{i}", "wb").write(random.randbytes(random.choice((0, 1, 100, 4096, 70_000))))
    os.chmod(f"{d}/{i}", random.choice((0o600, 0o644, 0o755, 0o400)))
    os.utime(f"{d}/{i}", ns=(i * 10**15 + 1, i * 10**15 + 123456789))
    if i % 7 == 0: os.link(f"{d}/{i}", f"{d}/{i}.hard")
    if i % 11 == 0: os.symlink("x" * (i + 1), f"{d}/{i}.soft")
    if i % 13 == 0: os.setxattr(f"{d}/{i}", "user.n", b"%d" % i) if hasattr(os, "setxattr") else None
"#;
    if has("python3") {
        python(fill, &source);
        let tree = python(TREE, &source);
        if has("rsync") {
            let mut copy = Command::new("rsync");
            // Without the window, times within one second are equal to rsync, and stay.
            copy.args(["-aHAX", "--modify-window=-1", "source/", "mnt/copied"])
                .current_dir(desk.folder.path());
            good(&copy.output().unwrap());
            assert_eq!(python(TREE, &mounted.join("copied")), tree);
            let mut again = Command::new("rsync");
            again.args(["-aHAXni", "--checksum", "source/", "mnt/copied"]).current_dir(desk.folder.path());
            assert_eq!(good(&again.output().unwrap()), "");
        }
        if has("tar") {
            fs::create_dir(mounted.join("untarred")).unwrap();
            let script = "tar --format=pax -C source -cf - . | tar -C mnt/untarred -xpf -";
            let mut command = Command::new("sh");
            good(&command.args(["-c", script]).current_dir(desk.folder.path()).output().unwrap());
            // The folder itself apart, whose time is the copying's own.
            assert_eq!(python(TREE, &mounted.join("untarred")), tree);
        }
        let sqlite = r#"
import sqlite3
for mode in ("wal", "delete"):
    db = sqlite3.connect("db." + mode)
    db.execute("pragma journal_mode=" + mode)
    db.execute("create table t(k integer primary key, v blob)")
    for i in range(40):
        with db: db.executemany("insert into t(v) values (?)", [(bytes([i]) * (j * 37),) for j in range(50)])
        with db: db.execute("delete from t where k % 3 = ?", (i % 3,))
    print(db.execute("pragma integrity_check").fetchone(), db.execute("select count(*), sum(length(v)) from t").fetchone())
    db.close()
"#;
        fs::create_dir(desk.at("reference")).unwrap();
        let wanted = python(sqlite, &desk.at("reference"));
        assert_eq!(python(sqlite, &mounted), wanted);
        assert!(wanted.starts_with("('ok',)"), "{wanted}");
    }
    desk.unmount();
    good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
}

#[test]
fn a_synced_file_is_what_it_was_after_a_kill() {
    if !fuse() {
        return;
    }
    let desk = Desk::new(&[]);
    let mut wanted = Vec::new();
    for round in 0..6_u8 {
        let mounted = desk.mount(&[]);
        let path = mounted.join("f");
        if round > 0 {
            assert!(fs::read(&path).unwrap() == wanted, "round {round}");
        }
        let file =
            fs::File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        // Over what is there, across chunks, and beyond the end.
        for at in [0, 4000, 20_000, wanted.len() as u64] {
            file.write_all_at(&[round + 1; 6000], at).unwrap();
            wanted.resize(wanted.len().max(at as usize + 6000), 0);
            wanted[at as usize..at as usize + 6000].fill(round + 1);
        }
        file.sync_data().unwrap();
        // Not synced: may be lost, may stay, and spoils nothing.
        fs::write(mounted.join(format!("unsynced{round}")), vec![round; 50_000]).unwrap();
        desk.kill(desk.process());
    }
    let mounted = desk.mount(&[]);
    assert!(fs::read(mounted.join("f")).unwrap() == wanted);
    for entry in fs::read_dir(&mounted).unwrap() {
        fs::read(entry.unwrap().path()).unwrap();
    }
    desk.unmount();
    good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
}

#[test]
fn each_mistake_is_one_line_and_one_exit_code_and_changes_nothing() {
    if !fuse() {
        return;
    }
    let desk = Desk::new(&[]);
    let stored = || {
        let mut names: Vec<_> =
            fs::read_dir(desk.at("vol")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = stored();
    good(&desk.run(&["keygen", "-o", "other.txt"]));
    refused(&desk.run(&["mount", "-i", "other.txt", "vol", "mnt"]), 12, "no identity");
    fs::create_dir(desk.at("nothing")).unwrap();
    refused(&desk.run(&["mount", "-i", "key.txt", "nothing", "mnt"]), 80, "no volume");
    refused(&desk.run(&["mount", "-i", "key.txt", "absent", "mnt"]), 80, "no volume");
    refused(&desk.run(&["mount", "-i", "key.txt", "vol", "absent"]), 87, "not a folder");
    refused(&desk.run(&["mount", "-i", "key.txt", "vol", "key.txt"]), 87, "not a folder");
    refused(&desk.run(&["mount", "-i", "key.txt", "vol", "vol"]), 2, "own folder");
    refused(&desk.run(&["mount", "-i", "key.txt", "-o", "fd=3", "vol", "mnt"]), 2, "unknown mount option");
    refused(&desk.run(&["umount", "mnt"]), 90, "not mounted");
    refused(&desk.run(&["fs", "status", "mnt"]), 90, "mounted there");
    assert_eq!(stored(), before);
    assert_eq!(fs::read_dir(desk.at("mnt")).unwrap().count(), 0);
    desk.mount(&[]);
    fs::create_dir(desk.at("mnt2")).unwrap();
    refused(&desk.run(&["mount", "-i", "key.txt", "vol", "mnt2"]), 84, "in use");
    let settings = |setting| desk.run(&["fs", "set", "mnt", setting]);
    refused(&settings("policy=none-such"), 2, "none-such");
    refused(&settings("nonsense"), 2, "KEY=VALUE");
    refused(&settings("aca-sds.alpha=minus"), 2, "aca-sds.alpha");
    let open = fs::File::open(desk.at("mnt")).unwrap();
    refused(&desk.run(&["umount", "mnt"]), 89, "in use");
    drop(open);
    desk.unmount();
}

/// A request that the mount makes of itself holds it: then an unmount at once is told that it is in use.
#[test]
fn a_new_mount_has_asked_nothing_of_itself() {
    if !fuse() {
        return;
    }
    let desk = Desk::new(&[]);
    desk.mount(&[]);
    let status = good(&desk.run(&["fs", "status", "mnt"]));
    assert!(status.lines().any(|line| line.trim_end() == "requests"), "{status}");
    desk.unmount();
}

#[test]
fn settings_of_a_running_mount_change_with_the_next_request() {
    if !fuse() {
        return;
    }
    let desk = Desk::new(&[]);
    let mounted = desk.mount(&[]);
    fs::write(mounted.join("a"), vec![1; 100_000]).unwrap();
    let before = good(&desk.run(&["fs", "status", "mnt"]));
    assert!(before.contains("policy adaptive") && before.contains("aes-256-gcm-seal"), "{before}");
    // For scripts one object, in one line, with what people read in several.
    let object = good(&desk.run(&["fs", "status", "--json", "mnt"]));
    let told: serde_json::Value = serde_json::from_str(object.trim_end()).expect(&object);
    assert_eq!(object.lines().count(), 1, "{object}");
    let lines = told["lines"].as_array().unwrap();
    assert!(lines.len() > 1 && lines.iter().all(|line| line.is_string()), "{object}");
    assert_eq!(told["mountpoint"], "mnt", "{object}");
    good(&desk.run(&["fs", "set", "mnt", "policy=software"]));
    let set = good(&desk.run(&["fs", "status", "mnt"]));
    fs::write(mounted.join("b"), vec![1; 100_000]).unwrap();
    let file = fs::File::open(mounted.join("b")).unwrap();
    file.sync_all().unwrap();
    let after = good(&desk.run(&["fs", "status", "mnt"]));
    assert!(after.contains("policy software"), "{after}");
    // Counters go on: what another engine had done before is still there, and is no more.
    let sealed = |status: &str, software: bool| {
        let rows = status.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let rows = rows.filter(|row| row.first() == Some(&"aes-256-gcm-seal"));
        let rows = rows.filter(|row| (row[1] == "software") == software);
        rows.map(|row| row[2].parse::<u64>().unwrap()).sum::<u64>()
    };
    assert!(sealed(&set, false) > 0, "{set}");
    assert_eq!(sealed(&after, false), sealed(&set, false), "{after}");
    assert!(sealed(&after, true) >= sealed(&set, true) + 25, "{after}");
    assert!(after.contains("write software, chunks in requests up to 128 KiB: "), "{after}");
    drop(file);
    assert_eq!(fs::read(mounted.join("a")).unwrap(), vec![1; 100_000]);
    desk.unmount();
}

#[test]
fn a_mount_that_ran_out_of_descriptors_can_be_asked_again() {
    use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
    if !fuse() {
        return;
    }
    let desk = Desk::new(&[]);
    let mounted = desk.mount(&[]);
    let process = rustix::process::Pid::from_raw(desk.process());
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |current| prlimit(process, Resource::Nofile, Rlimit { current, maximum }).unwrap();
    limit(Some(0));
    // A question that finds no descriptor. It is answered when there are some, or its program is tired of waiting.
    let mut asking = desk.command(&["fs", "status", "mnt"]);
    let mut asking = asking.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while asking.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(20));
    }
    limit(maximum);
    let _ = asking.wait();
    good(&desk.run(&["fs", "status", "mnt"]));
    good(&desk.run(&["fs", "set", "mnt", "policy=software"]));
    fs::write(mounted.join("f"), "text").unwrap();
    desk.unmount();
}

#[test]
fn an_unused_mount_ends_by_itself_and_a_signal_ends_any() {
    if !fuse() {
        return;
    }
    let desk = Desk::new(&[]);
    let mounted = desk.mount(&["--idle", "1"]);
    fs::write(mounted.join("f"), "x").unwrap();
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
    let outside = device(desk.folder.path()).unwrap();
    let begun = Instant::now();
    let ended = |allowed: Duration| {
        // Looking at it would be a request: the mount table is asked.
        let listed =
            || fs::read_to_string("/proc/self/mounts").unwrap().contains(&*mounted.to_string_lossy());
        while listed() {
            assert!(begun.elapsed() < allowed, "still mounted");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    ended(Duration::from_secs(60));
    assert_eq!(device(&mounted).unwrap(), outside);
    // Its process gives the volume back a moment later.
    let mut output = desk.run(&["mount", "-i", "key.txt", "vol", "mnt"]);
    while output.status.code() == Some(84) && begun.elapsed() < Duration::from_secs(60) {
        output = desk.run(&["mount", "-i", "key.txt", "vol", "mnt"]);
    }
    good(&output);
    assert_eq!(fs::read_to_string(mounted.join("f")).unwrap(), "x");
    let process = rustix::process::Pid::from_raw(desk.process()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    ended(Duration::from_secs(120));
}

#[test]
fn a_damaged_chunk_is_an_error_and_its_neighbours_are_not() {
    if !fuse() {
        return;
    }
    let desk = Desk::new(&["--names", "plain"]);
    let mounted = desk.mount(&[]);
    fs::write(mounted.join("f"), vec![5; 40_960]).unwrap();
    fs::write(mounted.join("g"), "fine").unwrap();
    desk.unmount();
    let stored = fs::File::options().read(true).write(true).open(desk.at("vol/f")).unwrap();
    // A byte of the fourth chunk: 96 bytes of header, slots of 4,136.
    let at = 96 + 3 * 4136 + 1000;
    let mut byte = [0];
    stored.read_exact_at(&mut byte, at).unwrap();
    stored.write_all_at(&[byte[0] ^ 1], at).unwrap();
    let mut server = desk
        .command(&["mount", "--foreground", "-i", "key.txt", "vol", "mnt"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !desk.run(&["fs", "status", "mnt"]).status.success() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(fs::read_to_string(mounted.join("g")).unwrap(), "fine");
    let file = fs::File::open(mounted.join("f")).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    let mut chunk = [0; 4096];
    file.read_exact_at(&mut chunk, 0).unwrap();
    assert_eq!(chunk, [5; 4096]);
    let error = file.read_exact_at(&mut chunk, 3 * 4096).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    file.read_exact_at(&mut chunk, 9 * 4096).unwrap();
    assert_eq!(chunk, [5; 4096]);
    drop(file);
    desk.unmount();
    let status = server.wait().unwrap();
    assert!(status.success());
    let said = std::io::read_to_string(server.stderr.take().unwrap()).unwrap();
    assert!(said.lines().any(|line| line.contains("chunk 3") && line.contains('f')), "{said}");
}

#[test]
fn a_planted_link_leads_nowhere() {
    if !fuse() {
        return;
    }
    let desk = Desk::new(&["--names", "plain"]);
    fs::write(desk.at("secret"), "outside\n").unwrap();
    let mounted = desk.mount(&[]);
    fs::write(mounted.join("f"), "inside").unwrap();
    fs::create_dir(mounted.join("d")).unwrap();
    desk.unmount();
    fs::remove_file(desk.at("vol/f")).unwrap();
    std::os::unix::fs::symlink(desk.at("secret"), desk.at("vol/f")).unwrap();
    desk.mount(&[]);
    assert!(fs::read(mounted.join("f")).is_err());
    let mut opened = fs::File::options();
    assert!(opened.write(true).open(mounted.join("f")).and_then(|mut file| file.write_all(b"x")).is_err());
    desk.unmount();
    assert_eq!(fs::read_to_string(desk.at("secret")).unwrap(), "outside\n");
}
