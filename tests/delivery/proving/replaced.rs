//! Hosts that are replaced by new ones without any state of their own, as `kubectl rollout restart` replaces pods: what was
//! live and what is held back is recorded in the cluster.

use crate::support::prelude::*;
use std::fs;

use super::{
    DEFINITION, FILE, Stage, digest, is_held_back, offer_one_that_deletes, response, until_held_back,
    until_live, until_report,
};
use crate::telemetry::{get, until_ready_is_without};

impl Stage<'_> {
    /// Starts a host as the pod of a Deployment starts it: without what another one stored or logged.
    fn start_new(&mut self, name: &str) -> Host {
        let config = self.configure();
        self.scenario.start_named(name, &config)
    }

    fn share(&mut self) {
        self.top = format!(
            "leadership: single\nlease: {{namespace: {}, duration: 6s, renewDeadline: 4s, retryPeriod: 500ms}}",
            self.scenario.namespace
        );
    }
}

/// The kind of [`DEFINITION`].
const KIND: &str = "apiextensions.k8s.io/v1/CustomResourceDefinition";

fn key(scenario: &Scenario) -> String {
    format!("{}.live.operator-host.dev/puppet", scenario.namespace)
}

/// Waits until the cluster records this version as live.
async fn until_recorded(scenario: &Scenario, number: u8) {
    let (key, digest) = (key(scenario), digest(number).to_string());
    scenario
        .until(KIND, DEFINITION, "the version is recorded", |definition| {
            let annotations = definition.metadata.annotations.as_ref();
            annotations.and_then(|annotations| annotations.get(&key)) == Some(&digest)
        })
        .await;
}

/// Writes another record of the live version.
async fn record(scenario: &Scenario, text: Value) {
    let patch = json!({"metadata": {"annotations": {key(scenario): text}}});
    scenario.patch(KIND, DEFINITION, patch).await;
}

async fn uid(scenario: &Scenario, name: &str) -> Option<String> {
    scenario.get(CONFIG_MAP, name).await.unwrap().metadata.uid
}

#[tokio::test]
async fn a_version_that_would_delete_stays_held_back_in_new_hosts_until_the_live_one_is_back() {
    let scenario = Scenario::new("replaced-deletes").await;
    let mut stage = Stage::new(&scenario, "");
    let host = stage.start_new("old");
    offer_one_that_deletes(&scenario, &mut stage).await;
    until_recorded(&scenario, 0).await;
    let before = uid(&scenario, "a").await;
    until_held_back(&host, 1).await;
    assert_eq!(host.stop().await.code(), Some(0));

    let host = stage.start_new("new");
    let line = until_held_back(&host, 1).await;
    let what_to_do = format!(
        "WouldDelete … {} … neither in the plugin's file nor among the kept versions … put that version back … \
         kubectl annotate crd",
        digest(0).short()
    );
    assert_contains(&line, &what_to_do);
    let says = format!("Stalled=True PluginNotLoaded: {what_to_do}");
    scenario.until_told("p", &says).await;
    let (status, ready) = get(&host, "/readyz?verbose").await;
    assert_eq!(status, 500, "{ready}");
    assert_contains(&ready, &what_to_do);
    assert_eq!(uid(&scenario, "a").await, before);
    until_report(&host, "held back", |report| {
        report["candidate"]["state"] == "heldBack"
    })
    .await;

    stage.swap(0);
    until_live(&host, 0, "the cluster records as live").await;
    let puppet = scenario.until_ready("p").await;
    assert!(!is_held_back(&puppet));
    assert_eq!(uid(&scenario, "a").await, before);

    // A record that is edited is put right, or the plan is judged.
    for text in [json!("latest"), Value::Null] {
        record(&scenario, text).await;
        until_recorded(&scenario, 0).await;
    }
    assert_eq!(host.stop().await.code(), Some(0));
    record(&scenario, json!("latest")).await;
    stage.swap(1);
    let host = stage.start_new("newer");
    let line = until_held_back(&host, 1).await;
    let words = "WouldDelete … which version was live is not known … latest";
    assert_contains(&line, words);
    assert_eq!(uid(&scenario, "a").await, before);
}

