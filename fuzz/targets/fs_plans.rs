//! Plans of a file's ledger against a model of disk and journal: any operations, refusals and power cuts that the bytes
//! choose.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wattlock_fs::dev::plans;

fuzz_target!(|bytes: &[u8]| {
    let mut next = bytes.iter().copied();
    let mut random = 0_u64;
    plans::run(1 + bytes.len() / 8 % 40, &mut |below| {
        // Two bytes choose, and when they are used up what they were goes on by itself.
        match (next.next(), next.next()) {
            (Some(high), Some(low)) => {
                let chosen = usize::from(high) << 8 | usize::from(low);
                random = random.wrapping_mul(31).wrapping_add(chosen as u64);
                chosen % below
            }
            _ => {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) as usize % below
            }
        }
    });
});
