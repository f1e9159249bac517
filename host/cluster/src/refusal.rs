//! Explains refusals of the API server and what to do about them.

use std::time::Duration;

use kube::core::Status;
use serde_json::Value;

use operator_host_config::ServiceAccount;
use operator_host_core::object::{NamespacedName, secret};

/// What to do about fields of another manager.
const FIELD_ADVICE: &str =
    "another manager has set these fields: remove them there, or from the plugin's answer";

/// Returns the delay that the API server asks for.
pub fn asked_delay(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

/// Reports whether the object of this name does not exist. The status 404 has two other causes: the API server does not
/// serve the kind, perhaps because it has just started; or an admission webhook did not find what it was looking for.
pub fn is_missing_object(status: &Status, name: &str) -> bool {
    let is_named = status
        .details
        .as_ref()
        .is_some_and(|details| details.name == name);
    status.code == 404 && is_named && !is_of_a_webhook(status)
}

/// Reports whether a refusal is about the namespace, and not about an object in it.
pub fn is_about_namespaces(status: &Status) -> bool {
    let details = status.details.as_ref();
    details.is_some_and(|details| details.kind == "namespaces")
}

/// Reports whether the namespace of the object of this name does not exist.
pub(super) fn is_missing_namespace(status: &Status, name: &NamespacedName) -> bool {
    let namespace = name.namespace.as_deref();
    let is_its_own = namespace.is_some_and(|namespace| is_missing_object(status, namespace));
    is_its_own && is_about_namespaces(status)
}

/// How etcd, and the API server's connection to it, refuse a large object.
const TOO_LARGE: [&str; 2] = [
    "etcdserver: request is too large",
    "trying to send message larger than max",
];

/// How server-side apply refuses a value that it cannot convert to the type of its field. Source: the package
/// `managedfields` of Kubernetes' apimachinery.
const UNCONVERTIBLE: [&str; 4] = [
    "failed to create typed patch object",
    "failed to convert new object",
    "failed to convert new typed object",
    "failed to convert to unversioned",
];

/// Returns the HTTP status that a refusal deserves: the API server calls some errors internal that are the object's fault.
pub(super) fn status_of(status: &Status) -> u16 {
    let says = |texts: &[&str]| texts.iter().any(|text| status.message.contains(text));
    match status.code {
        500 if says(&TOO_LARGE) => 413,
        500 if says(&UNCONVERTIBLE) => 422,
        code => code,
    }
}

/// Reports whether an admission webhook refused the request.
pub fn is_of_a_webhook(status: &Status) -> bool {
    is_message_of_a_webhook(&status.message)
}

/// The same by the message alone.
pub fn is_message_of_a_webhook(message: &str) -> bool {
    message.starts_with("admission webhook ")
}

/// How an API server says that a field cannot change. Source: the validations of updates in `pkg/apis` of Kubernetes.
const UNCHANGEABLE: [&str; 6] = [
    "immutable",
    "may not change",
    "may not be changed",
    "cannot change",
    "cannot be changed",
    "updates to ",
];

/// Reports whether the API server refused an update, and only because of fields that cannot change. What admission refuses is
/// something else, whatever it says.
pub fn is_immutable(status: &Status) -> bool {
    let causes = status.details.as_ref().map_or(&[][..], |details| &details.causes);
    let says_so = |message: &str| UNCHANGEABLE.iter().any(|words| message.contains(words));
    status.code == 422
        && status.reason == "Invalid"
        && !is_of_a_webhook(status)
        && !status.message.contains("denied request")
        && !causes.is_empty()
        && causes.iter().all(|cause| says_so(&cause.message))
}

/// Returns the server's message, with advice where it is not obvious what to do.
pub fn refusal(status: &Status, acts_as: Option<&ServiceAccount>) -> String {
    let message = &status.message;
    match (status_of(status), acts_as) {
        (413, _) => {
            format!("{message}; make the object smaller, or divide it: etcd takes 1.5 MiB by default")
        }
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
        // A child that was restored from a backup has them from the client that restored it.
        (409, _) if is_field_conflict(message) && message.contains(".annotations.operator-host.dev/") => {
            format!(
                "{message}; {FIELD_ADVICE}. Remove the annotations of operator-host.dev there: the host sets its own"
            )
        }
        (409, _) if is_field_conflict(message) => {
            format!("{message}; {FIELD_ADVICE}")
        }
        _ => message.clone(),
    }
}

/// What the API server writes before a value that it refuses, as far as a [`field::Error`] and a typed patch say it.
///
/// [`field::Error`]: https://pkg.go.dev/k8s.io/apimachinery/pkg/util/validation/field#Error
const QUOTES: [&str; 3] = ["Invalid value: ", "Unsupported value: ", "Duplicate value: "];
/// What the API server writes before a value whose end cannot be found.
const OPEN_QUOTES: [&str; 4] = [
    ", got ",
    "error found in #",
    "is missing in '",
    "unable to parse ",
];
/// Stands for a value that is not shown.
const HIDDEN: &str = "(hidden)";
/// The length below which a value of a Secret is not looked for: a message could contain it by chance.
const MIN_LENGTH: usize = 6;

/// Removes the values that the API server, or an admission webhook, quotes in a refusal of a Secret: the message is in
/// the status of the parent, in Events and in the log. `body` is what was sent.
pub fn without_values(message: &str, body: Option<&Value>) -> String {
    let mut shown = message.to_owned();
    for quote in QUOTES {
        let mut from = 0;
        while let Some(found) = shown[from..].find(quote) {
            let start = from + found + quote.len();
            let end = start + quoted(&shown[start..]).unwrap_or(shown.len() - start);
            shown.replace_range(start..end, HIDDEN);
            from = start + HIDDEN.len();
        }
    }
    for quote in OPEN_QUOTES {
        if let Some(found) = shown.find(quote) {
            shown.truncate(found + quote.len());
            shown.push_str(HIDDEN);
        }
    }
    for value in body.into_iter().flat_map(values) {
        if value.len() >= MIN_LENGTH {
            shown = shown.replace(&value, HIDDEN);
        }
    }
    shown
}

/// Returns the length of the quoted text, as Go writes it, with which a text begins.
fn quoted(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    let end = text.strip_prefix('"')?.find(|next| {
        let is_end = next == '"' && !is_escaped;
        is_escaped = next == '\\' && !is_escaped;
        is_end
    })?;
    Some(end + "\"\"".len())
}

/// Returns the values of a Secret, as they are and as they are encoded; the longest first.
fn values(secret: &Value) -> Vec<String> {
    let mut values = Vec::new();
    if let Some(secret) = secret.as_object() {
        secret::visit_values(secret, |field, _, value| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if field == "data" {
                let decoded = secret::decoded(value);
                values.extend(decoded.and_then(|bytes| String::from_utf8(bytes).ok()));
            }
            values.push(text);
        });
    }
    values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    values
}

