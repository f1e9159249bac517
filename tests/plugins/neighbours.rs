//! A controller whose plugin misbehaves, and its effect on the latency of another one's resources.

use crate::support::prelude::*;
use control_plane::proxy::Seen;
use futures::future::join_all;

use crate::samples::echo;
use crate::support::bystander::Bystander;
use crate::support::measure::{peak, percentile, report};

/// How often the Echo changes.
const CHANGES: usize = 20;

/// ClusterPuppets, whose children may be in the namespace `memory`.
const CLUSTER_PUPPETS: &str = "\
- name: cluster-puppet
  parent: {apiVersion: test.operator-host.dev/v1, kind: ClusterPuppet}
  plugin: cluster-puppet.wasm
  children: [{apiVersion: v1, kind: ConfigMap}]
  otherNamespaces: [memory]
  backoff: {initial: 50ms, max: 500ms}
";

#[tokio::test]
async fn all_calls_together_keep_to_the_memory_of_the_process_and_all_parents_are_reconciled() {
    const PARENTS: usize = 12;
    // In a separate cluster, since hosts in the shared one see each other's ClusterPuppets.
    let cluster = own_cluster(Options::bare()).await;
    let scenario = Scenario::within(&cluster, "memory").await;
    let puppets = controller("puppet.wasm", "");
    let config = scenario.config(&format!("{puppets}{CLUSTER_PUPPETS}{}", echo::CONTROLLER));
    let mut host = scenario.start_with(&config, &["--memory", "256Mi"]);
    let words = "memory limits: for the process … \"process_mib\":256 … \"calls_mib\":128 … \
         \"one_call_mib\":96";
    host.until_log(words).await;
    let mut bystander = Bystander::new(&scenario).await;
    let before = peak(&host) >> 20;

    // The limits would allow sixteen of these calls 40 MiB each at a time.
    let spec = |name: &str| {
        let child = config_map_in("memory", name, "");
        json!({"hold": 40, "busy": 100, "response": {"children": [child]}})
    };
    let names = |of: &str| -> Vec<String> { (0..PARENTS).map(|number| format!("{of}-{number}")).collect() };
    let (ours, theirs) = (names("ours"), names("theirs"));
    join_all(ours.iter().map(|name| scenario.puppet(name, spec(name)))).await;
    join_all(
        theirs
            .iter()
            .map(|name| scenario.cluster_puppet(name, spec(name))),
    )
    .await;
    // Meanwhile a plugin that needs little continues.
    let beside = percentile(&bystander.changes(&scenario, CHANGES).await, 0.5);
    for name in ours.iter().chain(&theirs) {
        scenario.until_there(CONFIG_MAP, name).await;
    }
    for name in &ours {
        scenario.until_ready(name).await;
    }
    let peak = peak(&host) >> 20;
    let figures = format!(
        "memory of all calls: {before} MiB, then at most {peak} MiB; an Echo beside took {beside:.1?}"
    );
    report("memory-of-all-calls", &figures);
    assert!(peak < 256, "{peak} MiB, {before} MiB before");
    assert!(peak < before + 128, "{peak} MiB, {before} MiB before");
    assert!(beside < Duration::from_secs(2), "{beside:?}");

    // A configuration that could never work is refused, and the previous one stays.
    let large = controller("puppet.wasm", "limits: {memory: 100Mi}");
    scenario.config(&format!("{large}{}", echo::CONTROLLER));
    let words = "the configuration is refused … may take 124 MiB … \\\"puppet\\\" … \
         limit for one call is 96 MiB … give the process 332 MiB";
    host.until_log(words).await;
    assert!(host.is_alive());
    let mut command = scenario.program(&["run", "--memory", "256Mi", "--config"]);
    assert_contains(&command.arg(&config).ends(2), "may take 124 MiB … config.yaml");
    assert!(host.stop().await.success());
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_controller_writes_no_faster_than_it_may() {
    let (scenario, _host) = puppets("writes", "writes: {qps: 5, burst: 1}").await;
    let children: Vec<_> = (0..6)
        .map(|number| config_map(&format!("c{number}"), ""))
        .collect();
    let start = Instant::now();
    scenario.ready_wants("p", &children).await;
    // A finalizer, six children and a status: seven of these writes wait 200 ms each.
    assert!(
        start.elapsed() > Duration::from_millis(1300),
        "{:?}",
        start.elapsed()
    );
}

/// Regression: one controller had as many writes waiting for the API server as `concurrency` and its children allowed,
/// each with a connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_whose_writes_hang_has_64_of_them_and_does_not_hold_up_another_one() {
    const MOST: usize = 64;
    let proxy = Proxy::start(&cluster().await.kubeconfig())
        .await
        .expect("a proxy");
    let scenario = Scenario::new("hanging-writes")
        .await
        .with_kubeconfig(proxy.kubeconfig());
    let hanging = controller("puppet.wasm", "concurrency: 100");
    let _host = scenario.start(&format!("{hanging}{}", echo::CONTROLLER));
    scenario.apply(&echo::echo(1)).await;
    scenario.until_there("v1/Pod", "e-pod-0").await;
    let is_held = |seen: &Seen| seen.is_write() && seen.uri.contains("/configmaps/");
    let held = || proxy.take_seen().iter().filter(|seen| is_held(seen)).count();
    // Reads, too: the API server is slow for all, so no write is given up early.
    proxy.set_mode_of("/configmaps", Mode::Stall);
    let names: Vec<String> = (0..30).map(|number| format!("p{number}")).collect();
    let created = names.iter().map(|name| {
        let children = (0..4).map(|child| config_map(&format!("{name}-{child}"), "a"));
        scenario.puppet(
            name,
            json!({"response": {"children": children.collect::<Vec<_>>()}}),
        )
    });
    join_all(created).await;
    let mut waiting = 0;
    while waiting < MOST {
        proxy.until_seen(is_held).await;
        waiting += held();
    }
    scenario
        .patch(echo::ECHO, "e", json!({"spec": {"replicas": 10}}))
        .await;
    scenario.until_there("v1/Pod", "e-pod-9").await;
    waiting += held();
    assert_eq!(waiting, MOST);

    proxy.set_mode(Mode::Pass);
    for name in &names {
        scenario.until_ready(name).await;
    }
}
