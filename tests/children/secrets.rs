//! Secrets whose values the host generates once, never changes, and never shows.

use crate::support::prelude::*;
use std::collections::BTreeMap;

use crate::faults::transient_errors::behind_a_proxy;

const SECRET: &str = "v1/Secret";
const SECRETS: &str = "children: [{apiVersion: v1, kind: Secret}]";
const BOTH: &str = "children: [{apiVersion: v1, kind: Secret}, {apiVersion: v1, kind: ConfigMap}]";

fn spec(entries: &[Value]) -> Value {
    json!({"response": {
        "generate": [{"name": "s", "entries": entries}],
        "status": {"seen": "$children"},
    }})
}

fn password() -> Value {
    json!({"key": "password", "length": 24})
}

/// Returns the spec of a puppet that wants these Secrets with a password.
fn generating(names: &[&str]) -> Value {
    let secret = |name: &&str| json!({"name": name, "entries": [password()]});
    json!({"response": {"generate": names.iter().map(secret).collect::<Vec<_>>()}})
}

fn pin() -> Value {
    json!({"key": "pin", "length": 9, "alphabet": "01"})
}

/// The annotation with which a user orders new values.
const AGAIN: &str = "operator-host.dev/generate-again";

/// Waits until the loss of a Secret is told with these words, and returns the order that would make another one.
async fn order_in(scenario: &Scenario, words: &str) -> String {
    let says = format!("GeneratedSecretLost: {words}");
    let message = scenario.until_stalled("p", &says).await;
    let (_, order) = message.split_once(&format!("{AGAIN}=")).unwrap();
    let order = order.split_whitespace().next().unwrap();
    order.trim_end_matches([';', '.']).to_owned()
}

fn values(secret: &DynamicObject) -> BTreeMap<String, String> {
    let data = secret.data["data"].as_object().cloned().unwrap_or_default();
    data.into_iter()
        .map(|(key, value)| (key, value.as_str().unwrap_or_default().to_owned()))
        .collect()
}

/// Decodes the API's base64.
pub fn decoded(text: &str) -> String {
    let bytes: k8s_openapi::ByteString = serde_json::from_value(json!(text)).unwrap();
    String::from_utf8(bytes.0).unwrap()
}

#[tokio::test]
async fn a_generated_value_is_drawn_once_kept_over_a_restart_and_only_added_to() {
    let (scenario, host) = puppets("generated", BOTH).await;
    scenario.puppet("p", spec(&[password()])).await;
    let puppet = scenario
        .until(PUPPET, "p", "the Secret seen", |p| {
            p.data["status"]["seen"][0].is_object()
        })
        .await;
    let first = values(&scenario.get(SECRET, "s").await.unwrap());
    assert_eq!(decoded(&first["password"]).len(), 24);
    // The plugin sees the key and no value.
    assert_eq!(puppet.data["status"]["seen"][0]["data"], json!({"password": ""}));
    let log = host.log();
    assert_eq!(host.stop().await.code(), Some(0));

    let host = scenario.start(&controller("puppet.wasm", BOTH));
    scenario.puppet("p", spec(&[password(), pin()])).await;
    let secret = scenario
        .until(SECRET, "s", "both keys", |s| s.data["data"]["pin"].is_string())
        .await;
    let both = values(&secret);
    assert_eq!(both["password"], first["password"]);
    let pin_value = decoded(&both["pin"]);
    assert!(
        pin_value.len() == 9 && pin_value.chars().all(|c| "01".contains(c)),
        "{pin_value}"
    );

    // A changed length does not cause a new value, and a key that is no longer named stays.
    scenario
        .ready_with("p", spec(&[json!({"key": "password", "length": 30})]))
        .await;
    assert_eq!(values(&scenario.get(SECRET, "s").await.unwrap()), both);
    // A user may set a value of their own.
    scenario
        .patch(SECRET, "s", json!({"stringData": {"password": "my own"}}))
        .await;
    scenario
        .puppet("p", spec(&[password(), json!({"key": "third", "length": 8})]))
        .await;
    let secret = scenario
        .until(SECRET, "s", "a third key", |s| {
            s.data["data"]["third"].is_string()
        })
        .await;
    let all = values(&secret);
    assert_eq!(decoded(&all["password"]), "my own");
    let log = log + &host.log();
    for value in both.values().chain(all.values()) {
        assert!(
            !log.contains(value.as_str()) && !log.contains(&decoded(value)),
            "the log holds {value}"
        );
    }
    // Data is not deleted: the Secret outlives its parent and is used by the next parent of that name.
    scenario.remove(PUPPET, "p").await;
    scenario.ready_with("p", spec(&[password()])).await;
    assert_eq!(values(&scenario.get(SECRET, "s").await.unwrap()), all);
}

