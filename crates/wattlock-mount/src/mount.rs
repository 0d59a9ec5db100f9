//! From a backing to a mounted file system, and back.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fuser::{Config, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::backing::Backing;
use crate::control;
use crate::door::{Behaviour, Descriptors, Door, Inner, is_bound};

/// Most threads; a machine with more cores gains nothing from more.
const THREADS: usize = 16;

/// Most folders kept open.
const FOLDERS: usize = 512;

/// Most inodes that are held although they have no name and are not open.
const HELD: usize = 4096;

/// Descriptors that no opened file has: two for each thread.
const SPARE: u64 = 2 * THREADS as u64;

/// Without a change for this long, what is durable apart is brought into place.
const QUIET: Duration = Duration::from_secs(5);

/// How often the housekeeper looks.
const LOOK: Duration = Duration::from_millis(100);

/// How often an unmount finds the place in use before it is refused, and the time in between: a second in all.
const UNMOUNT_TRIES: u32 = 50;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(20);

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
    #[error("{0}: not a folder to mount at: {1}")]
    NotAFolder(String, String),
    /// A folder that this user may not look into.
    #[error("{0}: this user may not look into it (permission denied): mount at a folder of your own")]
    Closed(String),
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
    let shown = wattlock_door::one_line(mountpoint).to_string();
    match std::fs::read_dir(mountpoint) {
        Ok(mut entries) => match entries.next() {
            None => {}
            Some(_) => return Err(Error::NotEmpty(shown)),
        },
        Err(error) if error.raw_os_error() == Some(ENOTCONN) => return Err(Error::Dead(shown)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(Error::Closed(shown)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Error::NotAFolder(shown, "it does not exist; make it first".to_owned()));
        }
        Err(error) => return Err(Error::NotAFolder(shown, error.to_string())),
    }
    let opened = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    opened.map(drop).map_err(|error| Error::NoFuse(no_device(&error)))
}

/// Why the device does not open, with what helps.
fn no_device(error: &io::Error) -> String {
    let help = match error.kind() {
        io::ErrorKind::NotFound => "`modprobe fuse` makes it; a container needs `--device /dev/fuse`",
        io::ErrorKind::PermissionDenied => {
            "this user may not open it: mount as root, or let root `chmod 666 /dev/fuse`, which is its usual mode"
        }
        _ => "the kernel has no FUSE, or this container may not use it",
    };
    format!("/dev/fuse: {error}: {help}")
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

/// Mounts and serves until it is unmounted. `ready` is called when the first request, which asks what this process can
/// do, was answered: what comes next waits for an answer and not for a mount.
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
    let unbound = !options.allow_other && !is_bound();
    let config = config(options, unbound)?;
    let mountpoint = options.mountpoint.canonicalize().map_err(|error| Error::Refused(error.to_string()))?;
    // What is made gets the mode that the kernel and a folder's ACL say.
    rustix::process::umask(rustix::fs::Mode::empty());
    if options.allow_other && rustix::process::geteuid().is_root() {
        rustix::thread::set_thread_groups(&[]).map_err(|error| Error::Refused(error.to_string()))?;
    }
    let descriptors = raise_descriptors();
    let behaviour =
        Behaviour { shared: options.shared, others: options.allow_other, unbound, log: options.log.clone() };
    let door = Door::new(backing, behaviour, descriptors)?;
    let inner = door.inner.clone();
    let session = Session::new(door, &mountpoint, &config).map_err(refused)?;
    // Asking the mounted folder itself would be a request, and until it is answered an unmount would fail.
    let own = device_on_top(&mountpoint);
    let _ = inner.notifier.set(session.notifier());
    inner.later.start("wattlock-later").map_err(refused)?;
    inner.pages.start("wattlock-pages").map_err(refused)?;
    let control = control::listen(&mountpoint, &options.source, &inner);
    let ended = Arc::new(AtomicBool::new(false));
    let keeper = Keeper {
        inner: inner.clone(),
        mountpoint: mountpoint.clone(),
        own: own.clone(),
        idle: options.idle,
        stop: options.stop.clone(),
        ended: ended.clone(),
    };
    let keeper = std::thread::Builder::new()
        .name("wattlock-keeper".to_owned())
        .spawn(move || keeper.run(ready))
        .map_err(refused)?;
    let mender = mend(&inner, &ended);
    let served = serve(session);
    let is_ours = || own.is_some() && own == device_on_top(&mountpoint);
    // Nothing answers there any more. Another mount may have the device's number by now: it answers.
    if is_ours() && (served.is_err() || is_dead(&mountpoint)) {
        let _ = unmount(&mountpoint, true);
    }
    ended.store(true, Ordering::SeqCst);
    inner.ended.store(true, Ordering::SeqCst);
    inner.later.end();
    inner.pages.end();
    let _ = keeper.join();
    if let Some(mender) = mender {
        let _ = mender.join();
    }
    let last = inner.on_thread(|thread, _| inner.backing.end(thread));
    // The door goes first, and with it the volume's lock: a program that waits for the socket to go may mount again.
    drop(inner);
    drop(control);
    served.map_err(refused)?;
    Ok(last?)
}

