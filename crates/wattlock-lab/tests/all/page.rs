//! docs/research/tables/lab.md has the summaries that the program prints.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use wattlock_lab::papers::{aca_sds, eeca, eep, lecpaes, qweb, velocity};
use wattlock_lab::{Study, Summary, summary};

fn line(cells: &[impl AsRef<str>]) -> String {
    let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
    format!("| {} |", cells.join(" | "))
}

/// The summary as the page has it.
fn table(study: &Study) -> String {
    let mut lines = vec![line(&Summary::COLUMNS), line(&["---"; Summary::COLUMNS.len()])];
    lines.extend(summary(&study.rows).iter().map(|one| line(&one.cells())));
    lines.join("\n")
}

/// Each paper's table stands on the page as it is printed. Where it does not, the message is the table to put there.
#[test]
fn the_page_has_the_summaries_that_are_printed() {
    let page = include_str!("../../../../docs/research/tables/lab.md");
    let mut missing = Vec::new();
    for (paper, study) in [
        ("eeca", eeca::study(&Default::default())),
        ("qweb", qweb::study(&Default::default())),
        ("lecpaes", lecpaes::study(&Default::default())),
        ("aca-sds", aca_sds::study(&Default::default())),
        ("eep", eep::study(&Default::default())),
        ("velocity", velocity::study(&Default::default())),
    ] {
        let table = table(&study.unwrap());
        assert!(table.lines().count() > 3, "{paper}");
        // As many lines as the program's, one after the other, and none more.
        let there = page.split_once(&format!("{table}\n")).is_some_and(|(_, rest)| !rest.starts_with('|'));
        if !there {
            missing.push(format!("wattlock lab {paper}\n\n{table}\n"));
        }
    }
    assert!(
        missing.is_empty(),
        "docs/research/tables/lab.md differs from what is printed:\n\n{}",
        missing.join("\n")
    );
}
