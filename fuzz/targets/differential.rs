//! OpenSSL's default provider and Wattlock's beside each other: the bytes choose the calls on both, ciphers, derivations
//! and keys (with digests, signatures and MACs inside these), and every result, byte and error is compared. The calls are
//! those of the provider's own test of this name; what may differ is in its table of rules, with reasons.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/wattlock-provider/tests/beside/mod.rs"]
mod beside;

fn both() -> &'static beside::Beside {
    static BOTH: OnceLock<beside::Beside> = OnceLock::new();
    BOTH.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("wattlock-differential-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for a configuration");
        let both = beside::Beside::load(&folder);
        // It is read once.
        let _ = std::fs::remove_dir_all(&folder);
        both
    })
}

fuzz_target!(|bytes: &[u8]| {
    beside::sequence(both(), bytes);
});
