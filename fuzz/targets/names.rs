//! Stored names and values of extended attributes, and link targets: bytes of a backing folder. What opens was sealed
//! here, and what is sealed opens.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use wattlock_fs::names::{Extras, target_len, value_len};
use wattlock_fs::volume::{NameMode, Volume};
use wattlock_fuzz::{Bytes, Portable};
use zeroize::Zeroizing;

fn extras() -> &'static Extras {
    static EXTRAS: OnceLock<Extras> = OnceLock::new();
    EXTRAS.get_or_init(|| {
        let mut volume = Volume::generate(4096, NameMode::PerFolder).expect("a volume");
        volume.secret = Zeroizing::new([3; 32]);
        Extras::new(&volume, &mut Portable).expect("keys")
    })
}

fuzz_target!(|bytes: &[u8]| {
    let (extras, crypto) = (extras(), &mut Portable);
    let mut bytes = Bytes(bytes);
    let (how, at, name) = (bytes.byte(), bytes.number(2) as usize, bytes.part());
    let value = bytes.take(4096);
    // As they come: of the forms, not of our making.
    let _ = extras.open_target(value, crypto);
    let _ = extras.attribute_name(value, crypto);
    let _ = extras.open_value(name, value, crypto);
    assert!(target_len(value.len() as u64) <= value.len() as u64 && value_len(value.len()) <= value.len());
    let flip = |stored: &mut Vec<u8>| match how % 4 {
        0 => false,
        1 if stored.is_empty() => false,
        1 => {
            let at = at % stored.len();
            stored[at] ^= 1 << (how >> 5);
            true
        }
        2 => {
            let all = stored.len();
            stored.truncate(at);
            stored.len() != all
        }
        _ => {
            stored.insert(at % (stored.len() + 1), how);
            true
        }
    };
    if let Ok(stored) = extras.seal_target(value, crypto) {
        assert_eq!(target_len(stored.len() as u64), value.len() as u64);
        let mut stored = stored.into_bytes();
        let altered = flip(&mut stored);
        assert_eq!(extras.open_target(&stored, crypto).ok().as_deref(), Some(value).filter(|_| !altered));
    }
    let Ok(stored) = extras.attribute(name, crypto) else { return };
    assert!(stored.len() <= 255);
    assert_eq!(extras.attribute_name(&stored, crypto).expect("ours").as_deref(), Some(name));
    let mut sealed = extras.seal_value(name, value, crypto).expect("it can be sealed");
    let clear = sealed == value;
    assert!(clear || value_len(sealed.len()) == value.len());
    let altered = flip(&mut sealed);
    let opened = extras.open_value(name, &sealed, crypto);
    assert!(clear || opened.ok().as_deref() == Some(value).filter(|_| !altered));
});
