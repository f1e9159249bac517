//! Several replicas that share the controllers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use control_plane::proxy::{Mode, Proxy};
use kube::api::ListParams;
use serde_json::json;

use crate::leadership::leaders::shared;
use crate::support::puppet::{PUPPET, assert_contains, config_map, controller};
use crate::support::{Host, LIMIT, Scenario};
use crate::telemetry::get;

const OTHERS: &str = "\
- name: echo
  parent: {apiVersion: my-operator.dev/v1, kind: Echo}
  plugin: echo.wasm
  children: [{apiVersion: v1, kind: Pod}]
- name: hello
  parent: {apiVersion: fraim.co.jp/v1, kind: Hello}
  plugin: hello.wasm
  children: [{apiVersion: apps/v1, kind: Deployment}]
- name: myapp
  parent: {apiVersion: example.com/v1, kind: MyApp}
  plugin: myapp.wasm
  children: [{apiVersion: apps/v1, kind: Deployment}, {apiVersion: v1, kind: Service}]
";
const CONTROLLERS: [&str; 4] = ["echo", "hello", "myapp", "puppet"];

/// Returns the holder of each controller's Lease, by the replica's name.
async fn holders(scenario: &Scenario) -> BTreeMap<String, String> {
    let leases = scenario.api("coordination.k8s.io/v1/Lease");
    let list = leases.list(&ListParams::default()).await.expect("Leases");
    let held = list.items.into_iter().filter_map(|lease| {
        let controller = lease.metadata.name?.strip_prefix("operator-host-")?.to_owned();
        let holder = lease.data["spec"]["holderIdentity"]
            .as_str()?
            .split('_')
            .next()?
            .to_owned();
        (CONTROLLERS.contains(&controller.as_str()) && !holder.is_empty()).then_some((controller, holder))
    });
    held.collect()
}

