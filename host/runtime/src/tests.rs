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
use serde_json::json;

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
async fn refused(file: Vec<u8>) -> String {
    match load(file, Limits::default()).await {
        Ok(_) => panic!("the file was loaded"),
        Err(error) => error.to_string(),
    }
}

async fn plugin(form: Form, case: &str, limits: Limits) -> Plugin {
    match load(Fixture::new(case).build(form), limits).await {
        Ok(plugin) => plugin,
        Err(error) => panic!("{form:?}: {error}"),
    }
}

/// Calls `reconcile` once for a case.
async fn call(form: Form, case: &str, limits: Limits) -> Call<Response> {
    plugin(form, case, limits)
        .await
        .reconcile(&request("2026-01-02T03:04:05Z"))
        .await
}

/// Returns the error of one `reconcile` of a case.
async fn failure(form: Form, case: &str, limits: Limits) -> CallError {
    match call(form, case, limits).await.outcome {
        Ok(response) => panic!("{form:?} answered {response:?}"),
        Err(error) => error,
    }
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
