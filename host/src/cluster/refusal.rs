//! What the API server refuses: its words, and what to do about it.

use std::time::Duration;

use kube::core::Status;

use crate::config::ServiceAccount;

/// How long the API server asks to be left alone.
pub(crate) fn asked_delay(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

/// The server's words, and what to do where it is not plain.
pub(crate) fn refusal(status: &Status, acts_as: Option<&ServiceAccount>) -> String {
    let said = &status.message;
    match (status.code, acts_as) {
        (401, _) => unknown_to_the_server(said),
        (403, Some(account)) if said.contains("cannot impersonate") => format!(
            "{said}; the controller acts as the ServiceAccount {account}: give the host's role the verb impersonate on it"
        ),
        (403, _) if said.contains("exceeded quota") => {
            format!("{said}; raise that ResourceQuota, or ask for less")
        }
        // Not what an admission plugin refuses, whoever asks.
        (403, Some(account)) if is_missing_permission(said) => format!(
            "{said}; give the ServiceAccount {account}, as which the controller acts, that permission, and see that it exists"
        ),
        (403, None) if is_missing_permission(said) => format!("{said}; give the host's role that permission"),
        (409, _) if is_field_conflict(said) => {
            format!(
                "{said}; another manager has set these fields: remove them there, or from the plugin's answer"
            )
        }
        _ => said.clone(),
    }
}

/// Whether it is the authorizer that refuses, in its own words or in [`super::resource_client::Objects::complete`]'s.
fn is_missing_permission(said: &str) -> bool {
    said.contains("User \"") || said.contains(": the host cannot ")
}

/// Whether a server-side apply was refused for fields of another manager: one field, or several.
pub(super) fn is_field_conflict(said: &str) -> bool {
    said.contains("conflict with \"") || said.contains("conflicts with \"")
}

/// What to do when the API server does not take the host's token.
pub(crate) fn unknown_to_the_server(said: &str) -> String {
    format!(
        "{said}: the API server does not know the host; see that its ServiceAccount exists and its token is of that one"
    )
}
