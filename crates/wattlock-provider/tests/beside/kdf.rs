//! Key derivation: contexts set, asked, used, reset and copied in any order.

use std::ffi::CStr;
use std::ptr::null;
use std::sync::OnceLock;

use super::calls::*;
use super::list::{self, INT, List, OCTETS, Value};
use super::{Beside, Errors, Go, Over, Run, SIDES, rc};

const KDFS: [&CStr; 3] = [c"HKDF", c"TLS13-KDF", c"TLS1-PRF"];
const NAMES: [&CStr; 16] = [
    c"mode",
    c"digest",
    c"key",
    c"salt",
    c"info",
    c"prefix",
    c"label",
    c"data",
    c"secret",
    c"seed",
    c"properties",
    c"size",
    c"mac",
    c"fips-indicator",
    c"key-check",
    c"bogus",
];
const DIGESTS: [&str; 10] =
    ["SHA256", "SHA2-384", "sha512", "SHA1", "SHA224", "MD5", "MD5-SHA1", "SHAKE128", "none such", ""];

struct State([*mut EVP_KDF_CTX; 2]);

impl Drop for State {
    fn drop(&mut self) {
        for context in self.0 {
            // SAFETY: ours, freed once.
            unsafe { EVP_KDF_CTX_free(context) };
        }
    }
}

fn fetched(beside: &Beside) -> &'static [[usize; 2]] {
    static FETCHED: OnceLock<Vec<[usize; 2]>> = OnceLock::new();
    FETCHED.get_or_init(|| {
        let context = beside.context.cast();
        // SAFETY: a live library context and C strings.
        let fetch = |name: &CStr, side: usize| unsafe {
            EVP_KDF_fetch(context, name.as_ptr(), SIDES[side].as_ptr()) as usize
        };
        KDFS.iter().map(|name| [fetch(name, 0), fetch(name, 1)]).collect()
    })
}

pub fn sequence(run: &mut Run<'_>) -> Go {
    let which = run.choices.below(KDFS.len());
    let methods = fetched(run.beside)[which].map(|one| one as *const EVP_KDF);
    run.what = KDFS[which].to_string_lossy().into_owned();
    run.errors = Errors::All;
    // SAFETY: live methods.
    let mut state = State(methods.map(|method| unsafe { EVP_KDF_CTX_new(method) }));
    if state.0.iter().any(|one| one.is_null()) {
        return Ok(());
    }
    while !run.choices.is_over() {
        match run.choices.below(10) {
            0..=2 => {
                let values = values(run, which);
                call(run, &state, "set", &values, None)?;
            }
            3..=6 => {
                let values = values(run, which);
                let len = run.choices.pick(&[32, 16, 48, 64, 12, 0, 1, 255, 1000]);
                call(run, &state, "derive", &values, Some(len))?;
            }
            7 => {
                run.note("reset");
                // SAFETY: live contexts.
                run.both("reset", |side| unsafe {
                    EVP_KDF_CTX_reset(state.0[side]);
                    (1, Vec::new())
                })?;
            }
            8 => copy(run, &mut state)?,
            _ => ask(run, &state)?,
        }
    }
    Ok(())
}

