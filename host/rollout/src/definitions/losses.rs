//! Finds what would be lost if a definition replaced the installed one. A field that no object uses may be removed, so
//! the live objects are checked, in each version that is stored or served.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::Client;
use kube::api::ListParams;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;

use operator_host_cluster::objects::Objects;
use operator_host_core::crd::definition::{
    converts, is_served, schema_of, stored_versions, version as find, versions,
};
use operator_host_core::object::{NamespacedName, is_unreadable, next_page, unreadable};
use operator_host_delivery::candidate_check::Blamed;
use operator_host_schema::{accepts, pruned, schema};

/// Objects in one page of a list. One page is in memory at a time.
const PAGE: u32 = 50;
/// Time limit for checking all objects in all versions.
const BUDGET: Duration = Duration::from_secs(120);
/// Maximum number of objects that are named.
const MAX_BLAMED: usize = 10;

/// What would be lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    /// What the kind would lose; empty if only objects lose something.
    pub(super) of_kind: Vec<String>,
    /// What objects would lose: the first few.
    pub(super) of_objects: Vec<Blamed>,
}

impl Losses {
    /// Returns the first of them, in words.
    pub(super) fn first(&self) -> Option<String> {
        let of_object = |blamed: &Blamed| format!("{}: {}", blamed.object, blamed.message);
        let of_kind = self.of_kind.first().cloned();
        of_kind.or_else(|| self.of_objects.first().map(of_object))
    }
}

/// Returns what the kind itself would lose: its identity, and versions. `version` is the one that the controller
/// reconciles.
pub fn of_kind<'a>(installed: &'a Value, wanted: &'a Value, version: &str) -> Vec<String> {
    let mut lost = Vec::new();
    for (field, is_derived) in [
        ("group", false),
        ("scope", false),
        ("names.kind", false),
        ("names.plural", false),
        // Without a value, the API server derives it from the kind.
        ("names.singular", true),
        ("names.listKind", true),
    ] {
        let pointer = format!("/spec/{}", field.replace('.', "/"));
        let text = |crd: &'a Value| crd.pointer(&pointer).and_then(Value::as_str);
        let (is, wants) = (text(installed), text(wanted));
        let counts = !is_derived || (is.is_some() && wants.is_some());
        if counts && is != wants {
            let (is, wants) = (is.unwrap_or("not set"), wants.unwrap_or("not set"));
            lost.push(format!("`spec.{field}` is {wants}, and the cluster's is {is}"));
        }
    }
    if !find(wanted, version).is_some_and(is_served) {
        lost.push(format!(
            "it does not serve the version {version}, which this controller reconciles"
        ));
    }
    for stored in stored_versions(installed) {
        match find(wanted, stored) {
            None => lost.push(format!(
                "it lacks the version {stored}, in which objects are stored: migrate them first"
            )),
            Some(wants) if !is_served(wants) && find(installed, stored).is_some_and(is_served) => {
                lost.push(format!(
                    "it does not serve the version {stored}, in which objects are stored: migrate them first"
                ));
            }
            Some(_) => {}
        }
    }
    lost
}

/// Finds what each live object would lose.
pub(super) async fn of_objects(client: &Client, installed: &Value, wanted: &Value) -> Result<Losses, String> {
    let asked = tokio::time::timeout(BUDGET, ask_all(client, installed, wanted)).await;
    let late = || {
        format!(
            "the objects could not all be examined within {} s",
            BUDGET.as_secs()
        )
    };
    asked.unwrap_or_else(|_| Err(late()))
}

