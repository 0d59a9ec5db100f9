//! AES-CBC: pieces of any length, padding by PKCS#7 (RFC 5652 section 6.3) or none, and TLS records up to TLS 1.2.
//!
//! States and errors are those of OpenSSL's own CBC: the last block of a padded message is kept until the end is told,
//! and a key or a nonce may be given by itself. Once `tls-version` is set each update is one record in place:
//! encryption pads it, decryption takes explicit nonce, padding and MAC off ([`record`](super::record)) and has the MAC
//! ready under `tls-mac` until the next.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};

use wattlock::core::{Algorithm, Data, Error, Key, Kind, Request};
use zeroize::{Zeroize, Zeroizing};

use super::entries::{Cipher, table};
use super::record::{MAC_MAX, Padding, strip};
use super::secret::Secret;
use super::{
    Common, Facts, GETTABLE_COMMON, SETTABLE_COMMON, Streams, Tally, answered, copies, symmetric, taken,
    told, with_buffers,
};
use crate::arg::{Exclusive, bytes};
use crate::error::{Reason, entry, raise};
use crate::params::{Answers, Params, Table};
use crate::provider::Provider;
use crate::seat::is_known;
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM};

const BLOCK: usize = 16;
/// Versions as `tls-version` has them: SSL 3.0, TLS 1.0 to 1.2, and DTLS 1.2, 1.0 and the one before it.
const SSL3: c_uint = 0x300;
const TLS10: c_uint = 0x301;
const EXPLICIT_NONCE: [c_uint; 5] = [0x302, 0x303, 0xfefd, 0xfeff, 0x100];

struct Context {
    provider: &'static Provider,
    tally: Tally,
    bits: usize,
    key: Option<Key>,
    /// By direction: decryption, encryption. Made when first needed.
    streams: Streams,
    encrypt: bool,
    given: [u8; BLOCK],
    has_nonce: bool,
    /// The block before the next: the nonce, then the last ciphertext.
    chain: [u8; BLOCK],
    /// Whether the stream stands at `chain`.
    begun: bool,
    /// What is not a block yet, or may be the last one.
    kept: [u8; BLOCK],
    kept_len: usize,
    num: c_uint,
    common: Common,
    mac: [u8; MAC_MAX],
}

fn kinds(bits: usize) -> (Algorithm, [Kind; 2]) {
    match bits {
        128 => (Algorithm::Aes128Cbc, [Kind::Aes128CbcDecrypt, Kind::Aes128CbcEncrypt]),
        192 => (Algorithm::Aes192Cbc, [Kind::Aes192CbcDecrypt, Kind::Aes192CbcEncrypt]),
        _ => (Algorithm::Aes256Cbc, [Kind::Aes256CbcDecrypt, Kind::Aes256CbcEncrypt]),
    }
}

impl Cipher for Context {
    const GETTABLE: &'static [OSSL_PARAM] = GETTABLE_COMMON;

