//! A bare client: the writes that an operator for Echo needs, without any logic.

use std::process::ExitCode;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Client, Config, ResourceExt as _};
use serde_json::{Value, json};

use crate::{CONCURRENCY, echoes, native};

/// Lists the Echos of a namespace once, applies the pods and the status of each, and waits to be stopped, so that its
/// figures can be read.
pub(crate) async fn run(namespace: &str) -> anyhow::Result<ExitCode> {
    let client = control_plane::connect(&Config::infer().await?)?;
    let echoes = echoes::api(&client, namespace)
        .list(&ListParams::default())
        .await?;
    let work = echoes.items.iter().map(|echo| write(&client, namespace, echo));
    stream::iter(work)
        .buffer_unordered(CONCURRENCY)
        .try_collect::<()>()
        .await?;
    std::future::pending().await
}

async fn write(client: &Client, namespace: &str, echo: &kube::api::DynamicObject) -> anyhow::Result<()> {
    let (pods, echoes) = (echoes::pods(client, namespace), echoes::api(client, namespace));
    let params = PatchParams::apply("bare").force();
    let name = echo.name_any();
    let replicas = echo.data["spec"]["replicas"].as_u64().unwrap_or_default();
    for number in 0..replicas {
        let pod = format!("{name}-pod-{number}");
        pods.patch(&pod, &params, &Patch::Apply(body(&name, echo, &pod)))
            .await?;
    }
    let conditions = ["Ready", "Reconciling", "Stalled"].map(condition);
    let status = json!({
        "apiVersion": native::API_VERSION, "kind": "Echo", "metadata": {"name": name},
        "status": {
            "currentReplicas": replicas, "isReady": false, "observedGeneration": echo.metadata.generation,
            "conditions": conditions,
        },
    });
    echoes.patch_status(&name, &params, &Patch::Apply(status)).await?;
    Ok(())
}

/// Returns a pod as large as the host makes it.
fn body(name: &str, echo: &kube::api::DynamicObject, pod: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod, "labels": {"app": name, "operator-host.dev/controller": "echo"},
            "annotations": {
                "operator-host.dev/applied": "0123456789abcdef",
                "operator-host.dev/provenance":
                    "generation=1 parent=7f1b5a6e-8d0c-4f6e-9f1c-2f6f3d3b1a10 plugin=echo 1.0.0 digest=sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            },
            "ownerReferences": [{
                "apiVersion": native::API_VERSION, "kind": "Echo", "name": name, "uid": echo.metadata.uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {"containers": [{"name": "echo", "image": echo.data["spec"]["image"]}]},
    })
}

/// Returns a condition as the host writes it.
fn condition(type_: &str) -> Value {
    json!({
        "type": type_, "status": "False", "reason": "ChildrenNotReady", "message": "3 of 3 children are not ready yet",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
    })
}
