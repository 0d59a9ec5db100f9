//! Keys: made from parts, asked, changed, compared, checked, copied; and what is done with them.
//!
//! Deterministic results are compared byte by byte. Of others each side's is given to the other side's inverse.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use super::calls::*;
use super::list::{self, INT, List, OCTETS, TEXT, UINT, Value};
use super::{Beside, Errors, Go, Over, Run, SIDES, rc};

struct Kind {
    name: &'static CStr,
    /// What generates one.
    group: Option<&'static str>,
    bits: u32,
}

const KINDS: [Kind; 10] = [
    Kind { name: c"RSA", group: None, bits: 2048 },
    Kind { name: c"EC", group: Some("P-256"), bits: 0 },
    Kind { name: c"X25519", group: None, bits: 0 },
    Kind { name: c"EC", group: Some("P-384"), bits: 0 },
    Kind { name: c"RSA", group: None, bits: 1024 },
    Kind { name: c"RSA-PSS", group: None, bits: 2048 },
    Kind { name: c"EC", group: Some("P-521"), bits: 0 },
    Kind { name: c"EC", group: Some("secp256k1"), bits: 0 },
    Kind { name: c"RSA", group: None, bits: 1027 },
    Kind { name: c"X25519", group: None, bits: 0 },
];

const ALL: c_int = 0x87;
const PAIR: c_int = 0x03;

/// Two keys of each kind as lists of parts, made once by the default provider.
fn pool(beside: &Beside) -> &'static [[Vec<Value>; 2]] {
    static POOL: OnceLock<Vec<[Vec<Value>; 2]>> = OnceLock::new();
    POOL.get_or_init(|| KINDS.iter().map(|kind| [parts(beside, kind), parts(beside, kind)]).collect())
}

fn parts(beside: &Beside, kind: &Kind) -> Vec<Value> {
    // SAFETY: by the manual pages; what comes back is checked.
    unsafe {
        let making = EVP_PKEY_CTX_new_from_name(beside.context.cast(), kind.name.as_ptr(), SIDES[0].as_ptr());
        assert_eq!(EVP_PKEY_keygen_init(making), 1);
        let mut values = Vec::new();
        if let Some(group) = kind.group {
            values.push(Value::text(c"group", group));
        }
        if kind.bits > 0 {
            values.push(Value::uint(c"bits", kind.bits));
        }
        if !values.is_empty() {
            assert_eq!(EVP_PKEY_CTX_set_params(making, List::new(&values).tell()), 1);
        }
        let mut key = null_mut();
        assert_eq!(EVP_PKEY_generate(making, &raw mut key), 1, "{:?}", kind.name);
        EVP_PKEY_CTX_free(making);
        let values = exported(key, ALL).expect("a key that was just made");
        EVP_PKEY_free(key);
        values
    }
}

/// The parts of a key, in the order they came.
///
/// # Safety
/// A live key.
unsafe fn exported(key: *mut EVP_PKEY, selection: c_int) -> Option<Vec<Value>> {
    unsafe extern "C" fn take(params: *const OSSL_PARAM, argument: *mut c_void) -> c_int {
        // SAFETY: the vector below, and a terminated list.
        unsafe {
            let values = &mut *argument.cast::<Vec<Value>>();
            let mut at = params;
            while !(*at).key.is_null() {
                let data = if (*at).data.is_null() {
                    Vec::new()
                } else {
                    std::slice::from_raw_parts((*at).data.cast::<u8>(), (*at).data_size).to_vec()
                };
                values.push(Value::new(CStr::from_ptr((*at).key), (*at).data_type, data));
                at = at.add(1);
            }
        }
        1
    }
    let mut values: Vec<Value> = Vec::new();
    // SAFETY: a live key; the callback's argument lives until the call returns.
    let good = unsafe { EVP_PKEY_export(key, selection, Some(take), (&raw mut values).cast()) } == 1;
    good.then_some(values)
}

/// Parts in the order of their names, numbers without leading zeros: how a provider lists them is its own affair.
fn flat(values: Option<Vec<Value>>) -> Vec<u8> {
    let mut words: Vec<String> = values
        .unwrap_or_default()
        .iter()
        .map(|value| {
            let mut data = value.data.clone();
            if value.data_type == UINT || value.data_type == INT {
                while data.last() == Some(&0) {
                    data.pop();
                }
            }
            format!("{}:{}:{data:02x?}", value.name.to_string_lossy(), value.data_type)
        })
        .collect();
    words.sort();
    words.concat().into_bytes()
}

struct Keys([*mut EVP_PKEY; 2]);

impl Drop for Keys {
    fn drop(&mut self) {
        for key in self.0 {
            // SAFETY: ours or null.
            unsafe { EVP_PKEY_free(key) };
        }
    }
}

struct Ctx([*mut EVP_PKEY_CTX; 2]);

impl Drop for Ctx {
    fn drop(&mut self) {
        for context in self.0 {
            // SAFETY: ours or null.
            unsafe { EVP_PKEY_CTX_free(context) };
        }
    }
}

struct Mds([*mut EVP_MD_CTX; 2]);

impl Drop for Mds {
    fn drop(&mut self) {
        for context in self.0 {
            // SAFETY: ours or null.
            unsafe { EVP_MD_CTX_free(context) };
        }
    }
}

fn say(values: &[Value]) -> String {
    values.iter().map(Value::say).collect::<Vec<_>>().join(" ")
}

