//! Calls of a plugin with their metrics, spans and records: `validate`, `convert` and `default` for the API server, and
//! what a reconcile needs for its own.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Map, Value};
use tracing::field::Empty;
use tracing::{Span, info_span, record_all};

use operator_host_config::ControllerConfig;
use operator_host_contract::{Asked, Conversion, Converted, Export, FieldError, Json};
use operator_host_instruments::Instruments;
use operator_host_instruments::record::Recorder;
use operator_host_runtime::{Call, CallError, Plugin, Share};
use operator_host_telemetry::metrics::ControllerMetrics;
use operator_host_telemetry::trace;
use operator_host_telemetry::trace::Tracer;

/// Bytes of the objects that the record of a conversion contains, if there is more than one. Records wait in memory.
const RECORDED: usize = 64 << 10;

/// The result of a call, and its part of the memory for all calls.
type Called<T> = (Result<T, CallError>, Option<Share>);

/// Makes the calls of one controller's plugin.
pub struct Calls {
    controller: String,
    metrics: ControllerMetrics,
    tracer: Tracer,
    recorder: Option<Recorder>,
}

impl Calls {
    /// Creates the calls of a controller, which report to `instruments`.
    pub fn new(config: &ControllerConfig, instruments: &Instruments) -> Self {
        Self {
            controller: config.name.clone(),
            metrics: instruments.metrics.of(&config.id, &config.parent),
            tracer: instruments.tracer.clone(),
            recorder: instruments.recorder.clone(),
        }
    }

    /// Converts objects.
    pub async fn convert(&self, plugin: &Plugin, conversion: &Arc<Conversion>) -> Called<Vec<Converted>> {
        let (count, call) = (conversion.objects.len(), plugin.convert(conversion));
        let (outcome, share) = self.observed(plugin, Export::Convert, count, call).await;
        if self.recorder.is_some() {
            let (conversion, outcome) = recorded(conversion, &outcome);
            self.record(plugin, Asked::Convert(conversion), &outcome);
        }
        (outcome, share)
    }

    /// Returns what is wrong with an object, which may replace another.
    pub async fn validate(
        &self,
        plugin: &Plugin,
        parent: &Json,
        old_parent: Option<&Json>,
    ) -> Called<Vec<FieldError>> {
        let call = plugin.validate(parent, old_parent);
        let (outcome, share) = self.observed(plugin, Export::Validate, 1, call).await;
        let asked = Asked::Validate(Arc::clone(parent), old_parent.map(Arc::clone));
        self.record(plugin, asked, &outcome);
        (outcome, share)
    }

    /// Sets the defaults of an object.
    pub async fn default(&self, plugin: &Plugin, parent: &Json) -> Called<Map<String, Value>> {
        let call = plugin.default(parent);
        let (outcome, share) = self.observed(plugin, Export::Default, 1, call).await;
        self.record(plugin, Asked::Default(Arc::clone(parent)), &outcome);
        (outcome, share)
    }

    /// Records a call if recording is enabled.
    pub(crate) fn record<T: Serialize>(&self, plugin: &Plugin, asked: Asked, outcome: &Result<T, CallError>) {
        if let Some(recorder) = &self.recorder {
            recorder.call(&self.controller, plugin, asked, outcome, &self.metrics);
        }
    }

    /// Makes a call in a trace of its own: nothing else is traced for the API server.
    async fn observed<T>(
        &self,
        plugin: &Plugin,
        export: Export,
        objects: usize,
        call: impl Future<Output = Call<T>>,
    ) -> Called<T> {
        let span: Span = self.tracer.root(None, || plugin_span(plugin, export.as_str()));
        record_all!(
            span,
            operator.controller = self.controller,
            plugin.objects = count(objects),
        );
        observe(&self.metrics, export.as_str(), &span, call, |_| None).await
    }
}

/// Returns the part of a conversion that a record contains: the first objects with their answers, or all objects of a
/// call that failed.
fn recorded(
    conversion: &Arc<Conversion>,
    outcome: &Result<Vec<Converted>, CallError>,
) -> (Arc<Conversion>, Result<Vec<Converted>, CallError>) {
    let Ok(converted) = outcome else {
        return (Arc::clone(conversion), outcome.clone());
    };
    let mut bytes = 0;
    let fit = conversion.objects.iter().take_while(|object| {
        bytes += object.get().len();
        bytes <= RECORDED
    });
    let count = fit.count().max(1).min(conversion.objects.len());
    let part = Conversion {
        api_version: conversion.api_version.clone(),
        objects: conversion.objects[..count].to_vec(),
    };
    (part.into(), Ok(converted.iter().take(count).cloned().collect()))
}

/// Makes a plugin call inside its span, and reports its result and what it used. `children` counts the children in
/// an answer that can have some.
pub async fn observe<T>(
    metrics: &ControllerMetrics,
    export: &'static str,
    span: &Span,
    call: impl Future<Output = Call<T>>,
    children: impl FnOnce(&T) -> Option<usize>,
) -> (Result<T, CallError>, Option<Share>) {
    let start = Instant::now();
    let Call {
        outcome,
        stats,
        share,
    } = trace::around(span, call).await;
    let class = match &outcome {
        Ok(_) => "ok",
        Err(error) => error.class().as_str(),
    };
    metrics.called(export, class, start.elapsed(), &stats);
    let children = outcome.as_ref().ok().and_then(children);
    record_all!(
        span,
        plugin.outcome = class,
        plugin.request.size = count(stats.request_bytes),
        plugin.response.size = count(stats.response_bytes),
        plugin.memory.peak = count(stats.peak_memory),
        plugin.waited_ms = stats.waited.as_secs_f64() * 1e3,
        plugin.guest_time_ms = stats.guest_time.as_secs_f64() * 1e3,
        plugin.children = children.map(count),
        plugin.log_lines.written = i64::from(stats.log_lines),
        plugin.log_lines.dropped = i64::from(stats.log_lines_dropped),
    );
    if let Err(error) = &outcome
        && !span.is_disabled()
    {
        let backtrace = match error {
            CallError::Trap { backtrace, .. } => backtrace,
            _ => "",
        };
        trace::fail(span, class, &error.to_string(), backtrace);
    }
    (outcome, share)
}

/// Creates the span of one plugin call. [`observe`] fills in its empty attributes.
pub fn span_of_call(plugin: &Plugin, export: &'static str) -> Span {
    trace::child(|| plugin_span(plugin, export))
}

/// Creates such a span if it is sampled. [`observe`] fills in its empty attributes.
pub fn plugin_span(plugin: &Plugin, export: &'static str) -> Span {
    let description = plugin.description();
    info_span!(
        target: trace::TARGET,
        "plugin",
        operator.controller = Empty,
        plugin.name = description.name,
        plugin.version = description.version,
        plugin.digest = %plugin.digest(),
        plugin.export = export,
        plugin.outcome = Empty,
        plugin.objects = Empty,
        plugin.request.size = Empty,
        plugin.response.size = Empty,
        plugin.memory.peak = Empty,
        plugin.waited_ms = Empty,
        plugin.guest_time_ms = Empty,
        plugin.children = Empty,
        plugin.log_lines.written = Empty,
        plugin.log_lines.dropped = Empty,
    )
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
