//! A plugin that takes long to compile.

use std::time::Duration;

use plugin_fixtures::hard;

use super::super::acceptance::Trust;
use super::super::registry::{Expected, Live, Slot};
use super::super::reload::Files;
use super::*;
use operator_host_contract::Kind;
use operator_host_core::metrics::Metrics;
use operator_host_runtime::Limits;

/// How long the slow one may take at most.
const COMPILE: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_compiles_for_long_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("slow.wasm"), hard::slow()).unwrap();
    let files = Files::start(std::env::temp_dir()).unwrap();
    // Uses its own runtime: the number of concurrent compilations is limited, and other tests compile too.
    let runtime = Runtime::new(EngineOptions::default()).unwrap();
    let expected = Expected {
        controller: "slow".into(),
        parent: Kind {
            api_version: "fixtures.dev/v1".into(),
            kind: "Fixture".into(),
        },
        location: folder.path().join("slow.wasm").into(),
        limits: Limits {
            compile: COMPILE,
            ..Limits::default()
        },
        trust: Trust::default(),
    };
    let metrics = Arc::new(Metrics::unread()).of("slow", &expected.parent);
    let (slot, mut slow) = Slot::new(runtime, expected, metrics);
    let _slow = files.fill(Arc::new(slot));
    match &*slow
        .wait_for(|live| !matches!(live, Live::Loading))
        .await
        .unwrap()
    {
        Live::Failed(failed) => assert!(failed.why.contains("not compiled within"), "{}", failed.why),
        _ => panic!("it was compiled"),
    }
}