fn values(run: &mut Run<'_>, which: usize) -> Vec<Value> {
    let choices = &mut run.choices;
    let mut values: Vec<Value> = Vec::new();
    let mut add = |value: Value| {
        if values.iter().all(|one| one.name != value.name) {
            values.push(value);
        }
    };
    // Mostly right ones, each of which may be left out.
    let octets = |choices: &mut super::Choices<'_>, name: &CStr, lens: &[usize]| {
        let len = choices.pick(lens);
        Value::new(name, OCTETS, choices.fill(len))
    };
    let mostly = |choices: &mut super::Choices<'_>| choices.below(6) > 0;
    if mostly(choices) {
        let digest = if choices.below(3) > 0 { "SHA256" } else { choices.pick(&DIGESTS) };
        add(Value::text(c"digest", digest));
    }
    if which < 2 {
        if choices.byte().is_multiple_of(2) {
            let word =
                choices.pick(&["EXTRACT_AND_EXPAND", "EXTRACT_ONLY", "EXPAND_ONLY", "extract_only", "x"]);
            let number = choices.pick(&[0, 1, 2, 3, -1]);
            add(if choices.byte().is_multiple_of(2) {
                Value::text(c"mode", word)
            } else {
                Value::new(c"mode", INT, i32::to_ne_bytes(number).to_vec())
            });
        }
        if mostly(choices) {
            add(octets(choices, c"key", &[32, 48, 20, 64, 0, 1, 200]));
        }
        if choices.byte().is_multiple_of(2) {
            add(octets(choices, c"salt", &[32, 48, 0, 13, 200]));
        }
    }
    if which == 0 && choices.byte().is_multiple_of(2) {
        add(octets(choices, c"info", &[10, 1, 64, 200, 2000]));
    }
    if which == 1 {
        if mostly(choices) {
            add(Value::new(c"prefix", OCTETS, choices.pick(&[&b"tls13 "[..], b"", b"dtls13"]).to_vec()));
        }
        if mostly(choices) {
            add(Value::new(
                c"label",
                OCTETS,
                choices.pick(&[&b"derived"[..], b"key", b"", b"res master"]).to_vec(),
            ));
        }
        if choices.byte().is_multiple_of(2) {
            add(octets(choices, c"data", &[32, 48, 0, 64, 13]));
        }
    }
    if which == 2 {
        if mostly(choices) {
            add(octets(choices, c"secret", &[48, 0, 32, 1, 200]));
        }
        if mostly(choices) {
            add(octets(choices, c"seed", &[77, 13, 0, 64, 500]));
        }
    }
    if choices.one_in(4) {
        let name = choices.pick(&NAMES);
        let value = list::anything(choices, name);
        // OpenSSL keeps the length of an info that an empty one replaces. It follows a null pointer of these, or reads a text where there are bytes.
        let empty = value.nothing || value.data.is_empty();
        if !(empty && matches!(value.name.to_bytes(), b"mode" | b"digest" | b"properties" | b"mac" | b"info"))
        {
            add(value);
        }
    }
    let turn = choices.below(values.len().max(1));
    values.rotate_left(turn);
    values
}

fn call(run: &mut Run<'_>, state: &State, what: &str, values: &[Value], len: Option<usize>) -> Go {
    let words: Vec<String> = values.iter().map(Value::say).collect();
    run.note(format!("{what} {len:?} {}", words.join(" ")));
    let lists = [List::new(values), List::new(values)];
    if values.iter().any(|value| value.name.as_c_str() == c"properties") {
        run.rules.push("query");
    }
    // SAFETY: live contexts, terminated lists, room as said.
    let said = run.both(what, |side| unsafe {
        let params = if values.is_empty() { null() } else { lists[side].tell() };
        match len {
            None => (rc(EVP_KDF_CTX_set_params(state.0[side], params)), Vec::new()),
            Some(len) => {
                let mut room = vec![0xa5; len + 8];
                (rc(EVP_KDF_derive(state.0[side], room.as_mut_ptr(), len, params)), room)
            }
        }
    })?;
    // How much of a list was taken before it was refused is not promised; after a value of a wrong type OpenSSL has
    // its length and no bytes.
    let odd =
        |value: &Value| value.data_type != OCTETS && !matches!(value.name.to_bytes(), b"mode" | b"digest");
    if said.rc != 1 && (values.len() > 1 || values.iter().any(odd)) { Err(Over) } else { Ok(()) }
}

fn copy(run: &mut Run<'_>, state: &mut State) -> Go {
    run.note("copy");
    if run.beside.minor == 0 {
        run.rules.push("copy");
    }
    let mut copies = [std::ptr::null_mut(), std::ptr::null_mut()];
    let contexts = state.0;
    let said = run.both("copy", |side| {
        // SAFETY: live contexts.
        copies[side] = unsafe { EVP_KDF_CTX_dup(contexts[side]) };
        (i64::from(!copies[side].is_null()), Vec::new())
    });
    if copies.iter().all(|one| !one.is_null()) {
        std::mem::swap(&mut state.0, &mut copies);
    }
    for one in copies {
        // SAFETY: ours or null.
        unsafe { EVP_KDF_CTX_free(one) };
    }
    said.map(|_| ())
}

fn ask(run: &mut Run<'_>, state: &State) -> Go {
    let name = run.choices.pick(&NAMES);
    let value = list::question(&mut run.choices, name);
    run.note(format!("get {}", value.say()));
    let mut lists = [List::new(std::slice::from_ref(&value)), List::new(&[value])];
    // SAFETY: live contexts, terminated lists with room as they say.
    run.both(&format!("get {}", name.to_string_lossy()), |side| unsafe {
        (rc(EVP_KDF_CTX_get_params(state.0[side], lists[side].ask())), lists[side].answers())
    })?;
    // SAFETY: live contexts.
    run.both("size", |side| unsafe { (1, EVP_KDF_CTX_get_kdf_size(state.0[side]).to_le_bytes().to_vec()) })
        .map(|_| ())
}
