//! Versions of plugins, with the runtime and real WebAssembly. The plugins are in `tests/fixtures`.

mod promotion;
mod released;
mod swaps;

use std::sync::{Arc, LazyLock};

use kube::core::DynamicObject;
use serde_json::json;

use operator_host_contract::Request;
use operator_host_runtime::{EngineOptions, Runtime};

/// The runtime shared by all tests, as in a process.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Runtime::new(EngineOptions::default()).expect("the engine starts"));

/// Fails unless a text contains all of these words, parts that ` … ` divides.
#[track_caller]
pub(crate) fn assert_says(text: impl std::fmt::Display, words: &str) {
    let text = text.to_string();
    for part in words.split(" … ") {
        assert!(text.contains(part), "{text:?} does not contain {part:?}");
    }
}

fn request() -> Request {
    let parent: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "fixtures.dev/v1",
        "kind": "Fixture",
        "metadata": { "name": "one", "namespace": "default", "uid": "4e6f2a0c-6f5d-4a52-9a4e-0f2a7d1f3b11" },
        "spec": { "replicas": 3 },
    }))
    .expect("a resource");
    let now = "2026-01-02T03:04:05Z".parse().expect("a time");
    Request::about(Arc::new(parent), Vec::new(), now)
}
