//! The format of a sealed stream, as pure functions: header, start, frames and the chain of keys.
//!
//! ```text
//! header   16 + n   as a sealed file's, with a magic of its own: an age file that carries the 32-byte input key
//! start    56       salt and commitment
//! frame    4 + len + 16, any number of them, the last one marked
//! ```
//!
//! Frames are STREAM's segments (Hoang, Reyhanitabar, Rogaway, Vizár: "Online Authenticated-Encryption and its
//! Nonce-Reuse Misuse-Resistance", CRYPTO 2015): the nonce has the segment's number and whether it is the last. Since
//! frames have lengths of their own, the four bytes in front of each are its associated data. New keys on the way are
//! made as TLS 1.3 makes them (RFC 8446 section 7.2): forward, by HKDF, and what made them is forgotten.

use std::fmt;
use std::ops::Range;

use wattlock_core::{Algorithm, Data, Error as CoreError, Item, Key, Kind, LatencyClass, Request};
use wattlock_door::{Crypto, short};
use zeroize::Zeroizing;

use crate::error::Error;

/// First bytes of every sealed stream.
pub const MAGIC: [u8; 8] = [0x8b, b'w', b'a', b't', b't', b'l', b's', 0x0a];
/// The version this crate writes, and the only one it reads.
pub const VERSION: u32 = 1;
/// Bytes before the age file.
pub const FIXED_LEN: usize = 16;
/// Longest header, fixed bytes included.
pub const HEADER_MAX: usize = 1 << 20;
/// Bytes of the salt behind the header.
pub const SALT_LEN: usize = 24;
/// Bytes of the commitment behind the salt.
pub const COMMITMENT_LEN: usize = 32;
/// Bytes in front of a frame's content.
pub const HEAD_LEN: usize = 4;
/// Bytes behind it.
pub const TAG_LEN: usize = 16;
/// Bytes that a frame adds to its content.
pub const FRAME_EXTRA: usize = HEAD_LEN + TAG_LEN;
/// Longest content of a frame. A reader refuses more before it takes memory.
pub const FRAME_MAX: usize = 1 << 20;

/// Labels of the derivations; the zero byte ends them.
const START_LABEL: &[u8] = b"wattlock stream v1 start\0";
const EPOCH_LABEL: &[u8] = b"wattlock stream v1 epoch\0";

/// The header around an age file.
///
/// # Errors
/// [`wattlock_files::Error::HeaderTooLarge`].
pub fn encode_header(key_file: &[u8]) -> Result<Vec<u8>, Error> {
    let len = FIXED_LEN + key_file.len();
    if len > HEADER_MAX {
        return Err(too_large(len));
    }
    Ok([&MAGIC[..], &VERSION.to_be_bytes(), &(key_file.len() as u32).to_be_bytes(), key_file].concat())
}

fn too_large(claimed: usize) -> Error {
    Error::Files(wattlock_files::Error::HeaderTooLarge { claimed: claimed as u64, limit: HEADER_MAX as u64 })
}

/// Reads the fixed bytes: how long the age file behind them is.
///
/// # Errors
/// [`Error::NotAStream`]; [`Error::Files`] for an unknown version or an impossible length.
pub fn parse_fixed(fixed: &[u8; FIXED_LEN]) -> Result<usize, Error> {
    let word = |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
    if fixed[..8] != MAGIC {
        return Err(Error::NotAStream);
    }
    if word(8) != VERSION {
        let version = word(8).to_string();
        return Err(wattlock_files::Error::UnknownVersion { format: "sealed stream", version }.into());
    }
    match word(12) as usize {
        0 => Err(wattlock_files::Error::BadHeader("no key").into()),
        len if len > HEADER_MAX - FIXED_LEN => Err(too_large(len.saturating_add(FIXED_LEN))),
        len => Ok(len),
    }
}

/// What a frame's first byte says.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u8);

