//! Changes of configuration files that belong together: shown, written each at once, and taken back if one fails.
//!
//! A file that somebody has changed since it was read is not written, a link is not followed, and root writes only
//! where root alone may. A folder that is made for a file goes when the file does and nothing else is in it; one that
//! was there, and empty, stays if the file says so ([`folder_mark`]).

use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use wattlock_door::one_line;

use crate::openssl::unified;
use crate::trusted;

/// In a file that was made in a folder which was there, and empty.
const FOLDER_WAS_EMPTY: &str = " (the folder was empty)";

/// What a file that is made has to say in some line, so that its folder stays when it goes.
///
/// `before` is what the file says now.
pub fn folder_mark(path: &Path, before: Option<&[u8]>) -> &'static str {
    let stays = before.map_or_else(|| path.parent().is_some_and(was_empty), folder_stays);
    if stays { FOLDER_WAS_EMPTY } else { "" }
}

/// Whether a folder is there, and was empty before files of ours were made in it.
fn was_empty(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    let mut entries = entries.flatten().map(|entry| entry.path()).peekable();
    let says_so = |path: PathBuf| read(&path).is_ok_and(|text| text.is_some_and(|text| folder_stays(&text)));
    entries.peek().is_none() || entries.any(says_so)
}

fn folder_stays(text: &[u8]) -> bool {
    text.windows(FOLDER_WAS_EMPTY.len()).any(|words| words == FOLDER_WAS_EMPTY.as_bytes())
}

/// A file as it was read, and as it is to be; `None` is no file.
#[derive(Debug)]
pub struct Change {
    pub path: PathBuf,
    before: Option<Vec<u8>>,
    pub after: Option<Vec<u8>>,
}

impl Change {
    /// Reads a file; what it is to be is what `next` makes of it.
    ///
    /// # Errors
    /// It is no file of its own, or cannot be read; or those of `next`, with the file's name.
    pub fn of(path: &Path, next: impl FnOnce(Option<&[u8]>) -> Result<Option<Vec<u8>>>) -> Result<Change> {
        let before = read(path)?;
        let after = next(before.as_deref()).with_context(|| one_line(path))?;
        Ok(Change { path: path.to_owned(), before, after })
    }

    /// Whether there is nothing to do.
    pub fn is_none(&self) -> bool {
        self.before == self.after
    }

    /// As `diff -u` prints it.
    pub fn shown(&self) -> String {
        let text = |side: &Option<Vec<u8>>| side.clone().unwrap_or_default();
        unified(&self.path, &text(&self.before), &text(&self.after))
    }

    /// Writes or removes the file.
    ///
    /// # Errors
    /// Somebody changed it meanwhile, others than root may change it, or it cannot be written. It is as it was then.
    pub fn make(&self) -> Result<()> {
        self.put(self.before.as_deref(), self.after.as_deref())
    }

    /// Undoes [`Change::make`].
    ///
    /// # Errors
    /// As there.
    pub fn undo(&self) -> Result<()> {
        self.put(self.after.as_deref(), self.before.as_deref())
    }

    fn put(&self, from: Option<&[u8]>, to: Option<&[u8]>) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let named = || one_line(&self.path);
        trusted::only_by_root(&self.path)?;
        ensure!(
            read(&self.path)?.as_deref() == from,
            "{}: somebody changed it meanwhile; try again",
            named()
        );
        let folder = self.path.parent().context("a file lies in a folder")?;
        match to {
            Some(text) => {
                let mut made = Vec::new();
                let written = make_folders(folder, &mut made).and_then(|()| write(&self.path, folder, text));
                if let Err(error) = written {
                    for folder in made.iter().rev() {
                        let _ = std::fs::remove_dir(folder);
                    }
                    return Err(error).with_context(named);
                }
            }
            None => {
                std::fs::remove_file(&self.path).with_context(named)?;
                if !from.is_some_and(folder_stays) {
                    // One with other files stays.
                    let _ = std::fs::remove_dir(folder);
                }
            }
        }
        // The name in the folder is what must outlive a power cut; some file systems cannot be asked to.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

/// Makes changes in turn; takes back those made if one fails.
///
/// # Errors
/// As [`Change::make`].
pub fn make_all(changes: &[Change]) -> Result<()> {
    for (at, change) in changes.iter().enumerate() {
        if let Err(error) = change.make() {
            undo_all(&changes[..at])?;
            return Err(error);
        }
    }
    Ok(())
}

/// Takes changes back, the last first.
///
/// # Errors
/// The first that could not be; the others are.
pub fn undo_all(changes: &[Change]) -> Result<()> {
    let mut first = Ok(());
    for change in changes.iter().rev() {
        let undone = change.undo().context("undoing");
        first = first.and(undone);
    }
    first
}

/// Makes a folder and those above it; which goes to `made`. Everybody may read them, whatever the umask: services of
/// other users look into them.
fn make_folders(folder: &Path, made: &mut Vec<PathBuf>) -> Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|part| !part.exists()).collect();
    for part in missing.into_iter().rev() {
        std::fs::create_dir(part)?;
        made.push(part.to_owned());
        std::fs::set_permissions(part, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// A file's bytes; `None` if there is no file.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let named = || one_line(path);
    match path.symlink_metadata() {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error).with_context(named),
        Ok(about) if !about.is_file() => bail!("{}: not a file of its own; take it away", named()),
        Ok(_) => std::fs::read(path).map(Some).with_context(named),
    }
}

