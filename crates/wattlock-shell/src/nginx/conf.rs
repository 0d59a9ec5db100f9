//! nginx's configuration language, read as nginx reads it (`ngx_conf_read_token` of `ngx_conf_file.c`): words, quotes,
//! escapes, comments, blocks. What is written again has the same words.
//!
//! It knows no directive but one: a block of Lua (`..._by_lua_block`), whose braces are Lua's, is refused. It does no
//! I/O; what nginx itself refuses is refused with its line, and so is nesting deeper than [`DEEPEST`].

use std::fmt::Write;

use anyhow::{Context, Result, bail, ensure};

/// How deep blocks may be nested. A real configuration has about five levels.
pub const DEEPEST: usize = 64;

/// A directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directive {
    /// Its name and its arguments, without quotes.
    pub words: Vec<String>,
    /// The file that it stands in, by the caller's count.
    pub file: usize,
    /// The line that it begins in.
    pub line: usize,
    /// What is in its block, if it has one.
    pub block: Option<Vec<Directive>>,
}

impl Directive {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.words[0]
    }

    /// An argument; the first is 1.
    pub fn argument(&self, at: usize) -> Option<&str> {
        self.words.get(at).map(String::as_str)
    }
}

/// Reads a text, the one of a file with this number.
///
/// # Errors
/// It is no whole configuration: line and reason.
pub fn read(text: &str, file: usize) -> Result<Vec<Directive>> {
    if let Some(at) = text.find('\0') {
        bail!("line {}: a byte of zero", text[..at].matches('\n').count() + 1);
    }
    let mut tokens = Tokens { rest: text.chars(), line: 1 };
    // The blocks that are open, each with the directive that opened it.
    let mut open: Vec<(Directive, Vec<Directive>)> = Vec::new();
    let mut found = Vec::new();
    loop {
        let (words, line, end) = tokens.directive()?;
        match end {
            End::Text if open.is_empty() => return Ok(found),
            End::Text => bail!("line {}: a block is not closed", tokens.line),
            End::Semicolon => found.push(Directive { words, file, line, block: None }),
            End::Opens => {
                ensure!(
                    !words[0].ends_with("_by_lua_block"),
                    "line {line}: `{}` is a block of Lua, which this program does not read",
                    words[0].escape_debug()
                );
                ensure!(open.len() < DEEPEST, "line {line}: more than {DEEPEST} blocks in each other");
                open.push((Directive { words, file, line, block: None }, std::mem::take(&mut found)));
            }
            End::Closes => {
                let (mut owner, around) =
                    open.pop().with_context(|| format!("line {}: a `}}` too many", tokens.line))?;
                owner.block = Some(std::mem::replace(&mut found, around));
                found.push(owner);
            }
        }
    }
}

/// Adds a directive to a text, each word in quotes and each directive in a line of its own. For each line that it
/// begins it asks `at` about the directive.
pub fn write<'a>(out: &mut String, directive: &'a Directive, at: &mut dyn FnMut(&'a Directive)) {
    let mut start = out.len();
    let mut lines = |out: &String, directive: &'a Directive| {
        out[start..].matches('\n').for_each(|_| at(directive));
        start = out.len();
    };
    write_into(out, directive, &mut lines);
}

fn write_into<'a>(out: &mut String, directive: &'a Directive, lines: &mut dyn FnMut(&String, &'a Directive)) {
    for (at, word) in directive.words.iter().enumerate() {
        let _ = write!(out, "{}{}", if at == 0 { "" } else { " " }, quoted(word));
    }
    let Some(block) = &directive.block else {
        out.push_str(";\n");
        return lines(out, directive);
    };
    out.push_str(" {\n");
    lines(out, directive);
    for inner in block {
        write_into(out, inner, lines);
    }
    out.push_str("}\n");
    lines(out, directive);
}

/// A word in quotes, as nginx reads it back.
fn quoted(word: &str) -> String {
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

/// What ends a directive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Semicolon,
    Opens,
    Closes,
    Text,
}

struct Tokens<'a> {
    rest: std::str::Chars<'a>,
    line: usize,
}