impl Flags {
    /// Nothing to say.
    pub const NONE: Flags = Flags(0);
    /// The content ends where a record ends.
    pub const RECORD_END: Flags = Flags(1);
    /// The frames behind this one are under a new key.
    pub const NEW_KEY: Flags = Flags(2);
    /// The stream ends with this frame.
    pub const END: Flags = Flags(128);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Whether it says nothing that is unknown here.
    const fn is_known(self) -> bool {
        let known = Flags::RECORD_END.and(Flags::NEW_KEY).and(Flags::END);
        known.has(self) && !self.has(Flags::END.and(Flags::NEW_KEY))
    }

    /// Whether all of `other` is said.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flags({:#04x})", self.0)
    }
}

/// A frame's first four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// What the first byte says.
    pub flags: Flags,
    /// Bytes of content.
    pub len: usize,
}

impl Head {
    /// As it is written. The length must be within [`FRAME_MAX`].
    pub fn encode(self) -> [u8; HEAD_LEN] {
        debug_assert!(self.len <= FRAME_MAX);
        let len = (self.len as u32).to_be_bytes();
        [self.flags.0, len[1], len[2], len[3]]
    }

    /// As it is read, with what is wrong with it. A kind that is unknown may be a newer sealer's: [`Epoch::open`] says so
    /// once the frame is verified.
    ///
    /// # Errors
    /// What is wrong.
    pub fn parse(head: [u8; HEAD_LEN]) -> Result<Head, &'static str> {
        let flags = Flags(head[0]);
        let len = u32::from_be_bytes([0, head[1], head[2], head[3]]) as usize;
        if len > FRAME_MAX {
            return Err("length above the limit");
        }
        Ok(Head { flags, len })
    }
}

/// A frame in a buffer: where its first byte is, and what its head says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Where its head begins.
    pub at: usize,
    /// Its head.
    pub head: Head,
}

impl Frame {
    /// Where its content is.
    pub fn content(&self) -> Range<usize> {
        self.at + HEAD_LEN..self.at + HEAD_LEN + self.head.len
    }

    /// One past its last byte.
    pub fn end(&self) -> usize {
        self.at + self.head.len + FRAME_EXTRA
    }
}

/// The key of a run of frames.
#[derive(Clone)]
pub struct Epoch {
    key: Key,
    base: [u8; 12],
}

impl Epoch {
    /// STREAM's nonce: the base, with eight bytes of the frame's number and one that marks the last.
    fn nonce(&self, number: u64, last: bool) -> [u8; 12] {
        let mut nonce = self.base;
        nonce[3..11].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, count)| *byte ^= count);
        nonce[11] ^= u8::from(last);
        nonce
    }

    /// Seals frames in place. The buffer holds their contents, with room for a head before and a tag behind each;
    /// frames lie in order and do not overlap. The first has that number.
    ///
    /// # Errors
    /// [`Error::Files`] for an engine that failed; the buffer is then worthless.
    pub fn seal(
        &self,
        first: u64,
        buffer: &mut [u8],
        frames: &[Frame],
        crypto: &mut dyn Crypto,
    ) -> Result<(), Error> {
        for frame in frames {
            buffer[frame.at..frame.at + HEAD_LEN].copy_from_slice(&frame.head.encode());
        }
        match self.run(Kind::Aes256GcmSeal, first, buffer, frames, crypto) {
            None => Ok(()),
            Some((_, error)) => Err(error.into()),
        }
    }

    /// Opens frames in place: how many of them, from the first on, were verified and are of a known kind, and what was
    /// wrong with the next.
    ///
    /// Nothing behind the verified ones may be used.
    pub fn open(
        &self,
        first: u64,
        buffer: &mut [u8],
        frames: &[Frame],
        crypto: &mut dyn Crypto,
    ) -> (usize, Option<Error>) {
        let (count, failed) = match self.run(Kind::Aes256GcmOpen, first, buffer, frames, crypto) {
            None => (frames.len(), None),
            Some((at, CoreError::Authentication)) => (at, Some(Error::Altered { frame: first + at as u64 })),
            Some((at, error)) => (at, Some(error.into())),
        };
        match frames[..count].iter().position(|frame| !frame.head.flags.is_known()) {
            None => (count, failed),
            Some(at) => {
                let what =
                    format!("kind of frame {:#04x} (frame {})", frames[at].head.flags.0, first + at as u64);
                (at, Some(Error::Newer(what)))
            }
        }
    }

    /// One request for each frame, all in one call; the first failure.
    fn run(
        &self,
        kind: Kind,
        first: u64,
        buffer: &mut [u8],
        frames: &[Frame],
        crypto: &mut dyn Crypto,
    ) -> Option<(usize, CoreError)> {
        let numbered = frames.iter().zip(first..);
        let nonces: Vec<[u8; 12]> =
            numbered.map(|(frame, number)| self.nonce(number, frame.head.flags.has(Flags::END))).collect();
        let mut items = Vec::with_capacity(frames.len());
        let (mut rest, mut at) = (buffer, 0);
        for (frame, nonce) in frames.iter().zip(&nonces) {
            let (_, from) = rest.split_at_mut(frame.at - at);
            let (aad, from) = from.split_at_mut(HEAD_LEN);
            let (text, from) = from.split_at_mut(frame.head.len);
            let (tag, from) = from.split_at_mut(TAG_LEN);
            (rest, at) = (from, frame.end());
            let request = Request::new(kind, &self.key, Data::InPlace(text));
            items.push(Item::new(Request { nonce, aad, tag, class: LatencyClass::Bulk, ..request }));
        }
        crypto.run_all(&mut items);
        items.into_iter().enumerate().find_map(|(at, item)| Some((at, item.result.err()?)))
    }
}

