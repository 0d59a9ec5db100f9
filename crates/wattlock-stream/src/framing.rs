//! Where a producer's records end: at every byte, at line feeds, or where their own lengths say.
//!
//! A framing changes nothing of the content. It only says where a frame may end without splitting a record.

/// How records follow one another in the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// No records: bytes.
    #[default]
    Raw,
    /// Lines, each with its line feed. The last may lack it.
    Lines,
    /// Records with their length before them: four bytes, big-endian.
    Length,
}

/// Finds the ends of records in a stream that comes in pieces.
#[derive(Debug)]
pub(crate) struct Scanner {
    framing: Framing,
    /// Bytes of the present record's length that were seen.
    prefix: [u8; 4],
    prefix_len: usize,
    /// Bytes of the present record that are still to come.
    left: u64,
    inside: bool,
}

impl Scanner {
    pub(crate) fn new(framing: Framing) -> Scanner {
        Scanner { framing, prefix: [0; 4], prefix_len: 0, left: 0, inside: false }
    }

    /// Looks at the next bytes: where in them the last record ends.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> Option<usize> {
        match self.framing {
            Framing::Raw => (!bytes.is_empty()).then_some(bytes.len()),
            Framing::Lines => bytes.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1),
            Framing::Length => self.advance_lengths(bytes),
        }
    }

    fn advance_lengths(&mut self, bytes: &[u8]) -> Option<usize> {
        let (mut at, mut end) = (0, None);
        while at < bytes.len() {
            if !self.inside {
                self.prefix[self.prefix_len] = bytes[at];
                (self.prefix_len, at) = (self.prefix_len + 1, at + 1);
                if self.prefix_len < self.prefix.len() {
                    continue;
                }
                self.prefix_len = 0;
                self.left = u64::from(u32::from_be_bytes(self.prefix));
                self.inside = true;
            }
            let step = self.left.min((bytes.len() - at) as u64);
            at += step as usize;
            self.left -= step;
            if self.left == 0 {
                self.inside = false;
                end = Some(at);
            }
        }
        end
    }

    /// Whether an end of the input here would cut a record that says how long it is.
    pub(crate) fn cut(&self) -> bool {
        self.inside || self.prefix_len > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends of records in all of the bytes, fed in pieces of that size.
    fn last_end(framing: Framing, bytes: &[u8], piece: usize) -> (usize, bool) {
        let mut scanner = Scanner::new(framing);
        let mut end = 0;
        for (index, part) in bytes.chunks(piece).enumerate() {
            end = scanner.advance(part).map_or(end, |at| index * piece + at);
        }
        (end, scanner.cut())
    }

    #[test]
    fn the_pieces_in_which_bytes_come_change_nothing() {
        let lengths =
            [&[0, 0, 0, 3][..], b"abc", &[0, 0, 0, 0], &[0, 0, 1, 0], &[7; 256], &[0, 0, 0, 2, 1]].concat();
        for piece in 1..lengths.len() {
            assert_eq!(last_end(Framing::Length, &lengths, piece), (lengths.len() - 5, true), "{piece}");
            assert_eq!(
                last_end(Framing::Length, &lengths[..lengths.len() - 5], piece),
                (lengths.len() - 5, false)
            );
            assert_eq!(last_end(Framing::Lines, b"a\nbcd\n\nef", piece.min(9)), (7, false));
            assert_eq!(last_end(Framing::Raw, b"abcdefghi", piece.min(9)), (9, false));
        }
    }

    #[test]
    fn a_length_of_its_own_that_is_only_begun_is_a_cut() {
        for len in 1..4 {
            assert_eq!(last_end(Framing::Length, &[0; 4][..len], 1), (0, true));
        }
        assert_eq!(last_end(Framing::Length, &[0; 4], 1), (4, false), "an empty record");
    }
}
