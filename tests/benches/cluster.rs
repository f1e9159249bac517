//! Compares the host with a bare client, on the same API server.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use control_plane::{Changes, ControlPlane, Options, process};
use futures::{StreamExt, stream};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::support::measure::{anonymous, follow, peak, resident};
use super::support::{Host, Scenario, own_cluster};
use super::table::{Figure, Spread, Table, megabytes, millis};

const ECHOES: usize = 500;
const PODS: usize = 3;
const CONCURRENCY: usize = 10;
const SINGLE: usize = 40;
/// A shared machine is twice as fast in one pair as in the next, so the median needs many.
const ROUNDS: usize = 31;
/// The rounds after which the host's memory is measured.
const SETTLING: usize = 5;
const STARTS: usize = 8;

fn controllers(resync: &str) -> String {
    format!(
        "- name: echo\n  parent: {{apiVersion: my-operator.dev/v1, kind: Echo}}\n  plugin: echo.wasm\n  \
         children: [{{apiVersion: v1, kind: Pod}}]\n  concurrency: {CONCURRENCY}\n  resync: {resync}\n\
         - name: mysql\n  parent: {{apiVersion: database.example.com/v2, kind: MySQLCluster}}\n  plugin: mysql.wasm\n  \
         children:\n  - {{apiVersion: v1, kind: Pod}}\n  - {{apiVersion: v1, kind: Service}}\n  \
         - {{apiVersion: v1, kind: PersistentVolumeClaim}}\n  - {{apiVersion: v1, kind: Secret}}\n  \
         reads: [{{apiVersion: v1, kind: Secret}}]\n"
    )
}

pub async fn run(table: &mut Table) {
    let cluster = own_cluster(Options::bare()).await;
    start(table, &cluster).await;
    // As it is deployed.
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("compiled");
    let status = single(table, &cluster, &cache).await;
    many(table, &cluster, &cache, &status).await;
    cluster.shutdown().await;
}

/// Starts a host with production logging. Returns when it began to reconcile Echos, according to its log.
async fn start_host(scenario: &Scenario, cache: &Path) -> (Host, SystemTime) {
    let arguments = ["--log", "info", "--cache-dir", cache.to_str().expect("UTF-8")];
    let host = scenario.start_with(&scenario.config(&controllers("1h")), &arguments);
    let line = host.until_log("controller started … Echo").await;
    let line: Value = serde_json::from_str(&line).expect("a line of JSON");
    let time: jiff::Timestamp = line["timestamp"]
        .as_str()
        .expect("a time")
        .parse()
        .expect("a time");
    (host, time.into())
}

/// Measures the time from the start of the process to its first child.
async fn start(table: &mut Table, cluster: &ControlPlane) {
    eprintln!("start");
    let cache = tempfile::tempdir().expect("a folder");
    let (mut compiled, mut restored) = (Vec::new(), Vec::new());
    for i in 0..STARTS {
        // Alternate. The first start with the cache fills it and does not count.
        for (samples, cached) in [(&mut compiled, false), (&mut restored, true)] {
            let scenario = Scenario::within(cluster, &format!("bench-start-{i}-{cached}")).await;
            let mut pods = follow(&scenario, "v1/Pod").await;
            create(&scenario, "e", 1).await;
            let folder = cache.path().join("compiled");
            let folder = folder.to_str().expect("UTF-8");
            let started = Instant::now();
            let host = if cached {
                let config = scenario.config(&controllers("1h"));
                scenario.start_with(&config, &["--log", "info", "--cache-dir", folder])
            } else {
                scenario.start_uncached(&controllers("1h"), &["--log", "info"])
            };
            pods.recv().await.expect("a pod");
            if i > 0 || !cached {
                samples.push(started.elapsed());
            }
            assert!(host.stop().await.success());
        }
    }
    table.fill(
        "start of the process to its first child applied, two plugins compiled",
        Spread::of(compiled, millis),
    );
    table.fill(
        "start of the process from the compiled cache",
        Spread::of(restored, millis),
    );
}

