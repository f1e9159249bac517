//! One plugin call, and the same mapping compiled natively.

use std::sync::Arc;
use std::time::{Duration, Instant};

use operator_host_contract::Request;
use operator_host_runtime::{EngineOptions, Limits, Runtime};
use serde_json::{Value, json};

use super::support::plugin;
use super::table::{Figure, Spread, Table, micros};

const CALLS: usize = 3000;

/// How long an idle machine takes to reach its full speed.
const WARM_UP: Duration = Duration::from_secs(2);

/// Returns an Echo with three pods, as large as those from an API server.
pub fn request() -> Request {
    let pods: Vec<Value> = (0..3).map(pod).collect();
    serde_json::from_value(json!({
        "parent": {
            "apiVersion": "my-operator.dev/v1", "kind": "Echo",
            "metadata": {
                "name": "e", "namespace": "default", "uid": "7f1b5a6e-8d0c-4f6e-9f1c-2f6f3d3b1a10", "generation": 1,
                "resourceVersion": "1042", "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": { "replicas": 3, "image": "echo:1" },
            "status": { "currentReplicas": 3, "isReady": true, "observedGeneration": 1, "conditions": [{
                "type": "Ready", "status": "True", "reason": "Reconciled", "message": "every child is applied",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
            }] },
        },
        "children": pods, "related": [], "now": "2026-01-01T00:00:05Z",
    }))
    .expect("a request")
}

fn pod(i: usize) -> Value {
    let condition = |type_: &str| json!({ "type": type_, "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:01Z" });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("e-pod-{i}"), "namespace": "default", "uid": format!("0b6d8f4e-0000-4000-8000-00000000000{i}"),
            "resourceVersion": "1050", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": { "app": "e", "operator-host.dev/controller": "echo" },
            "annotations": {
                "operator-host.dev/applied": "0123456789abcdef", "operator-host.dev/parent": "default/e",
                "operator-host.dev/provenance":
                    "generation=1 parent=7f1b5a6e-8d0c-4f6e-9f1c-2f6f3d3b1a10 digest=sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef plugin=echo 1.0.0",
            },
            "ownerReferences": [{
                "apiVersion": "my-operator.dev/v1", "kind": "Echo", "name": "e", "controller": true,
                "blockOwnerDeletion": true, "uid": "7f1b5a6e-8d0c-4f6e-9f1c-2f6f3d3b1a10",
            }],
        },
        "spec": {
            "containers": [{
                "name": "echo", "image": "echo:1", "imagePullPolicy": "IfNotPresent", "resources": {},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            }],
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "nodeName": "node", "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority", "restartPolicy": "Always", "schedulerName": "default-scheduler",
            "securityContext": {}, "serviceAccount": "default", "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30,
            "tolerations": [
                { "effect": "NoExecute", "key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300 },
                { "effect": "NoExecute", "key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 300 },
            ],
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }], "qosClass": "BestEffort",
            "startTime": "2026-01-01T00:00:00Z",
            "conditions": [condition("Initialized"), condition("Ready"), condition("ContainersReady"), condition("PodScheduled")],
            "containerStatuses": [{
                "name": "echo", "image": "echo:1", "imageID": "", "ready": true, "started": true, "restartCount": 0,
                "lastState": {}, "state": { "running": { "startedAt": "2026-01-01T00:00:01Z" } },
            }],
        },
    })
}

pub async fn run(table: &mut Table) {
    eprintln!("plugin calls");
    // In a task, like the reconciles of a controller.
    let measured = tokio::spawn(measure()).await.expect("the calls");
    for (what, figure) in measured {
        table.fill(what, figure);
    }
}

async fn measure() -> Vec<(&'static str, Figure)> {
    let mut rows = Vec::new();
    let runtime = Runtime::new(EngineOptions::default()).expect("an engine");
    let request = request();
    let mut native_samples = Vec::with_capacity(CALLS);
    for (form, file, what) in [
        (
            "component",
            "echo",
            "one call of Echo with 3 pods, fresh sandbox, component",
        ),
        (
            "command",
            "echo-command",
            "one call of Echo with 3 pods, fresh sandbox, command",
        ),
    ] {
        let bytes = std::fs::read(plugin(file)).expect("the plugin");
        let echo = runtime.load(bytes, Limits::default()).await.expect("a plugin");
        let mut samples = Vec::with_capacity(CALLS);
        let started = Instant::now();
        while started.elapsed() < WARM_UP {
            echo.reconcile(&request).await.outcome.expect("a response");
        }
        for _ in 0..CALLS {
            let start = Instant::now();
            let response = echo.reconcile(&request).await.outcome.expect("a response");
            let taken = start.elapsed();
            assert_eq!(response.children.len(), 3);
            samples.push(taken);
            // Alternate, so that the machine's fluctuations affect both alike.
            if form == "component" {
                native_samples.push(native(&request));
            }
        }
        let spread = Spread::of(samples, micros);
        if form == "component" {
            let native = Spread::of(native_samples.clone(), micros);
            let ratio = spread.median / native.median;
            rows.push(("ratio of the component to native code", Figure::number(ratio, 1)));
            rows.push(("the same mapping compiled natively", native.into()));
        }
        rows.push((what, spread.into()));
    }
    rows
}

/// The same request and response documents, through the same function, without a sandbox.
fn native(request: &Request) -> Duration {
    let start = Instant::now();
    let input = serde_json::to_string(&request.parent).expect("JSON");
    let children: Vec<String> = request
        .children
        .iter()
        .map(|child| serde_json::to_string(child).expect("JSON"))
        .collect();
    let response = echo::native(&input, &children);
    let parsed: Vec<Value> = response
        .iter()
        .map(|child| serde_json::from_str(child).expect("JSON"))
        .collect();
    let taken = start.elapsed();
    assert_eq!(parsed.len(), 3);
    taken
}

/// Echo's mapping, from JSON to JSON.
mod echo {
    use super::{Arc, Value, json};

    pub fn native(parent: &str, children: &[String]) -> Vec<String> {
        let parent: Value = serde_json::from_str(parent).expect("JSON");
        let children: Vec<Value> = children
            .iter()
            .map(|child| serde_json::from_str(child).expect("JSON"))
            .collect();
        let _ready = children.iter().filter(|pod| is_ready(pod)).count();
        let name: Arc<str> = parent["metadata"]["name"].as_str().unwrap_or_default().into();
        (0..parent["spec"]["replicas"].as_u64().unwrap_or_default())
            .map(|i| {
                json!({
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": { "name": format!("{name}-pod-{i}"), "labels": { "app": *name } },
                    "spec": { "containers": [{ "name": "echo", "image": parent["spec"]["image"] }] },
                })
                .to_string()
            })
            .collect()
    }

    fn is_ready(pod: &Value) -> bool {
        pod["status"]["conditions"].as_array().is_some_and(|conditions| {
            conditions
                .iter()
                .any(|c| c["type"] == "Ready" && c["status"] == "True")
        })
    }
}
