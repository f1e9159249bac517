//! Plugins that `operator-host pack` converted to ConfigMaps: stored in the real API server, projected as by the
//! kubelet, and loaded by a host that checks pins and signatures.

use crate::support::prelude::*;
use std::collections::BTreeMap;
use std::fs;

use k8s_openapi::api::core::v1::ConfigMap;

use crate::samples::echo::{CONTROLLER, ECHO, echo, until_echo_is_ready};
use crate::telemetry::{get, until_ready_is_without};

/// Made with `openssl genpkey -algorithm ed25519`, for these tests only.
pub(super) const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEILt4uGYZKBEtKWPqREJJza4LZAHpiLwCjYh+g9P860AS\n-----END PRIVATE KEY-----\n";
/// The public key, as written by `openssl pkey -pubout`, without the first and last line.
pub(super) const PUBLIC: &str = "MCowBQYDK2VwAyEALrXDLi9nRxGgSDM5coG4EylCc4GRo2n3Qz2x4CdaYxc=";

/// Returns Echo with a custom section of `len` bytes that cannot be compressed.
pub fn echo_with(len: usize, seed: u64) -> Vec<u8> {
    let mut file = fs::read(plugin("echo")).unwrap();
    let mut state = seed;
    let mut section = vec![1, b'n'];
    section.extend((0..len).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    }));
    file.push(0);
    let mut size = section.len();
    loop {
        let low = u8::try_from(size & 0x7f).unwrap();
        size >>= 7;
        file.push(if size == 0 { low } else { low | 0x80 });
        if size == 0 {
            break;
        }
    }
    file.extend(section);
    file
}

/// Writes a plugin's file and returns the ConfigMaps that `pack` creates from it.
fn pack(scenario: &Scenario, bytes: &[u8], more: &[&str]) -> Vec<ConfigMap> {
    let file = scenario.file("echo.wasm", bytes);
    let text = program(&["pack"]).arg(file).args(more).prints();
    text.split("---\n")
        .skip(1)
        .map(|document| serde_saphyr::from_str(document).expect("a ConfigMap"))
        .collect()
}

fn name(map: &ConfigMap) -> &str {
    map.metadata.name.as_deref().unwrap()
}

/// Applies like `kubectl apply --server-side`, and returns the results.
async fn apply_all(scenario: &Scenario, maps: &[ConfigMap]) -> Vec<ConfigMap> {
    let api: Api<ConfigMap> = Api::namespaced(scenario.client.clone(), &scenario.namespace);
    let params = PatchParams::apply("kubectl").force();
    let mut applied = Vec::new();
    for map in maps {
        let map = api.patch(name(map), &params, &Patch::Apply(map)).await;
        applied.push(map.expect("the API server takes the ConfigMap"));
    }
    applied
}

/// A volume of several ConfigMaps, as the kubelet maintains it.
struct Projected {
    mount: Mount,
    maps: BTreeMap<String, ConfigMap>,
}

impl Projected {
    fn new(scenario: &Scenario) -> Self {
        Self {
            mount: Mount::new(&scenario.folder.path().join("mount"), "nothing-yet", b""),
            maps: BTreeMap::new(),
        }
    }

    /// Updates the ConfigMaps that have changed.
    fn project(&mut self, maps: &[ConfigMap]) {
        for map in maps {
            self.maps.insert(name(map).to_owned(), map.clone());
        }
        let keys = self.maps.values().filter_map(|map| map.binary_data.clone());
        let keys = keys.flatten().map(|(key, bytes)| (key, bytes.0));
        self.mount.project(&keys.collect());
    }

    fn config(&self, scenario: &Scenario, controllers: &str) -> PathBuf {
        scenario.config_in(&self.mount.path, controllers)
    }

    fn start(&self, scenario: &Scenario, controllers: &str, more: &[&str]) -> Host {
        scenario.start_with(&self.config(scenario, controllers), more)
    }
}

fn digest(map: &ConfigMap) -> String {
    map.metadata.annotations.as_ref().unwrap()["operator-host.dev/plugin-digest"].clone()
}

async fn until_live(host: &Host, digest: &str) {
    host.until_log(&format!("plugin loaded … \"digest\":\"{digest}\""))
        .await;
}

