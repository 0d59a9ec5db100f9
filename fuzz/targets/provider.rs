//! The provider in the system's libcrypto: parameters in any order, type and length for ciphers, keys, key derivation and
//! signatures, right ones among them; keys of any numbers, and ML-KEM's as files; and settings, as its section and nginx's directives give them.
//! Calls may fail; none crashes, and what is opened is what was sealed.
#![no_main]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use wattlock_core::{Kind, ML_KEM_768_PUBLIC, Material, RsaKey, known_answers};
use wattlock_fuzz::Bytes;
use wattlock_provider::sys::OSSL_PARAM;
use wattlock_provider::table::Setting;

#[path = "ossl.rs"]
mod ossl;

enum Opaque {}

// Declarations of OpenSSL 3.0's manual pages.
unsafe extern "C" {
    fn EVP_CIPHER_fetch(context: *mut c_void, name: *const c_char, properties: *const c_char) -> *mut Opaque;
    fn EVP_CIPHER_CTX_new() -> *mut Opaque;
    fn EVP_CIPHER_CTX_free(context: *mut Opaque);
    fn EVP_CipherInit_ex2(
        context: *mut Opaque,
        cipher: *const Opaque,
        key: *const u8,
        iv: *const u8,
        enc: c_int,
        params: *const OSSL_PARAM,
    ) -> c_int;
    fn EVP_CipherUpdate(
        context: *mut Opaque,
        out: *mut u8,
        outl: *mut c_int,
        from: *const u8,
        len: c_int,
    ) -> c_int;
    fn EVP_CipherFinal_ex(context: *mut Opaque, out: *mut u8, outl: *mut c_int) -> c_int;
    fn EVP_CIPHER_CTX_set_params(context: *mut Opaque, params: *const OSSL_PARAM) -> c_int;
    fn EVP_CIPHER_CTX_get_params(context: *mut Opaque, params: *mut OSSL_PARAM) -> c_int;
    fn EVP_PKEY_CTX_new_from_name(
        context: *mut c_void,
        name: *const c_char,
        properties: *const c_char,
    ) -> *mut Opaque;
    fn EVP_PKEY_CTX_new_from_pkey(
        context: *mut c_void,
        key: *mut Opaque,
        properties: *const c_char,
    ) -> *mut Opaque;
    fn EVP_PKEY_CTX_free(context: *mut Opaque);
    fn EVP_PKEY_fromdata_init(context: *mut Opaque) -> c_int;
    fn EVP_PKEY_fromdata(
        context: *mut Opaque,
        key: *mut *mut Opaque,
        selection: c_int,
        params: *mut OSSL_PARAM,
    ) -> c_int;
    fn EVP_PKEY_free(key: *mut Opaque);
    fn EVP_PKEY_get_params(key: *const Opaque, params: *mut OSSL_PARAM) -> c_int;
    fn EVP_PKEY_set_params(key: *mut Opaque, params: *mut OSSL_PARAM) -> c_int;
    fn EVP_PKEY_eq(a: *const Opaque, b: *const Opaque) -> c_int;
    fn EVP_PKEY_sign_init_ex(context: *mut Opaque, params: *const OSSL_PARAM) -> c_int;
    fn EVP_PKEY_sign(
        context: *mut Opaque,
        to: *mut u8,
        len: *mut usize,
        from: *const u8,
        size: usize,
    ) -> c_int;
    fn EVP_PKEY_decrypt_init_ex(context: *mut Opaque, params: *const OSSL_PARAM) -> c_int;
    fn EVP_PKEY_decrypt(
        context: *mut Opaque,
        to: *mut u8,
        len: *mut usize,
        from: *const u8,
        size: usize,
    ) -> c_int;
    fn EVP_PKEY_derive_init_ex(context: *mut Opaque, params: *const OSSL_PARAM) -> c_int;
    fn EVP_PKEY_derive_set_peer_ex(context: *mut Opaque, peer: *mut Opaque, validate: c_int) -> c_int;
    fn EVP_PKEY_derive(context: *mut Opaque, to: *mut u8, len: *mut usize) -> c_int;
    fn EVP_PKEY_encapsulate_init(context: *mut Opaque, params: *const OSSL_PARAM) -> c_int;
    fn EVP_PKEY_encapsulate(
        context: *mut Opaque,
        text: *mut u8,
        text_len: *mut usize,
        secret: *mut u8,
        secret_len: *mut usize,
    ) -> c_int;
    fn EVP_PKEY_decapsulate_init(context: *mut Opaque, params: *const OSSL_PARAM) -> c_int;
    fn EVP_PKEY_decapsulate(
        context: *mut Opaque,
        secret: *mut u8,
        secret_len: *mut usize,
        text: *const u8,
        text_len: usize,
    ) -> c_int;
    fn d2i_AutoPrivateKey_ex(
        key: *mut *mut Opaque,
        from: *mut *const u8,
        len: c_long,
        context: *mut c_void,
        properties: *const c_char,
    ) -> *mut Opaque;
    fn d2i_PUBKEY_ex(
        key: *mut *mut Opaque,
        from: *mut *const u8,
        len: c_long,
        context: *mut c_void,
        properties: *const c_char,
    ) -> *mut Opaque;
    fn EVP_PKEY_CTX_set_params(context: *mut Opaque, params: *const OSSL_PARAM) -> c_int;
    fn EVP_PKEY_CTX_get_params(context: *mut Opaque, params: *mut OSSL_PARAM) -> c_int;
    fn EVP_KDF_fetch(context: *mut c_void, name: *const c_char, properties: *const c_char) -> *mut Opaque;
    fn EVP_KDF_CTX_new(kdf: *mut Opaque) -> *mut Opaque;
    fn EVP_KDF_CTX_free(context: *mut Opaque);
    fn EVP_KDF_derive(context: *mut Opaque, to: *mut u8, len: usize, params: *const OSSL_PARAM) -> c_int;
    fn EVP_KDF_CTX_get_params(context: *mut Opaque, params: *mut OSSL_PARAM) -> c_int;
    fn ERR_clear_error();
}