    fn settable(_: usize) -> &'static [OSSL_PARAM] {
        SETTABLE_COMMON
    }

    fn facts(bits: usize) -> Facts {
        const CBC_MODE: c_uint = 2;
        Facts {
            mode: CBC_MODE,
            key: bits / 8,
            iv: BLOCK,
            block: BLOCK,
            aead: false,
            custom_iv: false,
            multi: false,
        }
    }

    fn new(provider: &'static Provider, bits: usize) -> Context {
        Context {
            provider,
            tally: Tally::default(),
            bits,
            key: None,
            streams: [None, None],
            encrypt: false,
            given: [0; BLOCK],
            has_nonce: false,
            chain: [0; BLOCK],
            begun: false,
            kept: [0; BLOCK],
            kept_len: 0,
            num: 0,
            common: Common::NEW,
            mac: [0; MAC_MAX],
        }
    }

    fn duplicate(&self) -> Option<Context> {
        let mut copy = Context::new(self.provider, self.bits);
        copy.streams = copies(&self.streams)?;
        (copy.key, copy.encrypt, copy.common) = (self.key.clone(), self.encrypt, self.common);
        (copy.given, copy.has_nonce, copy.chain) = (self.given, self.has_nonce, self.chain);
        (copy.begun, copy.num) = (self.begun, self.num);
        (copy.kept, copy.kept_len) = (self.kept, self.kept_len);
        copy.mac = self.mac;
        Some(copy)
    }

    fn init(&mut self, encrypt: bool, key: Option<&[u8]>, nonce: Option<&[u8]>, params: Params<'_>) -> bool {
        self.encrypt = encrypt;
        (self.kept_len, self.num, self.begun) = (0, 0, false);
        if let Some(nonce) = nonce {
            let Ok(nonce) = nonce.try_into() else {
                raise(Reason::InvalidIvLength);
                return false;
            };
            (self.given, self.has_nonce) = (nonce, true);
        }
        // As OpenSSL's: begun anew with the same nonce where none is given, and gone on if there never was one.
        if self.has_nonce {
            self.chain = self.given;
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
        }
        self.set(params)
    }

    fn get(&mut self, answers: &mut Answers<'_>) -> bool {
        let mac_len = self.common.mac_len;
        let mac = if mac_len > MAC_MAX { std::ptr::null() } else { self.mac.as_ptr().cast() };
        let good = answers.set_size(c"keylen", self.bits / 8)
            && answers.set_size(c"ivlen", BLOCK)
            && answers.set_uint(c"padding", self.common.padded.into())
            && answers.set_uint(c"num", self.num)
            && answers.set_octets(c"iv", &self.given)
            && answers.set_octets(c"updated-iv", &self.chain)
            && answers.set_pointer(c"tls-mac", mac, mac_len);
        answered(good)
    }

    fn set(&mut self, params: Params<'_>) -> bool {
        params.iter().all(|param| match param.is(c"num") {
            true => taken(param.uint().map(|num| self.num = num)),
            false => self.common.set(&param),
        })
    }
}

impl Context {
    fn kind(&self) -> Kind {
        kinds(self.bits).1[usize::from(self.encrypt)]
    }

    /// Brings the stream to where the next block is.
    #[cold]
    fn begin(&mut self) -> Result<(), Error> {
        let kind = self.kind();
        let place = &mut self.streams[usize::from(self.encrypt)];
        let stream = match place {
            Some(stream) => stream,
            None => {
                let key = self.key.as_ref().ok_or(Error::Invalid("no key"))?;
                place.insert(self.provider.open_stream(kind, key)?)
            }
        };
        stream.start(&self.chain)?;
        self.begun = true;
        Ok(())
    }

    /// Whole blocks, at least one, from where the stream is. (What stands for the buffers is made once and only moved
    /// from here on. Copied, it would be loaded wide after narrow stores, which waits for these to leave the core, and
    /// that is when the blocks before are done: nothing of two calls would overlap.)
    ///
    /// # Safety
    /// As [`with_buffers`]; `len` is at least a block.
    #[inline(always)]
    unsafe fn go_on(&mut self, out: *mut u8, input: *const u8, len: usize) -> Result<(), Reason> {
        let failed = Reason::CipherOperationFailed;
        let stream = self.streams[usize::from(self.encrypt)].as_mut().ok_or(failed)?;
        let (last, chain) = (len - BLOCK, self.chain.as_mut_ptr());
        // SAFETY: the caller's buffers, and the last block of each.
        unsafe {
            if !self.encrypt {
                // In place a decrypted block is no longer the ciphertext that the next one needs.
                std::ptr::copy_nonoverlapping(input.add(last), chain, BLOCK);
            }
            with_buffers(out, input, len, |data| stream.update(data)).map_err(|_| failed)?;
            if self.encrypt {
                std::ptr::copy_nonoverlapping(out.add(last), chain, BLOCK);
            }
        }
        if self.tally.counts(len) {
            self.tally.hand_over(self.provider, self.kind());
        }
        Ok(())
    }

    /// Whole blocks of the caller, at least one: as one request if the call may wait for a device, else in the stream.
    ///
    /// # Safety
    /// As [`Context::go_on`].
    #[inline(never)]
    unsafe fn apply(&mut self, out: *mut u8, input: *const u8, len: usize) -> Result<(), Reason> {
        if self.provider.piece_may_wait(self.kind()) {
            // SAFETY: the caller's.
            return unsafe { self.apply_whole(out, input, len, Provider::run_or_wait) };
        }
        // SAFETY: the caller's.
        unsafe { self.apply_stream(out, input, len) }
    }

