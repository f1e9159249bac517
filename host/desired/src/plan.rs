//! Turns the children that a plugin asked for into the bodies that may be applied. Pure: the existing objects are
//! arguments; nothing is read or written.
//!
//! An answer is used completely or not at all: a plugin that asks for one forbidden child is not trusted with the
//! rest. [`plan_around`] leaves out children that existing objects are in the way of.

mod resolve_order;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use super::generated;
use super::left_fields;
use super::names;
use super::order;
use super::ownership::{home, is_left, retains};
pub use super::planned::{Desired, DesiredSecret, Plan};
use super::provenance::{ACCEPT_ANNOTATION, PROOF_ANNOTATION, SecretProof, is_accepted};
pub use super::refusal::{Cause, Refusal};
use super::update;
use operator_host_contract::{GeneratedSecret, Kind, Response};
use operator_host_core::child_rules::{Allow, ChildRules, Removal, Scope};
use operator_host_core::object::{
    APPLIED_ANNOTATION, BESIDE_ANNOTATION, CONTROLLER_LABEL, ChildRef, GENERATED_LABEL, Identity,
    LEAVE_ANNOTATION, MAX_DEPTH, NamespacedName, NotServed, ON_REMOVAL_ANNOTATION, PARENT_ANNOTATION,
    PROVENANCE_ANNOTATION, Provenance, UPDATE_ANNOTATION, annotation, controller_of, fingerprint, group_of,
    is_deeper, is_reference_to, is_terminating, is_unreadable, kind_for_kubectl, kind_in_words, label,
    long_key, maker, name_problem, object_name_problem, secret, unreadable,
};
use operator_host_core::text::shorten;

/// The input of a plan, in addition to the plugin's answer.
pub struct Policy<'a> {
    /// Whose children are planned, and by which rules.
    pub scope: Scope<'a>,
    /// The custom resource, with its type.
    pub parent: &'a DynamicObject,
    /// The digest of the plugin version that answered.
    pub digest: &'a str,
    /// The W3C `traceparent` of the reconcile, if that is sampled.
    pub trace: Option<&'a str>,
    /// The name and the version of the plugin, as it describes itself.
    pub plugin: &'a str,
    /// Returns whether a kind is namespaced, if the cluster serves it.
    pub namespaced: &'a dyn Fn(&Kind) -> Result<bool, NotServed>,
    /// Returns an existing object, as far as it is known.
    pub existing: &'a dyn Fn(&ChildRef) -> Option<Arc<DynamicObject>>,
    /// The children that the plugin was shown. The cluster may have changed since, which the answer cannot know.
    pub shown: &'a [Arc<DynamicObject>],
    /// How to prove that the host generated a Secret.
    pub proof: SecretProof<'a>,
}

/// Validates the plugin's answer and completes it.
///
/// # Errors
/// All violations, so that an author sees them at once.
pub fn plan(policy: &Policy<'_>, answer: &Response) -> Result<Plan, Vec<Refusal>> {
    plan_without(policy, answer, HashSet::new())
}

/// As [`plan`], but existing objects that are in the way do not stop what does not depend on them.
///
/// # Errors
/// When something else is refused.
pub fn plan_around(policy: &Policy<'_>, answer: &Response) -> Result<Plan, Vec<Refusal>> {
    plan(policy, answer).or_else(|refused| {
        let left_out = obstructed(policy, answer, &refused);
        match left_out.and_then(|left_out| plan_without(policy, answer, left_out).ok()) {
            Some(plan) => Ok(Plan { refused, ..plan }),
            None => Err(refused),
        }
    })
}

