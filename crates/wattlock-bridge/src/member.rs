//! One member of the group: reads, has the work done, writes, and commits offsets with what was written.
//!
//! Everything between the beginning and the end of a transaction happens between two polls. A rebalance is served
//! inside a poll, so none falls into a transaction; what was gathered of a partition that was taken away is dropped
//! before one begins. A member that was declared dead meanwhile has an old generation, with which brokers refuse its
//! offsets (KIP-447). Whatever goes wrong ends in a new start from the committed offsets: it has a new epoch, under which
//! brokers refuse what is still on its way. Only a transaction whose records all have an answer, and in which nothing
//! else was asked of brokers, is aborted in the same session: keys failed or were shredded, or brokers refuse a record,
//! in front of which its partition then stops. What no repetition helps against is in [`verdict`].

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{BorrowedMessage, Headers, Message, OwnedHeaders, Timestamp};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, Offset};
use wattlock_stream::Header;

use crate::cluster::{self, Reading, Undelivered, Unplaced, Writing};
use crate::config::Config;
use crate::say;
use crate::status::Status;
use crate::verdict::{self, Verdict};
use crate::work::{Done, Incoming, Outgoing, Share, Sink, Time, Trouble, Work};

/// How long a partition that stopped stays so before it is tried again.
const AGAIN: Duration = Duration::from_secs(30);
/// How often an idle bridge looks whether its keys still stand.
const WATCH: Duration = Duration::from_secs(1);

/// Why a session ended early.
pub enum End {
    /// Everything is to be begun anew, from the committed offsets.
    Anew(String),
    /// The transaction is to be aborted; the session goes on.
    Abort(String),
    /// The same, since brokers do not take a record of it.
    Refused(String),
    /// No new start would help.
    Stop(anyhow::Error),
}

/// What a record's partition is called here: the route and the number.
type Part = (usize, i32);

/// A connection as a member.
pub struct Session<'a> {
    config: &'a Config,
    work: &'a mut Work,
    status: &'a Status,
    reader: BaseConsumer<Reading>,
    writer: BaseProducer<Writing>,
    stopped: HashMap<(String, i32), Instant>,
    watched: Instant,
    /// The writing client's name and the largest batch that its topics take.
    writes: (String, usize),
}

fn unless_set(settings: &mut ClientConfig, name: &str, value: impl ToString) {
    if settings.get(name).is_none() {
        settings.set(name, value.to_string());
    }
}

/// Settings of the reading client. A named member keeps its partitions through a restart (KIP-345).
pub fn reading_settings(config: &Config) -> ClientConfig {
    let mut settings = cluster::settings(config);
    unless_set(&mut settings, "queued.max.messages.kbytes", (config.window / 2 / 1024).max(64));
    unless_set(&mut settings, "fetch.max.bytes", (config.window / 4).clamp(1 << 20, 48 << 20));
    unless_set(&mut settings, "fetch.queue.backoff.ms", 20);
    // Brokers give a static member that comes back what it had, without a rebalance. Partitions that a cooperative
    // rebalance was taking from it would then have no owner, for good.
    let strategy = settings.get("partition.assignment.strategy").unwrap_or_default();
    if let Some(name) = config.instance.as_ref().filter(|_| !strategy.contains("cooperative")) {
        unless_set(&mut settings, "group.instance.id", name);
    }
    // The bridge decides itself, since librdkafka passes over what is gone without a word.
    settings.set("auto.offset.reset", "error");
    settings.set("group.id", &config.group).set("enable.auto.commit", "false");
    // That of KIP-848 has errors and rules of its own for members that are late; nothing here was tried with it.
    settings.set("group.protocol", "classic");
    settings.set("enable.auto.offset.store", "false").set("isolation.level", "read_committed");
    settings
}

