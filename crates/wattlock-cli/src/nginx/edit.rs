//! What `enable` adds to an nginx configuration, and how `disable` finds it again: whole lines that end with [`MARK`].
//!
//! The file is read as nginx reads it as far as blocks, words, quotes and comments go (ngx_conf_read_token); includes
//! are not followed. Files with braces of another language in them (Lua blocks) can be refused, never spoilt: after
//! every change nginx itself tests the result.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use wattlock_shell::nginx::server::HYBRID;

/// Ends every line of ours.
pub const MARK: &str = "# by `wattlock nginx enable`";

/// Ends a comment that was a directive of a person's.
const ASIDE: &str = "# set aside by `wattlock nginx disable`";

/// Lines shown around a change.
const AROUND: usize = 2;

/// A directive: its words, the line that it begins in, and how deep in blocks it stands.
#[derive(Debug, PartialEq, Eq)]
struct Directive {
    words: Vec<String>,
    line: usize,
    depth: usize,
    /// Where its block begins, behind the brace, if it has one.
    block: Option<usize>,
    /// Where it stands: the names of the blocks around it.
    inside: Vec<String>,
}

fn parse(text: &str) -> Result<Vec<Directive>> {
    let mut found = Vec::new();
    let (mut words, mut inside): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    let (mut rest, mut begins) = (text.char_indices().peekable(), 0);
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    while let Some((at, c)) = rest.next() {
        begins = if words.is_empty() { at } else { begins };
        match c {
            c if c.is_whitespace() => {}
            '#' => while rest.next_if(|(_, c)| *c != '\n').is_some() {},
            ';' => {
                ensure!(!words.is_empty(), "line {}: a `;` without a directive", line(at));
                found.push(Directive {
                    words: std::mem::take(&mut words),
                    line: line(begins),
                    depth: inside.len(),
                    block: None,
                    inside: inside.clone(),
                });
            }
            '{' => {
                let name = words
                    .first()
                    .cloned()
                    .with_context(|| format!("line {}: a `{{` without a name", line(at)))?;
                let words = std::mem::take(&mut words);
                found.push(Directive {
                    words,
                    line: line(begins),
                    depth: inside.len(),
                    block: Some(at + 1),
                    inside: inside.clone(),
                });
                inside.push(name);
            }
            '}' => {
                ensure!(words.is_empty(), "line {}: a `}}` in a directive", line(at));
                inside.pop().with_context(|| format!("line {}: a `}}` too many", line(at)))?;
            }
            '"' | '\'' => {
                let mut word = String::new();
                loop {
                    match rest.next() {
                        Some((_, end)) if end == c => break,
                        Some((_, '\\')) => word.extend(rest.next().map(|(_, c)| c)),
                        Some((_, c)) => word.push(c),
                        None => bail!("line {}: a quote that does not end", line(at)),
                    }
                }
                words.push(word);
            }
            c => words.push(bare(c, &mut rest)),
        }
    }
    ensure!(words.is_empty() && inside.is_empty(), "it ends in the middle of a block or directive");
    Ok(found)
}

/// A word without quotes; `${` begins no block.
fn bare(first: char, rest: &mut std::iter::Peekable<std::str::CharIndices<'_>>) -> String {
    let (mut word, mut last, mut variable) = (String::from(first), first, false);
    while let Some((_, c)) = rest.next_if(|(_, c)| {
        let opens = *c == '{' && last == '$';
        let closes = *c == '}' && variable;
        opens || closes || last == '\\' || !(c.is_whitespace() || matches!(c, ';' | '{' | '}'))
    }) {
        variable = (variable || (c == '{' && last == '$')) && c != '}';
        last = c;
        word.push(c);
    }
    word
}

