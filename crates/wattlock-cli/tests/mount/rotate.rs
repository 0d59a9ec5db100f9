//! Rotation of a volume that is mounted: its mount seals everything anew.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::desk::{Desk, fuse, good, refused};

const ROTATE: [&str; 6] = ["fs", "key", "rotate", "-i", "key.txt", "vol"];

fn desk() -> Option<Desk> {
    fuse().then(|| Desk::new(&[]))
}

/// Generations in the headers of all backing files.
fn generations(desk: &Desk) -> Vec<u32> {
    generations_in(desk.at("vol"))
}

fn generations_in(volume: PathBuf) -> Vec<u32> {
    let mut found = Vec::new();
    let mut left = vec![volume];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let bytes = if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
                continue;
            } else {
                fs::read(entry.path()).unwrap()
            };
            if bytes.starts_with(b"wattlofs") || bytes.starts_with(b"wlfolder") {
                found.push(u32::from_be_bytes(bytes[12..16].try_into().unwrap()));
            }
        }
    }
    found
}

#[test]
fn a_mounted_volume_is_rotated_while_it_is_used_and_a_removed_key_is_shut_out() {
    let Some(desk) = desk() else { return };
    good(&desk.run(&["keygen", "-o", "mallory.txt"]));
    let text = fs::read_to_string(desk.at("mallory.txt")).unwrap();
    let recipient = text.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
    good(&desk.run(&["fs", "key", "add", "-i", "key.txt", "--name", "mallory", "-r", recipient, "vol"]));
    let mounted = desk.mount(&[]);
    // Of a program that synchronises the folder: a rotation has nothing to do with it.
    fs::create_dir(desk.at("vol/.stfolder")).unwrap();
    fs::write(desk.at("vol/.stignore"), "*.tmp").unwrap();
    fs::create_dir_all(mounted.join("a/b")).unwrap();
    for number in 0..200 {
        fs::write(mounted.join(format!("a/b/{number}")), vec![number as u8; 5000]).unwrap();
    }
    let open = fs::File::options().read(true).write(true).open(mounted.join("a/b/7")).unwrap();
    open.write_all_at(b"before", 0).unwrap();
    open.sync_all().unwrap();
    // A hole makes a header in the journal.
    open.set_len(1 << 20).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !ended.load(Ordering::SeqCst) && round < 50 {
                let (new, name) = (mounted.join("a/new"), mounted.join(format!("a/{round}")));
                fs::File::create(&new).unwrap().write_all(b"while it goes on").unwrap();
                fs::rename(&new, &name).unwrap();
                round += 1;
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        let remove = ["fs", "key", "rotate", "-i", "key.txt", "--remove", "mallory", "vol"];
        let rotated = desk.run(&remove);
        ended.store(true, Ordering::SeqCst);
        let said = good(&rotated) + &String::from_utf8_lossy(&rotated.stderr);
        assert!(said.contains("sealed anew"), "{said}");
    });
    open.write_all_at(b"after", 100_000).unwrap();
    open.sync_all().unwrap();
    fs::write(mounted.join("later"), "later").unwrap();
    refused(&desk.run(&["fs", "ls", "-i", "mallory.txt", "vol"]), 12, "opens the volume");
    // Killed, so that the journal is read with the new key, too.
    drop(open);
    desk.kill(desk.process());
    let mounted = desk.mount(&[]);
    assert_eq!(fs::read(mounted.join("later")).unwrap(), b"later");
    let bytes = fs::read(mounted.join("a/b/7")).unwrap();
    assert!(bytes.len() == 1 << 20 && bytes[..6] == *b"before" && bytes[100_000..100_005] == *b"after");
    for number in (0..200).filter(|number| *number != 7) {
        assert_eq!(fs::read(mounted.join(format!("a/b/{number}"))).unwrap(), vec![number as u8; 5000]);
    }
    desk.unmount();
    let found = generations(&desk);
    assert!(found.len() > 200 && found.iter().all(|generation| *generation == 2), "{found:?}");
    assert!(good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"])).contains(" 0 damaged"));
    // Once more, without a mount.
    good(&desk.run(&ROTATE));
    assert!(generations(&desk).iter().all(|generation| *generation == 3));
    assert!(desk.at("vol/.stfolder").is_dir());
    assert_eq!(fs::read(desk.at("vol/.stignore")).unwrap(), b"*.tmp");
}

/// A start mends what a crash left, and so does a rotation without one. Times move on alike, mounted or not.
#[test]
fn a_rotation_after_a_crash_mends_first_and_moves_times_on_as_a_mounted_one_does() {
    let Some(desk) = desk() else { return };
    let mounted = desk.mount(&[]);
    fs::write(mounted.join("old"), "content").unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(mounted.join("old")).unwrap().set_modified(long_ago).unwrap();
    desk.unmount();
    let mounted = desk.mount(&[]);
    fs::write(mounted.join("torn"), vec![7; 50_000]).unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(mounted.join("torn")).unwrap());
    desk.kill(desk.process());
    let mut entries = fs::read_dir(desk.at("vol")).unwrap().map(|entry| entry.unwrap());
    let torn = entries.find(|entry| std::os::unix::fs::DirEntryExt::ino(entry) == inode).unwrap();
    fs::File::options().write(true).open(torn.path()).unwrap().set_len(0).unwrap();
    good(&desk.run(&ROTATE));
    assert!(good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"])).contains(" 0 damaged"));
    let mounted = desk.mount(&[]);
    good(&desk.run(&ROTATE));
    let modified = || fs::metadata(mounted.join("old")).unwrap().modified().unwrap();
    // The kernel may know the file.
    desk.unmount();
    desk.mount(&[]);
    assert_eq!(modified(), long_ago + std::time::Duration::from_secs(4));
    assert_eq!(fs::read(mounted.join("torn")).unwrap(), b"");
    desk.unmount();
}

