//! What the world does to files: full disks, closed pipes, interrupts, outputs in the way, inputs that are no files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use common::*;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use wattlock_core::{Error as CoreError, Item, Request};
use wattlock_door::{Crypto, CryptoSource, Output};
use wattlock_files::{Error, Input, Opener, Progress, Sealer, keys};

const SEGMENT: usize = 1 << 20;

fn names(directory: &Path) -> Vec<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn full_device_is_disk_full() {
    let output = Output::Path { path: "/dev/full".into(), force: false };
    let result = Pair::new().sealer().seal(stream(&content(SEGMENT)), output, &Double, progress());
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::DiskFull))));
}

#[test]
fn full_file_system_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let small = directory.path().join("small");
    fs::create_dir(&small).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&small).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        println!("skipped: mounting a small file system takes privileges that are not here");
        return;
    }
    let from = directory.path().join("in");
    fs::write(&from, content(4 * SEGMENT)).unwrap();
    let result =
        Pair::new().sealer().seal(Input::Path(from), to_file(&small.join("out")), &Double, progress());
    let left = names(&small);
    assert!(Command::new("umount").arg(&small).status().unwrap().success());
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::DiskFull))), "{result:?}");
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn closed_pipe_is_told() {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let result = Pair::new().sealer().seal(
        stream(&content(3 * SEGMENT)),
        Output::Stream(Box::new(writer)),
        &Double,
        progress(),
    );
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::ClosedPipe))));
}

#[test]
fn pipe_closed_midway_ends_every_worker() {
    let (mut reader, writer) = io::pipe().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let from = directory.path().join("in");
    fs::write(&from, content(8 * SEGMENT)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || reader.read_exact(&mut vec![0; SEGMENT + 17]).unwrap());
        let output = Output::Stream(Box::new(writer));
        let result = Pair::new().sealer().seal(Input::Path(from), output, &Double, progress());
        assert!(matches!(result, Err(Error::Door(wattlock_door::Error::ClosedPipe))), "{result:?}");
    });
}

#[test]
fn raised_flag_interrupts_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("in"), directory.path().join("out"));
    fs::write(&from, content(8 * SEGMENT)).unwrap();
    let cancel = AtomicBool::new(false);
    let raise = |_| cancel.store(true, Ordering::Relaxed);
    let watched = Progress::new(&cancel).on_bytes(&raise);
    let result = Pair::new().sealer().seal(Input::Path(from), to_file(&to), &Double, watched);
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::Interrupted))));
    assert_eq!(names(directory.path()), ["in"]);
}

#[test]
fn waiting_for_a_silent_pipe_can_be_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let cancel = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
            writer.write_all(b"a beginning and then nothing").unwrap();
            std::thread::sleep(std::time::Duration::from_millis(100));
            cancel.store(true, Ordering::Relaxed);
            // Open until the sealing has ended for another reason than the end of its input.
            std::thread::sleep(std::time::Duration::from_millis(300));
        });
        let output = to_file(&directory.path().join("out"));
        let result =
            Pair::new().sealer().seal(Input::Path(pipe.clone()), output, &Double, Progress::new(&cancel));
        assert!(matches!(result, Err(Error::Door(wattlock_door::Error::Interrupted))), "{result:?}");
    });
    assert_eq!(names(directory.path()), ["pipe"]);
}

#[test]
fn existing_output_is_refused_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("out");
    fs::write(&to, b"precious").unwrap();
    let result = Pair::new().sealer().seal(stream(b"x"), to_file(&to), &Double, progress());
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::OutputExists(path))) if path == to));
    assert_eq!(fs::read(&to).unwrap(), b"precious");
}

