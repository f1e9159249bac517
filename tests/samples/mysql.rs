//! The MySQL operator: claims and pods, passwords, growing.

use crate::support::prelude::*;
use crate::webhook::{self, Authority};

const CONTROLLER: &str = "\
- name: mysql
  parent: {apiVersion: database.example.com/v2, kind: MySQLCluster}
  plugin: mysql.wasm
  children:
  - {apiVersion: v1, kind: Service}
  - {apiVersion: v1, kind: PersistentVolumeClaim}
  - {apiVersion: v1, kind: Pod}
  - {apiVersion: v1, kind: Secret}
  reads: [{apiVersion: v1, kind: Secret}]
  backoff: {initial: 100ms, max: 1s}
";
const MYSQL: &str = "database.example.com/v2/MySQLCluster";
const V1: &str = "database.example.com/v1/MySQLCluster";
const POD: &str = "v1/Pod";
const CLAIM: &str = "v1/PersistentVolumeClaim";
const SECRET: &str = "v1/Secret";

fn manifest(replicas: u32, more: &str) -> String {
    format!(
        "apiVersion: database.example.com/v2\nkind: MySQLCluster\nmetadata: {{name: db}}\n\
         spec: {{version: '8.4', replicas: {replicas}, storage: {{size: 1Gi}}, resources: {{cpu: 500m, memory: 1Gi}}{more}}}"
    )
}

async fn until_running(scenario: &Scenario, replicas: u64) -> DynamicObject {
    scenario
        .until(MYSQL, "db", "all servers ready", |db| {
            let status = &db.data["status"];
            status["phase"] == "Running"
                && status["readyReplicas"] == replicas
                && status["observedGeneration"] == json!(db.metadata.generation)
        })
        .await
}

/// Changes the spec.
async fn change(scenario: &Scenario, kind: &str, spec: Value) {
    scenario.patch(kind, "db", json!({ "spec": spec })).await;
}

fn storage(claim: &DynamicObject) -> &str {
    claim.data["spec"]["resources"]["requests"]["storage"]
        .as_str()
        .unwrap()
}

#[tokio::test]
async fn a_cluster_gets_service_claims_pods_and_a_password_that_nobody_sees() {
    let scenario = Scenario::new("mysql-create").await;
    let host = scenario.start(CONTROLLER);
    scenario.apply(&manifest(2, "")).await;
    let db = until_running(&scenario, 2).await;
    assert!(db.data["status"]["lastUpdate"].is_string());
    assert_eq!(scenario.names(POD).await, ["db-0", "db-1"]);
    assert_eq!(scenario.names(CLAIM).await, ["data-db-0", "data-db-1"]);

    let service = scenario.get("v1/Service", "db").await.unwrap();
    assert_eq!(service.data["spec"]["clusterIP"], "None");
    assert_eq!(service.data["spec"]["ports"][0]["port"], 3306);
    let selector = service.data["spec"]["selector"].as_object().unwrap();

    let pod = scenario.get(POD, "db-1").await.unwrap();
    assert!(
        selector
            .iter()
            .all(|(key, value)| pod.labels().get(key).map(String::as_str) == value.as_str())
    );
    let container = &pod.data["spec"]["containers"][0];
    assert_eq!(container["image"], "mysql:8.4");
    assert_eq!(container["volumeMounts"][0]["mountPath"], "/var/lib/mysql");
    assert_eq!(
        pod.data["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"],
        "data-db-1"
    );
    let expected =
        json!({"limits": {"cpu": "500m", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}});
    assert_eq!(container["resources"], expected);
    assert!(container["readinessProbe"].is_object());
    let affinity = &pod.data["spec"]["affinity"]["podAntiAffinity"];
    assert!(affinity["preferredDuringSchedulingIgnoredDuringExecution"].is_array());
    let reference = &container["env"][0]["valueFrom"]["secretKeyRef"];
    assert_eq!(*reference, json!({"name": "db-root", "key": "password"}));

    let password = password(&scenario).await;
    assert_eq!(password.len(), 32);
    for object in [&pod, &service, &db] {
        assert!(!serde_json::to_string(object).unwrap().contains(&password));
    }
    assert!(!host.log().contains(&password));
}

