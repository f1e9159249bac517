//! Defaults that a plugin sets, and changes that it refuses.

use crate::support::prelude::*;
use operator_host_core::digest::Digest;

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
    let labelled = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    let labelled = scenario
        .api(PUPPET)
        .patch("given", &PatchParams::default(), &labelled)
        .await;
    labelled.expect("its spec is the same");
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_version_whose_defaults_are_not_stable_for_a_live_object_is_held_back() {
    const FILE: &str = "puppet.wasm";
    let scenario = Scenario::new("defaults-proof").await;
    let folder = scenario.folder.path().join("mount");
    let mut mount = Mount::new(&folder, FILE, &variant(SETS_DEFAULTS));
    let plugin = folder.join(FILE).display().to_string();
    let host = scenario.start_with(&scenario.config(&controller(&plugin, "")), &[]);
    host.until_log("controller started").await;
    let spec = json!({ "response": {}, "variants": { "8": { "default": "grow" } } });
    for name in ["p", "q"] {
        scenario.ready_with(name, spec.clone()).await;
    }
    mount.put(FILE, &variant(8));
    let changes = "`default` changes its own answer: spec.size changes when it is called again";
    host.until_log(&format!("held back … defaults-proof/ … {changes}"))
        .await;
    let says = format!("PluginHeldBack=True UnstableDefaults: {changes}");
    scenario.until_told("p", &says).await;
    // An object that the live version refuses as well does not hold it back.
    let spec =
        json!({ "response": {}, "variants": { "9": { "default": "invalid" }, "8": { "default": "grow" } } });
    scenario.puppet("p", spec.clone()).await;
    scenario.puppet("q", spec).await;
    let digest = Digest::of(&variant(8)).to_string();
    host.until_log(&format!("plugin loaded … {digest}")).await;
    assert_eq!(host.stop().await.code(), Some(0));
}
