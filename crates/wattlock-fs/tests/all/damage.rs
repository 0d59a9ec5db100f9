//! Stored bytes that were altered: what is damaged is named, and nothing else is lost.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support;

use wattlock::Dispatcher;
use wattlock_fs::Error;
use wattlock_fs::content::Contents;
use wattlock_fs::dev::SimStore;
use wattlock_fs::store::JOURNAL;
use wattlock_fs::volume::Volume;

use support::{CHUNK, crypto, pattern, volume, whole};

const STRIDE: usize = 4136;
const LEN: usize = 5 * 4096 + 77;

fn slot(index: usize) -> usize {
    96 + index * STRIDE
}

/// A volume with two files of the same length, everything in place.
fn two_files(crypto: &mut Dispatcher) -> (SimStore, Vec<u8>) {
    let store = SimStore::default();
    let contents = Contents::start(store.clone(), &volume(), crypto).unwrap().0;
    let bytes = pattern(LEN, 5);
    for name in ["a", "b"] {
        let (file, place) = store.create(name);
        let content = contents.create(file, place, crypto).unwrap();
        content.write(&bytes, 0, crypto).unwrap();
    }
    contents.checkpoint(crypto).unwrap();
    (store, bytes)
}

/// Opens `a` and reads every chunk alone; those that are damaged, as they name themselves. Checks all others.
fn damaged(store: &SimStore, bytes: &[u8], crypto: &mut Dispatcher) -> Result<Vec<usize>, Error> {
    let contents = Contents::start(store.clone(), &volume(), crypto)?.0;
    let (file, place) = store.open("b").unwrap();
    let neighbour = contents.open(file, place, crypto)?;
    assert!(whole(&neighbour, crypto) == bytes, "the neighbour");
    let (file, place) = store.open("a").unwrap();
    let content = contents.open(file, place, crypto)?;
    let mut found = Vec::new();
    for index in 0..=content.len() / CHUNK {
        let mut got = vec![0xee; CHUNK as usize];
        match content.read(&mut got, index * CHUNK, crypto) {
            Ok(len) => {
                let at = (index * CHUNK) as usize;
                assert!(bytes[at..at + len] == got[..len], "chunk {index} has other content");
            }
            Err(error) => {
                // A read that reaches the end of a last full chunk has looked at the empty slot behind it, too.
                let end = index + 1 == content.len() / CHUNK && content.len() % CHUNK == 0;
                let named = error.to_string().trim_start_matches("damaged: chunk ").parse::<u64>().unwrap();
                assert!(named == index || end && named == index + 1, "chunk {index}: {error}");
                let index = named;
                assert!(got.iter().all(|byte| *byte == 0), "unverified bytes");
                assert_eq!(error.errno(), 5);
                if found.last() != Some(&(index as usize)) {
                    found.push(index as usize);
                }
            }
        }
    }
    if !found.is_empty() {
        // All of it at once names the first.
        let mut got = vec![0xee; LEN];
        let error = content.read(&mut got, 0, crypto).unwrap_err();
        assert_eq!(error.to_string(), format!("damaged: chunk {}", found[0]));
        assert!(got.iter().all(|byte| *byte == 0), "unverified bytes");
    }
    Ok(found)
}

#[test]
fn an_altered_chunk_is_named_and_others_are_read() {
    let mut crypto = crypto();
    let (store, bytes) = two_files(&mut crypto);
    let (mine, other) = (store.bytes("a"), store.bytes("b"));
    assert!(damaged(&store, &bytes, &mut crypto).unwrap().is_empty());
    let mut check = |altered: Vec<u8>, expected: &[usize], what: &str| {
        store.put("a", &altered);
        assert_eq!(damaged(&store, &bytes, &mut crypto).unwrap(), expected, "{what}");
    };
    for index in 0..=5 {
        for (what, off) in [("nonce", 0), ("nonce's end", 23), ("text", 24), ("tag", 24 + 77)] {
            let mut altered = mine.clone();
            altered[slot(index) + off] ^= 0x10;
            check(altered, &[index], &format!("{what} of {index} flipped"));
        }
        let mut altered = mine.clone();
        let end = mine.len().min(slot(index + 1));
        altered[slot(index)..end].fill(0);
        check(altered, &[index], "zeroed");
        let mut altered = mine.clone();
        altered[slot(index)..end].copy_from_slice(&other[slot(index)..end]);
        check(altered, &[index], "of another file");
    }
    let mut altered = mine.clone();
    altered.copy_within(slot(1)..slot(2), slot(2));
    check(altered, &[2], "repeated");
    let mut altered = mine.clone();
    let (low, high) = altered.split_at_mut(slot(3));
    low[slot(1)..slot(2)].swap_with_slice(&mut high[..STRIDE]);
    check(altered, &[1, 3], "swapped");
    let mut altered = mine.clone();
    altered[..96].copy_from_slice(&other[..96]);
    check(altered, &[0, 1, 2, 3, 4, 5], "the header of another file");
    check(mine.clone(), &[], "as it was");
}

