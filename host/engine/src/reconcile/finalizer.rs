//! Where a parent stands between its creation and its deletion, and what the host writes into its metadata on the way: its
//! finalizer, and that the cleanup is done.

use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::run::Run;
use operator_host_cluster::api_error::ApiError;
use operator_host_config::ControllerConfig;
use operator_host_core::object::{CLEANED_UP_ANNOTATION, annotation, is_terminating};
use operator_host_desired::conditions::{Reason, Verdict};

/// Where a parent stands. The parent alone says so, with whether its plugin has a cleanup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It lacks the finalizer, which is set before the first child is created, so that the cleanup sees every child.
    Unguarded,
    /// It is reconciled.
    Alive,
    /// It is being deleted, and the plugin cleans up.
    CleaningUp,
    /// The cleanup is done. It is not called again, since it would miss children that are deleted already: these are deleted
    /// in the reverse of their order, and then the finalizer is removed.
    TearingDown,
    /// It is being deleted, and the garbage collector deletes its dependents. Finalizers of others may hold it.
    Released,
}

impl Stage {
    pub(super) fn of(config: &ControllerConfig, parent: &DynamicObject, has_cleanup: bool) -> Self {
        match (is_terminating(parent), has_finalizer(config, parent)) {
            (false, false) if has_cleanup => Self::Unguarded,
            (false, _) => Self::Alive,
            (true, false) => Self::Released,
            (true, true) if has_cleanup && !is_cleaned_up(config, parent) => Self::CleaningUp,
            (true, true) => Self::TearingDown,
        }
    }
}

pub(super) fn has_finalizer(config: &ControllerConfig, parent: &DynamicObject) -> bool {
    let mut all = parent.finalizers().iter();
    all.any(|finalizer| config.owns_finalizer(finalizer))
}

/// Returns the finalizer of the parent that belongs to a controller of another name.
pub(super) fn finalizer_of_another(config: &ControllerConfig, parent: &DynamicObject) -> Option<String> {
    let mut all = parent.finalizers().iter();
    all.find(|finalizer| config.is_finalizer_of_another(finalizer))
        .cloned()
}

pub(super) fn is_cleaned_up(config: &ControllerConfig, parent: &DynamicObject) -> bool {
    annotation(parent, CLEANED_UP_ANNOTATION) == Some(&*mark(config, parent))
}

/// Returns the mark of a parent whose cleanup is done. It names the UID and the controller, so that it holds neither for a
/// copy of the parent nor for another controller.
fn mark(config: &ControllerConfig, parent: &DynamicObject) -> String {
    let uid = parent.metadata.uid.as_deref().unwrap_or_default();
    format!("{}/{uid}", config.finalizer())
}

/// Adds the host's finalizer to the parent. Returns `None` when the parent was deleted.
pub(super) async fn add_finalizer(
    run: &Run<'_>,
    parent: &DynamicObject,
) -> Result<Option<Arc<DynamicObject>>, ApiError> {
    let all: Vec<_> = [parent.finalizers(), &[run.context.config.finalizer()]].concat();
    write_metadata(run, parent, json!({ "finalizers": all })).await
}

/// Returns the verdict on a parent that is being deleted, and that only finalizers of others hold.
pub(super) fn held_by_others(parent: &DynamicObject) -> Verdict {
    let finalizers = parent.finalizers().join(", ");
    let message = format!("it is being deleted, and waits until the finalizers {finalizers} are removed");
    Verdict::CleaningUp(Reason::new("WaitingForFinalizers", message))
}

/// Removes the host's finalizer from the parent. Returns the parent if finalizers of others hold it.
pub(super) async fn remove_finalizer(
    run: &Run<'_>,
    parent: &DynamicObject,
) -> Result<Option<Arc<DynamicObject>>, ApiError> {
    let all = parent.finalizers().iter();
    let rest: Vec<_> = all
        .filter(|finalizer| !run.context.config.owns_finalizer(finalizer))
        .collect();
    let left = write_metadata(run, parent, json!({ "finalizers": rest })).await?;
    Ok(left.filter(|left| !left.finalizers().is_empty()))
}

/// Records on the parent that its cleanup is done. Returns `None` when the parent was deleted.
pub(super) async fn record_cleanup(
    run: &Run<'_>,
    parent: &DynamicObject,
) -> Result<Option<Arc<DynamicObject>>, ApiError> {
    let mark = json!({ CLEANED_UP_ANNOTATION: mark(&run.context.config, parent) });
    write_metadata(run, parent, json!({ "annotations": mark })).await
}

/// Changes the parent's metadata, unless the parent has changed. Returns `None` when it was deleted.
async fn write_metadata(
    run: &Run<'_>,
    parent: &DynamicObject,
    mut metadata: Value,
) -> Result<Option<Arc<DynamicObject>>, ApiError> {
    metadata["resourceVersion"] = json!(parent.metadata.resource_version);
    let body = json!({ "metadata": metadata });
    match run.merge(&body).await {
        Ok(answer) => Ok(run.context.record_parent(parent, None, answer)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use operator_host_config::testing::config;

    use super::*;

    #[test]
    fn a_parent_is_guarded_before_it_is_reconciled_and_cleaned_up_before_it_is_released() {
        let config = config();
        let guard = config.finalizer();
        let stage = |metadata: Value, has_cleanup| {
            let parent = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
            Stage::of(&config, &parent, has_cleanup)
        };
        let going = |finalizers: &[&str], mark: &str| {
            json!({ "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers,
                "annotations": { CLEANED_UP_ANNOTATION: mark } })
        };
        assert_eq!(stage(json!({}), true), Stage::Unguarded);
        assert_eq!(stage(json!({}), false), Stage::Alive);
        assert_eq!(
            stage(json!({ "finalizers": ["other", guard] }), true),
            Stage::Alive
        );
        assert_eq!(stage(going(&[&guard], ""), true), Stage::CleaningUp);
        assert_eq!(stage(going(&["other"], ""), true), Stage::Released);
        // The plugin's next version has no cleanup any more.
        assert_eq!(stage(going(&[&guard], ""), false), Stage::TearingDown);
        let marks = [
            (format!("{guard}/u"), Stage::TearingDown),
            // It was copied from another object, or is of another controller.
            (format!("{guard}/v"), Stage::CleaningUp),
            ("operator-host.dev/another/u".to_owned(), Stage::CleaningUp),
        ];
        for (mark, expected) in marks {
            assert_eq!(stage(going(&[&guard], &mark), true), expected, "{mark}");
        }
    }
}
