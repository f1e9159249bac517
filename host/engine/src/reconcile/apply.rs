//! Applies the children that differ from their known state, with server-side apply.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use kube::api::PatchParams;
use kube::core::DynamicObject;
use serde_json::Value;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::brakes::{self, MAX_PATH, held_child, in_words, unless_silent};
use super::context::pace::Cause;
use super::context::{LiveChild, ParentMemory};
use super::error::Stop;
use super::freshness::may_create;
use super::outcome::Changes;
use super::repair::Repair;
use super::replace::replace;
use super::run::Run;
use super::secrets::Generated;
use super::turns;
use operator_host_cluster::api_error::ApiError;
use operator_host_cluster::client::warnings;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_contract::EventType;
use operator_host_core::digest::hash_of;
use operator_host_core::field_path::FieldPath;
use operator_host_core::managed_fields::other_writer;
use operator_host_core::object::{
    APPLIED_ANNOTATION, ChildRef, PROVENANCE_ANNOTATION, annotation, controller_of, is_terminating, made_at,
    version,
};
use operator_host_core::text::shorten;
use operator_host_desired::drift::{self, Difference, drift};
use operator_host_desired::left_fields;
use operator_host_desired::order::{Order, Waiting};
use operator_host_desired::ownership::{owns, retains};
use operator_host_desired::plan::{Desired, Plan};
use operator_host_desired::readiness::unready;

/// Maximum number of concurrent applies per parent.
const CONCURRENCY: usize = 4;

/// The result of the applies.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// What children wait for that were not applied.
    pub waiting: Vec<Waiting>,
    /// Messages about the children that wait for their turn.
    pub turns: Vec<String>,
    /// When the host looks again whether it is the turn of the next one.
    pub again: Option<Duration>,
    /// Messages about the children that are not applied yet, because they were written too often.
    pub held: Vec<String>,
    /// Errors for children that the API server rejected.
    pub failed: Vec<ApiError>,
    /// Why the other children were not applied.
    pub stop: Option<Stop>,
    /// Whether the host waits for the deletion of an object that the parent does not own. It gets no event about that.
    pub awaits_others: bool,
}

/// Applies the children that differ. One failure does not prevent the other applies. A child that is the rest of a generated
/// Secret is applied only to that Secret. `shown` are the children that the plugin has seen.
pub(super) async fn apply(
    run: &Run<'_>,
    parent: &DynamicObject,
    plan: &Plan,
    shown: &[Arc<DynamicObject>],
    generated: &Generated<'_>,
    changes: &mut Changes,
) -> Applied {
    let mut applied = Applied::default();
    let desired = plan.desired.as_slice();
    let order = &Order::of(desired);
    let (turns, again) = turns::decide(run, parent, plan, shown, order);
    let turns = &turns.waiting;
    applied.again = again;
    // One kind after the other, since a pod may need the claim before it.
    for group in desired.chunk_by(|a, b| a.depth == b.depth && a.key.kind == b.key.kind) {
        let is_stopped = &AtomicBool::new(false);
        let requests = group.iter().map(|desired| async move {
            let child = Child {
                run,
                parent,
                desired,
                live: run.context.caches.live_child(&desired.key),
            };
            if is_stopped.load(Ordering::Relaxed) {
                return Ok(ApplyOutcome::Unchanged);
            }
            // The rest of a generated Secret that is gone must not become a Secret without its values.
            let uid = child.object().and_then(|live| live.metadata.uid.as_ref());
            if generated.get(&desired.key).is_some_and(|made| Some(made) != uid) {
                return Ok(ApplyOutcome::Outdated);
            }
            child.apply(order, turns).await
        });
        let requests: Vec<_> = requests.collect();
        let mut results = std::pin::pin!(stream::iter(requests).buffered(CONCURRENCY));
        for desired in group {
            match results.next().await {
                Some(Ok(ApplyOutcome::Created)) => changes.created.push(desired.key.clone()),
                Some(Ok(ApplyOutcome::Updated)) => changes.updated.push(desired.key.clone()),
                Some(Ok(ApplyOutcome::Outdated)) => applied.stop = Some(Stop::Outdated),
                Some(Ok(ApplyOutcome::ParentChanged)) => applied.stop = Some(Stop::ParentChanged),
                Some(Ok(ApplyOutcome::Waiting(why))) => applied.waiting.push(why),
                Some(Ok(ApplyOutcome::Replaced(waiting))) => {
                    changes.deleted.push(desired.key.clone());
                    applied.waiting.push(waiting);
                }
                Some(Ok(ApplyOutcome::Turn(why))) => applied.turns.push(why),
                Some(Ok(ApplyOutcome::Held(why))) => applied.held.push(why),
                Some(Ok(ApplyOutcome::Unchanged)) => {
                    let live = run.context.caches.existing(&desired.key);
                    let is_others = |live: &DynamicObject| !owns(run.context.config.scope(), parent, live);
                    applied.awaits_others |=
                        live.is_some_and(|live| is_terminating(&live) && is_others(&live));
                }
                None => {}
                Some(Err(error)) => {
                    // The next child of this kind would fail, too. One of another kind may fail permanently, which must
                    // be reported.
                    is_stopped.fetch_or(error.stops_others(), Ordering::Relaxed);
                    // A terminating namespace stops only its own parents; a cluster-scoped parent may have children
                    // elsewhere.
                    let stops = error.stops_everything()
                        || (error.is_namespace_terminating() && parent.metadata.namespace.is_some());
                    applied.failed.push(error);
                    if stops {
                        // Requests in progress are abandoned; the next reconcile shows whether they were executed.
                        return applied;
                    }
                }
            }
        }
        if applied.stop.is_some() {
            return applied;
        }
    }
    brakes::end_conflicts(run, parent, desired);
    applied
}

