//! AES-GCM: streaming with associated data, and TLS 1.2 records (explicit nonce in front, tag behind, in place).
//!
//! States and errors are those of OpenSSL's own GCM: a nonce is used for one message, and an encryption without one
//! makes a random one. Decryption in pieces gives out plaintext before the tag is known, as EVP_DecryptUpdate(3)
//! says; a TLS record is verified first, and wiped if it is forged.
//!
//! A TLS record may go to a device: of a handshake or a write that was announced, whose job it pauses, and under the
//! published rules any, for which the call waits. One of TLS 1.2 is announced as one. One of TLS 1.3 is known by its associated data, the record's header
//! (RFC 8446 section 5.2), whose length is that of the piece that follows. Nothing else goes there: not what a random
//! generator or an application encrypts.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};

use wattlock::core::{Algorithm, Data, Error, Key, Kind, LatencyClass, Request, Stream};
use zeroize::Zeroize;

use super::entries::{Cipher, table};
use super::{Facts, Streams, Tally, answered, copies, say, symmetric, taken, told, with_buffers};
use crate::arg::{Exclusive, bytes};
use crate::error::{Reason, entry, raise};
use crate::params::{Answer, Answers, END, Params, Table, describe};
use crate::provider::Provider;
use crate::seat::is_known;
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM, PARAM_OCTETS, PARAM_UNSIGNED};

const TAG: usize = 16;
/// Longest nonce, as OpenSSL's.
const NONCE_MAX: usize = 128;
/// A TLS record's nonce.
const RECORD_NONCE: usize = TLS_FIXED + TLS_EXPLICIT;
/// Shortest nonce that is drawn at random.
const RANDOM_MIN: usize = 12;
/// A TLS 1.2 record's nonce: 4 bytes fixed, 8 sent with the record (RFC 5288 section 3).
const TLS_FIXED: usize = 4;
const TLS_EXPLICIT: usize = 8;
/// Sequence number, type, version, length (RFC 5246 section 6.2.3.3).
const TLS_AAD: usize = 13;
/// A TLS 1.3 record's header: type 23, version 3.3, length.
const TLS13_AAD: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NonceState {
    None,
    /// Given, the message not begun.
    Ready,
    /// The message has begun.
    Used,
    /// The message is over: this nonce must not serve again.
    Spent,
}

struct Context {
    provider: &'static Provider,
    tally: Tally,
    bits: usize,
    key: Option<Key>,
    /// By direction: open, seal. Made when first needed.
    streams: Streams,
    seal: bool,
    nonce: [u8; NONCE_MAX],
    nonce_len: usize,
    state: NonceState,
    /// Whether nonces are counted by us (TLS 1.2).
    counted: bool,
    /// The tag, or associated data of the next TLS record. (One place for both, as in OpenSSL's own: whichever came last is
    /// given out.)
    tag: [u8; TAG],
    tag_len: Option<usize>,
    /// Whether it was set since the nonce was.
    tag_given: bool,
    /// Whether a TLS record comes next.
    tls: bool,
    /// What the last record that was announced grows by.
    tls_pad: usize,
    /// Bytes of this message.
    bytes: usize,
    /// All the message's associated data, if it is as long as a TLS 1.3 record's.
    header: Option<[u8; TLS13_AAD]>,
    /// What became of a TLS 1.3 record that was done as a whole: the verdict on its tag.
    whole: Option<Result<(), Error>>,
    /// Records sealed under this key.
    records: u64,
}

fn kinds(bits: usize) -> (Algorithm, [Kind; 2]) {
    match bits {
        128 => (Algorithm::Aes128Gcm, [Kind::Aes128GcmOpen, Kind::Aes128GcmSeal]),
        192 => (Algorithm::Aes192Gcm, [Kind::Aes192GcmOpen, Kind::Aes192GcmSeal]),
        _ => (Algorithm::Aes256Gcm, [Kind::Aes256GcmOpen, Kind::Aes256GcmSeal]),
    }
}

