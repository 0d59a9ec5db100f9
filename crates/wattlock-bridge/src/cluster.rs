//! Clients of the cluster, and what it says of topics.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use wattlock_core::sync::lock;

use anyhow::{Context, Result, bail};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{
    BaseConsumer, CommitMode, Consumer, ConsumerContext, ConsumerGroupMetadata, RebalanceProtocol,
};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, NoCustomPartitioner, ProducerContext};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};

use crate::config::{Config, OnGap, Reset};
use crate::say;
use crate::verdict::{self, Verdict};

/// How long a question about the cluster may take.
pub const ASK: Duration = Duration::from_secs(20);

/// Settings for any client.
pub fn settings(config: &Config) -> ClientConfig {
    let mut settings = ClientConfig::new();
    for (name, value) in &config.kafka {
        settings.set(name, value);
    }
    settings.set_log_level(RDKafkaLogLevel::Error);
    settings
}

/// What librdkafka says, at most once in five seconds: while brokers are away it says the same again and again.
#[derive(Default)]
struct Voice {
    last: Mutex<Option<Instant>>,
}

impl Voice {
    /// Errors only: each of the two clients warns of settings that are for the other.
    fn log(&self, level: RDKafkaLogLevel, message: &str) {
        if level as i32 <= RDKafkaLogLevel::Error as i32 {
            self.say(message);
        }
    }

    fn say(&self, what: &str) {
        let mut last = lock(&self.last);
        if last.is_none_or(|last| last.elapsed() >= Duration::from_secs(5)) {
            *last = Some(Instant::now());
            say::again(what);
        }
    }
}

/// Why no broker talks to the bridge. Waiting does not help.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Certificates or versions do not fit.
    #[error("no TLS with the brokers: {0}")]
    Tls(String),
    /// SASL failed.
    #[error("the brokers refuse the credentials: {0}")]
    Login(String),
}

impl wattlock_door::Exit for Refused {
    fn code(&self) -> u8 {
        match self {
            Refused::Tls(_) => wattlock_stream::BROKER_TLS,
            Refused::Login(_) => wattlock_stream::BROKER_LOGIN,
        }
    }
}

/// What a client hears of its first connections.
#[derive(Default)]
struct Ear(Mutex<Option<(RDKafkaErrorCode, String)>>);

impl Ear {
    fn heard(&self) -> MutexGuard<'_, Option<(RDKafkaErrorCode, String)>> {
        lock(&self.0)
    }

    /// Keeps the first reason, but a refusal rather than another.
    fn hear(&self, code: RDKafkaErrorCode, reason: &str) {
        let mut heard = self.heard();
        let refused = |(code, reason): &(_, String)| refusal(*code, reason).is_some();
        if heard.is_none() || refusal(code, reason).is_some() && !heard.as_ref().is_some_and(refused) {
            *heard = Some((code, reason.to_owned()));
        }
    }
}

