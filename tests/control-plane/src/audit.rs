//! The audit log: who wrote what, as the API server saw it.

use std::path::Path;

use serde::Deserialize;

use crate::error::{Context, Error};

/// Every write once, when it is answered, without bodies; and what ServiceAccounts read, of which a watch is there
/// twice: when it starts and when it ends.
pub(crate) const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: [\"system:serviceaccounts\"]
- level: None
  verbs: [get, list, watch]
- level: Metadata
";

/// One request, as the API server's audit log has it: a write, or what a ServiceAccount read.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEvent {
    /// `create`, `update`, `patch`, `delete` or `deletecollection`; of a read `get`, `list` or `watch`. A server-side apply is a `patch` whose
    /// URI names its field manager.
    pub verb: String,
    /// The request's path and query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// Who asked.
    pub user: AuditUser,
    /// In whose name; `None` when in their own.
    pub impersonated_user: Option<AuditUser>,
    /// When the request came, RFC 3339 with microseconds, so that texts compare as times.
    #[serde(default)]
    pub request_received_timestamp: String,
    /// When it was answered, likewise.
    #[serde(default)]
    pub stage_timestamp: String,
    /// The program that asked, as it calls itself.
    #[serde(default)]
    pub user_agent: String,
    /// The object; `None` when the request was not about one.
    pub object_ref: Option<AuditObject>,
    /// The answer.
    pub response_status: Option<AuditStatus>,
}

/// The author of an audited request.
#[derive(Clone, Debug, Deserialize)]
pub struct AuditUser {
    /// The user's name; empty when the API server does not know who asked.
    #[serde(default)]
    pub username: String,
    /// The groups.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// The object of an audited request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuditObject {
    /// The plural, such as `pods`.
    pub resource: String,
    /// Such as `status`; empty for the object itself.
    pub subresource: String,
    /// Empty for a cluster-scoped object.
    pub namespace: String,
    /// Empty when the server chose the name.
    pub name: String,
    /// Empty for the core group.
    pub api_group: String,
    /// Such as `v1`.
    pub api_version: String,
}

/// The answer to an audited request.
#[derive(Clone, Debug, Deserialize)]
pub struct AuditStatus {
    /// The HTTP status.
    pub code: u16,
}

impl AuditEvent {
    /// The field manager that the request named.
    #[must_use]
    pub fn field_manager(&self) -> Option<String> {
        let query = self.request_uri.split_once('?')?.1;
        let value = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("fieldManager="))?;
        Some(value.replace("%2F", "/").replace("%2f", "/"))
    }
}

/// Every event of the log so far. A line that is still being written is left out.
pub(crate) fn read(log: &Path) -> Result<Vec<AuditEvent>, Error> {
    let text = std::fs::read_to_string(log).context(|| format!("read the audit log {}", log.display()))?;
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .map_err(|source| Error::Audit {
            log: log.to_owned(),
            source,
        })
}
