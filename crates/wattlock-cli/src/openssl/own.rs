//! An `openssl.cnf` of one program's own: it includes the system's file, so whatever that says, now and later, holds
//! for the program, too; behind it stands the block that `wattlock openssl enable` would have added there.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::conf::{Conf, written};
use super::place::{self, Source};
use super::plan::{self, State, Wish};
use crate::changes::folder_mark;

/// Where such files are.
pub const FOLDER: &str = "/etc/wattlock";
/// Begins each of them.
const HEAD: &str = "# By `wattlock ";

/// The file of a program.
pub fn path(program: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{program}-openssl.cnf"))
}

fn head(program: &str, system: &Path) -> Result<Vec<u8>> {
    let system = written(system.to_str().context("the path of openssl.cnf is not UTF-8")?)?;
    let folder = folder_mark(&path(program), None);
    let head = format!(
        "{HEAD}{program} enable`: what the system's file says, and Wattlock.{folder}\n.include {system}\n"
    );
    Ok(head.into_bytes())
}

/// Whether the system's file has Wattlock, for every program, already.
///
/// # Errors
/// There is no such file, or it cannot be understood.
pub fn is_for_all() -> Result<bool> {
    let source = Source::read(&place::of_the_system()?)?;
    let state = Conf::read(&source.text).and_then(|conf| State::of(&conf));
    Ok(state.with_context(|| source.path.display().to_string())?.section.is_some())
}

/// The file's text, made of what is there. Settings in its block are kept, and so is what a person wrote around it.
///
/// # Errors
/// The system's file cannot be understood, or says what would keep Wattlock from being used.
pub fn with(before: Option<&[u8]>, program: &str, module: &Path) -> Result<Vec<u8>> {
    let split = plan::split(before.unwrap_or_default())?;
    let rest = match split.rest.is_empty() {
        true => head(program, &place::of_the_system()?)?,
        false => split.rest,
    };
    let settings = match before.filter(|_| split.found) {
        Some(before) => plan::kept(before)?.settings,
        None => Vec::new(),
    };
    plan::with_block(&rest, &Wish { module, settings: &settings, alone: true })
}

/// The file's text, made of what it says and of what the system's file says now, which its block may keep from being
/// heard: the block repeats properties, and stands behind them.
///
/// # Errors
/// As [`with`]; or no module is known.
pub fn anew(before: &[u8], program: &str) -> Result<Vec<u8>> {
    let module = plan::kept(before)?.module.context("its block names no module")?;
    with(Some(before), program, Path::new(&module))
}

/// The file without Wattlock, which includes the system's: each line of its block is a comment, so that a later
/// [`with`] finds its settings. `None` if there is no block in it, or an idle one.
///
/// # Errors
/// Its block is not whole.
pub fn idle(before: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
    let before = before.unwrap_or_default();
    Ok(Some(plan::idle(before)?).filter(|idle| idle != before))
}

/// The provider's file that an active block names, if there is none.
pub fn gone(file: &Path) -> Option<PathBuf> {
    std::fs::read(file).ok().filter(|_| is_active(file)).and_then(|text| names_gone(&text))
}

/// The same of a text's block, idle or not.
pub fn names_gone(text: &[u8]) -> Option<PathBuf> {
    let module = PathBuf::from(plan::kept(text).ok()?.module?);
    (module.is_absolute() && module.try_exists().is_ok_and(|there| !there)).then_some(module)
}

/// Whether a file has a block of ours that is not idle.
pub fn is_active(file: &Path) -> bool {
    std::fs::read(file).is_ok_and(|text| idle(Some(&text)).is_ok_and(|idle| idle.is_some()))
}

/// Whether a file has a block of ours, idle or not.
pub fn has_block(file: &Path) -> bool {
    std::fs::read(file).is_ok_and(|text| plan::split(&text).is_ok_and(|split| split.found))
}

/// Whether the file that such a file includes, the system's, has our block itself.
pub fn includes_ours(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let included = text.lines().nth(1).and_then(|line| line.strip_prefix(".include "));
    included.is_some_and(|path| has_block(Path::new(path)))
}

/// What is to be left of the file: nothing, unless a person wrote there.
///
/// # Errors
/// Its block is not whole.
pub fn without(before: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
    let Some(before) = before else { return Ok(None) };
    let split = plan::split(before)?;
    let text = String::from_utf8_lossy(&split.rest);
    let mut lines = text.lines();
    let ours = lines.next().is_some_and(|line| line.starts_with(HEAD))
        && lines.next().is_some_and(|line| line.starts_with(".include "))
        && lines.next().is_none();
    Ok(Some(split.rest).filter(|_| !ours))
}

