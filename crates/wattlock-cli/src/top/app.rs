//! What `top` shows, and what each key does: a table, one program's details, help. It knows no terminal.

use wattlock_watch::{By, Rates};

use super::keys::Key;
use super::mounts;
use super::plain::shown;
use super::table::{COLUMNS, Row, RowKey};

/// What was seen between two looks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// Whether there were two.
    pub rates: bool,
    /// What is one row of programs.
    pub by: By,
    /// Users of whom not all is among them.
    pub users_left_out: u64,
    pub programs: Vec<Rates>,
    pub mounts: Vec<mounts::Rates>,
}

impl Seen {
    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.programs.iter().map(Row::Program).chain(self.mounts.iter().map(Row::Mount))
    }
}

/// What is on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Page {
    #[default]
    Table,
    /// A filter is being typed.
    Filter,
    Help,
    /// The chosen row, by engine and kind.
    Details,
}

/// What a key asks of the program; of several keys the greatest is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    Nothing,
    /// What is shown changed.
    Draw,
    /// Programs are told apart otherwise.
    Regroup,
    /// The screen is drawn from nothing.
    Redraw,
    Stop,
    Quit,
    /// As by a signal.
    Interrupt,
}

/// What is shown.
#[derive(Debug, Default)]
pub struct App {
    seen: Seen,
    pub page: Page,
    pub filter: String,
    pub by: By,
    pub paused: bool,
    sorted_by: usize,
    ascending: bool,
    chosen: Option<RowKey>,
    /// The first row that is shown.
    pub offset: usize,
    /// Rows that there is room for.
    pub room: usize,
}

impl App {
    /// Sorted by operations, dearest first.
    pub fn new() -> App {
        App { sorted_by: 1, room: 1, ..App::default() }
    }

    /// Takes what was seen. Whether what is shown is another thing.
    pub fn take(&mut self, seen: Seen) -> bool {
        if self.paused || self.seen == seen {
            return false;
        }
        self.seen = seen;
        true
    }

    /// The column by which rows are sorted, and whether the least comes first.
    pub fn sorting(&self) -> (usize, bool) {
        (self.sorted_by, self.ascending)
    }

    /// Whether there are rates yet.
    pub fn has_rates(&self) -> bool {
        self.seen.rates
    }

    /// Users of whom not all is shown.
    pub fn users_left_out(&self) -> u64 {
        self.seen.users_left_out
    }

    /// Programs and mounts.
    pub fn counts(&self) -> (usize, usize) {
        (self.seen.programs.len(), self.seen.mounts.len())
    }

    /// The rows in order, of those whose name has the filter in it.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let wanted = self.filter.to_lowercase();
        let mut rows: Vec<(String, Row<'_>)> = self.seen.rows().map(|row| (row.name(), row)).collect();
        rows.retain(|(name, _)| name.to_lowercase().contains(&wanted));
        rows.sort_by(|(a_name, a), (b_name, b)| {
            let by_figure = b.figure(self.sorted_by).total_cmp(&a.figure(self.sorted_by));
            let by_name = a_name.cmp(b_name).then_with(|| a.key(self.seen.by).cmp(&b.key(self.seen.by)));
            match (self.sorted_by, self.ascending) {
                (0, false) => by_name,
                (0, true) => by_name.reverse(),
                (_, false) => by_figure.then(by_name),
                (_, true) => by_figure.reverse().then(by_name),
            }
        });
        rows.into_iter().map(|(_, row)| row).collect()
    }

    /// Where the chosen row is among rows in order; the first if it is gone.
    pub fn chosen(&self, rows: &[Row<'_>]) -> usize {
        self.still_chosen(rows).unwrap_or(0)
    }

    /// Where the chosen row is, if it is there.
    pub fn still_chosen(&self, rows: &[Row<'_>]) -> Option<usize> {
        rows.iter().position(|row| Some(row.key(self.seen.by)) == self.chosen)
    }

    /// What a key does.
    pub fn press(&mut self, key: Key) -> Asked {
        match key {
            Key::Control('c') => return Asked::Interrupt,
            Key::Control('z') => return Asked::Stop,
            Key::Control('l') => return Asked::Redraw,
            _ => {}
        }
        match self.page {
            Page::Filter => self.type_filter(key),
            Page::Help | Page::Details => match key {
                Key::Up | Key::Typed('k') => self.scroll(-1),
                Key::Down | Key::Typed('j') => self.scroll(1),
                key => self.leave(key),
            },
            Page::Table => self.press_in_table(key),
        }
    }

    fn press_in_table(&mut self, key: Key) -> Asked {
        let page = self.room.max(1) as isize;
        match key {
            Key::Typed('q') => return Asked::Quit,
            Key::Up | Key::Typed('k') => self.choose(-1),
            Key::Down | Key::Typed('j') => self.choose(1),
            Key::PageUp => self.choose(-page),
            Key::PageDown => self.choose(page),
            Key::Home | Key::Typed('g') => self.choose(isize::MIN),
            Key::End | Key::Typed('G') => self.choose(isize::MAX),
            Key::Left | Key::Typed('<') => self.sort_by(self.sorted_by.saturating_sub(1)),
            Key::Right | Key::Typed('>') => self.sort_by(self.sorted_by + 1),
            Key::Typed(digit @ '0'..='9') => self.sort_by(digit as usize - '0' as usize),
            Key::Typed('r') => self.ascending = !self.ascending,
            Key::Typed('p') => {
                self.by = if self.by == By::Program { By::Process } else { By::Program };
                // The row stays chosen, or its first process is.
                let rows = self.rows();
                self.chosen = rows.get(self.chosen(&rows)).map(|row| row.key(self.by));
                return Asked::Regroup;
            }
            Key::Typed(' ') => self.paused = !self.paused,
            Key::Typed('/') => self.page = Page::Filter,
            Key::Typed('?' | 'h') => (self.page, self.offset) = (Page::Help, 0),
            Key::Enter if !self.rows().is_empty() => {
                // The row stays chosen if another one comes before it.
                self.choose(0);
                (self.page, self.offset) = (Page::Details, 0);
            }
            Key::Escape if !self.filter.is_empty() => self.filter.clear(),
            _ => return Asked::Nothing,
        }
        Asked::Draw
    }

    fn type_filter(&mut self, key: Key) -> Asked {
        match key {
            Key::Enter => self.page = Page::Table,
            Key::Escape => {
                self.filter.clear();
                self.page = Page::Table;
            }
            Key::Backspace => drop(self.filter.pop()),
            Key::Control('u') => self.filter.clear(),
            Key::Typed(character) => self.filter += &shown(character.encode_utf8(&mut [0; 4])),
            _ => return Asked::Nothing,
        }
        Asked::Draw
    }

    /// Back to the table.
    fn leave(&mut self, key: Key) -> Asked {
        if !matches!(key, Key::Escape | Key::Enter | Key::Backspace | Key::Left | Key::Typed('q' | '?' | 'h'))
        {
            return Asked::Nothing;
        }
        (self.page, self.offset) = (Page::Table, 0);
        Asked::Draw
    }

    fn scroll(&mut self, rows: isize) -> Asked {
        self.offset = self.offset.saturating_add_signed(rows);
        Asked::Draw
    }

    fn choose(&mut self, by: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let at = self.chosen(&rows).saturating_add_signed(by).min(last);
        self.chosen = rows.get(at).map(|row| row.key(self.seen.by));
    }

    fn sort_by(&mut self, column: usize) {
        self.sorted_by = column.min(COLUMNS.len() - 1);
    }
}