impl ClientContext for Ear {
    fn log(&self, _: RDKafkaLogLevel, about: &str, message: &str) {
        if about == "FAIL" {
            self.hear(RDKafkaErrorCode::BrokerTransportFailure, message);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(code) = error.rdkafka_error_code() {
            self.hear(code, reason);
        }
    }
}

impl ProducerContext<NoCustomPartitioner> for Ear {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

/// Whether a broker is there and does not want this client, or this client not the broker. What a broker dislikes of a
/// certificate comes after TLS's handshake, as a failure of transport in OpenSSL's words.
fn refusal(code: RDKafkaErrorCode, reason: &str) -> Option<Refused> {
    match code {
        RDKafkaErrorCode::SSL => Some(Refused::Tls(reason.into())),
        RDKafkaErrorCode::Authentication
        | RDKafkaErrorCode::SaslAuthenticationFailed
        | RDKafkaErrorCode::UnsupportedSASLMechanism
        | RDKafkaErrorCode::IllegalSASLState => Some(Refused::Login(reason.into())),
        _ => reason.contains("SSL routines").then(|| Refused::Tls(reason.into())),
    }
}

/// Waits for a broker that answers, or to be told to end. librdkafka would try again for ever, and say so only in its log.
///
/// # Errors
/// [`Refused`] if none answers and one was heard to refuse; else that nothing answers.
pub fn reach(config: &Config, stop: &AtomicBool) -> Result<()> {
    use rdkafka::producer::Producer;
    let mut settings = settings(config);
    settings.set_log_level(RDKafkaLogLevel::Info);
    let client: BaseProducer<Ear> = settings.create_with_context(Ear::default()).context("[kafka]")?;
    // In pieces, since a refusal comes within the first, and since the bridge may be told to end.
    let (mut failed, until) = (None, Instant::now() + ASK);
    while Instant::now() < until {
        match client.client().fetch_metadata(None, ASK / 10) {
            Ok(_) => return Ok(()),
            Err(_) if stop.load(Ordering::SeqCst) => return Ok(()),
            Err(error) => failed = Some(error),
        }
        client.poll(Duration::from_millis(100));
        if let Some((code, reason)) = &*client.context().heard()
            && let Some(refused) = refusal(*code, reason)
        {
            return Err(refused.into());
        }
    }
    match (client.context().heard().take(), failed) {
        (Some((_, reason)), _) => bail!("no broker answers: {reason}"),
        (None, Some(error)) => Err(error).context("no broker answers"),
        (None, None) => Ok(()),
    }
}

/// Records of a source that were gone before they were read, or an offset beyond the source's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The source.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// The committed offset: everything in front of it was done.
    pub from: i64,
    /// Where reading goes on.
    pub to: i64,
}

impl Gap {
    /// Offsets that were passed over. Not each of them was a record: markers of transactions have some.
    pub fn offsets(&self) -> u64 {
        u64::try_from(self.to - self.from).unwrap_or(0)
    }
}

impl std::fmt::Display for Gap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Gap { topic, partition, from, to } = self;
        if to < from {
            return write!(
                f,
                "gap: {topic}/{partition}: the committed offset {from} is beyond its end: the topic was made anew, or \
                 brokers lost records; reading begins at {to}"
            );
        }
        write!(
            f,
            "gap: {topic}/{partition}: offsets {from} to {} were deleted before they were read (retention, deleted \
             records); reading goes on at {to}",
            to - 1
        )
    }
}

/// Where a partition is read from.
#[derive(Debug, PartialEq, Eq)]
enum Start {
    /// At its committed offset.
    Committed,
    /// It has none.
    Fresh(i64),
    /// What is at its committed offset is gone.
    Behind(i64),
}

/// Decides where a partition is read from that has records from `low` to `high`. Offsets that have no record, such as
/// those that compaction or a transaction leaves, lie between both and are no gap.
fn start(committed: Option<i64>, (low, high): (i64, i64), reset: Reset) -> Start {
    let first = if reset == Reset::Latest { high } else { low };
    match committed {
        None => Start::Fresh(first),
        Some(at) if at < low => Start::Behind(first),
        // Whatever there is now came later, so none of it may be passed over.
        Some(at) if at > high => Start::Behind(low),
        Some(_) => Start::Committed,
    }
}

/// Where partitions are read from that have no committed offset, or none that still stands, and what is missing.
pub struct Starts {
    reset: Reset,
    /// Every partition with its place.
    pub all: TopicPartitionList,
    /// Those whose place is not the committed one.
    moved: TopicPartitionList,
    fresh: Vec<String>,
    /// What is gone.
    pub gaps: Vec<Gap>,
}

