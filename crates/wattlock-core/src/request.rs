//! One unit of work, borrowed or owned, and its shape.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use zeroize::Zeroize;

use crate::error::Error;
use crate::key::Key;
use crate::kind::{Family, Group, Kind, NonceLen};
use crate::run::Run;

/// How urgent the request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub enum LatencyClass {
    /// Somebody waits for this very request (a handshake, a small read).
    #[default]
    Interactive,
    /// Part of an ordered stream; a neighbour is worth waiting for.
    Stream,
    /// Throughput counts, latency does not.
    Bulk,
}

/// Longest dictionary of a kind that compresses, in bytes: deflate's window (RFC 1951 section 2).
pub const DICTIONARY_MOST: usize = 32 * 1024;

/// Settings of kinds that have any. Defaults suit every kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Options {
    /// Compression level, 1 (fast) to 9 (small) for deflate, to 19 for zstd ([`Kind::levels`]). At deflate's level n the
    /// output is at most 2 % longer than zlib's at n.
    pub level: u8,
    /// Deflate: whether this input ends the stream. If not, the output ends on a byte boundary with an empty stored
    /// block (a "sync flush"), so that outputs of consecutive chunks can be joined. Zstd: no matter; each output is a
    /// frame, and consecutive frames without a dictionary are one stream (RFC 8878 section 3.1).
    pub last: bool,
}

impl Options {
    /// For a compressor: its level, and whether the input ends the stream.
    pub const fn compress(level: u8, last: bool) -> Options {
        Options { level, last }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options { level: 1, last: true }
    }
}

/// Where a request's input is and where its output goes.
pub enum Data<'a> {
    /// Output replaces input, byte for byte; only for kinds whose output is as long as their input.
    InPlace(&'a mut [u8]),
    /// Output goes to another place; `to` must be at least as long as the output.
    Apart {
        /// Input.
        from: &'a [u8],
        /// Output.
        to: &'a mut [u8],
    },
}

impl Data<'_> {
    /// Input length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Data::InPlace(buffer) => buffer.len(),
            Data::Apart { from, .. } => from.len(),
        }
    }

    /// Whether the input is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The input, wherever it is.
    #[inline]
    pub fn input(&self) -> &[u8] {
        match self {
            Data::InPlace(buffer) => buffer,
            Data::Apart { from, .. } => from,
        }
    }

    /// The output buffer, which for [`Data::InPlace`] still holds the input.
    #[inline]
    pub fn output(&mut self) -> &mut [u8] {
        match self {
            Data::InPlace(buffer) => buffer,
            Data::Apart { to, .. } => to,
        }
    }

    /// Brings the input into the output buffer if it is not there, and returns exactly the part that is to be
    /// transformed: for engines that only work in place. The request must have passed [`Request::validate`].
    #[inline]
    pub fn gathered(&mut self) -> &mut [u8] {
        match self {
            Data::InPlace(buffer) => buffer,
            Data::Apart { from, to } => {
                let to = &mut to[..from.len()];
                to.copy_from_slice(from);
                to
            }
        }
    }
}

/// One unit of work on borrowed buffers, for engines that finish inside the call.
pub struct Request<'a> {
    /// What to do.
    pub kind: Kind,
    /// With which key; [`Key::none`] for kinds that take none.
    pub key: &'a Key,
    /// Nonce, initialisation vector, tweak, HKDF salt, or the randomness of ML-KEM. A key and nonce seal one plaintext,
    /// and randomness is fresh: that is the caller's duty, and no engine, retry or fallback ever changes either.
    pub nonce: &'a [u8],
    /// Associated data, HKDF info, a compressor's dictionary, or what a MAC takes before the input.
    pub aad: &'a [u8],
    /// Input and output.
    pub data: Data<'a>,
    /// Tag: written by seal, read by open, empty for every other family and for a run.
    pub tag: &'a mut [u8],
    /// Settings, for kinds that have any.
    pub options: Options,
    /// Urgency.
    pub class: LatencyClass,
    /// Where the messages lie, if these are many under one key. Engines that work inside the call never see it; see
    /// [`crate::execute`].
    pub run: Option<&'a Run>,
}

