//! AES-GCM by our own kernels, with every instruction set this machine has, against AWS-LC and against `software`: at
//! every length at which something changes, in one piece and in several, where the counter wraps, and what becomes of
//! forgeries.
#![allow(clippy::unwrap_used, reason = "tests")]

use wattlock_core::{Algorithm, Data, Engine, Error, Key, Kind, Request};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

/// The instruction sets with kernels of ours that this machine has, widest first. (Without any of them it is AWS-LC.)
fn ours() -> Vec<Instruction> {
    let whole = Cpu::detect();
    [whole, Cpu { vaes512: None, ..whole }].map(Instruction::with).into()
}

#[derive(Clone, Copy)]
struct Size {
    algorithm: Algorithm,
    seal: Kind,
    open: Kind,
    ctr: Kind,
}

const SIZES: [Size; 3] = [
    Size {
        algorithm: Algorithm::Aes128Gcm,
        seal: Kind::Aes128GcmSeal,
        open: Kind::Aes128GcmOpen,
        ctr: Kind::Aes128Ctr,
    },
    Size {
        algorithm: Algorithm::Aes192Gcm,
        seal: Kind::Aes192GcmSeal,
        open: Kind::Aes192GcmOpen,
        ctr: Kind::Aes192Ctr,
    },
    Size {
        algorithm: Algorithm::Aes256Gcm,
        seal: Kind::Aes256GcmSeal,
        open: Kind::Aes256GcmOpen,
        ctr: Kind::Aes256Ctr,
    },
];

fn key(algorithm: Algorithm) -> Key {
    let bytes: [u8; 32] = std::array::from_fn(|i| (i * 29) as u8 ^ 0xa7);
    Key::symmetric(algorithm, &bytes[..algorithm.key_len().unwrap()]).unwrap()
}

/// A key that only the named engine ever expands.
struct Side<'e> {
    engine: &'e dyn Engine,
    size: Size,
    key: Key,
}

type Sealed = (Vec<u8>, [u8; 16]);

impl Side<'_> {
    fn new(engine: &dyn Engine, size: Size) -> Side<'_> {
        Side { engine, size, key: key(size.algorithm) }
    }

    fn run(
        &self,
        kind: Kind,
        nonce: &[u8; 12],
        aad: &[u8],
        data: Data<'_>,
        tag: &mut [u8; 16],
    ) -> Result<usize, Error> {
        let mut request = Request { nonce, aad, tag, ..Request::new(kind, &self.key, data) };
        request.validate()?;
        self.engine.execute(&mut request)
    }

    fn seal(&self, nonce: &[u8; 12], aad: &[u8], message: &[u8]) -> Sealed {
        let (mut out, mut tag) = (vec![0; message.len()], [0; 16]);
        let data = Data::Apart { from: message, to: &mut out };
        assert_eq!(self.run(self.size.seal, nonce, aad, data, &mut tag), Ok(message.len()));
        (out, tag)
    }

    fn seal_in_place(&self, nonce: &[u8; 12], aad: &[u8], message: &[u8]) -> Sealed {
        let (mut data, mut tag) = (message.to_vec(), [0; 16]);
        let done = self.run(self.size.seal, nonce, aad, Data::InPlace(&mut data), &mut tag);
        assert_eq!(done, Ok(message.len()));
        (data, tag)
    }

    fn open(&self, nonce: &[u8; 12], aad: &[u8], data: Data<'_>, mut tag: [u8; 16]) -> Result<usize, Error> {
        self.run(self.size.open, nonce, aad, data, &mut tag)
    }

    /// In pieces of the lengths given, over and over.
    fn seal_in_pieces(&self, nonce: &[u8], aad: &[u8], message: &[u8], pieces: &[usize]) -> Sealed {
        let mut stream = self.engine.stream(self.size.seal, &self.key).unwrap();
        let (mut data, mut tag) = (message.to_vec(), [0; 16]);
        stream.start(nonce).unwrap();
        let mut cuts = pieces.iter().cycle();
        let mut rest = aad;
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            stream.aad(piece).unwrap();
            rest = behind;
        }
        let mut rest = &mut data[..];
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at_mut(rest.len().min(*cuts.next().unwrap()));
            stream.update(Data::InPlace(piece)).unwrap();
            rest = behind;
        }
        stream.finish(&mut tag).unwrap();
        (data, tag)
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 11 + i / 239) as u8).collect()
}

fn nonce(number: usize) -> [u8; 12] {
    let mut nonce = [0x5a; 12];
    nonce[4..].copy_from_slice(&(number as u64).to_le_bytes());
    nonce
}

