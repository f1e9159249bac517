//! Tests of the runtime with real WebAssembly, in both binary forms. The plugins are in `tests/fixtures`.

mod amounts;
mod bad_calls;
mod bad_files;
mod budget;
mod cache;
mod composed;
mod good_plugins;
mod log;
mod refusals;

use std::sync::{Arc, LazyLock};

use kube::core::DynamicObject;
use plugin_fixtures::{Fixture, Form};
use serde_json::{Value, json};

use crate::contract::{Request, Response};
use crate::{Call, CallError, Class, EngineOptions, Limits, LoadError, Plugin, Runtime};

/// The runtime shared by all tests, as in a process.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Runtime::new(EngineOptions::default()).expect("the engine starts"));

async fn load(file: Vec<u8>, limits: Limits) -> Result<Plugin, LoadError> {
    RUNTIME.load(file, limits).await
}

/// Returns a case of a command that writes this text as its answer.
fn writing(text: &str) -> String {
    format!(
        r#"(data (i32.const 8192) "{}") (func $case (call $write (i32.const 1) (i32.const 8192) (i32.const {})))"#,
        text.replace('"', "\\22"),
        text.len()
    )
}

/// Returns the error of a file that must not load.
async fn load_error(file: Vec<u8>, limits: Limits) -> LoadError {
    load(file, limits).await.map(drop).unwrap_err()
}

/// Fails unless a file is refused with these words.
async fn refused_with(file: Vec<u8>, words: &str) {
    let error = load_error(file, Limits::default()).await;
    assert_contains(&error.to_string(), words);
}

/// Fails unless a text has these words, which ` … ` divides.
#[track_caller]
fn assert_contains(text: &str, words: &str) {
    for part in words.split(" … ") {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// Returns the plugin of a file that must load.
async fn loaded(file: Vec<u8>) -> Plugin {
    load(file, Limits::default()).await.unwrap()
}

async fn plugin(form: Form, case: &str, limits: Limits) -> Plugin {
    load(Fixture::new(case).build(form), limits).await.unwrap()
}

/// Calls `reconcile` once.
async fn reconcile(plugin: &Plugin) -> Call<Response> {
    plugin.reconcile(&request("2026-01-02T03:04:05Z")).await
}

/// Returns the children of one `reconcile`.
async fn children(plugin: &Plugin) -> Vec<Value> {
    reconcile(plugin).await.outcome.unwrap().children
}

/// Returns the error of one `reconcile`.
async fn error(plugin: &Plugin) -> CallError {
    reconcile(plugin).await.outcome.unwrap_err()
}

/// Returns the error of one `reconcile` of a case.
async fn failure(form: Form, case: &str, limits: Limits) -> CallError {
    error(&plugin(form, case, limits).await).await
}

fn request(now: &str) -> Request {
    let parent: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "fixtures.dev/v1",
        "kind": "Fixture",
        "metadata": { "name": "one", "namespace": "default", "uid": "4e6f2a0c-6f5d-4a52-9a4e-0f2a7d1f3b11" },
        "spec": { "replicas": 3 },
    }))
    .expect("a resource");
    Request::about(Arc::new(parent), Vec::new(), now.parse().expect("a time"))
}
