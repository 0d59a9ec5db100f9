//! gzip (RFC 1952): files compressed on all cores into one member, and members decompressed.
//!
//! *Compressing.* The input is cut into chunks of 128 KiB. Each is a request of its own, with the 32 KiB before it as
//! dictionary, so that cutting costs nothing in length; every chunk but the last ends on a byte boundary, and their outputs
//! one behind the other are one deflate stream. Checksums of the chunks are combined. Any `gunzip` reads the result, and
//! the result does not depend on the number of threads.
//!
//! *Decompressing* is one thread's work, in constant memory: deflate has no places to begin at. Several members in a file
//! are one content, as `cat a.gz b.gz` makes them; zeroes behind the last are padding, anything else is an error. Each
//! member's checksum and length are checked. A file that is written appears only if all of them are right.

use std::fs::File;
use std::io::{self, Read, Write};
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wattlock_core::sync::lock;
use wattlock_core::{DICTIONARY_MOST, Data, Item, Key, Kind, LatencyClass, Options, Part, Request};
use zlib_rs::crc32::{crc32, crc32_combine};
use zlib_rs::{Inflate, InflateFlush, Status};

use crate::error::Error;
use crate::format::payload::PayloadKey;
use crate::input::{Body, Input, Source};
use crate::pipeline::{Chain, Drain, Made, Progress};
use wattlock_door::Attributes;
use wattlock_door::{Crypto, CryptoSource};
use wattlock_door::{Output, Target};

/// Content of one request. With the dictionary's 32 KiB before each, larger chunks gain little, and smaller ones spend more
/// of their time on the dictionary (9 to 18 % at 64 KiB, 5 to 9 % at 128).
const CHUNK: usize = 128 * 1024;

/// More threads than this wait for the one that reads and writes.
const MOST_THREADS: usize = 64;

/// Asked once: the answer takes several files of /proc and /sys.
static CORES: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS));

/// Chunks ahead of the one that is being written, for each thread.
const AHEAD: usize = 3;

const MAGIC: [u8; 2] = [0x1f, 0x8b];
const DEFLATE: u8 = 8;
const FHCRC: u8 = 2;
const FEXTRA: u8 = 4;
const FNAME: u8 = 8;
const FCOMMENT: u8 = 16;
const RESERVED: u8 = 0xe0;
/// The operating system's number: Unix.
const UNIX: u8 = 3;

/// Longest name that is kept of a header.
const NAME_MOST: usize = 4096;

/// What passed, as `gzip -l` and `-v` tell it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes of content.
    pub content: u64,
    /// Bytes of the gzip file.
    pub packed: u64,
    /// Bytes of the last member's header and end among them.
    pub around: u64,
    /// The last member's checksum.
    pub checksum: u32,
}

/// What a gzip file's header tells of the file that was compressed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stored {
    /// Its name, without a folder; never empty, `.` or `..`.
    pub name: Option<Vec<u8>>,
    /// The time of its content's last change.
    pub time: Option<SystemTime>,
}

/// Compresses files into gzip members.
#[derive(Debug, Clone, Copy)]
pub struct Gzip {
    level: u8,
    named: bool,
}

impl Gzip {
    /// At a level, 1 (fast) to 9 (small).
    ///
    /// # Errors
    /// [`wattlock_door::Error::Usage`] for any other.
    pub fn new(level: u8) -> Result<Gzip, Error> {
        if Kind::Deflate.levels().is_some_and(|levels| levels.contains(&level)) {
            return Ok(Gzip { level, named: true });
        }
        Err(Error::Door(wattlock_door::Error::Usage(format!(
            "there is no level {level}: 1 (fast) to 9 (small)"
        ))))
    }

    /// Whether the member tells the input's name and time, as gzip's do; it does by default, where there are any.
    #[must_use]
    pub fn named(self, named: bool) -> Gzip {
        Gzip { named, ..self }
    }

