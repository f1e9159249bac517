//! The few requests that a pass makes, each bounded in time, each error saying which object and why.

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
use super::refusal::{asked_delay, is_field_conflict, is_missing_object, refusal};
use crate::object::NamespacedName;
use crate::trace;

/// How long one request may take. The API server gives up by itself after a minute; a connection that is cut
/// never answers.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// A wait for the controller's own pace that somebody who looks for the reason of a delay should hear of.
const SLOW: Duration = Duration::from_millis(100);

/// A request that failed.
#[derive(Clone, Debug, Error)]
#[error("cannot {verb} {kind} {name}: {message}")]
pub struct ApiError {
    /// `apply`, `create`, `delete` and the like.
    pub verb: &'static str,
    /// The kind of the object.
    pub kind: Box<str>,
    /// Its name.
    pub name: NamespacedName,
    /// Who failed, and how.
    pub fault: Fault,
    /// What the API server said, with the fields at fault, and what to do about it.
    pub message: Box<str>,
    /// How long the API server wants to be left alone.
    pub retry_after: Option<Duration>,
}

/// Who failed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The API server answered with this HTTP status.
    Refused(u16),
    /// The object does not exist.
    Missing,
    /// The API server does not serve the kind, or not yet.
    NotServed,
    /// The object's namespace is being deleted, so nothing can be created in it.
    NamespaceGoing,
    /// The request did not come through to it; the client has said so in the log.
    Unreachable,
    /// It did not answer in time.
    Silent,
    /// The host itself, before it asked.
    Host,
    /// The host did not send it, since it leads no more.
    Deposed,
}

impl ApiError {
    /// Reports whether the object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.fault == Fault::Missing
    }

    /// The API server is there and has no time, or its store is away.
    #[must_use]
    pub fn is_overload(&self) -> bool {
        match self.fault {
            Fault::Silent | Fault::Unreachable | Fault::Refused(429 | 502..=504) => true,
            Fault::Refused(500) => self.message.contains("etcdserver"),
            Fault::Refused(_)
            | Fault::Missing
            | Fault::NotServed
            | Fault::NamespaceGoing
            | Fault::Host
            | Fault::Deposed => false,
        }
    }

    /// The API server is at fault, not the object: it may well be over soon.
    ///
    /// A webhook that is away is answered with an internal error, and is somebody's to mend.
    #[must_use]
    pub fn is_weather(&self) -> bool {
        let server = matches!(self.fault, Fault::Refused(500..=599)) && !self.message.contains("webhook");
        // An API server that has just started serves its own kinds before those of definitions.
        self.is_overload() || self.fault == Fault::NotServed || (server && !self.is_invalid())
    }

    /// What was sent breaks the kind's schema, whichever client sends it.
    ///
    /// Server-side apply of a value of the wrong type is answered with an internal error by older API servers.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        match self.fault {
            Fault::Refused(400 | 422) => !self.is_lost_race(),
            Fault::Refused(500) => self.message.contains("failed to create typed patch object"),
            _ => false,
        }
    }

    /// Nothing can be made in the object's namespace any more: it is being deleted, and its objects with it.
    #[must_use]
    pub fn is_namespace_going(&self) -> bool {
        self.fault == Fault::NamespaceGoing
    }

    /// Of an object that is not even asked for, since its namespace is known to be going.
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

    /// Somebody else was faster, or has fields that are not taken from them.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.fault == Fault::Refused(409)
    }

    /// What was written about is not there any more, or not so: another pass knows what to do with what is.
    ///
    /// API servers of before 1.24 answer that a UID cannot be changed, where later ones say that there is a conflict.
    #[must_use]
    pub fn is_lost_race(&self) -> bool {
        match self.fault {
            Fault::Refused(409) => self.verb != "delete" && !is_field_conflict(&self.message),
            Fault::Refused(422) => self.message.contains("metadata.uid: Invalid value"),
            _ => false,
        }
    }
}

/// The API of one resource, in the namespace of one object.
pub struct ResourceClient<'a> {
    writer: &'a Writer,
    resource: &'a ResolvedKind,
}

impl<'a> ResourceClient<'a> {
    /// Sends nothing.
    #[must_use]
    pub const fn new(writer: &'a Writer, resource: &'a ResolvedKind) -> Self {
        Self { writer, resource }
    }

    /// Server-side apply. `force` takes fields over from other managers; without it such a field is a conflict.
    ///
    /// # Errors
    /// What the API server refuses, or no answer in time.
    pub async fn apply(
        &self,
        name: &NamespacedName,
        body: &Value,
        manager: &str,
        force: bool,
    ) -> Result<DynamicObject, ApiError> {
        self.apply_with(name, body, manager, force, false).await
    }

    /// What [`ResourceClient::apply`] would give, without doing it.
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

    /// One object, as the API server has it now; `None` when there is none.
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

    /// One object, as the API server has it now, whatever its caches and ours say; `None` when there is none.
    ///
    /// A list of one: who watches a kind has the right to list it, and needs none to get.
    ///
    /// # Errors
    /// As [`ResourceClient::apply`].
    pub async fn read(&self, name: &NamespacedName) -> Result<Option<DynamicObject>, ApiError> {
        let one = ListParams::default().fields(&format!("metadata.name={}", name.name));
        let list = self.bounded("read", name, self.api(name).list(&one)).await?;
        Ok(list.items.into_iter().next().map(|object| self.typed(object)))
    }

