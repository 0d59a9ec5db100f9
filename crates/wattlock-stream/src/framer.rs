//! Puts what a producer writes into frames, in the buffer in which they are sealed.
//!
//! Pure: the time is an argument, nothing is read or written. A frame closes when it is full, when its caller says so
//! (the latency bound, or the policy), or at the end. It is closed where a record ends; a record that fits into a frame
//! is never split. What lies behind that place moves to the next frame.

use wattlock_core::Nanos;
use zeroize::Zeroizing;

use crate::format::{FRAME_EXTRA, FRAME_MAX, Flags, Frame, HEAD_LEN, Head};
use crate::framing::{Framing, Scanner};

/// Content of a full frame unless the caller says otherwise. age has chunks of as many bytes; a pipe holds as many.
pub const FRAME_LEN: usize = 1 << 16;

/// Bytes of frames that are sealed, or opened, in one call: four full ones. It fits a core's second-level cache.
pub const SEGMENT_LEN: usize = 4 * (FRAME_LEN + FRAME_EXTRA);

/// A buffer, and the frames in it. Wiped when it is dropped.
#[derive(Debug, Default)]
pub struct Segment {
    pub(crate) buffer: Zeroizing<Vec<u8>>,
    pub(crate) frames: Vec<Frame>,
}

impl Segment {
    pub(crate) fn new(len: usize) -> Segment {
        Segment { buffer: Zeroizing::new(vec![0; len]), frames: Vec::new() }
    }

    /// Makes the buffer at least as long as that, and keeps its first `keep` bytes. The old one is wiped.
    pub(crate) fn grow(&mut self, len: usize, keep: usize) {
        if self.buffer.len() < len {
            let mut longer = Zeroizing::new(vec![0; len]);
            longer[..keep].copy_from_slice(&self.buffer[..keep]);
            self.buffer = longer;
        }
    }

    /// The frames.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The bytes of all frames; they lie one behind the other.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.frames.last().map_or(0, Frame::end)]
    }

    /// A frame's content.
    pub fn content(&self, frame: &Frame) -> &[u8] {
        &self.buffer[frame.content()]
    }
}

/// Fills one segment after the other.
pub struct Framer {
    limit: usize,
    records: bool,
    scanner: Scanner,
    segment: Segment,
    /// Where the open frame begins, the bytes of content that it has, and how many of them are whole records.
    at: usize,
    filled: usize,
    whole: usize,
    /// When the first of those whole records was there; the same of the segment's closed frames.
    since: Option<Nanos>,
    oldest: Option<Nanos>,
}

impl Framer {
    /// With frames of at most `limit` bytes of content, which is cut to what the format allows.
    pub fn new(framing: Framing, limit: usize) -> Framer {
        let limit = limit.clamp(1, FRAME_MAX);
        Framer {
            limit,
            records: framing != Framing::Raw,
            scanner: Scanner::new(framing),
            segment: Framer::fresh_for(limit),
            at: 0,
            filled: 0,
            whole: 0,
            since: None,
            oldest: None,
        }
    }

    /// A frame that begins before [`SEGMENT_LEN`] always fits, and behind it the head of the next one, which has what is
    /// left of its content.
    fn fresh_for(limit: usize) -> Segment {
        Segment::new(SEGMENT_LEN + limit + FRAME_EXTRA + HEAD_LEN)
    }

    /// A segment for [`Framer::take`].
    pub fn fresh(&self) -> Segment {
        Framer::fresh_for(self.limit)
    }

    /// Where the next bytes belong. Never empty.
    pub fn space(&mut self) -> &mut [u8] {
        let content = self.at + HEAD_LEN;
        &mut self.segment.buffer[content + self.filled..content + self.limit]
    }

    /// The first `len` bytes of [`Framer::space`] were filled.
    pub fn on_read(&mut self, len: usize, now: Nanos) {
        let from = self.at + HEAD_LEN + self.filled;
        if let Some(end) = self.scanner.advance(&self.segment.buffer[from..from + len]) {
            self.whole = self.filled + end;
            self.since.get_or_insert(now);
        }
        self.filled += len;
        if self.filled == self.limit {
            self.close_at(if self.whole > 0 { self.whole } else { self.filled }, Flags::NONE);
        }
    }

    /// When the oldest content that could leave in the open frame was there. Its latency counts from then.
    pub fn since(&self) -> Option<Nanos> {
        self.since
    }

    /// Whether a frame is closed and waits to be taken.
    pub fn has_closed(&self) -> bool {
        !self.segment.frames.is_empty()
    }