/// Settings of the writing client, for topics the narrowest of which takes batches of `batch_max` bytes.
pub fn writing_settings(config: &Config, id: &str, batch_max: usize) -> ClientConfig {
    let mut settings = cluster::settings(config);
    unless_set(&mut settings, "queue.buffering.max.kbytes", (config.window / 2 / 1024).max(64));
    unless_set(&mut settings, "queue.buffering.max.messages", 1_000_000);
    // The topic decides what is too large; librdkafka's own limit is below what brokers take.
    unless_set(&mut settings, "message.max.bytes", 64 << 20);
    // Brokers refuse a batch of small records that is larger than the topic's limit as they do a single record.
    unless_set(&mut settings, "batch.size", batch_max.clamp(1, 1_000_000));
    settings.set("transactional.id", id);
    settings.set("transaction.timeout.ms", config.transaction.timeout_ms.to_string());
    settings.set("enable.idempotence", "true").set("delivery.report.only.error", "true");
    settings
}

/// A writing client. Brokers abort what another one of its name left open, and refuse what that one still writes.
fn writer(
    config: &Config,
    (id, batch_max): &(String, usize),
    stop: &AtomicBool,
) -> Result<BaseProducer<Writing>, End> {
    let writer = writing_settings(config, id, *batch_max).create_with_context(Writing::default());
    let writer: BaseProducer<Writing> =
        writer.map_err(|error| End::Stop(anyhow::Error::from(error).context("[kafka]")))?;
    let doing = format!("transactions of {id}");
    patient(config, &doing, Some(stop), |patience| writer.init_transactions(patience))?;
    Ok(writer)
}

/// Asks once for transactions, as a session does at its start.
///
/// # Errors
/// Why there are none.
pub fn transactions(writer: &BaseProducer<Writing>, id: &str) -> Result<()> {
    writer.init_transactions(cluster::ASK).map_err(|error| {
        match ended(&format!("transactions of {id}"), &error) {
            End::Stop(error) => error,
            End::Anew(what) | End::Abort(what) | End::Refused(what) => anyhow::anyhow!(what),
        }
    })
}

/// What an error means, and what helps against it if no repetition does.
fn ended(doing: &str, error: &KafkaError) -> End {
    match error.rdkafka_error_code().map(verdict::judge) {
        None | Some(Verdict::Retry) => End::Anew(format!("{doing}: {error}")),
        Some(Verdict::Record(advice) | Verdict::Size(advice) | Verdict::Stop(advice)) => {
            End::Stop(anyhow::anyhow!("{doing}: {error}: {advice}"))
        }
    }
}

