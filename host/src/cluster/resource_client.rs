//! Sends the requests of a reconcile to the API server. Each has a timeout, and each error names the object and the
//! reason.

use std::time::Duration;

use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::DynamicObject;
use serde_json::Value;
use thiserror::Error;
use tracing::field::Empty;
use tracing::{debug, info_span};

use super::client::{Deposed, Writer, chain, is_deposed};
use super::discovery::ResolvedKind;
use super::refusal::{asked_delay, is_field_conflict, is_missing_object, is_of_a_webhook, refusal};
use crate::object::NamespacedName;
use crate::trace;

/// The timeout of one request. The API server itself gives up after a minute, but a broken connection never returns a
/// response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Waits for the controller's own rate limit that take longer are logged, since they explain a delay.
const SLOW: Duration = Duration::from_millis(100);

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
    /// The object's namespace is being deleted, so nothing can be created in it.
    NamespaceGoing,
    /// The request did not reach the API server. The client has logged the failure.
    Unreachable,
    /// The response is not one of an API server.
    Unreadable,
    /// The API server did not respond in time.
    Silent,
    /// The host failed before it sent the request.
    Host,
    /// The host did not send the request because it no longer leads.
    Deposed,
}

impl ApiError {
    /// Reports whether the object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.fault == Fault::Missing
    }

    /// Reports whether the API server is overloaded or unreachable, or its storage is unavailable.
    #[must_use]
    pub fn is_overload(&self) -> bool {
        match self.fault {
            // A response of a proxy that is JSON and no Status has no code.
            Fault::Silent | Fault::Unreachable | Fault::Refused(0 | 429 | 502..=504) => true,
            Fault::Refused(500) => self.message.contains("etcdserver"),
            Fault::Refused(_)
            | Fault::Missing
            | Fault::NotServed
            | Fault::NamespaceGoing
            | Fault::Unreadable
            | Fault::Host
            | Fault::Deposed => false,
        }
    }

    /// Reports whether other requests of the same reconcile would fail, too.
    #[must_use]
    pub fn stops_others(&self) -> bool {
        self.is_overload() || self.fault == Fault::Deposed
    }

    /// Reports whether the error is transient: the API server failed, not the object.
    ///
    /// The API server responds with an internal error when a webhook is unavailable. That error is not transient: a
    /// person must repair the webhook.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        let server = matches!(self.fault, Fault::Refused(500..=599)) && !self.message.contains("webhook");
        // After a start, an API server serves its built-in kinds before those of CustomResourceDefinitions.
        self.is_overload() || self.fault == Fault::NotServed || (server && !self.is_invalid())
    }

    /// Reports whether the request violates the kind's schema, independent of the client.
    ///
    /// Older API servers respond with an internal error to a server-side apply of a value of the wrong type.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        match self.fault {
            Fault::Refused(400 | 422) => !self.is_lost_race(),
            Fault::Refused(500) => self.message.contains("failed to create typed patch object"),
            _ => false,
        }
    }

    /// Reports whether the object's namespace is being deleted, so that nothing can be created in it.
    #[must_use]
    pub fn is_namespace_going(&self) -> bool {
        self.fault == Fault::NamespaceGoing
    }

    /// Returns the error for an object that the host does not try to create because its namespace is being deleted.
    #[must_use]
    pub(crate) fn namespace_going(kind: &str, name: &NamespacedName) -> Self {
        Self {
            verb: "create",
            kind: kind.into(),
            name: name.clone(),
            fault: Fault::NamespaceGoing,
            message: format!(
                "the namespace {:?} is being deleted, so nothing can be created in it",
                name.namespace.as_deref().unwrap_or_default()
            )
            .into(),
            retry_after: None,
        }
    }

    /// Reports whether another client changed the object first, or owns fields that the host does not take over.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.fault == Fault::Refused(409)
    }

    /// Reports whether the object was deleted or changed before the write. The next reconcile handles its new state.
    ///
    /// API servers before 1.24 respond that a UID cannot be changed; later ones report a conflict.
    #[must_use]
    pub fn is_lost_race(&self) -> bool {
        match self.fault {
            Fault::Refused(409) => self.verb != "delete" && !is_field_conflict(&self.message),
            Fault::Refused(422) => self.message.contains("metadata.uid: Invalid value"),
            _ => false,
        }
    }
}

/// Sends requests for the objects of one resource.
pub struct ResourceClient<'a> {
    writer: &'a Writer,
    resource: &'a ResolvedKind,
}

impl<'a> ResourceClient<'a> {
    /// Creates a client for one resource. Sends no request.
    #[must_use]
    pub const fn new(writer: &'a Writer, resource: &'a ResolvedKind) -> Self {
        Self { writer, resource }
    }

