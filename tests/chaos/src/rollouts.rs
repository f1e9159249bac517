//! Deployments that Kubernetes itself never finishes.
//!
//! Whoever scales a Deployment in the middle of a roll-out, and then changes its template, can leave it like this: its
//! active ReplicaSet has the wanted size already, and says in an annotation that another size was wanted when it was
//! made. The controller then takes every look for one after a scaling, finds nothing to scale, and stops before it makes
//! the ReplicaSet of the new template. Only a writer of that annotation gets it on again, so that is what this is.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";

/// Gets the stuck Deployments of a namespace on. What fails is tried again with the next look.
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
        let wanted = deployment.and_then(|it| it.spec.replicas);
        let has = set.spec.replicas;
        let (Some(wanted), true) = (wanted, wanted == has && wanted != Some(0)) else {
            continue;
        };
        let desired = wanted.to_string();
        if set.annotations().get(DESIRED) != Some(&desired) {
            let patch = json!({ "metadata": { "uid": set.uid(), "annotations": { DESIRED: desired } } });
            let done = sets
                .patch(&set.name_any(), &PatchParams::default(), &Patch::Merge(patch))
                .await;
            let outcome = done.map_or_else(|error| error.to_string(), |_| "done".to_owned());
            eprintln!(
                "getting the roll-out of {} on, which Kubernetes has lost: {outcome}",
                set.name_any()
            );
        }
    }
}
