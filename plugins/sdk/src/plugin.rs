//! The definition of a plugin: its kinds, its functions, its CustomResourceDefinition.

use std::mem::ManuallyDrop;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::bindings::exports::operator_host::plugin::reconciler::Guest;
use crate::bindings::operator_host::plugin::types as wit;
use crate::crd::{Column, Crd, Rule, Scale};
use crate::kinds::Kind;
use crate::object;
use crate::request::{Parent, Request};
use crate::response::{Event, Failure, FieldError, Response};
use crate::versions::{Version, convert_object, differences, remove, set, value_of, version_of};

type Reconcile<Spec, Status> = fn(&Request<Spec, Status>) -> Result<Response<Status>, Failure>;

type Validate<Spec, Status> = fn(&Parent<Spec, Status>, Option<&Parent<Spec, Status>>) -> Vec<FieldError>;

/// Returns the spec of a resource with its defaults, both as text.
type Default = fn(&str) -> Result<String, Failure>;

/// A plugin: the kind that it reconciles, the kinds that it creates and reads, and its functions.
///
/// Pass it as a constant to [`register!`](crate::register), so that the compiler can omit the parts that a plugin
/// does not use from the binary.
#[must_use = "give it to `register!`"]
pub struct Plugin<Spec: 'static, Status> {
    reconcile: Reconcile<Spec, Status>,
    cleanup: Option<Reconcile<Spec, Status>>,
    validate: Option<Validate<Spec, Status>>,
    deletes_in_order: bool,
    parent: Kind,
    also: &'static [Kind],
    makes: &'static [Kind],
    reads: &'static [Kind],
    versions: &'static [Version<Spec>],
    default: Option<Default>,
    crd: Crd,
}

impl<Spec, Status> Plugin<Spec, Status>
where
    Spec: DeserializeOwned + JsonSchema + 'static,
    Status: Serialize + DeserializeOwned + JsonSchema,
{
    /// Creates a plugin for a kind in a group and version, such as `my-operator.dev/v1` and `Echo`.
    pub const fn new(
        api_version: &'static str,
        kind: &'static str,
        reconcile: Reconcile<Spec, Status>,
    ) -> Self {
        Self {
            reconcile,
            cleanup: None,
            validate: None,
            deletes_in_order: false,
            parent: Kind::new(api_version, kind),
            also: &[],
            makes: &[],
            reads: &[],
            versions: &[],
            default: None,
            crd: Crd::new(),
        }
    }

    /// Sets other kinds that it decorates in the same way, such as StatefulSets beside Deployments.
    pub const fn also(mut self, kinds: &'static [Kind]) -> Self {
        self.also = kinds;
        self
    }

    /// Sets the kinds of the children that the response may contain, including generated Secrets.
    pub const fn makes(mut self, kinds: &'static [Kind]) -> Self {
        self.makes = kinds;
        self
    }

    /// Sets the kinds that the response may need.
    pub const fn reads(mut self, kinds: &'static [Kind]) -> Self {
        self.reads = kinds;
        self
    }

    /// Sets further versions of the kind that the API server serves. `reconcile` sees all objects in the plugin's own.
    pub const fn versions(mut self, versions: &'static [Version<Spec>]) -> Self {
        self.versions = versions;
        self
    }

    /// Sets the defaults that need code: the host's webhook calls `Defaults::set` before a resource is stored. Constant
    /// defaults belong into the schema (`#[serde(default)]`).
    pub const fn defaults(mut self) -> Self
    where
        Spec: Defaults + Serialize,
    {
        self.default = Some(default::<Spec>);
        self
    }

    /// Sets a function that returns what the user must change in a parent, beyond what the schema and its rules can say. The
    /// second parent is the stored one when the host's webhook asks whether the first may replace it. What is invalid is not
    /// stored; an object that came past the webhook is not reconciled: its children stay as they are.
    pub const fn validate(mut self, validate: Validate<Spec, Status>) -> Self {
        self.validate = Some(validate);
        self
    }

    /// Sets a function that is called while a parent is being deleted, until it returns
    /// [`Response::done`](crate::Response::done). A spec that does not
    /// match the type keeps no resource from being deleted: the function is not called, and an Event says so.
    pub const fn cleanup(mut self, cleanup: Reconcile<Spec, Status>) -> Self {
        self.cleanup = Some(cleanup);
        self
    }

    /// Lets the host delete the children of a deleted parent in the reverse of their order, which
    /// [`Response::child_after`](crate::Response::child_after) sets. This needs a finalizer on each parent, and so does a
    /// [`cleanup`](Self::cleanup): a plugin that has one need not call this.
    pub const fn delete_in_order(mut self) -> Self {
        self.deletes_in_order = true;
        self
    }

    /// Sets the kind's plural in the API's paths. The default is the kind in lower case with an `s`.
    pub const fn plural(mut self, plural: &'static str) -> Self {
        self.crd.plural = Some(plural);
        self
    }

    /// Sets the names that `kubectl get` accepts instead of the plural.
    pub const fn short_names(mut self, names: &'static [&'static str]) -> Self {
        self.crd.short_names = names;
        self
    }

    /// Sets the categories in which `kubectl get` includes the kind, such as `all`.
    pub const fn categories(mut self, categories: &'static [&'static str]) -> Self {
        self.crd.categories = categories;
        self
    }

    /// Sets the columns of `kubectl get` between the name and the age.
    pub const fn columns(mut self, columns: &'static [Column]) -> Self {
        self.crd.columns = columns;
        self
    }

    /// Limits the names of parents by a regular expression and a length: for plugins that derive names and labels
    /// which must be shorter or simpler than object names in general.
    pub const fn names(mut self, pattern: &'static str, max_length: usize) -> Self {
        self.crd.names = Some((pattern, max_length));
        self
    }

    /// Adds the subresource `scale`, for `kubectl scale` and for HorizontalPodAutoscalers.
    pub const fn scale(mut self, scale: Scale) -> Self {
        self.crd.scale = Some(scale);
        self
    }

    /// Sets rules about the whole resource, which the API server checks. Types and fields can have rules of their own:
    ///
    /// ```
    /// # use schemars::JsonSchema;
    /// #[derive(JsonSchema)]
    /// #[schemars(extend("x-kubernetes-validations" = [
    ///     { "rule": "self.min <= self.max", "message": "min must not exceed max" },
    /// ]))]
    /// struct Replicas {
    ///     min: u32,
    ///     max: u32,
    /// }
    /// ```
    pub const fn rules(mut self, rules: &'static [Rule]) -> Self {
        self.crd.rules = rules;
        self
    }

    /// Deprecates this version of the kind: the API server sends this warning, at most 256 characters, with each answer,
    /// and `kubectl` prints it. To deprecate a field, use `#[deprecated]`, which its description then mentions.
    pub const fn deprecated(mut self, warning: &'static str) -> Self {
        self.crd.deprecation = Some(warning);
        self
    }

    /// Leaves the descriptions out of the definition, which `kubectl explain` shows. They are most of a definition with types
    /// of Kubernetes, such as a `PodSpec`: with them it may be too large for the API server.
    pub const fn without_descriptions(mut self) -> Self {
        self.crd.without_descriptions = true;
        self
    }

    /// Makes the kind cluster-scoped.
    pub const fn cluster_scoped(mut self) -> Self {
        self.crd.cluster_scoped = true;
        self
    }
}

