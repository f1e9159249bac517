//! What registries do that no real one can be made to do: small servers that lie, are slow, send too much, redirect, and
//! ask for credentials.

mod server;

use std::sync::Arc;
use std::time::Duration;

use super::artifact::Artifact;
use super::pull::{Found, Puller};
use operator_host_config::reference::Reference;
use operator_host_config::registry::RegistryConfig;
use operator_host_core::digest::Digest;

use self::server::{Answer, Seen, Server};

const LIMIT: usize = 1 << 20;
const PLUGIN: &[u8] = b"\0asm plugin";

fn artifact() -> Artifact {
    Artifact::of_plugin(PLUGIN.to_vec(), "echo", "1.4.0", None)
}

fn digest() -> Digest {
    Digest::of(PLUGIN)
}

/// Answers like a registry that has the artifact with the tag `1`.
fn honest(seen: &Seen) -> Answer {
    let artifact = artifact();
    let manifest = artifact.descriptor().digest;
    let path = seen.path.strip_prefix("/v2/team/echo/").unwrap_or_default();
    match path {
        _ if path == "manifests/1" || path == format!("manifests/{manifest}") => {
            Answer::ok(&artifact.manifest).with("Docker-Content-Digest", &manifest.to_string())
        }
        _ if path == format!("blobs/{}", digest()) => Answer::ok(PLUGIN),
        _ => Answer::status(404),
    }
}

fn settings(servers: &[&Server]) -> RegistryConfig {
    RegistryConfig {
        timeout: Duration::from_secs(10),
        plain_http: servers.iter().map(|server| server.name()).collect(),
        ..RegistryConfig::default()
    }
}

fn reference(server: &Server) -> Reference {
    format!("{}/team/echo:1", server.name()).parse().unwrap()
}

fn puller(server: &Server, settings: RegistryConfig) -> Puller {
    Puller::new(reference(server), Arc::new(settings), Arc::default(), LIMIT).unwrap()
}

/// Pulls the plugin; returns its bytes or the message.
async fn pull(puller: &mut Puller) -> Result<Vec<u8>, String> {
    let words = |error: super::error::RegistryError| error.to_string();
    let found = puller.find(None).await.map_err(words)?.expect("a manifest");
    Ok(puller.fetch(&found).await.map_err(words)?.to_vec())
}

