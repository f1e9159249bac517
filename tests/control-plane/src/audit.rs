//! The audit log: who wrote what, as recorded by the API server.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;

use anyhow::Context as _;

/// Records every write once, when it is answered, without bodies; and reads by ServiceAccounts, of which a watch is
/// recorded twice: at its start and at its end.
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

/// One request in the API server's audit log: a write, or a read by a ServiceAccount.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEvent {
    /// `create`, `update`, `patch`, `delete` or `deletecollection`; for reads `get`, `list` or `watch`. A
    /// server-side apply is a `patch` whose URI contains its field manager.
    pub verb: String,
    /// The request's path and query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// The user who sent the request.
    pub user: AuditUser,
    /// The impersonated user, if any.
    pub impersonated_user: Option<AuditUser>,
    /// When the request was received, in RFC 3339 with microseconds, so that strings compare as times.
    #[serde(default)]
    pub request_received_timestamp: String,
    /// The user agent.
    #[serde(default)]
    pub user_agent: String,
    /// The object; `None` when the request was not about one.
    pub object_ref: Option<AuditObject>,
    /// The response.
    pub response_status: Option<AuditStatus>,
}

/// The user who sent an audited request.
#[derive(Clone, Debug, Deserialize)]
pub struct AuditUser {
    /// The user's name; empty when the API server does not know the user.
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
    /// For example `status`; empty for the object itself.
    pub subresource: String,
    /// Empty for a cluster-scoped object.
    pub namespace: String,
    /// Empty when the server chose the name.
    pub name: String,
}

/// The response to an audited request.
#[derive(Clone, Debug, Deserialize)]
pub struct AuditStatus {
    /// The HTTP status.
    pub code: u16,
}

impl AuditEvent {
    /// Returns the field manager of the request.
    #[must_use]
    pub fn field_manager(&self) -> Option<String> {
        let query = self.request_uri.split_once('?')?.1;
        let value = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("fieldManager="))?;
        Some(value.replace("%2F", "/").replace("%2f", "/"))
    }
}

/// What was read of a log so far. A long log is read often, for a few new events.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// The events about each text, and the number of bytes that were read for it.
    about: Mutex<HashMap<String, (Vec<AuditEvent>, u64)>>,
}

impl Reader {
    /// Returns every event of the log whose line contains `text`. An incomplete last line is skipped.
    pub(crate) fn read_about(&self, log: &Path, text: &str) -> anyhow::Result<Vec<AuditEvent>> {
        let mut about = self.about.lock().unwrap_or_else(PoisonError::into_inner);
        let (events, read) = about.entry(text.to_owned()).or_default();
        let (new, end) = parse(log, *read, text)?;
        events.extend(new);
        *read = end;
        Ok(events.clone())
    }
}

/// Returns the events of the log after its first `from` bytes, and the number of bytes in complete events.
pub fn read_since(log: &Path, from: u64) -> anyhow::Result<(Vec<AuditEvent>, u64)> {
    parse(log, from, "")
}

fn parse(log: &Path, from: u64, about: &str) -> anyhow::Result<(Vec<AuditEvent>, u64)> {
    let what = || format!("read the audit log {}", log.display());
    let mut file = File::open(log).with_context(what)?;
    file.seek(SeekFrom::Start(from)).with_context(what)?;
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(what)?;
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let events: Result<Vec<_>, _> = text[..whole]
        .lines()
        .filter(|line| line.contains(about))
        .map(event)
        .collect();
    let events = events.with_context(|| format!("{} has a line that is no audit event", log.display()))?;
    Ok((events, from + whole as u64))
}

/// A server that is killed can leave half a line; the next one appends to it.
fn event(line: &str) -> serde_json::Result<AuditEvent> {
    let start = line.rfind(r#"{"kind":"Event""#).unwrap_or(0);
    serde_json::from_str(&line[start..])
}
