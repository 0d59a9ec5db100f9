//! A file that is replaced, removed or moved while programs use it is still that file to them: through the mount, and
//! behind it. WATTLOCK_REPLACE_OPERATIONS is for `make soak`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::desk::{Desk, fuse, good, has, python};

fn operations(fewest: u64) -> u64 {
    let given = std::env::var("WATTLOCK_REPLACE_OPERATIONS").ok();
    given.and_then(|value| value.parse().ok()).unwrap_or(fewest)
}

/// Every way of naming, of sharing and of answering.
fn ways() -> Vec<(&'static [&'static str], &'static [&'static str])> {
    let names: [&[&str]; 2] = [&[], &["--names", "deterministic"]];
    let mounts: [&[&str]; 4] = [
        &["--threads", "4"],
        &["--threads", "1"],
        &["--shared", "--threads", "4"],
        &["--shared", "--threads", "1"],
    ];
    names.iter().flat_map(|names| mounts.iter().map(|mount| (*names, *mount))).collect()
}

#[test]
fn nothing_fails_beside_replacements_and_removals() {
    if !fuse() || !has("python3") {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/replace.py");
    for (init, mount) in ways() {
        let desk = Desk::new(init);
        let mounted = desk.mount(mount);
        let mut command = Command::new("python3");
        command.arg(&script).arg(&mounted).arg(operations(4000).to_string());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{init:?} {mount:?}: {}", String::from_utf8_lossy(&output.stdout));
        desk.unmount();
        good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
    }
}

#[test]
fn gits_readers_see_a_whole_repository_beside_commits() {
    if !fuse() || !has("git") {
        return;
    }
    for mount in [&["--threads", "4"][..], &["--shared", "--threads", "4"]] {
        let desk = Desk::new(&[]);
        let mounted = desk.mount(mount);
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            command.args(["-c", "safe.directory=*", "-c", "user.name=a", "-c", "user.email=a@b", "-C"]);
            command.arg(&mounted).args(arguments);
            command.stdin(Stdio::null());
            command
        };
        good(&git(&["init", "-q"]).output().unwrap());
        let commit = |round: u64| {
            fs::write(mounted.join("f"), format!("{round}\n")).unwrap();
            good(&git(&["add", "f"]).output().unwrap());
            good(&git(&["commit", "-q", "-m", "one more"]).output().unwrap());
        };
        commit(0);
        let rounds = operations(2000) / 100;
        std::thread::scope(|scope| {
            let commits = scope.spawn(|| (1..=rounds).for_each(commit));
            let mut read = 0;
            while !commits.is_finished() || read < rounds {
                for reader in
                    [&["status", "--porcelain"][..], &["rev-parse", "HEAD"], &["log", "-1", "--format=%H"]]
                {
                    good(&git(reader).env("GIT_OPTIONAL_LOCKS", "0").output().unwrap());
                }
                read += 1;
            }
            commits.join().unwrap();
        });
        let count = good(&git(&["rev-list", "--count", "HEAD"]).output().unwrap());
        assert_eq!(count.trim(), (rounds + 1).to_string());
        good(&git(&["fsck", "--no-progress"]).output().unwrap());
        desk.unmount();
    }
}

/// What goes by the path of a file that another program replaced since the kernel looked it up. `behind` replaces it.
const BEHIND: &str = r#"
import os, time
volume = "../vol/"
def behind(at):
    os.rename(volume + f"new{at}", volume + "t")
def content():
    with open("t", "rb") as f:
        return f.read()
works = [content, lambda: os.stat("t").st_size, lambda: os.chmod("t", 0o640), lambda: os.utime("t", ns=(5, 6)),
    lambda: os.setxattr("t", "user.a", b"v"), lambda: os.listxattr("t"), lambda: os.truncate("t", 3),
    lambda: (os.link("t", "t.link"), os.unlink("t.link"))[0], lambda: os.close(os.open("t", os.O_RDWR | os.O_CREAT)), lambda: os.rename("t", "t"),
    lambda: os.getxattr("t", "user.a"), lambda: os.chown("t", -1, -1), lambda: os.access("t", os.R_OK)]
for at, work in enumerate(works):
    content()
    behind(at)
    print(at, work())
content()
behind(len(works))
print(content())
held = os.open("t", os.O_RDWR)
behind(len(works) + 1)
# What is open is still what was opened, and the kernel asks again after a second.
time.sleep(1.2)
print(os.read(held, 99), os.fstat(held).st_nlink, os.fchmod(held, 0o600), os.pwrite(held, b"x", 0), content())
"#;

