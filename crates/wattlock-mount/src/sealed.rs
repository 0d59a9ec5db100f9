//! An encrypted volume behind the door.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, XattrFlags};
use rustix::io::Errno;
use wattlock::policy::MAX_ENGINES;
use wattlock::{Dispatcher, Runtime};
use wattlock_core::Kind;
use wattlock_core::recent::Mark;
use wattlock_fs::Error;
use wattlock_fs::content::{Content, Contents, Creating};
use wattlock_fs::names::target_len;
use wattlock_fs::store::{FolderStore, Place};
use wattlock_fs::tree::{Entry, Folder, Listed, Tree};
use wattlock_fs::volume::Volume;

use crate::attributes;
use crate::backing::{Backing, Result};
use crate::counters::by_size;
use wattlock_core::sync::lock;

/// How a mount's engines are chosen, and how that is told.
pub trait Engines: Send + Sync + 'static {
    /// Puts settings in force, `key=value` each, over those that were given before.
    ///
    /// # Errors
    /// What is wrong with them, in one line; nothing has changed then.
    fn set(&self, runtime: &Runtime, settings: &[String]) -> std::result::Result<(), String>;

    /// What a runtime did, for people.
    fn describe(&self, runtime: &Runtime) -> Vec<String>;
}

/// An encrypted volume, opened.
pub struct Sealed {
    tree: Tree,
    root: Mutex<Option<Folder>>,
    contents: Contents<FolderStore>,
    engines: Box<dyn Engines>,
    runtime: Runtime,
    done: Done,
}

/// A file's content, and when it was written to.
pub struct SealedContent {
    content: Arc<Content<FolderStore>>,
    writes: Mark,
}

impl Sealed {
    /// Opens a volume's folder. The lines are for the log: what an earlier run did not finish, and was mended.
    ///
    /// # Errors
    /// [`Error::InUse`] if it is mounted; [`Error::Damaged`]; [`Error::Io`]; [`wattlock_door::Error::Interrupted`] if
    /// `stop` says so before it is done.
    pub fn open(
        path: &Path,
        volume: &Volume,
        runtime: Runtime,
        engines: Box<dyn Engines>,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Sealed, Vec<String>)> {
        let mut dispatcher = runtime.dispatcher();
        let store =
            FolderStore::open(path).map_err(|error| Error::io("opening the volume's folder", error))?;
        // First: it takes the lock.
        let (contents, recovered) =
            Contents::start_until(store, volume, stop, &mut dispatcher).map_err(|error| {
                match error.errno() {
                    errno if errno == Errno::WOULDBLOCK.raw_os_error() => Error::InUse,
                    _ => error,
                }
            })?;
        let (tree, root) = Tree::open(path, volume, &mut dispatcher)?;
        tree.set_crashed(contents.may_be_torn());
        let sealed =
            Sealed { tree, root: Mutex::new(Some(root)), contents, engines, runtime, done: Done::default() };
        Ok((sealed, recovered.lines))
    }

    /// Does something with a content, for a request of so many bytes: the policy hears of the files that are written, and
    /// what came of it is counted.
    fn operate<T>(
        &self,
        file: &SealedContent,
        (kind, bytes): (Kind, usize),
        thread: &mut Dispatcher,
        work: impl FnOnce(&Content<FolderStore>, &mut Dispatcher) -> T,
    ) -> T {
        let _writes = (kind == Kind::Aes256GcmSeal).then(|| self.runtime.operates_on(&file.writes));
        let engines = self.runtime.engines().len().min(MAX_ENGINES);
        let mut before = [0; MAX_ENGINES];
        (0..engines).for_each(|engine| before[engine] = thread.done_by(engine, kind));
        let done = work(&file.content, thread);
        for (engine, had) in before[..engines].iter().enumerate() {
            let more = thread.done_by(engine, kind).wrapping_sub(*had);
            if more > 0 {
                self.done.add(engine, kind, bytes, more);
            }
        }
        done
    }

