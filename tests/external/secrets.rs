//! Passwords on their way out, values on their way in, and credentials that nobody sees.

use super::server::*;
use crate::support::prelude::*;

const SECRET: &str = "v1/Secret";

pub(super) fn secret(name: &str, label: &str, values: &Value) -> String {
    let labels = if label.is_empty() {
        json!({})
    } else {
        json!({"operator-host.dev/endpoint": label})
    };
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}, "stringData": values}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_sent_from_a_labelled_secret_and_again_when_it_changes() {
    let (scenario, server, process) = shop("ext-password", "").await;
    let mut user = external("user", &json!({"name": "shop"}));
    user["spec"]["set"]["body"]["password"] = "a-{{secret user/password}}".into();
    scenario.external(&user).await;
    scenario
        .until_external(
            "user",
            "Stalled=True SecretUnusable: ext-password/user … does not exist",
        )
        .await;
    scenario
        .apply(&secret("user", "other", &json!({"password": "hunter2"})))
        .await;
    scenario
        .until_external(
            "user",
            "Stalled=True SecretUnusable: label operator-host.dev/endpoint=shop",
        )
        .await;
    scenario
        .apply(&secret("user", "shop", &json!({"password": "hunter2"})))
        .await;
    scenario.until_matches("user").await;
    assert_eq!(server.get("/user").unwrap()["password"], "a-hunter2");
    assert_eq!(server.writes().len(), 1);
    scenario
        .apply(&secret("user", "shop", &json!({"password": "hunter3"})))
        .await;
    until_true("the new password is sent", async || {
        server.get("/user").unwrap()["password"] == "a-hunter3"
    })
    .await;
    let sent = server.lines().len();
    until_true("it is looked at twice", async || server.lines().len() >= sent + 2).await;
    assert_eq!(server.writes().len(), 2, "each is sent once");
    let status = scenario.get(EXTERNAL, "user").await.unwrap().data["status"].to_string();
    assert!(!status.contains("hunter") && !process.log().contains("hunter"));
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_an_answer_go_into_a_secret_that_the_external_owns() {
    let (scenario, server, _process) = shop("ext-save", "").await;
    server.put("/user", json!({"data": {"password": "hunter2", "port": 5672}}));
    let mut user = external("user", &json!({}));
    user["spec"]["save"] =
        json!({"secret": "shop-user", "entries": {"password": "/data/password", "port": "/data/port"}});
    scenario
        .apply(&secret("shop-user", "", &json!({"mine": "x"})))
        .await;
    scenario.external(&user).await;
    scenario
        .until_external("user", "Stalled=True SecretUnusable: shop-user … not owned")
        .await;
    scenario.remove(SECRET, "shop-user").await;
    let saved = scenario.until_there(SECRET, "shop-user").await;
    assert_eq!(
        saved.data["data"],
        json!({"password": "aHVudGVyMg==", "port": "NTY3Mg=="})
    );
    assert_eq!(
        saved.metadata.owner_references.as_ref().unwrap()[0].kind,
        "External"
    );
    scenario.until_matches("user").await;
    server.put("/user", json!({"data": {"password": "hunter3", "port": 5672}}));
    scenario
        .until(SECRET, "shop-user", "renewed", |it| {
            it.data["data"]["password"] == "aHVudGVyMw=="
        })
        .await;
    scenario
        .patch(SECRET, "shop-user", json!({"data": {"password": "eA=="}}))
        .await;
    scenario
        .until(SECRET, "shop-user", "put right", |it| {
            it.data["data"]["password"] == "aHVudGVyMw=="
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_renewed_while_it_runs_and_never_come_back() {
    let more = ", credentials: {secret: ext-token/shop, header: X-Token}";
    let (scenario, server, process) = shop("ext-token", more).await;
    server.with(|inner| inner.token = Some("hunter2-first".into()));
    scenario.external(&external("www", &json!({"ttl": 300}))).await;
    scenario
        .until_external("www", "Stalled=True SecretUnusable: ext-token/shop")
        .await;
    scenario
        .apply(&secret("shop", "", &json!({"token": "hunter2-first\n"})))
        .await;
    let ready = scenario.until_matches("www").await;
    scenario
        .apply(&secret("shop", "", &json!({"token": "hunter2-second"})))
        .await;
    server.with(|inner| inner.token = Some("hunter2-second".into()));
    let before = server.lines().len();
    server.put("/www", json!({"ttl": 60}));
    until_true("drift is put right", async || {
        server.get("/www") == Some(json!({"ttl": 300}))
    })
    .await;
    // What is refused with the token that is known is asked again with the new one, within the same reconcile.
    let sent = server.with(|inner| inner.received.clone());
    let tokens = sent[before..]
        .iter()
        .map(|it| it.headers["x-token"].to_str().unwrap());
    let tokens: Vec<_> = tokens.take(3).collect();
    assert_eq!(tokens, ["hunter2-first", "hunter2-second", "hunter2-second"]);
    let since =
        |external: &DynamicObject| condition(external, "Ready").unwrap()["lastTransitionTime"].clone();
    let now = scenario.until_matches("www").await;
    assert_eq!(since(&now), since(&ready), "it stayed Ready");
    // When the server refuses the new one, too, the External says so.
    server.with(|inner| inner.token = Some("hunter2-third".into()));
    scenario
        .until_external("www", "Stalled=True NotAuthorized: 401")
        .await;
    server.with(|inner| inner.token = Some("hunter2-second".into()));
    scenario.until_matches("www").await;
    // The server sends back what it was sent.
    server.put("/echo", json!({"sent": ["X-Token: hunter2-second"], "ttl": 300}));
    for (name, field, value) in [
        ("echo", "report", json!(["/sent"])),
        (
            "saver",
            "save",
            json!({"secret": "stolen", "entries": {"token": "/sent/0"}}),
        ),
    ] {
        let mut echo = external("echo", &json!({}));
        echo["metadata"]["name"] = name.into();
        echo["spec"]
            .as_object_mut()
            .unwrap()
            .retain(|field, _| !field.ends_with("set"));
        echo["spec"][field] = value;
        scenario.external(&echo).await;
        scenario
            .until_external(name, "Stalled=True ContainsCredentials")
            .await;
        let status = scenario.get(EXTERNAL, name).await.unwrap().data["status"].to_string();
        assert!(!status.contains("hunter2"), "{status}");
    }
    assert!(scenario.get(SECRET, "stolen").await.is_none());
    assert!(!process.log().contains("hunter2"));
}
