//! Puts right what server-side apply alone cannot: others have added to a child, and the result is refused.
//!
//! Examples are a probe with two handlers, a Service with two ports of one name, and the default of a strategy that is no
//! longer wanted. An apply removes nothing that it does not own. So the smallest part of the child that holds the refused
//! field is replaced by the wanted one, and then the child is applied. What others have elsewhere stays.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::PatchParams;
use kube::core::DynamicObject;
use serde_json::{Value, json};
use tracing::debug;

use super::context::LiveChild;
use operator_host_cluster::api_error::{ApiError, Fault};
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_core::field_path::{self, FieldPath};
use operator_host_core::managed_fields::{Elements, applied_by, is_apply_of, other_writer};
use operator_host_core::object::{secret, shorten};
use operator_host_desired::drift::drift;
use operator_host_desired::plan::Desired;

/// How many parts of the child are tried, the smallest first.
const TRIES: usize = 3;
/// How often the host tries to give up what a replacement owns.
const DISOWN_TRIES: usize = 5;
/// A part is at least this far below the root: to replace a whole spec would reset what others and the API server set.
const LEAST_DEPTH: usize = 2;
/// Maximum size of a value in a message, in bytes.
const SHOWN: usize = 200;

/// Applies a child that exists and is ours, and replaces parts of it where the apply does not suffice; see the module.
///
/// # Errors
/// The refusal, with the value that is in the way, when no part can be replaced; the error of any other request.
pub(super) async fn apply(
    objects: &ResourceClient<'_>,
    desired: &Desired,
    live: &LiveChild,
    body: &Value,
    manager: &str,
) -> Result<DynamicObject, ApiError> {
    let params = PatchParams::apply(manager).force();
    match objects.apply(&desired.key.name, body, &params).await {
        Err(refused) if refused.fault == Fault::Refused(422) && !refused.is_lost_race() => {
            let fields = refused_fields(&refused.message);
            let parts = fields
                .iter()
                .flat_map(|field| parts(field, desired, live, manager));
            match replace(objects, desired, live, body, manager, parts.collect()).await? {
                Some(replaced) => Ok(replaced),
                None => Err(in_the_way(refused, &fields, desired, live, manager)),
            }
        }
        // Old API servers, such as 1.20, drop an empty map that is added to others' fields, without a word.
        Ok(answer) => {
            let managed = answer.metadata.managed_fields.clone().unwrap_or_default();
            let Some(lost) = drift(&managed, manager, &desired.body, &answer) else {
                return Ok(answer);
            };
            let after = LiveChild {
                object: Arc::new(answer),
                managed,
            };
            let parts = parts(&steps_of(&lost, &after.object.data), desired, &after, manager);
            let replaced = replace(objects, desired, &after, body, manager, parts).await?;
            Ok(replaced.unwrap_or_else(|| Arc::unwrap_or_clone(after.object)))
        }
        answer => answer,
    }
}

/// Replaces the first of these parts with which the child can be applied. Returns the object after it; `None` when there is
/// no such part.
async fn replace(
    objects: &ResourceClient<'_>,
    desired: &Desired,
    live: &LiveChild,
    body: &Value,
    manager: &str,
    parts: Vec<Part<'_>>,
) -> Result<Option<DynamicObject>, ApiError> {
    let name = &desired.key.name;
    let version = live.object.metadata.resource_version.as_deref();
    for Part { pointer, wanted } in parts.iter().take(TRIES) {
        match objects
            .replace_part(name, version, pointer, wanted, manager)
            .await
        {
            Ok(_) => debug!(
                "replaced {pointer} of {}: what others added to it was in the way",
                desired.key
            ),
            Err(error) if error.fault == Fault::Refused(422) => continue,
            Err(error) => return Err(error),
        }
        let mut body = body.clone();
        if let Some(metadata) = body["metadata"].as_object_mut() {
            // That of the object before it was replaced.
            metadata.remove("resourceVersion");
        }
        let params = PatchParams::apply(manager).force();
        let answer = objects.apply(name, &body, &params).await?;
        return disown(objects, desired, answer, manager).await.map(Some);
    }
    Ok(None)
}

