//! Names of objects, and the labels and annotations by which the host recognizes its own objects.

mod not_served;
mod provenance;
pub mod secret;
mod selector;

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference};
use kube::ResourceExt;
use kube::core::{DynamicObject, ListMeta};
use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

pub use self::not_served::NotServed;
pub use self::not_served::is_built_in;
pub use self::provenance::{PROVENANCE_ANNOTATION, Provenance, made_at};
pub use self::selector::Selector;
use crate::digest::hex;
use crate::managed_fields::{is_apply_of, is_only_status};
use crate::text::shorten;
use operator_host_contract::Kind;

/// What the names of all field managers of controllers begin with.
pub const FIELD_MANAGER_PREFIX: &str = "operator-host/";

/// Label of every child: the name of the controller that created it.
pub const CONTROLLER_LABEL: &str = "operator-host.dev/controller";
/// Label of a Secret whose values the host generated.
pub const GENERATED_LABEL: &str = "operator-host.dev/generated";
/// Annotation of every child: its parent, as `namespace/name` or `name`.
pub const PARENT_ANNOTATION: &str = "operator-host.dev/parent";
/// Label of the ConfigMaps that `pack` made of one plugin: the name of the first of them.
pub const PACK_LABEL: &str = "operator-host.dev/plugin";
/// Annotation of an Event and of a ConfigMap that `pack` made: the digest of the plugin.
pub const DIGEST_ANNOTATION: &str = "operator-host.dev/plugin-digest";
/// Annotation of every child: a hash of the last applied body, without the [`Provenance`].
pub const APPLIED_ANNOTATION: &str = "operator-host.dev/applied";
/// Annotation of a child, from the plugin: the children that come before it, as `Kind.group/name`, separated by commas.
pub const AFTER_ANNOTATION: &str = "operator-host.dev/after";
/// Annotation of a child, from the plugin: how it is changed, as words such as `one,replace`.
pub const UPDATE_ANNOTATION: &str = "operator-host.dev/update";
/// Annotation of a child, from the plugin: what becomes of it when it is no longer wanted.
pub const ON_REMOVAL_ANNOTATION: &str = "operator-host.dev/on-removal";
/// The value of [`ON_REMOVAL_ANNOTATION`] of a child that nobody takes over; an External with it goes without a request.
pub const ORPHAN: &str = "orphan";
/// Annotation of a parent that is being deleted: its cleanup is done, and its children are deleted in order. The value is
/// the controller's finalizer and the parent's UID.
pub const CLEANED_UP_ANNOTATION: &str = "operator-host.dev/cleaned-up";
/// Annotation of a child, which the plugin sets: the fields that the host leaves as they are, such as `spec.replicas`,
/// separated by commas.
pub const LEAVE_ANNOTATION: &str = "operator-host.dev/leave";
/// Annotation of a retained child: comma-separated names of the Secrets that were generated beside it. It outlives the
/// parent, and the parent's record of them.
pub const BESIDE_ANNOTATION: &str = "operator-host.dev/generated-beside";
/// Annotation of a parent: with the value `true`, the host does not touch it or its children.
pub const PAUSED_ANNOTATION: &str = "operator-host.dev/paused";
/// Maximum number of levels in a field of an object that is read. In the request of a plugin the field is in some more, and
/// `serde_json` refuses 128.
pub const MAX_DEPTH: usize = 120;
/// Annotation of a parent kind's CustomResourceDefinition: the version with this digest takes over whatever proving
/// finds.
pub const PROMOTE_ANNOTATION: &str = "operator-host.dev/promote";
/// Annotation of a parent kind's CustomResourceDefinition: only the version with this digest may be live.
pub const PIN_ANNOTATION: &str = "operator-host.dev/pin";
/// End of the prefix of an annotation of a parent kind's CustomResourceDefinition: which version of a controller's plugin is
/// live.
const LIVE_DOMAIN: &str = ".live.operator-host.dev";

/// Annotation of a CustomResourceDefinition that the host has installed: the version of the plugin that it is from.
pub const DEFINITION_VERSION_ANNOTATION: &str = "operator-host.dev/definition-version";

/// Reports whether an object could not be read: then only its metadata are known. A cache that does not keep every
/// object of the kind knows this only of objects with the label of a controller.
pub fn is_unreadable(object: &DynamicObject) -> bool {
    object.data.is_null()
}

