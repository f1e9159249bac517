//! Removes what the host wrote on the parents: its finalizers, so that they can be deleted without it, and its conditions,
//! which nobody updates any more.

use std::pin::pin;
use std::time::Duration;

use anyhow::anyhow;
use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use operator_host_cluster::api_error::Fault;
use operator_host_cluster::client::{Writer, said};
use operator_host_cluster::discovery::{Discovery, KindError, ResolvedKind, controllers};
use operator_host_cluster::objects::Objects;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_config::leadership::LeadershipMode;
use operator_host_config::{Config, ControllerConfig, object};
use operator_host_contract::Kind;
use operator_host_core::object::{CLEANED_UP_ANNOTATION, NamespacedName, is_terminating};
use operator_host_engine::reconcile::status::owned;

/// How often to look whether the holder of the Lease renews it.
const LOOK: Duration = Duration::from_secs(1);
/// The number of attempts for a parent that changes meanwhile.
const TRIES: usize = 5;
/// The number of further attempts, one second apart, to find a kind that the API server does not serve.
const TRIES_OF_DISCOVERY: usize = 3;

/// The fields of a status that the host sets, and not the plugin.
const HOST_FIELDS: [&str; 2] = ["conditions", "observedGeneration"];

/// Adds a hint when the host's own webhook refuses the request because the host is stopped.
fn with_hint(message: &str) -> String {
    if message.contains("failed calling webhook") {
        return format!(
            "{message}; delete the ValidatingWebhookConfiguration that asks for it, and try again"
        );
    }
    message.to_owned()
}

/// One parent that has its controller's finalizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The parent.
    pub name: NamespacedName,
    /// Whether it is being deleted: it is deleted as soon as it is released, without its cleanup.
    pub terminating: bool,
}

/// What remains of one controller.
#[derive(Debug, Default)]
pub struct Left {
    /// The parents that had its finalizer, or have it if nothing is changed.
    pub held: Vec<Held>,
    /// The number of parents.
    pub parents: usize,
    /// The number of parents whose status had the host's conditions, or has them if nothing is changed.
    pub reported: usize,
    /// Whether the kind is served at all.
    pub served: bool,
    /// What failed.
    pub errors: Vec<anyhow::Error>,
}

/// A Lease that is held.
struct Hold {
    holder: String,
    duration: Duration,
    /// The resource version of the Lease.
    version: Option<String>,
}

/// The cluster and the operation.
pub struct Uninstall<'a> {
    /// The connection.
    pub client: Client,
    /// Writes as the host itself, and no longer than it leads.
    pub writer: Writer,
    /// Discovery.
    pub kinds: Discovery,
    /// The configuration that the host ran with.
    pub config: &'a Config,
    /// Whether to leave everything unchanged.
    pub dry_run: bool,
}

