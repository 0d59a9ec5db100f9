//! Records sealed one by one, and the folder of their keys.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use std::fs;
use std::process::Command;

use common::*;
use wattlock_core::{Error as CoreError, Item, Request};
use wattlock_door::Crypto;
use wattlock_stream::keys::{Folder, Keys, Unlocked};
use wattlock_stream::names::RecordNames;
use wattlock_stream::record::{
    EXTRA_MAX, HEADERS_MAX, OpenedBatch, PROOF, Place, Record, RecordOpener, RecordSealer, SealedBatch,
    Shape, StreamId,
};
use wattlock_stream::trust::Signer;
use wattlock_stream::{Error, Header};

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

    fn keys(&self) -> Keys<Folder> {
        Keys::new(Folder::open(self.folder.path()).unwrap())
    }

    fn key(&mut self) -> RecordSealer {
        self.keys().new_key("orders", &self.pair.sealer(), None, &mut self.crypto).unwrap()
    }

    fn opener(&self) -> RecordOpener<Unlocked<Folder>> {
        RecordOpener::new(Unlocked { keys: self.keys(), opener: self.pair.opener() })
    }

    fn open(&mut self, place: Place<'_>, records: &[Record<'_>]) -> OpenedBatch {
        self.opener().open_batch(place, records, &mut self.crypto)
    }

    /// The value, or the exit code of why there is none.
    fn open_one(&mut self, place: Place<'_>, record: Record<'_>) -> Result<Option<Vec<u8>>, u8> {
        let mut opened = self.open(place, &[record]);
        let value = opened.get(0).map_err(Error::exit_code)?.value;
        Ok(value.map(<[u8]>::to_vec))
    }
}

const TRACE: Header<'static> = Header { name: "trace", value: Some(b"t1") };
const HEADERS: &[Header<'static>] =
    &[Header { name: "type", value: Some(b"order") }, TRACE, Header { name: "none", value: None }];

fn records() -> Vec<Record<'static>> {
    let record = |key: &'static [u8], value: &'static [u8]| Record {
        key: Some(key),
        value: Some(value),
        ..Record::default()
    };
    vec![
        record(b"k1", b"first"),
        Record { timestamp: Some(-7), ..record(b"k1", b"") },
        Record { key: None, ..record(b"", b"no key") },
        record(b"", b"an empty key"),
        Record { value: None, ..record(b"gone", b"") },
        record(b"k2", &[0x5a; 5000]),
        Record { headers: HEADERS, ..record(b"k3", b"with headers") },
        Record { value: None, headers: HEADERS, ..record(b"k3", b"") },
    ]
}

/// As they stand on the topic: headers, and records over them.
fn on_topic<'a>(plain: &[Record<'a>], sealed: &'a SealedBatch, shape: &Shape) -> Vec<Vec<Header<'a>>> {
    let headers = |(number, record): (usize, &Record<'a>)| {
        let clear = record.headers.iter().copied().filter(|header| shape.is_clear(header.name));
        let proof = Header { name: PROOF, value: Some(sealed.get(number)) };
        clear.chain(record.value.is_none().then_some(proof)).collect()
    };
    plain.iter().enumerate().map(headers).collect()
}

fn sealed_records<'a>(
    plain: &[Record<'a>],
    sealed: &'a SealedBatch,
    headers: &'a [Vec<Header<'a>>],
) -> Vec<Record<'a>> {
    let one = |(number, record): (usize, &Record<'a>)| Record {
        value: record.value.map(|_| sealed.get(number)),
        headers: &headers[number],
        ..*record
    };
    plain.iter().enumerate().map(one).collect()
}