/// Returns the message about what cannot be read.
pub fn unreadable(what: &str) -> String {
    format!(
        "{what} is nested deeper than {MAX_DEPTH} levels, which the host does not read: make it less deep"
    )
}

/// Reports whether a value has more levels.
pub fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| is_deeper(item, levels - 1)),
        Value::Object(fields) => levels == 0 || fields.values().any(|field| is_deeper(field, levels - 1)),
        _ => false,
    }
}

/// Removes the members that are null: in what a plugin answers, null means absent. Generators of many languages write it for
/// every field without a value.
pub fn remove_nulls(fields: &mut Map<String, Value>) {
    fn within(value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(within),
            Value::Object(fields) => remove_nulls(fields),
            _ => {}
        }
    }
    fields.retain(|_, value| !value.is_null());
    fields.values_mut().for_each(within);
}

/// Returns the kind of an object, with empty texts where the object lacks it.
pub fn kind_of(object: &Value) -> Kind {
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    Kind::new(text("apiVersion"), text("kind"))
}

/// Maximum number of characters of a name in an object. Requests are YAML, which limits a key to 1,024 with its quotes.
const MAX_KEY: usize = 1000;

/// Returns what is wrong with the first key that is too long to be sent.
pub fn long_key(fields: &Map<String, Value>) -> Option<String> {
    fn within(value: &Value) -> Option<String> {
        match value {
            Value::Array(items) => items.iter().find_map(within),
            Value::Object(fields) => long_key(fields),
            _ => None,
        }
    }
    let is_long = |key: &str| {
        let text = || Value::from(key).to_string();
        key.len() > MAX_KEY / 6 && text().chars().count() > MAX_KEY + "\"\"".len()
    };
    fields.iter().find_map(|(key, value)| match is_long(key) {
        true => Some(format!(
            "the key that begins with {:?} has more than {MAX_KEY} characters: make it shorter",
            shorten(key, 40)
        )),
        false => within(value),
    })
}

/// Joins the first few texts for a message, and counts the others.
pub fn first_few<T: ToString>(all: impl IntoIterator<Item = T>, shown: usize, separator: &str) -> String {
    let mut all = all.into_iter();
    let mut texts: Vec<_> = all.by_ref().take(shown).map(|one| one.to_string()).collect();
    match all.count() {
        0 => {}
        others => texts.push(format!("and {others} more")),
    }
    texts.join(separator)
}

/// Names a kind in a message. One that is not Kubernetes' own may share its name with others, so it has its group, as in
/// `Service.serving.knative.dev`.
pub fn kind_in_words<'a>(group: &str, kind: &'a str) -> Cow<'a, str> {
    match is_built_in(group) {
        true => kind.into(),
        false => format!("{kind}.{group}").into(),
    }
}

/// Names a kind, by its name or its plural, in a command of kubectl, which takes one of Kubernetes' own when several groups
/// have the name.
pub fn kind_for_kubectl(group: &str, kind: &str) -> String {
    let kind = kind.to_lowercase();
    match group {
        "" => kind,
        group => format!("{kind}.{group}"),
    }
}

/// Returns the annotation that records the live version of a controller's plugin. `installation` is a namespace, and
/// distinguishes hosts in one cluster.
pub fn live_annotation(installation: &str, controller: &str) -> String {
    format!("{installation}{LIVE_DOMAIN}/{controller}")
}

/// Returns the annotation that records which parents have a new version already, as [`live_annotation`].
pub fn stage_annotation(installation: &str, controller: &str) -> String {
    format!("{installation}.stage{LIVE_DOMAIN}/{controller}")
}

/// Returns the annotation that records which controller reconciles the kind, as [`live_annotation`].
pub fn holder_annotation(installation: &str) -> String {
    format!("{installation}.holder{LIVE_DOMAIN}/controller")
}

/// Reports whether an annotation of a definition promotes, pins or records a plugin version.
pub fn is_about_versions(annotation: &str) -> bool {
    let prefix = annotation.split_once('/').map_or("", |(prefix, _)| prefix);
    matches!(annotation, PROMOTE_ANNOTATION | PIN_ANNOTATION) || prefix.ends_with(LIVE_DOMAIN)
}

/// Returns the token of a list's next page; `None` on the last page, where it may also be empty.
pub fn next_page(list: &ListMeta) -> Option<String> {
    list.continue_.clone().filter(|token| !token.is_empty())
}

/// Namespace and name of an object, without its kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespacedName {
    /// `None` for a cluster-scoped object.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

