//! OpenSSL's default provider beside Wattlock's in one process: the same random calls on both, and what they return, write
//! and put on the error queue compared.
//!
//! A sequence is made from bytes: those of a fuzzer, or of a seeded generator. Both providers are in one library
//! context and are fetched by name, so nothing here depends on what Wattlock prefers to offer on this machine. What is
//! random by nature (PSS, ECDSA, OAEP, generated keys) is not compared byte by byte but used by the other side.
//!
//! A difference ends the sequence: with a panic, unless one of the [`RULES`] explains it. Calls whose outcome OpenSSL
//! leaves undefined (it reads stale or foreign memory) are not made; [`UNDEFINED`] lists them.
#![allow(unsafe_code)]

pub mod calls;
mod cipher;
mod kdf;
mod key;
mod list;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::path::Path;
use std::sync::Mutex;

use calls::*;

/// What a rule allows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Allows {
    /// Wattlock refuses what OpenSSL does.
    Refusal,
    /// Both refuse, and name other reasons.
    Reason,
    /// One of the two refuses.
    Either,
    /// Both do it, and one leaves an error behind.
    Queue,
    /// Anything.
    Any,
}

/// A difference that is meant, by name, and why. Each is in the table of `docs/use/openssl.md`.
pub const RULES: &[(&str, Allows, &str)] = &[
    (
        "num",
        Allows::Either,
        "key stream given out twice, or clear text; OpenSSL 3.0.20 refuses more than Wattlock",
    ),
    (
        "gcm-goes-on",
        Allows::Refusal,
        "after a new key, another direction or a wrong tag a tag proves nothing",
    ),
    ("gcm-short-tag", Allows::Refusal, "a tag of less than 32 bits is guessed"),
    (
        "list",
        Allows::Reason,
        "which of several wrong parameters is named first differs among OpenSSL's versions, too",
    ),
    (
        "implicit-rejection",
        Allows::Any,
        "OpenSSL before 3.2 tells whether a padding was right, and has no name for it",
    ),
    (
        "identifier",
        Allows::Either,
        "of a digest without one OpenSSL says nothing, or fails if none was asked for before",
    ),
    ("query", Allows::Queue, "OpenSSL reports a property query that it cannot read, and goes on without"),
    ("copy", Allows::Either, "OpenSSL 3.0 copies no derivation, and no decryption with an empty label"),
];

/// `ERR_LIB_CRYPTO`, whose reasons such helpers report.
const CRYPTO: u32 = 15;

/// Calls that are never made, because OpenSSL's own outcome is undefined there.
#[allow(dead_code, reason = "words for the reader")]
pub const UNDEFINED: &[&str] = &[
    "input and output that overlap without being the same; CBC in place while bytes are held back",
    "a nonce's fixed or counter part longer than the nonce, or a record with one below 8 bytes: memory around it is used",
    "a TLS record of CBC without bytes; a copy of a CBC context that has a record's MAC, which is freed twice",
    "associated data of GCM after EVP_Cipher with no text",
    "a number without data or of no bytes, one name twice in a list, a pointer asked for as encoded-pub-key",
    "an XTS context copied without a key; an RSA key without modulus or exponent used; an empty list for a PSS key",
    "another direction without a key in CBC and XTS: the other one's round keys",
];

/// The two, in this order everywhere.
pub const SIDES: [&CStr; 2] = [c"provider=default", c"provider=wattlock"];

/// Both providers in a library context of their own.
pub struct Beside {
    pub context: *mut c_void,
    pub minor: u32,
}

// SAFETY: a library context may be used from any thread.
unsafe impl Send for Beside {}
// SAFETY: as above.
unsafe impl Sync for Beside {}

