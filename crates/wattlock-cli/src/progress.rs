//! What commands that move data say of it: a bar while it moves, and with `-v` what it took.
//!
//! A bar is drawn on standard error, only if that is a terminal, and only if nothing else writes to a terminal
//! meanwhile.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use wattlock::Runtime;
use wattlock_core::{Family, Kind};
use wattlock_files::Error;
use wattlock_shell::joules::peak_memory;
use wattlock_shell::setup::Choice;
use wattlock_shell::text;

use crate::files::is_dash;

/// Where the length is known, and where it is not.
const KNOWN: &str = "{msg:20!} {bar:30} {percent:>3} % {bytes}/{total_bytes} {bytes_per_sec} {eta}";
const UNKNOWN: &str = "{msg:20!} {spinner} {bytes} {bytes_per_sec}";

/// How long work waits for the sum of sizes; more files are added up meanwhile.
const MOMENT: Duration = Duration::from_millis(50);

/// A bar, or none that anyone sees.
#[derive(Clone)]
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar for a piece of work: `silent` if it was asked for none, or if standard output shows the result on a
    /// terminal.
    pub fn new(silent: bool, name: String, len: Option<u64>) -> Bar {
        if silent || !std::io::stderr().is_terminal() {
            return Bar(ProgressBar::hidden());
        }
        let bar = match len {
            Some(len) => styled(ProgressBar::new(len), KNOWN),
            None => styled(ProgressBar::new_spinner(), UNKNOWN),
        };
        Bar(bar.with_message(name))
    }

    /// A bar for what lies below some places. Their sizes are added up by a thread meanwhile, and only if the bar is
    /// seen. If they have no length, it shows no per cent.
    pub fn of_all(silent: bool, name: &str, places: impl FnOnce() -> Vec<PathBuf>) -> Bar {
        let bar = Bar::new(silent, name.to_owned(), None);
        if bar.is_seen() {
            let (later, places) = (bar.0.clone(), places());
            let (known, waits) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                if let (Some(len), Ok(style)) = (length_of(&places), ProgressStyle::with_template(KNOWN)) {
                    later.set_length(len);
                    later.set_style(style);
                }
                let _ = known.send(());
            });
            // Of a few files the sum is there before the work begins.
            let _ = waits.recv_timeout(MOMENT);
        }
        bar
    }

    /// So many bytes more are done.
    pub fn inc(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// So many bytes are done in all.
    pub fn set(&self, bytes: u64) {
        self.0.set_position(bytes);
    }

    /// Whether anyone sees it.
    pub fn is_seen(&self) -> bool {
        !self.0.is_hidden()
    }

    /// Takes it off the terminal.
    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}

/// Whether standard output is a terminal, whose lines a bar would spoil.
pub fn shows_output() -> bool {
    std::io::stdout().is_terminal()
}

/// A bar that looks so.
pub fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Bytes of what is named and of all regular files below it; a link that is named is what it leads to. None if standard
/// input, a device or a pipe is among it, or if nothing has a length, as files of the kernel's have none.
fn length_of(places: &[PathBuf]) -> Option<u64> {
    let mut sum = 0_u64;
    for place in places {
        sum = sum.saturating_add(match place.metadata() {
            _ if is_dash(place) => return None,
            Ok(meta) if meta.is_file() => meta.len(),
            Ok(meta) if meta.is_dir() => size_of(place),
            Ok(_) => return None,
            Err(_) => 0,
        });
    }
    Some(sum).filter(|sum| *sum > 0)
}

/// Bytes of all regular files below a folder, or a link to one that is named. Links below are not followed; what cannot
/// be read counts as nothing. One folder is open at a time: the work beside it needs descriptors, too.
fn size_of(folder: &Path) -> u64 {
    let (mut sum, mut left) = (0_u64, vec![folder.to_owned()]);
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_file() => sum = sum.saturating_add(meta.len()),
                Ok(meta) if meta.is_dir() => left.push(entry.path()),
                _ => {}
            }
        }
    }
    sum
}

/// What a command was asked to do with how much: `-v` tells it at the end.
pub struct Stats<'a> {
    pub runtime: &'a Runtime,
    pub choice: &'a Choice,
    /// What the content was put through.
    pub families: &'static [Family],
    pub began: Instant,
}

