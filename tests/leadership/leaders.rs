//! Several replicas of which one writes: killed, suspended, disconnected, and with a Lease that is edited by hand.

use crate::support::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use control_plane::AuditEvent;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::telemetry::{get, until_ready_says};

const LEASE: &str = "coordination.k8s.io/v1/Lease";
const NAME: &str = "operator-host";

/// Returns the configuration of a replica, with shorter times than the defaults but the same rules.
pub fn shared(scenario: &Scenario, times: [&str; 3], controllers: &str) -> PathBuf {
    let [duration, renew, retry] = times;
    let top = format!(
        "leadership: single\nlease: {{namespace: {}, duration: {duration}, renewDeadline: {renew}, retryPeriod: {retry}}}",
        scenario.namespace
    );
    scenario.config_with(&top, controllers)
}

/// Keeps the leader writing by continuously changing the specs of ten puppets.
struct Load {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<u64>,
}

impl Load {
    async fn start(scenario: &Scenario) -> Self {
        let name = |count: u64| format!("p{}", count % 10);
        let spec = move |count: u64| {
            let child = config_map(&name(count), &count.to_string());
            json!({"response": {"children": [child]}})
        };
        for count in 0..10 {
            scenario.puppet(&name(count), spec(count)).await;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (api, stopped) = (scenario.api(crate::support::puppet::PUPPET), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                let patch = Patch::Merge(json!({ "spec": spec(count) }));
                // The API server may be unavailable for a while.
                let _ = api.patch(&name(count), &PatchParams::default(), &patch).await;
                count += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            count
        });
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
    }
}

/// Returns the replica that sent a request, by its user agent.
fn replica(event: &AuditEvent) -> Option<&str> {
    let (_, identity) = event
        .user_agent
        .strip_prefix("operator-host/")?
        .split_once(" (")?;
    Some(identity.trim_end_matches(')'))
}

fn is_taken(event: &AuditEvent) -> bool {
    event
        .response_status
        .as_ref()
        .is_some_and(|status| status.code < 300)
}

/// Returns the writes of hosts in this namespace in the order in which they were received, Leases separate from the
/// rest. Events about elections do not count as writes of a leader.
fn writes(scenario: &Scenario, cluster: &ControlPlane) -> (Vec<AuditEvent>, Vec<AuditEvent>) {
    let events = cluster.audit_events_about(&scenario.namespace);
    let mut events = events.expect("the audit log");
    events.retain(|event| {
        let object = event.object_ref.clone().unwrap_or_default();
        object.namespace == scenario.namespace
            && replica(event).is_some()
            && !object.name.starts_with(&format!("{NAME}."))
            && !(object.resource == "events" && object.name.is_empty())
    });
    events.sort_by(|a, b| a.request_received_timestamp.cmp(&b.request_received_timestamp));
    let is_lease = |event: &AuditEvent| {
        event
            .object_ref
            .as_ref()
            .is_some_and(|object| object.resource == "leases")
    };
    events.into_iter().partition(is_lease)
}

/// Fails if anything was written by a replica that was not the last to write the Lease. Returns how often the
/// leader changed. Each write of the Lease is based on the one before it, so it was received after it; answers may overtake
/// each other.
#[track_caller]
fn assert_never_two(scenario: &Scenario, cluster: &ControlPlane) -> usize {
    let (mut leases, writes) = writes(scenario, cluster);
    leases.retain(is_taken);
    assert!(writes.len() > 50, "only {} writes prove nothing", writes.len());
    for write in &writes {
        let at = &write.request_received_timestamp;
        let leader = leases
            .iter()
            .take_while(|lease| lease.request_received_timestamp <= *at)
            .last();
        assert_eq!(
            leader.and_then(replica),
            replica(write),
            "in another's term: {write:#?}\nthe Lease before it: {leader:#?}"
        );
    }
    let mut terms: Vec<_> = leases.iter().map(replica).collect();
    terms.dedup();
    terms.len()
}

/// Waits for a write of a replica whose name does not begin with `not`, and returns the time of that write.
async fn until_written(scenario: &Scenario, cluster: &ControlPlane, since: &str, not: &str) -> String {
    eventually(&format!("a write by another than {not}"), async || {
        let (_, writes) = writes(scenario, cluster);
        let found = writes.iter().find(|write| {
            write.request_received_timestamp.as_str() > since
                && replica(write).is_some_and(|replica| !replica.starts_with(not))
        });
        found
            .map(|write| write.request_received_timestamp.clone())
            .ok_or_else(String::new)
    })
    .await
}

