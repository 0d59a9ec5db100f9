//! `wattlock fs cp`: out of a volume and into it, with what `cp -a` keeps.
//!
//! *Again.* What is made has a hidden name until content, attributes and times are whole, and then gets its own by one
//! rename: what has its own name is complete. A second run skips an entry of the same kind, size and time, as rsync does,
//! and takes over what the first left under a hidden name.

mod give;
mod inside;
mod made;
mod outside;
mod side;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use wattlock_door::one_line;
use wattlock_fs::Error;
use zeroize::Zeroizing;

use super::access::Keys;
use super::report::Report;
use super::world::{STEP, World, about, go_on};
use crate::files::{is_stdouts, refuse_mixture};
use crate::lines::Line;
use crate::mount::place;
use crate::progress::{self, Bar, Stats};
use outside::Outside;
use side::{Seen, Side};
use wattlock_shell::setup::{self, Choice};

/// Copy files out of a volume, or into it, with all that `cp -a` keeps
#[derive(Debug, Args)]
pub struct Cp {
    /// The volume's folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// What to copy, then where to
    #[arg(value_name = "PATH", required = true, num_args = 2..)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    keys: Keys,
    /// Copy into the volume: the last path is in the volume, the others are not
    #[arg(long)]
    into: bool,
    /// Copy folders with all that is in them. Called again, it goes on: what has the same kind, size and time is skipped
    #[arg(short, long)]
    recursive: bool,
    /// Replace files that are there, even those that look the same
    #[arg(short, long)]
    force: bool,
    /// The last path is the copy's own name, even if a folder has it already
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// No progress bar, and no line at the end
    #[arg(short, long)]
    quiet: bool,
    /// Say at the end what was copied, how fast, on which engine by which policy (on standard error)
    #[arg(short, long)]
    verbose: bool,
}

/// Runs `wattlock fs cp`.
pub fn cp(command: &Cp, json: bool, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let Some((to, from)) = command.paths.split_last() else { return Ok(()) };
    let own = || place::overlap(to, &command.folder) == Some(place::Overlap::In);
    if !command.into && (place::is_in_a_volume(to) || own()) {
        let what = format!("{} is in a volume's folder: files in clear do not belong there", one_line(to));
        return Err(Error::Usage(what).into());
    }
    // Folders stay open as deep as they are copied.
    super::raise_descriptors();
    let mut world = World::open(&command.keys, &command.folder, command.into, &runtime)?;
    world.contents(command.into)?;
    let mut outside = Outside { volume: world.root().folder.inode() };
    let silent = command.quiet || (json && progress::shows_output());
    let bar = Bar::of_all(silent, "copied", || match command.into {
        // A link is copied as one.
        true => from.iter().filter(|path| !path.is_symlink()).cloned().collect(),
        false => from.iter().filter_map(|path| stored_at(&mut world, path, &command.folder)).collect(),
    });
    let (stats, moved) = (
        Stats { runtime: &runtime, choice, families: progress::CONTENT, began: Instant::now() },
        Moved { bar, bytes: 0 },
    );
    let (report, moved, result) = match command.into {
        true => Copier::new(&mut outside, &mut world, command, moved, json).all(from, to),
        false => Copier::new(&mut world, &mut outside, command, moved, json).all(from, to),
    };
    let finished = world.finish();
    moved.bar.end();
    if json || (!command.quiet && (command.recursive || from.len() > 1)) {
        report.say("copied")?;
    }
    if command.verbose {
        stats.tell("copied", moved.bytes)?;
    }
    result?;
    finished?;
    report.end()
}

/// Where what a path in the volume names is stored, with all that is in it.
fn stored_at(world: &mut World, path: &Path, folder: &Path) -> Option<PathBuf> {
    let spot = world.spot(path).ok()?;
    let place = spot.entry.map_or_else(Vec::new, |entry| spot.inside.place_of(&entry));
    Some(folder.join(OsStr::from_bytes(&place))).filter(|place| !place.is_symlink())
}

/// How much content was copied, and a bar that shows it.
struct Moved {
    bar: Bar,
    bytes: u64,
}