impl<'a> Request<'a> {
    /// A request with empty nonce, associated data and tag and default options.
    pub fn new(kind: Kind, key: &'a Key, data: Data<'a>) -> Request<'a> {
        Request {
            kind,
            key,
            nonce: &[],
            aad: &[],
            data,
            tag: &mut [],
            options: Options::default(),
            class: LatencyClass::default(),
            run: None,
        }
    }

    /// The same request for a shorter time.
    #[inline]
    pub fn reborrow(&mut self) -> Request<'_> {
        let data = match &mut self.data {
            Data::InPlace(buffer) => Data::InPlace(buffer),
            Data::Apart { from, to } => Data::Apart { from, to },
        };
        Request { data, tag: self.tag, ..*self }
    }

    /// The request's shape, all that a policy sees of it.
    #[inline]
    pub fn shape(&self) -> Shape {
        let bytes = self.run.map_or(self.data.len(), |run| run.content(self.kind, self.data.len()));
        Shape { kind: self.kind, bytes, class: self.class, messages: self.messages() as u32 }
    }

    /// Checks everything that does not depend on secret bytes: key algorithm, lengths, room. The runtime calls this
    /// once; engines may rely on it.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the field.
    #[inline]
    pub fn validate(&self) -> Result<(), Error> {
        let room = match &self.data {
            Data::InPlace(buffer) => {
                if !matches!(self.kind.info().family, Family::Cipher | Family::Seal | Family::Open) {
                    return Err(Error::Invalid("this kind cannot work in place"));
                }
                buffer.len()
            }
            Data::Apart { to, .. } => to.len(),
        };
        if let Some(run) = self.run {
            return self.validate_run(run, room);
        }
        validate(
            self.kind,
            self.key,
            self.nonce.len(),
            self.aad.len(),
            self.data.len(),
            room,
            self.tag.len(),
        )?;
        validate_level(self.kind, self.options.level)
    }

    #[cold]
    fn validate_run(&self, run: &Run, room: usize) -> Result<(), Error> {
        self.key.fits(self.kind)?;
        if !self.tag.is_empty() {
            return Err(Error::Invalid("tag length"));
        }
        run.validate(self.kind, (self.data.len(), room), self.nonce.len(), self.aad.len())
    }
}

#[inline]
fn validate_level(kind: Kind, level: u8) -> Result<(), Error> {
    match kind.levels() {
        Some(levels) if !levels.contains(&level) => Err(Error::Invalid("compression level")),
        _ => Ok(()),
    }
}

#[inline]
fn validate(
    kind: Kind,
    key: &Key,
    nonce: usize,
    aad: usize,
    input: usize,
    room: usize,
    tag: usize,
) -> Result<(), Error> {
    let info = kind.info();
    key.fits(kind)?;
    if matches!(info.nonce, NonceLen::Exactly(len) if len != nonce) {
        return Err(Error::Invalid("nonce length"));
    }
    if tag != info.tag {
        return Err(Error::Invalid("tag length"));
    }
    if input < info.least
        || (info.multiple > 1 && !input.is_multiple_of(info.multiple))
        || fixed_input(info.family, input, info.least)
        || (info.group == Group::Hkdf && input > 0)
    {
        return Err(Error::Invalid("input length"));
    }
    let (need, aad_allowed) = match info.family {
        Family::Cipher => (input, false),
        Family::Seal | Family::Open => (input, true),
        Family::Mac => (info.output.unwrap_or(1), true),
        Family::Derive => (1, info.group == Group::Hkdf),
        Family::Compress => (1, aad <= DICTIONARY_MOST),
        _ => (info.output.unwrap_or(1), false),
    };
    if room < need {
        return Err(Error::Invalid("output length"));
    }
    if aad > 0 && !aad_allowed {
        return Err(Error::Invalid("associated data"));
    }
    // SP 800-38D: plaintext of at most 2^39 - 256 bits. RFC 8439: 2^32 - 1 blocks of 64. The tighter bound serves both.
    if input as u64 > (1 << 36) - 64 {
        return Err(Error::Invalid("input length"));
    }
    Ok(())
}

/// Kinds whose input has one length only: public keys, ciphertexts of keys and RSA integers.
#[inline]
fn fixed_input(family: Family, input: usize, least: usize) -> bool {
    match family {
        Family::Agree => input != least,
        Family::Sign => input > least.max(64),
        Family::Generate => input != 0,
        _ => false,
    }
}

/// One request of a batch, and what became of it.
pub struct Item<'a> {
    /// The request.
    pub request: Request<'a>,
    /// Output length in bytes, or why there is none. Whoever does the batch writes every one.
    pub result: Result<usize, Error>,
}

impl<'a> Item<'a> {
    /// A request that nothing was done for yet.
    pub fn new(request: Request<'a>) -> Item<'a> {
        Item { request, result: Err(Error::Unsupported) }
    }
}

/// What a policy may know of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// What is to be done.
    pub kind: Kind,
    /// Input bytes; of a run, its messages' without tags.
    pub bytes: usize,
    /// Urgency.
    pub class: LatencyClass,
    /// Messages that the bytes are of: 1 unless it is a run.
    pub messages: u32,
}

