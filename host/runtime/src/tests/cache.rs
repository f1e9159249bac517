//! The on-disk cache: which entries are loaded, and which are rejected.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use plugin_fixtures::{FORMS, Fixture, Form, cases};

use super::*;
use crate::code::Code;
use crate::code_cache::Described;
use crate::{Cache, CacheError, CodeOrigin, Compiler};

/// More than the tests need.
const SIZE: u64 = 1 << 30;

fn runtime(folder: &Path) -> Runtime {
    runtime_with(Cache::open(folder, SIZE).unwrap(), EngineOptions::default().idle)
}

/// Returns a runtime that drops code from memory after this time without a call.
fn runtime_with(cache: Cache, idle: Duration) -> Runtime {
    let options = EngineOptions {
        concurrency: 1,
        pooling: false,
        idle,
        ..EngineOptions::default()
    };
    Runtime::with(options, Compiler::InProcess, Some(cache)).unwrap()
}

/// Loads an answering plugin as a new process does, and calls it.
async fn made(folder: &Path, form: Form) -> CodeOrigin {
    let file = Fixture::new(cases::ANSWER).build(form);
    let plugin = runtime(folder).load(file, Limits::default()).await.unwrap();
    assert_eq!(children(&plugin).await.len(), 1);
    plugin.code_origin()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder.join("compiled-v2")).unwrap();
    let mut all: Vec<_> = all.map(|entry| entry.unwrap().path()).collect();
    all.retain(|path| path.extension().is_some_and(|suffix| suffix == "code"));
    all.sort();
    all
}

#[tokio::test]
async fn a_warm_start_compiles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for form in FORMS {
        assert_eq!(made(folder.path(), form).await, CodeOrigin::Compiled);
        assert_eq!(made(folder.path(), form).await, CodeOrigin::Cached);
    }
    assert_eq!(entries(folder.path()).len(), 2);
}

#[tokio::test]
async fn an_entry_with_any_byte_changed_is_recreated() {
    let folder = tempfile::tempdir().unwrap();
    made(folder.path(), Form::Command).await;
    let again = || made(folder.path(), Form::Command);
    let entry = entries(folder.path()).remove(0);
    let good = fs::read(&entry).unwrap();
    for place in [0, 31, 32, 100, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[place] ^= 1;
        fs::write(&entry, bad).unwrap();
        assert_eq!(again().await, CodeOrigin::Compiled, "{place}");
        assert_eq!(again().await, CodeOrigin::Cached, "{place}");
    }
    for length in [0, 10, 32, 33, good.len() - 1] {
        fs::write(&entry, &good[..length]).unwrap();
        assert_eq!(again().await, CodeOrigin::Compiled, "{length}");
    }
}

#[tokio::test]
async fn an_entry_of_another_host_or_under_another_name_is_recreated() {
    let (ours, others) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    made(others.path(), Form::Command).await;
    made(ours.path(), Form::Command).await;
    let (entry, foreign) = (entries(ours.path()).remove(0), entries(others.path()).remove(0));
    assert_eq!(entry.file_name(), foreign.file_name());
    fs::copy(&foreign, &entry).unwrap();
    assert_eq!(made(ours.path(), Form::Command).await, CodeOrigin::Compiled);

    let other = Fixture::new(cases::TRAP).build(Form::Command);
    runtime(ours.path()).load(other, Limits::default()).await.unwrap();
    let all = entries(ours.path());
    let other = all.iter().find(|path| **path != entry).unwrap();
    fs::copy(other, &entry).unwrap();
    assert_eq!(made(ours.path(), Form::Command).await, CodeOrigin::Compiled);
}

#[test]
fn a_folder_that_others_can_write_to_is_not_used() {
    let is_refused = |folder: &Path| matches!(Cache::open(folder, SIZE), Err(CacheError::Shared { .. }));
    let folder = tempfile::tempdir().unwrap();
    Cache::open(folder.path(), SIZE).unwrap();
    let own = folder.path().join("compiled-v2");
    fs::set_permissions(&own, fs::Permissions::from_mode(0o770)).unwrap();
    assert!(is_refused(folder.path()));
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(own.join("key"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(is_refused(folder.path()));

    let linked = tempfile::tempdir().unwrap();
    symlink(&own, linked.path().join("compiled-v2")).unwrap();
    assert!(is_refused(linked.path()));
}

#[tokio::test]
async fn a_folder_that_takes_nothing_more_costs_only_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path(), SIZE).unwrap();
    // A root user can write to read-only folders, so the folder is removed instead.
    fs::remove_dir_all(folder.path()).unwrap();
    let runtime = runtime_with(cache, EngineOptions::default().idle);
    let file = Fixture::new(cases::ANSWER).build(Form::Command);
    let plugin = runtime.load(file, Limits::default()).await.unwrap();
    assert_eq!(plugin.code_origin(), CodeOrigin::Compiled);
}