#[test]
fn a_cut_file_is_noticed_wherever_it_is_cut() {
    let mut crypto = crypto();
    let (store, bytes) = two_files(&mut crypto);
    let mine = store.bytes("a");
    for len in (0..mine.len())
        .filter(|len| (len.wrapping_sub(96)) % STRIDE < 50 || len % 517 == 0 || mine.len() - len < 90)
    {
        store.put("a", &mine[..len]);
        match damaged(&store, &bytes, &mut crypto) {
            Err(Error::Damaged(_)) => {}
            Ok(found) => assert!(!found.is_empty(), "cut to {len}"),
            Err(error) => panic!("{error}"),
        }
    }
    // An end of rubbish at a chunk's border: all chunks before are read, the end is not believed.
    let mut altered = mine[..slot(3) + 40].to_vec();
    altered[slot(3)..].fill(7);
    store.put("a", &altered);
    assert_eq!(damaged(&store, &bytes, &mut crypto).unwrap(), [3]);
}

#[test]
fn an_altered_header_does_not_open() {
    let mut crypto = crypto();
    let (store, bytes) = two_files(&mut crypto);
    let mine = store.bytes("a");
    for at in 0..96 {
        let mut altered = mine.clone();
        altered[at] ^= 1;
        store.put("a", &altered);
        match damaged(&store, &bytes, &mut crypto) {
            Err(Error::Damaged(what)) => assert_eq!(what.contains("version byte"), at == 8, "{at}: {what}"),
            other => panic!("byte {at}: {other:?}"),
        }
    }
    // What opens with no version of ours is a newer program's.
    for at in 9..96 {
        let mut altered = mine.clone();
        (altered[8], altered[at]) = (2, altered[at] ^ 1);
        store.put("a", &altered);
        let error = damaged(&store, &bytes, &mut crypto).unwrap_err();
        assert!(matches!(&error, Error::Newer(what) if what.contains("version 2")), "byte {at}: {error}");
    }
    let mut altered = mine.clone();
    altered[..96].fill(0);
    store.put("a", &altered);
    assert!(matches!(damaged(&store, &bytes, &mut crypto), Err(Error::Damaged(_))), "zeroed");
}

#[test]
fn a_hole_is_no_hole_without_its_record() {
    let mut crypto = crypto();
    let (store, bytes) = two_files(&mut crypto);
    let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
    let (file, place) = store.open("a").unwrap();
    let content = contents.open(file, place, &mut crypto).unwrap();
    content.zero(4096, 3 * 4096, &mut crypto).unwrap();
    let holed = whole(&content, &mut crypto);
    assert_eq!(content.seek(0, true, &mut crypto).unwrap(), Some(4096));
    assert_eq!(content.seek(5000, false, &mut crypto).unwrap(), Some(4 * 4096));
    drop(content);
    contents.checkpoint(&mut crypto).unwrap();
    drop(contents);
    store.put("b", &store.bytes("a"));
    assert!(damaged(&store, &holed, &mut crypto).unwrap().is_empty());
    let mine = store.bytes("a");
    // Chunk 1 is a run of one, 2 and 3 are a run of two.
    for (from, until, expected) in [(1, 2, vec![1]), (2, 3, vec![2, 3]), (0, 1, vec![0]), (4, 5, vec![4])] {
        let mut altered = mine.clone();
        altered[slot(from)..slot(until)].fill(0);
        store.put("a", &altered);
        assert_eq!(damaged(&store, &holed, &mut crypto).unwrap(), expected, "zeroed {from}");
    }
    let mut altered = mine.clone();
    altered.copy_within(slot(2)..slot(2) + 48, slot(3));
    store.put("a", &altered);
    assert_eq!(damaged(&store, &holed, &mut crypto).unwrap(), [3], "a record at another place");
    let mut altered = mine.clone();
    altered.copy_within(slot(2)..slot(3), slot(0));
    store.put("a", &altered);
    assert_eq!(damaged(&store, &holed, &mut crypto).unwrap(), [0], "a record over data");
    let _ = bytes;
}

