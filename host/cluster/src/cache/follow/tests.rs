use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Mutex;

use futures::stream::{self, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Request, Response};
use kube::client::Body;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use super::*;
use crate::cache::testing::watch_of;
use crate::cache::{CachePolicy, Form};
use Reply::*;
use operator_host_contract::Kind;

/// How the API server responds to a request.
#[derive(Clone)]
enum Reply {
    Refuse(u16),
    /// Names of the existing objects, and the token of the next page.
    List(&'static [&'static str], Option<&'static str>),
    /// The same with the version of the objects and of the list.
    ListAt(&'static [&'static str], &'static str),
    /// The same, some time after the objects were read.
    LateListAt(&'static [&'static str], &'static str),
    /// One object with this version and content.
    ListWith(&'static str, &'static str, Value),
    /// Accepts a watch and sends these events. It stays open.
    Watch(Vec<Value>),
    /// Sends one line or object that never ends.
    Endless,
    Silence,
}

const VERSION: &str = "10";
/// A version that is newer than all others.
const FAR: &str = "1000000";
/// How long the server takes for a late list.
const LATE: Duration = Duration::from_millis(100);

fn object(name: &str, version: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "n", "uid": name, "resourceVersion": version } })
}

fn added(name: &str, version: &str) -> Value {
    json!({ "type": "ADDED", "object": object(name, version) })
}

fn body(text: String, stays_open: bool) -> UnsyncBoxBody<Bytes, Infallible> {
    let text = stream::iter([Ok(Frame::data(Bytes::from(text)))]);
    match stays_open {
        true => StreamBody::new(text.chain(stream::pending())).boxed_unsync(),
        false => StreamBody::new(text).boxed_unsync(),
    }
}

fn list(names: &[&str], of_objects: &str, version: &str, token: Option<&str>) -> String {
    let items: Vec<_> = names.iter().map(|name| object(name, of_objects)).collect();
    let list = json!({ "apiVersion": "v1", "kind": "PodList", "items": items,
        "metadata": { "resourceVersion": version, "continue": token } });
    list.to_string()
}

async fn answer(reply: Reply) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
    let response = Response::builder();
    let response = match reply {
        Silence => std::future::pending().await,
        Refuse(code) => {
            let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "not now.",
                "reason": "", "code": code });
            response.status(code).body(body(status.to_string(), false))
        }
        List(names, token) => response.body(body(list(names, "5", VERSION, token), false)),
        ListAt(names, version) => response.body(body(list(names, version, version, None), false)),
        ListWith(name, version, content) => {
            let mut only: Value = serde_json::from_str(&list(&[name], version, version, None)).unwrap();
            only["items"][0]["spec"] = content["spec"].clone();
            response.body(body(only.to_string(), false))
        }
        LateListAt(names, version) => {
            tokio::time::sleep(LATE).await;
            response.body(body(list(names, version, version, None), false))
        }
        Endless => {
            let more = Bytes::from(vec![b' '; 1 << 20]);
            let body = stream::repeat_with(move || Ok(Frame::data(more.clone())));
            response.body(StreamBody::new(body).boxed_unsync())
        }
        Watch(events) => {
            let lines = events
                .iter()
                // As an API server does, the type first.
                .map(|event| format!("{{\"type\":{},\"object\":{}}}\n", event["type"], event["object"]))
                .collect();
            response.body(body(lines, true))
        }
    };
    response.unwrap()
}

/// A watch whose API server replies in order and repeats the last reply forever.
struct Followed {
    inner: Arc<Inner>,
    requests: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<String>,
}

fn follow_these(script: &[Reply], grace: Duration) -> Followed {
    let limits = Limits {
        page: Duration::from_millis(200),
        start: Duration::from_millis(200),
        watch: Duration::from_millis(300),
        late: Duration::from_millis(100),
        silent: Duration::from_secs(60),
        healthy: Duration::from_secs(5),
        unserved: Duration::from_secs(2),
    };
    follow_within(limits, script, grace)
}

/// Follows through troubles for as long as a test lasts.
fn follow_patiently(script: &[Reply]) -> Followed {
    follow_these(script, LONG)
}

fn follow_within(limits: Limits, script: &[Reply], grace: Duration) -> Followed {
    follow_in_turn(limits, script, grace, Arc::default(), FAR)
}

