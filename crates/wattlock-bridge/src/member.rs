//! One member of the group: reads, has the work done, writes, and commits offsets with what was written.
//!
//! Everything between the beginning and the end of a transaction happens between two polls. A rebalance is served
//! inside a poll, so none falls into a transaction; what was gathered of a partition that was taken away is dropped
//! before one begins. A member that was declared dead meanwhile has an old generation, with which brokers refuse its
//! offsets (KIP-447). Whatever goes wrong ends in a new start from the committed offsets: it has a new epoch, under which
//! brokers refuse what is still on its way. Only a transaction whose records are all acknowledged, and in which nothing
//! else was asked of brokers, is aborted in the same session.

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

use crate::cluster::{self, Reading, Writing};
use crate::config::Config;
use crate::status::Status;
use crate::work::{Done, Incoming, Outgoing, Share, Sink, Time, Trouble, Work};

/// How long a partition that stopped stays so before it is tried again.
const AGAIN: Duration = Duration::from_secs(30);

/// Why a session ended early.
pub enum End {
    /// Everything is to be begun anew, from the committed offsets.
    Anew(String),
    /// The transaction is to be aborted; the session goes on.
    Abort(String),
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
}

fn unless_set(settings: &mut ClientConfig, name: &str, value: impl ToString) {
    if settings.get(name).is_none() {
        settings.set(name, value.to_string());
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
    ) -> Result<Session<'a>, End> {
        let stop = |error: KafkaError| End::Stop(anyhow::Error::from(error).context("[kafka]"));
        let half = config.window / 2 / 1024;
        let mut settings = cluster::settings(config);
        unless_set(&mut settings, "queued.max.messages.kbytes", half.max(64));
        unless_set(&mut settings, "fetch.max.bytes", (config.window / 4).clamp(1 << 20, 48 << 20));
        unless_set(&mut settings, "fetch.queue.backoff.ms", 20);
        unless_set(&mut settings, "auto.offset.reset", "earliest");
        settings.set("group.id", &config.group).set("enable.auto.commit", "false");
        // That of KIP-848 has errors and rules of its own for members that are late; nothing here was tried with it.
        settings.set("group.protocol", "classic");
        settings.set("enable.auto.offset.store", "false").set("isolation.level", "read_committed");
        let reader: BaseConsumer<Reading> = settings.create_with_context(Reading::default()).map_err(stop)?;
        let mut settings = cluster::settings(config);
        unless_set(&mut settings, "queue.buffering.max.kbytes", half.max(64));
        unless_set(&mut settings, "queue.buffering.max.messages", 1_000_000);
        // The topic decides what is too large; librdkafka's own limit is below what brokers take.
        unless_set(&mut settings, "message.max.bytes", 64 << 20);
        settings.set("transactional.id", format!("{}-{instance}", config.group));
        settings.set("transaction.timeout.ms", config.transaction.timeout_ms.to_string());
        settings.set("enable.idempotence", "true").set("delivery.report.only.error", "true");
        let writer: BaseProducer<Writing> = settings.create_with_context(Writing::default()).map_err(stop)?;
        let session = Session { config, work, status, reader, writer, stopped: HashMap::new() };
        session.patient(|patience| session.writer.init_transactions(patience))?;
        let topics: Vec<&str> = config.topics.iter().map(|topic| topic.from.as_str()).collect();
        session.reader.subscribe(&topics).map_err(|error| End::Anew(error.to_string()))?;
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
                    eprintln!("wattlock-bridge: transaction aborted, its records come again: {what}");
                }
                Err(end) => return Err(end),
            }
        }
        Ok(())
    }

    fn round(&mut self, stop: &AtomicBool) -> Result<(), End> {
        self.status.keys(self.work.keys_made);
        let Session { config, work, status, reader, writer, stopped } = self;
        let gathered = gather(config, work, reader, stopped, stop)?;
        if gathered.is_empty() {
            writer.poll(Duration::ZERO);
            return Ok(());
        }
        let round = Round { config, work, reader, writer };
        let outcome = match round.transaction(&gathered) {
            Ok(outcome) => outcome,
            Err(End::Abort(what)) => {
                abort(config, reader, writer, &gathered)?;
                return Err(End::Abort(what));
            }
            Err(end) => return Err(end),
        };
        status.committed(config, &outcome);
        for ((route, partition), done) in &outcome {
            let topic = &config.topics[*route].from;
            for (offset, reason, text) in &done.unreadable {
                status.unreadable(topic, *partition, *offset, reason, text, done.stopped.is_some());
            }
            if let Some(offset) = done.stopped {
                let mut one = TopicPartitionList::new();
                one.add_partition(topic, *partition);
                let sought = seek(reader, topic, *partition, offset).and_then(|()| reader.pause(&one));
                sought.map_err(|error| End::Anew(error.to_string()))?;
                stopped.insert((topic.clone(), *partition), Instant::now());
            }
        }
        Ok(())
    }

    /// Partitions that stopped are tried again: a key may have come.
    fn try_stopped(&mut self) -> Result<(), End> {
        let mut again = TopicPartitionList::new();
        self.stopped.retain(|(topic, partition), since| {
            let wait = since.elapsed() < AGAIN;
            if !wait {
                again.add_partition(topic, *partition);
            }
            wait
        });
        if again.count() == 0 {
            return Ok(());
        }
        self.reader.resume(&again).map_err(|error| End::Anew(error.to_string()))
    }

    fn patient(&self, ask: impl FnMut(Duration) -> KafkaResult<()>) -> Result<(), End> {
        patient(self.config, ask)
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
fn patient(config: &Config, mut ask: impl FnMut(Duration) -> KafkaResult<()>) -> Result<(), End> {
    let until = Instant::now() + 3 * config.transaction.timeout() + cluster::ASK;
    loop {
        match ask(Duration::from_secs(5)) {
            Ok(()) => return Ok(()),
            Err(KafkaError::Transaction(known)) => {
                let over = known.is_fatal() || known.txn_requires_abort() || !known.is_retriable();
                if over || Instant::now() > until {
                    return Err(End::Anew(format!("{}: {}", known.name(), known.string())));
                }
            }
            Err(error) => return Err(End::Anew(error.to_string())),
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
        KafkaError::MessageConsumptionFatal(code) => Err(End::Anew(code.to_string())),
        KafkaError::MessageConsumption(code) => match code {
            // The last only with auto.offset.reset = "error": its user wants to be told, and not read elsewhere.
            RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::GroupAuthorizationFailed
            | RDKafkaErrorCode::AutoOffsetReset => Err(End::Stop(anyhow::anyhow!("reading: {code}"))),
            RDKafkaErrorCode::UnknownTopicOrPartition => Err(End::Anew(code.to_string())),
            // Everything else is librdkafka's to get over.
            _ => Ok(()),
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
        writer.begin_transaction().map_err(|error| End::Anew(error.to_string()))?;
        let mut target = Target { writer, patience: config.transaction.timeout() };
        let (mut outcome, mut offsets) = (Vec::new(), TopicPartitionList::new());
        for (part, messages) in gathered {
            let records: Vec<Incoming<'_>> = messages.iter().map(incoming).collect();
            let topic = &config.topics[part.0].from;
            let share = Share { route: part.0, partition: part.1, records: &records };
            let done = work.run(share, &mut target).map_err(|trouble| match trouble {
                Trouble::Sink(end) => end,
                Trouble::Failed(error) => End::Abort(error.to_string()),
            });
            let done = match done {
                Err(End::Abort(what)) => {
                    // Keys or engines that fail do so again at once.
                    std::thread::sleep(Duration::from_millis(200));
                    return Err(End::Abort(what));
                }
                done => done?,
            };
            let after = messages.last().map_or(0, |message| message.offset() + 1);
            let next = Offset::Offset(done.stopped.unwrap_or(after));
            offsets
                .add_partition_offset(topic, part.1, next)
                .map_err(|error| End::Anew(error.to_string()))?;
            outcome.push((*part, done));
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
        sent.map_err(|error| End::Anew(error.to_string()))?;
        settle(config, writer)?;
        patient(config, |patience| writer.commit_transaction(patience))?;
        Ok(outcome)
    }
}

/// Waits until brokers have answered for every record of the transaction.
///
/// Without an answer a record may still be on its way, and would count to the producer's next transaction, in which it
/// stands once more. A new start has a new epoch, under which brokers refuse what comes late of the old one.
fn settle(config: &Config, writer: &BaseProducer<Writing>) -> Result<(), End> {
    if !cluster::drain(writer, config.transaction.timeout()) {
        return Err(End::Anew("brokers do not acknowledge".into()));
    }
    writer.poll(Duration::ZERO);
    match writer.context().take() {
        None => Ok(()),
        Some(KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge)) => Err(too_large()),
        Some(error) => Err(End::Anew(error.to_string())),
    }
}

fn too_large() -> End {
    End::Stop(anyhow::anyhow!(
        "a record is larger than its topic takes: raise max.message.bytes and message.max.bytes"
    ))
}

/// Gives a transaction up, and goes back to where it began.
fn abort(
    config: &Config,
    reader: &BaseConsumer<Reading>,
    writer: &BaseProducer<Writing>,
    gathered: &BTreeMap<Part, Vec<BorrowedMessage<'_>>>,
) -> Result<(), End> {
    settle(config, writer)?;
    patient(config, |patience| writer.abort_transaction(patience))?;
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
    writer: &'a BaseProducer<Writing>,
    patience: Duration,
}

impl Sink for Target<'_> {
    type Error = End;

    fn put(&mut self, topic: &str, partition: i32, record: &Outgoing<'_>) -> Result<(), End> {
        let mut out: BaseRecord<'_, [u8], [u8], ()> = BaseRecord::to(topic).timestamp(record.time);
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
            out = match self.writer.send(out) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) if alone => {
                    return Err(End::Stop(anyhow::anyhow!(
                        "a record is larger than half the window, which is for writing: raise window"
                    )));
                }
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), out))
                    if Instant::now() < until =>
                {
                    self.writer.poll(Duration::from_millis(5));
                    // Then there is all the room that there can be.
                    alone = self.writer.in_flight_count() == 0;
                    out
                }
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge), _)) => {
                    return Err(too_large());
                }
                Err((error, _)) => return Err(End::Abort(format!("writing: {error}"))),
            };
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
    stop: &AtomicBool,
) -> Result<()> {
    let mut pause = Duration::from_millis(100);
    while !stop.load(Ordering::SeqCst) {
        let began = Instant::now();
        let ended = Session::new(config, instance, work, status).and_then(|mut session| session.run(stop));
        let what = match ended {
            Ok(()) => return Ok(()),
            Err(End::Stop(error)) => return Err(error).context("the bridge stops"),
            Err(End::Anew(what) | End::Abort(what)) => what,
        };
        status.restarted();
        eprintln!("wattlock-bridge: beginning anew from the committed offsets: {what}");
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
    fn an_offset_that_is_gone_ends_the_bridge() {
        let read = |code| reading(KafkaError::MessageConsumption(code));
        assert!(matches!(read(RDKafkaErrorCode::AutoOffsetReset), Err(End::Stop(_))));
        assert!(read(RDKafkaErrorCode::BrokerTransportFailure).is_ok());
    }

    #[test]
    fn a_record_that_no_waiting_makes_room_for_ends_the_bridge() {
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", "127.0.0.1:9").set("queue.buffering.max.kbytes", "64");
        let writer: BaseProducer<Writing> = settings.create_with_context(Writing::default()).unwrap();
        let mut target = Target { writer: &writer, patience: Duration::from_secs(60) };
        let mut put = |len| {
            let value = vec![0; len];
            target.put("t", 0, &Outgoing { key: None, value: Some(&value), time: 1, headers: &[] })
        };
        let said = match put(65 << 10) {
            Err(End::Stop(error)) => error.to_string(),
            _ => String::new(),
        };
        assert!(said.contains("raise window"), "{said}");
        assert!(put(63 << 10).is_ok());
    }
}
