//! Completions, manual pages, the table of environment variables and `--version`: all from the same definitions as
//! `--help`, and complete.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use wattlock_shell::environment::{FILES, INTERNAL, VARIABLES};

use crate::built;
use crate::desk::{good, has};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

fn wattlock(words: &[&str]) -> Output {
    built::siblings();
    let mut command = Command::new(env!("CARGO_BIN_EXE_wattlock"));
    command.args(words).stdin(Stdio::null()).output().unwrap()
}

/// A command's long options and the commands in it, as its help has them.
fn helped(path: &[&str]) -> (BTreeSet<String>, Vec<String>) {
    let help = good(&wattlock(&[path, &["--help"]].concat()));
    let (mut options, mut commands, mut section) = (BTreeSet::new(), Vec::new(), "");
    for line in help.lines() {
        if !line.starts_with(' ') && line.ends_with(':') {
            section = line;
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let words: Vec<&str> = line.split_whitespace().collect();
        match (section, words.first()) {
            ("Commands:", Some(name)) if indent == 2 && *name != "help" => commands.push((*name).to_owned()),
            ("Examples:" | "Example:" | "Environment:" | "Commands:", _) => {}
            (_, Some(first)) if first.starts_with('-') && (indent == 2 || indent == 6) => {
                let long = words.iter().find_map(|word| word.strip_prefix("--"));
                let end = |c: char| !c.is_ascii_alphanumeric() && c != '-';
                options.extend(long.map(|long| long.split(end).next().unwrap().to_owned()));
            }
            _ => {}
        }
    }
    (options, commands)
}

/// The options that a page describes, in OPTIONS and in the sections of its own below: what follows a `.TP`.
fn of_page(page: &str) -> BTreeSet<String> {
    let mut options = BTreeSet::new();
    let (mut lines, mut section) = (page.lines(), "");
    while let Some(line) = lines.next() {
        if let Some(heading) = line.strip_prefix(".SH ") {
            section = heading;
        } else if line == ".TP" && !["ENVIRONMENT", "FILES", "SUBCOMMANDS"].contains(&section) {
            let tag = lines.next().unwrap();
            let words = tag.split("\\fB").filter_map(|part| part.split_once("\\fR"));
            options
                .extend(words.filter_map(|(word, _)| Some(word.strip_prefix("\\-\\-")?.replace('\\', ""))));
        }
    }
    options
}

/// The options that zsh's script offers, by command: a command's own are in its branch.
fn of_zsh(script: &str) -> BTreeMap<Vec<String>, BTreeSet<String>> {
    let mut found = BTreeMap::<_, BTreeSet<String>>::new();
    let (mut path, mut cases) = (Vec::<String>::new(), Vec::new());
    for line in script.lines() {
        let line = line.trim();
        if line.starts_with("case ") {
            cases.push(line.contains("$line["));
        } else if line == "esac" {
            cases.pop();
        } else if let Some(name) = line.strip_prefix('(').and_then(|line| line.strip_suffix(')')) {
            if cases.last() == Some(&true) {
                path.truncate(cases.iter().filter(|case| **case).count() - 1);
                path.push(name.to_owned());
            }
        } else if let Some(option) = line.strip_prefix('\'') {
            // `'*--to=[Whom]:...'`, with the options that it excludes before it.
            let option = option
                .strip_prefix('(')
                .and_then(|rest| rest.split_once(')'))
                .map_or(option, |(_, rest)| rest);
            let Some(long) = option.trim_start_matches('*').strip_prefix("--") else { continue };
            let end = long.find(['[', '=', '+']).expect(line);
            found.entry(path.clone()).or_default().insert(long[..end].to_owned());
        }
    }
    found
}

/// The options that fish's script offers for a command of at most two words.
fn of_fish(script: &str, path: &[String]) -> BTreeSet<String> {
    let using = |name: &str| format!("__fish_wattlock_using_subcommand {name}");
    let is_for_it = |condition: &str| match path {
        [] => condition == "__fish_wattlock_needs_command",
        [name] => condition == using(name) || condition.starts_with(&format!("{}; and not ", using(name))),
        [first, second, ..] => {
            condition == format!("{}; and __fish_seen_subcommand_from {second}", using(first))
        }
    };
    let mut options = BTreeSet::new();
    for line in script.lines() {
        let Some(rest) = line.strip_prefix("complete -c wattlock -n \"") else { continue };
        let (condition, rest) = rest.split_once('"').unwrap();
        let mut words = rest.split(" -d '").next().unwrap().split_whitespace();
        while let Some(word) = words.next().filter(|_| is_for_it(condition)) {
            if word == "-l" {
                options.extend(words.next().map(str::to_owned));
            }
        }
    }
    options
}

/// Every command, with its options.
fn all() -> Vec<(Vec<String>, BTreeSet<String>)> {
    let (mut left, mut found) = (vec![Vec::<String>::new()], Vec::new());
    while let Some(path) = left.pop() {
        let words: Vec<&str> = path.iter().map(String::as_str).collect();
        // The bridge is outside the workspace: its page has its help as it stands.
        if words == ["stream", "bridge"] {
            continue;
        }
        let (options, commands) = helped(&words);
        left.extend(commands.into_iter().map(|name| [&path[..], &[name]].concat()));
        found.push((path, options));
    }
    found
}

#[test]
fn every_option_of_every_command_is_in_its_page_and_in_each_script() {
    let folder = tempfile::tempdir().unwrap();
    let written = wattlock(&["man", folder.path().to_str().unwrap()]);
    good(&written);
    assert!(written.stderr.is_empty(), "{}", String::from_utf8_lossy(&written.stderr));
    let script = |shell: &str| good(&wattlock(&["completions", shell]));
    let (bash, zsh, fish) = (script("bash"), script("zsh"), script("fish"));
    let of_zsh = of_zsh(&zsh);
    let (commands, mut options) = (all(), 0);
    assert!(commands.len() > 60, "{commands:?}");
    for (path, wanted) in &commands {
        let name = [&["wattlock".to_owned()], &path[..]].concat();
        let page = fs::read_to_string(folder.path().join(name.join("-") + ".1")).unwrap();
        for heading in [".SH ENVIRONMENT", ".SH FILES", ".SH \"EXIT STATUS\""] {
            assert!(page.contains(heading), "{name:?}: no {heading}");
        }
        // bash: the words that are offered for the command stand behind its label.
        let label = format!("\n        {})\n", name.join("__subcmd__").replace('-', "__subcmd__"));
        let offered =
            bash.split_once(&label).unwrap_or_else(|| panic!("{label:?}")).1.split_once("\"\n").unwrap().0;
        let offered: BTreeSet<&str> = offered.split_whitespace().collect();
        // clap_complete's script for fish ends at the second level: `fs key add` has no options there.
        let in_fish = (path.len() <= 2).then(|| of_fish(&fish, path));
        let (in_page, in_zsh) = (of_page(&page), of_zsh.get(path).cloned().unwrap_or_default());
        assert!(!path.is_empty() || wanted.contains("version"), "{wanted:?}");
        for option in wanted.iter().filter(|option| *option != "help") {
            options += 1;
            let long = format!("--{option}");
            assert!(in_page.contains(option), "{name:?}: {long} is not in its page: {in_page:?}");
            assert!(offered.contains(long.as_str()), "{name:?}: {long} is not in bash's {offered:?}");
            assert!(in_zsh.contains(option), "{name:?}: {long} is not in zsh's {in_zsh:?}");
            let in_fish = in_fish.as_ref().is_none_or(|in_fish| in_fish.contains(option));
            assert!(in_fish, "{name:?}: {long} is not in fish's");
        }
        // What is looked at is the command's own: it has no option that only others have. Shown are aliases, too.
        let all = [Some(&in_page), Some(&in_zsh), in_fish.as_ref()];
        for found in all.into_iter().flatten() {
            let aliases = ["help", "verbose", "stats", "uncompress", "to-stdout", "silent"];
            let foreign = found.difference(wanted).filter(|option| !aliases.contains(&option.as_str()));
            assert_eq!(foreign.collect::<Vec<_>>(), Vec::<&String>::new(), "{name:?}");
        }
    }
    assert!(options > 300, "{options}");
    let bridge = fs::read_to_string(folder.path().join("wattlock-stream-bridge.1")).unwrap();
    assert!(bridge.contains("\\-\\-instance"));
    // What is hidden from help is in none.
    assert!(!bash.contains("--no-default") && !zsh.contains("--no-default") && !fish.contains("no-default"));
    assert_eq!(good(&wattlock(&["man"])), fs::read_to_string(folder.path().join("wattlock.1")).unwrap());
    // Twice the same.
    assert_eq!(script("bash"), bash);
}

#[test]
fn pages_are_good_for_groff() {
    if !has("groff") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    good(&wattlock(&["man", folder.path().to_str().unwrap()]));
    for page in fs::read_dir(folder.path()).unwrap() {
        let page = page.unwrap().path();
        let checked =
            Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(&page).output().unwrap();
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success() && said.is_empty(), "{}: {said}", page.display());
    }
}

