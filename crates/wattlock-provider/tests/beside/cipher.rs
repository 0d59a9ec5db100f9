//! Ciphers: contexts begun, set, asked, fed, ended, copied and begun anew in any order.
//!
//! A small model knows what OpenSSL leaves undefined: then the call is not made, or its bytes are not compared.

use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::ptr::null;
use std::sync::OnceLock;

use super::calls::*;
use super::list::{self, List, OCTETS, TEXT, Value};
use super::{Beside, Errors, Go, Over, Run, SIDES, rc};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Gcm,
    Cbc,
    Ctr,
    Xts,
    Combined,
}

const CIPHERS: [(&CStr, Mode); 18] = [
    (c"AES-128-GCM", Mode::Gcm),
    (c"AES-256-GCM", Mode::Gcm),
    (c"AES-192-GCM", Mode::Gcm),
    (c"AES-256-GCM", Mode::Gcm),
    (c"AES-128-GCM", Mode::Gcm),
    (c"AES-128-CBC", Mode::Cbc),
    (c"AES-256-CBC", Mode::Cbc),
    (c"AES-192-CBC", Mode::Cbc),
    (c"AES-128-CTR", Mode::Ctr),
    (c"AES-256-CTR", Mode::Ctr),
    (c"AES-192-CTR", Mode::Ctr),
    (c"AES-128-CTR", Mode::Ctr),
    (c"AES-128-XTS", Mode::Xts),
    (c"AES-256-XTS", Mode::Xts),
    (c"AES-128-CBC-HMAC-SHA1", Mode::Combined),
    (c"AES-256-CBC-HMAC-SHA1", Mode::Combined),
    (c"AES-128-CBC-HMAC-SHA256", Mode::Combined),
    (c"AES-256-CBC-HMAC-SHA256", Mode::Combined),
];

/// Every name that a cipher has, had or may get.
const NAMES: [&CStr; 34] = [
    c"padding",
    c"num",
    c"ivlen",
    c"keylen",
    c"tag",
    c"taglen",
    c"tlsaad",
    c"tlsaadpad",
    c"tlsivfixed",
    c"tlsivgen",
    c"tlsivinv",
    c"iv",
    c"updated-iv",
    c"tls-version",
    c"tls-mac",
    c"tls-mac-size",
    c"use-bits",
    c"mode",
    c"aead",
    c"custom-iv",
    c"cts",
    c"cts_mode",
    c"blocksize",
    c"has-randkey",
    c"randkey",
    c"speed",
    c"mackey",
    c"tls-multi",
    c"iv-generated",
    c"encrypt-check",
    c"fips-indicator",
    c"pipeline-tag",
    c"xts_standard",
    c"bogus",
];

const ROOM: usize = 1024;
const KEYS: usize = 4;

/// Fetched once: both sides' methods of each cipher.
fn fetched(beside: &Beside) -> &'static [[usize; 2]] {
    static FETCHED: OnceLock<Vec<[usize; 2]>> = OnceLock::new();
    FETCHED.get_or_init(|| {
        let context = beside.context.cast();
        // SAFETY: a live library context and C strings.
        let fetch = |name: &CStr, side: usize| unsafe {
            EVP_CIPHER_fetch(context, name.as_ptr(), SIDES[side].as_ptr()) as usize
        };
        CIPHERS.iter().map(|(name, _)| [fetch(name, 0), fetch(name, 1)]).collect()
    })
}

fn key(which: usize) -> [u8; 64] {
    let mut key = [0; 64];
    for (at, byte) in key.iter_mut().enumerate() {
        *byte = (at as u8).wrapping_mul(7) ^ (which as u8).wrapping_mul(0x35);
    }
    if which == KEYS - 1 {
        // Two halves that are one, for XTS of both sizes.
        key = [0x5c; 64];
    }
    key
}

