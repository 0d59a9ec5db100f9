//! Descriptions of runs, many messages in one request: what a caller of the C library or of Python says of offsets,
//! lengths, nonces and associated data. What is taken is sealed, opened again, and touches nothing between messages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wattlock_core::{
    Algorithm, Data, Description, Engine, EngineClass, Error, Key, Kind, KindSet, Request, Run, Span, execute,
};
use wattlock_door::Crypto;
use wattlock_fuzz::{Bytes, Portable};

struct One(Description);

impl Engine for One {
    fn description(&self) -> &Description {
        &self.0
    }

    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        Portable.run(request)
    }
}

fn odd(bytes: &mut Bytes<'_>) -> usize {
    match bytes.byte() {
        small @ 0..=249 => usize::from(small),
        250 | 251 => usize::MAX - bytes.below(40),
        252 | 253 => 1 << (bytes.byte() % 64),
        _ => bytes.number(8) as usize,
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    let kinds = [
        Kind::Aes256GcmSeal,
        Kind::Aes256CbcEncrypt,
        Kind::ChaCha20Poly1305Seal,
        Kind::Aes256SivSeal,
        Kind::Sha512,
    ];
    let kind = bytes.pick(&kinds);
    let len = bytes.below(600);
    let count = bytes.below(6);
    let run = match bytes.byte() % 2 {
        0 => Run::Stride(odd(&mut bytes)),
        _ => {
            let mut free = 0_usize;
            let span = |_| {
                let (gap, len) = (bytes.byte(), odd(&mut bytes));
                let at = if gap > 250 { odd(&mut bytes) } else { free.wrapping_add(usize::from(gap % 9)) };
                free = at.wrapping_add(len).wrapping_add(kind.info().tag);
                Span { at, len, aad_at: odd(&mut bytes), aad_len: odd(&mut bytes) % 70 }
            };
            Run::Spans((0..count).map(span).collect())
        }
    };
    let messages = run.count(len);
    let each = if kind == Kind::Aes256CbcEncrypt { 16 } else { 12 };
    let nonce_len = match bytes.byte() {
        0 => bytes.below(200),
        _ => messages.saturating_mul(each).min(4096),
    };
    let nonces: Vec<u8> = (0..nonce_len).map(|at| at as u8).collect();
    let aad: Vec<u8> = (0..bytes.below(400)).map(|at| at as u8).collect();
    let secret = [9; 64];
    let key = match kind {
        Kind::Sha512 => Ok(Key::none_owned()),
        Kind::Aes256SivSeal => Key::symmetric(Algorithm::Aes256Siv, &secret),
        _ => Key::symmetric(kind.info().algorithm, &secret[..32]),
    };
    let key = key.expect("a key");
    let mut data: Vec<u8> = (0..len).map(|at| at as u8 | 0x80).collect();
    let plain = data.clone();
    let name = Description {
        name: "portable",
        class: EngineClass::Software,
        inline: KindSet::ALL,
        queued: KindSet::EMPTY,
        detail: String::new(),
    };
    let engine = One(name);
    let mut request = Request {
        nonce: &nonces,
        aad: &aad,
        run: Some(&run),
        ..Request::new(kind, &key, Data::InPlace(&mut data))
    };
    let _ = request.shape();
    if request.validate().is_err() {
        return;
    }
    execute(&engine, &mut request).expect("what is valid can be done");
    let mut touched = vec![false; len];
    for index in 0..messages {
        let span = run.span(kind, index, len, aad.len());
        touched[span.at..span.at + span.len + kind.info().tag].fill(true);
    }
    let kept =
        data.iter().zip(&plain).zip(&touched).all(|((now, before), touched)| *touched || now == before);
    assert!(kept, "bytes between messages were written");
    let opens = match kind {
        Kind::Aes256GcmSeal => Kind::Aes256GcmOpen,
        Kind::ChaCha20Poly1305Seal => Kind::ChaCha20Poly1305Open,
        _ => return,
    };
    let data = Data::InPlace(&mut data);
    let mut request =
        Request { nonce: &nonces, aad: &aad, run: Some(&run), ..Request::new(opens, &key, data) };
    execute(&engine, &mut request).expect("what was sealed opens");
    for index in 0..messages {
        let span = run.span(opens, index, len, aad.len());
        assert!(request.data.input()[span.at..][..span.len] == plain[span.at..][..span.len]);
    }
});