#[test]
fn a_batch_is_one_call_and_every_record_opens_alone() {
    let mut desk = Desk::new();
    let (mut key, plain) = (desk.key(), records());
    key.shape.clear_headers = vec!["trace".into(), PROOF.into()];
    let before = desk.crypto.1;
    let sealed = key.seal_batch(PLACE, &plain, &mut desk.crypto).unwrap();
    assert_eq!(desk.crypto.1, before + 1);
    let headers = on_topic(&plain, &sealed, &key.shape);
    let whole = sealed_records(&plain, &sealed, &headers);
    let before = desk.crypto.1;
    let mut opened = desk.open(PLACE, &whole);
    assert_eq!(desk.crypto.1, before + 1 + 1, "one to unwrap the key");
    for (number, record) in plain.iter().enumerate() {
        let together = opened.get(number).unwrap();
        assert_eq!((together.value, &together.headers(&headers[number])[..]), (record.value, record.headers));
        let mut alone = desk.open(PLACE, &whole[number..=number]);
        let alone = alone.get(0).unwrap();
        assert_eq!((alone.value, &alone.headers(&headers[number])[..]), (record.value, record.headers));
        let added = sealed.get(number).len() - record.value.map_or(0, <[u8]>::len);
        let of_headers = if record.headers.is_empty() { 0 } else { 1 + (5 + 6) + 1 + (5 + 1) };
        assert!(added == 59 + of_headers && 59 <= EXTRA_MAX, "{added}");
    }
    let again = key.seal_batch(PLACE, &plain, &mut desk.crypto).unwrap();
    assert_ne!(again.get(0), sealed.get(0), "another batch, another salt");
}

#[test]
fn a_packed_value_comes_back_and_one_above_the_bound_is_refused() {
    let mut desk = Desk::new();
    let mut key = desk.key();
    key.shape.compress = true;
    let mut noise = vec![0; 5000];
    wattlock_door::random(&mut noise).unwrap();
    let long = [0x5a; 5000];
    let record = |value| Record { value: Some(value), ..Record::default() };
    let plain = [record(&long[..]), record(b"short"), record(&noise), record(b"")];
    let sealed = key.seal_batch(PLACE, &plain, &mut desk.crypto).unwrap();
    let headers = on_topic(&plain, &sealed, &key.shape);
    let whole = sealed_records(&plain, &sealed, &headers);
    let lens: Vec<usize> = (0..4).map(|number| sealed.get(number).len()).collect();
    assert!(lens[0] < 200 && lens[1..] == [59 + 5, 59 + 5000, 59], "{lens:?}");
    let mut opened = desk.open(PLACE, &whole);
    for (number, record) in plain.iter().enumerate() {
        assert_eq!(opened.get(number).unwrap().value, record.value);
    }
    let mut opener = desk.opener();
    opener.value_max = 4999;
    let mut bounded = opener.open_batch(PLACE, &whole, &mut desk.crypto);
    assert!(matches!(bounded.get(0), Err(Error::RecordTooLarge)));
    assert!(bounded.get(1).is_ok());
}

#[test]
fn what_no_reader_opens_is_not_sealed() {
    let mut desk = Desk::new();
    let (mut key, headers) = (desk.key(), vec![TRACE; HEADERS_MAX + 1]);
    let most = Record { value: Some(b"v"), headers: &headers[..HEADERS_MAX], ..Record::default() };
    let more = Record { headers: &headers, ..most };
    let sealed = key.seal_batch(PLACE, &[most], &mut desk.crypto).unwrap();
    let whole = Record { value: Some(sealed.get(0)), headers: &[], ..most };
    assert_eq!(desk.open_one(PLACE, whole).unwrap().unwrap(), b"v");
    for clear in [vec![], vec!["trace".into()]] {
        key.shape.clear_headers = clear;
        let refused = key.seal_batch(PLACE, &[most, more], &mut desk.crypto).err();
        assert!(matches!(refused, Some(Error::Unfit(_))), "{refused:?}");
    }
}