    /// Whole blocks, at least one, in the stream, which is begun where that is needed.
    ///
    /// # Safety
    /// As [`Context::go_on`].
    unsafe fn apply_stream(&mut self, out: *mut u8, input: *const u8, len: usize) -> Result<(), Reason> {
        if !self.begun {
            self.begin().map_err(|_| Reason::CipherOperationFailed)?;
        }
        // SAFETY: the caller's.
        unsafe { self.go_on(out, input, len) }
    }

    /// A record's blocks, in place: as one request if a device may do it, for which the call pauses its job or waits.
    ///
    /// # Safety
    /// `len` bytes at `at` are the caller's alone; `len` is at least a block.
    unsafe fn apply_record(&mut self, at: *mut u8, len: usize) -> Result<(), Reason> {
        let kind = self.kind();
        // SAFETY: the caller's.
        unsafe {
            match self.provider.may_pause(kind) || self.provider.may_wait(kind) {
                true => self.apply_whole(at, at, len, Provider::run_or_pause),
                false => {
                    let begun = self.tally.begins();
                    self.apply_stream(at, at, len)?;
                    if let Some(begun) = begun {
                        self.provider.streamed_in(kind, len, begun.elapsed());
                    }
                    Ok(())
                }
            }
        }
    }

    /// Whole blocks, at least one, as one request. What comes next begins at the last ciphertext, as in the stream.
    ///
    /// # Safety
    /// As [`Context::go_on`].
    #[cold]
    unsafe fn apply_whole(
        &mut self,
        out: *mut u8,
        input: *const u8,
        len: usize,
        run: fn(&Provider, Request<'_>) -> Result<usize, Error>,
    ) -> Result<(), Reason> {
        let failed = Reason::CipherOperationFailed;
        let (kind, key) = (self.kind(), self.key.as_ref().ok_or(failed)?);
        let (last, mut next) = (len - BLOCK, [0; BLOCK]);
        let work = |data: Data<'_>| {
            run(self.provider, Request { nonce: &self.chain, ..Request::new(kind, key, data) })
        };
        // SAFETY: the caller's buffers, and the last block of each.
        unsafe {
            if !self.encrypt {
                std::ptr::copy_nonoverlapping(input.add(last), next.as_mut_ptr(), BLOCK);
            }
            with_buffers(out, input, len, work).map_err(|_| failed)?;
            if self.encrypt {
                std::ptr::copy_nonoverlapping(out.add(last), next.as_mut_ptr(), BLOCK);
            }
        }
        (self.chain, self.begun) = (next, false);
        Ok(())
    }

    /// One block of our own: of two pieces, or a message's last. A device is not asked for so little.
    fn apply_to(&mut self, block: &mut [u8; BLOCK]) -> Result<(), Reason> {
        let at = block.as_mut_ptr();
        // SAFETY: a block, in place.
        unsafe { self.apply_stream(at, at, BLOCK) }?;
        // The pieces behind it are asked about as if it had not been.
        self.begun &= !self.provider.piece_may_wait(self.kind());
        Ok(())
    }

    /// # Safety
    /// As [`with_buffers`], but that `out` has `room` bytes.
    #[inline(always)]
    unsafe fn update(
        &mut self,
        out: *mut u8,
        room: usize,
        input: *const u8,
        len: usize,
    ) -> Result<usize, Reason> {
        let simple = self.begun
            && self.common.version == 0
            && self.kept_len == 0
            && (self.encrypt || !self.common.padded);
        let whole = len.is_multiple_of(BLOCK) && len > 0 && len <= room && !out.is_null() && !input.is_null();
        // SAFETY: the caller's; neither is null.
        unsafe {
            if simple && whole {
                self.go_on(out, input, len).map(|()| len)
            } else {
                self.otherwise(out, room, input, len)
            }
        }
    }

    /// Kept away from the short way, whose every instruction shows with small pieces.
    ///
    /// # Safety
    /// As [`Context::update`].
    #[inline(never)]
    unsafe fn otherwise(
        &mut self,
        out: *mut u8,
        room: usize,
        input: *const u8,
        len: usize,
    ) -> Result<usize, Reason> {
        if self.key.is_none() {
            return Err(Reason::NoKeySet);
        }
        // SAFETY: the caller's.
        unsafe {
            match self.common.version {
                0 => self.piece(out, room, input, len),
                _ => self.record(out, room, input, len),
            }
        }
    }