impl Uninstall<'_> {
    /// Says who holds the Lease of this configuration. `namespace` is the host's namespace. Without leader election there
    /// is none.
    ///
    /// # Errors
    /// When the Lease cannot be read.
    pub async fn held_by(&self, namespace: &str) -> anyhow::Result<Option<String>> {
        let leadership = &self.config.leadership;
        if leadership.mode == LeadershipMode::None {
            return Ok(None);
        }
        let namespace = leadership.namespace.as_deref().unwrap_or(namespace);
        let lease = NamespacedName {
            namespace: Some(namespace.to_owned()),
            name: leadership.name.clone(),
        };
        let leases = Api::<Lease>::namespaced(self.client.clone(), namespace);
        let read = async || {
            let found = leases.get_opt(&leadership.name).await;
            let found = found.map_err(|error| anyhow!("cannot read Lease {lease}: {}", said(&error)))?;
            anyhow::Ok(found.and_then(|lease| {
                let spec = lease.spec?;
                let seconds = spec.lease_duration_seconds?.try_into().ok()?;
                Some(Hold {
                    holder: spec.holder_identity.filter(|identity| !identity.is_empty())?,
                    duration: Duration::from_secs(seconds),
                    version: lease.metadata.resource_version,
                })
            }))
        };
        let Some(first) = read().await? else {
            return Ok(None);
        };
        // The time in a Lease is of its holder's clock, which may differ from this one. A holder that is alive renews it.
        let until = Instant::now() + first.duration;
        while Instant::now() < until {
            tokio::time::sleep(LOOK).await;
            match read().await? {
                None => return Ok(None),
                Some(now) if now.version != first.version => {
                    return Ok(Some(format!("{} holds the Lease {lease}", now.holder)));
                }
                Some(_) => {}
            }
        }
        Ok(None)
    }

    /// Returns the Controllers of the cluster that this host runs, by their finalizer: none without ceilings.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub async fn objects(&self) -> anyhow::Result<Vec<DynamicObject>> {
        if self.config.ceilings.is_none() {
            return Ok(Vec::new());
        }
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &controllers().api);
        match api.list(&ListParams::default()).await {
            Ok(mut list) => {
                list.items
                    .retain(|object| object.finalizers().iter().any(|it| it == object::FINALIZER));
                Ok(list.items)
            }
            // The kind is not defined.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(anyhow!("cannot list {}: {}", object::kind(), said(&error))),
        }
    }

    /// Removes the finalizer of a Controller whose parents are released.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn object(&self, object: &DynamicObject) -> anyhow::Result<bool> {
        let without = |object: &DynamicObject| without_finalizers(object, |it| it == object::FINALIZER);
        let (name, manager) = (NamespacedName::of(object), "operator-host/controllers");
        self.change(&controllers(), &name, manager, without).await
    }

    /// Releases all parents of one controller.
    pub async fn controller(&self, controller: &ControllerConfig) -> Left {
        let mut left = Left::default();
        let mut resolved = self.kinds.resolve(&controller.parent).await;
        // An API server that has just started does not serve the kinds of definitions yet.
        for _ in 0..TRIES_OF_DISCOVERY {
            if !matches!(resolved, Err(KindError::Unknown(_))) {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            resolved = self.kinds.resolve(&controller.parent).await;
        }
        let resource = match resolved {
            Ok(resource) => resource,
            // Without a definition there are no parents.
            Err(KindError::Unknown(_)) => return left,
            Err(error) => {
                left.errors.push(error.into());
                return left;
            }
        };
        left.served = true;
        let manager = controller.field_manager();
        let (parents, errors) = self.list(&controller.parent, &resource).await;
        left.errors.extend(errors);
        left.parents = parents.len();
        let owns = |finalizer: &str| controller.owns_finalizer(finalizer);
        for parent in parents {
            let name = NamespacedName::of(&parent);
            if owned::has_status(&parent, &manager) {
                let without = |parent: &DynamicObject| without_conditions(parent, &manager);
                match self.change(&resource, &name, &manager, without).await {
                    Ok(was_there) => left.reported += usize::from(was_there),
                    Err(error) => left.errors.push(error),
                }
            }
            if !parent.finalizers().iter().any(|other| owns(other)) {
                continue;
            }
            let without = |parent: &DynamicObject| without_finalizers(parent, owns);
            match self.change(&resource, &name, &manager, without).await {
                Ok(_) => left.held.push(Held {
                    name,
                    terminating: is_terminating(&parent),
                }),
                Err(error) => left.errors.push(error),
            }
        }
        left
    }

    /// Patches an object as it is now, and again when it changes meanwhile, unless there is nothing to change or it is gone.
    /// Returns whether there was something to change.
    async fn change(
        &self,
        resource: &ResolvedKind,
        name: &NamespacedName,
        manager: &str,
        change: impl Fn(&DynamicObject) -> Option<Value>,
    ) -> anyhow::Result<bool> {
        let kind = Kind::new(&resource.api.api_version, &resource.api.kind);
        let failed = |message: &str| anyhow!("cannot release {kind} {name}: {}", with_hint(message));
        let client = ResourceClient::new(&self.writer, resource);
        for _ in 0..TRIES {
            // The host may list parents, and need not be allowed to get them.
            let object = client.read(name).await;
            let Some(object) = object.map_err(|error| failed(&error.message))? else {
                return Ok(false);
            };
            let Some(mut patch) = change(&object) else {
                return Ok(false);
            };
            if self.dry_run {
                return Ok(true);
            }
            patch["metadata"]["resourceVersion"] = object.metadata.resource_version.into();
            let patched = match patch.get("status") {
                Some(_) => client.merge_status(name, &patch, manager).await,
                None => client.merge(name, &patch, manager).await,
            };
            match patched {
                Err(error) if error.fault == Fault::Refused(409) => {}
                Err(error) if !error.is_not_found() => return Err(failed(&error.message)),
                Ok(_) | Err(_) => return Ok(true),
            }
        }
        Err(failed(&format!(
            "it changed {TRIES} times meanwhile: stop the host if it is still running, and try again"
        )))
    }

    /// Lists the parents in the namespaces of the configuration, metadata only.
    async fn list(&self, kind: &Kind, resource: &ResolvedKind) -> (Vec<DynamicObject>, Vec<anyhow::Error>) {
        let (mut objects, mut errors) = (Vec::new(), Vec::new());
        for namespace in self.config.places(resource.namespaced) {
            let api = Objects::new(self.client.clone(), &resource.api, namespace);
            let mut all = pin!(api.all_metadata(ListParams::default()));
            while let Some(object) = all.next().await {
                match object {
                    Ok(object) => objects.push(object),
                    Err(error) => {
                        let place = namespace.map_or_else(String::new, |it| format!(" in {it}"));
                        errors.push(anyhow!("cannot list {kind}{place}: {}", said(&error)));
                    }
                }
            }
        }
        (objects, errors)
    }
}

