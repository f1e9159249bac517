//! Tests of the faults that the control plane injects: a scenario behind a fault that does nothing would pass.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test fails by panicking, as the test does"
)]

use std::time::{Duration, Instant};

use control_plane::proxy::{Mode, Proxy};
use control_plane::{ControlPlane, Options, connect};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Config};
use serde_json::json;

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(60), future).await {
        Ok(value) => value,
        Err(_) => panic!("not within 60 s: {what}"),
    }
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap()
}

#[tokio::test]
async fn the_api_server_comes_back_with_its_data_and_etcd_can_be_away() {
    let mut plane = ControlPlane::start(Options::bare().with_audit()).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await.unwrap(), "default");
    maps.create(&PostParams::default(), &map("kept")).await.unwrap();
    plane.stop_apiserver().await;
    assert!(maps.get("kept").await.is_err(), "nobody may answer");
    plane.start_apiserver().await.unwrap();
    maps.get("kept").await.expect("the data is still there");

    plane.pause_etcd();
    let (parameters, patch) = (
        PatchParams::default(),
        Patch::Merge(json!({ "data": { "a": "2" } })),
    );
    let attempt = maps.patch("kept", &parameters, &patch);
    let attempt = tokio::time::timeout(Duration::from_millis(300), attempt).await;
    assert!(!matches!(attempt, Ok(Ok(_))), "no write without etcd");
    plane.resume_etcd();
    within("a write after etcd is back", async {
        while maps.patch("kept", &parameters, &patch).await.is_err() {}
    })
    .await;

    let writes = plane.audit_events().unwrap();
    let created = writes.iter().filter(|event| event.verb == "create");
    let mut named = created
        .filter_map(|event| event.object_ref.as_ref())
        .map(|object| object.name.as_str());
    assert!(named.any(|name| name == "kept"), "the audit log has the write");
    assert!(writes.iter().all(|event| event.verb != "get"), "and no reads");
}

#[tokio::test]
async fn two_begin_with_the_objects_of_one_that_was_stopped_and_change_only_their_own() {
    let plane = ControlPlane::start(Options::bare()).await.unwrap();
    let maps = async |plane: &ControlPlane| -> Api<ConfigMap> {
        Api::namespaced(plane.client().await.unwrap(), "default")
    };
    let map = map("kept");
    maps(&plane)
        .await
        .create(&PostParams::default(), &map)
        .await
        .unwrap();
    let snapshot = plane.into_snapshot().await;
    let options = Options::bare().with_data(&snapshot);
    let one = ControlPlane::start(options.clone()).await.unwrap();
    let deleted = maps(&one).await.delete("kept", &DeleteParams::default()).await;
    deleted.unwrap();
    let two = ControlPlane::start(options).await.unwrap();
    maps(&two).await.get("kept").await.expect("a copy of the data");
}

/// Checks the effect of each mode on the proxy's clients and on the API server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_injects_faults_on_demand() {
    let cluster = ControlPlane::start(Options {
        controller_manager: false,
        ..Options::default()
    })
    .await
    .unwrap();
    let proxy = Proxy::start(&cluster.kubeconfig()).await.unwrap();
    let kubeconfig = Kubeconfig::read_from(proxy.kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    let through: Api<ConfigMap> = Api::namespaced(connect(&config).unwrap(), "default");
    let direct: Api<ConfigMap> = Api::namespaced(cluster.client().await.unwrap(), "default");
    let code = |error: kube::Error| match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    };

    let params = PostParams::default();
    through.create(&params, &map("passed")).await.unwrap();
    let mut watch = through.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Added(_)))));

    proxy.set_mode(Mode::Refuse {
        status: 429,
        retry_after: Some(1),
    });
    assert_eq!(code(through.get("passed").await.unwrap_err()), Some(429));
    assert!(within("the watch ends", watch.next()).await.is_none());

    // First silence, then all of it.
    proxy.set_mode(Mode::Pass);
    let mut watch = through.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    watch.next().await.unwrap().unwrap();
    proxy.set_mode(Mode::Stall);
    direct.create(&params, &map("behind")).await.unwrap();
    let moment = Duration::from_millis(200);
    assert!(tokio::time::timeout(moment, watch.next()).await.is_err());
    assert!(tokio::time::timeout(moment, through.get("passed")).await.is_err());
    proxy.set_mode(Mode::Pass);
    assert!(matches!(
        within("the rest", watch.next()).await,
        Some(Ok(WatchEvent::Added(_)))
    ));

    // Only some requests are affected.
    proxy.set_mode_of("/configmaps/passed", Mode::Cut);
    assert_eq!(code(through.get("passed").await.unwrap_err()), None);
    through.get("behind").await.unwrap();

    proxy.set_mode(Mode::DropAnswers);
    assert_eq!(
        code(through.create(&params, &map("done")).await.unwrap_err()),
        None
    );
    direct.get("done").await.unwrap();

    proxy.set_mode(Mode::Cut);
    within("the watch breaks", async {
        while let Some(Ok(_)) = watch.next().await {}
    })
    .await;
    assert_eq!(code(through.get("passed").await.unwrap_err()), None);
    proxy.set_mode(Mode::Delay(moment));
    let before = Instant::now();
    through.get("passed").await.unwrap();
    assert!(before.elapsed() >= moment);

    let seen = proxy.take_seen();
    assert_eq!(seen.iter().filter(|seen| seen.is_watch()).count(), 2);
    assert_eq!(seen.iter().filter(|seen| seen.is_write()).count(), 2);
    assert_eq!(seen.iter().filter(|seen| seen.refused == Some(429)).count(), 1);
    cluster.shutdown().await;
}