    /// Compresses `input` into one member in `output`. A file that is written gets the permissions and the time of the file
    /// that was read. Blocks until it is done; uses as many threads as there are cores.
    ///
    /// # Errors
    /// Any of [`Error`]; a file under the output's name then does not exist, or is unchanged.
    pub fn compress(
        &self,
        input: Input,
        output: Output,
        source: &impl CryptoSource,
        progress: Progress<'_>,
    ) -> Result<Tally, Error> {
        let name = name_of(&input);
        let input = Source::open(input, progress.cancel())?;
        let (like, identity) = (input.like.clone(), input.identity);
        let target = Target::open(output, identity, progress.cancel())?;
        let header = self.header(name.as_deref(), like.as_ref().and_then(Attributes::modified));
        let mut reader = Whole::new(input)?;
        match target {
            Target::Atomic(file) => {
                let tally = self.written(&header, &mut reader, &mut file.file(), source, progress)?;
                reader.refuse_changed()?;
                file.commit(like.as_ref())?;
                Ok(tally)
            }
            Target::Stream(mut writer) => {
                let tally = self.written(&header, &mut reader, &mut *writer, source, progress)?;
                writer.flush().map_err(Error::writing).map(|()| tally)
            }
        }
    }

    /// Compresses `input` into one member, and seals that into `to`.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub(crate) fn sealed(
        &self,
        name: Option<&[u8]>,
        input: Source<'_>,
        (key, to): (&PayloadKey, Drain<'_>),
        source: &impl CryptoSource,
        progress: Progress<'_>,
    ) -> Result<(), Error> {
        let header = self.header(name, input.like.as_ref().and_then(Attributes::modified));
        let mut reader = Whole::new(input)?;
        let mut chain = Chain::new(key, to, source, reader.len().unwrap_or(0));
        self.run(&header, &mut reader, &mut |bytes, made| chain.put(bytes, made), source, progress)?;
        reader.refuse_changed()?;
        chain.end()
    }

    fn header(&self, name: Option<&[u8]>, time: Option<SystemTime>) -> Vec<u8> {
        let name = name.filter(|name| self.named && !name.is_empty() && !name.contains(&0));
        let time = time.filter(|_| self.named).and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        // Times after 2106 do not fit; 0 says that there is none.
        let seconds = time.and_then(|time| u32::try_from(time.as_secs()).ok()).unwrap_or(0);
        let extra = match self.level {
            1 => 4,
            9 => 2,
            _ => 0,
        };
        let mut header = vec![MAGIC[0], MAGIC[1], DEFLATE, if name.is_some() { FNAME } else { 0 }];
        header.extend_from_slice(&seconds.to_le_bytes());
        header.extend_from_slice(&[extra, UNIX]);
        if let Some(name) = name {
            header.extend_from_slice(name);
            header.push(0);
        }
        header
    }

    /// Writes a member.
    fn written(
        &self,
        header: &[u8],
        reader: &mut Whole<'_>,
        writer: &mut (dyn Write + Send),
        source: &impl CryptoSource,
        progress: Progress<'_>,
    ) -> Result<Tally, Error> {
        let mut put = |bytes: &[u8], _| writer.write_all(bytes).map_err(Error::writing);
        self.run(header, reader, &mut put, source, progress)
    }

