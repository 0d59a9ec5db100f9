//! The volumes that this machine has opened, in the manner of ssh's known hosts.
//!
//! Storage can be exchanged and rolled back; what is remembered here cannot, by its writer. One file, `volumes`, has a
//! line for each path: the volume's fingerprint, its newest keys and settings, its openers, those that were removed, and
//! the highest epoch of this machine's journal. The succession key in it opens nothing. The file knows nothing of what is
//! in a volume.
//!
//! | found, compared with what is known | to be written | only read |
//! |---|---|---|
//! | another fingerprint at the same path | refused | refused |
//! | older keys, keys of no successor, a removed opener without newer settings, an older journal | refused | a line |
//! | newer keys or settings | recorded | recorded |
//! | a known volume at another path | recorded | not recorded: it is a copy |
//! | what is older than known at another path | refused, unless the user accepted it here once | a line |
//! | nothing is known | recorded | recorded |
//!
//! What is known is read before the volume is: another command may write both meanwhile.
//!
//! A volume is known by the path that was given and by that without links. The storage may put a link in the volume's
//! place, so the second alone would be the storage's choice.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use wattlock::Dispatcher;
use wattlock_door::{Exit, one_line};
use wattlock_fs::Error;
use wattlock_fs::content::Age;
use wattlock_fs::volume::{Volume, hex, unhex};
use zeroize::Zeroizing;

/// Where root's programs keep their state.
const ROOTS: &str = "/var/lib/wattlock";
/// Names another folder, for tests; as little believed in a set-uid program as the others.
const VARIABLE: &str = "WATTLOCK_STATE_DIR";
const FILE: &str = "volumes";
const FIRST: &str = "wattlock known volumes 1";
/// Longest file accepted.
const FILE_MAX: u64 = 64 << 20;
/// Removed openers that are remembered of a volume: the latest.
const GONE_MAX: usize = 1000;

/// Why a volume is not opened, by what this machine knows of it.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Its fingerprint is another's.
    #[error("{0}: another volume is in its place ({1}, not {2}); if you put it there: --accept-changed")]
    Another(String, String, String),
    /// Its fingerprint is not the one that the user gave.
    #[error("{0}: its fingerprint is {1}, and {2} is expected")]
    Unexpected(String, String, String),
    /// Its keys are older than known.
    #[error("{0}: an older copy of the volume: keys of generation {1}, and {2} is known here{RESTORED}")]
    Older(String, u32, u32),
    /// Its keys are those of no holder of the keys that are known.
    #[error(
        "{0}: keys of generation {1} that no holder of its keys has made: a removed key may have{RESTORED}"
    )]
    Unproved(String, u32),
    /// An opener that was removed is there again, in settings that are not newer.
    #[error("{0}: removed keys are back in older settings: {1}{RESTORED}")]
    Returned(String, String),
    /// Its journal is older than known, and would change files.
    #[error("{0}: an older wattlock.journal: epoch {1}, and {2} is known here{RESTORED}")]
    Journal(String, u64, u64),
}

const RESTORED: &str = "; if it was restored from a backup: --accept-changed";

/// Exit code and meaning of each.
pub const fn exit_codes() -> &'static [(u8, &'static str)] {
    &[
        (91, "another volume in the place of a known or expected one"),
        (92, "older copy of a known volume"),
        (93, "known volume with keys that were removed, or that no holder of its keys made"),
        (94, "older journal of a known volume"),
    ]
}

impl Exit for Refused {
    fn code(&self) -> u8 {
        match self {
            Refused::Another(..) | Refused::Unexpected(..) => 91,
            Refused::Older(..) => 92,
            Refused::Unproved(..) | Refused::Returned(..) => 93,
            Refused::Journal(..) => 94,
        }
    }
}

/// What a command does to the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Read,
    Write,
}

/// What the user says of it.
#[derive(Debug, Clone, Default)]
pub struct Said {
    /// The only fingerprint that is accepted.
    pub expect: Option<String>,
    /// Whatever changed is accepted, and recorded.
    pub accept: bool,
}

/// What is known of one volume at one path.
#[derive(Clone, PartialEq, Eq)]
struct Line {
    path: PathBuf,
    fingerprint: String,
    generation: u32,
    succession: Zeroizing<[u8; 32]>,
    revision: u64,
    /// The origin of the journal that this machine began, and its highest epoch.
    journal: Option<([u8; 8], u64)>,
    openers: Vec<(String, [u8; 16])>,
    gone: Vec<[u8; 16]>,
    /// The user has accepted here what is older than the same volume at another path.
    apart: bool,
}

