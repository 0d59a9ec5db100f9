//! AES-CBC with HMAC, as libssl has them for records up to TLS 1.2 whose MAC comes before the encryption
//! (`AES-128-CBC-HMAC-SHA1` and the like).
//!
//! One thing is done here: several records at once ("multi-block"). libssl asks for it when a program writes four
//! fragments or more in one call; MACs and encryptions of 4 or 8 records then are batches, which an engine may do in
//! lanes. Everything else is OpenSSL's own cipher's, in the child context: single records, several short ones, TLS 1.0,
//! and all that is read, so that its check of padding and MAC in constant time is not written a second time.
//!
//! | parameter | says |
//! |---|---|
//! | `tls1multi_maxsndfrag` | the longest text of a record; answered by `tls1multi_maxbufsz`, its record's length |
//! | `tls1multi_aad` | 13 bytes: number, type, version and length of the first record; its size is the whole text's, unless the last two bytes have one. With `tls1multi_interleave`, 4 or 8 |
//! | `tls1multi_aadpacklen` | how long all records together are |
//! | `tls1multi_enc`, `tls1multi_encin` | where records go and text is; the sizes of both are the text's |
//! | `tls1multi_enclen` | how much came out |
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use wattlock::core::{Algorithm, Data, Item, Key, Kind, LatencyClass, Request, Shape};
use zeroize::Zeroize;

use super::entries::{Cipher, table};
use super::record::Padding;
use super::{Facts, symmetric, told};
use crate::arg::Exclusive;
use crate::child::CipherCtx;
use crate::error::{Reason, entry, raise};
use crate::params::{Answers, END, Param, Params, Table, describe};
use crate::provider::Provider;
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM, PARAM_OCTETS, PARAM_UNSIGNED};

const BLOCK: usize = 16;
/// A record's header and its explicit initialisation vector.
const HEADER: usize = 5;
const BEFORE: usize = HEADER + BLOCK;
/// What a MAC covers before the text: number, type, version, length.
const AAD: usize = 13;
/// The longest text of a record (RFC 5246 section 6.2.1).
const TEXT_MOST: usize = 1 << 14;
/// From this version on records have an initialisation vector of their own.
const TLS11: u16 = 0x302;
/// Records of one call, at most.
const MOST: usize = 8;
/// Texts of fewer bytes in all are OpenSSL's: eight records of 2 KiB took 1.1 times its time, of 4 KiB 0.8 to 0.9 (Zen 5,
/// OpenSSL 3.0, `openssl speed -mb`).
const LEAST: usize = 24 << 10;
/// The longest MAC here.
const MAC_MOST: usize = 32;

/// Ciphers of this file, as const arguments of the entries: key bits and digest bits.
const AES128_SHA1: usize = 128 << 16 | 160;
const AES256_SHA1: usize = 256 << 16 | 160;
const AES128_SHA256: usize = 128 << 16 | 256;
const AES256_SHA256: usize = 256 << 16 | 256;

/// What a cipher of this file consists of.
struct Suite {
    name: &'static std::ffi::CStr,
    algorithm: Algorithm,
    cipher: Kind,
    mac: Kind,
    mac_len: usize,
}

fn suite(which: usize) -> Suite {
    let (algorithm, cipher) = match which >> 16 {
        128 => (Algorithm::Aes128Cbc, Kind::Aes128CbcEncrypt),
        _ => (Algorithm::Aes256Cbc, Kind::Aes256CbcEncrypt),
    };
    let (mac, mac_len) = if which & 0xffff == 160 { (Kind::HmacSha1, 20) } else { (Kind::HmacSha256, 32) };
    let name = match which {
        AES128_SHA1 => c"AES-128-CBC-HMAC-SHA1",
        AES256_SHA1 => c"AES-256-CBC-HMAC-SHA1",
        AES128_SHA256 => c"AES-128-CBC-HMAC-SHA256",
        _ => c"AES-256-CBC-HMAC-SHA256",
    };
    Suite { name, algorithm, cipher, mac, mac_len }
}