    /// Makes a member, and hands its bytes to `put` in their order, with where they were made.
    fn run(
        &self,
        header: &[u8],
        reader: &mut Whole<'_>,
        put: &mut Put<'_>,
        source: &impl CryptoSource,
        progress: Progress<'_>,
    ) -> Result<Tally, Error> {
        put(header, None)?;
        let around = header.len() as u64 + 8;
        let mut tally = Tally { packed: around, around, ..Tally::default() };
        let (cores, part) = (*CORES, Part::of(reader.len().unwrap_or(0)));
        let chunks = reader.len().map_or(u64::MAX, |len| len.div_ceil(CHUNK as u64).max(1));
        let threads = cores.min(usize::try_from(chunks).unwrap_or(usize::MAX));
        let free: Mutex<Vec<Chunk>> = Mutex::default();
        let give_back = |chunk| lock(&free).push(chunk);
        let take = || lock(&free).pop().unwrap_or_default();
        let failed = AtomicBool::new(false);
        let (mut unread, mut first): (Option<Error>, Option<Error>) = (None, None);
        let (mut checksum, mut length) = (0, 0u32);
        let mut ahead = None;
        let mut ended = false;
        let next = || {
            if ended || failed.load(Relaxed) {
                return None;
            }
            let mut read = |before: Option<&Chunk>| {
                let mut chunk = take();
                match chunk.fill(before, reader) {
                    Ok(()) => Some(chunk),
                    Err(error) => {
                        unread = Some(error);
                        None
                    }
                }
            };
            let mut chunk = match ahead.take() {
                Some(chunk) => chunk,
                None => read(None)?,
            };
            // Whether it is the last is known once the next is found to be empty.
            if chunk.content().len() == CHUNK {
                let following = read(Some(&chunk))?;
                if following.content().is_empty() {
                    give_back(following);
                    chunk.last = true;
                } else {
                    ahead = Some(following);
                }
            } else {
                chunk.last = true;
            }
            ended = chunk.last;
            Some(chunk)
        };
        let work = |crypto: &mut dyn Crypto, mut chunk: Chunk| {
            if failed.load(Relaxed) {
                return None;
            }
            let done = if progress.cancel().load(Relaxed) {
                Err(Error::Door(wattlock_door::Error::Interrupted))
            } else {
                chunk.compress(crypto, self.level, part)
            };
            if done.is_err() {
                failed.store(true, Relaxed);
            }
            Some(done.map(|(crc, made)| (chunk, crc, made)))
        };
        let sink = |done: Option<Result<(Chunk, u32, Made), Error>>| {
            let written = match done {
                Some(Ok((chunk, crc, made))) if first.is_none() => {
                    let len = chunk.content().len();
                    (checksum, length) =
                        (crc32_combine(checksum, crc, len as u64), length.wrapping_add(len as u32));
                    tally.content += len as u64;
                    tally.packed += chunk.written as u64;
                    let written = put(&chunk.output[..chunk.written], Some(made));
                    give_back(chunk);
                    written.map(|()| len as u64)
                }
                Some(Err(error)) => Err(error),
                _ => return,
            };
            match written {
                Ok(len) => progress.done(len),
                Err(error) => {
                    failed.store(true, Relaxed);
                    first = first.take().or(Some(error));
                }
            }
        };
        source.in_order(threads, (1 + AHEAD) * threads, next, work, sink);
        if let Some(error) = first.or(unread) {
            return Err(error);
        }
        // Raised after the last chunk was begun: the output has not appeared yet, and must not.
        if progress.cancel().load(Relaxed) {
            return Err(Error::Door(wattlock_door::Error::Interrupted));
        }
        let mut trailer = [0; 8];
        trailer[..4].copy_from_slice(&checksum.to_le_bytes());
        trailer[4..].copy_from_slice(&length.to_le_bytes());
        put(&trailer, None)?;
        Ok(Tally { checksum, ..tally })
    }
}

/// Takes bytes of a member, which were made there.
type Put<'a> = dyn FnMut(&[u8], Option<Made>) -> Result<(), Error> + Send + 'a;

/// A part of the input, the dictionary before it, and what became of it.
#[derive(Default)]
struct Chunk {
    input: Vec<u8>,
    dictionary: usize,
    output: Vec<u8>,
    written: usize,
    last: bool,
}

impl Chunk {
    fn content(&self) -> &[u8] {
        &self.input[self.dictionary..]
    }

