//! What goes wrong besides power: disks that refuse, openers that meet, files that a crash left torn and that are not
//! opened.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{Timespec, Timestamps};
use wattlock::Dispatcher;
use wattlock_fs::content::Contents;
use wattlock_fs::dev::{Moment, SimStore};
use wattlock_fs::store::{File, JOURNAL};

use support::{crypto, pattern, volume, whole};

fn start(store: &SimStore, crypto: &mut Dispatcher) -> Contents<SimStore> {
    Contents::start(store.clone(), &volume(), crypto).unwrap().0
}

/// Waits until a thread has ended, or is held up: by then it would have ended.
fn ended(done: &Receiver<()>) {
    let _ = done.recv_timeout(Duration::from_millis(300));
}

/// Work in a thread of its own, behind a call of the store; the call returns when the work is done or held up.
fn meanwhile(
    store: &SimStore,
    moment: Moment,
    work: impl FnOnce() + Send + 'static,
) -> Receiver<JoinHandle<()>> {
    let (out, thread) = channel();
    store.after_next(moment, move || {
        let (say, done) = channel();
        let worker = std::thread::spawn(move || {
            work();
            let _ = say.send(());
        });
        ended(&done);
        out.send(worker).unwrap();
    });
    thread
}

#[test]
fn an_opener_beside_another_has_the_length_that_the_other_left() {
    let (store, mut crypto) = (SimStore::default(), crypto());
    let contents = Arc::new(start(&store, &mut crypto));
    let (file, place) = store.create("file");
    let content = contents.create(file, place, &mut crypto).unwrap();
    content.write(b"one", 0, &mut crypto).unwrap();
    content.sync(&mut crypto).unwrap();
    contents.checkpoint(&mut crypto).unwrap();
    drop(content);
    let (other, again) = (contents.clone(), store.clone());
    let threads = meanwhile(&store, Moment::Len, move || {
        let mut crypto = support::crypto();
        let (file, place) = again.open("file").unwrap();
        let content = other.open(file, place, &mut crypto).unwrap();
        content.append(&pattern(70_000, 1), &mut crypto).unwrap();
        content.sync(&mut crypto).unwrap();
    });
    let (file, place) = store.open("file").unwrap();
    let content = contents.open(file, place, &mut crypto).unwrap();
    threads.recv().unwrap().join().unwrap();
    content.append(b"three", &mut crypto).unwrap();
    let expected = [&b"one"[..], &pattern(70_000, 1), b"three"].concat();
    assert!(whole(&content, &mut crypto) == expected);
}

#[test]
fn times_that_are_set_during_a_checkpoint_stay() {
    let (store, mut crypto) = (SimStore::default(), crypto());
    let contents = Arc::new(start(&store, &mut crypto));
    let (file, place) = store.create("file");
    let inode = place.inode;
    let time = |seconds| {
        let at = Timespec { tv_sec: seconds, tv_nsec: 0 };
        Timestamps { last_access: at, last_modification: at }
    };
    file.set_times(&time(1)).unwrap();
    let content = contents.create(file.clone(), place, &mut crypto).unwrap();
    content.write(&pattern(9000, 1), 0, &mut crypto).unwrap();
    content.sync(&mut crypto).unwrap();
    content.write(b"other", 4000, &mut crypto).unwrap();
    let (other, backing) = (contents.clone(), file.clone());
    let threads = meanwhile(&store, Moment::Times, move || {
        other.with_times(inode, || backing.set_times(&time(2)).unwrap());
    });
    contents.checkpoint(&mut crypto).unwrap();
    threads.recv().unwrap().join().unwrap();
    assert_eq!(file.times().unwrap().unwrap().last_modification.tv_sec, 2);
}

/// A store that lost power, with a file that was being written and never synced: what is stored ends in the middle.
fn torn(crypto: &mut Dispatcher) -> SimStore {
    let store = SimStore::default();
    let contents = start(&store, crypto);
    for name in ["torn", "neighbour"] {
        let (file, place) = store.create(name);
        let content = contents.create(file, place, crypto).unwrap();
        content.write(&pattern(20_000, 1), 0, crypto).unwrap();
        if name == "neighbour" {
            content.sync(crypto).unwrap();
        }
    }
    let mut bytes = store.bytes("torn");
    bytes[96 + 2 * 4136..].fill(0);
    store.put("torn", &bytes);
    store
}

#[test]
fn a_file_that_was_torn_and_not_opened_says_that_its_length_is_not_known() {
    let mut crypto = crypto();
    let store = torn(&mut crypto);
    let contents = start(&store, &mut crypto);
    let (file, place) = store.open("torn").unwrap();
    let inode = place.inode;
    assert!(contents.len_of(inode, file.len().unwrap()) > 2 * 4096);
    assert!(!contents.is_sound(inode));
    drop(contents.open(file.clone(), place, &mut crypto).unwrap());
    assert!(contents.is_sound(inode));
    assert_eq!(contents.len_of(inode, file.len().unwrap()), 2 * 4096);
}

