//! CustomResourceDefinitions are created, changed and deleted while the host runs.

pub mod install;

use crate::samples::echo::CONTROLLER;
use crate::samples::many_echoes::{ECHO, POD, apply, complaints, until_pods};
use crate::samples::myapp;
use crate::support::install;
use crate::support::prelude::*;
use crate::telemetry::{get, until_ready_is_without, until_ready_says};

const DEFINITION: &str = "apiextensions.k8s.io/v1/CustomResourceDefinition";

/// Returns a definition of a kind that the first controller may create and that is not installed.
fn widgets(served: &str) -> String {
    format!(
        "apiVersion: apiextensions.k8s.io/v1\n\
         kind: CustomResourceDefinition\n\
         metadata: {{name: widgets.stable.example.com}}\n\
         spec:\n  group: stable.example.com\n  scope: Namespaced\n  names: {{plural: widgets, kind: Widget}}\n  versions:\n  \
         - {{name: v1, served: {served}, storage: true, schema: {{openAPIV3Schema: {{type: object}}}}}}\n  \
         - {{name: v2, served: true, storage: false, schema: {{openAPIV3Schema: {{type: object}}}}}}\n"
    )
}

async fn echoes(scenario: &Scenario) {
    let file = root().join("manifests/crds/echoes.my-operator.dev.yaml");
    let yaml = std::fs::read_to_string(file).unwrap();
    install(&scenario.client, scenario.folder.path(), &yaml).await;
}

/// Returns how often the log contains the words.
fn logged(host: &Host, words: &str) -> usize {
    host.log().lines().filter(|line| line.contains(words)).count()
}

#[tokio::test]
async fn a_controller_follows_its_definition_and_the_others_go_on() {
    let cluster = ControlPlane::start(Options {
        controller_manager: false,
        ..Options::default()
    })
    .await
    .expect("a control plane");
    let scenario = Scenario::within(&cluster, "definitions").await;
    let file = root().join("manifests/crds/myapps.example.com.yaml");
    let yaml = std::fs::read_to_string(file).unwrap();
    install(&scenario.client, scenario.folder.path(), &yaml).await;
    let mut host = scenario.start(&format!("{CONTROLLER}{}", myapp::CONTROLLER));
    let waiting = "waiting for the CustomResourceDefinition of my-operator.dev/v1";
    host.until_logged(waiting, 1).await;
    // Wait for the slow parts first, so that only the definition is measured.
    host.until_log("plugin loaded … \"controller\":\"echo\"").await;

    for round in 1..=2 {
        echoes(&scenario).await;
        let installed = Instant::now();
        host.until_logged("controller started\",\"controller\":\"echo", round)
            .await;
        assert!(installed.elapsed().as_secs() < 5, "{:?}", installed.elapsed());
        apply(&scenario, "e", 2).await;
        until_pods(&scenario, 2).await;
        scenario
            .until(ECHO, "e", "counted", |e| e.data["status"]["currentReplicas"] == 2)
            .await;

        scenario.delete(DEFINITION, "echoes.my-operator.dev").await;
        host.until_logged("is no longer served: stopping the controller", round)
            .await;
        host.until_logged(waiting, round + 1).await;
        for i in 0..2 {
            // There is no garbage collector here.
            scenario.delete(POD, &format!("e-pod-{i}")).await;
            scenario.until_gone(POD, &format!("e-pod-{i}")).await;
        }
    }
    scenario
        .apply("{apiVersion: example.com/v1, kind: MyApp, metadata: {name: app}, spec: {image: 'nginx:1', port: 80}}")
        .await;
    scenario.until_there("apps/v1/Deployment", "app").await;
    assert_eq!(
        logged(&host, "controller stopped"),
        2,
        "only the one whose kind went"
    );
    let complaints = complaints(&host);
    assert!(complaints.len() <= 4, "{complaints:#?}");
    assert!(host.is_alive());
    drop(host);

    a_child_kind_without_definition(&scenario).await;
}

