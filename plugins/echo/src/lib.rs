//! Echo: runs a number of pods of one image.

use operator_plugin::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Runs a number of pods of one image.
#[derive(Deserialize, JsonSchema)]
struct EchoSpec {
    /// How many pods to run.
    #[schemars(range(max = 100))]
    replicas: u32,
    /// The image that they run.
    #[schemars(length(min = 1))]
    image: String,
}

/// The observed state.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct EchoStatus {
    /// How many of the pods exist.
    current_replicas: usize,
    /// Whether exactly the desired number of pods exist and are Ready.
    is_ready: bool,
}

const PLUGIN: Plugin<EchoSpec, EchoStatus> = Plugin::new("my-operator.dev/v1", "Echo", reconcile)
    .plural("echoes")
    .makes(&[POD])
    .columns(&[
        Column::integer("Replicas", ".status.currentReplicas"),
        Column::boolean("Ready", ".status.isReady"),
    ]);
operator_plugin::register!(PLUGIN);

fn reconcile(request: &Request<EchoSpec, EchoStatus>) -> Result<Response<EchoStatus>, Failure> {
    let Parent { name, spec, .. } = &request.parent;
    // Leave out a pod that has ended (it was evicted): the host deletes it, and the next reconcile recreates it.
    let names = (0..spec.replicas).map(|i| format!("{name}-pod-{i}"));
    let names = names.filter(|pod| !request.child(POD, pod).is_some_and(Object::is_finished_pod));
    let pods = names.map(|pod| {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": pod, "labels": { "app": name } },
            "spec": { "containers": [{ "name": "echo", "image": spec.image }] },
        })
    });
    let existing = request.children_of(POD).count();
    let ready = request.children_of(POD).filter(|pod| pod.is_ready_pod()).count();
    let wanted = spec.replicas as usize;
    let status = EchoStatus {
        current_replicas: existing,
        is_ready: existing == wanted && ready == wanted,
    };
    Ok(Response::new(status).children(pods))
}

#[cfg(test)]
mod tests;
