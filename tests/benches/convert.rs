//! Conversions: their processor time, and lists in another version through the API server, beside a native webhook.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control_plane::{ControlPlane, Options, manifests};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::api::{Api, ListParams, PostParams};
use kube::core::DynamicObject;
use operator_host_runtime::{EngineOptions, Limits, Runtime};
use operator_host_webhook::conversion::try_convert;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::support::{LIMIT, Scenario, own_cluster, plugin, resource, root};
use super::table::{Figure, Spread, Table, millis};

const OBJECTS: usize = 1000;
const ROUNDS: u32 = 20;
const LISTS: usize = 15;
const GROUP: &str = "database.example.com";
const NATIVE_GROUP: &str = "native.example.com";
const CONTROLLERS: &str = "- name: mysql\n  parent: {apiVersion: database.example.com/v2, kind: MySQLCluster}\n  \
                           plugin: mysql.wasm\n  children:\n  - {apiVersion: v1, kind: Pod}\n  \
                           - {apiVersion: v1, kind: Service}\n  - {apiVersion: v1, kind: PersistentVolumeClaim}\n  \
                           - {apiVersion: v1, kind: Secret}\n  reads: [{apiVersion: v1, kind: Secret}]\n";

/// Returns a resource as large as an Echo with its status.
fn cluster(group: &str, index: usize) -> Value {
    json!({
        "apiVersion": format!("{group}/v2"), "kind": "MySQLCluster",
        "metadata": {
            "name": format!("db-{index}"), "namespace": "default", "uid": "7f1b5a6e-8d0c-4f6e-9f1c-2f6f3d3b1a10",
            "generation": 1, "resourceVersion": "1042", "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": { "version": "8.4", "replicas": 3, "storage": { "size": "1Gi" }, "resources": { "memory": "1Gi" } },
        "status": { "readyReplicas": 3, "phase": "Running", "observedGeneration": 1, "conditions": [{
            "type": "Ready", "status": "True", "reason": "ServersReady", "message": "3/3 servers are Ready",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
        }] },
    })
}

pub async fn run(table: &mut Table) {
    eprintln!("conversions");
    processor_time(table).await;
    lists(table).await;
}

/// Measures the processor time of converting many objects in few calls.
async fn processor_time(table: &mut Table) {
    let runtime = Runtime::new(EngineOptions::default()).expect("an engine");
    let bytes = std::fs::read(plugin("mysql")).expect("the plugin");
    let mysql = runtime.load(bytes, Limits::default()).await.expect("a plugin");
    let objects: Vec<Box<RawValue>> = (0..OBJECTS)
        .map(|index| serde_json::value::to_raw_value(&cluster(GROUP, index)).expect("JSON"))
        .collect();
    let objects: Vec<&RawValue> = objects.iter().map(|object| &**object).collect();
    let v1 = format!("{GROUP}/v1");
    // The first one starts the threads.
    try_convert(&mysql, &v1, &objects).await.expect("converted");
    let before = ticks();
    for _ in 0..ROUNDS {
        let converted = try_convert(&mysql, &v1, &objects).await.expect("converted");
        assert_eq!(converted.len(), OBJECTS);
    }
    let spent = f64::from(ticks() - before) * 10.0 / f64::from(ROUNDS);
    table.fill(
        "converting 1,000 MySQLClusters to another version, processor time",
        Figure::number(spent, 1),
    );
}

/// Returns the processor time of this process in hundredths of a second.
fn ticks() -> u32 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("the process's figures");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .expect("fields")
        .split_whitespace()
        .collect();
    [11, 12]
        .iter()
        .map(|&field: &usize| fields[field].parse::<u32>().expect("a number"))
        .sum()
}

