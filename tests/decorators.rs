//! Controllers that decorate: objects of kinds that exist without them get children. The puppet for Deployments, which has its orders
//! in an annotation, stands for a plugin.

use crate::controllers::{CONTROLLER, World};
use crate::support::prelude::*;

mod fields;
mod kinds;
mod lifecycle;
mod many;
mod metacontroller;
mod samples;

const DEPLOYMENT: &str = "apps/v1/Deployment";

/// What the Controllers of these scenarios may do.
const CEILINGS: &str = "ceilings:\n- parents: [{apiGroups: ['*.operator-host.dev'], kinds: ['*']}]\n  \
                        decorates: [{apiGroups: [apps], kinds: [Deployment, StatefulSet, DaemonSet]}, \
                        {apiGroups: [things.test.dev], kinds: ['*']}]\n  \
                        fields: ['metadata.labels', 'spec.template', 'spec.replicas']\n  \
                        children: [{apiGroups: [''], kinds: [ConfigMap]}, {apiGroups: [apps], kinds: [Deployment]}]\n";

/// Starts a control plane with the plugins in ConfigMaps, and a host.
async fn world(name: &str) -> (World, Host) {
    world_of(name, Options::default()).await
}

async fn world_of(name: &str, options: Options) -> (World, Host) {
    let world = World::within(own_cluster(options.with_audit()).await, name).await;
    for (name, plugin) in [
        ("decorator", std::fs::read(plugin("decorator")).unwrap()),
        ("guard", variant_of("decorator.wasm", 6)),
        ("puppet", std::fs::read(plugin("puppet")).unwrap()),
    ] {
        let (map, key) = (format!("{name}-plugin"), format!("{name}.wasm"));
        world.put_as(&map, &key, &plugin).await;
    }
    let host = world.start_decorating();
    (world, host)
}

impl World {
    fn start_decorating(&self) -> Host {
        self.start_with(&self.configure(CEILINGS), &[])
    }

    /// Applies a Controller that decorates the Deployments with the label `decorate: yes`, with other fields.
    async fn decorator(&self, name: &str, more: Value) -> DynamicObject {
        let spec = json!({
            "decorates": [{"apiVersion": "apps/v1", "kind": "Deployment", "selector": "decorate=yes"}],
            "plugin": {"configMap": {"name": "decorator-plugin"}},
        });
        self.controller_of(name, spec, more).await
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
