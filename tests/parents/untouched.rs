//! The host writes only what is its own: no object of a kind that its plugin is not for, and no field of a status that the
//! definition does not have.

use crate::support::prelude::*;
use plugin_fixtures::{Fixture, Form, cases};

use crate::support::install;

/// Installs a kind of this scenario alone, and returns it as `apiVersion/kind`.
async fn shops(scenario: &Scenario, status: Value) -> String {
    let group = format!("{}.test.dev", scenario.namespace);
    let schema =
        json!({ "type": "object", "properties": { "status": { "type": "object", "properties": status } } });
    let definition = definition("Shop", &group, &schema);
    install(&scenario.client, scenario.folder.path(), &definition.to_string()).await;
    format!("{group}/v1/Shop")
}

/// Returns the schema of a status with `observedGeneration`, and with conditions that have these fields.
fn with_conditions(fields: &[&str]) -> Value {
    let fields = fields
        .iter()
        .map(|field| ((*field).to_owned(), json!({ "type": "string" })));
    let fields: serde_json::Map<_, _> = fields.collect();
    json!({ "observedGeneration": { "type": "integer" },
        "conditions": { "type": "array", "items": { "type": "object", "properties": fields } } })
}

async fn shop(scenario: &Scenario, kind: &str) {
    let (api_version, kind) = kind.rsplit_once('/').unwrap();
    let shop = json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": "s" } });
    scenario.apply(&shop.to_string()).await;
}

fn controller(kind: &str, plugin: &str) -> String {
    let (api_version, kind) = kind.rsplit_once('/').unwrap();
    format!(
        "- name: shop\n  parent: {{apiVersion: {api_version}, kind: {kind}}}\n  plugin: {plugin}\n  \
         children: [{{apiVersion: v1, kind: ConfigMap}}]\n"
    )
}

/// Returns a controller for this kind, with a plugin that is for it.
fn with_plugin(scenario: &Scenario, kind: &str) -> String {
    let (api_version, name) = kind.rsplit_once('/').unwrap();
    let plugin = Fixture::new(cases::ANSWER).parent(api_version, name);
    let plugin = scenario.file("shop.wasm", plugin.build(Form::Command));
    controller(kind, &plugin.display().to_string())
}

/// Regression: a configuration that names another operator's kind put conditions into all of its objects.
#[tokio::test]
async fn a_plugin_of_another_kind_touches_no_object_of_the_configured_one() {
    let scenario = Scenario::new("untouched").await;
    let mut open = with_conditions(&[]);
    open["conditions"]["items"]["x-kubernetes-preserve-unknown-fields"] = json!(true);
    let kind = shops(&scenario, open).await;
    shop(&scenario, &kind).await;
    let before = scenario.version(&kind, "s").await;
    let host = scenario.start(&controller(&kind, "echo.wasm"));
    host.until_log("it reconciles my-operator.dev/v1/Echo").await;
    host.until_reconciles("untouched/s", 1).await;
    assert_eq!(scenario.version(&kind, "s").await, before);
}

/// Regression: the API server refused the whole status.
#[tokio::test]
async fn conditions_are_written_only_where_the_definition_has_them() {
    let cluster = cluster().await;
    let scenario = Scenario::new("no-conditions").await;
    let kind = shops(&scenario, json!({ "observedGeneration": { "type": "integer" } })).await;
    shop(&scenario, &kind).await;
    let host = scenario.start(&with_plugin(&scenario, &kind));
    host.until_log("has no `conditions` in the schema of its status")
        .await;
    let is_seen = |shop: &DynamicObject| shop.data["status"]["observedGeneration"] == 1;
    let shop = scenario.until(&kind, "s", "reconciled", is_seen).await;
    assert_eq!(shop.data["status"], json!({ "observedGeneration": 1 }));
    let writes = scenario.all_writes(cluster).await;
    let of_status = writes
        .iter()
        .filter(|event| event.request_uri.contains("/status"));
    assert_eq!(of_status.count(), 1);

    // The definition gets them, and so does the object, with the fields that it has.
    shops(
        &scenario,
        with_conditions(&["type", "status", "reason", "message"]),
    )
    .await;
    scenario
        .until_condition(&kind, "s", "Ready=True Reconciled")
        .await;
    let shop = scenario.get(&kind, "s").await.unwrap();
    let ready = condition(&shop, "Ready").unwrap();
    assert!(
        ready["observedGeneration"].is_null() && ready["lastTransitionTime"].is_null(),
        "{ready}"
    );
}