impl NamespacedName {
    /// Creates a name; without a namespace, that of a cluster-scoped object.
    pub fn new(namespace: Option<String>, name: impl Into<String>) -> Self {
        let name = name.into();
        Self { namespace, name }
    }

    /// Returns the name of an object from the API server.
    pub fn of(object: &DynamicObject) -> Self {
        Self::new(object.metadata.namespace.clone(), object.name_any())
    }

    /// Parses `namespace/name` or `name`.
    pub fn parse(text: &str) -> Self {
        match text.split_once('/') {
            Some((namespace, name)) => Self::new(Some(namespace.to_owned()), name),
            None => Self::new(None, text),
        }
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Longer than any name that Kubernetes accepts.
const MAX_NAME: usize = 253;

/// Validates a name or a namespace from a plugin. Returns the problem, or `None` when it can be used in a request
/// path without escaping. Kubernetes has stricter rules for each kind; this check ensures that a name cannot
/// redirect a request to another object or add a query.
///
/// Source: RFC 3986, `pchar` without percent-encoding; Kubernetes, "Object Names and IDs", path segment names.
pub fn name_problem(name: &str) -> Option<String> {
    problem_of_name(name, |c| {
        c.is_ascii_alphanumeric() || "-._~:@!$&'()*+,;=".contains(c)
    })
}

fn problem_of_name(name: &str, is_fine: impl Fn(char) -> bool) -> Option<String> {
    if matches!(name, "" | "." | "..") {
        Some("it is not a valid name".to_owned())
    } else if name.len() > MAX_NAME {
        Some(format!("it has more than {MAX_NAME} characters"))
    } else {
        let wrong = name.chars().find(|c| !is_fine(*c));
        wrong.map(|c| format!("a name cannot have the character {c:?}"))
    }
}

/// Validates the name of an object, of whatever kind. Returns the problem, or `None` when it can be one part of a request
/// path, [escaped](escaped_name) there. The names of roles and bindings may have spaces, `?` and letters of any language.
///
/// Source: Kubernetes, "Object Names and IDs", path segment names.
pub fn object_name_problem(name: &str) -> Option<String> {
    problem_of_name(name, |c| !matches!(c, '/' | '%') && !c.is_control())
}

/// Escapes an object's name for a request path.
pub fn escaped_name(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                escaped.push(char::from(byte));
            }
            // Writing to a string cannot fail.
            _ => drop(write!(escaped, "%{byte:02X}")),
        }
    }
    escaped
}

/// Reports whether a text can be a key of a ConfigMap.
///
/// Source: Kubernetes, `IsConfigMapKey`.
pub fn is_config_map_key(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && text.chars().all(is_plain) && text != "." && !text.starts_with("..")
}

/// Kind and name of a child.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChildRef {
    /// The kind.
    pub kind: Kind,
    /// Namespace and name.
    pub name: NamespacedName,
}

impl ChildRef {
    /// Creates a key.
    pub const fn new(kind: Kind, name: NamespacedName) -> Self {
        Self { kind, name }
    }

    /// Returns the key of an object that contains its type.
    pub fn of(object: &DynamicObject) -> Self {
        let types = object.types.clone().unwrap_or_default();
        Self {
            kind: Kind::new(types.api_version, types.kind),
            name: NamespacedName::of(object),
        }
    }

    /// Returns the identity of the object, which is the same in every version.
    pub fn identity(&self) -> Identity {
        Identity {
            group: self.kind.group().to_owned(),
            kind: self.kind.kind.clone(),
            name: self.name.clone(),
        }
    }
}

/// The name of an object, independent of the version of its kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// The API group; empty for the core group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// Namespace and name.
    pub name: NamespacedName,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", kind_in_words(&self.group, &self.kind), self.name)
    }
}

impl fmt::Display for ChildRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = kind_in_words(self.kind.group(), &self.kind.kind);
        write!(f, "{kind} {}", self.name)
    }
}

/// Reports whether a kind is that of namespaces.
pub fn is_namespace(kind: &Kind) -> bool {
    kind.api_version == "v1" && kind.kind == "Namespace"
}

/// Returns the owner reference with `controller: true`.
pub fn controller_of(object: &DynamicObject) -> Option<&OwnerReference> {
    let mut owners = object.metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}

/// Reports whether an owner reference refers to a kind, in any of its versions.
pub fn is_reference_to(kind: &Kind, owner: &OwnerReference) -> bool {
    owner.kind == kind.kind && group_of(&owner.api_version) == kind.group()
}