/// Gives up what the replacement owns beside the apply: a field that the plugin no longer wants would stay.
async fn disown(
    objects: &ResourceClient<'_>,
    desired: &Desired,
    mut applied: DynamicObject,
    manager: &str,
) -> Result<DynamicObject, ApiError> {
    let is_replacement = |entry: &ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(manager) && !is_apply_of(entry, manager)
    };
    // A controller of the kind, for example, may write the object meanwhile.
    for _ in 0..DISOWN_TRIES {
        let managed = applied.metadata.managed_fields.as_deref().unwrap_or_default();
        if !managed.iter().any(is_replacement) {
            break;
        }
        let others: Vec<_> = managed.iter().filter(|entry| !is_replacement(entry)).collect();
        let patch = json!({ "metadata": {
            "managedFields": others, "uid": applied.metadata.uid, "resourceVersion": applied.metadata.resource_version,
        } });
        match objects.merge(&desired.key.name, &patch, manager).await {
            Err(error) if error.is_lost_race() => match objects.read(&desired.key.name).await? {
                Some(fresh) => applied = fresh,
                None => break,
            },
            answer => return answer,
        }
    }
    Ok(applied)
}

/// A part of a child that can be replaced: where it is in the live object (RFC 6901), and what it should be.
#[derive(Debug, PartialEq)]
struct Part<'a> {
    pointer: String,
    wanted: &'a Value,
}

/// Returns the fields that the API server names in a refusal, such as `spec.ports[1].name`.
///
/// Source: `field.Error` of `k8s.io/apimachinery/pkg/util/validation/field`.
fn refused_fields(message: &str) -> Vec<Vec<String>> {
    const REASONS: [&str; 6] = [
        ": Forbidden",
        ": Invalid value",
        ": Duplicate value",
        ": Required value",
        ": Unsupported value",
        ": Too many",
    ];
    let mut found = Vec::new();
    for (at, _) in message.match_indices(": ") {
        if REASONS.iter().any(|reason| message[at..].starts_with(reason)) {
            let path = message[..at].rsplit(' ').next().unwrap_or_default();
            let steps = path
                .split(['.', '['])
                .map(|step| step.trim_end_matches(']').to_owned());
            let path: Vec<_> = steps.filter(|step| !step.is_empty()).collect();
            if !path.is_empty() && !found.contains(&path) {
                found.push(path);
            }
        }
    }
    found
}

/// Returns the names and positions of a path in `live`, as far as it is there.
fn steps_of(path: &FieldPath, live: &Value) -> Vec<String> {
    let mut at = Some(live);
    let steps = path.steps().iter().map_while(|step| {
        let now = at?;
        match step {
            field_path::Step::Field(name) => {
                at = now.get(name);
                Some(name.clone())
            }
            field_path::Step::Element(element) => {
                let position = now.as_array()?.iter().position(|live| live == &**element)?;
                at = now.get(position);
                Some(position.to_string())
            }
        }
    });
    steps.collect()
}

/// Returns the parts of a child that hold a refused field and differ from the desired ones, the smallest first.
fn parts<'a>(path: &[String], desired: &'a Desired, live: &LiveChild, manager: &str) -> Vec<Part<'a>> {
    let mut parts = Vec::new();
    let mut pointer = String::new();
    let (mut wanted, mut is) = (&desired.body, &live.object.data);
    let mut place = applied_by(&live.managed, manager);
    for (depth, step) in (1..).zip(path) {
        let next = match (wanted, is) {
            (Value::Object(wanted), Value::Object(is)) => {
                place = place.and_then(|place| place.get(format!("f:{step}")));
                wanted.get(step).zip(is.get(step))
            }
            (Value::Array(wanted), Value::Array(is)) => {
                let live = step.parse().ok().and_then(|live: usize| is.get(live));
                live.and_then(|live| {
                    let elements = Elements::of(place?);
                    let name = elements.find(live)?;
                    let desired = elements.assign(wanted).iter().position(|of| *of == Some(name))?;
                    place = Some(elements.at(name).1);
                    Some((wanted.get(desired)?, live))
                })
            }
            _ => None,
        };
        let Some(next) = next else { break };
        (wanted, is) = next;
        pointer = format!("{pointer}/{}", step.replace('~', "~0").replace('/', "~1"));
        // An empty list has no elements to restore, and those of others may stay.
        let is_part = wanted.is_object() || wanted.as_array().is_some_and(|list| !list.is_empty());
        if is_part && depth >= LEAST_DEPTH && wanted != is {
            let pointer = pointer.clone();
            parts.push(Part { pointer, wanted });
        }
    }
    parts.reverse();
    parts
}

