//! One reconcile of one External: the only place that knows the order of the steps.
//!
//! A crash between any two steps loses nothing: the next reconcile begins with the same GET, which shows what happened.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::core::DynamicObject;
use serde_json::{Map, Value, json};
use tracing::{debug, info};

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
    let mut run = Run {
        context,
        name,
        external,
        seen: Seen::default(),
    };
    let stop = match run.steps().await {
        Ok(true) => None,
        // It has been let go.
        Ok(false) => return Next::OnChange,
        Err(stop) if stop.next == Next::Deposed => return Next::Deposed,
        Err(stop) => Some(stop),
    };
    context.tell(name, &run.external, &run.seen, stop).await
}

/// One reconcile.
struct Run<'a> {
    context: &'a Context,
    name: &'a NamespacedName,
    /// As it was last read or written: the finalizer changes the object that the status is about.
    external: Arc<DynamicObject>,
    seen: Seen,
}

/// What the External says, and the endpoint that it may use.
struct Way<'a> {
    spec: Spec,
    lane: &'a Lane,
}

impl<'a> Run<'a> {
    fn namespace(&self) -> &'a str {
        self.name.namespace.as_deref().unwrap_or_default()
    }

    /// Returns whether the External stays.
    async fn steps(&mut self) -> Result<bool, Stop> {
        if is_terminating(&self.external) {
            self.leave().await?;
            return Ok(false);
        }
        let way = self.permitted()?;
        self.keep_finalizer(way.spec.unset.is_some()).await?;
        self.make_so(&way).await?;
        Ok(true)
    }

    /// Reads the spec, and checks what does not depend on the server: nothing is sent before that.
    fn permitted(&self) -> Result<Way<'a>, Stop> {
        let spec = Spec::of(&self.external.data["spec"]).map_err(|why| Stop::stalled("InvalidSpec", why))?;
        let first = self.external.data["status"]["identity"].as_str();
        if first.is_some_and(|first| first != spec.identity()) {
            let why = "`spec.endpoint` and `spec.observe.path` cannot be changed: change them back, or make another External";
            return Err(Stop::stalled("ImmutableField", why));
        }
        let namespace = self.namespace();
        let lane = self.context.lane(self.name, &self.external);
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
        let set = spec.set.iter().filter(|_| !is_terminating(&self.external));
        let requests = set.chain(&spec.unset);
        if let Some(bad) = requests
            .map(|it| it.method)
            .find(|method| !methods.contains(method))
        {
            let why = format!("the endpoint {:?} does not allow {}", spec.endpoint, bad.as_str());
            return Err(Stop::stalled("MethodNotAllowed", why));
        }
        if let Some(other) = self.context.holders.other(self.name) {
            let who = match other.namespace == self.name.namespace {
                true => format!("the External {}", other.name),
                false => "an External in another namespace".to_owned(),
            };
            let why = format!(
                "{who}, which is older, stands for the same endpoint and path, so nothing is sent for this one"
            );
            return Err(Stop::stalled("Conflict", why));
        }
        Ok(Way { spec, lane })
    }

    /// Undoes what a deleted External has set, and lets it go.
    async fn leave(&mut self) -> Result<(), Stop> {
        if !self.has_finalizer() {
            return Ok(());
        }
        if annotation(&self.external, ON_REMOVAL_ANNOTATION) != Some(ORPHAN) {
            match self.permitted() {
                Ok(way) => {
                    if let Some(unset) = &way.spec.unset {
                        let filled = self.fill(&way, unset).await?;
                        let answer = self.send(&way, unset, filled).await?;
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
        self.keep_finalizer(false).await
    }

    fn has_finalizer(&self) -> bool {
        let mut finalizers = self.external.metadata.finalizers.iter().flatten();
        finalizers.any(|it| it == FINALIZER)
    }

    /// Keeps the finalizer while there is something to undo.
    async fn keep_finalizer(&mut self, wanted: bool) -> Result<(), Stop> {
        if self.has_finalizer() == wanted {
            return Ok(());
        }
        let metadata = &self.external.metadata;
        let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
        match wanted {
            true => finalizers.push(FINALIZER.to_owned()),
            false => finalizers.retain(|it| it != FINALIZER),
        }
        let body =
            json!({"metadata": {"resourceVersion": metadata.resource_version, "finalizers": finalizers}});
        match self
            .context
            .externals()
            .merge(self.name, &body, FIELD_MANAGER)
            .await
        {
            Ok(object) => self.external = self.context.record(self.name, object),
            Err(error) if error.is_not_found() && !wanted => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// GET; if need be `set` and GET again; then report and save.
    async fn make_so(&mut self, way: &Way<'_>) -> Result<(), Stop> {
        let spec = &way.spec;
        let known = self.context.known_etag(self.name, &self.external, spec);
        let mut answer = self.look(way, known.as_deref()).await?;
        if answer.code == 304 && known.is_some() {
            // It was as it should be, and is the same.
            self.seen.code = None;
            return Ok(());
        }
        let mut differs = difference_of(spec, &answer)?;
        let filled = match &spec.set {
            Some(set) => Some((set, self.fill(way, set).await?)),
            None => None,
        };
        let sent = &self.external.data["status"]["secrets"];
        // What a password is cannot be seen in an answer: the Secret's version says whether it was sent.
        let is_sent = |filled: &Filled| filled.versions.is_empty() || json!(filled.versions) == *sent;
        // Each POST may make another one.
        let is_in_vain = |set: &Request, filled: &Filled| {
            let has_failed = has(&self.external, "Stalled", Some(NOT_TAKEN));
            set.method == Method::Post && is_sent(filled) && has_failed
        };
        if let Some((set, filled)) = filled
            && (differs.is_some() || !is_sent(&filled))
            && !is_in_vain(set, &filled)
        {
            // Nothing waits for room that has some.
            drop(answer);
            let versions = filled.versions.clone();
            let done = self.send(way, set, filled).await?;
            if !matches!(done.code, 200..=299) {
                return Err(of_code(&done, "set"));
            }
            (self.seen.is_set, self.seen.secrets) = (true, Some(versions));
            answer = self.look(way, None).await?;
            differs = difference_of(spec, &answer)?;
        }
        self.report(way, &answer).await?;
        match differs {
            Some(at) if let Some(set) = &spec.set => {
                let then = match set.method {
                    Method::Post => "; a POST is not repeated: correct the spec",
                    _ => "",
                };
                Err(Stop::refused(
                    NOT_TAKEN,
                    format!(
                        "`set` was answered, but the answer to GET still differs from `matches` {at}{then}"
                    ),
                ))
            }
            Some(at) => Err(Stop {
                next: Next::Every,
                ..Stop::failed("Differs", format!("the answer differs from `matches` {at}"))
            }),
            None => {
                self.save(way, &answer).await?;
                let etag = answer.etag.clone();
                self.context.know_etag(self.name, &self.external, etag);
                Ok(())
            }
        }
    }

    /// Asks with GET. Those that only read share the answer.
    async fn look(&mut self, way: &Way<'_>, known: Option<&str>) -> Result<Arc<Answer>, Stop> {
        let spec = &way.spec;
        let is_reader = spec.set.is_none() && spec.unset.is_none();
        let call = Call {
            method: Method::Get,
            path: &spec.observe.path,
            headers: &spec.observe.headers,
            body: None,
            known: known.filter(|_| !is_reader),
            key: None,
        };
        let answer = self.ask(way, call, is_reader).await?;
        match answer.code {
            200..=299 | 304 | 404 | 410 => Ok(answer),
            code => {
                debug!(external = %self.name, code, "GET was refused");
                Err(of_code(&answer, "GET"))
            }
        }
    }

    /// Sends `set` or `unset`.
    async fn send(&mut self, way: &Way<'_>, request: &Request, filled: Filled) -> Result<Arc<Answer>, Stop> {
        let metadata = &self.external.metadata;
        let (uid, generation) = (metadata.uid.as_deref(), metadata.generation);
        let key = format!("{}-{}", uid.unwrap_or_default(), generation.unwrap_or_default());
        let call = Call {
            method: request.method,
            path: &request.path,
            headers: &request.headers,
            body: filled.body,
            known: None,
            key: Some(key),
        };
        let answer = self.ask(way, call, false).await;
        let code = answer.as_ref().map(|answer| answer.code).unwrap_or_default();
        let (method, endpoint) = (request.method.as_str(), &way.spec.endpoint);
        info!(external = %self.name, endpoint, method, code, "sent");
        answer
    }

    /// Sends a request, and again when the server refuses credentials that may have been renewed.
    async fn ask(&mut self, way: &Way<'_>, call: Call<'_>, is_shared: bool) -> Result<Arc<Answer>, Stop> {
        let Lane {
            transport,
            credential: kept,
            ..
        } = way.lane;
        let mut again = true;
        loop {
            let credential = self.context.credential(way.lane).await?;
            let answer = match is_shared {
                true => transport.ask_once(call.clone(), credential.as_deref()).await?,
                false => Arc::new(transport.send(call.clone(), credential.as_deref()).await?),
            };
            self.seen.code = Some(answer.code);
            let is_refused = matches!(answer.code, 401 | 403);
            if !is_refused || !std::mem::take(&mut again) || !kept.forget() {
                return Ok(answer);
            }
        }
    }

    async fn fill(&self, way: &Way<'_>, request: &Request) -> Result<Filled, Stop> {
        let (body, secrets) = (request.body.as_ref(), self.context.secrets());
        Ok(secrets::fill(body, &secrets, self.namespace(), &way.spec.endpoint).await?)
    }

    /// Takes what `report` names from an answer.
    async fn report(&mut self, way: &Way<'_>, answer: &Answer) -> Result<(), Stop> {
        let found = way.spec.report.iter();
        let found =
            found.filter_map(|pointer| Some((pointer.clone(), answer.body.pointer(pointer)?.clone())));
        let values = found.collect::<Map<_, _>>();
        let whole = Value::Object(values.clone());
        if whole.to_string().len() > MAX_VALUES {
            let why = "what `report` names has more than 16 KiB";
            return Err(Stop::refused("ReportTooLarge", why));
        }
        self.check_secret(way, &whole).await?;
        self.seen.values = Some(values);
        Ok(())
    }

    /// Puts what `save` names into its Secret.
    async fn save(&self, way: &Way<'_>, answer: &Answer) -> Result<(), Stop> {
        let Some(save) = &way.spec.save else {
            return Ok(());
        };
        let mut entries = BTreeMap::new();
        for (key, pointer) in &save.entries {
            let text = match answer.body.pointer(pointer) {
                Some(Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
                None => {
                    let why = format!("the answer has nothing at {pointer}");
                    return Err(Stop::failed("NothingToSave", why));
                }
            };
            self.check_secret(way, &Value::String(text.clone())).await?;
            entries.insert(key.clone(), text);
        }
        let secrets = self.context.secrets();
        Ok(secrets::save(&secrets, &self.external, self.namespace(), &save.secret, &entries).await?)
    }

    /// Refuses to pass on the endpoint's credentials, which a server may send back.
    async fn check_secret(&self, way: &Way<'_>, value: &Value) -> Result<(), Stop> {
        let credential = self.context.credential(way.lane).await?;
        match credential.is_some_and(|credential| credential.is_in(value)) {
            true => Err(Stop::refused(
                "ContainsCredentials",
                "the answer contains the endpoint's credentials there, so it stays out",
            )),
            false => Ok(()),
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
        429 | 503 if answer.wait.is_some() => Fault::Waits(answer.wait.unwrap_or(Duration::ZERO)).into(),
        408 | 409 | 412 | 423 | 425 | 500..=599 => Stop::failed("ServerFails", says("")),
        _ => Stop::refused("Refused", says("")),
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        let (reason, why) = (fault.class(), fault.to_string());
        match fault {
            Fault::BodyTooLarge(_) | Fault::RefusedAddress(_) => Self::refused(reason, why),
            Fault::Deposed => Self {
                next: Next::Deposed,
                ..Self::failed(reason, why)
            },
            Fault::Waits(left) => Self {
                next: Next::Backoff(left),
                ..Self::failed(reason, why)
            },
            _ => Self::failed(reason, why),
        }
    }
}

impl From<SecretError> for Stop {
    fn from(error: SecretError) -> Self {
        match error {
            SecretError::Api(error) => error.into(),
            SecretError::Unusable(..) => Self::refused("SecretUnusable", error.to_string()),
            SecretError::Placeholder(_) => Self::stalled("InvalidSpec", error.to_string()),
        }
    }
}

impl From<ApiError> for Stop {
    fn from(error: ApiError) -> Self {
        Self::failed("ApiError", error.to_string())
    }
}
