//! The files by which one service, and no other program, is given an `openssl.cnf` of its own, and is looked after
//! before each start: a drop-in for systemd, and a block in what Debian's init script reads.
//!
//! What is ours stands between `# BEGIN wattlock` and `# END wattlock`; taking it out gives back what was there.

mod unit;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use wattlock_door::one_line;

use crate::changes::{Change, folder_mark};
use crate::openssl::{own, plan};
use crate::trusted;
use unit::Unit;

/// In the first line of a block for a file that was there, and empty.
const WAS_EMPTY: &str = " (the file was empty)";

/// A service: systemd's name of it, which is also that of its init script and of Wattlock's command.
pub struct Service {
    name: &'static str,
    /// Links resolved.
    program: PathBuf,
    unit: Option<Unit>,
}

/// What a service is given.
pub struct Wish<'a> {
    /// Its `openssl.cnf`.
    pub conf: Option<&'a Path>,
    /// The command that looks after it before a start, its first word an absolute path.
    pub guard: Option<&'a str>,
}

impl Service {
    /// The service that starts a program.
    pub fn of(name: &'static str, program: &Path) -> Service {
        let program = program.canonicalize().unwrap_or_else(|_| program.to_owned());
        let unit = unit::read(name, &drop_in(name)).filter(|unit| unit.starts(&program));
        Service { name, program, unit }
    }

    /// A file by which a person gives it an `openssl.cnf`.
    ///
    /// # Errors
    /// Our block in it is not whole.
    pub fn sets(&self) -> Result<Option<PathBuf>> {
        let (mut files, mut place) = (vec![defaults(self.name)], None);
        if let Some(unit) = &self.unit {
            files.extend(unit.files.iter().cloned());
            place.clone_from(&unit.sets);
        }
        for file in files {
            let text = std::fs::read(&file).unwrap_or_default();
            let rest = plan::split(&text).with_context(|| one_line(&file))?.rest;
            let sets = |line: &str| !line.trim_start().starts_with('#') && line.contains("OPENSSL_CONF=");
            if place.is_none() && String::from_utf8_lossy(&rest).lines().any(sets) {
                place = Some(file);
            }
        }
        Ok(place)
    }

    /// Whether systemd has a unit for it.
    pub fn has_unit(&self) -> bool {
        self.unit.is_some()
    }

    /// What its unit's start has behind an option of one letter.
    pub fn option(&self, option: &str) -> Option<String> {
        self.unit.as_ref()?.option(&self.program, option)
    }

    /// Whether its init script reads a file of ours.
    pub fn has_script(&self) -> bool {
        // What systemd reads, too, is no script.
        let is_read = self.unit.as_ref().is_some_and(|unit| unit.files.contains(&defaults(self.name)));
        let script = std::fs::read(Path::new("/etc/init.d").join(self.name)).unwrap_or_default();
        let script = String::from_utf8_lossy(&script);
        let reads = format!(". {}", defaults(self.name).display());
        let starts = format!("={}", self.program.display());
        !is_read
            && [reads, starts].iter().all(|words| script.lines().any(|line| line.trim().ends_with(&**words)))
    }

