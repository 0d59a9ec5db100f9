//! Programs that this one starts: how they end with it, which processes they have, and the processor time of those.

use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result};

/// A tick of `/proc/PID/stat` (proc(5)): a hundredth of a second on every Linux that this runs on.
const TICK: Duration = Duration::from_millis(10);

/// The same program, told by the kernel to end when the thread that starts it does: an interrupt or a crash leaves nothing
/// behind. In a process group of its own, so that a terminal's interrupt reaches it through this program only. Without
/// `setpriv` of util-linux it stays where this program is killed, and so does one whose file has capabilities that its
/// user has not: execve(2) clears the signal then (prctl(2)).
pub fn ending_with_us(own: &Command) -> Command {
    // What is timed begins at once from the second program on.
    static THERE: LazyLock<bool> = LazyLock::new(|| {
        let mut asked = Command::new("setpriv");
        let asked = asked.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    });
    let mut command = if *THERE {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).arg(own.get_program());
        command
    } else {
        Command::new(own.get_program())
    };
    command.args(own.get_args());
    for (key, value) in own.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    command.process_group(0);
    command
}

/// Processes whose parent is this one.
pub fn children(parent: u32) -> Vec<u32> {
    let mut found: Vec<u32> =
        all().into_iter().filter(|(_, one)| one.parent == parent).map(|(pid, _)| pid).collect();
    found.sort_unstable();
    found
}

/// Processor time of this process, of all that it started and of all that those did, in ticks: this one's alone, and the
/// others', `without` one of them and what that started. What has ended counts from when its parent has waited for it.
pub fn tree_cpu(without: Option<u32>) -> [Duration; 2] {
    let (processes, own) = (all(), std::process::id());
    let ticks = |count: u64| TICK.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
    let Some(root) = processes.get(&own) else { return [Duration::ZERO; 2] };
    let (mut others, mut left) = (root.waited, vec![own]);
    while let Some(parent) = left.pop() {
        let wanted = |pid: u32, one: &Stat| one.parent == parent && Some(pid) != without;
        for (pid, one) in processes.iter().filter(|(pid, one)| wanted(**pid, one)) {
            others += one.own + one.waited;
            left.push(*pid);
        }
    }
    [ticks(root.own), ticks(others)]
}

/// What a process says of itself (proc(5), `stat`).
struct Stat {
    parent: u32,
    /// Ticks of its own, and of children that it waited for.
    own: u64,
    waited: u64,
}

fn all() -> HashMap<u32, Stat> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stat = |pid: u32| {
        let fields = fields(pid)?;
        // Fields 14 to 17 of the whole line; the list starts at field 3.
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let (own, waited) = (ticks(11)? + ticks(12)?, ticks(13)? + ticks(14)?);
        Some((pid, Stat { parent: fields.get(1)?.parse().ok()?, own, waited }))
    };
    processes.filter_map(|entry| stat(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Fields of `/proc/PID/stat` behind the name, which may contain anything: the state is the first.
fn fields(pid: u32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

/// The user with whose rights a process acts now (proc(5), `status`).
///
/// # Errors
/// It is gone.
pub fn user_of(pid: u32) -> Result<u32> {
    let gone = || format!("process {pid} is gone");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).with_context(gone)?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    // The real one, and the effective one.
    let user = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    user.with_context(gone)
}

/// Processor time of a process: from its threads' `schedstat` in nanoseconds where the kernel has it, else from `stat`
/// in ticks.
///
/// # Errors
/// It is gone.
pub fn cpu_of(pid: u32) -> Result<Duration> {
    let gone = || format!("process {pid} is gone");
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).with_context(gone)?;
    let exact: Option<u64> = threads
        .flatten()
        .map(|thread| {
            let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        })
        .sum();
    if let Some(ns) = exact {
        return Ok(Duration::from_nanos(ns));
    }
    let fields = fields(pid).with_context(gone)?;
    let ticks: u64 = fields.iter().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work_until(enough: impl Fn() -> bool) {
        let mut sum = 0_u64;
        while !enough() {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }

    #[test]
    fn own_processor_time_grows_with_work() {
        let pid = std::process::id();
        let before = cpu_of(pid).unwrap();
        work_until(|| cpu_of(pid).unwrap() > before + Duration::from_millis(10));
        let before = tree_cpu(None)[0];
        work_until(|| tree_cpu(None)[0] > before);
        assert!(cpu_of(u32::MAX).is_err());
    }

    #[test]
    fn a_process_knows_its_children_and_what_they_used() {
        let mut child = Command::new("sleep").arg("30").spawn().unwrap();
        assert!(children(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        work_until(|| cpu_of(busy.id()).unwrap() >= 20 * TICK);
        // Whatever else this program started meanwhile is in both.
        let without = tree_cpu(Some(busy.id()))[1];
        assert!(tree_cpu(None)[1] >= without + 10 * TICK);
        busy.kill().unwrap();
        busy.wait().unwrap();
    }

    #[test]
    fn a_program_that_ends_with_us_has_its_words_and_variables() {
        let mut own = Command::new("sh");
        own.args(["-c", "echo $1 $WORD", "sh", "a b"]).env("WORD", "c").env_remove("PATH_NOT_THERE");
        let said = ending_with_us(&own).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout), "a b c\n");
    }
}