/// A child of the same name is the rest of a generated Secret. Without a change of either, nothing is written.
#[tokio::test]
async fn a_generated_secret_has_the_labels_and_entries_of_the_child_of_its_name() {
    let (scenario, host) = puppets("generated-rest", SECRETS).await;
    let spec = |team: &str, data: Value| {
        let rest = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "labels": {"team": team}},
            "type": "kubernetes.io/basic-auth", "data": data,
        });
        json!({"response": {
            "generate": [{"name": "s", "entries": [password()]}],
            "children": [rest],
            "status": {"seen": "$children"},
        }})
    };
    let [root, admin, host_name] = ["cm9vdA==", "YWRtaW4=", "ZGI="];
    let puppet = scenario
        .ready_with("p", spec("a", json!({"username": root, "host": host_name})))
        .await;
    let secret = scenario.get(SECRET, "s").await.unwrap();
    let first = values(&secret);
    assert_eq!(
        (
            &first["username"][..],
            &first["host"][..],
            first["password"].len()
        ),
        (root, host_name, 32)
    );
    assert_eq!(secret.data["type"], "kubernetes.io/basic-auth");
    assert_eq!(secret.metadata.labels.as_ref().unwrap()["team"], "a");
    assert!(secret.metadata.owner_references.is_none(), "it is retained");
    // All values are blank for the plugin.
    let expected = json!({"username": "", "host": "", "password": ""});
    assert_eq!(puppet.data["status"]["seen"][0]["data"], expected);

    // A change and a removal of what is fixed leave what is generated.
    scenario
        .ready_with("p", spec("b", json!({"username": admin})))
        .await;
    let secret = scenario.get(SECRET, "s").await.unwrap();
    let second = values(&secret);
    assert_eq!(second["username"], admin);
    assert_eq!(second["password"], first["password"]);
    assert!(!second.contains_key("host"), "{second:?}");
    assert_eq!(secret.metadata.labels.as_ref().unwrap()["team"], "b");

    // Drift is put right, and a reconcile without a change writes nothing.
    scenario
        .patch(SECRET, "s", json!({"data": {"username": root}}))
        .await;
    let secret = scenario
        .until(SECRET, "s", "the fixed entry", |s| {
            s.data["data"]["username"] == admin
        })
        .await;
    assert_eq!(host.stop().await.code(), Some(0));
    let host = scenario.start(&controller("puppet.wasm", SECRETS));
    host.until_reconciles("generated-rest/p", 1).await;
    scenario.until_ready("p").await;
    assert_eq!(
        scenario.get(SECRET, "s").await.unwrap().metadata.resource_version,
        secret.metadata.resource_version
    );

    // A key cannot be both.
    scenario.puppet("p", spec("b", json!({"password": root}))).await;
    let says = "ChildRefused: /s … \"password\" … leave it out of one of the two";
    scenario.until_stalled("p", says).await;
    assert_eq!(values(&scenario.get(SECRET, "s").await.unwrap()), second);
}

#[tokio::test]
async fn values_that_somebody_else_chose_are_not_drawn_over_even_when_children_are_adopted() {
    let (scenario, _host) = puppets("generated-not-ours", &format!("{SECRETS}\nadopt: true")).await;
    let theirs = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"other": "value"},
    });
    let theirs = scenario.apply(&theirs.to_string()).await;
    scenario.puppet("p", spec(&[password()])).await;
    let says = "ChildRefused: /s … the host did not generate it … delete or rename";
    scenario.until_stalled("p", says).await;
    assert_eq!(
        scenario.get(SECRET, "s").await.unwrap().metadata.resource_version,
        theirs.metadata.resource_version
    );
}

