//! What an owner may do to a folder and in it, whatever its mode: the files that the volume keeps in folders ask for no
//! rights of their own.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::desk::{Desk, fuse, good, has, skipped};

const NOBODY: u32 = 65534;

/// What root has and an ordinary user has not.
const RIGHTS: &str = "-dac_override,-dac_read_search,-fowner,-chown,-fsetid";

/// A program that permissions bind: root without these rights is as any other owner.
fn bound() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", RIGHTS, "--inh-caps", RIGHTS, "--"]);
    command
}

/// An ordinary user's program.
fn user() -> Command {
    let (id, mut command) = (NOBODY.to_string(), Command::new("setpriv"));
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]);
    // A program of root's own is closed to the user.
    command.env("PATH", "/usr/bin:/bin");
    command
}

fn can() -> bool {
    if !rustix::process::geteuid().is_root() {
        skipped("taking rights away takes root");
        return false;
    }
    fuse() && has("python3") && has("setpriv")
}

/// Mounts with a program that permissions bind.
fn mount_bound(desk: &Desk) {
    let mut command = bound();
    command.arg(env!("CARGO_BIN_EXE_wattlock")).args(["mount", "-i", "key.txt", "vol", "mnt"]);
    command.current_dir(desk.folder.path()).env("WATTLOCK_PROFILE", desk.at("profile.json"));
    command.env("WATTLOCK_STATE_DIR", desk.at("state"));
    good(&command.env("WATTLOCK_TELEMETRY_DIR", desk.at("telemetry")).output().unwrap());
}

/// Compares two runs of a script, line by line.
fn compare(mut of: impl FnMut(&Path) -> String, mounted: &Path, plain: &Path) {
    let (wanted, found) = (of(plain), of(mounted));
    for (wanted, found) in wanted.lines().zip(found.lines()) {
        assert_eq!(found, wanted);
    }
    assert_eq!(found.lines().count(), wanted.lines().count());
}

fn modes() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/modes.py")
}

/// Every how many modes one is tried: of seven the owner's rights are all there are. WATTLOCK_MODES=1 tries all 512.
fn step() -> String {
    std::env::var("WATTLOCK_MODES").unwrap_or_else(|_| "7".to_owned())
}

#[test]
fn a_folders_owner_needs_no_rights_on_it_for_what_is_ours() {
    if !can() {
        return;
    }
    for init in [&[][..], &["--names", "deterministic"]] {
        let desk = Desk::new(init);
        fs::create_dir(desk.at("plain")).unwrap();
        mount_bound(&desk);
        let of = |folder: &Path| {
            let mut command = bound();
            command.arg("python3").arg(modes()).arg(folder).args(["0", &step()]);
            good(&command.output().unwrap())
        };
        compare(of, &desk.at("mnt"), &desk.at("plain"));
        desk.unmount();
        good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
    }
}

#[test]
fn a_user_needs_no_rights_on_a_folder_of_roots_mount_for_what_is_ours() {
    if !can() {
        return;
    }
    if !user().args(["python3", "-c", ""]).status().unwrap().success() {
        return skipped("no python3 for an ordinary user");
    }
    let desk = Desk::new(&[]);
    fs::set_permissions(desk.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mounted = desk.mount(&["-o", "allow_other"]);
    fs::set_permissions(&mounted, fs::Permissions::from_mode(0o755)).unwrap();
    for folder in ["mnt/w", "plain"] {
        fs::create_dir(desk.at(folder)).unwrap();
        chown(desk.at(folder), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    // The user may not look into this repository.
    let script = fs::read_to_string(modes()).unwrap();
    let of = |folder: &Path| {
        let mut command = user();
        good(&command.args(["python3", "-c", &script]).arg(folder).args(["0", &step()]).output().unwrap())
    };
    compare(of, &desk.at("mnt/w"), &desk.at("plain"));
    desk.unmount();
    good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
}

/// In folders that the mount has not opened yet.
const CLOSED: &str = r#"
import errno, os, sys
os.chdir(sys.argv[1])
LONG = "n" * 200
def told(work):
    try:
        return work() or "ok"
    except OSError as error:
        return errno.errorcode[error.errno]
def put(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
for mode in range(0, 0o1000, 0o100):
    d = f"d{mode:o}"
    if sys.argv[2] == "make":
        os.mkdir(d); put(f"{d}/f"); put(f"{d}/{LONG}"); os.mkdir(f"{d}/in"); os.chmod(d, mode)
        continue
    print(d, told(lambda: put(f"{d}/{LONG}2")), told(lambda: os.rename(f"{d}/{LONG}2", f"{d}/{LONG}3")),
        told(lambda: os.link(f"{d}/f", f"{d}/{LONG}4")), told(lambda: os.mkdir(f"{d}/{LONG}5")), told(lambda: os.rmdir(f"{d}/{LONG}5")),
        told(lambda: sorted(os.listdir(d))), told(lambda: os.unlink(f"{d}/{LONG}3")), told(lambda: os.rmdir(f"{d}/in")), told(lambda: os.rmdir(d)))
"#;

#[test]
fn a_folder_that_was_closed_before_the_mount_is_used_as_far_as_it_is_open() {
    if !can() {
        return;
    }
    let desk = Desk::new(&[]);
    fs::create_dir(desk.at("plain")).unwrap();
    let of = |folder: &Path, what: &str| {
        good(&bound().args(["python3", "-c", CLOSED]).arg(folder).arg(what).output().unwrap())
    };
    mount_bound(&desk);
    compare(|folder| of(folder, "make"), &desk.at("mnt"), &desk.at("plain"));
    desk.unmount();
    mount_bound(&desk);
    compare(|folder| of(folder, "use"), &desk.at("mnt"), &desk.at("plain"));
    desk.unmount();
    good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
}
