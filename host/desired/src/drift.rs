//! Detects how a child differs from what was applied to it: drift, which others have caused since, and what the API server did
//! not keep of the apply itself.
//!
//! The API server keeps the answer. When anyone changes or removes a field that a manager applied, that field leaves the
//! manager's entry in `metadata.managedFields`. Values are not compared: the API server may write them in another form,
//! and a webhook may change them within the apply itself, and neither is drift. There are three exceptions, of which the
//! entries tell nothing:
//!
//! - the order of a keyed list, which somebody may change without changing an element;
//! - a field that is in the entry and not in the object: the API server or a policy has dropped it from the apply;
//! - the host's own marks, by which it recognizes a child.
//!
//! Source: Kubernetes, "Server-Side Apply", and the format `FieldsV1` of `metav1.ManagedFieldsEntry`.

use std::borrow::Cow;
use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::{DynamicObject, ObjectMeta};
use serde_json::{Map, Value};

use operator_host_core::field_path::{self, FieldPath};
use operator_host_core::managed_fields::{Elements, applied_by, below, fields};
use operator_host_core::object::{
    APPLIED_ANNOTATION, CONTROLLER_LABEL, PARENT_ANNOTATION, PROVENANCE_ANNOTATION, annotation, label,
};

/// The fields of metadata that a manager can own and a plugin can set.
const METADATA: [&str; 4] = ["labels", "annotations", "ownerReferences", "finalizers"];
/// The marks of a child: the field of metadata, the key, and whether the value counts.
const MARKS: [(&str, &str, bool); 4] = [
    ("labels", CONTROLLER_LABEL, true),
    ("annotations", PARENT_ANNOTATION, true),
    ("annotations", APPLIED_ANNOTATION, true),
    ("annotations", PROVENANCE_ANNOTATION, false),
];

/// A field in which a child is not as it was applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The path of the field. Of a list whose order has changed, the list.
    pub path: FieldPath,
    /// What is different.
    pub cause: Cause,
}

/// Why a field of a child differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The manager does not own it any more, or the elements of a keyed list are in another order.
    Lost,
    /// It is a mark of the host, which is missing or has another value.
    Mark,
    /// The manager owns it, and the object does not have it.
    Dropped,
}

/// Of a field that was dropped with all that it contains, it alone is named.
fn gather(is_missing: bool, mut found: Vec<Difference>, trail: &Trail<'_>) -> Vec<Difference> {
    let parts = found.len();
    if is_missing {
        found.retain(|it| it.cause != Cause::Dropped);
    }
    if found.len() < parts {
        found.extend(trail.differs(Cause::Dropped));
    }
    found
}

/// Returns the fields of `body` that are not as `manager` applied them.
///
/// `live` is the object with these `managed` fields, and `body` what the manager last applied to it. Without an entry of
/// the manager, the path is that of the entries.
pub fn drift(
    managed: &[ManagedFieldsEntry],
    manager: &str,
    body: &Value,
    live: &DynamicObject,
) -> Vec<Difference> {
    let mut found: Vec<_> = marks(body, live).collect();
    let Some(ours) = applied_by(managed, manager) else {
        let path = FieldPath::default().field("metadata").field("managedFields");
        let cause = Cause::Lost;
        found.push(Difference { path, cause });
        return found;
    };
    let others = managed.iter().filter_map(fields);
    let others = others.filter(|other| !std::ptr::eq(*other, ours)).collect();
    let walk = Walk { others };
    let content = body.as_object().into_iter().flatten();
    let content = content.filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind" | "metadata"));
    let content = content.flat_map(|(name, body)| {
        let trail = Trail::new(Step::Field(name), None);
        walk.field(ours.get(field_name(name)), body, live.data.get(name), &trail)
    });
    let root = Trail::new(Step::Field("metadata"), None);
    let metadata = METADATA.into_iter().flat_map(|name| {
        let Some(body) = body["metadata"].get(name) else {
            return Vec::new();
        };
        let place = ours.get("f:metadata").and_then(|it| it.get(field_name(name)));
        let trail = Trail::new(Step::Field(name), Some(&root));
        let live = in_metadata(&live.metadata, name);
        walk.field(place, &without_marks(name, body), Some(&live), &trail)
    });
    found.extend(content.chain(metadata));
    found
}