pub fn sequence(run: &mut Run<'_>) -> Go {
    let which = run.choices.below(KINDS.len());
    let kind = &KINDS[which];
    run.what = match kind.group {
        Some(group) => group.to_owned(),
        None => format!(
            "{}{}",
            kind.name.to_string_lossy(),
            if kind.bits > 0 { kind.bits.to_string() } else { String::new() }
        ),
    };
    run.errors = Errors::Last;
    if run.choices.one_in(12) {
        return generate(run, kind);
    }
    let Some(keys) = make(run, which, true)? else { return Ok(()) };
    // SAFETY: a live key.
    let known = unsafe { exported(keys.0[0], ALL) }.unwrap_or_default();
    let has = |name: &CStr| {
        known.iter().any(|one| one.name.as_c_str() == name && one.data.iter().any(|byte| *byte != 0))
    };
    let usable = kind.bits == 0 || (has(c"n") && has(c"e"));
    for _ in 0..6 {
        if run.choices.is_over() {
            break;
        }
        match run.choices.below(if usable { 16 } else { 6 }) {
            0 => facts(run, &keys)?,
            1 => change(run, &keys)?,
            2 => compare(run, which, &keys)?,
            3 if run.choices.one_in(3) => check(run, &keys)?,
            4 => export(run, &keys)?,
            5 => encoded(run, &keys)?,
            6..=8 => sign(run, kind, &keys)?,
            9..=11 => message(run, kind, &keys)?,
            12..=13 => crypt(run, kind, &keys)?,
            _ => agree(run, which, &keys)?,
        }
    }
    Ok(())
}

/// The same key on both sides, whole or maimed.
fn make(run: &mut Run<'_>, which: usize, odd: bool) -> Go<Option<Keys>> {
    let kind = &KINDS[which];
    let turn = run.choices.below(2);
    let mut values = pool(run.beside)[which][turn].clone();
    let mut selection = ALL;
    if odd && run.choices.one_in(3) {
        for _ in 0..1 + run.choices.below(2) {
            maim(run, &mut values);
        }
        run.whole = false;
        selection = run.choices.pick(&[ALL, PAIR, 0x86, 0x84, 0x02, 0x01, 0x04, 0x80, 0x83]);
    }
    run.note(format!("{} {} from {} {selection:#x}", run.what, turn, say(&values)));
    let mut lists = [List::new(&values), List::new(&values)];
    let mut keys = Keys([null_mut(); 2]);
    let library = run.beside.context;
    let said = run.both("fromdata", |side| {
        // SAFETY: a live library context, terminated lists.
        unsafe {
            let making = Ctx([
                EVP_PKEY_CTX_new_from_name(library.cast(), kind.name.as_ptr(), SIDES[side].as_ptr()),
                null_mut(),
            ]);
            if EVP_PKEY_fromdata_init(making.0[0]) != 1 {
                return (-9, Vec::new());
            }
            let code = EVP_PKEY_fromdata(making.0[0], &raw mut keys.0[side], selection, lists[side].ask());
            (rc(code), Vec::new())
        }
    })?;
    Ok((said.rc == 1 && !keys.0[0].is_null() && !keys.0[1].is_null()).then_some(keys))
}

fn maim(run: &mut Run<'_>, values: &mut Vec<Value>) {
    if values.is_empty() {
        return;
    }
    let at = run.choices.below(values.len());
    let value = &mut values[at];
    match run.choices.below(8) {
        0 | 1 => {
            values.remove(at);
        }
        2 => {
            let bit = run.choices.below(8 * value.data.len().max(1));
            if let Some(byte) = value.data.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
        }
        3 if value.data.len() > 1 => {
            let len = run.choices.below(value.data.len()).max(1);
            value.data.truncate(len);
        }
        4 => value.data.extend([0, 0]),
        5 => value.data.fill(0),
        6 => value.data_type = run.choices.pick(&[INT, UINT, TEXT, OCTETS]),
        _ => {
            let name = run.choices.pick(&[
                c"point-format",
                c"encoding",
                c"use-cofactor-flag",
                c"include-public",
                c"bogus",
                c"digest",
                c"saltlen",
                c"group-check",
            ]);
            values.push(list::anything(&mut run.choices, name));
        }
    }
    values.retain(|one| !(one.data.is_empty() && matches!(one.data_type, INT | UINT)));
}

const ASKED: [&CStr; 30] = [
    c"bits",
    c"security-bits",
    c"max-size",
    c"default-digest",
    c"mandatory-digest",
    c"group",
    c"pub",
    c"priv",
    c"encoded-pub-key",
    c"qx",
    c"qy",
    c"n",
    c"e",
    c"d",
    c"rsa-factor1",
    c"rsa-factor2",
    c"rsa-factor3",
    c"rsa-exponent1",
    c"rsa-coefficient1",
    c"p",
    c"a",
    c"b",
    c"generator",
    c"order",
    c"cofactor",
    c"field-type",
    c"point-format",
    c"use-cofactor-flag",
    c"encoding",
    c"bogus",
];

fn facts(run: &mut Run<'_>, keys: &Keys) -> Go {
    // SAFETY: live keys.
    run.both("sizes", |side| unsafe {
        let key = keys.0[side];
        let all = [EVP_PKEY_get_bits(key), EVP_PKEY_get_security_bits(key), EVP_PKEY_get_size(key)];
        (1, all.iter().flat_map(|one| one.to_le_bytes()).collect())
    })?;
    run.both("default digest", |side| {
        let mut name = [0_u8; 64];
        // SAFETY: live keys; room as said.
        let code = unsafe { EVP_PKEY_get_default_digest_name(keys.0[side], name.as_mut_ptr().cast(), 64) };
        (rc(code), name.to_vec())
    })?;
    let name = run.choices.pick(&ASKED);
    let value = list::question(&mut run.choices, name);
    if name == c"encoded-pub-key" && value.data_type == list::OCTETS_PTR {
        // OpenSSL writes the point over the pointer, and over what follows.
        return Ok(());
    }
    run.note(format!("get {}", value.say()));
    let mut lists = [List::new(std::slice::from_ref(&value)), List::new(&[value])];
    // SAFETY: live keys and lists.
    run.both(&format!("get {}", name.to_string_lossy()), |side| unsafe {
        (rc(EVP_PKEY_get_params(keys.0[side], lists[side].ask())), lists[side].answers())
    })
    .map(|_| ())
}

