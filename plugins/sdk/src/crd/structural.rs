//! Converts JSON Schema from `schemars` to the subset that Kubernetes supports.

use serde_json::{Map, Value, json};

use crate::versions::remove_nulls;

/// Keeps fields that the schema does not have.
const OPEN: &str = "x-kubernetes-preserve-unknown-fields";

/// The keywords of `JSONSchemaProps` that a structural schema may contain; the API server does not use others
/// (`title`, `$schema`, `examples`).
const KEYWORDS: [&str; 24] = [
    "additionalProperties",
    "allOf",
    "anyOf",
    "default",
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "oneOf",
    "pattern",
    "properties",
    "required",
    "type",
];

/// Makes a schema structural in place. A type without such a schema is a bug in the plugin: each problem is added
/// to `problems` with its path, and that part stays unchanged, so that `operator-host check` reports it, too.
pub(super) fn rewrite(schema: &mut Value, path: &str, problems: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => rewrite_object(fields, path, problems),
        Value::Bool(true) => *schema = json!({ OPEN: true }),
        _ => problems.push(format!(
            "{path}: no value fits this type, so it has no structural schema"
        )),
    }
}

fn rewrite_object(fields: &mut Map<String, Value>, path: &str, problems: &mut Vec<String>) {
    if let Some(name) = fields.get("$ref").and_then(Value::as_str) {
        let name = name.rsplit('/').next().unwrap_or_default();
        problems.push(format!(
            "{path}: a type that holds itself ({name}) has no structural schema"
        ));
        return;
    }
    accept_null(fields);
    if !merge_alternatives(fields) {
        problems.push(format!(
            "{path}: alternatives of different types have no structural schema"
        ));
        return;
    }
    translate_values(fields);
    mention_deprecation(fields);
    fields.retain(|keyword, value| {
        (KEYWORDS.contains(&keyword.as_str())
            || keyword == "nullable"
            || keyword.starts_with("x-kubernetes-"))
            && !(keyword == "default" && value.is_null())
    });
    if let Some(default) = fields.get_mut("default") {
        // An optional field that is not set is left out of a resource, and so it is of the default.
        remove_nulls(default);
    }

    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, property) in properties {
            rewrite(property, &format!("{path}.{name}"), problems);
        }
        // It is not allowed next to `properties`. Then the additional fields (a flattened map) must not be pruned.
        let additional = fields.remove("additionalProperties");
        if additional.is_some_and(|allowed| allowed != false) {
            fields.insert(OPEN.to_owned(), true.into());
        }
    }
    match fields.get_mut("additionalProperties") {
        Some(Value::Bool(false)) => drop(fields.remove("additionalProperties")),
        Some(values) => rewrite(values, &format!("{path}.*"), problems),
        None => {}
    }
    if let Some(items) = fields.get_mut("items") {
        rewrite(items, &format!("{path}[]"), problems);
    }
    if !fields.contains_key("type") && !fields.contains_key("x-kubernetes-int-or-string") {
        fields.insert(OPEN.to_owned(), true.into());
    }
}

/// Converts `Option<T>`: `null` among the types or the alternatives becomes `nullable`.
fn accept_null(fields: &mut Map<String, Value>) {
    let is_null = |type_: &Value| type_ == "null";
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        let count = types.len();
        types.retain(|type_| !is_null(type_));
        let nullable = types.len() < count;
        if let [one] = types.as_mut_slice() {
            let one = one.take();
            fields.insert("type".to_owned(), one);
        }
        if nullable {
            fields.insert("nullable".to_owned(), true.into());
        }
    }
    if let Some(Value::Array(values)) = fields.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if let Some(Value::Array(alternatives)) = fields.get_mut("anyOf") {
        let count = alternatives.len();
        alternatives.retain(|alternative| !is_null(&alternative["type"]));
        if alternatives.len() < count {
            fields.insert("nullable".to_owned(), Value::Bool(true));
        }
    }
}

