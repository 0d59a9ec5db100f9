//! A volume's journal: bytes that anybody may have written, a right one that was mangled, and one of somebody who has the
//! key and writes any operation in any order. Starting ends, with an error or with files that can be read and written.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use wattlock_core::{Algorithm, Data, Key, Kind, Request};
use wattlock_door::Crypto;
use wattlock_fs::content::Contents;
use wattlock_fs::dev::SimStore;
use wattlock_fs::store::JOURNAL;
use wattlock_fs::volume::{NameMode, Volume};
use wattlock_fuzz::{Bytes, Portable};
use zeroize::Zeroizing;

const CONTENT: usize = 5 * 4096 + 99;
const SALT: [u8; 32] = [5; 32];

struct World {
    volume: Volume,
    /// A file that is in place, and a journal that has a write to it.
    file: Vec<u8>,
    journal: Vec<u8>,
    id: u64,
    /// What seals records under [`SALT`].
    key: Key,
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let crypto = &mut Portable;
        let mut volume = Volume::generate(4096, NameMode::Plain).expect("a volume");
        volume.keys = vec![(1, Zeroizing::new([7; 32]))];
        let store = SimStore::default();
        let contents = Contents::start(store.clone(), &volume, crypto).expect("an empty one starts").0;
        let (file, place) = store.create("file");
        let content = contents.create(file, place, crypto).expect("a file");
        content.write(&[1; CONTENT], 0, crypto).expect("room");
        contents.checkpoint(crypto).expect("no failure");
        let file = store.bytes("file");
        content.write(&[2; 6000], 3000, crypto).expect("room");
        content.sync(crypto).expect("no failure");
        let mut id = [0; 8];
        id.copy_from_slice(&file[16..24]);
        let mut secret = [0; 32];
        volume.derive(1, "journal", &mut secret, crypto).expect("its key");
        let secret = Key::symmetric(Algorithm::Secret, &secret).expect("a key");
        let (mut key, info) = ([0; 32], [&b"wattlock fs 1 journal "[..], &SALT].concat());
        let data = Data::Apart { from: &[], to: &mut key };
        let mut request = Request { aad: &info, ..Request::new(Kind::HkdfExpandSha256, &secret, data) };
        crypto.run(&mut request).expect("it derives");
        let key = Key::symmetric(Algorithm::Aes256Gcm, &key).expect("a key");
        World { journal: store.bytes(JOURNAL), volume, file, id: u64::from_be_bytes(id), key }
    })
}

fn seal(nonce: [u8; 12], aad: &[u8], mut text: Vec<u8>) -> Vec<u8> {
    let mut tag = [0; 16];
    let data = Data::InPlace(&mut text);
    let request = Request::new(Kind::Aes256GcmSeal, &world().key, data);
    Portable.run(&mut Request { nonce: &nonce, aad, tag: &mut tag, ..request }).expect("it seals");
    [aad, &text, &tag].concat()
}

/// A number: small, at an edge, or any.
fn odd(bytes: &mut Bytes<'_>) -> u64 {
    match bytes.byte() {
        small @ 0..=199 => u64::from(small) % 12,
        200..=219 => u64::MAX - bytes.number(1),
        220..=229 => (1 << (bytes.byte() % 64)) - u64::from(bytes.byte() % 2),
        230..=239 => bytes.number(3),
        _ => bytes.number(8),
    }
}

fn operations(bytes: &mut Bytes<'_>, count: usize) -> Vec<u8> {
    let mut ops = Vec::new();
    for _ in 0..count {
        let (code, number) = (bytes.byte() % 9, bytes.byte() % 3);
        ops.push(code);
        if code == 1 {
            ops.extend(odd(bytes).to_be_bytes());
            continue;
        }
        ops.extend(u32::from(number).to_be_bytes());
        match code {
            2 => {
                let id = if bytes.byte() < 240 { world().id } else { odd(bytes) };
                let path: &[u8] = if bytes.byte() < 200 { b"file" } else { bytes.take(5) };
                for value in [id, 1, odd(bytes), odd(bytes)] {
                    ops.extend(value.to_be_bytes());
                }
                ops.extend((path.len() as u16).to_be_bytes());
                ops.extend(path);
            }
            3 => {
                ops.extend(odd(bytes).to_be_bytes());
                ops.extend((odd(bytes) as u32).to_be_bytes());
                let full = bytes.byte() < 128;
                ops.extend(if full { 4136 } else { odd(bytes) as u32 }.to_be_bytes());
            }
            4 => {
                ops.extend(odd(bytes).to_be_bytes());
                ops.push(odd(bytes) as u8);
            }
            5 | 6 => ops.extend(odd(bytes).to_be_bytes()),
            _ => {}
        }
    }
    ops
}