/// Pulls from a server that answers so, and returns the message.
async fn refused(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> String {
    let server = Server::start(answer).await;
    let settings = RegistryConfig {
        timeout: Duration::from_millis(500),
        ..settings(&[&server])
    };
    error_of(&server, settings).await
}

/// Returns why a plugin cannot be pulled from a server.
async fn error_of(server: &Server, settings: RegistryConfig) -> String {
    pull(&mut puller(server, settings)).await.unwrap_err()
}

fn unauthorized(challenge: &str) -> Answer {
    Answer::status(401).with("WWW-Authenticate", challenge)
}

/// Returns the artifact as it is found.
fn found(plugin: &Artifact) -> Found {
    Found {
        manifest: plugin.descriptor().digest,
        layer: plugin.blobs[1].0.clone(),
    }
}

/// Returns the signatures of a plugin until one is accepted.
async fn signatures(server: &Server, found: &Found, accepts: bool) -> Vec<bytes::Bytes> {
    let found = puller(server, settings(&[server]))
        .signatures(found, |_| accepts)
        .await;
    found.unwrap()
}

/// Answers honestly, except for paths with this part.
fn except(part: &'static str, answer: impl Fn() -> Answer) -> impl Fn(&Seen) -> Answer {
    move |seen| match seen.path.contains(part) {
        true => answer(),
        false => honest(seen),
    }
}

#[tokio::test]
async fn a_tag_that_did_not_move_costs_one_request_without_contents() {
    let server = Server::start(honest).await;
    let mut puller = puller(&server, settings(&[&server]));
    assert_eq!(pull(&mut puller).await.unwrap(), PLUGIN);
    let manifest = artifact().descriptor().digest;
    server.forget();
    assert!(puller.find(Some(manifest)).await.unwrap().is_none());
    let seen = server.seen();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(
        (seen[0].method.as_str(), seen[0].path.as_str()),
        ("HEAD", "/v2/team/echo/manifests/1")
    );
    assert_eq!(
        seen[0].header("if-none-match"),
        Some(format!("\"{manifest}\"").as_str())
    );
    // The known one is another.
    assert!(puller.find(Some(digest())).await.unwrap().is_some());
}

#[tokio::test]
async fn contents_with_another_digest_are_not_used() {
    let other = || Answer::ok(b"\0asm plugiN");
    let error = refused(except("/blobs/", other)).await;
    assert!(
        error.contains("sent other contents") && error.contains(&digest().to_string()),
        "{error}"
    );
    let manifest = || Answer::ok(&artifact().manifest).with("Docker-Content-Digest", &digest().to_string());
    let error = refused(except("/manifests/", manifest)).await;
    assert!(error.contains("sent other contents"), "{error}");
    // By digest, whatever the registry says about it.
    let server = Server::start(honest).await;
    let wanted = reference(&server).at(digest());
    let lying = Server::start(except("/manifests/", || Answer::ok(&artifact().manifest))).await;
    let wanted = Reference {
        registry: lying.name(),
        ..wanted
    };
    let mut puller = Puller::new(wanted, Arc::new(settings(&[&lying])), Arc::default(), LIMIT).unwrap();
    let error = puller.find(None).await.unwrap_err().to_string();
    assert!(error.contains("sent other contents"), "{error}");
}

#[tokio::test]
async fn no_more_is_read_than_the_manifest_says() {
    for endless in [Answer::endless(Some(10 << 30)), Answer::endless(None)] {
        let error = refused(except("/blobs/", move || endless.clone())).await;
        let expected = format!("sends more than {} bytes", PLUGIN.len());
        assert!(error.contains(&expected), "{error}");
    }
    for endless in [Answer::endless(Some(10 << 30)), Answer::endless(None)] {
        let error = refused(except("/manifests/", move || endless.clone())).await;
        assert!(error.contains("sends more than 1048576 bytes"), "{error}");
    }
    // An error of a registry is only read as far as it is shown.
    let error = refused(|_| Answer::endless(None).and_status(500)).await;
    assert!(error.contains("answered 500"), "{error}");
}

#[tokio::test]
async fn a_plugin_that_is_too_large_is_not_asked_for() {
    let large = || {
        let manifest = String::from_utf8(artifact().manifest).unwrap();
        let size = format!("\"size\":{}", PLUGIN.len());
        Answer::ok(manifest.replace(&size, "\"size\":10737418240").as_bytes())
    };
    let server = Server::start(except("/manifests/", large)).await;
    let error = error_of(&server, settings(&[&server])).await;
    let words = "10737418240 bytes, the limit is 1048576";
    assert!(error.contains(words), "{error}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_registry_that_is_slow_or_broken_costs_no_more_than_the_time_it_has() {
    for part in ["/manifests/", "/blobs/"] {
        for answer in [Answer::Stalled, Answer::trickle()] {
            let start = std::time::Instant::now();
            let error = refused(except(part, move || answer.clone())).await;
            assert!(error.contains("did not answer within 500ms"), "{part}: {error}");
            assert!(start.elapsed() < Duration::from_secs(5), "{part}");
        }
        let error = refused(except(part, || Answer::Raw(b"nonsense\r\n\r\n".to_vec()))).await;
        assert!(error.contains("cannot reach"), "{part}: {error}");
        let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n\0asm".to_vec();
        let error = refused(except(part, move || Answer::Raw(cut.clone()))).await;
        assert!(error.contains("the connection broke"), "{part}: {error}");
    }
    let error = refused(|_| {
        Answer::ok(br#"{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "a\u001b[31mb"}]}"#)
            .and_status(404)
    })
    .await;
    assert!(
        error.contains("does not have") && error.ends_with("(MANIFEST_UNKNOWN)"),
        "{error}"
    );
    let error =
        refused(|_| Answer::ok(br#"{"errors": [{"code": "GONE", "message": "b"}]}"#).and_status(404)).await;
    assert!(error.ends_with("echo:1"), "{error}");
}

#[tokio::test]
async fn nothing_of_the_credentials_is_shown_whatever_a_registry_quotes() {
    let quote = |seen: &Seen| seen.header("authorization").map(str::to_owned);
    let target = Server::start(honest).await;
    let elsewhere = target.name();
    // The quoted header is `Basic` with team:password in base64.
    type Quotes = fn(&str, &str) -> Answer;
    let answers: [(&str, Quotes); 5] = [
        ("manifests", |header, _| {
            let code = format!(r#"{{"errors": [{{"code": "{header}", "message": "team:password"}}]}}"#);
            Answer::ok(code.as_bytes()).and_status(500)
        }),
        ("manifests", |header, _| {
            let message = format!(r#"{{"errors": [{{"code": "DENIED", "message": "{header}"}}]}}"#);
            Answer::ok(message.as_bytes()).and_status(403)
        }),
        ("manifests", |header, _| {
            Answer::ok(format!(r#"{{"schemaVersion": "{header} team:password"}}"#).as_bytes())
        }),
        ("manifests", |header, _| {
            let layer = format!(
                r#"{{"mediaType": "{header}", "digest": "{}", "size": 1}}"#,
                digest()
            );
            Answer::ok(format!(r#"{{"schemaVersion": 2, "layers": [{layer}]}}"#).as_bytes())
        }),
        ("blobs", |_, elsewhere| {
            Answer::status(307).with("Location", &format!("http://{elsewhere}/password"))
        }),
    ];
    for (index, (part, answer)) in answers.into_iter().enumerate() {
        let elsewhere = elsewhere.clone();
        let server = Server::start(move |seen| match quote(seen) {
            None => unauthorized("Basic realm=r"),
            Some(header) if seen.path.contains(part) => answer(&header, &elsewhere),
            Some(_) => honest(seen),
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let settings = RegistryConfig {
            credentials: Some(server.credentials_of(folder.path(), "dGVhbTpwYXNzd29yZA==")),
            ..settings(&[&server, &target])
        };
        let error = error_of(&server, settings).await;
        let error = error.to_ascii_lowercase();
        for secret in ["dgvhbtpwyxnzd29yza", "password"] {
            assert!(!error.contains(secret), "{index}: {error}");
        }
    }
}

#[tokio::test]
async fn a_token_server_that_cannot_be_asked_is_reported_as_such() {
    for realm in [
        "file:///etc/passwd",
        "tokens",
        "http://a:b@127.0.0.1:1/token",
        "http://a b/",
    ] {
        let error = refused(move |_| {
            Answer::status(401).with("WWW-Authenticate", &format!("Bearer realm=\"{realm}\""))
        })
        .await;
        assert!(
            error.contains("refuses access")
                && error.contains("names no token server")
                && !error.contains("a:b"),
            "{realm}: {error}"
        );
    }
}

#[tokio::test]
async fn a_registry_that_has_too_many_requests_gets_the_time_that_it_asks_for() {
    let busy = |seconds: &str| Answer::status(429).with("Retry-After", seconds);
    let server = Server::start(move |_| busy("86400")).await;
    let error = puller(&server, settings(&[&server]))
        .find(None)
        .await
        .unwrap_err();
    assert_eq!(error.wait(), Some(Duration::from_secs(86400)));
    assert!(error.to_string().contains("; it asks to wait 86400s"), "{error}");
    assert_eq!(server.seen().len(), 1);
    // Neither a date nor another status is one.
    let server =
        Server::start(|_| Answer::status(500).with("Retry-After", "Fri, 31 Dec 1999 23:59:59 GMT")).await;
    let error = puller(&server, settings(&[&server]))
        .find(None)
        .await
        .unwrap_err();
    assert_eq!(error.wait(), None);
}

#[tokio::test]
async fn a_redirect_never_takes_credentials_along() {
    let storage = Server::start(|_| Answer::ok(PLUGIN)).await;
    let to = format!("http://{}/storage", storage.name());
    let server = Server::start(move |seen| match seen.path.contains("/blobs/") {
        true if seen.header("authorization").is_some() => Answer::status(307).with("Location", &to),
        _ if seen.header("authorization").is_none() => unauthorized("Basic realm=r"),
        _ => honest(seen),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let settings = RegistryConfig {
        credentials: Some(server.credentials(folder.path())),
        ..settings(&[&server])
    };
    assert_eq!(pull(&mut puller(&server, settings)).await.unwrap(), PLUGIN);
    assert_eq!(storage.seen()[0].header("authorization"), None);
}

#[tokio::test]
async fn redirects_end_and_nothing_but_layers_is_redirected() {
    let targets = "/v2/team/echo/blobs/again file:///etc/passwd //x https://user:password@example.com/";
    for target in targets.split(' ') {
        let redirect = move || Answer::status(302).with("Location", target);
        let error = refused(except("/blobs/", redirect)).await;
        assert!(
            error.contains("redirects") || error.contains("URL"),
            "{target}: {error}"
        );
        assert!(!error.contains("password@"), "{error}");
        let error = refused(except("/manifests/", redirect)).await;
        assert!(error.contains("only of layers"), "{target}: {error}");
        assert!(!error.contains("password"), "{error}");
    }
}

#[tokio::test]
async fn a_token_is_fetched_with_the_credentials_and_for_the_repository_only() {
    let tokens = Server::start(|seen| match seen.header("authorization") {
        Some("Basic dGVhbTpwYXNz") if seen.path.contains("scope=repository%3Ateam%2Fecho%3Apull") => {
            Answer::ok(br#"{"token": "t1", "expires_in": 300}"#)
        }
        Some(_) => Answer::status(403),
        None => Answer::ok(br#"{"access_token": "anonymous"}"#),
    })
    .await;
    // Whatever the registry names, the token is for this repository only.
    let realm = format!(
        "Bearer realm=\"http://{}/token\",service=\"r\",scope=\"repository:other/secret:pull,push\"",
        tokens.name()
    );
    let server = Server::start(move |seen| match seen.header("authorization") {
        Some("Bearer t1") => honest(seen),
        _ => unauthorized(&realm),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let known = RegistryConfig {
        credentials: Some(server.credentials(folder.path())),
        ..settings(&[&server])
    };
    assert_eq!(pull(&mut puller(&server, known.clone())).await.unwrap(), PLUGIN);
    assert_eq!(tokens.seen().len(), 1, "one token serves all requests");
    let anonymous = RegistryConfig {
        credentials: None,
        ..known.clone()
    };
    let error = error_of(&server, anonymous).await;
    assert!(error.contains("does not accept these credentials"), "{error}");
    // Endless tokens, and what is none.
    for (answer, expected) in [
        (Answer::endless(None), "sends more than 65536 bytes for a token"),
        (Answer::ok(b"{}"), "without a token"),
        (Answer::status(500), "answers 500"),
        (Answer::Stalled, "did not answer"),
    ] {
        let bad = Server::start(move |_| answer.clone()).await;
        let realm = format!("Bearer realm=\"http://{}/\"", bad.name());
        let asking = Server::start(move |_| unauthorized(&realm)).await;
        let settings = RegistryConfig {
            timeout: Duration::from_millis(500),
            ..settings(&[&asking])
        };
        let error = error_of(&asking, settings).await;
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn credentials_that_are_missing_or_wrong_are_named_and_never_shown() {
    let server = Server::start(|_| unauthorized("Basic realm=r")).await;
    let error = error_of(&server, settings(&[&server])).await;
    assert!(error.contains("`registry.credentials`"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let with = |file: std::path::PathBuf| RegistryConfig {
        credentials: Some(file),
        ..settings(&[&server])
    };
    let known = server.credentials(folder.path());
    let error = error_of(&server, with(known)).await;
    assert!(
        error.contains("does not accept these credentials") && !error.contains("pass"),
        "{error}"
    );
    let error = error_of(&server, with(folder.path().join("gone"))).await;
    assert!(error.contains("cannot read the credentials"), "{error}");
    let odd = refused(|_| Answer::status(401)).await;
    assert!(odd.contains("neither a password nor a token"), "{odd}");
}

#[tokio::test]
async fn signatures_are_found_by_the_interface_and_by_the_tag() {
    let plugin = artifact();
    let subject = plugin.descriptor();
    let signature = Artifact::of_signature(b"{\"a\": 1}".to_vec(), &subject);
    let index = super::artifact::with_referrer(None, &signature).unwrap();
    for path in ["referrers/sha256:", "manifests/sha256-"] {
        let (index, manifest) = (index.clone(), signature.manifest.clone());
        let described = signature.descriptor().digest.to_string();
        let server = Server::start(move |seen| match seen.path.as_str() {
            it if it.contains(path) => Answer::ok(&index),
            it if it.contains(&described) => Answer::ok(&manifest),
            it if it.contains(&Digest::of(b"{\"a\": 1}").to_string()) => Answer::ok(b"{\"a\": 1}"),
            _ => honest(seen),
        })
        .await;
        let mut puller = puller(&server, settings(&[&server]));
        let found = puller.find(None).await.unwrap().unwrap();
        let signatures = puller.signatures(&found, |_| false).await.unwrap();
        assert_eq!(signatures, [bytes::Bytes::from_static(b"{\"a\": 1}")], "{path}");
    }
    let server = Server::start(honest).await;
    let found = found(&plugin);
    let none = signatures(&server, &found, false).await;
    assert!(none.is_empty());
}

#[tokio::test]
async fn signatures_that_cannot_be_read_or_are_not_accepted_do_not_hide_those_that_are() {
    let plugin = artifact();
    let subject = plugin.descriptor();
    let signatures: Vec<_> = (0..3)
        .map(|number| Artifact::of_signature(format!("{{\"a\": {number}}}").into_bytes(), &subject))
        .collect();
    let mut index = serde_json::json!({"manifests": [
        {"mediaType": "a", "digest": "sha512:00", "size": 1}, 1,
    ]})
    .to_string()
    .into_bytes();
    for signature in &signatures {
        index = super::artifact::with_referrer(Some(&index), signature).unwrap();
    }
    // The newest manifest is gone; the tag of cosign is broken.
    let readable: Vec<_> = signatures[..2]
        .iter()
        .map(|signature| (signature.descriptor().digest, signature.manifest.clone()))
        .collect();
    let readable = move |path: &str| {
        let manifest = readable
            .iter()
            .find(|(digest, _)| path.contains(&digest.to_string()));
        let envelope = [b"{\"a\": 0}", b"{\"a\": 1}"]
            .into_iter()
            .find(|envelope| path.contains(&Digest::of(*envelope).to_string()));
        let envelope = envelope.map(|envelope| envelope.to_vec());
        manifest.map(|(_, manifest)| manifest.clone()).or(envelope)
    };
    let server = Server::start(move |seen| match seen.path.as_str() {
        it if it.ends_with(".sig") => Answer::status(500),
        it if it.contains("/referrers/") => Answer::ok(&index),
        it => readable(it).map_or_else(|| honest(seen), |body| Answer::ok(&body)),
    })
    .await;
    let found = found(&plugin);
    let mut own = puller(&server, settings(&[&server]));
    let all = own.signatures(&found, |_| false).await.unwrap();
    assert_eq!(all, [&b"{\"a\": 1}"[..], b"{\"a\": 0}"], "the newest first");
    let first = own
        .signatures(&found, |signature| signature.ends_with(b"1}"))
        .await;
    assert_eq!(first.unwrap().len(), 1, "no more are read than needed");

    // When nothing can be read, the error says why.
    let broken = Server::start(|seen| match seen.path.contains("/referrers/") {
        true => Answer::status(500),
        false => honest(seen),
    })
    .await;
    let error = puller(&broken, settings(&[&broken]))
        .signatures(&found, |_| true)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("500"), "{error}");
}

#[tokio::test]
async fn of_the_signatures_of_cosign_those_that_can_be_read_are_used() {
    let plugin = artifact();
    let found = found(&plugin);
    let layer = |digest: &str| {
        serde_json::json!({
            "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json", "digest": digest, "size": 2,
            "annotations": {"dev.cosignproject.cosign/signature": "AAAA"},
        })
    };
    let (good, gone) = (Digest::of(b"{}").to_string(), Digest::of(b"gone").to_string());
    let list = serde_json::json!({
        "schemaVersion": 2, "layers": [layer("sha512:00"), layer(&good), layer(&gone)],
    });
    let list = list.to_string();
    let server = Server::start(move |seen| match seen.path.as_str() {
        it if it.ends_with(".sig") => Answer::ok(list.as_bytes()),
        it if it.contains(&good) => Answer::ok(b"{}"),
        _ => honest(seen),
    })
    .await;
    let signatures = signatures(&server, &found, true).await;
    assert_eq!(signatures.len(), 1);
    let signature = crate::cosign::CosignSignature::parse(&signatures[0]).unwrap();
    let crate::cosign::Form::Simple { payload, .. } = signature.form else {
        panic!("{signature:?}");
    };
    assert_eq!(payload.0, b"{}");
}

#[tokio::test]
async fn a_bundle_of_cosign_is_used_and_one_that_states_something_else_is_not_read() {
    use crate::cosign::tests::bundled;
    use crate::cosign::{BUNDLE, CosignSignature, PREDICATE};
    let plugin = artifact();
    let found = found(&plugin);
    let (bundle, key) = bundled(&plugin.manifest, PREDICATE);
    let referrer = |bundle: &str, predicate: &str| {
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": super::artifact::MANIFEST, "artifactType": BUNDLE,
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": Digest::of(b"{}"), "size": 2},
            "layers": [{"mediaType": BUNDLE, "digest": Digest::of(bundle.as_bytes()), "size": bundle.len()}],
        });
        let manifest = manifest.to_string();
        let listed = serde_json::json!({
            "mediaType": super::artifact::MANIFEST, "digest": Digest::of(manifest.as_bytes()), "size": manifest.len(),
            "artifactType": BUNDLE, "annotations": {"dev.sigstore.bundle.predicateType": predicate},
        });
        (manifest, listed)
    };
    let (manifest, signed) = referrer(&bundle, PREDICATE);
    let (_, provenance) = referrer("{}", "https://slsa.dev/provenance/v1");
    let index = serde_json::json!({
        "schemaVersion": 2, "mediaType": super::artifact::INDEX, "manifests": [signed, provenance],
    });
    let (index, read) = (index.to_string(), Digest::of(manifest.as_bytes()).to_string());
    let (unread, contents) = (
        provenance["digest"].as_str().unwrap().to_owned(),
        Digest::of(bundle.as_bytes()),
    );
    let server = Server::start(move |seen| match seen.path.as_str() {
        it if it.contains("/referrers/") => Answer::ok(index.as_bytes()),
        it if it.ends_with(&read) => Answer::ok(manifest.as_bytes()),
        it if it.ends_with(&contents.to_string()) => Answer::ok(bundle.as_bytes()),
        it if it.ends_with(".sig") => Answer::status(404),
        it => {
            assert!(!it.ends_with(&unread), "it is read");
            honest(seen)
        }
    })
    .await;
    let signatures = signatures(&server, &found, false).await;
    assert_eq!(signatures.len(), 1);
    let signature = CosignSignature::parse(&signatures[0]).unwrap();
    assert!(signature.is_signed_by(&key));
    assert_eq!(signature.plugin(), Ok(found.layer.digest));
}

proptest::proptest! {
    /// Whatever a registry or a file says, it is parsed or refused.
    #[test]
    fn no_text_makes_a_parser_panic(
        text in proptest::prop_oneof![
            "\\PC{0,60}",
            "(Bearer|Basic|oci://)?[ -~]{0,40}",
            r#"(\{"(schemaVersion|layers|manifests|cosign|auths|digest)": ?[\[\]{}"0-9a-z:,]{0,30}\}?)"#,
        ],
    ) {
        let _ = super::challenge::Challenge::parse([text.as_str()].into_iter());
        if let Ok(reference) = text.parse::<Reference>() {
            proptest::prop_assert_eq!(reference.to_string().parse::<Reference>(), Ok(reference));
        }
        let _ = super::artifact::plugin_layer(text.as_bytes(), LIMIT);
        let _ = super::artifact::listed(text.as_bytes());
        let _ = crate::cosign::CosignSignature::parse(text.as_bytes()).map(|signature| signature.plugin());
    }
}
