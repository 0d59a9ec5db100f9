//! `/sys/class/hwmon`: energy counters (`energyN_input`, microjoules) and power sensors (`powerN_average`, else
//! `powerN_input`, microwatts) of whatever driver has some (kernel: Documentation/hwmon/sysfs-interface).
//!
//! A driver's name says what its figures stand for; of one that is not listed here nobody knows what its rails feed,
//! and its figures are added to nothing.

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
        found.extend(own);
    }
    // Cores last, so that the limit cuts them and not a package.
    found.sort_by_key(|about| about.boundary == Boundary::Core);
    found.truncate(MOST);
    found
        .into_iter()
        .map(|about| Box::new(Channel { tree: tree.clone(), about }) as Box<dyn Sensor>)
        .collect()
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
        // The ACPI power meter and IBM's: what the supplies deliver.
        "power_meter" | "ibmpowernv" | "ibmaem" => (Boundary::Node, named(driver, label, number)),
        "amdgpu" | "i915" | "xe" | "nouveau" | "habanalabs" => {
            (Boundary::Board, format!("{driver} {chip} {label}").trim().to_owned())
        }
        _ => (Boundary::Rail, format!("{driver} {chip} {}", if label.is_empty() { number } else { label })),
    };
    About { source: "hwmon", boundary, part, detail, measures }
}

fn named(driver: &str, label: &str, number: &str) -> String {
    format!("{driver} {}", if label.is_empty() { number } else { label })
}
