//! Screens of several sizes, with names that would break them, and keys.

use ratatui_core::backend::TestBackend;
use wattlock::telemetry::own_uid;
use wattlock_watch::{By, Figures, Power, Rates, Work};

use super::app::{App, Asked, Page, Seen};
use super::draw::Look;
use super::keys::{Key, keys};
use super::{Screen, mounts, plain};

const LOOK: Look = Look { colours: true, interval: 1.0 };

/// Names that would clear the screen, turn it round, or be wider than they are long.
const HOSTILE: [&str; 6] = [
    "evil\u{1b}[2J\u{1b}]0;x\u{7}\nfake",
    "gpj\u{202e}exe.\u{2066}",
    "日本語のプログラム名は広い日本語のプログラム名は広い",
    "e\u{301}\u{200b}\u{feff}\u{e0041}👩\u{200d}👩\u{200d}👧",
    "<b>&amp;</b> %s {} \\x1b[31m",
    "",
];

fn program(name: &str, operations: f64) -> Rates {
    let work = Work {
        engine: "lanes".into(),
        kind: name.into(),
        operations_per_s: operations,
        mean_ns: Some(25_000.0),
        ..Work::default()
    };
    let figures = Figures {
        operations_per_s: operations,
        bytes_per_s: 1.8e19,
        lanes_share: Some(0.97),
        mean_batch: Some(7.1),
        fallbacks_per_s: [(name.to_owned(), 2.0)].into(),
        saved_cpu_s_per_s: Some(0.125),
        power: Some(Power { watts: 1.25, worth: "derived: of\u{1b}[0m".into() }),
        work: vec![work],
        ..Figures::default()
    };
    let (program, uid) = (name.into(), own_uid());
    Rates { program, uid, pids: vec![operations as u32], in_flight: 0, figures: Some(figures) }
}

fn seen(names: &[&str]) -> Seen {
    let programs = names.iter().enumerate().map(|(at, name)| program(name, at as f64 + 1.0)).collect();
    let mount = mounts::Rates { mountpoint: "/m/\u{9b}2J".into(), ..mounts::Rates::default() };
    Seen { rates: true, programs, mounts: vec![mount], ..Seen::default() }
}

/// The screen's lines, after what an app shows was drawn.
fn drawn(app: &mut App, (wide, high): (u16, u16)) -> Vec<String> {
    let mut screen = Screen::new(TestBackend::new(wide, high));
    screen.begin((wide, high)).unwrap();
    screen.draw(app, LOOK).unwrap();
    let buffer = screen.backend.buffer();
    let line = |y: u16| {
        let (mut line, mut x) = (String::new(), 0);
        while x < wide {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            x += plain::width(symbol).max(1) as u16;
        }
        line
    };
    (0..high).map(line).collect()
}

fn app(names: &[&str]) -> App {
    let mut app = App::new();
    assert!(app.take(seen(names)));
    app
}

fn press(app: &mut App, typed: &[u8]) -> Vec<Asked> {
    keys(typed).into_iter().map(|key| app.press(key)).collect()
}

#[test]
fn a_screen_of_80_by_24_has_a_row_a_program_and_what_matters_of_each() {
    let lines = drawn(&mut app(&["nginx", "sealer"]), (80, 24));
    assert_eq!(lines[0].trim_end(), "wattlock top  2 programs, 1 mount  every 1 s");
    let head = ["NAME", "OPS/Sv", "BYTES/S", "LANES", "BATCH", "FALLBACK/S", "SAVED", "CPU", "FAILED/S"];
    assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), head);
    let words: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(words, ["sealer", "2.00", "1.8e19", "B/s", "97", "%", "7.1", "2.00", "12.5", "%", "0"]);
    assert!(lines[3].starts_with("nginx ") && lines[4].starts_with("/m/?2J "), "{lines:?}");
    assert!(lines[23].starts_with("? help"), "{lines:?}");
}

#[test]
fn no_name_breaks_a_screen_of_any_size() {
    for size in [(80, 24), (40, 10), (200, 60), (24, 5), (10, 3), (1, 1), (0, 0), (300, 2)] {
        for page in [&b""[..], b"\r", b"?", b"/x", b"G\r"] {
            let mut app = app(&HOSTILE);
            press(&mut app, page);
            let lines = drawn(&mut app, size);
            for line in &lines {
                assert!(
                    !line.contains(|c: char| c.is_control() || plain::width(&c.to_string()) == 0),
                    "{line:?}"
                );
                assert_eq!(plain::width(line), usize::from(size.0), "{size:?}: {line:?}");
            }
        }
    }
    let wide = drawn(&mut app(&HOSTILE), (200, 60));
    assert!(wide.iter().any(|line| line.contains("evil?[2J?]0;x?fake")), "{wide:?}");
    assert!(wide.iter().any(|line| line.contains("<b>&amp;</b> %s {}")), "{wide:?}");
    assert!(wide[2].contains("1.25 W derived"), "{wide:?}");
}