#[test]
fn failed_opening_with_force_keeps_the_old_output() {
    let directory = tempfile::tempdir().unwrap();
    let (pair, to) = (Pair::new(), directory.path().join("out"));
    fs::write(&to, b"precious").unwrap();
    let mut sealed = seal(&pair.sealer(), &content(SEGMENT));
    *sealed.last_mut().unwrap() ^= 1;
    let output = Output::Path { path: to.clone(), force: true };
    assert!(pair.opener().open(stream(&sealed), output, &Double, progress()).is_err());
    assert_eq!(fs::read(&to).unwrap(), b"precious");
    assert_eq!(names(directory.path()), ["out"]);
}

#[test]
fn input_cannot_be_its_own_output() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, b"precious").unwrap();
    let output = Output::Path { path: path.clone(), force: true };
    let result = Pair::new().sealer().seal(Input::Path(path.clone()), output, &Double, progress());
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::Usage(_)))));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn directory_device_and_absence_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let try_input = |path: &Path| {
        let output = to_file(&directory.path().join("out"));
        Pair::new().sealer().seal(Input::Path(path.into()), output, &Double, progress()).unwrap_err()
    };
    assert!(matches!(try_input(directory.path()), Error::Door(wattlock_door::Error::IsFolder(_))));
    assert!(matches!(try_input(Path::new("/dev/zero")), Error::Door(wattlock_door::Error::NotRegular(_))));
    assert!(matches!(
        try_input(&directory.path().join("nothing")),
        Error::Door(wattlock_door::Error::NotFound(_))
    ));
    assert!(names(directory.path()).is_empty());
}

#[test]
fn nobody_is_asked_for_a_passphrase_if_the_output_is_in_the_way() {
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("out");
    fs::write(&to, b"precious").unwrap();
    let recipient = keys::passphrase_recipient("x".to_owned().into(), 1).unwrap();
    let sealed = seal(&Sealer::new(vec![recipient]).unwrap(), b"");
    let opener = Opener::new(vec![]).passphrase(Box::new(|| panic!("asked")));
    let result = opener.open(stream(&sealed), to_file(&to), &Double, progress());
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::OutputExists(_)))));
}

/// Engines that panic at their third segment.
#[derive(Default)]
struct Broken(AtomicU32);

impl CryptoSource for Broken {
    fn here<T>(&self, work: impl FnOnce(&mut dyn Crypto) -> T) -> T {
        work(&mut &*self)
    }

    #[cfg(feature = "runtime")]
    fn in_order<P: Send, R: Send>(
        &self,
        threads: usize,
        pieces: usize,
        next: impl FnMut() -> Option<P>,
        work: impl Fn(&mut dyn Crypto, P) -> R + Sync,
        sink: impl FnMut(R) + Send,
    ) {
        THREADS.in_order(threads, pieces, next, |_, piece| work(&mut &*self, piece), sink);
    }
}

impl Crypto for &Broken {
    fn run(&mut self, request: &mut Request<'_>) -> Result<usize, CoreError> {
        Double.run(request)
    }

    fn run_all(&mut self, items: &mut [Item<'_>]) {
        // The key in the header is one of them.
        assert!(self.0.fetch_add(1, Ordering::Relaxed) < 3, "the engine broke");
        Double.run_all(items);
    }
}

/// What a panic said that sealing sixteen segments ended with.
fn panic_of(output: Output, source: &impl CryptoSource, progress: Progress<'_>) -> String {
    let directory = tempfile::tempdir().unwrap();
    let from = directory.path().join("in");
    fs::write(&from, content(16 * SEGMENT)).unwrap();
    let sealing = || _ = Pair::new().sealer().seal(Input::Path(from), output, source, progress);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(sealing)).unwrap_err();
    (*panic.downcast::<&str>().unwrap()).to_owned()
}

#[test]
fn a_panic_reaches_the_caller_and_nobody_waits_for_ever() {
    let output = Output::Stream(Box::new(Kept::default()));
    assert_eq!(panic_of(output, &Broken::default(), progress()), "the engine broke");
}

/// Takes so many bytes, and then does as it is told.
struct Narrow {
    left: usize,
    then: fn() -> io::Result<usize>,
    refused: Arc<AtomicU32>,
}

