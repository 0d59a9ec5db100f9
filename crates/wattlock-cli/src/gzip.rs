//! `wattlock gzip`: compress and decompress files as gzip does, on all cores.
//!
//! As gzip does: the result takes the file's place (`-k` keeps both), with its owner, group, mode and times; without a
//! file, standard input goes to standard output; what is no regular file, is a link, has other names or a set-id bit is
//! left alone. Otherwise than gzip does: the result appears whole and on the disk or not at all, an access control list is
//! kept, and what follows the last member and is not padding is an error.

mod level;

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Seek};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;
use rustix::fs::FileType;
use wattlock::Runtime;
use wattlock_door::{Batch, Error as DoorError, Exit, Folder, Output, Seen, one_line};
use wattlock_files::{Error, Gzip, Input, Progress, Stored, Tally, gunzip_as, stored};
use wattlock_shell::INTERRUPTED;

use wattlock_shell::program::Told;

use crate::files::{about, closed, ends_the_run, is_dash, is_stdouts, length, refuse_mixture, shown};
use crate::lines::Line;
use crate::progress::{self, Bar};
use crate::wrong::{system, usage};
use wattlock_shell::date::civil;
use wattlock_shell::handed;
use wattlock_shell::setup::{self, Choice};

/// Compress files into gzip's format on all cores, or decompress them
#[derive(Debug, Args)]
pub struct Command {
    /// Files, each of which its result replaces; none or `-` for standard input and output
    #[arg(value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// Decompress
    #[arg(short, long, visible_alias = "uncompress")]
    decompress: bool,
    /// Keep the files
    #[arg(short, long)]
    keep: bool,
    /// Write to standard output, and keep the files
    #[arg(short = 'c', long, visible_alias = "to-stdout")]
    stdout: bool,
    /// Replace outputs that exist, links among them; compress what a link names, and files with other names; write to a
    /// terminal
    #[arg(short, long)]
    force: bool,
    /// Neither name nor time of the file in the result; neither from it with -d (as it is without -N)
    #[arg(short, long, overrides_with = "name")]
    no_name: bool,
    /// With -d and -l: the name and the time that are in the file
    #[arg(short = 'N', long, overrides_with = "no_name")]
    name: bool,
    /// Check the files, and write nothing
    #[arg(short, long)]
    test: bool,
    /// Tell lengths, and write nothing; with -v also checksum and time
    #[arg(short, long)]
    list: bool,
    /// Folders with all regular files in them; links in them are left out
    #[arg(short, long)]
    recursive: bool,
    /// Tell of each file what became of it (on standard error)
    #[arg(short, long, overrides_with = "quiet")]
    verbose: bool,
    /// No remark about what is left out with -r, and no heading of a list
    #[arg(short, long, visible_alias = "silent", overrides_with = "verbose")]
    quiet: bool,
    /// Print a line of JSON for each file (docs/use/command-line.md)
    #[arg(long, conflicts_with_all = ["stdout", "verbose"])]
    pub json: bool,
    /// The end of compressed files' names
    #[arg(short = 'S', long, value_name = "SUFFIX", default_value = ".gz", value_parser = parse_suffix)]
    suffix: String,
    /// Results are always on the disk before their files go
    #[arg(long, hide = true)]
    synchronous: bool,
    /// For scripts that give it; refused
    #[arg(long, hide = true)]
    rsyncable: bool,
    #[command(flatten)]
    level: level::Level,
}

/// Ends of names that gzip knows beside `-S`'s, and what they become.
const KNOWN: [(&str, &str); 7] =
    [(".gz", ""), (".tgz", ".tar"), (".taz", ".tar"), ("-gz", ""), (".z", ""), ("-z", ""), ("_z", "")];

fn parse_suffix(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains('/') || text.len() > 30 {
        true => Err("an end of a name: at most 30 bytes, without a slash".into()),
        false => Ok(text.to_owned()),
    }
}

