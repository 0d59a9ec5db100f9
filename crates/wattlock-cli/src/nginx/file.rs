//! nginx's configuration file: read, replaced at once with its owner and permissions, kept beside itself, and tested by
//! nginx.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use wattlock_shell::nginx::place::Nginx;

use super::edit;

pub fn read(file: &Path) -> Result<String> {
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("{}: not UTF-8", file.display()))
}

/// Keeps a copy beside the file, under a name that is free, unless there is one; and whether it was made.
pub fn back_up(file: &Path, text: &str) -> Result<(PathBuf, bool)> {
    if let Some(path) = backup_of(file, text) {
        return Ok((path, false));
    }
    let name = file.file_name().context("a file has a name")?.to_string_lossy().into_owned();
    for number in 0..1000_u32 {
        let more = if number == 0 { String::new() } else { format!(".{number}") };
        let path = file.with_file_name(format!("{name}.before-wattlock{more}"));
        let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&path);
        match made {
            Ok(mut out) => {
                out.set_permissions(std::fs::metadata(file)?.permissions())?;
                out.write_all(text.as_bytes()).and_then(|()| out.sync_all()).context("writing a backup")?;
                return Ok((path, true));
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("a backup, {}", path.display())),
        }
    }
    bail!("{}: a thousand backups lie beside it", file.display())
}

/// The copy that `enable` kept, if it is this very text.
pub fn backup_of(file: &Path, text: &str) -> Option<PathBuf> {
    let name = file.file_name()?.to_string_lossy().into_owned();
    let numbered = (1..1000_u32).map(|number| format!("{name}.before-wattlock.{number}"));
    let names = std::iter::once(format!("{name}.before-wattlock")).chain(numbered);
    let paths = names.map(|name| file.with_file_name(name)).take_while(|path| path.exists());
    paths.filter(|path| read(path).is_ok_and(|kept| kept == text)).last()
}

/// Puts a new text in the place of a file at once, with the same permissions and owner, if the file is still what was
/// read.
///
/// # Errors
/// Somebody changed it meanwhile, or it cannot be written.
pub fn replace(file: &Path, before: &str, text: &str) -> Result<()> {
    let new = beside(file, text)?;
    ensure!(read(file)? == before, "{}: somebody changed it meanwhile; try again", file.display());
    new.persist(file).with_context(|| file.display().to_string())?;
    Ok(())
}

/// A text in a file of its own beside another, with that one's permissions and owner: nginx resolves what it includes
/// as it would there.
///
/// # Errors
/// It cannot be written.
pub fn beside(file: &Path, text: &str) -> Result<tempfile::NamedTempFile> {
    let folder = file.parent().context("a file lies in a folder")?;
    let about = std::fs::metadata(file)?;
    let mut new = tempfile::Builder::new()
        .prefix(".wattlock-")
        .tempfile_in(folder)
        .with_context(|| folder.display().to_string())?;
    new.write_all(text.as_bytes())?;
    new.as_file().set_permissions(about.permissions())?;
    fchown(new.as_file(), Some(about.uid()), Some(about.gid()))?;
    new.as_file().sync_all()?;
    Ok(new)
}

/// Why nginx does not take a configuration, and which line has a directive of ours that it does not know.
pub struct Refused {
    pub words: String,
    pub at: Option<(PathBuf, usize)>,
}

impl From<anyhow::Error> for Refused {
    fn from(error: anyhow::Error) -> Refused {
        Refused { words: format!("{error:#}"), at: None }
    }
}

/// Which `openssl.cnf` the environment of a test names.
#[derive(Debug, Clone, Copy)]
pub enum Environment<'a> {
    /// The one that this process has.
    AsHere,
    /// None, as at a terminal or in a package's script.
    None,
    /// This one.
    Names(&'a Path),
}

/// `nginx -t`: what it warns of.
///
/// # Errors
/// What it refuses, or that it cannot be run.
pub fn test(
    nginx: &Nginx,
    file: &Path,
    prefix: Option<&Path>,
    environment: Environment<'_>,
) -> Result<String, Refused> {
    let mut command = nginx.command();
    command.arg("-t").arg("-q").arg("-c").arg(file);
    if let Some(prefix) = prefix {
        command.arg("-p").arg(prefix);
    }
    match environment {
        Environment::AsHere => {}
        Environment::None => _ = command.env_remove("OPENSSL_CONF"),
        Environment::Names(conf) => _ = command.env("OPENSSL_CONF", conf),
    }
    let output = command.output().with_context(|| nginx.program.display().to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    if output.status.code().is_none() {
        return Err(Refused { words: format!("nginx -t dies ({})", output.status), at: None });
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let wrong = said.lines().find(|line| line.contains("[emerg]")).or(said.lines().next());
    let wrong = wrong.unwrap_or("no reason given");
    // nginx: [emerg] unknown directive "wattlock_status" in /etc/nginx/conf.d/a.conf:3
    let place =
        wrong.split_once("unknown directive \"wattlock").and_then(|(_, rest)| rest.split_once("\" in "));
    let at = place.and_then(|(_, place)| {
        let (path, line) = place.trim().rsplit_once(':')?;
        Some((PathBuf::from(path), line.parse().ok()?))
    });
    Err(Refused { words: format!("nginx -t refuses it: {wrong}"), at })
}

/// Puts a directive of ours that nginx no longer knows into a comment.
pub fn set_aside(path: &Path, line: usize, changed: &mut Vec<(PathBuf, String, String)>) -> Result<()> {
    let path = path.canonicalize().with_context(|| path.display().to_string())?;
    let before = read(&path)?;
    let after = edit::set_aside(&before, line)
        .with_context(|| format!("take the directive in line {line} of {} out by hand", path.display()))?;
    replace(&path, &before, &after)?;
    put!("{}", crate::openssl::unified(&path, before.as_bytes(), after.as_bytes()));
    say!("{}, line {line}: a directive of Wattlock's, now a comment: bring it back by hand", path.display());
    changed.push((path, before, after));
    Ok(())
}