fn change(run: &mut Run<'_>, keys: &Keys) -> Go {
    let name = run.choices.pick(&[
        c"encoded-pub-key",
        c"point-format",
        c"encoding",
        c"use-cofactor-flag",
        c"include-public",
        c"group-check",
        c"digest",
        c"properties",
        c"bogus",
        c"pub",
        c"priv",
    ]);
    let value = match run.choices.below(3) {
        0 => list::anything(&mut run.choices, name),
        1 => {
            let word =
                run.choices.pick(&["compressed", "uncompressed", "hybrid", "explicit", "named_curve", "x"]);
            Value::text(name, word)
        }
        _ => Value::int(name, run.choices.pick(&[0, 1, -1, 2])),
    };
    run.note(format!("set {}", value.say()));
    let mut lists = [List::new(std::slice::from_ref(&value)), List::new(&[value])];
    // SAFETY: live keys and lists.
    run.both(&format!("set {}", name.to_string_lossy()), |side| unsafe {
        (rc(EVP_PKEY_set_params(keys.0[side], lists[side].ask())), Vec::new())
    })?;
    export(run, keys)
}

fn compare(run: &mut Run<'_>, which: usize, keys: &Keys) -> Go {
    let Some(other) = make(run, which, true)? else { return Ok(()) };
    run.note("compare");
    // SAFETY: live keys.
    run.both("eq", |side| unsafe { (rc(EVP_PKEY_eq(keys.0[side], other.0[side])), Vec::new()) })?;
    // SAFETY: live keys.
    run.both("parameters eq", |side| unsafe {
        (rc(EVP_PKEY_parameters_eq(keys.0[side], other.0[side])), Vec::new())
    })?;
    let mut copies = Keys([null_mut(); 2]);
    run.both("dup", |side| {
        // SAFETY: live keys.
        copies.0[side] = unsafe { EVP_PKEY_dup(keys.0[side]) };
        (i64::from(!copies.0[side].is_null()), Vec::new())
    })?;
    if copies.0.iter().any(|one| one.is_null()) {
        return Ok(());
    }
    // SAFETY: live keys.
    run.both("eq with the copy", |side| unsafe {
        (rc(EVP_PKEY_eq(keys.0[side], copies.0[side])), Vec::new())
    })?;
    export(run, &copies)
}

/// What may differ about parameters.
fn allow(run: &mut Run<'_>, values: &[Value]) {
    if values.len() > 1 {
        run.rules.push("list");
    }
    if run.beside.minor < 2 && values.iter().any(|value| value.name.as_c_str() == c"implicit-rejection") {
        run.rules.push("implicit-rejection");
    }
}

fn contexts(run: &Run<'_>, keys: &Keys) -> Ctx {
    // SAFETY: live keys and library context.
    Ctx([0, 1].map(|side| unsafe {
        EVP_PKEY_CTX_new_from_pkey(run.beside.context.cast(), keys.0[side], SIDES[side].as_ptr())
    }))
}

fn check(run: &mut Run<'_>, keys: &Keys) -> Go {
    let what = run.choices.below(6);
    run.note(format!("check {what}"));
    let context = contexts(run, keys);
    // SAFETY: live contexts.
    run.both(&format!("check {what}"), |side| unsafe {
        let at = context.0[side];
        let code = match what {
            0 => EVP_PKEY_check(at),
            1 => EVP_PKEY_public_check(at),
            2 => EVP_PKEY_public_check_quick(at),
            3 => EVP_PKEY_private_check(at),
            4 => EVP_PKEY_pairwise_check(at),
            _ => EVP_PKEY_param_check(at),
        };
        (rc(code), Vec::new())
    })
    .map(|_| ())
}

fn export(run: &mut Run<'_>, keys: &Keys) -> Go {
    let selection = run.choices.pick(&[ALL, PAIR, 0x86, 0x84, 0x02, 0x01, 0x04, 0x80, 0]);
    run.note(format!("export {selection:#x}"));
    // SAFETY: live keys.
    run.both(&format!("export {selection:#x}"), |side| unsafe {
        let values = exported(keys.0[side], selection);
        (i64::from(values.is_some()), flat(values))
    })
    .map(|_| ())
}

fn encoded(run: &mut Run<'_>, keys: &Keys) -> Go {
    run.note("encoded public key");
    let mut kept = Vec::new();
    run.both("get encoded", |side| {
        let mut at = null_mut();
        // SAFETY: live keys; what comes back is freed.
        unsafe {
            let len = EVP_PKEY_get1_encoded_public_key(keys.0[side], &raw mut at);
            let bytes = if len > 0 { std::slice::from_raw_parts(at, len).to_vec() } else { Vec::new() };
            openssl_free(at);
            kept.clone_from(&bytes);
            (len as i64, bytes)
        }
    })?;
    match run.choices.below(5) {
        0 => kept.truncate(kept.len() / 2),
        1 => kept.push(0),
        2 if !kept.is_empty() => {
            let at = run.choices.below(kept.len());
            kept[at] ^= 1;
        }
        3 => kept.fill(0),
        _ => {}
    }
    if kept.is_empty() {
        return Ok(());
    }
    run.note(format!("set encoded {kept:02x?}"));
    // SAFETY: live keys; bytes as said.
    run.both("set encoded", |side| unsafe {
        (rc(EVP_PKEY_set1_encoded_public_key(keys.0[side], kept.as_ptr(), kept.len())), Vec::new())
    })?;
    export(run, keys)
}

