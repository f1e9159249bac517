//! Requests for Leases. Each has a timeout, and each error is a message for users.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use thiserror::Error;
use tracing::debug;

use super::lease::GROUP_LABEL;
use operator_host_cluster::client::chain;
use operator_host_cluster::refusal::{asked_delay, is_missing_object};
use operator_host_config::leadership::{LeadershipConfig, LeadershipMode, Timing};

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
    pub(super) fn new(verb: &str, name: &str, error: Option<&kube::Error>) -> Self {
        Self {
            message: in_words(verb, name, error),
            retry_after: match error {
                Some(kube::Error::Api(status)) => asked_delay(status),
                _ => None,
            },
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

/// The Leases of a group of replicas.
pub(super) struct Leases {
    api: Api<Lease>,
    /// Whether there is only the Lease that has the name of the group. A role that names it allows no list.
    is_single: bool,
    timing: Timing,
    group: String,
}

impl Leases {
    pub(super) fn new(api: Api<Lease>, config: &LeadershipConfig) -> Self {
        Self {
            api,
            is_single: config.mode != LeadershipMode::PerController,
            timing: config.timing,
            group: config.name.clone(),
        }
    }

    /// Writes all records concurrently; returns each result with the time at which the request was sent.
    pub(super) async fn write_all(
        &self,
        records: Vec<(String, Lease)>,
    ) -> Vec<(String, Instant, LeaseOutcome)> {
        let writes = records.into_iter().map(|(name, record)| async move {
            let sent = Instant::now();
            let outcome = self.write(&record).await;
            (name, sent, outcome)
        });
        join_all(writes).await
    }

    pub(super) async fn write(&self, record: &Lease) -> LeaseOutcome {
        let name = record.metadata.name.clone().unwrap_or_default();
        let params = PostParams {
            field_manager: Some("operator-host".to_owned()),
            ..PostParams::default()
        };
        let request = async {
            match record.metadata.resource_version {
                Some(_) => self.api.replace(&name, &params, record).await,
                None => self.api.create(&params, record).await,
            }
        };
        match self.bounded(request).await {
            Ok(lease) => LeaseOutcome::Won(lease),
            Err(Some(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                match self.get(&name).await {
                    Ok(None) if is_missing_namespace(&status) => LeaseOutcome::Failed(LeaseError {
                        message: format!(
                            "cannot write the Lease {name}: {}; create the namespace, or set another in \
                             `lease.namespace` of the configuration",
                            status.message
                        ),
                        retry_after: None,
                    }),
                    Ok(lease) => LeaseOutcome::Lost(lease),
                    Err(error) => LeaseOutcome::Failed(LeaseError::new("read", &name, error.as_ref())),
                }
            }
            Err(error) => LeaseOutcome::Failed(LeaseError::new("write", &name, error.as_ref())),
        }
    }

    /// Reads one Lease; `None` when it does not exist.
    async fn get(&self, name: &str) -> Result<Option<Lease>, Option<kube::Error>> {
        match self.bounded(self.api.get(name)).await {
            Err(Some(kube::Error::Api(status))) if is_missing_object(&status, name) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Reads the Leases of this group, and those in `is_known`, whatever their labels are: somebody may have removed one.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(super) async fn all(
        &self,
        is_known: impl Fn(&str) -> bool,
    ) -> Result<BTreeMap<String, Lease>, LeaseError> {
        let failed = |verb, error: Option<kube::Error>| LeaseError::new(verb, &self.group, error.as_ref());
        let found = if self.is_single {
            let lease = self.get(&self.group).await;
            lease
                .map_err(|error| failed("read", error))?
                .into_iter()
                .collect()
        } else {
            let list = self.bounded(self.api.list(&ListParams::default())).await;
            list.map_err(|error| failed("list", error))?.items
        };
        let named = found
            .into_iter()
            .filter_map(|lease| Some((lease.metadata.name.clone()?, lease)));
        let is_ours = |(name, lease): &(String, Lease)| {
            let group = lease.metadata.labels.as_ref().and_then(|l| l.get(GROUP_LABEL));
            is_known(name) || group == Some(&self.group)
        };
        Ok(named.filter(is_ours).collect())
    }

    /// Deletes the Lease with this version, or with any version. A failure is only logged.
    pub(super) async fn delete(&self, name: &str, version: Option<String>) {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: version,
                uid: None,
            }),
            ..DeleteParams::default()
        };
        if let Err(error) = self.bounded(self.api.delete(name, &params)).await {
            debug!("{}", in_words("delete", name, error.as_ref()));
        }
    }

    /// Limits the time of a request, so that there is time for a second attempt.
    async fn bounded<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Option<kube::Error>> {
        match tokio::time::timeout(self.timing.renew_deadline / 2, request).await {
            Ok(answer) => answer.map_err(Some),
            Err(_elapsed) => Err(None),
        }
    }
}

/// Whether the API server reports that the namespace does not exist, rather than the Lease.
fn is_missing_namespace(status: &kube::core::Status) -> bool {
    status
        .details
        .as_ref()
        .is_some_and(|details| details.kind == "namespaces")
}

fn in_words(verb: &str, name: &str, error: Option<&kube::Error>) -> String {
    let why = match error {
        None => "no answer from the API server in time".to_owned(),
        Some(kube::Error::Api(status)) if status.code == 403 => format!(
            "{}; give the host's role the rule on leases that `operator-host rbac` prints",
            status.message
        ),
        Some(error) => chain(error),
    };
    format!("cannot {verb} the Lease {name}: {why}")
}
