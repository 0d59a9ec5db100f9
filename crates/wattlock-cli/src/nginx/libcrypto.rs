//! Which `openssl.cnf` the libcrypto reads that an nginx loads: not always that of the program `openssl`.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use wattlock_door::one_line;
use wattlock_shell::nginx::place::Nginx;

use crate::openssl::place;

/// Begins what `OpenSSL_version(OPENSSL_DIR)` says (OpenSSL_version(3)), which is in the library as text.
const FOLDER: &[u8] = b"OPENSSLDIR: \"";

/// Refuses an nginx whose libcrypto reads another `openssl.cnf` than the one that is known here. One whose libcrypto is not
/// found is taken to read the same.
///
/// # Errors
/// It reads another.
pub fn reads_the_systems(nginx: &Nginx) -> Result<()> {
    let Some(folder) = loaded(nginx).and_then(|library| folder(&std::fs::read(library).ok()?)) else {
        return Ok(());
    };
    let reads = folder.join("openssl.cnf");
    let reads = reads.canonicalize().unwrap_or(reads);
    let known = place::of_the_system()?;
    ensure!(
        reads == known,
        "nginx's libcrypto reads {}, and the program openssl {}: turn Wattlock on in the former (`wattlock openssl \
         enable --config`), and say --all-programs",
        one_line(&reads),
        one_line(&known)
    );
    Ok(())
}

/// The libcrypto that the loader finds for it (ld.so(8), `LD_TRACE_LOADED_OBJECTS`).
fn loaded(nginx: &Nginx) -> Option<PathBuf> {
    let output = nginx.command().env("LD_TRACE_LOADED_OBJECTS", "1").output().ok()?;
    of_list(&String::from_utf8_lossy(&output.stdout))
}

fn of_list(text: &str) -> Option<PathBuf> {
    let line = text.lines().find(|line| line.trim_start().starts_with("libcrypto.so"))?;
    let (path, _) = line.split_once("=> ")?.1.rsplit_once(" (")?;
    Some(PathBuf::from(path)).filter(|path| path.is_absolute())
}

fn folder(library: &[u8]) -> Option<PathBuf> {
    let at = memchr::memmem::find(library, FOLDER)? + FOLDER.len();
    let length = memchr::memchr(b'"', &library[at..])?;
    std::str::from_utf8(&library[at..at + length]).ok().map(|folder| Path::new(folder).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_and_its_folder_are_read_from_what_there_is() {
        let list = "\tlibssl.so.3 => /a/libssl.so.3 (0x7f)\n\tlibcrypto.so.3 => /a b/libcrypto.so.3 (0x7f)\n";
        assert_eq!(of_list(list).as_deref(), Some(Path::new("/a b/libcrypto.so.3")));
        assert_eq!(of_list("\tlibcrypto.so.3 => not found\n"), None);
        assert_eq!(of_list("\tlinux-vdso.so.1 (0x7f)\n"), None);
        assert_eq!(folder(b"\0OPENSSLDIR: \"/usr/lib/ssl\"\0").as_deref(), Some(Path::new("/usr/lib/ssl")));
        assert_eq!(folder(b"OPENSSLDIR: \"/usr"), None);
        assert_eq!(folder(b"else"), None);
    }
}
