//! Once a stream is made, its messages allocate nothing, neither from Rust nor inside AWS-LC.

use wattlock_core::{Data, Engine, Key, Kind};
use wattlock_cpu::instruction::Instruction;

use crate::{LIBRARY, RUST, count_in_aws_lc};

#[test]
fn messages_in_pieces_allocate_nothing() {
    count_in_aws_lc();
    let count = || RUST.get() + LIBRARY.get();
    let engine = Instruction::new();
    let mut data = vec![0u8; 20_000];
    for &kind in Kind::ALL {
        let info = kind.info();
        let bytes: Vec<u8> = (0..info.algorithm.key_len().unwrap_or(0) as u8).collect();
        let Ok(key) = Key::symmetric(info.algorithm, &bytes) else { continue };
        let before = count();
        let Ok(mut stream) = engine.stream(kind, &key) else { continue };
        assert!(count() > before, "the counter counts");
        let nonce: &[u8] = if info.tag > 0 { &[1; 12] } else { &[1; 16] };
        let before = count();
        for _ in 0..3 {
            stream.start(nonce).unwrap();
            if info.tag > 0 {
                stream.aad(&[2; 13]).unwrap();
            }
            for piece in data.chunks_mut(if info.multiple > 1 { 16_000 } else { 6_001 }) {
                stream.update(Data::InPlace(piece)).unwrap();
            }
            let mut tag = [0; 16];
            // A wrong tag is refused without allocating too.
            stream.finish(&mut tag[..info.tag]).ok();
        }
        assert_eq!(count(), before, "{kind:?} allocates");
    }
}
