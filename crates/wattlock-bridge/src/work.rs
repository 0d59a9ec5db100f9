//! What is done with the records of a partition between reading and writing: sealed, opened or left alone.
//!
//! It knows no client: records come as slices and go to a [`Sink`].

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use wattlock::{Dispatcher, Runtime};
use wattlock_files::age::NoCallbacks;
use wattlock_files::keys::{Recipients, identities};
use wattlock_files::{Opener, Sealer};
use wattlock_stream::keys::{Keys, Shelf, Unlocked};
use wattlock_stream::names::RecordNames;
use wattlock_stream::record::{PROOF, Place, Record, RecordOpener, RecordSealer, Shape, StreamId};
use wattlock_stream::trust::Signer;
use wattlock_stream::{Error, Header};

use crate::cluster::Facts;
use crate::config::{self, Config, Task, Topic, Unreadable};
use crate::shelf::{self, Stop};

/// When a record was made, or came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// The producer's milliseconds.
    Made(i64),
    /// The broker's.
    Came(i64),
    /// Not known.
    Unknown,
}

/// A record that was read.
pub struct Incoming<'a> {
    /// Its offset.
    pub offset: i64,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value.
    pub value: Option<&'a [u8]>,
    /// Its time.
    pub time: Time,
    /// Its headers; nothing if a name is no text.
    pub headers: Option<Vec<Header<'a>>>,
}

impl<'a> Incoming<'a> {
    /// The headers of a record that goes on with them.
    fn own_headers(&self) -> Result<&[Header<'a>], Error> {
        self.headers.as_deref().ok_or(Error::Unfit("a header's name is no text"))
    }
}

/// A record to write.
pub struct Outgoing<'a> {
    /// Where it was read.
    pub offset: i64,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value.
    pub value: Option<&'a [u8]>,
    /// Its time in milliseconds.
    pub time: i64,
    /// Its headers.
    pub headers: &'a [Header<'a>],
}

/// Records of one partition, in their order.
#[derive(Clone, Copy)]
pub struct Share<'a> {
    /// Their route.
    pub route: usize,
    /// Their partition, there and where they go.
    pub partition: i32,
    /// They themselves.
    pub records: &'a [Incoming<'a>],
}

/// What became of a share with this sink.
type Outcome<S> = Result<Done, Trouble<<S as Sink>::Error>>;

/// Where records go.
pub trait Sink {
    /// Why it does not take one.
    type Error;