const OURS: &CStr = c"provider=wattlock";
const CIPHERS: [&CStr; 10] = [
    c"AES-128-GCM",
    c"AES-256-GCM",
    c"ChaCha20-Poly1305",
    c"AES-128-CBC",
    c"AES-256-CBC",
    c"AES-256-CTR",
    c"AES-128-XTS",
    c"AES-256-XTS",
    c"AES-128-CBC-HMAC-SHA1",
    c"AES-256-CBC-HMAC-SHA256",
];
/// Names of OpenSSL's parameters, for ciphers, keys, signatures, exchanges and derivation; and one of nobody.
const NAMES: [&CStr; 48] = [
    c"keylen",
    c"ivlen",
    c"taglen",
    c"tag",
    c"tlsaad",
    c"tlsaadpad",
    c"tlsivfixed",
    c"tlsivgen",
    c"tlsivinv",
    c"iv",
    c"updated-iv",
    c"padding",
    c"num",
    c"tls-version",
    c"tls-mac",
    c"tls-mac-size",
    c"mackey",
    c"tls1multi_maxsndfrag",
    c"tls1multi_aad",
    c"tls1multi_interleave",
    c"tls1multi_enc",
    c"tls1multi_encin",
    c"aad",
    c"blocksize",
    c"mode",
    c"cts_mode",
    c"digest",
    c"properties",
    c"key",
    c"salt",
    c"info",
    c"secret",
    c"seed",
    c"pad-mode",
    c"saltlen",
    c"mgf1-digest",
    c"digest-size",
    c"group",
    c"pub",
    c"priv",
    c"encoded-pub-key",
    c"n",
    c"e",
    c"d",
    c"bits",
    c"max-size",
    c"security-bits",
    c"nobody's",
];
const TYPES: [c_uint; 8] = [1, 2, 3, 4, 5, 6, 7, 9];

