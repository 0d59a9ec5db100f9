//! A cipher whose message comes in pieces.
//!
//! A [`Request`](crate::Request) holds a whole message. Some doors never see one: theirs is an interface where a key
//! is set once and then, message after message, nonce, associated data and data arrive in pieces of any length, and
//! no caller says how much is still to come. A [`Stream`] is what such a door asks an engine for. It is always inline:
//! every call is done when it returns. There is no queue, no choice and no fallback in the midst of a message.
//!
//! [`Progress`] holds the rules of the calls' order and of the lengths, once for all engines.

use std::fmt;

use crate::engine::Engine;
use crate::error::{Error, Fault};
use crate::kat::{Expected, KnownAnswer, known_answers};
use crate::kind::{Family, Group, Kind};
use crate::request::{Data, OwnedRequest};

/// One key in one kind (which includes the direction), for any number of messages, each in pieces:
/// [`start`](Stream::start), then any number of [`aad`](Stream::aad), then any number of [`update`](Stream::update),
/// then [`finish`](Stream::finish). Starting again abandons a message.
///
/// *Unverified plaintext.* A stream of [`Family::Open`] gives out plaintext before it has seen the tag: with a message
/// in pieces there is no other way. Whoever uses one must keep what it gave back until `finish` says that the tag is
/// right, or be a door whose own contract already says the same to its caller. Every other door uses a
/// [`Request`](crate::Request), which releases nothing unverified.
///
/// *Nonces.* A key and nonce seal one plaintext. That is the caller's duty; no stream counts nonces.
///
/// *Hashes.* A stream of [`Family::Digest`] starts with an empty nonce, takes data of any length and gives nothing out:
/// `update` reads its input only, and `finish` writes the digest, for which `tag` must be exactly as long.
///
/// Calls allocate nothing (an engine may allocate for a nonce longer than 16 bytes that is longer than any before) and
/// do not block. One thread uses a stream at a time; it may move between threads. Dropping it wipes what it holds.
/// After an error the message is over, and only `start` is of use; but a refused call ([`Error::Invalid`]) of `aad`
/// or `update` changed nothing, and the message goes on.
pub trait Stream: Send + fmt::Debug {
    /// What it does.
    fn kind(&self) -> Kind;

    /// Begins a message. GCM takes a nonce of 1 byte or more (SP 800-38D section 7.1 step 2: 12 bytes as they are, any
    /// other length through GHASH); every other kind as many bytes as [`crate::KindInfo::nonce`] says.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the nonce's length, and then no message has begun; [`Error::Device`].
    fn start(&mut self, nonce: &[u8]) -> Result<(), Error>;