#[tokio::test]
async fn a_large_plugin_goes_through_several_config_maps_and_is_never_used_half_arrived() {
    let scenario = Scenario::new("pack-large").await;
    let mut volume = Projected::new(&scenario);
    let first = pack(&scenario, &echo_with(2_500_000, 1), &[]);
    let expected = ["echo-plugin", "echo-plugin-1", "echo-plugin-2"];
    assert_eq!(first.iter().map(name).collect::<Vec<_>>(), expected);
    volume.project(&apply_all(&scenario, &first).await);
    let host = volume.start(&scenario, CONTROLLER, &[]);
    until_live(&host, &digest(&first[0])).await;
    until_echo_is_ready(&scenario).await;

    // The next version, one ConfigMap after the other: the kubelet sees the last one last.
    let second = pack(&scenario, &echo_with(2_500_000, 2), &[]);
    assert_ne!(digest(&first[0]), digest(&second[0]));
    let applied = apply_all(&scenario, &second).await;
    volume.project(&applied[..2]);
    host.until_log("the part echo.wasm.zst.2 is not the one … stays live")
        .await;
    let (status, ready) = get(&host, "/readyz?verbose").await;
    assert_eq!(status, 200, "{ready}");
    assert_contains(&ready, "[+]plugin/echo ok:  … stays live … echo.wasm.zst.2");
    volume.project(&applied[2..]);
    until_live(&host, &digest(&second[0])).await;
    until_ready_is_without(&host, "stays live").await;

    // The commands for plugin authors accept the folder as it is.
    let definition = program(&["crd"])
        .arg(volume.mount.path.join("echo.wasm"))
        .prints();
    assert_contains(&definition, "echoes.my-operator.dev");

    // A small, unpacked plugin again: the other ConfigMaps may stay.
    let third = pack(&scenario, &echo_with(10, 3), &[]);
    assert_eq!(third.len(), 1);
    let applied = apply_all(&scenario, &third).await;
    let parts = applied[0].binary_data.as_ref().unwrap().len();
    assert_eq!(parts, 1, "the parts of the first one went");
    volume.project(&applied);
    until_live(&host, &digest(&third[0])).await;
    assert_eq!(host.log().matches("plugin loaded").count(), 3, "{}", host.log());
}

#[tokio::test]
async fn only_what_is_signed_by_a_configured_key_is_taken() {
    let scenario = Scenario::new("pack-signed").await;
    let mut volume = Projected::new(&scenario);
    let key = scenario.file("key.pem", PRIVATE);
    let sign = ["--sign-key", key.to_str().unwrap()];
    volume.project(&pack(&scenario, &echo_with(1, 1), &[]));
    let folder = scenario.folder.path().join("keys");
    fs::create_dir(&folder).unwrap();
    let keys = folder.join("keys.yaml");
    let other = format!("keys: [{{name: release, key: {PUBLIC}, controllers: [mysql]}}]");
    fs::write(&keys, &other).unwrap();
    let more = ["--signature-keys", keys.to_str().unwrap()];
    let mut host = volume.start(&scenario, CONTROLLER, &more);
    // The keys are reloaded, like the configuration.
    host.until_log("none of the keys in --signature-keys signs for this controller")
        .await;
    fs::write(&keys, other.replace("mysql", "echo")).unwrap();
    host.until_log("cannot be used … it is not signed").await;
    let (status, ready) = get(&host, "/readyz").await;
    assert_eq!(status, 500, "{ready}");
    assert_contains(&ready, "[-]plugin/echo failed:  … it is not signed");
    scenario.apply(&echo(1)).await;
    let is_told = |e: &DynamicObject| e.data["status"].to_string().contains("it is not signed");
    scenario.until(ECHO, "e", "told", is_told).await;

    let good = pack(&scenario, &echo_with(1, 1), &sign);
    volume.project(&good);
    until_live(&host, &digest(&good[0])).await;
    until_echo_is_ready(&scenario).await;

    // Another version with the old signature.
    let mut bad = pack(&scenario, &echo_with(1, 2), &[]);
    let signature = good[0].binary_data.as_ref().unwrap()["echo.wasm.sig"].clone();
    let data = bad[0].binary_data.as_mut().unwrap();
    data.insert("echo.wasm.sig".into(), signature);
    volume.project(&bad);
    let words = format!("the signature is for digest … {} … stays live", digest(&bad[0]));
    host.until_log(&words).await;
    let (status, ready) = get(&host, "/readyz?verbose").await;
    assert_eq!(status, 200, "{ready}");
    let words = format!("{} … stays live … the signature is for digest", digest(&good[0]));
    assert_contains(&ready, &words);
    let (_, metrics) = get(&host, "/metrics").await;
    let words = "operator_host_plugin_reloads_total{controller=\"echo\",result=\"refused\"}";
    assert_contains(&metrics, words);
    assert!(host.is_alive());

    // Unreadable keys change nothing, and a revoked key invalidates its signatures at the next file.
    fs::write(&keys, "keys: []").unwrap();
    host.until_log("the configuration is refused … at least one key")
        .await;
    let revoked = "MCowBQYDK2VwAyEArpxLG3KE2Y3OMrS798GZhadlZNfoKOkRgCwfH4Xfums=";
    fs::write(&keys, format!("keys: [{{name: next, key: {revoked}}}]")).unwrap();
    volume.project(&good);
    host.until_log("no key that may sign for this controller (next) … stays live")
        .await;
}

