//! AES-CTR and -XTS of every length around those at which the kernels change registers, by each of their widths: all give
//! what AWS-LC's single blocks give. (Few enough to be tried on an emulated CPU, `scripts/test/avx512.sh`.)
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use wattlock_core::{Data, Engine, Key, Kind, Request};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;

const MOST: usize = 700;

fn bytes<const N: usize>(factor: usize) -> [u8; N] {
    std::array::from_fn(|i| (i * factor + i / 251) as u8)
}

fn by_request(engine: &Instruction, kind: Kind, nonce: &[u8; 16], input: &[u8]) -> Vec<u8> {
    let mut output = vec![0; input.len()];
    // A key of its own: one keeps the kernels that expanded it first.
    let key = key(kind);
    let request = Request::new(kind, &key, Data::Apart { from: input, to: &mut output });
    engine.execute(&mut Request { nonce, ..request }).unwrap();
    output
}

fn by_stream(engine: &Instruction, kind: Kind, nonce: &[u8; 16], input: &[u8]) -> Vec<u8> {
    let (mut output, mut stream) = (input.to_vec(), engine.stream(kind, &key(kind)).unwrap());
    stream.start(nonce).unwrap();
    stream.update(Data::InPlace(&mut output)).unwrap();
    output
}

fn key(kind: Kind) -> Key {
    let algorithm = kind.info().algorithm;
    Key::symmetric(algorithm, &bytes::<64>(7)[..algorithm.key_len().unwrap()]).unwrap()
}

#[test]
fn every_width_gives_the_same_for_every_length() {
    let cpu = Cpu::detect();
    let narrower = Cpu { vaes512: None, ..cpu };
    let widths = [cpu, narrower, Cpu { vaes256: None, ..narrower }].map(Instruction::with);
    let plain = Instruction::with(Cpu::PLAIN);
    let input = bytes::<MOST>(3);
    // The second lets the counter's lower half wrap within most of the messages.
    let nonces =
        [bytes(11), [0xff; 16], *b"\x01\x02\x03\x04\x05\x06\x07\x08\xff\xff\xff\xff\xff\xff\xff\xf0"];
    let kinds = [
        Kind::Aes128Ctr,
        Kind::Aes192Ctr,
        Kind::Aes256Ctr,
        Kind::Aes128XtsEncrypt,
        Kind::Aes128XtsDecrypt,
        Kind::Aes256XtsEncrypt,
        Kind::Aes256XtsDecrypt,
    ];
    for (kind, nonce) in kinds.into_iter().flat_map(|kind| nonces.map(|nonce| (kind, nonce))) {
        // Each length up to a stride of the narrowest vectors, then those around blocks.
        let around = |len: &usize| *len <= 300 || matches!(len % 16, 0 | 1 | 15);
        for len in (kind.info().least..=MOST).filter(around) {
            let input = &input[..len];
            let expected = by_request(&plain, kind, &nonce, input);
            for engine in &widths {
                assert!(by_request(engine, kind, &nonce, input) == expected, "{kind:?} of {len}");
                assert!(by_stream(engine, kind, &nonce, input) == expected, "{kind:?} of {len} in a stream");
            }
        }
    }
}
