//! After a key's first use an inline request allocates nothing: neither from Rust nor, public keys and SHA-3 apart, inside AWS-LC.

use wattlock_core::{Engine, Family, Group, Kind, known_answers};
use wattlock_cpu::instruction::Instruction;

use crate::{LIBRARY, RUST, count_in_aws_lc};

#[test]
fn inline_requests_allocate_nothing_after_the_first() {
    count_in_aws_lc();
    let engine = Instruction::new();
    for &kind in Kind::ALL {
        for answer in known_answers(kind) {
            let mut request = answer.request;
            let fresh = (RUST.get(), LIBRARY.get());
            if engine.execute(&mut request.view()).is_err() {
                continue;
            }
            let before = (RUST.get(), LIBRARY.get());
            // An X25519 key is used as it is: one that is used once costs nothing but its agreement.
            assert!(kind != Kind::X25519Derive || before == fresh, "{kind:?} expands its key");
            for _ in 0..3 {
                engine.execute(&mut request.view()).unwrap();
            }
            assert_eq!(RUST.get(), before.0, "{kind:?} allocates in Rust");
            let big_numbers = matches!(kind.info().family, Family::Sign | Family::Agree | Family::Generate);
            let sha3 = kind.info().group == Group::Sha3;
            assert!(big_numbers || sha3 || LIBRARY.get() == before.1, "{kind:?} allocates in AWS-LC");
        }
    }
    assert!(RUST.get() > 0 && LIBRARY.get() > 0, "the counters count");
}