/// Records that the next call is to make.
#[derive(Clone, Copy)]
struct Plan {
    /// The first record's number, type and version.
    number: u64,
    kind: u8,
    version: [u8; 2],
    records: usize,
    /// Bytes of text of all.
    text: usize,
}

impl Plan {
    /// Text of each record but the last, and of the last, which has what does not divide evenly.
    fn texts(&self) -> (usize, usize) {
        let each = self.text / self.records;
        (each, self.text - each * (self.records - 1))
    }

    /// Bytes of all records.
    fn packed(&self, mac: usize) -> usize {
        let (each, last) = self.texts();
        record_len(each, mac) * (self.records - 1) + record_len(last, mac)
    }

    /// What the MAC of a record covers before its text.
    fn aad(&self, index: usize, text: usize) -> [u8; AAD] {
        let mut aad = [0; AAD];
        aad[..8].copy_from_slice(&self.number.wrapping_add(index as u64).to_be_bytes());
        aad[8] = self.kind;
        aad[9..11].copy_from_slice(&self.version);
        aad[11..].copy_from_slice(&(text as u16).to_be_bytes());
        aad
    }
}

/// Bytes of a record with a text of `text` bytes.
fn record_len(text: usize, mac: usize) -> usize {
    BEFORE + text + mac + Padding::added(text + mac)
}

struct Context {
    provider: &'static Provider,
    suite: Suite,
    which: usize,
    /// OpenSSL's own; none if it has no such cipher, and then nothing works.
    theirs: Option<CipherCtx>,
    encrypt: bool,
    key: Option<Key>,
    mac_key: Option<Key>,
    /// The longest text of a record, as libssl says it.
    fragment: usize,
    plan: Option<Plan>,
    /// The records that were asked for last are OpenSSL's: calls about them go there.
    handed_on: bool,
    /// Answers of the last two calls.
    interleave: usize,
    packed: usize,
    made: usize,
}

