//! What lies in the journal instead of in place, for one file; and runs of holes.

use std::collections::BTreeMap;

use crate::format::HOLE_LEVEL_MAX;

/// A slot in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where it begins in the journal's file.
    pub(crate) at: u64,
    /// Its bytes, nonce and tag included.
    pub(crate) len: u32,
    /// For a hole record: it covers two to this power of slots.
    pub(crate) level: Option<u8>,
}

/// Slots that the journal replaces. No entry lies within the run of another.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overlay(BTreeMap<u64, Piece>);

impl Overlay {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn get(&self, index: u64) -> Option<Piece> {
        self.0.get(&index).copied()
    }

    pub(crate) fn insert(&mut self, index: u64, piece: Piece) {
        if let Some(level) = piece.level {
            let end = index.saturating_add(1 << level);
            if let Some(last) = end.checked_sub(1) {
                let gone: Vec<u64> = self.0.range(index..=last).map(|(index, _)| *index).collect();
                gone.iter().for_each(|index| _ = self.0.remove(index));
            }
        }
        self.0.insert(index, piece);
    }

    /// Enters consecutive data slots that begin at `at` in the journal's file: full ones of `full` bytes, and a last one.
    pub(crate) fn put(&mut self, first: u64, count: u32, full: u32, last: u32, mut at: u64) {
        let until = first + u64::from(count);
        for index in first..until {
            let len = if index + 1 == until { last } else { full };
            self.insert(index, Piece { at, len, level: None });
            at += u64::from(len);
        }
    }

    /// Forgets everything at or after a slot.
    pub(crate) fn cut(&mut self, index: u64) {
        self.0.split_off(&index);
    }

    /// Slots from `first` to `last`.
    pub(crate) fn range(&self, first: u64, last: u64) -> impl DoubleEndedIterator<Item = (u64, Piece)> {
        self.0.range(first..=last).map(|(index, piece)| (*index, *piece))
    }

    /// Every slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Piece)> {
        self.0.iter().map(|(index, piece)| (*index, *piece))
    }

    /// What covers a slot: its own entry, or a run that began before.
    pub(crate) fn covering(&self, index: u64) -> Option<(u64, Piece)> {
        let (start, piece) = self.0.range(..=index).next_back()?;
        let len = piece.level.map_or(1, |level| 1 << level);
        (index - start < len).then_some((*start, *piece))
    }

    /// The slot behind the last one up to `last` that the journal replaces, by an entry of its own or within a run; 0 if it
    /// replaces none.
    pub(crate) fn replaced_until(&self, last: u64) -> u64 {
        let entry = self.0.range(..=last).next_back();
        entry.map_or(0, |(start, piece)| (start + piece.level.map_or(1, |level| 1 << level)).min(last + 1))
    }

    /// The last entry's slot.
    pub(crate) fn last(&self) -> Option<u64> {
        self.0.last_key_value().map(|(index, _)| *index)
    }
}

/// The indices of which a hole record may cover `index`, nearest first: the index with ever more low bits cleared.
pub(crate) fn ancestors(index: u64) -> impl Iterator<Item = u64> {
    let mut last = None;
    (0..=HOLE_LEVEL_MAX).map(move |level| index >> level << level).filter(move |start| {
        let new = last != Some(*start);
        last = Some(*start);
        new
    })
}

/// Cuts a run of slots into runs of a power of two at a multiple of it: what hole records can say.
pub(crate) fn runs(mut from: u64, to: u64) -> Vec<(u64, u8)> {
    let mut runs = Vec::new();
    while from < to {
        let level = (to - from).ilog2().min(from.trailing_zeros()).min(HOLE_LEVEL_MAX);
        runs.push((from, level as u8));
        from += 1 << level;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_aligned_and_meet() {
        for (from, to) in [(0, 0), (0, 1), (1, 8), (3, 21), (0, 1 << 51), (7, (1 << 51) - 1)] {
            let runs = runs(from, to);
            assert!(runs.len() <= 110, "{}", runs.len());
            let mut at = from;
            for (start, level) in runs {
                assert_eq!(start, at);
                assert_eq!(start % (1 << level), 0);
                at += 1 << level;
                assert!(ancestors(at - 1).any(|ancestor| ancestor == start));
            }
            assert_eq!(at, to);
        }
    }

    #[test]
    fn a_run_hides_what_was_in_it() {
        let mut overlay = Overlay::default();
        let data = |at| Piece { at, len: 9, level: None };
        overlay.insert(5, data(1));
        overlay.insert(9, data(2));
        overlay.insert(4, Piece { at: 3, len: 48, level: Some(2) });
        assert_eq!(overlay.covering(5).unwrap().0, 4);
        assert_eq!(overlay.covering(7).unwrap().0, 4);
        assert_eq!(overlay.covering(8), None);
        assert_eq!(overlay.covering(9).unwrap().1.at, 2);
        assert_eq!([3, 4, 6, 8, 9, 12].map(|last| overlay.replaced_until(last)), [0, 5, 7, 8, 10, 10]);
        overlay.insert(4, data(4));
        assert_eq!(overlay.covering(5), None);
        overlay.cut(9);
        assert_eq!(overlay.last(), Some(4));
    }
}
