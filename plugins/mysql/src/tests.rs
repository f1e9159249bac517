use operator_plugin::testing::{Case, Outcome};
use operator_plugin::{
    Failure, PERSISTENT_VOLUME_CLAIM, POD, POD_DISRUPTION_BUDGET, SECRET, SERVICE, Value, json,
};

use super::PLUGIN;

fn sample() -> Case {
    Case::new(include_str!("../sample.yaml"))
}

/// The sample's cluster, set up and running.
fn running() -> Case {
    let made = sample().run(&PLUGIN).unwrap();
    let there = sample().after(&made).pods_ready();
    there.clone().after(&there.run(&PLUGIN).unwrap())
}

fn invalid(case: &Case) -> String {
    match case.run(&PLUGIN) {
        Err(Failure::Invalid(invalid)) => invalid.message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_drain_stops_one_server_at_a_time() {
    let outcome = sample().run(&PLUGIN).unwrap();
    let budget = outcome.child(POD_DISRUPTION_BUDGET, "shop-db");
    assert_eq!(budget.integer("/spec/maxUnavailable"), Some(1));
    let service = outcome.child(SERVICE, "shop-db");
    assert_eq!(
        budget.get("/spec/selector/matchLabels"),
        service.get("/spec/selector")
    );
    let without = sample()
        .set("/spec/maxUnavailable", Value::Null)
        .run(&PLUGIN)
        .unwrap();
    assert!(without.names_of(POD_DISRUPTION_BUDGET).is_empty());
}

#[test]
fn the_service_picks_the_pods_of_its_own_cluster_only() {
    let ours = sample().run(&PLUGIN).unwrap();
    let theirs = sample().set("/metadata/name", "other-db").run(&PLUGIN).unwrap();
    let service = ours.child(SERVICE, "shop-db");
    let selector = service.get("/spec/selector").unwrap().as_object().unwrap();
    let picks = |outcome: &Outcome, pod: &str| {
        let pod = outcome.child(POD, pod);
        selector
            .iter()
            .all(|(key, value)| pod.label(key) == value.as_str())
    };
    assert!(picks(&ours, "shop-db-0"));
    assert!(!picks(&theirs, "other-db-0"));
}

#[test]
fn the_generated_password_outlives_a_change_to_a_named_one() {
    let secret = "{ apiVersion: v1, kind: Secret, metadata: { name: shop-db-root } }";
    let named = "{ apiVersion: v1, kind: Secret, metadata: { name: mine }, data: { password: c2VjcmV0 } }";
    let case = running()
        .observed(secret)
        .set("/spec/rootPasswordSecret/name", "mine");
    let outcome = case.related("root-password", named).run(&PLUGIN).unwrap();
    assert!(
        outcome.keep.contains(&"shop-db-root".to_owned()),
        "{:?}",
        outcome.keep
    );
    assert!(outcome.names_of(SECRET).is_empty());
}

#[test]
fn the_status_counts_the_pods_own_conditions() {
    let made = sample().run(&PLUGIN).unwrap();
    assert_eq!(made.status["readyReplicas"], 0);
    assert_eq!(made.status["phase"], "Pending");

    let one_down = running().with(POD, "shop-db-1", "/status/conditions/0/status", "False");
    let outcome = one_down.run(&PLUGIN).unwrap();
    assert_eq!(outcome.status["readyReplicas"], 1);
    assert_eq!(outcome.status["phase"], "Pending");
    assert_eq!(outcome.conditions[0].message, "1/2 servers are Ready");

    let outcome = running().run(&PLUGIN).unwrap();
    assert_eq!(outcome.status["readyReplicas"], 2);
    assert_eq!(outcome.status["phase"], "Running");
}

#[test]
fn a_terminating_pod_is_not_ready_and_is_left_alone() {
    let case = running().with(
        POD,
        "shop-db-0",
        "/metadata/deletionTimestamp",
        "2026-01-01T00:00:00Z",
    );
    let outcome = case.run(&PLUGIN).unwrap();
    assert_eq!(outcome.status["readyReplicas"], 1);
    assert_eq!(outcome.names_of(POD), ["shop-db-1"]);
    assert_eq!(outcome.keep, ["shop-db-0"]);
}

#[test]
fn an_evicted_pod_is_replaced() {
    let case = running().with(POD, "shop-db-0", "/status/phase", "Failed");
    let outcome = case.run(&PLUGIN).unwrap();
    assert!(
        outcome.names_of(POD).is_empty(),
        "shop-db-0 is left out, for the host to delete"
    );
    assert_eq!(outcome.keep, ["shop-db-1"], "no other one is changed meanwhile");
}

#[test]
fn a_change_of_the_spec_replaces_one_pod_after_the_other() {
    let pod = |case: Case| case.run(&PLUGIN).unwrap().child(POD, "shop-db-1");
    let larger = pod(sample().set("/spec/resources/memory", "2Gi"));
    assert_ne!(larger.get("/spec"), pod(sample()).get("/spec"));
    let update = larger.annotation("operator-host.dev/update").unwrap();
    assert!(update.starts_with("one,replace,"), "{update}");
}

#[test]
fn the_last_update_stands_still_while_nothing_else_in_the_status_moves() {
    let at_last = |case: Case| case.run(&PLUGIN).unwrap().status["lastUpdate"].clone();
    let later = running().at("2026-06-01T00:00:00Z");
    assert_eq!(at_last(later.clone()), "2026-01-01T00:00:00Z");
    let one_down = later.with(POD, "shop-db-1", "/status/conditions/0/status", "False");
    assert_eq!(at_last(one_down), "2026-06-01T00:00:00Z");
}

#[test]
fn what_a_schema_cannot_say_is_refused_with_its_field() {
    for (path, value, field) in [
        ("/spec/storage/size", "ten", "spec.storage.size"),
        ("/spec/storage/size", "0", "spec.storage.size"),
        ("/spec/resources/cpu", "much", "spec.resources.cpu"),
        ("/spec/bufferPoolSize", "0", "spec.bufferPoolSize"),
        ("/spec/bufferPoolSize", "1Gi", "spec.bufferPoolSize"),
    ] {
        let message = invalid(&sample().set(path, value));
        assert!(message.starts_with(field), "{message}");
    }
}

#[test]
fn the_class_of_a_volume_is_set_once() {
    let fast = sample().set("/spec/storage/class", "fast");
    let made = fast.run(&PLUGIN).unwrap();
    let claim = made.child(PERSISTENT_VOLUME_CLAIM, "data-shop-db-0");
    assert_eq!(claim.text("/spec/storageClassName"), Some("fast"));
    assert!(fast.clone().after(&made).run(&PLUGIN).is_ok());

    let message = invalid(&fast.after(&made).set("/spec/storage/class", "slow"));
    assert!(
        message.starts_with("spec.storage.class") && message.contains("slow"),
        "{message}"
    );
}

#[test]
fn the_buffer_pool_is_half_of_the_memory_by_default() {
    let pod = sample().run(&PLUGIN).unwrap().child(POD, "shop-db-0");
    assert!(
        pod.get("/spec/containers/0/args").is_none(),
        "a default is set by the webhook only"
    );

    let of = |case: Case| {
        let outcome = case.with_defaults(&PLUGIN).unwrap().run(&PLUGIN).unwrap();
        let pod = outcome.child(POD, "shop-db-0");
        pod.text("/spec/containers/0/args/0").map(str::to_owned)
    };
    let half = of(sample());
    assert_eq!(half.as_deref(), Some("--innodb-buffer-pool-size=536870912"));
    let given = of(sample().set("/spec/bufferPoolSize", "100Mi"));
    assert_eq!(given.as_deref(), Some("--innodb-buffer-pool-size=104857600"));
    assert_eq!(of(sample().set("/spec/resources", json!({}))), None);
    assert_eq!(of(sample().set("/spec/resources/memory", "1M")), None);
}
