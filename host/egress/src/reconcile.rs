//! One reconcile of one External: the only place that knows the order of the steps.
//!
//! A crash between any two steps loses nothing: the next reconcile begins with the same GET, which shows what happened.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt as _;
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};
use tracing::{debug, info};

use super::context::Context;
use super::credentials::Credential;
use super::matches::difference;
use super::secrets;
use super::spec::{Request, Spec};
use super::status::{Next, Stop, has};
use super::transport::{Answer, Answered, Message, Transport};
use operator_host_config::endpoints::Method;
use operator_host_config::external::{FIELD_MANAGER, FINALIZER, MAX_VALUES};
use operator_host_core::clock;
use operator_host_core::object::{NamespacedName, ON_REMOVAL_ANNOTATION, ORPHAN, annotation, is_terminating};
use operator_host_core::text::shorten;
use operator_host_desired::conditions::{READY, STALLED};

/// The reason of an External whose `set` was answered, and changed nothing.
const NOT_TAKEN: &str = "NotTaken";
/// The longest pointer in a message.
const MAX_POINTER: usize = 256;

/// Looks at one External, and makes what it stands for so. Returns after which time it is next.
pub(crate) async fn reconcile(context: &Context, name: &NamespacedName) -> Option<Duration> {
    let Some(external) = context.externals.get(name) else {
        context.forget(name);
        return None;
    };
    let mut run = Run {
        context,
        name,
        external,
        credential: None,
        seen: Map::new(),
    };
    let goes = is_terminating(&run.external);
    let done = if goes {
        run.leave().await
    } else {
        run.make_so().await
    };
    let stop = match done {
        // It has been let go.
        Ok(()) if goes => return None,
        Err(stop) if stop.next == Next::Deposed => return None,
        done => done.err(),
    };
    context.tell(name, &run.external, &run.seen, stop.as_ref()).await
}

/// One reconcile.
struct Run<'a> {
    context: &'a Context,
    name: &'a NamespacedName,
    /// As it was last read or written: the finalizer changes the object that the status is about.
    external: Arc<DynamicObject>,
    /// What identified this process to the endpoint last: a server may send it back.
    credential: Option<Arc<Credential>>,
    /// The fields of the status that it has found out, even if it comes to an end early.
    seen: Map<String, Value>,
}

/// What the External says, and the way to the endpoint that it may use.
struct Way<'a> {
    spec: Spec,
    to: &'a Transport,
}

