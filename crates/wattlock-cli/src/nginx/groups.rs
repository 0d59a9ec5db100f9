//! The groups that an nginx offers for TLS keys: which lines of its configuration name some, and what becomes of
//! X25519MLKEM768 without the provider. OpenSSL before 3.5 has it from the provider only, and an nginx whose configuration
//! names a group that its OpenSSL has not does not start.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;
use wattlock_shell::nginx::place::Nginx;
use wattlock_shell::nginx::server::{HYBRID, HYBRID_FIRST, OpenSsl};

use super::check::start;
use super::edit;
use super::file::read;

/// Files that include each other have an end.
const MOST_FILES: usize = 1000;

/// A line that names groups.
pub struct Line {
    file: PathBuf,
    number: usize,
    /// None if the line is the module's, `wattlock_hybrid on`: it offers the hybrid if there is one.
    groups: Option<String>,
    /// Of `enable`.
    pub ours: bool,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = format!("{}:{}", self.file.display(), self.number);
        match &self.groups {
            Some(groups) => write!(f, "{place}: `ssl_ecdh_curve {}`", groups.escape_debug()),
            None => write!(f, "{place}: `wattlock_hybrid on`"),
        }
    }
}

impl Line {
    /// Whether it is no line for an OpenSSL without the hybrid. (`?` before a name leaves it out there, since OpenSSL 3.3.)
    pub fn needs_hybrid(&self) -> bool {
        self.groups.as_deref().unwrap_or_default().split([':', '/']).any(|group| {
            !group.contains('?') && group.trim_start_matches(['*', '-']).eq_ignore_ascii_case(HYBRID)
        })
    }
}

/// A configuration and what it includes, as far as files can be read.
pub fn files(config: &Path) -> Vec<(PathBuf, String)> {
    let (mut found, mut files, mut at) = (Vec::new(), vec![config.to_owned()], 0);
    let folder = config.parent().unwrap_or(Path::new("/"));
    while let Some(file) = files.get(at).filter(|_| at < MOST_FILES).cloned() {
        at += 1;
        let Ok(text) = read(&file) else { continue };
        for path in edit::all(&text, "include").iter().flat_map(|(_, pattern)| included(folder, pattern)) {
            if !files.contains(&path) {
                files.push(path);
            }
        }
        found.push((file, text));
    }
    found
}

/// The lines that name groups, in a configuration and what it includes. Of a file that cannot be read as nginx reads it
/// there are none.
pub fn lines(config: &Path) -> Vec<Line> {
    let mut found = Vec::new();
    for (file, text) in files(config) {
        for (number, groups) in edit::all(&text, "ssl_ecdh_curve") {
            let ours = text.lines().nth(number - 1).is_some_and(edit::marked);
            found.push(Line { file: file.clone(), number, groups: Some(groups), ours });
        }
        for (number, _) in edit::all(&text, "wattlock_hybrid").into_iter().filter(|(_, value)| value == "on")
        {
            let ours = text.lines().nth(number - 1).is_some_and(edit::marked);
            found.push(Line { file: file.clone(), number, groups: None, ours });
        }
    }
    found
}

/// The files that an `include` of a configuration in this folder names.
pub fn included(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let path = folder.join(pattern);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let Some((front, back)) = name.split_once('*') else { return vec![path] };
    let fits = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(front) && name.ends_with(back)
    };
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(fits).collect()
}

