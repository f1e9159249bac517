//! A host whose caches are behind the cluster.

use crate::support::prelude::*;
use control_plane::manifests;
use control_plane::proxy::Seen;

use crate::leadership::leaders::shared;

/// Silences the watches of a resource, by its plural.
pub(crate) fn hold(proxy: &Proxy, resource: &str) {
    proxy.set_mode_of(&format!("/{resource}?&watch=true"), Mode::Stall);
}

/// Starts a host whose requests go through a proxy, with the puppet's controller and these `options`.
pub(crate) async fn behind_a_proxy(scenario: &Scenario, options: &str) -> (Proxy, Host) {
    let proxy = Proxy::start(scenario.kubeconfig()).await.expect("a proxy");
    let host = through(scenario, &proxy, &controller("puppet.wasm", options));
    (proxy, host)
}

fn through(scenario: &Scenario, proxy: &Proxy, controllers: &str) -> Host {
    let config = scenario.config(controllers);
    Host::through(&config, &proxy.kubeconfig(), "host", scenario.folder.path())
}

/// Starts a host with these controllers. Its requests whose path contains `part` are refused as forbidden.
pub(crate) async fn refusing(scenario: &Scenario, part: &str, controllers: &str) -> (Proxy, Host) {
    let proxy = Proxy::start(scenario.kubeconfig()).await.expect("a proxy");
    proxy.set_mode_of(part, Mode::refuse(403));
    let host = through(scenario, &proxy, controllers);
    (proxy, host)
}

/// Starts a second host, with a log of its own.
fn second_through(scenario: &Scenario, proxy: &Proxy, config: &Path) -> Host {
    let folder = scenario.folder.path().join("second");
    std::fs::create_dir_all(&folder).unwrap();
    Host::through(config, &proxy.kubeconfig(), "second", &folder)
}

async fn uid_of(scenario: &Scenario, kind: &str, name: &str) -> Option<String> {
    scenario.get(kind, name).await.unwrap().metadata.uid
}

/// Reports whether a request applies the ConfigMap `a`.
fn applies_a(seen: &Seen) -> bool {
    seen.method == "PATCH" && seen.uri.contains("/configmaps/a?")
}

/// Returns the writes to the ConfigMaps of a scenario, such as `patch a`.
async fn writes_of_children(scenario: &Scenario) -> Vec<String> {
    writes_to(&scenario.all_writes(cluster().await).await, "configmaps")
}

/// Returns how often the ConfigMap `a` was applied.
async fn applied(scenario: &Scenario) -> usize {
    let writes = writes_of_children(scenario).await;
    writes.iter().filter(|write| *write == "patch a").count()
}

/// Removes the finalizer of the puppet `p`, deletes it, and waits until its ConfigMap `a` is deleted, too.
async fn delete_with_its_child(scenario: &Scenario) {
    scenario.set_finalizers(PUPPET, "p", &[]).await;
    scenario.delete(PUPPET, "p").await;
    scenario.until_gone(CONFIG_MAP, "a").await;
}

/// Starts a cluster with the kinds of the tests, but without a garbage collector.
async fn own_cluster_without_controllers(options: Options) -> ControlPlane {
    let cluster = ControlPlane::start(options).await.expect("a control plane");
    let client = cluster.client().await.expect("a client");
    let kinds = manifests::read(&root().join("tests/fixtures/puppet/crds.yaml")).expect("the kinds");
    manifests::apply(&client, &kinds).await.expect("the kinds");
    cluster
}