async fn ask_all(client: &Client, installed: &Value, wanted: &Value) -> Result<Losses, String> {
    let mut losses = Losses {
        of_kind: of_conversion(installed, wanted).into_iter().collect(),
        of_objects: Vec::new(),
    };
    let stored: BTreeSet<&str> = stored_versions(installed).collect();
    let entered = entered(installed, wanted);
    for version in versions(installed) {
        let name = version["name"].as_str().unwrap_or_default();
        if !(is_served(version) || stored.contains(name)) {
            continue;
        }
        let before = schema_of(version);
        // Without a webhook, the API server changes only the `apiVersion` of an object, and drops the fields that the
        // new version lacks.
        let others = entered.iter().filter(|other| other["name"] != name);
        let narrower: Vec<&Value> = find(wanted, name)
            .into_iter()
            .chain(others.copied())
            .filter(|after| !accepts::everything(schema_of(after), before))
            .collect();
        let Some(first) = narrower.first() else { continue };
        if !is_served(version) {
            losses.of_kind.push(format!(
                "its schema of the version {} is narrower than that of {name}, and objects that are stored in {name} cannot \
                 be examined, because the version is not served: migrate them first",
                first["name"].as_str().unwrap_or_default()
            ));
            continue;
        }
        let objection = |object: &Value| {
            narrower.iter().find_map(|after| {
                let lost = objection(object, before, schema_of(after))?;
                Some(match after["name"].as_str() {
                    Some(other) if other != name => {
                        format!("in the version {other}, to which no webhook converts it, {lost}")
                    }
                    _ => lost,
                })
            })
        };
        ask(client, installed, name, &objection, &mut losses).await?;
    }
    Ok(losses)
}

/// Returns why a definition must not give up the conversion by a webhook: its versions would have the same fields at once.
fn of_conversion(installed: &Value, wanted: &Value) -> Option<String> {
    if !converts(installed) || converts(wanted) {
        return None;
    }
    let stored: BTreeSet<&str> = stored_versions(installed).collect();
    let used = versions(wanted).filter_map(|version| {
        let name = version["name"].as_str()?;
        let is_used = is_served(version) || version["storage"] == true || stored.contains(name);
        is_used.then_some(name)
    });
    let used: Vec<&str> = used.collect();
    (used.len() > 1).then(|| {
        format!(
            "it has no conversion, and the cluster's converts between the versions {}; let the plugin convert, or migrate \
             the objects and serve one version",
            used.join(", ")
        )
    })
}

/// Returns the versions in which objects will be stored or written, and were not before, if no webhook converts to them.
fn entered<'a>(installed: &Value, wanted: &'a Value) -> Vec<&'a Value> {
    if converts(wanted) {
        return Vec::new();
    }
    let is_new = |version: &&Value| {
        let name = version["name"].as_str().unwrap_or_default();
        let before = find(installed, name);
        let is = |flag: &str| version[flag] == true && before.is_none_or(|before| before[flag] != true);
        is("storage") || is("served")
    };
    versions(wanted).filter(is_new).collect()
}

/// Reads all objects in one version.
async fn ask<'a>(
    client: &Client,
    installed: &'a Value,
    version: &str,
    objection: &(impl Fn(&Value) -> Option<String> + Sync),
    losses: &mut Losses,
) -> Result<(), String> {
    let spec = &installed["spec"];
    let text = |value: &'a Value| value.as_str().unwrap_or_default();
    let kind = GroupVersionKind::gvk(text(&spec["group"]), version, text(&spec["names"]["kind"]));
    let resource = ApiResource::from_gvk_with_plural(&kind, text(&spec["names"]["plural"]));
    let all = Objects::new(client.clone(), &resource, None);
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = all.list(&page).await.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 403 => format!(
                "{}; the host must see all objects of the kind before it changes their definition: give its role the verb list \
                 on {}.{} in all namespaces, as `operator-host rbac` prints it",
                status.message, resource.plural, resource.group
            ),
            error => format!("cannot list the objects in {}: {error}", resource.api_version),
        })?;
        for object in &list.items {
            // Serialization of a resource cannot fail.
            let value = serde_json::to_value(object).unwrap_or_default();
            let unread = is_unreadable(object).then(|| unreadable("it"));
            let object = NamespacedName::of(object).to_string();
            if let Some(message) = unread.or_else(|| objection(&value))
                && losses.of_objects.len() < MAX_BLAMED
                && !losses.of_objects.iter().any(|blamed| blamed.object == object)
            {
                losses.of_objects.push(Blamed::new(&object, message));
            }
        }
        match next_page(&list.metadata) {
            Some(token) if losses.of_objects.len() < MAX_BLAMED => page = page.continue_token(&token),
            _ => return Ok(()),
        }
    }
}

