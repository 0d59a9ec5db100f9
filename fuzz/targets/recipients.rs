//! Recipients, recipients files, identity files and armor: what the command line reads from people and their files.
#![no_main]

use std::io::Read;

use libfuzzer_sys::fuzz_target;
use wattlock_files::{age::NoCallbacks, format::armor, keys};

fuzz_target!(|bytes: &[u8]| {
    let mut recipients = keys::Recipients::new();
    let _ = recipients.add_file(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = recipients.add(text);
    }
    if let Err(error) = keys::identities(bytes, NoCallbacks) {
        assert!(!error.to_string().contains('\n'));
    }
    if let Ok(mut reader) = armor::Reader::new(bytes) {
        let mut content = Vec::new();
        if reader.read_to_end(&mut content).is_ok() {
            assert!(content.len() < bytes.len());
        }
    }
});