/// Bytes of memory that this process has now.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn a_batch_that_would_unpack_to_a_gigabyte_takes_one_value_of_memory() {
    let mut desk = Desk::new();
    let mut key = desk.key();
    key.shape.compress = true;
    let long = vec![7; 16 << 20];
    let plain = Record { value: Some(&long), ..Record::default() };
    let sealed = key.seal_batch(PLACE, &[plain], &mut desk.crypto).unwrap();
    let whole = vec![Record { value: Some(sealed.get(0)), ..plain }; 64];
    let before = resident();
    let mut opened = desk.open(PLACE, &whole);
    for number in [0, 63] {
        assert!(opened.get(number).unwrap().value == Some(&long), "{number}");
    }
    let taken = resident().saturating_sub(before);
    assert!(taken < 256 << 20, "{taken} bytes");
}

#[test]
fn a_tombstone_without_proof_or_with_another_record_s_is_refused() {
    let mut desk = Desk::new();
    let (key, plain) = (desk.key(), records());
    let sealed = key.seal_batch(PLACE, &plain, &mut desk.crypto).unwrap();
    let headers = on_topic(&plain, &sealed, &key.shape);
    let whole = sealed_records(&plain, &sealed, &headers);
    let dead = whole[4];
    assert_eq!(desk.open_one(PLACE, dead), Ok(None));
    assert_eq!(desk.open_one(PLACE, Record { headers: &[], ..dead }), Err(21));
    assert_eq!(desk.open_one(PLACE, Record { key: Some(b"k1"), ..dead }), Err(38), "another key");
    let proof = |number: usize| [Header { name: PROOF, value: Some(sealed.get(number)) }];
    let of_a_value = Record { key: Some(b"k1"), value: None, headers: &proof(0), ..dead };
    assert_eq!(desk.open_one(PLACE, of_a_value), Err(38), "a value's bytes as a proof");
    let as_a_value = Record { value: Some(sealed.get(4)), headers: &[], ..dead };
    assert_eq!(desk.open_one(PLACE, as_a_value), Err(38), "a proof as a value");
}

#[test]
fn hidden_keys_stay_equal_and_come_back() {
    let mut desk = Desk::new();
    let names =
        |key: u8, topic, desk: &mut Desk| RecordNames::new(&[key; 32], topic, &mut desk.crypto).unwrap();
    let (one, elsewhere) = (names(1, "orders", &mut desk), names(1, "other", &mut desk));
    let keys = [Some(&b"k1"[..]), None, Some(b""), Some(b"k1"), Some(b"k2")];
    let hidden = one.hide(&keys, &mut desk.crypto).unwrap();
    assert!(hidden[0] == hidden[3] && hidden[0] != hidden[4] && hidden[1].is_none());
    assert_eq!(hidden[2].as_ref().unwrap().len(), 16);
    let refs: Vec<Option<&[u8]>> = hidden.iter().map(Option::as_deref).collect();
    let shown = one.show(&refs, &mut desk.crypto);
    for (shown, key) in shown.iter().zip(keys) {
        assert_eq!(shown.as_ref().unwrap().as_ref().map(|key| &key[..]), key);
    }
    assert_ne!(elsewhere.hide(&keys, &mut desk.crypto).unwrap()[0], hidden[0]);
    assert!(elsewhere.show(&refs, &mut desk.crypto)[0].is_err(), "another topic's");
    let mut altered = hidden[0].clone().unwrap();
    altered[17] ^= 1;
    let shown = one.show(&[Some(&altered), Some(&altered[..15]), refs[4]], &mut desk.crypto);
    assert!(shown[0].is_err() && shown[1].is_err() && shown[2].is_ok());
}

