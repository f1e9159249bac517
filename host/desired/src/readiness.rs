//! Whether a child does what its spec asks for, by the rules of kstatus.
//!
//! A kind of Kubernetes' own is judged by its status fields, as its controller writes them. Any other kind is judged by
//! its conditions `Ready`, `Reconciling` and `Stalled`, and is ready when it has none.
//!
//! Source: kstatus, "Statuses" and its table of workload resources (`sigs.k8s.io/cli-utils/pkg/kstatus`). It differs
//! from kstatus for Pods: one that is always restarted is not ready when it has succeeded, and one whose container waits
//! or has ended is reported with the reason that the kubelet gives.

use std::sync::Arc;

use kube::core::DynamicObject;
use serde_json::Value;

use super::conditions::{Reason, Verdict};
use super::planned::Plan;
use operator_host_core::object::{
    ChildRef, group_of, is_built_in, is_terminating, is_unreadable, unreadable,
};

/// Returns the verdict on a parent whose children are all applied. `existing` returns a child as last seen, and `missing`
/// why one that does not exist, with this body, is not ready.
pub fn verdict(
    plan: &Plan,
    existing: impl Fn(&ChildRef) -> Option<Arc<DynamicObject>>,
    missing: impl Fn(&Value) -> Option<String>,
) -> Verdict {
    let judge = |key: &ChildRef, body: Option<&Value>| match (existing(key), body) {
        (Some(child), _) => unready(&child),
        (None, Some(body)) => missing(body),
        (None, None) => None,
    };
    let mut keep: Vec<_> = plan.keep.iter().collect();
    keep.sort();
    let desired = plan.desired.iter().map(|it| (&it.key, Some(&it.body)));
    let secrets = plan.secrets.iter().map(|it| (&it.key, Some(&it.body)));
    let keep = keep.into_iter().map(|key| (key, None));
    let mut all = desired.chain(secrets).chain(keep);
    // Name only the first: a count of the others would change, and cause a write, with every child that becomes ready.
    let unready = all.find_map(|(key, body)| Some(format!("{key}: {}", judge(key, body)?)));
    unready.map_or(Verdict::Reconciled, |message| {
        Verdict::Progressing(Reason::new("ChildrenNotReady", message))
    })
}

/// Returns why a child is not ready, or `None` when it is.
pub fn unready(child: &DynamicObject) -> Option<String> {
    if is_terminating(child) {
        return Some(terminating(child));
    }
    if is_unreadable(child) {
        return Some(unreadable("it"));
    }
    let status = Status(&child.data["status"]);
    let behind = |of: &Value| {
        let observed = of["observedGeneration"].as_i64();
        let is_behind = observed.is_some_and(|observed| child.metadata.generation > Some(observed));
        is_behind.then(|| "its controller has not seen the current spec".to_owned())
    };
    if let Some(why) = behind(status.0) {
        return Some(why);
    }
    let spec = &child.data["spec"];
    match kind_of(child) {
        ("apps", "Deployment") => deployment(spec, &status),
        ("apps", "StatefulSet") => stateful_set(spec, &status),
        ("apps", "DaemonSet") => daemon_set(spec, &status),
        ("apps", "ReplicaSet") | ("", "ReplicationController") => replicas(spec, &status),
        ("batch", "Job") => job(spec, &status),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaler(&status),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition(&status),
        ("", "Pod") => pod(spec, &status),
        ("", "PersistentVolumeClaim") => claim(&status),
        ("", "Service") => service(spec, &status),
        // Where the status has conditions only, each says for itself which spec it is about.
        _ => conditions(&status).or_else(|| behind(status.condition("Ready")?)),
    }
}

/// Returns why what comes after this child must wait; `None` when it need not. `has_status`: objects of this kind have a
/// status.
///
/// It must be ready, with three differences. A Job must have completed. A claim may wait for its first consumer. The
/// controller of a custom resource must have written a status: without one, it has not seen the resource.
pub fn unfinished(child: &DynamicObject, has_status: bool) -> Option<String> {
    let status = Status(&child.data["status"]);
    match kind_of(child) {
        ("", "PersistentVolumeClaim") if !is_terminating(child) => {
            (status.0["phase"] == "Lost").then(|| "it has lost its volume".to_owned())
        }
        ("batch", "Job") => unready(child).or_else(|| {
            let completed = status.condition_with("Complete", "True").is_some();
            let why = match is_suspended(&child.data["spec"]) {
                true => "it is suspended",
                false => "it has not completed",
            };
            (!completed).then(|| why.to_owned())
        }),
        (group, _) if has_status && !is_built_in(group) && status.0.is_null() => {
            Some("its controller has not written a status yet".to_owned())
        }
        _ => unready(child),
    }
}

