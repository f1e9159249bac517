//! Passwords on their way out, values on their way in, and credentials that nobody sees.

use super::server::*;
use crate::support::prelude::*;

const SECRET: &str = "v1/Secret";

pub(super) fn secret(name: &str, label: &str, values: &Value) -> String {
    let mut labels = json!({"operator-host.dev/endpoint": label});
    labels.as_object_mut().unwrap().retain(|_, label| *label != "");
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}, "stringData": values}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_sent_from_a_labelled_secret_and_again_when_it_changes() {
    let (scenario, server, process) = shop("ext-password", "").await;
    let mut user = external("user", &json!({"name": "shop"}));
    user["spec"]["set"]["body"]["password"] = "a-{{secret user/password}}".into();
    scenario.external(&user).await;
    let set = async |label: &str, password: &str| {
        let secret = secret("user", label, &json!({"password": password}));
        scenario.apply(&secret).await;
    };
    let says = "Stalled=True SecretUnusable: ext-password/user … does not exist";
    scenario.until_external("user", says).await;
    set("other", "hunter2").await;
    let says = "Stalled=True SecretUnusable: label operator-host.dev/endpoint=shop";
    scenario.until_external("user", says).await;
    set("shop", "hunter2").await;
    scenario.until_matches("user").await;
    assert_eq!(server.get("/user").unwrap()["password"], "a-hunter2");
    assert_eq!(server.writes().len(), 1);
    set("shop", "hunter3").await;
    until_true("the new password is sent", async || {
        server.get("/user").unwrap()["password"] == "a-hunter3"
    })
    .await;
    server.until_asked(2).await;
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
    let mine = secret("shop-user", "", &json!({"mine": "x"}));
    scenario.apply(&mine).await;
    scenario.external(&user).await;
    let says = "Stalled=True SecretUnusable: shop-user … not owned";
    scenario.until_external("user", says).await;
    scenario.remove(SECRET, "shop-user").await;
    let saved = scenario.until_there(SECRET, "shop-user").await;
    let expected = json!({"password": "aHVudGVyMg==", "port": "NTY3Mg=="});
    assert_eq!(saved.data["data"], expected);
    assert_eq!(saved.owner_references()[0].kind, "External");
    scenario.until_matches("user").await;
    server.put("/user", json!({"data": {"password": "hunter3", "port": 5672}}));
    let is_new = |it: &DynamicObject| it.data["data"]["password"] == "aHVudGVyMw==";
    scenario.until(SECRET, "shop-user", "renewed", is_new).await;
    let other = json!({"data": {"password": "eA=="}});
    scenario.patch(SECRET, "shop-user", other).await;
    scenario.until(SECRET, "shop-user", "put right", is_new).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_renewed_while_it_runs_and_never_come_back() {
    let more = ", credentials: {secret: ext-token/shop, header: X-Token}";
    let (scenario, server, process) = shop("ext-token", more).await;
    server.with(|inner| inner.token = Some("hunter2-first".into()));
    scenario.external(&external("www", &json!({"ttl": 300}))).await;
    let says = "Stalled=True SecretUnusable: ext-token/shop";
    scenario.until_external("www", says).await;
    let set = async |token: &str| {
        let secret = secret("shop", "", &json!({"token": token}));
        scenario.apply(&secret).await;
    };
    set("hunter2-first\n").await;
    let ready = scenario.until_matches("www").await;
    set("hunter2-second").await;
    server.with(|inner| inner.token = Some("hunter2-second".into()));
    let before = server.lines().len();
    server.put("/www", json!({"ttl": 60}));
    server.until_has("/www", json!({"ttl": 300})).await;
    // What is refused with the token that is known is asked again with the new one, within the same reconcile.
    let sent = server.with(|inner| inner.received.clone());
    let tokens = sent[before..].iter().take(3);
    let tokens: Vec<_> = tokens.map(|it| it.headers["x-token"].to_str().unwrap()).collect();
    assert_eq!(tokens, ["hunter2-first", "hunter2-second", "hunter2-second"]);
    let since =
        |external: &DynamicObject| condition(external, "Ready").unwrap()["lastTransitionTime"].clone();
    let now = scenario.until_matches("www").await;
    assert_eq!(since(&now), since(&ready), "it stayed Ready");
    // When the server refuses the new one, too, the External says so.
    server.with(|inner| inner.token = Some("hunter2-third".into()));
    let says = "Stalled=True NotAuthorized: 401";
    scenario.until_external("www", says).await;
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
        let mut echo = reader(name, "echo", &json!({}));
        echo["spec"][field] = value;
        scenario.external(&echo).await;
        let says = "Stalled=True ContainsCredentials";
        scenario.until_external(name, says).await;
        let status = scenario.get(EXTERNAL, name).await.unwrap().data["status"].to_string();
        assert!(!status.contains("hunter2"), "{status}");
    }
    assert!(scenario.get(SECRET, "stolen").await.is_none());
    assert!(!process.log().contains("hunter2"));
}
