//! Requests for Leases. Each has a timeout, and each error is a message for users.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use tracing::debug;

use super::lease::GROUP_LABEL;
use crate::cluster::client::chain;
use crate::cluster::refusal::is_missing_object;
use crate::config::leadership::{LeadershipConfig, LeadershipMode};

/// The result of a write.
pub(super) enum LeaseOutcome {
    /// The write succeeded; this is the Lease now.
    Won(Lease),
    /// Another writer was faster; this is the Lease now.
    Lost(Option<Lease>),
    /// A message with what to do.
    Failed(String),
}

/// The Leases of a group of replicas.
pub(super) struct Leases {
    api: Api<Lease>,
    group: String,
    /// Whether the group has more Leases than the one with its name.
    shared: bool,
    /// How long to wait for an answer.
    patience: Duration,
}

impl Leases {
    pub(super) fn new(api: Api<Lease>, config: &LeadershipConfig) -> Self {
        Self {
            api,
            group: config.name.clone(),
            shared: config.mode == LeadershipMode::PerController,
            patience: config.timing.renew_deadline / 2,
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
                    Ok(None) if is_missing_namespace(&status) => LeaseOutcome::Failed(format!(
                        "cannot write the Lease {name}: {}; create the namespace, or set another in `lease.namespace` of \
                         the configuration",
                        status.message
                    )),
                    Ok(lease) => LeaseOutcome::Lost(lease),
                    Err(error) => LeaseOutcome::Failed(in_words("read", &name, error.as_ref())),
                }
            }
            Err(error) => LeaseOutcome::Failed(in_words("write", &name, error.as_ref())),
        }
    }

    /// Reads one Lease; `None` when it does not exist.
    async fn get(&self, name: &str) -> Result<Option<Lease>, Option<kube::Error>> {
        match self.bounded(self.api.get(name)).await {
            Err(Some(kube::Error::Api(status))) if is_missing_object(&status, name) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Reads the Leases of this group, and those in `is_known`, by name.
    ///
    /// # Errors
    /// Returns a message with what to do.
    pub(super) async fn read(
        &self,
        is_known: impl Fn(&str) -> bool,
    ) -> Result<BTreeMap<String, Lease>, String> {
        let what = if self.shared { "list" } else { "read" };
        let words = |error: Option<kube::Error>| in_words(what, &self.group, error.as_ref());
        let found = if self.shared {
            // Not listed by label, because the label could have been removed.
            let list = self.bounded(async { self.api.list(&ListParams::default()).await });
            list.await.map_err(words)?.items
        } else {
            let lease = self.get(&self.group).await;
            lease.map_err(words)?.into_iter().collect()
        };
        let named = found.into_iter().filter_map(|lease| {
            let name = lease.metadata.name.clone()?;
            let group = lease.metadata.labels.as_ref().and_then(|l| l.get(GROUP_LABEL));
            let ours = is_known(&name) || group == Some(&self.group);
            ours.then_some((name, lease))
        });
        Ok(named.collect())
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
        match tokio::time::timeout(self.patience, request).await {
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
            "{}; give the host's role the verbs get, list, create, update and delete on leases in that namespace",
            status.message
        ),
        Some(error) => chain(error),
    };
    format!("cannot {verb} the Lease {name}: {why}")
}
