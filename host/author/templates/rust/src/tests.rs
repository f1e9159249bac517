use operator_plugin::testing::Case;
use operator_plugin::{ConditionStatus, DEPLOYMENT, Failure};

use super::PLUGIN;

const NAME: &str = "my-@SINGULAR@";

fn sample() -> Case {
    Case::new(include_str!("../sample.yaml"))
}

#[test]
fn the_deployment_has_the_image_and_the_replicas() {
    let outcome = sample().set("/spec/replicas", 3).run(&PLUGIN).unwrap();
    let deployment = outcome.child(DEPLOYMENT, NAME);
    assert_eq!(deployment.integer("/spec/replicas"), Some(3));
    let image = deployment.text("/spec/template/spec/containers/0/image");
    assert_eq!(image, Some("nginx:1.27"));
}

#[test]
fn it_is_ready_when_every_replica_is() {
    let made = sample().run(&PLUGIN).unwrap();
    assert_eq!(made.conditions[0].status, ConditionStatus::False);

    let ready = sample()
        .after(&made)
        .with(DEPLOYMENT, NAME, "/status/readyReplicas", 2)
        .run(&PLUGIN)
        .unwrap();
    assert_eq!(ready.status["readyReplicas"], 2);
    assert_eq!(ready.conditions[0].status, ConditionStatus::True);
}

#[test]
fn a_spec_without_an_image_is_invalid() {
    let failure = sample().set("/spec", operator_plugin::json!({})).run(&PLUGIN);
    let Err(Failure::Invalid(invalid)) = failure else {
        panic!("{failure:?}")
    };
    assert_eq!(invalid.message, "spec: missing field `image`");
}
