//! Deletes a child whose change the API server refuses because a field is immutable, so that it is created again.

use kube::api::PropagationPolicy;

use super::apply::ApplyOutcome;
use super::context::LiveChild;
use super::prune::delete;
use super::run::Run;
use operator_host_cluster::api_error::ApiError;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_core::object::UPDATE_ANNOTATION;
use operator_host_desired::order::Waiting;
use operator_host_desired::planned::Desired;

/// Deletes a child that the plugin allows to be replaced, unless the API server would not create it again. The next iteration
/// creates it, or the next reconcile when it is gone: the plugin still wants it, so nothing is remembered. The error of a child that
/// is not deleted is the refusal, with what to do.
pub(super) async fn replace(
    run: &Run<'_>,
    desired: &Desired,
    live: &LiveChild,
    is_ours: bool,
    objects: &ResourceClient<'_>,
    mut refused: ApiError,
) -> Result<ApplyOutcome, ApiError> {
    let key = &desired.key;
    if !(desired.update.replace && is_ours) {
        let advice = match desired.update.replace {
            true => "the host does not replace what it adopts, or what goes with its parent".to_owned(),
            false => format!(
                "undo the change, or let the plugin set the child's annotation {UPDATE_ANNOTATION} to `replace`, with \
                 which the host deletes such a child and creates it again"
            ),
        };
        refused.message = format!("{}; {advice}", refused.message).into();
        return Err(refused);
    }
    let manager = run.context.config.field_manager();
    let checked = objects
        .could_create(&key.name, desired.new_body(), &manager)
        .await;
    if let Err(why) = checked {
        if why.is_passing() {
            return Err(why);
        }
        let then = "it is not replaced, because the API server would not create it again";
        refused.message = format!("{}; {then}: {}", refused.message, why.message).into();
        return Err(refused);
    }
    let propagation = match desired.update.foreground {
        true => PropagationPolicy::Foreground,
        false => PropagationPolicy::Background,
    };
    let why = match delete(run, key, &live.object, propagation).await? {
        true => format!("{key} is created again when it is gone: {}", refused.message),
        false => format!("{key} has just been changed by another client, and is replaced after that"),
    };
    let kind = key.kind.clone();
    Ok(ApplyOutcome::Replaced(Waiting { kind, why }))
}