fn follow_in_turn(
    limits: Limits,
    script: &[Reply],
    grace: Duration,
    first_lists: Arc<FirstLists>,
    newest: &'static str,
) -> Followed {
    let requests = Arc::<Mutex<Vec<String>>>::default();
    let seen = Arc::clone(&requests);
    let script = script.to_vec();
    let service = tower::service_fn(move |request: Request<Body>| {
        let uri = request.uri().to_string();
        let accepts = request.headers().get(hyper::header::ACCEPT);
        let is_metadata =
            accepts.is_some_and(|it| it.to_str().unwrap().contains("PartialObjectMetadataList"));
        let reply = if is_metadata && uri.contains("limit=1") {
            // How far the API server is.
            ListAt(&[], newest)
        } else {
            let mut seen = seen.lock().unwrap();
            seen.push(uri);
            script[seen.len().min(script.len()) - 1].clone()
        };
        async move { Ok::<_, Infallible>(answer(reply).await) }
    });
    let keep = CachePolicy {
        all: true,
        ..CachePolicy::default()
    };
    let inner = Arc::clone(&watch_of(Kind::new("v1", "Pod"), keep).inner);
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods");
    let api = Api::all_with(Client::new(service, "default"), &resource);
    let source = WatchSource::new(api, Form::Whole, limits);
    let followed = Arc::clone(&inner);
    let task = tokio::spawn(async move {
        let mut retry = Retry {
            grace,
            ..Retry::default()
        };
        follow(&followed, &source, &mut retry, &first_lists).await
    });
    Followed {
        inner,
        requests,
        task,
    }
}

