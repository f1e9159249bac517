//! Helpers for the puppet: the plugin in `tests/fixtures/puppet`, which does what its resource's spec describes.

use std::time::{Duration, Instant};

use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, ObjectMeta};
use serde_json::{Value, json};

use crate::support::{Host, Scenario, cluster, condition, eventually, writes_to};

pub const PUPPET: &str = "test.operator-host.dev/v1/Puppet";
pub const CLUSTER_PUPPET: &str = "test.operator-host.dev/v1/ClusterPuppet";
pub const CONFIG_MAP: &str = "v1/ConfigMap";

/// The puppet's files in both binary forms, by the name of the form.
pub const FORMS: [(&str, &str); 2] = [("component", "puppet.wasm"), ("command", "puppet-command.wasm")];

/// Returns the variant of the puppet with this number, a single digit, which follows that entry of `variants`.
pub fn variant(number: u8) -> Vec<u8> {
    variant_of("puppet.wasm", number)
}

/// Returns such a variant of one of the files in [`FORMS`].
pub fn variant_of(file: &str, number: u8) -> Vec<u8> {
    let name = file.trim_end_matches(".wasm");
    let mut file = std::fs::read(crate::support::plugin(name)).unwrap();
    let mark = b"puppet-variant:";
    let mut at = file
        .windows(mark.len())
        .enumerate()
        .filter(|(_, bytes)| bytes == mark);
    let (at, twice) = (at.next().expect("the mark").0 + mark.len(), at.next());
    assert!(twice.is_none(), "the mark is there twice");
    file[at] = b'0' + number;
    file
}

/// Returns a controller for puppets with a plugin file; `more` contains additional lines of its configuration.
pub fn controller(file: &str, more: &str) -> String {
    let mut text = format!(
        "- name: puppet\n  parent: {{apiVersion: test.operator-host.dev/v1, kind: Puppet}}\n  plugin: {file}\n"
    );
    if !more.contains("children:") {
        text.push_str("  children: [{apiVersion: v1, kind: ConfigMap}]\n");
    }
    if !more.contains("backoff:") {
        text.push_str("  backoff: {initial: 50ms, max: 500ms}\n");
    }
    for line in more.lines() {
        text.push_str(&format!("  {line}\n"));
    }
    text
}

/// Returns a ConfigMap as a child in a namespace, for a parent that is in none.
pub fn config_map_in(namespace: &str, name: &str, text: &str) -> Value {
    let mut child = config_map(name, text);
    child["metadata"]["namespace"] = namespace.into();
    child
}

/// Starts a host with the puppet's controller in a namespace of its own; `more` as for [`controller`].
pub async fn puppets(namespace: &str, more: &str) -> (Scenario, Host) {
    let scenario = Scenario::new(namespace).await;
    let host = scenario.start(&controller("puppet.wasm", more));
    (scenario, host)
}

/// Returns a ConfigMap as a child.
pub fn config_map(name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": text}})
}

/// Returns a Deployment as a child, with Pods of this spec.
pub fn deployment(name: &str, pod: &Value) -> Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    })
}