#[test]
fn a_torn_file_is_read_as_far_as_it_is_whole_and_named() {
    let mut crypto = crypto();
    let store = torn(&mut crypto);
    let before = store.bytes("torn");
    let contents = Contents::start_to_read(store.clone(), &volume(), &mut crypto).unwrap().0;
    let (file, place) = store.open("torn").unwrap();
    assert!(!contents.is_sound(place.inode));
    drop(contents.open(file.clone(), place.clone(), &mut crypto).unwrap());
    assert!(contents.is_sound(place.inode));
    assert_eq!(contents.len_of(place.inode, file.len().unwrap()), 2 * 4096);
    assert!(is_mended(&contents, &store, "torn", &mut crypto));
    let line = "torn: 8192 bytes are shown; what followed had not been synced";
    assert_eq!(contents.take_lines(), [line]);
    assert!(contents.look_through(true, &|| false, &mut crypto).unwrap(), "there is nothing to be mended");
    assert!(store.bytes("torn") == before);
}

#[test]
fn looking_through_mends_every_file_and_is_remembered() {
    let mut crypto = crypto();
    let store = torn(&mut crypto);
    let contents = start(&store, &mut crypto);
    assert!(contents.may_be_torn());
    assert!(!contents.look_through(true, &|| true, &mut crypto).unwrap());
    assert!(contents.may_be_torn(), "it was stopped");
    assert!(contents.look_through(true, &|| false, &mut crypto).unwrap());
    assert!(!contents.may_be_torn());
    let (file, place) = store.open("torn").unwrap();
    assert_eq!(contents.len_of(place.inode, file.len().unwrap()), 2 * 4096);
    assert_eq!(contents.take_lines(), ["torn: kept 8192 bytes; what followed had not been synced"]);
    assert!(contents.wants_checkpoint(true));
    contents.checkpoint(&mut crypto).unwrap();
    drop(contents);
    assert!(!start(&store, &mut crypto).may_be_torn(), "after a restart");
}

#[test]
fn after_a_hundred_crashes_no_torn_file_is_forgotten() {
    let mut crypto = crypto();
    let store = torn(&mut crypto);
    for round in 0..100 {
        let contents = start(&store, &mut crypto);
        let (file, place) = store.create(&format!("file{round}"));
        contents.create(file, place, &mut crypto).unwrap();
    }
    let contents = start(&store, &mut crypto);
    let (file, place) = store.open("torn").unwrap();
    let content = contents.open(file, place, &mut crypto).unwrap();
    assert!(whole(&content, &mut crypto) == pattern(20_000, 1)[..2 * 4096]);
}

/// Whether a file that a crash left torn is whole up to there.
fn is_mended(contents: &Contents<SimStore>, store: &SimStore, name: &str, crypto: &mut Dispatcher) -> bool {
    let (file, place) = store.open(name).unwrap();
    let content = contents.open(file, place, crypto).unwrap();
    whole(&content, crypto) == pattern(20_000, 1)[..2 * 4096]
}

#[test]
fn a_torn_file_that_may_not_be_looked_at_is_not_forgotten() {
    let mut crypto = crypto();
    let store = torn(&mut crypto);
    store.hide("torn", true);
    for _ in 0..2 {
        let contents = start(&store, &mut crypto);
        assert!(!contents.look_through(true, &|| false, &mut crypto).unwrap());
        let lines = contents.take_lines();
        assert!(lines.iter().any(|line| line.starts_with("torn: ")), "{lines:?}");
        assert!(contents.may_be_torn());
        contents.checkpoint(&mut crypto).unwrap();
    }
    let contents = start(&store, &mut crypto);
    store.hide("torn", false);
    assert!(is_mended(&contents, &store, "torn", &mut crypto));
}

#[test]
fn where_others_rename_nothing_is_forgotten() {
    let mut crypto = crypto();
    let store = torn(&mut crypto);
    let contents = start(&store, &mut crypto);
    assert!(!contents.look_through(false, &|| false, &mut crypto).unwrap());
    assert!(contents.may_be_torn());
    assert_eq!(contents.take_lines(), ["torn: kept 8192 bytes; what followed had not been synced"]);
}

#[test]
fn a_rename_of_a_file_that_was_opened_hides_nothing() {
    let mut crypto = crypto();
    let store = torn(&mut crypto);
    let contents = start(&store, &mut crypto);
    let inode = |name| store.open(name).unwrap().1.inode;
    assert!(is_mended(&contents, &store, "torn", &mut crypto));
    let walks = store.walks();
    let rename = |inodes: &[Option<(u64, u64)>]| {
        contents.while_moving(inodes, || ());
        false
    };
    assert!(contents.look_through(true, &|| rename(&[Some(inode("torn"))]), &mut crypto).unwrap());
    assert_eq!(store.walks() - walks, 1);
    drop(contents);

    let store = torn(&mut crypto);
    let contents = start(&store, &mut crypto);
    let rename = || {
        contents.while_moving(&[None], || ());
        false
    };
    assert!(!contents.look_through(true, &rename, &mut crypto).unwrap(), "names never rest");
    assert!(contents.may_be_torn());
    let begun =
        || contents.while_moving(&[None], || contents.look_through(true, &|| false, &mut support::crypto()));
    assert!(!begun().unwrap(), "a rename that goes on");
}

