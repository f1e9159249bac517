//! The rules of a definition: evaluated by the API server, or by the host's webhook for one that is too old for them.

use control_plane::manifests;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use kube::core::DynamicObject;
use plugin_fixtures::{Fixture, Form, cases};
use serde_json::{Map, Value, json};

use crate::support::puppet::assert_contains;
use crate::support::{LIMIT, Scenario, resource};
use crate::webhook::{certified, install_for, minor};

const KIND: &str = "rules.fixtures.dev/v1/Ruled";

/// Objects and the rules that they violate. The tests of the evaluator use the same.
fn table() -> Vec<Value> {
    let file = crate::support::root().join("host/schema/src/cel/cases.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// Returns a definition with the schema of each case as a field of the spec.
fn definition() -> Value {
    let cases = table().into_iter();
    let properties: Map<String, Value> = cases
        .map(|case| (case["name"].as_str().unwrap().to_owned(), case["schema"].clone()))
        .collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "ruleds.rules.fixtures.dev" },
        "spec": {
            "group": "rules.fixtures.dev", "scope": "Namespaced", "names": { "kind": "Ruled", "plural": "ruleds", "singular": "ruled" },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": { "type": "object", "properties": properties },
                        "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                    },
                    "x-kubernetes-validations": [
                        { "rule": "self.metadata.name != 'forbidden'", "message": "the name is forbidden" },
                    ],
                } },
            }],
        },
    })
}

fn object(name: &str, case: &str, value: &Value) -> DynamicObject {
    let object = json!({
        "apiVersion": "rules.fixtures.dev/v1", "kind": "Ruled", "metadata": { "name": name }, "spec": { case: value },
    });
    serde_json::from_value(object).unwrap()
}

/// Returns the violations in an error of the API server, in order.
fn violations(message: &str) -> Vec<String> {
    let words = message.split_once("denied the request: ");
    let words = words
        .or(message.split_once("is invalid: "))
        .map_or(message, |(_, words)| words);
    let words = words
        .strip_prefix('[')
        .and_then(|words| words.strip_suffix(']'))
        .unwrap_or(words);
    let mut found: Vec<String> = words.split(", spec.").map(str::to_owned).collect();
    for later in found.iter_mut().skip(1) {
        later.insert_str(0, "spec.");
    }
    found.sort();
    found
}

/// Writes the object, over the old one if there is one, and returns what it violates.
async fn written(scenario: &Scenario, index: usize, case: &str, given: &Value) -> Vec<String> {
    let api = scenario.api(KIND);
    let name = format!("{case}-{index}");
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let answer = match given.get("old") {
        None => api.create(&dry_run, &object(&name, case, &given["new"])).await,
        Some(old) => {
            let created = api
                .create(&PostParams::default(), &object(&name, case, old))
                .await;
            let mut stored = created.expect("the old object violates nothing");
            loop {
                let mut new = object(&name, case, &given["new"]);
                new.metadata.resource_version = stored.metadata.resource_version;
                match api.replace(&name, &dry_run, &new).await {
                    // The host has set the finalizer.
                    Err(kube::Error::Api(status)) if status.code == 409 => {
                        stored = api.get(&name).await.expect("it is there");
                    }
                    answer => break answer,
                }
            }
        }
    };
    match answer {
        Ok(_) => Vec::new(),
        Err(kube::Error::Api(status)) => {
            assert_eq!(status.code, 422, "{status:?}");
            violations(&status.message)
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn rules_are_evaluated_alike_by_an_api_server_and_by_the_webhook_of_an_older_one() {
    let scenario = Scenario::new("rules").await;
    let crd = definition();
    let plugin = Fixture::new(cases::ANSWER)
        .parent("rules.fixtures.dev/v1", "Ruled")
        .definition(&crd.to_string())
        .build(Form::Command);
    let plugin = scenario.file("ruled.wasm", plugin);
    let yaml = scenario.file("ruled.yaml", crd.to_string());
    let definitions: Api<DynamicObject> = Api::all_with(
        scenario.client.clone(),
        &resource("apiextensions.k8s.io/v1/CustomResourceDefinition"),
    );
    let objects = manifests::read(&yaml).unwrap();
    // Some servers prune what they do not know, others refuse what they cannot evaluate.
    let taken = definitions
        .create(&PostParams::default(), &objects[0])
        .await
        .expect("the definition is taken");
    let has_rules = taken.data["spec"]
        .to_string()
        .contains("x-kubernetes-validations");
    assert_eq!(has_rules, minor(&scenario).await >= 25);
    manifests::apply(&scenario.client, &objects)
        .await
        .expect("it is served");
    let top = "webhook: {address: '127.0.0.1:0', certificate: tls.crt, key: tls.key}";
    let controllers = format!(
        "- name: ruled\n  parent: {{apiVersion: rules.fixtures.dev/v1, kind: Ruled}}\n  plugin: {}\n  \
         children: [{{apiVersion: v1, kind: ConfigMap}}]\n",
        plugin.display()
    );
    let config = scenario.config_with(top, &controllers);
    let authority = certified(&scenario);
    let host = scenario.start_with(&config, &[]);
    host.until_log(&["controller started"]).await;
    install_for(&scenario, &host, &config, &authority, &yaml, &[]).await;

    // A new webhook takes effect after a moment.
    let start = std::time::Instant::now();
    let wrong = json!({ "new": { "min": 3, "max": 2 } });
    while written(&scenario, 0, "numbers", &wrong).await.is_empty() {
        assert!(start.elapsed() < LIMIT, "no rule is evaluated:\n{}", host.log());
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let mut wrong = Vec::new();
    for case in table() {
        let name = case["name"].as_str().unwrap();
        for (index, given) in case["objects"].as_array().unwrap().iter().enumerate() {
            let wanted = given["violations"].as_array().unwrap().iter();
            let wanted = wanted.map(|text| text.as_str().unwrap().replace("{}", &format!("spec.{name}")));
            let wanted: Vec<String> = wanted.collect();
            let found = written(&scenario, index, name, given).await;
            if found != wanted {
                wrong.push(format!("{name} {given}\n  violates {found:#?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let named = object("forbidden", "numbers", &json!({ "min": 1, "max": 2 }));
    let refused = scenario
        .api(KIND)
        .create(&PostParams::default(), &named)
        .await
        .unwrap_err();
    assert_contains(
        &refused.to_string(),
        &["<nil>: Invalid value: the name is forbidden"],
    );
    assert_eq!(host.stop().await.code(), Some(0));
    let _ = definitions
        .delete("ruleds.rules.fixtures.dev", &DeleteParams::default())
        .await;
}
