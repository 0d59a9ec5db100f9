//! A mount by an ordinary user, through `fusermount3`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::desk::{fuse_device, good, has, refused, skipped};

const NOBODY: u32 = 65534;

/// A folder of a user without rights, with a program of its own.
struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    /// None, with a reason, where an ordinary user cannot mount.
    fn new() -> Option<Home> {
        if !fuse_device() || !has("fusermount3") || !has("setpriv") {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            skipped("becoming an ordinary user takes root");
            return None;
        }
        let helper = ["/usr/bin/fusermount3", "/bin/fusermount3"].map(fs::metadata);
        if !helper.iter().flatten().any(|meta| meta.mode() & 0o4000 != 0) {
            skipped("fusermount3 is not setuid root");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        // The build folder may be closed to others.
        let program = folder.path().join("wattlock");
        fs::copy(env!("CARGO_BIN_EXE_wattlock"), &program).unwrap();
        let home = Home { folder };
        // Root opens what is closed to others: the user is asked.
        for (needs, script) in
            [("an ordinary user", "true"), ("a /dev/fuse that users may open", "exec 3<>/dev/fuse")]
        {
            let allowed = home.user("sh", &["-c", script]);
            if !allowed.status.success() {
                skipped(&format!("needs {needs}: {}", String::from_utf8_lossy(&allowed.stderr).trim()));
                return None;
            }
        }
        Some(home)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a program as the user.
    fn user(&self, program: &str, arguments: &[&str]) -> Output {
        let id = NOBODY.to_string();
        Command::new("setpriv")
            .args(["--reuid", &id, "--regid", &id, "--clear-groups", "--", program])
            .args(arguments)
            .current_dir(self.folder.path())
            .env("WATTLOCK_PROFILE", self.at("profile.json"))
            .env("WATTLOCK_TELEMETRY_DIR", self.at("telemetry"))
            .env("WATTLOCK_STATE_DIR", self.at("state"))
            .env_remove("XDG_RUNTIME_DIR")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn wattlock(&self, arguments: &[&str]) -> Output {
        self.user("./wattlock", arguments)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.at("mnt")).stderr(Stdio::null()).status();
    }
}

#[test]
fn an_ordinary_user_mounts_owns_and_unmounts() {
    let Some(home) = Home::new() else { return };
    good(&home.wattlock(&["keygen", "-o", "key.txt"]));
    let text = fs::read_to_string(home.at("key.txt")).unwrap();
    let recipient = text.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
    good(&home.wattlock(&["fs", "init", "-r", recipient, "vol"]));
    good(&home.user("mkdir", &["mnt"]));
    good(&home.wattlock(&["mount", "-i", "key.txt", "vol", "mnt"]));
    // What the user makes is the user's, there and in the volume's folder.
    let script = "set -e; umask 027; echo text > mnt/f; mkdir mnt/d; cp key.txt mnt/d/k; ln -s f mnt/s
        setfattr -n user.colour -v blue mnt/f 2>/dev/null || true
        stat -c '%U %a' mnt/f mnt/d; cat mnt/s";
    let said = good(&home.user("sh", &["-c", script]));
    assert_eq!(said, "nobody 640\nnobody 750\ntext\n");
    for entry in fs::read_dir(home.at("vol")).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().uid(), NOBODY, "{entry:?}");
    }
    // Nobody else is let in, not even root.
    let error = fs::read(home.at("mnt/f")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(13), "{error}");
    let status = good(&home.wattlock(&["fs", "status", "mnt"]));
    assert!(status.contains("process "), "{status}");
    good(&home.wattlock(&["fs", "set", "mnt", "policy=software"]));
    // What only root may do, the user may not.
    let denied = home.user("sh", &["-c", "chown 0 mnt/f"]);
    assert!(!denied.status.success());
    refused(&home.wattlock(&["mount", "-i", "key.txt", "vol", "mnt"]), 85, "not empty");
    good(&home.user("mkdir", &["mnt2"]));
    refused(&home.wattlock(&["mount", "-i", "key.txt", "vol", "mnt2"]), 84, "in use");
    good(&home.wattlock(&["umount", "mnt"]));
    assert_eq!(fs::read_dir(home.at("mnt")).unwrap().count(), 0);
    refused(&home.wattlock(&["umount", "mnt"]), 90, "not mounted");
    // Again, and it ends with the system's own command.
    good(&home.wattlock(&["mount", "-i", "key.txt", "vol", "mnt"]));
    assert_eq!(good(&home.user("cat", &["mnt/d/k"])), text);
    good(&home.user("fusermount3", &["-u", "mnt"]));
    let journal = fs::File::open(home.at("vol/wattlock.journal")).unwrap();
    rustix::fs::flock(&journal, rustix::fs::FlockOperation::LockExclusive).unwrap();
    drop(journal);
    good(&home.wattlock(&["fs", "check", "-i", "key.txt", "vol"]));
}

#[test]
fn allow_other_needs_leave_and_a_foreign_folder_is_no_mount_point() {
    let Some(home) = Home::new() else { return };
    good(&home.wattlock(&["keygen", "-o", "key.txt"]));
    let text = fs::read_to_string(home.at("key.txt")).unwrap();
    let recipient = text.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
    good(&home.wattlock(&["fs", "init", "-r", recipient, "vol"]));
    good(&home.user("mkdir", &["mnt"]));
    let lines = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if !lines.lines().any(|line| line.trim() == "user_allow_other") {
        let output = home.wattlock(&["mount", "-i", "key.txt", "-o", "allow_other", "vol", "mnt"]);
        refused(&output, 89, "allow_other");
    }
    fs::create_dir(home.at("roots")).unwrap();
    refused(&home.wattlock(&["mount", "-i", "key.txt", "vol", "roots"]), 89, "mounting");
    // What was refused left the volume free.
    good(&home.wattlock(&["fs", "check", "-i", "key.txt", "vol"]));
}

#[test]
fn a_user_that_may_not_open_the_device_is_told_what_to_do() {
    if !rustix::process::geteuid().is_root() || !has("setpriv") || !has("unshare") || !fuse_device() {
        return skipped("needs root, setpriv, unshare and /dev/fuse");
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let program = folder.path().join("wattlock");
    fs::copy(env!("CARGO_BIN_EXE_wattlock"), &program).unwrap();
    // A device with the same numbers that only root may open, in the place of the machine's own.
    let script = "set -e; mknod -m 600 device c 10 229; mount --bind device /dev/fuse; mkdir vol mnt; chown 65534 vol mnt
        exec setpriv --reuid 65534 --regid 65534 --clear-groups -- ./wattlock mount -i none vol mnt";
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-c", script]).current_dir(folder.path()).stdin(Stdio::null());
    let output =
        shell.env("WATTLOCK_TELEMETRY_DIR", folder.path()).env_remove("XDG_RUNTIME_DIR").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("mknod:") || said.contains("unshare:") || said.contains("mount:") {
        return skipped(&format!("needs a mount namespace: {}", said.trim()));
    }
    refused(&output, 88, "this user may not open it: mount as root, or let root");
}