/// Regression: a new leader whose watch of the parents was behind deleted the children of its predecessor.
#[tokio::test]
async fn a_new_leader_undoes_nothing_of_a_spec_that_it_has_not_seen() {
    let scenario = Scenario::new("time-travel").await;
    let config = shared(&scenario, ["3s", "2s", "500ms"], &controller("puppet.wasm", ""));
    let children = |names: &[(&str, &str)]| {
        let children: Vec<_> = names.iter().map(|(name, text)| config_map(name, text)).collect();
        json!({"response": {"children": children}})
    };
    let first = scenario.start_named("first", &config);
    scenario.ready_with("p", children(&[("a", "1")])).await;

    // The other replica knows the current parent, but none of the later changes.
    let proxy = Proxy::start(scenario.kubeconfig()).await.expect("a proxy");
    let second = second_through(&scenario, &proxy, &config);
    second.until_log("controller started").await;
    hold(&proxy, "puppets");
    let both = children(&[("a", "2"), ("b", "1")]);
    let ready = scenario.ready_with("p", both).await;
    let b = uid_of(&scenario, CONFIG_MAP, "b").await;
    first.kill();
    second.until_reconciles("time-travel/p", 1).await;
    let words = "a child was created from a newer generation";
    second.until_log(words).await;

    assert_eq!(uid_of(&scenario, CONFIG_MAP, "b").await, b);
    assert_eq!(scenario.text_of("a").await, "2");
    let status = &scenario.get(PUPPET, "p").await.unwrap().data["status"];
    assert_eq!(status["observedGeneration"].as_i64(), ready.metadata.generation);
    let mut writes = writes_of_children(&scenario).await;
    // The two writes of the second reconcile are sent concurrently.
    writes[1..].sort();
    assert_eq!(writes, ["patch a", "patch a", "patch b"]);

    // It processes the parent again once the watch delivers it.
    proxy.set_mode(Mode::Pass);
    scenario.puppet("p", children(&[("b", "1")])).await;
    scenario.until_gone(CONFIG_MAP, "a").await;
}

/// Regression: a host that received the deletion of children before that of their parent recreated them.
#[tokio::test]
async fn children_that_go_with_a_parent_are_not_recreated_by_a_host_that_has_not_seen_the_deletion() {
    let scenario = Scenario::new("late-news").await;
    let (proxy, host) = behind_a_proxy(&scenario, "resync: 200ms").await;
    let children = json!({"response": {"children": [config_map("a", "1")]}});
    scenario.ready_with("p", children).await;
    host.until_reconciles("late-news/p", 1).await;
    hold(&proxy, "puppets");
    let before = host.log().matches("reconcile done").count();
    delete_with_its_child(&scenario).await;
    // Not only in the first reconcile afterwards: it must remember the API server's answer.
    host.until_reconciles("late-news/p", before + 4).await;
    assert_eq!(applied(&scenario).await, 1);
    // And it recreates them where the parent still exists.
    proxy.set_mode(Mode::Pass);
    let children = json!({"response": {"children": [config_map("a", "2")]}});
    scenario.ready_with("p", children).await;
    scenario.delete(CONFIG_MAP, "a").await;
    let is_new = |a: &DynamicObject| a.metadata.deletion_timestamp.is_none();
    scenario.until(CONFIG_MAP, "a", "recreated", is_new).await;
}

/// Regression: the same, when they were deleted during a call of the plugin.
#[tokio::test]
async fn children_that_go_during_a_call_are_not_recreated_for_a_parent_that_is_deleted_too() {
    deleted_during_a_call("late-call", false).await;
}

/// Regression: the host had received the deletion of the parent, and no longer checked it when it received that of
/// the children.
#[tokio::test]
async fn children_that_go_during_a_call_are_not_recreated_for_a_parent_that_is_known_to_be_gone() {
    deleted_during_a_call("seen-call", true).await;
}

/// Deletes a parent and its child while the plugin is called, and expects that the child is not recreated. `seen`:
/// the host's watches deliver both deletions, not only the child's.
async fn deleted_during_a_call(namespace: &str, seen: bool) {
    let scenario = Scenario::new(namespace).await;
    let (proxy, host) = behind_a_proxy(&scenario, "limits: {deadline: 20s}").await;
    let children = json!({"children": [config_map("a", "1")]});
    scenario.ready_with("p", json!({ "response": children })).await;
    let busy = json!({"busy": 400, "response": children});
    scenario.puppet("p", busy).await;
    host.until_log("busy").await;
    if !seen {
        hold(&proxy, "puppets");
    }
    let before = host.log().matches("reconcile done").count();
    delete_with_its_child(&scenario).await;
    let now = host.log().matches("reconcile done").count();
    assert_eq!(now, before, "the call is under way");
    host.until_reconciles(&format!("{namespace}/p"), before + 1).await;
    // Once for each generation of the parent.
    assert!(applied(&scenario).await <= 2);
    let maps = scenario.api(CONFIG_MAP);
    assert!(maps.get_opt("a").await.expect("an answer").is_none());
}

