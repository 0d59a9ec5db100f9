//! A broker, a bridge, and plain clients beside it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Headers, Message, OwnedHeaders, Timestamp};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use wattlock_files::age;
use wattlock_files::age::secrecy::ExposeSecret;

/// Where a thing that must happen has not happened: a limit for hanging, not a measure.
const LONG: Duration = Duration::from_secs(300);

/// Small numbers that repeat: which record, when to kill.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// One node, which ends with this.
pub struct Broker {
    pub dir: tempfile::TempDir,
    pub port: u16,
}

fn script(arguments: &[&str]) -> std::process::Output {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/setup/kafka.sh");
    Command::new("bash").arg(script).args(arguments).output().unwrap()
}

impl Broker {
    /// A node, or why there is none.
    pub fn start() -> Result<Broker, String> {
        let jars = script(&["jars"]);
        if !jars.status.success() {
            return Err(String::from_utf8_lossy(&jars.stderr).trim().to_owned());
        }
        // Six ports in a row that are free now.
        let free = |port: &u16| (0..6).all(|n| std::net::TcpListener::bind(("127.0.0.1", port + n)).is_ok());
        let first = 20_000 + (std::process::id() % 1300) as u16 * 6;
        let port = (first..first + 3000).step_by(6).find(free).unwrap();
        let broker = Broker { dir: tempfile::tempdir().unwrap(), port };
        broker.again();
        Ok(broker)
    }

    fn path(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    /// Starts it again after [`Broker::kill`].
    pub fn again(&self) {
        let started = script(&["start", self.path(), &self.port.to_string()]);
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    }

    /// kill -9.
    pub fn kill(&self) {
        assert!(script(&["kill", self.path()]).status.success());
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn settings(&self) -> ClientConfig {
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", self.address());
        settings
    }

    pub fn topic(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let admin: AdminClient<DefaultClientContext> = self.settings().create().unwrap();
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        for (key, value) in settings {
            topic = topic.set(key, value);
        }
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(60)));
        let made = futures_executor::block_on(admin.create_topics([&topic], &options)).unwrap();
        assert!(made[0].is_ok(), "{made:?}");
    }