#[test]
fn scripts_load_in_the_shells_that_are_here() {
    let folder = tempfile::tempdir().unwrap();
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let path = folder.path().join(shell);
        fs::write(&path, good(&wattlock(&["completions", shell]))).unwrap();
        if has(shell) {
            good(&Command::new(shell).arg(check).arg(&path).output().unwrap());
        }
    }
    // As a user meets it: after `wattlock seal --rec`, and after `wattlock fs key `.
    let ask = "source \"$1\"; shift; complete -p wattlock >/dev/null; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
               _wattlock wattlock \"${!#}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; echo \"${COMPREPLY[@]}\"";
    let offered = |words: &[&str]| {
        let mut bash = Command::new("bash");
        good(&bash.args(["-c", ask, "bash"]).arg(folder.path().join("bash")).args(words).output().unwrap())
    };
    assert_eq!(offered(&["wattlock", "seal", "--rec"]).trim(), "--recipient --recipients-file");
    let keys = offered(&["wattlock", "fs", "key", ""]);
    assert!(
        ["add", "list", "remove", "rotate"]
            .iter()
            .all(|name| keys.split_whitespace().any(|one| one == *name)),
        "{keys}"
    );
    assert!(offered(&["wattlock", "bench", "https", "--r"]).contains("--rounds"));
    assert_eq!(offered(&["wattlock", "seal", "--format", ""]).trim(), "sealed age");
}

