//! The bridge's configuration file: TOML, every name known, every mistake told with its place.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use wattlock_stream::record::{BATCH_MAX, StreamId};
use wattlock_stream::trust::SignerName;

/// The file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The consumer group: its members share the partitions.
    pub group: String,
    /// This member's name, unique in the group and the same after a restart, so that what a killed predecessor left
    /// open is settled at once, and its partitions are. Without one a name is drawn.
    pub instance: Option<String>,
    /// librdkafka's settings, for reading and writing: brokers, TLS, SASL and whatever else.
    #[serde(deserialize_with = "settings")]
    pub kafka: BTreeMap<String, String>,
    /// Where keys are, for whom, and whose are taken.
    pub keys: Option<Keys>,
    /// What a transaction takes.
    #[serde(default)]
    pub transaction: Transaction,
    /// What is held in memory of records on their way, in bytes.
    #[serde(default = "window")]
    pub window: usize,
    /// Where counters are served: a path, for a socket of this user's, or an address of this machine's own
    /// (`127.0.0.1:9193`).
    pub status: Option<String>,
    /// Whether `status` may be an address that other machines reach.
    #[serde(default)]
    pub status_public: bool,
    /// What follows if records of a source are gone before they were read.
    #[serde(default)]
    pub on_gap: OnGap,
    /// What is copied.
    #[serde(rename = "topic")]
    pub topics: Vec<Topic>,
}

fn window() -> usize {
    64 << 20
}

/// librdkafka's settings, however TOML writes a value. Serde's own message for a value of another kind names no setting.
fn settings<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    let table = toml::Table::deserialize(from)?;
    let one = |(name, value): (String, toml::Value)| match value {
        toml::Value::String(text) => Ok((name, text)),
        toml::Value::Integer(number) => Ok((name, number.to_string())),
        toml::Value::Float(number) => Ok((name, number.to_string())),
        toml::Value::Boolean(flag) => Ok((name, flag.to_string())),
        other => Err(serde::de::Error::custom(not_a_setting(&name, &other))),
    };
    table.into_iter().map(one).collect()
}

/// What is wrong with a value of `[kafka]`, and how it is written.
fn not_a_setting(name: &str, value: &toml::Value) -> String {
    match value {
        // An unquoted name with dots makes tables.
        toml::Value::Table(table) if !table.is_empty() => {
            let (mut name, mut value) = (name.to_owned(), value);
            while let Some((first, inner)) = value.as_table().and_then(|table| table.iter().next()) {
                name = format!("{name}.{first}");
                value = inner;
            }
            let secret =
                ["password", "secret", "token", "pem", "jaas"].iter().any(|word| name.contains(word));
            let example = match value {
                _ if secret => "\"...\"".to_owned(),
                toml::Value::Array(all) => listed(all),
                value => value.to_string(),
            };
            format!("kafka: {name}: the name needs quotes, since it has a dot: \"{name}\" = {example}")
        }
        toml::Value::Array(all) => format!(
            "kafka: {name}: one text is expected, with commas between several: \"{name}\" = {}",
            listed(all)
        ),
        _ => format!("kafka: {name}: a text, a number, true or false is expected: \"{name}\" = \"...\""),
    }
}

/// The elements of a list as one text, in the form of TOML.
fn listed(all: &[toml::Value]) -> String {
    let text = |one: &toml::Value| one.as_str().map_or_else(|| one.to_string(), str::to_owned);
    toml::Value::String(all.iter().map(text).collect::<Vec<_>>().join(",")).to_string()
}

/// What follows if records of a source are gone before they were read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnGap {
    /// They are told and counted, and reading goes on behind them.
    #[default]
    GoOn,
    /// The bridge ends in front of them.
    Stop,
}

/// Where reading begins without a committed offset, or with one that is gone: librdkafka's `auto.offset.reset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// At the first record.
    Earliest,
    /// Behind the last.
    Latest,
    /// Nowhere: the bridge ends.
    Error,
}

/// Letters of `group.instance.id` that brokers take.
fn is_instance(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..250).contains(&name.len()) && name.bytes().all(letter) && name != "." && name != ".."
}

/// Where keys are, for whom, and whose are taken.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    /// A compacted topic.
    pub topic: Option<String>,
    /// A folder.
    pub folder: Option<PathBuf>,
    /// The readers of what is sealed.
    #[serde(default)]
    pub recipients: Vec<String>,
    /// Files of recipients.
    #[serde(default)]
    pub recipients_files: Vec<PathBuf>,
    /// Files of identities; opening needs one.
    #[serde(default)]
    pub identities: Vec<PathBuf>,
    /// The file that signs new keys.
    pub sign: Option<PathBuf>,
    /// Signers: with any, no other key is taken.
    #[serde(default)]
    pub trust: Vec<String>,
    /// A new key after this many seconds.
    #[serde(default = "new_after_seconds")]
    pub new_after_seconds: u64,
    /// A new key after this many bytes of values.
    #[serde(default = "new_after_bytes")]
    pub new_after_bytes: u64,
}

