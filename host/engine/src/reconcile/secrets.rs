//! Creates Secrets whose values the host generates: once, from the operating system's randomness, and never changed
//! afterwards.
//!
//! A value exists in this process only between its generation and the request; caches, logs and requests to plugins
//! contain it blanked.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use super::error::Stop;
use super::freshness::may_create;
use super::outcome::Changes;
use super::run::Run;
use operator_host_cluster::api_error::{ApiError, Fault};
use operator_host_contract::{GeneratedValue, Response};
use operator_host_core::child_rules::Removal;
use operator_host_core::object::{ChildRef, is_terminating};
use operator_host_desired::generated::{GeneratedSecrets, RECORD_ANNOTATION};
use operator_host_desired::ownership::owns;
use operator_host_desired::plan::{DesiredSecret, Plan};
use operator_host_desired::provenance::PROOF_ANNOTATION;

const LETTERS_AND_DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// The UIDs of the Secrets that a plan generates. Another one of the same name is not the host's.
pub(super) type Generated<'a> = HashMap<&'a ChildRef, String>;

/// Creates or completes the Secrets that an answer asks for, and records on the parent which are complete, also when one of
/// them fails.
pub(super) async fn generate<'a>(
    run: &Run<'_>,
    parent: &mut Arc<DynamicObject>,
    answer: &Response,
    plan: &'a Plan,
    changes: &mut Changes,
) -> Result<Generated<'a>, Stop> {
    let mut generated = Generated::new();
    let completed = async {
        for secret in &plan.secrets {
            generated.insert(&secret.key, complete(run, parent, secret, changes).await?);
        }
        Ok::<_, Stop>(())
    };
    let completed = completed.await;
    if !is_terminating(parent) {
        *parent = record(run, parent, answer, plan, &generated).await?;
    }
    completed.map(|()| generated)
}

/// Creates or completes a Secret, and returns its UID.
async fn complete(
    run: &Run<'_>,
    parent: &DynamicObject,
    desired: &DesiredSecret,
    changes: &mut Changes,
) -> Result<String, Stop> {
    let key = &desired.key;
    let failed = |message: String| ApiError::new("generate", "Secret", &key.name, Fault::Host, message);
    let live = run.context.caches.existing(key);
    let live = live.as_deref();
    if live.and_then(|live| live.metadata.resource_version.as_ref()) != desired.seen.as_ref() {
        // Lost values must not be generated again, and those of somebody else not be completed.
        return Err(Stop::Outdated);
    }
    if live.is_some_and(|live| live.data.is_null()) {
        // Values that the cache does not hold may exist in the cluster.
        let message = "its values are not in the cache; the host tries again when they are";
        return Err(failed(message.to_owned()).into());
    }
    let proof_key = &run.context.proof_key;
    // Load the key before any value is generated: a Secret that could not be proved later is not created.
    let proving = proof_key.load(Some(&run.context.cluster.writer)).await;
    let proving = proving.map_err(|error| failed(error.to_string()))?;
    let missing = desired.secret.entries.iter();
    let missing = missing.filter(|entry| live.is_none_or(|live| live.data["data"].get(&entry.key).is_none()));
    let missing: Vec<&GeneratedValue> = missing.collect();
    // A retained Secret has no owner reference; it needs one when generated Secrets are to be deleted with their
    // parent.
    let lacks_owner = live.is_some_and(|live| {
        run.context.config.rules.generated == Removal::Delete
            && !owns(run.context.config.scope(), parent, live)
            && !is_terminating(live)
    });
    // A Secret without this proof gets here only if the parent's record has it, or the parent accepts it: `desired::plan` refuses all others.
    let parent_kind = &run.context.config.parent;
    let lacks_proof = live.is_some_and(|live| !proof_key.proof().has_key_of(parent_kind, parent, live));
    if let Some(live) = live
        && missing.is_empty()
        && !lacks_owner
        && !lacks_proof
    {
        return Ok(live.uid().unwrap_or_default());
    }
    let mut values = Map::new();
    for entry in missing {
        let no_randomness = |error| failed(format!("the operating system provides no randomness: {error}"));
        values.insert(entry.key.clone(), draw(entry).map_err(no_randomness)?.into());
    }
    let mut body = desired.body.clone();
    body["stringData"] = Value::Object(values);
    body["metadata"]["annotations"][PROOF_ANNOTATION] = proving.prove(parent_kind, parent, &key.name).into();
    let manager = run.context.config.field_manager();
    // `desired::plan` has refused kinds that the cluster does not serve.
    let Some(objects) = run.context.cluster.requests_for(&key.kind) else {
        return Err(Stop::Outdated);
    };
    if live.is_none() && !may_create(run, parent, key).await? {
        return Err(Stop::ParentChanged);
    }
    let answer = if let Some(live) = live {
        // Refused if somebody was faster: existing values must not be replaced.
        body["metadata"]["resourceVersion"] = live.metadata.resource_version.clone().into();
        // Not by an index, which would add a null: it would remove the owners.
        if let Some(Value::Array(owners)) = body.pointer_mut("/metadata/ownerReferences") {
            let others = live.metadata.owner_references.iter().flatten();
            let others = others.filter(|owner| Some(&owner.uid) != parent.metadata.uid.as_ref());
            owners.extend(others.map(|owner| json!(owner)));
        }
        let answer = objects.merge(&key.name, &body, &manager).await?;
        changes.updated.push(key.clone());
        answer
    } else {
        let body: DynamicObject = serde_json::from_value(body).map_err(|error| failed(error.to_string()))?;
        let created = objects.create(&key.name, body, &manager).await;
        let answer = created.inspect_err(|error| run.context.caches.record_refused_namespace(error))?;
        changes.created.push(key.clone());
        answer
    };
    let uid = answer.uid().unwrap_or_default();
    run.context.record_child(run.name, key, answer);
    Ok(uid)
}

