//! What the reconciles of one term share: the ways to the endpoints, the cache, and what is remembered of each External.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};
use tracing::{info, warn};

use super::file::Loaded;
use super::holders::Holders;
use super::spec::Spec;
use super::status::{Next, Stop, has, status};
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
use operator_host_desired::conditions::{READY, current, labels};
use operator_host_engine::work_queue::{Queue, Trigger};
use operator_host_instruments::Instruments;
use operator_host_telemetry::metrics::ControllerMetrics;
use operator_host_telemetry::metrics::parents::{CountedParent, Parents};

/// How many Externals of one endpoint are reconciled at a time.
pub(crate) const WORKERS: usize = 8;
/// The delays of one that fails.
const BACKOFF: BackoffConfig = BackoffConfig {
    initial: Duration::from_secs(1),
    max: Duration::from_secs(300),
};
/// By which part `every` is shortened at random.
const JITTER: f64 = 0.1;
/// The metrics of Externals whose endpoint is unknown have this instead of its name.
const NOWHERE: &str = "none";

/// Externals that wait, and how they are counted. Each endpoint has its own, so that a slow one delays no other.
pub(crate) struct Lane {
    pub(crate) name: String,
    pub(crate) queue: Arc<Queue>,
    pub(crate) metrics: ControllerMetrics,
    parents: Arc<Parents>,
    /// The way to the endpoint; `None` for the Externals that may use none.
    pub(crate) transport: Option<Transport>,
}

impl Lane {
    fn new(name: &str, transport: Option<Transport>, instruments: &Instruments) -> Arc<Self> {
        let metrics = instruments.metrics.of(name, &external::kind());
        Arc::new(Self {
            name: name.to_owned(),
            queue: Queue::measured(WORKERS, &metrics),
            parents: metrics.parents(),
            metrics,
            transport,
        })
    }
}

/// What is remembered of one External.
#[derive(Default)]
pub(crate) struct Memory {
    /// How many reconciles in a row have failed.
    failures: u32,
    /// The ETag of an answer that was as it should be.
    pub(crate) etag: Option<String>,
    counted: Option<CountedParent>,
}

