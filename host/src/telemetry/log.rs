//! The log: one line an event on standard error, for people or as JSON, with the identity of the span that it
//! belongs to, at a level that can be changed while the process runs.

use std::fmt::{self, Write as _};
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opentelemetry::trace::SpanContext;
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
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

use crate::trace;

/// A part of the process's one subscriber to `tracing`.
pub type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people
    Human,
    /// One JSON object a line
    Json,
}

/// Why the log does not start.
#[derive(Debug, Error)]
pub enum LogError {
    /// The filter is not one.
    #[error("--log: {0}")]
    Filter(#[from] ParseError),
    /// The signal that changes the level cannot be listened to.
    #[error("cannot listen to SIGUSR1: {0}")]
    Signal(#[from] std::io::Error),
}

/// What is said twice otherwise: kube logs each try of a watch that is refused or cut off, and the exporters each try to
/// reach a collector; this host says both once, in its own words. And the spans of WASI's functions, which would stand on a
/// plugin's line in place of the span that names its parent.
const QUIET: &str = "wasmtime_wasi=warn,kube_runtime::watcher=error,kube_client::client=error,opentelemetry=off,opentelemetry_sdk=off,opentelemetry-otlp=off,opentelemetry_otlp=off,opentelemetry-prometheus=off";

/// What SIGUSR1 adds. `operator_host` is the start of the runtime crate's targets, too.
const DEBUG: &str = "operator_host=debug,plugin=debug";

/// What to log: a level, or targets with levels.
///
/// # Errors
/// When the text says neither.
pub fn filter(filter: &str) -> Result<EnvFilter, ParseError> {
    // The spans of traces are not for the log: they would only be formatted in vain.
    EnvFilter::try_new(format!("{QUIET},{}=off,{filter}", trace::TARGET))
}

/// What is logged now, and how to change it.
#[derive(Clone)]
pub struct Level(Arc<Mutex<State>>);

struct State {
    handle: reload::Handle<EnvFilter, Registry>,
    /// What the command line says, for when the configuration says nothing.
    given: String,
    wanted: String,
    debug: bool,
}

impl Level {
    /// What the configuration says; `None`: what the command line says.
    pub fn configure(&self, configured: Option<&str>) {
        let mut state = self.lock();
        let wanted = configured.unwrap_or(&state.given).to_owned();
        if wanted == state.wanted {
            return;
        }
        // Said while one of the two takes it.
        info!(filter = wanted, "the log's level changes with the configuration");
        let before = std::mem::replace(&mut state.wanted, wanted);
        if !state.reload() {
            state.wanted = before;
        }
    }

    fn toggle(&self) {
        let mut state = self.lock();
        state.debug = !state.debug;
        // Said while the log takes it: the wanted level may be above this one.
        if !state.debug {
            info!(filter = state.wanted, "SIGUSR1: the log's level goes back");
        }
        if !state.reload() {
            state.debug = !state.debug;
        } else if state.debug {
            info!(
                filter = state.filter(),
                "SIGUSR1: debug lines are on; again to switch them off"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn filter(&self) -> String {
        let debug = if self.debug {
            format!(",{DEBUG}")
        } else {
            String::new()
        };
        format!("{}{debug}", self.wanted)
    }

    fn reload(&self) -> bool {
        let next = self.filter();
        let reloaded = filter(&next).map(|filter| self.handle.reload(filter));
        let ok = matches!(reloaded, Ok(Ok(())));
        if !ok {
            warn!(filter = next, "the log's level cannot be changed");
        }
        ok
    }
}

/// Starts the log, and listens to SIGUSR1, which turns debug lines on, and off again. `format` is by default for
/// people on a terminal and JSON elsewhere. What the configuration says takes the place of what is `given`. Beside the
/// log, `spans` gets what it wants, whatever the log's level.
///
/// # Errors
/// When the filter is not one.
pub fn start(
    given: &str,
    configured: Option<&str>,
    format: Option<LogFormat>,
    spans: Option<BoxedLayer>,
) -> Result<Level, LogError> {
    let wanted = configured.unwrap_or(given);
    filter(given)?;
    let terminal = std::io::stderr().is_terminal();
    let format = format.unwrap_or(if terminal {
        LogFormat::Human
    } else {
        LogFormat::Json
    });
    let (level, handle) = reload::Layer::new(filter(wanted)?);
    let colours = terminal && std::env::var_os("NO_COLOR").is_none();
    let mut layers = vec![lines(format, colours, level, std::io::stderr)];
    layers.extend(spans);
    tracing_subscriber::registry().with(layers).init();

    let level = Level(Arc::new(Mutex::new(State {
        handle,
        given: given.to_owned(),
        wanted: wanted.to_owned(),
        debug: false,
    })));
    let mut toggles = signal(SignalKind::user_defined1())?;
    let toggled = level.clone();
    tokio::spawn(async move {
        while toggles.recv().await.is_some() {
            toggled.toggle();
        }
    });
    Ok(level)
}

/// The layer that writes what this level lets through.
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

/// One field of a line for people. What it says may be a plugin's or anybody's who names an object: it stays on its line,
/// and moves nothing on a terminal.
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

/// Writes control characters, and those that change the direction of text, as their escapes.
struct Escaped<'a, 'b>(&'a mut Writer<'b>);

impl fmt::Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let is_plain =
            |c: char| !c.is_control() && !matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        for c in text.chars() {
            match c {
                _ if is_plain(c) => self.0.write_char(c)?,
                '\n' | '\r' | '\t' => write!(self.0, "{}", c.escape_default())?,
                _ => write!(self.0, "{}", c.escape_unicode())?,
            }
        }
        Ok(())
    }
}

/// A line as tracing's own formatters make it, with the current span's identity at its end.
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
        let Some(span) = trace::current() else {
            return match self {
                Self::Human(format) => format.format_event(context, out, event),
                Self::Json(format) => format.format_event(context, out, event),
            };
        };
        let mut line = String::new();
        match self {
            Self::Human(format) => format.format_event(context, Writer::new(&mut line), event)?,
            Self::Json(format) => format.format_event(context, Writer::new(&mut line), event)?,
        }
        out.write_str(&self.with(&span, line.trim_end()))
    }
}

impl Traced {
    fn with(&self, span: &SpanContext, line: &str) -> String {
        let (trace, span) = (span.trace_id(), span.span_id());
        match self {
            Self::Human(_) => format!("{line} trace_id={trace} span_id={span}\n"),
            // The object is not empty: it has a time and a level.
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
    use tracing::{Instrument, Span, info_span};

    use super::*;
    use crate::trace::{Tracer, around, identity, layer};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Sink {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl std::io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Sink {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    /// The log at this level, with spans beside it: what is written within a pass, and the pass's span.
    async fn pass(level: &str) -> (String, Span) {
        let sink = Sink::default();
        let (level, _handle) = reload::Layer::new(filter(level).unwrap());
        let provider = SdkTracerProvider::builder().build();
        let layers = vec![
            lines(LogFormat::Json, false, level, sink.clone()),
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
        (sink.text(), root)
    }

    #[tokio::test]
    async fn a_line_names_the_parent_and_the_trace() {
        for level in ["info", "trace", "operator_host=debug,info"] {
            let (log, root) = pass(level).await;
            let line: serde_json::Value = serde_json::from_str(&log).unwrap();
            assert_eq!(line["span"]["parent"], "ns/one", "{level}");
            let trace = identity(&root).unwrap().trace_id().to_string();
            assert_eq!(line["trace_id"], trace, "{level}");
        }
    }

    #[tokio::test]
    async fn spans_are_made_whatever_the_level_of_the_log() {
        for level in ["off", "error", "operator_host=off"] {
            let (log, root) = pass(level).await;
            assert_eq!(log, "", "{level}");
            assert!(identity(&root).is_some(), "{level}");
        }
    }

    #[test]
    fn nothing_that_is_logged_can_look_like_another_line_or_move_the_cursor() {
        let forged = "all is well\r2026-01-01T00:00:00Z  INFO forged\n\x1b[2K\u{9b}1A\u{202e}\tend";
        let sink = Sink::default();
        let (level, _handle) = reload::Layer::new(filter("info").unwrap());
        let layer = lines(LogFormat::Human, false, level, sink.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            info!(controller = "echo", shown = %forged, quoted = forged, "{forged}");
        });
        let log = sink.text();
        assert_eq!(log.lines().count(), 1, "{log:?}");
        assert!(
            !log.trim_end()
                .contains(|c: char| c.is_control() || c == '\u{202e}'),
            "{log:?}"
        );
        assert!(log.contains("all is well\\r2026"), "{log:?}");
        assert!(log.contains("controller=\"echo\" shown=all is well"), "{log:?}");
    }
}