/// Runs the command. Goes on after a file that fails; the first failure decides the exit code.
pub fn run(command: &Command, choice: &Choice) -> anyhow::Result<()> {
    if command.rsyncable {
        return Err(usage(
            "--rsyncable is not offered: cut the content before it is compressed, or use gzip's",
        ));
    }
    let dash = [PathBuf::from("-")];
    let inputs = if command.inputs.is_empty() { &dash[..] } else { &command.inputs[..] };
    if inputs.iter().filter(|input| is_dash(input)).count() > 1 {
        return Err(usage("standard input can be read once"));
    }
    let through = command.stdout || (inputs.iter().any(|input| is_dash(input)) && !command.writes_none());
    refuse_mixture(command.json, through)?;
    // The files go once their results are there: what an accelerator compresses, the CPU checks.
    let runtime = if command.decompresses() { None } else { Some(setup::runtime(choice, None, true)?) };
    let gzip = Gzip::new(command.level.number())?.named(!command.no_name);
    let mut run = Run {
        command,
        gzip,
        runtime,
        folder: None,
        batch: Batch::default(),
        waiting: Vec::new(),
        failure: None,
        stopped: false,
        listed: 0,
        total: Tally::default(),
    };
    for input in inputs {
        if run.stopped || run.file(input, !is_dash(input) && command.recursive).is_err() {
            break;
        }
    }
    run.finish();
    if command.list && !command.quiet && !command.json && inputs.len() > 1 && !run.stopped {
        run.list_line(run.total, None)?;
    }
    match run.failure {
        None => Ok(()),
        Some(error) => Err(anyhow::Error::new(error).context(Told)),
    }
}

impl Command {
    fn decompresses(&self) -> bool {
        self.decompress || self.test || self.list
    }

    /// Whether no file is written.
    fn writes_none(&self) -> bool {
        self.stdout || self.test || self.list
    }

    /// The name of a file's result; `None` if the file is none for this command.
    fn result_name(&self, name: &OsStr) -> Result<OsString, Error> {
        let bytes = name.as_bytes();
        let ends = |suffix: &str| bytes.len() > suffix.len() && bytes.ends_with(suffix.as_bytes());
        if !self.decompresses() {
            if !self.force
                && let Some(suffix) = [&*self.suffix, ".gz", ".tgz"].into_iter().find(|suffix| ends(suffix))
            {
                return Err(usage(format!("ends in {suffix} already")));
            }
            let mut name = name.to_owned();
            name.push(&self.suffix);
            return Ok(name);
        }
        let known = [(&*self.suffix, "")].into_iter().chain(KNOWN).find(|(suffix, _)| ends(suffix));
        match known {
            Some((suffix, instead)) => {
                let mut stem = OsStr::from_bytes(&bytes[..bytes.len() - suffix.len()]).to_owned();
                stem.push(instead);
                Ok(stem)
            }
            None => {
                let suffix = &self.suffix;
                Err(usage(format!("no {suffix} at the end, so the result needs a place: -c > FILE")))
            }
        }
    }

    /// Refuses what gzip leaves alone.
    fn refuse(&self, seen: Seen) -> Result<(), Error> {
        let left = |why: &str| Err(usage(why));
        match () {
            () if seen.mode & 0o4000 != 0 => left("has a set-user-ID bit: left as it is"),
            () if seen.mode & 0o2000 != 0 => left("has a set-group-ID bit: left as it is"),
            () if self.force => Ok(()),
            () if seen.mode & 0o1000 != 0 => left("has the sticky bit: -f takes it all the same"),
            () if seen.names > 1 => left("has other names (hard links): -f takes it all the same"),
            () => Ok(()),
        }
    }
}

/// One run over all files.
struct Run<'a> {
    command: &'a Command,
    gzip: Gzip,
    runtime: Option<Runtime>,
    /// The folder of the last file: most files share one.
    folder: Option<Folder>,
    batch: Batch,
    /// The files whose results wait in the batch.
    waiting: Vec<Waiting>,
    failure: Option<Error>,
    stopped: bool,
    listed: u64,
    total: Tally,
}

/// A file whose result is whole and has no name yet.
struct Waiting {
    input: PathBuf,
    original: Original,
    result: PathBuf,
    tally: Tally,
}

