//! The page of `--ui-addr`, in a real browser and without one.

mod browser;

use crate::support::prelude::*;
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use self::browser::{Browser, ENTER};
use crate::leadership::leaders::shared;
use crate::telemetry::send;

const PAGE: [&str; 2] = ["--ui-addr", "127.0.0.1:0"];
const SECRETS: &str = "children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: v1, kind: Secret}]";

/// Returns the port of the page.
async fn port(host: &Host) -> u16 {
    host.until_port("serving the page").await
}

async fn view(port: u16, query: &str) -> Value {
    let (_, _, body) = send(port, &format!("/ui/view?{query}"), "host: localhost").await;
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// Waits until a view satisfies `condition`.
async fn until_view(port: u16, query: &str, condition: impl Fn(&Value) -> bool) -> Value {
    eventually(query, async || {
        let view = view(port, query).await;
        if condition(&view) {
            Ok(view)
        } else {
            Err(format!("{view:#}"))
        }
    })
    .await
}

/// Opens a stream, and returns it with the status code of its answer.
async fn stream(port: u16) -> (u16, TcpStream) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = "GET /ui/stream HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    (std::str::from_utf8(&head[9..]).unwrap().parse().unwrap(), stream)
}

async fn fits(browser: &Browser) {
    let width = browser.run("return document.documentElement.scrollWidth").await;
    assert!(
        width.as_u64() <= Some(360),
        "{width} pixels wide: {}",
        browser.text().await
    );
}

const MARKUP: &str = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>";

#[tokio::test]
async fn a_browser_shows_controllers_objects_and_trees_live_and_runs_nothing_that_a_plugin_says() {
    let scenario = Scenario::new("page").await;
    let mut mount = Mount::new(&scenario.folder.path().join("mount"), "puppet.wasm", &variant(0));
    let config = scenario.config_in(&mount.path, &controller("puppet.wasm", SECRETS));
    let host = scenario.start_with(&config, &PAGE);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"p": "correct horse"}});
    let answer = |children: Value| {
        json!({"response": {
            "children": children,
            "conditions": [{"type": "Note", "status": "True", "reason": "Markup", "message": MARKUP}],
            "events": [{"type": "Warning", "reason": "Markup", "message": MARKUP}],
        }, "variants": {"1": {"misbehave": "trap"}}})
    };
    scenario
        .ready_with("p", answer(json!([config_map("a", "1"), secret])))
        .await;

    let page = format!("http://127.0.0.1:{}/ui/", port(&host).await);
    let browser = Browser::start(scenario.folder.path()).await;
    browser.open(&page).await;
    browser.until("document.querySelector('main a')").await;
    let words = "Controllers … puppet … test.operator-host.dev/v1/Puppet … live";
    assert_contains(&browser.text().await, words);

    // By keyboard, from the controllers to the object.
    browser.tab_to("document.querySelector('main td a')").await;
    browser.press(ENTER).await;
    browser.until("document.querySelector('#filter')").await;
    browser.shows("page/p").await;
    browser
        .tab_to("[...document.querySelectorAll('td a')].find(a => a.textContent === 'page/p')")
        .await;
    browser.press(ENTER).await;
    browser.until("document.querySelector('#tree')").await;
    let text = browser.text().await;
    let words = "Puppet.test.operator-host.dev page/p ready … ConfigMap a ready … Secret s ready … \
         <script> … the kinds that this controller watches: ConfigMap, Secret";
    assert_contains(&text, words);
    assert!(!text.contains("correct horse"), "{text}");
    assert_eq!(browser.count("main img, main script").await, 0);

    // The tree changes without a reload, and the focus stays.
    browser.run("window.before = true").await;
    browser.tab_to("document.querySelector('main p a')").await;
    scenario
        .puppet(
            "p",
            answer(json!([config_map("0", "1"), config_map("a", "2"), secret])),
        )
        .await;
    browser
        .until("document.querySelector('#tree').innerText.includes('ConfigMap 0 ready')")
        .await;
    let focus = "return window.before && document.activeElement.textContent";
    assert_eq!(browser.run(focus).await, "puppet");

    // A version that is held back, with the command to promote it.
    mount.put("puppet.wasm", &variant(1));
    browser.open(&format!("{page}#/controller/puppet")).await;
    browser
        .until("document.querySelector('#candidate')?.innerText.includes('is held back')")
        .await;
    browser
        .run("document.querySelectorAll('details').forEach(it => it.open = true)")
        .await;
    let text = browser.text().await;
    let words = "it fails on 1 object … \
         kubectl annotate crd puppets.test.operator-host.dev operator-host.dev/promote=";
    assert_contains(&text, words);

    // A failure, with its message, on the first page as well.
    scenario.puppet("p", json!({"misbehave": "trap"})).await;
    scenario.until_stalled("p", "PluginTrapped").await;
    browser.open(&page).await;
    browser
        .until("[...document.querySelectorAll('td')].some(td => td.innerText.includes('trap'))")
        .await;

    // A name in the address with markup in it.
    let bad = "%3Cimg%20src%3Dx%20onerror%3Ddocument.title%3D1%3E";
    browser.open(&format!("{page}#/object/puppet/{bad}")).await;
    browser
        .shows("there is no Puppet.test.operator-host.dev <img src=x")
        .await;

    browser.open(&format!("{page}#/lease")).await;
    browser.shows("There is no election").await;

    browser.resize(360, 740).await;
    for path in ["", "#/controller/puppet", "#/object/puppet/page%2Fp"] {
        browser.open(&format!("{page}{path}")).await;
        browser.until("document.querySelector('main td')").await;
        fits(&browser).await;
    }
    assert_eq!(browser.run("return document.title").await, "operator-host");
    assert_eq!(browser.complaints().await, json!([]));
}

