//! AES-CTR and AES-XTS: call for call what OpenSSL's own gives; and nonces that AES-GCM is to draw (`plain.c`).
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use crate::common;

use std::path::Path;
use std::process::Command;

use common::Host;

#[test]
fn every_call_gives_what_openssl_gives() {
    let host = Host::new();
    let config = String::from_utf8(host.read("with.cnf")).unwrap();
    // On any machine, whether it is faster there or not.
    host.write("with.cnf", format!("{config}[wattlock_section]\nalgorithms = ctr,xts,gcm\n").as_bytes());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plain.c");
    for flags in [&["-O1"][..], &["-O1", "-fsanitize=address"]] {
        let built = Command::new("cc")
            .args(["-g", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&host.path("program"), &source])
            .args(flags)
            .arg("-lcrypto")
            .status();
        assert!(built.unwrap().success(), "plain.c was not compiled");
        let mut command = host.command(true, host.path("program").to_str().unwrap());
        let output = command.arg(host.path("with.cnf")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