fn plan_without(
    policy: &Policy<'_>,
    answer: &Response,
    left_out: HashSet<Identity>,
) -> Result<Plan, Vec<Refusal>> {
    let Response {
        children,
        keep,
        generate,
        ..
    } = answer;
    let defined = defined_in(children);
    let namespaced = |kind: &Kind| {
        let defined = || defined.get(&(kind.group(), kind.kind.as_str()));
        (policy.namespaced)(kind).or_else(|why| defined().copied().ok_or(why))
    };
    let rules = with_made(policy, answer);
    let policy = &Policy {
        namespaced: &namespaced,
        ..policy.with(&rules)
    };
    let mut plan = Plan::default();
    let mut refusals = Vec::new();
    let mut seen = HashSet::new();
    let is_out = |key: &ChildRef| !left_out.is_empty() && left_out.contains(&key.identity());
    for (index, child) in children.iter().enumerate() {
        match policy.key(index, child) {
            Ok(key) if is_out(&key) => {}
            Ok(key) if !seen.insert(key.identity()) => refusals.push(twice(&key)),
            key => match key.and_then(|key| policy.child(key, child, generate)) {
                Ok(desired) => plan.desired.push(Desired {
                    place: index,
                    ..desired
                }),
                Err(refusal) => refusals.push(refusal),
            },
        }
    }
    let mut seen = HashSet::new();
    for secret in generate {
        match policy.secret_key(secret) {
            Ok(key) if is_out(&key) => {}
            Ok(key) if !seen.insert(key.identity()) => refusals.push(twice(&key)),
            key => match key.and_then(|key| policy.secret(key, secret, &plan.desired)) {
                Ok(secret) => plan.secrets.push(secret),
                Err(refusal) => refusals.push(refusal),
            },
        }
    }
    let own = policy.home();
    let kept = keep.iter().map(|it| ChildRef {
        kind: Kind::new(it.api_version.clone(), it.kind.clone()),
        name: NamespacedName::new(it.namespace.clone().or_else(|| own.clone()), &*it.name),
    });
    plan.keep = kept.collect();
    if refusals.is_empty() {
        refusals = policy.resolve_order(&mut plan);
    }
    if !refusals.is_empty() {
        return Err(refusals);
    }
    plan.desired.sort_by(|a, b| {
        let place = |desired: &Desired| (desired.depth, rank(&desired.key.kind));
        (place(a), &a.key).cmp(&(place(b), &b.key))
    });
    plan.left_out = left_out;
    Ok(plan)
}

/// Returns the kinds that definitions among the children define, by group and name, and whether each is namespaced. Objects
/// of such a kind are applied once the cluster serves it.
fn defined_in(children: &[Value]) -> HashMap<(&str, &str), bool> {
    let definitions = children.iter();
    let definitions = definitions.filter(|child| child["kind"] == "CustomResourceDefinition");
    let defined = definitions.filter_map(|definition| {
        let spec = &definition["spec"];
        let kind = (spec["group"].as_str()?, spec["names"]["kind"].as_str()?);
        Some((kind, spec["scope"] == "Namespaced"))
    });
    defined.collect()
}

/// Returns the rules with the namespaces that a cluster-scoped parent makes: it may have children in them.
fn with_made<'a>(policy: &Policy<'a>, answer: &Response) -> Cow<'a, ChildRules> {
    if policy.home().is_some() || !policy.scope.rules.makes_namespaces() {
        return Cow::Borrowed(policy.scope.rules);
    }
    let children = answer.children.iter();
    let made = children.filter(|child| child["apiVersion"] == "v1" && child["kind"] == "Namespace");
    let made = made.filter_map(|child| child["metadata"]["name"].as_str());
    let kept = answer.keep.iter();
    let kept = kept.filter(|kept| kept.api_version == "v1" && kept.kind == "Namespace");
    let mut rules = policy.scope.rules.clone();
    rules
        .other_namespaces
        .extend(made.chain(kept.map(|kept| &*kept.name)).map(str::to_owned));
    Cow::Owned(rules)
}