/// The chain of a stream's keys: the present one, and what the next comes from.
pub struct Chain {
    secret: Zeroizing<[u8; 32]>,
    epoch: Epoch,
}

impl Chain {
    /// Derives the first key and the commitment from the input key, the salt and the whole header.
    ///
    /// # Errors
    /// [`Error::Files`] for an engine that failed.
    pub fn new(
        input_key: &[u8; 32],
        salt: &[u8; SALT_LEN],
        header: &[u8],
        crypto: &mut dyn Crypto,
    ) -> Result<(Chain, [u8; COMMITMENT_LEN]), Error> {
        let mut context = [0; 64];
        short(crypto, Kind::Sha512, Key::none(), (b"", b""), header, &mut context)?;
        let info = [START_LABEL, salt, &context].concat();
        let mut derived = Zeroizing::new([0; 32 + COMMITMENT_LEN]);
        expand(input_key, &info, &mut derived[..], crypto)?;
        let mut secret = Zeroizing::new([0; 32]);
        secret.copy_from_slice(&derived[..32]);
        let mut commitment = [0; COMMITMENT_LEN];
        commitment.copy_from_slice(&derived[32..]);
        Ok((Chain::from_secret(&secret, crypto)?, commitment))
    }

    /// A key, a base nonce and the secret of the chain's next link.
    fn from_secret(secret: &[u8; 32], crypto: &mut dyn Crypto) -> Result<Chain, Error> {
        let mut derived = Zeroizing::new([0; 32 + 12 + 32]);
        expand(secret, EPOCH_LABEL, &mut derived[..], crypto)?;
        let key = Key::symmetric(Algorithm::Aes256Gcm, &derived[..32])?;
        let (mut base, mut next) = ([0; 12], Zeroizing::new([0; 32]));
        base.copy_from_slice(&derived[32..44]);
        next.copy_from_slice(&derived[44..]);
        Ok(Chain { secret: next, epoch: Epoch { key, base } })
    }

    /// The present key.
    pub fn epoch(&self) -> &Epoch {
        &self.epoch
    }

    /// Goes on to the next key. The present one cannot be derived from it.
    ///
    /// # Errors
    /// [`Error::Files`] for an engine that failed.
    pub fn advance(&mut self, crypto: &mut dyn Crypto) -> Result<(), Error> {
        *self = Chain::from_secret(&self.secret, crypto)?;
        Ok(())
    }
}

