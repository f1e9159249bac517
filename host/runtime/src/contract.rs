//! The records of the plugin contract, as the host sees them: the Rust side of `wit/types.wit`.
//!
//! One set of types serves both binary forms. A component gets them as WIT records with the Kubernetes
//! objects as JSON text; a WASI command gets [`CommandInput`] as one JSON document on standard input and
//! answers with [`CommandOutput`]. Field names in JSON are in camelCase.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::DynamicObject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A kind as it stands in a manifest, such as `apps/v1` and `Deployment`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Kind {
    /// `v1` or `group/version`.
    pub api_version: String,
    /// The kind, such as `Deployment`.
    pub kind: String,
}

impl Kind {
    /// The API group; empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.api_version, self.kind)
    }
}

/// What a plugin says about itself, asked once when it is loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Description {
    /// The version of the contract that the plugin is made for. Since 0.2.0; absent: 0.1.0. A component says it in the name
    /// of its export.
    #[serde(default = "first_version")]
    pub contract: ContractVersion,
    /// A DNS label, such as `echo`.
    pub name: String,
    /// The plugin's own version, such as `1.4.0`.
    pub version: String,
    /// The kind of the custom resource that it reconciles.
    pub parent: Kind,
    /// The kinds of the children that it may ask for.
    pub makes: Vec<Kind>,
    /// The kinds that it may name in a [`Need`].
    #[serde(default)]
    pub reads: Vec<Kind>,
    /// Whether `cleanup` has work to do before a parent may go.
    #[serde(default)]
    pub finalizer: bool,
    /// The CustomResourceDefinition of the parent, generated from the plugin's types.
    #[serde(default)]
    pub crd: Option<Value>,
}

fn first_version() -> ContractVersion {
    ContractVersion::FIRST
}

/// All that a plugin knows in one call.
///
/// The objects are shared with the host's caches and serialized when the call is made.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// The custom resource, without `metadata.managedFields`.
    #[schemars(with = "Map<String, Value>")]
    pub parent: Arc<DynamicObject>,
    /// What this parent owns in the cluster, sorted by API version, kind, namespace and name.
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub children: Vec<Arc<DynamicObject>>,
    /// The answers to the needs of the last response.
    pub related: Vec<Related>,
    /// The host's clock, UTC, whole seconds.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub now: Timestamp,
    /// The W3C `traceparent` of the span around this call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Whether the parent's namespace is being deleted: nothing can be created there any more, and a cleanup must do
    /// without. Since 0.2.0; absent: no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub namespace_terminating: bool,
}

/// The objects that one need selected.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Related {
    /// The `id` of the need.
    pub id: String,
    /// Sorted by namespace and name; empty when there is none.
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub objects: Vec<Arc<DynamicObject>>,
}

/// What should be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Response {
    /// Every child that should exist, each whole. Not yet checked against the policy.
    pub children: Vec<Value>,
    /// Children that stay as they are: neither applied nor deleted in this pass.
    pub keep: Vec<ObjectRef>,
    /// Secrets whose values the host makes, once.
    pub generate: Vec<GeneratedSecret>,
    /// The parent's whole status but for `conditions` and `observedGeneration`; absent leaves it as it is.
    pub status: Option<Map<String, Value>>,
    /// Conditions beside the host's own `Reconciling` and `Stalled`; a `Ready` replaces the host's.
    pub conditions: Vec<Condition>,
    /// Events on the parent.
    pub events: Vec<Event>,
    /// Reconcile again after so many milliseconds.
    pub requeue_after_ms: Option<u64>,
    /// Objects to read before the rest of this response counts.
    pub needs: Vec<Need>,
}

/// What `cleanup` answers; it goes on being called until it says `done`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CleanupResponse {
    /// The parent may go.
    pub done: bool,
    /// Applied while the parent is being deleted. Children that are not named stay.
    pub children: Vec<Value>,
    /// As in [`Response::status`].
    pub status: Option<Map<String, Value>>,
    /// As in [`Response::conditions`].
    pub conditions: Vec<Condition>,
    /// As in [`Response::events`].
    pub events: Vec<Event>,
    /// As in [`Response::requeue_after_ms`].
    pub requeue_after_ms: Option<u64>,
    /// As in [`Response::needs`].
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
    /// Absent: the parent's own namespace, or none for a cluster-scoped kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The object's name.
    pub name: String,
}

