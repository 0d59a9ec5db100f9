//! What somebody can do who writes the volume's storage: each test is named after the finding of an audit.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use wattlock::Dispatcher;
use wattlock_fs::Error;
use wattlock_fs::content::{Age, Content, Contents};
use wattlock_fs::rotate::Resealed;
use wattlock_fs::store::{FolderStore, JOURNAL};
use wattlock_fs::volume::Volume;

use crate::support::{crypto, pattern, place, volume};

/// Bytes of a header, and of a stored chunk.
const HEADER: u64 = 96;
const STRIDE: u64 = 4136;

type Open = Arc<Content<FolderStore>>;

/// A volume's folder, and one run of it after the other.
struct Victim {
    folder: tempfile::TempDir,
    volume: Volume,
    crypto: Dispatcher,
}

impl Victim {
    fn new() -> Victim {
        Victim { folder: tempfile::tempdir().unwrap(), volume: volume(), crypto: crypto() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&mut self) -> Contents<FolderStore> {
        let store = FolderStore::open(self.folder.path()).unwrap();
        Contents::start(store, &self.volume, &mut self.crypto).unwrap().0
    }

    /// Does something in a run that ends well.
    fn run<T>(&mut self, work: impl FnOnce(&mut Victim, &Contents<FolderStore>) -> T) -> T {
        let contents = self.start();
        let done = work(self, &contents);
        contents.end(&mut self.crypto).unwrap();
        done
    }

    /// Does something in a run that is killed.
    fn killed<T>(&mut self, work: impl FnOnce(&mut Victim, &Contents<FolderStore>) -> T) -> T {
        let contents = self.start();
        work(self, &contents)
    }

    fn make(&mut self, contents: &Contents<FolderStore>, name: &str, bytes: &[u8]) -> Open {
        let file = fs::File::options().read(true).write(true).create_new(true).open(self.path(name)).unwrap();
        let _creating = contents.before_create(&mut self.crypto).unwrap();
        let content = contents.create(file, place(self.folder.path(), name), &mut self.crypto).unwrap();
        content.write(bytes, 0, &mut self.crypto).unwrap();
        content
    }

    fn open(&mut self, contents: &Contents<FolderStore>, name: &str) -> Result<Open, Error> {
        let file = fs::File::options().read(true).write(true).open(self.path(name)).unwrap();
        contents.open(file, place(self.folder.path(), name), &mut self.crypto)
    }

    fn read(&mut self, contents: &Contents<FolderStore>, name: &str) -> Result<Vec<u8>, Error> {
        let content = self.open(contents, name)?;
        let mut bytes = vec![0; content.len() as usize];
        let len = content.read(&mut bytes, 0, &mut self.crypto)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// As in a run of its own.
    fn reads(&mut self, name: &str) -> Result<Vec<u8>, Error> {
        self.run(|victim, contents| victim.read(contents, name))
    }

    fn id(&self, name: &str) -> [u8; 8] {
        let mut id = [0; 8];
        fs::File::open(self.path(name)).unwrap().read_exact_at(&mut id, 16).unwrap();
        id
    }

    /// Copies a stored chunk of one file over the same of another.
    fn exchange(&self, from: &str, to: &str, chunk: u64) {
        let mut slot = vec![0; STRIDE as usize];
        let at = HEADER + chunk * STRIDE;
        fs::File::open(self.path(from)).unwrap().read_exact_at(&mut slot, at).unwrap();
        fs::File::options().write(true).open(self.path(to)).unwrap().write_all_at(&slot, at).unwrap();
    }
}

fn is_damaged(read: Result<Vec<u8>, Error>) -> bool {
    matches!(read, Err(Error::Damaged(_)))
}

#[test]
fn audit_3a_chunks_of_a_file_that_was_emptied_are_not_those_of_the_file_it_was_made_of() {
    for emptied in [true, false] {
        let mut victim = Victim::new();
        victim.run(|victim, contents| {
            victim.make(contents, "x", &pattern(20_000, 1));
            victim.make(contents, "y", &pattern(20_000, 2));
        });
        fs::copy(victim.path("x"), victim.path("y")).unwrap();
        let written = pattern(20_000, 3);
        victim.run(|victim, contents| {
            let y = victim.open(contents, "y").unwrap();
            if emptied {
                y.set_len(0, &mut victim.crypto).unwrap();
            }
            y.write(&written, 0, &mut victim.crypto).unwrap();
        });
        assert!(victim.reads("y").unwrap() == written);
        victim.exchange("x", "y", 1);
        // Overwritten without being emptied it is a copy that was not told to be one.
        assert_eq!(is_damaged(victim.reads("y")), emptied, "{emptied}");
    }
}

#[test]
fn audit_3a_an_empty_file_gets_a_key_of_its_own_before_it_is_written() {
    for killed in [true, false] {
        let mut victim = Victim::new();
        victim.run(|victim, contents| {
            victim.make(contents, "x", b"");
            victim.make(contents, "y", b"");
        });
        // The beginning of one in the place of the other.
        fs::copy(victim.path("x"), victim.path("y")).unwrap();
        let write = |victim: &mut Victim, name: &str, bytes: &[u8]| {
            let work = |victim: &mut Victim, contents: &Contents<FolderStore>| {
                let file = victim.open(contents, name).unwrap();
                file.append(bytes, &mut victim.crypto).unwrap();
                file.sync(&mut victim.crypto).unwrap();
            };
            if killed { victim.killed(work) } else { victim.run(work) }
        };
        write(&mut victim, "x", &pattern(20_000, 1));
        write(&mut victim, "y", &pattern(20_000, 2));
        assert!(victim.reads("x").unwrap() == pattern(20_000, 1));
        assert!(victim.reads("y").unwrap() == pattern(20_000, 2));
        victim.exchange("x", "y", 1);
        assert!(is_damaged(victim.reads("y")), "{killed}");
    }
}

/// Of some data, a hole, and data at its end.
fn sparse(victim: &mut Victim, contents: &Contents<FolderStore>, name: &str) -> Vec<u8> {
    let file = victim.make(contents, name, &pattern(10_000, 5));
    file.set_len(1 << 20, &mut victim.crypto).unwrap();
    file.append(b"the end", &mut victim.crypto).unwrap();
    victim.read(contents, name).unwrap()
}

#[test]
fn audit_3a_a_copy_gets_an_id_and_a_key_of_its_own_before_its_first_write() {
    for (killed, holes) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut victim = Victim::new();
        let was = victim.run(|victim, contents| match holes {
            true => sparse(victim, contents, "x"),
            false => {
                victim.make(contents, "x", &pattern(30_000, 1));
                pattern(30_000, 1)
            }
        });
        let copy = "x.sync-conflict-20261127-101112-ABCDEFG";
        fs::copy(victim.path("x"), victim.path(copy)).unwrap();
        assert_eq!(victim.id("x"), victim.id(copy));
        let work = |victim: &mut Victim, contents: &Contents<FolderStore>| {
            let open = victim.open(contents, copy).unwrap();
            open.own_copy(copy.as_bytes(), &mut victim.crypto).unwrap();
            assert!(victim.read(contents, copy).unwrap() == was);
            open.write(b"mine", 4096, &mut victim.crypto).unwrap();
            open.sync(&mut victim.crypto).unwrap();
            let x = victim.open(contents, "x").unwrap();
            x.write(b"yours", 0, &mut victim.crypto).unwrap();
            x.sync(&mut victim.crypto).unwrap();
        };
        if killed {
            victim.killed(work)
        } else {
            victim.run(work)
        }
        let mut mine = was.clone();
        mine[4096..4100].copy_from_slice(b"mine");
        let mut yours = was.clone();
        yours[..5].copy_from_slice(b"yours");
        assert!(victim.reads(copy).unwrap() == mine, "{killed} {holes}");
        assert!(victim.reads("x").unwrap() == yours, "{killed} {holes}");
        let id = victim.id(copy);
        assert_ne!(id, victim.id("x"));
        // Once is enough.
        victim.run(|victim, contents| {
            let open = victim.open(contents, copy).unwrap();
            open.own_copy(copy.as_bytes(), &mut victim.crypto).unwrap();
        });
        assert_eq!(victim.id(copy), id);
        victim.exchange("x", copy, 0);
        assert!(is_damaged(victim.reads(copy)), "{killed} {holes}");
    }
}

#[test]
fn audit_3a_a_copy_of_a_copy_is_told_from_it_and_a_large_one_gets_an_id() {
    let mut victim = Victim::new();
    let large = pattern(65 << 20, 4);
    victim.run(|victim, contents| {
        victim.make(contents, "x", &large);
    });
    for (from, to) in [("x", "x (copy)"), ("x (copy)", "x (copy) (copy)")] {
        fs::copy(victim.path(from), victim.path(to)).unwrap();
        victim.killed(|victim, contents| {
            let open = victim.open(contents, to).unwrap();
            open.own_copy(to.as_bytes(), &mut victim.crypto).unwrap();
            open.write(b"mine", 0, &mut victim.crypto).unwrap();
            open.sync(&mut victim.crypto).unwrap();
        });
        let read = victim.reads(to).unwrap();
        assert!(read.len() == large.len() && read[..4] == *b"mine" && read[4..] == large[4..]);
        assert_ne!(victim.id(from), victim.id(to));
    }
}

#[test]
fn audit_3a_files_of_one_id_that_are_written_in_one_run_are_told_apart() {
    let mut victim = Victim::new();
    victim.run(|victim, contents| {
        victim.make(contents, "x", &pattern(20_000, 0));
    });
    // Without a suffix: where names are plain nothing says that it is a copy.
    fs::copy(victim.path("x"), victim.path("y")).unwrap();
    victim.killed(|victim, contents| {
        for (name, at) in [("x", 0), ("y", 4096)] {
            let file = victim.open(contents, name).unwrap();
            file.write(&[name.as_bytes()[0]; 8192], at, &mut victim.crypto).unwrap();
            file.sync(&mut victim.crypto).unwrap();
        }
    });
    for (name, at) in [("x", 0), ("y", 4096)] {
        let mut expected = pattern(20_000, 0);
        expected[at..at + 8192].fill(name.as_bytes()[0]);
        assert!(victim.reads(name).unwrap() == expected, "{name}");
    }
    assert_ne!(victim.id("x"), victim.id("y"));
}

#[test]
fn audit_4_an_older_journal_does_not_cut_what_a_run_that_ended_well_has_made() {
    for moved in [false, true] {
        let mut victim = Victim::new();
        let old = victim.run(|victim, contents| {
            let file = victim.make(contents, "list", &pattern(31_000, 1));
            let old = fs::read(victim.path(JOURNAL)).unwrap();
            file.sync(&mut victim.crypto).unwrap();
            if moved {
                let inode = place(victim.folder.path(), "list").inode;
                fs::create_dir(victim.path("folder")).unwrap();
                fs::rename(victim.path("list"), victim.path("folder/other")).unwrap();
                contents.moved(inode, false, b"list", b"folder/other");
                let folder = place(victim.folder.path(), "folder").inode;
                fs::rename(victim.path("folder"), victim.path("list")).unwrap();
                contents.moved(folder, true, b"folder", b"list");
            }
            old
        });
        let name = if moved { "list/other" } else { "list" };
        assert!(victim.reads(name).unwrap() == pattern(31_000, 1));
        fs::write(victim.path(JOURNAL), &old).unwrap();
        let file = fs::File::options().write(true).open(victim.path(name)).unwrap();
        file.set_len(HEADER + 4 * STRIDE).unwrap();
        assert!(is_damaged(victim.reads(name)), "{moved}");
    }
}

#[test]
fn an_origin_and_an_epoch_say_which_journal_is_older() {
    let mut victim = Victim::new();
    let mut start = |known: Option<([u8; 8], u64)>| {
        let store = FolderStore::open(victim.folder.path()).unwrap();
        let mut found = None;
        let judge = &mut |age: &Age| {
            found = Some(*age);
            Ok(known)
        };
        let (contents, _) =
            Contents::start_judged(store, &victim.volume, false, (&|| false, judge), &mut victim.crypto)
                .unwrap();
        (found.unwrap(), contents.age())
    };
    let (found, first) = start(None);
    assert!(found.epoch == 0 && first.epoch > 0 && found.origin != first.origin);
    let (found, second) = start(Some((first.origin, first.epoch)));
    assert_eq!(found, first);
    assert!(second.origin == first.origin && second.epoch > first.epoch);
    let (found, third) = start(None);
    assert_eq!(found, second);
    assert_ne!(third.origin, second.origin);
    let (_, fourth) = start(Some((first.origin, 1000)));
    assert!(fourth.origin == first.origin && fourth.epoch > 1000);
}

#[test]
fn an_older_chunk_and_an_older_file_open_until_the_file_is_emptied() {
    let mut victim = Victim::new();
    victim.run(|victim, contents| {
        victim.make(contents, "x", &pattern(20_000, 1));
    });
    fs::copy(victim.path("x"), victim.path("old")).unwrap();
    victim.run(|victim, contents| {
        victim.open(contents, "x").unwrap().write(&pattern(20_000, 2), 0, &mut victim.crypto).unwrap();
    });
    victim.exchange("old", "x", 1);
    let mixed = victim.reads("x").unwrap();
    assert!(
        mixed[..4096] == pattern(20_000, 2)[..4096] && mixed[4096..8192] == pattern(20_000, 1)[4096..8192]
    );
    let old = fs::read(victim.path("old")).unwrap();
    fs::write(victim.path("x"), &old).unwrap();
    assert!(victim.reads("x").unwrap() == pattern(20_000, 1));
    victim.run(|victim, contents| {
        let x = victim.open(contents, "x").unwrap();
        x.set_len(0, &mut victim.crypto).unwrap();
        x.write(&pattern(20_000, 3), 0, &mut victim.crypto).unwrap();
    });
    victim.exchange("old", "x", 1);
    assert!(is_damaged(victim.reads("x")));
}

#[test]
fn audit_8_files_of_one_volume_that_are_exchanged_open_under_each_others_names() {
    let mut victim = Victim::new();
    victim.run(|victim, contents| {
        victim.make(contents, "private", &pattern(9000, 1));
        victim.make(contents, "public", &pattern(5000, 2));
    });
    fs::write(victim.path("public"), fs::read(victim.path("private")).unwrap()).unwrap();
    assert!(victim.reads("public").unwrap() == pattern(9000, 1));
}

/// What is left of a backing file whose header is gone.
const HEADERLESS: [fn(&mut Vec<u8>); 6] = [
    |bytes| bytes[..HEADER as usize].fill(0),
    |bytes| bytes.fill(0),
    |bytes| bytes.clear(),
    |bytes| bytes.truncate(95),
    |bytes| bytes.truncate(96),
    |bytes| *bytes = vec![0; 136],
];

#[test]
fn audit_3_a_file_of_before_the_crash_without_a_header_is_damaged_and_stays() {
    for (number, change) in HEADERLESS.into_iter().enumerate() {
        let mut victim = Victim::new();
        victim.run(|victim, contents| {
            victim.make(contents, "old", &pattern(9000, 1));
        });
        // The clocks of files stand still for some milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(100));
        victim.killed(|victim, contents| {
            victim.make(contents, "new", &pattern(9000, 2));
        });
        let mut bytes = fs::read(victim.path("old")).unwrap();
        change(&mut bytes);
        fs::write(victim.path("old"), &bytes).unwrap();
        let born = fs::metadata(victim.path("old")).unwrap().created();
        // Storage that does not say when files were made keeps what has bytes.
        if born.is_err() && bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        assert!(is_damaged(victim.reads("old")), "{number}");
        assert_eq!(fs::read(victim.path("old")).unwrap(), bytes, "{number}");
        assert!(victim.reads("new").unwrap() == pattern(9000, 2));
    }
}

/// A machine without a clock of its own starts before it has asked for the time. What was never durable is no damage for
/// that, and what somebody makes after a start is none of the crash's by any other clock.
#[test]
fn audit_3_a_start_with_a_clock_that_is_behind_takes_no_file_for_a_younger_one() {
    for behind in [false, true] {
        let mut victim = Victim::new();
        victim.killed(|victim, contents| {
            victim.make(contents, "new", &pattern(9000, 2));
        });
        let journal = fs::File::options().write(true).open(victim.path(JOURNAL)).unwrap();
        let hour = std::time::Duration::from_secs(if behind { 3600 } else { 0 });
        journal.set_modified(std::time::SystemTime::now() + hour).unwrap();
        let read = victim.run(|victim, contents| {
            // As the clock has it, this one was made after the start.
            fs::write(victim.path("late"), []).unwrap();
            victim.read(contents, "late")
        });
        if fs::metadata(victim.path("late")).unwrap().created().is_ok() {
            assert_eq!(is_damaged(read), !behind);
        }
    }
}

#[test]
fn audit_3_what_is_begun_anew_after_a_crash_is_kept_aside() {
    let mut victim = Victim::new();
    victim.killed(|victim, contents| {
        victim.make(contents, "new", &pattern(9000, 2));
    });
    let file = fs::File::options().write(true).open(victim.path("new")).unwrap();
    file.write_all_at(&[0; HEADER as usize], 0).unwrap();
    let new = fs::read(victim.path("new")).unwrap();
    let read = victim.reads("new");
    // Storage that does not say when files were made keeps it as damage.
    if fs::metadata(victim.path("new")).unwrap().created().is_err() {
        assert!(is_damaged(read));
        return;
    }
    assert!(read.unwrap().is_empty());
    let entries = fs::read_dir(victim.folder.path()).unwrap().flatten();
    let aside = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("wattlock.bad.");
    let kept: Vec<_> = entries.filter(aside).map(|entry| fs::read(entry.path()).unwrap()).collect();
    assert_eq!(kept, [new]);
}

#[test]
fn an_empty_file_of_this_run_that_gets_another_id_keeps_what_a_sync_acknowledged() {
    for copied in [true, false] {
        let mut victim = Victim::new();
        let name = if copied { "x (conflict)" } else { "x" };
        victim.killed(|victim, contents| {
            drop(victim.make(contents, "x", b""));
            if copied {
                fs::copy(victim.path("x"), victim.path(name)).unwrap();
            } else {
                // Another inode, as a synchroniser puts it there.
                fs::copy(victim.path("x"), victim.path("part")).unwrap();
                fs::rename(victim.path("part"), victim.path(name)).unwrap();
            }
            let open = victim.open(contents, name).unwrap();
            if copied {
                open.own_copy(name.as_bytes(), &mut victim.crypto).unwrap();
            }
            for (bytes, at) in [(pattern(8192, 1), 0), (pattern(4096, 2), 0), (pattern(100, 3), 8192)] {
                open.write(&bytes, at, &mut victim.crypto).unwrap();
                open.sync(&mut victim.crypto).unwrap();
            }
        });
        let mut expected = [&pattern(4096, 2)[..], &pattern(8192, 1)[4096..]].concat();
        expected.extend(pattern(100, 3));
        assert!(victim.reads(name).unwrap() == expected, "{copied}");
    }
}

#[test]
fn audit_6_a_removed_opener_that_kept_a_files_key_can_write_it_after_a_rotation() {
    let mut victim = Victim::new();
    victim.run(|victim, contents| {
        victim.make(contents, "file", &pattern(9000, 1));
    });
    // Sealed by whoever had the file's key before.
    let mut slot = vec![0; STRIDE as usize];
    fs::File::open(victim.path("file")).unwrap().read_exact_at(&mut slot, HEADER).unwrap();
    victim.volume.add_generation().unwrap();
    victim.run(|victim, contents| {
        let file = fs::File::options().read(true).write(true).open(victim.path("file")).unwrap();
        let inode = place(victim.folder.path(), "file").inode;
        let resealed = contents.reseal(&file, inode, (true, true), &mut victim.crypto).unwrap();
        assert_eq!(resealed, Resealed::Anew);
        let content = victim.open(contents, "file").unwrap();
        content.write(&pattern(9000, 2), 0, &mut victim.crypto).unwrap();
    });
    victim.volume.keys.remove(0);
    assert!(victim.reads("file").unwrap() == pattern(9000, 2));
    let file = fs::File::options().write(true).open(victim.path("file")).unwrap();
    file.write_all_at(&slot, HEADER).unwrap();
    assert!(victim.reads("file").unwrap()[..4096] == pattern(9000, 1)[..4096]);
}