#[test]
fn with_trust_set_no_other_key_is_taken_and_a_signature_outlives_other_readers() {
    let mut desk = Desk::new();
    let ((ours, _), (theirs, _)) = (Signer::generate().unwrap(), Signer::generate().unwrap());
    let mut key = |signer: Option<&Signer>| {
        let sealer = desk.pair.sealer();
        desk.keys().new_key("orders", &sealer, signer, &mut desk.crypto).unwrap().id()
    };
    let (signed, foreign, unsigned) = (key(Some(&ours)), key(Some(&theirs)), key(None));
    let (old, new) = (desk.pair.opener(), Pair::new());
    let trusting = |desk: &Desk| desk.keys().trusting(vec![ours.name()]);
    let crypto = &mut desk.crypto;
    let mut keys = Keys::new(Folder::open(desk.folder.path()).unwrap()).trusting(vec![ours.name()]);
    assert!(keys.find(signed, &old, crypto).unwrap().is_some());
    for other in [foreign, unsigned] {
        let refused = keys.find(other, &old, crypto).unwrap_err();
        assert!(matches!(refused, Error::Untrusted(id) if id == other) && refused.exit_code() == 39);
    }
    keys.rewrap(signed, &old, &new.sealer(), crypto).unwrap();
    assert!(trusting(&desk).find(signed, &new.opener(), &mut desk.crypto).unwrap().is_some());
    let entries = desk.keys().list().unwrap().0;
    let signers: Vec<_> = entries.iter().map(|entry| (entry.id, entry.signer)).collect();
    assert!(signers.contains(&(foreign, Some(theirs.name()))) && signers.contains(&(unsigned, None)));
    // A signature is of one key's entry.
    let file = |id: StreamId| desk.folder.path().join(format!("{id}.key"));
    let (bytes, taken) = (fs::read(file(foreign)).unwrap(), fs::read(file(signed)).unwrap());
    let at = bytes.len() - 96;
    fs::write(file(foreign), [&bytes[..at], &taken[taken.len() - 96..]].concat()).unwrap();
    assert!(matches!(trusting(&desk).find(foreign, &old, &mut desk.crypto), Err(Error::BadEntry { .. })));
    fs::write(file(foreign), &bytes[..at]).unwrap();
    assert!(trusting(&desk).find(foreign, &old, &mut desk.crypto).is_err(), "a signature cut off");
}