struct State {
    contexts: [*mut EVP_CIPHER_CTX; 2],
    mode: Mode,
    methods: [*const EVP_CIPHER; 2],
    /// Direction that the schedule of the key was made for, as OpenSSL keeps it.
    scheduled: Option<bool>,
    encrypt: bool,
    /// Nonces that were generated: bytes differ.
    random: bool,
    begun: bool,
    /// Bytes of the message so far; of CBC, whether any may be held back.
    fed: usize,
    padded: bool,
    nonce_len: usize,
    /// A TLS record comes next, or was set up.
    tls: bool,
    counted: bool,
    /// GCM: a nonce was given, or was generated.
    nonced: bool,
    /// GCM: parts of an older nonce that was generated may lie behind this one.
    drawn: bool,
    /// CBC: a record's MAC may have been set aside.
    records: bool,
    /// GCM: the tag is of a message whose nonce was generated.
    random_tag: bool,
    /// GCM: what comes is refused until there is a nonce.
    over: bool,
    /// GCM: bytes of the tag that was set.
    tag: Option<usize>,
}

impl Drop for State {
    fn drop(&mut self) {
        for context in self.contexts {
            // SAFETY: ours, freed once.
            unsafe { EVP_CIPHER_CTX_free(context) };
        }
    }
}

pub fn sequence(run: &mut Run<'_>) -> Go {
    let which = run.choices.below(CIPHERS.len());
    let (name, mode) = CIPHERS[which];
    let methods = fetched(run.beside)[which].map(|one| one as *const EVP_CIPHER);
    if methods.iter().any(|one| one.is_null()) {
        return Ok(());
    }
    run.what = format!("{mode:?}");
    run.errors = if mode == Mode::Combined { Errors::Last } else { Errors::All };
    run.note(name.to_string_lossy());
    // SAFETY: a public call without arguments.
    let contexts = [0, 1].map(|_| unsafe { EVP_CIPHER_CTX_new() });
    let mut state = State {
        contexts,
        mode,
        methods,
        scheduled: None,
        encrypt: true,
        random: false,
        begun: false,
        fed: 0,
        padded: true,
        nonce_len: if mode == Mode::Gcm { 12 } else { 16 },
        tls: false,
        counted: false,
        nonced: false,
        drawn: false,
        records: false,
        random_tag: false,
        over: false,
        tag: None,
    };
    init(run, &mut state, true)?;
    while !run.choices.is_over() {
        step(run, &mut state)?;
    }
    Ok(())
}

fn step(run: &mut Run<'_>, state: &mut State) -> Go {
    match run.choices.below(20) {
        0..=2 => init(run, state, false),
        3..=7 => update(run, state),
        8..=9 => last(run, state),
        10 => set(run, state),
        11 => get(run, state),
        12..=14 => control(run, state),
        15 => copy(run, state),
        16 => once(run, state),
        17 => helpers(run, state),
        18 if run.choices.one_in(4) => facts(run, state),
        _ => helpers(run, state),
    }
}

