//! The template of pods as a field of a spec.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::labels::Labels;

/// The template of pods, as a user writes it: for a field of a spec. It stays as it is, so nothing of it is lost on the way
/// to a child or to another version of the kind, whatever fields Kubernetes adds.
///
/// The definition requires a list of containers with names, and leaves all else to the API server, which judges the child. For
/// the complete schema of your version of Kubernetes use `PodTemplateSpec` of the crate `k8s-openapi` with its feature
/// `schemars`, and [`Plugin::without_descriptions`](crate::Plugin::without_descriptions). It adds 70 KB to the definition.
///
/// ```
/// use operator_plugin::{Labels, PodTemplate, json};
///
/// let template: PodTemplate = serde_json::from_value(json!({
///     "metadata": { "labels": { "team": "a" } },
///     "spec": { "containers": [{ "name": "web", "image": "web:1" }] },
/// }))?;
/// let labels = Labels::new("app", "web");
/// let job = json!({
///     "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "a" },
///     "spec": { "template": template.with_labels(&labels) },
/// });
/// assert_eq!(job["spec"]["template"]["metadata"]["labels"], json!({ "team": "a", "app": "web" }));
/// assert_eq!(job["spec"]["template"]["spec"]["containers"][0]["image"], "web:1");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodTemplate(Map<String, Value>);

impl PodTemplate {
    /// Returns the template with more labels, such as those that a selector names. They replace the user's.
    #[must_use]
    pub fn with_labels(&self, labels: &Labels) -> Value {
        let mut template = Value::Object(self.0.clone());
        for (key, value) in labels.iter() {
            template["metadata"]["labels"][key] = value.into();
        }
        template
    }
}

impl From<PodTemplate> for Value {
    fn from(template: PodTemplate) -> Self {
        Self::Object(template.0)
    }
}

// Used by the native build only, which generates the definition.
impl schemars::JsonSchema for PodTemplate {
    fn schema_name() -> Cow<'static, str> {
        "PodTemplate".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let texts = || serde_json::json!({ "type": "object", "additionalProperties": { "type": "string" } });
        let container = serde_json::json!({
            "type": "object",
            "required": ["name"],
            "properties": { "name": { "type": "string" }, "image": { "type": "string" } },
            "x-kubernetes-preserve-unknown-fields": true,
        });
        schemars::json_schema!({
            "description": "The template of the pods, as in a Deployment.",
            "type": "object",
            "required": ["spec"],
            "properties": {
                "metadata": { "type": "object", "properties": { "labels": texts(), "annotations": texts() } },
                "spec": {
                    "type": "object",
                    "required": ["containers"],
                    "properties": { "containers": {
                        "type": "array",
                        "minItems": 1,
                        "items": container,
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                    } },
                    "x-kubernetes-preserve-unknown-fields": true,
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde_json::json;

    use super::*;
    use crate::crd::schema_of_spec;

    #[test]
    fn a_template_stays_as_the_user_writes_it_and_its_schema_is_small_and_structural() {
        #[derive(JsonSchema, Serialize, Deserialize)]
        struct Spec {
            template: PodTemplate,
            other: Option<PodTemplate>,
        }

        let mut problems = Vec::new();
        let schema = schema_of_spec::<Spec>(&mut problems);
        assert_eq!(problems, Vec::<String>::new());
        assert!(schema.to_string().len() < 2_000, "{schema}");
        assert_eq!(schema["properties"]["other"]["nullable"], true);
        let containers = &schema["properties"]["template"]["properties"]["spec"]["properties"]["containers"];
        assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
        let given = json!({
            "metadata": { "labels": { "a": "b" }, "creationTimestamp": null },
            "spec": { "containers": [{ "name": "c", "resources": { "limits": { "cpu": 1, "memory": "1000Mi" } } }], "later": [{}] },
        });
        let spec: Spec = serde_json::from_value(json!({ "template": given })).unwrap();
        assert_eq!(Value::from(spec.template.clone()), given);
        let labelled = spec.template.with_labels(&Labels::new("a", "c").and("d", "e"));
        assert_eq!(labelled["metadata"]["labels"], json!({ "a": "c", "d": "e" }));
        assert_eq!(
            PodTemplate::default().with_labels(&Labels::new("a", "b")),
            json!({ "metadata": { "labels": { "a": "b" } } })
        );
    }
}
