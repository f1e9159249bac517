//! Versions that replace each other while calls continue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plugin_fixtures::{Fixture, Form, cases};

use super::super::registry::{Expected, Live, PluginFile, Slot};
use super::promotion::{self, Fake};
use super::*;
use operator_host_config::location::Location;
use operator_host_config::trust::Trust;
use operator_host_contract::Kind;
use operator_host_core::digest::Digest;
use operator_host_runtime::{Cache, Compiler, Limits, Plugin};

pub(super) fn expected(kind: &str) -> Expected {
    Expected {
        controller: "fixtures".into(),
        parent: Kind::new("fixtures.dev/v1", kind),
        decorates: false,
        location: Location::File("fixture.wasm".into()),
        limits: Limits::default(),
        trust: Trust::default(),
        tenant: String::new(),
    }
}

pub(super) fn plugin_file(bytes: &[u8]) -> PluginFile {
    PluginFile::new(bytes.to_vec().into(), Digest::of(bytes), None)
}

/// Returns another version that answers the same: with a custom section at the end.
pub(super) fn version(number: u8) -> Vec<u8> {
    let mut file = Fixture::new(cases::ANSWER).build(Form::Component);
    file.extend([0, 3, 1, b'v', number]);
    file
}

pub(super) fn live(receiver: &tokio::sync::watch::Receiver<Live>) -> Result<Plugin, String> {
    match &*receiver.borrow() {
        Live::Plugin(plugin) => Ok(plugin.clone()),
        Live::Failed(failed) => Err(failed.why.to_string()),
        Live::Loading => Err("loading".into()),
    }
}

#[tokio::test]
async fn the_live_version_offered_again_is_not_reloaded() {
    let (slot, mut receiver) = promotion::slot(&Fake::new(), None);
    slot.settle(Some(&plugin_file(&version(1)))).await;
    receiver.mark_unchanged();
    slot.settle(Some(&plugin_file(&version(1)))).await;
    assert!(!receiver.has_changed().unwrap());
}

#[tokio::test]
async fn a_reason_that_is_known_wakes_nobody_and_none_takes_the_live_version_away() {
    let (slot, mut receiver) = promotion::slot(&Fake::new(), None);
    slot.registry_failed("it is away");
    assert!(live(&receiver).err().unwrap().contains("away"));
    receiver.mark_unchanged();
    slot.registry_failed("it is away");
    assert!(!receiver.has_changed().unwrap());
    slot.fail("the file is gone", None, false);
    assert!(live(&receiver).err().unwrap().contains("gone"));
    slot.settle(Some(&plugin_file(&version(1)))).await;
    receiver.mark_unchanged();
    slot.registry_failed("it is slow");
    slot.fail("the file is gone", None, false);
    assert!(!receiver.has_changed().unwrap() && live(&receiver).is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_swaps_under_load_fail_no_call_and_leave_one_version() {
    const SWAPS: usize = 1000;
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path(), 1 << 30).unwrap();
    let runtime = Runtime::with(EngineOptions::default(), Compiler::InProcess, Some(cache)).unwrap();
    let (slot, receiver) = Slot::new(runtime, expected("Fixture"), metrics(), Fake::new());
    let versions = [version(1), version(2)];
    slot.settle(Some(&plugin_file(&versions[1]))).await;

    let stop = Arc::new(AtomicBool::new(false));
    let calls = Arc::new(AtomicU64::new(0));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (receiver, stop, calls) = (receiver.clone(), Arc::clone(&stop), Arc::clone(&calls));
        callers.spawn(async move {
            let request = request();
            while !stop.load(Ordering::Relaxed) {
                let plugin = live(&receiver).unwrap();
                plugin.reconcile(&request).await.outcome.unwrap();
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let mut ends = Vec::with_capacity(SWAPS);
    for swap in 0..SWAPS {
        ends.push(live(&receiver).unwrap().ended());
        let file = &versions[swap % 2];
        slot.settle(Some(&plugin_file(file))).await;
        assert_eq!(*live(&receiver).unwrap().digest(), Digest::of(file));
    }
    stop.store(true, Ordering::Relaxed);
    callers.join_all().await;
    assert!(calls.load(Ordering::Relaxed) > 0);
    let are_gone = ends.iter().all(|ended| ended());
    assert!(are_gone, "versions before the last are kept");
    assert!(!live(&receiver).unwrap().ended()(), "the last is live");
}

/// Instruments that are not read.
pub(super) fn metrics() -> operator_host_telemetry::metrics::ControllerMetrics {
    let metrics = Arc::new(operator_host_telemetry::metrics::Metrics::unread());
    metrics.of("test", &expected("Fixture").parent)
}
