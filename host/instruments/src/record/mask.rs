//! Removes the values of Secrets from a record.
//!
//! Each value is replaced by the same placeholder everywhere: in the Secret, and in any other text that contains it (a
//! plugin may have copied it into an environment variable or a message). A plugin that receives the masked request then
//! copies the placeholders to where the recorded answer has them, so the answers of a replay can be compared.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use serde_json::Value;

use operator_host_core::object::secret;

/// The length below which a value is masked in its Secret only: other texts could contain it by chance.
const MIN_LENGTH: usize = 6;

/// Replaces the values of every Secret in a document, at any depth, and their copies in all other texts. Idempotent.
pub fn mask(document: &mut Value) {
    let mut stand_ins = StandIns::default();
    stand_ins.collect(document);
    // Longest first: one value may contain another.
    let mut copies: Vec<(String, String)> = Vec::new();
    for (value, stand_in) in &stand_ins.0 {
        // Values from files end in a line break, which programs remove before they use the value.
        let trimmed = value.trim_ascii();
        for value in [value.as_slice(), trimmed] {
            if value.len() < MIN_LENGTH {
                continue;
            }
            if let Ok(text) = std::str::from_utf8(value) {
                copies.push((text.to_owned(), stand_in.clone()));
            }
            copies.push((base64(value), base64(stand_in.as_bytes())));
        }
    }
    copies.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
    stand_ins.replace(document, &copies);
}

/// The placeholder of each value.
#[derive(Default)]
struct StandIns(BTreeMap<Vec<u8>, String>);

impl StandIns {
    fn collect(&mut self, value: &Value) {
        match value {
            Value::Object(map) => {
                if secret::is_secret(map) {
                    secret::visit_values(map, |field, _, value| self.add(bytes(field, value)));
                }
                map.values().for_each(|value| self.collect(value));
            }
            Value::Array(items) => items.iter().for_each(|item| self.collect(item)),
            _ => {}
        }
    }

    fn add(&mut self, value: Vec<u8>) {
        // Values that the host generated are empty already.
        if value.is_empty() {
            return;
        }
        // What is masked stays as it is, in whatever order the values are found.
        let stand_in = match std::str::from_utf8(&value) {
            Ok(text) if is_stand_in(text) => text.to_owned(),
            _ => format!("masked-{:04}", self.0.len() + 1),
        };
        self.0.entry(value).or_insert(stand_in);
    }