async fn create_all(scenario: &Scenario, kind: &str, objects: impl Iterator<Item = Value>) {
    let created = objects.map(|object| async move {
        let object = serde_json::from_value(object).unwrap();
        let created = scenario.api(kind).create(&PostParams::default(), &object).await;
        created.expect("an object");
    });
    futures::stream::iter(created)
        .buffer_unordered(64)
        .collect::<()>()
        .await;
}

#[tokio::test]
async fn five_thousand_objects_are_shown_in_pages_and_two_thousand_children_in_parts() {
    let scenario = Scenario::new("page-many").await;
    // Another replica leads, so nothing happens to the objects.
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "operator-host", "namespace": scenario.namespace},
        "spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 3600, "renewTime": "2026-01-01T00:00:00.000000Z"},
    });
    scenario.apply(&lease.to_string()).await;
    let config = shared(&scenario, ["30s", "20s", "500ms"], &controller("puppet.wasm", ""));
    let host = scenario.start_with(&config, &PAGE);
    let puppet = |n: usize| {
        json!({
            "apiVersion": "test.operator-host.dev/v1", "kind": "Puppet", "metadata": {"name": format!("p-{n:04}")}, "spec": {},
        })
    };
    create_all(&scenario, PUPPET, (0..5000).map(puppet)).await;
    let owner = scenario.get(PUPPET, "p-0000").await.unwrap().metadata.uid;
    let child = |n: usize| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": format!("c-{n:04}"), "labels": {"operator-host.dev/controller": "puppet"},
            "ownerReferences": [{"apiVersion": "test.operator-host.dev/v1", "kind": "Puppet", "name": "p-0000", "uid": owner, "controller": true}],
        }})
    };
    create_all(&scenario, CONFIG_MAP, (0..2005).map(child)).await;

    let page = format!("http://localhost:{}/ui/", port(&host).await);
    let browser = Browser::start(scenario.folder.path()).await;
    browser.open(&page).await;
    browser.shows("stands by; somebody leads").await;
    browser.open(&format!("{page}#/controller/puppet")).await;
    browser
        .until("document.querySelector('#count')?.innerText.startsWith('5000 objects')")
        .await;
    assert_eq!(browser.count("tbody tr").await, 100);
    browser.tab_to("document.querySelector('#next')").await;
    browser.press(ENTER).await;
    browser.shows("101 to 200 of 5000").await;
    browser
        .until("document.activeElement.id === 'next' && document.body.innerText.includes('page-many/p-0100')")
        .await;
    browser.run("document.querySelector('#previous').click()").await;
    browser.shows("1 to 100 of 5000").await;
    browser
        .run("const it = document.querySelector('#filter'); it.value = 'P-04'; it.oninput({target: it})")
        .await;
    browser
        .until("document.querySelector('#count').innerText.includes('100 match')")
        .await;

    browser
        .open(&format!("{page}#/object/puppet/page-many%2Fp-0000"))
        .await;
    browser
        .until("document.querySelectorAll('#tree > li').length === 100")
        .await;
    let words = "Another replica leads … 2005, 0 not ready … 1905 more";
    assert_contains(&browser.text().await, words);
    while browser
        .run("return Boolean(document.querySelector('#more'))")
        .await
        == true
    {
        browser.run("document.querySelector('#more')?.click()").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    browser
        .until("document.querySelectorAll('#tree > li').length === 2000")
        .await;
    let words = "5 more are not shown: the page shows at most 2000 children";
    assert_contains(&browser.text().await, words);
    assert_eq!(browser.complaints().await, json!([]));
}