#[test]
fn after_a_hundred_crashes_a_torn_file_that_may_not_be_looked_at_is_not_forgotten() {
    let mut crypto = crypto();
    let store = torn(&mut crypto);
    store.hide("torn", true);
    for round in 0..100 {
        let contents = start(&store, &mut crypto);
        let name = format!("file{round}");
        let (file, place) = store.create(&name);
        let content = contents.create(file, place, &mut crypto).unwrap();
        let text = pattern(9000, round);
        content.write(&text, 0, &mut crypto).unwrap();
        content.sync(&mut crypto).unwrap();
        content.write(&pattern(90_000, 7), 9000, &mut crypto).unwrap();
        drop((content, contents));
        if round % 20 == 19 {
            // What was synced is there after a power cut, whether or not the file's id is from a range.
            let crashed = store.crash(store.operations(), &mut |_| 0);
            let contents = start(&crashed, &mut crypto);
            let (file, place) = crashed.open(&name).unwrap();
            let content = contents.open(file, place, &mut crypto).unwrap();
            assert!(whole(&content, &mut crypto).starts_with(&text), "{round}");
        }
    }
    let contents = start(&store, &mut crypto);
    store.hide("torn", false);
    assert!(is_mended(&contents, &store, "torn", &mut crypto));
}

#[test]
fn after_a_hundred_crashes_a_file_that_cannot_be_read_keeps_nobody_from_starting() {
    let mut crypto = crypto();
    let store = torn(&mut crypto);
    store.fail_reads("torn", true);
    for round in 0..100 {
        let (contents, recovered) = Contents::start(store.clone(), &volume(), &mut crypto).unwrap();
        let told = recovered.lines.iter().any(|line| line.starts_with("torn: "));
        assert_eq!(told, round >= 51, "{round}: {:?}", recovered.lines);
        let (file, place) = store.create(&format!("file{round}"));
        contents.create(file, place, &mut crypto).unwrap();
    }
    let contents = start(&store, &mut crypto);
    store.fail_reads("torn", false);
    assert!(is_mended(&contents, &store, "torn", &mut crypto));
}

#[test]
fn files_that_were_renamed_are_found_in_one_walk() {
    let (store, mut crypto) = (SimStore::default(), crypto());
    let contents = start(&store, &mut crypto);
    for number in 0..20 {
        let (file, place) = store.create(&format!("a{number}"));
        let content = contents.create(file, place, &mut crypto).unwrap();
        content.write(&pattern(9000, number), 0, &mut crypto).unwrap();
        content.sync(&mut crypto).unwrap();
        content.write(b"other", 4090, &mut crypto).unwrap();
        content.sync(&mut crypto).unwrap();
    }
    drop(contents);
    for number in 0..20 {
        store.rename(&format!("a{number}"), &format!("b{number}"));
    }
    store.remove("b7");
    let contents = start(&store, &mut crypto);
    // Once to repeat the journal, once for the ids.
    assert!(store.walks() <= 2, "{}", store.walks());
    for number in (0..20).filter(|number| *number != 7) {
        let mut expected = pattern(9000, number);
        expected[4090..4095].copy_from_slice(b"other");
        let (file, place) = store.open(&format!("b{number}")).unwrap();
        let content = contents.open(file, place, &mut crypto).unwrap();
        assert!(whole(&content, &mut crypto) == expected, "{number}");
    }
}

#[test]
fn what_was_synced_stays_in_the_journal_as_long_as_its_file_may_not_be_looked_at() {
    let (store, mut crypto) = (SimStore::default(), crypto());
    let contents = start(&store, &mut crypto);
    let mut model = pattern(9000, 1);
    for name in ["file", "removed"] {
        let (file, place) = store.create(name);
        let content = contents.create(file, place, &mut crypto).unwrap();
        content.write(&model, 0, &mut crypto).unwrap();
        content.sync(&mut crypto).unwrap();
        content.write(b"other", 4090, &mut crypto).unwrap();
        content.sync(&mut crypto).unwrap();
    }
    model[4090..4095].copy_from_slice(b"other");
    drop(contents);
    store.remove("removed");
    store.hide("file", true);
    for _ in 0..2 {
        let refused = Contents::start(store.clone(), &volume(), &mut crypto).err().unwrap().to_string();
        assert!(refused.contains("may be in file, which cannot be looked at"), "{refused}");
    }
    store.hide("file", false);
    let contents = start(&store, &mut crypto);
    let (file, place) = store.open("file").unwrap();
    let content = contents.open(file, place, &mut crypto).unwrap();
    assert!(whole(&content, &mut crypto) == model);
}

/// The content after power was lost now, with nothing on the disk but what was synced.
fn after_crash(store: &SimStore, crypto: &mut Dispatcher) -> Vec<u8> {
    let crashed = store.crash(store.operations(), &mut |_| 0);
    let contents = start(&crashed, crypto);
    let (file, place) = crashed.open("file").unwrap();
    let content = contents.open(file, place, crypto).unwrap();
    whole(&content, crypto)
}

