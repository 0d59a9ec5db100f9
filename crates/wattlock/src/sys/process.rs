//! Which user's this process is, and what it may do: the one place that decides whether the environment is to be
//! trusted, and whether anything optional is tried.
//!
//! A program that runs with more rights than its caller has (set-uid, set-gid, file capabilities) gets its environment from
//! that caller. A program behind a seccomp filter may be killed for a call that it never made before. Both are read from
//! one file of `/proc`, by calls that loading a library has just made: open, read, close. Nothing here is asked again later.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// What `/proc/thread-self/status` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The program's name, at most 15 bytes of it.
    pub name: String,
    /// Whether a seccomp filter, or strict mode, is in force; also where that cannot be read.
    pub confined: bool,
    /// Cores that it may use, quotas not counted.
    pub cores: usize,
    /// Whether it has another user or group than its caller.
    foreign: bool,
}

impl Process {
    /// The calling thread's.
    pub fn here() -> Process {
        let mut text = String::new();
        let read = File::open("/proc/thread-self/status")
            .and_then(|file| file.take(1 << 16).read_to_string(&mut text));
        Process::parse(if read.is_ok() { &text } else { "" })
    }

    fn parse(text: &str) -> Process {
        let field = |name: &str| {
            text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
        };
        let differ = |name| {
            let mut ids = field(name).unwrap_or_default().split_ascii_whitespace();
            ids.next() != ids.next()
        };
        // A kernel without seccomp has no such line.
        let free = text.contains("\nThreads:") && field("Seccomp").is_none_or(|mode| mode == "0");
        Process {
            name: field("Name").unwrap_or_default().to_owned(),
            confined: !free,
            cores: field("Cpus_allowed_list").map_or(1, cores),
            foreign: differ("Uid") || differ("Gid"),
        }
    }
}

/// How many numbers a list such as `0-3,8` has.
fn cores(list: &str) -> usize {
    let number = |text: &str| text.parse::<usize>().ok();
    let count = |range: &str| match range.split_once('-') {
        Some((first, last)) => number(last)?.checked_sub(number(first)?)?.checked_add(1),
        None => number(range).map(|_| 1),
    };
    list.split(',').filter_map(count).sum::<usize>().max(1)
}

/// Whether the program has more rights than its caller: then nothing is believed of the environment, and no file is
/// made. The kernel's word at the start of the program, and what the ids say now.
pub fn elevated() -> bool {
    // SAFETY: reads a number that the kernel gave the process at its start.
    let at_start = unsafe { libc::getauxval(libc::AT_SECURE) != 0 };
    at_start || Process::here().foreign
}

/// A variable of the environment that is a path; none for a program with more rights than its caller.
pub(crate) fn variable(name: &str) -> Option<PathBuf> {
    let value: Option<OsString> = if elevated() { None } else { std::env::var_os(name) };
    value.map(PathBuf::from)
}

/// Whether the kernel knows no process of this number; `/proc` may hide others' (`hidepid`).
pub(crate) fn is_no_process(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().filter(|pid| *pid > 0) else { return true };
    // SAFETY: a call that touches no memory; signal 0 is sent to nobody, and the number is one process's.
    let there = unsafe { libc::kill(pid, 0) } == 0;
    !there && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// The random bytes that the kernel gave the program when it was executed: all copies of this library in it see the same,
/// and so does a child of a fork. The C library guards its stacks with them, so they are to be shown to nobody.
pub(crate) fn image_secret() -> Option<[u8; 16]> {
    // SAFETY: reads a number that the kernel gave the process at its start.
    let at = unsafe { libc::getauxval(libc::AT_RANDOM) } as *const [u8; 16];
    // SAFETY: null, or the place of 16 bytes that the kernel wrote above the first stack, which is never unmapped
    // (getauxval(3)).
    unsafe { at.as_ref() }.copied()
}

/// The effective user's id.
pub(crate) fn effective_uid() -> u32 {
    // SAFETY: a call without arguments that cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "Name:\tsshd\nUid:\t0\t0\t0\t0\nGid:\t5\t5\t5\t5\nThreads:\t1\nSeccomp:\t0\nCpus_allowed_list:\t0-1,8\n";

    #[test]
    fn the_kernel_knows_which_processes_there_are() {
        assert!(![std::process::id(), 1].into_iter().any(is_no_process));
        // What stands for groups of processes is none's number.
        for none in [0, 4_194_305, i32::MAX as u32, u32::MAX, u32::MAX - 1] {
            assert!(is_no_process(none), "{none}");
        }
    }

    #[test]
    fn filters_and_foreign_ids_are_seen() {
        let plain = Process::parse(PLAIN);
        let expected = Process { name: "sshd".into(), confined: false, cores: 3, foreign: false };
        assert_eq!(plain, expected);
        for mode in ["1", "2"] {
            let line = format!("Seccomp:\t{mode}");
            assert!(Process::parse(&PLAIN.replace("Seccomp:\t0", &line)).confined);
        }
        assert!(!Process::parse(&PLAIN.replace("Seccomp:\t0\n", "")).confined, "a kernel without it");
        assert!(Process::parse("").confined, "what cannot be read is not free");
        assert!(Process::parse(&PLAIN.replace("Uid:\t0\t0", "Uid:\t1000\t0")).foreign);
        assert!(Process::parse(&PLAIN.replace("Gid:\t5\t5", "Gid:\t5\t6")).foreign);
        assert!(!Process::parse("").foreign);
        assert_eq!((cores(""), cores("0"), cores("0-63"), cores("5-2,x")), (1, 1, 64, 1));
    }
}