/// The answer to a status write may contain a spec that the watch has not reported. The cache takes it, and drops the
/// watch's later report as known: the answer itself must enqueue the parent.
#[tokio::test]
async fn a_spec_that_is_first_seen_in_the_answer_to_a_status_write_is_reconciled() {
    let scenario = Scenario::new("answered-spec").await;
    let reading = "reads: [{apiVersion: v1, kind: ConfigMap}]";
    let (proxy, _host) = behind_a_proxy(&scenario, reading).await;
    let settings = |text: &str| config_map("settings", text).to_string();
    let need = json!({"id": "n", "apiVersion": "v1", "kind": "ConfigMap", "name": "settings"});
    let spec = |text: &str| json!({"response": {"children": [config_map("a", text)], "needs": [need], "status": {"read": "$texts"}}});
    let reads = |text: &'static str| {
        move |puppet: &DynamicObject| puppet.data["status"]["read"] == json!({"n": [text]})
    };
    scenario.apply(&settings("before")).await;
    scenario.puppet("p", spec("1")).await;
    scenario.until(PUPPET, "p", "read", reads("before")).await;
    scenario.until_ready("p").await;
    // The host does not hear of the new spec, and writes a status for another reason.
    hold(&proxy, "puppets");
    scenario.puppet("p", spec("2")).await;
    scenario.apply(&settings("after")).await;
    scenario.until(PUPPET, "p", "read again", reads("after")).await;
    proxy.set_mode(Mode::Pass);
    scenario.until_text("a", "2").await;
}

/// Regression: a child was deleted by its UID alone, though a user had just taken it from its parent.
#[tokio::test]
async fn a_child_that_a_user_has_released_is_not_deleted() {
    let scenario = Scenario::new("released").await;
    let (proxy, host) = behind_a_proxy(&scenario, "").await;
    scenario.ready_wants("p", &[config_map("a", "1")]).await;
    host.until_reconciles("released/p", 1).await;
    hold(&proxy, "configmaps");
    let released = json!({"metadata": {"labels": null, "ownerReferences": null}});
    scenario.patch(CONFIG_MAP, "a", released).await;
    scenario.wants("p", &[]).await;
    proxy
        .until_seen(|seen| seen.method == "DELETE" && seen.uri.contains("/configmaps/a"))
        .await;
    let before = host.reconciles("released/p");
    proxy.set_mode(Mode::Pass);
    host.until_reconciles("released/p", before + 1).await;
    assert!(scenario.get(CONFIG_MAP, "a").await.is_some());
}

/// Regression: an API server that has just started answers 404 for the kinds of definitions. Taken for a deletion of
/// the object, that left its finalizer and its status as they were until the next resync.
#[tokio::test]
async fn a_kind_that_is_not_served_for_a_moment_is_no_deletion_of_its_objects() {
    let scenario = Scenario::new("not-served").await;
    let (proxy, _host) = behind_a_proxy(&scenario, "").await;
    let spec = |text: &str| json!({"response": {"children": [config_map("a", text)], "status": {"text": text}}, "cleanup": {"done": true}});
    let not_served = Mode::refuse(404);
    let refused = |seen: &Seen| seen.method == "PATCH" && seen.refused == Some(404);
    scenario.ready_with("p", spec("1")).await;
    proxy.set_mode_of("/puppets/p/status?", not_served.clone());
    scenario.puppet("p", spec("2")).await;
    proxy.until_seen(refused).await;
    proxy.set_mode(Mode::Pass);
    let follows = |p: &DynamicObject| p.data["status"]["text"] == "2";
    scenario.until(PUPPET, "p", "a status of its spec", follows).await;
    drop(proxy.take_seen());
    proxy.set_mode_of("/puppets/p?", not_served);
    scenario.delete(PUPPET, "p").await;
    proxy.until_seen(refused).await;
    proxy.set_mode(Mode::Pass);
    scenario.until_gone(PUPPET, "p").await;
}