#[test]
fn what_a_sync_acknowledges_after_one_that_failed_is_durable() {
    let mut crypto = crypto();
    // Replaced in the journal; appended through it; grown in place.
    for (at, len) in [(4000, 300), (9000, 90), (9000, 200_000)] {
        for failures in 1..4 {
            let store = SimStore::default();
            let contents = start(&store, &mut crypto);
            let (file, place) = store.create("file");
            let content = contents.create(file, place, &mut crypto).unwrap();
            let mut model = pattern(9000, 1);
            content.write(&model, 0, &mut crypto).unwrap();
            content.sync(&mut crypto).unwrap();
            contents.checkpoint(&mut crypto).unwrap();
            content.write(&pattern(len, 2), at as u64, &mut crypto).unwrap();
            let old = std::mem::take(&mut model);
            model.extend(&old[..at]);
            model.extend(pattern(len, 2));
            model.extend(old.get(at + len..).unwrap_or_default());
            store.fail_syncs(failures);
            for _ in 0..failures {
                assert_eq!(content.sync(&mut crypto).unwrap_err().errno(), 5);
                assert!(after_crash(&store, &mut crypto).starts_with(&old[..at]));
            }
            content.sync(&mut crypto).unwrap();
            let what = format!("{len} at {at}, {failures} failures");
            assert!(whole(&content, &mut crypto) == model, "{what}");
            assert!(after_crash(&store, &mut crypto) == model, "{what}: after a crash");
            // And it goes on.
            content.append(b"more", &mut crypto).unwrap();
            content.sync(&mut crypto).unwrap();
            contents.checkpoint(&mut crypto).unwrap();
            model.extend(b"more");
            assert!(after_crash(&store, &mut crypto) == model, "{what}: at the end");
        }
    }
}

/// The file was synced, the journal was not, and what the next sync acknowledges grows.
#[test]
fn what_a_sync_acknowledges_after_the_journal_failed_survives_growth() {
    let mut crypto = crypto();
    let store = SimStore::default();
    let contents = start(&store, &mut crypto);
    let (file, place) = store.create("file");
    let content = contents.create(file, place, &mut crypto).unwrap();
    let mut model = pattern(9000, 1);
    content.write(&model, 0, &mut crypto).unwrap();
    contents.checkpoint(&mut crypto).unwrap();
    // Through the journal, and in place.
    content.append(&pattern(90, 2), &mut crypto).unwrap();
    content.append(&pattern(100_000, 3), &mut crypto).unwrap();
    model.extend(pattern(90, 2));
    model.extend(pattern(100_000, 3));
    store.fail_sync_after(1);
    assert_eq!(content.sync(&mut crypto).unwrap_err().errno(), 5);
    content.sync(&mut crypto).unwrap();
    let synced = store.operations();
    content.append(&pattern(100_000, 4), &mut crypto).unwrap();
    for operations in synced..=store.operations() {
        for seed in 0..100_u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let crashed = store.crash(operations, &mut |below| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) as usize % below
            });
            let contents = start(&crashed, &mut crypto);
            let (file, place) = crashed.open("file").unwrap();
            let got = whole(&contents.open(file, place, &mut crypto).unwrap(), &mut crypto);
            let len = got.len();
            assert!(got.starts_with(&model), "after {operations}, seed {seed}: {len} of {}", model.len());
        }
    }
}

/// What a disk refuses when all files are synced are records of the journal, too.
#[test]
fn what_a_sync_acknowledges_after_a_checkpoint_failed_is_durable() {
    let mut crypto = crypto();
    for len in [90, 100_000] {
        let store = SimStore::default();
        let contents = start(&store, &mut crypto);
        let (file, place) = store.create("file");
        let content = contents.create(file, place, &mut crypto).unwrap();
        let mut model = pattern(9000, 1);
        content.write(&model, 0, &mut crypto).unwrap();
        contents.checkpoint(&mut crypto).unwrap();
        content.append(&pattern(len, 2), &mut crypto).unwrap();
        model.extend(pattern(len, 2));
        store.fail_syncs(1);
        assert_eq!(contents.checkpoint(&mut crypto).unwrap_err().errno(), 5);
        content.sync(&mut crypto).unwrap();
        assert!(after_crash(&store, &mut crypto) == model, "{len}");
    }
}

/// The system tells of what a disk refused once: whoever asks next, even a sync that had begun before, hears nothing.
#[test]
fn a_sync_acknowledges_nothing_that_another_one_lost_meanwhile() {
    let mut crypto = crypto();
    let store = SimStore::default();
    let contents = Arc::new(start(&store, &mut crypto));
    let (file, place) = store.create("file");
    let content = contents.create(file, place, &mut crypto).unwrap();
    let model = pattern(100_000, 1);
    content.write(&model, 0, &mut crypto).unwrap();
    let (other, disk) = (contents.clone(), store.clone());
    store.during_next_sync(move || {
        disk.fail_syncs(1);
        assert_eq!(other.checkpoint(&mut support::crypto()).unwrap_err().errno(), 5);
    });
    assert_eq!(content.sync(&mut crypto).unwrap_err().errno(), 5);
    content.sync(&mut crypto).unwrap();
    assert!(after_crash(&store, &mut crypto) == model);
}