    /// Whole blocks with nothing kept before or after, in the stream: CMAC is made of it, and MACs are the CPU's.
    ///
    /// # Safety
    /// As [`Context::update`].
    unsafe fn whole(
        &mut self,
        out: *mut u8,
        room: usize,
        input: *const u8,
        len: usize,
    ) -> Result<usize, Reason> {
        if len == 0 {
            return Ok(0);
        }
        if room < len {
            return Err(Reason::OutputBufferTooSmall);
        }
        if !len.is_multiple_of(BLOCK) || out.is_null() || input.is_null() {
            return Err(Reason::CipherOperationFailed);
        }
        // SAFETY: the caller's; neither is null.
        unsafe { self.apply_stream(out, input, len) }.map(|()| len)
    }

    /// A piece of any length.
    ///
    /// # Safety
    /// As [`Context::update`].
    unsafe fn piece(
        &mut self,
        out: *mut u8,
        room: usize,
        input: *const u8,
        len: usize,
    ) -> Result<usize, Reason> {
        if input.is_null() && len > 0 {
            return Err(Reason::CipherOperationFailed);
        }
        let before = self.kept_len;
        let sum = before.checked_add(len).ok_or(Reason::CipherOperationFailed)?;
        let mut due = sum - sum % BLOCK;
        if !self.encrypt && self.common.padded && due == sum && due > 0 {
            // This may have been the last block, and then it ends in padding.
            due -= BLOCK;
        }
        if due == 0 {
            // SAFETY: `len` readable bytes, which fit: together with what is kept they are a block at most.
            self.kept[before..sum].copy_from_slice(unsafe { bytes(input, len) });
            self.kept_len = sum;
            return Ok(0);
        }
        if room < due {
            return Err(Reason::OutputBufferTooSmall);
        }
        if out.is_null() {
            return Err(Reason::CipherOperationFailed);
        }
        let first = if before > 0 { BLOCK } else { 0 };
        // The first block is written before the rest is read: where it lies on the rest, that is copied away.
        let (from, to) = (input as usize, out as usize);
        let spoils = first > 0 && to < from.saturating_add(len) && from < to.saturating_add(before);
        // SAFETY: `len` readable bytes.
        let copy = Zeroizing::new(if spoils { unsafe { bytes(input, len) }.to_vec() } else { Vec::new() });
        let input = if spoils { copy.as_ptr() } else { input };
        // SAFETY: the caller's buffers, or our copy as long as the input; offsets are within: `due - before` bytes of
        // input are processed, at least one of `first` and `before` ends a block.
        unsafe {
            let taken = first.saturating_sub(before);
            let mut block = Zeroizing::new([0; BLOCK]);
            let mut rest = Zeroizing::new([0; BLOCK]);
            rest[..sum - due].copy_from_slice(bytes(input.add(due - before), sum - due));
            if first > 0 {
                block[..before].copy_from_slice(&self.kept[..before]);
                block[before..].copy_from_slice(bytes(input, taken));
                self.apply_to(&mut block)?;
                std::ptr::copy_nonoverlapping(block.as_ptr(), out, BLOCK);
            }
            if due > first {
                self.apply(out.add(first), input.add(taken), due - first)?;
            }
            (self.kept, self.kept_len) = (*rest, sum - due);
        }
        Ok(due)
    }

