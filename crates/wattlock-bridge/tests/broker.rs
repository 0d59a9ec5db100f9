//! The bridge against a real broker, output compared record by record.
//!
//! A program of its own, since all cases share one broker that ends with them. Its arguments are names of cases;
//! without any, all run. `WATTLOCK_KILLS` is how often things are killed (3).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use rdkafka::producer::Producer;
use wattlock_stream::keys::{Folder, Keys};
use wattlock_stream::record::{Place, Record, RecordSealer};

const SECRET: &str = "plain words that no broker may see";

type Case = fn(&Broker);

const CASES: &[(&str, Case)] = &[
    ("what_was_sealed_opens_record_by_record_and_no_segment_has_it", everything),
    ("hidden_keys_open_again_and_equal_ones_stay_equal", hidden_keys),
    ("a_bad_record_is_never_delivered_and_is_counted", bad_records),
    ("a_partition_stops_in_front_of_a_bad_record_and_others_go_on", stops),
    ("a_stopped_partition_that_was_taken_away_and_comes_back_goes_on", comes_back),
    ("an_untrusted_key_is_not_taken", untrusted),
    ("kills_lose_nothing_and_repeat_nothing", kills),
    ("members_that_join_and_leave_lose_nothing_and_repeat_nothing", members),
    ("a_network_that_delays_cuts_and_half_closes_loses_nothing", network),
    ("a_write_that_comes_after_its_transaction_counts_in_no_other", late),
    ("memory_stays_within_the_window", memory),
    ("a_configuration_is_checked_against_the_brokers", checked),
    ("brokers_are_reached_by_tls_and_sasl_and_a_refusal_is_one_line", logins),
    ("rewrapped_and_shredded_keys_have_their_effect", rewrapped),
    ("a_log_that_cannot_be_written_ends_nothing", logs),
    ("nothing_is_sealed_under_a_key_that_was_shredded", shredded),
    ("a_sealer_waits_for_a_topic_of_keys_that_is_gone_and_says_so", keys_gone),
    ("a_gap_of_a_source_is_told_and_counted_or_ends_the_bridge", gaps),
    ("a_record_that_its_topic_refuses_stops_its_partition_and_is_named", refused),
    ("a_record_that_is_too_large_is_named_and_small_ones_are_none_together", too_large),
    ("a_partition_that_the_target_lacks_is_named_and_goes_on_when_it_is_there", lacking),
    ("what_brokers_refuse_for_good_ends_start_and_check_with_its_setting", settings_refused),
    ("a_named_member_goes_on_after_a_kill_and_leaves_at_a_signal", named),
];

/// Run by name only: it prints figures.
const MORE: &[(&str, Case)] = &[("figures", figures)];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let named = |name: &str| wanted.iter().any(|part| name.contains(part.as_str()));
    let cases = CASES.iter().filter(|(name, _)| wanted.is_empty() || named(name));
    let cases: Vec<_> = cases.chain(MORE.iter().filter(|(name, _)| named(name))).collect();
    println!("\nrunning {} tests", cases.len());
    let broker = match Broker::start() {
        Ok(broker) => broker,
        Err(why) => {
            cases.iter().for_each(|(name, _)| println!("test {name} ... ignored, skipped: {why}"));
            println!("\ntest result: ok. 0 passed; 0 failed; {} ignored", cases.len());
            return;
        }
    };
    let mut failed = 0;
    for (name, case) in &cases {
        let good = catch_unwind(AssertUnwindSafe(|| case(&broker))).is_ok();
        println!("test {name} ... {}", if good { "ok" } else { "FAILED" });
        failed += usize::from(!good);
    }
    drop(broker);
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {} passed; {failed} failed; 0 ignored", cases.len() - failed);
    std::process::exit(i32::from(failed > 0));
}

/// Records of all sorts, for a partition.
fn sorts(partition: i32, count: usize) -> Vec<Rec> {
    let mut dice = Dice(partition as u64);
    (0..count)
        .map(|number| {
            let key = format!("key-{}", dice.roll(50)).into_bytes();
            let mut record = Rec::new(key, format!("{SECRET} {number}"), 1_700_000_000_000 + number as i64);
            match dice.roll(8) {
                0 => record.value = None,
                1 => record.key = None,
                2 => record.value = Some(Vec::new()),
                3 => record.value = Some(SECRET.as_bytes().repeat(100 + dice.roll(200) as usize)),
                _ => {}
            }
            if dice.roll(3) == 0 {
                record.headers = vec![
                    ("type".into(), Some(SECRET.as_bytes().to_vec())),
                    ("trace".into(), Some(number.to_string().into_bytes())),
                    ("none".into(), None),
                ];
            }
            record
        })
        .collect()
}

fn write(broker: &Broker, name: &str, partitions: i32, count: usize) -> Vec<Vec<Rec>> {
    let writer = broker.writer();
    let all: Vec<Vec<Rec>> = (0..partitions).map(|partition| sorts(partition, count)).collect();
    for (partition, records) in all.iter().enumerate() {
        records.iter().for_each(|record| send(&writer, name, partition as i32, record));
    }
    settle(&writer);
    all
}

fn three(broker: &Broker, name: &str, partitions: i32) -> [String; 3] {
    let topics = ["plain", "sealed", "opened"].map(|what| format!("{name}.{what}"));
    topics.iter().for_each(|topic| broker.topic(topic, partitions, &[]));
    topics
}

