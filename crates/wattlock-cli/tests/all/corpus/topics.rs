//! Records of topics, and the entries of their keys: by the library, which the bridge opens them with.

use std::fmt::Write;
use std::fs;

use serde::Deserialize;
use serde_json::Value;
use wattlock::{Dispatcher, Runtime};
use wattlock_files::age::NoCallbacks;
use wattlock_files::{Opener, keys};
use wattlock_stream::Header;
use wattlock_stream::keys::{Folder, Keys, Unlocked};
use wattlock_stream::names::RecordNames;
use wattlock_stream::record::{Place, Record, RecordOpener, StreamId};

use super::{Corpus, Piece, What, altered, versions};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) identities: Vec<String>,
    label: String,
    signer: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Topic {
    topic: String,
    /// The folder of its keys.
    keys: String,
    pub(super) identities: Vec<String>,
    /// The stream key under which record keys are hidden.
    names: Option<String>,
    bytes: usize,
    clear: String,
}

fn crypto() -> Dispatcher {
    Runtime::builder().telemetry(false).build().unwrap().dispatcher()
}

fn opener(corpus: &Corpus, identity: &str) -> Opener {
    Opener::new(keys::identities(&fs::read(corpus.at(identity)).unwrap(), NoCallbacks).unwrap())
}

impl Entry {
    fn opens(&self, corpus: &Corpus, piece: &Piece, crypto: &mut Dispatcher) {
        let (folder, name) = piece.file.rsplit_once('/').unwrap();
        let id: StreamId = name.strip_suffix(".key").unwrap().parse().unwrap();
        let mut keys = Keys::new(Folder::open(&corpus.at(folder)).unwrap());
        if let Some(signer) = &self.signer {
            keys = keys.trusting(vec![signer.parse().unwrap()]);
        }
        let opener = opener(corpus, &self.identities[0]);
        assert!(keys.find(id, &opener, crypto).unwrap().is_some(), "{}", piece.file);
        let listed = String::from_utf8(corpus.good(&["stream", "keys", "list", "--keys", folder])).unwrap();
        let line = listed.lines().find(|line| line.starts_with(&id.to_string())).unwrap();
        let signer = self.signer.as_deref().unwrap_or_default();
        assert!(line.contains(&self.label) && line.contains(signer), "{line}");
        let (path, entry) = (corpus.at(&piece.file), fs::read(corpus.at(&piece.file)).unwrap());
        for (at, altered) in altered(&entry, 100) {
            fs::write(&path, altered).unwrap();
            assert!(keys.find(id, &opener, crypto).is_err(), "{}: byte {at}", piece.file);
        }
        fs::write(&path, entry).unwrap();
    }
}

/// A record as it stands on the topic, and where.
#[derive(Clone, PartialEq)]
struct Sealed {
    partition: u32,
    key: Option<Vec<u8>>,
    time: Option<i64>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

fn part(value: &Value) -> Option<Vec<u8>> {
    let digits = value.as_str()?;
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    Some((0..digits.len()).step_by(2).map(byte).collect())
}

fn shown(part: Option<&[u8]>) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    part.map_or("-".to_owned(), |bytes| format!("={}", hex(bytes)))
}

impl Sealed {
    fn parse(line: &str) -> Sealed {
        let line: Value = serde_json::from_str(line).unwrap();
        let headers = line["headers"].as_array().unwrap().iter();
        Sealed {
            partition: line["partition"].as_u64().unwrap().try_into().unwrap(),
            key: part(&line["key"]),
            time: line["time"].as_i64(),
            value: part(&line["value"]),
            headers: headers.map(|pair| (pair[0].as_str().unwrap().to_owned(), part(&pair[1]))).collect(),
        }
    }

    /// The part that was sealed: the value, or a tombstone's proof.
    fn sealed(&mut self) -> &mut Vec<u8> {
        match &mut self.value {
            Some(value) => value,
            None => self.headers.last_mut().unwrap().1.as_mut().unwrap(),
        }
    }