impl Cipher for Context {
    const GETTABLE: &'static [OSSL_PARAM] = &[
        describe(c"keylen", PARAM_UNSIGNED),
        describe(c"ivlen", PARAM_UNSIGNED),
        describe(c"taglen", PARAM_UNSIGNED),
        describe(c"iv", PARAM_OCTETS),
        describe(c"updated-iv", PARAM_OCTETS),
        describe(c"tag", PARAM_OCTETS),
        describe(c"tlsaadpad", PARAM_UNSIGNED),
        describe(c"tlsivgen", PARAM_OCTETS),
        END,
    ];

    fn settable(_: usize) -> &'static [OSSL_PARAM] {
        const SETTABLE: &[OSSL_PARAM] = &[
            describe(c"ivlen", PARAM_UNSIGNED),
            describe(c"tag", PARAM_OCTETS),
            describe(c"tlsaad", PARAM_OCTETS),
            describe(c"tlsivfixed", PARAM_OCTETS),
            describe(c"tlsivinv", PARAM_OCTETS),
            END,
        ];
        SETTABLE
    }

    fn facts(bits: usize) -> Facts {
        const GCM_MODE: c_uint = 6;
        Facts { mode: GCM_MODE, key: bits / 8, iv: 12, block: 1, aead: true, custom_iv: true, multi: false }
    }

    fn new(provider: &'static Provider, bits: usize) -> Context {
        Context {
            provider,
            tally: Tally::default(),
            bits,
            key: None,
            streams: [None, None],
            seal: false,
            nonce: [0; NONCE_MAX],
            nonce_len: 12,
            state: NonceState::None,
            counted: false,
            tag: [0; TAG],
            tag_len: None,
            tag_given: false,
            tls: false,
            tls_pad: 0,
            bytes: 0,
            header: None,
            whole: None,
            records: 0,
        }
    }

    fn duplicate(&self) -> Option<Context> {
        let mut copy = Context::new(self.provider, self.bits);
        copy.streams = copies(&self.streams)?;
        (copy.key, copy.seal) = (self.key.clone(), self.seal);
        (copy.nonce, copy.nonce_len, copy.state, copy.counted) =
            (self.nonce, self.nonce_len, self.state, self.counted);
        (copy.tag, copy.tag_len, copy.tag_given) = (self.tag, self.tag_len, self.tag_given);
        (copy.tls, copy.tls_pad) = (self.tls, self.tls_pad);
        (copy.bytes, copy.records) = (self.bytes, self.records);
        (copy.header, copy.whole) = (self.header, self.whole);
        Some(copy)
    }

    fn init(&mut self, seal: bool, key: Option<&[u8]>, nonce: Option<&[u8]>, params: Params<'_>) -> bool {
        if (key.is_some() || seal != self.seal) && self.state == NonceState::Used {
            // OpenSSL's own goes on with a state of zeros, or with one of the other direction: no tag proves anything then.
            self.state = NonceState::Spent;
        }
        self.seal = seal;
        if let Some(nonce) = nonce {
            if nonce.is_empty() || nonce.len() > NONCE_MAX {
                raise(Reason::InvalidIvLength);
                return false;
            }
            self.nonce[..nonce.len()].copy_from_slice(nonce);
            self.nonce_len = nonce.len();
            (self.state, self.tag_given) = (NonceState::Ready, false);
        }
        if let Some(key) = key {
            if key.len() * 8 != self.bits {
                raise(Reason::InvalidKeyLength);
                return false;
            }
            // Many programs set the same key again before each message.
            if !is_known(self.key.as_ref().map(Key::bytes), key) {
                self.streams = [None, None];
                self.key = symmetric(kinds(self.bits).0, key);
            }
            self.records = 0;
        }
        self.set(params)
    }

    /// The two lengths are asked for with each message.
    fn get(&mut self, answers: &mut Answers<'_>) -> bool {
        answers.iter_mut().all(|mut answer| {
            if answer.is(c"ivlen") {
                answered(answer.set_size(self.nonce_len))
            } else if answer.is(c"keylen") {
                answered(answer.set_size(self.bits / 8))
            } else if answer.is(c"tag") {
                self.hand_out_tag(&mut answer)
            } else if answer.is(c"taglen") {
                answered(answer.set_size(self.tag_len.unwrap_or(TAG)))
            } else if answer.is(c"tlsaadpad") {
                answered(answer.set_size(self.tls_pad))
            } else if answer.is(c"iv") || answer.is(c"updated-iv") {
                self.hand_out_nonce(&mut answer)
            } else if answer.is(c"tlsivgen") {
                // SAFETY: a caller that says no length has room for a whole nonce (EVP_CTRL_GCM_IV_GEN).
                let place = unsafe { answer.place(self.nonce_len) };
                place.is_some_and(|place| self.next_nonce(place))
            } else {
                true
            }
        })
    }

    fn set(&mut self, params: Params<'_>) -> bool {
        params.iter().all(|param| {
            let octets = param.octets().filter(|_| param.is_octets());
            if param.is(c"tag") {
                self.set_tag(octets.filter(|_| !param.is_null()))
            } else if param.is(c"ivlen") {
                self.set_nonce_len(param.size())
            } else if param.is(c"tlsaad") {
                taken(octets.map(|_| ())) && octets.is_some_and(|aad| self.set_tls_aad(aad))
            } else if param.is(c"tlsivfixed") {
                // SAFETY: a caller that sets a whole nonce (a size of -1) has as many bytes as the nonce's length was
                // set to.
                let fixed = match unsafe { param.whole(self.nonce_len) } {
                    Some(nonce) => self.set_whole(nonce),
                    None => octets.is_some_and(|fixed| self.set_fixed(fixed)),
                };
                taken(fixed.then_some(()))
            } else {
                let explicit = octets.filter(|_| !param.is_null());
                !param.is(c"tlsivinv") || explicit.is_some_and(|explicit| self.set_explicit(explicit))
            }
        })
    }
}

