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
        let number = |cell: &str| cell.parse().unwrap_or_else(|_| panic!("{name}: {cell} is no number"));
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
    "aca-sds-table1",
    "eeca-table1",
    "eeca-table2",
    "eep-clocks",
    "eep-table5",
    "lecpaes-clocks",
    "lecpaes-energy",
    "lecpaes-retransmission",
    "qweb-latency",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_of_every_table_is_there_and_a_number_but_for_operations() {
        for name in NAMES {
            let table = table(name);
            assert!(table.len() >= 4, "{name}");
            for column in table.columns().to_vec() {
                match column {
                    "operation" => assert!(table.words(column).iter().all(|word| !word.is_empty())),
                    _ => assert!(table.column(column).iter().all(|number| number.is_finite()), "{name}"),
                }
            }
        }
        assert_eq!(table("eeca-table1").column("eeca_kBps")[3], 7_113_426.0);
    }
}
