//! The setting `verify`: which ECDSA signatures are verified before they leave (`verify.c`). That a wrong one does not leave
//! is shown where faults can be planted: `a_wrong_signature_*` in `wattlock`'s `lanes.rs` and `inline.rs`.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use crate::common;

use std::path::Path;
use std::process::Command;

use common::Host;

/// Signatures that the program makes in each of its rounds: 20 one by one, 16 in jobs.
const MADE: u32 = 36;

#[test]
fn signatures_of_the_cpu_are_verified_if_the_setting_says_so_and_else_not() {
    let host = Host::new();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("cc")
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(here.join("include"))
        .arg("-o")
        .args([&host.path("program"), &here.join("tests/verify.c")])
        .arg("-lcrypto")
        .status();
    assert!(built.unwrap().success(), "verify.c was not compiled");
    let config = String::from_utf8(host.read("with.cnf")).unwrap();
    for (begins, then, expected) in [
        ("", "accelerators", [0, 0]),
        ("verify = accelerators", "signatures", [0, MADE]),
        ("verify = signatures", "accelerators", [MADE, 0]),
        // Lanes have no part in it: what instructions, or plain code, sign one by one is verified, too.
        ("verify = signatures\nengines = instruction", "signatures", [MADE, MADE]),
        ("verify = signatures\nengines = software", "signatures", [MADE, MADE]),
    ] {
        let section = format!("{config}[wattlock_section]\nalgorithms = ec\n{begins}\n");
        host.write("with.cnf", section.as_bytes());
        let output = host.command(true, host.path("program").to_str().unwrap()).arg(then).output().unwrap();
        assert!(output.status.success(), "{begins}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        let verified: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(verified, expected, "{begins}, then {then}");
    }
}

#[test]
fn another_value_keeps_the_provider_from_loading() {
    let host = Host::new();
    let config = String::from_utf8(host.read("with.cnf")).unwrap();
    for (value, loads) in [("signatures", true), ("all", false)] {
        host.write("with.cnf", format!("{config}[wattlock_section]\nverify = {value}\n").as_bytes());
        let listed = host.openssl(true, "list -providers");
        assert_eq!(String::from_utf8_lossy(&listed.stdout).contains("Wattlock"), loads, "{value}");
    }
}
