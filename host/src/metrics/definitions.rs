//! Every metric that the host exports: name, unit, labels, meaning. Instruments are made from these, the table
//! in `docs/telemetry.md` is checked against them.

/// What kind of numbers a metric gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instrument {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How often a value was in which range.
    Histogram,
}

impl Instrument {
    /// In lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// As OTLP carries it.
    pub name: &'static str,
    /// What kind of numbers it gives.
    pub instrument: Instrument,
    /// In UCUM, as OpenTelemetry writes units.
    pub unit: &'static str,
    /// Its labels. Each has few values: a controller, a kind, a word from a list.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

impl Definition {
    /// The name at `/metrics`: without dots, with its unit, and `_total` for a counter.
    #[must_use]
    pub fn prometheus_name(&self) -> String {
        let mut name = self.name.replace('.', "_");
        name += match self.unit {
            "ms" => "_milliseconds",
            "s" => "_seconds",
            "By" => "_bytes",
            _ => "",
        };
        if self.instrument == Instrument::Counter {
            name += "_total";
        }
        name
    }

    /// Its row in the documentation's table.
    #[must_use]
    pub fn row(&self) -> String {
        let labels: Vec<_> = self.labels.iter().map(|label| format!("`{label}`")).collect();
        let unit = self.unit.trim_matches(['{', '}']);
        let (name, prometheus, kind, help) = (
            self.name,
            self.prometheus_name(),
            self.instrument.as_str(),
            self.help,
        );
        format!(
            "| `{name}` | `{prometheus}` | {kind} | {unit} | {} | {help} |",
            labels.join(", ")
        )
    }
}

const fn define(
    instrument: Instrument,
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Definition {
    Definition {
        name,
        instrument,
        unit,
        labels,
        help,
    }
}

use Instrument::{Counter, Gauge, Histogram};

macro_rules! definitions {
    ($($constant:ident = $instrument:ident, $name:literal, $unit:literal, $labels:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Definition = define($instrument, $name, $unit, &$labels, $help);
        )*
        /// All of them, in the order of the documentation.
        pub const ALL: &[Definition] = &[$($constant),*];
    };
}

definitions! {
    RECONCILE_COUNT = Counter, "operator.reconcile_count", "{pass}", ["controller", "kind", "trigger"],
        "Passes over a parent, by what led to them";
    RECONCILE_DURATION = Histogram, "operator.reconcile_duration", "ms", ["controller", "kind"],
        "Time of one pass, requests to the API server included";
    RECONCILE_ERRORS = Counter, "operator.reconcile_errors", "{pass}", ["controller", "kind", "class"],
        "Passes that did not come to their end, by why";
    RESOURCE_CREATED = Counter, "operator.resource_created", "{object}", ["controller", "kind"],
        "Children created, by their kind";
    RESOURCE_UPDATED = Counter, "operator.resource_updated", "{object}", ["controller", "kind"],
        "Children changed, by their kind";
    RESOURCE_DELETED = Counter, "operator.resource_deleted", "{object}", ["controller", "kind"],
        "Children deleted, by their kind";
    PLUGIN_CALL_DURATION = Histogram, "operator.plugin_call_duration", "ms", ["controller", "export", "class"],
        "Time of one plugin call, by how it ended";
    PLUGIN_WAIT_DURATION = Histogram, "operator.plugin_wait_duration", "ms", ["controller"],
        "Time of it in which the call waited for its turn and its share of the memory";
    PLUGIN_GUEST_TIME = Counter, "operator.plugin_guest_time", "s", ["controller"],
        "Time on a processor inside plugins";
    PLUGIN_MEMORY_PEAK = Histogram, "operator.plugin_memory_peak", "By", ["controller"],
        "The most memory that one call had";
    PLUGIN_LOG_LINES_DROPPED = Counter, "operator.plugin_log_lines_dropped", "{line}", ["controller"],
        "Lines that plugins logged over their limit";
    PLUGIN_COMPILE_DURATION = Histogram, "operator.plugin_compile_duration", "ms", ["controller"],
        "Time to make machine code of a plugin";
    PLUGIN_INFO = Gauge, "operator.plugin_info", "{version}", ["controller", "plugin", "version", "digest"],
        "1 for the version of each plugin that answers now";
    PLUGIN_HELD_BACK = Gauge, "operator.plugin_held_back", "{version}", ["controller", "plugin", "version", "digest"],
        "1 for a version that is held back because it would do worse than the one that answers";
    PLUGIN_RELOADS = Counter, "operator.plugin_reloads", "{reload}", ["controller", "result"],
        "Plugin files taken, refused or held back, the first of each controller too";
    CONFIG_RELOADS = Counter, "operator.config_reloads", "{reload}", ["result"],
        "Configurations taken or refused, the first too";
    QUEUE_DEPTH = Gauge, "operator.queue_depth", "{parent}", ["controller"],
        "Parents that wait for a worker";
    QUEUE_AGE = Gauge, "operator.queue_age", "s", ["controller"],
        "How long the first of them has waited";
    QUEUE_DURATION = Histogram, "operator.queue_duration", "ms", ["controller"],
        "Time from the first change to the start of the pass";
    WATCH_RESTARTS = Counter, "operator.watch_restarts", "{restart}", ["kind"],
        "Watches that broke and were started again";
    API_REQUESTS = Counter, "operator.api_requests", "{request}", ["verb", "kind", "code"],
        "Requests to the API server, by its answer";
    API_REQUEST_DURATION = Histogram, "operator.api_request_duration", "ms", ["verb", "kind"],
        "Time until the API server began to answer";
    EVENTS_DROPPED = Counter, "operator.events_dropped", "{event}", [],
        "Kubernetes Events dropped because too many waited";
    RECORDS_DROPPED = Counter, "operator.records_dropped", "{call}", ["controller"],
        "Plugin calls that `--record` did not write: too many waited, one was too large, or the disk is full";
    LEADER = Gauge, "operator.leader", "{replica}", ["controller"],
        "1 when this replica leads the controller, 0 when it stands by";
    WEBHOOK_SERVING = Gauge, "operator.webhook_serving", "{replica}", [],
        "1 when the webhook's certificate is one that the API server takes, 0 when not; without a webhook there is none";
    WEBHOOK_REVIEWS = Counter, "operator.webhook_reviews", "{review}", ["controller", "result"],
        "Resources reviewed before they were written: `allowed`, `denied`, or `failed` when there was no verdict";
    TELEMETRY_DROPPED = Counter, "operator.telemetry_dropped", "{item}", ["signal", "reason"],
        "Spans, and exports of metrics, that the collector did not get";
    PROCESS_MEMORY = Gauge, "process.memory.usage", "By", [],
        "Resident memory of the process";
    PROCESS_CPU = Counter, "process.cpu.time", "s", ["cpu_mode"],
        "Time on processors of the process";
}