impl Context {
    #[inline]
    fn stream(&mut self) -> Result<&mut Box<dyn Stream>, Error> {
        self.stream_and_nonce().map(|(stream, _)| stream)
    }

    fn stream_and_nonce(&mut self) -> Result<(&mut Box<dyn Stream>, &[u8]), Error> {
        let place = &mut self.streams[usize::from(self.seal)];
        if place.is_none() {
            let key = self.key.as_ref().ok_or(Error::Invalid("no key"))?;
            *place = Some(self.provider.open_stream(kinds(self.bits).1[usize::from(self.seal)], key)?);
        }
        let stream = place.as_mut().ok_or(Error::Unsupported)?;
        Ok((stream, &self.nonce[..self.nonce_len]))
    }

    fn start(&mut self) -> Result<&mut Box<dyn Stream>, Error> {
        let (stream, nonce) = self.stream_and_nonce()?;
        stream.start(nonce)?;
        Ok(stream)
    }

    /// Begins the message if it has not begun.
    fn begin(&mut self) -> Result<(), Error> {
        match self.state {
            NonceState::Used => return Ok(()),
            NonceState::Spent => return Err(Error::Invalid("the nonce was used")),
            NonceState::None => {
                let len = self.nonce_len;
                // A nonce that is drawn has 96 bits at least (SP 800-38D section 8.2.2): a shorter one comes again soon.
                if !self.seal || len < RANDOM_MIN || !self.provider.child.random(&mut self.nonce[..len]) {
                    return Err(Error::Invalid("no nonce"));
                }
            }
            NonceState::Ready => {}
        }
        self.start()?;
        (self.header, self.whole) = (None, None);
        self.state = NonceState::Used;
        Ok(())
    }