/// The head that was refused may count after a power cut, and what it does not name may be torn.
#[test]
fn a_file_that_is_made_after_a_head_failed_is_empty_or_not_there_after_a_power_cut() {
    let mut crypto = crypto();
    let store = SimStore::default();
    let contents = start(&store, &mut crypto);
    let (file, place) = store.create("earlier");
    contents.create(file, place, &mut crypto).unwrap();
    // sync_all, sync_all, the head.
    store.fail_sync_after(2);
    assert_eq!(contents.checkpoint(&mut crypto).unwrap_err().errno(), 5);
    let from = store.operations();
    let creating = contents.before_create(&mut crypto).unwrap();
    let (file, place) = store.create("file");
    contents.create(file, place, &mut crypto).unwrap();
    drop(creating);
    for operations in from..=store.operations() {
        for seed in 0..50_usize {
            let mut random = seed;
            let crashed = store.crash(operations, &mut |below| {
                random = random.wrapping_mul(31).wrapping_add(7) % 1009;
                random % below
            });
            let contents = start(&crashed, &mut crypto);
            let Some((file, place)) = crashed.open("file") else { continue };
            let opened = contents.open(file, place, &mut crypto);
            let len = opened.map(|content| whole(&content, &mut crypto).len());
            assert_eq!(len.map_err(|error| error.to_string()), Ok(0), "after {operations}, seed {seed}");
        }
    }
}

#[test]
fn what_is_synced_of_a_file_whose_mending_failed_at_first_survives_the_next_cut() {
    let mut crypto = crypto();
    let torn = torn(&mut crypto);
    let mut empty = torn.bytes("torn");
    empty[..96].fill(0);
    // Torn in the middle, and without a header.
    for stored in [torn.bytes("torn"), empty] {
        // The first sync of mending fails, or the second.
        for good in 0..2 {
            torn.put("torn", &stored);
            // What a crash left, all of it on the disk.
            let store = torn.crash(torn.operations(), &mut |below| below - 1);
            let contents = start(&store, &mut crypto);
            let open = |contents: &Contents<SimStore>, store: &SimStore, crypto: &mut Dispatcher| {
                let (file, place) = store.open("torn").unwrap();
                contents.open(file, place, crypto)
            };
            store.fail_sync_after(good);
            let first = open(&contents, &store, &mut crypto);
            assert!(good == 1 || first.is_err_and(|error| error.errno() == 5));
            store.fail_syncs(0);
            let content = open(&contents, &store, &mut crypto).unwrap();
            content.append(b"more", &mut crypto).unwrap();
            content.sync(&mut crypto).unwrap();
            let model = whole(&content, &mut crypto);
            let store = store.crash(store.operations(), &mut |_| 0);
            let contents = start(&store, &mut crypto);
            let content = open(&contents, &store, &mut crypto);
            let content = content.unwrap_or_else(|error| panic!("{good}, {}: {error}", model.len()));
            assert!(whole(&content, &mut crypto) == model, "{good}, {}", model.len());
        }
    }
}

#[test]
fn a_file_without_a_header_is_empty_wherever_power_is_lost_while_it_is_begun_anew() {
    let mut crypto = crypto();
    let store = torn(&mut crypto);
    let mut bytes = store.bytes("torn");
    bytes[..96].fill(0);
    store.put("torn", &bytes);
    // What a crash left, all of it on the disk.
    let store = store.crash(store.operations(), &mut |below| below - 1);
    let contents = start(&store, &mut crypto);
    let open = |contents: &Contents<SimStore>, store: &SimStore, crypto: &mut Dispatcher| {
        let (file, place) = store.open("torn").unwrap();
        whole(&contents.open(file, place, crypto).unwrap(), crypto).len()
    };
    let from = store.operations();
    assert_eq!(open(&contents, &store, &mut crypto), 0);
    for operations in from..=store.operations() {
        for boundary in 0..=store.choices(operations) {
            for latest_first in [false, true] {
                let mut asked = 0;
                let crashed = store.crash(operations, &mut |below| {
                    asked += 1;
                    if (asked <= boundary) == latest_first { below - 1 } else { 0 }
                });
                let contents = start(&crashed, &mut crypto);
                assert_eq!(open(&contents, &crashed, &mut crypto), 0, "after {operations}, {boundary}");
            }
        }
    }
}

