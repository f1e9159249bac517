//! Further versions of a plugin's kind: their types, and the conversion from and to the plugin's own version.

use std::fmt::Display;
use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::crd::{Column, Rule};
use crate::{object, text};

/// Another version of the plugin's kind, which the API server serves beside the plugin's own.
///
/// The host's webhook converts the objects, with `From` or `TryFrom` between the types of the two specs. Versions are
/// converted into each other by way of the plugin's own. [`testing::check_versions`](crate::testing::check_versions)
/// finds the fields that a conversion loses.
///
/// ```
/// # use operator_plugin::prelude::*;
/// # use schemars::JsonSchema;
/// # use serde::{Deserialize, Serialize};
/// #[derive(Clone, Deserialize, Serialize, JsonSchema)]
/// struct ShopSpec {
///     seats: u32,
/// }
///
/// #[derive(Deserialize, Serialize, JsonSchema)]
/// struct OldShopSpec {
///     size: u32,
/// }
///
/// impl From<OldShopSpec> for ShopSpec {
///     fn from(old: OldShopSpec) -> Self {
///         Self { seats: old.size }
///     }
/// }
///
/// impl From<ShopSpec> for OldShopSpec {
///     fn from(new: ShopSpec) -> Self {
///         Self { size: new.seats }
///     }
/// }
///
/// # fn reconcile(_: &Request<ShopSpec, ()>) -> Result<Response<()>, Failure> { Ok(Response::empty()) }
/// const PLUGIN: Plugin<ShopSpec, ()> = Plugin::new("example.com/v1", "Shop", reconcile)
///     .versions(&[Version::new::<OldShopSpec>("v1beta1").deprecated("example.com/v1beta1 is deprecated; use v1")]);
/// ```
pub struct Version<Spec> {
    pub(crate) name: &'static str,
    to_own: Convert,
    from_own: Convert,
    keeps_rest: bool,
    #[cfg_attr(
        target_family = "wasm",
        allow(dead_code, reason = "only the native build makes the text")
    )]
    pub(crate) definition: Definition,
    types: PhantomData<fn() -> Spec>,
}

/// Converts a spec.
type Convert = fn(Value) -> Result<Value, String>;

/// What the CustomResourceDefinition says about a version.
#[cfg_attr(
    target_family = "wasm",
    allow(dead_code, reason = "only the native build makes the text")
)]
pub(crate) struct Definition {
    /// Returns the schema of the spec, and the problems of its type.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) schema: fn(&mut Vec<String>) -> Value,
    pub(crate) columns: Option<&'static [Column]>,
    pub(crate) rules: &'static [Rule],
    pub(crate) deprecation: Option<&'static str>,
    pub(crate) is_served: bool,
    pub(crate) is_stored: bool,
}