fn now() -> String {
    let now = jiff::Timestamp::now();
    format!("{now:.6}")
}

/// Returns the seconds between two times of the audit log.
fn between(from: &str, to: &str) -> f64 {
    let time = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
    (time(to) - time(from)).total(jiff::Unit::Second).unwrap()
}

/// Waits until a host holds the Lease, and returns its identity.
async fn holder(scenario: &Scenario) -> String {
    let identity = |lease: &DynamicObject| {
        let holder = lease.data["spec"]["holderIdentity"].as_str();
        holder.filter(|it| it.contains('_')).map(str::to_owned)
    };
    let is_held = |lease: &DynamicObject| identity(lease).is_some();
    let lease = scenario.until(LEASE, NAME, "held by a host", is_held).await;
    identity(&lease).unwrap()
}

/// Returns the host that holds the Lease, and the others, by name.
async fn sort(
    scenario: &Scenario,
    hosts: Vec<(&'static str, Host)>,
) -> ((&'static str, Host), Vec<(&'static str, Host)>) {
    let holder = holder(scenario).await;
    let (mut leaders, standbys): (Vec<_>, Vec<_>) = hosts
        .into_iter()
        .partition(|(name, _)| holder.starts_with(&format!("{name}_")));
    (leaders.pop().expect("one of them"), standbys)
}

#[tokio::test]
async fn one_replica_writes_and_another_takes_over_when_it_is_killed_terminated_or_stopped() {
    let scenario = Scenario::new("leaders").await;
    let cluster = cluster().await;
    let puppets = controller("puppet.wasm", "");
    let config = shared(&scenario, ["4s", "2500ms", "800ms"], &puppets);
    let load = Load::start(&scenario).await;
    let hosts = ["a", "b", "c"].map(|name| (name, scenario.start_named(name, &config)));
    let ((first, leader), standbys) = sort(&scenario, hosts.into()).await;
    until_written(&scenario, cluster, "", "nobody").await;
    for (_, standby) in &standbys {
        standby.until_log("controller started").await;
        let words = format!("leader ok: stands by; {first}_");
        let (status, ready) = until_ready_says(standby, &words).await;
        assert_eq!(status, 200, "a standby is ready: {ready}");
        assert_contains(&get(standby, "/metrics").await.1, "\noperator_host_leader 0\n");
    }
    assert_contains(&get(&leader, "/readyz?verbose").await.1, "leader ok: it leads");

    let killed = now();
    leader.kill();
    let taken = until_written(&scenario, cluster, &killed, first).await;
    let took = between(&killed, &taken);
    eprintln!("{took:.2} s after SIGKILL another writes; the lease is for 4 s");
    assert!(took <= 4.0 + 2.0, "{took}");

    let ((second, leader), standbys) = sort(&scenario, standbys).await;
    let (third, standby) = standbys.into_iter().next().unwrap();
    let terminated = now();
    let ended = tokio::spawn(leader.stop());
    let taken = until_written(&scenario, cluster, &terminated, second).await;
    let took = between(&terminated, &taken);
    eprintln!("{took:.2} s after SIGTERM another writes");
    assert!(took <= 2.0, "{took}");
    assert_eq!(ended.await.unwrap().code(), Some(0));

    // Suspended during its writes, and resumed when another replica leads.
    let mut stopped = standby;
    let mut name = third;
    for round in 0..3 {
        let next = ["d", "e", "f"][round];
        let other = scenario.start_named(next, &config);
        other.until_log("controller started").await;
        let at = now();
        stopped.process().pause();
        let taken = until_written(&scenario, cluster, &at, name).await;
        eprintln!("{:.2} s after SIGSTOP another writes", between(&at, &taken));
        stopped.process().resume();
        let holder = format!("stands by; {next}_");
        let (status, ready) = until_ready_says(&stopped, &holder).await;
        assert_eq!(status, 200, "it stands by in the same process: {ready}");
        until_written(&scenario, cluster, &now(), name).await;
        // The suspended replica takes over again in the first iterations: its caches are filled.
        if round < 2 {
            let (terminated, ended) = (now(), tokio::spawn(other.stop()));
            let taken = until_written(&scenario, cluster, &terminated, next).await;
            eprintln!(
                "{:.2} s after SIGTERM the one that was stopped writes",
                between(&terminated, &taken)
            );
            ended.await.unwrap();
            continue;
        }
        drop(std::mem::replace(&mut stopped, other));
        name = next;
    }
    load.stop().await;
    let changes = assert_never_two(&scenario, cluster);
    assert!(changes >= 8, "{changes} terms");
    assert!(!name.is_empty());
    scenario.until_event(NAME, "Normal LeaderElection").await;
}

#[tokio::test]
async fn a_lease_that_is_edited_or_deleted_by_hand_never_makes_two_leaders() {
    let scenario = Scenario::new("leaders-edited").await;
    let cluster = cluster().await;
    let puppets = controller("puppet.wasm", "");
    let config = shared(&scenario, ["2s", "1300ms", "400ms"], &puppets);
    let load = Load::start(&scenario).await;
    let hosts = ["a", "b"].map(|name| (name, scenario.start_named(name, &config)));
    until_written(&scenario, cluster, "", "nobody").await;
    for (_, host) in &hosts {
        host.until_log("controller started").await;
    }
    for round in 0..2 {
        for spec in [
            json!({"holderIdentity": "nobody"}),
            json!({"holderIdentity": ""}),
            json!({"holderIdentity": null, "leaseDurationSeconds": null, "renewTime": null}),
            json!({"renewTime": "9999-12-31T23:59:59.000000Z", "acquireTime": "9999-12-31T23:59:59.000000Z"}),
            json!({"renewTime": "1970-01-01T00:00:00.000000Z"}),
            json!({"leaseDurationSeconds": 1, "leaseTransitions": i32::MAX}),
            // To the other replica, which has not asked for it.
            Value::Null,
        ] {
            let spec = if spec.is_null() {
                let holder = holder(&scenario).await;
                let other = hosts.iter().find(|(name, _)| !holder.starts_with(name)).unwrap();
                let line = other.1.until_log("taking part in the election").await;
                let identity = line.split("identity").nth(1).unwrap();
                let identity: String = identity
                    .chars()
                    .skip_while(|c| !c.is_alphanumeric())
                    .take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '.'))
                    .collect();
                json!({ "holderIdentity": identity })
            } else {
                spec
            };
            let at = now();
            scenario.patch(LEASE, NAME, json!({ "spec": spec })).await;
            holder(&scenario).await;
            until_written(&scenario, cluster, &at, "nobody").await;
        }
        let at = now();
        scenario.delete(LEASE, NAME).await;
        holder(&scenario).await;
        eprintln!(
            "round {round}: there again {:.2} s after it was deleted",
            between(&at, &now())
        );
    }
    load.stop().await;
    assert_never_two(&scenario, cluster);
}

