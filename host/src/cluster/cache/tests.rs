use serde_json::json;

use super::*;

fn watch() -> Reflector {
    let kind = Kind {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
    };
    let keep = CachePolicy {
        all: true,
        ..CachePolicy::default()
    };
    let scope = Scope {
        kind,
        namespace: None,
        form: Form::Whole,
    };
    let inner = Arc::new(Inner::new(scope, keep, Arc::new(Metrics::unread())));
    Reflector {
        inner,
        task: tokio::spawn(async {}),
    }
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
        let change = (value(change.old), value(change.new));
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
    watch.inner.put(&watch.inner.prepare(object(1, "one")));
    assert_eq!(received(&log), [(None, some("one"))]);
    watch.record(object(2, "two"));
    assert_eq!(received(&log), [(some("one"), some("two"))]);
    watch.inner.put(&watch.inner.prepare(object(2, "two")));
    assert_eq!(received(&log), [], "an own write is nothing new");
}

#[tokio::test]
async fn an_older_state_never_replaces_a_newer_one() {
    let watch = watch();
    let (log, _subscription) = listen(&watch);
    watch.record(object(5, "five"));
    received(&log);
    watch.inner.put(&watch.inner.prepare(object(4, "four")));
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
    watch.inner.put(&watch.inner.prepare(object(5, "five")));
    assert_eq!(received(&log), [(None, some("five"))]);
}

/// Regression: items of a list have no type, and a `ConfigMap` with that label was taken for a generated Secret.
#[tokio::test]
async fn only_a_secret_that_was_generated_is_stored_without_its_values() {
    let watch = watch();
    let mut listed = object(1, "kept");
    listed.types = None;
    listed.metadata.labels = Some([(crate::object::GENERATED_LABEL.to_owned(), "true".to_owned())].into());
    assert_eq!(watch.record(listed).data["data"]["key"], "kept");
}