#[test]
fn a_mount_that_cannot_seal_anew_says_why_and_the_rotation_goes_on_later() {
    let Some(desk) = desk() else { return };
    let mounted = desk.mount(&[]);
    fs::write(mounted.join("file"), "content").unwrap();
    desk.unmount();
    for (option, why) in [("ro", "read-only"), ("shared", "--shared")] {
        desk.mount(&["-o", option]);
        refused(&desk.run(&ROTATE), 84, why);
        desk.unmount();
    }
    good(&desk.run(&ROTATE));
    let mounted = desk.mount(&[]);
    assert_eq!(fs::read(mounted.join("file")).unwrap(), b"content");
    desk.unmount();
    assert!(good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"])).contains(" 0 damaged"));
}

#[test]
fn audit_3a_a_copy_that_is_written_through_the_mount_gets_a_key_of_its_own() {
    let Some(desk) = desk() else { return };
    let mounted = desk.mount(&[]);
    fs::write(mounted.join("doc"), vec![1; 30_000]).unwrap();
    desk.unmount();
    let stored = fs::read_dir(desk.at("vol")).unwrap().flatten().map(|entry| entry.path());
    let stored = stored.filter(|path| fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"wattlofs")));
    let stored = stored.collect::<Vec<_>>().pop().unwrap();
    let copy = stored.with_file_name(format!(
        "{}.sync-conflict-20261127-101112-ABCDEFG",
        stored.file_name().unwrap().to_str().unwrap()
    ));
    fs::copy(&stored, &copy).unwrap();
    let mounted = desk.mount(&[]);
    let shown = fs::read_dir(&mounted).unwrap().flatten().map(|entry| entry.path());
    let shown = shown.filter(|path| path.file_name().unwrap() != "doc").collect::<Vec<_>>();
    let [shown] = &shown[..] else { panic!("{shown:?}") };
    // Reading changes nothing.
    assert_eq!(fs::read(shown).unwrap(), vec![1; 30_000]);
    let header = |path| fs::read(path).unwrap()[..96].to_vec();
    assert_eq!(header(&stored), header(&copy));
    let file = fs::File::options().write(true).open(shown).unwrap();
    file.write_all_at(b"mine", 10_000).unwrap();
    file.sync_all().unwrap();
    drop(file);
    desk.kill(desk.process());
    let mounted = desk.mount(&[]);
    let mut mine = vec![1; 30_000];
    mine[10_000..10_004].copy_from_slice(b"mine");
    assert_eq!(fs::read(mounted.join(shown.file_name().unwrap())).unwrap(), mine);
    assert_eq!(fs::read(mounted.join("doc")).unwrap(), vec![1; 30_000]);
    desk.unmount();
    assert_ne!(header(&stored)[16..24], header(&copy)[16..24]);
    let mut slot = vec![0; 4136];
    fs::File::open(&stored).unwrap().read_exact_at(&mut slot, 96).unwrap();
    fs::File::options().write(true).open(&copy).unwrap().write_all_at(&slot, 96).unwrap();
    refused(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]), 83, "damaged");
}

#[test]
fn a_rotation_is_for_the_volume_that_is_meant_however_its_mounts_source_reads() {
    let Some(desk) = desk() else { return };
    let text = fs::read_to_string(desk.at("key.txt")).unwrap();
    let recipient = text.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
    // The table of mounts shows both as the first.
    for (name, point) in [("q_1", "m1"), ("q,1", "m2")] {
        good(&desk.run(&["fs", "init", "-r", recipient, name]));
        fs::create_dir(desk.at(point)).unwrap();
        good(&desk.run(&["mount", "-i", "key.txt", name, point]));
        fs::write(desk.at(point).join("file"), name).unwrap();
    }
    let rotated = desk.run(&["fs", "key", "rotate", "-i", "key.txt", "q,1"]);
    for point in ["m1", "m2"] {
        good(&desk.run(&["umount", point]));
    }
    good(&rotated);
    for (name, generation) in [("q_1", 1), ("q,1", 2)] {
        let check = desk.run(&["fs", "check", "-i", "key.txt", name]);
        assert!(good(&check).contains(" 0 damaged"));
        assert_eq!(good(&desk.run(&["fs", "cat", "-i", "key.txt", name, "/file"])), name);
        let headers = generations_in(desk.at(name));
        assert!(headers.iter().all(|of| *of == generation), "{name}: {headers:?}");
    }
}
