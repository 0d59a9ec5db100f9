//! The keys of a point: each door has its own, with a default, and refuses all others.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use anyhow::Result;
use serde::ser::{Serialize, SerializeMap, Serializer};
use wattlock_door::Error;
use wattlock_shell::text;

/// Keys, with the values that are used: as text, in the form in which they can be said again.
#[derive(Debug, Clone)]
pub struct Given {
    keys: Vec<Key>,
}

#[derive(Debug, Clone)]
struct Key {
    name: &'static str,
    value: String,
    said: bool,
}

/// An error of the command line.
pub fn usage(why: impl Into<String>) -> anyhow::Error {
    Error::Usage(why.into()).into()
}

impl Given {
    /// Reads `KEY=VALUE` words over the defaults.
    ///
    /// # Errors
    /// An unknown key, a key twice, a word without `=`.
    pub fn read(door: &str, defaults: &[(&'static str, &str)], words: &[String]) -> Result<Given> {
        let key =
            |(name, value): &(&'static str, &str)| Key { name, value: (*value).to_owned(), said: false };
        let mut given = Given { keys: defaults.iter().map(key).collect() };
        for word in words {
            let (name, value) =
                word.split_once('=').ok_or_else(|| usage(format!("`{}` is no KEY=VALUE", shown(word))))?;
            let Some(key) = given.keys.iter_mut().find(|key| key.name == name) else {
                let known: Vec<&str> = defaults.iter().map(|(name, _)| *name).collect();
                return Err(usage(format!(
                    "`{door}` has no key `{}`; it has {}",
                    shown(name),
                    known.join(", ")
                )));
            };
            if key.said {
                return Err(usage(format!("{name} is given twice")));
            }
            (key.value, key.said) = (value.to_owned(), true);
        }
        Ok(given)
    }

    /// A key's value. One that the door does not have is empty.
    pub fn text(&self, name: &str) -> &str {
        self.keys.iter().find(|key| key.name == name).map_or("", |key| &key.value)
    }

    /// Notes the value that is used in place of what was said.
    pub fn set(&mut self, name: &str, value: impl Display) {
        if let Some(key) = self.keys.iter_mut().find(|key| key.name == name) {
            key.value = value.to_string();
        }
    }

    /// Notes what was used though it is no key.
    pub fn note(&mut self, name: &'static str, value: impl Display) {
        self.keys.push(Key { name, value: value.to_string(), said: true });
    }

    /// A number within bounds.
    ///
    /// # Errors
    /// It is none.
    pub fn number<T: FromStr + PartialOrd + Display>(
        &self,
        name: &str,
        bounds: RangeInclusive<T>,
    ) -> Result<T> {
        let number = self.text(name).parse().ok().filter(|number| bounds.contains(number));
        number
            .ok_or_else(|| self.wrong(name, &format!("a number from {} to {}", bounds.start(), bounds.end())))
    }

    /// Bytes within bounds, which may be said with a prefix; noted as a plain number.
    ///
    /// # Errors
    /// It is none.
    pub fn bytes(&mut self, name: &str, bounds: RangeInclusive<usize>) -> Result<usize> {
        let bytes = text::parse_bytes(self.text(name)).ok().filter(|bytes| bounds.contains(bytes));
        let [least, most] = [bounds.start(), bounds.end()].map(|bytes| text::bytes(*bytes as u64));
        let bytes = bytes.ok_or_else(|| self.wrong(name, &format!("a size from {least} to {most}")))?;
        self.set(name, bytes);
        Ok(bytes)
    }

    /// One of some words, by its place.
    ///
    /// # Errors
    /// It is none of them.
    pub fn one_of(&self, name: &str, words: &[&str]) -> Result<usize> {
        let found = words.iter().position(|word| *word == self.text(name));
        found.ok_or_else(|| self.wrong(name, &words.join(", ")))
    }

    /// That a key's value is not what is expected.
    pub fn wrong(&self, name: &str, expected: &str) -> anyhow::Error {
        usage(format!("{name}={}: expected {expected}", shown(self.text(name))))
    }
}

impl Serialize for Given {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.keys.len()))?;
        for key in &self.keys {
            map.serialize_entry(key.name, &key.value)?;
        }
        map.end()
    }
}

fn shown(word: &str) -> String {
    word.escape_debug().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [(&str, &str); 3] = [("bytes", "16384"), ("share", ""), ("side", "left")];

    fn read(words: &[&str]) -> Result<Given> {
        Given::read("door", &KEYS, &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_used_is_told_in_the_keys_order() {
        let mut given = read(&["side=right", "bytes=64K"]).unwrap();
        assert_eq!(given.bytes("bytes", 1..=1 << 20).unwrap(), 65_536);
        assert_eq!(given.one_of("side", &["left", "right"]).unwrap(), 1);
        let told = serde_json::to_string(&given).unwrap();
        assert_eq!(told, r#"{"bytes":"65536","share":"","side":"right"}"#);
        given.note("place", "/tmp");
        let told = serde_json::to_string(&given).unwrap();
        assert_eq!(told, r#"{"bytes":"65536","share":"","side":"right","place":"/tmp"}"#);
    }

    #[test]
    fn a_value_may_have_a_sign_of_equality_in_it() {
        assert_eq!(read(&["share=a=b"]).unwrap().text("share"), "a=b");
    }

    #[test]
    fn what_no_door_knows_is_refused_in_one_line() {
        for (words, why) in [
            (&["nonsense=1"][..], "`door` has no key `nonsense`; it has bytes, share, side"),
            (&["bytes"], "`bytes` is no KEY=VALUE"),
            (&["share=1", "share=2"], "share is given twice"),
            (&["a\nb=1"], "`door` has no key `a\\nb`; it has bytes, share, side"),
        ] {
            assert_eq!(read(words).unwrap_err().to_string(), why);
        }
    }

    #[test]
    fn bounds_are_told_where_they_are_exceeded() {
        let of = |word: &str| read(&[word]).unwrap();
        let said = |error: anyhow::Error| error.to_string();
        let wrong = of("bytes=2M").bytes("bytes", 16..=1 << 20).unwrap_err();
        assert_eq!(said(wrong), "bytes=2M: expected a size from 16 B to 1 MiB");
        let wrong = of("share=1001").number("share", 0..=1000).unwrap_err();
        assert_eq!(said(wrong), "share=1001: expected a number from 0 to 1000");
        assert!(of("share=nan").number("share", 0.0..=1.0).is_err());
        assert_eq!(said(of("side=x").one_of("side", &["a", "b"]).unwrap_err()), "side=x: expected a, b");
    }
}