impl Starts {
    /// Asks the cluster about partitions.
    ///
    /// # Errors
    /// What brokers say.
    pub fn ask<C: ConsumerContext>(
        reader: &BaseConsumer<C>,
        partitions: &TopicPartitionList,
        reset: Reset,
    ) -> KafkaResult<Starts> {
        let committed = reader.committed_offsets(partitions.clone(), ASK)?;
        let (all, moved) = (TopicPartitionList::new(), TopicPartitionList::new());
        let mut starts = Starts { reset, all, moved, fresh: Vec::new(), gaps: Vec::new() };
        for one in committed.elements() {
            one.error()?;
            let (topic, partition) = (one.topic(), one.partition());
            let at = one.offset().to_raw().filter(|at| *at >= 0);
            let mut marks = reader.fetch_watermarks(topic, partition, ASK)?;
            if at.is_some_and(|at| at > marks.1) {
                // A leader that is new may not know the end yet.
                std::thread::sleep(Duration::from_secs(1));
                marks = reader.fetch_watermarks(topic, partition, ASK)?;
            }
            let to = match start(at, marks, reset) {
                Start::Committed => at.unwrap_or(marks.0),
                Start::Fresh(to) => {
                    starts.fresh.push(format!("{topic}/{partition} at {to}"));
                    starts.moved.add_partition_offset(topic, partition, Offset::Offset(to))?;
                    to
                }
                Start::Behind(to) => {
                    let (topic, from) = (topic.to_owned(), at.unwrap_or(0));
                    starts.moved.add_partition_offset(&topic, partition, Offset::Offset(to))?;
                    starts.gaps.push(Gap { topic, partition, from, to });
                    to
                }
            };
            starts.all.add_partition_offset(topic, partition, Offset::Offset(to))?;
        }
        Ok(starts)
    }

    /// Why reading may not begin.
    pub fn refusal(&self, on_gap: OnGap) -> Option<String> {
        let setting = match (on_gap, self.reset) {
            (OnGap::Stop, _) => "on_gap = \"stop\"",
            (_, Reset::Error) => "auto.offset.reset = \"error\"",
            _ => return None,
        };
        let gone = self.gaps.first().map(|gap| format!("{setting}: {gap}"));
        let fresh = || format!("{setting}: there is no committed offset: {}", self.fresh.join(", "));
        gone.or_else(|| (self.reset == Reset::Error && !self.fresh.is_empty()).then(fresh))
    }
}

/// A reading client's ear: which partitions come and go, and where reading of them begins.
#[derive(Default)]
pub struct Reading {
    voice: Voice,
    /// Nothing for a client that is told its partitions.
    places: Option<(Reset, OnGap)>,
    changed: AtomicBool,
    revoked: Mutex<Vec<(String, i32)>>,
    group: Mutex<Option<ConsumerGroupMetadata>>,
    gaps: Mutex<Vec<Gap>>,
    failed: Mutex<Option<Unplaced>>,
}

/// Why reading of a new assignment does not begin.
pub enum Unplaced {
    /// Brokers could not be asked, or did not take an offset.
    Failed(KafkaError),
    /// A setting forbids it.
    Refused(String),
}

impl Reading {
    /// For a member of the group.
    ///
    /// # Errors
    /// A setting that is none.
    pub fn new(config: &Config) -> Result<Reading> {
        Ok(Reading { places: Some((config.reset()?, config.on_gap)), ..Reading::default() })
    }

    /// Calls `with` with the membership under which the assignment was given. librdkafka's own answer is of now: after a
    /// session that timed out it has no member's name, with which brokers take offsets from anybody.
    pub fn member<T>(&self, with: impl FnOnce(&ConsumerGroupMetadata) -> T) -> Option<T> {
        lock(&self.group).as_ref().map(with)
    }

    /// Whether the assignment changed since the last time it was asked, and what was taken away meanwhile.
    pub fn take(&self) -> Option<Vec<(String, i32)>> {
        let changed = self.changed.swap(false, Ordering::SeqCst);
        changed.then(|| std::mem::take(&mut *lock(&self.revoked)))
    }

    /// What was gone since the last time it was asked.
    pub fn gaps(&self) -> Vec<Gap> {
        std::mem::take(&mut *lock(&self.gaps))
    }

    /// Why an assignment was not taken.
    pub fn failed(&self) -> Option<Unplaced> {
        lock(&self.failed).take()
    }