/// Takes out of `body` the fields on these paths that `manager` has lost, as far as it owns nothing of them. Returns whether there
/// was one.
pub fn leave_out<'p>(
    body: &mut Value,
    lost: impl IntoIterator<Item = &'p FieldPath>,
    managed: &[ManagedFieldsEntry],
    manager: &str,
) -> bool {
    let Some(ours) = applied_by(managed, manager) else {
        return false;
    };
    let removed = lost.into_iter().filter_map(|path| remove_lost(body, path, ours));
    removed.count() > 0
}

fn remove_lost(mut body: &mut Value, path: &FieldPath, ours: &Value) -> Option<()> {
    let mut place = ours;
    for step in &path.0 {
        match step {
            field_path::Step::Field(name) => match place.get(field_name(name)) {
                Some(next) => (place, body) = (next, body.get_mut(name)?),
                None => return body.as_object_mut()?.remove(name).map(drop),
            },
            field_path::Step::Element(element) => {
                let elements = Elements::of(place);
                let at = elements.find(element)?;
                let list = body.as_array_mut()?;
                let position = elements.assign(list).iter().position(|of| *of == Some(at))?;
                (place, body) = (elements.at(at).1, list.get_mut(position)?);
            }
        }
    }
    // The list is owned, and in another order.
    None
}

/// Returns the marks in `body` that an object does not have.
fn marks(body: &Value, live: &DynamicObject) -> impl Iterator<Item = Difference> {
    let is_missing = |(field, key, is_exact): &(&str, &str, bool)| {
        let wanted = &body["metadata"][field][key];
        let is = match *field {
            "labels" => label(live, key),
            _ => annotation(live, key),
        };
        !wanted.is_null() && is.is_none_or(|is| *is_exact && wanted != is)
    };
    MARKS
        .into_iter()
        .filter(is_missing)
        .map(|(field, key, _)| Difference {
            path: FieldPath::default().field("metadata").field(field).field(key),
            cause: Cause::Mark,
        })
}

/// Returns one of the fields of [`METADATA`]; null when there is none.
fn in_metadata(metadata: &ObjectMeta, field: &str) -> Value {
    let value = match field {
        "labels" => serde_json::to_value(&metadata.labels),
        "annotations" => serde_json::to_value(&metadata.annotations),
        "ownerReferences" => serde_json::to_value(&metadata.owner_references),
        _ => serde_json::to_value(&metadata.finalizers),
    };
    value.unwrap_or_default()
}

fn without_marks<'b>(field: &str, body: &'b Value) -> Cow<'b, Value> {
    let is_mark = |key: &str| MARKS.iter().any(|(of, mark, _)| *of == field && *mark == key);
    match body {
        Value::Object(fields) if fields.keys().any(|key| is_mark(key)) => {
            let others = fields.iter().filter(|(key, _)| !is_mark(key));
            Cow::Owned(others.map(|(key, value)| (key.clone(), value.clone())).collect())
        }
        _ => Cow::Borrowed(body),
    }
}

fn field_name(name: &str) -> String {
    format!("f:{name}")
}

/// The way to a place in an object and in the entries, innermost step first.
struct Trail<'t> {
    step: Step<'t>,
    before: Option<&'t Trail<'t>>,
}

enum Step<'t> {
    Field(&'t str),
    /// An element, with its name in an entry.
    Element(&'t Value, &'t str),
}

impl<'t> Trail<'t> {
    const fn new(step: Step<'t>, before: Option<&'t Self>) -> Self {
        Self { step, before }
    }

    /// Returns what another entry has in this place.
    fn find<'v>(&self, fields: &'v Value) -> Option<&'v Value> {
        let before = self.before.map_or(Some(fields), |before| before.find(fields))?;
        match self.step {
            Step::Field(name) => before.get(field_name(name)),
            Step::Element(_, name) => before.get(name),
        }
    }

    fn path(&self) -> FieldPath {
        let path = self.before.map(Trail::path).unwrap_or_default();
        match self.step {
            Step::Field(name) => path.field(name),
            Step::Element(element, _) => path.element(element),
        }
    }

    fn differs(&self, cause: Cause) -> Vec<Difference> {
        let path = self.path();
        vec![Difference { path, cause }]
    }
}

struct Walk<'a> {
    /// What the other entries contain.
    others: Vec<&'a Value>,
}

