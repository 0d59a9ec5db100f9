//! A backing folder that somebody else wrote: its record and copies of it, and entries of any names, long ones with what
//! lies beside them. Each name is listed once or foreign, and a name that is listed is found again under its stored one. One
//! that no key sealed ends in a bracket.
#![no_main]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use wattlock_fs::tree::Tree;
use wattlock_fs::volume::{NameMode, Volume};
use wattlock_fuzz::{Bytes, Portable};
use zeroize::Zeroizing;

struct World {
    /// One volume for each way to store names, the first with a right record.
    volumes: [Volume; 3],
    record: Vec<u8>,
    folder: PathBuf,
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let folder = wattlock_fuzz::folder("folder");
        let volumes = [NameMode::PerFolder, NameMode::Deterministic, NameMode::Plain].map(|names| {
            let mut volume = Volume::generate(4096, names).expect("a volume");
            volume.keys = vec![(1, Zeroizing::new([1; 32])), (7, Zeroizing::new([2; 32]))];
            volume.secret = Zeroizing::new([3; 32]);
            volume
        });
        Tree::init(&folder, &volumes[0], &mut Portable).expect("a record");
        let record = std::fs::read(folder.join("wattlock.dir")).expect("it is there");
        World { volumes, record, folder }
    })
}

fuzz_target!(|bytes: &[u8]| {
    let World { volumes, record, folder } = world();
    let (mut bytes, crypto) = (Bytes(bytes), &mut Portable);
    let which = usize::from(bytes.byte()) % 3;
    for entry in std::fs::read_dir(folder).expect("our folder").flatten() {
        std::fs::remove_file(entry.path()).expect("our file");
    }
    let mut copied = record.clone();
    copied[usize::from(bytes.byte()) % 256 % record.len()] ^= bytes.byte() & 1;
    let at = bytes.part();
    if bytes.byte() % 2 == 0 && !at.is_empty() && at.len() < 200 && !at.contains(&b'/') && !at.contains(&0) {
        let name = [b"wattlock", at, b".dir"].concat();
        let _ = std::fs::write(folder.join(OsStr::from_bytes(&name)), copied);
    }
    let mut record = record.clone();
    match bytes.byte() % 4 {
        0 => record = bytes.take(140).to_vec(),
        1 => {
            let at = bytes.below(record.len());
            record[at] ^= bytes.byte().max(1);
        }
        _ => {}
    }
    std::fs::write(folder.join("wattlock.dir"), &record).expect("our folder");
    for _ in 0..8 {
        let (name, content) = (bytes.part(), bytes.part());
        let name = &name[..name.len().min(255)];
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) || name == b"." || name == b".." {
            break;
        }
        let _ = std::fs::write(folder.join(OsStr::from_bytes(name)), content);
    }
    let Ok((tree, root)) = Tree::open(folder, &volumes[which], crypto) else { return };
    // A name of ours beside them, which is what the key makes it.
    let name = bytes.part();
    let entry = tree.entry(&root, name, crypto);
    let made =
        entry.as_ref().ok().and_then(|entry| tree.create_file(&root, entry, wattlock_fuzz::mode()).ok());
    let (listed, foreign) = tree.list(&root, crypto).expect("it can be listed");
    assert!(made.is_none() || listed.iter().any(|one| one.name == name), "what was made is not listed");
    let (fresh, inside) = Tree::open(folder, &volumes[which], crypto).expect("it was opened");
    for one in &listed {
        assert!(!foreign.contains(&one.stored));
        assert!(wattlock_fs::names::check(&one.name).is_ok());
        let found = tree.entry(&root, &one.name, crypto).expect("a name");
        assert!(found.stored == one.stored, "another stored name");
        // Without a listing only names that the key seals are known.
        let sealed = fresh.entry(&inside, &one.name, crypto).expect("a name");
        assert!(sealed.stored == one.stored || one.name.ends_with(b"]"), "a name that nobody wrote");
    }
    if let Ok(entry) = entry {
        let _ = tree.remove(&root, &entry, false);
    }
});
