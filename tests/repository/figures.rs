//! The pages with figures of `make bench` have exactly the rows that it prints.

#[path = "../benches/rows.rs"]
mod rows;

use self::rows::{HEADER, PAGE, ROWS, Row};
use crate::support::prelude::*;

/// Returns the lines of the table that `make bench` writes into a page.
fn table(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let (_, rest) = text.split_once("<!-- bench:begin -->\n").expect("the begin");
    let (table, _) = rest.split_once("<!-- bench:end -->").expect("the end");
    let lines = table.lines().filter(|line| line.starts_with('|'));
    lines.map(str::to_owned).collect()
}

/// Returns a row without its figure.
fn without_figure(row: &str) -> String {
    let mut cells: Vec<&str> = row.split(" | ").collect();
    cells[1] = "";
    cells.join(" | ")
}

fn empty(row: &Row) -> String {
    format!("| {} |  | {} | {} |", row.what, row.unit, row.target())
}

#[test]
fn the_page_of_figures_has_the_rows_that_make_bench_prints() {
    let lines = table(PAGE);
    assert_eq!(lines[..2].join("\n"), HEADER);
    let lines = lines[2..].iter().map(|line| without_figure(line));
    assert_eq!(
        lines.collect::<Vec<_>>(),
        ROWS.iter().map(empty).collect::<Vec<_>>()
    );
}

#[test]
fn the_table_in_the_readme_has_the_rows_that_users_decide_by_as_they_are_on_the_page() {
    let page = table(PAGE);
    let rows = page[2..].iter().zip(ROWS).filter(|(_, row)| row.in_readme);
    let wanted: Vec<_> = rows.map(|(line, _)| line.clone()).collect();
    let readme = table("README.md");
    assert_eq!(readme[..2].join("\n"), HEADER);
    assert_eq!(readme[2..], wanted);
}
