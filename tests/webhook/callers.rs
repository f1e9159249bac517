//! Callers of the webhook: what they can cost the host, and what they get to see.

use crate::support::prelude::*;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::support::measure::peak;

/// The result of a call.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) text: String,
}

/// Connects from this address of the loopback network.
pub(super) async fn reach(host: &Host, from: [u8; 4]) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(([127, 0, 0, 1], port(host).await).into()).await
}

/// Starts TLS as the API server would, with or without a certificate.
pub(super) async fn greet(
    stream: TcpStream,
    authority: &Authority,
    certificate: Option<&(Vec<u8>, Vec<u8>)>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let pem = std::fs::read(authority.0.join("ca.crt")).unwrap();
    roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match certificate {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => config
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(certificate).unwrap()],
                PrivateKeyDer::from_pem_slice(key).unwrap(),
            )
            .unwrap(),
    };
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Sends a review as the API server would, with or without a certificate.
pub(crate) async fn call(
    host: &Host,
    authority: &Authority,
    certificate: Option<&(Vec<u8>, Vec<u8>)>,
    body: &[u8],
) -> std::io::Result<Answer> {
    call_from([127, 0, 0, 1], host, authority, certificate, body).await
}

/// Sends a review to a path, such as `/convert`, without a certificate.
pub(crate) async fn call_at(
    path: &str,
    host: &Host,
    authority: &Authority,
    body: &[u8],
) -> std::io::Result<Answer> {
    let stream = greet(reach(host, [127, 0, 0, 1]).await?, authority, None).await?;
    send(stream, path, body).await
}

/// Sends a review as [`call`] does, from another address of the loopback network.
pub(super) async fn call_from(
    from: [u8; 4],
    host: &Host,
    authority: &Authority,
    certificate: Option<&(Vec<u8>, Vec<u8>)>,
    body: &[u8],
) -> std::io::Result<Answer> {
    let stream = greet(reach(host, from).await?, authority, certificate).await?;
    send(stream, "/validate", body).await
}

async fn send(mut stream: TlsStream<TcpStream>, path: &str, body: &[u8]) -> std::io::Result<Answer> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    // A server that refuses because of the length need not read the rest.
    let _ = stream.write_all(body).await;
    // TLS may keep the end of it for itself until then, and the server would wait.
    let _ = stream.flush().await;
    let mut answer = Vec::new();
    // A connection may also end without TLS's close_notify.
    let read = stream.read_to_end(&mut answer).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    match text.split(' ').nth(1).and_then(|status| status.parse().ok()) {
        Some(status) => Ok(Answer { status, text }),
        None => Err(read.err().unwrap_or_else(|| std::io::Error::other("no answer"))),
    }
}

pub(super) fn review(object: &str) -> Vec<u8> {
    let kind = r#"{"group": "test.operator-host.dev", "version": "v1", "kind": "Puppet"}"#;
    format!(
        r#"{{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {{
            "uid": "1", "kind": {kind}, "operation": "CREATE", "name": "p", "namespace": "n", "object": {object}}}}}"#
    )
    .into_bytes()
}

pub(super) fn puppet_of(spec: &str) -> String {
    format!(
        r#"{{"apiVersion": "test.operator-host.dev/v1", "kind": "Puppet",
            "metadata": {{"name": "p", "namespace": "n", "uid": "u"}}, "spec": {spec}}}"#
    )
}

