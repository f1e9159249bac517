//! Plugins in an OCI registry: a real registry, the real `push`, and a host that follows a tag.

pub mod server;
pub mod tokens;

use crate::delivery::packs::{self, PRIVATE, PUBLIC, shell};
use crate::delivery::proving::until_report;
use crate::support::prelude::*;
use std::fs;

use opentelemetry_proto::tonic::trace::v1::Span;

use self::server::{Access, Registry};
use self::tokens::Tokens;
use crate::samples::echo::{CONTROLLER, echo, until_echo_is_ready};
use crate::telemetry::collector::{Collector, text};
use crate::telemetry::{get, until_ready_is_without};

/// Returns another version of Echo.
fn echo_with(mark: u64) -> Vec<u8> {
    packs::echo_with(1, mark)
}

fn run(arguments: &[&str]) -> Answer {
    let mut command = program(arguments);
    command.env_remove("DOCKER_CONFIG");
    command.env("HOME", "/nonexistent").call()
}

/// Runs a command that must succeed, and returns what it prints.
fn output(arguments: &[&str]) -> String {
    run(arguments).expect(0).out.trim().to_owned()
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

fn sha256(bytes: &[u8]) -> String {
    operator_host_core::digest::Digest::of(bytes).to_string()
}

#[tokio::test]
async fn a_tag_is_followed_and_what_was_pulled_outlives_the_registry() {
    let scenario = Scenario::new("registry-tag").await;
    let registry = Registry::start(&scenario.folder.path().join("registry"), Access::Plain).await;
    let reference = format!("oci://{}/team/echo:1", registry.name());
    let file = scenario.file("echo.wasm", echo_with(1));
    let push = |file: &Path| output(&["push", "--plain-http", file.to_str().unwrap(), &reference]);
    let first = push(&file);
    assert_contains(&first, "/team/echo@sha256:");
    // The same file is the same artifact.
    assert_eq!(push(&file), first);

    let state = scenario.folder.path().join("state");
    let config = scenario.config_with(&section(&registry, ""), &controller(&reference));
    let more = ["--state-dir", state.to_str().unwrap()];
    let collector = Collector::http().await;
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.endpoint()),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ];
    let host = scenario.start_in(&config, &more, &environment);
    until_echo_is_ready(&scenario).await;
    let report = until_report(&host, "live", live(1)).await;
    assert_eq!(report["file"], reference);
    assert!(
        first.ends_with(report["registry"]["manifest"].as_str().unwrap()),
        "{report}"
    );

    let until_request = async |name: &str, attribute: (&str, &str)| {
        let what = format!("{name} with {attribute:?}");
        let has =
            |span: &Span| text(&span.attributes, attribute.0).is_some_and(|it| it.contains(attribute.1));
        let look = |spans: &[Span]| {
            let request = spans.iter().find(|span| span.name == name && has(span))?;
            let pull = spans.iter().find(|span| span.span_id == request.parent_span_id)?;
            assert_eq!(pull.name, "pull");
            Some(())
        };
        collector.until_spans(&what, look).await;
    };
    let layer = format!("http://{}/v2/team/echo/blobs/sha256:", registry.name());
    until_request("GET", ("url.full", &layer)).await;

    // The tag names another manifest: it is proved and takes over.
    push(&scenario.file("echo.wasm", echo_with(2)));
    let report = until_report(&host, "replaced", live(2)).await;
    assert!(
        !report["live"]["because"].as_str().unwrap().contains("first"),
        "{report}"
    );

    // The tag names something else than a plugin for this kind: nothing changes, and the host reports it.
    push(&plugin("myapp"));
    let refused = until_report(&host, "refused", |report| {
        report["candidate"]["state"] == "refused"
    })
    .await;
    assert_eq!(refused["live"]["digest"], sha256(&echo_with(2)));
    push(&scenario.file("echo.wasm", echo_with(2)));
    until_report(&host, "accepted again", |report| report["candidate"].is_null()).await;

    // The registry goes: nothing changes, and the host reports it.
    let folder = registry.stop().await;
    let away = until_report(&host, "away", |report| report["registry"]["problem"].is_string()).await;
    assert_eq!(away["live"]["digest"], sha256(&echo_with(2)));
    let (status, ready) = get(&host, "/readyz?verbose").await;
    assert!(status == 200 && ready.contains("cannot be pulled"), "{ready}");
    host.until_log("cannot be pulled … the live version stays").await;
    assert_eq!(host.stop().await.code(), Some(0));

    until_request("HEAD", ("error.type", "connect")).await;

    // A restart without the registry runs what was kept. The health port is read from a new log.
    fs::remove_file(scenario.folder.path().join("host.log")).unwrap();
    let host = scenario.start_with(&config, &more);
    until_report(&host, "restored", live(2)).await;
    scenario.apply(&echo(2)).await;
    scenario.until_there("v1/Pod", "e-pod-1").await;
    // It is back, at the same place.
    let registry = folder.start().await;
    until_report(&host, "reached again", |report| {
        report["registry"]["manifest"].is_string() && report["registry"]["problem"].is_null()
    })
    .await;
    until_ready_is_without(&host, "cannot be pulled").await;
    drop(registry);
}

