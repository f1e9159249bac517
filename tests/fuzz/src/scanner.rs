//! Compares the values that the SDK finds in an object's text with the tree parsed by serde_json.

use serde_json::Value;

use crate::object::Object;
use crate::scan::{Escaped, Item, elements, members};

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    // Scanning any text ends without a panic.
    let _ = members(text).count() + elements(text).count();
    let item = Item {
        json: text.trim_matches([' ', '\n', '\r', '\t']),
        escaped: text.contains('\\'),
    };
    let _ = (item.string(), item.integer(), item.member("metadata"));
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return;
    };
    // Of two members with the same name, the tree keeps the last and the scanner finds the first: no object of an
    // API server has two.
    if has_twins(item) {
        return;
    }
    same(item, &value);
    if value.is_object() {
        same_answers(text, &value);
    }
}

fn has_twins(item: Item<'_>) -> bool {
    let names: Vec<Value> = members(item.json)
        .filter_map(|member| serde_json::from_str(member.name.json).ok())
        .collect();
    names
        .iter()
        .enumerate()
        .any(|(at, name)| names[..at].contains(name))
        || members(item.json).any(|member| has_twins(member.value))
        || elements(item.json).any(has_twins)
}

/// Checks that every value is found by its name or position and equals the parsed one.
fn same(item: Item<'_>, value: &Value) {
    let json = item.json;
    match value {
        Value::Object(map) => {
            assert_eq!(members(json).count(), map.len(), "{json}");
            for (name, value) in map {
                match item.member(name) {
                    Ok(found) => same(found.expect("a member that is there"), value),
                    Err(Escaped) => assert!(json.contains('\\'), "{json}"),
                }
            }
        }
        Value::Array(items) => {
            let found: Vec<_> = elements(json).collect();
            assert_eq!(found.len(), items.len(), "{json}");
            found
                .into_iter()
                .zip(items)
                .for_each(|(item, value)| same(item, value));
        }
        Value::String(expected) => match item.string() {
            Ok(found) => assert_eq!(found, Some(expected.as_str())),
            Err(Escaped) => assert!(json.contains('\\'), "{json}"),
        },
        Value::Number(number) => {
            assert_eq!(serde_json::from_str::<Value>(json).ok().as_ref(), Some(value));
            // The scanner parses integers of up to 18 digits; all others are read from the tree.
            if let Some(found) = item.integer() {
                assert_eq!(Some(found), number.as_i64(), "{json}");
            }
        }
        Value::Bool(_) | Value::Null => {
            assert_eq!(json, value.to_string());
            assert_eq!((item.string(), item.integer()), (Ok(None), None));
        }
    }
}

/// Checks that plugins' queries have the same results from the text and from the tree.
fn same_answers(text: &str, value: &Value) {
    let (of_text, of_tree) = (Object::from_text(text.to_owned()), Object::from(value.clone()));
    for object in [&of_text, &Object::from_text(text.to_owned())] {
        assert_eq!(object.name(), of_tree.name());
        assert_eq!(object.namespace(), of_tree.namespace());
        assert_eq!(object.kind(), of_tree.kind());
        assert_eq!(object.api_version(), of_tree.api_version());
        assert_eq!(object.is_terminating(), of_tree.is_terminating());
        assert_eq!(object.is_finished_pod(), of_tree.is_finished_pod());
        assert_eq!(object.is_ready(), of_tree.is_ready());
        for type_ in ["Ready", "Available"] {
            assert_eq!(
                object.condition(type_),
                of_tree.condition(type_),
                "{type_} in {text}"
            );
        }
        for key in ["app", "a", ""] {
            assert_eq!(object.label(key), of_tree.label(key));
            assert_eq!(object.annotation(key), of_tree.annotation(key));
        }
        for path in "/metadata/generation /spec/replicas /a/0/b /a /status/phase".split(' ') {
            assert_eq!(object.text(path), of_tree.text(path), "{path} in {text}");
            assert_eq!(object.integer(path), of_tree.integer(path), "{path} in {text}");
        }
    }
}