/// Returns what to leave out of an answer when existing objects are in the way. `None` when something else is refused.
///
/// For a cluster-scoped parent, these are the children in the namespaces that contain such objects: whoever creates one
/// there must not stop the children in other namespaces. For a namespaced parent, these are the generated Secrets that
/// are refused, and the children that come after them.
fn obstructed(policy: &Policy<'_>, answer: &Response, refusals: &[Refusal]) -> Option<HashSet<Identity>> {
    let rules = with_made(policy, answer);
    let made = policy.with(&rules);
    let keys = answer.children.iter().enumerate();
    let keys: Option<Vec<_>> = keys.map(|(index, child)| made.key(index, child).ok()).collect();
    let keys = keys?;
    let there: Option<Vec<_>> = refusals.iter().map(|refusal| refusal.there.as_deref()).collect();
    let there = there?;
    if policy.home().is_some() {
        let is_generated =
            |key: &&ChildRef| answer.generate.iter().any(|secret| made.is_rest_of(key, secret));
        let mut out: HashSet<_> = there.iter().map(|key| key.identity()).collect();
        order::add_dependents(&answer.children, &keys, &mut out);
        return there.iter().all(is_generated).then_some(out);
    }
    let namespaces: HashSet<_> = there.iter().map(|key| &key.name.namespace).collect();
    // What has no namespace is nobody's, and others may depend on it.
    let out = keys.iter().filter(|key| namespaces.contains(&key.name.namespace));
    (!namespaces.contains(&None)).then(|| out.map(ChildRef::identity).collect())
}

/// Maximum number of bytes of an unchecked kind or name in a refusal; the rule follows after it.
const SHOWN: usize = 100;

/// Kubernetes fills a Secret of this type with a token. Source: Kubernetes, "Secrets", service account tokens.
const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";
/// The annotation that names the ServiceAccount.
const TOKEN_ANNOTATION: &str = "kubernetes.io/service-account.name";

fn twice(key: &ChildRef) -> Refusal {
    let problem = "the plugin asked for it twice; an answer can contain a child once, in one version";
    Refusal::new(key, problem)
}

/// Refuses what the plugin wants, or what exists, of a Secret to generate.
fn bad_secret(key: &ChildRef, problem: &str) -> Refusal {
    Refusal::new(&format!("the generated Secret {}", key.name), problem)
}

/// Dependencies are applied first: a claim before the pods that mount it.
fn rank(kind: &Kind) -> u8 {
    match kind.kind.as_str() {
        "Namespace" | "CustomResourceDefinition" => 0,
        "ServiceAccount" | "Role" | "ClusterRole" | "RoleBinding" | "ClusterRoleBinding" => 1,
        "ConfigMap" | "Secret" | "PersistentVolume" | "PersistentVolumeClaim" => 2,
        "Service" | "NetworkPolicy" | "PodDisruptionBudget" => 3,
        _ => 4,
    }
}