/// Regression: an object that took the name of a child, unknown to the host, was overwritten by force.
#[tokio::test]
async fn an_object_that_has_a_child_s_name_by_now_is_not_overwritten() {
    let scenario = Scenario::new("another-uid").await;
    let (proxy, host) = behind_a_proxy(&scenario, "").await;
    let spec = |text: &str| json!({"response": {"children": [config_map("a", text)]}});
    scenario.ready_with("p", spec("1")).await;
    host.until_reconciles("another-uid/p", 1).await;
    hold(&proxy, "configmaps");
    scenario.delete(CONFIG_MAP, "a").await;
    scenario.apply(&config_map("a", "user").to_string()).await;
    let reconciles = host.reconciles("another-uid/p");
    scenario.puppet("p", spec("2")).await;
    host.until_reconciles("another-uid/p", reconciles + 2).await;
    let users = scenario.get(CONFIG_MAP, "a").await.unwrap();
    assert_eq!(users.data["data"]["text"], "user");
    assert_eq!(users.metadata.owner_references, None);
    proxy.set_mode(Mode::Pass);
    scenario.until_stalled("p", "ChildRefused").await;
    assert_eq!(scenario.text_of("a").await, "user");
}

/// Regression: an object that others made just before the host's first apply became the child, where no field of theirs
/// was in conflict.
#[tokio::test]
async fn an_object_that_others_made_before_the_host_saw_it_is_not_taken_over() {
    let scenario = Scenario::new("made-before").await;
    let (proxy, host) = behind_a_proxy(&scenario, "").await;
    host.until_log("controller started").await;
    hold(&proxy, "configmaps");
    let users =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"user": "u"}});
    let users = scenario.apply(&users.to_string()).await;
    drop(proxy.take_seen());
    scenario.wants("p", &[config_map("a", "1")]).await;
    proxy.until_seen(applies_a).await;
    let before = host.reconciles("made-before/p");
    host.until_reconciles("made-before/p", before + 1).await;
    let now = scenario.get(CONFIG_MAP, "a").await.unwrap();
    assert_eq!(now.metadata.resource_version, users.metadata.resource_version);
    // It is refused by name once the host sees it, and the parent gets its child when it is gone.
    proxy.set_mode(Mode::Pass);
    scenario.until_stalled("p", "ChildRefused").await;
    scenario.delete(CONFIG_MAP, "a").await;
    scenario.until_ready("p").await;
}

/// Regression: of two parents that named one new child at the same moment, the second took it from the first.
#[tokio::test]
async fn of_two_parents_that_create_one_child_at_once_the_first_has_it() {
    let scenario = Scenario::new("two-at-once").await;
    let (proxy, host) = behind_a_proxy(&scenario, "").await;
    host.until_log("controller started").await;
    // Both requests wait in the proxy, and so do the watches.
    proxy.set_mode_of("/configmaps", Mode::Stall);
    let children = json!({"response": {"children": [config_map("a", "1")]}});
    for name in ["p", "q"] {
        drop(proxy.take_seen());
        scenario.puppet(name, children.clone()).await;
        proxy.until_seen(applies_a).await;
    }
    proxy.set_mode(Mode::Pass);
    let is_settled = |puppet: &DynamicObject| {
        let conditions = puppet.data["status"]["conditions"].to_string();
        conditions.contains("\"Reconciled\"") || conditions.contains("ChildRefused")
    };
    for name in ["p", "q"] {
        scenario.until(PUPPET, name, "settled", is_settled).await;
    }
    let writes = scenario.all_writes(cluster().await).await;
    let answers: Vec<_> = writes
        .iter()
        .filter(|write| write.object_ref.as_ref().is_some_and(|object| object.name == "a"))
        .filter_map(|write| write.response_status.as_ref().map(|status| status.code))
        .collect();
    let created = answers.iter().filter(|code| **code == 201).count();
    assert_eq!(created, 1, "{answers:?}");
    assert!(answers.contains(&409) && !answers.contains(&200), "{answers:?}");
    let child = scenario.get(CONFIG_MAP, "a").await.unwrap();
    assert_eq!(child.metadata.owner_references.unwrap().len(), 1);
}