impl Followed {
    async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let waited = tokio::time::timeout(Duration::from_secs(30), async {
            while !condition(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(waited.await.is_ok(), "never {what}: {:?}", self.requests());
    }

    /// Waits until the watch runs, and returns a receiver for the states after that.
    async fn later_states(&self) -> watch::Receiver<WatchState> {
        self.until("synced", |it| it.state() == WatchState::Synced).await;
        let mut states = self.inner.state.subscribe();
        states.mark_unchanged();
        states
    }

    async fn until_named(&self, names: &[&str]) {
        self.until("with these names", |it| it.names() == names).await;
    }

    async fn until_asked(&self, requests: usize) {
        self.until("asked so often", |it| it.requests().len() >= requests)
            .await;
    }

    async fn until_failing(&self) {
        let is_failing = |it: &Self| matches!(it.state(), WatchState::Failing(_));
        self.until("failing", is_failing).await;
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    fn lists(&self) -> usize {
        self.requests()
            .iter()
            .filter(|uri| !uri.contains("watch=true"))
            .count()
    }

    fn state(&self) -> WatchState {
        self.inner.state.borrow().clone()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.inner.read().iter().map(|(name, _)| name.name).collect();
        names.sort();
        names
    }
}

const LONG: Duration = Duration::from_secs(600);

/// Limits of a server that answers in its own time.
fn patient() -> Limits {
    Limits {
        page: LONG,
        ..Limits::default()
    }
}

#[tokio::test]
async fn a_first_list_waits_for_the_one_before_it() {
    let first_lists = Arc::new(FirstLists::new(1, LONG));
    let follow = |script: &[Reply]| follow_in_turn(patient(), script, LONG, Arc::clone(&first_lists), FAR);
    let before = follow(&[LateListAt(&["a"], VERSION), Watch(vec![])]);
    before.until("asked", |it| it.lists() == 1).await;
    let after = follow(&[List(&["b"], Some("more")), List(&["c"], None), Watch(vec![])]);
    after.until("asked", |it| it.lists() > 0).await;
    assert_eq!(
        before.names(),
        ["a"],
        "it was asked after the list before was complete"
    );
    after.until("listed", |it| it.names() == ["b", "c"]).await;
}

#[tokio::test]
async fn a_first_list_that_fails_lets_the_next_one_begin_and_tries_again() {
    let first_lists = Arc::new(FirstLists::new(1, LONG));
    let follow = |script: &[Reply]| follow_in_turn(patient(), script, LONG, Arc::clone(&first_lists), FAR);
    let failing = follow(&[Refuse(500), Refuse(500), List(&["a"], None), Watch(vec![])]);
    let other = follow(&[List(&["b"], None), Watch(vec![])]);
    other.until("listed", |it| it.names() == ["b"]).await;
    failing.until("listed", |it| it.names() == ["a"]).await;
}

#[tokio::test]
async fn a_first_list_that_hangs_holds_up_no_other_for_longer_than_its_turn() {
    let first_lists = Arc::new(FirstLists::new(1, Duration::from_millis(20)));
    let follow = |script: &[Reply]| follow_in_turn(patient(), script, LONG, Arc::clone(&first_lists), FAR);
    let hanging = follow(&[Silence]);
    hanging.until("asked", |it| it.lists() == 1).await;
    let other = follow(&[List(&["b"], None), Watch(vec![])]);
    other.until("listed", |it| it.names() == ["b"]).await;
    assert_eq!(hanging.lists(), 1, "it still waits for its answer");
}

#[tokio::test]
async fn the_reason_why_the_first_list_fails_is_known_until_it_is_complete() {
    let followed = follow_patiently(&[Refuse(500), Refuse(500), List(&["a"], None), Watch(vec![])]);
    let error = |it: &Followed| it.inner.list_error.borrow().clone();
    let expected = "cannot list v1/Pod: the API server answers 500: not now";
    followed
        .until("failed", |it| error(it).as_deref() == Some(expected))
        .await;
    assert_eq!(followed.state(), WatchState::Starting);
    followed.until("listed", |it| error(it).is_none()).await;
}

/// Regression: after six consecutive refusals each watch failed, gave up its position and listed everything again.
#[tokio::test]
async fn an_overloaded_server_gets_a_watch_and_never_a_list() {
    let refusals = [429, 429, 429, 429, 503, 500].map(Refuse);
    let watch = Watch(vec![added("b", "12")]);
    let script = [&[List(&["a"], None)][..], &refusals, &[watch]].concat();
    let followed = follow_patiently(&script);
    let states = followed.later_states().await;
    followed.until_named(&["a", "b"]).await;
    assert_eq!(followed.lists(), 1);
    assert!(
        followed.requests()[1..8]
            .iter()
            .all(|uri| uri.contains(&format!("resourceVersion={VERSION}"))),
        "{:?}",
        followed.requests()
    );
    assert!(
        !states.has_changed().unwrap(),
        "it was well for everybody: {:?}",
        followed.state()
    );
}

/// Regression: a status that was written while the kind was listed was taken back, and the event about it was dropped
/// as an own write. An object that was created meanwhile was removed, and reported as deleted.
#[tokio::test]
async fn what_is_written_during_a_list_stays_as_it_was_written() {
    let cases: [(&'static [_], &'static [_], _, &[_]); 2] = [
        (&["a", "b"], &["a", "b"], "a", &[("a", 1511), ("b", 1510)]),
        (&["a"], &[], "b", &[("b", 1511)]),
    ];
    for (before, listed, name, expected) in cases {
        let followed = follow_patiently(&[
            ListAt(before, "1500"),
            Refuse(410),
            LateListAt(listed, "1510"),
            Watch(vec![]),
        ]);
        followed.until("listing again", |it| it.lists() == 2).await;
        let written = serde_json::from_value(object(name, "1511")).unwrap();
        followed.inner.put(&followed.inner.prepare(written), None);
        followed.until_asked(4).await;
        let store = followed.inner.read();
        let kept = store.iter().map(|(name, kept)| (name.name, kept.version()));
        let expected = expected
            .iter()
            .map(|(name, version)| (str::to_owned(name), Some(*version)));
        assert_eq!(kept.collect::<BTreeSet<_>>(), expected.collect());
    }
}

/// Regression: a host stayed blind until the restored API server had as many versions again, and kept what it knew.
#[tokio::test]
async fn a_restore_of_etcd_is_noticed_and_what_is_older_replaces_what_is_known() {
    let status = json!({ "kind": "Status", "status": "Failure", "message": "gone.", "code": 500 });
    let later = vec![
        added("c", "1501"),
        json!({ "type": "DELETED", "object": object("c", "1502") }),
        added("d", "1503"),
        json!({ "type": "ERROR", "object": status }),
    ];
    for outdated in [false, true] {
        let mut script = vec![ListAt(&["a", "b"], "1500"), Watch(later.clone())];
        script.extend(outdated.then_some(Refuse(410)));
        script.extend([ListAt(&["a", "c"], "1400"), Watch(vec![added("e", "1401")])]);
        let newest = if outdated { FAR } else { "1400" };
        let followed = follow_in_turn(patient(), &script, LONG, Arc::default(), newest);
        followed.until_named(&["a", "c", "e"]).await;
        let store = followed.inner.read();
        let versions: BTreeSet<_> = store.iter().filter_map(|(_, kept)| kept.version()).collect();
        assert_eq!(versions, BTreeSet::from([1400, 1401]));
    }
}

/// Regression: an API server that had just started made every watch of a definition's kind fail. An outage before it used up
/// the time that a kind may be missing.
#[tokio::test]
async fn a_kind_that_is_not_served_for_a_moment_is_no_failure_also_after_a_long_outage() {
    for refusals in [0, 7] {
        let mut script = vec![List(&["a"], None)];
        script.extend(vec![Refuse(503); refusals]);
        script.extend([Refuse(404), Refuse(404), Watch(vec![added("b", "12")])]);
        let followed = follow_patiently(&script);
        let states = followed.later_states().await;
        let begun = Instant::now();
        followed.until_named(&["a", "b"]).await;
        let was_long = begun.elapsed() > Duration::from_secs(2);
        assert!(was_long || refusals == 0, "{:?}", begun.elapsed());
        assert_eq!(followed.lists(), 1);
        assert!(!states.has_changed().unwrap(), "{:?}", followed.state());
    }
}

#[tokio::test]
async fn a_trouble_that_lasts_is_a_failure_until_the_watch_goes_on_where_it_was() {
    let limits = Limits {
        watch: Duration::from_secs(300),
        ..Limits::default()
    };
    let followed = follow_within(
        limits,
        &[
            List(&["a"], None),
            Refuse(503),
            Refuse(503),
            Refuse(503),
            Watch(vec![]),
        ],
        Duration::from_millis(150),
    );
    followed.until_failing().await;
    assert_eq!(
        followed.state(),
        WatchState::Failing("the API server answers 503: not now".into())
    );
    followed
        .until("well again", |it| it.state() == WatchState::Synced)
        .await;
    assert_eq!(followed.lists(), 1);
}

/// Regression: each acceptance counted as the end of the failure, which so never lasted.
#[tokio::test]
async fn a_watch_that_is_accepted_and_ends_with_an_error_each_time_is_a_failure() {
    let status = json!({ "kind": "Status", "status": "Failure", "message": "no leader.", "code": 500 });
    let error = Watch(vec![json!({ "type": "ERROR", "object": status })]);
    let followed = follow_these(&[List(&["a"], None), error], Duration::from_millis(300));
    followed.until_failing().await;
    let mut states = followed.inner.state.subscribe();
    states.mark_unchanged();
    let more = followed.requests().len() + 2;
    followed.until_asked(more).await;
    assert!(!states.has_changed().unwrap(), "{:?}", followed.state());
}

/// The event of an object whose metadata are none.
fn unreadable(name: &str, version: &str) -> Value {
    let mut event = added(name, version);
    event["object"]["metadata"]["labels"] = 1.into();
    event
}

#[tokio::test]
async fn an_event_that_cannot_be_read_costs_a_list() {
    let followed = follow_patiently(&[
        List(&["a"], None),
        Watch(vec![unreadable("b", "11"), added("c", "12")]),
        ListAt(&["a", "b"], "12"),
        Watch(vec![]),
    ]);
    followed.until_named(&["a", "b"]).await;
    assert_eq!(followed.lists(), 2);
}

#[tokio::test]
async fn what_the_watch_repeats_of_an_own_write_is_not_read() {
    let followed = follow_patiently(&[
        List(&["a"], None),
        Watch(vec![unreadable("a", "12"), added("b", "13")]),
    ]);
    let written = serde_json::from_value(object("a", "12")).unwrap();
    followed.inner.put(&followed.inner.prepare(written), None);
    followed.until_named(&["a", "b"]).await;
    assert_eq!(followed.lists(), 1);
}

/// Regression: objects with new default values have the version that is known.
#[tokio::test]
async fn objects_whose_schema_has_changed_are_listed_again_and_replaced() {
    let followed = follow_patiently(&[
        ListAt(&["a"], "10"),
        Watch(vec![]),
        ListWith("a", "10", json!({ "spec": { "replicas": 1 } })),
        Watch(vec![]),
    ]);
    let states = followed.later_states().await;
    followed.until("watching", |it| it.requests().len() == 2).await;
    followed.inner.keep.send_modify(|wanted| wanted.schema += 1);
    let default = |it: &Followed| {
        let objects: Vec<_> = it.inner.read().iter().collect();
        let mut trees = objects.iter().map(|(name, kept)| it.inner.tree(name, kept));
        trees.any(|a| a.data["spec"]["replicas"] == 1)
    };
    followed.until("with the default value", default).await;
    assert!(!states.has_changed().unwrap(), "{:?}", followed.state());
}

#[tokio::test]
async fn a_permanent_refusal_is_reported_at_once() {
    let followed = follow_patiently(&[List(&[], None), Refuse(403)]);
    let message = followed.task.await.unwrap();
    let expected = "not now; give the host's role the verbs list and watch on it";
    assert_eq!(message, expected);
    let followed = follow_patiently(&[Refuse(404)]);
    let message = followed.task.await.unwrap();
    assert!(message.contains("does not serve the kind v1/Pod"), "{message}");
}

#[tokio::test]
async fn a_position_that_the_server_has_forgotten_costs_a_list() {
    let status = json!({ "kind": "Status", "status": "Failure", "message": "too old", "reason": "Expired",
            "code": 410 });
    let gone = Watch(vec![json!({ "type": "ERROR", "object": status })]);
    let followed = follow_patiently(&[List(&["a", "b"], None), gone, List(&["b"], None), Watch(vec![])]);
    followed.until_named(&["b"]).await;
    assert_eq!(followed.lists(), 2);
}

#[tokio::test]
async fn a_list_goes_on_with_the_page_that_was_refused() {
    let followed = follow_patiently(&[
        List(&["a"], Some("next")),
        Refuse(429),
        Silence,
        List(&["b"], None),
        Watch(vec![]),
    ]);
    followed
        .until("synced", |it| it.state() == WatchState::Synced)
        .await;
    assert_eq!(followed.names(), ["a", "b"]);
    let requests = followed.requests();
    assert!(
        requests[1..4].iter().all(|uri| uri.contains("continue=next")),
        "{requests:?}"
    );
}

/// Regression: a list or a watch on an open but silent connection was waited for forever.
#[tokio::test]
async fn what_hangs_is_asked_again() {
    let followed = follow_these(
        &[
            Silence,
            List(&["a"], None),
            // The first watch does not begin; the second begins but neither delivers anything nor ends.
            Silence,
            Watch(vec![added("b", "12")]),
            Watch(vec![added("c", "13")]),
        ],
        LONG,
    );
    followed.until_named(&["a", "b", "c"]).await;
    assert_eq!(followed.lists(), 2, "the first was never answered");
    let last = &followed.requests()[4];
    let words = "resourceVersion=12";
    assert!(last.contains(words), "it goes on where it was: {last}");
}

/// Regression: a watch on a dead connection was trusted until its time was over.
#[tokio::test]
async fn a_silent_watch_is_restarted_long_before_its_end() {
    let limits = Limits {
        watch: Duration::from_secs(300),
        silent: Duration::from_millis(100),
        ..Limits::default()
    };
    let followed = follow_within(
        limits,
        &[
            List(&["a"], None),
            Watch(vec![added("b", "12")]),
            Watch(vec![added("c", "13")]),
        ],
        LONG,
    );
    followed.until_named(&["a", "b", "c"]).await;
    assert_eq!(followed.lists(), 1, "it goes on where it was");
    let last = &followed.requests()[2];
    assert!(last.contains("resourceVersion=12"), "{last}");
}

#[tokio::test]
async fn one_object_that_is_too_large_is_a_failure_with_its_reason() {
    let followed = follow_within(Limits::default(), &[Endless], LONG);
    let expected = "cannot list v1/Pod: a page with one object from the API server is larger than 32 MiB";
    let error = |it: &Followed| it.inner.list_error.borrow().clone();
    followed
        .until("failed", |it| error(it).as_deref() == Some(expected))
        .await;
}
