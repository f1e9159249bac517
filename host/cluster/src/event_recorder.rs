//! Writes Events about parents and Leases, as shown by `kubectl describe`.
//!
//! Events are written outside of the reconcile, at a limited rate. Each controller has its own queue with its own
//! capacity and rate, and the queues take turns. A controller with too many Events drops and counts its own and
//! delays no other. A repeated Event increments the count of its series instead of creating a new one. Events are under
//! the limit of writes that wait for an answer, with the other writes of their controller.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::Resource as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use opentelemetry::trace::TraceId;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};
use tracing::{debug, warn};

use super::client::Writer;
use super::refusal::{asked_delay, refusal};
use operator_host_contract::EventType;
use operator_host_core::backoff::at_least;
use operator_host_core::metrics::Metrics;
use operator_host_core::object::{DIGEST_ANNOTATION, conventional_reason, shorten};
use operator_host_core::trace;
use operator_host_runtime::Digest;

/// Capacity of one controller's queue.
const CAPACITY: usize = 256;
/// Capacity of the channel to the queues; sorting an Event into its queue is fast.
const ON_THE_WAY: usize = 1024;
/// Minimum time between two writes: Events must not take API server capacity from the children they are about.
const PACE: Duration = Duration::from_millis(40);
/// Minimum time between two writes of one controller.
const PACE_OF_ONE: Duration = Duration::from_millis(80);
/// How long a repeated Event extends its series, as in Kubernetes' own recorder.
const SERIES: Duration = Duration::from_secs(360);
/// Timeout of one write.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How often one Event is sent while the API server asks to come back later.
const ATTEMPTS: u32 = 3;
/// The API server rejects a longer note or reason.
const MAX_NOTE: usize = 1024;
const MAX_REASON: usize = 128;

/// An Event to write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    controller: String,
    action: &'static str,
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

type Annotations = BTreeMap<String, String>;

enum Message {
    /// The annotations do not count when two Events are compared.
    Write(Box<(Entry, Option<Annotations>, Writer)>),
    /// A request to be notified once all earlier Events are written.
    Flush(oneshot::Sender<()>),
}

/// Accepts Events. Cheap to clone; the task ends when the last clone is dropped.
#[derive(Clone)]
pub struct Events {
    sender: mpsc::Sender<Message>,
    writer: Writer,
    metrics: Arc<Metrics>,
}

impl Events {
    /// Starts the task that writes them. `instance` identifies the replica, for example by the pod's name.
    #[must_use]
    pub fn start(writer: Writer, instance: String, metrics: Arc<Metrics>) -> (Self, JoinHandle<()>) {
        let (sender, receiver) = mpsc::channel(ON_THE_WAY);
        let task = tokio::spawn(sort(instance, receiver, Arc::clone(&metrics)));
        let events = Self {
            sender,
            writer,
            metrics,
        };
        (events, task)
    }

    /// Returns a handle to the same queue with another writer. Events that are not written before the writer's term
    /// ends are dropped.
    #[must_use]
    pub fn of(&self, writer: Writer) -> Self {
        Self {
            writer,
            ..self.clone()
        }
    }

    /// Waits until all queued Events are written.
    pub async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        if self.sender.send(Message::Flush(done)).await.is_ok() {
            let _ = wait.await;
        }
    }

    /// Queues an Event about an election, formatted as by client-go.
    pub fn elected(&self, lease: &Lease, note: &str) {
        let entry = Entry {
            controller: "operator-host/leader-election".to_owned(),
            action: "LeaderElection",
            regarding: Reference {
                api_version: Lease::API_VERSION.to_owned(),
                kind: Lease::KIND.to_owned(),
                namespace: lease.metadata.namespace.clone(),
                name: lease.metadata.name.clone().unwrap_or_default(),
                uid: lease.metadata.uid.clone().unwrap_or_default(),
            },
            type_: "Normal",
            reason: "LeaderElection".to_owned(),
            note: shorten(note, MAX_NOTE),
        };
        self.put(entry, None);
    }

    /// Queues an Event without waiting. `plugin` is the version whose answer it comes from.
    pub fn publish(
        &self,
        controller: &str,
        plugin: Option<Digest>,
        regarding: &DynamicObject,
        type_: EventType,
        reason: &str,
        note: &str,
    ) {
        let types = regarding.types.clone().unwrap_or_default();
        let entry = Entry {
            controller: format!("operator-host/{controller}"),
            action: "Reconcile",
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
            reason: conventional_reason(reason, MAX_REASON),
            note: shorten(note, MAX_NOTE),
        };
        self.put(entry, plugin);
    }

    fn put(&self, entry: Entry, plugin: Option<Digest>) {
        let trace = trace::current().map(|span| span.trace_id());
        let annotations = annotations(trace, plugin);
        let controller = entry.controller.clone();
        let message = Message::Write(Box::new((entry, annotations, self.writer.clone())));
        if self.sender.try_send(message).is_err() {
            dropped(&self.metrics, &controller);
        }
    }
}