/// An entry of a side, and what it is called in messages.
#[derive(Clone)]
struct At<D> {
    dir: D,
    name: Vec<u8>,
    path: PathBuf,
}

impl<D: Clone> At<D> {
    fn below(dir: &D, path: &Path, name: &[u8]) -> At<D> {
        At { dir: dir.clone(), name: name.to_vec(), path: path.join(OsStr::from_bytes(name)) }
    }
}

/// What became of an entry.
enum Done {
    /// So many bytes of content.
    Copied(u64),
    Skipped,
    /// A folder: what is in it counts.
    Folder,
}

/// A file of several names that was copied: where, and its inode there.
struct First {
    path: PathBuf,
    name: Vec<u8>,
    inode: (u64, u64),
}

/// What was made, open, and its inode.
type Open = (Box<dyn AsFd>, (u64, u64));
/// The same; another name of a file is not opened.
type Held = ((u64, u64), Option<Box<dyn AsFd>>);

struct Copier<'a, F: Side, T: Side> {
    from: &'a mut F,
    to: &'a mut T,
    recursive: bool,
    force: bool,
    exact: bool,
    /// By the inode that was copied.
    firsts: HashMap<(u64, u64), First>,
    buffer: Zeroizing<Vec<u8>>,
    report: Report,
    moved: Moved,
}