/// Regression: the status after a failure restored outdated values of others' fields by force.
#[tokio::test]
async fn a_failure_s_status_leaves_alone_what_another_manager_writes() {
    let scenario = Scenario::new("shared-status").await;
    let spec =
        json!({"response": {"children": [config_map("a", "1")], "status": {"note": "n", "count": "$count"}}});
    scenario.puppet("p", spec).await;
    // Without force: a field that the host had taken over would be a conflict.
    let backup = async |text: &str| {
        let status = json!({
            "apiVersion": "test.operator-host.dev/v1", "kind": "Puppet", "metadata": {"name": "p"},
            "status": {"backup": text},
        });
        let params = PatchParams::apply("backup");
        let api = scenario.api(PUPPET);
        api.patch_status("p", &params, &Patch::Apply(status))
            .await
            .expect("it is the backup's own field")
    };
    backup("old").await;
    let (proxy, _host) = behind_a_proxy(&scenario, "").await;
    scenario.until_ready("p").await;
    hold(&proxy, "puppets");
    backup("new").await;
    // Deleting a child makes the next reconcile fail, for a parent that differs from the host's cache.
    let other = scenario.apply(&config_map("other", "").to_string()).await;
    let owner = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": other.metadata.uid, "controller": true,
    }]);
    let owned = json!({"metadata": {"ownerReferences": owner}});
    scenario.patch(CONFIG_MAP, "a", owned).await;
    scenario.until_stalled("p", "ChildRefused").await;
    let status = &scenario.get(PUPPET, "p").await.unwrap().data["status"];
    assert_eq!(
        *status,
        json!({
            "backup": "new", "note": "n", "count": 1,
            "conditions": status["conditions"], "observedGeneration": status["observedGeneration"],
        })
    );
    backup("newer").await;
    proxy.set_mode(Mode::Pass);
    scenario.delete(CONFIG_MAP, "a").await;
    let ready = scenario.until_ready("p").await;
    assert_eq!(ready.data["status"]["backup"], "newer");
}

/// Regression: without a garbage collector, a new parent waited forever for its predecessor's children.
#[tokio::test]
async fn the_children_of_a_predecessor_are_cleared_away_without_a_garbage_collector() {
    let options = Options {
        audit: true,
        ..Options::bare()
    };
    let cluster = own_cluster_without_controllers(options).await;
    let scenario = Scenario::within(&cluster, "no-collector").await;
    let kinds =
        "children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: v1, kind: Secret, onRemoval: retain}]";
    let deleting = kinds.replace("onRemoval: retain", "onRemoval: delete");
    let host = scenario.start(&controller("puppet.wasm", &deleting));
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": "b"}});
    let spec = json!({"response": {"children": [config_map("a", "1"), secret]}});
    let made = scenario.puppet("p", spec.clone()).await;
    scenario.until_ready("p").await;
    let before = [
        uid_of(&scenario, CONFIG_MAP, "a").await,
        uid_of(&scenario, "v1/Secret", "s").await,
    ];
    // Secrets are retained now.
    assert_eq!(host.stop().await.code(), Some(0));
    let _host = scenario.start(&controller("puppet.wasm", kinds));
    scenario.remove(PUPPET, "p").await;
    let again = scenario.puppet("p", spec).await;
    assert_ne!(again.metadata.uid, made.metadata.uid);
    scenario.until_ready("p").await;
    let child = scenario.get(CONFIG_MAP, "a").await.unwrap();
    assert_ne!(child.metadata.uid, before[0]);
    let owners = child.metadata.owner_references.unwrap();
    assert_eq!(Some(&owners[0].uid), again.metadata.uid.as_ref());
    let secret = scenario.get("v1/Secret", "s").await.unwrap();
    assert_eq!(secret.metadata.uid, before[1], "what is retained is taken up");
    assert_eq!(secret.metadata.owner_references, None);
    let says = "Normal ChildrenChanged: deleted ConfigMap a";
    scenario.until_event("p", says).await;
}