fn dropped(metrics: &Metrics, controller: &str) {
    if metrics.event_dropped() == 0 {
        warn!(
            controller,
            "too many Events wait for the API server: dropping new ones"
        );
    }
}

/// Annotation of an Event with the trace ID of the reconcile it is from, when that trace is sampled.
pub const TRACE_ANNOTATION: &str = "operator-host.dev/trace-id";

fn annotations(trace: Option<TraceId>, plugin: Option<Digest>) -> Option<Annotations> {
    let trace = trace.map(|trace| (TRACE_ANNOTATION.to_owned(), trace.to_string()));
    let plugin = plugin.map(|digest| (DIGEST_ANNOTATION.to_owned(), digest.to_string()));
    let all: Annotations = trace.into_iter().chain(plugin).collect();
    (!all.is_empty()).then_some(all)
}

struct Written {
    name: String,
    count: i32,
    last: Instant,
}

/// Sorts each Event into the queue of its controller, without waiting.
async fn sort(instance: String, mut messages: mpsc::Receiver<Message>, metrics: Arc<Metrics>) {
    let instance: Arc<str> = instance.into();
    let pace = Arc::new(Mutex::new(paced(PACE)));
    let mut lines: HashMap<String, mpsc::Sender<Message>> = HashMap::new();
    let mut writers = JoinSet::new();
    while let Some(message) = messages.recv().await {
        let (entry, ..) = match &message {
            Message::Write(message) => &**message,
            Message::Flush(_) => {
                flush(&lines, message);
                continue;
            }
        };
        let controller = entry.controller.clone();
        let line = lines.entry(controller.clone()).or_insert_with(|| {
            // One more than the capacity leaves room for a flush.
            let (line, messages) = mpsc::channel(CAPACITY + 1);
            let (instance, pace, metrics) = (Arc::clone(&instance), Arc::clone(&pace), Arc::clone(&metrics));
            writers.spawn(write(instance, messages, pace, metrics));
            line
        });
        if line.capacity() <= 1 || line.try_send(message).is_err() {
            dropped(&metrics, &controller);
        }
    }
    drop(lines);
    writers.join_all().await;
}

/// Notifies the requester once each queue has been drained.
fn flush(lines: &HashMap<String, mpsc::Sender<Message>>, flush: Message) {
    let Message::Flush(done) = flush else { return };
    let waits: Vec<_> = lines
        .values()
        .filter_map(|line| {
            let (done, wait) = oneshot::channel();
            line.try_send(Message::Flush(done)).ok().map(|()| wait)
        })
        .collect();
    tokio::spawn(async move {
        futures::future::join_all(waits).await;
        let _ = done.send(());
    });
}

fn paced(pace: Duration) -> Interval {
    let mut pace = interval(pace);
    // An idle time does not allow for a burst.
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pace
}

