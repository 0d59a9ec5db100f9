//! Reads `vectors.txt`. The file is part of the program, so a mistake in it is a mistake in the program: it ends in
//! a panic, and a test reads every record.

use std::sync::Arc;

use super::{Expected, KnownAnswer};
use crate::key::{EcKey, Key, RsaKey};
use crate::kind::{Family, Kind};
use crate::request::OwnedRequest;

const FILE: &str = include_str!("vectors.txt");
const SOUND: &str = "vectors.txt is part of the program, and a test reads all of it";

/// The records that name `kind`, in the file's order.
pub(super) fn records(kind: Kind) -> impl Iterator<Item = KnownAnswer> {
    FILE.split("\n\n").filter_map(move |block| {
        let names = block.lines().find_map(|line| line.strip_prefix("kind "))?;
        let place = names.split(" / ").position(|name| name == kind.name())?;
        Some(Record(block).answer(kind, place == 1))
    })
}

/// One block of the file.
#[derive(Clone, Copy)]
struct Record(&'static str);

impl Record {
    fn answer(self, kind: Kind, inverse: bool) -> KnownAnswer {
        let key = Arc::new(self.key(kind));
        let (mut input, mut output) = (self.bytes("input").unwrap_or_default(), self.bytes("output"));
        if inverse {
            let back = output.replace(input).expect(SOUND);
            input = back;
        }
        let room = match &output {
            Some(output) => output.len(),
            None => kind.info().output.or_else(|| self.text("room")?.parse().ok()).expect(SOUND),
        };
        let tag = self.bytes("tag").unwrap_or_default();
        let mut request = OwnedRequest::new(kind, key, input, room);
        request.nonce = self.bytes("nonce").unwrap_or_default();
        request.aad = self.bytes("aad").unwrap_or_default();
        let family = kind.info().family;
        if family == Family::Open {
            request.tag[..tag.len()].copy_from_slice(&tag);
        }
        let expected = match output {
            Some(output) if family == Family::Seal => Expected::Bytes { output, tag },
            Some(output) => Expected::Bytes { output, tag: Vec::new() },
            None => Expected::Checked,
        };
        KnownAnswer { request, expected, source: self.text("source").expect(SOUND) }
    }

    fn key(self, kind: Kind) -> Key {
        let algorithm = kind.info().algorithm;
        let part = |name| self.bytes(name).expect(SOUND);
        if algorithm == crate::Algorithm::None {
            return Key::none_owned();
        }
        if algorithm == crate::Algorithm::MlKem768 {
            return Key::ml_kem_768(&part("key")).expect(SOUND);
        }
        if let Some(curve) = algorithm.curve() {
            return Key::ec(curve, EcKey { scalar: part("key"), public: part("public") }).expect(SOUND);
        }
        if algorithm.modulus_len().is_some() {
            return Key::rsa(RsaKey {
                n: part("n"),
                e: part("e"),
                d: part("d"),
                p: part("p"),
                q: part("q"),
                dp: part("dp"),
                dq: part("dq"),
                qinv: part("qinv"),
            })
            .expect(SOUND);
        }
        Key::symmetric(algorithm, &part("key")).expect(SOUND)
    }

    /// The rest of the line that begins with `name`.
    fn text(self, name: &str) -> Option<&'static str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
    }

    /// The bytes of a field, from its own line and the indented ones below it.
    fn bytes(self, name: &str) -> Option<Vec<u8>> {
        let mut lines = self.0.lines().skip_while(|line| line.split(' ').next() != Some(name));
        let first = lines.next()?.strip_prefix(name)?;
        let more = lines.take_while(|line| line.starts_with("  "));
        let digits: Vec<u8> = std::iter::once(first)
            .chain(more)
            .flat_map(str::chars)
            .filter(|c| *c != ' ')
            .map(|c| c.to_digit(16).expect(SOUND) as u8)
            .collect();
        assert!(digits.len().is_multiple_of(2), "{SOUND}");
        Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_read_by_somebody() {
        let named =
            FILE.lines().filter_map(|line| line.strip_prefix("kind ")).flat_map(|names| names.split(" / "));
        let read: usize = Kind::ALL.iter().map(|kind| records(*kind).count()).sum();
        assert_eq!(named.count(), read);
    }
}
