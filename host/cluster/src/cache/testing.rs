//! Caches that a test fills itself, here and in the crates above.

use std::sync::Arc;

use kube::core::DynamicObject;
use operator_host_contract::Kind;
use operator_host_telemetry::metrics::Metrics;

use super::*;

/// Returns a cache of a kind, without a watch behind it.
#[must_use]
pub fn watch_of(kind: Kind, keep: CachePolicy) -> Reflector {
    let scope = Scope {
        kind,
        namespace: None,
        form: Form::Whole,
    };
    let inner = Arc::new(Inner::new(
        scope,
        keep,
        Arc::new(Metrics::unread()),
        Arc::default(),
    ));
    Reflector {
        inner,
        _task: AbortOnDropHandle::new(tokio::spawn(async {})),
    }
}

/// Puts an object, as when a watch reports it.
pub fn put(watch: &Reflector, object: DynamicObject) {
    watch.inner.put(&watch.inner.prepare(object), None);
}

/// Removes an object, as when a watch reports its deletion.
pub fn delete(watch: &Reflector, object: DynamicObject) {
    watch.inner.deleted(object);
}