/// Converts enums: alternatives of single values become one `enum`, those of objects one object with the properties
/// of all, and numbers and strings an int-or-string. Returns `false` and changes nothing when they are none of
/// these.
fn merge_alternatives(fields: &mut Map<String, Value>) -> bool {
    for keyword in ["anyOf", "oneOf", "allOf"] {
        let Some(Value::Array(mut alternatives)) = fields.remove(keyword) else {
            continue;
        };
        if let [Value::Object(only)] = alternatives.as_mut_slice() {
            for (name, value) in std::mem::take(only) {
                fields.entry(name).or_insert(value);
            }
            accept_null(fields);
            if !merge_alternatives(fields) {
                return false;
            }
            continue;
        }
        let are = |types: &[&str]| {
            alternatives
                .iter()
                .all(|one| types.iter().any(|it| one["type"] == **it))
        };
        if let Some(values) = alternatives.iter().map(single_values).collect::<Option<Vec<_>>>() {
            fields.insert("type".to_owned(), json!("string"));
            fields.insert("enum".to_owned(), Value::Array(values.concat()));
        } else if are(&["integer", "string"]) {
            fields.insert("x-kubernetes-int-or-string".to_owned(), Value::Bool(true));
        } else if are(&["object"]) {
            fields.insert("type".to_owned(), json!("object"));
            let properties = fields.entry("properties").or_insert_with(|| json!({}));
            let rules = alternatives
                .iter_mut()
                .map(|one| hoist_properties(one, properties));
            let rules = rules.collect();
            fields.insert(keyword.to_owned(), rules);
        } else {
            fields.insert(keyword.to_owned(), Value::Array(alternatives));
            return false;
        }
    }
    true
}

/// Returns the strings that a schema allows, if it lists them all.
fn single_values(schema: &Value) -> Option<Vec<Value>> {
    let values = match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => vec![value.clone()],
        (None, Some(Value::Array(values))) => values.clone(),
        _ => return None,
    };
    values.iter().all(Value::is_string).then_some(values)
}

/// Moves the properties of an alternative to the enclosing schema, as a structural schema requires, and returns the
/// remaining rule about which of them are required.
fn hoist_properties(alternative: &mut Value, properties: &mut Value) -> Value {
    let mut rule = json!({ "required": alternative["required"].take() });
    let Value::Object(hoisted) = alternative["properties"].take() else {
        return rule;
    };
    for (name, property) in hoisted {
        match single_values(&property) {
            // The tag of a tagged enum: the property allows all values, and each rule one.
            Some(tags) => {
                rule["properties"][&name]["enum"] = json!(tags);
                let known = properties[&name]["enum"].as_array().cloned().unwrap_or_default();
                let all = [known, tags].concat();
                properties[&name] = json!({ "type": "string", "enum": all });
            }
            None => properties[&name] = property,
        }
    }
    rule
}

/// Mentions a deprecated field in its description: Kubernetes has no keyword for it.
fn mention_deprecation(fields: &mut Map<String, Value>) {
    if fields.get("deprecated") != Some(&Value::Bool(true)) {
        return;
    }
    let text = match fields.get("description").and_then(Value::as_str) {
        Some(text) if text.starts_with("Deprecated") => return,
        Some(text) => format!("Deprecated. {text}"),
        None => "Deprecated.".to_owned(),
    };
    fields.insert("description".to_owned(), Value::String(text));
}

/// Translates keywords whose values Kubernetes represents differently.
fn translate_values(fields: &mut Map<String, Value>) {
    if let Some(value) = fields.remove("const") {
        fields.insert("enum".to_owned(), json!([value]));
    }
    if let Some(format) = fields.get_mut("format") {
        match format.as_str() {
            Some("uint8" | "uint16" | "int8" | "int16") => *format = "int32".into(),
            Some("uint32" | "uint64" | "uint" | "int") => *format = "int64".into(),
            _ => {}
        }
    }
    // OpenAPI 3.0 has the bound and a flag for whether it is exclusive.
    for (exclusive, bound) in [("exclusiveMaximum", "maximum"), ("exclusiveMinimum", "minimum")] {
        if let Some(value) = fields.get_mut(exclusive).filter(|value| value.is_number()) {
            let value = std::mem::replace(value, Value::Bool(true));
            fields.insert(bound.to_owned(), value);
        }
    }
    if fields.remove("uniqueItems") == Some(Value::Bool(true)) {
        fields.insert("x-kubernetes-list-type".to_owned(), json!("set"));
    }
}
