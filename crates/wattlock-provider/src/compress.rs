//! Compression of responses for the nginx module: what the function table offers of the runtime's compressors.
//!
//! A compressor writes a whole gzip member (RFC 1952), header and checksum included, or a zstd frame. It belongs to no
//! thread; its opener uses it, one call at a time. It compresses inside the call. A gzip member that has turned out
//! to be large may be spread: what follows is compressed on other cores ([`Spread`]). One that the policy gives to a device
//! goes there from its first byte on.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use wattlock::core::{CompressStream, Error, Kind, LatencyClass, Moved, Shape, Then};
use zlib_rs::crc32::crc32;

use crate::error::entry;
use crate::provider::Provider;
use crate::spread::{Crew, Spread};

/// What nginx's own gzip filter begins with: no name, no time, Unix.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];

/// What [`compress`] answers while it waits for other cores.
const ELSEWHERE: c_int = 2;

/// Work that is worth a wake-up of another core, tens of microseconds, and a dictionary.
const CHUNK_NS: u64 = 250_000;

/// What a response must have taken of the loop before other cores are woken for it. Where a chunk is less work than
/// [`CHUNK_NS`] (igzip's levels), they gain little and cost a quarter more processor time: only for what takes long.
const SPREAD_NS: u64 = 500_000;
const SPREAD_QUICK_NS: u64 = 10_000_000;

/// Bytes of the wrapping that are still to be written.
#[derive(Debug, Default)]
struct Waiting {
    bytes: [u8; 10],
    at: usize,
    end: usize,
}

impl Waiting {
    fn new(bytes: &[u8]) -> Waiting {
        let mut waiting = Waiting { end: bytes.len(), ..Waiting::default() };
        waiting.bytes[..bytes.len()].copy_from_slice(bytes);
        waiting
    }

    /// Writes what fits; returns how much.
    fn write(&mut self, output: &mut [u8]) -> usize {
        let len = output.len().min(self.end - self.at);
        output[..len].copy_from_slice(&self.bytes[self.at..self.at + len]);
        self.at += len;
        len
    }

    fn is_empty(&self) -> bool {
        self.at == self.end
    }
}

/// One compressed stream after another.
#[derive(Debug)]
struct Compressor {
    stream: Box<dyn CompressStream>,
    checksum: u32,
    /// Bytes of content, of which a member tells the lower 32 bits.
    length: u64,
    waiting: Waiting,
    /// The coder has written its last byte.
    ended: bool,
    /// The coder was asked for a flush or the end, and has not written all of it: the next call must ask for the same.
    owes: bool,
    /// Where what follows goes, once the stream has been flushed.
    spread: Option<Spread>,
    flushed: bool,
    /// The coder does nothing of it.
    whole_spread: bool,
}

impl Compressor {
    fn is_gzip(&self) -> bool {
        self.stream.kind() == Kind::Deflate
    }

    fn new(stream: Box<dyn CompressStream>) -> Compressor {
        let waiting = Waiting::default();
        Compressor {
            stream,
            checksum: 0,
            length: 0,
            waiting,
            ended: true,
            owes: false,
            spread: None,
            flushed: false,
            whole_spread: false,
        }
    }

    fn start(&mut self) -> Result<(), Error> {
        self.spread = None;
        self.stream.start(&[])?;
        (self.checksum, self.length, self.ended, self.owes) = (0, 0, false, false);
        self.whole_spread = false;
        self.waiting = if self.is_gzip() { Waiting::new(&HEADER) } else { Waiting::default() };
        Ok(())
    }