/// Every length up to more than two batches of the widest kernel, and both sides of larger ones: of batches, of the
/// pages of the counter, and of where its cache begins.
fn lengths() -> impl Iterator<Item = usize> {
    let around = |middle: usize| [middle - 33, middle - 16, middle - 1, middle, middle + 1, middle + 31];
    let large = [2048, 4096, 8192, 12_288, 12_800, 16_384, 20_480, 65_536, 131_072];
    (0..=1100).chain(large.into_iter().flat_map(around))
}

#[test]
fn seals_as_aws_lc_and_software_do_and_opens_again() {
    let (library, software) = (Instruction::with(Cpu::PLAIN), Software::new());
    for size in SIZES {
        let (library, software) = (Side::new(&library, size), Side::new(&software, size));
        let ours = ours();
        let ours: Vec<_> = ours.iter().map(|engine| Side::new(engine, size)).collect();
        for len in lengths() {
            let (message, aad, nonce) = (pattern(len), pattern(len % 67), nonce(len));
            let right = library.seal(&nonce, &aad, &message);
            if len < 300 || len % 5 == 0 {
                assert!(right == software.seal(&nonce, &aad, &message), "AWS-LC and software, {len}");
            }
            for side in &ours {
                let what = &side.engine.description().detail;
                assert!(right == side.seal(&nonce, &aad, &message), "{len} apart: {what}");
                assert!(right == side.seal_in_place(&nonce, &aad, &message), "{len} in place: {what}");
                let (mut sealed, tag) = right.clone();
                let mut out = vec![0xaa; len + 3];
                let data = Data::Apart { from: &sealed, to: &mut out };
                assert_eq!(side.open(&nonce, &aad, data, tag), Ok(len), "{what}");
                assert!(out[..len] == message && out[len..] == [0xaa; 3], "{len} opened apart: {what}");
                assert_eq!(side.open(&nonce, &aad, Data::InPlace(&mut sealed), tag), Ok(len), "{what}");
                assert!(sealed == message, "{len} opened in place: {what}");
            }
        }
    }
}

#[test]
fn associated_data_of_any_length_counts() {
    let library = Instruction::with(Cpu::PLAIN);
    let library = Side::new(&library, SIZES[2]);
    let (message, aad) = (pattern(1000), pattern(1200));
    for engine in ours() {
        let side = Side::new(&engine, SIZES[2]);
        for len in 0..=aad.len() {
            let aad = &aad[..len];
            for message in [&message[..], &message[..7], &[]] {
                let right = library.seal(&nonce(1), aad, message);
                assert!(side.seal(&nonce(1), aad, message) == right, "{len} and {}", message.len());
            }
        }
    }
}

#[test]
fn a_cut_anywhere_changes_nothing() {
    let software = Software::new();
    let software = Side::new(&software, SIZES[0]);
    let (message, aad) = (pattern(1500), pattern(100));
    let right = software.seal(&nonce(2), &aad, &message);
    let long = pattern(40_000);
    let right_long = software.seal(&nonce(2), &aad, &long);
    for engine in ours() {
        let side = Side::new(&engine, SIZES[0]);
        for first in 1..=700 {
            for rest in [1500, 19, 256] {
                let sealed = side.seal_in_pieces(&nonce(2), &aad, &message, &[first, rest]);
                assert!(sealed == right, "{first}, then {rest}");
            }
        }
        // Pieces long enough for the counter's cache, each beginning at another counter.
        for first in (1..6000).step_by(241) {
            let sealed = side.seal_in_pieces(&nonce(2), &aad, &long, &[first, 16_384]);
            assert!(sealed == right_long, "{first}, then 16384");
        }
    }
}

/// The product in GCM's field, blocks as big-endian integers (SP 800-38D algorithm 1).
fn times(x: u128, y: u128) -> u128 {
    let (mut z, mut v) = (0, y);
    for i in 0..128 {
        if x >> (127 - i) & 1 == 1 {
            z ^= v;
        }
        v = if v & 1 == 1 { v >> 1 ^ 0xe1 << 120 } else { v >> 1 };
    }
    z
}

/// x to the 2^128 - 2.
fn inverse(x: u128) -> u128 {
    let mut out = 1 << 127;
    let mut square = x;
    for _ in 1..128 {
        square = times(square, square);
        out = times(out, square);
    }
    out
}

/// Keystream from a counter block on, by counter mode.
fn keystream(side: &Side<'_>, first: u128, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let key = Key::symmetric(side.size.ctr.info().algorithm, side.key.bytes()).unwrap();
    let nonce = first.to_be_bytes();
    let request = Request::new(side.size.ctr, &key, Data::InPlace(&mut out));
    side.engine.execute(&mut Request { nonce: &nonce, ..request }).unwrap();
    out
}