/// Regression: a Secret that was created while Secrets were not retained kept its owner reference, and was deleted
/// with its parent.
#[tokio::test]
async fn a_change_of_what_is_retained_reaches_what_exists_at_once() {
    let scenario = Scenario::new("retention").await;
    let with = |removal: &str| {
        let kinds = format!(
            "children:\n- {{apiVersion: v1, kind: Secret, onRemoval: {removal}}}\n\
             - {{apiVersion: v1, kind: ConfigMap, onRemoval: {removal}}}\n\
             - {{apiVersion: v1, kind: Service}}"
        );
        scenario.config(&controller("puppet.wasm", &kinds))
    };
    let _host = scenario.start_with(&with("delete"), &[]);
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80, "protocol": "TCP"}]}});
    let mut response = spec(&[password()])["response"].clone();
    response["children"] = json!([service, config_map("a", ""), config_map("b", "")]);
    scenario.ready_with("p", json!({"response": response})).await;
    // One that the plugin names, and one that it only keeps.
    response["children"] = json!([service, config_map("a", "")]);
    response["keep"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "b"}]);
    scenario.ready_with("p", json!({"response": response})).await;
    let is_owned = |object: &DynamicObject| object.metadata.owner_references.is_some();
    let all = [(SECRET, "s"), (CONFIG_MAP, "a"), (CONFIG_MAP, "b")];
    let password = values(&scenario.get(SECRET, "s").await.unwrap());
    for (kind, name) in all {
        scenario.until(kind, name, "owned", is_owned).await;
    }

    with("retain");
    for (kind, name) in all {
        scenario
            .until(kind, name, "without an owner", |object| !is_owned(object))
            .await;
    }
    scenario.remove(PUPPET, "p").await;
    scenario.until_gone("v1/Service", "s").await;
    for (kind, name) in all {
        assert!(scenario.get(kind, name).await.is_some(), "{name} went");
    }
    scenario.ready_with("p", json!({"response": response})).await;
    assert_eq!(values(&scenario.get(SECRET, "s").await.unwrap()), password);

    // In the other direction an owner reference proves a child, so a Secret that has only the label and annotations
    // needs adoption.
    with("delete");
    let says = "ChildRefused: ConfigMap retention/a … but no owner reference … `adopt: true`";
    scenario.until_stalled("p", says).await;
    let text = std::fs::read_to_string(with("delete")).unwrap();
    scenario.file("config.yaml", text + "    adopt: true\n");
    for (kind, name) in &all[..2] {
        scenario
            .until(kind, name, "owned by the present parent", is_owned)
            .await;
    }
    assert_eq!(values(&scenario.get(SECRET, "s").await.unwrap()), password);
}