/// A file that is removed once its result is there.
struct Original {
    folder: Folder,
    name: OsString,
    /// As it was when it was opened, and the link to it if it is one.
    seen: Seen,
    link: Option<Seen>,
}

impl Original {
    /// # Errors
    /// [`wattlock_door::Error::InputChanged`] if the name is not that file's any more, or its content has changed.
    fn unchanged(&self) -> Result<(), DoorError> {
        let now = self.folder.look(&self.name)?;
        let expected = self.link.unwrap_or(self.seen);
        match now {
            Some(now) if (now.identity, now.content) == (expected.identity, expected.content) => Ok(()),
            _ => Err(DoorError::InputChanged),
        }
    }
}

impl Run<'_> {
    /// Does one file. Its failure is told; an error ends the run.
    fn file(&mut self, input: &Path, deep: bool) -> Result<(), ()> {
        let mut done = self.one(input, deep);
        // Results that wait take room beside their files, which go as soon as the results have their names.
        if matches!(done, Err(Error::Door(DoorError::DiskFull))) && !self.waiting.is_empty() {
            self.finish();
            if !self.stopped {
                done = self.one(input, deep);
            }
        }
        if let Err(error) = done {
            self.failed(input, error);
        }
        if self.batch.is_full() {
            self.finish();
        }
        if self.stopped { Err(()) } else { Ok(()) }
    }

    fn failed(&mut self, input: &Path, error: Error) {
        self.stopped |= ends_the_run(&error);
        let said = about(input, &error);
        eprintln!("wattlock: {said}");
        let line = Line::of(input).failed(&said, error.code());
        self.failure = self.failure.take().or(Some(error));
        self.put(line);
    }

    fn put(&mut self, line: Line) {
        if self.command.json
            && let Err(lost) = line.put()
        {
            self.failure = self.failure.take().or(Some(lost));
        }
    }

    fn one(&mut self, input: &Path, deep: bool) -> Result<(), Error> {
        let command = self.command;
        if is_dash(input) {
            if handed::closed(handed::INPUT) {
                return Err(closed("standard input", "name a file"));
            }
            return self.through(input, Input::Stdin);
        }
        let folder = self.folder_of(input)?;
        let name = input.file_name().ok_or_else(|| Error::Door(DoorError::IsFolder(input.to_owned())));
        let looked = match &name {
            Ok(name) => {
                folder.look(name)?.ok_or_else(|| Error::Door(DoorError::NotFound(input.to_owned())))?
            }
            // `..` and its like.
            Err(_) => return if deep { self.all_in(input) } else { name.map(drop) },
        };
        let name = name?;
        if looked.kind == FileType::Directory {
            return if deep {
                self.all_in(input)
            } else {
                Err(Error::Door(DoorError::IsFolder(input.to_owned())))
            };
        }
        if command.writes_none() {
            return self.through(input, Input::Path(input.to_owned()));
        }
        let link = (looked.kind == FileType::Symlink).then_some(looked);
        if link.is_some() && !command.force {
            return Err(usage("is a link: -f takes what it names, -c writes it elsewhere"));
        }
        let (file, seen) = folder.open_file(name, link.is_some()).map_err(|error| match error {
            DoorError::NotFound(_) => DoorError::NotFound(input.to_owned()),
            DoorError::NotRegular(_) => DoorError::NotRegular(input.to_owned()),
            error => error,
        })?;
        command.refuse(seen)?;
        let mut result = command.result_name(name)?;
        let mut time = None;
        if command.name && command.decompress {
            let again = file.try_clone().map_err(|error| unread(input, error))?;
            let told = self.stored(Input::File { file: again, name: input.to_owned() })?;
            time = told.time;
            result = told.name.map_or(result, OsString::from_vec);
            (&file).rewind().map_err(|error| unread(input, error))?;
        }
        let there = folder.look(&result)?.is_some_and(|there| is_stdouts(there.identity));
        refuse_mixture(command.json, there)?;
        if command.json && !command.keep && is_stdouts(seen.identity) {
            return Err(usage("--json prints into this file, which its result replaces: print elsewhere"));
        }
        let original = Original { folder: folder.clone(), name: name.to_owned(), seen, link };
        let (from, force) = (Input::File { file, name: input.to_owned() }, command.force);
        let at = folder.at(&result);
        let to = Output::File { folder, name: result, force, batch: self.batch.clone() };
        let tally = self.convert(input, from, to, time)?;
        self.waiting.push(Waiting { input: input.to_owned(), original, result: at, tally });
        Ok(())
    }

    fn convert(
        &self,
        input: &Path,
        from: Input,
        to: Output,
        time: Option<SystemTime>,
    ) -> Result<Tally, Error> {
        // What goes to a terminal, and what is told there line by line, shows how far it is.
        let shows = matches!(to, Output::Stdout) || self.command.list || self.command.json;
        let silent = self.command.quiet || (shows && progress::shows_output());
        let bar = Bar::new(silent, shown(input), length(input));
        let advance = |bytes: u64| bar.inc(bytes);
        let progress = Progress::new(&INTERRUPTED).on_bytes(&advance);
        let result = match &self.runtime {
            Some(runtime) => self.gzip.compress(from, to, runtime, progress),
            None => gunzip_as(from, to, time, progress),
        };
        bar.end();
        result
    }

    fn stored(&self, from: Input) -> Result<Stored, Error> {
        stored(from, Progress::new(&INTERRUPTED))
    }

    fn folder_of(&mut self, input: &Path) -> Result<Folder, Error> {
        let path = Folder::path_of(input);
        match &self.folder {
            Some(folder) if folder.path() == path => Ok(folder.clone()),
            _ => {
                let folder = Folder::open(path).map_err(|error| match error {
                    DoorError::NotFound(_) => DoorError::NotFound(input.to_owned()),
                    error => error,
                })?;
                self.folder = Some(folder.clone());
                Ok(folder)
            }
        }
    }

    /// All files in a folder. What is none for this command is passed over.
    fn all_in(&mut self, input: &Path) -> Result<(), Error> {
        let looking = |source| system::<Error>("looking into the folder", source);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(input).map_err(looking)? {
            names.push(entry.map_err(looking)?.file_name());
        }
        names.sort();
        for name in names {
            let path = input.join(&name);
            let kind = std::fs::symlink_metadata(&path).map(|meta| meta.file_type());
            let (folder, file) = kind.map_or((false, true), |kind| (kind.is_dir(), kind.is_file()));
            let passed_over = !folder && (!file || self.command.result_name(&name).is_err());
            if passed_over {
                if !self.command.quiet && !self.command.decompresses() {
                    eprintln!("wattlock: {}: left out", one_line(&path));
                }
                continue;
            }
            if self.file(&path, true).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Does what writes no file of its own.
    fn through(&mut self, input: &Path, from: Input) -> Result<(), Error> {
        let command = self.command;
        let quiet_sink = command.test || command.list;
        if handed::closed(handed::OUTPUT) && !command.test {
            return Err(closed("standard output", "name a file"));
        }
        if !command.decompresses() && !command.force && std::io::stdout().is_terminal() {
            return Err(usage("not writing compressed data to a terminal; use -f"));
        }
        let told = match (command.list, &from) {
            (true, Input::Path(path)) if path.is_file() => Some(self.stored(Input::Path(path.clone()))?),
            _ => None,
        };
        let to = if quiet_sink { Output::Stream(Box::new(std::io::sink())) } else { Output::Stdout };
        let tally = self.convert(input, from, to, None)?;
        if command.json {
            let line = Line::of(input).with("bytes", tally.content).with("packed", tally.packed);
            let line = line.with("crc32", format!("{:08x}", tally.checksum));
            return line.put();
        }
        if command.list {
            let name = self.listed_name(input, told.as_ref());
            let time = told.and_then(|told| told.time);
            return self.list_line(tally, Some((name, time)));
        }
        if command.verbose {
            let shown = if is_dash(input) { String::new() } else { format!("{}:\t ", one_line(input)) };
            match command.test {
                true => eprintln!("{shown}OK"),
                false => eprintln!("{shown}{}", self.ratio(&tally)),
            }
        }
        Ok(())
    }

    /// A list's name of a file: without the suffix, or what is in its header.
    fn listed_name(&self, input: &Path, told: Option<&Stored>) -> String {
        if is_dash(input) {
            return "stdout".to_owned();
        }
        let inside = told.and_then(|told| told.name.clone()).filter(|_| self.command.name);
        let own = self.command.result_name(input.file_name().unwrap_or_default());
        let name = inside.map(OsString::from_vec).or(own.ok());
        one_line(&name.map_or(input.to_owned(), |name| input.with_file_name(name)))
    }

    /// A line of `-l`, as gzip's; without a name the totals.
    fn list_line(&mut self, tally: Tally, of: Option<(String, Option<SystemTime>)>) -> Result<(), Error> {
        let command = self.command;
        if self.listed == 0 && !command.quiet {
            let more = if command.verbose { "method  crc     date  time  " } else { "" };
            say!("{more}{:>19} {:>19}  ratio uncompressed_name", "compressed", "uncompressed");
        }
        let figures = format!("{:>19} {:>19} {}", tally.packed, tally.content, unpacked_ratio(&tally));
        let Some((name, time)) = of else {
            say!("{}{figures} (totals)", if command.verbose { " ".repeat(28) } else { String::new() });
            return Ok(());
        };
        match command.verbose {
            true => say!("defla {:08x} {} {figures} {name}", tally.checksum, minute(time)),
            false => say!("{figures} {name}"),
        }
        self.listed += 1;
        self.total.content += tally.content;
        self.total.packed += tally.packed;
        self.total.around += tally.around;
        Ok(())
    }

    fn ratio(&self, tally: &Tally) -> String {
        match self.command.decompresses() {
            true => unpacked_ratio(tally),
            false => percent(tally.content as f64 - (tally.packed - tally.around) as f64, tally.content),
        }
    }

    /// Brings what waits to the disk and to its name, and removes the files that it replaces.
    fn finish(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let results = self.batch.finish(|index| waiting[index].original.unchanged());
        for (done, result) in waiting.into_iter().zip(results) {
            let result = result.and_then(|()| match self.command.keep {
                true => Ok(()),
                // What was written to it since its result was made is in no other place.
                false => {
                    done.original.unchanged().and_then(|()| done.original.folder.remove(&done.original.name))
                }
            });
            match result {
                Ok(()) if self.command.verbose => {
                    let (input, result) = (one_line(&done.input), one_line(&done.result));
                    let how = if self.command.keep { "created" } else { "replaced with" };
                    eprintln!("{input}:\t{} -- {how} {result}", self.ratio(&done.tally));
                }
                Ok(()) => {
                    let line = Line::of(&done.input).name("output", &done.result);
                    self.put(line.with("bytes", done.tally.content).with("packed", done.tally.packed));
                }
                Err(error) => self.failed(&done.input, error.into()),
            }
        }
    }
}

/// gzip's figure for what decompressing gave.
fn unpacked_ratio(tally: &Tally) -> String {
    percent(tally.content as f64 - tally.packed.saturating_sub(tally.around) as f64, tally.content)
}

fn percent(saved: f64, of: u64) -> String {
    format!("{:5.1}%", if of == 0 { 0.0 } else { 100.0 * saved / of as f64 })
}

/// A time as gzip's list has it, in UTC: this program knows no time zones.
fn minute(time: Option<SystemTime>) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let Some(seconds) = time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok()) else {
        return " ".repeat(12);
    };
    let (days, second) = (seconds.as_secs() / 86_400, seconds.as_secs() % 86_400);
    let (_, month, day) = civil(days);
    let month = MONTHS[month as usize - 1];
    format!("{month} {day:>2} {:02}:{:02}", second / 3600, second % 3600 / 60)
}

fn unread(input: &Path, source: std::io::Error) -> Error {
    system(format!("reading {}", one_line(input)), source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_calendar_minutes() {
        let at = |seconds| minute(Some(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds)));
        assert_eq!(at(951_782_400), "Feb 29 00:00");
        assert_eq!(at(951_868_799), "Feb 29 23:59");
        assert_eq!(at(4_107_542_400), "Mar  1 00:00");
        assert_eq!(at(1_767_225_599), "Dec 31 23:59");
    }
}
