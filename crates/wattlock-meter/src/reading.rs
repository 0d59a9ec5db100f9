//! The outcome of a window: all figures, and sums of those that do not overlap.

use crate::figure::{Boundary, Figure, Metered, Modelled, Value, Window};

/// Every source's figure in one window.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reading {
    /// The window that was asked for.
    pub window: Window,
    /// One figure a source.
    pub figures: Vec<Figure>,
}

/// Metered joules of parts that do not overlap.
#[derive(Debug, Clone, PartialEq)]
pub struct Total {
    /// The sum.
    pub value: Metered,
    /// The parts in the sum.
    pub parts: Vec<String>,
    /// Its boundaries, each once.
    pub boundaries: Vec<Boundary>,
    /// Its sources, each once.
    pub sources: Vec<&'static str>,
}

/// A figure, or the total, without idle power.
#[derive(Debug, Clone, PartialEq)]
pub struct Above {
    /// Watts when idle.
    pub idle_watts: f64,
    /// The joules above idle; derived.
    pub value: Metered,
}

impl Reading {
    /// The sum of metered joules without overlap: packages, their memory and boards; without a package figure,
    /// the node; without that, boards alone. Cores are inside packages, and the consumers of rails are unknown: neither
    /// is ever included. Modelled joules are another type. `None` if nothing is metered.
    pub fn total(&self) -> Option<Total> {
        use Boundary::{Board, Dram, Node, Package};
        let has = |boundary| self.metered(boundary).next().is_some();
        match (has(Package), has(Node)) {
            (true, _) => self.sum(&[Package, Dram, Board]),
            (false, true) => self.sum(&[Node]),
            (false, false) => self.sum(&[Board]),
        }
    }

    /// As [`Reading::total`], without boards: the part that follows the processors' load. `None` if only boards are
    /// metered.
    pub fn processors(&self) -> Option<Total> {
        use Boundary::{Dram, Node, Package};
        match self.metered(Package).next() {
            Some(_) => self.sum(&[Package, Dram]),
            None => self.sum(&[Node]),
        }
    }

    fn sum(&self, wanted: &[Boundary]) -> Option<Total> {
        use Boundary::Node;
        let mut figures = wanted.iter().flat_map(|boundary| self.metered(*boundary));
        // Two sensors of a node (two supplies, a platform counter and a power meter) may well see the same joules.
        let one = if wanted == [Node] { 1 } else { usize::MAX };
        let mut total: Option<Total> = None;
        for (figure, metered) in figures.by_ref().take(one) {
            let total = total.get_or_insert_with(|| Total {
                value: Metered::new(0.0, false, None),
                parts: Vec::new(),
                boundaries: Vec::new(),
                sources: Vec::new(),
            });
            total.value = total.value.plus(metered);
            total.parts.push(figure.part.clone());
            add(&mut total.boundaries, figure.boundary);
            add(&mut total.sources, figure.source);
        }
        let mut total = total?;
        // A package without a figure beside one with: the sum is short of it.
        for figure in &self.figures {
            if let Value::Unknown(why) = &figure.value
                && total.boundaries.contains(&figure.boundary)
                && figure.boundary != Node
            {
                total.value = total.value.or_more(&format!("{} is missing ({why})", figure.part));
            }
        }
        Some(total)
    }

    /// The model's figure, if one was asked and no counter covers its place.
    pub fn modelled(&self) -> Option<&Modelled> {
        self.figures.iter().find_map(Figure::modelled)
    }

    /// Whether a counter or sensor gave joules for the processors.
    pub fn has_processor(&self) -> bool {
        self.metered(Boundary::Package).chain(self.metered(Boundary::Node)).next().is_some()
    }

    /// A figure without idle power. `idle` is a reading of a calm machine by the same meter. `None` if either has no
    /// joules, or if the idle joules are a lower bound.
    pub fn above(&self, figure: &Figure, idle: &Reading) -> Option<Above> {
        let same = |other: &&Figure| {
            (other.source, other.boundary, &other.part) == (figure.source, figure.boundary, &figure.part)
        };
        // Two may have one name (each socket may have its `psys`): a meter has them in the same order each time.
        let nth = self.figures.iter().filter(same).position(|other| std::ptr::eq(other, figure)).unwrap_or(0);
        let calm = idle.figures.iter().filter(same).nth(nth)?;
        subtract(figure.metered()?, figure.window, calm.metered()?, calm.window)
    }

    /// The total without idle power. `None` as for [`Reading::above`], or if the two totals hold different parts.
    pub fn total_above(&self, idle: &Reading) -> Option<Above> {
        self.sum_above(&self.total()?, idle, &idle.total()?)
    }

    /// [`Reading::processors`] without idle power. `None` as for [`Reading::total_above`].
    pub fn processors_above(&self, idle: &Reading) -> Option<Above> {
        self.sum_above(&self.processors()?, idle, &idle.processors()?)
    }

    fn sum_above(&self, mine: &Total, idle: &Reading, calm: &Total) -> Option<Above> {
        let same = mine.parts == calm.parts && mine.sources == calm.sources;
        if same { subtract(&mine.value, self.window, &calm.value, idle.window) } else { None }
    }

    fn metered(&self, boundary: Boundary) -> impl Iterator<Item = (&Figure, &Metered)> {
        let of = move |figure: &&Figure| figure.boundary == boundary;
        self.figures.iter().filter(of).filter_map(|figure| Some((figure, figure.metered()?)))
    }
}

fn add<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

