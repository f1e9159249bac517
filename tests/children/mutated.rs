//! A mutating webhook changes pods when they are created, as those of image mirrors and service meshes do.

use crate::support::prelude::*;
use k8s_openapi::ByteString;

use crate::webhook::reviewer::serve;
use crate::webhook::{Authority, label_namespace};

const POD: &str = "v1/Pod";
const WEBHOOK: &str = "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration";

/// Answers a review: the image comes from a mirror.
async fn review(_review: Value) -> Value {
    let patch = json!([{ "op": "replace", "path": "/spec/containers/0/image", "value": "mirror/web:1" }]);
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

/// Regression: the host set the image back when a third party annotated the pod or the host restarted, which the webhook
/// does not see, and the API server refused it or the pod ran another image.
#[tokio::test]
async fn what_a_webhook_changes_at_creation_stays_and_costs_no_write() {
    let scenario = Scenario::new("mutated").await;
    let authority = Authority::new(&scenario, "ca");
    let url = serve(&authority, review).await;
    label_namespace(&scenario).await;
    let authority = ByteString(std::fs::read(authority.0.join("ca.crt")).unwrap());
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": "mutated" },
        "webhooks": [{
            "name": "mutated.operator-host.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": { "url": url, "caBundle": authority },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] }],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "mutated" } },
        }],
    });
    scenario.apply(&webhook.to_string()).await;
    // A new webhook takes effect after a moment.
    let probe = serde_json::from_value(pod("probe")).unwrap();
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let is_mirrored = async || image(&scenario.api(POD).create(&dry_run, &probe).await.unwrap()) != "web:1";
    until_true("the webhook takes effect", is_mirrored).await;

    let config = controller("puppet.wasm", "children: [{apiVersion: v1, kind: Pod}]");
    let host = scenario.start(&config);
    scenario.ready_wants("p", &[pod("web")]).await;
    let reconciles = host.reconciles("mutated/p");
    let annotation = json!({ "metadata": { "annotations": { "example.com/seen": "yes" } } });
    scenario.patch(POD, "web", annotation).await;
    host.until_reconciles("mutated/p", reconciles + 1).await;
    let before = host.reconciles("mutated/p");
    assert_eq!(host.stop().await.code(), Some(0));
    // Its log follows that of the first.
    let host = scenario.start(&config);
    host.until_reconciles("mutated/p", before + 1).await;
    // A reconcile with another reason than the start.
    let annotation = json!({ "metadata": { "annotations": { "example.com/seen": "again" } } });
    scenario.patch(POD, "web", annotation).await;
    host.until_reconciles("mutated/p", before + 2).await;

    let web = scenario.get(POD, "web").await.unwrap();
    assert_eq!(image(&web), "mirror/web:1");
    let writes = scenario.all_writes(cluster().await).await;
    let of_pod = writes_to(&writes, "pods");
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
