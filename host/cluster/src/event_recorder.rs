//! Writes Events about parents and the Lease, as shown by `kubectl describe`.
//!
//! Events are written outside of the reconcile, at a limited rate. Each controller has its own queue and rate, and the
//! queues take turns: a controller with too many Events drops and counts its own and delays no other. Warnings do not wait for
//! its other Events, and are not dropped for them. A repeated Event increments the count of its series instead of creating a new
//! one. Events are under the limit of writes that wait for an answer, with the other writes of their controller.
//!
//! The `Recorder` of kube-runtime has no rate, keeps the first note of a series, has no annotations, and does not start a
//! new series when the first Event has expired.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{debug, warn};

use super::client::Writer;
use super::refusal::{asked_delay, refusal};
use operator_host_contract::EventType;
use operator_host_core::backoff::at_least;
use operator_host_core::digest::Digest;
use operator_host_core::object::{DIGEST_ANNOTATION, conventional_reason};
use operator_host_core::text::shorten;
use operator_host_telemetry::metrics::Metrics;
use operator_host_telemetry::trace;

/// Annotation of an Event with the trace ID of the reconcile it is from, when that trace is sampled.
pub const TRACE_ANNOTATION: &str = "operator-host.dev/trace-id";

/// Capacity of each of a controller's queues.
const CAPACITY: usize = 256;
/// Minimum time between two writes: Events must not take API server capacity from the children they are about.
const PACE: Duration = Duration::from_millis(40);
/// Minimum time between two writes of one controller, and the longest that a busy API server makes it.
const PACE_OF_ONE: Duration = Duration::from_millis(80);
const PACE_OF_ONE_WHILE_BUSY: Duration = Duration::from_millis(500);
/// How long a repeated Event extends its series, as in Kubernetes' own recorder.
const SERIES: Duration = Duration::from_secs(360);
/// Timeout of one write.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The API server rejects a longer note or reason.
const MAX_NOTE: usize = 1024;
const MAX_REASON: usize = 128;

/// Accepts the Events of one controller. Cheap to clone. Its task ends when the last clone is dropped.
#[derive(Clone)]
pub struct Events {
    controller: String,
    warnings: mpsc::Sender<Queued>,
    others: mpsc::Sender<Queued>,
    shared: Arc<Shared>,
}

/// What the queues of all controllers share.
struct Shared {
    instance: String,
    metrics: Arc<Metrics>,
    /// Serves those who wait in order.
    pace: Mutex<Interval>,
    unwritten: TaskTracker,
}

struct Queued {
    event: Event,
    _unwritten: TaskTrackerToken,
}

impl Events {
    /// Creates the queue of the Events about elections. `instance` identifies the replica, for example by the pod's name.
    pub fn new(writer: Writer, instance: String, metrics: Arc<Metrics>) -> Self {
        let mut pace = interval(PACE);
        // An idle time does not allow for a burst.
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let shared = Shared {
            instance,
            metrics,
            pace: Mutex::new(pace),
            unwritten: TaskTracker::new(),
        };
        Self::start("leader-election", writer, Arc::new(shared))
    }

    /// Creates the queue of another controller. Events that are not written before the writer's term ends are dropped.
    pub fn of(&self, controller: &str, writer: Writer) -> Self {
        Self::start(controller, writer, Arc::clone(&self.shared))
    }

    fn start(controller: &str, writer: Writer, shared: Arc<Shared>) -> Self {
        let (warnings, queued_warnings) = mpsc::channel(CAPACITY);
        let (others, queued_others) = mpsc::channel(CAPACITY);
        tokio::spawn(write(Arc::clone(&shared), writer, queued_warnings, queued_others));
        Self {
            controller: format!("operator-host/{controller}"),
            warnings,
            others,
            shared,
        }
    }

    /// Waits until the queued Events of all controllers are written.
    pub async fn flush(&self) {
        self.shared.unwritten.close();
        self.shared.unwritten.wait().await;
    }

    /// Queues an Event about an election, formatted as by client-go.
    pub fn elected(&self, lease: &Lease, note: &str) {
        self.put(
            "LeaderElection",
            lease.object_ref(&()),
            EventType::Normal,
            "LeaderElection",
            note,
            None,
        );
    }

    /// Queues an Event without waiting. `plugin` is the version whose answer it comes from.
    pub fn publish(
        &self,
        plugin: Option<Digest>,
        regarding: &DynamicObject,
        type_: EventType,
        reason: &str,
        note: &str,
    ) {
        let types = regarding.types.clone().unwrap_or_default();
        let metadata = regarding.metadata.clone();
        let regarding = ObjectReference {
            api_version: Some(types.api_version),
            kind: Some(types.kind),
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            ..ObjectReference::default()
        };
        self.put("Reconcile", regarding, type_, reason, note, plugin);
    }

