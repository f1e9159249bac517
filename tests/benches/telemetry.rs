//! Measures the cost of telemetry: hosts that differ in nothing else process the same objects in turns.
//!
//! Each reconciles every object once per second without changes; its own metrics contain the durations. Only one
//! host runs at a time while the others are stopped, so that they do not compete.

#[path = "../telemetry/collector.rs"]
mod collector;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use control_plane::{ControlPlane, Options};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use self::collector::Collector;
use super::support::{Host, Scenario, own_cluster};
use super::table::{Figure, Table};

const OBJECTS: usize = 200;
const WINDOWS: usize = 10;
const WINDOW: Duration = Duration::from_secs(2);

const CONTROLLER: &str = "\
- name: echo
  parent: {apiVersion: my-operator.dev/v1, kind: Echo}
  plugin: echo.wasm
  children: [{apiVersion: v1, kind: Pod}]
  resync: 1s
  concurrency: 1
";

/// Milliseconds of a no-op reconcile, and of processor time for it, in one window.
#[derive(Clone, Copy)]
struct Cost {
    reconcile: f64,
    processor: f64,
}

pub async fn run(table: &mut Table) {
    let cluster = own_cluster(Options::default()).await;
    measure(table, &cluster).await;
    cluster.shutdown().await;
}

async fn measure(table: &mut Table, cluster: &ControlPlane) {
    eprintln!("telemetry");
    let scenario = Scenario::within(cluster, "bench-telemetry").await;
    let collector = Collector::http().await;
    let endpoint = collector.endpoint();
    let config = scenario.config(CONTROLLER);
    let start = |sampled: Option<&str>| {
        let mut environment = vec![("OPERATOR_HOST_LOG", "warn,operator_host_instruments::health=info")];
        if let Some(sampled) = sampled {
            environment.push(("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint));
            environment.push(("OTEL_TRACES_SAMPLER", "traceidratio"));
            environment.push(("OTEL_TRACES_SAMPLER_ARG", sampled));
            environment.push(("OTEL_BSP_MAX_QUEUE_SIZE", "65536"));
        }
        scenario.start_in(&config, &[], &environment)
    };
    let maker = start(None);
    for i in 0..OBJECTS {
        let name = format!("e{i}");
        let spec = "spec: {replicas: 3, image: 'echo:1'}";
        let yaml = format!("apiVersion: my-operator.dev/v1\nkind: Echo\nmetadata: {{name: {name}}}\n{spec}");
        scenario.apply(&yaml).await;
    }
    for i in 0..OBJECTS {
        let ready = |echo: &kube::core::DynamicObject| echo.data["status"]["isReady"] == true;
        scenario
            .until("my-operator.dev/v1/Echo", &format!("e{i}"), "ready", ready)
            .await;
    }
    // Start three hosts with the same history: the one that created the objects remembers them.
    assert!(maker.stop().await.success());
    // They share a log, which contains the ports in the order of the starts.
    let mut hosts = Vec::new();
    for sampled in [None, Some("0.01"), Some("1")] {
        hosts.push(start(sampled));
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    let ports = ports(&hosts[0]).split_off(1);
    assert_eq!(ports.len(), hosts.len());

    let mut costs = vec![Vec::new(); hosts.len()];
    hosts.iter().for_each(|host| signal(host, "-STOP"));
    for _ in 0..WINDOWS {
        for (i, host) in hosts.iter().enumerate() {
            signal(host, "-CONT");
            // First it catches up on the changes it missed.
            tokio::time::sleep(WINDOW / 4).await;
            let before = read(ports[i]).await;
            tokio::time::sleep(WINDOW).await;
            costs[i].push(cost(&before, &read(ports[i]).await));
            signal(host, "-STOP");
        }
    }
    hosts.iter().for_each(|host| signal(host, "-CONT"));
    assert!(!collector.spans().is_empty(), "nothing was traced");
    let of = |i: usize, pick: fn(&Cost) -> f64| median(costs[i].iter().map(pick).collect());
    for (names, pick) in [
        (
            [
                "a no-op reconcile with telemetry off",
                "the same, with 1 % of reconciles traced",
                "the same, with all reconciles traced",
            ],
            (|cost| cost.reconcile) as fn(&Cost) -> f64,
        ),
        (
            [
                "processor time of a no-op reconcile with telemetry off",
                "the same, with 1 % of reconciles traced and exported",
                "the same, with all reconciles traced and exported",
            ],
            |cost| cost.processor,
        ),
    ] {
        let off = of(0, pick);
        table.fill(names[0], Figure::number(off * 1e3, 1));
        for i in [1, 2] {
            let more = (of(i, pick) / off - 1.0) * 100.0;
            table.fill(names[i], Figure::number(more, 1));
        }
    }
    for host in hosts {
        assert!(host.stop().await.success());
    }
}

fn signal(host: &Host, signal: &str) {
    let status = Command::new("kill")
        .args([signal, &host.process().id().to_string()])
        .status();
    assert!(status.expect("kill").success());
}

fn ports(host: &Host) -> Vec<u16> {
    let log = host.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("serving health and metrics"));
    let port = |line: &str| {
        line.split("127.0.0.1:")
            .nth(1)?
            .split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()
    };
    lines.filter_map(port).collect()
}

async fn read(port: u16) -> BTreeMap<String, f64> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))
        .await
        .expect("the health port");
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
        .await
        .expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("an answer");
    let mut sums = BTreeMap::new();
    for (series, value) in text.lines().filter_map(|line| line.rsplit_once(' ')) {
        let name = series.split('{').next().unwrap_or(series);
        *sums.entry(name.to_owned()).or_default() += value.parse().unwrap_or(0.0);
    }
    sums
}

fn cost(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> Cost {
    let more = |name: &str| after[name] - before[name];
    let mean = |name: &str| more(&format!("{name}_sum")) / more(&format!("{name}_count"));
    Cost {
        reconcile: mean("operator_host_reconcile_duration_seconds") * 1e3,
        processor: more("process_cpu_time_seconds_total") * 1e3
            / more("operator_host_reconcile_duration_seconds_count"),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
