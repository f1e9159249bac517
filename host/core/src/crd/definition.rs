//! Validates a whole CustomResourceDefinition: by the rules of the API server, and by the additional needs of this
//! host.

use serde_json::{Value, json};

use operator_host_contract::{Kind, is_dns_label};
use operator_host_schema::cel;
use operator_host_schema::structural;
use operator_host_schema::{Problem, field};

/// Returns the versions of a definition.
pub fn versions(crd: &Value) -> impl Iterator<Item = &Value> {
    crd["spec"]["versions"].as_array().into_iter().flatten()
}

/// Returns the version of this name.
pub fn version<'a>(crd: &'a Value, name: &str) -> Option<&'a Value> {
    versions(crd).find(|version| version["name"] == name)
}

/// Whether the API server serves a version.
pub fn is_served(version: &Value) -> bool {
    version["served"] == true
}

/// Returns the schema of a version; null if it has none.
pub fn schema_of(version: &Value) -> &Value {
    &version["schema"]["openAPIV3Schema"]
}

/// Returns the schema of one version.
pub fn schema<'a>(crd: &'a Value, parent: &Kind) -> Option<&'a Value> {
    version_of(crd, parent)?.pointer("/schema/openAPIV3Schema")
}

/// Returns the definition of a kind, in whichever version.
pub fn of_kind<'a>(definitions: impl IntoIterator<Item = &'a Value>, kind: &Kind) -> Option<&'a Value> {
    definitions.into_iter().find(|definition| {
        let spec = &definition["spec"];
        let given = definition["kind"].as_str();
        let is_one = given.is_none_or(|given| given == "CustomResourceDefinition");
        is_one && spec["group"] == kind.group() && spec["names"]["kind"] == *kind.kind
    })
}

/// Returns the versions in which objects are stored.
pub fn stored_versions(installed: &Value) -> impl Iterator<Item = &str> {
    let stored = installed["status"]["storedVersions"].as_array();
    stored.into_iter().flatten().filter_map(Value::as_str)
}

/// Whether a webhook converts between the versions of a definition.
pub fn converts(crd: &Value) -> bool {
    crd["spec"]["conversion"]["strategy"] == "Webhook"
}

/// Returns the conversion by a webhook that the API server reaches like this.
pub fn conversion_by(client_config: &Value) -> Value {
    json!({
        "strategy": "Webhook",
        "webhook": { "conversionReviewVersions": ["v1"], "clientConfig": client_config },
    })
}

/// Whether the kind is namespaced; without a definition it counts as namespaced.
pub fn is_namespaced(crd: Option<&Value>) -> bool {
    crd.is_none_or(|crd| crd["spec"]["scope"] != "Cluster")
}

fn version_of<'a>(crd: &'a Value, parent: &Kind) -> Option<&'a Value> {
    version(crd, parent.api_version.rsplit('/').next()?)
}

/// Returns what shows that a definition is of another kind.
pub fn identity_problems(crd: &Value, parent: &Kind) -> Vec<Problem> {
    let plural = crd["spec"]["names"]["plural"].as_str().unwrap_or_default();
    let mut problems = Vec::new();
    for (pointer, expected) in [
        ("/apiVersion", "apiextensions.k8s.io/v1"),
        ("/kind", "CustomResourceDefinition"),
        ("/spec/group", parent.group()),
        ("/spec/names/kind", &parent.kind),
        ("/metadata/name", &format!("{plural}.{}", parent.group())),
    ] {
        let found = &crd.pointer(pointer).cloned().unwrap_or_default();
        if found != expected {
            let path = pointer.trim_start_matches('/').replace('/', ".");
            problems.push(Problem::new(path, format!("is {found}; it must be {expected:?}")));
        }
    }
    problems
}

/// Returns every problem of the definition of a plugin whose parent kind is `parent`.
pub fn problems(crd: &Value, parent: &Kind) -> Vec<Problem> {
    let mut problems = identity_problems(crd, parent);
    names(crd, &mut problems);
    let versions = crd["spec"]["versions"].as_array().map_or(&[][..], Vec::as_slice);
    let storage = versions.iter().filter(|v| v["storage"] == true).count();
    if storage != 1 {
        let message = format!("{storage} versions have `storage: true`; exactly one must");
        problems.push(Problem::new("spec.versions", message));
    }
    for (index, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{index}]");
        deprecation(version, &path, &mut problems);
        let at = format!("{path}.schema.openAPIV3Schema");
        match version.pointer("/schema/openAPIV3Schema") {
            None => problems.push(Problem::new(&at, "is missing")),
            Some(schema) => {
                problems.extend(structural::problems(schema, &at));
                let rules = cel::problems(schema, &at).into_iter();
                problems.extend(rules.map(|(path, message)| Problem::new(path, message)));
                columns(version, schema, &path, &mut problems);
                scale(version, schema, &path, &mut problems);
            }
        }
    }
    match version_of(crd, parent) {
        None => {
            let message = format!("the version of {} is missing", parent.api_version);
            problems.push(Problem::new("spec.versions", message));
        }
        Some(version) => status(version, &mut problems),
    }
    problems
}

