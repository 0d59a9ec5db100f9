//! `wattlock top`: what running programs and mounts do now. Two looks at their counters, an interval apart, and what
//! was done between them; again and again on a terminal, or once.
//!
//! A thread looks, since a mount may keep it waiting; keys and signals are heeded meanwhile. The screen is written to
//! only where it changes.

mod app;
mod draw;
mod keys;
mod mounts;
mod once;
mod plain;
mod table;
mod terminal;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Args;
use ratatui_core::backend::{Backend, ClearType};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_crossterm::CrosstermBackend;
use wattlock::telemetry::read_running;
use wattlock_door::{Code, Error};
use wattlock_shell::text;
use wattlock_watch::{By, Costs, Look, Rates, since};

use app::{App, Asked, Seen};
use terminal::{Event, Terminal};

/// Show what running programs and mounts do, live
#[derive(Debug, Args)]
pub struct Command {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", value_parser = text::parse_seconds, default_value = "1")]
    interval: f64,
    /// Print a table of one interval and end
    #[arg(long)]
    once: bool,
    /// With --once: one JSON object
    #[arg(long, requires = "once")]
    json: bool,
}

impl Command {
    /// Whether signals are its own affair: they put the terminal back.
    pub fn heeds_signals(&self) -> bool {
        !self.once
    }
}

/// Runs the command.
pub fn run(command: &Command) -> Result<()> {
    let interval = Duration::from_secs_f64(command.interval);
    if !command.once {
        refuse_no_screen()?;
        return watch(interval, Costs::of(&costs()?)).map_err(ended);
    }
    let costs = Costs::of(&costs()?);
    let mut looker = Looker::new();
    let before = looker.look();
    thread::sleep(interval);
    let now = looker.look();
    let seen = seen(&now, Some(&before), By::Program, &costs);
    match command.json {
        true => once::json(&seen, now.programs.seconds_since(&before.programs)),
        false => once::table(seen),
    }
}

/// The costs of this machine's engines. Nothing is opened or counted.
fn costs() -> Result<wattlock::Runtime> {
    Ok(wattlock::Runtime::builder().telemetry(false).build()?)
}

fn refuse_no_screen() -> Result<()> {
    let no_screen =
        |what: &str| Err(Error::Usage(format!("{what}: wattlock top --once prints one table")).into());
    if !io::stdout().is_terminal() {
        return no_screen("standard output is not a terminal");
    }
    match std::env::var("TERM").unwrap_or_default().as_str() {
        "" => no_screen("TERM is not set, so nothing is known of the terminal"),
        "dumb" => no_screen("TERM=dumb has no screen to draw on"),
        _ => Ok(()),
    }
}

/// What an interrupt ends with; it is not told, since the terminal may take nothing more.
const INTERRUPTED: Code = Code(130);

/// A signal, or a terminal that is gone, is an interrupt.
fn ended(error: anyhow::Error) -> anyhow::Error {
    let gone = |io: &io::Error| {
        let code = io.raw_os_error();
        io.kind() == io::ErrorKind::Interrupted || code == Some(libc::EIO) || code == Some(libc::ENXIO)
    };
    match error.downcast_ref::<io::Error>() {
        Some(io) if gone(io) => INTERRUPTED.into(),
        _ => error,
    }
}

/// All counters at one moment.
struct Found {
    programs: Look,
    users_left_out: u64,
    mounts: mounts::Found,
}

/// Looks at all counters.
struct Looker {
    begun: Instant,
    asker: mounts::Asker,
}

impl Looker {
    fn new() -> Looker {
        Looker { begun: Instant::now(), asker: mounts::Asker::default() }
    }

    fn look(&mut self) -> Found {
        let running = read_running();
        let at = self.begun.elapsed();
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Found {
            programs: Look::new(at, epoch, running.found),
            users_left_out: running.users_left_out,
            mounts: self.asker.ask(self.begun),
        }
    }
}

/// What was done between two looks; without an earlier one, only who is there.
fn seen(now: &Found, before: Option<&Found>, by: By, costs: &Costs) -> Seen {
    let seconds = before.map(|before| now.programs.seconds_since(&before.programs));
    let programs = since(&now.programs.of_used(), before.map(|before| &before.programs), by);
    let rates = |one| seconds.map_or_else(|| Rates::named(one), |seconds| Rates::of(one, seconds, costs));
    Seen {
        rates: before.is_some(),
        by,
        users_left_out: now.users_left_out,
        programs: programs.iter().map(rates).collect(),
        mounts: mounts::rates(&now.mounts, before.map(|before| &before.mounts)),
    }
}

/// Wakes the screen, also at the end of the thread that looks, whatever ends it.
struct Wakes(UnixStream);