    /// Takes a record; a negative partition is any.
    fn put(&mut self, topic: &str, partition: i32, record: &Outgoing<'_>) -> Result<(), Self::Error>;
}

/// Why records were not done.
pub enum Trouble<E> {
    /// The sink did not take one.
    Sink(E),
    /// Keys or engines failed; it is no record's fault.
    Failed(Error),
}

/// What was done with the records of a partition.
#[derive(Debug, Default)]
pub struct Done {
    /// Records that were written.
    pub records: u64,
    /// Bytes of values that were read.
    pub bytes: u64,
    /// Records that did not open, or were not fit to be sealed: offset, word and sentence.
    pub unreadable: Vec<(i64, &'static str, String)>,
    /// The offset in front of which the partition stops; its reason is the last of the unreadable.
    pub stopped: Option<i64>,
    /// The offset of the first record that was left for the next share.
    pub more: Option<i64>,
}

/// The key that seals now.
struct Current {
    sealer: RecordSealer,
    /// Its entry as it was made. Another one, or none, ends the key's use.
    entry: Vec<u8>,
    since: Instant,
    bytes: u64,
}

/// A topic on its way.
struct Route {
    topic: Topic,
    keeps_times: bool,
    names: Option<(StreamId, RecordNames)>,
    current: Option<Current>,
}

/// Everything that seals and opens.
pub struct Work {
    routes: Vec<Route>,
    opener: Option<RecordOpener<Unlocked<shelf::Place>>>,
    readers: Option<Sealer>,
    signer: Option<Signer>,
    new_after: (Duration, u64),
    crypto: Dispatcher,
    /// Records that brokers do not take: the offset, and why. Their partitions stop in front of them.
    refused: HashMap<(usize, i32), (i64, String)>,
    /// Where the next share of a partition ends, to find the record that brokers do not take.
    bounds: HashMap<(usize, i32), i64>,
    /// Keys that were made.
    pub keys_made: u64,
}

fn file(path: &std::path::Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("reading {}", path.display()))
}

fn readers(keys: &config::Keys) -> Result<Option<Sealer>> {
    let mut recipients = Recipients::new();
    for recipient in &keys.recipients {
        recipients.add(recipient)?;
    }
    for path in &keys.recipients_files {
        for line in recipients.add_file(&file(path)?).with_context(|| path.display().to_string())? {
            eprintln!("wattlock-bridge: {}: {line}, left out", path.display());
        }
    }
    let recipients = recipients.finish(NoCallbacks)?;
    if recipients.is_empty() { Ok(None) } else { Ok(Some(Sealer::new(recipients)?)) }
}

impl Work {
    /// For this configuration and what the cluster says of the topics that are written.
    ///
    /// # Errors
    /// Keys that cannot be read.
    pub fn new(config: &Config, targets: &[Facts], runtime: &Runtime, stop: &Stop) -> Result<Work> {
        let mut crypto = runtime.dispatcher();
        let (mut opener, mut sealer, mut signer, mut new_after) =
            (None, None, None, (Duration::MAX, u64::MAX));
        if let Some(keys) = &config.keys {
            let mut all = Vec::new();
            for path in &keys.identities {
                let file = zeroize::Zeroizing::new(file(path)?);
                all.extend(identities(&file, NoCallbacks).with_context(|| path.display().to_string())?);
            }
            let entries = Keys::new(shelf::Place::open(config, keys, stop.clone())?);
            let entries = match config.trusted()? {
                Some(trusted) => entries.trusting(trusted),
                None => entries,
            };
            opener = Some(RecordOpener::new(Unlocked { keys: entries, opener: Opener::new(all) }));
            sealer = readers(keys)?;
            if let Some(path) = &keys.sign {
                let file = zeroize::Zeroizing::new(file(path)?);
                let text = std::str::from_utf8(&file).with_context(|| path.display().to_string())?;
                signer = Some(Signer::parse(text).with_context(|| path.display().to_string())?);
            }
            new_after = (Duration::from_secs(keys.new_after_seconds), keys.new_after_bytes);
        }
        let mut routes = Vec::new();
        for (topic, target) in config.topics.iter().zip(targets) {
            let mut names = None;
            if let (Some(id), Some(opener)) = (topic.names_key()?, &mut opener) {
                let unlocked = opener.keys();
                let key = unlocked.keys.find(id, &unlocked.opener, &mut crypto)?;
                let key = key.ok_or(Error::NoKey(id)).context("record_keys_under")?;
                names = Some((id, RecordNames::new(&key, topic.bound(), &mut crypto)?));
            }
            let (topic, keeps_times) = (topic.clone(), target.keeps_times);
            routes.push(Route { topic, keeps_times, names, current: None });
        }
        let (refused, bounds) = (HashMap::new(), HashMap::new());
        Ok(Work { routes, opener, readers: sealer, signer, new_after, crypto, refused, bounds, keys_made: 0 })
    }

    /// Whether a key that seals now was shredded or rewrapped: its entry is gone, or another. It is used no more, and
    /// nothing that was sealed under it since the last time this was asked may be committed.
    ///
    /// # Errors
    /// Entries that cannot be read; [`Error::NoKey`] for a key of record keys, in whose place there is no other.
    pub fn stale(&mut self) -> Result<bool, Error> {
        let Some(opener) = &mut self.opener else { return Ok(false) };
        // A reader keeps the keys that it has.
        if self.routes.iter().all(|route| route.topic.task != Task::Seal) {
            return Ok(false);
        }
        let mut stale = false;
        let shelf = opener.keys().keys.shelf();
        shelf.refresh()?;
        for route in self.routes.iter_mut().filter(|route| route.topic.task == Task::Seal) {
            if let Some(current) = &route.current
                && shelf.get(current.sealer.id())?.as_ref() != Some(&current.entry)
            {
                route.current = None;
                stale = true;
            }
            if let Some((id, _)) = &route.names
                && shelf.get(*id)?.is_none()
            {
                return Err(Error::NoKey(*id));
            }
        }
        Ok(stale)
    }

