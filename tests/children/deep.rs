//! Objects that are nested deeper than the host reads: they hurt nobody but themselves.

use crate::support::prelude::*;
use crate::webhook::{invalid, minor, served, until_refused as until_webhook_refuses};

/// The kinds of the children, and what limits the wait for a cleanup that cannot be asked for.
const CHILDREN: &str = "\
children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: test.operator-host.dev/v1, kind: Puppet}]
finalizer: {releaseAfter: 1s}
";

/// How the levels are nested. The field managers of maps are nested as deep as they are.
#[derive(Clone, Copy)]
enum Nesting {
    Lists,
    Maps,
}

impl Nesting {
    /// Returns maps where the API server takes them: with 1.20, one level more doubles the time for a request.
    async fn maps(scenario: &Scenario) -> Self {
        if minor(scenario).await < 30 {
            Self::Lists
        } else {
            Self::Maps
        }
    }

    /// Returns more levels than can be read.
    const fn levels(self) -> usize {
        match self {
            Self::Lists => 1_000,
            Self::Maps => 200,
        }
    }
}

/// Returns a puppet with a field of so many levels in its spec.
fn puppet(name: &str, nesting: Nesting, levels: usize) -> String {
    let (open, close) = match nesting {
        Nesting::Lists => ("[", "]"),
        Nesting::Maps => (r#"{"a":"#, "}"),
    };
    format!(
        r#"{{"apiVersion": "test.operator-host.dev/v1", "kind": "Puppet", "metadata": {{"name": "{name}"}},
            "spec": {{"deep": {}[]{}}}}}"#,
        open.repeat(levels),
        close.repeat(levels)
    )
}

/// Sends a request about the puppets, or about the one that `rest` names, and returns the text of the answer, which the client cannot
/// read.
async fn send(scenario: &Scenario, method: &str, rest: &str, body: String) -> Result<String, kube::Error> {
    let namespace = &scenario.namespace;
    let path = format!("/apis/test.operator-host.dev/v1/namespaces/{namespace}/puppets{rest}");
    let content = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = http::Request::builder().method(method).uri(path);
    let request = request.header("content-type", content).body(body.into_bytes());
    scenario.client.request_text(request.unwrap()).await
}

