//! Key pairs that are made in advance die in every child, whatever made it: it hands out none of its parent's, and its
//! memory has none. The program is `confined/children.c`.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use crate::common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use common::Host;

#[test]
fn no_child_has_a_key_pair_of_its_parents_in_use_or_in_memory() {
    let host = Host::new();
    let program = host.path("children");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/confined/children.c");
    let mut command = Command::new("cc");
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).args([&program, &source]);
    assert!(command.arg("-lcrypto").status().unwrap().success());
    for how in ["fork", "_Fork", "clone", "clone3"] {
        for sort in ["X25519", "P-256", "P-384"] {
            for _ in 0..3 {
                let output =
                    host.command(true, program.to_str().unwrap()).args([how, sort]).output().unwrap();
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success(), "{how} {sort}: {} {text}", output.status);
                assert!(
                    !text.contains("found"),
                    "{how} {sort}: the child's memory has its parent's next keys"
                );
                let keys: Vec<&str> = text.lines().filter_map(|line| line.split(' ').nth(1)).collect();
                let different: BTreeSet<&str> = keys.iter().copied().collect();
                assert_eq!((keys.len(), different.len()), (16, 16), "{how} {sort}\n{text}");
            }
        }
    }
}