    fn replace(&self, value: &mut Value, copies: &[(String, String)]) {
        match value {
            Value::Object(map) => {
                if secret::is_secret(map) {
                    secret::replace_values(map, |field, _, value| {
                        let value = bytes(field, value);
                        let stand_in = self.0.get(&value).map(String::as_str).unwrap_or_default();
                        match field {
                            "data" => base64(stand_in.as_bytes()).into(),
                            _ => stand_in.into(),
                        }
                    });
                }
                map.values_mut().for_each(|value| self.replace(value, copies));
                if map.keys().any(|key| is_copy(key, copies)) {
                    *map = std::mem::take(map)
                        .into_iter()
                        .map(|(mut key, value)| {
                            if is_copy(&key, copies) {
                                replace_copies(&mut key, copies);
                            }
                            (key, value)
                        })
                        .collect();
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace(item, copies)),
            Value::String(text) if has_copy(text, copies) && !is_masked(text) => replace_copies(text, copies),
            _ => {}
        }
    }
}

/// A part of a text: what is left of it, or a placeholder.
#[derive(Clone, Copy)]
enum Part<'a> {
    Text(&'a str),
    StandIn(&'a str),
}

/// Replaces the copies in a text. A value such as `masked` is not replaced in the placeholders.
fn replace_copies(text: &mut String, copies: &[(String, String)]) {
    let mut parts = vec![Part::Text(text)];
    for (copy, stand_in) in copies.iter().filter(|(copy, _)| text.contains(copy)) {
        let mut replaced = Vec::new();
        for part in parts {
            let Part::Text(text) = part else {
                replaced.push(part);
                continue;
            };
            for (number, rest) in text.split(copy).enumerate() {
                replaced.extend((number > 0).then_some(Part::StandIn(stand_in)));
                replaced.push(Part::Text(rest));
            }
        }
        parts = replaced;
    }
    let parts = parts.iter().map(|part| match part {
        Part::Text(text) | Part::StandIn(text) => *text,
    });
    *text = parts.collect();
}

/// Returns whether a key contains a copy of a value.
///
/// A key that is a word is the name of a field and stays: the value `password` must not take that key from its Secret,
/// and the value `metadata` not that of every object.
fn is_copy(key: &str, copies: &[(String, String)]) -> bool {
    let is_word = key.bytes().all(|byte| byte.is_ascii_alphabetic());
    !is_word && has_copy(key, copies)
}

fn has_copy(text: &str, copies: &[(String, String)]) -> bool {
    copies.iter().any(|(copy, _)| text.contains(copy))
}

/// Returns whether a text is a placeholder that [`mask`] made.
fn is_stand_in(text: &str) -> bool {
    text.strip_prefix("masked-")
        .is_some_and(|number| number.len() >= 4 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns whether a text is a placeholder, or its base64.
fn is_masked(text: &str) -> bool {
    let decoded = secret::decoded(&Value::from(text));
    is_stand_in(text) || decoded.is_some_and(|bytes| std::str::from_utf8(&bytes).is_ok_and(is_stand_in))
}

/// Returns the bytes of a value: those that the base64 of `data` stands for, and the text of everything else.
fn bytes(field: &str, value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => match secret::decoded(value).filter(|_| field == "data") {
            Some(decoded) => decoded,
            None => text.as_bytes().to_vec(),
        },
        // As the plugin wrote it.
        other => other.to_string().into_bytes(),
    }
}

fn base64(bytes: &[u8]) -> String {
    // `ByteString` serializes any bytes to a string.
    match serde_json::to_value(ByteString(bytes.to_vec())) {
        Ok(Value::String(text)) => text,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use operator_host_core::object::secret::LAST_APPLIED;
    use operator_host_core::object::secret::decoded;

    fn secret(value: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "s", "annotations": {LAST_APPLIED: "{\"data\":{}}", "other": "stays"}},
            "data": {"password": base64(value.as_bytes()), "pin": base64(b"1234"), "empty": ""},
        })
    }

    #[test]
    fn a_value_goes_from_its_secret_and_from_every_text_that_holds_it() {
        let mut document = json!({
            "related": [secret("correct horse")],
            "output": {
                "children": [
                    {"env": "correct horse", "url": "mysql://root:correct horse@db", "port": "1234"},
                    {"copy": base64(b"correct horse")},
                ],
                "template": {"apiVersion": "v1", "kind": "Secret", "stringData": {"p": "correct horse", "q": "only here"}},
                "message": "is it only here?",
            },
        });
        mask(&mut document);
        let text = document.to_string();
        for value in [
            "correct horse",
            &base64(b"correct horse"),
            &base64(b"1234"),
            "only here",
            "{}",
        ] {
            assert!(!text.contains(value), "{value:?} is in {text}");
        }
        let secret = &document["related"][0];
        let stand_in = decoded(&secret["data"]["password"]).unwrap();
        let stand_in = std::str::from_utf8(&stand_in).unwrap();
        let child = &document["output"]["children"][0];
        assert_eq!(child["env"], stand_in, "copies agree");
        assert_eq!(child["url"], format!("mysql://root:{stand_in}@db"));
        assert_eq!(
            child["port"], "1234",
            "a short text is a value only in its Secret"
        );
        assert_eq!(secret["data"]["empty"], "");
        assert_eq!(secret["metadata"]["annotations"], json!({"other": "stays"}));
    }

    #[test]
    fn what_is_masked_stays_as_it_is() {
        let mut once =
            json!({"b": secret("correct horse"), "a": secret("battery staple"), "c": "battery staple"});
        mask(&mut once);
        let mut twice = once.clone();
        mask(&mut twice);
        assert_eq!(once, twice);
    }

    #[test]
    fn other_kinds_and_other_fields_stay() {
        let before = json!({
            "a": {"apiVersion": "v1", "kind": "ConfigMap", "data": {"x": "correct horse"}},
            "b": {"apiVersion": "x/v1", "kind": "Secret", "data": {"x": "Y29ycmVjdCBob3JzZQ=="}},
        });
        let mut after = before.clone();
        mask(&mut after);
        assert_eq!(before, after);
    }
}
