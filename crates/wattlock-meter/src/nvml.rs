//! NVIDIA boards: the energy counter where the board has one (Volta and later), else its power, to be integrated.
//!
//! The library belongs to the driver and is looked for at run time; without it there are no such boards. The counter
//! is millijoules since the driver was loaded, power is milliwatts, both for the whole board with its memory.

use std::ffi::OsStr;
use std::sync::Arc;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::figure::Boundary;
use crate::sensor::{About, Gone, Measures, Sensor};

/// More boards than any machine has.
const MOST: u32 = 64;
/// What the driver installs; the plain `.so` comes with development packages only.
const LIBRARY: &str = "libnvidia-ml.so.1";

struct Board {
    library: Arc<Nvml>,
    index: u32,
    about: About,
}

impl Sensor for Board {
    fn about(&self) -> &About {
        &self.about
    }

    fn read(&mut self) -> Result<u64, Gone> {
        let read = || -> Result<u64, NvmlError> {
            let device = self.library.device_by_index(self.index)?;
            match self.about.measures {
                Measures::Energy { .. } => device.total_energy_consumption(),
                Measures::Power { .. } => device.power_usage().map(u64::from),
            }
        };
        read().map_err(|error| Gone(error.to_string()))
    }
}

/// Every board, or why boards cannot be read. A missing library is no error: it means no board.
///
/// # Errors
/// The library's words.
pub fn boards(library: Option<&OsStr>) -> Result<Vec<Box<dyn Sensor>>, String> {
    let opened = Nvml::builder().lib_path(library.unwrap_or(OsStr::new(LIBRARY))).init();
    let opened = match (opened, library) {
        (Ok(opened), _) => Arc::new(opened),
        (Err(NvmlError::LibloadingError(_)), None) => return Ok(Vec::new()),
        (Err(error), _) => return Err(error.to_string()),
    };
    let count = opened.device_count().map_err(|error| error.to_string())?.min(MOST);
    Ok((0..count).filter_map(|index| board(&opened, index)).collect())
}

fn board(library: &Arc<Nvml>, index: u32) -> Option<Box<dyn Sensor>> {
    let device = library.device_by_index(index).ok()?;
    let name = device.name().unwrap_or_else(|_| "GPU".to_owned());
    let (measures, detail) = if device.total_energy_consumption().is_ok() {
        (Measures::Energy { joules: 1e-3, wraps_after: None }, "nvmlDeviceGetTotalEnergyConsumption")
    } else if device.power_usage().is_ok() {
        (Measures::Power { watts: 1e-3 }, "nvmlDeviceGetPowerUsage")
    } else {
        return None;
    };
    let part = format!("gpu-{index} {name}").replace(char::is_control, " ");
    let about =
        About { source: "nvml", boundary: Boundary::Board, part, detail: detail.to_owned(), measures };
    Some(Box::new(Board { library: library.clone(), index, about }))
}
