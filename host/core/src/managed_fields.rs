//! Reads `metadata.managedFields`: which manager owns which part of an object.
//!
//! Source: the format `FieldsV1` of `metav1.ManagedFieldsEntry`: `f:name` is a field, `k:{...}` a list element by its
//! keys, `v:...` one by its value. An entry without children is owned completely, and `.` stands for the place itself.

use std::collections::{BTreeSet, HashMap, VecDeque};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde_json::{Map, Value};

use super::field_path::{FieldPath, Step};

/// Returns what a manager owns by its applies; `None` when it has applied nothing.
pub fn applied_by<'a>(managed: &'a [ManagedFieldsEntry], manager: &str) -> Option<&'a Value> {
    fields(managed.iter().find(|entry| is_apply_of(entry, manager))?)
}

/// Reports whether an entry is that of a manager's applies.
pub fn is_apply_of(entry: &ManagedFieldsEntry, manager: &str) -> bool {
    let is_whole = entry.subresource.as_deref().unwrap_or_default().is_empty();
    entry.manager.as_deref() == Some(manager) && entry.operation.as_deref() == Some("Apply") && is_whole
}

/// Returns the fields of an entry.
pub fn fields(entry: &ManagedFieldsEntry) -> Option<&Value> {
    entry.fields_v1.as_ref().map(|fields| &fields.0)
}

/// Returns what an entry contains below a place, by name.
pub fn below(place: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let names = place.as_object().into_iter().flatten();
    names.filter(|(name, _)| *name != ".")
}

/// Returns the parts of a value that the entry `ours` contains and none of the entries `others`; `None` when there are
/// none.
pub fn owned_part(value: &Value, ours: &Value, others: &[&Value]) -> Option<Value> {
    let has_parts = below(ours).next().is_some();
    let others_in =
        |name: &str| -> Vec<&Value> { others.iter().filter_map(|other| other.get(name)).collect() };
    match value {
        Value::Object(fields) if has_parts => {
            let own = below(ours).filter_map(|(name, ours)| {
                let field = name.strip_prefix("f:")?;
                let value = owned_part(fields.get(field)?, ours, &others_in(name))?;
                Some((field.to_owned(), value))
            });
            let own: Map<_, _> = own.collect();
            (!own.is_empty()).then_some(Value::Object(own))
        }
        Value::Array(elements) if has_parts => {
            let names = Elements::of(ours);
            let own = elements.iter().filter_map(|element| {
                let (name, ours) = names.at(names.find(element)?);
                let mut own = owned_part(element, ours, &others_in(name))?;
                // An element is recognized by its keys, whoever owns them.
                if let (Some(keys), Value::Object(own)) = (name.strip_prefix("k:"), &mut own) {
                    own.extend(serde_json::from_str::<Map<_, _>>(keys).unwrap_or_default());
                }
                Some(own)
            });
            let own: Vec<_> = own.collect();
            (!own.is_empty()).then_some(Value::Array(own))
        }
        value => others.is_empty().then(|| value.clone()),
    }
}

/// The elements of a list in an entry. Their names are parsed once: a large list has as many names as elements, and to
/// compare each with each takes the square of their number.
pub struct Elements<'a> {
    below: Vec<(&'a String, &'a Value)>,
    /// The position of the first name with these keys, and of the first with this value; see [`parse_name`].
    by_keys: HashMap<Value, usize>,
    by_value: HashMap<Value, usize>,
    /// The fields that are keys. All elements have the same ones, unless the schema of the list has changed.
    keys: BTreeSet<Vec<String>>,
}

impl<'a> Elements<'a> {
    /// Reads the elements below a place in an entry.
    pub fn of(place: &'a Value) -> Self {
        let below: Vec<_> = below(place).collect();
        let (mut by_keys, mut by_value) = (HashMap::new(), HashMap::new());
        let mut keys = BTreeSet::new();
        for (at, (name, _)) in below.iter().enumerate() {
            let Some((is_keyed, named)) = parse_name(name) else {
                continue;
            };
            if let (true, Value::Object(named)) = (is_keyed, &named) {
                keys.insert(named.keys().cloned().collect());
            }
            let positions = if is_keyed { &mut by_keys } else { &mut by_value };
            positions.entry(named).or_insert(at);
        }
        Self {
            below,
            by_keys,
            by_value,
            keys,
        }
    }

