//! Keys in a compacted topic: the record's key is the key's name, its value the entry, a tombstone a shredded one.
//!
//! An entry was acknowledged by all replicas in sync when [`Shelf::put`] returns. Readers hold the whole topic, which is
//! bounded, and read on when they miss a key; a sealer reads on before each commit. A topic that is gone is not made
//! again while the bridge runs: its deletion is a deletion of keys.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord};
use rdkafka::{Offset, TopicPartitionList};
use wattlock_stream::Error;
use wattlock_stream::keys::{ENTRY_MAX, Folder, Shelf};
use wattlock_stream::record::StreamId;

use crate::cluster::{self, ASK, Admin, Reading, Writing};
use crate::config::{Config, Keys};
use crate::verdict::{self, Verdict};

/// How long one question may take before it is seen whether the bridge is to end.
const SLICE: Duration = Duration::from_secs(1);

/// What all entries may take.
const ALL_MAX: usize = 256 << 20;

/// A topic of entries.
pub struct KeyTopic {
    config: Config,
    topic: String,
    reader: BaseConsumer<Reading>,
    writer: BaseProducer<Writing>,
    /// What was read of each partition.
    next: Vec<i64>,
    entries: HashMap<StreamId, Placed>,
    bytes: usize,
    fresh: bool,
    /// Whether the topic was gone: another one of its name has other entries.
    gone: bool,
    stop: Stop,
}

/// An entry, and where it stands. One that this client wrote has no place until it is read.
struct Placed {
    entry: Vec<u8>,
    at: Option<(i32, i64)>,
}

/// Told to end.
pub type Stop = Arc<AtomicBool>;

const READING: &str = "reading the topic of keys";

fn failed(what: &'static str, error: impl ToString) -> Error {
    let source = io::Error::other(error.to_string());
    Error::Files(wattlock_files::Error::Door(wattlock_door::Error::Io { what: what.into(), source }))
}

