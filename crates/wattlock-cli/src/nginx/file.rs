//! nginx's configuration file: read, replaced at once with its owner, permissions and attributes, kept beside itself, and
//! tested by nginx.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{Mode, OFlags, XattrFlags, fsetxattr, getxattr, listxattr};
use rustix::io::Errno;
use wattlock_door::one_line;
use wattlock_shell::nginx::place::Nginx;

use super::edit;
use crate::trusted;
use crate::within::within;

/// How long `nginx -t` may take: a provider or a module that does not come back must not keep nginx from starting.
const PATIENCE: Duration = Duration::from_secs(15);

/// A byte that is no UTF-8, such as a letter of Latin-1 in a comment, is this character and the byte's value: it comes
/// back as the byte. The last plane is for private use.
const ODD: u32 = 0x0010_ff00;

/// What a configuration has at most.
const MOST_BYTES: u64 = 16 << 20;

/// A configuration's text. Others may have put a link to a device, or a pipe, in a folder that is included: it is
/// refused, and not waited for.
pub fn read(file: &Path) -> Result<String> {
    let bytes = regular(file).with_context(|| file.display().to_string())?;
    let text = text(&bytes);
    ensure!(self::bytes(&text) == bytes, "{}: neither UTF-8 nor another text", file.display());
    Ok(text)
}

fn regular(file: &Path) -> Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(file, flags, Mode::empty())?);
    ensure!(file.metadata()?.is_file(), "not a regular file");
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= MOST_BYTES, "more than {} MiB", MOST_BYTES >> 20);
    Ok(bytes)
}

/// The text that bytes are, which [`bytes`] gives back.
pub fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().filter_map(|byte| char::from_u32(ODD + u32::from(*byte))));
    }
    text
}

/// The bytes of a text.
pub fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match u32::from(c).checked_sub(ODD).and_then(|odd| u8::try_from(odd).ok()) {
            Some(odd) if odd >= 0x80 => bytes.push(odd),
            _ => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
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
        // Whole under its name, or not there.
        match beside(file, text)?.persist_noclobber(&path) {
            Ok(_) => return Ok((path, true)),
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.error).with_context(|| format!("a backup, {}", path.display())),
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
    new.write_all(&bytes(text))?;
    fchown(new.as_file(), Some(about.uid()), Some(about.gid()))?;
    new.as_file().set_permissions(about.permissions())?;
    attributes(file, new.as_file()).with_context(|| format!("attributes of {}", one_line(file)))?;
    new.as_file().sync_all()?;
    Ok(new)
}

/// Gives a file the extended attributes of another, access lists among them. Those of security modules (SELinux's labels)
/// may be refused, and come by the folder's rule then.
fn attributes(from: &Path, to: &std::fs::File) -> rustix::io::Result<()> {
    let mut names = vec![0_u8; 0x1_0000];
    let length = match listxattr(from, &mut *names) {
        Err(Errno::NOTSUP) => return Ok(()),
        length => length?,
    };
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0_u8; 0x1_0000];
        let set = getxattr(from, name, &mut *value)
            .and_then(|length| fsetxattr(to, name, &value[..length], XattrFlags::empty()));
        match set {
            Err(_) if name.starts_with(b"security.") => {}
            set => set?,
        }
    }
    Ok(())
}

/// Why nginx does not take a configuration, and which line has a directive of ours that it does not know.
pub struct Refused {
    pub words: String,
    pub at: Option<(PathBuf, usize)>,
    /// Whether it was ended, by a signal or because it took too long, and so had no reason to give.
    pub ended: bool,
}

impl From<Refused> for anyhow::Error {
    fn from(refused: Refused) -> anyhow::Error {
        anyhow::anyhow!("{}", refused.words)
    }
}

