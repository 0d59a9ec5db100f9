//! From a backing to a mounted file system, and back.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fuser::{Config, MountOption, Session, SessionACL};
use rustix::mount::UnmountFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::backing::Backing;
use crate::control;
use crate::door::{Behaviour, Door, Inner, Job};
use crate::lock;

/// Most threads; a machine with more cores gains nothing from more.
const THREADS: usize = 16;

/// Most folders kept open.
const FOLDERS: usize = 512;

/// Without a change for this long, what is durable apart is brought into place.
const QUIET: Duration = Duration::from_secs(5);

/// How often the housekeeper looks.
const LOOK: Duration = Duration::from_millis(100);

/// What the kernel reads ahead, in KiB, where this process may say so.
const READ_AHEAD_KIB: &str = "1024";

/// How a volume is mounted.
pub struct Options {
    /// Where.
    pub mountpoint: PathBuf,
    /// What the mount table calls it.
    pub source: String,
    /// Others change the backing folder meanwhile.
    pub shared: bool,
    /// Other users may use it.
    pub allow_other: bool,
    /// Mount options in the system's words: `ro`, `dev`, `suid`, `noexec`, ...
    pub flags: Vec<String>,
    /// Threads; as many as cores if not said, at most 16.
    pub threads: Option<usize>,
    /// Unmount when nothing was asked for this long and nothing is open.
    pub idle: Option<Duration>,
    /// Says that a signal came since it was asked last: unmount.
    pub stop: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Gets lines for the log.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Why a volume is not mounted. Each is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No folder to mount at.
    #[error("{0}: not a folder to mount at")]
    NotAFolder(String),
    /// A file system's process died there.
    #[error("{0}: what was mounted there is dead; `wattlock umount` frees it")]
    Dead(String),
    /// It has entries, which the mount would hide.
    #[error("{0}: not empty")]
    NotEmpty(String),
    /// The system has no FUSE for this user.
    #[error("FUSE is not there: {0}")]
    NoFuse(String),
    /// An option is unknown.
    #[error("unknown mount option {0}")]
    Option(String),
    /// The system refused.
    #[error("mounting: {0}")]
    Refused(String),
    /// The volume failed.
    #[error(transparent)]
    Volume(#[from] wattlock_fs::Error),
}

/// Whether something can be mounted there.
///
/// # Errors
/// [`Error::NotAFolder`], [`Error::NotEmpty`], [`Error::Dead`], [`Error::NoFuse`].
pub fn check(mountpoint: &Path) -> Result<(), Error> {
    const ENOTCONN: i32 = 107;
    let shown = wattlock_files::one_line(mountpoint).to_string();
    match std::fs::read_dir(mountpoint) {
        Ok(mut entries) => match entries.next() {
            None => {}
            Some(_) => return Err(Error::NotEmpty(shown)),
        },
        Err(error) if error.raw_os_error() == Some(ENOTCONN) => return Err(Error::Dead(shown)),
        Err(_) => return Err(Error::NotAFolder(shown)),
    }
    match std::fs::metadata("/dev/fuse") {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::NoFuse(format!("/dev/fuse: {error}"))),
    }
}

fn option(flag: &str) -> Result<Option<MountOption>, Error> {
    Ok(Some(match flag {
        "ro" => MountOption::RO,
        "rw" => MountOption::RW,
        "dev" => MountOption::Dev,
        "nodev" => MountOption::NoDev,
        "suid" => MountOption::Suid,
        "nosuid" => MountOption::NoSuid,
        "exec" => MountOption::Exec,
        "noexec" => MountOption::NoExec,
        "atime" => MountOption::Atime,
        "noatime" => MountOption::NoAtime,
        "dirsync" => MountOption::DirSync,
        "sync" => MountOption::Sync,
        "async" => MountOption::Async,
        // In fstab these are for mount(8) and systemd.
        "defaults" | "auto" | "noauto" | "user" | "users" | "nofail" | "_netdev" | "relatime" => {
            return Ok(None);
        }
        _ if flag.starts_with("x-") || flag.starts_with("comment=") => return Ok(None),
        _ => return Err(Error::Option(flag.to_owned())),
    }))
}

