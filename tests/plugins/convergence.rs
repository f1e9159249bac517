//! Plugins that are called several times in a reconcile, and answers that only the API server can reject.

use crate::support::prelude::*;

/// Regression: after four iterations the plugin was reported to change its answer each time.
#[tokio::test]
async fn children_that_need_each_other_are_created_in_one_reconcile_and_a_plugin_that_does_not_settle_is_stopped()
 {
    let (scenario, host) = puppets("unsettled", "").await;
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let spec = json!({
        "chain": names.map(|name| config_map(name, "1")), "response": {"status": {"names": "$names"}},
    });
    let ready = scenario.ready_with("chain", spec).await;
    assert_eq!(ready.data["status"]["names"], json!(names));
    assert!(!host.log().contains("did not settle"), "{}", host.log());
    // One status, from one reconcile.
    let writes = scenario.all_writes(cluster().await).await;
    let statuses = writes_to(&writes, "puppets");
    let statuses = statuses.iter().filter(|write| write.ends_with("/status"));
    assert_eq!(statuses.count(), 1);
    // It wants something else each time.
    let mut restless = config_map("restless", "");
    restless["data"]["text"] = "$versions".into();
    let spec = json!({"response": {"children": [config_map("calm", "1"), restless]}});
    scenario.puppet("p", spec).await;
    let says = "PluginUnsettled: did not settle within 5 calls … \
         must not depend on what applying it changes … resourceVersion";
    scenario.until_stalled("p", says).await;
    scenario.until_event("p", "Warning PluginUnsettled").await;
    // It backs off: the host is alive and serves other resources.
    scenario.ready_with("q", json!({"response": {}})).await;
    assert!(!host.log().contains("panicked"));
}

#[tokio::test]
async fn a_status_that_the_definition_does_not_allow_is_refused_and_the_conditions_are_written_without_it() {
    let (scenario, _host) = puppets("status-refused", "").await;
    let spec = |count| json!({"response": {"children": [config_map("a", "1")], "status": {"count": count}}});
    scenario.ready_with("p", spec(json!(1))).await;
    scenario.puppet("p", spec(json!("many"))).await;
    scenario
        .until_stalled("p", "StatusRefused: status.count … expected numeric")
        .await;
    scenario.until_event("p", "Warning StatusRefused").await;
    let puppet = scenario.get(PUPPET, "p").await.unwrap();
    assert_eq!(
        puppet.data["status"]["count"], 1,
        "what was there before stays: {puppet:?}"
    );
    assert!(scenario.get(CONFIG_MAP, "a").await.is_some());
    scenario.ready_with("p", spec(json!(2))).await;
}

#[tokio::test]
async fn a_plugin_that_wants_to_be_called_all_the_time_is_called_ten_times_a_second() {
    let (scenario, host) = puppets("eager", "").await;
    let spec = json!({"response": {"requeueAfterMs": 1}});
    scenario.puppet("p", spec).await;
    host.until_reconciles("eager/p", 1).await;
    let took = host.until_reconciles("eager/p", 7).await;
    // There are five full delays between the first and the seventh reconcile.
    assert!(took >= Duration::from_millis(500), "{took:?}");
}

/// Regression: the API server reads the body of an apply as YAML. It refused some characters, and read others as line
/// breaks.
#[tokio::test]
async fn characters_that_yaml_does_not_allow_reach_children_and_status_as_they_are() {
    let (scenario, _host) = puppets("yaml-characters", "").await;
    for (name, text) in [
        ("refused", "a\u{7f}b\u{9f}c\u{feff}d\u{ffff}e \u{1f600}"),
        ("line-breaks", "a \u{85} b \u{2028} c \u{2029} d"),
    ] {
        let puppet = json!({
            "apiVersion": "test.operator-host.dev/v1", "kind": "Puppet", "metadata": {"name": name},
            "spec": {"response": {"children": [config_map(name, text)], "status": {"seen": text}}},
        });
        let puppet: DynamicObject = serde_json::from_value(puppet).unwrap();
        // Not applied, which would be the same defect here.
        let api = scenario.api(PUPPET);
        api.create(&PostParams::default(), &puppet)
            .await
            .expect("a puppet");
        let ready = scenario.until_ready(name).await;
        assert_eq!(ready.data["status"]["seen"], text);
        let child = scenario.get(CONFIG_MAP, name).await.expect("the child");
        assert_eq!(child.data["data"]["text"], text);
    }
}

/// Regression: the next call saw the status from before the deletion, and the count stayed 0.
#[tokio::test]
async fn what_a_plugin_counts_in_its_status_while_it_deletes_a_child_is_counted_once() {
    let (scenario, _host) = puppets("counts", "").await;
    let spec = json!({ "count": true, "response": { "children": [config_map("a", "up")] } });
    let puppet = scenario.ready_with("p", spec).await;
    assert_eq!(puppet.data["status"]["counted"], 0);
    // Of another client, which the answers do not have.
    let backup = Patch::Merge(json!({ "status": { "backup": "done" } }));
    let puppets = scenario.api(PUPPET);
    let params = PatchParams::apply("backup");
    puppets.patch_status("p", &params, &backup).await.unwrap();
    for count in 1..3 {
        let failed = json!({ "metadata": { "annotations": { "failed": "yes" } } });
        let failed = scenario.patch(CONFIG_MAP, "a", failed).await;
        let counted = |puppet: &DynamicObject| puppet.data["status"]["counted"] == count;
        let puppet = scenario
            .until(PUPPET, "p", &format!("{count} counted"), counted)
            .await;
        assert_eq!(puppet.data["status"]["backup"], "done");
        let is_new = |map: &DynamicObject| map.metadata.uid != failed.metadata.uid;
        scenario.until(CONFIG_MAP, "a", "made again", is_new).await;
    }
}