#[test]
fn a_new_file_whose_first_sync_failed_is_durable_after_the_next() {
    let mut crypto = crypto();
    let store = SimStore::default();
    let contents = start(&store, &mut crypto);
    let (file, place) = store.create("file");
    let content = contents.create(file, place, &mut crypto).unwrap();
    let model = pattern(50_000, 3);
    content.write(&model, 0, &mut crypto).unwrap();
    store.fail_syncs(1);
    assert!(content.sync(&mut crypto).is_err());
    // Closed and opened again: what is in doubt is not forgotten.
    drop(content);
    let (file, place) = store.open("file").unwrap();
    let content = contents.open(file, place, &mut crypto).unwrap();
    content.sync(&mut crypto).unwrap();
    assert!(after_crash(&store, &mut crypto) == model);
}

#[test]
fn a_checkpoint_that_failed_anywhere_is_made_up_for() {
    let mut crypto = crypto();
    for failing in 0..8 {
        let store = SimStore::default();
        let contents = start(&store, &mut crypto);
        let (file, place) = store.create("file");
        let content = contents.create(file, place, &mut crypto).unwrap();
        let mut model = pattern(9000, 1);
        content.write(&model, 0, &mut crypto).unwrap();
        content.sync(&mut crypto).unwrap();
        content.write(b"other", 100, &mut crypto).unwrap();
        content.sync(&mut crypto).unwrap();
        model[100..105].copy_from_slice(b"other");
        content.append(&pattern(100_000, 5), &mut crypto).unwrap();
        // So many syncs are good, the next is not.
        store.fail_sync_after(failing);
        let failed = contents.checkpoint(&mut crypto).is_err();
        assert!(after_crash(&store, &mut crypto).starts_with(&model), "{failing}");
        if !failed {
            store.fail_syncs(0);
        }
        contents.checkpoint(&mut crypto).unwrap();
        content.append(b"more", &mut crypto).unwrap();
        content.sync(&mut crypto).unwrap();
        model.extend(pattern(100_000, 5));
        model.extend(b"more");
        assert!(whole(&content, &mut crypto) == model, "{failing}");
        assert!(after_crash(&store, &mut crypto) == model, "{failing}: after a crash");
        if failing >= 7 {
            assert!(!failed, "every sync of a checkpoint has failed once");
        }
    }
}

#[test]
fn a_page_that_is_lost_keeps_nothing_else_from_its_place() {
    let mut crypto = crypto();
    for removed in [false, true] {
        let store = SimStore::default();
        let contents = start(&store, &mut crypto);
        let (file, place) = store.create("lost");
        let content = contents.create(file, place, &mut crypto).unwrap();
        let mut bad = pattern(50_000, 3);
        content.write(&bad, 0, &mut crypto).unwrap();
        let (file, place) = store.create("file");
        let other = contents.create(file, place, &mut crypto).unwrap();
        let mut model = pattern(9000, 1);
        other.write(&model, 0, &mut crypto).unwrap();
        other.sync(&mut crypto).unwrap();
        other.write(b"other", 100, &mut crypto).unwrap();
        other.sync(&mut crypto).unwrap();
        model[100..105].copy_from_slice(b"other");
        store.fail_syncs(1);
        assert!(content.sync(&mut crypto).is_err());
        // Memory gives the page back, and the disk never had it: of chunk 3, and of the header.
        let mut stored = store.bytes("lost");
        stored[..96].fill(0);
        stored[96 + 3 * 4136..][..1000].fill(0);
        store.put("lost", &stored);
        if removed {
            store.remove("lost");
        }
        drop(content);
        contents.checkpoint(&mut crypto).unwrap();
        assert!(!contents.wants_checkpoint(true));
        assert!(after_crash(&store, &mut crypto) == model);
        if removed {
            assert_eq!(contents.take_lines(), [""; 0]);
            continue;
        }
        let line = "lost: lost of chunks 3 to 3: the disk refused them, and memory has them no longer";
        assert_eq!(contents.take_lines(), [line]);
        let open = |crypto: &mut Dispatcher, contents: &Contents<SimStore>, store: &SimStore| {
            let (file, place) = store.open("lost").unwrap();
            contents.open(file, place, crypto).unwrap()
        };
        // Whoever syncs it hears of it, as long as it is so; everything else of it is durable.
        let content = open(&mut crypto, &contents, &store);
        for _ in 0..2 {
            assert_eq!(content.sync(&mut crypto).unwrap_err().errno(), 5);
            contents.checkpoint(&mut crypto).unwrap();
        }
        let crashed = store.crash(store.operations(), &mut |_| 0);
        let after = start(&crashed, &mut crypto);
        let rest = open(&mut crypto, &after, &crashed);
        let mut got = vec![0; 50_000];
        assert!(rest.read(&mut got[..3 * 4096], 0, &mut crypto).unwrap() == 3 * 4096);
        assert!(rest.read(&mut got[4 * 4096..], 4 * 4096, &mut crypto).unwrap() == 50_000 - 4 * 4096);
        assert!(rest.read(&mut got[3 * 4096..][..10], 3 * 4096, &mut crypto).is_err());
        assert!(got[..3 * 4096] == bad[..3 * 4096] && got[4 * 4096..] == bad[4 * 4096..]);
        // Written anew, it is whole.
        content.write(&pattern(4096, 9), 3 * 4096, &mut crypto).unwrap();
        bad[3 * 4096..4 * 4096].copy_from_slice(&pattern(4096, 9));
        content.sync(&mut crypto).unwrap();
        assert!(whole(&content, &mut crypto) == bad);
    }
}