/// Reconciles one Echo at a time and measures from the parent's watch event to the last child, with the same
/// observer. Returns the last status that the host wrote.
async fn single(table: &mut Table, cluster: &ControlPlane, cache: &Path) -> Value {
    eprintln!("one at a time");
    let scenario = Scenario::within(cluster, "bench-single").await;
    let bare = Scenario::within(cluster, "bench-single-bare").await;
    let (host, _) = start_host(&scenario, cache).await;
    host.until_log("controller started … MySQLCluster").await;
    let mut status = Value::Null;
    tokio::time::sleep(SETTLED).await;
    let idle = resident(&host);
    let mut parents = follow(&scenario, "my-operator.dev/v1/Echo").await;
    let mut pods = follow(&scenario, "v1/Pod").await;
    let mut bare_pods = follow(&bare, "v1/Pod").await;
    let (mut with_host, mut without) = (Vec::new(), Vec::new());
    for i in 0..SINGLE {
        let name = format!("e{i}");
        status = Value::Null;
        create(&scenario, &name, PODS).await;
        let seen = parents.recv().await.expect("the parent's event").0;
        let mut last = seen;
        for _ in 0..PODS {
            last = pods.recv().await.expect("a pod").0;
        }
        with_host.push(last - seen);
        // Its status write must not disturb the bare client.
        while status["currentReplicas"] != json!(PODS) {
            status = parents.recv().await.expect("the status").1.data["status"].take();
        }

        let sent = Instant::now();
        let bodies: Vec<Value> = (0..PODS).map(|p| body(&scenario, &bare, &name, p)).collect();
        let requests = bodies.iter().map(|body| apply(&bare, "v1/Pod", body, false));
        stream::iter(requests.collect::<Vec<_>>())
            .buffer_unordered(PODS)
            .count()
            .await;
        let mut last = sent;
        for _ in 0..PODS {
            last = bare_pods.recv().await.expect("a pod").0;
        }
        without.push(last - sent);
    }
    let (host_time, bare_time) = (Spread::of(with_host, millis), Spread::of(without, millis));
    let ratio = host_time.median / bare_time.median;
    table.fill("parent's watch event to the last of 3 children", host_time);
    table.fill("the same 3 requests by a bare client", bare_time);
    table.fill(
        "ratio to a bare client that sends the same 3 requests",
        Figure::number(ratio, 2),
    );
    table.fill("resident memory, idle with two plugins", megabytes(idle));
    assert!(host.stop().await.success());
    status
}

/// Reconciles 500 Echos of 3 pods until the last status; `status` is what the bare client writes.
async fn many(table: &mut Table, cluster: &ControlPlane, cache: &Path, status: &Value) {
    let (mut with_host, mut without, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut own, mut servers, mut bare_servers) = (Vec::new(), Vec::new(), Vec::new());
    let (mut memory, mut anonymous, mut highest) = (0, 0, 0);
    let mut own_writes = 0;
    let mut resync_writes = 0;
    for round in 0..ROUNDS {
        eprintln!("{ECHOES} at once, round {}", round + 1);
        let scenario = Scenario::within(cluster, &format!("bench-many-{round}")).await;
        let bare = Scenario::within(cluster, &format!("bench-many-bare-{round}")).await;
        let settles = round < SETTLING;
        // Alternate which one is first: earlier writes slow down later ones.
        let (taken, bare_time) = if round % 2 == 0 {
            let bare_time = bare_many(&scenario, &bare, status).await;
            (host_many(&scenario, cache, settles).await, bare_time)
        } else {
            let taken = host_many(&scenario, cache, settles).await;
            (taken, bare_many(&scenario, &bare, status).await)
        };
        with_host.push(taken.wall);
        without.push(bare_time.wall);
        ratios.push(taken.wall.as_secs_f64() / bare_time.wall.as_secs_f64());
        own.push(taken.own);
        own_writes = own_writes.max(taken.writes);
        memory = memory.max(taken.memory);
        anonymous = anonymous.max(taken.anonymous);
        highest = highest.max(taken.highest);
        servers.push(taken.servers);
        bare_servers.push(bare_time.servers);
        if round + 1 == ROUNDS {
            resync_writes = writes_of_a_resync(&scenario).await;
        }
        clear(&scenario).await;
    }
    table.fill(
        "500 Echos of 3 pods from nothing to the last status",
        Spread::of(with_host, millis),
    );
    table.fill(
        "the same 2,000 applies by a bare client, 10 at a time",
        Spread::of(without, millis),
    );
    table.fill(
        "ratio to a bare client that sends the same 2,000 applies",
        Spread::of_figures(ratios),
    );
    for (what, samples) in [
        // Including the host's start, which the time above excludes.
        ("processor time of the host for the 500, its start included", own),
        (
            "processor time of API server and etcd for the 500, with the host",
            servers,
        ),
        ("the same, with the bare client", bare_servers),
    ] {
        table.fill(what, Spread::of(samples, millis));
    }
    table.fill("writes for the 500", Figure::number(own_writes as f64, 0));
    table.fill("highest resident memory during the 500", megabytes(highest));
    table.fill("resident memory after the 500", megabytes(memory));
    table.fill("of it anonymous", megabytes(anonymous));
    table.fill(
        "writes in two full resyncs of the 500, unchanged, after a restart",
        Figure::number(resync_writes as f64, 0),
    );
}