/// HKDF-Expand with SHA-512 (RFC 5869 section 2.3), from a secret that is random already.
pub(crate) fn expand(
    secret: &[u8; 32],
    info: &[u8],
    to: &mut [u8],
    crypto: &mut dyn Crypto,
) -> Result<(), Error> {
    let secret = Key::symmetric(Algorithm::Secret, secret)?;
    Ok(short(crypto, Kind::HkdfExpandSha512, &secret, (b"", info), b"", to)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_and_nonsense_does_not() {
        for flags in [Flags::NONE, Flags::RECORD_END, Flags::NEW_KEY, Flags::END.and(Flags::RECORD_END)] {
            for len in [0, 1, 255, 256, 65_536, FRAME_MAX] {
                let head = Head { flags, len };
                assert_eq!(Head::parse(head.encode()), Ok(head));
            }
        }
        assert_eq!(Head::parse([0, 0x10, 0, 1]), Err("length above the limit"));
        assert_eq!(Head::parse([0, 0xff, 0xff, 0xff]), Err("length above the limit"));
        for kind in 0..=255 {
            let head = Head::parse([kind, 0, 0, 0]).unwrap();
            let known = matches!(kind, 0..=3 | 0x80 | 0x81);
            assert_eq!((head.encode()[0], head.flags.is_known()), (kind, known), "{kind}");
        }
    }

    #[test]
    fn a_frame_of_an_unknown_kind_is_a_newer_sealers_only_if_it_authenticates() {
        let mut crypto = wattlock::Runtime::builder().telemetry(false).build().unwrap().dispatcher();
        let (chain, _) = Chain::new(&[7; 32], &[1; SALT_LEN], b"header", &mut crypto).unwrap();
        for kind in [4, 8, 0x40, 0x82, 0xff] {
            let frame = |number: usize, flags| {
                let head = Head { flags: Flags(flags), len: 3 };
                Frame { at: number * (3 + FRAME_EXTRA), head }
            };
            let frames = [frame(0, 1), frame(1, kind), frame(2, 1)];
            let mut sealed = vec![b'x'; frames[2].end()];
            chain.epoch().seal(5, &mut sealed, &frames, &mut crypto).unwrap();
            let opened = |bytes: &[u8], crypto: &mut wattlock::Dispatcher| {
                let parsed = frames.map(|frame| {
                    let head = *bytes[frame.at..].first_chunk().unwrap();
                    Frame { at: frame.at, head: Head::parse(head).unwrap() }
                });
                let (count, error) = chain.epoch().open(5, &mut bytes.to_vec(), &parsed, crypto);
                (count, error.unwrap())
            };
            let (count, error) = opened(&sealed, &mut crypto);
            assert_eq!((count, error.exit_code()), (1, 22), "{kind}: {error}");
            assert!(matches!(error, Error::Newer(_)) && error.to_string().contains("frame 6"), "{error}");
            sealed[frames[1].at] ^= 0x10;
            let (count, error) = opened(&sealed, &mut crypto);
            assert_eq!((count, error.exit_code()), (1, 32), "{kind}, altered: {error}");
        }
    }

    #[test]
    fn a_header_of_another_sort_or_size_is_refused_by_its_fixed_bytes() {
        let header = encode_header(b"key file").unwrap();
        let fixed: [u8; FIXED_LEN] = header[..FIXED_LEN].try_into().unwrap();
        assert_eq!(parse_fixed(&fixed).unwrap(), 8);
        let with = |at: usize, bytes: &[u8]| {
            let mut other = fixed;
            other[at..at + bytes.len()].copy_from_slice(bytes);
            parse_fixed(&other).unwrap_err().exit_code()
        };
        assert_eq!(with(6, b"k"), 21, "a sealed file is no stream");
        assert_eq!((with(11, &[2]), with(12, &[0; 4]), with(12, &[0xff; 4])), (22, 24, 23));
        assert_eq!(encode_header(&vec![0; HEADER_MAX]).unwrap_err().exit_code(), 23);
    }

    #[test]
    fn no_two_frames_of_a_key_share_a_nonce() {
        let epoch = Epoch { key: Key::none_owned(), base: [0x5a; 12] };
        let numbers = [0, 1, 2, 255, 256, u64::from(u32::MAX), u64::MAX];
        let nonces: Vec<_> =
            numbers.iter().flat_map(|n| [epoch.nonce(*n, false), epoch.nonce(*n, true)]).collect();
        let distinct: std::collections::HashSet<_> = nonces.iter().collect();
        assert_eq!(distinct.len(), nonces.len());
    }
}
