//! `wattlock mount`, `umount`, `fs status` and `fs set`: a volume as a file system.
//!
//! The process that serves the mount is started anew by this program, before it has threads, keys or a runtime. It
//! asks for passphrases, says `ready` when the first request was answered, and leaves the terminal.

mod daemon;
mod options;
pub mod place;
mod umount;

pub use umount::{Umount, umount};

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use wattlock_core::sync::lock;

use anyhow::Result;
use clap::{Args, ValueEnum};
use wattlock::Runtime;
use wattlock::policy::Settings;
use wattlock_fs::Error;
use wattlock_fs::content::Age;
use wattlock_fs::volume::Volume;
use wattlock_mount::{Engines, Next, OTHER_VOLUME, Options, Rotation, Sealed, Which, control};
use zeroize::Zeroizing;

use crate::fs::access::{Keys, Opened};
use crate::fs::hide_memory;
use crate::fs::known::{Known, Use};
use crate::fs::world::located;
use crate::lines::Line;
use crate::{status as telemetry, text};
use daemon::Daemon;
use place::{Mounts, Overlap};
use wattlock_shell::INTERRUPTED;
use wattlock_shell::setup::{self, Choice, Goal};

/// How long a mount waits for the process of the one before, whose files are gone and whose volume is not free yet.
const ENDING: Duration = Duration::from_secs(30);

/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// Fewer open files than this are worth a line.
const DESCRIPTORS_FEW: u64 = 4096;
/// What a mount needs for itself.
const DESCRIPTORS_OWN: u64 = 16;

/// Exit codes of mounting.
pub const fn exit_codes() -> &'static [(u8, &'static str)] {
    &[
        (87, "mount: no folder to mount at, or what was mounted there is dead"),
        (88, "mount: no FUSE"),
        (89, "mount: the system refused"),
        (90, "no volume is mounted there"),
    ]
}

/// Show an encrypted volume as a file system
#[derive(Debug, Args)]
pub struct Command {
    /// The volume's folder
    #[arg(value_name = "VOLUME")]
    volume: PathBuf,
    /// An empty folder
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    #[command(flatten)]
    keys: Keys,
    /// Stay in the foreground, log to standard error
    #[arg(long)]
    foreground: bool,
    /// Unmount after so many seconds without a request, if nothing is open
    #[arg(long, value_name = "SECONDS", value_parser = text::parse_seconds)]
    idle: Option<f64>,
    /// Others change the volume's folder meanwhile (a synchronised folder, a network file system): the kernel caches
    /// little and writes at once
    #[arg(long)]
    shared: bool,
    /// Threads that answer requests; as many as cores if not given, at most 16
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    threads: Option<u16>,
    /// Mount options: allow_other, ro, dev, suid, noexec, noatime, ...; also identity=FILE, passphrase-file=FILE,
    /// key=NAME, expect=FINGERPRINT, idle=SECONDS, shared, policy=NAME for fstab. As root with allow_other, what users make belongs to them
    #[arg(short, value_name = "OPTION,...", value_delimiter = ',')]
    options: Vec<String>,
}

/// Show what a running mount does: requests by operation and size, and what each engine did
#[derive(Debug, Args)]
pub struct Status {
    /// Where the volume is mounted
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// Print again every so many seconds, until interrupted
    #[arg(long, value_name = "SECONDS", value_parser = text::parse_seconds, num_args = 0..=1, default_missing_value = "2")]
    watch: Option<f64>,
}

/// Change how a running mount chooses engines, from the next request on
#[derive(Debug, Args)]
pub struct Set {
    /// Where the volume is mounted
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// policy=NAME, objective=GOAL, or a setting of the policy
    #[arg(value_name = "KEY=VALUE", required = true)]
    changes: Vec<String>,
}

