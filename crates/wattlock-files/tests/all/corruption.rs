//! Every way to damage a file has its test and its error. Each is opened as a stream and as a file; both must agree,
//! leave the input alone, and leave no output.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use common::*;
use wattlock_files::{Error, Format, age, format::age::parse_header, keys};

const CHUNK: usize = 1 << 14;
const STRIDE: usize = CHUNK + 16;
const SEGMENT: usize = 1 << 20;

/// Where the payload's salt starts.
fn salt_at(sealed: &[u8]) -> usize {
    16 + u32::from_be_bytes(sealed[12..16].try_into().unwrap()) as usize
}

/// Where chunk `number` starts.
fn chunk_at(sealed: &[u8], number: usize) -> usize {
    salt_at(sealed) + 56 + number * STRIDE
}

fn damaged(len: usize, damage: impl FnOnce(&mut Vec<u8>)) -> Error {
    let pair = Pair::new();
    let mut sealed = seal(&pair.sealer(), &content(len));
    damage(&mut sealed);
    open(&pair.opener(), &sealed).unwrap_err()
}

#[test]
fn wrong_key_does_not_open() {
    for format in FORMATS {
        let sealed = seal(&Pair::new().sealer().format(format), b"secret");
        assert!(matches!(open(&Pair::new().opener(), &sealed), Err(Error::NoMatchingKey)));
    }
}

#[test]
fn empty_file_says_so() {
    assert!(matches!(damaged(1, |sealed| sealed.clear()), Error::Empty));
}

#[test]
fn something_else_is_not_a_sealed_file() {
    assert!(matches!(
        damaged(1, |sealed| *sealed = b"%PDF-1.7 and so on, for a while".to_vec()),
        Error::NotSealed
    ));
    assert!(matches!(damaged(1, |sealed| sealed[0] ^= 1), Error::NotSealed));
}

#[test]
fn unknown_version_is_named() {
    assert!(
        matches!(damaged(1, |sealed| sealed[11] = 9), Error::UnknownVersion { version, .. } if version == "9")
    );
}

#[test]
fn absurd_header_length_is_refused() {
    let error = damaged(1, |sealed| sealed[12..16].copy_from_slice(&0xffff_fff0u32.to_be_bytes()));
    assert!(matches!(error, Error::HeaderTooLarge { .. }));
}

#[test]
fn header_without_a_key_is_refused() {
    assert!(matches!(damaged(1, |sealed| sealed[12..16].fill(0)), Error::BadHeader(_)));
}