#[tokio::test]
async fn a_private_registry_gives_signed_plugins_only_to_those_who_may_have_them() {
    let scenario = Scenario::new("registry-private").await;
    let registry = Registry::start(&scenario.folder.path().join("registry"), Access::Private).await;
    let reference = format!("oci://{}/team/echo:1", registry.name());
    let (authority, credentials) = (registry.authority(), registry.credentials());
    let (authority, credentials) = (authority.to_str().unwrap(), credentials.to_str().unwrap());
    let key = scenario.file("key.pem", PRIVATE);
    let keys = scenario.file("keys.yaml", format!("keys: [{{name: release, key: {PUBLIC}}}]"));
    let (key, keys) = (key.to_str().unwrap(), keys.to_str().unwrap());
    let file = scenario.file("echo.wasm", echo_with(1));
    let file = file.to_str().unwrap();

    // Each thing that is missing is named.
    let failed = |arguments: &[&str]| run(arguments).expect(1).err;
    let error = failed(&["push", file, &reference]);
    assert_contains(&error, "UnknownIssuer … registry.certificateAuthorities");
    let error = failed(&["push", file, &reference, "--certificate-authorities", authority]);
    assert_contains(&error, "refuses access to team/echo");
    let error = failed(&["push", file, &reference, "--plain-http"]);
    assert_contains(&error, "answered 400");

    let access = [
        "--certificate-authorities",
        authority,
        "--credentials",
        credentials,
    ];
    let with_access = |arguments: &[&str]| output(&[arguments, &access].concat());
    let pushed = with_access(&["push", file, &reference, "--sign-key", key]);
    let verified = with_access(&["verify", &pushed, "--keys", keys]);
    assert_contains(&verified, "signed by release as echo");

    // The digest pins, so the registry is not asked again.
    let section = section(
        &registry,
        &format!(", credentials: {credentials}, certificateAuthorities: {authority}"),
    );
    let by_tag = scenario.config_with(&section, &controller(&reference));
    let host = scenario.start_with(&by_tag, &["--signature-keys", keys]);
    until_report(&host, "live", live(1)).await;
    until_echo_is_ready(&scenario).await;

    // Not signed, then signed by cosign with a key that is not trusted, then with one that is.
    let second = scenario.file("echo.wasm", echo_with(2));
    let unsigned = with_access(&["push", second.to_str().unwrap(), &reference]);
    let refused = |words: &'static str| {
        move |report: &Value| {
            let message = report["candidate"]["message"].as_str().unwrap_or_default();
            report["candidate"]["state"] == "refused" && message.contains(words)
        }
    };
    until_report(&host, "refused", refused("it is not signed")).await;
    let cosign = Cosign::new(&scenario, &registry);
    cosign.sign(&unsigned);
    let words = "no key that may sign for this controller (release)";
    until_report(&host, "refused", refused(words)).await;
    run(&[&["verify", &unsigned, "--keys", keys][..], &access].concat()).expect(1);
    let both = format!(
        "keys:\n- {{name: release, key: {PUBLIC}}}\n- {{name: cosign, key: {}}}\n",
        cosign.public()
    );
    fs::write(keys, both).unwrap();
    until_report(&host, "live", live(2)).await;
    let verified = with_access(&["verify", &unsigned, "--keys", keys]);
    assert_contains(&verified, "signed by cosign with cosign as echo");
    assert_eq!(host.stop().await.code(), Some(0));

    // By digest.
    fs::remove_file(scenario.folder.path().join("host.log")).unwrap();
    let by_digest = scenario.config_with(&section, &controller(&pushed));
    let host = scenario.start_with(&by_digest, &["--signature-keys", keys]);
    until_report(&host, "live", live(1)).await;
}

