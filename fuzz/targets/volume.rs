//! What a volume's own file says once it is opened, and the header of each of its files: whatever parses is written as
//! the same bytes again, and lengths of content and of backing files belong together.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wattlock_fs::format::{Geometry, HEADER_LEN, Header};
use wattlock_fs::volume::{CHUNKS, Volume};
use wattlock_fuzz::{Bytes, Portable};

fuzz_target!(|bytes: &[u8]| {
    header(bytes);
    lengths(Bytes(bytes));
    let Ok(mut volume) = Volume::parse(bytes) else { return };
    let text = volume.to_text();
    let again = Volume::parse(text.as_bytes()).expect("what was written is read");
    assert_eq!(*again.to_text(), *text);
    let (before, generation) = (volume.keys.len(), volume.generation());
    assert!(before > 0 && generation > 0);
    let mut key = [0; 32];
    volume.derive(generation, "files", &mut key, &mut Portable).expect("it has that key");
    match volume.add_generation() {
        Ok(next) => assert!(next > generation && volume.keys.len() == before + 1),
        Err(_) => assert!(generation == u32::MAX && volume.keys.len() == before),
    }
});

fn header(bytes: &[u8]) {
    let Ok(header) = Header::parse(bytes) else { return };
    assert_eq!(header.encode()[..], bytes[..HEADER_LEN]);
}

fn lengths(mut bytes: Bytes<'_>) {
    let geometry = Geometry::new(bytes.pick(&CHUNKS)).expect("it is one");
    let stored = bytes.number(8);
    let lenient = geometry.content_len_lenient(stored);
    if let Some(len) = geometry.content_len(stored) {
        assert_eq!(len, lenient);
        if len <= geometry.max_len() {
            assert_eq!(geometry.stored_len(len), stored);
        }
    }
}