impl Write for Narrow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return (self.then)();
        }
        let taken = bytes.len().min(self.left);
        self.left -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_writer_that_panics_is_called_no_more() {
    let refused = Arc::new(AtomicU32::new(0));
    let narrow = Narrow { left: 3 * SEGMENT, then: || panic!("the writer broke"), refused: refused.clone() };
    assert_eq!(panic_of(Output::Stream(Box::new(narrow)), &Double, progress()), "the writer broke");
    assert_eq!(refused.load(Ordering::Relaxed), 1);
}

#[test]
fn a_writer_that_fails_is_called_no_more() {
    let refused = Arc::new(AtomicU32::new(0));
    let then = || Err(io::ErrorKind::StorageFull.into());
    let narrow = Narrow { left: 3 * SEGMENT, then, refused: refused.clone() };
    let plain = content(16 * SEGMENT);
    let result =
        Pair::new().sealer().seal(stream(&plain), Output::Stream(Box::new(narrow)), &Double, progress());
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::DiskFull))), "{result:?}");
    assert_eq!(refused.load(Ordering::Relaxed), 1);
}

#[test]
fn a_panic_of_whoever_watches_reaches_the_caller() {
    let watch = |_| panic!("who watches broke");
    let output = Output::Stream(Box::new(Kept::default()));
    assert_eq!(panic_of(output, &Double, progress().on_bytes(&watch)), "who watches broke");
}

/// Reads so many bytes, and then fails.
struct Torn(usize);

impl Read for Torn {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let given = bytes.len().min(self.0);
        self.0 -= given;
        bytes[..given].fill(7);
        Ok(given)
    }
}

#[test]
fn an_input_that_breaks_off_is_told_after_what_came_before_it() {
    let (pair, seen) = (Pair::new(), AtomicU64::new(0));
    let count = |bytes| _ = seen.fetch_add(bytes, Ordering::Relaxed);
    let torn = || Input::Stream(Box::new(Torn(5 * SEGMENT + 9)));
    let kept = || Output::Stream(Box::new(Kept::default()));
    let result = pair.sealer().seal(torn(), kept(), &Double, progress().on_bytes(&count));
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::Io { .. }))), "{result:?}");
    assert_eq!(seen.load(Ordering::Relaxed), 5 * SEGMENT as u64, "all that was read whole");
    // A writer that fails before is what is told.
    let then = || Err(io::ErrorKind::StorageFull.into());
    let narrow = Narrow { left: SEGMENT, then, refused: Arc::default() };
    let result = pair.sealer().seal(torn(), Output::Stream(Box::new(narrow)), &Double, progress());
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::DiskFull))), "{result:?}");
}

#[test]
fn input_that_shrinks_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("in"), directory.path().join("out"));
    fs::write(&from, content(64 * SEGMENT)).unwrap();
    let shrink = |_| fs::File::options().write(true).open(&from).unwrap().set_len(10).unwrap();
    let result = Pair::new().sealer().seal(
        Input::Path(from.clone()),
        to_file(&to),
        &Double,
        progress().on_bytes(&shrink),
    );
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::InputChanged))));
    assert_eq!(names(directory.path()), ["in"]);
}

#[test]
fn input_that_grows_is_noticed_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("in"), directory.path().join("out"));
    // One segment is the last one; of several, whichever is done first finds others to come.
    for (len, armor) in [(1, false), (SEGMENT, false), (8 * SEGMENT + 3, false), (SEGMENT, true)] {
        fs::write(&from, content(len)).unwrap();
        let grow = |_| fs::File::options().append(true).open(&from).unwrap().write_all(b"and more").unwrap();
        let result = Pair::new().sealer().armor(armor).seal(
            Input::Path(from.clone()),
            to_file(&to),
            &Double,
            progress().on_bytes(&grow),
        );
        assert!(
            matches!(result, Err(Error::Door(wattlock_door::Error::InputChanged))),
            "{len} bytes: {result:?}"
        );
        assert_eq!(names(directory.path()), ["in"]);
    }
}

