//! What was sealed opens to the same bytes: every length around every boundary, every way in and out.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use common::*;
use std::fs;
use std::io::Write;
use wattlock_door::Output;
use wattlock_files::{Format, Input, Opened};

const CHUNK: usize = 1 << 14;
const SEGMENT: usize = 1 << 20;

/// Lengths around the ends of chunks of both formats, of a segment, and of several.
const LENGTHS: [usize; 20] = [
    0,
    1,
    CHUNK - 1,
    CHUNK,
    CHUNK + 1,
    2 * CHUNK,
    4 * CHUNK - 1,
    4 * CHUNK,
    4 * CHUNK + 1,
    8 * CHUNK,
    SEGMENT - CHUNK,
    SEGMENT - 1,
    SEGMENT,
    SEGMENT + 1,
    SEGMENT + CHUNK,
    2 * SEGMENT - 1,
    2 * SEGMENT,
    2 * SEGMENT + 1,
    5 * SEGMENT,
    5 * SEGMENT + 12_345,
];

#[test]
fn every_boundary_length_comes_back_through_streams_and_files() {
    let pair = Pair::new();
    for format in FORMATS {
        let (sealer, opener) = (pair.sealer().format(format), pair.opener());
        for len in LENGTHS {
            let plain = content(len);
            assert!(open(&opener, &seal(&sealer, &plain)).unwrap() == plain, "{format:?} {len}");
        }
    }
}

#[test]
fn sealing_a_file_at_positions_gives_a_file_of_the_documented_length() {
    let pair = Pair::new();
    let directory = tempfile::tempdir().unwrap();
    for (format, len) in FORMATS.into_iter().flat_map(|format| LENGTHS.map(|len| (format, len))) {
        let (from, to) = (directory.path().join("in"), directory.path().join("out"));
        let plain = content(len);
        fs::write(&from, &plain).unwrap();
        let output = Output::Path { path: to.clone(), force: true };
        pair.sealer().format(format).seal(Input::Path(from), output, &Double, progress()).unwrap();
        let sealed = fs::read(&to).unwrap();
        let payload = match format {
            Format::Sealed => {
                let key = u32::from_be_bytes(sealed[12..16].try_into().unwrap()) as usize;
                sealed.len() - 16 - key - 56 - (len / CHUNK + 1) * 16
            }
            _ => {
                let header = wattlock_files::format::age::parse_header(&sealed).unwrap().len;
                sealed.len() - header - 16 - len.div_ceil(1 << 16).max(1) * 16
            }
        };
        assert_eq!(payload, len, "{format:?}");
        assert!(open(&pair.opener(), &sealed).unwrap() == plain, "{format:?} {len}");
    }
}

#[test]
fn armor_comes_back_in_both_formats() {
    let pair = Pair::new();
    for (format, len) in
        FORMATS.into_iter().flat_map(|format| [0, 1, 50_000, SEGMENT + 1].map(|len| (format, len)))
    {
        let sealed = seal(&pair.sealer().format(format).armor(true), &content(len));
        assert!(sealed.is_ascii() && sealed.starts_with(b"-----BEGIN "));
        assert!(open(&pair.opener(), &sealed).unwrap() == content(len));
        assert_eq!(open_stream(&pair.opener(), &sealed).0.unwrap(), Opened { format, armor: true });
    }
}

#[test]
fn armored_output_file_is_whole() {
    let pair = Pair::new();
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("out");
    pair.sealer().armor(true).seal(stream(b"hello"), to_file(&to), &Double, progress()).unwrap();
    assert!(fs::read_to_string(&to).unwrap().ends_with("-----END WATTLOCK SEALED FILE-----\n"));
    assert_eq!(open(&pair.opener(), &fs::read(&to).unwrap()).unwrap(), b"hello");
}

#[test]
fn named_pipe_is_read_and_written() {
    let pair = Pair::new();
    let directory = tempfile::tempdir().unwrap();
    let (pipe, sealed) = (directory.path().join("pipe"), directory.path().join("sealed"));
    rustix_mkfifo(&pipe);
    let plain = content(3 * SEGMENT + 7);
    std::thread::scope(|scope| {
        scope.spawn(|| fs::OpenOptions::new().write(true).open(&pipe).unwrap().write_all(&plain).unwrap());
        pair.sealer().seal(Input::Path(pipe.clone()), to_file(&sealed), &Double, progress()).unwrap();
    });
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| fs::read(&pipe).unwrap());
        pair.opener().open(Input::Path(sealed), to_file(&pipe), &Double, progress()).unwrap();
        assert!(reader.join().unwrap() == plain);
    });
}

fn rustix_mkfifo(path: &std::path::Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_file_without_a_known_length_is_read_to_its_end() {
    let pair = Pair::new();
    let directory = tempfile::tempdir().unwrap();
    let sealed = directory.path().join("sealed");
    let source = Input::Path("/proc/self/cmdline".into());
    pair.sealer().seal(source, to_file(&sealed), &Double, progress()).unwrap();
    let plain = open(&pair.opener(), &fs::read(&sealed).unwrap()).unwrap();
    assert_eq!(plain, fs::read("/proc/self/cmdline").unwrap());
    assert!(!plain.is_empty());
}

#[test]
fn progress_adds_up_to_the_input() {
    let pair = Pair::new();
    let directory = tempfile::tempdir().unwrap();
    let from = directory.path().join("in");
    fs::write(&from, content(3 * SEGMENT + 5)).unwrap();
    let done = std::sync::atomic::AtomicU64::new(0);
    let count = |bytes| {
        done.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
    };
    let output = Output::Stream(Box::new(Kept::default()));
    pair.sealer().seal(Input::Path(from), output, &Double, progress().on_bytes(&count)).unwrap();
    assert_eq!(done.into_inner(), 3 * SEGMENT as u64 + 5);
}

#[test]
fn two_seals_of_the_same_content_share_nothing() {
    let pair = Pair::new();
    let (one, other) = (seal(&pair.sealer(), &[0; 64]), seal(&pair.sealer(), &[0; 64]));
    assert_ne!(one[one.len() - 80..], other[other.len() - 80..]);
}