pub(super) enum ApplyOutcome {
    Created,
    Updated,
    Unchanged,
    /// It comes after a child that is not ready.
    Waiting(Waiting),
    /// It is deleted, to be created again.
    Replaced(Waiting),
    /// It waits for its turn.
    Turn(String),
    /// It was written too often.
    Held(String),
    /// It is the rest of a generated Secret that is gone.
    Outdated,
    /// It may not be created any more.
    ParentChanged,
}

/// A child that a parent should have, beside what is there.
struct Child<'a> {
    run: &'a Run<'a>,
    parent: &'a DynamicObject,
    desired: &'a Desired,
    live: Option<LiveChild>,
}

impl<'a> Child<'a> {
    async fn apply(
        &self,
        order: &Order<'_>,
        turns: &HashMap<ChildRef, String>,
    ) -> Result<ApplyOutcome, ApiError> {
        let (run, key) = (self.run, &self.desired.key);
        let drift = self.drift();
        let may_apply = if self.live.is_some() && drift.is_none() {
            Err(self.comes_again().unwrap_or(ApplyOutcome::Unchanged))
        } else {
            match turns.get(key) {
                // What others changed is restored at once.
                Some(why) if !is_terminating(self.parent) => Err(ApplyOutcome::Turn(why.clone())),
                _ => self.may_apply(drift.as_ref(), order),
            }
        };
        let outcome = match may_apply {
            Err(outcome) => outcome,
            Ok(_) if self.live.is_none() && !may_create(run, self.parent, key).await? => {
                ApplyOutcome::ParentChanged
            }
            Ok(objects) => unless_silent(run, key, Box::pin(self.send(objects))).await?,
        };
        run.memory(|memory| match (&outcome, self.object()) {
            // It is not applied, so it cannot be changed back.
            (ApplyOutcome::Waiting(_) | ApplyOutcome::Turn(_) | ApplyOutcome::Replaced(_), _) => {
                memory.conflicts.forget(key);
            }
            (_, Some(live)) if drift.is_none() => match is_terminating(live) {
                true => memory.conflicts.forget(key),
                false => memory.conflicts.is_as_desired(key, Instant::now()),
            },
            _ => {}
        });
        Ok(outcome)
    }

