//! Medians, percentiles and quarters.

use std::fmt;

/// A median with the smallest and the largest sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    median: f64,
    low: f64,
    high: f64,
}

impl Spread {
    pub(crate) fn of(samples: impl IntoIterator<Item = f64>) -> Self {
        let samples: Vec<f64> = samples.into_iter().collect();
        let at = |share| percentile(&samples, share);
        Self {
            median: median(&samples),
            low: at(0.0),
            high: at(1.0),
        }
    }
}

/// `4.20 (4.00 to 5.10)`, and only the figure when all samples are printed alike.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = digits(self.median);
        let [median, low, high] = [self.median, self.low, self.high].map(|value| format!("{value:.digits$}"));
        if low == high {
            return write!(f, "{median}");
        }
        write!(f, "{median} ({low} to {high})")
    }
}

/// Formats a figure with about three significant digits.
pub(crate) fn figure(value: f64) -> String {
    let digits = digits(value);
    format!("{value:.digits$}")
}

fn digits(value: f64) -> usize {
    match value.abs() {
        0.0 => 0,
        small if small < 10.0 => 2,
        middle if middle < 100.0 => 1,
        _ => 0,
    }
}

/// Returns the middle sample, or the mean of the two in the middle; NaN when there is none.
fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (below, above) = (sorted.len().saturating_sub(1) / 2, sorted.len() / 2);
    match (sorted.get(below), sorted.get(above)) {
        (Some(below), Some(above)) => below.midpoint(*above),
        _ => f64::NAN,
    }
}

/// Returns the sample at this share of the sorted samples, by the nearest rank; NaN when there is none.
pub(crate) fn percentile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = sorted.len().saturating_sub(1) as f64 * share;
    sorted.get(rank.round() as usize).copied().unwrap_or(f64::NAN)
}

/// Returns the medians of the four quarters of a series.
pub(crate) fn quarters(series: &[f64]) -> [f64; 4] {
    let at = |quarter: usize| series.len() * quarter / 4;
    [0, 1, 2, 3].map(|quarter| percentile(&series[at(quarter)..at(quarter + 1)], 0.5))
}

/// Reports whether the last quarter's median exceeds the second quarter's by more than 10 %, and by more than `slack`,
/// which allows for the granularity of small numbers. The first quarter is the time to warm up.
pub(crate) fn grew(series: &[f64], slack: f64) -> bool {
    let [_, second, _, last] = quarters(series);
    last > second * 1.1 && last > second + slack
}
