//! HorizontalPodAutoscaler and PodDisruptionBudget.

use serde_json::{Value, json};

use super::{add_labels, builder, object, push};
use crate::kinds::{HORIZONTAL_POD_AUTOSCALER, Kind, POD_DISRUPTION_BUDGET};
use crate::labels::Labels;

builder! {
    /// A HorizontalPodAutoscaler (`autoscaling/v2`).
    HorizontalPodAutoscaler
}

impl HorizontalPodAutoscaler {
    /// Creates an autoscaler for an object with the subresource `scale`, such as a Deployment, with up to this many
    /// replicas. Leave `replicas` out of the object itself.
    pub fn new(name: impl Into<String>, kind: Kind, target: impl Into<String>, max: impl Into<i64>) -> Self {
        let target = json!({ "apiVersion": kind.api_version, "kind": kind.kind, "name": target.into() });
        Self(object(HORIZONTAL_POD_AUTOSCALER, name.into()))
            .with(&["spec", "scaleTargetRef"], target)
            .with(&["spec", "maxReplicas"], max.into().into())
    }

    /// Sets the least number of replicas. The default is 1.
    pub fn min(self, replicas: impl Into<i64>) -> Self {
        self.with(&["spec", "minReplicas"], replicas.into().into())
    }

    /// Aims at this average use of processor time, in percent of what the pods request.
    pub fn cpu(self, percent: impl Into<i64>) -> Self {
        self.utilization("cpu", percent.into())
    }

    /// Aims at this average use of memory, in percent of what the pods request.
    pub fn memory(self, percent: impl Into<i64>) -> Self {
        self.utilization("memory", percent.into())
    }

    fn utilization(mut self, resource: &str, percent: i64) -> Self {
        let target = json!({ "type": "Utilization", "averageUtilization": percent });
        let metric = json!({ "type": "Resource", "resource": { "name": resource, "target": target } });
        push(&mut self.0, &["spec", "metrics"], metric);
        self
    }
}

builder! {
    /// A PodDisruptionBudget.
    PodDisruptionBudget
}

impl PodDisruptionBudget {
    /// Creates a budget for the pods with these labels: set one of its two limits.
    pub fn new(name: impl Into<String>, pods: &Labels) -> Self {
        let mut budget = object(POD_DISRUPTION_BUDGET, name.into());
        add_labels(&mut budget, &["spec", "selector", "matchLabels"], pods);
        Self(budget)
    }

    /// Requires so many pods to stay, as a number or a text such as `50%`.
    pub fn min_available(self, pods: impl Into<Value>) -> Self {
        self.with(&["spec", "minAvailable"], pods.into())
    }

    /// Allows so many pods to be missing, as a number or a text such as `50%`.
    pub fn max_unavailable(self, pods: impl Into<Value>) -> Self {
        self.with(&["spec", "maxUnavailable"], pods.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_takes_numbers_and_percentages() {
        let budget = PodDisruptionBudget::new("web", &Labels::new("app", "web"));
        let spec = |budget| Value::from(budget)["spec"].take();
        let selector = json!({ "matchLabels": { "app": "web" } });
        let expected = json!({ "selector": selector, "minAvailable": 1 });
        assert_eq!(spec(budget.clone().min_available(1)), expected);
        let expected = json!({ "selector": selector, "maxUnavailable": "50%" });
        assert_eq!(spec(budget.max_unavailable("50%")), expected);
    }
}
