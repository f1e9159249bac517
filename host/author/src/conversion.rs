//! The conversion webhook in CustomResourceDefinitions.

use serde_json::Value;

use super::reach::Client;
use operator_host_core::crd::definition::conversion_by;
use operator_host_webhook::CONVERT_PATH;

/// Returns a definition whose versions the webhook converts.
pub(crate) fn with_webhook(definition: &Value, client: &Client) -> Value {
    let mut definition = definition.clone();
    definition["spec"]["conversion"] = conversion_by(&client.at(CONVERT_PATH));
    definition
}

/// Returns a definition of which only the stored version is served. If the API server served another version without a
/// webhook, it would drop the fields that the stored version does not have.
pub(crate) fn without_webhook(definition: &Value) -> Value {
    let mut definition = definition.clone();
    for version in definition["spec"]["versions"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        if version["storage"] != true {
            version["served"] = false.into();
        }
    }
    definition
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn without_a_webhook_only_the_stored_version_is_served() {
        let version = |name: &str, served: bool, storage: bool| json!({ "name": name, "served": served, "storage": storage });
        let definition =
            json!({ "spec": { "versions": [version("v1", true, false), version("v2", true, true)] } });
        assert_eq!(
            without_webhook(&definition),
            json!({ "spec": { "versions": [version("v1", false, false), version("v2", true, true)] } })
        );
    }
}