#[tokio::test]
async fn a_version_that_does_no_harm_is_live_in_a_new_host_by_its_plan_alone() {
    let scenario = Scenario::new("replaced-harmless").await;
    let mut stage = Stage::new(&scenario, "");
    let host = stage.start_new("old");
    let harmless = json!({"response": response(&[("a", "y"), ("b", "y")])});
    let variants = json!({"1": harmless, "2": {"response": {}}, "3": harmless});
    scenario
        .ready_with(
            "p",
            json!({"response": response(&[("a", "x")]), "variants": variants}),
        )
        .await;
    // What fails in every version holds nothing back, and neither does what no version has reconciled.
    let frozen = json!({"failure": {"invalid": {"message": "spec: it is frozen"}}});
    scenario.puppet("frozen", frozen.clone()).await;
    scenario.until_told("frozen", "Stalled=True InvalidSpec").await;
    until_recorded(&scenario, 0).await;
    assert_eq!(host.stop().await.code(), Some(0));
    // As a host leaves it that stops before its plugin is compiled.
    scenario.puppet("new-and-frozen", frozen.clone()).await;
    let waits = json!({
        "type": "Reconciling", "status": "True", "reason": "Waiting", "message": "waiting for the plugin",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let status = json!({"conditions": [waits]});
    scenario.set_status(PUPPET, "new-and-frozen", status).await;
    stage.swap(1);
    let host = stage.start_new("new");
    until_live(&host, 1, "proved: 3 objects, without the version that was live").await;
    scenario.until_there(CONFIG_MAP, "b").await;
    until_recorded(&scenario, 1).await;
    assert_eq!(host.stop().await.code(), Some(0));

    // Neither does what comes while no version is live.
    stage.swap(2);
    let host = stage.start_new("newer");
    until_held_back(&host, 2).await;
    scenario.puppet("newer-and-frozen", frozen).await;
    scenario
        .until_told("newer-and-frozen", "Stalled=True PluginNotLoaded")
        .await;
    stage.swap(3);
    until_live(&host, 3, "proved: 4 objects, without the version that was live").await;
}

#[tokio::test]
async fn two_new_hosts_at_once_hold_back_what_the_old_ones_did() {
    let scenario = Scenario::new("replaced-both").await;
    let mut stage = Stage::new(&scenario, "");
    stage.share();
    let old = [stage.start_new("a"), stage.start_new("b")];
    offer_one_that_deletes(&scenario, &mut stage).await;
    let before = uid(&scenario, "a").await;
    for host in &old {
        until_held_back(host, 1).await;
    }
    for host in old {
        host.kill();
    }
    let new = [stage.start_new("c"), stage.start_new("d")];
    for host in &new {
        until_held_back(host, 1).await;
    }
    scenario.until_told("p", "Stalled=True PluginNotLoaded").await;
    assert_eq!(uid(&scenario, "a").await, before);
}

/// During a rolling update, old pods have the old file, and each of them may lead again.
#[tokio::test]
async fn a_host_that_leads_after_one_with_another_version_examines_its_own_again() {
    let scenario = Scenario::new("replaced-overtaken").await;
    let mut stage = Stage::new(&scenario, "");
    stage.share();
    let first = stage.start_new("a");
    let spec = json!({
        "response": response(&[("a", "x")]), "variants": {"1": {"response": response(&[("a", "x"), ("b", "x")])}},
    });
    scenario.ready_with("p", spec).await;
    let standby = stage.start_new("b");
    until_live(&standby, 0, "the cluster records as live").await;
    let next = Mount::new(&scenario.folder.path().join("next"), FILE, &variant(1));
    let old = std::mem::replace(&mut stage.mount, next);
    let config = fs::read_to_string(scenario.folder.path().join("config.yaml")).unwrap();
    let [old, new] = [&old, &stage.mount].map(|mount| mount.path.display().to_string());
    let next = config.replace(&old, &new);
    let next = scenario.file("next.yaml", next);
    let newer = scenario.start_named("c", &next);
    until_live(&newer, 1, "without the version that was live").await;

    standby.process().pause();
    assert_eq!(first.stop().await.code(), Some(0));
    scenario.until_there(CONFIG_MAP, "b").await;
    until_recorded(&scenario, 1).await;
    standby.process().resume();
    assert_eq!(newer.stop().await.code(), Some(0));

    let words = "another version was recorded as live meanwhile";
    standby.until_log(words).await;
    let line = until_held_back(&standby, 0).await;
    assert_contains(&line, &format!("WouldDelete … {}", digest(1).short()));
    scenario.until_told("p", "Stalled=True PluginNotLoaded").await;
    assert!(scenario.get(CONFIG_MAP, "b").await.is_some());
}

#[tokio::test]
async fn for_a_definition_that_is_made_again_the_version_is_recorded_again() {
    let cluster = own_cluster(Options::default()).await;
    let scenario = Scenario::within(&cluster, "replaced-definition").await;
    let mut stage = Stage::new(&scenario, "");
    let host = stage.start_new("old");
    scenario
        .ready_with("p", json!({"response": response(&[("a", "x")])}))
        .await;
    until_recorded(&scenario, 0).await;
    scenario.remove(PUPPET, "p").await;
    scenario.delete(KIND, DEFINITION).await;
    host.until_log("controller stopped").await;
    scenario.until_gone(KIND, DEFINITION).await;
    let file = crate::support::root().join("tests/fixtures/puppet/crds.yaml");
    let text = fs::read_to_string(file).unwrap();
    crate::support::install(&scenario.client, scenario.folder.path(), &text).await;
    until_recorded(&scenario, 0).await;
    assert_eq!(host.stop().await.code(), Some(0));

    // Without a record, the first version is live at once.
    record(&scenario, Value::Null).await;
    stage.swap(1);
    let host = stage.start_new("new");
    until_live(&host, 1, "it was the first").await;
    until_recorded(&scenario, 1).await;
}

#[tokio::test]
async fn without_the_right_to_record_the_host_works_and_says_what_is_missing() {
    // In a shared cluster, other scenarios rely on what this user may not do.
    let cluster = own_cluster(Options::default().with_user(LIMITED, &[])).await;
    let scenario = Scenario::within(&cluster, "replaced-rights").await;
    let role = "rbac.authorization.k8s.io/v1";
    let rule = |groups: &[&str], resources: &[&str], verbs: &[&str]| json!({"apiGroups": groups, "resources": resources, "verbs": verbs});
    let all = ["get", "list", "watch", "create", "patch", "delete"];
    let rules = [
        rule(
            &["apiextensions.k8s.io"],
            &["customresourcedefinitions"],
            &["list", "watch"],
        ),
        rule(&["test.operator-host.dev"], &["puppets", "puppets/status"], &all),
        rule(&["", "events.k8s.io"], &["configmaps", "secrets", "events"], &all),
    ];
    let name = "replaced-rights";
    for object in [
        json!({"apiVersion": role, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}),
        json!({"apiVersion": role, "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": LIMITED}]}),
    ] {
        scenario.apply(&object.to_string()).await;
    }
    let kubeconfig = cluster.kubeconfig_of(LIMITED).expect("the user");
    let scenario = scenario.with_kubeconfig(kubeconfig);
    let mut stage = Stage::new(&scenario, "");
    let host = stage.start_new("host");
    let words = "the live version cannot be recorded … cannot patch resource … customresourcedefinitions";
    host.until_log(words).await;
    scenario
        .ready_with("p", json!({"response": response(&[("a", "x")])}))
        .await;
    let (status, ready) = get(&host, "/readyz?verbose").await;
    assert_eq!(status, 200, "{ready}");
    assert_contains(&ready, words);
    let more = json!({"apiVersion": role, "kind": "ClusterRole", "metadata": {"name": name},
        "rules": [rules[1], rules[2], rule(&["apiextensions.k8s.io"], &["customresourcedefinitions"], &["list", "watch", "patch"])]});
    scenario.apply(&more.to_string()).await;
    until_ready_is_without(&host, "the live version cannot be recorded").await;
}
