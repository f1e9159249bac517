//! Writes the log to standard error: one line per event, as text or JSON, with the IDs of the current trace and span.
//! The level can be changed while the process runs.

use std::fmt::{self, Write as _};
use std::io::IsTerminal;
use std::sync::{Arc, Mutex};

use opentelemetry::trace::SpanContext;
use tracing::field::Field;
use tracing::{Event, Subscriber, info, warn};
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::format::{Format, Full, Json, JsonFields, Writer, debug_fn};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use operator_host_core::sync::lock;
use operator_host_core::text::is_printable;
use operator_host_telemetry::trace::{self, EXCEPTIONS, TARGET};

/// A layer of the process's `tracing` subscriber.
pub type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Readable text
    Human,
    /// One JSON object per line
    Json,
}

/// Silences libraries whose failures the host logs itself, once: kube logs each attempt of a watch that fails, and the
/// exporters log each attempt to reach a collector. Also silences the spans of WASI's functions, which would replace
/// the span with the parent on the log lines of plugins.
const QUIET: &str = "wasmtime_wasi=warn,kube_runtime::watcher=error,kube_client::client=error,opentelemetry=off,opentelemetry_sdk=off,opentelemetry-otlp=off,opentelemetry_otlp=off,opentelemetry-prometheus=off";

/// Parses a log filter: a level, or targets with levels.
///
/// # Errors
/// When the text is not a filter.
pub fn filter(filter: &str) -> Result<EnvFilter, ParseError> {
    // The log does not show the exported spans, so it need not format them.
    EnvFilter::try_new(format!("{QUIET},{TARGET}=off,{EXCEPTIONS}=off,{filter}"))
}

/// Returns the filter of the exported log records: with exceptions, and always without the lines of the libraries that
/// export them, each of which would be exported by more of them.
fn filter_of_records(filter: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::try_new(format!(
        "{QUIET},{EXCEPTIONS}=error,{filter},{TARGET}=off,h2=off,hyper=off,hyper_util=off,tonic=off,tower=off"
    ))
}

type MakeFilter = fn(&str) -> Result<EnvFilter, ParseError>;

/// The current log filter, which can be changed.
#[derive(Clone)]
pub struct Level(Arc<Mutex<State>>);

struct State {
    /// The filters of all layers that depend on the level, and how they are made.
    filters: Vec<(reload::Handle<EnvFilter, Registry>, MakeFilter)>,
    /// The filter of the command line, which applies if the configuration has none.
    given: String,
    wanted: String,
}

impl Level {
    /// Applies the filter of the configuration; with `None`, that of the command line.
    pub fn configure(&self, configured: Option<&str>) {
        let mut state = lock(&self.0);
        let wanted = configured.unwrap_or(&state.given).to_owned();
        if wanted == state.wanted {
            return;
        }
        // Log it before the change: the new filter may hide this line.
        info!(filter = wanted, "changing the log filter with the configuration");
        let reload = |(handle, make): &(reload::Handle<_, _>, MakeFilter)| {
            make(&wanted).is_ok_and(|filter| handle.reload(filter).is_ok())
        };
        match state.filters.iter().all(reload) {
            true => state.wanted = wanted,
            false => warn!(filter = wanted, "cannot change the log filter"),
        }
    }
}

/// Starts the log.
///
/// The filter is `configured`, or `given` if that is `None`. The default `format` is text on a terminal and JSON
/// elsewhere. The layer `spans` has its own filter and does not depend on that of the log. The layer `records` exports
/// what the log shows.
///
/// # Errors
/// When a filter cannot be parsed.
pub fn start(
    given: &str,
    configured: Option<&str>,
    format: Option<LogFormat>,
    spans: Option<BoxedLayer>,
    records: Option<BoxedLayer>,
) -> Result<Level, ParseError> {
    let wanted = configured.unwrap_or(given);
    filter(given)?;
    let terminal = std::io::stderr().is_terminal();
    let format = format.unwrap_or(if terminal {
        LogFormat::Human
    } else {
        LogFormat::Json
    });
    let (level, handle) = reload::Layer::new(filter(wanted)?);
    let mut filters: Vec<(_, MakeFilter)> = vec![(handle, filter)];
    let colours = terminal && std::env::var_os("NO_COLOR").is_none();
    let mut layers = vec![lines(format, colours, level, std::io::stderr)];
    layers.extend(spans);
    if let Some(records) = records {
        let (level, handle) = reload::Layer::new(filter_of_records(wanted)?);
        filters.push((handle, filter_of_records));
        layers.push(records.with_filter(level).boxed());
    }
    tracing_subscriber::registry().with(layers).init();

    Ok(Level(Arc::new(Mutex::new(State {
        filters,
        given: given.to_owned(),
        wanted: wanted.to_owned(),
    }))))
}

/// Creates the layer that writes log lines through this filter.
fn lines<W>(format: LogFormat, colours: bool, level: reload::Layer<EnvFilter, Registry>, out: W) -> BoxedLayer
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(out);
    match format {
        LogFormat::Human => {
            let lines = Traced::Human(Format::default().with_ansi(colours));
            layer
                .with_ansi(colours)
                .fmt_fields(debug_fn(field).delimited(" "))
                .event_format(lines)
                .with_filter(level)
                .boxed()
        }
        LogFormat::Json => {
            let lines = Traced::Json(Format::default().json().flatten_event(true).with_span_list(false));
            layer
                .fmt_fields(JsonFields::new())
                .event_format(lines)
                .with_filter(level)
                .boxed()
        }
    }
}

