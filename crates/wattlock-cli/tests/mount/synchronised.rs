//! A volume's folder that other programs synchronise: conflicting copies by the names that such programs give, and
//! files of theirs.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::desk::{Desk, fuse, good};

/// What Syncthing, Dropbox, rclone, rsync and Unison add.
const ADDED: [&str; 6] = [
    ".sync-conflict-20261126-101112-ABCDEFG",
    " (Anna's conflicted copy 2026-11-26)",
    ".conflict1",
    "~",
    "-HOSTNAME",
    "_conf(2)",
];

/// The stored files of a folder that are entries.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_entry = |path: &PathBuf| {
        let name = path.file_name().unwrap().as_bytes();
        !name.starts_with(b"wattlock.") || name.starts_with(b"wattlock.long.") && !name.ends_with(b".name")
    };
    paths.filter(is_entry).collect()
}

/// Nobody lists the folder before.
#[test]
fn a_conflicting_copy_is_opened_renamed_and_removed_by_the_name_that_is_shown() {
    if !fuse() {
        return;
    }
    for names in ["folder", "deterministic"] {
        for more in [&[][..], &["--shared"]] {
            for len in [3, 200] {
                let desk = Desk::new(&["--names", names]);
                let mounted = desk.mount(&[]);
                let name = "n".repeat(len);
                fs::write(mounted.join(&name), "content").unwrap();
                desk.unmount();
                let stored = entries(&desk.at("vol")).pop().unwrap().into_os_string().into_string().unwrap();
                for added in ADDED {
                    fs::copy(&stored, format!("{stored}{added}")).unwrap();
                }
                let mounted = desk.mount(more);
                for (at, added) in ADDED.iter().enumerate() {
                    let copy = mounted.join(format!("{name} [conflict {}]", added.trim()));
                    assert_eq!(fs::read(&copy).unwrap(), b"content", "{added}");
                    fs::OpenOptions::new()
                        .append(true)
                        .open(&copy)
                        .and_then(|mut file| std::io::Write::write_all(&mut file, b" and more"))
                        .unwrap();
                    match at % 2 {
                        0 => fs::remove_file(&copy).unwrap(),
                        _ => fs::rename(&copy, mounted.join(format!("mine{at}"))).unwrap(),
                    }
                    assert!(!copy.exists());
                }
                assert_eq!(fs::read(mounted.join(&name)).unwrap(), b"content");
                assert_eq!(fs::read(mounted.join("mine1")).unwrap(), b"content and more");
                assert_eq!(fs::read_dir(&mounted).unwrap().count(), 4);
                desk.unmount();
                good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
            }
        }
    }
}

/// Two machines made one folder while apart, and a synchronising program kept both records.
#[test]
fn b7_a_folder_that_two_machines_made_is_used_and_removed_by_the_names_that_are_shown() {
    if !fuse() {
        return;
    }
    const RECORD: &str = "wattlock.dir.sync-conflict-20261127-010203-ABCDEFG";
    let long = "l".repeat(200);
    for more in [&[][..], &["--shared"]] {
        let desk = Desk::new(&[]);
        for (volume, names) in [("vol", ["ours", "common", &long]), ("away", ["theirs", "common", "more"])] {
            let mounted = desk.mount(&[]);
            fs::create_dir(mounted.join("Example")).unwrap();
            for name in names {
                fs::write(mounted.join("Example").join(name), format!("{name} of {volume}")).unwrap();
            }
            desk.unmount();
            let inside = entries(&desk.at("vol")).pop().unwrap();
            if volume == "vol" {
                fs::rename(inside, desk.at("first")).unwrap();
                continue;
            }
            for entry in fs::read_dir(desk.at("first")).unwrap() {
                let name = entry.as_ref().unwrap().file_name();
                if name == "wattlock.dir" {
                    fs::rename(inside.join("wattlock.dir"), inside.join(RECORD)).unwrap();
                }
                fs::rename(entry.unwrap().path(), inside.join(name)).unwrap();
            }
        }
        let inside = entries(&desk.at("vol")).pop().unwrap();
        let mounted = desk.mount(more).join("Example");
        // Nobody lists it before.
        let other = format!("common [conflict {}]", &RECORD["wattlock.dir".len()..]);
        for (name, content) in [
            ("theirs", "theirs of away"),
            ("ours", "ours of vol"),
            ("common", "common of vol"),
            (&other, "common of away"),
            ("more", "more of away"),
        ] {
            assert_eq!(fs::read(mounted.join(name)).unwrap(), content.as_bytes(), "{name}");
        }
        assert_eq!(fs::read_dir(&mounted).unwrap().count(), 6);
        // Written, replaced, renamed to a name of one's own, and what a program writes beside it.
        fs::write(mounted.join("theirs"), "new").unwrap();
        fs::write(mounted.join("temporary"), "replaced").unwrap();
        fs::rename(mounted.join("temporary"), mounted.join("more")).unwrap();
        fs::write(mounted.join(format!("{other}~")), "beside").unwrap();
        fs::rename(mounted.join(&other), mounted.join("mine")).unwrap();
        assert!(!mounted.join(&other).exists());
        desk.unmount();
        good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
        let mounted = desk.mount(more).join("Example");
        for (name, content) in [
            ("theirs", "new"),
            ("more", "replaced"),
            ("mine", "common of away"),
            (&*long, &format!("{long} of vol")),
        ] {
            assert_eq!(fs::read(mounted.join(name)).unwrap(), content.as_bytes(), "{name}");
        }
        assert_eq!(fs::read(mounted.join(format!("{other}~"))).unwrap(), b"beside");
        assert_eq!(fs::remove_dir(&mounted).unwrap_err().raw_os_error(), Some(39));
        for entry in fs::read_dir(&mounted).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        fs::remove_dir(&mounted).unwrap();
        assert!(!inside.exists());
        desk.unmount();
        good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
    }
}

/// They are notes of a check, stay through a repair, and a folder that only they fill is not empty.
#[test]
fn files_of_other_programs_are_theirs() {
    if !fuse() {
        return;
    }
    const THEIRS: [&str; 6] = [".stignore", ".DS_Store", "Thumbs.db", "desktop.ini", "._x", "wattlock.notes"];
    let desk = Desk::new(&[]);
    let mounted = desk.mount(&[]);
    fs::create_dir(mounted.join("d")).unwrap();
    desk.unmount();
    let inside = entries(&desk.at("vol")).pop().unwrap();
    fs::create_dir(desk.at("vol/.stfolder")).unwrap();
    for folder in [desk.at("vol"), inside.clone()] {
        THEIRS.iter().for_each(|name| fs::write(folder.join(name), "theirs").unwrap());
    }
    for words in
        [&["fs", "check", "-i", "key.txt", "vol"][..], &["fs", "check", "--repair", "-i", "key.txt", "vol"]]
    {
        let said = good(&desk.run(words));
        assert_eq!(said.matches("another program's").count(), 2 * THEIRS.len() + 1, "{said}");
    }
    let mounted = desk.mount(&[]);
    assert_eq!(fs::read_dir(&mounted).unwrap().count(), 1);
    assert_eq!(fs::remove_dir(mounted.join("d")).unwrap_err().raw_os_error(), Some(39));
    desk.unmount();
    for folder in [desk.at("vol"), inside] {
        THEIRS.iter().for_each(|name| assert_eq!(fs::read(folder.join(name)).unwrap(), b"theirs"));
    }
    assert!(desk.at("vol/.stfolder").exists());
}
