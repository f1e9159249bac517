//! Spans: what one pass does, as a tree, for a collector.
//!
//! A pass starts the root with a [`Tracer`]; everything below it is a [`Span::child`] of whatever span is
//! current, so that the code in between carries no handle. Spans go straight to OpenTelemetry and not through
//! `tracing`: of a pass that is not sampled no child and no attribute is made at all, which is what lets the
//! host trace one pass in a hundred at no cost that can be measured.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::trace::{
    FutureExt, Link, SpanContext, SpanKind, Status, TraceContextExt, Tracer as _, TracerProvider,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

/// Starts root spans. Cheap to clone; the default one makes none.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Spans>>);

#[derive(Debug)]
struct Spans {
    tracer: SdkTracer,
    /// The last reload of each controller's plugin, for the passes that it causes.
    reloads: Mutex<HashMap<String, SpanContext>>,
}

impl Tracer {
    /// Spans go where the provider sends them.
    #[must_use]
    pub fn new(provider: &SdkTracerProvider) -> Self {
        Self(Some(Arc::new(Spans {
            tracer: provider.tracer("operator-host"),
            reloads: Mutex::default(),
        })))
    }

    /// A span without a parent. `cause` is the span that led to it, when there was one.
    #[must_use]
    pub fn root(&self, name: &'static str, cause: Option<SpanContext>) -> Span {
        let Some(spans) = &self.0 else {
            return Span::none();
        };
        let tracer = &spans.tracer;
        let mut builder = tracer.span_builder(name).with_kind(SpanKind::Internal);
        if let Some(cause) = cause {
            builder = builder.with_links(vec![Link::with_context(cause)]);
        }
        let span = tracer.build_with_context(builder, &Context::new());
        Span(Some(Context::new().with_value(self.clone()).with_span(span)))
    }
}

impl Tracer {
    /// The span in which a controller's plugin was replaced.
    pub fn reloaded(&self, controller: &str, reload: &Span) {
        if let (Some(spans), Some(reload)) = (&self.0, reload.context()) {
            let mut reloads = spans.reloads.lock().unwrap_or_else(PoisonError::into_inner);
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

/// A span, ended when it is dropped. Without a tracer, and below a span that is not sampled, it is nothing.
#[derive(Debug)]
pub struct Span(Option<Context>);

impl Span {
    const fn none() -> Self {
        Self(None)
    }

    /// Below the current span, for work inside the host.
    #[must_use]
    pub fn child(name: &'static str) -> Self {
        Self::below(name, SpanKind::Internal)
    }

    /// Below the current span, for a request to another process.
    #[must_use]
    pub fn request(name: &'static str) -> Self {
        Self::below(name, SpanKind::Client)
    }

    fn below(name: &'static str, kind: SpanKind) -> Self {
        let parent = Context::current();
        if !parent.span().is_recording() {
            return Self::none();
        }
        let Some(Tracer(Some(spans))) = parent.get::<Tracer>() else {
            return Self::none();
        };
        let tracer = &spans.tracer;
        let span = tracer.build_with_context(tracer.span_builder(name).with_kind(kind), &parent);
        Self(Some(parent.with_span(span)))
    }

    /// Whether anybody will see what is set on it. Asked before anything is computed only to be set.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|context| context.span().is_recording())
    }

    /// Sets an attribute.
    pub fn set(&self, key: &'static str, value: impl Into<Value>) {
        if let Some(context) = self.recording() {
            context.span().set_attribute(KeyValue::new(key, value));
        }
    }

    /// Marks the span as failed, with an exception event as OpenTelemetry's conventions have it. `class` is
    /// one of few words; `message` and `backtrace` are for people, and the backtrace may be empty.
    pub fn fail(&self, class: &'static str, message: &str, backtrace: &str) {
        let Some(context) = self.recording() else { return };
        let mut exception = vec![
            KeyValue::new("exception.type", class),
            KeyValue::new("exception.message", message.to_owned()),
        ];
        if !backtrace.is_empty() {
            exception.push(KeyValue::new("exception.stacktrace", backtrace.to_owned()));
        }
        let span = context.span();
        span.set_attribute(KeyValue::new("error.type", class));
        span.add_event("exception", exception);
        span.set_status(Status::error(message.to_owned()));
    }

    /// Runs a future with this span as the current one.
    pub async fn around<F: Future>(&self, future: F) -> F::Output {
        match &self.0 {
            Some(context) => future.with_context(context.clone()).await,
            None => future.await,
        }
    }

    /// Its identity, when it is sampled.
    #[must_use]
    pub fn context(&self) -> Option<SpanContext> {
        let context = self.0.as_ref()?.span().span_context().clone();
        context.is_sampled().then_some(context)
    }

    /// Its identity in the form of the W3C `traceparent` header, when it is sampled.
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        let context = self.context()?;
        let flags = context.trace_flags().to_u8();
        Some(format!(
            "00-{}-{}-{flags:02x}",
            context.trace_id(),
            context.span_id()
        ))
    }

    fn recording(&self) -> Option<&Context> {
        self.0.as_ref().filter(|context| context.span().is_recording())
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(context) = &self.0 {
            context.span().end();
        }
    }
}

/// The identity of the current span, when it is sampled: what a log line or an Event can point to.
#[must_use]
pub fn current() -> Option<SpanContext> {
    let context = Context::map_current(|context| context.span().span_context().clone());
    context.is_sampled().then_some(context)
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::trace::Sampler;

    use super::*;

    fn tracer(sampler: Sampler) -> (Tracer, SdkTracerProvider) {
        let provider = SdkTracerProvider::builder().with_sampler(sampler).build();
        (Tracer::new(&provider), provider)
    }

    #[tokio::test]
    async fn a_child_is_in_the_trace_of_the_span_around_it() {
        let (tracer, _provider) = tracer(Sampler::AlwaysOn);
        let root = tracer.root("root", None);
        let child = root.around(async { Span::child("child") }).await;
        let (root, context) = (root.context().unwrap(), child.context().unwrap());
        assert_eq!(context.trace_id(), root.trace_id());
        assert_ne!(context.span_id(), root.span_id());
        let expected = format!("00-{}-{}-01", context.trace_id(), context.span_id());
        assert_eq!(child.traceparent(), Some(expected));
    }

    #[tokio::test]
    async fn the_current_span_is_the_one_around_and_none_after_it() {
        let (tracer, _provider) = tracer(Sampler::AlwaysOn);
        let root = tracer.root("root", None);
        let inside = root.around(async { current() }).await;
        assert_eq!(inside, root.context());
        assert_eq!(current(), None);
    }

    #[tokio::test]
    async fn a_span_that_is_not_sampled_has_no_children_and_no_identity() {
        let (tracer, _provider) = tracer(Sampler::AlwaysOff);
        let root = tracer.root("root", None);
        assert!(!root.is_recording());
        let (child, current) = root.around(async { (Span::child("child"), current()) }).await;
        assert!(child.0.is_none());
        assert_eq!(
            (root.traceparent(), child.traceparent(), current),
            (None, None, None)
        );
    }

    #[tokio::test]
    async fn without_a_tracer_there_is_nothing() {
        let root = Tracer::default().root("root", None);
        assert!(root.around(async { Span::request("child").0.is_none() }).await);
        root.fail("class", "message", "");
        assert_eq!(root.traceparent(), None);
    }
}