/// Returns the definition of a namespaced kind in a group, which has one version, `v1`, with this schema.
pub fn definition(kind: &str, group: &str, schema: &Value) -> Value {
    let singular = kind.to_lowercase();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{singular}s.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": format!("{singular}s"), "singular": singular, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// Returns a schema that takes everything.
pub fn any() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Reports whether an object is being deleted.
pub fn is_going(object: &DynamicObject) -> bool {
    object.metadata.deletion_timestamp.is_some()
}

impl Scenario {
    /// Creates a puppet, or replaces its spec.
    pub async fn puppet(&self, name: &str, spec: Value) -> DynamicObject {
        let puppet = json!({
            "apiVersion": "test.operator-host.dev/v1", "kind": "Puppet", "metadata": {"name": name}, "spec": spec,
        });
        self.apply(&puppet.to_string()).await
    }

    /// Does so with a puppet that is in no namespace.
    pub async fn cluster_puppet(&self, name: &str, spec: Value) -> DynamicObject {
        let puppet = json!({
            "apiVersion": "test.operator-host.dev/v1", "kind": "ClusterPuppet", "metadata": {"name": name},
            "spec": spec,
        });
        self.apply(&puppet.to_string()).await
    }

    /// Creates a puppet that wants these children, or replaces its spec.
    pub async fn wants(&self, name: &str, children: &[Value]) -> DynamicObject {
        self.puppet(name, json!({"response": {"children": children}}))
            .await
    }

    /// Waits until a ConfigMap has this text.
    pub async fn until_text(&self, name: &str, text: &str) -> DynamicObject {
        let what = format!("the text {text:?}");
        self.until(CONFIG_MAP, name, &what, |map| map.data["data"]["text"] == text)
            .await
    }

    /// Changes the text of a ConfigMap as a user does.
    pub async fn edit_text(&self, name: &str, text: &str) -> DynamicObject {
        let patch = json!({"data": {"text": text}});
        self.patch(CONFIG_MAP, name, patch).await
    }

    /// Waits until a condition of a puppet is as [`Scenario::until_condition`] describes.
    pub async fn until_told(&self, name: &str, says: &str) -> String {
        self.until_condition(PUPPET, name, says).await
    }

    /// Waits until every child of a puppet is applied.
    pub async fn until_synced(&self, name: &str) -> DynamicObject {
        let is_synced = |puppet: &DynamicObject| is_true(puppet, "Synced");
        self.until(PUPPET, name, "applied", is_synced).await
    }

    /// Returns the text of a ConfigMap.
    pub async fn text_of(&self, name: &str) -> Value {
        let map = self.get(CONFIG_MAP, name).await.expect("the ConfigMap");
        map.data["data"]["text"].clone()
    }

    /// Waits until the current generation of the puppet is reconciled successfully.
    pub async fn until_ready(&self, name: &str) -> DynamicObject {
        let generation = self.metadata(PUPPET, name).await.generation;
        self.until(PUPPET, name, "Ready as it is now", |puppet| {
            is_true(puppet, "Ready") && puppet.data["status"]["observedGeneration"].as_i64() >= generation
        })
        .await
    }

    /// Creates a puppet or replaces its spec, and waits until it is ready.
    pub async fn ready_with(&self, name: &str, spec: Value) -> DynamicObject {
        self.puppet(name, spec).await;
        self.until_ready(name).await
    }

    /// Does so with a puppet that wants these children.
    pub async fn ready_wants(&self, name: &str, children: &[Value]) -> DynamicObject {
        self.wants(name, children).await;
        self.until_ready(name).await
    }

    /// Waits until the puppet is stalled for a reason, with words, as in [`Scenario::until_condition`], and returns the
    /// message.
    pub async fn until_stalled(&self, name: &str, says: &str) -> String {
        self.until_told(name, &format!("Stalled=True {says}")).await
    }

    /// Sets an annotation of an object, or removes it when the value is null.
    pub async fn annotate(&self, kind: &str, name: &str, key: &str, value: impl Into<Value>) {
        let annotations = json!({key: value.into()});
        self.patch(kind, name, json!({"metadata": {"annotations": annotations}}))
            .await;
    }

    /// Pauses a puppet.
    pub async fn pause(&self, name: &str) {
        self.annotate(PUPPET, name, "operator-host.dev/paused", "true")
            .await;
    }

    /// Asks the API server to create an object, without effect.
    pub async fn try_create(&self, kind: &str, object: &Value) -> kube::Result<DynamicObject> {
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let object = serde_json::from_value(object.clone()).unwrap();
        self.api(kind).create(&params, &object).await
    }

    /// Changes the status of an object as its controller does.
    pub async fn set_status(&self, kind: &str, name: &str, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        let api = self.api(kind);
        let changed = api.patch_status(name, &PatchParams::default(), &patch).await;
        changed.expect("the status is taken");
    }

    /// Returns the metadata of an object that must exist.
    async fn metadata(&self, kind: &str, name: &str) -> ObjectMeta {
        let object = self.get(kind, name).await;
        object
            .unwrap_or_else(|| panic!("{kind} {name} is not there"))
            .metadata
    }

    /// Returns the UID of an object that must exist.
    pub async fn uid(&self, kind: &str, name: &str) -> String {
        self.metadata(kind, name).await.uid.expect("a UID")
    }

    /// Returns the resource version of an object that must exist.
    pub async fn version(&self, kind: &str, name: &str) -> String {
        self.metadata(kind, name)
            .await
            .resource_version
            .expect("a version")
    }

    /// Returns the Events about what is in the namespace.
    pub async fn events(&self) -> Vec<DynamicObject> {
        let api = self.api("events.k8s.io/v1/Event");
        api.list(&ListParams::default()).await.expect("a list").items
    }

    /// Returns what the hosts of a scenario in the shared cluster did to objects of a resource, as [`writes_to`] does.
    pub async fn writes_to(&self, resource: &str) -> Vec<String> {
        writes_to(&self.all_writes(cluster().await).await, resource)
    }
}

impl Host {
    /// Returns the number of reconciles of a parent (`namespace/name`) so far. The hosts of a scenario share a log.
    pub fn reconciles(&self, parent: &str) -> usize {
        let parent = format!("\"{parent}\"");
        let log = self.log();
        log.lines()
            .filter(|line| line.contains("reconcile done") && line.contains(&parent))
            .count()
    }

    /// Waits until a parent had this many reconciles, and returns how long that took.
    pub async fn until_reconciles(&self, parent: &str, count: usize) -> Duration {
        let start = Instant::now();
        eventually(&format!("{count} reconciles of {parent}"), async || {
            let so_far = self.reconciles(parent);
            (so_far >= count).then_some(()).ok_or_else(|| so_far.to_string())
        })
        .await;
        start.elapsed()
    }
}

/// Reports whether a condition exists and is true.
pub fn is_true(object: &DynamicObject, type_: &str) -> bool {
    condition(object, type_).is_some_and(|condition| condition["status"] == "True")
}

/// Fails unless `text` has these words, as in [`contains`](crate::support::contains).
#[track_caller]
pub fn assert_contains(text: &str, words: &str) {
    for word in words.split(" … ") {
        assert!(text.contains(word), "{text:?} does not contain {word:?}");
    }
}
