//! Seals records one by one as a bridge does, without a broker: `scripts/release/corpus.py` makes topics with it.
//!
//! `seal_records IDENTITY KEYS NAME TOPIC PARTITION [clear=HEADER]... [compress] [names=NAME] <RECORDS >SEALED`: the stream
//! key NAME of the folder KEYS seals all records as one batch. Records are lines of JSON with `key`, `time`, `value` and
//! `headers`, bytes in hexadecimal digits; sealed ones have `partition`, too, and are what `read_stream.py` takes. With
//! `names` record keys are hidden under that stream key.

use std::error::Error;
use std::io::Read;
use std::path::Path;

use serde_json::{Value, json};
use wattlock::{Dispatcher, Runtime};
use wattlock_files::age::NoCallbacks;
use wattlock_files::{Opener, keys as age_keys};
use wattlock_stream::Header;
use wattlock_stream::keys::{Folder, Keys};
use wattlock_stream::names::RecordNames;
use wattlock_stream::record::{PROOF, Place, Record, RecordSealer, Shape, StreamId};
use zeroize::Zeroizing;

type Done<T> = Result<T, Box<dyn Error>>;

fn bytes(digits: &str) -> Done<Vec<u8>> {
    let pair = |at| Ok(u8::from_str_radix(digits.get(at..at + 2).ok_or("an odd digit")?, 16)?);
    (0..digits.len()).step_by(2).map(pair).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn part(value: &Value) -> Done<Option<Vec<u8>>> {
    value.as_str().map(bytes).transpose()
}

/// A record in the clear.
struct Plain {
    key: Option<Vec<u8>>,
    time: Option<i64>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Plain {
    fn parse(line: &str) -> Done<Plain> {
        let line: Value = serde_json::from_str(line)?;
        let header = |pair: &Value| Ok((pair[0].as_str().ok_or("no name")?.to_owned(), part(&pair[1])?));
        let headers =
            line["headers"].as_array().map_or(Ok(Vec::new()), |all| all.iter().map(header).collect());
        Ok(Plain {
            key: part(&line["key"])?,
            time: line["time"].as_i64(),
            value: part(&line["value"])?,
            headers: headers.map_err(|error: Box<dyn Error>| error)?,
        })
    }
}

/// A stream key of the folder.
fn find(folder: &str, name: &str, opener: &Opener, crypto: &mut Dispatcher) -> Done<Zeroizing<[u8; 32]>> {
    let id: StreamId = name.parse()?;
    Ok(Keys::new(Folder::open(Path::new(folder))?).find(id, opener, crypto)?.ok_or("no such key")?)
}

fn main() -> Done<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [identity, folder, name, topic, partition, options @ ..] = &words[..] else {
        return Err("IDENTITY KEYS NAME TOPIC PARTITION [clear=HEADER]... [compress] [names=NAME]".into());
    };
    let partition = partition.parse()?;
    let runtime = Runtime::builder().telemetry(false).build()?;
    let crypto = &mut runtime.dispatcher();
    let opener = Opener::new(age_keys::identities(&std::fs::read(identity)?, NoCallbacks)?);
    let mut sealer = RecordSealer::new(find(folder, name, &opener, crypto)?, crypto)?;
    let clear =
        options.iter().filter_map(|option| option.strip_prefix("clear=")).map(str::to_owned).collect();
    sealer.shape =
        Shape { clear_headers: clear, compress: options.iter().any(|option| option == "compress") };

    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let mut plain: Vec<Plain> = text.lines().map(Plain::parse).collect::<Done<_>>()?;
    if let Some(names) = options.iter().find_map(|option| option.strip_prefix("names=")) {
        let names = RecordNames::new(&*find(folder, names, &opener, crypto)?, topic, crypto)?;
        let shown: Vec<Option<&[u8]>> = plain.iter().map(|record| record.key.as_deref()).collect();
        let hidden = names.hide(&shown, crypto)?;
        plain.iter_mut().zip(hidden).for_each(|(record, key)| record.key = key);
    }
    let headers: Vec<Vec<Header<'_>>> = plain
        .iter()
        .map(|record| record.headers.iter().map(|(name, value)| Header { name, value: value.as_deref() }))
        .map(Iterator::collect)
        .collect();
    let records: Vec<Record<'_>> = plain
        .iter()
        .zip(&headers)
        .map(|(record, headers)| Record {
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            timestamp: record.time,
            headers,
        })
        .collect();
    let sealed = sealer.seal_batch(Place { topic, partition }, &records, crypto)?;
    for (number, record) in records.iter().enumerate() {
        let clear = record.headers.iter().filter(|header| sealer.shape.is_clear(header.name));
        let mut headers: Vec<Value> =
            clear.map(|header| json!([header.name, header.value.map(hex)])).collect();
        let value = match record.value {
            Some(_) => Some(hex(sealed.get(number))),
            None => {
                headers.push(json!([PROOF, hex(sealed.get(number))]));
                None
            }
        };
        let (key, time) = (record.key.map(hex), record.timestamp);
        println!(
            "{}",
            json!({"partition": partition, "key": key, "time": time, "value": value, "headers": headers})
        );
    }
    Ok(())
}
