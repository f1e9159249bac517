//! A host with exactly the permissions that `operator-host rbac` prints for its ceilings.

use super::*;

/// The role that `limited` applies for the whole cluster.
const ROLE: &str = "rbac.authorization.k8s.io/v1/ClusterRole";

impl World {
    /// Changes the rules of the host's role for the whole cluster.
    async fn change_rules(&self, change: impl FnOnce(&mut Vec<Value>)) {
        let name = &self.namespace;
        let mut rules = self.get(ROLE, name).await.unwrap().data["rules"].clone();
        change(rules.as_array_mut().unwrap());
        self.patch(ROLE, name, json!({ "rules": rules })).await;
    }

    async fn grant(&self, resource: &str) {
        let verbs = ["list", "watch", "patch"];
        let rule = json!({"apiGroups": ["test.operator-host.dev"], "resources": [resource], "verbs": verbs});
        self.change_rules(|rules| rules.push(rule)).await;
    }

    async fn revoke(&self, resource: &str) {
        self.change_rules(|rules| rules.retain(|rule| !allows(rule, resource, "list")))
            .await;
    }
}

/// Starts a host of a ServiceAccount with these roles, as `rbac` prints them, except for what `left_out` picks.
async fn limited(name: &str, left_out: impl Fn(&Value) -> bool) -> (World, Host) {
    let mut world = World::new(name).await;
    let text = "plugins: .\nceilings:\n- parents: [{apiGroups: [test.operator-host.dev], kinds: [Puppet]}]\n  \
                children: [{apiGroups: [''], kinds: [ConfigMap]}]\n  reads: [{apiGroups: [''], kinds: [ConfigMap]}]\n\
                controllers: []\n";
    let config = world.file("config.yaml", text);
    let crds = crate::support::root().join("tests/fixtures/puppet/crds.yaml");
    let account = format!("{name}/{name}");
    let mut command = program(&["rbac", "--service-account", &account, "-o", "json", "--config"]);
    let printed = command.arg(&config).arg("--crd").arg(crds).prints();
    let list: Value = serde_json::from_str(&printed).unwrap_or_else(|_| panic!("no roles"));
    let mut roles = list["items"].as_array().unwrap().clone();
    for role in &mut roles {
        if let Some(Value::Array(rules)) = role.get_mut("rules") {
            rules.retain(|rule| !left_out(rule));
        }
    }
    world.scenario = world.scenario.with_account(&world.cluster, &roles).await;
    let host = world.start_with(&config, &[]);
    (world, host)
}

#[tokio::test]
async fn the_printed_permissions_are_enough_for_a_controller_of_the_cluster() {
    let (world, host) = limited("controllers-rights", |_| false).await;
    world.put(&puppet(1)).await;
    // Parents in the host's own namespace need an order of the file.
    world
        .controller("puppet", json!({"onRemoval": "releaseFinalizers"}))
        .await;
    world.runs("puppet").await;
    world.served("a").await;
    let log = host.log();
    for problem in [
        "cannot write the Controller",
        "cannot read the ConfigMap",
        "cannot record",
    ] {
        assert!(!log.contains(problem), "{log}");
    }
    // Regression: the host needed the verb `get` on parents to release them.
    world.remove(CONTROLLER, "puppet").await;
    let parent = world.get(PUPPET, "a").await.unwrap();
    assert!(parent.finalizers().is_empty(), "{parent:?}");
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_host_that_may_not_write_the_status_runs_the_controller_and_says_so() {
    let is_status = |rule: &Value| rule["resources"] == json!(["controllers/status"]);
    let (world, host) = limited("controllers-no-status", is_status).await;
    world.put(&puppet(1)).await;
    world.controller("puppet", json!({})).await;
    host.until_log("controller started … puppet").await;
    host.until_log("cannot write the Controller … controllers/status")
        .await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Whether a rule is for this resource, and has the verb.
fn allows(rule: &Value, resource: &str, verb: &str) -> bool {
    let has = |list: &Value, word: &str| list.as_array().is_some_and(|list| list.contains(&json!(word)));
    has(&rule["resources"], resource) && has(&rule["verbs"], verb)
}

#[tokio::test]
async fn a_controller_says_which_permission_is_missing_until_it_is_granted() {
    let (world, host) = limited("controllers-no-parents", |rule| allows(rule, "puppets", "list")).await;
    world.put(&puppet(1)).await;
    world.controller("puppet", json!({})).await;
    let says = "Stalled=True Forbidden: puppets.test.operator-host.dev is forbidden … cannot list";
    world.says("puppet", says).await;
    world.says("puppet", "Ready=False Forbidden").await;
    world.says("puppet", "Progressing=False Forbidden").await;
    world.grant("puppets").await;
    world.runs("puppet").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_config_map_that_the_host_may_not_read_is_named_with_what_to_do() {
    let (world, host) = limited("controllers-no-plugin", |rule| allows(rule, "configmaps", "list")).await;
    world.put(&puppet(1)).await;
    world.controller("puppet", json!({})).await;
    let says = "Stalled=True Forbidden: controllers-no-plugin/puppet-plugin … configmaps is forbidden … operator-host rbac";
    world.says("puppet", says).await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Section "users who may create or change Controllers" of the threat model.
#[tokio::test]
async fn a_tenant_reaches_no_secrets_and_no_other_controllers_and_one_without_its_children_is_not_ready() {
    let (world, host) = limited("controllers-tenant", |_| false).await;
    let secret = json!([{"apiVersion": "v1", "kind": "Secret"}]);
    let elsewhere = json!({"configMap": {"name": "a", "namespace": "kube-system", "key": "a.wasm"}});
    for (name, more, ceiling) in [
        ("reads", json!({"reads": secret}), "ceilings[0].reads"),
        ("makes", json!({"children": secret}), "ceilings[0].children"),
        (
            "everywhere",
            json!({"otherNamespaces": ["kube-system"]}),
            "ceilings[0].otherNamespaces",
        ),
        (
            "acts",
            json!({"serviceAccount": "kube-system/default"}),
            "ceilings[0].serviceAccounts",
        ),
        (
            "loads",
            json!({"plugin": elsewhere}),
            "no entry of `ceilings` … kube-system … `configMaps`",
        ),
        (
            "opens",
            json!({"plugin": "/etc/passwd"}),
            "no entry of `ceilings` … a file as the plugin (`files`)",
        ),
    ] {
        world.controller(name, more).await;
        world
            .says(name, &format!("Stalled=True NotAllowed: {ceiling}"))
            .await;
    }
    // A plugin that wants one is refused, too, whatever its Controller says.
    world.put(&puppet(1)).await;
    world.controller("puppet", json!({})).await;
    world.runs("puppet").await;
    let token = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}});
    world.wants("greedy", &[token]).await;
    let says = "Stalled=True ChildRefused";
    let message = world.until_told("greedy", says).await;
    assert_contains(&message, "Secret");
    // The host loses the right to watch its children.
    world.revoke("configmaps").await;
    let says = "Ready=False Forbidden: configmaps is forbidden … cannot list";
    world.says("puppet", says).await;
    assert_eq!(host.stop().await.code(), Some(0));
}