/// Writes the Events of one controller. All queues share `pace`, which serves its waiters in order, and each queue
/// waits once.
async fn write(
    instance: Arc<str>,
    mut messages: mpsc::Receiver<Message>,
    pace: Arc<Mutex<Interval>>,
    metrics: Arc<Metrics>,
) {
    let mut written: HashMap<Entry, Written> = HashMap::new();
    let mut own_pace = paced(PACE_OF_ONE);
    while let Some(message) = messages.recv().await {
        let (entry, annotations, writer) = match message {
            Message::Write(message) => *message,
            Message::Flush(done) => {
                let _ = done.send(());
                continue;
            }
        };
        written.retain(|_, event| event.last.elapsed() < SERIES);
        for attempt in 1..=ATTEMPTS {
            own_pace.tick().await;
            pace.lock().await.tick().await;
            let sent = put(&mut written, &instance, &entry, annotations.as_ref(), &writer).await;
            let Sent::Later(delay) = sent else { break };
            if attempt == ATTEMPTS {
                dropped(&metrics, &entry.controller);
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                // The new leader reports its own Events.
                () = writer.term.ended() => break,
            }
        }
    }
}

/// Writes one Event: a new one, or the count of its series.
async fn put(
    written: &mut HashMap<Entry, Written>,
    instance: &str,
    entry: &Entry,
    annotations: Option<&Annotations>,
    writer: &Writer,
) -> Sent {
    // Held until the answer is there.
    let _slot = match &writer.limits {
        Some(limits) => Some(limits.slot().await),
        None => None,
    };
    // The new leader reports its own Events.
    let Some(limit) = writer.term.allowance().map(|left| left.min(REQUEST_TIMEOUT)) else {
        return Sent::Failed;
    };
    // Events of cluster-scoped objects are stored in `default`, as by Kubernetes' own recorder.
    let namespace = entry.regarding.namespace.as_deref().unwrap_or("default");
    let api: Api<Event> = Api::namespaced(writer.client.clone(), namespace);
    let now = Timestamp::now();
    if let Some(event) = written.get_mut(entry) {
        let series = EventSeries {
            count: event.count + 1,
            last_observed_time: MicroTime(now),
        };
        let metadata = serde_json::json!({ "annotations": annotations });
        let patch = Patch::Merge(serde_json::json!({ "series": series, "metadata": metadata }));
        let params = PatchParams::default();
        let sent = send(entry, limit, api.patch(&event.name, &params, &patch)).await;
        match sent {
            // Start a new series.
            Sent::Missing => {
                written.remove(entry);
            }
            // The next repetition contains the count of one that failed.
            Sent::Done | Sent::Failed => {
                event.count += 1;
                event.last = Instant::now();
                return sent;
            }
            Sent::Later(_) => return sent,
        }
    }
    let name = event_name(&entry.regarding.name, now);
    let event = event(entry, annotations.cloned(), instance, &name, now);
    let sent = send(entry, limit, api.create(&PostParams::default(), &event)).await;
    if matches!(sent, Sent::Done) {
        let event = Written {
            name,
            count: 1,
            last: Instant::now(),
        };
        written.insert(entry.clone(), event);
    }
    sent
}

/// Returns a unique name for an Event about an object. A name may have 253 characters and must not end a part of it
/// with a dot or a hyphen.
fn event_name(regarding: &str, now: Timestamp) -> String {
    let cut = regarding.floor_char_boundary(230);
    let stem = regarding[..cut].trim_end_matches(['.', '-']);
    format!("{stem}.{:x}", now.as_nanosecond())
}

/// The result of a request.
enum Sent {
    Done,
    /// The Event expired in the cluster, or its namespace was deleted.
    Missing,
    /// The API server asks to send it after this time.
    Later(Duration),
    /// It was logged, or the term is over.
    Failed,
}

