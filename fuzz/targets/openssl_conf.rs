//! `openssl.cnf`, as `wattlock openssl enable` edits it: what is refused says why in one line; where Wattlock was enabled,
//! disabling gives back every byte, also with lines that somebody added behind the block.
#![no_main]

use std::path::Path;
use std::sync::Once;

use libfuzzer_sys::fuzz_target;

/// The command line's own files; what they know of the provider's settings is not fuzzed here.
#[allow(dead_code, reason = "what the commands use and this target does not")]
#[path = "."]
mod openssl {
    #[path = "../../crates/wattlock-cli/src/openssl/conf.rs"]
    pub mod conf;
    #[path = "../../crates/wattlock-cli/src/openssl/plan.rs"]
    pub mod plan;

    pub mod settings {
        pub const KEYS: &[(&std::ffi::CStr, &str)] = &[(c"policy", "a name"), (c"hold-us", "a number")];

        #[derive(Default)]
        pub struct Settings;

        impl Settings {
            pub fn set(&mut self, _key: &str, _value: &str) -> anyhow::Result<()> {
                Ok(())
            }
        }
    }
}

use openssl::conf::Conf;
use openssl::plan::{State, Wish, split, with_block};

static FOLDER: Once = Once::new();

fn told(error: &anyhow::Error) {
    assert!(!format!("{error:#}").contains('\n'));
}

fuzz_target!(|bytes: &[u8]| {
    FOLDER.call_once(|| {
        let folder = wattlock_fuzz::folder("openssl");
        std::fs::write(folder.join("i.cnf"), "[i]\na = 1\n.include = i.cnf\n").expect("our folder");
        std::fs::write(folder.join("j.cnf"), "[j]\na = 1\nproviders = i\n").expect("our folder");
        // SAFETY: the first input; no other thread is there.
        unsafe { std::env::set_var("OPENSSL_CONF_INCLUDE", folder) };
    });
    // Files of this machine are not included.
    if bytes.contains(&b'/') {
        return;
    }
    match Conf::read(bytes) {
        Ok(conf) => _ = State::of(&conf).map_err(|error| told(&error)),
        Err(error) => told(&error),
    }
    let found = match split(bytes) {
        Ok(found) => found,
        Err(error) => return told(&error),
    };
    assert!(found.found || found.rest == bytes);
    let settings = [("policy".to_owned(), "eeca # $x".to_owned())];
    let alone = bytes.len() % 2 == 1;
    let wish = Wish { module: Path::new("/usr/lib/wattlock/it's.so"), settings: &settings, alone };
    let with = match with_block(&found.rest, &wish) {
        Ok(with) => with,
        Err(error) => return told(&error),
    };
    assert!(with.starts_with(&found.rest), "a line that was there was touched");
    let again = split(&with).expect("one block");
    assert!(again.found && again.rest == found.rest, "not every byte came back");
    let later = [&with[..], b"later = 1\n"].concat();
    let rest = split(&later).expect("one block").rest;
    let line_end: &[u8] = match found.rest.last() {
        None | Some(b'\n') => b"",
        _ if with[found.rest.len()..].starts_with(b"\r\n") => b"\r\n",
        _ => b"\n",
    };
    assert!(rest == [&found.rest, line_end, b"later = 1\n"].concat(), "with lines added later");
});