#[test]
fn what_another_program_replaced_is_walked_to_again() {
    if !fuse() || !has("python3") {
        return;
    }
    let desk = Desk::new(&["--names", "plain"]);
    let mounted = desk.mount(&["--shared"]);
    for at in 0..15 {
        fs::write(mounted.join(format!("new{at}")), format!("content {at}")).unwrap();
        rustix::fs::setxattr(
            mounted.join(format!("new{at}")),
            "user.a",
            b"here",
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();
    }
    fs::write(mounted.join("t"), "first").unwrap();
    // Files that this mount never heard of.
    desk.unmount();
    let mounted = desk.mount(&["--shared"]);
    let said = python(BEHIND, &mounted);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "0 b'content 0'", "{said}");
    assert_eq!(lines[1], "1 9", "{said}");
    assert_eq!(lines[10], "10 b'here'", "{said}");
    assert_eq!(lines[13], "b'content 13'", "{said}");
    assert_eq!(lines[14], "b'content 13' 0 None 1 b'content 14'", "{said}");
    desk.unmount();
}

/// Files that a program still uses by another way than an open file: a descriptor that names it, a working folder.
const REMOVED: &str = r#"
import os
def put(name):
    f = os.open(name, os.O_WRONLY | os.O_CREAT)
    os.write(f, b"content"); os.fsync(f); os.close(f)
    # A volume's journal has this, and the file has not.
    f = os.open(name, os.O_WRONLY); os.pwrite(f, b"C", 0); os.close(f)
    return os.open(name, os.O_PATH)
named = put("f")
path = f"/proc/self/fd/{named}"
open("g", "w").close()
os.rename("g", "f")
def told(path=path):
    with open(path, "rb") as f:
        # Not what the kernel remembers.
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return f.read()
unlinked = put("u")
os.unlink("u")
print(told(f"/proc/self/fd/{unlinked}"))
os.fsync(os.open("f", os.O_WRONLY)); os.sync()
print(told(f"/proc/self/fd/{unlinked}"))
s = os.fstat(named)
print(s.st_size, s.st_nlink, told(), os.chmod(path, 0o600), oct(os.fstat(named).st_mode))
os.setxattr(path, "user.a", b"v"); os.truncate(path, 3)
print(os.getxattr(path, "user.a"), os.listxattr(path), os.fstat(named).st_size, os.stat("f").st_size)
with open(path, "r+b") as f:
    f.write(b"new"); f.flush(); os.fsync(f.fileno())
print(told())
os.symlink("target", "s")
link = os.open("s", os.O_PATH | os.O_NOFOLLOW)
os.unlink("s")
print(os.readlink("", dir_fd=link), os.fstat(link).st_size)
os.mkdir("d"); os.mkdir("e")
d = os.open("d", os.O_RDONLY)
os.rename("e", "d")
print(os.fstat(d).st_nlink, os.fchmod(d, 0o700), os.listdir("d"))
"#;

#[test]
fn what_was_removed_is_reached_by_descriptors_that_name_it() {
    if !fuse() || !has("python3") {
        return;
    }
    for mount in [&["--threads", "1"][..], &["--threads", "4"], &["--shared"]] {
        let desk = Desk::new(&[]);
        fs::create_dir(desk.at("plain")).unwrap();
        let mounted = desk.mount(mount);
        let wanted = python(REMOVED, &desk.at("plain"));
        assert_eq!(python(REMOVED, &mounted), wanted, "{mount:?}");
        desk.unmount();
    }
}

/// More files that were removed and are named by a program than are held.
const MANY: &str = r#"
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
named = []
for i in range(2000):
    f = os.open(f"f{i}", os.O_WRONLY | os.O_CREAT)
    os.write(f, b"content"); os.close(f)
    named.append(os.open(f"f{i}", os.O_PATH))
for i in range(2000):
    os.unlink(f"f{i}")
import errno
found = 0
for one in named:
    try:
        found += os.fstat(one).st_nlink == 0
    except OSError as error:
        assert error.errno == errno.ESTALE, error
print(found > 0, os.listdir("."))
files = [open(f"o{i}", "w") for i in range(300)]
for f in files:
    f.write("x"); f.close()
print(sum(os.stat(f"o{i}").st_size for i in range(300)))
"#;

#[test]
fn as_many_removed_files_as_descriptors_are_held_and_no_more() {
    if !fuse() || !has("python3") || !has("prlimit") {
        return;
    }
    let desk = Desk::new(&[]);
    let mut command = Command::new("prlimit");
    command.args([
        "--nofile=512:512",
        env!("CARGO_BIN_EXE_wattlock"),
        "mount",
        "-i",
        "key.txt",
        "vol",
        "mnt",
    ]);
    command.current_dir(desk.folder.path()).env("WATTLOCK_PROFILE", desk.at("profile.json"));
    command.env("WATTLOCK_STATE_DIR", desk.at("state"));
    good(&command.env("WATTLOCK_TELEMETRY_DIR", desk.at("telemetry")).output().unwrap());
    let mounted = desk.at("mnt");
    assert_eq!(python(MANY, &mounted), "True []\n300\n");
    let open = || fs::read_dir(format!("/proc/{}/fd", desk.process())).unwrap().count();
    assert!(open() < 400, "{} are open", open());
    assert_eq!(fs::metadata(mounted.join("o1")).unwrap().size(), 1);
    desk.unmount();
    good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
}
