//! Where processes spend their processor time, by Linux's profiler: samples of the processor's clock, by the library in
//! which they were taken.

use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use wattlock_shell::INTERRUPTED;

use crate::record::version_of;
use crate::tended::Tended;

/// Samples a second of a processor's time; no multiple of a timer's.
const A_SECOND: &str = "997";
/// How long `perf` may take beside what it watches.
const PATIENCE: Duration = Duration::from_secs(20);

/// Shares of samples.
#[derive(Debug, PartialEq)]
pub struct Shares {
    /// In libcrypto and in Wattlock's provider.
    pub cryptography: f64,
    /// In the kernel, as far as this user may see it.
    pub kernel: f64,
}

/// Watches processes for this long while `load` keeps them busy for longer. `Ok(Err)` is why there are no samples: no
/// `perf`, or not for this user.
///
/// # Errors
/// The load's, and the user's interrupt.
pub fn shares(
    processes: &[u32],
    seconds: f64,
    folder: &Path,
    load: impl FnOnce(f64) -> Result<()> + Send,
) -> Result<Result<Shares, String>> {
    if version_of("perf", "--version").is_none() {
        return Ok(Err("there is no perf here".to_owned()));
    }
    let data = folder.join("perf.data");
    let list: Vec<String> = processes.iter().map(u32::to_string).collect();
    let mut record = Command::new("perf");
    record
        .args(["record", "-q", "-N", "-e", "cpu-clock", "-F", A_SECOND, "-p", &list.join(","), "-o"])
        .arg(&data);
    record.args(["--", "sleep", &seconds.to_string()]);
    let mut complaint = String::new();
    let within = PATIENCE + Duration::from_secs_f64(seconds);
    let status = std::thread::scope(|scope| {
        let loaded = scope.spawn(|| load(seconds + 1.0));
        let status = Tended::to_end(&record, within, |line| complaint = line.text);
        loaded.join().map_err(|_| anyhow::anyhow!("the load failed"))??;
        excused(status)
    })?;
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => return Ok(Err(format!("perf: {status}: {complaint}"))),
        Err(why) => return Ok(Err(why)),
    }
    let mut report = Command::new("perf");
    report.args(["report", "-q", "--stdio", "--sort", "dso", "-F", "overhead,dso", "-i"]).arg(&data);
    let mut seen = Vec::new();
    let status = excused(Tended::to_end(&report, PATIENCE, |line| seen.extend(sample(&line.text))))?;
    Ok(match (status, of(&seen)) {
        (Ok(_), shares) if seen.is_empty() => Err(format!("perf report: no sample ({shares:?})")),
        // Without its part a share is of another whole.
        (Ok(_), shares) if shares.kernel == 0.0 => {
            Err("this user may not see the kernel's samples".to_owned())
        }
        (Ok(_), shares) => Ok(shares),
        (Err(why), _) => Err(why),
    })
}

/// What is wrong with a profiler is no fault of what it looks at. An interrupt is the user's.
fn excused(status: Result<ExitStatus>) -> Result<Result<ExitStatus, String>> {
    match status {
        Err(error) if INTERRUPTED.load(Ordering::SeqCst) => Err(error),
        status => Ok(status.map_err(|error| format!("perf: {error:#}"))),
    }
}

/// `    57.14%  libcrypto.so.3`
fn sample(line: &str) -> Option<(f64, String)> {
    let (share, library) = line.trim().split_once('%')?;
    Some((share.parse::<f64>().ok()? / 100.0, library.trim().to_owned()))
}

fn of(seen: &[(f64, String)]) -> Shares {
    let sum = |names: &[&str]| -> f64 {
        seen.iter()
            .filter(|(_, library)| names.iter().any(|name| library.starts_with(name)))
            .map(|one| one.0)
            .sum()
    };
    Shares {
        cryptography: sum(&["libcrypto.", "libwattlock_provider.", "libwattlock_emulated.", "wattlock.so"]),
        kernel: sum(&["[kernel", "[k]"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_library() {
        let lines = [
            "",
            "    57.14%  libcrypto.so.3",
            " 20.36%  [kernel.kallsyms]",
            "12.5%  nginx",
            "x% y",
            "  0.00%  ",
        ];
        let seen: Vec<_> = lines.into_iter().filter_map(sample).collect();
        assert_eq!(seen.len(), 4);
        let shares = of(&[seen, vec![(0.1, "libwattlock_provider.so".into())]].concat());
        assert!(
            (shares.cryptography - 0.6714).abs() < 1e-9 && (shares.kernel - 0.2036).abs() < 1e-9,
            "{shares:?}"
        );
    }
}