/// Returns the group and the name of an object's kind.
fn kind_of(object: &DynamicObject) -> (&str, &str) {
    let types = object.types.as_ref();
    types.map_or(("", ""), |it| (group_of(&it.api_version), &*it.kind))
}

struct Status<'a>(&'a Value);

impl<'a> Status<'a> {
    /// Returns a count; absent means zero.
    fn count(&self, field: &str) -> i64 {
        self.0[field].as_i64().unwrap_or(0)
    }

    fn condition(&self, type_: &str) -> Option<&'a Value> {
        let mut all = self.0["conditions"].as_array()?.iter();
        all.find(|condition| condition["type"] == type_)
    }

    /// Returns the condition if it has this status.
    fn condition_with(&self, type_: &str, status: &str) -> Option<&'a Value> {
        self.condition(type_)
            .filter(|condition| condition["status"] == status)
    }
}

fn terminating(child: &DynamicObject) -> String {
    let status = Status(&child.data["status"]);
    let why = match status.condition_with("DisruptionTarget", "True") {
        Some(evicted) => explain(evicted, ""),
        None => explain(status.0, ""),
    };
    match child.metadata.finalizers.as_deref() {
        None | Some([]) if why.is_empty() => "it is being deleted".to_owned(),
        None | Some([]) => format!("it is being deleted: {why}"),
        Some(finalizers) => format!(
            "it is being deleted, and waits for its finalizers: {}",
            finalizers.join(", ")
        ),
    }
}

