//! Tenant: a namespace with the label `tenant` gets limits, a wall around its pods, and its team's rights.

#[cfg(test)]
mod tests;

use operator_plugin::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Nothing of the namespace but its metadata is read.
#[derive(Deserialize, JsonSchema)]
struct NamespaceSpec {}

/// The status of a namespace is not the plugin's.
#[derive(Serialize, Deserialize, JsonSchema)]
struct NamespaceStatus {}

const NAMESPACE: Kind = Kind::new("v1", "Namespace");
const LIMIT_RANGE: Kind = Kind::new("v1", "LimitRange");
const RESOURCE_QUOTA: Kind = Kind::new("v1", "ResourceQuota");

/// The team, whose name is that of its group of users.
const TEAM: &str = "tenant";
/// How much it may use: `small` or `large`.
const SIZE: &str = "tenant-size";

const PLUGIN: Plugin<NamespaceSpec, NamespaceStatus> =
    Plugin::new(NAMESPACE.api_version, NAMESPACE.kind, reconcile).makes(&[
        NETWORK_POLICY,
        RESOURCE_QUOTA,
        LIMIT_RANGE,
        ROLE_BINDING,
    ]);
operator_plugin::register_decorator!(PLUGIN);

fn reconcile(
    request: &Request<NamespaceSpec, NamespaceStatus>,
) -> Result<Response<NamespaceStatus>, Failure> {
    let namespace = &request.parent.object;
    let team = namespace.label(TEAM).unwrap_or_default();
    let (cpu, memory, pods) = match namespace.label(SIZE) {
        None | Some("small") => (2, "4Gi", 20),
        Some("large") => (16, "64Gi", 200),
        Some(other) => {
            let message = format!("the label {SIZE} is {other:?}; it must be `small` or `large`");
            return Err(Failure::invalid_because("UnknownSize", message));
        }
    };
    let child = |kind: Kind, content: (&str, Value)| {
        json!({
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": { "name": "tenant", "namespace": request.parent.name },
            content.0: content.1,
        })
    };
    let hard =
        json!({ "requests.cpu": cpu.to_string(), "requests.memory": memory, "pods": pods.to_string() });
    let limits = json!({
        "type": "Container",
        "defaultRequest": { "cpu": "100m", "memory": "128Mi" },
        "default": { "memory": "512Mi" },
    });
    // Pods of the namespace reach each other, and those of others do not reach them.
    let wall = json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "from": [{ "podSelector": {} }] }] });
    let mut rights = child(
        ROLE_BINDING,
        (
            "roleRef",
            json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit" }),
        ),
    );
    rights["subjects"] = json!([{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": team }]);
    Ok(Response::empty()
        .child(child(RESOURCE_QUOTA, ("spec", json!({ "hard": hard }))))
        .child(child(LIMIT_RANGE, ("spec", json!({ "limits": [limits] }))))
        .child(child(NETWORK_POLICY, ("spec", wall)))
        .child(rights))
}