fn new_after_seconds() -> u64 {
    3600
}

fn new_after_bytes() -> u64 {
    64 << 30
}

/// What a transaction takes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Transaction {
    /// It ends after this many bytes of keys, values and headers.
    pub bytes: usize,
    /// It ends after this many records.
    pub records: usize,
    /// It ends this long after its first record was read, in milliseconds.
    pub hold_ms: u64,
    /// Brokers give one up after this long, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for Transaction {
    fn default() -> Transaction {
        Transaction { bytes: 8 << 20, records: 65_536, hold_ms: 50, timeout_ms: 10_000 }
    }
}

impl Transaction {
    /// How long records are gathered.
    pub fn hold(&self) -> Duration {
        Duration::from_millis(self.hold_ms)
    }

    /// How long brokers wait for its end.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

/// What becomes of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// They are sealed.
    Seal,
    /// They are opened.
    Open,
    /// They are copied as they are.
    Copy,
}

/// How record keys stand on the sealed topic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordKeys {
    /// As they are.
    #[default]
    Clear,
    /// Under AES-SIV: equal ones stay equal.
    Deterministic,
}

/// What becomes of a record that does not open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unreadable {
    /// Its partition stops in front of it.
    #[default]
    Stop,
    /// It is left out and counted.
    Skip,
    /// It goes to another topic as it is, and is counted.
    DeadLetter,
}

/// A topic to copy.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topic {
    /// The topic that is read.
    pub from: String,
    /// The topic that is written; it has as many partitions.
    pub to: String,
    /// What becomes of records.
    #[serde(rename = "do")]
    pub task: Task,
    /// The topic's name that is bound, if a sealed topic was renamed or mirrored; otherwise the sealed topic's own.
    pub bound: Option<String>,
    /// How record keys stand on the sealed topic.
    #[serde(default)]
    pub record_keys: RecordKeys,
    /// The stream key under which they are hidden. It never changes while the topic lives.
    pub record_keys_under: Option<String>,
    /// Headers that stay as they are.
    #[serde(default)]
    pub clear_headers: Vec<String>,
    /// Whether values are compressed before they are sealed.
    #[serde(default)]
    pub compress: bool,
    /// What an opened value may take.
    #[serde(default = "value_max")]
    pub value_max: usize,
    /// What becomes of a record that does not open.
    #[serde(default)]
    pub unreadable: Unreadable,
    /// Where it goes with `dead-letter`.
    pub dead_letter: Option<String>,
}

fn value_max() -> usize {
    wattlock_stream::record::VALUE_MAX
}

impl Topic {
    /// The name under which records are bound.
    pub fn bound(&self) -> &str {
        let sealed = if self.task == Task::Open { &self.from } else { &self.to };
        self.bound.as_deref().unwrap_or(sealed)
    }

    /// The name of the stream key under which record keys are hidden.
    pub fn names_key(&self) -> Result<Option<StreamId>> {
        match (self.record_keys, &self.record_keys_under) {
            (RecordKeys::Clear, None) => Ok(None),
            (RecordKeys::Clear, Some(_)) => {
                bail!("record_keys_under without record_keys = \"deterministic\"")
            }
            (RecordKeys::Deterministic, None) => {
                bail!("record_keys = \"deterministic\" needs record_keys_under, a key's name")
            }
            (RecordKeys::Deterministic, Some(id)) => match id.parse() {
                Ok(id) => Ok(Some(id)),
                Err(what) => bail!("record_keys_under: {what}"),
            },
        }
    }
}

