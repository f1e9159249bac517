//! A hostile server, and hostile Externals.

use super::secrets::secret;
use super::server::*;
use crate::support::measure::peak;
use crate::support::prelude::*;

/// Returns JSON of this size that contains what is wanted.
fn large(size: usize) -> Vec<u8> {
    let mut text = br#"{"ttl": 300"#.to_vec();
    text.resize(size - 1, b' ');
    text.push(b'}');
    text
}

fn in_chunks(body: &[u8]) -> Vec<u8> {
    let chunk = |part: &[u8]| [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat();
    let chunks = body.chunks(10_000).flat_map(chunk);
    chunks.chain(*b"0\r\n\r\n").collect()
}

/// What a server answers, how often it repeats the body, and what the External then says.
fn answers() -> Vec<(&'static str, Vec<u8>, Option<Duration>, &'static str)> {
    let ok =
        |headers: &str, body: &[u8]| [format!("HTTP/1.1 200 OK\r\n{headers}\r\n").as_bytes(), body].concat();
    let sized = |body: &[u8]| ok(&format!("content-length: {}\r\n", body.len()), body);
    let once = Some(Duration::from_secs(3600));
    let chunk = format!("{:x}\r\n{}\r\n", 60_000, " ".repeat(60_000)).into_bytes();
    let deep = [vec![b'['; 200_000], vec![b']'; 200_000]].concat();
    let nested = [vec![b'['; 100], vec![b']'; 100]].concat();
    let gzip = "content-encoding: gzip\r\ntransfer-encoding: chunked\r\n";
    let at_once = Some(Duration::ZERO);
    let (chunked, late) = ("transfer-encoding: chunked\r\n", "Reconciling=True TimedOut");
    let (broken, json) = (
        "Reconciling=True ConnectionBroken",
        "Reconciling=True UnusableAnswer: JSON",
    );
    let too_large = "Reconciling=True UnusableAnswer: 65536";
    let endless_head = [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'a'; 500_000]].concat();
    let status = |line: &str| format!("HTTP/1.1 {line}\r\ncontent-length: 7\r\n\r\nhunter2").into_bytes();
    let drip = Some(Duration::from_millis(50));
    vec![
        ("stalls", Vec::new(), once, late),
        ("stalls-later", ok("content-length: 100\r\n", b"{"), once, late),
        ("drips", ok(chunked, b"1\r\n \r\n"), drip, late),
        ("floods", ok(chunked, &chunk), at_once, too_large),
        // Right in every other way, and just larger than is allowed.
        ("large", sized(&large(65_537)), None, too_large),
        (
            "large-in-chunks",
            ok(chunked, &in_chunks(&large(65_537))),
            None,
            too_large,
        ),
        (
            "as-large-as-allowed",
            sized(&large(65_536)),
            None,
            "Ready=True Matches",
        ),
        ("floods-head", endless_head, at_once, broken),
        ("lies-more", ok("content-length: 100\r\n", b"{}"), None, broken),
        (
            "lies-huge",
            ok("content-length: 99999999999999\r\n", b"{}"),
            once,
            too_large,
        ),
        (
            "zips",
            ok(gzip, &chunk),
            at_once,
            "Reconciling=True UnusableAnswer: compressed",
        ),
        ("deep", sized(&deep[..60_000]), None, json),
        (
            "nested",
            sized(&nested),
            None,
            "Reconciling=True UnusableAnswer: deep",
        ),
        ("invalid", sized(b"{\"hunter2\": "), None, json),
        ("no-http", b"hunter2 \r\n\r\n".to_vec(), None, broken),
        (
            "refuses",
            status("400 hunter2"),
            None,
            "Stalled=True Refused: 400",
        ),
        (
            "forbids",
            status("403 hunter2"),
            None,
            "Stalled=True NotAuthorized: 403",
        ),
        (
            "not-modified",
            b"HTTP/1.1 304 hunter2\r\n\r\n".to_vec(),
            None,
            "Reconciling=True UnusableAnswer: 304",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_does_harm_or_is_repeated_to_anyone() {
    let namespace = "ext-hostile";
    let scenario = Scenario::new(namespace).await;
    let target = Server::start().await;
    let mut endpoints = Vec::new();
    let redirect = format!(
        "HTTP/1.1 307 x\r\nlocation: http://127.0.0.1:{}/api/hunter2\r\ncontent-length: 0\r\n\r\n",
        target.port
    );
    let mut all = answers();
    let says = "Stalled=True Redirected: 307";
    all.push(("redirects", redirect.into_bytes(), None, says));
    for (name, bytes, pause, _) in &all {
        let (port, _) = raw(bytes.clone(), *pause).await;
        endpoints.push(endpoint(name, port, namespace, ", timeout: 1s, maxBody: 64Ki"));
    }
    let process = scenario.start_egress("egress", &file(&scenario, &endpoints));
    for (name, ..) in &all {
        let mut external = external(name, &json!({"ttl": 300}));
        external["spec"]["endpoint"] = json!(name);
        external["spec"]["report"] = json!(["/hunter2"]);
        scenario.external(&external).await;
    }
    for (name, .., says) in &all {
        scenario.until_external(name, says).await;
        let object = scenario.get(EXTERNAL, name).await.unwrap();
        let status = object.data["status"].to_string();
        assert!(!status.contains("hunter2"), "{name}: {status}");
    }
    assert_eq!(target.lines(), Vec::<String>::new(), "no redirect was followed");
    assert!(!process.log().contains("hunter2"));
    let peak = peak(&process);
    assert!(peak < 200_000_000, "{peak}");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_with_many_values_are_not_kept_while_a_server_is_slow() {
    let (scenario, server, process) = shop("ext-many", "").await;
    let many = json!(vec![json!({"a": 1}); 45_000]);
    let act = async {
        for i in 0..8 {
            server.put(&format!("/many-{i}"), many.clone());
            let many = external(&format!("many-{i}"), &json!({"ttl": 300}));
            scenario.external(&many).await;
        }
    };
    server.hold("PUT", 1, act).await;
    let all_wait = async || server.writes().len() >= 8;
    until_true("all workers wait for an answer", all_wait).await;
    let peak = peak(&process);
    assert!(peak < 180_000_000, "{peak}");
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_values_that_only_four_answers_may_be_in_memory_let_the_others_wait() {
    const TIME: Duration = Duration::from_millis(500);
    let scenario = Scenario::new("ext-values").await;
    let server = Server::start().await;
    let proxy = Proxy::start(scenario.kubeconfig()).await.expect("a proxy");
    let scenario = scenario.with_kubeconfig(proxy.kubeconfig());
    // An answer is in memory until the API server has answered a read and a write of the Secret for its values.
    proxy.set_mode_of("/secrets", Mode::Delay(TIME));
    let file = file(&scenario, &[server.endpoint("shop", "ext-values", "")]);
    let process = scenario.start_egress("egress", &file);
    let many = json!(vec![0; 90_000]);
    server.answers(false);
    for number in 0..8 {
        let name = format!("many-{number}");
        server.put(&format!("/{name}"), many.clone());
        let mut reader = reader(&name, &name, &json!([]));
        reader["spec"].as_object_mut().unwrap().remove("matches");
        reader["spec"]["save"] = json!({"secret": name, "entries": {"a": "/0"}});
        scenario.external(&reader).await;
    }
    until_true("all are asked", async || server.lines().len() >= 8).await;
    server.answers(true);
    for number in 0..8 {
        scenario.until_matches(&format!("many-{number}")).await;
    }
    let mut reads = proxy.take_seen();
    reads.retain(|seen| seen.method == "GET" && seen.uri.contains("/secrets"));
    assert!(reads[4].at - reads[0].at >= 2 * TIME, "{reads:?}");
    drop(process);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_external_leaves_its_endpoint() {
    let (scenario, server, process) = shop("ext-paths", "").await;
    let set = |path: &str| json!({"method": "PUT", "path": path, "body": {}});
    let get = |path: &str| json!({"path": path});
    let with = |header: &str, mut request: Value| {
        request["headers"] = json!({header: "evil.example"});
        request
    };
    let cases = [
        // `egress::spec` has all forms.
        ("dots", "observe", get("/../admin")),
        ("set-dots", "set", set("/a/../../admin")),
        ("unset-dots", "unset", set("/./admin")),
        ("headers", "set", with("Host", set("/a"))),
        ("authorization", "observe", with("Authorization", get("/a"))),
    ];
    for (name, field, value) in &cases {
        let mut external = external(name, &json!({}));
        external["spec"][*field] = value.clone();
        scenario.external(&external).await;
        let words = format!("Stalled=True InvalidSpec: spec.{field}");
        scenario.until_external(name, &words).await;
    }
    // The API server itself refuses the rest.
    let paths = ["evil.example", "/a b", "/a\r\nHost: evil", "http://evil.example/"];
    // `set` needs `observe`.
    for observe in paths.map(get).into_iter().chain([Value::Null]) {
        let mut external = external("refused", &json!({}));
        external["spec"]["observe"] = observe.clone();
        let spec = external["spec"].as_object_mut().unwrap();
        spec.retain(|_, field| !field.is_null());
        let object: DynamicObject = serde_json::from_value(external).unwrap();
        let (api, params) = (scenario.api(EXTERNAL), PostParams::default());
        assert!(api.create(&params, &object).await.is_err(), "{observe}");
    }
    assert_eq!(server.lines(), Vec::<String>::new(), "nothing was sent");

    scenario.external(&external("fixed", &json!({"ttl": 300}))).await;
    scenario.until_matches("fixed").await;
    let sent = server.writes();
    let patch = json!({"spec": {"observe": {"path": "/other"}}});
    scenario.patch(EXTERNAL, "fixed", patch).await;
    let says = "Stalled=True ImmutableField";
    scenario.until_external("fixed", says).await;
    assert_eq!(server.writes(), sent);
    assert!(!process.log().contains("evil"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_a_method_and_a_body_that_are_not_allowed_are_refused() {
    let namespace = "ext-refused";
    let scenario = Scenario::new(namespace).await;
    let server = Server::start().await;
    let port = server.port;
    let plain = |name: &str, host: &str| {
        format!(
            "- {{name: {name}, url: 'http://{host}:{port}', allowPlain: true, namespaces: [{namespace}], methods: [PUT, DELETE]}}\n"
        )
    };
    let endpoints = [
        plain("loopback", "127.0.0.1"),
        plain("localhost", "localhost"),
        plain("mapped", "[::ffff:127.0.0.1]"),
        plain("nobody", "does-not-exist.invalid"),
        server.endpoint("small", namespace, ", maxBody: 1Ki"),
        server
            .endpoint("shop", namespace, "")
            .replace(", POST, PATCH, DELETE", ""),
    ];
    let _process = scenario.start_egress("egress", &file(&scenario, &endpoints));
    for (name, says) in [
        (
            "loopback",
            "Stalled=True AddressRefused: 127.0.0.1 … allowAddresses",
        ),
        ("localhost", "Stalled=True AddressRefused"),
        ("mapped", "Stalled=True AddressRefused"),
        ("nobody", "Reconciling=True NameNotFound"),
        ("shop", "Stalled=True MethodNotAllowed: DELETE"),
    ] {
        let mut external = external(name, &json!({}));
        external["spec"]["endpoint"] = name.into();
        scenario.external(&external).await;
        scenario.until_external(name, says).await;
    }
    assert_eq!(server.lines(), Vec::<String>::new(), "nothing was sent");
    let long = json!({"password": "x".repeat(500)});
    scenario.apply(&secret("long", "small", &long)).await;
    // The second is short until its placeholders are filled in.
    for (name, text) in [
        ("small", "x".repeat(2000)),
        ("grows", "{{secret long/password}}".repeat(3)),
    ] {
        let mut large = external(name, &json!({"text": text}));
        large["spec"]["endpoint"] = "small".into();
        scenario.external(&large).await;
        let says = "Stalled=True BodyTooLarge: 1024";
        scenario.until_external(name, says).await;
        assert_eq!(server.writes(), Vec::<String>::new());
    }
}

#[test]
fn a_file_that_is_not_safe_is_refused_with_the_field() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("endpoints.yaml");
    for (entry, words) in [
        ("url: 'http://a'", "endpoints.yaml:1: … url … allowPlain"),
        ("url: 'https://a', timeout: 5s", "timeout … lease.renewDeadline"),
        ("url: 'https://u:p@a'", "URL … user"),
        ("url: 'https://a', credential: {}", "credential"),
    ] {
        let text = format!("{{leadership: single, endpoints: [{{name: a, {entry}}}]}}");
        std::fs::write(&file, text).unwrap();
        let printed = program(&["egress", "--endpoints"]).arg(&file).ends(2);
        assert!(contains(&printed, words), "{printed}");
    }
}
