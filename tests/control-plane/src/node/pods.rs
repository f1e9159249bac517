//! Determines the next step for a pod.

use std::net::Ipv4Addr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{EXIT_CODE, NODE};

/// The address of the Node.
pub(super) const HOST_IP: &str = "10.244.0.1";

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Bind it to the Node, once its claims are bound.
    Bind,
    /// Write the status of a running pod. The first one waits until the pod has been bound for a while.
    Run {
        /// Whether this is its first status.
        first: bool,
    },
    /// Write the status of a pod whose containers have ended with this code.
    End {
        /// The exit code of every container.
        code: i32,
    },
    /// Delete it without a grace period: nothing has to be stopped.
    Remove,
    /// Its deletion is complete except for the last step: a server that dies between the two leaves it there
    /// forever. Any change of it makes the server continue.
    Clear,
}

/// Returns the next step for `pod`; `None` when it is complete or not ours.
pub(super) fn next(pod: &Pod, claim_is_bound: impl Fn(&str) -> bool) -> Option<Step> {
    let spec = pod.spec.as_ref()?;
    let status = pod.status.as_ref();
    let phase = status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending");
    match spec.node_name.as_deref() {
        Some(node) if node != NODE => None,
        bound if pod.metadata.deletion_timestamp.is_some() => {
            // A grace period of 0 means that this step was already done.
            let step = match pod.metadata.deletion_grace_period_seconds {
                Some(0) if !pod.finalizers().is_empty() => return None,
                Some(0) => Step::Clear,
                // The API server itself removes pods that are not bound to a Node.
                _ if bound.is_none() => return None,
                _ => Step::Remove,
            };
            Some(step)
        }
        None => claims(spec).all(claim_is_bound).then_some(Step::Bind),
        Some(_) if phase != "Pending" && phase != "Running" => None,
        Some(_) => {
            let first = phase == "Pending";
            if first || !is_ready(status) || !runs_these_images(spec, status) {
                return Some(Step::Run { first });
            }
            let code = exit_code(pod)?;
            let restarts = spec.restart_policy.as_deref() != Some("Never");
            (code == 0 || !restarts).then_some(Step::End { code })
        }
    }
}

/// Returns the code with which the containers of a pod end; `None` for a pod that runs until it is deleted.
fn exit_code(pod: &Pod) -> Option<i32> {
    match pod.annotations().get(EXIT_CODE) {
        Some(code) => code.parse().ok(),
        None => pod
            .owner_references()
            .iter()
            .any(|owner| owner.kind == "Job" && owner.controller == Some(true))
            .then_some(0),
    }
}

/// Returns the claims that `pod` mounts.
pub(super) fn claims(spec: &PodSpec) -> impl Iterator<Item = &str> {
    let volumes = spec.volumes.iter().flatten();
    volumes.filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}

fn is_ready(status: Option<&PodStatus>) -> bool {
    let mut conditions = status
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The image of a running pod may change; its container then restarts.
fn runs_these_images(spec: &PodSpec, status: Option<&PodStatus>) -> bool {
    let running = status
        .and_then(|status| status.container_statuses.as_ref())
        .map_or(&[][..], Vec::as_slice);
    spec.containers.iter().all(|container| {
        let image = container.image.as_deref().unwrap_or_default();
        running
            .iter()
            .any(|status| status.name == container.name && status.image == image)
    })
}

/// Returns the strategic merge patch of a running pod's status. `number` determines the address.
pub(super) fn running(pod: &Pod, number: u32, now: Timestamp) -> Value {
    let spec = pod.spec.clone().unwrap_or_default();
    let before = pod.status.clone().unwrap_or_default();
    let old = before.container_statuses.unwrap_or_default();
    let ip = before.pod_ip.unwrap_or_else(|| {
        Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 245, 0, 0)) + number % 0xfffe + 1).to_string()
    });
    let start = before.start_time.map_or(now, |time| time.0).to_string();
    let container = |container: &Container| {
        let image = container.image.clone().unwrap_or_default();
        let old = old.iter().find(|old| old.name == container.name);
        let restarts = old.map_or(0, |old| old.restart_count + i32::from(old.image != image));
        json!({
            "name": container.name,
            "image": image,
            "imageID": format!("stand-in://{image}"),
            "containerID": format!("stand-in://{}-{}", pod.uid().unwrap_or_default(), container.name),
            "ready": true,
            "started": true,
            "restartCount": restarts,
            "state": { "running": { "startedAt": now.to_string() } },
        })
    };
    let condition =
        |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": now.to_string() });
    json!({
        "status": {
            "phase": "Running",
            "hostIP": HOST_IP,
            "podIP": ip,
            "podIPs": [{ "ip": ip }],
            "startTime": start,
            "conditions": [
                condition("Initialized"),
                condition("ContainersReady"),
                condition("Ready"),
            ],
            "containerStatuses": spec.containers.iter().map(container).collect::<Vec<_>>(),
        },
    })
}

/// Returns the strategic merge patch of the status of a running pod whose containers have ended.
pub(super) fn ended(pod: &Pod, code: i32, now: Timestamp) -> Value {
    let reason = if code == 0 { "Completed" } else { "Error" };
    let running = pod.status.clone().unwrap_or_default();
    let containers = running.container_statuses.unwrap_or_default();
    let container = |status: &ContainerStatus| {
        let started = status
            .state
            .as_ref()
            .and_then(|state| state.running.as_ref()?.started_at.as_ref());
        json!({
            "name": status.name,
            "ready": false,
            "started": false,
            "state": {
                "running": null,
                "terminated": {
                    "exitCode": code,
                    "reason": reason,
                    "startedAt": started,
                    "finishedAt": now.to_string(),
                    "containerID": status.container_id,
                },
            },
        })
    };
    let condition = |kind: &str| {
        json!({
            "type": kind,
            "status": "False",
            "lastTransitionTime": now.to_string(),
            "reason": if code == 0 { "PodCompleted" } else { "PodFailed" },
        })
    };
    json!({
        "status": {
            "phase": if code == 0 { "Succeeded" } else { "Failed" },
            "conditions": [condition("ContainersReady"), condition("Ready")],
            "containerStatuses": containers.iter().map(container).collect::<Vec<_>>(),
        },
    })
}