impl Cipher for Context {
    const GETTABLE: &'static [OSSL_PARAM] = &[
        describe(c"tls1multi_maxbufsz", PARAM_UNSIGNED),
        describe(c"tls1multi_interleave", PARAM_UNSIGNED),
        describe(c"tls1multi_aadpacklen", PARAM_UNSIGNED),
        describe(c"tls1multi_enclen", PARAM_UNSIGNED),
        describe(c"tlsaadpad", PARAM_UNSIGNED),
        describe(c"keylen", PARAM_UNSIGNED),
        describe(c"ivlen", PARAM_UNSIGNED),
        describe(c"iv", PARAM_OCTETS),
        describe(c"updated-iv", PARAM_OCTETS),
        END,
    ];

    /// (That the fourth is a number is OpenSSL's own slip.)
    fn settable(_: usize) -> &'static [OSSL_PARAM] {
        const SETTABLE: &[OSSL_PARAM] = &[
            describe(c"mackey", PARAM_OCTETS),
            describe(c"tlsaad", PARAM_OCTETS),
            describe(c"tls1multi_maxsndfrag", PARAM_UNSIGNED),
            describe(c"tls1multi_aad", PARAM_UNSIGNED),
            describe(c"tls1multi_interleave", PARAM_UNSIGNED),
            describe(c"tls1multi_enc", PARAM_OCTETS),
            describe(c"tls1multi_encin", PARAM_OCTETS),
            describe(c"keylen", PARAM_UNSIGNED),
            END,
        ];
        SETTABLE
    }

    fn facts(which: usize) -> Facts {
        const CBC_MODE: std::ffi::c_uint = 2;
        let key = (which >> 16) / 8;
        Facts { mode: CBC_MODE, key, iv: BLOCK, block: BLOCK, aead: true, custom_iv: false, multi: true }
    }

    fn new(provider: &'static Provider, which: usize) -> Context {
        let suite = suite(which);
        Context {
            provider,
            theirs: provider.child.cipher(suite.name),
            suite,
            which,
            encrypt: true,
            key: None,
            mac_key: None,
            fragment: TEXT_MOST,
            plan: None,
            handed_on: false,
            interleave: 0,
            packed: 0,
            made: 0,
        }
    }

    fn duplicate(&self) -> Option<Context> {
        let theirs = self.theirs.as_ref()?.duplicate()?;
        Some(Context {
            theirs: Some(theirs),
            suite: suite(self.which),
            key: self.key.clone(),
            mac_key: self.mac_key.clone(),
            ..*self
        })
    }

    fn init(&mut self, encrypt: bool, key: Option<&[u8]>, nonce: Option<&[u8]>, params: Params<'_>) -> bool {
        (self.encrypt, self.plan, self.handed_on) = (encrypt, None, false);
        if nonce.is_some_and(|nonce| nonce.len() != BLOCK) {
            raise(Reason::InvalidIvLength);
            return false;
        }
        if let Some(key) = key {
            if key.len() != Context::facts(self.which).key {
                raise(Reason::InvalidKeyLength);
                return false;
            }
            self.key = symmetric(self.suite.algorithm, key);
        }
        let at = |bytes: Option<&[u8]>| bytes.map_or(std::ptr::null(), <[u8]>::as_ptr);
        let Some(theirs) = &mut self.theirs else { return false };
        // SAFETY: both are as long as the cipher's; what parameters come with them are set below.
        let begun = unsafe { theirs.init(encrypt, at(key), at(nonce), std::ptr::null()) };
        begun && self.set(params)
    }

    fn get(&mut self, answers: &mut Answers<'_>) -> bool {
        let whole = record_len(self.fragment, self.suite.mac_len);
        // OpenSSL declares the third as another integer than its own call asks for: any will do.
        let ours = [
            (c"tls1multi_maxbufsz", whole),
            (c"tls1multi_interleave", self.interleave),
            (c"tls1multi_aadpacklen", self.packed),
            (c"tls1multi_enclen", self.made),
        ];
        let about_it = |name: &std::ffi::CStr| name != c"tls1multi_maxbufsz" && self.handed_on;
        if ours.iter().any(|(name, _)| answers.wants(name) && !about_it(name)) {
            return ours.iter().all(|(name, value)| answers.set_size(name, *value));
        }
        let Some(theirs) = &mut self.theirs else { return false };
        // SAFETY: the caller's list.
        answers.is_empty() || unsafe { theirs.get(answers.as_mut_ptr()) }
    }

    fn set(&mut self, params: Params<'_>) -> bool {
        if params.is_empty() {
            return true;
        }
        let multi = |param: &Param<'_>| param.key().to_bytes().starts_with(b"tls1multi_");
        if params.iter().any(|param| multi(&param)) {
            return match self.several(params) {
                Ok(true) => true,
                Ok(false) => {
                    // SAFETY: the caller's list.
                    let done =
                        self.theirs.as_mut().is_some_and(|theirs| unsafe { theirs.set(params.as_ptr()) });
                    self.plan = self.plan.filter(|_| done);
                    done
                }
                Err(reason) => {
                    raise(reason);
                    false
                }
            };
        }
        if let Some(key) = params.get(c"mackey").and_then(|param| param.octets()) {
            self.mac_key = Key::symmetric(Algorithm::Secret, key).ok();
        }
        let Some(theirs) = &mut self.theirs else { return false };
        // SAFETY: the caller's list.
        unsafe { theirs.set(params.as_ptr()) }
    }
}

