//! Long counter-mode messages whose counter carries into each of its bytes on the way, against the software engine.
#![allow(clippy::unwrap_used, reason = "tests")]

use wattlock_core::{Data, Engine, Key, Kind, Request};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

fn ctr(engine: &dyn Engine, key: &Key, nonce: &[u8; 16], len: usize) -> Vec<u8> {
    let mut data = vec![0x3c; len];
    let request = Request::new(Kind::Aes128Ctr, key, Data::InPlace(&mut data));
    engine.execute(&mut Request { nonce, ..request }).unwrap();
    data
}

#[test]
fn long_messages_carry_into_every_byte_of_the_counter() {
    let key = Key::symmetric(Kind::Aes128Ctr.info().algorithm, &[7; 16]).unwrap();
    let (instruction, software) = (Instruction::new(), Software::new());
    for tail in 1..=16 {
        for back in [0u128, 1, 3, 4, 5, 31, 32, 33, 63, 200, 255, 256, 300, 511, 700] {
            // The counter has all ones in its last `tail` bytes, less `back`.
            let ones = u128::MAX >> (128 - 8 * tail as u32);
            let nonce = ((0x0123_4567_89ab_cdef_0123_4567_89ab_cdef & !ones) | ones).wrapping_sub(back);
            let nonce = nonce.to_be_bytes();
            for len in [8192, 8192 + 511, 12_345, 20_003] {
                let (ours, plain) = (ctr(&instruction, &key, &nonce, len), ctr(&software, &key, &nonce, len));
                assert!(ours == plain, "{len} bytes from {back} before a carry out of the last {tail} bytes");
            }
        }
    }
}
