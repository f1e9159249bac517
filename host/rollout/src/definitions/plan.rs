//! Compares the definition that a plugin contains with the installed one, and decides who may change it. Pure.

use std::collections::BTreeSet;

use semver::Version;
use serde_json::{Value, json};

use operator_host_contract::{Description, Kind};
use operator_host_core::crd::definition::{self, converts, is_served, schema_of, versions};
use operator_host_core::object::{DEFINITION_VERSION_ANNOTATION, fingerprint};
use operator_host_schema::accepts;

/// Maximum length of a field manager. Source: the API server's validation.
const MAX_MANAGER: usize = 128;
/// The parts of the field managers of definitions, around the name of the controller.
const MANAGER: (&str, &str) = ("operator-host/", "/definition/");

/// Returns the field manager of the definitions that a controller installs. `installation` distinguishes hosts in one
/// cluster.
pub(super) fn manager(controller: &str, installation: &str) -> String {
    let named = |installation: &str| format!("{}{controller}{}{installation}", MANAGER.0, MANAGER.1);
    let manager = named(installation);
    match manager.len() > MAX_MANAGER {
        false => manager,
        true => named(&fingerprint(&installation)),
    }
}

/// Reports whether a host manages definitions by this name.
fn is_host(manager: &str) -> bool {
    manager.starts_with(MANAGER.0) && manager.contains(MANAGER.1)
}

/// Returns the name of the definition that a plugin contains.
pub(super) fn name(carried: &Value) -> &str {
    carried["metadata"]["name"].as_str().unwrap_or_default()
}

/// Returns why a definition is not one of this kind: a plugin must not define the kinds of others.
pub(super) fn of_another_kind(carried: &Value, parent: &Kind) -> Option<String> {
    let problems = definition::identity_problems(carried, parent);
    let (problem, kind) = (problems.first()?, &parent.kind);
    Some(format!("the plugin's definition is not one of {kind}: {problem}"))
}

/// Returns what to apply for a plugin. Its own conversion is left out, because the API server would send all resources to the
/// webhook that it names.
pub(super) fn body(description: &Description, carried: &Value, conversion: Option<Value>) -> Value {
    let mut spec = carried["spec"].clone();
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("conversion");
        spec.extend(conversion.map(|conversion| ("conversion".to_owned(), conversion)));
    }
    let metadata = &carried["metadata"];
    let mut body = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": name(carried), "annotations": {} },
        "spec": spec,
    });
    for part in ["labels", "annotations"] {
        if let Some(Value::Object(given)) = metadata.get(part) {
            let mut given = given.clone();
            // A plugin must not give orders about its versions.
            given.retain(|key, _| !key.starts_with("operator-host.dev/"));
            body["metadata"][part] = given.into();
        }
    }
    body["metadata"]["annotations"][DEFINITION_VERSION_ANNOTATION] = description.version.as_str().into();
    body
}

/// Reports whether a plugin with the definition `carried` can work with the installed one: it serves the same versions,
/// and accepts and keeps what the carried one does.
pub(super) fn suffices(installed: &Value, carried: &Value, needs_conversion: bool) -> bool {
    let part = |version: &Value, name: &str| !version["subresources"][name].is_null();
    let every = versions(carried).all(|wanted| {
        let name = wanted["name"].as_str().unwrap_or_default();
        definition::version(installed, name).is_some_and(|version| {
            (is_served(version) || !is_served(wanted))
                && version["storage"] == wanted["storage"]
                && ["status", "scale"]
                    .iter()
                    .all(|name| part(version, name) || !part(wanted, name))
                && accepts::everything(schema_of(version), schema_of(wanted))
        })
    });
    every && (!needs_conversion || converts(installed))
}

/// Why a plugin's definition must not take the place of the installed one, although nothing would be lost.
///
/// Two hosts in a cluster, or two versions of a plugin during a rollout, must not replace each other's definition in turn:
/// the newer one stays. A version that is pinned may replace the newer one of the same host.
pub(super) fn newer(installed: &Value, version: &str, manager: &str, is_pinned: bool) -> Option<String> {
    let applied = installed["metadata"]["annotations"][DEFINITION_VERSION_ANNOTATION].as_str()?;
    let managers = managers(installed);
    let by_us = managers.contains(manager);
    let by = managers.into_iter().find(|by| is_host(by))?;
    let order = match (Version::parse(version), Version::parse(applied)) {
        (Ok(own), Ok(applied)) => own.cmp_precedence(&applied),
        _ => std::cmp::Ordering::Equal,
    };
    let stays = match by_us {
        true => order.is_lt() && !is_pinned,
        false => order.is_le(),
    };
    stays.then(|| match by_us {
        true => format!("the cluster's is of the newer version {applied} of the plugin and stays; to go back, pin this version"),
        false => format!("the cluster's is of the version {applied} of the plugin, applied by {by:?}, and stays"),
    })
}