/// The arguments as `wattlock` takes them: `mount.wattlock VOLUME MOUNTPOINT -o OPTIONS`, as mount(8) calls it, is
/// `wattlock mount`.
pub fn as_asked(arguments: Vec<OsString>) -> Vec<OsString> {
    options::as_asked(arguments)
}

/// Runs `wattlock mount`.
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    let settled = options::Settled::new(command, choice)?;
    // Before anything is asked for or read.
    refuse_overlap(command)?;
    wattlock_mount::check(&command.mountpoint).map_err(|error| explained_for(command, error))?;
    if !settled.foreground && !Daemon::is_one() {
        return daemon::start();
    }
    serve(command, settled).map_err(|error| located(&command.volume, error))
}

/// Refuses a mount whose process would wait for itself, or for that of another volume that waits for it, and one that
/// hides its own volume.
fn refuse_overlap(command: &Command) -> Result<(), Error> {
    let one_line = wattlock_door::one_line;
    let point = one_line(&command.mountpoint);
    let volume = one_line(&command.volume);
    match place::overlap(&command.mountpoint, &command.volume) {
        Some(Overlap::In) => {
            let what =
                format!("{point} is in the volume's own folder, {volume}: mount at a folder outside of it");
            return Err(Error::Usage(what));
        }
        Some(Overlap::Above) => {
            let what = format!("{point} is above the volume's folder, {volume}: mount at a folder beside it");
            return Err(Error::Usage(what));
        }
        None => {}
    }
    // The mount's process makes a socket there before it answers.
    let sockets = control::path(&command.mountpoint).ok();
    if let Some(folder) = sockets.as_deref().and_then(Path::parent)
        && place::overlap(&command.mountpoint, folder).is_some()
    {
        let what =
            format!("{point}: mounts are asked through sockets in {}: mount elsewhere", one_line(folder));
        return Err(Error::Usage(what));
    }
    match Mounts::read().holding(&command.mountpoint) {
        Some(there) => Err(Error::Usage(format!(
            "{point} is in the folder of the volume that is mounted at {}: mount at a folder outside of it",
            one_line(there)
        ))),
        None => Ok(()),
    }
}

fn serve(command: &Command, settled: options::Settled) -> Result<()> {
    hide_memory();
    let path = command.volume.canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
            Error::NoVolume(command.volume.clone())
        }
        _ => Error::io("opening the volume's folder", error),
    })?;
    let runtime = setup::runtime(&settled.choice, None, true)?;
    let asked = settled.flags.iter().any(|flag| flag == "ro");
    let read_only = asked || !crate::fs::may_be_written(&path);
    let usage = if read_only { Use::Read } else { Use::Write };
    let Opened { volume, mut known, .. } =
        settled.keys(&command.keys).open(&command.volume, usage, &runtime)?;
    let locked = lock_memory();
    let daemon = Arc::new(Daemon::new(settled.foreground));
    let mut flags = settled.flags;
    if read_only && !asked {
        daemon.log("this user may only read the volume's folder: mounted read-only");
        flags.push("ro".to_owned());
    }
    let (sealed, lines) = open_sealed(&path, &volume, &mut known, (&runtime, &settled.choice), read_only)?;
    known.note(&sealed.age());
    let known = Mutex::new(known);
    sealed.tell(Box::new(move |age| lock(&known).note(age)));
    drop(runtime);
    drop(volume);
    for line in lines {
        daemon.log(&line);
    }
    let log = daemon.clone();
    let options = Options {
        mountpoint: command.mountpoint.clone(),
        source: path.to_string_lossy().into_owned(),
        shared: settled.shared,
        allow_other: settled.allow_other,
        flags,
        threads: command.threads.map(usize::from),
        idle: settled.idle,
        stop: Arc::new(|| INTERRUPTED.swap(false, Ordering::SeqCst)),
        log: Arc::new(move |line| log.log(line)),
    };
    let ready = move || {
        // Not before: what is refused is refused in one line.
        if let (Err(error), true) = (locked, has_swap()) {
            daemon.log(&format!(
                "keys may be written to the swap area, as this user may not lock enough memory ({error}): `ulimit -l \
                 unlimited`, LimitMEMLOCK=infinity in a unit, or `swapoff -a`"
            ));
        }
        if let Some(line) = few_descriptors() {
            daemon.log(&line);
        }
        daemon.ready();
    };
    wattlock_mount::mount(sealed, &options, ready).map_err(|error| match error {
        wattlock_mount::Error::Refused(why) => refusal(89, &refused_at(&command.mountpoint, &why)),
        error => explained(error),
    })
}