    /// More associated data.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no message has begun, if it has data already, if the kind takes none, or if it would be
    /// more than 2^61 - 1 bytes.
    fn aad(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// More data; returns its length, all of which has come out. Pieces have any length, with two exceptions: CBC
    /// takes whole blocks (padding is the door's), and for XTS each piece is a data unit of its own, of at least 16
    /// bytes, under the tweak that `start` was given.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no message has begun, for a wrong length, if the output is too short, or if a GCM message
    /// would have more than 2^36 - 32 bytes; [`Error::Device`].
    fn update(&mut self, data: Data<'_>) -> Result<usize, Error>;

    /// Ends a message. For seal, writes the tag, or the leftmost bytes of it that fit; for open, compares it, or its
    /// leftmost bytes, in constant time. A tag has 4 to 16 bytes. For a hash, writes the digest. For every other family
    /// `tag` must be empty.
    ///
    /// # Errors
    /// [`Error::Authentication`] if the tag is wrong: everything that [`Stream::update`] released must be thrown away.
    /// [`Error::Invalid`] if no message has begun or for the tag's length, and the message then goes on.
    fn finish(&mut self, tag: &mut [u8]) -> Result<(), Error>;

    /// Goes over to another key of the same length; a message under way is over. For doors whose keys last for a few
    /// blocks only, as those of OpenSSL's random generator do: a stream made anew costs more than such a message.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the engine has no such way, or [`Error::Invalid`] for the key; nothing has changed.
    fn rekey(&mut self, key: &[u8]) -> Result<(), Error> {
        let _ = key;
        Err(Error::Unsupported)
    }

    /// Another stream with the same key, in the midst of the same message if there is one. Allocates.
    ///
    /// # Errors
    /// [`Error::Device`] if the engine cannot.
    fn try_clone(&self) -> Result<Box<dyn Stream>, Error>;
}

/// Most data of one GCM message: 2^39 - 256 bits (SP 800-38D section 5.2.1.1).
const GCM_BYTES: u64 = (1 << 36) - 32;
/// Most associated data: 2^64 - 1 bits.
const AAD_BYTES: u64 = (1 << 61) - 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No message.
    Idle,
    /// Associated data may come.
    Aad,
    /// Data came.
    Data,
}

/// What a stream's calls may do next: every engine's streams ask this before they work. Knows no key and no bytes.
#[derive(Debug, Clone)]
pub struct Progress {
    kind: Kind,
    phase: Phase,
    authenticated: bool,
    multiple: usize,
    least: usize,
    /// The nonce's length; none where any of 1 byte or more will do.
    nonce: Option<usize>,
    /// Bytes that a hash's end gives; 0 for what is no hash.
    digest: usize,
    aad: u64,
    bytes: u64,
    most: u64,
}

impl Progress {
    /// For a kind.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if messages of the kind cannot come in pieces: it is no cipher, or, as SIV, it reads the
    /// whole message before it encrypts a byte.
    pub fn new(kind: Kind) -> Result<Progress, Error> {
        let info = kind.info();
        if info.algorithm == crate::Algorithm::Aes256Siv {
            return Err(Error::Unsupported);
        }
        let (authenticated, digest) = match info.family {
            Family::Cipher => (false, 0),
            Family::Seal | Family::Open => (true, 0),
            Family::Digest => (false, info.output.ok_or(Error::Unsupported)?),
            _ => return Err(Error::Unsupported),
        };
        let gcm = info.group == Group::Gcm;
        let nonce = match info.nonce {
            crate::NonceLen::Exactly(len) if !gcm => Some(len),
            _ => None,
        };
        // RFC 8439 allows 2^32 - 1 blocks of 64 bytes; plain ciphers have no limit that a counter of bytes would meet.
        let most = match (authenticated, gcm) {
            (true, true) => GCM_BYTES,
            (true, false) => (1 << 38) - 64,
            // FIPS 180-4 section 1: fewer than 2^64 bits.
            _ if digest > 0 => AAD_BYTES,
            _ => u64::MAX,
        };
        let (multiple, least) = (info.multiple, info.least);
        if !multiple.is_power_of_two() {
            return Err(Error::Unsupported);
        }
        Ok(Progress {
            kind,
            phase: Phase::Idle,
            authenticated,
            multiple,
            least,
            nonce,
            digest,
            aad: 0,
            bytes: 0,
            most,
        })
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Bytes of associated data and of data so far.
    pub fn lengths(&self) -> (u64, u64) {
        (self.aad, self.bytes)
    }

    /// A message begins with a nonce of `nonce` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`], and no message has begun.
    #[inline]
    pub fn start(&mut self, nonce: usize) -> Result<(), Error> {
        self.phase = Phase::Idle;
        let right = match self.nonce {
            Some(len) => nonce == len,
            None => nonce > 0 && nonce <= i32::MAX as usize,
        };
        if !right {
            return Err(Error::Invalid("nonce length"));
        }
        (self.phase, self.aad, self.bytes) = (Phase::Aad, 0, 0);
        Ok(())
    }

    /// `len` bytes of associated data come.
    ///
    /// # Errors
    /// As [`Stream::aad`].
    #[inline]
    pub fn aad(&mut self, len: usize) -> Result<(), Error> {
        let sum = self.aad.saturating_add(len as u64);
        match self.phase {
            Phase::Idle => Err(Error::Invalid("no message was begun")),
            _ if !self.authenticated => Err(Error::Invalid("associated data")),
            Phase::Data => Err(Error::Invalid("associated data after data")),
            Phase::Aad if sum > AAD_BYTES => Err(Error::Invalid("associated data length")),
            Phase::Aad => {
                self.aad = sum;
                Ok(())
            }
        }
    }

    /// A piece of data comes. Returns its length.
    ///
    /// # Errors
    /// As [`Stream::update`].
    #[inline]
    pub fn update(&mut self, data: &Data<'_>) -> Result<usize, Error> {
        let len = data.len();
        if self.phase == Phase::Idle {
            return Err(Error::Invalid("no message was begun"));
        }
        if let Data::Apart { from, to } = data
            && to.len() < from.len()
            && self.digest == 0
        {
            return Err(Error::Invalid("output length"));
        }
        let sum = self.bytes.saturating_add(len as u64);
        // A cipher's blocks are powers of two: a division would take as long as encrypting one of them.
        if len < self.least || len & (self.multiple - 1) != 0 || sum > self.most {
            return Err(Error::Invalid("input length"));
        }
        if len > 0 {
            (self.phase, self.bytes) = (Phase::Data, sum);
        }
        Ok(len)
    }

    /// The message ends with a tag of `tag` bytes.
    ///
    /// # Errors
    /// As [`Stream::finish`], except for the tag itself.
    #[inline]
    pub fn finish(&mut self, tag: usize) -> Result<(), Error> {
        let right = if self.authenticated { (4..=16).contains(&tag) } else { tag == self.digest };
        if self.phase == Phase::Idle {
            return Err(Error::Invalid("no message was begun"));
        }
        if !right {
            return Err(Error::Invalid("tag length"));
        }
        self.phase = Phase::Idle;
        Ok(())
    }

    /// The message failed: only [`Progress::start`] is of use now.
    pub fn failed(&mut self) {
        self.phase = Phase::Idle;
    }
}

/// Puts a kind's known answers through an engine's streams, each in two pieces, in place, and then again on the same
/// stream. Returns how many there were.
///
/// # Errors
/// [`Error::Unsupported`] if the engine has no streams of this kind; [`Error::Device`] with [`Fault::WrongResult`] for
/// a wrong answer, else the error given in place of an answer.
pub fn stream_known_answers(engine: &dyn Engine, kind: Kind) -> Result<usize, Error> {
    let answers = known_answers(kind);
    for KnownAnswer { request, expected, .. } in &answers {
        let mut stream = engine.stream(kind, &request.key)?;
        for cut in [request.input.len() / 2, request.input.len() / 3] {
            let (data, tag, result) = in_two_pieces(&mut *stream, request, cut)?;
            let right = match (expected, result) {
                (Expected::Bytes { output, tag: want }, Ok(())) => data == *output && tag.starts_with(want),
                (Expected::Forged { .. }, Err(Error::Authentication)) => true,
                (Expected::Forged { .. }, Ok(())) => false,
                (_, Err(error)) => return Err(error),
                _ => false,
            };
            if !right {
                return Err(Error::Device(Fault::WrongResult));
            }
        }
    }
    Ok(answers.len())
}

type Pieces = (Vec<u8>, [u8; 16], Result<(), Error>);

fn in_two_pieces(stream: &mut dyn Stream, request: &OwnedRequest, cut: usize) -> Result<Pieces, Error> {
    let info = request.kind.info();
    let (mut data, mut tag) = (request.input.clone(), request.tag);
    stream.start(&request.nonce)?;
    if info.tag > 0 {
        let (first, second) = request.aad.split_at(request.aad.len() / 2);
        stream.aad(first)?;
        stream.aad(second)?;
    }
    // A data unit is one piece; blocks are not divided.
    let cut = if info.least > 0 { 0 } else { cut - cut % info.multiple };
    let (first, second) = data.split_at_mut(cut);
    if !first.is_empty() {
        stream.update(Data::InPlace(first))?;
    }
    if !second.is_empty() {
        stream.update(Data::InPlace(second))?;
    }
    if info.family == Family::Digest {
        let mut digest = vec![0; info.output.unwrap_or_default()];
        let result = stream.finish(&mut digest);
        return Ok((digest, tag, result));
    }
    let result = stream.finish(&mut tag[..info.tag]);
    Ok((data, tag, result))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(progress: &mut Progress, len: usize) -> Result<usize, Error> {
        progress.update(&Data::InPlace(&mut vec![0; len]))
    }

    #[test]
    fn calls_out_of_order_are_refused_and_change_nothing() {
        let mut gcm = Progress::new(Kind::Aes128GcmSeal).unwrap();
        assert!(gcm.aad(1).is_err() && feed(&mut gcm, 1).is_err() && gcm.finish(16).is_err());
        assert!(gcm.start(0).is_err() && feed(&mut gcm, 1).is_err());
        gcm.start(1).unwrap();
        gcm.aad(3).unwrap();
        assert_eq!(feed(&mut gcm, 0), Ok(0));
        gcm.aad(4).unwrap();
        assert_eq!(feed(&mut gcm, 5), Ok(5));
        assert_eq!(gcm.aad(1), Err(Error::Invalid("associated data after data")));
        assert!(gcm.finish(3).is_err() && gcm.finish(17).is_err());
        assert_eq!(gcm.lengths(), (7, 5));
        gcm.finish(16).unwrap();
        assert!(gcm.finish(16).is_err() && feed(&mut gcm, 1).is_err());
    }

    #[test]
    fn a_message_longer_than_its_mode_allows_is_refused() {
        let mut gcm = Progress::new(Kind::Aes128GcmOpen).unwrap();
        gcm.start(12).unwrap();
        gcm.bytes = GCM_BYTES - 1;
        assert!(feed(&mut gcm, 2).is_err());
        assert_eq!(feed(&mut gcm, 1), Ok(1));
        assert!(feed(&mut gcm, 1).is_err());
        gcm.start(12).unwrap();
        gcm.aad = AAD_BYTES;
        assert!(gcm.aad(1).is_err());
    }

    #[test]
    fn blocks_and_data_units_are_not_divided() {
        let mut cbc = Progress::new(Kind::Aes128CbcDecrypt).unwrap();
        assert!(cbc.start(12).is_err());
        cbc.start(16).unwrap();
        assert!(feed(&mut cbc, 15).is_err() && cbc.aad(1).is_err() && cbc.finish(16).is_err());
        assert_eq!(feed(&mut cbc, 32), Ok(32));
        let mut xts = Progress::new(Kind::Aes256XtsEncrypt).unwrap();
        xts.start(16).unwrap();
        assert!(feed(&mut xts, 15).is_err());
        assert_eq!(feed(&mut xts, 17), Ok(17));
        assert_eq!(xts.finish(0), Ok(()));
        let short = Data::Apart { from: &[0; 16], to: &mut [0; 15] };
        cbc.start(16).unwrap();
        assert_eq!(cbc.update(&short), Err(Error::Invalid("output length")));
    }

    #[test]
    fn only_hashes_and_ciphers_of_one_pass_come_in_pieces() {
        for kind in Kind::ALL {
            let cipher = matches!(kind.info().family, Family::Cipher | Family::Seal | Family::Open);
            let one_pass = !kind.name().contains("-siv-");
            let hash = kind.info().family == Family::Digest;
            assert_eq!(Progress::new(*kind).is_ok(), hash || cipher && one_pass, "{}", kind.name());
        }
    }

    #[test]
    fn a_hash_takes_data_without_room_for_any_and_ends_in_a_whole_digest() {
        let mut hash = Progress::new(Kind::Sha256).unwrap();
        assert!(hash.start(1).is_err() && feed(&mut hash, 1).is_err());
        hash.start(0).unwrap();
        assert_eq!(hash.update(&Data::Apart { from: &[0; 7], to: &mut [] }), Ok(7));
        assert!(hash.aad(1).is_err() && hash.finish(0).is_err() && hash.finish(20).is_err());
        assert_eq!((hash.finish(32), hash.lengths()), (Ok(()), (0, 7)));
        hash.start(0).unwrap();
        hash.bytes = AAD_BYTES;
        assert!(feed(&mut hash, 1).is_err());
    }
}
