//! `wattlock stream`: records sealed while they flow, from standard input to standard output or a socket, and back; and
//! the keys of records that are sealed one by one.

mod bridge;
mod ends;
mod keys;
mod steer;

use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use wattlock_files::{Error, Opener, Sealer};
use wattlock_stream::Framing;
use wattlock_stream::format::FRAME_MAX;
use wattlock_stream::pipe::{self, Ends, Passed, Sealing, Steering};

use crate::ask::Terminal;
use crate::defaults;
use crate::files;
use crate::keys as keys_given;
use crate::wrong::usage;
use ends::Address;
use wattlock_shell::handed;
use wattlock_shell::joules::peak_memory;
use wattlock_shell::setup::{self, Choice};
use wattlock_shell::text;

pub use bridge::HELP as BRIDGE_HELP;
pub use ends::ring;

/// Seal records while they flow, in pipes and sockets
#[derive(Debug, Args)]
pub struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Seal(Seal),
    Open(Open),
    Keys(keys::Command),
    Bridge(bridge::Command),
}

/// Encrypt standard input while it is written
#[derive(Debug, Args)]
struct Seal {
    #[command(flatten)]
    to: keys_given::Whom,
    /// How long a record may wait for others, sealing and writing included: 5ms, 0, or `none` for as long as it takes
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = parse_latency)]
    latency: Latency,
    /// Where records end; a record that fits into a frame is never split
    #[arg(long, value_enum, default_value_t)]
    framing: FramingName,
    /// Content of a full frame, at most 1 MiB
    #[arg(long, value_name = "BYTES", default_value = "64KiB", value_parser = parse_frame)]
    frame: usize,
    /// Begin a new key after so much content
    #[arg(long, value_name = "BYTES", default_value = "64GiB", value_parser = text::parse_bytes)]
    rekey_after: usize,
    /// Let the policy set clocks by how full the input pipe is (`--policy lecpaes`; root): the GPU's, or the CPU's without
    /// one. They are put back at the end, and after a kill by the next start or `wattlock clocks restore`
    #[arg(long)]
    clocks: bool,
    #[command(flatten)]
    clocks_where: crate::clocks::Where,
    #[command(flatten)]
    common: Common,
}

/// Decrypt a stream while it arrives
#[derive(Debug, Args)]
struct Open {
    /// Open with the identities in this file: age's, or an SSH private key; without it, the default identity
    #[arg(short, long = "identity", value_name = "FILE")]
    identities: Vec<PathBuf>,
    /// Open streams that follow one another, as `>>` leaves them. Each is verified; that they belong together is not
    #[arg(long)]
    joined: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Common {
    /// Wait for a connection here, and have the sealed stream on it: HOST:PORT or a path. Opening takes the first that
    /// begins as a sealed stream does
    #[arg(long, value_name = "ADDRESS", conflicts_with = "connect")]
    listen: Option<Address>,
    /// Have the sealed stream on a connection to this address: HOST:PORT or a path
    #[arg(long, value_name = "ADDRESS")]
    connect: Option<Address>,
    /// Threads at most; 0 for one a core. A slow stream uses one
    #[arg(long, value_name = "N", default_value_t = 0)]
    workers: usize,
    /// Say at the end what passed, how late, on how many wake-ups and keys (on standard error)
    #[arg(short = 'v', long, visible_alias = "verbose")]
    stats: bool,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum FramingName {
    /// Bytes without records
    #[default]
    Raw,
    /// Lines
    Lines,
    /// Records behind their length: four bytes, big-endian
    Length,
}

/// A bound, or none.
#[derive(Debug, Clone, Copy)]
struct Latency(Option<Duration>);

fn parse_latency(text: &str) -> Result<Latency, String> {
    const LONGEST: f64 = 3600.0;
    if text == "none" {
        return Ok(Latency(None));
    }
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("", if text == "0" { 1.0 } else { f64::NAN })];
    let number = units.into_iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, unit) = number.unwrap_or((text, f64::NAN));
    let seconds = number.parse::<f64>().unwrap_or(f64::NAN) * unit;
    if (0.0..=LONGEST).contains(&seconds) {
        return Ok(Latency(Some(Duration::from_secs_f64(seconds))));
    }
    Err("a time such as 500us, 5ms or 1s, 0, or none".into())
}

