//! The API server calls the host before it writes a resource.

pub(crate) mod callers;
mod conversion;
mod defaults;
pub(crate) mod reviewer;
mod slow;

use crate::support::prelude::*;
use crate::telemetry::get;

/// A certificate authority with the certificates that it signs, in a folder.
pub(crate) struct Authority(pub(crate) PathBuf);

fn openssl(folder: &Path, arguments: &[&str]) {
    Command::new("openssl")
        .current_dir(folder)
        .args(arguments)
        .prints();
}

impl Authority {
    pub(crate) fn new(scenario: &Scenario, name: &str) -> Self {
        Self::within(scenario.folder.path(), name)
    }

    fn within(folder: &Path, name: &str) -> Self {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let subject = format!("/CN={name}");
        let new = [
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", "ca.key", "-out",
            "ca.crt",
        ];
        openssl(&folder, &[&new[..], &["-subj", &subject]].concat());
        std::fs::write(folder.join("extensions"), "subjectAltName=IP:127.0.0.1\n").unwrap();
        Self(folder)
    }

    /// Signs a certificate for the host; with negative days it has expired.
    pub(crate) fn sign(&self, days: &str) -> (Vec<u8>, Vec<u8>) {
        let folder = &self.0;
        openssl(
            folder,
            &[
                "req", "-newkey", "rsa:2048", "-nodes", "-keyout", "tls.key", "-out", "tls.csr", "-subj",
                "/CN=h",
            ],
        );
        let sign = [
            "x509",
            "-req",
            "-in",
            "tls.csr",
            "-CA",
            "ca.crt",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
        ];
        let rest = ["-extfile", "extensions", "-days", days, "-out", "tls.crt"];
        openssl(folder, &[&sign[..], &rest].concat());
        let read = |name| std::fs::read(folder.join(name)).unwrap();
        (read("tls.crt"), read("tls.key"))
    }
}

/// Creates an authority and puts a certificate of it where the webhook finds it.
pub(crate) fn certified(scenario: &Scenario) -> Authority {
    let authority = Authority::new(scenario, "ca");
    put(scenario, authority.sign("1"));
    authority
}

pub(crate) fn put(scenario: &Scenario, (certificate, key): (Vec<u8>, Vec<u8>)) {
    scenario.file("tls.key", key);
    scenario.file("tls.crt", certificate);
}

/// The configuration of a webhook with the certificate of [`certified`].
pub(crate) const TOP: &str = "webhook: {address: '127.0.0.1:0', certificate: tls.crt, key: tls.key}";

pub(crate) fn configuration(scenario: &Scenario) -> PathBuf {
    let plugin = scenario.file("plugin.wasm", variant(VALIDATES));
    scenario.config_with(
        TOP,
        &controller(plugin.to_str().unwrap(), "limits: {deadline: 20s}"),
    )
}

/// Starts a host with the webhook, and installs that.
pub(crate) async fn served(scenario: &Scenario, more: &[&str]) -> (Host, PathBuf, Authority) {
    let config = configuration(scenario);
    let authority = certified(scenario);
    let host = scenario.start_with(&config, &[]);
    host.until_log("controller started").await;
    install(scenario, &host, &config, &authority, more).await;
    (host, config, authority)
}

/// Returns the minor version of the API server.
pub(crate) async fn minor(scenario: &Scenario) -> u32 {
    control_plane::deployed::minor(&scenario.client)
        .await
        .expect("a version")
}

/// Reports whether this API server supports `matchConditions`.
async fn knows_match_conditions(scenario: &Scenario) -> bool {
    minor(scenario).await >= 28
}

/// Returns the port of this host's webhook.
pub(crate) async fn port(host: &Host) -> u16 {
    host.until_port("serving the webhook").await
}

/// Returns the output of `webhook-manifests` for this host, which takes the kinds in `crds` from there. Old API servers do
/// not support `matchConditions`.
pub(crate) async fn manifests(
    scenario: &Scenario,
    host: &Host,
    config: &Path,
    authority: &Authority,
    crds: &Path,
    more: &[&str],
) -> Vec<DynamicObject> {
    let port = port(host).await;
    let url = format!("https://127.0.0.1:{port}/validate");
    let name = format!("test-{}", scenario.namespace);
    let manifest = program(&["webhook-manifests", "--url", &url, "--name", &name, "--config"])
        .arg(config)
        .arg("--ca")
        .arg(authority.0.join("ca.crt"))
        .arg("--crd")
        .arg(crds)
        .args(more)
        .args((!knows_match_conditions(scenario).await).then_some("--no-match-conditions"))
        .prints();
    serde_saphyr::from_multiple(&manifest).unwrap()
}

