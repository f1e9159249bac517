//! The desired objects of an application.

use operator_plugin::{Labels, Value, json};

use crate::MyAppSpec;

fn selector(name: &str) -> Labels {
    Labels::new("app", name)
}

fn labels(name: &str) -> Labels {
    selector(name).and("managed-by", "operator-host")
}

pub(crate) fn deployment(name: &str, spec: &MyAppSpec) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": name, "labels": labels(name) },
        "spec": {
            "replicas": spec.replicas,
            "selector": { "matchLabels": selector(name) },
            "template": {
                "metadata": { "labels": labels(name) },
                "spec": { "containers": [{
                    "name": "app",
                    "image": spec.image,
                    "env": spec.env,
                    "ports": [{ "name": "http", "containerPort": spec.port, "protocol": "TCP" }],
                    "resources": { "requests": spec.resources, "limits": spec.resources },
                }] },
            },
        },
    })
}

pub(crate) fn service(name: &str, spec: &MyAppSpec) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name, "labels": labels(name) },
        "spec": {
            "type": "ClusterIP",
            "selector": selector(name),
            "ports": [{ "name": "http", "port": spec.port, "targetPort": "http", "protocol": "TCP" }],
        },
    })
}
