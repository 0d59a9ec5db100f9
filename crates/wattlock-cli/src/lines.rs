//! `--json` of commands that work on files: one object a line on standard output, and nothing else there.
//!
//! A name that is UTF-8 stands in the object as it is. One that is not stands with U+FFFD for what is none, and its
//! bytes in hexadecimal beside it, under `KEY_hex`: no name is lost. docs/use/command-line.md has the objects.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use serde_json::{Map, Value};
use wattlock_files::Error;

/// One object.
#[derive(Debug, Clone, Default)]
pub struct Line(Map<String, Value>);

impl Line {
    /// Of a file.
    pub fn of(file: impl AsRef<OsStr>) -> Line {
        Line::default().name("file", file)
    }

    /// Adds a name.
    pub fn name(mut self, key: &str, name: impl AsRef<OsStr>) -> Line {
        let name = name.as_ref();
        if name.to_str().is_none() {
            let hex = name.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            self.0.insert(format!("{key}_hex"), hex.into());
        }
        self.0.insert(key.to_owned(), name.to_string_lossy().into());
        self
    }

    /// Adds a value.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Line {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// Adds what went wrong.
    pub fn failed(self, error: &str, code: u8) -> Line {
        self.with("error", error).with("code", code)
    }

    /// Prints it.
    ///
    /// # Errors
    /// Standard output does not take it.
    pub fn put(self) -> Result<(), Error> {
        say!("{self}");
        Ok(())
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string(&self.0).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_lost_and_none_makes_two_lines() {
        let plain = Line::of("caf\u{e9}\n\"x\"");
        assert_eq!(plain.to_string(), "{\"file\":\"caf\u{e9}\\n\\\"x\\\"\"}");
        let odd = Line::of(OsStr::from_bytes(b"caf\xe9")).failed("gone", 42);
        assert_eq!(
            odd.to_string(),
            "{\"code\":42,\"error\":\"gone\",\"file\":\"caf\u{fffd}\",\"file_hex\":\"636166e9\"}"
        );
    }
}