    fn put(
        &self,
        action: &str,
        regarding: ObjectReference,
        type_: EventType,
        reason: &str,
        note: &str,
        plugin: Option<Digest>,
    ) {
        let (type_, queue) = match type_ {
            EventType::Normal => ("Normal", &self.others),
            EventType::Warning => ("Warning", &self.warnings),
        };
        let trace = trace::current().map(|span| (TRACE_ANNOTATION.to_owned(), span.trace_id().to_string()));
        let plugin = plugin.map(|digest| (DIGEST_ANNOTATION.to_owned(), digest.to_string()));
        let annotations: BTreeMap<_, _> = trace.into_iter().chain(plugin).collect();
        let namespace = regarding.namespace.clone();
        let event = Event {
            metadata: ObjectMeta {
                annotations: (!annotations.is_empty()).then_some(annotations),
                // Events of cluster-scoped objects are stored in `default`, as by Kubernetes' own recorder.
                namespace: Some(namespace.unwrap_or_else(|| "default".to_owned())),
                ..ObjectMeta::default()
            },
            action: Some(action.to_owned()),
            note: Some(shorten(note, MAX_NOTE)),
            reason: Some(conventional_reason(reason, MAX_REASON)),
            regarding: Some(regarding),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(self.shared.instance.clone()),
            type_: Some(type_.to_owned()),
            ..Event::default()
        };
        let queued = Queued {
            event,
            _unwritten: self.shared.unwritten.token(),
        };
        if queue.try_send(queued).is_err() && self.shared.metrics.event_dropped() == 0 {
            let controller = &self.controller;
            warn!(
                controller,
                "too many Events wait for the API server: dropping new ones"
            );
        }
    }
}

/// The series of written Events, by the UID of the object, the type, the reason and the note. The annotations do not count.
type Written = HashMap<[Option<String>; 4], Series>;

struct Series {
    name: String,
    count: i32,
    last: Instant,
}

/// Writes the Events of one controller.
async fn write(
    shared: Arc<Shared>,
    writer: Writer,
    mut warnings: mpsc::Receiver<Queued>,
    mut others: mpsc::Receiver<Queued>,
) {
    let mut written = Written::new();
    let mut due = Instant::now();
    loop {
        sleep_until(due).await;
        let Queued { event, _unwritten } = tokio::select! {
            biased;
            Some(warning) = warnings.recv() => warning,
            Some(other) = others.recv() => other,
            else => return,
        };
        written.retain(|_, series| series.last.elapsed() < SERIES);
        loop {
            shared.pace.lock().await.tick().await;
            let begun = Instant::now();
            let delay = put(&mut written, &event, &writer).await;
            due = Instant::now() + rest(begun.elapsed());
            let Some(delay) = delay else {
                break;
            };
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                // The new leader reports its own Events.
                () = writer.term.ended() => break,
            }
        }
    }
}

/// Returns how long a controller writes no Event after a write that took this long: an API server that answers slowly is busy with
/// its children.
fn rest(took: Duration) -> Duration {
    (took * 10).clamp(PACE_OF_ONE, PACE_OF_ONE_WHILE_BUSY)
}

/// Writes one Event: a new one, or the count of its series. Returns a delay when the API server asks to send it later.
async fn put(written: &mut Written, event: &Event, writer: &Writer) -> Option<Duration> {
    // Held until the answer is there.
    let _slot = match &writer.limits {
        Some(limits) => Some(limits.slot().await),
        None => None,
    };
    // The new leader reports its own Events.
    let limit = writer.term.allowance()?.min(REQUEST_TIMEOUT);
    let metadata = &event.metadata;
    let api: Api<Event> = Api::namespaced(writer.client.clone(), metadata.namespace.as_deref()?);
    let regarding = event.regarding.as_ref()?;
    let key = [&regarding.uid, &event.type_, &event.reason, &event.note].map(Clone::clone);
    let now = Timestamp::now();
    if let Some(series) = written.get_mut(&key) {
        let count = EventSeries {
            count: series.count + 1,
            last_observed_time: MicroTime(now),
        };
        let patch =
            Patch::Merge(json!({ "series": count, "metadata": { "annotations": metadata.annotations } }));
        match send(limit, api.patch(&series.name, &PatchParams::default(), &patch)).await {
            // It expired in the cluster, or its namespace was deleted.
            Err(kube::Error::Api(status)) if status.code == 404 => drop(written.remove(&key)),
            sent => {
                let delay = sent.err().and_then(|error| failed(event, &error));
                if delay.is_none() {
                    // The next repetition contains the count of one that failed.
                    (series.count, series.last) = (series.count + 1, Instant::now());
                }
                return delay;
            }
        }
    }
    let name = event_name(regarding.name.as_deref()?, now);
    let mut event = event.clone();
    event.metadata.name = Some(name.clone());
    event.event_time = Some(MicroTime(now));
    if let Err(error) = send(limit, api.create(&PostParams::default(), &event)).await {
        return failed(&event, &error);
    }
    let (count, last) = (1, Instant::now());
    written.insert(key, Series { name, count, last });
    None
}

