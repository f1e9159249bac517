//! Works around Deployments that Kubernetes itself finishes late or never.
//!
//! Two causes are known. On 1.20, a Deployment that is scaled in the middle of a rollout, and whose template
//! changes after that, has an active ReplicaSet of the desired size whose annotation contains another size: the
//! controller treats every sync as a scaling, finds nothing to scale, and never creates the ReplicaSet of the new
//! template. On both, a controller whose API server was restarted can miss a change, or back off for long. Writing
//! the annotation, or the objects, makes them continue.

use std::fmt::Debug;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
/// The turn in which an object was last written here.
const NUDGED: &str = "operator-host.dev/chaos-nudged";
/// How long Kubernetes has to react to a nudge before the next one, in seconds.
const TURN: i64 = 10;

/// Makes the Deployments of a namespace that are not rolled out continue, and describes them. Failures are retried
/// at the next check.
pub(crate) async fn unstick(client: &Client, namespace: &str) -> Vec<String> {
    let all = ListParams::default();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    let (Ok(listed), Ok(listed_sets)) = (deployments.list(&all).await, sets.list(&all).await) else {
        return Vec::new();
    };
    let turn = (jiff::Timestamp::now().as_second() / TURN).to_string();
    let mut unfinished = Vec::new();
    for deployment in listed {
        let wanted = deployment.spec.replicas;
        let desired = wanted.unwrap_or(1).to_string();
        let uid = deployment.metadata.uid.as_ref();
        let is_owned = |set: &&ReplicaSet| set.owner_references().first().map(|owner| &owner.uid) == uid;
        let is_rolled_out = is_rolled_out(&deployment);
        for set in listed_sets.iter().filter(is_owned) {
            let size = set.spec.replicas;
            if size != Some(0) && size == wanted && set.annotations().get(DESIRED) != Some(&desired) {
                nudge(&sets, set, DESIRED, &desired).await;
            }
            if !is_rolled_out {
                nudge(&sets, set, NUDGED, &turn).await;
            }
        }
        if !is_rolled_out {
            nudge(&deployments, &deployment, NUDGED, &turn).await;
            unfinished.push(describe(&deployment));
        }
    }
    unfinished
}

/// Writes an annotation, unless the object has it.
async fn nudge<K>(api: &Api<K>, object: &K, key: &str, value: &String)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    if object.annotations().get(key) == Some(value) {
        return;
    }
    let name = object.name_any();
    let patch = json!({ "metadata": { "uid": object.uid(), "annotations": { key: value } } });
    let done = api
        .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    let outcome = done.map_or_else(|error| error.to_string(), |_| "done".to_owned());
    let kind = K::kind(&());
    eprintln!("nudging the {kind} {name} of a rollout that does not finish: {outcome}");
}

/// Reports whether the Deployment controller has seen the current spec, and all replicas have the current template
/// and are available.
fn is_rolled_out(deployment: &Deployment) -> bool {
    let wanted = deployment.spec.replicas;
    deployment.status.as_ref().is_some_and(|status| {
        let of = |count: Option<i32>| count.unwrap_or_default() == wanted.unwrap_or(1);
        status.observed_generation == deployment.metadata.generation
            && of(status.replicas)
            && of(status.updated_replicas)
            && of(status.available_replicas)
    })
}

fn describe(deployment: &Deployment) -> String {
    let status = deployment.status.clone().unwrap_or_default();
    let count = Option::<i32>::unwrap_or_default;
    format!(
        "Kubernetes has not rolled out Deployment {}: generation {} of {}, replicas {}, updated {}, available {} of {}",
        deployment.name_any(),
        status.observed_generation.unwrap_or_default(),
        deployment.metadata.generation.unwrap_or_default(),
        count(status.replicas),
        count(status.updated_replicas),
        count(status.available_replicas),
        deployment.spec.replicas.unwrap_or(1),
    )
}
