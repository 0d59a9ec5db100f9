//! What README and every `--help` show works as it stands there: `scripts/test/typed.py` types it at a terminal.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::Command;

use crate::built;

/// Prints what was typed, and how many lines need what is not here.
fn type_all(what: &str) {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut typing = Command::new("python3");
    typing.arg(repository.join("scripts/test/typed.py")).arg("--wattlock").arg(built::program()).arg(what);
    let output = typing.output().unwrap();
    let shown =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    println!("{shown}");
    assert!(output.status.success(), "{shown}");
}

#[test]
fn every_line_of_readme_works_in_order_in_an_empty_folder() {
    type_all("readme");
}

#[test]
fn every_example_of_every_help_works() {
    type_all("help");
}
