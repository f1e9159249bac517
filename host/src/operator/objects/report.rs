//! Writes the status of the Controllers, and their finalizers. Only the replica that leads does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use kube::ResourceExt as _;
use kube::core::{DynamicObject, TypeMeta};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

use super::admit::{Refused, decorated_by, ran};
use super::all;
use super::records::KindRecords;
use super::status::{self, FIRST, Facts, without_conversion};
use super::undecorate::undecorate;
use crate::supervisor::Shared;
use crate::uninstall::Uninstall;
use operator_host_cluster::cache::Reflector;
use operator_host_cluster::discovery::{Discovery, controllers};
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_config::object::{self, FINALIZER, OnRemoval};
use operator_host_config::{Config, ControllerConfig};
use operator_host_contract::Kind;
use operator_host_core::object::{NamespacedName, is_terminating};

/// How often to look whether a status is outdated.
const PERIOD: Duration = Duration::from_secs(1);
/// The shortest time between two writes of one status.
const PAUSE: Duration = Duration::from_secs(2);

/// What was decided about the Controllers.
#[derive(Clone, Default)]
pub(in crate::operator) struct Decided {
    /// The Controllers; `None`: the host looks at none.
    pub(in crate::operator) watch: Option<Arc<Reflector>>,
    /// The generation of each Controller, by name, about which this was decided.
    pub(in crate::operator) generations: BTreeMap<String, Option<i64>>,
    /// Those that do not run.
    pub(in crate::operator) refused: BTreeMap<String, Refused>,
    /// Which controllers reconcile the kinds, as recorded.
    pub(in crate::operator) records: KindRecords,
    /// Those that wait for their kind, and why.
    pub(in crate::operator) waiting: BTreeMap<String, String>,
    /// What runs.
    pub(in crate::operator) config: Option<Arc<Config>>,
}

/// Writes what the Controllers show.
pub(in crate::operator) struct Reporter(pub(in crate::operator) Shared);

