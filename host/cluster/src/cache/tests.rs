use serde_json::json;

use super::testing::watch_of;
use super::*;

fn watch() -> Reflector {
    let kind = Kind::new("v1", "ConfigMap");
    let keep = CachePolicy {
        all: true,
        ..CachePolicy::default()
    };
    watch_of(kind, keep)
}

fn object(version: u32, value: &str) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "a", "namespace": "n", "uid": "u", "resourceVersion": version.to_string() },
        "data": { "key": value },
    }))
    .unwrap()
}

/// The changes that a subscriber received: the value before and the value after.
type Received = Arc<Mutex<Vec<(Option<String>, Option<String>)>>>;

fn listen(watch: &Reflector) -> (Received, Subscription) {
    let received = Received::default();
    let value = |object: Option<&Arc<DynamicObject>>| {
        object.map(|object| object.data["data"]["key"].as_str().unwrap_or_default().to_owned())
    };
    let subscriber = Arc::clone(&received);
    let subscription = watch.subscribe(Arc::new(move |_, change| {
        let change = (value(change.before()), value(change.after()));
        subscriber.lock().unwrap().push(change);
    }));
    (received, subscription)
}

fn received(received: &Received) -> Vec<(Option<String>, Option<String>)> {
    std::mem::take(&mut *received.lock().unwrap())
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// Regression: the response to a write was stored without notifying the subscribers, and the watch event for it
/// then looked like no change. A controller never learned of the resources that another one creates for it.
#[tokio::test]
async fn what_one_controller_writes_reaches_the_others_once() {
    let watch = watch();
    let (log, _subscription) = listen(&watch);
    watch.inner.put(&watch.inner.prepare(object(1, "one")), None);
    assert_eq!(received(&log), [(None, some("one"))]);
    watch.record(object(2, "two"));
    assert_eq!(received(&log), [(some("one"), some("two"))]);
    watch.inner.put(&watch.inner.prepare(object(2, "two")), None);
    assert_eq!(received(&log), [], "an own write is nothing new");
}

#[tokio::test]
async fn an_older_state_never_replaces_a_newer_one() {
    let watch = watch();
    let (log, _subscription) = listen(&watch);
    watch.record(object(5, "five"));
    received(&log);
    watch.inner.put(&watch.inner.prepare(object(4, "four")), None);
    watch.record(object(3, "three"));
    watch.inner.deleted(object(4, "four"));
    assert_eq!(received(&log), []);
    let name = NamespacedName::of(&object(5, ""));
    assert_eq!(watch.get(&name).unwrap().data["data"]["key"], "five");
}

/// Regression: the response to the deletion of a pod arrived after the deletion event and put the pod back into the
/// cache permanently. The status counted it, and a replacement was never created.
#[tokio::test]
async fn a_late_response_does_not_restore_a_deleted_object() {
    let watch = watch();
    let name = NamespacedName::of(&object(1, ""));
    watch.record(object(5, "five"));
    watch.inner.deleted(object(7, "seven"));
    watch.record(object(6, "terminating"));
    assert!(watch.get(&name).is_none());
    let mut again = object(8, "recreated");
    again.metadata.uid = Some("another".into());
    watch.record(again);
    assert!(watch.get(&name).is_some());
}

/// Regression: the response to a deletion removed whichever object had the name by then.
#[tokio::test]
async fn what_is_forgotten_is_the_object_that_went_and_not_its_successor() {
    let watch = watch();
    let name = NamespacedName::of(&object(1, ""));
    let mut successor = object(9, "nine");
    successor.metadata.uid = Some("another".into());
    watch.record(successor);
    watch.forget(&name, "u");
    assert_eq!(watch.get(&name).unwrap().data["data"]["key"], "nine");
    watch.forget(&name, "another");
    assert!(watch.get(&name).is_none());
    // Responses for the old object arrive too late, whatever their version.
    let mut late = object(10, "late");
    late.metadata.uid = Some("another".into());
    watch.record(late);
    assert!(watch.get(&name).is_none());
}

#[tokio::test]
async fn what_a_list_after_a_gap_does_not_name_is_gone() {
    let watch = watch();
    watch.record(object(5, "five"));
    let (log, _subscription) = listen(&watch);
    watch.inner.listed(&HashSet::new(), None);
    assert_eq!(received(&log), [(some("five"), None)]);
    // It was created during the list, and the watch delivers it afterwards.
    watch.inner.put(&watch.inner.prepare(object(5, "five")), None);
    assert_eq!(received(&log), [(None, some("five"))]);
}

/// Regression: items of a list have no type, and a `ConfigMap` with that label was taken for a generated Secret.
#[tokio::test]
async fn only_a_secret_that_was_generated_is_stored_without_its_values() {
    let watch = watch();
    let mut listed = object(1, "kept");
    listed.types = None;
    listed.metadata.labels = Some(
        [(
            operator_host_core::object::GENERATED_LABEL.to_owned(),
            "true".to_owned(),
        )]
        .into(),
    );
    assert_eq!(watch.record(listed).data["data"]["key"], "kept");
}

fn pod(name: &str, version: u32, metadata: &serde_json::Value) -> DynamicObject {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "n", "uid": format!("7f1b5a6e-8d0c-4f6e-9f1c-{name:0>12}"),
            "resourceVersion": version.to_string(),
        },
        "spec": {"nodeName": "one"},
    });
    for (field, value) in metadata.as_object().into_iter().flatten() {
        pod["metadata"][field] = value.clone();
    }
    serde_json::from_value(pod).unwrap()
}