/// What our lines are to say.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// None if a file that the configuration includes loads it.
    pub module: Option<&'a Path>,
    /// The `openssl.cnf` of nginx's own.
    pub conf: Option<&'a Path>,
    /// Without one: whether the environment names another for nginx, which a new binary is to keep.
    pub environment: bool,
    /// Whether the hybrid is offered. A text that had it keeps it.
    pub hybrid: bool,
}

/// The text with our lines. Lines that an earlier call left are replaced; the hybrid that it was told of stays.
///
/// # Errors
/// A configuration that already has Wattlock, or groups, by another hand, that has no `http` block of its own, or that is
/// not whole.
pub fn enabled(text: &str, wish: &Wish<'_>) -> Result<String> {
    let hybrid = wish.hybrid || has_hybrid(text);
    let text = disabled(text);
    let directives = parse(&text)?;
    let theirs = directives.iter().find(|one| {
        let module =
            one.words[0] == "load_module" && one.words.get(1).is_some_and(|path| is_ours(Path::new(path)));
        module || one.words[0] == "wattlock" && one.inside == ["http"]
    });
    if let Some(theirs) = theirs {
        let words = theirs.words.join(" ");
        bail!("`{}` is there already, written by hand: change that", words.escape_debug());
    }
    let groups = directives.iter().find(|one| one.words[0] == "ssl_ecdh_curve" && one.inside == ["http"]);
    if let Some(theirs) = groups.filter(|_| hybrid) {
        let words = theirs.words.join(" ");
        bail!(
            "line {}: `{}` is there already: name {HYBRID} there by hand",
            theirs.line,
            words.escape_debug()
        );
    }
    let http = directives.iter().find(|one| one.depth == 0 && one.words == ["http"]);
    let block = http.and_then(|one| one.block).context("it has no http block")?;
    let rest = &text[block..];
    let (tail, _) = rest
        .split_once('\n')
        .context("its http block begins and ends on one line: break the line behind `{`")?;
    ensure!(
        tail.trim().is_empty() || tail.trim_start().starts_with('#'),
        "behind `http {{` more stands on the same line: break the line behind `{{`"
    );
    let end = if tail.ends_with('\r') { "\r\n" } else { "\n" };
    let mut out = String::new();
    if let Some(module) = wish.module {
        let _ = write!(out, "load_module \"{}\"; {MARK}{end}", printable(module)?);
    }
    let conf = wish.conf.map(printable).transpose()?;
    let set = |one: &Directive| {
        one.depth == 0
            && one.words[0] == "env"
            && one.words.get(1).is_some_and(|v| v.starts_with("OPENSSL_CONF"))
    };
    // A new binary gets no variable but those (`ngx_exec_new_binary`). With its value, since an init script's may be
    // gone.
    let value = conf.map(|conf| format!("env \"OPENSSL_CONF={conf}\""));
    let value = value.or(wish.environment.then(|| "env OPENSSL_CONF".to_owned()));
    if let Some(value) = value.filter(|_| !directives.iter().any(set)) {
        let _ = write!(out, "{value}; {MARK}{end}");
    }
    let at = block + tail.len() + 1;
    out.push_str(&text[..at]);
    if let Some(conf) = conf {
        let _ = write!(out, "    wattlock_openssl_conf \"{conf}\"; {MARK}{end}");
    }
    let _ = write!(out, "    wattlock on; {MARK}{end}");
    if hybrid {
        let _ = write!(out, "    wattlock_hybrid on; {MARK}{end}");
    }
    out.push_str(&text[at..]);
    Ok(out)
}

fn printable(path: &Path) -> Result<&str> {
    let text = path.to_str().with_context(|| format!("{}: not printable", path.display()))?;
    wattlock_shell::nginx::place::plain(text)?;
    Ok(text)
}

/// Whether a line of ours offers the hybrid.
pub fn has_hybrid(text: &str) -> bool {
    let offers = ["wattlock_hybrid", "ssl_ecdh_curve"];
    text.lines().any(|line| marked(line) && offers.iter().any(|word| line.contains(word)))
}