/// Settings that the bridge gives librdkafka itself: another value would break what it promises.
const OURS: &[&str] = &[
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "isolation.level",
    "transactional.id",
    "enable.idempotence",
    "acks",
    "request.required.acks",
    "transaction.timeout.ms",
    "enable.partition.eof",
    "group.protocol",
];

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it, and where. Paths in it are relative to its folder.
    pub fn read(path: &Path) -> Result<Config> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let mut config = Config::parse(&text).with_context(|| path.display().to_string())?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        if let Some(keys) = &mut config.keys {
            let lists = keys.recipients_files.iter_mut().chain(&mut keys.identities);
            for file in lists.chain(&mut keys.folder).chain(&mut keys.sign) {
                *file = folder.join(&*file);
            }
        }
        if let Some(path) = config.status.as_mut().filter(|address| address.contains('/')) {
            *path = folder.join(&*path).to_str().context("status: the path is no text")?.to_owned();
        }
        Ok(config)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(text: &str) -> Result<Config> {
        let config: Config = toml::from_str(text)?;
        config.validate()?;
        Ok(config)
    }

    fn validate(&self) -> Result<()> {
        if self.group.is_empty() {
            bail!("group: a name");
        }
        self.named()?;
        self.reset()?;
        if let Some(name) = self.kafka.keys().find(|name| OURS.contains(&name.as_str())) {
            bail!("kafka: {name} is set by the bridge");
        }
        if !self.kafka.contains_key("bootstrap.servers") {
            bail!("kafka: bootstrap.servers is missing");
        }
        if self.topics.is_empty() {
            bail!("topic: at least one");
        }
        if self.transaction.bytes == 0 || self.transaction.records == 0 || self.transaction.timeout_ms < 1000
        {
            bail!("transaction: bytes and records above 0, timeout_ms at least 1000");
        }
        if self.transaction.records > BATCH_MAX {
            bail!("transaction: records at most {BATCH_MAX}");
        }
        if self.transaction.bytes > self.window || self.window > 1 << 31 {
            bail!("window: at least transaction.bytes, at most 2147483648");
        }
        let mut sources = HashSet::new();
        for topic in &self.topics {
            if !sources.insert(&topic.from) {
                bail!("topic {}: read twice", topic.from);
            }
            self.validate_topic(topic).with_context(|| format!("topic {}", topic.from))?;
        }
        let keys = self.keys.as_ref().and_then(|keys| keys.topic.as_ref());
        for topic in &self.topics {
            for to in [&topic.to].into_iter().chain(&topic.dead_letter) {
                if sources.contains(to) {
                    bail!("topic {to}: read and written");
                }
                if keys == Some(to) {
                    bail!("topic {to}: for keys and for records");
                }
            }
        }
        let targets: HashSet<_> = self.topics.iter().map(|topic| &topic.to).collect();
        if let Some(dead) = self
            .topics
            .iter()
            .filter_map(|topic| topic.dead_letter.as_ref())
            .find(|dead| targets.contains(dead))
        {
            bail!("topic {dead}: for records that do not open and for others");
        }
        self.trusted().map(|_| ())
    }

    /// Whether this member's name is one that brokers take.
    ///
    /// # Errors
    /// It is none.
    pub fn named(&self) -> Result<()> {
        match &self.instance {
            Some(name) if !is_instance(name) => {
                bail!(
                    "instance: \"{name}\": 1 to 249 letters, digits, dots, underscores and hyphens are expected"
                )
            }
            _ => Ok(()),
        }
    }

    /// Where reading begins without an offset.
    ///
    /// # Errors
    /// A word that librdkafka does not know.
    pub fn reset(&self) -> Result<Reset> {
        match self.kafka.get("auto.offset.reset").map(String::as_str) {
            None | Some("smallest" | "earliest" | "beginning") => Ok(Reset::Earliest),
            Some("largest" | "latest" | "end") => Ok(Reset::Latest),
            Some("error") => Ok(Reset::Error),
            Some(other) => {
                bail!("kafka: auto.offset.reset: \"{other}\": earliest, latest or error is expected")
            }
        }
    }

    fn validate_topic(&self, topic: &Topic) -> Result<()> {
        let keys = self.keys.as_ref();
        if topic.task != Task::Copy && keys.is_none() {
            bail!("there is no [keys]");
        }
        if let Some(keys) = keys
            && keys.topic.is_some() == keys.folder.is_some()
        {
            bail!("[keys] has either topic or folder");
        }
        let names = topic.names_key()?;
        let opens = topic.task == Task::Open || names.is_some();
        if opens && keys.is_some_and(|keys| keys.identities.is_empty()) {
            bail!("[keys] needs identities to open, and for deterministic record keys");
        }
        let to = keys.is_some_and(|keys| !keys.recipients.is_empty() || !keys.recipients_files.is_empty());
        if topic.task == Task::Seal && !to {
            bail!("[keys] needs recipients or recipients_files to seal");
        }
        if (topic.unreadable == Unreadable::DeadLetter) != topic.dead_letter.is_some() {
            bail!("unreadable = \"dead-letter\" and dead_letter = TOPIC belong together");
        }
        if topic.task != Task::Open && topic.unreadable != Unreadable::Stop {
            bail!("unreadable is for topics that are opened");
        }
        if topic.task != Task::Seal && (topic.compress || !topic.clear_headers.is_empty()) {
            bail!("compress and clear_headers are for topics that are sealed");
        }
        if topic.task == Task::Copy && (names.is_some() || topic.bound.is_some()) {
            bail!("record_keys and bound are not for topics that are copied as they are");
        }
        Ok(())
    }

    /// Signers whose keys are taken; nothing if everybody's are.
    ///
    /// # Errors
    /// A name that is none.
    pub fn trusted(&self) -> Result<Option<Vec<SignerName>>> {
        let Some(keys) = self.keys.as_ref().filter(|keys| !keys.trust.is_empty()) else { return Ok(None) };
        let name = |text: &String| text.parse().map_err(|what| anyhow::anyhow!("trust: {what}"));
        keys.trust.iter().map(name).collect::<Result<_>>().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        group = "g"
        [kafka]
        "bootstrap.servers" = "127.0.0.1:9092"
        "socket.keepalive.enable" = true
        [keys]
        topic = "wattlock-keys"
        recipients = ["age1..."]
        [[topic]]
        from = "a"
        to = "b"
        do = "seal"
    "#;

    #[test]
    fn a_file_is_read_and_each_mistake_is_named() {
        let config = Config::parse(GOOD).expect("it is good");
        assert_eq!((config.topics[0].bound(), config.window), ("b", 64 << 20));
        for (from, to, said) in [
            ("group = \"g\"", "grou = \"g\"", "grou"),
            ("do = \"seal\"", "do = \"open\"", "identities"),
            ("recipients = [\"age1...\"]", "", "recipients"),
            ("topic = \"wattlock-keys\"", "", "either topic or folder"),
            ("to = \"b\"", "to = \"a\"", "read and written"),
            ("to = \"b\"", "to = \"wattlock-keys\"", "for keys and"),
            ("do = \"seal\"", "do = \"seal\"\nunreadable = \"skip\"", "unreadable"),
            ("do = \"seal\"", "do = \"seal\"\nrecord_keys = \"deterministic\"", "record_keys_under"),
            ("\"socket.keepalive.enable\" = true", "acks = 1", "set by the bridge"),
            ("\"socket.keepalive.enable\" = true", "\"group.protocol\" = \"consumer\"", "set by the bridge"),
            ("recipients =", "trust = [\"me\"]\nrecipients =", "trust"),
            ("group = \"g\"", "group = \"g\"\nwindow = 1000", "window"),
            ("group = \"g\"", "group = \"g\"\ntransaction = { records = 2097153 }", "at most 2097152"),
            ("group = \"g\"", "group = \"g\"\ninstance = \"a b\"", "instance: \"a b\""),
            ("group = \"g\"", "group = \"g\"\non_gap = \"ignore\"", "on_gap"),
            ("\"socket.keepalive.enable\" = true", "\"auto.offset.reset\" = \"first\"", "auto.offset.reset"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = Config::parse(&GOOD.replacen(from, to, 1)).expect_err(to);
            assert!(format!("{error:#}").contains(said), "{error:#}");
        }
    }

    #[test]
    fn a_value_of_kafka_that_is_none_is_named_with_an_example() {
        let quoted = "\"bootstrap.servers\" = \"127.0.0.1:9092\"";
        for (line, said) in [
            ("bootstrap.servers = \"k:9092\"", "\"bootstrap.servers\" = \"k:9092\""),
            ("bootstrap.servers = [\"k1:9\", \"k2:9\"]", "\"bootstrap.servers\" = \"k1:9,k2:9\""),
            ("\"bootstrap.servers\" = [\"k1:9\", \"k2:9\"]", "\"bootstrap.servers\" = \"k1:9,k2:9\""),
            ("sasl.password = \"hidden\"", "\"sasl.password\" = \"...\""),
            ("reconnect.backoff.max.ms = 500", "\"reconnect.backoff.max.ms\" = 500"),
            ("acks = 1979-05-27", "\"acks\" = \"...\""),
        ] {
            let error = format!("{:#}", Config::parse(&GOOD.replace(quoted, line)).expect_err(line));
            assert!(
                error.contains(said) && error.contains("kafka: ") && !error.contains("untagged"),
                "{error}"
            );
            assert!(!error.contains("hidden"), "{error}");
        }
        let floating = Config::parse(&GOOD.replace(quoted, &format!("{quoted}\n\"statistics\" = 1.5")));
        assert_eq!(floating.expect("a number").kafka["statistics"], "1.5");
    }

    #[test]
    fn letters_go_to_a_topic_of_their_own() {
        let letters = |dead: &str| {
            let text = GOOD.replace("recipients = [\"age1...\"]", "identities = [\"key.txt\"]");
            let open = format!("do = \"open\"\nunreadable = \"dead-letter\"\ndead_letter = \"{dead}\"");
            let other = "[[topic]]\nfrom = \"c\"\nto = \"d\"\ndo = \"open\"\n";
            Config::parse(&(text.replace("do = \"seal\"", &open) + other))
        };
        assert!(letters("letters").is_ok());
        for wrong in ["a", "b", "c", "d", "wattlock-keys"] {
            assert!(letters(wrong).is_err(), "{wrong}");
        }
    }
}