    /// Reads a chunk behind `before`, whose end becomes the dictionary.
    fn fill(&mut self, before: Option<&Chunk>, reader: &mut Whole<'_>) -> Result<(), Error> {
        self.input.clear();
        self.last = false;
        if let Some(before) = before {
            let tail = before.input.len().saturating_sub(DICTIONARY_MOST);
            self.input.extend_from_slice(&before.input[tail..]);
        }
        self.dictionary = self.input.len();
        self.input.resize(self.dictionary + CHUNK, 0);
        let len = reader.fill(&mut self.input[self.dictionary..])?;
        self.input.truncate(self.dictionary + len);
        Ok(())
    }

    /// Compresses the content, and returns its checksum and where it was done.
    fn compress(&mut self, crypto: &mut dyn Crypto, level: u8, part: Part) -> Result<(u32, Made), Error> {
        let (dictionary, content) = self.input.split_at(self.dictionary);
        let room = Kind::Deflate.output_bound(content.len()).unwrap_or_default();
        if self.output.len() < room {
            self.output.resize(room, 0);
        }
        let options = Options::compress(level, self.last);
        let data = Data::Apart { from: content, to: &mut self.output };
        let request = Request::new(Kind::Deflate, Key::none(), data);
        let request = Request { aad: dictionary, options, class: LatencyClass::Bulk, ..request };
        // A batch of one: unlike a single request, it may go to an engine that answers later.
        let mut items = [Item::new(request)];
        let made = Made::here(crypto.run_all_of(&mut items, part));
        let [item] = items;
        self.written = item.result?;
        if self.written > self.output.len() {
            return Err(Error::Door(wattlock_door::Error::Engine(wattlock_core::Error::Invalid(
                "output length",
            ))));
        }
        Ok((crc32(0, content), made))
    }
}

/// The input, read in order; of a file what it had when it was opened.
struct Whole<'a> {
    reader: Box<dyn Read + Send + 'a>,
    len: Option<u64>,
    file: Option<(File, u64)>,
}

impl<'a> Whole<'a> {
    fn new(input: Source<'a>) -> Result<Whole<'a>, Error> {
        let (len, file) = match &input.body {
            Body::File { file, at, end } => {
                let again = file.try_clone().map_err(|error| Error::io("looking at the input", error))?;
                (Some(end - at), Some((again, *end)))
            }
            Body::Stream(_) => (None, None),
        };
        Ok(Whole { reader: input.into_stream(), len, file })
    }

    fn len(&self) -> Option<u64> {
        self.len
    }

    /// Fills `to`, or less at the end.
    fn fill(&mut self, to: &mut [u8]) -> Result<usize, Error> {
        let mut filled = 0;
        while filled < to.len() {
            match self.reader.read(&mut to[filled..]) {
                Ok(0) => break,
                Ok(len) => filled += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("reading the input", error)),
            }
        }
        if let Some(left) = &mut self.len {
            *left = left.saturating_sub(filled as u64);
            // A file that became shorter has no end to compress up to.
            if filled < to.len() && *left > 0 {
                return Err(Error::Door(wattlock_door::Error::InputChanged));
            }
        }
        Ok(filled)
    }

    /// # Errors
    /// [`wattlock_door::Error::InputChanged`] if a file has grown: its end was not read, and it may be deleted now.
    fn refuse_changed(&self) -> Result<(), Error> {
        let Some((file, end)) = &self.file else { return Ok(()) };
        let now = file.metadata().map_err(|error| Error::io("looking at the input", error))?.len();
        if now > *end { Err(Error::Door(wattlock_door::Error::InputChanged)) } else { Ok(()) }
    }
}

/// A file's name without its folders.
pub(crate) fn name_of(input: &Input) -> Option<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    match input {
        Input::Path(path) | Input::File { name: path, .. } => {
            Path::new(path).file_name().map(|name| name.as_bytes().to_vec())
        }
        _ => None,
    }
}

