//! Paths of fields in an object, and who owns a field according to `metadata.managedFields`.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde_json::{Map, Value};

/// The keys by which server-side apply merges lists of the built-in kinds.
///
/// Source: `x-kubernetes-list-map-keys` in the OpenAPI description of Kubernetes.
pub(super) const MERGE_KEYS: [&str; 10] = [
    "name",
    "containerPort",
    "mountPath",
    "devicePath",
    "ip",
    "port",
    "topologyKey",
    "type",
    "uid",
    "resourceName",
];

/// The path of a field, from the root of its object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// A field of an object.
    Field(String),
    /// This element of a list. It is shared: it may be large, and so may be those within it, and paths are copied.
    Element(Arc<Value>),
}

impl FieldPath {
    /// Returns the path of a field of this object.
    #[must_use]
    pub fn field(mut self, name: &str) -> Self {
        self.0.push(Step::Field(name.to_owned()));
        self
    }

    /// Returns the path of an element of this list.
    #[must_use]
    pub fn element(mut self, element: &Value) -> Self {
        self.0.push(Step::Element(Arc::new(element.clone())));
        self
    }

    /// Reports whether an entry of `managedFields` owns this field, alone or as a part of what it owns completely.
    ///
    /// Source: the format `FieldsV1` of `metav1.ManagedFieldsEntry`: `f:name` is a field, `k:{...}` a list element by
    /// its key, `v:...` one by its value; an entry without children is owned completely.
    #[must_use]
    pub fn is_owned_in(&self, fields: &Value) -> bool {
        let mut at = fields;
        for step in &self.0 {
            let below = at.as_object().into_iter().flatten();
            let mut below = below.filter(|(name, _)| *name != ".").peekable();
            if below.peek().is_none() {
                return at != fields;
            }
            let found = below.find(|(name, _)| match step {
                Step::Field(field) => name.strip_prefix("f:") == Some(field),
                Step::Element(element) => is_element(element, name),
            });
            match found {
                Some((_, fields)) => at = fields,
                None => return false,
            }
        }
        true
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |name: &str| {
            name.chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
        };
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Step::Field(name) if !is_plain(name) => write!(f, "[{name:?}]")?,
                Step::Field(name) if index == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Element(element) => {
                    let key = MERGE_KEYS.iter().find_map(|key| Some((key, element.get(*key)?)));
                    match key {
                        Some((key, Value::String(value))) => write!(f, "[{key}={value}]")?,
                        Some((key, value)) => write!(f, "[{key}={value}]")?,
                        None => f.write_str("[]")?,
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the parts of a value that the entry `ours` contains and none of the entries `others`; `None` when there are
/// none. What an entry without children contains is owned completely.
///
/// Source: the format `FieldsV1` of `metav1.ManagedFieldsEntry`; see [`FieldPath::is_owned_in`].
#[must_use]
pub fn owned_part(value: &Value, ours: &Value, others: &[&Value]) -> Option<Value> {
    let below = ours.as_object().into_iter().flatten();
    let below: Vec<_> = below.filter(|(name, _)| *name != ".").collect();
    let others_in =
        |name: &str| -> Vec<&Value> { others.iter().filter_map(|other| other.get(name)).collect() };
    match value {
        Value::Object(fields) if !below.is_empty() => {
            let own = below.into_iter().filter_map(|(name, ours)| {
                let field = name.strip_prefix("f:")?;
                let value = owned_part(fields.get(field)?, ours, &others_in(name))?;
                Some((field.to_owned(), value))
            });
            let own: Map<_, _> = own.collect();
            (!own.is_empty()).then_some(Value::Object(own))
        }
        Value::Array(elements) if !below.is_empty() => {
            let names = ElementNames::of(below.iter().map(|(name, _)| name.as_str()));
            let own = elements.iter().filter_map(|element| {
                let (name, ours) = below[names.first(element)?];
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

/// The names of a list's elements in `FieldsV1`, parsed once: a large list has as many names as elements, and to
/// compare each with each takes the square of their number.
#[derive(Default)]
struct ElementNames {
    /// The position of the first name with this meaning; see [`parse_name`].
    positions: HashMap<(bool, Value), usize>,
    /// The fields that are keys. All elements have the same ones, unless the schema of the list has changed.
    keys: BTreeSet<Vec<String>>,
}

impl ElementNames {
    fn of<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut all = Self::default();
        for (at, name) in names.enumerate() {
            let Some(meaning) = parse_name(name) else { continue };
            if let (true, Value::Object(keys)) = &meaning {
                all.keys.insert(keys.keys().cloned().collect());
            }
            all.positions.entry(meaning).or_insert(at);
        }
        all
    }

    /// Returns the position of the first name that denotes this list element.
    fn first(&self, element: &Value) -> Option<usize> {
        let by_key = self.keys.iter().filter_map(|keys| {
            let key = keys
                .iter()
                .map(|key| Some((key.clone(), element.get(key)?.clone())));
            let key = key.collect::<Option<Map<_, _>>>()?;
            self.positions.get(&(true, Value::Object(key)))
        });
        let by_value = self.positions.get(&(false, element.clone()));
        by_key.chain(by_value).min().copied()
    }
}

/// Parses the name of a list element in `FieldsV1`: whether it is the element's keys, and these or its value; `None`
/// when it is not such a name.
fn parse_name(name: &str) -> Option<(bool, Value)> {
    let (how, text) = name.split_once(':')?;
    let named = serde_json::from_str::<Value>(text).ok()?;
    let by_key = how == "k" && named.is_object();
    (by_key || how == "v").then_some((by_key, named))
}

/// Reports whether a name in `FieldsV1` denotes this list element.
fn is_element(element: &Value, name: &str) -> bool {
    match parse_name(name) {
        Some((true, Value::Object(keys))) => keys.iter().all(|(key, value)| element.get(key) == Some(value)),
        Some((false, value)) => *element == value,
        _ => false,
    }
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
#[must_use]
pub fn is_only_status(entry: &ManagedFieldsEntry) -> bool {
    let fields = entry.fields_v1.as_ref().and_then(|fields| fields.0.as_object());
    entry.subresource.as_deref() == Some("status")
        || fields.is_some_and(|fields| fields.keys().all(|field| field == "f:status"))
}

/// Returns the field manager other than `own` that owns a field. If none does, for example because it removed the
/// field, returns the one that last changed more than the status since `own` applied the object; `None` when nobody did.
#[must_use]
pub fn other_writer(managed: &[ManagedFieldsEntry], path: &FieldPath, own: &str) -> Option<FieldWriter> {
    let fields = |entry: &ManagedFieldsEntry| entry.fields_v1.as_ref().map(|fields| fields.0.clone());
    let is_owner = |entry: &ManagedFieldsEntry| fields(entry).is_some_and(|fields| path.is_owned_in(&fields));
    let time = |entry: &ManagedFieldsEntry| entry.time.as_ref().map(|time| time.0);
    let is_own = |entry: &ManagedFieldsEntry| entry.manager.as_deref() == Some(own);
    let newest = |is_wanted: &dyn Fn(&ManagedFieldsEntry) -> bool| {
        let others = managed.iter().filter(|entry| !is_own(entry));
        others
            .filter(|entry| is_wanted(entry))
            .max_by_key(|entry| time(entry))
    };
    let applied = managed
        .iter()
        .filter(|entry| is_own(entry))
        .filter_map(time)
        .max();
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
        assert_eq!(
            image().to_string(),
            "spec.template.spec.containers[name=app].image"
        );
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

    /// Regression: every name was parsed for every element.
    #[test]
    fn the_owned_part_of_a_large_list_is_found_without_comparing_each_element_with_each_name() {
        const ELEMENTS: usize = 20_000;
        let ours: Map<_, _> = (0..ELEMENTS)
            .map(|number| (format!("k:{{\"port\":{number}}}"), json!({ "f:weight": {} })))
            .collect();
        let elements = |other: bool| -> Value {
            let element = |number: usize| {
                if other {
                    json!({ "port": number, "weight": 1, "other": 2 })
                } else {
                    json!({ "port": number, "weight": 1 })
                }
            };
            (0..ELEMENTS).map(element).collect()
        };
        let own = owned_part(&elements(true), &Value::Object(ours), &[]);
        assert!(own == Some(elements(false)));
    }

    #[test]
    fn the_first_name_that_denotes_an_element_is_found_as_by_comparing_it_with_each() {
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
                let expected = names.iter().position(|name| is_element(element, name));
                let found = ElementNames::of(names.iter().copied()).first(element);
                assert_eq!(found, expected, "{element} in {names:?}");
            }
        }
        let everything = ElementNames::of(["k:{}"].into_iter());
        assert_eq!(everything.first(&json!("x")), Some(0));
    }

    #[test]
    fn a_field_within_what_is_owned_completely_is_owned() {
        let rules = FieldPath::default().field("rules");
        let managed = json!([{ "manager": "rival", "operation": "Update", "fieldsV1": { "f:rules": {} } }]);
        assert_eq!(
            writer(&rules.element(&json!({ "verbs": [] })).field("verbs"), &managed).as_deref(),
            Some("rival")
        );
        assert!(!FieldPath::default().field("spec").is_owned_in(&json!({})));
    }
}
