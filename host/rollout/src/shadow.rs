//! Determines what a plugin version would answer and what would follow from it. Calls the plugin as a reconcile
//! does, but writes nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::answer::{ComparedAnswer, SecretValues};
use super::off_the_serving_threads;
use crate::definitions::installed;
use operator_host_config::DefinitionsMode;
use operator_host_contract::{Kind, Need, Request, Response};
use operator_host_core::child_rules::Removal;
use operator_host_core::crd::definition;
use operator_host_core::crd::known::Schemas;
use operator_host_core::object::{
    APPLIED_ANNOTATION, ChildRef, Identity, NamespacedName, annotation, is_built_in, is_terminating,
    without_host_metadata,
};
use operator_host_desired::conditions::{
    self, NOT_CALLED, PAUSED, RECONCILING, RETRYING, STALLED, Verdict, conditions_of, current,
};
use operator_host_desired::plan::{Plan, Refusal};
use operator_host_engine::reconcile::context::Context;
use operator_host_engine::reconcile::decorate;
use operator_host_engine::reconcile::evaluate::evaluate_dry;
use operator_host_engine::reconcile::prune::removable;
use operator_host_runtime::Plugin;

/// Maximum number of problems named for each object.
const MAX_REFUSED: usize = 10;

/// The current state of one object, with the request that a reconcile would send for it.
pub(super) struct Snapshot {
    pub(super) parent: Arc<DynamicObject>,
    children: Vec<Arc<DynamicObject>>,
    /// What the plugin asked to read in its last reconcile.
    needs: Vec<Need>,
    now: Timestamp,
}

/// The effect of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Effect {
    /// The answer, with its parts in a canonical order.
    pub(super) answer: ComparedAnswer,
    /// Observed children that would be deleted.
    pub(super) deleted: BTreeSet<Identity>,
    /// Observed children that are retained and would no longer be managed.
    pub(super) left: BTreeSet<Identity>,
    /// The children that existing objects are in the way of. While they are, a reconcile deletes nothing. The proof counts
    /// what it would delete afterwards.
    pub(super) refused: BTreeSet<String>,
}

/// The schemas by which the API server will judge what a version asks for.
pub(super) struct Known {
    schemas: Schemas,
    parent: Kind,
    /// The cluster's definition of the parent, unless the host installs that of the plugin.
    definition: Option<Value>,
}

impl Known {
    /// Reads the definitions of all children, and of the parent where the cluster's counts.
    pub(super) async fn read(context: &Context) -> Result<Self, String> {
        let config = &context.config;
        let read = async |name: &str| installed(&context.cluster.client, name, &config.name).await;
        let definition = match config.definitions {
            DefinitionsMode::Install => None,
            _ if config.decorates.is_some() => None,
            DefinitionsMode::Check | DefinitionsMode::Ignore => {
                read(&context.cluster.served.parent.definition_name()).await?
            }
        };
        let children = config.rules.children.keys();
        let custom = children.filter(|kind| !is_built_in(kind.group()));
        let mut definitions = Vec::new();
        for resource in custom.filter_map(|kind| context.cluster.served.others.get(kind)) {
            definitions.extend(read(&resource.definition_name()).await?);
        }
        Ok(Self {
            schemas: Schemas::of(config.rules.children.keys(), &definitions),
            parent: config.parent.clone(),
            definition,
        })
    }

    /// Returns the schema of the parent. Where the cluster's is not known, that of the plugin is the best guess.
    fn schema_for(&self, plugin: &Plugin) -> Option<Value> {
        let own = || plugin.description().definition();
        let definition = self.definition.clone().or_else(own)?;
        definition::schema(&definition, &self.parent).cloned()
    }

    /// Returns what of an answer the API server would refuse.
    fn refused(
        &self,
        parent: &DynamicObject,
        schema: Option<&Value>,
        response: &Response,
        plan: &Plan,
        now: Timestamp,
    ) -> Vec<String> {
        let (fields, conditions) = (response.status.as_ref(), Some(response.conditions.as_slice()));
        let status = conditions::desired(parent, fields, conditions, &Verdict::Reconciled, now);
        let bodies: Vec<Value> = bodies(plan).collect();
        let keys = plan.desired.iter().map(|child| &child.key);
        let mut refused = self.schemas.refused(keys.zip(&bodies), schema, &status);
        refused.truncate(MAX_REFUSED);
        refused
    }
}

impl Snapshot {
    /// Returns `None` when a reconcile would not call the plugin: the object was deleted, waits for the garbage
    /// collector, or is in the host's own namespace.
    pub(super) fn of(context: &Context, name: &NamespacedName, now: Timestamp) -> Option<Self> {
        let parent = context.caches.parent(name)?;
        let config = &context.config;
        let finalizers = parent.metadata.finalizers.as_deref().unwrap_or_default();
        if is_terminating(&parent) {
            if !finalizers.iter().any(|it| config.owns_finalizer(it)) {
                return None;
            }
        } else if context.refuses_namespace(&parent).is_some() {
            return None;
        }
        Some(Self {
            children: context.owned(&parent),
            needs: context.state.needs.of(name),
            parent,
            now,
        })
    }

    /// Returns that the version that was live failed for this object, if its conditions say so.
    pub(super) fn failure(&self) -> Option<Result<Effect, String>> {
        failed(&self.parent, !self.children.is_empty()).then(|| Err("it failed before".to_owned()))
    }

    /// Returns the number of observed children that could be deleted: none while the object itself is being deleted.
    pub(super) fn deletable(&self, context: &Context) -> usize {
        if is_terminating(&self.parent) {
            return 0;
        }
        let children = self.children.iter();
        let removals = children.filter_map(|child| self.removable(context, child));
        removals.filter(|(_, it)| *it == Removal::Delete).count()
    }

