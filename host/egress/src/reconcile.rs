//! One reconcile of one External: the only place that knows the order of the steps.
//!
//! A crash between any two steps loses nothing: the next reconcile begins with the same GET, which shows what happened.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::core::DynamicObject;
use serde_json::{Map, Value, json};
use tracing::info;

use super::context::{Context, Lane};
use super::matches::difference;
use super::secrets::{self, Filled, SecretError};
use super::spec::{Request, Spec};
use super::status::{Next, Seen, Stop, has};
use super::transport::{Answer, Call, Fault};
use operator_host_cluster::api_error::ApiError;
use operator_host_config::endpoints::Method;
use operator_host_config::external::{FIELD_MANAGER, FINALIZER, MAX_VALUES};
use operator_host_core::object::{NamespacedName, ON_REMOVAL_ANNOTATION, ORPHAN, annotation, is_terminating};
use operator_host_core::text::shorten;

/// The reason of an External whose `set` was answered, and changed nothing.
const NOT_TAKEN: &str = "NotTaken";
/// The longest pointer in a message.
const MAX_POINTER: usize = 256;

/// Looks at one External, and makes what it stands for so.
pub(crate) async fn reconcile(context: &Context, name: &NamespacedName) -> Next {
    let Some(external) = context.externals.get(name) else {
        context.forget(name);
        return Next::OnChange;
    };
    let mut seen = Seen::default();
    match steps(context, name, external, &mut seen).await {
        Ok(Some(external)) => context.tell(name, &external, &seen, None).await,
        // It has gone.
        Ok(None) => Next::OnChange,
        Err((_, stop)) if stop.next == Next::Deposed => Next::Deposed,
        Err((external, stop)) => context.tell(name, &external, &seen, Some(stop)).await,
    }
}

type Object = Arc<DynamicObject>;

/// Returns the object as it is then; `None` when it has been let go.
async fn steps(
    context: &Context,
    name: &NamespacedName,
    mut external: Object,
    seen: &mut Seen,
) -> Result<Option<Object>, (Object, Stop)> {
    // The finalizer changes the object that the status is about.
    let at = |external: &Object| {
        let external = Arc::clone(external);
        move |stop: Stop| (external, stop)
    };
    if is_terminating(&external) {
        return leave(context, name, &external, seen)
            .await
            .map(|()| None)
            .map_err(at(&external));
    }
    let (spec, lane) = permitted(context, name, &external).map_err(at(&external))?;
    external = keep_finalizer(context, name, &external, spec.unset.is_some())
        .await
        .map_err(at(&external))?;
    make_so(context, name, &external, &spec, lane, seen)
        .await
        .map_err(at(&external))?;
    Ok(Some(external))
}

/// Reads the spec, and checks what does not depend on the server: nothing is sent before that.
fn permitted<'a>(
    context: &'a Context,
    name: &NamespacedName,
    external: &DynamicObject,
) -> Result<(Spec, &'a Arc<Lane>), Stop> {
    let spec = Spec::of(&external.data["spec"]).map_err(|why| Stop::stalled("InvalidSpec", why))?;
    let first = external.data["status"]["identity"].as_str();
    if first.is_some_and(|first| first != spec.identity()) {
        let why = "`spec.endpoint` and `spec.observe.path` cannot be changed: change them back, or make another External";
        return Err(Stop::stalled("ImmutableField", why));
    }
    let namespace = name.namespace.as_deref().unwrap_or_default();
    let lane = context.lane(name, external);
    // Whether an endpoint exists is no business of who may not use it.
    let lane = lane.ok_or_else(|| {
        let why = format!(
            "no endpoint {:?} may be used in the namespace {namespace}, so nothing is sent: ask an administrator of `operator-host \
             egress`; to delete this object without a request, annotate it with {ON_REMOVAL_ANNOTATION}={ORPHAN}",
            spec.endpoint
        );
        Stop::stalled("EndpointNotAllowed", why)
    })?;
    let methods = &lane.transport.endpoint.methods;
    // One that is deleted sends `unset` only.
    let set = spec.set.iter().filter(|_| !is_terminating(external));
    let requests = set.chain(&spec.unset);
    if let Some(bad) = requests
        .map(|it| it.method)
        .find(|method| !methods.contains(method))
    {
        let why = format!("the endpoint {:?} does not allow {}", spec.endpoint, bad.as_str());
        return Err(Stop::stalled("MethodNotAllowed", why));
    }
    if let Some(other) = context.holders.other(name) {
        let who = match other.namespace == name.namespace {
            true => format!("the External {}", other.name),
            false => "an External in another namespace".to_owned(),
        };
        let why = format!(
            "{who}, which is older, stands for the same endpoint and path, so nothing is sent for this one"
        );
        return Err(Stop::stalled("Conflict", why));
    }
    Ok((spec, lane))
}