impl<Spec> Version<Spec> {
    /// Creates a version, such as `v1beta1`, in which the spec has this type. The status is the same in all versions.
    #[must_use]
    pub const fn new<Other>(name: &'static str) -> Self
    where
        Spec: TryFrom<Other, Error: Display> + Serialize + DeserializeOwned,
        Other: TryFrom<Spec, Error: Display> + Serialize + DeserializeOwned + JsonSchema,
    {
        Self {
            name,
            to_own: convert::<Other, Spec>,
            from_own: convert::<Spec, Other>,
            keeps_rest: false,
            definition: Definition {
                #[cfg(not(target_family = "wasm"))]
                schema: crate::crd::schema_of_spec::<Other>,
                columns: None,
                rules: &[],
                deprecation: None,
                is_served: true,
                is_stored: false,
            },
            types: PhantomData,
        }
    }

    /// Keeps what this version cannot express: in an annotation of its objects, until the field is changed in this
    /// version. Without it, an object loses those fields when it is written in this version.
    ///
    /// Users of this version can write the annotation. It is used only if the result is a spec that this version shows as
    /// the user wrote it. But the API server does not check it with the schema of the plugin's own version: if a kept field
    /// has bounds, check them in `reconcile`. All annotations of an object have at most 256 KiB, so a version that cannot
    /// express a larger field cannot keep it.
    #[must_use]
    pub const fn keep_rest(mut self) -> Self {
        self.keeps_rest = true;
        self
    }

    /// Stores objects in this version instead of the plugin's own: for the time in which the hosts of a cluster may
    /// still run, or go back to, a plugin that does not know the own version.
    #[must_use]
    pub const fn stored(mut self) -> Self {
        self.definition.is_stored = true;
        self
    }

    /// No longer serves the version. Objects that are stored in it can still be read.
    #[must_use]
    pub const fn unserved(mut self) -> Self {
        self.definition.is_served = false;
        self
    }

    /// Sets the columns of `kubectl get`, if they are not those of the plugin.
    #[must_use]
    pub const fn columns(mut self, columns: &'static [Column]) -> Self {
        self.definition.columns = Some(columns);
        self
    }

    /// Sets rules about the whole resource in this version; see [`Plugin::rules`](crate::Plugin::rules).
    #[must_use]
    pub const fn rules(mut self, rules: &'static [Rule]) -> Self {
        self.definition.rules = rules;
        self
    }

    /// Deprecates the version; see [`Plugin::deprecated`](crate::Plugin::deprecated).
    #[must_use]
    pub const fn deprecated(mut self, warning: &'static str) -> Self {
        self.definition.deprecation = Some(warning);
        self
    }
}

fn convert<From, To>(spec: Value) -> Result<Value, String>
where
    From: DeserializeOwned,
    To: TryFrom<From, Error: Display> + Serialize,
{
    let from = From::deserialize(spec).map_err(|error| format!("spec: {error}"))?;
    let to = To::try_from(from).map_err(|error| error.to_string())?;
    Ok(value_of(&to))
}

/// Serializes a spec, without the fields that have no value: a missing field and null are the same in a resource.
pub(crate) fn value_of(spec: &impl Serialize) -> Value {
    let mut value = object::parse(&text::json("spec", spec));
    remove_nulls(&mut value);
    value
}

/// Removes the fields whose value is null.
pub(crate) fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// The annotation with the fields that a version cannot express.
const REST: &str = "operator-host.dev/kept-fields";

/// Converts an object, the text of a custom resource, to another version.
pub(crate) fn convert_object<Spec>(
    own: &str,
    versions: &[Version<Spec>],
    api_version: &str,
    text: &str,
) -> Result<String, String> {
    let mut object = object::parse(text);
    let before = object["apiVersion"].take();
    // Always removed: only this conversion may say what is kept.
    let kept = take_kept(&mut object);
    let find = |api_version: &str| {
        let name = version_of(api_version);
        if name == version_of(own) {
            return Ok(None);
        }
        let version = versions.iter().find(|version| version.name == name);
        let unknown = || format!("this plugin does not know the version {api_version}");
        version.map(Some).ok_or_else(unknown)
    };
    let (from, to) = (find(before.as_str().unwrap_or_default())?, find(api_version)?);
    object["apiVersion"] = api_version.into();
    if let Some(mut spec) = object.get_mut("spec").map(Value::take) {
        if let Some(from) = from {
            spec = (from.to_own)(spec)?;
            if let Some(restored) = kept.and_then(|kept| restore(&spec, &kept))
                && (from.from_own)(restored.clone()).and_then(from.to_own).as_ref() == Ok(&spec)
            {
                spec = restored;
            }
        }
        if let Some(to) = to {
            let other = (to.from_own)(spec.clone())?;
            if to.keeps_rest {
                let mut rest = Map::new();
                let back = (to.to_own)(other.clone())?;
                differences("", Some(&back), Some(&spec), &mut rest);
                keep(&mut object, &rest);
            }
            spec = other;
        }
        object["spec"] = spec;
    }
    Ok(object.to_string())
}

pub(crate) fn version_of(api_version: &str) -> &str {
    let version = api_version.split_once('/').map(|(_, version)| version);
    version.unwrap_or(api_version)
}

/// Writes what a version cannot express into the object's annotation.
fn keep(object: &mut Value, rest: &Map<String, Value>) {
    if !rest.is_empty() {
        object["metadata"]["annotations"][REST] = text::json("spec", rest).into();
    }
}

/// Removes the annotation, and returns what it says.
fn take_kept(object: &mut Value) -> Option<String> {
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let kept = annotations.remove(REST)?;
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    kept.as_str().map(str::to_owned)
}

/// Returns the spec with what the other version could not express. The user may have written the annotation: `None` for
/// what cannot be read, or is nested too deeply to be read again.
fn restore(spec: &Value, kept: &str) -> Option<Value> {
    let Ok(Value::Object(rest)) = serde_json::from_str(kept) else {
        return None;
    };
    let mut spec = spec.clone();
    for (path, change) in rest {
        // A field that was changed in the other version has its new value.
        if path.matches('/').count() <= MAX_DEPTH
            && spec.pointer(&path) == change.get("was")
            && let Some(is) = change.get("is")
        {
            set(&mut spec, &path, is.clone());
        }
    }
    (depth(&spec) <= MAX_DEPTH).then_some(spec)
}

/// Maximum depth of a restored spec: parsers refuse, and schemas do not describe, more.
const MAX_DEPTH: usize = 100;

fn depth(value: &Value) -> usize {
    let inner = match value {
        Value::Object(fields) => fields.values().map(depth).max(),
        Value::Array(items) => items.iter().map(depth).max(),
        _ => return 0,
    };
    1 + inner.unwrap_or_default()
}

/// Removes the value at a JSON pointer.
pub(crate) fn remove(value: &mut Value, path: &str) {
    let (parent, name) = path.rsplit_once('/').unwrap_or_default();
    if let Some(fields) = value.pointer_mut(parent).and_then(Value::as_object_mut) {
        fields.remove(&object::unescaped(name));
    }
}

/// Sets the value at a JSON pointer, and creates the objects on the way.
pub(crate) fn set(mut value: &mut Value, path: &str, to: Value) {
    for name in path.split('/').skip(1) {
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        let Some(fields) = value.as_object_mut() else {
            return;
        };
        value = fields.entry(object::unescaped(name)).or_insert(Value::Null);
    }
    *value = to;
}

/// Collects the fields in which `now` differs from `before`, by JSON pointer. Lists are compared as a whole.
pub(crate) fn differences(
    path: &str,
    before: Option<&Value>,
    now: Option<&Value>,
    found: &mut Map<String, Value>,
) {
    match (before, now) {
        (before, now) if before == now => {}
        (Some(Value::Object(before)), Some(Value::Object(now))) => {
            let added = now.keys().filter(|name| !before.contains_key(*name));
            for name in before.keys().chain(added) {
                let path = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
                differences(&path, before.get(name), now.get(name), found);
            }
        }
        (before, now) => {
            let sides = [("was", before), ("is", now)].into_iter();
            let change = sides.filter_map(|(side, value)| Some((side, value?.clone())));
            found.insert(path.to_owned(), change.collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Deserialize, Serialize, JsonSchema)]
    struct Own {
        seats: u32,
        #[serde(default)]
        rooms: Vec<String>,
        garden: Option<Garden>,
    }

    #[derive(Deserialize, Serialize, JsonSchema)]
    struct Garden {
        trees: u32,
        pond: bool,
    }

    #[derive(Deserialize, Serialize, JsonSchema)]
    struct Old {
        size: String,
        trees: Option<u32>,
    }

    impl TryFrom<Old> for Own {
        type Error = String;

        fn try_from(old: Old) -> Result<Self, String> {
            let seats = old
                .size
                .parse()
                .map_err(|_| format!("spec.size: {:?} is no number", old.size))?;
            let garden = old.trees.map(|trees| Garden { trees, pond: false });
            Ok(Self {
                seats,
                rooms: Vec::new(),
                garden,
            })
        }
    }

    impl From<Own> for Old {
        fn from(own: Own) -> Self {
            Self {
                size: own.seats.to_string(),
                trees: own.garden.map(|garden| garden.trees),
            }
        }
    }

    const VERSIONS: &[Version<Own>] = &[
        Version::new::<Old>("v1alpha1"),
        Version::new::<Old>("v1beta1").keep_rest(),
    ];

    fn to(version: &str, object: &Value) -> Result<Value, String> {
        convert_object(
            "a.dev/v1",
            VERSIONS,
            &format!("a.dev/{version}"),
            &object.to_string(),
        )
        .map(|text| object::parse(&text))
    }

    fn shop(version: &str, spec: &Value) -> Value {
        json!({
            "apiVersion": format!("a.dev/{version}"), "kind": "Shop", "metadata": { "name": "a" }, "spec": spec,
            "status": { "conditions": [] },
        })
    }

    #[test]
    fn a_spec_is_converted_and_the_rest_of_the_object_stays() {
        let own = shop(
            "v1",
            &json!({ "seats": 3, "garden": { "trees": 2, "pond": true } }),
        );
        let old = to("v1alpha1", &own).unwrap();
        assert_eq!(old, shop("v1alpha1", &json!({ "size": "3", "trees": 2 })));
        let back = json!({ "seats": 3, "rooms": [], "garden": { "trees": 2, "pond": false } });
        assert_eq!(to("v1", &old).unwrap(), shop("v1", &back));
        // By way of the own version.
        assert_eq!(
            to("v1beta1", &old).unwrap(),
            shop("v1beta1", &json!({ "size": "3", "trees": 2 }))
        );
        let without = json!({ "apiVersion": "a.dev/v1", "kind": "Shop", "metadata": { "name": "a" } });
        assert_eq!(to("v1alpha1", &without).unwrap()["apiVersion"], "a.dev/v1alpha1");
    }

    #[test]
    fn what_cannot_be_converted_is_said() {
        let wrong = to("v1", &shop("v1beta1", &json!({ "size": "many" })));
        assert_eq!(wrong.unwrap_err(), "spec.size: \"many\" is no number");
        let missing = to("v1", &shop("v1beta1", &json!({})));
        assert!(missing.unwrap_err().contains("missing field `size`"));
        let unknown = to("v9", &shop("v1beta1", &json!({})));
        let expected = "this plugin does not know the version a.dev/v9";
        assert_eq!(unknown.unwrap_err(), expected);
    }

    #[test]
    fn what_a_version_cannot_express_comes_back_unless_it_was_changed_there() {
        let own = shop(
            "v1",
            &json!({ "seats": 3, "rooms": ["a/b~"], "garden": { "trees": 2, "pond": true } }),
        );
        let mut old = to("v1beta1", &own).unwrap();
        assert_eq!(old["spec"], json!({ "size": "3", "trees": 2 }));
        assert_eq!(to("v1", &old).unwrap(), own);

        old["spec"]["size"] = "4".into();
        old["spec"].as_object_mut().unwrap().remove("trees");
        let changed = to("v1", &old).unwrap();
        assert_eq!(changed["spec"], json!({ "seats": 4, "rooms": ["a/b~"] }));
        assert_eq!(changed["metadata"], json!({ "name": "a" }));

        // What the user forges must be a spec that the other version shows as it is.
        let forged = |kept: &Value| {
            let mut forged = old.clone();
            forged["metadata"]["annotations"][REST] = kept.to_string().into();
            to("v1", &forged).unwrap()["spec"].clone()
        };
        let plain = json!({ "seats": 4, "rooms": [] });
        let rooms = json!({ "seats": 4, "rooms": ["a"] });
        assert_eq!(forged(&json!({ "/rooms": { "was": [], "is": ["a"] } })), rooms);
        for kept in [
            json!({ "": { "was": plain, "is": { "seats": 9 } } }),
            json!({ "": { "was": plain, "is": 9 } }),
            json!({ "/seats": { "was": 4, "is": 9 } }),
            json!({ "/rooms": { "was": [], "is": "a" } }),
            json!({ "/x".repeat(100_000): { "is": 1 } }),
            json!({ "/x".repeat(99): { "is": { "y": { "z": 1 } } } }),
        ] {
            assert_eq!(forged(&kept), plain);
        }
        let mut forged = shop("v1", &json!({ "seats": 3, "rooms": [] }));
        forged["metadata"]["annotations"] = json!({ REST: "{}", "other": "" });
        assert_eq!(
            to("v1beta1", &forged).unwrap()["metadata"]["annotations"],
            json!({ "other": "" })
        );

        old["metadata"]["annotations"][REST] = "nonsense".into();
        let expected = json!({ "seats": 4, "rooms": [] });
        assert_eq!(to("v1", &old).unwrap()["spec"], expected);
    }
}
