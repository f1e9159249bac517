//! Defines every metric that the host exports: name, unit, labels, meaning. The instruments are created from
//! these definitions, and a test compares them with the table in `docs/telemetry.md`.

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instrument {
    /// A value that only increases.
    Counter,
    /// A value that can increase and decrease.
    Gauge,
    /// The distribution of values over ranges.
    Histogram,
}

impl Instrument {
    /// Returns the type in lower case.
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
    /// The name in OTLP.
    pub name: &'static str,
    /// The type of the metric.
    pub instrument: Instrument,
    /// The unit in UCUM, as OpenTelemetry specifies units.
    pub unit: &'static str,
    /// The labels. Each has few values: a controller, a kind, or a word from a list.
    pub labels: &'static [&'static str],
    /// The description.
    pub help: &'static str,
}

impl Definition {
    /// Returns the name at `/metrics`: without dots, with its unit, and `_total` for a counter.
    pub fn prometheus_name(&self) -> String {
        let mut name = self.name.replace('.', "_");
        name += match self.unit {
            "s" => "_seconds",
            "By" => "_bytes",
            _ => "",
        };
        if self.instrument == Instrument::Counter {
            name += "_total";
        }
        name
    }

    /// Returns the row in the documentation's table.
    pub fn row(&self) -> String {
        let labels: Vec<_> = self.labels.iter().map(|label| format!("`{label}`")).collect();
        let unit = self.unit.trim_matches(['{', '}']);
        let Self { name, help, .. } = self;
        let (prometheus, kind) = (self.prometheus_name(), self.instrument.as_str());
        let labels = labels.join(", ");
        format!("| `{name}` | `{prometheus}` | {kind} | {unit} | {labels} | {help} |")
    }
}

macro_rules! definitions {
    ($($constant:ident = $instrument:ident, $name:literal, $unit:literal, $labels:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Definition = Definition {
                name: $name,
                instrument: Instrument::$instrument,
                unit: $unit,
                labels: &$labels,
                help: $help,
            };
        )*
        /// All definitions, in the order of the documentation.
        pub const ALL: &[Definition] = &[$($constant),*];
    };
}

