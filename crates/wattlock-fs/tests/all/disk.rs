//! Real file systems of 20 MB that fill up, and one that is read-only: tmpfs, and ext4 with blocks of 1 KiB. Skipped, with
//! a line, where nothing may be mounted.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use wattlock::Dispatcher;
use wattlock_fs::content::{Content, Contents};
use wattlock_fs::store::{FolderStore, Place};

use crate::support::{crypto, pattern, volume};

/// A file system, until it is dropped, and the same for reading alone.
struct Disk {
    _folder: tempfile::TempDir,
    path: PathBuf,
    read_only: PathBuf,
}

/// Whether a program says that it has done it.
fn done(program: &str, arguments: &[&str]) -> bool {
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

impl Disk {
    fn new(kind: &str) -> Option<Disk> {
        let folder = tempfile::tempdir().unwrap();
        let [path, read_only] = ["disk", "again"].map(|name| folder.path().join(name));
        [&path, &read_only].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        let image = folder.path().join("image");
        let (at, from) = (path.to_str().unwrap(), image.to_str().unwrap());
        let mounted = match kind {
            "tmpfs" => done("mount", &["-t", "tmpfs", "-o", "size=20M", "none", at]),
            _ => {
                fs::File::create(&image).unwrap().set_len(24 << 20).unwrap();
                done("mkfs.ext4", &["-q", "-F", "-b", "1024", from])
                    && done("mount", &["-o", "loop", from, at])
            }
        };
        let disk = Disk { _folder: folder, path, read_only };
        let again = disk.read_only.to_str().unwrap();
        let bound = || {
            done("mount", &["--bind", disk.path.to_str().unwrap(), again])
                && done("mount", &["-o", "remount,ro,bind", again])
        };
        if !mounted || !bound() {
            println!("skipped: {kind} cannot be mounted");
            return None;
        }
        Some(disk)
    }

    fn start(&self, crypto: &mut Dispatcher) -> Contents<FolderStore> {
        Contents::start(FolderStore::open(&self.path).unwrap(), &volume(), crypto).unwrap().0
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.path).unwrap();
        stat.f_bavail * stat.f_frsize
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for path in [&self.read_only, &self.path] {
            _ = done("umount", &[path.to_str().unwrap_or_default()]);
        }
    }
}

fn open(path: &Path, write: bool, new: bool) -> (fs::File, Place) {
    let file = fs::File::options().read(true).write(write).create_new(new).open(path).unwrap();
    let meta = file.metadata().unwrap();
    let path = path.file_name().unwrap().as_encoded_bytes().to_vec();
    (file, Place { inode: (meta.dev(), meta.ino()), path })
}

fn is(content: &Content<FolderStore>, model: &[u8], crypto: &mut Dispatcher) {
    let mut got = vec![0; content.len() as usize];
    content.read(&mut got, 0, crypto).unwrap();
    assert!(got == model);
}

/// Fills the disk with a file as the kernel writes one back, which goes on behind what was refused; then with lines, and
/// with what others write.
fn fill(disk: &Disk, content: &Arc<Content<FolderStore>>, crypto: &mut Dispatcher) {
    let mut refused = 0;
    for number in 0..30_u64 {
        let before = content.len();
        if let Err(error) = content.write(&pattern(1 << 20, number), number << 20, crypto) {
            assert_eq!(error.errno(), 28, "{error}");
            assert_eq!(content.len(), before, "the length says how far it came");
            refused += 1;
        }
    }
    assert!(refused > 5, "{refused}");
    let line = |crypto: &mut Dispatcher| {
        content.append(b"a line that is synced\n", crypto).and_then(|_| content.sync(crypto))
    };
    (0..1000).any(|_| line(crypto).is_err());
    let filler = format!("of={}", disk.path.join("filler").to_str().unwrap());
    assert!(!done("dd", &["if=/dev/zero", &filler, "bs=1k"]), "there was room for everything");
}

#[test]
fn on_a_full_disk_everything_goes_on_but_growing() {
    let mut crypto = crypto();
    for (kind, clean) in [("tmpfs", true), ("tmpfs", false), ("ext4", true), ("ext4", false)] {
        let Some(disk) = Disk::new(kind) else { continue };
        let what = format!("{kind}, unmounted: {clean}");
        let contents = disk.start(&mut crypto);
        let (file, place) = open(&disk.path.join("keep"), true, true);
        let keep = contents.create(file, place, &mut crypto).unwrap();
        let mut model = pattern(300_000, 1);
        keep.write(&model, 0, &mut crypto).unwrap();
        keep.sync(&mut crypto).unwrap();
        let (file, place) = open(&disk.path.join("large"), true, true);
        let large = contents.create(file, place.clone(), &mut crypto).unwrap();
        fill(&disk, &large, &mut crypto);
        for round in 0..40 {
            let bytes = pattern(100_000, round as u64 + 50);
            model[round * 5000..][..100_000].copy_from_slice(&bytes);
            let written = keep.write(&bytes, round as u64 * 5000, &mut crypto);
            written.unwrap_or_else(|error| panic!("{what}, round {round}: {error}"));
            keep.sync(&mut crypto).unwrap_or_else(|error| panic!("{what}, round {round}: {error}"));
        }
        if clean {
            contents.checkpoint(&mut crypto).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        let len = large.len();
        drop((large, keep, contents));

        // Read-only: it is read, and not started.
        let store = || FolderStore::open(&disk.read_only).unwrap();
        let reading = Contents::start_to_read(store(), &volume(), &mut crypto).unwrap().0;
        let (file, there) = open(&disk.read_only.join("keep"), false, false);
        is(&reading.open(file, there, &mut crypto).unwrap(), &model, &mut crypto);
        drop(reading);
        let refused = Contents::start(store(), &volume(), &mut crypto).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("open the volume for reading"), "{refused}");

        let contents = disk.start(&mut crypto);
        let (file, there) = open(&disk.path.join("large"), true, false);
        let large = contents.open(file, there, &mut crypto).unwrap();
        assert_eq!(large.len(), len, "{what}");
        drop(large);
        fs::remove_file(disk.path.join("large")).unwrap();
        contents.removed(place.inode);
        assert!(disk.free() > 15 << 20, "{what}: {} bytes are free", disk.free());
        let (file, there) = open(&disk.path.join("keep"), true, false);
        is(&contents.open(file, there, &mut crypto).unwrap(), &model, &mut crypto);
    }
}