fn init(run: &mut Run<'_>, state: &mut State, first: bool) -> Go {
    let fresh = first || run.choices.one_in(8);
    let direction = if first { run.choices.pick(&[1, 1, 0]) } else { run.choices.pick(&[-1, -1, 1, 0]) };
    let keyed = if first { run.choices.below(8) != 7 } else { run.choices.below(3) == 0 };
    let which = run.choices.below(16).min(KEYS - 1);
    let with_nonce = if first { run.choices.below(6) != 5 } else { run.choices.below(3) > 0 };
    let nonce = run.choices.fill(128);
    let encrypt = match direction {
        -1 => state.encrypt,
        way => way == 1,
    };
    if fresh {
        // The context is made anew: whatever is known of the old one is over.
        (state.scheduled, state.nonce_len) = (None, if state.mode == Mode::Gcm { 12 } else { 16 });
        (state.nonced, state.random_tag, state.drawn, state.records) = (false, false, false, false);
        (state.counted, state.tls) = (false, false);
        (state.begun, state.over, state.tag) = (false, false, None);
        state.random = false;
        state.padded = true;
        state.encrypt = encrypt;
    }
    let mut values = Vec::new();
    if run.choices.one_in(12) {
        values = some(run, state, 2);
    }
    if encrypt != state.encrypt && !keyed && matches!(state.mode, Mode::Cbc | Mode::Xts | Mode::Combined) {
        // OpenSSL goes on with the round keys of the other direction.
        return Err(Over);
    }
    if state.mode == Mode::Combined && !fresh && !keyed {
        return Ok(());
    }
    run.note(format!(
        "init {}{} key {} iv {} {}",
        if fresh { "fresh " } else { "" },
        if encrypt { "enc" } else { "dec" },
        if keyed { which.to_string() } else { "-".to_owned() },
        if with_nonce { format!("{:02x?}", &nonce[..4]) } else { "-".to_owned() },
        say(&values)
    ));
    let key = key(which);
    let lists = [List::new(&values), List::new(&values)];
    let (contexts, methods) = (state.contexts, state.methods);
    let params = |side: usize| if values.is_empty() { null() } else { lists[side].tell() };
    let restart = state.begun && (keyed || encrypt != state.encrypt);
    allow(run, state, &values);
    // SAFETY: live contexts; keys and nonces as long as any; terminated lists.
    let said = run.both("init", |side| unsafe {
        let method = if fresh { methods[side] } else { null() };
        let key = if keyed { key.as_ptr() } else { null() };
        let nonce = if with_nonce { nonce.as_ptr() } else { null() };
        (rc(EVP_CipherInit_ex2(contexts[side], method, key, nonce, direction, params(side))), Vec::new())
    })?;
    // The direction may have been taken before the rest was refused.
    let turned = encrypt != state.encrypt;
    state.encrypt = encrypt;
    state.fed = 0;
    if said.rc != 1 && (turned || values.len() > 1) {
        return Err(Over);
    }
    if keyed && said.rc == 1 {
        state.scheduled = Some(encrypt);
    }
    if with_nonce && said.rc == 1 {
        (state.random, state.begun, state.over) = (false, false, false);
        state.nonced = true;
    } else if restart {
        state.over = true;
    }
    announced(state, &values);
    if said.rc == 1 {
        note_lists(state, &values);
    }
    lengths(run, state)
}

/// A record is announced even if its length is refused.
fn announced(state: &mut State, values: &[Value]) {
    let aad = |value: &Value| value.name.as_c_str() == c"tlsaad" && value.data.len() == 13;
    state.tls |= state.mode == Mode::Gcm && values.iter().any(aad);
}

/// What a list may have changed in the model.
fn note_lists(state: &mut State, values: &[Value]) {
    for value in values {
        match value.name.to_bytes() {
            b"padding" => state.padded = true,
            b"tlsivfixed" => {
                (state.random, state.counted, state.nonced) = (true, true, true);
                (state.begun, state.over) = (false, false);
            }
            b"tlsivinv" => (state.begun, state.over) = (true, false),
            b"tag" => state.tag = Some(value.data.len()),
            b"tls-version" if state.mode == Mode::Cbc => {
                state.tls = value.data.iter().any(|byte| *byte != 0);
                state.records |= state.tls;
            }
            _ => {}
        }
    }
}

/// What may differ about a list.
fn allow(run: &mut Run<'_>, state: &State, values: &[Value]) {
    if values.len() > 1 {
        run.rules.push("list");
    }
    if state.mode != Mode::Gcm && values.iter().any(|value| value.name.as_c_str() == c"num") {
        run.rules.push("num");
    }
}

/// What may differ about data or its end. Without a nonce one is generated, by each side its own.
fn allow_data(run: &mut Run<'_>, state: &mut State) {
    if state.mode == Mode::Gcm && state.encrypt && !state.nonced {
        (state.random, state.nonced, state.drawn) = (true, true, true);
    }
    if state.mode == Mode::Gcm && state.over {
        run.rules.push("gcm-goes-on");
    }
    if state.mode == Mode::Gcm && !state.encrypt && state.tag.is_some_and(|len| len < 4) {
        run.rules.push("gcm-short-tag");
    }
}

/// The nonce's length as OpenSSL has it now.
fn lengths(run: &mut Run<'_>, state: &mut State) -> Go {
    let contexts = state.contexts;
    // SAFETY: live contexts.
    let said = run.both("iv length", |side| unsafe {
        (rc(EVP_CIPHER_CTX_get_iv_length(contexts[side])), Vec::new())
    })?;
    let len = usize::try_from(said.rc).unwrap_or(0);
    state.drawn |= state.random;
    state.random |= state.drawn && len > state.nonce_len;
    state.nonce_len = len;
    Ok(())
}