/// Whether a word is a mount option that [`mount`] takes.
pub fn is_option(flag: &str) -> bool {
    option(flag).is_ok()
}

/// Mounts and serves until it is unmounted. `ready` is called when the first request was answered.
///
/// The process belongs to the mount from then on: its umask becomes 0, and as root it gives up its supplementary
/// groups.
///
/// # Errors
/// [`Error`].
pub fn mount<B: Backing>(
    backing: B,
    options: &Options,
    ready: impl FnOnce() + Send + 'static,
) -> Result<(), Error> {
    check(&options.mountpoint)?;
    let config = config(options)?;
    let mountpoint = options.mountpoint.canonicalize().map_err(|error| Error::Refused(error.to_string()))?;
    // What is made gets the mode that the kernel and a folder's ACL say.
    rustix::process::umask(rustix::fs::Mode::empty());
    if options.allow_other && rustix::process::geteuid().is_root() {
        rustix::thread::set_thread_groups(&[]).map_err(|error| Error::Refused(error.to_string()))?;
    }
    let folders = raise_descriptors();
    let behaviour =
        Behaviour { shared: options.shared, others: options.allow_other, log: options.log.clone() };
    let door = Door::new(backing, behaviour, folders)?;
    let inner = door.inner.clone();
    let session = Session::new(door, &mountpoint, &config).map_err(refused)?;
    let _ = inner.notifier.set(session.notifier());
    let (later, jobs) = std::sync::mpsc::channel::<Job>();
    *lock(&inner.later) = Some(later);
    std::thread::Builder::new()
        .name("wattlock-later".to_owned())
        .spawn(move || jobs.into_iter().for_each(|job| job()))
        .map_err(refused)?;
    let control = control::listen(&mountpoint, &options.source, &inner);
    let ended = Arc::new(AtomicBool::new(false));
    let keeper = Keeper {
        inner: inner.clone(),
        mountpoint: mountpoint.clone(),
        idle: options.idle,
        stop: options.stop.clone(),
        ended: ended.clone(),
    };
    let keeper = std::thread::Builder::new()
        .name("wattlock-keeper".to_owned())
        .spawn(move || keeper.run(ready))
        .map_err(refused)?;
    let mender = mend(&inner, &ended);
    let served = session.run();
    ended.store(true, Ordering::SeqCst);
    lock(&inner.later).take();
    let _ = keeper.join();
    if let Some(mender) = mender {
        let _ = mender.join();
    }
    let last = inner.on_thread(|thread, _| inner.backing.checkpoint(thread));
    // The door goes first, and with it the volume's lock: who waits for the socket to go may mount again.
    drop(inner);
    drop(control);
    served.map_err(refused)?;
    Ok(last?)
}

fn refused(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => Error::NoFuse(error.to_string()),
        _ => Error::Refused(error.to_string().trim().replace(char::is_control, " ")),
    }
}

fn config(options: &Options) -> Result<Config, Error> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut config = Config::default();
    // A comma would begin another option, and a backslash quotes.
    let source = options.source.replace([',', '\\'], "_");
    config.mount_options = vec![
        MountOption::FSName(source),
        MountOption::CUSTOM("subtype=wattlock".to_owned()),
        MountOption::DefaultPermissions,
    ];
    for flag in &options.flags {
        config.mount_options.extend(option(flag)?);
    }
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads.unwrap_or(cores).clamp(1, THREADS));
    // Users get the device from fusermount3 and cannot open it themselves: then all threads share one descriptor.
    config.clone_fd = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    Ok(config)
}

/// Looks through what a crash may have left torn, while the files are in use already, and gives way to whatever else
/// the machine does. A file that is looked at before is put right then.
fn mend<B: Backing>(inner: &Arc<Inner<B>>, ended: &Arc<AtomicBool>) -> Option<std::thread::JoinHandle<()>> {
    if !inner.backing.may_be_torn() {
        return None;
    }
    let (inner, ended) = (inner.clone(), ended.clone());
    let work = move || {
        let _ = rustix::process::nice(19);
        let stop = || ended.load(Ordering::SeqCst);
        let alone = !inner.behaviour.shared;
        if let Err(error) = inner.on_thread(|thread, _| inner.backing.look_through(alone, &stop, thread)) {
            (inner.behaviour.log)(&format!("looking for what a crash left torn: {error}"));
        }
    };
    std::thread::Builder::new().name("wattlock-mender".to_owned()).spawn(work).ok()
}