    /// Reports whether the elements are recognized by keys, not by their values.
    pub fn are_keyed(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Returns the name at a position, and what is owned of its element.
    pub fn at(&self, position: usize) -> (&'a str, &'a Value) {
        let (name, place) = self.below[position];
        (name, place)
    }

    /// Returns the position of a name that denotes this list element.
    pub fn find(&self, element: &Value) -> Option<usize> {
        let by_key = self.keys.iter().filter_map(|keys| {
            let key = Value::Object(picked(element, keys)?);
            self.by_keys.get(&key)
        });
        let by_value = self.by_value.get(element);
        by_key.chain(by_value).min().copied()
    }

    /// Returns the position of each element's name. An element that leaves out a key has its default there, so it is
    /// denoted by a name that no other element has.
    pub fn assign(&self, elements: &[Value]) -> Vec<Option<usize>> {
        let mut assigned: Vec<_> = elements.iter().map(|element| self.find(element)).collect();
        if !assigned.contains(&None) {
            return assigned;
        }
        let mut taken: BTreeSet<usize> = assigned.iter().flatten().copied().collect();
        // By the keys that an element has.
        let mut free: HashMap<Value, VecDeque<usize>> = HashMap::new();
        let mut indexed: BTreeSet<Vec<&String>> = BTreeSet::new();
        for (element, place) in elements.iter().zip(&mut assigned) {
            if place.is_some() {
                continue;
            }
            *place = self.keys.iter().find_map(|keys| {
                let given: Vec<&String> = keys.iter().filter(|key| element.get(*key).is_some()).collect();
                let wanted = picked(element, given.iter().copied()).filter(|given| !given.is_empty())?;
                if indexed.insert(given.clone()) {
                    for (name, at) in &self.by_keys {
                        if let Some(name) = picked(name, given.iter().copied()) {
                            free.entry(Value::Object(name)).or_default().push_back(*at);
                        }
                    }
                }
                let candidates = free.get_mut(&Value::Object(wanted))?;
                std::iter::from_fn(|| candidates.pop_front()).find(|at| taken.insert(*at))
            });
        }
        assigned
    }
}

/// Returns these fields of an object; `None` when one is missing.
fn picked<'k>(object: &Value, fields: impl IntoIterator<Item = &'k String>) -> Option<Map<String, Value>> {
    let picked = |field: &String| Some((field.clone(), object.get(field)?.clone()));
    fields.into_iter().map(picked).collect()
}

/// Parses the name of a list element in `FieldsV1`: whether it is the element's keys, and these or its value; `None`
/// when it is not such a name.
fn parse_name(name: &str) -> Option<(bool, Value)> {
    let (how, text) = name.split_once(':')?;
    let named = serde_json::from_str::<Value>(text).ok()?;
    let by_key = how == "k" && named.is_object();
    (by_key || how == "v").then_some((by_key, named))
}

/// Reports whether an entry owns a field, alone or as a part of what it owns completely.
fn owns(fields: &Value, path: &FieldPath) -> bool {
    let mut at = fields;
    for step in &path.0 {
        let found = match step {
            Step::Field(field) => at.get(format!("f:{field}")),
            Step::Element(element) => {
                let elements = Elements::of(at);
                elements.find(element).map(|position| elements.at(position).1)
            }
        };
        match found {
            Some(below) => at = below,
            None => return at != fields && below(at).next().is_none(),
        }
    }
    true
}

/// Who wrote a field, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldWriter {
    /// The name of the field manager.
    pub manager: String,
    /// The subresource through which it wrote, such as `scale`.
    pub subresource: Option<String>,
    /// When it last changed the object.
    pub time: Option<Timestamp>,
    /// Whether it owns the field. Otherwise, it may have removed the field.
    pub is_owner: bool,
}

/// Reports whether a manager wrote only the status. Before Kubernetes 1.22, entries do not name the subresource.
pub fn is_only_status(entry: &ManagedFieldsEntry) -> bool {
    let fields = fields(entry).and_then(Value::as_object);
    entry.subresource.as_deref() == Some("status")
        || fields.is_some_and(|fields| fields.keys().all(|field| field == "f:status"))
}