    /// Whether the segment must be taken before more is read.
    pub fn is_full(&self) -> bool {
        self.at >= SEGMENT_LEN
    }

    /// Whether an end of the input here would cut a record that says how long it is.
    pub fn cuts_record(&self) -> bool {
        self.scanner.cut()
    }

    /// Bytes of content in the segment.
    pub fn content(&self) -> u64 {
        let closed: usize = self.segment.frames.iter().map(|frame| frame.head.len).sum();
        (closed + self.filled) as u64
    }

    /// Closed frames in the segment.
    pub fn frames(&self) -> usize {
        self.segment.frames.len()
    }

    /// Bytes that the open frame can still take.
    pub fn room(&self) -> usize {
        self.limit - self.filled
    }

    /// Closes the open frame behind its last whole record, if it has one.
    pub fn close(&mut self) {
        if self.whole > 0 {
            self.close_at(self.whole, Flags::NONE);
        }
    }

    /// Closes the open frame with everything in it, if anything is.
    pub fn close_all(&mut self) {
        if self.filled > 0 {
            self.close_at(self.filled, Flags::NONE);
        }
    }

    /// A frame without content, if nothing can leave: what the other side answers to it shows whether it is there.
    pub fn close_empty(&mut self) {
        if self.whole == 0 && !self.has_closed() {
            self.close_at(0, Flags::NONE);
        }
    }

    /// Closes the open frame with everything in it, as the last one.
    pub fn end(&mut self) {
        self.close_at(self.filled, Flags::END);
    }

    fn close_at(&mut self, len: usize, flags: Flags) {
        let record_end = self.records && len > 0 && len == self.whole;
        let flags = if record_end { flags.and(Flags::RECORD_END) } else { flags };
        let frame = Frame { at: self.at, head: Head { flags, len } };
        let content = frame.content();
        let (next, tail) = (frame.end(), self.filled - len);
        self.segment.frames.push(frame);
        self.segment.buffer.copy_within(content.end..content.end + tail, next + HEAD_LEN);
        self.oldest = self.oldest.or(self.since.take());
        (self.at, self.filled, self.whole, self.since) = (next, tail, 0, None);
    }

    /// Says in the last closed frame that a new key follows it. False if there is none, or if it is the last of all.
    pub fn announce_new_key(&mut self) -> bool {
        match self.segment.frames.last_mut() {
            Some(frame) if !frame.head.flags.has(Flags::END) => {
                frame.head.flags = frame.head.flags.and(Flags::NEW_KEY);
                true
            }
            _ => false,
        }
    }