#[test]
fn every_bit_of_the_header_counts() {
    let pair = Pair::new();
    let (sealed, opener) = (seal(&pair.sealer(), b"secret"), pair.opener());
    for at in 0..chunk_at(&sealed, 0) {
        for bit in 0..8 {
            let mut altered = sealed.clone();
            altered[at] ^= 1 << bit;
            let (result, plain) = open_stream(&opener, &altered);
            assert!(result.is_err() && plain.is_empty(), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn flipped_bit_in_salt_or_commitment_breaks_the_commitment() {
    assert!(matches!(
        damaged(9, |sealed| {
            let at = salt_at(sealed);
            sealed[at] ^= 1
        }),
        Error::Commitment
    ));
    assert!(matches!(
        damaged(9, |sealed| {
            let at = salt_at(sealed);
            sealed[at + 55] ^= 128
        }),
        Error::Commitment
    ));
}

#[test]
fn header_of_another_file_breaks_the_commitment() {
    // Same input key under another header: only the context tells. A grease stanza is not needed for that; the same
    // key file with one more recipient could be made only with the key, so the age file's MAC is what breaks.
    let pair = Pair::new();
    let (one, other) = (seal(&pair.sealer(), b"one"), seal(&pair.sealer(), b"two"));
    let mut mixed = one[..salt_at(&one)].to_vec();
    mixed.extend_from_slice(&other[salt_at(&other)..]);
    assert!(matches!(open(&pair.opener(), &mixed), Err(Error::Commitment)));
}

#[test]
fn flipped_bit_in_a_chunk_names_the_chunk() {
    for (chunk, within) in [(0, 0), (1, CHUNK - 1), (2, STRIDE - 1), (70, 5), (128, 1)] {
        let error = damaged(2 * SEGMENT + 3 * CHUNK, |sealed| {
            let at = chunk_at(sealed, chunk);
            sealed[at + within] ^= 4;
        });
        assert!(matches!(error, Error::Corrupted { chunk: c } if c == chunk as u64), "{chunk}: {error}");
    }
}

#[test]
fn of_several_damaged_chunks_the_first_is_named() {
    let error = damaged(4 * SEGMENT, |sealed| {
        for chunk in [250, 190, 130, 66] {
            let at = chunk_at(sealed, chunk);
            sealed[at] ^= 1;
        }
    });
    assert!(matches!(error, Error::Corrupted { chunk: 66 }), "{error}");
}

#[test]
fn flipped_bit_in_the_last_chunk_damages_the_end() {
    let last = |sealed: &mut Vec<u8>| *sealed.last_mut().unwrap() ^= 1;
    assert!(matches!(damaged(3 * CHUNK + 5, last), Error::DamagedEnd { chunk: 3 }));
    assert!(matches!(damaged(0, last), Error::DamagedEnd { chunk: 0 }));
}

#[test]
fn swapped_chunks_are_noticed() {
    let error = damaged(5 * CHUNK, |sealed| {
        let at = chunk_at(sealed, 1);
        let (one, other) = sealed[at..at + 2 * STRIDE].split_at_mut(STRIDE);
        one.swap_with_slice(other);
    });
    assert!(matches!(error, Error::Corrupted { chunk: 1 }));
}

#[test]
fn repeated_and_removed_chunks_are_noticed() {
    let repeated = damaged(5 * CHUNK, |sealed| {
        let at = chunk_at(sealed, 1);
        let chunk = sealed[at..at + STRIDE].to_vec();
        sealed.splice(at..at, chunk);
    });
    assert!(matches!(repeated, Error::Corrupted { chunk: 2 }), "{repeated}");
    let removed = damaged(5 * CHUNK, |sealed| {
        let at = chunk_at(sealed, 1);
        sealed.drain(at..at + STRIDE);
    });
    assert!(matches!(removed, Error::Corrupted { chunk: 1 }), "{removed}");
}

#[test]
fn cut_between_chunks_is_truncated() {
    for (len, keep) in [(3 * CHUNK, 3), (3 * CHUNK + 1, 1), (5, 0), (2 * SEGMENT, 64), (2 * SEGMENT, 128)] {
        let error = damaged(len, |sealed| sealed.truncate(chunk_at(sealed, keep)));
        assert!(matches!(error, Error::Truncated), "{len} {keep}: {error}");
        // A few bytes more than whole chunks, too few for a tag.
        let error = damaged(len, |sealed| sealed.truncate(chunk_at(sealed, keep) + 15));
        assert!(matches!(error, Error::Truncated), "{len} {keep}: {error}");
    }
}

#[test]
fn cut_inside_the_last_chunk_damages_the_end() {
    for cut in [1, 17, 400] {
        let error = damaged(3 * CHUNK + 500, |sealed| sealed.truncate(sealed.len() - cut));
        assert!(matches!(error, Error::DamagedEnd { chunk: 3 }), "{cut}: {error}");
    }
    let error = damaged(3 * CHUNK + 500, |sealed| sealed.truncate(chunk_at(sealed, 1) + 900));
    assert!(matches!(error, Error::DamagedEnd { chunk: 1 }), "{error}");
}

#[test]
fn cut_before_the_payload_is_truncated() {
    for cut in [4, 12, 40, 200] {
        assert!(matches!(damaged(5, |sealed| sealed.truncate(cut)), Error::Truncated), "{cut}");
    }
    for into_payload in [0, 10, 24, 55] {
        let error = damaged(5, |sealed| sealed.truncate(salt_at(sealed) + into_payload));
        assert!(matches!(error, Error::Truncated), "{into_payload}");
    }
}

#[test]
fn bytes_behind_the_end_are_an_extension() {
    for (len, added) in
        [(0, 1), (5, 1), (5, 20_000), (CHUNK, 1), (CHUNK - 4, 10), (CHUNK - 1, 1), (3 * CHUNK + 9, 16)]
    {
        let error = damaged(len, |sealed| sealed.resize(sealed.len() + added, 0xa5));
        assert!(matches!(error, Error::Extended), "{len} {added}: {error}");
    }
    let error = damaged(SEGMENT + 5, |sealed| sealed.resize(sealed.len() + 3 * SEGMENT, 0));
    assert!(matches!(error, Error::Extended), "{error}");
}

#[test]
fn age_files_have_the_same_errors() {
    let pair = Pair::new();
    let damaged = |len: usize, damage: &dyn Fn(&mut Vec<u8>, usize)| {
        let mut sealed = seal(&pair.sealer().format(Format::Age), &content(len));
        let payload = parse_header(&sealed).unwrap().len + 16;
        damage(&mut sealed, payload);
        open(&pair.opener(), &sealed).unwrap_err()
    };
    const CHUNK: usize = 1 << 16;
    const STRIDE: usize = CHUNK + 16;
    let flip = damaged(3 * CHUNK, &|sealed, payload| sealed[payload + STRIDE] ^= 1);
    assert!(matches!(flip, Error::Corrupted { chunk: 1 }), "{flip}");
    let end = damaged(2 * CHUNK + 100, &|sealed, _| *sealed.last_mut().unwrap() ^= 1);
    assert!(matches!(end, Error::DamagedEnd { chunk: 2 }), "{end}");
    let cut = damaged(3 * CHUNK, &|sealed, payload| sealed.truncate(payload + 2 * STRIDE));
    assert!(matches!(cut, Error::Truncated), "{cut}");
    let cut = damaged(20 * CHUNK, &|sealed, payload| sealed.truncate(payload + 16 * STRIDE));
    assert!(matches!(cut, Error::Truncated), "{cut}");
    let cut = damaged(3, &|sealed, payload| sealed.truncate(payload));
    assert!(matches!(cut, Error::Truncated), "{cut}");
    for (len, added) in
        [(0, 1), (7, 1), (65_500, 2 * STRIDE), (CHUNK, 5), (CHUNK, 40), (2 * CHUNK, STRIDE), (16 * CHUNK, 1)]
    {
        let long = damaged(len, &|sealed, _| sealed.resize(sealed.len() + added, 0));
        assert!(matches!(long, Error::Extended), "{len} {added}: {long}");
    }
    let mac = damaged(3, &|sealed, payload| {
        sealed[payload - 20] = if sealed[payload - 20] == b'A' { b'B' } else { b'A' }
    });
    assert!(matches!(mac, Error::BadHeader(_)), "{mac}");
    let version = damaged(3, &|sealed, _| sealed[20] = b'7');
    assert!(matches!(version, Error::UnknownVersion { .. }), "{version}");
    let nonce = damaged(3, &|sealed, payload| sealed[payload - 1] ^= 1);
    assert!(matches!(nonce, Error::DamagedEnd { chunk: 0 }), "{nonce}");
}

#[test]
fn age_header_without_an_end_is_too_large() {
    let mut endless = b"age-encryption.org/v1\n".to_vec();
    endless.resize(2 << 20, b'A');
    assert!(matches!(open(&Pair::new().opener(), &endless), Err(Error::HeaderTooLarge { .. })));
}

#[test]
fn damaged_armor_is_told() {
    let pair = Pair::new();
    let sealed = seal(&pair.sealer().armor(true), &content(1000));
    let text = String::from_utf8(sealed).unwrap();
    let error = |text: String| open(&pair.opener(), text.as_bytes()).unwrap_err();
    assert!(matches!(error(text.replacen('\n', "\n!", 3)), Error::BadArmor(_)));
    assert!(matches!(error(text.replace("WATTLOCK SEALED", "AGE ENCRYPTED")), Error::BadArmor(_)));
    assert!(matches!(error(text[..text.len() - 40].to_owned()), Error::Truncated));
    assert!(matches!(error(text + "more"), Error::Extended));
}

#[test]
fn wrong_passphrase_and_missing_passphrase_are_told_apart() {
    let phrase = |text: &str| text.to_owned().into();
    let sealer = || {
        wattlock_files::Sealer::new(vec![keys::passphrase_recipient(phrase("right"), 10).unwrap()]).unwrap()
    };
    for format in FORMATS {
        let sealed = seal(&sealer().format(format), b"secret");
        let with = |text: &'static str| {
            wattlock_files::Opener::new(vec![]).passphrase(Box::new(move || Some(phrase(text))))
        };
        assert_eq!(open(&with("right"), &sealed).unwrap(), b"secret");
        assert!(matches!(open(&with("wrong"), &sealed), Err(Error::BadPassphrase)));
        assert!(matches!(open(&Pair::new().opener(), &sealed), Err(Error::PassphraseNeeded)));
        let careful = with("right").work_factor_limit(9);
        assert!(matches!(open(&careful, &sealed), Err(Error::ExcessiveWork { required: 10, limit: 9 })));
    }
}

#[test]
fn passphrase_refuses_company() {
    let recipients: Vec<keys::BoxedRecipient> = vec![
        keys::passphrase_recipient("a".to_owned().into(), 1).unwrap(),
        Box::new(age::x25519::Identity::generate().to_public()),
    ];
    let sealer = wattlock_files::Sealer::new(recipients).unwrap();
    let output = wattlock_door::Output::Stream(Box::new(Kept::default()));
    assert!(matches!(
        sealer.seal(stream(b""), output, &Double, progress()),
        Err(Error::Door(wattlock_door::Error::Usage(_)))
    ));
}

#[test]
fn no_plaintext_of_an_unverified_chunk_is_streamed() {
    let pair = Pair::new();
    let plain = content(3 * SEGMENT);
    let mut sealed = seal(&pair.sealer(), &plain);
    let at = chunk_at(&sealed, 70);
    sealed[at + 3] ^= 1;
    let (result, streamed) = open_stream(&pair.opener(), &sealed);
    assert!(matches!(result, Err(Error::Corrupted { chunk: 70 })));
    assert!(streamed.len() <= 70 * CHUNK && plain.starts_with(&streamed));
}

#[test]
fn armor_may_follow_as_much_white_space_as_the_format_says() {
    let pair = Pair::new();
    let text = seal(&pair.sealer().armor(true), b"secret");
    let after = |space: usize| [&vec![b'\n'; space][..], &text].concat();
    assert_eq!(open(&pair.opener(), &after(1024)).unwrap(), b"secret");
    assert!(open(&pair.opener(), &after(1025)).is_err());
}

#[test]
fn damaged_version_line_is_damage_and_not_a_version() {
    let pair = Pair::new();
    let mut sealed = seal(&pair.sealer().format(Format::Age), b"secret");
    sealed[21] ^= 0x20;
    assert!(matches!(open(&pair.opener(), &sealed), Err(Error::BadHeader(_))));
}
