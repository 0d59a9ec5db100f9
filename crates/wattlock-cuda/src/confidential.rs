//! Whether confidential computing makes copies block. The driver's own interface does not tell; NVML does, which belongs
//! to the driver, too, and is looked for at run time.
//!
//! With it on, what the host and a GPU exchange is encrypted and goes through bounce buffers. A copy then returns when it
//! is done, whatever its stream, so copies overlap neither each other nor kernels (Yin et al., "The Serialized Bridge",
//! arXiv 2606.23969). The engine works as before, and is slower.

use std::ffi::OsStr;

use nvml_wrapper::Nvml;

/// What the driver installs; the plain `.so` comes with development packages only.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Whether the GPU at this place on the bus is in confidential mode, or several are behind a protected bus. No, where NVML
/// is not there or does not know.
pub(crate) fn is_on(library: Option<&OsStr>, bus: &str) -> bool {
    let Ok(library) = Nvml::builder().lib_path(library.unwrap_or(OsStr::new(LIBRARY))).init() else {
        return false;
    };
    library.device_by_pci_bus_id(bus).is_ok_and(|device| {
        let on = device.is_cc_enabled().unwrap_or(false);
        on || device.is_multi_gpu_protected_pcie_enabled().unwrap_or(false)
    })
}
