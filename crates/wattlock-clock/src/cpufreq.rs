//! The CPU's clocks, limited through the kernel's `cpufreq` files.

use std::fs;
use std::path::PathBuf;

use crate::record::{Record, Recovered, recover};
use crate::survey::{LIMIT, survey};
use crate::{Error, Governor, Places};

/// All CPUs' clocks as one device. Its steps are those of the clock that has most; a step limits each other clock to the
/// lowest of its own that is at least the same share of its highest.
#[derive(Debug)]
pub struct Cpufreq {
    limits: Vec<(PathBuf, Vec<u64>)>,
    clocks_khz: Vec<u64>,
    before: Record,
    record: PathBuf,
    /// Nothing was set yet, or all is put back.
    present: Option<usize>,
    changes: u64,
}

impl Cpufreq {
    /// The CPUs' clocks. What another process left changed when it was killed is put back first.
    ///
    /// # Errors
    /// [`Error::Nothing`], [`Error::Held`], those of [`recover`].
    pub fn open(places: &Places) -> Result<Cpufreq, Error> {
        if let Recovered::Held(pid) = recover(places)? {
            return Err(Error::Held(pid));
        }
        let found = survey(&places.tree);
        if let Some(why) = found.why_not() {
            return Err(Error::Nothing(why));
        }
        let before = found.domains.iter().map(|domain| (domain.limit_khz, domain.path.join(LIMIT))).collect();
        let clocks_khz = found.widest().to_vec();
        let limits = found.domains.iter().map(|domain| {
            let own = clocks_khz.iter().map(|khz| of_share(&domain.steps_khz, *khz, &clocks_khz));
            (domain.path.join(LIMIT), own.collect())
        });
        let limits = limits.collect();
        Ok(Cpufreq {
            limits,
            clocks_khz,
            before: Record::own(before, Vec::new(), Vec::new()),
            record: places.record.clone(),
            present: None,
            changes: 0,
        })
    }
}

/// The lowest of a clock's own steps that is at least the share `khz` of the last of `all`.
fn of_share(own: &[u64], khz: u64, all: &[u64]) -> u64 {
    let (highest, of) = (own.last().copied().unwrap_or(0), all.last().copied().unwrap_or(1));
    let has = |step: &&u64| u128::from(**step) * u128::from(of) >= u128::from(khz) * u128::from(highest);
    own.iter().find(has).copied().unwrap_or(highest)
}

impl Governor for Cpufreq {
    fn clocks_khz(&self) -> &[u64] {
        &self.clocks_khz
    }

    fn set(&mut self, step: usize) -> Result<(), Error> {
        if step >= self.steps() {
            return Err(Error::NoStep(step));
        }
        if self.present == Some(step) {
            return Ok(());
        }
        if self.present.is_none() {
            self.before.save(&self.record)?;
        }
        // From here on there is something to put back, whatever fails.
        self.present = Some(step);
        self.changes += 1;
        for (file, steps) in &self.limits {
            fs::write(file, steps[step].to_string()).map_err(Error::io(file))?;
        }
        Ok(())
    }

    fn restore(&mut self) -> Result<(), Error> {
        if self.present.is_none() {
            return Ok(());
        }
        self.before.put_back(None)?;
        self.present = None;
        fs::remove_file(&self.record).map_err(Error::io(&self.record))
    }

    fn changes(&self) -> u64 {
        self.changes
    }
}

impl Drop for Cpufreq {
    fn drop(&mut self) {
        // What fails here is repeated by the next start: the record stays.
        let _ = self.restore();
    }
}
