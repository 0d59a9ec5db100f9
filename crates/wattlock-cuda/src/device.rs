//! What is there, and whether it will do: the driver, its version, a device, its capability, an image for it.

use std::fmt;
use std::path::{Path, PathBuf};

use wattlock_core::GpuAttributes;

use crate::sys::{
    CAPABILITY_MAJOR, CAPABILITY_MINOR, CLOCK_KHZ, Driver, Failure, MULTIPROCESSORS, NoDriver, WARP,
};

/// The lowest driver: the first of CUDA 13, whose cubins these are; a driver of the same major version loads them.
const DRIVER_LEAST: i32 = 13_000;
/// The lowest capability.
const CAPABILITY_LEAST: (i32, i32) = (8, 0);
/// The one that `gpu/check.sh` was run on (docs/research/gpu.md).
const CAPABILITY_TRIED: (i32, i32) = (9, 0);

/// Why there is no GPU to work with.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// No driver's library.
    Driver(PathBuf),
    /// The driver lacks a function.
    Symbol(&'static str),
    /// The driver does not start; its error.
    Failed(i32),
    /// The driver is too old; its version.
    Old(i32),
    /// The driver finds no device.
    Device,
    /// The driver finds devices, but none of this number.
    Number(u16),
    /// The device is of a capability below 8.0; which.
    Capability(i32, i32),
    /// No image of the kernels for its capability in this folder.
    Image(i32, i32, PathBuf),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Driver(name) => write!(f, "no NVIDIA driver ({} does not load)", name.display()),
            Missing::Symbol(name) => write!(f, "the NVIDIA driver is too old: it has no {name}"),
            Missing::Failed(code) => write!(f, "the NVIDIA driver does not start: error {code}"),
            Missing::Old(version) => write!(
                f,
                "the NVIDIA driver is too old: CUDA {}.{}, and 13.0 is needed",
                version / 1000,
                version % 1000 / 10
            ),
            Missing::Device => f.write_str("the NVIDIA driver finds no GPU"),
            Missing::Number(number) => write!(f, "the NVIDIA driver finds no GPU of number {number}"),
            Missing::Capability(major, minor) => {
                write!(f, "the GPU is too old: capability {major}.{minor}, and 8.0 is needed")
            }
            Missing::Image(major, minor, folder) => write!(
                f,
                "no kernels for a GPU of capability {major}.{minor} in {}; `make gpu` builds them",
                folder.display()
            ),
        }
    }
}

impl From<Failure> for Missing {
    fn from(failure: Failure) -> Missing {
        // CUDA_ERROR_NO_DEVICE.
        if failure.0 == 100 { Missing::Device } else { Missing::Failed(failure.0) }
    }
}

/// A device that will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) ordinal: i32,
    pub(crate) name: String,
    /// Its PCI bus id.
    pub(crate) bus: String,
    pub(crate) capability: (i32, i32),
    pub(crate) multiprocessors: i32,
    /// Its highest core clock and the threads of a warp; 0 where the driver does not say.
    pub(crate) clock_khz: i32,
    pub(crate) warp: i32,
    pub(crate) memory_bytes: usize,
    pub(crate) driver: i32,
    pub(crate) image: Vec<u8>,
    /// GHASH by multiplication of integers, for a chip or driver on which `clmad` is wrong.
    pub(crate) integers: Option<Vec<u8>>,
}

impl Device {
    /// What the driver says of its parts, if it says all.
    pub(crate) fn attributes(&self) -> Option<GpuAttributes> {
        let positive = |value: i32| u32::try_from(value).ok().filter(|value| *value > 0);
        Some(GpuAttributes {
            clocks_mhz: vec![positive(self.clock_khz / 1000)?],
            multiprocessors: positive(self.multiprocessors)?,
            warp: positive(self.warp)?,
        })
    }

    /// One line for people.
    pub(crate) fn about(&self) -> String {
        let (major, minor) = self.capability;
        let tried = if self.capability == CAPABILITY_TRIED { "" } else { "; not yet run on this capability" };
        format!(
            "{}, capability {major}.{minor}, {} multiprocessors, {:.1} GiB, driver for CUDA {}.{}{tried}",
            self.name,
            self.multiprocessors,
            self.memory_bytes as f64 / f64::from(1 << 30),
            self.driver / 1000,
            self.driver % 1000 / 10
        )
    }
}

/// Loads a driver and looks at the device of this number. Makes no context.
pub(crate) fn find(library: &Path, images: &Path, number: u16) -> Result<(Driver, Device), Missing> {
    let driver = Driver::load(library).map_err(|why| match why {
        NoDriver::Library => Missing::Driver(library.to_owned()),
        NoDriver::Symbol(name) => Missing::Symbol(name),
    })?;
    driver.init()?;
    let version = driver.version()?;
    if version < DRIVER_LEAST {
        return Err(Missing::Old(version));
    }
    if driver.device_count()? <= i32::from(number) {
        return Err(if number == 0 { Missing::Device } else { Missing::Number(number) });
    }
    let ordinal = driver.device(i32::from(number))?;
    let (major, minor) =
        (driver.attribute(ordinal, CAPABILITY_MAJOR)?, driver.attribute(ordinal, CAPABILITY_MINOR)?);
    if (major, minor) < CAPABILITY_LEAST {
        return Err(Missing::Capability(major, minor));
    }
    let image = image_for(images, "wattlock", (major, minor))
        .ok_or_else(|| Missing::Image(major, minor, images.to_owned()))?;
    let device = Device {
        ordinal,
        name: driver.device_name(ordinal)?,
        bus: driver.device_bus(ordinal)?,
        capability: (major, minor),
        multiprocessors: driver.attribute(ordinal, MULTIPROCESSORS)?,
        clock_khz: driver.attribute(ordinal, CLOCK_KHZ).unwrap_or(0),
        warp: driver.attribute(ordinal, WARP).unwrap_or(0),
        memory_bytes: driver.memory(ordinal)?,
        driver: version,
        image,
        integers: image_for(images, "wattlock_i", (major, minor)),
    };
    Ok((driver, device))
}

/// The image of the highest capability of the same major number that is not above it: such an image runs.
fn image_for(folder: &Path, stem: &str, (major, minor): (i32, i32)) -> Option<Vec<u8>> {
    (0..=minor).rev().find_map(|minor| {
        let name = format!("{stem}.sm_{}.cubin", major * 10 + minor);
        std::fs::read(folder.join(name)).ok().filter(|image| !image.is_empty())
    })
}
