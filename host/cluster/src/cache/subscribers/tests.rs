use std::sync::Mutex;

use serde_json::{Value, json};

use super::*;
use crate::cache::testing::{delete, put, watch_of};
use crate::cache::{CachePolicy, Reflector};
use operator_host_core::object::CONTROLLER_LABEL;

const UID: &str = "00000000-0000-4000-8000-000000000000";

fn pods() -> Reflector {
    let kind = Kind::new("v1", "Pod");
    watch_of(kind, CachePolicy::default())
}

fn pod(version: u32, metadata: &Value) -> DynamicObject {
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
    pod["metadata"]["name"] = "p".into();
    pod["metadata"]["namespace"] = "x".into();
    pod["metadata"]["uid"] = UID.into();
    pod["metadata"]["resourceVersion"] = version.to_string().into();
    serde_json::from_value(pod).unwrap()
}

fn owner(api_version: &str, kind: &str) -> Value {
    json!({ "apiVersion": api_version, "kind": kind, "name": "a", "uid": format!("{api_version} {kind}"), "controller": true })
}

/// The names of the subscribers that were called, in order.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<String>>>);

impl Calls {
    fn subscribe(&self, watch: &Reflector, name: &str, interests: Vec<Interest<'static>>) -> Subscription {
        let (calls, name) = (Arc::clone(&self.0), name.to_owned());
        watch.subscribe_to(
            interests,
            Arc::new(move |_, _| calls.lock().unwrap().push(name.clone())),
        )
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// What a controller of this name and parent kind waits for.
fn interests(controller: &str, parent: &str) -> Vec<Interest<'static>> {
    let owned = Interest::OwnedBy {
        group: "example.com".into(),
        kind: parent.to_owned().into(),
    };
    vec![owned, Interest::Labeled(controller.to_owned().into())]
}

/// Regression: each of a hundred controllers that make pods was called for every pod of the cluster.
#[tokio::test]
async fn a_change_is_told_to_those_whom_it_concerns_and_to_no_other_of_a_hundred() {
    let (watch, calls) = (pods(), Calls::default());
    let _subscriptions: Vec<_> = (0..100)
        .map(|number| {
            let (name, parent) = (format!("c{number}"), format!("Kind{number}"));
            calls.subscribe(&watch, &name, interests(&name, &parent))
        })
        .collect();
    let mut version = 0;
    let mut called = |metadata: Value| {
        version += 1;
        put(&watch, pod(version, &metadata));
        calls.take()
    };
    let of = |api_version, kind| json!({ "ownerReferences": [owner(api_version, kind)] });
    assert_eq!(called(json!({})), [""; 0], "no owner");
    assert_eq!(called(of("apps/v1", "ReplicaSet")), [""; 0], "an owner of others");
    assert_eq!(called(of("example.com/v2", "Kind7")), ["c7"], "another version");
    assert_eq!(
        called(of("example.org/v1", "Kind8")),
        ["c7"],
        "the group of others"
    );
    assert_eq!(called(json!({ "labels": { CONTROLLER_LABEL: "c9" } })), ["c9"]);
    let both = json!({ "labels": { CONTROLLER_LABEL: "c9" }, "ownerReferences": [owner("example.com/v1", "Kind1")] });
    assert_eq!(called(both.clone()), ["c1", "c9"], "it had no owner before");
    assert_eq!(called(both), ["c1"], "only a new version");
    assert_eq!(called(json!({})), ["c1"], "the former owner");
    delete(&watch, pod(20, &json!({ "labels": { CONTROLLER_LABEL: "c2" } })));
    assert_eq!(
        calls.take(),
        [""; 0],
        "as far as the cache knows, it had no label"
    );
}

#[tokio::test]
async fn a_subscriber_with_several_interests_is_called_once() {
    let (watch, calls) = (pods(), Calls::default());
    let _subscription = calls.subscribe(&watch, "c", interests("c", "Shop"));
    put(&watch, pod(1, &json!({ "labels": { CONTROLLER_LABEL: "c" } })));
    put(
        &watch,
        pod(
            2,
            &json!({ "ownerReferences": [owner("example.com/v1", "Shop")] }),
        ),
    );
    assert_eq!(calls.take(), ["c", "c"]);
}

#[tokio::test]
async fn a_subscriber_hears_nothing_after_its_subscription_has_ended() {
    let (watch, calls) = (pods(), Calls::default());
    let subscription = calls.subscribe(&watch, "all", vec![Interest::All]);
    put(&watch, pod(1, &json!({})));
    assert_eq!(calls.take(), ["all"]);
    drop(subscription);
    put(&watch, pod(2, &json!({})));
    assert_eq!(calls.take(), [""; 0]);
    assert!(lock(&watch.inner.subscribers).by_interest.is_empty());
}
