//! `/sys/class/hwmon`: energy counters (`energyN_input`, microjoules) and power sensors (`powerN_average`, else
//! `powerN_input`, microwatts) of any driver (kernel: Documentation/hwmon/sysfs-interface).
//!
//! A driver's name determines the boundary of its figures. The rails of a driver that is not listed here have unknown
//! consumers; their figures are added to nothing.

use std::sync::Arc;

use crate::figure::Boundary;
use crate::sensor::{About, Gone, Measures, Sensor};
use crate::tree::{Tree, number, word};

const PLACE: &str = "sys/class/hwmon";
/// `amd_energy` has one counter a core; more than this in all would cost more to read than they are worth.
const MOST: usize = 64;

struct Channel {
    tree: Arc<dyn Tree>,
    about: About,
}

impl Sensor for Channel {
    fn about(&self) -> &About {
        &self.about
    }

    fn read(&mut self) -> Result<u64, Gone> {
        number(&*self.tree, &self.about.detail).map_err(Gone::from)
    }
}

/// Every channel that counts energy, and of the others every one that shows power.
pub(crate) fn find(tree: &Arc<dyn Tree>) -> Vec<Box<dyn Sensor>> {
    let mut found: Vec<About> = Vec::new();
    for chip in tree.names(PLACE).unwrap_or_default() {
        let folder = format!("{PLACE}/{chip}");
        let driver = word(&**tree, &format!("{folder}/name"));
        let files = tree.names(&folder).unwrap_or_default();
        let mut own: Vec<About> =
            files.iter().filter_map(|file| energy(&**tree, &folder, &driver, &chip, file)).collect();
        if own.is_empty() {
            own = files
                .iter()
                .filter_map(|file| power(&**tree, &folder, &driver, &chip, file, &files))
                .collect();
        }
        if driver == "amdgpu" && files.iter().any(|file| file == "in1_input") {
            own.iter_mut().for_each(processor_too);
        }
        own.iter_mut()
            .filter(|about| is_one(about))
            .skip(1)
            .for_each(|about| about.boundary = Boundary::Rail);
        found.extend(own);
    }
    // An older driver may count the same package.
    let counted = found.iter().any(|about| about.boundary == Boundary::Package && !of_graphics(about));
    found
        .iter_mut()
        .filter(|about| counted && about.boundary == Boundary::Package && of_graphics(about))
        .for_each(|about| about.boundary = Boundary::Rail);
    // Cores last, so that the limit cuts them and not a package.
    found.sort_by_key(|about| about.boundary == Boundary::Core);
    found.truncate(MOST);
    found
        .into_iter()
        .map(|about| Box::new(Channel { tree: tree.clone(), about }) as Box<dyn Sensor>)
        .collect()
}

/// The kernel's page on amdgpu: "On APUs this includes the CPU"; and only those have a northbridge voltage, `in1`. So it
/// is the package that the processor's own counters see too, and no board beside it.
fn processor_too(about: &mut About) {
    about.boundary = Boundary::Package;
}

/// Whether a chip's first channel is the whole thing. What follows is inside it: xe counts `card`, then `pkg`.
fn is_one(about: &About) -> bool {
    matches!(about.boundary, Boundary::Board) || of_graphics(about)
}

fn of_graphics(about: &About) -> bool {
    about.part.starts_with("amdgpu ")
}

fn energy(tree: &dyn Tree, folder: &str, driver: &str, chip: &str, file: &str) -> Option<About> {
    let number = file.strip_prefix("energy")?.strip_suffix("_input")?;
    let label = word(tree, &format!("{folder}/energy{number}_label"));
    // amd_energy and its like count in 64 bits; the kernel's page gives no range to wrap at.
    let measures = Measures::Energy { joules: 1e-6, wraps_after: None };
    Some(about(driver, chip, &label, number, format!("{folder}/{file}"), measures))
}

fn power(
    tree: &dyn Tree,
    folder: &str,
    driver: &str,
    chip: &str,
    file: &str,
    files: &[String],
) -> Option<About> {
    let channel = file.strip_prefix("power")?;
    let number = channel.strip_suffix("_average").or_else(|| {
        let number = channel.strip_suffix("_input")?;
        (!files.contains(&format!("power{number}_average"))).then_some(number)
    })?;
    let label = word(tree, &format!("{folder}/power{number}_label"));
    Some(about(driver, chip, &label, number, format!("{folder}/{file}"), Measures::Power { watts: 1e-6 }))
}

fn about(driver: &str, chip: &str, label: &str, number: &str, detail: String, measures: Measures) -> About {
    let (boundary, part) = match driver {
        "amd_energy" => match label.strip_prefix("Esocket") {
            Some(socket) => (Boundary::Package, format!("package-{socket}")),
            None => (Boundary::Core, label.to_owned()),
        },
        "fam15h_power" => (Boundary::Package, chip.to_owned()),
        // The ACPI power meter and IBM's: what the supplies deliver. There may be one for each supply.
        "power_meter" | "ibmaem" => (Boundary::Node, named(driver, chip, label, number)),
        // The machine beside its processors, its memory and its fans: its name tells.
        "ibmpowernv" if label.starts_with("System") => (Boundary::Node, named(driver, chip, label, number)),
        "amdgpu" | "i915" | "xe" | "nouveau" | "habanalabs" => {
            (Boundary::Board, format!("{driver} {chip} {label}").trim().to_owned())
        }
        _ => (Boundary::Rail, named(driver, chip, label, number)),
    };
    About { source: "hwmon", boundary, part, detail, measures }
}

fn named(driver: &str, chip: &str, label: &str, number: &str) -> String {
    format!("{driver} {chip} {}", if label.is_empty() { number } else { label })
}
