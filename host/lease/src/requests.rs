//! Requests for the Lease. Each has a timeout, and each error is a message for users.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::PostParams;
use thiserror::Error;

use operator_host_cluster::client::chain;
use operator_host_cluster::refusal::{asked_delay, is_about_namespaces, is_missing_object};
use operator_host_config::leadership::LeadershipConfig;

/// Why a request failed.
#[derive(Debug, Error)]
#[error("{message}")]
pub(super) struct LeaseError {
    /// For users, with what to do.
    message: String,
    /// The delay before the next request that the API server asks for.
    pub(super) retry_after: Option<Duration>,
}

impl LeaseError {
    /// Of a request without an answer, there is no error.
    fn new(verb: &str, name: &str, error: Option<&kube::Error>) -> Self {
        let (why, retry_after) = match error {
            None => ("no answer from the API server in time".to_owned(), None),
            Some(kube::Error::Api(status)) if status.code == 403 => {
                let advice = "give the host's role the rule on leases that `operator-host rbac` prints";
                (format!("{}; {advice}", status.message), asked_delay(status))
            }
            Some(error @ kube::Error::Api(status)) => (chain(error), asked_delay(status)),
            Some(error) => (chain(error), None),
        };
        Self {
            message: format!("cannot {verb} the Lease {name}: {why}"),
            retry_after,
        }
    }
}

/// The result of a write.
pub(super) enum LeaseOutcome {
    /// The write succeeded; this is the Lease now.
    Won(Lease),
    /// Another writer was faster; this is the Lease now.
    Lost(Option<Lease>),
    /// The write failed, or may have.
    Failed(LeaseError),
}

/// Reads and writes the Lease.
pub(super) struct Requests {
    api: Api<Lease>,
    name: String,
    /// The most time for one request, so that there is time for a second attempt.
    limit: Duration,
}

impl Requests {
    pub(super) fn new(api: Api<Lease>, config: &LeadershipConfig) -> Self {
        Self {
            api,
            name: config.name.clone(),
            limit: config.timing.renew_deadline / 2,
        }
    }

    pub(super) async fn write(&self, record: &Lease) -> LeaseOutcome {
        let name = &self.name;
        let params = PostParams {
            field_manager: Some("operator-host".to_owned()),
            ..PostParams::default()
        };
        let request = async {
            match record.metadata.resource_version {
                Some(_) => self.api.replace(name, &params, record).await,
                None => self.api.create(&params, record).await,
            }
        };
        match self.bounded(request).await {
            Ok(lease) => LeaseOutcome::Won(lease),
            Err(Some(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                match self.read().await {
                    Ok(None) if is_about_namespaces(&status) => LeaseOutcome::Failed(LeaseError {
                        message: format!(
                            "cannot write the Lease {name}: {}; create the namespace, or set another in \
                             `lease.namespace` of the configuration",
                            status.message
                        ),
                        retry_after: None,
                    }),
                    Ok(lease) => LeaseOutcome::Lost(lease),
                    Err(error) => LeaseOutcome::Failed(error),
                }
            }
            Err(error) => LeaseOutcome::Failed(LeaseError::new("write", name, error.as_ref())),
        }
    }

    /// Reads the Lease; `None` when it does not exist.
    pub(super) async fn read(&self) -> Result<Option<Lease>, LeaseError> {
        match self.bounded(self.api.get(&self.name)).await {
            Ok(lease) => Ok(Some(lease)),
            Err(Some(kube::Error::Api(status))) if is_missing_object(&status, &self.name) => Ok(None),
            Err(error) => Err(LeaseError::new("read", &self.name, error.as_ref())),
        }
    }

    async fn bounded<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Option<kube::Error>> {
        match tokio::time::timeout(self.limit, request).await {
            Ok(answer) => answer.map_err(Some),
            Err(_elapsed) => Err(None),
        }
    }
}
