//! What the reconciles of one term share: the ways to the endpoints, the cache, and what is remembered of each External.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::json;
use tokio::time::Instant;
use tracing::{info, warn};

use super::credentials::{Credential, Kept};
use super::file::Loaded;
use super::holders::Holders;
use super::secrets::{SecretError, Secrets};
use super::spec::Spec;
use super::status::{Next, Seen, Stop, condition, has, status};
use super::transport::Transport;
use operator_host_cluster::cache::Change;
use operator_host_cluster::client::Writer;
use operator_host_cluster::discovery::ResolvedKind;
use operator_host_cluster::kind_reflectors::KindReflectors;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_config::external::{self, FIELD_MANAGER};
use operator_host_core::backoff::{BackoffConfig, delay, jittered};
use operator_host_core::object::{NamespacedName, is_terminating};
use operator_host_core::sync::lock;
use operator_host_engine::work_queue::{Queue, Trigger};
use operator_host_instruments::Instruments;
use operator_host_telemetry::metrics::parents::{CountedParent, Parents};
use operator_host_telemetry::metrics::{ControllerMetrics, QueueState};

/// How many Externals of one endpoint are reconciled at a time.
pub(crate) const WORKERS: usize = 8;
/// The delays of one that fails.
const BACKOFF: BackoffConfig = BackoffConfig {
    initial: std::time::Duration::from_secs(1),
    max: std::time::Duration::from_secs(300),
};
/// By which part `every` is shortened at random.
const JITTER: f64 = 0.1;
/// The metrics of Externals whose endpoint is unknown have this instead of its name.
const NOWHERE: &str = "none";

/// Externals that wait, and how they are counted. Each endpoint has its own, so that a slow one delays no other.
pub(crate) struct Line {
    pub(crate) queue: Arc<Queue>,
    pub(crate) name: String,
    pub(crate) metrics: ControllerMetrics,
    parents: Arc<Parents>,
}

/// One endpoint.
pub(crate) struct Lane {
    pub(crate) line: Line,
    pub(crate) transport: Transport,
    pub(crate) credential: Kept,
}

impl Lane {
    /// Reports whether the Externals of a namespace may use it.
    pub(crate) fn allows(&self, namespace: &str) -> bool {
        self.transport.endpoint.namespaces.contains(namespace)
    }
}

/// What is remembered of one External.
#[derive(Default)]
struct Memory {
    /// How many reconciles in a row have failed.
    failures: u32,
    /// The generation and the ETag of an answer that was as it should be.
    etag: Option<(Option<i64>, String)>,
    counted: Option<CountedParent>,
}

/// See the module.
pub(crate) struct Context {
    pub(crate) externals: Arc<KindReflectors>,
    pub(crate) lanes: BTreeMap<String, Arc<Lane>>,
    pub(crate) holders: Holders,
    pub(crate) instruments: Instruments,
    nowhere: Line,
    writer: Writer,
    kind: Arc<ResolvedKind>,
    secret: ResolvedKind,
    memory: Mutex<HashMap<NamespacedName, Memory>>,
}

impl Context {
    pub(crate) fn new(
        externals: Arc<KindReflectors>,
        kind: Arc<ResolvedKind>,
        loaded: &Loaded,
        reserved: &[IpAddr],
        writer: Writer,
        instruments: Instruments,
    ) -> Self {
        let mut lanes = BTreeMap::new();
        for (endpoint, authority) in &loaded.endpoints {
            let (term, metrics) = (&writer.term, &instruments.metrics);
            match Transport::new(endpoint, authority.as_deref(), reserved, term, metrics) {
                Ok(transport) => {
                    let lane = Lane {
                        line: Line::new(&endpoint.name, &instruments),
                        transport,
                        credential: Kept::default(),
                    };
                    lanes.insert(endpoint.name.clone(), Arc::new(lane));
                }
                // `file` has tried.
                Err(why) => warn!(
                    endpoint = endpoint.name,
                    "cannot use its `certificateAuthority`: {why}"
                ),
            }
        }
        Self {
            externals,
            lanes,
            holders: Holders::default(),
            nowhere: Line::new(NOWHERE, &instruments),
            instruments,
            writer,
            kind,
            secret: super::secrets::resource(),
            memory: Mutex::default(),
        }
    }

