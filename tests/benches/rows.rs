//! The rows of the tables that `make bench` fills: all figures, and those of README. A test checks that the pages have these
//! rows.

/// A figure.
pub struct Row {
    pub what: &'static str,
    pub unit: &'static str,
    /// The largest figure that meets the target.
    pub at_most: Option<f64>,
}

impl Row {
    pub fn target(&self) -> String {
        self.at_most
            .map_or_else(String::new, |most| format!("at most {most}"))
    }
}

const fn row(what: &'static str, unit: &'static str) -> Row {
    Row {
        what,
        unit,
        at_most: None,
    }
}

const fn limited(what: &'static str, unit: &'static str, at_most: f64) -> Row {
    Row {
        what,
        unit,
        at_most: Some(at_most),
    }
}

/// The first and the second line of the table of all figures, and of README's.
pub const HEADER: &str = "| figure | median (10th to 90th percentile) | unit | target |\n|---|---|---|---|";

/// The page with all figures.
pub const PAGE: &str = "host/docs/reference/figures.md";

/// Its table. A full run fills all of it.
pub const ROWS: &[Row] = &[
    limited(
        "one call of Echo with 3 pods, fresh sandbox, component",
        "µs",
        60.0,
    ),
    row("the same mapping compiled natively", "µs"),
    row("ratio of the component to native code", ""),
    row("one call of Echo with 3 pods, fresh sandbox, command", "µs"),
    limited(
        "converting 1,000 MySQLClusters to another version, processor time",
        "ms",
        100.0,
    ),
    limited(
        "from an updated ConfigMap to the first call, Echo, without proving",
        "ms",
        250.0,
    ),
    limited("resident memory added by 20 reloads", "MB", 2.0),
    row(
        "start of the process to its first child applied, two plugins compiled",
        "ms",
    ),
    row("start of the process from the compiled cache", "ms"),
    row("parent's watch event to the last of 3 children", "ms"),
    row("the same 3 requests by a bare client", "ms"),
    limited("ratio to a bare client that sends the same 3 requests", "", 1.3),
    row("500 Echos of 3 pods from nothing to the last status", "ms"),
    row("the same 2,000 applies by a bare client, 10 at a time", "ms"),
    limited(
        "ratio to a bare client that sends the same 2,000 applies",
        "",
        1.25,
    ),
    row("processor time of the host for the 500, its start included", "ms"),
    row(
        "processor time of API server and etcd for the 500, with the host",
        "ms",
    ),
    row("the same, with the bare client", "ms"),
    limited(
        "writes in two full resyncs of the 500, unchanged, after a restart",
        "",
        0.0,
    ),
    row("resident memory, idle with two plugins", "MB"),
    row("resident memory after the 500", "MB"),
];

/// The rows of README's table: those that a user decides by.
pub const README: [&str; 10] = [
    "one call of Echo with 3 pods, fresh sandbox, component",
    "ratio of the component to native code",
    "from an updated ConfigMap to the first call, Echo, without proving",
    "start of the process from the compiled cache",
    "parent's watch event to the last of 3 children",
    "ratio to a bare client that sends the same 3 requests",
    "500 Echos of 3 pods from nothing to the last status",
    "ratio to a bare client that sends the same 2,000 applies",
    "writes in two full resyncs of the 500, unchanged, after a restart",
    "resident memory after the 500",
];
