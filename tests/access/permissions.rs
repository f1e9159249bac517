//! The host runs as a user who lacks a permission: the affected controllers report it and wait, and the others
//! continue.

use crate::access::rights::roles;
use crate::samples::echo::CONTROLLER;
use crate::samples::many_echoes::{ECHO, POD, apply, complaints, until_recovered};
use crate::samples::myapp::{CONTROLLER as OTHER, MYAPP};
use crate::support::prelude::*;

/// Grants the limited user these verbs on pods, and everything else that both controllers need.
async fn grant(scenario: &Scenario, pods: &[&str]) {
    let rules = json!([
        { "apiGroups": ["my-operator.dev", "example.com"], "resources": ["*"],
          "verbs": ["get", "list", "watch", "patch"] },
        { "apiGroups": ["apps"], "resources": ["deployments"],
          "verbs": ["get", "list", "watch", "patch", "create", "delete"] },
        { "apiGroups": [""], "resources": ["services"],
          "verbs": ["get", "list", "watch", "patch", "create", "delete"] },
        { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] },
        { "apiGroups": [""], "resources": ["pods"], "verbs": pods },
    ]);
    scenario.grant("host", user(LIMITED), rules).await;
}

async fn the_other_controller_works(scenario: &Scenario) {
    let says = "{apiVersion: example.com/v1, kind: MyApp, metadata: {name: app}, spec: {image: 'nginx:1', port: 80}}";
    scenario.apply(says).await;
    let is_ready = |app: &DynamicObject| is_true(app, "Ready");
    scenario.until(MYAPP, "app", "ready", is_ready).await;
}

#[tokio::test]
async fn without_the_right_to_list_a_kind_only_its_controller_waits_and_names_what_is_missing() {
    let scenario = Scenario::limited("no-list").await;
    grant(&scenario, &["get", "patch", "create", "delete"]).await;
    let host = scenario.start(&format!("{CONTROLLER}{OTHER}"));
    apply(&scenario, "e", 2).await;
    let says = "Reconciling=True WatchFailed: cannot list resource \"pods\"";
    let message = scenario.until_condition(ECHO, "e", says).await;
    assert_contains(&message, "give the host's role the verbs list and watch");
    host.until_log("WARN … cannot watch … pods is forbidden … list and watch")
        .await;
    the_other_controller_works(&scenario).await;

    grant(&scenario, &["get", "list", "watch", "patch", "create", "delete"]).await;
    let given = Instant::now();
    scenario.until_there(POD, "e-pod-1").await;
    eprintln!("a pod {:?} after the right to list was given", given.elapsed());
    until_recovered(&scenario).await;
    // The definitions, by their watch and by each controller, which cannot record its live version either, and the pods,
    // however often they were tried.
    let is_about_releasing = |line: &String| line.contains("may not patch myapps in every namespace");
    let (releasing, complaints): (Vec<_>, Vec<_>) =
        complaints(&host).into_iter().partition(is_about_releasing);
    // It has a cleanup, and the Role goes with its namespace.
    assert_eq!(releasing.len(), 1);
    assert!(complaints.len() <= 7, "{complaints:#?}");
}

#[tokio::test]
async fn without_the_right_to_make_a_child_the_parent_names_it_and_recovers_by_itself() {
    let scenario = Scenario::limited("no-patch").await;
    grant(&scenario, &["get", "list", "watch"]).await;
    let host = scenario.start(&format!("{CONTROLLER}{OTHER}"));
    apply(&scenario, "e", 2).await;
    let says = "Reconciling=True ApplyFailed: Pod no-patch/e-pod-0 … Pod no-patch/e-pod-1 … \
         cannot patch resource \"pods\" … give the host's role";
    scenario.until_condition(ECHO, "e", says).await;
    scenario.until_event("e", "Warning ApplyFailed").await;
    the_other_controller_works(&scenario).await;
    // Retried repeatedly, reported once.
    host.until_log("DEBUG … cannot apply Pod no-patch/e-pod-0").await;
    let mut printed = complaints(&host);
    printed.retain(|line| line.contains("cannot apply"));
    assert_eq!(printed.len(), 1, "{printed:#?}");

    grant(&scenario, &["get", "list", "watch", "patch", "create", "delete"]).await;
    let given = Instant::now();
    until_recovered(&scenario).await;
    eprintln!(
        "recovered {:?} after the right to patch was given",
        given.elapsed()
    );
    let mut pods = scenario.names(POD).await;
    pods.retain(|pod| pod.starts_with("e-"));
    assert_eq!(pods.len(), 2);
}

#[tokio::test]
async fn a_host_whose_service_account_is_deleted_reports_it_and_changes_nothing() {
    let scenario = Scenario::new("account-gone").await;
    let name = "account-gone";
    let config = scenario.config(CONTROLLER);
    let roles = roles(&scenario, &config);
    let scenario = scenario.with_account(cluster().await, &roles).await;
    let mut host = scenario.start_with(&config, &[]);
    apply(&scenario, "e", 2).await;
    scenario.until_echo("e").await;

    scenario.delete("v1/ServiceAccount", name).await;
    // The API server accepts a recently used token for ten more seconds.
    eventually("a refusal", async || {
        // It may have been deleted already, and recreated.
        let params = DeleteParams::default();
        let _ = scenario.api(POD).delete("e-pod-0", &params).await;
        let is_refused = host.log().contains("Unauthorized");
        is_refused.then_some(()).ok_or_else(|| scenario.log_tail())
    })
    .await;
    host.until_log("WARN … Unauthorized … check that its ServiceAccount exists")
        .await;
    scenario.until_there(POD, "e-pod-1").await;
    assert!(host.is_alive());
}
