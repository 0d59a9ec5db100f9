//! An `openssl.cnf` of one program's own: it includes the system's file, so whatever that says, now and later, holds
//! for the program, too; behind it stands the block that `wattlock openssl enable` would have added there.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::conf::{Conf, written};
use super::place::{self, Source};
use super::plan::{self, State, Wish};

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
    let head =
        format!("{HEAD}{program} enable`: what the system's file says, and Wattlock.\n.include {system}\n");
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
    let known = before.filter(|_| split.found).map(Conf::read).transpose()?;
    let settings = known.map(|conf| State::of(&conf)).transpose()?.unwrap_or_default().settings;
    let settings: Vec<_> = settings.into_iter().map(|entry| (entry.name, entry.value)).collect();
    plan::with_block(&rest, &Wish { module, settings: &settings, alone: true })
}

/// The file without Wattlock, which includes the system's. `None` if there is no block in it.
///
/// # Errors
/// Its block is not whole.
pub fn idle(before: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
    let split = plan::split(before.unwrap_or_default())?;
    Ok(Some(split.rest).filter(|_| split.found))
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
        let idle = String::from_utf8(idle(Some(&again)).unwrap().unwrap()).unwrap();
        assert!(idle.contains(".include ") && !idle.contains("wattlock_sect"), "{idle}");
        assert!(super::idle(Some(b"x = 1\n")).unwrap().is_none() && without(None).unwrap().is_none());
    }
}
