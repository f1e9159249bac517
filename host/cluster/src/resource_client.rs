//! Sends the requests of a reconcile to the API server. Each has a timeout, and each error names the object and the
//! reason.

use std::pin::Pin;
use std::time::Duration;

use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::DynamicObject;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use tracing::info_span;

use super::api_error::{ApiError, Fault, fault_of};
use super::client::{Deposed, WriteLimits, Writer, chain, is_deposed, warnings};
use super::discovery::ResolvedKind;
use super::objects::Objects;
use super::refusal::{asked_delay, is_immutable, refusal, without_values};
use super::turn;
use operator_host_core::json_text::as_yaml;
use operator_host_core::object::{NamespacedName, kind_in_words};
use operator_host_telemetry::trace;

/// The timeout of one request. The API server itself gives up after a minute, but a broken connection never returns a
/// response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The timeout of one write of a controller: more than an admission webhook has by default (10 s), and much less than it
/// can have.
const WRITE_TIMEOUT: Duration = Duration::from_secs(12);

/// The timeout of a read that shows whether the API server answers at all.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// A write is not given up before this time, which is long even for a webhook.
const LONG: Duration = Duration::from_millis(300);

/// A write that waits for longer than so many reads take is held by something. A busy machine is slow for both.
const MANY_READS: u32 = 10;

/// A resource version that no object has: an empty etcd is at revision 1, and the first write makes it 2.
const VERSION_OF_NONE: &str = "1";

/// The subresource of the status.
const STATUS: Option<&str> = Some("status");

/// How much of a name is in a generated one, which must be valid for every kind.
const PREFIX: usize = 40;

/// How old API servers, such as 1.20, refuse to create a Service whose body has a resource version. For the other
/// kinds of Kubernetes, and in later API servers, a resource version is ignored when an object is created.
const VERSION_REFUSED: &str = "resourceVersion should not be set on objects to be created";

/// Sends requests for the objects of one resource.
pub struct ResourceClient<'a> {
    writer: &'a Writer,
    resource: &'a ResolvedKind,
}

impl<'a> ResourceClient<'a> {
    /// Creates a client for one resource. Sends no request.
    pub const fn new(writer: &'a Writer, resource: &'a ResolvedKind) -> Self {
        Self { writer, resource }
    }

    /// Writes an object with server-side apply: as a field manager, by force or not, or as a dry run.
    ///
    /// # Errors
    /// When the API server refuses the request or does not respond in time.
    pub async fn apply(
        &self,
        name: &NamespacedName,
        body: &Value,
        params: &PatchParams,
    ) -> Result<DynamicObject, ApiError> {
        self.patch("apply", name, None, params, apply_patch(body), self.secret(body))
            .await
    }

    /// Creates an object with server-side apply. The API server refuses it as a conflict if an object of this name exists:
    /// the body has a resource version, which the API server compares with that of the existing object.
    ///
    /// Old API servers, such as 1.20, refuse to create a Service with a resource version. The second request has none, so a
    /// Service that others make between the two is changed if no field of another manager is in conflict.
    ///
    /// # Errors
    /// As [`ResourceClient::apply`].
    pub async fn apply_new(
        &self,
        name: &NamespacedName,
        mut body: Value,
        manager: &str,
    ) -> Result<DynamicObject, ApiError> {
        body["metadata"]["resourceVersion"] = VERSION_OF_NONE.into();
        let params = PatchParams::apply(manager);
        let answer = self.apply(name, &body, &params).await;
        match answer {
            Err(refused) if refused.message.contains(VERSION_REFUSED) => {
                if let Some(metadata) = body["metadata"].as_object_mut() {
                    metadata.remove("resourceVersion");
                }
                self.apply(name, &body, &params).await
            }
            answer => answer,
        }
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
        // The characters with a meaning in a selector. Source: Kubernetes, `fields.EscapeValue`.
        let escaped = name
            .name
            .replace('\\', r"\\")
            .replace(',', r"\,")
            .replace('=', r"\=");
        let one = ListParams::default().fields(&format!("metadata.name={escaped}"));
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
        let (verb, params) = ("apply the status of", PatchParams::apply(manager).force());
        self.patch(verb, name, STATUS, &params, apply_patch(body), None)
            .await
    }

