//! Defaults that a plugin sets, and changes that it refuses.

use crate::support::prelude::*;

use super::*;

/// The variant of the puppet that sets `spec.size`.
const SETS_DEFAULTS: u8 = 9;

#[tokio::test]
async fn a_plugin_sets_defaults_and_refuses_changes_of_what_is_stored() {
    let scenario = Scenario::new("webhook-defaults").await;
    let plugin = scenario.file("plugin.wasm", variant(SETS_DEFAULTS));
    let config = scenario.config_with(TOP, &controller(plugin.to_str().unwrap(), ""));
    let authority = certified(&scenario);
    let host = scenario.start_with(&config, &[]);
    host.until_log("controller started").await;
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
    assert_contains(&refused, "denied the request: spec.frozen: it is frozen");
    // Its spec is the same.
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    scenario.patch(PUPPET, "given", labelled).await;
    assert_eq!(host.stop().await.code(), Some(0));
}