fn everything(broker: &Broker) {
    let (desk, partitions) = (Desk::new(), 3);
    let [plain, sealed, opened] = three(broker, "all", partitions);
    let mut all = write(broker, &plain, partitions, 300);
    // What was aborted is not copied.
    let aborting: rdkafka::producer::BaseProducer =
        broker.settings().set("transactional.id", "aborting").create().unwrap();
    aborting.init_transactions(Duration::from_secs(60)).unwrap();
    for commit in [false, true] {
        aborting.begin_transaction().unwrap();
        let record = Rec::new("t", format!("{SECRET}: committed {commit}"), 1_700_000_000_000);
        send(&aborting, &plain, 0, &record);
        aborting.flush(Duration::from_secs(60)).unwrap();
        if commit {
            aborting.commit_transaction(Duration::from_secs(60)).unwrap();
            all[0].push(record);
        } else {
            aborting.abort_transaction(Duration::from_secs(60)).unwrap();
        }
    }
    let total = all.iter().map(Vec::len).sum();
    let more = "clear_headers = [\"trace\"]";
    let seal = topic(&plain, &sealed, "seal", more);
    // A new key every few records.
    let seal =
        desk.config("all-seal", &broker.address(), "topic = \"all.keys\"\nnew_after_bytes = 200000", &seal);
    let open = topic(&sealed, &opened, "open", "");
    let open = desk.config("all-open", &broker.address(), "topic = \"all.keys\"", &open);
    let (mut sealing, mut opening) = (Bridge::start(&seal, "s"), Bridge::start(&open, "o"));
    assert_eq!(broker.read_until(&opened, partitions, total), all);
    let counters = sealing.stop();
    assert_eq!(counters["topics"][&plain]["records"], total);
    assert_eq!(opening.stop()["topics"][&sealed]["unreadable"], serde_json::json!({}));
    assert!(broker.segments_have(&plain, SECRET.as_bytes()), "the search finds what is there");
    assert!(!broker.segments_have(&sealed, SECRET.as_bytes()));
    let stood = broker.read(&sealed, partitions);
    for (sealed, plain) in stood.iter().flatten().zip(all.iter().flatten()) {
        assert_eq!((&sealed.key, sealed.time), (&plain.key, plain.time));
        assert_eq!(sealed.value.is_none(), plain.value.is_none(), "tombstones stay tombstones");
        let clear: Vec<_> = plain.headers.iter().filter(|(name, _)| name == "trace").collect();
        let kept: Vec<_> = sealed.headers.iter().filter(|(name, _)| name != "wattlock").collect();
        assert_eq!(clear, kept);
    }
    python(&desk, &open, &sealed, &stood, &all);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn shown(record: &Rec) -> serde_json::Value {
    let headers: Vec<_> =
        record.headers.iter().map(|(name, value)| (name, value.as_deref().map(hex))).collect();
    serde_json::json!({ "key": record.key.as_deref().map(hex), "value": record.value.as_deref().map(hex), "headers": headers })
}

/// The Python reader opens the topic, with the keys as the bridge hands them out.
fn python(desk: &Desk, config: &std::path::Path, topic: &str, sealed: &[Vec<Rec>], plain: &[Vec<Rec>]) {
    let there = Command::new("python3").args(["-c", "import cryptography"]).output();
    if !there.is_ok_and(|there| there.status.success()) {
        println!("skipped: python3 with cryptography is not installed");
        return;
    }
    let folder = desk.path("entries");
    let got =
        program().args(["entries", "get", "--config"]).arg(config).arg("--folder").arg(&folder).status();
    assert!(got.unwrap().success());
    let mut lines = String::new();
    for (partition, records) in sealed.iter().enumerate() {
        for record in records {
            let mut line = shown(record);
            line["partition"] = partition.into();
            line["time"] = record.time.into();
            lines += &format!("{line}\n");
        }
    }
    fs::write(desk.path("records"), lines).unwrap();
    let reader = concat!(env!("CARGO_MANIFEST_DIR"), "/../wattlock-stream/tests/read_stream.py");
    let mut command = Command::new("python3");
    command.arg(reader).arg("records").arg(desk.path("key.txt")).arg(&folder).arg(topic);
    let output = command.arg(desk.path("records")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let read: Vec<serde_json::Value> = read.map(|line| serde_json::from_slice(line).unwrap()).collect();
    assert_eq!(read, plain.iter().flatten().map(shown).collect::<Vec<_>>());
}

/// A key in a folder, as the bridge would make it.
fn key(desk: &Desk, signer: Option<&wattlock_stream::trust::Signer>) -> RecordSealer {
    let crypto = &mut wattlock::Runtime::builder().telemetry(false).build().unwrap().dispatcher();
    let readers = wattlock_files::Sealer::new(vec![Box::new(desk.identity.to_public())]).unwrap();
    let mut keys = Keys::new(Folder::create(&desk.path("keys")).unwrap());
    keys.new_key("test", &readers, signer, crypto).unwrap()
}

fn hidden_keys(broker: &Broker) {
    let (desk, partitions) = (Desk::new(), 2);
    let [plain, sealed, opened] = three(broker, "hidden", partitions);
    let all = write(broker, &plain, partitions, 200);
    let names = key(&desk, None).id();
    let more = format!("record_keys = \"deterministic\"\nrecord_keys_under = \"{names}\"");
    let (keys, packed) = ("folder = \"keys\"", format!("{more}\ncompress = true"));
    let seal = desk.config("hidden-seal", &broker.address(), keys, &topic(&plain, &sealed, "seal", &packed));
    let open = desk.config("hidden-open", &broker.address(), keys, &topic(&sealed, &opened, "open", &more));
    let _bridges = [Bridge::start(&seal, "s"), Bridge::start(&open, "o")];
    assert_eq!(broker.read_until(&opened, partitions, 400), all);
    let stood = broker.read(&sealed, partitions);
    let mut seen = std::collections::HashMap::new();
    for (sealed, plain) in stood.iter().flatten().zip(all.iter().flatten()) {
        assert_eq!(sealed.key.is_none(), plain.key.is_none());
        let same = seen.entry(plain.key.clone()).or_insert_with(|| sealed.key.clone());
        assert_eq!(*same, sealed.key);
        let added = |one: &Option<Vec<u8>>, other: &Option<Vec<u8>>| {
            one.as_ref().map_or(0, Vec::len) as i64 - other.as_ref().map_or(0, Vec::len) as i64
        };
        if plain.headers.is_empty() && plain.value.is_some() {
            assert!(added(&sealed.value, &plain.value) <= 64);
            assert!(added(&sealed.value, &plain.value) + added(&sealed.key, &plain.key) <= 80);
        }
    }
    assert!(!broker.segments_have(&sealed, b"key-1"));
}

/// Seals one record for a place, under a key of the folder.
fn seal_one(key: &RecordSealer, topic: &str, partition: u32, record: &Rec) -> Rec {
    let crypto = &mut wattlock::Runtime::builder().telemetry(false).build().unwrap().dispatcher();
    let plain = Record {
        key: record.key.as_deref(),
        value: record.value.as_deref(),
        timestamp: record.time,
        headers: &[],
    };
    let sealed = key.seal_batch(Place { topic, partition }, &[plain], crypto).unwrap();
    Rec { value: Some(sealed.get(0).to_vec()), ..record.clone() }
}

/// Good records with bad ones between them: each beside the reason for which it is counted.
fn mixed(desk: &Desk, sealed: &str) -> Vec<(Rec, Option<&'static str>)> {
    let ours = key(desk, None);
    let lost = key(&Desk::new(), None);
    let plain =
        |number: i64| Rec::new(format!("k{number}"), format!("good {number}"), 1_700_000_000_000 + number);
    let good = |number| seal_one(&ours, sealed, 0, &plain(number));
    let altered = |at: usize| {
        let mut record = good(100);
        let value = record.value.as_mut().unwrap();
        let at = if at == usize::MAX { value.len() - 1 } else { at };
        value[at] ^= 1;
        record
    };
    vec![
        (good(0), None),
        (altered(usize::MAX), Some("altered")),
        (altered(30), Some("altered")),
        (altered(5), Some("no-key")),
        (altered(0), Some("not-sealed")),
        (good(1), None),
        (Rec { key: Some(b"k0".to_vec()), ..good(101) }, Some("altered")),
        (Rec { key: None, ..good(101) }, Some("altered")),
        (Rec { time: Some(1), ..good(101) }, Some("altered")),
        (Rec { headers: vec![("added".into(), None)], ..good(101) }, Some("altered")),
        (seal_one(&ours, sealed, 1, &plain(102)), Some("altered")),
        (seal_one(&ours, "another", 0, &plain(102)), Some("altered")),
        (seal_one(&lost, sealed, 0, &plain(103)), Some("no-key")),
        (plain(104), Some("not-sealed")),
        (Rec { value: None, ..plain(105) }, Some("not-sealed")),
        (Rec { value: Some(Vec::new()), ..plain(106) }, Some("not-sealed")),
        (good(2), None),
    ]
}

fn bad_records(broker: &Broker) {
    let desk = Desk::new();
    for outcome in ["skip", "dead-letter"] {
        let name = |what: &str| format!("bad.{outcome}.{what}");
        let (sealed, opened, dead) = (name("sealed"), name("opened"), name("dead"));
        [&sealed, &opened, &dead].iter().for_each(|topic| broker.topic(topic, 1, &[]));
        let records = mixed(&desk, &sealed);
        let writer = broker.writer();
        records.iter().for_each(|(record, _)| send(&writer, &sealed, 0, record));
        settle(&writer);
        let dead_letter = if outcome == "skip" { String::new() } else { format!("dead_letter = \"{dead}\"") };
        let more = format!("unreadable = \"{outcome}\"\n{dead_letter}");
        let open = topic(&sealed, &opened, "open", &more);
        let open = desk.config(&name("group"), &broker.address(), "folder = \"keys\"", &open);
        let mut bridge = Bridge::start(&open, "o");
        let read = broker.read_until(&opened, 1, 3).remove(0);
        let values: Vec<_> = read.iter().map(|record| record.value.clone().unwrap()).collect();
        assert_eq!(values, [b"good 0", b"good 1", b"good 2"]);
        let counted = bridge.stop()["topics"][&sealed]["unreadable"].clone();
        let reasons = ["altered", "no-key", "not-sealed"];
        let expected: serde_json::Map<String, serde_json::Value> = reasons
            .iter()
            .map(|reason| {
                let count = records.iter().filter(|(_, why)| *why == Some(reason)).count();
                ((*reason).to_owned(), count.into())
            })
            .collect();
        assert_eq!(counted, serde_json::Value::Object(expected));
        let bad: Vec<_> = records
            .iter()
            .enumerate()
            .filter_map(|(at, (record, why))| Some((at, record, (*why)?)))
            .collect();
        let dead = broker.read(&dead, 1).remove(0);
        if outcome == "skip" {
            assert!(dead.is_empty());
            continue;
        }
        assert_eq!(dead.len(), bad.len());
        for (letter, (offset, record, why)) in dead.iter().zip(bad) {
            assert_eq!((&letter.key, &letter.value), (&record.key, &record.value));
            let of = |name: &str| {
                let found = letter.headers.iter().find(|(header, _)| header == name).unwrap();
                String::from_utf8(found.1.clone().unwrap()).unwrap()
            };
            assert_eq!(
                (of("wattlock-error").as_str(), of("wattlock-source")),
                (why, format!("{sealed}/0@{offset}"))
            );
        }
    }
}

fn stops(broker: &Broker) {
    let desk = Desk::new();
    let (sealed, opened) = ("stops.sealed", "stops.opened");
    [sealed, opened].iter().for_each(|topic| broker.topic(topic, 2, &[]));
    let ours = key(&desk, None);
    let writer = broker.writer();
    let one = |partition: u32, number: i64| {
        let plain = Rec::new("k", format!("good {partition} {number}"), 1_700_000_000_000);
        seal_one(&ours, sealed, partition, &plain)
    };
    send(&writer, sealed, 0, &one(0, 0));
    send(&writer, sealed, 0, &Rec::new("k", "clear", 1_700_000_000_000));
    send(&writer, sealed, 0, &one(0, 1));
    (0..50).for_each(|number| send(&writer, sealed, 1, &one(1, number)));
    settle(&writer);
    let open =
        desk.config("stops", &broker.address(), "folder = \"keys\"", &topic(sealed, opened, "open", ""));
    let mut bridge = Bridge::start(&open, "o");
    let read = broker.read_until(opened, 2, 51);
    assert_eq!((read[0].len(), read[1].len()), (1, 50));
    let counters = bridge.stop();
    assert_eq!(counters["stopped_partitions"], 1);
    assert_eq!(counters["topics"][sealed]["unreadable"]["not-sealed"], 1);
    // The next one to own it stops at the same place: nothing was skipped over.
    let mut bridge = Bridge::start(&open, "o");
    (50..60).for_each(|number| send(&writer, sealed, 1, &one(1, number)));
    settle(&writer);
    let read = broker.read_until(opened, 2, 61);
    assert_eq!((read[0].len(), read[1].len()), (1, 60));
    bridge.kill();
}

/// All partitions of one member are taken away when another one joins or leaves, and come back.
fn comes_back(broker: &Broker) {
    let desk = Desk::new();
    let (sealed, opened) = ("back.sealed", "back.opened");
    [sealed, opened].iter().for_each(|topic| broker.topic(topic, 2, &[]));
    let ours = key(&desk, None);
    let entry = desk.path(&format!("keys/{}.key", ours.id()));
    let hidden = desk.path("hidden");
    fs::rename(&entry, &hidden).unwrap();
    let writer = broker.writer();
    for (partition, number) in [(0, 0), (1, 1)] {
        let plain = Rec::new("k", format!("good {number}"), 1_700_000_000_000 + number);
        send(&writer, sealed, partition, &seal_one(&ours, sealed, partition as u32, &plain));
    }
    settle(&writer);
    let open =
        desk.config("back", &broker.address(), "folder = \"keys\"", &topic(sealed, opened, "open", ""));
    let mut first = Bridge::start(&open, "1");
    let until = std::time::Instant::now() + Duration::from_secs(120);
    while committed(broker, "back", sealed) < 0 {
        assert!(std::time::Instant::now() < until, "it does not stop");
        std::thread::sleep(Duration::from_millis(200));
    }
    let mut second = Bridge::start(&open, "2");
    std::thread::sleep(Duration::from_secs(5));
    second.stop();
    fs::rename(&hidden, &entry).unwrap();
    let read = broker.read_until(opened, 2, 2);
    assert_eq!((read[0].len(), read[1].len()), (1, 1));
    first.stop();
}

fn untrusted(broker: &Broker) {
    let desk = Desk::new();
    let (sealed, opened) = ("trust.sealed", "trust.opened");
    [sealed, opened].iter().for_each(|topic| broker.topic(topic, 1, &[]));
    let sign = || wattlock_stream::trust::Signer::generate().unwrap().0;
    let (ours, theirs) = (sign(), sign());
    let writer = broker.writer();
    for (signer, value) in [(Some(&ours), "good"), (Some(&theirs), "foreign"), (None, "unsigned")] {
        let key = key(&desk, signer);
        send(&writer, sealed, 0, &seal_one(&key, sealed, 0, &Rec::new("k", value, 1_700_000_000_000)));
    }
    let last = key(&desk, Some(&ours));
    send(&writer, sealed, 0, &seal_one(&last, sealed, 0, &Rec::new("k", "last", 1_700_000_000_000)));
    settle(&writer);
    let keys = format!("folder = \"keys\"\ntrust = [\"{}\"]", ours.name());
    let open = topic(sealed, opened, "open", "unreadable = \"skip\"");
    let open = desk.config("trust", &broker.address(), &keys, &open);
    let mut bridge = Bridge::start(&open, "o");
    let read = broker.read_until(opened, 1, 2).remove(0);
    let values: Vec<_> = read.into_iter().map(|record| record.value.unwrap()).collect();
    assert_eq!(values, [b"good", b"last"]);
    assert_eq!(bridge.stop()["topics"][sealed]["unreadable"], serde_json::json!({ "untrusted": 2 }));
}

/// Writes numbered records to all partitions, in a thread, until it is told to stop; then says what it wrote.
fn numbered(
    broker: &Broker,
    name: &str,
    partitions: i32,
    stop: &Arc<AtomicBool>,
) -> std::thread::JoinHandle<Vec<Vec<Rec>>> {
    let (writer, name, stop) = (broker.writer(), name.to_owned(), stop.clone());
    std::thread::spawn(move || {
        let mut all = vec![Vec::new(); partitions as usize];
        for number in 0.. {
            if stop.load(Ordering::SeqCst) || number == 500_000 {
                break;
            }
            let record = Rec::new(
                format!("k{}", number % 97),
                format!("{SECRET} {number}"),
                1_700_000_000_000 + number,
            );
            let partition = (number % i64::from(partitions)) as i32;
            send(&writer, &name, partition, &record);
            all[partition as usize].push(record);
            std::thread::sleep(Duration::from_millis(2));
        }
        settle(&writer);
        all
    })
}

/// Fails with the first record that differs, and how many there are.
fn same<T: PartialEq + std::fmt::Debug>(got: &[Vec<T>], expected: &[Vec<T>], what: &str) {
    for (partition, (got, expected)) in got.iter().zip(expected).enumerate() {
        let at = got.iter().zip(expected).position(|(one, other)| one != other);
        let at = at.or((got.len() != expected.len()).then(|| got.len().min(expected.len())));
        if let Some(at) = at {
            let around = |all: &[T]| format!("{:?}", &all[at.saturating_sub(1)..(at + 2).min(all.len())]);
            let (has, had) = (got.len(), expected.len());
            panic!(
                "{what}, partition {partition}: {has} records of {had}, other from {at} on: {} for {}",
                around(got),
                around(expected)
            );
        }
    }
}

fn kills(broker: &Broker) {
    let count: u64 = std::env::var("WATTLOCK_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(3);
    let (desk, partitions) = (Desk::new(), 3);
    let [plain, sealed, opened] = three(broker, "kills", partitions);
    let keys = "topic = \"kills.keys\"\nnew_after_bytes = 100000";
    let seal = desk.config("kills-seal", &broker.address(), keys, &topic(&plain, &sealed, "seal", ""));
    let open = desk.config("kills-open", &broker.address(), keys, &topic(&sealed, &opened, "open", ""));
    let (stop, mut dice) = (Arc::new(AtomicBool::new(false)), Dice(std::process::id().into()));
    let writing = numbered(broker, &plain, partitions, &stop);
    let mut bridges = [Bridge::start(&seal, "a"), Bridge::start(&seal, "b"), Bridge::start(&open, "o")];
    for round in 0..count {
        std::thread::sleep(Duration::from_millis(1500 + dice.roll(2000)));
        if round % 3 == 1 {
            broker.kill();
            broker.again();
            continue;
        }
        let number = dice.roll(3) as usize;
        bridges[number].kill();
        bridges[number] = match number {
            0 => Bridge::start(&seal, "a"),
            1 => Bridge::start(&seal, "b"),
            _ => Bridge::start(&open, "o"),
        };
    }
    std::thread::sleep(Duration::from_secs(1));
    stop.store(true, Ordering::SeqCst);
    let wrote: usize = writing.join().unwrap().iter().map(Vec::len).sum();
    // The topic counts, not its writer: brokers forget a producer whose records are old (`producer.id.expiration.ms`)
    // when they are killed, and then take a repeated batch twice.
    let all = broker.read(&plain, partitions);
    let total = all.iter().map(Vec::len).sum();
    assert!(total >= wrote, "the test's own writer lost records");
    let read = broker.read_until(&opened, partitions, total);
    let stood = broker.read(&sealed, partitions);
    let times = |all: &[Vec<Rec>]| -> Vec<Vec<Option<i64>>> {
        all.iter().map(|records| records.iter().map(|record| record.time).collect()).collect()
    };
    same(&times(&stood), &times(&all), "sealed");
    same(&read, &all, "opened");
    assert!(!broker.segments_have(&sealed, SECRET.as_bytes()));
    println!("{count} kills, {total} records, {} of them repeated by their writer", total - wrote);
}

fn members(broker: &Broker) {
    let (desk, partitions) = (Desk::new(), 4);
    for strategy in ["range", "cooperative-sticky"] {
        let [plain, sealed, opened] = three(broker, &format!("members.{strategy}"), partitions);
        let keys = "folder = \"keys\"";
        let name = |what: &str| format!("members-{strategy}-{what}");
        let seal = desk.config(&name("seal"), &broker.address(), keys, &topic(&plain, &sealed, "seal", ""));
        let open = desk.config(&name("open"), &broker.address(), keys, &topic(&sealed, &opened, "open", ""));
        for config in [&seal, &open] {
            let text = fs::read_to_string(config).unwrap();
            let line = format!("[kafka]\n\"partition.assignment.strategy\" = \"{strategy}\"");
            fs::write(config, text.replace("[kafka]", &line)).unwrap();
        }
        let stop = Arc::new(AtomicBool::new(false));
        let writing = numbered(broker, &plain, partitions, &stop);
        let pause = || std::thread::sleep(Duration::from_millis(2500));
        let mut first = Bridge::start(&seal, "1");
        let mut opening = vec![Bridge::start(&open, "1")];
        pause();
        let mut second = Bridge::start(&seal, "2");
        opening.push(Bridge::start(&open, "2"));
        pause();
        first.stop();
        pause();
        // A zombie: it is declared dead while it sleeps, and comes back with what it had.
        let signal =
            |name: &str| Command::new("kill").args([name, &second.id().to_string()]).status().unwrap();
        signal("-STOP");
        let mut third = Bridge::start(&seal, "3");
        std::thread::sleep(Duration::from_secs(9));
        signal("-CONT");
        pause();
        stop.store(true, Ordering::SeqCst);
        let all = writing.join().unwrap();
        let total = all.iter().map(Vec::len).sum();
        assert!(broker.read_until(&opened, partitions, total) == all, "the opened records differ");
        assert_eq!(broker.read(&sealed, partitions).iter().flatten().count(), total);
        third.stop();
        second.kill();
    }
}

/// One direction of a connection through a proxy.
struct Way {
    from: TcpStream,
    to: TcpStream,
    dice: Dice,
    to_broker: bool,
}

/// Stands between a client and the broker's other listener until it is told to stop.
fn proxy(broker: &Broker, stop: &Arc<AtomicBool>, pump: impl Fn(Way, &AtomicBool) + Copy + Send + 'static) {
    let listener = TcpListener::bind(("127.0.0.1", broker.port + 3)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (behind, stop) = (broker.port + 2, stop.clone());
    std::thread::spawn(move || {
        let mut seed = 7;
        while !stop.load(Ordering::SeqCst) {
            let Ok((client, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            client.set_nonblocking(false).unwrap();
            let Ok(server) = TcpStream::connect(("127.0.0.1", behind)) else { continue };
            for (from, to, to_broker) in [(&client, &server, true), (&server, &client, false)] {
                seed += 1;
                let (from, to, stop) = (from.try_clone().unwrap(), to.try_clone().unwrap(), stop.clone());
                let way = Way { from, to, dice: Dice(seed), to_broker };
                std::thread::spawn(move || pump(way, &stop));
            }
        }
    });
}

/// Late, in pieces, cut, half-closed.
fn hostile(way: Way, calm: &AtomicBool) {
    let Way { mut from, mut to, mut dice, .. } = way;
    let mut piece = [0; 16 << 10];
    loop {
        let len = match from.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(len) => len,
        };
        // Once it is told to, it only copies.
        if !calm.load(Ordering::SeqCst) {
            match dice.roll(120) {
                0 => {
                    // Half of what came, then nothing in either direction.
                    let _ = to.write_all(&piece[..len / 2]);
                    let _ = from.shutdown(Shutdown::Both);
                    break;
                }
                1 => {
                    let _ = to.write_all(&piece[..len]);
                    let _ = to.shutdown(Shutdown::Write);
                    return;
                }
                2..6 => std::thread::sleep(Duration::from_millis(dice.roll(150))),
                _ => {}
            }
        }
        if to.write_all(&piece[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn network(broker: &Broker) {
    let (desk, partitions) = (Desk::new(), 2);
    let [plain, sealed, opened] = three(broker, "network", partitions);
    let calm = Arc::new(AtomicBool::new(false));
    proxy(broker, &calm, hostile);
    let address = format!("127.0.0.1:{}", broker.port + 3);
    let seal = desk.config("net-seal", &address, "folder = \"keys\"", &topic(&plain, &sealed, "seal", ""));
    let open =
        desk.config("net-open", &broker.address(), "folder = \"keys\"", &topic(&sealed, &opened, "open", ""));
    let stop = Arc::new(AtomicBool::new(false));
    let writing = numbered(broker, &plain, partitions, &stop);
    let _bridges = [Bridge::start(&seal, "s"), Bridge::start(&open, "o")];
    std::thread::sleep(Duration::from_secs(12));
    stop.store(true, Ordering::SeqCst);
    let all = writing.join().unwrap();
    let total = all.iter().map(Vec::len).sum();
    let read = broker.read_until(&opened, partitions, total);
    calm.store(true, Ordering::SeqCst);
    assert!(read == all, "the opened records differ");
}

/// Whether the twentieth request to write was held back.
static HELD: AtomicU64 = AtomicU64::new(0);

/// Holds back one request to write for longer than a transaction may take, and what follows it on its connection.
fn holding(way: Way, _: &AtomicBool) {
    let Way { mut from, mut to, to_broker, .. } = way;
    let mut piece = [0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut piece) {
        // Length, then the request's kind (0: Produce) and version.
        let writes = to_broker && len > 8 && piece[4..7] == [0; 3] && (3..16).contains(&piece[7]);
        if writes && HELD.fetch_add(1, Ordering::SeqCst) == 20 {
            std::thread::sleep(Duration::from_secs(8));
        }
        if to.write_all(&piece[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn late(broker: &Broker) {
    let (desk, partitions) = (Desk::new(), 1);
    let [plain, sealed, _] = three(broker, "late", partitions);
    let stop = Arc::new(AtomicBool::new(false));
    proxy(broker, &stop, holding);
    let address = format!("127.0.0.1:{}", broker.port + 3);
    let seal = desk.config("late-seal", &address, "folder = \"keys\"", &topic(&plain, &sealed, "seal", ""));
    let writing = numbered(broker, &plain, partitions, &stop);
    let mut bridge = Bridge::start(&seal, "s");
    let until = std::time::Instant::now() + Duration::from_secs(120);
    while HELD.load(Ordering::SeqCst) <= 20 {
        assert!(std::time::Instant::now() < until, "nothing was held back");
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(Duration::from_secs(12));
    stop.store(true, Ordering::SeqCst);
    let total = writing.join().unwrap()[0].len();
    broker.read_until(&sealed, partitions, total);
    let counters = bridge.stop();
    let gave_up = counters["aborted"].as_u64().unwrap() + counters["restarts"].as_u64().unwrap();
    assert!(gave_up > 0, "the write was not late: {counters}");
    let keys: Vec<_> = broker.read(&sealed, partitions).remove(0).into_iter().map(|one| one.time).collect();
    assert_eq!(keys.len(), total);
    assert!(keys.is_sorted(), "out of order");
}

fn memory(broker: &Broker) {
    let (desk, partitions) = (Desk::new(), 2);
    let [plain, sealed, _] = three(broker, "memory", partitions);
    let writer = broker.writer();
    let total = 12_000;
    for number in 0..total {
        let value = format!("{number:010}").repeat(820);
        send(&writer, &plain, number % partitions, &Rec::new("k", value, 1_700_000_000_000));
    }
    settle(&writer);
    let seal =
        desk.config("memory", &broker.address(), "folder = \"keys\"", &topic(&plain, &sealed, "seal", ""));
    let bridge = Bridge::start(&seal, "s");
    let read: usize = broker.read_until(&sealed, partitions, total as usize).iter().map(Vec::len).sum();
    assert_eq!(read, total as usize);
    // The window is 16 MiB; a transaction of 8 MiB is read, sealed and written from it. 98 MB passed.
    let peak = bridge.peak();
    assert!(peak < 80 << 20, "{peak} bytes");
}

fn checked(broker: &Broker) {
    let desk = Desk::new();
    broker.topic("check.from", 2, &[]);
    broker.topic("check.to", 2, &[]);
    broker.topic("check.narrow", 1, &[]);
    let check = |to: &str| {
        let config = desk.config(
            "check",
            &broker.address(),
            "folder = \"keys\"",
            &topic("check.from", to, "seal", ""),
        );
        let output = program().args(["check", "--config"]).arg(config).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(check("check.to"), (true, String::new()));
    let (good, said) = check("check.narrow");
    assert!(!good && said.contains("2 partitions and 1"), "{said}");
    let (good, said) = check("check.nowhere");
    assert!(!good && said.contains("there is none"), "{said}");
    broker.topic("check.keys", 1, &[("cleanup.policy", "compact,delete")]);
    let seal = topic("check.from", "check.to", "seal", "");
    let config = desk.config("check-keys", &broker.address(), "topic = \"check.keys\"", &seal);
    let output = program().args(["check", "--config"]).arg(config).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("would be deleted"), "{said}");
}

/// Lines of `[kafka]` beside the address.
fn secured(
    desk: &Desk,
    name: &str,
    port: u16,
    topics: &str,
    settings: &[(&str, &str)],
) -> std::path::PathBuf {
    let config = desk.config(name, &format!("127.0.0.1:{port}"), "folder = \"keys\"", topics);
    let lines: String = settings.iter().map(|(name, value)| format!("\"{name}\" = \"{value}\"\n")).collect();
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("[kafka]\n", &format!("[kafka]\n{lines}"))).unwrap();
    config
}

fn logins(broker: &Broker) {
    let desk = Desk::new();
    let [plain, sealed, opened] = three(broker, "login", 1);
    let all = write(broker, &plain, 1, 50);
    let file = |name: &str| broker.dir.path().join("tls").join(name).to_str().unwrap().to_owned();
    let [ca, other, certificate, key] = ["ca.crt", "other.crt", "client.crt", "client.key"].map(file);
    let (tls, login) = (broker.port + 4, broker.port + 5);
    let with_key = [
        ("security.protocol", "SSL"),
        ("ssl.ca.location", &*ca),
        ("ssl.certificate.location", &*certificate),
        ("ssl.key.location", &*key),
    ];
    let with_word = |mechanism, word| {
        [
            ("security.protocol", "SASL_SSL"),
            ("ssl.ca.location", &*ca),
            ("sasl.mechanism", mechanism),
            ("sasl.username", "bridge"),
            ("sasl.password", word),
        ]
    };
    let seal = secured(&desk, "tls", tls, &topic(&plain, &sealed, "seal", ""), &with_key);
    let scram = with_word("SCRAM-SHA-512", "a word");
    let open = secured(&desk, "login", login, &topic(&sealed, &opened, "open", ""), &scram);
    let _bridges = [Bridge::start(&seal, "s"), Bridge::start(&open, "o")];
    assert_eq!(broker.read_until(&opened, 1, 50), all);
    let check = |port: u16, settings: &[(&str, &str)]| {
        let config = secured(&desk, "check", port, &topic(&plain, &sealed, "seal", ""), settings);
        let output = program().args(["check", "--config"]).arg(config).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(check(login, &with_word("PLAIN", "a word")), (Some(0), String::new()));
    let mut unknown = with_key;
    unknown[1].1 = &other;
    let refused = [
        (47, "certificate verify failed", check(tls, &unknown)),
        (47, "certificate", check(tls, &with_key[..2])),
        (48, "Authentication failed", check(login, &with_word("PLAIN", "another"))),
        (48, "uthentication", check(login, &with_word("SCRAM-SHA-512", "another"))),
        (48, "mechanism", check(login, &with_word("SCRAM-SHA-256", "a word"))),
    ];
    for (code, word, (ended, said)) in refused {
        assert_eq!((ended, said.lines().count()), (Some(code), 1), "{said}");
        assert!(said.contains(word), "{said}");
        assert!(!said.contains("another"), "a password is told: {said}");
    }
}

fn rewrapped(broker: &Broker) {
    let (desk, other) = (Desk::new(), Desk::new());
    let [plain, sealed, opened] = three(broker, "rewrap", 1);
    let all = write(broker, &plain, 1, 20);
    let keys = "topic = \"rewrap.keys\"";
    let seal = desk.config("rewrap-seal", &broker.address(), keys, &topic(&plain, &sealed, "seal", ""));
    let mut sealing = Bridge::start(&seal, "s");
    broker.read_until(&sealed, 1, 20);
    sealing.stop();
    // For another reader: taken out, wrapped anew, put back, as `wattlock stream keys rewrap --config` does.
    let folder = desk.path("entries");
    let entries = |what: &str, ids: &[String]| {
        let mut command = program();
        command.args(["entries", what, "--config"]).arg(&seal).arg("--folder").arg(&folder).args(ids);
        assert!(command.status().unwrap().success());
    };
    entries("get", &[]);
    let crypto = &mut wattlock::Runtime::builder().telemetry(false).build().unwrap().dispatcher();
    let mut copy = Keys::new(Folder::open(&folder).unwrap());
    let id = copy.list().unwrap().0[0].id;
    let old = fs::read(desk.path("key.txt")).unwrap();
    let old = wattlock_files::keys::identities(&old, wattlock_files::age::NoCallbacks).unwrap();
    let new = wattlock_files::Sealer::new(vec![Box::new(other.identity.to_public())]).unwrap();
    copy.rewrap(id, &wattlock_files::Opener::new(old), &new, crypto).unwrap();
    entries("put", &[id.to_string()]);
    let open = |desk: &Desk, name: &str, to: &str| {
        let more = "unreadable = \"skip\"";
        let config = desk.config(name, &broker.address(), keys, &topic(&sealed, to, "open", more));
        Bridge::start(&config, name)
    };
    let mut opening = open(&other, "rewrap-new", &opened);
    assert_eq!(broker.read_until(&opened, 1, 20), all);
    opening.stop();
    let unreadable = |desk: &Desk, name: &str, reason: &str| {
        let mut opening = open(desk, name, &opened);
        let until = std::time::Instant::now() + Duration::from_secs(120);
        // Nothing comes out, so its offsets are what is waited for.
        while committed(broker, name, &sealed) < 20 {
            assert!(std::time::Instant::now() < until, "{name}");
            std::thread::sleep(Duration::from_millis(200));
        }
        assert_eq!(opening.stop()["topics"][&sealed]["unreadable"], serde_json::json!({ reason: 20 }));
    };
    unreadable(&desk, "rewrap-old", "no-identity");
    entries("remove", &[id.to_string()]);
    unreadable(&other, "rewrap-shredded", "no-key");
}

fn committed(broker: &Broker, group: &str, topic: &str) -> i64 {
    use rdkafka::consumer::{BaseConsumer, Consumer};
    let reader: BaseConsumer = broker.settings().set("group.id", group).create().unwrap();
    let mut one = rdkafka::TopicPartitionList::new();
    one.add_partition(topic, 0);
    // A broker that has just started has no coordinator of the group yet.
    let Ok(found) = reader.committed_offsets(one, Duration::from_secs(20)) else { return -1 };
    found.elements()[0].offset().to_raw().unwrap_or(-1)
}

/// Processor seconds a gigabyte: copying, sealing and opening by the same bridge, one after the other.
fn figures(broker: &Broker) {
    let desk = Desk::new();
    for (len, count) in [(1024, 150_000), (100, 600_000)] {
        let name = |what: &str| format!("figures.{len}.{what}");
        let topics = ["plain", "copied", "sealed", "opened"];
        topics.iter().for_each(|what| broker.topic(&name(what), 2, &[]));
        let writer = broker.writer();
        let value = vec![b'v'; len];
        for number in 0..count {
            let record = Rec::new(format!("k{}", number % 1000), value.clone(), 1_700_000_000_000);
            send(&writer, &name("plain"), number % 2, &record);
        }
        settle(&writer);
        let mut base = 0.0;
        for (task, from, to) in
            [("copy", "plain", "copied"), ("seal", "plain", "sealed"), ("open", "sealed", "opened")]
        {
            let what = topic(&name(from), &name(to), task, "");
            let config =
                desk.config(&format!("figures-{len}-{task}"), &broker.address(), "folder = \"keys\"", &what);
            let bridge = Bridge::start(&config, task);
            while (0..2).map(|partition| end(broker, &name(to), partition)).sum::<i64>() < i64::from(count) {
                std::thread::sleep(Duration::from_millis(300));
            }
            let seconds = bridge.seconds() / (f64::from(count) * len as f64 / 1e9);
            base = if task == "copy" { seconds } else { base };
            println!("{len} bytes, {task}: {seconds:.2} CPU seconds a GB, {:.2} of copying", seconds / base);
        }
    }
}

fn end(broker: &Broker, topic: &str, partition: i32) -> i64 {
    use rdkafka::consumer::{BaseConsumer, Consumer};
    let reader: BaseConsumer = broker.settings().set("group.id", "ends").create().unwrap();
    reader.fetch_watermarks(topic, partition, Duration::from_secs(20)).unwrap().1
}

/// A file that brokers' programs cannot write to, as standard error.
fn logs(broker: &Broker) {
    let desk = Desk::new();
    let [plain, sealed, _] = three(broker, "logs", 1);
    let seal = |name: &str| {
        desk.config(name, &broker.address(), "folder = \"keys\"", &topic(&plain, &sealed, "seal", ""))
    };
    let shell = |line: &str| {
        let mut command = Command::new("bash");
        command
            .args(["-c", line])
            .env("BRIDGE", env!("CARGO_BIN_EXE_wattlock-bridge"))
            .current_dir(&desk.dir);
        command
    };
    let missing = desk.path("missing.toml");
    let (missing, there) = (missing.display(), seal("logs-check"));
    let there = there.display();
    for (kind, aside) in [("full", "2>/dev/full"), ("closed", "2>&-"), ("broken", "2> >(exec true)")] {
        for (arguments, code) in [
            (format!("--config {missing}"), 1),
            (format!("check --config {missing}"), 1),
            (format!("entries get --config {missing} --folder there"), 1),
            (format!("check --config {there}"), 0),
            ("--help".to_owned(), 0),
            ("--nonsense".to_owned(), 2),
        ] {
            let ended = shell(&format!("exec \"$BRIDGE\" {arguments} {aside}")).output().unwrap();
            assert_eq!(ended.status.code(), Some(code), "{kind}: {arguments}: {ended:?}");
        }
    }
    // What was asked for and cannot be written is an error, and no panic.
    for (aside, code) in [(">/dev/full", 43), ("> >(exec true)", 44)] {
        let line = format!("trap '' PIPE; sleep .2; exec \"$BRIDGE\" check --config {there} {aside}");
        assert_eq!(shell(&line).status().unwrap().code(), Some(code), "{aside}");
    }
    // The broker's end is a line of librdkafka's threads.
    let mut bridges = Vec::new();
    for (number, aside) in
        ["2>/dev/full", "2>&-", "2> >(exec true >/dev/null)", "2> >(exec sleep 100 >/dev/null)"]
            .iter()
            .enumerate()
    {
        let config = seal(&format!("logs-{number}"));
        let line = format!("exec \"$BRIDGE\" --json --config {} {aside}", config.display());
        bridges.push(Bridge(Some(shell(&line).stdout(std::process::Stdio::piped()).spawn().unwrap())));
    }
    let writer = broker.writer();
    send(&writer, &plain, 0, &Rec::new("k", "before", 1_700_000_000_000));
    settle(&writer);
    broker.read_until(&sealed, 1, bridges.len());
    broker.kill();
    std::thread::sleep(Duration::from_secs(2));
    broker.again();
    let writer = broker.writer();
    send(&writer, &plain, 0, &Rec::new("k", "after", 1_700_000_000_000));
    settle(&writer);
    broker.read_until(&sealed, 1, 2 * bridges.len());
    bridges.iter_mut().for_each(|bridge| _ = bridge.stop());
}

/// The name of the key of a sealed record.
fn key_of(record: &Rec) -> String {
    hex(&record.value.as_ref().unwrap()[1..17])
}

fn shredded(broker: &Broker) {
    for place in ["program", "tombstone", "rewrap", "folder"] {
        let desk = Desk::new();
        let [plain, sealed, opened] = three(broker, &format!("shred.{place}"), 1);
        let topic_of_keys = format!("shred.{place}.keys");
        let keys = match place {
            "folder" => "folder = \"keys\"".to_owned(),
            _ => format!("topic = \"{topic_of_keys}\""),
        };
        let name = |what: &str| format!("shred-{place}-{what}");
        let seal = desk.config(&name("seal"), &broker.address(), &keys, &topic(&plain, &sealed, "seal", ""));
        let mut sealing = Bridge::start(&seal, "s");
        let writer = broker.writer();
        let write = |value: &str| {
            send(&writer, &plain, 0, &Rec::new("k", value, 1_700_000_000_000));
            settle(&writer);
        };
        write("old");
        let old = key_of(&broker.read_until(&sealed, 1, 1)[0][0]);
        let folder = desk.path("entries");
        let entries = |what: &str| {
            let mut command = program();
            command.args(["entries", what, "--config"]).arg(&seal).arg("--folder").arg(&folder);
            let ids = if what == "get" { None } else { Some(&old) };
            assert!(command.args(ids).output().unwrap().status.success());
        };
        match place {
            "program" => entries("remove"),
            "folder" => fs::remove_file(desk.path("keys").join(format!("{old}.key"))).unwrap(),
            "rewrap" => {
                entries("get");
                let crypto = &mut wattlock::Runtime::builder().telemetry(false).build().unwrap().dispatcher();
                let identity = fs::read(desk.path("key.txt")).unwrap();
                let identity =
                    wattlock_files::keys::identities(&identity, wattlock_files::age::NoCallbacks).unwrap();
                let new = wattlock_files::Sealer::new(vec![Box::new(desk.identity.to_public())]).unwrap();
                let mut copy = Keys::new(Folder::open(&folder).unwrap());
                let id = old.parse().unwrap();
                copy.rewrap(id, &wattlock_files::Opener::new(identity), &new, crypto).unwrap();
                entries("put");
            }
            // The topic then ends with a transaction's marker, which is no record.
            _ => {
                let settings = &mut broker.settings();
                let by_hand: rdkafka::producer::BaseProducer =
                    settings.set("transactional.id", "by-hand").create().unwrap();
                by_hand.init_transactions(Duration::from_secs(60)).unwrap();
                by_hand.begin_transaction().unwrap();
                let tombstone = Rec { value: None, ..Rec::new(old.clone(), "", 1_700_000_000_000) };
                send(&by_hand, &topic_of_keys, 0, &tombstone);
                by_hand.commit_transaction(Duration::from_secs(60)).unwrap();
            }
        }
        write("new");
        write("newer");
        let stood = broker.read_until(&sealed, 1, 3).remove(0);
        for record in &stood[1..] {
            assert_ne!(key_of(record), old, "{place}: sealed under a key that was shredded");
        }
        let open = topic(&sealed, &opened, "open", "unreadable = \"skip\"");
        let open = desk.config(&name("open"), &broker.address(), &keys, &open);
        let mut opening = Bridge::start(&open, "o");
        let rewrapped = usize::from(place == "rewrap");
        let read = broker.read_until(&opened, 1, 2 + rewrapped).remove(0);
        assert_eq!(read[rewrapped].value.as_deref(), Some(&b"new"[..]), "{place}");
        opening.stop();
        assert_eq!(sealing.stop()["keys_made"], 2, "{place}");
    }
}

fn keys_gone(broker: &Broker) {
    let desk = Desk::new();
    let [plain, sealed, opened] = three(broker, "gone", 1);
    let keys = "topic = \"gone.keys\"";
    let seal = desk.config("gone-seal", &broker.address(), keys, &topic(&plain, &sealed, "seal", ""));
    let log = desk.path("log");
    let mut sealing = Bridge::telling(&seal, None, &log);
    let writer = broker.writer();
    let write = |value: &str| {
        send(&writer, &plain, 0, &Rec::new("k", value, 1_700_000_000_000));
        settle(&writer);
    };
    write("old");
    let old = key_of(&broker.read_until(&sealed, 1, 1)[0][0]);
    broker.delete_topic("gone.keys");
    let text = said(&log, "there is no topic gone.keys");
    assert!(!text.contains("anew"), "{text}");
    // Records wait, and the bridge ends when it is told to.
    write("new");
    said(&log, "transaction aborted");
    sealing.stop();
    assert_eq!(broker.read(&sealed, 1)[0].len(), 1);
    let mut sealing = Bridge::telling(&seal, None, &log);
    let stood = broker.read_until(&sealed, 1, 2).remove(0);
    assert_ne!(key_of(&stood[1]), old);
    // Another topic of that name has other keys.
    broker.delete_topic("gone.keys");
    said(&log, "there is no topic gone.keys");
    broker.topic("gone.keys", 1, &[("cleanup.policy", "compact")]);
    write("newer");
    let stood = broker.read_until(&sealed, 1, 3).remove(0);
    assert_ne!(key_of(&stood[2]), key_of(&stood[1]));
    let open = topic(&sealed, &opened, "open", "unreadable = \"skip\"");
    let mut opening = Bridge::start(&desk.config("gone-open", &broker.address(), keys, &open), "o");
    let read = broker.read_until(&opened, 1, 1).remove(0);
    assert_eq!(read[0].value.as_deref(), Some(&b"newer"[..]));
    // A reader goes on with the keys that it has.
    broker.delete_topic("gone.keys");
    std::thread::sleep(Duration::from_secs(2));
    send(&writer, &sealed, 0, &stood[2]);
    settle(&writer);
    assert_eq!(broker.read_until(&opened, 1, 2)[0][1].value.as_deref(), Some(&b"newer"[..]));
    opening.stop();
    sealing.stop();
}

fn gaps(broker: &Broker) {
    let desk = Desk::new();
    let [plain, sealed, _] = three(broker, "gaps", 2);
    let seal = |name: &str, more: &str| {
        let what = topic(&plain, &sealed, "seal", "");
        let config = desk.config("gaps", &broker.address(), "folder = \"keys\"", &what);
        let text = fs::read_to_string(&config).unwrap();
        let config = desk.path(name);
        fs::write(&config, format!("{more}\n{text}")).unwrap();
        config
    };
    let (going, stopping) = (seal("going.toml", ""), seal("stopping.toml", "on_gap = \"stop\""));
    let log = desk.path("log");
    let writer = broker.writer();
    let write = |count: i64| {
        for number in 0..count {
            send(&writer, &plain, 0, &Rec::new("k", number.to_string(), 1_700_000_000_000 + number));
        }
        settle(&writer);
    };
    write(100);
    let mut bridge = Bridge::telling(&going, Some("a"), &log);
    broker.read_until(&sealed, 2, 100);
    assert_eq!(bridge.stop()["gaps"], serde_json::json!([]));
    write(100);
    broker.delete_records(&plain, 0, 150);
    let gap =
        |from: i64, to: i64| serde_json::json!({ "topic": plain, "partition": 0, "from": from, "to": to });
    let line = |from: i64, last: i64| format!("gap: {plain}/0: offsets {from} to {last} ");
    // A bridge set to stop in front of it does so each time, and learns of it from `check` as well.
    for arguments in [&[][..], &["check"][..], &[][..]] {
        let output = program().args(arguments).arg("--config").arg(&stopping).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(&line(100, 149)) && text.contains("on_gap"), "{text}");
    }
    let output = program().args(["check", "--config"]).arg(&going).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains(&line(100, 149)) && text.contains("remarks above: 2"),
        "{text}"
    );
    let mut bridge = Bridge::telling(&going, Some("a"), &log);
    broker.read_until(&sealed, 2, 150);
    said(&log, &line(100, 149));
    // Retention overtakes a bridge that runs.
    bridge.signal("-STOP");
    // A request that waits for records at the broker would still get them.
    std::thread::sleep(Duration::from_secs(2));
    write(100);
    broker.delete_records(&plain, 0, 270);
    bridge.signal("-CONT");
    broker.read_until(&sealed, 2, 180);
    let counters = bridge.stop();
    assert_eq!(counters["gaps"], serde_json::json!([gap(100, 150), gap(200, 270)]));
    // A gap without records behind it is one once.
    write(10);
    broker.delete_records(&plain, 0, 310);
    let mut bridge = Bridge::telling(&going, Some("a"), &log);
    said(&log, &line(300, 309));
    assert_eq!(bridge.stop()["gaps"], serde_json::json!([gap(300, 310)]));
    let mut bridge = Bridge::telling(&going, Some("a"), &log);
    write(1);
    broker.read_until(&sealed, 2, 181);
    assert_eq!(bridge.stop()["gaps"], serde_json::json!([]));
    // A topic that was made anew is read from its first record on.
    broker.delete_topic(&plain);
    std::thread::sleep(Duration::from_secs(1));
    broker.topic(&plain, 2, &[]);
    let writer = broker.writer();
    (0..20).for_each(|_| send(&writer, &plain, 0, &Rec::new("k", "anew", 1_700_000_000_000)));
    settle(&writer);
    let mut bridge = Bridge::telling(&going, Some("a"), &log);
    broker.read_until(&sealed, 2, 201);
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("no committed offset") || text.contains("was made anew"), "{text}");
    bridge.stop();
}

fn refused(broker: &Broker) {
    let desk = Desk::new();
    let (plain, sealed) = ("refuse.plain", "refuse.sealed");
    let future = ("message.timestamp.after.max.ms", "9000000000000000");
    broker.topic(plain, 3, &[future]);
    broker.topic(sealed, 3, &[("cleanup.policy", "compact")]);
    let writer = broker.writer();
    let good = |number: i64| Rec::new("k", format!("good {number}"), 1_700_000_000_000 + number);
    for partition in 0..3 {
        send(&writer, plain, partition, &good(0));
        match partition {
            // Microseconds, and no key for a compacted topic.
            0 => send(&writer, plain, 0, &Rec { time: Some(1_700_000_000_000_000), ..good(1) }),
            1 => send(&writer, plain, 1, &Rec { key: None, ..good(1) }),
            _ => {}
        }
        (2..30).for_each(|number| send(&writer, plain, partition, &good(number)));
    }
    settle(&writer);
    let seal =
        desk.config("refuse", &broker.address(), "folder = \"keys\"", &topic(plain, sealed, "seal", ""));
    let output = program().args(["check", "--config"]).arg(&seal).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("message.timestamp.after.max.ms"), "{output:?}");
    let log = desk.path("log");
    let mut bridge = Bridge::telling(&seal, None, &log);
    let read = broker.read_until(sealed, 3, 31);
    assert_eq!(read.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 29]);
    for (partition, setting) in [(0, "message.timestamp.after.max.ms"), (1, "without a key")] {
        let place = format!("{plain}/{partition}@1: refused: ");
        let text = said(&log, &place);
        let line = text.lines().find(|line| line.contains(&place)).unwrap();
        assert!(line.contains(setting) && line.contains(sealed), "{line}");
    }
    // The others go on.
    (30..40).for_each(|number| send(&writer, plain, 2, &good(number)));
    settle(&writer);
    assert_eq!(broker.read_until(sealed, 3, 41)[2].len(), 39);
    let counters = bridge.stop();
    assert_eq!(counters["topics"][plain]["unreadable"]["refused"], 2, "{counters}");
    assert_eq!((&counters["stopped_partitions"], &counters["restarts"]), (&2.into(), &0.into()));
}

fn too_large(broker: &Broker) {
    let desk = Desk::new();
    let (plain, sealed) = ("large.plain", "large.sealed");
    broker.topic(plain, 2, &[]);
    broker.topic(sealed, 2, &[("max.message.bytes", "100000")]);
    let writer = broker.writer();
    let all: Vec<_> = (0..50).map(|at| Rec::new("k", vec![b'v'; 10_000], 1_700_000_000_000 + at)).collect();
    all.iter().for_each(|record| send(&writer, plain, 0, record));
    settle(&writer);
    let seal =
        desk.config("large", &broker.address(), "folder = \"keys\"", &topic(plain, sealed, "seal", ""));
    let log = desk.path("log");
    let mut bridge = Bridge::telling(&seal, None, &log);
    // Together they are larger than the topic takes, one by one they are not.
    broker.read_until(sealed, 2, 50);
    (0..5).for_each(|_| send(&writer, plain, 1, &Rec::new("k", "small", 1_700_000_000_000)));
    send(&writer, plain, 1, &Rec::new("k", vec![b'v'; 100_000], 1_700_000_000_000));
    settle(&writer);
    assert_eq!(bridge.ends(), Some(1));
    let text = fs::read_to_string(&log).unwrap();
    let line = text.lines().last().unwrap();
    assert!(line.contains(&format!("{plain}/1@5")) && line.contains("max.message.bytes"), "{text}");
    assert!(line.contains(sealed) && !text.contains("do not acknowledge"), "{text}");
}

fn lacking(broker: &Broker) {
    let desk = Desk::new();
    let [plain, sealed, _] = three(broker, "lacking", 1);
    let seal =
        desk.config("lacking", &broker.address(), "folder = \"keys\"", &topic(&plain, &sealed, "seal", ""));
    let text = fs::read_to_string(&seal).unwrap();
    fs::write(&seal, text.replace("[kafka]\n", "[kafka]\n\"topic.metadata.refresh.interval.ms\" = 1000\n"))
        .unwrap();
    let log = desk.path("log");
    let mut bridge = Bridge::telling(&seal, None, &log);
    said(&log, "reading begins");
    broker.partitions(&plain, 2);
    let writer = broker.writer();
    let write = |partition| {
        send(&writer, &plain, partition, &Rec::new("k", "v", 1_700_000_000_000));
        settle(&writer);
    };
    write(1);
    let text = said(&log, &format!("{plain}/1@0: refused: "));
    assert!(text.contains("add partitions"), "{text}");
    write(0);
    assert_eq!(broker.read_until(&sealed, 1, 1)[0].len(), 1);
    assert!(fs::read_to_string(&log).unwrap().lines().count() < 10, "{text}");
    broker.partitions(&sealed, 2);
    assert_eq!(broker.read_until(&sealed, 2, 2)[1].len(), 1);
    bridge.stop();
}

fn settings_refused(broker: &Broker) {
    let desk = Desk::new();
    let [plain, sealed, _] = three(broker, "settings", 1);
    let config = |from: &str, to: &str| {
        let what = topic(&plain, &sealed, "seal", "");
        let path = desk.config("settings", &broker.address(), "folder = \"keys\"", &what);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        path
    };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("status = \"{}\"\n", taken.local_addr().unwrap());
    let first = "group = \"settings\"\n";
    let with = |line: &str| format!("{first}{line}");
    for (from, to, said) in [
        ("timeout_ms = 5000", "timeout_ms = 9000000".to_owned(), "transaction.max.timeout.ms"),
        ("\"session.timeout.ms\" = 6000", "\"session.timeout.ms\" = 501".to_owned(), "session.timeout.ms"),
        (
            "\"session.timeout.ms\" = 6000",
            "\"session.timeout.ms\" = 3000000".to_owned(),
            "session.timeout.ms",
        ),
        (first, with("status = \"here\"\n"), "HOST:PORT"),
        (first, with("status = \"0.0.0.0:0\"\n"), "status_public"),
        (first, with("status = \"/dev/null\"\n"), "no socket"),
        (first, with(&taken), "in use"),
        (first, with("instance = \"a b\"\n"), "instance"),
    ] {
        let config = config(from, &to);
        for arguments in [&["check"][..], &[][..]] {
            let mut bridge = program();
            let log = desk.path("log");
            bridge.args(arguments).arg("--config").arg(&config).stderr(fs::File::create(&log).unwrap());
            let code = Bridge(Some(bridge.spawn().unwrap())).ends();
            let text = fs::read_to_string(&log).unwrap();
            assert!(code == Some(1) && text.contains(said), "{arguments:?} {to}: {code:?} {text}");
        }
    }
    // A socket of this user's has the counters.
    let path = config(first, &with("status = \"./status\"\n"));
    let mut bridge = Bridge::start(&path, "s");
    broker.read_until(&sealed, 1, 0);
    let until = std::time::Instant::now() + Duration::from_secs(60);
    let mut stream = loop {
        match std::os::unix::net::UnixStream::connect(desk.path("status")) {
            Ok(stream) => break stream,
            Err(error) => assert!(std::time::Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("wattlock_bridge_transactions_total"), "{answer}");
    bridge.stop();
}

fn named(broker: &Broker) {
    let desk = Desk::new();
    let [plain, sealed, _] = three(broker, "named", 1);
    let seal =
        desk.config("named", &broker.address(), "folder = \"keys\"", &topic(&plain, &sealed, "seal", ""));
    let text = fs::read_to_string(&seal).unwrap();
    // A member that has to wait for its predecessor's session waits for longer than this test does.
    let long = "\"session.timeout.ms\" = 1800000\n\"max.poll.interval.ms\" = 1800000";
    let long = text.replace("\"session.timeout.ms\" = 6000", long);
    fs::write(&seal, long).unwrap();
    let writer = broker.writer();
    let mut count = 0;
    let mut write = || {
        send(&writer, &plain, 0, &Rec::new("k", "v", 1_700_000_000_000));
        settle(&writer);
        count += 1;
        broker.read_until(&sealed, 1, count);
    };
    let log = desk.path("log");
    let mut bridge = Bridge::telling(&seal, Some("one"), &log);
    write();
    bridge.kill();
    let mut bridge = Bridge::telling(&seal, Some("one"), &log);
    write();
    // The end of a terminal is an end in order, and others take over at once.
    bridge.stop_by("-HUP");
    let mut bridge = Bridge::telling(&seal, Some("two"), &log);
    write();
    // Of two members of one name the first ends, and says why.
    let mut twin = Bridge::telling(&seal, Some("two"), &desk.path("twin"));
    assert_eq!(bridge.ends(), Some(1));
    let why = fs::read_to_string(&log).unwrap();
    assert!(why.contains("another member has this name"), "{why}");
    write();
    twin.stop();
    // So does one that waits for brokers, before it asks a second time.
    let nowhere = desk.path("nowhere.toml");
    fs::write(&nowhere, text.replace(&broker.address(), "127.0.0.1:9")).unwrap();
    let mut bridge = Bridge::telling(&nowhere, None, &log);
    std::thread::sleep(Duration::from_secs(1));
    bridge.signal("-TERM");
    assert_eq!(bridge.ends(), Some(0));
    // What is started to outlive its terminal does.
    let mut command = Command::new("bash");
    command.args([
        "-c",
        "trap '' HUP; exec \"$0\" --json --config \"$1\"",
        env!("CARGO_BIN_EXE_wattlock-bridge"),
    ]);
    let mut bridge = Bridge(Some(command.arg(&seal).stdout(std::process::Stdio::piped()).spawn().unwrap()));
    write();
    bridge.signal("-HUP");
    write();
    bridge.stop();
}