/// Returns the group of an API version; empty for the core group.
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Returns the value of a label.
pub fn label<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Returns the controller whose apply of more than a status this entry is.
pub fn controller_of_entry(entry: &ManagedFieldsEntry) -> Option<&str> {
    let manager = entry.manager.as_deref()?;
    let controller = manager.strip_prefix(FIELD_MANAGER_PREFIX)?;
    (is_apply_of(entry, manager) && !is_only_status(entry)).then_some(controller)
}

/// Returns the name of the controller that made an object, as its label says. A policy at admission may remove or rewrite the
/// label: where the field managers contradict it, they are believed.
pub fn maker(object: &DynamicObject) -> Option<&str> {
    let label = label(object, CONTROLLER_LABEL);
    let entries = object.metadata.managed_fields.iter().flatten();
    let mut makers = entries.filter_map(controller_of_entry);
    match makers.next() {
        Some(first) if Some(first) != label && !makers.any(|maker| Some(maker) == label) => Some(first),
        _ => label,
    }
}

/// Returns the value of an annotation.
pub fn annotation<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Reports whether an object was deleted and waits for finalizers or its grace period.
pub fn is_terminating(object: &DynamicObject) -> bool {
    object.metadata.deletion_timestamp.is_some()
}

/// Returns the resource version as a number, which is comparable within one kind; `None` when it is not a number.
///
/// Source: Kubernetes API concepts, "Resource versions"; all known storage back ends use decimal numbers.
pub fn version(object: &DynamicObject) -> Option<u128> {
    object.metadata.resource_version.as_deref()?.parse().ok()
}

/// Removes unused fields and the values of a generated Secret.
pub fn slim(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    let is_secret = object.types.as_ref().is_none_or(|types| types.kind == "Secret");
    if is_secret
        && label(object, GENERATED_LABEL).is_some()
        && let Some(Value::Object(data)) = object.data.get_mut("data")
    {
        data.values_mut()
            .for_each(|value| *value = Value::String(String::new()));
    }
}

/// Returns a reason of at most `max` bytes as the API server accepts it in a condition: a plugin may have answered with
/// any text, and a definition that checks reasons would refuse the whole status. One that is valid stays as it is.
///
/// Source: `metav1.Condition`, the pattern `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`.
pub fn conventional_reason(text: &str, max: usize) -> String {
    let mut reason = String::new();
    let mut begins_word = false;
    for next in text.chars().skip_while(|next| !next.is_ascii_alphabetic()) {
        let is_allowed = next.is_ascii_alphanumeric() || "_,:".contains(next);
        if is_allowed && reason.len() < max {
            let next_upper = next.to_ascii_uppercase();
            reason.push(if begins_word { next_upper } else { next });
        }
        begins_word = !is_allowed;
    }
    reason.truncate(reason.trim_end_matches([',', ':']).len());
    if reason.is_empty() {
        reason.push_str(NO_REASON);
    }
    reason
}

/// The reason where a plugin has given none.
const NO_REASON: &str = "Unspecified";

/// Returns a short SHA-256 of the value's JSON text: 16 hexadecimal digits.
pub fn fingerprint(value: &impl Serialize) -> String {
    // A `Value` and a `DynamicObject` have string keys only, so serialization never fails.
    let text = serde_json::to_vec(value).unwrap_or_default();
    hex(&Sha256::digest(&text)[..8])
}

/// Returns how many bytes the value's JSON text has at least: without escapes, and one for each number. Reads no text.
pub fn least_size(fields: &Map<String, Value>) -> usize {
    fn of(value: &Value) -> usize {
        match value {
            Value::String(text) => text.len() + 2,
            Value::Array(items) => items.iter().map(of).sum(),
            Value::Object(fields) => least_size(fields),
            Value::Null | Value::Bool(_) | Value::Number(_) => 1,
        }
    }
    let sizes = fields.iter().map(|(key, value)| key.len() + 3 + of(value));
    sizes.sum::<usize>() + 1
}

