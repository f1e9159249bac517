//! The error of a request to the API server, and what it means for the reconcile.

use std::time::Duration;

use thiserror::Error;

use super::refusal::{
    is_field_conflict, is_message_of_a_webhook, is_missing_namespace, is_missing_object,
    is_missing_permission, is_of_a_webhook, status_of,
};
use operator_host_core::object::NamespacedName;

/// A request that failed.
#[derive(Clone, Debug, Error)]
#[error("cannot {verb} {kind} {name}: {message}")]
pub struct ApiError {
    /// `apply`, `create`, `delete` and the like.
    pub verb: &'static str,
    /// The kind of the object.
    pub kind: Box<str>,
    /// The name of the object.
    pub name: NamespacedName,
    /// The part that failed.
    pub fault: Fault,
    /// The API server's message, with the rejected fields and advice on what to do.
    pub message: Box<str>,
    /// Whether the API server refused only changes of immutable fields.
    pub is_immutable: bool,
    /// The delay before the next request that the API server asks for.
    pub retry_after: Option<Duration>,
}

/// The part that failed: the API server, the connection to it, or the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The API server responded with this HTTP status.
    Refused(u16),
    /// The object does not exist.
    Missing,
    /// The API server does not serve the kind, or does not serve it yet.
    NotServed,
    /// The object's namespace does not exist.
    NamespaceMissing,
    /// The object's namespace is being deleted, so nothing can be created in it.
    NamespaceTerminating,
    /// The API server responds with the same internal error again and again, while it answers others.
    Repeated,
    /// The request did not reach the API server. The client has logged the failure.
    Unreachable,
    /// The response is not one of an API server.
    Unreadable,
    /// The API server did not respond in time.
    Silent,
    /// The API server did not respond in time, although it answers a read of the same object: something holds this request.
    Unanswered,
    /// The host gave the request up early, since it waits for too many others that are not answered.
    Crowded,
    /// The host failed before it sent the request.
    Host,
    /// The host did not send the request because it no longer leads.
    Deposed,
}

impl ApiError {
    /// Returns the error of a request that the host did not send.
    pub fn new(
        verb: &'static str,
        kind: &str,
        name: &NamespacedName,
        fault: Fault,
        message: impl Into<Box<str>>,
    ) -> Self {
        Self {
            verb,
            kind: kind.into(),
            name: name.clone(),
            fault,
            message: message.into(),
            is_immutable: false,
            retry_after: None,
        }
    }

    /// Reports whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.fault == Fault::Missing
    }

    /// Reports whether the API server is overloaded or unreachable, or its storage is unavailable.
    pub fn is_overload(&self) -> bool {
        match self.fault {
            // A response of a proxy that is JSON and no Status has no code.
            Fault::Silent | Fault::Unreachable | Fault::Refused(0 | 429 | 502..=504) => true,
            Fault::Refused(500) => {
                self.message.contains("etcdserver") || self.message.contains("rpc error: code = Unavailable")
            }
            _ => false,
        }
    }

    /// Reports whether other requests of the same reconcile would fail, too.
    pub fn stops_others(&self) -> bool {
        self.is_overload() || self.fault == Fault::Deposed
    }

    /// Reports whether no other request would be answered, for an object of whatever kind.
    pub fn stops_everything(&self) -> bool {
        matches!(self.fault, Fault::Silent | Fault::Unreachable | Fault::Deposed)
    }

    /// Reports whether the error is transient: the API server failed, not the object.
    pub fn is_transient(&self) -> bool {
        // After a start, an API server serves its built-in kinds before those of CustomResourceDefinitions.
        self.is_overload() || self.fault == Fault::NotServed || self.is_internal()
    }

    /// Reports whether the API server failed for a reason that its response does not tell. If it repeats the response
    /// while it answers others, the object is the reason, or something that a person must repair.
    ///
    /// An unavailable webhook, which must be repaired, is an internal error that the response tells.
    pub fn is_internal(&self) -> bool {
        let server = matches!(self.fault, Fault::Refused(500..=599));
        server && !self.is_overload() && !self.message.contains("webhook")
    }

    /// Reports whether the authorizer refused, not a webhook.
    pub fn is_missing_permission(&self) -> bool {
        self.fault == Fault::Refused(403)
            && !is_message_of_a_webhook(&self.message)
            && is_missing_permission(&self.message)
    }

    /// Reports whether the request for this object was not answered in time, while others are.
    pub fn is_unanswered(&self) -> bool {
        matches!(self.fault, Fault::Unanswered | Fault::Crowded)
    }

    /// Reports whether the error passes by itself: nothing in the object or the configuration is wrong.
    pub fn is_passing(&self) -> bool {
        self.is_transient() || self.is_lost_race() || matches!(self.fault, Fault::Crowded | Fault::Deposed)
    }

    /// Reports whether the request violates the kind's schema or is too large, independent of the client.
    pub fn is_invalid(&self) -> bool {
        match self.fault {
            Fault::Refused(400 | 422) => !self.is_lost_race(),
            Fault::Refused(413) => true,
            _ => false,
        }
    }

    /// Reports whether the object's namespace is being deleted, so that nothing can be created in it.
    pub fn is_namespace_terminating(&self) -> bool {
        self.fault == Fault::NamespaceTerminating
    }

    /// Returns the error for an object that the host does not try to create because its namespace is being deleted.
    pub fn namespace_terminating(kind: &str, name: &NamespacedName) -> Self {
        let namespace = name.namespace.as_deref().unwrap_or_default();
        let message =
            format!("the namespace {namespace:?} is being deleted, so nothing can be created in it");
        Self::new("create", kind, name, Fault::NamespaceTerminating, message)
    }

    /// Returns the error that creating an object in a missing namespace would cause.
    pub fn namespace_missing(kind: &str, name: &NamespacedName) -> Self {
        let namespace = name.namespace.as_deref().unwrap_or_default();
        let message = format!("namespace {namespace} does not exist");
        Self::new("create", kind, name, Fault::NamespaceMissing, message)
    }

    /// Reports whether another client changed the object first, or owns fields that the host does not take over.
    pub fn is_conflict(&self) -> bool {
        self.fault == Fault::Refused(409)
    }

    /// Reports whether the object was deleted or changed before the write. The next reconcile handles its new state.
    ///
    /// When another object has the name, the API server responds that a UID cannot be changed; when none has, with a
    /// conflict.
    pub fn is_lost_race(&self) -> bool {
        match self.fault {
            Fault::Refused(409) => {
                self.verb != "delete"
                    && !is_field_conflict(&self.message)
                    && !is_message_of_a_webhook(&self.message)
            }
            Fault::Refused(422) => self.message.contains("metadata.uid: Invalid value"),
            _ => false,
        }
    }
}