fn length(run: &mut Run<'_>) -> usize {
    match run.choices.below(4) {
        0 => run.choices.below(64),
        1 => 16 * run.choices.below(20),
        2 => run.choices.below(700),
        _ => run.choices.pick(&[0, 1, 5, 15, 16, 17, 31, 32, 33, 48, 255, 256, 512]),
    }
}

fn update(run: &mut Run<'_>, state: &mut State) -> Go {
    if state.mode == Mode::Gcm && state.tls && state.nonce_len < 8 {
        // OpenSSL writes the record's part of the nonce in front of it.
        return Err(Over);
    }
    let mut len = length(run);
    if state.mode == Mode::Combined {
        len -= len % 16;
    }
    if state.mode == Mode::Cbc && state.tls && len == 0 {
        // OpenSSL takes the explicit nonce off nothing.
        return Err(Over);
    }
    let aad = state.mode == Mode::Gcm && run.choices.one_in(4);
    // In place bytes held back are undefined with CBC; a TLS record must be in place.
    let held = state.mode == Mode::Cbc && (!state.fed.is_multiple_of(16) || !state.encrypt) && !state.tls;
    let place = (run.choices.byte().is_multiple_of(2) || state.tls) && !held;
    let data = run.choices.fill(len);
    run.note(format!(
        "update {len}{}{}",
        if aad { " aad" } else { "" },
        if place { " in place" } else { "" }
    ));
    allow_data(run, state);
    let random = state.random || (state.mode == Mode::Combined && state.encrypt && state.tls);
    let contexts = state.contexts;
    let mut outs = [vec![0xa5_u8; ROOM + 64], vec![0xa5_u8; ROOM + 64]];
    let said = run.both("update", |side| {
        let out = &mut outs[side];
        if place {
            out[..len].copy_from_slice(&data);
        }
        let mut done = -1;
        let at = out.as_mut_ptr();
        let from = if place { at.cast_const() } else { data.as_ptr() };
        let to = if aad { std::ptr::null_mut() } else { at };
        // SAFETY: live contexts; the buffers are as long as said, and a block more.
        let code = unsafe { EVP_CipherUpdate(contexts[side], to, &raw mut done, from, len as c_int) };
        let mut wrote = done.to_le_bytes().to_vec();
        if !random && !aad {
            wrote.extend_from_slice(out);
        }
        (rc(code), wrote)
    })?;
    if said.rc == 1 {
        state.fed += if aad { 0 } else { len };
        state.begun |= len > 0;
    } else if state.mode == Mode::Cbc {
        // What of a failed piece was kept is not promised.
        return Err(Over);
    }
    if state.mode == Mode::Gcm && state.tls && len > 0 {
        (state.tls, state.tag) = (false, Some(16));
    }
    generated(state)
}

/// Whether the two now have nonces of their own: where it is so, bytes are not compared.
fn generated(state: &mut State) -> Go {
    if state.mode != Mode::Gcm {
        return Ok(());
    }
    let mut ivs = [[0_u8; 128], [0_u8; 128]];
    let got = [0, 1].map(|side| {
        // SAFETY: live contexts and room for any nonce.
        unsafe { EVP_CIPHER_CTX_get_updated_iv(state.contexts[side], ivs[side].as_mut_ptr().cast(), 128) }
    });
    super::errors();
    if got == [1, 1] && ivs[0] != ivs[1] {
        state.random = true;
    }
    Ok(())
}

fn last(run: &mut Run<'_>, state: &mut State) -> Go {
    run.note("final");
    allow_data(run, state);
    let (contexts, random) = (state.contexts, state.random);
    let mut outs = [[0xa5_u8; 64], [0xa5_u8; 64]];
    let said = run.both("final", |side| {
        let mut done = -1;
        // SAFETY: live contexts; room for a block.
        let code = unsafe { EVP_CipherFinal_ex(contexts[side], outs[side].as_mut_ptr(), &raw mut done) };
        let mut wrote = done.to_le_bytes().to_vec();
        if !random {
            wrote.extend_from_slice(&outs[side]);
        }
        (rc(code), wrote)
    })?;
    if state.mode == Mode::Cbc && said.rc != 1 {
        return Err(Over);
    }
    state.fed = 0;
    ended(state, said.rc == 1);
    generated(state)
}