/// Regression: no status at all was written, and the Event blamed the plugin, which gave none.
#[tokio::test]
async fn what_a_definition_with_narrower_conditions_allows_is_written_and_the_rest_is_named_once() {
    let scenario = Scenario::new("narrow-status").await;
    let mut status = with_conditions(&["type", "status", "reason", "message"]);
    status["observedGeneration"]["type"] = "string".into();
    let fields = &mut status["conditions"]["items"]["properties"];
    fields["type"]["enum"] = json!(["Ready", "Stalled"]);
    fields["message"]["maxLength"] = 12.into();
    let kind = shops(&scenario, status).await;
    shop(&scenario, &kind).await;
    let host = scenario.start(&with_plugin(&scenario, &kind));
    scenario
        .until_condition(&kind, "s", "Ready=True Reconciled: every child")
        .await;
    let expected =
        json!([{ "type": "Ready", "status": "True", "reason": "Reconciled", "message": "every child " }]);
    let shop = scenario.get(&kind, "s").await.unwrap();
    assert_eq!(shop.data["status"], json!({ "conditions": expected }));
    for field in ["conditions[].type", "conditions[].message", "observedGeneration"] {
        let words = format!("Warning StatusLeftOut: the definition of Shop … status.{field}: ");
        scenario.until_event("s", &words).await;
    }
    let version = scenario.version(&kind, "s").await;
    // A change of the ConfigMap has the Shop reconciled.
    scenario.delete(CONFIG_MAP, "answer").await;
    host.until_reconciles("narrow-status/s", 2).await;
    assert_eq!(scenario.version(&kind, "s").await, version);
    let log = host.log();
    assert_eq!(log.matches("conditions[].type").count(), 1, "{log}");
    assert!(!log.contains("StatusRefused"), "{log}");
}

/// Regression: each host wrote the status once after its start, without a change.
#[tokio::test]
async fn a_condition_of_another_client_causes_no_write_after_a_restart() {
    let scenario = Scenario::new("foreign-condition").await;
    let mut status = with_conditions(&["type", "status", "reason", "message"]);
    let list = status["conditions"].as_object_mut().unwrap();
    list.insert("x-kubernetes-list-type".into(), "map".into());
    list.insert("x-kubernetes-list-map-keys".into(), json!(["type"]));
    list["items"]["required"] = json!(["type"]);
    let kind = shops(&scenario, status).await;
    let (api_version, name) = kind.rsplit_once('/').unwrap();
    let controller = with_plugin(&scenario, &kind);
    shop(&scenario, &kind).await;
    let host = scenario.start(&controller);
    scenario
        .until_condition(&kind, "s", "Ready=True Reconciled")
        .await;
    let backed = json!({ "apiVersion": api_version, "kind": name, "metadata": { "name": "s" },
        "status": { "conditions": [{ "type": "Backed", "status": "True" }] } });
    let shops = scenario.api(&kind);
    let params = PatchParams::apply("backup");
    shops
        .patch_status("s", &params, &Patch::Apply(&backed))
        .await
        .unwrap();
    host.until_reconciles("foreign-condition/s", 2).await;
    assert_eq!(host.stop().await.code(), Some(0));
    let writes = async || {
        let writes = scenario.all_writes(cluster().await).await;
        writes
            .iter()
            .filter(|event| event.request_uri.contains("/status"))
            .count()
    };
    let before = writes().await;
    let host = scenario.start(&controller);
    host.until_reconciles("foreign-condition/s", 3).await;
    assert_eq!(writes().await, before);
    let shop = scenario.get(&kind, "s").await.unwrap();
    assert!(is_true(&shop, "Backed") && is_true(&shop, "Ready"), "{shop:?}");
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Regression: where the list of conditions is one value, each host removed the others after its start.
#[tokio::test]
async fn conditions_that_came_into_the_list_while_no_host_ran_stay() {
    let (scenario, host) = puppets("foreign-list", "").await;
    let puppet = scenario.ready_wants("p", &[config_map("a", "a")]).await;
    assert_eq!(host.stop().await.code(), Some(0));
    let mut conditions = puppet.data["status"]["conditions"].clone();
    let backed = json!({ "type": "Backed", "status": "True", "reason": "A", "message": "" });
    conditions.as_array_mut().unwrap().insert(0, backed);
    let patch = Patch::Merge(json!({ "status": { "conditions": conditions } }));
    let puppets = scenario.api(PUPPET);
    let params = PatchParams::apply("backup");
    puppets.patch_status("p", &params, &patch).await.unwrap();
    let before = scenario.version(PUPPET, "p").await;
    let host = scenario.start(&crate::support::puppet::controller("puppet.wasm", ""));
    host.until_reconciles("foreign-list/p", 2).await;
    assert_eq!(scenario.version(PUPPET, "p").await, before);
}

#[tokio::test]
async fn a_built_in_kind_is_refused_as_a_parent() {
    let scenario = Scenario::new("built-in").await;
    let config = scenario.config(&controller("v1/Pod", "echo.wasm"));
    let config = config.display().to_string();
    for command in [["run", "--config", &config], ["rbac", "--config", &config]] {
        let printed = scenario.program(&command).ends(2);
        assert_contains(&printed, "v1/Pod is a kind of Kubernetes itself");
    }
}
