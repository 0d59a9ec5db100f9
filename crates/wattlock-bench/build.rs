//! Bakes into the programs which commit they are built from, and with which aws-lc-rs: `--version` says the commit,
//! benches write both beside their figures, and the lab's program beside those it had measured. Three packages run it.
//!
//! `WATTLOCK_COMMIT` is the short name, with `+` where what the program is made of differs from it, and `unknown`
//! outside a clone (a release's archive), without git, and in a clone that is another project's.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What programs and modules are made of; other files may differ without making another program.
const MADE_OF: [&str; 4] = ["crates", "nginx", "Cargo.toml", "Cargo.lock"];

fn main() {
    println!("cargo::rerun-if-changed=../wattlock-bench/build.rs");
    if std::env::var("CARGO_PKG_NAME").as_deref() == Ok("wattlock-lab")
        && std::env::var_os("CARGO_FEATURE_PROGRAM").is_none()
    {
        return; // The library says nothing of a commit, and is not built anew for each.
    }
    println!("cargo::rustc-env=WATTLOCK_COMMIT={}", commit().unwrap_or_else(|| "unknown".to_owned()));
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    let version = locked("aws-lc-rs").unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=WATTLOCK_AWS_LC_RS={version}");
}

/// The version of a library in Cargo.lock: libraries of Rust do not say it themselves.
fn locked(name: &str) -> Option<String> {
    let text = std::fs::read_to_string("../../Cargo.lock").ok()?;
    let rest = text.split_once(&format!("name = \"{name}\"\nversion = \""))?.1;
    Some(rest.split_once('"')?.0.to_owned())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).current_dir("../..").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn commit() -> Option<String> {
    // An archive of this project may lie inside the clone of another one.
    let top = PathBuf::from(git(&["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != Path::new("../..").canonicalize().ok()? {
        return None;
    }
    // As long in each clone, however much of the history it has.
    let name = git(&["rev-parse", "--short=12", "HEAD"])?;
    // In a work tree these lie in two folders, and only git knows which. Cargo takes a path that does not exist for
    // one that has changed.
    let branch = git(&["symbolic-ref", "-q", "HEAD"]);
    for of_git in ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let path = git(&["rev-parse", "--git-path", of_git]).map(|path| Path::new("../..").join(path));
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    for part in ["../../nginx/src", "../../Cargo.toml"] {
        println!("cargo::rerun-if-changed={part}");
    }
    for folder in std::fs::read_dir("..").ok()?.flatten() {
        let source = folder.path().join("src");
        if source.is_dir() {
            println!("cargo::rerun-if-changed={}", source.display());
        }
    }
    let changes = git(&[&["status", "--porcelain", "--"][..], &MADE_OF].concat())?;
    Some(name + if changes.is_empty() { "" } else { "+" })
}
