//! Writes the parent's status if it changed.

pub mod owned;
pub(super) mod unwritten;

use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::brakes::held;
use super::context::pace::Cause;
use super::run::Run;
use operator_host_cluster::api_error::{ApiError, Fault};
use operator_host_core::clock::now;
use operator_host_core::digest::hash_of;
use operator_host_core::managed_fields::{below, fields};
use operator_host_core::object::{
    MAX_DEPTH, fingerprint, is_deeper, is_unreadable, least_size, long_key, unreadable,
};
use operator_host_core::sync::lock;
use operator_host_desired::conditions::{
    READY, Reason, Remarks, StatusUpdate, Verdict, compose, conditions_of, current, is_host_type, labels,
};
use unwritten::Unwritten;

/// Maximum bytes of a request that an API server accepts (`MaxRequestBodyBytes` of its generic configuration).
const REQUEST: usize = 3 << 20;

/// Computes the desired status, and a hash of what its conditions say to a machine: all but their texts and times. `before` is
/// the current status, from which missing parts are kept.
pub(super) fn desired(
    run: &Run<'_>,
    parent: &DynamicObject,
    before: &Map<String, Value>,
    update: &StatusUpdate<'_>,
) -> (Map<String, Value>, u64) {
    let held_back = run.context.versions.blocking_parents.reason(run.name);
    let unwatched = run.context.state.unwatched.reason(run.name);
    let remarks = run.memory(|memory| Remarks {
        held_back,
        contested: memory.conflicts.condition(),
        dropped: memory.unkept.reason(),
        unwatched,
    });
    let mut status = compose(parent, before, update, &remarks, now());
    let stated = stated(&status);
    if run.memory(|memory| memory.status.shares_conditions) {
        keep_others_conditions(current(parent), &mut status);
    }
    run.context.cluster.served.status.restrict(&mut status);
    if !lock(&run.context.state.narrow).is_empty() {
        fit(run, parent, &mut status, update);
    }
    (status, stated)
}

/// The most fields of a definition that are said to leave out a part of a status. Keys of a map may be fields, too.
const MOST_LEFT_OUT: usize = 32;

/// Returns a path with the elements of each list taken for one.
fn without_indices(path: &str) -> String {
    let parts = path
        .split('[')
        .map(|part| part.split_once(']').map_or(part, |(_, rest)| rest));
    parts.collect::<Vec<_>>().join("[]")
}

/// Removes from a status what the definition does not allow, and says so once for each of its fields. Returns whether there was
/// anything.
fn fit(
    run: &Run<'_>,
    parent: &DynamicObject,
    status: &mut Map<String, Value>,
    update: &StatusUpdate<'_>,
) -> bool {
    let fields = &run.context.cluster.served.status;
    let left_out = fields.fit(status, update.fields.is_some());
    for problem in &left_out {
        let is_news = {
            let mut told = lock(&run.context.state.narrow);
            told.len() < MOST_LEFT_OUT && told.insert(without_indices(&problem.path))
        };
        if is_news {
            let kind = &run.context.config.parent.kind;
            let why = format!(
                "a part of the status is left out, because the definition of {kind} does not allow it: {problem}. Change \
                 this field of the CustomResourceDefinition"
            );
            run.warn(parent, "StatusLeftOut", &why);
        }
    }
    !left_out.is_empty()
}

/// Writes the status if it differs from the current one, and returns whether it did. What an earlier answer said and is not
/// written yet is in it, unless the update says something else.
///
/// The apply is forced, so it must repeat every field of this field manager. Fields that this reconcile did not set are
/// read from the API server first, and the write carries that resource version: an older value never replaces a newer
/// one.
///
/// With `at`, it is an error when the parent no longer has this resource version: a reconcile may have written its status
/// meanwhile.
///
/// # Errors
/// When the API server refuses a request, or would refuse it for its size. A deleted parent is not an error.
pub(super) async fn write(
    run: &Run<'_>,
    parent: &DynamicObject,
    update: &StatusUpdate<'_>,
    at: Option<&str>,
) -> Result<bool, ApiError> {
    // That of an answer which a reconcile may be carrying out stays as it is.
    let unwritten = match at {
        Some(_) => None,
        None => Unwritten::of(run, parent),
    };
    let unwritten = unwritten.as_ref();
    let whole = unwritten.map_or(*update, |unwritten| unwritten.complete(update));
    let mut sent = send(run, parent, &whole, at).await;
    let is_refused = sent.as_ref().is_err_and(ApiError::is_invalid);
    match &sent {
        _ if *update.verdict == Verdict::Paused || at.is_some() => {}
        Ok(Sent::Waits) | Err(_) if !is_refused => {
            if whole.fields.is_some() {
                unwritten::note(run, parent, whole.fields, whole.conditions);
            }
        }
        _ => run.memory(|memory| memory.status.unwritten = None),
    }
    if is_refused && unwritten.is_some() && update.fields.is_none() {
        sent = send(run, parent, update, at).await;
    }
    sent.map(|sent| sent == Sent::Written)
}