#[tokio::test]
async fn a_leader_cut_off_from_the_api_server_stops_and_goes_on_when_it_is_back() {
    let mut cluster = own_cluster(Options::default().with_audit()).await;
    let scenario = Scenario::within(&cluster, "leaders-away").await;
    let puppets = controller("puppet.wasm", "");
    let config = shared(&scenario, ["3s", "2s", "500ms"], &puppets);
    let load = Load::start(&scenario).await;
    let hosts = ["a", "b"].map(|name| (name, scenario.start_named(name, &config)));
    until_written(&scenario, &cluster, "", "nobody").await;
    let ((_, leader), _standbys) = sort(&scenario, hosts.into()).await;
    cluster.stop_apiserver().await;
    leader.until_log("this replica stands by").await;
    cluster.start_apiserver().await.expect("the API server");
    let back = now();
    let written = until_written(&scenario, &cluster, &back, "nobody").await;
    eprintln!(
        "{:.2} s after the API server is back somebody writes",
        between(&back, &written)
    );
    while writes(&scenario, &cluster).1.len() < 100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    load.stop().await;
    assert_never_two(&scenario, &cluster);
}

/// Forwards connections to the API server of a kubeconfig. Returns a kubeconfig for them, and what makes those that are
/// open go dead: silently, while new ones are forwarded.
async fn forwarded(scenario: &Scenario) -> (PathBuf, watch::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap();
    let text = std::fs::read_to_string(scenario.kubeconfig()).unwrap();
    let (_, server) = text.split_once("https://").expect("a server");
    let server: String = server.chars().take_while(|c| !"\"\n/".contains(*c)).collect();
    let kubeconfig = scenario.file("forwarded", text.replace(&server, &own.to_string()));
    let (dead, connections) = watch::channel(());
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = TcpStream::connect(&server).await.unwrap();
            let mut dead = connections.clone();
            dead.mark_unchanged();
            tokio::spawn(async move {
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                    // The kernel still acknowledges what arrives.
                    Ok(()) = dead.changed() => std::future::pending().await,
                }
            });
        }
    });
    (kubeconfig, dead)
}