/// Applies the webhooks for puppets.
pub(crate) async fn install(
    scenario: &Scenario,
    host: &Host,
    config: &Path,
    authority: &Authority,
    more: &[&str],
) {
    install_for(scenario, host, config, authority, &puppets(), more).await;
}

/// Returns the file with the definitions of the puppets.
pub(crate) fn puppets() -> PathBuf {
    crate::support::root().join("tests/fixtures/puppet/crds.yaml")
}

/// Applies the webhooks for the kinds of other definitions.
pub(crate) async fn install_for(
    scenario: &Scenario,
    host: &Host,
    config: &Path,
    authority: &Authority,
    crds: &Path,
    more: &[&str],
) {
    let name = format!("test-{}", scenario.namespace);
    for object in manifests(scenario, host, config, authority, crds, more).await {
        let kind = &object.types.as_ref().unwrap().kind;
        let api = scenario.api(&format!("admissionregistration.k8s.io/v1/{kind}"));
        let params = PatchParams::apply("user").force();
        api.patch(&name, &params, &Patch::Apply(&object))
            .await
            .expect("the manifest is taken");
    }
    label_namespace(scenario).await;
}

/// Sets the label by which webhooks select a namespace: API servers before 1.21 do not do so by themselves.
pub(crate) async fn label_namespace(scenario: &Scenario) {
    let label = json!({"metadata": {"labels": {"kubernetes.io/metadata.name": scenario.namespace}}});
    scenario.patch("v1/Namespace", &scenario.namespace, label).await;
}

fn puppet(name: &str, spec: &Value) -> DynamicObject {
    let puppet = json!({
        "apiVersion": "test.operator-host.dev/v1", "kind": "Puppet", "metadata": {"name": name}, "spec": spec,
    });
    serde_json::from_value(puppet).unwrap()
}

/// Creates a puppet, and returns the error if the API server refuses it.
async fn create(
    scenario: &Scenario,
    name: &str,
    spec: &Value,
    dry_run: bool,
) -> Result<(), kube::core::Status> {
    let params = PostParams {
        dry_run,
        ..PostParams::default()
    };
    match scenario.api(PUPPET).create(&params, &puppet(name, spec)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(*status),
        Err(error) => panic!("{error}"),
    }
}