impl<'a> Session<'a> {
    /// Joins the group, and settles what a predecessor of the same instance left open.
    ///
    /// # Errors
    /// [`End`].
    pub fn new(
        config: &'a Config,
        instance: &str,
        work: &'a mut Work,
        status: &'a Status,
        batch_max: usize,
        stop: &AtomicBool,
    ) -> Result<Session<'a>, End> {
        let wrong = |error: KafkaError| End::Stop(anyhow::Error::from(error).context("[kafka]"));
        let context = Reading::new(config).map_err(End::Stop)?;
        let reader: BaseConsumer<Reading> =
            reading_settings(config).create_with_context(context).map_err(wrong)?;
        let id = format!("{}-{instance}", config.group);
        let writes = (id, batch_max);
        let writer = writer(config, &writes, stop)?;
        let (stopped, watched) = (HashMap::new(), Instant::now());
        let session = Session { config, work, status, reader, writer, stopped, watched, writes };
        let topics: Vec<&str> = config.topics.iter().map(|topic| topic.from.as_str()).collect();
        session.reader.subscribe(&topics).map_err(|error| ended("subscribing", &error))?;
        Ok(session)
    }

    /// Works until it is told to stop; then the transaction at hand was committed.
    ///
    /// # Errors
    /// [`End`], never [`End::Abort`].
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), End> {
        while !stop.load(Ordering::SeqCst) {
            self.try_stopped()?;
            match self.round(stop) {
                Ok(()) => {}
                Err(End::Abort(what)) => {
                    self.status.aborted();
                    say::again(&format!("transaction aborted, its records come again: {what}"));
                }
                Err(end) => return Err(end),
            }
        }
        self.leave();
        Ok(())
    }

    /// Leaves the group: a named member that only disconnects keeps its partitions from the others for its session.
    fn leave(&self) {
        if self.config.instance.is_none() {
            return;
        }
        self.reader.unsubscribe();
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until && self.reader.assignment().is_ok_and(|all| all.count() > 0) {
            let _ = self.reader.poll(Duration::from_millis(20));
        }
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            let _ = self.reader.poll(Duration::from_millis(20));
        }
    }

    fn round(&mut self, stop: &AtomicBool) -> Result<(), End> {
        self.status.keys(self.work.keys_made);
        let Session { config, work, status, reader, writer, stopped, watched, writes } = self;
        let gathered = gather(config, work, reader, stopped, stop)?;
        reader.context().gaps().into_iter().for_each(|gap| status.gap(gap));
        if gathered.is_empty() {
            writer.poll(Duration::ZERO);
            if watched.elapsed() > WATCH {
                *watched = Instant::now();
                watch(work)?;
            }
            return Ok(());
        }
        let round = Round { config, work, reader, writer };
        let outcome = match round.transaction(&gathered) {
            Ok(outcome) => outcome,
            Err(End::Abort(what)) => {
                if settle(config, writer)?.first.is_some() {
                    return Err(End::Anew("a record was not delivered".into()));
                }
                patient(config, "aborting", None, |patience| writer.abort_transaction(patience))?;
                again(config, reader, &gathered)?;
                return Err(End::Abort(what));
            }
            Err(End::Refused(what)) => {
                // What librdkafka (2.12) has queued of a failed transaction sometimes ends the next one, too.
                *writer = self::writer(config, writes, stop)?;
                again(config, reader, &gathered)?;
                return Err(End::Abort(what));
            }
            Err(end) => return Err(end),
        };
        *watched = Instant::now();
        status.committed(config, &outcome);
        for ((route, partition), done) in &outcome {
            let topic = &config.topics[*route].from;
            for (offset, reason, text) in &done.unreadable {
                status.unreadable(topic, *partition, *offset, reason, text, done.stopped == Some(*offset));
            }
            if let Some(offset) = done.stopped {
                let mut one = TopicPartitionList::new();
                one.add_partition(topic, *partition);
                let sought = seek(reader, topic, *partition, offset).and_then(|()| reader.pause(&one));
                sought.map_err(|error| End::Anew(error.to_string()))?;
                stopped.insert((topic.clone(), *partition), Instant::now());
            } else if let Some(offset) = done.more {
                seek(reader, topic, *partition, offset).map_err(|error| End::Anew(error.to_string()))?;
            }
        }
        Ok(())
    }

    /// Partitions that stopped are tried again: a key may have come, or a topic's setting may have changed.
    fn try_stopped(&mut self) -> Result<(), End> {
        let mut again = TopicPartitionList::new();
        let (config, work, writer) = (self.config, &mut *self.work, &self.writer);
        self.stopped.retain(|(topic, partition), since| {
            let wait = since.elapsed() < AGAIN;
            if !wait {
                again.add_partition(topic, *partition);
                if let Some(route) = work.route(topic)
                    && work.forgive((route, *partition))
                {
                    // librdkafka asks by itself every five minutes: the topic may have more partitions by now.
                    let to = &config.topics[route].to;
                    let _ = writer.client().fetch_metadata(Some(to), Duration::from_secs(1));
                }
            }
            wait
        });
        if again.count() == 0 {
            return Ok(());
        }
        self.reader.resume(&again).map_err(|error| End::Anew(error.to_string()))
    }
}

/// Looks whether the keys that seal still stand, while there is nothing to seal.
fn watch(work: &mut Work) -> Result<(), End> {
    match work.stale() {
        Ok(false) => {}
        Ok(true) => say::line(STALE),
        Err(error) => return keys_failed(error).map(|text| say::again(&text)),
    }
    Ok(())
}

