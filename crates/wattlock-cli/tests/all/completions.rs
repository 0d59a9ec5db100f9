//! Completions, manual pages, the table of environment variables and `--version`: all from the same definitions as
//! `--help`, and complete.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
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
        // fish: lines for the command name all words on the way to it.
        let last = path.last().map_or("__fish_wattlock_needs_command", String::as_str);
        let for_it = |line: &&str| line.contains(last);
        let of_fish: Vec<&str> = fish.lines().filter(for_it).collect();
        for option in wanted.iter().filter(|option| !["help", "version"].contains(&option.as_str())) {
            options += 1;
            let long = format!("--{option}");
            assert!(page.contains(&long.replace('-', "\\-")), "{name:?}: {long} is not in its page");
            assert!(offered.contains(long.as_str()), "{name:?}: {long} is not in bash's {offered:?}");
            assert!(
                zsh.contains(&format!("{long}[")) || zsh.contains(&format!("{long}=[")),
                "{name:?}: {long}, zsh"
            );
            // clap_complete's script for fish ends at the second level: `fs key add` has no options there.
            let in_fish = path.len() > 2
                || of_fish.iter().any(|line| {
                    line.contains(&format!(" -l {option} ")) || line.ends_with(&format!(" -l {option}"))
                });
            assert!(in_fish, "{name:?}: {long} is not in fish's");
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
    let known = VARIABLES.iter().chain(INTERNAL).map(|(name, _)| (*name).to_owned());
    let known: BTreeSet<String> = known.filter(|name| name.starts_with("WATTLOCK_")).collect();
    assert_eq!(found, known, "environment.rs has a table of all");
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
