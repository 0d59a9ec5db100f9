//! ASCII armor: strict PEM (RFC 7468 section 3, figure 3) around either format.
//!
//! age's own label makes armored age files readable by any age; sealed files have a label of their own, since what is
//! inside is not an age file. Reading is strict because armor is malleable otherwise: 64 columns, canonical base64,
//! nothing before or after but white space. LF and CRLF are both read, LF is written.

use std::io::{self, BufRead, Read, Write};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;

use crate::error::Error;

/// The beginning of any armor.
pub const DASHES_BEGIN: &[u8] = b"-----BEGIN ";

/// The first line of an armored sealed file.
pub(crate) const SEALED_BEGIN: &str = "-----BEGIN WATTLOCK SEALED FILE-----";

const COLUMNS: usize = 64;
const COLUMN_BYTES: usize = 48;
/// White space accepted before and after: enough for any mail program's blank lines.
pub const SPACE_MAX: usize = 1024;
/// A line with its line end; anything longer cannot be armor.
const LINE_MAX: usize = 80;

/// The content that the armor's label names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    /// A sealed file.
    Sealed,
    /// An age file.
    Age,
}

impl Label {
    const fn begin(self) -> &'static str {
        match self {
            Label::Sealed => SEALED_BEGIN,
            Label::Age => "-----BEGIN AGE ENCRYPTED FILE-----",
        }
    }

    const fn end(self) -> &'static str {
        match self {
            Label::Sealed => "-----END WATTLOCK SEALED FILE-----",
            Label::Age => "-----END AGE ENCRYPTED FILE-----",
        }
    }
}

/// Wraps all written bytes in armor. Without [`Writer::finish`] the end is missing.
pub struct Writer<W: Write> {
    inner: W,
    label: Label,
    pending: Vec<u8>,
    text: String,
}

impl<W: Write> Writer<W> {
    /// Writes the first line.
    ///
    /// # Errors
    /// The inner writer's.
    pub fn new(mut inner: W, label: Label) -> io::Result<Writer<W>> {
        writeln!(inner, "{}", label.begin())?;
        Ok(Writer { inner, label, pending: Vec::with_capacity(COLUMN_BYTES), text: String::new() })
    }

    /// Writes pending bytes and the last line.
    ///
    /// # Errors
    /// The inner writer's.
    pub fn finish(&mut self) -> io::Result<()> {
        if !self.pending.is_empty() {
            writeln!(self.inner, "{}", BASE64.encode(&self.pending))?;
            self.pending.clear();
        }
        writeln!(self.inner, "{}", self.label.end())?;
        self.inner.flush()
    }
}

impl<W: Write> Write for Writer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Bounded, so that the text of a large write does not become a large buffer.
        let taken = bytes.len().min(COLUMN_BYTES * 1024);
        self.text.clear();
        for byte in bytes[..taken].chunks(COLUMN_BYTES) {
            let (now, later) = byte.split_at(byte.len().min(COLUMN_BYTES - self.pending.len()));
            self.pending.extend_from_slice(now);
            if self.pending.len() == COLUMN_BYTES {
                BASE64.encode_string(&self.pending, &mut self.text);
                self.text.push('\n');
                self.pending.clear();
            }
            self.pending.extend_from_slice(later);
        }
        self.inner.write_all(self.text.as_bytes())?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Reads the content of armor. Errors are [`Error::BadArmor`] and [`Error::Truncated`] in an [`io::Error`].
pub struct Reader<R: BufRead> {
    inner: R,
    label: Label,
    line: Vec<u8>,
    bytes: [u8; COLUMN_BYTES],
    filled: std::ops::Range<usize>,
    short_line_seen: bool,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Skips leading white space and reads the first line.
    ///
    /// # Errors
    /// [`Error::BadArmor`] if the label is unknown; the inner reader's.
    pub fn new(mut inner: R) -> Result<Reader<R>, Error> {
        skip_space(&mut inner, SPACE_MAX)?;
        let mut reader = Reader {
            inner,
            label: Label::Sealed,
            line: Vec::with_capacity(LINE_MAX),
            bytes: [0; COLUMN_BYTES],
            filled: 0..0,
            short_line_seen: false,
            ended: false,
        };
        reader.read_line()?;
        reader.label = [Label::Sealed, Label::Age]
            .into_iter()
            .find(|label| label.begin().as_bytes() == reader.line)
            .ok_or(Error::BadArmor("first line"))?;
        Ok(reader)
    }

    /// The content that the armor's label names.
    pub fn label(&self) -> Label {
        self.label
    }

    /// Reads one line into `self.line`, without its end.
    fn read_line(&mut self) -> Result<(), Error> {
        self.line.clear();
        let mut limited = (&mut self.inner).take(LINE_MAX as u64);
        limited.read_until(b'\n', &mut self.line).map_err(|error| Error::io("reading the input", error))?;
        if self.line.pop_if(|byte| *byte == b'\n').is_none() {
            // Without a line end it is either too long or the file's last line.
            let last = self.line.len() < LINE_MAX;
            return match last {
                true if self.line == self.label.end().as_bytes() => Ok(()),
                true => Err(Error::Truncated),
                false => Err(Error::BadArmor("line too long")),
            };
        }
        self.line.pop_if(|byte| *byte == b'\r');
        Ok(())
    }

