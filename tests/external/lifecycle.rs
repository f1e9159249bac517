//! What one External goes through: it is set, put right, changed, unset, and waits when nothing may be sent.

use super::server::*;
use crate::support::prelude::*;
use crate::telemetry::collector::{Collector, Span, text};

#[tokio::test(flavor = "multi_thread")]
async fn an_external_is_set_once_put_right_changed_and_unset() {
    let (scenario, server, _process) = shop("ext-life", "").await;
    let mut www = external("www", &json!({"ttl": 300}));
    www["spec"]["report"] = json!(["/ttl", "/none"]);
    scenario.external(&www).await;
    let ready = scenario.until_matches("www").await;
    assert_eq!(server.lines(), ["GET /www", "PUT /www", "GET /www"]);
    let status = &ready.data["status"];
    assert_eq!(status["code"], 200);
    assert_eq!(status["values"], json!({"/ttl": 300}));
    assert!(status["lastSet"].is_string() && status["lastObserved"].is_string());
    let key = server.with(|inner| inner.received[1].headers["idempotency-key"].clone());
    assert_eq!(key, format!("{}-1", ready.metadata.uid.clone().unwrap()));

    server.put("/www", json!({"ttl": 60}));
    server.until_has("/www", json!({"ttl": 300})).await;
    let mut changed = www.clone();
    (changed["spec"]["matches"], changed["spec"]["set"]["body"]) = (json!({"ttl": 60}), json!({"ttl": 60}));
    scenario.external(&changed).await;
    scenario.until_matches("www").await;
    assert_eq!(server.get("/www"), Some(json!({"ttl": 60})));
    assert_eq!(server.writes().len(), 3);

    // Nothing is written while nothing changes.
    let before = scenario.version(EXTERNAL, "www").await;
    server.until_asked(2).await;
    assert_eq!(server.writes().len(), 3, "nothing is sent that a GET has shown");
    assert_eq!(scenario.version(EXTERNAL, "www").await, before);

    scenario.remove(EXTERNAL, "www").await;
    assert_eq!(server.get("/www"), None);
    assert_eq!(server.writes().last().unwrap(), "DELETE /www");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_already_is_not_set_and_what_only_reads_waits_for_it() {
    let (scenario, server, _process) = shop("ext-read", "").await;
    server.put("/www", json!({"ttl": 300, "id": 7}));
    scenario.external(&external("www", &json!({"ttl": 300}))).await;
    scenario.until_matches("www").await;
    assert_eq!(server.writes(), Vec::<String>::new());

    let other = reader("other", "other", &json!({"state": "up"}));
    scenario.external(&other).await;
    let says = "Ready=False Differs: as a whole … 404";
    scenario.until_external("other", says).await;
    server.put("/other", json!({"state": "hunter2"}));
    let says = "Reconciling=True Differs: /state";
    scenario.until_external("other", says).await;
    server.put("/other", json!({"state": "up"}));
    let ready = scenario.until_matches("other").await;
    assert!(ready.metadata.finalizers.is_none(), "it undoes nothing");
    assert!(!json!(ready).to_string().contains("hunter2"));
    scenario.remove(EXTERNAL, "other").await;
    assert_eq!(server.writes(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_the_same_ask_once_and_an_etag_spares_the_answer() {
    let (scenario, server, _process) = shop("ext-once", "").await;
    server.put("/a", json!({"ttl": 300}));
    server.answers(false);
    for name in ["a", "b", "c"] {
        let mut reader = reader(name, "a", &json!({"ttl": 300}));
        reader["spec"]["every"] = "60s".into();
        scenario.external(&reader).await;
    }
    until_true("the first asks", async || !server.lines().is_empty()).await;
    // The others have come meanwhile: their status is written after the one answer.
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.answers(true);
    for name in ["a", "b", "c"] {
        scenario.until_matches(name).await;
    }
    assert_eq!(server.lines(), ["GET /a"]);

    server.with(|inner| inner.etags = true);
    scenario.external(&external("tagged", &json!({"ttl": 300}))).await;
    scenario.until_matches("tagged").await;
    let known = || {
        server.with(|inner| {
            let all = inner.received.iter();
            all.filter(|it| it.headers.contains_key("if-none-match")).count()
        })
    };
    until_true("it asks for what has changed", async || known() >= 2).await;
    server.put("/tagged", json!({"ttl": 60_000}));
    server.until_has("/tagged", json!({"ttl": 300})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_of_a_plugin_is_an_external_and_its_parent_follows_it() {
    let (scenario, server, egress) = shop("ext-child", "").await;
    server.with(|inner| inner.refuse = Some((500, Vec::new())));
    let children = "children: [{apiVersion: operator-host.dev/v1alpha1, kind: External}]";
    let host = scenario.start(&controller("puppet.wasm", children));
    let www = external("www", &json!({"ttl": 300}));
    scenario.wants("p", &[www]).await;
    let says = "Ready=False ChildrenNotReady: External … www";
    scenario.until_told("p", says).await;
    server.with(|inner| inner.refuse = None);
    scenario.until_matches("www").await;
    scenario.until_told("p", "Ready=True Reconciled").await;

    scenario.wants("p", &[external("new", &json!({"ttl": 1}))]).await;
    scenario.until_matches("new").await;
    scenario.until_gone(EXTERNAL, "www").await;
    assert_eq!(server.get("/www"), None);
    assert_eq!(server.get("/new"), Some(json!({"ttl": 1})));
    // It is undone without the host, and the host never had a connection there.
    assert_eq!(connections(&host, server.port), 0);
    let own = connections(&egress, server.port);
    assert_ne!(own, 0, "or the measure shows nothing");
    drop(host);
    scenario.delete(EXTERNAL, "new").await;
    scenario.until_gone(EXTERNAL, "new").await;
    assert_eq!(server.get("/new"), None);
    for received in server.with(|inner| inner.received.clone()) {
        let agent = received.headers["user-agent"].to_str().unwrap();
        assert!(agent.starts_with("operator-host-egress/"), "{agent}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_spans_of_an_external_lead_to_the_reconcile_that_wants_it() {
    let namespace = "ext-traced";
    let scenario = Scenario::new(namespace).await;
    let (server, collector) = (Server::start().await, Collector::http().await);
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.endpoint()),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ];
    let file = file(&scenario, &[server.endpoint("shop", namespace, "")]);
    let _egress = scenario.start_egress_in("egress", &file, &environment);
    let children = "children: [{apiVersion: operator-host.dev/v1alpha1, kind: External}]";
    let config = scenario.config(&controller("puppet.wasm", children));
    let _host = scenario.start_in(&config, &[], &environment);
    let www = external("www", &json!({"ttl": 300}));
    scenario.wants("p", &[www]).await;
    scenario.until_told("p", "Ready=True Reconciled").await;
    let is_put = |span: &&Span| text(&span.attributes, "http.request.method").is_some_and(|it| it == "PUT");
    let what = "a PUT below the External that is linked to its reconcile";
    let has_it = |spans: &[Span]| {
        let put = spans.iter().find(is_put)?;
        let is_root = |it: &&Span| it.trace_id == put.trace_id && it.parent_span_id.is_empty();
        let cause = &spans.iter().find(is_root)?.links.first()?.trace_id;
        let of_cause = spans.iter().filter(|it| it.trace_id == *cause);
        let names: Vec<_> = of_cause.map(|it| &*it.name).collect();
        (names.contains(&"reconcile") && names.contains(&"plugin")).then_some(())
    };
    collector.until_spans(what, has_it).await;
    // Another reconcile is another trace, and writes nothing for that.
    let before = scenario.version(EXTERNAL, "www").await;
    let annotated = json!({"metadata": {"annotations": {"a": "b"}}});
    let reconciles = |spans: &[Span]| spans.iter().filter(|it| it.name == "plugin").count();
    let count = reconciles(&collector.spans());
    scenario.patch(PUPPET, "p", annotated).await;
    let is_one_more = |spans: &[Span]| (reconciles(spans) > count).then_some(());
    collector.until_spans("one more call", is_one_more).await;
    assert_eq!(scenario.version(EXTERNAL, "www").await, before);
}

/// Returns how many connections a process has to a port.
fn connections(host: &Host, port: u16) -> usize {
    let pid = host.process().id();
    let sockets = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let sockets = sockets.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let sockets: Vec<_> = sockets.map(|link| link.display().to_string()).collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let to = format!(":{port:04X}");
    let lines = table.lines().skip(1);
    let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let is_own =
        |line: &Vec<&str>| line[2].ends_with(&to) && sockets.contains(&format!("socket:[{}]", line[9]));
    lines.filter(is_own).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_for_the_same_the_older_stays_and_the_younger_follows_it() {
    let (scenario, server, _process) = shop("ext-two", "").await;
    scenario.external(&external("www", &json!({"ttl": 300}))).await;
    scenario.until_matches("www").await;
    // Ages have whole seconds.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let mut second = external("www", &json!({"ttl": 60}));
    second["metadata"]["name"] = "second".into();
    scenario.external(&second).await;
    let says = "Stalled=True Conflict: External www … older";
    scenario.until_external("second", says).await;
    let mut third = second.clone();
    third["metadata"]["name"] = "third".into();
    scenario.external(&third).await;
    let says = "Ready=False Conflict: www";
    scenario.until_external("third", says).await;
    scenario.remove(EXTERNAL, "third").await;
    // Nothing is sent for the younger ones, not even when they go.
    assert_eq!(server.writes(), ["PUT /www"]);
    scenario.remove(EXTERNAL, "www").await;
    scenario.until_matches("second").await;
    assert_eq!(server.writes(), ["PUT /www", "DELETE /www", "PUT /www"]);
    assert_eq!(server.get("/www"), Some(json!({"ttl": 60})));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_is_taken_away_stops_everything_until_it_is_back_or_the_object_is_let_go() {
    let (scenario, server, process) = shop("ext-away", "").await;
    for name in ["a", "b"] {
        scenario.external(&external(name, &json!({"ttl": 300}))).await;
        scenario.until_matches(name).await;
    }
    file(&scenario, &[server.endpoint("shop", "others", "")]);
    process.until_log("has been renewed").await;
    let says = "Stalled=True EndpointNotAllowed: \"shop\" … operator-host.dev/on-removal=orphan";
    scenario.until_external("a", says).await;
    let sent = server.lines().len();
    for name in ["a", "b"] {
        scenario.delete(EXTERNAL, name).await;
    }
    let orphan = json!({"metadata": {"annotations": {"operator-host.dev/on-removal": "orphan"}}});
    scenario.patch(EXTERNAL, "a", orphan).await;
    scenario.until_gone(EXTERNAL, "a").await;
    let says = "Stalled=True EndpointNotAllowed";
    scenario.until_external("b", says).await;
    assert_eq!(server.lines().len(), sent, "nothing was sent");
    assert!(server.get("/a").is_some(), "it is left behind");
    // A file that is wrong changes nothing.
    scenario.file("endpoints.yaml", "endpoints: [{name: shop}]");
    let words = "cannot be used, so the last state stays … url";
    process.until_log(words).await;
    file(&scenario, &[server.endpoint("shop", "'ext-*'", "")]);
    scenario.until_gone(EXTERNAL, "b").await;
    assert_eq!(server.get("/b"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_slow_endpoint_does_not_delay_another() {
    let scenario = Scenario::new("ext-slow").await;
    let (slow, shop) = (Server::start().await, Server::start().await);
    slow.answers(false);
    let endpoints = [
        slow.endpoint("slow", "ext-slow", ", timeout: 30s"),
        shop.endpoint("shop", "ext-slow", ""),
    ];
    let _process = scenario.start_egress("egress", &file(&scenario, &endpoints));
    for i in 0..20 {
        let mut external = external(&format!("slow-{i}"), &json!({}));
        external["spec"]["endpoint"] = "slow".into();
        scenario.external(&external).await;
    }
    let all_wait = async || slow.lines().len() >= 8;
    until_true("every worker of the slow one waits", all_wait).await;
    scenario.external(&external("www", &json!({"ttl": 300}))).await;
    scenario.until_matches("www").await;
    assert!(slow.lines().len() <= 8, "it is still slow");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_asks_to_wait_is_left_alone_and_one_that_fails_is_asked_less_and_less() {
    let (scenario, server, _process) = shop("ext-wait", "").await;
    let wait = vec![("retry-after", "2".to_owned())];
    server.with(|inner| inner.refuse = Some((429, wait)));
    for name in ["a", "b"] {
        scenario.external(&external(name, &json!({"ttl": 300}))).await;
    }
    scenario.until_external("a", "Reconciling=True AsksToWait").await;
    scenario.until_external("b", "Reconciling=True AsksToWait").await;
    let first = server.lines().len();
    assert!(first <= 2, "{:?}", server.lines());
    server.until_asked(1).await;
    server.with(|inner| inner.refuse = Some((503, Vec::new())));
    let says = "Reconciling=True ServerFails: 503";
    let message = scenario.until_external("a", says).await;
    assert!(!message.contains("hunter2"), "{message}");
    server.with(|inner| inner.refuse = None);
    for name in ["a", "b"] {
        scenario.until_matches(name).await;
    }
    // A failure that passes at once is no news.
    let ready = scenario.version(EXTERNAL, "a").await;
    server.with(|inner| inner.refuse = Some((500, Vec::new())));
    server.until_asked(1).await;
    server.with(|inner| inner.refuse = None);
    server.until_asked(4).await;
    assert_eq!(scenario.version(EXTERNAL, "a").await, ready);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_nothing_is_stalled_with_the_place_of_the_difference() {
    let (scenario, server, _process) = shop("ext-forgets", "").await;
    server.with(|inner| inner.forgets = true);
    server.put("/www", json!({"rrsets": [{"ttl": "hunter2"}]}));
    let www = external("www", &json!({"rrsets": [{"ttl": 300}]}));
    scenario.external(&www).await;
    let says = "Stalled=True NotTaken: at /rrsets/0/ttl";
    let message = scenario.until_external("www", says).await;
    assert!(!message.contains("300"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
    server.with(|inner| inner.forgets = false);
    scenario.until_matches("www").await;
}