/// A list of parameters and what they point to: as many bytes as each entry says, no more.
struct List {
    entries: Vec<OSSL_PARAM>,
    _names: Vec<CString>,
    _data: Vec<Box<[u8]>>,
    _pointers: Vec<Box<*const c_void>>,
}

fn entry(key: *const c_char, data_type: c_uint, data: *mut c_void, data_size: usize) -> OSSL_PARAM {
    OSSL_PARAM { key, data_type, data, data_size, return_size: usize::MAX }
}

impl List {
    /// Right entries, in any order and some of them gone or twice, among others.
    fn new(bytes: &mut Bytes<'_>, right: &[(&CStr, c_uint, Vec<u8>)]) -> List {
        List::made(bytes, right, false)
    }

    /// Questions, some of them about lengths.
    fn questions(bytes: &mut Bytes<'_>) -> List {
        List::made(bytes, &[], true)
    }

    fn made(bytes: &mut Bytes<'_>, right: &[(&CStr, c_uint, Vec<u8>)], asks: bool) -> List {
        let mut list =
            List { entries: Vec::new(), _names: Vec::new(), _data: Vec::new(), _pointers: Vec::new() };
        let start = bytes.byte();
        for at in 0..right.len() {
            let (key, data_type, data) = &right[(at + usize::from(start)) % right.len()];
            if bytes.byte() < 230 {
                list.add(key, *data_type, data);
            }
        }
        let others = bytes.below(4);
        for _ in 0..others {
            let (key, data_type) = (bytes.pick(&NAMES), bytes.pick(&TYPES));
            let len = match bytes.byte() {
                len @ 0..=200 => usize::from(len) % 40,
                _ => bytes.below(600),
            };
            // A number of no bytes crashes OpenSSL's own provider, to which some entries are handed on.
            let len = if matches!(data_type, 1 | 2) { len.max(1) } else { len };
            let mut data = bytes.take(len).to_vec();
            data.resize(len, bytes.byte());
            if data_type == 4 && data.iter().all(|byte| *byte < 0x80) && bytes.byte() < 100 {
                data = bytes
                    .pick(&[&b"SHA256"[..], b"SHA384", b"P-256", b"pss", b"pkcs1", b"none", b"oaep"])
                    .to_vec();
            }
            list.add(key, data_type, &data);
            if asks
                && bytes.byte() < 60
                && let Some(last) = list.entries.last_mut()
            {
                // A question about a length.
                (last.data, last.data_size) = (null_mut(), 0);
            }
        }
        list.entries.push(entry(null(), 0, null_mut(), 0));
        list
    }

    fn add(&mut self, key: &CStr, data_type: c_uint, data: &[u8]) {
        let name = key.to_owned();
        // libcrypto reads texts up to a zero byte behind what their length says.
        let mut held: Box<[u8]> = if data_type == 4 { [data, &[0]].concat().into() } else { data.into() };
        let at = held.as_mut_ptr().cast::<c_void>();
        let place = if matches!(data_type, 6 | 7) {
            let mut pointer = Box::new(at.cast_const());
            let place = (&raw mut *pointer).cast();
            self._pointers.push(pointer);
            place
        } else {
            at
        };
        // Texts end with a zero byte behind what is said, as OSSL_PARAM(3) asks of a pointer to one.
        if data_type == 6 {
            return;
        }
        self.entries.push(entry(name.as_ptr(), data_type, place, data.len()));
        self._names.push(name);
        self._data.push(held);
    }

    fn ask(&mut self) -> *mut OSSL_PARAM {
        self.entries.as_mut_ptr()
    }

    fn tell(&self) -> *const OSSL_PARAM {
        self.entries.as_ptr()
    }
}

