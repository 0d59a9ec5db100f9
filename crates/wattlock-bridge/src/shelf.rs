//! Keys in a compacted topic: the record's key is the key's name, its value the entry, a tombstone a shredded one.
//!
//! An entry was acknowledged by all replicas in sync when [`Shelf::put`] returns. Readers hold the whole topic, which is
//! bounded, and read on when they miss a key.

use std::collections::HashMap;
use std::io;
use std::path::Path;
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

/// What all entries may take.
const ALL_MAX: usize = 256 << 20;

/// A topic of entries.
pub struct KeyTopic {
    topic: String,
    reader: BaseConsumer<Reading>,
    writer: BaseProducer<Writing>,
    partitions: usize,
    entries: HashMap<StreamId, Vec<u8>>,
    bytes: usize,
    fresh: bool,
}

fn failed(what: &'static str, error: impl ToString) -> Error {
    let source = io::Error::other(error.to_string());
    Error::Files(wattlock_files::Error::Io { what: what.into(), source })
}

impl KeyTopic {
    fn open(config: &Config, topic: &str) -> Result<KeyTopic> {
        let admin = Admin::new(config)?;
        let facts = match admin.facts(topic)? {
            Some(facts) => facts,
            None => {
                admin.make_key_topic(topic)?;
                let until = Instant::now() + ASK;
                loop {
                    match admin.facts(topic)? {
                        Some(facts) => break facts,
                        None if Instant::now() > until => anyhow::bail!("topic {topic} does not appear"),
                        None => std::thread::sleep(Duration::from_millis(100)),
                    }
                }
            }
        };
        if !facts.compacted || facts.deletes {
            anyhow::bail!("topic {topic}: its keys would be deleted; it needs cleanup.policy=compact alone");
        }
        let reader: BaseConsumer<Reading> = cluster::settings(config)
            .set("group.id", format!("{}-keys", config.group))
            .set("enable.auto.commit", "false")
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
        let (topic, partitions) = (topic.to_owned(), facts.partitions);
        let mut keys =
            KeyTopic { topic, reader, writer, partitions, entries: HashMap::new(), bytes: 0, fresh: false };
        keys.read_on().context("reading the topic of keys")?;
        Ok(keys)
    }

    /// Reads to the end as it is now. Events that say "end of partition" are not asked for: one that was queued before
    /// an entry came would end this in front of it.
    fn read_on(&mut self) -> Result<(), Error> {
        const WHAT: &str = "reading the topic of keys";
        let until = Instant::now() + 2 * ASK;
        let mut ends: HashMap<i32, i64> = HashMap::new();
        for partition in 0..self.partitions as i32 {
            let marks = self.reader.fetch_watermarks(&self.topic, partition, ASK);
            let (low, high) = marks.map_err(|error| failed(WHAT, error))?;
            let position = self.reader.position().map_err(|error| failed(WHAT, error))?;
            let found = position.find_partition(&self.topic, partition);
            // Nothing was read yet: there may be nothing, too.
            let at = found.and_then(|found| found.offset().to_raw()).filter(|at| *at >= 0).unwrap_or(0);
            if at.max(low) < high {
                ends.insert(partition, high);
            }
        }
        while !ends.is_empty() {
            if Instant::now() > until {
                return Err(failed(WHAT, "it takes too long"));
            }
            let (partition, next, change) = match self.reader.poll(Duration::from_millis(100)) {
                None => continue,
                // librdkafka gets over what it reports, or time runs out.
                Some(Err(KafkaError::MessageConsumptionFatal(code))) => return Err(failed(WHAT, code)),
                Some(Err(_)) => continue,
                Some(Ok(message)) => {
                    let id = message.key().and_then(|key| std::str::from_utf8(key).ok()?.parse().ok());
                    let entry = message.payload().filter(|entry| entry.len() <= ENTRY_MAX);
                    let change = id.map(|id: StreamId| (id, entry.map(<[u8]>::to_vec)));
                    (message.partition(), message.offset() + 1, change)
                }
            };
            if let Some((id, entry)) = change {
                self.keep(id, entry)?;
            }
            if ends.get(&partition).is_some_and(|end| next >= *end) {
                ends.remove(&partition);
            }
        }
        Ok(())
    }

    fn keep(&mut self, id: StreamId, entry: Option<Vec<u8>>) -> Result<(), Error> {
        self.bytes += entry.as_ref().map_or(0, Vec::len);
        let former = match entry {
            Some(entry) => self.entries.insert(id, entry),
            None => self.entries.remove(&id),
        };
        self.bytes -= former.map_or(0, |former| former.len());
        if self.bytes > ALL_MAX {
            return Err(failed("reading the topic of keys", "it has more than 256 MiB"));
        }
        Ok(())
    }

    fn write(&mut self, id: StreamId, entry: Option<&[u8]>) -> Result<(), Error> {
        const WHAT: &str = "writing to the topic of keys";
        let name = id.to_string();
        // Always the same partition, so that the last one written stands.
        let partition = (id.0[0] as usize % self.partitions) as i32;
        let mut record = BaseRecord::to(&self.topic).key(name.as_str()).partition(partition);
        if let Some(entry) = entry {
            record = record.payload(entry);
        }
        self.writer.send(record).map_err(|(error, _)| failed(WHAT, error))?;
        let done = cluster::drain(&self.writer, 2 * ASK);
        // What was given up is told by events that are still to be served.
        self.writer.poll(Duration::ZERO);
        use rdkafka::producer::Producer;
        match self.writer.context().take() {
            Some(error) => Err(failed(WHAT, error)),
            None if !done => Err(failed(WHAT, "no answer")),
            None => self.keep(id, entry.map(<[u8]>::to_vec)),
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
        Ok(self.entries.get(&id).cloned())
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
    pub fn open(config: &Config, keys: &Keys) -> Result<Place> {
        match (&keys.topic, &keys.folder) {
            (Some(topic), _) => Ok(Place::Topic(Box::new(KeyTopic::open(config, topic)?))),
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
