//! From Rust types to a CustomResourceDefinition with a structural schema.
//!
//! What a structural schema is: <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::{Column, Crd, structural};
use crate::kinds::Kind;

impl Crd {
    /// The definition of a kind with that spec and status.
    ///
    /// Maps are sorted by key (serde_json's default), so equal types give equal text.
    pub(crate) fn generate<Spec: JsonSchema, Status: JsonSchema>(&self, parent: Kind) -> Value {
        let mut spec = schema_of::<Spec>("spec");
        // The comment on the spec's type is what `kubectl explain` says of the kind.
        let spec_description = spec.as_object_mut().and_then(|spec| spec.remove("description"));
        let mut status = schema_of::<Status>("status");
        add_host_fields(&mut status);
        let mut root = json!({
            "type": "object",
            "required": ["spec"],
            "properties": { "spec": spec, "status": status },
        });
        if let Some((pattern, length)) = self.names {
            root["properties"]["metadata"] = json!({
                "type": "object",
                "properties": { "name": { "type": "string", "pattern": pattern, "maxLength": length } },
            });
        }
        if let Some(description) = spec_description {
            root["description"] = description;
        }

        let (group, version) = parent
            .api_version
            .split_once('/')
            .unwrap_or(("", parent.api_version));
        let singular = parent.kind.to_lowercase();
        let plural = self.plural.map_or_else(|| format!("{singular}s"), str::to_owned);
        let mut names = json!({ "kind": parent.kind, "plural": plural, "singular": singular });
        if !self.short_names.is_empty() {
            names["shortNames"] = json!(self.short_names);
        }
        if !self.categories.is_empty() {
            names["categories"] = json!(self.categories);
        }
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group,
                "names": names,
                "scope": if self.cluster_scoped { "Cluster" } else { "Namespaced" },
                "versions": [{
                    "name": version,
                    "served": true,
                    "storage": true,
                    "schema": { "openAPIV3Schema": root },
                    "subresources": { "status": {} },
                    "additionalPrinterColumns": self.columns(),
                }],
            },
        })
    }

    fn columns(&self) -> Vec<Value> {
        let age = Column::date("Age", ".metadata.creationTimestamp");
        let columns = self.columns.iter().chain([&age]);
        columns
            .map(|column| json!({ "name": column.title, "type": column.type_, "jsonPath": column.path }))
            .collect()
    }
}

fn schema_of<T: JsonSchema>(path: &str) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        // A structural schema has no `$ref`.
        settings.inline_subschemas = true;
        settings.transforms.clear();
    });
    let mut schema = Value::from(settings.into_generator().into_root_schema_for::<T>());
    structural::rewrite(&mut schema, path);
    schema
}

/// The status holds more than the plugin's type: what the host writes. And the host writes it before the plugin
/// has said anything, so no field of the plugin's is required.
fn add_host_fields(status: &mut Value) {
    let Some(status) = status.as_object_mut() else {
        return;
    };
    status.remove("required");
    let properties = status
        .entry("properties")
        .or_insert_with(|| Value::Object(Map::new()));
    properties["observedGeneration"] = json!({
        "description": "The generation of the spec that this status reports on.",
        "type": "integer",
        "format": "int64",
    });
    properties["conditions"] = json!({
        "description": "Where the resource stands: Ready, Reconciling, Stalled and others of its kind.",
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": { "type": "string", "maxLength": 316 },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 },
                "lastTransitionTime": { "type": "string", "format": "date-time" },
                "reason": { "type": "string", "minLength": 1, "maxLength": 1024 },
                "message": { "type": "string", "maxLength": 32768 },
            },
        },
    });
}