/// Returns the part that failed when the API server responded to a request for the object `name` with this status.
pub(super) fn fault_of(status: &kube::core::Status, name: &NamespacedName) -> Fault {
    match status_of(status) {
        403 if status.message.contains("because it is being terminated") => Fault::NamespaceTerminating,
        404 if is_missing_namespace(status, name) => Fault::NamespaceMissing,
        404 if is_missing_object(status, &name.name) => Fault::Missing,
        404 if !is_of_a_webhook(status) => Fault::NotServed,
        code => Fault::Refused(code),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::{Value, json};

    use super::*;
    use crate::refusal::{is_immutable, refusal};

    fn web() -> NamespacedName {
        NamespacedName::parse("shop/web")
    }

    /// Returns a failure with these fields.
    fn status(fields: Value) -> Status {
        serde_json::from_value(fields).unwrap()
    }

    fn refused(code: u16, message: &str) -> ApiError {
        let status = status(json!({ "code": code, "message": message }));
        ApiError {
            verb: "apply",
            kind: "Pod".into(),
            name: web(),
            fault: fault_of(&status, &web()),
            message: refusal(&status, None).into(),
            is_immutable: is_immutable(&status),
            retry_after: None,
        }
    }

    #[test]
    fn a_permission_is_missing_when_the_authorizer_says_so_and_nobody_else() {
        let authorizer = "puppets \"p\" is forbidden: User \"host\" cannot patch resource \"puppets\"";
        assert!(refused(403, authorizer).is_missing_permission());
        assert!(!refused(422, authorizer).is_missing_permission());
        let webhook = "admission webhook \"w\" denied the request: User \"alice\" still has sessions";
        assert!(!refused(403, webhook).is_missing_permission());
    }

    #[test]
    fn only_what_refuses_immutable_fields_alone_is_immutable() {
        let status_of = |message: &str, causes: &[&str]| {
            let causes = causes.iter().map(|cause| json!({ "message": cause }));
            let details = json!({ "causes": causes.collect::<Vec<_>>() });
            status(json!({ "reason": "Invalid", "code": 422, "message": message, "details": details }))
        };
        for cause in [
            "Invalid value: v1.LabelSelector{}: field is immutable",
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`",
            "Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden",
            "Invalid value: []string{}: may not change once set",
            "Invalid value: rbac.RoleRef{}: cannot change roleRef",
        ] {
            assert!(is_immutable(&status_of("invalid", &[cause])), "{cause}");
            let others = status_of("invalid", &[cause, "Required value"]);
            assert!(!is_immutable(&others), "{cause}");
            let webhook = status_of("admission webhook \"w\" denied the request: no", &[cause]);
            assert!(!is_immutable(&webhook), "{cause}");
        }
        assert!(!is_immutable(&status_of("field is immutable", &[])));
        let other = "Invalid value: -1: must be greater than 0";
        assert!(!is_immutable(&status_of("invalid", &[other])));
        let policy = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: it is immutable";
        assert!(!is_immutable(&status_of(policy, &["it is immutable"])));
    }

    /// Regression: the refusal was retried forever silently.
    #[test]
    fn a_conflict_by_a_webhook_is_no_lost_race() {
        assert!(refused(409, "the object has been modified").is_lost_race());
        assert!(!refused(409, "admission webhook \"w\" denied the request: taken").is_lost_race());
    }

    #[test]
    fn fields_of_another_manager_are_a_conflict_and_no_lost_race_however_many_they_are() {
        for message in [
            "Apply failed with 1 conflict: conflict with \"other\": .spec.replicas",
            "Apply failed with 2 conflicts: conflicts with \"other\":\n- .spec.replicas\n- .spec.paused",
        ] {
            let error = refused(409, message);
            assert!(error.is_conflict() && !error.is_lost_race(), "{message}");
            let words = "another manager has set these fields";
            assert!(error.message.contains(words), "{}", error.message);
        }
        assert!(refused(409, "Operation cannot be fulfilled: uid mismatch").is_lost_race());
        let marks = "Apply failed with 1 conflict: conflict with \"x\": .metadata.annotations.operator-host.dev/applied";
        let marks = refused(409, marks).message;
        let words = "Remove the annotations of operator-host.dev there";
        assert!(marks.contains(words), "{marks}");
    }

    #[test]
    fn an_object_is_missing_only_if_the_response_names_it() {
        let not_found = |details: Value, message: &str| {
            status(json!({ "reason": "NotFound", "code": 404, "details": details, "message": message }))
        };
        let page = Status::failure("404 page not found", "Failed to parse error data").with_code(404);
        assert_eq!(fault_of(&page, &web()), Fault::NotServed);
        let resource = not_found(json!({}), "the server could not find the requested resource");
        assert_eq!(fault_of(&resource, &web()), Fault::NotServed);
        let details = json!({ "name": "web", "kind": "pods" });
        let object = not_found(details.clone(), "pods \"web\" not found");
        assert_eq!(fault_of(&object, &web()), Fault::Missing);
        let other = NamespacedName::parse("shop/other");
        assert_eq!(fault_of(&object, &other), Fault::NotServed);
        // Validators pass on the error of their own request.
        let says = "admission webhook \"v.example.com\" denied the request: pods \"web\" not found";
        assert_eq!(fault_of(&not_found(details, says), &web()), Fault::Refused(404));
    }

    /// Regression: the API server calls both internal errors, so they counted as an outage for a minute.
    #[test]
    fn what_is_the_objects_fault_is_told_from_trouble_of_the_api_server() {
        for (message, code) in [
            ("etcdserver: request is too large", 413),
            (
                "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2100000 vs. 2097152)",
                413,
            ),
            (
                "failed to create typed patch object (a/b; apps/v1, Kind=Deployment): .spec.replicas: expected numeric",
                422,
            ),
            (
                "failed to convert new object (a/b; apps/v1, Kind=Deployment) to proper version: quantities must match",
                422,
            ),
        ] {
            let error = refused(500, message);
            assert_eq!(error.fault, Fault::Refused(code), "{message}");
            assert!(error.is_invalid() && !error.is_passing(), "{error}");
            assert!(!error.stops_others(), "{error}");
        }
        for message in [
            "etcdserver: leader changed",
            "rpc error: code = Unavailable desc = closing",
        ] {
            let error = refused(500, message);
            assert!(error.is_overload() && !error.is_internal(), "{error}");
        }
        let unknown = refused(500, "something failed");
        assert!(unknown.is_internal() && unknown.is_passing() && !unknown.stops_others());
        assert!(!refused(500, "failed calling webhook \"w\"").is_passing());
    }

    /// Regression: it counted as a kind that is not served.
    #[test]
    fn a_namespace_that_does_not_exist_is_neither_the_object_nor_its_kind() {
        let missing = |name: &str| {
            let (details, message) = (
                json!({ "name": name, "kind": "namespaces" }),
                format!("namespaces {name:?} not found"),
            );
            status(json!({ "reason": "NotFound", "code": 404, "details": details, "message": message }))
        };
        assert_eq!(fault_of(&missing("shop"), &web()), Fault::NamespaceMissing);
        let same = NamespacedName::parse("shop/shop");
        assert_eq!(fault_of(&missing("shop"), &same), Fault::NamespaceMissing);
        let itself = NamespacedName::parse("shop");
        assert_eq!(fault_of(&missing("shop"), &itself), Fault::Missing);
    }

    #[test]
    fn only_a_permission_that_is_missing_is_asked_for() {
        let advice = "give the host's role that permission";
        let missing = "pods is forbidden: User \"host\" cannot create resource \"pods\"";
        assert!(refused(403, missing).message.contains(advice));
        let quota = "pods \"web\" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2";
        let message = refused(403, quota).message;
        assert!(message.contains("raise that ResourceQuota"), "{message}");
        assert!(!message.contains(advice), "{message}");
        let policy = "pods \"web\" is forbidden: violates PodSecurity \"restricted:latest\"";
        assert_eq!(&*refused(403, policy).message, policy);
    }
}