    /// One TLS record, in place.
    ///
    /// # Safety
    /// As [`Context::update`].
    unsafe fn record(
        &mut self,
        out: *mut u8,
        room: usize,
        input: *const u8,
        len: usize,
    ) -> Result<usize, Reason> {
        let failed = Reason::CipherOperationFailed;
        if out.is_null() || out.cast_const() != input || !self.common.padded {
            return Err(failed);
        }
        let style = if self.common.version == SSL3 { Padding::Ssl3 } else { Padding::Tls };
        let whole = len + if self.encrypt { Padding::added(len) } else { 0 };
        if room < whole || whole == 0 || !whole.is_multiple_of(BLOCK) {
            return Err(failed);
        }
        // SAFETY: the caller's buffer, which has this room; no other code uses it meanwhile, nor do we two ways at
        // once.
        let record = || unsafe { std::slice::from_raw_parts_mut(out, whole) };
        if self.encrypt {
            style.fill(&mut record()[len..]);
            // SAFETY: the same buffer, in place.
            return unsafe { self.apply_record(out, whole) }.map(|()| whole);
        }
        let nonce = match self.common.version {
            SSL3 | TLS10 => 0,
            version if EXPLICIT_NONCE.contains(&version) => BLOCK,
            _ => return Err(failed),
        };
        // SAFETY: the same buffer, in place.
        unsafe { self.apply_record(out, whole) }?;
        let mut random = [0; MAC_MAX];
        let random = random.get_mut(..self.common.mac_len).ok_or(failed)?;
        if !random.is_empty() && !self.provider.child.random(random) {
            return Err(failed);
        }
        let text = record().get(nonce..).ok_or(failed)?;
        strip(text, style, random, &mut self.mac[..random.len()]).ok_or(failed)
    }

    /// The end of a message.
    ///
    /// # Safety
    /// `out` has `room` writable bytes.
    unsafe fn finish(&mut self, out: *mut u8, room: usize) -> Result<usize, Reason> {
        if self.key.is_none() {
            return Err(Reason::NoKeySet);
        }
        if self.common.version != 0 {
            return Err(Reason::CipherOperationFailed);
        }
        let kept = self.kept_len;
        let mut block = Zeroizing::new(self.kept);
        if self.encrypt && self.common.padded {
            block[kept..].fill((BLOCK - kept) as u8);
        } else if kept == 0 && !self.common.padded {
            return Ok(0);
        } else if kept != BLOCK {
            return Err(Reason::WrongFinalBlockLength);
        }
        if self.encrypt && room < BLOCK {
            return Err(Reason::OutputBufferTooSmall);
        }
        self.apply_to(&mut block)?;
        self.kept_len = 0;
        let len = if self.encrypt || !self.common.padded { BLOCK } else { unpadded(&block)? };
        if room < len {
            return Err(Reason::OutputBufferTooSmall);
        }
        if len > 0 && out.is_null() {
            return Err(Reason::CipherOperationFailed);
        }
        if len > 0 {
            // SAFETY: room for `len` bytes, which are ours.
            unsafe { std::ptr::copy_nonoverlapping(block.as_ptr(), out, len) };
        }
        Ok(len)
    }
}

/// The length of a last block's text. Only the outcome shows what the padding was.
fn unpadded(block: &[u8; BLOCK]) -> Result<usize, Reason> {
    let told = Secret::of(block[BLOCK - 1]);
    let mut wrong = told.is_zero() | !told.at_most(Secret::of(BLOCK as u8));
    for (at, byte) in (1..).zip(block.iter().rev()) {
        wrong = wrong | Secret::of(at).at_most(told) & (Secret::of(*byte) ^ told);
    }
    if wrong.is_zero().reveal() == 0 {
        return Err(Reason::BadDecrypt);
    }
    Ok(BLOCK - usize::from(told.reveal()))
}

impl Drop for Context {
    fn drop(&mut self) {
        self.kept.zeroize();
        self.mac.zeroize();
        self.tally.hand_over(self.provider, self.kind());
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
        unsafe { told(out_len, context.update(out, room, input, len)) }
    })
}

/// Whole blocks as they are: `EVP_Cipher()`.
unsafe extern "C" fn once(
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
            let done = match context.key {
                Some(_) => context.whole(out, room, input, len),
                None => Err(Reason::NoKeySet),
            };
            told(out_len, done)
        }
    })
}

unsafe extern "C" fn finish(
    context: Exclusive<'_, Context>,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
) -> c_int {
    entry(|| {
        let Some(context) = context.get() else { return 0 };
        // SAFETY: by contract a buffer of this length.
        unsafe { told(out_len, context.finish(out, room)) }
    })
}

/// AES-128-CBC.
pub static AES_128: Table<OSSL_DISPATCH, 15> = table::<Context, 128>(update, finish, once);
/// AES-192-CBC.
pub static AES_192: Table<OSSL_DISPATCH, 15> = table::<Context, 192>(update, finish, once);
/// AES-256-CBC.
pub static AES_256: Table<OSSL_DISPATCH, 15> = table::<Context, 256>(update, finish, once);