/// Repeats this until the API server refuses it with these words: a new webhook takes effect after a moment.
pub(crate) async fn until_refused(scenario: &Scenario, spec: &Value, words: &str) -> kube::core::Status {
    eventually(&format!("refused with {words:?}"), async || {
        match create(scenario, "probe", spec, true).await {
            Err(status) if status.message.contains(words) => Ok(status),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Waits until the host is ready, and says this about it.
async fn until_ready(host: &Host, words: &str) {
    eventually(&format!("ready, with {words:?}"), async || {
        let (status, ready) = get(host, "/readyz?verbose").await;
        (status == 200 && contains(&ready, words))
            .then_some(())
            .ok_or(ready)
    })
    .await;
}

/// The variant of the puppet that validates, and does nothing else that the first does not.
const VALIDATES: u8 = 7;

fn good() -> Value {
    json!({"response": {"children": [config_map("good", "1")]}})
}

pub(crate) fn invalid() -> Value {
    json!({"invalid": [{"path": "spec.size", "message": "3 is less than 5"}]})
}

#[tokio::test]
async fn what_the_plugin_calls_invalid_is_not_written_and_its_failures_follow_the_policy() {
    let scenario = Scenario::new("webhook").await;
    let (host, config, authority) = served(&scenario, &["--timeout", "2"]).await;
    let refused = until_refused(&scenario, &invalid(), "denied the request").await;
    let words =
        "admission webhook \"puppet.operator-host.dev\" denied the request: spec.size: 3 is less than 5";
    assert_contains(&refused.message, words);
    assert_eq!(refused.code, 422);
    create(&scenario, "p", &invalid(), false)
        .await
        .expect_err("it is denied");
    assert!(scenario.get(PUPPET, "p").await.is_none());

    create(&scenario, "p", &good(), false).await.expect("it is taken");
    scenario.until_ready("p").await;
    let patch = Patch::Merge(json!({ "spec": invalid() }));
    let update = scenario
        .api(PUPPET)
        .patch("p", &PatchParams::default(), &patch)
        .await;
    assert_contains(&update.unwrap_err().to_string(), "3 is less than 5");
    assert_eq!(scenario.get(PUPPET, "p").await.unwrap().data["spec"], good());

    // No decision: `Fail` refuses, within the webhook's timeout.
    let traps = json!({"validate": "trap"});
    let status = create(&scenario, "traps", &traps, false)
        .await
        .expect_err("no decision");
    let words = "failed calling webhook … puppet.operator-host.dev";
    assert_contains(&status.message, words);
    let start = Instant::now();
    let slow = json!({"validate": "busy", "busy": 1_000_000});
    create(&scenario, "slow", &slow, false)
        .await
        .expect_err("no decision");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let metrics = get(&host, "/metrics").await.1;
    for result in ["allowed", "denied", "failed"] {
        let line = metrics.lines().find(|line| {
            line.starts_with("operator_host_webhook_reviews_total")
                && line.contains(&format!("result=\"{result}\""))
        });
        assert!(line.is_some(), "{result} is not in {metrics}");
    }
    assert_contains(&metrics, "operator_host_webhook_serving");

    // `Ignore` admits it, and existing resources can be deleted, whether valid or not.
    install(
        &scenario,
        &host,
        &config,
        &authority,
        &["--failure-policy", "ignore"],
    )
    .await;
    let taken = async || create(&scenario, "traps", &traps, false).await.is_ok();
    until_true("it is taken", taken).await;
    scenario.until_stalled("traps", "PluginTrapped").await;
    scenario.remove(PUPPET, "p").await;
    host.kill();
    // No host answers.
    create(&scenario, "free", &invalid(), false)
        .await
        .expect("it is taken");
    scenario.delete(PUPPET, "free").await;
}

#[tokio::test]
async fn certificates_that_are_missing_expired_or_replaced_are_named_and_followed() {
    let scenario = Scenario::new("webhook-certificates").await;
    let config = configuration(&scenario);
    let (first, second) = (
        Authority::new(&scenario, "first"),
        Authority::new(&scenario, "second"),
    );
    let host = scenario.start_with(&config, &[]);
    until_ready(
        &host,
        "webhook ok: cannot read … tls.crt … does not answer until there is a valid one",
    )
    .await;
    install(&scenario, &host, &config, &first, &[]).await;
    until_refused(&scenario, &good(), "failed calling webhook").await;
    let count = |words: &str| host.log().lines().filter(|line| line.contains(words)).count();
    assert_eq!(
        count("does not answer until there is a valid one"),
        1,
        "reported once"
    );

    put(&scenario, first.sign("-1"));
    until_ready(
        &host,
        "the certificate expired at … the API server does not accept it",
    )
    .await;
    assert_contains(&get(&host, "/metrics").await.1, "operator_host_webhook_serving");
    until_refused(&scenario, &good(), "certificate has expired").await;

    // A key of another certificate, as between two writes; then the matching one.
    let (certificate, key) = first.sign("1");
    scenario.file("tls.crt", &certificate);
    until_ready(
        &host,
        "cannot be used together … the previous certificate is still in use",
    )
    .await;
    scenario.file("tls.key", key);
    until_ready(&host, "[+]webhook ok\n").await;
    until_refused(&scenario, &invalid(), "denied the request").await;

    // Another CA: the host presents the new certificate, and the API server is configured to trust it.
    put(&scenario, second.sign("1"));
    install(&scenario, &host, &config, &second, &[]).await;
    until_refused(&scenario, &invalid(), "denied the request").await;
}

#[tokio::test]
async fn with_an_expired_certificate_deletions_succeed_where_the_api_server_knows_match_conditions() {
    let scenario = Scenario::new("webhook-expired").await;
    let (host, config, authority) = served(&scenario, &[]).await;
    until_refused(&scenario, &invalid(), "denied the request").await;
    create(&scenario, "p", &good(), false).await.expect("it is taken");
    let finalizer = "operator-host.dev/puppet".to_owned();
    let has = |p: &DynamicObject| {
        p.metadata
            .finalizers
            .as_ref()
            .is_some_and(|all| all.contains(&finalizer))
    };
    scenario.until(PUPPET, "p", "guarded by the host", has).await;

    // The API server checks a certificate when it connects, and reuses its connections.
    host.kill();
    put(&scenario, authority.sign("-1"));
    // With its own log, which contains its port.
    let host = scenario.start_named("expired", &config);
    install(&scenario, &host, &config, &authority, &[]).await;
    until_refused(&scenario, &good(), "certificate has expired").await;
    scenario.delete(PUPPET, "p").await;
    if !knows_match_conditions(&scenario).await {
        // The host cannot remove its finalizer until the certificate is renewed, and then does.
        put(&scenario, authority.sign("1"));
    }
    scenario.until_gone(PUPPET, "p").await;
}