/// A plugin without its type parameters.
#[doc(hidden)]
pub trait Reconciler {
    fn describe(&self, name: &str, version: &str, crd: &str) -> wit::Description;
    fn validate(&self, parent: &str, old_parent: Option<&str>) -> Vec<FieldError>;
    fn reconcile(&self, request: wit::Request) -> Result<wit::Response, Failure>;
    fn cleanup(&self, request: wit::Request) -> Result<wit::Response, Failure>;
    fn convert(&self, api_version: &str, objects: &[String]) -> Vec<Result<String, String>>;
    fn default(&self, parent: &str) -> Result<String, Failure>;
    /// Returns the definition, and the problems of the types.
    #[cfg(not(target_family = "wasm"))]
    fn crd(&self) -> (serde_json::Value, Vec<String>);
}

impl<Spec, Status> Reconciler for Plugin<Spec, Status>
where
    Spec: DeserializeOwned + JsonSchema + 'static,
    Status: Serialize + DeserializeOwned + JsonSchema,
{
    fn describe(&self, name: &str, version: &str, crd: &str) -> wit::Description {
        wit::Description {
            name: name.to_owned(),
            version: version.to_owned(),
            parent: self.parent.into(),
            also: self.also.iter().copied().map(wit::Kind::from).collect(),
            makes: self.makes.iter().copied().map(wit::Kind::from).collect(),
            reads: self.reads.iter().copied().map(wit::Kind::from).collect(),
            finalizer: self.cleanup.is_some() || self.deletes_in_order,
            crd: (!crd.is_empty()).then(|| crd.to_owned()),
            versions: self.served(),
            defaults: self.default.is_some(),
            validates: self.validate.is_some(),
        }
    }

    fn validate(&self, parent: &str, old_parent: Option<&str>) -> Vec<FieldError> {
        let Some(validate) = self.validate else {
            return Vec::new();
        };
        // One that does not match the types is about to be replaced by one that may.
        let old_parent = old_parent.and_then(|old| Parent::from_text(old).ok());
        match Parent::from_text(parent) {
            Ok(parent) => validate(&parent, old_parent.as_ref()),
            Err(error) => vec![error],
        }
    }

    fn reconcile(&self, request: wit::Request) -> Result<wit::Response, Failure> {
        // Not dropped: the instance and its memory end with this call.
        let request = ManuallyDrop::new(Request::from_wit(request)?);
        Ok((self.reconcile)(&request)?.into_wit(&request.children))
    }

    fn cleanup(&self, request: wit::Request) -> Result<wit::Response, Failure> {
        // The host calls this only for a plugin with a finalizer. The compiler omits the rest from others.
        assert!(
            self.cleanup.is_some() || self.deletes_in_order,
            "the plugin has no cleanup"
        );
        let done = Response::<Status>::done();
        let Some(cleanup) = self.cleanup else {
            return Ok(done.into_wit(&[]));
        };
        match Request::from_wit(request).map(ManuallyDrop::new) {
            Ok(request) => Ok(cleanup(&request)?.into_wit(&[])),
            Err(Failure::Invalid(invalid)) => {
                let why = ". The plugin cannot read the resource, so its cleanup did not run";
                let event = Event::warning("CleanupSkipped", invalid.message + why);
                Ok(done.event(event).into_wit(&[]))
            }
            Err(failure) => Err(failure),
        }
    }

    fn convert(&self, api_version: &str, objects: &[String]) -> Vec<Result<String, String>> {
        // The host calls this only for a plugin with several versions. The compiler omits the rest from others.
        if self.versions.is_empty() {
            std::process::abort();
        }
        let (own, versions) = (self.parent.api_version, self.versions);
        let convert = |object: &String| convert_object(own, versions, api_version, object);
        objects.iter().map(convert).collect()
    }

    fn default(&self, parent: &str) -> Result<String, Failure> {
        match self.default {
            Some(default) => default(parent),
            // As above.
            None => std::process::abort(),
        }
    }

    #[cfg(not(target_family = "wasm"))]
    fn crd(&self) -> (serde_json::Value, Vec<String>) {
        self.crd.generate::<Spec, Status>(self.parent, self.versions)
    }
}

