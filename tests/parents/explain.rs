//! `explain`: why a resource is as it is, from the cluster alone.

use crate::support::prelude::*;

const CHILDREN: &str = "children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: v1, kind: Secret}, \
     {apiVersion: apps/v1, kind: Deployment}]";

fn explain(kubeconfig: &Path, namespace: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = program(&["explain"]);
    command
        .args(arguments)
        .args(["--namespace", namespace])
        .env("KUBECONFIG", kubeconfig);
    let answer = command.call();
    (answer.code, answer.out, answer.err)
}

#[tokio::test]
async fn a_resource_is_explained_with_its_tree_its_conditions_and_what_to_do() {
    let (scenario, _host) = puppets("explain", CHILDREN).await;
    let pod = json!({"containers": [{"name": "c", "image": "i"}]});
    let children = [config_map("a", "1"), deployment("web", &pod)];
    scenario.wants("p", &children).await;
    scenario.wants("bystander", &[config_map("b", "1")]).await;
    scenario.until_ready("p").await;
    scenario.until_ready("bystander").await;
    let edited = json!({"data": {"more": "by a user"}});
    scenario.patch(CONFIG_MAP, "a", edited).await;

    let explained = |arguments: &[&str]| {
        let (code, out, err) = explain(scenario.kubeconfig(), &scenario.namespace, arguments);
        assert_eq!(code, Some(0), "{out}{err}");
        out
    };
    let text = explained(&["puppet", "p"]);
    let lines = [
        "Puppet.test.operator-host.dev explain/p\n",
        "  The host has seen the current spec, generation 1.\n",
        "Reconciled: every child is applied and ready\n",
        "  ConfigMap/a ",
        "  Deployment/web ",
        "  └─ ReplicaSet/web-",
        "     └─ Pod/web-",
        "  Nothing: the resource is ready.\n",
        " Normal ChildrenChanged: created ",
    ];
    for line in lines {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
    assert!(!text.contains("ConfigMap/b"), "another resource's child: {text}");
    assert!(!text.contains('\x1b'), "no colour in a pipe: {text}");

    let row = text.lines().find(|line| line.contains("ConfigMap/a ")).unwrap();
    assert_contains(row, " puppet 0.1.0 ( …    1   ");
    assert_ne!(
        row.trim_end().rsplit("   ").next(),
        Some("1"),
        "another manager: {row}"
    );
    assert_eq!(
        explained(&["puppets.test.operator-host.dev/p"]).lines().next(),
        text.lines().next()
    );

    scenario.puppet("p", json!({"misbehave": "trap"})).await;
    scenario.until_stalled("p", "PluginTrapped").await;
    let text = explained(&["puppet", "p"]);
    let advice = text.split("What to do next").nth(1).unwrap();
    assert!(advice.contains("  PluginTrapped\n"), "{text}");
    let words = "Deployment/web";
    assert!(text.contains(words), "the children are still there: {text}");
}

#[tokio::test]
async fn what_does_not_exist_or_cannot_be_read_is_reported() {
    let (scenario, _host) = puppets("explain-less", "").await;
    scenario.ready_wants("p", &[config_map("a", "1")]).await;
    let failed = |arguments: &[&str], code: i32| {
        let (found, out, err) = explain(scenario.kubeconfig(), &scenario.namespace, arguments);
        assert_eq!((found, out.as_str()), (Some(code), ""), "{err}");
        err
    };
    assert_eq!(
        failed(&["puppet", "absent"], 1),
        "operator-host: there is no Puppet.test.operator-host.dev absent in the namespace explain-less\n"
    );
    let expected = "operator-host: the cluster has no kind \"nothing\"\n";
    assert_eq!(failed(&["nothing", "p"], 1), expected);
    let expected = "operator-host: specify a kind and a name: explain KIND NAME\n";
    assert_eq!(failed(&["puppet"], 2), expected);
    assert_eq!(failed(&["", "p"], 2), expected);
    // A name could turn the request into another one.
    for name in ["p?x=y", "p/status", "..", "<script>alert(1)</script>"] {
        let error = failed(&["puppet", name], 2);
        assert!(error.starts_with("operator-host: the name "), "{error}");
    }
    let (code, _, error) = explain(scenario.kubeconfig(), "../x", &["puppet", "p"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(
        error.starts_with("operator-host: the namespace \"../x\" cannot be used"),
        "{error}"
    );
    let error = failed(&["cm", "A"], 1);
    assert_contains(&error, "as the name of a ConfigMap");

    // A user who may read only the resource itself still gets an explanation.
    let rules =
        json!([{"apiGroups": ["test.operator-host.dev"], "resources": ["puppets"], "verbs": ["get"]}]);
    scenario.grant("reader", user(LIMITED), rules).await;
    let kubeconfig = cluster().await.kubeconfig_of(LIMITED).expect("the user");
    let (code, out, err) = explain(&kubeconfig, &scenario.namespace, &["puppet", "p"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let words = "Reconciled … Not shown, because it could not be read …   you may not list: configmaps, ";
    assert_contains(&out, words);
    assert!(!out.contains("ErrorResponse") && out.len() < 4000, "{out}");
    let words = "  none among the kinds that could be listed … Not every kind of child could be listed";
    assert_contains(&out, words);
}

#[tokio::test]
async fn what_a_version_that_is_held_back_would_change_is_shown() {
    let scenario = Scenario::new("explain-held").await;
    let mut mount = Mount::new(&scenario.folder.path().join("mount"), "puppet.wasm", &variant(0));
    let config = scenario.config_in(&mount.path, &controller("puppet.wasm", ""));
    let _host = scenario.start_with(&config, &[]);
    let spec = json!({"response": {"children": [config_map("a", "1")]}, "variants": {"1": {"response": {}}}});
    scenario.ready_with("p", spec).await;
    mount.put("puppet.wasm", &variant(1));
    scenario.until_told("p", "PluginHeldBack=True WouldDelete").await;
    let (code, text, err) = explain(scenario.kubeconfig(), &scenario.namespace, &["puppet", "p"]);
    assert_eq!(code, Some(0), "{text}{err}");
    let after = text
        .split("WouldDelete: ")
        .nth(1)
        .unwrap_or_else(|| panic!("{text}"));
    assert!(
        after.starts_with("it would delete ConfigMap explain-held/a"),
        "{text}"
    );
    assert!(after.contains("\n    -"), "with the differences: {text}");
}
