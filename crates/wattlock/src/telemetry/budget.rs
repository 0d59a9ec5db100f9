//! How much of users' files is read and held. One user's files keep no other's from being read, and all together take a
//! bounded part of the reader's time and memory.

use super::read::MOST_BYTES;
use super::{Header, Snapshot};

/// Most files of one user that are opened in a reading.
pub(super) const MOST_FILES: u64 = 1024;

/// How much of one user's files is read and held: however many there are, the others' get their turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Budget {
    time: Time,
    /// Cells, engines and fallbacks.
    cells: u64,
    /// Bytes of headers and names.
    text: u64,
}

/// What takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Time {
    /// Entries of folders.
    entries: u64,
    /// Files that are opened, and their bytes.
    files: u64,
    bytes: u64,
}

impl Time {
    fn with(self, other: Time, both: impl Fn(u64, u64) -> u64) -> Time {
        Time {
            entries: both(self.entries, other.entries),
            files: both(self.files, other.files),
            bytes: both(self.bytes, other.bytes),
        }
    }
}

impl Budget {
    /// For all files of one user: many times what a thousand processes count.
    pub(super) fn of_a_user() -> Budget {
        let time = Time { entries: 20_000, files: MOST_FILES, bytes: 32 << 20 };
        Budget { time, cells: 1 << 14, text: 8 << 20 }
    }

    /// For one file, whatever is in it.
    pub(super) fn one_file() -> Budget {
        Budget { time: Time { entries: 0, files: 1, bytes: MOST_BYTES }, cells: u64::MAX, text: u64::MAX }
    }

    /// For one reading of all users, and for what is held of them at once.
    pub(super) fn of_all() -> Budget {
        let time = Time { entries: 160_000, files: 8192, bytes: 256 << 20 };
        Budget { time, cells: 1 << 16, text: 32 << 20 }
    }

    /// What one user's reading may take, of what it has itself and of what is left of this.
    pub(super) fn share<T>(&mut self, user: &mut Budget, read: impl FnOnce(&mut Budget) -> T) -> T {
        let before = user.time;
        let had = before.with(self.time, u64::min);
        user.time = had;
        let result = read(user);
        let took = had.with(user.time, u64::saturating_sub);
        self.time = self.time.with(took, u64::saturating_sub);
        user.time = before.with(took, u64::saturating_sub);
        result
    }

    /// Nothing is held any more of what was, since there was this.
    pub(super) fn hold_again(&mut self, before: &Budget) {
        (self.cells, self.text) = (before.cells, before.text);
    }

    /// For another entry of a folder.
    pub(super) fn list(&mut self) -> Option<()> {
        self.time.entries = self.time.entries.checked_sub(1)?;
        Some(())
    }

    /// For another file.
    pub(super) fn open(&mut self) -> Option<()> {
        self.time.files = self.time.files.checked_sub(1)?;
        Some(())
    }

    /// For so many bytes of a file.
    pub(super) fn spend(&mut self, bytes: u64) -> Option<()> {
        self.time.bytes = self.time.bytes.checked_sub(bytes)?;
        Some(())
    }

    /// For cells and bytes of names. `None`, and nothing spent, if one of them is more than there is.
    pub(super) fn hold(&mut self, (cells, text): (u64, u64)) -> Option<()> {
        let rest = (self.cells.checked_sub(cells)?, self.text.checked_sub(text)?);
        (self.cells, self.text) = rest;
        Some(())
    }

    /// Whether there is room for what was read, which then is spent.
    pub(super) fn holds(&mut self, snapshot: &Snapshot) -> bool {
        let cells = snapshot.cells.iter().map(|cell| cell.engine.len() + cell.kind.len());
        let reasons = snapshot.engines.iter().flat_map(|engine| &engine.fallbacks);
        let engines = snapshot.engines.iter().map(|engine| engine.engine.len() + engine.detail.len());
        let all = cells.chain(engines).chain(reasons.map(|(reason, _)| reason.len()));
        let cost = all.fold((0, 0), |(items, text), bytes| (items + 1, text + bytes as u64));
        self.hold((cost.0, cost.1 + size_of_header(&snapshot.header))).is_some()
    }
}

/// Bytes of a header's texts, and of their places in memory.
pub(super) fn size_of_header(header: &Header) -> u64 {
    let Header { version, program, policy, objective, profile, .. } = header;
    let Header { engines, details, energy, inactive, kinds, cell, engine, .. } = header;
    let lists = [engines, details, energy, kinds, cell, engine].into_iter().flatten();
    let pairs = inactive.iter().flat_map(|(name, why)| [name, why]);
    let all = [version, program, policy, objective, profile].into_iter().chain(lists).chain(pairs);
    all.map(|text| (size_of::<String>() + text.len()) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_share_what_there_is_for_all_and_each_has_no_more_than_its_part() {
        let (mut all, mut user) = (Budget::of_all(), Budget::of_a_user());
        let read_all = |budget: &mut Budget| {
            let mut files = 0;
            while budget.open().is_some() {
                files += 1;
                let _ = budget.spend(1 << 20);
            }
            (files, budget.spend(1).is_some())
        };
        assert_eq!(all.share(&mut user, read_all), (1024, false));
        assert_eq!(all.share(&mut user, read_all), (0, false), "its second folder");
        let others: Vec<_> = (0..8).map(|_| all.share(&mut Budget::of_a_user(), read_all).0).collect();
        assert_eq!(others, [1024, 1024, 1024, 1024, 1024, 1024, 1024, 0]);
        // One that needs little has all of its own left.
        let (mut all, mut user) = (Budget::of_all(), Budget::of_a_user());
        all.share(&mut user, |budget| budget.open());
        all.share(&mut user, |budget| budget.hold((5, 7)));
        assert_eq!(user.time.files, 1023);
        assert_eq!((user.cells, user.text), (Budget::of_a_user().cells - 5, Budget::of_a_user().text - 7));
    }
}
