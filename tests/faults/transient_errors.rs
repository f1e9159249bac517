//! A proxy between the host and the API server refuses requests, is silent, or forwards only some: transient errors
//! have no consequences, and a permanent one affects only what depends on it.

use crate::support::prelude::*;
use std::collections::BTreeMap;

use control_plane::proxy::Seen;

use crate::samples::echo::CONTROLLER;
use crate::samples::many_echoes::{POD, apply, apply_many, until_exact, until_pods};

/// Creates a scenario whose hosts reach the shared cluster through a proxy.
pub async fn behind_a_proxy(name: &str) -> (Scenario, Proxy) {
    let proxy = Proxy::start(&cluster().await.kubeconfig())
        .await
        .expect("a proxy");
    let scenario = Scenario::new(name).await.with_kubeconfig(proxy.kubeconfig());
    (scenario, proxy)
}

const REFUSED_FOR_GOOD: Mode = Mode::refuse(403);

/// Reports whether a watch asks for the latest resource version, before it goes on after a broken connection.
fn asks_for_version(seen: &Seen) -> bool {
    seen.is_list() && seen.uri.ends_with("limit=1")
}

fn lists(seen: &[Seen]) -> Vec<&str> {
    seen.iter()
        .filter(|seen| seen.is_list() && !asks_for_version(seen))
        .map(|seen| seen.uri.as_str())
        .collect()
}

/// Returns when each path was requested.
fn by_path(seen: &[Seen]) -> BTreeMap<String, Vec<Instant>> {
    let mut paths = BTreeMap::<_, Vec<_>>::new();
    for seen in seen {
        let path = seen.uri.split('?').next().unwrap_or_default();
        paths.entry(path.to_owned()).or_default().push(seen.at);
    }
    paths
}

#[track_caller]
fn assert_apart(path: &str, at: &[Instant], delay: Duration) {
    let gaps: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // The proxy notes a request a moment before it refuses it.
    assert!(gaps.iter().all(|gap| *gap >= delay), "{path}: {gaps:.1?}");
}

/// Regression: discovery and the election asked again several times a second.
#[tokio::test]
async fn discovery_and_the_election_wait_as_long_as_the_api_server_asks() {
    let (scenario, proxy) = behind_a_proxy("retry-after").await;
    let top = format!(
        "leadership: single\nlease: {{namespace: {}, duration: 15s, renewDeadline: 10s, retryPeriod: 1s}}",
        scenario.namespace
    );
    let config = scenario.config_with(&top, CONTROLLER);
    proxy.set_mode(Mode::Refuse {
        status: 429,
        retry_after: Some(2),
    });
    let _host = scenario.start_with(&config, &[]);
    let lease = "/apis/coordination.k8s.io/v1/namespaces/retry-after/leases/operator-host";
    let discovery = "/apis/my-operator.dev/v1";
    let mut seen = Vec::new();
    // Until both have been tried a few times.
    let is_rare =
        |paths: &BTreeMap<String, Vec<Instant>>, path: &str| paths.get(path).is_none_or(|at| at.len() < 4);
    while is_rare(&by_path(&seen), lease) || is_rare(&by_path(&seen), discovery) {
        proxy.until_seen(|_| true).await;
        seen.extend(proxy.take_seen());
    }
    let paths = by_path(&seen);
    assert_apart(discovery, &paths[discovery], Duration::from_secs(2));
    // Two read the Lease: the election, and the watch before it begins.
    let at = &paths[lease];
    let (tried, after) = (at.len(), at[at.len() - 1] - at[0]);
    let most = 2 + usize::try_from(after.as_secs()).unwrap();
    assert!(tried <= most, "{tried} in {after:.1?}");
    proxy.set_mode(Mode::Pass);
    apply(&scenario, "e", 1).await;
    until_exact(&scenario).await;
}

/// Regression: after 3.5 s each watch gave up its position, all parents got a condition and an Event, and once the
/// server had recovered, everything was listed and written again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_seconds_of_refusals_cost_no_list_no_status_and_no_event() {
    let options = Options {
        controller_manager: false,
        ..Options::default().with_audit()
    };
    let cluster = own_cluster(options).await;
    let proxy = Proxy::start(&cluster.kubeconfig()).await.expect("a proxy");
    let scenario = Scenario::within(&cluster, "transient-errors")
        .await
        .with_kubeconfig(proxy.kubeconfig());
    let host = scenario.start(CONTROLLER);
    apply_many(&scenario, "w", 10, 2).await;
    until_exact(&scenario).await;
    let statuses = async || {
        let writes = scenario.all_writes(&cluster).await;
        let did = writes_to(&writes, "echoes");
        did.iter().filter(|did| did.ends_with("/status")).count()
    };
    let before = statuses().await;
    let _ = proxy.take_seen();

    // Half of the time with the header of an API server, half like a load balancer.
    for (status, retry_after) in [(429, Some(1)), (503, None)] {
        proxy.set_mode(Mode::Refuse { status, retry_after });
        // Wait for the outage itself, with work to do during it.
        tokio::time::sleep(Duration::from_secs(2)).await;
        scenario.delete(POD, "w0-pod-1").await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let mut refused = proxy.take_seen();
        refused.retain(|seen| seen.refused.is_some());
        refused.retain(|seen| seen.is_list() || seen.is_watch());
        assert!(!refused.is_empty(), "the watches ended");
        assert_eq!(lists(&refused), [""; 0]);
        for (path, at) in by_path(&refused) {
            match retry_after {
                Some(seconds) => assert_apart(&path, &at, Duration::from_secs(seconds.into())),
                // The delay doubles from 0.1 s to 1 s, less a half by jitter.
                None => assert!(at.len() <= 14, "{path}: {} tries in 5 s", at.len()),
            }
        }
        proxy.set_mode(Mode::Pass);
        let is_new = |pod: &DynamicObject| pod.metadata.deletion_timestamp.is_none();
        scenario.until(POD, "w0-pod-1", "recreated", is_new).await;
        until_exact(&scenario).await;
    }
    let seen = proxy.take_seen();
    assert_eq!(lists(&seen), [""; 0], "each watch goes on where it was");
    // The status of its parent reports each pod as deleted, as not started and as ready; no other parent changes.
    let written = statuses().await - before;
    assert!(written <= 6, "{written} statuses were written");
    assert!(!host.log().contains("cannot watch"), "{}", scenario.log_tail());
}