/// The cost of an iteration.
struct Taken {
    wall: Duration,
    /// Processor time of API server and etcd.
    servers: Duration,
    /// Processor time of the host.
    own: Duration,
    /// The writes of all clients meanwhile.
    writes: u64,
    /// Its memory once it is idle again, if it was let settle, and the most meanwhile.
    memory: u64,
    anonymous: u64,
    highest: u64,
}

/// Within this time an idle host closes unused connections, returns freed memory to the system, and unmaps the code of its start.
const SETTLED: Duration = Duration::from_secs(12);

const SERVERS: [&str; 2] = ["kube-apiserver", "etcd"];

/// Returns the processor time of this process's children with these names.
fn processor_time(names: &[&str]) -> Duration {
    let children = process::children();
    let running = names.iter().filter_map(|name| children.get(*name));
    running
        .map(|pid| process::times(*pid).expect("it runs").own)
        .sum()
}

/// Lets the host settle afterwards if its memory is to be measured.
async fn host_many(scenario: &Scenario, cache: &Path, settles: bool) -> Taken {
    for i in 0..ECHOES {
        create(scenario, &format!("e{i}"), PODS).await;
    }
    let mut parents = follow(scenario, "my-operator.dev/v1/Echo").await;
    let before = writes(scenario).await;
    let servers = processor_time(&SERVERS);
    let (host, started) = start_host(scenario, cache).await;
    all_statuses(&mut parents).await;
    let mut taken = Taken {
        wall: started.elapsed().expect("a clock that does not jump"),
        servers: processor_time(&SERVERS) - servers,
        own: processor_time(&["operator-host"]),
        writes: writes(scenario).await - before,
        memory: 0,
        anonymous: 0,
        highest: peak(&host),
    };
    if settles {
        tokio::time::sleep(SETTLED).await;
        (taken.memory, taken.anonymous) = (resident(&host), anonymous(&host));
    }
    assert!(host.stop().await.success());
    taken
}

/// Writes 500 times 3 pods and a status, as the host would; the Echos are created first.
async fn bare_many(scenario: &Scenario, bare: &Scenario, status: &Value) -> Taken {
    for i in 0..ECHOES {
        create(bare, &format!("e{i}"), PODS).await;
    }
    let mut parents = follow(bare, "my-operator.dev/v1/Echo").await;
    let bodies: Vec<(Vec<Value>, Value)> = (0..ECHOES)
        .map(|i| format!("e{i}"))
        .map(|name| {
            let pods = (0..PODS).map(|p| body(scenario, bare, &name, p)).collect();
            let status = json!({
                "apiVersion": "my-operator.dev/v1", "kind": "Echo", "metadata": { "name": name }, "status": status,
            });
            (pods, status)
        })
        .collect();
    let servers = processor_time(&SERVERS);
    let started = Instant::now();
    let work = bodies.iter().map(|(pods, status)| async move {
        for pod in pods {
            apply(bare, "v1/Pod", pod, false).await;
        }
        apply(bare, "my-operator.dev/v1/Echo", status, true).await;
    });
    stream::iter(work.collect::<Vec<_>>())
        .buffer_unordered(CONCURRENCY)
        .count()
        .await;
    all_statuses(&mut parents).await;
    let taken = Taken {
        wall: started.elapsed(),
        servers: processor_time(&SERVERS) - servers,
        own: Duration::ZERO,
        writes: 0,
        memory: 0,
        anonymous: 0,
        highest: 0,
    };
    clear(bare).await;
    taken
}

