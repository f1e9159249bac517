//! Reloads: from the swap of a mounted ConfigMap to the first answer of the new version, and the memory that they add.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use control_plane::Options;
use operator_host_config::trust::Trust;
use operator_host_contract::Kind;
use operator_host_core::digest::Digest;
use operator_host_delivery::candidate_check::{CandidateCheck, OrderKind, Orders, Progress, ProofResult};
use operator_host_delivery::registry::{Expected, Live, Slot};
use operator_host_delivery::reload::PluginSources;
use operator_host_runtime::{EngineOptions, Limits, Plugin, Runtime};
use operator_host_telemetry::metrics::Metrics;
use tokio::sync::watch;

use super::call::request;
use super::support::measure::MB;
use super::support::reload_memory::before_and_after;
use super::support::{Scenario, own_cluster, plugin};
use super::table::{Figure, Spread, Table, millis};

const SWAPS: usize = 30;

pub async fn run(table: &mut Table) {
    eprintln!("reload");
    time(table).await;
    memory(table).await;
}

/// Measures 20 reloads in the program.
async fn memory(table: &mut Table) {
    let cluster = own_cluster(Options::default()).await;
    let scenario = Scenario::within(&cluster, "bench-reload").await;
    let [before, after] = before_and_after(&scenario).await;
    let added = (after as f64 - before as f64) / MB;
    table.fill("anonymous memory added by 20 reloads", Figure::number(added, 1));
    cluster.shutdown().await;
}

/// Measures the time of a reload in this process.
async fn time(table: &mut Table) {
    let echo = fs::read(plugin("echo")).expect("the plugin");
    let folder = tempfile::tempdir().expect("a folder");
    swap(folder.path(), 0, &echo);
    symlink("..data/echo.wasm", folder.path().join("echo.wasm")).expect("a link");
    let expected = Expected {
        controller: "echo".into(),
        parent: Kind::new("my-operator.dev/v1", "Echo"),
        decorates: false,
        location: folder.path().join("echo.wasm").into(),
        limits: Limits::default(),
        trust: Trust::default(),
        tenant: String::new(),
    };
    let runtime = Runtime::new(EngineOptions::default()).expect("an engine");
    let meter = opentelemetry::global::meter("bench");
    let metrics = Arc::new(Metrics::new(&meter, Arc::default())).of("echo", &expected.parent);
    let (slot, mut live) = Slot::new(runtime, expected, metrics, Arc::new(Unproved));
    let sources = PluginSources::new(
        std::env::temp_dir(),
        std::env::temp_dir(),
        Arc::new(Metrics::unread()),
    );
    let _filled = sources.fill(Arc::new(slot));
    let _ = live.wait_for(|live| matches!(live, Live::Plugin(_))).await;
    let request = request();
    let mut samples = Vec::with_capacity(SWAPS);
    for i in 1..=SWAPS {
        let mut version = echo.clone();
        version.extend([0, 3, 1, b'v', u8::try_from(i).expect("a small number")]);
        live.mark_unchanged();
        let start = swap(folder.path(), i, &version);
        live.changed().await.expect("the next version");
        let Live::Plugin(plugin) = live.borrow_and_update().clone() else {
            panic!("no plugin is live");
        };
        plugin.reconcile(&request).await.outcome.expect("a response");
        samples.push(start.elapsed());
    }
    table.fill(
        "from an updated ConfigMap to the first call, Echo, without proving",
        Spread::of(samples, millis),
    );
}

/// Swaps the folder as the kubelet does. Returns when the new contents replaced the old ones.
fn swap(folder: &Path, version: usize, content: &[u8]) -> Instant {
    let name = format!("..2026_11_21_{version}");
    fs::create_dir(folder.join(&name)).expect("a folder");
    fs::write(folder.join(&name).join("echo.wasm"), content).expect("a file");
    symlink(&name, folder.join("..data_tmp")).expect("a link");
    let start = Instant::now();
    fs::rename(folder.join("..data_tmp"), folder.join("..data")).expect("a swap");
    start
}

/// Lets each version become live.
struct Unproved;

#[async_trait::async_trait]
impl CandidateCheck for Unproved {
    fn orders(&self) -> watch::Receiver<Option<Orders>> {
        watch::channel(Some(Orders::default())).1
    }

    async fn prove(&self, _live: Option<&Plugin>, _candidate: &Plugin, _say: Progress<'_>) -> ProofResult {
        ProofResult::NotCompared(String::new())
    }

    fn how_to(&self, _order: OrderKind, _digest: Option<&Digest>) -> String {
        String::new()
    }
}
