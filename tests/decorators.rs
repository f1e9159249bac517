//! Controllers that decorate: objects of kinds that exist without them get children. The puppet for Deployments, which has its orders
//! in an annotation, stands for a plugin.

use crate::support::prelude::*;

mod bad_input;
mod lifecycle;

const CONTROLLER: &str = "operator-host.dev/v1alpha1/Controller";
const DEPLOYMENT: &str = "apps/v1/Deployment";

/// What the Controllers of these scenarios may do.
const CEILINGS: &str = "ceilings:\n- parents: [{apiGroups: ['*.operator-host.dev'], kinds: ['*']}]\n  \
                        decorates: [{apiGroups: [apps], kinds: [Deployment, StatefulSet]}]\n  \
                        children: [{apiGroups: [''], kinds: [ConfigMap]}, {apiGroups: [apps], kinds: [Deployment]}]\n";

struct World {
    scenario: Scenario,
    cluster: ControlPlane,
}

impl std::ops::Deref for World {
    type Target = Scenario;

    fn deref(&self) -> &Scenario {
        &self.scenario
    }
}

impl World {
    /// Starts a control plane with the plugin in a ConfigMap, and a host.
    async fn new(name: &str) -> (Self, Host) {
        let cluster = own_cluster(Options::default().with_audit()).await;
        let scenario = Scenario::within(&cluster, name).await;
        let world = Self { scenario, cluster };
        for (name, plugin) in [
            ("decorator", std::fs::read(plugin("decorator")).unwrap()),
            ("guard", variant_of("decorator.wasm", 6)),
            ("puppet", std::fs::read(plugin("puppet")).unwrap()),
        ] {
            world.put(name, &plugin).await;
        }
        let host = world.start();
        (world, host)
    }

    fn start(&self) -> Host {
        let config = self.file("config.yaml", format!("{CEILINGS}\ncontrollers: []\n"));
        self.scenario.start_with(&config, &[])
    }

    async fn put(&self, name: &str, plugin: &[u8]) {
        use k8s_openapi::ByteString;
        let name = format!("{name}-plugin");
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"operator-host.dev/plugin": name}},
            "binaryData": {format!("{}.wasm", name.trim_end_matches("-plugin")): ByteString(plugin.to_vec())},
        });
        self.scenario.apply(&map.to_string()).await;
    }

    /// Applies a Controller that decorates the Deployments with the label `decorate: yes`, with other fields.
    async fn controller(&self, name: &str, more: Value) -> DynamicObject {
        let mut spec = json!({
            "decorates": [{"apiVersion": "apps/v1", "kind": "Deployment", "selector": "decorate=yes"}],
            "plugin": {"configMap": {"name": "decorator-plugin"}},
            "children": [{"apiVersion": "v1", "kind": "ConfigMap"}],
            "backoff": {"initial": "100ms", "max": "1s"},
        });
        let fields = spec.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        fields.retain(|_, value| !value.is_null());
        let metadata = json!({"name": name});
        let object = json!({"apiVersion": "operator-host.dev/v1alpha1", "kind": "Controller", "metadata": metadata, "spec": spec});
        self.scenario.apply(&object.to_string()).await
    }

    async fn says(&self, name: &str, says: &str) -> String {
        self.until_condition(CONTROLLER, name, says).await
    }

    async fn runs(&self, name: &str) {
        self.says(name, "Ready=True Running").await;
    }

    /// Creates a Deployment with the label that tells the plugin to do this.
    async fn deployment(&self, name: &str, orders: Value) -> DynamicObject {
        self.apply(&deployment(name, &orders).to_string()).await
    }

    /// Creates a Deployment that gets a ConfigMap, and waits for it.
    async fn decorated(&self, name: &str) {
        let child = config_map(&format!("{name}-child"), "wanted");
        self.deployment(name, json!({"response": {"children": [child]}}))
            .await;
        self.until_there(CONFIG_MAP, &format!("{name}-child")).await;
    }

    async fn label(&self, name: &str, value: Value) {
        let patch = json!({"metadata": {"labels": {"decorate": value}}});
        self.patch(DEPLOYMENT, name, patch).await;
    }
}

fn deployment(name: &str, orders: &Value) -> Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "name": name,
            "labels": {"decorate": "yes"},
            "annotations": {"test.operator-host.dev/spec": orders.to_string()},
        },
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "c"}]}},
        },
    })
}
