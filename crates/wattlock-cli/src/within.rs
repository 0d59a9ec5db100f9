//! A program of others', with all that it starts, for so long at most: a library that a configuration has it load may
//! never come back.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};

/// Runs it; how it ended, `None` if it had to be killed, and what it said on stderr. Blocks.
///
/// # Errors
/// It cannot be started.
pub fn within(mut command: Command, patience: Duration) -> Result<(Option<ExitStatus>, String)> {
    // A file: a full pipe would hold the program up, and a process that stays would keep it open. In memory: other users
    // can fill a folder for temporary files.
    let mut said = File::from(memfd_create("said", MemfdFlags::CLOEXEC)?);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.try_clone()?).process_group(0);
    let mut child = command.spawn()?;
    let begun = Instant::now();
    let ended = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if begun.elapsed() > patience => {
                // It may have ended meanwhile.
                let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
                child.wait()?;
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let mut words = Vec::new();
    said.rewind()?;
    said.read_to_end(&mut words)?;
    Ok((ended, String::from_utf8_lossy(&words).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_answer_is_ended_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $! >pid; echo words >&2; wait"]).current_dir(folder.path());
        let (ended, said) = within(command, Duration::from_millis(300)).unwrap();
        assert!(ended.is_none() && said == "words\n", "{ended:?} {said}");
        let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        while stat().is_ok_and(|stat| !stat.contains(") Z ")) {
            std::thread::yield_now();
        }
        let mut command = Command::new("sh");
        command.args(["-c", "echo no >&2; exit 3"]);
        let (ended, said) = within(command, Duration::from_secs(60)).unwrap();
        assert_eq!((ended.and_then(|status| status.code()), &*said), (Some(3), "no\n"));
    }
}
