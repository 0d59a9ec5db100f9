//! A GPU's clocks, locked through NVML. The library belongs to the driver and is looked for at run time.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;

use nvml_wrapper::enums::device::GpuLockedClocksSetting;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use crate::record::{Record, Recovered, recover};
use crate::survey::thinned;
use crate::{Error, Governor, Places};

/// What the driver installs; the plain `.so` comes with development packages only.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// More GPUs than any machine has.
const MOST: u32 = 64;

/// A core clock, and the highest memory clock that goes with it, in MHz.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// Core.
    pub core: u32,
    /// Memory.
    pub memory: u32,
}

/// What NVML says of a GPU's clocks. It does not say whether they are locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    /// Its PCI bus id.
    pub bus: String,
    /// Its name.
    pub name: String,
    /// What its clocks can be locked to, lowest core clock first.
    pub pairs: Vec<Pair>,
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
        Ok(Board { bus, name, pairs: pairs(&device).unwrap_or_default() })
    };
    (0..count).map(board).collect::<Result<_, _>>().map_err(said)
}

/// A pair for each core clock, lowest first: LECPAES's K20M has 324 MHz with its slow memory clock alone.
fn pairs(device: &Device<'_>) -> Result<Vec<Pair>, NvmlError> {
    let mut memories = device.supported_memory_clocks()?;
    memories.sort_unstable();
    let mut found = BTreeMap::new();
    for memory in memories {
        let cores = device.supported_graphics_clocks(memory)?.into_iter().filter(|mhz| *mhz > 0);
        found.extend(cores.map(|core| (core, memory)));
    }
    Ok(thinned(found.into_iter().map(|(core, memory)| Pair { core, memory }).collect()))
}

/// Ends the locks of these GPUs' cores, and of these GPUs' memories: all that can be, then the first error.
pub(crate) fn reset(library: Option<&OsStr>, gpus: &[String], memories: &[String]) -> Result<(), Error> {
    let library = open(library).map_err(said)?;
    let core = |bus: &String| library.device_by_pci_bus_id(bus.as_str())?.reset_gpu_locked_clocks();
    let memory = |bus: &String| match library.device_by_pci_bus_id(bus.as_str())?.reset_mem_locked_clocks() {
        // It was not locked either.
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Ok(()),
        reset => reset,
    };
    let outcomes: Vec<_> = gpus.iter().map(core).chain(memories.iter().map(memory)).collect();
    outcomes.into_iter().collect::<Result<(), _>>().map_err(said)
}

/// One GPU's clocks. A step locks the core's, and the memory's if the pairs differ in it: the GPU runs at them whatever it
/// has to do, until the locks are ended. Core clocks are locked from Volta on, the memory's from Ampere on; an older GPU's
/// memory clock is left alone.
pub struct Locked {
    library: Nvml,
    name: Option<OsString>,
    bus: String,
    pairs: Vec<Pair>,
    clocks_khz: Vec<u64>,
    /// Whether the memory's clock is locked, too.
    memory: bool,
    before: Record,
    record: PathBuf,
    /// Nothing was locked yet, or the lock was ended.
    present: Option<Pair>,
    changes: u64,
}

impl Locked {
    /// The clocks of the GPU with this PCI bus id, with a step for each core clock. What another process left changed when
    /// it was killed is put back first.
    ///
    /// # Errors
    /// [`Error::Gpu`], [`Error::Held`], those of [`recover`].
    pub fn open(places: &Places, bus: &str) -> Result<Locked, Error> {
        if let Recovered::Held(pid) = recover(places)? {
            return Err(Error::Held(pid));
        }
        let library = open(places.nvml.as_deref()).map_err(said)?;
        let pairs = library.device_by_pci_bus_id(bus).and_then(|device| pairs(&device)).map_err(said)?;
        let Some(first) = pairs.first() else {
            return Err(Error::Gpu("NVML names none that it supports".to_owned()));
        };
        let memory = pairs.iter().any(|pair| pair.memory != first.memory);
        let own = vec![bus.to_owned()];
        let memories = if memory { own.clone() } else { Vec::new() };
        Ok(Locked {
            library,
            name: places.nvml.clone(),
            bus: bus.to_owned(),
            clocks_khz: pairs.iter().map(|pair| u64::from(pair.core) * 1000).collect(),
            pairs,
            memory,
            before: Record::own(Vec::new(), own, memories),
            record: places.record.clone(),
            present: None,
            changes: 0,
        })
    }

    fn lock(&self, mhz: u32) -> Result<(), Refusal> {
        let range = GpuLockedClocksSetting::Numeric { min_clock_mhz: mhz, max_clock_mhz: mhz };
        Ok(self.library.device_by_pci_bus_id(self.bus.as_str())?.set_gpu_locked_clocks(range)?)
    }

    fn lock_memory(&mut self, mhz: u32) -> Result<(), Error> {
        let device = self.library.device_by_pci_bus_id(self.bus.as_str());
        match device.and_then(|mut device| device.set_mem_locked_clocks(mhz, mhz)) {
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => self.memory = false,
            locked => locked.map_err(said)?,
        }
        Ok(())
    }
}

impl Governor for Locked {
    fn clocks_khz(&self) -> &[u64] {
        &self.clocks_khz
    }

    fn set(&mut self, step: usize) -> Result<(), Error> {
        let pair = *self.pairs.get(step).ok_or(Error::NoStep(step))?;
        let before = self.present;
        if before == Some(pair) {
            return Ok(());
        }
        if self.present.is_none() {
            self.before.save(&self.record)?;
        }
        let locked = self.lock(pair.core);
        match &locked {
            Err(Refusal { changed_nothing: true, .. }) if self.present.is_none() => {
                // There is nothing to put back. A record that stays does no harm: the next start resets.
                let _ = fs::remove_file(&self.record);
            }
            Err(Refusal { changed_nothing: true, .. }) => {}
            // Whatever else failed, there may be something to put back.
            _ => (self.present, self.changes) = (Some(pair), self.changes + 1),
        }
        locked.map_err(|refusal| refusal.error)?;
        match self.memory && before.is_none_or(|before| before.memory != pair.memory) {
            true => self.lock_memory(pair.memory),
            false => Ok(()),
        }
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