    /// Decodes the next line, or finds the end.
    fn advance(&mut self) -> Result<(), Error> {
        self.read_line()?;
        if self.line == self.label.end().as_bytes() {
            self.ended = true;
            skip_space(&mut self.inner, SPACE_MAX)?;
            let rest = self.inner.fill_buf().map_err(|error| Error::io("reading the input", error))?;
            return if rest.is_empty() { Ok(()) } else { Err(Error::Extended) };
        }
        if self.line.is_empty() || self.line.len() > COLUMNS || self.short_line_seen {
            return Err(Error::BadArmor("line length"));
        }
        self.short_line_seen = self.line.len() < COLUMNS || self.line.ends_with(b"=");
        let len = BASE64.decode_slice(&self.line, &mut self.bytes).map_err(|_| Error::BadArmor("base64"))?;
        self.filled = 0..len;
        Ok(())
    }
}

impl<R: BufRead> Read for Reader<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < to.len() {
            if self.filled.is_empty() {
                if self.ended {
                    break;
                }
                self.advance()?;
                continue;
            }
            let len = self.filled.len().min(to.len() - done);
            to[done..done + len].copy_from_slice(&self.bytes[self.filled.start..self.filled.start + len]);
            self.filled.start += len;
            done += len;
        }
        Ok(done)
    }
}

/// Skips ASCII white space, at most `most` bytes of it.
fn skip_space(inner: &mut impl BufRead, most: usize) -> Result<(), Error> {
    let mut skipped = 0;
    loop {
        let buffer = inner.fill_buf().map_err(|error| Error::io("reading the input", error))?;
        let space = buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let more = space == buffer.len() && space > 0;
        inner.consume(space);
        skipped += space;
        if skipped > most {
            return Err(Error::BadArmor("too much white space"));
        }
        if !more {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn armored(content: &[u8], step: usize) -> Vec<u8> {
        let mut text = Vec::new();
        let mut writer = Writer::new(&mut text, Label::Age).unwrap();
        content.chunks(step).for_each(|part| writer.write_all(part).unwrap());
        writer.finish().unwrap();
        text
    }

    fn read(text: &[u8]) -> Result<Vec<u8>, Error> {
        let mut content = Vec::new();
        Reader::new(text)?.read_to_end(&mut content).map_err(|error| Error::io("", error))?;
        Ok(content)
    }

    #[test]
    fn every_length_comes_back_however_it_was_written() {
        let content: Vec<u8> = (0..=255).cycle().take(200).collect();
        for len in 0..content.len() {
            for step in [1, 47, 48, 49, 1000] {
                assert_eq!(read(&armored(&content[..len], step)).unwrap(), &content[..len], "{len} {step}");
            }
        }
    }

    #[test]
    fn large_write_keeps_its_bytes() {
        let content: Vec<u8> = (0..=250).cycle().take(1 << 18).collect();
        assert_eq!(read(&armored(&content, 1 << 18)).unwrap(), content);
    }

    #[test]
    fn age_crate_reads_what_we_write_and_we_read_what_it_writes() {
        let content: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let mut theirs = Vec::new();
        age::armor::ArmoredReader::new(&armored(&content, 100)[..]).read_to_end(&mut theirs).unwrap();
        assert_eq!(theirs, content);
        let mut text = Vec::new();
        let mut writer =
            age::armor::ArmoredWriter::wrap_output(&mut text, age::armor::Format::AsciiArmor).unwrap();
        writer.write_all(&content).unwrap();
        writer.finish().unwrap();
        assert_eq!(read(&text).unwrap(), content);
    }

    #[test]
    fn surrounding_space_and_crlf_are_accepted() {
        let text = String::from_utf8(armored(b"hello", 5)).unwrap();
        assert_eq!(read(format!("\n \r\n{text}\n\n").as_bytes()).unwrap(), b"hello");
        assert_eq!(read(text.replace('\n', "\r\n").as_bytes()).unwrap(), b"hello");
        assert_eq!(read(text.trim_end().as_bytes()).unwrap(), b"hello");
    }

    #[test]
    fn loose_armor_is_refused() {
        let text = String::from_utf8(armored(&[7; 100], 100)).unwrap();
        let is_bad = |text: &str| matches!(read(text.as_bytes()), Err(Error::BadArmor(_)));
        assert!(is_bad(&text.replacen('\n', "\n\n", 2)));
        assert!(is_bad(&text.replace("BEGIN AGE", "BEGIN PGP")));
        assert!(is_bad(&text.replace('=', "")));
        assert!(is_bad(&text.replacen("Bw", "B*", 1)));
        assert!(is_bad(&text.replacen("Bw", "BwBwBwBwBw", 1)));
        assert!(is_bad(&(" ".repeat(SPACE_MAX + 1) + &text)));
        assert!(matches!(read((text.clone() + "x").as_bytes()), Err(Error::BadArmor(_) | Error::Extended)));
        assert!(matches!(read((text.clone() + "\nx").as_bytes()), Err(Error::Extended)));
        assert!(matches!(read(&text.as_bytes()[..text.len() - 5]), Err(Error::Truncated)));
    }
}