impl<'a> Run<'a> {
    fn namespace(&self) -> &'a str {
        self.name.namespace.as_deref().unwrap_or_default()
    }

    /// Reads the spec, and checks what does not depend on the server: nothing is sent before that.
    fn permitted(&self) -> Result<Way<'a>, Stop> {
        let spec = Spec::of(&self.external.data["spec"]).map_err(|why| Stop::stalled("InvalidSpec", why))?;
        let (endpoint, namespace) = (&spec.endpoint, self.namespace());
        let first = self.external.data["status"]["identity"].as_str();
        if first.is_some_and(|first| first != spec.identity()) {
            let why = "`spec.endpoint` and `spec.observe.path` cannot be changed: change them back, or make another External";
            return Err(Stop::stalled("ImmutableField", why));
        }
        // Whether an endpoint exists is no business of who may not use it.
        let Some(to) = &self.context.lane(self.name, Some(&self.external)).transport else {
            let why = format!(
                "no endpoint {endpoint:?} may be used in the namespace {namespace}, so nothing is sent: ask an administrator of \
                 `operator-host egress`; to delete this object without a request, annotate it with \
                 {ON_REMOVAL_ANNOTATION}={ORPHAN}"
            );
            return Err(Stop::stalled("EndpointNotAllowed", why));
        };
        // One that is deleted sends `unset` only.
        let set = spec.set.iter().filter(|_| !is_terminating(&self.external));
        let mut methods = set.chain(&spec.unset).map(|request| request.method);
        if let Some(bad) = methods.find(|method| !to.endpoint.methods.contains(method)) {
            let why = format!("the endpoint {endpoint:?} does not allow {}", bad.as_str());
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
        Ok(Way { spec, to })
    }

    /// Undoes what a deleted External has set, and lets it go.
    async fn leave(&mut self) -> Result<(), Stop> {
        if !self.has_finalizer() {
            return Ok(());
        }
        match self.permitted() {
            // What it stands for stays, or is the other's.
            _ if annotation(&self.external, ON_REMOVAL_ANNOTATION) == Some(ORPHAN) => {}
            Err(stop) if stop.reason == "Conflict" => {}
            Err(stop) => return Err(stop),
            Ok(way) => {
                if let Some(unset) = &way.spec.unset {
                    // It names no Secret.
                    let body = unset.body.as_ref().map(|body| body.to_string().into_bytes());
                    self.send(&way, unset, body).await?;
                }
            }
        }
        self.keep_finalizer(false).await
    }

    fn has_finalizer(&self) -> bool {
        self.external.finalizers().iter().any(|it| it == FINALIZER)
    }

    /// Keeps the finalizer while there is something to undo.
    async fn keep_finalizer(&mut self, wanted: bool) -> Result<(), Stop> {
        if self.has_finalizer() == wanted {
            return Ok(());
        }
        let mut finalizers = self.external.finalizers().to_vec();
        match wanted {
            true => finalizers.push(FINALIZER.to_owned()),
            false => finalizers.retain(|it| it != FINALIZER),
        }
        let version = self.external.resource_version();
        let body = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
        let externals = self.context.externals();
        match externals.merge(self.name, &body, FIELD_MANAGER).await {
            Ok(object) => self.external = self.context.record(self.name, object),
            Err(error) if error.is_not_found() && !wanted => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// GET; if need be `set` and GET again; then report and save.
    async fn make_so(&mut self) -> Result<(), Stop> {
        let way = &self.permitted()?;
        let spec = &way.spec;
        self.keep_finalizer(spec.unset.is_some()).await?;
        let has_secrets = spec.save.is_some() || !self.external.data["status"]["secrets"].is_null();
        // The ETag is of the same generation, and the same answer needs nothing.
        let is_settled = !has_secrets && !spec.is_reader() && has(&self.external, READY, None);
        let known = self.context.memory(self.name, |memory| memory.etag.clone());
        let known = known.filter(|_| is_settled);
        let mut answer = self.look(way, known).await?;
        if answer.code == 304 {
            // It was as it should be, and is the same.
            self.seen.remove("code");
            return Ok(());
        }
        let mut differs = difference_of(spec, &answer);
        if let Some(set) = &spec.set {
            let (secrets, endpoint) = (self.context.secrets(), &way.to.endpoint);
            let filled = secrets::fill(set.body.as_ref(), &secrets, self.namespace(), endpoint);
            let (body, versions) = filled.await?;
            // What a password is cannot be seen in an answer: the Secret's version says whether it was sent.
            let is_sent = versions.is_empty() || json!(versions) == self.external.data["status"]["secrets"];
            // Each POST may make another one.
            let has_failed = is_sent && has(&self.external, STALLED, Some(NOT_TAKEN));
            let is_in_vain = has_failed && set.method == Method::Post;
            if (differs.is_some() || !is_sent) && !is_in_vain {
                // Nothing waits for room that has some.
                drop(answer);
                self.send(way, set, body).await?;
                let now = clock::whole_seconds(clock::now());
                self.seen.insert("lastSet".to_owned(), json!(now));
                self.seen.insert("secrets".to_owned(), json!(versions));
                answer = self.look(way, None).await?;
                differs = difference_of(spec, &answer);
            }
        }
        self.report(way, &answer)?;
        let Some(at) = differs else {
            self.save(way, &answer).await?;
            let etag = answer.etag.clone();
            self.context.memory(self.name, |memory| memory.etag = etag);
            return Ok(());
        };
        let Some(set) = &spec.set else {
            let why = format!("the answer differs from `matches` {at}");
            let (next, stop) = (Next::Every, Stop::failed("Differs", why));
            return Err(Stop { next, ..stop });
        };
        let then = match set.method {
            Method::Post => "; a POST is not repeated: correct the spec",
            _ => "",
        };
        let why =
            format!("`set` was answered, but the answer to GET still differs from `matches` {at}{then}");
        Err(Stop::refused(NOT_TAKEN, why))
    }

    /// Asks with GET. `known` is the ETag of the answer that is known.
    async fn look(&mut self, way: &Way<'_>, known: Option<String>) -> Answered {
        let etag = known.as_deref().map(|etag| ("if-none-match", etag));
        let message = way.to.message(&way.spec.observe, None, etag)?;
        let answer = self.exchange(way, message).await?;
        match answer.code {
            304 if known.is_none() => {
                let why = "the server answers 304, although it was not asked for a change";
                Err(Stop::failed("UnusableAnswer", why))
            }
            200..=299 | 304 | 404 | 410 => Ok(answer),
            code => {
                debug!(external = %self.name, code, "GET was refused");
                Err(of_code(&answer, "GET"))
            }
        }
    }

    /// Sends `set`, or `unset` of one that is deleted.
    async fn send(&mut self, way: &Way<'_>, request: &Request, body: Option<Vec<u8>>) -> Result<(), Stop> {
        let (uid, generation) = (self.external.uid(), self.external.metadata.generation);
        let key = format!("{}-{}", uid.unwrap_or_default(), generation.unwrap_or_default());
        let message = way.to.message(request, body, Some(("idempotency-key", &key)))?;
        let answer = self.exchange(way, message).await;
        let code = answer.as_ref().map(|answer| answer.code).unwrap_or_default();
        let (method, endpoint) = (request.method.as_str(), &way.spec.endpoint);
        info!(external = %self.name, endpoint, method, code, "sent");
        let answer = answer?;
        match (code, is_terminating(&self.external)) {
            (200..=299, _) | (404 | 410, true) => Ok(()),
            (_, true) => Err(of_code(&answer, "unset")),
            (_, false) => Err(of_code(&answer, "set")),
        }
    }

    /// Sends a message, and again when the server refuses credentials that may have been renewed. Those that only read share the
    /// answer.
    async fn exchange(&mut self, way: &Way<'_>, message: Message) -> Answered {
        let mut again = true;
        loop {
            let (to, secrets) = (way.to, self.context.secrets());
            self.credential = to.credential.get(&to.endpoint, &secrets).await?;
            let (message, credential) = (message.clone(), self.credential.as_deref());
            let answer = match way.spec.is_reader() {
                true => to.ask_once(message, credential).await?,
                false => to.send(message, credential).await?,
            };
            self.seen.insert("code".to_owned(), answer.code.into());
            let is_refused = matches!(answer.code, 401 | 403);
            if !is_refused || !std::mem::take(&mut again) || !to.credential.forget() {
                return Ok(answer);
            }
        }
    }

    /// Takes what `report` names from an answer.
    fn report(&mut self, way: &Way<'_>, answer: &Answer) -> Result<(), Stop> {
        let value = |pointer: &String| Some((pointer.clone(), answer.body.pointer(pointer)?.clone()));
        let values = json!(way.spec.report.iter().filter_map(value).collect::<Map<_, _>>());
        if values.to_string().len() > MAX_VALUES {
            let why = "what `report` names has more than 16 KiB";
            return Err(Stop::refused("ReportTooLarge", why));
        }
        self.check_secret(&values)?;
        self.seen.insert("values".to_owned(), values);
        Ok(())
    }

    /// Puts what `save` names into its Secret.
    async fn save(&self, way: &Way<'_>, answer: &Answer) -> Result<(), Stop> {
        let Some(save) = &way.spec.save else {
            return Ok(());
        };
        let entries = save.entries.iter().map(|(key, pointer)| {
            let text = match answer.body.pointer(pointer) {
                Some(Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
                None => {
                    let why = format!("the answer has nothing at {pointer}");
                    return Err(Stop::failed("NothingToSave", why));
                }
            };
            Ok((key.clone(), text))
        });
        let entries: BTreeMap<_, _> = entries.collect::<Result<_, _>>()?;
        self.check_secret(&entries.values().cloned().collect())?;
        let secrets = self.context.secrets();
        secrets::save(&secrets, &self.external, self.namespace(), &save.secret, entries).await
    }

    /// Refuses to pass on the endpoint's credentials, which a server may send back.
    fn check_secret(&self, value: &Value) -> Result<(), Stop> {
        let credential = self.credential.as_ref();
        if credential.is_some_and(|credential| credential.is_in(value)) {
            let why = "the answer contains the endpoint's credentials there, so it stays out";
            return Err(Stop::refused("ContainsCredentials", why));
        }
        Ok(())
    }
}

/// Returns where an answer differs, in words.
fn difference_of(spec: &Spec, answer: &Answer) -> Option<String> {
    if matches!(answer.code, 404 | 410) {
        return Some(format!("as a whole: the server answers {}", answer.code));
    }
    let pointer = difference(spec.matches.as_ref()?, &answer.body)?;
    Some(match pointer.as_str() {
        "" => "as a whole".to_owned(),
        pointer => format!("at {}", shorten(pointer, MAX_POINTER)),
    })
}

/// Says what a code means that is no success.
fn of_code(answer: &Answer, what: &str) -> Stop {
    if let Some(wait) = answer.wait {
        return Stop::waits(wait);
    }
    let code = answer.code;
    let says = |why: &str| format!("the server answers {code} to {what}{why}");
    match code {
        300..=399 => Stop::refused("Redirected", says(": no redirect is followed")),
        401 | 403 => Stop::refused(
            "NotAuthorized",
            says(": check the endpoint's credentials and what they allow"),
        ),
        408 | 409 | 412 | 423 | 425 | 500..=599 => Stop::failed("ServerFails", says("")),
        _ => Stop::refused("Refused", says("")),
    }
}