/// Regression: another password was drawn within a second, which the database did not know, and the parent was ready.
#[tokio::test]
async fn a_generated_secret_that_is_lost_is_not_drawn_again_until_a_user_orders_it() {
    let kinds = BOTH.replace("ConfigMap", "ConfigMap, onRemoval: retain");
    let (scenario, host) = puppets("lost", &kinds).await;
    let mut with_data = spec(&[password()]);
    with_data["response"]["children"] = json!([config_map("data", "")]);
    scenario.ready_with("p", with_data.clone()).await;
    let first = scenario.get(SECRET, "s").await.unwrap();
    let lost = async |what: &str| {
        let says = format!("lost/s … {what} … restore it from a backup");
        order_in(&scenario, &says).await
    };
    let order = async |order: &str| scenario.annotate(PUPPET, "p", AGAIN, order).await;
    let gone = async || {
        scenario.delete(SECRET, "s").await;
        lost("it is gone").await
    };

    assert_eq!(gone().await, first.metadata.uid.clone().unwrap());
    assert_eq!(host.stop().await.code(), Some(0));
    // The record is in the cluster.
    let host = scenario.start(&controller("puppet.wasm", &kinds));
    host.until_reconciles("lost/p", 1).await;
    gone_still(&scenario).await;

    // Restored from a backup.
    let mut backup = serde_json::to_value(&first).unwrap();
    for field in ["uid", "resourceVersion", "managedFields", "creationTimestamp"] {
        backup["metadata"].as_object_mut().unwrap().remove(field);
    }
    scenario.apply(&backup.to_string()).await;
    scenario.until_ready("p").await;
    assert_eq!(values(&scenario.get(SECRET, "s").await.unwrap()), values(&first));

    // A key that is lost, and not the whole Secret.
    scenario
        .patch(SECRET, "s", json!({ "data": { "password": null } }))
        .await;
    let uid = lost("its key \"password\" is gone").await;
    order(&uid).await;
    scenario.until_ready("p").await;
    let drawn = scenario.get(SECRET, "s").await.unwrap();
    assert_ne!(values(&drawn)["password"], values(&first)["password"]);

    // An order is about one Secret, and does not hold for the next.
    order(&gone().await).await;
    scenario.until_ready("p").await;
    gone().await;

    // The next parent of that name finds what was retained beside it.
    scenario.remove(PUPPET, "p").await;
    scenario.puppet("p", with_data).await;
    assert_eq!(lost("a child that was retained from then").await, "s");
    gone_still(&scenario).await;
    order("s").await;
    scenario.until_ready("p").await;
    assert!(scenario.get(SECRET, "s").await.is_some());
}

/// Regression: one Secret that must not be drawn again stopped every other child of its parent.
#[tokio::test]
async fn a_generated_secret_that_is_refused_stops_what_comes_after_it_and_nothing_else() {
    let (scenario, _host) = puppets("secret-refused", BOTH).await;
    let puppet = async |text: &str, names: &[&str]| {
        let mut spec = spec(&[password()]);
        let mut after = config_map("after", text);
        after["metadata"]["annotations"] = json!({ "operator-host.dev/after": "Secret/s" });
        let mut last = config_map("last", text);
        last["metadata"]["annotations"] = json!({ "operator-host.dev/after": "ConfigMap/after" });
        let rest =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "labels": {"team": "a"}}});
        let mut children = vec![after, last, rest];
        children.extend(names.iter().map(|name| config_map(name, text)));
        spec["response"]["children"] = json!(children);
        scenario.puppet("p", spec).await;
    };
    let text = |text: &'static str| move |map: &DynamicObject| map.data["data"]["text"] == text;
    puppet("1", &["beside", "removed"]).await;
    scenario.until_ready("p").await;
    scenario.delete(SECRET, "s").await;
    scenario.until_stalled("p", "GeneratedSecretLost").await;
    puppet("2", &["beside", "new"]).await;
    scenario.until(CONFIG_MAP, "beside", "changed", text("2")).await;
    scenario.until(CONFIG_MAP, "new", "made", text("2")).await;
    let puppet_now = scenario.until(PUPPET, "p", "judged again", is_judged).await;
    let stalled = condition(&puppet_now, "Stalled").unwrap();
    assert_eq!(stalled["reason"], "GeneratedSecretLost");
    assert_contains(stalled["message"].as_str().unwrap(), "secret-refused/s");
    gone_still(&scenario).await;
    for name in ["after", "last"] {
        let map = scenario.get(CONFIG_MAP, name).await.unwrap();
        assert_eq!(map.data["data"]["text"], "1", "{name} waits");
    }
    assert!(
        scenario.get(CONFIG_MAP, "removed").await.is_some(),
        "nothing is pruned"
    );

    // One that somebody else made.
    let theirs = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"other": "value"},
    });
    scenario.apply(&theirs.to_string()).await;
    puppet("3", &["beside", "new"]).await;
    scenario.until(CONFIG_MAP, "beside", "changed", text("3")).await;
    let says = "ChildRefused: secret-refused/s … was not created by this host";
    scenario.until_stalled("p", says).await;
    scenario.delete(SECRET, "s").await;

    let order = order_in(&scenario, "").await;
    scenario.annotate(PUPPET, "p", AGAIN, order).await;
    scenario.until_ready("p").await;
    assert!(scenario.get(SECRET, "s").await.is_some(), "it is drawn");
    scenario.until(CONFIG_MAP, "last", "changed", text("3")).await;
    scenario.until_gone(CONFIG_MAP, "removed").await;
}