    /// Assigns partitions with places of the bridge's own choice. librdkafka's choice is silent about records that are
    /// gone. The places are committed: a partition without new records would have the same gap at each start.
    fn place(
        &self,
        reader: &BaseConsumer<Reading>,
        partitions: &TopicPartitionList,
        (reset, on_gap): (Reset, OnGap),
    ) -> Result<(), Unplaced> {
        let starts = Starts::ask(reader, partitions, reset).map_err(Unplaced::Failed)?;
        if let Some(refusal) = starts.refusal(on_gap) {
            return Err(Unplaced::Refused(refusal));
        }
        assign(reader, &starts.all).map_err(Unplaced::Failed)?;
        if starts.moved.count() > 0 {
            reader.commit(&starts.moved, CommitMode::Sync).map_err(Unplaced::Failed)?;
        }
        if !starts.fresh.is_empty() {
            say::line(&format!("no committed offset, reading begins: {}", starts.fresh.join(", ")));
        }
        lock(&self.gaps).extend(starts.gaps);
        Ok(())
    }
}

fn assign(reader: &BaseConsumer<Reading>, partitions: &TopicPartitionList) -> KafkaResult<()> {
    match reader.rebalance_protocol() {
        RebalanceProtocol::Cooperative => reader.incremental_assign(partitions),
        _ => reader.assign(partitions),
    }
}

fn unassign(reader: &BaseConsumer<Reading>, partitions: &TopicPartitionList) -> KafkaResult<()> {
    match reader.rebalance_protocol() {
        RebalanceProtocol::Cooperative => reader.incremental_unassign(partitions),
        _ => reader.unassign(),
    }
}

impl ClientContext for Reading {
    fn log(&self, level: RDKafkaLogLevel, _: &str, message: &str) {
        self.voice.log(level, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // An end of a partition is asked for, and no error.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::PartitionEOF) {
            return;
        }
        self.voice.say(&format!("{error}: {reason}"));
    }
}

impl ConsumerContext for Reading {
    fn rebalance(
        &self,
        reader: &BaseConsumer<Reading>,
        what: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let assigns = what == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let done = match self.places {
            Some(places) if assigns => self.place(reader, partitions, places),
            _ if assigns => assign(reader, partitions).map_err(Unplaced::Failed),
            _ => {
                let all = partitions.elements();
                lock(&self.revoked).extend(all.iter().map(|one| (one.topic().to_owned(), one.partition())));
                unassign(reader, partitions).map_err(Unplaced::Failed)
            }
        };
        if let Err(why) = done {
            // librdkafka waits for an answer; none of these partitions is read before the session ends.
            let _ = assign(reader, &TopicPartitionList::new());
            *lock(&self.failed) = Some(why);
        } else if assigns {
            *lock(&self.group) = reader.group_metadata();
        }
        self.changed.store(true, Ordering::SeqCst);
    }
}

/// A record that brokers do not take: its number in the transaction, and why.
pub type Refusal = (usize, RDKafkaErrorCode);

/// Refusals of a transaction that are kept.
const REFUSED: usize = 1 << 16;

/// Records of a transaction that were not delivered.
#[derive(Default)]
pub struct Undelivered {
    /// The error that says most, and the number of its record.
    pub first: Option<(KafkaError, usize)>,
    /// Records that brokers do not take, or that were in one batch with such a record.
    pub refused: Vec<Refusal>,
}

/// A writing client's ear: records that could not be delivered.
#[derive(Default)]
pub struct Writing {
    voice: Voice,
    failed: Mutex<Undelivered>,
}

impl Writing {
    /// What was not delivered since the last time it was asked.
    pub fn take(&self) -> Undelivered {
        std::mem::take(&mut *lock(&self.failed))
    }

    /// Whether something was not delivered.
    pub fn has_failed(&self) -> bool {
        lock(&self.failed).first.is_some()
    }
}

