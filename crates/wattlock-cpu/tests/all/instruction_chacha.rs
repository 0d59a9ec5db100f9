//! ChaCha20-Poly1305 by our own kernels against AWS-LC and against `software`, at every length at which something
//! changes, and what becomes of forgeries.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use wattlock_core::{Algorithm, Data, Engine, Error, Key, Kind, Request};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

/// With our own kernels, if this machine has the instructions, and with AWS-LC.
fn engines() -> [Instruction; 2] {
    let whole = Cpu::detect();
    [whole, Cpu { ifma512: None, ..whole }].map(Instruction::with)
}

/// A key that only the named engine ever expands.
struct Side<'e> {
    engine: &'e dyn Engine,
    key: Key,
}

impl Side<'_> {
    fn new(engine: &dyn Engine) -> Side<'_> {
        let bytes: [u8; 32] = std::array::from_fn(|i| (i * 29) as u8 ^ 0xa7);
        Side { engine, key: Key::symmetric(Algorithm::ChaCha20Poly1305, &bytes).expect("32 bytes") }
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

    fn seal(&self, nonce: &[u8; 12], aad: &[u8], message: &[u8]) -> (Vec<u8>, [u8; 16]) {
        let (mut out, mut tag) = (vec![0; message.len()], [0; 16]);
        let data = Data::Apart { from: message, to: &mut out };
        assert_eq!(self.run(Kind::ChaCha20Poly1305Seal, nonce, aad, data, &mut tag), Ok(message.len()));
        (out, tag)
    }

    fn open_in_place(
        &self,
        nonce: &[u8; 12],
        aad: &[u8],
        sealed: &mut [u8],
        tag: [u8; 16],
    ) -> Result<usize, Error> {
        self.run(Kind::ChaCha20Poly1305Open, nonce, aad, Data::InPlace(sealed), &mut tag.clone())
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

/// Every length up to more than a step of each kernel, and both sides of larger ones.
fn lengths() -> impl Iterator<Item = usize> {
    let around =
        |middle: usize| [middle - 129, middle - 65, middle - 64, middle - 1, middle, middle + 1, middle + 65];
    let large = [2048, 4096, 8192, 12_288, 16_384, 65_536, 131_072, 200_000];
    (0..=1100).chain(large.into_iter().flat_map(around))
}

#[test]
fn seals_as_aws_lc_and_software_do_and_opens_again() {
    let (ours, library, software) = (engines(), Instruction::with(Cpu::PLAIN), Software::new());
    let ours = ours.each_ref().map(|engine| Side::new(engine));
    let (library, software) = (Side::new(&library), Side::new(&software));
    for len in lengths() {
        let (message, nonce) = (pattern(len), nonce(len));
        let aad = pattern(len % 67);
        let (by_library, library_tag) = library.seal(&nonce, &aad, &message);
        let (by_software, software_tag) = software.seal(&nonce, &aad, &message);
        assert!(by_library == by_software && library_tag == software_tag, "{len}: AWS-LC against software");
        for ours in &ours {
            let (mut sealed, tag) = ours.seal(&nonce, &aad, &message);
            assert!(sealed == by_library && tag == library_tag, "{len}");
            assert_eq!(ours.open_in_place(&nonce, &aad, &mut sealed, tag), Ok(len));
            assert!(sealed == message, "{len} opened");
        }
    }
}

#[test]
fn associated_data_of_any_length_counts() {
    let library = Instruction::with(Cpu::PLAIN);
    let library = Side::new(&library);
    let (message, aad) = (pattern(20_000), pattern(700));
    for (engine, message) in
        engines().iter().flat_map(|engine| [(engine, &message[..1000]), (engine, &message)])
    {
        let ours = Side::new(engine);
        for len in 0..=aad.len() {
            let aad = &aad[..len];
            assert!(ours.seal(&nonce(1), aad, message) == library.seal(&nonce(1), aad, message), "{len}");
        }
    }
}

/// Apart, the output holds zeros only; in place, the message is gone.
#[test]
fn forgery_of_any_part_is_refused_and_leaves_zeros() {
    for engine in engines() {
        forgeries_are_refused(&Side::new(&engine));
    }
}

fn forgeries_are_refused(side: &Side<'_>) {
    for len in [320, 512, 960, 1024, 1500, 4096, 16_384, 70_000] {
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
        for at in [0, 15, 16, 127, 128, 319, len / 2, len - 129, len - 17, len - 1] {
            forgeries.push((nonce, aad.clone(), flipped(&sealed, at), tag));
        }
        for at in 0..20 {
            forgeries.push((nonce, flipped(&aad, at), sealed.clone(), tag));
        }
        forgeries.push((nonce, aad[..19].to_vec(), sealed.clone(), tag));
        forgeries.push((flipped(&nonce, 3).try_into().unwrap(), aad.clone(), sealed.clone(), tag));
        forgeries.push((nonce, aad.clone(), sealed[..len - 1].to_vec(), tag));
        for (nonce, aad, mut sealed, mut tag) in forgeries {
            let mut out = vec![0xaa; sealed.len() + 9];
            let (inside, beyond) = out.split_at_mut(sealed.len());
            let data = Data::Apart { from: &sealed, to: inside };
            let outcome = side.run(Kind::ChaCha20Poly1305Open, &nonce, &aad, data, &mut tag);
            assert_eq!(outcome, Err(Error::Authentication));
            assert!(inside.iter().all(|byte| *byte == 0));
            assert!(beyond.iter().all(|byte| *byte == 0xaa));
            let outcome = side.open_in_place(&nonce, &aad, &mut sealed, tag);
            assert_eq!(outcome, Err(Error::Authentication));
            assert!(sealed.iter().all(|byte| *byte == 0));
        }
    }
}
