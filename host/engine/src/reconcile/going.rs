//! A parent in a namespace that is being deleted. Kubernetes deletes what is in it in no order, so the host may lose its
//! permissions there before it has ended the life of the parents.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::core::DynamicObject;
use tracing::warn;

use super::error::{ReconcileError, Result};
use super::finalizer::{has_finalizer, remove_finalizer};
use super::outcome::{FinalAnswer, Outcome};
use super::run::Run;
use operator_host_core::object::is_terminating;

/// How long a read of a namespace may take.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Releases a parent whose deletion failed because the namespace took the host's permissions along, without the rest of its
/// cleanup: whatever that could delete goes with the namespace, and it can create nothing there. Returns the error when the
/// parent stays.
pub(super) async fn release_or(
    run: &Run<'_>,
    parent: &Arc<DynamicObject>,
    error: ReconcileError,
) -> Result<Outcome> {
    let has_lost_permissions = is_terminating(parent)
        && has_finalizer(&run.context.config, parent)
        && error.is_missing_permission()
        && is_namespace_going(run, parent.metadata.namespace.as_deref()).await;
    if !has_lost_permissions {
        return Err(error);
    }
    let left = remove_finalizer(run, parent).await?;
    warn!(
        "its namespace is being deleted, and with it the permissions of the host there, so the resource is released without \
         the rest of its cleanup: {}",
        without_advice(&error)
    );
    Ok(Outcome::without_finalizer(
        left.as_deref(),
        FinalAnswer::default(),
    ))
}

/// Reports whether a namespace is being deleted. The host may hear of that late, or not at all, so it reads the namespace.
pub(super) async fn is_namespace_going(run: &Run<'_>, namespace: Option<&str>) -> bool {
    let Some(namespace) = namespace else {
        return false;
    };
    if run.context.caches.namespaces.is_terminating(namespace) {
        return true;
    }
    let namespaces: Api<Namespace> = Api::all(run.context.cluster.client.clone());
    let found = tokio::time::timeout(READ_TIMEOUT, namespaces.get_metadata_opt(namespace)).await;
    let found = found.ok().and_then(Result::ok).flatten();
    let is_going = found.is_some_and(|found| found.metadata.deletion_timestamp.is_some());
    if is_going {
        run.context.caches.namespaces.refused(namespace);
    }
    is_going
}

/// Returns an error without the advice to grant a permission, which the API server refuses in such a namespace.
pub(super) fn without_advice(error: &ReconcileError) -> String {
    let text = error.to_string();
    let advice = ["; give the host", "; grant that permission"];
    let end = advice.into_iter().filter_map(|advice| text.find(advice)).min();
    text[..end.unwrap_or(text.len())].to_owned()
}