/// Returns a patch that removes finalizers; `None` when there are none of them.
fn without_finalizers(object: &DynamicObject, owns: impl Fn(&str) -> bool) -> Option<Value> {
    let rest: Vec<_> = object.finalizers().iter().filter(|other| !owns(other)).collect();
    let marks = json!({ CLEANED_UP_ANNOTATION: null });
    let is_there = rest.len() < object.finalizers().len();
    is_there.then(|| json!({ "metadata": { "finalizers": rest, "annotations": marks } }))
}

/// Returns a patch that removes the host's conditions from a parent's status, and leaves the plugin's fields and what others
/// wrote; `None` when there are none.
fn without_conditions(parent: &DynamicObject, manager: &str) -> Option<Value> {
    let own = owned::status(parent, manager);
    if HOST_FIELDS.iter().all(|field| !own.contains_key(*field)) {
        return None;
    }
    let list = |conditions: &Value| conditions.as_array().cloned().unwrap_or_default();
    let own = list(own.get("conditions").unwrap_or(&Value::Null));
    let mut others = list(&parent.data["status"]["conditions"]);
    others.retain(|condition| own.iter().all(|own| own["type"] != condition["type"]));
    let mut status = Map::from_iter(HOST_FIELDS.map(|field| (field.to_owned(), Value::Null)));
    if !others.is_empty() {
        status.insert("conditions".to_owned(), others.into());
    }
    Some(json!({ "status": status }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_that_nobody_answers_is_named_with_what_to_do() {
        // The messages of Kubernetes 1.20 and 1.32.
        for message in [
            "Internal error occurred: failed calling webhook \"echo.operator-host.dev\": Post \"https://…\": no endpoints",
            "Internal error occurred: failed calling webhook \"echo.operator-host.dev\": failed to call webhook: …",
        ] {
            let hint = with_hint(message);
            let words = "delete the ValidatingWebhookConfiguration";
            assert!(hint.contains(words), "{hint}");
        }
        assert_eq!(with_hint("forbidden"), "forbidden");
    }
}
