//! Long counter-mode messages whose counter carries into each of its bytes on the way, by every width of registers there
//! is, against the software engine.
#![allow(clippy::unwrap_used, reason = "tests")]

use wattlock_core::{Data, Engine, Key, Kind, Request};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

/// Applies the key stream. The key is one of its own: a key keeps the kernels that expanded it first.
fn ctr(engine: &dyn Engine, kind: Kind, nonce: &[u8; 16], len: usize) -> Vec<u8> {
    let algorithm = kind.info().algorithm;
    let key = Key::symmetric(algorithm, &vec![7; algorithm.key_len().unwrap()]).unwrap();
    let mut data = vec![0x3c; len];
    let request = Request::new(kind, &key, Data::InPlace(&mut data));
    engine.execute(&mut Request { nonce, ..request }).unwrap();
    data
}

#[test]
fn long_messages_carry_into_every_byte_of_the_counter() {
    let cpu = Cpu::detect();
    let narrower = Cpu { vaes512: None, ..cpu };
    let widths = [cpu, narrower, Cpu { vaes256: None, ..narrower }].map(Instruction::with);
    let software = Software::new();
    for tail in 1..=16 {
        for back in [0u128, 1, 3, 4, 5, 7, 8, 15, 16, 31, 32, 33, 63, 200, 255, 256, 300, 511, 700] {
            // The counter has all ones in its last `tail` bytes, less `back`.
            let ones = u128::MAX >> (128 - 8 * tail as u32);
            let nonce = ((0x0123_4567_89ab_cdef_0123_4567_89ab_cdef & !ones) | ones).wrapping_sub(back);
            let nonce = nonce.to_be_bytes();
            for (kind, len) in [
                (Kind::Aes128Ctr, 8192),
                (Kind::Aes192Ctr, 8192 + 511),
                (Kind::Aes256Ctr, 12_345),
                (Kind::Aes128Ctr, 20_003),
            ] {
                let plain = ctr(&software, kind, &nonce, len);
                for engine in &widths {
                    let detail = &engine.description().detail;
                    assert!(
                        ctr(engine, kind, &nonce, len) == plain,
                        "{detail}: {len} bytes from {back} before a carry out of the last {tail} bytes"
                    );
                }
            }
        }
    }
}