impl From<anyhow::Error> for Refused {
    fn from(error: anyhow::Error) -> Refused {
        Refused { words: format!("{error:#}"), at: None, ended: false }
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
    let (ended, said) = within(command, PATIENCE).with_context(|| nginx.program.display().to_string())?;
    match ended {
        None => {
            let words = format!("nginx -t gives no answer within {} s", PATIENCE.as_secs());
            return Err(Refused { words, at: None, ended: true });
        }
        Some(status) if status.success() => return Ok(said),
        Some(status) if status.code().is_none() => {
            return Err(Refused { words: format!("nginx -t dies ({status})"), at: None, ended: true });
        }
        Some(_) => {}
    }
    // The last: warnings that stand before it quote what users wrote, ends of lines too.
    let wrong = said.lines().filter_map(emergency).next_back().or(said.lines().next());
    let wrong = wrong.unwrap_or("no reason given");
    Err(Refused {
        words: format!("nginx -t refuses it: {}", one_line(Path::new(wrong))),
        at: unknown(wrong),
        ended: false,
    })
}

/// What a line says that ends nginx, without what stands before it:
/// `nginx: [emerg] WORDS`, or `2026/11/27 21:42:43 [emerg] 73#73: WORDS`.
fn emergency(line: &str) -> Option<&str> {
    let (head, words) = line.split_once("[emerg] ")?;
    let is_time = |c: char| c.is_ascii_digit() || "/: ".contains(c);
    match head {
        "nginx: " => Some(words),
        _ if head.chars().all(is_time) => Some(words.split_once(": ")?.1),
        _ => None,
    }
}

/// Where nginx says that a directive of ours is which it does not know. [`edit::set_aside`] looks whether one is there.
fn unknown(wrong: &str) -> Option<(PathBuf, usize)> {
    // unknown directive "wattlock_status" in /etc/nginx/conf.d/a.conf:3
    let rest = wrong.strip_prefix("unknown directive \"wattlock")?;
    let (path, line) = rest.rsplit_once("\" in ")?.1.trim().rsplit_once(':')?;
    Some((PathBuf::from(path), line.parse().ok()?))
}

/// A file that [`set_aside`] changed: before, and after.
pub type Changed = (PathBuf, String, String);

/// Puts a directive of ours that nginx no longer knows into a comment.
pub fn set_aside(path: &Path, line: usize) -> Result<Changed> {
    let path = path.canonicalize().with_context(|| path.display().to_string())?;
    trusted::only_by_root(&path)?;
    let before = read(&path)?;
    let after = edit::set_aside(&before, line)
        .with_context(|| format!("take the directive in line {line} of {} out by hand", path.display()))?;
    replace(&path, &before, &after)?;
    Ok((path, before, after))
}

/// Puts back what was changed, the last first, if it is still what was made of it.
pub fn put_back(changed: &[Changed]) -> Result<()> {
    for (path, old, new) in changed.iter().rev() {
        // The first may not have been written.
        if read(path)? != *old {
            replace(path, new, old).with_context(|| format!("undoing the change of {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_utf_8_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in
            [&b"# caf\xe9\nhttp {\n}\n"[..], b"\xff\xc3", "\u{10ff00}\u{10fffd} \u{e9}".as_bytes(), &all]
        {
            let text = text(bytes);
            let back = self::bytes(&text);
            // What is of the private plane already is refused, and not spoilt, by `read`.
            assert!(back == bytes || text.contains('\u{10fffd}'), "{bytes:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("n.conf");
        std::fs::write(&file, b"# caf\xe9\n").unwrap();
        let before = read(&file).unwrap();
        replace(&file, &before, &format!("{before}x;\n")).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"# caf\xe9\nx;\n");
        std::fs::write(&file, "\u{10fffd}").unwrap();
        assert!(read(&file).is_err());
    }

    #[test]
    fn what_is_no_file_or_has_no_end_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink("/dev/zero", path("zero")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        File::create(path("long")).unwrap().set_len(MOST_BYTES + 1).unwrap();
        for name in ["zero", "pipe", "long", "none", "."] {
            assert!(read(&path(name)).is_err(), "{name}");
        }
        File::create(path("most")).unwrap().set_len(MOST_BYTES).unwrap();
        assert_eq!(read(&path("most")).unwrap().len() as u64, MOST_BYTES);
    }

    #[test]
    fn the_place_of_an_unknown_directive_is_what_nginx_says_last() {
        let at = |line: &str| {
            emergency(line).and_then(unknown).map(|(path, line)| (path.display().to_string(), line))
        };
        let place = Some(("/etc/nginx/a.conf".to_owned(), 3));
        for head in ["nginx: [emerg] ", "2026/11/27 21:42:43 [emerg] 73#73: "] {
            let said = |words: &str| at(&format!("{head}unknown directive \"{words}"));
            assert_eq!(said("wattlock_status\" in /etc/nginx/a.conf:3"), place);
            assert_eq!(said("wattlock\" in /b.conf:1\" in /etc/nginx/a.conf:3"), place);
            assert_eq!(said("other\" in /a:3"), None);
        }
        for other in [
            "nginx: [warn] unknown directive \"wattlock\" in /a:3",
            "x nginx: [emerg] unknown directive \"wattlock\" in /a:3",
            "nginx: [emerg] host \"unknown directive \"wattlock\" in /a:3",
            "nginx: [warn] \"[emerg] unknown directive \"wattlock\" in /a:3",
        ] {
            assert_eq!(at(other), None, "{other}");
        }
    }

    #[test]
    fn attributes_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("n.conf");
        std::fs::write(&file, "a;\n").unwrap();
        match rustix::fs::setxattr(&file, "user.mine", b"kept", XattrFlags::empty()) {
            Err(Errno::NOTSUP) => return,
            set => set.unwrap(),
        }
        replace(&file, "a;\n", "b;\n").unwrap();
        let mut value = [0; 8];
        let length = getxattr(&file, "user.mine", &mut value).unwrap();
        assert_eq!(&value[..length], b"kept");
    }
}
