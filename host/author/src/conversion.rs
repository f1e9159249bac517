//! The conversion webhook in CustomResourceDefinitions.

use serde_json::Value;

use operator_host_core::crd::definition::conversion_by;
use operator_host_webhook::{CONVERT_PATH, PATH};

/// Returns a definition whose versions this webhook converts. `client` is the `clientConfig` of a webhook for reviews.
pub(crate) fn with_webhook(definition: &Value, mut client: Value) -> Value {
    if let Some(path) = client.pointer_mut("/service/path") {
        *path = CONVERT_PATH.into();
    }
    if let Some(url) = client["url"].as_str() {
        let host = url
            .strip_suffix(PATH)
            .or(url.strip_suffix(CONVERT_PATH))
            .unwrap_or(url);
        client["url"] = format!("{}{CONVERT_PATH}", host.trim_end_matches('/')).into();
    }
    let mut definition = definition.clone();
    definition["spec"]["conversion"] = conversion_by(&client);
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

    #[test]
    fn a_definition_gets_the_host_as_its_webhook() {
        let client = |client: Value| {
            let definition = with_webhook(&json!({ "kind": "CustomResourceDefinition", "spec": {} }), client);
            assert_eq!(definition["spec"]["conversion"]["strategy"], "Webhook");
            definition["spec"]["conversion"]["webhook"]["clientConfig"].clone()
        };
        let service = json!({ "namespace": "n", "name": "s", "port": 443, "path": "/validate" });
        assert_eq!(
            client(json!({ "service": service, "caBundle": "QQ==" })),
            json!({
                "service": { "namespace": "n", "name": "s", "port": 443, "path": "/convert" }, "caBundle": "QQ==",
            })
        );
        for url in [
            "https://h:8443",
            "https://h:8443/",
            "https://h:8443/validate",
            "https://h:8443/convert",
        ] {
            assert_eq!(
                client(json!({ "url": url })),
                json!({ "url": "https://h:8443/convert" })
            );
        }
    }
}
