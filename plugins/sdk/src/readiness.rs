//! Whether an object does what its spec asks for, by the rules of kstatus. The host derives the condition `Ready` of a
//! parent by the same rules.

use serde_json::Value;

use crate::kinds::POD;
use crate::object::Object;

impl Object {
    /// Reports whether the object is ready according to its own controller or kubelet.
    ///
    /// The rules are those of kstatus. For example, a Deployment is ready when every replica is updated and available, a
    /// Pod by its condition `Ready`, a claim when it is bound. A kind without rules of its own is ready unless its
    /// conditions `Ready`, `Reconciling` or `Stalled` contradict. An object that is being deleted, or whose controller
    /// has not seen the current spec, is not ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        if self.is_terminating() || self.is_before_spec(self.number(&["status", "observedGeneration"])) {
            return false;
        }
        match (self.group(), self.kind()) {
            ("apps", "Deployment") => self.deployment_is_ready(),
            ("apps", "StatefulSet") => self.stateful_set_is_ready(),
            ("apps", "DaemonSet") => self.daemon_set_is_ready(),
            ("apps", "ReplicaSet") | ("", "ReplicationController") => self.replica_set_is_ready(),
            ("batch", "Job") => self.job_is_ready(),
            ("autoscaling", "HorizontalPodAutoscaler") => !self.has_condition("AbleToScale", "False"),
            ("apiextensions.k8s.io", "CustomResourceDefinition") => self.has_condition("Established", "True"),
            ("", "Pod") => self.is_ready_pod(),
            ("", "PersistentVolumeClaim") => self.string(&["status", "phase"]) == Some("Bound"),
            ("", "Service") => self.service_is_ready(),
            _ => self.conditions_are_ready(),
        }
    }

    /// Reports whether this is a Pod that is ready, as [`Self::is_ready`] does. A plugin whose only workloads are Pods
    /// is smaller without the rules for other kinds.
    #[must_use]
    pub fn is_ready_pod(&self) -> bool {
        self.is(POD)
            && !self.is_terminating()
            && match self.string(&["status", "phase"]) {
                Some("Succeeded") => {
                    let restarts = self.string(&["spec", "restartPolicy"]);
                    matches!(restarts, Some("OnFailure" | "Never"))
                }
                Some("Failed") => false,
                _ => self.has_condition("Ready", "True"),
            }
    }

    /// Reports whether a controller that has observed this generation has not seen the current spec.
    fn is_before_spec(&self, observed: Option<i64>) -> bool {
        observed.is_some_and(|observed| observed < self.number(&["metadata", "generation"]).unwrap_or(0))
    }

    fn group(&self) -> &str {
        self.api_version().split_once('/').map_or("", |(group, _)| group)
    }

    /// Returns a count of the status; absent means zero.
    fn count(&self, field: &str) -> i64 {
        self.number(&["status", field]).unwrap_or(0)
    }

    fn wanted_replicas(&self) -> i64 {
        self.number(&["spec", "replicas"]).unwrap_or(1)
    }

    fn has_condition(&self, type_: &str, status: &str) -> bool {
        self.condition_status(type_) == Some(status)
    }

    fn deployment_is_ready(&self) -> bool {
        let (wanted, updated) = (self.wanted_replicas(), self.count("updatedReplicas"));
        !self.has_condition("Progressing", "False")
            && updated >= wanted
            // Pods of an earlier version that still run are not replaced yet.
            && self.count("replicas") <= updated
            && self.count("availableReplicas") >= wanted
            && self.count("readyReplicas") >= wanted
    }

    fn stateful_set_is_ready(&self) -> bool {
        let wanted = self.wanted_replicas();
        let replaced_by_owner = self.string(&["spec", "updateStrategy", "type"]) == Some("OnDelete");
        let partition = self
            .number(&["spec", "updateStrategy", "rollingUpdate", "partition"])
            .unwrap_or(0);
        let revision = |field| self.string(&["status", field]);
        self.count("readyReplicas") >= wanted
            && self.count("replicas") <= wanted
            && (replaced_by_owner
                || self.count("updatedReplicas") >= wanted - partition
                || revision("updateRevision") == revision("currentRevision"))
    }

    fn daemon_set_is_ready(&self) -> bool {
        let Some(nodes) = self.number(&["status", "desiredNumberScheduled"]) else {
            return false;
        };
        let replaced_by_owner = self.string(&["spec", "updateStrategy", "type"]) == Some("OnDelete");
        let all = |field| self.count(field) >= nodes;
        all("currentNumberScheduled")
            && (replaced_by_owner || all("updatedNumberScheduled"))
            && all("numberAvailable")
            && all("numberReady")
    }

    fn replica_set_is_ready(&self) -> bool {
        let wanted = self.wanted_replicas();
        !self.has_condition("ReplicaFailure", "True")
            && self.count("readyReplicas") >= wanted
            && self.count("availableReplicas") >= wanted
    }

    fn job_is_ready(&self) -> bool {
        // A suspended one does what its spec asks for.
        let has_started = self.get("/spec/suspend") == Some(&Value::Bool(true))
            || self.string(&["status", "startTime"]).is_some()
            || self.has_condition("Complete", "True");
        has_started && !self.has_condition("Failed", "True")
    }

    fn service_is_ready(&self) -> bool {
        self.string(&["spec", "type"]) != Some("LoadBalancer")
            || self.get("/status/loadBalancer/ingress/0").is_some()
    }

    fn conditions_are_ready(&self) -> bool {
        let conditions = self.get("/status/conditions").and_then(Value::as_array);
        let mut conditions = conditions.into_iter().flatten();
        let ready = conditions.find(|condition| condition["type"] == "Ready");
        // Where the status has conditions only, each says for itself which spec it is about.
        ready.is_none_or(|ready| {
            ready["status"] == "True" && !self.is_before_spec(ready["observedGeneration"].as_i64())
        }) && !self.has_condition("Reconciling", "True")
            && !self.has_condition("Stalled", "True")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_judged_as_the_host_judges_it() {
        let cases: Vec<Value> =
            serde_json::from_str(include_str!("../../../tests/fixtures/readiness.json")).unwrap();
        for case in cases {
            let expected = case["unready"].is_null();
            let object = Object::from_text(case["object"].to_string());
            assert_eq!(object.is_ready(), expected, "{case}");
            if object.is(POD) {
                assert_eq!(object.is_ready_pod(), expected, "{case}");
            }
        }
    }
}
