//! A host with exactly the permissions that `operator-host rbac` prints for its ceilings.

use super::*;

/// Starts a host of a ServiceAccount with these roles, as `rbac` prints them, except for what `left_out` picks.
async fn limited(name: &str, left_out: impl Fn(&Value) -> bool) -> (World, Host) {
    let mut world = World::new(name).await;
    let text = "plugins: .\nceilings:\n  parents: [{apiGroups: [test.operator-host.dev], kinds: [Puppet]}]\n  \
                children: [{apiGroups: [''], kinds: [ConfigMap]}]\n  reads: [{apiGroups: [''], kinds: [ConfigMap]}]\n\
                controllers: []\n";
    let config = world.scenario.file("config.yaml", text);
    let crds = crate::support::root().join("tests/fixtures/puppet/crds.yaml");
    let printed = program(&[
        "rbac",
        "--service-account",
        &format!("{name}/{name}"),
        "--config",
        config.to_str().unwrap(),
        "--crd",
        crds.to_str().unwrap(),
        "-o",
        "json",
    ]);
    let list: Value = serde_json::from_str(&printed.out).unwrap_or_else(|_| panic!("no roles"));
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
    world.scenario.apply(&account.to_string()).await;
    for role in list["items"].as_array().unwrap() {
        let mut role = role.clone();
        if let Some(Value::Array(rules)) = role.get_mut("rules") {
            rules.retain(|rule| !left_out(rule));
        }
        world.scenario.apply(&role.to_string()).await;
    }
    let kubeconfig = world.cluster.kubeconfig_of_account(name, name).await.unwrap();
    world.scenario = world.scenario.with_kubeconfig(kubeconfig);
    let host = world.scenario.start_with(&config, &[]);
    (world, host)
}

#[tokio::test]
async fn the_printed_permissions_are_enough_for_a_controller_of_the_cluster() {
    let (world, host) = limited("controllers-rights", |_| false).await;
    world.put(&puppet(1)).await;
    // Parents in the host's own namespace need an order of the file.
    world.controller("puppet", json!({})).await;
    world.until("puppet", "Ready", "True", "Running").await;
    world.served("a").await;
    let log = host.log();
    for problem in [
        "cannot write the Controller",
        "cannot read the ConfigMap",
        "cannot record",
    ] {
        assert!(!log.contains(problem), "{log}");
    }
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_host_that_may_not_write_the_status_runs_the_controller_and_says_so() {
    let is_status = |rule: &Value| rule["resources"] == json!(["controllers/status"]);
    let (world, host) = limited("controllers-no-status", is_status).await;
    world.put(&puppet(1)).await;
    world.controller("puppet", json!({})).await;
    host.until_log(&["controller started", "puppet"]).await;
    host.until_log(&["cannot write the Controller", "controllers/status"])
        .await;
    assert_eq!(host.stop().await.code(), Some(0));
}
