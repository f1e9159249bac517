//! The API server's rules for names, labels and annotations.

use std::collections::BTreeMap;

use serde_json::Value;

/// Maximum size of all annotations of an object, as in Kubernetes.
pub const ANNOTATIONS: usize = 256 << 10;

/// Checks one label.
///
/// # Errors
/// Why the API server would refuse it.
pub fn check_label(key: &str, value: &str) -> Result<(), String> {
    check_key("labels", key)?;
    if is_label_value(value) {
        return Ok(());
    }
    Err(format!(
        "metadata.labels[{key:?}] is {value:?}; a label's value has at most 63 letters, digits, `-`, `_` and `.`"
    ))
}

/// Checks all annotations of an object.
///
/// # Errors
/// Why the API server would refuse them.
pub fn check_annotations(annotations: &BTreeMap<String, String>) -> Result<(), String> {
    for key in annotations.keys() {
        check_key("annotations", &key.to_lowercase())?;
    }
    let size: usize = annotations
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if size > ANNOTATIONS {
        return Err(format!(
            "metadata.annotations has {} KiB; the limit is {} KiB",
            size.div_ceil(1024),
            ANNOTATIONS >> 10
        ));
    }
    Ok(())
}

fn check_key(field: &str, key: &str) -> Result<(), String> {
    match is_label_key(key) {
        true => Ok(()),
        false => Err(format!("metadata.{field} has the invalid key {key:?}")),
    }
}

/// Whether a text is the key of a label, such as `app.kubernetes.io/name`.
pub fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_prefix = |prefix: &str| prefix.len() <= 253 && prefix.split('.').all(is_part);
    is_name(name) && prefix.is_none_or(is_prefix)
}

/// Whether a text is a part of a DNS name, of any length.
fn is_part(part: &str) -> bool {
    let ends_with_dash = part.starts_with('-') || part.ends_with('-');
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !part.is_empty() && !ends_with_dash && part.bytes().all(is_plain)
}

/// Whether a text is the value of a label.
pub fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_name(value)
}

/// Reports whether a text is a name as labels have them, or a value.
fn is_name(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// Returns what is wrong with the metadata of a resource of any kind.
pub fn problem(metadata: &Value) -> Option<String> {
    let fields = match metadata {
        Value::Null => return None,
        Value::Object(fields) => fields,
        other => return Some(format!("{other} is not an object")),
    };
    for name in ["name", "generateName", "namespace"] {
        match fields.get(name).unwrap_or(&Value::Null) {
            Value::Null => {}
            Value::String(text)
                if name == "namespace" && (text.is_empty() || (text.len() <= 63 && is_part(text))) => {}
            Value::String(text)
                if name != "namespace" && !text.contains(['/', '%']) && text != "." && text != ".." => {}
            other => return Some(format!("{name} is {other}, which no resource can have")),
        }
    }
    let texts = |name: &str| match fields.get(name) {
        None => Ok(BTreeMap::new()),
        Some(texts) => serde_json::from_value::<Option<BTreeMap<String, String>>>(texts.clone())
            .map(Option::unwrap_or_default)
            .map_err(|error| format!("{name}: {error}")),
    };
    let checked = || {
        for (key, value) in texts("labels")? {
            check_label(&key, &value)?;
        }
        check_annotations(&texts("annotations")?)
    };
    checked().err()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_that_no_resource_can_have_is_named() {
        for right in [
            json!({}),
            json!({ "name": "A_b", "labels": { "a/b": "" }, "annotations": { "A": "x y" } }),
            json!({ "labels": null, "generateName": "a-" }),
            json!(null),
        ] {
            assert_eq!(problem(&right), None, "{right}");
        }
        for wrong in [
            json!("a"),
            json!({ "name": 1 }),
            json!({ "name": ".." }),
            json!({ "name": "a/b" }),
            json!({ "namespace": "A" }),
            json!({ "labels": { "a": "b c" } }),
            json!({ "labels": { "a": 1 } }),
            json!({ "annotations": { "a b": "" } }),
        ] {
            assert!(problem(&wrong).is_some(), "{wrong}");
        }
    }
}
