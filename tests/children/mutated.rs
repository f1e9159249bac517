//! A mutating webhook changes pods when they are created, as those of image mirrors and service meshes do.

use crate::support::prelude::*;
use k8s_openapi::ByteString;

use crate::webhook::reviewer::serve;
use crate::webhook::{Authority, label_namespace};

const POD: &str = "v1/Pod";
const MUTATING: &str = "MutatingWebhookConfiguration";
const WEBHOOK: &str = "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration";

/// Answers a review: the image of a pod comes from a mirror, and another object loses a label and a field.
async fn review(review: Value) -> Value {
    let object = &review["request"]["object"];
    let removed = ["/metadata/labels/operator-host.dev~1controller", "/data/dropped"].into_iter();
    let removed = removed.filter(|path| object.pointer(path).is_some());
    let patch = match object["kind"] == "Pod" {
        true => json!([{ "op": "replace", "path": "/spec/containers/0/image", "value": "mirror/web:1" }]),
        false => removed
            .map(|path| json!({ "op": "remove", "path": path }))
            .collect(),
    };
    let patch = ByteString(patch.to_string().into_bytes());
    json!({ "allowed": true, "patchType": "JSONPatch", "patch": patch })
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "containers": [{ "name": "web", "image": "web:1" }] },
    })
}

fn image(pod: &DynamicObject) -> &str {
    pod.data["spec"]["containers"][0]["image"].as_str().unwrap()
}

/// Lets a webhook of this kind review what these rules say, in the namespace.
pub(super) async fn intercept<F: Future<Output = Value> + Send>(
    scenario: &Scenario,
    kind: &str,
    answer: impl Fn(Value) -> F + Copy + Send + Sync + 'static,
    mut rules: Value,
) {
    let name = &scenario.namespace;
    let authority = Authority::new(scenario, "ca");
    let url = serve(&authority, answer).await;
    label_namespace(scenario).await;
    let authority = ByteString(std::fs::read(authority.0.join("ca.crt")).unwrap());
    rules["apiGroups"] = json!([""]);
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": { "name": name },
        "webhooks": [{
            "name": "mutated.operator-host.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": { "url": url, "caBundle": authority },
            "rules": [rules],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": name } },
        }],
    });
    scenario.apply(&webhook.to_string()).await;
}

/// Regression: the host set the image back when a third party annotated the pod or the host restarted, which the webhook
/// does not see, and the API server refused it or the pod ran another image.
#[tokio::test]
async fn what_a_webhook_changes_at_creation_stays_and_costs_no_write() {
    let scenario = Scenario::new("mutated").await;
    let rules = json!({ "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] });
    intercept(&scenario, MUTATING, review, rules).await;
    // A new webhook takes effect after a moment.
    let probe = pod("probe");
    let is_mirrored = async || image(&scenario.try_create(POD, &probe).await.unwrap()) != "web:1";
    until_true("the webhook takes effect", is_mirrored).await;

    let config = controller("puppet.wasm", "children: [{apiVersion: v1, kind: Pod}]");
    let host = scenario.start(&config);
    scenario.ready_wants("p", &[pod("web")]).await;
    let reconciles = host.reconciles("mutated/p");
    scenario.annotate(POD, "web", "example.com/seen", "yes").await;
    host.until_reconciles("mutated/p", reconciles + 1).await;
    let before = host.reconciles("mutated/p");
    assert_eq!(host.stop().await.code(), Some(0));
    // Its log follows that of the first.
    let host = scenario.start(&config);
    host.until_reconciles("mutated/p", before + 1).await;
    // A reconcile with another reason than the start.
    scenario.annotate(POD, "web", "example.com/seen", "again").await;
    host.until_reconciles("mutated/p", before + 2).await;

    let web = scenario.get(POD, "web").await.unwrap();
    assert_eq!(image(&web), "mirror/web:1");
    let of_pod = scenario.writes_to("pods").await;
    let applied = of_pod.iter().filter(|did| did.starts_with("patch"));
    assert_eq!(applied.count(), 1, "only its creation");
    let puppet = scenario.get(PUPPET, "p").await.unwrap();
    assert!(
        is_true(&puppet, "Synced") && is_true(&puppet, "Ready"),
        "{puppet:?}"
    );
    assert!(!host.log().contains("cannot apply"), "{}", scenario.log_tail());
    scenario.delete(WEBHOOK, "mutated").await;
}

/// Regression: the plugin saw no children, dropped ones stayed for ever and edits ended in 409, while all was said to be well.
#[tokio::test]
async fn what_a_policy_removes_at_admission_is_named_once_and_its_children_are_known() {
    let scenario = Scenario::new("mutated-marks").await;
    let rules =
        json!({ "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"] });
    intercept(&scenario, MUTATING, review, rules).await;
    let map = |name: &str, text: &str| {
        let mut map = config_map(name, text);
        map["data"]["dropped"] = "x".into();
        map
    };
    let probe = map("probe", "");
    let is_dropped = async || {
        let probe = scenario.try_create(CONFIG_MAP, &probe).await.unwrap();
        probe.data["data"]["dropped"].is_null()
    };
    until_true("the webhook takes effect", is_dropped).await;

    let host = scenario.start(&controller("puppet.wasm", ""));
    let answer =
        |children: &[Value]| json!({ "response": { "children": children, "status": { "names": "$names" } } });
    scenario
        .puppet("p", answer(&[map("a", "1"), map("b", "1")]))
        .await;
    let said = "ConfigMap mutated-marks/a … data.dropped … operator-host.dev/controller";
    scenario
        .until_told("p", &format!("Synced=True FieldsDropped: {said}"))
        .await;
    scenario
        .until_event(
            "p",
            "Warning FieldsDropped: ConfigMap mutated-marks/a … data.dropped",
        )
        .await;
    let both = |puppet: &DynamicObject| puppet.data["status"]["names"] == json!(["a", "b"]);
    scenario.until(PUPPET, "p", "its children are seen", both).await;
    scenario.until_ready("p").await;
    let explained = scenario
        .program(&["explain", "puppet", "p", "-n", "mutated-marks"])
        .prints();
    assert_contains(&explained, "ConfigMap/a");

    // It is said, and not tried again and again.
    let before = scenario.writes_to("configmaps").await;
    let reconciles = host.reconciles("mutated-marks/p");
    scenario
        .annotate(CONFIG_MAP, "b", "example.com/seen", "yes")
        .await;
    host.until_reconciles("mutated-marks/p", reconciles + 1).await;
    assert_eq!(scenario.writes_to("configmaps").await, before);

    scenario.edit_text("a", "user").await;
    scenario.until_text("a", "1").await;
    scenario.puppet("p", answer(&[map("a", "2")])).await;
    scenario.until_text("a", "2").await;
    scenario.until_gone(CONFIG_MAP, "b").await;
    let dropped = async || {
        let events = scenario.events().await;
        let is_said = |event: &&DynamicObject| {
            let note = event.data["note"].as_str().unwrap_or_default();
            event.data["reason"] == "FieldsDropped" && note.contains("marks/a")
        };
        let said = events.iter().filter(is_said);
        said.map(|it| (it.data["note"].clone(), it.data["series"].clone()))
            .collect::<Vec<_>>()
    };
    // The field after the creation, and the mark after the next apply. Events follow what they are about.
    until_true("both are said", async || dropped().await.len() >= 2).await;
    let dropped = dropped().await;
    assert!(
        dropped.len() == 2 && dropped.iter().all(|(_, series)| series.is_null()),
        "{dropped:?}"
    );
    scenario.delete(WEBHOOK, "mutated-marks").await;
}