#[tokio::test]
async fn only_this_machine_is_answered_and_a_browser_that_goes_away_leaves_nothing() {
    let scenario = Scenario::new("page-server").await;
    let config = scenario.config(&controller("puppet.wasm", ""));
    let open = scenario.start_with(&config, &["--ui-addr", "0.0.0.0:0"]);
    assert_eq!(open.ended().await.code(), Some(1));
    let words = "cannot serve the page on 0.0.0.0:0 … use a loopback address";
    assert_contains(&scenario.log_tail(), words);
    let host = scenario.start_with(&config, &PAGE);
    let port = port(&host).await;
    let (status, head, body) = send(port, "/ui/", "host: localhost:8090").await;
    assert_eq!(status, 200);
    assert_contains(&body, "<title>operator-host</title>");
    let words = "default-src 'none' … frame-ancestors 'none' … nosniff … no-store";
    assert_contains(&head, words);
    let paths = "/ui/../../etc/passwd /ui/%2e%2e/%2e%2e/etc/passwd /etc/passwd /ui/stream/x //ui/";
    for path in paths.split(' ') {
        let (status, _, body) = send(port, path, "host: localhost").await;
        assert_eq!(
            (status, body.as_str()),
            (404, "there is nothing here: try /ui/\n"),
            "{path}"
        );
    }
    for headers in ["host: evil.example.com", "accept: */*"] {
        assert_eq!(send(port, "/ui/", headers).await.0, 421, "{headers}");
        assert_eq!(send(port, "/ui/view", headers).await.0, 421, "{headers}");
    }
    // A refused caller does not keep the connection, which HTTP/1.1 would.
    let mut refused = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = "GET /ui/ HTTP/1.1\r\nhost: evil.example.com\r\n\r\n";
    refused.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    refused.read_to_string(&mut answer).await.unwrap();
    assert_contains(&answer, "421 Misdirected Request … connection: close");
    assert_eq!(
        send(port, "/ui/view?view=nothing", "host: localhost").await.0,
        400
    );
    assert_eq!(
        send(port, "/ui/view?view=objects&controller=x", "host: localhost")
            .await
            .0,
        404
    );

    // Whoever goes away in the middle makes room for the next one.
    for _ in 0..2 {
        let mut open = Vec::new();
        let deadline = Instant::now() + LIMIT;
        while open.len() < 16 {
            match stream(port).await {
                (200, stream) => open.push(stream),
                (status, _) => assert!(status == 503 && Instant::now() < deadline, "{status}"),
            }
        }
        assert_eq!(stream(port).await.0, 503);
        let (_, _, body) = send(port, "/ui/stream", "host: localhost").await;
        assert_contains(&body, "16 browsers look at this host already");
    }
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn the_lease_is_shown_with_its_leader_and_why_it_is_not_known() {
    let scenario = Scenario::new("page-leases").await;
    let proxy = Proxy::start(scenario.kubeconfig()).await.expect("a proxy");
    let config = shared(&scenario, ["3s", "2s", "200ms"], &controller("puppet.wasm", ""));
    let mut hosts = Vec::new();
    let mut ports = Vec::new();
    for (name, kubeconfig) in [("one", scenario.kubeconfig()), ("two", &*proxy.kubeconfig())] {
        let folder = scenario.folder.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        hosts.push(Host::start(
            &config,
            kubeconfig,
            &PAGE,
            &[("HOSTNAME", name)],
            &folder,
        ));
        ports.push(port(&hosts[hosts.len() - 1]).await);
        // The first one leads.
        let there = if name == "one" { "here" } else { "other" };
        until_view(ports[ports.len() - 1], "view=lease", |view| {
            view["lease"]["state"] == there
        })
        .await;
    }

    let page = format!("http://localhost:{}/ui/", ports[1]);
    let browser = Browser::start(scenario.folder.path()).await;
    browser.open(&page).await;
    browser.shows("leader: stands by; one_").await;
    browser
        .tab_to("document.querySelector('a[href=\"#/lease\"]')")
        .await;
    browser.press(ENTER).await;
    browser.shows("another replica leads").await;
    let text = browser.text().await;
    let name = format!("{}/operator-host", scenario.namespace);
    assert_contains(&text, &format!("{name} … one_ … two_ … valid for 3 s"));
    // It is live: the leader renews, and the page shows it without a reload.
    let renewed =
        "[...document.querySelectorAll('td[data-label=Renewed] time')].map(it => it.dateTime).join()";
    browser.run(&format!("window.before = {renewed}")).await;
    browser
        .until(&format!("window.before && {renewed} !== window.before"))
        .await;

    let refuse = Mode::refuse(403);
    proxy.set_mode_of("/leases", refuse.clone());
    let problem = |view: &Value| view["lease"]["problem"].as_str().map(str::to_owned);
    let view = until_view(ports[1], "view=lease", |view| problem(view).is_some()).await;
    assert_contains(&problem(&view).unwrap(), "the Lease … give the host's role");
    // What it does not know it does not claim.
    until_view(ports[1], "view=lease", |view| view["lease"]["state"] == "nobody").await;
    proxy.set_mode(Mode::Pass);
    let well = |view: &Value| problem(view).is_none() && view["lease"]["state"] == "other";
    until_view(ports[1], "view=lease", well).await;
    browser.resize(360, 740).await;
    fits(&browser).await;
    assert_eq!(browser.complaints().await, json!([]));
    drop(hosts.remove(0));

    // A list that is not complete says so, and which namespaces it is of.
    let query = "view=objects&controller=puppet";
    let view = until_view(ports[1], query, |view| view["unreadable"] == json!([])).await;
    assert_eq!(view["namespaces"], json!([scenario.namespace]), "{view:#}");
    proxy.set_mode_of("/puppets", refuse);
    let view = until_view(ports[1], query, |view| view["unreadable"] != json!([])).await;
    let text = view["unreadable"].to_string();
    let words = "test.operator-host.dev/v1/Puppet:  … give the host's role the verbs list";
    assert_contains(&text, words);
    let page = format!("http://localhost:{}/ui/#/controller/puppet", ports[1]);
    browser.open(&page).await;
    browser.shows("The list is incomplete.").await;
    let scope = "return document.querySelector('#scope').innerText";
    let expected = "The controller watches the namespace page-leases. Objects elsewhere are not shown.";
    assert_eq!(browser.run(scope).await, expected);
    fits(&browser).await;
}

#[tokio::test]
async fn a_kind_of_children_that_cannot_be_read_is_named_and_the_rest_is_shown() {
    let scenario = Scenario::limited("page-rights").await;
    let all = ["get", "list", "watch", "patch", "create", "delete"];
    let rules = json!([
        {"apiGroups": ["test.operator-host.dev"], "resources": ["*"], "verbs": all},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": all},
    ]);
    scenario.grant("host", user(LIMITED), rules).await;
    let host = scenario.start_with(&scenario.config(&controller("puppet.wasm", SECRETS)), &PAGE);
    scenario.puppet("p", json!({})).await;
    let port = port(&host).await;
    let query = "view=object&controller=puppet&name=page-rights%2Fp";
    let object = until_view(port, query, |view| {
        ["conditions", "reconciles"]
            .iter()
            .all(|list| view[list].as_array().is_some_and(|it| !it.is_empty()))
    })
    .await;
    let text = object["unreadable"].to_string();
    assert_contains(&text, "v1/Secret … cannot list resource");
    assert_eq!(object["unreadable"].as_array().map(Vec::len), Some(1), "{text}");
    assert_eq!(object["reconciles"][0]["outcome"], "watch", "{object:#}");
}