const DIGESTS: [&str; 13] = [
    "SHA256",
    "SHA256",
    "SHA384",
    "SHA512",
    "SHA1",
    "SHA224",
    "SHA2-512/256",
    "SHA3-256",
    "MD5",
    "MD5-SHA1",
    "SHAKE256",
    "RIPEMD160",
    "none such",
];
const NUMBERS: [c_int; 12] = [-1, -2, -3, -4, -5, 0, 1, 20, 32, 64, 222, 223];

/// Parameters of a signature.
fn signing(run: &mut Run<'_>, digest: bool) -> Vec<Value> {
    let choices = &mut run.choices;
    let mut values: Vec<Value> = Vec::new();
    let mut add = |value: Value| {
        if values.iter().all(|one| one.name != value.name) {
            values.push(value);
        }
    };
    if digest && choices.below(5) > 0 {
        add(Value::text(c"digest", choices.pick(&DIGESTS)));
    }
    for _ in 0..choices.below(4) {
        match choices.below(9) {
            0 | 1 => add(if choices.byte().is_multiple_of(2) {
                Value::text(c"pad-mode", choices.pick(&["pkcs1", "pss", "none", "x931", "oaep", "y"]))
            } else {
                Value::int(c"pad-mode", choices.pick(&[1, 6, 3, 5, 4, 0, 9]))
            }),
            2 | 3 => add(if choices.byte().is_multiple_of(2) {
                Value::text(
                    c"saltlen",
                    choices.pick(&["digest", "auto", "max", "auto-digestmax", "20", "-1", "x"]),
                )
            } else {
                Value::int(c"saltlen", choices.pick(&NUMBERS))
            }),
            4 => add(Value::text(c"mgf1-digest", choices.pick(&DIGESTS))),
            5 => add(Value::text(c"properties", choices.pick(&["", "provider=default", "no=such"]))),
            6 => add(Value::uint(c"nonce-type", choices.pick(&[0, 1, 2]))),
            7 => add(Value::text(c"mgf1-properties", choices.pick(&["", "provider=default"]))),
            _ => {
                let name = choices.pick(&[
                    c"algorithm-id",
                    c"digest-size",
                    c"digest",
                    c"saltlen",
                    c"pad-mode",
                    c"bogus",
                    c"kat",
                    c"verify-message",
                    c"digest-check",
                    c"sign-check",
                ]);
                let value = list::anything(choices, name);
                if !value.nothing {
                    add(value);
                }
            }
        }
    }
    values
}

const CTX_ASKED: [&CStr; 14] = [
    c"algorithm-id",
    c"pad-mode",
    c"digest",
    c"mgf1-digest",
    c"saltlen",
    c"digest-size",
    c"nonce-type",
    c"oaep-label",
    c"tls-client-version",
    c"implicit-rejection",
    c"verify-message",
    c"fips-indicator",
    c"size",
    c"bogus",
];

fn ask(run: &mut Run<'_>, context: &Ctx) -> Go {
    let name = run.choices.pick(&CTX_ASKED);
    let value = list::question(&mut run.choices, name);
    run.note(format!("ctx get {}", value.say()));
    allow(run, std::slice::from_ref(&value));
    if name == c"algorithm-id" && !run.what.starts_with("RSA") {
        run.rules.push("identifier");
    }
    let mut lists = [List::new(std::slice::from_ref(&value)), List::new(&[value])];
    // SAFETY: live contexts and lists.
    run.both(&format!("ctx get {}", name.to_string_lossy()), |side| unsafe {
        (rc(EVP_PKEY_CTX_get_params(context.0[side], lists[side].ask())), lists[side].answers())
    })
    .map(|_| ())
}

fn duplicate(run: &mut Run<'_>, context: &mut Ctx) -> Go {
    run.note("ctx dup");
    if run.beside.minor == 0 {
        run.rules.push("copy");
    }
    let mut copies = Ctx([null_mut(); 2]);
    run.both("ctx dup", |side| {
        // SAFETY: live contexts.
        copies.0[side] = unsafe { EVP_PKEY_CTX_dup(context.0[side]) };
        (i64::from(!copies.0[side].is_null()), Vec::new())
    })?;
    if copies.0.iter().all(|one| !one.is_null()) {
        *context = copies;
    }
    Ok(())
}

