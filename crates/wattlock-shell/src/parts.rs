//! Where Wattlock's shared libraries are: where `make install` or a package puts them, or in the build folder that this
//! program was built into. What is written into a user's configuration must stay where it is, so `enable` looks at the
//! installed places first and warns about anything else.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// OpenSSL's provider.
pub const PROVIDER: &str = "libwattlock_provider.so";
/// The same with emulated cards, for tests, benches and the lab: no door of an installed system loads it.
pub const EMULATED: &str = "libwattlock_emulated.so";
/// nginx's module.
pub const MODULE: &str = "ngx_http_wattlock_module.so";

/// Where `make install` puts libraries, and where Debian's packages do; what is relative is so to this program's folder.
const INSTALLED: [&str; 3] = ["../lib/wattlock", "/usr/local/lib/wattlock", "/usr/lib/wattlock"];
const PACKAGED: [&str; 2] = ["../lib", "/usr/lib"];

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
    let built = built.iter().map(|folder| here.join(folder).join(name));
    let places: Vec<PathBuf> = match first {
        First::Built => built.chain(installed(&here, name)).collect(),
        First::Installed => installed(&here, name).into_iter().chain(built).collect(),
    };
    let found = places.into_iter().find(|path| path.is_file());
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
    let here = program_folder().unwrap_or_default();
    let ours = [PROVIDER, MODULE].into_iter().flat_map(|name| installed(&here, name));
    if ours.chain(INSTALLED.map(|folder| here.join(folder))).any(|place| holds(&place, library)) {
        return Vec::new();
    }
    vec![format!(
        "warning: {shown} is where neither `make install` nor a package puts it: it must stay there, or {lost}"
    )]
}

/// Whether a path lies in a folder that is marked as one that may be deleted at any time, as Cargo's are
/// (bford.info/cachedir).
pub fn in_build_folder(path: &Path) -> bool {
    path.ancestors().skip(1).any(|folder| folder.join("CACHEDIR.TAG").is_file())
}

/// Whether a place, a file or a folder, is or holds a library.
fn holds(place: &Path, library: &Path) -> bool {
    place.canonicalize().is_ok_and(|place| library.starts_with(place))
}

/// Where a library of ours may be installed: what belongs to this program first.
fn installed(here: &Path, name: &str) -> Vec<PathBuf> {
    // Joining an absolute path replaces what is there.
    let made = INSTALLED.map(|folder| here.join(folder).join(name));
    let Some(packaged) = packaged(name) else { return made.into() };
    let packaged = PACKAGED.map(|folder| here.join(folder).join(&packaged));
    let ([made, elsewhere @ ..], [own, distribution]) = (made, packaged);
    [made, own].into_iter().chain(elsewhere).chain([distribution]).collect()
}

/// Where Debian's packages put a library, in /usr/lib: OpenSSL's and nginx's own folders of modules. OpenSSL finds the
/// provider there by its name alone (`openssl list -provider wattlock`).
fn packaged(name: &str) -> Option<String> {
    match name {
        PROVIDER => Some(format!("{}-linux-gnu/ossl-modules/wattlock.so", std::env::consts::ARCH)),
        MODULE => Some(format!("nginx/modules/{MODULE}")),
        _ => None,
    }
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
    fn what_came_with_this_program_is_found_before_what_is_installed_elsewhere() {
        let places = |here: &str, name: &str| {
            let all = installed(Path::new(here), name);
            all.iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        let folder = format!("{}-linux-gnu/ossl-modules/wattlock.so", std::env::consts::ARCH);
        assert_eq!(
            places("/usr/bin", PROVIDER),
            [
                "/usr/bin/../lib/wattlock/libwattlock_provider.so".to_owned(),
                format!("/usr/bin/../lib/{folder}"),
                "/usr/local/lib/wattlock/libwattlock_provider.so".to_owned(),
                "/usr/lib/wattlock/libwattlock_provider.so".to_owned(),
                format!("/usr/lib/{folder}"),
            ]
        );
        let module = places("/opt/bin", MODULE);
        assert_eq!(module.last().unwrap(), "/usr/lib/nginx/modules/ngx_http_wattlock_module.so");
        assert_eq!(
            places("/usr/bin", EMULATED).len(),
            INSTALLED.len(),
            "no package has it in a folder of modules"
        );
    }

    #[test]
    fn a_folder_is_no_library() {
        assert!(named(Path::new("/")).unwrap_err().to_string().contains("not a regular file"));
        assert!(named(Path::new("/no/such.so")).unwrap_err().to_string().contains("/no/such.so"));
    }
}
