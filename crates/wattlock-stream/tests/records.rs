//! Records sealed one by one, and the folder of their keys.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;
use std::process::Command;

use common::*;
use wattlock_core::{Error as CoreError, Item, Request};
use wattlock_files::Crypto;
use wattlock_stream::Error;
use wattlock_stream::keys::{Folder, Unlocked};
use wattlock_stream::record::{EXTRA_MAX, Place, Record, RecordOpener, RecordSealer, StreamId};

const PLACE: Place<'static> = Place { topic: "orders", partition: 3 };

/// Counts calls for batches.
struct Counting<C>(C, usize);

impl<C: Crypto> Crypto for Counting<C> {
    fn run(&mut self, request: &mut Request<'_>) -> Result<usize, CoreError> {
        self.0.run(request)
    }

    fn run_all(&mut self, items: &mut [Item<'_>]) {
        self.1 += 1;
        self.0.run_all(items);
    }
}

struct Desk {
    folder: tempfile::TempDir,
    pair: Pair,
    crypto: Counting<wattlock::Dispatcher>,
}

impl Desk {
    fn new() -> Desk {
        let crypto = Counting(runtime().dispatcher(), 0);
        Desk { folder: tempfile::tempdir().unwrap(), pair: Pair::new(), crypto }
    }

    fn keys(&self) -> Folder {
        Folder::open(self.folder.path()).unwrap()
    }

    fn key(&mut self) -> RecordSealer {
        self.keys().new_key("orders", &self.pair.sealer(), &mut self.crypto).unwrap()
    }

    fn opener(&self) -> RecordOpener<Unlocked> {
        RecordOpener::new(Unlocked { folder: self.keys(), opener: self.pair.opener() })
    }

    fn open_one(&mut self, place: Place<'_>, record: Record<'_>) -> Result<Option<Vec<u8>>, Error> {
        let opened = self.opener().open_batch(place, &[record], &mut self.crypto).remove(0);
        opened.map(|value| value.map(|value| value.to_vec()))
    }
}

fn records() -> Vec<Record<'static>> {
    let record = |key: &'static [u8], value: &'static [u8]| Record {
        key: Some(key),
        value: Some(value),
        timestamp: None,
    };
    vec![
        record(b"k1", b"first"),
        Record { timestamp: Some(-7), ..record(b"k1", b"") },
        Record { key: None, ..record(b"", b"no key") },
        record(b"", b"an empty key"),
        Record { value: None, ..record(b"gone", b"") },
        record(b"k2", &[0x5a; 5000]),
    ]
}

fn sealed_records<'a>(plain: &[Record<'a>], sealed: &'a [Option<Vec<u8>>]) -> Vec<Record<'a>> {
    plain.iter().zip(sealed).map(|(record, value)| Record { value: value.as_deref(), ..*record }).collect()
}

#[test]
fn a_batch_is_one_call_and_every_record_opens_alone() {
    let mut desk = Desk::new();
    let (key, plain) = (desk.key(), records());
    let before = desk.crypto.1;
    let sealed = key.seal_batch(PLACE, &plain, &mut desk.crypto).unwrap();
    assert_eq!(desk.crypto.1, before + 1);
    let whole = sealed_records(&plain, &sealed);
    let before = desk.crypto.1;
    let opened = desk.opener().open_batch(PLACE, &whole, &mut desk.crypto);
    assert_eq!(desk.crypto.1, before + 1 + 1, "one to unwrap the key");
    for ((record, opened), sealed) in plain.iter().zip(opened).zip(&whole) {
        assert_eq!(opened.unwrap().as_ref().map(|value| &value[..]), record.value);
        assert_eq!(desk.open_one(PLACE, *sealed).unwrap().as_deref(), record.value);
        let added = sealed.value.map_or(0, <[u8]>::len) - record.value.map_or(0, <[u8]>::len);
        assert!(added == if record.value.is_some() { 58 } else { 0 } && added <= EXTRA_MAX, "{added}");
    }
    let again = key.seal_batch(PLACE, &plain, &mut desk.crypto).unwrap();
    assert_ne!(again, sealed, "another batch, another salt");
}