/// Returns the generated password, decoded.
async fn password(scenario: &Scenario) -> String {
    let secret = scenario
        .get(SECRET, "db-root")
        .await
        .expect("the generated Secret");
    let secret: k8s_openapi::api::core::v1::Secret = secret.try_parse().unwrap();
    String::from_utf8(secret.data.unwrap()["password"].0.clone()).unwrap()
}

#[tokio::test]
async fn scaling_down_and_deleting_retain_claims_and_password_and_a_new_cluster_takes_them_up() {
    let scenario = Scenario::new("mysql-retain").await;
    let host = scenario.start(CONTROLLER);
    scenario.apply(&manifest(3, "")).await;
    until_running(&scenario, 3).await;
    let uid = scenario.get(CLAIM, "data-db-2").await.unwrap().uid();
    let before = password(&scenario).await;

    change(&scenario, MYSQL, json!({"replicas": 1})).await;
    scenario.until_gone(POD, "db-2").await;
    scenario.until_gone(POD, "db-1").await;
    until_running(&scenario, 1).await;
    assert_eq!(scenario.names(POD).await, ["db-0"]);
    let expected = ["data-db-0", "data-db-1", "data-db-2"];
    assert_eq!(scenario.names(CLAIM).await, expected);

    scenario.delete(MYSQL, "db").await;
    scenario.until_gone(POD, "db-0").await;
    scenario.until_gone("v1/Service", "db").await;
    let expected = ["data-db-0", "data-db-1", "data-db-2"];
    assert_eq!(scenario.names(CLAIM).await, expected);
    assert!(host.stop().await.success());

    let _host = scenario.start(CONTROLLER);
    scenario.apply(&manifest(3, "")).await;
    until_running(&scenario, 3).await;
    assert_eq!(scenario.get(CLAIM, "data-db-2").await.unwrap().uid(), uid);
    assert_eq!(password(&scenario).await, before);
}

