//! How a running mount is asked and told: a socket in a folder of the user's own, one line in, lines out.
//!
//! Nobody else reaches it: the folder is entered by its owner only, the socket has that owner's rights only, and a peer
//! of another user is left without an answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use wattlock_fs::volume::{hex, unhex};
use zeroize::Zeroizing;

use crate::backing::{Backing, Next, Rotation, Which};
use crate::door::Inner;

/// Longest request.
const LONGEST: usize = 64 << 10;

/// A peer that says nothing for this long is left.
const PATIENCE: Duration = Duration::from_secs(5);

/// The next try after a connection that could not be accepted: without a free descriptor the error comes at once, again
/// and again.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections that wait for an answer, as many as the standard library's listeners keep.
const BACKLOG: i32 = 128;

/// Where the socket of a mount is, for this user.
///
/// # Errors
/// The folder cannot be made, or is another user's.
pub fn path(mountpoint: &Path) -> io::Result<PathBuf> {
    let uid = rustix::process::geteuid();
    let folder = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !uid.is_root() && !folder.is_empty() => PathBuf::from(folder).join("wattlock"),
        _ if uid.is_root() => PathBuf::from("/run/wattlock"),
        _ => PathBuf::from(format!("/tmp/wattlock-{}", uid.as_raw())),
    };
    own_folder(&folder)?;
    // A socket's path has 107 bytes at most: the mount point is in its name as a number.
    let number = mountpoint.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Ok(folder.join(format!("mount-{number:016x}")))
}

/// Makes a folder that only this user enters, or closes the one that is there to others.
fn own_folder(folder: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let foreign = || io::Error::other(format!("{}: not this user's own folder", folder.display()));
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty()).map_err(|_| foreign())?;
    let stat = rustix::fs::fstat(&opened)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(foreign());
    }
    if stat.st_mode & 0o077 != 0 {
        rustix::fs::fchmod(&opened, Mode::RWXU)?;
    }
    Ok(())
}

/// Makes a socket that only its owner may connect to. A socket's name gets the rights that the socket has, less the umask:
/// no moment is open to others, and the umask, which is the whole process's, stays as it is.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Whether a peer is this user or root.
fn is_own(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

/// Whether a process serves a mount, or gives its volume back: it need not have time to answer.
pub fn is_served(mountpoint: &Path) -> bool {
    path(mountpoint).is_ok_and(|path| UnixStream::connect(path).is_ok())
}

/// Asks a running mount. The answer's lines, or the refusal's line as the inner error.
///
/// # Errors
/// Nobody answers there.
pub fn ask(mountpoint: &Path, request: &str) -> io::Result<Result<Vec<String>, String>> {
    ask_until(mountpoint, request, PATIENCE, &|| true)
}

/// As [`ask`], of a request that takes its time: until `stop` says so.
///
/// # Errors
/// As [`ask`].
pub fn ask_until(
    mountpoint: &Path,
    request: &str,
    patience: Duration,
    stop: &dyn Fn() -> bool,
) -> io::Result<Answer> {
    let mut stream = connect(&path(mountpoint)?)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    stream.write_all(b"\n")?;
    let (mut reader, mut first) = (BufReader::new(stream), String::new());
    loop {
        match reader.read_line(&mut first) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !stop() => {}
            Err(error) => return Err(error),
        }
    }
    let (first, lines) = (first.trim_end_matches('\n'), reader.lines());
    if let Some(refusal) = first.strip_prefix("error ") {
        return Ok(Err(refusal.to_owned()));
    }
    lines.collect::<io::Result<Vec<String>>>().map(Ok)
}

/// Connects at once or not at all: at a mount that hangs, connections queue up until there is no room for another one,
/// which would wait for ever.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The socket's name, and device and inode number: the name goes with it, unless it is another mount's by then.
pub(crate) struct Listening(Option<(PathBuf, (u64, u64))>);

/// Device and inode number of what a name leads to.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some((path, own)) = self.0.take()
            && identity(&path).is_ok_and(|now| now == own)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Answers in a thread of its own until the process ends. A mount without a socket is still a mount.