/// The `openssl.cnf` of nginx's own that the text names.
pub fn conf(text: &str) -> Option<PathBuf> {
    all(text, "wattlock_openssl_conf").into_iter().next().map(|(_, path)| PathBuf::from(path))
}

/// The text with another file in the place of the `openssl.cnf` that our lines name.
pub fn with_conf(text: &str, conf: &Path, other: &Path) -> String {
    let [conf, other] = [conf, other].map(|path| path.display().to_string());
    let lines = text.split_inclusive('\n');
    lines.map(|line| if marked(line) { line.replace(&conf, &other) } else { line.to_owned() }).collect()
}

/// The text without our lines.
pub fn disabled(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !marked(line)).collect()
}

/// Blocks whose rows are values, whatever they are called.
const OF_VALUES: [&str; 5] = ["map", "geo", "types", "split_clients", "charset_map"];

/// Directives of a name, wherever they stand: their lines and first arguments. None of what is no whole configuration.
/// A row of a block of values is no directive, unless it includes.
pub fn all(text: &str, name: &str) -> Vec<(usize, String)> {
    let is_value = |one: &Directive| {
        name != "include" && one.inside.last().is_some_and(|block| OF_VALUES.contains(&block.as_str()))
    };
    let all = parse(text).unwrap_or_default().into_iter();
    let named = all.filter(|one| one.words[0] == name && !is_value(one));
    named.filter_map(|one| Some((one.line, one.words.into_iter().nth(1)?))).collect()
}

/// Lines in which directives of ours begin that a person wrote. None of what is no whole configuration.
pub fn by_hand(text: &str) -> Vec<usize> {
    let all = parse(text).unwrap_or_default().into_iter();
    let ours = all.filter(|one| one.words[0].starts_with("wattlock")).map(|one| one.line);
    ours.filter(|line| !text.lines().nth(line - 1).is_some_and(marked)).collect()
}

/// Which of Wattlock's modules the text loads. What is no whole configuration loads none.
pub fn modules(text: &str) -> Vec<PathBuf> {
    let all = parse(text).unwrap_or_default().into_iter().filter(|one| one.words[0] == "load_module");
    all.filter_map(|one| one.words.into_iter().nth(1))
        .map(PathBuf::from)
        .filter(|path| is_ours(path))
        .collect()
}

/// Whether a module is Wattlock's: by the name of its file, whatever its folder is called.
fn is_ours(module: &Path) -> bool {
    module.file_name().is_some_and(|name| name.to_string_lossy().contains("wattlock"))
}

/// Files that the text includes outside of all blocks, as it names them: one of them may have the `http` block.
pub fn included(text: &str) -> Vec<String> {
    let all = parse(text).unwrap_or_default().into_iter();
    all.filter(|one| one.depth == 0 && one.words[0] == "include")
        .filter_map(|one| one.words.into_iter().nth(1))
        .collect()
}

/// Whether the text has an `http` block.
pub fn has_http(text: &str) -> bool {
    parse(text).unwrap_or_default().iter().any(|one| one.depth == 0 && one.words == ["http"])
}

/// Puts the directive of ours that ends in a line into a comment above it, for a person to bring back. `None` if there is no
/// whole one in that line.
pub fn set_aside(text: &str, line: usize) -> Option<String> {
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    let found = lines.get(line.checked_sub(1)?)?.clone();
    // Where a directive begins, so that no word of another one is taken.
    let begins = |at: &usize| {
        let before = found[..*at].trim_end();
        before.is_empty() || before.ends_with(['{', ';', '}'])
    };
    let from = found.match_indices("wattlock").map(|(at, _)| at).find(begins)?;
    if found[..from].contains('#') {
        return None;
    }
    let end =
        from + found[from..].find(['{', ';', '}']).filter(|at| found[from + at..].starts_with(';'))? + 1;
    let directive = &found[from..end];
    if directive.contains(['"', '\'', '#']) {
        return None;
    }
    let feed = if found.ends_with("\r\n") { "\r\n" } else { "\n" };
    let indent: String = found.chars().take_while(|c| *c == ' ' || *c == '\t').collect();
    let rest = format!("{}{}", &found[..from], found[end..].trim_start_matches(' '));
    let rest = if rest.trim().is_empty() { String::new() } else { rest };
    lines[line - 1] = format!("{indent}# {directive} {ASIDE}{feed}{rest}");
    Some(lines.concat())
}

