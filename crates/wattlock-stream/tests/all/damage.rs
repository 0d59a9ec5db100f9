//! Everything that can happen to a stream on its way: what is released is its true beginning, and the error says what
//! happened.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use std::fs::File;
use std::io::Write;

use common::*;
use wattlock::Runtime;
use wattlock_files::Opener;
use wattlock_stream::Framing;
use wattlock_stream::pipe::{self, Ends};

const LEN: usize = 100;

/// A stream of five full frames and an end of 23 bytes.
struct Subject {
    pair: Pair,
    opener: Opener,
    runtime: Runtime,
    plain: Vec<u8>,
    sealed: Vec<u8>,
}

impl Subject {
    fn new() -> Subject {
        let (pair, plain) = (Pair::new(), content(5 * LEN + 23));
        let sealed = seal(&pair, &plain, &in_frames(Framing::Raw, LEN));
        Subject { opener: pair.opener(), runtime: runtime(), pair, plain, sealed }
    }

    /// Opens a changed stream: the exit code, and how many whole frames were released. Anything else that comes out
    /// fails the test.
    fn opened(&self, sealed: &[u8]) -> (u8, usize) {
        let (outcome, opened) = open(&self.opener, &self.runtime, sealed);
        let code = outcome.map_or_else(|error| error.exit_code(), |_| 0);
        assert!(self.plain.starts_with(&opened), "something else was released");
        assert!(opened.len().is_multiple_of(LEN) || opened == self.plain, "a part of a frame was released");
        assert_eq!(code == 0, sealed == self.sealed);
        (code, opened.len().div_ceil(LEN))
    }

    /// The stream with its frames in that order.
    fn arranged(&self, order: &[usize]) -> Vec<u8> {
        let frames = frames(&self.sealed);
        let mut other = self.sealed[..frames[0].start].to_vec();
        order.iter().for_each(|frame| other.extend_from_slice(&self.sealed[frames[*frame].clone()]));
        other
    }
}

#[test]
fn a_cut_anywhere_is_a_cut() {
    let subject = Subject::new();
    let frames = frames(&subject.sealed);
    assert_eq!(frames.len(), 6);
    for len in 1..subject.sealed.len() {
        let whole = frames.iter().filter(|frame| frame.end <= len).count();
        assert_eq!(subject.opened(&subject.sealed[..len]), (36, whole), "{len}");
    }
    assert_eq!(subject.opened(b""), (20, 0));
    assert_eq!(subject.opened(&subject.sealed), (0, 6));
}

#[test]
fn a_flipped_bit_anywhere_is_found_before_its_frame_is_released() {
    let subject = Subject::new();
    let frames = frames(&subject.sealed);
    for at in 0..subject.sealed.len() {
        let mut other = subject.sealed.clone();
        other[at] ^= 1 << (at % 8);
        let (code, released) = subject.opened(&other);
        let Some(frame) = frames.iter().position(|frame| frame.contains(&at)) else {
            assert!(code != 0 && released == 0, "{at}: {code}");
            continue;
        };
        // A length that became larger reaches beyond the input.
        let expected: &[u8] = if at < frames[frame].start + 4 { &[32, 36] } else { &[32] };
        assert!(expected.contains(&code), "{at}: {code}");
        assert_eq!(released, frame, "{at}");
    }
}

#[test]
fn frames_that_move_repeat_or_vanish_are_found() {
    let subject = Subject::new();
    for (order, released) in [
        (&[1, 0, 2, 3, 4, 5][..], 0),
        (&[0, 1, 1, 2, 3, 4, 5], 2),
        (&[0, 2, 3, 4, 5], 1),
        (&[0, 1, 2, 3, 5], 4),
        (&[5], 0),
        (&[0, 1, 5, 2, 3, 4], 2),
    ] {
        assert_eq!(subject.opened(&subject.arranged(order)), (32, released), "{order:?}");
    }
    // All that was released is true and the end is verified: what follows it is another error.
    assert_eq!(subject.opened(&subject.arranged(&[0, 1, 2, 3, 4, 5, 5])), (34, 6));
    let extended = [&subject.sealed[..], b"x"].concat();
    assert_eq!(subject.opened(&extended), (34, 6));
    let twice = subject.sealed.repeat(2);
    assert_eq!(subject.opened(&twice), (34, 6));
}

#[test]
fn an_extension_that_comes_later_is_found_too() {
    let subject = Subject::new();
    let ((from, to), (out_from, out_to)) = (pipe(), pipe());
    let mut to = File::from(to);
    to.write_all(&subject.sealed).unwrap();
    let (pair, runtime) = (&subject.pair, &subject.runtime);
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            let ends = Ends { input: from, output: out_to, stop: None };
            pipe::open(ends, &pair.opener(), 1, runtime)
        });
        let mut out = File::from(out_from);
        let mut opened = vec![0; subject.plain.len()];
        std::io::Read::read_exact(&mut out, &mut opened).unwrap();
        assert!(opened == subject.plain, "the content waits for nothing");
        to.write_all(b"x").unwrap();
        drop(to);
        assert_eq!(opening.join().unwrap().unwrap_err().exit_code(), 34);
    });
}