/// Whether a place's file system has lost its process, or its connection was aborted.
fn is_dead(mountpoint: &Path) -> bool {
    rustix::fs::statvfs(mountpoint).is_err_and(|error| error == Errno::NOTCONN)
}

/// Serves until the mount is gone, or cut off. At a session's end fuser 0.18.0 unmounts whatever is mounted at the path by
/// then, as its test of whether its own mount is there still is the wrong way round: it is kept from that.
fn serve<B: Backing>(session: Session<Door<B>>) -> io::Result<()> {
    let mut served = session.spawn()?;
    let thread = std::mem::replace(&mut served.guard, std::thread::spawn(|| Ok(())));
    let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the mount panicked")));
    std::mem::forget(served);
    ended
}

fn refused(error: io::Error) -> Error {
    match error.kind() {
        // The device is there: what is missing is what users mount with.
        io::ErrorKind::NotFound => {
            Error::NoFuse("no program fusermount3: install the package fuse3, or mount as root".to_owned())
        }
        _ => Error::Refused(error.to_string().trim().replace(char::is_control, " ")),
    }
}

/// Threads of a mount, if its user asked for so many: else as many as cores.
pub(crate) fn threads(asked: Option<usize>) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    asked.unwrap_or_else(cores).clamp(1, THREADS)
}