    /// Brokers refused these records of a partition, in the order of their offsets. They refuse a batch for one record
    /// and do not say for which: of several, half come again alone. The partition stops in front of a single one.
    pub fn refuse(&mut self, part: (usize, i32), offsets: &[i64], why: String) {
        match offsets {
            [] => {}
            [offset] => _ = self.refused.insert(part, (*offset, why)),
            several => _ = self.bounds.insert(part, several[several.len() / 2]),
        }
    }

    /// Tries a partition's record again that was refused, alone; whether there was one.
    pub fn forgive(&mut self, part: (usize, i32)) -> bool {
        let forgiven = self.refused.remove(&part);
        if let Some((offset, _)) = forgiven {
            self.bounds.insert(part, offset + 1);
        }
        forgiven.is_some()
    }

    /// The route of a topic that is read.
    pub fn route(&self, topic: &str) -> Option<usize> {
        self.routes.iter().position(|route| route.topic.from == topic)
    }

    /// Does a share.
    ///
    /// # Errors
    /// [`Trouble`]: then nothing of it counts.
    pub fn run<S: Sink>(&mut self, mut share: Share<'_>, sink: &mut S) -> Outcome<S> {
        let (mut refused, part) = (None, (share.route, share.partition));
        let mut more = None;
        if let Some(bound) = self.bounds.remove(&part)
            && let Some(at) =
                share.records.iter().position(|record| record.offset >= bound).filter(|at| *at > 0)
        {
            more = Some(share.records[at].offset);
            share.records = &share.records[..at];
        }
        if let Some((offset, why)) = self.refused.get(&part)
            && let Some(at) = share.records.iter().position(|record| record.offset == *offset)
        {
            refused = Some((*offset, why.clone()));
            share.records = &share.records[..at];
        }
        let mut done = match self.routes[share.route].topic.task {
            _ if share.records.is_empty() => Done::default(),
            Task::Copy => self.copy(share, sink)?,
            Task::Seal => self.seal(share, sink)?,
            Task::Open => self.open(share, sink)?,
        };
        if let Some((offset, why)) = refused.filter(|_| done.stopped.is_none()) {
            done.unreadable.push((offset, "refused", why));
            done.stopped = Some(offset);
        }
        done.more = more;
        Ok(done)
    }

    fn copy<S: Sink>(&mut self, share: Share<'_>, sink: &mut S) -> Outcome<S> {
        let Share { route, partition, records } = share;
        let topic = &self.routes[route].topic;
        let (mut done, records) = Done::in_front_of_unfit(records, |record| record.own_headers().map(|_| ()));
        for record in records {
            let headers = record.headers.as_deref().unwrap_or_default();
            let (key, value, time) = (record.key, record.value, time(record.time));
            let whole = Outgoing { offset: record.offset, key, value, time, headers };
            sink.put(&topic.to, partition, &whole).map_err(Trouble::Sink)?;
            done.count(record);
        }
        Ok(done)
    }

    fn seal<S: Sink>(&mut self, share: Share<'_>, sink: &mut S) -> Outcome<S> {
        let Share { route, partition, records } = share;
        let fit = |record: &Incoming<'_>| {
            let headers = record.own_headers()?;
            Record { headers, ..Record::default() }.check()
        };
        let (mut done, records) = Done::in_front_of_unfit(records, fit);
        if records.is_empty() {
            return Ok(done);
        }
        let bytes = records.iter().map(|record| record.value.map_or(0, <[u8]>::len) as u64).sum();
        self.renew(route, bytes).map_err(Trouble::Failed)?;
        let Route { topic, keeps_times, names, current, .. } = &self.routes[route];
        let Some(Current { sealer, .. }) = current else { return Err(Trouble::Failed(NO_KEYS)) };
        let keys: Vec<Option<&[u8]>> = records.iter().map(|record| record.key).collect();
        let hidden = names.as_ref().map(|(_, names)| names.hide(&keys, &mut self.crypto)).transpose();
        let hidden = hidden.map_err(Trouble::Failed)?;
        let key = |number: usize| match &hidden {
            Some(hidden) => hidden[number].as_deref(),
            None => keys[number],
        };
        let mut plain = Vec::with_capacity(records.len());
        for (number, record) in records.iter().enumerate() {
            plain.push(Record {
                key: key(number),
                value: record.value,
                timestamp: keeps_times.then(|| time(record.time)),
                headers: record.headers.as_deref().unwrap_or_default(),
            });
        }
        let place = Place { topic: topic.bound(), partition: partition as u32 };
        let sealed = sealer.seal_batch(place, &plain, &mut self.crypto).map_err(Trouble::Failed)?;
        let mut headers = Vec::new();
        for (number, (record, plain)) in records.iter().zip(&plain).enumerate() {
            headers.clear();
            headers.extend(plain.headers.iter().copied().filter(|header| sealer.shape.is_clear(header.name)));
            let bytes = sealed.get(number);
            if record.value.is_none() {
                headers.push(Header { name: PROOF, value: Some(bytes) });
            }
            let time = plain.timestamp.unwrap_or_else(|| time(record.time));
            let value = record.value.map(|_| bytes);
            let whole = Outgoing { offset: record.offset, key: plain.key, value, time, headers: &headers };
            sink.put(&topic.to, partition, &whole).map_err(Trouble::Sink)?;
            done.count(record);
        }
        Ok(done)
    }

