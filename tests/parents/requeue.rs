//! When a resource is reconciled again: pause, requeue, failures that wait for a change and failures that are
//! retried.

use crate::support::prelude::*;
use jiff::Timestamp;

#[tokio::test]
async fn a_paused_resource_and_its_children_are_left_alone_until_the_annotation_goes() {
    let (scenario, _host) = puppets("pause", "").await;
    let spec =
        |text: &str| json!({"response": {"children": [config_map("a", text)], "status": {"note": text}}});
    scenario.ready_with("p", spec("1")).await;
    scenario.pause("p").await;
    let puppet = scenario
        .until(PUPPET, "p", "Paused", |p| is_true(p, "Paused"))
        .await;
    assert!(is_true(&puppet, "Ready"), "what it was stays");

    scenario.puppet("p", spec("2")).await;
    let drifted = scenario.edit_text("a", "user").await;
    // The `Paused` condition is of the new generation; everything else is of the previous one.
    let generation = |of: &serde_json::Value| of["observedGeneration"].as_i64();
    let seen = |p: &DynamicObject| {
        condition(p, "Paused").is_some_and(|paused| generation(paused) == p.metadata.generation)
    };
    let puppet = scenario.until(PUPPET, "p", "looked at", seen).await;
    assert_eq!(puppet.data["status"]["note"], "1");
    assert!(generation(&puppet.data["status"]) < puppet.metadata.generation);
    assert!(generation(condition(&puppet, "Ready").unwrap()) < puppet.metadata.generation);
    assert_eq!(
        Some(scenario.version(CONFIG_MAP, "a").await),
        drifted.metadata.resource_version
    );

    let resumed = Value::Null;
    scenario
        .annotate(PUPPET, "p", "operator-host.dev/paused", resumed)
        .await;
    scenario.until_text("a", "2").await;
    let puppet = scenario
        .until(PUPPET, "p", "not paused", |p| condition(p, "Paused").is_none())
        .await;
    assert_eq!(puppet.data["status"]["note"], "2");
}

#[tokio::test]
async fn a_resource_is_reconciled_at_the_time_that_the_plugin_asks_for_and_not_again_and_again() {
    for (form, file) in FORMS {
        let scenario = Scenario::new(&format!("requeue-at-{form}")).await;
        let host = scenario.start(&controller(file, ""));
        // The host has started and compiled the plugin.
        scenario.ready_with("p", json!({"response": {}})).await;
        let parent = format!("{}/p", scenario.namespace);
        let before = host.reconciles(&parent);
        let at = Timestamp::now().round(jiff::Unit::Second).unwrap() + Duration::from_secs(4);
        scenario
            .puppet(
                "p",
                json!({"response": {"requeueAt": at.to_string(), "status": {"note": "$now"}}}),
            )
            .await;
        let seen = |puppet: &DynamicObject| puppet.data["status"]["note"].as_str()?.parse().ok();
        let due = |puppet: &DynamicObject| seen(puppet).is_some_and(|seen: Timestamp| seen >= at);
        let puppet = scenario.until(PUPPET, "p", "reconciled at the time", due).await;
        let late = seen(&puppet).unwrap().duration_since(at);
        assert!(late.as_secs() < 30, "{late:?} late");
        // The clock in the status causes no further reconcile, and the time that has passed neither.
        let other = format!("{}/q", scenario.namespace);
        scenario
            .puppet("q", json!({"response": {"requeueAfterMs": 200}}))
            .await;
        host.until_reconciles(&other, 8).await;
        let after = host.reconciles(&parent) - before;
        assert!((1..=3).contains(&after), "{after} reconciles");
        // What is no time is an answer that cannot be read.
        scenario
            .puppet("r", json!({"response": {"requeueAt": "noon"}}))
            .await;
        scenario.until_stalled("r", "PluginAnswerInvalid").await;
    }
}

/// Waits for five reconciles of a parent with an initial back-off of 100 ms, and asserts that the delays grow.
async fn delays_grow(host: &Host, parent: &str) {
    host.until_reconciles(parent, 2).await;
    let early = host.until_reconciles(parent, 3).await;
    host.until_reconciles(parent, 4).await;
    // 800 ms, minus at most a quarter.
    let late = host.until_reconciles(parent, 5).await;
    assert!(
        late > early && late >= Duration::from_millis(500),
        "{early:?}, {late:?}"
    );
}