/// Waits until these replicas share the controllers in this distribution.
async fn until_shared(scenario: &Scenario, replicas: &[&str], shares: &[usize]) -> BTreeMap<String, String> {
    let start = Instant::now();
    loop {
        let holders = holders(scenario).await;
        let mut counts: Vec<usize> = replicas
            .iter()
            .map(|replica| holders.values().filter(|holder| holder == replica).count())
            .collect();
        counts.sort_unstable();
        if counts == shares {
            eprintln!("{shares:?} after {:.2} s", start.elapsed().as_secs_f64());
            return holders;
        }
        assert!(
            start.elapsed() < LIMIT,
            "{replicas:?} should have {shares:?}: {holders:?}\n{}",
            std::fs::read_to_string(scenario.folder.path().join(replicas[0]).join("host.log"))
                .unwrap_or_default()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn replicas_share_the_controllers_evenly_and_take_over_those_of_a_lost_one() {
    let scenario = Scenario::new("spreading").await;
    let times = ["3s", "2s", "600ms"];
    let controllers = format!("{}{OTHERS}", controller("puppet.wasm", ""));
    let config = shared(&scenario, "per-controller", times, &controllers);
    let mut hosts: BTreeMap<&str, Host> = BTreeMap::new();
    hosts.insert("a", scenario.start_named("a", &config));
    until_shared(&scenario, &["a"], &[4]).await;
    hosts.insert("b", scenario.start_named("b", &config));
    until_shared(&scenario, &["a", "b"], &[2, 2]).await;
    hosts.insert("c", scenario.start_named("c", &config));
    // A replica that has not compiled its plugins yet takes over nothing, which is not measured here.
    for host in hosts.values() {
        for name in CONTROLLERS {
            let name = format!("\"controller\":\"{name}\"");
            host.until_log(&["controller started", &name]).await;
        }
    }
    let holders = until_shared(&scenario, &["a", "b", "c"], &[1, 1, 2]).await;

    // Each replica reports what it leads.
    for (name, host) in &hosts {
        let ready = get(host, "/readyz?verbose").await.1;
        let metrics = get(host, "/metrics").await.1;
        for controller in CONTROLLERS {
            let leads = holders[controller] == *name;
            let words = if leads { "it leads" } else { "stands by; " };
            assert_contains(&ready, &[&format!("leader/{controller} ok: {words}")]);
            let line = metrics.lines().find(|line| {
                line.starts_with("operator_host_leader") && line.contains(&format!("\"{controller}\""))
            });
            assert!(
                line.is_some_and(|line| line.ends_with(if leads { " 1" } else { " 0" })),
                "{name}: {line:?}"
            );
        }
    }
    // The distribution is stable.
    let before = versions(&scenario).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(versions(&scenario).await, before, "leases moved between replicas");

    // Every controller works, whoever leads it.
    let work = async |text: &str| {
        let child = json!({"response": {"children": [config_map("p", text)]}});
        scenario.puppet("p", child).await;
        scenario.until_ready("p").await;
        scenario
            .until("v1/ConfigMap", "p", "as it is now", |map| {
                map.data["data"]["text"] == text
            })
            .await;
    };
    work("three").await;

    let lost = holders["puppet"].clone();
    hosts.remove(lost.as_str()).unwrap().kill();
    let killed = Instant::now();
    let rest: Vec<&str> = hosts.keys().copied().collect();
    until_shared(&scenario, &rest, &[2, 2]).await;
    let took = killed.elapsed();
    assert!(took <= Duration::from_secs(3 + 2), "{took:?}");
    work("two").await;

    let (first, host) = hosts.pop_first().unwrap();
    let terminated = Instant::now();
    let ended = tokio::spawn(host.stop());
    let last = *hosts.keys().next().unwrap();
    until_shared(&scenario, &[last], &[4]).await;
    eprintln!("{:?} after SIGTERM of {first}", terminated.elapsed());
    assert!(
        terminated.elapsed() <= Duration::from_secs(2),
        "{:?}",
        terminated.elapsed()
    );
    assert_eq!(ended.await.unwrap().code(), Some(0));
    work("one").await;

    // Nothing is left of the stopped replicas.
    let replicas = async || {
        let names = scenario.names("coordination.k8s.io/v1/Lease").await;
        names
            .into_iter()
            .filter(|name| name.contains("-replica-"))
            .count()
    };
    let start = Instant::now();
    while replicas().await > 1 {
        assert!(start.elapsed() < LIMIT, "Leases of lost replicas stay");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(scenario.get(PUPPET, "p").await.is_some());
}

/// Returns how often each Lease changed its holder.
async fn versions(scenario: &Scenario) -> BTreeSet<String> {
    let leases = scenario.api("coordination.k8s.io/v1/Lease");
    let list = leases.list(&ListParams::default()).await.expect("Leases");
    let hands = list.items.iter().filter(|lease| {
        !lease
            .metadata
            .name
            .as_deref()
            .unwrap_or_default()
            .contains("-replica-")
    });
    hands
        .map(|lease| {
            format!(
                "{:?} {}",
                lease.metadata.name, lease.data["spec"]["leaseTransitions"]
            )
        })
        .collect()
}

/// Regression: a replica whose plugin could not be used took controllers nevertheless.
#[tokio::test]
async fn a_replica_without_the_plugin_leads_only_until_another_has_it() {
    let scenario = Scenario::new("not-warm").await;
    let config = shared(
        &scenario,
        "per-controller",
        ["3s", "2s", "600ms"],
        &controller("puppet.wasm", ""),
    );
    let text = std::fs::read_to_string(&config).unwrap();
    // One replica has a broken file, the other the real one.
    let broken = scenario.folder.path().join("broken");
    std::fs::create_dir(&broken).unwrap();
    std::fs::write(broken.join("puppet.wasm"), "not WebAssembly").unwrap();
    let lines = text.lines().map(|line| match line.starts_with("plugins:") {
        true => format!("plugins: {}\n", broken.display()),
        false => format!("{line}\n"),
    });
    let without = scenario.file("without.yaml", lines.collect::<String>());
    let _without = scenario.start_named("without", &without);
    let child = json!({"response": {"children": [config_map("p", "one")]}});
    scenario.puppet("p", child).await;
    // No replica leads it, and one of them reports that.
    scenario.until_stalled("p", "PluginNotLoaded").await;
    assert_eq!(holders(&scenario).await["puppet"], "without");
    let _with = scenario.start_named("with", &config);
    scenario.until_ready("p").await;
    until_shared(&scenario, &["with"], &[1]).await;
    // And it stays there.
    let before = versions(&scenario).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        versions(&scenario).await,
        before,
        "the lease moved between replicas"
    );
}

/// Regression: no replica took the Lease, so no replica wrote a condition.
#[tokio::test]
async fn a_replica_whose_first_lists_hang_leads_until_another_has_them_and_says_what_it_waits_for() {
    let scenario = Scenario::new("cold").await;
    let proxy = Proxy::start(scenario.kubeconfig()).await.expect("a proxy");
    let times = ["3s", "2s", "600ms"];
    let config = shared(&scenario, "per-controller", times, &controller("puppet.wasm", ""));
    proxy.set_mode_of("/configmaps", Mode::Stall);
    let _cold = Host::through(&config, &proxy.kubeconfig(), "cold", scenario.folder.path());
    let child = json!({"response": {"children": [config_map("p", "one")]}});
    scenario.puppet("p", child).await;
    let message = scenario
        .until_condition(PUPPET, "p", "Reconciling", "True", "Waiting")
        .await;
    assert_contains(&message, &["the first list of v1/ConfigMap"]);
    let _warm = scenario.start_named("warm", &config);
    scenario.until_ready("p").await;
    until_shared(&scenario, &["warm"], &[1]).await;
}