/// Returns the field manager other than `own` that owns a field. If none does, for example because it removed the
/// field, returns the one that last changed more than the status since `own` applied the object; `None` when nobody did.
pub fn other_writer(managed: &[ManagedFieldsEntry], path: &FieldPath, own: &str) -> Option<FieldWriter> {
    let is_owner = |entry: &ManagedFieldsEntry| fields(entry).is_some_and(|fields| owns(fields, path));
    let time = |entry: &ManagedFieldsEntry| entry.time.as_ref().map(|time| time.0);
    let is_own = |entry: &ManagedFieldsEntry| entry.manager.as_deref() == Some(own);
    let newest = |is_wanted: &dyn Fn(&ManagedFieldsEntry) -> bool| {
        let others = managed.iter().filter(|entry| !is_own(entry) && is_wanted(entry));
        others.max_by_key(|entry| time(entry))
    };
    let own = managed.iter().filter(|entry| is_own(entry));
    let applied = own.filter_map(time).max();
    let is_later = |entry: &ManagedFieldsEntry| time(entry) >= applied && !is_only_status(entry);
    let owner = newest(&is_owner);
    let entry = owner.or_else(|| newest(&is_later))?;
    Some(FieldWriter {
        manager: entry.manager.clone()?,
        subresource: entry.subresource.clone().filter(|name| !name.is_empty()),
        time: time(entry),
        is_owner: owner.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entries(entries: &Value) -> Vec<ManagedFieldsEntry> {
        serde_json::from_value(entries.clone()).unwrap()
    }

    fn writer(path: &FieldPath, managed: &Value) -> Option<String> {
        other_writer(&entries(managed), path, "operator-host/echo").map(|writer| writer.manager)
    }

    fn image() -> FieldPath {
        let container = json!({ "name": "app", "image": "b" });
        let spec = FieldPath::default().field("spec").field("template").field("spec");
        spec.field("containers").element(&container).field("image")
    }

    #[test]
    fn a_path_reads_as_in_kubectl() {
        let expected = "spec.template.spec.containers[name=app].image";
        assert_eq!(image().to_string(), expected);
        let label = FieldPath::default()
            .field("metadata")
            .field("labels")
            .field("app.kubernetes.io/name");
        assert_eq!(label.to_string(), r#"metadata.labels["app.kubernetes.io/name"]"#);
        let port = FieldPath::default()
            .field("ports")
            .element(&json!({ "containerPort": 80 }));
        assert_eq!(port.to_string(), "ports[containerPort=80]");
    }

    #[test]
    fn the_other_manager_that_owns_the_field_is_found_whoever_wrote_later() {
        let owned = json!({ "f:spec": { "f:template": { "f:spec": { "f:containers": {
            "k:{\"name\":\"app\"}": { ".": {}, "f:image": {} },
        } } } } });
        let managed = json!([
            { "manager": "operator-host/echo", "operation": "Apply", "time": "2026-01-04T00:00:00Z", "fieldsV1": owned },
            { "manager": "rival", "operation": "Update", "time": "2026-01-01T00:00:00Z", "fieldsV1": owned },
            { "manager": "kubectl", "operation": "Update", "time": "2026-01-02T00:00:00Z",
              "fieldsV1": { "f:spec": { "f:replicas": {} } } },
            { "manager": "kubelet", "operation": "Update", "subresource": "status", "time": "2026-01-03T00:00:00Z",
              "fieldsV1": { "f:status": {} } },
        ]);
        assert_eq!(writer(&image(), &managed).as_deref(), Some("rival"));
        let replicas = FieldPath::default().field("spec").field("replicas");
        assert_eq!(writer(&replicas, &managed).as_deref(), Some("kubectl"));
        // Nobody owns a field that was removed, and nobody but the host and the kubelet wrote since the host did.
        let paused = FieldPath::default().field("spec").field("paused");
        assert_eq!(writer(&paused, &managed), None);
        let mut later = managed.clone();
        later[2]["time"] = "2026-01-05T00:00:00Z".into();
        later[3]["time"] = "2026-01-06T00:00:00Z".into();
        later[3].as_object_mut().unwrap().remove("subresource");
        let last = other_writer(&entries(&later), &paused, "operator-host/echo").unwrap();
        assert_eq!((last.manager.as_str(), last.is_owner), ("kubectl", false));
        assert_eq!(writer(&paused, &json!([])), None);
    }

    /// Reports whether a name in `FieldsV1` denotes this list element.
    fn is_element(element: &Value, name: &str) -> bool {
        match parse_name(name) {
            Some((true, Value::Object(keys))) => {
                keys.iter().all(|(key, value)| element.get(key) == Some(value))
            }
            Some((false, value)) => *element == value,
            _ => false,
        }
    }

    #[test]
    fn a_name_that_denotes_an_element_is_found_as_by_comparing_it_with_each() {
        let names = [
            r#"k:{"name":"a","port":1}"#,
            r#"k:{"port":1}"#,
            r#"v:{"port":1}"#,
            r#"k:{"port":2}"#,
            r#"k:{"port":1.0}"#,
            r#"k:{"name":null}"#,
            "k:[1]",
            "v:[1]",
            r#"v:"x""#,
            "v:1",
            "i:2",
            "f:port",
            "v:{",
        ];
        let elements = [
            json!({ "port": 1 }),
            json!({ "port": 1, "name": "a" }),
            json!({ "port": 1.0 }),
            json!({ "port": 2, "name": null }),
            json!({ "port": 3, "name": null }),
            json!({}),
            json!([1]),
            json!("x"),
            json!(1),
            json!(2),
            json!(null),
        ];
        for skipped in 0..names.len() {
            let names = &names[skipped..];
            for element in &elements {
                let place = names.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
                let place = Value::Object(place);
                let elements = Elements::of(&place);
                match elements.find(element) {
                    Some(at) => assert!(is_element(element, elements.at(at).0), "{element} in {names:?}"),
                    None => assert!(!names.iter().any(|name| is_element(element, name))),
                }
            }
        }
        let everything = json!({ "k:{}": {} });
        assert_eq!(Elements::of(&everything).find(&json!("x")), Some(0));
    }

    #[test]
    fn a_field_within_what_is_owned_completely_is_owned() {
        let rules = FieldPath::default().field("rules");
        let managed = json!([{ "manager": "rival", "operation": "Update", "fieldsV1": { "f:rules": {} } }]);
        assert_eq!(
            writer(&rules.element(&json!({ "verbs": [] })).field("verbs"), &managed).as_deref(),
            Some("rival")
        );
        assert!(!owns(&json!({}), &FieldPath::default().field("spec")));
    }
}