async fn send<T: DeserializeOwned>(
    limit: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> kube::Result<T> {
    let sent = timeout(limit, request).await;
    sent.unwrap_or_else(|elapsed| Err(kube::Error::Service(elapsed.into())))
}

/// Logs why an Event is not written. Returns a delay when the API server asks to send it later.
fn failed(event: &Event, error: &kube::Error) -> Option<Duration> {
    let reason = &event.reason;
    match error {
        // There is nothing to tell in a namespace that is being deleted.
        kube::Error::Api(status) if status.code == 403 && status.message.contains("being terminated") => None,
        kube::Error::Api(status) => {
            let (error, delay) = (refusal(status, None), asked_delay(status));
            match delay {
                Some(_) => debug!(reason, error, "cannot write an Event yet"),
                None => warn!(reason, error, "cannot write an Event"),
            }
            delay.map(at_least)
        }
        // The client has already logged that the API server is unreachable.
        kube::Error::Service(_) | kube::Error::HyperError(_) => {
            debug!(reason, %error, "cannot write an Event");
            None
        }
        error => {
            warn!(reason, %error, "cannot write an Event");
            None
        }
    }
}

/// Returns a unique name for an Event about an object. A name may have 253 characters and must not end a part of it
/// with a dot or a hyphen.
fn event_name(regarding: &str, now: Timestamp) -> String {
    let cut = regarding.floor_char_boundary(230);
    let stem = regarding[..cut].trim_end_matches(['.', '-']);
    format!("{stem}.{:x}", now.as_nanosecond())
}

#[cfg(test)]
mod tests {
    use http::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;
    use operator_host_runtime::fair::Fair;
    use serde_json::Value;
    use tokio::sync::watch;

    use super::*;
    use crate::client::{Pace, WriteLimits};

    /// An API server.
    struct Server {
        client: Client,
        /// The requests: their method, the Event, and when they came.
        sent: watch::Receiver<Vec<(Method, Value, Instant)>>,
    }

    impl Server {
        /// Returns a server that answers a request by its number, from 1, with a status code.
        fn new(code: impl Fn(usize) -> u16 + Clone + Send + 'static) -> Self {
            Self::slow(Duration::ZERO, code)
        }

        /// As [`Server::new`], but each answer takes so long.
        fn slow(takes: Duration, code: impl Fn(usize) -> u16 + Clone + Send + 'static) -> Self {
            let (sender, sent) = watch::channel(Vec::new());
            let sender = Arc::new(sender);
            let service = tower::service_fn(move |request: Request<Body>| {
                let (sender, code) = (Arc::clone(&sender), code.clone());
                async move {
                    let method = request.method().clone();
                    let body = request.into_body().collect_bytes().await.unwrap();
                    let event: Value = serde_json::from_slice(&body).unwrap();
                    let request = (method, event, Instant::now());
                    sender.send_modify(|sent: &mut Vec<_>| sent.push(request));
                    let code = code(sender.borrow().len());
                    tokio::time::sleep(takes).await;
                    let body = match code {
                        200..300 => json!({ "metadata": { "name": "e" }, "eventTime": null }),
                        _ => json!({ "kind": "Status", "code": code, "status": "Failure", "message": "busy",
                            "details": { "retryAfterSeconds": u32::from(code == 429) } }),
                    };
                    let body = Body::from(body.to_string().into_bytes());
                    Response::builder().status(code).body(body)
                }
            });
            Self {
                client: Client::new(service, "default"),
                sent,
            }
        }

        fn writer(&self) -> Writer {
            Writer::from(self.client.clone())
        }

        fn events(&self, metrics: &Arc<Metrics>) -> Events {
            Events::new(self.writer(), "host".into(), Arc::clone(metrics))
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

    fn count(sent: &[(Method, Value, Instant)], controller: &str) -> usize {
        let controller = format!("operator-host/{controller}");
        let is_of = |event: &Value| event["reportingController"] == controller;
        sent.iter().filter(|(_, event, _)| is_of(event)).count()
    }

    fn publish(events: &Events, note: usize) {
        publish_as(events, EventType::Normal, note);
    }

    fn publish_as(events: &Events, type_: EventType, note: usize) {
        let parent = json!({ "metadata": { "name": "a", "namespace": "b", "uid": "u" } });
        let parent = serde_json::from_value(parent).unwrap();
        events.publish(None, &parent, type_, "Reason", &note.to_string());
    }

    #[tokio::test]
    async fn a_flood_of_events_is_dropped_and_counted_and_neither_drops_nor_delays_those_of_others() {
        let server = Server::new(|_| 201);
        let metrics = Arc::new(Metrics::unread());
        let events = server.events(&metrics);
        let [flood, quiet] = ["flood", "quiet"].map(|controller| events.of(controller, server.writer()));
        (0..CAPACITY + 50).for_each(|note| publish(&flood, note));
        let few = 5;
        (0..few).for_each(|note| publish(&quiet, note));
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
    async fn a_warning_comes_before_a_flood_of_other_events() {
        let server = Server::new(|_| 201);
        let metrics = Arc::new(Metrics::unread());
        let events = server.events(&metrics);
        (0..CAPACITY).for_each(|note| publish(&events, note));
        server.until_sent("leader-election", 1).await;
        publish_as(&events, EventType::Warning, 0);
        server.until_sent("leader-election", 4).await;
        let sent = server.sent.borrow().clone();
        let types: Vec<_> = sent.iter().map(|(_, event, _)| &event["type"]).collect();
        assert!(types[1..4].iter().any(|type_| **type_ == "Warning"), "{types:?}");
        assert_eq!(metrics.event_dropped(), 0);
    }

    #[tokio::test]
    async fn an_event_waits_while_the_writes_of_its_controller_hang_and_delays_no_other() {
        let server = Server::new(|_| 201);
        let events = server.events(&Arc::new(Metrics::unread()));
        let all = Fair::new(2, 1);
        let limits = [all.join(), all.join()].map(|it| Arc::new(WriteLimits::new(Pace::new(1, 1), it)));
        let [busy, idle] = [("busy", 0), ("idle", 1)]
            .map(|(controller, of)| events.of(controller, server.writer().limited(&limits[of])));
        let hangs = limits[0].slot().await;
        publish(&busy, 0);
        (0..3).for_each(|note| publish(&idle, note));
        server.until_sent("idle", 3).await;
        assert_eq!(server.count("busy"), 0);
        drop(hangs);
        server.until_sent("busy", 1).await;
    }

    #[tokio::test]
    async fn an_api_server_that_answers_slowly_gets_fewer_events_but_some() {
        for (takes, least, most) in [(20, 200, 5000), (1000, 1500, 5000)] {
            let server = Server::slow(Duration::from_millis(takes), |_| 201);
            let events = server.events(&Arc::new(Metrics::unread()));
            (0..2).for_each(|note| publish(&events, note));
            events.flush().await;
            let sent = server.sent.borrow().clone();
            let between = (sent[1].2 - sent[0].2).as_millis();
            assert!(
                (least..=most).contains(&between),
                "{takes} ms each: {between} ms between two"
            );
        }
    }

    #[tokio::test]
    async fn an_event_that_the_api_server_has_no_time_for_is_sent_again_when_it_asks_for_it() {
        let server = Server::new(|number| if number == 1 { 429 } else { 201 });
        let events = server.events(&Arc::new(Metrics::unread()));
        publish(&events, 0);
        events.flush().await;
        let sent = server.sent.borrow().clone();
        assert_eq!(sent.len(), 2);
        assert!(sent[1].2 - sent[0].2 >= Duration::from_secs(1), "{sent:?}");
    }

    /// Regression: after any failure, a repetition became a new Event beside the first one.
    #[tokio::test]
    async fn a_repetition_becomes_a_new_event_only_if_the_first_one_has_expired() {
        let server = Server::new(|number| match number {
            2 => 400,
            4 => 404,
            _ => 201,
        });
        let events = server.events(&Arc::new(Metrics::unread()));
        (0..4).for_each(|_| publish(&events, 0));
        events.flush().await;
        let sent = server.sent.borrow().clone();
        let methods: Vec<_> = sent.iter().map(|(method, ..)| method.as_str()).collect();
        assert_eq!(methods, ["POST", "PATCH", "PATCH", "PATCH", "POST"]);
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