/// One unit of work that owns its buffers, for engines that answer later. The input is never changed, so that a
/// fallback can repeat the identical request; the output is scratch until the completion says otherwise.
///
/// A pointer: on its way to an engine and back it is handed on half a dozen times, and moving all of it each time cost a
/// quarter of what the runtime adds.
pub struct OwnedRequest(Box<Work>);

/// What an [`OwnedRequest`] consists of. Reached through it, never alone.
pub struct Work {
    /// What to do.
    pub kind: Kind,
    /// With which key.
    pub key: Arc<Key>,
    /// Nonce, initialisation vector, tweak, HKDF salt, or the randomness of ML-KEM.
    pub nonce: Vec<u8>,
    /// Associated data, HKDF info, a compressor's dictionary, or what a MAC takes before the input.
    pub aad: Vec<u8>,
    /// Input.
    pub input: Vec<u8>,
    /// Output, already as long as the result may be.
    pub output: Vec<u8>,
    /// Tag: written by seal, read by open; the first [`crate::KindInfo::tag`] bytes count.
    pub tag: [u8; 16],
    /// Settings, for kinds that have any.
    pub options: Options,
    /// Urgency.
    pub class: LatencyClass,
    /// The door's own mark, carried through untouched.
    pub mark: u64,
    /// Where the messages lie, if these are many under one key.
    pub run: Option<Box<Run>>,
}

impl OwnedRequest {
    /// A request with empty nonce and associated data, whose output has `room` bytes.
    pub fn new(kind: Kind, key: Arc<Key>, input: Vec<u8>, room: usize) -> OwnedRequest {
        OwnedRequest(Box::new(Work {
            kind,
            key,
            nonce: Vec::new(),
            aad: Vec::new(),
            input,
            output: vec![0; room],
            tag: [0; 16],
            options: Options::default(),
            class: LatencyClass::default(),
            mark: 0,
            run: None,
        }))
    }

    /// The same request in buffers of its own, without a run.
    pub fn copy_of(request: &Request<'_>) -> OwnedRequest {
        let (input, room) = match &request.data {
            Data::InPlace(buffer) => (buffer.to_vec(), buffer.len()),
            Data::Apart { from, to } => (from.to_vec(), to.len()),
        };
        let mut copy = OwnedRequest::new(request.kind, Arc::new(request.key.clone()), input, room);
        (copy.nonce, copy.aad) = (request.nonce.to_vec(), request.aad.to_vec());
        (copy.options, copy.class) = (request.options, request.class);
        if let Some(tag) = copy.tag.get_mut(..request.tag.len()) {
            tag.copy_from_slice(request.tag);
        }
        copy
    }

    /// Another that asks the same.
    pub(crate) fn again(&self) -> OwnedRequest {
        let Work { kind, key, nonce, aad, input, output, tag, options, class, mark, run } = &*self.0;
        OwnedRequest(Box::new(Work {
            kind: *kind,
            key: key.clone(),
            nonce: nonce.clone(),
            aad: aad.clone(),
            input: input.clone(),
            output: output.clone(),
            tag: *tag,
            options: *options,
            class: *class,
            mark: *mark,
            run: run.clone(),
        }))
    }

    /// The request's shape.
    #[inline]
    pub fn shape(&self) -> Shape {
        let whole = self.input.len();
        let bytes = self.run.as_ref().map_or(whole, |run| run.content(self.kind, whole));
        Shape { kind: self.kind, bytes, class: self.class, messages: self.messages() as u32 }
    }

    /// As [`Request::validate`] of its [`OwnedRequest::view`].
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the field.
    #[inline]
    pub fn validate(&self) -> Result<(), Error> {
        let (input, room) = (self.input.len(), self.output.len());
        if let Some(run) = &self.run {
            self.key.fits(self.kind)?;
            return run.validate(self.kind, (input, room), self.nonce.len(), self.aad.len());
        }
        // The tag has room for every kind's.
        let tag = self.kind.info().tag;
        validate(self.kind, &self.key, self.nonce.len(), self.aad.len(), input, room, tag)?;
        validate_level(self.kind, self.options.level)
    }

    /// The same request on borrowed buffers.
    #[inline]
    pub fn view(&mut self) -> Request<'_> {
        let work = &mut *self.0;
        Request {
            kind: work.kind,
            key: &work.key,
            nonce: &work.nonce,
            aad: &work.aad,
            data: Data::Apart { from: &work.input, to: &mut work.output },
            tag: if work.run.is_some() { &mut [] } else { &mut work.tag[..work.kind.info().tag] },
            options: work.options,
            class: work.class,
            run: work.run.as_deref(),
        }
    }
}

impl Deref for OwnedRequest {
    type Target = Work;

    #[inline]
    fn deref(&self) -> &Work {
        &self.0
    }
}

