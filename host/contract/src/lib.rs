//! The records of the plugin contract: the Rust counterpart of `wit/types.wit`.
//!
//! One set of types serves both binary forms. A component receives them as WIT records with the Kubernetes
//! objects as JSON text. A WASI command receives [`CommandInput`] as one JSON document on standard input and
//! answers with [`CommandOutput`]. Field names in JSON are in camelCase.
//!
//! ```
//! use operator_host_contract::CommandOutput;
//!
//! let answer = r#"{"response": {"children": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}]}}"#;
//! let CommandOutput::Response(response) = serde_json::from_str(answer)? else {
//!     panic!("another answer");
//! };
//! assert_eq!(response.children.len(), 1);
//! # Ok::<(), serde_json::Error>(())
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::DynamicObject;
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// An API version and kind, as in a manifest, such as `apps/v1` and `Deployment`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Kind {
    /// `v1` or `group/version`.
    pub api_version: String,
    /// The kind, such as `Deployment`.
    pub kind: String,
}

impl Kind {
    /// Returns the kind of this name in this version of a group.
    #[must_use]
    pub fn new(api_version: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            api_version: api_version.into(),
            kind: kind.into(),
        }
    }

    /// Returns the API group; empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Returns the version without the group, such as `v1`.
    #[must_use]
    pub fn version(&self) -> &str {
        self.api_version
            .split_once('/')
            .map_or(&self.api_version, |(_, version)| version)
    }

    /// Reports whether Kubernetes can have such a kind: a name of letters and digits, and an API version of lower-case names.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let (name, group) = (&self.kind, self.group());
        (1..=63).contains(&name.len())
            && name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
            && is_dns_label(self.version())
            && group.len() <= 253
            && (group.is_empty() != self.api_version.contains('/'))
            && (group.is_empty() || group.split('.').all(is_dns_label))
    }

    /// Reports whether both are the same kind, maybe in different versions.
    #[must_use]
    pub fn is_version_of(&self, other: &Self) -> bool {
        self.kind == other.kind && self.group() == other.group()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.api_version, self.kind)
    }
}

/// A plugin's description of itself. The host calls `describe` once when it loads the plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Description {
    /// The version of the contract that the plugin is built for. The name of a
    /// component's export contains it.
    pub contract: ContractVersion,
    /// A DNS label, such as `echo`.
    pub name: String,
    /// The plugin's own version, such as `1.4.0`.
    pub version: String,
    /// The kind of the custom resource that it reconciles, or of the objects that it decorates.
    pub parent: Kind,
    /// Other kinds that it can have as parents in the same way, for Controllers that decorate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Kind>,
    /// The kinds of the children that the plugin creates.
    #[serde(default)]
    pub makes: Vec<Kind>,
    /// The kinds that the plugin may request in a [`Need`].
    #[serde(default)]
    pub reads: Vec<Kind>,
    /// Whether `cleanup` must run before a parent may be deleted.
    #[serde(default)]
    pub finalizer: bool,
    /// The CustomResourceDefinition of the parent, generated from the plugin's types.
    #[serde(default)]
    #[schemars(with = "Option<Value>")]
    pub crd: Option<Definition>,
    /// The versions of the parent's kind that `convert` converts between, such as `v1beta1` and `v1`, each once, with
    /// the parent's own. Empty: there is only that one, and `convert` is not called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<String>,
    /// Whether `default` must run before a parent is stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub defaults: bool,
    /// Whether `validate` must run before a parent is stored, and before it is reconciled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub validates: bool,
}

impl Description {
    /// Returns the name and the version, such as `echo 1.4.0`.
    #[must_use]
    pub fn name_and_version(&self) -> String {
        format!("{} {}", self.name, self.version)
    }

    /// Reports whether `convert` converts between several versions of the parent's kind.
    #[must_use]
    pub fn converts(&self) -> bool {
        self.versions.len() > 1
    }

    /// Returns the CustomResourceDefinition as a tree.
    #[must_use]
    pub fn definition(&self) -> Option<Value> {
        self.crd.as_ref().map(Definition::value)
    }
}

/// A CustomResourceDefinition as JSON text, because it is rarely read, and takes several times the memory as a tree. Two
/// with the same contents are equal.
///
/// ```
/// use operator_host_contract::Definition;
///
/// let definition: Definition = serde_json::from_str(r#"{ "spec": {}, "kind": "CustomResourceDefinition" }"#)?;
/// assert_eq!(definition, serde_json::from_str(r#"{"kind":"CustomResourceDefinition","spec":{}}"#)?);
/// assert_eq!(definition.value()["kind"], "CustomResourceDefinition");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition(Box<str>);

