//! Draws what `top` shows into cells of a screen of any size; what has no room is left out.

use ratatui_core::buffer::Buffer;
use ratatui_core::style::{Color, Modifier, Style};

use wattlock_watch::Figures;

use super::app::{App, Page};
use super::mounts;
use super::plain::{padded, shown};
use super::table::{COLUMNS, Cell, Column, DETAILS, Row, Tone, bytes, details, fitting, laid_out, rate};

/// The least size with a table.
const LEAST: (u16, u16) = (24, 5);

/// How tones look.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// `NO_COLOR` is not set.
    pub colours: bool,
    /// Seconds between two looks.
    pub interval: f64,
}

const HELP: [&str; 18] = [
    "up, down, PgUp, PgDn, Home, End   choose a row",
    "Enter      details by engine and kind",
    "< >, 0-9   sort by the column left or right, by number",
    "r          reverse the order",
    "p          a row a program, or a process",
    "/          filter by name; Esc takes it away",
    "space      pause",
    "q, Ctrl-C  quit;  Ctrl-L  draw anew",
    "",
    "LANES       of what this CPU's lanes can do, done there",
    "BATCH       requests in a batch",
    "FALLBACK/S  requests that the CPU repeated or took over",
    "SAVED CPU   of one core, against one request at a time:",
    "            estimated by the profile (wattlock engines)",
    "POWER       joules a second, and what they are worth",
    "-           not known, or none",
    "",
    "A mount's OPS/S are requests to the file system.",
];

/// Draws the whole screen; rows that have room are told to the app.
pub fn draw(app: &mut App, look: Look, screen: &mut Buffer) {
    let (wide, high) = (screen.area.width, screen.area.height);
    if wide < LEAST.0 || high < LEAST.1 {
        put(screen, 0, &format!("at least {}x{}; q quits", LEAST.0, LEAST.1), Style::new());
        return;
    }
    put(screen, 0, &title(app, look), Style::new().add_modifier(Modifier::BOLD));
    let room = usize::from(high) - 3;
    app.room = room;
    match app.page {
        Page::Help => {
            app.offset = app.offset.min(HELP.len().saturating_sub(room + 1));
            for (at, line) in HELP.iter().skip(app.offset).take(room + 1).enumerate() {
                put(screen, at as u16 + 1, line, Style::new());
            }
        }
        Page::Details => draw_details(app, look, screen),
        Page::Table | Page::Filter => draw_table(app, look, screen),
    }
    put(screen, high - 1, &foot(app), faint());
}

fn title(app: &App, look: Look) -> String {
    let (programs, mounts) = app.counts();
    let paused = if app.paused { "  PAUSED" } else { "" };
    let many = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let state = if app.has_rates() { "" } else { "  measuring" };
    let of = many(programs, "program")
        + &if mounts > 0 { format!(", {}", many(mounts, "mount")) } else { String::new() };
    let left_out = match app.users_left_out() {
        0 => String::new(),
        users => format!(", {} left out", many(users as usize, "user")),
    };
    format!("wattlock top{paused}{state}  {of}{left_out}  every {} s", look.interval)
}

fn foot(app: &App) -> String {
    match app.page {
        Page::Filter => format!("filter: {}_", app.filter),
        Page::Help | Page::Details => "Esc back  up, down scroll".to_owned(),
        Page::Table if !app.filter.is_empty() => format!("only {}  (Esc all)", app.filter),
        Page::Table => "? help  q quit  Enter details  / filter  < > sort  space pause".to_owned(),
    }
}

fn draw_table(app: &mut App, look: Look, screen: &mut Buffer) {
    let fits = fitting(&COLUMNS, screen.area.width);
    let (sorted_by, ascending) = app.sorting();
    let title = |(at, column): (usize, &Column)| {
        let mark = if at != sorted_by {
            ""
        } else if ascending {
            "^"
        } else {
            "v"
        };
        (format!("{}{mark}", column.title), Tone::Plain)
    };
    let titles: Vec<Cell> = COLUMNS.iter().enumerate().map(title).collect();
    put_row(screen, 1, &fits, &titles, |_| heading());
    let rows = app.rows();
    let (chosen, room) = (app.chosen(&rows), app.room);
    // The chosen row is among those that are shown, and no room is left below the last.
    let most = rows.len().saturating_sub(room);
    let offset = app.offset.min(chosen).max((chosen + 1).saturating_sub(room)).min(most);
    for (at, row) in rows.iter().enumerate().skip(offset).take(room) {
        let marked = if at == chosen { Modifier::REVERSED } else { Modifier::empty() };
        let style = |tone| of_tone(tone, look).add_modifier(marked);
        let y = (at - offset) as u16 + 2;
        screen.set_style(
            ratatui_core::layout::Rect { y, height: 1, ..screen.area },
            Style::new().add_modifier(marked),
        );
        put_row(screen, y, &fits, &row.cells(), style);
    }
    if rows.is_empty() {
        let none = match app.filter.is_empty() {
            true => "No running program uses Wattlock (or none whose counters you may read).",
            false => "No program or mount has that in its name.",
        };
        put(screen, 2, none, Style::new());
    }
    app.offset = offset;
}

