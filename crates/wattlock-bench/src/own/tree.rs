//! A configuration of nginx with all that it includes, as one tree: files are read once, here, and nginx never opens
//! them.
//!
//! What is read is bounded: regular files only (a pipe is never waited for), so many bytes and files in all, and no
//! file inside itself. Links are followed, as nginx does: `sites-enabled` is made of them.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use wattlock_door::{Error, one_line};
use wattlock_shell::nginx::conf::{self, Directive};

use super::trust;

/// Bytes of all files, one that is included twice counted twice.
const MOST_BYTES: u64 = 16 << 20;
/// Files, counted likewise; and what one pattern may name.
const MOST_FILES: usize = 1000;

/// A configuration without an `include`.
#[derive(Debug)]
pub struct Tree {
    /// The files that it came from; a directive names one by its number.
    pub files: Vec<PathBuf>,
    /// What stands outside of all blocks.
    pub directives: Vec<Directive>,
}

impl Tree {
    /// Reads a configuration. Names of included files are relative to its folder.
    ///
    /// # Errors
    /// A file that is missing, unreadable, not regular, too large or no whole configuration, by its name.
    pub fn read(config: &Path) -> Result<Tree> {
        let config = std::path::absolute(config)?;
        let folder = config.parent().context("a configuration is a file")?.to_owned();
        let mut reader = Reader { folder, files: Vec::new(), left: MOST_BYTES, open: Vec::new() };
        let directives = reader.file(&config)?;
        Ok(Tree { files: reader.files, directives })
    }

    /// Where a directive stands: `FILE:LINE`.
    pub fn place(&self, one: &Directive) -> String {
        place(&self.files, one)
    }
}

fn place(files: &[PathBuf], one: &Directive) -> String {
    let file = files.get(one.file).map_or_else(String::new, |file| one_line(file));
    format!("{file}:{}", one.line)
}

struct Reader {
    folder: PathBuf,
    files: Vec<PathBuf>,
    /// Bytes that may still be read.
    left: u64,
    /// Device and inode of the files around.
    open: Vec<(u64, u64)>,
}

impl Reader {
    fn file(&mut self, path: &Path) -> Result<Vec<Directive>> {
        let named = || one_line(path);
        ensure!(self.files.len() < MOST_FILES, "{}: more than {MOST_FILES} files", named());
        let number = self.files.len();
        self.files.push(path.to_owned());
        let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let file = match OpenOptions::new().read(true).custom_flags(nonblocking).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => bail!(Error::NotFound(path.to_owned())),
            file => file.with_context(named)?,
        };
        let about = file.metadata().with_context(named)?;
        ensure!(about.is_file(), Error::NotRegular(path.to_owned()));
        trust::file(path, &about)?;
        let identity = (about.dev(), about.ino());
        ensure!(!self.open.contains(&identity), "{}: includes itself", named());
        let mut bytes = Vec::new();
        let read = file.take(self.left + 1).read_to_end(&mut bytes).with_context(named)? as u64;
        self.left = self
            .left
            .checked_sub(read)
            .with_context(|| format!("{}: more than {} MiB in all", named(), MOST_BYTES >> 20))?;
        let text = String::from_utf8(bytes).ok().with_context(|| format!("{}: not UTF-8", named()))?;
        let directives = conf::read(&text, number).with_context(named)?;
        self.open.push(identity);
        let whole = self.with_includes(directives)?;
        self.open.pop();
        Ok(whole)
    }

    fn with_includes(&mut self, directives: Vec<Directive>) -> Result<Vec<Directive>> {
        let mut out = Vec::with_capacity(directives.len());
        for one in directives {
            if one.name() == "include" {
                let at = place(&self.files, &one);
                let [_, pattern] = one.words.as_slice() else { bail!("{at}: `include` takes one name") };
                ensure!(one.block.is_none(), "{at}: `include` takes no block");
                for path in named(&self.folder, pattern).with_context(|| at.clone())? {
                    out.extend(self.file(&path).with_context(|| at.clone())?);
                }
                continue;
            }
            let block = one.block.map(|block| self.with_includes(block)).transpose()?;
            out.push(Directive { block, ..one });
        }
        Ok(out)
    }
}