    /// A piece of a message, or a TLS record if one was announced.
    ///
    /// # Safety
    /// As [`Context::update`].
    #[inline]
    unsafe fn next(&mut self, out: *mut u8, input: *const u8, len: usize) -> Result<usize, Error> {
        if !self.tls {
            // SAFETY: the caller's.
            return unsafe { self.update(out, input, len) };
        }
        let place = !out.is_null() && out.cast_const() == input;
        // SAFETY: the caller's buffer; a record is worked on in place only.
        self.record(if place { unsafe { std::slice::from_raw_parts_mut(out, len) } } else { &mut [] })
    }

    /// # Safety
    /// As [`with_buffers`]; `out` may be null, and then the input is associated data.
    unsafe fn update(&mut self, out: *mut u8, input: *const u8, len: usize) -> Result<usize, Error> {
        if self.key.is_none() {
            return Err(Error::Invalid("no key"));
        }
        let first = self.state != NonceState::Used;
        self.begin()?;
        if self.whole.is_some() {
            return Err(Error::Invalid("more than the record"));
        }
        // SAFETY: the caller's.
        unsafe {
            if out.is_null() {
                self.header = if first { bytes(input, len).try_into().ok() } else { None };
                self.stream()?.aad(bytes(input, len))?;
                return Ok(len);
            }
            if let Some(header) = self.header.take()
                && self.is_record(&header, len)
            {
                return with_buffers(out, input, len, |data| self.whole_record(&header, data));
            }
            let stream = self.stream()?;
            let done = with_buffers(out, input, len, |data| stream.update(data))?;
            self.bytes += done;
            Ok(done)
        }
    }

    /// Whether a piece behind this header is a TLS 1.3 record that a device may do.
    fn is_record(&self, header: &[u8; TLS13_AAD], len: usize) -> bool {
        let [kind, version @ .., high, low] = *header;
        let whole = usize::from(u16::from_be_bytes([high, low])) == len + TAG;
        let tag = self.seal || self.tag_given && self.tag_len == Some(TAG);
        (kind, version) == (23, [3, 3]) && whole && tag && self.is_one_request()
    }

    /// Whether a record may go to a device now. Only streams take nonces that are no TLS record's.
    fn is_one_request(&self) -> bool {
        let kind = self.kind();
        self.nonce_len == RECORD_NONCE && (self.provider.may_pause(kind) || self.provider.may_wait(kind))
    }

    /// A TLS 1.3 record. Of a forged one zeros come out, and its end fails.
    fn whole_record(&mut self, header: &[u8], mut data: Data<'_>) -> Result<usize, Error> {
        let mut tag = self.tag;
        let verdict = match &mut data {
            Data::InPlace(buffer) => self.pausing(header, Data::InPlace(buffer), &mut tag),
            Data::Apart { from, to } => self.pausing(header, Data::Apart { from, to }, &mut tag),
        };
        match verdict {
            Ok(_) => {}
            Err(Error::Authentication) => data.output().zeroize(),
            Err(error) => {
                self.state = NonceState::Spent;
                return Err(error);
            }
        }
        if self.seal {
            self.tag = tag;
        }
        self.whole = Some(verdict.map(|_| ()));
        Ok(data.len())
    }

    /// A message by whichever engine, which may pause the job that this is in.
    fn pausing(&self, aad: &[u8], data: Data<'_>, tag: &mut [u8]) -> Result<usize, Error> {
        let key = self.key.as_ref().ok_or(Error::Invalid("no key"))?;
        let request = Request::new(self.kind(), key, data);
        let nonce = &self.nonce[..self.nonce_len];
        self.provider.run_or_pause(Request { nonce, aad, tag, class: LatencyClass::Stream, ..request })
    }

    fn kind(&self) -> Kind {
        kinds(self.bits).1[usize::from(self.seal)]
    }