/// Returns the entries of the managed fields that own the field at this path.
pub fn owning<'a>(object: &'a Value, path: &'a [&str]) -> impl Iterator<Item = &'a Value> {
    let entries = object["metadata"]["managedFields"].as_array();
    let owns = |entry: &&Value| {
        let fields = &entry["fieldsV1"];
        !path.iter().fold(fields, |fields, name| &fields[*name]).is_null()
    };
    entries.into_iter().flatten().filter(owns)
}

/// Returns the managers of the definition's versions.
fn managers(installed: &Value) -> BTreeSet<String> {
    let entries = owning(installed, &["f:spec", "f:versions"]);
    entries
        .filter_map(|entry| Some(entry["manager"].as_str()?.to_owned()))
        .collect()
}

/// Returns the conversion to apply so that how the API server reaches the webhook stays as somebody else wrote it; `None`
/// if the host wrote it, or it is not there.
pub(super) fn other_webhook(installed: &Value) -> Option<Value> {
    let by_host = |field: &str| {
        let path = ["f:spec", "f:conversion", "f:webhook", "f:clientConfig", field];
        owning(installed, &path).any(|entry| entry["manager"].as_str().is_some_and(is_host))
    };
    let conversion = &installed["spec"]["conversion"];
    if !converts(installed) || by_host("f:url") || by_host("f:service") {
        return None;
    }
    let mut kept = json!({ "strategy": "Webhook", "webhook": {
        "conversionReviewVersions": conversion["webhook"]["conversionReviewVersions"],
    } });
    if by_host("f:caBundle") {
        kept["webhook"]["clientConfig"] =
            json!({ "caBundle": conversion["webhook"]["clientConfig"]["caBundle"] });
    }
    Some(kept)
}

/// Returns the managers in the message of an apply that conflicts with them; none when it is another message.
pub(super) fn conflicting(message: &str) -> BTreeSet<String> {
    let starts = ["conflict with \"", "conflicts with \""].into_iter();
    let after = starts.flat_map(|start| message.split(start).skip(1));
    after
        .filter_map(|rest| Some(rest.split('"').next()?.to_owned()))
        .collect()
}

/// Reports whether all managers are hosts, whose definitions the newer one replaces.
pub(super) fn are_hosts(managers: &BTreeSet<String>) -> bool {
    managers.iter().all(|manager| is_host(manager))
}

#[cfg(test)]
mod tests {
    use super::*;
    use operator_host_delivery::testing::describing;

    fn installed(version: &str, by: &str) -> Value {
        let entry = json!({ "manager": by, "fieldsV1": { "f:spec": { "f:versions": {} } } });
        json!({ "metadata": {
            "annotations": { DEFINITION_VERSION_ANNOTATION: version }, "managedFields": [entry],
        } })
    }

    #[test]
    fn of_two_hosts_the_one_with_the_newer_plugin_defines_the_kind() {
        let (own, other) = (manager("echo", "a"), manager("echo", "b"));
        let ours = |version: &str| installed(version, &own);
        let theirs = |version: &str| installed(version, &other);
        assert!(newer(&ours("1.0.0"), "1.1.0", &own, false).is_none());
        assert!(
            newer(&ours("1.1.0"), "1.1.0", &own, false).is_none(),
            "an author builds it again"
        );
        assert!(
            newer(&ours("1.1.0"), "1.0.0", &own, false).is_some_and(|why| why.contains("pin this version"))
        );
        assert!(newer(&ours("1.1.0"), "1.0.0", &own, true).is_none(), "a rollback");
        assert!(newer(&theirs("1.0.0"), "1.1.0", &own, false).is_none());
        for version in ["1.1.0", "1.0.0"] {
            let why = newer(&theirs("1.1.0"), version, &own, true).unwrap();
            assert!(why.contains("operator-host/echo/definition/b"), "{why}");
        }
        assert!(
            newer(&theirs("v1"), "2.0.0", &own, false).is_some(),
            "they cannot be compared"
        );
        assert!(newer(&installed("9.0.0", "kubectl"), "1.0.0", &own, false).is_none());
        assert!(newer(&json!({}), "1.0.0", &own, false).is_none());
        assert!(manager(&"c".repeat(63), &"n".repeat(63)).len() <= MAX_MANAGER);
    }