/// Undoes what a deleted External has set, and lets it go.
async fn leave(
    context: &Context,
    name: &NamespacedName,
    external: &Object,
    seen: &mut Seen,
) -> Result<(), Stop> {
    if !has_finalizer(external) {
        return Ok(());
    }
    if annotation(external, ON_REMOVAL_ANNOTATION) != Some(ORPHAN) {
        match permitted(context, name, external) {
            Ok((spec, lane)) => {
                if let Some(unset) = &spec.unset {
                    let filled = fill(context, name, &spec, unset).await?;
                    let answer = send(context, lane, name, external, unset, filled).await?;
                    seen.code = Some(answer.code);
                    if !matches!(answer.code, 200..=299 | 404 | 410) {
                        return Err(of_code(&answer, "unset"));
                    }
                }
            }
            // What it stands for is the other's.
            Err(stop) if stop.reason == "Conflict" => {}
            Err(stop) => return Err(stop),
        }
    }
    keep_finalizer(context, name, external, false).await?;
    Ok(())
}

/// Adds the finalizer while there is something to undo.
async fn keep_finalizer(
    context: &Context,
    name: &NamespacedName,
    external: &Object,
    wanted: bool,
) -> Result<Object, Stop> {
    if has_finalizer(external) == wanted {
        return Ok(Arc::clone(external));
    }
    let metadata = &external.metadata;
    let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
    match wanted {
        true => finalizers.push(FINALIZER.to_owned()),
        false => finalizers.retain(|it| it != FINALIZER),
    }
    let body = json!({"metadata": {"resourceVersion": metadata.resource_version, "finalizers": finalizers}});
    match context.externals().merge(name, &body, FIELD_MANAGER).await {
        Ok(object) => Ok(context.record(name, object)),
        Err(error) if error.is_not_found() && !wanted => Ok(Arc::clone(external)),
        Err(error) => Err(of_api(&error)),
    }
}

fn has_finalizer(external: &DynamicObject) -> bool {
    external
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|it| it == FINALIZER)
}

/// GET; if need be `set` and GET again; then report and save.
async fn make_so(
    context: &Context,
    name: &NamespacedName,
    external: &Object,
    spec: &Spec,
    lane: &Arc<Lane>,
    seen: &mut Seen,
) -> Result<(), Stop> {
    let known = context.known_etag(name, external, spec);
    let mut answer = look(context, lane, name, spec, known.as_deref(), seen).await?;
    if answer.code == 304 && known.is_some() {
        // It was as it should be, and is the same.
        seen.code = None;
        return Ok(());
    }
    let mut differs = difference_of(spec, &answer)?;
    let filled = match &spec.set {
        Some(set) => Some((set, fill(context, name, spec, set).await?)),
        None => None,
    };
    let sent = &external.data["status"]["secrets"];
    // What a password is cannot be seen in an answer: the Secret's version says whether it was sent.
    let is_sent = |filled: &Filled| filled.versions.is_empty() || json!(filled.versions) == *sent;
    // Each POST may make another one.
    let is_in_vain = |set: &Request, filled: &Filled| {
        set.method == Method::Post && is_sent(filled) && has(external, "Stalled", Some(NOT_TAKEN))
    };
    if let Some((set, filled)) = filled
        && (differs.is_some() || !is_sent(&filled))
        && !is_in_vain(set, &filled)
    {
        // Nothing waits for room that has some.
        drop(answer);
        let versions = filled.versions.clone();
        let done = send(context, lane, name, external, set, filled).await?;
        seen.code = Some(done.code);
        if !matches!(done.code, 200..=299) {
            return Err(of_code(&done, "set"));
        }
        (seen.is_set, seen.secrets) = (true, Some(versions));
        answer = look(context, lane, name, spec, None, seen).await?;
        differs = difference_of(spec, &answer)?;
    }
    report(context, lane, spec, &answer, seen).await?;
    match differs {
        Some(at) if let Some(set) = &spec.set => {
            let then = match set.method {
                Method::Post => "; a POST is not repeated: correct the spec",
                _ => "",
            };
            Err(Stop::refused(
                NOT_TAKEN,
                format!("`set` was answered, but the answer to GET still differs from `matches` {at}{then}"),
            ))
        }
        Some(at) => Err(Stop {
            next: Next::Every,
            ..Stop::failed("Differs", format!("the answer differs from `matches` {at}"))
        }),
        None => {
            save(context, lane, name, external, spec, &answer).await?;
            context.know_etag(name, external, answer.etag.clone());
            Ok(())
        }
    }
}