#[test]
fn a_value_that_is_moved_or_altered_does_not_open() {
    let mut desk = Desk::new();
    let (key, plain) = (desk.key(), records());
    let sealed = key.seal_batch(PLACE, &plain, &mut desk.crypto).unwrap();
    let whole = sealed_records(&plain, &sealed);
    let mut code = |place: Place<'_>, record: Record<'_>| {
        desk.open_one(place, record).map_or_else(|error| error.exit_code(), |_| 0)
    };
    let first = whole[0];
    assert_eq!(code(PLACE, first), 0);
    assert_eq!(code(Place { partition: 4, ..PLACE }, first), 38);
    assert_eq!(code(Place { topic: "order", ..PLACE }, first), 38);
    for other in [
        Record { key: Some(b"k2"), ..first },
        Record { key: None, ..first },
        Record { timestamp: Some(0), ..first },
        Record { timestamp: Some(-8), ..whole[1] },
        Record { timestamp: None, ..whole[1] },
        Record { key: Some(b""), ..whole[2] },
        Record { key: None, ..whole[3] },
    ] {
        assert_eq!(code(PLACE, other), 38, "{other:?}");
    }
    let value = first.value.unwrap();
    for at in 0..value.len() {
        let mut other = value.to_vec();
        other[at] ^= 1;
        let expected = match at {
            0 => 21,
            1..17 => 39,
            _ => 38,
        };
        // A number of another length is no number of this place.
        assert_eq!(code(PLACE, Record { value: Some(&other), ..first }), expected, "{at}");
    }
    for len in 0..value.len() {
        let cut = code(PLACE, Record { value: Some(&value[..len]), ..first });
        assert!(cut == 21 || cut == 38, "{len}");
    }
    assert_eq!(
        code(
            PLACE,
            Record { value: Some(b"plain text that was never sealed, but is long enough to be"), ..first }
        ),
        21
    );
}

#[test]
fn one_bad_record_says_nothing_of_its_neighbours() {
    let mut desk = Desk::new();
    let (key, plain) = (desk.key(), records());
    let mut sealed = key.seal_batch(PLACE, &plain, &mut desk.crypto).unwrap();
    sealed[2].as_mut().unwrap()[45] ^= 1;
    sealed[0].as_mut().unwrap()[0] = 9;
    let opened = desk.opener().open_batch(PLACE, &sealed_records(&plain, &sealed), &mut desk.crypto);
    let good: Vec<bool> = opened.iter().map(Result::is_ok).collect();
    assert_eq!(good, [false, true, false, true, true, true]);
}