/// What the end of a message leaves.
fn ended(state: &mut State, good: bool) {
    state.over |= !good && state.tag.is_some();
    (state.begun, state.tls) = (!good, false);
    if good && state.encrypt {
        (state.tag, state.random_tag) = (Some(16), state.random);
    }
}

/// A few values for a list: of this cipher's own names, mostly right ones, and of others.
fn some(run: &mut Run<'_>, state: &State, most: usize) -> Vec<Value> {
    let mut values: Vec<Value> = Vec::new();
    for _ in 0..1 + run.choices.below(most) {
        let value = match run.choices.below(5) {
            0 => right(run, state),
            _ => {
                let name = run.choices.pick(&NAMES);
                list::anything(&mut run.choices, name)
            }
        };
        // Which of a list comes first is the provider's affair, and these go by the nonce's length.
        let by_length = |value: &Value| value.name.to_bytes().starts_with(b"tlsiv");
        let clash = |one: &Value| {
            one.name == value.name
                || by_length(one) && (by_length(&value) || value.name.as_c_str() == c"ivlen")
                || by_length(&value) && one.name.as_c_str() == c"ivlen"
        };
        if !values.iter().any(clash) && defined(state, &value) {
            values.push(value);
        }
    }
    values
}

/// Whether OpenSSL keeps to memory that is there.
fn defined(state: &State, value: &Value) -> bool {
    let len = value.size.unwrap_or(value.data.len());
    match value.name.to_bytes() {
        b"tlsivinv" => len <= state.nonce_len && !value.nothing && state.nonce_len >= 8,
        b"tls-version" | b"tls-mac-size" | b"tlsaad" if state.mode == Mode::Combined => false,
        b"tlsivfixed" => !value.nothing && len <= state.nonce_len,
        b"tlsaad" | b"mackey" | b"randkey" => !value.nothing,
        _ => state.mode != Mode::Combined || value.name.as_c_str() != c"tls-multi",
    }
}

fn right(run: &mut Run<'_>, state: &State) -> Value {
    let choices = &mut run.choices;
    match (state.mode, choices.below(5)) {
        (Mode::Gcm, 0) => {
            let len = choices.pick(&[1, 4, 8, 12, 16]);
            Value::new(c"tag", OCTETS, choices.fill(len))
        }
        (Mode::Gcm, 1) => Value::uint(c"ivlen", choices.pick(&[1, 8, 12, 16, 64])),
        (Mode::Gcm, _) => Value::new(c"tlsivfixed", OCTETS, choices.fill(4)),
        (Mode::Cbc, 0..=1) => Value::uint(c"padding", choices.pick(&[0, 1, 2])),
        (Mode::Cbc, 2) => Value::uint(c"tls-version", choices.pick(&[0x300, 0x301, 0x302, 0x303, 0xfefd, 0])),
        (Mode::Cbc, 3) => Value::uint(c"tls-mac-size", choices.pick(&[0, 20, 32, 48])),
        (Mode::Xts, _) => Value::uint(c"keylen", choices.pick(&[32, 64])),
        (Mode::Combined, _) => Value::new(c"mackey", OCTETS, choices.fill(32)),
        _ => Value::uint(c"num", choices.pick(&[0, 1, 5, 15, 16])),
    }
}

fn say(values: &[Value]) -> String {
    values.iter().map(Value::say).collect::<Vec<_>>().join(" ")
}

fn set(run: &mut Run<'_>, state: &mut State) -> Go {
    let values = some(run, state, 3);
    run.note(format!("set {}", say(&values)));
    let lists = [List::new(&values), List::new(&values)];
    let contexts = state.contexts;
    allow(run, state, &values);
    // SAFETY: live contexts and terminated lists.
    let said = run.both(&format!("set {}", names(&values)), |side| unsafe {
        (rc(EVP_CIPHER_CTX_set_params(contexts[side], lists[side].tell())), Vec::new())
    })?;
    announced(state, &values);
    if said.rc != 1 {
        return if values.len() > 1 { Err(Over) } else { Ok(()) };
    }
    note_lists(state, &values);
    lengths(run, state)
}