fn sign(run: &mut Run<'_>, kind: &Kind, keys: &Keys) -> Go {
    let mut context = contexts(run, keys);
    let recover = kind.bits > 0 && run.choices.one_in(4);
    let values = signing(run, true);
    run.note(format!("sign init {}", say(&values)));
    let lists = [List::new(&values), List::new(&values)];
    allow(run, &values);
    // SAFETY: live contexts and lists.
    let said = run.both("sign init", |side| unsafe {
        let params = if values.is_empty() { null() } else { lists[side].tell() };
        (rc(EVP_PKEY_sign_init_ex(context.0[side], params)), Vec::new())
    })?;
    if said.rc != 1 {
        return Ok(());
    }
    for _ in 0..run.choices.below(3) {
        match run.choices.below(3) {
            0 => {
                let values = signing(run, true);
                if values.is_empty() {
                    // To OpenSSL's own an empty list for a PSS key chooses SHA-1, and none at all does not.
                    continue;
                }
                run.note(format!("ctx set {}", say(&values)));
                let lists = [List::new(&values), List::new(&values)];
                allow(run, &values);
                // SAFETY: live contexts and lists.
                let said = run.both("ctx set", |side| unsafe {
                    (rc(EVP_PKEY_CTX_set_params(context.0[side], lists[side].tell())), Vec::new())
                })?;
                if said.rc != 1 && values.len() > 1 {
                    return Err(Over);
                }
            }
            1 => ask(run, &context)?,
            _ => duplicate(run, &mut context)?,
        }
    }
    let len = run.choices.pick(&[32, 32, 20, 48, 64, 28, 0, 1, 36, 128, 256]);
    let hash = run.choices.fill(len);
    let room = run.choices.pick(&[600, 600, 600, 256, 255, 128, 64, 8, 0]);
    run.note(format!("sign {len} bytes, room {room}"));
    let mut signatures = [Vec::new(), Vec::new()];
    let said = run.both("sign", |side| {
        let mut to = vec![0xa5_u8; 700];
        let mut size = room;
        let at = if room == 0 { null_mut() } else { to.as_mut_ptr() };
        // SAFETY: live contexts; room as said and more.
        let code = unsafe { EVP_PKEY_sign(context.0[side], at, &raw mut size, hash.as_ptr(), hash.len()) };
        if code == 1 && room > 0 {
            signatures[side] = to[..size.min(700)].to_vec();
        }
        // The length of an ECDSA signature is as random as the rest.
        let told = if kind.bits > 0 || room == 0 { size.to_le_bytes().to_vec() } else { Vec::new() };
        (rc(code), told)
    })?;
    if said.rc != 1 || room == 0 {
        return Ok(());
    }
    crosswise(run, keys, &values, &signatures, &hash, recover)
}

/// Whatever either signed, both say the same of it.
fn crosswise(
    run: &mut Run<'_>,
    keys: &Keys,
    values: &[Value],
    signatures: &[Vec<u8>; 2],
    hash: &[u8],
    recover: bool,
) -> Go {
    for (who, signature) in signatures.iter().enumerate() {
        let mut signature = signature.clone();
        if run.choices.one_in(4) && !signature.is_empty() {
            let at = run.choices.below(signature.len());
            signature[at] ^= 1 << run.choices.below(8);
        }
        let len = if run.choices.one_in(6) { signature.len() / 2 } else { signature.len() };
        let context = contexts(run, keys);
        run.note(format!("verify what {} signed: {:02x?}", SIDES[who].to_string_lossy(), &signature[..len]));
        let lists = [List::new(values), List::new(values)];
        run.both(if recover { "recover" } else { "verify" }, |side| {
            let at = context.0[side];
            let mut to = vec![0xa5_u8; 700];
            let mut size = 700;
            // SAFETY: live contexts, lists, and buffers as said.
            unsafe {
                let params = if values.is_empty() { null() } else { lists[side].tell() };
                let begun = if recover {
                    EVP_PKEY_verify_recover_init_ex(at, params)
                } else {
                    EVP_PKEY_verify_init_ex(at, params)
                };
                if begun != 1 {
                    return (rc(begun) - 100, Vec::new());
                }
                if recover {
                    let code =
                        EVP_PKEY_verify_recover(at, to.as_mut_ptr(), &raw mut size, signature.as_ptr(), len);
                    (rc(code), to)
                } else {
                    (rc(EVP_PKEY_verify(at, signature.as_ptr(), len, hash.as_ptr(), hash.len())), Vec::new())
                }
            }
        })?;
    }
    Ok(())
}

fn begin(
    run: &mut Run<'_>,
    keys: &Keys,
    mds: &Mds,
    digest: Option<&str>,
    values: &[Value],
    verify: bool,
) -> Go<(i64, [*mut EVP_PKEY_CTX; 2])> {
    let name = digest.map(|name| CString::new(name).unwrap_or_default());
    let lists = [List::new(values), List::new(values)];
    let mut inner = [null_mut(); 2];
    let library = run.beside.context;
    allow(run, values);
    let said = run.both(if verify { "digest verify init" } else { "digest sign init" }, |side| {
        let init = if verify { EVP_DigestVerifyInit_ex } else { EVP_DigestSignInit_ex };
        // SAFETY: live contexts, keys and lists.
        let code = unsafe {
            let params = if values.is_empty() { null() } else { lists[side].tell() };
            let name = name.as_ref().map_or(null(), |name| name.as_ptr());
            let at = &raw mut inner[side];
            init(mds.0[side], at, name, library, SIDES[side].as_ptr(), keys.0[side], params)
        };
        (rc(code), Vec::new())
    })?;
    Ok((said.rc, inner))
}