/// A volume whose journal has several synced records about one file.
fn journaled(crypto: &mut Dispatcher) -> (SimStore, Vec<u8>, Vec<u64>) {
    let store = SimStore::default();
    let contents = Contents::start(store.clone(), &volume(), crypto).unwrap().0;
    let (file, place) = store.create("a");
    let content = contents.create(file, place, crypto).unwrap();
    let mut bytes = pattern(LEN, 5);
    content.write(&bytes, 0, crypto).unwrap();
    contents.checkpoint(crypto).unwrap();
    let mut ends = vec![8192];
    for index in 0..4 {
        let new = pattern(4096, 70 + index);
        content.write(&new, index * CHUNK, crypto).unwrap();
        content.sync(crypto).unwrap();
        bytes[(index * CHUNK) as usize..][..4096].copy_from_slice(&new);
        ends.push(8192 + (contents_used(&store)));
    }
    (store, bytes, ends)
}

/// Whether a byte only fills up a record to a multiple of eight: nobody reads it.
fn fills_up(journal: &[u8], at: usize) -> bool {
    let number = |at: usize| u32::from_be_bytes(journal[at..at + 4].try_into().unwrap()) as usize;
    let mut start = 8192;
    loop {
        let end = start + 32 + number(start + 16) + number(start + 20) + 16;
        if at < end.next_multiple_of(8) {
            return at >= end;
        }
        start = end.next_multiple_of(8);
    }
}

/// Bytes of records in the journal's file: nothing was there before.
fn contents_used(store: &SimStore) -> u64 {
    store.bytes(JOURNAL).len() as u64 - 8192
}

/// The version byte of a header, in place of the one that it has: as a fault makes it, and as a newer program seals it.
fn with_version(bytes: &[u8], version: u8, newer: bool) -> Vec<u8> {
    let mut altered = bytes.to_vec();
    altered[8] = version;
    altered[95] ^= u8::from(newer);
    altered
}

#[test]
fn an_altered_version_byte_keeps_nothing_from_its_place() {
    let mut crypto = crypto();
    for version in [0, 2, 0x81, 255] {
        let (store, bytes, _) = journaled(&mut crypto);
        let file = store.bytes("a");
        store.put("a", &with_version(&file, version, true));
        let before = (store.bytes("a"), store.bytes(JOURNAL));
        let error = Contents::start(store.clone(), &volume(), &mut crypto).err().unwrap();
        assert!(matches!(&error, Error::Newer(what) if what.contains(" of a,")), "{error}");
        assert!((store.bytes("a"), store.bytes(JOURNAL)) == before, "something changed");
        store.put("a", &with_version(&file, version, false));
        let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
        let (file, place) = store.open("a").unwrap();
        if contents.is_version_altered(&file, &mut crypto).unwrap() {
            assert!(matches!(
                contents.open(file.clone(), place.clone(), &mut crypto),
                Err(Error::Damaged(_))
            ));
            contents.restore_version(&file, &mut crypto).unwrap();
        }
        assert!(!contents.is_version_altered(&file, &mut crypto).unwrap());
        assert!(whole(&contents.open(file, place, &mut crypto).unwrap(), &mut crypto) == bytes);
    }
}

/// A journal that has content of a file that is gone has every file looked at.
#[test]
fn a_file_of_an_unknown_version_stops_no_start_that_is_about_others() {
    let mut crypto = crypto();
    for newer in [false, true] {
        let (store, bytes) = two_files(&mut crypto);
        let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
        let (file, place) = store.open("a").unwrap();
        let content = contents.open(file, place, &mut crypto).unwrap();
        for round in 0..2 {
            content.write(&pattern(4096, 80 + round), 0, &mut crypto).unwrap();
            content.sync(&mut crypto).unwrap();
        }
        drop((content, contents));
        store.remove("a");
        let other = store.bytes("b");
        store.put("b", &with_version(&other, 2, newer));
        let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
        store.put("b", &other);
        let (file, place) = store.open("b").unwrap();
        assert!(whole(&contents.open(file, place, &mut crypto).unwrap(), &mut crypto) == bytes);
    }
}

