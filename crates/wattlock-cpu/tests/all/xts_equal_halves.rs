//! XTS keys whose halves are equal: nothing is encrypted with one, but what once was can be read.
#![allow(clippy::unwrap_used, reason = "tests")]

use wattlock_core::{Algorithm, Data, Engine, Error, Key, Kind, Request};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// Key half, tweak, ciphertext, and plaintext by OpenSSL 3.0.19 (`EVP_DecryptUpdate`), or by the standard.
struct Vector {
    half: Vec<u8>,
    tweak: Vec<u8>,
    sealed: Vec<u8>,
    plain: Vec<u8>,
}

/// Byte `i` of the half is `0x11 + 7 i`, of the tweak `0xa0 + i`, of the ciphertext `3 i + 1`.
fn by_openssl(half: usize, plain: &str) -> Vector {
    let plain = bytes(plain);
    Vector {
        half: (0..half).map(|i| 0x11 + 7 * i as u8).collect(),
        tweak: (0..16).map(|i| 0xa0 + i).collect(),
        sealed: (0..plain.len()).map(|i| 3 * i as u8 + 1).collect(),
        plain,
    }
}

fn vectors() -> [Vector; 5] {
    // IEEE 1619-2018, vector 1.
    let standard = Vector {
        half: vec![0; 16],
        tweak: vec![0; 16],
        sealed: bytes("917cf69ebd68b2ec9b9fe9a3eadda692cd43d2f59598ed858c02c2652fbf922e"),
        plain: vec![0; 32],
    };
    [
        standard,
        by_openssl(16, "b032285a98a445619556b509cdf63e2b"),
        by_openssl(
            16,
            "b032285a98a445619556b509cdf63e2b6a26210adfb8acb6fe9c2969cdf42e763ba39c9be731b74c2ef0693146",
        ),
        by_openssl(
            32,
            "a80a63c5692998eb001c735eb8b9696faa21c9573c3805800a34efb99b4ca7aecb5d4c4eca53154cbe61d7f7a2",
        ),
        by_openssl(
            32,
            "a80a63c5692998eb001c735eb8b9696fd710b01ee4e457738abfa67bf55378a5\
             094a915690964cb2a69e808f17bb2c101673ab770877adfc2b28d7b0e9d31310",
        ),
    ]
}

/// Kinds and key of a vector.
fn key(vector: &Vector) -> (Kind, Kind, Key) {
    let (encrypt, decrypt, algorithm) = match vector.half.len() {
        16 => (Kind::Aes128XtsEncrypt, Kind::Aes128XtsDecrypt, Algorithm::Aes128Xts),
        _ => (Kind::Aes256XtsEncrypt, Kind::Aes256XtsDecrypt, Algorithm::Aes256Xts),
    };
    (encrypt, decrypt, Key::symmetric(algorithm, &vector.half.repeat(2)).unwrap())
}

fn engines() -> [Box<dyn Engine>; 2] {
    [Box::new(Software::new()), Box::new(Instruction::new())]
}

#[test]
fn what_was_encrypted_with_equal_halves_can_be_read() {
    for (nth, vector) in vectors().iter().enumerate() {
        let (_, decrypt, key) = key(vector);
        for engine in engines() {
            let name = engine.description().name;
            let mut whole = vec![0; vector.sealed.len()];
            let data = Data::Apart { from: &vector.sealed, to: &mut whole };
            let mut request = Request { nonce: &vector.tweak, ..Request::new(decrypt, &key, data) };
            request.validate().unwrap();
            assert_eq!(engine.execute(&mut request), Ok(vector.sealed.len()), "{nth} {name}");
            assert_eq!(whole, vector.plain, "{nth} {name}");
            let mut piece = vector.sealed.clone();
            let mut stream = engine.stream(decrypt, &key).unwrap();
            stream.start(&vector.tweak).unwrap();
            stream.update(Data::InPlace(&mut piece)).unwrap();
            assert_eq!(piece, vector.plain, "{nth} {name}, as a stream");
        }
    }
}

#[test]
fn nothing_is_encrypted_with_equal_halves() {
    let refused = Error::Invalid("XTS key halves are equal");
    for vector in vectors() {
        let (encrypt, _, key) = key(&vector);
        let mut out = vec![0; vector.plain.len()];
        let data = Data::Apart { from: &vector.plain, to: &mut out };
        let request = Request { nonce: &vector.tweak, ..Request::new(encrypt, &key, data) };
        assert_eq!(request.validate(), Err(refused));
        for engine in engines() {
            let stream = engine.stream(encrypt, &key).map(drop);
            assert_eq!(stream, Err(refused), "{}", engine.description().name);
        }
    }
}