fn names(values: &[Value]) -> String {
    if values.len() == 1 { values[0].name.to_string_lossy().into_owned() } else { String::new() }
}

fn get(run: &mut Run<'_>, state: &mut State) -> Go {
    let mut values: Vec<Value> = Vec::new();
    for _ in 0..1 + run.choices.below(3) {
        let name = run.choices.pick(&NAMES);
        let value = list::question(&mut run.choices, name);
        // A nonce that is counted on changes the others' answers, which come before or after.
        let counts = |value: &Value| value.name.as_c_str() == c"tlsivgen";
        let fits = match counts(&value) {
            true => !value.nothing && state.nonce_len >= 8 && values.is_empty(),
            false => !values.iter().any(counts),
        };
        if fits && values.iter().all(|one| one.name != value.name) {
            values.push(value);
        }
    }
    run.note(format!("get {}", say(&values)));
    let mut lists = [List::new(&values), List::new(&values)];
    let random = state.random || state.random_tag || state.mode == Mode::Combined;
    let contexts = state.contexts;
    allow(run, state, &values);
    let said = run.both(&format!("get {}", names(&values)), |side| {
        // SAFETY: live contexts and terminated lists with room as they say.
        let code = unsafe { EVP_CIPHER_CTX_get_params(contexts[side], lists[side].ask()) };
        (rc(code), if random { Vec::new() } else { lists[side].answers() })
    })?;
    if state.mode == Mode::Gcm
        && said.rc == 1
        && values.iter().any(|value| value.name.as_c_str() == c"tlsivgen")
    {
        (state.begun, state.over) = (true, false);
    }
    if said.rc != 1 && values.len() > 1 { Err(Over) } else { Ok(()) }
}

const CONTROLS: [(c_int, &str); 13] = [
    (0x9, "set ivlen"),
    (0x10, "get tag"),
    (0x11, "set tag"),
    (0x12, "set iv fixed"),
    (0x13, "iv gen"),
    (0x16, "tls aad"),
    (0x17, "mac key"),
    (0x18, "set iv inv"),
    (0x9, "set ivlen"),
    (0x10, "get tag"),
    (0x11, "set tag"),
    (0x1, "key length"),
    (0x3, "get rc2 bits"),
];

fn control(run: &mut Run<'_>, state: &mut State) -> Go {
    let (what, name) = run.choices.pick(&CONTROLS);
    let mut arg: c_int = match what {
        0x9 => run.choices.pick(&[12, 12, 1, 7, 8, 11, 13, 16, 64, 128, 129, 0, -1]),
        0x10 | 0x11 => run.choices.pick(&[16, 16, 16, 1, 3, 4, 8, 12, 15, 17, 0, -1]),
        0x12 => run.choices.pick(&[4, 4, -1, 3, 5, 8, 12, 0]),
        0x13 => run.choices.pick(&[8, 8, 12, 4, 1, 0, -1]),
        0x16 => run.choices.pick(&[13, 13, 13, 12, 14, 0]),
        0x17 => run.choices.pick(&[20, 32, 64, 65, 100]),
        0x18 => run.choices.pick(&[8, 8, 4, 12, 1]),
        _ => run.choices.pick(&[16, 24, 32, 64, 1, 0]),
    };
    let nothing = matches!(what, 0x10 | 0x11) && run.choices.one_in(8);
    let mut data = run.choices.fill(256);
    if what == 0x16 {
        let len = run.choices.pick(&[0_u16, 7, 8, 23, 24, 40, 64, 96, 128, 200]);
        data[9..11].copy_from_slice(&[3, run.choices.pick(&[1, 2, 3, 3])]);
        data[11..13].copy_from_slice(&len.to_be_bytes());
    }
    if what == 0x12 && arg > 0 && arg as usize > state.nonce_len {
        return Ok(());
    }
    if (what == 0x18 && arg as usize > state.nonce_len) || (what == 0x13 && state.nonce_len < 8) {
        arg = 0;
        if what == 0x13 || state.nonce_len < 8 {
            return Ok(());
        }
    }
    if state.mode == Mode::Combined && what == 0x16 {
        // What OpenSSL's own combined ciphers do with lengths that do not fit is undefined; `combined.c` has right ones.
        return Ok(());
    }
    run.note(format!("control {name} {arg}{}", if nothing { " nothing" } else { "" }));
    let mut rooms = [data.clone(), data];
    let (contexts, random) = (state.contexts, state.random || what == 0x10 && state.random_tag);
    let said = run.both(&format!("control {name}"), |side| {
        let at = if nothing { std::ptr::null_mut() } else { rooms[side].as_mut_ptr().cast::<c_void>() };
        // SAFETY: live contexts; more room than any argument says.
        let code = unsafe { EVP_CIPHER_CTX_ctrl(contexts[side], what, arg, at) };
        (rc(code), if random { Vec::new() } else { rooms[side].clone() })
    })?;
    // A record is announced even if its length is refused.
    state.tls |= what == 0x16 && arg == 13 && state.mode == Mode::Gcm;
    if said.rc > 0 {
        match what {
            0x12 => {
                (state.counted, state.begun, state.over) = (true, false, false);
                state.nonced = true;
                // A fixed part leaves the rest, or draws it anew.
                state.random = arg >= 0 && (state.random || state.encrypt);
            }
            0x11 if !nothing => state.tag = usize::try_from(arg).ok(),
            0x13 | 0x18 => (state.begun, state.over) = (true, false),
            _ => {}
        }
    }
    // Where an empty aad is taken, the next update is a record.
    lengths(run, state)
}