pub(crate) fn listen<B: Backing>(mountpoint: &Path, source: &str, inner: &Arc<Inner<B>>) -> Listening {
    let started = path(mountpoint).and_then(|path| {
        // The mount point was free: a socket of its name is a dead mount's.
        let _ = std::fs::remove_file(&path);
        let listener = bind(&path)?;
        let own = identity(&path)?;
        let (mountpoint, source) = (mountpoint.to_owned(), source.to_owned());
        let (since, inner) = (Instant::now(), Arc::downgrade(inner));
        std::thread::Builder::new().name("wattlock-control".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                // The volume is closed when the mount ends, not when this thread does.
                let Some(inner) = Weak::upgrade(&inner) else { return };
                // Descriptors and memory are there again later; the connection waits in the listener's queue meanwhile.
                let Ok(stream) = stream else {
                    drop(inner);
                    std::thread::sleep(PAUSE);
                    continue;
                };
                if !is_own(&stream) {
                    continue;
                }
                let about = || about(&mountpoint, &source, since, &inner);
                // A peer that is gone needs no answer.
                let _ = answer(stream, about, &inner);
            }
        })?;
        Ok((path, own))
    });
    Listening(started.ok())
}

/// A peer's line. No buffer keeps a part of it.
fn line_of(mut stream: &UnixStream) -> io::Result<Zeroizing<String>> {
    let mut line = Zeroizing::new(Vec::with_capacity(LONGEST));
    let mut byte = [0];
    while line.len() < LONGEST && stream.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    let text = std::str::from_utf8(&line).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// What a request is answered with: lines, or why it is refused.
type Answer = Result<Vec<String>, String>;

fn answer<B: Backing>(
    mut stream: UnixStream,
    about: impl FnOnce() -> Vec<String>,
    inner: &Arc<Inner<B>>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // It may have a key.
    let request = line_of(&stream)?;
    let mut words = request.split_whitespace();
    let answer = match words.next() {
        Some("status") => Ok(about()),
        Some("set") => {
            let settings: Vec<String> = words.map(str::to_owned).collect();
            inner.backing.set(&settings).map(|()| Vec::new())
        }
        Some("may-rotate") => match which(&mut words) {
            Some(which) => inner.backing.may_rotate(&which).map(|()| Vec::new()),
            None => Err("which volume?".to_owned()),
        },
        // Takes as long as there are files: others are answered meanwhile.
        Some("rotate") => {
            let (inner, request) = (inner.clone(), request.clone());
            let work = move || {
                let _ = write_answer(&mut stream, rotate(&inner, &request));
            };
            return std::thread::Builder::new().name("wattlock-rotate".to_owned()).spawn(work).map(drop);
        }
        _ => Err("unknown request".to_owned()),
    };
    write_answer(&mut stream, answer)
}

/// The words of a request that say which volume it is about.
pub fn words_of(which: &Which) -> String {
    format!("{} {} {}", *hex(&which.id), which.folder.0, which.folder.1)
}

fn which<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Which> {
    let id = *unhex(words.next()?)?;
    Some(Which { id, folder: (words.next()?.parse().ok()?, words.next()?.parse().ok()?) })
}

/// The words of a request with a key.
pub fn words_with(next: &Next) -> Zeroizing<String> {
    let mut words = Zeroizing::new(format!("{} {}", next.generation, *hex(&next.key[..])));
    for (before, sealed) in &next.successors {
        words.push_str(&format!(" {before}:{}", *hex(sealed)));
    }
    words
}

fn next<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Next> {
    let generation = words.next()?.parse().ok()?;
    let key = unhex(words.next()?)?;
    let successor = |word: &str| {
        let (before, sealed) = word.split_once(':')?;
        Some((before.parse().ok()?, *unhex(sealed)?))
    };
    Some(Next { generation, key, successors: words.map(successor).collect::<Option<_>>()? })
}

const LOST: &str = "lost ";
const FAILED: &str = "failed ";

/// What the lines of an answer to `rotate` say.
pub fn rotation(lines: &[String]) -> Rotation {
    let of = |prefix| {
        let lines = lines.iter().skip(1).filter_map(|line| line.strip_prefix(prefix));
        lines.map(str::to_owned).collect()
    };
    let sealed = lines.first().and_then(|line| line.parse().ok()).unwrap_or(0);
    Rotation { sealed, lost: of(LOST), failed: of(FAILED) }
}

/// Carries out `rotate` with a volume and its next key.
fn rotate<B: Backing>(inner: &Inner<B>, request: &str) -> Answer {
    let mut words = request.split_whitespace().skip(1);
    let (Some(which), Some(next)) = (which(&mut words), next(&mut words)) else {
        return Err("no volume, or no key".to_owned());
    };
    let stop = || inner.ended.load(Ordering::SeqCst);
    let done = inner.on_thread(|thread, _| inner.backing.rotate(&which, &next, &stop, thread));
    done.map(|done| {
        let lost = done.lost.iter().map(|line| format!("{LOST}{line}"));
        let failed = done.failed.iter().map(|line| format!("{FAILED}{line}"));
        std::iter::once(done.sealed.to_string()).chain(lost).chain(failed).collect()
    })
}

fn write_answer(stream: &mut UnixStream, answer: Answer) -> io::Result<()> {
    let text = match answer {
        Ok(lines) => {
            std::iter::once("ok").chain(lines.iter().map(String::as_str)).collect::<Vec<_>>().join("\n")
        }
        Err(refusal) => format!("error {}", refusal.replace('\n', " ")),
    };
    stream.write_all(text.as_bytes())?;
    stream.write_all(b"\n")
}

fn about<B: Backing>(mountpoint: &Path, source: &str, since: Instant, inner: &Inner<B>) -> Vec<String> {
    let (inodes, open) = inner.table.counts();
    let mut lines = vec![
        format!("mounted at {}", wattlock_door::one_line(mountpoint)),
        format!("volume {source}"),
        format!("process {}, for {} s", std::process::id(), since.elapsed().as_secs()),
        format!("inodes {inodes} known, {open} open; {} folders open", inner.folders.len()),
    ];
    lines.extend(inner.counters.lines());
    lines.extend(inner.backing.engines());
    lines
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_socket_and_its_folder_are_closed_to_others() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("wattlock");
        own_folder(&folder).unwrap();
        assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        // One that an older version, or another program with its umask, left open.
        for mode in [0o755, 0o777, 0o710, 0o701] {
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
            own_folder(&folder).unwrap();
            assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o777, 0o700, "{mode:o}");
        }
        let path = folder.join("socket");
        let listener = bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let peer = UnixStream::connect(&path).unwrap();
        assert!(is_own(&listener.accept().unwrap().0));
        drop(peer);
    }

    #[test]
    fn a_mount_that_hangs_keeps_nobody_waiting_for_a_connection() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _hangs = bind(&path).unwrap();
        let mut kept = Vec::new();
        let refused = loop {
            match connect(&path) {
                Ok(stream) => kept.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "after {}", kept.len());
    }

    #[test]
    fn a_mount_that_ends_leaves_the_socket_of_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let old_one = bind(&path).unwrap();
        let old = Listening(Some((path.clone(), identity(&path).unwrap())));
        std::fs::remove_file(&path).unwrap();
        let next_one = bind(&path).unwrap();
        let next = Listening(Some((path.clone(), identity(&path).unwrap())));
        drop((old, old_one));
        assert!(UnixStream::connect(&path).is_ok());
        drop((next, next_one));
        assert!(!path.exists());
    }

    #[test]
    fn a_link_a_file_and_a_foreign_folder_are_no_place_for_a_socket() {
        let outer = tempfile::tempdir().unwrap();
        let (link, file) = (outer.path().join("link"), outer.path().join("file"));
        std::os::unix::fs::symlink(outer.path(), &link).unwrap();
        std::fs::write(&file, "").unwrap();
        assert!(own_folder(&link).is_err() && own_folder(&file).is_err());
        if rustix::process::geteuid().is_root() {
            let foreign = outer.path().join("foreign");
            std::fs::create_dir(&foreign).unwrap();
            std::os::unix::fs::chown(&foreign, Some(1234), None).unwrap();
            assert!(own_folder(&foreign).is_err());
        }
    }
}
