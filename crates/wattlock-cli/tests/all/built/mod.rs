//! The program with all that it finds beside itself.
#![allow(dead_code, reason = "no test needs all of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The program, with the provider, the module and the programs that do its benches where it looks for them.
pub fn program() -> &'static Path {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        siblings();
        provider();
        let (target, _) = folders();
        let build =
            Command::new(repository().join("nginx/build.sh")).env("CARGO_TARGET_DIR", target).status();
        assert!(build.unwrap().success(), "the module cannot be built");
    });
    own()
}

/// The program; if the words are for one of those beside it, with them.
pub fn program_for(words: &[&str]) -> &'static Path {
    if words.iter().any(|word| ["bench", "lab", "report", "--compare"].contains(word)) {
        siblings();
    }
    if words.iter().any(|word| ["--emulate", "--models"].contains(word)) {
        emulated();
    }
    own()
}

/// The provider, with emulated cards in the file beside it. Always built: one that an earlier build left may be of another
/// version than nginx's module.
pub fn provider() -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| build(&["wattlock-provider", "wattlock-emulated"]));
    own().with_file_name("libwattlock_provider.so")
}

/// The program with emulated cards.
pub fn emulated() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| build(&["wattlock-emulated"]));
}

/// The programs of `wattlock bench` and `wattlock lab`.
pub fn siblings() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| build(&["wattlock-bench", "wattlock-lab"]));
}

fn own() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_wattlock"))
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// The build folder, and the folder of this profile in it.
fn folders() -> (&'static Path, &'static Path) {
    let folder = own().parent().unwrap();
    (folder.parent().unwrap(), folder)
}

fn build(packages: &[&str]) {
    let (target, folder) = folders();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--target-dir"]).arg(target);
    cargo.args(packages.iter().flat_map(|package| ["-p", package]));
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.current_dir(repository()).status().unwrap().success(), "{packages:?} cannot be built");
}