fn message(run: &mut Run<'_>, kind: &Kind, keys: &Keys) -> Go {
    // SAFETY: public calls without arguments.
    let mut mds = Mds([0, 1].map(|_| unsafe { EVP_MD_CTX_new() }));
    let digest = if run.choices.one_in(6) { None } else { Some(run.choices.pick(&DIGESTS)) };
    let values = signing(run, false);
    run.note(format!("digest sign init {digest:?} {}", say(&values)));
    // The provider's own digests come from the other side, where names have synonyms of another order.
    let (code, inner) = begin(run, keys, &mds, digest, &values, false)?;
    if code != 1 {
        return Ok(());
    }
    // At most five pieces of less than 100 bytes, and one more.
    let text = run.choices.fill(600);
    let mut used = 0;
    let mut ended = false;
    let mut signatures = [Vec::new(), Vec::new()];
    for _ in 0..1 + run.choices.below(5) {
        match run.choices.below(8) {
            0..=2 => {
                let len = run.choices.below(100);
                run.note(format!("update {len}"));
                // SAFETY: live contexts; bytes as said.
                let said = run.both("digest sign update", |side| unsafe {
                    (rc(EVP_DigestSignUpdate(mds.0[side], text[used..].as_ptr().cast(), len)), Vec::new())
                })?;
                used += if said.rc == 1 { len } else { 0 };
            }
            3 => {
                run.note("copy");
                // SAFETY: public calls on contexts of ours.
                let copies = Mds([0, 1].map(|_| unsafe { EVP_MD_CTX_new() }));
                // SAFETY: live contexts.
                let said = run.both("digest sign copy", |side| unsafe {
                    (rc(EVP_MD_CTX_copy_ex(copies.0[side], mds.0[side])), Vec::new())
                })?;
                if said.rc == 1 {
                    mds = copies;
                    // The inner contexts of before are gone.
                    ended = true;
                }
            }
            4 if !ended => {
                let values = signing(run, true);
                run.note(format!("inner set {}", say(&values)));
                let lists = [List::new(&values), List::new(&values)];
                let at = Ctx(inner);
                allow(run, &values);
                // SAFETY: the digest context's own, which was neither ended nor copied meanwhile.
                let said = run.both("inner set", |side| unsafe {
                    (rc(EVP_PKEY_CTX_set_params(at.0[side], lists[side].tell())), Vec::new())
                });
                std::mem::forget(at);
                if said?.rc != 1 {
                    return Err(Over);
                }
                // Only directly after the beginning is the inner context surely alive.
                ended = true;
            }
            5 | 6 => {
                let room = run.choices.pick(&[600, 600, 0, 32, 256]);
                run.note(format!("end, room {room}"));
                let said = run.both("digest sign final", |side| {
                    let mut to = vec![0xa5_u8; 700];
                    let mut len = room;
                    let at = if room == 0 { null_mut() } else { to.as_mut_ptr() };
                    // SAFETY: live contexts; room as said and more.
                    let code = unsafe { EVP_DigestSignFinal(mds.0[side], at, &raw mut len) };
                    if code == 1 && room > 0 {
                        signatures[side] = to[..len.min(700)].to_vec();
                    }
                    let told =
                        if kind.bits > 0 || room == 0 { len.to_le_bytes().to_vec() } else { Vec::new() };
                    (rc(code), told)
                })?;
                ended = true;
                if said.rc == 1 && room > 0 {
                    break;
                }
            }
            _ => {
                let len = run.choices.below(100);
                run.note(format!("at once {len}"));
                let said = run.both("digest sign", |side| {
                    let mut to = vec![0xa5_u8; 700];
                    let mut size = 600;
                    // SAFETY: live contexts; room as said and more.
                    let code = unsafe {
                        EVP_DigestSign(
                            mds.0[side],
                            to.as_mut_ptr(),
                            &raw mut size,
                            text[used..].as_ptr(),
                            len,
                        )
                    };
                    if code == 1 {
                        signatures[side] = to[..size.min(700)].to_vec();
                    }
                    (rc(code), if kind.bits > 0 { size.to_le_bytes().to_vec() } else { Vec::new() })
                })?;
                ended = true;
                if said.rc == 1 {
                    used += len;
                    break;
                }
            }
        }
    }
    if signatures.iter().any(Vec::is_empty) {
        return Ok(());
    }
    for signature in &signatures {
        let mut signature = signature.clone();
        if run.choices.one_in(4) {
            let at = run.choices.below(signature.len());
            signature[at] ^= 1 << run.choices.below(8);
        }
        // SAFETY: public calls without arguments.
        let mds = Mds([0, 1].map(|_| unsafe { EVP_MD_CTX_new() }));
        run.note(format!("digest verify {:02x?}", signature));
        if begin(run, keys, &mds, digest, &values, true)?.0 != 1 {
            return Ok(());
        }
        let split = run.choices.byte().is_multiple_of(2);
        run.note(format!("of {used} bytes, {}", if split { "in pieces" } else { "at once" }));
        // SAFETY: live contexts; bytes as said.
        run.both("digest verify", |side| unsafe {
            let code = if split {
                EVP_DigestVerifyUpdate(mds.0[side], text.as_ptr().cast(), used);
                EVP_DigestVerifyFinal(mds.0[side], signature.as_ptr(), signature.len())
            } else {
                EVP_DigestVerify(mds.0[side], signature.as_ptr(), signature.len(), text.as_ptr(), used)
            };
            (rc(code), Vec::new())
        })?;
    }
    Ok(())
}

fn crypting(run: &mut Run<'_>) -> Vec<Value> {
    let choices = &mut run.choices;
    let mut values: Vec<Value> = Vec::new();
    let mut add = |value: Value| {
        if values.iter().all(|one| one.name != value.name) {
            values.push(value);
        }
    };
    for _ in 0..choices.below(4) {
        match choices.below(8) {
            0..=2 => add(if choices.byte().is_multiple_of(2) {
                Value::text(c"pad-mode", choices.pick(&["pkcs1", "oaep", "none", "x931", "pss", "oeap", "y"]))
            } else {
                Value::int(c"pad-mode", choices.pick(&[1, 4, 3, 7, 6, 0, 9]))
            }),
            3 => add(Value::text(c"digest", choices.pick(&DIGESTS))),
            4 => add(Value::text(c"mgf1-digest", choices.pick(&DIGESTS))),
            5 => {
                let len = choices.pick(&[0, 1, 10, 100]);
                add(Value::new(c"oaep-label", OCTETS, choices.fill(len)));
            }
            6 => {
                let name =
                    choices.pick(&[c"tls-client-version", c"tls-negotiated-version", c"implicit-rejection"]);
                add(Value::uint(name, choices.pick(&[0, 1, 0x303, 0x301, 2])));
            }
            _ => {
                let name =
                    choices.pick(&[c"pad-mode", c"digest", c"oaep-label", c"implicit-rejection", c"bogus"]);
                let value = list::anything(choices, name);
                if !(value.nothing || value.data.is_empty() && name == c"oaep-label") {
                    add(value);
                }
            }
        }
    }
    values
}