impl Context {
    /// What libssl says of several records. `false` if it is for OpenSSL's cipher.
    fn several(&mut self, params: Params<'_>) -> Result<bool, Reason> {
        let failed = Reason::FailedToGetParameter;
        if let Some(fragment) = params.get(c"tls1multi_maxsndfrag") {
            // A longer one is refused when it comes.
            self.fragment = fragment.size().ok_or(failed)?.min(TEXT_MOST);
        }
        let interleave = params.get(c"tls1multi_interleave").and_then(|param| param.size());
        if let Some(aad) = params.get(c"tls1multi_aad") {
            self.plan = None;
            let plan = self.planned(aad, interleave.ok_or(failed)?)?;
            (self.interleave, self.packed) = (plan.records, plan.packed(self.suite.mac_len));
            self.plan = Some(plan);
            // Where the number of records is not said, OpenSSL might choose another one.
            self.handed_on = plan.text < LEAST && interleave == Some(plan.records);
            if self.handed_on {
                return Ok(false);
            }
        }
        if let Some(to) = params.get(c"tls1multi_enc") {
            let from = params.get(c"tls1multi_encin").ok_or(failed)?;
            // Once: the same numbers never make other records.
            let plan = self.plan.take().ok_or(Reason::CipherOperationFailed)?;
            if from.len() != plan.text || interleave != Some(plan.records) {
                return Err(failed);
            }
            let (to, from) = (to.place().ok_or(failed)?, from.place().ok_or(failed)?.cast_const());
            let (start, end) = (from as usize, to as usize);
            if start < end.saturating_add(self.packed) && end < start.saturating_add(plan.text) {
                return Err(Reason::CipherOperationFailed);
            }
            if self.handed_on {
                return Ok(false);
            }
            self.made = 0;
            // SAFETY: the text is as long as the call says, the room for records is what the call before asked for, and the
            // two do not overlap.
            unsafe { self.make(plan, to, from)? };
            self.made = plan.packed(self.suite.mac_len);
        }
        Ok(true)
    }

    /// What is to be made of a text, from its length and the first record's header.
    fn planned(&self, aad: Param<'_>, interleave: usize) -> Result<Plan, Reason> {
        let failed = Reason::CipherOperationFailed;
        let header: [u8; AAD] = aad.beginning().ok_or(Reason::FailedToGetParameter)?;
        let [n0, n1, n2, n3, n4, n5, n6, n7, kind, major, minor, high, low] = header;
        let (records, text) = match usize::from(u16::from_be_bytes([high, low])) {
            0 if interleave == 4 || interleave == 8 => (interleave, aad.len()),
            text @ 8192.. => (8, text),
            text @ 4096.. => (4, text),
            _ => return Err(failed),
        };
        let version = [major, minor];
        let number = u64::from_be_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
        let plan = Plan { number, kind, version, records, text };
        let (each, last) = if text > MOST * TEXT_MOST { (0, 0) } else { plan.texts() };
        let possible = self.encrypt && u16::from_be_bytes(version) >= TLS11;
        if !possible || each == 0 || last > TEXT_MOST {
            return Err(failed);
        }
        Ok(plan)
    }