impl<'a, F: Side, T: Side> Copier<'a, F, T> {
    fn new(from: &'a mut F, to: &'a mut T, command: &Cp, moved: Moved, json: bool) -> Copier<'a, F, T> {
        Copier {
            from,
            to,
            recursive: command.recursive,
            force: command.force,
            exact: command.no_target_directory,
            firsts: HashMap::new(),
            buffer: Zeroizing::new(vec![0; STEP]),
            report: Report::new(json),
            moved,
        }
    }

    /// Copies everything, and says what became of it. An error here ended the copy.
    fn all(mut self, from: &[PathBuf], to: &Path) -> (Report, Moved, Result<()>) {
        let result = from.iter().try_for_each(|path| match self.top(path, to, from.len() > 1) {
            Err(error) if !super::ends(&error) => {
                self.report.refuse(path, error);
                Ok(())
            }
            result => result,
        });
        (self.report, self.moved, result)
    }

    /// Copies one of the paths that were asked for.
    fn top(&mut self, path: &Path, to: &Path, several: bool) -> Result<()> {
        let folder = match (&name_of(path), self.exact && !several) {
            (Some(_), true) => None,
            _ => self.to.folder_at(to)?,
        };
        let Some(name) = name_of(path) else { return self.nameless(path, to, folder) };
        let from = At { dir: self.from.parent_at(path)?, name: name.clone(), path: path.to_owned() };
        match folder {
            Some(folder) => self.each(&from, &At::below(&folder, to, &name)),
            None if several => Err(wattlock_door::Error::NotFound(to.to_owned()).into()),
            None => {
                let to = self.target_of(to)?;
                self.each(&from, &to)
            }
        }
    }

    fn target_of(&mut self, to: &Path) -> Result<At<T::Dir>> {
        let name = name_of(to).ok_or_else(|| wattlock_door::Error::NotFound(to.to_owned()))?;
        Ok(At { dir: self.to.parent_at(to)?, name, path: to.to_owned() })
    }

    /// Copies what is in a folder that has no name of its own: the volume's, or `.`.
    fn nameless(&mut self, path: &Path, to: &Path, folder: Option<T::Dir>) -> Result<()> {
        let missing = || wattlock_door::Error::NotFound(path.to_owned());
        let source = self.from.folder_at(path)?.ok_or_else(missing)?;
        if !self.recursive {
            return Err(needs_recursive(path));
        }
        let names = self.names(&source, path)?;
        let (target, ours) = match folder {
            // A folder with anything else in it, /tmp for one, keeps its own mode and owner.
            Some(folder) => {
                let (there, _) = self.to.list(&folder).map_err(|error| about(to, error))?;
                let ours = there.iter().all(|name| names.contains(name) || is_hidden(name));
                (folder, ours)
            }
            None => {
                let at = self.target_of(to)?;
                (self.made_folder(&at)?, true)
            }
        };
        let fd = self.from.fd(&source);
        let seen = Seen::of(fd).map_err(|error| about(path, error))?;
        let attributes = give::attributes(self.from, fd, path, &mut self.report)?;
        for name in names {
            self.each(&At::below(&source, path, &name), &At::below(&target, to, &name))?;
        }
        match ours {
            true => self.give(self.to.fd(&target), &seen, &attributes, to),
            false => Ok(()),
        }
    }

    /// The names in a folder to copy. What has none is refused.
    fn names(&mut self, folder: &F::Dir, path: &Path) -> Result<Vec<Vec<u8>>> {
        let (names, unnamed) = self.from.list(folder).map_err(|error| about(path, error))?;
        for (stored, error) in unnamed {
            let path = path.join(stored);
            let error = about(&path, error);
            self.report.refuse(&path, error);
        }
        Ok(names)
    }

    /// Copies an entry. An error is one that ends the copy; any other is told, and the copy goes on.
    fn each(&mut self, from: &At<F::Dir>, to: &At<T::Dir>) -> Result<()> {
        go_on()?;
        match self.entry(from, to) {
            Ok(Done::Copied(bytes)) => {
                self.report.done += 1;
                self.report.put(Line::of(&from.path).name("output", &to.path).with("bytes", bytes));
            }
            Ok(Done::Skipped) => self.report.skipped += 1,
            Ok(Done::Folder) => {}
            Err(error) if super::ends(&error) => return Err(error),
            Err(error) => self.report.refuse(&from.path, error),
        }
        Ok(())
    }

    fn entry(&mut self, from: &At<F::Dir>, to: &At<T::Dir>) -> Result<Done> {
        let seen = self.from.look(&from.dir, &from.name).map_err(|error| about(&from.path, error))?;
        let seen = seen.ok_or_else(|| wattlock_door::Error::NotFound(from.path.clone()))?;
        let there = self.to.look(&to.dir, &to.name).map_err(|error| about(&to.path, error))?;
        match seen.kind {
            FileType::Directory => self.folder(from, to, &seen, there).map(|()| Done::Folder),
            _ => self.leaf(from, to, &seen, there),
        }
    }

    fn folder(&mut self, from: &At<F::Dir>, to: &At<T::Dir>, seen: &Seen, there: Option<Seen>) -> Result<()> {
        if !self.recursive {
            return Err(needs_recursive(&from.path));
        }
        let inside = self.from.enter(&from.dir, &from.name).map_err(|error| about(&from.path, error))?;
        let fd = self.from.fd(&inside);
        let seen = &made::still(fd, seen, &from.path)?;
        let target = match there {
            Some(there) if there.kind == FileType::Directory => {
                let target = self.to.enter(&to.dir, &to.name).map_err(|error| about(&to.path, error))?;
                made::still(self.to.fd(&target), &there, &to.path)?;
                target
            }
            Some(_) => return Err(about(&to.path, Error::io("making a folder", Errno::NOTDIR))),
            None => self.made_folder(to)?,
        };
        let attributes = give::attributes(self.from, fd, &from.path, &mut self.report)?;
        for name in self.names(&inside, &from.path)? {
            self.each(&At::below(&inside, &from.path, &name), &At::below(&target, &to.path, &name))?;
        }
        // Last: what is made in a folder changes its times, and its own mode may forbid it.
        self.give(self.to.fd(&target), seen, &attributes, &to.path)
    }

    /// Copies what is no folder.
    fn leaf(&mut self, from: &At<F::Dir>, to: &At<T::Dir>, seen: &Seen, there: Option<Seen>) -> Result<Done> {
        let first = self.firsts.get(&seen.inode);
        if let (Some(there), Some(first)) = (&there, first)
            && there.inode == first.inode
        {
            return Ok(Done::Skipped);
        }
        if let Some(there) = &there {
            if there.kind == FileType::Directory {
                return Err(wattlock_door::Error::IsFolder(to.path.clone()).into());
            }
            if !self.force {
                return match self.is_complete(from, to, seen, there)? {
                    true => {
                        self.moved.bar.inc(seen.size);
                        self.remember(to, seen, there.inode);
                        Ok(Done::Skipped)
                    }
                    false => Err(exists(&to.path)),
                };
            }
            refuse_mixture(self.report.json, is_stdouts(there.inode))?;
        }
        let part = hidden(&to.name);
        let failed = |error: Error| about(&to.path, error);
        self.to.take_over(&to.dir, &part).map_err(failed)?;
        let made = self.make(from, to, seen, &part).and_then(|(inode, _held)| {
            self.to.rename(&to.dir, &part, &to.name, there.is_some()).map_err(failed)?;
            self.is_named(to, &to.name, inode)
        });
        if made.is_err() {
            // What cannot be removed is taken over by the next run.
            let _ = self.to.remove(&to.dir, &part);
        }
        let inode = made?;
        self.remember(to, seen, inode);
        let bytes = if seen.kind == FileType::RegularFile { seen.size } else { 0 };
        Ok(Done::Copied(bytes))
    }

    fn remember(&mut self, to: &At<T::Dir>, seen: &Seen, inode: (u64, u64)) {
        if seen.links > 1 {
            let first = || First { path: to.path.clone(), name: to.name.clone(), inode };
            self.firsts.entry(seen.inode).or_insert_with(first);
        }
    }

    /// Whether what is there is this already.
    fn is_complete(&mut self, from: &At<F::Dir>, to: &At<T::Dir>, seen: &Seen, there: &Seen) -> Result<bool> {
        if seen.kind != there.kind {
            return Ok(false);
        }
        match seen.kind {
            FileType::RegularFile => Ok(seen.size == there.size && same_time(seen, there)),
            FileType::Symlink => {
                let source = self.from.pin(&from.dir, &from.name);
                let source = source.and_then(|link| self.from.target(&from.dir, &from.name, &link));
                let target = self.to.pin(&to.dir, &to.name);
                let target = target.and_then(|link| self.to.target(&to.dir, &to.name, &link));
                let target = target.map_err(|error| about(&to.path, error))?;
                Ok(source.map_err(|error| about(&from.path, error))? == target)
            }
            FileType::BlockDevice | FileType::CharacterDevice => Ok(seen.device == there.device),
            _ => Ok(true),
        }
    }

    /// Makes an entry under its hidden name, whole. Returns its inode, and what keeps it open: as long, a body is locked,
    /// and no other entry has its number.
    fn make(&mut self, from: &At<F::Dir>, to: &At<T::Dir>, seen: &Seen, part: &[u8]) -> Result<Held> {
        if let Some(inode) = self.link_to_first(to, seen, part)? {
            return Ok((inode, None));
        }
        let (made, inode) = match seen.kind {
            FileType::RegularFile => self.make_body(from, to, seen, part)?,
            _ => self.make_other(from, to, seen, part)?,
        };
        Ok((inode, Some(made)))
    }

    /// A regular file. All that is read and all that is given goes by one descriptor each: another program may have put
    /// something else where their names are.
    fn make_body(&mut self, from: &At<F::Dir>, to: &At<T::Dir>, seen: &Seen, part: &[u8]) -> Result<Open> {
        let read = self.from.open(&from.dir, &from.name).map_err(|error| about(&from.path, error))?;
        let source = self.from.file(&read);
        let seen = &made::still(source.as_fd(), seen, &from.path)?;
        let attributes = give::attributes(self.from, source.as_fd(), &from.path, &mut self.report)?;
        let body = self.to.make_file(&to.dir, part).map_err(|error| about(&to.path, error))?;
        self.content(&read, &body, from, to, seen)?;
        let file = self.to.file(&body);
        self.give(file.as_fd(), seen, &attributes, &to.path)?;
        let inode = Seen::of(&file).map_err(|error| about(&to.path, error))?.inode;
        Ok((Box::new(file), inode))
    }

    /// A link, device, pipe or socket.
    fn make_other(&mut self, from: &At<F::Dir>, to: &At<T::Dir>, seen: &Seen, part: &[u8]) -> Result<Open> {
        let failed = |error: Error| about(&to.path, error);
        let source = self.from.pin(&from.dir, &from.name).map_err(|error| about(&from.path, error))?;
        let seen = &made::still(source.as_fd(), seen, &from.path)?;
        let attributes = give::attributes(self.from, source.as_fd(), &from.path, &mut self.report)?;
        if seen.kind == FileType::Symlink {
            let target = self.from.target(&from.dir, &from.name, &source);
            let target = target.map_err(|error| about(&from.path, error))?;
            self.to.make_link(&to.dir, part, &target).map_err(failed)?;
        } else {
            self.to.make_node(&to.dir, part, seen).map_err(failed)?;
        }
        let made = self.to.pin(&to.dir, part).map_err(failed)?;
        made::ours(made.as_fd(), self.to.fd(&to.dir), seen, &to.path)?;
        self.give(made.as_fd(), seen, &attributes, &to.path)?;
        let inode = Seen::of(&made).map_err(failed)?.inode;
        Ok((Box::new(made), inode))
    }

    /// Makes a folder and opens it.
    fn made_folder(&mut self, at: &At<T::Dir>) -> Result<T::Dir> {
        let failed = |error: Error| about(&at.path, error);
        self.to.make_folder(&at.dir, &at.name).map_err(failed)?;
        let folder = self.to.enter(&at.dir, &at.name).map_err(failed)?;
        let like = Seen::of(self.to.fd(&folder)).map_err(failed)?;
        made::ours(self.to.fd(&folder), self.to.fd(&at.dir), &like, &at.path)?;
        Ok(folder)
    }

    /// An error if a name has become another entry's.
    fn is_named(&mut self, to: &At<T::Dir>, name: &[u8], inode: (u64, u64)) -> Result<(u64, u64)> {
        let there = self.to.look(&to.dir, name).map_err(|error| about(&to.path, error))?;
        match there.is_some_and(|there| there.inode == inode) {
            true => Ok(inode),
            false => Err(made::another(&to.path)),
        }
    }

    /// Another name of a file that was copied already.
    fn link_to_first(&mut self, to: &At<T::Dir>, seen: &Seen, part: &[u8]) -> Result<Option<(u64, u64)>> {
        let Some(First { path, name, inode }) = self.firsts.get(&seen.inode) else { return Ok(None) };
        let (path, name, inode) = (path.clone(), name.clone(), *inode);
        let dir = self.to.parent_at(&path)?;
        // Where another program has moved it meanwhile, this is a file of its own.
        let there = self.to.look(&dir, &name).map_err(|error| about(&path, error))?;
        if there.is_none_or(|there| there.inode != inode) {
            return Ok(None);
        }
        self.to.hard_link((&dir, &name), (&to.dir, part)).map_err(|error| about(&to.path, error))?;
        self.is_named(to, part, inode).map(Some)
    }

    /// Copies a content, its holes included.
    fn content(
        &mut self,
        read: &F::Body,
        body: &T::Body,
        from: &At<F::Dir>,
        to: &At<T::Dir>,
        seen: &Seen,
    ) -> Result<()> {
        let source = |error: Error| about(&from.path, error);
        let target = |error: Error| about(&to.path, error);
        let (mut at, mut read_bytes) = (0, 0);
        while at < seen.size {
            let Some(data) = self.from.seek(read, at, false).map_err(source)? else { break };
            at = data;
            let hole = self.from.seek(read, at, true).map_err(source)?;
            let end = hole.unwrap_or(u64::MAX).min(seen.size);
            while at < end {
                go_on()?;
                let piece = (end - at).min(STEP as u64) as usize;
                let got = self.from.read(read, &mut self.buffer[..piece], at).map_err(source)?;
                if got == 0 {
                    return Err(changed(&from.path));
                }
                self.to.write(body, &self.buffer[..got], at).map_err(target)?;
                at += got as u64;
                read_bytes += got as u64;
                self.moved.bar.inc(got as u64);
            }
        }
        // Its holes were copied, too.
        self.moved.bar.inc(seen.size.saturating_sub(read_bytes));
        self.moved.bytes += seen.size;
        self.to.extend(body, seen.size).map_err(target)?;
        // This read also verifies that the end is the end.
        let more = self.from.read(read, &mut self.buffer[..1], seen.size).map_err(source)?;
        let now = self.from.look(&from.dir, &from.name).map_err(source)?;
        let same = now.is_some_and(|now| now.inode == seen.inode && now.modified() == seen.modified());
        if more > 0 || !same { Err(changed(&from.path)) } else { Ok(()) }
    }
}

