//! The CPU's clocks, limited through the kernel's `cpufreq` files.

use std::fs;
use std::path::PathBuf;

use crate::record::{Record, Recovered, recover};
use crate::survey::{LIMIT, survey};
use crate::{Error, Governor, Places};

/// All CPUs' clocks as one device. Step *n* limits each to its own *n*-th step.
#[derive(Debug)]
pub struct Cpufreq {
    limits: Vec<(PathBuf, Vec<u64>)>,
    steps: usize,
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
        let steps = found.steps();
        // Clocks that have more steps than others use the highest, so that the top step is everybody's limit.
        let limits = found.domains.into_iter().map(|domain| {
            let surplus = domain.steps_khz.len() - steps;
            (domain.path.join(LIMIT), domain.steps_khz[surplus..].to_vec())
        });
        Ok(Cpufreq {
            limits: limits.collect(),
            steps,
            before: Record::own(before, Vec::new()),
            record: places.record.clone(),
            present: None,
            changes: 0,
        })
    }
}

impl Governor for Cpufreq {
    fn steps(&self) -> usize {
        self.steps
    }

    fn set(&mut self, step: usize) -> Result<(), Error> {
        if step >= self.steps {
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
