//! The published grids as data: of each paper its figures, of each figure its points, and what was published and is
//! simulated beside each. A point names a door of the bench, its keys and a method.
//!
//! It measures nothing and knows no file. A cell that no table in `papers/` has, and no figure of `papers/figures.csv`
//! gives exactly, is not published: a curve that was only drawn has none.

mod aca_sds;
mod eeca;
mod eep;
mod lecpaes;
mod qweb;

use wattlock_lab::{Error, Row, Study};

use super::shape::Claim;

/// A published system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Paper {
    /// Xiao et al. 2019.
    Eeca,
    /// Li et al. 2020.
    Qweb,
    /// Fei et al. 2017.
    Lecpaes,
    /// Xiao et al. 2018.
    AcaSds,
    /// Fei et al. 2020.
    Eep,
}

impl Paper {
    /// The name of the system, and of its rule.
    pub const fn name(self) -> &'static str {
        match self {
            Paper::Eeca => "eeca",
            Paper::Qweb => "qweb",
            Paper::Lecpaes => "lecpaes",
            Paper::AcaSds => "aca-sds",
            Paper::Eep => "eep",
        }
    }

    /// The built-in model that stands for its device where there is none.
    pub const fn model(self) -> &'static str {
        match self {
            Paper::Eeca => "eeca-soc",
            Paper::Qweb | Paper::AcaSds => "dh8970",
            Paper::Lecpaes | Paper::Eep => "k20m",
        }
    }

    /// Whether its device is a GPU, which a machine may have.
    pub const fn wants_gpu(self) -> bool {
        matches!(self, Paper::Lecpaes | Paper::Eep)
    }
}

/// A quantity of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantity {
    /// As the bench calls it, or [`PER_JOULE`].
    pub name: &'static str,
    /// As the bench has it.
    pub unit: &'static str,
    /// Whether more is better; `None`: neither.
    pub more: Option<bool>,
}

/// Work for each joule: follows from the bench's joules.
pub const PER_JOULE: &str = "per_joule";

/// Samples of a profiler in cryptography.
pub const PROFILED: &str = "profiled_share";

const fn more(name: &'static str, unit: &'static str) -> Quantity {
    Quantity { name, unit, more: Some(true) }
}

const fn less(name: &'static str, unit: &'static str) -> Quantity {
    Quantity { name, unit, more: Some(false) }
}

const fn share(name: &'static str) -> Quantity {
    Quantity { name, unit: "1", more: None }
}

/// What stands beside a quantity of a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// The quantity.
    pub quantity: &'static str,
    /// Printed in the paper, or exactly what follows from that.
    pub published: Option<f64>,
    /// By the lab's study.
    pub simulated: Option<f64>,
}

/// One point of a figure.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Point {
    /// The bench's door.
    pub door: &'static str,
    /// Keys of the door, in the order in which the point is named.
    pub keys: Vec<(&'static str, String)>,
    /// Settings of the policy.
    pub settings: Vec<String>,
    /// The method's name.
    pub method: &'static str,
    /// The method as a policy; `None`: the method is a key alone.
    pub policy: Option<&'static str>,
    /// The key that the method is, beside its policy or in its place: `rule=cs`, `side=straight`. Not in the point's name:
    /// methods at one point are compared.
    pub by: Option<(&'static str, &'static str)>,
    /// Whether the method may use the device.
    pub uses_device: bool,
    /// Whether the default run has it.
    pub first: bool,
    /// Why it cannot run on this machine, if that is known before.
    pub cannot: Option<String>,
    /// What stands beside its quantities.
    pub cells: Vec<Cell>,
}

impl Point {
    /// Its name without the method: `bytes=16384 processes=2`.
    pub fn name(&self) -> String {
        let keys = self.keys.iter().map(|(key, value)| format!("{key}={value}"));
        keys.chain(self.settings.iter().cloned()).collect::<Vec<_>>().join(" ")
    }

