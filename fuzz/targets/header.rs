//! The header of a sealed file, from its first byte: whatever parses encodes to the same bytes again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wattlock_files::format::header;

fuzz_target!(|bytes: &[u8]| {
    let Ok(key_file) = header::parse(bytes) else { return };
    let again = header::encode(key_file).expect("what was read can be written");
    assert!(bytes.starts_with(&again));
});
