//! The published tables, compiled in. The files are copies of published figures and nothing here changes them.

/// One table: names of columns and rows of numbers. Cells that are no numbers (an operation's name) are kept as text.
#[derive(Debug, Clone)]
pub struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Vec<&'static str>>,
}

impl Table {
    /// Reads a table: lines that begin with `#` are comments, the last of which names the columns.
    fn parse(text: &'static str) -> Table {
        let mut comments = text.lines().rev().filter_map(|line| line.strip_prefix('#'));
        let cells = |line: &'static str| line.split(',').map(str::trim).collect::<Vec<_>>();
        let rows = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        Table { columns: comments.next().map(cells).unwrap_or_default(), rows: rows.map(cells).collect() }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A column's numbers, top to bottom.
    ///
    /// # Panics
    /// If there is no such column or it holds something else: the tables are part of the program, and a test reads
    /// every cell of them.
    pub fn column(&self, name: &str) -> Vec<f64> {
        self.words(name).into_iter().map(number).collect()
    }

    /// The number of a column in the row where another column has that value; `None` if no row has it.
    ///
    /// # Panics
    /// As [`Table::column`].
    pub fn cell(&self, (key, value): (&str, f64), column: &str) -> Option<f64> {
        let row = self.column(key).iter().position(|known| *known == value)?;
        Some(self.column(column)[row])
    }

    /// A column's cells as they are.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn words(&self, name: &str) -> Vec<&'static str> {
        let index = self.columns.iter().position(|column| *column == name);
        let index = index.unwrap_or_else(|| panic!("no column {name} among {:?}", self.columns));
        self.rows.iter().map(|row| row[index]).collect()
    }

    /// Names of the columns.
    pub fn columns(&self) -> &[&'static str] {
        &self.columns
    }
}

fn number(cell: &str) -> f64 {
    cell.parse().unwrap_or_else(|_| panic!("{cell:?} is no number"))
}

/// A published figure that no table of its paper has (`papers/figures.csv`).
///
/// # Panics
/// If it is not there or an interval.
pub fn figure(paper: &str, name: &str) -> f64 {
    number(printed(paper, name))
}

/// The same, published as an interval.
///
/// # Panics
/// If it is not there or no interval.
pub fn interval(paper: &str, name: &str) -> (f64, f64) {
    let printed = printed(paper, name);
    let ends = printed.split_once(" to ");
    let (low, high) = ends.unwrap_or_else(|| panic!("{printed:?} is no interval"));
    (number(low), number(high))
}

fn printed(paper: &str, name: &str) -> &'static str {
    let figures = table("figures");
    let names = figures.words("paper").into_iter().zip(figures.words("figure"));
    let mut values = names.zip(figures.words("value"));
    let found = values.find(|(known, _)| *known == (paper, name));
    found.unwrap_or_else(|| panic!("no published figure {paper} {name}")).1
}

macro_rules! tables {
    ($($name:literal),* $(,)?) => {
        /// Names of all published tables.
        #[cfg(test)]
        const NAMES: &[&str] = &[$($name),*];

        /// The published table of that name (`eeca-table1`).
        ///
        /// # Panics
        /// If there is none.
        pub fn table(name: &str) -> Table {
            match name {
                $($name => Table::parse(include_str!(concat!("../../../papers/", $name, ".csv"))),)*
                _ => panic!("no published table {name}"),
            }
        }
    };
}

tables!(
    "aca-sds-feeders",
    "aca-sds-table1",
    "eeca-table1",
    "eeca-table2",
    "eep-clocks",
    "eep-table5",
    "figures",
    "lecpaes-clocks",
    "lecpaes-energy",
    "lecpaes-retransmission",
    "lecpaes-throughput",
    "qweb-latency",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_of_every_table_is_there_and_a_number_but_for_operations() {
        for name in NAMES.iter().filter(|name| **name != "figures") {
            let table = table(name);
            assert!(table.len() >= 2, "{name}");
            for column in table.columns().to_vec() {
                match column {
                    "operation" => assert!(table.words(column).iter().all(|word| !word.is_empty())),
                    _ => assert!(table.column(column).iter().all(|number| number.is_finite()), "{name}"),
                }
            }
        }
        assert_eq!(table("eeca-table1").column("eeca_kBps")[3], 7_113_426.0);
    }

    #[test]
    fn every_figure_is_listed_once_and_a_number_or_an_interval() {
        let figures = table("figures");
        let names: Vec<_> = figures.words("paper").into_iter().zip(figures.words("figure")).collect();
        for (index, (paper, name)) in names.iter().enumerate() {
            assert!(!names[..index].contains(&(paper, name)), "{paper} {name} twice");
            match printed(paper, name).contains(" to ") {
                true => assert!(interval(paper, name).0 < interval(paper, name).1, "{paper} {name}"),
                false => assert!(figure(paper, name) > 0.0, "{paper} {name}"),
            }
        }
        assert!(figures.words("unit").iter().all(|unit| !unit.is_empty()));
        assert_eq!(figure("eep", "hybrid"), 4.66);
        assert_eq!(interval("qweb", "transfer speedup"), (2.0, f64::INFINITY));
    }

    #[test]
    #[should_panic(expected = "no published figure eep tribrid")]
    fn a_figure_that_is_not_listed_is_refused() {
        figure("eep", "tribrid");
    }

    #[test]
    #[should_panic(expected = "\"108\" is no interval")]
    fn a_number_is_no_interval() {
        interval("eep", "speedup");
    }

    #[test]
    #[should_panic(expected = "\"15 to 25\" is no number")]
    fn an_interval_is_no_number() {
        figure("aca-sds", "write gain");
    }
}