#[tokio::test]
async fn a_pinned_controller_takes_that_version_only_and_another_pin_takes_effect_at_once() {
    let scenario = Scenario::new("pack-pinned").await;
    let mut volume = Projected::new(&scenario);
    let [one, two] = [1, 2].map(|seed| pack(&scenario, &echo_with(1, seed), &[]));
    let pinned = |map: &ConfigMap| format!("{CONTROLLER}  sha256: {}\n", digest(map));
    volume.project(&one);
    let host = volume.start(&scenario, &pinned(&one[0]), &[]);
    until_live(&host, &digest(&one[0])).await;
    volume.project(&two);
    let words = format!("the configuration pins … {} … stays live", digest(&two[0]));
    host.until_log(&words).await;
    volume.config(&scenario, &pinned(&two[0]));
    until_live(&host, &digest(&two[0])).await;
    until_ready_is_without(&host, "stays live").await;
}

/// Runs the program in a folder. It must end with this code; returns its output.
fn within(folder: &Path, arguments: &[&str], code: i32) -> String {
    program(arguments).current_dir(folder).ends(code)
}

/// Runs a script in a folder, which must succeed, and returns what it prints.
pub(super) fn shell(folder: &Path, script: &str) -> String {
    let mut command = Command::new("bash");
    command.current_dir(folder).args(["-euc", script]).prints()
}

#[test]
fn a_plugin_is_signed_and_verified_by_the_program_and_by_openssl_as_the_page_describes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::copy(plugin("echo"), folder.join("echo.wasm")).unwrap();
    fs::write(folder.join("key.pem"), PRIVATE).unwrap();
    shell(folder, "openssl pkey -in key.pem -pubout -out release.pem");
    let verify = ["verify", "--keys", "release.pem", "echo.wasm"];
    let printed = within(folder, &verify, 1);
    assert_contains(&printed, "cannot read echo.wasm.sig");

    let printed = within(folder, &["sign", "--key", "key.pem", "echo.wasm"], 0);
    assert_contains(&printed, "echo.wasm.sig: signed echo");
    let printed = within(folder, &verify, 0);
    let expected = "echo.wasm: signed by release as echo";
    assert!(printed.starts_with(expected), "{printed}");
    assert_contains(&printed, "my-operator.dev/v1/Echo");
    let packed = within(folder, &["pack", "echo.wasm"], 0);
    let words = "  echo.wasm.sig: ";
    assert!(packed.contains(words), "what lies beside it is packed");

    // The same, step by step.
    let page = fs::read_to_string(crate::support::root().join("host/docs/delivery.md")).unwrap();
    let script = page.split("<!-- sign:begin -->\n```sh\n").nth(1).unwrap();
    let script = script.split("```").next().unwrap();
    let signature: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("echo.wasm.sig")).unwrap()).unwrap();
    let payload = signature["payload"].as_str().unwrap();
    let statement =
        format!("echo {payload} | base64 -d | sed 's/,/,\\n  /g' > statement.json; rm echo.wasm.sig");
    shell(folder, &statement);
    shell(folder, script);
    let printed = within(folder, &verify, 0);
    assert!(printed.starts_with(expected), "{printed}");

    // Another version with this signature, another key, and a key that is not for the controller.
    let mut other = fs::read(folder.join("echo.wasm")).unwrap();
    other.extend([0, 2, 1, b'x']);
    fs::write(folder.join("echo.wasm"), other).unwrap();
    let printed = within(folder, &verify, 1);
    assert_contains(&printed, "the signature is for digest");
    let printed = within(folder, &["pack", "echo.wasm"], 2);
    assert_contains(&printed, "sign the plugin again");
    fs::copy(plugin("echo"), folder.join("echo.wasm")).unwrap();
    let other = "openssl genpkey -algorithm ed25519 -out other.key; openssl pkey -in other.key -pubout -out other.pem";
    shell(folder, other);
    let printed = within(folder, &["verify", "--keys", "other.pem", "echo.wasm"], 1);
    assert_contains(&printed, "no key that may sign for this controller (other)");
    let keys = format!("keys: [{{name: r, key: {PUBLIC}, controllers: [mysql]}}]");
    fs::write(folder.join("keys.yaml"), keys).unwrap();
    let limited = [
        "verify",
        "--keys",
        "keys.yaml",
        "--controller",
        "echo",
        "echo.wasm",
    ];
    let printed = within(folder, &limited, 1);
    assert_contains(&printed, "none of the keys");
}
