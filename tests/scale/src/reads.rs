//! Cost of a parent that reads objects of many namespaces.

use std::time::Instant;

use anyhow::Context;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::json;

use crate::echoes::{self, Observer};
use crate::report::{Table, megabytes};
use crate::stage::{Running, Stage, servers};
use crate::{Common, Measure};
use control_plane::process;

const PUPPETS: &str = include_str!("../../fixtures/puppet/crds.yaml");
/// A kind like those by which Prometheus finds what to scrape.
const MONITORS: &str = "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: monitors.monitoring.example.com}
spec:
  group: monitoring.example.com
  scope: Namespaced
  names: {plural: monitors, singular: monitor, kind: Monitor}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";
const GROUP: &str = "monitoring.example.com";
const CONTROLLER: &str = "\
- name: puppet
  parent: {apiVersion: test.operator-host.dev/v1, kind: Puppet}
  plugin: puppet.wasm
  children:
  - {apiVersion: v1, kind: ConfigMap}
  - {apiVersion: v1, kind: Secret}
  - {apiVersion: v1, kind: PersistentVolumeClaim}
  reads: [{apiVersion: monitoring.example.com/v1, kind: Monitor}]
  otherNamespaces: [reads-*]
";
const NAMESPACE: &str = "reads";
/// Number of objects in each namespace.
const EACH: usize = 20;
/// Number of what is scraped by one monitor: with five it has about as many bytes as a usual one, 1 KB.
const ENDPOINTS: usize = 5;
/// Fewer than the writes of a status within seconds after which the host waits.
const CHANGES: usize = 8;

pub(crate) async fn run(measure: &Measure) -> anyhow::Result<Table> {
    let head = "namespaces | objects | until the first answer, s | resident, MB | peak, MB | \
                latency of a change, ms | processor time for it, ms | of API server and etcd, ms";
    let mut table = Table::new(head);
    for &count in &measure.read {
        let mut samples = Vec::new();
        for _ in 0..measure.repeat {
            samples.push(once(&measure.common, count).await?);
        }
        table.row(&[count.to_string(), (count * EACH).to_string()], &samples);
    }
    Ok(table)
}

async fn once(common: &Common, count: usize) -> anyhow::Result<[f64; 6]> {
    let stage = Stage::start(common).await?;
    stage.install(PUPPETS).await?;
    stage.install(MONITORS).await?;
    let plugin = common.plugin.with_file_name("puppet.wasm");
    let plugin = std::fs::read(&plugin).with_context(|| plugin.display().to_string())?;
    stage.put_plugin("puppet.wasm", &plugin)?;
    stage.namespace(NAMESPACE).await?;
    let namespaces: Vec<_> = (0..count).map(|number| format!("reads-{number}")).collect();
    let api = |namespace: &str, group: &str, kind: &str| -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        Api::namespaced_with(stage.client.clone(), namespace, &resource)
    };
    for namespace in &namespaces {
        stage.namespace(namespace).await?;
        let monitors = api(namespace, GROUP, "Monitor");
        echoes::create_all(&monitors, (0..EACH).map(monitor)).await?;
    }
    let cache = stage.cache("compiled");
    let controllers = [CONTROLLER.to_owned()];
    let mut host = stage.start_host_with(&controllers, &cache)?;
    host.until_ready(1).await?;
    host.stop().await;
    stage.until_quiet().await?;

    let puppets = api(NAMESPACE, "test.operator-host.dev", "Puppet");
    let mut observer = Observer::start(puppets.clone()).await?;
    let need = json!({
        "id": "all", "apiVersion": "monitoring.example.com/v1", "kind": "Monitor", "namespace": "*",
        "labelSelector": "monitor=yes",
    });
    let puppet = json!({
        "apiVersion": "test.operator-host.dev/v1", "kind": "Puppet", "metadata": {"name": "p"},
        "spec": {"response": {"needs": [need], "status": {"read": "$texts"}}},
    });
    echoes::create_all(&puppets, std::iter::once(puppet)).await?;
    let mut host = stage.start_host_with(&controllers, &cache)?;
    let is_whole = |texts: &[serde_json::Value]| texts.len() == count * EACH;
    let first = until(&mut observer, &mut host, is_whole).await? - host.started;
    host.until_idle().await?;
    let (own, others) = (process::times(host.id())?.own, servers()?);
    let mut latency = 0.0;
    for change in 0..CHANGES {
        let monitors = api(&namespaces[change % count], GROUP, "Monitor");
        let text = json!(format!("c{change}"));
        let patch = Patch::Merge(json!({"data": {"text": text}}));
        let sent = Instant::now();
        monitors
            .patch(&format!("m{}", change % EACH), &PatchParams::default(), &patch)
            .await?;
        let seen = until(&mut observer, &mut host, |texts| texts.contains(&text)).await?;
        latency += (seen - sent).as_secs_f64() * 1000.0 / CHANGES as f64;
    }
    host.until_idle().await?;
    let each = |spent: f64| spent * 1000.0 / CHANGES as f64;
    let own = (process::times(host.id())?.own - own).as_secs_f64();
    let spent = servers()?.into_iter().zip(others);
    let others: f64 = spent.map(|(after, before)| (after - before).as_secs_f64()).sum();
    let memory = process::memory(host.id())?;
    host.stop().await;
    stage.shutdown().await;
    Ok([
        first.as_secs_f64(),
        megabytes(memory.resident),
        megabytes(memory.peak),
        latency,
        each(own),
        each(others),
    ])
}

fn monitor(number: usize) -> serde_json::Value {
    let app = format!("app-{number}");
    let endpoint = |port: usize| {
        json!({
            "port": format!("metrics-{port}"), "path": "/metrics", "interval": "30s", "scrapeTimeout": "10s", "scheme": "https",
            "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
        })
    };
    json!({
        "apiVersion": "monitoring.example.com/v1", "kind": "Monitor",
        "metadata": {"name": format!("m{number}"), "labels": {"monitor": "yes"}},
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": app}},
            "endpoints": (0..ENDPOINTS).map(endpoint).collect::<Vec<_>>(),
        },
        // What a puppet reads of an object.
        "data": {"text": "-"},
    })
}

/// Waits until the texts that the parent shows are as they should be, and returns when that was seen.
async fn until(
    observer: &mut Observer,
    host: &mut Running,
    holds: impl Fn(&[serde_json::Value]) -> bool,
) -> anyhow::Result<Instant> {
    loop {
        let (seen, puppet) = observer.next().await?;
        host.check()?;
        let texts = puppet.data["status"]["read"]["all"].as_array();
        if texts.is_some_and(|texts| holds(texts)) {
            return Ok(seen);
        }
    }
}
