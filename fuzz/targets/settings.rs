//! Settings of policies, as `--set` and the provider's configuration give them, one `key=value` a line: what is refused
//! changes nothing and says why in one line; with what is taken, every policy can be made.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wattlock_policy::Settings;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut settings = Settings::default();
    for pair in text.lines() {
        let before = settings.clone();
        match settings.set(pair) {
            Ok(()) => {
                let key = pair.split('=').next().map(str::trim).expect("there is a first");
                assert!(Settings::KEYS.contains(&key), "{key:?}");
                let mut again = settings.clone();
                assert!(again.set(pair).is_ok() && again == settings, "{pair:?} twice is not once");
            }
            Err(error) => {
                assert!(before == settings && !error.to_string().contains('\n'));
            }
        }
    }
});
