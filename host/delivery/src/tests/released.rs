//! Files of live versions, which are dropped from memory and read again when they are needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::Location;
use super::super::kept::{StateLimit, Versions};
use super::super::registry::{Expected, PluginFile, Slot};
use super::promotion::{Fake, assert_live, because, digest, slot};
use super::swaps::{expected, live, metrics, plugin_file, version};
use super::*;
use operator_host_runtime::{Cache, Compiler};

fn kept_file(state: &Path, number: u8) -> PathBuf {
    let name = digest(number).to_string().replace(':', "-");
    state.join("test").join(name).with_extension("wasm")
}

/// Puts the file into the slot. Returns whether it is in memory afterwards.
async fn is_in_memory(slot: &Slot, file: &PluginFile) -> bool {
    slot.settle(Some(file)).await;
    file.bytes.is_in_memory()
}

#[tokio::test]
async fn the_file_of_a_live_version_is_in_memory_only_if_it_is_not_kept() {
    let state = tempfile::tempdir().unwrap();
    let proof = Fake::new();
    let (first, second) = (plugin_file(&version(1)), plugin_file(&version(2)));
    let (unkept, _) = slot(&proof, None);
    assert!(is_in_memory(&unkept, &first).await);
    let (kept, receiver) = slot(&proof, Some(state.path()));
    assert!(!is_in_memory(&kept, &first).await);
    proof.hold(&[2]);
    assert!(is_in_memory(&kept, &second).await, "it is not live");
    proof.hold(&[]);
    assert!(!is_in_memory(&kept, &second).await);
    assert_live(&receiver, 2);
    while kept.history().entries().is_empty() {
        tokio::task::yield_now().await;
    }
    // After a restart, with the version pinned and not.
    for pin in [None, Some(digest(2).to_string())] {
        proof.order(None, pin.as_deref());
        let (restarted, receiver) = slot(&proof, Some(state.path()));
        restarted.restore().await;
        assert!(
            !is_in_memory(&restarted, &plugin_file(&version(2))).await,
            "{pin:?}"
        );
        assert_live(&receiver, 2);
        assert_eq!(because(&restarted), "proved: 2 objects", "it is the same version");
        let since = restarted.report().borrow().live.clone().unwrap().since;
        assert_eq!(since, kept.history().entries()[0].at);
    }
}

#[tokio::test]
async fn damaged_code_is_compiled_again_from_the_kept_file_or_from_the_plugins_own() {
    let [state, cache, folder] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let own = folder.path().join("fixture.wasm");
    for lost in ["neither", "the kept one", "both"] {
        fs::write(&own, version(1)).unwrap();
        let options = EngineOptions {
            idle: Duration::from_millis(20),
            ..EngineOptions::default()
        };
        let cached = Cache::open(cache.path(), 1 << 30).unwrap();
        let runtime = Runtime::with(options, Compiler::InProcess, Some(cached)).unwrap();
        let expected = Expected {
            location: Location::File(own.clone()),
            ..expected("Fixture")
        };
        let (slot, receiver) = Slot::new(runtime, expected, metrics());
        let slot = slot.keeping(Versions::open(state.path(), "test", 5, StateLimit(1 << 30)).unwrap());
        // The first time there is nothing to restore.
        slot.restore().await;
        slot.settle(Some(&plugin_file(&version(1)))).await;
        let plugin = live(&receiver).unwrap();
        assert!(!plugin.file().unwrap().is_in_memory(), "{lost}");
        while plugin.is_in_memory().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for entry in fs::read_dir(cache.path().join("compiled-v1")).unwrap().flatten() {
            if entry.path().extension().is_some_and(|suffix| suffix == "code") {
                fs::write(entry.path(), "damaged").unwrap();
            }
        }
        if lost != "neither" {
            fs::write(kept_file(state.path(), 1), "damaged").unwrap();
        }
        if lost == "both" {
            fs::write(&own, version(2)).unwrap();
        }
        let outcome = plugin.reconcile(&request()).await.outcome;
        match outcome {
            Ok(_) => assert_ne!(lost, "both"),
            Err(error) => {
                assert_eq!(lost, "both");
                let error = error.to_string();
                assert!(
                    error.contains("it is damaged") && error.contains("is another version"),
                    "{error}"
                );
            }
        }
    }
}