fn owned_by(kind: &str) -> serde_json::Value {
    json!({"ownerReferences": [{
        "apiVersion": if kind == "Echo" { "my-operator.dev/v2" } else { "apps/v1" },
        "kind": kind, "name": "set", "uid": "u-1", "controller": true,
    }]})
}

/// A watch of pods, which are children of Echos.
fn children() -> Reflector {
    let keep = CachePolicy {
        all: false,
        owned_by: BTreeSet::from([Kind::new("my-operator.dev/v1", "Echo")]),
    };
    watch_of(Kind::new("v1", "Pod"), keep)
}

#[tokio::test]
async fn of_a_foreign_object_only_what_its_name_is_taken_by_is_kept() {
    let watch = children();
    let foreign = pod("1", 5, &owned_by("ReplicaSet"));
    watch.record(foreign.clone());
    let name = NamespacedName::of(&foreign);
    let is_text = |name: &NamespacedName| matches!(watch.inner.read().get(name), Some(Cached::Text(_)));
    assert!(watch.contains(&name) && !is_text(&name));
    let kept = watch.get(&name).unwrap();
    assert_eq!(kept.metadata.uid, foreign.metadata.uid);
    assert_eq!(kept.metadata.owner_references, foreign.metadata.owner_references);
    assert!(kept.data.is_null());
    assert!(watch.referring_to("u-1", &name).is_empty());
    assert!(watch.owners().is_empty());

    // What concerns the host is kept whole, and of what is being deleted the metadata.
    for (name, metadata) in [
        ("2", owned_by("Echo")),
        ("3", json!({"labels": {CONTROLLER_LABEL: "echo"}})),
        ("4", json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})),
    ] {
        let object = pod(name, 6, &metadata);
        watch.record(object.clone());
        let name = NamespacedName::of(&object);
        let kept = watch.get(&name).unwrap();
        assert_eq!(kept.metadata, object.metadata);
        assert_eq!(kept.data.is_null(), name.name == "4");
        assert!(is_text(&name));
    }
    assert_eq!(watch.owners().len(), 1);
    assert_eq!((watch.names().len(), watch.count()), (4, 4));
    assert_eq!(watch.referring_to("u-1", &name).len(), 1);
}

#[tokio::test]
async fn a_foreign_object_that_becomes_ours_or_is_replaced_is_a_change() {
    let watch = children();
    let log = Arc::new(Mutex::new(Vec::new()));
    let changes = Arc::clone(&log);
    let _subscription = watch.subscribe(Arc::new(move |_, change| {
        let labelled = |object: Option<&Arc<DynamicObject>>| {
            object.map(|object| label(object, CONTROLLER_LABEL).is_some())
        };
        let change = (
            labelled(change.before()),
            labelled(change.after()),
            change.is_same(),
        );
        changes.lock().unwrap().push(change);
    }));
    let received = || std::mem::take(&mut *log.lock().unwrap());
    let ours = json!({"labels": {CONTROLLER_LABEL: "echo"}});
    watch.record(pod("1", 1, &json!({})));
    watch.record(pod("1", 2, &json!({"labels": {"any": "other"}})));
    let expected = [(None, Some(false), false), (Some(false), Some(false), true)];
    assert_eq!(received(), expected);
    watch.record(pod("1", 3, &ours));
    watch.record(pod("1", 4, &ours));
    let expected = [(Some(false), Some(true), false), (Some(true), Some(true), true)];
    assert_eq!(received(), expected);
    watch.record(pod("1", 5, &json!({})));
    watch.record(pod(
        "1",
        6,
        &json!({"uid": "00000000-0000-4000-8000-000000000000"}),
    ));
    assert_eq!(
        received(),
        [
            (Some(true), Some(false), false),
            (Some(false), Some(false), false)
        ]
    );
    watch.inner.deleted(pod(
        "1",
        7,
        &json!({"uid": "00000000-0000-4000-8000-000000000000"}),
    ));
    assert_eq!(received(), [(Some(false), None, false)]);
    assert!(watch.names().is_empty());
}