async fn send<T>(entry: &Entry, limit: Duration, request: impl Future<Output = kube::Result<T>>) -> Sent {
    match timeout(limit, request).await {
        Ok(Ok(_)) => return Sent::Done,
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => return Sent::Missing,
        // There is nothing to tell in a namespace that is being deleted.
        Ok(Err(kube::Error::Api(status))) if status.is_forbidden_by_termination() => {}
        // The client has already logged that the API server is unreachable.
        Ok(Err(error @ (kube::Error::Service(_) | kube::Error::HyperError(_)))) => {
            debug!(reason = entry.reason, %error, "cannot write an Event");
        }
        Ok(Err(kube::Error::Api(status))) => {
            let error = refusal(&status, None);
            if let Some(asked) = asked_delay(&status) {
                debug!(reason = entry.reason, error, "cannot write an Event yet");
                return Sent::Later(at_least(asked));
            }
            warn!(reason = entry.reason, error, "cannot write an Event");
        }
        Ok(Err(error)) => warn!(reason = entry.reason, %error, "cannot write an Event"),
        Err(_elapsed) => warn!(
            reason = entry.reason,
            "cannot write an Event: no answer from the API server"
        ),
    }
    Sent::Failed
}

trait ByTermination {
    fn is_forbidden_by_termination(&self) -> bool;
}

impl ByTermination for kube::core::Status {
    fn is_forbidden_by_termination(&self) -> bool {
        self.code == 403 && self.message.contains("being terminated")
    }
}

