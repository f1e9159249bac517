//! Finds the first path at which two JSON values differ. Null is the same as no field, and within the metadata an empty object,
//! too.

use serde_json::{Map, Value};

/// Returns the first path at which two values differ, below `path`, and how they differ.
pub fn difference(before: &Value, after: &Value, path: &str) -> Option<String> {
    let (path, before, after) = first(before, after, path)?;
    Some(if is_empty(after, &path) {
        format!("{path} is lost")
    } else if is_empty(before, &path) {
        format!("{path} appears")
    } else {
        format!("{path} changes")
    })
}

fn is_empty(value: &Value, path: &str) -> bool {
    value.is_null() || (path.starts_with("metadata") && value.as_object().is_some_and(Map::is_empty))
}

/// Returns the same, and the values there.
pub fn first<'a>(before: &'a Value, after: &'a Value, path: &str) -> Option<(String, &'a Value, &'a Value)> {
    if before == after || (is_empty(before, path) && is_empty(after, path)) {
        return None;
    }
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let added = new.keys().filter(|key| !old.contains_key(*key));
            old.keys().chain(added).find_map(|key| {
                let path = match path {
                    "" => key.clone(),
                    path => format!("{path}.{key}"),
                };
                let side = |fields: &'a Map<String, Value>| fields.get(key).unwrap_or(&Value::Null);
                first(side(old), side(new), &path)
            })
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            let mut items = old.iter().zip(new).enumerate();
            items.find_map(|(index, (old, new))| first(old, new, &format!("{path}[{index}]")))
        }
        _ => Some((path.to_owned(), before, after)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_that_does_not_come_back_is_named_by_its_path() {
        let before = json!({ "metadata": { "labels": {} }, "spec": { "a": 1, "list": [{ "b": 1 }], "none": null, "empty": {} } });
        let differs = |change: fn(&mut Value)| {
            let mut after = before.clone();
            change(&mut after);
            difference(&before, &after, "")
        };
        assert_eq!(differs(|_| {}), None);
        assert_eq!(differs(|after| after["metadata"]["labels"] = Value::Null), None);
        assert_eq!(
            differs(|after| after["metadata"]["annotations"] = json!({})),
            None
        );
        for (change, expected) in [
            (
                (|after| after["spec"]["a"] = Value::Null) as fn(&mut Value),
                "spec.a is lost",
            ),
            (|after| after["spec"]["a"] = 2.into(), "spec.a changes"),
            // A field such as `emptyDir: {}` means something.
            (|after| after["spec"]["empty"] = Value::Null, "spec.empty is lost"),
            (|after| after["spec"]["none"] = json!({}), "spec.none appears"),
            (|after| after["spec"]["c"] = 2.into(), "spec.c appears"),
            (
                |after| after["spec"]["list"][0]["b"] = 2.into(),
                "spec.list[0].b changes",
            ),
            (|after| after["spec"]["list"] = json!([]), "spec.list changes"),
        ] {
            assert_eq!(differs(change).as_deref(), Some(expected));
        }
    }
}
