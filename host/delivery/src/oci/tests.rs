//! What registries do that no real one can be made to do: small servers that lie, are slow, send too much, redirect, and
//! ask for credentials.

mod server;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::artifact::{Artifact, INDEX, MANIFEST};
use super::pull::{Found, Puller};
use crate::tests::assert_says;
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
    let manifest = manifest.to_string();
    match path.split_once('/') {
        Some(("manifests", version)) if version == "1" || version == manifest => {
            Answer::ok(&artifact.manifest).with("Docker-Content-Digest", &manifest)
        }
        Some(("blobs", blob)) if blob == digest().to_string() => Answer::ok(PLUGIN),
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
    Puller::new(reference(server), Arc::new(settings), Arc::default(), LIMIT)
}

/// Pulls the plugin; returns its bytes or the message.
async fn pull(puller: &mut Puller) -> Result<Vec<u8>, String> {
    let words = |error: super::error::RegistryError| error.to_string();
    let found = puller.find(None).await.map_err(words)?.expect("a manifest");
    Ok(puller.fetch(&found).await.map_err(words)?.to_vec())
}

/// Returns settings with the credentials team and pass for a server.
fn known(server: &Server, folder: &tempfile::TempDir) -> RegistryConfig {
    RegistryConfig {
        credentials: Some(server.credentials(folder.path())),
        ..settings(&[server])
    }
}

