//! What the kernels touch: exactly the buffers they were given, at every length and misalignment, in place and apart,
//! with every instruction set this machine has.
#![allow(unsafe_code, reason = "memory maps with unreadable pages around them")]

use wattlock_core::{Algorithm, Data, Engine, Error, Key, Kind, Request};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;

const PAGE: usize = 4096;
/// Readable bytes between the guards.
const ROOM: usize = 4 * PAGE;

/// `ROOM` bytes with an inaccessible page directly before and behind.
struct Guarded(*mut u8);

impl Guarded {
    fn new() -> Guarded {
        // SAFETY: a fresh private map of our own, of which the middle becomes accessible.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let map = libc::mmap(std::ptr::null_mut(), ROOM + 2 * PAGE, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            let room = map.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(room.cast(), ROOM, libc::PROT_READ | libc::PROT_WRITE), 0);
            Guarded(room)
        }
    }

    /// The last `len` bytes before the guard behind.
    fn at_end(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: `len` bytes of the accessible middle, borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(ROOM - len), len) }
    }

    /// The first `len` bytes behind the guard before.
    fn at_start(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0, len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the map that `new` made, no longer in use.
        unsafe { libc::munmap(self.0.sub(PAGE).cast(), ROOM + 2 * PAGE) };
    }
}

/// One kind with a key that only the named engine ever expands.
struct Work {
    kind: Kind,
    key: Key,
    nonce: Vec<u8>,
}

impl Work {
    fn new(kind: Kind) -> Work {
        let info = kind.info();
        let len = info.algorithm.key_len().expect("symmetric kinds only");
        let bytes: Vec<u8> = (0..len as u8).map(|i| i.wrapping_mul(73) ^ 0x5c).collect();
        let nonce = if info.tag > 0 { 12 } else { 16 };
        let key = Key::symmetric(info.algorithm, &bytes).expect("as long as the algorithm wants");
        Work { kind, key, nonce: (0..nonce).map(|i| 0xf0 ^ i).collect() }
    }

    fn run(&self, engine: &Instruction, data: Data<'_>, tag: &mut [u8]) -> Result<usize, Error> {
        let request = Request {
            nonce: &self.nonce,
            aad: b"associated",
            tag,
            ..Request::new(self.kind, &self.key, data)
        };
        let aad = if self.kind.info().tag > 0 { request.aad } else { &[] };
        let mut request = Request { aad, ..request };
        request.validate()?;
        engine.execute(&mut request)
    }

    fn takes(&self, len: usize) -> bool {
        len >= self.kind.info().least && len.is_multiple_of(self.kind.info().multiple)
    }

    fn tag(&self) -> Vec<u8> {
        vec![0; self.kind.info().tag]
    }
}

fn engines() -> Vec<Instruction> {
    let whole = Cpu::detect();
    let ymm = Cpu { vaes512: None, ifma512: None, ..whole };
    let xmm = Cpu { vaes256: None, ..ymm };
    [whole, ymm, xmm, Cpu::PLAIN].map(Instruction::with).into()
}

const KINDS: &[Kind] = &[
    Kind::Aes128Ctr,
    Kind::Aes192Ctr,
    Kind::Aes256Ctr,
    Kind::Aes128CbcEncrypt,
    Kind::Aes192CbcEncrypt,
    Kind::Aes256CbcEncrypt,
    Kind::Aes128CbcDecrypt,
    Kind::Aes192CbcDecrypt,
    Kind::Aes256CbcDecrypt,
    Kind::Aes128XtsEncrypt,
    Kind::Aes128XtsDecrypt,
    Kind::Aes256XtsEncrypt,
    Kind::Aes256XtsDecrypt,
    Kind::Aes128GcmSeal,
    Kind::Aes256GcmSeal,
    Kind::ChaCha20Poly1305Seal,
];

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// What AWS-LC alone makes of it: the yardstick for our own kernels.
fn expected(kind: Kind, input: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (work, mut out) = (Work::new(kind), vec![0; input.len()]);
    let mut tag = work.tag();
    let data = Data::Apart { from: input, to: &mut out };
    work.run(&Instruction::with(Cpu::PLAIN), data, &mut tag).expect("the request is valid");
    (out, tag)
}