    /// The changes that give it what it is to have.
    ///
    /// # Errors
    /// A file cannot be read, or our block in it is not whole.
    pub fn changes(&self, wish: &Wish<'_>) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        if self.unit.is_some() {
            let mut lines = vec!["[Service]".to_owned()];
            lines.extend(wish.conf.map(|conf| format!("Environment=OPENSSL_CONF={}", conf.display())));
            // Before each ExecStartPre, which the distribution's own `nginx -t` is, without a copy of those; since systemd
            // 243. A start does not fail because the guard is gone (-), and no sandbox of the service is the guard's (+).
            lines.extend(wish.guard.map(|guard| format!("ExecCondition=-+{guard}")));
            changes.push(self.with_block(&drop_in(self.name), &lines)?);
        }
        if self.has_script() {
            let mut lines = Vec::new();
            lines.extend(wish.conf.map(|conf| format!("export OPENSSL_CONF={}", conf.display())));
            lines.extend(wish.guard.map(|guard| {
                format!(
                    "case ${{1-}} in start | restart | reload | force-reload | upgrade) {guard} || : ;; esac"
                )
            }));
            changes.push(self.with_block(&defaults(self.name), &lines)?);
        }
        Ok(changes)
    }

    fn with_block(&self, path: &Path, lines: &[String]) -> Result<Change> {
        Change::of(path, |before| {
            let rest = without(before)?;
            let added =
                format!("added by `wattlock {0} enable`, removed by `wattlock {0} disable`", self.name);
            let end = if rest.as_ref().is_some_and(Vec::is_empty) { WAS_EMPTY } else { "" };
            let (rest, folder) = (rest.unwrap_or_default(), folder_mark(path, before));
            Ok(Some(plan::appended(&rest, &format!("{added}{folder}{end}"), lines)))
        })
    }

    /// Has systemd read its units again, and restarts the service if that is wanted.
    ///
    /// # Errors
    /// It does not restart.
    pub fn settle(&self, restart: bool) -> Result<()> {
        reload()?;
        if restart {
            match systemd_runs() && self.has_unit() {
                true => ran("systemctl", &["restart", self.name])?,
                false => ran(&format!("/etc/init.d/{}", self.name), &["restart"])?,
            }
            say!("{} has restarted", self.name);
        }
        Ok(())
    }

    /// The same; if it does not restart, `undo` takes back what it was to restart with, and it is restarted again.
    ///
    /// # Errors
    /// It did not restart: also if it does now, as it was before.
    pub fn settle_or(&self, restart: bool, undo: impl FnOnce() -> Result<()>) -> Result<()> {
        let Err(error) = self.settle(restart) else { return Ok(()) };
        let undone =
            undo().map_or_else(|why| format!("not all was taken back: {why:#}; "), |()| String::new());
        let again = self.settle(restart).map_or_else(|why| format!("; then: {why:#}"), |()| String::new());
        match undone.is_empty() {
            true => bail!("everything is as it was, since: {error:#}{again}"),
            false => bail!("{undone}since: {error:#}{again}"),
        }
    }

    /// What a person types to restart it.
    pub fn restart(&self) -> String {
        match systemd_runs() {
            true => format!("sudo systemctl restart {}", self.name),
            false => format!("sudo service {} restart", self.name),
        }
    }
}

fn systemd_runs() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Has systemd, if it runs, read its units again.
///
/// # Errors
/// It does not.
pub fn reload() -> Result<()> {
    if systemd_runs() { ran("systemctl", &["daemon-reload"]) } else { Ok(()) }
}

/// What a service's guard looks after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guards {
    /// There is no guard, or what it looks after is gone.
    Nothing,
    /// This program and configuration.
    This,
    /// Others.
    Another,
}

/// What a service's guard looks after, seen from a program and its configuration, links resolved.
pub fn guards(name: &str, program: &Path, config: &Path) -> Guards {
    let program = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let texts = [drop_in(name), defaults(name)].map(|path| std::fs::read(path).unwrap_or_default());
    let texts = texts.map(|text| String::from_utf8_lossy(&text).into_owned());
    let there = |(one, of_it): (&str, &str)| {
        Some((Path::new(one).canonicalize().ok()?, Path::new(of_it).canonicalize().ok()?))
    };
    let guarded: Vec<_> = texts.iter().flat_map(|text| guarded(name, text)).filter_map(there).collect();
    match guarded.iter().any(|(one, of_it)| *one == program && of_it == config) {
        true => Guards::This,
        false if guarded.is_empty() => Guards::Nothing,
        false => Guards::Another,
    }
}

/// The programs, and their configurations, that guards in a text name.
fn guarded<'a>(name: &str, text: &'a str) -> Vec<(&'a str, &'a str)> {
    let call = format!(" {name} guard --nginx ");
    let calls = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let calls = calls.filter_map(|line| line.split_once(&call)?.1.split_once(" --config "));
    calls.map(|(program, rest)| (program, rest.split_whitespace().next().unwrap_or_default())).collect()
}

/// The changes that take everything of ours from a service, whatever starts it.
///
/// # Errors
/// A file cannot be read, or our block in it is not whole.
pub fn removals(name: &'static str) -> Result<Vec<Change>> {
    let mut changes = vec![];
    for path in [drop_in(name), defaults(name)] {
        changes.push(Change::of(&path, without)?);
    }
    changes.push(Change::of(&own::path(name), own::without)?);
    changes.retain(|change| !change.is_none());
    Ok(changes)
}

