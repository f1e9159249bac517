//! What a WebApp reports.

use operator_plugin::{DEPLOYMENT, Request};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::WebAppSpec;

/// The observed state of a web application.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WebAppStatus {
    /// How many replicas exist.
    pub(crate) replicas: i64,
    /// How many of them are Ready.
    pub(crate) ready_replicas: i64,
    /// Selects the pods, for the subresource `scale`.
    pub(crate) selector: String,
    /// Where the application is reached.
    pub(crate) url: String,
}

impl WebAppStatus {
    pub(crate) fn observe(request: &Request<WebAppSpec, Self>) -> Self {
        let name = &request.parent.name;
        let deployment = request.child(DEPLOYMENT, name);
        let count = |path| {
            deployment
                .and_then(|deployment| deployment.integer(path))
                .unwrap_or_default()
        };
        let url = match &request.parent.spec.host {
            Some(host) if host.tls_secret.is_some() => format!("https://{}/", host.name),
            Some(host) => format!("http://{}/", host.name),
            None => {
                let namespace = request.parent.namespace.as_deref().unwrap_or_default();
                format!("http://{name}.{namespace}/")
            }
        };
        Self {
            replicas: count("/status/replicas"),
            ready_replicas: count("/status/readyReplicas"),
            selector: format!("apps.example.com/webapp={name}"),
            url,
        }
    }
}