/// Waits until the observer has seen a complete status of every Echo.
async fn all_statuses(parents: &mut Changes) {
    let mut done = std::collections::HashSet::new();
    while done.len() < ECHOES {
        let (_, parent) = parents.recv().await.expect("a status");
        if parent.data["status"]["currentReplicas"] == json!(PODS) {
            done.insert(parent.metadata.name.expect("a name"));
        }
    }
}

/// Returns the body that the host would apply.
fn body(scenario: &Scenario, bare: &Scenario, name: &str, pod: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("{name}-pod-{pod}"), "namespace": bare.namespace,
            "labels": { "app": name, "operator-host.dev/controller": "echo" },
            "annotations": {
                "operator-host.dev/applied": "0123456789abcdef",
                "operator-host.dev/parent": format!("{}/{name}", scenario.namespace),
                "operator-host.dev/provenance":
                    "generation=1 parent=7f1b5a6e-8d0c-4f6e-9f1c-2f6f3d3b1a10 digest=sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef plugin=echo 1.0.0",
            },
            "ownerReferences": [{
                "apiVersion": "my-operator.dev/v1", "kind": "Echo", "name": name, "controller": true,
                "blockOwnerDeletion": true, "uid": "7f1b5a6e-8d0c-4f6e-9f1c-2f6f3d3b1a10",
            }],
        },
        "spec": { "containers": [{ "name": "echo", "image": "echo:1" }] },
    })
}

async fn apply(scenario: &Scenario, kind: &str, body: &Value, status: bool) {
    let name = body["metadata"]["name"].as_str().expect("a name");
    let api = scenario.api(kind);
    let params = PatchParams::apply("bare").force();
    let patch = Patch::Apply(body);
    let sent = if status {
        api.patch_status(name, &params, &patch).await
    } else {
        api.patch(name, &params, &patch).await
    };
    sent.expect("an apply");
}

async fn create(scenario: &Scenario, name: &str, replicas: usize) {
    let echo = json!({
        "apiVersion": "my-operator.dev/v1", "kind": "Echo", "metadata": { "name": name },
        "spec": { "replicas": replicas, "image": "echo:1" },
    });
    apply(scenario, "my-operator.dev/v1/Echo", &echo, false).await;
}

async fn clear(scenario: &Scenario) {
    for kind in ["my-operator.dev/v1/Echo", "v1/Pod"] {
        let params = DeleteParams::default().grace_period(0);
        scenario
            .api(kind)
            .delete_collection(&params, &ListParams::default())
            .await
            .expect("a deletion");
    }
}

/// Starts a host with a short resync period on unchanged objects, waits for two full resyncs, and counts the writes
/// of all clients meanwhile.
async fn writes_of_a_resync(scenario: &Scenario) -> u64 {
    let before = writes(scenario).await;
    let host = scenario.start(&controllers("5s"));
    host.until_logged("reconcile done", 3 * ECHOES).await;
    let after = writes(scenario).await;
    assert!(host.stop().await.success());
    after - before
}

/// Returns the number of writes, from the API server's own metrics.
async fn writes(scenario: &Scenario) -> u64 {
    let request = http::Request::get("/metrics")
        .body(Vec::new())
        .expect("a request");
    let text = scenario.client.request_text(request).await.expect("metrics");
    text.lines()
        .filter(|line| line.starts_with("apiserver_request_total{"))
        .filter(|line| {
            ["APPLY", "PATCH", "POST", "PUT", "DELETE"]
                .iter()
                .any(|v| line.contains(&format!("verb=\"{v}\"")))
        })
        // Exclude Leases and Events of the control plane itself, the host's own Events, and its record of the live version, which a
        // new host writes once on each definition.
        .filter(|line| {
            !["leases", "events", "customresourcedefinitions"]
                .iter()
                .any(|resource| line.contains(&format!("resource=\"{resource}\"")))
        })
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum::<f64>() as u64
}