impl DerefMut for OwnedRequest {
    #[inline]
    fn deref_mut(&mut self) -> &mut Work {
        &mut self.0
    }
}

impl Drop for Work {
    /// Buffers that can hold a secret are wiped: key-agreement and key-derivation results, generated keys, decrypted
    /// premaster secrets, opened plaintext, the plaintext that was to be sealed, and randomness that keys are made of.
    fn drop(&mut self) {
        if self.kind.output_is_secret() {
            self.output.zeroize();
        }
        if self.kind.info().family == Family::Seal {
            self.input.zeroize();
        }
        if self.kind.nonce_is_secret() {
            self.nonce.zeroize();
        }
    }
}

impl fmt::Debug for OwnedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedRequest")
            .field("kind", &self.kind)
            .field("input_len", &self.input.len())
            .field("mark", &self.mark)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Algorithm;

    fn gcm() -> Key {
        Key::symmetric(Algorithm::Aes128Gcm, &[1; 16]).unwrap()
    }

    #[test]
    fn a_derivation_that_has_no_input_is_given_none() {
        let secret = Key::symmetric(Algorithm::Secret, &[1; 32]).unwrap();
        for kind in Kind::ALL.iter().filter(|kind| kind.info().group == Group::Hkdf) {
            let ask = |input: &[u8]| {
                let data = Data::Apart { from: input, to: &mut [0; 9] };
                Request::new(*kind, &secret, data).validate()
            };
            assert_eq!(ask(b""), Ok(()), "{kind:?}");
            assert_eq!(ask(b"x"), Err(Error::Invalid("input length")), "{kind:?}");
        }
        // The other derivation has no associated data.
        let data = Data::Apart { from: b"label", to: &mut [0; 9] };
        let request = Request { aad: b"x", ..Request::new(Kind::Tls12PrfSha256, &secret, data) };
        assert_eq!(request.validate(), Err(Error::Invalid("associated data")));
    }

    #[test]
    fn each_wrong_field_is_named() {
        let key = gcm();
        let ask = |kind, key: &Key, nonce: &[u8], aad: &[u8], input: usize, room: usize, tag: usize| {
            let (from, mut to, mut tag) = (vec![0; input], vec![0; room], vec![0; tag]);
            let data = Data::Apart { from: &from, to: &mut to };
            Request { nonce, aad, tag: &mut tag, ..Request::new(kind, key, data) }.validate()
        };
        let seal = Kind::Aes128GcmSeal;
        assert_eq!(ask(seal, &key, &[0; 12], b"a", 9, 9, 16), Ok(()));
        assert_eq!(ask(seal, &key, &[0; 11], b"", 9, 9, 16), Err(Error::Invalid("nonce length")));
        assert_eq!(ask(seal, &key, &[0; 12], b"", 9, 8, 16), Err(Error::Invalid("output length")));
        assert_eq!(ask(seal, &key, &[0; 12], b"", 9, 9, 15), Err(Error::Invalid("tag length")));
        assert_eq!(
            ask(Kind::Aes256GcmSeal, &key, &[0; 12], b"", 9, 9, 16),
            Err(Error::Invalid("key algorithm"))
        );
        let none = Key::none();
        assert_eq!(ask(Kind::Sha256, none, b"", b"a", 9, 32, 0), Err(Error::Invalid("associated data")));
        assert_eq!(ask(Kind::Sha256, none, b"", b"", 9, 31, 0), Err(Error::Invalid("output length")));
        assert_eq!(ask(Kind::P256Generate, none, b"", b"", 1, 97, 0), Err(Error::Invalid("input length")));
    }

    #[test]
    fn an_owned_request_is_validated_as_its_view_is() {
        let key = Arc::new(gcm());
        let mut request = OwnedRequest::new(Kind::Aes128GcmSeal, key, vec![0; 9], 9);
        assert_eq!(request.validate(), Err(Error::Invalid("nonce length")));
        request.nonce = vec![0; 12];
        assert_eq!((request.validate(), request.view().validate()), (Ok(()), Ok(())));
        request.output.pop();
        assert_eq!(request.validate(), Err(Error::Invalid("output length")));
        assert_eq!(request.view().validate(), request.validate());
        let mut request = OwnedRequest::new(Kind::Deflate, Arc::new(Key::none_owned()), vec![0; 9], 99);
        request.options.level = 10;
        assert_eq!(request.validate(), Err(Error::Invalid("compression level")));
        assert_eq!(request.view().validate(), request.validate());
    }

    #[test]
    fn a_digest_cannot_work_in_place() {
        let mut buffer = [0; 64];
        let request = Request::new(Kind::Sha512, Key::none(), Data::InPlace(&mut buffer));
        assert!(request.validate().is_err());
    }
}