impl Definition {
    /// Returns the definition as a tree.
    #[must_use]
    pub fn value(&self) -> Value {
        // The text is the serialization of a tree.
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

impl From<Value> for Definition {
    fn from(value: Value) -> Self {
        Self(value.to_string().into())
    }
}

impl Serialize for Definition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Definition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from)
    }
}

/// The complete input of one call.
///
/// The objects are shared with the host's caches and are serialized when the call is made.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// The custom resource, without `metadata.managedFields`.
    #[schemars(with = "Map<String, Value>")]
    pub parent: Arc<DynamicObject>,
    /// The objects that this parent owns in the cluster, sorted by API version, kind, namespace and name.
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub children: Vec<Arc<DynamicObject>>,
    /// The results of the needs in the last response.
    pub related: Vec<Related>,
    /// The host's clock in UTC, in whole seconds that have passed.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub now: Timestamp,
    /// The W3C `traceparent` of the span around this call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Whether the parent's namespace is being deleted. No object can be created there any more, also not by
    /// a cleanup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub namespace_terminating: bool,
}

impl Request {
    /// Returns the request about a parent at a time of the host's clock. Nothing else is said in it.
    #[must_use]
    pub const fn about(
        parent: Arc<DynamicObject>,
        children: Vec<Arc<DynamicObject>>,
        now: Timestamp,
    ) -> Self {
        Self {
            parent,
            children,
            related: Vec::new(),
            now,
            traceparent: None,
            namespace_terminating: false,
        }
    }

    /// Returns the question with this request: that of `cleanup`, or else that of `reconcile`.
    #[must_use]
    pub fn asked_of(self, export: Export) -> Asked {
        match export {
            Export::Cleanup => Asked::Cleanup(Arc::new(self)),
            _ => Asked::Reconcile(Arc::new(self)),
        }
    }
}

/// The objects that one need selected.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Related {
    /// The `id` of the need.
    pub id: String,
    /// The objects, sorted by namespace and name; can be empty.
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub objects: Vec<Arc<DynamicObject>>,
}

/// The desired state: the response of `reconcile` and of `cleanup`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Response {
    /// For `cleanup`, which is called again until this is true: whether the parent may be deleted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub done: bool,
    /// Every child that should exist, each complete. Not yet checked against the policy. `cleanup` deletes nothing: children
    /// that it does not list stay.
    pub children: Vec<Value>,
    /// Children that stay unchanged: neither applied nor deleted in this reconcile. Without effect in `cleanup`.
    pub keep: Vec<ObjectRef>,
    /// Secrets whose values the host generates once. A child of the same name is the rest of such a Secret: its
    /// labels, annotations, type and other entries. Without effect in `cleanup`.
    pub generate: Vec<GeneratedSecret>,
    /// The complete status of the parent except `conditions` and `observedGeneration`; absent: the status is
    /// not changed.
    pub status: Option<Map<String, Value>>,
    /// The fields that the parent should have. Only for a Controller that decorates, below the paths of its `fields`. What an
    /// earlier answer named and this one does not is taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Map<String, Value>>,
    /// Conditions of the plugin's own. One of type `Ready` replaces the host's. Those that only the host sets have no effect.
    pub conditions: Vec<Condition>,
    /// Events on the parent.
    pub events: Vec<Event>,
    /// Milliseconds after which to reconcile again.
    pub requeue_after_ms: Option<u64>,
    /// The time, by the host's clock, at which to reconcile again; without effect if it is not after the request's `now`.
    /// With both, the earlier one counts.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub requeue_at: Option<Timestamp>,
    /// Objects to read before the rest of this response takes effect.
    pub needs: Vec<Need>,
}

/// A reference to one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectRef {
    /// `v1` or `group/version`.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// The namespace; absent: the parent's own namespace, or none for a cluster-scoped kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The object's name.
    pub name: String,
}

/// A Secret that the host generates from the operating system's randomness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GeneratedSecret {
    /// The Secret's name; its namespace is the parent's.
    pub name: String,
    /// The keys that the Secret must contain.
    #[serde(default)]
    pub entries: Vec<GeneratedValue>,
}