/// Adds to a refusal which value is in the way, and whose it is.
fn in_the_way(
    mut refused: ApiError,
    paths: &[Vec<String>],
    desired: &Desired,
    live: &LiveChild,
    manager: &str,
) -> ApiError {
    let said = paths.iter().find_map(|path| {
        let (mut value, mut field) = (&live.object.data, FieldPath::default());
        for step in path {
            let next = match value {
                Value::Object(fields) => fields.get(step),
                Value::Array(list) => step.parse().ok().and_then(|at: usize| list.get(at)),
                _ => None,
            };
            field = match next {
                Some(element) if value.is_array() => field.element(element),
                _ => field.field(step),
            };
            value = next?;
        }
        let writer = other_writer(&live.managed, &field, manager)?;
        let value = match secret::is_secret_kind(&desired.key.kind) {
            true => "its value".to_owned(),
            false => shorten(&value.to_string(), SHOWN),
        };
        writer.is_owner.then(|| {
            format!(
                "; in the cluster {field} is {value}, which {:?} has set",
                writer.manager
            )
        })
    });
    if let Some(said) = said {
        refused.message = format!("{}{said}", refused.message).into();
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use operator_host_contract::Kind;
    use operator_host_core::object::{ChildRef, NamespacedName};

    #[test]
    fn the_fields_that_are_refused_are_read_from_the_message() {
        for (message, expected) in [
            (
                r#"Service "a" is invalid: spec.ports[1].name: Duplicate value: "http""#,
                vec!["spec/ports/1/name"],
            ),
            (
                r#"Deployment.apps "a" is invalid: [spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate', spec.x: Required value]"#,
                vec!["spec/strategy/rollingUpdate", "spec/x"],
            ),
            ("admission webhook \"w\" denied the request: no", vec![]),
        ] {
            let found: Vec<_> = refused_fields(message)
                .iter()
                .map(|steps| steps.join("/"))
                .collect();
            assert_eq!(found, expected, "{message}");
        }
    }

    #[test]
    fn the_smallest_part_with_the_refused_field_comes_first() {
        let body = json!({ "spec": { "volumes": [{ "name": "b", "configMap": { "name": "x" } }] } });
        let key = ChildRef {
            kind: Kind::new("v1", "Pod"),
            name: NamespacedName::parse("n/a"),
        };
        let desired = Desired {
            key,
            body,
            left: Vec::new(),
            fingerprint: String::new(),
            after: Vec::new(),
            depth: 0,
        };
        let live = json!({
            "metadata": { "name": "a", "managedFields": [{
                "manager": "us", "operation": "Apply", "fieldsType": "FieldsV1",
                "fieldsV1": { "f:spec": { "f:volumes": { r#"k:{"name":"b"}"#: { "f:name": {}, "f:configMap": {} } } } },
            }] },
            "spec": { "volumes": [{ "name": "a", "emptyDir": {} }, { "name": "b", "emptyDir": {} }] },
        });
        let object: DynamicObject = serde_json::from_value(live).unwrap();
        let live = LiveChild {
            managed: object.metadata.managed_fields.clone().unwrap(),
            object: Arc::new(object),
        };
        let path = ["spec", "volumes", "1", "emptyDir"].map(str::to_owned);
        let volumes = &desired.body["spec"]["volumes"];
        let expected = [("/spec/volumes/1", &volumes[0]), ("/spec/volumes", volumes)];
        let expected = expected.map(|(pointer, wanted)| Part {
            pointer: pointer.into(),
            wanted,
        });
        assert_eq!(parts(&path, &desired, &live, "us"), expected);
    }
}