/// Each function returns what differs in the place of a trail.
impl Walk<'_> {
    /// Returns what differs in a field, which is `place` in our entry. Of a field that was lost with all that it contains, the
    /// first part is enough.
    fn field(
        &self,
        place: Option<&Value>,
        body: &Value,
        live: Option<&Value>,
        trail: &Trail<'_>,
    ) -> Vec<Difference> {
        match (place, body) {
            (Some(place), _) => self.value(place, body, live, trail),
            (None, Value::Object(body)) if !body.is_empty() => {
                let mut parts = body.iter().map(|(name, body)| {
                    let live = live.and_then(|live| live.get(name));
                    self.field(None, body, live, &Trail::new(Step::Field(name), Some(trail)))
                });
                parts.find(|found| !found.is_empty()).unwrap_or_default()
            }
            (None, body) if is_as_wanted(body, live) => Vec::new(),
            (None, _) => trail.differs(Cause::Lost),
        }
    }

    fn value(&self, place: &Value, body: &Value, live: Option<&Value>, trail: &Trail<'_>) -> Vec<Difference> {
        let is_leaf = below(place).next().is_none();
        let is_missing = live.is_none_or(Value::is_null);
        match body {
            Value::Object(body) if is_leaf => self.leaf(body, live, trail),
            Value::Object(body) => {
                let fields = body.iter().flat_map(|(name, body)| {
                    let (place, live) = (place.get(field_name(name)), live.and_then(|live| live.get(name)));
                    self.field(place, body, live, &Trail::new(Step::Field(name), Some(trail)))
                });
                gather(is_missing, fields.collect(), trail)
            }
            Value::Array(body) if !is_leaf => gather(is_missing, self.list(place, body, live, trail), trail),
            body if is_missing && !is_zero(body) => trail.differs(Cause::Dropped),
            // Owned as a whole.
            _ => Vec::new(),
        }
    }

    /// An entry without children is owned as a whole. A map of which all fields were lost looks the same: then others have
    /// them, or they are gone.
    fn leaf(&self, body: &Map<String, Value>, live: Option<&Value>, trail: &Trail<'_>) -> Vec<Difference> {
        if body.is_empty() {
            return Vec::new();
        }
        let has_part = |place: &Value| below(place).next().is_some();
        let mut others = self.others.iter().filter_map(|other| trail.find(other));
        let is_shared = others.any(has_part);
        let mut fields = body.iter();
        let lost = fields.find(|(name, body)| {
            let live = live.and_then(|live| live.get(*name));
            is_shared || (live.is_none() && !is_zero(body))
        });
        lost.map(|(name, _)| Trail::new(Step::Field(name), Some(trail)).differs(Cause::Lost))
            .unwrap_or_default()
    }

    fn list(
        &self,
        place: &Value,
        body: &[Value],
        live: Option<&Value>,
        trail: &Trail<'_>,
    ) -> Vec<Difference> {
        let elements = Elements::of(place);
        let live = live.and_then(Value::as_array).into_iter().flatten().enumerate();
        let by_name: HashMap<usize, (usize, &Value)> = live
            .filter_map(|(position, live)| Some((elements.find(live)?, (position, live))))
            .collect();
        let assigned = elements.assign(body);
        let found = assigned.iter().zip(body).flat_map(|(at, body)| {
            let Some(at) = at else {
                // Our entry has no name for it, and it is only shown.
                return Trail::new(Step::Element(body, ""), Some(trail)).differs(Cause::Lost);
            };
            let (name, place) = elements.at(*at);
            let live = by_name.get(at).map(|(_, live)| *live);
            let step = Step::Element(live.unwrap_or(body), name);
            self.value(place, body, live, &Trail::new(step, Some(trail)))
        });
        let mut found: Vec<_> = found.collect();
        let positions = assigned.iter().flatten();
        let positions = positions.filter_map(|at| Some(by_name.get(at)?.0));
        if elements.are_keyed() && !positions.is_sorted() {
            found.extend(trail.differs(Cause::Lost));
        }
        found
    }
}

/// Reports whether the API server may leave a field with this value out.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Reports whether a field that no apply owns is as wanted: null means absent, and old API servers, such as 1.20, forget
/// who owns an empty map or list.
fn is_as_wanted(body: &Value, live: Option<&Value>) -> bool {
    match (body, live) {
        (Value::Null, _) => true,
        (Value::Array(body), None | Some(Value::Null)) => body.is_empty(),
        (Value::Array(body), Some(Value::Array(live))) => body.is_empty() && live.is_empty(),
        (Value::Object(body), Some(Value::Object(_))) => body.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