/// A nonce of 16 bytes goes through the hash (SP 800-38D section 7.1 step 2), which can be inverted: so the counter can
/// be made to begin anywhere.
#[test]
fn counter_wraps_in_its_last_32_bits_alone() {
    let software = Software::new();
    for size in SIZES {
        let plain = Side::new(&software, size);
        let h = keystream(&plain, 0, 16).try_into().map(u128::from_be_bytes).unwrap();
        let back = inverse(h);
        assert_eq!(times(h, back), 1 << 127);
        let upper = 0x0123_4567_89ab_cdef_fedc_ba98_u128 << 32;
        for before in [0u32, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 64, 100, 250, 257, 511, 700, 900] {
            let first = upper | u128::from(u32::MAX - before);
            // J = (N H + 128) H.
            let nonce = times(times(first, back) ^ 128, back).to_be_bytes();
            let len = 20_011;
            let message = vec![0; len];
            // The blocks up to the wrap, and those behind it; the first counter is the tag's.
            let head = (16 * before as usize).min(len);
            let mut right = keystream(&plain, first + 1, head);
            right.extend(keystream(&plain, upper, len - head));
            let (sealed, tag) = plain.seal_in_pieces(&nonce, &[], &message, &[len]);
            assert!(sealed == right, "software, {before} before the wrap");
            for engine in ours() {
                let side = Side::new(&engine, size);
                for pieces in [&[len][..], &[16_000, 3], &[1000]] {
                    let ours = side.seal_in_pieces(&nonce, &[], &message, pieces);
                    assert!(ours.0 == right, "{before} before the wrap, pieces of {}", pieces[0]);
                    assert_eq!(ours.1, tag);
                }
            }
        }
    }
}

#[test]
fn a_nonce_of_any_length_is_hashed_as_software_hashes_it() {
    let software = Software::new();
    let software = Side::new(&software, SIZES[2]);
    let (message, long) = (pattern(100), pattern(1300));
    for engine in ours() {
        let side = Side::new(&engine, SIZES[2]);
        for len in (1..300).chain([511, 512, 513, 1299]) {
            let nonce = &long[..len];
            let right = software.seal_in_pieces(nonce, &[5; 13], &message, &[200]);
            assert!(side.seal_in_pieces(nonce, &[5; 13], &message, &[200]) == right, "{len}");
        }
    }
}

#[test]
fn forgery_of_any_part_is_refused_and_leaves_zeros() {
    for engine in ours() {
        let side = Side::new(&engine, SIZES[2]);
        for len in [0usize, 1, 16, 100, 256, 512, 1500, 13_000] {
            let (nonce, aad, message) = (nonce(len), pattern(20), pattern(len));
            let (sealed, tag) = side.seal(&nonce, &aad, &message);
            let flipped = |bytes: &[u8], at: usize| {
                let mut bytes = bytes.to_vec();
                bytes[at] ^= 1 << (at % 8);
                bytes
            };
            let mut forgeries = Vec::new();
            for at in 0..16 {
                forgeries.push((nonce, aad.clone(), sealed.clone(), flipped(&tag, at).try_into().unwrap()));
            }
            for at in [0, 15, 16, 31, 32, 63, 255, 256, 511, 512, len / 2, len.wrapping_sub(1)] {
                if at < len {
                    forgeries.push((nonce, aad.clone(), flipped(&sealed, at), tag));
                }
            }
            for at in 0..20 {
                forgeries.push((nonce, flipped(&aad, at), sealed.clone(), tag));
            }
            forgeries.push((nonce, aad[..19].to_vec(), sealed.clone(), tag));
            forgeries.push((flipped(&nonce, 3).try_into().unwrap(), aad.clone(), sealed.clone(), tag));
            if len > 0 {
                forgeries.push((nonce, aad.clone(), sealed[..len - 1].to_vec(), tag));
            }
            for (nonce, aad, mut sealed, tag) in forgeries {
                let mut out = vec![0xaa; sealed.len() + 9];
                let (inside, beyond) = out.split_at_mut(sealed.len());
                let data = Data::Apart { from: &sealed, to: inside };
                assert_eq!(side.open(&nonce, &aad, data, tag), Err(Error::Authentication));
                assert!(inside.iter().all(|byte| *byte == 0));
                assert!(beyond.iter().all(|byte| *byte == 0xaa));
                let outcome = side.open(&nonce, &aad, Data::InPlace(&mut sealed), tag);
                assert_eq!(outcome, Err(Error::Authentication));
                assert!(sealed.iter().all(|byte| *byte == 0));
            }
        }
    }
}
