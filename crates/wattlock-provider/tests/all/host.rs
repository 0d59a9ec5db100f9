//! A program of our own in C (`host.c`) uses the provider as programs do: threads, forks, loading and unloading, and
//! `ASYNC_JOB`s in every order, each also with the address sanitizer.
//!
//! What the compiler instruments is the program. Of the provider the sanitizer sees what it allocates, frees, loses and
//! hands to the C library, not its own loads and stores: for those there is `scripts/test/valgrind.sh`.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use crate::common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The program, compiled once, with or without the address sanitizer.
fn host(sanitizer: bool) -> &'static Path {
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
                .args([&out, &here.join("tests/host.c")])
                .args(["-lcrypto", "-lpthread"])
                .status();
            assert!(built.unwrap().success(), "host.c was not compiled");
            out
        };
        let (plain, checked) = (build("plain", &[]), build("checked", &["-fsanitize=address"]));
        (folder, plain, checked)
    });
    if sanitizer { checked } else { plain }
}

fn run(sanitizer: bool, scenario: &str, count: u32) {
    let module = common::module();
    // A child forgets what a fork spoiled, one seat a fork, on purpose: a lock in it may be held for ever. What lies on
    // the fiber of an abandoned job is the application's to finish, which here it does not.
    let leaks = i32::from(!["forks", "abandon"].contains(&scenario));
    let output = Command::new(host(sanitizer))
        .args([scenario, module.parent().unwrap().to_str().unwrap(), &count.to_string()])
        .env("OPENSSL_CONF", "/dev/null")
        .env("ASAN_OPTIONS", format!("detect_leaks={leaks}"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{scenario} {count}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn loading_starts_no_thread_and_leaves_nothing_open() {
    run(false, "quiet", 1);
    run(true, "quiet", 1);
}

#[test]
fn threads_come_and_go() {
    run(false, "threads", 10);
    run(true, "threads", 2);
}

#[test]
fn what_was_used_before_a_fork_is_used_after_it_two_levels_deep() {
    run(false, "forks", 1);
    run(true, "forks", 1);
}

#[test]
fn it_is_loaded_and_unloaded_again_and_again() {
    run(false, "reload", 40);
    run(true, "reload", 5);
}

#[test]
fn jobs_side_by_side_are_right_whenever_they_are_resumed() {
    for count in [1, 2, 4, 7, 8, 64, 200] {
        run(false, "jobs", count);
    }
    run(true, "jobs", 100);
}

#[test]
fn where_pausing_is_blocked_work_is_done_inside_the_call() {
    run(false, "blocked", 20);
    run(true, "blocked", 5);
}

#[test]
fn where_nothing_gains_by_company_a_job_pauses_only_if_it_is_told_to() {
    run(false, "inline-only", 20);
    run(true, "inline-only", 3);
}

#[test]
fn a_wait_context_may_go_away_under_a_job() {
    run(false, "abandon", 30);
    run(true, "abandon", 10);
}

#[test]
fn whoever_asked_for_a_callback_gets_one() {
    run(false, "callbacks", 64);
    run(true, "callbacks", 20);
}

#[test]
fn no_descriptor_is_left_that_the_application_was_not_told_of() {
    run(false, "untold", 4);
    run(true, "untold", 2);
}

#[test]
fn a_whole_nonce_set_as_the_fixed_part_counts_up_as_openssls_does() {
    // Past 255, so that a carry is among them.
    run(false, "fixed-nonce", 260);
    run(true, "fixed-nonce", 3);
}
