//! The output format of the figures.

use std::fmt::Display;
use std::time::Duration;

/// With fewer samples, percentiles add nothing to the extremes.
const FEW: usize = 20;

/// Rows of figures, each with its limit where it has one.
pub struct Table {
    rows: Vec<[String; 4]>,
}

/// A median with its spread.
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Spread {
    /// Returns the median with the 10th and the 90th percentile, in the unit of `unit`; for few samples with the
    /// smallest and the largest.
    pub fn of(samples: Vec<Duration>, unit: fn(Duration) -> f64) -> Self {
        Self::of_figures(samples.into_iter().map(unit).collect())
    }

    /// Does the same for plain numbers.
    pub fn of_figures(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let tail = if samples.len() < FEW { 0.0 } else { 0.1 };
        let at = |share: f64| samples[((samples.len() - 1) as f64 * share).round() as usize];
        Self {
            median: at(0.5),
            low: at(tail),
            high: at(1.0 - tail),
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = if self.median < 10.0 { 2 } else { 1 };
        write!(
            f,
            "{:.digits$} ({:.digits$} to {:.digits$})",
            self.median, self.low, self.high
        )
    }
}

impl Table {
    pub fn new() -> Self {
        Self { rows: Vec::new() }
    }

    /// Adds a figure; `target` is a description, empty if there is none.
    pub fn row(&mut self, what: &str, unit: &str, figure: impl Display, target: &str) {
        let figure = figure.to_string();
        eprintln!("  {what}: {figure} {unit}");
        self.rows
            .push([what.to_owned(), figure, unit.to_owned(), target.to_owned()]);
    }

    pub fn print(&self) {
        println!("\n{}\n", machine());
        println!(
            "| figure | median (10th to 90th percentile; under 20 samples: smallest to largest) | unit | target |\n|---|---|---|---|"
        );
        for row in &self.rows {
            println!("| {} |", row.join(" | "));
        }
    }
}

fn machine() -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1))
        .unwrap_or("?")
        .to_owned();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = read("/proc/meminfo");
    let kib: u64 = memory
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemTotal:")?
                .trim()
                .strip_suffix(" kB")?
                .parse()
                .ok()
        })
        .unwrap_or_default();
    format!("{model}, {cores} cores, {} GiB", kib >> 20)
}

pub fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