impl Tokens<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    /// The words up to the next end, and the line of the first of them.
    fn directive(&mut self) -> Result<(Vec<String>, usize, End)> {
        let (mut words, mut begins) = (Vec::new(), self.line);
        // Behind a quote nginx wants a space, an end, or the `)` of a condition.
        let mut tight = false;
        while let Some(c) = self.next() {
            match c {
                ' ' | '\t' | '\r' | '\n' => {
                    tight = false;
                    continue;
                }
                ';' | '{' => {
                    ensure!(!words.is_empty(), "line {}: a `{c}` without a directive", self.line);
                    return Ok((words, begins, if c == ';' { End::Semicolon } else { End::Opens }));
                }
                _ if tight && c != ')' => {
                    bail!("line {}: {c:?} stands directly behind a quote", self.line)
                }
                '}' => {
                    ensure!(words.is_empty(), "line {}: a `}}` in a directive", self.line);
                    return Ok((words, begins, End::Closes));
                }
                '#' => {
                    while self.next().is_some_and(|c| c != '\n') {}
                    continue;
                }
                _ => {}
            }
            begins = if words.is_empty() { self.line } else { begins };
            tight = matches!(c, '"' | '\'');
            let (word, end) = if tight { (self.within(c)?, None) } else { self.bare(c)? };
            words.push(unescaped(&word));
            if let Some(end) = end {
                return Ok((words, begins, end));
            }
        }
        ensure!(words.is_empty(), "line {begins}: a directive without an end");
        Ok((words, begins, End::Text))
    }

    /// A word in quotes, its escapes as they stand.
    fn within(&mut self, quote: char) -> Result<String> {
        let (from, mut word) = (self.line, String::new());
        loop {
            match self.next().with_context(|| format!("line {from}: a quote that does not end"))? {
                c if c == quote => return Ok(word),
                '\\' => {
                    word.push('\\');
                    word.extend(self.next());
                }
                c => word.push(c),
            }
        }
    }

    /// A word without quotes, and the end that follows it directly. Only a space, `;` and `{` end it; `${` does not.
    fn bare(&mut self, first: char) -> Result<(String, Option<End>)> {
        let (from, mut word, mut last) = (self.line, String::from(first), first);
        if first == '\\' {
            word.extend(self.next());
            last = ' ';
        }
        loop {
            let c = self.next().with_context(|| format!("line {from}: a directive without an end"))?;
            match c {
                ' ' | '\t' | '\r' | '\n' => return Ok((word, None)),
                ';' => return Ok((word, Some(End::Semicolon))),
                '{' if last != '$' => return Ok((word, Some(End::Opens))),
                '\\' => {
                    word.push(c);
                    word.extend(self.next());
                    last = ' ';
                }
                _ => {
                    word.push(c);
                    // As in nginx, of `${{` both are the variable's.
                    last = if c == '{' { '$' } else { c };
                }
            }
        }
    }
}

