//! gzip files: any `gunzip` reads ours, we read everybody's, and what is damaged is found out.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use common::{NEVER, THREADS};
use wattlock_core::samples::{self, Dice};
use wattlock_door::{Crypto, CryptoSource, Output};
use wattlock_files::{Error, Gzip, Input, Opener, Progress, Sealer, age, gunzip, keys};

const CHUNK: usize = 128 * 1024;

/// One thread, whatever was asked for.
struct Alone<'a>(&'a wattlock::Runtime);

impl CryptoSource for Alone<'_> {
    fn here<T>(&self, work: impl FnOnce(&mut dyn Crypto) -> T) -> T {
        self.0.here(work)
    }
}

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn stream(content: &[u8]) -> Input {
    Input::Stream(Box::new(std::io::Cursor::new(content.to_vec())))
}

fn packed(content: &[u8], level: u8, source: &impl CryptoSource) -> Vec<u8> {
    let to = Kept::default();
    let output = Output::Stream(Box::new(to.clone()));
    Gzip::new(level).unwrap().compress(stream(content), output, source, Progress::new(&NEVER)).unwrap();
    to.0.lock().unwrap().clone()
}

fn unpacked(packed: &[u8]) -> Result<Vec<u8>, Error> {
    let to = Kept::default();
    gunzip(stream(packed), Output::Stream(Box::new(to.clone())), Progress::new(&NEVER))?;
    let content = to.0.lock().unwrap().clone();
    Ok(content)
}

fn through(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{command:?}");
    output.stdout
}

fn contents() -> Vec<Vec<u8>> {
    let mut contents = Vec::new();
    let sizes =
        [0, 1, 2, 32_768, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1, 5 * CHUNK + 77, 9 * CHUNK];
    for (turn, size) in sizes.into_iter().enumerate() {
        contents.push(samples::html(turn as u64, size));
        contents.push(samples::noise(turn as u64, size));
        contents.push(vec![0; size]);
    }
    contents
}

#[test]
fn gunzip_reads_one_member_and_so_do_we() {
    // Says how many members there are, and what is in them.
    const PYTHON: &str = "
import sys, zlib
data, members = sys.stdin.buffer.read(), 0
while data:
    decoder = zlib.decompressobj(31)
    sys.stdout.buffer.write(decoder.decompress(data) + decoder.flush())
    assert decoder.eof
    data, members = decoder.unused_data, members + 1
assert members == 1, members
";
    for (turn, content) in contents().into_iter().enumerate() {
        let level = 1 + (turn % 9) as u8;
        let packed = packed(&content, level, &*THREADS);
        let what = format!("{} bytes, level {level}", content.len());
        assert!(unpacked(&packed).unwrap() == content, "{what}");
        assert!(through(Command::new("gunzip").arg("-c"), &packed) == content, "gunzip: {what}");
        assert!(through(Command::new("python3").args(["-c", PYTHON]), &packed) == content, "Python: {what}");
        assert!(packed.len() <= content.len() + content.len() / 1000 + 64, "{what}: {}", packed.len());
    }
}

#[test]
fn the_result_does_not_depend_on_the_threads() {
    // A policy that never changes its mind: two engines make two different streams of the same content.
    let builder = wattlock::Runtime::builder().telemetry(false);
    let runtime = builder.policy("instruction", Default::default()).build().unwrap();
    let content = samples::json(3, 40 * CHUNK + 5);
    let alone = packed(&content, 1, &Alone(&runtime));
    for _ in 0..4 {
        assert!(packed(&content, 1, &runtime) == alone);
    }
    // And cutting it costs nothing: the dictionary stands for what a single stream would have seen.
    let gzip = through(Command::new("gzip").args(["-1", "-c"]), &content);
    assert!(alone.len() * 100 <= gzip.len() * 102, "{} against gzip's {}", alone.len(), gzip.len());
}

#[test]
fn what_gzip_makes_of_many_files_is_read_as_one() {
    let (first, second) = (samples::text(1, 70_000), samples::html(2, 300_000));
    let gzip = |content: &[u8], level: &str| through(Command::new("gzip").args(["-c", level]), content);
    let mut joined = [gzip(&first, "-9"), gzip(&[], "-1"), packed(&second, 3, &*THREADS)].concat();
    assert!(unpacked(&joined).unwrap() == [first.clone(), second.clone()].concat());
    joined.extend_from_slice(&[0; 70_000]);
    assert!(unpacked(&joined).unwrap() == [first, second].concat(), "padding");
    joined.push(1);
    assert!(matches!(unpacked(&joined), Err(Error::Extended)));
}