    fn update(&mut self, input: &[u8], output: &mut [u8], then: Then) -> Result<Moved, Error> {
        let mut written = self.waiting.write(output);
        if self.ended && !input.is_empty() {
            return Err(Error::Invalid("no stream was begun"));
        }
        if self.ended || !self.waiting.is_empty() {
            return Ok(Moved { read: 0, written, done: self.ended && self.waiting.is_empty() });
        }
        if self.spread.is_some() && !self.flushed {
            let moved = self.stream.update(&[], &mut output[written..], Then::Flush)?;
            written += moved.written;
            self.flushed = moved.done;
            if !moved.done {
                return Ok(Moved { read: 0, written, done: false });
            }
        }
        let moved = match &mut self.spread {
            Some(spread) => spread.update(input, &mut output[written..], then)?,
            None => self.stream.update(input, &mut output[written..], then)?,
        };
        written += moved.written;
        if self.spread.is_none() {
            self.owes = (self.owes || then != Then::More) && !moved.done;
            if self.is_gzip() {
                self.checksum = crc32(self.checksum, &input[..moved.read]);
            }
            self.length += moved.read as u64;
        }
        if !moved.done || then != Then::End {
            return Ok(Moved { written, ..moved });
        }
        self.ended = true;
        if self.is_gzip() {
            let spread = self.spread.take();
            let (checksum, length) =
                spread.map_or((self.checksum, self.length), |spread| (spread.checksum, spread.length));
            let (checksum, length) = (checksum.to_le_bytes(), (length as u32).to_le_bytes());
            self.waiting = Waiting::new(&[checksum, length].concat());
            written += self.waiting.write(&mut output[written..]);
        }
        Ok(Moved { read: moved.read, written, done: self.waiting.is_empty() })
    }

    /// Nothing was given yet: all of it goes to a device, in such chunks.
    fn offload(&mut self, crew: Arc<Crew>, level: u8, chunk: usize, most: usize) {
        // The header leaves with the first chunk, and nothing of the coder's own comes before that.
        self.spread = Some(Spread::offloaded(crew, level, chunk, most, &HEADER));
        (self.waiting, self.flushed, self.whole_spread) = (Waiting::default(), true, true);
    }

    /// Whether what follows may go to other cores: more is to come, and the coder waits for it.
    fn may_spread(&self) -> bool {
        self.is_gzip() && !self.ended && !self.owes && self.spread.is_none()
    }

    /// From now on on other cores, in chunks of so many bytes, at most so many bytes at once.
    fn spread(&mut self, crew: Arc<Crew>, level: u8, chunk: usize, most: usize) {
        self.spread = Some(Spread::new(crew, level, chunk, most, self.checksum, self.length));
        self.flushed = false;
    }
}

pub(crate) unsafe extern "C" fn compressor(
    provider: *mut c_void,
    coding: c_int,
    level: c_int,
) -> *mut c_void {
    let mut made = std::ptr::null_mut();
    entry(|| {
        let kind = if coding == 0 { Kind::Deflate } else { Kind::Zstd };
        let level = u8::try_from(level).unwrap_or(0);
        // SAFETY: the table's own pointer, of a live provider.
        let provider = unsafe { Provider::of(provider) };
        if let Ok(stream) = provider.open_compress_stream(kind, level) {
            made = Box::into_raw(Box::new(Compressor::new(stream))).cast();
        }
    });
    made
}

pub(crate) unsafe extern "C" fn start(_: *mut c_void, compressor: *mut c_void) -> c_int {
    // SAFETY: from `compressor`, and not in use now.
    entry(|| c_int::from(unsafe { &mut *compressor.cast::<Compressor>() }.start().is_ok()))
}