    /// The closed frames, and when their oldest content was there. The open frame goes on in `fresh`.
    pub fn take(&mut self, mut fresh: Segment) -> (Segment, Option<Nanos>) {
        fresh.frames.clear();
        let from = self.at + HEAD_LEN;
        fresh.buffer[HEAD_LEN..HEAD_LEN + self.filled]
            .copy_from_slice(&self.segment.buffer[from..from + self.filled]);
        self.at = 0;
        (std::mem::replace(&mut self.segment, fresh), self.oldest.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds `bytes` in pieces, closing after each piece if `flush` says so: contents and flags of the frames.
    fn frames(
        framing: Framing,
        limit: usize,
        bytes: &[u8],
        piece: usize,
        flush: impl Fn(usize) -> bool,
    ) -> Vec<(Vec<u8>, Flags)> {
        let mut framer = Framer::new(framing, limit);
        let mut all = Vec::new();
        let mut take = |framer: &mut Framer| {
            let fresh = framer.fresh();
            let (segment, _) = framer.take(fresh);
            let kept =
                segment.frames().iter().map(|frame| (segment.content(frame).to_vec(), frame.head.flags));
            all.extend(kept);
        };
        for (index, part) in bytes.chunks(piece).enumerate() {
            let mut part = part;
            while !part.is_empty() {
                let space = framer.space();
                let len = space.len().min(part.len());
                space[..len].copy_from_slice(&part[..len]);
                framer.on_read(len, 0);
                part = &part[len..];
                if framer.is_full() {
                    take(&mut framer);
                }
            }
            if flush(index) {
                framer.close();
                take(&mut framer);
            }
        }
        framer.end();
        take(&mut framer);
        all
    }

    #[test]
    fn a_record_that_fits_is_not_split_and_a_longer_one_ends_in_a_marked_frame() {
        let lines = b"aaa\nbbbbbb\ncc\nddddddddddddddddddd\ne\nf";
        let got = frames(Framing::Lines, 10, lines, 3, |_| false);
        let text: Vec<_> = got.iter().map(|(text, _)| std::str::from_utf8(text).unwrap()).collect();
        // The long line's last byte fills the second of its frames.
        assert_eq!(text, ["aaa\n", "bbbbbb\ncc\n", "dddddddddd", "ddddddddd\n", "e\nf"]);
        let ends: Vec<_> = got.iter().map(|(_, flags)| flags.has(Flags::RECORD_END)).collect();
        assert_eq!(ends, [true, true, false, true, false]);
        assert!(got.last().is_some_and(|(_, flags)| flags.has(Flags::END)));
    }

    #[test]
    fn a_frame_is_closed_behind_whole_records_only() {
        let mut framer = Framer::new(Framing::Lines, 100);
        framer.space()[..5].copy_from_slice(b"a\nbcd");
        framer.on_read(3, 7);
        assert_eq!(framer.since(), Some(7));
        framer.on_read(2, 9);
        assert_eq!(framer.since(), Some(7), "the oldest line counts");
        framer.close();
        assert_eq!(framer.since(), None, "half a line has no latency yet");
        framer.close();
        let (segment, oldest) = framer.take(Segment::new(0x60000));
        assert_eq!((segment.frames().len(), oldest), (1, Some(7)));
        assert_eq!(segment.content(&segment.frames()[0]), b"a\n");
        framer.end();
        let (segment, _) = framer.take(segment);
        assert_eq!(segment.content(&segment.frames()[0]), b"bcd");
    }

    #[test]
    fn a_frame_at_the_end_of_a_segment_fits_with_the_beginning_of_the_next_one() {
        const LIMIT: usize = 4096;
        for before in 1..=FRAME_EXTRA + 1 {
            let mut framer = Framer::new(Framing::Lines, LIMIT);
            // Lines that end so many bytes before the segment is full.
            while framer.at < SEGMENT_LEN - before {
                let left = SEGMENT_LEN - before - framer.at - FRAME_EXTRA;
                let len = if left < LIMIT { left } else { LIMIT / 2 };
                framer.space()[..len].fill(b'x');
                framer.space()[len - 1] = b'\n';
                framer.on_read(len, 0);
                framer.close();
            }
            assert_eq!(framer.at, SEGMENT_LEN - before);
            // A short line, and the beginning of one that is as long as a frame.
            framer.space().fill(b'y');
            framer.space()[0] = b'\n';
            framer.on_read(LIMIT, 0);
            assert!(framer.is_full() && framer.filled == LIMIT - 1, "{before}");
            let fresh = framer.fresh();
            let (segment, _) = framer.take(fresh);
            let closed = segment.frames().last().unwrap();
            assert_eq!(segment.content(closed), b"\n", "{before}");
            framer.end();
            let (segment, _) = framer.take(segment);
            assert_eq!(segment.content(&segment.frames()[0]), [b'y'; LIMIT - 1], "{before}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever the pieces, limits and moments of closing: nothing is lost, nothing is too long, no frame but the
        /// last is empty, and exactly one is the last.
        #[test]
        fn frames_hold_the_content_and_nothing_else(
            content in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..3000),
            limit in 1usize..200,
            piece in 1usize..400,
            every in 1usize..9,
            framing in prop_oneof![Just(Framing::Raw), Just(Framing::Lines), Just(Framing::Length)],
        ) {
            let got = frames(framing, limit, &content, piece, |index| index % every == 0);
            let joined: Vec<u8> = got.iter().flat_map(|(text, _)| text.clone()).collect();
            prop_assert_eq!(joined, content);
            for (index, (text, flags)) in got.iter().enumerate() {
                prop_assert!(text.len() <= limit);
                prop_assert!(!text.is_empty() || index + 1 == got.len());
                prop_assert_eq!(flags.has(Flags::END), index + 1 == got.len());
                if framing == Framing::Lines {
                    prop_assert_eq!(flags.has(Flags::RECORD_END), text.ends_with(b"\n"));
                }
            }
        }

        /// Lines of up to the limit are whole in one frame each.
        #[test]
        fn lines_that_fit_are_whole(lens in proptest::collection::vec(0usize..50, 1..100), piece in 1usize..300) {
            let content: Vec<u8> = lens.iter().flat_map(|len| [vec![b'x'; *len], vec![b'\n']].concat()).collect();
            for (text, flags) in frames(Framing::Lines, 50, &content, piece, |_| false) {
                prop_assert!(text.is_empty() || flags.has(Flags::RECORD_END));
            }
        }
    }
}
