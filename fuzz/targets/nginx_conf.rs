//! `nginx.conf`, as `wattlock nginx enable` edits it: what is refused says why in one line; where Wattlock was enabled,
//! disabling gives back every byte, and enabling a second time changes nothing.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;

/// The command line's own file.
#[allow(dead_code, reason = "what the commands use and this target does not")]
#[path = "../../crates/wattlock-cli/src/nginx/edit.rs"]
mod edit;

// What it takes of this crate, which has every engine in it: paths here have nothing that it refuses.
extern crate self as wattlock_shell;

pub mod nginx {
    pub mod server {
        pub const HYBRID: &str = "X25519MLKEM768";
    }

    pub mod place {
        pub fn plain(_text: &str) -> anyhow::Result<()> {
            Ok(())
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let without = edit::disabled(text);
    assert!(edit::is_enabled(text) || without == text);
    let _ = edit::modules(text);
    let confs = [None, Some(Path::new("/etc/wattlock/nginx-openssl.cnf"))];
    for (at, conf) in (0..8).zip(confs.into_iter().cycle()) {
        let (environment, hybrid) = (at & 2 != 0, at & 4 != 0);
        let wish = edit::Wish { module: Some(Path::new("/m/wattlock.so")), conf, environment, hybrid };
        let on = match edit::enabled(text, &wish) {
            Ok(on) => on,
            Err(error) => {
                assert!(!format!("{error:#}").contains('\n'), "{error:#}");
                continue;
            }
        };
        assert!(edit::is_enabled(&on) && edit::disabled(&on) == without, "not every byte came back");
        assert_eq!(edit::modules(&on), [Path::new("/m/wattlock.so")]);
        let again = edit::enabled(&on, &wish).expect("a second time");
        assert!(again == on, "a second time changes something");
        assert!(edit::diff(Path::new("f"), text, &on).starts_with("--- f\n+++ f\n"));
    }
});