#[test]
fn columns_line_up_behind_wide_names() {
    let lines = drawn(&mut app(&HOSTILE), (80, 24));
    let columns = |line: &str| {
        let at = line.find("97 %").expect("each has a share");
        plain::width(&line[..at])
    };
    let all: Vec<usize> = lines[2..2 + HOSTILE.len()].iter().map(|line| columns(line)).collect();
    assert!(all.iter().all(|at| *at == all[0]), "{lines:?}");
}

#[test]
fn a_screen_that_is_too_small_says_so_in_one_line() {
    let lines = drawn(&mut app(&["nginx"]), (23, 24));
    assert_eq!(lines[0].trim_end(), "at least 24x5; q quits");
    assert!(lines[1..].iter().all(|line| line.trim().is_empty()), "{lines:?}");
    assert!(drawn(&mut app(&["nginx"]), (24, 5))[2].starts_with("nginx"));
}

#[test]
fn keys_sort_filter_pause_and_show_details() {
    let names = ["alpha", "beta", "gamma"];
    let mut app = app(&names);
    let order = |app: &mut App| {
        let lines = drawn(app, (80, 24));
        let rows = lines[2..].iter().filter_map(|line| names.iter().find(|name| line.starts_with(**name)));
        rows.copied().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(order(&mut app), "gamma beta alpha");
    press(&mut app, b"r");
    assert_eq!(order(&mut app), "alpha beta gamma");
    press(&mut app, b"r0");
    assert_eq!(order(&mut app), "alpha beta gamma");
    press(&mut app, b"/ET");
    assert_eq!((order(&mut app), app.page), ("beta".into(), Page::Filter));
    press(&mut app, b"\x7f\x7f\rq");
    assert_eq!(order(&mut app), "alpha beta gamma", "what is typed into a filter is no key");
    press(&mut app, b"/gam\r");
    assert_eq!(press(&mut app, b"\r"), [Asked::Draw]);
    let lines = drawn(&mut app, (80, 24));
    assert!(lines[1].starts_with("gamma") && lines[4].starts_with("fallbacks gamma 2.00 /s"), "{lines:?}");
    assert!(
        lines.iter().any(|line| line.starts_with("lanes gamma") && line.contains("25.00 us")),
        "{lines:?}"
    );
    press(&mut app, b"\x1b");
    press(&mut app, b"\x1b");
    assert_eq!(order(&mut app), "alpha beta gamma");
    press(&mut app, b" ");
    assert!(!app.take(seen(&["delta"])), "paused");
    press(&mut app, b" ");
    assert!(app.take(seen(&["delta"])) && !app.take(seen(&["delta"])), "nothing changed");
    assert_eq!(
        press(&mut app, b"q\x03\x1a\x0c"),
        [Asked::Quit, Asked::Interrupt, Asked::Stop, Asked::Redraw]
    );
}

#[test]
fn the_chosen_row_stays_chosen_and_in_sight() {
    let names: Vec<String> = (0..50).map(|at| format!("program-{at:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut app = app(&names);
    press(&mut app, b"0\x1b[B\x1b[B");
    drawn(&mut app, (40, 10));
    let name = |app: &App| {
        let rows = app.rows();
        rows[app.chosen(&rows)].name()
    };
    assert_eq!(name(&app), "program-01", "the mount is first");
    press(&mut app, b"1");
    assert_eq!(name(&app), "program-01", "another order");
    let lines = drawn(&mut app, (40, 10));
    assert!(lines.iter().any(|line| line.starts_with("program-01")), "{lines:?}");
    app.press(Key::End);
    let lines = drawn(&mut app, (40, 10));
    assert!(lines[8].starts_with("/m/"), "{lines:?}");
    app.take(seen(&names[..2]));
    let lines = drawn(&mut app, (40, 10));
    assert!(lines[2].starts_with("program-01"), "{lines:?}");
}

#[test]
fn before_the_second_look_and_where_nothing_is_known_there_are_no_figures() {
    for rates in [false, true] {
        let mut now = seen(&["nginx"]);
        now.rates = rates;
        now.programs[0].figures = None;
        let mut app = App::new();
        assert!(app.take(now.clone()));
        press(&mut app, b"\x1b[F\r");
        let lines = drawn(&mut app, (80, 24));
        assert!(lines[1].starts_with("nginx") && lines[2].starts_with("processes 1"), "{lines:?}");
        assert!(lines[3].starts_with(if rates { "Not known" } else { "Measuring" }), "{lines:?}");
        assert!(lines[4..23].iter().all(|line| line.trim().is_empty()), "{lines:?}");
        press(&mut app, b"q");
        let row = drawn(&mut app, (200, 24)).into_iter().find(|line| line.starts_with("nginx")).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words, ["nginx", "-", "-", "-", "-", "-", "-", "-", "-", "1"]);
    }
    for (answers, wanted) in [(true, "Measuring"), (false, "It does not answer")] {
        let mut now = seen(&[]);
        now.mounts[0].answers = answers;
        let mut app = App::new();
        app.take(now);
        press(&mut app, b"\r");
        let lines = drawn(&mut app, (80, 24));
        assert!(lines[2].starts_with(wanted) && lines[3].trim().is_empty(), "{lines:?}");
    }
}

#[test]
fn details_stay_with_their_program_while_its_processes_come_and_go() {
    let mut app = app(&["alpha", "beta"]);
    press(&mut app, b"/beta\r\r\x1b");
    press(&mut app, b"\x1b\r");
    assert!(drawn(&mut app, (80, 24))[1].starts_with("beta"));
    let mut next = seen(&["alpha", "beta"]);
    next.programs[1].pids = vec![9, 10];
    next.programs[0].figures.as_mut().unwrap().operations_per_s = 1e6;
    assert!(app.take(next.clone()));
    let lines = drawn(&mut app, (80, 24));
    assert!(lines[1].starts_with("beta") && lines[2].starts_with("processes 9 10"), "{lines:?}");
    // No other program stands in for one that is gone, even with its process's number.
    next.programs.remove(1);
    next.programs[0].pids = vec![9];
    assert!(app.take(next));
    assert!(drawn(&mut app, (80, 24))[1].starts_with("It has ended."));
    // Where each process is a row, the number tells them apart.
    let of = |pids: &[u32]| {
        let one = |pid: &u32| Rates { pids: vec![*pid], ..program("nginx", 1.0) };
        let programs = pids.iter().map(one).collect();
        Seen { rates: true, by: By::Process, programs, ..Seen::default() }
    };
    let mut app = App::new();
    app.by = By::Process;
    app.take(of(&[7, 8]));
    press(&mut app, b"\x1b[B\r");
    assert!(drawn(&mut app, (80, 24))[2].starts_with("processes 8"));
    app.take(of(&[6, 8]));
    assert!(drawn(&mut app, (80, 24))[2].starts_with("processes 8"));
    app.take(of(&[6, 7]));
    assert!(drawn(&mut app, (80, 24))[1].starts_with("It has ended."));
}

#[test]
fn no_users_row_is_taken_for_anothers_and_who_is_left_out_is_said() {
    let mut now = seen(&["nginx", "nginx"]);
    now.users_left_out = 2;
    now.programs[1].uid += 1;
    now.programs[1].pids = now.programs[0].pids.clone();
    let whose = format!("uid {}: nginx", own_uid() + 1);
    for by in [By::Program, By::Process] {
        let mut app = App::new();
        app.by = by;
        app.take(Seen { by, ..now.clone() });
        // The caller's is the second, since it does less.
        press(&mut app, b"\x1b[B\r");
        let lines = drawn(&mut app, (80, 24));
        assert!(lines[0].contains("2 users left out") && lines[1].starts_with("nginx "), "{lines:?}");
        press(&mut app, b"q");
        let rows = drawn(&mut app, (80, 24));
        assert!(rows[2].starts_with(&whose) && rows[3].starts_with("nginx "), "{rows:?}");
        // Its own is gone: the other's does not stand in for it.
        press(&mut app, b"\r");
        let theirs = vec![now.programs[1].clone()];
        app.take(Seen { by, programs: theirs, ..now.clone() });
        assert!(drawn(&mut app, (80, 24))[1].starts_with("It has ended."));
    }
}

#[test]
fn of_several_keys_the_greatest_is_done() {
    let mut app = app(&["alpha", "beta"]);
    assert_eq!(press(&mut app, b"\x0cx\x1b[B").into_iter().max(), Some(Asked::Redraw));
    assert_eq!(press(&mut app, b"px\x1b[B").into_iter().max(), Some(Asked::Regroup));
    assert_eq!(press(&mut app, b"\x1b[Bx").into_iter().max(), Some(Asked::Draw));
}

#[test]
fn help_has_its_end_on_a_small_screen_too() {
    let mut app = app(&["nginx"]);
    press(&mut app, b"?");
    assert!(drawn(&mut app, (40, 10))[1].starts_with("up, down"));
    (0..50).for_each(|_| drop(press(&mut app, b"\x1b[B")));
    assert!(drawn(&mut app, (40, 10))[8].starts_with("A mount's"));
    press(&mut app, b"\x1b[A");
    assert!(drawn(&mut app, (40, 10))[8].trim().is_empty(), "a line up");
    press(&mut app, b"q");
    assert_eq!(app.page, Page::Table);
}

#[test]
fn without_colours_there_are_none() {
    let seen = |colours| {
        let mut screen = Screen::new(TestBackend::new(80, 24));
        screen.begin((80, 24)).unwrap();
        screen.draw(&mut app(&["nginx"]), Look { colours, ..LOOK }).unwrap();
        let content = screen.backend.buffer().content();
        content.iter().any(|cell| cell.fg != ratatui_core::style::Color::Reset)
    };
    assert!(seen(true), "fallbacks are worth a look");
    assert!(!seen(false));
}

#[test]
fn what_did_not_change_is_not_written() {
    let mut app = app(&["nginx"]);
    let mut out = Vec::new();
    let mut screen = Screen::new(ratatui_crossterm::CrosstermBackend::new(&mut out));
    screen.begin((80, 24)).unwrap();
    screen.draw(&mut app, LOOK).unwrap();
    screen.draw(&mut app, LOOK).unwrap();
    drop(screen);
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.matches("nginx").count(), 1, "{text:?}");
}
