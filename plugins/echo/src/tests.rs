//! The answers that are the same in every language are in `cases`.

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
fn is_ready_when_the_wanted_pods_are() {
    let made = sample().run(&PLUGIN).unwrap();
    let there = sample().after(&made);
    assert_eq!(
        there.run(&PLUGIN).unwrap().status["isReady"],
        false,
        "the pods are not Ready yet"
    );

    let ready = there.pods_ready().run(&PLUGIN).unwrap();
    assert_eq!(ready.status["isReady"], true);
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