/// Columns that fit, what stands in them, and whether it is a heading.
type Line = (Vec<(usize, usize)>, Vec<Cell>, bool);

fn draw_details(app: &mut App, look: Look, screen: &mut Buffer) {
    let rows = app.rows();
    let Some(row) = app.still_chosen(&rows).and_then(|at| rows.get(at)) else {
        put(screen, 1, "It has ended.", Style::new());
        return;
    };
    let style = |tone| of_tone(tone, look);
    let mut lines: Vec<Line> = Vec::new();
    let whole = vec![(0, usize::from(screen.area.width))];
    let mut say = |text: String| lines.push((whole.clone(), vec![(text, Tone::Plain)], false));
    say(row.name());
    match row {
        Row::Program(program) => {
            let pids: Vec<String> = program.pids.iter().map(u32::to_string).collect();
            say(format!("processes {}; in flight {}", pids.join(" "), program.in_flight));
            if let Some(known) = &program.figures {
                of_program(known).into_iter().for_each(say);
                let fits = fitting(&DETAILS, screen.area.width);
                let titles = DETAILS.iter().map(|column| (column.title.to_owned(), Tone::Plain)).collect();
                lines.push((fits.clone(), titles, true));
                lines.extend(details(known).into_iter().map(|cells| (fits.clone(), cells, false)));
            } else if app.has_rates() {
                say("Not known: counters began anew, or were not read before.".to_owned());
            } else {
                say("Measuring.".to_owned());
            }
        }
        Row::Mount(mount) => match &mount.figures {
            Some(known) => of_mount(known).into_iter().for_each(say),
            None if mount.answers => say("Measuring.".to_owned()),
            None => say("It does not answer: another user's, or it hangs.".to_owned()),
        },
    }
    let room = app.room + 1;
    let offset = app.offset.min(lines.len().saturating_sub(room));
    for (at, (fits, cells, is_heading)) in lines.iter().skip(offset).take(room).enumerate() {
        let style = |tone| if *is_heading { heading() } else { style(tone) };
        put_row(screen, at as u16 + 1, fits, cells, style);
    }
    app.offset = offset;
}

fn of_program(known: &Figures) -> Vec<String> {
    let fallbacks = known.fallbacks_per_s.iter();
    let fallbacks: Vec<String> =
        fallbacks.map(|(why, count)| format!("{} {} /s", shown(why), rate(*count).0)).collect();
    let mut lines = vec![
        format!("refused {} /s; failed {} /s", rate(known.refused_per_s).0, rate(known.failed_per_s).0),
        format!("fallbacks {}", if fallbacks.is_empty() { "none".into() } else { fallbacks.join(", ") }),
    ];
    lines.extend(known.power.as_ref().map(|power| format!("joules {}", shown(&power.worth))));
    lines
}

fn of_mount(known: &mounts::Figures) -> Vec<String> {
    let mut lines = vec![
        format!("read {}; written {}", bytes(known.read_bytes_per_s).0, bytes(known.written_bytes_per_s).0),
        format!("refused {} /s; failed {} /s", rate(known.refused_per_s).0, rate(known.failed_per_s).0),
    ];
    let work = known.work.iter();
    lines.extend(
        work.map(|(what, count)| format!("{} {} /s", padded(&shown(what), 12, true), rate(*count).0)),
    );
    lines
}

fn put_row(
    screen: &mut Buffer,
    y: u16,
    fits: &[(usize, usize)],
    cells: &[Cell],
    style: impl Fn(Tone) -> Style,
) {
    for (x, text, tone) in laid_out(fits, cells) {
        let left = usize::from(screen.area.width).saturating_sub(x);
        screen.set_stringn(x as u16, y, text, left, style(tone));
    }
}

fn put(screen: &mut Buffer, y: u16, text: &str, style: Style) {
    if y < screen.area.height {
        let wide = usize::from(screen.area.width);
        screen.set_stringn(0, y, padded(text, wide, true), wide, style);
    }
}

fn heading() -> Style {
    Style::new().add_modifier(Modifier::UNDERLINED)
}

fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn of_tone(tone: Tone, look: Look) -> Style {
    let coloured = |colour| {
        if look.colours { Style::new().fg(colour) } else { Style::new().add_modifier(Modifier::BOLD) }
    };
    match tone {
        Tone::Plain => Style::new(),
        Tone::Faint => faint(),
        Tone::Warning => coloured(Color::Yellow),
        Tone::Failure => coloured(Color::Red),
    }
}