    /// The same with something of it altered.
    fn altered(&self) -> Vec<(String, Sealed)> {
        let mut all = Vec::new();
        let mut with = |what: String, alter: &dyn Fn(&mut Sealed)| {
            let mut one = self.clone();
            alter(&mut one);
            if one != *self {
                all.push((what, one));
            }
        };
        for (at, bytes) in altered(self.clone().sealed(), 60) {
            with(format!("byte {at}"), &|one| one.sealed().clone_from(&bytes));
        }
        with("partition".into(), &|one| one.partition += 1);
        with("time".into(), &|one| one.time = one.time.map(|time| time + 1));
        with("no time".into(), &|one| one.time = None);
        with("a time".into(), &|one| one.time = Some(one.time.unwrap_or(-1)));
        with("key".into(), &|one| one.key.get_or_insert_default().push(0));
        with("no key".into(), &|one| one.key = None);
        for at in 0..self.headers.len() - usize::from(self.value.is_none()) {
            with(format!("header {at}"), &|one| one.headers[at].0.push('x'));
            with(format!("no header {at}"), &|one| drop(one.headers.remove(at)));
        }
        all
    }
}

impl Topic {
    /// The record as one line of text; nothing if it does not open.
    fn open(
        &self,
        opener: &mut RecordOpener<Unlocked<Folder>>,
        names: Option<&RecordNames>,
        record: &Sealed,
        crypto: &mut Dispatcher,
    ) -> Option<String> {
        let headers: Vec<Header<'_>> =
            record.headers.iter().map(|(name, value)| Header { name, value: value.as_deref() }).collect();
        let (key, value, timestamp) = (record.key.as_deref(), record.value.as_deref(), record.time);
        let place = Place { topic: &self.topic, partition: record.partition };
        let sealed = Record { key, value, timestamp, headers: &headers };
        let mut opened = opener.open_batch(place, &[sealed], crypto);
        let opened = opened.get(0).ok()?;
        let clear_key = match names {
            Some(names) => names.show(&[key], crypto).remove(0).ok()?,
            None => key.map(|key| key.to_vec().into()),
        };
        let mut line = format!("{} {}", shown(clear_key.as_ref().map(|key| &key[..])), shown(opened.value));
        for header in opened.headers(&headers) {
            write!(line, " {}{}", header.name, shown(header.value)).unwrap();
        }
        Some(line + "\n")
    }

    fn opens(&self, corpus: &Corpus, piece: &Piece, crypto: &mut Dispatcher) {
        let folder = || Keys::new(Folder::open(&corpus.at(&self.keys)).unwrap());
        let identity = || opener(corpus, &self.identities[0]);
        let names = self.names.as_ref().map(|names| {
            let key = folder().find(names.parse().unwrap(), &identity(), crypto).unwrap().unwrap();
            RecordNames::new(&key, &self.topic, crypto).unwrap()
        });
        let mut opener = RecordOpener::new(Unlocked { keys: folder(), opener: identity() });
        let text = fs::read_to_string(corpus.at(&piece.file)).unwrap();
        let records: Vec<Sealed> = text.lines().map(Sealed::parse).collect();
        let mut open = |record: &Sealed| self.open(&mut opener, names.as_ref(), record, crypto);
        let clear: String = records.iter().map(|record| open(record).expect(&piece.file)).collect();
        assert_eq!(
            (clear.len(), corpus.digest(clear.as_bytes())),
            (self.bytes, self.clear.clone()),
            "{clear}"
        );
        for (number, record) in records.iter().enumerate() {
            let altered = record.altered();
            assert!(altered.len() >= 60);
            for (what, altered) in altered {
                assert_eq!(open(&altered), None, "{}: record {number}, {what}", piece.file);
            }
        }
    }
}

#[test]
fn every_kept_topic_and_its_keys_open_and_nothing_altered() {
    let mut crypto = crypto();
    for corpus in versions() {
        for (piece, what) in corpus.pieces() {
            match what {
                What::Entry(entry) => entry.opens(&corpus, piece, &mut crypto),
                What::Topic(topic) => topic.opens(&corpus, piece, &mut crypto),
                _ => {}
            }
        }
    }
}
