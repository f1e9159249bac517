//! Generates a CustomResourceDefinition with a structural schema from Rust types.
//!
//! Structural schemas:
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use super::{Column, Crd, structural};
use crate::kinds::Kind;
use crate::versions::{Definition, Version, remove_nulls};

impl Crd {
    /// Returns the definition of a kind with this spec and status, and the problems of the types.
    ///
    /// Maps are sorted by key (serde_json's default), so equal types give equal text.
    pub(crate) fn generate<Spec: JsonSchema, Status: JsonSchema>(
        &self,
        parent: Kind,
        others: &[Version<Spec>],
    ) -> (Value, Vec<String>) {
        let mut problems = Vec::new();
        let api_version = parent.api_version;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let mut status = schema_of::<Status>("status", &mut problems);
        add_host_fields(&mut status);
        let own = Definition {
            schema: schema_of_spec::<Spec>,
            columns: None,
            rules: self.rules,
            deprecation: self.deprecation,
            is_served: true,
            is_stored: !others.iter().any(|other| other.definition.is_stored),
        };
        let all = others.iter().map(|other| (other.name, &other.definition));
        let all = all.chain([(version, &own)]);
        let versions = all.map(|(name, of)| self.version(name, of, &status, &mut problems));
        let versions: Vec<_> = versions.collect();
        let singular = parent.kind.to_lowercase();
        let plural = self.plural.map_or_else(|| format!("{singular}s"), str::to_owned);
        let mut definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group,
                "names": {
                    "kind": parent.kind,
                    "plural": plural,
                    "singular": singular,
                    "shortNames": given(self.short_names),
                    "categories": given(self.categories),
                },
                "scope": if self.cluster_scoped { "Cluster" } else { "Namespaced" },
                "versions": versions,
            },
        });
        remove_nulls(&mut definition);
        (definition, problems)
    }

    /// Returns one version of the definition.
    fn version(
        &self,
        name: &str,
        definition: &Definition,
        status: &Value,
        problems: &mut Vec<String>,
    ) -> Value {
        let mut spec = (definition.schema)(problems);
        // The doc comment of the spec's type becomes the kind's description in `kubectl explain`.
        let spec_description = spec.as_object_mut().and_then(|spec| spec.remove("description"));
        let metadata = self.names.map(|(pattern, length)| {
            let name = json!({ "type": "string", "pattern": pattern, "maxLength": length });
            json!({ "type": "object", "properties": { "name": name } })
        });
        let mut root = json!({
            "description": spec_description,
            "type": "object",
            "required": ["spec"],
            "properties": { "metadata": metadata, "spec": spec, "status": status },
            "x-kubernetes-validations": given(definition.rules),
        });
        if self.without_descriptions
            && let Ok(root) = <&mut Schema>::try_from(&mut root)
        {
            let mut leave_out = RecursiveTransform(|schema: &mut Schema| drop(schema.remove("description")));
            leave_out.transform(root);
        }
        let age = Column::date("Age", ".metadata.creationTimestamp");
        let columns = definition.columns.unwrap_or(self.columns).iter();
        json!({
            "name": name,
            "served": definition.is_served,
            "storage": definition.is_stored,
            "schema": { "openAPIV3Schema": root },
            "subresources": { "status": {}, "scale": self.scale },
            "additionalPrinterColumns": columns.chain([&age]).collect::<Vec<_>>(),
            "deprecated": definition.deprecation.map(|_| true),
            "deprecationWarning": definition.deprecation,
        })
    }
}

/// Returns a list unless it is empty.
fn given<T>(list: &[T]) -> Option<&[T]> {
    (!list.is_empty()).then_some(list)
}

/// Returns the schema of a spec.
pub(crate) fn schema_of_spec<Spec: JsonSchema>(problems: &mut Vec<String>) -> Value {
    schema_of::<Spec>("spec", problems)
}

fn schema_of<T: JsonSchema>(path: &str, problems: &mut Vec<String>) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        // A structural schema has no `$ref`.
        settings.inline_subschemas = true;
        settings.transforms.clear();
    });
    let mut schema = Value::from(settings.into_generator().into_root_schema_for::<T>());
    structural::rewrite(&mut schema, path, problems);
    schema
}