#[test]
fn a_key_is_on_the_disk_before_it_seals_and_rewrapping_changes_its_readers() {
    let mut desk = Desk::new();
    let (key, plain) = (desk.key(), records());
    let sealed = key.seal_batch(PLACE, &plain[..1], &mut desk.crypto).unwrap();
    let (entries, damaged) = desk.keys().list().unwrap();
    assert_eq!((entries.len(), damaged.len()), (1, 0));
    assert_eq!((entries[0].id, &entries[0].label[..], entries[0].recipients), (key.id(), "orders", 1));
    let (old, new) = (desk.pair.opener(), Pair::new());
    desk.keys().rewrap(key.id(), &old, &new.sealer(), &mut desk.crypto).unwrap();
    let record = sealed_records(&plain, &sealed)[0];
    assert_eq!(desk.open_one(PLACE, record).unwrap_err().exit_code(), 12, "the old reader is out");
    desk.pair = new;
    assert_eq!(desk.open_one(PLACE, record).unwrap().unwrap(), b"first");
    assert_eq!(desk.keys().list().unwrap().0[0].created, entries[0].created);
    desk.keys().shred(key.id()).unwrap();
    assert!(matches!(desk.open_one(PLACE, record), Err(Error::NoKey(id)) if id == key.id()));
    assert!(matches!(desk.keys().shred(key.id()), Err(Error::NoKey(_))));
    assert_eq!(fs::read_dir(desk.folder.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_damaged_entry_is_reported_and_an_entry_under_another_name_is_refused() {
    let mut desk = Desk::new();
    let (one, other) = (desk.key().id(), desk.key().id());
    let file = |id: StreamId| desk.folder.path().join(format!("{id}.key"));
    let bytes = fs::read(file(one)).unwrap();
    let (old, folder) = (desk.pair.opener(), desk.keys());
    let crypto = &mut desk.crypto;
    for at in 0..bytes.len() {
        let mut altered = bytes.clone();
        altered[at] ^= 1;
        fs::write(file(one), &altered).unwrap();
        assert!(folder.find(one, &old, crypto).is_err(), "{at}");
    }
    for len in 0..bytes.len() {
        fs::write(file(one), &bytes[..len]).unwrap();
        assert!(folder.find(one, &old, crypto).is_err(), "{len}");
        let (entries, damaged) = folder.list().unwrap();
        assert_eq!((entries.len(), damaged.len()), (1, 1), "{len}");
    }
    fs::write(file(one), [&bytes[..], b"x"].concat()).unwrap();
    assert!(folder.find(one, &old, crypto).is_err(), "extended");
    fs::copy(file(other), file(one)).unwrap();
    let swapped = folder.find(one, &old, crypto).unwrap_err();
    assert!(swapped.to_string().contains("holds another key"), "{swapped}");
    fs::write(file(one), bytes).unwrap();
    assert!(folder.find(one, &old, crypto).unwrap().is_some());
    // What is no entry is not looked at.
    fs::write(desk.folder.path().join("README"), "").unwrap();
    fs::write(desk.folder.path().join("x.key"), "").unwrap();
    assert_eq!(folder.list().unwrap().0.len(), 2);
}

#[test]
fn the_python_reader_opens_what_the_page_describes() {
    if Command::new("python3")
        .args(["-c", "import cryptography"])
        .status()
        .map_or(true, |status| !status.success())
    {
        println!("skipped: python3 with cryptography is not installed");
        return;
    }
    let mut desk = Desk::new();
    let (key, plain) = (desk.key(), records());
    let sealed = key.seal_batch(PLACE, &plain, &mut desk.crypto).unwrap();
    let reader = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/read_stream.py");
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("key.txt"), desk.pair.secret()).unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new("python3").arg(reader).args(arguments).output().unwrap();
        (output.status.success(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for (record, sealed) in plain.iter().zip(&sealed) {
        let Some(sealed) = sealed else { continue };
        fs::write(path("value"), sealed).unwrap();
        let record_key = record.key.map_or("-".into(), hex);
        let time = record.timestamp.map_or("-".into(), |time| time.to_string());
        let folder = desk.folder.path().to_str().unwrap();
        let value = path("value");
        let ask = |partition| {
            run(&["record", &path("key.txt"), folder, "orders", partition, &record_key, &time, &value])
        };
        let (good, opened, said) = ask("3");
        assert!(good && Some(&opened[..]) == record.value, "{said}");
        assert!(!ask("4").0, "another partition");
    }
    let text = lines(300_000);
    let settings = wattlock_stream::pipe::Sealing {
        new_key_bytes: 1,
        ..in_frames(wattlock_stream::Framing::Lines, 5000)
    };
    let stream = seal(&desk.pair, &text, &settings);
    fs::write(path("stream"), &stream).unwrap();
    let (good, opened, said) = run(&["stream", &path("key.txt"), &path("stream")]);
    assert!(good && opened == text, "{said}");
    fs::write(path("stream"), &stream[..stream.len() - 1]).unwrap();
    assert!(!run(&["stream", &path("key.txt"), &path("stream")]).0);
    let example = |name: &str| format!("{}/tests/examples/{name}", env!("CARGO_MANIFEST_DIR"));
    let (good, opened, said) = run(&["stream", &example("key.txt"), &example("v1-lines.stream")]);
    assert!(good && opened == b"one\ntwo\nthree\n", "{said}");
}

/// A file of format 1 stays readable.
#[test]
fn the_kept_example_opens() {
    let example = |name: &str| format!("{}/tests/examples/{name}", env!("CARGO_MANIFEST_DIR"));
    let key = fs::read(example("key.txt")).unwrap();
    let opener = wattlock_files::Opener::new(
        wattlock_files::keys::identities(&key, wattlock_files::age::NoCallbacks).unwrap(),
    );
    let (outcome, opened) = open(&opener, &runtime(), &fs::read(example("v1-lines.stream")).unwrap());
    let passed = outcome.unwrap();
    assert_eq!((&opened[..], passed.frames, passed.keys), (&b"one\ntwo\nthree\n"[..], 4, 2));
}