#[test]
fn after_a_head_that_failed_writers_make_it_good() {
    let mut crypto = crypto();
    let store = SimStore::default();
    let contents = start(&store, &mut crypto);
    let (file, place) = store.create("file");
    let content = contents.create(file, place, &mut crypto).unwrap();
    let mut model = pattern(9000, 1);
    content.write(&model, 0, &mut crypto).unwrap();
    content.sync(&mut crypto).unwrap();
    content.write(b"other", 100, &mut crypto).unwrap();
    model[100..105].copy_from_slice(b"other");
    // sync_all, the journal, sync_all, the head.
    store.fail_sync_after(3);
    assert!(contents.checkpoint(&mut crypto).is_err());
    content.write(b"again", 200, &mut crypto).unwrap();
    content.sync(&mut crypto).unwrap();
    model[200..205].copy_from_slice(b"again");
    assert!(after_crash(&store, &mut crypto) == model);
}

#[test]
fn finding_a_hole_behind_much_data_reads_seldom_and_lets_writers_through() {
    let (store, mut crypto) = (SimStore::default(), crypto());
    let contents = start(&store, &mut crypto);
    let (file, place) = store.create("file");
    let content = contents.create(file, place, &mut crypto).unwrap();
    content.set_len(24 << 20, &mut crypto).unwrap();
    content.write(&pattern(16 << 20, 1), 0, &mut crypto).unwrap();
    contents.checkpoint(&mut crypto).unwrap();
    let before = store.reads();
    assert_eq!(content.seek(5, true, &mut crypto).unwrap(), Some(16 << 20));
    assert!(store.reads() - before < 100, "{} reads", store.reads() - before);
    assert_eq!(content.seek(20 << 20, false, &mut crypto).unwrap(), None);
    assert_eq!(content.seek((16 << 20) - 5, false, &mut crypto).unwrap(), Some((16 << 20) - 5));
}

/// What was written last before a kill may be in memory only, records of the journal included.
#[test]
fn power_that_is_lost_while_a_killed_run_is_made_up_for_tears_nothing() {
    let mut crypto = crypto();
    let store = SimStore::default();
    let contents = start(&store, &mut crypto);
    let (file, place) = store.create("file");
    let content = contents.create(file, place, &mut crypto).unwrap();
    let old = pattern(20_000, 1);
    content.write(&old, 0, &mut crypto).unwrap();
    contents.checkpoint(&mut crypto).unwrap();
    let new = pattern(9000, 2);
    content.write(&new, 4096, &mut crypto).unwrap();
    drop((content, contents));
    let from = store.operations();
    drop(start(&store, &mut crypto));
    for operations in from..=store.operations() {
        for seed in 0..200_u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let crashed = store.crash(operations, &mut |below| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) as usize % below
            });
            let contents = start(&crashed, &mut crypto);
            let (file, place) = crashed.open("file").unwrap();
            let got = whole(&contents.open(file, place, &mut crypto).unwrap(), &mut crypto);
            let mut both = old.clone();
            both[4096..13_096].copy_from_slice(&new);
            assert_eq!(got.len(), old.len(), "after {operations}, seed {seed}");
            for (at, chunk) in got.chunks(4096).enumerate().map(|(index, chunk)| (index * 4096, chunk)) {
                let of = |bytes: &[u8]| bytes[at..at + chunk.len()] == *chunk;
                assert!(of(&old) || of(&both), "after {operations}, seed {seed}: chunk at {at}");
            }
        }
    }
}

/// Another store with the same files, of other inodes.
fn copied(store: &SimStore, names: &[&str]) -> SimStore {
    let copy = SimStore::default();
    for number in 0..7 {
        copy.create(&format!("other{number}"));
        copy.remove(&format!("other{number}"));
    }
    for name in names {
        copy.put(name, &store.bytes(name));
    }
    copy
}

/// A file beside its copy, both written and synced, of a run that was killed: `left` and `right`, and their contents.
fn copy_beside_original(crypto: &mut Dispatcher) -> (SimStore, [Vec<u8>; 2]) {
    let store = SimStore::default();
    let contents = start(&store, crypto);
    let (file, place) = store.create("left");
    let content = contents.create(file, place, crypto).unwrap();
    content.write(&pattern(20_000, 1), 0, crypto).unwrap();
    content.sync(crypto).unwrap();
    contents.checkpoint(crypto).unwrap();
    drop(content);
    // Behind the mount: two inodes have one id.
    store.put("right", &store.bytes("left"));
    let mut models = [pattern(20_000, 1), pattern(20_000, 1)];
    for (number, name) in ["left", "right"].into_iter().enumerate() {
        for round in 0..2 {
            let (file, place) = store.open(name).unwrap();
            let content = contents.open(file, place, crypto).unwrap();
            let new = pattern(5000, 10 * number as u64 + round);
            let at = 3000 * (number + 1) + 700 * round as usize;
            content.write(&new, at as u64, crypto).unwrap();
            models[number][at..at + 5000].copy_from_slice(&new);
            if number == 1 {
                content.append(&new, crypto).unwrap();
                models[number].extend(&new);
            }
            content.sync(crypto).unwrap();
        }
    }
    (store, models)
}