/// The controller runs, reports the missing definition, and blocks no parent that needs none of its objects.
async fn a_child_kind_without_definition(scenario: &Scenario) {
    echoes(scenario).await;
    install(&scenario.client, scenario.folder.path(), &widgets("false")).await;
    let children =
        "children: [{apiVersion: v1, kind: Pod}, {apiVersion: stable.example.com/v1, kind: Widget}]";
    let controller = CONTROLLER.replace("children: [{apiVersion: v1, kind: Pod}]", children);
    let host = scenario.start(&controller);
    // The definition exists, but its version v1 is not served.
    host.until_log("cannot watch … stable.example.com/v1/Widget")
        .await;
    let reconciled = |pods: i64| {
        move |e: &DynamicObject| {
            let status = &e.data["status"];
            status["isReady"] == true
                && status["currentReplicas"] == pods
                && condition(e, "Reconciling").is_none()
        }
    };
    apply(scenario, "w", 1).await;
    scenario.until(ECHO, "w", "reconciled", reconciled(1)).await;
    scenario.apply(&widgets("true")).await;
    apply(scenario, "w", 2).await;
    scenario.until(ECHO, "w", "reconciled", reconciled(2)).await;
}

/// Regression: the advice was to install a CustomResourceDefinition for a kind of Kubernetes.
#[tokio::test]
async fn a_built_in_kind_in_a_version_that_is_not_served_stops_only_the_parents_that_want_it() {
    let scenario = Scenario::new("not-served-version").await;
    let children = "children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: batch/v9, kind: Job}]";
    let _host = scenario.start(&controller("puppet.wasm", children));
    let job = json!({"apiVersion": "batch/v9", "kind": "Job", "metadata": {"name": "j"}});
    scenario.wants("job", &[job]).await;
    scenario.until_stalled("job", "ChildRefused: Job j: the cluster does not serve the kind batch/v9/Job; it serves Job as batch/v1: use that version").await;
    scenario.ready_wants("other", &[config_map("a", "1")]).await;
}

/// Regression: nobody reported it until a reconcile or a cleanup needed the kind.
#[tokio::test]
async fn a_plugin_that_wants_more_than_its_configuration_allows_is_reported_when_it_is_loaded() {
    let (_scenario, host) = puppets("disagreements", "").await;
    // Until the first lists are there, the host is not ready, for another reason.
    until_ready_says(&host, "[+]controller/puppet ok").await;
    for words in [
        "the plugin creates v1/Secret, which is not in `children`",
        "the plugin reads v1/ConfigMap, which is not in `reads`",
    ] {
        host.until_log(&format!("\"WARN\" … {words}")).await;
        let (status, ready) = get(&host, "/readyz?verbose").await;
        assert_eq!(status, 200, "{ready}");
        let plugin = ready.lines().find(|line| line.starts_with("[+]plugin/puppet ok"));
        assert!(plugin.is_some_and(|line| line.contains(words)), "{ready}");
    }
}

/// Regression: the API server dropped the new fields, and nobody reported it.
#[tokio::test]
async fn a_definition_that_is_older_than_the_plugin_is_reported_until_it_is_applied_again() {
    let cluster = own_cluster(Options::bare()).await;
    let scenario = Scenario::within(&cluster, "older-definition").await;
    let name = "echoes.my-operator.dev";
    let mut definition = scenario.api(DEFINITION).get(name).await.expect("a definition");
    let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
    let fields = definition
        .data
        .pointer_mut(status)
        .and_then(|fields| fields.as_object_mut());
    fields.expect("its fields").remove("isReady").expect("a field");
    scenario
        .api(DEFINITION)
        .replace(name, &PostParams::default(), &definition)
        .await
        .expect("replaced");
    let host = scenario.start(CONTROLLER);
    let words = "is older than the plugin's and lacks status.isReady";
    host.until_log(&format!("\"WARN\" … {name} … {words}")).await;
    let (_, ready) = get(&host, "/readyz?verbose").await;
    assert_contains(&ready, words);
    echoes(&scenario).await;
    until_ready_is_without(&host, words).await;
}