/// Opens the volume, once the process of a mount that has just ended gives it back.
fn open_sealed(
    path: &Path,
    volume: &Volume,
    known: &mut Known,
    (runtime, choice): (&Runtime, &Choice),
    read_only: bool,
) -> Result<(Sealed, Vec<String>)> {
    let stop = || INTERRUPTED.load(Ordering::SeqCst);
    let begun = Instant::now();
    loop {
        let engines = Box::new(Chosen(Mutex::new(choice.clone())));
        let judge = &mut |age: &Age| known.judge(age);
        match Sealed::open(path, volume, (runtime.clone(), engines), read_only, (&stop, judge)) {
            // The process of a mount that umount(8) has just ended still brings things into place.
            Err(Error::InUse) if !stop() && begun.elapsed() < ENDING && mounted_at(path).is_none() => {
                std::thread::sleep(LOOK);
            }
            Err(Error::InUse) => match where_mounted(path) {
                Some(place) => return Err(refusal(84, &format!("the volume is in use: {place}"))),
                None => return Err(Error::InUse.into()),
            },
            opened => return opened.map_err(|error| known.refused(error)),
        }
    }
}

/// Rotations that a mount may be behind.
const SUCCESSORS: usize = 100;

/// A mount of this user's that can seal its volume anew.
pub struct Rotating(PathBuf, Which);

/// The mount that has a volume, for `wattlock fs key rotate`.
///
/// # Errors
/// Exit code 84 if it is in use otherwise, by another user's mount, or by one that cannot.
pub fn that_rotates(path: &Path, volume: &Volume) -> Result<Rotating> {
    let folder =
        std::fs::metadata(path).map_err(|error| Error::io("looking at the volume's folder", error))?;
    let which = Which { id: volume.id, folder: (folder.dev(), folder.ino()) };
    let request = format!("may-rotate {}", control::words_of(&which));
    // A mount's source is the path of that time: the mounts know what they have.
    for place in Mounts::read().ours() {
        match control::ask(&place, &request) {
            Ok(Ok(_)) => return Ok(Rotating(place, which)),
            Ok(Err(why)) if why == OTHER_VOLUME => {}
            Ok(Err(why)) => {
                let place = wattlock_door::one_line(&place);
                return Err(refusal(84, &format!("the volume is mounted at {place}: {why}")));
            }
            Err(_) => {}
        }
    }
    let folder = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    match where_mounted(&folder) {
        Some(place) => Err(refusal(84, &format!("the volume is in use: {place}"))),
        None => Err(Error::InUse.into()),
    }
}

impl Rotating {
    /// Has the mount seal everything under the volume's newest key.
    ///
    /// # Errors
    /// Why the mount still needs older keys; exit code 84.
    pub fn rotate(&self, volume: &Volume, stop: &dyn Fn() -> bool) -> Result<Rotation> {
        let Some((generation, key)) = volume.keys.last() else { return Err(Error::InUse.into()) };
        // As many as a request has room for.
        let from = volume.successors.len().saturating_sub(SUCCESSORS);
        let successors = volume.successors[from..].to_vec();
        let next = Next { generation: *generation, key: key.clone(), successors };
        let (which, next) = (control::words_of(&self.1), control::words_with(&next));
        let request = Zeroizing::new(format!("rotate {which} {}", *next));
        let place = wattlock_door::one_line(&self.0);
        match control::ask_until(&self.0, &request, LOOK, stop) {
            Ok(Ok(lines)) => Ok(control::rotation(&lines)),
            Ok(Err(why)) => Err(refusal(84, &format!("the volume is mounted at {place}: {why}"))),
            Err(_) if stop() => Err(wattlock_door::Error::Interrupted.into()),
            Err(error) => Err(refusal(84, &format!("the mount at {place} did not finish: {error}"))),
        }
    }
}