fn copy(run: &mut Run<'_>, state: &mut State) -> Go {
    let keep = run.choices.byte().is_multiple_of(2);
    // OpenSSL's copy of an XTS context without a key has a key of no bytes, and jumps to no address. That of a CBC context
    // with a MAC set aside frees it once more.
    if state.mode == Mode::Xts && state.scheduled.is_none() || state.mode == Mode::Cbc && state.records {
        return Ok(());
    }
    run.note(format!("copy, go on with {}", if keep { "the old" } else { "the new" }));
    // SAFETY: a public call without arguments.
    let copies = [0, 1].map(|_| unsafe { EVP_CIPHER_CTX_new() });
    let contexts = state.contexts;
    // SAFETY: live contexts.
    let said = run
        .both("copy", |side| unsafe { (rc(EVP_CIPHER_CTX_copy(copies[side], contexts[side])), Vec::new()) });
    let good = matches!(&said, Ok(said) if said.rc == 1);
    let gone = if good && !keep { std::mem::replace(&mut state.contexts, copies) } else { copies };
    for context in gone {
        // SAFETY: ours, used no more.
        unsafe { EVP_CIPHER_CTX_free(context) };
    }
    said.map(|_| ())
}

fn once(run: &mut Run<'_>, state: &mut State) -> Go {
    let len = match state.mode {
        // Parts of a block read beyond the input there.
        Mode::Cbc | Mode::Combined => 16 * run.choices.below(20),
        _ => length(run),
    };
    let nothing = state.mode == Mode::Gcm && run.choices.one_in(3);
    if state.mode == Mode::Gcm && state.tls && state.nonce_len < 8 {
        return Err(Over);
    }
    if state.mode == Mode::Gcm && len == 0 && !nothing {
        // No text at all ends the associated data for OpenSSL's own, and yet more may follow.
        return Ok(());
    }
    let place = run.choices.byte().is_multiple_of(2) || state.tls;
    if state.mode == Mode::Cbc && state.tls {
        return Ok(());
    }
    let data = run.choices.fill(len);
    run.note(format!("EVP_Cipher {len}{}", if nothing { " end" } else { "" }));
    allow_data(run, state);
    let (contexts, random) = (state.contexts, state.random || state.mode == Mode::Combined);
    let mut outs = [vec![0xa5_u8; ROOM + 64], vec![0xa5_u8; ROOM + 64]];
    let said = run.both("EVP_Cipher", |side| {
        let out = &mut outs[side];
        if place {
            out[..len].copy_from_slice(&data);
        }
        let at = out.as_mut_ptr();
        let from = if nothing {
            null()
        } else if place {
            at.cast_const()
        } else {
            data.as_ptr()
        };
        // SAFETY: live contexts; buffers as long as said.
        let code = unsafe { EVP_Cipher(contexts[side], at, from, if nothing { 0 } else { len as Uint }) };
        (rc(code), if random { Vec::new() } else { out.clone() })
    })?;
    match nothing {
        true => ended(state, said.rc >= 0),
        false => {
            state.begun |= said.rc >= 0;
            if state.mode == Mode::Gcm && state.tls {
                (state.tls, state.tag) = (false, Some(16));
            }
        }
    }
    generated(state)
}