/// Whether this nginx has the hybrid, by a start.
///
/// # Errors
/// It does not start, for another reason.
pub fn has_hybrid(nginx: &Nginx, openssl: OpenSsl<'_>) -> Result<bool> {
    match start(nginx, openssl, HYBRID_FIRST) {
        Ok(_) => Ok(true),
        Err(error) if is_about(&error.to_string()) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether nginx's words are of a group that is not there.
pub fn is_about(words: &str) -> bool {
    words.contains(HYBRID) && words.contains("curves_list")
}

/// What nginx's words about the hybrid mean.
pub fn remedy() -> String {
    format!(
        "this OpenSSL has {HYBRID} only with the provider (`wattlock nginx enable`, or for all programs `wattlock \
         openssl enable`; a setting `algorithms` must name `ml-kem`)"
    )
}

/// The lines of a person that keep nginx from starting without the provider. None if its OpenSSL has the hybrid itself.
pub fn that_need_the_provider(nginx: &Nginx, config: &Path) -> Vec<Line> {
    let theirs: Vec<Line> = lines(config).into_iter().filter(|line| line.needs_hybrid()).collect();
    match theirs.is_empty() || has_hybrid(nginx, OpenSsl::Stock).unwrap_or(true) {
        true => Vec::new(),
        false => theirs,
    }
}

/// Whether all is well with a configuration's groups, and words, line by line.
pub fn looked_at(nginx: &Nginx, installed: OpenSsl<'_>, config: &Path) -> Vec<(bool, String)> {
    let own = has_hybrid(nginx, OpenSsl::Stock);
    match own.and_then(|own| Ok((own, has_hybrid(nginx, installed)?))) {
        Ok((own, here)) => judged(&lines(config), own, here),
        Err(error) => vec![(false, format!("{error:#}"))],
    }
}

/// What a configuration's lines come to: whether all is well, and words; `own` is whether OpenSSL has the hybrid itself,
/// `here` whether it has with this machine's configuration.
fn judged(lines: &[Line], own: bool, here: bool) -> Vec<(bool, String)> {
    if lines.is_empty() {
        let words = match own {
            true => format!("no `ssl_ecdh_curve`: OpenSSL's default, {HYBRID}, X25519, P-256 and others"),
            false => format!(
                "no `ssl_ecdh_curve`: OpenSSL's default, X25519, P-256 and others, without {HYBRID} (`wattlock nginx \
                 enable --hybrid`)"
            ),
        };
        return vec![(true, words)];
    }
    let told = |line: &Line| match (line.needs_hybrid(), own, here) {
        _ if line.groups.is_none() => match (own, here) {
            (true, _) => (true, format!("{line}; OpenSSL has {HYBRID} itself")),
            (_, true) => (true, format!("{line}; OpenSSL has {HYBRID} from the provider")),
            _ => (false, format!("{line}: not offered, since {}", remedy())),
        },
        (false, ..) => (true, format!("{line}, without {HYBRID}")),
        (true, true, _) => (true, format!("{line}; OpenSSL has {HYBRID} itself")),
        (true, false, true) => (
            true,
            format!("{line}; OpenSSL has {HYBRID} from the provider, without which nginx does not start"),
        ),
        (true, false, false) => (
            false,
            format!("{line}: nginx does not start with this machine's openssl.cnf, since {}", remedy()),
        ),
    };
    lines.iter().map(told).collect()
}

/// By which groups clients' handshakes agreed on keys, as a status page says. `None` if there were none.
pub fn shares(status: &Value) -> Option<String> {
    const NAMES: [(&str, &str); 5] = [
        ("group_x25519mlkem768", HYBRID),
        ("group_x25519", "X25519"),
        ("group_p256", "P-256"),
        ("group_other", "other groups"),
        ("group_none", "no group"),
    ];
    let counts = NAMES.map(|(key, name)| (name, status[key].as_u64().unwrap_or(0)));
    let all: u64 = counts.iter().map(|(_, count)| count).sum();
    let words = counts.iter().enumerate().filter(|(at, (_, count))| *at == 0 || *count > 0);
    let words: Vec<String> = words.map(|(_, (name, count))| format!("{name} {count}")).collect();
    let percent = 100.0 * counts[0].1 as f64 / all as f64;
    (all > 0).then(|| format!("by group: {} ({percent:.0} % {HYBRID})", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(groups: &str) -> Line {
        Line { file: "/n.conf".into(), number: 3, groups: Some(groups.into()), ours: false }
    }

    #[test]
    fn a_line_needs_the_hybrid_if_it_names_it_and_does_not_say_that_it_may_be_missing() {
        for groups in ["X25519MLKEM768", "X25519:x25519mlkem768", "*X25519MLKEM768/X25519"] {
            assert!(line(groups).needs_hybrid(), "{groups}");
        }
        for groups in ["X25519", "auto", "?X25519MLKEM768:X25519", "?*X25519MLKEM768", "MLKEM768"] {
            assert!(!line(groups).needs_hybrid(), "{groups}");
        }
    }

    #[test]
    fn a_named_hybrid_is_a_problem_only_where_nothing_has_it() {
        let good = |lines: &[Line], own, here| {
            let told = judged(lines, own, here);
            told.iter().map(|(good, _)| *good).collect::<Vec<_>>()
        };
        let both = [line("X25519"), line("X25519MLKEM768:X25519")];
        assert_eq!(good(&both, false, false), [true, false]);
        assert_eq!(good(&both, false, true), [true, true]);
        assert_eq!(good(&both, true, false), [true, true]);
        assert_eq!(good(&[], false, false), [true]);
        assert!(judged(&[], false, true)[0].1.contains("without X25519MLKEM768"));
        let of_the_module = [Line { groups: None, ..line("") }];
        assert_eq!(good(&of_the_module, false, false), [false]);
        assert_eq!(good(&of_the_module, false, true), [true]);
        let named = &judged(&both, false, true)[1].1;
        assert!(
            named.starts_with("/n.conf:3: ") && named.contains("without which nginx does not start"),
            "{named}"
        );
    }

    #[test]
    fn lines_are_found_in_what_is_included_too() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        std::fs::create_dir(folder.path().join("sites")).unwrap();
        let marked = format!("ssl_ecdh_curve a; {}", edit::MARK);
        put(
            "nginx.conf",
            &format!(
                "http {{\n  {marked}\n  include sites/*.conf;\n  include nginx.conf;\n  wattlock_hybrid on;\n}}\n"
            ),
        );
        put("sites/one.conf", "server {\n  # ssl_ecdh_curve no;\n  ssl_ecdh_curve \"b:c\";\n}\n");
        put("sites/two", "ssl_ecdh_curve d;\n");
        let found = lines(&folder.path().join("nginx.conf"));
        let told: Vec<_> =
            found.iter().map(|line| (line.number, line.groups.as_deref(), line.ours)).collect();
        assert_eq!(told, [(2, Some("a"), true), (5, None, false), (3, Some("b:c"), false)]);
    }

    #[test]
    fn shares_are_of_all_handshakes_of_clients() {
        let status = serde_json::json!({"group_x25519mlkem768": 3, "group_x25519": 6, "group_none": 3});
        let told = shares(&status).unwrap();
        assert_eq!(told, "by group: X25519MLKEM768 3, X25519 6, no group 3 (25 % X25519MLKEM768)");
        assert_eq!(shares(&serde_json::json!({"completed": 3})), None);
    }
}
