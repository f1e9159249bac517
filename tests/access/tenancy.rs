//! Tenants of one host: actions in one namespace do not affect the parents of another.

use crate::samples::echo::CONTROLLER;
use crate::samples::many_echoes::{ECHO, POD, apply, until_exact};
use crate::support::prelude::*;

/// Returns a configuration of `tenant` that also watches `other`.
fn config_of_both(tenant: &Scenario, other: &Scenario, controllers: &str) -> PathBuf {
    let text = std::fs::read_to_string(tenant.config(controllers)).unwrap();
    let one = format!("namespaces: [{}]", tenant.namespace);
    let both = format!("namespaces: [{}, {}]", tenant.namespace, other.namespace);
    assert!(text.contains(&one));
    tenant.file("config.yaml", text.replace(&one, &both))
}

/// Returns a forged pod with the label and annotations of the host's own pods.
fn forged(name: &str, parent: &str, owners: &Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"operator-host.dev/controller": "echo"},
            "annotations": {"operator-host.dev/parent": parent},
            "ownerReferences": owners,
        },
        "spec": {"containers": [{"name": "c", "image": "evil:1"}]},
    })
    .to_string()
}

async fn evict(scenario: &Scenario, pod: &str) {
    let status = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    let params = PatchParams::default();
    let api = scenario.api(POD);
    api.patch_status(pod, &params, &status).await.expect("a status");
}

/// Regression: such a pod counted as a retained child of `forged-tenant/web`, so Echo saw its own pod as ended and
/// left it out, and the host deleted it.
#[tokio::test]
async fn a_forged_object_in_another_namespace_is_not_a_child() {
    let tenant = Scenario::new("forged-tenant").await;
    // Its name sorts first, so that a lookup by name alone would find its objects.
    let attacker = Scenario::new("forged-attacker").await;
    let _host = tenant.start_with(&config_of_both(&tenant, &attacker, CONTROLLER), &[]);
    apply(&tenant, "web", 2).await;
    until_exact(&tenant).await;
    let before = tenant.get(POD, "web-pod-0").await.unwrap();

    let owner = json!([{
        "apiVersion": "my-operator.dev/v1", "kind": "Echo", "name": "web", "controller": true,
        "uid": tenant.get(ECHO, "web").await.unwrap().metadata.uid,
    }]);
    for (name, parent, owners) in [
        ("web-pod-0", "forged-tenant/web", json!([])),
        ("more", "forged-tenant/web", owner),
    ] {
        attacker.apply(&forged(name, parent, &owners)).await;
    }
    evict(&attacker, "web-pod-0").await;
    // Each change causes a reconcile with the current caches.
    for replicas in [3, 2, 3] {
        apply(&tenant, "web", replicas).await;
        until_exact(&tenant).await;
    }
    let after = tenant.get(POD, "web-pod-0").await.unwrap();
    // The tenant's pod was not recreated.
    assert_eq!(after.metadata.uid, before.metadata.uid);
}

const SECRET: &str = "v1/Secret";
const KEY: &str = "operator-host-provenance";
const PROOF: &str = "operator-host.dev/provenance";

fn secrets() -> String {
    controller("puppet.wasm", "children: [{apiVersion: v1, kind: Secret}]")
}

fn generates(name: &str) -> Value {
    let entries = json!([{"key": "password", "length": 24}]);
    json!({"response": {
        "generate": [{"name": name, "entries": entries}],
        "status": {"seen": "$children"},
    }})
}

/// Creates a Secret with the label and annotations of one generated for a puppet, and with a known value.
async fn plant(scenario: &Scenario, name: &str, parent: &str) -> DynamicObject {
    let parent = format!("{}/{parent}", scenario.namespace);
    let planted = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "name": name,
            "labels": {"operator-host.dev/controller": "puppet", "operator-host.dev/generated": "true"},
            "annotations": {"operator-host.dev/parent": parent},
        },
        "stringData": {"password": "known"},
    });
    scenario.apply(&planted.to_string()).await
}

fn is_proved(secret: &DynamicObject) -> bool {
    secret.annotations().contains_key(PROOF)
}

/// Regression: anyone who could create a Secret could choose the password of a future database.
#[tokio::test]
async fn a_planted_password_is_refused_by_name_until_it_is_gone_or_accepted() {
    let scenario = Scenario::new("planted").await;
    let first = plant(&scenario, "s", "p").await;
    let second = plant(&scenario, "t", "q").await;
    let _host = scenario.start(&secrets());
    for (parent, secret, planted) in [("p", "s", &first), ("q", "t", &second)] {
        scenario.puppet(parent, generates(secret)).await;
        let message = scenario.until_stalled(parent, "ChildRefused").await;
        let accept = format!("accept-secrets={}", planted.metadata.uid.as_deref().unwrap());
        let which = format!("planted/{secret}");
        let words = format!("{which} … no proof of it … {accept} … Do not delete it");
        assert_contains(&message, &words);
        let now = scenario.version(SECRET, secret).await;
        assert_eq!(Some(now), planted.metadata.resource_version);
        let puppet = scenario.get(PUPPET, parent).await.unwrap();
        let seen = &puppet.data["status"]["seen"];
        assert!(seen.is_null(), "the plugin saw the planted Secret");
    }
    scenario.delete(SECRET, "s").await;
    let drawn = scenario.until(SECRET, "s", "generated", is_proved).await;
    assert_ne!(drawn.data["data"]["password"], first.data["data"]["password"]);
    scenario.until_ready("p").await;
    // Anyone who may change the parent may accept it; the UID identifies this Secret.
    let accept = json!({"metadata": {"annotations": {
        "operator-host.dev/accept-secrets": second.metadata.uid,
    }}});
    scenario.patch(PUPPET, "q", accept).await;
    let taken = scenario.until(SECRET, "t", "proved from now on", is_proved).await;
    assert_eq!(taken.data["data"], second.data["data"]);
    scenario.until_ready("q").await;
    let has_seen = |q: &DynamicObject| q.data["status"]["seen"][0].is_object();
    scenario.until(PUPPET, "q", "the Secret seen", has_seen).await;
}