impl Beside {
    /// Loads them; `folder` gets a configuration file.
    pub fn load(folder: &Path) -> Beside {
        let file = folder.join("beside.cnf");
        let text = "openssl_conf = i\n[i]\nproviders = p\n[p]\ndefault = d\nwattlock = w\n[d]\nactivate = 1\n[w]\n\
                    activate = 1\nalgorithms = gcm,cbc,cbc-hmac,ctr,xts,rsa,ec,x25519,kdf\ntelemetry = off\n";
        std::fs::write(&file, text).expect("a folder of our own");
        let file = CString::new(file.to_str().expect("a plain path")).expect("a plain path");
        // SAFETY: by OpenSSL's manual pages; C strings.
        unsafe {
            let context = OSSL_LIB_CTX_new();
            let init = wattlock_provider::load::OSSL_provider_init;
            assert_eq!(OSSL_PROVIDER_add_builtin(context, c"wattlock".as_ptr(), init), 1);
            assert_eq!(OSSL_LIB_CTX_load_config(context, file.as_ptr()), 1, "the configuration");
            assert!(
                !OSSL_PROVIDER_load(context, c"wattlock".as_ptr()).is_null(),
                "the provider did not load"
            );
            Beside { context, minor: OPENSSL_version_minor() }
        }
    }
}

/// Decisions, made of bytes; zeros when these are used up.
pub struct Choices<'a>(pub &'a [u8]);

impl Choices<'_> {
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// One of `0..below`, at most 65,536.
    pub fn below(&mut self, below: usize) -> usize {
        match below {
            0 | 1 => 0,
            2..=256 => usize::from(self.byte()) % below,
            _ => (usize::from(self.byte()) << 8 | usize::from(self.byte())) % below,
        }
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == count - 1
    }

    /// Bytes that follow from one.
    pub fn fill(&mut self, len: usize) -> Vec<u8> {
        let mut state = u32::from(self.byte()) << 8 | 1;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }
}

/// What one side said of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub rc: i64,
    /// What was written, as far as it can be compared.
    pub wrote: Vec<u8>,
    /// Library and reason of each error, oldest first.
    pub errors: Vec<(u32, u32)>,
}

/// Takes the error queue.
pub fn errors() -> Vec<(u32, u32)> {
    let mut list = Vec::new();
    loop {
        // SAFETY: this thread's own queue.
        let code = unsafe { ERR_get_error() };
        if code == 0 {
            return list;
        }
        list.push(((code >> 23 & 0xff) as u32, (code & 0x7f_ffff) as u32));
    }
}

/// How the errors of a call are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Errors {
    /// The whole queue.
    All,
    /// The newest, which is what programs look at. Where a child does the work, the queue has its layers, too.
    Last,
}

/// The sequence is over.
pub struct Over;
pub type Go<T = ()> = Result<T, Over>;

/// One sequence: what was done, for the message, and what is known of the state.
pub struct Run<'a> {
    pub beside: &'a Beside,
    pub choices: Choices<'a>,
    /// All of the sequence, to repeat it.
    pub bytes: &'a [u8],
    pub what: String,
    pub trail: Vec<String>,
    pub errors: Errors,
    /// No key was damaged: blinding makes what a damaged one decrypts random.
    pub whole: bool,
    /// The rules that may explain a difference of the next call.
    pub rules: Vec<&'static str>,
}

/// Differences by their kind, while a survey is made instead of stopping at the first.
static SURVEY: Mutex<Option<BTreeMap<String, (usize, String)>>> = Mutex::new(None);
/// Calls compared, and how many of them succeeded.
pub static COMPARED: Mutex<BTreeMap<String, [u64; 2]>> = Mutex::new(BTreeMap::new());

/// Collects differences from here on instead of panicking.
#[allow(dead_code, reason = "one of several programs")]
pub fn survey() {
    *SURVEY.lock().expect("no panic holds it") = Some(BTreeMap::new());
}

/// What was collected: kind of difference, how often, and an example.
#[allow(dead_code, reason = "one of several programs")]
pub fn surveyed() -> BTreeMap<String, (usize, String)> {
    SURVEY.lock().expect("no panic holds it").take().unwrap_or_default()
}