impl<Spec: 'static, Status> Plugin<Spec, Status> {
    /// Returns the names of all versions; empty when there is only the plugin's own.
    fn served(&self) -> Vec<String> {
        if self.versions.is_empty() {
            return Vec::new();
        }
        let others = self.versions.iter().map(|version| version.name);
        let all = others.chain([version_of(self.parent.api_version)]);
        all.map(str::to_owned).collect()
    }
}

/// Defaults that need code.
pub trait Defaults {
    /// Sets the fields that the user left out. Called again, it must change nothing.
    fn set(&mut self);
}

/// Sets the defaults, and nothing else: fields that the type does not know stay as they are.
fn default<Spec: Defaults + Serialize + DeserializeOwned>(parent: &str) -> Result<String, Failure> {
    let mut given = object::parse(parent)["spec"].take();
    if given.is_null() {
        given = serde_json::Value::Object(serde_json::Map::new());
    }
    // Validation reports a spec that does not match.
    let Ok(mut spec) = Spec::deserialize(&given) else {
        return Ok(given.to_string());
    };
    let before = value_of(&spec);
    spec.set();
    let mut changes = serde_json::Map::new();
    differences("", Some(&before), Some(&value_of(&spec)), &mut changes);
    for (path, change) in &changes {
        match change.get("is") {
            Some(value) => set(&mut given, path, value.clone()),
            None => remove(&mut given, path),
        }
    }
    Ok(given.to_string())
}

/// The trait that `register!` implements.
#[doc(hidden)]
pub trait Registered {
    const NAME: &'static str;
    const VERSION: &'static str;
    /// The text of the CustomResourceDefinition.
    const CRD: &'static str;

    fn plugin() -> impl Reconciler;
}

impl<R: Registered> Guest for R {
    fn describe() -> wit::Description {
        R::plugin().describe(R::NAME, R::VERSION, R::CRD)
    }

    fn validate(parent: String, old_parent: Option<String>) -> Vec<FieldError> {
        R::plugin().validate(&parent, old_parent.as_deref())
    }

    fn reconcile(request: wit::Request) -> Result<wit::Response, Failure> {
        R::plugin().reconcile(request)
    }

    fn cleanup(request: wit::Request) -> Result<wit::Response, Failure> {
        R::plugin().cleanup(request)
    }

    fn convert(api_version: String, objects: Vec<String>) -> Vec<Result<String, String>> {
        R::plugin().convert(&api_version, &objects)
    }

    fn default(parent: String) -> Result<String, Failure> {
        R::plugin().default(&parent)
    }
}

impl From<Kind> for wit::Kind {
    fn from(kind: Kind) -> Self {
        Self {
            api_version: kind.api_version.to_owned(),
            kind: kind.kind.to_owned(),
        }
    }
}