    /// Does something that gives entries other names: a thread that looks for what a crash left torn hears of it.
    fn while_moving<T>(&self, entries: &[(&Folder, &Entry)], work: impl FnOnce() -> T) -> T {
        if !self.contents.may_be_torn() {
            return work();
        }
        let inode = |(folder, entry): &(&Folder, &Entry)| {
            let stat = rustix::fs::statat(folder.fd(), &*entry.stored, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            let file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            file.then_some((stat.st_dev, stat.st_ino))
        };
        let inodes: Vec<_> = entries.iter().map(inode).collect();
        self.contents.while_moving(&inodes, work)
    }
}

/// Reading and writing, as kinds.
const KINDS: [(Kind, &str); 2] = [(Kind::Aes256GcmOpen, "read"), (Kind::Aes256GcmSeal, "write")];

/// Sizes of requests are told apart by powers of two up to this many bytes.
const CLASSES: usize = 21;

/// Chunks that engines opened and sealed, by the size of the request that they were part of. Only ever added to.
#[derive(Default)]
struct Done([[[AtomicU64; CLASSES]; KINDS.len()]; MAX_ENGINES]);

impl Done {
    fn add(&self, engine: usize, kind: Kind, bytes: usize, chunks: u64) {
        let class = (bytes.max(1).next_power_of_two().trailing_zeros() as usize).min(CLASSES - 1);
        let at = usize::from(kind == Kind::Aes256GcmSeal);
        self.0[engine][at][class].fetch_add(chunks, Ordering::Relaxed);
    }

    /// A line for each engine and operation that there was.
    fn lines(&self, names: impl Iterator<Item = &'static str>) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, kinds) in names.zip(&self.0) {
            for ((_, operation), sizes) in KINDS.iter().zip(kinds) {
                let sizes = sizes.iter().map(|chunks| chunks.load(Ordering::Relaxed)).enumerate();
                let sizes = by_size(sizes);
                if !sizes.is_empty() {
                    lines.push(format!("{operation} {name}, chunks in requests up to {sizes}"));
                }
            }
        }
        lines
    }
}

fn failed(error: Errno) -> Error {
    Error::io("extended attribute", error)
}

impl Backing for Sealed {
    type Thread = Dispatcher;
    type Folder = Folder;
    type Content = SealedContent;

    fn thread(&self, number: usize) -> Dispatcher {
        self.runtime.dispatcher_of(u16::try_from(number).unwrap_or(u16::MAX))
    }

    fn root(&self, _thread: &mut Dispatcher) -> Result<Folder> {
        lock(&self.root).take().ok_or_else(|| Error::Usage("the volume's folder is in use".to_owned()))
    }

