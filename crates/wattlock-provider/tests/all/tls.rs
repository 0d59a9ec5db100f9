//! A TLS server in asynchronous mode with many connections in one thread (`tls.c`), whose clients come, talk and go away
//! in mid-handshake; also with the address sanitizer, of which `host.rs` says what it sees.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use crate::common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use common::Host;

/// The program, compiled once, with or without the address sanitizer.
fn program(sanitizer: bool) -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf, PathBuf)> = OnceLock::new();
    let (_, plain, checked) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let build = |name: &str, flags: &[&str]| {
            let out = folder.path().join(name);
            let built = Command::new("cc")
                .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I"])
                .arg(here.join("include"))
                .args(flags)
                .arg("-o")
                .args([&out, &here.join("tests/tls.c")])
                .args(["-lssl", "-lcrypto"])
                .status();
            assert!(built.unwrap().success(), "tls.c was not compiled");
            out
        };
        let (plain, checked) = (build("plain", &[]), build("checked", &["-fsanitize=address"]));
        (folder, plain, checked)
    });
    if sanitizer { checked } else { plain }
}

/// What the program printed.
fn run(sanitizer: bool, scenario: &str, count: u32) -> String {
    run_on(&Host::new(), sanitizer, scenario, count)
}

fn run_on(host: &Host, sanitizer: bool, scenario: &str, count: u32) -> String {
    let output = Command::new(program(sanitizer))
        .args([scenario, "with.cnf", &count.to_string()])
        .current_dir(host.path(""))
        .env("OPENSSL_CONF", "/dev/null")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scenario} {count}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_client_that_stays_is_answered_and_those_that_go_leave_nothing() {
    run(false, "handshakes", 600);
    run(true, "handshakes", 150);
}

#[test]
fn it_is_loaded_used_in_jobs_and_unloaded_again_and_again() {
    let host = Host::new();
    // Not `ctr`: OpenSSL 3.0 frees a context's random generator after its providers, so one that uses our AES-CTR keeps
    // the provider for ever. 3.5 does not.
    let config = String::from_utf8(host.read("with.cnf")).unwrap();
    let section = "[wattlock_section]\n";
    assert!(config.contains(section));
    let without = config.replace(section, &format!("{section}algorithms = gcm,xts,rsa,ec,x25519\n"));
    host.write("with.cnf", without.as_bytes());
    run_on(&host, false, "reload", 3);
    run_on(&host, true, "reload", 2);
}

#[test]
fn memory_and_descriptors_do_not_grow_with_the_number_of_handshakes() {
    run(false, "flat", 2000);
}

#[test]
fn what_was_loaded_works_in_an_empty_chroot() {
    run(false, "chroot", 400);
}

#[test]
fn no_system_call_is_needed_that_the_page_does_not_name() {
    run(false, "seccomp", 400);
}

/// The whole of it: `make soak`.
#[test]
#[ignore = "takes minutes"]
fn nor_do_they_over_a_hundred_thousand() {
    print!("{}", run(false, "flat", 100_000));
}
