//! The formats, as pure functions: bytes in, bytes or geometry out.
//!
//! Nothing here knows a file descriptor, a thread or a clock. Functions that need cryptography take a
//! [`wattlock_door::Crypto`]. Every length from outside is checked before memory is allocated for it.

pub mod age;
pub mod armor;
pub mod header;
pub mod payload;

/// The format that the first bytes of a file indicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Guess {
    /// A sealed file.
    Sealed,
    /// An age file.
    Age,
    /// Either of the two in ASCII armor.
    Armored,
    /// None of them.
    Unknown,
}

/// Bytes that [`guess`] needs to see, if the file has as many: all the white space that may precede armor, and a first
/// line's beginning.
pub const GUESS_LEN: usize = armor::SPACE_MAX + 32;

/// Determines a file's format from its first [`GUESS_LEN`] bytes.
pub fn guess(start: &[u8]) -> Guess {
    if start.starts_with(&header::MAGIC) {
        return Guess::Sealed;
    }
    if start.starts_with(age::MAGIC) {
        return Guess::Age;
    }
    if start.trim_ascii_start().starts_with(armor::DASHES_BEGIN) {
        return Guess::Armored;
    }
    Guess::Unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_tell_the_formats_apart() {
        assert_eq!(guess(&header::MAGIC), Guess::Sealed);
        assert_eq!(guess(b"age-encryption.org/v1\n-> X25519"), Guess::Age);
        assert_eq!(guess(b" \r\n-----BEGIN AGE ENCRYPTED FILE"), Guess::Armored);
        let far = [&[b'\n'; armor::SPACE_MAX][..], b"-----BEGIN AGE ENCRYPTED FILE"].concat();
        assert_eq!(guess(&far), Guess::Armored);
        assert_eq!(guess(b"%PDF-1.7"), Guess::Unknown);
        assert_eq!(guess(b""), Guess::Unknown);
    }
}
