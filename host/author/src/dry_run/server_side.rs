//! Shows what a plugin would change in the cluster (`operator-host diff`). The plugin is called as in `reconcile`, the
//! same plan checks its answer, and the API server determines the change of each child by dry-run. Nothing is written.
//!
//! It shows one iteration: not what the plugin would ask for next, once it sees the result.

mod sides;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::anyhow;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tracing::debug;

pub use sides::Difference;

use operator_host_cluster::client::{Writer, said};
use operator_host_cluster::discovery::{Discovery, Resolved};
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_config::ControllerConfig;
use operator_host_contract::{Export, Kind, Request};
use operator_host_core::clock;
use operator_host_core::object::{
    ChildRef, GENERATED_LABEL, NamespacedName, Selector, is_terminating, is_unreadable, label, slim,
    unreadable,
};
use operator_host_desired::left_fields;
use operator_host_desired::ownership::{leave_out_others, owns, retains};
use operator_host_desired::plan::{Desired, DesiredSecret, Policy, Refusal, plan_around};
use operator_host_desired::provenance::SecretProof;
use operator_host_desired::selectors::is_named;
use operator_host_engine::reconcile::evaluate::{evaluate_dry, export_for};
use operator_host_engine::reconcile::needs::{NeedError, RelatedObjects, Rights, Wanted};
use operator_host_engine::reconcile::proof_key::ProofKey;
use operator_host_engine::reconcile::prune::unwanted;
use operator_host_runtime::Plugin;

/// Returns what is said about an answer that asks for something that the plugin may not have, one line each.
pub fn refused(refusals: &[Refusal]) -> anyhow::Error {
    let lines: Vec<_> = refusals.iter().map(ToString::to_string).collect();
    anyhow!("the plugin's answer is refused:\n  {}", lines.join("\n  "))
}

/// One controller of a configuration against the cluster.
pub struct Preview<'a> {
    writer: Writer,
    config: &'a ControllerConfig,
    plugin: &'a Plugin,
    kinds: Resolved,
    proof_key: ProofKey,
}

impl<'a> Preview<'a> {
    /// Looks up the controller's kinds. `host` is the host's namespace, which contains the key that proves what the
    /// host generated.
    ///
    /// # Errors
    /// When the parent's kind is not served, or the API server does not answer.
    pub async fn new(
        client: &'a Client,
        kinds: &Discovery,
        config: &'a ControllerConfig,
        plugin: &'a Plugin,
        host: &str,
    ) -> anyhow::Result<Self> {
        let mut kinds = kinds.resolve_all(config).await?;
        if let Some((_, error)) = kinds.unanswered.pop_first() {
            return Err(error.into());
        }
        Ok(Self {
            writer: Writer::from(client.clone()),
            config,
            plugin,
            kinds,
            proof_key: ProofKey::new(client.clone(), host),
        })
    }

