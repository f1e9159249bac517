//! Defaults that a plugin sets, and changes that it refuses.

use super::*;
use crate::puppet::variant;

/// The variant of the puppet that sets `spec.size`.
const SETS_DEFAULTS: u8 = 9;

#[tokio::test]
async fn a_plugin_sets_defaults_and_refuses_changes_of_what_is_stored() {
    let scenario = Scenario::new("webhook-defaults").await;
    let plugin = scenario.file("plugin.wasm", variant(SETS_DEFAULTS));
    let top = "webhook: {address: '127.0.0.1:0', certificate: tls.crt, key: tls.key}";
    let config = scenario.config_with(top, &controller(plugin.to_str().unwrap(), ""));
    let authority = Authority::new(&scenario, "ca");
    put(&scenario, authority.sign("1"));
    let host = scenario.start_with(&config, &[]);
    host.until_log(&["controller started"]).await;
    install(&scenario, &host, &config, &authority, &[]).await;
    until_refused(
        &scenario,
        &json!({"default": "invalid"}),
        "denied the request: spec.default",
    )
    .await;

    create(&scenario, "p", &json!({"response": {}}), false)
        .await
        .expect("it is taken");
    let spec = async |name: &str| scenario.get(PUPPET, name).await.unwrap().data["spec"].clone();
    assert_eq!(spec("p").await, json!({"response": {}, "size": 3}));
    create(
        &scenario,
        "given",
        &json!({"response": {}, "size": 7, "frozen": true}),
        false,
    )
    .await
    .expect("it is taken");
    assert_eq!(spec("given").await["size"], 7);
    for (how, words) in [
        ("grow", "changes its own answer for probe"),
        ("trap", "failed calling webhook"),
    ] {
        until_refused(&scenario, &json!({"default": how}), words).await;
    }

    let change = async |spec: Value| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        scenario
            .api(PUPPET)
            .patch("given", &PatchParams::default(), &patch)
            .await
    };
    let refused = change(json!({"size": 8})).await.unwrap_err().to_string();
    assert_contains(
        &refused,
        &["denied the request: Frozen: spec.frozen: it is frozen"],
    );
    let labelled = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    let labelled = scenario
        .api(PUPPET)
        .patch("given", &PatchParams::default(), &labelled)
        .await;
    labelled.expect("its spec is the same");
    assert_eq!(host.stop().await.code(), Some(0));
}