    /// Sees to a key for `bytes` more.
    fn renew(&mut self, route: usize, bytes: u64) -> Result<(), Error> {
        let route = &mut self.routes[route];
        let (after, limit) = self.new_after;
        if let Some(current) = &mut route.current
            && current.since.elapsed() < after
            && current.bytes < limit
        {
            current.bytes += bytes;
            return Ok(());
        }
        let (Some(readers), Some(opener)) = (&self.readers, &mut self.opener) else { return Err(NO_KEYS) };
        let keys = &mut opener.keys().keys;
        let mut sealer =
            keys.new_key(route.topic.bound(), readers, self.signer.as_ref(), &mut self.crypto)?;
        let clear_headers = route.topic.clear_headers.clone();
        sealer.shape = Shape { clear_headers, compress: route.topic.compress };
        let entry = keys.shelf().get(sealer.id())?.ok_or(Error::NoKey(sealer.id()))?;
        route.current = Some(Current { sealer, entry, since: Instant::now(), bytes });
        self.keys_made += 1;
        Ok(())
    }

    fn open<S: Sink>(&mut self, share: Share<'_>, sink: &mut S) -> Outcome<S> {
        let Share { route, partition, records } = share;
        let Route { topic, names, .. } = &self.routes[route];
        let Some(opener) = &mut self.opener else { return Err(Trouble::Failed(NO_KEYS)) };
        opener.value_max = topic.value_max;
        opener.keys().keys.shelf().look_again();
        let sealed: Vec<Record<'_>> = records
            .iter()
            .map(|record| Record {
                key: record.key,
                value: record.value,
                timestamp: if let Time::Made(time) = record.time { Some(time) } else { None },
                headers: record.headers.as_deref().unwrap_or_default(),
            })
            .collect();
        let place = Place { topic: topic.bound(), partition: partition as u32 };
        let mut opened = opener.open_batch(place, &sealed, &mut self.crypto);
        let keys: Vec<Option<&[u8]>> = records.iter().map(|record| record.key).collect();
        let shown = names.as_ref().map(|(_, names)| names.show(&keys, &mut self.crypto));
        let mut done = Done::default();
        for (number, record) in records.iter().enumerate() {
            let key = match &shown {
                Some(shown) => shown[number].as_ref().map(|key| key.as_ref().map(|key| &key[..])),
                None => Ok(record.key),
            };
            let opened = match (opened.get(number), key, &record.headers) {
                (Err(error), ..) | (_, Err(error), _) => Err(error),
                (.., None) => Err(&BAD_HEADER),
                (Ok(opened), Ok(key), Some(headers)) => Ok((opened, key, opened.headers(headers))),
            };
            match opened {
                Ok((opened, key, headers)) => {
                    let (value, time) = (opened.value, time(record.time));
                    let whole = Outgoing { offset: record.offset, key, value, time, headers: &headers };
                    sink.put(&topic.to, partition, &whole).map_err(Trouble::Sink)?;
                    done.count(record);
                }
                Err(error) => {
                    let reason = error.reason();
                    if reason == "failed" {
                        return Err(Trouble::Failed(as_is(error)));
                    }
                    done.unreadable.push((record.offset, reason, error.to_string()));
                    if topic.unreadable == Unreadable::Stop {
                        done.stopped = Some(record.offset);
                        break;
                    }
                    if let Some(dead) = &topic.dead_letter {
                        let source = format!("{}/{partition}@{}", topic.from, record.offset);
                        put_dead(dead, record, reason, &source, sink).map_err(Trouble::Sink)?;
                    }
                }
            }
        }
        Ok(done)
    }
}