fn parse_frame(text: &str) -> Result<usize, String> {
    match text::parse_bytes(text)? {
        len @ 1..=FRAME_MAX => Ok(len),
        _ => Err("between 1 and 1MiB".into()),
    }
}

impl Command {
    /// Whether an interrupt must let it finish what it began.
    pub fn cleans_up(&self) -> bool {
        !matches!(self.what, What::Keys(_) | What::Bridge(_))
    }
}

/// Runs the command.
pub fn run(command: &Command, choice: &Choice) -> anyhow::Result<()> {
    match &command.what {
        What::Seal(command) => seal(command, choice),
        What::Open(command) => open(command, choice),
        What::Keys(command) => keys::run(command),
        What::Bridge(command) => bridge::run(command),
    }
}

fn seal(command: &Seal, choice: &Choice) -> anyhow::Result<()> {
    let common = &command.common;
    refuse_closed(true, !common.is_remote())?;
    if !common.is_remote() && std::io::stdout().is_terminal() {
        return Err(usage("not writing binary data to a terminal"));
    }
    let terminal = Terminal::default();
    let recipients = command.to.recipients(&terminal)?;
    if recipients.is_empty() {
        return Err(usage(keys_given::nobody(&[], "-r, -R or -i")));
    }
    let settings = Sealing {
        framing: match command.framing {
            FramingName::Raw => Framing::Raw,
            FramingName::Lines => Framing::Lines,
            FramingName::Length => Framing::Length,
        },
        frame_len: command.frame,
        latency: command.latency.0,
        // Other policies are what they were published as: none of them learns when to hold.
        learns: choice.policy == "adaptive",
        new_key_bytes: command.rekey_after as u64,
        workers: common.workers,
    };
    let mut steer = match command.clocks {
        true => steer::Steer::new(choice, &command.clocks_where.places())?,
        false => None,
    };
    let runtime = setup::runtime(choice, Some(files::kinds()), !common.stats)?;
    let sealer = Sealer::new(recipients)?;
    let stop = ends::bell()?;
    let remote = common.remote(&[], stop)?;
    let kept = remote.as_ref().map(OwnedFd::try_clone).transpose().map_err(ends::no_copy)?;
    let output = match remote {
        Some(socket) => socket,
        None => ends::standard_output()?,
    };
    let ends = Ends { input: ends::standard_input()?, output, stop: Some(stop) };
    let began = Instant::now();
    let steering = steer.as_mut().map(|steer| steer as &mut dyn Steering);
    let passed = pipe::seal_steered(ends, &sealer, &settings, &runtime, steering);
    // Clocks come back whether the stream did well or not.
    let restored = steer.as_mut().map_or(Ok(0), steer::Steer::restore);
    let passed = passed?;
    if let Some(socket) = kept
        && !pipe::deliver(socket.as_fd(), stop, passed.frames)?
    {
        eprintln!(
            "wattlock: the receiver's system has everything; whether the receiver has read it is unknown"
        );
    }
    let changes = restored?;
    common.report("sealed", &passed, began)?;
    if common.stats && command.clocks {
        let of = if setup::gpu_for(choice).is_ok() { "GPU" } else { "CPU" };
        tell!("{changes} clock changes of the {of}; the pipe was full {} times", passed.full);
    }
    Ok(())
}