fn names(crd: &Value, problems: &mut Vec<Problem>) {
    let names = &crd["spec"]["names"];
    for name in ["plural", "singular"] {
        let given = names[name].as_str();
        if !given.map_or(name == "singular", is_dns_label) {
            let message = format!("is {}; it must be in lower case, as a DNS label", names[name]);
            problems.push(Problem::new(format!("spec.names.{name}"), message));
        }
    }
    if names["plural"].is_string() && names["plural"] == names["singular"] {
        let message = "equals the singular; kubectl could not distinguish them";
        problems.push(Problem::new("spec.names.plural", message));
    }
    let scope = &crd["spec"]["scope"];
    if scope != "Namespaced" && scope != "Cluster" {
        let message = format!("is {scope}; it must be Namespaced or Cluster");
        problems.push(Problem::new("spec.scope", message));
    }
}

fn status(version: &Value, problems: &mut Vec<Problem>) {
    if !is_served(version) {
        let message = "the parent's version is not served";
        problems.push(Problem::new("spec.versions", message));
    }
    if !version["subresources"]["status"].is_object() {
        let message = "is missing: without it the host cannot write the status; add `status: {}`";
        problems.push(Problem::new("spec.versions.subresources.status", message));
    }
    let status = &version["schema"]["openAPIV3Schema"]["properties"]["status"];
    if status["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    for (name, type_) in [("conditions", "array"), ("observedGeneration", "integer")] {
        if status["properties"][name]["type"] != type_ {
            let message = format!(
                "must be in the schema, of type {type_}: the host writes it, and the API server drops unknown fields"
            );
            problems.push(Problem::new(format!("status.{name}"), message));
        }
    }
}

fn columns(version: &Value, schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let columns = version["additionalPrinterColumns"].as_array();
    for (index, column) in columns.into_iter().flatten().enumerate() {
        let at = format!("{path}.additionalPrinterColumns[{index}]");
        let mut wrong = |name: &str, message: String| problems.push(Problem::new(field(&at, name), message));
        if column["name"].as_str().is_none_or(str::is_empty) {
            wrong("name", "is missing".into());
        }
        let types = ["integer", "number", "string", "boolean", "date"];
        if !types.iter().any(|type_| column["type"] == *type_) {
            let message = format!("is {}; it must be one of {}", column["type"], types.join(", "));
            wrong("type", message);
        }
        let json_path = column["jsonPath"].as_str().unwrap_or_default();
        if !json_path.starts_with('.') {
            wrong("jsonPath", format!("is {json_path:?}; it must begin with a dot"));
        } else if let Some(unknown) = unknown_field(json_path, schema) {
            let message = format!("is {json_path:?}; the schema has no {unknown:?}");
            wrong("jsonPath", message);
        }
    }
}

/// Checks the paths of the subresource `scale`. The API server reads and writes the fields there, and requires no
/// more of the schema; the types are those that a `Scale` has.
fn scale(version: &Value, schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let Some(scale) = version["subresources"]["scale"].as_object() else {
        return;
    };
    let at = format!("{path}.subresources.scale");
    for (name, roots, type_) in [
        ("specReplicasPath", &[".spec."][..], "integer"),
        ("statusReplicasPath", &[".status."], "integer"),
        ("labelSelectorPath", &[".spec.", ".status."], "string"),
    ] {
        let mut wrong = |message: String| problems.push(Problem::new(field(&at, name), message));
        let Some(json_path) = scale.get(name).and_then(Value::as_str) else {
            if name != "labelSelectorPath" {
                wrong("is missing".into());
            }
            continue;
        };
        if json_path.contains('[') || !roots.iter().any(|root| json_path.starts_with(root)) {
            let roots = roots.join(" or ");
            wrong(format!(
                "is {json_path:?}; it must begin with {roots} and name fields only"
            ));
        } else if let Some(unknown) = unknown_field(json_path, schema) {
            wrong(format!("is {json_path:?}; the schema has no {unknown:?}"));
        } else {
            let found = schema.pointer(&(json_path.replace('.', "/properties/") + "/type"));
            if let Some(found) = found.filter(|found| *found != type_) {
                wrong(format!(
                    "is {json_path:?}, of type {found}; it must be of type {type_}"
                ));
            }
        }
    }
}

/// Maximum number of bytes of a deprecation warning.
const WARNING: usize = 256;

fn deprecation(version: &Value, path: &str, problems: &mut Vec<Problem>) {
    let Some(warning) = version["deprecationWarning"].as_str() else {
        return;
    };
    let mut wrong = |message: String| problems.push(Problem::new(field(path, "deprecationWarning"), message));
    if version["deprecated"] != true {
        wrong("needs `deprecated: true` beside it".into());
    }
    if warning.is_empty() || warning.len() > WARNING || warning.contains(char::is_control) {
        wrong(format!(
            "is {warning:?}; it must be one line of 1 to {WARNING} bytes"
        ));
    }
}

/// Returns the first field of a plain path that the schema lacks. Paths with filters are accepted unchecked.
fn unknown_field<'a>(json_path: &'a str, schema: &Value) -> Option<&'a str> {
    let mut schema = schema;
    for name in json_path[1..].split('.') {
        if name == "metadata" || name.contains(['[', '\\']) || name.is_empty() {
            return None;
        }
        let is_open = schema["x-kubernetes-preserve-unknown-fields"] == true;
        if is_open || schema.get("additionalProperties").is_some() {
            return None;
        }
        match schema["properties"].get(name) {
            Some(inner) => schema = inner,
            None => return Some(name),
        }
    }
    None
}
