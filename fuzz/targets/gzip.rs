//! `gzip -d`: any bytes, and any deflate stream as a member with a right or a wrong end, against another decoder.
#![no_main]

use std::io::{Cursor, Write};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use miniz_oxide::inflate::decompress_slice_iter_to_slice;
use wattlock_door::Output;
use wattlock_files::{Error, Input, Progress, gunzip};
use wattlock_fuzz::Bytes;

static NEVER: AtomicBool = AtomicBool::new(false);
/// Longest content of a member that is compared.
const ROOM: usize = 1 << 16;

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn opened(bytes: &[u8]) -> (Result<(), Error>, Vec<u8>) {
    let sink = Sink::default();
    let input = Input::Stream(Box::new(Cursor::new(bytes.to_vec())));
    let result = gunzip(input, Output::Stream(Box::new(sink.clone())), Progress::new(&NEVER)).map(drop);
    let content = std::mem::take(&mut *sink.0.lock().expect("no writer panics"));
    (result, content)
}

/// CRC-32 of gzip, bit by bit.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1)))
    })
}

fuzz_target!(|bytes: &[u8]| {
    if let (Err(error), _) = opened(bytes) {
        assert!(!error.to_string().contains('\n'));
    }
    let mut bytes = Bytes(bytes);
    let (how, at) = (bytes.byte(), bytes.byte());
    let (deflate, mut content) = (bytes.take(4096), vec![0; ROOM]);
    let decoded = decompress_slice_iter_to_slice(&mut content, std::iter::once(deflate), false, true);
    let Ok(len) = decoded else { return };
    content.truncate(len);
    // Another decoder stops at the stream's end and says nothing of what follows.
    let mut member = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    member.extend(miniz_oxide::deflate::compress_to_vec(&content, how % 11));
    member.extend(crc(&content).to_le_bytes());
    member.extend((len as u32).to_le_bytes());
    let (result, got) = opened(&member);
    assert!(result.is_ok() && got == content, "a right member");
    let (result, got) = opened(&[&member[..], &member, &[0, 0]].concat());
    assert!(result.is_ok() && got == [&content[..], &content].concat(), "two of them, and padding");
    let end = member.len() - 1 - usize::from(at) % 8;
    member[end] ^= how | 1;
    assert!(opened(&member).0.is_err(), "a wrong end");
    // The stream itself, as somebody else's coder wrote it.
    let mut member = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    member.extend(deflate);
    let (_, got) = opened(&member);
    assert!(got.starts_with(&content) || content.starts_with(&got), "another content");
});