/// Asks with GET. Those that only read share the answer.
async fn look(
    context: &Context,
    lane: &Arc<Lane>,
    name: &NamespacedName,
    spec: &Spec,
    known: Option<&str>,
    seen: &mut Seen,
) -> Result<Arc<Answer>, Stop> {
    let is_reader = spec.set.is_none() && spec.unset.is_none();
    let mut again = true;
    loop {
        let call = Call {
            method: Method::Get,
            path: &spec.observe.path,
            headers: &spec.observe.headers,
            body: None,
            known: known.filter(|_| !is_reader),
            key: None,
        };
        let credential = context
            .credential(lane)
            .await
            .map_err(|error| of_secret(&error))?;
        let answer = match is_reader {
            true => lane.transport.ask_once(call, credential.as_deref()).await,
            false => lane
                .transport
                .send(call, credential.as_deref())
                .await
                .map(Arc::new),
        };
        let answer = answer.map_err(of_fault)?;
        seen.code = Some(answer.code);
        match answer.code {
            200..=299 | 304 | 404 | 410 => return Ok(answer),
            // The credentials may have been renewed.
            401 | 403 if std::mem::take(&mut again) && lane.credential.forget() => {}
            _ => {
                tracing::debug!(external = %name, code = answer.code, "GET was refused");
                return Err(of_code(&answer, "GET"));
            }
        }
    }
}

/// Returns where an answer differs, in words.
fn difference_of(spec: &Spec, answer: &Answer) -> Result<Option<String>, Stop> {
    if matches!(answer.code, 404 | 410) {
        return Ok(Some(format!("as a whole: the server answers {}", answer.code)));
    }
    if answer.code == 304 {
        return Err(Stop::failed(
            "UnusableAnswer",
            "the server answers 304, although it was not asked for a change",
        ));
    }
    let pointer = spec
        .matches
        .as_ref()
        .and_then(|wanted| difference(wanted, &answer.body));
    Ok(pointer.map(|pointer| match pointer.as_str() {
        "" => "as a whole".to_owned(),
        pointer => format!("at {}", shorten(pointer, MAX_POINTER)),
    }))
}

async fn fill(
    context: &Context,
    name: &NamespacedName,
    spec: &Spec,
    request: &Request,
) -> Result<Filled, Stop> {
    let namespace = name.namespace.as_deref().unwrap_or_default();
    let filled = secrets::fill(
        request.body.as_ref(),
        &context.secrets(),
        namespace,
        &spec.endpoint,
    )
    .await;
    filled.map_err(|error| of_secret(&error))
}

/// Sends `set` or `unset`.
async fn send(
    context: &Context,
    lane: &Arc<Lane>,
    name: &NamespacedName,
    external: &DynamicObject,
    request: &Request,
    filled: Filled,
) -> Result<Answer, Stop> {
    let (uid, generation) = (external.metadata.uid.as_deref(), external.metadata.generation);
    let call = Call {
        method: request.method,
        path: &request.path,
        headers: &request.headers,
        body: filled.body,
        known: None,
        key: Some(format!(
            "{}-{}",
            uid.unwrap_or_default(),
            generation.unwrap_or_default()
        )),
    };
    let credential = context
        .credential(lane)
        .await
        .map_err(|error| of_secret(&error))?;
    let answer = lane.transport.send(call, credential.as_deref()).await;
    let code = answer.as_ref().map(|answer| answer.code).unwrap_or_default();
    let (method, endpoint) = (request.method.as_str(), &lane.transport.endpoint.name);
    info!(external = %name, endpoint, method, code, "sent");
    answer.map_err(of_fault)
}

