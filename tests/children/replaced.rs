//! Children that are deleted and created again, because the API server refuses a change of a field that is immutable.

use crate::support::prelude::*;

use super::mutated::intercept;

const JOB: &str = "batch/v1/Job";
const QUOTA: &str = "v1/ResourceQuota";
const CHILDREN: &str = "children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: batch/v1, kind: Job}]";

fn says(mut child: Value, annotations: Value) -> Value {
    child["metadata"]["annotations"] = annotations;
    child
}

fn replaceable(child: Value) -> Value {
    says(child, json!({ "operator-host.dev/update": "replace" }))
}

/// A ConfigMap whose data cannot change.
fn fixed(name: &str, text: &str) -> Value {
    let mut child = config_map(name, text);
    child["immutable"] = true.into();
    child
}

fn job(image: &str, restart: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "job" },
        "spec": { "template": { "spec": {
            "restartPolicy": restart, "containers": [{ "name": "job", "image": image }],
        } } },
    })
}

/// Returns how often an object was created.
async fn creations(scenario: &Scenario, name: &str) -> usize {
    let writes = scenario.all_writes(cluster().await).await;
    let is_created = writes.iter().filter(|write| {
        let of = write
            .object_ref
            .as_ref()
            .is_some_and(|object| object.name == name);
        of && write
            .response_status
            .as_ref()
            .is_some_and(|status| status.code == 201)
    });
    is_created.count()
}

#[tokio::test]
async fn a_child_with_an_immutable_field_is_deleted_and_created_again_in_its_order() {
    let (scenario, host) = puppets("replaced", CHILDREN).await;
    let last = |text: &str| {
        says(
            config_map("last", text),
            json!({ "operator-host.dev/after": "ConfigMap/fixed" }),
        )
    };
    scenario.ready_wants("p", &[fixed("fixed", "1"), last("1")]).await;
    let before = scenario.uid(CONFIG_MAP, "fixed").await;

    // Without the annotation nothing is deleted, and the words say what the author can do.
    scenario.wants("p", &[fixed("fixed", "2"), last("2")]).await;
    let advice = "Reconciling=True ApplyFailed: ConfigMap replaced/fixed … immutable … operator-host.dev/update to `replace`";
    scenario.until_told("p", advice).await;
    assert_eq!(scenario.uid(CONFIG_MAP, "fixed").await, before);

    // What comes after it waits until it is there again.
    scenario.set_finalizers(CONFIG_MAP, "fixed", &["test/hold"]).await;
    scenario
        .wants("p", &[replaceable(fixed("fixed", "2")), last("2")])
        .await;
    scenario.until(CONFIG_MAP, "fixed", "going", is_going).await;
    scenario.until_told("p", "Reconciling=True WaitingForChild").await;
    assert_eq!(scenario.text_of("last").await, "1");
    // Also by another host than the one that has deleted it.
    host.kill();
    scenario.set_finalizers(CONFIG_MAP, "fixed", &[]).await;
    scenario.until_gone(CONFIG_MAP, "fixed").await;
    let _host = scenario.start(&controller("puppet.wasm", CHILDREN));
    scenario.until_text("fixed", "2").await;
    scenario.until_ready("p").await;
    assert_eq!(scenario.text_of("last").await, "2");
    assert_ne!(scenario.uid(CONFIG_MAP, "fixed").await, before);
    assert_eq!(creations(&scenario, "fixed").await, 2);

    // A change that the API server takes replaces nothing.
    let now = scenario.uid(CONFIG_MAP, "fixed").await;
    let mut labelled = replaceable(fixed("fixed", "2"));
    labelled["metadata"]["labels"] = json!({ "tier": "web" });
    scenario.ready_wants("p", &[labelled, last("2")]).await;
    assert_eq!(scenario.uid(CONFIG_MAP, "fixed").await, now);
}