/// Records on the parent which Secrets are generated. Returns the parent with this record, otherwise as the reconcile knows it:
/// what others have changed meanwhile is for the next one.
async fn record(
    run: &Run<'_>,
    parent: &Arc<DynamicObject>,
    answer: &Response,
    plan: &Plan,
    generated: &Generated<'_>,
) -> Result<Arc<DynamicObject>, ApiError> {
    let newest = run.context.caches.as_seen(parent);
    let before = GeneratedSecrets::of(newest.as_ref().unwrap_or(parent));
    let mut now = before.clone();
    if run.context.config.rules.generated == Removal::Delete {
        // Also one that the plan leaves out: that it is lost must not be forgotten.
        now.keep_only(&answer.generate);
    }
    for secret in &plan.secrets {
        if let Some(uid) = generated.get(&secret.key) {
            now.add(secret, uid);
        }
    }
    if now == before {
        return Ok(Arc::clone(parent));
    }
    let text = now.text();
    // A parent that was made again in the meantime has another UID.
    let body =
        json!({ "metadata": { "uid": parent.metadata.uid, "annotations": { RECORD_ANNOTATION: text } } });
    match run.merge(&body).await {
        Ok(answer) => {
            run.context.record_parent(parent, None, answer);
            let mut parent = DynamicObject::clone(parent);
            let annotations = parent.annotations_mut();
            match text {
                Some(text) => annotations.insert(RECORD_ANNOTATION.to_owned(), text),
                None => annotations.remove(RECORD_ANNOTATION),
            };
            Ok(Arc::new(parent))
        }
        Err(error) if error.is_not_found() => Ok(Arc::clone(parent)),
        Err(error) => Err(error),
    }
}

fn draw(entry: &GeneratedValue) -> Result<String, getrandom::Error> {
    let alphabet = entry.alphabet.as_deref().unwrap_or(LETTERS_AND_DIGITS);
    let alphabet: BTreeSet<char> = alphabet.chars().collect();
    let alphabet = Vec::from_iter(alphabet);
    // `desired::plan` has required at least two characters.
    let size = u32::try_from(alphabet.len()).unwrap_or(u32::MAX);
    // Numbers from this limit on are drawn again: a plain remainder would favour the first characters.
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
    fn a_value_has_the_requested_length_and_alphabet_and_differs_each_time() {
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