/// Names what a person wrote into files of ours: that stays.
///
/// # Errors
/// Nobody reads it.
pub fn name_what_stays(changes: &[Change], name: &str) -> Result<()> {
    let ours = [drop_in(name), own::path(name)];
    for change in changes.iter().filter(|change| ours.contains(&change.path) && change.after.is_some()) {
        say!("{}: lines written by hand are there and stay", one_line(&change.path));
    }
    Ok(())
}

/// A file without our block; none if there was none before it.
fn without(before: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
    let Some(before) = before else { return Ok(None) };
    let split = plan::split(before)?;
    let was_empty = String::from_utf8_lossy(before).lines().any(|line| line.ends_with(WAS_EMPTY));
    Ok(Some(split.rest).filter(|rest| !split.found || !rest.is_empty() || was_empty))
}

fn drop_in(name: &str) -> PathBuf {
    PathBuf::from(format!("/etc/systemd/system/{name}.service.d/wattlock.conf"))
}

fn defaults(name: &str) -> PathBuf {
    Path::new("/etc/default").join(name)
}

/// This program as a service names it: by an absolute path that only root can change.
///
/// # Errors
/// Others can change it, or its name means something else to systemd or a shell.
pub fn this_program() -> Result<String> {
    let program =
        std::env::current_exe().and_then(|path| path.canonicalize()).context("where this program is")?;
    trusted::only_by_root(&program)?;
    word(&program)
}

/// A path that is one word to systemd, to a shell, and to nginx.
///
/// # Errors
/// It has a character that is not.
pub fn word(path: &Path) -> Result<String> {
    let text = path.to_str().unwrap_or_default();
    let plain = |c: char| c.is_alphanumeric() || "/._+-,:@=".contains(c);
    ensure!(path.is_absolute() && text.chars().all(plain), "{}: a name with odd characters", one_line(path));
    Ok(text.to_owned())
}

fn ran(program: &str, words: &[&str]) -> Result<()> {
    let said = Command::new(program).args(words).output().with_context(|| program.to_owned())?;
    let last = String::from_utf8_lossy(&said.stderr).lines().last().unwrap_or_default().to_owned();
    ensure!(said.status.success(), "{program} {}: {last}", words.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_goes_and_what_was_there_is_left_to_the_byte() {
        let service = Service { name: "nginx", program: "/n".into(), unit: None };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d/nginx");
        let lines = ["export A=b".to_owned()];
        for before in [None, Some(""), Some("X=1"), Some("X=1\n"), Some("\n")] {
            if let Some(text) = before {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, text).unwrap();
            }
            let change = service.with_block(&path, &lines).unwrap();
            let text = String::from_utf8(change.after.clone().unwrap()).unwrap();
            assert!(
                text.contains("\nexport A=b\n# END wattlock\n") && text.starts_with(before.unwrap_or("")),
                "{text}"
            );
            change.make().unwrap();
            assert!(service.with_block(&path, &lines).unwrap().is_none(), "a second time changes nothing");
            Change::of(&path, without).unwrap().make().unwrap();
            assert_eq!(std::fs::read_to_string(&path).ok().as_deref(), before);
            assert_eq!(path.parent().unwrap().exists(), before.is_some());
        }
        // A folder that was there, and empty, also stays after a second look.
        std::fs::remove_file(&path).unwrap();
        for lines in [&lines[..], &["export A=c".to_owned()]] {
            service.with_block(&path, lines).unwrap().make().unwrap();
        }
        Change::of(&path, without).unwrap().make().unwrap();
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
    }

    #[test]
    fn a_guards_nginx_is_read_from_drop_in_and_script() {
        let text = "[Service]\n# /w nginx guard --nginx /no --config /no\nExecCondition=-+/w nginx guard --nginx /n \
                    --config /c\ncase ${1-} in start) /w nginx guard --nginx /m --config /d || : ;; esac\n";
        assert_eq!(guarded("nginx", text), [("/n", "/c"), ("/m", "/d")]);
    }

    #[test]
    fn words_are_words_everywhere() {
        assert_eq!(word(Path::new("/usr/bin/wattlock")).unwrap(), "/usr/bin/wattlock");
        for odd in ["/a b", "/a$b", "/a%b", "/a;b", "/a\nb", "a/b", "/a\"b", "/a\\b"] {
            assert!(word(Path::new(odd)).is_err(), "{odd:?}");
        }
    }
}