fn subtract(value: &Metered, window: Window, calm: &Metered, calm_window: Window) -> Option<Above> {
    if calm.at_least().is_some() || calm_window.seconds() <= 0.0 {
        return None;
    }
    let idle_watts = calm.joules() / calm_window.seconds();
    Some(Above { idle_watts, value: value.above(idle_watts, window) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Quality, Range};

    const SECOND: Window = Window { from_ns: 0, to_ns: 1_000_000_000 };

    fn figure(boundary: Boundary, part: &str, joules: f64) -> Figure {
        let value = Value::Metered(Metered::new(joules, false, None));
        Figure { source: "powercap", boundary, part: part.into(), window: SECOND, value, note: None }
    }

    fn unknown(boundary: Boundary, part: &str) -> Figure {
        Figure { value: Value::Unknown("gone".into()), ..figure(boundary, part, 0.0) }
    }

    fn reading(figures: Vec<Figure>) -> Reading {
        Reading { window: SECOND, figures }
    }

    #[test]
    fn what_contains_another_is_not_added_to_it() {
        let seen = reading(vec![
            figure(Boundary::Package, "package-0", 10.0),
            figure(Boundary::Core, "package-0 core", 7.0),
            figure(Boundary::Uncore, "package-0 uncore", 1.0),
            figure(Boundary::Dram, "package-0 dram", 2.0),
            figure(Boundary::Package, "package-1", 20.0),
            figure(Boundary::Board, "gpu-0", 100.0),
            figure(Boundary::Node, "psys", 500.0),
            figure(Boundary::Rail, "ina219 3V3", 4.0),
        ]);
        let total = seen.total().unwrap();
        assert_eq!(total.value.joules(), 132.0);
        assert_eq!(total.parts, ["package-0", "package-1", "package-0 dram", "gpu-0"]);
        assert_eq!(seen.processors().unwrap().value.joules(), 32.0);
    }

    #[test]
    fn without_packages_one_figure_of_the_node_is_the_total_boards_and_all() {
        let seen = reading(vec![
            figure(Boundary::Node, "power_meter 1", 300.0),
            figure(Boundary::Node, "psys", 290.0),
            figure(Boundary::Board, "gpu-0", 100.0),
            unknown(Boundary::Package, "package-0"),
        ]);
        assert_eq!(seen.total().unwrap().value, Metered::new(300.0, false, None));
        let boards = reading(vec![figure(Boundary::Board, "gpu-0", 100.0)]);
        assert_eq!(boards.total().unwrap().parts, ["gpu-0"]);
        assert!(!boards.has_processor() && boards.processors().is_none());
    }

    #[test]
    fn modelled_joules_are_in_no_total() {
        let range = Range { low: 1.0, expected: 2.0, high: 3.0 };
        let modelled = Figure {
            source: "model",
            value: Value::Modelled(Modelled::new(range, range, "v".into())),
            ..figure(Boundary::Package, "processors", 0.0)
        };
        assert_eq!(reading(vec![modelled.clone()]).total(), None);
        let both = reading(vec![modelled, figure(Boundary::Board, "gpu-0", 5.0)]);
        assert_eq!(both.total().unwrap().value.joules(), 5.0);
        assert_eq!(both.modelled().unwrap().range(), range);
    }

    #[test]
    fn a_total_that_lacks_a_socket_is_a_lower_bound() {
        let seen = reading(vec![
            figure(Boundary::Package, "package-0", 10.0),
            unknown(Boundary::Package, "package-1"),
        ]);
        let total = seen.total().unwrap().value;
        assert!(total.at_least().unwrap().contains("package-1 is missing"));
        assert_eq!(
            seen.total_above(&reading(vec![figure(Boundary::Package, "package-0", 1.0)]))
                .unwrap()
                .value
                .joules(),
            9.0
        );
    }

    #[test]
    fn a_board_has_no_part_in_what_the_processors_took() {
        let with = |package: f64, board: f64| {
            reading(vec![
                figure(Boundary::Package, "package-0", package),
                figure(Boundary::Board, "gpu-0", board),
            ])
        };
        let above = with(30.0, 500.0).processors_above(&with(10.0, 400.0)).unwrap();
        assert_eq!((above.value.joules(), above.idle_watts), (20.0, 10.0));
    }

    #[test]
    fn of_two_with_one_name_each_has_its_own_idle_power() {
        let with = |a: f64, b: f64| {
            reading(vec![figure(Boundary::Node, "psys", a), figure(Boundary::Node, "psys", b)])
        };
        let (busy, idle) = (with(30.0, 300.0), with(10.0, 100.0));
        let left = busy.figures.iter().map(|figure| busy.above(figure, &idle).unwrap().value.joules());
        assert_eq!(left.collect::<Vec<f64>>(), [20.0, 200.0]);
    }

    #[test]
    fn idle_power_is_subtracted_for_the_time_of_the_window_and_the_rest_is_derived() {
        let mut busy = figure(Boundary::Package, "package-0", 30.0);
        busy.window.to_ns = 2_000_000_000;
        let seen = Reading { window: busy.window, figures: vec![busy.clone()] };
        let idle = reading(vec![figure(Boundary::Package, "package-0", 5.0)]);
        let above = seen.above(&busy, &idle).unwrap();
        assert_eq!(
            (above.idle_watts, above.value.joules(), above.value.quality()),
            (5.0, 20.0, Quality::Derived)
        );
        let short =
            Figure { value: Value::Metered(Metered::new(5.0, false, Some("gone".into()))), ..busy.clone() };
        assert_eq!(seen.above(&busy, &reading(vec![short])), None, "a lower bound is nothing to subtract");
        assert_eq!(seen.above(&busy, &reading(vec![])), None);
    }
}