impl ClientContext for Writing {
    fn log(&self, level: RDKafkaLogLevel, _: &str, message: &str) {
        self.voice.log(level, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.voice.say(&format!("{error}: {reason}"));
    }
}

impl ProducerContext<NoCustomPartitioner> for Writing {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, number: usize) {
        let Err((error, _)) = result else { return };
        let mut failed = lock(&self.failed);
        let code = error.rdkafka_error_code();
        if let Some(code) = code.filter(|code| matches!(verdict::judge(*code), Verdict::Record(_)))
            && failed.refused.len() < REFUSED
        {
            failed.refused.push((number, code));
        }
        let weight = |error: &KafkaError| verdict::weight(error.rdkafka_error_code());
        if failed.first.as_ref().is_none_or(|(first, _)| weight(first) < weight(error)) {
            failed.first = Some((error.clone(), number));
        }
    }
}

/// Waits until everything that was written is delivered or given up, or until something was not; whether it was in time.
/// librdkafka sends no more of a transaction in which something was not.
pub fn drain(producer: &BaseProducer<Writing>, patience: Duration) -> bool {
    use rdkafka::producer::Producer;
    let until = Instant::now() + patience;
    while producer.in_flight_count() > 0 {
        if Instant::now() > until {
            return false;
        }
        producer.poll(Duration::from_millis(1));
        if producer.context().has_failed() {
            // What belongs to the same batch comes at the same time.
            producer.poll(Duration::from_millis(20));
            return true;
        }
    }
    true
}

/// What matters of a topic.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its partitions.
    pub partitions: usize,
    /// Whether it keeps the producer's times.
    pub keeps_times: bool,
    /// Whether it is compacted.
    pub compacted: bool,
    /// Whether its records are deleted when they are old, compacted or not.
    pub deletes: bool,
    /// The largest batch it takes.
    pub message_max: usize,
    /// How far in the past and in the future a record's time may be, in milliseconds.
    pub times_max: [i64; 2],
}

/// What `cleanup.policy` says: whether a topic is compacted, and whether old records are deleted. It is a list.
fn cleanup(policy: &str) -> (bool, bool) {
    let has = |one: &str| policy.split(',').any(|name| name.trim() == one);
    (has("compact"), has("delete"))
}

/// Asks the cluster.
pub struct Admin {
    client: AdminClient<DefaultClientContext>,
}

impl Admin {
    /// With the configuration's settings.
    ///
    /// # Errors
    /// A setting that librdkafka does not know.
    pub fn new(config: &Config) -> Result<Admin> {
        Ok(Admin { client: settings(config).create().context("[kafka]")? })
    }