/// Regression: the next renewal waited on the same dead connection, and the leader stopped leading.
#[tokio::test]
async fn a_leader_whose_connections_go_dead_renews_over_another() {
    let scenario = Scenario::new("leaders-dead-connections").await;
    let puppets = controller("puppet.wasm", "");
    let config = shared(&scenario, ["8s", "6s", "500ms"], &puppets);
    let (kubeconfig, dead) = forwarded(&scenario).await;
    let host = Host::through(&config, &kubeconfig, "leader", scenario.folder.path());
    host.until_log("this replica leads").await;
    scenario.ready_with("p", json!({ "response": {} })).await;
    let stood_by = || host.log().matches("this replica stands by").count();
    let before = stood_by();
    let renewed = async |since: &str| {
        let is_newer = |lease: &DynamicObject| lease.data["spec"]["renewTime"] != *since;
        let lease = scenario.until(LEASE, NAME, "renewed", is_newer).await;
        lease.data["spec"]["renewTime"]
            .as_str()
            .expect("a time")
            .to_owned()
    };
    let mut last = renewed("").await;
    dead.send_replace(());
    // The renewal that was under way, and those after it.
    for _ in 0..5 {
        last = renewed(&last).await;
    }
    assert_eq!(stood_by(), before, "it has led all the time");
}

async fn grant(scenario: &Scenario, leases: &[&str]) {
    let rules = json!([
        { "apiGroups": ["test.operator-host.dev"], "resources": ["*"], "verbs": ["*"] },
        { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"] },
        { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] },
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": leases },
    ]);
    scenario.grant("host", user(LIMITED), rules).await;
}

/// Regression: without the namespace of its Leases a host waited without a log message.
#[tokio::test]
async fn a_namespace_for_leases_that_is_missing_is_named_and_waited_for() {
    let scenario = Scenario::new("no-lease-namespace").await;
    let missing = "no-lease-namespace-yet";
    let top = format!(
        "leadership: single\nlease: {{namespace: {missing}, duration: 3s, renewDeadline: 2s, retryPeriod: 500ms}}"
    );
    let host = scenario.start_with(&scenario.config_with(&top, &controller("puppet.wasm", "")), &[]);
    let words = format!("cannot write the Lease … {missing} … create the namespace");
    let line = host.until_log(&words).await;
    assert_contains(&line, "WARN");
    scenario.create_namespace(missing).await;
    scenario.ready_wants("p", &[config_map("a", "1")]).await;
}

#[tokio::test]
async fn rights_on_leases_that_are_missing_or_withdrawn_are_named_and_their_return_is_noticed() {
    let scenario = Scenario::limited("leaders-rights").await;
    let puppets = controller("puppet.wasm", "");
    let config = shared(&scenario, ["2s", "1300ms", "400ms"], &puppets);
    let puppet = |text: &str| json!({"response": {"children": [config_map("p", text)]}});
    scenario.puppet("p", puppet("1")).await;
    let host = scenario.start_named("a", &config);
    // Regression: it was ready, and would never have worked.
    let (status, ready) = until_ready_says(&host, "[-]leases failed: cannot read the Lease").await;
    assert_eq!(status, 500, "{ready}");
    grant(&scenario, &["get", "create"]).await;
    // It can create the Lease, but not update it.
    let words = "WARN … cannot write the Lease operator-host … cannot update resource … \
         give the host's role the rule on leases";
    host.until_log(words).await;

    grant(&scenario, &["get", "create", "update"]).await;
    scenario.ready_with("p", puppet("2")).await;
    grant(&scenario, &["delete"]).await;
    host.until_log("WARN … cannot read the Lease … cannot get resource")
        .await;
    let (status, ready) = get(&host, "/readyz").await;
    assert_eq!(status, 200, "{ready}");
    grant(&scenario, &["get", "create", "update"]).await;
    scenario.ready_with("p", puppet("3")).await;
}
