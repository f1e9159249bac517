//! Derives the objects that must exist from the parents' specs alone.
//!
//! Written from the samples' documentation, not from their code, as an independent check. An object's name shows
//! which sample it belongs to: names of Echos begin with `e`, and so on ([`Sample::letter`]).

use kube::ResourceExt as _;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

/// The annotation with the spec of a puppet.
const ORDERS: &str = "test.operator-host.dev/spec";

/// A kind of parent, and the plugin that reconciles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Sample {
    Echo,
    Hello,
    MyApp,
    MySql,
    Puppet,
    /// StatefulSets, which a Controller decorates. An annotation has the spec of a puppet; without it, the label is left out.
    Decorated,
}

impl Sample {
    pub(crate) const ALL: [Self; 6] = [
        Self::Echo,
        Self::Hello,
        Self::MyApp,
        Self::MySql,
        Self::Puppet,
        Self::Decorated,
    ];
    /// Those whose kinds have definitions.
    pub(crate) const DEFINED: [Self; 5] = [Self::Echo, Self::Hello, Self::MyApp, Self::MySql, Self::Puppet];

    /// Returns the controller's name, which is also the plugin file's.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Hello => "hello",
            Self::MyApp => "myapp",
            Self::MySql => "mysql",
            Self::Puppet => "puppet",
            Self::Decorated => "decorator",
        }
    }

    /// Returns the first letter of its parents' names.
    pub(crate) fn letter(self) -> char {
        match self {
            Self::Echo => 'e',
            Self::Hello => 'h',
            Self::MyApp => 'a',
            Self::MySql => 'm',
            Self::Puppet => 'p',
            Self::Decorated => 'd',
        }
    }

    /// Returns the sample that an object belongs to, by its name.
    pub(crate) fn of_object(name: &str) -> Option<Self> {
        let letter = name.strip_prefix("data-").unwrap_or(name).chars().next()?;
        Self::ALL.into_iter().find(|sample| sample.letter() == letter)
    }

    pub(crate) fn resource(self) -> ApiResource {
        match self {
            Self::Echo => resource("my-operator.dev", "v1", "Echo", "echoes"),
            Self::Hello => resource("fraim.co.jp", "v1", "Hello", "helloes"),
            Self::MyApp => resource("example.com", "v1", "MyApp", "myapps"),
            Self::MySql => resource("database.example.com", "v2", "MySQLCluster", "mysqlclusters"),
            Self::Puppet => resource("test.operator-host.dev", "v1", "Puppet", "puppets"),
            Self::Decorated => resource("apps", "v1", "StatefulSet", "statefulsets"),
        }
    }

    /// Returns a parent with this spec.
    pub(crate) fn parent(self, name: &str, spec: &Value) -> Value {
        let resource = self.resource();
        let mut parent = json!({
            "apiVersion": resource.api_version, "kind": resource.kind, "metadata": { "name": name }, "spec": spec,
        });
        if self == Self::Decorated {
            parent["metadata"]["annotations"] = json!({ ORDERS: spec.to_string() });
            if spec["response"].is_object() {
                parent["metadata"]["labels"] = json!({ "decorate": "yes" });
            }
            let labels = json!({ "app": name });
            let container = json!({ "name": "c", "image": "c" });
            parent["spec"] = json!({
                "replicas": 0, "serviceName": name, "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } },
            });
        }
        parent
    }

    /// Returns the spec of a parent.
    pub(crate) fn spec(self, parent: &DynamicObject) -> Value {
        match self {
            Self::Decorated => {
                let orders = parent.annotations().get(ORDERS);
                orders
                    .and_then(|text| serde_json::from_str(text).ok())
                    .unwrap_or_default()
            }
            _ => parent.data["spec"].clone(),
        }
    }
}

/// A kind of child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Claim,
    ConfigMap,
    Deployment,
    External,
    Pod,
    Secret,
    Service,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] = [
        Self::Claim,
        Self::ConfigMap,
        Self::Deployment,
        Self::External,
        Self::Pod,
        Self::Secret,
        Self::Service,
    ];

    pub(crate) fn resource(self) -> ApiResource {
        match self {
            Self::Claim => resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
            Self::ConfigMap => resource("", "v1", "ConfigMap", "configmaps"),
            Self::Deployment => resource("apps", "v1", "Deployment", "deployments"),
            Self::External => resource("operator-host.dev", "v1alpha1", "External", "externals"),
            Self::Pod => resource("", "v1", "Pod", "pods"),
            Self::Secret => resource("", "v1", "Secret", "secrets"),
            Self::Service => resource("", "v1", "Service", "services"),
        }
    }

    pub(crate) fn of_plural(plural: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.resource().plural == plural)
    }

    /// Reports whether it outlives its parent and every change that no longer wants it.
    pub(crate) fn is_retained(self) -> bool {
        matches!(self, Self::Claim | Self::Secret)
    }
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// A child, by kind and name.
pub(crate) type Key = (Kind, String);

/// A child that must exist.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) key: Key,
    /// The fields that it must contain; it may have others.
    pub(crate) says: Value,
}

fn wanted(kind: Kind, name: String, says: Value) -> Wanted {
    Wanted {
        key: (kind, name),
        says,
    }
}