fn config(options: &Options, unbound: bool) -> Result<Config, Error> {
    let mut config = Config::default();
    // A comma would begin another option, and a backslash quotes.
    let source = options.source.replace([',', '\\'], "_");
    config.mount_options =
        vec![MountOption::FSName(source), MountOption::CUSTOM("subtype=wattlock".to_owned())];
    if !unbound {
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    for flag in &options.flags {
        config.mount_options.extend(option(flag)?);
    }
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(threads(options.threads));
    // Users get the device from fusermount3 and cannot open it themselves: then all threads share one descriptor.
    config.clone_fd = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    Ok(config)
}

/// Looks through what a crash may have left torn, while the files are in use already, and gives way to whatever else
/// the machine does. A file that is looked at before is put right then.
fn mend<B: Backing>(inner: &Arc<Inner<B>>, ended: &Arc<AtomicBool>) -> Option<std::thread::JoinHandle<()>> {
    if inner.backing.is_read_only() || !inner.backing.may_be_torn() {
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

/// Asks for as many descriptors as allowed, and says how many there are for what.
fn raise_descriptors() -> Descriptors {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let quarter = usize::try_from(now / 4).unwrap_or(usize::MAX);
    let files = now - (now / 8).min(SPARE);
    Descriptors { folders: quarter.min(FOLDERS), held: (quarter / 2).clamp(16, HELD), files }
}

/// Does what is due from time to time.
struct Keeper<B: Backing> {
    inner: Arc<Inner<B>>,
    mountpoint: PathBuf,
    /// The mount's device.
    own: Option<String>,
    idle: Option<Duration>,
    stop: Arc<dyn Fn() -> bool + Send + Sync>,
    ended: Arc<AtomicBool>,
}

impl<B: Backing> Keeper<B> {
    fn run(self, ready: impl FnOnce()) {
        if let Some(device) = &self.own {
            // Only root may; without it the kernel reads 128 KiB ahead.
            let _ = std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), READ_AHEAD_KIB);
        }
        ready();
        let (mut changes, mut changed) = (0, Instant::now());
        let (mut requests, mut asked) = (0, Instant::now());
        let mut sync_failed = None;
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
            if sync_failed.is_none_or(|at: Instant| at.elapsed() >= QUIET) {
                sync_failed = self.inner.sync_many().is_err().then(Instant::now);
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
        if self.own != device_on_top(&self.mountpoint) {
            if anyway {
                let line =
                    "something else is mounted over it: unmounted by nobody, and served until that is gone";
                (self.inner.behaviour.log)(line);
            }
            return false;
        }
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

/// The device, `major:minor`, of what is on top at a place.
fn device_on_top(mountpoint: &Path) -> Option<String> {
    device_at(&std::fs::read("/proc/self/mountinfo").unwrap_or_default(), mountpoint)
}

/// The device, `major:minor`, that is mounted last at a place, by the system's table (`proc_pid_mountinfo(5)`).
fn device_at(table: &[u8], mountpoint: &Path) -> Option<String> {
    let mut escaped = Vec::new();
    for byte in mountpoint.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => escaped.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
            _ => escaped.push(*byte),
        }
    }
    let words =
        |line: &[u8]| line.split(|byte| *byte == b' ').map(<[u8]>::to_vec).take(5).collect::<Vec<_>>();
    let mut lines = table.split(|byte| *byte == b'\n').map(words);
    let line = lines.rfind(|words| words.get(4) == Some(&escaped))?;
    String::from_utf8(line.get(2)?.clone()).ok()
}

/// Whether something that was unmounted is in use.
pub fn is_busy(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy || error.to_string().ends_with("Device or resource busy")
}

/// As [`unmount`], and again for a second while the place is in use: programs that look at every mount hold each for a
/// moment, and a program that is being started holds what its parent had open until it is executed.
///
/// # Errors
/// As [`unmount`].
pub fn unmount_patiently(mountpoint: &Path) -> io::Result<()> {
    again(|| unmount(mountpoint, false), || std::thread::sleep(UNMOUNT_PAUSE))
}

fn again(mut unmount: impl FnMut() -> io::Result<()>, mut pause: impl FnMut()) -> io::Result<()> {
    for _ in 1..UNMOUNT_TRIES {
        match unmount() {
            Err(error) if is_busy(&error) => pause(),
            done => return done,
        }
    }
    unmount()
}

/// Unmounts what is mounted at a place. `lazy` takes it out of sight even if it is in use.
///
/// # Errors
/// The system's, or what `fusermount3` said.
pub fn unmount(mountpoint: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() } | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(mountpoint, flags) {
        Err(Errno::PERM) => {}
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
        assert!(matches!(check(&file), Err(Error::NotAFolder(..))));
        assert!(matches!(check(folder.path()), Err(Error::NotEmpty(_))));
        assert!(matches!(check(&folder.path().join("none")), Err(Error::NotAFolder(..))));
    }

    #[test]
    fn what_is_missing_says_what_helps() {
        let said = |kind: io::ErrorKind| no_device(&kind.into());
        assert!(said(io::ErrorKind::NotFound).contains("modprobe fuse"));
        assert!(said(io::ErrorKind::PermissionDenied).contains("this user may not open it: mount as root"));
        let helper = refused(io::ErrorKind::NotFound.into()).to_string();
        assert!(helper.contains("fusermount3: install the package fuse3"), "{helper}");
    }

    #[test]
    fn what_is_in_use_for_a_moment_is_unmounted_and_what_stays_in_use_is_refused() {
        let busy = || Err(io::Error::from_raw_os_error(16));
        let said = || Err(io::Error::other("fusermount3: failed to unmount /m: Device or resource busy"));
        let (mut tries, mut pauses) = (0, 0);
        let mut unmount = || {
            tries += 1;
            match tries {
                1 => busy(),
                2 => said(),
                _ => Ok(()),
            }
        };
        again(&mut unmount, || pauses += 1).unwrap();
        assert_eq!((tries, pauses), (3, 2));
        let mut tries = 0;
        let refused = again(
            || {
                tries += 1;
                busy()
            },
            || {},
        );
        assert!(is_busy(&refused.unwrap_err()));
        assert_eq!(tries, UNMOUNT_TRIES);
        let mut tries = 0;
        let none = || {
            tries += 1;
            Err(io::Error::from_raw_os_error(22))
        };
        assert_eq!(again(none, || {}).unwrap_err().raw_os_error(), Some(22));
        assert_eq!(tries, 1);
    }

    #[test]
    fn a_mount_is_found_in_the_systems_table() {
        let table =
            b"22 1 0:20 / /proc rw - proc proc rw\n30 1 0:41 / /m\\040x rw,nosuid - fuse.wattlock /v rw\n\
            31 1 0:42 / /m rw - tmpfs t rw\n32 31 0:43 / /m rw shared:3 - fuse.wattlock /w rw\n";
        let found = |path: &str| device_at(table, Path::new(path));
        assert_eq!(found("/m x").as_deref(), Some("0:41"));
        assert_eq!(found("/m").as_deref(), Some("0:43"));
        assert_eq!(found("/n"), None);
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