/// Takes what `report` names from an answer.
async fn report(
    context: &Context,
    lane: &Lane,
    spec: &Spec,
    answer: &Answer,
    seen: &mut Seen,
) -> Result<(), Stop> {
    let found = spec
        .report
        .iter()
        .filter_map(|pointer| Some((pointer, answer.body.pointer(pointer)?)));
    let values: Map<_, _> = found
        .map(|(pointer, value)| (pointer.clone(), value.clone()))
        .collect();
    let values = Value::Object(values);
    if values.to_string().len() > MAX_VALUES {
        return Err(Stop::refused(
            "ReportTooLarge",
            "what `report` names has more than 16 KiB",
        ));
    }
    check_secret(context, lane, &values).await?;
    if let Value::Object(values) = values {
        seen.values = Some(values);
    }
    Ok(())
}

/// Puts what `save` names into its Secret.
async fn save(
    context: &Context,
    lane: &Lane,
    name: &NamespacedName,
    external: &DynamicObject,
    spec: &Spec,
    answer: &Answer,
) -> Result<(), Stop> {
    let Some(save) = &spec.save else { return Ok(()) };
    let mut entries = BTreeMap::new();
    for (key, pointer) in &save.entries {
        let value = answer.body.pointer(pointer);
        let text = match value {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => {
                return Err(Stop::failed(
                    "NothingToSave",
                    format!("the answer has nothing at {pointer}"),
                ));
            }
        };
        check_secret(context, lane, &Value::String(text.clone())).await?;
        entries.insert(key.clone(), text);
    }
    let namespace = name.namespace.as_deref().unwrap_or_default();
    let saved = secrets::save(&context.secrets(), external, namespace, &save.secret, &entries).await;
    saved.map_err(|error| of_secret(&error))
}

/// Refuses to pass on the endpoint's credentials, which a server may send back.
async fn check_secret(context: &Context, lane: &Lane, value: &Value) -> Result<(), Stop> {
    let credential = context
        .credential(lane)
        .await
        .map_err(|error| of_secret(&error))?;
    match credential.is_some_and(|credential| credential.is_in(value)) {
        true => Err(Stop::refused(
            "ContainsCredentials",
            "the answer contains the endpoint's credentials there, so it stays out",
        )),
        false => Ok(()),
    }
}

fn of_fault(fault: Fault) -> Stop {
    match fault {
        Fault::Deposed => Stop {
            next: Next::Deposed,
            ..Stop::failed(fault.class(), fault.to_string())
        },
        Fault::Waits(left) => Stop {
            next: Next::Backoff(left),
            ..Stop::failed(fault.class(), fault.to_string())
        },
        Fault::BodyTooLarge(_) | Fault::RefusedAddress(_) => Stop::refused(fault.class(), fault.to_string()),
        _ => Stop::failed(fault.class(), fault.to_string()),
    }
}

/// Says what a code means that is no success.
fn of_code(answer: &Answer, what: &str) -> Stop {
    let code = answer.code;
    let says = |why: &str| format!("the server answers {code} to {what}{why}");
    match code {
        300..=399 => Stop::refused("Redirected", says(": no redirect is followed")),
        401 | 403 => Stop::refused(
            "NotAuthorized",
            says(": check the endpoint's credentials and what they allow"),
        ),
        429 | 503 if answer.wait.is_some() => of_fault(Fault::Waits(answer.wait.unwrap_or(Duration::ZERO))),
        408 | 409 | 412 | 423 | 425 | 500..=599 => Stop::failed("ServerFails", says("")),
        _ => Stop::refused("Refused", says("")),
    }
}

fn of_secret(error: &SecretError) -> Stop {
    match error {
        SecretError::Api(error) => of_api(error),
        SecretError::Unusable(..) => Stop::refused("SecretUnusable", error.to_string()),
        SecretError::Placeholder(_) => Stop::stalled("InvalidSpec", error.to_string()),
    }
}

fn of_api(error: &ApiError) -> Stop {
    Stop::failed("ApiError", error.to_string())
}