    /// All keys that are asked for.
    pub fn asked(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.keys.iter().map(|(key, value)| (*key, value.as_str())).chain(self.by)
    }

    /// What stands beside a quantity.
    pub fn cell(&self, quantity: &str) -> Option<Cell> {
        self.cells.iter().copied().find(|cell| cell.quantity == quantity)
    }
}

/// A figure or table of a paper, or several that are of the same points.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Whose it is.
    pub paper: Paper,
    /// What the paper calls it, `table2`; several names are several views of the same points.
    pub names: &'static [&'static str],
    /// What it shows.
    pub title: &'static str,
    /// The key over which it is drawn.
    pub axis: &'static str,
    /// The first is the one that the figure is about.
    pub quantities: Vec<Quantity>,
    /// What a reader must know.
    pub note: &'static str,
    /// Gains that are published as ratios.
    pub claims: Vec<Claim>,
    /// Its points, in the order in which they are measured.
    pub points: Vec<Point>,
}

impl Figure {
    /// Its first name.
    pub fn id(&self) -> &'static str {
        self.names[0]
    }
}

/// What grids depend on.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// The published grid, and not a part of it.
    pub full: bool,
    /// Hardware threads of this machine.
    pub threads: usize,
    /// What `bench stream` takes for the published machine.
    pub machine: &'static str,
}

pub const SOFTWARE: &str = "software";
pub const INSTRUCTION: &str = "instruction";
const OFFLOAD: &str = "offload";
pub const ADAPTIVE: &str = "adaptive";

/// The methods of a paper, its own rule among them.
const fn methods(rule: &'static str) -> [&'static str; 5] {
    [SOFTWARE, INSTRUCTION, OFFLOAD, rule, ADAPTIVE]
}

/// The grid of a paper.
///
/// # Errors
/// The study that simulates it fails.
pub fn grid(paper: Paper, extent: Extent) -> Result<Vec<Figure>, Error> {
    let mut figures = match paper {
        Paper::Eeca => eeca::figures(extent)?,
        Paper::Qweb => qweb::figures(extent)?,
        Paper::Lecpaes => lecpaes::figures(extent)?,
        Paper::AcaSds => aca_sds::figures(extent)?,
        Paper::Eep => eep::figures()?,
    };
    for figure in &mut figures {
        figure.points.retain(|point| extent.full || point.first);
    }
    figures.retain(|figure| !figure.points.is_empty());
    Ok(figures)
}

/// A point whose method is a policy.
fn point(door: &'static str, keys: Vec<(&'static str, String)>, method: &'static str, first: bool) -> Point {
    let uses_device = !matches!(method, SOFTWARE | INSTRUCTION);
    Point { door, keys, method, policy: Some(method), uses_device, first, ..Point::default() }
}

/// A simulated row of a study.
fn row<'a>(study: &'a Study, experiment: &str, name: &str, quantity: &str) -> Option<&'a Row> {
    study
        .rows
        .iter()
        .find(|row| (row.experiment, row.row.as_str(), row.quantity) == (experiment, name, quantity))
}

/// What is simulated of the published rule, or of `adaptive`.
fn simulated(row: Option<&Row>, method: &str) -> Option<f64> {
    let value = row.and_then(|row| if method == ADAPTIVE { row.adaptive } else { Some(row.simulated) });
    value.filter(|value| value.is_finite())
}

fn cell(quantity: &'static str, published: Option<f64>, simulated: Option<f64>) -> Cell {
    Cell { quantity, published, simulated }
}

fn scaled(value: Option<f64>, by: f64) -> Option<f64> {
    value.map(|value| value * by)
}