    /// Changes the status subresource with a JSON merge patch.
    ///
    /// # Errors
    /// As [`ResourceClient::apply`].
    pub async fn merge_status(
        &self,
        name: &NamespacedName,
        body: &Value,
        manager: &str,
    ) -> Result<DynamicObject, ApiError> {
        // Only names the field manager.
        let (verb, params) = ("patch the status of", PatchParams::apply(manager));
        self.patch(verb, name, STATUS, &params, Ok(Patch::Merge(body)), None)
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
        let (params, patch) = (PatchParams::apply(manager), Ok(Patch::Merge(body)));
        self.patch("patch", name, None, &params, patch, self.secret(body))
            .await
    }

    /// Replaces parts of an object, one after the other, unless the object has another version. Each is a JSON pointer with the
    /// new value, or with none to remove what is there.
    ///
    /// # Errors
    /// As [`ResourceClient::apply`].
    pub async fn replace_parts(
        &self,
        name: &NamespacedName,
        version: Option<&str>,
        parts: &[(&str, Option<&Value>)],
        manager: &str,
    ) -> Result<DynamicObject, ApiError> {
        let replaced = |(pointer, part): &(&str, Option<&Value>)| match part {
            Some(part) => json!({ "op": "replace", "path": pointer, "value": part }),
            None => json!({ "op": "remove", "path": pointer }),
        };
        let version = json!({ "op": "replace", "path": "/metadata/resourceVersion", "value": version });
        let patch = std::iter::once(version).chain(parts.iter().map(replaced));
        let patch = serde_json::from_value(patch.collect()).map(Patch::<()>::Json);
        let patch = patch.map_err(kube::Error::SerdeError);
        let secret = parts.iter().find_map(|(_, part)| self.secret((*part)?));
        self.patch("patch", name, None, &PatchParams::apply(manager), patch, secret)
            .await
    }

    /// Sends a patch of an object or of a subresource. `secret` is its content if that is a Secret.
    async fn patch<P: Serialize>(
        &self,
        verb: &'static str,
        name: &NamespacedName,
        subresource: Option<&str>,
        params: &PatchParams,
        patch: kube::Result<Patch<P>>,
        secret: Option<&Value>,
    ) -> Result<DynamicObject, ApiError> {
        let api = self.api(name);
        let request = async { api.patch(&name.name, subresource, params, &patch?).await };
        self.with_body(verb, name, secret, request).await
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
        // An object deserialized from JSON always serializes.
        let secret = self
            .is_secret()
            .then(|| serde_json::to_value(&body).unwrap_or_default());
        let request = api.create(&params, &body);
        self.with_body("create", name, secret.as_ref(), request).await
    }

    /// Checks, by a dry run, that the API server would create an object like this one if it did not exist. Its name is another
    /// one that the API server makes. Values of which only one object can have each, such as a node port, may be taken.
    ///
    /// # Errors
    /// As [`ResourceClient::apply`].
    pub async fn could_create(
        &self,
        name: &NamespacedName,
        mut body: Value,
        manager: &str,
    ) -> Result<(), ApiError> {
        let start: String = name.name.chars().take(PREFIX).collect();
        let start = start.trim_end_matches(['-', '.']);
        if let Some(metadata) = body["metadata"].as_object_mut() {
            metadata.remove("name");
            metadata.insert("generateName".into(), format!("{start}-").into());
        }
        let params = PostParams {
            dry_run: true,
            field_manager: Some(manager.to_owned()),
        };
        let api = self.api(name);
        let request = async {
            let object = serde_json::from_value(body.clone()).map_err(kube::Error::SerdeError)?;
            api.create(&params, &object).await
        };
        match self.with_body("create", name, self.secret(&body), request).await {
            Err(error) if !error.message.contains("already allocated") => Err(error),
            _ => Ok(()),
        }
    }