impl Stats<'_> {
    /// What was done, how fast, by which policy, where, and in how much memory; on standard error.
    ///
    /// # Errors
    /// Standard error does not take it.
    pub fn tell(&self, done: &str, bytes: u64) -> Result<(), Error> {
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = text::rate(bytes as f64 / seconds.max(1e-9));
        tell!("{done} {} in {seconds:.3} s, {rate}", text::bytes(bytes));
        // The content, and what carries the key.
        let is_content = |kind: Kind| self.families.contains(&kind.info().family);
        let cells = self.runtime.snapshot().cells;
        for cell in cells.iter().filter(|cell| Kind::from_name(&cell.kind).is_some_and(is_content)) {
            let requests = if cell.requests == 1 { "request" } else { "requests" };
            let size = text::bytes(cell.bytes);
            tell!("{} on {}: {} {requests}, {size}", cell.kind, cell.engine, cell.requests);
        }
        tell!("policy {}, costs from: {}", self.choice.policy, self.runtime.profile_origin());
        if let Some(peak) = peak_memory("self") {
            tell!("peak resident memory {}", text::bytes(peak));
        }
        Ok(())
    }
}

/// What files and volumes are put through.
pub const CONTENT: &[Family] = &[Family::Seal, Family::Open, Family::Compress];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_regular_files_and_no_link_below_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("in")).unwrap();
        std::fs::write(folder.path().join("in/a"), [0; 10]).unwrap();
        std::fs::write(folder.path().join("b"), [0; 5]).unwrap();
        std::os::unix::fs::symlink("..", folder.path().join("in/up")).unwrap();
        std::os::unix::fs::symlink("b", folder.path().join("link")).unwrap();
        assert_eq!(size_of(folder.path()), 15);
        assert_eq!(size_of(&folder.path().join("none")), 0);
    }

    /// Deeper than a process usually has descriptors (1,024), and about as deep as a path can be.
    #[test]
    fn a_deep_folder_takes_one_descriptor() {
        const DEEP: usize = 1500;
        let folder = tempfile::tempdir().unwrap();
        let at = |depth: usize| folder.path().join("d/".repeat(depth));
        std::fs::create_dir_all(at(DEEP)).unwrap();
        for depth in [0, 1, DEEP / 2, DEEP] {
            std::fs::write(at(depth).join("a"), [0; 7]).unwrap();
        }
        let size = size_of(folder.path());
        // What a temporary folder is removed with keeps each open that it is in.
        for depth in (1..=DEEP).rev() {
            let _ = std::fs::remove_file(at(depth).join("a"));
            std::fs::remove_dir(at(depth)).unwrap();
        }
        assert_eq!(size, 28);
    }

    #[test]
    fn links_that_are_named_are_followed_and_what_has_no_length_has_no_per_cent() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("in")).unwrap();
        for (name, content) in [("in/a", &[0_u8; 10][..]), ("b", &[0; 5]), ("empty", &[])] {
            std::fs::write(at(name), content).unwrap();
        }
        for (target, name) in [("b", "link"), ("in", "folder"), ("nowhere", "lost"), ("/dev/null", "device")]
        {
            std::os::unix::fs::symlink(target, at(name)).unwrap();
        }
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RUSR).unwrap();
        for (names, expected) in [
            (&["b"][..], Some(5)),
            (&["link"], Some(5)),
            (&["folder", "link"], Some(15)),
            (&["b", "empty", "lost", "none"], Some(5)),
            (&["b", "pipe"], None),
            (&["b", "device"], None),
            (&["empty"], None),
            (&["none"], None),
            (&[], None),
        ] {
            let places: Vec<PathBuf> = names.iter().map(|name| at(name)).collect();
            assert_eq!(length_of(&places), expected, "{names:?}");
        }
        for place in ["-", "/dev/null", "/proc/version"] {
            assert_eq!(length_of(&[place.into()]), None, "{place}");
        }
    }

    #[test]
    fn templates_are_good_and_say_per_cent() {
        assert!(ProgressStyle::with_template(KNOWN).is_ok() && ProgressStyle::with_template(UNKNOWN).is_ok());
        assert!(KNOWN.contains("percent"));
    }
}
