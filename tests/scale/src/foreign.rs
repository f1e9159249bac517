//! Memory of the host in a cluster with many pods that are none of its business.

use serde_json::{Value, json};

use crate::report::{Table, megabytes};
use crate::stage::{IDLE, Stage};
use crate::{Measure, echoes};
use control_plane::process;

const NAMESPACE: &str = "foreign";

pub(crate) async fn run(measure: &Measure) -> anyhow::Result<Table> {
    let stage = Stage::start(&measure.common).await?;
    stage.namespace(NAMESPACE).await?;
    let cache = stage.cache("compiled");
    let mut host = stage.start_host(&cache)?;
    host.until_ready(1).await?;
    host.stop().await;
    let head = "foreign pods | until ready, s | processor time, s | resident, MB | \
                of it anonymous, MB | peak, MB";
    let mut table = Table::new(head);
    let pods = echoes::pods(&stage.client, NAMESPACE);
    let mut created = 0;
    for &count in &measure.foreign {
        echoes::create_all(&pods, (created..count).map(pod)).await?;
        created = created.max(count);
        stage.until_quiet().await?;
        let mut samples = Vec::new();
        for _ in 0..measure.repeat {
            let mut host = stage.start_host(&cache)?;
            host.until_ready(1).await?;
            let (ready, times) = (host.started.elapsed(), process::times(host.id())?);
            tokio::time::sleep(IDLE).await;
            let memory = process::memory(host.id())?;
            host.stop().await;
            samples.push([
                ready.as_secs_f64(),
                times.own.as_secs_f64(),
                megabytes(memory.resident),
                megabytes(memory.anonymous),
                megabytes(memory.peak),
            ]);
        }
        table.row(&[count.to_string()], &samples);
    }
    stage.shutdown().await;
    Ok(table)
}

/// Returns a pod like one of a Deployment.
pub(crate) fn pod(number: usize) -> Value {
    let (set, name) = (number / 10, format!("web-{}-7c5ddbdf54-{number}", number / 10));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/name": "web", "app.kubernetes.io/instance": format!("web-{set}"),
                "app.kubernetes.io/version": "1.2.3", "pod-template-hash": "7c5ddbdf54",
            },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("web-{set}-7c5ddbdf54"),
                "uid": format!("7f1b5a6e-8d0c-4f6e-9f1c-{set:012}"), "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {"containers": [{"name": "web", "image": "registry.example.com/team/web:1.2.3"}]},
    })
}