/// A host that knows only the predecessor treats the children of the current parent as somebody else's.
#[tokio::test]
async fn the_children_of_a_successor_are_not_deleted_for_its_predecessor() {
    let scenario = Scenario::new("successor").await;
    let config = shared(&scenario, ["3s", "2s", "500ms"], &controller("puppet.wasm", ""));
    let spec = json!({"response": {"children": [config_map("a", "1")]}});
    let first = scenario.start_named("first", &config);
    scenario.ready_with("p", spec.clone()).await;
    let proxy = Proxy::start(scenario.kubeconfig()).await.expect("a proxy");
    // It lists the parents before the change, and their children after it, so it never receives the deletion of a
    // child.
    proxy.set_mode_of("/configmaps?", Mode::Stall);
    let second = second_through(&scenario, &proxy, &config);
    let watches_parents = |seen: &Seen| seen.is_watch() && seen.uri.contains("/puppets?");
    proxy.until_seen(watches_parents).await;
    let all_lists_and_watches = "s?";
    proxy.set_mode_of(all_lists_and_watches, Mode::Stall);
    scenario.remove(PUPPET, "p").await;
    let successor = scenario.puppet("p", spec).await;
    let is_its = |child: &DynamicObject| {
        let owners = child.metadata.owner_references.as_ref();
        owners.is_some_and(|owners| Some(&owners[0].uid) == successor.metadata.uid.as_ref())
    };
    let child = scenario.until(CONFIG_MAP, "a", "the successor's", is_its).await;
    scenario.until_ready("p").await;
    hold(&proxy, "puppets");
    second.until_log("controller started").await;
    first.kill();
    let words = "the parent was replaced: leaving its children alone";
    second.until_log(words).await;
    second.until_reconciles("successor/p", 2).await;
    assert_eq!(uid_of(&scenario, CONFIG_MAP, "a").await, child.metadata.uid);
    proxy.set_mode(Mode::Pass);
    scenario.until_ready("p").await;
    assert_eq!(uid_of(&scenario, CONFIG_MAP, "a").await, child.metadata.uid);
}

/// Regression: a child of an earlier parent that could not be deleted discarded what the plugin answered for the new one.
#[tokio::test]
async fn what_an_earlier_parent_has_left_does_not_stop_the_next_one() {
    let cluster = own_cluster_without_controllers(Options::bare()).await;
    let scenario = Scenario::within(&cluster, "left-over").await;
    let (_proxy, host) = refusing(&scenario, "/configmaps/left", &controller("puppet.wasm", "")).await;
    let spec =
        |text: &str| json!({"response": {"children": [config_map("a", text)], "status": {"text": text}}});
    scenario.ready_with("p", spec("1")).await;
    let mut left = config_map("left", "1");
    left["metadata"]["labels"] = json!({"operator-host.dev/controller": "puppet"});
    left["metadata"]["annotations"] = json!({"operator-host.dev/parent": "left-over/p"});
    left["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "test.operator-host.dev/v1", "kind": "Puppet", "name": "p", "controller": true,
        "uid": "00000000-0000-4000-8000-000000000000",
    }]);
    scenario.apply(&left.to_string()).await;
    host.until_log("cannot delete the children of an earlier Puppet left-over/p")
        .await;
    let puppet = scenario.ready_with("p", spec("2")).await;
    assert_eq!(puppet.data["status"]["text"], "2");
}
