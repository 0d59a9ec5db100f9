//! The folder of a volume: its own files, and what opens them.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use wattlock_door::CryptoSource;
use wattlock_files::age::Callbacks;
use wattlock_files::age::secrecy::SecretString;
use wattlock_files::keys::{self, LOCKED_MAX, LOCKED_WORK_FACTOR_LIMIT, LockedIdentity, Recipients};
use wattlock_files::{Opener as Unlock, Sealer};

use super::{
    CONTENT_MAX, ENTRIES_MAX, FILE, FIRST_PASSPHRASE, KEYS, LOCKED_COUNT, Opener, UNFINISHED, Volume, is_name,
};
use crate::Error;
use crate::beneath;
use crate::store::JOURNAL;

/// How a user proves that a volume may be opened: identities, a passphrase, or both.
pub struct Access {
    identities: Vec<keys::BoxedIdentity>,
    passphrase: Option<Passphrase>,
}

/// A passphrase that is tried on the locked identities of a volume. Each takes half a second and a quarter of a GiB as it
/// is made, and at most what the limit allows; they are tried one after the other.
pub struct Passphrase {
    /// Gives the passphrase when it is needed, and is asked once; `None` if there is no user to ask.
    pub ask: keys::AskPassphrase,
    /// Tried on the identity of this opener only.
    pub only: Option<String>,
    /// The largest work factor that is computed, as a power of two.
    pub work_factor_limit: u8,
    /// Asked before each identity: whether to give up.
    pub stop: fn() -> bool,
}

impl Passphrase {
    /// One that is tried on every identity.
    pub fn new(ask: keys::AskPassphrase) -> Passphrase {
        Passphrase { ask, only: None, work_factor_limit: LOCKED_WORK_FACTOR_LIMIT, stop: || false }
    }
}

impl Access {
    /// With these identities; see [`keys::identities`].
    pub fn identities(identities: Vec<keys::BoxedIdentity>) -> Access {
        Access { identities, passphrase: None }
    }

    /// Also with a passphrase.
    #[must_use]
    pub fn passphrase(mut self, passphrase: Passphrase) -> Access {
        self.passphrase = Some(passphrase);
        self
    }
}

/// The folder of a volume, for what is in its own files. Never follows a link below it.
pub struct Folder {
    fd: OwnedFd,
}