/// A Secret that one host has proved is proved for another, too: the first host creates the key.
#[tokio::test]
async fn hosts_that_need_the_key_at_the_same_time_share_one_and_need_it_again_after_a_restart() {
    let home = Scenario::new("key-home").await;
    let tenants = [Scenario::new("key-a").await, Scenario::new("key-b").await];
    let start = |tenant: &Scenario| {
        let config = tenant.config_with("hostNamespace: key-home", &secrets());
        tenant.start_with(&config, &[])
    };
    for tenant in &tenants {
        tenant.puppet("p", generates("s")).await;
    }
    let hosts: Vec<_> = tenants.iter().map(start).collect();
    let mut proofs = Vec::new();
    for (tenant, host) in tenants.iter().zip(hosts) {
        tenant.until_ready("p").await;
        proofs.push(tenant.until(SECRET, "s", "generated", is_proved).await);
        assert_eq!(host.stop().await.code(), Some(0));
    }
    let key = home.get(SECRET, KEY).await.expect("the key");
    assert_eq!(key.data["immutable"], true);
    // The other host, after a restart, for a recreated parent.
    let [first, _] = &tenants;
    first.delete(PUPPET, "p").await;
    let host = start(first);
    first.until_gone(PUPPET, "p").await;
    first.puppet("p", generates("s")).await;
    first.until_ready("p").await;
    let now = first.get(SECRET, "s").await.unwrap();
    assert_eq!(now.data["data"], proofs[0].data["data"]);
    // Removed and installed again: the key went with the namespace, and the parent says which Secret is its own.
    assert_eq!(host.stop().await.code(), Some(0));
    home.delete(SECRET, KEY).await;
    let host = start(first);
    let is_proved_again = |secret: &DynamicObject| secret.annotations()[PROOF] != now.annotations()[PROOF];
    let what = "proved by the new key";
    let kept = first.until(SECRET, "s", what, is_proved_again).await;
    assert_eq!(kept.data["data"], proofs[0].data["data"]);
    first.until_ready("p").await;
    // A parent that is made again says nothing: the Secret is refused by name, and no value is replaced.
    assert_eq!(host.stop().await.code(), Some(0));
    home.delete(SECRET, KEY).await;
    first.delete(PUPPET, "p").await;
    let _host = start(first);
    first.until_gone(PUPPET, "p").await;
    first.puppet("p", generates("s")).await;
    let message = first.until_stalled("p", "ChildRefused").await;
    assert_contains(&message, "key-a/s … a host with another key");
    let [keep, delete] = ["keep them: kubectl annotate", "delete"].map(|words| message.find(words));
    assert!(
        keep.is_some() && keep < delete,
        "the safe advice comes first: {message}"
    );
    let kept = first.get(SECRET, "s").await.unwrap();
    assert_eq!(kept.data["data"], proofs[0].data["data"]);
}

#[tokio::test]
async fn without_the_right_to_the_key_nothing_is_generated_and_the_parent_names_what_is_missing() {
    let home = Scenario::new("no-key-home").await;
    let scenario = Scenario::limited("no-key").await;
    let grant = async |scenario: &Scenario, resources: &[&str]| {
        let rules = json!([{"apiGroups": ["*"], "resources": resources, "verbs": ["*"]}]);
        scenario.grant("host", user(LIMITED), rules).await;
    };
    grant(&scenario, &["*"]).await;
    let config = scenario.config_with("hostNamespace: no-key-home", &secrets());
    let _host = scenario.start_with(&config, &[]);
    scenario.puppet("p", generates("s")).await;
    let says = "Reconciling=True ApplyFailed: no-key/s … \
         cannot get Secret no-key-home/operator-host-provenance … cannot get resource \"secrets\" … \
         no Secret is generated until this succeeds";
    scenario.until_told("p", says).await;
    assert!(scenario.get(SECRET, "s").await.is_none());
    grant(&home, &["secrets"]).await;
    scenario.until(SECRET, "s", "generated", is_proved).await;
    scenario.until_ready("p").await;
}

#[tokio::test]
async fn a_parent_in_the_hosts_own_namespace_is_refused_unless_that_is_allowed() {
    let scenario = Scenario::new("beside-the-host").await;
    let with = |more: &str| {
        let top = "hostNamespace: beside-the-host";
        scenario.config_with(top, &controller("puppet.wasm", more))
    };
    let _host = scenario.start_with(&with(""), &[]);
    scenario.wants("p", &[config_map("a", "")]).await;
    let says = "NamespaceRefused: \"beside-the-host\" is the host's own … `hostNamespace` under `allow`";
    scenario.until_stalled("p", says).await;
    assert!(scenario.get(CONFIG_MAP, "a").await.is_none());
    with("allow: [hostNamespace]");
    scenario.until_there(CONFIG_MAP, "a").await;
    scenario.until_ready("p").await;
}
