//! Reconciles one parent once without a cluster: the same [`evaluate`] as in `reconcile` calls the plugin, on given
//! objects, and the same [`plan`] checks its answer.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Map, Value};
use thiserror::Error;

use operator_host_config::{ControllerConfig, finalizer};
use operator_host_contract::{Description, Export, Kind, Request, Response};
use operator_host_core::child_rules::{Allow, ChildRules, Removal, Scope};
use operator_host_core::crd::definition;
use operator_host_core::crd::known::{BuiltIn, Schemas};
use operator_host_core::namespaces::NamespacePatterns;
use operator_host_core::object::{
    CONTROLLER_LABEL, ChildRef, NamespacedName, Selector, controller_of, fingerprint, is_namespace, slim,
    without_host_metadata,
};
use operator_host_desired::conditions::{self, Reason, Verdict};
use operator_host_desired::order::Order;
use operator_host_desired::plan::{Cause, Policy, Refusal, plan};
use operator_host_desired::provenance::SecretProof;
use operator_host_desired::readiness::{self, unready};
use operator_host_desired::selectors::selects;
use operator_host_engine::reconcile::evaluate::{EvaluateError, evaluate, evaluate_dry, export_for};
use operator_host_engine::reconcile::needs::{NeedError, RelatedObjects, Rights, Wanted};
use operator_host_runtime::{Call, Plugin};

/// Why a reconcile produced no rendering.
#[derive(Debug, Error)]
pub enum RenderError {
    /// The plugin gave no answer.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// The plugin asked for children that it may not have; one line each.
    #[error("the plugin's answer is refused:\n  {}", .0.join("\n  "))]
    Refused(Vec<String>),
}

/// The existing objects that concern one parent.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The custom resource, as [`admit`] returns it.
    pub parent: Arc<DynamicObject>,
    /// The existing children, as [`own`] returns them.
    pub children: Vec<Arc<DynamicObject>>,
    /// All objects that a need may find.
    pub related: Vec<Arc<DynamicObject>>,
    /// The time of the host's clock.
    pub now: Timestamp,
    /// The CustomResourceDefinitions at hand: the plugin's own first, then those in the files.
    pub definitions: Arc<[Value]>,
    /// What the plugin may do: what a configuration says, or everything that the plugin announces.
    pub allowed: Allowed,
}

/// What a plugin may do.
#[derive(Clone, Debug)]
pub struct Allowed {
    name: String,
    parent: Kind,
    rules: ChildRules,
    /// The controller of a configuration; `None`: what the plugin's description lists is allowed.
    controller: Option<Arc<ControllerConfig>>,
}

impl Allowed {
    /// Returns what the controller of a configuration allows.
    pub fn by(controller: ControllerConfig) -> Self {
        Self {
            name: controller.name.clone(),
            parent: controller.parent.clone(),
            rules: controller.rules.clone(),
            controller: Some(Arc::new(controller)),
        }
    }

    /// Returns what is allowed without a configuration: everything that the plugin's description lists, in any namespace.
    pub fn all_of(description: &Description) -> Self {
        let children = description.makes.iter().cloned();
        Self {
            name: description.name.clone(),
            parent: description.parent.clone(),
            rules: ChildRules {
                children: children.map(|kind| (kind, Removal::Delete)).collect(),
                generated: Removal::Retain,
                other_namespaces: NamespacePatterns::every(),
                adopt: false,
                // The configuration decides this; an author should see what the plugin makes.
                allow: BTreeSet::from([Allow::Finalizers, Allow::ServiceAccountTokens]),
            },
            controller: None,
        }
    }

    fn scope(&self) -> Scope<'_> {
        Scope {
            controller: &self.name,
            parent: &self.parent,
            rules: &self.rules,
        }
    }
}

/// What a reconcile would do.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendering {
    /// The children in the order in which they would be applied: as the plugin asks for them, with their namespace,
    /// without the labels that identify the host's objects.
    pub children: Vec<Value>,
    /// The children that would stay unchanged.
    pub keep: Vec<ChildRef>,
    /// The parent's whole status.
    pub status: Map<String, Value>,
    /// The rest of the answer: the Secrets that the host would generate, Events, and when the parent would be reconciled
    /// again.
    pub response: Response,
    /// For a parent that is being deleted and has a cleanup: whether it may be deleted now.
    pub cleaned_up: Option<bool>,
}