/// Pulls from a server that answers so, and returns the message.
async fn refused(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> String {
    let server = Server::start(answer).await;
    let settings = RegistryConfig {
        timeout: Duration::from_secs(1),
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

/// Answers with contents by their digest.
fn contents(bytes: &[u8]) -> (String, Answer) {
    (Digest::of(bytes).to_string(), Answer::ok(bytes))
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
    let mut puller = puller(server, settings(&[server]));
    puller.signatures(found, |_| accepts).await.unwrap()
}

/// Answers honestly, except for paths with these parts: the first counts.
fn except<T: Into<String>>(answers: impl IntoIterator<Item = (T, Answer)>) -> impl Fn(&Seen) -> Answer {
    let answers: Vec<_> = answers.into_iter().map(|(part, it)| (part.into(), it)).collect();
    move |seen| {
        let mut answers = answers.iter();
        let other = answers.find(|(part, _)| seen.path.contains(part));
        other.map_or_else(|| honest(seen), |(_, answer)| answer.clone())
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
    assert_eq!(seen[0].method, "HEAD");
    assert_eq!(seen[0].path, "/v2/team/echo/manifests/1");
    assert_eq!(
        seen[0].header("if-none-match").unwrap(),
        format!("\"{manifest}\"")
    );
    // The known one is another.
    assert!(puller.find(Some(digest())).await.unwrap().is_some());
}

#[tokio::test]
async fn contents_with_another_digest_are_not_used() {
    let error = refused(except([("/blobs/", Answer::ok(b"\0asm plugiN"))])).await;
    assert_says(error, &format!("sent other contents … {}", digest()));
    let manifest = Answer::ok(&artifact().manifest);
    let stated = manifest
        .clone()
        .with("Docker-Content-Digest", &digest().to_string());
    let error = refused(except([("/manifests/", stated)])).await;
    assert!(error.contains("sent other contents"), "{error}");
    // By digest, whatever the registry says about it.
    let lying = Server::start(except([("/manifests/", manifest)])).await;
    let wanted = reference(&lying).at(digest());
    let mut puller = Puller::new(wanted, Arc::new(settings(&[&lying])), Arc::default(), LIMIT);
    assert_says(puller.find(None).await.unwrap_err(), "sent other contents");
}

#[tokio::test]
async fn no_more_is_read_than_the_manifest_says() {
    for endless in [Answer::endless(Some(10 << 30)), Answer::endless(None)] {
        let error = refused(except([("/blobs/", endless)])).await;
        let expected = format!("sends more than {} bytes", PLUGIN.len());
        assert!(error.contains(&expected), "{error}");
    }
    for endless in [Answer::endless(Some(10 << 30)), Answer::endless(None)] {
        let error = refused(except([("/manifests/", endless)])).await;
        assert!(error.contains("sends more than 1048576 bytes"), "{error}");
    }
    // An error of a registry is only read as far as it is shown.
    let error = refused(|_| Answer::endless(None).and_status(500)).await;
    assert!(error.contains("answered 500"), "{error}");
}

#[tokio::test]
async fn a_plugin_that_is_too_large_is_not_asked_for() {
    let manifest = String::from_utf8(artifact().manifest).unwrap();
    let size = format!("\"size\":{}", PLUGIN.len());
    let large = Answer::ok(manifest.replace(&size, "\"size\":10737418240").as_bytes());
    let server = Server::start(except([("/manifests/", large)])).await;
    let error = error_of(&server, settings(&[&server])).await;
    let words = "10737418240 bytes, the limit is 1048576";
    assert!(error.contains(words), "{error}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_registry_that_is_slow_or_broken_costs_no_more_than_the_time_it_has() {
    for part in ["/manifests/", "/blobs/"] {
        for answer in [Answer::stalled(), Answer::trickle()] {
            let start = std::time::Instant::now();
            let error = refused(except([(part, answer)])).await;
            assert!(error.contains("did not answer within 1s"), "{part}: {error}");
            assert!(start.elapsed() < Duration::from_secs(5), "{part}");
        }
        let error = refused(except([(part, Answer::raw(b"nonsense\r\n\r\n"))])).await;
        assert!(error.contains("cannot reach"), "{part}: {error}");
        let cut = Answer::raw(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n\0asm");
        let error = refused(except([(part, cut)])).await;
        assert!(error.contains("the connection broke"), "{part}: {error}");
    }
    for (code, end) in [("MANIFEST_UNKNOWN", "(MANIFEST_UNKNOWN)"), ("GONE", "echo:1")] {
        let said = json!({"errors": [{"code": code, "message": "a\u{1b}[31mb"}]});
        let error = refused(move |_| Answer::json(&said).and_status(404)).await;
        assert!(error.contains("does not have") && error.ends_with(end), "{error}");
    }
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
            let code = json!({"errors": [{"code": header, "message": "team:password"}]});
            Answer::json(&code).and_status(500)
        }),
        ("manifests", |header, _| {
            Answer::json(&json!({"errors": [{"code": "DENIED", "message": header}]})).and_status(403)
        }),
        ("manifests", |header, _| {
            Answer::json(&json!({"schemaVersion": format!("{header} team:password")}))
        }),
        ("manifests", |header, _| {
            let layer = json!({"mediaType": header, "digest": digest(), "size": 1});
            Answer::json(&json!({"schemaVersion": 2, "layers": [layer]}))
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
    for realm in "file:///etc/passwd|tokens|http://a:b@127.0.0.1:1/token|http://a b/".split('|') {
        let error = refused(move |_| unauthorized(&format!("Bearer realm=\"{realm}\""))).await;
        assert_says(&error, "refuses access … names no token server");
        assert!(!error.contains("a:b"), "{realm}: {error}");
    }
}

#[tokio::test]
async fn a_registry_that_has_too_many_requests_gets_the_time_that_it_asks_for() {
    // Neither a date nor another status is one.
    for (status, asked, wait) in [
        (429, "86400", Some(Duration::from_secs(86400))),
        (500, "Fri, 31 Dec 1999 23:59:59 GMT", None),
    ] {
        let server = Server::start(move |_| Answer::status(status).with("Retry-After", asked)).await;
        let mut puller = puller(&server, settings(&[&server]));
        let error = puller.find(None).await.unwrap_err();
        assert_eq!(error.wait(), wait);
        assert_eq!(
            error.to_string().contains("; it asks to wait 86400s"),
            wait.is_some()
        );
        assert_eq!(server.seen().len(), 1);
    }
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
    let known = known(&server, &folder);
    assert_eq!(pull(&mut puller(&server, known)).await.unwrap(), PLUGIN);
    assert_eq!(storage.seen()[0].header("authorization"), None);
}

#[tokio::test]
async fn redirects_end_and_nothing_but_layers_is_redirected() {
    let targets = "/v2/team/echo/blobs/again file:///etc/passwd //x https://user:password@example.com/";
    for target in targets.split(' ') {
        let redirect = Answer::status(302).with("Location", target);
        let error = refused(except([("/blobs/", redirect.clone())])).await;
        let is_named = error.contains("redirects") || error.contains("URL");
        assert!(is_named, "{target}: {error}");
        assert!(!error.contains("password@"), "{error}");
        let error = refused(except([("/manifests/", redirect)])).await;
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
    let known = known(&server, &folder);
    assert_eq!(pull(&mut puller(&server, known)).await.unwrap(), PLUGIN);
    assert_eq!(tokens.seen().len(), 1, "one token serves all requests");
    let error = error_of(&server, settings(&[&server])).await;
    assert_says(error, "does not accept these credentials");
    // Endless tokens, and what is none.
    for (answer, expected) in [
        (Answer::endless(None), "sends more than 65536 bytes for a token"),
        (Answer::ok(b"{}"), "without a token"),
        (Answer::status(500), "answers 500"),
        (Answer::stalled(), "did not answer"),
    ] {
        let bad = Server::start(move |_| answer.clone()).await;
        let realm = format!("Bearer realm=\"http://{}/\"", bad.name());
        assert_says(refused(move |_| unauthorized(&realm)).await, expected);
    }
}

#[tokio::test]
async fn credentials_that_are_missing_or_wrong_are_named_and_never_shown() {
    let server = Server::start(|_| unauthorized("Basic realm=r")).await;
    let error = error_of(&server, settings(&[&server])).await;
    assert!(error.contains("`registry.credentials`"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let known = known(&server, &folder);
    let error = error_of(&server, known.clone()).await;
    assert_says(&error, "does not accept these credentials");
    assert!(!error.contains("pass"), "{error}");
    folder.close().unwrap();
    assert_says(error_of(&server, known).await, "cannot read the credentials");
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
        let server = Server::start(except([
            (path.to_owned(), Answer::ok(&index)),
            contents(&signature.manifest),
            contents(b"{\"a\": 1}"),
        ]))
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
    let unknown = json!({"mediaType": "a", "digest": "sha512:00", "size": 1});
    let mut index = json!({"manifests": [unknown, 1]}).to_string().into_bytes();
    for signature in &signatures {
        index = super::artifact::with_referrer(Some(&index), signature).unwrap();
    }
    // The newest manifest is gone; the tag of cosign is broken.
    let server = Server::start(except([
        (".sig".to_owned(), Answer::status(500)),
        ("/referrers/".to_owned(), Answer::ok(&index)),
        contents(&signatures[0].manifest),
        contents(&signatures[1].manifest),
        contents(b"{\"a\": 0}"),
        contents(b"{\"a\": 1}"),
    ]))
    .await;
    let found = found(&plugin);
    let mut own = puller(&server, settings(&[&server]));
    let all = own.signatures(&found, |_| false).await.unwrap();
    assert_eq!(all, [&b"{\"a\": 1}"[..], b"{\"a\": 0}"], "the newest first");
    let first = own.signatures(&found, |it| it.ends_with(b"1}")).await;
    assert_eq!(first.unwrap().len(), 1, "no more are read than needed");

    // When nothing can be read, the error says why.
    let broken = Server::start(except([("/referrers/", Answer::status(500))])).await;
    let mut puller = puller(&broken, settings(&[&broken]));
    assert_says(puller.signatures(&found, |_| true).await.unwrap_err(), "500");
}

#[tokio::test]
async fn of_the_signatures_of_cosign_those_that_can_be_read_are_used() {
    let plugin = artifact();
    let found = found(&plugin);
    let layer = |digest: &str| {
        json!({
            "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json", "digest": digest, "size": 2,
            "annotations": {"dev.cosignproject.cosign/signature": "AAAA"},
        })
    };
    let (good, gone) = (Digest::of(b"{}").to_string(), Digest::of(b"gone").to_string());
    let list = json!({"schemaVersion": 2, "layers": [layer("sha512:00"), layer(&good), layer(&gone)]});
    let list = (".sig".to_owned(), Answer::json(&list));
    let server = Server::start(except([list, contents(b"{}")])).await;
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
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "artifactType": BUNDLE,
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": Digest::of(b"{}"), "size": 2},
            "layers": [{"mediaType": BUNDLE, "digest": Digest::of(bundle.as_bytes()), "size": bundle.len()}],
        });
        let manifest = manifest.to_string();
        let listed = json!({
            "mediaType": MANIFEST, "digest": Digest::of(manifest.as_bytes()), "size": manifest.len(),
            "artifactType": BUNDLE, "annotations": {"dev.sigstore.bundle.predicateType": predicate},
        });
        (manifest, listed)
    };
    let (manifest, signed) = referrer(&bundle, PREDICATE);
    let (_, provenance) = referrer("{}", "https://slsa.dev/provenance/v1");
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [signed, provenance]});
    let server = Server::start(except([
        ("/referrers/".to_owned(), Answer::json(&index)),
        contents(manifest.as_bytes()),
        contents(bundle.as_bytes()),
    ]))
    .await;
    let signatures = signatures(&server, &found, false).await;
    let unread = provenance["digest"].as_str().unwrap();
    assert!(!server.seen().iter().any(|seen| seen.path.ends_with(unread)));
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
