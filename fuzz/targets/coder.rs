//! What nginx's compression filter calls, against zlib: content in random pieces, with random room, flushes at random
//! places and other cores asked for help. zlib's decoder finds the content, all of it that was flushed as soon as the
//! flush is done, and nothing behind the end.
#![no_main]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use libfuzzer_sys::fuzz_target;
use libz_sys::{Z_OK, Z_STREAM_END, Z_SYNC_FLUSH, inflate, inflateEnd, inflateInit2_, z_stream, zlibVersion};
use wattlock_fuzz::Bytes;

#[path = "ossl.rs"]
mod ossl;

/// What `compress` answers while other cores work.
const ELSEWHERE: c_int = 2;

/// zlib's decoder of gzip members.
struct Decoder(Box<z_stream>, Vec<u8>, bool);

impl Decoder {
    fn new() -> Decoder {
        // Zero is what zlib asks for: its own allocator, no input.
        let mut stream = Box::new(MaybeUninit::<z_stream>::zeroed());
        // SAFETY: a stream that is not initialised yet, and its true size.
        let made =
            unsafe { inflateInit2_(stream.as_mut_ptr(), 31, zlibVersion(), size_of::<z_stream>() as c_int) };
        assert_eq!(made, Z_OK);
        // SAFETY: zlib has put its functions where zeros were. It stays where it is: zlib's state points to it.
        let stream = unsafe { Box::from_raw(Box::into_raw(stream).cast::<z_stream>()) };
        Decoder(stream, Vec::new(), false)
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        let mut room = vec![0; 1 << 14];
        loop {
            assert!(!self.2 || bytes.is_empty(), "something behind the end");
            if self.2 {
                return;
            }
            let stream = &mut *self.0;
            (stream.next_in, stream.avail_in) = (bytes.as_ptr().cast_mut(), bytes.len() as _);
            (stream.next_out, stream.avail_out) = (room.as_mut_ptr(), room.len() as _);
            // SAFETY: an initialised stream with buffers of these lengths.
            let status = unsafe { inflate(stream, Z_SYNC_FLUSH) };
            let (read, len) =
                (bytes.len() - stream.avail_in as usize, room.len() - stream.avail_out as usize);
            self.1.extend_from_slice(&room[..len]);
            bytes = &bytes[read..];
            self.2 = status == Z_STREAM_END;
            assert!(matches!(status, Z_OK | Z_STREAM_END | libz_sys::Z_BUF_ERROR), "zlib says {status}");
            if len == 0 && read == 0 {
                assert!(bytes.is_empty());
                return;
            }
        }
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: initialised, and used no more.
        unsafe { inflateEnd(&mut *self.0) };
    }
}

/// Content that compresses, more or less.
fn content(bytes: &mut Bytes<'_>) -> Vec<u8> {
    let (seed, len) = (bytes.part().to_vec(), bytes.below(1 << 18));
    let noise = bytes.byte() % 3;
    let mut state = 1_u64;
    let byte = |at: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let from = seed.get(at % seed.len().max(1)).copied().unwrap_or(7);
        if noise > 0 && state >> (64 - u32::from(noise)) == 0 { (state >> 40) as u8 } else { from }
    };
    (0..len).map(byte).collect()
}

fuzz_target!(|bytes: &[u8]| {
    let table = ossl::loaded().table;
    let mut bytes = Bytes(bytes);
    let level = 1 + c_int::from(bytes.byte() % 9);
    let content = content(&mut bytes);
    // SAFETY: as nginx calls them: a live provider, a compressor of its own, freed once below.
    let compressor: *mut c_void = unsafe { (table.compressor)(table.provider, 0, level) };
    assert!(!compressor.is_null());
    // Used more than once: a stream may be given up in the middle.
    for round in 0..2 {
        let given_up = round == 0 && bytes.byte() < 40;
        // SAFETY: from `compressor`.
        assert_eq!(unsafe { (table.compress_start)(table.provider, compressor) }, 1);
        let (mut decoder, mut at) = (Decoder::new(), 0);
        loop {
            let piece = match bytes.byte() % 4 {
                _ if bytes.is_empty() => content.len(),
                0 => 0,
                1 => bytes.below(20),
                2 => bytes.below(70_000),
                _ => content.len(),
            };
            let end = (at + piece).min(content.len());
            let then = match bytes.byte() % 4 {
                0 | 1 if end < content.len() => 0,
                2 if end < content.len() => 1,
                _ if end == content.len() => 2,
                _ => 0,
            };
            let mut turns = 0;
            loop {
                turns += 1;
                // The table asks for this room.
                let room_len = if bytes.is_empty() { 1 << 16 } else { 32 + bytes.below(40_000) };
                let mut room = vec![0; room_len];
                let (mut from, mut to) = (end - at, room.len());
                // SAFETY: lengths of these buffers.
                let done = unsafe {
                    (table.compress)(
                        table.provider,
                        compressor,
                        content[at..].as_ptr(),
                        &mut from,
                        room.as_mut_ptr(),
                        &mut to,
                        then,
                    )
                };
                assert!(done >= 0 && from <= end - at && to <= room.len());
                at += from;
                decoder.feed(&room[..to]);
                if done == 1 {
                    break;
                }
                if done == ELSEWHERE {
                    // What the loop does when the descriptor is readable.
                    std::thread::yield_now();
                    // SAFETY: a live provider.
                    unsafe { (table.compress_woken)(table.provider) };
                }
                assert!(turns < 2_000_000, "it never ends");
            }
            assert_eq!(at, end);
            assert!(content.starts_with(&decoder.1));
            if then == 1 {
                assert!(
                    decoder.1.len() == end,
                    "a flush left {} of {end} bytes behind",
                    end - decoder.1.len()
                );
            }
            if then == 2 {
                assert!(decoder.2 && decoder.1 == content, "not the content");
                break;
            }
            if given_up {
                break;
            }
            if bytes.byte() < 60 {
                let chunk = 8192 + bytes.below(40_000);
                // SAFETY: from `compressor`. It may say no.
                let _ = unsafe {
                    (table.compress_spread)(
                        table.provider,
                        compressor,
                        level,
                        u64::MAX >> 8,
                        chunk,
                        4 * chunk,
                    )
                };
            }
        }
    }
    // SAFETY: from `compressor`, and used no more.
    unsafe { (table.compressor_free)(table.provider, compressor) };
});