/// Completes a new parent as the API server would: with a namespace, a UID, a generation and a time.
pub fn admit(mut parent: DynamicObject, crd: Option<&Value>, now: Timestamp) -> DynamicObject {
    let namespace = parent.metadata.namespace.take();
    parent.metadata.namespace =
        definition::is_namespaced(crd).then(|| namespace.unwrap_or_else(|| "default".to_owned()));
    let hash = fingerprint(&NamespacedName::of(&parent).to_string());
    let meta = &mut parent.metadata;
    meta.uid
        .get_or_insert_with(|| format!("00000000-0000-4000-{}-{}", &hash[..4], &hash[4..]));
    meta.generation.get_or_insert(1);
    meta.creation_timestamp.get_or_insert(Time(now));
    meta.managed_fields = None;
    parent
}

/// Returns the children of one parent among the existing objects, each labelled as its own, and sorted as the host
/// does. An object without a controlling owner counts as the parent's if the plugin makes its kind and it is in the
/// parent's namespace.
pub fn own(
    objects: &[Arc<DynamicObject>],
    parent: &DynamicObject,
    description: &Description,
    definitions: &[Value],
    allowed: &Allowed,
) -> Vec<Arc<DynamicObject>> {
    let own_namespace = parent.namespace();
    let mut children: Vec<DynamicObject> = Vec::new();
    for object in objects {
        let mut child = DynamicObject::clone(object);
        let ChildRef { kind, .. } = ChildRef::of(&child);
        if !description.makes.contains(&kind) {
            continue;
        }
        if child.metadata.namespace.is_none() && is_namespaced(&kind, definitions) {
            child.metadata.namespace.clone_from(&own_namespace);
        }
        let mut owner = controller_of(&child).cloned();
        if owner.as_ref().is_some_and(|owner| {
            owner.kind != description.parent.kind || Some(&owner.name) != parent.metadata.name.as_ref()
        }) || (own_namespace.is_some() && child.metadata.namespace != own_namespace)
        {
            continue;
        }
        // A rendering contains no owner, and a manifest may have another UID than the parent in the file.
        let owner = owner.get_or_insert_default();
        owner.api_version.clone_from(&description.parent.api_version);
        owner.kind.clone_from(&description.parent.kind);
        owner.name = parent.name_any();
        owner.uid = parent.metadata.uid.clone().unwrap_or_default();
        owner.controller = Some(true);
        child.metadata.owner_references = Some(vec![owner.clone()]);
        let labels = child.metadata.labels.get_or_insert_default();
        labels.insert(CONTROLLER_LABEL.into(), allowed.name.clone());
        slim(&mut child);
        children.push(child);
    }
    children.sort_by_cached_key(ChildRef::of);
    children.into_iter().map(Arc::new).collect()
}

/// Calls the plugin, and again while it needs other objects.
///
/// # Errors
/// When the call fails, a need is invalid, or the answer is refused.
pub async fn reconcile(plugin: &Plugin, scene: &Scene) -> Result<Rendering, RenderError> {
    let description = plugin.description();
    let files = Files { description, scene };
    let (response, _) = evaluate_dry(plugin, &scene.request(), &files, Vec::new()).await?;
    let is_cleanup = export_for(plugin, &scene.parent) == Export::Cleanup;
    let cleaned_up = is_cleanup.then_some(response.done);
    let allowed = &scene.allowed;
    let parent = &*scene.parent;
    let existing = |key: &ChildRef| {
        let mut children = scene.children.iter();
        children.find(|child| ChildRef::of(child) == *key).cloned()
    };
    let policy = Policy {
        scope: allowed.scope(),
        parent,
        digest: &plugin.digest().to_string(),
        trace: None,
        plugin: &plugin.description().name_and_version(),
        namespaced: &|kind: &Kind| Ok(is_namespaced(kind, &scene.definitions)),
        existing: &existing,
        shown: &scene.children,
        proof: SecretProof::Label,
    };
    let plan = plan(&policy, &response).map_err(|refusals| {
        let is_configured = allowed.controller.is_some();
        RenderError::Refused(refusals.iter().map(|it| refusal(it, is_configured)).collect())
    })?;
    // A child that does not exist is judged as just created.
    let as_created = |body: &Value| unready(&serde_json::from_value(body.clone()).ok()?);
    let verdict = match cleaned_up {
        Some(false) => Verdict::CleaningUp(Reason::cleaning_up(&finalizer(&allowed.name))),
        _ => {
            // Files do not tell what the host has applied, so only what is not there waits.
            let order = Order::of(&plan.desired);
            let missing = plan.desired.iter().filter(|it| existing(&it.key).is_none());
            let mut waiting = missing.filter_map(|it| order.waits_for(it, existing, |_| false));
            match waiting.next() {
                Some(waiting) => Verdict::Reconciling(Reason::waiting(waiting.why)),
                None => readiness::verdict(&plan, existing, as_created),
            }
        }
    };
    let (fields, conditions) = (response.status.as_ref(), Some(response.conditions.as_slice()));
    let status = conditions::desired(parent, fields, conditions, &verdict, scene.now);
    let children = plan.desired.iter().map(|child| child.new_body());
    let children: Vec<Value> = children.map(without_host_metadata).collect();
    let definitions = scene.definitions.iter().chain(&children);
    let schemas = Schemas::of(plan.desired.iter().map(|child| &child.key.kind), definitions);
    let own = description.definition();
    let of_parent = || definition::of_kind(scene.definitions.iter(), &description.parent);
    let schema = own.as_ref().or_else(of_parent);
    let schema = schema.and_then(|definition| definition::schema(definition, &description.parent));
    let keys = plan.desired.iter().map(|child| &child.key);
    let refused = schemas.refused(keys.zip(&children), schema, &status);
    if !refused.is_empty() {
        return Err(RenderError::Refused(refused));
    }
    let mut keep: Vec<ChildRef> = plan.keep.into_iter().collect();
    keep.sort();
    Ok(Rendering {
        children,
        keep,
        status,
        response: Response {
            // A cleanup generates none.
            generate: plan.secrets.into_iter().map(|secret| secret.secret).collect(),
            ..response
        },
        cleaned_up,
    })
}