#[test]
fn a_header_with_everything_in_it_is_read() {
    let plain = samples::text(5, 900);
    let packed = packed(&plain, 6, &Alone(&THREADS));
    let mut header = vec![0x1f, 0x8b, 8, 2 | 4 | 8 | 16, 1, 2, 3, 4, 0, 3];
    header.extend_from_slice(&[3, 0, b'a', b'b', b'c']);
    header.extend_from_slice(b"name\0a comment\0");
    let crc = {
        let printed = through(
            Command::new("python3")
                .args(["-c", "import sys, zlib; print(zlib.crc32(sys.stdin.buffer.read()) & 0xffff)"]),
            &header,
        );
        String::from_utf8(printed).unwrap().trim().parse::<u16>().unwrap()
    };
    let whole = |crc: u16| [&header[..], &crc.to_le_bytes(), &packed[10..]].concat();
    assert!(unpacked(&whole(crc)).unwrap() == plain);
    assert!(matches!(unpacked(&whole(crc ^ 1)), Err(Error::BadGzip(_))));
}

#[test]
fn every_cut_and_every_altered_byte_is_found() {
    let content = samples::html(9, 3000);
    let packed = packed(&content, 1, &Alone(&THREADS));
    for len in 0..packed.len() {
        let result = unpacked(&packed[..len]);
        assert!(
            matches!(result, Err(Error::Truncated)),
            "cut to {len}: {:?}",
            result.map(|content| content.len())
        );
    }
    let mut dice = Dice::new(7);
    for at in 0..packed.len() {
        let mut altered = packed.clone();
        altered[at] ^= 1 << dice.below(8);
        match (at, unpacked(&altered)) {
            // Time, level and system say nothing about the content, nor do the bits that fill up deflate's last byte.
            (4..=9, Ok(same)) => assert!(same == content),
            (last, Ok(same)) if last == packed.len() - 9 => assert!(same == content),
            (_, Ok(_)) => panic!("byte {at} altered, and nobody noticed"),
            (0..2, Err(error)) => assert!(matches!(error, Error::NotGzip), "{at}: {error}"),
            (_, Err(error)) => {
                let damage = matches!(error, Error::BadGzip(_) | Error::Truncated | Error::Extended);
                assert!(damage, "{at}: {error}");
            }
        }
    }
    // Two members of which the second is cut.
    let two = [&packed[..], &packed[..packed.len() / 2]].concat();
    assert!(matches!(unpacked(&two), Err(Error::Truncated)));
    assert!(matches!(unpacked(b"PK\x03\x04 and so on"), Err(Error::NotGzip)));
    assert!(matches!(unpacked(&[&packed[..], b"garbage"].concat()), Err(Error::Extended)));
}