/// What was known when the volume was not read yet.
pub struct Book {
    /// Where it is kept, or why nowhere.
    place: Result<PathBuf, String>,
    lines: Vec<Line>,
}

/// A volume that was found to be the one that is known, or is known from now on.
pub struct Known {
    place: Option<PathBuf>,
    line: Line,
    /// Its path without links.
    real: PathBuf,
    usage: Use,
    /// A copy that is only read changes nothing.
    records: bool,
    said: Said,
    refused: Option<Refused>,
}

impl Book {
    /// What is known now.
    pub fn load() -> Book {
        Book::at(place())
    }

    fn at(place: Result<PathBuf, String>) -> Book {
        let read = place.and_then(|place| match read(&place) {
            Ok(lines) => Ok((place, lines)),
            Err(why) => Err(format!("{}: {why}", one_line(&place.join(FILE)))),
        });
        match read {
            Ok((place, lines)) => Book { place: Ok(place), lines },
            Err(why) => Book { place: Err(why), lines: Vec::new() },
        }
    }

    /// Compares a volume with what is known, and records it.
    ///
    /// # Errors
    /// [`Refused`]; those of the engines.
    pub fn meet(
        self,
        path: &Path,
        volume: &Volume,
        usage: Use,
        said: &Said,
        crypto: &mut Dispatcher,
    ) -> anyhow::Result<Known> {
        let given = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let real = path.canonicalize().unwrap_or_else(|_| given.clone());
        let (shown, now) = (one_line(&given), Line::of(given, volume, crypto)?);
        let own = || self.lines.iter().filter(|line| line.path == now.path || line.path == real);
        let other = own().find(|own| own.fingerprint != now.fingerprint && !said.accept);
        match (&said.expect, other) {
            (Some(expected), _) if *expected != now.fingerprint => {
                return Err(Refused::Unexpected(shown, now.fingerprint, expected.clone()).into());
            }
            (None, Some(other)) => {
                return Err(Refused::Another(shown, now.fingerprint, other.fingerprint.clone()).into());
            }
            _ => {}
        }
        // The path that was given and that without links are one place: what is known of either counts.
        let own = own().filter(|own| own.fingerprint == now.fingerprint).cloned().reduce(Line::with);
        let same = self.lines.iter().filter(|line| line.fingerprint == now.fingerprint);
        let known = match (&own, same.cloned().reduce(Line::with)) {
            (Some(own), Some(all)) if !own.apart => Some(Line { journal: own.journal, ..all }),
            (own, all) => own.clone().or(all),
        };
        let known = known.as_ref();
        let copy = usage == Use::Read && own.is_none() && known.is_some();
        let wrong = known.map_or(Ok(None), |known| known.judge(&now, volume, crypto))?;
        let elsewhere = self.lines.iter().filter(|line| line.fingerprint == now.fingerprint);
        let elsewhere =
            elsewhere.filter(|line| line.path != now.path && line.path != real).cloned().reduce(Line::with);
        // Until it has what is known elsewhere.
        let apart = match elsewhere.filter(|_| said.accept || own.is_some_and(|own| own.apart)) {
            Some(elsewhere) => elsewhere.judge(&now, volume, crypto)?.is_some(),
            None => false,
        };
        let refused = wrong.filter(|_| !said.accept);
        let is_refused = refused.is_some();
        match refused {
            Some(refused) if usage == Use::Write => return Err(refused.into()),
            Some(refused) => eprintln!("wattlock: {refused}; it is only read, and nothing is recorded"),
            None => {}
        }
        let line = match known {
            Some(known) if !said.accept && !is_refused => {
                known.say_changes(&now, volume, &shown);
                known.then(now)
            }
            _ => now,
        };
        let line = Line { apart, ..line };
        let place = match self.place {
            Ok(place) => Some(place),
            Err(why) => {
                // A fingerprint that was given needs no memory.
                if said.expect.is_none() {
                    not_kept(&why);
                }
                None
            }
        };
        let records = said.accept || !is_refused && !copy;
        let known = Known { place, line, real, usage, records, said: said.clone(), refused: None };
        if !known.lines().iter().all(|line| self.lines.contains(line)) {
            known.save(said.accept, false);
        }
        Ok(known)
    }
}