#[test]
fn a_frame_of_another_stream_is_foreign_though_recipient_number_and_content_agree() {
    let subject = Subject::new();
    let other = seal(&subject.pair, &subject.plain, &in_frames(Framing::Raw, LEN));
    let (own, foreign) = (frames(&subject.sealed), frames(&other));
    let mut mixed = subject.sealed.clone();
    mixed[own[3].clone()].copy_from_slice(&other[foreign[3].clone()]);
    assert_eq!(subject.opened(&mixed), (32, 3));
    let start = own[0].start;
    let under_its_start = [&other[..foreign[0].start], &subject.sealed[start..]].concat();
    assert_eq!(subject.opened(&under_its_start), (32, 0));
    let salt = start - 56;
    let with_its_salt = [&subject.sealed[..salt], &other[foreign[0].start - 56..]].concat();
    assert_eq!(subject.opened(&with_its_salt), (33, 0));
}

#[test]
fn an_end_that_is_forged_or_taken_away_is_found() {
    let subject = Subject::new();
    let frames = frames(&subject.sealed);
    let with_flag = |frame: usize, flags: u8, keep: usize| {
        let mut other = subject.sealed.clone();
        other[frames[frame].start] = flags;
        other.truncate(frames[keep].end);
        other
    };
    assert_eq!(subject.opened(&with_flag(2, 0x80, 2)), (32, 2), "an early end");
    assert_eq!(subject.opened(&with_flag(5, 0, 5)), (32, 5), "no end");
    assert_eq!(subject.opened(&with_flag(2, 1, 5)), (32, 2), "the end of a record");
    assert_eq!(subject.opened(&with_flag(2, 2, 5)), (32, 2), "a new key");
    assert_eq!(subject.opened(&with_flag(5, 0x82, 5)), (32, 5), "both");
    assert_eq!(subject.opened(&with_flag(0, 0x40, 5)), (32, 0), "an unknown kind");
}

/// The input stays open: an implementation that believed the length would wait for, and take memory for, 16 MiB.
#[test]
fn a_length_above_the_limit_is_refused_without_waiting_for_its_bytes() {
    let subject = Subject::new();
    let start = frames(&subject.sealed)[0].start;
    let ((from, to), (out_from, out_to)) = (pipe(), pipe());
    let mut to = File::from(to);
    to.write_all(&subject.sealed[..start]).unwrap();
    to.write_all(&[0, 0x10, 0, 1]).unwrap();
    let ends = Ends { input: from, output: out_to, stop: None };
    let outcome = pipe::open(ends, &subject.opener, 1, &subject.runtime);
    assert_eq!(outcome.unwrap_err().exit_code(), 32);
    assert!(read_all(out_from).is_empty());
    for (at, bytes, code) in [(12, [0xff; 4], 23), (8, [0, 0, 0, 2], 22), (4, *b"tlk\n", 21)] {
        let mut fixed: [u8; 16] = subject.sealed[..16].try_into().unwrap();
        fixed[at..at + 4].copy_from_slice(&bytes);
        let (from, header) = pipe();
        let mut header = File::from(header);
        header.write_all(&fixed).unwrap();
        let output = File::options().write(true).open("/dev/null").unwrap().into();
        let outcome =
            pipe::open(Ends { input: from, output, stop: None }, &subject.opener, 1, &subject.runtime);
        assert_eq!(outcome.unwrap_err().exit_code(), code);
    }
}

#[test]
fn without_the_right_key_nothing_is_released() {
    let subject = Subject::new();
    let stranger = Pair::new().opener();
    let (outcome, opened) = open(&stranger, &subject.runtime, &subject.sealed);
    assert_eq!((outcome.unwrap_err().exit_code(), opened.len()), (12, 0));
}

#[test]
fn damage_behind_a_change_of_keys_is_found_where_it_is() {
    let (pair, plain) = (Pair::new(), content(2 << 20));
    let settings = wattlock_stream::pipe::Sealing { new_key_bytes: 1, ..one_worker() };
    let sealed = seal(&pair, &plain, &settings);
    let frames = frames(&sealed);
    let (opener, runtime) = (pair.opener(), runtime());
    for at in [frames[9].start + 1000, frames[20].end - 1] {
        let mut other = sealed.clone();
        other[at] ^= 1;
        let (outcome, opened) = open(&opener, &runtime, &other);
        assert_eq!(outcome.unwrap_err().exit_code(), 32);
        let frame = frames.iter().position(|frame| frame.contains(&at)).unwrap();
        assert!(opened == plain[..frame * 65_536], "{frame}");
    }
}