/// Names of variables in the code of programs and libraries, tests left out.
fn named(file: &Path, found: &mut BTreeSet<String>) {
    let text = fs::read_to_string(file).unwrap();
    for part in text.split(['"', '\'', ' ', '(', ')', ',', '`', '=', '{', '}']) {
        let is_name = part.len() > 9 && part.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
        if part.starts_with("WATTLOCK_") && is_name && text.contains(&format!("\"{part}\"")) {
            found.insert(part.to_owned());
        }
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs" || end == "c") {
            found.push(path);
        }
    }
}

/// What reads the environment: the standard library, C, and the function of `sys/process.rs` that does it for others.
const READS: [&str; 3] = ["env::var", "getenv(", " variable("];

/// Words in quotes in sources that read the environment, and that are no variables.
const NO_VARIABLES: &[(&str, &str)] = &[
    ("CARGO_PKG_VERSION", "the compiler's"),
    ("CPU", "where a measurement ran"),
    ("ELF", "how a program begins"),
    ("LD_LIBRARY_PATH", "set for nginx, and not read"),
    ("PROBLEM", "how a line begins"),
];

/// Every variable that a source reads, by whatever spelling: each word in quotes that looks like one.
fn read_by(file: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(file).unwrap();
    let mut found = BTreeSet::new();
    // Where files of a moment are, unless a folder is said.
    if ["tempdir()", "tempfile()", "temp_dir()"].iter().any(|call| text.contains(call)) {
        found.insert("TMPDIR".to_owned());
    }
    if !READS.iter().any(|call| text.contains(call)) {
        return found;
    }
    assert!(!text.contains("env::vars"), "{}: reads whatever there is", file.display());
    let parts: Vec<&str> = text.split('"').collect();
    let is_name = |part: &str| {
        part.len() > 2
            && part.starts_with(|first: char| first.is_ascii_uppercase())
            && part.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
    };
    for pair in parts.windows(2).filter(|pair| is_name(pair[1])) {
        let is_value = pair[0].ends_with("value_name = ");
        if !is_value && !NO_VARIABLES.iter().any(|(word, _)| *word == pair[1]) {
            found.insert(pair[1].to_owned());
        }
    }
    let for_others = file.ends_with("crates/wattlock/src/sys/process.rs");
    assert!(for_others || !found.is_empty(), "{}: reads a variable whose name is elsewhere", file.display());
    found
}

