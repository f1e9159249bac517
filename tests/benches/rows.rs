//! The rows of the tables that `make bench` fills: all figures, those of README, and one in
//! `host/docs/reference/hostile-plugins.md`. A scenario checks that the pages have these rows.

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
    row(
        "list of 1,000 MySQLClusters in another version, converted by a plugin",
        "ms",
    ),
    row("the same list, converted by a native webhook", "ms"),
    limited("ratio of the two lists", "", 1.5),
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
    row("a no-op reconcile with telemetry off", "µs"),
    limited("the same, with 1 % of reconciles traced", "% more", 5.0),
    limited("the same, with all reconciles traced", "% more", 25.0),
    row("processor time of a no-op reconcile with telemetry off", "µs"),
    limited(
        "the same, with 1 % of reconciles traced and exported",
        "% more",
        5.0,
    ),
    limited(
        "the same, with all reconciles traced and exported",
        "% more",
        25.0,
    ),
    row("from a change of an Echo to its pod, no other work", "ms"),
    limited("ratio beside a plugin that spins in 20 objects, medians", "", 2.0),
    limited("the same, 95th percentiles", "", 3.0),
    limited(
        "ratio beside a plugin that answers 8 MiB in 20 objects, medians",
        "",
        2.0,
    ),
    limited("the same answers, 95th percentiles", "", 3.0),
    limited("largest ratio beside any hostile plugin, medians", "", 2.0),
    limited("the largest, 95th percentiles", "", 3.0),
    limited("most resident memory that a hostile plugin adds", "MB", CALLS_MB),
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

/// The memory of the host beside hostile plugins, as in `manifests/deploy`.
pub const HOST_MEMORY: &str = "512Mi";

/// All calls together may have half of [`HOST_MEMORY`].
pub const CALLS_MB: f64 = 268.4;

/// A row of the table about hostile plugins.
pub struct Hostile {
    /// What the plugin does.
    pub what: &'static str,
    /// The name of its case.
    pub case: &'static str,
    pub by: By,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    Component,
    Command,
    /// A plugin in the text format, which does nothing else.
    Text,
}

/// The first and the second line of the table about hostile plugins.
pub const HOSTILE_HEADER: &str = "\
| what the plugin does | memory before, MB | peak | afterwards | Echo's time, ms | beside it | ratio |
|---|---|---|---|---|---|---|";

const fn hostile(what: &'static str, case: &'static str, by: By) -> Hostile {
    Hostile { what, case, by }
}

/// The table about hostile plugins.
pub const HOSTILE: &[Hostile] = &[
    hostile("spins", "loop", By::Component),
    hostile("answers 8 MiB of text", "large-text", By::Component),
    hostile("answers more than 8 MiB", "flood", By::Component),
    hostile("the same, a command that writes 100 MiB", "flood", By::Command),
    hostile(
        "answers 780,000 JSON values in 6 MiB",
        "many-values",
        By::Component,
    ),
    hostile("answers 10,000 levels of JSON", "deep-json", By::Component),
    hostile("answers text that is not UTF-8", "not-utf8", By::Component),
    hostile("writes to the log, one byte at a time", "drip", By::Component),
    hostile("answers one byte at a time, a command", "drip", By::Command),
    hostile("allocates memory without end", "memory", By::Component),
    hostile("recurses without end", "recursion", By::Component),
    hostile("grows a table without end", "tables", By::Text),
    hostile("fails within 100 µs", "brief", By::Text),
    hostile("polls 200,000 clocks at once", "clocks", By::Text),
    hostile("answers 2,000 children", "many-children", By::Component),
    hostile(
        "answers 900 children of a kind that it may not create",
        "other-kinds",
        By::Component,
    ),
    hostile(
        "answers children of kinds with long names",
        "long-kinds",
        By::Component,
    ),
    hostile("answers children with long names", "long-names", By::Component),
    hostile("reads 6 MB of ConfigMaps 32 times", "all-needs", By::Component),
    hostile("has 900 needs", "many-needs", By::Component),
    hostile("emits 30 Events with long reasons", "events", By::Component),
    hostile("logs 10,000 lines", "log-flood", By::Component),
    hostile("logs a line of 5 MiB", "long-line", By::Component),
];
