//! Clients of the cluster, and what it says of topics.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, ConsumerGroupMetadata, Rebalance};
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, NoCustomPartitioner, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;

use crate::config::Config;

/// How long a question about the cluster may take.
pub const ASK: Duration = Duration::from_secs(20);

/// Settings for any client.
pub fn settings(config: &Config) -> ClientConfig {
    let mut settings = ClientConfig::new();
    for (name, value) in &config.kafka {
        settings.set(name, value.to_string());
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
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if last.is_none_or(|last| last.elapsed() >= Duration::from_secs(5)) {
            *last = Some(Instant::now());
            eprintln!("wattlock-bridge: {}", what.replace(char::is_control, " "));
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

impl Refused {
    /// The process exit code.
    pub fn exit_code(&self) -> u8 {
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
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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

/// Waits for a broker that answers. librdkafka would try again for ever, and say so only in its log.
///
/// # Errors
/// [`Refused`] if none answers and one was heard to refuse; else that nothing answers.
pub fn reach(config: &Config) -> Result<()> {
    use rdkafka::producer::Producer;
    let mut settings = settings(config);
    settings.set_log_level(RDKafkaLogLevel::Info);
    let client: BaseProducer<Ear> = settings.create_with_context(Ear::default()).context("[kafka]")?;
    // A short while first, since a refusal comes within it; a broker far away needs the long one.
    let mut failed = None;
    for patience in [ASK / 10, ASK] {
        match client.client().fetch_metadata(None, patience) {
            Ok(_) => return Ok(()),
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

/// A reading client's ear: which partitions come and go.
#[derive(Default)]
pub struct Reading {
    voice: Voice,
    changed: AtomicBool,
    revoked: Mutex<Vec<(String, i32)>>,
    group: Mutex<Option<ConsumerGroupMetadata>>,
}

impl Reading {
    /// Calls `with` with the membership under which the assignment was given. librdkafka's own answer is of now: after a
    /// session that timed out it has no member's name, with which brokers take offsets from anybody.
    pub fn member<T>(&self, with: impl FnOnce(&ConsumerGroupMetadata) -> T) -> Option<T> {
        self.group.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).as_ref().map(with)
    }

    /// Whether the assignment changed since the last time it was asked, and what was taken away meanwhile.
    pub fn take(&self) -> Option<Vec<(String, i32)>> {
        let changed = self.changed.swap(false, Ordering::SeqCst);
        changed.then(|| {
            std::mem::take(&mut *self.revoked.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
        })
    }
}

impl ClientContext for Reading {
    fn log(&self, level: RDKafkaLogLevel, _: &str, message: &str) {
        self.voice.log(level, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.voice.say(&format!("{error}: {reason}"));
    }
}

impl ConsumerContext for Reading {
    fn pre_rebalance(&self, _: &BaseConsumer<Reading>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(partitions) = rebalance {
            let mut revoked = self.revoked.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let all = partitions.elements();
            revoked.extend(all.iter().map(|one| (one.topic().to_owned(), one.partition())));
        }
        self.changed.store(true, Ordering::SeqCst);
    }

    fn post_rebalance(&self, reader: &BaseConsumer<Reading>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(_) = rebalance {
            *self.group.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = reader.group_metadata();
        }
    }
}

/// A writing client's ear: the first record that could not be delivered.
#[derive(Default)]
pub struct Writing {
    voice: Voice,
    failed: Mutex<Option<KafkaError>>,
}

impl Writing {
    /// Why a record was not delivered since the last time it was asked.
    pub fn take(&self) -> Option<KafkaError> {
        self.failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
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
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result {
            let mut failed = self.failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            failed.get_or_insert_with(|| error.clone());
        }
    }
}

/// Waits until everything that was written is delivered or given up; whether it was in time.
pub fn drain(producer: &BaseProducer<Writing>, patience: Duration) -> bool {
    use rdkafka::producer::Producer;
    let until = Instant::now() + patience;
    while producer.in_flight_count() > 0 {
        if Instant::now() > until {
            return false;
        }
        producer.poll(Duration::from_millis(1));
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
        }))
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
            let (from, to) = (known(&topic.from)?, known(&topic.to)?);
            if from.partitions != to.partitions {
                let (one, other) = (from.partitions, to.partitions);
                bail!("topics {} and {}: {one} partitions and {other}", topic.from, topic.to);
            }
            if let Some(dead) = &topic.dead_letter {
                known(dead)?;
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
    fn a_topic_that_is_compacted_and_deletes_does_both() {
        assert_eq!(cleanup("compact"), (true, false));
        assert_eq!(cleanup("delete"), (false, true));
        assert_eq!(cleanup("compact,delete"), (true, true));
        assert_eq!(cleanup("delete, compact"), (true, true));
        assert_eq!(cleanup(""), (false, false));
    }
}
