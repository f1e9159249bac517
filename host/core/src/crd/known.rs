//! Judges objects by the schemas that are at hand: those of Kubernetes' own kinds as of k8s-openapi's version, and those in
//! CustomResourceDefinitions. An API server refuses what does not fit them.

use std::collections::HashMap;
use std::io::Read;

use flate2::read::GzDecoder;
use serde_json::{Map, Value, json};

use super::definition;
use crate::object::{ChildRef, remove_nulls};
use operator_host_contract::Kind;
use operator_host_schema::cel;
use operator_host_schema::status::StatusFields;
use operator_host_schema::{Problem, schema};

/// Made by the build script: `kinds` and `metadata` refer to `types`.
static BUILT_IN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kinds.json.gz"));

/// A kind of Kubernetes itself. Every version of it has the same plural and scope.
#[derive(Clone, Copy, Debug)]
pub struct BuiltIn {
    group: &'static str,
    kind: &'static str,
    /// The plural, in lower case.
    pub plural: &'static str,
    /// Whether its objects are in namespaces.
    pub is_namespaced: bool,
}

impl BuiltIn {
    /// Returns a kind by its API group, which is empty for the core group, and its name.
    pub fn find(group: &str, kind: &str) -> Option<&'static Self> {
        // Made by the build script.
        const ALL: &[BuiltIn] = include!(concat!(env!("OUT_DIR"), "/kinds.rs"));
        ALL.iter().find(|it| it.group == group && it.kind == kind)
    }
}

/// The schemas of some kinds.
#[derive(Debug, Default)]
pub struct Schemas {
    metadata: Value,
    kinds: HashMap<Kind, Value>,
}

impl Schemas {
    /// Returns what is known of these kinds, and of the metadata of all. `definitions` are CustomResourceDefinitions.
    pub fn of<'a>(
        kinds: impl IntoIterator<Item = &'a Kind>,
        definitions: impl IntoIterator<Item = &'a Value>,
    ) -> Self {
        let mut text = Vec::new();
        // What the build has written can be read.
        let _ = GzDecoder::new(BUILT_IN).read_to_end(&mut text);
        let built_in: Value = serde_json::from_slice(&text).unwrap_or_default();
        let types = &built_in["types"];
        let definitions: Vec<&Value> = definitions.into_iter().collect();
        let schema_of = |kind: &Kind| {
            let own = built_in["kinds"].get(kind.to_string());
            own.map(|own| resolved(own, types)).or_else(|| {
                let definition = definition::of_kind(definitions.iter().copied(), kind)?;
                definition::schema(definition, kind).cloned()
            })
        };
        let kinds = kinds.into_iter();
        let known = kinds.filter_map(|kind| Some((kind.clone(), schema_of(kind)?)));
        Self {
            kinds: known.collect(),
            metadata: json!({ "properties": { "metadata": resolved(&built_in["metadata"], types) } }),
        }
    }

    /// Returns why an API server would refuse children, or the status of their parent, whose schema is `parent`.
    pub fn refused<'a>(
        &self,
        children: impl IntoIterator<Item = (&'a ChildRef, &'a Value)>,
        parent: Option<&Value>,
        status: &Map<String, Value>,
    ) -> Vec<String> {
        let of_children = children.into_iter().flat_map(|(key, child)| {
            let problems = self.problems(&key.kind, child).into_iter();
            problems.map(move |problem| format!("{key}: the API server would refuse it: {problem}"))
        });
        let of_status = parent.map(|schema| status_problems(schema, status));
        let of_status = of_status.into_iter().flatten().map(|problem| {
            format!(
                "the definition does not have the plugin's status: {problem}; change the one or the other"
            )
        });
        of_children.chain(of_status).collect()
    }

    /// Returns why an API server would refuse to apply an object, as far as its schema is known.
    pub fn problems(&self, kind: &Kind, object: &Value) -> Vec<Problem> {
        let mut object = object.clone();
        if let Some(fields) = object.as_object_mut() {
            remove_nulls(fields);
        }
        let mut problems = schema::validate(&json!({ "metadata": object["metadata"] }), &self.metadata);
        if let Some(schema) = self.kinds.get(kind) {
            schema::fill_defaults(&mut object, schema);
            problems.extend(schema::validate_resource(&object, schema));
            if problems.is_empty() {
                let verdict = cel::validate(schema, &object, None);
                let violations = verdict.violations.into_iter();
                problems.extend(violations.map(|violation| Problem::new("a rule", violation.to_string())));
            }
        }
        problems
    }
}