    /// Makes records: vectors and headers, then MACs and the encryption of whole blocks from where the text is, then that
    /// of what follows them: the text's rest, the MAC and the padding. A device gets whole records instead, which may pause
    /// the job that this is in; MACs are the CPU's, as published (Xiao et al., 2019).
    ///
    /// # Safety
    /// `from` has as many readable bytes as the plan's text, `to` as many writable ones as its records; they do not
    /// overlap, and no other code uses them meanwhile.
    #[inline(never)]
    unsafe fn make(&self, plan: Plan, to: *mut u8, from: *const u8) -> Result<(), Reason> {
        let failed = Reason::CipherOperationFailed;
        let (key, mac_key) =
            (self.key.as_ref().ok_or(Reason::NoKeySet)?, self.mac_key.as_ref().ok_or(Reason::NoKeySet)?);
        let (mac_len, packed) = (self.suite.mac_len, plan.packed(self.suite.mac_len));
        // SAFETY: the caller's.
        let (text, out) = unsafe { (from_raw_parts(from, plan.text), from_raw_parts_mut(to, packed)) };
        let (each, _) = plan.texts();
        let place = |at: usize| if at == plan.records { plan.text } else { at * each };
        let texts: Vec<&[u8]> = (0..plan.records).map(|at| &text[place(at)..place(at + 1)]).collect();

        let mut vectors = [[0; BLOCK]; MOST];
        let vectors = &mut vectors[..plan.records];
        if !self.provider.child.public_random(vectors.as_flattened_mut()) {
            return Err(failed);
        }
        let mut macs = [[0; MAC_MOST]; MOST];
        let mut aads = [[0; AAD]; MOST];
        for (at, text) in texts.iter().enumerate() {
            aads[at] = plan.aad(at, text.len());
        }
        let mut rest = out;
        let mut bodies: Vec<&mut [u8]> = Vec::with_capacity(plan.records);
        for (at, text) in texts.iter().enumerate() {
            let (record, after) = rest.split_at_mut(record_len(text.len(), mac_len));
            rest = after;
            let (before, body) = record.split_at_mut(BEFORE);
            before[0] = plan.kind;
            before[1..3].copy_from_slice(&plan.version);
            before[3..HEADER].copy_from_slice(&((BLOCK + body.len()) as u16).to_be_bytes());
            before[HEADER..].copy_from_slice(&vectors[at]);
            bodies.push(body);
        }
        // A device gets all records at once, each with its MAC: a second wait for a few blocks of each would take as long.
        let bytes = record_len(each, mac_len) - BEFORE;
        let shape = Shape { kind: self.suite.cipher, bytes, class: LatencyClass::Stream, messages: 1 };
        let device = self.provider.goes_to_device(&shape, plan.records);
        let whole = |text: &[u8]| if device { 0 } else { text.len() - text.len() % BLOCK };
        // One call: MACs, and on the CPU the encryption of whole blocks, which does not wait for them.
        let mut items: Vec<Item<'_>> = Vec::with_capacity(2 * plan.records);
        for ((text, aad), mac) in texts.iter().zip(&aads).zip(&mut macs) {
            items.push(request(self.suite.mac, mac_key, (&[], aad), text, &mut mac[..mac_len]));
        }
        let beside = if device { 0 } else { plan.records };
        for ((text, body), vector) in texts.iter().zip(&mut bodies).zip(&*vectors).take(beside) {
            let blocks = whole(text);
            items.push(request(self.suite.cipher, key, (vector, &[]), &text[..blocks], &mut body[..blocks]));
        }
        let good = self.provider.do_all(&mut items);
        drop(items);
        if !good {
            macs.zeroize();
            return Err(failed);
        }
        let mut tails: Vec<(&mut [u8], &[u8; BLOCK])> = Vec::with_capacity(plan.records);
        for (at, (text, body)) in texts.iter().zip(bodies).enumerate() {
            let blocks = whole(text);
            let (done, tail) = body.split_at_mut(blocks);
            let left = text.len() - blocks;
            tail[..left].copy_from_slice(&text[blocks..]);
            tail[left..left + mac_len].copy_from_slice(&macs[at][..mac_len]);
            Padding::Tls.fill(&mut tail[left + mac_len..]);
            let chain: Option<&[u8; BLOCK]> = done.last_chunk();
            tails.push((tail, chain.unwrap_or(&vectors[at])));
        }
        let mut items: Vec<Item<'_>> = Vec::with_capacity(plan.records);
        for (tail, chain) in &mut tails {
            let request = Request::new(self.suite.cipher, key, Data::InPlace(tail));
            items.push(Item::new(Request { nonce: &chain[..], class: LatencyClass::Stream, ..request }));
        }
        let good = match device {
            true => self.provider.run_all_or_pause(&mut items),
            false => self.provider.do_all(&mut items),
        };
        drop(items);
        macs.zeroize();
        if good {
            return Ok(());
        }
        // What was not encrypted must not be sent by mistake.
        tails.iter_mut().for_each(|(tail, _)| tail.zeroize());
        Err(failed)
    }
}

/// One of a batch, from one place to another.
fn request<'a>(
    kind: Kind,
    key: &'a Key,
    (nonce, aad): (&'a [u8], &'a [u8]),
    from: &'a [u8],
    to: &'a mut [u8],
) -> Item<'a> {
    let request = Request::new(kind, key, Data::Apart { from, to });
    Item::new(Request { nonce, aad, class: LatencyClass::Stream, ..request })
}