/// A method that no door of Wattlock has.
fn absent(of: Point, method: &'static str, why: &str, published: Option<f64>) -> Point {
    let cells = of.cells.first().map(|first| vec![cell(first.quantity, published, None)]).unwrap_or_default();
    Point { method, policy: None, cannot: Some(why.to_owned()), cells, ..of }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::OnceLock;

    const EXTENT: Extent = Extent { full: true, threads: 2, machine: "k20m" };
    const ALL: [Paper; 5] = [Paper::Eeca, Paper::Qweb, Paper::Lecpaes, Paper::AcaSds, Paper::Eep];

    /// The full grid, whose study runs once.
    fn full(paper: Paper) -> Vec<Figure> {
        static KNOWN: [OnceLock<Vec<Figure>>; 5] = [const { OnceLock::new() }; 5];
        KNOWN[paper as usize].get_or_init(|| grid(paper, EXTENT).unwrap()).clone()
    }

    fn names(paper: Paper) -> Vec<&'static str> {
        full(paper).iter().flat_map(|figure| figure.names.iter().copied()).collect()
    }

    #[test]
    fn every_figure_and_table_of_the_papers_is_in_the_grid() {
        let figures =
            |numbers: std::ops::RangeInclusive<u32>| numbers.map(|number| format!("figure{number}"));
        let has = |paper, wanted: Vec<String>| {
            let there = names(paper);
            let missing: Vec<&String> =
                wanted.iter().filter(|name| !there.contains(&name.as_str())).collect();
            assert!(missing.is_empty(), "{paper:?}: {missing:?}");
            assert_eq!(there.iter().collect::<BTreeSet<_>>().len(), there.len(), "{paper:?}: a name twice");
        };
        has(Paper::Eeca, ["table1", "table2", "figure3", "figure10"].map(String::from).to_vec());
        has(Paper::Qweb, figures(7..=14).chain(["mechanisms".into()]).collect());
        has(
            Paper::Lecpaes,
            (3..=8)
                .map(|number| format!("table{number}"))
                .chain(["figure8".into(), "changing".into()])
                .collect(),
        );
        has(
            Paper::AcaSds,
            ["table1", "figure1", "figure3", "figure5"]
                .map(String::from)
                .into_iter()
                .chain(figures(7..=11))
                .collect(),
        );
        has(Paper::Eep, ["table5".to_owned()].into_iter().chain(figures(5..=11)).collect());
    }

    /// Every cell of the tables of results stands beside a point, and each rule's simulation.
    #[test]
    fn every_published_cell_has_a_point_and_the_rules_are_simulated() {
        let cells = |paper: Paper, id: &str, quantity: &str| -> Vec<(String, f64)> {
            let figures = full(paper);
            let of = figures.iter().find(|figure| figure.id() == id).unwrap_or_else(|| panic!("{id}"));
            let point = |point: &Point| {
                Some((format!("{} {}", point.name(), point.method), point.cell(quantity)?.published?))
            };
            of.points.iter().filter_map(point).collect()
        };
        for (paper, id, quantity, count) in [
            (Paper::Eeca, "table1", "throughput", 6 * 4),
            (Paper::Eeca, "table1", PER_JOULE, 6 * 4),
            (Paper::Eeca, "table2", "rate", 8 * 4),
            (Paper::Lecpaes, "figure8", "joules", 5 * 4),
            (Paper::Lecpaes, "figure8", "retransmissions", 5 * 4),
            (Paper::Lecpaes, "figure8", "throughput", 2 * 4),
            (Paper::AcaSds, "table1", "latency_us", 5 * 6),
            (Paper::AcaSds, "figure5", "bandwidth", 2),
            (Paper::Eep, "table5", "seconds", 4 * 2),
            (Paper::Eep, "figure5", PER_JOULE, 4),
            (Paper::Qweb, "figure7", "rate", 4),
            (Paper::Qweb, "figure11", "rate", 3),
            (Paper::Qweb, "figure13", "rate", 2),
        ] {
            assert_eq!(cells(paper, id, quantity).len(), count, "{paper:?} {id} {quantity}");
        }
        let of = |paper, id, quantity, name: &str| {
            cells(paper, id, quantity).into_iter().find(|cell| cell.0 == name).unwrap().1
        };
        assert_eq!(
            of(Paper::Eeca, "table1", "throughput", "bytes=16384 cipher=aes-256-cbc processes=2 eeca"),
            7_113_426.0
        );
        assert_eq!(
            of(
                Paper::AcaSds,
                "table1",
                "latency_us",
                "block=65536 operation=write processes=32 size=67108864 offload"
            ),
            979.54
        );
        assert_eq!(
            of(Paper::Lecpaes, "figure8", "joules", "gap_us=3000 messages=12000 machine=k20m lecpaes"),
            1974.57
        );
        for paper in ALL {
            let figures = full(paper);
            for method in [paper.name(), ADAPTIVE] {
                let points =
                    figures.iter().flat_map(|figure| &figure.points).filter(|point| point.method == method);
                let with =
                    points.filter(|point| point.cells.iter().any(|cell| cell.simulated.is_some())).count();
                assert!(with > 0, "{paper:?} {method}");
            }
        }
    }

    #[test]
    fn what_is_first_is_a_part_and_every_point_comes_once() {
        for paper in ALL {
            let (full, first) = (full(paper), grid(paper, Extent { full: false, ..EXTENT }).unwrap());
            let count = |figures: &[Figure]| figures.iter().map(|figure| figure.points.len()).sum::<usize>();
            assert!(count(&first) < count(&full) && count(&first) <= 100, "{paper:?}: {}", count(&first));
            assert_eq!(first.len(), full.len(), "{paper:?}: every figure is in both");
            for figure in full {
                let names: BTreeSet<String> =
                    figure.points.iter().map(|point| format!("{} {}", point.name(), point.method)).collect();
                assert_eq!(names.len(), figure.points.len(), "{paper:?} {}", figure.id());
                for claim in &figure.claims {
                    let has = |method: &str| {
                        figure.points.iter().any(|point| {
                            point.method == method
                                && claim.at.iter().all(|word| point.name().split(' ').any(|own| own == *word))
                        })
                    };
                    assert!(
                        has(claim.of) && claim.over.iter().all(|method| has(method)),
                        "{paper:?} {}: {claim:?}",
                        figure.id()
                    );
                    assert!(figure.quantities.iter().any(|quantity| quantity.name == claim.quantity));
                }
            }
        }
    }

    /// Else the figure could not compare them.
    #[test]
    fn a_method_that_is_a_key_stands_at_the_point_of_the_others() {
        for (paper, id, method, key) in [
            (Paper::Qweb, "figure7", "straight", ("side", "straight")),
            (Paper::Qweb, "figure10", "straight", ("side", "straight")),
            (Paper::Eep, "table5", "serial", ("cpus", "1")),
            (Paper::Lecpaes, "figure8", "gp", ("rule", "gp")),
        ] {
            let figures = full(paper);
            let of = figures.iter().find(|figure| figure.id() == id).unwrap();
            let mine: Vec<&Point> = of.points.iter().filter(|point| point.method == method).collect();
            assert!(!mine.is_empty(), "{paper:?} {id}");
            for point in mine {
                assert!(point.asked().any(|asked| asked == key) && point.cannot.is_none(), "{point:?}");
                let others = of.points.iter().filter(|other| other.name() == point.name());
                assert!(others.count() > 1, "{}", point.name());
            }
        }
    }

    #[test]
    fn what_this_machine_lacks_is_a_reason() {
        let figures = full(Paper::Qweb);
        let limit = figures[0].points.iter().find(|point| point.name().starts_with("workers=88")).unwrap();
        assert!(limit.cannot.as_ref().unwrap().contains("88 hardware threads"));
        let large = grid(Paper::Qweb, Extent { threads: 88, ..EXTENT }).unwrap();
        assert!(large[0].points.iter().all(|point| point.cannot.is_none()));
        let figures = full(Paper::AcaSds);
        let eight = figures.iter().find(|figure| figure.id() == "figure11").unwrap();
        assert!(
            eight.points.iter().all(|point| point.cannot.as_ref().unwrap().contains("8 CPUs; here are 2"))
        );
    }
}
