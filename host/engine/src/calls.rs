//! Calls of `validate`, `convert` and `default` for the API server, with their metrics, spans and records.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use tracing::{Span, record_all};

use crate::reconcile::observer::{observe, plugin_span};
use operator_host_config::ControllerConfig;
use operator_host_contract::{Asked, Conversion, Converted, Export, FieldError, Json};
use operator_host_core::metrics::ControllerMetrics;
use operator_host_core::trace::Tracer;
use operator_host_instruments::Instruments;
use operator_host_instruments::record::Recorder;
use operator_host_runtime::{Call, CallError, Plugin, Share};

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
    #[must_use]
    pub fn new(config: &ControllerConfig, instruments: &Instruments) -> Self {
        Self {
            controller: config.name.clone(),
            metrics: instruments.metrics.of(&config.name, &config.parent),
            tracer: instruments.tracer.clone(),
            recorder: instruments.recorder.clone(),
        }
    }

    /// Converts objects.
    pub async fn convert(&self, plugin: &Plugin, conversion: &Arc<Conversion>) -> Called<Vec<Converted>> {
        let count = conversion.objects.len();
        let (outcome, share) = self
            .observed(plugin, Export::Convert, count, plugin.convert(conversion))
            .await;
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
        let (outcome, share) = self
            .observed(plugin, Export::Default, 1, plugin.default(parent))
            .await;
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
            plugin.objects = i64::try_from(objects).unwrap_or(i64::MAX),
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