/// Returns a child's manifest without the fields that the host adds.
pub fn without_host_metadata(mut child: Value) -> Value {
    let Some(metadata) = child.get_mut("metadata").and_then(Value::as_object_mut) else {
        return child;
    };
    metadata.remove("ownerReferences");
    let marks = [
        CONTROLLER_LABEL,
        PARENT_ANNOTATION,
        APPLIED_ANNOTATION,
        PROVENANCE_ANNOTATION,
        BESIDE_ANNOTATION,
    ];
    for name in ["labels", "annotations"] {
        let Some(map) = metadata.get_mut(name).and_then(Value::as_object_mut) else {
            continue;
        };
        map.retain(|key, _| !marks.contains(&key.as_str()));
        if map.is_empty() {
            metadata.remove(name);
        }
    }
    child
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_size_of_a_value_is_close_to_that_of_its_text_and_never_larger() {
        for value in [
            serde_json::json!({ "a": "b\"\n", "c": [1, null] }),
            serde_json::json!({}),
        ] {
            let size = value.to_string().len();
            let least = least_size(value.as_object().unwrap());
            assert!(least <= size && least + 12 > size, "{least} {size}");
        }
        let large = serde_json::json!({ "a": ["x".repeat(1000)] });
        assert!(least_size(large.as_object().unwrap()) > 1000);
    }

    #[test]
    fn null_means_absent_except_in_a_list() {
        let mut value =
            serde_json::json!({ "a": null, "b": { "c": null, "d": 0 }, "e": [null, { "f": null }] });
        remove_nulls(value.as_object_mut().unwrap());
        assert_eq!(value, serde_json::json!({ "b": { "d": 0 }, "e": [null, {}] }));
    }

    /// Regression: the API server refused the whole request, and quoted it.
    #[test]
    fn a_key_that_yaml_does_not_take_is_found_wherever_it_is() {
        let with = |key: &str| {
            let value = serde_json::json!({ "a": [{ key: 1 }] });
            value.as_object().and_then(long_key)
        };
        assert_eq!(with(&"k".repeat(1000)), None);
        let problem = with(&"k".repeat(1001)).unwrap();
        assert!(problem.contains("more than 1000 characters"), "{problem}");
        assert_eq!(with(&"ä".repeat(1000)), None);
        assert!(with(&"\n".repeat(501)).is_some(), "as it is written");
    }

    #[test]
    fn a_kind_that_is_not_of_kubernetes_is_named_with_its_group() {
        let named = |api_version: &str, kind: &str| {
            let kind = Kind::new(api_version, kind);
            let name = NamespacedName::parse("shop/web");
            ChildRef { kind, name }.to_string()
        };
        assert_eq!(named("v1", "Service"), "Service shop/web");
        assert_eq!(named("apps/v1", "Deployment"), "Deployment shop/web");
        let expected = "Service.serving.knative.dev shop/web";
        assert_eq!(named("serving.knative.dev/v1", "Service"), expected);
    }

    #[test]
    fn a_reason_of_a_plugin_becomes_one_that_the_api_server_accepts() {
        for (text, reason) in [
            ("ServersNotReady", "ServersNotReady"),
            ("a", "a"),
            ("HTTP_404,x:y", "HTTP_404,x:y"),
            ("not ready: 3/5", "notReady:35"),
            ("2 pods are missing!", "podsAreMissing"),
            ("wait:", "wait"),
            ("Größe", "GrE"),
            ("", "Unspecified"),
            ("…", "Unspecified"),
        ] {
            assert_eq!(conventional_reason(text, 1024), reason, "{text}");
        }
        // Regression: a truncated one ended with a character that no reason can have.
        assert_eq!(conventional_reason("abc:def", 4), "abc");
    }

    #[test]
    fn a_name_can_lead_to_no_other_path_and_to_no_query() {
        let longest = "a".repeat(MAX_NAME);
        for name in ["a", "web-0.db", "system:controller:x", "A_b", &longest] {
            assert_eq!(name_problem(name), None, "{name}");
        }
        let long = "a".repeat(MAX_NAME + 1);
        let bad = [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "a%2fb",
            "a?dryRun=All",
            "a#b",
            "a b",
            "a\nb",
            "ä",
            "a\\b",
            &long,
        ];
        for name in bad {
            assert!(name_problem(name).is_some(), "{name:?}");
        }
        // The names of roles: escaped, they lead nowhere else either.
        for (name, path) in [
            ("a b", "a%20b"),
            ("ä", "%C3%A4"),
            ("a?dryRun=All", "a%3FdryRun%3DAll"),
            ("a#b", "a%23b"),
        ] {
            assert_eq!((object_name_problem(name), &*escaped_name(name)), (None, path));
        }
        for name in ["", ".", "..", "../x", "a/b", "a%2fb", "a\nb", &long] {
            assert!(object_name_problem(name).is_some(), "{name:?}");
        }
    }
}