impl Done {
    /// The records in front of the first one that is not fit, at which the partition stops.
    fn in_front_of_unfit<'r, 'a>(
        records: &'r [Incoming<'a>],
        fit: impl Fn(&Incoming<'a>) -> Result<(), Error>,
    ) -> (Done, &'r [Incoming<'a>]) {
        let mut done = Done::default();
        for (number, record) in records.iter().enumerate() {
            if let Err(error) = fit(record) {
                done.unreadable.push((record.offset, error.reason(), error.to_string()));
                done.stopped = Some(record.offset);
                return (done, &records[..number]);
            }
        }
        (done, records)
    }

    fn count(&mut self, record: &Incoming<'_>) {
        self.records += 1;
        self.bytes += record.value.map_or(0, <[u8]>::len) as u64;
    }
}

const BAD_HEADER: Error = Error::RecordContent("a header's name is no text");
const NO_KEYS: Error = Error::NotARecord("there are no keys");

/// An error that was lent. What it says is kept; what it was does not matter further on.
fn as_is(error: &Error) -> Error {
    let source = std::io::Error::other(error.to_string());
    Error::Files(wattlock_files::Error::Door(wattlock_door::Error::Io {
        what: "opening records".into(),
        source,
    }))
}

/// As it is, and why.
fn put_dead<S: Sink>(
    topic: &str,
    record: &Incoming<'_>,
    reason: &str,
    source: &str,
    sink: &mut S,
) -> Result<(), S::Error> {
    let mut headers = record.headers.clone().unwrap_or_default();
    headers.push(Header { name: "wattlock-error", value: Some(reason.as_bytes()) });
    headers.push(Header { name: "wattlock-source", value: Some(source.as_bytes()) });
    let (key, value, time) = (record.key, record.value, time(record.time));
    sink.put(topic, -1, &Outgoing { offset: record.offset, key, value, time, headers: &headers })
}

/// A record's time as it is written. librdkafka takes 0 for now, so the first millisecond of 1970 becomes the second.
fn time(time: Time) -> i64 {
    match time {
        Time::Made(time) | Time::Came(time) if time > 0 => time,
        Time::Made(0) | Time::Came(0) => 1,
        _ => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
        }
    }
}

/// What was counted of a topic.
#[derive(Debug, Default, Clone)]
pub struct Count {
    /// Records that were written.
    pub records: u64,
    /// Bytes of values that were read.
    pub bytes: u64,
    /// Records that did not open, by reason.
    pub unreadable: BTreeMap<&'static str, u64>,
}

impl Count {
    /// Adds what was committed.
    pub fn add(&mut self, done: &Done) {
        self.records += done.records;
        self.bytes += done.bytes;
        for (_, reason, _) in &done.unreadable {
            *self.unreadable.entry(reason).or_default() += 1;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::convert::Infallible;

    use wattlock_files::age;
    use wattlock_stream::record::HEADERS_MAX;

    use super::*;

    /// Values that were put.
    impl Sink for Vec<Option<Vec<u8>>> {
        type Error = Infallible;

        fn put(&mut self, _: &str, _: i32, record: &Outgoing<'_>) -> Result<(), Infallible> {
            self.push(record.value.map(<[u8]>::to_vec));
            Ok(())
        }
    }

    /// A bridge of one route that does this, with a folder of keys.
    fn work(task: &str, folder: &std::path::Path) -> Work {
        let recipient = age::x25519::Identity::generate().to_public();
        let text = format!(
            "group = \"g\"\nkafka = {{ \"bootstrap.servers\" = \"127.0.0.1:9\" }}\n\
             keys = {{ folder = {folder:?}, recipients = [\"{recipient}\"] }}\n\
             topic = [{{ from = \"a\", to = \"b\", do = \"{task}\" }}]"
        );
        let target = Facts {
            partitions: 1,
            keeps_times: true,
            compacted: false,
            deletes: false,
            message_max: 1 << 20,
            times_max: [i64::MAX; 2],
        };
        let runtime = Runtime::builder().telemetry(false).build().unwrap();
        Work::new(&Config::parse(&text).unwrap(), &[target], &runtime, &Stop::default()).unwrap()
    }

    fn incoming<'a>(offset: i64, headers: Option<Vec<Header<'a>>>) -> Incoming<'a> {
        Incoming { offset, key: None, value: Some(b"value"), time: Time::Made(1), headers }
    }

