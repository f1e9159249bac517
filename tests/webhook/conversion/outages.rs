//! Reads in a version that is not stored while the host cannot convert.

use crate::support::prelude::*;
use control_plane::ports::{self, Port};

use super::{CONVERTS, DEFINITION, V2, serve_v2, until_v2};
use crate::telemetry::get;
use crate::webhook::{certified, put};

/// Writes a configuration whose webhook has this port in every process.
fn configuration(scenario: &Scenario, plugin: &str, port: &Port) -> PathBuf {
    let address = format!("127.0.0.1:{}", port.number);
    let top = format!("webhook: {{address: '{address}', certificate: tls.crt, key: tls.key}}");
    scenario.config_with(&top, &controller(plugin, ""))
}

/// Waits until reading an object in v2 fails with such words.
async fn until_refused(scenario: &Scenario, name: &str, words: &str) {
    eventually(words, async || match scenario.api(V2).get(name).await {
        Err(error) if error.to_string().contains(words) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

#[tokio::test]
async fn while_nothing_converts_reads_in_the_stored_version_and_children_go_on() {
    let cluster = own_cluster(control_plane::Options::default()).await;
    let scenario = Scenario::within(&cluster, "conversion-outages").await;
    let authority = certified(&scenario);
    // The version of the plugin before it had a v2.
    let folder = scenario.folder.path().join("plugins");
    let mut mount = Mount::new(&folder, "plugin.wasm", &variant_of("puppet.wasm", 1));
    let plugin = folder.join("plugin.wasm");
    let port = ports::reserve().unwrap();
    let config = configuration(&scenario, &plugin.display().to_string(), &port);
    let host = scenario.start_with(&config, &[]);
    host.until_log("controller started").await;
    let spec = json!({ "text": "a", "response": { "children": [config_map("child", "x")] } });
    scenario.ready_with("one", spec).await;
    serve_v2(&scenario, &host, &authority, "v1").await;

    // During a rollout: this replica has the earlier version of the plugin.
    until_refused(&scenario, "one", "conversion webhook").await;
    scenario
        .patch(PUPPET, "one", json!({ "spec": { "text": "b" } }))
        .await;
    mount.put("plugin.wasm", &variant_of("puppet.wasm", CONVERTS));
    assert_eq!(until_v2(&scenario, "one").await.data["spec"]["note"], "b");

    // The host is away.
    assert_eq!(host.stop().await.code(), Some(0));
    until_refused(&scenario, "one", "conversion webhook").await;
    let stored = scenario.get(PUPPET, "one").await.expect("it is stored in v1");
    assert_eq!(stored.data["spec"]["text"], "b");
    assert!(scenario.get(CONFIG_MAP, "child").await.is_some());

    // Its certificate has expired when it comes back.
    put(&scenario, authority.sign("-1"));
    let host = scenario.start_with(&config, &[]);
    host.until_log("controller started").await;
    until_refused(&scenario, "one", "conversion webhook").await;
    scenario.delete(CONFIG_MAP, "child").await;
    scenario
        .until(CONFIG_MAP, "child", "made again", |child| {
            child.metadata.deletion_timestamp.is_none()
        })
        .await;
    put(&scenario, authority.sign("1"));
    assert_eq!(until_v2(&scenario, "one").await.data["spec"]["note"], "b");
    host.until_log("the certificate expired").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_new_host_with_another_version_converts_with_it_once_that_is_promoted() {
    let cluster = own_cluster(control_plane::Options::default()).await;
    let scenario = Scenario::within(&cluster, "conversion-replaced").await;
    let authority = certified(&scenario);
    let folder = scenario.folder.path().join("plugins");
    let mut mount = Mount::new(&folder, "plugin.wasm", &variant_of("puppet.wasm", CONVERTS));
    let plugin = folder.join("plugin.wasm");
    let port = ports::reserve().unwrap();
    let config = configuration(&scenario, &plugin.display().to_string(), &port);
    let host = scenario.start_with(&config, &[]);
    host.until_log("controller started").await;
    serve_v2(&scenario, &host, &authority, "v2").await;
    scenario
        .ready_with(
            "one",
            json!({ "text": "a", "response": { "children": [config_map("a", "x")] } }),
        )
        .await;
    assert_eq!(host.stop().await.code(), Some(0));

    // Nothing converts, so nothing can be listed, and the version that was live is not at hand.
    mount.put("plugin.wasm", &variant_of("puppet.wasm", 8));
    let host = scenario.start_named("again", &config);
    let digest = operator_host_core::digest::Digest::of(&variant_of("puppet.wasm", 8)).short();
    let promote = json!({"metadata": {"annotations": {"operator-host.dev/promote": digest}}});
    let kind = "apiextensions.k8s.io/v1/CustomResourceDefinition";
    scenario.patch(kind, DEFINITION, promote).await;
    host.until_log("plugin loaded … promoted by force").await;
    scenario.until_ready("one").await;
    let (status, ready) = get(&host, "/readyz?verbose").await;
    assert_eq!(status, 200, "{ready}");
}