    fn finish(&mut self) -> Result<(), Error> {
        if self.tls {
            return self.record(&mut []).map(|_| ());
        }
        if self.key.is_none() {
            return Err(Error::Invalid("no key"));
        }
        self.begin()?;
        if let Some(verdict) = self.whole.take() {
            self.state = NonceState::Spent;
            self.tag_len = Some(TAG);
            return verdict;
        }
        let mut tag = self.tag;
        let len = if self.seal { TAG } else { self.tag_len.ok_or(Error::Invalid("no tag"))? };
        // As OpenSSL's: whatever comes of it, the nonce is spent.
        self.state = NonceState::Spent;
        let verdict = self.stream()?.finish(&mut tag[..len.clamp(4, TAG)]);
        let bytes = std::mem::take(&mut self.bytes);
        self.tally.add(self.provider, kinds(self.bits).1[usize::from(self.seal)], bytes);
        if self.seal {
            self.tag = tag;
            self.tag_len = Some(TAG);
        } else if len < 4 {
            // No mode allows so short a tag (SP 800-38D section 5.2.1.2).
            return Err(Error::Authentication);
        }
        verdict
    }

    /// One TLS 1.2 record, in place: nonce, text, tag. Returns the bytes of the result.
    fn record(&mut self, record: &mut [u8]) -> Result<usize, Error> {
        let outcome = self.try_record(record);
        (self.state, self.tls) = (NonceState::Spent, false);
        outcome.ok_or(Error::Authentication)
    }

    fn try_record(&mut self, record: &mut [u8]) -> Option<usize> {
        if record.len() < TLS_EXPLICIT + TAG || self.key.is_none() || !self.counted {
            return None;
        }
        let (explicit, rest) = record.split_at_mut(TLS_EXPLICIT);
        let place = self.nonce_len.checked_sub(TLS_EXPLICIT)?;
        if self.seal {
            // SP 800-38D section 8.3: no key is used for more than 2^32 nonces chosen without a counter; ours counts,
            // and 2^64 cannot be reached before it repeats.
            self.records = self.records.checked_add(1)?;
            explicit.copy_from_slice(&self.nonce[place..self.nonce_len]);
        } else {
            self.nonce[place..self.nonce_len].copy_from_slice(explicit);
        }
        let (text, tag) = rest.split_at_mut(rest.len() - TAG);
        let len = text.len();
        let aad = self.tag;
        let done = if self.is_one_request() {
            self.pausing(&aad[..TLS_AAD], Data::InPlace(text), tag).map(|_| ())
        } else {
            let begun = self.tally.begins();
            let stream = self.start().ok()?;
            let done = stream
                .aad(&aad[..TLS_AAD])
                .and_then(|()| stream.update(Data::InPlace(text)))
                .and_then(|_| stream.finish(tag));
            if let Some(begun) = begun {
                self.provider.streamed_in(self.kind(), len, begun.elapsed());
            }
            self.tally.add(self.provider, self.kind(), len);
            done
        };
        self.tag_len = Some(TAG);
        if self.seal {
            self.count();
            done.ok()?;
            return Some(TLS_EXPLICIT + len + TAG);
        }
        if done.is_err() {
            text.zeroize();
            return None;
        }
        Some(len)
    }

