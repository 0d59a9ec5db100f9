//! `/sys/class/powercap`: the RAPL counters of Intel and (since Linux 5.8, under the same names) AMD processors.
//!
//! A zone is `intel-rapl:0`, a zone inside it `intel-rapl:0:1`; `name` says what it is: `package-0`, `package-0-die-1`,
//! `core`, `uncore`, `dram`, `psys` (kernel: Documentation/power/powercap). Counters are microjoules in `energy_uj`
//! and start again at 0 after `max_energy_range_uj`. Only root may read them since Linux 5.10 (CVE-2020-8694).

use std::io::ErrorKind::NotFound;
use std::sync::Arc;

use crate::figure::Boundary;
use crate::sensor::{About, Gone, Measures, Sensor};
use crate::tree::{Tree, number, word};

const PLACE: &str = "sys/class/powercap";

struct Zone {
    tree: Arc<dyn Tree>,
    about: About,
}

impl Sensor for Zone {
    fn about(&self) -> &About {
        &self.about
    }

    fn read(&mut self) -> Result<u64, Gone> {
        number(&*self.tree, &self.about.detail).map_err(Gone::from)
    }
}

/// Every zone with an energy counter.
pub(crate) fn find(tree: &Arc<dyn Tree>) -> Vec<Box<dyn Sensor>> {
    let zones = tree.names(PLACE).unwrap_or_default();
    let all: Vec<About> = zones.iter().filter_map(|zone| about(&**tree, zone)).collect();
    // The same package through its MMIO registers too: one of them is enough.
    let seen = |about: &About| {
        about.detail.contains("-mmio:")
            && all.iter().any(|other| !other.detail.contains("-mmio:") && other.part == about.part)
    };
    let kept: Vec<About> = all.iter().filter(|about| !seen(about)).cloned().collect();
    kept.into_iter().map(|about| Box::new(Zone { tree: tree.clone(), about }) as Box<dyn Sensor>).collect()
}

fn about(tree: &dyn Tree, zone: &str) -> Option<About> {
    let (control, numbers) = zone.split_once(':')?;
    if !control.contains("rapl") {
        return None; // Idle injection and thermal zones are listed here too; they count nothing.
    }
    let folder = format!("{PLACE}/{zone}");
    let counter = format!("{folder}/energy_uj");
    // Without a range a fall is no wrap-around but a step of unknown size: a lower bound.
    let wraps_after = number(tree, &format!("{folder}/max_energy_range_uj")).ok().filter(|range| *range > 0);
    if wraps_after.is_none() && number(tree, &counter).is_err_and(|error| error.kind() == NotFound) {
        return None;
    }
    let name = word(tree, &format!("{folder}/name"));
    let part = match numbers.rsplit_once(':') {
        Some((parent, _)) => format!("{} {name}", word(tree, &format!("{PLACE}/{control}:{parent}/name"))),
        None => name.clone(),
    };
    let boundary = match name.as_str() {
        "core" => Boundary::Core,
        "uncore" => Boundary::Uncore,
        "dram" => Boundary::Dram,
        "psys" => Boundary::Node,
        package if package.starts_with("package-") => Boundary::Package,
        _ => Boundary::Rail,
    };
    let measures = Measures::Energy { joules: 1e-6, wraps_after };
    Some(About { source: "powercap", boundary, part, detail: counter, measures })
}