impl Folder {
    /// Opens the folder.
    ///
    /// # Errors
    /// [`Error::NoVolume`] if there is none.
    pub fn open(path: &Path) -> Result<Folder, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => Ok(Folder { fd }),
            Err(Errno::NOENT | Errno::NOTDIR) => Err(Error::NoVolume(path.to_owned())),
            Err(error) => Err(Error::io("opening the volume's folder", error)),
        }
    }

    /// Its descriptor.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Whether there is a volume in it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn has_volume(&self) -> Result<bool, Error> {
        match rustix::fs::statat(&self.fd, FILE, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(Error::io("looking for the volume", error)),
        }
    }

    /// Whether it holds nothing at all.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(beneath::names(&self.fd)?.is_empty())
    }

    /// Waits until no other process changes the volume's own files, and keeps others from it while the result lives.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn lock(&self) -> Result<File, Error> {
        let fd = beneath::open(&self.fd, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let fd = fd.map_err(|error| Error::io("locking the volume's folder", error))?;
        rustix::fs::flock(&fd, FlockOperation::LockExclusive)
            .map_err(|error| Error::io("locking the volume's folder", error))?;
        Ok(File::from(fd))
    }

    /// Opens and reads the volume.
    ///
    /// # Errors
    /// [`Error::NoVolume`]; [`Error::NoMatchingKey`], [`Error::Files`] for a wrong key or a damaged file;
    /// [`Error::Damaged`] for a locked identity that is not an opener's; those of [`Volume::parse`].
    pub fn read(&self, access: Access, source: &impl CryptoSource) -> Result<Volume, Error> {
        let sealed = self.content(FILE)?.ok_or_else(|| Error::NoVolume(FILE.into()))?;
        let Some(passphrase) = access.passphrase else { return unseal(&sealed, access.identities, source) };
        if !access.identities.is_empty() {
            match unseal(&sealed, access.identities, source) {
                Err(Error::NoMatchingKey | Error::Files(wattlock_files::Error::WrongKey)) => {}
                done => return done,
            }
        }
        self.read_by_passphrase(&sealed, &passphrase, source)
    }

    /// The only way by which what is in [`KEYS`] opens a volume. Whoever may write the storage chooses those files. So one
    /// counts only if the passphrase opens it, and the volume that its identity then opens names that identity.
    fn read_by_passphrase(
        &self,
        sealed: &[u8],
        passphrase: &Passphrase,
        source: &impl CryptoSource,
    ) -> Result<Volume, Error> {
        use wattlock_files::Error::{BadPassphrase, ExcessiveWork};
        let names = match &passphrase.only {
            Some(name) => vec![name.clone()],
            None => self.locked()?,
        };
        let (mut typed, mut failed) = (None, None);
        for name in names {
            if (passphrase.stop)() {
                return Err(wattlock_door::Error::Interrupted.into());
            }
            match self.read_by(&name, sealed, passphrase, &mut typed, source) {
                // One that is damaged does not keep the others from opening. If none opens, damage is what is told.
                Err(error @ Error::Damaged(_)) => failed = Some(error),
                Err(error @ Error::Files(ExcessiveWork { .. })) => match failed {
                    Some(Error::Damaged(_)) => {}
                    _ => failed = Some(error),
                },
                Err(error @ Error::Files(BadPassphrase)) => _ = failed.get_or_insert(error),
                done => return done,
            }
        }
        Err(failed
            .unwrap_or_else(|| Error::Usage("the volume has no passphrase: give an identity with -i".into())))
    }

    /// Opens the volume by the locked identity of one name.
    fn read_by(
        &self,
        name: &str,
        sealed: &[u8],
        passphrase: &Passphrase,
        typed: &mut Option<SecretString>,
        source: &impl CryptoSource,
    ) -> Result<Volume, Error> {
        use wattlock_files::Error as FilesError;
        let damaged = |what: &dyn fmt::Display| Error::Damaged(format!("{KEYS}/{name}: {what}"));
        let not_one = |error| match error {
            FilesError::BadIdentity(what) => damaged(&what),
            error => error.into(),
        };
        let file = self.read_locked(name)?;
        let locked = LockedIdentity::parse(&file).map_err(not_one)?;
        let (required, limit) = (locked.work_factor(), passphrase.work_factor_limit);
        if required > limit {
            return Err(FilesError::ExcessiveWork { required, limit }.into());
        }
        if typed.is_none() {
            *typed = (passphrase.ask)();
        }
        let words = typed.as_ref().ok_or(FilesError::PassphraseNeeded)?;
        let identity = source.here(|crypto| locked.unlock(words, limit, crypto)).map_err(not_one)?;
        let recipient = identity.to_public().to_string();
        let volume = unseal(sealed, vec![Box::new(identity)], source).map_err(|error| match error {
            Error::NoMatchingKey => damaged(&"what is locked in it is no key of this volume"),
            error => error,
        })?;
        let is_it =
            |opener: &&Opener| opener.passphrase && opener.name == name && opener.recipient == recipient;
        match volume.openers.iter().find(is_it) {
            Some(_) => Ok(volume),
            None => Err(damaged(&"the volume has no passphrase of that name with this key")),
        }
    }

    /// Fails if a newer program wrote the volume's journal: what that says of files is unknown. One that this user may not
    /// open is for a start to refuse.
    ///
    /// # Errors
    /// [`Error::Newer`]; [`Error::Io`].
    pub fn refuse_newer_journal(&self) -> Result<(), Error> {
        match beneath::open(&self.fd, JOURNAL, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Ok(fd) if is_file(&fd) => crate::journal::refuse_newer(&File::from(fd)),
            _ => Ok(()),
        }
    }

    /// A line for each locked identity that does not open the volume, as far as that shows without a passphrase: of
    /// those that are damaged, and of those of an unknown version of age.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn check_locked(&self, volume: &Volume) -> Result<(Vec<String>, Vec<String>), Error> {
        let named = volume.openers.iter().filter(|opener| opener.passphrase);
        let mut names: BTreeSet<String> = named.map(|opener| opener.name.clone()).collect();
        let listed = names.clone();
        match self.locked() {
            Ok(there) => names.extend(there),
            Err(Error::Damaged(what)) => return Ok((vec![what], Vec::new())),
            Err(error) => return Err(error),
        }
        let (mut lines, mut newer) = (Vec::new(), Vec::new());
        for name in names {
            let line = |what: &dyn fmt::Display| format!("{KEYS}/{name}: {what}");
            match self.read_locked(&name) {
                Ok(_) if !listed.contains(&name) => {
                    lines.push(line(&"the volume has no passphrase of that name"));
                }
                Ok(file) => match LockedIdentity::parse(&file) {
                    Ok(_) => {}
                    Err(_) if is_of_later_age(&file) => {
                        newer.push(line(&"an unknown version of age: made by a newer program?"));
                    }
                    Err(wattlock_files::Error::BadIdentity(what)) => lines.push(line(&what)),
                    Err(error) => lines.push(line(&error)),
                },
                Err(Error::Damaged(what)) => lines.push(what),
                Err(error) => return Err(error),
            }
        }
        Ok((lines, newer))
    }

    /// Seals the volume to its openers and puts it in place of what is there, durably, as its next revision. Of the age plugins that openers
    /// name only those are started that are in `plugins`: what the volume names, its storage chose.
    ///
    /// # Errors
    /// [`Error::Usage`] without an opener, or for another plugin; [`Error::Files`]; [`Error::Io`], and what was there is
    /// there still.
    pub fn write(
        &self,
        volume: &mut Volume,
        plugins: &[String],
        callbacks: impl Callbacks,
        source: &impl CryptoSource,
    ) -> Result<(), Error> {
        if volume.openers.is_empty() {
            return Err(Error::Usage("a volume needs a key that opens it".into()));
        }
        let mut recipients = Recipients::new();
        for opener in &volume.openers {
            recipients.add(&opener.recipient)?;
        }
        if let Some(name) = recipients.plugins().find(|name| !plugins.iter().any(|plugin| plugin == name)) {
            let what = format!(
                "a key of the volume needs age-plugin-{name} to be started: --plugin {name} allows it"
            );
            return Err(Error::Usage(what));
        }
        volume.revision += 1;
        let text = volume.to_text();
        if text.len() > CONTENT_MAX {
            return Err(Error::Usage("too many keys".into()));
        }
        let sealed = Sealer::new(recipients.finish(callbacks)?)?.seal_bytes(text.as_bytes(), source)?;
        beneath::replace(&self.fd, FILE, &sealed, beneath::PRIVATE)
    }

    /// Keeps a locked identity under an opener's name, durably, in place of one that is there.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn keep_locked(&self, name: &str, locked: &[u8]) -> Result<(), Error> {
        match rustix::fs::mkdirat(&self.fd, KEYS, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(Error::io("making the folder of keys", error)),
        }
        let keys = self.keys()?.ok_or_else(|| Error::NoVolume(KEYS.into()))?;
        beneath::replace(&keys, name, locked, beneath::PRIVATE)?;
        rustix::fs::fsync(&self.fd).map_err(|error| Error::io("writing the folder of keys", error))
    }

    /// Keeps the locked identity of one name under another, too, if there is one.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn copy_locked(&self, name: &str, to: &str) -> Result<(), Error> {
        match self.read_locked(name) {
            Ok(locked) => self.keep_locked(to, &locked),
            Err(Error::Damaged(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes a locked identity.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn forget_locked(&self, name: &str) -> Result<(), Error> {
        let Some(keys) = self.keys()? else { return Ok(()) };
        match rustix::fs::unlinkat(&keys, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(Error::io("removing a locked key", error)),
        }
        rustix::fs::fsync(&keys).map_err(|error| Error::io("removing a locked key", error))
    }

    /// The names of locked identities in the order in which a passphrase is tried on them.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`] for what is no such folder, or more than a volume has.
    pub fn locked(&self) -> Result<Vec<String>, Error> {
        let Some(keys) = self.keys()? else { return Ok(Vec::new()) };
        let failed = |error: Errno| Error::io("listing the folder of keys", error);
        let (mut names, mut entries) = (Vec::new(), 0);
        for entry in Dir::read_from(&keys).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            entries += 1;
            let name = entry.file_name().to_str().ok().filter(|name| is_name(name));
            names.extend(name.filter(|name| !name.starts_with(UNFINISHED)).map(str::to_owned));
            if entries > ENTRIES_MAX || names.len() > LOCKED_COUNT {
                let what = "more entries than a volume has; --key NAME tries a single one";
                return Err(Error::Damaged(format!("{KEYS}: {what}")));
            }
        }
        names.sort_by(|one, other| {
            (one != FIRST_PASSPHRASE).cmp(&(other != FIRST_PASSPHRASE)).then_with(|| one.cmp(other))
        });
        Ok(names)
    }

    /// Whether there is an entry for a locked identity of this name, whatever it is.
    ///
    /// # Errors
    /// As [`Folder::locked`].
    pub fn has_locked(&self, name: &str) -> Result<bool, Error> {
        let Some(keys) = self.keys()?.filter(|_| is_name(name)) else { return Ok(false) };
        match rustix::fs::statat(&keys, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(Error::io("looking for a locked key", error)),
        }
    }

    fn read_locked(&self, name: &str) -> Result<Vec<u8>, Error> {
        let damaged = |what: &str| Error::Damaged(format!("{KEYS}/{name}: {what}"));
        let keys = self.keys()?.ok_or_else(|| damaged("missing"))?;
        // Before it is opened: opening a device may do something.
        match rustix::fs::statat(&keys, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {}
            Ok(_) => return Err(damaged("not a regular file")),
            Err(Errno::NOENT) => return Err(damaged("missing")),
            Err(error) => return Err(Error::io("looking at a locked key", error)),
        }
        match beneath::content(&keys, name, LOCKED_MAX) {
            Ok(content) => content.ok_or_else(|| damaged("missing")),
            Err(Error::Damaged(what)) => Err(Error::Damaged(format!("{KEYS}/{what}"))),
            Err(error) => Err(error),
        }
    }

    fn keys(&self) -> Result<Option<OwnedFd>, Error> {
        match beneath::open(&self.fd, KEYS, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => {
                Err(Error::Damaged(format!("{KEYS} is not a folder of the volume")))
            }
            Err(error) => Err(Error::io("opening the folder of keys", error)),
        }
    }

    fn content(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        // What is sealed is longer than its content: the header, and a stanza for each opener.
        beneath::content(&self.fd, name, 4 * CONTENT_MAX)
    }
}

/// Whether a file begins as one of age, and not of its first version.
fn is_of_later_age(file: &[u8]) -> bool {
    file.strip_prefix(b"age-encryption.org/").is_some_and(|version| !version.starts_with(b"v1\n"))
}

fn is_file(fd: &OwnedFd) -> bool {
    let kind = rustix::fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::RegularFile))
}

/// Opens and reads the volume's sealed file.
fn unseal(
    sealed: &[u8],
    identities: Vec<keys::BoxedIdentity>,
    source: &impl CryptoSource,
) -> Result<Volume, Error> {
    let opened = Unlock::new(identities).open_bytes(sealed, source);
    let content = opened.map_err(|error| match error {
        wattlock_files::Error::NoMatchingKey => Error::NoMatchingKey,
        wattlock_files::Error::UnknownVersion { version, .. } => {
            Error::Newer(format!("version {version} of {FILE}"))
        }
        error => error.into(),
    })?;
    Volume::parse(&content)
}