/// What is left of a store when it is read, and when it is started.
fn both(store: &SimStore, name: &str, crypto: &mut Dispatcher) -> Vec<u8> {
    let reading = Contents::start_to_read(store.clone(), &volume(), crypto).unwrap().0;
    let (file, place) = store.open(name).unwrap();
    let read = whole(&reading.open(file, place, crypto).unwrap(), crypto);
    drop(reading);
    let contents = start(store, crypto);
    let (file, place) = store.open(name).unwrap();
    let got = whole(&contents.open(file, place, crypto).unwrap(), crypto);
    assert!(got == read, "{name}: reading shows something else");
    got
}

#[test]
fn a_copy_beside_its_original_has_its_own_content_after_a_kill() {
    let mut crypto = crypto();
    for moved in ["nothing", "both", "one", "removed"] {
        let (store, models) = copy_beside_original(&mut crypto);
        let mut names = ["left", "right"];
        match moved {
            "both" => {
                store.rename("left", "aside");
                store.rename("right", "left");
                store.rename("aside", "right");
                names.reverse();
            }
            "one" => {
                store.rename("right", "elsewhere");
                names[1] = "elsewhere";
            }
            "removed" => store.remove("right"),
            _ => {}
        }
        for (name, model) in names.iter().zip(&models) {
            if store.open(name).is_some() {
                assert!(both(&store, name, &mut crypto) == *model, "{moved}: {name}");
            }
        }
    }
}

#[test]
fn a_copied_volume_has_what_its_journal_has_wherever_its_files_lie() {
    let mut crypto = crypto();
    let (store, models) = copy_beside_original(&mut crypto);
    let names = ["left", "right", JOURNAL];
    for (name, model) in ["left", "right"].iter().zip(&models) {
        // Two files of one id: the path says which is which.
        assert!(both(&copied(&store, &names), name, &mut crypto) == *model, "{name}");
    }
    // One file of an id is that file, wherever it lies.
    let single = SimStore::default();
    let contents = start(&single, &mut crypto);
    let (file, place) = single.create("file");
    let content = contents.create(file, place, &mut crypto).unwrap();
    content.write(&models[0], 0, &mut crypto).unwrap();
    content.sync(&mut crypto).unwrap();
    content.write(&models[0][..9000], 500, &mut crypto).unwrap();
    content.sync(&mut crypto).unwrap();
    let model = whole(&content, &mut crypto);
    drop((content, contents));
    let copy = copied(&single, &["file", JOURNAL]);
    copy.rename("file", "moved");
    assert!(both(&copy, "moved", &mut crypto) == model, "moved");
    // Two of one id, and neither is where the journal says: both stay as they are, and are named.
    let copy = copied(&store, &names);
    let before = [copy.bytes("left"), copy.bytes("right")];
    copy.rename("left", "a");
    copy.rename("right", "b");
    let (contents, recovered) = Contents::start(copy.clone(), &volume(), &mut crypto).unwrap();
    let lines = recovered.lines.join("\n");
    for name in ["a", "b"] {
        assert!(lines.contains(&format!("{name}: is a copy of a file that the journal knows")), "{lines}");
    }
    drop(contents);
    assert!([copy.bytes("a"), copy.bytes("b")] == before);
}

/// A file of an earlier epoch whose header the storage lost is damaged, crash or not, and stays as it is.
#[test]
fn an_old_file_without_a_header_is_damaged_and_nothing_of_it_goes() {
    let mut crypto = crypto();
    let store = torn(&mut crypto);
    let whole = store.bytes("neighbour");
    store.make_old("neighbour");
    let zeroed = [&[0; 96][..], &whole[96..]].concat();
    // The last two are what programs that synchronise folders leave of a file that they have not fetched.
    for bytes in [zeroed.clone(), zeroed[..200].to_vec(), whole[..95].to_vec(), vec![0; 96], Vec::new()] {
        for read in [true, false] {
            let copy = store.crash(store.operations(), &mut |_| 0);
            copy.put("neighbour", &bytes);
            copy.make_old("neighbour");
            let contents = match read {
                true => Contents::start_to_read(copy.clone(), &volume(), &mut crypto).unwrap().0,
                false => start(&copy, &mut crypto),
            };
            let (file, place) = copy.open("neighbour").unwrap();
            match contents.open(file, place, &mut crypto) {
                Err(error) => assert!(matches!(error, wattlock_fs::Error::Damaged(_)), "{error}"),
                Ok(_) => panic!("{} bytes open", bytes.len()),
            }
            contents.look_through(true, &|| false, &mut crypto).unwrap();
            assert!(copy.bytes("neighbour") == bytes, "{} bytes", bytes.len());
        }
    }
}