/// Adds the fields that the host writes to the status. The host writes them before the plugin has answered, so none
/// of the plugin's fields is required.
fn add_host_fields(status: &mut Value) {
    let Some(status) = status.as_object_mut() else {
        return;
    };
    status.remove("required");
    let properties = status.entry("properties").or_insert_with(|| json!({}));
    properties["observedGeneration"] = json!({
        "description": "The generation of the spec that this status reports on.",
        "type": "integer",
        "format": "int64",
    });
    properties["conditions"] = json!({
        "description": "The conditions of the resource: Ready, Synced, Reconciling, Stalled, and those of the plugin.",
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

#[cfg(test)]
mod tests {
    #![allow(dead_code, reason = "types for their schemas alone")]

    use std::collections::BTreeMap;

    use super::*;
    use crate::crd::{Rule, RuleReason, Scale};

    #[derive(JsonSchema)]
    #[serde(rename_all = "camelCase")]
    struct Everything {
        optional: Option<String>,
        nested: Option<Nested>,
        map: BTreeMap<String, u16>,
        list: Vec<Nested>,
        #[schemars(extend("exclusiveMinimum" = 0))]
        above_zero: f64,
        mode: Mode,
        documented: Documented,
        source: Source,
        port: IntOrString,
        anything: Value,
        open: Open,
        #[schemars(extend("x-kubernetes-validations" = [{ "rule": "self > 1" }]))]
        ruled: i32,
        limits: Option<Range>,
        #[deprecated]
        old: bool,
        /// The former name.
        #[deprecated]
        older: bool,
    }

    #[derive(JsonSchema)]
    #[schemars(extend("x-kubernetes-validations" = [{ "rule": "self.min <= self.max" }]))]
    struct Range {
        min: i32,
        max: i32,
    }

    #[derive(JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Nested {
        #[serde(default)]
        flag: bool,
    }

    #[derive(JsonSchema)]
    struct Open {
        known: bool,
        #[serde(flatten)]
        others: BTreeMap<String, String>,
    }

    #[derive(JsonSchema)]
    enum Mode {
        Fast,
        Slow,
    }

    #[derive(JsonSchema)]
    enum Documented {
        /// One.
        One,
        /// Two.
        Two,
    }

    #[derive(JsonSchema)]
    #[serde(tag = "type")]
    enum Source {
        Git { url: String },
        Image { name: String },
    }

    #[derive(JsonSchema)]
    #[serde(untagged)]
    enum IntOrString {
        Int(i32),
        String(String),
    }

    #[derive(JsonSchema)]
    struct Tree {
        branches: Vec<Tree>,
    }

    #[test]
    fn a_default_has_no_null() {
        #[derive(Default, serde::Serialize, JsonSchema)]
        struct Inner {
            cpu: Option<String>,
            shares: u32,
        }

        #[derive(JsonSchema)]
        struct Outer {
            #[serde(default)]
            inner: Inner,
        }

        let schema = structural_schema::<Outer>();
        assert_eq!(schema["properties"]["inner"]["default"], json!({ "shares": 0 }));
    }

    #[test]
    fn descriptions_are_left_out_on_request_and_a_field_of_that_name_stays() {
        /// Of the kind.
        #[derive(JsonSchema)]
        struct Described {
            /// Of a field.
            description: String,
            /// Of a list.
            list: Vec<Inner>,
            /// Of a map.
            map: BTreeMap<String, Inner>,
        }

        #[derive(JsonSchema)]
        struct Inner {
            /// Deep.
            a: String,
        }

        let kind = Kind::new("example.com/v1", "Shop");
        let text = |crd: Crd| crd.generate::<Described, Inner>(kind, &[]).0.to_string();
        assert!(text(Crd::new()).contains("Deep."));
        let short = text(Crd {
            without_descriptions: true,
            ..Crd::new()
        });
        for gone in [
            "Of the kind",
            "Of a field",
            "Of a list",
            "Of a map",
            "Deep.",
            "The conditions of",
        ] {
            assert!(!short.contains(gone), "{gone}: {short}");
        }
        assert!(
            short.contains(r#""properties":{"description":{"type":"string"}"#),
            "{short}"
        );
    }

    #[test]
    fn settings_of_the_plugin_become_parts_of_the_definition() {
        const CRD: Crd = Crd {
            categories: &["shops"],
            columns: &[
                Column::number("Load", ".status.load"),
                Column::string("Selector", ".status.selector").wide(),
            ],
            scale: Some(Scale::new(".spec.replicas", ".status.replicas").selector(".status.selector")),
            rules: &[
                Rule::new("self.spec.a <= self.spec.b", "a must not exceed b").at(".spec.a"),
                Rule::new("self.spec.b == oldSelf.spec.b", "b cannot change"),
                Rule::new("oldSelf.hasValue()", "no")
                    .message_expression("'x'")
                    .reason(RuleReason::Forbidden)
                    .with_optional_old_self(),
            ],
            deprecation: Some("example.com/v1 Shop is deprecated; use v2"),
            ..Crd::new()
        };
        let (definition, problems) = CRD.generate::<Nested, Nested>(Kind::new("example.com/v1", "Shop"), &[]);
        assert_eq!(problems, [""; 0]);
        assert_eq!(definition["spec"]["names"]["categories"], json!(["shops"]));
        let version = &definition["spec"]["versions"][0];
        assert_eq!(
            version["subresources"],
            json!({
                "status": {},
                "scale": {
                    "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                    "labelSelectorPath": ".status.selector",
                },
            })
        );
        assert_eq!(
            version["additionalPrinterColumns"],
            json!([
                { "name": "Load", "type": "number", "jsonPath": ".status.load" },
                { "name": "Selector", "type": "string", "jsonPath": ".status.selector", "priority": 1 },
                { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
            ])
        );
        assert_eq!(
            version["schema"]["openAPIV3Schema"]["x-kubernetes-validations"],
            json!([
                { "rule": "self.spec.a <= self.spec.b", "message": "a must not exceed b", "fieldPath": ".spec.a" },
                { "rule": "self.spec.b == oldSelf.spec.b", "message": "b cannot change" },
                {
                    "rule": "oldSelf.hasValue()", "message": "no", "messageExpression": "'x'",
                    "reason": "FieldValueForbidden", "optionalOldSelf": true,
                },
            ])
        );
        assert_eq!(version["deprecated"], true);
        let expected = "example.com/v1 Shop is deprecated; use v2";
        assert_eq!(version["deprecationWarning"], expected);
    }

    #[derive(JsonSchema)]
    #[serde(untagged)]
    enum Mixed {
        Number(i32),
        List(Vec<String>),
    }

    #[derive(JsonSchema)]
    struct Unstructural {
        tree: Tree,
        mixed: Option<Mixed>,
        fine: u32,
    }

    fn structural_schema<T: JsonSchema>() -> Value {
        let mut problems = Vec::new();
        let schema = schema_of::<T>("spec", &mut problems);
        assert_eq!(problems, [""; 0]);
        schema
    }

    #[test]
    fn types_without_a_structural_schema_are_named_all_at_once() {
        let mut problems = Vec::new();
        schema_of::<Unstructural>("spec", &mut problems);
        assert_eq!(
            problems,
            [
                "spec.mixed: alternatives of different types have no structural schema",
                "spec.tree.branches[]: a type that holds itself (Tree) has no structural schema",
            ]
        );
    }

    /// What the types become, to read and compare. The host implements the rules of structural schemas itself; its tests read
    /// these files.
    #[test]
    fn what_is_made_here_is_committed_for_the_hosts_tests() {
        let schemas = [
            ("structural.json", structural_schema::<Everything>()),
            (
                "unstructural.json",
                schema_of::<Unstructural>("spec", &mut Vec::new()),
            ),
        ];
        for (name, schema) in schemas {
            let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/schemas")
                .join(name);
            let expected = format!("{schema:#}\n");
            if std::fs::read_to_string(&file).is_ok_and(|text| text == expected) {
                continue;
            }
            std::fs::write(&file, expected).unwrap();
            panic!("{} was out of date and has been updated", file.display());
        }
    }
}