const STALE: &str = "a key that seals was shredded or rewrapped: a new one is made for the next record";

/// What an error about keys means: a text to tell, or the end.
fn keys_failed(error: wattlock_stream::Error) -> Result<String, End> {
    match error {
        error @ wattlock_stream::Error::NoKey(_) => {
            Err(End::Stop(anyhow::Error::from(error).context("record_keys_under: record keys would be lost")))
        }
        error => Ok(format!("keys: {error}")),
    }
}

fn seek(reader: &BaseConsumer<Reading>, topic: &str, partition: i32, offset: i64) -> KafkaResult<()> {
    let mut one = TopicPartitionList::new();
    one.add_partition_offset(topic, partition, Offset::Offset(offset))?;
    let sought = reader.seek_partitions(one, Duration::from_secs(10))?;
    sought.elements().iter().try_for_each(|one| one.error())
}

/// Asks until there is an answer other than that there was no time for one. No other is one to go on with: a request
/// that was given up may still be on its way, and would count to the producer's next transaction.
fn patient(
    config: &Config,
    doing: &str,
    stop: Option<&AtomicBool>,
    mut ask: impl FnMut(Duration) -> KafkaResult<()>,
) -> Result<(), End> {
    let until = Instant::now() + 3 * config.transaction.timeout() + cluster::ASK;
    loop {
        match ask(Duration::from_secs(if stop.is_some() { 1 } else { 5 })) {
            Ok(()) => return Ok(()),
            Err(KafkaError::Transaction(known)) => {
                let over = known.is_fatal() || known.txn_requires_abort() || !known.is_retriable();
                let stops = stop.is_some_and(|stop| stop.load(Ordering::SeqCst));
                if over || stops || Instant::now() > until {
                    let doing = format!("{doing}: {}: {}", known.name(), known.string());
                    return Err(ended(&doing, &KafkaError::Transaction(known)));
                }
            }
            Err(error) => return Err(ended(doing, &error)),
        }
    }
}

/// Reads until a transaction has enough. What was gathered of partitions that go away meanwhile is dropped.
fn gather<'m>(
    config: &Config,
    work: &Work,
    reader: &'m BaseConsumer<Reading>,
    stopped: &mut HashMap<(String, i32), Instant>,
    stop: &AtomicBool,
) -> Result<BTreeMap<Part, Vec<BorrowedMessage<'m>>>, End> {
    let mut gathered: BTreeMap<Part, Vec<BorrowedMessage<'m>>> = BTreeMap::new();
    let (mut bytes, mut records, mut until) = (0, 0, None);
    while bytes < config.transaction.bytes && records < config.transaction.records {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let left = until.map_or(Duration::from_millis(200), |until: Instant| {
            until.saturating_duration_since(Instant::now())
        });
        let polled = reader.poll(left);
        if let Some(revoked) = reader.context().take() {
            // Served inside this poll: what it returned, if anything, is of the new assignment.
            let gone = |route: usize, partition: i32| {
                let topic = &config.topics[route].from;
                revoked.iter().any(|(name, number)| name == topic && *number == partition)
            };
            gathered.retain(|(route, partition), _| !gone(*route, *partition));
            forget(reader, stopped, &revoked).map_err(|error| End::Anew(error.to_string()))?;
        }
        match reader.context().failed() {
            None => {}
            Some(Unplaced::Failed(error)) => return Err(ended("taking partitions", &error)),
            Some(Unplaced::Refused(what)) => return Err(End::Stop(anyhow::anyhow!(what))),
        }
        match polled {
            Some(Ok(message)) => {
                let Some(route) = work.route(message.topic()) else { continue };
                bytes += message.payload_len() + message.key_len() + headers_len(&message);
                records += 1;
                until.get_or_insert_with(|| Instant::now() + config.transaction.hold());
                gathered.entry((route, message.partition())).or_default().push(message);
            }
            Some(Err(error)) => reading(error)?,
            None => {}
        }
        // Nothing came, or what came has waited long enough.
        if until.is_none_or(|until| Instant::now() >= until) {
            break;
        }
    }
    Ok(gathered)
}