/// Whether the version with this mark is live.
fn live(mark: u64) -> impl Fn(&Value) -> bool {
    move |report: &Value| report["live"]["digest"] == sha256(&echo_with(mark))
}

/// Returns the entry of a manifest about contents.
fn descriptor(media_type: &str, contents: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": sha256(contents), "size": contents.len()})
}

/// Signs as cosign does with a key: a payload with the digest of the manifest, stored under a tag of that digest.
struct Cosign<'a> {
    folder: &'a Path,
    registry: &'a Registry,
}

impl<'a> Cosign<'a> {
    fn new(scenario: &'a Scenario, registry: &'a Registry) -> Self {
        let cosign = Self {
            folder: scenario.folder.path(),
            registry,
        };
        cosign.shell("openssl ecparam -name prime256v1 -genkey -noout -out cosign.key");
        cosign
    }

    /// Returns the public key as one line.
    fn public(&self) -> String {
        self.shell("openssl pkey -in cosign.key -pubout | grep -v -e ---- | tr -d '\\n'")
    }

    fn sign(&self, reference: &str) {
        let digest = reference.split_once('@').unwrap().1;
        let payload = json!({
            "critical": {
                "identity": {"docker-reference": format!("{}/team/echo", self.registry.name())},
                "image": {"docker-manifest-digest": digest},
                "type": "cosign container image signature",
            },
            "optional": {},
        });
        let payload = payload.to_string();
        fs::write(self.folder.join("payload"), &payload).unwrap();
        let signature = self.shell("openssl dgst -sha256 -sign cosign.key payload | base64 -w 0");
        let simple = "application/vnd.dev.cosign.simplesigning.v1+json";
        let mut layer = descriptor(simple, payload.as_bytes());
        layer["annotations"] = json!({"dev.cosignproject.cosign/signature": signature});
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", b"{}"), "layers": [layer],
        });
        self.registry.upload("team/echo", payload.as_bytes());
        self.registry.upload("team/echo", b"{}");
        let tag = format!("{}.sig", digest.replace(':', "-"));
        self.registry.put("team/echo", &tag, &manifest.to_string());
    }

    fn shell(&self, script: &str) -> String {
        shell(self.folder, script)
    }
}

#[tokio::test]
async fn what_other_tools_push_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::start(folder.path(), Access::Plain).await;
    let plugin = fs::read(plugin("echo")).unwrap();
    registry.upload("team/echo", &plugin);
    let mut layer = descriptor("application/wasm", &plugin);
    layer["annotations"] = json!({"org.opencontainers.image.title": "echo.wasm"});
    let config = |media_type: &str, text: &str| {
        registry.upload("team/echo", text.as_bytes());
        descriptor(media_type, text.as_bytes())
    };
    // As `wkg oci push` and `oras push --artifact-type application/vnd.wasm.config.v0+json` do.
    let wasm = r#"{"created":"2026-01-02T03:04:05.678Z","author":null,"architecture":"wasm","os":"wasip1","layerDigests":[],"component":null}"#;
    for (tag, config, more) in [
        ("wkg", config("application/vnd.wasm.config.v0+json", wasm), None),
        (
            "oras",
            config("application/vnd.oci.empty.v1+json", "{}"),
            Some("application/vnd.wasm.config.v0+json"),
        ),
    ] {
        let mut manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": [layer],
        });
        if let Some(artifact_type) = more {
            manifest["artifactType"] = artifact_type.into();
        }
        registry.put("team/echo", tag, &manifest.to_string());
        let config = format!(
            "registry: {{plainHttp: [\"{}\"]}}\ncontrollers:\n{}",
            registry.name(),
            controller(&format!("oci://{}/team/echo:{tag}", registry.name()))
        );
        let file = folder.path().join("config.yaml");
        fs::write(&file, config).unwrap();
        let rights = output(&["rbac", "--config", file.to_str().unwrap(), "--output", "json"]);
        assert!(rights.contains("echoes"), "{tag}: {rights}");
    }
}