fn crypt(run: &mut Run<'_>, kind: &Kind, keys: &Keys) -> Go {
    let values = crypting(run);
    let mut context = contexts(run, keys);
    run.note(format!("encrypt init {}", say(&values)));
    let lists = [List::new(&values), List::new(&values)];
    allow(run, &values);
    // SAFETY: live contexts and lists.
    let said = run.both("encrypt init", |side| unsafe {
        let params = if values.is_empty() { null() } else { lists[side].tell() };
        (rc(EVP_PKEY_encrypt_init_ex(context.0[side], params)), Vec::new())
    })?;
    if said.rc == 1 && run.choices.one_in(3) {
        ask(run, &context)?;
    }
    let len = run.choices.pick(&[32, 0, 1, 48, 100, 128, 256, 245, 246]);
    let mut text = run.choices.fill(len);
    if len > 0 {
        text[0] &= 0x3f;
    }
    let mut boxes = [Vec::new(), Vec::new()];
    if said.rc == 1 {
        run.note(format!("encrypt {len}"));
        run.both("encrypt", |side| {
            let mut to = vec![0xa5_u8; 700];
            let mut size = 700;
            // SAFETY: live contexts and buffers as said.
            let code = unsafe {
                EVP_PKEY_encrypt(context.0[side], to.as_mut_ptr(), &raw mut size, text.as_ptr(), len)
            };
            if code == 1 {
                boxes[side] = to[..size].to_vec();
            }
            (rc(code), size.to_le_bytes().to_vec())
        })?;
    }
    if boxes[0].is_empty() || run.choices.one_in(4) {
        let len = (kind.bits as usize).div_ceil(8);
        let len = run.choices.pick(&[len, len, len.saturating_sub(1), len + 1, 0]);
        let mut forged = run.choices.fill(len);
        forged.iter_mut().take(1).for_each(|byte| *byte &= 0x3f);
        boxes[0] = forged;
    } else if run.choices.one_in(4) {
        let at = run.choices.below(boxes[0].len());
        boxes[0][at] ^= 1;
    }
    let other = run.choices.one_in(3);
    let values = if other { crypting(run) } else { values };
    context = contexts(run, keys);
    run.note(format!("decrypt init {}", say(&values)));
    let lists = [List::new(&values), List::new(&values)];
    allow(run, &values);
    // SAFETY: live contexts and lists.
    let said = run.both("decrypt init", |side| unsafe {
        let params = if values.is_empty() { null() } else { lists[side].tell() };
        (rc(EVP_PKEY_decrypt_init_ex(context.0[side], params)), Vec::new())
    })?;
    if said.rc != 1 {
        return Ok(());
    }
    let mode = values.iter().find(|value| value.name.as_c_str() == c"pad-mode");
    // A number of any width.
    let said_to = |word: &[u8], number: u8| {
        let is = |data: &[u8]| data.first() == Some(&number) && data[1..].iter().all(|byte| *byte == 0);
        mode.is_some_and(|mode| mode.data == word || is(&mode.data))
    };
    let (mut pkcs1, tls) = (mode.is_none() || said_to(b"pkcs1", 1), said_to(b"", 7));
    match run.choices.below(6) {
        0 => ask(run, &context)?,
        1 => duplicate(run, &mut context)?,
        2 => {
            let (name, value) = run.choices.pick(&[
                (c"rsa_pkcs1_implicit_rejection", c"0"),
                (c"rsa_pkcs1_implicit_rejection", c"1"),
                (c"rsa_padding_mode", c"oaep"),
                (c"rsa_padding_mode", c"pkcs1"),
                (c"rsa_oaep_md", c"sha256"),
                (c"rsa_mgf1_md", c"sha1"),
                (c"rsa_oaep_label", c"0102"),
                (c"implicit-rejection", c"1"),
                (c"bogus", c"1"),
            ]);
            run.note(format!("ctrl {name:?} {value:?}"));
            if run.beside.minor < 2 && name.to_bytes().ends_with(b"rejection") {
                run.rules.push("implicit-rejection");
            }
            pkcs1 |= value == c"pkcs1";
            // SAFETY: live contexts and C strings.
            run.both(&format!("ctrl {}", name.to_string_lossy()), |side| unsafe {
                (rc(EVP_PKEY_CTX_ctrl_str(context.0[side], name.as_ptr(), value.as_ptr())), Vec::new())
            })?;
        }
        _ => {}
    }
    let room = run.choices.pick(&[700, 700, 256, 128, 48, 10, 0]);
    run.note(format!("decrypt {:02x?} room {room}", boxes[0]));
    if run.beside.minor < 2 && kind.bits > 0 && pkcs1 {
        run.rules.push("implicit-rejection");
    }
    let compared = run.whole && !tls;
    run.both("decrypt", |side| {
        let mut to = vec![0xa5_u8; 700];
        let mut size = room;
        let at = if room == 0 { null_mut() } else { to.as_mut_ptr() };
        // SAFETY: live contexts and buffers as said.
        let code = unsafe {
            EVP_PKEY_decrypt(context.0[side], at, &raw mut size, boxes[0].as_ptr(), boxes[0].len())
        };
        let mut wrote = size.to_le_bytes().to_vec();
        // A premaster secret of a forged ciphertext is random.
        if room > 0 && code == 1 && compared {
            wrote.extend(&to[..size.min(700)]);
        }
        (rc(code), wrote)
    })
    .map(|_| ())
}