definitions! {
    RECONCILES = Counter, "operator_host.reconciles", "{reconcile}", ["controller", "kind", "trigger"],
        "Reconciles of a parent, by reason";
    RECONCILE_DURATION = Histogram, "operator_host.reconcile.duration", "s", ["controller", "kind"],
        "Duration of one reconcile, including requests to the API server";
    RECONCILE_ERRORS = Counter, "operator_host.reconcile.errors", "{reconcile}", ["controller", "kind", "class"],
        "Reconciles that failed, by class of error";
    CHILDREN_CREATED = Counter, "operator_host.children.created", "{object}", ["controller", "kind"],
        "Children created, by kind";
    CHILDREN_UPDATED = Counter, "operator_host.children.updated", "{object}", ["controller", "kind"],
        "Children updated, by kind";
    CHILDREN_DELETED = Counter, "operator_host.children.deleted", "{object}", ["controller", "kind"],
        "Children deleted, by kind";
    PARENTS = Gauge, "operator_host.parents", "{parent}", ["controller", "condition", "status"],
        "Parents by each condition that the host sets, as this replica last determined it";
    UNREADY_AGE = Gauge, "operator_host.parents.unready.age", "s", ["controller"],
        "How long the parent that has been unready the longest has been so, 0 when all are Ready";
    CHILDREN_CONTESTED = Gauge, "operator_host.children.contested", "{object}", ["controller"],
        "Children whose applied fields another client keeps changing back";
    PLUGIN_CALL_DURATION = Histogram, "operator_host.plugin.call.duration", "s", ["controller", "export", "class"],
        "Duration of one plugin call, by result";
    PLUGIN_WAIT_DURATION = Histogram, "operator_host.plugin.wait.duration", "s", ["controller"],
        "Time that a plugin call waited for its code, its turn and its share of the memory";
    PLUGIN_GUEST_TIME = Counter, "operator_host.plugin.guest.time", "s", ["controller"],
        "Processor time used by plugins";
    PLUGIN_MEMORY_PEAK = Histogram, "operator_host.plugin.memory.peak", "By", ["controller"],
        "Peak memory of one plugin call";
    PLUGIN_LOG_LINES_DROPPED = Counter, "operator_host.plugin.log_lines.dropped", "{line}", ["controller"],
        "Log lines of plugins dropped because of the limit";
    PLUGIN_COMPILE_DURATION = Histogram, "operator_host.plugin.compile.duration", "s", ["controller"],
        "Time to compile a plugin to machine code, or to load it from the cache";
    PLUGIN_INFO = Gauge, "operator_host.plugin.info", "{version}", ["controller", "plugin", "version", "digest"],
        "1 for the live version of each plugin";
    PLUGIN_HELD_BACK = Gauge, "operator_host.plugin.held_back", "{version}", ["controller", "plugin", "version", "digest"],
        "1 for a version that is held back because its results would be worse than those of the live version";
    PLUGIN_RELOADS = Counter, "operator_host.plugin.reloads", "{reload}", ["controller", "result"],
        "Plugin files loaded, refused or held back, including the first of each controller";
    CONFIG_RELOADS = Counter, "operator_host.config.reloads", "{reload}", ["result"],
        "Configurations accepted or refused, including the first";
    QUEUE_DEPTH = Gauge, "operator_host.queue.depth", "{parent}", ["controller"],
        "Parents waiting for a worker";
    QUEUE_AGE = Gauge, "operator_host.queue.age", "s", ["controller"],
        "Waiting time of the parent that has waited the longest";
    QUEUE_DURATION = Histogram, "operator_host.queue.duration", "s", ["controller"],
        "Time from the first change to the start of the reconcile";
    WORKERS = Gauge, "operator_host.workers", "{worker}", ["controller", "state"],
        "Workers of a controller, by whether they reconcile a parent";
    WATCH_RESTARTS = Counter, "operator_host.watch.restarts", "{restart}", ["kind"],
        "Watches that failed and were restarted";
    API_REQUESTS = Counter, "operator_host.api.requests", "{request}", ["verb", "kind", "code"],
        "Requests to the API server, by HTTP status";
    HTTP_REQUEST_DURATION = Histogram, "http.client.request.duration", "s", ["http_request_method", "server_address", "server_port", "http_response_status_code", "error_type"],
        "Time until the API server or a registry started its response";
    EVENTS_DROPPED = Counter, "operator_host.events.dropped", "{event}", [],
        "Kubernetes Events dropped because the queue was full";
    RECORDS_DROPPED = Counter, "operator_host.records.dropped", "{call}", ["controller"],
        "Plugin calls that `--record` did not write: the queue was full, the call was too large, or the disk was full";
    LEADER = Gauge, "operator_host.leader", "{replica}", [],
        "1 when this replica leads, 0 when it stands by";
    WEBHOOK_SERVING = Gauge, "operator_host.webhook.serving", "{replica}", [],
        "1 when the API server accepts the webhook's certificate, 0 when it does not; not exported without a webhook";
    WEBHOOK_REVIEWS = Counter, "operator_host.webhook.reviews", "{review}", ["controller", "result"],
        "Resources reviewed by the webhook: `allowed`, `denied`, or `failed` when there was no decision";
    WEBHOOK_CONVERSIONS = Counter, "operator_host.webhook.conversions", "{review}", ["controller", "result"],
        "Requests to convert objects to another version: `converted` or `failed`";
    TELEMETRY_DROPPED = Counter, "operator_host.telemetry.dropped", "{item}", ["signal", "reason"],
        "Spans, log records and metric exports that did not reach the collector";
    PROCESS_MEMORY = Gauge, "process.memory.usage", "By", [],
        "Resident memory of the process";
    PROCESS_CPU = Counter, "process.cpu.time", "s", ["cpu_mode"],
        "Processor time used by the process";
}
