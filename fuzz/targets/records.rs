//! Sealed records of a broker's topic, keys of records, and entries of stream keys: as anybody may write them, right ones
//! that were mangled, and content that somebody sealed who has the key.
#![no_main]

use std::collections::HashMap;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use wattlock_core::{Item, Request};
use wattlock_door::Crypto;
use wattlock_fuzz::{Bytes, Portable};
use wattlock_stream::keys::{Keys, Shelf};
use wattlock_stream::names::RecordNames;
use wattlock_stream::record::{Place, Record, RecordOpener, RecordSealer, StreamId, StreamKeys};
use wattlock_stream::trust::{Signer, SignerName};
use wattlock_stream::{Error, Header};
use zeroize::Zeroizing;

const KEY: [u8; 32] = [7; 32];
const PLACE: Place<'static> = Place { topic: "orders", partition: 3 };

struct One;

impl StreamKeys for One {
    fn find(&mut self, id: StreamId, crypto: &mut dyn Crypto) -> Result<Option<Zeroizing<[u8; 32]>>, Error> {
        Ok((StreamId::of(&KEY, crypto)? == id).then(|| Zeroizing::new(KEY)))
    }
}

/// Writes into a record what a fuzzer says in place of what the sealer would.
struct Forging<'a>(&'a [u8]);

impl Crypto for Forging<'_> {
    fn run(&mut self, request: &mut Request<'_>) -> Result<usize, wattlock_core::Error> {
        Portable.run(request)
    }

    fn run_all(&mut self, items: &mut [Item<'_>]) {
        for item in items {
            let text = item.request.data.gathered();
            let len = text.len().min(self.0.len());
            text[..len].copy_from_slice(&self.0[..len]);
            item.result = Portable.run(&mut item.request);
        }
    }
}

#[derive(Default)]
struct Memory(HashMap<StreamId, Vec<u8>>);

impl Shelf for Memory {
    fn names(&mut self) -> Result<Vec<StreamId>, Error> {
        Ok(self.0.keys().copied().collect())
    }

    fn get(&mut self, id: StreamId) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.0.get(&id).cloned())
    }

    fn put(&mut self, id: StreamId, bytes: &[u8]) -> Result<(), Error> {
        self.0.insert(id, bytes.to_vec());
        Ok(())
    }

    fn remove(&mut self, id: StreamId) -> Result<bool, Error> {
        Ok(self.0.remove(&id).is_some())
    }
}

fn sealer() -> &'static RecordSealer {
    static SEALER: OnceLock<RecordSealer> = OnceLock::new();
    SEALER.get_or_init(|| RecordSealer::new(Zeroizing::new(KEY), &mut Portable).expect("it derives"))
}

fn header<'a>(bytes: &mut Bytes<'a>) -> Option<Header<'a>> {
    let name = std::str::from_utf8(bytes.part()).ok()?;
    let value = if bytes.byte() < 200 { Some(bytes.part()) } else { None };
    Some(Header { name, value })
}

fn altered(sealed: &[u8], how: u8, at: usize) -> Vec<u8> {
    let mut altered = sealed.to_vec();
    match how % 4 {
        0 => {}
        1 => altered[at % sealed.len()] ^= 1 << (how >> 5),
        2 => altered.truncate(at % sealed.len()),
        _ => altered.push(how),
    }
    altered
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    match bytes.byte() % 4 {
        0 => anybodys(bytes),
        1 => mangled(bytes),
        2 => forged(bytes),
        _ => entries(bytes),
    }
});

fn anybodys(mut bytes: Bytes<'_>) {
    let tombstone = bytes.byte() < 60;
    let headers: Vec<Header<'_>> = (0..bytes.below(5)).map_while(|_| header(&mut bytes)).collect();
    // With the right version and key's name the rest is looked at.
    let mut value = bytes.take(4096).to_vec();
    if bytes.byte() < 128 && value.len() > 17 {
        value[0] = 1;
        value[1..17].copy_from_slice(&sealer().id().0);
    }
    let record = Record { value: (!tombstone).then_some(&value), headers: &headers, ..Record::default() };
    let mut opened = RecordOpener::new(One).open_batch(PLACE, &[record], &mut Portable);
    assert!(opened.get(0).is_err(), "nobody has the key");
    let names = RecordNames::new(&KEY, "orders", &mut Portable).expect("it derives");
    assert!(names.show(&[Some(&value)], &mut Portable)[0].is_err());
    if let Ok(text) = std::str::from_utf8(&value) {
        let _ = Signer::parse(text);
        if let Ok(id) = text.parse::<StreamId>() {
            assert_eq!(id.to_string(), text);
        }
        if let Ok(name) = text.parse::<SignerName>() {
            assert_eq!(name.to_string(), text);
        }
    }
}