    /// Returns how generated Secrets are recognized: by the key, or by the label when the key is missing or the user
    /// may not read it, which is usual. That is safe because nothing is written here.
    async fn proof(&self) -> SecretProof<'_> {
        let Err(error) = self.proof_key.load(None).await else {
            return self.proof_key.proof();
        };
        debug!("treating every Secret with the label of a generated one as generated: {error}");
        SecretProof::Label
    }

    /// Whether the parents are namespaced.
    pub fn is_namespaced(&self) -> bool {
        self.kinds.parent.namespaced
    }

    /// Reads an existing parent.
    ///
    /// # Errors
    /// When the parent does not exist.
    pub async fn parent(&self, name: NamespacedName) -> anyhow::Result<DynamicObject> {
        let objects = ResourceClient::new(&self.writer, &self.kinds.parent);
        let found = objects.get(&name).await?;
        found.ok_or_else(|| anyhow!("there is no {} {name}", self.config.parent.kind))
    }

    /// Lists the parents in a namespace, or in all namespaces.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn parents(&self, namespace: Option<&str>) -> anyhow::Result<Vec<DynamicObject>> {
        let objects = ResourceClient::new(&self.writer, &self.kinds.parent);
        Ok(objects.list(&everything_in(namespace), None).await?)
    }

    /// Returns a parent as it would be if this manifest were applied, with the user's permissions.
    ///
    /// # Errors
    /// When the API server refuses the manifest.
    pub async fn applied(&self, manifest: &Value, name: &NamespacedName) -> anyhow::Result<DynamicObject> {
        let objects = ResourceClient::new(&self.writer, &self.kinds.parent);
        let params = PatchParams::apply("operator-host-diff").force().dry_run();
        Ok(objects.apply(name, manifest, &params).await?)
    }

    /// Returns the changes of a parent's children, and why there are not more: existing objects are in the way of some.
    ///
    /// # Errors
    /// When the plugin fails or its answer is refused, or the API server refuses a child.
    pub async fn differences(
        &self,
        mut parent: DynamicObject,
    ) -> anyhow::Result<(Vec<Difference>, Vec<Refusal>)> {
        if is_unreadable(&parent) {
            return Err(anyhow!(unreadable("the resource")));
        }
        slim(&mut parent);
        let parent = Arc::new(parent);
        let there = self.there(&parent).await?;
        let is_generated = |child: &DynamicObject| label(child, GENERATED_LABEL).is_some();
        let proof = match there.values().any(is_generated) {
            true => self.proof().await,
            false => SecretProof::Key(None),
        };
        let ours = there.values().filter(|child| self.is_ours(&parent, proof, child));
        let mut observed: Vec<DynamicObject> = ours.cloned().collect();
        observed.iter_mut().for_each(slim);
        let mut observed: Vec<_> = observed.into_iter().map(Arc::new).collect();
        leave_out_others(self.config.scope(), &parent, &mut observed);
        observed.sort_by_cached_key(|child| ChildRef::of(child));
        let now = clock::now();
        // Whether the namespace is being deleted is not looked up: the API server refuses each child that cannot be created.
        let subject = Request::about(Arc::clone(&parent), observed.clone(), now);
        let (response, _) = evaluate_dry(self.plugin, &subject, self, Vec::new()).await?;
        let digest = self.plugin.digest().to_string();
        let policy = Policy {
            scope: self.config.scope(),
            parent: &parent,
            digest: &digest,
            trace: None,
            plugin: &self.plugin.description().name_and_version(),
            namespaced: &|kind: &Kind| self.kinds.namespaced(kind),
            existing: &|key: &ChildRef| there.get(key).cloned().map(Arc::new),
            shown: &observed,
            proof,
        };
        let plan = plan_around(&policy, &response).map_err(|refusals| refused(&refusals))?;
        let mut differences = Vec::new();
        for secret in &plan.secrets {
            let rest = plan.desired.iter().find(|desired| desired.key == secret.key);
            differences.extend(generated(secret, rest, there.get(&secret.key)));
        }
        for desired in &plan.desired {
            let live = there.get(&desired.key);
            if live.is_none() && plan.secrets.iter().any(|secret| secret.key == desired.key) {
                // The rest of a new Secret is already shown.
                continue;
            }
            differences.extend(self.change(&parent, proof, desired, live).await?);
        }
        // A parent that is being deleted keeps its children until it is deleted.
        if export_for(self.plugin, &parent) == Export::Reconcile && plan.refused.is_empty() {
            let named = plan.named();
            differences.extend(observed.iter().filter_map(|child| {
                let key = unwanted(self.config, proof, &parent, child, &named)?;
                Difference::between(&key, Some(child), None)
            }));
        }
        Ok((differences, plan.refused))
    }

    fn is_ours(&self, parent: &DynamicObject, proof: SecretProof<'_>, child: &DynamicObject) -> bool {
        let scope = self.config.scope();
        owns(scope, parent, child) || retains(scope, proof, parent, child)
    }

    /// Lists every object of the kinds that the plugin may make, in the namespaces where it may make them.
    async fn there(&self, parent: &DynamicObject) -> anyhow::Result<BTreeMap<ChildRef, DynamicObject>> {
        let mut there = BTreeMap::new();
        for kind in self.config.rules.children.keys() {
            let Some(resource) = self.kinds.others.get(kind) else {
                continue;
            };
            let objects = ResourceClient::new(&self.writer, resource);
            let namespace = parent.metadata.namespace.as_deref();
            let others = self.config.rules.other_names();
            let places = match others.filter(|_| namespace.is_none() && resource.namespaced) {
                Some(names) => names.iter().map(|name| Some(name.as_str())).collect(),
                None => vec![namespace],
            };
            for place in places {
                let found = objects.list(&everything_in(place), None).await?;
                there.extend(found.into_iter().map(|object| (ChildRef::of(&object), object)));
            }
        }
        Ok(there)
    }

    async fn change(
        &self,
        parent: &DynamicObject,
        proof: SecretProof<'_>,
        desired: &Desired,
        live: Option<&DynamicObject>,
    ) -> anyhow::Result<Vec<Difference>> {
        if live.is_some_and(is_terminating) {
            // The object is recreated once it is deleted.
            return Ok(Vec::new());
        }
        let wanted = || serde_json::from_value(desired.new_body()).ok();
        // `plan` has refused other kinds than those that a child defines, which can be shown only as they are wanted.
        let Some(resource) = self.kinds.others.get(&desired.key.kind) else {
            let new = Difference::between(&desired.key, None, wanted().as_ref());
            return Ok(new.into_iter().collect());
        };
        // As in `reconcile::apply`.
        let force = live.is_some_and(|live| self.is_ours(parent, proof, live));
        let manager = self.config.field_manager();
        let body = match live {
            None => desired.new_body(),
            Some(live) => {
                let mut body = desired.body.clone();
                let managed = live.metadata.managed_fields.as_deref().unwrap_or_default();
                left_fields::add_owned(&desired.left, &live.data, managed, &manager, &mut body);
                body
            }
        };
        let params = PatchParams {
            force,
            ..PatchParams::apply(&manager).dry_run()
        };
        let objects = ResourceClient::new(&self.writer, resource);
        let (deleted, created) = match objects.apply(&desired.key.name, &body, &params).await {
            Ok(after) => (Difference::between(&desired.key, live, Some(&after)), None),
            // As in `reconcile::replace`.
            Err(refused) if refused.is_immutable && force && desired.update.replace => (
                Difference::between(&desired.key, live, None),
                Difference::between(&desired.key, None, wanted().as_ref()),
            ),
            Err(refused) => return Err(refused.into()),
        };
        Ok(deleted.into_iter().chain(created).collect())
    }
}