    pub(crate) fn externals(&self) -> ResourceClient<'_> {
        ResourceClient::new(&self.writer, &self.kind)
    }

    pub(crate) fn secrets(&self) -> Secrets<'_> {
        Secrets::new(&self.writer, &self.secret)
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &Line> {
        self.lanes.values().map(|lane| &lane.line).chain([&self.nowhere])
    }

    /// Returns the line of an endpoint, or of the Externals without one.
    pub(crate) fn line_of<'a>(&'a self, lane: Option<&'a Lane>) -> &'a Line {
        lane.map_or(&self.nowhere, |lane| &lane.line)
    }

    /// Returns the credential for an endpoint, if it needs one.
    pub(crate) async fn credential(&self, lane: &Lane) -> Result<Option<Arc<Credential>>, SecretError> {
        match &lane.transport.endpoint.credentials {
            Some(credentials) => lane.credential.get(credentials, &self.secrets()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the way that an External may use.
    pub(crate) fn lane(&self, name: &NamespacedName, external: &DynamicObject) -> Option<&Arc<Lane>> {
        let lane = self.lanes.get(external.data["spec"]["endpoint"].as_str()?)?;
        lane.allows(name.namespace.as_deref()?).then_some(lane)
    }

    pub(crate) fn line(&self, name: &NamespacedName, external: Option<&DynamicObject>) -> &Line {
        let lane = external.and_then(|external| self.lane(name, external));
        self.line_of(lane.map(|lane| &**lane))
    }

    /// Enqueues every External.
    pub(crate) fn enqueue_all(&self) {
        for name in self.externals.names() {
            let Some(external) = self.externals.get(&name) else {
                continue;
            };
            self.claim(&name, Some(&external));
            self.line(&name, Some(&external))
                .queue
                .enqueue(&name, Trigger::Resync);
        }
    }

    /// Enqueues what a change concerns. The status is written by this process only, and says nothing to it.
    pub(crate) fn changed(&self, change: &Change<'_>) {
        let Some(object) = change.object() else { return };
        let name = NamespacedName::of(object);
        let after = change.after().map(|it| &**it);
        self.claim(&name, after);
        let asked = |object: &DynamicObject| {
            let metadata = &object.metadata;
            (
                metadata.generation,
                metadata.uid.clone(),
                metadata.deletion_timestamp.clone(),
                metadata.annotations.clone(),
            )
        };
        if let (Some(before), Some(after)) = (change.before(), after)
            && asked(before) == asked(after)
        {
            return;
        }
        self.line(&name, after.or(change.before().map(|it| &**it)))
            .queue
            .enqueue(&name, Trigger::Parent { version: None });
    }

    /// Records what an External claims, and enqueues who holds it next.
    fn claim(&self, name: &NamespacedName, external: Option<&DynamicObject>) {
        let external = external.filter(|external| self.lane(name, external).is_some());
        if let Some(next) = self.holders.update(name, external) {
            let external = self.externals.get(&next);
            let line = self.line(&next, external.as_deref());
            line.queue.enqueue(&next, Trigger::Related);
        }
    }

    /// Takes the answer to a write into the cache.
    pub(crate) fn record(&self, name: &NamespacedName, object: DynamicObject) -> Arc<DynamicObject> {
        match self.externals.of(name.namespace.as_deref()) {
            Some(watch) => watch.record(object),
            None => Arc::new(object),
        }
    }

    /// Forgets an External that is gone.
    pub(crate) fn forget(&self, name: &NamespacedName) {
        lock(&self.memory).remove(name);
    }

    /// Returns the ETag of an answer that was as it should be, when the same answer needs nothing.
    pub(crate) fn known_etag(
        &self,
        name: &NamespacedName,
        external: &DynamicObject,
        spec: &Spec,
    ) -> Option<String> {
        let status = &external.data["status"];
        let is_settled = has(external, "Ready", None) && spec.save.is_none() && status["secrets"].is_null();
        let memory = lock(&self.memory);
        let (generation, etag) = memory.get(name)?.etag.clone().filter(|_| is_settled)?;
        (generation == external.metadata.generation).then_some(etag)
    }

    pub(crate) fn know_etag(&self, name: &NamespacedName, external: &DynamicObject, etag: Option<String>) {
        let etag = etag.map(|etag| (external.metadata.generation, etag));
        lock(&self.memory).entry(name.clone()).or_default().etag = etag;
    }

    /// Writes the status after a reconcile, and returns when the next one is.
    pub(crate) async fn tell(
        &self,
        name: &NamespacedName,
        external: &DynamicObject,
        seen: &Seen,
        stop: Option<Stop>,
    ) -> Next {
        let failures = {
            let mut memory = lock(&self.memory);
            let memory = memory.entry(name.clone()).or_default();
            memory.failures = if stop.is_some() {
                memory.failures.saturating_add(1)
            } else {
                0
            };
            memory.failures
        };
        if let Some(stop) = &stop {
            self.line(name, Some(external)).metrics.failed(stop.reason);
        }
        // The first of several failures may be the only one.
        let passing = stop
            .as_ref()
            .is_some_and(|stop| !stop.is_stalled && stop.reason != "Differs");
        let is_news = !(passing
            && failures == 1
            && has(external, "Ready", None)
            && !is_terminating(external)
            && !seen.is_set);
        let spec = Spec::of(&external.data["spec"]);
        let identity = stop.as_ref().is_none_or(|stop| stop.next != Next::OnChange);
        let identity = spec.as_ref().ok().filter(|_| identity).map(Spec::identity);
        let status = status(external, identity.as_deref(), seen, stop.as_ref()).filter(|_| is_news);
        let mut told = None;
        if let Some(status) = status {
            if let Some(stop) = &stop {
                info!(external = %name, reason = stop.reason, "{}", stop.message);
            }
            let metadata = &external.metadata;
            let body = json!({
                "apiVersion": external::kind().api_version,
                "kind": external::KIND,
                "metadata": {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid},
                "status": status,
            });
            match self.externals().apply_status(name, &body, FIELD_MANAGER).await {
                Ok(object) => told = Some(self.record(name, object)),
                Err(error) if error.is_not_found() || error.is_conflict() => return Next::OnChange,
                Err(error) => {
                    warn!(external = %name, "{error}");
                    return Next::Backoff(std::time::Duration::ZERO);
                }
            }
        }
        self.count(name, told.as_deref().unwrap_or(external));
        stop.map_or(Next::Every, |stop| stop.next)
    }

    fn count(&self, name: &NamespacedName, external: &DynamicObject) {
        let of = |type_: &'static str| {
            let status = condition(external, type_)?["status"].as_str()?;
            let status = ["True", "False", "Unknown"]
                .into_iter()
                .find(|known| *known == status)?;
            Some((type_, status))
        };
        let since = condition(external, "Ready").filter(|ready| ready["status"] != "True");
        let since = since.and_then(|ready| ready["lastTransitionTime"].as_str()?.parse::<Timestamp>().ok());
        let conditions = ["Ready", "Reconciling", "Stalled"]
            .into_iter()
            .filter_map(of)
            .collect();
        let counted = self.line(name, Some(external)).parents.count(conditions, since);
        lock(&self.memory).entry(name.clone()).or_default().counted = Some(counted);
    }

    /// Enqueues an External for when it is next.
    pub(crate) fn schedule(&self, line: &Line, name: &NamespacedName, next: Next) {
        let after = match next {
            Next::OnChange | Next::Deposed => return,
            Next::Every => {
                let external = self.externals.get(name);
                let spec = external.and_then(|external| Spec::of(&external.data["spec"]).ok());
                let Some(spec) = spec else { return };
                jittered(spec.every(), JITTER)
            }
            Next::Backoff(least) => {
                let failures = lock(&self.memory).get(name).map_or(1, |memory| memory.failures);
                delay(&BACKOFF, failures).max(least)
            }
        };
        line.queue.enqueue_at(name, Instant::now() + after);
    }
}

impl Line {
    fn new(name: &str, instruments: &Instruments) -> Self {
        let metrics = instruments.metrics.of(name, &external::kind());
        let queue = Arc::new(Queue::new(WORKERS));
        let gauge = Arc::downgrade(&queue);
        metrics.queue(move || {
            let queue = gauge.upgrade()?;
            let (depth, longest) = queue.backlog();
            Some(QueueState {
                waiting: depth,
                oldest: longest,
                busy: queue.busy(),
                workers: WORKERS,
            })
        });
        Self {
            queue,
            name: name.to_owned(),
            parents: metrics.parents(),
            metrics,
        }
    }
}