fn open(command: &Open, choice: &Choice) -> anyhow::Result<()> {
    let common = &command.common;
    refuse_closed(!common.is_remote(), true)?;
    let terminal = Terminal::default();
    let identities = match command.identities.is_empty() {
        true => defaults::identities(&terminal)?,
        false => keys_given::identities(&command.identities, &terminal)?,
    };
    if identities.is_empty() {
        return Err(Error::NoKeyGiven { options: "-i FILE", place: defaults::identity_place() }.into());
    }
    let opener = Opener::new(identities);
    let runtime = setup::runtime(choice, Some(files::kinds()), !common.stats)?;
    let stop = ends::bell()?;
    let remote = common.remote(&wattlock_stream::format::MAGIC, stop)?;
    let kept = remote.as_ref().map(OwnedFd::try_clone).transpose().map_err(ends::no_copy)?;
    let input = match remote {
        Some(socket) => socket,
        None => ends::standard_input()?,
    };
    let ends = Ends { input, output: ends::standard_output()?, stop: Some(stop) };
    let began = Instant::now();
    let passed = match command.joined {
        true => pipe::open_joined(ends, &opener, common.workers, &runtime),
        false => pipe::open(ends, &opener, common.workers, &runtime),
    };
    let passed = passed.map_err(|error| {
        // The sealer must not take what was lost here for delivered.
        kept.iter().for_each(ends::reset_when_closed);
        match error {
            wattlock_stream::Error::Files(error) => terminal.explain(error).into(),
            error => error,
        }
    })?;
    common.report("opened", &passed, began)
}

/// What `<&-` and `>&-` come to, for the streams that are used.
fn refuse_closed(input: bool, output: bool) -> Result<(), Error> {
    if input && handed::closed(handed::INPUT) {
        return Err(files::closed("standard input", "give it one"));
    }
    if output && handed::closed(handed::OUTPUT) {
        return Err(files::closed("standard output", "give it one"));
    }
    Ok(())
}

impl Common {
    fn is_remote(&self) -> bool {
        self.listen.is_some() || self.connect.is_some()
    }

    /// The connection, if there is to be one. What connects to this program begins with these bytes.
    fn remote(&self, begins: &[u8], stop: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Error> {
        match (&self.listen, &self.connect) {
            (Some(address), _) => address.accept(begins, stop).map(Some),
            (_, Some(address)) => address.connect(stop).map(Some),
            _ => Ok(None),
        }
    }

    fn report(&self, done: &str, passed: &Passed, began: Instant) -> anyhow::Result<()> {
        if !self.stats {
            return Ok(());
        }
        let seconds = began.elapsed().as_secs_f64();
        let rate = text::rate(passed.content as f64 / seconds.max(1e-9));
        tell!("{done} {} in {seconds:.3} s, {rate}", text::bytes(passed.content));
        tell!(
            "{} frames in {} batches, {} waits, {} keys",
            passed.frames,
            passed.batches,
            passed.waits,
            passed.keys
        );
        let time = |share| passed.latency.quantile(share).map_or(0.0, |time| time.as_secs_f64() * 1e3);
        tell!("a batch's oldest record left after {:.3} ms (median), {:.3} ms (p99)", time(0.5), time(0.99));
        if let Some(peak) = peak_memory("self") {
            tell!("peak resident memory {}", text::bytes(peak));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_read_and_nonsense_is_not() {
        let read = |text| parse_latency(text).ok().map(|latency| latency.0);
        assert_eq!(read("5ms"), Some(Some(Duration::from_millis(5))));
        assert_eq!(read("0"), Some(Some(Duration::ZERO)));
        assert_eq!(read("250us"), Some(Some(Duration::from_micros(250))));
        assert_eq!(read("1.5s"), Some(Some(Duration::from_millis(1500))));
        assert_eq!(read("none"), Some(None));
        for wrong in ["", "5", "ms", "-1ms", "5m", "NaNs", "infs", "2h", "1e9s"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_frame_has_the_format_s_limits() {
        assert_eq!((parse_frame("1MiB"), parse_frame("1")), (Ok(1 << 20), Ok(1)));
        assert!(parse_frame("0").is_err() && parse_frame("1025KiB").is_err());
    }
}