// The commands block a thread, and the token server answers on another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_that_wants_tokens_gets_them_for_what_is_done_and_only_with_the_credentials() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = Tokens::start(folder.path()).await;
    let registry = Registry::start(folder.path(), Access::Token(tokens.port)).await;
    let reference = format!("{}/team/echo:1", registry.name());
    let (file, credentials) = (plugin("echo"), registry.credentials());
    let file = file.to_str().unwrap();
    let credentials = ["--plain-http", "--credentials", credentials.to_str().unwrap()];
    let pushed = output(&[&["push", file, &reference][..], &credentials].concat());
    assert_contains(&pushed, "/team/echo@sha256:");
    let scopes = tokens.scopes();
    assert!(
        scopes.contains(&"repository:team/echo:pull,push".to_owned()),
        "{scopes:?}"
    );
    let before = scopes.len();
    let anonymous = run(&["push", file, &reference, "--plain-http"]);
    assert_contains(&anonymous.err, "does not accept the credentials");

    // To pull, the host asks for no more than to pull.
    let config = format!(
        "registry: {{plainHttp: [\"{}\"], credentials: {}}}\ncontrollers:\n{}",
        registry.name(),
        registry.credentials().display(),
        controller(&format!("oci://{reference}"))
    );
    let config_file = folder.path().join("config.yaml");
    fs::write(&config_file, config).unwrap();
    let config = config_file.to_str().unwrap();
    output(&["rbac", "--config", config, "--output", "json"]);
    assert_eq!(tokens.scopes()[before..], ["repository:team/echo:pull"]);

    // What is printed is about the pinned plugin, not about any that the tag names.
    let text = fs::read_to_string(&config_file).unwrap();
    let pin = format!("sha256: {}\n  plugin: ", "a".repeat(64));
    fs::write(&config_file, text.replace("plugin: ", &pin)).unwrap();
    let other = run(&["rbac", "--config", config_file.to_str().unwrap()]);
    assert_ne!(other.code, Some(0));
    assert_contains(&other.err, "but the configuration pins");
}

#[tokio::test]
async fn check_and_render_take_a_plugin_from_a_registry() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::start(&folder.path().join("registry"), Access::Plain).await;
    let reference = format!("oci://{}/team/echo:1", registry.name());
    let file = plugin("echo");
    let pushed = output(&["push", "--plain-http", file.to_str().unwrap(), &reference]);
    let sample = root().join("manifests/samples/echo.yaml");
    let sample = sample.to_str().unwrap();
    let checked = output(&["check", "--plain-http", &reference, "--sample", sample]);
    assert_contains(&checked, "determinism");
    let from_file = output(&["render", "--plugin", file.to_str().unwrap(), "--filename", sample]);
    let by_digest = pushed.split_whitespace().find(|word| word.contains("@sha256:"));
    let by_digest = format!("oci://{}", by_digest.unwrap().trim_start_matches("oci://"));
    for reference in [&reference, &by_digest] {
        let rendered = output(&[
            "render",
            "--plain-http",
            "--plugin",
            reference,
            "--filename",
            sample,
        ]);
        assert_eq!(rendered, from_file, "{reference}");
    }
    let absent = format!("oci://{}/team/echo:2", registry.name());
    let error = program(&["check", "--plain-http", &absent]).ends(1);
    assert_contains(&error, "does not have");
}