#[test]
fn a_value_that_is_moved_or_altered_does_not_open() {
    let mut desk = Desk::new();
    let (key, plain) = (desk.key(), records());
    let sealed = key.seal_batch(PLACE, &plain, &mut desk.crypto).unwrap();
    let headers = on_topic(&plain, &sealed, &key.shape);
    let whole = sealed_records(&plain, &sealed, &headers);
    let mut code = |place: Place<'_>, record: Record<'_>| desk.open_one(place, record).err().unwrap_or(0);
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
        Record { headers: &[TRACE], ..first },
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
    let sealed = key.seal_batch(PLACE, &plain, &mut desk.crypto).unwrap();
    let (mut unknown, mut altered) = (sealed.get(0).to_vec(), sealed.get(2).to_vec());
    unknown[0] = 9;
    altered[45] ^= 1;
    let headers = on_topic(&plain, &sealed, &key.shape);
    let mut whole = sealed_records(&plain, &sealed, &headers);
    whole[0].value = Some(&unknown);
    whole[2].value = Some(&altered);
    let mut opened = desk.open(PLACE, &whole);
    let good: Vec<bool> = (0..opened.len()).map(|number| opened.get(number).is_ok()).collect();
    assert_eq!(good, [false, true, false, true, true, true, true, true]);
    for number in [1, 3, 5] {
        assert_eq!(opened.get(number).unwrap().value, plain[number].value);
    }
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
    let record = Record { value: Some(sealed.get(0)), ..plain[0] };
    assert_eq!(desk.open_one(PLACE, record), Err(12), "the old reader is out");
    desk.pair = new;
    assert_eq!(desk.open_one(PLACE, record).unwrap().unwrap(), b"first");
    assert_eq!(desk.keys().list().unwrap().0[0].created, entries[0].created);
    desk.keys().shred(key.id()).unwrap();
    let mut opened = desk.open(PLACE, &[record]);
    assert!(matches!(opened.get(0), Err(Error::NoKey(id)) if *id == key.id()));
    assert!(matches!(desk.keys().shred(key.id()), Err(Error::NoKey(_))));
    assert_eq!(fs::read_dir(desk.folder.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_damaged_entry_is_reported_and_an_entry_under_another_name_is_refused() {
    let mut desk = Desk::new();
    let (one, other) = (desk.key().id(), desk.key().id());
    let file = |id: StreamId| desk.folder.path().join(format!("{id}.key"));
    let bytes = fs::read(file(one)).unwrap();
    let (old, mut folder) = (desk.pair.opener(), desk.keys());
    let crypto = &mut desk.crypto;
    for at in 0..bytes.len() {
        let mut altered = bytes.clone();
        altered[at] ^= 1;
        fs::write(file(one), &altered).unwrap();
        let error = folder.find(one, &old, crypto).unwrap_err();
        // A recipient that was altered looks like another's, and a version like a later one.
        let is_version = (8..12).contains(&at) || (16 + 19..16 + 22).contains(&at);
        match error.reason() {
            "unknown-version" => assert!(is_version && error.exit_code() == 22, "{at}: {error}"),
            reason => assert!(["bad-entry", "no-identity"].contains(&reason), "{at}: {error}"),
        }
    }
    for len in 0..bytes.len() {
        fs::write(file(one), &bytes[..len]).unwrap();
        assert_eq!(folder.find(one, &old, crypto).unwrap_err().reason(), "bad-entry", "{len}");
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn shown(record: &Record<'_>) -> serde_json::Value {
    let headers: Vec<_> = record.headers.iter().map(|header| (header.name, header.value.map(hex))).collect();
    serde_json::json!({ "key": record.key.map(hex), "value": record.value.map(hex), "headers": headers })
}

/// As the Python reader takes it.
fn line(record: &Record<'_>, partition: u32) -> String {
    let mut line = shown(record);
    line["partition"] = partition.into();
    line["time"] = record.timestamp.into();
    format!("{line}\n")
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
    let (mut key, plain) = (desk.key(), records());
    key.shape.clear_headers = vec!["trace".into()];
    let names = desk.key();
    let names_key = desk.keys().find(names.id(), &desk.pair.opener(), &mut desk.crypto).unwrap().unwrap();
    let names_of = RecordNames::new(&names_key, "orders", &mut desk.crypto).unwrap();
    let reader = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/read_stream.py");
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("key.txt"), desk.pair.secret()).unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new("python3").arg(reader).args(arguments).output().unwrap();
        (output.status.success(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let keys: Vec<Option<&[u8]>> = plain.iter().map(|record| record.key).collect();
    let hidden = names_of.hide(&keys, &mut desk.crypto).unwrap();
    let folder = desk.folder.path().to_str().unwrap();
    for hide in [false, true] {
        let mut records = plain.clone();
        if hide {
            records.iter_mut().zip(&hidden).for_each(|(record, key)| record.key = key.as_deref());
        }
        let sealed = key.seal_batch(PLACE, &records, &mut desk.crypto).unwrap();
        let headers = on_topic(&records, &sealed, &key.shape);
        let lines = |partition| -> String {
            let whole = sealed_records(&records, &sealed, &headers);
            whole.iter().map(|record| line(record, partition)).collect()
        };
        fs::write(path("records"), lines(3)).unwrap();
        let id = names.id().to_string();
        let arguments = ["records", &path("key.txt"), folder, "orders", &path("records"), &id];
        let arguments = if hide { &arguments[..] } else { &arguments[..5] };
        let (good, opened, said) = run(arguments);
        assert!(good, "{said}");
        let opened: Vec<serde_json::Value> = opened
            .split(|byte| *byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        let expected: Vec<serde_json::Value> = plain.iter().map(|record| shown(record)).collect();
        assert_eq!(opened, expected);
        fs::write(path("records"), lines(4)).unwrap();
        assert!(!run(arguments).0, "another partition");
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