    /// The next nonce.
    fn count(&mut self) {
        for byte in self.nonce[self.nonce_len - TLS_EXPLICIT..self.nonce_len].iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                break;
            }
        }
    }

    fn set_tag(&mut self, tag: Option<&[u8]>) -> bool {
        let Some(tag) = tag.filter(|tag| tag.len() <= TAG) else { return taken(None) };
        // Refused or not, it is what is there now, as with OpenSSL's own.
        self.tag[..tag.len()].copy_from_slice(tag);
        if tag.is_empty() || self.seal {
            raise(Reason::InvalidTag);
            return false;
        }
        (self.tag_len, self.tag_given) = (Some(tag.len()), true);
        true
    }

    fn set_nonce_len(&mut self, len: Option<usize>) -> bool {
        let Some(len) = len else { return taken(None) };
        if !(1..=NONCE_MAX).contains(&len) {
            raise(Reason::InvalidIvLength);
            return false;
        }
        if len != self.nonce_len && self.state != NonceState::None {
            self.state = NonceState::Spent;
        }
        self.nonce_len = len;
        true
    }

    fn set_tls_aad(&mut self, aad: &[u8]) -> bool {
        let announced = <[u8; TLS_AAD]>::try_from(aad).is_ok_and(|aad| self.announce(aad));
        if !announced {
            raise(Reason::InvalidAad);
        }
        announced
    }

    /// A TLS record comes next, even if its length is none: it fails then.
    fn announce(&mut self, mut aad: [u8; TLS_AAD]) -> bool {
        // The length counts the explicit nonce and, when opening, the tag; what is authenticated counts the text.
        let len = usize::from(u16::from_be_bytes([aad[11], aad[12]]));
        let extra = TLS_EXPLICIT + if self.seal { 0 } else { TAG };
        let text = len.checked_sub(extra);
        aad[11..].copy_from_slice(&(text.unwrap_or(len) as u16).to_be_bytes());
        self.tag[..TLS_AAD].copy_from_slice(&aad);
        self.tls = true;
        if text.is_some() {
            self.tls_pad = TAG;
        }
        text.is_some()
    }

    /// A nonce to count on from, all of it.
    fn set_whole(&mut self, nonce: &[u8]) -> bool {
        self.nonce[..nonce.len()].copy_from_slice(nonce);
        (self.counted, self.state) = (true, NonceState::Ready);
        true
    }

    fn set_fixed(&mut self, fixed: &[u8]) -> bool {
        if fixed.len() < TLS_FIXED || self.nonce_len < fixed.len() + TLS_EXPLICIT {
            return false;
        }
        self.nonce[..fixed.len()].copy_from_slice(fixed);
        if self.seal && !self.provider.child.random(&mut self.nonce[fixed.len()..self.nonce_len]) {
            return false;
        }
        self.counted = true;
        self.state = NonceState::Ready;
        true
    }

    fn set_explicit(&mut self, explicit: &[u8]) -> bool {
        if !self.counted || self.key.is_none() || self.seal || explicit.len() > self.nonce_len {
            return false;
        }
        let place = self.nonce_len - explicit.len();
        self.nonce[place..self.nonce_len].copy_from_slice(explicit);
        let begun = self.start().is_ok();
        self.state = NonceState::Used;
        begun
    }

    /// The next counted nonce, whose last bytes go out with the record.
    fn next_nonce(&mut self, out: &mut [u8]) -> bool {
        if !self.counted || self.key.is_none() || self.nonce_len < TLS_EXPLICIT || self.start().is_err() {
            return false;
        }
        let len = out.len().min(self.nonce_len);
        out[..len].copy_from_slice(&self.nonce[self.nonce_len - len..self.nonce_len]);
        self.count();
        self.state = NonceState::Used;
        true
    }

    fn hand_out_nonce(&self, answer: &mut Answer<'_>) -> bool {
        if self.state == NonceState::None {
            return false;
        }
        if answer.room() < self.nonce_len {
            raise(Reason::InvalidIvLength);
            return false;
        }
        answered(answer.set_octets(&self.nonce[..self.nonce_len]))
    }

    fn hand_out_tag(&self, answer: &mut Answer<'_>) -> bool {
        let room = answer.room();
        if room == 0 || room > TAG || !self.seal || self.tag_len.is_none() {
            raise(Reason::InvalidTag);
            return false;
        }
        answered(answer.is_octets() && answer.set_octets(&self.tag[..room]))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.nonce.zeroize();
        self.tally.hand_over(self.provider, kinds(self.bits).1[usize::from(self.seal)]);
    }
}