    fn fd<'a>(&self, folder: &'a Folder) -> BorrowedFd<'a> {
        folder.fd().as_fd()
    }

    fn folder(&self, parent: &Folder, entry: &Entry, thread: &mut Dispatcher) -> Result<Folder> {
        self.tree.folder(parent, entry, thread)
    }

    fn entry(&self, folder: &Folder, name: &OsStr, thread: &mut Dispatcher) -> Result<Entry> {
        self.tree.entry(folder, name.as_bytes(), thread)
    }

    fn list(&self, folder: &Folder, thread: &mut Dispatcher) -> Result<(Vec<Listed>, Vec<OsString>)> {
        self.tree.list(folder, thread)
    }

    fn open_file(&self, folder: &Folder, entry: &Entry, flags: OFlags) -> Result<File> {
        self.tree.open_file(folder, entry, flags)
    }

    fn create_file(&self, folder: &Folder, entry: &Entry, mode: Mode) -> Result<File> {
        self.tree.create_file(folder, entry, mode)
    }

    fn make_folder(&self, folder: &Folder, entry: &Entry, mode: Mode, thread: &mut Dispatcher) -> Result<()> {
        self.tree.make_folder(folder, entry, mode, thread)
    }

    fn make_node(
        &self,
        folder: &Folder,
        entry: &Entry,
        kind: FileType,
        mode: Mode,
        device: u64,
    ) -> Result<()> {
        self.tree.make_node(folder, entry, kind, mode, device)
    }

    fn make_link(
        &self,
        folder: &Folder,
        entry: &Entry,
        target: &OsStr,
        thread: &mut Dispatcher,
    ) -> Result<()> {
        self.tree.make_link(folder, entry, target.as_bytes(), thread)
    }

    fn read_link(&self, folder: &Folder, entry: &Entry, thread: &mut Dispatcher) -> Result<Vec<u8>> {
        self.tree.read_link(folder, entry, thread)
    }

    fn link_len(&self, stored: u64) -> Option<u64> {
        Some(target_len(stored))
    }

    fn hard_link(&self, from: (&Folder, &Entry), to: (&Folder, &Entry)) -> Result<()> {
        self.while_moving(&[from], || self.tree.hard_link(from, to))
    }

    fn rename(&self, from: (&Folder, &Entry), to: (&Folder, &Entry), flags: RenameFlags) -> Result<()> {
        // In an exchange both move.
        let both = [from, to];
        let moved = if flags.contains(RenameFlags::EXCHANGE) { &both[..] } else { &both[..1] };
        self.while_moving(moved, || self.tree.rename(from, to, flags))
    }

    fn remove(&self, folder: &Folder, entry: &Entry, folder_itself: bool) -> Result<()> {
        self.tree.remove(folder, entry, folder_itself)
    }

    fn sync_records(&self) -> Result<()> {
        self.tree.sync_records()
    }

    fn notes(&self) -> Vec<String> {
        let mut lines = self.tree.take_notes();
        lines.extend(self.contents.take_lines());
        lines
    }

    fn set_attribute(
        &self,
        path: &OsStr,
        name: &OsStr,
        value: &[u8],
        flags: XattrFlags,
        thread: &mut Dispatcher,
    ) -> Result<()> {
        let (extras, crypto) = (self.tree.extras(), thread);
        let stored = extras.attribute(name.as_bytes(), crypto)?;
        let value = extras.seal_value(name.as_bytes(), value, crypto)?;
        attributes::set(path, OsStr::from_bytes(&stored), &value, flags).map_err(failed)
    }

    fn attribute(&self, path: &OsStr, name: &OsStr, thread: &mut Dispatcher) -> Result<Vec<u8>> {
        let (extras, crypto) = (self.tree.extras(), thread);
        let stored = extras.attribute(name.as_bytes(), crypto)?;
        let value = attributes::get(path, OsStr::from_bytes(&stored)).map_err(failed)?;
        extras.open_value(name.as_bytes(), &value, crypto)
    }

    fn attributes(&self, path: &OsStr, thread: &mut Dispatcher) -> Result<Vec<Vec<u8>>> {
        let (extras, crypto) = (self.tree.extras(), thread);
        let mut shown = Vec::new();
        for stored in attributes::list(path).map_err(failed)? {
            shown.extend(extras.attribute_name(&stored, crypto)?);
        }
        Ok(shown)
    }

    fn remove_attribute(&self, path: &OsStr, name: &OsStr, thread: &mut Dispatcher) -> Result<()> {
        let stored = self.tree.extras().attribute(name.as_bytes(), thread)?;
        attributes::remove(path, OsStr::from_bytes(&stored)).map_err(failed)
    }

    fn before_create<'a>(&'a self, thread: &mut Dispatcher) -> Result<Option<Creating<'a>>> {
        Ok(Some(self.contents.before_create(thread)?))
    }

    fn create_content(&self, file: File, place: Place, thread: &mut Dispatcher) -> Result<SealedContent> {
        Ok(SealedContent { content: self.contents.create(file, place, thread)?, writes: Mark::default() })
    }

    fn open_content(&self, file: File, place: Place, thread: &mut Dispatcher) -> Result<SealedContent> {
        Ok(SealedContent { content: self.contents.open(file, place, thread)?, writes: Mark::default() })
    }

    fn len_of(&self, stat: &Stat) -> u64 {
        self.contents.len_of((stat.st_dev, stat.st_ino), stat.st_size as u64)
    }

    fn is_torn(&self, stat: &Stat) -> bool {
        !self.contents.is_sound((stat.st_dev, stat.st_ino))
    }

    fn may_be_torn(&self) -> bool {
        self.contents.may_be_torn()
    }

    fn look_through(&self, alone: bool, stop: &dyn Fn() -> bool, thread: &mut Dispatcher) -> Result<()> {
        // Folders first: that contents may be torn is what says that a folder's record may be.
        let whole = self.tree.look_through(stop, thread)?;
        self.contents.look_through(alone, stop, thread)?;
        self.tree.set_crashed(!whole || self.contents.may_be_torn());
        Ok(())
    }

    fn with_times(&self, inode: (u64, u64), work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.contents.with_times(inode, work)
    }

    fn len(&self, file: &SealedContent) -> u64 {
        file.content.len()
    }

    fn read(&self, file: &SealedContent, to: &mut [u8], at: u64, thread: &mut Dispatcher) -> Result<usize> {
        let what = (Kind::Aes256GcmOpen, to.len());
        self.operate(file, what, thread, |content, crypto| content.read(to, at, crypto))
    }

    fn write(&self, file: &SealedContent, from: &[u8], at: u64, thread: &mut Dispatcher) -> Result<()> {
        let what = (Kind::Aes256GcmSeal, from.len());
        self.operate(file, what, thread, |content, crypto| content.write(from, at, crypto))
    }

    fn append(&self, file: &SealedContent, from: &[u8], thread: &mut Dispatcher) -> Result<u64> {
        let what = (Kind::Aes256GcmSeal, from.len());
        self.operate(file, what, thread, |content, crypto| content.append(from, crypto))
    }

    fn set_len(&self, file: &SealedContent, len: u64, thread: &mut Dispatcher) -> Result<()> {
        file.content.set_len(len, thread)
    }

    fn grow(&self, file: &SealedContent, len: u64, thread: &mut Dispatcher) -> Result<()> {
        file.content.grow(len, thread)
    }

    fn zero(&self, file: &SealedContent, at: u64, len: u64, thread: &mut Dispatcher) -> Result<()> {
        file.content.zero(at, len, thread)
    }

    fn seek(
        &self,
        file: &SealedContent,
        at: u64,
        hole: bool,
        thread: &mut Dispatcher,
    ) -> Result<Option<u64>> {
        file.content.seek(at, hole, thread)
    }

    fn sync(&self, file: &SealedContent, thread: &mut Dispatcher) -> Result<()> {
        file.content.sync(thread)
    }

    fn wants_checkpoint(&self, idle: bool) -> bool {
        self.contents.wants_checkpoint(idle)
    }

    fn checkpoint(&self, thread: &mut Dispatcher) -> Result<()> {
        self.tree.sync_records()?;
        self.contents.checkpoint(thread)
    }

    fn engines(&self) -> Vec<String> {
        let names = self.runtime.engines().iter().map(|engine| engine.description().name);
        let mut lines = vec![format!("files in operation {}", self.runtime.files_in_operation())];
        lines.extend(self.done.lines(names));
        lines.extend(self.engines.describe(&self.runtime));
        lines
    }

    fn set(&self, settings: &[String]) -> std::result::Result<(), String> {
        self.engines.set(&self.runtime, settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, Instant};

    use wattlock::Clock;
    use wattlock::core::Engine;
    use wattlock::policy::Settings;
    use wattlock_cpu::instruction::Instruction;
    use wattlock_cpu::software::Software;
    use wattlock_emul::{Effect, Emulated, Fault, Model, Pace, Trigger};
    use wattlock_fs::volume::NameMode;

    use crate::door::Door;

    /// Where the card is among the engines.
    const CARD: usize = 2;

    struct Plain;

    impl Engines for Plain {
        fn set(&self, runtime: &Runtime, settings: &[String]) -> std::result::Result<(), String> {
            let mut policy = Settings::default();
            for setting in settings {
                policy.set(setting).map_err(|error| error.to_string())?;
            }
            runtime.set_policy("aca-sds", policy).map_err(|error| error.to_string())
        }

        fn describe(&self, _runtime: &Runtime) -> Vec<String> {
            Vec::new()
        }
    }

    fn runtime(faults: Vec<Fault>) -> Runtime {
        with_clock(faults, Clock::real())
    }

    fn with_clock(faults: Vec<Fault>, clock: Clock) -> Runtime {
        let instruction: Arc<dyn Engine> = Arc::new(Instruction::new());
        let card = Emulated::new(Model::qat_dh8970(), instruction.clone(), Pace::RealTime).unwrap();
        Runtime::builder()
            .engines(vec![instruction, Arc::new(Software::new()), Arc::new(card.with_faults(faults))])
            .policy("aca-sds", Settings::default())
            .verify_one_in(1)
            .telemetry(false)
            .clock(clock)
            .profile(wattlock::Profile::built_in())
            .build()
            .unwrap()
    }

    fn volume() -> Volume {
        Volume::generate(4096, NameMode::Plain).unwrap()
    }

    fn open(folder: &Path, volume: &Volume, runtime: Runtime) -> Sealed {
        Sealed::open(folder, volume, runtime, Box::new(Plain), &|| false).unwrap().0
    }

    fn file(sealed: &Sealed, folder: &Path, name: &str, crypto: &mut Dispatcher) -> SealedContent {
        let path = folder.join(name);
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let stat = file.metadata().unwrap();
        let place = Place { inode: (stat.dev(), stat.ino()), path: name.into() };
        sealed.create_content(file, place, crypto).unwrap()
    }

    /// Chunks that the card and the others have sealed and opened.
    fn done(sealed: &Sealed) -> [u64; 4] {
        let count = |engines: std::ops::Range<usize>, kind: usize| {
            let sizes = engines.flat_map(|engine| &sealed.done.0[engine][kind]);
            sizes.map(|chunks| chunks.load(Ordering::Relaxed)).sum()
        };
        [count(CARD..CARD + 1, 1), count(0..CARD, 1), count(CARD..CARD + 1, 0), count(0..CARD, 0)]
    }

    /// Until the card has proved itself the CPU does everything.
    fn prove(sealed: &Sealed, file: &SealedContent, crypto: &mut Dispatcher) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while done(sealed)[0] == 0 {
            assert!(Instant::now() < deadline, "the card does nothing");
            sealed.write(file, &[1; 65536], 0, crypto).unwrap();
        }
    }

    #[test]
    fn writes_go_to_a_card_by_size_and_files_in_operation_and_settings_change_with_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let (skipped, real) = (Arc::new(AtomicU64::new(0)), Clock::real());
        let skip = skipped.clone();
        let clock = Clock::given(move || real.now() + skip.load(Ordering::Relaxed));
        let pass = || skipped.fetch_add(20_000_000, Ordering::Relaxed);
        let sealed = open(folder.path(), &volume(), with_clock(Vec::new(), clock));
        let mut first = sealed.thread(0);
        let (a, b) =
            (file(&sealed, folder.path(), "a", &mut first), file(&sealed, folder.path(), "b", &mut first));
        let other = sealed.runtime.operates_on(&b.writes);
        prove(&sealed, &a, &mut first);
        // Whether a write of so many bytes goes to the card: all of it, or nothing.
        let offloads = |bytes: usize, crypto: &mut Dispatcher| {
            let before = done(&sealed);
            sealed.write(&a, &vec![2; bytes], 0, crypto).unwrap();
            let after = done(&sealed);
            let (card, cpu) = (after[0] - before[0], after[1] - before[1]);
            assert!((card == 0) != (cpu == 0), "{bytes} bytes: {card} chunks on the card, {cpu} not");
            assert_eq!(card + cpu, bytes as u64 / 4096);
            card > 0
        };
        assert!(offloads(8192, &mut first));
        assert!(!offloads(4096, &mut first), "beta");
        drop(other);
        pass();
        assert!(!offloads(8192, &mut first), "alpha: no other file was in operation lately");
        let other = sealed.runtime.operates_on(&b.writes);
        assert!(offloads(8192, &mut first));
        sealed.set(&["aca-sds.alpha=2".into()]).unwrap();
        assert!(!offloads(8192, &mut first), "alpha, from the next request on");
        sealed.set(&["aca-sds.beta_bytes=8192".into()]).unwrap();
        assert!(!offloads(8192, &mut first), "beta, from the next request on");
        assert!(offloads(16384, &mut first));
        let mut second = sealed.thread(1);
        sealed.set(&["aca-sds.feeders=1".into()]).unwrap();
        assert!(offloads(16384, &mut first), "the first thread feeds the card");
        assert!(!offloads(16384, &mut second), "the second does not");
        assert!(sealed.set(&["aca-sds.alpha=minus".into()]).is_err());
        assert!(offloads(16384, &mut first), "what is wrong changes nothing");
        let before = done(&sealed);
        let mut got = vec![0; 65536];
        assert_eq!(sealed.read(&a, &mut got, 0, &mut first).unwrap(), got.len());
        assert_eq!(done(&sealed)[2], before[2], "reads are the CPU's");
        assert!(done(&sealed)[3] > before[3]);
        drop(other);
        pass();
        let lines = sealed.engines();
        assert!(lines.contains(&"files in operation 0".to_owned()), "{lines:?}");
        let card = lines.iter().find(|line| line.starts_with("write emulated, ")).unwrap();
        assert!(card.contains(" 8 KiB: 4, 16 KiB: 12,"), "{card}");
    }

    #[test]
    fn what_a_faulty_card_seals_in_one_thread_another_reads() {
        let faults = vec![
            Fault::new(Effect::Error, Trigger::Every(29)),
            Fault::new(Effect::WrongResult, Trigger::Every(23)),
            Fault::new(Effect::Lost { back_after_ns: Some(5_000_000) }, Trigger::nth(300)),
        ];
        let (folder, volume) = (tempfile::tempdir().unwrap(), volume());
        let sealed = open(folder.path(), &volume, runtime(faults));
        let mut crypto = sealed.thread(0);
        let names = ["a", "b", "c"];
        let files = names.map(|name| file(&sealed, folder.path(), name, &mut crypto));
        let busy = sealed.runtime.operates_on(&files[0].writes);
        prove(&sealed, &files[1], &mut crypto);
        drop(busy);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let last: Vec<u8> = std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    sealed.set(&[format!("aca-sds.alpha={}", round % 3)]).unwrap();
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
            let writers: Vec<_> = (0..3_usize)
                .map(|number| {
                    let (sealed, file) = (&sealed, &files[number]);
                    scope.spawn(move || {
                        let mut crypto = sealed.thread(number);
                        let deadline = Instant::now() + Duration::from_secs(60);
                        let mut round = 0;
                        while round < 200 || done(sealed)[0] < 60 {
                            assert!(Instant::now() < deadline, "the card has done {:?}", done(sealed));
                            round += 1;
                            let byte = (round * 3 + number) as u8;
                            sealed.write(file, &[byte; 40_000], 0, &mut crypto).unwrap();
                            let mut got = vec![0; 40_000];
                            assert_eq!(sealed.read(file, &mut got, 0, &mut crypto).unwrap(), got.len());
                            assert!(got.iter().all(|there| *there == byte), "round {round}");
                        }
                        sealed.sync(file, &mut crypto).unwrap();
                        (round * 3 + number) as u8
                    })
                })
                .collect();
            let ended: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            stop.store(true, Ordering::Relaxed);
            changes.join().unwrap();
            ended.into_iter().map(|ended| ended.unwrap()).collect()
        });
        // As it is stored, without the card.
        drop((files, crypto, sealed));
        let sealed = open(folder.path(), &volume, Runtime::builder().telemetry(false).build().unwrap());
        let mut crypto = sealed.thread(0);
        for (number, name) in names.iter().enumerate() {
            let path = folder.path().join(name);
            let file = File::options().read(true).write(true).open(path).unwrap();
            let stat = file.metadata().unwrap();
            let place = Place { inode: (stat.dev(), stat.ino()), path: (*name).into() };
            let file = sealed.open_content(file, place, &mut crypto).unwrap();
            let mut got = vec![0; 40_000];
            sealed.read(&file, &mut got, 0, &mut crypto).unwrap();
            assert!(got.iter().all(|there| *there == last[number]), "{name}");
        }
    }

    #[test]
    fn a_file_that_a_crash_left_torn_has_its_true_length_at_the_first_look() {
        let (folder, volume) = (tempfile::tempdir().unwrap(), volume());
        let build = || Runtime::builder().telemetry(false).build().unwrap();
        let sealed = open(folder.path(), &volume, build());
        let mut crypto = sealed.thread(0);
        let content = file(&sealed, folder.path(), "torn", &mut crypto);
        sealed.write(&content, &[7; 20_000], 0, &mut crypto).unwrap();
        drop((content, crypto, sealed));
        // What a power cut leaves: the length, and not all of the bytes.
        let backing = File::options().write(true).open(folder.path().join("torn")).unwrap();
        let len = backing.metadata().unwrap().len();
        backing.set_len(96 + 2 * 4136).unwrap();
        backing.set_len(len).unwrap();
        let sealed = open(folder.path(), &volume, build());
        let behaviour =
            crate::Behaviour { shared: false, others: false, unbound: false, log: Arc::new(|_: &str| {}) };
        let door = Door::new(sealed, behaviour, 16).unwrap();
        let (attr, _) = door.inner.lookup(crate::table::ROOT, OsStr::new("torn")).unwrap().unwrap();
        assert_eq!(attr.size, 2 * 4096);
    }

    #[test]
    fn a_stored_target_says_how_long_it_is() {
        // 16 bytes of nonce, 16 of vector, then the target, in 4 characters for 3 bytes.
        assert_eq!(target_len(44), 1);
        assert_eq!(target_len(0), 0);
    }
}
