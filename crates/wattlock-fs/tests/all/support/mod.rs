//! What the tests of contents share.
#![allow(dead_code, clippy::unwrap_used, reason = "no test uses all of it")]

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use wattlock::{Dispatcher, Runtime};
use wattlock_door::Crypto;
use wattlock_fs::content::Content;
use wattlock_fs::dev::SimStore;
use wattlock_fs::store::Place;
use wattlock_fs::volume::{NameMode, Volume};
use zeroize::Zeroizing;

/// Bytes of content in a chunk.
pub const CHUNK: u64 = 4096;

pub fn volume() -> Volume {
    Volume {
        id: [1; 16],
        keys: vec![(1, Zeroizing::new([7; 32]))],
        ..Volume::generate(4096, NameMode::Plain).unwrap()
    }
}

/// Where a file is below a folder, by its inode of now.
pub fn place(folder: &Path, name: &str) -> Place {
    let meta = std::fs::metadata(folder.join(name)).unwrap();
    Place { inode: (meta.dev(), meta.ino()), path: name.into() }
}

pub fn crypto() -> Dispatcher {
    Runtime::builder().telemetry(false).build().unwrap().dispatcher()
}

pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

pub fn whole(content: &Content<SimStore>, crypto: &mut impl Crypto) -> Vec<u8> {
    let mut bytes = vec![0xee; content.len() as usize + 10];
    let len = content.read(&mut bytes, 0, crypto).unwrap();
    assert_eq!(len as u64, content.len());
    bytes.truncate(len);
    bytes
}