/// Of somebody who has the key.
fn forged(bytes: &mut Bytes<'_>) -> Vec<u8> {
    let epoch = odd(bytes);
    let mut journal = Vec::new();
    for (at, epoch) in [(0, epoch), (4096, epoch.wrapping_sub(1))] {
        let ranges = bytes.below(5);
        let mut head = [&b"wattlojh"[..], &[1, 0, 0, 0], &1_u32.to_be_bytes(), &epoch.to_be_bytes()].concat();
        head.extend(SALT);
        head.extend((ranges as u32).to_be_bytes());
        head.extend(odd(bytes).to_be_bytes());
        let starts = (0..ranges).flat_map(|_| odd(bytes).to_be_bytes()).collect();
        journal.resize(at, 0);
        journal.extend(seal([0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255], &head, starts));
    }
    journal.resize(8192, 0);
    let (mut number, count) = (0_u64, bytes.below(6));
    for _ in 0..count {
        number = number.wrapping_add(1 + odd(bytes) / 4);
        let blob_len = [0, 48, 96, 4136, 2 * 4136][bytes.below(5)] + odd(bytes) as usize % 50;
        let count = bytes.below(6);
        let durable = if bytes.byte() < 200 { 8192 } else { odd(bytes) };
        let ops = [&durable.to_be_bytes()[..], &operations(bytes, count)].concat();
        let mut head = [&b"wattlojr"[..], &number.to_be_bytes(), &(blob_len as u32).to_be_bytes()].concat();
        head.extend((ops.len() as u32).to_be_bytes());
        head.extend(odd(bytes).to_be_bytes());
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&head[24..32]);
        nonce[8..].copy_from_slice(&head[12..16]);
        // What is in the file's own slots opens.
        head.extend(world().file.iter().skip(96).copied().chain(std::iter::repeat(0)).take(blob_len));
        journal.extend(seal(nonce, &head, ops));
        journal.resize(journal.len().next_multiple_of(8), 0);
    }
    journal
}

fn mangled(bytes: &mut Bytes<'_>) -> Vec<u8> {
    let mut journal = world().journal.clone();
    for _ in 0..bytes.below(6) {
        // Most of it is blob: heads and the ends of records are worth more.
        let len = journal.len().max(1);
        let at = match bytes.byte() % 4 {
            0 => bytes.below(600),
            1 => 4096 + bytes.below(600),
            2 => 8192 + bytes.below(200),
            _ => bytes.below(len),
        };
        let (how, value) = (bytes.byte(), bytes.byte());
        match how % 4 {
            0 => journal.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= value),
            1 => journal.truncate(at),
            2 => journal.extend_from_within(at.min(journal.len())..(at + 4096).min(journal.len())),
            _ => journal.iter_mut().skip(at).take(usize::from(value)).for_each(|byte| *byte = 0),
        }
    }
    journal
}

fuzz_target!(|bytes: &[u8]| {
    let (mut bytes, crypto) = (Bytes(bytes), &mut Portable);
    let (how, world) = (bytes.byte() % 4, world());
    let journal = match how {
        0 => bytes.take(1 << 16).to_vec(),
        1 => [&world.journal[..8192], bytes.take(1 << 16)].concat(),
        2 => mangled(&mut bytes),
        _ => forged(&mut bytes),
    };
    let store = SimStore::default();
    store.put("file", &world.file);
    store.put(JOURNAL, &journal);
    let Ok((contents, recovered)) = Contents::start(store.clone(), &world.volume, crypto) else {
        assert!(how != 2 || journal != world.journal);
        return;
    };
    assert!(recovered.lines.iter().all(|line| !line.contains('\n')));
    let (file, place) = store.open("file").expect("it is there");
    let Ok(content) = contents.open(file, place, crypto) else { return };
    let len = content.len();
    let mut read = vec![0; 9000];
    for at in [0, 4096, len.saturating_sub(5000)] {
        if let Ok(got) = content.read(&mut read, at, crypto)
            && how < 3
        {
            // Without the key there is nothing but what was written.
            assert!(read[..got].iter().all(|byte| matches!(byte, 1 | 2)), "other bytes");
        }
    }
    if content.append(b"more", crypto).is_ok() && content.sync(crypto).is_ok() {
        let mut more = [0; 4];
        let at = content.len() - 4;
        assert_eq!(content.read(&mut more, at, crypto).ok(), Some(4));
        assert_eq!(&more, b"more");
    }
    let _ = contents.checkpoint(crypto);
});