/// Regression: losing a Role in one namespace stopped every parent in all others.
#[tokio::test]
async fn a_namespace_that_cannot_be_watched_stops_no_other() {
    let (scenario, proxy) = behind_a_proxy("good").await;
    scenario.create_namespace("bad").await;
    let config = scenario.config(CONTROLLER);
    let text = std::fs::read_to_string(&config).unwrap();
    scenario.file("config.yaml", text.replace("[good]", "[good, bad]"));
    proxy.set_mode_of("/namespaces/bad/", REFUSED_FOR_GOOD);
    let host = scenario.start_with(&config, &[]);
    host.until_log("WARN … cannot watch … v1/Pod … \"bad\"").await;
    apply(&scenario, "e", 2).await;
    until_exact(&scenario).await;
    // It does not touch objects that it cannot see, and sees them as soon as it is allowed to.
    let bad = scenario.beside("bad");
    apply(&bad, "b", 1).await;
    proxy.set_mode(Mode::Pass);
    bad.until_there(POD, "b-pod-0").await;
    until_exact(&scenario).await;
}

fn pod_template(name: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name},
        "template": {"spec": {"containers": [{"name": "main", "image": "main:1"}]}}})
}

/// Regression: a failing watch of one kind stopped all parents, including those without such a child.
#[tokio::test]
async fn a_kind_that_cannot_be_watched_stops_who_has_or_wants_it_and_nobody_else() {
    let (scenario, proxy) = behind_a_proxy("one-kind").await;
    let children = "children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: v1, kind: PodTemplate}]";
    let _host = scenario.start(&controller("puppet.wasm", children));
    scenario.wants("without", &[config_map("without", "1")]).await;
    scenario.wants("wants", &[config_map("wants", "1")]).await;
    let both = |name: &str, text: &str| [config_map(name, text), pod_template(name)];
    scenario.wants("has", &both("has", "1")).await;
    for name in ["without", "wants", "has"] {
        scenario.until_ready(name).await;
    }
    proxy.set_mode_of("/podtemplates", REFUSED_FOR_GOOD);
    let failed = |name| scenario.until_told(name, "Reconciling=True WatchFailed");
    assert_contains(&failed("has").await, "list and watch");
    let other = [config_map("without", "2")];
    scenario.ready_wants("without", &other).await;
    scenario.wants("wants", &both("wants", "2")).await;
    failed("wants").await;
    assert_eq!(
        scenario.text_of("wants").await,
        "1",
        "nothing of that answer is done"
    );
    proxy.set_mode(Mode::Pass);
    for name in ["wants", "has"] {
        scenario.until_ready(name).await;
    }
}

/// Regression: deletions ran one after the other, each retried until its end against a server that refused them
/// all.
#[tokio::test]
async fn deletions_run_side_by_side_and_stop_when_the_server_has_no_time() {
    let (scenario, proxy) = behind_a_proxy("pruned").await;
    let slow = CONTROLLER.replace("initial: 100ms, max: 1s", "initial: 10s, max: 10s");
    assert_ne!(slow, CONTROLLER);
    let _host = scenario.start(&slow);
    apply(&scenario, "e", 12).await;
    until_pods(&scenario, 12).await;
    until_exact(&scenario).await;
    let _ = proxy.take_seen();
    let deletions = |seen: &[Seen]| seen.iter().filter(|seen| seen.method == "DELETE").count();
    proxy.set_mode_of("/pods/", Mode::refuse(503));
    apply(&scenario, "e", 0).await;
    let mut tried = 0;
    let start = Instant::now();
    // Long enough for all of them, and shorter than until the next try.
    while start.elapsed() < Duration::from_secs(3) {
        tried += deletions(&proxy.take_seen());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!((1..=4).contains(&tried), "{tried} of 12 were tried");
    proxy.set_mode_of("/pods/", Mode::Delay(Duration::from_secs(1)));
    let mut seen = Vec::new();
    while deletions(&seen) < 12 {
        proxy.until_seen(|seen| seen.method == "DELETE").await;
        seen.extend(proxy.take_seen());
    }
    let deletions = seen.iter().filter(|seen| seen.method == "DELETE");
    let times: Vec<_> = deletions.map(|seen| seen.at).collect();
    // Each takes a second: sequentially, the last would arrive eleven seconds after the first.
    let took = times[11] - times[0];
    assert!(took < Duration::from_secs(8), "{took:?}");
    until_exact(&scenario).await;
}
