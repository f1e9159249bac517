//! Tables in Markdown.

use std::fmt;

use crate::stats::Spread;

/// A table of formatted figures.
pub(crate) struct Table(Vec<Vec<String>>);

impl Table {
    /// Begins a table with its heads, which ` | ` divides.
    pub(crate) fn new(heads: &str) -> Self {
        let heads: Vec<_> = heads.split(" | ").map(str::to_owned).collect();
        let line = vec!["---".to_owned(); heads.len()];
        Self(vec![heads, line])
    }

    /// Adds a row: its first cells, and the figures of each sample, which become one cell each.
    pub(crate) fn row<const N: usize>(&mut self, first: &[String], samples: &[[f64; N]]) {
        let figures = (0..N).map(|at| Spread::of(samples.iter().map(|sample| sample[at])).to_string());
        self.texts(first.iter().cloned().chain(figures).collect());
    }

    /// Adds a row of texts.
    pub(crate) fn texts(&mut self, row: Vec<String>) {
        eprintln!("  {}", row.join("  "));
        self.0.push(row);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|row| writeln!(f, "| {} |", row.join(" | ")))
    }
}

/// Returns bytes in MB.
pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