fn cipher(bytes: &mut Bytes<'_>) {
    let name = bytes.pick(&CIPHERS);
    let seals = bytes.byte() % 2;
    // Pointers come from libcrypto and are checked; buffers are as long as is said.
    unsafe {
        let fetched = fetched(name);
        if fetched.is_null() {
            return;
        }
        let context = EVP_CIPHER_CTX_new();
        // As long as any length that can be set.
        let (key, iv) = ([5_u8; 4096], [6_u8; 4096]);
        let mut key = key;
        key[32..].fill(9);
        key[16..32].fill(8);
        let right = [(c"padding", 2, 0_u32.to_ne_bytes().to_vec())];
        let params = List::new(bytes, &right);
        let mut good =
            EVP_CipherInit_ex2(context, fetched, key.as_ptr(), iv.as_ptr(), seals.into(), params.tell());
        for _ in 0..bytes.below(6) {
            match bytes.byte() % 5 {
                0 => {
                    let params = List::new(bytes, &[]);
                    EVP_CIPHER_CTX_set_params(context, params.tell());
                }
                1 => {
                    let mut params = List::questions(bytes);
                    EVP_CIPHER_CTX_get_params(context, params.ask());
                }
                2 if good == 1 => {
                    let from = vec![3; bytes.below(700)];
                    let (mut to, mut len) = (vec![0; from.len() + 64], 0);
                    // Only the first three take associated data so.
                    let aad = bytes.byte() < 60 && CIPHERS[..3].contains(&name);
                    let out = if aad { null_mut() } else { to.as_mut_ptr() };
                    EVP_CipherUpdate(context, out, &mut len, from.as_ptr(), from.len() as c_int);
                    assert!(len >= 0 && len as usize <= to.len());
                }
                3 if good == 1 => {
                    let (mut to, mut len) = ([0; 64], 0);
                    EVP_CipherFinal_ex(context, to.as_mut_ptr(), &mut len);
                    assert!((0..=64).contains(&len));
                }
                4 => {
                    let params = List::new(bytes, &[]);
                    let enc = c_int::from(bytes.byte() % 3) - 1;
                    good = EVP_CipherInit_ex2(context, null(), key.as_ptr(), iv.as_ptr(), enc, params.tell());
                }
                _ => {}
            }
        }
        EVP_CIPHER_CTX_free(context);
    }
}

/// Each cipher once: fetching takes long.
fn fetched(name: &CStr) -> *mut Opaque {
    static FETCHED: OnceLock<Vec<usize>> = OnceLock::new();
    let all = FETCHED.get_or_init(|| {
        let context = ossl::loaded().context;
        // SAFETY: a live library context and C strings.
        let fetch =
            |name: &&CStr| unsafe { EVP_CIPHER_fetch(context, name.as_ptr(), OURS.as_ptr()) } as usize;
        CIPHERS.iter().map(fetch).collect()
    });
    let at = CIPHERS.iter().position(|known| *known == name).unwrap_or(0);
    all[at] as *mut Opaque
}

fn rsa() -> &'static RsaKey {
    static KEY: OnceLock<RsaKey> = OnceLock::new();
    KEY.get_or_init(|| match known_answers(Kind::Rsa2048Private).swap_remove(0).request.key.material() {
        Material::Rsa(key) => (**key).clone(),
        _ => unreachable!("an RSA kind has an RSA key"),
    })
}

/// A decapsulation key of ML-KEM-768.
fn ml_kem() -> &'static [u8] {
    static KEY: OnceLock<Vec<u8>> = OnceLock::new();
    KEY.get_or_init(|| match known_answers(Kind::MlKem768Decapsulate).swap_remove(0).request.key.material() {
        Material::MlKem(key) => key.to_vec(),
        _ => unreachable!("a kind of ML-KEM has its key"),
    })
}