/// Where a volume is mounted, if this process sees it.
fn mounted_at(volume: &Path) -> Option<PathBuf> {
    Mounts::read().of_volume(volume)
}

/// The same for a person, with the process that serves it if this user may know.
fn where_mounted(volume: &Path) -> Option<String> {
    let place = mounted_at(volume)?;
    let lines = control::ask(&place, "status").ok().and_then(Result::ok).unwrap_or_default();
    let process = lines.iter().find_map(|line| line.strip_prefix("process ")?.split(',').next());
    let process = process.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    Some(format!("already mounted at {}{process}", wattlock_door::one_line(&place)))
}

/// What a low hard limit of open files means, if it is one: the soft limit is raised to it.
fn few_descriptors() -> Option<String> {
    use rustix::process::{Resource, getrlimit};
    let most = getrlimit(Resource::Nofile).maximum.filter(|most| *most < DESCRIPTORS_FEW)?;
    Some(format!(
        "at most some {} files can be open in this mount, by all programs together: the hard limit of open files is {most} \
         (`ulimit -Hn`, LimitNOFILE= in a unit)",
        most.saturating_sub(DESCRIPTORS_OWN)
    ))
}

/// Whether memory may be written to a swap area.
fn has_swap() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|table| table.lines().nth(1).is_some())
}

/// Keeps keys out of swap: everything that is or will be in memory, if this user may lock that much.
fn lock_memory() -> rustix::io::Result<()> {
    use rustix::mm::{MlockAllFlags, mlockall};
    use rustix::process::{Resource, getrlimit};
    let unlimited = getrlimit(Resource::Memlock).current.is_none() || rustix::process::geteuid().is_root();
    // With a limit, locking the future would make a later allocation fail: then only what is there now, keys included.
    let flags =
        if unlimited { MlockAllFlags::CURRENT | MlockAllFlags::FUTURE } else { MlockAllFlags::CURRENT };
    mlockall(flags | MlockAllFlags::ONFAULT)
}

/// What mounting says of a folder that something else is in than the user thought.
fn explained_for(command: &Command, error: wattlock_mount::Error) -> anyhow::Error {
    let wattlock_mount::Error::NotEmpty(shown) = &error else { return explained(error) };
    let known = known_as(&command.mountpoint);
    let volume = command.volume.canonicalize().unwrap_or_else(|_| command.volume.clone());
    let said = match where_mounted(&volume) {
        Some(place) if mounted_at(&volume).as_deref() == Some(&known) => place,
        _ if command.mountpoint.join("wattlock.fs").exists() => {
            let (volume, shown) = (wattlock_door::one_line(&command.volume), shown.clone());
            format!("it is a volume: did you mean `wattlock mount {shown} {volume}`?")
        }
        _ => return explained(error),
    };
    refusal(85, &format!("{shown}: not empty: {said}"))
}

/// What mounting says, with the exit codes of volumes where there is one.
fn explained(error: wattlock_mount::Error) -> anyhow::Error {
    use wattlock_mount::Error as Mount;
    let code = match error {
        Mount::Volume(error) => return error.into(),
        Mount::Option(_) => return Error::Usage(error.to_string()).into(),
        Mount::NotEmpty(path) => return Error::NotEmpty(path.into()).into(),
        Mount::NotAFolder(..) | Mount::Dead(_) => 87,
        Mount::Closed(_) => 46,
        Mount::NoFuse(_) => 88,
        _ => 89,
    };
    refusal(code, &error.to_string())
}

