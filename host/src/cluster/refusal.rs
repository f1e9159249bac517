//! Explains refusals of the API server and what to do about them.

use std::time::Duration;

use kube::core::Status;

use crate::config::ServiceAccount;

/// Returns the delay that the API server asks for.
pub(crate) fn asked_delay(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

/// Reports whether the object of this name does not exist. Two other things are not found, too: the path of a kind
/// that is not served, or not yet by an API server that has just started, and whatever an admission webhook, whose
/// refusal the API server passes on, was looking for.
pub(crate) fn is_missing_object(status: &Status, name: &str) -> bool {
    let is_named = status
        .details
        .as_ref()
        .is_some_and(|details| details.name == name);
    status.code == 404 && is_named && !is_of_a_webhook(status)
}

/// Reports whether an admission webhook refused the request.
pub(crate) fn is_of_a_webhook(status: &Status) -> bool {
    is_message_of_a_webhook(&status.message)
}

/// The same by the message alone.
pub(crate) fn is_message_of_a_webhook(message: &str) -> bool {
    message.starts_with("admission webhook ")
}

/// Returns the server's message, with advice where it is not obvious what to do.
pub(crate) fn refusal(status: &Status, acts_as: Option<&ServiceAccount>) -> String {
    let message = &status.message;
    match (status.code, acts_as) {
        (401, _) => unknown_to_the_server(message),
        (403, Some(account)) if message.contains("cannot impersonate") => format!(
            "{message}; the controller acts as the ServiceAccount {account}: give the host's role the verb impersonate on \
             serviceaccounts"
        ),
        (403, _) if message.contains("exceeded quota") => {
            format!("{message}; raise that ResourceQuota, or request less")
        }
        // A refusal by an admission plugin does not depend on who asks.
        (403, Some(account)) if is_missing_permission(message) => format!(
            "{message}; grant that permission to the ServiceAccount {account}, which the controller impersonates, and check that it exists"
        ),
        (403, None) if is_missing_permission(message) => {
            format!("{message}; give the host's role that permission")
        }
        (409, _) if is_field_conflict(message) => {
            format!(
                "{message}; another manager has set these fields: remove them there, or from the plugin's answer"
            )
        }
        _ => message.clone(),
    }
}

/// Reports whether the authorizer refused, by its own message or by that of
/// [`super::resource_client::ResourceClient::complete`].
fn is_missing_permission(message: &str) -> bool {
    message.contains("User \"") || message.contains(": the host cannot ")
}

/// Reports whether a server-side apply conflicted with one or several fields of another manager.
pub(super) fn is_field_conflict(message: &str) -> bool {
    message.contains("conflict with \"") || message.contains("conflicts with \"")
}

/// Explains that the API server does not accept the host's token.
pub(crate) fn unknown_to_the_server(message: &str) -> String {
    format!(
        "{message}: the API server does not accept the host's token; check that its ServiceAccount exists and that the token belongs to it"
    )
}