    pub fn delete_topic(&self, name: &str) {
        let admin: AdminClient<DefaultClientContext> = self.settings().create().unwrap();
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(60)));
        let gone = futures_executor::block_on(admin.delete_topics(&[name], &options)).unwrap();
        assert!(gone[0].is_ok(), "{gone:?}");
    }

    /// What retention does.
    pub fn delete_records(&self, topic: &str, partition: i32, before: i64) {
        let admin: AdminClient<DefaultClientContext> = self.settings().create().unwrap();
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(60)));
        let mut upto = TopicPartitionList::new();
        upto.add_partition_offset(topic, partition, Offset::Offset(before)).unwrap();
        futures_executor::block_on(admin.delete_records(&upto, &options)).unwrap();
    }

    pub fn partitions(&self, topic: &str, count: usize) {
        let admin: AdminClient<DefaultClientContext> = self.settings().create().unwrap();
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(60)));
        let new = rdkafka::admin::NewPartitions::new(topic, count);
        let made = futures_executor::block_on(admin.create_partitions(&[new], &options)).unwrap();
        assert!(made[0].is_ok(), "{made:?}");
    }

    pub fn writer(&self) -> BaseProducer {
        self.settings()
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", "300000")
            .create()
            .unwrap()
    }

    /// Everything committed of a topic, partition by partition.
    pub fn read(&self, topic: &str, partitions: i32) -> Vec<Vec<Rec>> {
        let reader: BaseConsumer = self
            .settings()
            .set("group.id", "test-reader")
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .set("isolation.level", "read_committed")
            .set("auto.offset.reset", "earliest")
            .create()
            .unwrap();
        let mut all = TopicPartitionList::new();
        for partition in 0..partitions {
            all.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
        }
        reader.assign(&all).unwrap();
        let (mut read, mut ended) = (vec![Vec::new(); partitions as usize], vec![false; partitions as usize]);
        let until = Instant::now() + LONG;
        while ended.contains(&false) {
            assert!(Instant::now() < until, "{topic} does not end");
            match reader.poll(Duration::from_millis(100)) {
                Some(Ok(message)) => read[message.partition() as usize].push(Rec::of(&message)),
                Some(Err(KafkaError::PartitionEOF(partition))) => ended[partition as usize] = true,
                _ => {}
            }
        }
        read
    }

    /// Reads a topic until it has so many records.
    pub fn read_until(&self, topic: &str, partitions: i32, count: usize) -> Vec<Vec<Rec>> {
        let until = Instant::now() + LONG;
        loop {
            let read = self.read(topic, partitions);
            let have: usize = read.iter().map(Vec::len).sum();
            if have >= count {
                return read;
            }
            assert!(Instant::now() < until, "{topic} has {have} records of {count}");
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// Whether any log segment of a topic has these bytes.
    pub fn segments_have(&self, topic: &str, bytes: &[u8]) -> bool {
        let (mut found, mut logs) = (false, 0);
        for folder in fs::read_dir(self.dir.path().join("data")).unwrap() {
            let folder = folder.unwrap().path();
            let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
            if name.rsplit_once('-').is_none_or(|(of, _)| of != topic) {
                continue;
            }
            for file in fs::read_dir(folder).unwrap() {
                let path = file.unwrap().path();
                if path.extension().is_some_and(|suffix| suffix == "log") {
                    logs += 1;
                    found |= fs::read(path).unwrap().windows(bytes.len()).any(|window| window == bytes);
                }
            }
        }
        assert!(logs > 0, "no segments of {topic}");
        found
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rec {
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub time: Option<i64>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Rec {
    pub fn new(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, time: i64) -> Rec {
        Rec { key: Some(key.into()), value: Some(value.into()), time: Some(time), headers: Vec::new() }
    }

    pub fn of(message: &impl Message) -> Rec {
        let headers = message.headers().map_or(Vec::new(), |headers| {
            headers.iter().map(|one| (one.key.to_owned(), one.value.map(<[u8]>::to_vec))).collect()
        });
        Rec {
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            time: if let Timestamp::CreateTime(time) = message.timestamp() { Some(time) } else { None },
            headers,
        }
    }
}

pub fn send(writer: &BaseProducer, topic: &str, partition: i32, record: &Rec) {
    let mut out: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(topic).partition(partition);
    (out.key, out.payload, out.timestamp) = (record.key.as_deref(), record.value.as_deref(), record.time);
    let headers = record
        .headers
        .iter()
        .fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: value.as_deref() }));
    out.headers = Some(headers).filter(|_| !record.headers.is_empty());
    let until = Instant::now() + LONG;
    loop {
        match writer.send(out) {
            Ok(()) => break,
            Err((error, back)) => {
                assert!(Instant::now() < until, "{error}");
                writer.poll(Duration::from_millis(50));
                out = back;
            }
        }
    }
    writer.poll(Duration::ZERO);
}

pub fn settle(writer: &BaseProducer) {
    writer.flush(LONG).unwrap();
}

/// Keys, configurations and bridges of a test.
pub struct Desk {
    pub dir: tempfile::TempDir,
    pub identity: age::x25519::Identity,
}

impl Desk {
    pub fn new() -> Desk {
        let desk = Desk { dir: tempfile::tempdir().unwrap(), identity: age::x25519::Identity::generate() };
        fs::write(desk.path("key.txt"), desk.identity.to_string().expose_secret()).unwrap();
        desk
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A configuration: the group, then `[keys]`' further lines, then topics.
    pub fn config(&self, name: &str, address: &str, keys: &str, topics: &str) -> PathBuf {
        let recipient = self.identity.to_public();
        let opens = topics.contains("\"open\"") || topics.contains("deterministic");
        let identities = if opens { "identities = [\"key.txt\"]" } else { "" };
        let text = format!(
            "group = \"{name}\"\ntransaction = {{ timeout_ms = 5000 }}\nwindow = 16777216\n[kafka]\n\
             \"bootstrap.servers\" = \"{address}\"\n\"session.timeout.ms\" = 6000\n\
             \"heartbeat.interval.ms\" = 500\n\"reconnect.backoff.max.ms\" = 500\n[keys]\n\
             recipients = [\"{recipient}\"]\n{identities}\n{keys}\n{topics}\n"
        );
        let path = self.path(&format!("{name}.toml"));
        fs::write(&path, text).unwrap();
        path
    }
}

/// Waits until a file has a text, and returns the file.
pub fn said(log: &Path, what: &str) -> String {
    let until = Instant::now() + LONG;
    loop {
        let text = fs::read_to_string(log).unwrap_or_default();
        if text.contains(what) {
            return text;
        }
        assert!(Instant::now() < until, "{what}: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What a bridge is told to do with a topic.
pub fn topic(from: &str, to: &str, task: &str, more: &str) -> String {
    format!("[[topic]]\nfrom = \"{from}\"\nto = \"{to}\"\ndo = \"{task}\"\n{more}\n")
}

pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_wattlock-bridge"))
}

/// A running bridge, which is killed with this.
pub struct Bridge(pub Option<Child>);

impl Bridge {
    pub fn start(config: &Path, instance: &str) -> Bridge {
        let mut command = program();
        command.arg("--config").arg(config).args(["--instance", instance, "--json"]);
        Bridge(Some(command.stdout(Stdio::piped()).spawn().unwrap()))
    }

    /// With standard error in a file.
    pub fn telling(config: &Path, instance: Option<&str>, log: &Path) -> Bridge {
        let mut command = program();
        command.arg("--config").arg(config).arg("--json").stdout(Stdio::piped());
        if let Some(instance) = instance {
            command.args(["--instance", instance]);
        }
        Bridge(Some(command.stderr(fs::File::create(log).unwrap()).spawn().unwrap()))
    }

    /// The exit code of a bridge that ends by itself.
    pub fn ends(&mut self) -> Option<i32> {
        let (mut child, until) = (self.0.take().unwrap(), Instant::now() + LONG);
        loop {
            match child.try_wait().unwrap() {
                Some(status) => return status.code(),
                None if Instant::now() > until => {
                    child.kill().unwrap();
                    panic!("the bridge does not end");
                }
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    pub fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// SIGTERM, and the counters.
    pub fn stop(&mut self) -> serde_json::Value {
        self.stop_by("-TERM")
    }

    /// A signal, and the counters.
    pub fn stop_by(&mut self, signal: &str) -> serde_json::Value {
        self.signal(signal);
        let child = self.0.take().unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{:?}", output.status);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The most memory it ever had, in bytes.
    pub fn peak(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Processor time so far, in seconds.
    pub fn seconds(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        ticks as f64 / 100.0
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.kill();
    }
}
