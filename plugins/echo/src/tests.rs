use operator_plugin::testing::Case;
use operator_plugin::{Failure, POD};

use super::PLUGIN;

fn sample() -> Case {
    Case::new(include_str!("../sample.yaml"))
}

#[test]
fn makes_a_pod_for_each_replica_and_counts_none_that_it_has_not_seen() {
    let outcome = sample().run(&PLUGIN).unwrap();
    let expected = ["hello-echo-pod-0", "hello-echo-pod-1", "hello-echo-pod-2"];
    assert_eq!(outcome.names_of(POD), expected);
    let pod = outcome.child(POD, "hello-echo-pod-0");
    let expected = Some("ealen/echo-server:0.9.2");
    assert_eq!(pod.text("/spec/containers/0/image"), expected);
    assert_eq!(outcome.status["currentReplicas"], 0);
    assert_eq!(outcome.status["isReady"], false);
}

#[test]
fn is_ready_when_exactly_the_wanted_pods_are() {
    let made = sample().run(&PLUGIN).unwrap();
    let there = sample().after(&made);
    assert_eq!(
        there.run(&PLUGIN).unwrap().status["isReady"],
        false,
        "the pods are not Ready yet"
    );

    let ready = there.pods_ready();
    assert_eq!(ready.run(&PLUGIN).unwrap().status["isReady"], true);

    let scaled_down = ready.set("/spec/replicas", 2);
    let last_one_down = scaled_down.clone().with(POD, "hello-echo-pod-2", "/status", ());
    assert_eq!(
        last_one_down.run(&PLUGIN).unwrap().status["isReady"],
        false,
        "a third pod is still there"
    );
    let scaled_down = scaled_down.run(&PLUGIN).unwrap();
    let expected = ["hello-echo-pod-0", "hello-echo-pod-1"];
    assert_eq!(scaled_down.names_of(POD), expected);
    assert_eq!(
        scaled_down.status["currentReplicas"], 3,
        "the third pod is still there"
    );
    assert_eq!(scaled_down.status["isReady"], false);
}

#[test]
fn no_replicas_are_ready_at_once() {
    let outcome = sample().set("/spec/replicas", 0).run(&PLUGIN).unwrap();
    assert!(outcome.names().is_empty());
    assert_eq!(outcome.status["isReady"], true);
}

#[test]
fn a_pod_that_is_being_deleted_is_left_alone() {
    let made = sample().run(&PLUGIN).unwrap();
    let outcome = sample()
        .after(&made)
        .pods_ready()
        .with(
            POD,
            "hello-echo-pod-1",
            "/metadata/deletionTimestamp",
            "2026-01-01T00:00:00Z",
        )
        .run(&PLUGIN)
        .unwrap();
    assert_eq!(outcome.names_of(POD), ["hello-echo-pod-0", "hello-echo-pod-2"]);
    assert_eq!(outcome.keep, ["hello-echo-pod-1"]);
    assert_eq!(outcome.status["isReady"], false);
}

#[test]
fn an_evicted_pod_is_replaced() {
    let made = sample().run(&PLUGIN).unwrap();
    let evicted = sample()
        .after(&made)
        .with(POD, "hello-echo-pod-1", "/status/phase", "Failed");
    let outcome = evicted.run(&PLUGIN).unwrap();
    assert_eq!(outcome.names_of(POD), ["hello-echo-pod-0", "hello-echo-pod-2"]);
    let next = evicted.after(&outcome).run(&PLUGIN).unwrap();
    assert_eq!(next.names_of(POD).len(), 3);
}

#[test]
fn a_spec_of_another_type_is_the_users_to_change() {
    let failure = sample().set("/spec/replicas", "three").run(&PLUGIN).unwrap_err();
    let Failure::Invalid(invalid) = failure else {
        panic!("{failure:?}")
    };
    assert_eq!(
        invalid.message,
        "spec.replicas: invalid type: string \"three\", expected u32"
    );
}
