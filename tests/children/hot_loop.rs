//! What is removed, fails or is rewritten again and again backs off, and the parent says so.

use crate::samples::echo::{CONTROLLER, echo};
use crate::support::prelude::*;

/// How long the adversary of a test goes on. A loop makes hundreds of writes in that time.
const TIME: Duration = Duration::from_secs(12);

/// Returns how many writes of this kind, such as `puppets/status`, the hosts of a scenario have made.
async fn writes(scenario: &Scenario, resource: &str, verb: &str) -> usize {
    let did = scenario.writes_to(resource).await;
    did.iter().filter(|did| did.starts_with(verb)).count()
}

/// Regression: 583 pods in 20 s, and the parent was in sync all the while.
#[tokio::test]
async fn a_pod_that_fails_as_soon_as_it_exists_is_recreated_less_and_less_often() {
    let scenario = Scenario::new("hot-pods").await;
    let _host = scenario.start(CONTROLLER);
    scenario.apply(&echo(1)).await;
    let pods = scenario.api("v1/Pod");
    let rejected = Patch::Merge(json!({ "status": { "phase": "Failed", "reason": "OutOfcpu" } }));
    let start = Instant::now();
    while start.elapsed() < TIME {
        for pod in pods.list(&ListParams::default()).await.unwrap() {
            if pod.data["status"]["phase"] == "Pending" {
                let name = pod.metadata.name.unwrap();
                // It may be deleted meanwhile.
                drop(pods.patch_status(&name, &PatchParams::default(), &rejected).await);
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let created = writes(&scenario, "pods", "patch").await;
    assert!((5..12).contains(&created), "{created} pods");
    let statuses = writes(&scenario, "echoes", "patch").await;
    assert!(statuses < 25, "{statuses} writes of the status");
    let echo = scenario
        .until("my-operator.dev/v1/Echo", "e", "backing off", |echo| {
            condition(echo, "Synced").is_some_and(|synced| synced["reason"] == "BackOff")
        })
        .await;
    let message = condition(&echo, "Reconciling").unwrap()["message"]
        .as_str()
        .unwrap();
    let words = "Pod hot-pods/e-pod-0 … Failed (OutOfcpu) … creates it again after";
    assert_contains(message, words);
    scenario.until_event("e", "Warning BackOff: OutOfcpu").await;
}

/// Regression: 763 Jobs in 20 s.
#[tokio::test]
async fn a_child_that_others_delete_backs_off_and_two_hundred_that_vanish_at_once_do_not() {
    let (scenario, host) = puppets("hot-deletes", "").await;
    let many: Vec<Value> = (0..100)
        .map(|number| config_map(&format!("m{number}"), "a"))
        .collect();
    scenario.ready_wants("p", &many).await;
    let maps = scenario.api(CONFIG_MAP);
    let labelled = ListParams::default().labels("operator-host.dev/controller=puppet");
    maps.delete_collection(&DeleteParams::default(), &labelled)
        .await
        .unwrap();
    eventually("all are there again", async || {
        let count = maps.list_metadata(&labelled).await.unwrap().items.len();
        (count >= 100).then_some(()).ok_or_else(|| count.to_string())
    })
    .await;
    let puppet = scenario.until_ready("p").await;
    assert!(is_true(&puppet, "Synced"));

    let before = writes(&scenario, "configmaps", "patch").await;
    let start = Instant::now();
    while start.elapsed() < TIME {
        drop(maps.delete("m0", &DeleteParams::default()).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let created = writes(&scenario, "configmaps", "patch").await - before;
    assert!((4..15).contains(&created), "{created} ConfigMaps");
    let says = "Reconciling=True BackOff: ConfigMap hot-deletes/m0 … it was deleted";
    scenario.until_told("p", says).await;
    // A change of the spec is applied at once.
    scenario.ready_wants("p", &[config_map("m0", "b")]).await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Starts a controller that writes its condition into the status, as one list with `others`, whenever it is missing. Returns
/// how often it did after a while.
async fn rival(scenario: &Scenario, is_content: fn(&Value) -> bool) -> usize {
    let puppets = scenario.api(PUPPET);
    let backed = json!({ "type": "Backed", "status": "True", "reason": "A", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let patch = Patch::Merge(json!({ "status": { "conditions": [backed] } }));
    let params = PatchParams::apply("backup");
    let (start, mut writes) = (Instant::now(), 0);
    while start.elapsed() < TIME {
        if !is_content(&puppets.get("p").await.unwrap().data["status"]["conditions"]) {
            puppets.patch_status("p", &params, &patch).await.unwrap();
            writes += 1;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    writes
}

/// Regression: 341 writes of the status by each of the two in 20 s.
#[tokio::test]
async fn two_writers_of_one_list_of_conditions_do_not_spin() {
    let (scenario, _host) = puppets("hot-status", "").await;
    scenario.ready_wants("p", &[config_map("a", "a")]).await;
    // One that wants its own condition to be there.
    let has_own = |conditions: &Value| {
        conditions
            .as_array()
            .is_some_and(|all| all.iter().any(|condition| condition["type"] == "Backed"))
    };
    let writes_of_rival = rival(&scenario, has_own).await;
    assert!((1..5).contains(&writes_of_rival), "{writes_of_rival} writes");
    let puppet = scenario.until_ready("p").await;
    assert!(is_true(&puppet, "Backed"));
    // One that wants no other.
    let before = writes(&scenario, "puppets", "patch").await;
    let alone = |conditions: &Value| conditions.as_array().is_some_and(|all| all.len() == 1);
    let writes_of_rival = rival(&scenario, alone).await;
    let of_host = writes(&scenario, "puppets", "patch").await - before;
    assert!(
        writes_of_rival < 12 && of_host < 12,
        "{writes_of_rival} and {of_host} writes"
    );
    scenario
        .until_event("p", "Warning BackOff: the status was changed back")
        .await;
}