/// Returns the text of a list within lists.
fn lists(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

async fn create(scenario: &Scenario, name: &str, nesting: Nesting) {
    let created = send(scenario, "POST", "", puppet(name, nesting, nesting.levels())).await;
    created.expect("it is created");
}

/// Makes the spec of a puppet deep.
async fn deepen(scenario: &Scenario, name: &str, nesting: Nesting) {
    let body = puppet(name, nesting, nesting.levels());
    let patched = send(scenario, "PATCH", &format!("/{name}"), body).await;
    patched.expect("it is changed");
}

async fn until_gone(scenario: &Scenario, name: &str) {
    eventually(&format!("no {name}"), async || {
        match send(scenario, "GET", &format!("/{name}"), String::new()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

async fn until_refused(scenario: &Scenario, name: &str) {
    let words = "the resource is nested deeper than 120 levels";
    scenario
        .until_event(name, &format!("Warning Unreadable: {words}"))
        .await;
}

fn explain(scenario: &Scenario, name: &str) -> String {
    let arguments = ["explain", "puppet", name, "--namespace", &scenario.namespace];
    scenario.program(&arguments).ends(0)
}

/// Regression: one object that was nested deeper than the host reads made the list and the watch of all others fail.
#[tokio::test]
async fn an_object_that_is_nested_too_deep_is_refused_alone() {
    let scenario = Scenario::new("too-deep").await;
    create(&scenario, "a", Nesting::Lists).await;
    let host = scenario.start(&controller("puppet.wasm", ""));
    let spec = |text: &str| json!({"response": {"children": [config_map("child", text)]}});
    scenario.ready_with("p", spec("1")).await;
    until_refused(&scenario, "a").await;
    create(&scenario, "b", Nesting::maps(&scenario).await).await;
    until_refused(&scenario, "b").await;
    scenario.ready_with("p", spec("2")).await;
    // One that was ready keeps its child, and goes on when it is readable again.
    let deep: Value = serde_json::from_str(&lists(125)).unwrap();
    scenario.patch(PUPPET, "p", json!({"spec": {"deep": deep}})).await;
    until_refused(&scenario, "p").await;
    assert!(scenario.get(CONFIG_MAP, "child").await.is_some());
    scenario.patch(PUPPET, "p", json!({"spec": {"deep": null}})).await;
    scenario.ready_with("p", spec("3")).await;
    scenario.until_text("child", "3").await;
    // A preview says so, too.
    let config = scenario.folder.path().join("config.yaml");
    let config = config.to_str().unwrap();
    let arguments = [
        "diff",
        "--controller",
        "puppet",
        "--config",
        config,
        "-n",
        &scenario.namespace,
        "a",
    ];
    let printed = scenario.program(&arguments).ends(2);
    assert_contains(&printed, "the resource is nested deeper than 120 levels");
    // It is reported, and then left alone.
    let reconciles = host.reconciles("too-deep/a");
    assert!(reconciles <= 4, "{reconciles}");
}

/// Regression: the answer to each request about such an object could not be read, so that its finalizer, and those of its
/// parents, stayed for ever.
#[tokio::test]
async fn what_is_nested_too_deep_is_explained_and_can_be_deleted() {
    let scenario = Scenario::new("too-deep-gone").await;
    let start = || -> Host { scenario.start(&controller("puppet.wasm", CHILDREN)) };
    let host = start();
    let child = |name: &str| {
        json!({"apiVersion": "test.operator-host.dev/v1", "kind": "Puppet", "metadata": {"name": name},
            "spec": {"response": {}}})
    };
    for (parent, kid) in [("one", "kid-one"), ("two", "kid-two")] {
        scenario.ready_wants(parent, &[child(kid)]).await;
        scenario.until_ready(kid).await;
    }
    let maps = Nesting::maps(&scenario).await;
    for (nesting, parent, kid) in [(Nesting::Lists, "one", "kid-one"), (maps, "two", "kid-two")] {
        deepen(&scenario, kid, nesting).await;
        until_refused(&scenario, kid).await;
        // It can be neither compared nor changed.
        let message = scenario.until_stalled(parent, "ChildRefused").await;
        let words =
            format!("Puppet.test.operator-host.dev too-deep-gone/{kid} is nested deeper than 120 levels");
        assert_contains(&message, &words);
        let explained = explain(&scenario, kid);
        let words = "The host does not reconcile it: it is nested deeper than 120 levels … \
             What to do next\n  Unreadable\n";
        assert_contains(&explained, words);
        let words = format!("{kid} … or delete the child");
        assert_contains(&explain(&scenario, parent), &words);
        // A plugin that does not name it may not have been able to read it.
        scenario.ready_with(parent, json!({"response": {}})).await;
        let stays = send(&scenario, "GET", &format!("/{kid}"), String::new()).await;
        assert!(stays.expect("it stays").contains("ownerReferences"));
    }
    for (parent, kid) in [("one", "kid-one"), ("two", "kid-two")] {
        scenario.remove(PUPPET, parent).await;
        until_gone(&scenario, kid).await;
        // The plugin cannot be asked to clean up.
        scenario
            .until_event(kid, "Warning CleanupAbandoned: is nested deeper than 120 levels")
            .await;
    }
    assert_eq!(host.stop().await.code(), Some(0));
    let host = start();
    scenario.ready_with("three", json!({"response": {}})).await;
    deepen(&scenario, "three", maps).await;
    until_refused(&scenario, "three").await;
    assert_eq!(host.stop().await.code(), Some(0));
    let config = scenario.folder.path().join("config.yaml");
    let printed = scenario.program(&["uninstall", "--config"]).arg(config).ends(0);
    assert_contains(&printed, "1 of 1 parents released");
}

/// Regression: the webhook gave no decision about it, so that it was stored with `failurePolicy: Ignore`, and could not be
/// mended with `Fail`.
#[tokio::test]
async fn the_webhook_denies_what_is_nested_too_deep_and_lets_it_be_mended() {
    let scenario = Scenario::new("too-deep-denied").await;
    let maps = Nesting::maps(&scenario).await;
    create(&scenario, "before", maps).await;
    let _served = served(&scenario, &[]).await;
    until_webhook_refuses(&scenario, &invalid(), "denied the request").await;
    for (nesting, levels) in [(Nesting::Lists, 119), (maps, 125), (maps, 200)] {
        let answer = send(&scenario, "POST", "", puppet("deep", nesting, levels)).await;
        let error = answer.expect_err("it is denied").to_string();
        let words = "denied the request: Puppet too-deep-denied/deep is nested deeper than 120 levels";
        assert_contains(&error, words);
    }
    let deepest = send(&scenario, "POST", "", puppet("deepest", maps, 118)).await;
    deepest.expect("the spec has 120 levels");
    scenario.until_ready("deepest").await;
    let body = r#"{"spec": {"deep": null, "response": {}}}"#.to_owned();
    let mended = send(&scenario, "PATCH", "/before", body).await;
    mended.expect("it is less deep now");
    scenario.until_ready("before").await;
}
