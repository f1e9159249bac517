//! A controller with a ServiceAccount has that account's permissions on its children, and no others.

use crate::samples::echo::{CONTROLLER, echo};
use crate::support::prelude::*;

/// Grants the host's permissions: it reads children, writes none, and may impersonate these ServiceAccounts.
async fn grant_host(scenario: &Scenario, accounts: &[&str]) {
    let mut rules = vec![
        json!({ "apiGroups": ["my-operator.dev", "test.operator-host.dev"], "resources": ["*"],
            "verbs": ["get", "list", "watch", "patch"] }),
        json!({ "apiGroups": [""], "resources": ["pods", "configmaps", "secrets"],
            "verbs": ["get", "list", "watch"] }),
        json!({ "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] }),
        // The host creates the key that proves which Secrets it generated.
        json!({ "apiGroups": [""], "resources": ["secrets"], "verbs": ["create"] }),
    ];
    if !accounts.is_empty() {
        let (resource, verb) = (["serviceaccounts"], ["impersonate"]);
        rules.push(
            json!({ "apiGroups": [""], "resources": resource, "resourceNames": accounts, "verbs": verb }),
        );
    }
    scenario.grant("host", user(LIMITED), rules.into()).await;
}

async fn grant_account(scenario: &Scenario, name: &str, resource: &str) {
    scenario.create_account(name).await;
    let subject = json!({ "kind": "ServiceAccount", "name": name, "namespace": scenario.namespace });
    let rules =
        json!([{ "apiGroups": [""], "resources": [resource], "verbs": ["create", "patch", "delete"] }]);
    scenario.grant(name, subject, rules).await;
}

fn acting_as(scenario: &Scenario, name: &str) -> String {
    format!("serviceAccount: {}/{name}", scenario.namespace)
}

#[tokio::test]
async fn each_controller_writes_its_children_as_its_service_account_and_the_rest_as_the_host() {
    let scenario = Scenario::limited("two-accounts").await;
    grant_host(&scenario, &["of-echo", "of-puppet"]).await;
    grant_account(&scenario, "of-echo", "pods").await;
    grant_account(&scenario, "of-puppet", "configmaps").await;
    let kinds = "children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: v1, kind: Secret}]\n\
                 allow: [hostNamespace]\n";
    let [of_puppet, of_echo] = ["of-puppet", "of-echo"].map(|name| acting_as(&scenario, name));
    let puppet = controller("puppet.wasm", &format!("{kinds}{of_puppet}"));
    let echoes = format!("{CONTROLLER}  allow: [hostNamespace]\n  {of_echo}\n");
    let top = format!("hostNamespace: {}", scenario.namespace);
    let config = scenario.config_with(&top, &format!("{echoes}{puppet}"));
    let _host = scenario.start_with(&config, &[]);
    scenario.apply(&echo(2)).await;
    scenario.until_echo("e").await;
    let two = json!({"response": {"children": [config_map("one", "1"), config_map("two", "2")]}});
    scenario.ready_with("p", two).await;
    scenario.wants("p", &[config_map("one", "1")]).await;
    scenario.until_gone(CONFIG_MAP, "two").await;

    // Its configuration allows Secrets; the API server does not.
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    scenario.wants("greedy", &[secret]).await;
    let user = "system:serviceaccount:two-accounts:of-puppet";
    let says = format!(
        "Reconciling=True ApplyFailed: {user} … cannot patch resource \"secrets\" … \
         permission to the ServiceAccount two-accounts/of-puppet"
    );
    scenario.until_told("greedy", &says).await;
    let generated =
        json!({"response": {"generate": [{"name": "g", "entries": [{"key": "password", "length": 20}]}]}});
    scenario.puppet("generated", generated).await;
    let says = format!("Reconciling=True ApplyFailed: {user} … cannot create resource \"secrets\"");
    scenario.until_told("generated", &says).await;

    let events = cluster().await.audit_events_about(&scenario.namespace);
    let events = events.expect("the audit log");
    let mut seen = std::collections::BTreeSet::new();
    let mut keys = 0;
    for event in events {
        let object = event.object_ref.clone().unwrap_or_default();
        if object.namespace != scenario.namespace || !event.user_agent.starts_with("operator-host/") {
            continue;
        }
        assert_eq!(event.user.username, LIMITED);
        let account = match (object.resource.as_str(), event.impersonated_user) {
            (_, None) => "host".to_owned(),
            (_, Some(user)) => {
                let groups = "serviceaccounts serviceaccounts:two-accounts authenticated";
                for group in groups.split(' ').map(|group| format!("system:{group}")) {
                    assert!(user.groups.contains(&group), "{:?}", user.groups);
                }
                user.username.rsplit(':').next().unwrap().to_owned()
            }
        };
        let expected = match object.resource.as_str() {
            "pods" => "of-echo",
            // The host itself creates its key.
            "secrets" if account == "host" => {
                keys += 1;
                "host"
            }
            "configmaps" | "secrets" => "of-puppet",
            _ => "host",
        };
        assert_eq!(account, expected, "{object:?}");
        seen.insert(account);
    }
    assert!(keys <= 1, "{keys} Secrets written by the host itself");
    let seen: Vec<_> = seen.into_iter().collect();
    assert_eq!(seen, ["host", "of-echo", "of-puppet"]);
}

#[tokio::test]
async fn a_missing_account_and_a_missing_right_to_act_as_it_are_named_and_recovered_from() {
    let scenario = Scenario::limited("no-account").await;
    grant_host(&scenario, &[]).await;
    let puppet = controller("puppet.wasm", &acting_as(&scenario, "ghost"));
    let host = scenario.start(&puppet);
    scenario.wants("p", &[config_map("p", "1")]).await;
    // A current API server names a more specific right.
    let says = "Reconciling=True ApplyFailed: cannot impersonate … the controller acts as the ServiceAccount no-account/ghost \
         … give the host's role the verb impersonate on serviceaccounts";
    scenario.until_told("p", says).await;
    grant_host(&scenario, &["ghost"]).await;
    let says = "Reconciling=True ApplyFailed: User \"system:serviceaccount:no-account:ghost\" cannot patch resource \
         \"configmaps\" … permission to the ServiceAccount no-account/ghost … check that it exists";
    scenario.until_told("p", says).await;
    grant_account(&scenario, "ghost", "configmaps").await;
    scenario.until_ready("p").await;
    drop(host);
}
