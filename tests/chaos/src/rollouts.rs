//! Works around Deployments that Kubernetes itself never finishes.
//!
//! Two causes are known. On 1.20, a Deployment that is scaled in the middle of a rollout, and whose template
//! changes after that, has an active ReplicaSet of the desired size whose annotation contains another size: the
//! controller treats every sync as a scaling, finds nothing to scale, and never creates the ReplicaSet of the new
//! template. On 1.36, a ReplicaSet controller whose API server was restarted can miss that a pod became ready.
//! Writing the annotation, or the ReplicaSet, makes both continue.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
/// The resource version of the Deployment for which the ReplicaSet was last written here.
const NUDGED: &str = "operator-host.dev/chaos-nudged";

/// Makes the stuck Deployments of a namespace continue. Failures are retried at the next check.
pub(crate) async fn unstick(client: &Client, namespace: &str) {
    let all = ListParams::default();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    let (Ok(deployments), Ok(listed)) = (deployments.list(&all).await, sets.list(&all).await) else {
        return;
    };
    for set in listed {
        let owner = set.owner_references().first().map(|owner| owner.uid.as_str());
        let deployment = deployments.iter().find(|it| it.metadata.uid.as_deref() == owner);
        let Some((deployment, wanted)) = deployment.and_then(|it| Some((it, it.spec.replicas?))) else {
            continue;
        };
        let desired = wanted.to_string();
        let is_mislabeled = wanted != 0
            && set.spec.replicas == Some(wanted)
            && set.annotations().get(DESIRED) != Some(&desired);
        let version = deployment.resource_version().unwrap_or_default();
        let is_missed = !is_rolled_out(deployment) && set.annotations().get(NUDGED) != Some(&version);
        if is_mislabeled || is_missed {
            let annotations = if is_mislabeled {
                json!({ DESIRED: desired, NUDGED: version })
            } else {
                json!({ NUDGED: version })
            };
            let patch = json!({ "metadata": { "uid": set.uid(), "annotations": annotations } });
            let done = sets
                .patch(&set.name_any(), &PatchParams::default(), &Patch::Merge(patch))
                .await;
            let outcome = done.map_or_else(|error| error.to_string(), |_| "done".to_owned());
            eprintln!(
                "nudging the ReplicaSet {} of a rollout that does not finish: {outcome}",
                set.name_any()
            );
        }
    }
}

/// Reports whether all replicas have the current template and are available.
fn is_rolled_out(deployment: &Deployment) -> bool {
    let wanted = deployment.spec.replicas.unwrap_or(1);
    deployment.status.as_ref().is_some_and(|status| {
        let of = |count: Option<i32>| count.unwrap_or_default() == wanted;
        of(status.replicas) && of(status.updated_replicas) && of(status.available_replicas)
    })
}