/// Returns what an object would lose.
pub fn objection(object: &Value, before: &Value, after: &Value) -> Option<String> {
    let mut kept = object.clone();
    remove_defaults(&mut kept, before, after);
    if let Some(path) = pruned::first(&kept, after) {
        return Some(format!("the API server would drop its field {path}"));
    }
    schema::fill_defaults(&mut kept, after);
    // An object that is invalid already is no loss, even if another rule refuses it.
    let problems = schema::validate_resource(object, before);
    let known: BTreeSet<&str> = problems.iter().map(|problem| problem.path.as_str()).collect();
    let mut problems = schema::validate_resource(&kept, after).into_iter();
    let new = problems.find(|problem| !known.contains(problem.path.as_str()));
    new.map(|problem| format!("it would be invalid: {problem}"))
}

/// Removes the fields that a schema lacks and that have their earlier default: nobody has set them.
fn remove_defaults(value: &mut Value, before: &Value, after: &Value) {
    match value {
        Value::Object(map) => {
            let others = after.get("additionalProperties");
            let keeps = after["x-kubernetes-preserve-unknown-fields"] == true
                || others.is_some_and(|others| *others != false);
            map.retain(|name, value| {
                let Some(before) = before["properties"].get(name) else {
                    return true;
                };
                match after["properties"].get(name) {
                    Some(after) => remove_defaults(value, before, after),
                    None if !keeps => {
                        if let Some(mut default) = before.get("default").cloned() {
                            schema::fill_defaults(&mut default, before);
                            return default != *value;
                        }
                    }
                    None => {}
                }
                true
            });
            let (before, after) = (&before["additionalProperties"], &after["additionalProperties"]);
            if before.is_object() && after.is_object() {
                let values = map.values_mut();
                values.for_each(|value| remove_defaults(value, before, after));
            }
        }
        Value::Array(items) => {
            let (before, after) = (&before["items"], &after["items"]);
            let items = items.iter_mut();
            items.for_each(|item| remove_defaults(item, before, after));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use operator_host_cluster::testing::answering;
    use serde_json::json;

    use super::*;

    fn version(name: &str, fields: &[&str]) -> Value {
        let fields: serde_json::Map<_, _> = fields
            .iter()
            .map(|field| ((*field).to_owned(), json!({ "type": "string" })))
            .collect();
        json!({ "name": name, "served": true, "storage": name == "v1", "schema": { "openAPIV3Schema": {
            "type": "object", "properties": { "spec": { "type": "object", "properties": fields } },
        } } })
    }

    fn crd(versions: &[Value], stored: &[&str]) -> Value {
        json!({
            "metadata": { "name": "shops.a.dev" },
            "spec": { "group": "a.dev", "scope": "Namespaced", "versions": versions,
                "names": { "kind": "Shop", "plural": "shops", "singular": "shop", "listKind": "ShopList" } },
            "status": { "storedVersions": stored },
        })
    }

    #[test]
    fn the_identity_of_a_kind_and_its_stored_versions_stay() {
        let (v1, v2) = (version("v1", &[]), version("v2", &[]));
        let installed = crd(&[v1.clone(), v2.clone()], &["v1", "v2"]);
        let lost = |wanted: &Value| of_kind(&installed, wanted, "v2");
        let none: [&str; 0] = [];
        let mut wanted = installed.clone();
        wanted["spec"]["names"]["shortNames"] = json!(["sh"]);
        wanted["spec"]["names"]
            .as_object_mut()
            .unwrap()
            .remove("singular");
        assert_eq!(lost(&wanted), none);
        for (pointer, other, words) in [
            ("/spec/scope", json!("Cluster"), "spec.scope"),
            ("/spec/group", json!("b.dev"), "spec.group"),
            ("/spec/names/kind", json!("Store"), "spec.names.kind"),
            ("/spec/names/singular", json!("store"), "spec.names.singular"),
            ("/spec/versions", json!([v2]), "it lacks the version v1"),
            (
                "/spec/versions/0/served",
                json!(false),
                "it does not serve the version v1",
            ),
            (
                "/spec/versions/1/served",
                json!(false),
                "which this controller reconciles",
            ),
        ] {
            let mut wanted = installed.clone();
            *wanted.pointer_mut(pointer).unwrap() = other;
            let lost = lost(&wanted);
            assert!(!lost.is_empty() && lost[0].contains(words), "{words}: {lost:?}");
        }
        let migrated = crd(&[v1, v2.clone()], &["v2"]);
        assert_eq!(of_kind(&migrated, &crd(&[v2], &[]), "v2"), none);
    }

    #[tokio::test]
    async fn objects_are_asked_in_pages_and_in_each_version_whose_schema_is_narrower() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let client = answering(move |uri| {
            seen.lock().unwrap().push(uri.to_owned());
            let object = |name: &str, field: &str| {
                json!({ "apiVersion": "a.dev/v1", "kind": "Shop",
                    "metadata": { "name": name, "namespace": "n" }, "spec": { field: "x" } })
            };
            let (items, rest) = match uri.contains("continue=more") {
                false => (json!([object("one", "a")]), "more"),
                true => (json!([object("two", "b")]), ""),
            };
            let list = json!({ "apiVersion": "a.dev/v1", "kind": "ShopList", "metadata": { "continue": rest }, "items": items });
            (200, list)
        });
        let installed = crd(&[version("v1", &["a", "b"]), version("v2", &["a"])], &["v1"]);
        let narrower = crd(&[version("v1", &["a"]), version("v2", &["a", "b"])], &["v1"]);
        let losses = of_objects(&client, &installed, &narrower).await.unwrap();
        let expected = "n/two: the API server would drop its field spec.b";
        assert_eq!(losses.first().unwrap(), expected);
        let uris = std::mem::take(&mut *asked.lock().unwrap());
        assert_eq!(uris.len(), 2, "{uris:?}");
        assert!(
            uris.iter()
                .all(|uri| uri.contains("/apis/a.dev/v1/shops?&limit=50")),
            "{uris:?}"
        );

        let wider = crd(&[version("v1", &["a", "b", "c"]), version("v2", &["a"])], &["v1"]);
        assert_eq!(
            of_objects(&client, &installed, &wider).await,
            Ok(Losses::default())
        );
        assert!(asked.lock().unwrap().is_empty(), "nothing can be lost");

        let mut hidden = installed.clone();
        hidden["spec"]["versions"][0]["served"] = false.into();
        let losses = of_objects(&client, &hidden, &narrower).await.unwrap();
        let words = "the version is not served";
        assert!(losses.of_kind[0].contains(words), "{losses:?}");
    }

    #[test]
    fn an_object_that_would_become_invalid_is_a_loss_and_one_that_is_invalid_already_is_not() {
        let schema = |max: u64| {
            json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": {
                "a": { "type": "string", "maxLength": max },
            } } } })
        };
        let object = json!({ "spec": { "a": "four" } });
        let found = objection(&object, &schema(9), &schema(3)).unwrap();
        assert!(found.contains("it would be invalid: spec.a"), "{found}");
        assert_eq!(objection(&object, &schema(3), &schema(3)), None);
    }

    #[test]
    fn defaults_make_no_object_objectionable() {
        let schema = |fields: Value, required: &[&str]| {
            json!({ "type": "object", "properties": { "spec": {
                "type": "object", "properties": fields, "required": required,
            } } })
        };
        let text = json!({ "type": "string" });
        let filled = json!({ "type": "string", "default": "x" });
        let before = schema(json!({ "a": { "type": "string", "nullable": true } }), &[]);
        let after = schema(json!({ "a": filled, "b": filled }), &["a", "b"]);
        for spec in [json!({}), json!({ "a": null }), json!({ "a": "y" })] {
            assert_eq!(
                objection(&json!({ "spec": spec }), &before, &after),
                None,
                "{spec}"
            );
        }
        let required = schema(json!({ "a": text, "b": text }), &["b"]);
        let found = objection(&json!({ "spec": { "a": "y" } }), &before, &required).unwrap();
        assert!(found.contains("spec.b"), "{found}");

        // A removed field that nobody has set.
        let inner = json!({ "type": "object", "default": {}, "properties": { "c": filled } });
        let before = schema(
            json!({ "a": filled, "list": { "type": "array", "items": inner }, "in": inner }),
            &[],
        );
        let item = json!({ "type": "object", "properties": {} });
        let after = schema(json!({ "list": { "type": "array", "items": item } }), &[]);
        let lost = |spec: Value| objection(&json!({ "spec": spec }), &before, &after);
        assert_eq!(
            lost(json!({ "a": "x", "in": { "c": "x" }, "list": [{ "c": "x" }] })),
            None
        );
        for (spec, path) in [
            (json!({ "a": "y" }), "spec.a"),
            (json!({ "in": { "c": "y" } }), "spec.in"),
            (json!({ "list": [{ "c": "y" }] }), "spec.list[0].c"),
        ] {
            assert!(lost(spec).is_some_and(|lost| lost.ends_with(path)), "{path}");
        }
    }

    /// Answers every list with one object that has `spec.a`.
    fn one_object() -> Client {
        answering(|_| {
            let list = json!({ "apiVersion": "a.dev/v1", "kind": "ShopList", "metadata": {}, "items": [{
                "apiVersion": "a.dev/v1", "kind": "Shop", "metadata": { "name": "one", "namespace": "n" },
                "spec": { "a": "x" },
            }] });
            (200, list)
        })
    }

    #[tokio::test]
    async fn without_a_webhook_a_new_version_keeps_what_objects_have() {
        let client = one_object();
        let installed = crd(&[version("v1", &["a"])], &["v1"]);
        let wanted = |fields: &[&str], stores: bool, serves: bool| {
            let (mut v1, mut v2) = (version("v1", &["a"]), version("v2", fields));
            (v1["storage"], v2["storage"]) = ((!stores).into(), stores.into());
            v2["served"] = serves.into();
            crd(&[v1, v2], &["v1"])
        };
        let lost = "n/one: in the version v2, to which no webhook converts it, the API server would drop its field spec.a";
        for (stores, serves) in [(true, true), (true, false), (false, true)] {
            let losses = of_objects(&client, &installed, &wanted(&["b"], stores, serves)).await;
            assert_eq!(losses.unwrap().first().as_deref(), Some(lost));
            let losses = of_objects(&client, &installed, &wanted(&["a", "b"], stores, serves)).await;
            assert_eq!(losses, Ok(Losses::default()));
        }
        let mut converting = wanted(&["b"], true, true);
        converting["spec"]["conversion"]["strategy"] = "Webhook".into();
        let losses = of_objects(&client, &installed, &converting).await;
        assert_eq!(losses, Ok(Losses::default()));
        // What was so before is not the change's fault.
        let before = wanted(&["b"], false, true);
        let losses = of_objects(&client, &before, &before).await;
        assert_eq!(losses, Ok(Losses::default()));
        // The storage version becomes another one of those that are there.
        let losses = of_objects(&client, &before, &wanted(&["b"], true, true)).await;
        assert_eq!(losses.unwrap().first().as_deref(), Some(lost));
    }

    #[tokio::test]
    async fn a_webhook_stays_while_several_versions_are_used() {
        let client = one_object();
        let versions = [version("v1", &["a"]), version("v2", &["a"])];
        let mut installed = crd(&versions, &["v1"]);
        installed["spec"]["conversion"]["strategy"] = "Webhook".into();
        let lost = async |wanted: &Value| of_objects(&client, &installed, wanted).await.unwrap().of_kind;
        let found = lost(&crd(&versions, &[])).await;
        assert!(found[0].contains("between the versions v1, v2"), "{found:?}");
        let mut unserved = crd(&versions, &[]);
        unserved["spec"]["versions"][0]["served"] = false.into();
        let found = lost(&unserved).await;
        let words = "between the versions v1, v2";
        assert!(found[0].contains(words), "v1 is stored: {found:?}");
        assert_eq!(lost(&crd(&versions[..1], &[])).await, Vec::<String>::new());
        assert_eq!(lost(&installed).await, Vec::<String>::new());
    }
}