/// Returns the reason and the message of a condition or of a container's state.
fn explain(what: &Value, otherwise: &str) -> String {
    let text = |field: &str| what[field].as_str().unwrap_or_default().trim();
    match (text("reason"), text("message")) {
        ("", "") => otherwise.to_owned(),
        (reason, "") => reason.to_owned(),
        ("", message) => message.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

/// Returns the number of replicas that a workload should have. The API server writes the default; a plugin's test
/// may not.
fn wanted(spec: &Value) -> i64 {
    spec["replicas"].as_i64().unwrap_or(1)
}

fn at_least(count: i64, wanted: i64, what: &str) -> Option<String> {
    (count < wanted).then(|| format!("{count} of {wanted} replicas are {what}"))
}

fn deployment(spec: &Value, status: &Status<'_>) -> Option<String> {
    let late = status.condition_with("Progressing", "False");
    let wanted = wanted(spec);
    let why = late
        .map(|late| explain(late, "it does not progress"))
        .or_else(|| at_least(status.count("updatedReplicas"), wanted, "updated"))
        .or_else(|| old_replicas(status.count("replicas"), status.count("updatedReplicas")))
        .or_else(|| at_least(status.count("availableReplicas"), wanted, "available"))
        .or_else(|| at_least(status.count("readyReplicas"), wanted, "ready"))?;
    // The cause, such as a quota, where the counts tell only the effect.
    Some(match status.condition_with("ReplicaFailure", "True") {
        Some(failure) => explain(failure, &why),
        None => why,
    })
}

fn old_replicas(all: i64, updated: i64) -> Option<String> {
    let old = all - updated;
    (old > 0).then(|| format!("{old} replicas of an earlier version are not replaced yet"))
}

fn stateful_set(spec: &Value, status: &Status<'_>) -> Option<String> {
    let wanted = wanted(spec);
    let strategy = &spec["updateStrategy"];
    let too_many = status.count("replicas") > wanted;
    at_least(status.count("readyReplicas"), wanted, "ready")
        .or_else(|| too_many.then(|| "replicas that are not wanted are not deleted yet".to_owned()))
        .or_else(|| match strategy["type"].as_str() {
            // Its owner replaces the pods.
            Some("OnDelete") => None,
            _ => {
                let partition = strategy["rollingUpdate"]["partition"].as_i64().unwrap_or(0);
                let wanted = (wanted - partition).max(0);
                let is_rolling = status.0["updateRevision"] != status.0["currentRevision"];
                at_least(status.count("updatedReplicas"), wanted, "updated").filter(|_| is_rolling)
            }
        })
}

fn daemon_set(spec: &Value, status: &Status<'_>) -> Option<String> {
    let nodes = status.count("desiredNumberScheduled");
    let on_delete = spec["updateStrategy"]["type"] == "OnDelete";
    if status.0["desiredNumberScheduled"].is_null() {
        return Some("its controller has not scheduled it yet".to_owned());
    }
    let counts = [
        ("currentNumberScheduled", "scheduled"),
        ("updatedNumberScheduled", "updated"),
        ("numberAvailable", "available"),
        ("numberReady", "ready"),
    ];
    let mut counts = counts.iter().filter(|(_, what)| !on_delete || *what != "updated");
    counts.find_map(|(field, what)| at_least(status.count(field), nodes, what))
}

fn replicas(spec: &Value, status: &Status<'_>) -> Option<String> {
    if let Some(failure) = status.condition_with("ReplicaFailure", "True") {
        return Some(explain(failure, "replicas cannot be created"));
    }
    let wanted = wanted(spec);
    at_least(status.count("readyReplicas"), wanted, "ready")
        .or_else(|| at_least(status.count("availableReplicas"), wanted, "available"))
}

fn is_suspended(job: &Value) -> bool {
    job["suspend"] == true
}

/// A Job is ready as soon as it runs: a parent does not wait for a backup. A suspended one does what its spec asks for.
fn job(spec: &Value, status: &Status<'_>) -> Option<String> {
    if let Some(failed) = status.condition_with("Failed", "True") {
        return Some(explain(failed, "it has failed"));
    }
    if is_suspended(spec) {
        return None;
    }
    let has_started = !status.0["startTime"].is_null() || status.condition_with("Complete", "True").is_some();
    (!has_started).then(|| "it has not started".to_owned())
}

fn pod(spec: &Value, status: &Status<'_>) -> Option<String> {
    match status.0["phase"].as_str() {
        Some("Succeeded") => {
            let may_end = matches!(spec["restartPolicy"].as_str(), Some("OnFailure" | "Never"));
            (!may_end).then(|| "it has ended".to_owned())
        }
        Some("Failed") => Some(failed_pod(status)),
        _ => {
            let ready = status.condition("Ready");
            if ready.is_some_and(|ready| ready["status"] == "True") {
                return None;
            }
            let why = containers(status)
                .find_map(stopped)
                .or_else(|| {
                    let scheduled = status.condition_with("PodScheduled", "False");
                    scheduled.map(|scheduled| explain(scheduled, "it is not scheduled"))
                })
                .or_else(|| lost(spec, status, ready?))
                .or_else(|| ready.map(|ready| explain(ready, "it is not ready")));
            Some(why.unwrap_or_else(|| "it has not started".to_owned()))
        }
    }
}

/// Returns why a pod that has failed did so. `None` for a pod that has not.
pub fn why_failed(pod: &DynamicObject) -> Option<String> {
    let status = Status(&pod.data["status"]);
    (kind_of(pod) == ("", "Pod") && status.0["phase"] == "Failed").then(|| failed_pod(&status))
}

/// Such as an eviction by the kubelet, whose containers end with a code that says nothing.
fn failed_pod(status: &Status<'_>) -> String {
    match explain(status.0, "") {
        why if !why.is_empty() => why,
        _ => {
            let mut ends = containers(status).filter_map(|container| ended(container, "state"));
            ends.next().unwrap_or_else(|| "it has failed".to_owned())
        }
    }
}

/// Returns the states of all containers, those that run first first.
fn containers<'a>(status: &Status<'a>) -> impl Iterator<Item = &'a Value> {
    let fields = ["initContainerStatuses", "containerStatuses"].map(|field| status.0[field].as_array());
    fields.into_iter().flatten().flatten()
}

/// Returns why a container that waits, or has ended with an error, does not run. A container that is only being created is
/// no reason.
fn stopped(container: &Value) -> Option<String> {
    let waiting = &container["state"]["waiting"];
    let is_starting = |reason: &&str| matches!(*reason, "ContainerCreating" | "PodInitializing");
    let waits = waiting["reason"].as_str().filter(|reason| !is_starting(reason));
    let waits = waits.map(|_| explain(waiting, "a container waits"));
    let ended = ended(container, "state").or_else(|| ended(container, "lastState"));
    match (waits, ended) {
        (Some(waits), Some(ended)) => Some(format!("{waits}; {ended}")),
        (waits, ended) => waits.or(ended.filter(|_| container["state"]["running"].is_null())),
    }
}