/// Has OpenSSL's cipher do something, and tells how much came out. It raises its own errors.
///
/// # Safety
/// `out_len` is null or writable.
unsafe fn handed_on(
    context: Exclusive<'_, Context>,
    out_len: *mut usize,
    work: impl FnOnce(&mut CipherCtx) -> Option<usize>,
) -> c_int {
    entry(|| {
        let done = context.get().and_then(|context| context.theirs.as_mut()).and_then(work);
        // SAFETY: the caller's.
        done.map_or(0, |done| unsafe { told(out_len, Ok(done)) })
    })
}

unsafe extern "C" fn update(
    context: Exclusive<'_, Context>,
    out: *mut u8,
    out_len: *mut usize,
    _: usize,
    input: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: by contract buffers of these lengths; OpenSSL always leaves room for another block.
    unsafe { handed_on(context, out_len, |theirs| theirs.update(out, input, len)) }
}

unsafe extern "C" fn once(
    context: Exclusive<'_, Context>,
    out: *mut u8,
    out_len: *mut usize,
    _: usize,
    input: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: as above.
    unsafe { handed_on(context, out_len, |theirs| theirs.once(out, input, len)) }
}

unsafe extern "C" fn finish(
    context: Exclusive<'_, Context>,
    out: *mut u8,
    out_len: *mut usize,
    _: usize,
) -> c_int {
    // SAFETY: by contract room for a block.
    unsafe { handed_on(context, out_len, |theirs| theirs.finish(out)) }
}

/// AES-128-CBC-HMAC-SHA1.
pub static AES_128_SHA1: Table<OSSL_DISPATCH, 15> = table::<Context, AES128_SHA1>(update, finish, once);
/// AES-256-CBC-HMAC-SHA1.
pub static AES_256_SHA1: Table<OSSL_DISPATCH, 15> = table::<Context, AES256_SHA1>(update, finish, once);
/// AES-128-CBC-HMAC-SHA256.
pub static AES_128_SHA256: Table<OSSL_DISPATCH, 15> = table::<Context, AES128_SHA256>(update, finish, once);
/// AES-256-CBC-HMAC-SHA256.
pub static AES_256_SHA256: Table<OSSL_DISPATCH, 15> = table::<Context, AES256_SHA256>(update, finish, once);

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: usize, records: usize) -> Plan {
        Plan { number: u64::MAX - 1, kind: 23, version: [3, 3], records, text }
    }

    #[test]
    fn the_last_record_has_what_does_not_divide_and_lengths_add_up() {
        for records in [4, 8] {
            for text in (records..3000).chain(60_000..60_100).chain([8 * 15_872, 65_535, 65_536, 65_537]) {
                let (each, last) = plan(text, records).texts();
                assert_eq!(each * (records - 1) + last, text);
                assert!(last >= each && last - each < records, "{text}");
                for mac in [20, 32] {
                    assert_eq!((record_len(each, mac) - BEFORE) % BLOCK, 0);
                    let sum = (records - 1) * record_len(each, mac) + record_len(last, mac);
                    assert_eq!(plan(text, records).packed(mac), sum);
                }
            }
        }
        // RFC 5246 section 6.2.3.2: at least one byte of padding.
        assert_eq!((record_len(28 - 1, 20), record_len(28, 20)), (BEFORE + 48, BEFORE + 64));
    }

    #[test]
    fn numbers_go_on_from_record_to_record() {
        let aad = plan(4096, 4).aad(1, 0x1234);
        assert_eq!(aad, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 23, 3, 3, 0x12, 0x34]);
        let numbers = Plan { number: 254, ..plan(4096, 4) };
        assert_eq!(
            [0, 1, 2, 3].map(|at| numbers.aad(at, 0)[6..8].to_vec()),
            [[0, 254], [0, 255], [1, 0], [1, 1]]
        );
    }
}
