//! Masking: no value of a Secret remains in a record, in whatever form.

use std::collections::BTreeSet;

use k8s_openapi::ByteString;
use operator_host_instruments::record::mask;
use serde_json::Value;

/// The minimum length for masking: shorter values would be found in other strings by chance.
const SHORTEST: usize = 6;

pub(crate) fn run(bytes: &[u8]) {
    let Ok(before) = serde_json::from_slice::<Value>(bytes) else {
        return;
    };
    let mut after = before.clone();
    mask(&mut after);
    same_shape(&before, &after);

    let mut again = after.clone();
    mask(&mut again);
    assert_eq!(after, again, "masking twice is masking once");

    let mut values = BTreeSet::new();
    secrets(&before, &mut |secret| collect(secret, &mut values));
    strings(&after, &mut |text| {
        let rests = without_stand_ins(text);
        for value in values.iter().filter(|value| value.len() >= SHORTEST) {
            let is_left = rests.iter().any(|rest| rest.contains(value.as_str()));
            assert!(!is_left, "{value:?} is left in {text:?}");
        }
    });
    // In a Secret itself, not even a short value remains.
    secrets(&after, &mut |secret| {
        for value in secret["data"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(_, value)| value)
        {
            let ByteString(bytes) = serde_json::from_value(value.clone()).expect("base64");
            assert!(is_stand_in(&bytes), "{value} is no stand-in");
        }
        for value in secret["stringData"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(_, value)| value)
        {
            assert!(
                is_stand_in(value.as_str().expect("a text").as_bytes()),
                "{value} is no stand-in"
            );
        }
    });
}

fn is_stand_in(bytes: &[u8]) -> bool {
    bytes.is_empty() || bytes.starts_with(b"masked-")
}

/// Returns what is left of a text between the placeholders in it: a value such as `masked` is part of those, and one
/// such as `1-rest` comes to be where a placeholder ends.
fn without_stand_ins(text: &str) -> Vec<&str> {
    // The number of the placeholder follows, as text or as base64. No input has 10,000 values.
    const STARTS: [(&str, usize); 2] = [("masked-", "0001".len()), ("bWFza2VkL", "TAwMDE=".len())];
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((at, end)) = STARTS
        .iter()
        .filter_map(|(start, number)| rest.find(start).map(|at| (at, at + start.len() + number)))
        .min()
    {
        parts.push(&rest[..at]);
        rest = rest.get(end..).unwrap_or_default();
    }
    parts.push(rest);
    parts
}

fn secrets(value: &Value, see: &mut impl FnMut(&Value)) {
    if value["kind"] == "Secret" && value["apiVersion"] == "v1" {
        see(value);
    }
    match value {
        Value::Object(map) => map.values().for_each(|value| secrets(value, see)),
        Value::Array(items) => items.iter().for_each(|item| secrets(item, see)),
        _ => {}
    }
}

/// Collects the values of a Secret as strings, and as base64 if that is long enough not to be found by chance.
fn collect(secret: &Value, values: &mut BTreeSet<String>) {
    let mut add = |value: Vec<u8>| {
        if value.len() >= SHORTEST
            && let Ok(Value::String(base64)) = serde_json::to_value(ByteString(value.clone()))
        {
            values.insert(base64);
        }
        values.extend(String::from_utf8(value));
    };
    for (_, value) in secret["data"].as_object().into_iter().flatten() {
        if let Ok(ByteString(bytes)) = serde_json::from_value(value.clone()) {
            add(bytes);
        }
    }
    for (_, value) in secret["stringData"].as_object().into_iter().flatten() {
        add(value.as_str().unwrap_or_default().as_bytes().to_vec());
    }
}

fn strings(value: &Value, see: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(items) => items.iter().for_each(|item| strings(item, see)),
        Value::Object(map) => {
            for (key, value) in map {
                // A key that is a word is the name of a field.
                if !key.bytes().all(|byte| byte.is_ascii_alphabetic()) {
                    see(key);
                }
                strings(value, see);
            }
        }
        _ => {}
    }
}

/// Masking changes only strings, and removes kubectl's copy of a Secret from its annotations.
fn same_shape(before: &Value, after: &Value) {
    match (before, after) {
        (Value::Array(before), Value::Array(after)) => {
            assert_eq!(before.len(), after.len());
            before
                .iter()
                .zip(after)
                .for_each(|(before, after)| same_shape(before, after));
        }
        (Value::Object(before), Value::Object(after)) => assert!(after.len() <= before.len()),
        (Value::String(_), Value::String(_)) => {}
        _ => assert_eq!(before, after),
    }
}