impl Reporter {
    /// Keeps the statuses up to date. Ends with the sender.
    pub(in crate::operator) async fn run(self, mut decided: watch::Receiver<Decided>) {
        let this = Arc::new(self);
        let mut written = BTreeMap::new();
        let mut failed = BTreeMap::new();
        // What was refused is the same until the object or the refusal changes.
        let mut settled = BTreeMap::<String, (Option<String>, Refused)>::new();
        let mut removing = BTreeMap::<String, JoinHandle<anyhow::Result<()>>>::new();
        loop {
            let now = decided.borrow_and_update().clone();
            let Some((watch, config)) = now.watch.as_ref().zip(now.config.as_ref()) else {
                match decided.changed().await {
                    Ok(()) => continue,
                    Err(_) => return,
                }
            };
            let objects = in_turns(all(watch), &written);
            written.retain(|name, _| now.generations.contains_key(name));
            settled.retain(|name, _| now.refused.contains_key(name));
            let checks = this.0.instruments.health.ready().into_iter();
            let checks: BTreeMap<_, _> = checks.map(|check| (check.name, check.result)).collect();
            let reports = this.0.instruments.health.plugins().into_iter();
            let reports: BTreeMap<_, _> = reports.map(|it| (it.controller.clone(), it)).collect();
            // The controllers of each Controller, by its name.
            let mut parts = BTreeMap::<&str, Vec<&ControllerConfig>>::new();
            for controller in config.controllers.iter().filter(|it| it.is_object()) {
                parts.entry(&controller.name).or_default().push(controller);
            }
            let facts = |name: &str| {
                let of = parts.get(name).into_iter().flatten();
                let waits = now.waiting.get(name).cloned().map(Facts::waiting);
                let each = of.map(|part| {
                    let id = &part.id;
                    let check = |of: &str| checks.get(&format!("{of}/{id}")).cloned();
                    let running = this.0.running.named(id);
                    let unready = running.as_ref().map(|it| it.state.first_unready(FIRST));
                    let unready = unready.unwrap_or_default().into_iter();
                    let controller = check("controller");
                    Facts {
                        plugin: check("plugin"),
                        report: reports.get(id),
                        history: this.0.instruments.health.history_of(id).unwrap_or_default(),
                        held: running.as_ref().map_or(0, |it| it.state.held()),
                        unready: unready
                            .map(|(object, why)| (part.parent.kind.clone(), object, why))
                            .collect(),
                        unwatched: running.and_then(|it| it.unwatched()).map(without_conversion),
                        objects: match &controller {
                            Some(Ok(waits)) if waits.is_empty() => this.objects(part),
                            _ => None,
                        },
                        controller: controller.map(|it| it.map_err(without_conversion)),
                    }
                });
                each.chain(waits).reduce(Facts::and).unwrap_or_default()
            };
            let start = Instant::now();
            let mut is_behind = false;
            for object in &objects {
                if !this.0.writers.term().leads() {
                    break;
                }
                // Those who have not had a turn may have waited for long.
                is_behind = start.elapsed() >= PERIOD;
                if is_behind {
                    break;
                }
                let name = object.name_any();
                let result = match is_terminating(object) {
                    // Releasing many resources takes long.
                    true => {
                        let removed = removing.remove(&name).unwrap_or_else(|| {
                            let (this, object) = (Arc::clone(&this), Arc::clone(object));
                            let (config, records) = (Arc::clone(config), now.records.clone());
                            tokio::spawn(async move { this.remove(&object, &config, &records).await })
                        });
                        if !removed.is_finished() {
                            removing.insert(name, removed);
                            continue;
                        }
                        removed.await.unwrap_or_else(|error| Err(error.into()))
                    }
                    false => {
                        let is_due = |at: &Instant| at.elapsed() >= PAUSE;
                        let refused = now.refused.get(&name);
                        let state = refused.map(|why| (object.resource_version(), why.clone()));
                        // What users have changed meanwhile is decided first.
                        if now.generations.get(&name) != Some(&object.metadata.generation)
                            || !written.get(&name).is_none_or(is_due)
                            || state.is_some() && settled.get(&name) == state.as_ref()
                        {
                            continue;
                        }
                        let mut new = status::of(object, refused, &facts(&name));
                        new.runs &= parts.contains_key(name.as_str());
                        if let Some(state) = state.filter(|(_, why)| !why.still_runs)
                            && object.data["status"] == new.fields
                        {
                            settled.insert(name.clone(), state);
                        }
                        this.write(object, &new, &mut written).await
                    }
                };
                match result {
                    Ok(()) => drop(failed.remove(&name)),
                    Err(error) => {
                        let error = error.to_string();
                        written.insert(name.clone(), Instant::now());
                        if failed.get(&name) != Some(&error) {
                            warn!(controller = name, "cannot write the Controller: {error}");
                            failed.insert(name, error);
                        }
                    }
                }
            }
            if is_behind {
                continue;
            }
            tokio::select! {
                changed = decided.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    }

    /// Counts the objects of a controller that has its first lists, and those of them that are not Ready. After a start it has to look
    /// at each of them first.
    fn objects(&self, controller: &ControllerConfig) -> Option<(u64, u64)> {
        let context = self.0.running.named(&controller.id)?;
        let total = context.caches.parent_count() as u64;
        let counts = context.observer.parents.counts();
        let ready = |status| counts.get(&("Ready", status)).copied().unwrap_or(0);
        let seen = ready("True") + ready("False") + ready("Unknown");
        let is_done = seen >= total || context.queue.backlog().0 == 0 && context.queue.busy() == 0;
        is_done.then(|| (total, total.saturating_sub(ready("True"))))
    }

    async fn write(
        &self,
        object: &DynamicObject,
        new: &status::Status,
        written: &mut BTreeMap<String, Instant>,
    ) -> anyhow::Result<()> {
        let has_finalizer = has_finalizer(object);
        let is_same = object.data["status"] == new.fields;
        if is_same && (has_finalizer || !new.runs) {
            return Ok(());
        }
        let name = NamespacedName::of(object);
        let resource = controllers();
        let writer = self.0.writers.writer(None)?;
        let client = ResourceClient::new(&writer, &resource);
        if new.runs && !has_finalizer {
            let body = finalizers(object, |others| others.push(FINALIZER.to_owned()));
            client.merge(&name, &body, MANAGER).await?;
        }
        if is_same {
            return Ok(());
        }
        let body = json!({
            "metadata": {"uid": object.metadata.uid},
            "status": merge_patch(&object.data["status"], &new.fields),
        });
        client.merge_status(&name, &body, MANAGER).await?;
        written.insert(name.name.clone(), Instant::now());
        let changes = status::events(&object.data["status"], &new.fields);
        if !changes.is_empty() {
            let events = self.0.events.of(&name.name, writer);
            // Lists leave out the kind.
            let Kind { api_version, kind } = object::kind();
            let object = DynamicObject {
                types: Some(TypeMeta { api_version, kind }),
                ..object.clone()
            };
            for (type_, reason, note) in changes {
                events.publish(None, &object, type_, reason, &note);
            }
        }
        debug!(controller = name.name, "wrote the status of the Controller");
        Ok(())
    }

    /// Deletes the children of a Controller that decorated, and takes its fields back, with the account that made them.
    async fn remove_children(
        &self,
        object: &DynamicObject,
        config: &Config,
        records: &KindRecords,
    ) -> anyhow::Result<()> {
        let stays = |why: String| {
            anyhow!(
                "it is being deleted, and its children cannot be deleted first: {why}; change this, or remove the finalizer \
                 {FINALIZER} and delete them yourself"
            )
        };
        for controller in ran(config, records, object).map_err(stays)?.configs {
            let writer = self.0.writers.writer(controller.service_account.as_ref())?;
            let deleted = undecorate(&self.0.client, &writer, &self.kinds(), config, &controller).await;
            let deleted = deleted.map_err(stays)?;
            info!(
                controller = controller.id,
                deleted, "deleted the children of a Controller that decorated"
            );
        }
        Ok(())
    }

    fn kinds(&self) -> Discovery {
        Discovery::new(self.0.client.clone(), Arc::clone(&self.0.instruments.metrics))
    }

    /// Lets a Controller go that has stopped.
    async fn remove(
        &self,
        object: &DynamicObject,
        config: &Config,
        records: &KindRecords,
    ) -> anyhow::Result<()> {
        let name = NamespacedName::of(object);
        let is_it = |other: &ControllerConfig| other.is_object() && other.name == name.name;
        if config.controllers.iter().any(is_it) || !has_finalizer(object) {
            return Ok(());
        }
        // A client that replaces the Controller may have removed the record.
        let decorates = decorated_by(object).next().is_some() || object.data["spec"]["decorates"].is_array();
        if decorates {
            self.remove_children(object, config, records).await?;
        }
        // A Controller that may not run releases nothing, nor does one that never ran: its finalizer proves neither.
        let releases = Some(OnRemoval::ReleaseFinalizers);
        let released = match ran(config, records, object) {
            _ if decorates => None,
            Ok(read) if read.on_removal == releases => read.configs.into_iter().next(),
            Ok(_) => None,
            Err(message) => {
                warn!(
                    controller = name.name,
                    "a Controller that is deleted releases nothing: {message}"
                );
                None
            }
        };
        let writer = self.0.writers.writer(None)?;
        if let Some(controller) = released {
            let uninstall = Uninstall {
                client: self.0.client.clone(),
                writer: writer.clone(),
                kinds: self.kinds(),
                config,
                dry_run: false,
            };
            let left = uninstall.controller(&controller).await;
            if let Some(error) = left.errors.into_iter().next() {
                return Err(error);
            }
            info!(
                controller = name.name,
                released = left.held.len(),
                "released the resources of a Controller that is deleted"
            );
        }
        let body = finalizers(object, |others| others.retain(|other| other != FINALIZER));
        let resource = controllers();
        let client = ResourceClient::new(&writer, &resource);
        match client.merge(&name, &body, MANAGER).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// Returns the Controllers as they have their turns: tenants alternate, and of each tenant the one comes first whose status was
/// written the longest ago.
fn in_turns(
    objects: Vec<Arc<DynamicObject>>,
    written: &BTreeMap<String, Instant>,
) -> Vec<Arc<DynamicObject>> {
    let mut of_tenants = BTreeMap::<String, Vec<_>>::new();
    for object in objects {
        let own = of_tenants.entry(tenant(&object).to_owned()).or_default();
        own.push(object);
    }
    let mut turns = Vec::new();
    for mut own in of_tenants.into_values() {
        own.sort_by_key(|object| written.get(&object.name_any()));
        turns.extend(own.into_iter().enumerate());
    }
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().map(|(_, object)| object).collect()
}

/// Returns [`ControllerConfig::tenant`](operator_host_config::ControllerConfig::tenant) of a Controller that may not be readable.
fn tenant(object: &DynamicObject) -> &str {
    let spec = &object.data["spec"];
    let account = || spec["serviceAccount"].as_str()?.split('/').next();
    let tenant = match &spec["plugin"]["configMap"] {
        Value::Object(map) => map.get("namespace").and_then(Value::as_str),
        _ => account(),
    };
    tenant.unwrap_or_default()
}

/// The field manager of what the host writes into Controllers.
const MANAGER: &str = "operator-host/controllers";

fn has_finalizer(object: &DynamicObject) -> bool {
    object.finalizers().iter().any(|other| other == FINALIZER)
}

/// Returns a patch of the finalizers that is refused when the object has changed.
fn finalizers(object: &DynamicObject, change: impl FnOnce(&mut Vec<String>)) -> Value {
    let mut finalizers = object.finalizers().to_vec();
    change(&mut finalizers);
    json!({"metadata": {"resourceVersion": object.metadata.resource_version, "finalizers": finalizers}})
}

/// Returns the JSON merge patch (RFC 7386) from one value to another.
fn merge_patch(old: &Value, new: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return new.clone();
    };
    let gone = old.keys().filter(|field| !new.contains_key(*field));
    let gone = gone.map(|field| (field.clone(), Value::Null));
    let changed = new
        .iter()
        .filter(|(field, value)| old.get(*field) != Some(*value));
    let changed = changed.map(|(field, value)| {
        let before = old.get(field).unwrap_or(&Value::Null);
        (field.clone(), merge_patch(before, value))
    });
    gone.chain(changed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_take_turns_with_their_statuses_and_the_one_that_has_waited_for_the_longest_comes_first() {
        let object = |name: &str, plugin: &Value| -> Arc<DynamicObject> {
            let spec = json!({"plugin": plugin, "serviceAccount": "good/writer"});
            let object = json!({"metadata": {"name": name}, "spec": spec});
            Arc::new(serde_json::from_value(object).unwrap())
        };
        let evil = json!({"configMap": {"name": "p", "namespace": "evil"}});
        let objects = vec![
            object("a", &evil),
            object("b", &evil),
            object("c", &evil),
            object("x", &json!({"configMap": {"name": "p", "namespace": "good"}})),
            // By its account.
            object("y", &json!("oci://r/team/y:1")),
        ];
        let (first, second) = (Instant::now(), Instant::now() + PERIOD);
        let written = [("a", second), ("c", first), ("y", first)];
        let written = written.map(|(name, at)| (name.to_owned(), at)).into();
        let turns = in_turns(objects, &written);
        let names: Vec<_> = turns.iter().map(|object| object.name_any()).collect();
        assert_eq!(names, ["b", "x", "c", "y", "a"]);
    }

    #[test]
    fn a_patch_removes_what_is_gone_and_leaves_what_is_the_same() {
        let old = json!({"a": 1, "b": {"c": 1, "d": [1]}, "e": {"f": 1}});
        let new = json!({"a": 1, "b": {"c": 2, "d": [2, 3]}, "g": {"h": null}});
        let patch = json!({"b": {"c": 2, "d": [2, 3]}, "e": null, "g": {"h": null}});
        assert_eq!(merge_patch(&old, &new), patch);
        assert_eq!(merge_patch(&Value::Null, &new), new);
    }
}