/// Right parameters of a key of this type; numbers are in the machine's order.
fn right_key(which: u8) -> (&'static CStr, Vec<(&'static CStr, c_uint, Vec<u8>)>) {
    let number = |bytes: &[u8]| bytes.iter().rev().copied().collect::<Vec<u8>>();
    match which % 3 {
        _ if which >= 248 => (c"X25519MLKEM768", vec![(c"priv", 5, [ml_kem(), &[0x48; 32]].concat())]),
        _ if which >= 244 => (c"ML-KEM-768", vec![(c"seed", 5, vec![7; 64])]),
        _ if which >= 240 => {
            let (own, public) = (ml_kem(), ml_kem()[ML_KEM_768_PUBLIC].to_vec());
            (c"ML-KEM-768", vec![(c"priv", 5, own.to_vec()), (c"pub", 5, public)])
        }
        0 => {
            let generator: Vec<u8> = [
                &[4][..],
                &0x6b17_d1f2_e12c_4247_f8bc_e6e5_63a4_40f2_u128.to_be_bytes(),
                &0x7703_7d81_2deb_33a0_f4a1_3945_d898_c296_u128.to_be_bytes(),
                &0x4fe3_42e2_fe1a_7f9b_8ee7_eb4a_7c0f_9e16_u128.to_be_bytes(),
                &0x2bce_3357_6b31_5ece_cbb6_4068_37bf_51f5_u128.to_be_bytes(),
            ]
            .concat();
            let mut one = vec![0; 32];
            one[0] = 1;
            (c"EC", vec![(c"group", 4, b"P-256".to_vec()), (c"pub", 5, generator), (c"priv", 2, one)])
        }
        1 => (c"X25519", vec![(c"priv", 5, vec![0x48; 32])]),
        _ => {
            let RsaKey { n, e, d, p, q, dp, dq, qinv } = rsa();
            let parts = [
                (c"n", n),
                (c"e", e),
                (c"d", d),
                (c"rsa-factor1", p),
                (c"rsa-factor2", q),
                (c"rsa-exponent1", dp),
                (c"rsa-exponent2", dq),
                (c"rsa-coefficient1", qinv),
            ];
            (c"RSA", parts.into_iter().map(|(name, part)| (name, 2, number(part))).collect())
        }
    }
}

