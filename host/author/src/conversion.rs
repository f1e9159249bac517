//! The conversion webhook in CustomResourceDefinitions.

use serde_json::Value;

use super::reach::Client;
use operator_host_core::crd::definition::conversion_by;
use operator_host_webhook::CONVERT_PATH;

/// Lets the webhook convert the versions of a definition.
pub(crate) fn add_webhook(definition: &mut Value, client: &Client) {
    definition["spec"]["conversion"] = conversion_by(&client.at(CONVERT_PATH));
}

/// Serves only the stored version of a definition. If the API server served another version without a webhook, it would drop the
/// fields that the stored version does not have.
pub(crate) fn serve_stored_only(definition: &mut Value) {
    let versions = definition["spec"]["versions"].as_array_mut();
    for version in versions.into_iter().flatten() {
        if version["storage"] != true {
            version["served"] = false.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn without_a_webhook_only_the_stored_version_is_served() {
        let version = |name: &str, served: bool, storage: bool| json!({ "name": name, "served": served, "storage": storage });
        let mut definition =
            json!({ "spec": { "versions": [version("v1", true, false), version("v2", true, true)] } });
        serve_stored_only(&mut definition);
        assert_eq!(
            definition,
            json!({ "spec": { "versions": [version("v1", false, false), version("v2", true, true)] } })
        );
    }
}
