//! The deletion of a resource: the finalizer, and the plugin's cleanup before it is released.

use crate::support::prelude::*;

use crate::faults::behind::refusing;
use crate::telemetry::get;

#[tokio::test]
async fn a_deleted_resource_waits_until_the_plugin_reports_that_it_is_done() {
    for (form, file) in FORMS {
        let scenario = Scenario::new(&format!("cleanup-{form}")).await;
        let _host = scenario.start(&controller(file, ""));
        let spec = |done: bool| {
            json!({
                "response": {"children": [config_map("a", "1"), config_map("b", "1")]},
                "cleanup": {
                    "done": done,
                    "children": [config_map("farewell", "1")],
                    "status": {"phase": "Leaving", "left": "$count"},
                    "conditions": [{"type": "Ready", "status": "False", "reason": "Leaving", "message": "m"}],
                    "events": [{"type": "Normal", "reason": "Leaving", "message": "says goodbye"}],
                },
            })
        };
        let finalizers = ["operator-host.dev/puppet".to_owned()];
        let puppet = scenario.ready_with("p", spec(false)).await;
        assert_eq!(puppet.metadata.finalizers.as_deref(), Some(finalizers.as_slice()));

        scenario.delete(PUPPET, "p").await;
        let leaving = |p: &DynamicObject| p.data["status"]["phase"] == "Leaving";
        let puppet = scenario.until(PUPPET, "p", "leaving", leaving).await;
        assert!(is_going(&puppet));
        assert_eq!(puppet.metadata.finalizers.as_deref(), Some(finalizers.as_slice()));
        assert_eq!(scenario.until_event("p", "Normal Leaving").await, "says goodbye");
        // Children that the cleanup does not name stay.
        let names = scenario.names(CONFIG_MAP).await;
        for name in ["a", "b", "farewell"] {
            assert!(names.iter().any(|n| n == name), "{name} is not among {names:?}");
        }
        scenario.puppet("p", spec(true)).await;
        scenario.until_gone(PUPPET, "p").await;
        // The garbage collector deletes the rest.
        scenario.until_gone(CONFIG_MAP, "a").await;
        scenario.until_gone(CONFIG_MAP, "farewell").await;
    }
}

