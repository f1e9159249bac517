//! The output format of the figures.

use std::time::Duration;

use super::rows::{HEADER, ROWS, Row};
use super::support::measure::MB;
use super::support::root;

/// With fewer samples, percentiles add nothing to the extremes.
const FEW: usize = 20;

/// The table of all figures, with those of the parts that were measured.
pub struct Table {
    figures: Vec<Option<Figure>>,
}

/// A figure: its text, and the number that a target is compared with.
pub struct Figure {
    text: String,
    value: f64,
}

/// A median with its spread.
pub struct Spread {
    pub median: f64,
    low: f64,
    high: f64,
    is_few: bool,
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
        let is_few = samples.len() < FEW;
        let tail = if is_few { 0.0 } else { 0.1 };
        let at = |share: f64| samples[((samples.len() - 1) as f64 * share).round() as usize];
        Self {
            median: at(0.5),
            low: at(tail),
            high: at(1.0 - tail),
            is_few,
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = if self.median < 10.0 { 2 } else { 1 };
        let range = if self.is_few { "min to max: " } else { "" };
        write!(
            f,
            "{:.digits$} ({range}{:.digits$} to {:.digits$})",
            self.median, self.low, self.high
        )
    }
}

impl From<Spread> for Figure {
    fn from(spread: Spread) -> Self {
        Self {
            text: spread.to_string(),
            value: spread.median,
        }
    }
}

impl Figure {
    /// Returns a single number with so many digits after the point.
    pub fn number(value: f64, digits: usize) -> Self {
        Self {
            text: format!("{value:.digits$}"),
            value,
        }
    }

    /// Returns the text, marked if the figure is larger than the target.
    pub fn marked(&self, at_most: Option<f64>) -> String {
        match at_most {
            Some(most) if self.value > most => format!("**{}: misses the target**", self.text),
            _ => self.text.clone(),
        }
    }
}

impl Table {
    pub fn new() -> Self {
        Self {
            figures: ROWS.iter().map(|_| None).collect(),
        }
    }

    /// Fills the row with this name.
    pub fn fill(&mut self, what: &str, figure: impl Into<Figure>) {
        let index = ROWS.iter().position(|row| row.what == what);
        let index = index.unwrap_or_else(|| panic!("no row has the name {what:?}"));
        let figure = figure.into();
        eprintln!("  {what}: {} {}", figure.text, ROWS[index].unit);
        let before = self.figures[index].replace(figure);
        assert!(before.is_none(), "two figures for {what:?}");
    }

    /// Returns the rows whose figures pass their bounds.
    pub fn passed(&self) -> Vec<&'static str> {
        let rows = ROWS.iter().zip(&self.figures).filter(|(row, _)| row.is_bound);
        let is_passed = |(row, figure): &(&Row, &Option<Figure>)| {
            let value = figure.as_ref().map(|figure| figure.value);
            value.zip(row.at_most).is_some_and(|(value, most)| value > most)
        };
        rows.filter(is_passed).map(|(row, _)| row.what).collect()
    }

    /// Returns the table of the rows that have a figure and are wanted.
    pub fn text(&self, wanted: impl Fn(&Row) -> bool) -> String {
        let rows = ROWS.iter().zip(&self.figures).filter(|(row, _)| wanted(row));
        let rows = rows.filter_map(|(row, figure)| Some((row, figure.as_ref()?)));
        let rows = rows.map(|(row, figure)| {
            let figure = figure.marked(row.at_most);
            format!("| {} | {figure} | {} | {} |\n", row.what, row.unit, row.target())
        });
        format!("{}\n\n{HEADER}\n{}", machine(), rows.collect::<String>())
    }
}

/// Replaces what `make bench` wrote into a page before.
pub fn write(page: &str, text: &str) {
    const BEGIN: &str = "<!-- bench:begin -->\n";
    const END: &str = "<!-- bench:end -->";
    let file = root().join(page);
    let before = std::fs::read_to_string(&file).expect("the page");
    let (head, rest) = before.split_once(BEGIN).expect("the mark of the table's begin");
    let (_, tail) = rest.split_once(END).expect("the mark of the table's end");
    std::fs::write(&file, format!("{head}{BEGIN}{text}{END}{tail}")).expect("the page can be written");
}

/// Returns the first line above a table.
pub fn machine() -> String {
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
    let day = read_command("date", &["+%F"]);
    let commit = read_command("git", &["rev-parse", "--short=8", "HEAD"]);
    format!(
        "{day}: commit {commit}, {}, {model}, {cores} cores, {} GiB. A row that misses its target is marked.",
        control_plane::version().expect("a control plane"),
        kib >> 20
    )
}

fn read_command(program: &str, arguments: &[&str]) -> String {
    let output = std::process::Command::new(program)
        .args(arguments)
        .output()
        .expect("it runs");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

pub fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Returns bytes as a figure in MB.
pub fn megabytes(bytes: u64) -> Figure {
    Figure::number(bytes as f64 / MB, 1)
}
