//! Which file is meant, where the module is, and how a file is replaced: whole, with the owner and the permissions it
//! had, or not at all.

use std::fs::{File, Metadata};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use tempfile::NamedTempFile;

use super::trial;
use wattlock_shell::parts::{self, First};

/// Where the backup goes, beside the file.
const BACKUP: &str = "before-wattlock";

/// A configuration file as it was read.
pub struct Source {
    pub path: PathBuf,
    pub text: Vec<u8>,
    metadata: Metadata,
}

/// The file that is meant: the one given, else that of `OPENSSL_CONF`, else the system's.
///
/// # Errors
/// No `openssl` program to ask for the system's.
pub fn configuration(given: Option<&Path>) -> Result<PathBuf> {
    let named = given.map(Path::to_owned).or_else(|| std::env::var_os("OPENSSL_CONF").map(PathBuf::from));
    match named {
        Some(path) => std::path::absolute(&path).with_context(|| path.display().to_string()),
        None => of_the_system(),
    }
}

/// The file of every program that names none.
///
/// # Errors
/// No `openssl` program to ask.
pub fn of_the_system() -> Result<PathBuf> {
    // Debian's is a link to /etc/ssl, which is the file that is meant.
    let path = trial::named_folder("-d")?.join("openssl.cnf");
    Ok(path.canonicalize().unwrap_or(path))
}

impl Source {
    /// # Errors
    /// What stands in the way, in one line with the file's name.
    pub fn read(path: &Path) -> Result<Source> {
        let shown = path.display();
        let metadata = std::fs::symlink_metadata(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => anyhow!("{shown}: there is no such file"),
            _ => anyhow!("{shown}: {error}"),
        })?;
        if metadata.is_symlink() {
            let target = path.canonicalize().map(|target| target.display().to_string());
            bail!(
                "{shown}: a link to {}; name that file itself",
                target.unwrap_or_else(|_| "nothing".to_owned())
            );
        }
        if !metadata.is_file() {
            bail!("{shown}: not a regular file");
        }
        let text = std::fs::read(path).map_err(|error| anyhow!("{shown}: {error}"))?;
        Ok(Source { path: path.to_owned(), text, metadata })
    }

    /// Writes a new text into a file of its own beside this one, with the same owner and permissions.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn candidate(&self, text: &[u8]) -> Result<NamedTempFile> {
        self.beside(text)
            .map_err(|error| anyhow!("{}: nothing can be written beside it: {error}", self.path.display()))
    }

    fn beside(&self, text: &[u8]) -> std::io::Result<NamedTempFile> {
        let mut file = tempfile::Builder::new().prefix(".openssl.cnf.").tempfile_in(self.folder())?;
        file.write_all(text)?;
        let (own, new) = (&self.metadata, file.as_file().metadata()?);
        if (own.uid(), own.gid()) != (new.uid(), new.gid()) {
            chown(file.path(), Some(own.uid()), Some(own.gid()))?;
        }
        file.as_file().set_permissions(own.permissions())?;
        file.as_file().sync_all()?;
        Ok(file)
    }

    /// Puts a candidate in this file's place, if this file is still what was read.
    ///
    /// # Errors
    /// Somebody changed it meanwhile, or it cannot be replaced.
    pub fn replace(&self, candidate: NamedTempFile) -> Result<()> {
        if Source::read(&self.path)?.text != self.text {
            bail!("{}: somebody changed it meanwhile; try again", self.path.display());
        }
        candidate.persist(&self.path).map_err(|error| anyhow!("{}: {}", self.path.display(), error.error))?;
        // The name in the folder is what must outlive a power cut; some file systems cannot be asked to.
        let _ = File::open(self.folder()).and_then(|folder| folder.sync_all());
        Ok(())
    }

    /// Keeps `text` beside the file, under a name that is free; an earlier backup of the same text is taken.
    ///
    /// # Errors
    /// As [`Source::candidate`].
    pub fn back_up(&self, text: &[u8]) -> Result<PathBuf> {
        for path in self.backups() {
            if std::fs::read(&path).is_ok_and(|kept| kept == text) {
                return Ok(path);
            }
            if !path.exists() {
                let file = self.candidate(text)?;
                file.persist_noclobber(&path)
                    .map_err(|error| anyhow!("{}: {}", path.display(), error.error))?;
                return Ok(path);
            }
        }
        bail!("{}: too many backups beside it", self.path.display())
    }

    /// A backup that holds just this text.
    pub fn backup_of(&self, text: &[u8]) -> Option<PathBuf> {
        self.backups().find(|path| std::fs::read(path).is_ok_and(|kept| kept == text))
    }

    fn backups(&self) -> impl Iterator<Item = PathBuf> {
        (0..100).map(|number| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(format!(".{BACKUP}"));
            if number > 0 {
                name.push(format!(".{number}"));
            }
            PathBuf::from(name)
        })
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }
}

/// The module for a configuration: the one given, else the one installed, else the one built with this program.
///
/// # Errors
/// There is none.
pub fn module_to_stay(given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(path) => parts::named(path),
        None => parts::find(
            parts::PROVIDER,
            &[PathBuf::new()],
            First::Installed,
            "`make install` or the package wattlock-openssl-provider installs it, --module names another",
        ),
    }
}