/// What the system's refusal to mount means.
fn refused_at(mountpoint: &Path, why: &str) -> String {
    let help = match why.ends_with("(os error 13)") || why.ends_with("(os error 1)") {
        true => {
            ": it takes root, or `fusermount3` (package fuse3), /dev/fuse and a folder of this user's own"
        }
        false => "",
    };
    format!("mounting at {}: {why}{help}", wattlock_door::one_line(mountpoint))
}

/// One line, and its exit code.
fn refusal(code: u8, line: &str) -> anyhow::Error {
    wattlock_door::Refusal { code, line: line.to_owned() }.into()
}

/// The engines of a mount: the choice it was started with, and what was set since.
struct Chosen(Mutex<Choice>);

impl Engines for Chosen {
    fn set(&self, runtime: &Runtime, settings: &[String]) -> Result<(), String> {
        let mut chosen = lock(&self.0);
        let mut choice = chosen.clone();
        for setting in settings {
            match setting.split_once('=') {
                Some(("policy", name)) => name.clone_into(&mut choice.policy),
                Some(("objective", goal)) => choice.objective = Goal::from_str(goal, false)?,
                _ => choice.settings.push(setting.clone()),
            }
        }
        let mut policy = Settings::default();
        for setting in &choice.settings {
            policy.set(setting).map_err(|error| error.to_string())?;
        }
        runtime
            .set_policy_for(choice.objective.into(), &choice.policy, policy)
            .map_err(|error| error.to_string())?;
        *chosen = choice;
        Ok(())
    }

    fn describe(&self, runtime: &Runtime) -> Vec<String> {
        telemetry::describe(&runtime.snapshot()).lines().map(str::to_owned).collect()
    }
}

/// The mount point as the mount knows it.
fn known_as(mountpoint: &Path) -> PathBuf {
    let known = place::pinned(mountpoint).ok().and_then(|pinned| place::path_of(&pinned));
    known.unwrap_or_else(|| std::path::absolute(mountpoint).unwrap_or_else(|_| mountpoint.to_owned()))
}

fn ask(mountpoint: &Path, request: &str) -> Result<Vec<String>> {
    let mountpoint = known_as(mountpoint);
    match control::ask(&mountpoint, request) {
        Ok(Ok(lines)) => Ok(lines),
        Ok(Err(refused)) => Err(Error::Usage(refused).into()),
        Err(_) => {
            let shown = wattlock_door::one_line(&mountpoint).to_string();
            Err(refusal(90, &format!("{shown}: no volume of this user is mounted there")))
        }
    }
}

/// Runs `wattlock fs status`.
pub fn status(command: &Status, json: bool) -> Result<()> {
    loop {
        let lines = ask(&command.mountpoint, "status")?;
        if json {
            Line::default().name("mountpoint", &command.mountpoint).with("lines", lines).put()?;
        } else {
            lines.iter().try_for_each(|line| -> Result<()> {
                say!("{line}");
                Ok(())
            })?;
        }
        let Some(seconds) = command.watch else { return Ok(()) };
        if !json {
            say!("");
        }
        std::thread::sleep(Duration::from_secs_f64(seconds));
    }
}

/// Runs `wattlock fs set`.
pub fn set(command: &Set, json: bool) -> Result<()> {
    if let Some(wrong) = command
        .changes
        .iter()
        .find(|setting| !setting.contains('=') || setting.chars().any(|character| character.is_whitespace()))
    {
        return Err(Error::Usage(format!("{wrong}: not KEY=VALUE")).into());
    }
    ask(&command.mountpoint, &format!("set {}", command.changes.join(" ")))?;
    if json {
        Line::default().name("mountpoint", &command.mountpoint).with("set", command.changes.clone()).put()?;
    }
    Ok(())
}