    /// Writes an object with server-side apply. `force` takes over fields of other managers; without it, such a field
    /// is a conflict.
    ///
    /// # Errors
    /// When the API server refuses the request or does not respond in time.
    pub async fn apply(
        &self,
        name: &NamespacedName,
        body: &Value,
        manager: &str,
        force: bool,
    ) -> Result<DynamicObject, ApiError> {
        self.apply_with(name, body, manager, force, false).await
    }

    /// Returns the result that [`ResourceClient::apply`] would have, with a server-side dry run.
    ///
    /// # Errors
    /// As [`ResourceClient::apply`].
    pub async fn try_apply(
        &self,
        name: &NamespacedName,
        body: &Value,
        manager: &str,
        force: bool,
    ) -> Result<DynamicObject, ApiError> {
        self.apply_with(name, body, manager, force, true).await
    }

    async fn apply_with(
        &self,
        name: &NamespacedName,
        body: &Value,
        manager: &str,
        force: bool,
        dry_run: bool,
    ) -> Result<DynamicObject, ApiError> {
        let params = PatchParams {
            force,
            dry_run,
            field_manager: Some(manager.to_owned()),
            ..PatchParams::default()
        };
        let api = self.api(name);
        self.bounded("apply", name, api.patch(&name.name, &params, &Patch::Apply(body)))
            .await
    }

