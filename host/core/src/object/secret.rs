//! The values of Secrets, for everything that shows an object to people.

use k8s_openapi::ByteString;
use serde_json::{Map, Value, json};

use operator_host_contract::Kind;

/// The fields of a Secret that hold its values.
pub const VALUE_FIELDS: [&str; 2] = ["data", "stringData"];

/// The annotation in which `kubectl apply` stores a copy of the whole object.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Reports whether an object is a Secret.
pub fn is_secret(object: &Map<String, Value>) -> bool {
    let is = |field: &str, text: &str| object.get(field).is_some_and(|value| value == text);
    is("kind", "Secret") && is("apiVersion", "v1")
}

/// Reports whether a kind is that of Secrets.
pub fn is_secret_kind(kind: &Kind) -> bool {
    kind.api_version == "v1" && kind.kind == "Secret"
}

/// Calls `visit` for every value of a Secret, with its field and its key. A field that is no map, which the API server
/// would refuse, is one value without a key.
pub fn visit_values<'a>(
    secret: &'a Map<String, Value>,
    mut visit: impl FnMut(&'static str, Option<&'a str>, &'a Value),
) {
    for field in VALUE_FIELDS {
        match secret.get(field) {
            Some(Value::Object(values)) => {
                values
                    .iter()
                    .for_each(|(key, value)| visit(field, Some(key), value));
            }
            Some(Value::Null) | None => {}
            Some(value) => visit(field, None, value),
        }
    }
}

/// Replaces what [`visit_values`] visits, and removes the copy of the values in [`LAST_APPLIED`].
pub fn replace_values(
    secret: &mut Map<String, Value>,
    mut replacement: impl FnMut(&'static str, Option<&str>, &Value) -> Value,
) {
    for field in VALUE_FIELDS {
        match secret.get_mut(field) {
            Some(Value::Object(values)) => values
                .iter_mut()
                .for_each(|(key, value)| *value = replacement(field, Some(key), value)),
            Some(Value::Null) | None => {}
            Some(value) => *value = replacement(field, None, value),
        }
    }
    let metadata = secret.get_mut("metadata");
    let annotations = metadata.and_then(|metadata| metadata.get_mut("annotations"));
    if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
    }
}

/// Returns the bytes of a value of `data`; `None` if it is not base64.
pub fn decoded(value: &Value) -> Option<Vec<u8>> {
    let decoded: Result<ByteString, _> = serde_json::from_value(value.clone());
    decoded.ok().map(|ByteString(bytes)| bytes)
}

/// Moves the values of `stringData` to `data`, as the API server does. It does not do so in `managedFields`: nobody would own
/// the values.
pub fn encode(secret: &mut Map<String, Value>) {
    if let Some(Value::Object(texts)) = secret.remove("stringData") {
        let data = secret.entry("data").or_insert(Value::Null);
        if data.is_null() {
            *data = Value::Object(Map::new());
        }
        for (key, text) in texts {
            if let (Some(data), Value::String(text)) = (data.as_object_mut(), text) {
                data.insert(key, json!(ByteString(text.into_bytes())));
            }
        }
    }
}

/// Returns the value in this field and under this key; the whole field without a key.
pub fn value_at<'a>(secret: &'a Value, field: &str, key: Option<&str>) -> Option<&'a Value> {
    let values = secret.get(field)?;
    key.map_or(Some(values), |key| values.get(key))
}

/// Returns what is wrong with the types of a Secret's values, without any value.
///
/// The API server quotes a value of another type in its refusal, and its refusals are in the status of the parent.
pub fn type_problem(secret: &Map<String, Value>) -> Option<String> {
    let mut problem = None;
    visit_values(secret, |field, key, value| {
        let found = match value {
            Value::String(_) if key.is_none() => "a string",
            Value::String(_) | Value::Null => return,
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        };
        let _ = problem.get_or_insert_with(|| match key {
            Some(key) => format!(
                "the value of {:?} in its `{field}` is {found}; it must be a string",
                crate::text::shorten(key, SHOWN)
            ),
            None => format!("its `{field}` is {found}; it must be a map of strings"),
        });
    });
    problem
}

/// Maximum number of bytes of a key in a message.
const SHOWN: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: &Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn a_value_that_is_no_string_is_a_problem_that_does_not_show_it() {
        for (secret, problem) in [
            (
                json!({"stringData": {"a": "x", "password": 987_654_321}}),
                "the value of \"password\" in its `stringData` is a number; it must be a string",
            ),
            (
                json!({"data": {"p": ["987654321"]}}),
                "the value of \"p\" in its `data` is a list; it must be a string",
            ),
            (
                json!({"data": {"p": {"q": "987654321"}}}),
                "the value of \"p\" in its `data` is an object; it must be a string",
            ),
            (
                json!({"stringData": "987654321"}),
                "its `stringData` is a string; it must be a map of strings",
            ),
            (
                json!({"data": ["987654321"]}),
                "its `data` is a list; it must be a map of strings",
            ),
        ] {
            assert_eq!(type_problem(&map(&secret)).as_deref(), Some(problem));
        }
        let good = json!({"data": {"a": "QQ==", "b": null}, "stringData": null});
        assert_eq!(type_problem(&map(&good)), None);
    }

    #[test]
    fn texts_replace_the_data_under_the_same_key() {
        let mut secret =
            map(&json!({ "data": { "a": "QQ==", "b": "Qg==" }, "stringData": { "a": "x", "c": null } }));
        encode(&mut secret);
        let expected = json!({ "data": { "a": "eA==", "b": "Qg==" } });
        assert_eq!(Value::Object(secret), expected);
        let mut secret = map(&json!({ "stringData": { "a": "A" } }));
        encode(&mut secret);
        assert_eq!(Value::Object(secret), json!({ "data": { "a": "QQ==" } }));
    }

    #[test]
    fn every_value_is_replaced_whatever_it_is() {
        let mut secret = map(&json!({
            "metadata": {"annotations": {LAST_APPLIED: "{}", "a": "b"}},
            "data": {"text": "QQ==", "list": ["x"]}, "stringData": "y", "type": "Opaque",
        }));
        replace_values(&mut secret, |_, _, _| "-".into());
        assert_eq!(
            Value::Object(secret),
            json!({
                "metadata": {"annotations": {"a": "b"}},
                "data": {"text": "-", "list": "-"}, "stringData": "-", "type": "Opaque",
            })
        );
    }
}