/// The files that an `include` names: one, or those that a pattern fits, in order, as glob(3) has them for nginx.
fn named(folder: &Path, pattern: &str) -> Result<Vec<PathBuf>> {
    let whole = folder.join(pattern);
    if !is_pattern(pattern.as_bytes()) {
        return Ok(vec![whole]);
    }
    let mut found = vec![PathBuf::new()];
    for part in whole.components() {
        let Component::Normal(name) = part else {
            found.iter_mut().for_each(|path| path.push(part));
            continue;
        };
        if !is_pattern(name.as_bytes()) {
            found.iter_mut().for_each(|path| path.push(part));
            found.retain(|path| path.symlink_metadata().is_ok());
            continue;
        }
        let mut deeper = Vec::new();
        for path in &found {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            let mut fitting: Vec<_> = entries
                .map(|entry| entry.file_name())
                .filter(|entry| fits(name.as_bytes(), entry.as_bytes()))
                .collect();
            fitting.sort_unstable();
            deeper.extend(fitting.into_iter().map(|entry| path.join(entry)));
            ensure!(deeper.len() <= MOST_FILES, "more than {MOST_FILES} files fit");
        }
        found = deeper;
    }
    Ok(found)
}

fn is_pattern(name: &[u8]) -> bool {
    name.iter().any(|byte| b"*?[".contains(byte))
}