/// Returns why a status does not fit the schema of its resource. Of the host's own fields, the host leaves out those that the
/// schema does not have.
fn status_problems(schema: &Value, status: &Map<String, Value>) -> Vec<Problem> {
    let mut status = status.clone();
    StatusFields::of(schema).restrict(&mut status);
    remove_nulls(&mut status);
    if status.is_empty() {
        return Vec::new();
    }
    let mut resource = schema.clone();
    if let Some(resource) = resource.as_object_mut() {
        for other in ["required", "x-kubernetes-validations"] {
            resource.remove(other);
        }
    }
    schema::validate_resource(&json!({ "status": status }), &resource)
}

/// Returns a schema with those that it refers to in their places. No type of Kubernetes contains itself, but for those that
/// the build script leaves open.
fn resolved(schema: &Value, types: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let name = fields.get("$ref").and_then(Value::as_str);
            if let Some(name) = name.and_then(|name| name.rsplit('/').next()) {
                return resolved(&types[name], types);
            }
            let fields = fields.iter();
            let fields = fields.map(|(name, inner)| (name.clone(), resolved(inner, types)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        Value::Array(items) => items.iter().map(|item| resolved(item, types)).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(object: &Value) -> Vec<String> {
        let kind = crate::object::kind_of(object);
        let definition = json!({ "kind": "CustomResourceDefinition", "spec": {
            "group": "parts.dev", "names": { "kind": "Widget" },
            "versions": [{ "name": "v1", "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                "spec": { "type": "object", "required": ["size", "unit"], "properties": {
                    "size": { "type": "integer", "x-kubernetes-validations": [{ "rule": "self > 0" }] },
                    "unit": { "type": "string", "default": "mm" },
                } },
            } } } }],
        } });
        let schemas = Schemas::of([&kind], [&definition]);
        let problems = schemas.problems(&kind, object);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_an_api_server_takes_is_no_problem() {
        let container = json!({
            "name": "c", "image": "i", "ports": [{ "containerPort": 80, "name": null }],
            "resources": { "limits": { "cpu": 1, "memory": "1.5Gi", "x.dev/y": "1e3" }, "requests": { "cpu": 0.5, "memory": "100m" } },
            "livenessProbe": { "httpGet": { "port": "http" } }, "readinessProbe": { "httpGet": { "port": 80 } },
        });
        let template =
            json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "containers": [container] } });
        for good in [
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "data": { "a": "1" } }),
            json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "a" }, "data": { "a": "eA==" }, "stringData": { "b": "c" }, "type": "Opaque" }),
            json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "a", "namespace": "b" },
                "spec": { "replicas": 1, "selector": { "matchLabels": { "a": "b" } }, "template": template } }),
            json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "a" },
                "spec": { "schedule": "* * * * *", "jobTemplate": { "spec": { "template": template } } } }),
            json!({ "apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": { "name": "a" }, "revision": 1, "data": { "any": [1] } }),
            json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": "a" },
                "spec": { "group": "g.dev", "scope": "Cluster", "names": { "kind": "K", "plural": "ks" },
                    "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                        "type": "object", "properties": { "x": { "type": "string", "default": "y" } } } } }] } }),
            json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "a" },
                "roleRef": { "kind": "Role", "name": "r" }, "subjects": [{ "kind": "ServiceAccount", "name": "s" }] }),
            json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": "a" } }),
            json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "a" }, "spec": {
                "selector": { "matchLabels": { "a": "b" } }, "template": template }, "status": {} }),
            json!({ "apiVersion": "parts.dev/v1", "kind": "Widget", "metadata": { "name": "a" }, "spec": { "size": 3 } }),
            json!({ "apiVersion": "unknown.dev/v1", "kind": "Thing", "metadata": { "name": "a" }, "any": 1 }),
        ] {
            assert_eq!(problems(&good), Vec::<String>::new(), "{good}");
        }
    }

    #[test]
    fn what_an_api_server_refuses_is_named_by_its_path() {
        let refused = |api_version: &str, kind: &str, more: Value, expected: &str| {
            let mut bad = json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": "a" } });
            let fields = bad.as_object_mut().unwrap();
            fields.extend(more.as_object().unwrap().clone());
            let (path, words) = expected.split_once(": ").unwrap();
            let found = problems(&bad);
            let is_it = |text: &String| text.starts_with(&format!("{path}: ")) && text.contains(words);
            assert!(found.iter().any(is_it), "{expected}: {found:?}");
        };
        let map = |more: Value, expected: &str| refused("v1", "ConfigMap", more, expected);
        map(json!({ "data": { "a": 1 } }), "data.a: must be of type string");
        map(json!({ "data": ["a"] }), "data: must be of type object");
        map(json!({ "dat": {} }), "dat: unknown field");
        map(
            json!({ "immutable": "yes" }),
            "immutable: must be of type boolean",
        );
        let (labels, misspelt) = (json!({ "labels": { "a": 1 } }), json!({ "label": {} }));
        map(
            json!({ "metadata": labels }),
            "metadata.labels.a: must be of type string",
        );
        map(json!({ "metadata": misspelt }), "metadata.label: unknown field");
        let of = |spec: Value| json!({ "spec": spec });
        let deployment = |spec, expected: &str| refused("apps/v1", "Deployment", of(spec), expected);
        let text = json!({ "replicas": "3", "selector": {}, "template": {} });
        deployment(text, "spec.replicas: must be of type integer");
        deployment(json!({ "template": {} }), "spec.selector: is missing");
        for (cpu, words) in [
            (json!("1 core"), "does not match"),
            (json!(true), "none of the alternatives"),
        ] {
            let container = json!({ "name": "c", "resources": { "limits": { "cpu": cpu } } });
            let spec = json!({ "selector": {}, "template": { "spec": { "containers": [container] } } });
            let path = "spec.template.spec.containers[0].resources.limits.cpu";
            deployment(spec, &format!("{path}: {words}"));
        }
        let widget = |spec, expected: &str| refused("parts.dev/v1", "Widget", of(spec), expected);
        widget(json!({ "size": "3" }), "spec.size: must be of type integer");
        widget(
            json!({ "size": 3, "colour": "red" }),
            "spec.colour: unknown field",
        );
        widget(json!({ "size": 0 }), "a rule: self > 0");
        let more = json!({ "metadata": { "annotations": { "a": true } } });
        let expected = "metadata.annotations.a: must be of type string";
        refused("unknown.dev/v1", "Thing", more, expected);
    }

    #[test]
    fn a_status_must_be_in_the_schema_but_for_what_only_the_host_writes() {
        let schema = |status: Value| json!({ "type": "object", "required": ["spec"], "properties": { "status": status } });
        let typed = schema(json!({ "type": "object", "required": ["size"], "properties": {
            "size": { "type": "integer" }, "nodes": { "type": "array", "items": { "type": "string" } } } }));
        let own = json!({ "observedGeneration": 1, "conditions": [{ "type": "Ready", "status": "True" }] });
        let found = |schema: &Value, more: Value| {
            let mut status = own.as_object().unwrap().clone();
            status.extend(more.as_object().unwrap().clone());
            let problems = status_problems(schema, &status);
            problems
                .iter()
                .map(|problem| problem.path.clone())
                .collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        assert_eq!(
            found(&typed, json!({ "size": 1, "nodes": ["a"], "other": null })),
            none
        );
        assert_eq!(found(&typed, json!({})), none, "nothing is written");
        let expected = ["status.ready_replicas"];
        assert_eq!(found(&typed, json!({ "size": 1, "ready_replicas": 1 })), expected);
        assert_eq!(found(&typed, json!({ "size": "1" })), ["status.size"]);
        let expected = ["status.size", "status.nodes[1]"];
        assert_eq!(found(&typed, json!({ "nodes": ["a", 1] })), expected);
        assert_eq!(
            found(&json!({ "type": "object" }), json!({ "size": 1 })),
            ["status"]
        );
        assert_eq!(found(&json!({ "type": "object" }), json!({})), none);
        let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        assert_eq!(found(&open, json!({ "size": 1 })), none);
        assert_eq!(found(&schema(open), json!({ "size": 1 })), none);
    }
}