/// Forgets that partitions stopped which belong to another member now. librdkafka keeps an application's pause of a
/// partition that is taken away, and it would stay when the partition comes back.
fn forget(
    reader: &BaseConsumer<Reading>,
    stopped: &mut HashMap<(String, i32), Instant>,
    revoked: &[(String, i32)],
) -> KafkaResult<()> {
    let mut paused = TopicPartitionList::new();
    for (topic, partition) in revoked.iter().filter(|name| stopped.contains_key(*name)) {
        paused.add_partition(topic, *partition);
    }
    stopped.retain(|name, _| !revoked.contains(name));
    if paused.count() == 0 { Ok(()) } else { reader.resume(&paused) }
}

/// What an error while reading means.
fn reading(error: KafkaError) -> Result<(), End> {
    match error {
        KafkaError::MessageConsumptionFatal(_) => Err(ended("reading", &error)),
        KafkaError::MessageConsumption(code) => match code {
            // The next session finds out what is missing, and where reading goes on.
            RDKafkaErrorCode::AutoOffsetReset => Err(End::Anew("reading: an offset is out of range".into())),
            RDKafkaErrorCode::UnknownTopicOrPartition => Err(End::Anew(format!("reading: {code}"))),
            // Everything else that may pass is librdkafka's to get over.
            code if verdict::judge(code) == Verdict::Retry => Ok(()),
            _ => Err(ended("reading", &error)),
        },
        _ => Ok(()),
    }
}

/// What a transaction needs.
struct Round<'r, 'm> {
    config: &'r Config,
    work: &'r mut Work,
    reader: &'m BaseConsumer<Reading>,
    writer: &'r BaseProducer<Writing>,
}

impl<'m> Round<'_, 'm> {
    fn transaction(
        self,
        gathered: &BTreeMap<Part, Vec<BorrowedMessage<'m>>>,
    ) -> Result<Vec<(Part, Done)>, End> {
        let Round { config, work, reader, writer } = self;
        writer.context().take();
        writer.begin_transaction().map_err(|error| ended("beginning a transaction", &error))?;
        let (patience, sent) = (config.transaction.timeout(), Vec::new());
        let mut target = Target { config, writer, patience, part: (0, 0), sent };
        let (mut outcome, mut offsets) = (Vec::new(), TopicPartitionList::new());
        for (part, messages) in gathered {
            let records: Vec<Incoming<'_>> = messages.iter().map(incoming).collect();
            let topic = &config.topics[part.0].from;
            let share = Share { route: part.0, partition: part.1, records: &records };
            target.part = *part;
            let done = match work.run(share, &mut target) {
                Ok(done) => done,
                Err(Trouble::Sink(Undone::End(end))) => return Err(end),
                // Why is seen below.
                Err(Trouble::Sink(Undone::Failed)) => break,
                Err(Trouble::Sink(Undone::Refused(offset, why))) => {
                    let what = format!("{topic}/{}@{offset}: {why}", part.1);
                    work.refuse(*part, &[offset], why);
                    return Err(End::Abort(what));
                }
                Err(Trouble::Failed(error)) => {
                    // Keys or engines that fail do so again at once.
                    std::thread::sleep(Duration::from_millis(500));
                    return Err(End::Abort(error.to_string()));
                }
            };
            let after = messages.last().map_or(0, |message| message.offset() + 1);
            let next = Offset::Offset(done.stopped.or(done.more).unwrap_or(after));
            offsets
                .add_partition_offset(topic, part.1, next)
                .map_err(|error| End::Anew(error.to_string()))?;
            outcome.push((*part, done));
        }
        // What was sealed under a key that was shredded meanwhile, no reader could open: it is sealed again under
        // another. A record that was read after the shredding can so never be under the old one.
        match work.stale() {
            Ok(false) => {}
            Ok(true) => return Err(End::Abort(STALE.into())),
            Err(error) => {
                std::thread::sleep(Duration::from_millis(500));
                return Err(End::Abort(keys_failed(error)?));
            }
        }
        let sent = std::mem::take(&mut target.sent);
        let undelivered = settle(config, writer)?;
        if let Some((error, number)) = undelivered.first {
            let mut refused: BTreeMap<Part, (Vec<i64>, RDKafkaErrorCode)> = BTreeMap::new();
            for (number, code) in &undelivered.refused {
                if let Some((part, offset)) = sent.get(*number).copied() {
                    refused.entry(part).or_insert((Vec::new(), *code)).0.push(offset);
                }
            }
            for (part, (mut offsets, code)) in refused {
                offsets.sort_unstable();
                work.refuse(part, &offsets, refusal(config, part, code));
            }
            let place = sent.get(number).map_or_else(String::new, |((route, partition), offset)| {
                format!("{}/{partition}@{offset}: ", config.topics[*route].from)
            });
            let to = sent.get(number).map_or("", |((route, _), _)| &config.topics[*route].to);
            return Err(match undelivered.refused.is_empty() {
                true => ended(&format!("{place}writing to {to}"), &error),
                // Which record of a batch it is, may not be known yet.
                false => End::Refused(format!("brokers refuse a record for {to}: {error}")),
            });
        }
        if outcome.len() < gathered.len() {
            return Err(End::Anew("a record was not delivered".into()));
        }
        if reader.assignment_lost() {
            return Err(End::Anew("declared dead meanwhile".into()));
        }
        // Asked once: offsets that were given up and asked for again could come late and set those of the next
        // transaction back.
        let patience = config.transaction.timeout();
        let sent = reader
            .context()
            .member(|group| writer.send_offsets_to_transaction(&offsets, group, patience))
            .ok_or_else(|| End::Anew("no longer a member".into()))?;
        sent.map_err(|error| ended("committing offsets", &error))?;
        patient(config, "committing", None, |patience| writer.commit_transaction(patience))?;
        Ok(outcome)
    }
}