#[tokio::test]
async fn a_refusal_of_another_kind_deletes_nothing() {
    let (scenario, _host) = puppets("replaced-not", CHILDREN).await;
    scenario
        .wants(
            "p",
            &[
                replaceable(job("job:1", "Never")),
                replaceable(fixed("fixed", "1")),
            ],
        )
        .await;
    scenario.until_synced("p").await;
    let (job_before, fixed_before) = (
        scenario.uid(JOB, "job").await,
        scenario.uid(CONFIG_MAP, "fixed").await,
    );
    // An invalid value beside the immutable field: the Job could not be created again.
    let invalid = [
        replaceable(job("job:2", "Always")),
        replaceable(fixed("fixed", "1")),
    ];
    scenario.wants("p", &invalid).await;
    scenario
        .until_told("p", "Reconciling=True ApplyFailed: Job")
        .await;
    assert_eq!(scenario.uid(JOB, "job").await, job_before);

    // A quota that is full: the ConfigMap could not be created again.
    let used = scenario.names(CONFIG_MAP).await.len().to_string();
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "full" },
        "spec": { "hard": { "count/configmaps": used } },
    });
    scenario.apply(&quota.to_string()).await;
    let is_counted = |quota: &DynamicObject| quota.data["status"]["used"]["count/configmaps"] == used;
    scenario.until(QUOTA, "full", "counted", is_counted).await;
    let changed = [
        replaceable(job("job:1", "Never")),
        replaceable(fixed("fixed", "2")),
    ];
    scenario.wants("p", &changed).await;
    scenario
        .until_told(
            "p",
            "Reconciling=True ApplyFailed: ConfigMap … it is not replaced, because … exceeded quota",
        )
        .await;
    assert_eq!(scenario.uid(CONFIG_MAP, "fixed").await, fixed_before);
    scenario.delete(QUOTA, "full").await;
    scenario.until_text("fixed", "2").await;

    // Without the invalid value, the Job is replaced.
    scenario.wants("p", &[replaceable(job("job:2", "Never"))]).await;
    let is_new =
        |job: &DynamicObject| job.data["spec"]["template"]["spec"]["containers"][0]["image"] == "job:2";
    scenario.until(JOB, "job", "the new one", is_new).await;
    assert_ne!(scenario.uid(JOB, "job").await, job_before);
}

/// Denies with the words of the API server about an immutable field.
async fn deny(review: Value) -> Value {
    let is_denied = review["request"]["object"]["data"]["text"] == "denied";
    json!({ "allowed": !is_denied, "status": { "message": "data: Forbidden: field is immutable", "code": 422 } })
}

#[tokio::test]
async fn what_a_webhook_denies_is_not_deleted() {
    let (scenario, _host) = puppets("replaced-denied", CHILDREN).await;
    let kind = "ValidatingWebhookConfiguration";
    let rules =
        json!({ "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"] });
    intercept(&scenario, kind, deny, rules).await;
    let probe = config_map("probe", "denied");
    let is_denied = async || scenario.try_create(CONFIG_MAP, &probe).await.is_err();
    until_true("the webhook takes effect", is_denied).await;

    let both = |text: &str| {
        [
            replaceable(config_map("open", text)),
            replaceable(fixed("fixed", text)),
        ]
    };
    scenario.ready_wants("p", &both("1")).await;
    let (open, fixed) = (
        scenario.uid(CONFIG_MAP, "open").await,
        scenario.uid(CONFIG_MAP, "fixed").await,
    );
    // The change of one is denied, and so is the creation of the other in place of the one that cannot change.
    scenario.wants("p", &both("denied")).await;
    let says = "Reconciling=True ApplyFailed: ConfigMap replaced-denied/open … denied the request … \
         ConfigMap replaced-denied/fixed … it is not replaced, because … denied the request";
    scenario.until_told("p", says).await;
    assert_eq!(scenario.uid(CONFIG_MAP, "open").await, open);
    assert_eq!(scenario.uid(CONFIG_MAP, "fixed").await, fixed);
    let did = scenario.writes_to("configmaps").await;
    assert!(!did.iter().any(|did| did.starts_with("delete")), "{did:?}");
    scenario
        .delete(
            &format!("admissionregistration.k8s.io/v1/{kind}"),
            "replaced-denied",
        )
        .await;
}

#[tokio::test]
async fn a_child_is_created_again_when_what_it_owns_is_gone_if_the_plugin_says_so() {
    let (scenario, _host) = puppets("replaced-foreground", CHILDREN).await;
    for (words, waits) in [("replace", false), ("replace,foreground", true)] {
        let child = |text: &str| says(fixed("fixed", text), json!({ "operator-host.dev/update": words }));
        scenario.ready_wants("p", &[child("1")]).await;
        let before = scenario.uid(CONFIG_MAP, "fixed").await;
        let owner = json!([{
            "apiVersion": "v1", "kind": "ConfigMap", "name": "fixed", "uid": before, "blockOwnerDeletion": true,
        }]);
        let mut owned = config_map("owned", "");
        owned["metadata"]["ownerReferences"] = owner;
        owned["metadata"]["finalizers"] = json!(["test/hold"]);
        scenario.apply(&owned.to_string()).await;
        scenario.wants("p", &[child("2")]).await;
        scenario.until(CONFIG_MAP, "owned", "going", is_going).await;
        let release = async || {
            scenario.set_finalizers(CONFIG_MAP, "owned", &[]).await;
            scenario.until_gone(CONFIG_MAP, "owned").await;
        };
        if waits {
            scenario
                .until_told(
                    "p",
                    "Reconciling=True WaitingForChild: ConfigMap replaced-foreground/fixed",
                )
                .await;
            assert_eq!(scenario.uid(CONFIG_MAP, "fixed").await, before);
            release().await;
        }
        scenario.until_text("fixed", "2").await;
        scenario.until_ready("p").await;
        if !waits {
            release().await;
        }
        scenario.wants("p", &[]).await;
        scenario.until_gone(CONFIG_MAP, "fixed").await;
    }
}