fn agree(run: &mut Run<'_>, which: usize, keys: &Keys) -> Go {
    let other = if run.choices.one_in(8) { run.choices.below(KINDS.len()) } else { which };
    let Some(peers) = make(run, other, true)? else { return Ok(()) };
    let choices = &mut run.choices;
    let mut values: Vec<Value> = Vec::new();
    let mut add = |value: Value| {
        if values.iter().all(|one| one.name != value.name) {
            values.push(value);
        }
    };
    for _ in 0..choices.below(3) {
        match choices.below(6) {
            0 => add(Value::int(c"ecdh-cofactor-mode", choices.pick(&[-1, 0, 1, 2, -2]))),
            1 => add(Value::text(c"kdf-type", choices.pick(&["X963KDF", "", "HKDF", "y"]))),
            2 => add(Value::text(c"kdf-digest", choices.pick(&DIGESTS))),
            3 => add(Value::new(
                c"kdf-outlen",
                UINT,
                usize::to_ne_bytes(choices.pick(&[16, 32, 0, 100])).to_vec(),
            )),
            4 => {
                let len = choices.pick(&[0, 8, 20]);
                add(Value::new(c"kdf-ukm", OCTETS, choices.fill(len)));
            }
            _ => add(Value::int(c"pad", choices.pick(&[0, 1]))),
        }
    }
    let mut context = contexts(run, keys);
    run.note(format!("derive init {}", say(&values)));
    let lists = [List::new(&values), List::new(&values)];
    allow(run, &values);
    // SAFETY: live contexts and lists.
    let said = run.both("derive init", |side| unsafe {
        let params = if values.is_empty() { null() } else { lists[side].tell() };
        (rc(EVP_PKEY_derive_init_ex(context.0[side], params)), Vec::new())
    })?;
    if said.rc != 1 {
        return Ok(());
    }
    for _ in 0..1 + run.choices.below(4) {
        match run.choices.below(6) {
            0..=2 => {
                let validate = c_int::from(run.choices.byte() % 2);
                run.note(format!("set peer, validate {validate}"));
                // SAFETY: live contexts and keys.
                run.both("set peer", |side| unsafe {
                    (rc(EVP_PKEY_derive_set_peer_ex(context.0[side], peers.0[side], validate)), Vec::new())
                })?;
            }
            3 => duplicate(run, &mut context)?,
            4 => {
                let room = run.choices.pick(&[100, 32, 48, 16, 0]);
                derive(run, &context, room)?;
            }
            _ => ask(run, &context)?,
        }
    }
    derive(run, &context, 100)
}

fn derive(run: &mut Run<'_>, context: &Ctx, room: usize) -> Go {
    run.note(format!("derive, room {room}"));
    run.both("derive", |side| {
        let mut to = vec![0xa5_u8; 200];
        let mut len = room;
        let at = if room == 0 { null_mut() } else { to.as_mut_ptr() };
        // SAFETY: live contexts; room as said and more.
        let code = unsafe { EVP_PKEY_derive(context.0[side], at, &raw mut len) };
        to.extend(len.to_le_bytes());
        (rc(code), to)
    })
    .map(|_| ())
}

/// Generation: what is accepted, and what a key looks like from outside.
fn generate(run: &mut Run<'_>, kind: &Kind) -> Go {
    let choices = &mut run.choices;
    let mut values: Vec<Value> = Vec::new();
    let mut add = |value: Value| {
        if values.iter().all(|one| one.name != value.name) {
            values.push(value);
        }
    };
    if let Some(group) = kind.group.filter(|_| choices.below(6) > 0) {
        add(Value::text(c"group", group));
    }
    if kind.bits > 0 {
        // Small ones: primes take long to find.
        add(Value::uint(c"bits", choices.pick(&[512, 511, 0, 513])));
    }
    if choices.one_in(3) {
        let name = choices.pick(&[
            c"group",
            c"encoding",
            c"point-format",
            c"use-cofactor-flag",
            c"e",
            c"primes",
            c"digest",
            c"saltlen",
            c"bogus",
            c"pbits",
            c"dhkem-ikm",
        ]);
        let value = list::anything(choices, name);
        let lengthy = matches!(name.to_bytes(), b"primes" | b"bits") && !value.nothing;
        // An exponent of any size keeps generation busy for ever.
        if !lengthy && name != c"e" && !value.nothing {
            add(value);
        }
    }
    run.note(format!("generate {}", say(&values)));
    let library = run.beside.context;
    let lists = [List::new(&values), List::new(&values)];
    let context = Ctx([0, 1].map(|side| {
        // SAFETY: a live library context and C strings.
        unsafe { EVP_PKEY_CTX_new_from_name(library.cast(), kind.name.as_ptr(), SIDES[side].as_ptr()) }
    }));
    allow(run, &values);
    // SAFETY: live contexts and lists.
    let said = run.both("generate set", |side| unsafe {
        let at = context.0[side];
        if EVP_PKEY_keygen_init(at) != 1 {
            return (-9, Vec::new());
        }
        (rc(if values.is_empty() { 1 } else { EVP_PKEY_CTX_set_params(at, lists[side].tell()) }), Vec::new())
    })?;
    if said.rc != 1 {
        return Ok(());
    }
    let mut keys = Keys([null_mut(); 2]);
    // SAFETY: live contexts.
    let said = run.both("generate", |side| unsafe {
        (rc(EVP_PKEY_generate(context.0[side], &raw mut keys.0[side])), Vec::new())
    })?;
    if said.rc != 1 {
        return Ok(());
    }
    // SAFETY: live keys.
    run.both("sizes", |side| unsafe {
        let key = keys.0[side];
        let all = [EVP_PKEY_get_bits(key), EVP_PKEY_get_security_bits(key), EVP_PKEY_get_size(key)];
        (1, all.iter().flat_map(|one| one.to_le_bytes()).collect())
    })?;
    check(run, &keys)
}