fn key(bytes: &mut Bytes<'_>) {
    let (name, mut right) = right_key(bytes.byte());
    if bytes.byte() < 120 {
        let at = bytes.below(right.len());
        let data = &mut right[at].2;
        let at = bytes.below(data.len().max(1));
        match bytes.byte() % 3 {
            0 => data.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (at % 8)),
            1 => data.truncate(at),
            _ => data.extend(bytes.take(80)),
        }
    }
    let mut params = List::new(bytes, &right);
    let selection = bytes.pick(&[0x01, 0x02, 0x03, 0x04, 0x83, 0x86, 0x87]);
    let library = ossl::loaded().context;
    // SAFETY: pointers come from libcrypto and are checked; buffers are as long as is said.
    unsafe {
        let making = EVP_PKEY_CTX_new_from_name(library, name.as_ptr(), OURS.as_ptr());
        if making.is_null() {
            return;
        }
        let mut key = null_mut();
        if EVP_PKEY_fromdata_init(making) == 1 {
            EVP_PKEY_fromdata(making, &mut key, selection, params.ask());
        }
        EVP_PKEY_CTX_free(making);
        if key.is_null() {
            return;
        }
        let mut params = List::questions(bytes);
        EVP_PKEY_get_params(key, params.ask());
        let mut params = List::new(bytes, &[]);
        EVP_PKEY_set_params(key, params.ask());
        EVP_PKEY_eq(key, key);
        let context = EVP_PKEY_CTX_new_from_pkey(library, key, OURS.as_ptr());
        if !context.is_null() {
            let params = List::new(bytes, &[(c"digest", 4, b"SHA256".to_vec())]);
            let (mut asked, told) = (List::questions(bytes), List::new(bytes, &[]));
            let text = vec![5; bytes.pick(&[0, 20, 32, 48, 256])];
            let mut len = bytes.pick(&[1024, 1024, 256, 64, 0]);
            let mut room = vec![0; len];
            match bytes.byte() % 3 {
                0 if EVP_PKEY_encapsulate_init(context, params.tell()) == 1 => {
                    let (mut text, mut text_len) = (vec![0; len + 96], len + 96);
                    let (to, at) = (room.as_mut_ptr(), text.as_mut_ptr());
                    let made = EVP_PKEY_encapsulate(context, at, &mut text_len, to, &mut len) == 1;
                    assert!(!made || text_len <= text.len() && len <= room.len());
                }
                2 if EVP_PKEY_decapsulate_init(context, params.tell()) == 1 => {
                    let text = vec![5; bytes.pick(&[1088, 1120, 1088, 1120, 32, 0])];
                    let (to, from) = (room.as_mut_ptr(), text.as_ptr());
                    EVP_PKEY_decapsulate(context, to, &mut len, from, text.len());
                    assert!(len <= room.len().max(64));
                }
                0 if EVP_PKEY_sign_init_ex(context, params.tell()) == 1 => {
                    EVP_PKEY_CTX_get_params(context, asked.ask());
                    EVP_PKEY_sign(context, room.as_mut_ptr(), &mut len, text.as_ptr(), text.len());
                }
                1 if EVP_PKEY_decrypt_init_ex(context, params.tell()) == 1 => {
                    EVP_PKEY_CTX_set_params(context, told.tell());
                    EVP_PKEY_decrypt(context, room.as_mut_ptr(), &mut len, text.as_ptr(), text.len());
                }
                2 if EVP_PKEY_derive_init_ex(context, params.tell()) == 1 => {
                    EVP_PKEY_CTX_set_params(context, told.tell());
                    if EVP_PKEY_derive_set_peer_ex(context, key, 0) == 1 {
                        EVP_PKEY_derive(context, room.as_mut_ptr(), &mut len);
                    }
                }
                _ => {}
            }
            EVP_PKEY_CTX_free(context);
        }
        EVP_PKEY_free(key);
    }
}

/// Keys of ML-KEM-768 as files that may be damaged: any that is read has as much as it must.
fn file(bytes: &mut Bytes<'_>) {
    let algorithm = [0x30, 0x0b, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x04, 0x02];
    let value = |tag: u8, parts: &[&[u8]]| {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let head = match len {
            0..=127 => vec![tag, len as u8],
            128..=255 => vec![tag, 0x81, len as u8],
            _ => vec![tag, 0x82, (len >> 8) as u8, len as u8],
        };
        [&head[..], &parts.concat()].concat()
    };
    let (own, seed) = (value(4, &[ml_kem()]), value(4, &[&[7; 64]]));
    let is_public = bytes.byte() < 80;
    let mut der = if is_public {
        value(0x30, &[&algorithm, &value(3, &[&[0], &ml_kem()[ML_KEM_768_PUBLIC]])])
    } else {
        let keys = [value(0x80, &[&[7; 64]]), own.clone(), value(0x30, &[&seed, &own])];
        let key = &keys[bytes.below(keys.len())];
        value(0x30, &[&[2, 1, 0], &algorithm, &value(4, &[key])])
    };
    for _ in 0..bytes.below(4) {
        // Its heads more often than the rest.
        let near = bytes.byte() < 200;
        let at = bytes.below(if near { 48 } else { der.len() });
        match bytes.byte() % 4 {
            0 => der.truncate(at.max(1)),
            1 => der.extend(bytes.take(40)),
            _ => der.iter_mut().skip(at).take(1).for_each(|byte| *byte = bytes.byte()),
        }
    }
    let library = ossl::loaded().context;
    let read = if is_public { d2i_PUBKEY_ex } else { d2i_AutoPrivateKey_ex };
    // SAFETY: as in `key`.
    unsafe {
        let mut at = der.as_ptr();
        let key = read(null_mut(), &mut at, der.len() as c_long, library, OURS.as_ptr());
        if !key.is_null() {
            let mut asked = List::questions(bytes);
            EVP_PKEY_get_params(key, asked.ask());
            EVP_PKEY_free(key);
        }
    }
}