impl<'a> Policy<'a> {
    fn with<'b>(&self, rules: &'b ChildRules) -> Policy<'b>
    where
        'a: 'b,
    {
        let scope = Scope { rules, ..self.scope };
        Policy { scope, ..*self }
    }

    fn child(&self, key: ChildRef, child: &Value, generate: &[GeneratedSecret]) -> Result<Desired, Refusal> {
        let refused = |problem: &str| Refusal::new(&key, problem);
        let Some(configured) = self.scope.rules.children.get(&key.kind) else {
            return Err(self.kind_not_allowed(&key, &key.kind));
        };
        let wrong =
            |annotation: &str, problem: &str| refused(&format!("its annotation `{annotation}` {problem}"));
        let is_secret = secret::is_secret_kind(&key.kind);
        let update = update::update(child).map_err(|problem| wrong(UPDATE_ANNOTATION, &problem))?;
        let removal = update::removal(child, *configured);
        let mut removal = removal.map_err(|problem| wrong(ON_REMOVAL_ANNOTATION, &problem))?;
        match generate.iter().find(|secret| self.is_rest_of(&key, secret)) {
            // `secret` checks the existing object.
            Some(secret) => {
                if let Some(problem) = rest_problem(child, secret) {
                    return Err(bad_secret(&key, &problem));
                }
                if !child["metadata"]["annotations"][ON_REMOVAL_ANNOTATION].is_null() {
                    let problem = "is on a Secret with generated values, of which only `generated` in the configuration says \
                                   what becomes: leave it out";
                    return Err(wrong(ON_REMOVAL_ANNOTATION, problem));
                }
                removal = self.scope.rules.generated;
            }
            None => {
                self.check_existing(&key, removal)?;
                // What the host generated is retained as such, also when the plugin no longer asks for the values.
                let is_generated =
                    |secret: Arc<DynamicObject>| self.proof.holds(self.scope.parent, self.parent, &secret);
                if is_secret && (self.existing)(&key).is_some_and(is_generated) {
                    removal = self.scope.rules.generated;
                }
            }
        }
        let keeps_state = Removal::default_for(&key.kind) == Removal::Retain
            || generate.iter().any(|secret| self.is_rest_of(&key, secret));
        if update.replace && (removal == Removal::Retain || keeps_state) {
            let problem = "says `replace`, which deletes: a claim, a generated Secret and a child that is retained are never \
                           replaced; leave it out";
            return Err(wrong(UPDATE_ANNOTATION, problem));
        }
        let fields = child.as_object();
        let type_problem = fields.filter(|_| is_secret).and_then(secret::type_problem);
        let too_deep = || is_deeper(child, MAX_DEPTH + 1).then(|| unreadable("it"));
        let problem = type_problem.or_else(too_deep);
        if let Some(problem) = problem.or_else(|| long_key(fields?)) {
            return Err(refused(&problem));
        }
        let mut body = child.clone();
        // `key` has checked that both are objects.
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            if metadata.contains_key("ownerReferences") {
                return Err(refused(
                    "only the host sets `metadata.ownerReferences`; leave it out",
                ));
            }
            let given = |allow, is_given: bool| is_given && !self.scope.rules.allow.contains(&allow);
            let controller = self.scope.controller;
            let finalizers = metadata.get("finalizers");
            let has_finalizers =
                finalizers.is_some_and(|finalizers| !finalizers.is_null() && *finalizers != json!([]));
            if given(Allow::Finalizers, has_finalizers) {
                return Err(refused(&format!(
                    "it has `metadata.finalizers`, so it stays until somebody removes them; leave them out, or list \
                     `finalizers` under `allow` of the controller {controller:?}"
                )));
            }
            let annotations = &child["metadata"]["annotations"];
            let holds_token =
                is_secret && (child["type"] == TOKEN_TYPE || !annotations[TOKEN_ANNOTATION].is_null());
            if given(Allow::ServiceAccountTokens, holds_token) {
                return Err(refused(&format!(
                    "it would hold the token of a ServiceAccount, which gives its readers that account's permissions; leave \
                     out the type `{TOKEN_TYPE}` and the annotation `{TOKEN_ANNOTATION}`, or list `serviceAccountTokens` \
                     under `allow` of the controller {controller:?}"
                )));
            }
            self.complete(metadata, &key, removal);
            // Only the host may set these marks, on the Secrets that it generated.
            if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
                labels.remove(GENERATED_LABEL);
            }
            if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
                annotations.remove(PROOF_ANNOTATION);
                annotations.remove(BESIDE_ANNOTATION);
                if removal == Removal::Retain && !generate.is_empty() {
                    let names: Vec<&str> = generate.iter().map(|secret| &*secret.name).collect();
                    annotations.insert(BESIDE_ANNOTATION.into(), names.join(",").into());
                }
            }
        }
        if let Some(body) = body.as_object_mut() {
            body.remove("status");
            if is_secret {
                secret::encode(body);
            }
        }
        let left = match &child["metadata"]["annotations"][LEAVE_ANNOTATION] {
            Value::String(text) => {
                let live = (self.existing)(&key);
                left_fields::take(text, &mut body, live.as_deref())
                    .map_err(|problem| refused(&format!("the annotation `{LEAVE_ANNOTATION}`: {problem}")))?
            }
            _ => Vec::new(),
        };
        let fingerprint = fingerprint(&body);
        let annotations = &mut body["metadata"]["annotations"];
        annotations[APPLIED_ANNOTATION] = fingerprint.as_str().into();
        self.mark(annotations);
        Ok(Desired {
            left,
            fingerprint,
            update,
            ..Desired::new(key, body)
        })
    }

    /// Returns the namespace of the parent's children; `None` when the plugin has to name one.
    fn home(&self) -> Option<String> {
        home(self.scope, self.parent).map(str::to_owned)
    }

    /// Reports whether a child is the Secret whose values the host generates. Such a child contains everything else of
    /// that Secret.
    fn is_rest_of(&self, child: &ChildRef, secret: &GeneratedSecret) -> bool {
        secret::is_secret_kind(&child.kind)
            && child.name.name == secret.name
            && child.name.namespace == self.home()
    }

    /// Returns the key of a Secret to generate.
    fn secret_key(&self, secret: &GeneratedSecret) -> Result<ChildRef, Refusal> {
        let kind = Kind::new("v1", "Secret");
        let problem = |name: &str| name_problem(name).or_else(|| names::problem(&kind, name));
        check_name("generate", "name", &secret.name, problem)?;
        let name = NamespacedName::new(self.home(), &*secret.name);
        let key = ChildRef { kind, name };
        if !self.scope.rules.children.contains_key(&key.kind) {
            return Err(self.kind_not_allowed(&key.name, &key.kind));
        }
        if key.name.namespace.is_none() {
            let problem = "it would be in its parent's namespace, and a cluster-scoped parent has none";
            return Err(bad_secret(&key, problem));
        }
        match secret_problem(secret) {
            Some(problem) => Err(bad_secret(&key, &problem)),
            None => Ok(key),
        }
    }

    /// Checks that what exists lets a Secret be generated. `desired` are the children that the plugin wants.
    fn check_secret(
        &self,
        key: &ChildRef,
        secret: &GeneratedSecret,
        existing: Option<&DynamicObject>,
        desired: &[Desired],
    ) -> Result<(), Refusal> {
        if let Some(existing) = existing {
            self.check_generated(key, existing)?;
        }
        let mut children = desired.iter().filter_map(|desired| (self.existing)(&desired.key));
        let beside = children.any(|child| generated::is_beside(&child, &secret.name));
        if matches!(self.proof, SecretProof::Key(_))
            && let Some(problem) = generated::lost(self.parent, secret, existing, beside)
        {
            return Err(bad_secret(key, &problem).because(Cause::SecretLost));
        }
        Ok(())
    }

    /// Completes a Secret to generate. The one of these children that has the same name is the rest of it.
    fn secret(
        &self,
        key: ChildRef,
        secret: &GeneratedSecret,
        desired: &[Desired],
    ) -> Result<DesiredSecret, Refusal> {
        let mut rest = desired.iter();
        let rest = rest.find(|desired| self.is_rest_of(&desired.key, secret));
        let existing = (self.existing)(&key);
        self.check_secret(&key, secret, existing.as_deref(), desired)
            .map_err(|refusal| refusal.about(&key))?;
        let mut metadata = Map::new();
        metadata.insert("labels".into(), json!({ GENERATED_LABEL: "true" }));
        self.complete(&mut metadata, &key, self.scope.rules.generated);
        self.mark(&mut metadata["annotations"]);
        metadata.insert("name".into(), secret.name.clone().into());
        // The type of an existing Secret cannot change.
        let type_ = rest.map(|rest| rest.body["type"].clone());
        let type_ = type_.filter(|type_| !type_.is_null());
        let type_ = type_.unwrap_or_else(|| "Opaque".into());
        let body = json!({ "apiVersion": "v1", "kind": "Secret", "type": type_, "metadata": metadata });
        Ok(DesiredSecret {
            key,
            secret: secret.clone(),
            seen: existing.and_then(|existing| existing.metadata.resource_version.clone()),
            body,
        })
    }

    /// Checks that the host generated an existing Secret for this parent. Values that somebody else chose are never
    /// replaced and never treated as the host's own, with or without adoption.
    fn check_generated(&self, key: &ChildRef, existing: &DynamicObject) -> Result<(), Refusal> {
        if label(existing, GENERATED_LABEL).is_none() {
            self.check_existing(key, Removal::Delete)?;
            let problem = "it exists and the host did not generate it; delete or rename it, or let the plugin use it as it is";
            return Err(bad_secret(key, problem));
        }
        if !self.proof.holds(self.scope.parent, self.parent, existing) && !is_accepted(self.parent, existing)
        {
            let kind = kind_for_kubectl(self.scope.parent.group(), &self.scope.parent.kind);
            let problem = format!(
                "it carries the label of a Secret that the host generated for this parent, but no proof of it: a host with \
                 another key made it, or somebody else. If you know where its values come from, keep them: kubectl \
                 annotate --overwrite -n {} {kind} {} {ACCEPT_ANNOTATION}={}. Do not delete it while something, such as a \
                 database, uses its values: it would not know new ones",
                self.parent.namespace().unwrap_or_default(),
                self.parent.name_any(),
                existing.metadata.uid.as_deref().unwrap_or_default(),
            );
            return Err(bad_secret(key, &problem));
        }
        match controller_of(existing) {
            // A retained Secret, whatever is configured now.
            None => Ok(()),
            Some(_) => self.check_existing(key, Removal::Delete),
        }
    }

    fn key<'c>(&self, index: usize, child: &'c Value) -> Result<ChildRef, Refusal> {
        let text = |value: &'c Value| value.as_str().filter(|text| !text.is_empty());
        let metadata = &child["metadata"];
        let place = format!("children[{index}]");
        let missing = |missing: &str| {
            let named = text(&metadata["name"]).or(text(&child["kind"]));
            let named = named.map(|name| format!(" ({})", shorten(name, SHOWN)));
            let needs = "a child must be a JSON object with `apiVersion`, `kind` and `metadata.name`";
            let problem = format!("{needs}; {missing} is missing");
            Refusal::new(&format!("{place}{}", named.unwrap_or_default()), problem)
        };
        let api_version = text(&child["apiVersion"]).ok_or_else(|| missing("`apiVersion`"))?;
        let kind = text(&child["kind"]).ok_or_else(|| missing("`kind`"))?;
        let name = text(&metadata["name"]).ok_or_else(|| missing("`metadata.name`"))?;
        check_name(&place, "`metadata.name`", name, object_name_problem)?;
        let namespace = text(&metadata["namespace"]);
        if let Some(namespace) = namespace {
            check_name(&place, "`metadata.namespace`", namespace, name_problem)?;
        }
        let kind = Kind::new(api_version, kind);
        let name = NamespacedName::new(self.namespace(&kind, name, namespace)?, name);
        let problem = |name: &str| names::problem(&kind, name);
        check_name(&place, "`metadata.name`", &name.name, problem)?;
        Ok(ChildRef { kind, name })
    }

    fn namespace(&self, kind: &Kind, name: &str, given: Option<&str>) -> Result<Option<String>, Refusal> {
        let which = || {
            let shown = kind_in_words(kind.group(), &kind.kind);
            format!("{} {name}", shorten(&shown, SHOWN))
        };
        if !self.scope.rules.children.contains_key(kind) {
            return Err(self.kind_not_allowed(&which(), kind));
        }
        let refused = |problem: &str| Err(Refusal::new(&which(), problem));
        let refused_in = |namespace: &str, problem: String| {
            let kind = kind_in_words(kind.group(), &kind.kind);
            Err(Refusal::new(&format!("{kind} {namespace}/{name}"), problem))
        };
        let namespaced = (self.namespaced)(kind).map_err(|why| Refusal::new(&which(), why))?;
        match (self.home(), given) {
            (Some(_), _) if !namespaced => refused("a namespaced parent cannot own a cluster-scoped object"),
            (None, _) if !namespaced => Ok(None),
            (Some(own), None) => Ok(Some(own)),
            (Some(own), Some(given)) if own == given => Ok(Some(own)),
            (Some(_), Some(given)) => {
                let (parent, why) = (self.name(), "owner references do not cross namespaces");
                let problem = format!("children of {parent} may only be in its own namespace; {why}");
                refused_in(given, problem)
            }
            (None, None) => {
                refused("the kind is namespaced and its parent is not; the plugin must name a namespace")
            }
            (None, Some(given)) if self.scope.rules.other_namespaces.contains(given) => {
                Ok(Some(given.to_owned()))
            }
            (None, Some(given)) => {
                let advice =
                    "list it under `otherNamespaces` in the configuration, or let the plugin make it";
                refused_in(given, format!("the namespace {given:?} is not allowed; {advice}"))
            }
        }
    }

    /// `removal` is what is to become of it: what stays without an owner need not have been retained before.
    fn check_existing(&self, key: &ChildRef, removal: Removal) -> Result<(), Refusal> {
        let Some(existing) = (self.existing)(key) else {
            return Ok(());
        };
        self.check_owner(key, removal, &existing)?;
        // Without the part that was not read, it can be neither compared nor changed. The caches keep only children
        // whole.
        let is_child = maker(&existing).is_some();
        match is_child && is_unreadable(&existing) && !is_terminating(&existing) {
            true => {
                let which = unreadable(&key.to_string());
                Err(Refusal::obstacle(&which, ", or delete the child", key))
            }
            false => Ok(()),
        }
    }

    fn check_owner(&self, key: &ChildRef, removal: Removal, existing: &DynamicObject) -> Result<(), Refusal> {
        let obstacle = |problem: String| Err(Refusal::obstacle(key, &problem, key));
        let owned_by = |owner: &str| {
            obstacle(format!(
                " exists and belongs to {owner}; delete or rename one of the two"
            ))
        };
        if let Some(owner) = controller_of(existing) {
            if Some(&owner.uid) == self.parent.metadata.uid.as_ref() {
                return Ok(());
            }
            let parent = self.scope.parent;
            if is_reference_to(parent, owner) && owner.name == self.parent.name_any() {
                let (kind, name) = (&parent.kind, self.name());
                let problem = format!(
                    " belongs to an earlier {kind} {name}, which was deleted; it is recreated once the garbage collector has \
                     removed it"
                );
                return obstacle(problem).map_err(|refusal| refusal.because(Cause::Predecessor));
            }
            let kind = kind_in_words(group_of(&owner.api_version), &owner.kind);
            return owned_by(&format!("{kind} {}", owner.name));
        }
        let stays = removal == Removal::Retain && is_left(self.scope, self.parent, existing);
        if stays || retains(self.scope, self.proof, self.parent, existing) {
            return Ok(());
        }
        let controller = self.scope.controller;
        let marked = maker(existing);
        match annotation(existing, PARENT_ANNOTATION).filter(|_| marked.is_some()) {
            // An object that another parent retains cannot be adopted.
            Some(owner) if *owner != *self.name() => owned_by(owner),
            _ if self.scope.rules.adopt => Ok(()),
            Some(_) if marked == Some(controller) => obstacle(format!(
                " has the label and annotation of a child, but no owner reference: it was created by someone else, or while \
                 it was retained or orphaned; set `adopt: true` for the controller {controller:?}, or delete it if nobody needs it"
            )),
            _ => obstacle(format!(
                " exists and was not created by this host; set `adopt: true` for the controller {controller:?}, or rename \
                 it, or delete it if nobody needs it"
            )),
        }
    }

    fn complete(&self, metadata: &mut Map<String, Value>, key: &ChildRef, removal: Removal) {
        // The API server sets these fields; generated objects often contain nulls for them.
        for field in [
            "managedFields",
            "resourceVersion",
            "uid",
            "creationTimestamp",
            "generation",
            "selfLink",
        ] {
            metadata.remove(field);
        }
        match &key.name.namespace {
            Some(namespace) => metadata.insert("namespace".into(), namespace.as_str().into()),
            // A cluster-scoped object has none: the API server ignores what its file says.
            None => metadata.remove("namespace"),
        };
        if removal == Removal::Delete {
            let owner = json!([{
                "apiVersion": self.scope.parent.api_version,
                "kind": self.scope.parent.kind,
                "name": self.parent.name_any(),
                "uid": self.parent.metadata.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }]);
            metadata.insert("ownerReferences".into(), owner);
        }
        for (field, key, value) in [
            ("labels", CONTROLLER_LABEL, self.scope.controller.to_owned()),
            ("annotations", PARENT_ANNOTATION, self.name()),
        ] {
            let map = metadata.entry(field).or_insert_with(|| json!({}));
            if !map.is_object() {
                *map = json!({});
            }
            map[key] = value.into();
        }
    }

    /// Adds the version and the generation of a change. A difference in these alone is no reason to write.
    fn mark(&self, annotations: &mut Value) {
        let made = Provenance::new(self.parent, self.digest, self.trace, self.plugin);
        annotations[PROVENANCE_ANNOTATION] = made.to_string().into();
    }

    fn kind_not_allowed(&self, which: &impl ToString, kind: &Kind) -> Refusal {
        let kind = Kind::new(shorten(&kind.api_version, SHOWN), shorten(&kind.kind, SHOWN));
        let problem = format!(
            "the controller {:?} may not create objects of the kind {kind}; list it under its `children` in the configuration",
            self.scope.controller
        );
        Refusal::new(which, problem).because(Cause::NotAllowed(kind))
    }

    fn name(&self) -> String {
        NamespacedName::of(self.parent).to_string()
    }
}

