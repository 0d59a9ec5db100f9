//! The bridge's configuration: what is taken keeps the promises that the bridge rests on, what is refused says why.
#![no_main]

use libfuzzer_sys::fuzz_target;

/// The bridge's own file: the crate itself compiles librdkafka.
#[allow(dead_code, reason = "what the bridge uses and this target does not")]
#[path = "../../crates/wattlock-bridge/src/config.rs"]
mod config;

use config::{Config, RecordKeys};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let config = match Config::parse(text) {
        Ok(config) => config,
        Err(error) => {
            assert!(!format!("{error:#}").is_empty());
            return;
        }
    };
    assert!(!config.group.is_empty() && !config.topics.is_empty());
    assert!(config.transaction.bytes > 0 && config.transaction.bytes <= config.window);
    assert!(config.window <= 1 << 31 && config.transaction.records > 0);
    // Times are added to the clock.
    let now = std::time::Instant::now();
    assert!(now.checked_add(config.transaction.hold()).is_some(), "no clock goes so far");
    assert!(now.checked_add(config.transaction.timeout()).is_some(), "no clock goes so far");
    for topic in &config.topics {
        assert!(!topic.bound().is_empty());
        let names = topic.names_key().expect("it was validated");
        assert_eq!(names.is_some(), topic.record_keys == RecordKeys::Deterministic);
        assert!(config.topics.iter().all(|other| other.from != topic.to), "a topic that is read and written");
    }
});