/// Reports whether the authorizer refused, by its own message or by the one that the client of a resource completes.
pub fn is_missing_permission(message: &str) -> bool {
    message.contains("User \"") || message.contains(": the host cannot ")
}

/// Reports whether a server-side apply conflicted with one or several fields of another manager.
pub(super) fn is_field_conflict(message: &str) -> bool {
    message.contains("conflict with \"") || message.contains("conflicts with \"")
}

/// Explains that the API server does not accept the host's token.
pub fn unknown_to_the_server(message: &str) -> String {
    format!(
        "{message}: the API server does not accept the host's token; check that its ServiceAccount exists and that the token belongs to it"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As API servers have answered.
    #[test]
    fn a_refusal_of_a_secret_names_the_field_and_not_the_value() {
        for (message, shown) in [
            (
                "failed to create typed patch object (a/b; /v1, Kind=Secret): .stringData.password: expected string, got \
                 &value.valueUnstructured{Value:987654321}",
                "failed to create typed patch object (a/b; /v1, Kind=Secret): .stringData.password: expected string, got \
                 (hidden)",
            ),
            (
                "Secret \"s\" is invalid: [data[a b]: Invalid value: \"pw\\\"987654321\": must be x, type: Unsupported \
                 value: \"987654321\": supported values: \"y\"]",
                "Secret \"s\" is invalid: [data[a b]: Invalid value: (hidden): must be x, type: Unsupported value: \
                 (hidden): supported values: \"y\"]",
            ),
            (
                "Secret \"s\" is invalid: data: Invalid value: map[string]string{\"a\":\"987654321\"}: no",
                "Secret \"s\" is invalid: data: Invalid value: (hidden)",
            ),
            (
                "illegal base64, error found in #10 byte of ...|987654321|...",
                "illegal base64, error found in #(hidden)",
            ),
            (
                "secrets \"s\" is forbidden: exceeded quota: small",
                "secrets \"s\" is forbidden: exceeded quota: small",
            ),
        ] {
            assert_eq!(without_values(message, None), shown);
        }
    }

    #[test]
    fn a_webhook_that_quotes_a_value_does_not_make_it_public() {
        let body = json!({
            "stringData": {"a": "correct horse", "b": "abc", "c": 987_654_321},
            "data": {"d": "YmF0dGVyeSBzdGFwbGU="},
        });
        let message = "admission webhook \"w\" denied the request: correct horse, abc, 987654321, battery staple and \
                       YmF0dGVyeSBzdGFwbGU= are weak";
        assert_eq!(
            without_values(message, Some(&body)),
            "admission webhook \"w\" denied the request: (hidden), abc, (hidden), (hidden) and (hidden) are weak"
        );
    }
}