fn check_name(
    which: &str,
    field: &str,
    name: &str,
    problem: impl Fn(&str) -> Option<String>,
) -> Result<(), Refusal> {
    problem(name).map_or(Ok(()), |problem| {
        let problem = format!("{:?} cannot be its {field}: {problem}", shorten(name, SHOWN));
        Err(Refusal::new(which, problem))
    })
}

/// Maximum number of keys in a generated Secret.
const MAX_ENTRIES: usize = 64;

fn secret_problem(secret: &GeneratedSecret) -> Option<String> {
    if !(1..=MAX_ENTRIES).contains(&secret.entries.len()) {
        return Some(format!("it must have from 1 to {MAX_ENTRIES} entries"));
    }
    let mut keys = HashSet::new();
    secret.entries.iter().find_map(|entry| {
        let (key, length) = (&entry.key, entry.length);
        let alphabet = entry.alphabet.as_deref();
        if !keys.insert(key) {
            Some(format!("duplicate key {key:?}"))
        } else if !(8..=1024).contains(&length) {
            let why = "it must be from 8 to 1024";
            Some(format!("the key {key:?} has the length {length}; {why}"))
        } else if alphabet.is_some_and(|text| text.chars().collect::<HashSet<_>>().len() < 2) {
            Some(format!(
                "the alphabet of the key {key:?} must have at least 2 different characters"
            ))
        } else {
            None
        }
    })
}

/// Checks the child that is the rest of a generated Secret.
fn rest_problem(child: &Value, secret: &GeneratedSecret) -> Option<String> {
    let is_fixed = |key: &str| secret::VALUE_FIELDS.iter().any(|it| !child[*it][key].is_null());
    let both = secret.entries.iter().find(|entry| is_fixed(&entry.key))?;
    Some(format!(
        "the key {:?} has a value in the child, and the host is to generate it as well; leave it out of one of the two",
        both.key
    ))
}

#[cfg(test)]
mod tests;
