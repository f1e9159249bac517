//! ServiceAccounts from the outside: a token as a pod would have it, in a kubeconfig.

use std::path::PathBuf;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;

use crate::cluster::ControlPlane;
use crate::error::Error;

/// Longer than any test, or any evening in the playground.
const LIFETIME: i64 = 24 * 60 * 60;

impl ControlPlane {
    /// A kubeconfig with a new token of a ServiceAccount that exists; its namespace is the default one, as in a pod.
    ///
    /// # Errors
    /// [`Error::Api`] when it does not, [`Error::Io`] when the file cannot be written.
    pub async fn kubeconfig_of_account(&self, namespace: &str, name: &str) -> Result<PathBuf, Error> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client().await?, namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(LIFETIME),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await?;
        let token = answer.status.and_then(|status| status.token).unwrap_or_default();
        self.write_kubeconfig(&format!("{namespace}-{name}"), &token, namespace)
    }
}
