//! Lists of hashes: coreutils' own lines, and BSD's with and without the hash's name (`split_3` of coreutils' digest.c).
//! Reads bytes, says what they mean, opens nothing.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, Read};
use std::os::unix::ffi::OsStrExt;

/// Longer lines hold no name that a file can have; they are malformed, and their rest is skipped.
const LINE_MOST: u64 = 1 << 16;

/// The lines of a list, without their ends.
pub struct Lines<R> {
    from: R,
    over: bool,
}

impl<R: BufRead> Lines<R> {
    pub fn new(from: R) -> Lines<R> {
        Lines { from, over: false }
    }

    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        if self.from.by_ref().take(LINE_MOST).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line.len() as u64 == LINE_MOST && !line.ends_with(b"\n") {
            self.from.skip_until(b'\n')?;
            // Not a comment, nor empty, nor anything else.
            return Ok(Some(b"?".to_vec()));
        }
        if line.ends_with(b"\n") {
            line.pop();
        }
        if line.ends_with(b"\r") {
            line.pop();
        }
        Ok(Some(line))
    }
}

/// After an error there are no more.
impl<R: BufRead> Iterator for Lines<R> {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<io::Result<Vec<u8>>> {
        if self.over {
            return None;
        }
        let line = self.read().transpose();
        self.over = !matches!(line, Some(Ok(_)));
        line
    }
}

/// What a line says.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// Empty, or a comment.
    Nothing,
    /// A file and its hash.
    File {
        name: OsString,
        digest: Vec<u8>,
    },
    Malformed,
}

impl Line {
    /// Reads a line, for hashes of `len` bytes that BSD calls `tag`. `reversed` remembers, for all lists, whether lines
    /// have one space before the name (an old BSD's) or two characters: a mixture would let a name begin with a space
    /// that some reader drops.
    pub fn parse(line: &[u8], tag: &str, len: usize, reversed: &mut Option<bool>) -> Line {
        if line.is_empty() || line[0] == b'#' {
            return Line::Nothing;
        }
        match split(line, tag, len, reversed) {
            Some((name, digest)) => Line::File { name: OsStr::from_bytes(&name).to_owned(), digest },
            None => Line::Malformed,
        }
    }
}

fn split(line: &[u8], tag: &str, len: usize, reversed: &mut Option<bool>) -> Option<(Vec<u8>, Vec<u8>)> {
    let start = line.iter().position(|byte| !is_blank(*byte))?;
    let line = &line[start..];
    let (escaped, line) = match line.strip_prefix(b"\\") {
        Some(line) => (true, line),
        None => (false, line),
    };
    if let Some(rest) = line.strip_prefix(tag.as_bytes()) {
        return tagged(rest, escaped, len);
    }
    // The hash, a blank, and a name of at least one byte.
    if line.len() < 2 * len + 2 + usize::from(line.starts_with(b"\\")) {
        return None;
    }
    let end = line.iter().position(|byte| is_blank(*byte))?;
    let digest = hex(&line[..end], len)?;
    let mut name = &line[end + 1..];
    let one_blank = name.len() == 1 || !matches!(name.first(), Some(b' ' | b'*'));
    match (one_blank, *reversed) {
        (true, Some(false)) => return None,
        (true, _) => *reversed = Some(true),
        (false, Some(true)) => {}
        (false, _) => {
            *reversed = Some(false);
            name = &name[1..];
        }
    }
    Some((file_name(name, escaped)?, digest))
}

/// `SHA256 (name) = hash`, without the hash's name.
fn tagged(rest: &[u8], escaped: bool, len: usize) -> Option<(Vec<u8>, Vec<u8>)> {
    let rest = rest.strip_prefix(b" ").unwrap_or(rest).strip_prefix(b"(")?;
    let end = rest.iter().rposition(|byte| *byte == b')')?;
    let equals = trimmed(&rest[end + 1..]).strip_prefix(b"=")?;
    let digest = hex(trimmed(equals), len)?;
    Some((file_name(&rest[..end], escaped)?, digest))
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn trimmed(bytes: &[u8]) -> &[u8] {
    let blanks = bytes.iter().take_while(|byte| is_blank(**byte)).count();
    &bytes[blanks..]
}

/// Exactly `len` bytes in hexadecimal, in either case.
fn hex(digits: &[u8], len: usize) -> Option<Vec<u8>> {
    let value = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let byte = |pair: &[u8]| Some(value(pair[0])? << 4 | value(pair[1])?);
    if digits.len() != 2 * len { None } else { digits.chunks_exact(2).map(byte).collect() }
}

/// A name, which cannot hold a zero byte.
fn file_name(bytes: &[u8], escaped: bool) -> Option<Vec<u8>> {
    if !escaped {
        return Some(bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec());
    }
    let (mut name, mut left) = (Vec::with_capacity(bytes.len()), bytes.iter());
    while let Some(byte) = left.next() {
        name.push(match byte {
            0 => return None,
            b'\\' => match left.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b'\\' => b'\\',
                _ => return None,
            },
            byte => *byte,
        });
    }
    Some(name)
}
