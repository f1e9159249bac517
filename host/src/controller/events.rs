//! Events on parents: what `kubectl describe` shows.
//!
//! They are written by a task of their own, off the path of a reconcile, at a bounded rate; when too many wait
//! they are dropped and counted. An Event that repeats is counted up as a series instead of written anew.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use opentelemetry::trace::TraceId;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::{debug, warn};

use super::object::shorten;
use crate::metrics::Metrics;
use crate::plugin::contract::EventType;
use crate::trace;

/// How many Events may wait to be written.
const CAPACITY: usize = 1024;
/// The shortest time between two writes: Events must not take the API server's time from the children they tell of.
const PACE: Duration = Duration::from_millis(40);
/// How long an Event that repeats is counted up, as in Kubernetes' own recorder.
const SERIES: Duration = Duration::from_secs(360);
/// The API server refuses a longer note.
const MAX_NOTE: usize = 1024;

/// One Event to be written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    controller: String,
    regarding: Reference,
    type_: &'static str,
    reason: String,
    note: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Reference {
    api_version: String,
    kind: String,
    namespace: Option<String>,
    name: String,
    uid: String,
}

/// The trace is no part of what makes two Events the same.
type Message = (Entry, Option<TraceId>);

/// Takes Events; cheap to clone. The task ends when the last clone is dropped.
#[derive(Clone)]
pub struct Events {
    sender: mpsc::Sender<Message>,
    metrics: Arc<Metrics>,
}

impl Events {
    /// Starts the task that writes them. `instance` tells replicas apart, such as the pod's name.
    #[must_use]
    pub fn start(client: Client, instance: String, metrics: Arc<Metrics>) -> (Self, JoinHandle<()>) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        let task = tokio::spawn(write(client, instance, receiver));
        (Self { sender, metrics }, task)
    }

    /// Puts an Event in line. Never waits.
    pub fn publish(
        &self,
        controller: &str,
        regarding: &DynamicObject,
        type_: EventType,
        reason: &str,
        note: &str,
    ) {
        let types = regarding.types.clone().unwrap_or_default();
        let entry = Entry {
            controller: format!("operator-host/{controller}"),
            regarding: Reference {
                api_version: types.api_version,
                kind: types.kind,
                namespace: regarding.namespace(),
                name: regarding.name_any(),
                uid: regarding.uid().unwrap_or_default(),
            },
            type_: match type_ {
                EventType::Normal => "Normal",
                EventType::Warning => "Warning",
            },
            reason: reason.to_owned(),
            note: shorten(note, MAX_NOTE),
        };
        let trace = trace::current().map(|span| span.trace_id());
        if self.sender.try_send((entry, trace)).is_err() && self.metrics.event_dropped() == 0 {
            warn!("too many Events wait for the API server: some are dropped from now on");
        }
    }
}

/// The annotation of an Event that names the trace of the pass that it is from, when that is sampled.
pub const TRACE_ANNOTATION: &str = "operator-host.dev/trace-id";

fn annotations(trace: Option<TraceId>) -> Option<BTreeMap<String, String>> {
    trace.map(|trace| BTreeMap::from([(TRACE_ANNOTATION.to_owned(), trace.to_string())]))
}

struct Written {
    name: String,
    count: i32,
    last: Instant,
}

async fn write(client: Client, instance: String, mut entries: mpsc::Receiver<Message>) {
    let mut written: HashMap<Entry, Written> = HashMap::new();
    let mut pace = interval(PACE);
    // A silence before is no reason for a burst.
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while let Some((entry, trace)) = entries.recv().await {
        pace.tick().await;
        written.retain(|_, event| event.last.elapsed() < SERIES);
        // Events of cluster-scoped objects are kept in `default`, as Kubernetes' own recorder does.
        let namespace = entry.regarding.namespace.as_deref().unwrap_or("default");
        let api: Api<Event> = Api::namespaced(client.clone(), namespace);
        let now = Timestamp::now();
        if let Some(event) = written.get_mut(&entry) {
            event.count += 1;
            event.last = Instant::now();
            let series = EventSeries {
                count: event.count,
                last_observed_time: MicroTime(now),
            };
            let metadata = serde_json::json!({ "annotations": annotations(trace) });
            let patch = Patch::Merge(serde_json::json!({ "series": series, "metadata": metadata }));
            let params = PatchParams::default();
            if succeeded(&entry, api.patch(&event.name, &params, &patch)).await {
                continue;
            }
            // It may have expired on the server: written anew below.
            written.remove(&entry);
        }
        let name = format!("{}.{:x}", entry.regarding.name, now.as_nanosecond());
        let event = event(&entry, trace, &instance, &name, now);
        if succeeded(&entry, api.create(&PostParams::default(), &event)).await {
            written.insert(
                entry,
                Written {
                    name,
                    count: 1,
                    last: Instant::now(),
                },
            );
        }
    }
}

async fn succeeded<T>(entry: &Entry, request: impl Future<Output = kube::Result<T>>) -> bool {
    match timeout(Duration::from_secs(10), request).await {
        Ok(Ok(_)) => return true,
        // The namespace is going, or the Event is gone: nothing to say.
        Ok(Err(kube::Error::Api(status))) if status.code == 404 || status.is_forbidden_by_termination() => {}
        // The client has said that the API server is away.
        Ok(Err(error @ (kube::Error::Service(_) | kube::Error::HyperError(_)))) => {
            debug!(reason = entry.reason, %error, "cannot write an Event");
        }
        Ok(Err(kube::Error::Api(status))) => {
            let error = super::api::refusal(&status);
            warn!(reason = entry.reason, error, "cannot write an Event");
        }
        Ok(Err(error)) => warn!(reason = entry.reason, %error, "cannot write an Event"),
        Err(_elapsed) => warn!(
            reason = entry.reason,
            "cannot write an Event: no answer from the API server"
        ),
    }
    false
}

trait ByTermination {
    fn is_forbidden_by_termination(&self) -> bool;
}

impl ByTermination for kube::core::Status {
    fn is_forbidden_by_termination(&self) -> bool {
        self.code == 403 && self.message.contains("being terminated")
    }
}

fn event(entry: &Entry, trace: Option<TraceId>, instance: &str, name: &str, now: Timestamp) -> Event {
    let regarding = entry.regarding.clone();
    Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: annotations(trace),
            namespace: Some(
                regarding
                    .namespace
                    .clone()
                    .unwrap_or_else(|| "default".to_owned()),
            ),
            ..ObjectMeta::default()
        },
        action: Some("Reconcile".to_owned()),
        event_time: Some(MicroTime(now)),
        note: Some(entry.note.clone()),
        reason: Some(entry.reason.clone()),
        regarding: Some(ObjectReference {
            api_version: Some(regarding.api_version),
            kind: Some(regarding.kind),
            namespace: regarding.namespace,
            name: Some(regarding.name),
            uid: Some(regarding.uid),
            ..ObjectReference::default()
        }),
        reporting_controller: Some(entry.controller.clone()),
        reporting_instance: Some(instance.to_owned()),
        type_: Some(entry.type_.to_owned()),
        ..Event::default()
    }
}
