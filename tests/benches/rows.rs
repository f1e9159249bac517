//! The rows of the tables that `make bench` fills: all figures, and those of README. A test checks that the pages have these
//! rows.

/// A figure.
pub struct Row {
    pub what: &'static str,
    pub unit: &'static str,
    /// The largest figure that meets the target.
    pub at_most: Option<f64>,
    #[allow(dead_code, reason = "the test of the pages does not need it")]
    /// Whether a larger figure fails the run: it does not depend on how fast the machine is.
    pub is_bound: bool,
    /// Whether users decide by it, so that README has it.
    pub in_readme: bool,
}

impl Row {
    const fn at_most(self, most: f64) -> Self {
        let at_most = Some(most);
        Self { at_most, ..self }
    }

    const fn bound(self, most: f64) -> Self {
        let is_bound = true;
        Self {
            is_bound,
            ..self.at_most(most)
        }
    }

    const fn in_readme(self) -> Self {
        let in_readme = true;
        Self { in_readme, ..self }
    }

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
        is_bound: false,
        in_readme: false,
    }
}

/// The first and the second line of the table of all figures, and of README's.
pub const HEADER: &str = "| figure | median (10th to 90th percentile) | unit | target |\n|---|---|---|---|";

/// The page with all figures.
pub const PAGE: &str = "host/docs/reference/figures.md";

/// Its table. A full run fills all of it.
pub const ROWS: &[Row] = &[
    row("one call of Echo with 3 pods, fresh sandbox, component", "µs")
        .at_most(60.0)
        .in_readme(),
    row("the same mapping compiled natively", "µs"),
    row("ratio of the component to native code", "").in_readme(),
    row("one call of Echo with 3 pods, fresh sandbox, command", "µs"),
    row(
        "converting 1,000 MySQLClusters to another version, processor time",
        "ms",
    )
    .at_most(100.0),
    row(
        "from an updated ConfigMap to the first call, Echo, without proving",
        "ms",
    )
    .at_most(250.0)
    .in_readme(),
    row("anonymous memory added by 20 reloads", "MB").bound(2.0),
    row(
        "start of the process to its first child applied, two plugins compiled",
        "ms",
    ),
    row("start of the process from the compiled cache", "ms").in_readme(),
    row("parent's watch event to the last of 3 children", "ms").in_readme(),
    row("the same 3 requests by a bare client", "ms"),
    row("ratio to a bare client that sends the same 3 requests", "")
        .at_most(1.3)
        .in_readme(),
    row("500 Echos of 3 pods from nothing to the last status", "ms").in_readme(),
    row("the same 2,000 applies by a bare client, 10 at a time", "ms"),
    row("ratio to a bare client that sends the same 2,000 applies", "")
        .at_most(1.15)
        .in_readme(),
    row("writes for the 500", "").bound(2000.0).in_readme(),
    row("processor time of the host for the 500, its start included", "ms"),
    row(
        "processor time of API server and etcd for the 500, with the host",
        "ms",
    ),
    row("the same, with the bare client", "ms"),
    row(
        "writes in two full resyncs of the 500, unchanged, after a restart",
        "",
    )
    .bound(0.0)
    .in_readme(),
    row("resident memory, idle with two plugins", "MB"),
    row("highest resident memory during the 500", "MB"),
    row("resident memory after the 500", "MB").bound(26.0).in_readme(),
    row("of it anonymous", "MB").in_readme(),
];