/// Decompresses the members in `input` into `output`, in constant memory. A file that is written gets the permissions and
/// the time of the file that was read.
///
/// # Errors
/// [`Error::NotGzip`], [`Error::Truncated`], [`Error::BadGzip`], [`Error::Extended`] for what is wrong with the input, or any
/// other; a file under the output's name then does not exist, or is unchanged. A stream has got what came before.
pub fn gunzip(input: Input, output: Output, progress: Progress<'_>) -> Result<Tally, Error> {
    gunzip_as(input, output, None, progress)
}

/// The same; a file that is written gets this time, if there is one, and not that of the file that was read.
///
/// # Errors
/// As [`gunzip`].
pub fn gunzip_as(
    input: Input,
    output: Output,
    time: Option<SystemTime>,
    progress: Progress<'_>,
) -> Result<Tally, Error> {
    let input = Source::open(input, progress.cancel())?;
    let (like, identity) = (input.like.clone(), input.identity);
    let like = like.map(|like| time.map_or(like.clone(), |time| like.modified_at(time)));
    let target = Target::open(output, identity, progress.cancel())?;
    let mut members = Members::new(input.into_stream(), progress);
    match target {
        Target::Atomic(file) => {
            members.decompress(&mut file.file())?;
            file.commit(like.as_ref())?;
        }
        Target::Stream(mut writer) => {
            members.decompress(&mut *writer)?;
            writer.flush().map_err(Error::writing)?;
        }
    }
    Ok(members.tally)
}

/// What the header of the first member in `input` tells.
///
/// # Errors
/// As [`gunzip`], of the header.
pub fn stored(input: Input, progress: Progress<'_>) -> Result<Stored, Error> {
    let input = Source::open(input, progress.cancel())?;
    let mut members = Members::new(input.into_stream(), progress);
    members.begin(false)?;
    Ok(members.stored)
}

/// Bytes of compressed input, and of content, in memory at once.
const WINDOW: usize = 128 * 1024;

struct Members<'a> {
    reader: Box<dyn Read + Send + 'a>,
    progress: Progress<'a>,
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    /// Of the header, for its own checksum.
    header: u32,
    tally: Tally,
    stored: Stored,
}