/// A Secret made by the host from the operating system's randomness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GeneratedSecret {
    /// The Secret's name; its namespace is the parent's.
    pub name: String,
    /// The keys it must hold.
    pub entries: Vec<GeneratedValue>,
}

/// One key of a generated Secret: drawn when the Secret lacks it, never changed after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GeneratedValue {
    /// The key in the Secret's data.
    pub key: String,
    /// How many characters, 8 to 1024.
    #[schemars(range(min = 8, max = 1024))]
    pub length: u32,
    /// The characters to draw from, at least 2; absent: letters and digits.
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
    /// It cannot be told.
    Unknown,
}

/// A `metav1.Condition` without what the host adds: `lastTransitionTime` and `observedGeneration`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Condition {
    /// CamelCase, such as `Ready`.
    #[serde(rename = "type")]
    pub type_: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// CamelCase, for machines.
    pub reason: String,
    /// A sentence, for people.
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
    /// CamelCase, such as `ScaledDown`.
    pub reason: String,
    /// A sentence, for people.
    pub message: String,
}

/// Objects to read: one by name, or those that a label selector picks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Need {
    /// Chosen by the plugin, unique in the response.
    pub id: String,
    /// `v1` or `group/version`.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// Absent: the parent's own namespace, or none for a cluster-scoped kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Absent: every object that the selector picks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// As in `kubectl get -l`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,
}

/// A failure that the plugin itself reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Failure {
    /// The user must change the resource: nothing is tried again until it changes.
    #[serde(rename_all = "camelCase")]
    Invalid {
        /// CamelCase reason of the condition and the Event; absent: `InvalidSpec`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// What is wrong and what to change.
        message: String,
    },
    /// Something is not there yet or failed in passing: tried again.
    #[serde(rename_all = "camelCase")]
    Retry {
        /// What is missing or failed.
        message: String,
        /// Try again after so many milliseconds, in place of the host's back-off.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after_ms: Option<u64>,
    },
}

/// What a WASI command reads from standard input.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandInput {
    /// The version of the contract that this document is written in: the one that the plugin is made for. It says which
    /// that is when it is asked to describe itself, and so that question is always of 0.1.0.
    pub contract: ContractVersion,
    /// Which of the plugin's functions is called.
    pub call: Export,
    /// Absent when `call` is `describe`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Arc<Request>>,
}

/// A function that a plugin exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Export {
    /// What this plugin is.
    Describe,
    /// From parent and children to desired children and status.
    Reconcile,
    /// Before a finalizer is released.
    Cleanup,
}

impl Export {
    /// The name as it stands in the WIT interface.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Describe => "describe",
            Self::Reconcile => "reconcile",
            Self::Cleanup => "cleanup",
        }
    }
}

impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a WASI command writes to standard output: one field, named for what it answers.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum CommandOutput {
    /// The answer to `describe`.
    Description(Description),
    /// The answer to `reconcile`.
    Response(Box<Response>),
    /// The answer to `cleanup`.
    Cleanup(Box<CleanupResponse>),
    /// The plugin cannot answer, and says why.
    Failure(Failure),
}

/// Whether a text is a DNS label, as RFC 1123 and Kubernetes have it.
#[must_use]
pub fn is_dns_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// A version of the contract: that of the WIT package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ContractVersion {
    /// The first.
    #[serde(rename = "0.1.0")]
    V0_1,
    /// The request says `namespaceTerminating`, and the description of a command says `contract`.
    #[serde(rename = "0.2.0")]
    V0_2,
}

impl ContractVersion {
    /// All that a plugin may be made for.
    pub const ALL: [Self; 2] = [Self::FIRST, Self::PRESENT];
    /// The one in which every command is asked to describe itself, and that it is made for unless it says otherwise.
    pub const FIRST: Self = Self::V0_1;
    /// The one in `wit/`.
    pub const PRESENT: Self = Self::V0_2;

    /// As it stands in the WIT package.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_1 => "0.1.0",
            Self::V0_2 => "0.2.0",
        }
    }

    /// The version of that text; `None` when this host does not speak it.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// The request as a command of this version reads it.
    pub(crate) fn request(self, request: Request) -> Request {
        match self {
            // What is false is not written.
            Self::V0_1 => Request {
                namespace_terminating: false,
                ..request
            },
            Self::V0_2 => request,
        }
    }
}

impl fmt::Display for ContractVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
