//! Works around Deployments that Kubernetes itself finishes late or never.
//!
//! Two causes are known. On 1.20, a Deployment that is scaled in the middle of a rollout, and whose template
//! changes after that, has an active ReplicaSet of the desired size whose annotation contains another size: the
//! controller treats every sync as a scaling, finds nothing to scale, and never creates the ReplicaSet of the new
//! template. Writing the annotation makes it continue. On both, a controller manager whose API server was restarted
//! can miss a change, or waits up to half a minute before it watches again. Restarting it makes it continue.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";

/// Corrects the annotations of a namespace's ReplicaSets, and describes the Deployments that are not rolled out.
/// Failures are retried at the next check.
pub(crate) async fn unstick(client: &Client, namespace: &str) -> Vec<String> {
    let all = ListParams::default();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    let (Ok(listed), Ok(listed_sets)) = (deployments.list(&all).await, sets.list(&all).await) else {
        return Vec::new();
    };
    let mut unfinished = Vec::new();
    for deployment in listed {
        let wanted = deployment.spec.replicas;
        let desired = wanted.unwrap_or(1).to_string();
        let uid = deployment.metadata.uid.as_ref();
        let is_owned = |set: &&ReplicaSet| set.owner_references().first().map(|owner| &owner.uid) == uid;
        for set in listed_sets.iter().filter(is_owned) {
            let size = set.spec.replicas;
            if size != Some(0) && size == wanted && set.annotations().get(DESIRED) != Some(&desired) {
                correct(&sets, set, &desired).await;
            }
        }
        if !is_rolled_out(&deployment) {
            unfinished.push(describe(&deployment));
        }
    }
    unfinished
}

/// Writes the desired size into the annotation of a ReplicaSet.
async fn correct(sets: &Api<ReplicaSet>, set: &ReplicaSet, size: &str) {
    let name = set.name_any();
    let patch = json!({ "metadata": { "uid": set.uid(), "annotations": { DESIRED: size } } });
    let done = sets
        .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    let outcome = done.map_or_else(|error| error.to_string(), |_| "done".to_owned());
    eprintln!("correcting the annotation of the ReplicaSet {name}, which blocks its rollout: {outcome}");
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