impl Wakes {
    fn wake(&mut self) {
        // The pipe being full is a wake-up, too.
        let _ = self.0.write(&[0]);
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.wake();
    }
}

/// Looks every interval until nobody takes what is found. `found` is dropped first: the screen then knows of the end.
fn look_on(interval: Duration, mut wakes: Wakes, found: SyncSender<Found>) {
    let mut looker = Looker::new();
    loop {
        let next = Instant::now() + interval;
        if found.send(looker.look()).is_err() {
            return;
        }
        wakes.wake();
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// On the terminal, until it is told to end.
fn watch(interval: Duration, costs: Costs) -> Result<()> {
    let (mut terminal, wakes) = Terminal::take().context("the terminal")?;
    let (sender, receiver) = sync_channel(1);
    let looks = move || look_on(interval, Wakes(wakes), sender);
    thread::Builder::new().name("wattlock-look".to_owned()).spawn(looks)?;
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let look = draw::Look { colours, interval: interval.as_secs_f64() };
    let mut screen = Screen::new(CrosstermBackend::new(terminal.pen()?));
    let mut app = App::new();
    let mut looks = Looks { receiver, costs, before: None, now: None };
    // The first event is that the terminal is ours.
    loop {
        let event = terminal.wait()?;
        // At each event, since the wake-up may have come with a signal or a key.
        let mut asked = match looks.newer()? {
            true => looks.show(&mut app),
            false => Asked::Nothing,
        };
        match event {
            Event::Redraw => asked = Asked::Redraw,
            Event::Woken => {}
            Event::Keys(keys) => {
                for key in keys {
                    match app.press(key) {
                        Asked::Quit => return Ok(()),
                        Asked::Interrupt => return Err(INTERRUPTED.into()),
                        Asked::Stop => {
                            terminal.stop()?;
                            // It may be another program's now: what is to be drawn is, once it is ours again.
                            asked = Asked::Nothing;
                            break;
                        }
                        Asked::Regroup => asked = asked.max(looks.regroup(&mut app)),
                        one => asked = asked.max(one),
                    }
                }
            }
        }
        if asked == Asked::Redraw {
            screen.begin(terminal.size()?)?;
        }
        if asked != Asked::Nothing {
            screen.draw(&mut app, look)?;
        }
    }
}

/// The two newest looks.
struct Looks {
    receiver: Receiver<Found>,
    costs: Costs,
    before: Option<Found>,
    now: Option<Found>,
}

impl Looks {
    /// Whether there is a newer one.
    fn newer(&mut self) -> Result<bool> {
        let mut newer = false;
        loop {
            match self.receiver.try_recv() {
                Ok(found) => {
                    self.before = self.now.replace(found);
                    newer = true;
                }
                Err(TryRecvError::Empty) => return Ok(newer),
                Err(TryRecvError::Disconnected) => bail!("nothing looks at the counters any more"),
            }
        }
    }

    fn show(&self, app: &mut App) -> Asked {
        let seen = self.now.as_ref().map(|now| seen(now, self.before.as_ref(), app.by, &self.costs));
        match seen.is_some_and(|seen| app.take(seen)) {
            true => Asked::Draw,
            false => Asked::Nothing,
        }
    }

    /// The same programs, told apart otherwise: a pause shows the newest looks, too.
    fn regroup(&self, app: &mut App) -> Asked {
        let paused = std::mem::take(&mut app.paused);
        self.show(app);
        app.paused = paused;
        Asked::Draw
    }
}

/// What the terminal shows: only what differs is written. Not `ratatui::Terminal`, which moves and hides the cursor
/// at each drawing, and writes to standard error when it is dropped on a terminal that is gone.
struct Screen<B: Backend> {
    backend: B,
    shown: Buffer,
}

impl<B: Backend> Screen<B> {
    fn new(backend: B) -> Screen<B> {
        Screen { backend, shown: Buffer::empty(Rect::ZERO) }
    }

    /// Clears it, at its size of now.
    fn begin(&mut self, (wide, high): (u16, u16)) -> Result<(), B::Error> {
        self.backend.clear_region(ClearType::All)?;
        self.shown = Buffer::empty(Rect::new(0, 0, wide, high));
        Ok(())
    }

    fn draw(&mut self, app: &mut App, look: draw::Look) -> Result<(), B::Error> {
        let mut next = Buffer::empty(self.shown.area);
        draw::draw(app, look, &mut next);
        let differs = self.shown.diff(&next);
        if !differs.is_empty() {
            self.backend.draw(differs.into_iter())?;
        }
        self.backend.flush()?;
        self.shown = next;
        Ok(())
    }
}
