//! The fields that a plugin gives an object that it decorates. They are applied without force, and what others own stays theirs.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use operator_host_core::field_path::{FieldPath, Step, WrittenPath};
use operator_host_core::managed_fields::{Elements, applied_by, below};
use operator_host_core::text::shorten;

use crate::drift::drift;

/// What the plugin may repeat of its parent, to answer a whole object.
const IDENTITY: [&str; 3] = ["name", "namespace", "uid"];

/// Returns the body of an apply that gives a parent these fields, and takes back all others of the same manager. `allowed` are the
/// paths below which fields may be.
///
/// # Errors
/// Which field is not allowed, and why.
pub fn body(
    parent: &DynamicObject,
    fields: &Map<String, Value>,
    allowed: &[WrittenPath],
) -> Result<Value, String> {
    let mut content = fields.clone();
    if let Some(types) = &parent.types {
        for (field, own) in [("apiVersion", &types.api_version), ("kind", &types.kind)] {
            if content.remove(field).is_some_and(|given| given != **own) {
                return Err(format!(
                    "`parent.{field}` is not that of the parent, {own:?}: leave it out"
                ));
            }
        }
    }
    let own = serde_json::to_value(&parent.metadata).unwrap_or_default();
    if let Some(Value::Object(metadata)) = content.get_mut("metadata") {
        for field in IDENTITY {
            if metadata.remove(field).is_some_and(|given| given != own[field]) {
                return Err(format!(
                    "`parent.metadata.{field}` is not that of the parent: leave it out"
                ));
            }
        }
    }
    let mut content = Value::Object(content);
    let tails: Vec<_> = allowed.iter().map(|path| path.steps.as_slice()).collect();
    if let Some((mut steps, why)) = refused(&content, &tails) {
        steps.reverse();
        let path = shorten(&FieldPath(steps).to_string(), 200);
        return Err(match why {
            Why::NotAllowed if allowed.is_empty() => format!(
                "the plugin gives the parent {path}, and this controller writes no fields of its parents: list the path under \
                 `fields` of `spec.decorates`"
            ),
            Why::NotAllowed => format!(
                "the plugin gives the parent {path}, which is below none of the paths in `fields` of `spec.decorates`"
            ),
            Why::List => format!(
                "the plugin gives the parent the list {path}, whose other elements may be others': name an element by its keys \
                 in `fields`, as in `spec.containers[name=app].resources`"
            ),
        });
    }
    for (field, own) in own.as_object().into_iter().flatten() {
        if IDENTITY.contains(&&**field) {
            content["metadata"][field] = own.clone();
        }
    }
    if let Some(types) = &parent.types {
        content["apiVersion"] = json!(types.api_version);
        content["kind"] = json!(types.kind);
    }
    Ok(content)
}

/// Why a field is not allowed.
enum Why {
    NotAllowed,
    List,
}

/// Returns the first field that is below none of the paths, of which `tails` are the remaining steps. Its path has the innermost
/// step first.
fn refused(value: &Value, tails: &[&[Step]]) -> Option<(Vec<Step>, Why)> {
    let is_covered = tails.iter().any(|tail| tail.is_empty());
    match value {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let below = tails.iter().filter_map(|tail| match tail.split_first() {
                Some((Step::Field(field), rest)) if field == name => Some(rest),
                _ => None,
            });
            let below: Vec<_> = match is_covered {
                true => vec![&[] as &[Step]],
                false => below.collect(),
            };
            refused(value, &below).map(|found| beyond(found, Step::Field(name.clone())))
        }),
        Value::Array(elements) if !is_covered && !tails.is_empty() => elements.iter().find_map(|element| {
            let this = || Step::Element(Arc::new(element.clone()));
            // The keys are no fields of their own: they say which element it is.
            let (mut content, mut below) = (element.clone(), Vec::new());
            for (step, rest) in tails.iter().filter_map(|tail| tail.split_first()) {
                if let Step::Element(keys) = step
                    && step.selects(element)
                {
                    if let (Some(keys), Some(fields)) = (keys.as_object(), content.as_object_mut()) {
                        fields.retain(|name, _| !keys.contains_key(name));
                    }
                    below.push(rest);
                }
            }
            match below.is_empty() {
                true => Some((vec![this()], Why::List)),
                false => refused(&content, &below).map(|found| beyond(found, this())),
            }
        }),
        Value::Array(_) if is_covered => Some((Vec::new(), Why::List)),
        _ if is_covered => None,
        _ => Some((Vec::new(), Why::NotAllowed)),
    }
}

fn beyond((mut path, why): (Vec<Step>, Why), step: Step) -> (Vec<Step>, Why) {
    path.push(step);
    (path, why)
}

/// Reports whether `manager` owns every field of `body` in an object, and no other. A field that others change or remove is not its
/// own any more. `managed` are the object's managed fields.
pub fn is_applied(body: &Value, live: &DynamicObject, managed: &[ManagedFieldsEntry], manager: &str) -> bool {
    match applied_by(managed, manager) {
        None => is_empty(body),
        Some(ours) => {
            !is_empty(body) && !has_more(ours, body) && drift(managed, manager, body, live).is_empty()
        }
    }
}

/// Reports whether a body has no fields but those that say which object it is.
fn is_empty(body: &Value) -> bool {
    let fields = body.as_object().into_iter().flatten();
    let mut content = fields.filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind"));
    content.all(|(name, value)| {
        let mut inner = value.as_object().into_iter().flatten();
        name == "metadata" && inner.all(|(name, _)| IDENTITY.contains(&&**name))
    })
}

/// Reports whether an entry has a field that a value does not have.
fn has_more(entry: &Value, value: &Value) -> bool {
    let elements = Elements::of(entry);
    let assigned = value.as_array().map(|list| elements.assign(list));
    below(entry).enumerate().any(
        |(index, (name, entry))| match (name.strip_prefix("f:"), &assigned) {
            (Some(field), _) => value.get(field).is_none_or(|value| has_more(entry, value)),
            (None, Some(assigned)) => assigned
                .iter()
                .position(|at| *at == Some(index))
                .is_none_or(|at| has_more(entry, &value[at])),
            // What is in a list as a whole.
            (None, None) => true,
        },
    )
}

/// Reports whether an object has each value of a body.
pub fn has_values(live: &DynamicObject, body: &Value) -> bool {
    let metadata = serde_json::to_value(&live.metadata).unwrap_or_default();
    let mut fields = body.as_object().into_iter().flatten();
    fields.all(|(name, body)| match name.as_str() {
        // Those of the object for which the body was made.
        "apiVersion" | "kind" => true,
        "metadata" => contains(&metadata, body),
        name => live.data.get(name).is_some_and(|live| contains(live, body)),
    })
}

fn contains(live: &Value, body: &Value) -> bool {
    match (live, body) {
        (Value::Object(live), Value::Object(body)) => body
            .iter()
            .all(|(name, body)| live.get(name).is_some_and(|live| contains(live, body))),
        (Value::Array(live), Value::Array(body)) => body
            .iter()
            .all(|body| live.iter().any(|live| contains(live, body))),
        (live, body) => live == body,
    }
}

#[cfg(test)]
mod tests;
