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
fn makes_a_service_and_a_claim_and_a_pod_for_each_replica() {
    let outcome = sample().run(&PLUGIN).unwrap();
    assert_eq!(
        outcome.names(),
        [
            "shop-db",
            "shop-db",
            "data-shop-db-0",
            "data-shop-db-1",
            "shop-db-0",
            "shop-db-1"
        ]
    );
    let service = outcome.child(SERVICE, "shop-db");
    assert_eq!(service.text("/spec/clusterIP"), Some("None"));
    assert_eq!(service.integer("/spec/ports/0/port"), Some(3306));
    let claim = outcome.child(PERSISTENT_VOLUME_CLAIM, "data-shop-db-1");
    assert_eq!(claim.text("/spec/accessModes/0"), Some("ReadWriteOnce"));
    assert_eq!(claim.text("/spec/resources/requests/storage"), Some("1Gi"));
    let pod = outcome.child(POD, "shop-db-1");
    assert_eq!(pod.text("/spec/containers/0/image"), Some("mysql:8.4"));
    assert_eq!(
        pod.text("/spec/containers/0/volumeMounts/0/mountPath"),
        Some("/var/lib/mysql")
    );
    assert_eq!(
        pod.text("/spec/volumes/0/persistentVolumeClaim/claimName"),
        Some("data-shop-db-1")
    );
    assert_eq!(
        pod.text("/spec/containers/0/resources/limits/memory"),
        Some("1Gi")
    );
    assert_eq!(
        pod.text("/spec/containers/0/resources/requests/cpu"),
        Some("500m")
    );
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
fn the_password_is_made_by_the_host_and_never_in_clear() {
    let outcome = sample().run(&PLUGIN).unwrap();
    let [secret] = outcome.generate.as_slice() else {
        panic!("{:?}", outcome.generate)
    };
    assert_eq!(
        (secret.name.as_str(), secret.entries[0].key.as_str()),
        ("shop-db-root", "password")
    );
    let pod = outcome.child(POD, "shop-db-0");
    assert!(pod.get("/spec/containers/0/env/0/value").is_none());
    assert_eq!(
        pod.text("/spec/containers/0/env/0/valueFrom/secretKeyRef/name"),
        Some("shop-db-root")
    );
}

#[test]
fn a_named_secret_is_read_first_and_must_have_the_key() {
    let named = sample().set("/spec/rootPasswordSecret/name", "mine");
    let asked = named.run(&PLUGIN).unwrap();
    assert_eq!(asked.needs.len(), 1);
    assert!(asked.names().is_empty());

    let missing = named
        .clone()
        .related("root-password", "")
        .run(&PLUGIN)
        .unwrap_err();
    let Failure::Retry(retry) = missing else {
        panic!("{missing:?}")
    };
    assert_eq!(
        retry.message,
        "the Secret mine that spec.rootPasswordSecret names does not exist"
    );

    let other_key = "{ apiVersion: v1, kind: Secret, metadata: { name: mine }, data: { other: c2VjcmV0 } }";
    let failure = named
        .clone()
        .related("root-password", other_key)
        .run(&PLUGIN)
        .unwrap_err();
    let Failure::Retry(retry) = failure else {
        panic!("{failure:?}")
    };
    assert_eq!(
        retry.message,
        "Secret mine has no key password, which spec.rootPasswordSecret names"
    );

    let secret = other_key.replace("other", "password");
    let outcome = named.related("root-password", &secret).run(&PLUGIN).unwrap();
    assert_eq!(outcome.needs, asked.needs, "the host goes on watching");
    assert!(outcome.generate.is_empty());
    let pod = outcome.child(POD, "shop-db-0");
    assert_eq!(
        pod.text("/spec/containers/0/env/0/valueFrom/secretKeyRef/name"),
        Some("mine")
    );
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
fn the_time_in_the_status_moves_only_when_something_else_does() {
    let before = running();
    let settled = before.clone().at("2030-01-01T00:00:00Z").run(&PLUGIN).unwrap();
    assert_eq!(settled.status["lastUpdate"], "2026-01-01T00:00:00Z");
    let changed = before
        .with(POD, "shop-db-1", "/status/conditions/0/status", "False")
        .at("2030-01-01T00:00:00Z")
        .run(&PLUGIN)
        .unwrap();
    assert_eq!(changed.status["lastUpdate"], "2030-01-01T00:00:00Z");
}

#[test]
fn scaling_down_drops_the_highest_pods_and_no_longer_names_their_claims() {
    let outcome = running().set("/spec/replicas", 1).run(&PLUGIN).unwrap();
    assert_eq!(outcome.names_of(POD), ["shop-db-0"]);
    assert_eq!(outcome.names_of(PERSISTENT_VOLUME_CLAIM), ["data-shop-db-0"]);
    assert!(outcome.keep.is_empty());
}

#[test]
fn volumes_grow_and_do_not_shrink() {
    let grown = running().set("/spec/storage/size", "2Gi").run(&PLUGIN).unwrap();
    let claim = grown.child(PERSISTENT_VOLUME_CLAIM, "data-shop-db-1");
    assert_eq!(claim.text("/spec/resources/requests/storage"), Some("2Gi"));
    assert!(grown.keep.is_empty(), "the pods stay as they are");

    let same = running().set("/spec/storage/size", "1024Mi").run(&PLUGIN);
    assert!(same.is_ok(), "{same:?}");

    let message = invalid(&running().set("/spec/storage/size", "500Mi"));
    assert!(message.contains("500Mi") && message.contains("1Gi"), "{message}");
}

#[test]
fn a_change_of_the_pods_replaces_one_at_a_time() {
    let case = running().set("/spec/version", "9.0");
    let first = case.run(&PLUGIN).unwrap();
    assert_eq!(
        first.names_of(POD),
        Vec::<&str>::new(),
        "shop-db-1 is left out, for the host to delete"
    );
    assert_eq!(first.keep, ["shop-db-0"]);
    assert_eq!(first.status["phase"], "Updating");
    assert_eq!(first.events[0].reason, "ReplacingPod");

    // shop-db-1 was deleted: it is recreated, and shop-db-0 waits until it is Ready.
    let case = case.after(&first);
    let second = case.run(&PLUGIN).unwrap();
    assert_eq!(second.names_of(POD), ["shop-db-1"]);
    assert_eq!(
        second.child(POD, "shop-db-1").text("/spec/containers/0/image"),
        Some("mysql:9.0")
    );
    assert_eq!(second.keep, ["shop-db-0"]);
    let case = case.after(&second);
    assert_eq!(
        case.run(&PLUGIN).unwrap().keep,
        ["shop-db-0"],
        "shop-db-1 is there and not Ready"
    );

    let case = case.pods_ready();
    let third = case.run(&PLUGIN).unwrap();
    assert_eq!(third.names_of(POD), ["shop-db-1"]);
    assert!(third.keep.is_empty(), "shop-db-0 has its turn");

    let case = case.after(&third);
    let case = case.clone().after(&case.run(&PLUGIN).unwrap()).pods_ready();
    assert_eq!(case.run(&PLUGIN).unwrap().status["phase"], "Running");
}

#[test]
fn an_evicted_pod_is_replaced() {
    let case = running().with(POD, "shop-db-0", "/status/phase", "Failed");
    let outcome = case.run(&PLUGIN).unwrap();
    assert_eq!(outcome.names_of(POD), ["shop-db-1"]);
    assert!(
        outcome.keep.is_empty(),
        "shop-db-0 is left out, for the host to delete"
    );
}

#[test]
fn what_a_missing_schema_lets_through_is_refused() {
    for (path, value, field) in [
        ("/spec/version", "latest; rm -rf", "spec.version"),
        ("/spec/storage/size", "ten", "spec.storage.size"),
        ("/spec/storage/size", "0", "spec.storage.size"),
        ("/spec/resources/cpu", "much", "spec.resources.cpu"),
        ("/spec/bufferPoolSize", "0", "spec.bufferPoolSize"),
        ("/spec/bufferPoolSize", "1Gi", "spec.bufferPoolSize"),
        ("/metadata/name", "shop.db", "metadata.name"),
    ] {
        let message = invalid(&sample().set(path, value));
        assert!(message.starts_with(field), "{message}");
    }
    for replicas in [0, 100] {
        let message = invalid(&sample().set("/spec/replicas", replicas));
        assert_eq!(
            message,
            format!("spec.replicas: {replicas} is not within 1 to 99")
        );
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

#[test]
fn version_v1_shows_the_size_and_keeps_the_rest() {
    const V1: &str = "database.example.com/v1";
    let fast = sample()
        .set("/spec/storage/class", "fast")
        .set("/spec/bufferPoolSize", "100Mi");
    let mut old = fast.in_version(&PLUGIN, V1).unwrap();
    assert_eq!(old["spec"]["storageSize"], "1Gi");
    assert_eq!(
        (&old["spec"]["storage"], &old["spec"]["bufferPoolSize"]),
        (&Value::Null, &Value::Null)
    );

    old["spec"]["storageSize"] = "2Gi".into();
    let new = Case::new(&old.to_string())
        .in_version(&PLUGIN, "database.example.com/v2")
        .unwrap();
    assert_eq!(new["spec"]["storage"], json!({ "size": "2Gi", "class": "fast" }));
    assert_eq!(new["spec"]["bufferPoolSize"], "100Mi");
}