#[tokio::test]
async fn a_plugin_that_fails_in_cleanup_keeps_the_resource_until_it_is_put_right() {
    let (scenario, host) = puppets("cleanup-fails", "").await;
    let child = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    scenario
        .ready_with(
            "p",
            json!({"response": {}, "cleanup": {"done": true, "children": [child]}}),
        )
        .await;
    // The host must not remove somebody else's finalizer.
    scenario
        .set_finalizers(PUPPET, "p", &["operator-host.dev/puppet", "example.com/other"])
        .await;
    scenario.delete(PUPPET, "p").await;
    scenario.until_stalled("p", "ChildRefused").await;
    scenario.puppet("p", json!({"response": {}})).await;
    let others = |p: &DynamicObject| p.metadata.finalizers == Some(vec!["example.com/other".to_owned()]);
    scenario
        .until(PUPPET, "p", "only the other finalizer", others)
        .await;
    // Regression: the conditions went on about the generation before the deletion.
    scenario
        .until_told("p", "Ready=False WaitingForFinalizers: example.com/other")
        .await;
    let puppet = scenario.get(PUPPET, "p").await.unwrap();
    let observed = puppet.data["status"]["observedGeneration"].as_i64();
    assert_eq!(observed, puppet.metadata.generation);
    scenario.set_finalizers(PUPPET, "p", &[]).await;
    scenario.until_gone(PUPPET, "p").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Regression: what only finalizers of others held stayed Ready, and the garbage collector deleted what is retained with its parent.
#[tokio::test]
async fn without_a_plugin_a_resource_that_finalizers_of_others_hold_says_so_and_what_is_retained_is_released()
{
    let (scenario, host) = puppets("held-by-others", "").await;
    scenario.ready_wants("q", &[config_map("a", "1")]).await;
    let puppet = scenario.ready_with("p", json!({"response": {}})).await;
    assert_eq!(host.stop().await.code(), Some(0));
    // As if the plugin had no cleanup.
    let other = json!({"metadata": {"finalizers": ["example.com/other"]}});
    scenario.patch(PUPPET, "p", other).await;
    scenario.delete(PUPPET, "p").await;
    let broken = scenario.file("broken.wasm", b"not WebAssembly");
    let retain = "children: [{apiVersion: v1, kind: ConfigMap, onRemoval: retain}]";
    let host = scenario.start(&controller(broken.to_str().unwrap(), retain));
    let words = "Reconciling=True WaitingForFinalizers: example.com/other";
    scenario.until_told("p", words).await;
    let left = scenario.get(PUPPET, "p").await.unwrap();
    assert!(!is_true(&left, "Ready") && left.metadata.generation > puppet.metadata.generation);
    scenario.set_finalizers(PUPPET, "p", &[]).await;
    scenario.until_gone(PUPPET, "p").await;

    let is_free = |child: &DynamicObject| child.metadata.owner_references.is_none();
    scenario.until(CONFIG_MAP, "a", "released", is_free).await;
    scenario.until_stalled("q", "PluginNotLoaded").await;
    host.until_log("updated ConfigMap a\"").await;
}

/// Regression: when a resource was deleted while its plugin was called, the children that the answer left out were deleted
/// although those in their place were not created, and the cleanup found neither.
#[tokio::test]
async fn a_resource_that_is_deleted_during_a_call_keeps_its_children_for_the_cleanup() {
    let (scenario, host) = puppets("deleted-in-call", "limits: {deadline: 20s}").await;
    let spec = |name: &str, busy: u64| {
        json!({
            "busy": busy,
            "response": {"children": [config_map(name, "1")]},
            "cleanup": {"done": false, "status": {"seen": "$children"}},
        })
    };
    scenario.ready_with("p", spec("before", 0)).await;
    scenario.puppet("p", spec("after", 400)).await;
    host.until_log("busy").await;
    scenario.delete(PUPPET, "p").await;
    assert!(
        scenario.get(CONFIG_MAP, "after").await.is_none(),
        "it was too late"
    );
    scenario.until_told("p", "Ready=False CleaningUp").await;
    let seen = |puppet: &DynamicObject| puppet.data["status"]["seen"][0]["metadata"]["name"] == "before";
    scenario
        .until(PUPPET, "p", "cleaned up with its child", seen)
        .await;
    assert!(scenario.get(CONFIG_MAP, "after").await.is_none());
}

/// Regression: only the plugin could report what an unfinished cleanup waits for, and a paused resource that was deleted stayed for
/// ever, and said only that it was paused.
#[tokio::test]
async fn a_resource_that_waits_for_its_cleanup_or_is_paused_shows_it_and_is_released_when_its_time_is_up() {
    let (scenario, host) = puppets("release-after", "").await;
    let spec = json!({"response": {"children": [config_map("a", "1")]}, "cleanup": {"done": false}});
    scenario.ready_with("p", spec).await;
    scenario.delete(PUPPET, "p").await;
    scenario
        .until_told(
            "p",
            "Reconciling=True CleaningUp: operator-host.dev/puppet … \
             until the plugin's cleanup says that it is done",
        )
        .await;
    scenario.until_told("p", "Ready=False CleaningUp").await;
    scenario.until_event("p", "Normal CleaningUp").await;
    host.until_log("\"INFO\" … until the plugin's cleanup says").await;
    scenario.ready_wants("paused", &[config_map("b", "1")]).await;
    scenario.pause("paused").await;
    scenario.delete(PUPPET, "paused").await;
    let says = "Paused=True Annotated: it is being deleted, and waits for its removal";
    scenario.until_told("paused", says).await;
    assert_eq!(host.stop().await.code(), Some(0));

    let host = scenario.start(&controller("puppet.wasm", "finalizer: {releaseAfter: 1s}"));
    scenario.until_gone(PUPPET, "p").await;
    let says = "Warning CleanupAbandoned: not done within 1s … did not say that it is done";
    scenario.until_event("p", says).await;
    host.until_log("\"WARN\" … is released without it").await;
    scenario.until_gone(CONFIG_MAP, "a").await;
    scenario.until_gone(PUPPET, "paused").await;
    let says = "Warning CleanupAbandoned: not done within 1s … the resource is paused";
    scenario.until_event("paused", says).await;
}

#[tokio::test]
async fn a_finalizer_that_is_removed_during_a_cleanup_is_not_added_again() {
    let (scenario, host) = puppets("finalizer-removed", "limits: {deadline: 20s}").await;
    let spec = json!({"response": {"children": [config_map("a", "1")]}, "cleanup": {"done": false}});
    scenario.ready_with("p", spec).await;
    scenario
        .set_finalizers(PUPPET, "p", &["operator-host.dev/puppet", "example.com/other"])
        .await;
    scenario.delete(PUPPET, "p").await;
    scenario.until_told("p", "Ready=False CleaningUp").await;
    scenario.patch(PUPPET, "p", json!({"spec": {"busy": 400}})).await;
    host.until_log("busy").await;
    let other = json!({"metadata": {"finalizers": ["example.com/other"]}});
    scenario.patch(PUPPET, "p", other).await;
    let (log, parent) = (host.log(), "finalizer-removed/p");
    let (_, during) = log.split_once("busy").unwrap();
    assert!(!during.contains("reconcile done"), "it was too late: {during}");
    host.until_reconciles(parent, host.reconciles(parent) + 2).await;
    let left = scenario.get(PUPPET, "p").await.unwrap();
    assert_eq!(
        left.metadata.finalizers,
        Some(vec!["example.com/other".to_owned()])
    );
    assert!(scenario.get(CONFIG_MAP, "a").await.is_some());
    assert_eq!(host.log().matches("busy").count(), 1, "{}", host.log());
    scenario.set_finalizers(PUPPET, "p", &[]).await;
    scenario.until_gone(PUPPET, "p").await;
    scenario.until_gone(CONFIG_MAP, "a").await;
    assert!(!host.log().contains("\"ERROR\""), "{}", host.log());
}

/// Regression: only the Events of the last iteration were published, and the cleanup's conditions replaced all others.
#[tokio::test]
async fn a_cleanup_that_creates_children_loses_no_events_and_no_conditions() {
    let (scenario, _host) = puppets("cleanup-events", "").await;
    let spec = json!({
        "response": {
            "children": [config_map("a", "1")],
            "conditions": [{"type": "Backed", "status": "True", "reason": "Nightly", "message": "m"}],
        },
        "cleanup": {
            "done": false,
            "children": [config_map("backup", "1")],
            "conditions": [{"type": "Drained", "status": "False", "reason": "Draining", "message": "m"}],
            // Another one in each iteration: the second sees the new child.
            "events": [{"type": "Normal", "reason": "BackingUp", "message": "$versions"}],
        },
    });
    scenario.ready_with("p", spec).await;
    let before = format!("\"{}\"", scenario.version(CONFIG_MAP, "a").await);
    scenario.delete(PUPPET, "p").await;
    for (type_, status, reason) in [
        ("Reconciling", "True", "CleaningUp"),
        ("Drained", "False", "Draining"),
        ("Backed", "True", "Nightly"),
    ] {
        scenario
            .until_told("p", &format!("{type_}={status} {reason}"))
            .await;
    }
    // Its note contains two versions.
    scenario.until_event("p", "Normal BackingUp:  ").await;
    let is_told = async || {
        let all = scenario.events().await;
        all.iter().any(|event| event.data["note"] == before.as_str())
    };
    until_true(&format!("an Event of the first iteration, {before}"), is_told).await;
}

/// Regression: 403 forever, logged only at debug level.
#[tokio::test]
async fn a_cleanup_that_needs_a_child_in_a_terminating_namespace_reports_it() {
    let (scenario, host) = puppets("stuck", "").await;
    let cleanup = json!({"done": true, "children": [config_map("farewell", "1")]});
    scenario
        .ready_with("p", json!({"response": {}, "cleanup": cleanup}))
        .await;
    scenario.delete("v1/Namespace", "stuck").await;
    let says = "Reconciling=True ApplyFailed: the deletion waits for the plugin's cleanup … \
         the namespace \"stuck\" … is being deleted … ConfigMap stuck/farewell … releaseAfter";
    scenario.until_told("p", says).await;
    host.until_log("\"WARN\" … the deletion waits for the plugin's cleanup")
        .await;
    let done = json!({"spec": {"cleanup": {"done": true, "children": null}}});
    scenario.patch(PUPPET, "p", done).await;
    scenario.until_gone(PUPPET, "p").await;
}

/// Regression: the parent was released, and the garbage collector deleted the child that must be retained.
#[tokio::test]
async fn a_time_limit_does_not_release_a_parent_before_its_retained_children() {
    let scenario = Scenario::new("limit-retained").await;
    let limited = |removal: &str| {
        let children = format!("children: [{{apiVersion: v1, kind: ConfigMap, onRemoval: {removal}}}]");
        controller(
            "puppet.wasm",
            &format!("{children}\nfinalizer: {{releaseAfter: 1s}}"),
        )
    };
    let host = scenario.start(&limited("delete"));
    let spec = json!({"response": {"children": [config_map("a", "1")]}, "cleanup": {"done": true}});
    scenario.ready_with("p", spec).await;
    assert_eq!(host.stop().await.code(), Some(0));
    let (proxy, _host) = refusing(&scenario, "/configmaps/a?", &limited("retain")).await;
    scenario.delete(PUPPET, "p").await;
    let over = Instant::now() + Duration::from_secs(2);
    proxy
        .until_seen(|seen| seen.refused == Some(403) && seen.at > over)
        .await;
    // Regression: it said that the deletion waits for the plugin's cleanup.
    let is_over = |p: &DynamicObject| {
        let status = p.data["status"].to_string();
        [
            "`finalizer.releaseAfter`",
            "cannot be released",
            "ConfigMap limit-retained/a",
        ]
        .iter()
        .all(|words| status.contains(words))
    };
    scenario.until(PUPPET, "p", "says why it stays", is_over).await;
    proxy.set_mode(Mode::Pass);
    scenario.until_gone(PUPPET, "p").await;
    let a = scenario.get(CONFIG_MAP, "a").await.expect("it is retained");
    assert_eq!(a.metadata.owner_references.iter().flatten().count(), 0);
}

/// Regression: with a plugin without a finalizer, the garbage collector then deleted the others with their parent.
#[tokio::test]
async fn a_child_that_cannot_be_released_does_not_keep_the_others_from_it() {
    let (scenario, host) = puppets("retained-others", "").await;
    let names = ["a", "b", "c"];
    let children = names.map(|name| config_map(name, "1"));
    scenario.ready_wants("p", &children).await;
    assert_eq!(host.stop().await.code(), Some(0));
    let retain = "children: [{apiVersion: v1, kind: ConfigMap, onRemoval: retain}]";
    let config = controller("puppet.wasm", retain);
    // Whatever the order, one of them comes before another one.
    let (proxy, host) = refusing(&scenario, "/configmaps/b?", &config).await;
    let is_free = |child: &DynamicObject| child.metadata.owner_references.is_none();
    for name in ["a", "c"] {
        scenario.until(CONFIG_MAP, name, "released", is_free).await;
    }
    let says = format!("Reconciling=True ApplyFailed: ConfigMap {}/b", scenario.namespace);
    scenario.until_told("p", &says).await;
    proxy.set_mode_of("/configmaps/b?", Mode::Pass);
    scenario.until(CONFIG_MAP, "b", "released", is_free).await;
    scenario.until_ready("p").await;
    // Regression: one that was released and applied was named twice.
    host.until_log("updated ConfigMap b").await;
    assert!(!host.log().contains("ConfigMap b, ConfigMap b"), "{}", host.log());
}

/// Without a hand-over by hand, the host would set a second finalizer, and refuse every child.
#[tokio::test]
async fn a_parent_of_a_controller_with_another_name_says_so_until_it_is_handed_over() {
    let (scenario, host) = puppets("other-name", "").await;
    let spec = |text: &str| json!({"response": {"children": [config_map("a", text)]}});
    scenario.ready_with("p", spec("1")).await;
    assert_eq!(host.stop().await.code(), Some(0));
    let before = scenario.get(CONFIG_MAP, "a").await.unwrap().metadata.uid;

    let config = controller("puppet.wasm", "").replace("name: puppet\n", "name: marionette\n");
    let host = scenario.start(&config);
    scenario.puppet("p", spec("2")).await;
    scenario
        .until_stalled("p", "OtherController: operator-host.dev/puppet … renamed")
        .await;
    let metrics = get(&host, "/metrics").await.1;
    assert!(metrics.contains("class=\"other_controller\""), "{metrics}");
    assert_eq!(scenario.text_of("a").await, "1");

    // As the page says.
    for (kind, name) in [(CONFIG_MAP, "a"), (PUPPET, "p")] {
        let mut object = scenario.get(kind, name).await.unwrap();
        let managed = object.metadata.managed_fields.iter_mut().flatten();
        for entry in managed.filter(|entry| entry.manager.as_deref() == Some("operator-host/puppet")) {
            entry.manager = Some("operator-host/marionette".into());
        }
        if let Some(label) =
            (object.metadata.labels.as_mut()).and_then(|all| all.get_mut("operator-host.dev/controller"))
        {
            *label = "marionette".into();
        }
        if let Some(finalizers) = &mut object.metadata.finalizers {
            *finalizers = vec!["operator-host.dev/marionette".into()];
        }
        let written = scenario
            .api(kind)
            .replace(name, &Default::default(), &object)
            .await;
        written.expect("it is handed over");
    }
    let child = scenario.until_text("a", "2").await;
    assert_eq!(child.metadata.uid, before);
    scenario.until_ready("p").await;
    scenario.remove(PUPPET, "p").await;
}
