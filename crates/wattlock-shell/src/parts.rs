//! Where Wattlock's shared libraries are: where `make install` puts them, or in the build folder that this program was
//! built into. What is written into a user's configuration must stay where it is, so `enable` looks at the installed
//! places first and warns about anything else.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// OpenSSL's provider.
pub const PROVIDER: &str = "libwattlock_provider.so";
/// The same with emulated cards; built for tests, benches and the lab, never installed.
pub const EMULATED: &str = "libwattlock_emulated.so";
/// nginx's module.
pub const MODULE: &str = "ngx_http_wattlock_module.so";

/// Where `make install` puts libraries; what is relative is so to this program's folder.
const INSTALLED: [&str; 3] = ["../lib/wattlock", "/usr/local/lib/wattlock", "/usr/lib/wattlock"];

/// Which places are looked at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// What was built with this program: for what ends with this program.
    Built,
    /// What is installed: for what stays.
    Installed,
}

/// A file that the user named.
///
/// # Errors
/// It is not there, or no file.
pub fn named(path: &Path) -> Result<PathBuf> {
    let whole = path.canonicalize().with_context(|| path.display().to_string())?;
    ensure!(whole.is_file(), "{}: not a regular file", path.display());
    Ok(whole)
}

/// A library of ours, links resolved. `built` are folders of a build, relative to this program's; `how` says how to get
/// one.
///
/// # Errors
/// It is in none of the places.
pub fn find(name: &str, built: &[PathBuf], first: First, how: &str) -> Result<PathBuf> {
    let here = program_folder()?;
    let built = built.iter().map(|folder| here.join(folder));
    let places: Vec<PathBuf> = match first {
        First::Built => built.chain(installed(&here)).collect(),
        First::Installed => installed(&here).into_iter().chain(built).collect(),
    };
    let found = places.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    let found =
        found.with_context(|| format!("no {name} is installed or lies beside this program; {how}"))?;
    Ok(found.canonicalize()?)
}

/// What becomes of a user's configuration that names this library where it is now; none if it is installed. `lost`
/// is what happens when the library is gone.
pub fn warnings(library: &Path, lost: &str) -> Vec<String> {
    let shown = library.display();
    if in_build_folder(library) {
        return vec![
            format!("warning: {shown} lies in a build folder: after `cargo clean` {lost}"),
            "warning: `make install` puts it where it stays; then enable again".to_owned(),
        ];
    }
    let folders = program_folder().map(|here| installed(&here)).unwrap_or_default();
    let settled = |folder: &PathBuf| folder.canonicalize().is_ok_and(|folder| library.starts_with(folder));
    if folders.iter().any(settled) {
        return Vec::new();
    }
    vec![format!("warning: {shown} is not where `make install` puts it: it must stay there, or {lost}")]
}

/// Whether a path lies in a folder that is marked as one that may be deleted at any time, as Cargo's are
/// (bford.info/cachedir).
pub fn in_build_folder(path: &Path) -> bool {
    path.ancestors().skip(1).any(|folder| folder.join("CACHEDIR.TAG").is_file())
}

fn installed(here: &Path) -> Vec<PathBuf> {
    // Joining an absolute path replaces what is there.
    INSTALLED.iter().map(|folder| here.join(folder)).collect()
}

fn program_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().and_then(|path| path.canonicalize());
    let program = program.context("where this program is")?;
    Ok(program.parent().context("this program lies in no folder")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_folder_and_any_other_place_are_warned_about() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("release").join(PROVIDER);
        std::fs::create_dir(library.parent().unwrap()).unwrap();
        std::fs::write(&library, "").unwrap();
        let warned = warnings(&library, "programs go on without Wattlock");
        assert!(warned.len() == 1 && warned[0].contains("must stay there"), "{warned:?}");
        std::fs::write(folder.path().join("CACHEDIR.TAG"), "").unwrap();
        let warned = warnings(&library, "programs go on without Wattlock");
        assert!(warned[0].contains("build folder") && warned[1].contains("make install"), "{warned:?}");
    }

    #[test]
    fn a_folder_is_no_library() {
        assert!(named(Path::new("/")).unwrap_err().to_string().contains("not a regular file"));
        assert!(named(Path::new("/no/such.so")).unwrap_err().to_string().contains("/no/such.so"));
    }
}