/// Measures lists in a version that is not stored: with the host, and with a webhook that converts natively.
async fn lists(table: &mut Table) {
    let plane = own_cluster(Options::bare()).await;
    let scenario = Scenario::within(&plane, "bench-convert").await;
    let (certificate, key) = certificate(scenario.folder.path());
    let native = serve_native(&certificate, &key).await;
    install_native(&plane, native, &certificate).await;

    let top = format!(
        "webhook: {{address: '127.0.0.1:0', certificate: {}, key: {}}}",
        certificate.display(),
        key.display()
    );
    let config = scenario.config_with(&top, CONTROLLERS);
    let host = scenario.start_with(&config, &["--log", "info"]);
    let line = host.until_log(&["serving the webhook"]).await;
    let line: Value = serde_json::from_str(&line).expect("a line of JSON");
    let address = line["address"].as_str().expect("an address").to_owned();
    let output = Command::new(env!("CARGO_BIN_EXE_operator-host"))
        .args(["webhook-manifests", "--no-match-conditions", "--url"])
        .arg(format!("https://{address}/validate"))
        .arg("--config")
        .arg(&config)
        .arg("--ca")
        .arg(&certificate)
        .output()
        .expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let all: Vec<DynamicObject> = serde_saphyr::from_multiple(&text).expect("manifests");
    let definition = all.into_iter().filter(|it| {
        it.types
            .as_ref()
            .is_some_and(|types| types.kind == "CustomResourceDefinition")
    });
    let definition: Vec<_> = definition.collect();
    manifests::apply(&scenario.client, &definition)
        .await
        .expect("the definition");

    // In a namespace whose resources the host does not reconcile.
    let api = |group: &str, version: &str| -> Api<DynamicObject> {
        let kind = resource(&format!("{group}/{version}/MySQLCluster"));
        Api::namespaced_with(scenario.client.clone(), "default", &kind)
    };
    for group in [GROUP, NATIVE_GROUP] {
        let stored = api(group, "v2");
        for index in 0..OBJECTS {
            let object: DynamicObject = serde_json::from_value(cluster(group, index)).expect("an object");
            let object = DynamicObject {
                metadata: kube::core::ObjectMeta {
                    name: object.metadata.name.clone(),
                    ..Default::default()
                },
                ..object
            };
            stored
                .create(&PostParams::default(), &object)
                .await
                .expect("created");
        }
    }
    let (mut with_host, mut without) = (Vec::new(), Vec::new());
    for round in 0..=LISTS {
        for (samples, group) in [(&mut with_host, GROUP), (&mut without, NATIVE_GROUP)] {
            let taken = list(&api(group, "v1")).await;
            // The first one waits until the new definition is served.
            if round > 0 {
                samples.push(taken);
            }
        }
    }
    let (with_host, without) = (Spread::of(with_host, millis), Spread::of(without, millis));
    let ratio = with_host.median / without.median;
    table.fill(
        "list of 1,000 MySQLClusters in another version, converted by a plugin",
        with_host,
    );
    table.fill("the same list, converted by a native webhook", without);
    table.fill("ratio of the two lists", Figure::number(ratio, 2));
    assert!(host.stop().await.success());
    plane.shutdown().await;
}

/// Lists all objects, and returns how long it took.
async fn list(api: &Api<DynamicObject>) -> Duration {
    let first = Instant::now();
    loop {
        let start = Instant::now();
        match api.list(&ListParams::default()).await {
            Ok(list) if list.items.len() == OBJECTS && list.items[0].data["spec"]["storageSize"] == "1Gi" => {
                return start.elapsed();
            }
            other => assert!(
                first.elapsed() < LIMIT,
                "{:?}",
                other.map(|list| list.items.len())
            ),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Creates a certificate that is its own authority, and its key.
fn certificate(folder: &Path) -> (PathBuf, PathBuf) {
    let (certificate, key) = (folder.join("tls.crt"), folder.join("tls.key"));
    let output = Command::new("openssl")
        .args(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=bench"
                .split(' '),
        )
        .args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .expect("openssl");
    assert!(output.status.success(), "{output:?}");
    (certificate, key)
}

/// Installs the definition of MySQLCluster again, in another group, with the native webhook.
async fn install_native(plane: &ControlPlane, port: u16, certificate: &Path) {
    let file = root().join("plugins/mysql/crd.json");
    let mut definition: Value = serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON");
    definition["metadata"]["name"] = format!("mysqlclusters.{NATIVE_GROUP}").into();
    definition["spec"]["group"] = NATIVE_GROUP.into();
    definition["spec"]["names"]
        .as_object_mut()
        .expect("names")
        .remove("shortNames");
    let ca = k8s_openapi::ByteString(std::fs::read(certificate).expect("a certificate"));
    definition["spec"]["conversion"] = json!({
        "strategy": "Webhook",
        "webhook": {
            "conversionReviewVersions": ["v1"],
            "clientConfig": { "url": format!("https://127.0.0.1:{port}/convert"), "caBundle": ca },
        },
    });
    let client = plane.client().await.expect("a client");
    let definition = serde_json::from_value(definition).expect("a definition");
    manifests::apply(&client, &[definition])
        .await
        .expect("the definition");
}

/// Serves a webhook as an operator without plugins would, and returns its port.
async fn serve_native(certificate: &Path, key: &Path) -> u16 {
    let chain = CertificateDer::pem_file_iter(certificate)
        .expect("a certificate")
        .collect::<Result<Vec<_>, _>>()
        .expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(key).expect("a key");
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a certificate");
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let stream = acceptor.accept(stream).await.ok()?;
                let connection = hyper::server::conn::http1::Builder::new();
                connection
                    .serve_connection(TokioIo::new(stream), service_fn(answer))
                    .await
                    .ok()
            });
        }
    });
    port
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    let mut review: Value = serde_json::from_slice(&body).expect("a review");
    let mut asked = review["request"].take();
    let to = asked["desiredAPIVersion"].take();
    let mut objects = asked["objects"].take();
    for object in objects.as_array_mut().expect("objects") {
        let spec = object["spec"].as_object_mut().expect("a spec");
        if let Some(storage) = spec.remove("storage") {
            spec.insert("storageSize".to_owned(), storage["size"].clone());
        } else if let Some(size) = spec.remove("storageSize") {
            spec.insert("storage".to_owned(), json!({ "size": size }));
        }
        object["apiVersion"] = to.clone();
    }
    let answer = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "response": { "uid": asked["uid"], "result": { "status": "Success" }, "convertedObjects": objects },
    });
    let response = Response::builder().header("content-type", "application/json");
    Ok(response.body(Full::from(answer.to_string())).expect("an answer"))
}
