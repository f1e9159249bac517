//! The @KIND@ operator: runs an image in a Deployment with a number of replicas.

use operator_plugin::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Runs a number of replicas of one image.
#[derive(Deserialize, JsonSchema)]
struct @KIND@Spec {
    /// The image that they run.
    #[schemars(length(min = 1))]
    image: String,
    /// How many of them run.
    #[serde(default = "one")]
    #[schemars(range(max = 100))]
    replicas: u32,
}

fn one() -> u32 {
    1
}

/// The observed state.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct @KIND@Status {
    /// How many of the replicas are ready.
    ready_replicas: i64,
}

type Spec = @KIND@Spec;
type Status = @KIND@Status;

const PLUGIN: Plugin<Spec, Status> = Plugin::new("@GROUP@/@VERSION@", "@KIND@", reconcile)
    .plural("@PLURAL@")
    .makes(&[DEPLOYMENT])
    .columns(&[Column::integer("Ready", ".status.readyReplicas")]);
operator_plugin::register!(PLUGIN);

fn reconcile(request: &Request<Spec, Status>) -> Result<Response<Status>, Failure> {
    let Parent { name, spec, .. } = &request.parent;
    let labels = Labels::new("app.kubernetes.io/name", name);
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": name, "labels": labels },
        "spec": {
            "replicas": spec.replicas,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "main", "image": spec.image }] },
            },
        },
    });

    let observed = request.child(DEPLOYMENT, name);
    let ready = observed.and_then(|it| it.integer("/status/readyReplicas"));
    let ready = ready.unwrap_or(0);
    let message = format!("{ready}/{} replicas ready", spec.replicas);
    let condition = if ready == i64::from(spec.replicas) {
        Condition::ready(true, "ReplicasReady", message)
    } else {
        Condition::ready(false, "ReplicasNotReady", message)
    };
    let status = @KIND@Status {
        ready_replicas: ready,
    };
    Ok(Response::new(status).child(deployment).condition(condition))
}

#[cfg(test)]
mod tests;