unsafe extern "C" fn update(
    context: Exclusive<'_, Context>,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
    input: *const u8,
    len: usize,
) -> c_int {
    entry(|| {
        let Some(context) = context.get() else { return 0 };
        // SAFETY: by contract buffers of these lengths.
        unsafe {
            if len == 0 {
                return say(out_len, 0);
            }
            if !out.is_null() && room < len {
                raise(Reason::OutputBufferTooSmall);
                return 0;
            }
            let done = context.next(out, input, len);
            told(out_len, done.map_err(|_| Reason::CipherOperationFailed))
        }
    })
}

unsafe extern "C" fn finish(
    context: Exclusive<'_, Context>,
    _: *mut u8,
    out_len: *mut usize,
    _: usize,
) -> c_int {
    entry(|| {
        let done = context.get().and_then(|context| context.finish().ok());
        // SAFETY: OpenSSL's own variable.
        done.map_or(0, |()| unsafe { say(out_len, 0) })
    })
}

/// What `EVP_Cipher()` calls: says nothing about what it refuses, and not how long a record's text is.
unsafe extern "C" fn whole(
    context: Exclusive<'_, Context>,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
    input: *const u8,
    len: usize,
) -> c_int {
    if input.is_null() {
        // SAFETY: as in `finish`.
        return unsafe { finish(context, out, out_len, room) };
    }
    entry(|| {
        let Some(context) = context.get() else { return 0 };
        // SAFETY: as in `update`.
        unsafe {
            if !out.is_null() && room < len {
                raise(Reason::OutputBufferTooSmall);
                return 0;
            }
            context.next(out, input, len).map_or(0, |_| say(out_len, len))
        }
    })
}

/// AES-128-GCM.
pub static AES_128: Table<OSSL_DISPATCH, 15> = table::<Context, 128>(update, finish, whole);
/// AES-192-GCM.
pub static AES_192: Table<OSSL_DISPATCH, 15> = table::<Context, 192>(update, finish, whole);
/// AES-256-GCM.
pub static AES_256: Table<OSSL_DISPATCH, 15> = table::<Context, 256>(update, finish, whole);

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::seat::tests::WithCard;

    /// A card takes the nonces of TLS only: whatever else looks like a record stays here.
    #[test]
    fn what_looks_like_a_record_is_sealed_right_with_a_nonce_of_any_length() {
        let with = WithCard::new(&[Kind::X25519Derive], &[]);
        // SAFETY: the context is gone before the provider is.
        let provider: &'static Provider = unsafe { &*std::ptr::from_ref(with.loaded.provider()) };
        let text = [7_u8; 100];
        let seal = |nonce: &[u8]| {
            let (mut context, mut out) = (Context::new(provider, 128), text);
            // SAFETY: no list of parameters.
            let none = unsafe { Params::new(std::ptr::null()) };
            assert!(context.init(true, Some(&[1; 16]), Some(nonce), none));
            let at = out.as_mut_ptr();
            // SAFETY: buffers of these lengths.
            let done = unsafe {
                context.update(std::ptr::null_mut(), [23, 3, 3, 0, 116].as_ptr(), TLS13_AAD).unwrap();
                context.update(at, at, out.len()).unwrap()
            };
            context.finish().unwrap();
            assert_eq!(done, text.len());
            (out, context.tag)
        };
        for (len, by_card) in [(12, true), (8, false), (16, false)] {
            let (alone, before) = (seal(&vec![2; len]), with.on_card_of(Kind::Aes128GcmSeal));
            // Until the card has given its known answers the CPU does it.
            for _ in 0..10 {
                with.in_handshake(|| assert_eq!(seal(&vec![2; len]), alone));
            }
            assert_eq!(with.on_card_of(Kind::Aes128GcmSeal) > before, by_card, "{len}");
        }
    }
}
