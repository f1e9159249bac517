//! `operator-host uninstall`: no parent waits for a host that is no longer there.

use crate::support::prelude::*;

const FINALIZER: &str = "operator-host.dev/puppet";
const CONTROLLER: &str = "\
- name: puppet
  parent: {apiVersion: test.operator-host.dev/v1, kind: Puppet}
  plugin: puppet.wasm
  children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: v1, kind: PersistentVolumeClaim}]
  backoff: {initial: 50ms, max: 500ms}
";

fn uninstall(scenario: &Scenario, more: &[&str]) -> Command {
    let config = scenario.folder.path().join("config.yaml").display().to_string();
    scenario.program(&[&["uninstall", "--config", &config], more].concat())
}

async fn finalizers(scenario: &Scenario, name: &str) -> Vec<String> {
    scenario
        .get(PUPPET, name)
        .await
        .expect("the parent")
        .finalizers()
        .to_vec()
}

#[tokio::test]
async fn the_finalizers_are_released_and_the_children_stay() {
    let scenario = Scenario::new("uninstall").await;
    let host = scenario.start(CONTROLLER);
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    scenario
        .puppet("a", json!({"response": {"children": [config_map("a", "1"), claim], "status": {"note": "the plugin's"}}}))
        .await;
    scenario.wants("b", &[config_map("b", "1")]).await;
    for name in ["a", "b"] {
        scenario.until_ready(name).await;
    }
    assert_eq!(host.stop().await.code(), Some(0));
    // Another controller's, of an earlier configuration, and somebody else's.
    let others = ["operator-host.dev/old", "example.com/theirs"];
    let patch = json!({ "metadata": { "finalizers": [FINALIZER, others[0], others[1]] } });
    scenario.patch(PUPPET, "a", patch).await;
    // Deleted after the host has ended: nothing blocks it.
    scenario.delete(PUPPET, "b").await;
    assert_eq!(finalizers(&scenario, "b").await, [FINALIZER]);

    let dry = uninstall(&scenario, &["--dry-run"]).ends(0);
    assert_contains(&dry, "2 of 2 parents would be released");
    let expected = [FINALIZER, others[0], others[1]];
    assert_eq!(finalizers(&scenario, "a").await, expected);

    // The plugins' folder may have been deleted as well.
    let file = scenario.folder.path().join("config.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("plugins: ", "plugins: /nonexistent")).unwrap();
    let printed_text = uninstall(&scenario, &[]).ends(0);
    let words = "2 of 2 parents released … uninstall/b released: it is being deleted and skips its cleanup … \
         the host's conditions were removed from the status of 2 parents";
    assert_contains(&printed_text, words);
    // Nobody updates the conditions any more.
    let status = &scenario.get(PUPPET, "a").await.unwrap().data["status"];
    assert_eq!(*status, json!({ "note": "the plugin's" }));
    assert_eq!(finalizers(&scenario, "a").await, others);
    scenario.until_gone(PUPPET, "b").await;
    assert!(scenario.get(CONFIG_MAP, "a").await.is_some());
    scenario.until_gone(CONFIG_MAP, "b").await;
    let printed = uninstall(&scenario, &[]).ends(0);
    assert_contains(&printed, "0 of 1 parents released");
    scenario.set_finalizers(PUPPET, "a", &[]).await;
}

#[tokio::test]
async fn without_the_right_to_release_the_parent_that_keeps_its_finalizer_is_named() {
    let cluster = crate::support::cluster().await;
    let scenario = Scenario::new("uninstall-refused").await;
    let host = scenario.start(CONTROLLER);
    scenario.ready_with("a", json!({ "response": {} })).await;
    assert_eq!(host.stop().await.code(), Some(0));
    let scenario = scenario.with_kubeconfig(cluster.kubeconfig_of(crate::support::LIMITED).unwrap());
    let printed = uninstall(&scenario, &[]).ends(1);
    let words = "cannot list test.operator-host.dev/v1/Puppet in uninstall-refused … is forbidden";
    assert_contains(&printed, words);
    assert_eq!(finalizers(&scenario, "a").await, [FINALIZER]);
    scenario.set_finalizers(PUPPET, "a", &[]).await;
}

#[tokio::test]
async fn it_refuses_while_a_host_holds_the_lease_and_goes_on_once_that_is_released() {
    let scenario = Scenario::new("uninstall-leased").await;
    let config = scenario.config(CONTROLLER);
    let text = format!(
        "leadership: single\nlease: {{namespace: uninstall-leased}}\n{}",
        std::fs::read_to_string(&config).unwrap()
    );
    std::fs::write(&config, text).unwrap();
    let host = scenario.start_with(&config, &[]);
    scenario.ready_with("a", json!({ "response": {} })).await;
    let warned = uninstall(&scenario, &["--dry-run"]).ends(0);
    let words = "warning: a running host would restore … 1 of 1 parents would be released";
    assert_contains(&warned, words);
    let printed = uninstall(&scenario, &["-n", "elsewhere"]).ends(1);
    let words = "kubectl scale deployment operator-host -n elsewhere --replicas=0 … \
         holds the Lease uninstall-leased/operator-host";
    assert_contains(&printed, words);
    assert_eq!(finalizers(&scenario, "a").await, [FINALIZER]);
    assert_eq!(host.stop().await.code(), Some(0));
    uninstall(&scenario, &[]).ends(0);
    assert!(finalizers(&scenario, "a").await.is_empty());
}
