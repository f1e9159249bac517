//! Secrets whose values the host makes: from the operating system's randomness, once, and never changed after.
//!
//! A value lives in this process only between the draw and the request; caches, logs and requests to plugins
//! hold it blank.

use std::collections::BTreeSet;

use kube::core::DynamicObject;
use serde_json::{Map, Value};

use super::api::{ApiError, Fault, Objects};
use super::children::DesiredSecret;
use super::context::Context;
use super::object::ObjectName;
use crate::plugin::contract::GeneratedValue;

const LETTERS_AND_DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// Makes what is missing. Whether anything was.
///
/// # Errors
/// What the API server refuses.
pub async fn generate(
    context: &Context,
    parent: &ObjectName,
    desired: &DesiredSecret,
) -> Result<bool, ApiError> {
    let key = &desired.key;
    let failed = |message: String| ApiError {
        verb: "generate",
        kind: "Secret".into(),
        name: key.name.clone(),
        fault: Fault::Host,
        message,
    };
    let live = context.existing(key);
    let missing: Vec<&GeneratedValue> = desired
        .secret
        .entries
        .iter()
        .filter(|entry| {
            live.as_ref()
                .is_none_or(|live| live.data["data"].get(&entry.key).is_none())
        })
        .collect();
    if live.is_some() && missing.is_empty() {
        return Ok(false);
    }
    let mut values = Map::new();
    for entry in missing {
        let value = draw(entry).map_err(|error| failed(format!("no randomness from the system: {error}")))?;
        values.insert(entry.key.clone(), Value::String(value));
    }
    let mut body = desired.body.clone();
    body["stringData"] = Value::Object(values);
    let manager = context.config.field_manager();
    // `children::plan` has refused kinds that the cluster does not serve.
    let Some(resource) = context.resources.get(&key.kind) else {
        return Ok(false);
    };
    let objects = Objects::new(&context.children_writer, resource);
    let answer = if let Some(live) = live {
        // Refused when somebody was faster: what is there must not be drawn twice.
        body["metadata"]["resourceVersion"] = live.metadata.resource_version.clone().into();
        objects.merge(&key.name, &body, &manager).await?
    } else {
        let body: DynamicObject = serde_json::from_value(body).map_err(|error| failed(error.to_string()))?;
        objects.create(&key.name, body, &manager).await?
    };
    context.record_child(parent, key, answer);
    Ok(true)
}

fn draw(entry: &GeneratedValue) -> Result<String, getrandom::Error> {
    let alphabet: Vec<char> = entry
        .alphabet
        .as_deref()
        .unwrap_or(LETTERS_AND_DIGITS)
        .chars()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    // `children::plan` has seen to at least two characters.
    let size = u32::try_from(alphabet.len()).unwrap_or(u32::MAX);
    // Numbers from here on are drawn again: a plain remainder would favour the first characters.
    let limit = u32::MAX - u32::MAX % size;
    let mut text = String::with_capacity(entry.length as usize);
    let mut drawn = 0;
    while drawn < entry.length {
        let number = getrandom::u32()?;
        if number < limit {
            text.push(alphabet[(number % size) as usize]);
            drawn += 1;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_the_length_and_the_alphabet_asked_for_and_is_drawn_anew_each_time() {
        let entry = |alphabet: Option<&str>| GeneratedValue {
            key: "password".into(),
            length: 40,
            alphabet: alphabet.map(str::to_owned),
        };
        let one = draw(&entry(None)).unwrap();
        assert_eq!(one.len(), 40);
        assert!(one.chars().all(|c| LETTERS_AND_DIGITS.contains(c)));
        assert_ne!(one, draw(&entry(None)).unwrap());
        let from_few = draw(&entry(Some("äö€"))).unwrap();
        assert_eq!(from_few.chars().count(), 40);
        assert!(from_few.chars().all(|c| "äö€".contains(c)));
    }
}
