//! Whole files through the product's own path: a content is sealed as a stream; the sealed file is mangled (bits flipped,
//! cut, lengthened, chunks swapped, repeated, dropped, taken from another file) and opened, once as a stream that is read
//! in pieces of any length, once as a file, on as many threads as always. It opens only if it is one that was sealed, and
//! what is written is the content or its beginning.
//!
//! Chunks and segments are small here (`cfg(fuzzing)` in `Layout` and in the pipeline): a content of 4 KiB has 64 and 8
//! of them. The recipient wraps a key by writing it down, since no curve is fuzzed here.
#![no_main]

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use age_core::format::{FileKey, Stanza};
use age_core::secrecy::ExposeSecret;
use libfuzzer_sys::fuzz_target;
use wattlock_door::Output;
use wattlock_files::age::{DecryptError, EncryptError, Identity, Recipient};
use wattlock_files::format::payload::{AGE_NONCE_LEN, COMMITMENT_LEN, Layout, SALT_LEN};
use wattlock_files::format::{age, header};
use wattlock_files::{Error, Format, Input, Opener, Progress, Sealer};
use wattlock_fuzz::Portable;

static NEVER: AtomicBool = AtomicBool::new(false);
/// A file without a name, for the inputs that are opened as one.
static FILE: OnceLock<Mutex<File>> = OnceLock::new();

struct Plain;

impl Recipient for Plain {
    fn wrap_file_key(&self, key: &FileKey) -> Result<(Vec<Stanza>, HashSet<String>), EncryptError> {
        let body = key.expose_secret().to_vec();
        Ok((vec![Stanza { tag: "plain".into(), args: Vec::new(), body }], HashSet::new()))
    }
}

impl Identity for Plain {
    fn unwrap_stanza(&self, stanza: &Stanza) -> Option<Result<FileKey, DecryptError>> {
        let key = <[u8; 16]>::try_from(&stanza.body[..]).ok().filter(|_| stanza.tag == "plain")?;
        Some(Ok(FileKey::new(Box::new(key))))
    }
}

/// A stream that gives out at most so many bytes at a time.
struct Pieces(io::Cursor<Vec<u8>>, usize);

impl Read for Pieces {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let most = to.len().min(self.1);
        self.0.read(&mut to[..most])
    }
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().expect("no writer panics"))
    }
}

fn pieces(bytes: &[u8], most: usize) -> Input {
    Input::Stream(Box::new(Pieces(io::Cursor::new(bytes.to_vec()), most)))
}

fn sealed(format: Format, content: &[u8], most: usize) -> Vec<u8> {
    let sealer = Sealer::new(vec![Box::new(Plain)]).expect("a recipient").format(format);
    let (sink, never) = (Sink::default(), Progress::new(&NEVER));
    let output = Output::Stream(Box::new(sink.clone()));
    sealer.seal(pieces(content, most), output, &Portable, never).expect("it can be sealed");
    sink.take()
}

fn opened(input: Input) -> (Result<(), Error>, Vec<u8>) {
    let sink = Sink::default();
    let output = Output::Stream(Box::new(sink.clone()));
    let opener = Opener::new(vec![Box::new(Plain)]);
    let result = opener.open(input, output, &Portable, Progress::new(&NEVER));
    (result.map(drop), sink.take())
}

/// The bytes as a regular file, by the name that the kernel gives the nameless.
fn as_file(bytes: &[u8]) -> Input {
    let unnamed = || {
        let path = std::env::temp_dir().join(format!("wattlock-fuzz-{}", std::process::id()));
        let file = File::options().create_new(true).read(true).write(true).open(&path);
        let file = file.expect("a temporary file");
        std::fs::remove_file(&path).expect("its name is not needed");
        Mutex::new(file)
    };
    let mut file = FILE.get_or_init(unnamed).lock().expect("one input at a time");
    file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(bytes)).expect("it is written");
    Input::Path(format!("/proc/self/fd/{}", file.as_raw_fd()).into())
}

/// Where the chunks of a sealed file begin.
fn chunks_at(format: Format, sealed: &[u8]) -> usize {
    match format {
        Format::Sealed => {
            let fixed = sealed[..header::FIXED_LEN].try_into().expect("as long");
            let rest = header::parse_fixed(fixed).expect("just made");
            header::FIXED_LEN + rest + SALT_LEN + COMMITMENT_LEN
        }
        Format::Age => age::parse_header(sealed).expect("just made").len + AGE_NONCE_LEN,
    }
}

/// A sealed file as its start and its chunks, of which the last may be short.
struct Parts {
    start: Vec<u8>,
    chunks: Vec<Vec<u8>>,
}

impl Parts {
    fn of(format: Format, sealed: &[u8]) -> Parts {
        let layout = if format == Format::Age { Layout::Age } else { Layout::Cobblestone };
        let (start, chunks) = sealed.split_at(chunks_at(format, sealed));
        Parts { start: start.to_vec(), chunks: chunks.chunks(layout.stride()).map(<[u8]>::to_vec).collect() }
    }

    fn whole(&self) -> Vec<u8> {
        [&self.start[..], &self.chunks.concat()].concat()
    }

    /// One of the ways to damage a file, by chunks.
    fn rearrange(&mut self, how: u8, from: usize, to: usize, other: &Parts) {
        let count = self.chunks.len();
        if count == 0 {
            return;
        }
        let (from, to) = (from % count, to % count);
        match how % 5 {
            0 => self.chunks.swap(from, to),
            1 => self.chunks.insert(to, self.chunks[from].clone()),
            2 => drop(self.chunks.remove(from)),
            3 => self.chunks[from] = other.chunks[from.min(other.chunks.len() - 1)].clone(),
            _ => self.start.clone_from(&other.start),
        }
    }
}

/// The same, by bytes.
fn alter(bytes: &mut Vec<u8>, how: u8, at: usize, value: u8) {
    if bytes.is_empty() {
        return;
    }
    let at = at % bytes.len();
    match how % 4 {
        0 => bytes[at] ^= 1 << (value % 8),
        1 => bytes.truncate(at),
        2 => bytes.insert(at, value),
        _ => bytes.push(value),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let [how, len_high, len_low, most, orders @ ..] = bytes else { return };
    let format = if how & 1 == 0 { Format::Sealed } else { Format::Age };
    let len = usize::from(u16::from_be_bytes([*len_high, *len_low])) % 4096;
    let most = usize::from(*most) * 3 + 1;
    let content: Vec<u8> = (0..len).map(|i| (i / 7) as u8).collect();
    let right = sealed(format, &content, most);
    let mut parts = Parts::of(format, &right);
    let other = Parts::of(format, &sealed(format, &content, 4096));
    let mut orders = orders.chunks_exact(4).take(8).peekable();
    while let Some([how, from, to, _]) = orders.next_if(|order| order[0] < 0x80) {
        parts.rearrange(*how, usize::from(*from), usize::from(*to), &other);
    }
    let (mut altered, other) = (parts.whole(), other.whole());
    for order in orders {
        let [how, high, low, value] = order else { unreachable!("pieces of four") };
        alter(&mut altered, *how, usize::from(u16::from_be_bytes([*high, *low])), *value);
    }
    for input in [pieces(&altered, most), as_file(&altered)] {
        let (result, plain) = opened(input);
        // Start and chunks may all have been replaced: then it is the other file, which holds the same content.
        assert_eq!(result.is_ok(), altered == right || altered == other, "{result:?}");
        assert!(content.starts_with(&plain), "what was written is not the content's");
        assert!(result.is_err() || plain.len() == content.len());
    }
});