/// Names an entry without opening it.
fn pin(dir: BorrowedFd<'_>, stored: &OsStr) -> Result<OwnedFd, Error> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, stored, flags, Mode::empty())
        .map_err(|error| Error::io("looking at an entry", error))
}

/// The last name of a path; `None` for `/`, `.`, `..`, and what ends in them.
fn name_of(path: &Path) -> Option<Vec<u8>> {
    let name = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').find(|name| !name.is_empty())?;
    Some(name.to_vec()).filter(|name| name != b"." && name != b"..")
}

/// The name that an entry has until it is whole. It is the same in each run (FNV-1a), so that the next one meets it.
fn hidden(name: &[u8]) -> Vec<u8> {
    let sum = name
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{HIDDEN}{sum:016x}{PARTIAL}").into_bytes()
}

const HIDDEN: &str = ".wattlock-";
const PARTIAL: &str = ".partial";

fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(HIDDEN.as_bytes()) && name.ends_with(PARTIAL.as_bytes())
}

/// Whether a copy has its original's time, as precisely as its file system keeps times.
fn same_time(original: &Seen, copy: &Seen) -> bool {
    /// Nanoseconds: ext4 and most others, NTFS, exFAT, ext3 and many network file systems, FAT.
    const STEPS: [i128; 5] = [1, 100, 10_000_000, 1_000_000_000, 2_000_000_000];
    let (original, copy) = (original.modified(), copy.modified());
    STEPS.iter().any(|step| original - original.rem_euclid(*step) == copy)
}

