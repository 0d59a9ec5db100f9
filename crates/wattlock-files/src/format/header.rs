//! The header of a sealed file: sixteen fixed bytes, then a complete age file that carries the input key.
//!
//! ```text
//! 0   8  magic      8b 77 61 74 74 6c 6b 0a
//! 8   4  version    big-endian, 1
//! 12  4  key length big-endian, bytes of the age file that follows
//! 16  n  key        a binary age v1 file whose plaintext is the 32-byte input key
//! ```
//!
//! The magic's first byte is no ASCII and its last is a line feed, so a transfer that drops the eighth bit or rewrites
//! line ends is detected at once. Every byte of the header takes part in the payload's key
//! derivation.

use crate::error::Error;

/// First bytes of every sealed file.
pub const MAGIC: [u8; 8] = [0x8b, b'w', b'a', b't', b't', b'l', b'k', 0x0a];

/// The version this crate writes, and the only one it reads.
pub const VERSION: u32 = 1;

/// Bytes before the age file.
pub const FIXED_LEN: usize = 16;

/// Longest header, fixed bytes included: room for some ten thousand X25519 recipients.
pub const MAX_LEN: usize = 1 << 20;

/// Bytes of the key that the age file carries.
pub const INPUT_KEY_LEN: usize = 32;

/// Reads the fixed bytes and returns how long the age file behind them is.
///
/// # Errors
/// [`Error::NotSealed`], [`Error::UnknownVersion`], [`Error::HeaderTooLarge`], or [`Error::BadHeader`] for an age
/// file of no bytes.
pub fn parse_fixed(fixed: &[u8; FIXED_LEN]) -> Result<usize, Error> {
    let word = |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
    if fixed[..8] != MAGIC {
        return Err(Error::NotSealed);
    }
    let version = word(8);
    if version != VERSION {
        return Err(Error::UnknownVersion { format: "sealed file", version: version.to_string() });
    }
    let key_len = word(12) as usize;
    if key_len > MAX_LEN - FIXED_LEN {
        return Err(too_large(key_len));
    }
    if key_len == 0 {
        return Err(Error::BadHeader("no key"));
    }
    Ok(key_len)
}

/// Finds the age file at the start of `bytes`: the header is everything up to its end.
///
/// # Errors
/// Those of [`parse_fixed`]; [`Error::Empty`] and [`Error::Truncated`] if bytes are missing.
pub fn parse(bytes: &[u8]) -> Result<&[u8], Error> {
    if bytes.is_empty() {
        return Err(Error::Empty);
    }
    let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED_LEN>() else {
        let known = bytes.len().min(MAGIC.len());
        return Err(if bytes[..known] == MAGIC[..known] { Error::Truncated } else { Error::NotSealed });
    };
    rest.get(..parse_fixed(fixed)?).ok_or(Error::Truncated)
}

/// The header around an age file.
///
/// # Errors
/// [`Error::HeaderTooLarge`] if there are too many recipients for one file.
pub fn encode(key_file: &[u8]) -> Result<Vec<u8>, Error> {
    if key_file.len() > MAX_LEN - FIXED_LEN {
        return Err(too_large(key_file.len()));
    }
    let mut header = Vec::with_capacity(FIXED_LEN + key_file.len());
    header.extend_from_slice(&MAGIC);
    header.extend_from_slice(&VERSION.to_be_bytes());
    header.extend_from_slice(&(key_file.len() as u32).to_be_bytes());
    header.extend_from_slice(key_file);
    Ok(header)
}

fn too_large(key_len: usize) -> Error {
    Error::HeaderTooLarge { claimed: (FIXED_LEN + key_len) as u64, limit: MAX_LEN as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_encoded_is_found_again() {
        let mut file = encode(b"key file").unwrap();
        file.extend_from_slice(b"payload");
        assert_eq!(parse(&file).unwrap(), b"key file");
    }

    #[test]
    fn unknown_version_is_named() {
        let mut file = encode(b"key file").unwrap();
        file[11] = 2;
        assert!(matches!(parse(&file), Err(Error::UnknownVersion { version, .. }) if version == "2"));
    }

    #[test]
    fn absurd_length_is_refused_before_anything_is_read_by_it() {
        let mut file = encode(b"key file").unwrap();
        file[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(parse(&file), Err(Error::HeaderTooLarge { claimed, .. }) if claimed > 1 << 31));
        assert!(matches!(encode(&vec![0; MAX_LEN]), Err(Error::HeaderTooLarge { .. })));
    }

    #[test]
    fn every_cut_is_truncated_and_nothing_is_empty() {
        let file = encode(b"key file").unwrap();
        assert!(matches!(parse(&[]), Err(Error::Empty)));
        for len in 1..file.len() {
            assert!(matches!(parse(&file[..len]), Err(Error::Truncated)), "{len}");
        }
    }

    #[test]
    fn a_header_without_a_key_is_damaged() {
        assert!(matches!(parse(&encode(b"").unwrap()), Err(Error::BadHeader(_))));
    }
}
