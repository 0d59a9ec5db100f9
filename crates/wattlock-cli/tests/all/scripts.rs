//! What scripts decide: whether there is a package, why a module was not built, and that no pipe of theirs ends early. And
//! what the programs and libraries of users are made of.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn text(output: &Output) -> String {
    [&*output.stdout, &*output.stderr].map(String::from_utf8_lossy).concat()
}

/// `scripts/setup/candidate.sh` with an `apt-cache` that runs these words.
fn candidate(apt_cache: &str) -> Option<i32> {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("apt-cache");
    fs::write(&program, format!("#!/bin/sh\n{apt_cache}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    // As its caller is: a pipe whose reader leaves fails it.
    let script = "set -o pipefail; exec scripts/setup/candidate.sh nginx-dev";
    let mut command = Command::new("bash");
    command.args(["-c", script]).current_dir(repository()).env("PATH", path).status().unwrap().code()
}

/// The first command of a newcomer makes the folder of builds before Cargo does.
#[test]
fn a_folder_of_builds_is_marked_as_one_whoever_makes_it() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    let mut command = Command::new("scripts/setup/quiet.sh");
    command.args(["words", "true"]).current_dir(repository()).env("CARGO_TARGET_DIR", &target);
    assert!(command.status().unwrap().success());
    let tag = fs::read_to_string(target.join("CACHEDIR.TAG")).unwrap();
    assert!(tag.starts_with("Signature: 8a477f597d28d172789f06886806bc55\n"), "{tag}");
    assert!(wattlock_shell::parts::in_build_folder(&target.join("debug/a.so")));
}

#[test]
fn a_package_is_there_however_much_apt_says_after_that() {
    let long = "echo '  Candidate: 1.22.1-9'\nseq 1 100000";
    assert_eq!(candidate(&format!("{long} || exit 1")), Some(0));
    assert_eq!(candidate("echo '  Candidate: (none)'; seq 1 100000"), Some(1));
    assert_eq!(candidate("exit 0"), Some(1), "a name that apt has never heard");
    assert_eq!(candidate("echo '  Candidate: 1.22.1-9'; exit 100"), Some(2), "apt's failure is no answer");
}

#[test]
fn no_sources_and_a_module_that_cannot_be_built_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let build = |sources: &Path| {
        let mut command = Command::new(repository().join("nginx/build.sh"));
        command.arg(sources).env("OUT", folder.path().join("out")).env_remove("WATTLOCK_NGINX");
        command.output().unwrap()
    };
    let none = build(&folder.path().join("none"));
    assert_eq!(none.status.code(), Some(3), "{}", text(&none));
    assert!(text(&none).contains("install nginx-dev"));
    let broken = folder.path().join("broken");
    fs::create_dir_all(broken.join("src")).unwrap();
    fs::write(broken.join("configure"), "#!/bin/sh\necho no compiler\nexit 1\n").unwrap();
    fs::set_permissions(broken.join("configure"), fs::Permissions::from_mode(0o755)).unwrap();
    let broken = build(&broken);
    assert_eq!(broken.status.code(), Some(1), "{}", text(&broken));
    assert!(text(&broken).contains("no compiler"), "{}", text(&broken));
}

/// `scripts/test/hygiene.sh` in a repository with this script and no other.
fn hygiene(script: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("planted.sh"), script).unwrap();
    for words in [&["init", "--quiet"][..], &["add", "planted.sh"]] {
        assert!(Command::new("git").args(words).current_dir(folder.path()).status().unwrap().success());
    }
    Command::new(repository().join("scripts/test/hygiene.sh")).arg(folder.path()).output().unwrap()
}

#[test]
fn hygiene_finds_every_pipe_that_ends_early() {
    let planted = [
        "a | grep -q b",
        "if ! LC_ALL=C a | LC_ALL=C grep -qw b; then",
        "a |& grep --quiet b",
        "a | grep -m1 b",
        "x=$(a | head -n 1)",
        "a | b |\n    head -c 3",
        "a \\\n    | head",
        "a | sed 3q",
        "a | sed -n '/x/{p;q}' | b",
        "a | awk '{ print; exit }'",
        "a | read -r b",
        "a | { read -r b; }",
    ];
    for line in planted {
        let output = hygiene(&format!("#!/bin/bash\nset -o pipefail\n{line}\n"));
        assert_eq!(output.status.code(), Some(1), "{line}: {}", text(&output));
        assert!(text(&output).contains("planted.sh:"), "{line}: {}", text(&output));
    }
}

#[test]
fn hygiene_leaves_pipes_alone_that_are_read_to_their_end() {
    let good = [
        "# a | head",
        "grep -q a file || head -n 1 file",
        "a | grep -e '-q' b | tail -n 1",
        "a | sed -n 1p",
        "a | sed 's/q/b/; s,.*/,,'",
        "a | awk 'NR == 1' | b",
        "a | awk '{ n++ } END { exit n }'",
        "a | while read -r b; do echo; done",
        "apt-get -qq update",
    ];
    for line in good {
        let output = hygiene(&format!("#!/bin/bash\nset -o pipefail\n{line}\n"));
        assert!(output.status.success(), "{line}: {}", text(&output));
    }
}

/// The version of the workspace is that of all: the bridge lies outside of it, and Debian's packages have a file of their own.
#[test]
fn every_part_of_a_release_has_one_version() {
    let version = env!("CARGO_PKG_VERSION");
    let text = |name: &str| fs::read_to_string(repository().join(name)).unwrap();
    let bridge = text("crates/wattlock-bridge/Cargo.toml");
    assert!(bridge.contains(&format!("\nversion = \"{version}\"\n")), "the bridge has another version");
    let packages = text("debian/changelog");
    assert!(
        packages.starts_with(&format!("wattlock ({version}) ")),
        "debian/changelog: {:?}",
        packages.lines().next()
    );
    assert!(text("CHANGELOG.md").contains(&format!("\n## {version} ")), "CHANGELOG.md has no such release");
}

/// Beside private keys there is no second TLS, no zlib under its own names, no drawer and no simulator.
#[test]
fn what_users_load_has_neither_bench_nor_lab_nor_their_libraries() {
    let packages = |package: &str| -> Vec<String> {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "tree",
            "--locked",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p}",
            "--package",
        ]);
        let output = cargo.arg(package).current_dir(repository()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        lines.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
    };
    let kept_out =
        ["rustls", "flate2", "libz-sys", "cloudflare-zlib-sys", "plotters", "wattlock-lab", "wattlock-bench"];
    let of_benches = packages("wattlock-bench");
    for seen in ["rustls", "libz-sys", "wattlock-lab"] {
        assert!(of_benches.iter().any(|name| name == seen), "the question has an answer: {seen}");
    }
    for product in ["wattlock-cli", "wattlock-provider", "wattlock-gpu"] {
        let packages = packages(product);
        assert!(packages.iter().any(|name| name == "wattlock-core"), "{packages:?}");
        let found: Vec<_> = packages.iter().filter(|name| kept_out.contains(&name.as_str())).collect();
        assert!(found.is_empty(), "{product} has {found:?}");
    }
    // Emulated cards and their faults are in second files, which are never installed.
    let has_cards = |package: &str| packages(package).iter().any(|name| name == "wattlock-emul");
    assert_eq!(
        ["wattlock-emulated", "wattlock-cli", "wattlock-provider", "wattlock-gpu"].map(has_cards),
        [true, false, false, false]
    );
}
