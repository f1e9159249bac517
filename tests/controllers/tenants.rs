//! Teams that may write Controllers: none takes what another one has, and none learns of it.

use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};

use super::*;

const CRD: &str = "puppets.test.operator-host.dev";

fn is_held(object: &DynamicObject) -> bool {
    !object.finalizers().is_empty()
}

/// Regression: the older of two had the kind, so a team with an old Controller could take over the kind of any other team.
#[tokio::test]
async fn a_controller_keeps_its_kind_when_an_older_one_wants_it() {
    let world = World::new("controllers-kept").await;
    let host = world.start();
    let elsewhere = json!({"parent": {"apiVersion": "test.operator-host.dev/v1", "kind": "ClusterPuppet"}});
    world.controller("older", elsewhere).await;
    world.says("older", "Ready=False PluginRefused").await;
    world.put(&puppet(1)).await;
    world.controller("younger", json!({})).await;
    world.runs("younger").await;
    world.served("a").await;
    world.controller("older", json!({})).await;
    world.says("older", "Stalled=True KindTaken: younger").await;
    // The API server writes seconds, and this one has the better name.
    world.controller("a", json!({})).await;
    world.says("a", "Stalled=True KindTaken: younger").await;
    world.served("b").await;
    assert_eq!(host.stop().await.code(), Some(0));
    // A host that starts later, or another replica, knows it by the definition alone.
    let host = world.start();
    world.served("c").await;
    world.runs("younger").await;
    let others = ["a", "older"].map(|name| world.says(name, "Stalled=True KindTaken: younger"));
    futures::future::join_all(others).await;
    // A mistake does not lose the kind, also when nobody knows what it said before.
    world.controller("younger", json!({"resync": "soon"})).await;
    world.says("younger", "Stalled=True InvalidSpec").await;
    assert_eq!(host.stop().await.code(), Some(0));
    let host = world.start();
    world.until_stopped("younger").await;
    world.says("a", "Stalled=True KindTaken: younger").await;
    world.remove(CONTROLLER, "younger").await;
    world.runs("older").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Regression: it inherited the finalizers and children of the one before, and could release them without a clean-up.
#[tokio::test]
async fn a_controller_that_is_made_again_takes_over_only_when_the_definition_says_so() {
    let (world, host) = World::running("controllers-again", &puppet(1), json!({})).await;
    world.served("a").await;
    world.until_ready("a").await;
    world.remove(CONTROLLER, "puppet").await;
    world.delete(PUPPET, "a").await;
    let says = "Stalled=True NameUsedBefore: kubectl annotate crd";
    let again = json!({"onRemoval": "releaseFinalizers"});
    for forged in [false, true] {
        world.controller("puppet", again.clone()).await;
        world.says("puppet", says).await;
        if forged {
            let finalizers = json!({"metadata": {"finalizers": ["operator-host.dev/controller"]}});
            world.patch(CONTROLLER, "puppet", finalizers).await;
        }
        world.remove(CONTROLLER, "puppet").await;
        let puppet = world.get(PUPPET, "a").await;
        assert!(puppet.is_some_and(|puppet| is_held(&puppet)), "it was released");
        assert!(world.get(CONFIG_MAP, "a-child").await.is_some());
    }
    world.controller("puppet", again).await;
    let message = world.says("puppet", says).await;
    assert_eq!(host.stop().await.code(), Some(0));
    let host = world.start();
    // What the command in the message does.
    let command = message.split("kubectl annotate crd ").nth(1).expect("a command");
    let [crd, order, "--overwrite"] = command.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{command}");
    };
    assert_eq!(crd, CRD);
    let (key, value) = order.split_once('=').expect("an annotation");
    let order = json!({"metadata": {"annotations": {key: value}}});
    world.patch(DEFINITION, crd, order).await;
    world.runs("puppet").await;
    // It is cleaned up by the one that may.
    world.until_gone(PUPPET, "a").await;
    world.served("b").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Regression: one set of ceilings served all, so each team could use the accounts and plugins of the others.
#[tokio::test]
async fn each_team_has_the_ceilings_of_its_names_and_of_the_place_of_its_plugin() {
    let world = World::new("controllers-teams").await;
    world.create_namespace("teams-b").await;
    let text = "ceilings:\n\
        - names: [puppet]\n  configMaps: [controllers-teams]\n  parents: [{apiGroups: [test.operator-host.dev], kinds: [Puppet]}]\n  \
          children: [{apiGroups: [''], kinds: [ConfigMap]}]\n\
        - configMaps: [teams-b]\n  parents: [{apiGroups: [test.operator-host.dev], kinds: [ClusterPuppet]}]\n  \
          serviceAccounts: [teams-b/op]\n\
        controllers: []\n";
    let host = world.start_with(&world.file("config.yaml", text), &[]);
    world.put(&puppet(1)).await;
    let of_b = json!({"configMap": {"name": "puppet-plugin", "namespace": "teams-b"}});
    for (name, more, says) in [
        // The plugin of the other team, under a name of one's own.
        (
            "b",
            json!({}),
            "no entry of `ceilings` … named \"b\" … configMaps",
        ),
        // Its kind, and its account.
        ("b-kind", json!({"plugin": of_b}), "ceilings[1].parents"),
        (
            "puppet-b",
            json!({"serviceAccount": "teams-b/op"}),
            "no entry of `ceilings`",
        ),
    ] {
        world.controller(name, more).await;
        world
            .says(name, &format!("Stalled=True NotAllowed: {says}"))
            .await;
    }
    world
        .controller("puppet", json!({"serviceAccount": "teams-b/op"}))
        .await;
    let says = "Stalled=True NotAllowed: ceilings[0].serviceAccounts";
    world.says("puppet", says).await;
    world.controller("puppet", json!({})).await;
    world.runs("puppet").await;
    world.served("a").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// What controllers.md grants a team.
#[tokio::test]
async fn a_team_that_may_apply_controllers_by_name_can_create_and_change_no_others() {
    let name = "controllers-by-name";
    let world = World::new(name).await;
    world.create_account("team").await;
    let version = "rbac.authorization.k8s.io/v1";
    let role = json!({
        "apiVersion": version, "kind": "ClusterRole", "metadata": {"name": name},
        "rules": [{"apiGroups": ["operator-host.dev"], "resources": ["controllers"], "resourceNames": ["puppet"],
            "verbs": ["get", "create", "patch", "update", "delete"]}],
    });
    let binding = json!({
        "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "team", "namespace": name}],
    });
    world.apply(&role.to_string()).await;
    world.apply(&binding.to_string()).await;
    let kubeconfig = world.cluster.kubeconfig_of_account(name, "team").await.unwrap();
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let client = Client::try_from(config.unwrap()).unwrap();
    let team = Api::<DynamicObject>::all_with(client, &resource(CONTROLLER));
    let object = |name: &str| -> DynamicObject {
        let object = json!({
            "apiVersion": "operator-host.dev/v1alpha1", "kind": "Controller", "metadata": {"name": name},
            "spec": {"parent": {"apiVersion": "test.operator-host.dev/v1", "kind": "Puppet"},
                "plugin": {"configMap": {"name": "puppet-plugin"}}},
        });
        serde_json::from_value(object).unwrap()
    };
    let apply = PatchParams::apply("team");
    let refused = |error: kube::Error| matches!(error, kube::Error::Api(status) if status.code == 403);
    let other = team.patch("other", &apply, &Patch::Apply(object("other"))).await;
    assert!(refused(other.unwrap_err()));
    let created = team.create(&PostParams::default(), &object("puppet")).await;
    assert!(refused(created.unwrap_err()), "a name in the body proves nothing");
    team.patch("puppet", &apply, &Patch::Apply(object("puppet")))
        .await
        .expect("its own");
    let status = Patch::Merge(json!({"status": {"lastError": "forged"}}));
    let forged = team
        .patch_status("puppet", &PatchParams::default(), &status)
        .await;
    assert!(refused(forged.unwrap_err()));
    team.delete("puppet", &DeleteParams::default()).await.unwrap();
}

/// Regression: the status has no namespace, and had the words of a plugin about objects in any of them.
#[tokio::test]
async fn a_controller_says_nothing_about_single_objects_and_goes_with_its_definition_alone() {
    let (world, host) = World::running("controllers-words", &puppet(1), json!({})).await;
    let fails = json!({"1": {"failure": {"retry": {"message": "the password is hunter2"}}}});
    let spec = json!({"response": {"children": [config_map("their-child", "x")]}, "variants": fails});
    world.puppet("their-puppet", spec).await;
    world.until_ready("their-puppet").await;
    world.put(&variant(1)).await;
    let says = "PluginHeldBack=True Fails: it fails on 1 object … kubectl patch controllers.operator-host.dev puppet";
    world.says("puppet", says).await;
    world
        .until_told("their-puppet", "PluginHeldBack=True Fails: hunter2")
        .await;
    let nothing = async |when: &str| {
        let controller = world.get(CONTROLLER, "puppet").await.unwrap();
        let events = world.api_in("default", "events.k8s.io/v1/Event");
        let events = events.list(&ListParams::default()).await.unwrap();
        for text in std::iter::once(controller)
            .chain(events)
            .map(|it| json!(it).to_string())
        {
            for word in ["hunter2", "their-puppet", "their-child"] {
                assert!(!text.contains(word), "{when}: {text}");
            }
        }
    };
    nothing("held back").await;
    let second = version(&world.get(CONTROLLER, "puppet").await.unwrap(), "proposed");
    world
        .controller("puppet", json!({"version": {"promote": second}}))
        .await;
    world.until_live(&second).await;
    nothing("promoted").await;
    // What controllers.md says about the definition: it takes all Controllers along, and nothing else.
    world.remove(DEFINITION, "controllers.operator-host.dev").await;
    assert!(is_held(&world.get(PUPPET, "their-puppet").await.unwrap()));
    assert!(world.get(CONFIG_MAP, "their-child").await.is_some());
    assert_eq!(host.stop().await.code(), Some(0));
}