fn mangled(mut bytes: Bytes<'_>) {
    let (how, at, which) = (bytes.byte(), bytes.number(2) as usize, bytes.byte());
    let headers: Vec<Header<'_>> = (0..bytes.below(5)).map_while(|_| header(&mut bytes)).collect();
    let headers: Vec<Header<'_>> =
        headers.into_iter().filter(|header| header.name != wattlock_stream::record::PROOF).collect();
    let (key, value) = (bytes.part(), bytes.take(3000));
    let record = Record { key: Some(key), value: Some(value), timestamp: Some(5), headers: &headers };
    let batch = [record, Record { value: None, ..record }];
    let sealed = sealer().seal_batch(PLACE, &batch, &mut Portable).expect("it can be sealed");
    let wrong = altered(sealed.get(0), how, at);
    let proof = [Header { name: wattlock_stream::record::PROOF, value: Some(sealed.get(1)) }];
    let timestamp = if which == 1 { Some(6) } else { Some(5) };
    let place = if which == 2 { Place { partition: 4, ..PLACE } } else { PLACE };
    let topic = [
        Record { value: Some(&wrong), headers: &[], timestamp, ..record },
        Record { value: None, headers: &proof, timestamp, ..record },
    ];
    let mut opened = RecordOpener::new(One).open_batch(place, &topic, &mut Portable);
    let right = wrong == sealed.get(0) && !matches!(which, 1 | 2);
    match opened.get(0) {
        Ok(got) => assert!(right && got.value == Some(value) && got.headers(&[]) == headers),
        Err(_) => assert!(!right),
    }
    match opened.get(1) {
        Ok(got) => assert!(!matches!(which, 1 | 2) && got.value.is_none() && got.headers(&proof) == headers),
        Err(_) => assert!(matches!(which, 1 | 2)),
    }
}

fn forged(mut bytes: Bytes<'_>) {
    let content = bytes.take(2000);
    let value = vec![0; content.len().saturating_sub(1)];
    let record = Record { value: Some(&value), ..Record::default() };
    let tombstone = Record { value: None, ..record };
    let batch = [record, tombstone];
    let sealed = sealer().seal_batch(PLACE, &batch, &mut Forging(content)).expect("it can be sealed");
    let clear = [Header { name: "clear", value: None }];
    let proof = [Header { name: wattlock_stream::record::PROOF, value: Some(sealed.get(1)) }];
    let topic =
        [Record { value: Some(sealed.get(0)), ..record }, Record { value: None, headers: &proof, ..record }];
    let mut opener = RecordOpener::new(One);
    opener.value_max = 1 << 20;
    let mut opened = opener.open_batch(PLACE, &topic, &mut Portable);
    for number in 0..2 {
        if let Ok(got) = opened.get(number) {
            assert!(got.value.is_none_or(|value| value.len() <= 1 << 20));
            let _ = got.headers(&clear);
        }
    }
}

fn entries(mut bytes: Bytes<'_>) {
    let id = StreamId([5; 16]);
    let (version, len) = (bytes.byte(), bytes.byte());
    let mut entry = bytes.take(4096).to_vec();
    if version < 200 && entry.len() > 16 {
        // The fixed bytes, so that what follows is looked at.
        entry[..8].copy_from_slice(&[0x8b, b'w', b'a', b't', b't', b'l', b'r', 0x0a]);
        entry[8..12].copy_from_slice(&u32::from(version % 4).to_be_bytes());
        if len < 250 {
            entry[12..16].copy_from_slice(&u32::from(len).to_be_bytes());
        }
    }
    let mut keys = Keys::new(Memory(HashMap::from([(id, entry)])));
    let (found, damaged) = keys.list().expect("a shelf in memory");
    assert_eq!(found.len() + damaged.len(), 1);
    let opener = wattlock_files::Opener::new(Vec::new());
    assert!(keys.find(id, &opener, &mut Portable).is_err(), "nobody has an identity");
    assert!(keys.trusting(Vec::new()).find(id, &opener, &mut Portable).is_err());
}