fn exists(path: &Path) -> anyhow::Error {
    wattlock_door::Error::OutputExists(path.to_owned()).into()
}

fn changed(path: &Path) -> anyhow::Error {
    about(path, wattlock_door::Error::InputChanged)
}

fn needs_recursive(path: &Path) -> anyhow::Error {
    Error::Usage(format!("{} is a folder: give -r", one_line(path))).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_last_component_is_a_name() {
        let name = |path: &str| name_of(Path::new(path)).map(|name| String::from_utf8(name).unwrap());
        for (path, wanted) in [("a/b", "b"), ("a/b/", "b"), ("/x", "x"), ("../y", "y")] {
            assert_eq!(name(path).as_deref(), Some(wanted));
        }
        for path in ["/", "", ".", "..", "a/.", "a/..", "a/./"] {
            assert_eq!(name(path), None, "{path}");
        }
    }

    #[test]
    fn a_time_that_a_coarse_file_system_cut_is_the_same_and_another_is_not() {
        let seen = |seconds, nanos| {
            let mut seen = Seen::of(std::fs::File::open("/").unwrap()).unwrap();
            seen.times.last_modification = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanos };
            seen
        };
        let original = seen(1001, 123_456_789);
        for (seconds, nanos) in
            [(1001, 123_456_789), (1001, 123_456_700), (1001, 120_000_000), (1001, 0), (1000, 0)]
        {
            assert!(same_time(&original, &seen(seconds, nanos)), "{seconds} {nanos}");
        }
        for (seconds, nanos) in [(1002, 0), (1001, 123_456_788), (999, 0), (1001, 123_000_000)] {
            assert!(!same_time(&original, &seen(seconds, nanos)), "{seconds} {nanos}");
        }
        assert!(same_time(&seen(-5, 500), &seen(-5, 500)));
    }
}