#[tokio::test]
async fn a_retry_is_no_warning_and_its_delay_grows_unless_the_plugin_gives_one_and_a_requeue_comes_again_and_again()
 {
    let scenario = Scenario::new("retry").await;
    let more = "backoff: {initial: 100ms, max: 10s}";
    let host = scenario.start(&controller("puppet.wasm", more));
    scenario
        .puppet("p", json!({"failure": {"retry": {"message": "no leader yet"}}}))
        .await;
    let message = scenario.until_told("p", "Reconciling=True Retrying").await;
    assert_eq!(message, "no leader yet");
    delays_grow(&host, "retry/p").await;
    let puppet = scenario.ready_with("p", json!({"response": {}})).await;
    assert!(condition(&puppet, "Reconciling").is_none());

    // After a success the back-off restarts; here the plugin sets the delay.
    scenario
        .puppet(
            "q",
            json!({"failure": {"retry": {"message": "m", "afterMs": 50}}}),
        )
        .await;
    let took = host.until_reconciles("retry/q", 8).await;
    assert!(took < Duration::from_secs(5), "{took:?}");

    let again = json!({"response": {"requeueAfterMs": 300, "status": {"note": "n"}}});
    scenario.puppet("r", again).await;
    host.until_reconciles("retry/r", 1).await;
    let took = host.until_reconciles("retry/r", 5).await;
    // There are at least three full delays between the first and the fifth reconcile.
    assert!(took >= Duration::from_millis(800), "{took:?}");
    let events = scenario.events().await;
    assert!(events.iter().all(|event| event.data["type"] != "Warning"));
}

#[tokio::test]
async fn a_reconcile_is_one_event_and_the_plugin_adds_its_own_events_and_conditions() {
    let (scenario, _host) = puppets("events", "").await;
    let spec = |children: &[serde_json::Value]| {
        json!({"response": {
            "children": children,
            "events": [{"type": "Warning", "reason": "Tight", "message": "little room is left"}],
            "conditions": [
                {"type": "Ready", "status": "False", "reason": "RollingOut", "message": "1 of 3"},
                {"type": "Backed", "status": "Unknown", "reason": "NeverTried", "message": "no backup yet"},
                {"type": "Stalled", "status": "True", "reason": "Forged", "message": "the host's to say"},
            ],
        }})
    };
    scenario
        .puppet("p", spec(&[config_map("a", "1"), config_map("b", "1")]))
        .await;
    scenario.until_told("p", "Ready=False RollingOut").await;
    scenario.until_told("p", "Backed=Unknown NeverTried").await;
    let puppet = scenario.get(PUPPET, "p").await.unwrap();
    assert!(condition(&puppet, "Stalled").is_none(), "{puppet:?}");
    let expected = "little room is left";
    assert_eq!(scenario.until_event("p", "Warning Tight").await, expected);
    let changed = async |note: &str| {
        scenario
            .until_event("p", &format!("Normal ChildrenChanged: {note}"))
            .await
    };
    changed("created ConfigMap a, ConfigMap b").await;
    scenario
        .puppet("p", spec(&[config_map("b", "2"), config_map("c", "1")]))
        .await;
    changed("created ConfigMap c; updated ConfigMap b; deleted ConfigMap a").await;
    let events = scenario.events().await;
    // Each contains the plugin version that it comes from.
    let child = scenario.get(CONFIG_MAP, "b").await.unwrap();
    let digest = "operator-host.dev/plugin-digest";
    let made = &child.metadata.annotations.as_ref().unwrap()["operator-host.dev/provenance"];
    let is_from_it = |event: &DynamicObject| {
        let digest = event
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(digest));
        digest.is_some_and(|digest| made.contains(&format!(" digest={digest} ")))
    };
    assert!(events.iter().all(is_from_it), "{made}: {events:#?}");
    let of_changes = events
        .iter()
        .filter(|event| event.data["reason"] == "ChildrenChanged");
    assert_eq!(of_changes.count(), 2);
}