    /// Returns the effect that a version, which is [proving](Plugin::proving), would have on this object. `values` are those of Secrets in its other answers.
    pub(super) async fn evaluate(
        &self,
        context: &Context,
        plugin: &Plugin,
        values: &mut SecretValues,
        known: &Arc<Known>,
    ) -> Result<Effect, String> {
        let (response, share) = if is_terminating(&self.parent) && !plugin.description().finalizer {
            let response = Response {
                done: true,
                ..Response::default()
            };
            (response, None)
        } else {
            let subject = Request {
                namespace_terminating: context.caches.is_namespace_terminating(&self.parent),
                ..Request::about(Arc::clone(&self.parent), self.children.clone(), self.now)
            };
            let evaluated = evaluate_dry(plugin, &subject, context, self.needs.clone()).await;
            evaluated.map_err(|error| error.to_string())?
        };
        decorate::body_for(&context.config, &self.parent, response.parent.as_ref())?;
        let plan = context.plan(plugin, &self.parent, &self.children, &response);
        let plan = plan.map_err(|refusals| in_words(refusals.iter().map(Refusal::to_string)))?;
        let (deleted, left) = self.removed(context, &plan);
        let in_the_way = plan.refused.iter().map(ToString::to_string).collect();
        let mut hidden = std::mem::take(values);
        let (known, parent, now) = (Arc::clone(known), Arc::clone(&self.parent), self.now);
        let schema = known.schema_for(plugin);
        let work = move || {
            let refused = known.refused(&parent, schema.as_ref(), &response, &plan, now);
            let answer = ComparedAnswer::new(shown(response, &plan), &mut hidden);
            // The answer as a whole is gone.
            drop((plan, share));
            (refused, answer, hidden)
        };
        let (refused, answer);
        (refused, answer, *values) = off_the_serving_threads(work).await?;
        if !refused.is_empty() {
            return Err(refused.join("; "));
        }
        Ok(Effect {
            answer,
            deleted,
            left,
            refused: in_the_way,
        })
    }

    /// Returns the observed children that would be deleted, and those that would no longer be managed. A change of a child that
    /// may be replaced counts as a deletion.
    fn removed(&self, context: &Context, plan: &Plan) -> (BTreeSet<Identity>, BTreeSet<Identity>) {
        let (mut deleted, mut left) = (BTreeSet::new(), BTreeSet::new());
        // While a parent is being deleted, children that the answer does not name stay.
        let named = plan.named();
        let replaced = |child: &DynamicObject, key: &ChildRef| {
            plan.desired.iter().any(|desired| {
                desired.update.replace
                    && desired.key.identity() == key.identity()
                    && annotation(child, APPLIED_ANNOTATION) != Some(&desired.fingerprint)
            })
        };
        let is_leaving = is_terminating(&self.parent);
        for child in self.children.iter().filter(|_| !is_leaving) {
            match self.removable(context, child) {
                Some((key, _)) if named.contains(&key.identity()) && !replaced(child, &key) => {}
                Some((key, Removal::Delete)) => drop(deleted.insert(key.identity())),
                Some((key, Removal::Retain)) => drop(left.insert(key.identity())),
                None => {}
            }
        }
        (deleted, left)
    }

    fn removable(&self, context: &Context, child: &DynamicObject) -> Option<(ChildRef, Removal)> {
        removable(&context.config, context.proof_key.proof(), &self.parent, child)
    }
}

/// Returns the first few refusals as one text.
pub(super) fn in_words(refusals: impl Iterator<Item = String>) -> String {
    refusals.take(MAX_REFUSED).collect::<Vec<_>>().join("; ")
}

/// Reports whether the last plugin call for a parent failed, by the conditions that the host wrote, or whether there was none.
fn failed(parent: &DynamicObject, has_children: bool) -> bool {
    let mut is_new = !has_children;
    conditions_of(current(parent)).any(|condition| {
        let reason = condition["reason"].as_str().unwrap_or_default();
        let is_of_call = !NOT_CALLED.contains(&reason);
        is_new &= !is_of_call || condition["type"] == PAUSED;
        condition["status"] == "True"
            && match condition["type"].as_str() {
                Some(STALLED) => is_of_call,
                Some(RECONCILING) => reason == RETRYING,
                _ => false,
            }
    }) || is_new
}

fn bodies(plan: &Plan) -> impl Iterator<Item = Value> {
    let children = plan.desired.iter();
    children.map(|child| without_host_metadata(child.new_body()))
}

/// Returns an answer in the form that is compared and shown, without empty parts.
fn shown(response: Response, plan: &Plan) -> Value {
    let mut shown = json!(Response {
        // The plan has them, completed. A version may need other objects for the same answer.
        children: Vec::new(),
        keep: Vec::new(),
        generate: Vec::new(),
        needs: Vec::new(),
        ..response
    });
    let mut keep: Vec<String> = plan.keep.iter().map(ToString::to_string).collect();
    keep.sort();
    let mut generate: Vec<_> = plan.secrets.iter().map(|secret| &secret.secret).collect();
    generate.sort_by_key(|secret| &secret.name);
    shown["children"] = bodies(plan).collect();
    shown["keep"] = json!(keep);
    shown["generate"] = json!(generate);
    let is_empty = |value: &Value| value == &json!(null) || value == &json!([]) || value == &json!(false);
    if let Some(fields) = shown.as_object_mut() {
        fields.retain(|_, value| !is_empty(value));
    }
    shown
}