/// See the module.
pub(crate) struct Context {
    pub(crate) externals: Arc<KindReflectors>,
    pub(crate) holders: Holders,
    pub(crate) instruments: Instruments,
    lanes: BTreeMap<String, Arc<Lane>>,
    nowhere: Arc<Lane>,
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
        reserved: &Arc<[IpAddr]>,
        writer: &Writer,
        instruments: &Instruments,
    ) -> Self {
        let lanes = loaded.iter().map(|(endpoint, tls)| {
            let transport = Transport::new(endpoint, tls, reserved, &writer.term, &instruments.metrics);
            let lane = Lane::new(&endpoint.name, Some(transport), instruments);
            (endpoint.name.clone(), lane)
        });
        Self {
            externals,
            holders: Holders::default(),
            lanes: lanes.collect(),
            nowhere: Lane::new(NOWHERE, None, instruments),
            instruments: instruments.clone(),
            writer: writer.clone(),
            kind,
            secret: ResolvedKind::built_in::<Secret>(true, false),
            memory: Mutex::default(),
        }
    }

    pub(crate) fn externals(&self) -> ResourceClient<'_> {
        ResourceClient::new(&self.writer, &self.kind)
    }

    pub(crate) fn secrets(&self) -> ResourceClient<'_> {
        ResourceClient::new(&self.writer, &self.secret)
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.lanes.values().chain([&self.nowhere])
    }

    /// Returns the lane of an External: that of its endpoint, if it may use it.
    pub(crate) fn lane(&self, name: &NamespacedName, external: Option<&DynamicObject>) -> &Arc<Lane> {
        let endpoint = external.and_then(|external| external.data["spec"]["endpoint"].as_str());
        let lane = endpoint.and_then(|endpoint| self.lanes.get(endpoint));
        let namespace = name.namespace.as_deref().unwrap_or_default();
        let allows = |to: &Transport| to.endpoint.namespaces.contains(namespace);
        lane.filter(|lane| lane.transport.as_ref().is_some_and(allows))
            .unwrap_or(&self.nowhere)
    }

    /// Enqueues every External.
    pub(crate) fn enqueue_all(&self) {
        for name in self.externals.names() {
            self.claim(&name);
            if let Some(external) = self.externals.get(&name) {
                let lane = self.lane(&name, Some(&external));
                lane.queue.enqueue(&name, Trigger::Resync);
            }
        }
    }

    /// Enqueues what a change concerns. The status is written by this process only, and says nothing to it.
    pub(crate) fn changed(&self, change: &Change<'_>) {
        let Some(object) = change.object() else { return };
        let name = NamespacedName::of(object);
        self.claim(&name);
        let asks_the_same = |before: &Arc<DynamicObject>| {
            let (old, new) = (&before.metadata, &object.metadata);
            old.generation == new.generation
                && old.uid == new.uid
                && old.deletion_timestamp == new.deletion_timestamp
                && old.annotations == new.annotations
        };
        if change.after().is_none() || !change.before().is_some_and(asks_the_same) {
            let lane = self.lane(&name, Some(object));
            lane.queue.enqueue(&name, Trigger::Parent { version: None });
        }
    }

    /// Records what an External claims, and enqueues who holds it next.
    fn claim(&self, name: &NamespacedName) {
        let current = || {
            let external = self.externals.get(name);
            let may_claim = self.lane(name, external.as_deref()).transport.is_some();
            external.filter(|_| may_claim)
        };
        if let Some(next) = self.holders.update(name, current) {
            let external = self.externals.get(&next);
            let lane = self.lane(&next, external.as_deref());
            lane.queue.enqueue(&next, Trigger::Related);
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

    /// Accesses what is remembered of an External.
    pub(crate) fn memory<T>(&self, name: &NamespacedName, access: impl FnOnce(&mut Memory) -> T) -> T {
        access(lock(&self.memory).entry(name.clone()).or_default())
    }

    /// Writes the status after a reconcile, and returns after which time the next one is.
    pub(crate) async fn tell(
        &self,
        name: &NamespacedName,
        external: &DynamicObject,
        seen: &Map<String, Value>,
        stop: Option<&Stop>,
    ) -> Option<Duration> {
        let lane = self.lane(name, Some(external));
        let failures = self.memory(name, |memory| {
            memory.failures = stop.map_or(0, |_| memory.failures.saturating_add(1));
            memory.failures
        });
        if let Some(stop) = stop {
            lane.metrics.failed(stop.reason);
        }
        // The first of several failures may be the only one.
        let may_pass = stop.is_some_and(|stop| !stop.is_stalled && stop.next != Next::Every);
        let was_good =
            has(external, READY, None) && !is_terminating(external) && !seen.contains_key("lastSet");
        let is_news = !(may_pass && failures == 1 && was_good);
        let spec = Spec::of(&external.data["spec"]).ok();
        let next = stop.map_or(Next::Every, |stop| stop.next);
        let identity = spec.as_ref().filter(|_| next != Next::OnChange);
        let identity = identity.map(Spec::identity);
        let status = status(external, identity.as_deref(), seen, stop).filter(|_| is_news);
        let mut told = None;
        if let Some(status) = status {
            if let Some(stop) = stop {
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
                Err(error) if error.is_not_found() || error.is_conflict() => return None,
                Err(error) => {
                    warn!(external = %name, "{error}");
                    return Some(delay(&BACKOFF, failures));
                }
            }
        }
        let (conditions, unready_since) = labels(current(told.as_deref().unwrap_or(external)));
        let counted = lane.parents.count(conditions, unready_since);
        self.memory(name, |memory| memory.counted = Some(counted));
        match next {
            Next::OnChange | Next::Deposed => None,
            Next::Every => spec.map(|spec| jittered(spec.every(), JITTER)),
            Next::Backoff(least) => Some(delay(&BACKOFF, failures).max(least)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use operator_host_cluster::cache::testing::{delete, put, watch_of};
    use operator_host_cluster::cache::{CachePolicy, Reflector};
    use operator_host_cluster::discovery;
    use operator_host_cluster::testing::{answering, refusal};
    use operator_host_config::endpoints::EndpointsConfig;
    use operator_host_telemetry::http_client::tls;

    use super::*;

    fn context(watch: &Arc<Reflector>) -> Context {
        let text = "endpoints:\n- {name: dns, url: 'https://dns.example', namespaces: ['*']}\n";
        let config = EndpointsConfig::parse(Path::new("endpoints.yaml"), text).unwrap();
        let endpoint = Arc::new(config.endpoints.into_iter().next().unwrap());
        let loaded = vec![(endpoint, tls(true, None).unwrap())];
        let externals = Arc::new(KindReflectors::everywhere(Arc::clone(watch)));
        let writer = Writer::from(answering(|_| refusal(404, "there is nothing here")));
        let (kind, instruments) = (Arc::new(discovery::controllers()), Instruments::unread());
        Context::new(externals, kind, &loaded, &Arc::from([]), &writer, &instruments)
    }

    fn external(namespace: &str, created: u32, version: u32) -> DynamicObject {
        let kind = external::kind();
        serde_json::from_value(json!({
            "apiVersion": kind.api_version, "kind": kind.kind,
            "metadata": {
                "name": "a", "namespace": namespace, "uid": namespace, "resourceVersion": version.to_string(),
                "creationTimestamp": format!("2026-01-01T00:00:0{created}Z"),
            },
            "spec": {"endpoint": "dns", "observe": {"path": "/a"}, "set": {"method": "PUT", "path": "/a"}},
        }))
        .unwrap()
    }

    /// Regression: the answer to the last write was told after the deletion that it led to. An External that was gone held
    /// its path for ever.
    #[tokio::test]
    async fn an_external_that_is_gone_holds_nothing_whichever_change_is_told_last() {
        let all = CachePolicy {
            all: true,
            ..CachePolicy::default()
        };
        let watch = Arc::new(watch_of(external::kind(), all));
        let context = Arc::new(context(&watch));
        // It is deleted after its last write was stored, and before the context hears of that write.
        let weak = Arc::downgrade(&watch);
        let _earlier = watch.subscribe(Arc::new(move |_, change| {
            let is_last =
                |object: &&Arc<DynamicObject>| object.metadata.resource_version.as_deref() == Some("3");
            if let Some((watch, _)) = weak.upgrade().zip(change.after().filter(is_last)) {
                delete(&watch, external("old", 0, 4));
            }
        }));
        let told = Arc::clone(&context);
        let _subscription = watch.subscribe(Arc::new(move |_, change| told.changed(change)));
        let [old, young] = ["old", "young"].map(|namespace| NamespacedName::new(Some(namespace.into()), "a"));
        put(&watch, external("old", 0, 1));
        put(&watch, external("young", 1, 2));
        assert_eq!(context.holders.other(&young), Some(old.clone()));
        watch.record(external("old", 0, 3));
        assert!(!watch.contains(&old));
        assert_eq!(context.holders.other(&young), None);
    }
}
