//! The processor time of converting many objects in few calls.

use control_plane::process;
use operator_host_runtime::{EngineOptions, Limits, Runtime};
use operator_host_webhook::conversion::{Purpose, convert};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::support::plugin;
use super::table::{Figure, Table};

const OBJECTS: usize = 1000;
const ROUNDS: u32 = 20;

/// Returns a resource as large as an Echo with its status.
fn cluster(index: usize) -> Value {
    json!({
        "apiVersion": "database.example.com/v2", "kind": "MySQLCluster",
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
    let runtime = Runtime::new(EngineOptions::default()).expect("an engine");
    let bytes = std::fs::read(plugin("mysql")).expect("the plugin");
    let mysql = runtime.load(bytes, Limits::default()).await.expect("a plugin");
    let objects: Vec<Box<RawValue>> = (0..OBJECTS)
        .map(|index| serde_json::value::to_raw_value(&cluster(index)).expect("JSON"))
        .collect();
    let objects: Vec<&RawValue> = objects.iter().map(|object| &**object).collect();
    let v1 = "database.example.com/v1";
    let convert = async || convert(Purpose::Proof, &mysql, v1, &objects, usize::MAX).await;
    // The first one starts the threads.
    convert().await.expect("converted");
    let spent = || process::times(std::process::id()).expect("it runs").own;
    let before = spent();
    for _ in 0..ROUNDS {
        let converted = convert().await.expect("converted");
        assert_eq!(converted.len(), OBJECTS);
    }
    let spent = (spent() - before).as_secs_f64() * 1e3 / f64::from(ROUNDS);
    table.fill(
        "converting 1,000 MySQLClusters to another version, processor time",
        Figure::number(spent, 1),
    );
}