impl Known {
    /// Records a volume that this program has just made.
    ///
    /// # Errors
    /// Those of the engines.
    pub fn made(path: &Path, volume: &Volume, crypto: &mut Dispatcher) -> anyhow::Result<Known> {
        Book::load().meet(path, volume, Use::Write, &Said { expect: None, accept: true }, crypto)
    }

    /// What tells the volume from every other.
    pub fn fingerprint(&self) -> &str {
        &self.line.fingerprint
    }

    /// Records what this program has just written.
    ///
    /// # Errors
    /// Those of the engines.
    pub fn record(&mut self, volume: &Volume, crypto: &mut Dispatcher) -> anyhow::Result<()> {
        let now = Line::of(self.line.path.clone(), volume, crypto)?;
        self.line = self.line.then(now);
        self.save(false, false);
        Ok(())
    }

    /// Compares the age of a journal with what is known: to be called when it was read and nothing of it was repeated yet. A
    /// journal that repeats nothing takes nothing back. One that this machine did not begin may be of any age: a program
    /// that synchronises folders brings it. Returns as what the journal goes on: this machine's, if it has begun one.
    ///
    /// # Errors
    /// [`Refused::Journal`].
    pub fn journal(&mut self, age: &Age) -> Result<Option<([u8; 8], u64)>, Refused> {
        let Some((origin, known)) = self.line.journal else { return Ok(None) };
        let older = age.origin == origin && age.epoch < known && !self.said.accept;
        let refused = || Refused::Journal(one_line(&self.line.path), age.epoch, known);
        match (older, age.repeats, self.usage) {
            (false, ..) => {}
            (true, true, Use::Write) => return Err(refused()),
            (true, true, Use::Read) => {
                eprintln!("wattlock: {}; it is only read, and nothing is recorded", refused());
            }
            (true, false, _) => {
                let (path, epoch) = (one_line(&self.line.path), age.epoch);
                eprintln!(
                    "wattlock: {path}: wattlock.journal is older than known here (epoch {epoch}, not {known}); it \
                     changes nothing"
                );
            }
        }
        Ok(Some((origin, known)))
    }

    /// Records how old the journal is that this program writes.
    pub fn note(&mut self, age: &Age) {
        let journal = Some((age.origin, age.epoch));
        if self.usage == Use::Write && self.line.journal != journal {
            self.line.journal = journal;
            self.save(false, true);
        }
    }

    /// As [`Known::journal`], for what starts contents: what was refused is kept for [`Known::refused`].
    pub fn judge(&mut self, age: &Age) -> Result<Option<([u8; 8], u64)>, Error> {
        self.journal(age).map_err(|refused| {
            let said = Error::Usage(refused.to_string());
            self.refused = Some(refused);
            said
        })
    }

    /// Why a start was refused, if it was because of the journal; else its own error.
    pub fn refused(&mut self, error: Error) -> anyhow::Error {
        self.refused.take().map_or_else(|| error.into(), Into::into)
    }

    /// What is recorded: a line for each path.
    fn lines(&self) -> Vec<Line> {
        let mut lines = vec![self.line.clone()];
        if self.real != self.line.path {
            lines.push(Line { path: self.real.clone(), ..self.line.clone() });
        }
        lines
    }

    /// Records it; with `accepted`, which is true of what was found and not of what comes later, in the place of whatever is
    /// known by now.
    fn save(&self, accepted: bool, counted: bool) {
        let Some(place) = self.place.as_ref().filter(|_| self.records) else { return };
        if let Err(why) = write(place, &self.lines(), accepted, counted)
            && self.said.expect.is_none()
        {
            not_kept(&format!("{}: {why}", one_line(place)));
        }
    }
}

/// Said where the memory fails: the command goes on.
fn not_kept(why: &str) {
    eprintln!(
        "wattlock: this volume is not remembered, so another one in its place would not be noticed: {why}"
    );
}

impl Line {
    fn of(path: PathBuf, volume: &Volume, crypto: &mut Dispatcher) -> Result<Line, wattlock_fs::Error> {
        let mut openers = Vec::new();
        for opener in &volume.openers {
            openers.push((opener.name.clone(), volume.mark(opener, crypto)?));
        }
        Ok(Line {
            path,
            fingerprint: volume.fingerprint(crypto)?,
            generation: volume.generation(),
            succession: volume.succession(crypto)?,
            revision: volume.revision,
            journal: None,
            openers,
            gone: Vec::new(),
            apart: false,
        })
    }