/// Whether a name fits a pattern (glob(7)); a leading dot fits only a dot.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    if name.first() == Some(&b'.') && pattern.first() != Some(&b'.') {
        return false;
    }
    // Where to go on if what follows the last `*` does not fit: that star takes one byte more.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match one(&pattern[p..], name[n]) {
            Some(Fit::Star) => {
                star = Some((p + 1, n));
                p += 1;
            }
            Some(Fit::Byte(length)) => {
                p += length;
                n += 1;
            }
            None => match star {
                Some((behind, from)) => {
                    star = Some((behind, from + 1));
                    (p, n) = (behind, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

enum Fit {
    Star,
    /// The byte fits so many bytes of the pattern.
    Byte(usize),
}

fn one(pattern: &[u8], byte: u8) -> Option<Fit> {
    match *pattern.first()? {
        b'*' => Some(Fit::Star),
        b'?' => Some(Fit::Byte(1)),
        b'[' => class(pattern, byte),
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(Fit::Byte(2)),
        own => (own == byte).then_some(Fit::Byte(1)),
    }
}

/// `[a-z]`, `[!a]`. One without an end is an ordinary bracket.
fn class(pattern: &[u8], byte: u8) -> Option<Fit> {
    let inverted = matches!(pattern.get(1), Some(b'!' | b'^'));
    let from = 1 + usize::from(inverted);
    let Some(end) = pattern.iter().skip(from + 1).position(|byte| *byte == b']').map(|at| at + from + 1)
    else {
        return (byte == b'[').then_some(Fit::Byte(1));
    };
    let (mut rest, mut within) = (&pattern[from..end], false);
    while let Some((&low, more)) = rest.split_first() {
        let (high, more) = match more {
            [b'-', high, more @ ..] => (*high, more),
            _ => (low, more),
        };
        within |= (low..=high).contains(&byte);
        rest = more;
    }
    (within != inverted).then_some(Fit::Byte(end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(folder: &Path, files: &[(&str, &str)]) -> PathBuf {
        for (name, text) in files {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder.join("nginx.conf")
    }

    fn refusal(config: &Path) -> String {
        format!("{:#}", Tree::read(config).unwrap_err())
    }

    #[test]
    fn patterns_fit_as_in_glob() {
        for (pattern, name, wanted) in [
            ("*.conf", "a.conf", true),
            ("*.conf", ".conf", false),
            (".*", ".a", true),
            ("*", "a", true),
            ("*", ".a", false),
            ("a*b*c", "axxbyybzc", true),
            ("a*b*c", "axxbyybz", false),
            ("?", "ab", false),
            ("[a-c]1", "b1", true),
            ("[!a-c]1", "b1", false),
            ("[]]", "]", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("**a", "xa", true),
        ] {
            assert_eq!(fits(pattern.as_bytes(), name.as_bytes()), wanted, "{pattern} {name}");
        }
        // Many stars end soon.
        assert!(!fits("a*".repeat(200).as_bytes(), "a".repeat(199).as_bytes()));
    }

    #[test]
    fn includes_stand_where_they_were_named_in_order_and_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let config = put(
            folder.path(),
            &[
                (
                    "nginx.conf",
                    "a;\ninclude more/*/[xy].conf;\nhttp {\n  include one;\n  b;\n}\ninclude none/*;",
                ),
                ("more/2/x.conf", "two;"),
                ("more/1/y.conf", "one;"),
                ("more/1/z.conf", "never;"),
                ("more/.hidden/x.conf", "never;"),
                ("real", "\ninner;"),
            ],
        );
        std::os::unix::fs::symlink("real", folder.path().join("one")).unwrap();
        let tree = Tree::read(&config).unwrap();
        let names: Vec<&str> = tree.directives.iter().map(|one| one.name()).collect();
        assert_eq!(names, ["a", "one", "two", "http"]);
        let http = tree.directives[3].block.as_ref().unwrap();
        assert!(tree.place(&http[0]).ends_with("/one:2"), "{}", tree.place(&http[0]));
        assert_eq!(http[1].line, 5);
    }

    #[test]
    fn what_cannot_be_read_whole_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let with = |text: &str| refusal(&put(folder.path(), &[("nginx.conf", text)]));
        assert!(with("include gone;").contains("gone does not exist"));
        assert!(with("include a b;").contains("nginx.conf:1: `include` takes one"));
        assert!(with("include nginx.conf;").contains("includes itself"));
        put(folder.path(), &[("a", "include b;"), ("b", "x {\n include a;\n}")]);
        let said = with("include a;");
        assert!(said.contains("b:2") && said.ends_with("includes itself"), "{said}");
        assert!(with("include /dev/zero;").contains("/dev/zero is not a regular file"));
        std::fs::create_dir(folder.path().join("d")).unwrap();
        assert!(with("include d;").contains("d is not a regular file"));
        let pipe = std::process::Command::new("mkfifo").arg(folder.path().join("pipe")).status().unwrap();
        assert!(pipe.success() && with("include pipe;").contains("pipe is not a regular file"));
        std::os::unix::fs::symlink("nowhere", folder.path().join("sites")).unwrap();
        assert!(with("include site*;").contains("sites does not exist"));
        std::fs::write(folder.path().join("bytes"), b"a \xff;").unwrap();
        assert!(with("include bytes;").contains("bytes: not UTF-8"));
        let big = std::fs::File::create(folder.path().join("big")).unwrap();
        big.set_len(1 << 40).unwrap();
        assert!(with("include big;").contains("more than 16 MiB"));
        // Another user's, under root; a link's owner does not matter, the file's does.
        if rustix::process::geteuid().is_root() {
            std::fs::remove_file(folder.path().join("sites")).unwrap();
            put(folder.path(), &[("theirs", "a;")]);
            std::os::unix::fs::symlink("theirs", folder.path().join("sites")).unwrap();
            let open = |mode| {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
                std::fs::set_permissions(folder.path().join("theirs"), mode).unwrap();
            };
            open(0o666);
            assert!(with("include site*;").contains("sites: every user may write it"));
            open(0o644);
            std::os::unix::fs::chown(folder.path().join("theirs"), Some(1234), None).unwrap();
            assert!(with("include site*;").contains("sites: it belongs to user 1234"));
            std::os::unix::fs::chown(folder.path().join("nginx.conf"), Some(1234), None).unwrap();
            assert!(
                refusal(&folder.path().join("nginx.conf")).contains("nginx.conf: it belongs to user 1234")
            );
            std::os::unix::fs::chown(folder.path().join("nginx.conf"), Some(0), None).unwrap();
        }
        // Little that names much.
        put(folder.path(), &[("c0", "a;")]);
        for level in 1..=10 {
            let text = format!("include c{};", level - 1).repeat(4);
            put(folder.path(), &[(&*format!("c{level}"), &text)]);
        }
        assert!(with("include c10;").contains("more than 1000 files"));
    }
}