/// A whole file in the place of what is there, with its owner and permissions.
fn write(path: &Path, folder: &Path, text: &[u8]) -> Result<()> {
    let mut new = tempfile::Builder::new().prefix(".wattlock-").tempfile_in(folder)?;
    new.write_all(text)?;
    let permissions = match path.symlink_metadata() {
        Ok(about) => {
            chown(new.path(), Some(about.uid()), Some(about.gid()))?;
            about.permissions()
        }
        Err(_) => Permissions::from_mode(0o644),
    };
    new.as_file().set_permissions(permissions)?;
    new.as_file().sync_all()?;
    // An error with the file in it would keep the file.
    new.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(text: &str) -> impl FnOnce(Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        let text = text.as_bytes().to_vec();
        move |_| Ok(Some(text))
    }

    #[test]
    fn what_is_made_is_undone_with_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("made/new"));
        std::fs::write(&old, "a\n").unwrap();
        std::fs::set_permissions(&old, Permissions::from_mode(0o640)).unwrap();
        let changes = [Change::of(&old, to("b\n")).unwrap(), Change::of(&new, to("c\n")).unwrap()];
        assert!(changes[0].shown().contains("-a\n+b\n") && changes[1].shown().contains("+c\n"));
        make_all(&changes).unwrap();
        assert_eq!(std::fs::read(&new).unwrap(), b"c\n");
        assert_eq!(old.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        undo_all(&changes).unwrap();
        assert_eq!(std::fs::read(&old).unwrap(), b"a\n");
        assert!(!folder.path().join("made").exists());
    }

    #[test]
    fn what_somebody_changed_meanwhile_stays_and_the_others_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
        let changes = [Change::of(&one, to("1")).unwrap(), Change::of(&two, to("2")).unwrap()];
        std::fs::write(&two, "theirs").unwrap();
        let told = make_all(&changes).unwrap_err().to_string();
        assert!(told.contains("meanwhile"), "{told}");
        assert!(!one.exists() && std::fs::read(&two).unwrap() == b"theirs");
    }

    #[test]
    fn a_folder_that_was_made_goes_if_its_file_cannot_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one/two").join("n".repeat(300));
        let change = Change { path, before: None, after: Some(b"x".to_vec()) };
        assert!(change.make().is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_was_empty_before_the_first_of_two_files_stays() {
        let folder = tempfile::tempdir().unwrap();
        for was_there in [true, false] {
            let inner = folder.path().join("f");
            if was_there {
                std::fs::create_dir(&inner).unwrap();
            }
            let paths = ["one", "two"].map(|name| inner.join(name));
            for path in &paths {
                let text = format!("# x{}\n", folder_mark(path, None));
                Change::of(path, to(&text)).unwrap().make().unwrap();
            }
            for path in &paths {
                Change::of(path, |_| Ok(None)).unwrap().make().unwrap();
            }
            assert_eq!(inner.exists(), was_there);
            let _ = std::fs::remove_dir(&inner);
        }
    }

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [link, target] = ["link", "target"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(Change::of(&link, to("x")).is_err() && !target.exists());
        std::fs::remove_file(&link).unwrap();
        let change = Change::of(&link, to("x")).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(change.make().is_err() && !target.exists());
    }
}