    /// What matters of a topic; nothing if there is none.
    ///
    /// # Errors
    /// Brokers that cannot be reached, or refuse.
    pub fn facts(&self, topic: &str) -> Result<Option<Facts>> {
        // For all of them: a broker may make the one topic that is asked for.
        let metadata = self.client.inner().fetch_metadata(None, ASK).context("asking for topics")?;
        let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
            return Ok(None);
        };
        if let Some(error) = found.error() {
            return match RDKafkaErrorCode::from(error) {
                RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic => Ok(None),
                code => bail!("topic {topic}: {code}"),
            };
        }
        let asked = [ResourceSpecifier::Topic(topic)];
        let options = AdminOptions::new().request_timeout(Some(ASK));
        let described = futures_executor::block_on(self.client.describe_configs(&asked, &options));
        let described = described.context("asking for a topic's settings")?;
        let described = match described.into_iter().next() {
            Some(Ok(described)) => described,
            Some(Err(code)) => bail!("settings of topic {topic}: {code}"),
            None => bail!("settings of topic {topic}: no answer"),
        };
        let value =
            |name: &str| described.get(name).and_then(|entry| entry.value.clone()).unwrap_or_default();
        let (compacted, deletes) = cleanup(&value("cleanup.policy"));
        Ok(Some(Facts {
            partitions: found.partitions().len(),
            keeps_times: value("message.timestamp.type") != "LogAppendTime",
            compacted,
            deletes,
            message_max: value("max.message.bytes").parse().unwrap_or(usize::MAX),
            times_max: ["before", "after"]
                .map(|side| value(&format!("message.timestamp.{side}.max.ms")).parse().unwrap_or(i64::MAX)),
        }))
    }

    /// A setting of a broker; nothing if it does not tell.
    pub fn broker_setting(&self, name: &str) -> Option<i64> {
        let metadata = self.client.inner().fetch_metadata(None, ASK).ok()?;
        let asked = [ResourceSpecifier::Broker(metadata.brokers().first()?.id())];
        let options = AdminOptions::new().request_timeout(Some(ASK));
        let described = futures_executor::block_on(self.client.describe_configs(&asked, &options)).ok()?;
        described.into_iter().next()?.ok()?.get(name)?.value.as_ref()?.parse().ok()
    }

    /// Makes the compacted topic of keys.
    ///
    /// # Errors
    /// Brokers that refuse; a topic that is there already is none.
    pub fn make_key_topic(&self, topic: &str) -> Result<()> {
        let new = NewTopic::new(topic, 1, TopicReplication::Fixed(-1)).set("cleanup.policy", "compact");
        let options = AdminOptions::new().operation_timeout(Some(ASK));
        let made = futures_executor::block_on(self.client.create_topics([&new], &options));
        match made.context("making the topic of keys")?.into_iter().next() {
            Some(Err((_, code))) if code != RDKafkaErrorCode::TopicAlreadyExists => {
                bail!("making the topic of keys: {code}")
            }
            _ => Ok(()),
        }
    }

    /// What matters of each topic that is written, after everything that can be seen to be wrong was told.
    ///
    /// # Errors
    /// A topic that is missing, or does not fit.
    pub fn targets(&self, config: &Config) -> Result<Vec<Facts>> {
        let known = |topic: &str| self.facts(topic)?.with_context(|| format!("topic {topic}: there is none"));
        let target = |topic: &crate::config::Topic| {
            let (from, mut to) = (known(&topic.from)?, known(&topic.to)?);
            if from.partitions != to.partitions {
                let (one, other) = (from.partitions, to.partitions);
                bail!("topics {} and {}: {one} partitions and {other}", topic.from, topic.to);
            }
            if let Some(dead) = &topic.dead_letter {
                to.message_max = to.message_max.min(known(dead)?.message_max);
            }
            Ok(to)
        };
        config.topics.iter().map(target).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_offsets_that_are_gone_are_a_gap() {
        let at = |committed, marks| start(committed, marks, Reset::Earliest);
        assert_eq!(at(Some(100), (0, 200)), Start::Committed, "whatever compaction left out in between");
        assert_eq!(at(Some(100), (100, 100)), Start::Committed);
        assert_eq!(at(Some(100), (0, 100)), Start::Committed);
        assert_eq!(at(Some(100), (150, 200)), Start::Behind(150));
        assert_eq!(at(Some(100), (200, 200)), Start::Behind(200));
        assert_eq!(at(Some(100), (0, 20)), Start::Behind(0), "what is there now came later");
        assert_eq!(at(None, (50, 200)), Start::Fresh(50));
        assert_eq!(start(None, (50, 200), Reset::Latest), Start::Fresh(200));
        assert_eq!(start(Some(100), (150, 200), Reset::Latest), Start::Behind(200));
        assert_eq!(start(Some(100), (0, 20), Reset::Latest), Start::Behind(0));
        let gap = Gap { topic: "t".into(), partition: 1, from: 100, to: 150 };
        assert_eq!(gap.offsets(), 50);
        assert!(gap.to_string().starts_with("gap: t/1: offsets 100 to 149 "));
        assert_eq!(Gap { to: 0, ..gap }.offsets(), 0);
    }

    #[test]
    fn a_topic_that_is_compacted_and_deletes_does_both() {
        assert_eq!(cleanup("compact"), (true, false));
        assert_eq!(cleanup("delete"), (false, true));
        assert_eq!(cleanup("compact,delete"), (true, true));
        assert_eq!(cleanup("delete, compact"), (true, true));
        assert_eq!(cleanup(""), (false, false));
    }
}
