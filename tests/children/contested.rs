//! Another client keeps changing back what the host applies.

use crate::support::prelude::*;
use tokio::task::JoinHandle;

use crate::telemetry::get;

/// Starts a controller that wants another text in a ConfigMap; `null` if it removes the field.
fn rival(scenario: &Scenario, name: &'static str, text: Value) -> JoinHandle<()> {
    let patch = json!({ "data": { "text": text } });
    rival_with(scenario, name, patch, move |map| map.data["data"]["text"] == text)
}

/// Starts one that applies this patch unless the ConfigMap is as it wants. It looks at the ConfigMap every few milliseconds, as a
/// watch would.
fn rival_with(
    scenario: &Scenario,
    name: &'static str,
    patch: Value,
    is_content: impl Fn(&DynamicObject) -> bool + Send + Sync + 'static,
) -> JoinHandle<()> {
    let api = scenario.api(CONFIG_MAP);
    tokio::spawn(async move {
        let (rival, patch) = (PatchParams::apply("rival"), Patch::Merge(patch));
        loop {
            if !is_content(&api.get(name).await.expect("the ConfigMap")) {
                api.patch(name, &rival, &patch).await.expect("the patch is taken");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
}

#[tokio::test]
async fn who_keeps_changing_a_field_back_is_named_and_the_two_do_not_spin() {
    let (scenario, host) = puppets("contested", "").await;
    let children = [config_map("a", "plugin"), config_map("b", "plugin")];
    scenario.ready_wants("p", &children).await;

    let rival = rival(&scenario, "a", json!("rival"));
    let says = "Contested=True FieldContested: ConfigMap contested/a … \"rival\" … data.text … \
         at most once in 5s";
    scenario.until_told("p", says).await;
    scenario
        .until_event("p", "Warning FieldContested: data.text")
        .await;
    let puppet = scenario.get(PUPPET, "p").await.unwrap();
    for type_ in ["Synced", "Ready"] {
        let shown = condition(&puppet, type_).unwrap();
        assert_eq!([&shown["status"], &shown["reason"]], ["False", "FieldContested"]);
    }
    let metrics = get(&host, "/metrics").await.1;
    let words = "operator_host_children_contested{controller=\"puppet\"} 1";
    assert_contains(&metrics, words);

    // The other child is corrected at once all the while.
    let start = Instant::now();
    scenario.edit_text("b", "user").await;
    scenario.until_text("b", "plugin").await;
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());

    let says = "Contested=True FieldContested: back 6 times … once in 10s";
    scenario.until_told("p", says).await;
    let puppet = scenario.get(PUPPET, "p").await.unwrap();
    assert!(condition(&puppet, "Stalled").is_none());

    rival.abort();
    scenario.until_text("a", "plugin").await;
    let puppet = scenario
        .until(PUPPET, "p", "no longer contested", |puppet| {
            condition(puppet, "Contested").is_none() && is_true(puppet, "Synced")
        })
        .await;
    assert!(is_true(&puppet, "Ready"));
    scenario
        .until_event("p", "Normal ContestEnded: data.text is no longer changed back")
        .await;
    let metrics = get(&host, "/metrics").await.1;
    let words = "operator_host_children_contested{controller=\"puppet\"} 0";
    assert_contains(&metrics, words);
}

/// Regression: a contest without an apply never ended, and its gauge stayed.
#[tokio::test]
async fn a_client_that_removes_a_field_is_not_named_and_a_pause_ends_the_contest() {
    let (scenario, host) = puppets("contested-pause", "").await;
    let children = [config_map("a", "plugin")];
    scenario.ready_wants("p", &children).await;
    let rival = rival(&scenario, "a", Value::Null);
    let message = scenario.until_told("p", "Contested=True FieldContested").await;
    // A client that owns nothing is not in `managedFields`.
    assert_contains(&message, "the last time data.text by another client");
    scenario.pause("p").await;
    scenario
        .until(PUPPET, "p", "paused and no longer contested", |puppet| {
            is_true(puppet, "Paused")
                && condition(puppet, "Contested").is_none()
                && condition(puppet, "Synced").is_none()
        })
        .await;
    let metrics = get(&host, "/metrics").await.1;
    let words = "operator_host_children_contested{controller=\"puppet\"} 0";
    assert_contains(&metrics, words);
    rival.abort();
}

/// Regression: the host did not notice a client that removed what the host recognizes its children by.
#[tokio::test]
async fn a_client_that_removes_the_marks_of_the_host_is_noticed() {
    let (scenario, _host) = puppets("contested-marks", "").await;
    let children = [
        config_map("a", "plugin"),
        config_map("b", "plugin"),
        config_map("c", "plugin"),
    ];
    scenario.ready_wants("p", &children).await;
    let none = |map: &DynamicObject| map.metadata.annotations.is_none();
    let annotations = json!({ "metadata": { "annotations": null } });
    let no_label = |map: &DynamicObject| !map.labels().contains_key("operator-host.dev/controller");
    let label = json!({ "metadata": { "labels": { "operator-host.dev/controller": null } } });
    let is_junk = |map: &DynamicObject| {
        map.annotations()
            .get("operator-host.dev/applied")
            .is_some_and(|it| it == "junk")
    };
    let junk = json!({ "metadata": { "annotations": {
        "operator-host.dev/applied": "junk", "operator-host.dev/provenance": null,
    } } });
    let _rivals = [
        rival_with(&scenario, "a", annotations, none),
        rival_with(&scenario, "b", label, no_label),
        rival_with(&scenario, "c", junk, is_junk),
    ];
    let says = "Contested=True FieldContested: /a was … /b was … /c was";
    scenario.until_told("p", says).await;
}