impl<'a> Members<'a> {
    fn new(reader: Box<dyn Read + Send + 'a>, progress: Progress<'a>) -> Members<'a> {
        let (tally, stored) = Default::default();
        Members { reader, progress, buffer: vec![0; WINDOW], at: 0, end: 0, header: 0, tally, stored }
    }

    /// What was read and not used. Empty at the end only.
    fn rest(&mut self) -> Result<&[u8], Error> {
        while self.at == self.end {
            if self.progress.cancel().load(Relaxed) {
                return Err(Error::Door(wattlock_door::Error::Interrupted));
            }
            match self.reader.read(&mut self.buffer) {
                Ok(len) => {
                    (self.at, self.end) = (0, len);
                    self.tally.packed += len as u64;
                    self.progress.done(len as u64);
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("reading the input", error)),
            }
        }
        Ok(&self.buffer[self.at..self.end])
    }

    fn byte(&mut self) -> Result<u8, Error> {
        let byte = *self.rest()?.first().ok_or(Error::Truncated)?;
        self.at += 1;
        self.tally.around += 1;
        self.header = crc32(self.header, &[byte]);
        Ok(byte)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    fn decompress(&mut self, writer: &mut (dyn Write + Send)) -> Result<(), Error> {
        let mut inflate = Inflate::new(false, 15);
        let mut content = vec![0; WINDOW];
        self.begin(false)?;
        loop {
            self.member(&mut inflate, &mut content, writer)?;
            if self.rest()?.is_empty() {
                return Ok(());
            }
            if self.rest()?[0] == 0 {
                return self.padding();
            }
            self.begin(true)?;
            inflate.reset(false);
        }
    }

    /// A member's header (RFC 1952 section 2.3). Behind a member, what is no header is not the file's.
    fn begin(&mut self, further: bool) -> Result<(), Error> {
        let stranger = if further { Error::Extended } else { Error::NotGzip };
        (self.header, self.tally.around) = (0, 0);
        // Nothing at all is a gzip file whose beginning is missing, too.
        let first = self.byte()?;
        if first != MAGIC[0] || self.byte()? != MAGIC[1] {
            return Err(stranger);
        }
        let [method, flags] = self.bytes()?;
        if method != DEFLATE || flags & RESERVED != 0 {
            return Err(Error::BadGzip("its header asks for something unknown"));
        }
        let seconds = u64::from(u32::from_le_bytes(self.bytes()?));
        let _level_and_system: [u8; 2] = self.bytes()?;
        if flags & FEXTRA != 0 {
            for _ in 0..u16::from_le_bytes(self.bytes()?) {
                self.byte()?;
            }
        }
        let mut name = Vec::new();
        for flag in [FNAME, FCOMMENT] {
            let mut byte = if flags & flag == 0 { 0 } else { self.byte()? };
            while byte != 0 {
                if flag == FNAME && name.len() <= NAME_MOST {
                    name.push(byte);
                }
                byte = self.byte()?;
            }
        }
        if !further {
            // The name is a stranger's: whatever folder it has, the file stays where it is to be.
            let own = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            let usable = !own.is_empty() && own != b"." && own != b".." && name.len() <= NAME_MOST;
            self.stored.name = usable.then(|| own.to_vec());
            self.stored.time = (seconds > 0).then(|| UNIX_EPOCH + Duration::from_secs(seconds));
        }
        if flags & FHCRC != 0 {
            let wanted = self.header as u16;
            if u16::from_le_bytes(self.bytes()?) != wanted {
                return Err(Error::BadGzip("its header's checksum is wrong"));
            }
        }
        Ok(())
    }

    /// A member's content, and its end.
    fn member(
        &mut self,
        inflate: &mut Inflate,
        content: &mut [u8],
        writer: &mut (dyn Write + Send),
    ) -> Result<(), Error> {
        let (mut checksum, mut length) = (0, 0u32);
        loop {
            let (read, written) = (inflate.total_in(), inflate.total_out());
            let given = self.rest()?;
            let none_left = given.is_empty();
            let status = inflate
                .decompress(given, content, InflateFlush::NoFlush)
                .map_err(|_| Error::BadGzip("its deflate stream breaks the rules"))?;
            let len = (inflate.total_out() - written) as usize;
            self.at += (inflate.total_in() - read) as usize;
            checksum = crc32(checksum, &content[..len]);
            length = length.wrapping_add(len as u32);
            self.tally.content += len as u64;
            writer.write_all(&content[..len]).map_err(Error::writing)?;
            if status == Status::StreamEnd {
                break;
            }
            if none_left && len == 0 {
                return Err(Error::Truncated);
            }
            // A bomb makes much of little: each round is bounded, and each asks.
            if self.progress.cancel().load(Relaxed) {
                return Err(Error::Door(wattlock_door::Error::Interrupted));
            }
        }
        let (wanted, counted): ([u8; 4], [u8; 4]) = (self.bytes()?, self.bytes()?);
        if u32::from_le_bytes(wanted) != checksum {
            return Err(Error::BadGzip("the content's checksum is wrong"));
        }
        if u32::from_le_bytes(counted) != length {
            return Err(Error::BadGzip("the content's length is wrong"));
        }
        self.tally.checksum = checksum;
        Ok(())
    }

    /// Zeroes up to the end, as tapes and block devices add them.
    fn padding(&mut self) -> Result<(), Error> {
        loop {
            let rest = self.rest()?;
            if rest.is_empty() {
                return Ok(());
            }
            if rest.iter().any(|byte| *byte != 0) {
                return Err(Error::Extended);
            }
            self.at = self.end;
        }
    }
}