/// Regression: a Secret that was deleted after the answer was judged, while another one was created, was drawn again.
#[tokio::test]
async fn a_generated_secret_that_is_lost_while_another_is_created_is_not_drawn_again() {
    let (scenario, proxy) = behind_a_proxy("secret-lost-meanwhile").await;
    let _host = scenario.start(&controller("puppet.wasm", SECRETS));
    for (puppet, secret) in [("p", "lost"), ("q", "other")] {
        scenario.ready_with(puppet, generating(&[secret])).await;
    }
    drop(proxy.take_seen());
    proxy.set_mode_of("/secrets?&fieldManager", Mode::Stall);
    scenario.puppet("p", generating(&["first", "lost"])).await;
    proxy
        .until_seen(|seen| seen.method == "POST" && seen.uri.contains("/secrets"))
        .await;
    scenario.delete(SECRET, "lost").await;
    scenario.delete(SECRET, "other").await;
    // The watch has delivered both.
    scenario.until_stalled("q", "GeneratedSecretLost").await;
    proxy.set_mode(Mode::Pass);
    scenario.until_stalled("p", "GeneratedSecretLost").await;
    assert!(scenario.get(SECRET, "first").await.is_some());
    assert!(scenario.get(SECRET, "lost").await.is_none());
}

/// Regression: the parent told its users to annotate it, in a namespace that was being deleted.
#[tokio::test]
async fn a_generated_secret_that_goes_with_its_namespace_is_not_called_lost() {
    // Nobody else deletes anything, and the host does not watch namespaces.
    let cluster = own_cluster(Options::bare()).await;
    let scenario = Scenario::within(&cluster, "lost-and-going").await;
    let host = scenario.start(&controller("puppet.wasm", BOTH));
    scenario.ready_with("p", generating(&["s"])).await;
    scenario.delete("v1/Namespace", "lost-and-going").await;
    let probe = config_map("probe", "");
    let is_refused = async || scenario.try_create(CONFIG_MAP, &probe).await.is_err();
    until_true("nothing can be created", is_refused).await;
    let before = host.reconciles("lost-and-going/p");
    scenario.delete(SECRET, "s").await;
    host.until_reconciles("lost-and-going/p", before + 3).await;
    let puppet = scenario.get(PUPPET, "p").await.unwrap();
    assert!(is_true(&puppet, "Ready"), "{puppet:?}");
    assert!(!host.log().contains("generate-again"), "{}", host.log());
}

/// Reports whether the status is about the current spec.
fn is_judged(puppet: &DynamicObject) -> bool {
    puppet.data["status"]["observedGeneration"] == puppet.metadata.generation.unwrap_or_default()
}

async fn gone_still(scenario: &Scenario) {
    scenario.until_stalled("p", "GeneratedSecretLost").await;
    assert!(scenario.get(SECRET, "s").await.is_none());
}

/// Regression: a Secret that was deleted after it was found complete, while other children were applied, was created from
/// the child that is the rest of it: without values, and as somebody else's.
#[tokio::test]
async fn a_generated_secret_that_is_deleted_during_a_reconcile_is_not_made_from_its_other_fields() {
    let (scenario, proxy) = behind_a_proxy("secret-lost-between").await;
    let _host = scenario.start(&controller("puppet.wasm", BOTH));
    let with_rest = |text: &str| {
        let rest =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "labels": {"team": "a"}}});
        let mut spec = spec(&[password()]);
        spec["response"]["children"] = json!([config_map("before", text), rest]);
        spec
    };
    let mut with_more = with_rest("1");
    let children = with_more["response"]["children"].as_array_mut().unwrap();
    children.push(config_map("removed", "1"));
    scenario.ready_with("p", with_more).await;
    scenario.ready_with("q", generating(&["other"])).await;
    drop(proxy.take_seen());
    proxy.set_mode_of("/configmaps/before?", Mode::Stall);
    scenario.puppet("p", with_rest("2")).await;
    proxy
        .until_seen(|seen| seen.method == "PATCH" && seen.uri.contains("/configmaps/before?"))
        .await;
    scenario.delete(SECRET, "s").await;
    scenario.delete(SECRET, "other").await;
    // The watch has delivered both.
    scenario.until_stalled("q", "GeneratedSecretLost").await;
    proxy.set_mode(Mode::Pass);
    scenario.until_stalled("p", "GeneratedSecretLost").await;
    gone_still(&scenario).await;
    assert!(
        scenario.get(CONFIG_MAP, "removed").await.is_some(),
        "nothing is pruned"
    );
}