fn helpers(run: &mut Run<'_>, state: &mut State) -> Go {
    let what = run.choices.below(9);
    let arg: c_int = run.choices.pick(&[0, 0, 1, 5, 15, 16, 24, 32, 64, -1]);
    run.note(format!("helper {what} {arg}"));
    let (contexts, random) = (state.contexts, state.random);
    if what == 1 && state.mode != Mode::Gcm {
        run.rules.push("num");
    }
    // SAFETY: live contexts; room for any nonce.
    let said = run.both(&format!("helper {what}"), |side| unsafe {
        let at = contexts[side];
        let mut iv = vec![0xee_u8; 128];
        let code = match what {
            0 => EVP_CIPHER_CTX_set_padding(at, arg),
            1 => EVP_CIPHER_CTX_set_num(at, arg),
            2 => EVP_CIPHER_CTX_get_num(at),
            3 => EVP_CIPHER_CTX_set_key_length(at, arg),
            4 => EVP_CIPHER_CTX_get_key_length(at),
            5 => EVP_CIPHER_CTX_get_tag_length(at),
            6 => EVP_CIPHER_CTX_get_updated_iv(at, iv.as_mut_ptr().cast(), if arg > 1 { 128 } else { 8 }),
            7 => EVP_CIPHER_CTX_get_original_iv(at, iv.as_mut_ptr().cast(), if arg > 1 { 128 } else { 8 }),
            _ => 1,
        };
        (rc(code), if random { Vec::new() } else { iv })
    })?;
    if what == 0 && said.rc == 1 {
        state.padded = arg != 0;
    }
    Ok(())
}

/// What never changes about a cipher: flags, parameters, and the lists of what can be asked and set.
fn facts(run: &mut Run<'_>, state: &mut State) -> Go {
    let methods = state.methods;
    run.note("facts");
    // SAFETY: live methods.
    run.both("flags", |side| unsafe {
        let flags: c_ulong = EVP_CIPHER_get_flags(methods[side]);
        (1, flags.to_le_bytes().to_vec())
    })?;
    let mut values: Vec<Value> = Vec::new();
    for _ in 0..1 + run.choices.below(3) {
        let name = run.choices.pick(&NAMES);
        let value = list::question(&mut run.choices, name);
        if values.iter().all(|one| one.name != value.name) {
            values.push(value);
        }
    }
    run.note(format!("facts {}", say(&values)));
    let mut lists = [List::new(&values), List::new(&values)];
    // SAFETY: live methods and terminated lists.
    let said = run.both(&format!("facts {}", names(&values)), |side| unsafe {
        let code = EVP_CIPHER_get_params(methods[side].cast_mut(), lists[side].ask());
        (rc(code), lists[side].answers())
    })?;
    if said.rc != 1 {
        return Err(Over);
    }
    run.both("gettable and settable", |side| {
        // SAFETY: live methods; lists end with a null key.
        unsafe {
            let asked = described(EVP_CIPHER_gettable_ctx_params(methods[side]));
            (1, [asked, described(EVP_CIPHER_settable_ctx_params(methods[side]))].concat())
        }
    })
    .map(|_| ())
}

/// Names and types of a list, in the names' order.
///
/// # Safety
/// `list` is null or ends with a null key.
pub unsafe fn described(list: *const OSSL_PARAM) -> Vec<u8> {
    let mut all = Vec::new();
    let mut at = list;
    // SAFETY: the caller's.
    unsafe {
        while !at.is_null() && !(*at).key.is_null() {
            let name = CStr::from_ptr((*at).key).to_string_lossy().into_owned();
            all.push(format!("{name}:{} ", (*at).data_type));
            at = at.add(1);
        }
    }
    all.sort();
    all.concat().into_bytes()
}

#[allow(dead_code, reason = "words of types that lists may have")]
const _: u32 = TEXT;