    /// What is wrong with a volume of this fingerprint.
    ///
    /// Settings of fewer changes are not refused as such. Two machines that change them at the same time make two of one
    /// revision, and a synchroniser keeps either. What harms is a removed opener that is there again.
    fn judge(
        &self,
        now: &Line,
        volume: &Volume,
        crypto: &mut Dispatcher,
    ) -> Result<Option<Refused>, wattlock_fs::Error> {
        let path = one_line(&now.path);
        if now.generation < self.generation {
            return Ok(Some(Refused::Older(path, now.generation, self.generation)));
        }
        if !volume.descends(self.generation, &self.succession, crypto)? {
            return Ok(Some(Refused::Unproved(path, now.generation)));
        }
        let back = now.openers.iter().filter(|(_, mark)| self.gone.contains(mark));
        let back: Vec<&str> = back.map(|(name, _)| name.as_str()).collect();
        let refused = now.revision <= self.revision && !back.is_empty();
        Ok(refused.then(|| Refused::Returned(path, back.join(", "))))
    }

    /// Says which openers came and went since this was recorded.
    fn say_changes(&self, now: &Line, volume: &Volume, shown: &str) {
        let new =
            now.openers.iter().zip(&volume.openers).filter(|(opener, _)| !self.openers.contains(opener));
        for (_, opener) in new {
            let (name, recipient) = (&opener.name, &opener.recipient);
            eprintln!("wattlock: {shown}: new since it was last opened here: key {name}, {recipient}");
        }
        for (name, _) in self.openers.iter().filter(|opener| !now.openers.contains(opener)) {
            eprintln!("wattlock: {shown}: removed since it was last opened here: key {name}");
        }
    }

    /// What two lines of one volume say together.
    fn with(self, other: Line) -> Line {
        let age = |line: &Line| (line.generation, line.revision);
        let (mut newer, older) = if age(&self) >= age(&other) { (self, other) } else { (other, self) };
        let gone = older.gone.iter().filter(|mark| !newer.openers.iter().any(|(_, there)| there == *mark));
        newer.gone = gone.chain(&newer.gone).copied().collect();
        newer.gone.sort_unstable();
        newer.gone.dedup();
        newer.apart |= older.apart;
        newer.journal = newer
            .journal
            .max(older.journal.filter(|(origin, _)| newer.journal.is_none_or(|(newer, _)| newer == *origin)));
        newer
    }

    /// What is known once this volume was seen so.
    fn then(&self, now: Line) -> Line {
        let there = |mark: &[u8; 16]| now.openers.iter().any(|(_, now)| now == mark);
        let before = self.gone.iter().chain(self.openers.iter().map(|(_, mark)| mark));
        let mut gone: Vec<[u8; 16]> = Vec::new();
        for mark in before {
            if !there(mark) && !gone.contains(mark) {
                gone.push(*mark);
            }
        }
        gone.drain(..gone.len().saturating_sub(GONE_MAX));
        let revision = self.revision.max(now.revision);
        Line { revision, journal: self.journal, gone, apart: self.apart, ..now }
    }

    fn parse(text: &str) -> Option<Line> {
        let mut words = text.split(' ');
        let mut word = || words.next();
        let list = |text: &str| match text {
            "-" => Vec::new(),
            text => text.split(',').map(str::to_owned).collect::<Vec<_>>(),
        };
        let mark = |text: &str| unhex::<16>(text).map(|mark| *mark);
        let fingerprint = word()?.to_owned();
        let generation = word()?.parse().ok()?;
        let succession = unhex(word()?)?;
        let revision = word()?.parse().ok()?;
        let journal = match word()?.split_once(':') {
            Some((origin, epoch)) => Some((*unhex::<8>(origin)?, epoch.parse().ok()?)),
            None => None,
        };
        let opener =
            |text: String| text.split_once(':').and_then(|(name, of)| Some((name.to_owned(), mark(of)?)));
        let openers = list(word()?).into_iter().map(opener).collect::<Option<_>>()?;
        let gone = list(word()?).iter().map(|text| mark(text)).collect::<Option<_>>()?;
        let apart = match word()? {
            "-" => false,
            "apart" => true,
            _ => return None,
        };
        let path = unescape(word()?)?;
        words.next().is_none().then_some(Line {
            path,
            fingerprint,
            generation,
            succession,
            revision,
            journal,
            openers,
            gone,
            apart,
        })
    }

