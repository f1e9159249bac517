//! Creates the spans of each reconcile and reload, for a collector.
//!
//! The spans are those of `tracing`, and `tracing-opentelemetry` exports them. The sampler decides before the first
//! span of a trace is created: in a trace that is not sampled, every span is [`Span::none`].
//!
//! OpenTelemetry's context holds the current span. [`around`] attaches it to a future, so the code needs no handle.
//! `tracing`'s current span is another one: it adds the controller and the parent to log lines.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};

use opentelemetry::Context;
use opentelemetry::trace::{
    FutureExt, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
    TracerProvider,
};
use opentelemetry_sdk::trace::{
    IdGenerator, RandomIdGenerator, SamplingDecision, SdkTracerProvider, ShouldSample,
};
use tracing::{Level, Span, Subscriber, event};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

use operator_host_core::sync::lock;

/// The `target` of the exported spans. Other spans and all events are not exported.
pub const TARGET: &str = "otel";

/// The `target` of the log records of failed spans. They are exported with the log, which does not show them itself: it has
/// lines for people about the same failures.
pub const EXCEPTIONS: &str = "exception";

/// Creates the layer that exports the spans of [`TARGET`] with their own attributes only. The provider must sample
/// every span, because a [`Tracer`] has already applied the sampler.
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

/// Decides which traces are sampled. Cheap to clone. The default one samples none.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Traces>>);

#[derive(Debug)]
struct Traces {
    sampler: Box<dyn ShouldSample>,
    /// The last reload of each controller's plugin, to which the reconciles that it causes link.
    reloads: Mutex<HashMap<String, SpanContext>>,
}

impl Tracer {
    /// Creates a tracer with this sampler. The spans are exported only with a [`layer`].
    pub fn new(sampler: Box<dyn ShouldSample>) -> Self {
        Self(Some(Arc::new(Traces {
            sampler,
            reloads: Mutex::default(),
        })))
    }

    /// Creates the first span of a trace if the trace is sampled, and links it to `cause`, the span that led to it.
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

    /// Records the span in which a controller's plugin was replaced.
    pub fn reloaded(&self, controller: &str, reload: &Span) {
        if let (Some(traces), Some(reload)) = (&self.0, identity(reload)) {
            let mut reloads = lock(&traces.reloads);
            reloads.insert(controller.to_owned(), reload);
        }
    }

    /// Returns the span of the last reload of a controller's plugin if it was sampled.
    pub fn last_reload(&self, controller: &str) -> Option<SpanContext> {
        let reloads = lock(&self.0.as_ref()?.reloads);
        reloads.get(controller).cloned()
    }
}

impl Traces {
    fn samples(&self) -> bool {
        // This is not the ID of the trace, which is created with its first span.
        let id = RandomIdGenerator::default().new_trace_id();
        let result = self
            .sampler
            .should_sample(None, id, "", &SpanKind::Internal, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }
}

/// Creates a child of the current span if that is sampled.
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

/// Sets the status of the span to failed, and emits an exception as a log record of that span, by OpenTelemetry's
/// conventions.
///
/// `class` is one of few words. `message` and `backtrace` are for people. The backtrace may be empty.
pub fn fail(span: &Span, class: &'static str, message: &str, backtrace: &str) {
    if span.is_disabled() {
        return;
    }
    span.set_attribute("error.type", class);
    span.set_status(Status::error(message.to_owned()));
    let _current = span.context().attach();
    event!(
        name: "exception",
        target: EXCEPTIONS,
        Level::ERROR,
        exception.message = message,
        "exception.type" = class,
        "exception.stacktrace" = Some(backtrace).filter(|it| !it.is_empty()),
    );
}

/// Returns the span's context if it is sampled.
pub fn identity(span: &Span) -> Option<SpanContext> {
    if span.is_disabled() {
        return None;
    }
    sampled(&span.context())
}

/// Returns the context of the current span if it is sampled, for log lines and Events.
pub fn current() -> Option<SpanContext> {
    Context::map_current(sampled)
}

/// Returns the span's context as a W3C `traceparent` header if it is sampled.
pub fn traceparent(span: &Span) -> Option<String> {
    identity(span).map(|context| header(&context))
}

/// Returns a context as a W3C `traceparent` header.
#[must_use]
pub fn header(context: &SpanContext) -> String {
    let flags = context.trace_flags().to_u8();
    format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id())
}

/// Reads such a header.
#[must_use]
pub fn of_header(text: &str) -> Option<SpanContext> {
    let mut parts = text.split('-').skip(1);
    let (trace, span) = (
        TraceId::from_hex(parts.next()?).ok()?,
        SpanId::from_hex(parts.next()?).ok()?,
    );
    let context = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::default());
    context.is_valid().then_some(context)
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

    /// Returns a tracer whose spans are exported to nowhere until the guard is dropped.
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
        assert_eq!((traceparent(&root), traceparent(&child)), (None, None));
        assert_eq!(current, None);
    }

    #[test]
    fn the_sampler_decides_how_many_traces_are_made() {
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