#[test]
fn input_that_grows_is_noticed_where_the_output_is_a_stream() {
    let directory = tempfile::tempdir().unwrap();
    let from = directory.path().join("in");
    fs::write(&from, content(SEGMENT)).unwrap();
    let grow = |_| fs::File::options().append(true).open(&from).unwrap().write_all(b"and more").unwrap();
    let output = Output::Stream(Box::new(Kept::default()));
    let watched = progress().on_bytes(&grow);
    let result = Pair::new().sealer().seal(Input::Path(from.clone()), output, &Double, watched);
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::InputChanged))), "{result:?}");
}

#[test]
fn output_is_no_more_readable_than_its_input() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("in"), directory.path().join("out"));
    fs::write(&from, b"secret").unwrap();
    fs::set_permissions(&from, fs::Permissions::from_mode(0o600)).unwrap();
    Pair::new().sealer().seal(Input::Path(from), to_file(&to), &Double, progress()).unwrap();
    assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn empty_input_is_not_replaced_by_its_own_output() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("empty");
    fs::write(&path, b"").unwrap();
    let output = Output::Path { path: path.clone(), force: true };
    let result = Pair::new().sealer().seal(Input::Path(path.clone()), output, &Double, progress());
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::Usage(_)))), "{result:?}");
    assert_eq!(fs::read(&path).unwrap(), b"");
}

fn pipe_in(directory: &Path) -> std::path::PathBuf {
    let pipe = directory.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    pipe
}

/// Seals with a flag that is raised after a moment. `meanwhile` runs beside it and ends long after.
fn seal_until_told(input: Input, output: Output, meanwhile: impl FnOnce() + Send) -> Result<(), Error> {
    let cancel = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(meanwhile);
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(200));
            cancel.store(true, Ordering::Relaxed);
        });
        Pair::new().sealer().seal(input, output, &Double, Progress::new(&cancel))
    })
}

const LONG_AFTER: std::time::Duration = std::time::Duration::from_secs(2);

#[test]
fn waiting_for_somebody_who_reads_a_full_pipe_can_be_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let (from, pipe) = (directory.path().join("in"), pipe_in(directory.path()));
    fs::write(&from, content(8 * SEGMENT)).unwrap();
    let output = Output::Path { path: pipe.clone(), force: false };
    let result = seal_until_told(Input::Path(from), output, || {
        let _reader = fs::File::open(&pipe).unwrap();
        std::thread::sleep(LONG_AFTER);
    });
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::Interrupted))), "{result:?}");
}

#[test]
fn waiting_for_the_other_end_of_a_pipe_can_be_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = pipe_in(directory.path());
    let output = to_file(&directory.path().join("out"));
    let result = seal_until_told(Input::Path(pipe.clone()), output, || {
        std::thread::sleep(LONG_AFTER);
        drop(fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap());
    });
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::Interrupted))), "no writer: {result:?}");
    let output = Output::Path { path: pipe.clone(), force: false };
    let result = seal_until_told(stream(b"x"), output, || {
        std::thread::sleep(LONG_AFTER);
        drop(fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap());
    });
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::Interrupted))), "no reader: {result:?}");
    assert_eq!(names(directory.path()), ["pipe"]);
}

#[test]
fn pipe_with_a_name_carries_a_file_in_both_directions() {
    let directory = tempfile::tempdir().unwrap();
    let (from, pipe) = (directory.path().join("in"), pipe_in(directory.path()));
    let pair = Pair::new();
    fs::write(&from, content(3 * SEGMENT + 5)).unwrap();
    let to = directory.path().join("out");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let output = Output::Path { path: pipe.clone(), force: false };
            pair.sealer().seal(Input::Path(from.clone()), output, &Double, progress()).unwrap();
        });
        pair.opener().open(Input::Path(pipe.clone()), to_file(&to), &Double, progress()).unwrap();
    });
    assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
}