    fn text(&self) -> String {
        let list = |texts: Vec<String>| if texts.is_empty() { "-".to_owned() } else { texts.join(",") };
        let openers = self.openers.iter().map(|(name, mark)| format!("{name}:{}", *hex(mark))).collect();
        let gone = self.gone.iter().map(|mark| hex(mark).to_string()).collect();
        let journal = self.journal.map(|(origin, epoch)| format!("{}:{epoch}", *hex(&origin)));
        format!(
            "{} {} {} {} {} {} {} {} {}\n",
            self.fingerprint,
            self.generation,
            *hex(&self.succession[..]),
            self.revision,
            journal.as_deref().unwrap_or("-"),
            list(openers),
            list(gone),
            if self.apart { "apart" } else { "-" },
            escape(&self.path)
        )
    }
}

/// A path as one word: bytes other than visible ASCII, and `%`, as `%` and two digits.
fn escape(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'%' => text.push_str("%25"),
            byte if byte.is_ascii_graphic() => text.push(char::from(*byte)),
            byte => text.push_str(&format!("%{byte:02x}")),
        }
    }
    text
}

fn unescape(text: &str) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        bytes.push(unhex::<1>(part.get(..2)?)?[0]);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    Some(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

/// The folder of this user's state.
fn place() -> Result<PathBuf, String> {
    let elevated = wattlock::elevated();
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(place) = variable(VARIABLE).filter(|_| !elevated) {
        return Ok(place);
    }
    if rustix::process::geteuid().is_root() {
        return Ok(ROOTS.into());
    }
    if elevated {
        return Err("this process has more rights than its caller".into());
    }
    let state = variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")));
    state
        .map(|state| state.join("wattlock"))
        .ok_or_else(|| "neither XDG_STATE_HOME nor HOME names a folder".into())
}

/// The lines of the file; none if there is no file.
fn read(place: &Path) -> Result<Vec<Line>, String> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(place.join(FILE));
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.to_string()),
    };
    let meta = file.metadata().map_err(|error| error.to_string())?;
    let own = meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o022 == 0;
    if !own {
        return Err("not a file that only this user may write".into());
    }
    let mut text = Zeroizing::new(String::new());
    file.take(FILE_MAX).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let mut lines = text.lines().enumerate();
    match lines.next() {
        None => return Ok(Vec::new()),
        Some((_, FIRST)) => {}
        Some(_) => return Err("made by a newer program?".into()),
    }
    lines.map(|(at, line)| Line::parse(line).ok_or_else(|| format!("line {} is damaged", at + 1))).collect()
}

