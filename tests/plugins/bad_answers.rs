//! Well-formed answers that contain something forbidden: the whole answer is refused, with the child and the rule.

use crate::support::prelude::*;
use futures::future::join_all;

struct Case {
    name: &'static str,
    /// The forbidden part, in addition to a valid child.
    asks: Value,
    reason: &'static str,
    words: &'static str,
}

fn case(name: &'static str, asks: Value) -> Case {
    let (reason, words) = ("ChildRefused", "");
    Case {
        name,
        asks,
        reason,
        words,
    }
}

impl Case {
    fn says(self, words: &'static str) -> Self {
        Self { words, ..self }
    }
}

fn cases(namespace: &str) -> Vec<Case> {
    let child = |child: Value| json!({ "children": [child] });
    let of_kind = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "n"}});
    let secret = |name: &str, values: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values});
    let generate =
        |name: &str, length: u32| json!([{"name": name, "entries": [{"key": "k", "length": length}]}]);
    let both = json!({"children": [secret("both", json!({"k": "v"}))], "generate": generate("both", 8)});
    let mut elsewhere = config_map("elsewhere", "");
    elsewhere["metadata"]["namespace"] = "kube-system".into();
    let mut owned = config_map("owned", "");
    owned["metadata"]["ownerReferences"] = json!([]);
    let mut long_key = config_map("long", "");
    long_key["data"]["k".repeat(1001)] = "2".into();
    let mut own_namespace = config_map("twice", "");
    own_namespace["metadata"]["namespace"] = namespace.into();
    vec![
        case(
            "no-kind",
            child(json!({"apiVersion": "v1", "metadata": {"name": "nameless"}})),
        )
        .says("children[1] (nameless) … `kind` is missing"),
        case("no-name", child(json!({"apiVersion": "v1", "kind": "ConfigMap"})))
            .says("children[1] (ConfigMap) … `metadata.name` is missing"),
        case("no-version", child(json!({"kind": "ConfigMap"}))).says("`apiVersion` is missing"),
        case(
            "same-name",
            json!({"children": [config_map("twice", ""), own_namespace]}),
        )
        .says("ConfigMap  … /twice … asked for it twice"),
        case("same-secret", both)
            .says("/both … the key \"k\" has a value in the child, and the host is to generate it"),
        case(
            "number-secret",
            child(secret("number", json!({"pin": 987_654_321}))),
        )
        .says("/number: the value of \"pin\" in its `stringData` is a number … must be a string"),
        case("short-secret", json!({"generate": generate("short", 4)})).says("/short … from 8 to 1024"),
        case("other-kind", child(of_kind("Service")))
            .says("Service n … \"puppet\" may not create objects of the kind v1/Service … `children`"),
        case("cluster-kind", child(of_kind("Namespace"))).says("Namespace n … cluster-scoped"),
        case("other-namespace", child(elsewhere))
            .says("ConfigMap kube-system/elsewhere … only be in its own namespace"),
        case("owner-given", child(owned)).says("/owned … `metadata.ownerReferences` … leave it out"),
        case("others-child", child(config_map("neighbours", "mine")))
            .says("/neighbours … belongs to Puppet.test.operator-host.dev neighbour"),
        case("users-object", child(config_map("users", "mine")))
            .says("/users … was not created by this host … `adopt: true`"),
        case("long-key", child(long_key)).says("ConfigMap … more than 1000 characters"),
        Case {
            reason: "PluginAnswerInvalid",
            ..case("no-object", child(json!(7))).says("`children[1]` is a number … must be a JSON object")
        },
    ]
}

async fn run(scenario: &Scenario, case: &Case) {
    let (name, good) = (case.name, format!("{}-good", case.name));
    let spec =
        |text: &str| json!({"response": {"children": [config_map(&good, text)], "status": {"note": "kept"}}});
    scenario.ready_with(name, spec("before")).await;
    let before = scenario.version(CONFIG_MAP, &good).await;

    // The valid child would change, too, but no part of such an answer is used.
    let mut bad = spec("changed");
    for (field, asked) in case.asks.as_object().unwrap() {
        match bad["response"][field].as_array_mut() {
            Some(list) => list.extend(asked.as_array().unwrap().clone()),
            None => bad["response"][field] = asked.clone(),
        }
    }
    scenario.puppet(name, bad).await;
    let says = format!("{}: {}", case.reason, case.words);
    scenario.until_stalled(name, &says).await;
    scenario.until_event(name, &format!("Warning {says}")).await;
    assert_eq!(scenario.version(CONFIG_MAP, &good).await, before, "{name}");
    let puppet = scenario.get(PUPPET, name).await.unwrap();
    assert_eq!(puppet.data["status"]["note"], "kept", "{name}");

    scenario.ready_with(name, spec("after")).await;
    let child = scenario.get(CONFIG_MAP, &good).await.unwrap();
    assert_eq!(child.data["data"]["text"], "after", "{name}");
}

#[tokio::test]
async fn an_answer_with_one_thing_that_is_not_allowed_is_refused_whole_and_by_name() {
    for (form, file) in FORMS {
        let scenario = Scenario::new(&format!("bad-answers-{form}")).await;
        let kinds =
            ["ConfigMap", "Secret", "Namespace"].map(|kind| format!("{{apiVersion: v1, kind: {kind}}}"));
        let mut host = scenario.start(&controller(file, &format!("children: [{}]", kinds.join(", "))));
        let users = scenario.apply(&config_map("users", "theirs").to_string()).await;
        scenario
            .ready_wants("neighbour", &[config_map("neighbours", "theirs")])
            .await;
        let neighbours = scenario.version(CONFIG_MAP, "neighbours").await;
        let cases = cases(&scenario.namespace);
        join_all(cases.iter().map(|case| run(&scenario, case))).await;
        null_means_absent(&scenario).await;

        assert_eq!(scenario.version(CONFIG_MAP, "neighbours").await, neighbours);
        assert_eq!(
            Some(scenario.version(CONFIG_MAP, "users").await),
            users.metadata.resource_version
        );
        assert!(host.is_alive());
    }
}

/// Regression: the API server refused a null where the schema wants a number, and a child with one differed for ever.
async fn null_means_absent(scenario: &Scenario) {
    let mut child = config_map("a", "1");
    child["immutable"] = json!(null);
    child["data"]["gone"] = json!(null);
    child["metadata"]["annotations"] = json!({ "a": null, "b": "2" });
    let response = json!({ "children": [child], "status": { "count": null, "phase": "Fine" } });
    let puppet = scenario.ready_with("p", json!({ "response": response })).await;
    assert_eq!(puppet.data["status"]["phase"], "Fine");
    let made = scenario.get("v1/ConfigMap", "a").await.expect("the child");
    assert_eq!(made.data["data"], json!({ "text": "1" }));

    let status = json!({ "map": { "k".repeat(1001): 1 } });
    scenario
        .puppet("p", json!({ "response": { "status": status } }))
        .await;
    let words = "the status in the plugin's answer … more than 1000 characters";
    scenario
        .until_stalled("p", &format!("StatusRefused: {words}"))
        .await;
}
