//! Cost of a Controller that decorates a few objects of a kind that has many.

use anyhow::Context;
use control_plane::process;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::{Value, json};

use crate::echoes::{self, Observer, REQUESTS};
use crate::report::{Table, megabytes};
use crate::stage::{Running, Stage};
use crate::{Common, Measure};

const CONTROLLERS: &str = include_str!("../../../manifests/crds/controllers.operator-host.dev.yaml");
const SETTINGS: &str = "\
ceilings:
- files: true
  decorates: [{apiGroups: [apps], kinds: [Deployment]}]
  children: [{apiGroups: [''], kinds: [ConfigMap]}]
controllers: []
";
const NAMESPACE: &str = "decorated";
/// Number of objects that are decorated.
const MATCHING: usize = 100;

pub(crate) async fn run(measure: &Measure) -> anyhow::Result<Table> {
    let head = "Deployments | of them decorated | until all have their child, s | own processor time, s | resident, MB | \
                of it anonymous, MB | processor time for a change of each, µs | writes for all changes";
    let mut table = Table::new(head);
    for &count in &measure.decorated {
        let mut samples = Vec::new();
        for _ in 0..measure.repeat {
            samples.push(once(&measure.common, count).await?);
        }
        table.row(&[count.to_string(), count.min(MATCHING).to_string()], &samples);
    }
    Ok(table)
}

async fn once(common: &Common, count: usize) -> anyhow::Result<[f64; 6]> {
    let stage = Stage::start(common).await?;
    stage.install(CONTROLLERS).await?;
    let plugin = common.plugin.with_file_name("decorator.wasm");
    let plugin = std::fs::read(&plugin).with_context(|| plugin.display().to_string())?;
    stage.put_plugin("decorator.wasm", &plugin)?;
    stage.namespace(NAMESPACE).await?;
    let api = |group: &str, version: &str, kind: &str| -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        match kind {
            "Controller" => Api::all_with(stage.client.clone(), &resource),
            _ => Api::namespaced_with(stage.client.clone(), NAMESPACE, &resource),
        }
    };
    let controller = json!({
        "apiVersion": "operator-host.dev/v1alpha1", "kind": "Controller", "metadata": {"name": "decorator"},
        "spec": {
            "decorates": [{"apiVersion": "apps/v1", "kind": "Deployment", "selector": "decorate=yes"}],
            "plugin": "decorator.wasm", "children": [{"apiVersion": "v1", "kind": "ConfigMap"}],
        },
    });
    let controllers = api("operator-host.dev", "v1alpha1", "Controller");
    echoes::create_all(&controllers, std::iter::once(controller)).await?;
    let cache = stage.cache("compiled");
    let mut host = stage.start_host_of(SETTINGS, &cache)?;
    host.until_ready(1).await?;
    host.stop().await;
    let deployments = api("apps", "v1", "Deployment");
    echoes::create_all(&deployments, (0..count).map(deployment)).await?;
    stage.until_quiet().await?;

    let mut children = Observer::start(api("", "v1", "ConfigMap")).await?;
    let mut host = stage.start_host_of(SETTINGS, &cache)?;
    let mut all = host.started;
    for _ in 0..count.min(MATCHING) {
        all = children.next().await?.0;
        host.check()?;
    }
    host.until_idle().await?;
    let own = process::times(host.id())?.own;
    let memory = process::memory(host.id())?;
    let before = writes(&host).await?;
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"touched": "yes"}}}));
    let changes = (0..count).map(|number| {
        let (deployments, patch) = (&deployments, &patch);
        async move {
            deployments
                .patch(&name(number), &PatchParams::default(), patch)
                .await
        }
    });
    let changes = stream::iter(changes).buffer_unordered(REQUESTS).map_ok(drop);
    changes
        .try_collect::<()>()
        .await
        .context("change the Deployments")?;
    host.until_idle().await?;
    let spent = process::times(host.id())?.own - own;
    let written = writes(&host).await? - before;
    let sample = [
        (all - host.started).as_secs_f64(),
        own.as_secs_f64(),
        megabytes(memory.resident),
        megabytes(memory.anonymous),
        spent.as_secs_f64() * 1e6 / count as f64,
        written,
    ];
    host.stop().await;
    stage.shutdown().await;
    Ok(sample)
}

/// Returns how many requests of the host's were no reads.
async fn writes(host: &Running) -> anyhow::Result<f64> {
    let metrics = host.metrics().await?;
    let of = |method: &str| {
        let label = format!("http_request_method=\"{method}\"");
        metrics.sum("http_client_request_duration_seconds_count", &label)
    };
    Ok(["PATCH", "POST", "PUT", "DELETE"].map(of).iter().sum())
}

fn name(number: usize) -> String {
    format!("web-{number}")
}

/// Returns a Deployment; the first of them are decorated.
fn deployment(number: usize) -> Value {
    let (name, labels) = (name(number), json!({"app.kubernetes.io/name": name(number)}));
    let child =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": "-"}});
    let orders = json!({"response": {"children": [child]}}).to_string();
    let decorate = if number < MATCHING { "yes" } else { "no" };
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "name": name, "labels": {"decorate": decorate}, "annotations": {"test.operator-host.dev/spec": orders},
        },
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{
                    "name": "web", "image": "registry.example.com/team/web:1.2.3",
                    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}, "ports": [{"containerPort": 8080}],
                }]},
            },
        },
    })
}