/// As `wattlock.h` says.
pub(crate) unsafe extern "C" fn compress(
    provider: *mut c_void,
    compressor: *mut c_void,
    input: *const u8,
    from: *mut usize,
    output: *mut u8,
    to: *mut usize,
    then: c_int,
) -> c_int {
    let mut answer = -1;
    entry(|| {
        // SAFETY: from `compressor`, and not in use now.
        let compressor = unsafe { &mut *compressor.cast::<Compressor>() };
        // SAFETY: the caller's lengths of the caller's buffers; a pointer to nothing may be null.
        let (input, output) = unsafe {
            let input = if *from == 0 { &[] } else { std::slice::from_raw_parts(input, *from) };
            let output = if *to == 0 { &mut [] } else { std::slice::from_raw_parts_mut(output, *to) };
            (input, output)
        };
        let then = match then {
            0 => Then::More,
            1 => Then::Flush,
            _ => Then::End,
        };
        let moved = compressor.update(input, output, then);
        let (read, written, done) = match moved {
            Ok(Moved { read, written, done }) => (read, written, done),
            Err(_) => (0, 0, false),
        };
        // SAFETY: the caller's places.
        unsafe { (*from, *to) = (read, written) };
        if moved.is_ok() {
            // Room is left, and yet it is not done: other cores have it.
            let elsewhere = compressor.spread.is_some() && compressor.flushed && written < output.len();
            answer = if elsewhere && !done { ELSEWHERE } else { c_int::from(done) };
        }
        if done && then == Then::End && !compressor.whole_spread {
            // SAFETY: the table's own pointer, of a live provider.
            unsafe { Provider::of(provider) }.streamed(compressor.stream.kind(), 1, compressor.length);
        }
    });
    answer
}

/// As `wattlock.h` says.
pub(crate) unsafe extern "C" fn descriptor(provider: *mut c_void) -> c_int {
    let mut found = -1;
    entry(|| {
        // SAFETY: the table's own pointer, of a live provider.
        found = unsafe { Provider::of(provider) }.crew().map_or(-1, |crew| crew.descriptor());
    });
    found
}

/// As `wattlock.h` says.
pub(crate) unsafe extern "C" fn spread(
    provider: *mut c_void,
    compressor: *mut c_void,
    level: c_int,
    spent_ns: u64,
    chunk: usize,
    most: usize,
) -> c_int {
    entry(|| {
        // SAFETY: as in `compress`.
        let (provider, compressor) =
            unsafe { (Provider::of(provider), &mut *compressor.cast::<Compressor>()) };
        let quick = spent_ns.saturating_mul(chunk as u64) < CHUNK_NS.saturating_mul(compressor.length.max(1));
        let (enough, chunk) = if quick { (SPREAD_QUICK_NS, chunk.max(most / 2)) } else { (SPREAD_NS, chunk) };
        if spent_ns < enough || !compressor.may_spread() {
            return 0;
        }
        let Some(crew) = provider.crew().filter(|crew| crew.has_room(provider.idle_cores())) else {
            return 0;
        };
        compressor.spread(crew, u8::try_from(level).unwrap_or(0), chunk, most);
        1
    })
}

/// As `wattlock.h` says.
pub(crate) unsafe extern "C" fn offload(
    provider: *mut c_void,
    compressor: *mut c_void,
    level: c_int,
    size: usize,
    chunk: usize,
    most: usize,
) -> c_int {
    entry(|| {
        // SAFETY: the table's own pointer, of a live provider; null, or as in `compress`.
        let (provider, compressor) =
            unsafe { (Provider::of(provider), compressor.cast::<Compressor>().as_mut()) };
        let Some(compressor) = compressor else { return provider.compresses_elsewhere().into() };
        if !compressor.may_spread() || compressor.length > 0 {
            return 0;
        }
        let shape = Shape { kind: Kind::Deflate, bytes: size, class: LatencyClass::Bulk, messages: 1 };
        let Some(crew) = provider.crew().filter(|_| provider.goes_to_device(&shape, 1)) else { return 0 };
        compressor.offload(crew, u8::try_from(level).unwrap_or(0), chunk, most);
        1
    })
}

pub(crate) unsafe extern "C" fn woken(provider: *mut c_void) {
    entry(|| {
        // SAFETY: the table's own pointer, of a live provider.
        if let Some(crew) = unsafe { Provider::of(provider) }.crew() {
            crew.woken();
        }
    });
}