/// Returns how a container ended, if that was an error.
fn ended(container: &Value, state: &str) -> Option<String> {
    let terminated = &container[state]["terminated"];
    let code = terminated["exitCode"].as_i64().filter(|code| *code != 0)?;
    let name = container["name"].as_str().unwrap_or_default();
    let reason = terminated["reason"].as_str().unwrap_or("no reason");
    let message = terminated["message"].as_str().map_or("", str::trim);
    let colon = if message.is_empty() { "" } else { ": " };
    Some(format!(
        "container {name} has ended with exit code {code} ({reason}){colon}{message}"
    ))
}

/// A kubelet gives a reason. The node controller, which speaks for a kubelet that is silent, gives none.
fn lost(spec: &Value, status: &Status<'_>, ready: &Value) -> Option<String> {
    let node = spec["nodeName"].as_str()?;
    let is_lost = ready["reason"].is_null() && containers(status).any(|container| container["ready"] == true);
    is_lost.then(|| format!("its node {node} does not report: the node, or its kubelet, may be lost"))
}

fn autoscaler(status: &Status<'_>) -> Option<String> {
    let unable = status.condition_with("AbleToScale", "False")?;
    Some(explain(unable, "it is not able to scale"))
}

fn definition(status: &Status<'_>) -> Option<String> {
    if status.condition_with("Established", "True").is_some() {
        return None;
    }
    let refused = status.condition_with("NamesAccepted", "False");
    let refused = refused.unwrap_or(&Value::Null);
    Some(explain(refused, "it is not established yet"))
}

fn claim(status: &Status<'_>) -> Option<String> {
    const PENDING: &str = "Pending";
    let phase = status.0["phase"].as_str().unwrap_or(PENDING);
    (phase != "Bound").then(|| format!("its phase is {phase}, not Bound"))
}

fn service(spec: &Value, status: &Status<'_>) -> Option<String> {
    let ingress = status.0["loadBalancer"]["ingress"].as_array();
    let waits = spec["type"] == "LoadBalancer" && ingress.is_none_or(Vec::is_empty);
    waits.then(|| "it has no load balancer yet".to_owned())
}

fn conditions(status: &Status<'_>) -> Option<String> {
    for type_ in ["Stalled", "Reconciling"] {
        if let Some(condition) = status.condition_with(type_, "True") {
            return Some(explain(condition, type_));
        }
    }
    let ready = status.condition("Ready")?;
    (ready["status"] != "True").then(|| explain(ready, "it is not ready"))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        object: DynamicObject,
        unready: Option<String>,
    }

    #[test]
    fn what_comes_after_a_job_waits_until_it_has_completed() {
        let job = |status: Value| -> DynamicObject {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "a" }, "status": status,
            }))
            .unwrap()
        };
        let running = serde_json::json!({ "startTime": "2026-01-01T00:00:00Z" });
        assert_eq!(unready(&job(running.clone())), None);
        let expected = Some("it has not completed");
        assert_eq!(unfinished(&job(running), true).as_deref(), expected);
        let mut suspended = job(Value::Null);
        suspended.data["spec"] = serde_json::json!({ "suspend": true });
        assert_eq!(unready(&suspended), None);
        assert_eq!(unfinished(&suspended, true).as_deref(), Some("it is suspended"));
        let complete = serde_json::json!({ "conditions": [{ "type": "Complete", "status": "True" }] });
        assert_eq!(unfinished(&job(complete), true), None);
    }

    #[test]
    fn what_comes_after_a_custom_resource_waits_for_its_status_and_after_a_claim_for_nothing() {
        let object = |kind: &str, status: Value| -> DynamicObject {
            serde_json::from_value(serde_json::json!({
                "apiVersion": if kind == "Database" { "example.com/v1" } else { "v1" },
                "kind": kind, "metadata": { "name": "a" }, "status": status,
            }))
            .unwrap()
        };
        let new = object("Database", Value::Null);
        let expected = Some("its controller has not written a status yet");
        assert_eq!(unfinished(&new, true).as_deref(), expected);
        assert_eq!(unfinished(&new, false), None);
        assert_eq!(unfinished(&object("ConfigMap", Value::Null), false), None);
        let pending = serde_json::json!({ "phase": "Pending" });
        assert_eq!(unfinished(&object("PersistentVolumeClaim", pending), true), None);
    }

    #[test]
    fn each_kind_is_judged_by_its_own_rules() {
        // A test of the SDK reads the same cases.
        let cases = include_str!("../../../tests/fixtures/readiness.json");
        for Case {
            object,
            unready: expected,
        } in serde_json::from_str::<Vec<Case>>(cases).unwrap()
        {
            assert_eq!(unready(&object), expected, "{object:?}");
        }
    }
}