#[tokio::test]
async fn a_cluster_is_written_in_v1_and_read_in_both_versions() {
    let plane = own_cluster(Options::default()).await;
    let scenario = Scenario::within(&plane, "mysql-versions").await;
    let top = "webhook: {address: '127.0.0.1:0', certificate: tls.crt, key: tls.key}";
    let config = scenario.config_with(top, CONTROLLER);
    let authority = Authority::new(&scenario, "ca");
    webhook::put(&scenario, authority.sign("1"));
    let host = scenario.start_with(&config, &[]);
    host.until_log("controller started").await;
    let manifests = webhook::manifests(&scenario, &host, &config, &authority, &webhook::puppets(), &[]).await;
    control_plane::manifests::apply(&scenario.client, &manifests)
        .await
        .expect("webhooks, and a definition with both versions");

    webhook::label_namespace(&scenario).await;
    let old = json!({
        "apiVersion": "database.example.com/v1", "kind": "MySQLCluster", "metadata": { "name": "db" },
        "spec": { "version": "8.4", "replicas": 1, "storageSize": "1Gi", "resources": { "memory": "1Gi" } },
    });
    let try_out = PatchParams::apply("user").dry_run();
    // The API server uses changed definitions and webhooks after a moment, and the controller starts again.
    eventually("a default", async || {
        match scenario.api(V1).patch("db", &try_out, &Patch::Apply(&old)).await {
            Ok(db) if db.annotations().contains_key("operator-host.dev/kept-fields") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    scenario.apply(&old.to_string()).await;
    let db = until_running(&scenario, 1).await;
    assert_eq!(db.data["spec"]["storage"], json!({ "size": "1Gi" }));
    assert_eq!(
        db.data["spec"]["bufferPoolSize"], "512Mi",
        "the webhook sets the default"
    );
    let pod = scenario.get(POD, "db-0").await.unwrap();
    let argument = &pod.data["spec"]["containers"][0]["args"][0];
    assert_eq!(argument, "--innodb-buffer-pool-size=536870912");

    // What v1 does not know stays when a user of v1 changes the rest.
    change(&scenario, V1, json!({"storageSize": "2Gi"})).await;
    scenario
        .until(CLAIM, "data-db-0", "grown", |claim| storage(claim) == "2Gi")
        .await;
    let db = scenario.get(MYSQL, "db").await.unwrap();
    assert_eq!(db.data["spec"]["bufferPoolSize"], "512Mi");

    // An API server before Kubernetes 1.25 keeps no rules, so nothing refuses it there before it is written.
    let definitions = resource("apiextensions.k8s.io/v1/CustomResourceDefinition");
    let definitions = Api::<DynamicObject>::all_with(scenario.client.clone(), &definitions);
    let definition = definitions.get("mysqlclusters.database.example.com").await;
    let definition = definition.expect("the definition").data.to_string();
    let has_rules = definition.contains("x-kubernetes-validations");
    for (kind, patch) in [
        (V1, json!({"spec": {"storageSize": "1Gi"}})),
        (MYSQL, json!({"spec": {"storage": {"size": "1Gi"}}})),
    ] {
        if !has_rules {
            break;
        }
        let refused = scenario
            .api(kind)
            .patch("db", &PatchParams::default(), &Patch::Merge(patch))
            .await;
        let message = refused.expect_err("a volume cannot shrink").to_string();
        assert_contains(&message, "cannot shrink");
    }
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn storage_grows_and_a_smaller_size_is_refused_with_both_sizes() {
    let scenario = Scenario::new("mysql-grow").await;
    let _host = scenario.start(CONTROLLER);
    scenario.apply(&manifest(2, "")).await;
    until_running(&scenario, 2).await;
    change(&scenario, MYSQL, json!({"storage": {"size": "2Gi"}})).await;
    for claim in ["data-db-0", "data-db-1"] {
        scenario
            .until(CLAIM, claim, "grown", |claim| {
                claim.data["status"]["capacity"]["storage"] == "2Gi"
            })
            .await;
    }
    until_running(&scenario, 2).await;
    let pods: Vec<_> = scenario.names(POD).await;

    // A smaller size in the resource would be refused by an API server that knows the rules of its definition.
    let larger = json!({"spec": {"resources": {"requests": {"storage": "4Gi"}}}});
    scenario.patch(CLAIM, "data-db-0", larger).await;
    let message = scenario
        .until_condition(MYSQL, "db", "Stalled=True InvalidSpec: 2Gi … 4Gi")
        .await;
    assert_eq!(scenario.until_event("db", "Warning InvalidSpec").await, message);
    change(&scenario, MYSQL, json!({"replicas": 1})).await;
    scenario
        .until(MYSQL, "db", "still refused", |db| {
            let stalled = condition(db, "Stalled");
            stalled.is_some_and(|it| it["observedGeneration"] == json!(db.metadata.generation))
        })
        .await;
    // The rest of the invalid spec is ignored, too.
    assert_eq!(scenario.names(POD).await, pods);
    assert_eq!(storage(&scenario.get(CLAIM, "data-db-1").await.unwrap()), "2Gi");

    change(&scenario, MYSQL, json!({"storage": {"size": "4Gi"}})).await;
    let db = until_running(&scenario, 1).await;
    assert!(condition(&db, "Stalled").is_none(), "{db:?}");
}

#[tokio::test]
async fn a_named_secret_is_waited_for_and_its_coming_is_noticed_at_once() {
    let scenario = Scenario::new("mysql-secret").await;
    let _host = scenario.start(
        &CONTROLLER
            .replace("max: 1s", "max: 1h")
            .replace("initial: 100ms", "initial: 1h"),
    );
    scenario
        .apply(&manifest(1, ", rootPasswordSecret: {name: mine, key: pw}"))
        .await;
    let message = scenario
        .until(MYSQL, "db", "not ready for want of its Secret", |db| {
            condition(db, "Ready")
                .is_some_and(|c| c["status"] == "False" && c["message"].as_str().unwrap().contains("mine"))
        })
        .await;
    assert!(scenario.names(POD).await.is_empty(), "{message:?}");
    scenario
        .apply("{apiVersion: v1, kind: Secret, metadata: {name: mine}, stringData: {pw: hidden}}")
        .await;
    until_running(&scenario, 1).await;
    let pod = scenario.get(POD, "db-0").await.unwrap();
    let reference = &pod.data["spec"]["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"];
    assert_eq!(*reference, json!({"name": "mine", "key": "pw"}));
    assert!(scenario.get(SECRET, "db-root").await.is_none());
}