    fn share<'a>(records: &'a [Incoming<'a>]) -> Share<'a> {
        Share { route: 0, partition: 0, records }
    }

    #[test]
    fn a_partition_stops_in_front_of_an_unfit_record() {
        let folder = tempfile::tempdir().unwrap();
        let many = vec![Header { name: "h", value: None }; HEADERS_MAX + 1];
        for (task, bad) in [("seal", Some(many)), ("seal", None), ("copy", None)] {
            let (mut work, mut sink) = (work(task, folder.path()), Vec::new());
            let records = [incoming(7, Some(Vec::new())), incoming(8, bad), incoming(9, Some(Vec::new()))];
            for (from, written) in [(0, 1), (1, 1)] {
                let done = work.run(share(&records[from..]), &mut sink).ok().unwrap();
                assert_eq!((done.stopped, done.records, sink.len()), (Some(8), 1 - from as u64, written));
                assert_eq!((done.unreadable[0].0, done.unreadable[0].1), (8, "unfit"), "{task}");
            }
            let done = work.run(share(&records[2..]), &mut sink).ok().unwrap();
            assert_eq!((done.stopped, sink.len()), (None, 2));
        }
    }

    /// Brokers that take a whole share or nothing of it: the record that they refuse is found, and no other is left out.
    #[test]
    fn a_record_that_brokers_refuse_is_found_and_its_partition_stops_in_front_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let records: Vec<_> = (0..100).map(|offset| incoming(3 * offset, Some(Vec::new()))).collect();
        for bad in [0, 3, 51, 150, 294, 297] {
            let mut work = work("copy", folder.path());
            let (mut from, mut aborted) = (0, 0);
            let stopped = loop {
                let mut sink = Vec::new();
                let done = work.run(share(&records[from..]), &mut sink).ok().unwrap();
                let sent: Vec<i64> =
                    records[from..][..sink.len()].iter().map(|record| record.offset).collect();
                if sent.contains(&bad) {
                    aborted += 1;
                    work.refuse((0, 0), &sent, "late".into());
                    continue;
                }
                from += sent.len();
                if done.stopped.is_some() {
                    assert_eq!(done.unreadable, [(bad, "refused", "late".into())]);
                    break done.stopped;
                }
                assert_eq!(
                    done.more,
                    records.get(from).map(|record| record.offset),
                    "nothing is passed over"
                );
            };
            assert_eq!((stopped, from as i64 * 3), (Some(bad), bad));
            assert!(aborted <= 14, "twice the logarithm: {aborted}");
            // Tried again, it comes alone, and then the others.
            assert!(work.forgive((0, 0)) && !work.forgive((0, 0)));
            let mut sink = Vec::new();
            let done = work.run(share(&records[from..]), &mut sink).ok().unwrap();
            assert_eq!((done.stopped, sink.len()), (None, 1));
            assert_eq!(done.more, records.get(from + 1).map(|record| record.offset));
        }
    }

    /// The key's entry, of which there is one.
    fn entry(folder: &std::path::Path) -> std::path::PathBuf {
        let mut all: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    #[test]
    fn a_key_that_was_shredded_or_rewrapped_seals_no_more() {
        for changed in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let (mut work, mut sink) = (work("seal", folder.path()), Vec::new());
            let records = [incoming(7, Some(Vec::new()))];
            assert!(!work.stale().unwrap(), "nothing was sealed");
            for _ in 0..2 {
                work.run(share(&records), &mut sink).ok().unwrap();
                assert!(!work.stale().unwrap());
            }
            assert_eq!(work.keys_made, 1);
            let entry = entry(folder.path());
            if changed {
                std::fs::write(&entry, "another").unwrap()
            } else {
                std::fs::remove_file(&entry).unwrap()
            }
            assert!(work.stale().unwrap());
            assert!(!work.stale().unwrap(), "it is used no more");
            work.run(share(&records), &mut sink).ok().unwrap();
            assert_eq!(work.keys_made, 2);
            let name = |value: &Option<Vec<u8>>| value.as_ref().unwrap()[1..17].to_vec();
            assert_eq!(name(&sink[0]), name(&sink[1]));
            assert_ne!(name(&sink[1]), name(&sink[2]));
        }
    }
}