impl Run<'_> {
    /// Notes a step.
    pub fn note(&mut self, step: impl Into<String>) {
        self.trail.push(step.into());
        // Where OpenSSL itself crashes, this is what is left to read.
        if std::env::var_os("WATTLOCK_BESIDE_TRAIL").is_some() {
            eprintln!("  {}", self.trail[self.trail.len() - 1]);
        }
    }

    /// The same call on both sides; what the first said. `work` gets the side's number.
    pub fn both(&mut self, call: &str, mut work: impl FnMut(usize) -> (i64, Vec<u8>)) -> Go<Said> {
        let said = [0, 1].map(|side| {
            errors();
            let (rc, wrote) = work(side);
            Said { rc, wrote, errors: errors() }
        });
        let [one, two] = said;
        let good = one.rc > 0;
        // Since 3.1 the helpers that read and write parameters report a type they do not take; which of them a provider
        // asks first is its own business, except for a call that succeeds: nothing of ours may be left behind there.
        let helpers = |said: &Said| {
            let all = said.errors.iter().copied();
            all.filter(|error| self.beside.minor == 0 || error.0 != CRYPTO).collect::<Vec<_>>()
        };
        let (ours, theirs) = (helpers(&two), helpers(&one));
        let same_errors = match self.errors {
            Errors::All => ours == theirs && (!good || two.errors == ours || two.errors == one.errors),
            Errors::Last => ours.last() == theirs.last(),
        };
        let same = one.rc == two.rc && same_errors && (!good || one.wrote == two.wrote);
        {
            let mut compared = COMPARED.lock().expect("no panic holds it");
            let count = compared.entry(format!("{} {call}", self.what)).or_default();
            count[0] += 1;
            count[1] += u64::from(good);
        }
        let rules = std::mem::take(&mut self.rules);
        if same {
            return Ok(one);
        }
        let done = |said: &Said| said.rc > 0;
        let explains = |rule: &&str| {
            let (_, allows, _) = RULES.iter().find(|one| one.0 == *rule).expect("a rule of the table");
            match allows {
                Allows::Refusal => !done(&two),
                Allows::Reason => !done(&one) && !done(&two),
                Allows::Either => done(&one) != done(&two),
                Allows::Queue => one.rc == two.rc && one.wrote == two.wrote && done(&one),
                Allows::Any => true,
            }
        };
        if rules.iter().any(explains) {
            return Err(Over);
        }
        // Of newer versions only this is held: a call that succeeds leaves nothing behind that OpenSSL's own does not.
        // (docs/use/openssl.md: what they have and Wattlock has not.)
        let leaves = done(&one) && done(&two) && one.errors.is_empty() && !two.errors.is_empty();
        if self.beside.minor > 0 && !leaves && std::env::var_os("SURVEY").is_none() {
            return Err(Over);
        }
        self.differ(call, &one, &two);
        Err(Over)
    }

    /// Reports a difference.
    pub fn differ(&self, call: &str, one: &Said, two: &Said) {
        let wrote = if one.wrote == two.wrote { "" } else { ", other bytes" };
        let kind = format!(
            "{} {call}: {} {:?} but {} {:?}{wrote}",
            self.what, one.rc, one.errors, two.rc, two.errors
        );
        let bytes: String = self.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let example = format!(
            "{}\n  default  {one:02x?}\n  wattlock {two:02x?}\n  again: WATTLOCK_BESIDE={bytes}",
            self.trail.join("\n  ")
        );
        let mut survey = SURVEY.lock().expect("no panic holds it");
        match &mut *survey {
            Some(kinds) => kinds.entry(kind).or_insert((0, example)).0 += 1,
            None => {
                drop(survey);
                panic!("{kind}\n  {example}");
            }
        }
    }
}

/// One sequence of calls, made of these bytes.
pub fn sequence(beside: &Beside, bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let which = choices.byte();
    let mut run = Run {
        beside,
        choices,
        bytes,
        what: String::new(),
        trail: Vec::new(),
        errors: Errors::All,
        whole: true,
        rules: Vec::new(),
    };
    let _ = match which % 8 {
        0..=3 => cipher::sequence(&mut run),
        4 => kdf::sequence(&mut run),
        _ => key::sequence(&mut run),
    };
    errors();
}

/// Seeded sequences; `only` picks one kind of the eight by its number.
#[allow(dead_code, reason = "one of several programs")]
pub fn seeded(beside: &Beside, seed: u64, count: usize, only: Option<u8>) {
    // Marsaglia, "Xorshift RNGs" (2003).
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    for _ in 0..count {
        let len = 40 + usize::from(next()) * 2;
        let mut bytes: Vec<u8> = (0..len).map(|_| next()).collect();
        if let Some(only) = only {
            bytes[0] = only;
        }
        sequence(beside, &bytes);
    }
}

/// A result of OpenSSL's as it is compared.
pub fn rc(result: c_int) -> i64 {
    i64::from(result)
}