#[tokio::test]
async fn a_controller_of_another_kind_of_parents_needs_another_list() {
    let policy = |kinds: &[&str]| CachePolicy {
        all: false,
        owned_by: kinds.iter().map(|kind| Kind::new("a/v1", *kind)).collect(),
    };
    assert!(policy(&["A", "B"]).covers(&policy(&["A"])));
    assert!(!policy(&["A"]).covers(&policy(&["A", "B"])));
}

/// Regression: a controller that was added waited for minutes, because the list that it needed ended before the watch was
/// marked as incomplete.
#[tokio::test]
async fn a_list_that_ends_while_the_policy_is_set_leaves_the_watch_synced() {
    let watch = Arc::new(children());
    let mut keep = watch.inner.keep.subscribe();
    watch.inner.synced(&keep);
    let done = Arc::new(AtomicBool::new(false));
    let lists = std::thread::spawn({
        let (watch, done) = (Arc::clone(&watch), Arc::clone(&done));
        move || {
            while !done.load(Ordering::Relaxed) {
                if keep.has_changed().unwrap_or(false) {
                    drop(keep.borrow_and_update());
                    watch.inner.synced(&keep);
                }
            }
        }
    });
    for number in 0..2_000 {
        let kind = Kind::new("a.dev/v1", format!("Kind{number}"));
        watch.inner.keep(CachePolicy {
            all: false,
            owned_by: BTreeSet::from([kind]),
        });
        let mut state = watch.state();
        let synced = state.wait_for(|state| *state == WatchState::Synced);
        let in_time = tokio::time::timeout(Duration::from_secs(10), synced).await;
        assert!(in_time.is_ok(), "after {number} policies");
    }
    done.store(true, Ordering::Relaxed);
    lists.join().unwrap();
}

#[tokio::test]
async fn an_index_forgets_what_is_gone() {
    let watch = children();
    for name in ["1", "2"] {
        watch.record(pod(name, 1, &owned_by("ReplicaSet")));
        watch.record(pod(&format!("3{name}"), 1, &owned_by("Echo")));
        let annotated = json!({
            "labels": {CONTROLLER_LABEL: "echo"}, "annotations": {operator_host_core::object::PARENT_ANNOTATION: "n/a"},
        });
        watch.record(pod(&format!("4{name}"), 1, &annotated));
    }
    // Changes of owner, of label and of nothing.
    watch.record(pod("31", 2, &owned_by("ReplicaSet")));
    watch.record(pod("1", 2, &owned_by("Echo")));
    watch.record(pod("41", 2, &json!({})));
    watch.record(pod("42", 2, &json!({})));
    for object in watch.names() {
        watch
            .inner
            .deleted(watch.get(&object).map(|it| DynamicObject::clone(&it)).unwrap());
    }
    assert!(watch.inner.read().is_empty());
}

#[tokio::test]
async fn an_object_that_is_watched_as_metadata_has_its_own_type() {
    let kind = Kind::new("v1", "Namespace");
    let scope = Scope {
        kind,
        namespace: None,
        form: Form::Metadata,
    };
    let (policy, metrics) = (CachePolicy::default(), Arc::new(Metrics::unread()));
    let inner = Inner::new(scope, policy, metrics, Arc::default());
    let partial: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "a"},
    }))
    .unwrap();
    let types = inner.prepare(partial).tree.types.clone().unwrap();
    assert_eq!((&*types.api_version, &*types.kind), ("v1", "Namespace"));
}

/// Regression: the warning came again with each retry, every few seconds.
#[tokio::test]
async fn a_namespace_that_does_not_exist_is_warned_of_once_until_it_exists() {
    let watch = watch();
    let is_news = || watch.inner.misses_namespace();
    assert!(is_news() && !is_news());
    assert!(watch.lacks_namespace());
    watch.inner.listed(&HashSet::new(), None);
    assert!(is_news(), "it is missing again");
}
