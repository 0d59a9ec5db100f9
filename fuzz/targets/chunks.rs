//! The chunk reader under a known key, in memory: the input says how long a content is and how its sealed form is
//! mangled, so that most inputs get past the first tag. What opens must be what was sealed. `pipeline` has whole files.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use wattlock_files::format::payload::{PayloadKey, open_slice, seal_slice};
use wattlock_fuzz::Portable;

static KEYS: OnceLock<[PayloadKey; 2]> = OnceLock::new();

fn keys() -> &'static [PayloadKey; 2] {
    KEYS.get_or_init(|| {
        let (cobblestone, _) =
            PayloadKey::cobblestone(&[1; 32], &[2; 24], b"header", &mut Portable).expect("fixed key");
        [cobblestone, PayloadKey::age(&[3; 16], &[4; 16], &mut Portable).expect("fixed key")]
    })
}

fuzz_target!(|bytes: &[u8]| {
    let [which, len_high, len_low, how, at_high, at_low, rest @ ..] = bytes else { return };
    let key = &keys()[usize::from(which & 1)];
    // Anything at all: almost never opens, always ends.
    let _ = open_slice(key, rest, &mut Portable);
    // Up to 32 of Cobblestone's chunks, which are small here, and 8 of age's.
    let len = usize::from(u16::from_be_bytes([*len_high, *len_low])) % 2048;
    let plain: Vec<u8> = (0..len).map(|i| i as u8).collect();
    let sealed = seal_slice(key, &plain, &mut Portable).expect("short enough");
    assert_eq!(open_slice(key, &sealed, &mut Portable).expect("untouched")[..], plain[..]);
    let at = usize::from(u16::from_be_bytes([*at_high, *at_low])) % sealed.len();
    let mut altered = sealed.clone();
    match how % 4 {
        0 => altered[at] ^= 1 << (how >> 5),
        1 => altered.truncate(at),
        2 => altered.extend_from_slice(rest),
        _ => drop(altered.splice(at..at, rest.iter().copied())),
    }
    assert_eq!(open_slice(key, &altered, &mut Portable).is_ok(), altered == sealed);
});