impl KeyTopic {
    /// Opens the topic, and makes it if it is not there.
    fn open(config: &Config, topic: &str, stop: Stop) -> Result<KeyTopic> {
        let admin = Admin::new(config)?;
        if admin.facts(topic)?.is_none() {
            admin.make_key_topic(topic)?;
            let until = Instant::now() + ASK;
            while admin.facts(topic)?.is_none() {
                if Instant::now() > until {
                    anyhow::bail!("topic {topic} does not appear");
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        let mut keys = KeyTopic::there(config, topic, stop)?;
        keys.read_on().context("reading the topic of keys")?;
        Ok(keys)
    }

    /// The topic as it is now, nothing of which was read.
    fn there(config: &Config, topic: &str, stop: Stop) -> Result<KeyTopic> {
        let facts =
            Admin::new(config)?.facts(topic)?.with_context(|| format!("topic {topic}: there is none"))?;
        if !facts.compacted || facts.deletes {
            anyhow::bail!("topic {topic}: its keys would be deleted; it needs cleanup.policy=compact alone");
        }
        let reader: BaseConsumer<Reading> = cluster::settings(config)
            .set("group.id", format!("{}-keys", config.group))
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .set("fetch.wait.max.ms", "100")
            .set("isolation.level", "read_uncommitted")
            .set("auto.offset.reset", "earliest")
            .create_with_context(Reading::default())
            .context("[kafka]")?;
        let mut all = TopicPartitionList::new();
        for partition in 0..facts.partitions {
            all.add_partition_offset(topic, partition as i32, Offset::Beginning)?;
        }
        reader.assign(&all)?;
        let writer = cluster::settings(config)
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("message.timeout.ms", "30000")
            .create_with_context(Writing::default())
            .context("[kafka]")?;
        let (config, topic, next) = (config.clone(), topic.to_owned(), vec![0; facts.partitions]);
        let (entries, bytes, fresh, gone) = (HashMap::new(), 0, false, false);
        Ok(KeyTopic { config, topic, reader, writer, next, entries, bytes, fresh, gone, stop })
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// The first and the last offset of a partition.
    fn marks(&mut self, partition: i32) -> Result<(i64, i64), Error> {
        let until = Instant::now() + ASK;
        loop {
            let error = match self.reader.fetch_watermarks(&self.topic, partition, SLICE) {
                Ok(marks) => return Ok(marks),
                Err(error) => error,
            };
            if let Ok(found) = self.reader.fetch_metadata(Some(&self.topic), SLICE)
                && found.topics().iter().all(|topic| topic.partitions().is_empty())
            {
                self.gone = true;
                return Err(self.none());
            }
            if self.stopping() || Instant::now() > until {
                return Err(failed(READING, error));
            }
        }
    }

    fn none(&self) -> Error {
        failed(READING, format!("there is no topic {} any more: records wait for it", self.topic))
    }

    /// Reads to the end as it is now. Positions are set before: an event that says "end of partition" then cannot be
    /// one that was queued before an entry came.
    fn read_on(&mut self) -> Result<(), Error> {
        if self.gone {
            let again = KeyTopic::there(&self.config, &self.topic, self.stop.clone());
            *self = again.map_err(|_| self.none())?;
        }
        let (until, mut ends, mut places) =
            (Instant::now() + 2 * ASK, HashMap::new(), TopicPartitionList::new());
        for partition in 0..self.next.len() as i32 {
            let (low, high) = self.marks(partition)?;
            let next = self.next[partition as usize];
            if high < next {
                // Another topic of that name.
                self.gone = true;
                return self.read_on();
            }
            // What retention or an administrator deleted opens nothing any more.
            let gone = |of: &Placed| of.at.is_some_and(|(of, at)| of == partition && at < low);
            let bytes = &mut self.bytes;
            self.entries.retain(|_, placed| {
                let gone = gone(placed);
                *bytes -= if gone { placed.entry.len() } else { 0 };
                !gone
            });
            if next.max(low) < high {
                ends.insert(partition, high);
                let place = Offset::Offset(next.max(low));
                let placed = places.add_partition_offset(&self.topic, partition, place);
                placed.map_err(|error| failed(READING, error))?;
            }
        }
        if ends.is_empty() {
            return Ok(());
        }
        self.seek(places, until)?;
        while !ends.is_empty() {
            if self.stopping() || Instant::now() > until {
                return Err(failed(READING, "it takes too long"));
            }
            let (partition, next, change) = match self.reader.poll(Duration::from_millis(100)) {
                None => continue,
                Some(Err(KafkaError::PartitionEOF(partition))) => (partition, i64::MAX, None),
                // librdkafka gets over what it reports, or time runs out.
                Some(Err(KafkaError::MessageConsumptionFatal(code))) => return Err(failed(READING, code)),
                Some(Err(_)) => continue,
                Some(Ok(message)) => {
                    let id = message.key().and_then(|key| std::str::from_utf8(key).ok()?.parse().ok());
                    let entry = message.payload().filter(|entry| entry.len() <= ENTRY_MAX);
                    let at = Some((message.partition(), message.offset()));
                    let entry = entry.map(|entry| Placed { entry: entry.to_vec(), at });
                    let change = id.map(|id: StreamId| (id, entry));
                    (message.partition(), message.offset() + 1, change)
                }
            };
            if let Some((id, entry)) = change {
                self.keep(id, entry)?;
            }
            // Offsets at the end may have no record, but a transaction's marker.
            if let Some(end) = ends.get(&partition).copied().filter(|end| next >= *end) {
                ends.remove(&partition);
                self.next[partition as usize] = if next == i64::MAX { end } else { next };
            } else if next < i64::MAX {
                self.next[partition as usize] = next.max(self.next[partition as usize]);
            }
        }
        Ok(())
    }

    /// Sets positions. A partition that was assigned just now cannot be set for a moment.
    fn seek(&self, places: TopicPartitionList, until: Instant) -> Result<(), Error> {
        loop {
            let sought = self.reader.seek_partitions(places.clone(), SLICE);
            let sought = sought.and_then(|sought| sought.elements().iter().try_for_each(|one| one.error()));
            match sought {
                Ok(()) => return Ok(()),
                Err(error) if self.stopping() || Instant::now() > until => {
                    return Err(failed(READING, error));
                }
                Err(_) => drop(self.reader.poll(Duration::from_millis(20))),
            }
        }
    }

    fn keep(&mut self, id: StreamId, entry: Option<Placed>) -> Result<(), Error> {
        self.bytes += entry.as_ref().map_or(0, |placed| placed.entry.len());
        let former = match entry {
            Some(entry) => self.entries.insert(id, entry),
            None => self.entries.remove(&id),
        };
        self.bytes -= former.map_or(0, |former| former.entry.len());
        if self.bytes > ALL_MAX {
            return Err(failed(READING, "it has more than 256 MiB"));
        }
        Ok(())
    }

    fn write(&mut self, id: StreamId, entry: Option<&[u8]>) -> Result<(), Error> {
        const WHAT: &str = "writing to the topic of keys";
        let name = id.to_string();
        // Always the same partition, so that the last one written stands.
        let partition = (id.0[0] as usize % self.next.len()) as i32;
        let mut record = BaseRecord::with_opaque_to(&self.topic, 0).key(name.as_str()).partition(partition);
        if let Some(entry) = entry {
            record = record.payload(entry);
        }
        self.writer.send(record).map_err(|(error, _)| failed(WHAT, error))?;
        let done = cluster::drain(&self.writer, 2 * ASK);
        // What was given up is told by events that are still to be served.
        self.writer.poll(Duration::ZERO);
        use rdkafka::producer::Producer;
        match self.writer.context().take().first {
            Some((error, _)) => Err(failed(WHAT, self.refused(&error))),
            None if !done => Err(failed(WHAT, "no answer")),
            None => self.keep(id, entry.map(|entry| Placed { entry: entry.to_vec(), at: None })),
        }
    }
}

impl KeyTopic {
    /// An error with what helps against it.
    fn refused(&self, error: &KafkaError) -> String {
        match error.rdkafka_error_code().map(verdict::judge) {
            Some(Verdict::Record(advice) | Verdict::Size(advice) | Verdict::Stop(advice)) => {
                format!("{}: {error}: {advice}", self.topic)
            }
            _ => error.to_string(),
        }
    }
}

impl Shelf for KeyTopic {
    fn names(&mut self) -> Result<Vec<StreamId>, Error> {
        self.read_on()?;
        Ok(self.entries.keys().copied().collect())
    }

    fn get(&mut self, id: StreamId) -> Result<Option<Vec<u8>>, Error> {
        if !self.entries.contains_key(&id) && !self.fresh {
            self.read_on()?;
            self.fresh = true;
        }
        Ok(self.entries.get(&id).map(|placed| placed.entry.clone()))
    }

    fn put(&mut self, id: StreamId, bytes: &[u8]) -> Result<(), Error> {
        self.write(id, Some(bytes))
    }

    fn remove(&mut self, id: StreamId) -> Result<bool, Error> {
        self.read_on()?;
        let there = self.entries.contains_key(&id);
        if there {
            self.write(id, None)?;
        }
        Ok(there)
    }
}

/// Where the configuration says that keys are.
pub enum Place {
    /// In a topic.
    Topic(Box<KeyTopic>),
    /// In a folder.
    Folder(Folder),
}

impl Place {
    /// Opens it, and makes it if it is not there.
    ///
    /// # Errors
    /// A cluster or folder that refuses.
    pub fn open(config: &Config, keys: &Keys, stop: Stop) -> Result<Place> {
        match (&keys.topic, &keys.folder) {
            (Some(topic), _) => Ok(Place::Topic(Box::new(KeyTopic::open(config, topic, stop)?))),
            (_, folder) => {
                let folder = folder.as_deref().unwrap_or(Path::new("."));
                Ok(Place::Folder(Folder::create(folder)?))
            }
        }
    }

    /// What is missed from here on is looked for once more. An entry was durable before a record that needs it, so
    /// once for all records at hand is enough.
    pub fn look_again(&mut self) {
        if let Place::Topic(topic) = self {
            topic.fresh = false;
        }
    }

    /// Learns what was changed and removed until now.
    ///
    /// # Errors
    /// A topic that is gone, or cannot be read.
    pub fn refresh(&mut self) -> Result<(), Error> {
        match self {
            Place::Topic(topic) => topic.read_on(),
            Place::Folder(_) => Ok(()),
        }
    }

    fn shelf(&mut self) -> &mut dyn Shelf {
        match self {
            Place::Topic(topic) => &mut **topic,
            Place::Folder(folder) => folder,
        }
    }
}

impl Shelf for Place {
    fn names(&mut self) -> Result<Vec<StreamId>, Error> {
        self.shelf().names()
    }

    fn get(&mut self, id: StreamId) -> Result<Option<Vec<u8>>, Error> {
        self.shelf().get(id)
    }

    fn put(&mut self, id: StreamId, bytes: &[u8]) -> Result<(), Error> {
        self.shelf().put(id, bytes)
    }

    fn remove(&mut self, id: StreamId) -> Result<bool, Error> {
        self.shelf().remove(id)
    }
}