#[test]
fn an_altered_journal_is_refused_and_nothing_changes() {
    let mut crypto = crypto();
    let (store, bytes, ends) = journaled(&mut crypto);
    let (journal, file) = (store.bytes(JOURNAL), store.bytes("a"));
    let mut refused = |altered: Vec<u8>, what: &str| {
        store.put(JOURNAL, &altered);
        match Contents::start(store.clone(), &volume(), &mut crypto) {
            // A version byte that is altered looks like a newer program's.
            Err(Error::Damaged(_) | Error::Newer(_)) => {}
            Err(error) => panic!("{what}: {error}"),
            Ok(_) => panic!("{what}: started"),
        }
        assert!(store.bytes("a") == file && store.bytes(JOURNAL) == altered, "{what}: something changed");
    };
    // Every record but the last: behind it there is one that knows it was durable.
    let known = ends[ends.len() - 3] as usize;
    for at in (8192..known).step_by(37).filter(|at| !fills_up(&journal, *at)) {
        let mut altered = journal.clone();
        altered[at] ^= 4;
        refused(altered, &format!("byte {at} flipped"));
    }
    let (first, second, third) = (ends[0] as usize, ends[1] as usize, ends[2] as usize);
    let mut altered = journal.clone();
    altered[first..second].fill(0);
    refused(altered, "a record zeroed");
    let altered =
        [&journal[..first], &journal[second..third], &journal[first..second], &journal[third..]].concat();
    refused(altered, "records swapped");
    let altered = [&journal[..second], &journal[first..second], &journal[second..]].concat();
    refused(altered, "a record repeated");
    let altered = [&journal[..first], &journal[second..]].concat();
    refused(altered, "a record left out");
    for head in [0, 4096] {
        let mut altered = journal.clone();
        altered[head..head + 512].fill(0);
        let now = is_current_head(&journal, head);
        if now {
            refused(altered, "the head zeroed");
        }
    }
    let mut altered = journal.clone();
    altered[..8192].fill(0);
    refused(altered, "both heads zeroed");
    let mut altered = journal.clone();
    let head = if is_current_head(&journal, 0) { 0 } else { 4096 };
    altered[head + 30] ^= 1;
    refused(altered, "the salt flipped");
    let mut altered = journal.clone();
    altered[head + 8] ^= 1;
    refused(altered, "another version");

    store.put(JOURNAL, &journal);
    let other = Volume { keys: vec![(1, zeroize::Zeroizing::new([8; 32]))], ..volume() };
    assert!(matches!(Contents::start(store.clone(), &other, &mut crypto), Err(Error::Damaged(_))), "foreign");
    let (contents, recovered) = Contents::start(store.clone(), &volume(), &mut crypto).unwrap();
    assert!(recovered.lines.is_empty(), "{:?}", recovered.lines);
    let (file, place) = store.open("a").unwrap();
    assert!(whole(&contents.open(file, place, &mut crypto).unwrap(), &mut crypto) == bytes);
}

/// Whether a head is the one with the higher epoch.
fn is_current_head(journal: &[u8], at: usize) -> bool {
    journal[at + 16..at + 24] > journal[(4096 - at) + 16..(4096 - at) + 24]
}

#[test]
fn no_plaintext_is_in_journal_or_files() {
    let mut crypto = crypto();
    let store = SimStore::default();
    let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
    let (file, place) = store.create("a");
    let content = contents.create(file, place, &mut crypto).unwrap();
    let secret = b"a sentence that nobody may find anywhere";
    let text: Vec<u8> = secret.iter().copied().cycle().take(30_000).collect();
    content.write(&text, 0, &mut crypto).unwrap();
    content.sync(&mut crypto).unwrap();
    content.write(&text, 5, &mut crypto).unwrap();
    content.append(secret, &mut crypto).unwrap();
    content.set_len(9000, &mut crypto).unwrap();
    content.sync(&mut crypto).unwrap();
    let mut seen = vec![store.bytes("a"), store.bytes(JOURNAL)];
    contents.checkpoint(&mut crypto).unwrap();
    seen.extend([store.bytes("a"), store.bytes(JOURNAL)]);
    assert!(seen[1].len() > 30_000);
    for bytes in seen {
        assert!(!bytes.windows(12).any(|window| window == &secret[..12]));
    }
}
