//! How users give orders about versions: a Controller has fields for them, a controller of the file has annotations on the
//! definition of its kind.

use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::definitions::{installed, owning};
use operator_host_cluster::discovery::controllers;
use operator_host_config::{ControllerConfig, object};
use operator_host_core::object::{PIN_ANNOTATION, PROMOTE_ANNOTATION};
use operator_host_delivery::candidate_check::OrderKind;

/// Returns the command that gives an order about a version; without a version it takes the order back. `definition` is the name of
/// the kind's definition.
pub fn command(
    config: &ControllerConfig,
    definition: Option<&str>,
    order: OrderKind,
    digest: Option<&str>,
) -> String {
    let (field, annotation) = names(order);
    match definition {
        _ if config.is_object() => {
            let patch = json!({"spec": {"version": {field: digest}}});
            let (plural, group, name) = (object::PLURAL, object::GROUP, &config.name);
            format!("kubectl patch {plural}.{group} {name} --type merge -p '{patch}'")
        }
        Some(definition) => {
            let value = digest.map_or_else(|| "-".to_owned(), |digest| format!("={digest}"));
            format!("kubectl annotate crd {definition} {annotation}{value} --overwrite")
        }
        None => {
            let field = match order {
                OrderKind::Promote => "proving.promote",
                OrderKind::Pin => "sha256",
            };
            format!("`{field}: {}` in the configuration", digest.unwrap_or_default())
        }
    }
}

/// Returns who gave an order, by the field manager of what gives it.
pub(super) async fn who(
    client: &Client,
    config: &ControllerConfig,
    definition: &str,
    order: OrderKind,
) -> Option<String> {
    let (field, annotation) = names(order);
    let field = format!("f:{field}");
    if config.is_object() {
        let api = Api::<DynamicObject>::all_with(client.clone(), &controllers().api);
        let one = ListParams::default().fields(&format!("metadata.name={}", config.name));
        let object = api.list(&one).await.ok()?.items.into_iter().next()?;
        let object = serde_json::to_value(object).ok()?;
        return manager_of(&object, &["f:spec", "f:version", &field])
            .or_else(|| manager_of(&object, &["f:spec", "f:proving", &field]));
    }
    let annotation = format!("f:{annotation}");
    let definition = installed(client, definition, &config.name).await.ok()??;
    manager_of(&definition, &["f:metadata", "f:annotations", &annotation])
}

const fn names(order: OrderKind) -> (&'static str, &'static str) {
    match order {
        OrderKind::Promote => ("promote", PROMOTE_ANNOTATION),
        OrderKind::Pin => ("pin", PIN_ANNOTATION),
    }
}

/// Returns the field manager of a field: the last one to write it, where several own it.
fn manager_of(object: &Value, path: &[&str]) -> Option<String> {
    let last = owning(object, path).max_by_key(|entry| entry["time"].as_str());
    last?["manager"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_of_a_field_is_the_last_that_wrote_it() {
        let entry = |manager: &str, time: &str, fields: Value| json!({ "manager": manager, "time": time, "fieldsV1": fields });
        let annotated = |field: &str| json!({ "f:metadata": { "f:annotations": { field: {} } } });
        let object = json!({ "metadata": { "managedFields": [
            entry("first", "2026-01-01T00:00:00Z", annotated("f:a")),
            entry("last", "2026-01-02T00:00:00Z", annotated("f:a")),
            entry("other", "2026-01-03T00:00:00Z", json!({ "f:spec": { "f:version": { "f:pin": {} } } })),
            { "manager": "kube-apiserver", "fieldsV1": { "f:status": {} } },
        ] } });
        let manager = |path: &[&str]| manager_of(&object, path);
        assert_eq!(
            manager(&["f:metadata", "f:annotations", "f:a"]).as_deref(),
            Some("last")
        );
        assert_eq!(
            manager(&["f:spec", "f:version", "f:pin"]).as_deref(),
            Some("other")
        );
        assert_eq!(manager(&["f:spec", "f:version", "f:promote"]), None);
        assert_eq!(manager_of(&json!({}), &["f:spec"]), None);
    }
}
