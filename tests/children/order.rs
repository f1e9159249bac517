//! Children that come after others: they are created when those are ready, and deleted first.

use crate::support::prelude::*;

const SERVICE: &str = "v1/Service";
const CHILDREN: &str = "children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: v1, kind: Service}]";

/// A Service that is ready once it has a load balancer.
fn database() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "db" },
        "spec": { "type": "LoadBalancer", "ports": [{ "port": 3306, "protocol": "TCP" }] },
    })
}

fn after(mut child: Value, others: &str) -> Value {
    child["metadata"]["annotations"] = json!({ "operator-host.dev/after": others });
    child
}

async fn set_load_balancer(scenario: &Scenario, ingress: Value) {
    let status = json!({ "loadBalancer": { "ingress": ingress } });
    scenario.set_status(SERVICE, "db", status).await;
}

async fn until_waiting(scenario: &Scenario, name: &str) -> String {
    scenario
        .until_told(name, "Reconciling=True WaitingForChild")
        .await
}

#[tokio::test]
async fn a_child_is_created_and_changed_when_those_before_it_are_ready() {
    let (scenario, _host) = puppets("order", CHILDREN).await;
    let web = |text: &str| after(config_map("web", text), "Service/db, ConfigMap/settings");
    scenario
        .wants("p", &[web("1"), database(), config_map("settings", "")])
        .await;
    let message = until_waiting(&scenario, "p").await;
    let words = "ConfigMap order/web waits for Service order/db: it has no load balancer yet";
    assert_contains(&message, words);
    let puppet = scenario.get(PUPPET, "p").await.unwrap();
    assert_eq!(condition(&puppet, "Synced").unwrap()["status"], "False");
    assert!(scenario.get(CONFIG_MAP, "web").await.is_none());

    set_load_balancer(&scenario, json!([{ "ip": "192.0.2.1" }])).await;
    scenario.until_ready("p").await;
    let web_now = scenario.get(CONFIG_MAP, "web").await.unwrap();
    assert_eq!(web_now.data["data"]["text"], "1");

    // A change waits again, and so does the deletion of what it may replace; what somebody else changed is restored.
    set_load_balancer(&scenario, json!([])).await;
    scenario.wants("p", &[web("2"), database()]).await;
    // A child that is there and no longer wanted is not waited for.
    assert_contains(&until_waiting(&scenario, "p").await, "waits for Service order/db");
    let alone = |text: &str| after(config_map("web", text), "Service/db");
    scenario.wants("p", &[alone("2"), database()]).await;
    until_waiting(&scenario, "p").await;
    assert!(scenario.get(CONFIG_MAP, "settings").await.is_some());
    assert_eq!(scenario.text_of("web").await, "1");
    set_load_balancer(&scenario, json!([{ "ip": "192.0.2.1" }])).await;
    scenario.until_gone(CONFIG_MAP, "settings").await;
    scenario.until_text("web", "2").await;
    set_load_balancer(&scenario, json!([])).await;
    scenario
        .until(PUPPET, "p", "not ready", |puppet| !is_true(puppet, "Ready"))
        .await;
    scenario.edit_text("web", "user").await;
    scenario.until_text("web", "2").await;
}

#[tokio::test]
async fn children_are_deleted_in_the_reverse_of_their_order() {
    let (scenario, host) = puppets("order-deletion", CHILDREN).await;
    let children = [
        after(config_map("web", ""), "ConfigMap/db"),
        config_map("db", ""),
        config_map("other", ""),
    ];
    // A cleanup that must not run twice: it would make what is deleted already.
    let farewell = json!({ "done": true, "children": [config_map("farewell", "")] });
    for name in ["pruned", "deleted"] {
        let mut spec = json!({ "response": { "children": children } });
        spec["cleanup"] = farewell.clone();
        scenario.ready_with("p", spec.clone()).await;
        scenario.set_finalizers(CONFIG_MAP, "web", &["test/hold"]).await;
        if name == "pruned" {
            spec["response"]["children"] = json!([]);
            scenario.puppet("p", spec).await;
        } else {
            scenario.delete(PUPPET, "p").await;
        }
        scenario.until(CONFIG_MAP, "web", "going", is_going).await;
        scenario.until_gone(CONFIG_MAP, "other").await;
        let db = scenario.get(CONFIG_MAP, "db").await.expect("what comes before");
        assert!(!is_going(&db), "{name}");
        if name == "deleted" {
            let says = "Reconciling=True DeletingChildren: in the reverse of their order … \
                 operator-host.dev/puppet";
            scenario.until_told("p", says).await;
            scenario.until_gone(CONFIG_MAP, "farewell").await;
            scenario.set_finalizers(CONFIG_MAP, "db", &["test/hold"]).await;
        }
        scenario.set_finalizers(CONFIG_MAP, "web", &[]).await;
        if name == "deleted" {
            // Regression: the finalizer went when the last child was about to go, and the status told what was over.
            scenario.until(CONFIG_MAP, "db", "going", is_going).await;
            let says = "Reconciling=True DeletingChildren: 1 of them are left … ConfigMap order-deletion/db … test/hold";
            scenario.until_told("p", says).await;
            let parent = scenario.get(PUPPET, "p").await.expect("the parent");
            assert_eq!(parent.finalizers(), ["operator-host.dev/puppet"]);
            scenario.set_finalizers(CONFIG_MAP, "db", &[]).await;
        }
        scenario.until_gone(CONFIG_MAP, "db").await;
    }
    scenario.until_gone(PUPPET, "p").await;
    let log = host.log();
    let farewells = log.matches("created ConfigMap farewell").count();
    assert_eq!(farewells, 1, "{log}");
}
