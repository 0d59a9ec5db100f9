//! The kernels of a device's images, by name; and GHASH without `clmad`, for a chip on which that is wrong.

use std::collections::HashMap;
use std::ffi::CStr;

use crate::device::Device;
use crate::plan;
use crate::sys::{Driver, Failure, Handle};

/// Kernels that use `clmad`, and those that do the same by multiplication of integers.
const INTEGERS: [(&CStr, &CStr); 2] =
    [(c"wl_aes_gcm_seal", c"wl_aes_gcm_seal_i"), (c"wl_aes_ghash", c"wl_aes_ghash_i")];

/// Loaded kernels. Whoever loads them unloads them, in the same context.
#[derive(Debug, Default)]
pub(crate) struct Kernels {
    modules: Vec<Handle>,
    functions: HashMap<&'static CStr, Handle>,
}

impl Kernels {
    /// Loads a device's image, and finds every kernel that a plan names.
    pub(crate) fn load(driver: &Driver, device: &Device) -> Result<Kernels, Failure> {
        let kinds = plan::kinds();
        let steps = kinds.iter().filter_map(plan::steps).flatten();
        let mut kernels = Kernels::default();
        kernels.add(driver, &device.image, steps.map(|step| (step.kernel, step.kernel)))?;
        Ok(kernels)
    }

    /// Loads an image and takes kernels from it: the name that plans have, and the image's. All of them, or nothing.
    fn add(
        &mut self,
        driver: &Driver,
        image: &[u8],
        names: impl Iterator<Item = (&'static CStr, &'static CStr)>,
    ) -> Result<(), Failure> {
        let module = driver.module(image)?;
        let found = names.map(|(kernel, name)| Ok((kernel, driver.function(module, name)?)));
        match found.collect::<Result<Vec<_>, Failure>>() {
            Ok(found) => {
                self.modules.push(module);
                self.functions.extend(found);
                Ok(())
            }
            Err(failure) => driver.unload(module).and(Err(failure)),
        }
    }

    /// A kernel that a plan names.
    pub(crate) fn function(&self, kernel: &CStr) -> Handle {
        self.functions[kernel]
    }

    /// From here on GHASH is computed by multiplication of integers. `false`: there is no image for that, or it is so
    /// already.
    pub(crate) fn use_integers(&mut self, driver: &Driver, device: &Device) -> Result<bool, Failure> {
        match &device.integers {
            Some(image) if self.modules.len() == 1 => {
                self.add(driver, image, INTEGERS.into_iter())?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Unloads them; none is launched after.
    pub(crate) fn unload(self, driver: &Driver) -> Result<(), Failure> {
        self.modules.into_iter().try_for_each(|module| driver.unload(module))
    }
}