    /// Returns the requests for a child that may be applied now. The error is the outcome for one that stays as it is.
    fn may_apply(
        &self,
        drift: Option<&FieldPath>,
        order: &Order<'_>,
    ) -> Result<ResourceClient<'a>, ApplyOutcome> {
        let Self {
            run,
            parent,
            desired,
            live,
        } = self;
        let (key, is_correction) = (&desired.key, self.is_correction());
        // What the plugin wanted before is restored at once, and a cleanup can change what exists.
        let may_wait = live.is_none() || !(is_correction || is_terminating(parent));
        if may_wait && let Some(waiting) = turns::waits_for(run, desired, order) {
            return Err(ApplyOutcome::Waiting(waiting));
        }
        if !is_correction && let Some(why) = held_child(run, parent, key) {
            return Err(ApplyOutcome::Held(why));
        }
        if let (Some(live), Some(drift)) = (live, drift) {
            // What the last apply did not bring back, nobody changes back.
            let is_expected = run.memory(|memory| memory.unkept.is_expected(key, &drift.to_string()));
            if !is_expected && self.is_child() && brakes::is_on_hold(run, parent, desired, live, drift) {
                return Err(ApplyOutcome::Unchanged);
            }
            debug!("applying {key}, because {drift} is not as applied");
        }
        // `desired::plan` has refused other kinds than those that a child defines. When the cluster serves it, the controller
        // starts again.
        run.context.cluster.requests_for(&key.kind).ok_or_else(|| {
            let kind = key.kind.clone();
            let why = format!("{key} waits until the cluster serves {kind}");
            ApplyOutcome::Waiting(Waiting { kind, why })
        })
    }

    /// Returns the outcome for a child that is being deleted, and is to be created again with a change: it is not as wanted yet,
    /// and nothing goes that it may replace.
    fn comes_again(&self) -> Option<ApplyOutcome> {
        let live = self.object()?;
        let waits = is_terminating(live) && !self.is_correction() && !is_terminating(self.parent);
        let scope = self.run.context.config.scope();
        let why = unready(live).filter(|_| waits && owns(scope, self.parent, live))?;
        let (key, kind) = (&self.desired.key, self.desired.key.kind.clone());
        let why = format!("{key} is created again when it is gone: {why}");
        Some(ApplyOutcome::Waiting(Waiting { kind, why }))
    }

    fn object(&self) -> Option<&DynamicObject> {
        self.live.as_ref().map(|live| &*live.object)
    }

    /// Reports whether it was last applied with what is wanted now, so that others must have changed it.
    fn is_correction(&self) -> bool {
        let applied = self
            .object()
            .and_then(|live| annotation(live, APPLIED_ANNOTATION));
        applied == Some(&self.desired.fingerprint)
    }

    /// Reports whether it is known to be the parent's. Only there are fields of others taken over: in an object that is adopted,
    /// a field of another manager is a conflict.
    fn is_known(&self) -> bool {
        let (config, proof) = (&self.run.context.config, self.run.context.proof_key.proof());
        self.object().is_some_and(|live| {
            owns(config.scope(), self.parent, live) || retains(config.scope(), proof, self.parent, live)
        })
    }

    /// Reports whether others may write it, too: also a child that is not known as ours, which is not applied by force.
    fn is_child(&self) -> bool {
        let owner = self.object().and_then(controller_of);
        self.is_known() || owner.is_some_and(|it| self.parent.metadata.uid.as_ref() == Some(&it.uid))
    }

    /// Applies it, and remembers what the answer says.
    async fn send(&self, objects: ResourceClient<'_>) -> Result<ApplyOutcome, ApiError> {
        let (run, desired) = (self.run, self.desired);
        let (key, manager) = (&desired.key, run.context.config.field_manager());
        let params = PatchParams::apply(&manager);
        let request = async {
            let answer = match &self.live {
                None => objects.apply_new(&key.name, desired.new_body(), &manager).await,
                Some(live) => {
                    let body = body_for(desired, live, &manager);
                    if self.is_known() {
                        let repair = Repair {
                            objects: &objects,
                            desired,
                            body: &body,
                            manager: &manager,
                        };
                        return repair.apply(live).await;
                    }
                    objects.apply(&key.name, &body, &params).await
                }
            };
            answer.map(|answer| (answer, None))
        };
        let (answer, warnings) = warnings::hear(Box::pin(request)).await;
        for warning in warnings {
            self.pass_on(&warning);
        }
        let answer = answer.inspect_err(|error| {
            run.context.caches.record_refused_namespace(error);
            if error.is_lost_race() {
                run.context.doubt(run.name);
            }
        });
        let (answer, refused) = match (answer, &self.live) {
            (Err(refused), Some(live)) if refused.is_immutable && !self.is_correction() => {
                let is_ours = self.is_known() && !is_terminating(self.parent);
                return replace(run, desired, live, is_ours, &objects, refused).await;
            }
            (answer, _) => answer?,
        };
        let object = self.object();
        let was = object.and_then(|live| live.metadata.resource_version.as_ref());
        let outcome = match object {
            None => ApplyOutcome::Created,
            Some(_) if was == answer.metadata.resource_version.as_ref() => ApplyOutcome::Unchanged,
            Some(_) => ApplyOutcome::Updated,
        };
        self.remember(&answer, refused.as_ref());
        run.memory(|memory| {
            match (&outcome, memory.paces.get_mut(&key.identity())) {
                (ApplyOutcome::Created, Some(pace)) => pace.created(Instant::now()),
                // The corrections of what others change are counted as conflicts.
                (ApplyOutcome::Updated, _) if !self.is_correction() => {
                    memory.pace(key.identity()).wrote(Cause::Change, Instant::now());
                }
                _ => {}
            }
        });
        if let Some(live) = object.filter(|_| self.is_child()) {
            brakes::applied(run, self.parent, desired, live);
        }
        // A response without a change is not our write: the plugin may not have seen that version.
        if !matches!(outcome, ApplyOutcome::Unchanged) {
            run.context.record_child(run.name, key, answer);
        }
        Ok(outcome)
    }

    /// Reports a warning of the API server, each text once.
    fn pass_on(&self, warning: &str) {
        let message = format!("{}: {warning}", self.desired.key);
        let is_new = |memory: &mut ParentMemory| {
            memory.warnings.len() < MOST_WARNINGS && memory.warnings.insert(hash_of(&message))
        };
        if self.run.memory(is_new) {
            warn!("the API server warns of {message}");
            let context = self.run.context;
            context.publish(self.parent, EventType::Warning, "ServerWarning", &message);
        }
    }

    /// Returns the first field in which it is not as it is to be applied; `None` if it is, or is not there.
    fn drift(&self) -> Option<FieldPath> {
        let LiveChild { object, managed } = self.live.as_ref()?;
        let metadata = FieldPath::default().field("metadata");
        let annotation_path = |name| metadata.clone().field("annotations").field(name);
        if is_terminating(object) {
            // It is recreated after its deletion, which the watch reports.
            return None;
        }
        let (run, key, fingerprint) = (self.run, &self.desired.key, &self.desired.fingerprint);
        let is_known =
            |path: &FieldPath| run.memory(|it| it.unkept.is_known(key, fingerprint, &path.to_string()));
        let applied = annotation_path(APPLIED_ANNOTATION);
        if !self.is_correction() && !is_known(&applied) {
            return Some(applied);
        }
        // No generation is newer than the parent's: `freshness` has asked the API server.
        if made_at(self.parent, object) > self.parent.metadata.generation {
            return Some(annotation_path(PROVENANCE_ANNOTATION));
        }
        // The answer to the apply has been compared.
        let version = version(object);
        if version.is_some() && run.memory(|it| it.own_writes.as_applied.get(key).copied()) == version {
            return None;
        }
        let manager = run.context.config.field_manager();
        let mut found = drift(managed, &manager, &self.desired.body, object);
        let is_drift = |it: &Difference| it.cause != drift::Cause::Dropped && !is_known(&it.path);
        if let Some(at) = found.iter().position(is_drift) {
            return Some(found.swap_remove(at).path);
        }
        self.tell(&found);
        None
    }

    /// Remembers what even the answer to an apply does not have as it was applied, and tells it.
    fn remember(&self, answer: &DynamicObject, refused: Option<&ApiError>) {
        let manager = self.run.context.config.field_manager();
        let managed = answer.metadata.managed_fields.as_deref().unwrap_or_default();
        let mut found = drift(managed, &manager, &self.desired.body, answer);
        let (key, fingerprint) = (&self.desired.key, &self.desired.fingerprint);
        if let Some(version) = version(answer).filter(|_| found.is_empty()) {
            let note = |memory: &mut ParentMemory| memory.own_writes.as_applied.insert(key.clone(), version);
            self.run.memory(note);
        }
        if self.live.is_none() {
            // A policy may be about creations only, so a mark is worth another apply.
            found.retain(|it| it.cause != drift::Cause::Mark);
        }
        let known = found.iter().filter(|it| it.cause != drift::Cause::Dropped);
        let known = known.map(|it| it.path.to_string()).collect();
        let why = refused.map(|refused| {
            let mut lost = found.iter().filter(|it| it.cause == drift::Cause::Lost);
            let writer = lost.find_map(|it| other_writer(managed, &it.path, &manager));
            let writer = writer.map(|writer| format!(", which was changed {},", in_words(&writer)));
            let writer = writer.unwrap_or_default();
            format!("{writer} cannot be changed back: {}", refused.message)
        });
        self.run
            .memory(|memory| memory.unkept.answered(key, fingerprint, known, why));
        self.tell(&found);
    }

    /// Tells which fields the API server does not keep, each once.
    fn tell(&self, found: &[Difference]) {
        let paths = found.iter().map(|it| shorten(&it.path.to_string(), MAX_PATH));
        // An API server that keeps no managed fields keeps the fields.
        let paths = paths.filter(|path| path != "metadata.managedFields").collect();
        let news = self
            .run
            .memory(|memory| memory.unkept.tell(&self.desired.key, paths));
        if let Some((reason, message)) = news {
            self.run.warn(self.parent, reason, &message);
        }
    }
}

/// The most warnings about the children of one parent that are passed on.
const MOST_WARNINGS: usize = 32;

/// Returns the body to apply to a child that exists.
fn body_for(desired: &Desired, live: &LiveChild, manager: &str) -> Value {
    let mut body = desired.body.clone();
    // The decision to apply it is about this object only, not about a new one of the same name.
    body["metadata"]["uid"] = live.object.metadata.uid.clone().into();
    if !desired.left.is_empty() {
        let LiveChild { object, managed } = live;
        left_fields::add_owned(&desired.left, &object.data, managed, manager, &mut body);
        // Refused if another manager changes a left field meanwhile.
        body["metadata"]["resourceVersion"] = live.object.metadata.resource_version.clone().into();
    }
    body
}