/// Lengths that end in every way our kernels can end, short of and beyond the counter cache.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=1100).chain([1472, 2047, 2049, 8191, 8192, 8193, 10_001, 16_384])
}

#[test]
fn nothing_outside_the_buffers_is_touched_at_any_length() {
    let (mut from, mut to) = (Guarded::new(), Guarded::new());
    for engine in engines() {
        for &kind in KINDS {
            let work = Work::new(kind);
            for len in lengths().filter(|len| work.takes(*len)) {
                let input = pattern(len);
                let (right, right_tag) = expected(kind, &input);
                let mut tag = work.tag();
                for end in [true, false] {
                    let (from, to) = if end {
                        (from.at_end(len), to.at_end(len))
                    } else {
                        (from.at_start(len), to.at_start(len))
                    };
                    from.copy_from_slice(&input);
                    assert_eq!(work.run(&engine, Data::Apart { from, to }, &mut tag), Ok(len));
                    assert!(to == right && tag == right_tag, "{kind:?} {len} apart");
                    assert_eq!(work.run(&engine, Data::InPlace(from), &mut tag), Ok(len));
                    assert!(from == right && tag == right_tag, "{kind:?} {len} in place");
                }
            }
        }
    }
}

#[test]
fn opening_touches_nothing_outside_the_buffers() {
    let (mut from, mut to) = (Guarded::new(), Guarded::new());
    let pairs = [
        (Kind::Aes256GcmSeal, Kind::Aes256GcmOpen),
        (Kind::ChaCha20Poly1305Seal, Kind::ChaCha20Poly1305Open),
    ];
    for engine in engines() {
        for (seal, open) in pairs {
            let work = Work::new(open);
            for len in lengths() {
                let message = pattern(len);
                let (sealed, mut tag) = expected(seal, &message);
                for end in [true, false] {
                    let (from, to) = if end {
                        (from.at_end(len), to.at_end(len))
                    } else {
                        (from.at_start(len), to.at_start(len))
                    };
                    from.copy_from_slice(&sealed);
                    assert_eq!(work.run(&engine, Data::Apart { from, to }, &mut tag), Ok(len));
                    assert!(to == message, "{open:?} {len} apart");
                    assert_eq!(work.run(&engine, Data::InPlace(from), &mut tag), Ok(len));
                    assert!(from == message, "{open:?} {len} in place");
                }
            }
        }
    }
}

#[test]
fn misalignment_changes_nothing() {
    for engine in engines() {
        for &kind in KINDS {
            let work = Work::new(kind);
            for len in [16usize, 64, 208, 592, 9_008] {
                let input = pattern(len);
                let (right, right_tag) = expected(kind, &input);
                for offset in 0..64 {
                    let mut tag = work.tag();
                    let (mut from, mut to) = (vec![0u8; len + 128], vec![0xaau8; len + 128]);
                    let (start, other) =
                        (from.as_ptr().align_offset(64) + offset, to.as_ptr().align_offset(64) + 63 - offset);
                    from[start..start + len].copy_from_slice(&input);
                    let data =
                        Data::Apart { from: &from[start..start + len], to: &mut to[other..other + len] };
                    work.run(&engine, data, &mut tag).unwrap();
                    assert!(
                        to[other..other + len] == right && tag == right_tag,
                        "{kind:?} {len} at {offset}"
                    );
                    assert!(to[..other].iter().chain(&to[other + len..]).all(|byte| *byte == 0xaa));
                }
            }
        }
    }
}

