//! The status of an answer that was carried out, until it is written. The next call sees it as its parent's status, whether it
//! belongs to this reconcile or, after a failure, to the next one: what a plugin counts in its status is counted once.

use std::sync::Arc;

use kube::core::DynamicObject;
use serde_json::{Map, Value};

use super::{owned, unacceptable};
use crate::reconcile::run::Run;
use operator_host_cluster::api_error::ApiError;
use operator_host_contract::Condition;
use operator_host_core::clock::now;
use operator_host_desired::conditions::{
    StatusUpdate, conditions_of, current, is_host_field, is_host_type, render,
};

/// What an answer said; see the module.
#[derive(Clone, Debug)]
pub(crate) struct Unwritten {
    uid: Option<String>,
    fields: Option<Map<String, Value>>,
    /// `None`: those of the parent stay.
    conditions: Option<Vec<Condition>>,
}

impl Unwritten {
    /// Returns what is not written of a parent.
    pub(super) fn of(run: &Run<'_>, parent: &DynamicObject) -> Option<Self> {
        let unwritten = run.memory(|memory| memory.status.unwritten.clone());
        unwritten.filter(|unwritten| unwritten.uid == parent.metadata.uid)
    }

    /// Returns an update that has its own parts, and these where it has none.
    pub(super) fn complete<'a>(&'a self, update: &StatusUpdate<'a>) -> StatusUpdate<'a> {
        match update.fields {
            Some(_) => *update,
            None => StatusUpdate {
                fields: self.fields.as_ref(),
                conditions: update.conditions.or(self.conditions.as_deref()),
                ..*update
            },
        }
    }
}

/// Remembers what an answer said that was carried out.
pub(crate) fn note(
    run: &Run<'_>,
    parent: &DynamicObject,
    fields: Option<&Map<String, Value>>,
    conditions: Option<&[Condition]>,
) {
    // The status of what is decorated is not the plugin's.
    if run.context.config.decorates.is_some() || fields.and_then(unacceptable).is_some() {
        return;
    }
    let before = Unwritten::of(run, parent).and_then(|before| before.fields);
    let unwritten = Unwritten {
        uid: parent.metadata.uid.clone(),
        fields: fields.cloned().or(before),
        conditions: conditions.map(<[Condition]>::to_vec),
    };
    run.memory(|memory| memory.status.unwritten = Some(unwritten));
}

/// Returns a parent as the plugin is to see it.
pub(crate) async fn shown(
    run: &Run<'_>,
    parent: &Arc<DynamicObject>,
) -> Result<Arc<DynamicObject>, ApiError> {
    let Some(Unwritten {
        fields, conditions, ..
    }) = Unwritten::of(run, parent)
    else {
        return Ok(Arc::clone(parent));
    };
    let stored = current(parent);
    let mut status = fields.unwrap_or_else(|| stored.clone());
    // What the answer has not is removed if it is the host's, and stays if it is of others.
    let is_left = |name: &String| !is_host_field(name) && !status.contains_key(name);
    let own = match stored.keys().any(is_left) {
        true => run.context.cluster.own_requests().read(run.name).await?,
        false => None,
    };
    let manager = run.context.config.field_manager();
    let own = own.map_or_else(Map::new, |fresh| owned::status(&fresh, &manager));
    for (name, value) in stored {
        if is_host_field(name) || !(status.contains_key(name) || own.contains_key(name)) {
            status.insert(name.clone(), value.clone());
        }
    }
    let mut all: Vec<Value> = Vec::new();
    for condition in conditions.iter().flatten().filter(|it| !is_host_type(&it.type_)) {
        if all.iter().all(|other| other["type"] != condition.type_) {
            all.push(render(condition, stored, parent.metadata.generation, now()));
        }
    }
    for other in conditions_of(stored) {
        if all.iter().all(|condition| condition["type"] != other["type"]) {
            all.push(other.clone());
        }
    }
    if !all.is_empty() {
        status.insert("conditions".into(), all.into());
    }
    let mut shown = DynamicObject::clone(parent);
    shown.data["status"] = status.into();
    Ok(Arc::new(shown))
}
