//! Reading `openssl.cnf` as OpenSSL reads it (config(5)): sections that may be opened again, the last of two values
//! wins, included files continue the section they are included in and leave theirs open.
//!
//! It finds out what a file says; it writes nothing. Variables are not expanded: a value with one in it is *computed*,
//! and the code that needs to know it says that it is not known.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// How deep included files may include others before it is taken for a circle.
const DEPTH: usize = 16;

/// One `name = value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    /// Without quotes and escapes; as written if it is computed.
    pub value: String,
    /// Whether it has a variable in it.
    pub computed: bool,
    /// `line 12`, with the file's name if it was included.
    pub place: String,
}

/// What a file and those it includes say.
#[derive(Debug, Default)]
pub struct Conf {
    sections: BTreeMap<String, Vec<Entry>>,
    /// The section that is open at the end.
    pub last: String,
    include_dir: Option<PathBuf>,
}

impl Conf {
    /// Reads a file's text. Bytes that are not UTF-8 are taken as some other letter: they occur in comments.
    ///
    /// # Errors
    /// The line that OpenSSL would stumble over, and why.
    pub fn read(text: &[u8]) -> Result<Conf> {
        let mut conf = Conf {
            last: "default".to_owned(),
            include_dir: std::env::var_os("OPENSSL_CONF_INCLUDE").map(PathBuf::from),
            ..Conf::default()
        };
        conf.sections.insert("default".to_owned(), Vec::new());
        conf.take(text, None, 0)?;
        Ok(conf)
    }

    /// The value that counts.
    pub fn get(&self, section: &str, name: &str) -> Option<&Entry> {
        self.sections.get(section)?.iter().rev().find(|entry| entry.name == name)
    }

    /// Entries of a section, each name once, in the order in which OpenSSL goes through them.
    pub fn entries(&self, section: &str) -> Vec<&Entry> {
        let all = self.sections.get(section).map_or(&[][..], Vec::as_slice);
        let replaced = |at: usize, name: &str| all[at + 1..].iter().any(|later| later.name == name);
        all.iter()
            .enumerate()
            .filter(|(at, entry)| !replaced(*at, &entry.name))
            .map(|(_, entry)| entry)
            .collect()
    }

    /// Whether there is a section of that name.
    pub fn has(&self, section: &str) -> bool {
        self.sections.contains_key(section)
    }

    fn take(&mut self, text: &[u8], file: Option<&Path>, depth: usize) -> Result<()> {
        let text = String::from_utf8_lossy(text);
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let mut whole = String::new();
        let mut first = None;
        for (number, line) in text.split('\n').enumerate() {
            let line = line.trim_end_matches('\r');
            let start = *first.get_or_insert(number + 1);
            if continues(line) {
                whole.push_str(&line[..line.len() - 1]);
                continue;
            }
            whole.push_str(line);
            first = None;
            let place = match file {
                None => format!("line {start}"),
                Some(file) => format!("{}, line {start}", file.display()),
            };
            self.line(&std::mem::take(&mut whole), place, depth)?;
        }
        Ok(())
    }

    fn line(&mut self, line: &str, place: String, depth: usize) -> Result<()> {
        let line = without_comment(line).trim();
        if line.is_empty() {
            return Ok(());
        }
        if let Some(rest) = line.strip_prefix('[') {
            let Some((name, _)) = rest.split_once(']') else {
                bail!("{place}: a section without its closing ]")
            };
            self.last = name.trim().to_owned();
            self.sections.entry(self.last.clone()).or_default();
            return Ok(());
        }
        if let Some(path) = directive(line, ".include") {
            return self.include(&value_of(path).0, &place, depth);
        }
        if let Some(pragma) = directive(line, ".pragma") {
            if let Some((_, folder)) = pragma.split_once(':').filter(|(key, _)| key.trim() == "includedir")
                && std::env::var_os("OPENSSL_CONF_INCLUDE").is_none()
            {
                self.include_dir = Some(PathBuf::from(folder.trim()));
            }
            return Ok(());
        }
        let Some((name, value)) = line.split_once('=') else {
            bail!("{place}: neither a section nor name = value")
        };
        let (section, name) = match name.trim().split_once("::") {
            Some((section, name)) => (section.to_owned(), name.trim()),
            None => (self.last.clone(), name.trim()),
        };
        if name.contains(char::is_whitespace) {
            bail!("{place}: neither a section nor name = value");
        }
        let (value, computed) = value_of(value.trim());
        let entry = Entry { name: name.to_owned(), value, computed, place };
        self.sections.entry(section).or_default().push(entry);
        Ok(())
    }