/// Asks for as many descriptors as allowed, and says how many folders may stay open.
fn raise_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(now / 4).unwrap_or(FOLDERS).min(FOLDERS)
}

/// Does what is due from time to time.
struct Keeper<B: Backing> {
    inner: Arc<Inner<B>>,
    mountpoint: PathBuf,
    idle: Option<Duration>,
    stop: Arc<dyn Fn() -> bool + Send + Sync>,
    ended: Arc<AtomicBool>,
}

impl<B: Backing> Keeper<B> {
    fn run(self, ready: impl FnOnce()) {
        let mut ready = Some(ready);
        if let Ok(metadata) = std::fs::metadata(&self.mountpoint) {
            use std::os::unix::fs::MetadataExt;
            let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
            // Only root may; without it the kernel reads 128 KiB ahead.
            let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
            let _ = std::fs::write(path, READ_AHEAD_KIB);
        }
        if let Some(ready) = ready.take() {
            ready();
        }
        let (mut changes, mut changed) = (0, Instant::now());
        let (mut requests, mut asked) = (0, Instant::now());
        while !self.ended.load(Ordering::SeqCst) {
            std::thread::sleep(LOOK);
            let counters = &self.inner.counters;
            if counters.changes() != changes {
                (changes, changed) = (counters.changes(), Instant::now());
            }
            if counters.total() != requests {
                (requests, asked) = (counters.total(), Instant::now());
            }
            for note in self.inner.backing.notes() {
                (self.inner.behaviour.log)(&note);
            }
            if self.inner.backing.wants_checkpoint(changed.elapsed() >= QUIET) {
                let done = self.inner.on_thread(|thread, _| self.inner.backing.checkpoint(thread));
                if let Err(error) = done {
                    (self.inner.behaviour.log)(&format!("checkpoint: {error}"));
                    changed = Instant::now();
                }
            }
            if (self.stop)() {
                self.unmount(true);
            }
            let unused = self.inner.files.len() + self.inner.dirs.len() == 0;
            if unused && self.idle.is_some_and(|idle| asked.elapsed() >= idle) && !self.unmount(false) {
                asked = Instant::now();
            }
        }
    }

    /// Unmounts; if it is in use and `anyway`, takes it out of sight and goes on until it is not.
    fn unmount(&self, anyway: bool) -> bool {
        if unmount(&self.mountpoint, false).is_ok() {
            return true;
        }
        if anyway {
            (self.inner.behaviour.log)("still in use: unmounted from its place, served until it is closed");
            let _ = unmount(&self.mountpoint, true);
        }
        anyway
    }
}

/// Unmounts what is mounted at a place. `lazy` takes it out of sight even if it is in use.
///
/// # Errors
/// The system's, or what `fusermount3` said.
pub fn unmount(mountpoint: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() } | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(mountpoint, flags) {
        Err(rustix::io::Errno::PERM) => {}
        done => return Ok(done?),
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mountpoint);
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(said.trim().replace(char::is_control, " ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_can_be_mounted_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(check(&file), Err(Error::NotAFolder(_))));
        assert!(matches!(check(folder.path()), Err(Error::NotEmpty(_))));
        assert!(matches!(check(&folder.path().join("none")), Err(Error::NotAFolder(_))));
    }

    #[test]
    fn options_of_fstab_pass_and_others_do_not() {
        for flag in ["ro", "nodev", "noauto", "x-systemd.automount", "nofail"] {
            assert!(is_option(flag), "{flag}");
        }
        for flag in ["fd=3", "subtype=x", "rootmode=0", ""] {
            assert!(!is_option(flag), "{flag}");
        }
    }
}