    /// All objects in the namespace of `place`, or all there are when it names none, that a label selector picks.
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

    /// The items of a list do not say what they are.
    fn typed(&self, mut object: DynamicObject) -> DynamicObject {
        object.types.get_or_insert_with(|| kube::core::TypeMeta {
            api_version: self.resource.api.api_version.clone(),
            kind: self.resource.api.kind.clone(),
        });
        object
    }

    /// Server-side apply of the status subresource.
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

    /// JSON merge patch. With `metadata.resourceVersion` in the body it is refused when the object has changed.
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

    /// Creates an object that must not exist.
    ///
    /// # Errors
    /// As [`ResourceClient::apply`]; a conflict when it exists.
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

    /// Deletes this very object, not another one of its name, and only at this version when one is given; what it owns
    /// is deleted in the background.
    /// The object when it waits for its grace period or finalizers, `None` when it is gone.
    ///
    /// # Errors
    /// As [`ResourceClient::apply`]; that it is gone already is no error.
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

    /// An apply that would create an object and may not is refused without a word about what is missing.
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
        if let Some(pace) = self.writer.pace.as_ref().filter(|_| is_write(verb)) {
            let waited = pace.wait().await;
            if waited > SLOW {
                debug!(
                    ?waited,
                    "this controller writes as much as its `writes` in the configuration allow"
                );
            }
        }
        // Until another may begin, or as long as any request.
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
                let fault = fault_of(&status);
                if fault == Fault::NotServed {
                    let kind = &self.resource.api.kind;
                    status.message = format!("the API server does not serve {kind}: {}", status.message);
                }
                (fault, refusal(&status, self.writer.acts_as.as_ref()))
            }
            Ok(Err(error)) if is_deposed(&error) => (Fault::Deposed, Deposed.to_string()),
            Ok(Err(error)) => (
                Fault::Unreachable,
                format!("the API server cannot be reached: {}", chain(&error)),
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
            Fault::NamespaceGoing | Fault::Unreachable | Fault::Silent | Fault::Host | Fault::Deposed => None,
        };
        if let Some(code) = code {
            span.record("http.response.status_code", i64::from(code));
        }
        trace::fail(&span, "api", &message, "");
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

fn fault_of(status: &kube::core::Status) -> Fault {
    match status.code {
        403 if status.message.contains("because it is being terminated") => Fault::NamespaceGoing,
        404 if is_missing_object(status) => Fault::Missing,
        404 => Fault::NotServed,
        code => Fault::Refused(code),
    }
}

const fn is_write(verb: &'static str) -> bool {
    !matches!(verb.as_bytes(), b"get" | b"list")
}

/// One word for the span of a request.
const fn span_name(verb: &'static str) -> &'static str {
    match verb.as_bytes() {
        b"apply the status of" => "status",
        _ => verb,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, said: &str) -> ApiError {
        let status = kube::core::Status {
            code,
            message: said.to_owned(),
            ..kube::core::Status::default()
        };
        ApiError {
            verb: "apply",
            kind: "Pod".into(),
            name: NamespacedName {
                namespace: Some("shop".to_owned()),
                name: "web".to_owned(),
            },
            fault: fault_of(&status),
            message: refusal(&status, None).into(),
            retry_after: None,
        }
    }

    #[test]
    fn fields_of_another_manager_are_a_conflict_and_no_lost_race_however_many_they_are() {
        for said in [
            "Apply failed with 1 conflict: conflict with \"other\": .spec.replicas",
            "Apply failed with 2 conflicts: conflicts with \"other\":\n- .spec.replicas\n- .spec.paused",
        ] {
            let error = refused(409, said);
            assert!(error.is_conflict() && !error.is_lost_race(), "{said}");
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
        assert_eq!(fault_of(&page), Fault::NotServed);
        let resource: kube::core::Status = serde_json::from_value(serde_json::json!({
            "status": "Failure", "reason": "NotFound", "code": 404, "details": {},
            "message": "the server could not find the requested resource",
        }))
        .unwrap();
        assert_eq!(fault_of(&resource), Fault::NotServed);
        let object: kube::core::Status = serde_json::from_value(serde_json::json!({
            "status": "Failure", "reason": "NotFound", "code": 404, "details": { "name": "web", "kind": "pods" },
            "message": "pods \"web\" not found",
        }))
        .unwrap();
        assert_eq!(fault_of(&object), Fault::Missing);
    }

    #[test]
    fn only_a_permission_that_is_missing_is_asked_for() {
        let advice = "give the host's role that permission";
        let missing =
            "pods is forbidden: User \"host\" cannot create resource \"pods\" in the namespace \"shop\"";
        assert!(refused(403, missing).message.contains(advice));
        let quota = "pods \"web\" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2";
        let said = refused(403, quota).message;
        assert!(
            said.contains("raise that ResourceQuota") && !said.contains(advice),
            "{said}"
        );
        let policy = "pods \"web\" is forbidden: violates PodSecurity \"restricted:latest\"";
        assert_eq!(&*refused(403, policy).message, policy);
    }
}