/// What became of a status.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    Written,
    /// The parent has it, or is gone.
    Unchanged,
    /// It backs off.
    Waits,
}

async fn send(
    run: &Run<'_>,
    parent: &DynamicObject,
    update: &StatusUpdate<'_>,
    at: Option<&str>,
) -> Result<Sent, ApiError> {
    if run.context.config.decorates.is_some() {
        note_only(run, parent, update);
        return Ok(Sent::Unchanged);
    }
    // The fields that the apply would have to repeat were not read.
    if !run.context.cluster.served.parent.has_status || is_unreadable(parent) {
        return Ok(Sent::Unchanged);
    }
    if let Some((code, why)) = update.fields.and_then(unacceptable) {
        let (kind, fault) = (&run.context.config.parent.kind, Fault::Refused(code));
        return Err(ApiError::new("apply the status of", kind, run.name, fault, why));
    }
    let (mut status, stated) = desired(run, parent, current(parent), update);
    let (conditions, unready_since) = labels(&status);
    let counted = run.context.observer.parents.count(conditions, unready_since);
    // This drops the earlier count.
    run.memory(|memory| memory.status.counted = Some(counted));
    // It is empty when the definition requires what is not there.
    let is_impossible = status.is_empty() && !lock(&run.context.state.narrow).is_empty();
    if *current(parent) == status || is_impossible {
        return Ok(Sent::Unchanged);
    }
    let before = fingerprint(current(parent));
    // Without the times: on a server that drops the conditions they would differ in each reconcile.
    let body_fingerprint = fingerprint(&without_times(&status));
    // Others may have fields in the status, too, and the server may drop fields that its schema does not define.
    let known = (body_fingerprint.clone(), before);
    if run.memory(|memory| memory.status.normalized.as_ref() == Some(&known)) {
        return Ok(Sent::Unchanged);
    }
    let objects = run.context.cluster.own_requests();
    let is_first = run.memory(|memory| memory.status.written.is_none());
    if is_first && has(current(parent), &status) {
        // Another client may have the rest. Only the API server knows who owns it.
        let fresh = objects.read(run.name).await?;
        let fresh = fresh.filter(|fresh| current(fresh) == current(parent));
        let manager = run.context.config.field_manager();
        let shares = fresh.as_ref().is_some_and(|it| shares_conditions(it, &manager));
        if shares {
            run.memory(|memory| memory.status.shares_conditions = true);
            (status, _) = desired(run, parent, current(parent), update);
        }
        let own = fresh.map(|fresh| match shares {
            true => current(&fresh).clone(),
            false => owned::status(&fresh, &manager),
        });
        if own.is_some_and(|own| has(&own, &status) && has(&status, &own)) {
            let written = fingerprint(&without_times(&status));
            run.memory(|memory| {
                memory.status.stated = Some(stated);
                memory.status.normalized = Some((written.clone(), known.1));
                memory.status.written = Some(written);
            });
            return Ok(Sent::Unchanged);
        }
    }
    let now = Instant::now();
    // A condition that changes does not wait, and does not make later texts wait.
    let cause = run.memory(|memory| match &memory.status {
        status if status.stated != Some(stated) => None,
        status if status.written.as_ref() == Some(&body_fingerprint) => Some(Cause::Correction),
        _ => Some(Cause::Progress),
    });
    let is_held = || held(run, parent, &"the status", |memory| Some(memory.status.pace())).is_some();
    if cause.is_some() && is_held() {
        // What it says next is read from the caches again when it is due.
        return Ok(Sent::Waits);
    }
    if cause == Some(Cause::Correction) && !run.memory(|memory| memory.status.shares_conditions) {
        let fresh = objects.read(run.name).await?;
        let shares =
            fresh.is_some_and(|fresh| shares_conditions(&fresh, &run.context.config.field_manager()));
        run.memory(|memory| memory.status.shares_conditions = shares);
        if shares {
            (status, _) = desired(run, parent, current(parent), update);
        }
    }
    // A new parent may have the name by now.
    let mut metadata = json!({ "name": parent.name_any(), "uid": parent.metadata.uid });
    if let Some(namespace) = parent.namespace() {
        metadata["namespace"] = namespace.into();
    }
    if let Some(version) = at {
        metadata["resourceVersion"] = version.into();
    }
    if update.repeats(current(parent)) {
        let fresh = objects.read(run.name).await?;
        let is_it = |fresh: &DynamicObject| {
            fresh.metadata.uid == parent.metadata.uid
                && !is_unreadable(fresh)
                && (at.is_none() || fresh.metadata.resource_version.as_deref() == at)
        };
        let Some(mut fresh) = fresh.filter(is_it) else {
            return Ok(Sent::Unchanged);
        };
        metadata["resourceVersion"] = fresh.metadata.resource_version.clone().into();
        // The status is about the generation of this reconcile.
        fresh.metadata.generation = parent.metadata.generation;
        let own = owned::status(&fresh, &run.context.config.field_manager());
        (status, _) = desired(run, &fresh, &own, update);
    }
    let body = json!({
        "apiVersion": run.context.config.parent.api_version,
        "kind": run.context.config.parent.kind,
        "metadata": metadata,
        "status": status,
    });
    let manager = run.context.config.field_manager();
    match objects.apply_status(run.name, &body, &manager).await {
        Ok(answer) => {
            let after = (body_fingerprint, fingerprint(current(&answer)));
            let differs = Value::Object(current(&answer).clone()) != body["status"];
            run.memory(|memory| {
                memory.status.written = Some(after.0.clone());
                memory.status.normalized = differs.then_some(after);
                memory.status.stated = Some(stated);
                if let Some(cause) = cause {
                    memory.status.pace().wrote(cause, now);
                }
            });
            run.context.record_parent(parent, Some(&body["status"]), answer);
            Ok(Sent::Written)
        }
        Err(error) if error.is_not_found() => {
            run.context.doubt(run.name);
            Ok(Sent::Unchanged)
        }
        // Only then is it worth the time to judge each status before it is sent.
        Err(error) if error.is_invalid() => match fit(run, parent, &mut status, update) {
            true => Box::pin(send(run, parent, update, at)).await,
            false => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Counts an object that is decorated, and remembers why it is not ready. Its own status is others' to write.
fn note_only(run: &Run<'_>, parent: &DynamicObject, update: &StatusUpdate<'_>) {
    let (status, _) = desired(run, parent, &Map::new(), update);
    let (conditions, unready_since) = labels(&status);
    let counted = run.context.observer.parents.count(conditions, unready_since);
    run.memory(|memory| memory.status.counted = Some(counted));
    let unready = conditions_of(&status).find(|it| it["type"] == READY && it["status"] != "True");
    let why = unready.map(|ready| {
        let text = |field: &str| ready[field].as_str().unwrap_or_default();
        Reason::new(text("reason"), text("message"))
    });
    run.context.state.note_unready(run.name, why);
}

/// Returns why a plugin's status is not sent, and with which code an API server would refuse it. This comes before anything else:
/// to copy, hash and send a huge one would hold up the reconciles of other controllers.
fn unacceptable(fields: &Map<String, Value>) -> Option<(u16, String)> {
    if least_size(fields) > REQUEST {
        let why = "the status is larger than 3 MiB, which no API server accepts: make the plugin answer with a smaller one";
        return Some((413, why.to_owned()));
    }
    // Neither this host nor another could read it again.
    if fields.values().any(|value| is_deeper(value, MAX_DEPTH - 1)) {
        return Some((422, unreadable("the status in the plugin's answer")));
    }
    let problem = long_key(fields)?;
    Some((422, format!("the status in the plugin's answer: {problem}")))
}

/// Reports whether another manager has the conditions, too, and has them as one value: the definition does not say that they
/// are a list of type map, so each apply by one replaces those of the other.
fn shares_conditions(parent: &DynamicObject, manager: &str) -> bool {
    let managed = parent.metadata.managed_fields.iter().flatten();
    let others = managed.filter(|entry| entry.manager.as_deref() != Some(manager));
    others.filter_map(fields).any(|fields| {
        let conditions = fields["f:status"].get("f:conditions");
        conditions.is_some_and(|conditions| below(conditions).next().is_none())
    })
}

/// Adds the conditions of types that the host and the plugin do not set.
fn keep_others_conditions(current: &Map<String, Value>, status: &mut Map<String, Value>) {
    let is_in = |all: &[Value], type_: &Value| all.iter().any(|condition| condition["type"] == *type_);
    if let (Some(Value::Array(current)), Some(Value::Array(wanted))) =
        (current.get("conditions"), status.get_mut("conditions"))
    {
        for condition in current {
            let is_own = condition["type"].as_str().is_none_or(is_host_type);
            if !is_own && !is_in(wanted, &condition["type"]) {
                wanted.push(condition.clone());
            }
        }
    }
}

/// Reports whether a status has all that another one has, in any order of the conditions.
fn has(status: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    other
        .iter()
        .all(|(name, wanted)| match (name.as_str(), status.get(name), wanted) {
            ("conditions", Some(Value::Array(all)), Value::Array(wanted)) => {
                wanted.iter().all(|condition| all.contains(condition))
            }
            (_, value, wanted) => value == Some(wanted),
        })
}

fn stated(status: &Map<String, Value>) -> u64 {
    let said = |it: &Value| ["type", "status", "reason"].map(|field| it[field].as_str().map(str::to_owned));
    hash_of(conditions_of(status).map(said).collect::<Vec<_>>())
}

fn without_times(status: &Map<String, Value>) -> Map<String, Value> {
    let mut status = status.clone();
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.remove("lastTransitionTime");
    }
    status
}