    /// Returns one object in its current state; `None` when it does not exist.
    ///
    /// # Errors
    /// As [`ResourceClient::apply`].
    pub async fn get(&self, name: &NamespacedName) -> Result<Option<DynamicObject>, ApiError> {
        match self.bounded("get", name, self.api(name).get(&name.name)).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns one object in its current state, bypassing the caches of the API server and of the host; `None` when it
    /// does not exist.
    ///
    /// Sends a list request for this one name: the host may list every kind that it watches, but may lack the
    /// permission to get.
    ///
    /// # Errors
    /// As [`ResourceClient::apply`].
    pub async fn read(&self, name: &NamespacedName) -> Result<Option<DynamicObject>, ApiError> {
        let one = ListParams::default().fields(&format!("metadata.name={}", name.name));
        let list = self.bounded("read", name, self.api(name).list(&one)).await?;
        Ok(list.items.into_iter().next().map(|object| self.typed(object)))
    }

    /// Returns the objects that match a label selector: those in the namespace of `place`, or those in the whole
    /// cluster when `place` has no namespace.
    ///
    /// # Errors
    /// As [`ResourceClient::apply`].
    pub async fn list(
        &self,
        place: &NamespacedName,
        selector: Option<&str>,
    ) -> Result<Vec<DynamicObject>, ApiError> {
        let params = ListParams {
            label_selector: selector.map(str::to_owned),
            ..ListParams::default()
        };
        let list = self.bounded("list", place, self.api(place).list(&params)).await?;
        Ok(list.items.into_iter().map(|object| self.typed(object)).collect())
    }

    /// Adds the type to an object: the items of a list do not contain it.
    fn typed(&self, mut object: DynamicObject) -> DynamicObject {
        object.types.get_or_insert_with(|| kube::core::TypeMeta {
            api_version: self.resource.api.api_version.clone(),
            kind: self.resource.api.kind.clone(),
        });
        object
    }

    /// Writes the status subresource with server-side apply.
    ///
    /// # Errors
    /// As [`ResourceClient::apply`].
    pub async fn apply_status(
        &self,
        name: &NamespacedName,
        body: &Value,
        manager: &str,
    ) -> Result<DynamicObject, ApiError> {
        let params = PatchParams {
            force: true,
            field_manager: Some(manager.to_owned()),
            ..PatchParams::default()
        };
        let api = self.api(name);
        self.bounded(
            "apply the status of",
            name,
            api.patch_status(&name.name, &params, &Patch::Apply(body)),
        )
        .await
    }

    /// Changes an object with a JSON merge patch. With `metadata.resourceVersion` in the body, the API server refuses
    /// the patch when the object has changed.
    ///
    /// # Errors
    /// As [`ResourceClient::apply`].
    pub async fn merge(
        &self,
        name: &NamespacedName,
        body: &Value,
        manager: &str,
    ) -> Result<DynamicObject, ApiError> {
        let params = PatchParams {
            field_manager: Some(manager.to_owned()),
            ..PatchParams::default()
        };
        let api = self.api(name);
        self.bounded("patch", name, api.patch(&name.name, &params, &Patch::Merge(body)))
            .await
    }

    /// Creates an object.
    ///
    /// # Errors
    /// As [`ResourceClient::apply`]; a conflict when the object exists.
    pub async fn create(
        &self,
        name: &NamespacedName,
        body: DynamicObject,
        manager: &str,
    ) -> Result<DynamicObject, ApiError> {
        let params = PostParams {
            field_manager: Some(manager.to_owned()),
            ..PostParams::default()
        };
        let api = self.api(name);
        self.bounded("create", name, api.create(&params, &body)).await
    }

    /// Deletes the object with this UID, and only at this resource version when one is given. Its dependents are
    /// deleted in the background.
    ///
    /// Returns the object while it waits for its grace period or finalizers, `None` once it is deleted.
    ///
    /// # Errors
    /// As [`ResourceClient::apply`]. An object that does not exist is no error.
    pub async fn delete(
        &self,
        name: &NamespacedName,
        uid: &str,
        version: Option<&str>,
    ) -> Result<Option<DynamicObject>, ApiError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: version.map(str::to_owned),
            }),
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let api = self.api(name);
        match self
            .bounded("delete", name, api.delete(&name.name, &params))
            .await
        {
            Ok(answer) => Ok(answer.left().filter(crate::object::is_terminating)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn api(&self, name: &NamespacedName) -> Api<DynamicObject> {
        match &name.namespace {
            Some(namespace) if self.resource.namespaced => {
                Api::namespaced_with(self.writer.client.clone(), namespace, &self.resource.api)
            }
            _ => Api::all_with(self.writer.client.clone(), &self.resource.api),
        }
    }

    /// Adds the missing permission to the message of a refused apply. The API server does not name it when the apply
    /// would have created the object.
    fn complete(&self, status: &mut kube::core::Status) {
        if status.code == 403 && status.message.trim_end().ends_with("is forbidden:") {
            let api = &self.resource.api;
            let who = self.writer.acts_as.as_ref();
            let who = who.map_or_else(
                || "the host".to_owned(),
                |account| format!("User {:?}", account.user()),
            );
            let missing = format!(
                "{who} cannot create resource {:?} in API group {:?}",
                api.plural, api.group
            );
            status.message = format!("{} {missing}", status.message.trim_end());
        }
    }

    async fn bounded<T>(
        &self,
        verb: &'static str,
        name: &NamespacedName,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        if let Some(pace) = self.writer.pace.as_ref().filter(|_| is_write(verb)) {
            let waited = tokio::select! {
                waited = pace.wait() => waited,
                // The request is refused below.
                () = self.writer.term.ended() => Duration::ZERO,
            };
            if waited > SLOW {
                debug!(
                    ?waited,
                    "delayed a write: the controller has reached its limit `writes` in the configuration"
                );
            }
        }
        let span = trace::child(|| {
            info_span!(
                target: trace::TARGET,
                "request",
                otel.name = span_name(verb),
                otel.kind = "client",
                k8s.object.api_version = self.resource.api.api_version,
                k8s.object.kind = self.resource.api.kind,
                k8s.object.name = name.name,
                k8s.namespace.name = name.namespace.as_deref(),
                http.response.status_code = Empty,
            )
        });
        // Ends before another replica may lead, and after the timeout of a request at the latest.
        let limit = self.writer.term.allowance().map(|left| left.min(REQUEST_TIMEOUT));
        let answer = match limit {
            Some(limit) => trace::around(&span, tokio::time::timeout(limit, request)).await,
            None => Ok(Err(kube::Error::Service(Box::new(Deposed)))),
        };
        let mut retry_after = None;
        let (fault, message) = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(kube::Error::Api(mut status))) => {
                self.complete(&mut status);
                retry_after = asked_delay(&status);
                let fault = fault_of(&status, &name.name);
                if fault == Fault::NotServed {
                    let kind = &self.resource.api.kind;
                    status.message = format!("the API server does not serve {kind}: {}", status.message);
                }
                (fault, refusal(&status, self.writer.acts_as.as_ref()))
            }
            Ok(Err(error)) if is_deposed(&error) => (Fault::Deposed, Deposed.to_string()),
            Ok(Err(error @ (kube::Error::Service(_) | kube::Error::HyperError(_)))) => (
                Fault::Unreachable,
                format!("the API server cannot be reached: {}", chain(&error)),
            ),
            Ok(Err(error)) => (
                Fault::Unreadable,
                format!(
                    "cannot read the API server's response: {}; check for a proxy in front of the API server",
                    chain(&error)
                ),
            ),
            Err(_elapsed) => (
                Fault::Silent,
                format!(
                    "no answer from the API server within {:?}",
                    limit.unwrap_or(REQUEST_TIMEOUT)
                ),
            ),
        };
        let code = match fault {
            Fault::Refused(code) => Some(code),
            Fault::Missing | Fault::NotServed => Some(404),
            Fault::NamespaceGoing
            | Fault::Unreachable
            | Fault::Unreadable
            | Fault::Silent
            | Fault::Host
            | Fault::Deposed => None,
        };
        if let Some(code) = code {
            span.record("http.response.status_code", i64::from(code));
        }
        // A missing object answers a read, and is what a delete wants.
        if fault != Fault::Missing || !matches!(verb, "get" | "delete") {
            trace::fail(&span, "api", &message, "");
        }
        Err(ApiError {
            verb,
            kind: self.resource.api.kind.as_str().into(),
            name: name.clone(),
            fault,
            message: message.into(),
            retry_after,
        })
    }
}