/// What nginx makes of a word's escapes: those of quotes, backslash, tab and line ends; others stay as they stand.
fn unescaped(word: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(word.len()), word.chars().peekable());
    while let Some(c) = rest.next() {
        let meant = match (c, rest.peek()) {
            ('\\', Some(next @ ('"' | '\'' | '\\'))) => *next,
            ('\\', Some('t')) => '\t',
            ('\\', Some('r')) => '\r',
            ('\\', Some('n')) => '\n',
            _ => {
                out.push(c);
                continue;
            }
        };
        rest.next();
        out.push(meant);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Directive>> {
        super::read(text, 0)
    }

    fn words(text: &str) -> Vec<Vec<String>> {
        read(text).unwrap().into_iter().map(|one| one.words).collect()
    }

    fn again(directives: &[Directive]) -> String {
        let mut out = String::new();
        directives.iter().for_each(|one| write(&mut out, one, &mut |_| {}));
        out
    }

    /// A tree without its lines.
    fn plain(directives: &[Directive]) -> Vec<Directive> {
        let plain = |one: &Directive| Directive {
            line: 0,
            block: one.block.as_ref().map(|block| plain(block)),
            ..one.clone()
        };
        directives.iter().map(plain).collect()
    }

    #[test]
    fn words_are_those_of_nginx() {
        for (text, wanted) in [
            ("a b  c;", &["a", "b", "c"][..]),
            ("a \"b c\" 'd \"e';", &["a", "b c", "d \"e"]),
            ("a \"b\\\"c\" 'd\\'e' f\\\"g;", &["a", "b\"c", "d'e", "f\"g"]),
            ("a \\.x\\;y \\\\z \"t\\tn\\nr\\rq\\q\";", &["a", "\\.x\\;y", "\\z", "t\tn\nr\rq\\q"]),
            ("a ${b}c $d{e;}", &["a", "${b}c", "$d"]),
            ("a b#c e}f;", &["a", "b#c", "e}f"]),
            ("a # ; { \"\n b;", &["a", "b"]),
            ("\u{feff}a \u{a0}b;", &["\u{feff}a", "\u{a0}b"]),
            ("if ($a = \"b c\") { }", &["if", "($a", "=", "b c", ")"]),
            ("a \"\";", &["a", ""]),
        ] {
            assert_eq!(read(text).unwrap()[0].words, wanted, "{text}");
        }
        assert_eq!(words("a;b;\nc\td;").len(), 3);
    }

    #[test]
    fn blocks_have_their_directives_and_lines() {
        let found = read("# one\nhttp {\n  server\n  { listen 1; }\n  x y;}\n").unwrap();
        assert_eq!((found.len(), found[0].name(), found[0].line), (1, "http", 2));
        let http = found[0].block.as_ref().unwrap();
        assert_eq!((http[0].name(), http[0].line, http[1].line), ("server", 3, 5));
        assert_eq!(http[0].block.as_ref().unwrap()[0].argument(1), Some("1"));
    }

    #[test]
    fn what_nginx_refuses_is_refused_with_a_line() {
        for (text, wanted) in [
            ("a", "line 1: a directive without an end"),
            ("a {\n b;\n", "line 3: a block is not closed"),
            ("\n}", "line 2: a `}` too many"),
            (";", "line 1: a `;`"),
            ("{", "line 1: a `{`"),
            ("a \"b", "line 1: a quote"),
            ("a \"b\"c;", "line 1: 'c' stands"),
            ("a b\n }", "line 2: a `}` in"),
            ("a\n\0;", "line 2: a byte of zero"),
            ("\ncontent_by_lua_block { local a = {} }", "line 2: `content_by_lua_block`"),
        ] {
            let said = read(text).unwrap_err().to_string();
            assert!(said.starts_with(wanted), "{text}: {said}");
            assert!(!said.contains('\n'), "{said}");
        }
        let deep = |levels: usize| "a {".repeat(levels) + &"}".repeat(levels);
        assert!(read(&deep(DEEPEST)).is_ok() && read(&deep(DEEPEST + 1)).is_err());
    }

    #[test]
    fn what_is_written_is_read_as_the_same_words() {
        let text = "a 'x\"y\\z' \"\\\\\" ${b} \"#;{}\" \"two\nlines\" '';\nhttp { map $a $b { default \"\"; ~x\\.y 1; } }";
        let found = read(text).unwrap();
        let mut out = String::new();
        let mut origins = Vec::new();
        found.iter().for_each(|one| write(&mut out, one, &mut |from| origins.push(from.line)));
        assert_eq!(plain(&read(&out).unwrap()), plain(&found), "{out}");
        assert_eq!(origins.len(), out.lines().count(), "{out}");
        assert_eq!(origins[..3], [1, 1, 3]);
    }

    /// Whatever is done to a text, it is read or refused in one line; and what was read is written as the same.
    #[test]
    fn mangled_texts_are_read_or_refused() {
        const BASE: &str = "user a;\nhttp {\n  log_format m '$x \"${y}\" \\'z';\n  server { listen 443 ssl; # c\n    \
                            location ~ \\.php$ { return 200 \"a;b{c}\"; }\n  }\n}\n";
        const PIECES: [&str; 14] =
            ["{", "}", ";", "\"", "'", "\\", "#", "$", "${", "\n", " ", "a", "\u{e9}", ")"];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let (mut good, mut bad) = (0, 0);
        for _ in 0..20_000 {
            let mut text: Vec<char> = BASE.chars().collect();
            for _ in 0..=random(4) {
                let at = random(text.len());
                match random(3) {
                    0 if text.len() > 1 => drop(text.remove(at)),
                    1 => text.truncate(at.max(1)),
                    _ => drop(text.splice(at..at, PIECES[random(PIECES.len())].chars())),
                }
            }
            let text: String = text.into_iter().collect();
            match read(&text) {
                Ok(found) => {
                    assert_eq!(plain(&read(&again(&found)).unwrap()), plain(&found), "{text}");
                    good += 1;
                }
                Err(error) => {
                    assert!(!error.to_string().contains('\n'), "{error}");
                    bad += 1;
                }
            }
        }
        assert!(good > 1000 && bad > 1000, "{good} {bad}");
    }
}