/// Writes one field of a text line. Escapes its value, because plugins and names of objects determine it: it must
/// neither start another line nor control a terminal.
fn field(out: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let (italic, dim, plain) = match out.has_ansi_escapes() {
        true => ("\x1b[3m", "\x1b[2m", "\x1b[0m"),
        false => ("", "", ""),
    };
    if field.name() != "message" {
        write!(out, "{italic}{}{plain}{dim}={plain}", field.name())?;
    }
    write!(Escaped(out), "{value:?}")
}

/// Escapes the characters that are not printable.
struct Escaped<'a, 'b>(&'a mut Writer<'b>);

impl fmt::Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                _ if is_printable(c) => self.0.write_char(c)?,
                '\n' | '\r' | '\t' => write!(self.0, "{}", c.escape_default())?,
                _ => write!(self.0, "{}", c.escape_unicode())?,
            }
        }
        Ok(())
    }
}

/// Formats a line with a formatter of `tracing-subscriber`, and appends the IDs of the current trace and span.
enum Traced {
    Human(Format<Full>),
    Json(Format<Json>),
}

impl<S, N> FormatEvent<S, N> for Traced
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        match self {
            // Its fields are escaped already.
            Self::Human(format) => format.format_event(context, Writer::new(&mut line), event)?,
            Self::Json(format) => {
                format.format_event(context, Writer::new(&mut line), event)?;
                line = json_escaped(line);
            }
        }
        match trace::current() {
            Some(span) => out.write_str(&self.with(&span, line.trim_end())),
            None => out.write_str(&line),
        }
    }
}

/// Escapes what is not printable in the strings of a line of JSON: JSON itself allows most of it.
fn json_escaped(line: String) -> String {
    let is_plain = |c: char| c.is_ascii() || is_printable(c);
    if line.chars().all(is_plain) {
        return line;
    }
    let mut escaped = String::with_capacity(line.len() + 16);
    for c in line.chars() {
        if is_plain(c) {
            escaped.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        }
    }
    escaped
}

impl Traced {
    fn with(&self, span: &SpanContext, line: &str) -> String {
        let (trace, span) = (span.trace_id(), span.span_id());
        match self {
            Self::Human(_) => format!("{line} trace_id={trace} span_id={span}\n"),
            // The object has fields before these: at least its time and its level.
            Self::Json(_) => {
                let open = line.strip_suffix('}').unwrap_or(line);
                format!("{open},\"trace_id\":\"{trace}\",\"span_id\":\"{span}\"}}\n")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
    use tempfile::NamedTempFile;
    use tracing::{Instrument, Span, info_span};

    use super::*;
    use operator_host_telemetry::trace::{Tracer, around, identity, layer};

    fn read(sink: &NamedTempFile) -> String {
        std::fs::read_to_string(sink.path()).unwrap()
    }

    /// Logs a line within a reconcile at this level while spans are exported. Returns the log and the reconcile's span.
    async fn reconcile(level: &str) -> (String, Span) {
        let sink = NamedTempFile::new().unwrap();
        let (level, _handle) = reload::Layer::new(filter(level).unwrap());
        let provider = SdkTracerProvider::builder().build();
        let layers = vec![
            lines(LogFormat::Json, false, level, sink.reopen().unwrap()),
            layer(&provider).boxed(),
        ];
        let _log = tracing_subscriber::registry().with(layers).set_default();
        let tracer = Tracer::new(Box::new(Sampler::AlwaysOn));
        let root = tracer.root(None, || info_span!(target: trace::TARGET, parent: None, "traced"));
        let work = async {
            let call = trace::child(|| info_span!(target: trace::TARGET, "call"));
            around(&call, async { info!("within") }).await;
        };
        around(&root, work)
            .instrument(info_span!("reconcile", parent = "ns/one"))
            .await;
        (read(&sink), root)
    }

    #[tokio::test]
    async fn a_line_names_the_parent_and_the_trace() {
        for level in ["info", "trace", "operator_host=debug,info"] {
            let (log, root) = reconcile(level).await;
            let line: serde_json::Value = serde_json::from_str(&log).unwrap();
            assert_eq!(line["span"]["parent"], "ns/one", "{level}");
            let trace = identity(&root).unwrap().trace_id().to_string();
            assert_eq!(line["trace_id"], trace, "{level}");
        }
    }

    #[tokio::test]
    async fn spans_are_made_whatever_the_level_of_the_log() {
        for level in ["off", "error", "operator_host=off"] {
            let (log, root) = reconcile(level).await;
            assert_eq!(log, "", "{level}");
            assert!(identity(&root).is_some(), "{level}");
        }
    }

    #[test]
    fn nothing_that_is_logged_can_look_like_another_line_or_move_the_cursor() {
        let forged =
            "all is well\r2026-01-01T00:00:00Z  INFO forged\n\x1b[2K\u{9b}1A\u{202e}\u{200b}\u{e0041}\tend";
        let logged = |format| {
            let sink = NamedTempFile::new().unwrap();
            let (level, _handle) = reload::Layer::new(filter("info").unwrap());
            let layer = lines(format, false, level, sink.reopen().unwrap());
            tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
                info!(controller = "echo", shown = %forged, quoted = forged, "{forged}");
            });
            let log = read(&sink);
            assert_eq!(log.lines().count(), 1, "{log:?}");
            assert!(!log.trim_end().contains(|c| !is_printable(c)), "{log:?}");
            log
        };
        let json: serde_json::Value = serde_json::from_str(&logged(LogFormat::Json)).unwrap();
        assert_eq!(json["quoted"], forged);
        let log = logged(LogFormat::Human);
        assert!(log.contains("all is well\\r2026"), "{log:?}");
        assert!(log.contains("controller=\"echo\" shown=all is well"), "{log:?}");
    }
}