/// The counter's wrap at these widths, met by every kernel at every place within a page and a step.
#[test]
fn counter_carries_into_all_of_its_128_bits() {
    let wraps = [1u128 << 8, 1 << 16, 1 << 32, 1 << 40, 1 << 48, 1 << 64, 1 << 80, 0];
    for algorithm in [Algorithm::Aes128Ctr, Algorithm::Aes192Ctr, Algorithm::Aes256Ctr] {
        let kind = Kind::ALL.iter().copied().find(|kind| kind.info().algorithm == algorithm).unwrap();
        for wrap in wraps {
            for before in [0u128, 1, 3, 5, 31, 32, 33, 255, 300, 1000] {
                let first = (0x5a5a << 104 | wrap).wrapping_sub(before);
                let first = if wrap == 0 { 0u128.wrapping_sub(before) } else { first };
                let right = keystream_block_by_block(kind, first, 20_011);
                for engine in engines() {
                    let work = Work { nonce: first.to_be_bytes().to_vec(), ..Work::new(kind) };
                    let mut out = vec![0; right.len()];
                    work.run(&engine, Data::InPlace(&mut out), &mut []).unwrap();
                    assert!(out == right, "{kind:?} {before} before {wrap:#x}");
                }
            }
        }
    }
}

/// Keystream in requests of one block, whose counters this test adds up itself.
fn keystream_block_by_block(kind: Kind, first: u128, len: usize) -> Vec<u8> {
    let engine = Instruction::with(Cpu::PLAIN);
    let mut work = Work::new(kind);
    let mut out = vec![0; len];
    for (i, block) in out.chunks_mut(16).enumerate() {
        work.nonce = first.wrapping_add(i as u128).to_be_bytes().to_vec();
        work.run(&engine, Data::InPlace(block), &mut []).expect("the request is valid");
    }
    out
}

#[test]
fn decryption_undoes_encryption_in_place() {
    let pairs = [
        (Kind::Aes128CbcEncrypt, Kind::Aes128CbcDecrypt),
        (Kind::Aes192CbcEncrypt, Kind::Aes192CbcDecrypt),
        (Kind::Aes256CbcEncrypt, Kind::Aes256CbcDecrypt),
        (Kind::Aes128XtsEncrypt, Kind::Aes128XtsDecrypt),
        (Kind::Aes256XtsEncrypt, Kind::Aes256XtsDecrypt),
    ];
    for engine in engines() {
        for (encrypt, decrypt) in pairs {
            let (encrypt, decrypt) = (Work::new(encrypt), Work::new(decrypt));
            for len in lengths().filter(|len| encrypt.takes(*len)) {
                let input = pattern(len);
                let mut buffer = input.clone();
                encrypt.run(&engine, Data::InPlace(&mut buffer), &mut []).unwrap();
                assert!(len == 0 || buffer != input);
                decrypt.run(&engine, Data::InPlace(&mut buffer), &mut []).unwrap();
                assert!(buffer == input, "{:?} {len}", decrypt.kind);
            }
        }
    }
}

#[test]
fn forged_tag_releases_nothing() {
    let engine = Instruction::new();
    let pairs = [
        (Kind::Aes128GcmSeal, Kind::Aes128GcmOpen),
        (Kind::Aes192GcmSeal, Kind::Aes192GcmOpen),
        (Kind::Aes256GcmSeal, Kind::Aes256GcmOpen),
        (Kind::ChaCha20Poly1305Seal, Kind::ChaCha20Poly1305Open),
    ];
    for (seal, open) in pairs {
        let (seal, open) = (Work::new(seal), Work::new(open));
        for len in [0, 1, 16, 100, 5_000] {
            let (mut sealed, mut tag) = (pattern(len), [0; 16]);
            seal.run(&engine, Data::InPlace(&mut sealed), &mut tag).unwrap();
            for bit in 0..128 {
                let mut forged = tag;
                forged[bit / 8] ^= 1 << (bit % 8);
                let mut out = vec![0xaa; len + 5];
                let data = Data::Apart { from: &sealed, to: &mut out };
                assert_eq!(open.run(&engine, data, &mut forged), Err(Error::Authentication));
                assert!(out[..len].iter().all(|byte| *byte == 0));
                assert!(out[len..].iter().all(|byte| *byte == 0xaa), "beyond the message nothing is written");
                let mut buffer = sealed.clone();
                let outcome = open.run(&engine, Data::InPlace(&mut buffer), &mut forged);
                assert_eq!(outcome, Err(Error::Authentication));
                assert!(buffer.iter().all(|byte| *byte == 0));
            }
            open.run(&engine, Data::InPlace(&mut sealed), &mut tag).unwrap();
            assert_eq!(sealed, pattern(len));
        }
    }
}
