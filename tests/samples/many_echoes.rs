//! Many Echo resources at once, and the check that each has exactly the expected pods.

use crate::support::prelude::*;
use std::collections::BTreeMap;

use control_plane::AuditEvent;
use futures::StreamExt;

pub const ECHO: &str = "my-operator.dev/v1/Echo";
pub const POD: &str = "v1/Pod";

/// Creates or changes one resource.
pub async fn apply(scenario: &Scenario, name: &str, replicas: usize) {
    let body = json!({
        "apiVersion": "my-operator.dev/v1", "kind": "Echo", "metadata": { "name": name },
        "spec": { "replicas": replicas, "image": "echo:1" },
    });
    let params = PatchParams::apply("user").force();
    let api = scenario.api(ECHO);
    api.patch(name, &params, &Patch::Apply(&body))
        .await
        .expect("an Echo");
}

/// Applies the resources `<prefix>0` and so on, ten at a time.
pub async fn apply_many(scenario: &Scenario, prefix: &str, count: usize, replicas: usize) {
    let names: Vec<_> = (0..count).map(|i| format!("{prefix}{i}")).collect();
    futures::stream::iter(&names)
        .for_each_concurrent(10, |name| apply(scenario, name, replicas))
        .await;
}

/// Waits until there are at least this many pods.
pub async fn until_pods(scenario: &Scenario, count: usize) {
    wait(scenario, &format!("{count} pods"), async || {
        let found = scenario.names(POD).await.len();
        (found < count).then(|| format!("{found} pods"))
    })
    .await;
}

/// Waits until every Echo has exactly the pods of its spec, owned by it, and a matching status, and nothing else
/// exists. None may have had a Warning.
pub async fn until_exact(scenario: &Scenario) {
    wait(scenario, "every Echo has exactly its pods", async || {
        first_fault(scenario).await
    })
    .await;
    let events = scenario.api("events.k8s.io/v1/Event");
    let events = events.list(&ListParams::default()).await.expect("Events");
    let warnings: Vec<_> = events
        .iter()
        .filter(|event| event.data["type"] == "Warning")
        .map(|event| &event.data["note"])
        .collect();
    assert!(warnings.is_empty(), "{warnings:#?}");
}

/// Waits until the Echo `e` is ready, and nothing is wrong any more.
pub async fn until_recovered(scenario: &Scenario) {
    scenario
        .until(ECHO, "e", "recovered", |e| {
            e.data["status"]["isReady"] == true && condition(e, "Reconciling").is_none()
        })
        .await;
}

pub async fn wait(scenario: &Scenario, what: &str, fault: impl AsyncFn() -> Option<String>) {
    eventually(what, async || match fault().await {
        None => Ok(()),
        Some(fault) => Err(format!(
            "{}: {fault}\n{}",
            scenario.namespace,
            scenario.log_tail()
        )),
    })
    .await;
}

async fn first_fault(scenario: &Scenario) -> Option<String> {
    let all = ListParams::default();
    let echoes = scenario.api(ECHO).list(&all).await.expect("the Echos");
    let pods = scenario.api(POD).list(&all).await.expect("the pods");
    let mut pods: BTreeMap<_, _> = pods.iter().map(|pod| (pod.name_any(), pod)).collect();
    for echo in &echoes {
        let name = echo.name_any();
        let replicas = echo.data["spec"]["replicas"].as_u64().unwrap();
        for i in 0..replicas {
            let pod = format!("{name}-pod-{i}");
            match pods.remove(&pod) {
                None => return Some(format!("{pod} is missing")),
                Some(found)
                    if found.owner_references().first().map(|o| &o.uid) != echo.metadata.uid.as_ref() =>
                {
                    return Some(format!("{pod} belongs to somebody else"));
                }
                Some(_) => {}
            }
        }
        if let Some(fault) = status_fault(echo, replicas) {
            return Some(format!("{name}: {fault}: {}", echo.data["status"]));
        }
    }
    pods.keys().next().map(|pod| format!("{pod} is left over"))
}

fn status_fault(echo: &DynamicObject, replicas: u64) -> Option<&'static str> {
    let status = &echo.data["status"];
    if status["currentReplicas"] != replicas || status["isReady"] != true {
        Some("not ready")
    } else if status["observedGeneration"] != echo.metadata.generation.unwrap() {
        Some("the status is of an older generation")
    } else if condition(echo, "Ready").is_none_or(|ready| ready["status"] != "True") {
        Some("the condition is not true")
    } else if condition(echo, "Stalled")
        .or(condition(echo, "Reconciling"))
        .is_some()
    {
        Some("it has a complaint")
    } else {
        None
    }
}

/// Returns how often each pod was created, from the audit log: more than once is one too many.
pub fn creations(writes: &[AuditEvent]) -> BTreeMap<String, usize> {
    let mut created = BTreeMap::new();
    for write in writes {
        let object = write.object_ref.clone().unwrap_or_default();
        if object.resource == "pods" && write.response_status.as_ref().is_some_and(|s| s.code == 201) {
            *created.entry(object.name).or_default() += 1;
        }
    }
    created
}

/// What the host says of the budget that MySQL may have, at an API server before Kubernetes 1.21.
pub const BUDGET_NOT_SERVED: &str = "does not serve the kind policy/v1/PodDisruptionBudget";

/// Returns the lines of a host's log above the level INFO.
pub fn complaints(host: &Host) -> Vec<String> {
    let log = host.log();
    log.lines()
        .filter(|line| line.contains("\"level\":\"WARN\"") || line.contains("\"level\":\"ERROR\""))
        .map(str::to_owned)
        .collect()
}