/// Waits until brokers have answered for every record of the transaction, and returns what they did not take.
///
/// Without an answer a record may still be on its way, and would count to the producer's next transaction, in which it
/// stands once more. A new start has a new epoch, under which brokers refuse what comes late of the old one.
fn settle(config: &Config, writer: &BaseProducer<Writing>) -> Result<Undelivered, End> {
    let drained = cluster::drain(writer, config.transaction.timeout());
    writer.poll(Duration::ZERO);
    let undelivered = writer.context().take();
    // What no repetition helps against is said whether the others have their answer or not.
    let ends = undelivered.first.as_ref().and_then(|(error, _)| error.rdkafka_error_code());
    let ends = ends.is_some_and(|code| matches!(verdict::judge(code), Verdict::Size(_) | Verdict::Stop(_)));
    if drained || ends { Ok(undelivered) } else { Err(End::Anew("brokers do not acknowledge".into())) }
}

/// Why brokers do not take a record, and which setting is about it.
fn refusal(config: &Config, (route, partition): Part, code: RDKafkaErrorCode) -> String {
    let to = &config.topics[route].to;
    match verdict::judge(code) {
        Verdict::Record(advice) => format!("{to}/{partition} does not take it ({code}): {advice}"),
        _ => format!("{to}/{partition} does not take it ({code})"),
    }
}

/// Goes back to where a transaction began that was given up.
fn again(
    config: &Config,
    reader: &BaseConsumer<Reading>,
    gathered: &BTreeMap<Part, Vec<BorrowedMessage<'_>>>,
) -> Result<(), End> {
    for ((route, partition), messages) in gathered {
        let Some(first) = messages.first() else { continue };
        let sought = seek(reader, &config.topics[*route].from, *partition, first.offset());
        sought.map_err(|error| End::Anew(format!("going back: {error}")))?;
    }
    Ok(())
}

