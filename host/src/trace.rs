//! Spans: what one pass does, as a tree, for a collector.
//!
//! They are spans of `tracing`, and `tracing-opentelemetry` exports them. Whether a trace is sampled is decided before
//! its first span is made: a span that nobody will see is [`Span::none`], and so is everything below it.
//!
//! What is current is OpenTelemetry's context, which travels with the future that a span is [`around`]: the code in
//! between carries no handle, and `tracing`'s current span stays the one that names the parent in the log.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::trace::{FutureExt, SpanContext, SpanKind, Status, TraceContextExt, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{
    IdGenerator, RandomIdGenerator, SamplingDecision, SdkTracerProvider, ShouldSample,
};
use tracing::{Level, Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

/// The `target` of the spans that are exported; no other span is, and no event.
pub const TARGET: &str = "otel";

/// Exports the spans of [`TARGET`], with the attributes that they name and no others. The provider samples all: a
/// [`Tracer`] has decided before.
pub fn layer<S>(provider: &SdkTracerProvider) -> impl Layer<S> + Send + Sync + use<S>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("operator-host"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(Targets::new().with_target(TARGET, Level::INFO))
}

/// Decides which traces are made. Cheap to clone; the default one makes none.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Traces>>);

#[derive(Debug)]
struct Traces {
    sampler: Box<dyn ShouldSample>,
    /// The last reload of each controller's plugin, for the passes that it causes.
    reloads: Mutex<HashMap<String, SpanContext>>,
}

impl Tracer {
    /// Makes the traces that the sampler wants. The spans need a [`layer`] to go anywhere.
    #[must_use]
    pub fn new(sampler: Box<dyn ShouldSample>) -> Self {
        Self(Some(Arc::new(Traces {
            sampler,
            reloads: Mutex::default(),
        })))
    }

    /// The first span of a trace, when this one is sampled. `cause` is the span that led to it, when there was one.
    #[must_use]
    pub fn root(&self, cause: Option<SpanContext>, make: impl FnOnce() -> Span) -> Span {
        if !self.0.as_ref().is_some_and(|traces| traces.samples()) {
            return Span::none();
        }
        let span = make();
        if let Some(cause) = cause {
            span.add_link(cause);
        }
        span
    }

    /// The span in which a controller's plugin was replaced.
    pub fn reloaded(&self, controller: &str, reload: &Span) {
        if let (Some(traces), Some(reload)) = (&self.0, identity(reload)) {
            let mut reloads = traces.reloads.lock().unwrap_or_else(PoisonError::into_inner);
            reloads.insert(controller.to_owned(), reload);
        }
    }

    /// The span of the last reload of a controller's plugin, when it was sampled.
    #[must_use]
    pub fn last_reload(&self, controller: &str) -> Option<SpanContext> {
        let reloads = self
            .0
            .as_ref()?
            .reloads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        reloads.get(controller).cloned()
    }
}

impl Traces {
    fn samples(&self) -> bool {
        // Not the trace's own: that is drawn with its first span.
        let id = RandomIdGenerator::default().new_trace_id();
        let result = self
            .sampler
            .should_sample(None, id, "", &SpanKind::Internal, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }
}

/// A span below the current one; none where that one is not sampled.
#[must_use]
pub fn child(make: impl FnOnce() -> Span) -> Span {
    match Context::map_current(|context| context.span().is_recording()) {
        true => make(),
        false => Span::none(),
    }
}

/// Runs a future with this span as the current one.
pub async fn around<F: Future>(span: &Span, future: F) -> F::Output {
    match span.is_disabled() {
        true => future.await,
        false => future.with_context(span.context()).await,
    }
}

/// Marks the span as failed, with an exception event as OpenTelemetry's conventions have it. `class` is
/// one of few words; `message` and `backtrace` are for people, and the backtrace may be empty.
pub fn fail(span: &Span, class: &'static str, message: &str, backtrace: &str) {
    if span.is_disabled() {
        return;
    }
    let mut exception = vec![
        KeyValue::new("exception.type", class),
        KeyValue::new("exception.message", message.to_owned()),
    ];
    if !backtrace.is_empty() {
        exception.push(KeyValue::new("exception.stacktrace", backtrace.to_owned()));
    }
    span.set_attribute("error.type", class);
    span.add_event("exception", exception);
    span.set_status(Status::error(message.to_owned()));
}

/// The span's identity, when it is sampled.
#[must_use]
pub fn identity(span: &Span) -> Option<SpanContext> {
    if span.is_disabled() {
        return None;
    }
    sampled(&span.context())
}

/// The identity of the current span, when it is sampled: what a log line or an Event can point to.
#[must_use]
pub fn current() -> Option<SpanContext> {
    Context::map_current(sampled)
}

/// The span's identity in the form of the W3C `traceparent` header, when it is sampled.
#[must_use]
pub fn traceparent(span: &Span) -> Option<String> {
    let context = identity(span)?;
    let flags = context.trace_flags().to_u8();
    Some(format!(
        "00-{}-{}-{flags:02x}",
        context.trace_id(),
        context.span_id()
    ))
}

fn sampled(context: &Context) -> Option<SpanContext> {
    let span = context.span();
    let identity = span.span_context();
    identity.is_sampled().then(|| identity.clone())
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::trace::Sampler;
    use tracing::info_span;
    use tracing::subscriber::DefaultGuard;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;

    use super::*;

    /// What it makes is exported as long as the guard is kept, to nowhere.
    fn tracer(sampler: Sampler) -> (Tracer, DefaultGuard) {
        let provider = SdkTracerProvider::builder().build();
        let exports = tracing_subscriber::registry().with(layer(&provider));
        (Tracer::new(Box::new(sampler)), exports.set_default())
    }

    fn root(tracer: &Tracer) -> Span {
        tracer.root(None, || info_span!(target: TARGET, parent: None, "root"))
    }

    fn below() -> Span {
        child(|| info_span!(target: TARGET, "child"))
    }

    #[tokio::test]
    async fn a_child_is_in_the_trace_of_the_span_around_it() {
        let (tracer, _exports) = tracer(Sampler::AlwaysOn);
        let root = root(&tracer);
        let child = around(&root, async { below() }).await;
        let (of_root, of_child) = (identity(&root).unwrap(), identity(&child).unwrap());
        assert_eq!(of_child.trace_id(), of_root.trace_id());
        assert_ne!(of_child.span_id(), of_root.span_id());
        let expected = format!("00-{}-{}-01", of_child.trace_id(), of_child.span_id());
        assert_eq!(traceparent(&child), Some(expected));
    }

    #[tokio::test]
    async fn the_current_span_is_the_one_around_and_none_after_it() {
        let (tracer, _exports) = tracer(Sampler::AlwaysOn);
        let root = root(&tracer);
        let inside = around(&root, async { current() }).await;
        assert!(inside.is_some());
        assert_eq!(inside, identity(&root));
        assert_eq!(current(), None);
    }

    #[tokio::test]
    async fn a_trace_that_is_not_sampled_has_no_spans() {
        let (tracer, _exports) = tracer(Sampler::AlwaysOff);
        let root = tracer.root(None, || panic!("it is made"));
        let (child, current) = around(&root, async { (below(), current()) }).await;
        assert!(root.is_disabled() && child.is_disabled());
        assert_eq!(
            (traceparent(&root), traceparent(&child), current),
            (None, None, None)
        );
    }

    #[test]
    fn as_many_traces_are_made_as_the_sampler_says() {
        let (tracer, _exports) = tracer(Sampler::TraceIdRatioBased(0.25));
        let made = (0..4000).filter(|_| !root(&tracer).is_disabled()).count();
        assert!((800..1200).contains(&made), "{made}");
    }

    #[tokio::test]
    async fn without_a_tracer_there_is_nothing() {
        let root = root(&Tracer::default());
        assert!(around(&root, async { below().is_disabled() }).await);
        fail(&root, "class", "message", "");
        assert_eq!(traceparent(&root), None);
    }
}