#[test]
fn the_table_has_every_variable_that_the_sources_name_and_the_page_for_users_has_the_table() {
    let mut files = Vec::new();
    for one in fs::read_dir(repository().join("crates")).unwrap() {
        let source = one.unwrap().path().join("src");
        if source.is_dir() {
            sources(&source, &mut files);
        }
    }
    sources(&repository().join("nginx/src"), &mut files);
    let mut found = BTreeSet::new();
    let table = repository().join("crates/wattlock-shell/src/environment.rs");
    files.iter().filter(|file| **file != table).for_each(|file| named(file, &mut found));
    // Names of C macros are in no string.
    let known: BTreeSet<String> =
        VARIABLES.iter().chain(INTERNAL).map(|(name, _)| (*name).to_owned()).collect();
    let own: BTreeSet<String> = known.iter().filter(|name| name.starts_with("WATTLOCK_")).cloned().collect();
    assert_eq!(found, own, "environment.rs has a table of all");
    let mut read = BTreeSet::new();
    for file in files.iter().filter(|file| **file != table) {
        let unknown: Vec<_> = read_by(file).into_iter().filter(|name| !known.contains(name)).collect();
        assert!(unknown.is_empty(), "environment.rs lacks what {} reads: {unknown:?}", file.display());
        read.extend(read_by(file));
    }
    // Read while a program is built, and not by it.
    let built = ["WATTLOCK_COMMIT", "WATTLOCK_AWS_LC_RS"];
    let unread: Vec<_> =
        known.iter().filter(|name| !read.contains(*name) && !built.contains(&&***name)).collect();
    assert!(unread.is_empty(), "environment.rs has what nothing reads: {unread:?}");
    let page = fs::read_to_string(repository().join("docs/use/command-line.md")).unwrap();
    for (name, meaning) in VARIABLES.iter().chain(FILES) {
        assert!(page.contains(&format!("| `{name}` | {meaning} |")), "command-line.md: {name}: {meaning}");
    }
    let help = good(&wattlock(&["--help"]));
    assert!(VARIABLES.iter().all(|(name, _)| help.contains(name)), "{help}");
}

#[test]
fn the_version_says_the_commit_on_lines_of_its_own() {
    built::siblings();
    for program in ["wattlock", "wattlock-bench", "wattlock-lab"] {
        let program = Path::new(env!("CARGO_BIN_EXE_wattlock")).with_file_name(program);
        let says = |option: &str| good(&Command::new(&program).arg(option).output().unwrap());
        assert_eq!(says("-V"), concat!("wattlock ", env!("CARGO_PKG_VERSION"), "\n"));
        let long = says("--version");
        let lines: Vec<&str> = long.lines().collect();
        assert_eq!(lines[0], concat!("wattlock ", env!("CARGO_PKG_VERSION")));
        let commit = lines[1].strip_prefix("commit ").unwrap();
        let name = commit.strip_suffix(", changed").unwrap_or(commit);
        assert!(
            name == "unknown" || name.len() >= 7 && name.bytes().all(|b| b.is_ascii_hexdigit()),
            "{long}"
        );
        assert!(lines[2].contains(std::env::consts::ARCH), "{long}");
    }
}

#[test]
fn a_program_that_is_not_there_costs_its_options_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("wattlock");
    // By another process: a program that another test starts meanwhile would hold a file that this one has open to write.
    let shell = |line: &str| {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", line, "sh", env!("CARGO_BIN_EXE_wattlock")]).current_dir(folder.path());
        good(&shell.output().unwrap())
    };
    shell("cp \"$1\" wattlock");
    let run =
        || Command::new(&alone).args(["completions", "bash"]).env("PATH", folder.path()).output().unwrap();
    let output = run();
    assert!(good(&output).contains("--recipient"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("wattlock-bench is not there"));
    // One of another version is told of, and not half believed.
    shell("printf '#!/bin/sh\\necho nonsense\\n' >wattlock-bench; chmod +x wattlock-bench");
    let output = run();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("of another version"));
}