/// One key of a generated Secret: generated when the Secret lacks it, and never changed afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GeneratedValue {
    /// The key in the Secret's data.
    pub key: String,
    /// The number of characters, 8 to 1024.
    #[schemars(range(min = 8, max = 1024))]
    pub length: u32,
    /// The characters to choose from, at least 2; absent: letters and digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alphabet: Option<String>,
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// The status of the condition cannot be determined.
    Unknown,
}

/// A `metav1.Condition` without the fields that the host adds: `lastTransitionTime` and `observedGeneration`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Condition {
    /// CamelCase, such as `Ready`.
    #[serde(rename = "type")]
    pub type_: String,
    /// The status of the condition.
    pub status: ConditionStatus,
    /// A machine-readable reason in CamelCase.
    pub reason: String,
    /// A human-readable message.
    #[serde(default)]
    pub message: String,
}

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EventType {
    /// For information.
    Normal,
    /// Something needs attention.
    Warning,
}

/// An Event on the parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Event {
    /// Normal or Warning.
    #[serde(rename = "type")]
    pub type_: EventType,
    /// A machine-readable reason in CamelCase, such as `ScaledDown`.
    pub reason: String,
    /// A human-readable message.
    pub message: String,
}

/// Objects to read: by name, or those that match a label selector, in one namespace or in several.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Need {
    /// An ID chosen by the plugin, unique in the response.
    pub id: String,
    /// `v1` or `group/version`.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// The namespace; absent: the parent's own namespace, or none for a cluster-scoped kind; `*`: every namespace that the
    /// controller may read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// In place of `namespace`: a label selector of namespaces, as in `kubectl get -l`. Those count that the controller may read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<String>,
    /// The name of the object; absent: every object that matches the selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// In place of `name`: several. Empty: every object that matches the selector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// A label selector, as in `kubectl get -l`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,
}

impl Need {
    /// The namespace that means every namespace that the controller may read.
    pub const EVERYWHERE: &str = "*";

    /// Reports whether it is about every namespace that the controller may read, or those of them that a selector picks.
    #[must_use]
    pub fn is_everywhere(&self) -> bool {
        self.namespace_selector.is_some() || self.namespace.as_deref() == Some(Self::EVERYWHERE)
    }

    /// Returns the names of its objects; `None`: every object that the label selector picks.
    #[must_use]
    pub fn all_names(&self) -> Option<BTreeSet<&str>> {
        let names: BTreeSet<_> = self.name.iter().chain(&self.names).map(String::as_str).collect();
        (!names.is_empty()).then_some(names)
    }
}

/// Something in a parent that its user must change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FieldError {
    /// Where it is, such as `spec.rules[0].host`.
    pub path: String,
    /// The problem, and what to change, such as `must be at most 10`.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// A failure that the plugin reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Failure {
    /// The user must change the resource. The host does not retry by itself.
    #[serde(rename_all = "camelCase")]
    Invalid {
        /// CamelCase reason of the condition and the Event; absent: `InvalidSpec`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The problem, and what to change.
        message: String,
        /// See [`Response::status`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<Map<String, Value>>,
        /// Conditions to add to those of the parent. The host's own report the failure.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        conditions: Vec<Condition>,
    },
    /// Something does not exist yet, or failed temporarily. The host retries.
    #[serde(rename_all = "camelCase")]
    Retry {
        /// What is missing or failed.
        message: String,
        /// Milliseconds until the retry, instead of the host's back-off.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after_ms: Option<u64>,
        /// See [`Response::status`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<Map<String, Value>>,
        /// Conditions to add to those of the parent. The host's own report the failure.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        conditions: Vec<Condition>,
    },
}

impl Failure {
    /// Returns the plugin's message.
    #[must_use]
    pub fn message(&self) -> &str {
        let (Self::Invalid { message, .. } | Self::Retry { message, .. }) = self;
        message
    }

    /// Returns the status that the parent shows; `None`: it does not change.
    #[must_use]
    pub fn status(&self) -> Option<&Map<String, Value>> {
        let (Self::Invalid { status, .. } | Self::Retry { status, .. }) = self;
        status.as_ref()
    }

    /// Returns the conditions to add to those of the parent.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        let (Self::Invalid { conditions, .. } | Self::Retry { conditions, .. }) = self;
        conditions
    }
}

/// The document that a WASI command reads from standard input.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandInput {
    /// The version of the contract that this document follows.
    pub contract: ContractVersion,
    /// The function of the plugin to call.
    pub call: Export,
    /// The request of `reconcile` and `cleanup`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Arc<Request>>,
    /// The objects for `convert`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversion: Option<Arc<Conversion>>,
    /// The parent for `default` and `validate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Map<String, Value>>")]
    pub parent: Option<Json>,
    /// For `validate`: the stored parent, if `parent` is about to replace it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Map<String, Value>>")]
    pub old_parent: Option<Json>,
}