/// A record's headers, taken together by `all`. A name that is no text makes rdkafka (0.39) panic; such headers are none.
fn headers<'a, T>(
    message: &'a BorrowedMessage<'_>,
    all: impl FnOnce(&mut dyn Iterator<Item = Header<'a>>) -> T,
) -> Option<T> {
    let one =
        |header: rdkafka::message::Header<'a, &'a [u8]>| Header { name: header.key, value: header.value };
    match message.headers() {
        None => Some(all(&mut std::iter::empty())),
        Some(headers) => catch_unwind(AssertUnwindSafe(|| all(&mut headers.iter().map(one)))).ok(),
    }
}

/// Bytes of a record's headers.
fn headers_len(message: &BorrowedMessage<'_>) -> usize {
    let one = |header: Header<'_>| header.name.len() + header.value.map_or(0, <[u8]>::len);
    headers(message, |all| all.map(one).sum()).unwrap_or(0)
}

/// A record as it was read.
fn incoming<'a>(message: &'a BorrowedMessage<'_>) -> Incoming<'a> {
    let time = match message.timestamp() {
        Timestamp::CreateTime(time) if time >= 0 => Time::Made(time),
        Timestamp::LogAppendTime(time) => Time::Came(time),
        _ => Time::Unknown,
    };
    Incoming {
        offset: message.offset(),
        key: message.key(),
        value: message.payload(),
        time,
        headers: headers(message, |all| all.collect()),
    }
}

/// The transaction's topics.
struct Target<'a> {
    config: &'a Config,
    writer: &'a BaseProducer<Writing>,
    patience: Duration,
    /// The partition at hand.
    part: Part,
    /// Where each record of the transaction came from, in the order of writing.
    sent: Vec<(Part, i64)>,
}

/// Why a record was not written.
enum Undone {
    End(End),
    /// Another one was not delivered, and librdkafka sends no more.
    Failed,
    /// Brokers would not take the record of this offset.
    Refused(i64, String),
}

impl Target<'_> {
    fn narrow(&self, to: &str, record: &Outgoing<'_>, what: &str) -> Undone {
        let (from, partition) = (&self.config.topics[self.part.0].from, self.part.1);
        let (offset, len) = (record.offset, record.value.map_or(0, <[u8]>::len));
        Undone::End(End::Stop(anyhow::anyhow!(
            "{from}/{partition}@{offset}: a value of {len} bytes for {to}: {what}"
        )))
    }
}

impl Sink for Target<'_> {
    type Error = Undone;

    fn put(&mut self, topic: &str, partition: i32, record: &Outgoing<'_>) -> Result<(), Undone> {
        let mut out: BaseRecord<'_, [u8], [u8], usize> =
            BaseRecord::with_opaque_to(topic, self.sent.len()).timestamp(record.time);
        if partition >= 0 {
            out = out.partition(partition);
        }
        (out.key, out.payload) = (record.key, record.value);
        if !record.headers.is_empty() {
            let all = OwnedHeaders::new_with_capacity(record.headers.len());
            out.headers = Some(record.headers.iter().fold(all, |all, header| {
                all.insert(rdkafka::message::Header { key: header.name, value: header.value })
            }));
        }
        let (until, mut alone) = (Instant::now() + self.patience, false);
        loop {
            let (error, back) = match self.writer.send(out) {
                Ok(()) => {
                    self.sent.push((self.part, record.offset));
                    return Ok(());
                }
                Err(failed) => failed,
            };
            let code = error.rdkafka_error_code();
            match code.map(verdict::judge) {
                _ if code == Some(RDKafkaErrorCode::QueueFull) && alone => {
                    return Err(self.narrow(topic, record, "half the window is for writing: raise window"));
                }
                _ if self.writer.context().has_failed() => return Err(Undone::Failed),
                _ if code == Some(RDKafkaErrorCode::QueueFull) && Instant::now() < until => {
                    self.writer.poll(Duration::from_millis(5));
                    // Then there is all the room that there can be.
                    alone = self.writer.in_flight_count() == 0;
                    out = back;
                }
                Some(Verdict::Size(advice)) => return Err(self.narrow(topic, record, advice)),
                Some(Verdict::Record(_)) if partition >= 0 => {
                    let code = code.unwrap_or(RDKafkaErrorCode::Unknown);
                    return Err(Undone::Refused(record.offset, refusal(self.config, self.part, code)));
                }
                Some(Verdict::Stop(_)) => {
                    return Err(Undone::End(ended(&format!("writing to {topic}"), &error)));
                }
                _ => {
                    // Whatever it is, it is so again at once.
                    std::thread::sleep(Duration::from_millis(500));
                    return Err(Undone::End(End::Abort(format!("writing to {topic}: {error}"))));
                }
            }
        }
    }
}