/// Returns the request of the last call that [`reconcile`] makes for a parent that is not being deleted: of the call whose
/// answer counts, or of the one that failed.
pub async fn last_request(plugin: &Plugin, scene: &Scene) -> Request {
    let subject = scene.request();
    let last = RefCell::new(subject.clone());
    let call = |request: Request| {
        last.replace(request.clone());
        async move {
            let Call { outcome, share, .. } = plugin.reconcile(&request).await;
            (outcome, share)
        }
    };
    let description = plugin.description();
    let source = Files { description, scene };
    // The caller makes the call again, and reports its failure.
    let _ = evaluate(&subject, &source, Vec::new(), call, |_| {}).await;
    last.into_inner()
}

impl Scene {
    fn request(&self) -> Request {
        Request::about(Arc::clone(&self.parent), self.children.clone(), self.now)
    }
}

/// The given objects. No given object is unreadable.
struct Files<'a> {
    description: &'a Description,
    scene: &'a Scene,
}

impl RelatedObjects for Files<'_> {
    fn rights(&self) -> Rights<'_> {
        match &self.scene.allowed.controller {
            Some(controller) => Rights::Configured(controller),
            None => Rights::Announced(self.description),
        }
    }

    fn is_namespaced(&self, kind: &Kind) -> bool {
        is_namespaced(kind, &self.scene.definitions)
    }

    async fn namespaces(&self, _: &Wanted<'_>, selector: &Selector) -> Result<BTreeSet<String>, NeedError> {
        let related = self.scene.related.iter();
        let all = related.filter(|it| is_namespace(&ChildRef::of(it).kind));
        let found = all.filter(|it| selector.matches(it.labels()));
        Ok(found.filter_map(|it| it.metadata.name.clone()).collect())
    }

    async fn read(&self, wanted: &Wanted<'_>) -> Result<Vec<Arc<DynamicObject>>, NeedError> {
        let parent = NamespacedName::of(&self.scene.parent);
        let mut objects: Vec<Arc<DynamicObject>> = Vec::new();
        for object in &self.scene.related {
            let mut object = DynamicObject::clone(object);
            if self.is_namespaced(&wanted.kind) && object.metadata.namespace.is_none() {
                object.metadata.namespace.clone_from(&parent.namespace);
            }
            if selects(wanted.need, &parent, &ChildRef::of(&object).kind, &object)
                && wanted.is_picked(object.metadata.namespace.as_deref())
            {
                slim(&mut object);
                objects.push(Arc::new(object));
            }
        }
        objects.sort_by_cached_key(|object| NamespacedName::of(object));
        Ok(objects)
    }
}

/// Formats a refusal for an author, who may have no configuration.
fn refusal(refusal: &Refusal, is_configured: bool) -> String {
    match &refusal.cause {
        Cause::NotAllowed(kind) if !is_configured => {
            let which = &refusal.which;
            format!("{which}: `describe` does not list the kind {kind} under `makes`")
        }
        _ => refusal.to_string(),
    }
}

/// Whether the objects of a kind are namespaced. Without a cluster, every kind counts as namespaced except those that a
/// definition says are not, and the cluster-scoped ones of Kubernetes itself.
fn is_namespaced(kind: &Kind, definitions: &[Value]) -> bool {
    if let Some(definition) = definition::of_kind(definitions, kind) {
        return definition::is_namespaced(Some(definition));
    }
    BuiltIn::find(kind.group(), &kind.kind).is_none_or(|it| it.is_namespaced)
}