fn event(
    entry: &Entry,
    annotations: Option<Annotations>,
    instance: &str,
    name: &str,
    now: Timestamp,
) -> Event {
    let regarding = entry.regarding.clone();
    Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations,
            namespace: Some(
                regarding
                    .namespace
                    .clone()
                    .unwrap_or_else(|| "default".to_owned()),
            ),
            ..ObjectMeta::default()
        },
        action: Some(entry.action.to_owned()),
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;
    use operator_host_runtime::fair::Fair;
    use serde_json::{Value, json};

    use super::*;
    use crate::client::{Pace, WriteLimits};

    /// An API server that accepts Events, and refuses as many as `busy` first.
    struct Server {
        client: Client,
        /// The controllers of the Events that it was sent, and when.
        sent: tokio::sync::watch::Receiver<Vec<(String, Instant)>>,
    }

    impl Server {
        fn new(busy: usize) -> Self {
            let (sender, sent) = tokio::sync::watch::channel(Vec::new());
            let sender = Arc::new(sender);
            let service = tower::service_fn(move |request: Request<Body>| {
                let sender = Arc::clone(&sender);
                async move {
                    let body = request.into_body().collect_bytes().await.unwrap();
                    let event: Value = serde_json::from_slice(&body).unwrap();
                    let controller = event["reportingController"].as_str().unwrap().to_owned();
                    sender.send_modify(|sent: &mut Vec<_>| sent.push((controller, Instant::now())));
                    let (code, body) = match sender.borrow().len() <= busy {
                        true => (
                            429,
                            json!({ "kind": "Status", "code": 429, "status": "Failure", "message": "busy",
                            "reason": "TooManyRequests", "details": { "retryAfterSeconds": 1 } }),
                        ),
                        false => (201, json!({ "metadata": { "name": "e" }, "eventTime": null })),
                    };
                    Response::builder()
                        .status(code)
                        .body(Body::from(body.to_string().into_bytes()))
                }
            });
            Self {
                client: Client::new(service, "default"),
                sent,
            }
        }

        fn count(&self, controller: &str) -> usize {
            count(&self.sent.borrow(), controller)
        }

        async fn until_sent(&self, controller: &str, wanted: usize) {
            let mut sent = self.sent.clone();
            let all = sent.wait_for(|sent| count(sent, controller) >= wanted);
            let all = timeout(Duration::from_secs(30), all).await;
            all.expect("they are sent").unwrap();
        }
    }

    fn count(sent: &[(String, Instant)], controller: &str) -> usize {
        let controller = format!("operator-host/{controller}");
        sent.iter().filter(|(of, _)| *of == controller).count()
    }

    fn publish(events: &Events, controller: &str, note: usize) {
        let parent =
            serde_json::from_value(json!({ "metadata": { "name": "a", "namespace": "b" } })).unwrap();
        let note = note.to_string();
        events.publish(controller, None, &parent, EventType::Warning, "Reason", &note);
    }

    #[tokio::test]
    async fn a_flood_of_events_is_dropped_and_counted_and_neither_drops_nor_delays_those_of_others() {
        let server = Server::new(0);
        let metrics = Arc::new(Metrics::unread());
        let writer = Writer::from(server.client.clone());
        let (events, _task) = Events::start(writer, "host".into(), Arc::clone(&metrics));
        let flood = CAPACITY + 50;
        (0..flood).for_each(|note| publish(&events, "flood", note));
        let few = 5;
        (0..few).for_each(|note| publish(&events, "quiet", note));
        server.until_sent("quiet", few).await;
        let before = server.count("flood");
        assert!(
            before <= few + 2,
            "the queues take turns: {before} of the flood came first"
        );
        // Some are written while the others arrive.
        let dropped = metrics.event_dropped();
        assert!((46..=50).contains(&dropped), "{dropped} were dropped");
    }

    #[tokio::test]
    async fn an_event_waits_while_the_writes_of_its_controller_hang_and_delays_no_other() {
        let server = Server::new(0);
        let writer = || Writer::from(server.client.clone());
        let (events, _task) = Events::start(writer(), "host".into(), Arc::new(Metrics::unread()));
        let all = Fair::new(2, 1);
        let limits = [all.join(), all.join()].map(|it| Arc::new(WriteLimits::new(Pace::new(1, 1), it)));
        let [busy, idle] = limits
            .each_ref()
            .map(|limits| events.of(writer().limited(limits)));
        let hangs = limits[0].slot().await;
        publish(&busy, "busy", 0);
        (0..3).for_each(|note| publish(&idle, "idle", note));
        server.until_sent("idle", 3).await;
        assert_eq!(server.count("busy"), 0);
        drop(hangs);
        server.until_sent("busy", 1).await;
    }

    #[tokio::test]
    async fn an_event_that_the_api_server_has_no_time_for_is_sent_again_when_it_asks_for_it() {
        let server = Server::new(1);
        let writer = Writer::from(server.client.clone());
        let (events, _task) = Events::start(writer, "host".into(), Arc::new(Metrics::unread()));
        publish(&events, "c", 0);
        events.flush().await;
        let sent = server.sent.borrow().clone();
        assert_eq!(sent.len(), 2);
        assert!(sent[1].1 - sent[0].1 >= Duration::from_secs(1), "{sent:?}");
    }

    /// Regression: after any failure, a repetition became a new Event beside the first one.
    #[tokio::test]
    async fn a_repetition_becomes_a_new_event_only_if_the_first_one_has_expired() {
        let methods = Arc::new(Mutex::new(Vec::new()));
        let requests = Arc::clone(&methods);
        let server = move |request: Request<Body>| {
            let mut methods = requests.lock().unwrap();
            methods.push(request.method().clone());
            let (code, body) = match methods.len() {
                2 => (500, json!({ "kind": "Status", "code": 500, "status": "Failure" })),
                4 => (404, json!({ "kind": "Status", "code": 404, "status": "Failure" })),
                _ => (200, json!({ "metadata": { "name": "e" }, "eventTime": null })),
            };
            let response = Response::builder()
                .status(code)
                .body(Body::from(body.to_string().into_bytes()));
            async { response }
        };
        let writer = Writer::from(Client::new(tower::service_fn(server), "default"));
        let (events, _task) = Events::start(writer, "host".into(), Arc::new(Metrics::unread()));
        let parent =
            serde_json::from_value(json!({ "metadata": { "name": "a", "namespace": "b" } })).unwrap();
        for _ in 0..4 {
            events.publish("c", None, &parent, EventType::Warning, "Reason", "note");
        }
        events.flush().await;
        let expected = [
            Method::POST,
            Method::PATCH,
            Method::PATCH,
            Method::PATCH,
            Method::POST,
        ];
        assert_eq!(*methods.lock().unwrap(), expected);
    }

    #[test]
    fn an_event_about_an_object_with_the_longest_name_has_a_valid_name() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        assert_eq!(event_name("web", now), "web.18fae27693b40000");
        let longest = format!("{}.{}", "a".repeat(229), "b".repeat(23));
        let name = event_name(&longest, now);
        assert!(name.len() <= 253 && !name.contains(".."), "{name}");
    }
}