fn fault_of(status: &kube::core::Status, name: &str) -> Fault {
    match status.code {
        403 if status.message.contains("because it is being terminated") => Fault::NamespaceGoing,
        404 if is_missing_object(status, name) => Fault::Missing,
        404 if !is_of_a_webhook(status) => Fault::NotServed,
        code => Fault::Refused(code),
    }
}

const fn is_write(verb: &'static str) -> bool {
    !matches!(verb.as_bytes(), b"get" | b"list" | b"read")
}

/// Returns the name of a request's span, in one word.
const fn span_name(verb: &'static str) -> &'static str {
    match verb.as_bytes() {
        b"apply the status of" => "status",
        _ => verb,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, message: &str) -> ApiError {
        let status = kube::core::Status {
            code,
            message: message.to_owned(),
            ..kube::core::Status::default()
        };
        ApiError {
            verb: "apply",
            kind: "Pod".into(),
            name: NamespacedName {
                namespace: Some("shop".to_owned()),
                name: "web".to_owned(),
            },
            fault: fault_of(&status, "web"),
            message: refusal(&status, None).into(),
            retry_after: None,
        }
    }

    #[test]
    fn fields_of_another_manager_are_a_conflict_and_no_lost_race_however_many_they_are() {
        for message in [
            "Apply failed with 1 conflict: conflict with \"other\": .spec.replicas",
            "Apply failed with 2 conflicts: conflicts with \"other\":\n- .spec.replicas\n- .spec.paused",
        ] {
            let error = refused(409, message);
            assert!(error.is_conflict() && !error.is_lost_race(), "{message}");
            assert!(
                error.message.contains("another manager has set these fields"),
                "{}",
                error.message
            );
        }
        assert!(refused(409, "Operation cannot be fulfilled: uid mismatch").is_lost_race());
    }

    #[test]
    fn an_object_is_missing_only_if_the_response_names_it() {
        let page =
            kube::core::Status::failure("404 page not found", "Failed to parse error data").with_code(404);
        assert_eq!(fault_of(&page, "web"), Fault::NotServed);
        let resource: kube::core::Status = serde_json::from_value(serde_json::json!({
            "status": "Failure", "reason": "NotFound", "code": 404, "details": {},
            "message": "the server could not find the requested resource",
        }))
        .unwrap();
        assert_eq!(fault_of(&resource, "web"), Fault::NotServed);
        let object: kube::core::Status = serde_json::from_value(serde_json::json!({
            "status": "Failure", "reason": "NotFound", "code": 404, "details": { "name": "web", "kind": "pods" },
            "message": "pods \"web\" not found",
        }))
        .unwrap();
        assert_eq!(fault_of(&object, "web"), Fault::Missing);
        assert_eq!(fault_of(&object, "other"), Fault::NotServed);
        // Validators pass on the error of their own request.
        let webhook = kube::core::Status {
            message: "admission webhook \"v.example.com\" denied the request: pods \"web\" not found"
                .to_owned(),
            ..object
        };
        assert_eq!(fault_of(&webhook, "web"), Fault::Refused(404));
    }

    #[test]
    fn only_a_permission_that_is_missing_is_asked_for() {
        let advice = "give the host's role that permission";
        let missing =
            "pods is forbidden: User \"host\" cannot create resource \"pods\" in the namespace \"shop\"";
        assert!(refused(403, missing).message.contains(advice));
        let quota = "pods \"web\" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2";
        let message = refused(403, quota).message;
        assert!(
            message.contains("raise that ResourceQuota") && !message.contains(advice),
            "{message}"
        );
        let policy = "pods \"web\" is forbidden: violates PodSecurity \"restricted:latest\"";
        assert_eq!(&*refused(403, policy).message, policy);
    }
}
