//! A plugin in a real ConfigMap, projected into a folder as by the kubelet.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use kube::core::DynamicObject;
use operator_host_runtime::Digest;
use serde_json::Value;

use crate::support::mount::Mount;
use crate::support::puppet::assert_contains;
use crate::support::{Scenario, plugin};
use crate::telemetry::port;

const ECHO: &str = "my-operator.dev/v1/Echo";
const POD: &str = "v1/Pod";

/// Returns the sample with some bytes replaced.
fn echo(from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut file = fs::read(plugin("echo")).unwrap();
    let at = file
        .windows(from.len())
        .position(|bytes| bytes == from)
        .expect("the place");
    file[at..at + to.len()].copy_from_slice(to);
    file
}

/// Projects a ConfigMap's contents from the API server as the kubelet does.
async fn project(api: &Api<ConfigMap>, mount: &mut Mount) {
    let map = api.get("plugins").await.unwrap();
    let keys = map.binary_data.unwrap_or_default();
    let keys: BTreeMap<_, _> = keys
        .into_iter()
        .map(|(key, ByteString(bytes))| (key, bytes))
        .collect();
    mount.project(&keys);
}

#[tokio::test]
async fn a_plugin_in_a_configmap_is_changed_and_promoted_and_broken_and_held_back() {
    let scenario = Scenario::new("proving-configmap").await;
    let api: Api<ConfigMap> = Api::namespaced(scenario.client.clone(), &scenario.namespace);
    let with = |bytes: Vec<u8>| ConfigMap {
        metadata: kube::api::ObjectMeta {
            name: Some("plugins".into()),
            ..Default::default()
        },
        binary_data: Some(BTreeMap::from([("echo.wasm".to_owned(), ByteString(bytes))])),
        ..Default::default()
    };
    let original = echo(b"labelsapp", b"labelsapp");
    api.create(&PostParams::default(), &with(original.clone()))
        .await
        .unwrap();
    let mut mount = Mount::new(&scenario.folder.path().join("mount"), "other", b"");
    project(&api, &mut mount).await;
    let config = scenario.file(
        "config.yaml",
        format!(
            "plugins: {}\nnamespaces: [{}]\ncontrollers:\n- name: echo\n  \
             parent: {{apiVersion: my-operator.dev/v1, kind: Echo}}\n  plugin: echo.wasm\n  \
             children: [{{apiVersion: v1, kind: Pod}}]\n",
            mount.path.display(),
            scenario.namespace
        ),
    );
    let cache = scenario.folder.path().join("cache").display().to_string();
    let host = scenario.start_with(&config, &["--cache-dir", &cache]);
    let resource = "apiVersion: my-operator.dev/v1\nkind: Echo\nmetadata: {name: e}\nspec: {replicas: 2, image: 'echo:1'}";
    scenario.apply(resource).await;
    scenario
        .until(ECHO, "e", "ready", |e| e.data["status"]["isReady"] == true)
        .await;
    let uid = |pod: Option<DynamicObject>| pod.unwrap().metadata.uid;
    let pod = uid(scenario.get(POD, "e-pod-1").await);

    // Another label: promoted, and every pod gets it.
    let changed = echo(b"labelsapp", b"labelsapq");
    api.replace("plugins", &PostParams::default(), &with(changed.clone()))
        .await
        .unwrap();
    project(&api, &mut mount).await;
    host.until_log(&[
        "plugin loaded",
        &Digest::of(&changed).to_string(),
        "1 object: 0 unchanged, 1 changed",
    ])
    .await;
    scenario
        .until(POD, "e-pod-1", "labelled by the new version", |pod| {
            pod.metadata
                .labels
                .as_ref()
                .is_some_and(|labels| labels.get("apq").is_some_and(|value| value == "e"))
        })
        .await;

    // Other names: both pods would be deleted.
    let broken = echo(b"-pod-", b"-box-");
    api.replace("plugins", &PostParams::default(), &with(broken.clone()))
        .await
        .unwrap();
    project(&api, &mut mount).await;
    let line = host
        .until_log(&["plugin held back", &Digest::of(&broken).to_string()])
        .await;
    assert_contains(&line, &["delete 2 of 2 children", "e-pod-0"]);
    scenario
        .until_condition(ECHO, "e", "PluginHeldBack", "True", "WouldDelete")
        .await;
    assert_eq!(scenario.names(POD).await, ["e-pod-0", "e-pod-1"]);
    assert_eq!(uid(scenario.get(POD, "e-pod-1").await), pod);

    // A definition in which a field that the Echo uses has another type.
    let contradicting = echo(
        br#""minimum":0,"type":"integer"}},"required":["replicas","image"]"#,
        br#""minimum":0,"type":"boolean"}},"required":["replicas","image"]"#,
    );
    api.replace("plugins", &PostParams::default(), &with(contradicting.clone()))
        .await
        .unwrap();
    project(&api, &mut mount).await;
    let line = host
        .until_log(&["plugin held back", &Digest::of(&contradicting).to_string()])
        .await;
    assert_contains(
        &line,
        &["Incompatible", "proving-configmap/e", "spec.replicas", "boolean"],
    );

    api.replace("plugins", &PostParams::default(), &with(broken.clone()))
        .await
        .unwrap();
    project(&api, &mut mount).await;
    scenario
        .until_condition(ECHO, "e", "PluginHeldBack", "True", "WouldDelete")
        .await;

    // The command line's view of it.
    let address = format!("127.0.0.1:{}", port(&host).await);
    let output = Command::new(env!("CARGO_BIN_EXE_operator-host"))
        .args(["plugins", "--cache-dir", &cache])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert_contains(
        &table,
        &[
            "CONTROLLER",
            &Digest::of(&changed).short(),
            "held back",
            "-    name: e-pod-0",
            "+    name: e-box-0",
        ],
    );
    assert!(!table.contains('\x1b'), "colour is for terminals");
    let output = Command::new(env!("CARGO_BIN_EXE_operator-host"))
        .args(["plugins", "echo", "-o", "yaml", "--address", &address])
        .output()
        .unwrap();
    let yaml: Value = serde_saphyr::from_str(&String::from_utf8(output.stdout).unwrap()).unwrap();
    // A caller of the port, even on this machine, must not see the contents of children.
    let diff = yaml[0]["candidate"]["diff"].as_str().unwrap();
    assert!(
        diff.contains("host's own user") && !diff.contains("e-pod-0"),
        "{diff}"
    );
    assert_eq!(yaml[0]["candidate"]["state"], "heldBack");
    assert_eq!(yaml[0]["live"]["digest"], Digest::of(&changed).to_string());
}