fn derivation(bytes: &mut Bytes<'_>) {
    let name = bytes.pick(&[c"HKDF", c"TLS1-PRF", c"TLS13-KDF"]);
    // SAFETY: as in `key`.
    unsafe {
        let kdf = fetched_kdf(name);
        if kdf.is_null() {
            return;
        }
        let context = EVP_KDF_CTX_new(kdf);
        for _ in 0..1 + bytes.below(3) {
            let right = [
                (c"digest", 4, b"SHA256".to_vec()),
                (c"key", 5, vec![1; 32]),
                (c"salt", 5, vec![2; 20]),
                (c"info", 5, vec![3; 10]),
                (c"secret", 5, vec![4; 48]),
                (c"seed", 5, b"master secret".to_vec()),
            ];
            let params = List::new(bytes, &right);
            let mut room = vec![0; bytes.below(700)];
            EVP_KDF_derive(context, room.as_mut_ptr(), room.len(), params.tell());
            let mut asked = List::questions(bytes);
            EVP_KDF_CTX_get_params(context, asked.ask());
        }
        EVP_KDF_CTX_free(context);
    }
}

fn fetched_kdf(name: &CStr) -> *mut Opaque {
    static FETCHED: OnceLock<[usize; 3]> = OnceLock::new();
    let all = FETCHED.get_or_init(|| {
        let context = ossl::loaded().context;
        // SAFETY: a live library context and C strings.
        [c"HKDF", c"TLS1-PRF", c"TLS13-KDF"]
            .map(|name| unsafe { EVP_KDF_fetch(context, name.as_ptr(), OURS.as_ptr()) } as usize)
    });
    let at = [c"HKDF", c"TLS1-PRF", c"TLS13-KDF"].iter().position(|known| *known == name).unwrap_or(0);
    all[at] as *mut Opaque
}

/// Settings as a door gives them: checked, and told why not, in one line that fits its room.
fn settings(bytes: &mut Bytes<'_>) {
    let table = ossl::loaded().table;
    let texts: Vec<[CString; 2]> = (0..1 + bytes.below(4))
        .filter_map(|_| {
            let known = wattlock_provider::settings::KEYS;
            let key = match bytes.byte() {
                at @ 0..=239 => known[usize::from(at) % known.len()].0.to_owned(),
                _ => CString::new(bytes.part()).ok()?,
            };
            Some([key, CString::new(bytes.part()).ok()?])
        })
        .collect();
    let list: Vec<Setting> =
        texts.iter().map(|[key, value]| Setting { key: key.as_ptr(), value: value.as_ptr() }).collect();
    let mut words = vec![0xee_u8; bytes.below(200)];
    let room = words.len();
    // SAFETY: C strings, as many as are said; room as long as is said.
    let good =
        unsafe { (table.check)(table.provider, list.as_ptr(), list.len(), words.as_mut_ptr().cast(), room) };
    if good != 1 && room > 0 {
        let said = CStr::from_bytes_until_nul(&words).expect("words have an end");
        assert!(!said.to_bytes().contains(&b'\n'), "{said:?}");
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    match bytes.byte() % 8 {
        0..=2 => cipher(&mut bytes),
        3 => key(&mut bytes),
        4 if bytes.0.first().is_some_and(|byte| *byte >= 128) => file(&mut bytes),
        4 => key(&mut bytes),
        5..=6 => derivation(&mut bytes),
        _ => settings(&mut bytes),
    }
    // SAFETY: this thread's own queue.
    unsafe { ERR_clear_error() };
});
