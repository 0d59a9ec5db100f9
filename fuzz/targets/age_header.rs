//! The header of an age file: text from outside, parsed before anything about it is authenticated.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wattlock_files::format::age;

fuzz_target!(|bytes: &[u8]| {
    let parsed = age::parse_header(bytes);
    let Ok(header) = parsed else { return };
    assert!(header.len <= bytes.len() && !header.stanzas.is_empty());
    assert_eq!(age::find_end(bytes, 0), Some(header.len));
    // Cut anywhere, it is no longer whole; with anything behind it, it is the same.
    assert!(age::parse_header(&bytes[..header.len - 1]).is_err());
    assert_eq!(age::parse_header(&bytes[..header.len]).expect("it was whole").len, header.len);
});
