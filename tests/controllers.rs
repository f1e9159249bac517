//! Controllers that are objects of the cluster, with plugins in ConfigMaps that nobody mounts. Their kind has no namespace, so
//! these scenarios have a control plane of their own.

use crate::support::prelude::*;

mod bad_input;
mod budget;
mod cost;
mod lifecycle;
mod rights;
mod stages;
mod tenants;

const DEFINITION: &str = "apiextensions.k8s.io/v1/CustomResourceDefinition";
pub const CONTROLLER: &str = "operator-host.dev/v1alpha1/Controller";

/// What the Controllers of these scenarios may do.
const CEILINGS: &str = "ceilings:\n- parents: [{apiGroups: ['*.operator-host.dev', my-operator.dev], kinds: ['*']}]\n  \
                        children: [{apiGroups: [''], kinds: [ConfigMap, Pod]}]\n";

/// A control plane of its own, with a scenario in it.
pub struct World {
    scenario: Scenario,
    pub cluster: ControlPlane,
}

impl std::ops::Deref for World {
    type Target = Scenario;

    fn deref(&self) -> &Scenario {
        &self.scenario
    }
}

impl World {
    /// Starts a control plane, and returns a scenario in it.
    async fn new(name: &str) -> Self {
        Self::within(own_cluster(Options::default()).await, name).await
    }

    pub async fn within(cluster: ControlPlane, name: &str) -> Self {
        let scenario = Scenario::within(&cluster, name).await;
        Self { scenario, cluster }
    }

    /// Starts a host that has no controllers of its own.
    fn start(&self) -> Host {
        self.start_with(&self.configure(CEILINGS), &[])
    }

    /// Writes the configuration, which a running host follows.
    pub fn configure(&self, top: &str) -> PathBuf {
        self.file("config.yaml", format!("{top}\ncontrollers: []\n"))
    }

    /// Puts a version of the puppet into its ConfigMap.
    async fn put(&self, plugin: &[u8]) {
        self.put_as("puppet-plugin", "puppet.wasm", plugin).await;
    }

    /// Puts a plugin into a ConfigMap.
    pub async fn put_as(&self, name: &str, key: &str, plugin: &[u8]) {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"operator-host.dev/plugin": name}},
            "binaryData": {key: k8s_openapi::ByteString(plugin.to_vec())},
        });
        self.apply(&map.to_string()).await;
    }

    /// Applies a Controller for puppets, with additional fields.
    async fn controller(&self, name: &str, more: Value) -> DynamicObject {
        let spec = json!({
            "parent": {"apiVersion": "test.operator-host.dev/v1", "kind": "Puppet"},
            "plugin": {"configMap": {"name": "puppet-plugin"}},
        });
        self.controller_of(name, spec, more).await
    }

    /// Applies a Controller that makes ConfigMaps, with additional fields, and without those that are null there.
    pub async fn controller_of(&self, name: &str, mut spec: Value, more: Value) -> DynamicObject {
        let fields = spec.as_object_mut().unwrap();
        fields.insert(
            "children".into(),
            json!([{"apiVersion": "v1", "kind": "ConfigMap"}]),
        );
        fields.insert("backoff".into(), json!({"initial": "100ms", "max": "1s"}));
        fields.extend(more.as_object().unwrap().clone());
        fields.retain(|_, value| !value.is_null());
        let metadata = json!({"name": name});
        let object = json!({
            "apiVersion": "operator-host.dev/v1alpha1", "kind": "Controller", "metadata": metadata, "spec": spec,
        });
        self.apply(&object.to_string()).await
    }

    /// Starts a control plane and a host, with this plugin and the Controller `puppet`, and waits until it runs.
    async fn running(name: &str, plugin: &[u8], more: Value) -> (Self, Host) {
        let world = Self::new(name).await;
        let host = world.start();
        world.put(plugin).await;
        world.controller("puppet", more).await;
        world.runs("puppet").await;
        (world, host)
    }

    /// Waits until a Controller says this, as in [`Scenario::until_condition`].
    pub async fn says(&self, name: &str, says: &str) -> String {
        self.until_condition(CONTROLLER, name, says).await
    }

    /// Waits until a Controller runs.
    pub async fn runs(&self, name: &str) {
        self.says(name, "Ready=True Running").await;
    }

    /// Waits until the last error of a Controller has these words, and returns it.
    pub async fn until_error(&self, name: &str, words: &str) -> DynamicObject {
        let has = |object: &DynamicObject| {
            let error = object.data["status"]["lastError"].as_str();
            error.is_some_and(|error| contains(error, words))
        };
        self.until(CONTROLLER, name, words, has).await
    }

    /// Waits until this version is live, with nothing beside it.
    async fn until_live(&self, digest: &str) -> DynamicObject {
        let is_live = |object: &DynamicObject| version(object, "live") == digest;
        self.until(CONTROLLER, "puppet", digest, is_live).await
    }

    /// Creates a puppet that wants one ConfigMap of its own name, and waits until it is there.
    async fn served(&self, name: &str) {
        let child = config_map(&format!("{name}-child"), "wanted");
        self.wants(name, &[child]).await;
        self.until_there(CONFIG_MAP, &format!("{name}-child")).await;
    }
}

fn is_ready(object: &DynamicObject) -> bool {
    is_true(object, "Ready")
}

fn version(object: &DynamicObject, which: &str) -> String {
    object.data["status"][which]["digest"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Returns a version of the puppet that differs from the others in its digest.
fn puppet(number: u8) -> Vec<u8> {
    let mut file = variant(0);
    file.extend([0, 3, 1, b'v', number]);
    file
}

#[tokio::test]
async fn one_apply_of_what_pack_prints_makes_a_running_host_serve_a_kind() {
    let world = World::new("controllers-apply").await;
    let host = world.start();
    host.until_log("configuration applied").await;
    let scenario = &world.scenario;
    let plugin = crate::support::plugin("echo");
    let printed = program(&["pack", "--controller", plugin.to_str().unwrap()]).prints();
    for document in printed.split("---\n").filter(|text| text.contains("apiVersion")) {
        scenario.apply(document).await;
    }
    let echo = scenario.until(CONTROLLER, "echo", "Ready", is_ready).await;
    assert_eq!(echo.data["status"]["live"]["name"], "echo");
    assert_eq!(echo.data["status"]["observedGeneration"], 1);
    assert!(!is_true(&echo, "Progressing") && !is_true(&echo, "Stalled"));
    scenario
        .apply(
            "apiVersion: my-operator.dev/v1\nkind: Echo\nmetadata: {name: e}\nspec: {replicas: 2, image: 'echo:1'}",
        )
        .await;
    scenario.until_there("v1/Pod", "e-pod-1").await;
    scenario
        .until(CONTROLLER, "echo", "counts its objects", |echo| {
            echo.data["status"]["objects"] == json!({"total": 1, "notReady": 0})
        })
        .await;
    assert!(condition(&echo, "PluginHeldBack").is_some());
    assert_eq!(host.stop().await.code(), Some(0));
}