/// Regression: a Secret that is deleted with its parent was drawn again when it was lost: the record that it was generated
/// went with it.
#[tokio::test]
async fn a_generated_secret_that_is_lost_is_not_drawn_again_when_it_is_not_retained() {
    let kinds = BOTH.replace("Secret", "Secret, onRemoval: delete");
    let (scenario, _host) = puppets("secret-lost-deleted", &kinds).await;
    let with = |text: &str| {
        let mut spec = spec(&[password()]);
        spec["response"]["children"] = json!([config_map("beside", text)]);
        spec
    };
    scenario.ready_with("p", with("1")).await;
    scenario.delete(SECRET, "s").await;
    scenario.until_stalled("p", "GeneratedSecretLost").await;
    scenario.puppet("p", with("2")).await;
    scenario.until_text("beside", "2").await;
    gone_still(&scenario).await;
    scenario.until_stalled("p", "GeneratedSecretLost").await;

    // The record of one that is not wanted any more goes.
    scenario
        .ready_with("p", json!({"response": {"generate": []}}))
        .await;
    scenario.ready_with("p", with("3")).await;
    assert!(scenario.get(SECRET, "s").await.is_some());
}

/// Regression: a Secret was not recorded as generated while another one of its parent was refused.
#[tokio::test]
async fn a_generated_secret_is_recorded_also_when_another_one_is_refused() {
    let (scenario, _host) = puppets("secret-beside-refused", SECRETS).await;
    let entries = [password()];
    // It lacks a certificate.
    let refused = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "refused"}, "type": "kubernetes.io/tls",
    });
    let mut spec = json!({"response": {
        "generate": [{"name": "s", "entries": entries}, {"name": "refused", "entries": entries}],
        "children": [refused],
    }});
    scenario.puppet("p", spec.clone()).await;
    scenario.until_told("p", "Ready=False ApplyFailed: tls.crt").await;
    scenario.delete(SECRET, "s").await;
    // The watch has delivered it.
    scenario.ready_with("q", json!({"response": {}})).await;
    spec["response"]["status"] = json!({});
    scenario.puppet("p", spec).await;
    scenario.until(PUPPET, "p", "judged again", is_judged).await;
    assert!(scenario.get(SECRET, "s").await.is_none());
}

/// Regression: a Secret that somebody else created while the host was about to generate it was recorded as generated, and
/// its deletion as the loss of values.
#[tokio::test]
async fn a_secret_that_somebody_else_creates_first_is_not_recorded_as_generated() {
    let (scenario, proxy) = behind_a_proxy("secret-of-another").await;
    let _host = scenario.start(&controller("puppet.wasm", SECRETS));
    proxy.set_mode_of("/secrets?&fieldManager", Mode::Stall);
    scenario.puppet("p", generating(&["first", "s"])).await;
    proxy
        .until_seen(|seen| seen.method == "POST" && seen.uri.contains("/secrets"))
        .await;
    let theirs = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"password": "chosen"}});
    scenario.apply(&theirs.to_string()).await;
    // The watch has delivered it.
    scenario.puppet("q", generating(&["s"])).await;
    let says = "ChildRefused: secret-of-another/s … was not created by this host";
    scenario.until_stalled("q", says).await;
    scenario.remove(PUPPET, "q").await;
    proxy.set_mode(Mode::Pass);
    scenario.until_stalled("p", says).await;
    scenario.delete(SECRET, "s").await;
    scenario.until_ready("p").await;
    let secret = scenario.get(SECRET, "s").await.unwrap();
    assert_eq!(decoded(&values(&secret)["password"]).len(), 24, "it is generated");
}