/// Whether the text has lines of ours.
pub fn is_enabled(text: &str) -> bool {
    text.lines().any(marked)
}

/// Whether a line is ours.
pub fn marked(line: &str) -> bool {
    line.trim_end().ends_with(MARK)
}

/// What changes, for people: lines with `+` and `-`, and some around them.
pub fn diff(path: &Path, before: &str, after: &str) -> String {
    let mut lines: Vec<(char, &str)> = Vec::new();
    let (mut old, mut new) = (before.lines().peekable(), after.lines().peekable());
    loop {
        // Only lines of ours differ.
        match (old.peek().copied(), new.peek().copied()) {
            (None, None) => break,
            (Some(a), Some(b)) if a == b => {
                lines.push((' ', a));
                old.next();
                new.next();
            }
            (Some(a), _) if marked(a) => {
                lines.push(('-', a));
                old.next();
            }
            (_, Some(b)) => {
                lines.push(('+', b));
                new.next();
            }
            (Some(a), None) => {
                lines.push(('-', a));
                old.next();
            }
        }
    }
    let mut out = format!("--- {0}\n+++ {0}\n", path.display());
    let near = |at: usize| {
        lines[at.saturating_sub(AROUND)..lines.len().min(at + AROUND + 1)]
            .iter()
            .any(|(sign, _)| *sign != ' ')
    };
    let (mut number, mut shown) = (0, false);
    for (at, (sign, line)) in lines.iter().enumerate() {
        number += usize::from(*sign != '+');
        if !near(at) {
            shown = false;
            continue;
        }
        if !shown {
            let _ = writeln!(out, "@@ line {} @@", number.max(1));
        }
        shown = true;
        let _ = writeln!(out, "{sign}{line}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(module: &str, environment: bool, hybrid: bool) -> Wish<'_> {
        let module = Some(Path::new(module)).filter(|path| !path.as_os_str().is_empty());
        Wish { module, conf: None, environment, hybrid }
    }

    const DEBIAN: &str = "user www-data;\n# http {\nevents { worker_connections 768; }\n\nhttp { # all\n\tlog_format \
                          main '$a \"{\\'}';\n\tinclude x;\n\tserver { root /${b}; wattlock off; }\n}\n";

    #[test]
    fn what_enable_adds_disable_removes() {
        let text = enabled(DEBIAN, &wish("/m/wattlock.so", true, false)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("load_module \"/m/wattlock.so\";")
                && lines[1].starts_with("env OPENSSL_CONF;")
        );
        let at = lines.iter().position(|line| line.starts_with("http {")).unwrap();
        assert_eq!(lines[at + 1], format!("    wattlock on; {MARK}"));
        assert!(is_enabled(&text) && !is_enabled(DEBIAN));
        assert_eq!(modules(&text), [Path::new("/m/wattlock.so")]);
        assert!(modules(DEBIAN).is_empty() && modules("load_module a/wattlock.so; {").is_empty());
        assert_eq!(disabled(&text), DEBIAN);
        assert_eq!(
            enabled(&text, &wish("/m/wattlock.so", true, false)).unwrap(),
            text,
            "a second time changes nothing"
        );
        let moved = enabled(&text, &wish("/n/wattlock.so", false, false)).unwrap();
        assert!(!moved.contains("/m/") && !moved.contains("env "));
        assert_eq!(disabled(&moved), DEBIAN);
    }

    #[test]
    fn a_module_that_is_loaded_already_is_not_loaded_again() {
        let text = enabled(DEBIAN, &wish("", false, false)).unwrap();
        assert!(modules(&text).is_empty() && text.contains(&format!("    wattlock on; {MARK}\n")), "{text}");
        assert_eq!(disabled(&text), DEBIAN);
        let before = enabled(DEBIAN, &wish("/m/wattlock.so", false, false)).unwrap();
        assert_eq!(
            enabled(&before, &wish("", false, false)).unwrap(),
            text,
            "a line of an earlier call goes"
        );
    }

    #[test]
    fn groups_are_added_when_they_are_asked_for_and_stay_until_disable() {
        let text = enabled(DEBIAN, &wish("/m.so", false, true)).unwrap();
        let line = format!("\n    wattlock on; {MARK}\n    wattlock_hybrid on; {MARK}\n");
        assert!(text.contains(&line), "{text}");
        assert_eq!(
            enabled(&text, &wish("/m.so", false, false)).unwrap(),
            text,
            "a second time changes nothing"
        );
        assert_eq!(disabled(&text), DEBIAN);
        let former = text.replace("wattlock_hybrid on;", "ssl_ecdh_curve X25519MLKEM768:X25519;");
        assert_eq!(enabled(&former, &wish("/m.so", false, false)).unwrap(), text, "a former version's line");
        let theirs = "http {\n\n  ssl_ecdh_curve\n X25519;\n}\n";
        let told = enabled(theirs, &wish("/m.so", false, true)).unwrap_err().to_string();
        assert!(told.starts_with("line 3: `ssl_ecdh_curve X25519` is there already"), "{told}");
        assert!(enabled(theirs, &wish("/m.so", false, false)).is_ok());
        let of_a_server = "http {\n  server {\n    ssl_ecdh_curve X25519;\n  }\n}\n";
        assert!(enabled(of_a_server, &wish("/m.so", false, true)).is_ok());
        assert_eq!(all(of_a_server, "ssl_ecdh_curve"), [(3, "X25519".to_owned())]);
    }

    #[test]
    fn a_row_of_a_map_is_no_directive_and_a_folders_name_is_no_module() {
        let text = "http {\n  map $a $b { ssl_ecdh_curve x; include y; }\n  ssl_ecdh_curve X25519;\n}\n";
        assert_eq!(all(text, "ssl_ecdh_curve"), [(3, "X25519".to_owned())]);
        assert_eq!(all(text, "include"), [(2, "y".to_owned())]);
        let other = "load_module /opt/wattlock/ngx_other.so;\nhttp {\n}\n";
        assert!(modules(other).is_empty());
        assert!(enabled(other, &wish("/m/wattlock.so", false, false)).is_ok());
    }

    #[test]
    fn a_directive_is_set_aside_and_everything_else_stays() {
        let text = "server {\n    location /s { wattlock_status; allow ::1; }\n    wattlock off;\r\n}\n";
        let status = set_aside(text, 2).unwrap();
        let expected = format!(
            "server {{\n    # wattlock_status; {ASIDE}\n    location /s {{ allow ::1; }}\n    wattlock off;\r\n}}\n"
        );
        assert_eq!(status, expected);
        let off = set_aside(text, 3).unwrap();
        assert!(off.contains(&format!("\n    # wattlock off; {ASIDE}\r\n}}\n")), "{off}");
        for (text, line) in [
            ("a;\n", 1),
            ("wattlock_status;\n", 2),
            ("wattlock_status;\n", 0),
            ("# wattlock_status;\n", 1),
            ("x\n  y wattlock_x", 2),
            ("my_wattlock on;\n", 1),
            ("server_name wattlock;\n", 1),
            ("wattlock_set \"a;b\";\n", 1),
            ("wattlock_block {\n", 1),
        ] {
            assert_eq!(set_aside(text, line), None, "{text}");
        }
    }

    #[test]
    fn line_ends_of_another_system_are_kept() {
        let text = DEBIAN.replace('\n', "\r\n");
        let on = enabled(&text, &wish("/m.so", false, false)).unwrap();
        assert_eq!(on.matches('\n').count(), on.matches("\r\n").count());
        assert_eq!(disabled(&on), text);
    }

    #[test]
    fn what_cannot_be_changed_safely_is_refused() {
        let told = |text: &str| enabled(text, &wish("/m.so", false, false)).unwrap_err().to_string();
        assert!(told("events {}\n").contains("no http block"));
        assert!(told("events {}\nhttp { include x; }\n").contains("same line"));
        assert!(told("http {}").contains("one line"));
        assert!(told("http {\n").contains("middle"));
        assert!(told("http {\n}}\n").contains("line 2"));
        assert!(told("http {\nroot \"x;\n}\n").contains("line 2"));
        assert!(told("http {\n wattlock on;\n}\n").contains("by hand"));
        assert!(told("load_module a/ngx_http_wattlock_module.so;\nhttp {\n}\n").contains("by hand"));
        assert!(enabled("http {\n}\n", &wish("/m\".so", false, false)).is_err());
    }

    #[test]
    fn a_refusal_is_one_line_whatever_a_quote_holds() {
        let text = "load_module \"a\nwattlock.so\";\nhttp {\n}\n";
        let told = enabled(text, &wish("/m.so", false, false)).unwrap_err().to_string();
        assert!(told.contains("a\\nwattlock.so") && !told.contains('\n'), "{told}");
    }

    #[test]
    fn an_openssl_cnf_of_its_own_is_named_to_the_module_and_to_a_new_binary() {
        let conf = Some(Path::new("/etc/wattlock/nginx-openssl.cnf"));
        let wish = Wish { module: None, conf, environment: true, hybrid: false };
        let text = enabled(DEBIAN, &wish).unwrap();
        assert!(
            text.starts_with(&format!("env \"OPENSSL_CONF=/etc/wattlock/nginx-openssl.cnf\"; {MARK}\n")),
            "{text}"
        );
        let http = text.split_once("http { # all\n").unwrap().1;
        assert!(
            http.starts_with("    wattlock_openssl_conf \"/etc/wattlock/nginx-openssl.cnf\"; "),
            "{text}"
        );
        assert_eq!(super::conf(&text).as_deref(), conf);
        assert_eq!(disabled(&text), DEBIAN);
        let theirs = format!("env OPENSSL_CONF;\n{DEBIAN}");
        assert_eq!(enabled(&theirs, &wish).unwrap().matches("env ").count(), 1);
    }

    #[test]
    fn an_environment_line_of_theirs_is_enough() {
        let text = "env OPENSSL_CONF=/x;\nhttp {\n}\n";
        assert_eq!(enabled(text, &wish("/m.so", true, false)).unwrap().matches("env ").count(), 1);
    }

    #[test]
    fn a_diff_shows_what_changes_and_a_little_around_it() {
        let before = "a\nb\nc\nd\nhttp {\n}\n";
        let after = enabled(before, &wish("/m.so", false, false));
        assert!(after.is_err(), "a word without an end is no directive");
        let before = "a;\nb;\nc;\nd;\nhttp {\n}\n";
        let after = enabled(before, &wish("/m.so", false, false)).unwrap();
        let shown = diff(Path::new("f"), before, &after);
        let wanted = format!(
            "--- f\n+++ f\n@@ line 1 @@\n+load_module \"/m.so\"; {MARK}\n a;\n b;\n@@ line 4 @@\n d;\n http {{\n+    wattlock on; {MARK}\n }}\n"
        );
        assert_eq!(shown, wanted);
        assert!(diff(Path::new("f"), &after, before).contains("\n-load_module"));
    }
}
