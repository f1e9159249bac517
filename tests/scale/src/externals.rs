//! Externals on a server of this machine, beside a loop that sends the same requests without a cluster.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use control_plane::process;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use kube::api::{Api, ApiResource, GroupVersionKind};
use serde_json::json;
use tokio::net::TcpListener;

use crate::Measure;
use crate::echoes::create_all;
use crate::report::{Table, megabytes};
use crate::stage::{IDLE, Stage};

const NAMESPACE: &str = "outside";
/// How many Externals of an endpoint are carried out at a time, and how many requests the loop sends at a time.
const AT_A_TIME: usize = 8;

/// What is outside, by its path.
type Resources = Arc<Mutex<BTreeMap<String, String>>>;

pub(crate) async fn run(measure: &Measure) -> anyhow::Result<Table> {
    let head = "Externals | until all are set and Ready, s | Externals a second | of the loop alone | own processor time, s | \
                resident after, MB | peak, MB";
    let mut table = Table::new(head);
    for &count in &measure.externals {
        let mut samples = Vec::new();
        for _ in 0..measure.repeat {
            samples.push(once(measure, count).await?);
        }
        table.row(&[count.to_string()], &samples);
    }
    Ok(table)
}

async fn once(measure: &Measure, count: usize) -> anyhow::Result<[f64; 6]> {
    let stage = Stage::start(&measure.common).await?;
    let crds = measure.common.crd.parent().unwrap_or(Path::new("."));
    let definition = crds.join("externals.operator-host.dev.yaml");
    let definition = std::fs::read_to_string(definition).context("read the definition of External")?;
    stage.install(&definition).await?;
    stage.namespace(NAMESPACE).await?;
    let kind = GroupVersionKind::gvk("operator-host.dev", "v1alpha1", "External");
    let api = Api::namespaced_with(stage.client.clone(), NAMESPACE, &ApiResource::from_gvk(&kind));
    create_all(&api, (0..count).map(external)).await?;
    stage.until_quiet().await?;
    let (port, resources) = serve().await?;
    let alone = plain(port, count).await?;
    lock(&resources).clear();

    let endpoints = format!(
        "leadership: none\nendpoints: [{{name: local, url: 'http://127.0.0.1:{port}', allowPlain: true, qps: 10000, \
         allowAddresses: [127.0.0.1], methods: [PUT, DELETE], namespaces: [{NAMESPACE}]}}]\n"
    );
    let mut egress = stage.start_egress(&endpoints)?;
    egress
        .until("all Externals are Ready", async |_| {
            if lock(&resources).len() < count {
                return None;
            }
            let all = api.list(&kube::api::ListParams::default()).await.ok()?;
            let is_ready =
                |it: &kube::api::DynamicObject| it.data["status"]["conditions"][0]["status"] == "True";
            all.iter().all(is_ready).then_some(())
        })
        .await?;
    let wall = egress.started.elapsed().as_secs_f64();
    tokio::time::sleep(IDLE).await;
    let own = process::times(egress.id())?.own.as_secs_f64();
    let memory = process::memory(egress.id())?;
    egress.stop().await;
    stage.shutdown().await;
    let (resident, peak) = (megabytes(memory.resident), megabytes(memory.peak));
    Ok([
        wall,
        count as f64 / wall,
        count as f64 / alone,
        own,
        resident,
        peak,
    ])
}

fn external(number: usize) -> serde_json::Value {
    let path = format!("/{number}");
    let value = json!({"name": format!("user-{number}"), "tags": ["a", "b"], "limit": number});
    json!({
        "apiVersion": "operator-host.dev/v1alpha1", "kind": "External", "metadata": {"name": format!("e-{number}")},
        "spec": {
            "endpoint": "local", "observe": {"path": path}, "matches": value, "every": "1h",
            "set": {"method": "PUT", "path": path, "body": value}, "unset": {"method": "DELETE", "path": path},
        },
    })
}

/// Sends the requests of so many Externals: GET, PUT and GET. Returns how long that took.
async fn plain(port: u16, count: usize) -> anyhow::Result<f64> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let started = Instant::now();
    let requests = (0..count).map(|number| {
        let client = client.clone();
        async move {
            let body = external(number)["spec"]["matches"].to_string();
            for method in ["GET", "PUT", "GET"] {
                let sent = if method == "PUT" {
                    body.clone()
                } else {
                    String::new()
                };
                let request = http::Request::builder()
                    .method(method)
                    .uri(format!("http://127.0.0.1:{port}/{number}"))
                    .body(Full::from(sent))?;
                client.request(request).await?.into_body().collect().await?;
            }
            anyhow::Ok(())
        }
    });
    let requests = stream::iter(requests).buffer_unordered(AT_A_TIME);
    requests.try_collect::<()>().await.context("the loop")?;
    Ok(started.elapsed().as_secs_f64())
}

async fn serve() -> anyhow::Result<(u16, Resources)> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("a port")?;
    let port = listener.local_addr().context("a port")?.port();
    let resources = Resources::default();
    let router = Router::new().fallback(answer).with_state(Arc::clone(&resources));
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok((port, resources))
}

async fn answer(State(resources): State<Resources>, method: Method, uri: Uri, body: String) -> Response {
    let mut resources = lock(&resources);
    match method {
        Method::GET => match resources.get(uri.path()) {
            Some(found) => found.clone().into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        },
        _ => {
            resources.insert(uri.path().to_owned(), body);
            StatusCode::NO_CONTENT.into_response()
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