/// A Kubernetes object as JSON text that the host does not decode.
pub type Json = Arc<RawValue>;

/// Objects of the parent's kind to convert.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Conversion {
    /// The version to convert to, such as `example.com/v1`.
    pub api_version: String,
    /// The objects, all of one other version, without `metadata.managedFields`.
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub objects: Vec<Json>,
}

/// The result for one object of a [`Conversion`].
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Converted {
    /// The object in the requested version.
    Object(#[schemars(with = "Map<String, Value>")] Json),
    /// Why it cannot be converted.
    Error(String),
}

/// A function that a plugin exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Export {
    /// Returns the plugin's description.
    Describe,
    /// Returns what the user must change in the parent.
    Validate,
    /// Computes the desired children and status from the parent and its children.
    Reconcile,
    /// Runs before the finalizer is removed.
    Cleanup,
    /// Converts objects from one version to another.
    Convert,
    /// Returns the spec with defaults.
    Default,
}

impl Export {
    /// Returns the name in the WIT interface.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Describe => "describe",
            Self::Validate => "validate",
            Self::Reconcile => "reconcile",
            Self::Cleanup => "cleanup",
            Self::Convert => "convert",
            Self::Default => "default",
        }
    }
}

impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a plugin is asked: a variant for each [`Export`].
#[derive(Clone, Debug)]
pub enum Asked {
    /// What it is.
    Describe,
    /// What is wrong with a parent, and with the stored one that it would replace.
    Validate(Json, Option<Json>),
    /// The desired state.
    Reconcile(Arc<Request>),
    /// What to do before the finalizer is removed.
    Cleanup(Arc<Request>),
    /// Objects in another version.
    Convert(Arc<Conversion>),
    /// The spec of a parent with defaults.
    Default(Json),
}

impl Asked {
    /// Returns the export that answers.
    #[must_use]
    pub const fn export(&self) -> Export {
        match self {
            Self::Describe => Export::Describe,
            Self::Validate(..) => Export::Validate,
            Self::Reconcile(_) => Export::Reconcile,
            Self::Cleanup(_) => Export::Cleanup,
            Self::Convert(_) => Export::Convert,
            Self::Default(_) => Export::Default,
        }
    }
}

impl From<Asked> for CommandInput {
    fn from(asked: Asked) -> Self {
        let mut input = Self {
            contract: ContractVersion::V1,
            call: asked.export(),
            request: None,
            conversion: None,
            parent: None,
            old_parent: None,
        };
        match asked {
            Asked::Describe => {}
            Asked::Reconcile(request) | Asked::Cleanup(request) => input.request = Some(request),
            Asked::Convert(conversion) => input.conversion = Some(conversion),
            Asked::Default(parent) => input.parent = Some(parent),
            Asked::Validate(parent, old_parent) => {
                (input.parent, input.old_parent) = (Some(parent), old_parent);
            }
        }
        input
    }
}

/// The document that a WASI command writes to standard output: one field, named after the result.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum CommandOutput {
    /// The result of `describe`.
    Description(Description),
    /// The result of `validate`; empty: the parent is valid.
    Validated(Vec<FieldError>),
    /// The result of `reconcile` and of `cleanup`.
    Response(#[serde(deserialize_with = "from_object")] Box<Response>),
    /// The results of `convert`: as many as objects, in the same order.
    Converted(Vec<Converted>),
    /// The result of `default`: the spec.
    Defaulted(Map<String, Value>),
    /// The plugin cannot answer, and reports why.
    Failure(Failure),
}

/// Reads a record from an object. Serde would also take a list, as the fields in their order: an empty one, which some languages
/// write for an empty map, as a record without a field.
fn from_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct Fields<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(fields))
        }
    }
    deserializer.deserialize_map(Fields(PhantomData))
}

/// Whether a text is a DNS label, as defined by RFC 1123 and Kubernetes.
#[must_use]
pub fn is_dns_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// The version of the contract: the version of the WIT package. Every other one is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContractVersion {
    /// The only version.
    #[default]
    #[serde(rename = "1.0.0")]
    V1,
}

impl ContractVersion {
    /// Returns the version as written in the WIT package.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "1.0.0",
        }
    }
}

impl fmt::Display for ContractVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