    /// A file that is not there is passed over, as OpenSSL does.
    fn include(&mut self, path: &str, place: &str, depth: usize) -> Result<()> {
        if depth == DEPTH {
            bail!("{place}: files include each other in a circle");
        }
        let path = match &self.include_dir {
            Some(folder) => folder.join(path),
            None => PathBuf::from(path),
        };
        let mut files = vec![path.clone()];
        if path.is_dir() {
            files = std::fs::read_dir(&path)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
            files.retain(|file| file.extension().is_some_and(|end| end == "cnf" || end == "conf"));
            files.sort();
        }
        for file in files {
            if let Ok(text) = std::fs::read(&file) {
                self.take(&text, Some(&file), depth + 1)?;
            }
        }
        Ok(())
    }
}

/// Whether the next line belongs to this one.
pub fn continues(line: &str) -> bool {
    line.ends_with('\\') && !line.ends_with("\\\\")
}

fn directive<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(name)?;
    let value = rest.trim_start();
    if let Some(value) = value.strip_prefix('=') {
        return Some(value.trim());
    }
    (value.len() < rest.len()).then_some(value)
}

/// A line up to its comment: a `#` that is neither quoted nor escaped.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        if std::mem::take(&mut escaped) {
            continue;
        }
        match (quote, c) {
            (None, '#') => return &line[..at],
            (None | Some('\''), '\\') => escaped = true,
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            _ => {}
        }
    }
    line
}

/// A value without quotes and escapes, and whether a variable makes it unknown.
fn value_of(written: &str) -> (String, bool) {
    let mut value = String::new();
    let mut quote = None;
    let mut rest = written.chars().peekable();
    while let Some(c) = rest.next() {
        match (quote, c) {
            (None, '$') => return (written.to_owned(), true),
            (Some('"'), '"') if rest.peek() == Some(&'"') => value.extend(rest.next()),
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            (Some('\''), '\\') => value.extend(rest.next()),
            (None, '\\') => value.extend(rest.next().map(|c| match c {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'b' => '\u{8}',
                other => other,
            })),
            _ => value.push(c),
        }
    }
    (value, false)
}

/// A value as it must be written so that OpenSSL reads it as it is.
///
/// # Errors
/// A value that no line can hold.
pub fn written(value: &str) -> Result<String> {
    if value.contains(char::is_control) || value != value.trim() {
        bail!("{value:?}: no line of openssl.cnf can hold this");
    }
    let special = |c: char| matches!(c, '\\' | '#' | '$' | '"' | '\'');
    Ok(value.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str, section: &str, name: &str) -> String {
        Conf::read(text.as_bytes()).unwrap().get(section, name).unwrap().value.clone()
    }

    #[test]
    fn sections_reopen_and_the_last_value_wins() {
        let text = "a = 0\n[ x ]\r\na = 1 # one\n[y]\na = 2\n[x]\na = 3\nx::b = 4\n";
        assert_eq!(value(text, "default", "a"), "0");
        assert_eq!(
            (value(text, "x", "a"), value(text, "x", "b"), value(text, "y", "a")),
            ("3".into(), "4".into(), "2".into())
        );
        let conf = Conf::read(text.as_bytes()).unwrap();
        assert_eq!(conf.entries("x").len(), 2);
        assert_eq!(conf.last, "x");
    }

    #[test]
    fn quotes_escapes_comments_and_continued_lines_are_read() {
        assert_eq!(value("a = \"b # \"\"c\" # d", "default", "a"), "b # \"c");
        assert_eq!(value("a = b\\#c", "default", "a"), "b#c");
        assert_eq!(value("a = b\\\nc\n", "default", "a"), "bc");
        assert_eq!(value("a = '\\''", "default", "a"), "'");
        assert!(Conf::read(b"a = $b").unwrap().get("default", "a").unwrap().computed);
        for awkward in ["/a b/#c", "$HOME\\x", "it's \"so\""] {
            assert_eq!(value(&format!("a = {}", written(awkward).unwrap()), "default", "a"), awkward);
        }
        assert!(written("two\nlines").is_err() && written(" blank").is_err());
    }

    #[test]
    fn included_files_leave_their_section_open() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("i.cnf"), "b = 1\n[y]\n").unwrap();
        let path = folder.path().display();
        let text = format!("[x]\n.include {path}/i.cnf\nc = 2\n.include = {path}/none.cnf\n");
        assert_eq!((value(&text, "x", "b"), value(&text, "y", "c")), ("1".into(), "2".into()));
        std::fs::write(folder.path().join("i.cnf"), format!(".include {path}/i.cnf\n")).unwrap();
        assert!(Conf::read(text.as_bytes()).unwrap_err().to_string().contains("circle"));
    }

    #[test]
    fn a_line_that_is_nothing_is_named() {
        assert!(Conf::read(b"\n[x\n").unwrap_err().to_string().starts_with("line 2"));
        assert!(Conf::read(b"just words\n").unwrap_err().to_string().contains("line 1"));
    }
}
