//! In which order messages of unlike length go through lanes: long ones first, so that no long one is left alone at the end.

use wattlock_core::Item;

/// Messages by octaves of their length, the longest first, and within one as they stand. Sorts nothing and keeps nothing:
/// each octave that occurs costs a look at every length.
pub struct LongestFirst {
    octave: u32,
    next: usize,
}

fn octave(item: &Item<'_>) -> u32 {
    usize::BITS - item.request.data.len().leading_zeros()
}

impl LongestFirst {
    /// Before the first of these.
    pub fn of(items: &[Item<'_>]) -> LongestFirst {
        LongestFirst { octave: items.iter().map(octave).max().unwrap_or(0), next: 0 }
    }

    /// The next one's place. Lengths must not change meanwhile.
    pub fn next(&mut self, items: &[Item<'_>]) -> Option<usize> {
        loop {
            while let Some(item) = items.get(self.next) {
                self.next += 1;
                if octave(item) == self.octave {
                    return Some(self.next - 1);
                }
            }
            self.octave = items.iter().map(octave).filter(|octave| *octave < self.octave).max()?;
            self.next = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattlock_core::{Data, Key, Kind, Request};

    #[test]
    fn every_message_comes_once_and_long_ones_come_first() {
        let text = [0; 300];
        let lengths = [3, 0, 300, 64, 2, 127, 0, 256, 1];
        let items = lengths.map(|len| {
            let data = Data::Apart { from: &text[..len], to: &mut [] };
            Item::new(Request::new(Kind::Sha1, Key::none(), data))
        });
        let mut order = LongestFirst::of(&items);
        let places: Vec<usize> = std::iter::from_fn(|| order.next(&items)).collect();
        assert_eq!(places, [2, 7, 3, 5, 0, 4, 8, 1, 6]);
        assert_eq!(LongestFirst::of(&[]).next(&[]), None);
    }
}
