//! AES keys as objects (`EVP_SKEY`, OpenSSL 3.5 and later) in a program that names no provider (`skey.c`): with Wattlock
//! preferred its AES-GCM, -CBC and -CTR take them, as OpenSSL's own do without it. Skipped, with a line, before 3.5.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use crate::common;

use std::path::Path;
use std::process::Command;

use common::Host;

#[test]
fn keys_as_objects_work_with_the_ciphers_that_are_preferred() {
    let host = Host::new();
    let config = String::from_utf8(host.read("with.cnf")).unwrap();
    // On any machine, whether it is faster there or not.
    host.write(
        "with.cnf",
        format!("{config}[wattlock_section]\nalgorithms = ctr,cbc,gcm,ec,rsa\n").as_bytes(),
    );
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/skey.c");
    for flags in [&["-O1"][..], &["-O1", "-fsanitize=address"]] {
        let built = Command::new("cc")
            .args(["-g", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&host.path("program"), &source])
            .args(flags)
            .arg("-lcrypto")
            .status();
        assert!(built.unwrap().success(), "skey.c was not compiled");
        for (provider, name) in [(false, "default"), (true, "wattlock")] {
            let mut command = host.command(provider, host.path("program").to_str().unwrap());
            let output = command.arg(name).output().unwrap();
            if output.status.code() == Some(77) {
                println!("skipped: EVP_SKEY needs OpenSSL 3.5 or later (scripts/test/newer.sh)");
                return;
            }
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name} {flags:?}: {}\n{said}", output.status);
        }
    }
    // The program that comes with it says which parameters a key manager takes.
    host.write("text", b"text");
    let (key, iv) = ("5a".repeat(32), "0102030405060708090a0b0c0d0e0f10");
    let enc = "enc -aes-256-cbc -in text -out";
    host.good(true, &format!("{enc} object -skeymgmt AES -skeyopt hexraw-bytes:{key} -iv {iv}"));
    host.good(false, &format!("{enc} bytes -K {key} -iv {iv}"));
    assert!(!host.read("object").is_empty() && host.read("object") == host.read("bytes"));
}