/// Returns the children that a parent with this name and spec must have.
pub(crate) fn children(sample: Sample, name: &str, spec: &Value) -> Vec<Wanted> {
    let replicas = spec["replicas"].as_u64().unwrap_or(1);
    match sample {
        Sample::Echo => (0..replicas)
            .map(|i| {
                let says = json!({ "spec": { "containers": [{ "image": spec["image"] }] } });
                wanted(Kind::Pod, format!("{name}-pod-{i}"), says)
            })
            .collect(),
        Sample::Hello => {
            let says = json!({ "spec": { "replicas": replicas } });
            vec![wanted(Kind::Deployment, name.to_owned(), says)]
        }
        Sample::MyApp => {
            let container = json!({ "image": spec["image"], "ports": [{ "containerPort": spec["port"] }] });
            let template = json!({ "spec": { "containers": [container] } });
            let deployment = json!({ "spec": { "replicas": replicas, "template": template } });
            let labels = json!({ "app": name, "managed-by": "operator-host" });
            let service = json!({
                "metadata": { "labels": labels },
                "spec": { "selector": { "app": name }, "ports": [{ "port": spec["port"] }] },
            });
            vec![
                wanted(Kind::Deployment, name.to_owned(), deployment),
                wanted(Kind::Service, name.to_owned(), service),
            ]
        }
        Sample::MySql => {
            let cluster = json!({ "database.example.com/cluster": name });
            let service = json!({ "metadata": { "labels": cluster }, "spec": { "selector": cluster } });
            let mut all = vec![
                wanted(Kind::Service, name.to_owned(), service),
                wanted(Kind::Secret, format!("{name}-root"), json!({})),
            ];
            for i in 0..replicas {
                let image = format!("mysql:{}", spec["version"].as_str().unwrap_or_default());
                let claim = format!("data-{name}-{i}");
                let volume = json!({ "persistentVolumeClaim": { "claimName": claim } });
                let pod = json!({ "spec": { "containers": [{ "image": image }], "volumes": [volume] } });
                let storage = json!({ "requests": { "storage": spec["storage"]["size"] } });
                all.push(wanted(
                    Kind::Claim,
                    claim,
                    json!({ "spec": { "resources": storage } }),
                ));
                all.push(wanted(Kind::Pod, format!("{name}-{i}"), pod));
            }
            all
        }
        Sample::Puppet | Sample::Decorated => {
            let children = spec["response"]["children"].as_array().into_iter().flatten();
            children
                .map(|child| {
                    let name = child["metadata"]["name"].as_str().unwrap_or_default();
                    match child["kind"] == "External" {
                        true => wanted(Kind::External, name.to_owned(), json!({ "spec": child["spec"] })),
                        false => wanted(Kind::ConfigMap, name.to_owned(), json!({ "data": child["data"] })),
                    }
                })
                .collect()
        }
    }
}

/// Returns the fields that a parent's status must contain once everything exists and is ready.
pub(crate) fn status(sample: Sample, spec: &Value) -> Value {
    let replicas = spec["replicas"].as_u64().unwrap_or(1);
    match sample {
        Sample::Echo => json!({ "currentReplicas": replicas, "isReady": true }),
        Sample::Hello => json!({ "readyReplicas": replicas }),
        Sample::MyApp => json!({ "readyReplicas": replicas, "phase": "Running" }),
        Sample::MySql => json!({ "readyReplicas": replicas, "phase": "Running" }),
        Sample::Puppet | Sample::Decorated => json!({}),
    }
}

/// Returns what is wrong with a parent's own metadata and status; `None` if nothing is.
pub(crate) fn status_fault(sample: Sample, parent: &DynamicObject) -> Option<String> {
    let status = &parent.data["status"];
    let generation = parent.metadata.generation.unwrap_or_default();
    if parent.metadata.deletion_timestamp.is_some() {
        let finalizers = parent.metadata.finalizers.as_deref().unwrap_or_default();
        return Some(format!("it was deleted and has the finalizers {finalizers:?}"));
    }
    if sample == Sample::Decorated {
        let finalizers = parent.metadata.finalizers.as_deref().unwrap_or_default();
        let seen = parent
            .labels()
            .get("seen")
            .map(|seen| json!(seen))
            .unwrap_or_default();
        let wanted = &sample.spec(parent)["response"]["parent"]["metadata"]["labels"]["seen"];
        return match finalizers {
            [] => difference(&seen, wanted, "its label"),
            finalizers => Some(format!("it is decorated and has the finalizers {finalizers:?}")),
        };
    }
    if status["observedGeneration"].as_i64() != Some(generation) {
        return Some(format!(
            "its status is of generation {}, its spec of generation {generation}",
            status["observedGeneration"]
        ));
    }
    let conditions = status["conditions"].as_array().into_iter().flatten();
    for condition in conditions.clone() {
        let is_true = condition["status"] == "True";
        if condition["type"] != "Ready" && condition["type"] != "Synced" && is_true {
            return Some(format!("it has the condition {condition}"));
        }
    }
    let ready = conditions.clone().find(|condition| condition["type"] == "Ready");
    match ready {
        Some(ready) if ready["status"] == "True" => {}
        Some(ready) => return Some(format!("it is not Ready: {ready}")),
        None => return Some("it has no condition Ready".to_owned()),
    }
    difference(status, &self::status(sample, &parent.data["spec"]), "status")
}

/// Returns the first place where `live` differs from `wanted`; `live` may have more fields, but lists must have the
/// same length.
pub(crate) fn difference(live: &Value, wanted: &Value, path: &str) -> Option<String> {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted.iter().find_map(|(key, wanted)| {
            let live = live.get(key).unwrap_or(&Value::Null);
            difference(live, wanted, &format!("{path}.{key}"))
        }),
        (Value::Array(live), Value::Array(wanted)) if live.len() == wanted.len() => {
            let mut pairs = live.iter().zip(wanted).enumerate();
            pairs.find_map(|(i, (live, wanted))| difference(live, wanted, &format!("{path}[{i}]")))
        }
        (live, wanted) if live == wanted => None,
        (live, wanted) => Some(format!("{path} is {live}, not {wanted}")),
    }
}
