//! Everything that needs no process and no allocator of its own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod compress;
mod ctr_carries;
mod every_width;
mod instruction_chacha;
mod instruction_conforms;
mod instruction_gcm;
mod instruction_keys;
mod instruction_memory;
mod lanes_bulk;
mod lanes_conform;
mod lanes_kem;
mod lanes_openssl;
mod lanes_rsa;
mod lanes_sha3;
mod lanes_x25519;
mod software_agree;
mod software_conform;
mod streams;
mod xts_equal_halves;
