//! Calls at the limits answer as the file system beneath does; where they cannot, `docs/use/folders.md` says so.

use std::path::Path;
use std::process::Command;

use crate::desk::{Desk, fuse, good, has};

/// What begins a line that may differ; what it says then; and why.
const DIFFERENT: &[(&str, &str, &str)] = &[
    ("fallocate 8 ", "ENOTSUP", "chunks are not moved within a file"),
    ("fallocate 32 ", "ENOTSUP", "chunks are not moved within a file"),
    ("fallocate 64 ", "ENOTSUP", "the kernel passes no such request on"),
    ("fallocate 128 ", "ENOTSUP", "the kernel passes no such request on"),
    ("open unnamed", "ENOTSUP", "fuser has no such request"),
    ("direct read ", "", "the kernel asks for no alignment"),
    ("pwrite 1152921504606846976", "4096", "the kernel keeps it, and fsync or close say that it is too far"),
    ("attribute user.aaaa 255", "ERANGE", "a sealed name is longer"),
    ("symlink 4000", "ENAMETOOLONG", "a sealed target is longer"),
    ("time ", "", "the kernel keeps times of change, whatever the file system beneath can store"),
    ("flags", "ENOTTY", "fuser has no such request"),
    ("preadv2 8", "ENOTSUP", "the kernel never reads from FUSE without waiting"),
];

#[test]
fn calls_at_the_limits_answer_as_those_of_the_file_system_beneath() {
    if !fuse() || !has("python3") {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/calls.py");
    let mounts: [&[&str]; 3] = [&[], &["--shared"], &["-o", "allow_other"]];
    for mount in &mounts[..if rustix::process::geteuid().is_root() { 3 } else { 2 }] {
        let desk = Desk::new(&[]);
        std::fs::create_dir(desk.at("plain")).unwrap();
        let mounted = desk.mount(mount);
        let of =
            |folder: &Path| good(&Command::new("python3").arg(&script).current_dir(folder).output().unwrap());
        let (wanted, found) = (of(&desk.at("plain")), of(&mounted));
        let known = |wanted: &str, found: &str| {
            DIFFERENT.iter().any(|(what, says, _)| wanted.starts_with(what) && found.ends_with(says))
        };
        let mut wrong = Vec::new();
        for (wanted, found) in wanted.lines().zip(found.lines()) {
            if wanted != found && !known(wanted, found) {
                wrong.push(format!("{found}, beneath {wanted}"));
            }
        }
        assert!(wrong.is_empty(), "{mount:?}:\n{}", wrong.join("\n"));
        assert_eq!(wanted.lines().count(), found.lines().count());
        desk.unmount();
        good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
    }
}