/// Works until it is told to stop, and begins anew whenever that may help.
///
/// # Errors
/// What no new start helps against.
pub fn run(
    config: &Config,
    instance: &str,
    work: &mut Work,
    status: &Status,
    batch_max: usize,
    stop: &AtomicBool,
) -> Result<()> {
    let mut pause = Duration::from_millis(100);
    while !stop.load(Ordering::SeqCst) {
        let began = Instant::now();
        let ended = Session::new(config, instance, work, status, batch_max, stop)
            .and_then(|mut session| session.run(stop));
        let what = match ended {
            Ok(()) => return Ok(()),
            Err(End::Stop(error)) => return Err(error).context("the bridge stops"),
            Err(End::Anew(what) | End::Abort(what) | End::Refused(what)) => what,
        };
        if stop.load(Ordering::SeqCst) {
            break;
        }
        status.restarted();
        say::again(&format!("beginning anew from the committed offsets: {what}"));
        if began.elapsed() > Duration::from_secs(60) {
            pause = Duration::from_millis(100);
        }
        let until = Instant::now() + pause;
        while Instant::now() < until && !stop.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
        pause = (2 * pause).min(Duration::from_secs(10));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn an_error_while_reading_ends_what_it_must_and_nothing_else() {
        let read = |code| reading(KafkaError::MessageConsumption(code));
        assert!(matches!(read(RDKafkaErrorCode::AutoOffsetReset), Err(End::Anew(_))));
        assert!(matches!(read(RDKafkaErrorCode::TopicAuthorizationFailed), Err(End::Stop(_))));
        assert!(matches!(read(RDKafkaErrorCode::InvalidSessionTimeout), Err(End::Stop(_))));
        assert!(read(RDKafkaErrorCode::BrokerTransportFailure).is_ok());
        let fatal = |code| reading(KafkaError::MessageConsumptionFatal(code));
        assert!(matches!(fatal(RDKafkaErrorCode::FencedInstanceId), Err(End::Stop(_))));
        assert!(matches!(fatal(RDKafkaErrorCode::Fatal), Err(End::Anew(_))));
    }

    #[test]
    fn a_record_that_no_waiting_makes_room_for_ends_the_bridge() {
        let text = "group = \"g\"\nkafka = { \"bootstrap.servers\" = \"127.0.0.1:9\" }\n\
                    topic = [{ from = \"a\", to = \"b\", do = \"copy\" }]";
        let config = Config::parse(text).unwrap();
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", "127.0.0.1:9").set("queue.buffering.max.kbytes", "64");
        let writer: BaseProducer<Writing> = settings.create_with_context(Writing::default()).unwrap();
        let patience = Duration::from_secs(60);
        let mut target =
            Target { config: &config, writer: &writer, patience, part: (0, 3), sent: Vec::new() };
        let mut put = |len| {
            let value = vec![0; len];
            target.put("t", 0, &Outgoing { offset: 7, key: None, value: Some(&value), time: 1, headers: &[] })
        };
        let said = match put(65 << 10) {
            Err(Undone::End(End::Stop(error))) => error.to_string(),
            _ => String::new(),
        };
        assert!(said.contains("a/3@7: ") && said.contains("raise window"), "{said}");
        assert!(put(63 << 10).is_ok());
    }
}