/// Puts lines in place of those of their paths. One that another command wrote meanwhile stays if it is of newer keys or
/// settings, and so does its journal unless this command `counted` that; but not if the user `accepted` this one.
fn write(place: &Path, new: &[Line], accepted: bool, counted: bool) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    DirBuilder::new().recursive(true).mode(0o700).create(place).map_err(failed)?;
    let lock =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(place.join("lock"));
    let lock = lock.map_err(failed)?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
    let mut lines = read(place)?;
    let age = |line: &Line| (line.generation, line.revision);
    for line in new {
        match lines.iter_mut().find(|known| known.path == line.path) {
            Some(known) if !accepted && known.fingerprint == line.fingerprint => {
                let journal = match (known.journal, line.journal) {
                    (Some((of, known)), Some((origin, epoch))) if of == origin => {
                        Some((of, known.max(epoch)))
                    }
                    (known, line) if counted => line.or(known),
                    (known, line) => known.or(line),
                };
                if age(known) <= age(line) {
                    known.clone_from(line);
                }
                known.journal = journal;
            }
            Some(known) => *known = line.clone(),
            None => lines.push(line.clone()),
        }
    }
    let text = lines.iter().fold(format!("{FIRST}\n"), |text, line| text + &line.text());
    // Readable by this user only, as this maker of files has it.
    let mut file = tempfile::NamedTempFile::new_in(place).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    file.persist(place.join(FILE)).map_err(|error| failed(error.error))?;
    File::open(place).and_then(|folder| folder.sync_all()).map_err(failed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn line(path: &str) -> Line {
        Line {
            path: path.into(),
            fingerprint: "00000-11111-22222-33333-44444".into(),
            generation: 3,
            succession: Zeroizing::new([7; 32]),
            revision: 9,
            journal: Some(([5; 8], 5)),
            openers: vec![("laptop".into(), [1; 16]), ("a.b-c_d".into(), [2; 16])],
            gone: vec![[3; 16], [4; 16]],
            apart: false,
        }
    }

    fn known(place: &Path, usage: Use, accept: bool) -> Known {
        let line = read(place).unwrap().into_iter().next().unwrap_or_else(|| line("/v"));
        let said = Said { expect: None, accept };
        let place = Some(place.to_owned());
        Known { place, line, real: "/v".into(), usage, records: true, said, refused: None }
    }

    #[test]
    fn what_is_written_is_read_again_whatever_the_path_is() {
        let folder = tempfile::tempdir().unwrap();
        let strange = std::ffi::OsString::from_vec(b"/a b/100%\n\xff%41".to_vec());
        let mut lines = vec![line("/v"), line("/"), Line { path: strange.into(), ..line("") }];
        lines[1].openers.clear();
        lines[0].apart = true;
        lines[1].gone.clear();
        write(folder.path(), &lines[..2], false, false).unwrap();
        write(folder.path(), &lines[1..], false, false).unwrap();
        assert!(read(folder.path()).unwrap() == lines);
        for bad in [
            "",
            "x",
            &lines[0].text().trim().replace("laptop:", "laptop"),
            &format!("{} x", lines[0].text().trim()),
        ] {
            assert!(Line::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn an_older_journal_is_refused_only_if_it_would_change_files() {
        let folder = tempfile::tempdir().unwrap();
        let (place, mut writer) = (folder.path(), known(folder.path(), Use::Write, false));
        let recorded = || {
            let lines = read(place).unwrap();
            lines[0].journal.unwrap().1
        };
        let age = |epoch, repeats| Age { origin: [5; 8], epoch, repeats };
        assert_eq!(writer.journal(&age(5, true)).unwrap(), Some(([5; 8], 5)));
        writer.note(&age(8, false));
        assert_eq!(recorded(), 8);
        let refused = known(place, Use::Write, false).journal(&age(7, true)).unwrap_err();
        assert_eq!(refused.code(), 94);
        known(place, Use::Read, false).journal(&age(7, true)).unwrap();
        assert_eq!(recorded(), 8, "what is only read changes nothing");
        let other = Age { origin: [9; 8], epoch: 1, repeats: true };
        known(place, Use::Write, false).journal(&other).unwrap();
        assert_eq!(recorded(), 8, "another machine's journal");
        let goes_on = known(place, Use::Write, false).journal(&age(7, false)).unwrap();
        assert_eq!(goes_on, Some(([5; 8], 8)), "what repeats nothing is taken, and the epoch goes on");
        known(place, Use::Write, true).journal(&age(2, true)).unwrap();
    }

    #[test]
    fn a_slower_command_takes_nothing_newer_back() {
        let folder = tempfile::tempdir().unwrap();
        let newer = Line { revision: 10, journal: Some(([5; 8], 8)), ..line("/v") };
        write(folder.path(), std::slice::from_ref(&newer), false, true).unwrap();
        write(folder.path(), &[line("/v")], false, false).unwrap();
        assert!(read(folder.path()).unwrap() == [newer]);
        write(folder.path(), &[line("/v")], true, false).unwrap();
        assert!(read(folder.path()).unwrap() == [line("/v")], "but what the user accepts");
    }

    #[test]
    fn what_was_accepted_does_not_take_back_what_came_later() {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = known(folder.path(), Use::Write, true);
        mount.save(true, false);
        let rotated = Line { generation: 4, gone: vec![[9; 16]], ..line("/v") };
        write(folder.path(), std::slice::from_ref(&rotated), false, false).unwrap();
        mount.note(&Age { origin: [5; 8], epoch: 9, repeats: false });
        let lines = read(folder.path()).unwrap();
        assert!(lines[0] == Line { journal: Some(([5; 8], 9)), ..rotated });
    }

    #[test]
    fn every_refusal_is_one_line_with_a_listed_code() {
        let path = || one_line(Path::new("/a\nb"));
        let all = [
            Refused::Another(path(), "x".into(), "y".into()),
            Refused::Unexpected(path(), "x".into(), "y".into()),
            Refused::Older(path(), 1, 2),
            Refused::Unproved(path(), 3),
            Refused::Returned(path(), "laptop".into()),
            Refused::Journal(path(), 1, 2),
        ];
        for refused in all {
            assert!(!refused.to_string().contains('\n'), "{refused}");
            assert!(exit_codes().iter().any(|(code, _)| *code == refused.code()), "{refused}");
        }
    }
}
