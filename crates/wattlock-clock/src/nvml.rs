//! A GPU's clocks, locked through NVML. The library belongs to the driver and is looked for at run time.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;

use nvml_wrapper::enums::device::GpuLockedClocksSetting;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use crate::record::{Record, Recovered, recover};
use crate::{Error, Governor, Places};

/// What the driver installs; the plain `.so` comes with development packages only.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// More GPUs than any machine has.
const MOST: u32 = 64;

/// What NVML says of a GPU's clocks. It does not say whether they are locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    /// Its PCI bus id.
    pub bus: String,
    /// Its name.
    pub name: String,
    /// What its clock can be locked to, in MHz, lowest first.
    pub clocks_mhz: Vec<u32>,
}

/// NVML's words, and whether they mean that nothing was changed.
struct Refusal {
    error: Error,
    changed_nothing: bool,
}

impl From<NvmlError> for Refusal {
    fn from(error: NvmlError) -> Refusal {
        let changed_nothing = matches!(
            error,
            NvmlError::NoPermission
                | NvmlError::NotSupported
                | NvmlError::InvalidArg
                | NvmlError::FailedToLoadSymbol(_)
        );
        Refusal { error: said(error), changed_nothing }
    }
}

fn said(error: NvmlError) -> Error {
    Error::Gpu(match error {
        NvmlError::NoPermission => "only root may lock them".to_owned(),
        NvmlError::NotSupported => "the GPU or its driver does not lock them".to_owned(),
        error => error.to_string().replace(char::is_control, " "),
    })
}

fn open(library: Option<&OsStr>) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(library.unwrap_or(OsStr::new(LIBRARY))).init()
}

/// What the GPUs' clocks can be locked to. No GPU where there is no library.
///
/// # Errors
/// [`Error::Gpu`] from a library that does not start.
pub fn boards(library: Option<&OsStr>) -> Result<Vec<Board>, Error> {
    let opened = match open(library) {
        Err(NvmlError::LibloadingError(_)) => return Ok(Vec::new()),
        opened => opened.map_err(said)?,
    };
    let count = opened.device_count().map_err(said)?.min(MOST);
    let board = |index| {
        let device = opened.device_by_index(index)?;
        let name = device.name().unwrap_or_else(|_| "GPU".to_owned()).replace(char::is_control, " ");
        let bus = device.pci_info()?.bus_id.replace(char::is_control, " ");
        Ok(Board { bus, name, clocks_mhz: clocks(&device).unwrap_or_default() })
    };
    (0..count).map(board).collect::<Result<_, _>>().map_err(said)
}

/// Graphics clocks beside the highest memory clock, lowest first.
fn clocks(device: &Device<'_>) -> Result<Vec<u32>, NvmlError> {
    let memory = device.supported_memory_clocks()?.into_iter().max().ok_or(NvmlError::NotSupported)?;
    let mut clocks = device.supported_graphics_clocks(memory)?;
    clocks.retain(|mhz| *mhz > 0);
    clocks.sort_unstable();
    clocks.dedup();
    Ok(clocks)
}

/// Ends the locks of these GPUs: all that can be, then the first error.
pub(crate) fn reset(library: Option<&OsStr>, gpus: &[String]) -> Result<(), Error> {
    let library = open(library).map_err(said)?;
    let reset = |bus: &String| library.device_by_pci_bus_id(bus.as_str())?.reset_gpu_locked_clocks();
    let outcomes: Vec<_> = gpus.iter().map(reset).collect();
    outcomes.into_iter().collect::<Result<(), _>>().map_err(said)
}

/// The steps of a GPU: the clock that is nearest to this share of the highest, for each share, and the highest.
fn steps(clocks_mhz: &[u32], shares_permille: &[u16]) -> Vec<u32> {
    let Some(highest) = clocks_mhz.last() else { return Vec::new() };
    let nearest = |share: &u16| {
        let wanted = u64::from(*highest) * u64::from(*share);
        clocks_mhz.iter().min_by_key(|mhz| (u64::from(**mhz) * 1000).abs_diff(wanted)).unwrap_or(highest)
    };
    shares_permille.iter().map(nearest).chain([highest]).copied().collect()
}