/// Reads from the API server with the user's permissions. A refused request is reported with the verb of the request
/// that was sent; for the host that is the verb of a watch.
impl RelatedObjects for Preview<'_> {
    fn rights(&self) -> Rights<'_> {
        Rights::Configured(self.config)
    }

    fn is_namespaced(&self, kind: &Kind) -> bool {
        self.kinds.others.get(kind).is_none_or(|it| it.namespaced)
    }

    async fn namespaces(
        &self,
        wanted: &Wanted<'_>,
        selector: &Selector,
    ) -> Result<BTreeSet<String>, NeedError> {
        let all: Api<Namespace> = Api::all(self.writer.client.clone());
        let found = all.list_metadata(&ListParams::default()).await;
        let found =
            found.map_err(|error| wanted.unreadable(&format!("cannot list namespaces: {}", said(&error))))?;
        let picked = found.items.into_iter().filter(|it| selector.matches(it.labels()));
        Ok(picked.filter_map(|it| it.metadata.name).collect())
    }

    async fn read(&self, wanted: &Wanted<'_>) -> Result<Vec<Arc<DynamicObject>>, NeedError> {
        let Wanted {
            need, kind, selector, ..
        } = wanted;
        let resource = self.kinds.resource(kind);
        let resource = resource.map_err(|why| wanted.unreadable(&why.to_string()))?;
        let objects = ResourceClient::new(&self.writer, resource);
        let mut place = everything_in(wanted.namespace.as_deref());
        let names = need.all_names();
        let found = match &names {
            Some(names) if !need.is_everywhere() => {
                let mut all = Vec::new();
                for name in names {
                    (*name).clone_into(&mut place.name);
                    let found = objects.get(&place).await;
                    all.extend(found.map_err(|error| wanted.unreadable(&error.message))?);
                }
                all.retain(|it: &DynamicObject| selector.matches(it.labels()));
                Ok(all)
            }
            _ => objects.list(&place, need.label_selector.as_deref()).await,
        };
        let mut found: Vec<DynamicObject> = found.map_err(|error| wanted.unreadable(&error.message))?;
        found.retain(|it| is_named(names.as_ref(), it) && wanted.reaches(self.config, it));
        found.iter_mut().for_each(slim);
        found.sort_by_cached_key(NamespacedName::of);
        Ok(found.into_iter().map(Arc::new).collect())
    }
}

/// Compares a Secret whose values the host would generate: only missing values would be generated. `rest` is the child
/// with its other entries.
fn generated(
    secret: &DesiredSecret,
    rest: Option<&Desired>,
    live: Option<&DynamicObject>,
) -> Option<Difference> {
    let has = |key: &str| live.is_some_and(|live| live.data["data"].get(key).is_some());
    let mut after: DynamicObject = match live {
        Some(live) => live.clone(),
        None => {
            let body = rest.map_or(&secret.body, |rest| &rest.body);
            serde_json::from_value(body.clone()).ok()?
        }
    };
    for entry in secret.secret.entries.iter().filter(|entry| !has(&entry.key)) {
        after.data["data"][&entry.key] = "generated by the host".into();
    }
    Difference::between(&secret.key, live, Some(&after))
}

/// Returns a placeholder for a list, which has no object name.
fn everything_in(namespace: Option<&str>) -> NamespacedName {
    NamespacedName {
        namespace: namespace.map(str::to_owned),
        name: String::new(),
    }
}