pub(crate) unsafe extern "C" fn free(_: *mut c_void, compressor: *mut c_void) {
    if !compressor.is_null() {
        // SAFETY: from `compressor`, and used no more.
        entry(|| drop(unsafe { Box::from_raw(compressor.cast::<Compressor>()) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Copying;

    impl CompressStream for Copying {
        fn kind(&self) -> Kind {
            Kind::Deflate
        }

        fn start(&mut self, _: &[u8]) -> Result<(), Error> {
            Ok(())
        }

        fn update(&mut self, input: &[u8], output: &mut [u8], _: Then) -> Result<Moved, Error> {
            let len = input.len().min(output.len());
            output[..len].copy_from_slice(&input[..len]);
            Ok(Moved { read: len, written: len, done: len == input.len() })
        }
    }

    #[test]
    fn the_wrapping_comes_out_whole_whatever_the_room() {
        for room in 1..40 {
            let mut compressor = Compressor::new(Box::new(Copying));
            compressor.start().unwrap();
            let (mut rest, mut all) = (&b"123456789"[..], Vec::new());
            loop {
                let mut output = vec![0; room];
                let moved = compressor.update(rest, &mut output, Then::End).unwrap();
                all.extend_from_slice(&output[..moved.written]);
                rest = &rest[moved.read..];
                if moved.done {
                    break;
                }
            }
            // The check value of CRC-32, and the length.
            let trailer = [&0xcbf4_3926_u32.to_le_bytes()[..], &9_u32.to_le_bytes()].concat();
            assert_eq!(all, [&HEADER[..], b"123456789", &trailer].concat(), "room {room}");
            assert!(compressor.update(b"x", &mut [0; 9], Then::End).is_err());
        }
    }

    /// Other cores are asked for at every call that a response has, even while its end is half written.
    #[test]
    fn a_member_is_whole_wherever_other_cores_take_over() {
        let runtime = wattlock::Runtime::builder().telemetry(false).build().unwrap();
        let crew = Arc::new(Crew::new(&runtime, 2, 2).unwrap());
        let content: Vec<u8> = (0..9000_u32).flat_map(|n| (n * n % 1013).to_le_bytes()).collect();
        let (first, rest) = content.split_at(9000);
        let more = rest.chunks(7000).map(|piece| (piece, Then::More));
        let pieces: Vec<(&[u8], Then)> =
            [(first, Then::Flush)].into_iter().chain(more).chain([(&b"end"[..], Then::End)]).collect();
        for (level, room) in [(1, 700), (6, 700), (6, 4096), (9, 64)] {
            let mut taken = 0;
            for at in 0.. {
                let stream = runtime.local(|one| one.open_compress_stream(Kind::Deflate, level)).unwrap();
                let mut compressor = Compressor::new(stream);
                compressor.start().unwrap();
                let (mut all, mut output, mut calls) = (Vec::new(), vec![0; room], 0);
                for (mut rest, then) in pieces.iter().copied() {
                    loop {
                        if calls == at && compressor.may_spread() {
                            compressor.spread(crew.clone(), level, 8192, 32768);
                            taken += 1;
                        }
                        calls += 1;
                        let moved = compressor.update(rest, &mut output, then).unwrap();
                        all.extend_from_slice(&output[..moved.written]);
                        rest = &rest[moved.read..];
                        if moved.done {
                            break;
                        }
                        std::thread::yield_now();
                    }
                }
                let mut found = vec![0; content.len() + 4];
                let mut inflate = zlib_rs::Inflate::new(true, 31);
                let status = inflate.decompress(&all, &mut found, zlib_rs::InflateFlush::Finish);
                assert_eq!(status, Ok(zlib_rs::Status::StreamEnd), "level {level}, room {room}, call {at}");
                assert_eq!(inflate.total_in() as usize, all.len());
                assert_eq!(&found[..content.len() + 3], [&content[..], b"end"].concat());
                if calls <= at {
                    break;
                }
            }
            assert!(taken > 5, "{taken}");
        }
    }
}