#[test]
fn a_bomb_needs_no_memory_and_can_be_stopped() {
    // 256 MiB of nothing are 256 KiB; five of these are a bomb of 1.25 GiB.
    let nothing = through(Command::new("sh").args(["-c", "head -c 268435456 /dev/zero | gzip -9 -c"]), &[]);
    let bomb = nothing.repeat(5);
    let (stop, seen) = (AtomicBool::new(false), Arc::new(AtomicU64::new(0)));
    struct Counter(Arc<AtomicU64>);
    impl Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            assert!(bytes.len() <= CHUNK, "a piece of {}", bytes.len());
            self.0.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let counter = || Output::Stream(Box::new(Counter(seen.clone())));
    gunzip(stream(&bomb), counter(), Progress::new(&stop)).unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 5 << 28);
    stop.store(true, Ordering::Relaxed);
    assert!(matches!(
        gunzip(stream(&bomb), counter(), Progress::new(&stop)),
        Err(Error::Door(wattlock_door::Error::Interrupted))
    ));
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_appears_whole_with_mode_and_time_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let content = samples::text(2, 3 * CHUNK);
    fs::write(at("plain"), &content).unwrap();
    fs::set_permissions(at("plain"), fs::Permissions::from_mode(0o600)).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(at("plain")).unwrap().set_modified(time).unwrap();
    let to = |name: &str| Output::Path { path: at(name), force: false };
    let gzip = Gzip::new(6).unwrap();
    gzip.compress(Input::Path(at("plain")), to("plain.gz"), &*THREADS, Progress::new(&NEVER)).unwrap();
    let meta = fs::metadata(at("plain.gz")).unwrap();
    assert_eq!((meta.mode() & 0o777, meta.modified().unwrap()), (0o600, time));
    let listed = through(Command::new("gzip").args(["-lvN"]).arg(at("plain.gz")), &[]);
    assert!(String::from_utf8_lossy(&listed).contains("plain"), "the name is in it");
    let again = gzip.compress(Input::Path(at("plain")), to("plain.gz"), &*THREADS, Progress::new(&NEVER));
    assert!(matches!(again, Err(Error::Door(wattlock_door::Error::OutputExists(_)))));
    gunzip(Input::Path(at("plain.gz")), to("back"), Progress::new(&NEVER)).unwrap();
    let meta = fs::metadata(at("back")).unwrap();
    assert_eq!((meta.mode() & 0o777, meta.modified().unwrap()), (0o600, time));
    assert!(fs::read(at("back")).unwrap() == content);
    // A cut one leaves nothing behind, and neither does one that was stopped.
    let packed = fs::read(at("plain.gz")).unwrap();
    fs::write(at("cut.gz"), &packed[..packed.len() - 1]).unwrap();
    assert!(matches!(
        gunzip(Input::Path(at("cut.gz")), to("cut"), Progress::new(&NEVER)),
        Err(Error::Truncated)
    ));
    let stop = AtomicBool::new(true);
    let stopped = gzip.compress(Input::Path(at("plain")), to("stopped.gz"), &*THREADS, Progress::new(&stop));
    assert!(matches!(stopped, Err(Error::Door(wattlock_door::Error::Interrupted))));
    assert_eq!(names(folder.path()), ["back", "cut.gz", "plain", "plain.gz"]);
}

#[test]
fn sealing_what_is_compressed_gives_back_the_gzip_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let identity = age::x25519::Identity::generate();
    let recipient = identity.to_public();
    for (turn, size) in [0, 1, CHUNK, 30 * CHUNK + 9].into_iter().enumerate() {
        let content = samples::html(turn as u64, size);
        fs::write(at("plain"), &content).unwrap();
        let sealer = Sealer::new(vec![Box::new(recipient.clone())]).unwrap();
        let sealer = sealer.gzip(Some(Gzip::new(1).unwrap()));
        let force = |name: &str| Output::Path { path: at(name), force: true };
        let read = Arc::new(AtomicU64::new(0));
        let count = |bytes: u64| {
            read.fetch_add(bytes, Ordering::Relaxed);
        };
        let progress = Progress::new(&NEVER).on_bytes(&count);
        sealer.seal(Input::Path(at("plain")), force("sealed"), &*THREADS, progress).unwrap();
        assert_eq!(read.load(Ordering::Relaxed), size as u64);
        let opener = Opener::new(vec![Box::new(identity.clone()) as keys::BoxedIdentity]);
        opener.open(Input::Path(at("sealed")), force("back.gz"), &*THREADS, Progress::new(&NEVER)).unwrap();
        let mut back = Vec::new();
        fs::File::open(at("back.gz")).unwrap().read_to_end(&mut back).unwrap();
        assert!(through(Command::new("gunzip").arg("-c"), &back) == content, "{size}");
    }
    // What cannot be read to its end is not sealed.
    struct Broken(usize);
    impl Read for Broken {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            self.0 -= 1;
            if self.0 == 0 { Err(std::io::Error::other("broken")) } else { Ok(to.len()) }
        }
    }
    let sealer = Sealer::new(vec![Box::new(recipient)]).unwrap().gzip(Some(Gzip::new(6).unwrap()));
    let result = sealer.seal(
        Input::Stream(Box::new(Broken(9))),
        Output::Path { path: at("never"), force: false },
        &*THREADS,
        Progress::new(&NEVER),
    );
    assert!(matches!(result, Err(Error::Door(wattlock_door::Error::Io { .. }))), "{result:?}");
    assert!(!at("never").exists());
}