#[tokio::test]
async fn entries_take_no_more_bytes_than_they_may() {
    let folder = tempfile::tempdir().unwrap();
    let load = async |size: u64, number: u8| {
        let mut file = Fixture::new(cases::ANSWER).build(Form::Command);
        file.extend([0, 3, 1, b'v', number]);
        let cache = Cache::open(folder.path(), size).unwrap();
        let runtime = runtime_with(cache, EngineOptions::default().idle);
        runtime.load(file, Limits::default()).await.unwrap().code_origin()
    };
    load(SIZE, 0).await;
    let bytes = fs::metadata(&entries(folder.path())[0]).unwrap().len();
    // As many as there are plugins; a fixed capacity would not hold them.
    let all = 100;
    for number in 0..all {
        load(bytes * 150, number).await;
    }
    assert_eq!(entries(folder.path()).len(), usize::from(all));
    for number in 0..all {
        assert_eq!(load(bytes * 150, number).await, CodeOrigin::Cached, "{number}");
    }
    // Room for ten and a half: the most recently used entries stay.
    load(bytes * 21 / 2, all).await;
    assert_eq!(entries(folder.path()).len(), 10);
    assert_eq!(load(bytes * 21 / 2, all - 1).await, CodeOrigin::Cached);
    assert_eq!(load(bytes * 21 / 2, 0).await, CodeOrigin::Compiled);
    // Not enough room for one.
    fs::remove_dir_all(folder.path()).unwrap();
    load(bytes / 2, 0).await;
    assert!(entries(folder.path()).is_empty());
}

/// Loads an answering plugin whose code stays in memory for 50 ms without a call.
async fn loaded_briefly(folder: &Path, form: Form) -> Plugin {
    let cache = Cache::open(folder, SIZE).unwrap();
    let runtime = runtime_with(cache, Duration::from_millis(50));
    let file = Fixture::new(cases::ANSWER).build(form);
    runtime.load(file, Limits::default()).await.unwrap()
}

/// Waits until the code is not in memory. The time limit of the test ends this if it stays.
async fn until_dropped(plugin: &Plugin) {
    while plugin.is_in_memory().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn only_a_plugin_that_is_called_has_its_code_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    for form in FORMS {
        for start in ["cold", "warm"] {
            let plugin = loaded_briefly(folder.path(), form).await;
            assert!(start == "cold" || !plugin.is_in_memory().await);
            for _ in 0..2 {
                until_dropped(&plugin).await;
                assert_eq!(children(&plugin).await.len(), 1, "{start}");
            }
        }
    }
}

#[tokio::test]
async fn a_warm_start_asks_the_plugin_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for form in FORMS {
        let cold = loaded_briefly(folder.path(), form).await;
        let warm = loaded_briefly(folder.path(), form).await;
        assert_eq!(warm.description(), cold.description());
        assert_eq!((warm.form(), warm.digest()), (cold.form(), cold.digest()));
        assert_eq!(children(&warm).await.len(), 1);
    }
}

#[tokio::test]
async fn a_running_plugin_survives_the_removal_of_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = loaded_briefly(folder.path(), Form::Command).await;
    until_dropped(&plugin).await;
    fs::remove_dir_all(folder.path()).unwrap();
    assert_eq!(children(&plugin).await.len(), 1);
}

/// Only the host's own user can do this, or a disk that fails.
#[tokio::test]
async fn code_that_changes_while_the_host_runs_is_not_loaded_and_a_restart_compiles_it_again() {
    let folder = tempfile::tempdir().unwrap();
    for length in [None, Some(100), Some(0)] {
        let plugin = loaded_briefly(folder.path(), Form::Command).await;
        until_dropped(&plugin).await;
        let entry = entries(folder.path()).remove(0);
        let good = fs::read(&entry).unwrap();
        let mut bad = good[..length.unwrap_or(good.len())].to_vec();
        if let Some(byte) = bad.get_mut(99) {
            *byte ^= 1;
        }
        // In place: the host has the file open.
        fs::write(&entry, bad).unwrap();
        let error = error(&plugin).await;
        assert_eq!(error.class(), Class::Host);
        assert!(error.to_string().contains("restart the host"), "{error}");
        let restarted = loaded_briefly(folder.path(), Form::Command).await;
        assert_eq!(children(&restarted).await.len(), 1, "{length:?}");
    }
}

/// Regression: a caller that gave up threw the code away that was being loaded for it, and a plugin with a short deadline
/// never had its code.
#[tokio::test]
async fn code_is_kept_although_the_caller_has_given_up_while_it_was_loaded() {
    let folder = tempfile::tempdir().unwrap();
    for form in FORMS {
        let plugin = loaded_briefly(folder.path(), form).await;
        until_dropped(&plugin).await;
        let request = request("2026-01-02T03:04:05Z");
        let mut call = Box::pin(plugin.reconcile(&request));
        assert!(futures::poll!(&mut call).is_pending());
        drop(call);
        // This waits for the load.
        assert!(plugin.is_in_memory().await);
    }
}

#[tokio::test]
async fn code_that_the_engine_refuses_is_compiled_again_by_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = loaded_briefly(folder.path(), Form::Command).await;
    let entry = entries(folder.path()).remove(0);
    let name = entry.file_stem().unwrap().to_str().unwrap();
    let cache = Cache::open(folder.path(), SIZE).unwrap();
    let described = Described {
        form: plugin.form(),
        refused: Vec::new(),
        description: plugin.description().clone(),
    };
    cache.put(name, &Code::compiled(b"no machine code".to_vec()), &described);

    let plugin = loaded_briefly(folder.path(), Form::Command).await;
    error(&plugin).await;
    let restarted = loaded_briefly(folder.path(), Form::Command).await;
    assert_eq!(restarted.code_origin(), CodeOrigin::Compiled);
    assert_eq!(children(&restarted).await.len(), 1);
}