    #[test]
    fn a_plugin_defines_its_own_kind_only_and_neither_webhooks_nor_orders() {
        let parent = Kind::new("a.dev/v1", "Shop");
        let carried = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {
                "name": "shops.a.dev", "labels": { "app": "shop" }, "finalizers": ["a.dev/f"],
                "annotations": { "operator-host.dev/promote": "01234567", "a.dev/kept": "x" },
            },
            "spec": { "group": "a.dev", "names": { "kind": "Shop", "plural": "shops" },
                "conversion": { "strategy": "Webhook", "webhook": { "clientConfig": { "url": "https://evil" } } } },
        });
        assert_eq!(of_another_kind(&carried, &parent), None);
        for (pointer, other) in [
            ("/kind", "Secret"),
            ("/spec/group", "b.dev"),
            ("/spec/names/kind", "Store"),
            ("/spec/names/plural", "stores"),
            ("/metadata/name", "stores.b.dev"),
        ] {
            let mut carried = carried.clone();
            *carried.pointer_mut(pointer).unwrap() = other.into();
            assert!(of_another_kind(&carried, &parent).is_some(), "{pointer}");
        }
        let description = describing("shop", "1.0.0", parent);
        let applied = body(&description, &carried, None);
        assert!(applied["spec"]["conversion"].is_null() && applied["metadata"]["finalizers"].is_null());
        assert!(!applied.to_string().contains("promote"), "{applied}");
        assert_eq!(applied["metadata"]["annotations"]["a.dev/kept"], "x");
        assert_eq!(applied["metadata"]["labels"]["app"], "shop");
        let ours = definition::conversion_by(&json!({ "url": "https://host" }));
        assert_eq!(
            body(&description, &carried, Some(ours.clone()))["spec"]["conversion"],
            ours
        );
    }

    #[test]
    fn managers_are_read_from_a_conflict() {
        let one = "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using apiextensions.k8s.io/v1: .spec.versions";
        assert_eq!(conflicting(one), BTreeSet::from(["kubectl-edit".to_owned()]));
        let two = "Apply failed with 2 conflicts: conflicts with \"a\" using v1:\n- .spec.x\nconflicts with \"b\":\n- .spec.y";
        assert_eq!(conflicting(two), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        assert!(conflicting("the object has been modified").is_empty());
        assert!(are_hosts(&BTreeSet::from([manager("a", "b")])) && !are_hosts(&conflicting(two)));
    }

    #[test]
    fn a_webhook_that_somebody_else_wrote_is_recognized() {
        let definition = |manager: &str, fields: Value| {
            json!({
                "metadata": { "managedFields": [{ "manager": manager, "fieldsV1": { "f:spec": { "f:conversion": {
                    "f:webhook": { "f:clientConfig": fields },
                } } } }] },
                "spec": { "conversion": { "strategy": "Webhook", "webhook": {
                    "conversionReviewVersions": ["v1"], "clientConfig": { "url": "https://a", "caBundle": "QQ==" },
                } } },
            })
        };
        let own = manager("a", "b");
        let theirs = other_webhook(&definition("kubectl", json!({ "f:url": {} }))).unwrap();
        assert_eq!(theirs["strategy"], "Webhook");
        assert!(theirs["webhook"]["clientConfig"].is_null());
        let half = other_webhook(&definition(&own, json!({ "f:caBundle": {} }))).unwrap();
        assert_eq!(half["webhook"]["clientConfig"], json!({ "caBundle": "QQ==" }));
        assert_eq!(
            other_webhook(&definition(&own, json!({ "f:url": {}, "f:caBundle": {} }))),
            None
        );
        let none = json!({ "spec": { "conversion": { "strategy": "None" } } });
        assert_eq!(other_webhook(&none), None);
    }

    #[test]
    fn a_definition_suffices_when_it_serves_and_keeps_what_the_plugin_needs() {
        let version = |name: &str, field: &str, served: bool| {
            json!({ "name": name, "served": served, "storage": name == "v1", "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "properties": { field: { "type": "string" } } } } })
        };
        let crd = |versions: &[Value], strategy: &str| json!({ "spec": { "versions": versions, "conversion": { "strategy": strategy } } });
        let one = crd(&[version("v1", "a", true)], "None");
        let two = crd(&[version("v1", "a", true), version("v2", "a", true)], "None");
        assert!(suffices(&two, &one, false) && !suffices(&one, &two, false));
        assert!(!suffices(&two, &two, true), "nothing converts");
        assert!(suffices(
            &crd(&[version("v1", "a", true), version("v2", "a", true)], "Webhook"),
            &two,
            true
        ));
        assert!(!suffices(&crd(&[version("v1", "a", false)], "None"), &one, false));
        assert!(!suffices(&crd(&[version("v1", "b", true)], "None"), &one, false));
        let mut without = one.clone();
        without["spec"]["versions"][0]["subresources"] = Value::Null;
        assert!(!suffices(&without, &one, false));
    }
}
