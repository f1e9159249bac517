use operator_plugin::testing::Case;
use operator_plugin::{DEPLOYMENT, SERVICE};

use super::PLUGIN;

fn sample() -> Case {
    Case::new(include_str!("../sample.yaml"))
}

/// The Deployment as its controller reports it.
fn deployed(status: &str) -> Case {
    let made = sample().run(&PLUGIN).unwrap();
    let status: operator_plugin::Value = operator_plugin::testing::yaml(status);
    sample().after(&made).with(DEPLOYMENT, "web", "/status", status)
}

#[test]
fn creates_a_deployment_and_its_service() {
    let outcome = sample().run(&PLUGIN).unwrap();
    assert_eq!(outcome.names(), ["web", "web"]);
    let deployment = outcome.child(DEPLOYMENT, "web");
    assert_eq!(deployment.integer("/spec/replicas"), Some(2));
    assert_eq!(
        deployment.text("/spec/template/spec/containers/0/env/0/name"),
        Some("GREETING")
    );
    assert_eq!(
        deployment.text("/spec/template/spec/containers/0/resources/limits/memory"),
        Some("128Mi")
    );
    assert_eq!(deployment.label("managed-by"), Some("operator-host"));
    let service = outcome.child(SERVICE, "web");
    assert_eq!(service.text("/spec/type"), Some("ClusterIP"));
    assert_eq!(
        service.text("/spec/selector/app"),
        deployment.text("/spec/template/metadata/labels/app")
    );
}

#[test]
fn an_image_is_all_that_must_be_said() {
    let outcome = Case::new("{ metadata: { name: web }, spec: { image: nginx } }")
        .run(&PLUGIN)
        .unwrap();
    let deployment = outcome.child(DEPLOYMENT, "web");
    assert_eq!(deployment.integer("/spec/replicas"), Some(1));
    assert_eq!(
        deployment.integer("/spec/template/spec/containers/0/ports/0/containerPort"),
        Some(8080)
    );
    assert_eq!(
        deployment.text("/spec/template/spec/containers/0/resources/requests/cpu"),
        Some("100m")
    );
}

#[test]
fn the_status_is_what_the_deployment_reports() {
    let outcome = sample().run(&PLUGIN).unwrap();
    assert_eq!(outcome.status["phase"], "Pending");
    assert_eq!(outcome.status["message"], "0/2 replicas ready");

    let half = deployed("{ replicas: 2, updatedReplicas: 2, readyReplicas: 1, availableReplicas: 1 }");
    let outcome = half.run(&PLUGIN).unwrap();
    assert_eq!(outcome.status["phase"], "Pending");
    assert_eq!(outcome.status["message"], "1/2 replicas ready");

    let not_yet = deployed("{ replicas: 2, updatedReplicas: 2, readyReplicas: 2, availableReplicas: 1 }");
    assert_eq!(not_yet.run(&PLUGIN).unwrap().status["phase"], "Pending");

    let all = deployed("{ replicas: 2, updatedReplicas: 2, readyReplicas: 2, availableReplicas: 2 }");
    let outcome = all.run(&PLUGIN).unwrap();
    assert_eq!(outcome.status["phase"], "Running");
    assert_eq!(outcome.status["availableReplicas"], 2);

    let stuck = deployed("{ conditions: [{ type: Progressing, status: 'False' }] }");
    assert_eq!(stuck.run(&PLUGIN).unwrap().status["phase"], "Failed");
}

#[test]
fn the_time_in_the_status_moves_only_when_something_else_does() {
    let made = sample().run(&PLUGIN).unwrap();
    let later = sample().after(&made).at("2030-01-01T00:00:00Z");
    let expected = "2026-01-01T00:00:00Z";
    assert_eq!(later.run(&PLUGIN).unwrap().status["lastUpdateTime"], expected);
    let changed = later.set("/spec/replicas", 3).run(&PLUGIN).unwrap();
    assert_eq!(changed.status["lastUpdateTime"], "2030-01-01T00:00:00Z");
}

#[test]
fn what_a_schema_cannot_say_is_refused_with_its_field() {
    let errors = sample()
        .set("/spec/resources/cpu", "much")
        .validate(&PLUGIN, None);
    assert_eq!(errors[0].path, "spec.resources.cpu");
}

#[test]
fn the_cleanup_leaves_an_event() {
    let cleanup = sample().clean_up(&PLUGIN).unwrap();
    assert!(cleanup.done);
    assert_eq!(cleanup.events[0].reason, "CleanedUp");
}
