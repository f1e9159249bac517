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

const DEFINITIONS: &str = include_str!("../../fixtures/puppet/crds.yaml");
const CONTROLLER: &str = "\
- name: puppet
  parent: {apiVersion: test.operator-host.dev/v1, kind: Puppet}
  plugin: puppet.wasm
  children:
  - {apiVersion: v1, kind: ConfigMap}
  - {apiVersion: v1, kind: Secret}
  - {apiVersion: v1, kind: PersistentVolumeClaim}
  reads: [{apiVersion: v1, kind: ConfigMap}]
  otherNamespaces: [reads-*]
";
const NAMESPACE: &str = "reads";
/// Number of objects in each namespace.
const EACH: usize = 20;
/// Size of an object besides its metadata, in bytes.
const SIZE: usize = 1000;
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
    stage.install(DEFINITIONS).await?;
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
        let objects = (0..EACH).map(|number| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": format!("m{number}"), "labels": {"monitor": "yes"}},
                "data": {"text": "-", "more": "x".repeat(SIZE)},
            })
        });
        echoes::create_all(&api(namespace, "", "ConfigMap"), objects).await?;
    }
    let cache = stage.cache("compiled");
    let controllers = [CONTROLLER.to_owned()];
    let mut host = stage.start_host_with(&controllers, &cache)?;
    host.until_ready(1).await?;
    host.stop().await;
    stage.until_quiet().await?;

    let puppets = api(NAMESPACE, "test.operator-host.dev", "Puppet");
    let mut observer = Observer::start(puppets.clone()).await?;
    let need = json!({"id": "all", "apiVersion": "v1", "kind": "ConfigMap", "namespace": "*", "labelSelector": "monitor=yes"});
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
        let maps = api(&namespaces[change % count], "", "ConfigMap");
        let text = json!(format!("c{change}"));
        let patch = Patch::Merge(json!({"data": {"text": text}}));
        let sent = Instant::now();
        maps.patch(&format!("m{}", change % EACH), &PatchParams::default(), &patch)
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
