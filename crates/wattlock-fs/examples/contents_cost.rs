//! What a call costs: `cargo run --release -p wattlock-fs --example contents_cost [FOLDER]`. Processor time of this
//! thread, for each call, in a folder that should lie in memory (`/dev/shm` unless another is named).

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};
use wattlock::Runtime;
use wattlock_fs::content::Contents;
use wattlock_fs::store::{FolderStore, Place};
use wattlock_fs::volume::{NameMode, Volume};

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The least of five rounds, divided by the calls of one.
fn cost(calls: u64, mut round: impl FnMut(u64)) -> u64 {
    let mut least = u64::MAX;
    for number in 0..5 {
        let start = now_ns();
        round(number);
        least = least.min(now_ns() - start);
    }
    least / calls
}

fn file(folder: &Path, name: &str) -> Result<File, std::io::Error> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(folder.join(name))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let base = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm".into());
    let folder = tempfile::tempdir_in(base)?;
    let runtime = Runtime::new()?;
    let mut crypto = runtime.dispatcher();
    println!(
        "{:>9} {:>9} | {:>9} {:>9} {:>9} {:>9} | {:>9} {:>9}",
        "chunk", "call", "write", "again", "journal", "read", "pwrite", "pread"
    );
    for chunk in [4096, 16384, 65536] {
        for call in [4096_usize, 131_072, 1 << 20] {
            let volume = Volume::generate(chunk, NameMode::Plain)?;
            let below = folder.path().join(format!("{chunk}-{call}"));
            std::fs::create_dir(&below)?;
            let contents = Contents::start(FolderStore::open(&below)?, &volume, &mut crypto)?.0;
            let (text, total) = (vec![0x55; call], 32_u64 << 20);
            let (calls, size) = (total / call as u64, call as u64);
            let mut all = Vec::new();
            let write = cost(calls, |round| {
                let name = format!("f{round}");
                let backing = file(&below, &name).expect("a file");
                let inode = backing.metadata().map_or((0, 0), |meta| (meta.dev(), meta.ino()));
                let place = Place { inode, path: name.into_bytes() };
                let content = contents.create(backing, place, &mut crypto).expect("made");
                (0..calls).for_each(|at| content.write(&text, at * size, &mut crypto).expect("written"));
                all.push(content);
            });
            let content = all.swap_remove(0);
            drop(all);
            let again = cost(calls, |_| {
                (0..calls).for_each(|at| content.write(&text, at * size, &mut crypto).expect("written"));
            });
            content.sync(&mut crypto)?;
            let journal = cost(calls, |_| {
                (0..calls).for_each(|at| content.write(&text, at * size, &mut crypto).expect("written"));
            });
            contents.checkpoint(&mut crypto)?;
            let mut got = vec![0; call];
            let read = cost(calls, |_| {
                for at in 0..calls {
                    content.read(&mut got, at * size, &mut crypto).expect("read");
                }
            });
            assert!(got == text);
            let plain = file(&below, "plain")?;
            let pwrite = cost(calls, |_| {
                plain.set_len(0).expect("cut");
                (0..calls).for_each(|at| plain.write_all_at(&text, at * size).expect("written"));
            });
            let pread = cost(calls, |_| {
                (0..calls).for_each(|at| plain.read_exact_at(&mut got, at * size).expect("read"));
            });
            println!(
                "{chunk:>9} {call:>9} | {write:>9} {again:>9} {journal:>9} {read:>9} | {pwrite:>9} {pread:>9}"
            );
            drop(contents);
            std::fs::remove_dir_all(&below)?;
        }
    }
    Ok(())
}
