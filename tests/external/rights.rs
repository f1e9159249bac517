//! The permissions of the process.

use super::server::*;
use crate::support::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn it_does_all_its_work_with_the_permissions_that_are_printed_for_it() {
    let name = "ext-rights";
    let scenario = Scenario::new(name).await;
    let server = Server::start().await;
    server.with(|inner| inner.token = Some("hunter2-token".into()));
    let more = format!(", timeout: 900ms, credentials: {{secret: {name}/shop, header: X-Token}}");
    let text = format!(
        "namespaces: [{name}]\nleadership: single\n\
         lease: {{namespace: {name}, duration: 3s, renewDeadline: 2s, retryPeriod: 300ms}}\nendpoints:\n{}",
        server.endpoint("shop", name, &more)
    );
    let file = scenario.file("endpoints.yaml", text);
    let account = format!("{name}/{name}");
    let mut rbac = program(&["rbac", "-o", "json", "--service-account", &account, "--endpoints"]);
    let printed: Value = serde_json::from_str(&rbac.arg(&file).prints()).unwrap();
    for role in printed["items"].as_array().unwrap() {
        scenario.apply(&role.to_string()).await;
    }
    let secret = |name: &str, key: &str| {
        let labels = json!({"operator-host.dev/endpoint": "shop"});
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels},
            "stringData": {key: "hunter2-token"},
        })
    };
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
    for object in [account, secret("shop", "token"), secret("user", "password")] {
        scenario.apply(&object.to_string()).await;
    }
    let kubeconfig = cluster().await.kubeconfig_of_account(name, name).await;
    let scenario = scenario.with_kubeconfig(kubeconfig.unwrap());
    let process = scenario.start_egress("egress", &file);

    let mut user = external("user", &json!({"name": "shop"}));
    user["spec"]["set"]["body"]["password"] = "{{secret user/password}}".into();
    user["spec"]["save"] = json!({"secret": "saved", "entries": {"name": "/name"}});
    scenario.external(&user).await;
    scenario.until_matches("user").await;
    scenario.until_there("v1/Secret", "saved").await;
    let changed = json!({"data": {"name": null}});
    scenario.patch("v1/Secret", "saved", changed).await;
    let is_right = |it: &DynamicObject| it.data["data"]["name"] == "c2hvcA==";
    scenario.until("v1/Secret", "saved", "put right", is_right).await;
    scenario.remove(EXTERNAL, "user").await;
    assert_eq!(server.get("/user"), None);
    assert!(!process.log().contains("forbidden"), "{}", process.log());
    let status = process.stop().await;
    assert!(status.success(), "it gives up its Lease: {status}");
}
