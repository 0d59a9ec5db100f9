//! What cannot be mounted: one line, its own exit code, and not a byte of the volume's folder changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::desk::{Desk, fuse, good, refused, skipped};

/// Every file below a folder, with its content.
pub fn stored(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.symlink_metadata().unwrap() {
            meta if meta.is_dir() => all.extend(stored(&path)),
            meta if meta.is_symlink() => {
                let target = fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes();
                all.push((path, target));
            }
            _ => all.push((path.clone(), fs::read(&path).unwrap())),
        }
    }
    all.sort();
    all
}

#[test]
fn a_volume_that_does_not_open_is_not_mounted_and_not_changed() {
    if !fuse() {
        return;
    }
    let desk = Desk::new(&[]);
    let mounted = desk.mount(&[]);
    fs::write(mounted.join("f"), "text").unwrap();
    desk.unmount();
    let key = fs::read_to_string(desk.at("key.txt")).unwrap();
    let recipient = key.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
    let own = desk.at("vol/wattlock.fs");
    let sealed = fs::read(&own).unwrap();
    let reseal = |text: &str| {
        fs::write(desk.at("text"), text).unwrap();
        good(&desk.run(&["seal", "-q", "-r", recipient, "-o", "vol/wattlock.fs", "-f", "text"]));
    };
    let flipped = |at: usize| {
        let mut bytes = sealed.clone();
        bytes[at] ^= 1;
        fs::write(&own, bytes).unwrap();
    };
    let refuse = |code: i32, said: &str| {
        let before = stored(&desk.at("vol"));
        refused(&desk.run(&["mount", "-i", "key.txt", "vol", "mnt"]), code, said);
        assert!(stored(&desk.at("vol")) == before, "{said}: the volume changed");
        assert_eq!(fs::read_dir(desk.at("mnt")).unwrap().count(), 0);
    };
    reseal("wattlock volume 2\n");
    refuse(81, "version");
    reseal("wattlock volume 1\nchunk 7\n");
    refuse(81, "newer program");
    reseal("wattlock volume 1\nchunk many\n");
    refuse(82, "damaged");
    fs::write(&own, "hello").unwrap();
    refuse(21, "");
    fs::write(&own, "").unwrap();
    refuse(20, "empty");
    for at in [sealed.len() - 1, sealed.len() / 2, 100] {
        flipped(at);
        let output = desk.run(&["mount", "-i", "key.txt", "vol", "mnt"]);
        refuse(output.status.code().unwrap(), "");
        assert!(!output.status.success(), "byte {at}");
    }
    fs::write(&own, &sealed[..sealed.len() - 10]).unwrap();
    let output = desk.run(&["mount", "-i", "key.txt", "vol", "mnt"]);
    refuse(output.status.code().unwrap(), "");
    fs::remove_file(&own).unwrap();
    refuse(80, "no volume");
    fs::write(&own, &sealed).unwrap();
    // The journal: its valid head, and a journal of another volume.
    let journal = desk.at("vol/wattlock.journal");
    let good_journal = fs::read(&journal).unwrap();
    let mut bytes = good_journal.clone();
    bytes[30] ^= 1;
    bytes[4096 + 30] ^= 1;
    fs::write(&journal, &bytes).unwrap();
    refuse(83, "journal");
    fs::create_dir(desk.at("other")).unwrap();
    fs::remove_dir(desk.at("other")).unwrap();
    good(&desk.run(&["fs", "init", "-r", recipient, "other"]));
    fs::create_dir(desk.at("mnt2")).unwrap();
    good(&desk.run(&["mount", "-i", "key.txt", "other", "mnt2"]));
    good(&desk.run(&["umount", "mnt2"]));
    fs::copy(desk.at("other/wattlock.journal"), &journal).unwrap();
    refuse(83, "journal");
    fs::write(&journal, &good_journal).unwrap();
    // As it was it opens.
    desk.mount(&[]);
    assert_eq!(fs::read_to_string(mounted.join("f")).unwrap(), "text");
    desk.unmount();
}

#[test]
fn a_wrong_passphrase_and_a_dead_mount_have_codes_of_their_own() {
    if !fuse() {
        return;
    }
    let desk = Desk::new(&[]);
    fs::write(desk.at("one"), "correct horse\n").unwrap();
    fs::write(desk.at("two"), "battery staple\n").unwrap();
    let init = ["fs", "init", "--passphrase-file", "one", "--work-factor", "1", "secret"];
    good(&desk.run(&init));
    let mount = |file: &str| desk.run(&["mount", "--passphrase-file", file, "secret", "mnt"]);
    refused(&mount("two"), 14, "passphrase");
    let locked = fs::read_dir(desk.at("secret/wattlock.keys")).unwrap().next().unwrap().unwrap().path();
    let identity = fs::read(&locked).unwrap();
    let mut altered = identity.clone();
    let last = altered.len() - 1;
    altered[last] ^= 1;
    fs::write(&locked, altered).unwrap();
    let output = mount("one");
    refused(&output, output.status.code().unwrap(), "");
    assert!(!output.status.success());
    fs::write(&locked, identity).unwrap();
    good(&mount("one"));
    desk.unmount();
    // A process that died leaves a mount that says so.
    desk.mount(&[]);
    let process = rustix::process::Pid::from_raw(desk.process()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    let journal = fs::File::open(desk.at("vol/wattlock.journal")).unwrap();
    rustix::fs::flock(&journal, rustix::fs::FlockOperation::LockExclusive).unwrap();
    drop(journal);
    refused(&desk.run(&["mount", "-i", "key.txt", "vol", "mnt"]), 87, "dead");
    good(&desk.run(&["umount", "mnt"]));
    desk.mount(&[]);
    desk.unmount();
}

#[test]
fn without_the_device_a_mount_says_so() {
    let desk = Desk::new(&[]);
    // A mount namespace of its own, without devices.
    let hidden = "mount -t tmpfs none /dev && : >/dev/null && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", hidden, "sh", env!("CARGO_BIN_EXE_wattlock")]);
    command.args(["mount", "-i", "key.txt", "vol", "mnt"]).current_dir(desk.folder.path());
    command.env("WATTLOCK_PROFILE", desk.at("profile.json"));
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("unshare") || errors.contains("mount: /dev") {
        return skipped("hiding the device takes privileges that are not here");
    }
    refused(&output, 88, "FUSE");
    assert_eq!(fs::read_dir(desk.at("mnt")).unwrap().count(), 0);
}