#[tokio::test]
async fn what_an_unverified_caller_sends_costs_little_and_reveals_nothing_and_is_answered_until_a_replica_has_stopped()
 {
    let scenario = Scenario::new("webhook-nobody").await;
    let (host, authority) = slow::host(&scenario).await;
    let ask = async |body: &[u8]| call(&host, &authority, None, body).await.expect("an answer");

    let good = ask(&review(&puppet_of("{}"))).await;
    assert_eq!(good.status, 200, "{good:?}");
    assert_contains(&good.text, "\"allowed\":true … \"uid\":\"1\"");
    let before = peak(&host);

    // 16 MiB, with and without a length; and an object that is small as text and large when parsed.
    let huge = review(&puppet_of(&format!("[{}0]", "{},".repeat(5 << 20))));
    assert_eq!(ask(&huge).await.status, 413);
    for dense in ["{\"a\":0},", "[[]],", "{},"] {
        let spec = format!("[{}0]", dense.repeat((3 << 20) / dense.len() - 200));
        let body = review(&puppet_of(&spec));
        assert!(body.len() <= 3 << 20, "{}", body.len());
        let answer = ask(&body).await;
        assert_eq!(answer.status, 500, "{}", answer.text);
        assert_contains(&answer.text, "the object would take … the limit is 64 MiB");
    }
    for body in [&b"{}"[..], b"[", &[b'['; 100_000]] {
        assert_eq!(ask(body).await.status, 400);
    }
    let grown = (peak(&host) - before) >> 20;
    assert!(grown < 64, "{grown} MiB more than before, at the most");

    // The plugin's output is in the log, but this caller does not get it.
    let traps = ask(&review(&puppet_of(r#"{"validate": "panic"}"#))).await;
    assert_eq!(traps.status, 500);
    assert_contains(&traps.text, "the plugin gave no answer: the host's log says why");
    assert!(!traps.text.contains("panic"), "{}", traps.text);
    host.until_log("the webhook makes no decision … panic").await;
    // It does get the decision.
    let invalid = puppet_of(&invalid().to_string());
    let denied = ask(&review(&invalid)).await;
    assert_contains(&denied.text, "\"allowed\":false … spec.size: 3 is less than 5");
    // Deletions are always allowed, whether or not there is a controller.
    let going = |text: &str| {
        text.replacen(
            "\"uid\": \"u\"",
            "\"deletionTimestamp\": \"2026-01-01T00:00:00Z\"",
            1,
        )
    };
    let text = String::from_utf8(review(&going(&invalid))).unwrap();
    for kind in ["Puppet", "Nobodys"] {
        let body = text.replacen("\"kind\": \"Puppet\"", &format!("\"kind\": \"{kind}\""), 1);
        assert_contains(&ask(body.as_bytes()).await.text, "\"allowed\":true");
    }

    host.terminate();
    host.until_log("stopping: waiting for the reconciles in progress")
        .await;
    // As long as a slow node needs until the Service no longer has the replica.
    let stopped = Instant::now();
    while stopped.elapsed() < Duration::from_secs(3) {
        assert_eq!(ask(&review(&puppet_of("{}"))).await.status, 200);
    }
    assert_eq!(host.ended().await.code(), Some(0));
}

#[tokio::test]
async fn only_who_shows_a_certificate_of_the_configured_authority_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let callers = Authority::within(folder.path(), "callers");
    let client = callers.sign("1");
    let at = |name: &str| callers.0.join(name).display().to_string();
    // The API server's side, as the documentation describes it.
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\nusers:\n  - name: '*'\n    user: {{client-certificate: {}, client-key: {}}}\n",
        at("tls.crt"),
        at("tls.key")
    );
    std::fs::write(at("kubeconfig"), kubeconfig).unwrap();
    let admission = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n  - name: ValidatingAdmissionWebhook\n    \
         configuration:\n      apiVersion: apiserver.config.k8s.io/v1\n      kind: WebhookAdmissionConfiguration\n      \
         kubeConfigFile: {}\n",
        at("kubeconfig")
    );
    std::fs::write(at("admission.yaml"), admission).unwrap();
    let mut options = Options::default();
    options.apiserver_flags.push(format!(
        "--admission-control-config-file={}",
        at("admission.yaml")
    ));
    let cluster = own_cluster(options).await;
    let scenario = Scenario::within(&cluster, "webhook-callers").await;
    let config = configuration(&scenario);
    let authority = certified(&scenario);
    let host = scenario.start_with(&config, &["--client-ca", &at("ca.crt")]);
    host.until_log("controller started").await;
    install(&scenario, &host, &config, &authority, &[]).await;
    until_refused(&scenario, &invalid(), "denied the request").await;
    create(&scenario, "p", &good(), false).await.expect("it is taken");
    // A verified caller gets more details.
    let traps = create(&scenario, "traps", &json!({"validate": "panic"}), false).await;
    assert_contains(&traps.unwrap_err().message, "failed calling webhook … panic");

    let good = review(&puppet_of("{}"));
    let known = call(&host, &authority, Some(&client), &good).await.unwrap();
    assert_eq!(known.status, 200);
    let others = Authority::within(folder.path(), "others").sign("1");
    call(&host, &authority, Some(&others), &good)
        .await
        .expect_err("nobody is answered with another certificate");
    // The API server converts without a certificate, so the connection is possible.
    let nobody = call(&host, &authority, None, &good).await.unwrap();
    assert_eq!(nobody.status, 403, "{nobody:?}");
}

#[tokio::test]
async fn a_plugin_that_cannot_be_used_takes_nobody_elses_webhook_away() {
    let scenario = Scenario::new("webhook-neighbour").await;
    let broken = scenario.file("broken.wasm", b"no plugin").display().to_string();
    let plugin = scenario.file("plugin.wasm", variant(VALIDATES));
    let neighbour = controller(plugin.to_str().unwrap(), "")
        + &crate::samples::echo::CONTROLLER.replace("echo.wasm", &broken);
    let config = scenario.config_with(TOP, &neighbour);
    let authority = certified(&scenario);
    let host = scenario.start_with(&config, &[]);
    host.until_log("broken.wasm cannot be used").await;
    // The Service's endpoints are the ready pods.
    until_ready(
        &host,
        "[-]plugin/echo failed, the others are served:  … readyz check passed",
    )
    .await;
    let denied = call(
        &host,
        &authority,
        None,
        &review(&puppet_of(&invalid().to_string())),
    )
    .await
    .unwrap();
    assert_contains(&denied.text, "3 is less than 5");
}