/// Tries a file that [`with`] made: the module loads and computes what OpenSSL computes.
///
/// # Errors
/// What does not work.
pub fn tried(file: &Path, module: &Path) -> Result<()> {
    let system = place::of_the_system()?;
    super::tried(file, &system, &Wish { module, settings: &[], alone: true }).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(folder: &Path, system: &str) -> Vec<u8> {
        let file = folder.join("system.cnf");
        std::fs::write(&file, system).unwrap();
        let rest = head("nginx", &file).unwrap();
        plan::with_block(&rest, &Wish { module: Path::new("/w.so"), settings: &[], alone: true }).unwrap()
    }

    #[test]
    fn what_the_system_says_holds_and_the_entry_for_the_module_has_the_provider_alone() {
        let folder = tempfile::tempdir().unwrap();
        let theirs = "openssl_conf = i\n[i]\nssl_conf = s\nproviders = p\n[p]\ndefault = d\n[d]\nactivate = 1\n[s]\nx = y\n";
        for system in ["", theirs] {
            let text = made(folder.path(), system);
            let conf = Conf::read(&text).unwrap();
            let state = State::of(&conf).unwrap();
            assert!(state.enabled() && state.active == ["default", "wattlock"], "{system}");
            let entry = &conf.get("default", "wattlock_alone").unwrap().value;
            let names: Vec<&str> = conf.entries(entry).iter().map(|entry| &*entry.name).collect();
            assert_eq!(names, ["providers", "alg_section"]);
            assert_eq!(conf.get("i", "ssl_conf").is_some(), !system.is_empty());
            assert!(plan::has_alone(&text));
            assert_eq!(without(Some(&text)).unwrap(), None);
        }
    }

    #[test]
    fn settings_are_kept_and_what_a_person_wrote_stays() {
        let folder = tempfile::tempdir().unwrap();
        let text = String::from_utf8(made(folder.path(), "")).unwrap();
        let text = text.replace("module = /w.so\n", "module = /w.so\nobjective = energy\n") + "mine = 1\n";
        let again = with(Some(text.as_bytes()), "nginx", Path::new("/v.so")).unwrap();
        let state = State::of(&Conf::read(&again).unwrap()).unwrap();
        assert_eq!(state.module.as_deref(), Some("/v.so"));
        assert_eq!((&*state.settings[0].name, &*state.settings[0].value), ("objective", "energy"));
        let left = String::from_utf8(without(Some(&again)).unwrap().unwrap()).unwrap();
        assert!(left.ends_with("mine = 1\n") && !left.contains("wattlock_sect"), "{left}");
        assert!(super::idle(Some(b"x = 1\n")).unwrap().is_none() && without(None).unwrap().is_none());
    }

    #[test]
    fn an_idle_block_says_nothing_and_keeps_its_settings() {
        let folder = tempfile::tempdir().unwrap();
        for end in ["\n", "\r\n"] {
            let text = String::from_utf8(made(folder.path(), "")).unwrap();
            let text = text.replace(
                "module = /w.so\nactivate = 1\n",
                "module = /w.so\nactivate = 1\nobjective = energy\n",
            );
            let text = text.replace('\n', end);
            let idle = super::idle(Some(text.as_bytes())).unwrap().unwrap();
            assert!(State::of(&Conf::read(&idle).unwrap()).unwrap().section.is_none());
            assert!(super::idle(Some(&idle)).unwrap().is_none(), "a second time changes nothing");
            let file = folder.path().join("own.cnf");
            for (text, is_gone) in [(text.as_bytes(), true), (&idle, false)] {
                std::fs::write(&file, text).unwrap();
                assert_eq!(gone(&file).is_some_and(|module| module == Path::new("/w.so")), is_gone);
            }
            assert_eq!(plan::awake(&idle), text.as_bytes());
            assert!(plan::has_alone(&idle) && without(Some(&idle)).unwrap().is_none());
            let again = with(Some(&idle), "nginx", Path::new("/w.so")).unwrap();
            assert_eq!(String::from_utf8(again).unwrap(), text);
        }
        assert!(super::idle(Some(b"# BEGIN wattlock\n")).is_err());
    }

    #[test]
    fn what_the_system_says_later_is_heard_when_the_file_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let text = made(folder.path(), "");
        assert_eq!(anew(&text, "nginx").unwrap(), text, "nothing has changed");
        let system = folder.path().join("system.cnf");
        let theirs = "openssl_conf = i\n[i]\nssl_conf = s\nalg_section = a\n[s]\nx = y\n[a]\ndefault_properties = fips=yes\n";
        std::fs::write(&system, theirs).unwrap();
        assert!(!State::of(&Conf::read(&text).unwrap()).unwrap().fips(), "the block shadows it");
        let again = anew(&text, "nginx").unwrap();
        let (conf, state) = (Conf::read(&again).unwrap(), State::of(&Conf::read(&again).unwrap()).unwrap());
        assert!(state.fips() && state.enabled());
        assert_eq!(conf.get("default", "openssl_conf").unwrap().value, "i");
        // Its block no longer leads to the provider.
        std::fs::write(
            &system,
            "openssl_conf = j\n[j]\nproviders = p\n[p]\ndefault = d\n[d]\nactivate = 1\n",
        )
        .unwrap();
        let other = anew(&again, "nginx").unwrap();
        assert!(State::of(&Conf::read(&again).unwrap()).unwrap().section.is_none());
        assert!(State::of(&Conf::read(&other).unwrap()).unwrap().enabled());
        std::fs::write(&system, theirs.replace("fips=yes", "provider=other")).unwrap();
        assert!(anew(&text, "nginx").is_err());
        std::fs::write(&system, "[a\n").unwrap();
        assert!(anew(&text, "nginx").is_err());
    }
}