    /// Deletes the object with this UID, and only at this resource version when one is given. `propagation` is when its
    /// dependents are deleted: [`PropagationPolicy::Background`] means after it.
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
        propagation: PropagationPolicy,
    ) -> Result<Option<DynamicObject>, ApiError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: version.map(str::to_owned),
            }),
            propagation_policy: Some(propagation),
            ..DeleteParams::default()
        };
        let api = self.api(name);
        let answer = self
            .bounded("delete", name, api.delete(&name.name, &params))
            .await;
        match answer {
            Err(error) if error.is_not_found() => Ok(None),
            answer => answer,
        }
    }

    fn api(&self, name: &NamespacedName) -> Objects {
        let namespace = name.namespace.as_deref().filter(|_| self.resource.namespaced);
        Objects::new(self.writer.client.clone(), &self.resource.api, namespace)
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

    /// Reports whether the messages about these objects could quote a secret value.
    fn is_secret(&self) -> bool {
        self.resource.api.group.is_empty() && self.resource.api.kind == "Secret"
    }

    /// Returns the body of a request if it has secret values.
    fn secret<'b>(&self, body: &'b Value) -> Option<&'b Value> {
        Some(body).filter(|_| self.is_secret())
    }

    /// Waits for the answer to a write. A reconcile that waits for long leaves its worker to others, and one of too many gives
    /// up early, unless the API server is slow for all. The error is why there is no answer.
    async fn patiently<T>(
        &self,
        name: &NamespacedName,
        limits: &WriteLimits,
        limit: Duration,
        mut request: Pin<Box<impl Future<Output = T>>>,
    ) -> Result<T, Fault> {
        let start = Instant::now();
        let until = start + limit;
        let (soon, slow) = limits.times();
        if let Ok(answer) = timeout_at(until.min(start + soon), &mut request).await {
            return Ok(answer);
        }
        if limits.is_crowded() {
            turn::give_up();
        }
        if let Ok(answer) = timeout_at(until.min(start + slow), &mut request).await {
            return Ok(answer);
        }
        let _slot = loop {
            tokio::select! {
                biased;
                answer = &mut request => return Ok(answer),
                slot = limits.slow() => break slot,
                read = self.read_time(name) => match read {
                    Some(read) if start.elapsed() > LONG.max(read * MANY_READS) => return Err(Fault::Crowded),
                    _ if Instant::now() >= until => return Err(Fault::Silent),
                    _ => {}
                },
            }
            if let Ok(answer) = timeout_at(until.min(Instant::now() + slow), &mut request).await {
                return Ok(answer);
            }
        };
        turn::give_up();
        if let Ok(answer) = timeout_at(until, request).await {
            return Ok(answer);
        }
        // A request that the end of a term has cut short had no chance.
        Err(
            match limit >= WRITE_TIMEOUT / 2 && self.read_time(name).await.is_some() {
                true => Fault::Unanswered,
                false => Fault::Silent,
            },
        )
    }

    /// Returns how long the API server takes to answer a read of an object; `None` when it takes long, too. A refusal is an
    /// answer.
    async fn read_time(&self, name: &NamespacedName) -> Option<Duration> {
        let one = ListParams::default().fields(&format!("metadata.name={}", name.name));
        let api = self.api(name);
        let start = Instant::now();
        match tokio::time::timeout(READ_TIMEOUT, api.list(&one)).await {
            Ok(Ok(_) | Err(kube::Error::Api(_))) => Some(start.elapsed()),
            _ => None,
        }
    }

    async fn bounded<T>(
        &self,
        verb: &'static str,
        name: &NamespacedName,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        self.with_body(verb, name, None, request).await
    }

    /// Sends a request. `secret` is its body if that is a Secret.
    async fn with_body<T>(
        &self,
        verb: &'static str,
        name: &NamespacedName,
        secret: Option<&Value>,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        let limits = self.writer.limits.as_deref().filter(|_| is_write(verb));
        let _permit = match limits {
            Some(limits) => tokio::select! {
                permit = limits.permit() => Some(permit),
                // The request is refused below.
                () = self.writer.term.ended() => None,
            },
            None => None,
        };
        let span = trace::child(|| {
            info_span!(
                target: trace::TARGET,
                "request",
                otel.name = span_name(verb),
                k8s.object.api_version = self.resource.api.api_version,
                k8s.object.kind = self.resource.api.kind,
                k8s.object.name = name.name,
                k8s.namespace.name = name.namespace.as_deref(),
            )
        });
        let request = async {
            if !self.is_secret() {
                return request.await;
            }
            // A webhook may quote a value.
            let (answer, heard) = Box::pin(warnings::hear(request)).await;
            heard
                .iter()
                .for_each(|text| warnings::tell(&without_values(text, secret)));
            answer
        };
        // Ends before another replica may lead, and after the timeout of a request at the latest.
        let most = if limits.is_some() {
            WRITE_TIMEOUT
        } else {
            REQUEST_TIMEOUT
        };
        let limit = self.writer.term.allowance().map(|left| left.min(most));
        // Boxed, since the parts of a reconcile are one future, and the stacks of the runtime's threads are small.
        let request = Box::pin(request);
        let answer = match (limit, limits) {
            (Some(limit), Some(limits)) => {
                let start = Instant::now();
                let answer = trace::around(&span, self.patiently(name, limits, limit, request)).await;
                if answer.is_ok() {
                    limits.answered(start.elapsed());
                }
                answer
            }
            (Some(limit), None) => {
                let answer = trace::around(&span, tokio::time::timeout(limit, request)).await;
                answer.map_err(|_elapsed| Fault::Silent)
            }
            (None, _) => Ok(Err(kube::Error::Service(Box::new(Deposed)))),
        };
        let (mut retry_after, mut is_of_immutable) = (None, false);
        let (fault, message) = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(kube::Error::Api(mut status))) => {
                self.complete(&mut status);
                if self.is_secret() {
                    status.message = without_values(&status.message, secret);
                }
                retry_after = asked_delay(&status);
                is_of_immutable = is_immutable(&status);
                let fault = fault_of(&status, name);
                let namespace = name.namespace.as_deref().unwrap_or_default();
                match fault {
                    Fault::NotServed => {
                        let kind = &self.resource.api.kind;
                        status.message = format!("the API server does not serve {kind}: {}", status.message);
                    }
                    Fault::NamespaceMissing => {
                        status.message = format!("namespace {namespace} does not exist");
                    }
                    _ => {}
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
            Err(fault) => (fault, silence(fault, limit.unwrap_or(most))),
        };
        // 404 is a valid result of a get and of a delete, and [`Self::apply_new`] expects that refusal.
        let is_valid = (fault == Fault::Missing && matches!(verb, "get" | "delete"))
            || message.contains(VERSION_REFUSED);
        if !is_valid {
            trace::fail(&span, "api", &message, "");
        }
        Err(ApiError {
            verb,
            kind: kind_in_words(&self.resource.api.group, &self.resource.api.kind).into(),
            name: name.clone(),
            fault,
            message: message.into(),
            is_immutable: is_of_immutable,
            retry_after,
        })
    }
}

/// Says why there is no answer.
fn silence(fault: Fault, limit: Duration) -> String {
    let waited = match fault {
        Fault::Unanswered => format!("{limit:?}"),
        Fault::Crowded => format!("{LONG:?}, while too many other writes of this controller wait for theirs"),
        _ => return format!("no answer from the API server within {limit:?}"),
    };
    format!(
        "no answer from the API server within {waited}, although it answers reads of the same object: an admission webhook may \
         hold the request (`kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations` lists them; shorten \
         their `timeoutSeconds`, or repair what they call)"
    )
}

fn apply_patch(body: &Value) -> kube::Result<Patch<Box<RawValue>>> {
    as_yaml(body).map(Patch::Apply).map_err(kube::Error::SerdeError)
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