/// One GPU's clock. A step locks it: the GPU runs at that clock whatever it has to do, until the lock is ended.
pub struct Locked {
    library: Nvml,
    name: Option<OsString>,
    bus: String,
    steps_mhz: Vec<u32>,
    before: Record,
    record: PathBuf,
    /// Nothing was locked yet, or the lock was ended.
    present: Option<u32>,
    changes: u64,
}

impl Locked {
    /// The clock of the GPU with this PCI bus id, with a step for each of these shares of its highest clock and
    /// one for that itself. What another process left changed when it was killed is put back first.
    ///
    /// # Errors
    /// [`Error::Gpu`], [`Error::Held`], those of [`recover`].
    pub fn open(places: &Places, bus: &str, shares_permille: &[u16]) -> Result<Locked, Error> {
        if let Recovered::Held(pid) = recover(places)? {
            return Err(Error::Held(pid));
        }
        let library = open(places.nvml.as_deref()).map_err(said)?;
        let found = library.device_by_pci_bus_id(bus).and_then(|device| clocks(&device)).map_err(said)?;
        let steps_mhz = steps(&found, shares_permille);
        if steps_mhz.is_empty() {
            return Err(Error::Gpu("NVML names none that it supports".to_owned()));
        }
        Ok(Locked {
            library,
            name: places.nvml.clone(),
            bus: bus.to_owned(),
            steps_mhz,
            before: Record::own(Vec::new(), vec![bus.to_owned()]),
            record: places.record.clone(),
            present: None,
            changes: 0,
        })
    }

    fn lock(&self, mhz: u32) -> Result<(), Refusal> {
        let range = GpuLockedClocksSetting::Numeric { min_clock_mhz: mhz, max_clock_mhz: mhz };
        Ok(self.library.device_by_pci_bus_id(self.bus.as_str())?.set_gpu_locked_clocks(range)?)
    }
}

impl Governor for Locked {
    fn steps(&self) -> usize {
        self.steps_mhz.len()
    }

    fn set(&mut self, step: usize) -> Result<(), Error> {
        let mhz = *self.steps_mhz.get(step).ok_or(Error::NoStep(step))?;
        if self.present == Some(mhz) {
            return Ok(());
        }
        if self.present.is_none() {
            self.before.save(&self.record)?;
        }
        let locked = self.lock(mhz);
        match &locked {
            Err(Refusal { changed_nothing: true, .. }) if self.present.is_none() => {
                // There is nothing to put back. A record that stays does no harm: the next start resets.
                let _ = fs::remove_file(&self.record);
            }
            Err(Refusal { changed_nothing: true, .. }) => {}
            // Whatever else failed, there may be something to put back.
            _ => (self.present, self.changes) = (Some(mhz), self.changes + 1),
        }
        locked.map_err(|refusal| refusal.error)
    }

    fn restore(&mut self) -> Result<(), Error> {
        if self.present.is_none() {
            return Ok(());
        }
        self.before.put_back(self.name.as_deref())?;
        self.present = None;
        fs::remove_file(&self.record).map_err(Error::io(&self.record))
    }

    fn changes(&self) -> u64 {
        self.changes
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // What fails here is repeated by the next start: the record stays.
        let _ = self.restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_the_clocks_nearest_to_each_share_and_the_highest() {
        let clocks: Vec<u32> = (345..=1980).step_by(15).collect();
        assert_eq!(steps(&clocks, &[430, 810, 1000]), [855, 1605, 1980, 1980]);
        assert_eq!((steps(&clocks, &[]), steps(&[], &[430])), (vec![1980], Vec::new()));
        // The shares that LECPAES publishes are those of its card's own clocks.
        let k20m = [324, 614, 640, 666, 705, 758];
        assert_eq!(steps(&k20m, &[430, 810, 840, 880, 930]), k20m);
    }
}
