//! Plugins in an OCI registry: a real registry, the real `push`, and a host that follows a tag.

mod server;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use self::server::{Access, Registry};
use crate::echo::{CONTROLLER, ECHO, echo};
use crate::support::{Host, LIMIT, Scenario, plugin};
use crate::telemetry::{get, until_ready_is_without};

/// Created with `openssl genpkey -algorithm ed25519`, for these tests only.
const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEILt4uGYZKBEtKWPqREJJza4LZAHpiLwCjYh+g9P860AS\n-----END PRIVATE KEY-----\n";
/// The public key, as written by `openssl pkey -pubout`, without the first and last line.
const PUBLIC: &str = "MCowBQYDK2VwAyEALrXDLi9nRxGgSDM5coG4EylCc4GRo2n3Qz2x4CdaYxc=";

/// Returns Echo with a custom section, which makes another version of it.
fn echo_with(mark: u8) -> Vec<u8> {
    let mut file = fs::read(plugin("echo")).unwrap();
    file.extend([0, 3, 1, b'v', mark]);
    file
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_operator-host"))
        .args(arguments)
        .env_remove("DOCKER_CONFIG")
        .env("HOME", "/nonexistent")
        .output()
        .unwrap()
}

/// Runs a command that must succeed, and returns what it prints.
fn output(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Returns the controller with a plugin from the registry.
fn controller(reference: &str) -> String {
    CONTROLLER.replace("plugin: echo.wasm", &format!("plugin: {reference}"))
}

/// Returns the section `registry` of a configuration that looks at tags every second.
fn section(registry: &Registry, more: &str) -> String {
    match registry.tls() {
        true => format!("registry: {{interval: 1s{more}}}"),
        false => format!(
            "registry: {{interval: 1s, plainHttp: [\"{}\"]{more}}}",
            registry.name()
        ),
    }
}

async fn until_echo_is_ready(scenario: &Scenario) {
    scenario.apply(&echo(1)).await;
    scenario
        .until(ECHO, "e", "ready", |e| e.data["status"]["isReady"] == true)
        .await;
}

/// Waits until the report about the plugin satisfies a condition, and returns it.
async fn until_report(host: &Host, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let (_, body) = get(host, "/plugins").await;
        let reports: Value = serde_json::from_str(&body).unwrap();
        if holds(&reports[0]) {
            return reports[0].clone();
        }
        assert!(tokio::time::Instant::now() < deadline, "never {what}: {body}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn sha256(bytes: &[u8]) -> String {
    operator_host::plugin::Digest::of(bytes).to_string()
}

#[tokio::test]
async fn a_tag_is_followed_and_what_was_pulled_outlives_the_registry() {
    let scenario = Scenario::new("registry-tag").await;
    let registry = Registry::start(&scenario.folder.path().join("registry"), Access::Plain).await;
    let reference = format!("oci://{}/team/echo:1", registry.name());
    let file = scenario.file("echo.wasm", echo_with(1));
    let push = |file: &Path| output(&["push", "--plain-http", file.to_str().unwrap(), &reference]);
    let first = push(&file);
    assert!(first.contains("/team/echo@sha256:"), "{first}");
    // The same file is the same artifact.
    assert_eq!(push(&file), first);

    let state = scenario.folder.path().join("state");
    let config = scenario.config_with(&section(&registry, ""), &controller(&reference));
    let more = ["--state-dir", state.to_str().unwrap()];
    let host = scenario.start_with(&config, &more);
    until_echo_is_ready(&scenario).await;
    let live = |digest: String| move |report: &Value| report["live"]["digest"] == digest;
    let report = until_report(&host, "live", live(sha256(&echo_with(1)))).await;
    assert_eq!(report["file"], reference);
    assert!(
        first.ends_with(report["registry"]["manifest"].as_str().unwrap()),
        "{report}"
    );

    // The tag names another manifest: it is proved and takes over.
    push(&scenario.file("echo.wasm", echo_with(2)));
    let report = until_report(&host, "replaced", live(sha256(&echo_with(2)))).await;
    assert!(
        !report["live"]["because"].as_str().unwrap().contains("first"),
        "{report}"
    );

    // The tag names something else than a plugin for this kind: nothing changes, and it is said.
    push(&plugin("myapp"));
    let refused = until_report(&host, "refused", |report| {
        report["candidate"]["state"] == "refused"
    })
    .await;
    assert_eq!(refused["live"]["digest"], sha256(&echo_with(2)));
    push(&scenario.file("echo.wasm", echo_with(2)));
    until_report(&host, "accepted again", |report| report["candidate"].is_null()).await;

    // The registry goes: nothing changes, and it is said.
    let folder = registry.stop().await;
    let away = until_report(&host, "away", |report| report["registry"]["problem"].is_string()).await;
    assert_eq!(away["live"]["digest"], sha256(&echo_with(2)));
    let (status, ready) = get(&host, "/readyz?verbose").await;
    assert!(status == 200 && ready.contains("cannot be pulled"), "{ready}");
    host.until_log(&["cannot be pulled", "the live version stays"])
        .await;
    assert_eq!(host.stop().await.code(), Some(0));

    // A restart without the registry runs what was kept. The health port is read from a new log.
    fs::remove_file(scenario.folder.path().join("host.log")).unwrap();
    let host = scenario.start_with(&config, &more);
    until_report(&host, "restored", live(sha256(&echo_with(2)))).await;
    scenario.apply(&echo(2)).await;
    scenario
        .until(ECHO, "e", "two ready pods", |e| {
            e.data["status"]["currentReplicas"] == 2
        })
        .await;
    // It is back, at the same place.
    let registry = folder.start().await;
    until_report(&host, "reached again", |report| {
        report["registry"]["manifest"].is_string() && report["registry"]["problem"].is_null()
    })
    .await;
    until_ready_is_without(&host, "cannot be pulled").await;
    drop(registry);
}
